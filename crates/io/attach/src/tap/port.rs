//! The rings of a TAP: one system call a frame each way.
//!
//! # Model
//! `readv` puts the virtio header, the first bytes of the frame and the rest into three places at
//! once: a buffer of ours, the snapshot in [`Heads`], the worker's arena. `writev` takes the
//! header, the private bytes and the segments where they lie. Both copies are the kernel's.
//!
//! # What can be lost and what cannot
//! A frame that was read is ours: a daemon that is killed between reading and writing loses at
//! most one burst a ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use libc::iovec;
use rustix::io::Errno;
use windlass_frame::{BURST, Claim, FRAME_MAX, HEADROOM, Heads, Pick, SNAP};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_sys::tap::{TapQueue, VNET_HEADER_BYTES};
use windlass_sys::vectored::{readv_raw, writev_raw};

use crate::gather::Gather;
use crate::port::{Armed, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort};
use crate::soft;

/// The receive half of one queue.
pub struct TapRx {
    queue: Arc<TapQueue>,
}

impl TapRx {
    /// Reads from `queue`.
    pub fn new(queue: Arc<TapQueue>) -> TapRx {
        TapRx { queue }
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
        let mut bytes = 0;
        while heads.n < limit.frames.min(BURST) && bytes < limit.bytes {
            match read_one(&self.queue, heads, tails) {
                Ok(len) => bytes += len,
                Err(Errno::AGAIN) => return (Loan::default(), More::Drained),
                Err(Errno::INTR) => {}
                Err(_) => return (Loan::default(), More::Dead),
            }
        }
        (Loan::default(), More::Left)
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

/// Reads one frame behind those that the burst has; returns its length.
fn read_one(queue: &TapQueue, heads: &mut Heads, tails: &mut Tails<'_>) -> Result<usize, Errno> {
    let i = heads.n;
    let mut header = [0u8; VNET_HEADER_BYTES];
    let arena = tails.arena();
    let room = arena.len().min(FRAME_MAX - SNAP + 1);
    let snap = heads
        .snap
        .get_mut(i)
        .and_then(|s| s.0.get_mut(HEADROOM..HEADROOM + SNAP));
    let Some(snap) = snap else {
        return Err(Errno::AGAIN);
    };
    let ranges = [
        iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: header.len(),
        },
        iovec {
            iov_base: snap.as_mut_ptr().cast(),
            iov_len: SNAP,
        },
        iovec {
            iov_base: arena.as_mut_ptr().cast(),
            iov_len: room,
        },
    ];
    // SAFETY: the three ranges are exclusively ours during the call, and hold plain bytes.
    let got = unsafe { readv_raw(queue.as_fd(), &ranges) }?;
    let len = got.saturating_sub(header.len());
    heads.admit(i, len as u32, Claim::decode(&header));
    if len > SNAP {
        tails.take_arena(i, len - SNAP);
    }
    heads.n += 1;
    Ok(len)
}

/// The transmit half: all queues of the TAP.
pub struct TapTx {
    queues: Vec<Arc<TapQueue>>,
    caps: TxCaps,
}

impl TapTx {
    /// Writes to `queues`, of which a worker uses the one of its number modulo their count.
    pub fn new(queues: Vec<Arc<TapQueue>>, caps: TxCaps) -> TapTx {
        TapTx { queues, caps }
    }
}

impl TxPort for TapTx {
    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let at = usize::from(lane.worker) % self.queues.len().max(1);
        let Some(queue) = self.queues.get(at) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let mut gather = Gather::new();
        for pick in picks {
            let meta = &heads.meta[pick.index()];
            let result = if self.caps.takes(&meta.off) {
                write_one(queue, &mut gather, heads, tails, *pick).map(|()| 1)
            } else {
                write_cut(queue, heads, tails, *pick, self.caps)
            };
            match result {
                Ok(frames) => {
                    sent.frames += 1;
                    sent.bytes += u64::from(meta.len) + if pick.tagged() { 4 } else { 0 };
                    sent.segments += if frames > 1 { frames } else { 0 };
                }
                Err(Refusal::Full) => {
                    sent.stop = Stop::Full;
                    return sent;
                }
                Err(Refusal::Down) => {
                    sent.stop = Stop::Down;
                    return sent;
                }
                Err(Refusal::Frame(reason)) => sent.drop_frame(reason),
            }
            sent.taken += 1;
        }
        sent
    }

    fn kick(&self, _lane: Lane) {}
}

/// Why a frame was not written.
enum Refusal {
    /// The kernel has no memory or room at this moment.
    Full,
    /// The interface is down or gone.
    Down,
    /// This frame will never be taken.
    Frame(Drop),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        match errno {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Refusal::Full,
            Errno::IO | Errno::BADFD => Refusal::Down,
            Errno::FAULT => Refusal::Frame(Drop::PeerFault),
            _ => Refusal::Frame(Drop::KernelRefused),
        }
    }
}

fn write_one(
    queue: &TapQueue,
    gather: &mut Gather,
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
) -> Result<(), Refusal> {
    let Some(ranges) = gather.frame(heads, tails, pick, VNET_HEADER_BYTES) else {
        return Err(Refusal::Frame(Drop::TooBig));
    };
    // SAFETY: the bytes are one frame for this receiver: its private part, and the rest where the sender keeps it.
    unsafe { writev_raw(queue.as_fd(), ranges) }?;
    Ok(())
}

/// Writes a frame whose offload the interface did not take; returns how many frames became of it.
fn write_cut(
    queue: &TapQueue,
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
    caps: TxCaps,
) -> Result<u64, Refusal> {
    let header = [0u8; VNET_HEADER_BYTES];
    let mut refused = None;
    let made = soft::finish(heads, tails, pick, caps, |frame| {
        let parts = [
            rustix::io::IoSlice::new(&header),
            rustix::io::IoSlice::new(frame),
        ];
        match queue.write_frame(&parts) {
            Ok(_) => true,
            Err(errno) => {
                refused = Some(Refusal::from(errno));
                false
            }
        }
    });
    match (made, refused) {
        (Ok(n), None) => Ok(n),
        (Err(reason), None) => Err(Refusal::Frame(reason)),
        (Ok(0), Some(refusal)) => Err(refusal),
        (_, Some(_)) => Err(Refusal::Frame(Drop::KernelRefused)),
    }
}
