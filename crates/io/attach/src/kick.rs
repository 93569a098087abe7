//! Notifications through descriptors that a peer owns too, and the watchdog over them.
//!
//! # Purpose
//! A write to an eventfd sleeps when its counter is full and `O_NONBLOCK` is clear, and that flag belongs to the file
//! that both sides share: a hostile peer sets its trap at any time. No flag of the write itself helps, since eventfd
//! knows none. So each write is watched: a worker that sleeps in one for more than [`PATIENCE`] is woken by a signal, and its
//! port is closed.
//!
//! # Model
//! A thread that kicks has a slot of the registry: when the present write began, or 0. The watchdog looks at all
//! slots every [`PATIENCE`] and sends [`signal_number`] with `tgkill` to a thread that was in the same write at the
//! look before. The handler does nothing and was installed without `SA_RESTART`, so the write ends with `EINTR`. A
//! signal that comes before the thread has entered the write is repeated at the next look.
//!
//! While nobody kicks, the watchdog sleeps without a timeout: an idle daemon has no timer of ours.
//!
//! # Ownership and lifetime
//! A thread takes its slot at its first kick and gives it back when it ends. The watchdog is started once for the
//! process and never ends.
//!
//! # Synchronization
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `began`, then fence SeqCst, then load of `parked` | watchdog: `parked`, then fence SeqCst, then loads of `began` | either the kicker wakes the watchdog or the watchdog sees the write |
//! | `began` = 0, Release | watchdog's Acquire | no signal is aimed at a write that has ended, but for the instant of the call |
//! | `thread`, before `began`, Release | watchdog's Acquire of `began`, before its load of `thread` | a slot in use has the number of its thread |
//!
//! # Limits
//! [`SLOTS`] threads that kick at a time; another one writes unwatched only if it can make sure of `O_NONBLOCK` right
//! before, which narrows the trap to an instant.
//!
//! # Failure modes
//! A thread may be hit by a signal just after its write has ended: every blocking call of a worker takes `EINTR` for
//! an empty answer.

use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

use rustix::io::Errno;
use windlass_sync::Padded;
use windlass_sys::eventfd;

/// How long a write may sleep before its thread is woken, at least; at most twice as long.
pub const PATIENCE: Duration = Duration::from_millis(10);
/// Threads that can be watched at a time.
pub const SLOTS: usize = 256;
/// Looks without any kick after which the watchdog sleeps.
const QUIET_LOOKS: u32 = 5;

struct Slot {
    taken: AtomicBool,
    thread: AtomicI32,
    /// Number of the write that is going on; 0 between writes.
    began: AtomicU64,
    /// Writes begun, so that two are never taken for one.
    writes: AtomicU64,
}

static TABLE: [Padded<Slot>; SLOTS] = [const {
    Padded::new(Slot {
        taken: AtomicBool::new(false),
        thread: AtomicI32::new(0),
        began: AtomicU64::new(0),
        writes: AtomicU64::new(0),
    })
}; SLOTS];
static PARKED: AtomicBool = AtomicBool::new(false);
static WATCHDOG: OnceLock<Option<Thread>> = OnceLock::new();

/// The peer let a notification sleep: its port is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KickError {
    /// The write slept until the watchdog ended it.
    #[error("the peer's eventfd is full and blocks")]
    Blocked,
    /// The descriptor does not work.
    #[error("the peer's eventfd failed: {0}")]
    Failed(#[source] Errno),
}

/// One thread's place in the registry; given back when dropped.
#[derive(Debug)]
pub struct KickGuard(&'static Padded<Slot>);

impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot")
            .field("thread", &self.thread)
            .finish_non_exhaustive()
    }
}

impl KickGuard {
    /// Registers the calling thread; `None` when [`SLOTS`] are taken or the watchdog could not be started.
    pub fn register() -> Option<KickGuard> {
        start_watchdog()?;
        let slot = TABLE.iter().find(|slot| {
            slot.taken
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        slot.thread.store(
            rustix::thread::gettid().as_raw_nonzero().get(),
            Ordering::Release,
        );
        Some(KickGuard(slot))
    }

    /// Signals the eventfd `fd` of a peer.
    ///
    /// # Errors
    /// [`KickError`]: the peer is hostile or gone. A full counter that does not block is no error: it is readable already.
    pub fn kick(&self, fd: BorrowedFd<'_>) -> Result<(), KickError> {
        let slot = self.0;
        let number = slot.writes.load(Ordering::Relaxed).wrapping_add(1).max(1);
        slot.writes.store(number, Ordering::Relaxed);
        slot.began.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        if PARKED.load(Ordering::Relaxed)
            && let Some(Some(watchdog)) = WATCHDOG.get()
        {
            watchdog.unpark();
        }
        let result = eventfd::signal(fd);
        slot.began.store(0, Ordering::Release);
        match result {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => Err(KickError::Blocked),
            Err(errno) => Err(KickError::Failed(errno)),
        }
    }
}

impl Drop for KickGuard {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Release);
        self.0.taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static MINE: RefCell<Option<KickGuard>> = const { RefCell::new(None) };
}

/// [`KickGuard::kick`] with a slot of the calling thread, registered at the first call.
///
/// # Errors
/// As [`KickGuard::kick`].
pub fn kick(fd: BorrowedFd<'_>) -> Result<(), KickError> {
    MINE.with_borrow_mut(|mine| {
        if mine.is_none() {
            *mine = KickGuard::register();
        }
        match mine {
            Some(guard) => guard.kick(fd),
            None => {
                eventfd::set_nonblocking(fd).map_err(KickError::Failed)?;
                eventfd::signal(fd).map_err(KickError::Failed)
            }
        }
    })
}

/// The signal that ends a write: the real-time signal six above the first that the C library leaves free.
pub fn signal_number() -> i32 {
    libc::SIGRTMIN() + 6
}

/// Starts the watchdog, once for the process. [`KickGuard::register`] does it by itself. `None` if it could not.
pub fn start_watchdog() -> Option<()> {
    let started = WATCHDOG.get_or_init(|| {
        install_handler().then_some(())?;
        let thread = std::thread::Builder::new()
            .name("kick-watchdog".into())
            .spawn(watch)
            .ok()?
            .thread()
            .clone();
        Some(thread)
    });
    started.as_ref().map(|_| ())
}

extern "C" fn ignore(_signal: libc::c_int) {}

fn install_handler() -> bool {
    // SAFETY: an all-zero sigaction is a valid one (default action, empty mask, no flags: no SA_RESTART).
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = ignore as *const () as usize;
    // SAFETY: a valid action whose handler does nothing.
    unsafe { libc::sigaction(signal_number(), &action, core::ptr::null_mut()) == 0 }
}

fn wake(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill only sends a signal, whose handler is installed, to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal_number()) };
}

fn watch() {
    let mut before = [0u64; SLOTS];
    let mut writes = 0u64;
    let mut quiet = 0;
    loop {
        if quiet >= QUIET_LOOKS {
            PARKED.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if TABLE
                .iter()
                .all(|slot| slot.began.load(Ordering::Relaxed) == 0)
            {
                std::thread::park();
            }
            PARKED.store(false, Ordering::Relaxed);
            quiet = 0;
        }
        std::thread::sleep(PATIENCE);
        let mut sum = 0u64;
        let mut busy = false;
        for (slot, before) in TABLE.iter().zip(&mut before) {
            let began = slot.began.load(Ordering::Acquire);
            let thread = slot.thread.load(Ordering::Acquire);
            if began != 0 && began == *before && thread != 0 {
                wake(thread);
            }
            *before = began;
            busy |= began != 0;
            sum = sum.wrapping_add(slot.writes.load(Ordering::Relaxed));
        }
        quiet = if busy || sum != writes { 0 } else { quiet + 1 };
        writes = sum;
    }
}
