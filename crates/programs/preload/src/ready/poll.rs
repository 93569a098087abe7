//! `poll`: ring bytes beside what the kernel says of the same set.
//!
//! # Model
//! Each joined member that is asked for input is looked at. If one has bytes, the kernel is asked without waiting and its answer
//! completed; of a set that asks one socket for input, and for nothing else, the ring says all that there is to say. If none has, the
//! call spins as the user allows, counts itself as a sleeper on each such member, looks once more, and sleeps in the program's own
//! call.
//!
//! # Limits
//! [`MEMBERS`] joined members a call; further ones are the kernel's for good.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

use libc::{nfds_t, pollfd, sigset_t};
use windlass_channel::{Asleep, Link, Reason};

use crate::fd::{
    call::{Own, Sock},
    record::flag,
    table,
};
use crate::options;
use crate::process::{identity, signals};
use crate::ready::{sets, unless_handled};
use crate::socket::{
    demote::demote,
    errors,
    in_flight::Sleeper,
    kernel_look::{KERNEL_NEWS, is_ending},
    peer_death, spin,
    state::{self, At},
};
use crate::sys::{
    clock::{self, Limit, Wait},
    kernel, memory,
};

const MEMBERS: usize = 128;
/// Looks of a call whose ring bytes are moved away under it, each time anew, before it relies on the kernel alone.
const RETRIES: u32 = 1_000;
/// A spin asks the kernel every so often.
const LOOK_US: u32 = 4;
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

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
            let counted = self.links().take(slept);
            counted.for_each(|link| link.incoming().woke(0));
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
        .filter(state::is_own)
}

/// Whether a tracked socket or an epoll instance is in the set. A set that cannot be read has none: the kernel says EFAULT.
#[inline]
pub fn is_ours(set: *const pollfd, count: nfds_t) -> bool {
    let count = count as usize;
    let bytes = count.checked_mul(size_of::<pollfd>());
    let is_possible = |bytes: &usize| *bytes != 0 && *bytes <= isize::MAX as usize;
    let bytes = bytes.filter(|bytes| table::exists() && is_possible(bytes));
    if !bytes.is_some_and(|bytes| memory::readable(set.cast(), bytes)) {
        return false;
    }
    // SAFETY: every page was read a moment ago; the program keeps the set for the call.
    let set = unsafe { std::slice::from_raw_parts(set, count) };
    set.iter().any(|member| table::any(member.fd).is_some())
}

/// `poll` and `ppoll`; the set was read a moment ago.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, mask: *const sigset_t, own: Own) -> isize {
    // SAFETY: every page of the set was read a moment ago; the program keeps it for the call.
    let entries = unsafe { std::slice::from_raw_parts(set, count as usize) };
    let began = signals::handled();
    let instances = entries.iter().filter_map(|entry| table::epoll(entry.fd));
    instances.for_each(|instance| sets::estrange(&instance));
    let has_joined =
        |entry: &pollfd| table::known(entry.fd).is_some_and(|sock| sock.record.has(flag::JOINED));
    if !entries.iter().any(has_joined) {
        let result = if wait.is_now() {
            Some(noted(own.call()))
        } else {
            let look = || kernel::poll(set, entries.len(), 0);
            asleep_young(entries, || unless_handled(began, look, || own.call()))
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
            mask,
            began,
        };
        peer_death::notice();
        let done = if members.any_ready() {
            polled.look()
        } else if wait.is_now() {
            let result = own.call();
            if result > 0 && peer_death::notice() {
                polled.look()
            } else {
                Some(noted(result))
            }
        } else {
            polled.wait(wait, &mut limit, own)
        };
        if let Some(done) = done {
            return done;
        }
    }
    own.call()
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
        KERNEL_NEWS.fetch_add(1, Relaxed);
    }
    result
}

struct Polled<'a> {
    set: *mut pollfd,
    entries: &'a [pollfd],
    members: &'a Members,
    mask: *const sigset_t,
    began: u64,
}

impl Polled<'_> {
    /// Spins, then sleeps. `None`: bytes of a ring were seen and then not found, since their sender has moved them into the kernel
    /// after it had been asked.
    fn wait(&self, wait: Wait, limit: &mut Option<Limit>, own: Own) -> Option<isize> {
        let members = self.members;
        // What only the kernel knows may be there already. Without a spin the program's own call follows.
        let mut looked_at = if options::spin_us() == 0 || self.is_of_rings() {
            clock::now()
        } else {
            0
        };
        let mut found = 0;
        spin::spin(|| {
            if members.any_ready() {
                return true;
            }
            let now = clock::now();
            if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
                looked_at = now;
                found = kernel::poll(self.set, self.entries.len(), 0).unwrap_or(0);
            }
            found != 0
        });
        if found != 0 && !peer_death::notice() {
            return Some(noted(found as isize));
        }
        if found != 0 || members.any_ready() || !members.fall_asleep() {
            return self.look();
        }
        let limit = limit.get_or_insert_with(|| Limit::from_ns(wait.0));
        let count = self.entries.len();
        let sleep = || match limit.left_ns() {
            None => own.call(),
            // SAFETY: the program's own set and mask.
            Some(_) => unsafe { limit.poll(self.set, count as nfds_t, self.mask) },
        };
        let look = || kernel::poll(self.set, count, 0);
        let result = asleep_young(self.entries, || unless_handled(self.began, look, sleep));
        members.wake_up();
        let result = result?;
        if result < 0 || !(peer_death::notice() || members.any_ready()) {
            return Some(result);
        }
        // A time that is over is over.
        self.look().or((result == 0).then_some(0))
    }

    fn is_of_rings(&self) -> bool {
        let is_input = |entry: &pollfd| entry.events & !READABLE == 0;
        self.members.count == self.entries.len() && self.entries.iter().all(is_input)
    }

    /// Whether the ring of the only member has all that is asked for, and no end comes after it, which the kernel would show, too.
    fn is_told_by_ring(&self) -> bool {
        let ([entry], true) = (self.entries, self.is_of_rings()) else {
            return false;
        };
        let (sock, mut links) = (table::known(entry.fd), self.members.links());
        let only = sock.zip(links.next());
        only.is_some_and(|(sock, link)| link.incoming().ring_ready() && !is_ending(&sock, &link))
    }

    /// What kernel and rings have now, if anything.
    fn look(&self) -> Option<isize> {
        let is_told_by_ring = self.is_told_by_ring();
        let asked = if is_told_by_ring {
            Ok(0)
        } else {
            kernel::poll(self.set, self.entries.len(), 0)
        };
        let mut found = match asked {
            Ok(found) => noted(found as isize),
            Err(error) => return Some(errors::fail(error)),
        };
        for place in self.members.ready().map(|at| self.set.wrapping_add(at)) {
            let mut entry = memory::fetch(place)?;
            let by_kernel = if is_told_by_ring { 0 } else { entry.revents };
            found += isize::from(by_kernel == 0);
            entry.revents = by_kernel | entry.events & READABLE;
            if !memory::put(place, entry) {
                return Some(errors::fail(libc::EFAULT));
            }
        }
        (found != 0).then_some(found)
    }
}
