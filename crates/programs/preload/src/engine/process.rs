//! What this process shares with others: its registration, and the memory of each pair.
//!
//! # States
//! A process is *unregistered* until its first connection is worth a ring; then the broker gives it a slot, a status
//! page and the directory, and it stays *registered*. A forked child is unregistered again, keeps the pairs that it
//! inherited, and asks for a slot of its own at its first locked section.
//!
//! # Ownership and lifetime
//! [`PAIRS`] holds every slab that is mapped. A slab whose last socket here was closed stays, since the same
//! processes tend to meet again; it is unmapped, and its place used anew, once the place has been without
//! sockets for [`REST_CYCLES_US`] and another pair needs one.
//!
//! # Synchronization
//! [`GATE`] is held while something is asked of the broker or a place is filled, at most a few milliseconds, never on
//! the way of data; who finds it taken stays on the kernel for now. A pair's `id` is stored last (release), and
//! read first (acquire).

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use windlass_channel::client::{Client, Paired, Region, Registration};
use windlass_channel::directory::Directory;
use windlass_channel::layout::{CHANS, DIRECTORY_BYTES, STATUS_BYTES};
use windlass_channel::protocol::{BROKER_SLOT, PROCESSES_BYTES, SHARE, SLOTS};
use windlass_channel::{Alive, Life, Link, Owner, Reason, Side, Slab, StatusPage, Who, sys};

use super::death::{self, Burial};
use super::{clock, kernel, names};
use crate::{options, owner, record};

/// Slabs that a process has at a time: a wait looks at one word of each.
const PAIRS_MAX: usize = 64;
/// How long a place rests without sockets before another slab may take it.
const REST_CYCLES_US: u32 = 1_000_000;

/// How often the broker is asked to look after a slab, at most.
const WATCH_US: u32 = 1_000_000;

/// The way to the broker.
pub static CLIENT: Client = Client::new();

static GATE: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static DIRECTORY: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static PROCESSES: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The slot of the process that this one was forked from.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// One above the highest place in use.
static PLACES: AtomicU32 = AtomicU32::new(0);

/// A slab mapped here, with what this process knows of it.
pub struct Pair {
    /// The slab's number + 1; 0: free.
    id: AtomicU32,
    peer: AtomicU32,
    side: AtomicU32,
    /// Sockets of this process that have a channel in it.
    users: AtomicU32,
    /// When the last of them left, in cycles.
    rests_since: AtomicU64,
    /// When the broker was last asked to look after it, in cycles.
    watched_at: AtomicU64,
    /// The peer's mark of death; null where both ends are here.
    mark: AtomicPtr<AtomicU32>,
    /// How far its sockets were seen to after its death.
    pub burial: Burial,
    slab: UnsafeCell<MaybeUninit<Slab>>,
    memory: UnsafeCell<MaybeUninit<Paired>>,
    /// The record on each side of each channel, 0 = none of this process.
    records: [[AtomicU32; CHANS]; 2],
}

// SAFETY: `slab` and `memory` are written under GATE while `id` is 0, and read only after `id` was seen (acquire).
unsafe impl Sync for Pair {}

static PAIRS: [Pair; PAIRS_MAX] = [const {
    Pair {
        id: AtomicU32::new(0),
        peer: AtomicU32::new(0),
        side: AtomicU32::new(0),
        users: AtomicU32::new(0),
        rests_since: AtomicU64::new(0),
        watched_at: AtomicU64::new(0),
        mark: AtomicPtr::new(std::ptr::null_mut()),
        burial: Burial::new(),
        slab: UnsafeCell::new(MaybeUninit::uninit()),
        memory: UnsafeCell::new(MaybeUninit::uninit()),
        records: [const { [const { AtomicU32::new(0) }; CHANS] }; 2],
    }
}; PAIRS_MAX];

/// Asks the table of processes who lives.
struct Processes;

impl Alive for Processes {
    fn life(&self, owner: Owner) -> Life {
        let table = PROCESSES.load(Acquire);
        if table.is_null() || owner.process() == owner::process_slot() {
            return Life::Lives;
        }
        let word = table.wrapping_add(usize::from(owner.process()) % SLOTS);
        // SAFETY: the table has a word for each of the SLOTS slots, and is never unmapped.
        let pid = unsafe { &*word }.load(Relaxed);
        match (pid, owner.process()) {
            (0, _) => Life::Dead,
            (pid, BROKER_SLOT) if !kernel::lives(pid) => Life::Dead,
            _ => Life::Lives,
        }
    }
}

/// The calling thread, for locks; none while the process is not registered.
#[inline(always)]
pub fn who() -> Option<Who<'static>> {
    let word = owner::owner()?;
    let owner = Owner::new((word >> 16) as u16, word as u16)?;
    Some(Who {
        owner,
        alive: &Processes,
    })
}

/// The same in a process that was forked after it had joined: it asks for a slot of its own first.
pub fn who_or_register(socket: i32) -> Option<Who<'static>> {
    who().or_else(|| {
        register(socket).ok()?;
        who()
    })
}

/// Why this process makes no joins; [`Reason::None`]: nothing stands against them.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// No socket of this process is joined from now on.
pub fn forbid(reason: Reason) {
    FORBIDDEN.store(reason as u32, Relaxed);
}

/// Where the broker may be found. Called by the constructor.
pub fn locate() {
    let runtime = {
        // SAFETY: a C string; no other thread changes the environment while libraries are loaded.
        let text = unsafe { libc::getenv(c"XDG_RUNTIME_DIR".as_ptr()) };
        // SAFETY: a C string of the environment, if it is there.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
    };
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    CLIENT.locate(options::sockets().map(CStr::to_bytes), runtime, user);
}

/// Makes sure that this process is registered.
///
/// # Errors
/// Why it is not; [`Reason::Young`] while another thread is at it.
pub fn register(socket: i32) -> Result<(), Reason> {
    let forbidden = FORBIDDEN.load(Relaxed);
    if forbidden != 0 {
        return Err(Reason::from_u8(forbidden as u8));
    }
    if owner::process_slot() != 0 {
        return Ok(());
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    if owner::process_slot() != 0 {
        return Ok(());
    }
    let cookie = names::cookie(socket).ok_or(Reason::NotEligible)?;
    let registered = CLIENT.register(&Registration {
        socket,
        cookie,
        report: record::arena().map_or(0, |(address, _, _)| address),
        flags: if options::share() { SHARE } else { 0 },
        parent: PARENT.load(Relaxed) as u16,
    })?;
    let (status, directory, processes) = (
        registered.status,
        registered.directory,
        registered.processes,
    );
    if status.len < STATUS_BYTES
        || directory.len < DIRECTORY_BYTES
        || processes.len < PROCESSES_BYTES
    {
        return Err(Reason::Broken);
    }
    sys::register_membarrier();
    STATUS.store(registered.status.base, Release);
    DIRECTORY.store(registered.directory.base, Release);
    PROCESSES.store(registered.processes.base.cast(), Release);
    death::arm(registered.status.base);
    owner::set_process_slot(registered.slot);
    Ok(())
}

/// The directory of connections, once registered.
pub fn directory() -> Option<Directory> {
    let base = NonNull::new(DIRECTORY.load(Acquire))?;
    // SAFETY: the broker gave this memory for a directory; it is mapped for good.
    Some(unsafe { Directory::new(base) })
}

/// This process's status page, once registered.
pub fn status() -> Option<StatusPage> {
    let base = NonNull::new(STATUS.load(Acquire))?;
    // SAFETY: the broker gave this memory for a status page; it is mapped for good.
    Some(unsafe { StatusPage::new(base) })
}

impl Pair {
    /// The slab.
    #[inline(always)]
    pub fn slab(&'static self) -> &'static Slab {
        // SAFETY: a pair is handed out only once its id was seen, which is stored after the slab.
        let slab = unsafe { &*self.slab.get() };
        // SAFETY: as above.
        unsafe { slab.assume_init_ref() }
    }

    /// Which side of its channels this process is; by the names where both ends are here.
    pub fn side(&self, by_name: usize) -> Side {
        let is_own = self.peer.load(Relaxed) == u32::from(owner::process_slot());
        Side::from_u8(if is_own {
            by_name as u8
        } else {
            self.side.load(Relaxed) as u8
        })
    }

    /// The sides for which this process has to look at news: one, or both where both ends are here.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        let is_own = self.peer.load(Relaxed) == u32::from(owner::process_slot());
        let side = Side::from_u8(self.side.load(Relaxed) as u8);
        std::iter::once(side).chain(is_own.then_some(side.other()))
    }

    /// The record whose socket has this end of the channel; 0 if none here.
    pub fn record(&self, chan: u16, side: Side) -> u32 {
        self.records[side as usize][usize::from(chan) % CHANS].load(Acquire)
    }

    /// A socket of this process has taken an end of the channel.
    pub fn enter(&self, chan: u16, side: Side, record: u32) {
        self.users.fetch_add(1, Relaxed);
        self.burial.open();
        self.records[side as usize][usize::from(chan) % CHANS].store(record, Release);
    }

    /// It has left.
    pub fn leave(&self, chan: u16, side: Side) {
        if self.records[side as usize][usize::from(chan) % CHANS].swap(0, Relaxed) != 0 {
            self.rests_since.store(clock::now(), Relaxed);
            self.users.fetch_sub(1, Release);
        }
    }

    /// Whether the process on the other side lives, by its own mark ([`super::death`]), and as far as the broker has seen.
    #[inline(always)]
    pub fn is_peer_alive(&self) -> bool {
        let mark = self.mark.load(Relaxed);
        if !mark.is_null() {
            // SAFETY: line 0 of the peer's status page, which stays mapped as long as the slab.
            let word = unsafe { &*mark }.load(Acquire);
            if word != 0 {
                return !death::is_dead(word);
            }
        }
        let table = PROCESSES.load(Relaxed);
        if table.is_null() {
            return true;
        }
        let word = table.wrapping_add(self.peer.load(Relaxed) as usize % SLOTS);
        // SAFETY: the table has a word for each of the SLOTS slots, and is never unmapped.
        unsafe { &*word }.load(Relaxed) != 0
    }

    fn number(&self) -> u32 {
        self.id.load(Acquire).wrapping_sub(1)
    }
}

/// The pairs that are mapped, with their places.
#[inline(always)]
pub fn pairs() -> impl Iterator<Item = (u8, &'static Pair)> {
    let used = PLACES.load(Relaxed) as usize;
    (0u8..)
        .zip(PAIRS.iter().take(used))
        .filter(|(_, pair)| pair.id.load(Acquire) != 0)
}

/// Whether any slab is mapped: whether any socket here may have joined.
#[inline(always)]
pub fn has_pairs() -> bool {
    PLACES.load(Acquire) != 0
}

/// The pair in a place that [`super::promote::joined`] remembers.
#[inline(always)]
pub fn at(place: u8) -> &'static Pair {
    &PAIRS[usize::from(place) % PAIRS_MAX]
}

/// The place of a slab that is mapped here.
pub fn place_of(slab: u32) -> Option<u8> {
    pairs()
        .find(|(_, pair)| pair.number() == slab)
        .map(|(place, _)| place)
}

/// The place of a slab shared with the process in `peer` that still has a channel: mapped already, or asked for.
///
/// # Errors
/// Why there is none; [`Reason::Young`] while another thread is asking.
pub fn pair_with(peer: u16) -> Result<u8, Reason> {
    let mut full = 0;
    for (place, pair) in pairs().filter(|(_, pair)| pair.peer.load(Relaxed) == u32::from(peer)) {
        if pair.slab().channels().count() < CHANS {
            return Ok(place);
        }
        full += 1;
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let place = free_place()?;
    fill(place, CLIENT.pair(peer, full)?)
}

/// The places of the slabs shared with the process in `peer`.
pub fn places_with(peer: u16) -> impl Iterator<Item = u8> {
    pairs()
        .filter(move |(_, pair)| pair.peer.load(Relaxed) == u32::from(peer))
        .map(|(place, _)| place)
}

/// The place of one more slab shared with the process in `peer` than are mapped here, which are all full: the other end may
/// have got it already.
///
/// # Errors
/// Why there is none; [`Reason::Young`] if one that is mapped has room.
pub fn further_with(peer: u16) -> Result<u8, Reason> {
    let has_room = |place| at(place).slab().channels().count() < CHANS;
    if places_with(peer).any(has_room) {
        Err(Reason::Young)
    } else {
        pair_with(peer)
    }
}

/// Which side this process has in slabs shared with the process in `peer`; by the names where both ends are here.
///
/// # Errors
/// Why there is no slab with it.
pub fn side_towards(peer: u16, by_name: usize) -> Result<Side, Reason> {
    let place = match places_with(peer).next() {
        Some(place) => place,
        None => pair_with(peer)?,
    };
    Ok(at(place).side(by_name))
}

/// The place of a slab that another end named: mapped already, or asked for.
///
/// # Errors
/// Why there is none.
pub fn slab(number: u32) -> Result<u8, Reason> {
    if let Some(place) = place_of(number) {
        return Ok(place);
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let place = free_place()?;
    fill(place, CLIENT.slab(number)?)
}

/// A place for one more slab, under the gate.
fn free_place() -> Result<u8, Reason> {
    let rest = clock::cycles(REST_CYCLES_US);
    let now = clock::now();
    let rests = |pair: &Pair| {
        pair.users.load(Acquire) == 0 && now.wrapping_sub(pair.rests_since.load(Relaxed)) > rest
    };
    let all = || (0u8..).zip(&PAIRS);
    if let Some((place, _)) = all().find(|(_, pair)| pair.id.load(Relaxed) == 0) {
        return Ok(place);
    }
    let (place, pair) = all().find(|(_, pair)| rests(pair)).ok_or(Reason::Limit)?;
    pair.id.store(0, Release);
    // SAFETY: the gate is ours, and nobody else reads it.
    let memory = unsafe { &*pair.memory.get() };
    // SAFETY: the place was full, so its memory was written.
    let memory = unsafe { memory.assume_init_read() };
    for region in [memory.memory, memory.peer_status] {
        // SAFETY: no socket here has a channel in it, and none had for a second, far longer than any locked section.
        unsafe { region.unmap() };
    }
    Ok(place)
}

/// Puts a slab into a free place, under the gate.
fn fill(place: u8, paired: Paired) -> Result<u8, Reason> {
    if let Some(place) = place_of(paired.slab) {
        for region in [paired.memory, paired.peer_status] {
            // SAFETY: mapped a moment ago for nobody else.
            unsafe { region.unmap() };
        }
        return Ok(place);
    }
    if paired.peer_status.len < STATUS_BYTES {
        return Err(Reason::Broken);
    }
    let page = |region: Region| {
        let base = NonNull::new(region.base)?;
        // SAFETY: the broker gave this memory for a status page; it stays mapped as long as the slab.
        Some(unsafe { StatusPage::new(base) })
    };
    let own = Side::from_u8(paired.side);
    let is_own = paired.peer == owner::process_slot();
    let peers = if is_own {
        status()
    } else {
        page(paired.peer_status)
    };
    let mut pages = [if is_own { peers.clone() } else { None }, peers];
    if own == Side::High {
        pages.swap(0, 1);
    }
    let base = NonNull::new(paired.memory.base).ok_or(Reason::NoDaemon)?;
    // SAFETY: mapped shared and sealed by the broker, for as long as the place is in use.
    let slab =
        unsafe { Slab::attach(base, paired.memory.len, pages) }.map_err(|_| Reason::Broken)?;
    let pair = at(place);
    // SAFETY: the place is free and the gate is ours, so nobody reads or writes it.
    unsafe { pair.slab.get().write(MaybeUninit::new(slab)) };
    let mark = if is_own {
        std::ptr::null_mut()
    } else {
        paired.peer_status.base.cast()
    };
    // SAFETY: as above.
    unsafe { pair.memory.get().write(MaybeUninit::new(paired)) };
    pair.peer.store(u32::from(paired.peer), Relaxed);
    pair.side.store(u32::from(paired.side), Relaxed);
    pair.mark.store(mark, Relaxed);
    pair.burial.open();
    pair.users.store(0, Relaxed);
    pair.rests_since.store(clock::now(), Relaxed);
    pair.watched_at.store(0, Relaxed);
    pair.id.store(paired.slab + 1, Release);
    PLACES.fetch_max(u32::from(place) + 1, Relaxed);
    Ok(place)
}

/// One end of a channel in a place.
#[inline(always)]
pub fn link(place: u8, chan: u16, side: Side) -> Option<Link<'static>> {
    at(place).slab().link(chan, side)
}

/// In a forked child: what was mapped stays, the slot was the parent's.
pub fn forked(parent: u16) {
    PARENT.store(u32::from(parent), Relaxed);
    GATE.store(false, Relaxed);
    STATUS.store(std::ptr::null_mut(), Relaxed);
    death::forked();
}

/// Asks the broker to look after a slab that was pushed to, once a second at most: a reader that does not look at its
/// ring is found so. The broker takes the slab's flag at each look, and goes on for longer than a second after it found
/// one: so who has just flagged the slab need not ask again within a second. `is_due`: ask in any case, should the last
/// time have been in vain.
#[inline(always)]
pub fn watch(place: u8, is_due: bool) {
    let pair = at(place);
    if pair.slab().take_alarm() || is_due {
        ask_watch(pair);
    }
}

#[cold]
fn ask_watch(pair: &'static Pair) {
    let (now, before) = (clock::now(), pair.watched_at.load(Relaxed));
    if before != 0 && now.wrapping_sub(before) <= clock::cycles(WATCH_US) {
        return;
    }
    if pair
        .watched_at
        .compare_exchange(before, now, Relaxed, Relaxed)
        .is_ok()
    {
        CLIENT.watch(pair.number());
    }
}

/// The right to ask the broker and to fill places; given back when dropped.
struct Gate;

impl Gate {
    fn enter() -> Option<Self> {
        GATE.compare_exchange(false, true, Acquire, Relaxed)
            .is_ok()
            .then(|| Gate)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        GATE.store(false, Release);
    }
}
