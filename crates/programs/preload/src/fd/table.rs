//! The table: what this process knows of each descriptor number.
//!
//! *Where it sits.* Every interposed call looks its number up here first. The table is mapped when the first socket is made; before
//! that, and for numbers beyond it, every descriptor is the kernel's, and the look-up is one load.
//!
//! *Model.* An entry is 16 bytes: a word with kind, flags, generation and the index of the record
//! ([`crate::fd::record`]), and one word that says where its channel is. The word changes only as a whole.
//!
//! *States of a number.* [`UNKNOWN`]: nothing known; the first data call on it asks the kernel once.
//! [`OTHER`]: no socket of ours; nothing is done. [`LISTENER`], [`TRACKED`], [`EPOLL`]: there is a
//! record. A close that we see makes it unknown; a number that a call gives although it is in the table
//! was closed out of our sight: it is dropped then.
//!
//! *Synchronization.* One acquire load on the fast path; writers swap whole words. The generation
//! grows with each change, so that a call that spins notices that its number was closed.
//!
//! *Processes.* A forked child has a copy and holds each record once more ([`fork_prepare`]). The child
//! of a `vfork` uses its parent's table with other descriptors: [`identity::is_ours`] tells it by its process id, and
//! then nothing is changed. A fork and a change of the table exclude each other.
//!
//! *Limits.* [`ENTRIES_MAX`] numbers; the process's hard limit at the first socket.

use windlass_channel::{Reason, sys};

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::counts::counters::{self, Counter};
use crate::fd::{
    UPCALLS,
    call::Sock,
    record::{self, Kind, Origin, flag},
    tell,
};
use crate::process::{
    identity::{self, Thread},
    signals,
};
use crate::sys::{
    kernel::{self, Backoff},
    reserved::Reserved,
};

pub const UNKNOWN: u8 = 0;
/// Not a socket that we care for.
pub const OTHER: u8 = 1;
/// A listening socket; it has a record.
pub const LISTENER: u8 = 2;
/// An epoll instance; it has a record.
pub const EPOLL: u8 = 3;
/// A socket for data; it has a record.
pub const TRACKED: u8 = 4;

/// Flag of a word: the number is the library's own, of a socket that the program has closed while calls wait on it.
const PRIVATE: u16 = 1 << 8;

/// Entries at most: 64 MiB of address space, touched as used.
pub const ENTRIES_MAX: u32 = 4 << 20;

#[repr(C, align(16))]
struct Entry {
    word: AtomicU64,
    ring: AtomicU64,
}

impl Sock {
    /// Whether the number still names the same socket: one load. A call that spins looks at it, since
    /// another thread may close the number.
    #[inline(always)]
    pub fn still(&self) -> bool {
        word(self.fd) == self.word
    }

    /// The index of the record in the arena.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        record_of(self.word)
    }
}

/// Beside each other, since both are read by every call.
#[repr(C, align(64))]
struct Place {
    entries: AtomicU32,
    highest: AtomicU32,
    base: Reserved<Entry>,
}

static PLACE: Place = Place {
    entries: AtomicU32::new(0),
    highest: AtomicU32::new(0),
    base: Reserved::new(),
};

#[inline(always)]
fn entry(fd: c_int) -> Option<&'static Entry> {
    if fd as u32 >= PLACE.entries.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: `entries` is set after `base`, to the number of entries there.
    Some(unsafe { PLACE.base.at(fd as usize) })
}

/// The word of a number; [`OTHER`] where there is no table.
#[inline(always)]
pub fn word(fd: c_int) -> u64 {
    match entry(fd) {
        Some(entry) => entry.word.load(Ordering::Acquire),
        None => u64::from(OTHER),
    }
}

#[inline(always)]
pub fn is_entered(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| kind_of(entry.word.load(Ordering::Relaxed)) != UNKNOWN)
}

/// A number that is none of ours is about to be closed.
pub fn forget_other(fd: c_int) {
    let word = word(fd);
    if let Some(entry) = entry(fd).filter(|_| kind_of(word) == OTHER) {
        let new = word & !0xff;
        let _ = entry
            .word
            .compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The numbers in `first..=last` that are none of ours are about to be closed.
pub fn forget_other_range(first: u32, last: u32) {
    numbers(first, last).for_each(forget_other);
}

/// Where the channel of a number is ([`crate::socket::state`]); 0 after every change of the number.
pub fn ring_word(fd: c_int) -> Option<&'static AtomicU64> {
    entry(fd).map(|entry| &entry.ring)
}

#[inline(always)]
pub fn kind_of(word: u64) -> u8 {
    word as u8
}

/// The index of the record in a word whose kind is at least [`LISTENER`].
#[inline(always)]
pub fn record_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline(always)]
fn sock(fd: c_int, word: u64) -> Sock {
    let record = record::at(record_of(word));
    Sock { fd, word, record }
}

/// The socket behind a number, if calls for data on it go to the dispatch.
#[inline(always)]
pub fn tracked(fd: c_int) -> Option<Sock> {
    let word = match word(fd) {
        word if kind_of(word) == OTHER => return None,
        word if kind_of(word) == TRACKED => word,
        word if kind_of(word) == UNKNOWN => find(fd, word)?,
        _ => return None,
    };
    Some(sock(fd, word))
}

/// The socket behind a number if that is known without asking the kernel; for scans.
#[inline(always)]
pub fn known(fd: c_int) -> Option<Sock> {
    let word = word(fd);
    (kind_of(word) == TRACKED).then(|| sock(fd, word))
}

/// The socket behind a number, if `is_it` says so of its [ring word](ring_word), which comes with it.
#[inline(always)]
pub fn joined(fd: c_int, is_it: impl FnOnce(u64) -> bool) -> Option<(Sock, u64)> {
    let entry = entry(fd)?;
    let word = entry.word.load(Ordering::Acquire);
    let ring = entry.ring.load(Ordering::Relaxed);
    (kind_of(word) == TRACKED && is_it(ring)).then(|| (sock(fd, word), ring))
}

#[inline(always)]
pub fn epoll(fd: c_int) -> Option<Sock> {
    let word = word(fd);
    (kind_of(word) == EPOLL).then(|| sock(fd, word))
}

/// Whatever has a record: socket, listener or epoll instance.
#[inline(always)]
pub fn any(fd: c_int) -> Option<Sock> {
    let word = word(fd);
    (kind_of(word) >= LISTENER).then(|| sock(fd, word))
}

/// Whether there is a table: whether a socket was ever made in our sight.
#[inline(always)]
pub fn exists() -> bool {
    PLACE.entries.load(Ordering::Relaxed) != 0
}

/// Maps table and arena unless they are there. False: everything stays the kernel's.
pub fn make() -> bool {
    if exists() {
        return true;
    }
    if !identity::has_threads() {
        // With threads it waits for every processor, which would be in the middle of a send or a receive that joins.
        sys::register_membarrier();
    }
    if is_retired()
        || !identity::is_started()
        || !record::make_arena()
        || !UPCALLS.get().is_some_and(|up| (up.make)())
    {
        return false;
    }
    let entries = kernel::descriptors_max().min(u64::from(ENTRIES_MAX)) as u32;
    let count = entries as usize;
    if !PLACE
        .base
        .make(count, libc::MAP_PRIVATE, libc::MADV_DONTDUMP, |_| {})
    {
        return false;
    }
    signals::guard();
    PLACE.entries.store(entries, Ordering::Release);
    true
}

static RETIRED: AtomicBool = AtomicBool::new(false);

/// Puts the table away for good: no number is ours from now on, and the family counts this process as one that it hears nothing of.
pub fn retire() {
    each().for_each(|sock| record::inherit(sock.index()));
    if record::is_shared() {
        let_go();
    }
    RETIRED.store(true, Ordering::Release);
    PLACE.entries.store(0, Ordering::Release);
}

pub fn is_retired() -> bool {
    RETIRED.load(Ordering::Acquire)
}

/// Changes of the table that are under way, and the thread that forks: a fork waits for the first and for another fork, and
/// they for it, so that the copy and the counts of holders agree.
static CHANGES: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
/// A signal handler may fork in the middle of a change, which then does not end: the wait is bounded.
const FORK_WAITS: usize = 1_000;

fn begin_change() {
    let me = std::ptr::from_ref(identity::thread()).cast_mut();
    let mut backoff = Backoff::default();
    loop {
        CHANGES.fetch_add(1, Ordering::SeqCst);
        let forks = FORKS.load(Ordering::SeqCst);
        if forks.is_null() || forks == me {
            return;
        }
        CHANGES.fetch_sub(1, Ordering::SeqCst);
        backoff.wait();
    }
}

fn end_change() {
    CHANGES.fetch_sub(1, Ordering::SeqCst);
}

/// The number gets this word, if its word is still `old` (`None`: whatever it is), and its old record is let go.
fn put_if(fd: c_int, old: Option<u64>, kind: impl Into<u16>, index: u32) -> bool {
    let Some(entry) = entry(fd) else { return false };
    let kind = kind.into();
    if kind != u16::from(UNKNOWN) && fd as u32 > PLACE.highest.load(Ordering::Relaxed) {
        PLACE.highest.fetch_max(fd as u32, Ordering::Relaxed);
    }
    begin_change();
    let swapped = entry
        .word
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            let generation = (now >> 16).wrapping_add(1) & 0xffff;
            let new = u64::from(kind) | generation << 16 | u64::from(index) << 32;
            old.is_none_or(|old| old == now).then_some(new)
        });
    let Ok(now) = swapped else {
        end_change();
        return false;
    };
    entry.ring.store(0, Ordering::Relaxed);
    if kind_of(now) >= LISTENER {
        record::release(record_of(now));
    }
    end_change();
    true
}

fn put(fd: c_int, kind: impl Into<u16>, index: u32) {
    put_if(fd, None, kind, index);
}

/// A call gave this number and it is none of ours.
#[inline(always)]
pub fn other(fd: c_int) {
    if word(fd) as u8 != OTHER {
        other_slow(fd);
    }
}

#[cold]
fn other_slow(fd: c_int) {
    if fd >= 0 && identity::is_ours() {
        vanish(fd);
        put(fd, OTHER, 0);
    }
}

fn vanish(fd: c_int) {
    if let Some(sock) = any(fd) {
        tell(|up| (up.vanished)(sock));
        put(fd, UNKNOWN, 0);
    }
}

/// A call gave this number, and it is a fresh socket or epoll instance.
pub fn made(fd: c_int, kind: Kind, origin: Origin) -> Option<Sock> {
    if fd < 0 || !make() || entry(fd).is_none() || !identity::is_ours() {
        return None;
    }
    vanish(fd);
    let Some(index) = record::take(kind, origin) else {
        put(fd, OTHER, 0);
        return None;
    };
    put(fd, if kind == Kind::Epoll { EPOLL } else { TRACKED }, index);
    counters::add(Counter::Sockets, 1);
    keep_low_on_kernel(fd);
    any(fd)
}

pub fn listens(sock: Sock) {
    if let Some(entry) = entry(sock.fd).filter(|_| sock.still()) {
        sock.record.set(flag::LISTENS);
        let new = sock.word & !0xff | u64::from(LISTENER);
        let _ = entry
            .word
            .compare_exchange(sock.word, new, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// `number` now names what `sock` names.
pub fn duplicated(sock: Sock, number: c_int) {
    if !identity::is_ours() {
        sock.record.set(flag::INHERITED);
        return;
    }
    vanish(number);
    record::hold(sock.index());
    if entry(number).is_none() {
        // Beyond the table: it writes without our seeing it.
        tell(|up| (up.demote)(&sock, Reason::Limit));
        return;
    }
    put(number, kind_of(sock.word), sock.index());
    keep_low_on_kernel(number);
}

/// `number` names what `sock` names, for the library alone.
pub fn keep(sock: &Sock, number: c_int) {
    vanish(number);
    record::hold(sock.index());
    put(
        number,
        u16::from(kind_of(sock.word)) | PRIVATE,
        sock.index(),
    );
}

/// Whether the number of this word is the library's own.
pub fn is_private(word: u64) -> bool {
    word & u64::from(PRIVATE) != 0
}

/// In a forked child: a number of its parent's library is not kept.
pub fn forget_private(sock: &Sock) {
    put_if(sock.fd, Some(sock.word), UNKNOWN, 0);
}

/// The number is about to be closed by this process: after this it is unknown.
pub fn closing(sock: Sock) {
    tell(|up| (up.before_close)(sock));
    put_if(sock.fd, Some(sock.word), UNKNOWN, 0);
    tell(|up| (up.closed)(sock.index()));
}

/// The number was closed out of our sight and is another file's, as the kernel says.
pub fn changed(sock: &Sock) {
    if sock.still() && identity::is_ours() {
        vanish(sock.fd);
    }
}

/// A data call on an unknown number: asks the kernel what it is. If the number changes meanwhile, nothing is entered.
///
/// It gives a word, which fits into a register. A [`Sock`] would come in memory, as would those of all calls then.
#[cold]
#[inline(never)]
fn find(fd: c_int, word: u64) -> Option<u64> {
    if fd < 0 || !identity::is_ours() {
        return None;
    }
    ask(fd, word, Origin::Found).map(|sock| sock.word)
}

/// Asks the kernel what a number is that no call of ours has given, and enters it.
fn ask(fd: c_int, word: u64, origin: Origin) -> Option<Sock> {
    match kernel::cookie(fd) {
        Ok(cookie) => enter_found(fd, word, cookie, origin),
        Err(error) => {
            if error != libc::EBADF {
                put_if(fd, Some(word), OTHER, 0);
            }
            None
        }
    }
}

/// Enters a socket that was not made by a call of ours: it may be one that we know by another number.
fn enter_found(fd: c_int, word: u64, cookie: u64, origin: Origin) -> Option<Sock> {
    let same = each().find(|sock| sock.record.cookie_by(sock.fd) == cookie);
    if let Some(sock) = same {
        record::hold(sock.index());
        if !put_if(fd, Some(word), kind_of(sock.word), sock.index()) {
            record::release(sock.index());
            return None;
        }
        keep_low_on_kernel(fd);
        return known(fd);
    }
    let Some(index) = kind_of_socket(fd).and_then(|kind| record::take(kind, origin)) else {
        put_if(fd, Some(word), OTHER, 0);
        return None;
    };
    let record = record::at(index);
    record.cookie.store(cookie, Ordering::Relaxed);
    let listens = option(fd, libc::SO_ACCEPTCONN) == Some(1);
    if listens {
        record.set(flag::LISTENS);
    }
    if origin == Origin::Found {
        record.set(flag::UNCOUNTED_WRITER);
    }
    let kind = if listens { LISTENER } else { TRACKED };
    if !put_if(fd, Some(word), kind, index) {
        record::release(index);
        return None;
    }
    counters::add(Counter::Found, 1);
    keep_low_on_kernel(fd);
    known(fd)
}

/// stdio works on the numbers 0, 1 and 2.
fn keep_low_on_kernel(fd: c_int) {
    if let Some(sock) = any(fd).filter(|_| (0..=2).contains(&fd)) {
        tell(|up| (up.demote)(&sock, Reason::Stdio));
    }
}

/// What record a socket gets, asked of the kernel.
pub fn kind_of_socket(fd: c_int) -> Option<Kind> {
    let domain = option(fd, libc::SO_DOMAIN)?;
    Kind::of_socket(
        domain,
        option(fd, libc::SO_TYPE)?,
        option(fd, libc::SO_PROTOCOL)?,
    )
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let asked = kernel::option(fd, libc::SOL_SOCKET, name, &mut value);
    asked.is_ok().then_some(value)
}

/// A descriptor came in by `SCM_RIGHTS` or `pidfd_getfd`.
pub fn taken(fd: c_int) {
    if fd < 0 || !make() || !identity::is_ours() {
        return;
    }
    vanish(fd);
    if let Some(sock) = ask(fd, word(fd), Origin::Passed) {
        // Whoever sent it may go on writing to it, uncounted.
        tell(|up| (up.demote)(&sock, Reason::Passed));
    }
}

pub fn sockets() -> impl Iterator<Item = Sock> {
    each().filter(|sock| kind_of(sock.word) == TRACKED)
}

pub fn each() -> impl Iterator<Item = Sock> {
    range(0, u32::MAX)
}

/// The numbers that name a record in this process.
pub fn numbers_of(record: u32) -> impl Iterator<Item = Sock> {
    each().filter(move |sock| sock.index() == record)
}

/// The highest number that was ever known.
pub fn highest() -> c_int {
    PLACE.highest.load(Ordering::Relaxed).cast_signed()
}

/// Those of the numbers `first..=last` that may be known.
fn numbers(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    (first..=last.min(highest().cast_unsigned())).map(u32::cast_signed)
}

/// What has a record among the numbers `first..=last`.
pub fn range(first: u32, last: u32) -> impl Iterator<Item = Sock> {
    numbers(first, last).filter_map(any)
}

/// Whether the next program will have it: a number without `FD_CLOEXEC`, asked of the kernel, or what was doubled for it.
pub fn survives(sock: &Sock) -> bool {
    let is_kept = |flags: usize| flags & libc::FD_CLOEXEC as usize == 0;
    sock.record.has(flag::INHERITED) || kernel::fcntl(sock.fd, libc::F_GETFD, 0).is_ok_and(is_kept)
}

pub fn surviving() -> impl Iterator<Item = Sock> {
    each().filter(survives)
}

/// This process (or the child of a `vfork`, or one that libc spawns) is about to execute a file. What
/// survives has an heir; the family loses this process's holds, unless that only borrows the table.
pub fn before_exec(spawned: bool) {
    surviving().for_each(|sock| record::inherit(sock.index()));
    if !spawned && record::is_shared() && identity::is_ours() {
        let_go();
    }
}

/// The execution failed: the holds are taken again. A record that was used anew meanwhile is another's.
pub fn exec_failed() {
    if !record::is_shared() || !identity::is_ours() {
        return;
    }
    for sock in each() {
        let known = sock.record.cookie.load(Ordering::Relaxed);
        let same =
            sock.record.kind().is_some() && (known == 0 || kernel::cookie(sock.fd) == Ok(known));
        if same {
            record::hold(sock.index());
        } else {
            forget(sock);
        }
    }
}

/// The entry alone is removed: its record is not ours to release.
fn forget(sock: Sock) {
    if let Some(entry) = entry(sock.fd) {
        let generation = (sock.word >> 16).wrapping_add(1) & 0xffff;
        entry.word.store(generation << 16, Ordering::Release);
    }
}

/// Before a fork: changes wait until [`fork_done`], and the child will hold every record once more.
pub fn fork_prepare() {
    let me = std::ptr::from_ref(identity::thread()).cast_mut();
    let none = std::ptr::null_mut();
    let mut backoff = Backoff::default();
    while let Err(other) = FORKS.compare_exchange(none, me, Ordering::SeqCst, Ordering::SeqCst) {
        if other == me {
            // A signal handler forks in the middle of a fork.
            break;
        }
        backoff.wait();
    }
    let mut backoff = Backoff::default();
    for _ in 0..FORK_WAITS {
        if CHANGES.load(Ordering::SeqCst) == 0 {
            break;
        }
        backoff.wait();
    }
    record::will_be_shared();
    each().for_each(|sock| record::hold(sock.index()));
}

/// After a fork, on both sides. What the parent has joined is looked up anew, and found to be the parent's.
pub fn fork_done(child: bool) {
    if child {
        for sock in each() {
            if let Some(word) = ring_word(sock.fd) {
                word.store(0, Ordering::Relaxed);
            }
        }
        CHANGES.store(0, Ordering::SeqCst);
    }
    FORKS.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// The fork failed, or this process ends: its holds are undone.
pub fn let_go() {
    each().for_each(|sock| {
        record::release(sock.index());
    });
}

/// In a child whose fork we did not see: records that were used anew meanwhile are forgotten.
pub fn fork_unseen() {
    record::will_be_shared();
    each().for_each(|sock| record::hold(sock.index()));
}
