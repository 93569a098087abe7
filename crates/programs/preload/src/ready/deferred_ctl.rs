//! `epoll_ctl`, and interest in user space: a change without a system call.
//!
//! # Purpose
//! Event loops of one thread change what they wait for with every message: a client asks for `EPOLLOUT` before it writes, and for
//! `EPOLLIN` after it, in up to five calls a request. Nobody looks at the kernel's instance between two of them.
//!
//! # Model
//! A change of a level-triggered member that has joined is kept here ([`defer`]), and the member *lags*: the kernel has
//! another mask (`told`), or has a member that the program has removed. What depends on the kernel's view is preceded by telling it
//! ([`flush_epoll_ctl`]): a sleep in the instance, and whatever may show it to somebody else (fork, exec, threads, `poll`, passing,
//! nesting, a close). A look at the kernel needs less: only what the program asks for beyond `told` is told before it, and what the
//! kernel reports beyond what is asked is taken out ([`before_look`], [`filter`]). So a member that the kernel knows to be read
//! from may be asked for reading and writing in turn for ever, and the kernel hears of none of it.
//!
//! `EPOLLOUT` of such a member is answered here ([`writable`]): the kernel has said that the socket is writable, and has
//! not been given a byte of it since. Only sends can change that, and all of them are counted in the channel.
//!
//! # When a change is kept here
//! All of this holds: the process has never had a second thread; instance and socket have one number each, in one process; the
//! socket is a joined TCP socket; its old and new masks are level-triggered, without flags that change how events are
//! reported; its data stays. Any other change is the program's own call, and tells the kernel of all kept ones first.
//!
//! # What can be lost and what cannot
//! Errors are the kernel's: only a change that it would surely make is kept here. A process that is killed takes its instance
//! with it.
//!
//! # Limits
//! - [`LAGGING_MAX`] lagging members; one more tells the kernel of all of them.
//! - A program that mixes libc's calls and bare system calls on one instance sees its changes late, and so does another process
//!   that takes the instance by `pidfd_getfd(2)`.

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use libc::epoll_event;
use windlass_channel::{Link, Reason};

use crate::counts::counters::{self, Counter};
use crate::fd::{
    call::{Own, Sock},
    record::{Kind, flag},
    table,
};
use crate::process::{identity, signals};
use crate::ready::sets::{self, ABSENT, HERE, Member, QUEUED, READABLE, Set, drop_member};
use crate::socket::{demote::demote, kind, state};
use crate::sys::{clock, kernel, memory};

const LAGGING_MAX: usize = 128;
/// How long what the kernel has said of a socket's room is believed.
const ROOM_US: u32 = 10_000;
/// What a member may ask for: level-triggered, and nothing that the kernel keeps a state for.
const LEVEL: u32 = READABLE | WRITABLE | UNASKED | (libc::EPOLLPRI | libc::EPOLLRDHUP) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// What the kernel reports of every member.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The records of members that lag, or did: of all instances, since only a process of one thread has any.
static LAGGARDS: [AtomicU32; LAGGING_MAX] = [const { AtomicU32::new(0) }; LAGGING_MAX];
static LAGGING: AtomicU32 = AtomicU32::new(0);

/// Tells the kernel of everything.
#[inline(always)]
pub fn flush_epoll_ctl() {
    if LAGGING.load(Relaxed) != 0 {
        tell(|_| true);
    }
}

/// Tells the kernel what it has to know to be asked.
#[inline]
pub(super) fn before_look() {
    if LAGGING.load(Relaxed) != 0 {
        tell(is_lacking);
    }
}

/// Whether the program asks for something that neither the kernel has been told nor is answered here.
fn is_lacking(member: &Member) -> bool {
    let state = member.state.load(Relaxed);
    let here = if state & HERE != 0 { WRITABLE } else { 0 };
    state & ABSENT == 0 && member.events.load(Relaxed) & !(member.told.load(Relaxed) | here) != 0
}

#[cold]
fn tell(which: impl Fn(&Member) -> bool) {
    signals::enter();
    let mut kept = 0;
    for place in &LAGGARDS[..LAGGING.load(Relaxed) as usize] {
        let record = place.load(Relaxed);
        if tell_one(record, &which) {
            LAGGARDS[kept].store(record, Relaxed);
            kept += 1;
        }
    }
    LAGGING.store(kept as u32, Relaxed);
    signals::leave();
}

fn tell_one(record: u32, which: &impl Fn(&Member) -> bool) -> bool {
    let queued = |member: &&Member| member.state.load(Relaxed) & QUEUED != 0;
    let Some(member) = sets::member(record).filter(queued) else {
        return false;
    };
    if lags(member) && !which(member) {
        return true;
    }
    member.state.fetch_and(!QUEUED, AcqRel);
    let Some((_, set)) = member.set().filter(|_| lags(member)) else {
        return false;
    };
    let (instance, fd) = (set.fd.load(Relaxed), member.fd.load(Relaxed));
    let mut event = member.event();
    // What fails here has changed out of our sight, and is the kernel's to report.
    if member.state.load(Relaxed) & ABSENT != 0 {
        let _ = kernel::epoll_ctl(instance, libc::EPOLL_CTL_DEL, fd, &mut event);
        drop_member(set, member);
    } else {
        member.told.store(event.events, Relaxed);
        let _ = kernel::epoll_ctl(instance, libc::EPOLL_CTL_MOD, fd, &mut event);
    }
    false
}

/// Whether the kernel has other events of a member than the program wants, or has it although the program has removed it.
fn lags(member: &Member) -> bool {
    let is_absent = member.state.load(Relaxed) & ABSENT != 0;
    is_absent || member.events.load(Relaxed) != member.told.load(Relaxed)
}

/// In a forked child: the parent has told the kernel of everything before.
pub fn forked() {
    LAGGING.store(0, Relaxed);
}

/// An option of a socket has changed, which may concern its room.
pub fn doubt_room(sock: &Sock) {
    if let Some(member) = sets::known_member(sock) {
        member.room_at.store(0, Relaxed);
    }
}

/// Whether the kernel has room for a send: as it said last, if no byte was given to it since, or asked now.
fn has_room(sock: &Sock, link: &Link<'static>, member: &Member) -> bool {
    let (sent, now) = (link.outgoing().kernel_sent(), clock::now());
    let at = member.room_at.load(Relaxed);
    if at != 0 && member.sent.load(Relaxed) == sent && now.wrapping_sub(at) < clock::cycles(ROOM_US)
    {
        return true;
    }
    let out = libc::EPOLLOUT as u32;
    let has = kernel::poll_one(sock.fd, out) == out;
    member.sent.store(sent, Relaxed);
    member.room_at.store(if has { now } else { 0 }, Relaxed);
    has
}

/// What is answered here of a member's wish to write. If the socket is not writable any more, the kernel has to be told.
pub(super) fn writable(sock: &Sock, link: &Link<'static>, member: &Member) -> u32 {
    if member.state.load(Relaxed) & HERE == 0 {
        return 0;
    }
    if has_room(sock, link, member) {
        return member.events.load(Relaxed) & WRITABLE;
    }
    member.state.fetch_and(!HERE, AcqRel);
    0
}

/// Takes what the program has not asked for out of `count` kernel events; how many remain.
pub(super) fn filter(index: usize, events: *mut epoll_event, count: usize) -> usize {
    let length = LAGGING.load(Relaxed) as usize;
    if length == 0 {
        return count;
    }
    let mut kept = 0;
    for at in 0..count {
        let Some(mut event) = memory::fetch(events.wrapping_add(at)) else {
            return count;
        };
        let of = |place: &AtomicU32| {
            let member = sets::member(place.load(Relaxed))?;
            let is_it = member.is_in(index) && member.data.load(Relaxed) == { event.u64 };
            (is_it && lags(member)).then_some(member)
        };
        if let Some(member) = LAGGARDS[..length].iter().find_map(of) {
            event.events &= if member.state.load(Relaxed) & ABSENT != 0 {
                0
            } else {
                member.events.load(Relaxed) | UNASKED
            };
        }
        if event.events != 0 {
            memory::put(events.wrapping_add(kept), event);
            kept += 1;
        }
    }
    kept
}

/// `epoll_ctl`; `None`: the instance is not known.
pub fn control(
    instance: Option<Sock>,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
    own: Own,
) -> isize {
    let known = table::known(fd).filter(|sock| kind::is_served(sock.record));
    let (Some(instance), Some(sock)) = (instance, known) else {
        return control_other(instance, operation, fd, own);
    };
    let is_served = sets::claim(&instance);
    let asked = if operation == libc::EPOLL_CTL_DEL {
        Some(epoll_event { events: 0, u64: 0 })
    } else {
        memory::fetch(event)
    };
    let Some(asked) = asked else {
        return own.call();
    };
    if defer(&instance, &sock, operation, asked).is_some() {
        return 0;
    }
    flush_epoll_ctl();
    let result = own.call();
    if result == 0 {
        match operation {
            libc::EPOLL_CTL_ADD => sets::added(&instance, &sock, asked, is_served),
            libc::EPOLL_CTL_MOD => sets::changed(&instance, &sock, asked),
            _ => sets::removed(&instance, &sock),
        }
    }
    result
}

/// The same of an instance that is not known, in which nobody sees who sleeps, or of what no ring serves: an instance among others.
fn control_other(instance: Option<Sock>, operation: c_int, fd: c_int, own: Own) -> isize {
    flush_epoll_ctl();
    let is_added = operation == libc::EPOLL_CTL_ADD;
    if let Some(inner) = table::epoll(fd).filter(|_| instance.is_some() && is_added) {
        sets::estrange(&inner);
    }
    let result = own.call();
    let is_unknown = result == 0 && is_added && instance.is_none();
    if let Some(sock) = table::known(fd).filter(|_| is_unknown) {
        demote(&sock, Reason::Asleep);
    }
    result
}

/// A change by `epoll_ctl` that the kernel need not hear of yet; `None`: it has to.
fn defer(instance: &Sock, sock: &Sock, operation: c_int, asked: epoll_event) -> Option<()> {
    let changes = [
        libc::EPOLL_CTL_ADD,
        libc::EPOLL_CTL_MOD,
        libc::EPOLL_CTL_DEL,
    ];
    let has_joined = sock.record.has(flag::JOINED);
    if !has_joined || identity::has_threads() || !changes.contains(&operation) {
        return None;
    }
    let (index, set) = Set::of(instance)?;
    let is_it = |member: &&Member| member.is_in(index) && member.fd.load(Relaxed) == sock.fd;
    let member = sets::member(sock.index()).filter(is_it)?;
    let link = state::joined(sock)?;
    let (state, told) = (member.state.load(Relaxed), member.told.load(Relaxed));
    let is_absent = state & ABSENT != 0;
    let is_removed = operation == libc::EPOLL_CTL_DEL;
    if (operation == libc::EPOLL_CTL_ADD) != is_absent
        || (asked.events | told) & !LEVEL != 0
        || !is_removed && { asked.u64 } != member.data.load(Relaxed)
        || !is_private(instance, set, sock)
    {
        return None;
    }
    let writes = asked.events & WRITABLE != 0;
    if writes && !has_room(sock, &link, member) {
        return None;
    }
    if LAGGING.load(Relaxed) as usize == LAGGING_MAX {
        flush_epoll_ctl();
        if is_absent {
            return None;
        }
    }
    let new = if is_removed { ABSENT } else { 0 } | if writes { HERE } else { 0 };
    signals::enter();
    member.events.store(asked.events, Relaxed);
    member.state.fetch_and(!(ABSENT | HERE), AcqRel);
    member.state.fetch_or(new, AcqRel);
    set.fd.store(instance.fd, Relaxed);
    let length = LAGGING.load(Relaxed);
    if lags(member)
        && member.state.load(Relaxed) & QUEUED == 0
        && let Some(place) = LAGGARDS.get(length as usize)
    {
        place.store(sock.index(), Relaxed);
        LAGGING.store(length + 1, Relaxed);
        member.state.fetch_or(QUEUED, AcqRel);
    }
    signals::leave();
    if writes || !is_removed && link.incoming().queued() != 0 {
        set.list(member);
    }
    counters::add(Counter::Kept, 1);
    Some(())
}

/// Whether nobody but the calling thread can look at the instance, or send on the socket.
fn is_private(instance: &Sock, set: &Set, sock: &Sock) -> bool {
    let shared = flag::UNCOUNTED_WRITER | flag::INHERITED | flag::HEIRS;
    let is_single =
        |sock: &Sock| sock.record.holders.load(Relaxed) == 1 && !sock.record.has(shared);
    is_single(instance)
        && is_single(sock)
        && sock.record.kind() == Some(Kind::Tcp)
        && set.asleep.load(Relaxed) == 0
        && identity::is_ours()
}
