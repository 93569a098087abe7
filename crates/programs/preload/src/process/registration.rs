//! The registration of this process with the broker.
//!
//! # States
//! A process is *unregistered* until its first connection is worth a ring; then the broker gives it a slot, a status
//! page and the directory, and it stays *registered*. A forked child is unregistered again, keeps the pairs that it
//! inherited, and asks for a slot of its own at its first locked section. A process whose broker has ended is
//! *orphaned*: what has joined goes on, and it registers with the next broker as soon as there is one. It keeps its slot as long
//! as sockets of it are in channels, whose memory, status page and mark of death stay as they are ([`status::former_pages`]);
//! connections join in slabs of the new broker alone.
//!
//! # Synchronization
//! The [gate](Gate) is held while something is asked of the broker or a place is filled, at most a few milliseconds, never on
//! the way of data; who finds it taken stays on the kernel for now.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use windlass_channel::directory::Directory;
use windlass_channel::protocol::{BROKER_SLOT, RETURNS, Request, SHARE};
use windlass_channel::{Alive, Life, Owner, Reason, Who, sys};

use crate::options;
use crate::process::{
    identity, mark,
    pairs::{self, CLIENT, Gate, Seeker},
    status, tell,
};
use crate::sys::{clock, kernel};

/// The broker is alive and cannot be seen: its process id means nothing here.
static IS_BROKER_UNSEEN: AtomicBool = AtomicBool::new(false);
/// Process id of the broker that this process has registered with.
static BROKER: AtomicU32 = AtomicU32::new(0);
static DIRECTORY: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Where the broker finds the records of this process; 0: nowhere.
static REPORT: AtomicU64 = AtomicU64::new(0);

/// The broker finds the records of this process at this address.
pub fn set_report(address: u64) {
    REPORT.store(address, Relaxed);
}

struct Processes;

impl Alive for Processes {
    fn life(&self, owner: Owner) -> Life {
        let Some(word) = identity::process_word(owner.process()) else {
            return Life::Lives;
        };
        if owner.process() == identity::process_slot() {
            return Life::Lives;
        }
        // The broker may be late, or gone. A mark is of a thread, and an id may be another process's in another namespace: only
        // both say that no thread is left.
        let is_marked = |slot| slot == BROKER_SLOT || pairs::is_marked_dead(slot);
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
    Some(who_of(owner()?))
}

#[inline(always)]
pub fn owner() -> Option<Owner> {
    let word = identity::thread().owner.load(Relaxed);
    if word >> 16 == u32::from(identity::process_slot()) {
        return Owner::new((word >> 16) as u16, word as u16);
    }
    new_owner()
}

/// The same where process or thread have a new slot.
#[cold]
fn new_owner() -> Option<Owner> {
    let owner = Owner::new(identity::process_slot(), identity::thread_slot()?)?;
    identity::thread().owner.store(owner.word(), Relaxed);
    Some(owner)
}

pub const fn who_of(owner: Owner) -> Who<'static> {
    Who {
        owner,
        alive: &Processes,
    }
}

/// The lock word of the calling thread of a process that was forked after it had joined: it asks for a slot of its own first.
pub fn owner_or_register(socket: i32) -> Option<Owner> {
    owner().or_else(|| {
        let _seeker = Seeker::enter();
        register_within(true, socket).ok()?;
        owner()
    })
}

/// The calling process in its parent's name, for a short moment: it was forked from one that had joined, and got no slot.
pub fn heir() -> Option<Who<'static>> {
    let owner = Owner::new(identity::parent_slot(), identity::NO_SLOT as u16)?;
    Some(Who {
        owner,
        alive: &Processes,
    })
}

/// Why this process makes no joins; [`Reason::None`]: nothing stands against them.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

pub fn forbid(reason: Reason) {
    FORBIDDEN.store(reason as u32, Relaxed);
}

pub fn locate() {
    let runtime = options::variable(c"XDG_RUNTIME_DIR");
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    CLIENT.locate(options::sockets().map(CStr::to_bytes), runtime, user);
    (CLIENT.answer_ms_min).store(options::patience_ms(), Relaxed);
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
    let Some(word) = identity::process_word(BROKER_SLOT) else {
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
    register_within(false, socket)
}

fn register_within(is_for_rescue: bool, socket: i32) -> Result<(), Reason> {
    let forbidden = FORBIDDEN.load(Relaxed);
    if forbidden != 0 {
        return Err(Reason::from_u8(forbidden as u8));
    }
    if identity::process_slot() != 0 && !is_orphaned() {
        return Ok(());
    }
    let _gate = Gate::enter().ok_or(Reason::Young)?;
    let is_orphan = is_orphaned();
    if identity::process_slot() != 0 && !is_orphan {
        return Ok(());
    }
    let slot = identity::process_slot();
    let holds = is_orphan && !pairs::are_idle();
    if is_orphan && status::is_carried() || holds && (status::is_full() || slot == 0) {
        return Err(Reason::NoDaemon);
    }
    let cookie = kernel::cookie(socket).map_err(|_| Reason::NotEligible)?;
    let share = if options::share() != 0 { SHARE } else { 0 };
    let who = Request::Register {
        socket,
        cookie,
        report: REPORT.load(Relaxed),
        flags: if holds { share | RETURNS } else { share },
        parent: match (holds, is_orphan) {
            (true, _) => slot,
            (false, true) => 0,
            (false, false) => identity::parent_slot(),
        },
    };
    let registered = CLIENT.register(&who, is_for_rescue)?;
    if holds && registered.slot != slot {
        return Err(Reason::NoDaemon);
    }
    sys::register_membarrier();
    if is_orphan {
        pairs::renew();
    }
    status::change(registered.status.base, holds);
    DIRECTORY.store(registered.directory.base, Release);
    identity::PROCESSES.store(registered.processes.base.cast(), Release);
    let broker = identity::process_word(BROKER_SLOT).map_or(0, |word| word.load(Relaxed));
    BROKER.store(broker, Relaxed);
    // It has just answered.
    IS_BROKER_UNSEEN.store(!kernel::lives(broker), Relaxed);
    identity::set_process_slot(registered.slot);
    mark::arm(registered.status.base);
    if is_orphan {
        tell(|up| (up.new_directory)());
    }
    Ok(())
}

pub fn directory() -> Option<Directory> {
    let base = NonNull::new(DIRECTORY.load(Acquire))?;
    // SAFETY: the broker gave this memory for a directory; it is mapped for good.
    Some(unsafe { Directory::new(base) })
}

/// In a forked child: what was mapped stays, the slot was the parent's.
pub fn forked() {
    status::forked();
    pairs::forked();
    mark::forked();
}
