//! What this process shares with others: its registration, and the memory of each pair.
//!
//! # States
//! A process is *unregistered* until its first connection is worth a ring; then the broker gives it a slot, a status
//! page and the directory, and it stays *registered*. A forked child is unregistered again, keeps the pairs that it
//! inherited, and asks for a slot of its own at its first locked section. A process whose broker has ended is
//! *orphaned*: what has joined goes on, and it registers with the next broker as soon as there is one. It keeps its slot as long
//! as sockets of it are in channels, whose memory, status page and mark of death stay as they are ([`FORMERS`]); connections
//! join in slabs of the new broker alone.
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
//!
//! A thread asleep in an epoll instance has raised a line of the status page ([`raise`]), and of those before, which older peers
//! look at. Where the page is changed meanwhile, the same line of the new one is up as well ([`CARRIED`]) until nobody sleeps by
//! the old one:
//!
//! | sleeper | who registers anew |
//! | --- | --- |
//! | raises the line of the page; *fence* | stores the new page; *fence* |
//! | looks whether it is still the page; else once more | looks at the lines of the old page, carries those that are up |

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};

use windlass_channel::client::{Client, Paired, Region, Registration};
use windlass_channel::directory::Directory;
use windlass_channel::layout::{CHANS, DIRECTORY_BYTES, STATUS_BYTES, STATUS_LINES};
use windlass_channel::protocol::{BROKER_SLOT, Ends, PROCESSES_BYTES, RETURNS, SHARE, SLOTS};
use windlass_channel::{
    Alive, Life, Link, Owner, Reason, SLOT_FIRST, Side, Slab, StatusPage, Who, sys,
};

use super::death::{self, Burial};
use super::{clock, kernel, names, promote, rest};
use crate::{options, owner, record};

/// Slabs that a process has at a time: a wait looks at one word of each.
pub const PAIRS_MAX: usize = 64;
/// How long a place rests without sockets before another slab may take it.
const REST_CYCLES_US: u32 = 1_000_000;

/// Brokers over which a process can hold joined connections.
const FORMERS_MAX: usize = 8;

/// How often the broker is asked to look after a slab, at most.
const WATCH_US: u32 = 1_000_000;

/// The way to the broker.
pub static CLIENT: Client = Client::new();

static GATE: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Stands for the status page while the process has none.
static UNSHOWN: Unshown = Unshown([const { AtomicU32::new(0) }; STATUS_BYTES / 4]);
/// Lines of the status page, a bit each, that are up once more for sleepers who have raised those of the page before.
static CARRIED: AtomicU64 = AtomicU64::new(0);
/// The broker is alive and cannot be seen: its process id means nothing here.
static IS_BROKER_UNSEEN: AtomicBool = AtomicBool::new(false);
/// Status pages that this process had from former brokers while connections of it were joined, and how many.
static FORMER_PAGES: [AtomicPtr<u8>; FORMERS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FORMERS_MAX];
static FORMERS: AtomicU32 = AtomicU32::new(0);
/// Process id of the broker that this process has registered with.
static BROKER: AtomicU32 = AtomicU32::new(0);
/// Grows with each broker.
static GENERATION: AtomicU32 = AtomicU32::new(0);
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
    /// [`GENERATION`] of the broker that made it.
    generation: AtomicU32,
    /// The peer has other ids: the broker compares both sockets of each connection before it joins.
    proves: AtomicBool,
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
        generation: AtomicU32::new(0),
        proves: AtomicBool::new(false),
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
        let Some(word) = process_word(owner.process()) else {
            return Life::Lives;
        };
        if owner.process() == owner::process_slot() {
            return Life::Lives;
        }
        // The broker may be late, or gone. A mark is of a thread, and an id may be another process's in another namespace: only
        // both say that no thread is left.
        let is_marked = |slot| {
            let mut its = pairs().filter(|(_, pair)| pair.peer.load(Relaxed) as u16 == slot);
            slot == BROKER_SLOT || its.any(|(_, pair)| !pair.is_peer_alive())
        };
        match word.load(Relaxed) {
            0 => Life::Dead,
            pid if is_marked(owner.process()) && !kernel::lives(pid) => Life::Dead,
            _ => Life::Lives,
        }
    }
}

/// The calling thread, for locks; none while the process is not registered.
#[inline(always)]
pub fn who() -> Option<Who<'static>> {
    who_of(owner::owner()?)
}

/// The thread with this lock word.
#[inline(always)]
pub fn who_of(word: u32) -> Option<Who<'static>> {
    let owner = Owner::new((word >> 16) as u16, word as u16)?;
    Some(Who {
        owner,
        alive: &Processes,
    })
}

/// The lock word of the calling thread of a process that was forked after it had joined: it asks for a slot of its own
/// first.
pub fn word_or_register(socket: i32) -> Option<u32> {
    owner::owner().or_else(|| {
        let _seeker = Seeker::enter();
        register(socket).ok()?;
        owner::owner()
    })
}

/// The calling process in its parent's name, for a short moment: it was forked from one that had joined, and got no slot.
pub fn heir() -> Option<Who<'static>> {
    let owner = Owner::new(owner::parent_slot(), owner::NO_SLOT as u16)?;
    Some(Who {
        owner,
        alive: &Processes,
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

/// The word of the table of processes that belongs to a slot; `None` before the first registration.
fn process_word(slot: u16) -> Option<&'static AtomicU32> {
    let table = PROCESSES.load(Acquire);
    if table.is_null() {
        return None;
    }
    let word = table.wrapping_add(usize::from(slot) % SLOTS);
    // SAFETY: the table has a word for each of the SLOTS slots, and is never unmapped.
    Some(unsafe { &*word })
}

/// When the broker was last seen alive, in cycles, and for how long that is believed, in microseconds: sockets that never join
/// list themselves over and over.
static BROKER_SEEN_AT: AtomicU64 = AtomicU64::new(0);
const BROKER_SEEN_US: u32 = 10_000;

/// Whether the broker that this process, or the one from which it was forked, has registered with has ended.
fn is_orphaned() -> bool {
    let now = clock::now();
    if now.wrapping_sub(BROKER_SEEN_AT.load(Relaxed)) < clock::cycles(BROKER_SEEN_US) {
        return false;
    }
    let Some(word) = process_word(BROKER_SLOT) else {
        return false;
    };
    let broker = BROKER.load(Relaxed);
    let is_replaced = word.load(Relaxed) != broker;
    let has_ended = is_replaced || !IS_BROKER_UNSEEN.load(Relaxed) && !kernel::lives(broker);
    BROKER_SEEN_AT.store(if has_ended { 0 } else { now }, Relaxed);
    has_ended
}

/// Makes sure that this process is registered.
///
/// # Errors
/// Why it is not; [`Reason::Young`] while another thread is at it, [`Reason::NoDaemon`] also where an orphaned process has joined
/// connections and does not get its slot again.
pub fn register(socket: i32) -> Result<(), Reason> {
    let forbidden = FORBIDDEN.load(Relaxed);
    if forbidden != 0 {
        return Err(Reason::from_u8(forbidden as u8));
    }
    if owner::process_slot() != 0 && !is_orphaned() {
        return Ok(());
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let is_orphan = is_orphaned();
    if owner::process_slot() != 0 && !is_orphan {
        return Ok(());
    }
    let slot = owner::process_slot();
    let holds = is_orphan && PAIRS.iter().any(|pair| !pair.is_resting());
    let is_full = FORMERS.load(Relaxed) as usize == FORMERS_MAX;
    if is_orphan && CARRIED.load(Acquire) != 0 || holds && (is_full || slot == 0) {
        return Err(Reason::NoDaemon);
    }
    let cookie = names::cookie(socket).ok_or(Reason::NotEligible)?;
    let share = if options::share() { SHARE } else { 0 };
    let registered = CLIENT.register(&Registration {
        socket,
        cookie,
        report: record::arena().map_or(0, |(address, _, _)| address),
        flags: if holds { share | RETURNS } else { share },
        parent: match (holds, is_orphan) {
            (true, _) => slot,
            (false, true) => 0,
            (false, false) => PARENT.load(Relaxed) as u16,
        },
    })?;
    if holds && registered.slot != slot {
        return Err(Reason::NoDaemon);
    }
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
    if is_orphan {
        let resting = |pair: &&Pair| pair.id.load(Relaxed) != 0 && pair.is_resting();
        PAIRS.iter().filter(resting).for_each(Pair::clear);
        GENERATION.fetch_add(1, SeqCst);
    }
    change_status(registered.status.base, holds);
    DIRECTORY.store(registered.directory.base, Release);
    PROCESSES.store(registered.processes.base.cast(), Release);
    let broker = process_word(BROKER_SLOT).map_or(0, |word| word.load(Relaxed));
    BROKER.store(broker, Relaxed);
    // It has just answered.
    IS_BROKER_UNSEEN.store(!kernel::lives(broker), Relaxed);
    death::arm(registered.status.base);
    owner::set_process_slot(registered.slot);
    if is_orphan {
        promote::list_anew();
    }
    Ok(())
}

/// Memory of a status page.
#[repr(align(128))]
struct Unshown([AtomicU32; STATUS_BYTES / 4]);

impl Unshown {
    fn page(&self) -> NonNull<u8> {
        NonNull::from(&self.0).cast()
    }

    fn line(&self, line: u8) -> &AtomicU32 {
        &self.0[usize::from(line) * (STATUS_BYTES / 4 / STATUS_LINES)]
    }
}

/// A line of the status page, and of so many before, that the calling thread has raised.
#[derive(Clone, Copy)]
pub struct Raised {
    page: *mut u8,
    formers: usize,
    line: u8,
}

/// Status pages of former brokers that older peers look at.
pub fn former_pages() -> impl Iterator<Item = *mut u8> {
    let count = FORMERS.load(SeqCst) as usize;
    let pages = FORMER_PAGES.iter().take(count);
    pages.map(|page| page.load(Acquire))
}

/// The status page at an address that was [`STATUS`] once.
fn page_at(base: *mut u8) -> StatusPage {
    let base = NonNull::new(base).unwrap_or(UNSHOWN.page());
    // SAFETY: the broker gave this memory for a status page, and it is mapped for good; or it is [`UNSHOWN`].
    unsafe { StatusPage::new(base) }
}

/// Shows that an epoll instance is about to sleep, by its line. A full fence.
pub fn raise(line: u8) -> Raised {
    loop {
        let base = STATUS.load(SeqCst);
        let mut formers = 0;
        for former in former_pages() {
            page_at(former).raise(line);
            formers += 1;
        }
        page_at(base).raise(line);
        let raised = Raised {
            page: base,
            formers,
            line,
        };
        if STATUS.load(SeqCst) == base {
            return raised;
        }
        lower(raised);
    }
}

/// Shows that it is awake again.
pub fn lower(raised: Raised) {
    let Raised {
        page: base,
        formers,
        line,
    } = raised;
    let page = page_at(base);
    page.lower(line);
    former_pages()
        .take(formers)
        .for_each(|former| page_at(former).lower(line));
    if STATUS.load(SeqCst) != base {
        carry_no_more(&page, line);
    }
}

/// Lowers the line for sleepers by an older page, if there are none any more.
#[cold]
fn carry_no_more(before: &StatusPage, line: u8) {
    let bit = 1_u64 << (line % 64);
    fence(SeqCst);
    if !before.is_asleep(line) && CARRIED.fetch_and(!bit, SeqCst) & bit != 0 {
        page_at(STATUS.load(SeqCst)).lower(line);
    }
}

/// Another page is this process's status page from now on; older peers look at the one before, if `is_kept`. Under the gate.
fn change_status(base: *mut u8, is_kept: bool) {
    let before = STATUS.load(SeqCst);
    let formers = FORMERS.load(Relaxed);
    if let Some(place) = FORMER_PAGES.get(formers as usize).filter(|_| is_kept) {
        place.store(before, Release);
        FORMERS.store(formers + 1, SeqCst);
    }
    let before = page_at(STATUS.swap(base, SeqCst));
    fence(SeqCst);
    let page = page_at(base);
    for line in (SLOT_FIRST..STATUS_LINES as u8).filter(|line| before.is_asleep(*line)) {
        page.raise(line);
        CARRIED.fetch_or(1 << (line % 64), SeqCst);
        carry_no_more(&before, line);
    }
}

/// The directory of connections, once registered.
pub fn directory() -> Option<Directory> {
    let base = NonNull::new(DIRECTORY.load(Acquire))?;
    // SAFETY: the broker gave this memory for a directory; it is mapped for good.
    Some(unsafe { Directory::new(base) })
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
        process_word(self.peer.load(Relaxed) as u16).is_none_or(|word| word.load(Relaxed) != 0)
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
    fn is_resting(&self) -> bool {
        let since = clock::now().wrapping_sub(self.rests_since.load(Relaxed));
        self.id.load(Relaxed) == 0
            || self.users.load(Acquire) == 0 && since > clock::cycles(REST_CYCLES_US)
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
        for region in [memory.memory, memory.peer_status] {
            // SAFETY: no socket here has a channel in it, and none had for a second, far longer than any locked section.
            unsafe { region.unmap() };
        }
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

/// Whether any slab is mapped: whether any socket here may have joined. In one order with what a join looks at afterwards.
#[inline(always)]
pub fn has_pairs() -> bool {
    PLACES.load(SeqCst) != 0
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
pub fn pair_with(peer: u16, ends: Ends) -> Result<u8, Reason> {
    let mut full = 0;
    for (place, pair) in pairs().filter(|(_, pair)| pair.is_with(peer)) {
        if pair.slab().channels().count() < CHANS {
            return Ok(place);
        }
        full += 1;
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let place = free_place()?;
    fill(place, CLIENT.pair(peer, full, ends)?)
}

/// Whether the broker agrees that a channel of a slab is a connection of this socket, where it has to be asked.
///
/// # Errors
/// Why it does not; [`Reason::NoDaemon`] and [`Reason::Limit`] if it did not say.
pub fn prove(slab: u32, chan: u16, socket: i32) -> Result<(), Reason> {
    let place = place_of(slab).ok_or(Reason::NotEligible)?;
    if !at(place).proves.load(Relaxed) {
        return Ok(());
    }
    let cookie = names::cookie(socket).ok_or(Reason::NotEligible)?;
    CLIENT.prove(slab, chan, socket, cookie)
}

/// The places of the slabs shared with the process in `peer`.
pub fn places_with(peer: u16) -> impl Iterator<Item = u8> {
    pairs()
        .filter(move |(_, pair)| pair.is_with(peer))
        .map(|(place, _)| place)
}

/// The place of one more slab shared with the process in `peer` than are mapped here, which are all full: the other end may
/// have got it already.
///
/// # Errors
/// Why there is none; [`Reason::Young`] if one that is mapped has room.
pub fn further_with(peer: u16, ends: Ends) -> Result<u8, Reason> {
    let has_room = |place| at(place).slab().channels().count() < CHANS;
    if places_with(peer).any(has_room) {
        Err(Reason::Young)
    } else {
        pair_with(peer, ends)
    }
}

/// Which side this process has in slabs shared with the process in `peer`; by the names where both ends are here.
///
/// # Errors
/// Why there is no slab with it.
pub fn side_towards(peer: u16, by_name: usize, ends: Ends) -> Result<Side, Reason> {
    let place = match places_with(peer).next() {
        Some(place) => place,
        None => pair_with(peer, ends)?,
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
    let all = || (0u8..).zip(&PAIRS);
    if let Some((place, _)) = all().find(|(_, pair)| pair.id.load(Relaxed) == 0) {
        return Ok(place);
    }
    let found = all().find(|(_, pair)| pair.is_resting());
    let (place, pair) = found.ok_or(Reason::Limit)?;
    pair.clear();
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
        Some(page_at(STATUS.load(Acquire)))
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
    pair.generation.store(GENERATION.load(Relaxed), Relaxed);
    pair.proves.store(paired.proves, Relaxed);
    pair.side.store(u32::from(paired.side), Relaxed);
    pair.mark.store(mark, Relaxed);
    pair.burial.open();
    pair.users.store(0, Relaxed);
    pair.rests_since.store(clock::now(), Relaxed);
    pair.watched_at.store(0, Relaxed);
    pair.id.store(paired.slab + 1, Release);
    PLACES.fetch_max(u32::from(place) + 1, SeqCst);
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
    (SLOT_FIRST..STATUS_LINES as u8).for_each(|line| UNSHOWN.line(line).store(0, Relaxed));
    CARRIED.store(0, Relaxed);
    FORMERS.store(0, Relaxed);
    SEEKERS.store(0, Relaxed);
    death::forked();
    rest::forked();
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

/// Threads that look for a place or register.
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
