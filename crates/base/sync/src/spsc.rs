//! A bounded ring from one thread to one other.
//!
//! # Purpose
//!
//! Sightings to the learner, ports that move between workers, drained spills: a value leaves one
//! thread and arrives at another, in order, without a lock and without allocation.
//!
//! # Model
//!
//! A power-of-two array of slots and two counters that only rise: `tail`, written by the
//! [`Sender`], and `head`, written by the [`Receiver`]. Each half keeps a copy of the other's
//! counter and looks again only when the copy says full or empty, so in a steady stream the
//! counters' lines cross once per lap and not per value.
//!
//! # Ownership and lifetime
//!
//! Neither half is `Clone` and both work by `&mut self`, so there is one of each. Dropping a half
//! closes the ring; values still inside are dropped with the second half.
//!
//! # Synchronization
//!
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `push`: `tail`, Release | `pop`: `tail`, Acquire | the value is in the slot before it is counted |
//! | `pop`: `head`, Release | `push`: `head`, Acquire | the value is out of the slot before it is overwritten |
//! | a half's drop: `closed`, Release | `is_closed`, Acquire | every push before the drop is visible after `is_closed` said true |
//!
//! # Failure modes
//!
//! Full, or closed by the receiver: `push` hands the value back.

use crate::Padded;
use crate::cell::Slot;
use crate::shim::{Arc, AtomicBool, AtomicUsize, Ordering};
use std::fmt;

struct Ring<T> {
    slots: Box<[Slot<T>]>,
    /// Set by whichever half is dropped first.
    closed: AtomicBool,
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
}

// SAFETY: the ring passes values from thread to thread (T: Send), and its two halves never touch
// one slot at a time: the counters' pairs above keep them apart.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: it owns its values and nothing else.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    #[inline]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    fn len(&self) -> usize {
        // Head first: the tail that is read later can only be further on.
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.slots.len())
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let tail = self.tail.load(Ordering::Acquire);
        let mut head = self.head.load(Ordering::Acquire);
        while head != tail {
            // SAFETY: both halves are gone (this is the last owner), and slots from head to tail
            // are full.
            drop(unsafe { self.slot(head).take() });
            head = head.wrapping_add(1);
        }
    }
}

/// The half that pushes.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    /// The receiver's counter when last looked at: never beyond the real one.
    head_seen: usize,
}

/// The half that pops.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    /// The sender's counter when last looked at: never beyond the real one.
    tail_seen: usize,
}

/// A ring of `capacity` values, rounded up to a power of two.
///
/// # Panics
///
/// If `capacity` is 0 or above 2^31.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        (1..=1 << 31).contains(&capacity),
        "capacity {capacity} of a ring"
    );
    let ring = Arc::new(Ring {
        slots: (0..capacity.next_power_of_two())
            .map(|_| Slot::empty())
            .collect(),
        closed: AtomicBool::new(false),
        head: Padded::new(AtomicUsize::new(0)),
        tail: Padded::new(AtomicUsize::new(0)),
    });
    let sender = Sender {
        ring: ring.clone(),
        tail: 0,
        head_seen: 0,
    };
    (
        sender,
        Receiver {
            ring,
            head: 0,
            tail_seen: 0,
        },
    )
}

impl<T> Sender<T> {
    /// Appends a value.
    ///
    /// # Errors
    ///
    /// The value itself, if the ring is full or the receiver is gone.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.ring.closed.load(Ordering::Relaxed) {
            return Err(value);
        }
        if self.tail.wrapping_sub(self.head_seen) == self.ring.slots.len() {
            self.head_seen = self.ring.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head_seen) == self.ring.slots.len() {
                return Err(value);
            }
        }
        // SAFETY: the slot is empty, since head has passed it (Acquire above), and only this half
        // puts; the Release store below hands it over.
        unsafe { self.ring.slot(self.tail).put(value) };
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// How many values are inside, at most: the receiver may be taking some.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values fit.
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.ring.tail.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        // SAFETY: the slot is full, since tail has passed it (Acquire above), and only this half
        // takes; the Release store below hands it back.
        let value = unsafe { self.ring.slot(self.head).take() };
        self.head = self.head.wrapping_add(1);
        self.ring.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// How many values are inside, at least: the sender may be adding some.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values fit.
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// Whether the sender is gone. Values may still be inside: when this has said true, the first
    /// `pop` that gives nothing is the end.
    pub fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
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
            let (mut sender, mut receiver) = channel(size);
            let mut oracle = VecDeque::new();
            prop_assert_eq!(sender.capacity(), size.next_power_of_two());
            for (value, push) in steps.into_iter().enumerate() {
                if push {
                    let fits = oracle.len() < sender.capacity();
                    prop_assert_eq!(sender.push(value), if fits { Ok(()) } else { Err(value) });
                    if fits {
                        oracle.push_back(value);
                    }
                } else {
                    prop_assert_eq!(receiver.pop(), oracle.pop_front());
                }
                prop_assert_eq!(sender.len(), oracle.len());
                prop_assert_eq!(receiver.is_empty(), oracle.is_empty());
            }
        }
    }

    /// Real threads: many laps of a small ring, with boxed values so that a lost hand-over is a bad
    /// free.
    #[test]
    fn a_stream_between_threads_arrives_in_order() {
        const VALUES: u64 = 50_000;
        let (mut sender, mut receiver) = channel(8);
        let producer = std::thread::spawn(move || {
            for value in 0..VALUES {
                let mut boxed = Box::new(value);
                while let Err(back) = sender.push(boxed) {
                    boxed = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        loop {
            let closed = receiver.is_closed();
            match receiver.pop() {
                Some(value) => {
                    assert_eq!(*value, expected);
                    expected += 1;
                }
                None if closed => break,
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(expected, VALUES);
        producer.join().unwrap();
    }

    /// A push to a dead receiver gives the value back, and what was inside is dropped with the
    /// second half.
    #[test]
    fn a_dead_receiver_refuses() {
        let token = std::sync::Arc::new(());
        let (mut sender, receiver) = channel(4);
        sender.push(token.clone()).unwrap();
        drop(receiver);
        assert!(sender.is_closed());
        assert!(sender.push(token.clone()).is_err());
        assert_eq!(std::sync::Arc::strong_count(&token), 2);
        drop(sender);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }
}
