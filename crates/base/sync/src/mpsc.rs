//! A bounded queue from many threads to one.
//!
//! # Purpose
//!
//! Control mailboxes: API, message and timer threads post commands to a worker.
//!
//! # Model
//!
//! Vyukov's array queue. Slot `i` carries a turn number. It is `i` when the slot waits for the
//! value of position `i`, `i + 1` when that value is there, and `i + capacity` when it has been
//! taken and the slot waits for the next lap. A producer claims a position by moving `tail` on,
//! puts its value and advances the turn; the consumer follows the turns in order.
//!
//! # Ownership and lifetime
//!
//! [`Queue`] is the producers' handle and may be cloned. [`Receiver`] is the one consumer: not
//! `Clone`, and it pops by `&mut self`. What is inside when the last handle goes is dropped then.
//!
//! # Synchronization
//!
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `push`: turn `i + 1`, Release | `pop`: turn, Acquire | the value is in the slot before it is taken |
//! | `pop`: turn `i + capacity`, Release | `push`: turn, Acquire | the value is out before the next lap puts |
//! | `push`: `tail`, compare-exchange Relaxed | itself | a position has one producer; the slot's turn carries the data |
//!
//! # What can be lost and what cannot
//!
//! A producer that is interrupted between claim and turn hides the values behind it until it goes
//! on; `pop` says `None` meanwhile. Nothing is lost: a producer wakes the consumer *after* its
//! push, so the consumer looks again after the last of them.
//!
//! # Failure modes
//!
//! Full, or the receiver gone: `push` hands the value back.

use crate::Padded;
use crate::cell::Slot;
use crate::shim::{Arc, AtomicBool, AtomicU64, Ordering};
use std::fmt;

struct Turn<T> {
    turn: AtomicU64,
    slot: Slot<T>,
}

/// The array itself, shared by [`Queue`] and the serialization queue.
pub(crate) struct Array<T> {
    turns: Box<[Turn<T>]>,
    tail: Padded<AtomicU64>,
    /// Written by the one consumer only.
    head: Padded<AtomicU64>,
}

// SAFETY: values go from thread to thread (T: Send), and the turns keep producers and the consumer
// out of each other's slots.
unsafe impl<T: Send> Sync for Array<T> {}
// SAFETY: it owns its values and nothing else.
unsafe impl<T: Send> Send for Array<T> {}

impl<T> Array<T> {
    /// Room for `capacity` values, rounded up to a power of two of at least 2: with one slot,
    /// "taken" and "full" would be the same turn.
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(
            (1..=1 << 31).contains(&capacity),
            "capacity {capacity} of a queue"
        );
        let turn = |i| Turn {
            turn: AtomicU64::new(i),
            slot: Slot::empty(),
        };
        let capacity = capacity.next_power_of_two().max(2) as u64;
        Self {
            turns: (0..capacity).map(turn).collect(),
            tail: Padded::new(AtomicU64::new(0)),
            head: Padded::new(AtomicU64::new(0)),
        }
    }

    #[inline]
    fn turn(&self, position: u64) -> &Turn<T> {
        &self.turns[position as usize & (self.turns.len() - 1)]
    }

    /// Appends a value, or hands it back if there is no room.
    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let entry = self.turn(tail);
            let turn = entry.turn.load(Ordering::Acquire);
            let next = tail.wrapping_add(1);
            if turn == tail {
                let claim = self.tail.compare_exchange_weak(
                    tail,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                let Err(moved) = claim else {
                    // SAFETY: position `tail` is ours alone, and its turn said that the slot is
                    // empty (Acquire above); the Release store below hands it over.
                    unsafe { entry.slot.put(value) };
                    entry.turn.store(next, Ordering::Release);
                    return Ok(());
                };
                tail = moved;
            } else if (turn.wrapping_sub(tail) as i64) < 0 {
                return Err(value); // still full from the lap before
            } else {
                tail = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest value, if its producer has finished.
    ///
    /// # Safety
    ///
    /// One thread pops at a time, and each such thread happens after the one before it.
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        let head = self.head.load(Ordering::Relaxed);
        let entry = self.turn(head);
        if entry.turn.load(Ordering::Acquire) != head.wrapping_add(1) {
            return None;
        }
        // SAFETY: the turn says full (Acquire above), and this is the only thread that pops.
        let value = unsafe { entry.slot.take() };
        entry.turn.store(
            head.wrapping_add(self.turns.len() as u64),
            Ordering::Release,
        );
        self.head.store(head.wrapping_add(1), Ordering::Relaxed);
        Some(value)
    }

    /// Positions claimed and not yet taken.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        (tail.saturating_sub(head) as usize).min(self.turns.len())
    }

    /// How many values fit.
    pub(crate) fn capacity(&self) -> usize {
        self.turns.len()
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: nobody else pops or pushes, so every claimed slot is full.
        while let Some(value) = unsafe { self.pop() } {
            drop(value);
        }
    }
}

struct Shared<T> {
    array: Array<T>,
    closed: AtomicBool,
}

/// The producers' handle.
pub struct Queue<T>(Arc<Shared<T>>);

/// The one consumer.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A queue of `capacity` values, rounded up to a power of two of at least 2.
///
/// # Panics
///
/// If `capacity` is 0 or above 2^31.
pub fn channel<T>(capacity: usize) -> (Queue<T>, Receiver<T>) {
    let array = Array::new(capacity);
    let shared = Arc::new(Shared {
        array,
        closed: AtomicBool::new(false),
    });
    (Queue(shared.clone()), Receiver(shared))
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Queue<T> {
    /// Appends a value. Wake the consumer, if it may sleep, after this and not before.
    ///
    /// # Errors
    ///
    /// The value itself, if the queue is full or the receiver is gone.
    pub fn push(&self, value: T) -> Result<(), T> {
        if self.is_closed() {
            return Err(value);
        }
        self.0.array.push(value)
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// How many values are inside, about.
    pub fn len(&self) -> usize {
        self.0.array.len()
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values fit.
    pub fn capacity(&self) -> usize {
        self.0.array.capacity()
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest value. `None` if there is none, or if its producer is about to finish.
    pub fn pop(&mut self) -> Option<T> {
        // SAFETY: this is the only receiver, and `&mut self` means one thread at a time.
        unsafe { self.0.array.pop() }
    }

    /// How many values are inside, about.
    pub fn len(&self) -> usize {
        self.0.array.len()
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Any sequence of pushes and pops does what a `VecDeque` with the same limit does.
        #[test]
        fn behaves_as_a_bounded_deque(size in 1usize..20, steps in prop::collection::vec(any::<bool>(), 0..400)) {
            let (queue, mut receiver) = channel(size);
            let mut oracle = VecDeque::new();
            prop_assert_eq!(queue.capacity(), size.next_power_of_two().max(2));
            for (value, push) in steps.into_iter().enumerate() {
                if push {
                    let fits = oracle.len() < queue.capacity();
                    prop_assert_eq!(queue.push(value), if fits { Ok(()) } else { Err(value) });
                    if fits {
                        oracle.push_back(value);
                    }
                } else {
                    prop_assert_eq!(receiver.pop(), oracle.pop_front());
                }
                prop_assert_eq!(queue.len(), oracle.len());
                prop_assert_eq!(receiver.is_empty(), oracle.is_empty());
            }
        }
    }

    /// Real threads: three producers through a small queue; each value once, each producer's in
    /// order.
    #[test]
    fn three_producers_arrive_in_their_orders() {
        const VALUES: usize = 10_000;
        let (queue, mut receiver) = channel(8);
        let producers = [0usize, 1, 2].map(|producer| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                for value in 0..VALUES {
                    let mut boxed = Box::new((producer, value));
                    while let Err(back) = queue.push(boxed) {
                        boxed = back;
                        std::thread::yield_now();
                    }
                }
            })
        });
        let mut next = [0; 3];
        while next != [VALUES; 3] {
            match receiver.pop() {
                Some(value) => {
                    let (producer, value) = *value;
                    assert_eq!(value, next[producer]);
                    next[producer] += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        producers.into_iter().for_each(|p| p.join().unwrap());
        assert!(receiver.pop().is_none());
    }

    /// A push to a dead receiver gives the value back, and what was inside is dropped with the last
    /// handle.
    #[test]
    fn a_dead_receiver_refuses() {
        let token = std::sync::Arc::new(());
        let (queue, receiver) = channel(4);
        queue.push(token.clone()).unwrap();
        drop(receiver);
        assert!(queue.push(token.clone()).is_err());
        drop(queue);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }
}
