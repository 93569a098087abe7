//! The memory that this process shares with each of its peers.
//!
//! # Ownership and lifetime
//! [`PAIRS`] holds every slab that is mapped. A slab whose last socket here was closed stays, since the same
//! processes tend to meet again; it is unmapped, and its place used anew, once the place has been without
//! sockets for [`IDLE_US`] and another pair needs one.
//!
//! # Synchronization
//! Places are filled under the [gate](Gate). A pair's `id` is stored last (release), and read first (acquire). Who has found a
//! place and entered no socket yet counts as a [`Seeker`]: its memory stays mapped.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use windlass_channel::client::{Client, Paired, Region};
use windlass_channel::layout::CHANS;
use windlass_channel::protocol::{Ends, Request};
use windlass_channel::{Link, Reason, Side, Slab, StatusPage};

use crate::options;
use crate::process::{identity, mark, status};
use crate::sys::{clock, kernel};

/// Slabs that a process has at a time: a wait looks at one word of each.
pub const PAIRS_MAX: usize = 64;
/// How long a place stays without sockets before another slab may take it.
const IDLE_US: u32 = 1_000_000;
/// How often the broker is asked to look after a slab, at most.
const WATCH_US: u32 = 1_000_000;
/// The way to the broker.
pub static CLIENT: Client = Client::new();

static GATE: AtomicBool = AtomicBool::new(false);
/// Grows with each broker.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// One above the highest place in use.
static PLACES: AtomicU32 = AtomicU32::new(0);

pub struct Pair {
    /// The slab's number + 1; 0: free.
    id: AtomicU32,
    peer: AtomicU32,
    side: AtomicU32,
    /// [`GENERATION`] of the broker that made it.
    generation: AtomicU32,
    /// The peer has other ids: the broker compares both sockets of each connection before it joins.
    proves: AtomicBool,
    /// Sockets of this process that have a channel in it.
    users: AtomicU32,
    /// When the last of them left, in cycles.
    idle_since: AtomicU64,
    /// When the broker was last asked to look after it, in cycles.
    watched_at: AtomicU64,
    /// The peer's mark of death; null where both ends are here.
    mark: AtomicPtr<AtomicU32>,
    /// The sockets of this process in it were seen to after the peer's death. One that enters the pair undoes it.
    pub is_seen_to: AtomicBool,
    slab: UnsafeCell<MaybeUninit<Slab>>,
    memory: UnsafeCell<MaybeUninit<Paired>>,
    /// The record on each side of each channel, 0 = none of this process.
    records: [[AtomicU32; CHANS]; 2],
}

// SAFETY: `slab` and `memory` are written under GATE while `id` is 0, and read only after `id` was seen (acquire).
unsafe impl Sync for Pair {}

// SAFETY: zeros are valid atomics, and room for what is written later.
static PAIRS: [Pair; PAIRS_MAX] = [const { unsafe { std::mem::zeroed() } }; PAIRS_MAX];

impl Pair {
    #[inline(always)]
    pub fn slab(&'static self) -> &'static Slab {
        // SAFETY: a pair is handed out only once its id was seen, which is stored after the slab.
        let slab = unsafe { &*self.slab.get() };
        // SAFETY: as above.
        unsafe { slab.assume_init_ref() }
    }

    /// Which side of its channels this process is; by the names where both ends are here.
    pub fn side(&self, by_name: usize) -> Side {
        let is_own = self.peer.load(Relaxed) == u32::from(identity::process_slot());
        Side::from_u8(if is_own {
            by_name as u8
        } else {
            self.side.load(Relaxed) as u8
        })
    }

    /// The record whose socket has this end of the channel; 0 if none here.
    pub fn record(&self, chan: u16, side: Side) -> u32 {
        self.records[side as usize][usize::from(chan) % CHANS].load(Acquire)
    }

    /// A socket of this process has taken an end of the channel.
    pub fn enter(&self, chan: u16, side: Side, record: u32) {
        self.users.fetch_add(1, Relaxed);
        self.is_seen_to.store(false, Release);
        self.records[side as usize][usize::from(chan) % CHANS].store(record, Release);
    }

    pub fn leave(&self, chan: u16, side: Side) {
        if self.records[side as usize][usize::from(chan) % CHANS].swap(0, Relaxed) != 0 {
            self.idle_since.store(clock::now(), Relaxed);
            self.users.fetch_sub(1, Release);
        }
    }

    /// Whether the process on the other side lives, by its own mark ([`crate::socket::peer_death`]), and as far as the broker has seen.
    #[inline(always)]
    pub fn is_peer_alive(&self) -> bool {
        let mark = self.mark.load(Relaxed);
        if mark.is_null() {
            return self.is_peer_known();
        }
        // SAFETY: line 0 of the peer's status page, which stays mapped as long as the slab.
        match unsafe { &*mark }.load(Acquire) {
            0 => self.is_peer_known(),
            word => !mark::is_dead(word),
        }
    }

    /// Whether it lives as far as the broker has seen.
    #[cold]
    fn is_peer_known(&self) -> bool {
        identity::process_word(self.peer.load(Relaxed) as u16)
            .is_none_or(|word| word.load(Relaxed) != 0)
    }

    fn number(&self) -> u32 {
        self.id.load(Acquire).wrapping_sub(1)
    }

    /// Whether connections join in it: it is of the broker that this process has registered with, and shared with the process
    /// in `peer`.
    fn is_with(&self, peer: u16) -> bool {
        self.peer.load(Relaxed) == u32::from(peer)
            && self.generation.load(Relaxed) == GENERATION.load(Relaxed)
    }

    /// Whether it is free, or no socket of this process has been in it for a while.
    fn is_idle(&self) -> bool {
        let since = clock::now().wrapping_sub(self.idle_since.load(Relaxed));
        self.id.load(Relaxed) == 0
            || self.users.load(Acquire) == 0 && since > clock::cycles(IDLE_US)
    }

    /// Gives up a resting place that is in use, under the gate.
    fn clear(&self) {
        self.id.store(0, SeqCst);
        if SEEKERS.load(SeqCst) > 1 {
            // Another thread may just have found it: the memory stays mapped.
            return;
        }
        // SAFETY: the gate is the caller's, and nobody else reads it.
        let memory = unsafe { &*self.memory.get() };
        // SAFETY: the place was in use, so its memory was written.
        let memory = unsafe { memory.assume_init_read() };
        // No socket here has a channel in it, and none had for a second, far longer than any locked section.
        unmap(memory);
    }
}

#[inline(always)]
pub fn pairs() -> impl Iterator<Item = (u8, &'static Pair)> {
    let used = PLACES.load(Relaxed) as usize;
    (0u8..)
        .zip(PAIRS.iter().take(used))
        .filter(|(_, pair)| pair.id.load(Acquire) != 0)
}

/// Whether any slab is mapped: whether any socket here may have joined. In one order with what a join looks at afterwards.
#[inline(always)]
pub fn has_pairs() -> bool {
    PLACES.load(SeqCst) != 0
}

/// The pair in a place that [`crate::socket::state::joined`] remembers.
#[inline(always)]
pub fn at(place: u8) -> &'static Pair {
    &PAIRS[usize::from(place) % PAIRS_MAX]
}

pub fn place_of(slab: u32) -> Option<u8> {
    pairs()
        .find(|(_, pair)| pair.number() == slab)
        .map(|(place, _)| place)
}

/// The place of a slab shared with the process in `peer` that still has a channel: mapped already, or asked for.
///
/// # Errors
/// Why there is none; [`Reason::Young`] while another thread is asking.
pub fn pair_with(peer: u16, ends: Ends) -> Result<u8, Reason> {
    let mut full = 0;
    for (place, pair) in pairs().filter(|(_, pair)| pair.is_with(peer)) {
        if pair.slab().channels().count() < CHANS {
            return Ok(place);
        }
        full += 1;
    }
    fill_by(&Request::Pair { peer, full, ends })
}

/// Whether the broker agrees that a channel of a slab is a connection of this socket, where it has to be asked.
///
/// # Errors
/// Why it does not; [`Reason::NoDaemon`], [`Reason::Limit`] and [`Reason::Young`] (a signal) if it did not say.
pub fn prove(slab: u32, chan: u16, socket: i32) -> Result<(), Reason> {
    let place = place_of(slab).ok_or(Reason::NotEligible)?;
    if !at(place).proves.load(Relaxed) {
        return Ok(());
    }
    let cookie = kernel::cookie(socket).map_err(|_| Reason::NotEligible)?;
    CLIENT.ask(&Request::Prove {
        slab,
        chan,
        socket,
        cookie,
    })
}

/// The places of the slabs shared with the process in `peer`.
pub fn places_with(peer: u16) -> impl Iterator<Item = u8> {
    pairs()
        .filter(move |(_, pair)| pair.is_with(peer))
        .map(|(place, _)| place)
}

/// Which side this process has in slabs shared with the process in `peer`; by the names where both ends are here.
///
/// # Errors
/// Why there is no slab with it.
pub fn side_towards(peer: u16, by_name: usize, ends: Ends) -> Result<Side, Reason> {
    let known = places_with(peer).next();
    let place = known.map_or_else(|| pair_with(peer, ends), Ok)?;
    Ok(at(place).side(by_name))
}

/// The place of a slab in which a record of this process's family has this side: mapped already, or asked for.
///
/// # Errors
/// Why there is none.
pub fn slab(slab: u32, side: u8) -> Result<u8, Reason> {
    place_of(slab).map_or_else(|| fill_by(&Request::Slab { slab, side }), Ok)
}

/// The place of a slab that the broker gives.
fn fill_by(request: &Request) -> Result<u8, Reason> {
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let place = free_place()?;
    fill(place, CLIENT.pair(request)?)
}

fn free_place() -> Result<u8, Reason> {
    let all = || (0u8..).zip(&PAIRS);
    if let Some((place, _)) = all().find(|(_, pair)| pair.id.load(Relaxed) == 0) {
        return Ok(place);
    }
    let found = all().find(|(_, pair)| pair.is_idle());
    let (place, pair) = found.ok_or(Reason::Limit)?;
    pair.clear();
    Ok(place)
}

fn unmap(paired: Paired) {
    for region in [paired.memory, paired.peer_status] {
        // SAFETY: the callers', who have it alone.
        unsafe { region.unmap() };
    }
}

/// Puts a slab into a free place, under the gate.
fn fill(place: u8, paired: Paired) -> Result<u8, Reason> {
    if let Some(place) = place_of(paired.slab) {
        unmap(paired);
        return Ok(place);
    }
    let page = |region: Region| {
        let base = NonNull::new(region.base)?;
        // SAFETY: the broker gave this memory for a status page; it stays mapped as long as the slab.
        Some(unsafe { StatusPage::new(base) })
    };
    let own = Side::from_u8(paired.side);
    let is_own = paired.peer == identity::process_slot();
    let peers = if is_own {
        Some(status::page())
    } else {
        page(paired.peer_status)
    };
    let mut pages = [if is_own { peers.clone() } else { None }, peers];
    if own == Side::High {
        pages.swap(0, 1);
    }
    let base = NonNull::new(paired.memory.base).ok_or(Reason::NoDaemon)?;
    // SAFETY: mapped shared and sealed by the broker, for as long as the place is in use.
    let slab = unsafe { Slab::attach(base, paired.memory.len, pages) }?;
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
    pair.generation.store(GENERATION.load(Relaxed), Relaxed);
    pair.proves.store(paired.proves, Relaxed);
    pair.side.store(u32::from(paired.side), Relaxed);
    pair.mark.store(mark, Relaxed);
    pair.is_seen_to.store(false, Release);
    pair.users.store(0, Relaxed);
    pair.idle_since.store(clock::now(), Relaxed);
    pair.watched_at.store(0, Relaxed);
    pair.id.store(paired.slab + 1, Release);
    PLACES.fetch_max(u32::from(place) + 1, SeqCst);
    Ok(place)
}

#[inline(always)]
pub fn link(place: u8, chan: u16, side: Side) -> Option<Link<'static>> {
    at(place).slab().link(chan, side)
}

/// Asks the broker to look after a slab that was pushed to, once a second at most: a reader that does not look at its ring is found
/// so. The broker takes the slab's flag at each look, and goes on for longer than a second after it found one: so who has just
/// flagged the slab need not ask again within a second. `is_due`: ask in any case, should the last time have been in vain.
#[inline(always)]
pub fn watch(pair: &'static Pair, is_due: bool) {
    if pair.slab().take_alarm() || is_due {
        ask_watch(pair);
    }
}

#[cold]
fn ask_watch(pair: &'static Pair) {
    let (now, at) = (clock::now(), &pair.watched_at);
    let before = at.load(Relaxed);
    let is_early = before != 0 && now.wrapping_sub(before) <= clock::cycles(WATCH_US);
    let is_due = options::nets() != 0 && !is_early;
    if is_due && at.compare_exchange(before, now, Relaxed, Relaxed).is_ok() {
        CLIENT.watch(pair.number());
    }
}

/// The right to ask the broker and to fill places; given back when dropped.
pub(super) struct Gate;

impl Gate {
    /// None: another thread has it.
    pub(super) fn enter() -> Option<Self> {
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

static SEEKERS: AtomicU32 = AtomicU32::new(0);

/// As long as it lives, the calling thread may use a place that it has found and no socket has entered.
pub struct Seeker;

impl Seeker {
    /// Before the first look at the places.
    pub fn enter() -> Self {
        SEEKERS.fetch_add(1, SeqCst);
        Self
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        SEEKERS.fetch_sub(1, SeqCst);
    }
}

/// Whether a pair with the process in `peer`, of this broker or of a former one, says that it has ended.
pub(super) fn is_marked_dead(peer: u16) -> bool {
    let mut its = pairs().filter(|(_, pair)| pair.peer.load(Relaxed) == u32::from(peer));
    its.any(|(_, pair)| !pair.is_peer_alive())
}

pub(super) fn are_idle() -> bool {
    PAIRS.iter().all(Pair::is_idle)
}

/// The broker has ended: idle pairs go, and further connections join in pairs of the next one. Under the gate.
pub(super) fn renew() {
    let idle = |pair: &&Pair| pair.id.load(Relaxed) != 0 && pair.is_idle();
    PAIRS.iter().filter(idle).for_each(Pair::clear);
    GENERATION.fetch_add(1, SeqCst);
}

/// In a forked child: nobody looks for a place, or asks the broker.
pub(super) fn forked() {
    windlass_channel::client::forked();
    SEEKERS.store(0, Relaxed);
    GATE.store(false, Relaxed);
}
