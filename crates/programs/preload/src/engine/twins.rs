//! Members with equal data: which of them an event of the kernel is of.
//!
//! # Model
//! An event names its member by the program's data alone, and a wait that found bytes in a ring asks the kernel, too: two events
//! of one member have to become one, and those of two members must not, though a program may give them the same
//! data. Each instance counts its members by a hash of their data ([`Seen`]), so that data with one member, the usual case, is
//! known at once. Where there may be more, `/proc/self/fdinfo` shows the members, and the kernel is asked of each
//! that has ring bytes whether it had something to say of it.
//!
//! # Limits
//! Counts only grow for members that are not ours, since their closes are not followed: then the second way is gone in vain.

use std::ffi::c_int;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use libc::epoll_event;

use super::{armed, kernel, promote};
use crate::table;

/// Counts of one instance: a power of two.
const COUNTS: usize = 16_384;

/// How many members an instance has, by a hash of their data.
pub struct Seen([AtomicU8; COUNTS]);

impl Seen {
    /// None.
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; COUNTS])
    }

    fn count(&self, data: u64) -> &AtomicU8 {
        let hash = data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[hash as usize % COUNTS]
    }

    /// Counts the members that the instance has already.
    pub fn learn(&self, instance: c_int) {
        let _ = armed::each(instance, |line| self.add(line.data));
    }

    /// One more.
    pub fn add(&self, data: u64) {
        let up = |count: u8| Some(count.saturating_add(1));
        let _ = self.count(data).fetch_update(Relaxed, Relaxed, up);
    }

    /// One fewer; a count that was too high to be kept stays.
    pub fn remove(&self, data: u64) {
        let down = |count: u8| (1..u8::MAX).contains(&count).then(|| count - 1);
        let _ = self.count(data).fetch_update(Relaxed, Relaxed, down);
    }

    /// The instance is gone.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Whether more than one member may have this data.
    pub fn may_be_many(&self, data: u64) -> bool {
        self.count(data).load(Relaxed) > 1
    }

    /// Whether an event of the kernel is of a member whose ring bytes are reported, too, under the same data.
    pub fn is_same(&self, instance: c_int, event: epoll_event) -> bool {
        !self.may_be_many(event.u64) || is_of_ring(instance, event)
    }
}

#[cold]
fn is_of_ring(instance: c_int, event: epoll_event) -> bool {
    let (mut members, mut is_one) = (0, false);
    let seen = armed::each(instance, |line| {
        if line.data != event.u64 {
            return;
        }
        members += 1;
        let has_bytes = table::known(line.fd)
            .and_then(|sock| promote::joined(&sock))
            .is_some_and(|link| link.incoming().ring_ready());
        is_one |= has_bytes && kernel::poll_one(line.fd, event.events) & event.events != 0;
    });
    seen.is_none() || members < 2 || is_one
}

#[cfg(test)]
mod tests {
    use super::Seen;

    /// Proves that equal data is noticed while there are two, and different data is told apart.
    #[test]
    fn equal_data_is_noticed() {
        let seen = Box::new(Seen::new());
        let counted = |data: u64| seen.count(data).load(super::Relaxed);
        seen.add(1);
        seen.add(2);
        assert_eq!((counted(1), counted(2)), (1, 1));
        seen.add(1);
        assert_eq!(counted(1), 2);
        seen.remove(1);
        seen.remove(2);
        seen.remove(2);
        assert_eq!((counted(1), counted(2)), (1, 0));
        seen.clear();
        assert_eq!(counted(1), 0);
    }
}
