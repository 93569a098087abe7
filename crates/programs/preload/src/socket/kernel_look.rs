//! When a call that the ring could answer looks at the kernel all the same: for the end of the connection, errors, and writers that
//! do not count.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use windlass_channel::{Link, Reason};

use crate::fd::{
    call::Sock,
    record::{flag, word},
};
use crate::process::pairs;
use crate::socket::{peer_death, proof, state, waiter};
use crate::sys::{clock, kernel};

/// Grows whenever a wait of this process saw the kernel report something: then a socket that finds nothing asks it.
pub static KERNEL_NEWS: AtomicU32 = AtomicU32::new(1);
/// Receives without a look at the kernel, at most.
const LOOK_CALLS: u64 = 32;
/// Time without a look at the kernel while receives find nothing, at most.
const LOOK_US: u32 = 50;
/// How often a sender asks the kernel whether the peer is still there.
const END_US: u32 = 1_000;
/// [`windlass_channel::EndInfo::join`] of an end that was closed.
pub const LEFT: u32 = 3;
/// Whether the peer has gone: its process has ended, or, asked now and then, the kernel says so. Then what is sent is the
/// kernel's matter. False: the number is another file's, as was asked then, too.
pub fn look_for_end(sock: &Sock, link: &Link<'static>) -> bool {
    let Some(place) = state::place(sock) else {
        return true;
    };
    if !pairs::at(place).is_peer_alive() {
        peer_death::on_peer_death(sock, link);
        return true;
    }
    let (now, asked_at) = (clock::now(), &sock.record.words[word::LOOKED_AT]);
    if now.wrapping_sub(asked_at.load(Relaxed)) > clock::cycles(END_US) {
        asked_at.store(now, Relaxed);
        if !waiter::verify(sock) {
            return false;
        }
        if kernel::poll_one(sock.fd, libc::POLLRDHUP as u32) != 0 {
            link.outgoing().stop(Reason::Closing);
        }
        proof::refresh(sock, link);
    }
    true
}

/// Whether a receive that found nothing has to ask the kernel: for the end of the stream, errors, and writers that do not count.
pub fn is_look_due(sock: &Sock) -> bool {
    let [seen, at] = [word::SEEN, word::LOOKED_AT]
        .map(|place: usize| -> &AtomicU64 { &sock.record.words[place] });
    let news = u64::from(KERNEL_NEWS.load(Acquire)) << 32;
    let word = seen.load(Relaxed);
    let now = clock::now();
    let is_due = word >> 32 != news >> 32
        || word & 0xffff_ffff >= LOOK_CALLS
        || now.wrapping_sub(at.load(Relaxed)) > clock::cycles(LOOK_US);
    if is_due {
        seen.store(news, Relaxed);
        at.store(now, Relaxed);
    } else {
        seen.store(word + 1, Relaxed);
    }
    is_due
}

/// Whether the other end has said that nothing more comes, or has died: then the kernel is asked at each receive.
pub fn is_ending(sock: &Sock, link: &Link<'static>) -> bool {
    link.incoming().reason() != Reason::None
        || link.info(link.side().other()).join == LEFT
        || sock.record.has(flag::RESET)
        || peer_death::is_peers(sock)
}
