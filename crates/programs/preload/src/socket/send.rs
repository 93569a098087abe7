//! Sends on a joined socket: ring or kernel, and how a call waits.
//!
//! # Life of a byte
//! A call makes one attempt after another on the channel, each under its lock and with signals put off. Between attempts, unlocked,
//! a blocking call waits: it spins for as long as the user allows, then sleeps in the kernel, in the program's own call, on the
//! real descriptor.
//!
//! # Synchronization
//! Nothing with a destructor lives across a real call that may block: libc ends a cancelled thread by unwinding through
//! it. A thread that is cancelled asleep leaves the channel's count of sleepers raised: the direction then stays on
//! the kernel, which is slow and right.

use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Bufs, Link, Reason, Sent, WhenFull, Who};

use crate::fd::{
    call::{Own, Sock},
    record::{Record, flag},
};
use crate::process::{registration, signals};
use crate::socket::{
    by_kernel::{self, LARGE, send_by_kernel},
    errors::broken_pipe,
    file_flags,
    kernel_look::{count_sent, look_for_end},
    kind, peer_death, proof,
    reclaim::caller,
    spin::spin,
    state,
    waiter::Waiter,
};
use crate::sys::real;

/// How long a blocking sender waits for room in the ring before the kernel has to take the rest.
const SPACE_NS: u64 = 10_000_000;
/// Flags of a send and a receive that we do ourselves.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR | libc::MSG_CONFIRM;

/// Sends on a joined socket; flags as `send`'s.
#[cold]
#[inline(never)]
pub fn send(sock: Sock, link: Link<'static>, data: Bufs<'_>, flags: i32, own: Own) -> isize {
    let Some(who) = caller(&sock, &link) else {
        return own.call();
    };
    if !look_for_end(&sock, &link) {
        return own.call();
    }
    let is_odd = sock.record.has(flag::PENDING | flag::FAILED | flag::RESET);
    if is_odd && let Some(error) = peer_death::before_call(&sock) {
        return broken_pipe(error, flags);
    }
    if data.is_empty() {
        return own.call();
    }
    if kind::is_held_back(sock.record, flags) {
        return send_by_kernel((&sock, 0), &link, (data.len(), |sent| sent), flags, own);
    }
    if flags & !SEND_FLAGS != 0 {
        // An urgent byte is sent, and may never be read as one of the stream: counts say nothing from here on.
        link.outgoing().set_uncounted_writer(Reason::Flag);
    }
    if data.len() >= LARGE && by_kernel::is_for_kernel(sock.record, &link) {
        return send_by_kernel((&sock, 0), &link, (data.len(), |sent| sent), flags, own);
    }
    let call = Sending::new(sock, link, who, flags);
    let in_two = is_odd.then(|| proof::send(&sock, &link, who, &data, way(flags)));
    let sent = in_two.flatten();
    let sent = sent.unwrap_or_else(|| call.attempt(&sock, &data, call.when_full()));
    call.end(data, sent)
}

/// Whether nothing has to be done before a send but for what [`is_end_due`](crate::socket::kernel_look::is_end_due) says. Each one on a tracked connection looks at the
/// clock ([`proof::refresh`]), also one that answers the peer.
#[inline(always)]
pub fn is_settled(record: &Record) -> bool {
    let bits = record.flags.load(Relaxed);
    let odd = flag::PENDING | flag::TRACKED | flag::FAILED | flag::RESET;
    bits & (odd | flag::FLAGS_KNOWN) == flag::FLAGS_KNOWN
}

/// Ends a send by the ring whose receiver fell asleep; inside a locked section, which it leaves. Takes no addresses: what is in
/// registers stays there for all other calls.
#[cold]
#[inline(never)]
pub fn end_asleep(
    fd: i32,
    word: u64,
    record: &'static Record,
    link: Link<'static>,
    (from, bytes): (*const u8, usize),
    flags: i32,
) -> isize {
    let sock = Sock { fd, word, record };
    let Some(who) = registration::who() else {
        // The caller had a slot for the push.
        signals::leave();
        return bytes as isize;
    };
    let fd = state::descriptor(&sock);
    let sent = link.outgoing().look_after_sleeper(who, &fd, bytes);
    signals::leave();
    Sending::new(sock, link, who, flags).end(Bufs::out(from, bytes), sent)
}

/// The flags of a real send: the ring keeps no segments apart, so nothing is gained by holding bytes back for more; and no
/// signal while locked.
#[inline(always)]
fn way(flags: i32) -> i32 {
    flags & !libc::MSG_MORE | libc::MSG_NOSIGNAL
}

struct Sending {
    sock: Sock,
    link: Link<'static>,
    who: Who<'static>,
    flags: i32,
    waits: bool,
}

impl Sending {
    fn new(sock: Sock, link: Link<'static>, who: Who<'static>, flags: i32) -> Self {
        let waits = file_flags::waits(&sock, flags);
        Self {
            sock,
            link,
            who,
            flags,
            waits,
        }
    }

    const fn when_full(&self) -> WhenFull {
        if self.waits {
            WhenFull::Say
        } else {
            WhenFull::Kernel
        }
    }

    fn attempt(&self, sock: &Sock, data: &Bufs<'_>, full: WhenFull) -> Sent {
        let (out, fd) = (self.link.outgoing(), state::descriptor(sock));
        signals::enter();
        let sent = out.send(self.who, &fd, data, way(self.flags), full);
        signals::leave();
        sent
    }

    fn end(self, data: Bufs<'_>, sent: Sent) -> isize {
        let is_whole = |sent| matches!(sent, Sent::Bytes(moved) if moved.total() == data.len());
        if data.len() >= LARGE && is_whole(sent) {
            by_kernel::kept_up(self.sock.record);
        }
        let mut waiter = Waiter::new(self.sock);
        let result = self.go_on(&mut waiter, data, sent);
        waiter.end();
        result
    }

    fn go_on(&self, waiter: &mut Waiter, mut rest: Bufs<'_>, mut sent: Sent) -> isize {
        let Self { link, flags, .. } = *self;
        let waits = self.waits;
        let is_large = rest.len() >= LARGE;
        let mut done = 0_usize;
        let mut full = self.when_full();
        loop {
            let error = match sent {
                Sent::Bytes(moved) => {
                    count_sent(waiter.sock(), moved);
                    done += moved.total();
                    rest.advance(moved.total());
                    full = self.when_full();
                    if rest.is_empty() {
                        return done as isize;
                    }
                    if is_large && !waits {
                        by_kernel::lagged(waiter.sock().record);
                    }
                    0
                }
                Sent::RingFull => {
                    if !wait_for_space(waiter, &link, is_large) {
                        full = WhenFull::Kernel;
                    }
                    if waiter.follow() { 0 } else { libc::EBADF }
                }
                Sent::KernelFull if !waits => libc::EAGAIN,
                Sent::KernelFull => waiter.wait_for(libc::POLLOUT, libc::SO_SNDTIMEO),
                Sent::Busy => waiter.wait_for_lock(waits, libc::SO_SNDTIMEO),
                Sent::Error(error @ libc::ECONNRESET) => peer_death::named(waiter.sock(), error),
                Sent::Error(error) => error,
                Sent::Broken => libc::ECONNRESET,
            };
            if error != 0 && done > 0 {
                return done as isize;
            }
            if error == libc::EBADF && waiter.is_replaced() {
                let (from, bytes) = rest.piece();
                // SAFETY: the program's own memory, which the kernel checks, to what its number names.
                return unsafe { real::send(self.sock.fd, from.cast(), bytes, flags) };
            }
            if error != 0 {
                return broken_pipe(error, flags);
            }
            let sock = waiter.sock();
            if state::is_peer_dead(sock) {
                peer_death::notice_of(sock, &link);
                if sock.record.has(flag::FAILED | flag::RESET) && done > 0 {
                    return done as isize;
                }
                if let Some(error) = peer_death::before_call(sock) {
                    return broken_pipe(error, flags);
                }
            }
            sent = self.attempt(sock, &rest, full);
        }
    }
}

/// Waits for room in the ring: spins, then sleeps for a while, which is a lag of a large write. False: there is none.
fn wait_for_space(waiter: &mut Waiter, link: &Link<'static>, is_large: bool) -> bool {
    let out = link.outgoing();
    let is_over = || {
        let is_over = !out.is_full() || !waiter.sock().still();
        if !is_over {
            out.pause();
        }
        is_over
    };
    if spin(is_over) {
        return true;
    }
    if is_large {
        by_kernel::lagged(waiter.sock().record);
    }
    if waiter.begin() {
        out.wait_for_space(SPACE_NS);
    }
    !out.is_full()
}
