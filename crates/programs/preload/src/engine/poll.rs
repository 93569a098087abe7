//! `poll` and `select`: ring bytes beside what the kernel says of the same set.
//!
//! # Model
//! Each joined member that is asked for input is looked at. If one has bytes, the kernel is asked without waiting and its
//! answer completed. If none has, the call spins as the user allows, counts itself as a sleeper on each such
//! member, looks once more, and sleeps in the program's own call.
//!
//! # Limits
//! [`MEMBERS`] joined members a call, and [`BITS`] numbers in a `select`; a call with more asks for their bytes in the kernel.

use std::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd};
use windlass_channel::{Asleep, Link, Reason};

use super::inside::Sleeper;
use super::stream::KERNEL_NEWS;
use super::{clock, death, kernel, memory, promote, rest, stream};
use crate::counters::{self, Counter};
use crate::own::{Own, Sock, Wait};
use crate::{options, signals, table};

/// Joined members of one call.
const MEMBERS: usize = 128;
/// Numbers in a `select` whose sets are copied.
const BITS: usize = 4_096;
const WORDS: usize = BITS / 64;
/// Looks of a call whose ring bytes are moved away under it, each time anew, before it relies on the kernel alone.
const RETRIES: u32 = 1_000;
/// A spin asks the kernel every so often.
const LOOK_US: u32 = 4;
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// The joined members of a call that wait for input: where each stands in the set, and its channel.
struct Members {
    count: usize,
    list: [Option<(usize, Sock, Link<'static>)>; MEMBERS],
}

impl Members {
    fn new() -> Self {
        Self {
            count: 0,
            list: [None; MEMBERS],
        }
    }

    /// Those of a `poll`.
    fn of(entries: &[pollfd]) -> Self {
        let mut members = Self::new();
        for (at, entry) in entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.events & READABLE != 0)
        {
            let Some(sock) = table::known(entry.fd) else {
                continue;
            };
            if let Some(link) = promote::joined(&sock) {
                members.add(at, sock, link);
            }
        }
        members
    }

    /// Those of a `select`.
    fn selected(copy: &Sets) -> Self {
        let mut members = Self::new();
        for fd in (0..copy.count).filter(|fd| copy.wants_input(*fd)) {
            let Some(sock) = table::known(fd as c_int) else {
                continue;
            };
            if let Some(link) = promote::joined(&sock) {
                members.add(fd, sock, link);
            }
        }
        members
    }

    /// One more; beyond the limit its bytes are asked for in the kernel.
    fn add(&mut self, at: usize, sock: Sock, link: Link<'static>) {
        match self.list.get_mut(self.count) {
            Some(place) => {
                *place = Some((at, sock, link));
                self.count += 1;
            }
            None => stream::drain(&sock, &link, Reason::Limit),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &(usize, Sock, Link<'static>)> {
        self.list.iter().take(self.count).flatten()
    }

    fn any_ready(&self) -> bool {
        self.iter().any(|(_, _, link)| link.incoming().ring_ready())
    }

    /// Counts this thread as asleep on every member; false, and nobody is, if one has bytes.
    fn fall_asleep(&self) -> bool {
        signals::enter();
        let slept = self
            .iter()
            .take_while(|(_, _, link)| link.incoming().fall_asleep() == Asleep::Yes)
            .count();
        if slept < self.count {
            self.iter()
                .take(slept)
                .for_each(|(_, _, link)| link.incoming().woke(0));
        }
        signals::leave();
        slept == self.count
    }

    /// Whether unread bytes are left in a ring that this process writes.
    fn has_left(&self) -> bool {
        self.iter().any(|(_, _, link)| link.outgoing().unread())
    }

    /// Moves what is left into the kernel.
    fn reclaim(&self) {
        for (_, sock, link) in self.iter().filter(|(_, _, link)| link.outgoing().unread()) {
            let _ = stream::reclaim(sock, link);
        }
    }

    fn wake_up(&self) {
        signals::enter();
        self.iter().for_each(|(_, _, link)| link.incoming().woke(0));
        signals::leave();
    }
}

/// The socket of a number if it has not joined, and might.
fn young(fd: c_int) -> Option<Sock> {
    table::known(fd)
        .filter(|sock| promote::is_young(sock.record) && !sock.record.has(promote::JOINED))
}

/// `poll` and `ppoll`; the set was read a moment ago.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, own: Own) -> isize {
    // SAFETY: every page of the set was read a moment ago; the program keeps it for the call.
    let entries = unsafe { std::slice::from_raw_parts(set, count as usize) };
    let has_joined = |entry: &pollfd| {
        table::known(entry.fd).is_some_and(|sock| sock.record.has(promote::JOINED))
    };
    if !entries.iter().any(has_joined) {
        let result = if wait.is_now() {
            Some(noted(own.call()))
        } else {
            asleep_young(entries, own)
        };
        if let Some(result) = result {
            return result;
        }
    }
    poll_joined(set, entries, wait, own)
}

/// The same for a set with at least one joined member.
fn poll_joined(set: *mut pollfd, entries: &[pollfd], wait: Wait, own: Own) -> isize {
    (0..RETRIES)
        .find_map(|_| poll_once(set, entries, wait, own))
        .unwrap_or_else(|| own.call())
}

/// A look and a sleep. `None`: bytes of a ring were seen and then not found, since their sender has moved them into the
/// kernel after it had been asked.
fn poll_once(set: *mut pollfd, entries: &[pollfd], wait: Wait, own: Own) -> Option<isize> {
    death::notice();
    let members = Members::of(entries);
    if members.any_ready() {
        return found_some(poll_now(set, entries, &members));
    }
    if wait.is_now() {
        let result = own.call();
        return Some(if result > 0 && death::notice() {
            poll_now(set, entries, &members)
        } else {
            noted(result)
        });
    }
    // Without a spin the program's own call follows at once.
    let mut looked_at = if options::spin_us() == 0 {
        clock::now()
    } else {
        0
    };
    let mut found = 0;
    stream::spin(|| {
        if members.any_ready() {
            return true;
        }
        let now = clock::now();
        if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
            looked_at = now;
            found = kernel::poll_now(set, entries.len()).unwrap_or(0);
        }
        found != 0
    });
    if found != 0 {
        if death::notice() {
            return found_some(poll_now(set, entries, &members));
        }
        return Some(noted(found as isize));
    }
    if !members.fall_asleep() {
        return found_some(poll_now(set, entries, &members));
    }
    counters::add(Counter::Sleeps, 1);
    if members.has_left() {
        members.iter().for_each(|(_, sock, _)| rest::begin(sock));
        let rested = kernel::rest(set, entries.len());
        members.iter().for_each(|(_, sock, _)| rest::end(sock));
        match rested {
            Ok(0) => members.reclaim(),
            Ok(_) => {}
            Err(error) => {
                members.wake_up();
                return Some(stream::fail(error));
            }
        }
    }
    let result = asleep_young(entries, own);
    members.wake_up();
    let result = result?;
    if result < 0 || !(death::notice() || members.any_ready()) {
        return Some(result);
    }
    let found = poll_now(set, entries, &members);
    // A time that is over is over.
    (found != 0 || result == 0).then_some(found)
}

/// An answer, unless it is that nothing was found.
fn found_some(found: isize) -> Option<isize> {
    (found != 0).then_some(found)
}

/// The program's own call, counted at the members that might join meanwhile. `None`: one has joined before it.
fn asleep_young(entries: &[pollfd], own: Own) -> Option<isize> {
    let sock = |at: usize| young(entries.get(at)?.fd);
    let asleep = Sleeper::enter(sock, entries.len())?;
    let result = own.call();
    asleep.leave(|at| table::known(entries.get(at)?.fd));
    Some(noted(result))
}

/// The kernel has reported something: sockets that find nothing ask it.
fn noted(result: isize) -> isize {
    if result > 0 {
        KERNEL_NEWS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    result
}

/// What kernel and rings have now.
fn poll_now(set: *mut pollfd, entries: &[pollfd], members: &Members) -> isize {
    let found = match kernel::poll_now(set, entries.len()) {
        Ok(found) => found,
        Err(error) => return stream::fail(error),
    };
    let mut found = noted(found as isize);
    for (at, _, link) in members.iter() {
        if !link.incoming().ring_ready() {
            continue;
        }
        let entry = set.wrapping_add(*at);
        // SAFETY: the kernel has just written the set.
        let mut value = unsafe { entry.read_unaligned() };
        found += isize::from(value.revents == 0);
        value.revents |= value.events & READABLE;
        // SAFETY: as above.
        unsafe { entry.write_unaligned(value) };
    }
    found
}

/// The three sets of a `select`, copied.
struct Sets {
    words: [[u64; WORDS]; 3],
    count: usize,
}

impl Sets {
    fn copy(count: c_int, sets: &[*mut fd_set; 3]) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| *count <= BITS)?;
        let mut copy = Self {
            words: [[0; WORDS]; 3],
            count,
        };
        for (words, set) in copy
            .words
            .iter_mut()
            .zip(sets)
            .filter(|(_, set)| !set.is_null())
        {
            memory::fetch_all(words.get_mut(..count.div_ceil(64))?, set.cast()).then_some(())?;
        }
        Some(copy)
    }

    fn wants_input(&self, fd: usize) -> bool {
        self.words[0][fd / 64] >> (fd % 64) & 1 == 1
    }

    /// Writes the sets as they were before the call.
    fn restore(&self, sets: &[*mut fd_set; 3]) {
        for (words, set) in self
            .words
            .iter()
            .zip(sets)
            .filter(|(_, set)| !set.is_null())
        {
            memory::put_all(set.cast(), &words[..self.count.div_ceil(64)]);
        }
    }
}

/// `select` and `pselect`.
pub fn select(count: c_int, sets: [*mut fd_set; 3], wait: Wait, own: Own) -> isize {
    death::notice();
    let Some(copy) = Sets::copy(count, &sets) else {
        for sock in table::each().filter(|sock| sock.fd < count) {
            if let Some(link) = promote::joined(&sock) {
                stream::drain(&sock, &link, Reason::Limit);
            }
        }
        return own.call();
    };
    for _ in 0..RETRIES {
        if let Some(found) = select_once(&copy, sets, &Members::selected(&copy), wait, own) {
            return found;
        }
        copy.restore(&sets);
    }
    own.call()
}

/// As [`poll_once`]. The sets are as the program gave them.
fn select_once(
    copy: &Sets,
    sets: [*mut fd_set; 3],
    members: &Members,
    wait: Wait,
    own: Own,
) -> Option<isize> {
    if members.any_ready() {
        return found_some(select_now(copy, &sets, members));
    }
    if wait.is_now() {
        let result = own.call();
        if result > 0 && death::notice() {
            copy.restore(&sets);
            return found_some(select_now(copy, &sets, members));
        }
        return Some(noted(result));
    }
    let mut looked_at = clock::now();
    let mut found = 0;
    if members.count != 0 {
        stream::spin(|| {
            if members.any_ready() {
                return true;
            }
            let now = clock::now();
            if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
                looked_at = now;
                found = kernel::select_now(copy.count, &sets).unwrap_or(0);
                if found == 0 {
                    copy.restore(&sets);
                }
            }
            found != 0
        });
    }
    if found != 0 {
        if death::notice() {
            copy.restore(&sets);
            return found_some(select_now(copy, &sets, members));
        }
        return Some(noted(found as isize));
    }
    if !members.fall_asleep() {
        return found_some(select_now(copy, &sets, members));
    }
    if members.has_left() {
        // A select of its own would need copies of the sets: the bytes go at once.
        members.reclaim();
    }
    let result = asleep_select(copy, own);
    members.wake_up();
    let result = result?;
    if result < 0 || !(death::notice() || members.any_ready()) {
        return Some(result);
    }
    copy.restore(&sets);
    let found = select_now(copy, &sets, members);
    (found != 0 || result == 0).then_some(found)
}

/// As [`asleep_young`].
fn asleep_select(copy: &Sets, own: Own) -> Option<isize> {
    let sock = |fd: usize| copy.wants_input(fd).then(|| young(fd as c_int))?;
    let asleep = Sleeper::enter(sock, copy.count)?;
    let result = own.call();
    asleep.leave(|fd| table::known(fd as c_int));
    Some(noted(result))
}

/// What kernel and rings have now.
fn select_now(copy: &Sets, sets: &[*mut fd_set; 3], members: &Members) -> isize {
    let found = match kernel::select_now(copy.count, sets) {
        Ok(found) => found,
        Err(error) => return stream::fail(error),
    };
    let mut found = noted(found as isize);
    for (fd, _, link) in members.iter() {
        if !link.incoming().ring_ready() {
            continue;
        }
        let word = sets[0].cast::<u64>().wrapping_add(fd / 64);
        // SAFETY: the kernel has just written the set.
        let mut value = unsafe { word.read_unaligned() };
        found += isize::from(value >> (fd % 64) & 1 == 0);
        value |= 1 << (fd % 64);
        // SAFETY: as above.
        unsafe { word.write_unaligned(value) };
    }
    found
}
