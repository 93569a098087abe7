//! Loom models of the many-producer, single-consumer queue. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::thread;
use windlass_sync::mpsc;

/// Two producers beside a consumer, through two slots of which one is full to begin with, so that
/// slots go round: each value that was accepted arrives once, and one producer's stay in order.
#[test]
fn values_of_two_producers_arrive_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(|| {
        let (queue, mut receiver) = mpsc::channel::<u32>(2);
        queue.push(0).unwrap();
        let other = queue.clone();
        let first = thread::spawn(move || [10, 11].map(|value| queue.push(value).is_ok()));
        let second = thread::spawn(move || other.push(20).is_ok());
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(receiver.pop());
        }
        let [ten, eleven] = first.join().unwrap();
        let twenty = second.join().unwrap();
        while let Some(value) = receiver.pop() {
            seen.push(value);
        }
        let mut accepted = vec![0];
        accepted.extend(
            [(ten, 10), (eleven, 11), (twenty, 20)]
                .iter()
                .filter(|a| a.0)
                .map(|a| a.1),
        );
        let position = |value| seen.iter().position(|v| *v == value);
        assert!(!(ten && eleven) || position(10) < position(11), "{seen:?}");
        assert_eq!(seen.first(), Some(&0));
        seen.sort_unstable();
        assert_eq!(seen, accepted);
    });
}

/// Values that nobody takes are dropped once when the last handle goes, whichever that is.
#[test]
fn values_left_inside_are_dropped_once() {
    loom::model(|| {
        let (queue, receiver) = mpsc::channel(2);
        let token = loom::sync::Arc::new(());
        let copy = token.clone();
        let producer = thread::spawn(move || drop(queue.push(copy)));
        drop(receiver);
        producer.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&token), 1);
    });
}
