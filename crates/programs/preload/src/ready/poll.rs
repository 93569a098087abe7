//! `poll`: ring bytes beside what the kernel says of the same set.
//!
//! # Model
//! Each joined member that is asked for input is looked at. If one has bytes, the kernel is asked without waiting and its answer
//! completed. If none has, the call spins as the user allows, counts itself as a sleeper on each such member, looks once more, and
//! sleeps in the program's own call. Where the kernel was asked a moment ago, the rings answer alone ([`crate::ready::looks`]).
//!
//! # Limits
//! [`MEMBERS`] joined members a call; further ones are the kernel's for good.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{nfds_t, pollfd, sigset_t};
use windlass_channel::{Asleep, Link, Reason};

use crate::counts::counters::{self, Counter};
use crate::fd::{
    call::{Own, Sock},
    record::flag,
    table,
};
use crate::process::{identity, signals};
use crate::ready::{
    looks::{Key, room_of},
    sets,
};
use crate::socket::{
    demote::demote,
    errors,
    in_flight::Sleeper,
    kernel_look::KERNEL_NEWS,
    peer_death, spin,
    state::{self, At},
};
use crate::sys::{
    clock::{self, Limit, Wait},
    kernel, memory,
};

/// Joined members of one call.
const MEMBERS: usize = 128;
/// Looks of a call whose ring bytes are moved away under it, each time anew, before it relies on the kernel alone.
const RETRIES: u32 = 1_000;
/// A spin asks the kernel every so often.
const LOOK_US: u32 = 4;
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// A joined member that waits for input: where it stands in the set, and its channel. Small, since a call may be made on
/// a signal stack.
#[derive(Clone, Copy)]
struct Member {
    at: u32,
    channel: At,
}

impl Member {
    fn link(&self) -> Option<Link<'static>> {
        self.channel.link()
    }
}

/// The joined members of a call that wait for input.
struct Members {
    count: usize,
    list: [MaybeUninit<Member>; MEMBERS],
}

impl Members {
    fn new() -> Self {
        Self {
            count: 0,
            list: [const { MaybeUninit::uninit() }; MEMBERS],
        }
    }

    /// Those of a `poll`.
    fn find(&mut self, entries: &[pollfd]) {
        self.count = 0;
        let asked = entries.iter().enumerate();
        for (at, entry) in asked.filter(|(_, entry)| entry.events & READABLE != 0) {
            self.add(at, entry.fd);
        }
    }

    /// One more, if it has joined; beyond the limit it is demoted.
    fn add(&mut self, at: usize, fd: c_int) {
        let Some(sock) = table::known(fd) else { return };
        let Some((link, place)) = state::joined(&sock).zip(state::place(&sock)) else {
            return;
        };
        let Some(free) = self.list.get_mut(self.count) else {
            return demote(&sock, Reason::Limit);
        };
        free.write(Member {
            at: at as u32,
            channel: At {
                place,
                side: link.side(),
                chan: link.index(),
            },
        });
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Member> {
        let used = self.list.iter().take(self.count);
        // SAFETY: `add` has written the first `count` ones.
        used.map(|member| unsafe { member.assume_init_ref() })
    }

    /// The places in the set of those whose rings have bytes.
    fn ready(&self) -> impl Iterator<Item = usize> {
        let is_ready = |link: Link<'_>| link.incoming().ring_ready();
        self.iter()
            .filter(move |member| member.link().is_some_and(is_ready))
            .map(|member| member.at as usize)
    }

    fn any_ready(&self) -> bool {
        self.ready().next().is_some()
    }

    fn links(&self) -> impl Iterator<Item = Link<'static>> {
        self.iter().filter_map(Member::link)
    }

    /// Counts this thread as asleep on every member; false, and nobody is, if one has bytes.
    fn fall_asleep(&self) -> bool {
        signals::enter();
        let is_asleep = |link: &Link<'_>| link.incoming().fall_asleep() == Asleep::Yes;
        let slept = self.links().take_while(is_asleep).count();
        let is_whole = slept == self.links().count();
        if !is_whole {
            self.links()
                .take(slept)
                .for_each(|link| link.incoming().woke(0));
        }
        signals::leave();
        is_whole
    }

    fn wake_up(&self) {
        signals::enter();
        self.links().for_each(|link| link.incoming().woke(0));
        signals::leave();
    }
}

/// The socket of a number if it has not joined, and might.
fn young(fd: c_int) -> Option<Sock> {
    table::known(fd)
        .filter(|sock| state::is_young(sock.record) && !sock.record.has(flag::JOINED))
        .filter(|sock| state::is_own(sock.record))
}

/// `poll` and `ppoll`; the set was read a moment ago.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, mask: *const sigset_t, own: Own) -> isize {
    // SAFETY: every page of the set was read a moment ago; the program keeps it for the call.
    let entries = unsafe { std::slice::from_raw_parts(set, count as usize) };
    let instances = entries.iter().filter_map(|entry| table::epoll(entry.fd));
    instances.for_each(|instance| sets::estrange(&instance));
    let has_joined =
        |entry: &pollfd| table::known(entry.fd).is_some_and(|sock| sock.record.has(flag::JOINED));
    if !entries.iter().any(has_joined) {
        let result = if wait.is_now() {
            Some(noted(own.call()))
        } else {
            asleep_young(entries, || own.call())
        };
        if let Some(result) = result {
            return result;
        }
    }
    let (mut limit, mut members) = (None, Members::new());
    for _ in 0..RETRIES {
        members.find(entries);
        let polled = Polled {
            set,
            entries,
            members: &members,
            key: key_of(entries),
            mask,
        };
        let done = if wait.is_now() {
            polled.at_once(own)
        } else {
            polled.once(wait, &mut limit, own)
        };
        if let Some(done) = done {
            return done;
        }
    }
    own.call()
}

impl Polled<'_> {
    /// A look and a sleep. `None`: bytes of a ring were seen and then not found, since their sender has moved them into the
    /// kernel after it had been asked.
    fn once(&self, wait: Wait, limit: &mut Option<Limit>, own: Own) -> Option<isize> {
        let (polled, members) = (self, self.members);
        peer_death::notice();
        let known = polled.by_rings();
        if known.is_some() {
            return known;
        }
        if members.any_ready() {
            return found_some(polled.look());
        }
        let mut looked_at = polled.key.looks_from();
        let mut found = 0;
        spin::spin(|| {
            if members.any_ready() {
                return true;
            }
            let now = clock::now();
            if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
                looked_at = now;
                found = polled.ask().unwrap_or(0);
            }
            found != 0
        });
        if found != 0 {
            if peer_death::notice() {
                return found_some(polled.look());
            }
            return Some(noted(found as isize));
        }
        if members.any_ready() || !members.fall_asleep() {
            return polled.by_rings().or_else(|| found_some(polled.look()));
        }
        counters::add(Counter::Sleeps, 1);
        let limit = limit.get_or_insert_with(|| Limit::from_ns(wait.0));
        let result = self.sleep(limit, own);
        members.wake_up();
        let result = result?;
        if result < 0 || !(peer_death::notice() || members.any_ready()) {
            return Some(result);
        }
        let found = polled.look();
        // A time that is over is over.
        (found != 0 || result == 0).then_some(found)
    }

    /// The call in which the thread sleeps, for what is left of its time.
    fn sleep(&self, limit: &Limit, own: Own) -> Option<isize> {
        asleep_young(self.entries, || {
            if limit.left_ns().is_none() {
                return own.call();
            }
            // SAFETY: the program's own set and mask.
            unsafe { limit.poll(self.set, self.entries.len() as nfds_t, self.mask) }
        })
    }
}

/// An answer, unless it is that nothing was found.
fn found_some(found: isize) -> Option<isize> {
    (found != 0).then_some(found)
}

/// A call that sleeps, counted at the members that might join meanwhile. `None`: one has joined before it.
fn asleep_young(entries: &[pollfd], sleep: impl FnOnce() -> isize) -> Option<isize> {
    let sock = |at: usize| young(entries.get(at)?.fd);
    if !identity::has_threads() {
        // Each look is a use of the socket by this process; nobody else can join one of them meanwhile.
        let _ = (0..entries.len()).filter_map(sock).count();
        return Some(noted(sleep()));
    }
    let asleep = Sleeper::enter(sock, entries.len())?;
    let result = sleep();
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

/// What a `poll` asks for, as one number.
fn key_of(entries: &[pollfd]) -> Key {
    let word = |entry: &pollfd| u64::from(entry.fd as u32) | u64::from(entry.events as u16) << 32;
    let asks_for_room = entries.iter().any(|entry| entry.events & WRITABLE != 0);
    Key::of(entries.iter().map(word), asks_for_room)
}

/// How many bytes the kernel was given by a joined socket.
fn given(fd: c_int) -> Option<u64> {
    let link = state::joined(&table::known(fd)?)?;
    Some(link.outgoing().kernel_sent())
}

/// The set of a `poll`, and its joined members.
struct Polled<'a> {
    set: *mut pollfd,
    entries: &'a [pollfd],
    members: &'a Members,
    key: Key,
    mask: *const sigset_t,
}

impl Polled<'_> {
    /// The whole of a call that may not wait.
    fn at_once(&self, own: Own) -> Option<isize> {
        peer_death::notice();
        if self.members.any_ready() {
            return found_some(self.look());
        }
        let result = own.call();
        Some(if result > 0 && peer_death::notice() {
            self.look()
        } else {
            noted(result)
        })
    }

    /// What the kernel has now, in the set.
    fn ask(&self) -> kernel::Done {
        counters::add(Counter::PollLooks, 1);
        let found = kernel::poll_now(self.set, self.entries.len())?;
        self.key.remember(match found {
            0 => Some(0),
            _ => self.only_room(),
        });
        Ok(found)
    }

    /// The joined members that are asked for room, if the kernel has reported just that of them, and nothing else.
    fn only_room(&self) -> Option<u64> {
        let is_room = |at: usize| {
            let entry = memory::fetch(self.set.wrapping_add(at))?;
            let asked = entry.events & WRITABLE;
            let has_room = asked != 0 && given(entry.fd).is_some();
            (entry.revents == if has_room { asked } else { 0 }).then_some(())
        };
        let is_all = (0..self.entries.len()).all(|at| is_room(at).is_some());
        is_all.then(|| self.room())
    }

    fn room(&self) -> u64 {
        let asked = self
            .entries
            .iter()
            .filter(|entry| entry.events & WRITABLE != 0);
        room_of(asked.filter_map(|entry| given(entry.fd)))
    }

    /// What rings and kernel have now, if the kernel need not be asked and there is something.
    fn by_rings(&self) -> Option<isize> {
        let room = self.key.believed()?;
        if room != 0 && room != self.room() {
            return None;
        }
        let mut ready = self.members.ready().peekable();
        if room == 0 && ready.peek().is_none() {
            return None;
        }
        let mut found = 0;
        for (at, entry) in self.entries.iter().enumerate() {
            let mut entry = *entry;
            entry.revents = 0;
            if ready.next_if_eq(&at).is_some() {
                entry.revents = entry.events & READABLE;
            }
            if room != 0 && entry.events & WRITABLE != 0 && given(entry.fd).is_some() {
                entry.revents |= entry.events & WRITABLE;
            }
            found += isize::from(entry.revents != 0);
            if !memory::put(self.set.wrapping_add(at), entry) {
                return None;
            }
        }
        Some(found)
    }

    /// What kernel and rings have now.
    fn look(&self) -> isize {
        let found = match self.ask() {
            Ok(found) => found,
            Err(error) => return errors::fail(error),
        };
        let mut found = noted(found as isize);
        for at in self.members.ready() {
            let entry = self.set.wrapping_add(at);
            // SAFETY: the kernel has just written the set.
            let mut value = unsafe { entry.read_unaligned() };
            found += isize::from(value.revents == 0);
            value.revents |= value.events & READABLE;
            // SAFETY: as above.
            unsafe { entry.write_unaligned(value) };
        }
        found
    }
}
