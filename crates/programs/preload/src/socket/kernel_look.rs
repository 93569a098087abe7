//! When a call that the ring could answer looks at the kernel all the same: for the end of the connection, errors, and writers that
//! do not count.
//!
//! What a call adds to the counts of its socket stands here, too: by them a sender knows when to look.

use std::hint::cold_path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use windlass_channel::{Link, Moved, Reason, RecvHow};

use crate::fd::{
    call::Sock,
    record::{Record, flag, word},
};
use crate::process::pairs::{self, Pair};
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
/// Of the sends in a row that go by the ring, the first ones but for the very first, which answers the peer, and then one in so
/// many look at the clock.
const CLOCK_FIRST: u32 = 16;
const CLOCK_CALLS: u32 = 64;
/// [`Record::sends`]: how many sends may go before one looks at the clock, and in the upper bits how many in the row have.
const CREDIT: u32 = 0xff;
const ROW: u32 = CREDIT + 1;
/// What a receive leaves there: one send answers.
const ANSWER: u32 = 1;

/// Whether the peer has gone: its process has ended, or, asked now and then, the kernel says so. Then what is sent is the
/// kernel's matter. False: the number is another file's, as was asked then, too.
pub fn look_for_end(sock: &Sock, link: &Link<'static>) -> bool {
    let Some(place) = state::place(sock) else {
        return true;
    };
    if !pairs::at(place).is_peer_alive() {
        peer_death::notice_of(sock, link);
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
        || link.info(link.side().other()).join == state::LEFT
        || sock.record.has(flag::RESET | flag::NOTED)
        || state::is_peer_dead(sock)
}

/// Whether a send has to [look for the end](look_for_end): the process of the peer has ended (one load), or it is time
/// to look at the clock.
#[inline(always)]
pub fn is_end_due(record: &Record, pair: &Pair) -> bool {
    record.sends.load(Relaxed) & CREDIT == 0 || !pair.is_peer_alive()
}

/// The counts are hints for people: two threads that send at once may lose one.
#[inline(always)]
pub fn count_sent(sock: &Sock, moved: Moved) {
    let record = sock.record;
    if moved.ring != 0
        && let Some(place) = state::place(sock)
    {
        count_pushed(record, pairs::at(place), moved.ring);
    }
    if moved.kernel != 0 {
        let sum = record.kernel_sent.load(Relaxed) + moved.kernel as u64;
        record.kernel_sent.store(sum, Relaxed);
    }
}

#[inline(always)]
pub fn count_pushed(record: &Record, pair: &'static Pair, bytes: usize) {
    let sum = record.ring_sent.load(Relaxed) + bytes as u64;
    record.ring_sent.store(sum, Relaxed);
    let sends = record.sends.load(Relaxed);
    let is_due = sends & CREDIT == 0;
    if is_due {
        cold_path();
        let row = (sends / ROW + 1).min(CLOCK_FIRST);
        let credit = if row < CLOCK_FIRST {
            0
        } else {
            CLOCK_CALLS - 1
        };
        record.sends.store((row * ROW) | credit, Relaxed);
    } else {
        record.sends.store(sends - 1, Relaxed);
    }
    pairs::watch(pair, is_due);
}

#[inline(always)]
pub fn count_received(sock: &Sock, moved: Moved, how: RecvHow) {
    if how.peek {
        return;
    }
    let record = sock.record;
    if moved.ring != 0 {
        count_taken(record, moved.ring);
    }
    if moved.kernel != 0 {
        let sum = record.kernel_received.load(Relaxed) + moved.kernel as u64;
        record.kernel_received.store(sum, Relaxed);
    }
}

#[inline(always)]
pub fn count_taken(record: &Record, bytes: usize) {
    let sum = record.ring_received.load(Relaxed) + bytes as u64;
    record.ring_received.store(sum, Relaxed);
    record.sends.store(ANSWER, Relaxed);
}
