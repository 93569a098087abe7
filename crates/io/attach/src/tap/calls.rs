//! A thread's system calls for TAPs: in batches, or one by one where the kernel refuses `io_uring`.
//!
//! # Why batches
//! A frame of 64 bytes costs less in the kernel's stack than the way into the kernel and back, and a batch pays for that
//! once. What was measured stands in ARCHITECTURE.md, among the decisions.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;

use libc::iovec;
use rustix::io::Errno;
use windlass_frame::{HEADROOM, SNAP, Snap};
use windlass_shm::ARENA_SLOT;
use windlass_sys::batch::{BATCH_MAX, Batch};
use windlass_sys::tap::VNET_HEADER_BYTES;
use windlass_sys::vectored::{readv_raw, writev_raw};

use crate::gather::Gather;

/// Frames that one submission reads at most.
pub(super) const READS_MAX: usize = 32;

/// An entry of a list that is not used.
const NOTHING: iovec = iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::new(Calls::new(Batch::new().ok()));
}

/// Runs `work` with the calling thread's lists and queues.
pub(super) fn with<T>(work: impl FnOnce(&mut Calls) -> T) -> T {
    CALLS.with_borrow_mut(work)
}

/// The lists of one submission, and what came of it.
pub(super) struct Calls {
    batch: Option<Batch>,
    /// What a burst writes.
    pub(super) gather: Gather,
    headers: [[u8; VNET_HEADER_BYTES]; READS_MAX],
    results: [Result<usize, Errno>; BATCH_MAX],
}

impl Calls {
    fn new(batch: Option<Batch>) -> Calls {
        Calls {
            batch,
            gather: Gather::default(),
            headers: [[0; VNET_HEADER_BYTES]; READS_MAX],
            results: [Err(Errno::AGAIN); BATCH_MAX],
        }
    }

    /// Reads up to `wanted` frames, frame `j` into `snaps[j]` and from [`ARENA_SLOT`] times `j` of the arena. Returns
    /// how many reads were made: see [`Calls::read_result`].
    pub(super) fn read(
        &mut self,
        queue: BorrowedFd<'_>,
        snaps: &mut [Snap],
        arena: &mut [u8],
        wanted: usize,
    ) -> usize {
        let mut lists = [[NOTHING; 3]; READS_MAX];
        let mut count = 0;
        let slots = arena.chunks_exact_mut(ARENA_SLOT).zip(snaps).take(wanted);
        for (list, (header, (slot, snap))) in
            lists.iter_mut().zip(self.headers.iter_mut().zip(slots))
        {
            let Some(snap) = snap.0.get_mut(HEADROOM..HEADROOM + SNAP) else {
                break;
            };
            *list = [range(header), range(snap), range(slot)];
            count += 1;
        }
        let lists = lists.get(..count).unwrap_or(&[]);
        // One alone is cheaper without the queues.
        if let (Some(batch), 2..) = (&mut self.batch, count) {
            let lists = lists.iter().map(|list| list.as_slice());
            // SAFETY: header, snapshot and slot of each frame are exclusively ours during the call, and hold plain bytes.
            let done = unsafe { batch.readv(queue, lists, &mut self.results) };
            return done.unwrap_or(0);
        }
        for (at, (list, result)) in lists.iter().zip(&mut self.results).enumerate() {
            // SAFETY: as above.
            *result = unsafe { readv_raw(queue, list) };
            if result.is_err() {
                return at + 1;
            }
        }
        count
    }

    /// What read `j` gave: bytes with the header, and the header.
    pub(super) fn read_result(&self, j: usize) -> (Result<usize, Errno>, &[u8; VNET_HEADER_BYTES]) {
        let j = j % READS_MAX;
        (self.results[j], &self.headers[j])
    }

    /// Writes the frames that were gathered, each whole or not at all; their results in order.
    pub(super) fn write(&mut self, queue: BorrowedFd<'_>) -> &[Result<usize, Errno>] {
        let count = self.gather.len().min(BATCH_MAX);
        let lists = self.gather.lists();
        match &mut self.batch {
            Some(batch) if count > 1 => {
                let results = self.results.get_mut(..count).unwrap_or(&mut []);
                // SAFETY: each list is one frame for this receiver: its private part, and the rest where the sender keeps it.
                if let Err(errno) = unsafe { batch.writev(queue, lists, results) } {
                    results.fill(Err(errno));
                }
            }
            _ => {
                for (list, result) in lists.zip(&mut self.results) {
                    // SAFETY: as above.
                    *result = unsafe { writev_raw(queue, list) };
                }
            }
        }
        self.results.get(..count).unwrap_or(&[])
    }
}

fn range(bytes: &mut [u8]) -> iovec {
    iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;
    use windlass_frame::{Heads, Pick, RxId, Tick};
    use windlass_shm::{SegStore, Tails};
    use windlass_sync::qsbr::Domain;

    /// Frames as a TAP gives them, through a pair of sockets that keep boundaries.
    fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let flags = SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// With `io_uring` and without it: all frames of a burst are written in order, each read finds the next one, the
    /// part behind the snapshot is in its own slot, and the end is `EAGAIN`.
    #[test]
    fn both_ways_give_the_same() {
        for batch in [Some(Batch::new().unwrap()), None] {
            let mut calls = Calls::new(batch);
            let (near, far) = pair();
            let domain = Domain::new(1);
            let mut worker = domain.register();
            let section = worker.section();
            let mut heads = Heads::boxed();
            let mut store = SegStore::default();
            let mut tails = Tails::bind(&mut store, &section);
            heads.clear(RxId(0), Tick(0));
            let lengths = [60, 1_000, SNAP, SNAP + 1, 9_000];
            for (i, len) in lengths.into_iter().enumerate() {
                let have = len.min(SNAP);
                heads.snap[i].0[HEADROOM..HEADROOM + have].fill(i as u8 + 1);
                heads.admit(i, len as u32, windlass_frame::Claim::default());
                if len > SNAP {
                    tails.arena()[..len - SNAP].fill(i as u8 + 1);
                    assert!(tails.take_arena(i, len - SNAP));
                }
                assert!(
                    calls
                        .gather
                        .add(&heads, &tails, Pick::frame(i, false), VNET_HEADER_BYTES)
                );
            }
            let results = calls.write(near.as_fd()).to_vec();
            assert_eq!(results, lengths.map(|len| Ok(len + VNET_HEADER_BYTES)));

            let mut snaps = [Snap([0; 256]); 8];
            let mut arena = vec![0; 8 * ARENA_SLOT];
            let reads = calls.read(far.as_fd(), &mut snaps, &mut arena, 7);
            assert!(reads > lengths.len());
            for (i, len) in lengths.into_iter().enumerate() {
                assert_eq!(calls.read_result(i).0, Ok(len + VNET_HEADER_BYTES));
                let have = len.min(SNAP);
                let mark = i as u8 + 1;
                assert!(
                    snaps[i].0[HEADROOM..HEADROOM + have]
                        .iter()
                        .all(|b| *b == mark)
                );
                let slot = &arena[i * ARENA_SLOT..][..len - have + 1];
                assert!(slot.iter().take(len - have).all(|b| *b == mark));
                assert_eq!(slot.last(), Some(&0));
            }
            assert_eq!(calls.read_result(lengths.len()).0, Err(Errno::AGAIN));
        }
    }
}
