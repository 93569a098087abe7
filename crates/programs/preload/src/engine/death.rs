//! The death of the process at the other end, known before the kernel closes its sockets.
//!
//! # Model
//! A registered process holds a robust mutex (pthread_mutexattr_setrobust(3)) in line 0 of its status page, which its peers
//! map. However the thread that holds it ends, the kernel marks the mutex's word with `FUTEX_OWNER_DIED` when it lets go of the
//! thread's memory, which it does before it closes descriptors. So whoever has seen any effect of the death (a FIN, a wait
//! for the process) sees the mark, by one load: nothing is pushed to a ring that nobody will read.
//!
//! A kernel socket that is closed with unread bytes resets its connection. Where those bytes are in a ring the kernel
//! does not know of them, and says FIN. [`notice`] therefore has them sent after all: the closed socket answers with the reset.
//! The kernel notes it here as `EPIPE`, since the FIN came first (`tcp_reset` in net/ipv4/tcp_input.c); whoever takes that error
//! from it says `ECONNRESET` ([`RESET`], [`named`]). Who is told, and that it is told once, stays the kernel's.
//!
//! # States of a pair
//! *Alive* · *being buried* (one thread sees to its sockets; others wait for it) · *buried*. A socket that enters a
//! pair makes it alive again, so that the next look buries that one, too.
//!
//! # Limits
//! The mark is of the thread that registered. If that one ends and the process goes on, the word is 0, and peers know of the
//! death only what the broker tells, until a thread that joins a socket takes the mutex anew.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use windlass_channel::layout::Line;
use windlass_channel::{Link, Reason};

use super::kernel::Backoff;
use super::{kernel, process, promote, stream, unix};
use crate::own::{Own, Sock};
use crate::record::Kind;
use crate::table;

/// What the kernel sets in the word of a robust mutex whose owner died: linux/futex.h.
const OWNER_DIED: u32 = 0x4000_0000;

/// [`crate::record::Record::flags`]: the kernel was made to note the reset, and calls it `EPIPE`. Of a Unix socket: the reset
/// was noted, here or by the kernel.
pub const RESET: u32 = promote::NEXT << 3;

/// How often a thread gives way to one that buries.
const BURIAL_WAITS: usize = 200;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= size_of::<Line<AtomicU32>>());

/// The mutex of this process, once it has one.
static MUTEX: AtomicPtr<libc::pthread_mutex_t> = AtomicPtr::new(std::ptr::null_mut());
/// The key whose destructor lets go of it; one above the number, 0 while there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Takes the mark of a new status page: the calling thread's end is the process's from now on.
pub fn arm(page: *mut u8) {
    let mutex: *mut libc::pthread_mutex_t = page.cast();
    // SAFETY: zeros are room for attributes, which the next call makes valid.
    let mut kind: libc::pthread_mutexattr_t = unsafe { std::mem::zeroed() };
    // SAFETY: live attributes.
    unsafe { libc::pthread_mutexattr_init(&raw mut kind) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutexattr_setpshared(&raw mut kind, libc::PTHREAD_PROCESS_SHARED) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutexattr_setrobust(&raw mut kind, libc::PTHREAD_MUTEX_ROBUST) };
    // SAFETY: line 0 of the page is large enough, is nobody else's, and is never unmapped.
    if unsafe { libc::pthread_mutex_init(mutex, &raw const kind) } != 0 {
        return;
    }
    MUTEX.store(mutex, Release);
    arm_again();
}

/// Takes the mark if no thread has it, and those that peers from former brokers look at.
pub fn arm_again() {
    let mutex = MUTEX.load(Acquire);
    if mutex.is_null() {
        return;
    }
    let formers = process::former_pages().map(<*mut u8>::cast);
    let mut taken = false;
    for mutex in formers.chain([mutex]) {
        taken |= take(mutex);
    }
    if taken {
        have_let_go();
    }
}

/// Whether the calling thread has this mark from now on.
fn take(mutex: *mut libc::pthread_mutex_t) -> bool {
    // SAFETY: a mutex that was made in this process and is never unmapped.
    match unsafe { libc::pthread_mutex_trylock(mutex) } {
        0 => {}
        libc::EOWNERDEAD => {
            // SAFETY: locked by this thread a moment ago.
            unsafe { libc::pthread_mutex_consistent(mutex) };
        }
        _ => return false,
    }
    true
}

/// Has the marks of the calling thread let go when it ends.
fn have_let_go() {
    let mut key = KEY.load(Relaxed);
    if key == 0 {
        let mut made = 0;
        // SAFETY: a live variable; the destructor stays mapped, since we are never unloaded.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(thread_ends)) } != 0 {
            return;
        }
        key = made + 1;
        KEY.store(key, Relaxed);
    }
    // SAFETY: the key was made above or by an earlier holder.
    unsafe { libc::pthread_setspecific(key - 1, MUTEX.load(Relaxed).cast()) };
}

/// A thread that has marks ends, and the process goes on.
unsafe extern "C" fn thread_ends(_: *mut c_void) {
    let mutex = MUTEX.load(Acquire);
    // Null in a forked child, which has no marks.
    let own = (!mutex.is_null()).then_some(mutex);
    for mutex in process::former_pages().map(<*mut u8>::cast).chain(own) {
        // SAFETY: a mutex that was made in this process and is never unmapped. A thread that has not locked it is refused.
        unsafe { libc::pthread_mutex_unlock(mutex) };
    }
}

/// In a forked child: the mark is its parent's, and whoever was burying is not here.
pub fn forked() {
    MUTEX.store(std::ptr::null_mut(), Relaxed);
    process::pairs().for_each(|(_, pair)| pair.burial.forked());
}

/// Whether a mark says that its process has ended.
#[inline(always)]
pub fn is_dead(mark: u32) -> bool {
    mark & OWNER_DIED != 0
}

/// How far a pair is with its dead peer.
#[derive(Default)]
pub struct Burial(AtomicU32);

const BURYING: u32 = 1;
const BURIED: u32 = 2;

impl Burial {
    /// Nobody has seen to its sockets.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A socket has come in.
    pub fn open(&self) {
        self.0.store(0, Release);
    }

    /// In a forked child: nobody is burying.
    fn forked(&self) {
        let _ = self.0.compare_exchange(BURYING, 0, Relaxed, Relaxed);
    }

    /// Whether all sockets were seen to.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        self.0.load(Acquire) == BURIED
    }
}

/// Sees to the sockets of each pair whose peer has died since the last look; whether there were any.
#[inline]
pub fn notice() -> bool {
    process::has_pairs() && notice_pairs()
}

fn notice_pairs() -> bool {
    let mut any = false;
    for (place, pair) in process::pairs() {
        if !pair.burial.is_over() && !pair.is_peer_alive() {
            any = true;
            bury_pair(place, &pair.burial);
        }
    }
    any
}

#[cold]
fn bury_pair(place: u8, burial: &Burial) {
    if let Err(BURYING) = burial.0.compare_exchange(0, BURYING, AcqRel, Acquire) {
        let mut backoff = Backoff::default();
        for _ in 0..BURIAL_WAITS {
            if burial.0.load(Acquire) != BURYING {
                break;
            }
            backoff.wait();
        }
        return;
    }
    let mut is_over = true;
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        // What no call of this process has used is not looked up.
        if promote::place(&sock) == Some(place)
            && let Some(link) = promote::link_of(&sock)
        {
            is_over &= bury(&sock, &link);
        }
    }
    burial.0.store(if is_over { BURIED } else { 0 }, Release);
}

/// The peer of this socket has died: all its sockets here are seen to, and this one surely.
#[cold]
pub fn bury_all(sock: &Sock, link: &Link<'static>) {
    notice();
    if link.outgoing().reason() == Reason::None || link.outgoing().unread() {
        bury(sock, link);
    }
}

/// The peer of this socket has died: nothing goes to its ring any more, and what lies there unread is answered by the kernel,
/// if nobody else has the peer's socket. False: it still lies there, since somebody is inside of whom it is not known that he
/// has died, too.
#[cold]
pub fn bury(sock: &Sock, link: &Link<'static>) -> bool {
    let out = link.outgoing();
    // After a FIN that the peer itself had sent, the kernel calls the reset by that name, too.
    let was_shut = link.incoming().reason() == Reason::Closing;
    out.plain(Reason::Killed);
    if !out.unread() || sock.record.has(RESET) {
        return true;
    }
    if sock.record.kind() != Some(Kind::Tcp) {
        unix::note_reset(sock, link);
        return true;
    }
    let is_moved = stream::reclaim(sock, link).is_some();
    if is_moved && events(sock) & libc::EPOLLERR != 0 && !was_shut {
        sock.record.set(RESET);
    }
    is_moved
}

/// What the kernel says of a socket without being asked: errors and the end.
pub fn events(sock: &Sock) -> i32 {
    kernel::poll_one(sock.fd, 0) as i32
}

/// An error that was taken from the socket, by its right name.
pub fn named(sock: &Sock, error: i32) -> i32 {
    let is_tcp = sock.record.kind() == Some(Kind::Tcp);
    if !is_tcp && error == libc::ECONNRESET {
        // The kernel's own: ring bytes that were left beside it are no second one.
        sock.record.set(RESET);
    }
    if error == libc::EPIPE && sock.record.has(RESET) && is_tcp {
        libc::ECONNRESET
    } else {
        error
    }
}

/// Takes the reset that the kernel was made to note, before a call that would tell it by its other name. None: another one
/// was told.
pub fn take_reset(sock: &Sock) -> Option<i32> {
    if !sock.record.has(RESET) || sock.record.kind() != Some(Kind::Tcp) {
        return None;
    }
    take_noted(sock)
}

/// The error that the kernel has noted for the next call, by its right name; it is noted no more.
#[cold]
pub fn take_noted(sock: &Sock) -> Option<i32> {
    let mut error = 0_i32;
    let asked = kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    (asked.is_ok() && error != 0).then(|| named(sock, error))
}

/// A receive that asks for nothing while the ring has nothing: the kernel knows errors, but for the name of a reset that it was
/// made to note. Bytes that are there come before any error.
#[cold]
pub fn receive_nothing(sock: &Sock, link: &Link<'static>, own: Own) -> isize {
    if is_peers(sock) {
        bury_all(sock, link);
    }
    if unix::is_stream(sock.record) {
        return unix::received_nothing(sock, own.call());
    }
    if kernel::unread(sock.fd) != 0 {
        return 0;
    }
    let error = stream::take_error(sock).or_else(|| take_reset(sock));
    error.map_or_else(|| own.call(), stream::fail)
}

/// Whether the process at the other end has died.
#[inline]
pub fn is_peers(sock: &Sock) -> bool {
    promote::place(sock).is_some_and(|place| !process::at(place).is_peer_alive())
}
