//! Loom models of the single-producer, single-consumer ring. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::thread;
use windlass_sync::spsc;

/// Values arrive once, in order and whole, over a lap of a ring of two; loom reports any slot that
/// is accessed by both halves without an ordering between them.
#[test]
fn values_arrive_once_and_in_order() {
    loom::model(|| {
        let (mut sender, mut receiver) = spsc::channel::<u32>(2);
        let producer = thread::spawn(move || {
            let mut next = 0;
            while next < 3 {
                match sender.push(next) {
                    Ok(()) => next += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match receiver.pop() {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        producer.join().unwrap();
        assert_eq!(receiver.pop(), None);
    });
}

/// When the sender is seen gone, everything that it pushed is there; what nobody takes is dropped
/// once (loom reports a leaked or doubly freed `Arc`).
#[test]
fn closing_hides_nothing() {
    loom::model(|| {
        let (mut sender, mut receiver) = spsc::channel(2);
        let token = loom::sync::Arc::new(());
        let copies = (token.clone(), token.clone());
        let producer = thread::spawn(move || {
            sender.push(copies.0).unwrap();
            sender.push(copies.1).unwrap();
        });
        if receiver.is_closed() {
            assert_eq!(receiver.len(), 2);
            assert!(receiver.pop().is_some());
        }
        producer.join().unwrap();
        drop(receiver);
        assert_eq!(loom::sync::Arc::strong_count(&token), 1);
    });
}
