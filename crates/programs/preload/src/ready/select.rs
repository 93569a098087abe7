//! `select`: a [`super::poll`] of the same descriptors.
//!
//! # Model
//! The bits of the three sets become entries, and what the entries report becomes bits again, as the kernel has it in fs/select.c
//! (`POLLIN_SET`, `POLLOUT_SET`, `POLLEX_SET`). What `poll` reports unasked and no set asks for leaves the call to the kernel, for
//! sockets that are the kernel's from then on.
//!
//! # Limits
//! [`ENTRIES`] descriptors, below `FD_SETSIZE`; those of a larger call are the kernel's for good.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use windlass_channel::Reason;

use crate::fd::{call::Own, table};
use crate::ready::poll;
use crate::socket::{demote::demote, errors};
use crate::sys::{
    clock::{Limit, Wait},
    kernel, memory, real,
};

const ENTRIES: usize = 128;
const WORDS: usize = libc::FD_SETSIZE / 64;
/// What each set asks for, and what it takes for it.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const TAKEN: [i16; 3] = [
    ASKED[0] | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    ASKED[1] | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    ASKED[2],
];

struct Sets {
    words: [[u64; WORDS]; 3],
    count: usize,
}

impl Sets {
    /// None so far. Filled in place, and small: a call may be made on a signal stack.
    fn new() -> Self {
        Self {
            words: [[0; WORDS]; 3],
            count: 0,
        }
    }

    /// Copies the program's. False: they cannot be read, or are too large.
    #[inline(never)]
    fn copy(&mut self, count: c_int, sets: &[*mut fd_set; 3]) -> bool {
        self.count = usize::try_from(count).unwrap_or(usize::MAX);
        let length = self.count.div_ceil(64);
        let mut all = self.words.iter_mut().zip(sets);
        all.all(|(words, set)| {
            let words = words.get_mut(..length);
            words.is_some_and(|words| set.is_null() || memory::fetch_all(words, set.cast()))
        })
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        self.words[set][fd / 64] >> (fd % 64) & 1 == 1
    }

    fn asked(&self, fd: usize) -> i16 {
        let asked = (0..3).filter(|set| self.has(*set, fd));
        asked.fold(0, |events, set| events | ASKED[set])
    }

    /// The descriptors that anything is asked of.
    fn fds(&self) -> impl Iterator<Item = usize> {
        let rows = (0..self.count.div_ceil(64)).map(|row| {
            let all = self.words.iter().fold(0, |all, words| all | words[row]);
            (row, all)
        });
        rows.filter(|(_, all)| *all != 0)
            .flat_map(|(row, all)| {
                (0..64)
                    .filter(move |bit| all >> bit & 1 == 1)
                    .map(move |bit| row * 64 + bit)
            })
            .filter(|fd| *fd < self.count)
    }

    /// The entries of a `poll`. None: there are too many.
    #[inline(never)]
    fn entries<'a>(
        &self,
        room: &'a mut [MaybeUninit<pollfd>; ENTRIES],
    ) -> Option<&'a mut [pollfd]> {
        let mut used = 0;
        for fd in self.fds() {
            room.get_mut(used)?.write(pollfd {
                fd: fd as c_int,
                events: self.asked(fd),
                revents: 0,
            });
            used += 1;
        }
        // SAFETY: the first `used` ones were written above.
        Some(unsafe { room.get_mut(..used)?.assume_init_mut() })
    }

    /// Leaves of the bits what the entries report, and gives their number.
    #[inline(never)]
    fn keep(&mut self, entries: &[pollfd]) -> usize {
        let mut bits = 0;
        for entry in entries {
            let (row, bit) = (entry.fd as usize / 64, 1 << (entry.fd % 64));
            for (words, taken) in self.words.iter_mut().zip(TAKEN) {
                if entry.revents & taken == 0 {
                    words[row] &= !bit;
                }
                bits += usize::from(words[row] & bit != 0);
            }
        }
        bits
    }

    /// Writes them to where the program has its sets; false if there is no memory.
    fn put(&self, sets: &[*mut fd_set; 3]) -> bool {
        let length = self.count.div_ceil(64);
        let mut all = self.words.iter().zip(sets);
        all.all(|(words, set)| set.is_null() || memory::put_all(set.cast(), &words[..length]))
    }
}

/// Whether a tracked socket or an epoll instance is in one of the sets, or they are more than can be looked at.
#[inline(never)]
pub fn is_ours(count: c_int, sets: &[*mut fd_set; 3]) -> bool {
    let mut copy = Sets::new();
    let is_ours = |fd: usize| table::any(fd as c_int).is_some();
    table::exists() && (!copy.copy(count, sets) || copy.fds().any(is_ours))
}

/// `select` and `pselect`, with how long it waits and where what is left of that is told, unless that is null.
pub fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    (wait, left_at): (Wait, *mut timeval),
    mask: *const sigset_t,
    own: Own,
) -> isize {
    let mut room = [const { MaybeUninit::uninit() }; ENTRIES];
    let mut copy = Sets::new();
    let known = copy.copy(count, &sets);
    let Some(entries) = known.then(|| copy.entries(&mut room)).flatten() else {
        return by_kernel(count, own);
    };
    let limit = Limit::from_ns(wait.0);
    let spec = wait.0.map(kernel::timespec);
    let spec: *const timespec = spec.as_ref().map_or(std::ptr::null(), |spec| spec);
    let (set, length) = (entries.as_mut_ptr(), entries.len());
    let polls = Own::of::<c_int>(
        &real::slot::ppoll,
        [set as usize, length, spec as usize, mask as usize, 0, 0],
    );
    let found = poll::poll(set, length as u64, wait, mask, polls);
    let error = real::errno();
    put_left(left_at, &limit);
    if found < 0 {
        return errors::fail(error);
    }
    // A number that is not open is an error, or nothing at all: the kernel knows how far its table goes.
    let is_odd = |entry: &pollfd| entry.revents & libc::POLLNVAL != 0;
    if entries.iter().any(is_odd) {
        return by_kernel(count, own);
    }
    let bits = copy.keep(entries);
    if found > 0 && bits == 0 {
        return by_kernel(count, own);
    }
    if copy.put(&sets) {
        bits as isize
    } else {
        errors::fail(libc::EFAULT)
    }
}

fn put_left(at: *mut timeval, limit: &Limit) {
    if let Some(left) = limit.left_ns().filter(|_| !at.is_null()) {
        let left = timeval {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_usec: (left % 1_000_000_000 / 1_000) as i64,
        };
        memory::put(at, left);
    }
}

/// The program's own call, with the sockets that it may be about on the kernel.
#[cold]
fn by_kernel(count: c_int, own: Own) -> isize {
    for sock in table::sockets().filter(|sock| sock.fd < count) {
        demote(&sock, Reason::Limit);
    }
    own.call()
}
