//! Signals: handlers run outside locked sections, and the program sees its own.
//!
//! *Model.* Where the program installs a handler, the kernel gets [`deliver`] instead, with the program's mask and flags; what
//! `sigaction` gives back is the program's. A signal that arrives while the thread is in a locked section (between [`enter`] and
//! [`leave`], some hundred nanoseconds) is put back to this thread with its own information, and all signals but faults are blocked
//! until [`leave`] restores the mask: the kernel then delivers as if it had come a moment later. So a handler may send, receive,
//! jump out or exit, and no lock is held. Real sleeps are outside.
//!
//! *Faults.* The program's memory may not be there. What copies it runs in a known range of code ([`set_fixup`]); `SIGSEGV` and
//! `SIGBUS` inside go to the fix-up, which gives a short count. Elsewhere they are the program's own. [`guard`] installs this with
//! the first socket; a program that set no handler still sees the default.
//!
//! *The child of a `vfork`* shares this memory but not the dispositions: its handlers are not wrapped.
//!
//! *Not done.* Handlers installed by a bare system call, or by `sigset`, are not deferred. Ignored `SIGSEGV` and
//! `SIGBUS` come out as default after exec.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{sigaction, siginfo_t, ucontext_t};
use windlass_channel::sys;

use crate::arch;
use crate::process::{
    identity::{self, thread},
    tell,
};
use crate::sys::real;

const SIGNALS: usize = 65;
/// Top bits of a word of [`HANDLERS`]: flags that the kernel gets in another form.
const SIGINFO: u64 = 1 << 63;
const RESETHAND: u64 = 1 << 62;
/// A call that sleeps is not begun again behind the handler (no `SA_RESTART`).
const INTERRUPTS: u64 = 1 << 61;
const ADDRESS: u64 = INTERRUPTS - 1;

/// The program's handlers, by signal: address and the two flags above.
static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
static GUARDED: AtomicBool = AtomicBool::new(false);
/// What is taken although the program may have set no handler.
const GUARDS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// Flags and mask of those two as the program left them with the default or nothing, for `sigaction` to show.
static SHOWN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// The code that copies the program's memory: its first byte, the one behind it, and where to go on after a fault in it.
static FIXUP: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// What is never put off.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// One handler in [`identity::Thread::handled`].
const HANDLED: u64 = 1 << 32;

/// Grows with each handler that has run on this thread. A call that has asked the broker compares: one that ran before its sleep
/// ends it as one that runs in it does.
#[inline(always)]
pub fn handled() -> u64 {
    thread().handled.load(Ordering::Relaxed)
}

/// Whether a handler without `SA_RESTART` has run since.
pub fn was_interrupted(since: u64) -> bool {
    handled() as u32 != since as u32
}

/// Enters a locked section: signals wait until the matching [`leave`]. Nests.
#[inline(always)]
pub fn enter() {
    let locked = &thread().locked;
    locked.store(locked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Leaves a locked section; a deferred signal is delivered here.
#[inline(always)]
pub fn leave() {
    let thread = thread();
    compiler_fence(Ordering::SeqCst);
    let left = thread.locked.load(Ordering::Relaxed).wrapping_sub(1);
    thread.locked.store(left, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if thread.deferred.load(Ordering::Relaxed) != 0 {
        deliver_deferred();
    }
}

#[cold]
fn deliver_deferred() {
    let thread = thread();
    if thread.locked.load(Ordering::Relaxed) == 0 {
        thread.deferred.store(0, Ordering::Relaxed);
        set_mask(thread.mask.load(Ordering::Relaxed));
    }
}

/// The thread's mask, by a bare system call that leaves `errno` alone.
fn set_mask(mask: u64) {
    let place: *const u64 = &mask;
    let set = libc::SIG_SETMASK as usize;
    // SAFETY: the mask is a live variable of 8 bytes.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [set, place.addr(), 0, 8, 0, 0]) };
}

/// Names the range of code `[from, to)` that touches the program's memory, and where to go on when it faults there.
pub fn set_fixup(from: usize, to: usize, fixup: usize) {
    for (place, value) in FIXUP.iter().zip([from, to, fixup]) {
        place.store(value, Ordering::Release);
    }
}

pub fn guard() {
    if GUARDED.swap(true, Ordering::AcqRel) {
        return;
    }
    for signal in GUARDS {
        let mut now = empty();
        // SAFETY: `now` is a live variable.
        unsafe { real::sigaction(signal, std::ptr::null(), &mut now) };
        if is_bare(now.sa_sigaction) {
            install_guard(signal);
        }
    }
}

/// The row of [`SHOWN`], if the signal is one of those.
fn shown(signal: c_int) -> impl Iterator<Item = (&'static AtomicU64, &'static AtomicU64)> {
    let rows = GUARDS.iter().zip(&SHOWN);
    rows.filter(move |(guard, _)| **guard == signal)
        .map(|(_, [flags, mask])| (flags, mask))
}

/// The kernel's part of a mask.
fn mask_in(action: &mut sigaction) -> &mut u64 {
    let place = &raw mut action.sa_mask;
    // SAFETY: libc's mask begins with the kernel's 64 bits.
    unsafe { &mut *place.cast::<u64>() }
}

/// Takes a signal that the kernel holds without a handler, and remembers how.
fn install_guard(signal: c_int) {
    let mut action = empty();
    let mut now = empty();
    action.sa_sigaction = deliver as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are live variables, the handler stays mapped.
    unsafe { real::sigaction(signal, &action, &mut now) };
    if let Some(word) = handler_word(signal).filter(|_| is_bare(now.sa_sigaction)) {
        word.store(now.sa_sigaction as u64, Ordering::Relaxed);
        for (flags, mask) in shown(signal) {
            flags.store(now.sa_flags as u32 as u64, Ordering::Relaxed);
            mask.store(*mask_in(&mut now), Ordering::Relaxed);
        }
    }
}

fn is_bare(handler: usize) -> bool {
    handler == libc::SIG_DFL || handler == libc::SIG_IGN
}

fn empty() -> sigaction {
    // SAFETY: zeroes are a valid `sigaction`: default, no flags, empty mask.
    unsafe { std::mem::zeroed() }
}

fn handler_word(signal: c_int) -> Option<&'static AtomicU64> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == deliver as *const () as usize
}

/// `sigaction` as the program means it. `action` and `old` are the program's own, or null.
///
/// # Safety
/// As `sigaction`.
pub unsafe fn change(signal: c_int, action: *const sigaction, old: *mut sigaction) -> c_int {
    let Some(word) = handler_word(signal) else {
        // SAFETY: the program's own arguments go on unchanged.
        return unsafe { real::sigaction(signal, action, old) };
    };
    let before = word.load(Ordering::Relaxed);
    let mut previous = empty();
    let result = if action.is_null() {
        // SAFETY: `previous` is a live variable.
        unsafe { real::sigaction(signal, action, &mut previous) }
    } else {
        // SAFETY: libc reads it just so.
        let mut wanted = unsafe { *action };
        // What a function of libc's gave as the old handler stands for the program's.
        show(signal, before, &mut wanted);
        set(signal, word, &wanted, &mut previous)
    };
    if result == 0 && !old.is_null() {
        show(signal, before, &mut previous);
        // SAFETY: libc writes it just so.
        unsafe { *old = previous };
    }
    result
}

fn set(signal: c_int, word: &AtomicU64, wanted: &sigaction, previous: &mut sigaction) -> c_int {
    let handler = wanted.sa_sigaction;
    let guarded =
        GUARDED.load(Ordering::Relaxed) && GUARDS.contains(&signal) && identity::is_ours();
    if is_bare(handler) {
        // SAFETY: both are live variables.
        let result = unsafe { real::sigaction(signal, wanted, previous) };
        if guarded && result == 0 {
            install_guard(signal);
        }
        return result;
    }
    if !identity::is_ours() {
        // SAFETY: both are live variables.
        return unsafe { real::sigaction(signal, wanted, previous) };
    }
    let mut mine = *wanted;
    mine.sa_sigaction = deliver as *const () as usize;
    mine.sa_flags = (wanted.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    let before = word.swap(packed(wanted), Ordering::Relaxed);
    // SAFETY: both are live variables.
    let result = unsafe { real::sigaction(signal, &mine, previous) };
    if result != 0 {
        word.store(before, Ordering::Relaxed);
    }
    result
}

/// A handler with its flags, as [`HANDLERS`] keeps it; default and nothing are without.
fn packed(wanted: &sigaction) -> u64 {
    let (handler, flags) = (wanted.sa_sigaction, wanted.sa_flags);
    let with = |is_set: bool, flag: u64| u64::from(is_set && !is_bare(handler)) * flag;
    handler as u64 & ADDRESS
        | with(flags & libc::SA_SIGINFO != 0, SIGINFO)
        | with(flags & libc::SA_RESTART == 0, INTERRUPTS)
        | with(flags & libc::SA_RESETHAND != 0, RESETHAND)
}

/// Turns what the kernel holds into what the program set.
fn show(signal: c_int, word: u64, action: &mut sigaction) {
    if !is_ours(action) {
        return;
    }
    let handler = (word & ADDRESS) as usize;
    if is_bare(handler) {
        *action = empty();
        for (flags, mask) in shown(signal) {
            action.sa_flags = flags.load(Ordering::Relaxed) as u32 as c_int;
            *mask_in(action) = mask.load(Ordering::Relaxed);
        }
    }
    action.sa_sigaction = handler;
    if word & SIGINFO == 0 {
        action.sa_flags &= !libc::SA_SIGINFO;
    }
    if word & RESETHAND != 0 {
        action.sa_flags |= libc::SA_RESETHAND;
    }
}

/// What the kernel calls for every signal that the program handles.
unsafe extern "C-unwind" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives valid information with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let fault = code > 0 && FAULTS.contains(&signal);
    if fault && fix_up(signal, context.cast()) {
        return;
    }
    if !fault && thread().locked.load(Ordering::Relaxed) != 0 && defer(signal, info, context.cast())
    {
        return;
    }
    let word = handler_word(signal).map_or(0, |word| word.load(Ordering::Relaxed));
    let address = (word & ADDRESS) as usize;
    if is_bare(address) {
        by_default(signal, info, address == libc::SIG_IGN && !fault, fault);
        return;
    }
    if word & RESETHAND != 0 {
        reset(signal, word);
    }
    let more = HANDLED | u64::from(word & INTERRUPTS != 0);
    (thread().handled).store(handled().wrapping_add(more), Ordering::Relaxed);
    // The handler may wait in, or jump to, whatever sees the kernel's view.
    tell(|up| (up.before_handler)());
    let address: *const () = std::ptr::with_exposed_provenance(address);
    // SAFETY: the program installed this address as a handler.
    let handler = unsafe { std::mem::transmute::<*const (), Handler>(address) };
    // SAFETY: a handler of either form takes these registers.
    unsafe { handler(signal, info, context) };
}

fn fix_up(signal: c_int, context: *mut ucontext_t) -> bool {
    if signal != libc::SIGSEGV && signal != libc::SIGBUS {
        return false;
    }
    // SAFETY: the kernel gives a valid context, ours until we return.
    let context = unsafe { &mut *context };
    let at = arch::instruction(context);
    let [start, end, target] = FIXUP.each_ref().map(|place| place.load(Ordering::Acquire));
    let is_copy = (start..end).contains(&(*at as usize));
    if is_copy {
        *at = target as _;
    }
    is_copy
}

/// Sends the signal to this thread once more, as it came. False: the kernel refuses.
fn again(signal: c_int, info: *mut siginfo_t) -> bool {
    // SAFETY: takes nothing.
    let pid = unsafe { sys::call(libc::SYS_getpid, [0; 6]) } as usize;
    // SAFETY: takes nothing.
    let tid = unsafe { sys::call(libc::SYS_gettid, [0; 6]) } as usize;
    let queue = [pid, tid, signal as usize, info.addr(), 0, 0];
    // SAFETY: the information is the kernel's own.
    unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, queue) == 0 }
}

/// Puts the signal back to this thread and blocks all but faults until [`leave`].
fn defer(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    let thread = thread();
    let with = |mask: u64, signal: &c_int| mask | 1 << (signal - 1);
    let open = FAULTS.iter().fold(0, with);
    // In the handler itself too: with SA_NODEFER the signal would come at once again.
    set_mask(!open);
    if !again(signal, info) {
        return false;
    }
    // SAFETY: the kernel gives a valid context, ours until we return.
    let mask = unsafe { &raw mut (*context).uc_sigmask };
    // SAFETY: the kernel's mask has 64 bits, at the beginning of libc's.
    let mask = unsafe { &mut *mask.cast::<u64>() };
    if thread.deferred.swap(1, Ordering::Relaxed) == 0 {
        thread.mask.store(*mask, Ordering::Relaxed);
    }
    *mask = !open;
    true
}

/// The default (or nothing) for a signal that only we handle.
fn by_default(signal: c_int, info: *mut siginfo_t, ignored: bool, fault: bool) {
    if ignored {
        return;
    }
    reset(signal, 0);
    if !fault {
        again(signal, info);
    }
}

/// The default again, with everything else as it was, as the kernel does it.
fn reset(signal: c_int, word: u64) {
    let before = real::errno();
    let mut action = empty();
    // SAFETY: a live variable.
    unsafe { real::sigaction(signal, std::ptr::null(), &mut action) };
    show(signal, word, &mut action);
    action.sa_sigaction = libc::SIG_DFL;
    // SAFETY: a live variable.
    unsafe { real::sigaction(signal, &action, std::ptr::null_mut()) };
    real::set_errno(before);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use super::*;

    /// A 7 for each handler that has run: `raise` gives SI_TKILL, which is -6.
    static CAME: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn count(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel gives valid information.
        let code = unsafe { (*info).si_code };
        let came = CAME.load(Ordering::Relaxed) * 10 + 1 - code.min(0);
        CAME.store(came, Ordering::Relaxed);
    }

    fn mask() -> u64 {
        let mut now = 0u64;
        let place: *mut u64 = &mut now;
        // SAFETY: asks for the mask, into a live variable of 8 bytes.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, [0, 0, place.addr(), 8, 0, 0]) };
        now
    }

    /// Signals inside locked sections wait for the last `leave`, all come then with their own information, and the mask is what it was.
    #[test]
    fn signals_wait_for_the_unlock() {
        let signal = libc::SIGRTMIN() + 3;
        // SAFETY: a signal to this thread.
        let raise = || assert_eq!(unsafe { libc::raise(signal) }, 0);
        for flags in [0, libc::SA_NODEFER, libc::SA_RESTART] {
            let mut action = empty();
            action.sa_sigaction = count as *const () as usize;
            action.sa_flags = flags | libc::SA_SIGINFO;
            // SAFETY: a live variable.
            assert_eq!(unsafe { change(signal, &action, std::ptr::null_mut()) }, 0);
            let before = mask();
            CAME.store(0, Ordering::Relaxed);
            enter();
            enter();
            (0..3).for_each(|_| raise());
            leave();
            assert_eq!(CAME.load(Ordering::Relaxed), 0);
            leave();
            assert_eq!(CAME.load(Ordering::Relaxed), 777);
            assert_eq!(mask(), before);
            raise();
            assert_eq!(CAME.load(Ordering::Relaxed), 7777);
        }
    }
}
