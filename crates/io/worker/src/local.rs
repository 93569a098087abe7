//! Frames that end here: what a bridge hands to the daemon ([`Verdict::LOCAL`](windlass_frame::Verdict::LOCAL)).
//!
//! # Model
//! ```text
//! visit --LocalSender--> a queue of each worker --DataPlane::take_local--> daemon
//!             \--Notice (a descriptor, once until the daemon has looked)--/
//! ```
//! A visit copies the frame: the sender has its buffer back with the others of the burst.
//!
//! # Synchronization
//! | a worker | the daemon |
//! | --- | --- |
//! | pushes the frame | drains the descriptor |
//! | swaps `told` to true; if it was not, signals the descriptor | swaps `told` to false |
//! | | pops frames |
//!
//! The two swaps have an order. If the worker's comes first, the daemon finds the frame; else the worker signals. The
//! descriptor is drained before the swap, so a signal that follows it stays.
//!
//! Frames of one ring are in order. When a ring moves, the daemon first takes what the ring's former worker has.
//!
//! # What can be lost and what cannot
//! A frame for which the queue has no room is dropped as `local-full`, counted at its sender; a question for a neighbour goes to everybody
//! instead, as on a bridge that does not answer. A frame of an attachment that
//! has ended meanwhile is not given to the daemon: its number may be another member's.
//!
//! # Limits
//! What firewalls tell ([`Told`]) goes the same way, in one queue of [`TOLD`] for all workers. [`FRAMES`] for each worker, of [`BYTES_MAX`] bytes; [`FRAMES_BPDU`] of them are kept for BPDUs, [`FRAMES_SNOOPED`] for those and for what snooping reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use windlass_firewall::{Tell, Told};
use windlass_frame::{Heads, Verdict};
use windlass_shm::{Foreign, Tails};
use windlass_sync::{mpsc, spsc};

/// Frames of each worker that the daemon has not taken yet.
pub const FRAMES: usize = 128;
/// As many of them can only be BPDUs of members that take part in spanning tree: other members' frames do not delay it.
pub const FRAMES_BPDU: usize = 32;
/// As many can only be BPDUs and what snooping reads.
pub const FRAMES_SNOOPED: usize = 96;
/// The longest of them.
pub const BYTES_MAX: usize = 1600;

/// A frame for the daemon.
pub struct LocalFrame {
    /// The member that sent it.
    pub member: u16,
    /// Its VLAN, where its bridge filters and the frame was admitted to one: without its tag. Else 0, as it came.
    pub vid: u16,
    /// Snooping reads it.
    pub is_snooped: bool,
    /// Which attachment of the member it came from.
    pub(crate) attachment: u64,
    len: usize,
    bytes: [u8; BYTES_MAX],
}

impl LocalFrame {
    /// The whole frame, as it came.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Wakes the daemon for frames.
#[derive(Debug)]
pub(crate) struct Notice {
    fd: OwnedFd,
    /// The descriptor was signalled and the daemon has not looked since.
    told: AtomicBool,
}

impl Notice {
    pub(crate) fn new() -> Result<Notice, Errno> {
        Ok(Notice {
            fd: windlass_sys::eventfd::create()?,
            told: AtomicBool::new(false),
        })
    }

    /// There are frames.
    pub(crate) fn tell(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            let _ = windlass_sys::eventfd::signal(self.fd.as_fd());
        }
    }

    /// The daemon looks after this.
    pub(crate) fn hear(&self) {
        let _ = windlass_sys::eventfd::drain(self.fd.as_fd());
        self.told.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Notice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What firewalls tell that the daemon has not taken yet.
pub(crate) const TOLD: usize = 1024;

/// Where firewalls tell the daemon.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) queue: mpsc::Queue<Told>,
    pub(crate) notice: Arc<Notice>,
}

impl Tell for Teller {
    fn tell(&self, told: Told) -> bool {
        let is_taken = self.queue.push(told).is_ok();
        self.notice.tell();
        is_taken
    }
}

/// A worker's end of its queue.
pub(crate) struct LocalSender(spsc::Sender<LocalFrame>);

impl LocalSender {
    pub(crate) fn new(queue: spsc::Sender<LocalFrame>) -> LocalSender {
        LocalSender(queue)
    }

    /// Copies frame `i` of a burst into the queue. False if it has no room for it.
    #[cold]
    pub(crate) fn post(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        i: usize,
        attachment: u64,
    ) -> bool {
        let verdict = heads.verdict[i];
        let kept = match verdict {
            Verdict::BPDU => 0,
            Verdict::SNOOPED => FRAMES_BPDU,
            _ => FRAMES_SNOOPED,
        };
        if self.0.len() >= FRAMES - kept {
            return false;
        }
        let mut frame = LocalFrame {
            member: heads.from.0,
            vid: heads.meta[i].vid,
            is_snooped: verdict == Verdict::SNOOPED,
            attachment,
            len: 0,
            bytes: [0; BYTES_MAX],
        };
        let pieces = std::iter::once(Foreign::private(heads.private(i))).chain(tails.of(i));
        for piece in pieces {
            let room = frame.bytes.get_mut(frame.len..).unwrap_or(&mut []);
            if piece.len() > room.len() {
                return false;
            }
            frame.len += piece.read(room);
        }
        self.0.push(frame).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, HEADROOM, RxId, SNAP, Tick};
    use windlass_shm::SegStore;
    use windlass_sync::qsbr::Domain;

    /// Frames arrive whole and in order; one that is too long and one beyond the queue's end are refused.
    #[test]
    fn frames_arrive_or_are_refused() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let (send, mut receive) = spsc::channel(FRAMES);
        let mut sender = LocalSender::new(send);
        for (len, fits) in [
            (14, true),
            (SNAP + 1, true),
            (BYTES_MAX, true),
            (BYTES_MAX + 1, false),
        ] {
            let bytes: Vec<u8> = (0..len).map(|b| b as u8).collect();
            heads.clear(RxId(3), Tick(0));
            let mut tails = Tails::bind(&mut store, &section);
            let n = len.min(SNAP);
            heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&bytes[..n]);
            heads.admit(0, len as u32, Claim::NONE);
            tails.push(0, Foreign::private(&bytes[n..]));
            assert_eq!(sender.post(&heads, &tails, 0, 7), fits, "{len} bytes");
            let got = receive.pop();
            assert_eq!(got.as_ref().map(LocalFrame::bytes), fits.then_some(&*bytes));
            assert!(got.is_none_or(|got| (got.member, got.attachment) == (3, 7)));
        }
        heads.clear(RxId(3), Tick(0));
        heads.admit(0, 60, Claim::NONE);
        let tails = Tails::bind(&mut store, &section);
        let mut post = |heads: &Heads| {
            (0..100)
                .filter(|_| sender.post(heads, &tails, 0, 7))
                .count()
        };
        assert_eq!(post(&heads), FRAMES - FRAMES_SNOOPED);
        // There is room for reports and BPDUs still.
        heads.verdict[0] = Verdict::SNOOPED;
        assert_eq!(post(&heads), FRAMES_SNOOPED - FRAMES_BPDU);
        heads.verdict[0] = Verdict::BPDU;
        assert_eq!(post(&heads), FRAMES_BPDU);
    }

    /// Whoever looks after it was told is told again of what comes later, and only then.
    #[test]
    fn one_signal_for_each_look() {
        let notice = Notice::new().expect("a descriptor");
        let is_signalled = || {
            let mut fd = [rustix::event::PollFd::from_borrowed_fd(
                notice.as_fd(),
                rustix::event::PollFlags::IN,
            )];
            let now = rustix::time::Timespec::default();
            rustix::event::poll(&mut fd, Some(&now)) == Ok(1)
        };
        for _ in 0..3 {
            assert!(!is_signalled());
            (0..5).for_each(|_| notice.tell());
            assert!(is_signalled());
            notice.hear();
        }
    }
}
