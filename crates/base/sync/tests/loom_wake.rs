//! A reader that sleeps and a writer that wakes it at most once, as `windlass-capture` has them: a model of the steps on words, with a
//! flag under a lock in the place of the socket. No record is left with the reader asleep.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Default)]
struct Line {
    head: AtomicU64,
    asleep: AtomicU32,
    /// A byte waits in the socket.
    woken: Mutex<bool>,
}

impl Line {
    fn publish(&self, head: u64) {
        self.head.store(head, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.asleep.store(0, Ordering::Relaxed);
            *self.woken.lock().expect("no panic") = true;
        }
    }

    /// Takes the byte.
    fn take(&self) -> bool {
        std::mem::take(&mut *self.woken.lock().expect("no panic"))
    }

    /// Whether the reader, which has read up to `tail`, may wait for the socket.
    fn sleeps(&self, tail: u64) -> bool {
        self.asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.head.load(Ordering::Acquire) == tail
    }
}

/// Whatever the order: when the writer has ended, the reader has read everything, or waits with a byte in the socket.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let line = Arc::new(Line::default());
        let writer = {
            let line = line.clone();
            thread::spawn(move || (1..=2).for_each(|head| line.publish(head)))
        };
        // Two times to sleep, and a byte that is there ends the wait.
        let (mut tail, mut waits) = (0, false);
        for _ in 0..2 {
            tail = line.head.load(Ordering::Acquire);
            waits = line.sleeps(tail);
            if waits && line.take() {
                waits = false;
            }
            if waits {
                break;
            }
        }
        writer.join().expect("the writer");
        if waits && tail < 2 {
            assert!(line.take(), "asleep at {tail}");
        }
    });
}
