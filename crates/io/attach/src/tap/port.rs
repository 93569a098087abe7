//! The rings of a TAP: one system call for several frames each way.
//!
//! # Model
//! A read puts the virtio header, the first bytes of the frame and the rest into three places at once: a buffer of ours,
//! the snapshot in [`Heads`], the worker's arena. A write takes the header, the private bytes and the segments where they
//! lie. Both copies are the kernel's. Reads and writes are submitted in batches ([`super::calls`]): as many reads as the
//! last burst makes likely, and all the writes of a burst.
//!
//! # What can be lost and what cannot
//! A frame that was read is ours: a daemon that is killed between reading and writing loses at
//! most one burst a ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use windlass_frame::{BURST, Claim, Heads, Pick, SNAP};
use windlass_shm::{ARENA_SLOT, Section, Tails};
use windlass_stats::Drop;
use windlass_sys::tap::{TapQueue, VNET_HEADER_BYTES};

use super::calls::{self, Calls, READS_MAX};
use crate::port::{
    Armed, Bypass, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use crate::soft;

/// How many reads to submit: as many as the last time found something, and one to see the end.
#[derive(Debug)]
struct Guess {
    frames: usize,
    mean_bytes: usize,
}

impl Guess {
    /// Reads that are likely to find a frame each within `limit`.
    fn reads(&self, frames: usize, bytes: usize) -> usize {
        let fit = bytes / self.mean_bytes.max(1) + 1;
        (self.frames + 1).min(fit).min(frames).clamp(1, READS_MAX)
    }

    /// Learns from `wanted` reads that found `got` frames of `bytes` together.
    fn learn(&mut self, wanted: usize, got: usize, bytes: usize) {
        self.frames = if got == wanted { wanted * 2 } else { got };
        if let Some(mean) = bytes.checked_div(got) {
            self.mean_bytes = mean;
        }
    }
}

/// The receive half of one queue.
pub struct TapRx {
    queue: Arc<TapQueue>,
    guess: Guess,
}

impl TapRx {
    /// Reads from `queue`.
    pub fn new(queue: Arc<TapQueue>) -> TapRx {
        let guess = Guess {
            frames: 1,
            mean_bytes: 1,
        };
        TapRx { queue, guess }
    }

    /// Reads what one submission finds: its bytes, and what is left.
    fn read_some(
        &mut self,
        calls: &mut Calls,
        heads: &mut Heads,
        tails: &mut Tails<'_>,
        limit: Limit,
    ) -> (usize, More) {
        let (wanted, first) = (self.guess.reads(limit.frames, limit.bytes), heads.n);
        let snaps = heads.snap.get_mut(first..).unwrap_or(&mut []);
        let reads = calls.read(self.queue.as_fd(), snaps, tails.arena(), wanted);
        let (mut bytes, mut passed, mut more) = (0, 0, More::Left);
        for j in 0..reads {
            let (result, header) = calls.read_result(j);
            more = match result {
                Ok(_) | Err(Errno::INTR) => More::Left,
                Err(Errno::AGAIN) => More::Drained,
                Err(_) => return (bytes, More::Dead),
            };
            let Ok(got) = result else { continue };
            let len = got.saturating_sub(header.len());
            let i = heads.n;
            if i != first + j {
                heads.snap[i % BURST] = heads.snap[(first + j) % BURST];
            }
            heads.admit(i, len as u32, Claim::decode(header));
            if len > SNAP {
                // What lies before this frame's slot, from where the last one ended.
                let skip = (j * ARENA_SLOT).saturating_sub(passed);
                tails.take_arena_from(i, skip, len - SNAP);
                passed = (j * ARENA_SLOT + len - SNAP).next_multiple_of(64);
            }
            heads.n += 1;
            bytes += len;
        }
        self.guess.learn(wanted, heads.n - first, bytes);
        (bytes, more)
    }
}

impl RxPort for TapRx {
    fn rx_burst<'q>(
        &mut self,
        _section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let mut left = limit;
        left.frames = limit.frames.min(BURST);
        calls::with(|calls| {
            while left.frames > 0 && left.bytes > 0 {
                let before = heads.n;
                let (bytes, more) = self.read_some(calls, heads, tails, left);
                if more != More::Left {
                    return (Loan::default(), more);
                }
                left.frames -= heads.n - before;
                left.bytes = left.bytes.saturating_sub(bytes);
            }
            (Loan::default(), More::Left)
        })
    }

    fn release(&mut self, _section: &Section<'_>, _loan: Loan) {}

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.as_fd())
    }

    fn polls_memory(&self) -> bool {
        false
    }
}

/// The transmit half: all queues of the TAP.
pub struct TapTx {
    queues: Vec<Arc<TapQueue>>,
    caps: TxCaps,
    bypass: Option<Arc<dyn Bypass>>,
}

impl TapTx {
    /// Writes to `queues`, of which a worker uses the one of its number modulo their count.
    pub fn new(queues: Vec<Arc<TapQueue>>, caps: TxCaps, bypass: Option<Arc<dyn Bypass>>) -> TapTx {
        TapTx {
            queues,
            caps,
            bypass,
        }
    }
}

impl TxPort for TapTx {
    fn is_foreign(&self) -> bool {
        false
    }

    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn bypass(&self) -> Option<Arc<dyn Bypass>> {
        self.bypass.clone()
    }

    /// The kernel takes a frame at once or never, so that no frame is left to be tried again.
    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent {
            kick: Kick::Core,
            ..Sent::default()
        };
        let at = usize::from(lane.worker) % self.queues.len().max(1);
        let Some(queue) = self.queues.get(at) else {
            sent.stop = Stop::Down;
            return sent;
        };
        calls::with(|calls| {
            calls.gather.clear();
            let mut batch = 0..0;
            for (at, pick) in picks.iter().enumerate() {
                let whole = self.caps.takes(&heads.meta[pick.index()].off);
                if whole && calls.gather.add(heads, tails, *pick, VNET_HEADER_BYTES) {
                    batch.end = at + 1;
                    continue;
                }
                // Those before it go first.
                write(
                    calls,
                    queue,
                    heads,
                    picks.get(batch).unwrap_or(&[]),
                    &mut sent,
                );
                batch = at + 1..at + 1;
                if whole {
                    calls.gather.add(heads, tails, *pick, VNET_HEADER_BYTES);
                    batch.start = at;
                } else {
                    let made = write_cut(queue, heads, tails, *pick, self.caps);
                    tell(&mut sent, heads, *pick, made);
                }
            }
            write(
                calls,
                queue,
                heads,
                picks.get(batch).unwrap_or(&[]),
                &mut sent,
            );
        });
        sent.taken = picks.len();
        sent
    }

    fn kick(&self, _lane: Lane) {}
}

/// Writes what was gathered, the frames of `picks`.
fn write(calls: &mut Calls, queue: &TapQueue, heads: &Heads, picks: &[Pick], sent: &mut Sent) {
    let results = calls.write(queue.as_fd());
    for (pick, result) in picks.iter().zip(results) {
        tell(sent, heads, *pick, result.map(|_| 1).map_err(reason));
    }
    calls.gather.clear();
}

/// Counts what became of the next frame: how many the interface got of it, or why none.
fn tell(sent: &mut Sent, heads: &Heads, pick: Pick, made: Result<u64, Drop>) {
    match made {
        Ok(frames) => {
            sent.frames += 1;
            let tag = if pick.tagged() { 4 } else { 0 };
            sent.bytes += u64::from(heads.meta[pick.index()].len) + tag;
            sent.segments += if frames > 1 { frames } else { 0 };
        }
        Err(reason) => sent.drop_frame(reason),
    }
    sent.taken += 1;
}

/// Why the kernel did not take a frame.
fn reason(errno: Errno) -> Drop {
    match errno {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Drop::RingFull,
        Errno::IO | Errno::BADFD => Drop::PeerDown,
        Errno::FAULT => Drop::PeerFault,
        _ => Drop::KernelRefused,
    }
}

/// Writes a frame whose offload the interface did not take; returns how many frames became of it.
fn write_cut(
    queue: &TapQueue,
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
    caps: TxCaps,
) -> Result<u64, Drop> {
    let header = [0u8; VNET_HEADER_BYTES];
    let mut refused = None;
    let made = soft::finish(heads, tails, pick, caps, |frame| {
        let parts = [
            rustix::io::IoSlice::new(&header),
            rustix::io::IoSlice::new(frame),
        ];
        let result = queue.write_frame(&parts);
        refused = result.err();
        refused.is_none()
    })?;
    match refused {
        Some(errno) => Err(reason(errno)),
        None => Ok(made),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says leads to a reason; whatever else it may say is `kernel-refused`, and counted.
    #[test]
    fn every_refusal_has_a_reason() {
        let mut sent = Sent::default();
        for errno in [
            Errno::NOBUFS,
            Errno::IO,
            Errno::FAULT,
            Errno::INVAL,
            Errno::PERM,
        ] {
            sent.drop_frame(reason(errno));
            sent.taken += 1;
        }
        let counted = [
            (Drop::RingFull, 1),
            (Drop::PeerDown, 1 << 1),
            (Drop::PeerFault, 1 << 2),
            (Drop::KernelRefused, 1 << 3 | 1 << 4),
        ];
        assert_eq!(sent.drops, counted);
    }

    /// The number of reads follows what was found, and what bytes are left at the size that frames had.
    #[test]
    fn reads_follow_what_was_found() {
        let mut guess = Guess {
            frames: 1,
            mean_bytes: 1,
        };
        assert_eq!(guess.reads(64, 262_144), 2);
        guess.learn(2, 1, 60);
        assert_eq!(guess.reads(64, 262_144), 2);
        guess.learn(2, 2, 120);
        assert_eq!(guess.reads(64, 262_144), 5);
        guess.learn(32, 32, 32 * 60);
        assert_eq!(
            (guess.reads(64, 262_144), guess.reads(7, 262_144)),
            (READS_MAX, 7)
        );
        guess.learn(4, 4, 4 * 65_000);
        assert_eq!((guess.reads(64, 262_144), guess.reads(64, 1)), (5, 1));
        guess.learn(4, 0, 0);
        assert_eq!(guess.reads(64, 262_144), 1);
    }
}
