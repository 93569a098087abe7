//! A handle: the calls of a program, and where they sleep.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::offer::BUFFER_BYTES;
use windlass_attach::memif::{ClientConfig, Offloads};
use windlass_frame::FRAME_MAX;
use windlass_shm::HugePages;
use windlass_sync::tsc;
use windlass_sys::Errno;
use windlass_sys::epoll::{Epoll, Interest};

use crate::conn::Conn;
use crate::error::Error;
use crate::fork;
use crate::frameio::{Call, FRAMEIO_NVECS_MAX, FrameVec, ReadVec, WriteVec, check_length, length};
use crate::link::{Link, News};
use crate::offload::Offload;
use crate::ready::{Set, Sets};
use crate::rx::{Place, Rx, State, Turn};
use crate::turn::{Held, Turns};
use crate::tx::{Grant, Owed, Tx, slots};

/// How long a device may be absent before a handle gives up, unless [`Device::set_patience`] says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a close waits for the daemon to take what was written.
pub const LINGER: Duration = Duration::from_secs(1);
/// Default size of the rings, as a power of two.
pub const LOG2_RING: u8 = 10;
/// Smallest rings with [`Offloads::Gso`], as a power of two: the largest segment takes 33 slots.
pub const LOG2_RING_GSO: u8 = 6;
/// How long an open waits for a device that has another consumer, which may be about to go.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
/// How often calls that do not sleep look after the link, in cycles of the time-stamp counter: about a millisecond.
const LOOK_CYCLES: u64 = 1 << 22;
/// How long a sleep is that the daemon may not end: with servers of memif other than windlassd.
const RECHECK: Duration = Duration::from_millis(1);

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Size of the ring of frames for the program as a power of two, 5 to 14; 0: what the device asks for, [`LOG2_RING`] behind a path.
    /// A frame of up to 2048 bytes takes one slot. With [`Offloads::Gso`], at least [`LOG2_RING_GSO`].
    pub log2_rx: u8,
    /// The same of the ring of its frames.
    pub log2_tx: u8,
    /// What the program takes unfinished, and may write unfinished: see [`crate::offload`].
    pub offloads: Offloads,
    /// Whether calls return `EAGAIN` where they would sleep.
    pub nonblocking: bool,
}

/// What a program can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A frame can be read.
    Read,
    /// A write that returned `EAGAIN` can be tried again.
    Write,
    /// One of the two.
    Any,
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    generation: u32,
    nonblocking: AtomicBool,
    gone: AtomicBool,
    /// The program has the set for reading, for writing.
    gave_reading: AtomicBool,
    gave_writing: AtomicBool,
    sets: Sets,
    any: Epoll,
    tx: Tx,
    rx: Rx,
    /// Whose turn it is to sleep for room.
    turns: Turns,
    ring_slots: u16,
    offloads: Offloads,
    link: Mutex<Link>,
    looked: AtomicU64,
}

impl Device {
    /// Opens the device behind a memif socket, as the client of its interface 0.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_path(path: &Path, options: Options) -> Result<Device, Error> {
        let generation = fork::generation()?;
        let least = match options.offloads {
            Offloads::Gso => LOG2_RING_GSO,
            _ => 0,
        };
        let log2_sizes = [options.log2_tx, options.log2_rx].map(|size| match size {
            0 => LOG2_RING,
            given => given.max(least),
        });
        if path.as_os_str().is_empty() || !log2_sizes.iter().all(|size| (5..=14).contains(size)) {
            return Err(Error::BadName(path.to_owned()));
        }
        let config = ClientConfig {
            path: path.to_owned(),
            owner: None,
            id: 0,
            secret: Secret::NONE,
            name: "libwindlass".to_owned(),
            rings: 1,
            log2_sizes,
            offloads: options.offloads,
            huge: HugePages::Try,
        };
        let sets = Sets {
            reading: Set::new()?,
            writing: Set::new()?,
        };
        let any = Epoll::create()?;
        for set in sets.each() {
            any.add(set, 0, Interest::READABLE)?;
        }
        let mut link = Link::new(config, &sets)?;
        let conn = first(&mut link, &sets).map_err(|errno| explain(path, errno, &link.told))?;
        link.taken();
        Ok(Device {
            generation,
            nonblocking: AtomicBool::new(options.nonblocking),
            gone: AtomicBool::new(false),
            gave_reading: AtomicBool::new(false),
            gave_writing: AtomicBool::new(false),
            sets,
            any,
            ring_slots: conn.tx.ring.size(),
            offloads: options.offloads,
            tx: Tx::new(conn.clone()),
            rx: Rx::new(conn),
            turns: Turns::default(),
            link: Mutex::new(link),
            looked: AtomicU64::new(0),
        })
    }

    /// Whether calls return `EAGAIN` where they would sleep.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// How long the device may be absent (no socket, no interface, another's, or not permitted) before calls return `ENXIO`. A
    /// daemon that is merely down is waited for without a limit.
    pub fn set_patience(&self, patience: Duration) {
        self.link().patience = patience;
    }

    /// Reads frames: as many as there are, at most one for each `nvpf` vectors. Gives the number of vectors used.
    ///
    /// # Errors
    /// - `EAGAIN`: nonblocking, and no frame is there.
    /// - `EBUSY`: another thread reads, or frames are lent ([`Device::peek`]).
    /// - `EINTR`: a signal handler ran before a frame came.
    /// - `EINVAL`: see [`crate::frameio`]; the handle has asked for offloads: [`Device::read_offload`].
    /// - `ENXIO`: the device is gone for good, or the handle is another process's.
    /// - `EOVERFLOW`: the first frame is longer than its vectors. It stays.
    pub fn read(&self, nvpf: usize, vecs: &mut [ReadVec<'_>]) -> Result<usize, Errno> {
        // SAFETY: each vector names a slice that is borrowed for it alone.
        unsafe { self.read_raw(nvpf, ReadVec::raw(vecs)) }
    }

    /// [`Device::read`] into whatever the vectors name.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Each vector names `buflen` bytes that may be written.
    pub unsafe fn read_raw(&self, nvpf: usize, vecs: &mut [FrameVec]) -> Result<usize, Errno> {
        self.check_plain()?;
        // SAFETY: the caller's promise.
        unsafe { self.read_with(nvpf, vecs, None) }
    }

    /// [`Device::read`], and what is still to be done with each frame: one place for each that may come.
    ///
    /// # Errors
    /// As there; `EINVAL` for fewer places than frames.
    pub fn read_offload(
        &self,
        nvpf: usize,
        vecs: &mut [ReadVec<'_>],
        offloads: &mut [Offload],
    ) -> Result<usize, Errno> {
        // SAFETY: each vector names a slice that is borrowed for it alone.
        unsafe { self.read_offload_raw(nvpf, ReadVec::raw(vecs), offloads) }
    }

    /// [`Device::read_offload`] into whatever the vectors name.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Each vector names `buflen` bytes that may be written.
    pub unsafe fn read_offload_raw(
        &self,
        nvpf: usize,
        vecs: &mut [FrameVec],
        offloads: &mut [Offload],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.read_with(nvpf, vecs, Some(offloads)) }
    }

    /// A program that has asked for offloads is to hear what is to be done with a frame.
    #[inline(always)]
    pub(crate) fn check_plain(&self) -> Result<(), Errno> {
        match self.offloads {
            Offloads::None => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// # Safety
    /// As [`Device::read_raw`].
    #[inline(always)]
    unsafe fn read_with(
        &self,
        nvpf: usize,
        vecs: &mut [FrameVec],
        mut offloads: Option<&mut [Offload]>,
    ) -> Result<usize, Errno> {
        let mut call = Call::check(nvpf, vecs)?;
        let places = offloads.as_ref().map_or(usize::MAX, |all| all.len());
        if places < call.vecs.len() / nvpf {
            return Err(Errno::INVAL);
        }
        let mut turn = self.enter()?;
        loop {
            // SAFETY: the caller's promise.
            let done = unsafe { turn.read(&mut call, offloads.as_deref_mut()) };
            if done != Ok(0) {
                self.leave(&mut turn);
                return done.map(|frames| frames * nvpf);
            }
            self.await_frames(&mut turn)?;
        }
    }

    /// Writes frames: all, or none. Gives the number of vectors.
    ///
    /// # Errors
    /// - `EAGAIN`: nonblocking, and there is no room for all.
    /// - `EINTR`: a signal handler ran before there was room.
    /// - `EINVAL`: see [`crate::frameio`]; a frame of less than 14 bytes, or more frames than the ring ever holds.
    /// - `ENXIO`: the device is gone for good, or the handle is another process's.
    /// - `EOVERFLOW`: a frame that is longer than any.
    pub fn write(&self, nvpf: usize, vecs: &mut [WriteVec<'_>]) -> Result<usize, Errno> {
        // SAFETY: each vector names a slice that is borrowed.
        unsafe { self.write_raw(nvpf, WriteVec::raw(vecs)) }
    }

    /// [`Device::write`] from whatever the vectors name.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Each vector names `buflen` bytes that may be read.
    pub unsafe fn write_raw(&self, nvpf: usize, vecs: &mut [FrameVec]) -> Result<usize, Errno> {
        let words = core::iter::repeat(0);
        // SAFETY: the caller's promise.
        unsafe { self.write_with(Call::check(nvpf, vecs)?, words) }
    }

    /// [`Device::write`], and what is still to be done with each frame: one for each.
    ///
    /// # Errors
    /// As there; `EINVAL` for another number than of frames, and for what no frame can ask, or the handle has not asked for.
    pub fn write_offload(
        &self,
        nvpf: usize,
        vecs: &mut [WriteVec<'_>],
        offloads: &[Offload],
    ) -> Result<usize, Errno> {
        // SAFETY: each vector names a slice that is borrowed.
        unsafe { self.write_offload_raw(nvpf, WriteVec::raw(vecs), offloads) }
    }

    /// [`Device::write_offload`] from whatever the vectors name.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Each vector names `buflen` bytes that may be read.
    pub unsafe fn write_offload_raw(
        &self,
        nvpf: usize,
        vecs: &mut [FrameVec],
        offloads: &[Offload],
    ) -> Result<usize, Errno> {
        let call = Call::check(nvpf, vecs)?;
        if offloads.len() != call.vecs.len() / nvpf {
            return Err(Errno::INVAL);
        }
        let mut words = [0; FRAMEIO_NVECS_MAX];
        for (word, offload) in words.iter_mut().zip(offloads) {
            *word = self.word(offload)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_with(call, words.into_iter()) }
    }

    /// The metadata word of what is asked for a frame.
    pub(crate) fn word(&self, offload: &Offload) -> Result<u32, Errno> {
        offload.word(self.offloads).ok_or(Errno::INVAL)
    }

    /// # Safety
    /// As [`Device::write_raw`].
    #[inline(always)]
    unsafe fn write_with(
        &self,
        mut call: Call<'_>,
        words: impl Iterator<Item = u32>,
    ) -> Result<usize, Errno> {
        let mut need = 0;
        for frame in call.frames() {
            let bytes = length(frame);
            check_length(bytes)?;
            need += slots(bytes, BUFFER_BYTES as usize);
        }
        let grant = self.reserve_slots(need)?;
        // SAFETY: the caller's promise; so many slots are what the frames take.
        unsafe { grant.fill(call.frames(), words) };
        self.publish(grant);
        Ok(call.vecs.len())
    }

    /// Bytes of the longest frame that can be written: the longest that there is, unless the ring has less room in all.
    #[must_use]
    pub fn frame_max(&self) -> usize {
        FRAME_MAX.min(usize::from(self.ring_slots) * BUFFER_BYTES as usize)
    }

    /// A descriptor that poll(2), epoll(7) and so on find readable (`POLLIN`, also for writing) when the handle is ready. It is
    /// the handle's: neither to be closed nor read.
    ///
    /// It may be readable without need: then the call returns `EAGAIN`, and it is not readable any more. It is readable without a frame too
    /// when the daemon has come or gone: calls connect again.
    ///
    /// # Errors
    /// `ENXIO` if the handle is another process's.
    pub fn pollfd(&self, of: Readiness) -> Result<BorrowedFd<'_>, Errno> {
        self.check()?;
        let (reads, writes) = (of != Readiness::Write, of != Readiness::Read);
        if reads && !self.gave_reading.swap(true, Ordering::SeqCst) {
            // The next read says what is there.
            self.sets.reading.ring();
        }
        if writes && !self.gave_writing.swap(true, Ordering::SeqCst) {
            self.sets.writing.ring();
        }
        Ok(match of {
            Readiness::Read => self.sets.reading.as_fd(),
            Readiness::Write => self.sets.writing.as_fd(),
            Readiness::Any => self.any.as_fd(),
        })
    }

    /// Waits until the daemon has taken every frame that was written, at most `limit`.
    ///
    /// # Errors
    /// `EAGAIN`: it has not, in that time. `EINTR`, `ENXIO` as [`Device::write`].
    pub fn drain(&self, limit: Duration) -> Result<(), Errno> {
        self.check()?;
        let end = Instant::now() + limit;
        let held = self.turns.take()?;
        let drained = loop {
            if self.sets.writing.take() {
                self.service();
            }
            if self.tx.arm_empty() {
                break Ok(());
            }
            let rest = end.saturating_duration_since(Instant::now());
            if self.is_gone() {
                break Err(Errno::NXIO);
            }
            if rest.is_zero() {
                break Err(Errno::AGAIN);
            }
            if let Err(errno) = self
                .sets
                .writing
                .sleep(Some(self.bound(self.tx.tells_all(), rest)))
            {
                break Err(errno);
            }
        };
        self.give_turn(held);
        drained
    }

    /// The sets are readable in a while, if the daemon cannot be relied on to make them so.
    fn recheck(&self, tells_all: bool) {
        if !tells_all {
            self.link().wake_at(Instant::now() + RECHECK);
        }
    }

    fn bound(&self, tells_all: bool, rest: Duration) -> Duration {
        if tells_all { rest } else { rest.min(RECHECK) }
    }

    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if fork::is(self.generation) {
            Ok(())
        } else {
            Err(Errno::NXIO)
        }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does for the link what can be done now.
    #[cold]
    pub(crate) fn service(&self) {
        let mut link = self.link();
        loop {
            match link.step(&self.sets) {
                News::None => return,
                // Its last frames were told by what is no longer in the sets.
                News::Down => self.ring_all(),
                News::Ready(conn) => {
                    if !self.tx.move_to(&conn) {
                        return;
                    }
                    link.taken();
                    self.rx.push(conn);
                    self.ring_all();
                }
                News::Gone => {
                    self.gone.store(true, Ordering::SeqCst);
                    self.ring_all();
                    return;
                }
            }
        }
    }

    fn ring_all(&self) {
        for set in self.sets.each() {
            set.ring();
        }
    }

    /// The same, now and then: a program that never sleeps is to notice that its daemon is gone, and a writer also before the ring is
    /// full, so that what it has written is not left there.
    #[inline(always)]
    fn look_now_and_then(&self) {
        let now = tsc::now();
        if now.wrapping_sub(self.looked.load(Ordering::Relaxed)) >= LOOK_CYCLES {
            self.looked.store(now, Ordering::Relaxed);
            self.service();
        }
    }

    /// Lends the next frames, without a copy. Until [`Device::unlend`], nothing else can be read.
    ///
    /// # Errors
    /// As [`Device::read`]; `EOVERFLOW`: the first frame does not lie in one buffer, and is to be read. `EINVAL` for no place.
    pub(crate) fn lend(&self, frames: &mut [Place]) -> Result<usize, Errno> {
        let mut turn = self.enter()?;
        if frames.is_empty() {
            return Err(Errno::INVAL);
        }
        loop {
            match turn.lend(frames) {
                Ok(0) => self.await_frames(&mut turn)?,
                Ok(count) => {
                    turn.keep();
                    return Ok(count);
                }
                Err(errno) => {
                    self.leave(&mut turn);
                    return Err(errno);
                }
            }
        }
    }

    /// Takes the first `count` lent frames as read. The others are no longer lent, and come again.
    ///
    /// # Errors
    /// `EINVAL`: fewer are lent. `ENXIO` as [`Device::read`].
    pub(crate) fn unlend(&self, count: usize) -> Result<(), Errno> {
        self.check()?;
        let mut turn = self.rx.resume().ok_or(Errno::INVAL)?;
        if !turn.take_back(count) {
            turn.keep();
            return Err(Errno::INVAL);
        }
        self.leave(&mut turn);
        Ok(())
    }

    /// The reader's turn.
    #[inline(always)]
    fn enter(&self) -> Result<Turn<'_>, Errno> {
        self.check()?;
        self.rx.enter()
    }

    /// No frame is there: sleeps until there may be one.
    #[cold]
    fn await_frames(&self, state: &mut State) -> Result<(), Errno> {
        if self.rx.has_news() && self.rx.follow(state, &self.sets) {
            return Ok(());
        }
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        if nonblocking && !self.gave_reading.load(Ordering::Relaxed) {
            self.look_now_and_then();
            return match (self.rx.has_news(), self.is_gone()) {
                (true, _) => Ok(()),
                (_, true) => Err(Errno::NXIO),
                _ => Err(Errno::AGAIN),
            };
        }
        if self.settle(state) {
            return Ok(());
        }
        if self.is_gone() {
            return Err(Errno::NXIO);
        }
        if nonblocking {
            self.recheck(state.tells_all());
            return Err(Errno::AGAIN);
        }
        let limit = (!state.tells_all()).then_some(RECHECK);
        self.sets.reading.sleep(limit)
    }

    /// Takes what made the set for reading readable, and arms the ring. True if there is something to be looked at.
    fn settle(&self, state: &mut State) -> bool {
        state.rung = false;
        if self.sets.reading.take() {
            self.service();
            return true;
        }
        state.arm() || self.rx.has_news()
    }

    /// Behind frames that were read: the set for reading is readable, or the ring is armed.
    #[inline(always)]
    fn leave(&self, state: &mut State) {
        if !self.gave_reading.load(Ordering::Relaxed) {
            state.disarm();
        } else if !state.rung && (state.known(1) != 0 || self.settle(state)) {
            state.disarm();
            self.sets.reading.ring();
            state.rung = true;
        }
    }

    /// So many slots, in the order of the calls.
    #[inline(always)]
    pub(crate) fn reserve_slots(&self, need: usize) -> Result<Grant, Errno> {
        self.check()?;
        let count = u16::try_from(need)
            .ok()
            .filter(|count| *count <= self.ring_slots);
        let count = count.ok_or(Errno::INVAL)?;
        if !self.is_gone()
            && let Some(grant) = self.tx.reserve(count)
        {
            return Ok(grant);
        }
        self.await_room(count)
    }

    #[cold]
    fn await_room(&self, count: u16) -> Result<Grant, Errno> {
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        if nonblocking && !self.gave_writing.load(Ordering::Relaxed) {
            self.look_now_and_then();
            return match self.is_gone() {
                true => Err(Errno::NXIO),
                false => self.tx.reserve(count).ok_or(Errno::AGAIN),
            };
        }
        let held = match nonblocking {
            // Whoever sleeps for room makes the set readable when it leaves.
            true => self.turns.try_take().ok_or(Errno::AGAIN)?,
            false => self.turns.take()?,
        };
        let got = loop {
            if self.sets.writing.take() {
                self.service();
            }
            if self.is_gone() {
                break Err(Errno::NXIO);
            }
            if self.tx.arm(count)
                && let Some(grant) = self.tx.reserve(count)
            {
                break Ok(grant);
            }
            if nonblocking {
                self.recheck(self.tx.tells_all());
                break Err(Errno::AGAIN);
            }
            let limit = (!self.tx.tells_all()).then_some(RECHECK);
            if let Err(errno) = self.sets.writing.sleep(limit) {
                break Err(errno);
            }
        };
        match got {
            Err(Errno::AGAIN) => drop(held),
            _ => self.give_turn(held),
        }
        got
    }

    /// The set for writing is readable again: what we took from it may concern somebody else.
    fn give_turn(&self, held: Held<'_>) {
        drop(held);
        if self.gave_writing.load(Ordering::SeqCst) {
            self.sets.writing.ring();
        }
    }

    /// Publishes what a grant's slots hold.
    #[inline(always)]
    pub(crate) fn publish(&self, grant: Grant) {
        let owed = self.tx.publish(grant);
        if owed != Owed::default() {
            self.pay(owed);
        }
        self.look_now_and_then();
    }

    #[cold]
    fn pay(&self, owed: Owed) {
        if owed.bell {
            self.sets.writing.ring();
        }
        if owed.service {
            self.service();
        }
    }
}

/// The first connection of a link.
fn first(link: &mut Link, sets: &Sets) -> Result<Arc<Conn>, Errno> {
    let began = Instant::now();
    loop {
        sets.reading.take();
        link.failure = None;
        match link.step(sets) {
            News::Ready(conn) => return Ok(conn),
            News::Gone | News::Down => return Err(Errno::NXIO),
            News::None => {}
        }
        match link.failure {
            Some(Errno::BUSY | Errno::AGAIN) if began.elapsed() < BUSY_PATIENCE => {}
            Some(errno) => return Err(errno),
            None => {}
        }
        match sets.reading.sleep(None) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn explain(path: &Path, errno: Errno, told: &str) -> Error {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::CONNREFUSED => Error::NoDevice(path),
        Errno::ACCESS | Errno::PERM => Error::Permission(path),
        Errno::BUSY => Error::Busy(path, told.to_owned()),
        Errno::NAMETOOLONG | Errno::PROTOTYPE | Errno::LOOP => Error::BadName(path),
        errno => Error::System(errno),
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The daemon takes nothing more once the connection is closed. Without a daemon there is nothing to wait for.
        if self.check().is_err() {
            return;
        }
        if self.link().is_up() {
            let end = Instant::now() + LINGER;
            while self.drain(end.saturating_duration_since(Instant::now())) == Err(Errno::INTR) {}
        }
        self.link().close(&self.sets);
    }
}
