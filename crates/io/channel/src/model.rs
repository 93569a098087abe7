//! What the models put in place of shared memory, of the kernel's connection and of `membarrier`. Exists in loom builds only.
//!
//! # Model
//! loom runs all threads of a model on one thread of the test, so what a test sets here holds for its own model only.
//!
//! A `membarrier` makes every other thread pass a full fence somewhere. loom cannot do that to another thread, so stream mode is
//! modelled in two halves which together cover every execution: [`Barrier::Fences`], where both sides have a fence (those in which
//! the sleeper issues a `membarrier`), and [`Barrier::Prunes`], where the sender has none and an execution ends as soon as the
//! sleeper would issue one (those in which it does not).
#![allow(missing_docs, clippy::missing_panics_doc)]

use std::cell::Cell;
use std::collections::VecDeque;

use loom::sync::{Condvar, Mutex};

use crate::bufs::{Bufs, iovec};
use crate::layout::*;
use crate::shim::{AtomicU32, AtomicU64, Relaxed, fence_full};
use crate::slab::Slab;
use crate::socket::Socket;
use crate::wait::StatusPage;

/// How `membarrier` is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// No stream mode.
    Never,
    Fences,
    Prunes,
}

/// A deliberate fault in the protocol, which its model has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// A push is not followed by a fence.
    NoFence,
    /// A sleeper does not look at the ring again.
    NoSecondLook,
    /// A sleeper does not look at `stream`.
    StreamIgnored,
    /// `stream` is published without a fence.
    StreamUnfenced,
    /// A reclaim does not take the read lock.
    ReclaimUnlocked,
    /// The news bit is set before the fence.
    NewsEarly,
    /// `k_sent` is loaded before `head`.
    CountEarly,
    /// A member without bytes is taken off the list after the last look at it.
    UnlistedLate,
    /// A lock is taken over without a repair.
    NoRepair,
    /// A sender that waits for room issues no `membarrier`.
    NoRoomBarrier,
}

std::thread_local! {
    static BARRIER: Cell<Barrier> = const { Cell::new(Barrier::Never) };
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    static PRUNED: Cell<bool> = const { Cell::new(false) };
}

/// Sets up a model.
pub fn set(barrier: Barrier, fault: Fault) {
    BARRIER.set(barrier);
    FAULT.set(fault);
}

/// Begins an execution.
pub fn begin() {
    PRUNED.set(false);
}

/// Whether the execution is none of this half.
pub fn pruned() -> bool {
    PRUNED.get()
}

pub(crate) fn fault(which: Fault) -> bool {
    FAULT.get() == which
}

pub(crate) fn streams() -> bool {
    BARRIER.get() != Barrier::Never
}

pub(crate) fn light() {
    if BARRIER.get() == Barrier::Fences {
        fence_full();
    }
}

pub(crate) fn heavy() {
    match BARRIER.get() {
        Barrier::Prunes => PRUNED.set(true),
        _ => fence_full(),
    }
}

/// The memory of a slab with one channel.
#[derive(Debug)]
pub struct Parts {
    pub(crate) header: Box<Header>,
    pub(crate) chan: Box<Chan>,
    pub(crate) bytes: Vec<loom::cell::UnsafeCell<u8>>,
}

/// A slab with one channel, joined at both ends, whose rings are there already. `pages` is how much memory there is.
pub fn slab(status: [Option<StatusPage>; 2]) -> Slab {
    let header = Box::new(Header {
        magic: AtomicU64::new(MAGIC),
        id: AtomicU32::new(1),
        watch: AtomicU32::new(1),
        used: Default::default(),
        news: Default::default(),
        pages: Default::default(),
    });
    let bytes = (0..2 * PAGE)
        .map(|_| loom::cell::UnsafeCell::new(0))
        .collect();
    let chan = Box::new(Chan::default());
    for d in &chan.d {
        d.a.flags.store(READY, Relaxed);
        d.a.ring.store(1, Relaxed);
    }
    Slab::model(
        Parts {
            header,
            chan,
            bytes,
        },
        status,
    )
}

/// A status page of one process.
pub fn status() -> StatusPage {
    StatusPage::model()
}

#[derive(Debug, Default)]
struct Pipe {
    queue: VecDeque<u8>,
    written: u64,
    read: u64,
    closed: bool,
}

/// One direction of the kernel's connection: what the sender's socket writes and the receiver's reads.
#[derive(Debug)]
pub struct Kernel {
    pipe: Mutex<Pipe>,
    filled: Condvar,
    /// The sender dies inside its so-manieth write (1-based), after so many bytes went: 0 = never.
    die: Cell<(u32, usize)>,
    writes: Cell<u32>,
}

/// A sender that was killed: unwound up to the model's thread.
#[derive(Debug)]
pub struct Killed;

impl Kernel {
    pub fn new() -> Kernel {
        Kernel {
            pipe: Mutex::new(Pipe::default()),
            filled: Condvar::new(),
            die: Cell::new((0, 0)),
            writes: Cell::new(0),
        }
    }

    /// Kills the sender inside its `write`th write, after `bytes` bytes went.
    pub fn kill_in(&self, write: u32, bytes: usize) {
        self.die.set((write, bytes));
    }

    /// A blocking receive of the program's own: 0 at the end of the stream.
    pub fn recv_blocking(&self, into: &mut [u8]) -> usize {
        let mut pipe = self.pipe.lock().unwrap();
        while pipe.queue.is_empty() && !pipe.closed {
            pipe = self.filled.wait(pipe).unwrap();
        }
        take(&mut pipe, into.as_mut_ptr(), into.len())
    }

    /// FIN.
    pub fn close(&self) {
        self.pipe.lock().unwrap().closed = true;
        self.filled.notify_all();
    }
}

fn take(pipe: &mut Pipe, at: *mut u8, limit: usize) -> usize {
    let n = limit.min(pipe.queue.len());
    for i in 0..n {
        let byte = pipe.queue.pop_front().unwrap();
        // SAFETY: a model's buffers are live memory.
        unsafe { at.wrapping_add(i).write(byte) };
    }
    pipe.read += n as u64;
    n
}

impl Socket for Kernel {
    fn send(&self, data: &Bufs, _: i32) -> Result<usize, i32> {
        let mut vectors = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 2];
        let filled = data.fill(usize::MAX, &mut vectors);
        let mut bytes = Vec::new();
        for v in &vectors[..filled] {
            // SAFETY: a model's buffers are live memory.
            let piece = unsafe { std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len) };
            bytes.extend_from_slice(piece);
        }
        self.writes.set(self.writes.get() + 1);
        let (die, went) = self.die.get();
        let dies = die == self.writes.get();
        if dies {
            bytes.truncate(went);
        }
        {
            let mut pipe = self.pipe.lock().unwrap();
            pipe.written += bytes.len() as u64;
            pipe.queue.extend(&bytes);
        }
        self.filled.notify_all();
        if dies {
            std::panic::resume_unwind(Box::new(Killed));
        }
        Ok(bytes.len())
    }

    fn recv(&self, into: &Bufs, limit: usize, _: i32) -> Result<usize, i32> {
        let mut pipe = self.pipe.lock().unwrap();
        if pipe.queue.is_empty() && !pipe.closed {
            return Err(libc::EAGAIN);
        }
        Ok(take(&mut pipe, into.piece().0, limit))
    }

    fn written(&self) -> Option<u64> {
        Some(self.pipe.lock().unwrap().written)
    }

    fn received(&self) -> Option<u64> {
        Some(self.pipe.lock().unwrap().read)
    }

    fn raise_send_buffer(&self) {}
}

// SAFETY: loom runs one thread at a time; the cells are set by the sender's side only.
unsafe impl Sync for Kernel {}
// SAFETY: as above.
unsafe impl Send for Kernel {}
