//! `--strict`: system calls that are made round libc are made through this library.
//!
//! # Purpose
//! A write that bypasses the library, mixed with writes through it on one direction, cannot be put in order
//! afterwards. Strict mode sees it before the kernel does.
//!
//! # Model
//! *Syscall User Dispatch* (Linux 5.11): the kernel turns each system call whose instruction lies outside of one range
//! of code into a `SIGSYS`. The range is libc's text, so that what goes through libc costs 3 ns more, and nothing else.
//! The handler ([`trapped`]) makes the call as `syscall()` would ([`crate::calls::by_number`]): a call that touches a
//! socket of ours takes the way of its name, any other is made as it stands, about 1 us later. Our own instructions
//! go through one of libc's ([`start`], `windlass_channel::sys::set_gate`).
//!
//! # Calls that cannot be made from a handler
//! | call | instead |
//! | --- | --- |
//! | `rt_sigreturn` | goes on at libc's own, on the stack of the trapped one |
//! | `rt_sigprocmask`, `sigaltstack` | made here and in the frame that the handler returns to |
//! | `rt_sigaction` | as `sigaction`; `SIGSYS` stays ours |
//! | `clone` that shares memory or brings a stack, `vfork` | dispatch is switched off, the call made by [`shared`] or [`stacked`] in the program's own registers, and dispatch switched on again in the parent |
//! | `clone3` of that kind | `ENOSYS`: every caller has the way by `clone` |
//!
//! # Life
//! Dispatch belongs to a thread, and is not inherited: new threads begin in [`begin`], forked children switch it on
//! in `start::after_fork_child`, new programs in the constructor.
//!
//! # Failure modes
//! A trapped call with `SIGSYS` blocked is the end of the process, so nobody blocks it: masks lose that signal
//! ([`without`]). Where dispatch cannot be had (old kernel, libc without a usable instruction), or where Go code is
//! loaded (its stacks have no room for a handler), the process is not accelerated at all, for the reason `strict`.
//!
//! # Not done
//! Threads made by a bare `clone` are not trapped. 32-bit calls (`int 0x80`) fail with `ENOSYS`.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{dl_phdr_info, sigaction, siginfo_t, ucontext_t};
use windlass_channel::sys;

use crate::counters::{self, Counter};
use crate::engine::memory;
use crate::{calls, engine, options, owner, real, signals, watch};

/// `si_code` of a dispatched call.
pub const USER_DISPATCH: c_int = 2;
/// `prctl` of the dispatch.
pub const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const OFF: usize = 0;
const ON: usize = 1;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const BIT: u64 = 1 << (libc::SIGSYS - 1);

static ACTIVE: AtomicBool = AtomicBool::new(false);
/// libc's text: beginning and length.
static RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Our own text: beginning and end.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// libc's code that ends a handler.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

std::arch::global_asm!(
    ".section .tbss.windlass_sockets_strict,\"awT\",@nobits",
    ".p2align 4",
    ".hidden windlass_sockets_strict",
    ".globl windlass_sockets_strict",
    ".type windlass_sockets_strict,@object",
    ".size windlass_sockets_strict,16",
    "windlass_sockets_strict:",
    ".zero 16",
    ".previous",
);

/// Where a trapped `clone` goes on, and its second argument: this thread's own.
fn resume() -> &'static [AtomicUsize; 2] {
    let place: *const [AtomicUsize; 2];
    // SAFETY: reads the thread pointer and the symbol's offset from it; changes nothing.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + windlass_sockets_strict@gottpoff]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: thread-local memory of this size and alignment, zeroed, alive while the thread runs.
    unsafe { &*place }
}

/// Whether bare system calls are caught.
#[inline(always)]
pub fn is_on() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// A mask without the signal that must not be blocked.
pub fn without(mask: u64) -> u64 {
    if is_on() { mask & !BIT } else { mask }
}

/// What a look at the loaded objects is for.
struct Search {
    /// An address in libc.
    inside: usize,
    /// Its text: beginning and end.
    text: [usize; 2],
    /// Our own.
    own: [usize; 2],
    /// Go code is loaded.
    go: bool,
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader gives valid information for the time of the call.
    let info = unsafe { &*info };
    // SAFETY: `start` gave its own variable.
    let search = unsafe { &mut *data.cast::<Search>() };
    // SAFETY: the loader's own list.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        let from = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let bytes = header.p_memsz as usize;
        let is_text = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        let here = from..from.wrapping_add(bytes);
        if is_text && here.contains(&search.inside) {
            search.text = [here.start, here.end];
        }
        if is_text && here.contains(&(look as *const ()).addr()) {
            search.own = [here.start, here.end];
        }
        if header.p_type == libc::PT_NOTE && bytes >= 16 {
            // SAFETY: the segment is mapped, and begins with sizes of name and content, a kind and the name.
            let note = unsafe { &*std::ptr::without_provenance::<[[u8; 4]; 4]>(from) };
            search.go |= u32::from_ne_bytes(note[0]) == 4 && &note[3] == b"Go\0\0";
        }
    }
    0
}

/// The instructions `syscall` and `ret` in libc's text.
fn gate(text: [usize; 2]) -> Option<usize> {
    let [from, to] = text;
    // SAFETY: a segment that is mapped and readable for as long as libc is.
    let code =
        unsafe { std::slice::from_raw_parts(std::ptr::without_provenance::<u8>(from), to - from) };
    let at = code
        .windows(3)
        .position(|bytes| bytes == [0x0f, 0x05, 0xc3])?;
    Some(from + at)
}

/// Called by the constructor: switches dispatch on if it was asked for.
pub fn start() {
    if !options::strict() {
        return;
    }
    if let Err(why) = try_start() {
        counters::say(format_args!(
            "strict mode cannot be had, so nothing is accelerated: {why}"
        ));
        engine::plain_process(engine::Why::Strict);
    }
}

fn try_start() -> Result<(), &'static str> {
    prepare()?;
    ACTIVE.store(true, Ordering::Release);
    if !catch() {
        ACTIVE.store(false, Ordering::Release);
        return Err("this kernel has no Syscall User Dispatch");
    }
    Ok(())
}

/// Looks for the code that may make system calls, and has ours made there.
pub fn prepare() -> Result<(), &'static str> {
    let mut search = Search {
        inside: real::slot::read.get().addr(),
        text: [0; 2],
        own: [0; 2],
        go: false,
    };
    // SAFETY: the function keeps the loader's conditions; the data is a live variable.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if search.go {
        return Err("Go code is loaded");
    }
    let [from, to] = search.text;
    let gate = gate(search.text).filter(|_| to > from);
    let gate = gate.ok_or("libc has no system call to borrow")?;
    RANGE[0].store(from, Ordering::Relaxed);
    RANGE[1].store(to - from, Ordering::Relaxed);
    OWN.iter()
        .zip(search.own)
        .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    // SAFETY: found in libc's text just now, which is never unloaded.
    unsafe { sys::set_gate(gate) };
    Ok(())
}

/// Takes the signal and switches dispatch on for this thread; false: this kernel has none. After [`prepare`].
pub fn catch() -> bool {
    take_signal();
    let is_on = switch(ON) == 0;
    if !is_on {
        signals::give_back(libc::SIGSYS);
    }
    is_on
}

/// Undoes [`catch`].
pub fn release() {
    switch(OFF);
    signals::give_back(libc::SIGSYS);
}

/// `SIGSYS` is ours, and not blocked.
fn take_signal() {
    signals::guard();
    signals::take(
        libc::SIGSYS,
        libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART,
    );
    let mut kernel = [0usize; 4];
    let [query, restorer] = [libc::SIGSYS as usize, 2];
    let into = kernel.as_mut_ptr().addr();
    // SAFETY: asks for the disposition, four words.
    unsafe { sys::call(libc::SYS_rt_sigaction, [query, 0, into, 8, 0, 0]) };
    RESTORER.store(kernel[restorer], Ordering::Relaxed);
    let only = BIT;
    let from = (&raw const only).addr();
    // SAFETY: the set is a live variable.
    unsafe {
        sys::call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_UNBLOCK as usize, from, 0, 8, 0, 0],
        )
    };
}

/// Dispatch of this thread, on or off: 0 or the kernel's error.
fn switch(mode: usize) -> isize {
    let [from, bytes] = if mode == ON {
        RANGE.each_ref().map(|word| word.load(Ordering::Relaxed))
    } else {
        [0; 2]
    };
    // SAFETY: no pointers but to code; without a selector all calls outside of the range are dispatched.
    unsafe {
        sys::call(
            libc::SYS_prctl,
            [
                PR_SET_SYSCALL_USER_DISPATCH as usize,
                mode,
                from,
                bytes,
                0,
                0,
            ],
        )
    }
}

/// In a new thread or a forked child: dispatch is not inherited.
pub fn enable() {
    if is_on() {
        switch(ON);
    }
}

/// Before a `vfork` of ours, whose instruction is none of libc's.
pub extern "C" fn before_vfork() {
    watch::retire();
    if is_on() {
        switch(OFF);
    }
}

/// After it, in the parent.
pub extern "C" fn after_vfork() {
    enable();
}

/// What a thread begins with.
pub type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

#[repr(C)]
struct First {
    start: Start,
    argument: *mut c_void,
}

/// Memory for [`begin`] that says where the thread really begins; null: there is none.
pub fn pack(start: Start, argument: *mut c_void) -> *mut c_void {
    // SAFETY: memory for one value.
    let place: *mut First = unsafe { libc::malloc(size_of::<First>()) }.cast();
    if !place.is_null() {
        // SAFETY: allocated just now, and aligned for every type.
        unsafe { place.write(First { start, argument }) };
    }
    place.cast()
}

/// The thread was not made.
///
/// # Safety
/// `place` comes from [`pack`], and is not used any more.
pub unsafe fn unpack(place: *mut c_void) {
    // SAFETY: passed on (caller).
    unsafe { libc::free(place) };
}

/// Where threads begin in strict mode.
///
/// # Safety
/// `place` comes from [`pack`].
pub unsafe extern "C-unwind" fn begin(place: *mut c_void) -> *mut c_void {
    // SAFETY: written by `pack`.
    let First { start, argument } = unsafe { place.cast::<First>().read() };
    // SAFETY: read just now, and nobody else has it.
    unsafe { unpack(place) };
    enable();
    // SAFETY: the program's own function and argument.
    unsafe { start(argument) }
}

/// A call was dispatched.
///
/// # Safety
/// As a handler of `SIGSYS` with `si_code` [`USER_DISPATCH`].
pub unsafe fn trapped(info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: for this code the kernel writes the address at 16, the number at 24 and the architecture at 28.
    let words = unsafe { &*info.cast::<[u32; 8]>() };
    if watch::is_on() {
        // SAFETY: passed on (caller).
        return unsafe { watch::trapped(words[6] as c_int, context) };
    }
    // SAFETY: the kernel gives a valid context, ours until we return.
    let context = unsafe { &mut *context };
    let before = real::errno();
    counters::add(Counter::Trapped, 1);
    let result = if words[7] == AUDIT_ARCH_X86_64 {
        make(c_long::from(words[6] as i32), context)
    } else {
        Some(-(libc::ENOSYS as isize))
    };
    if let (Some(result), Some(place)) = (result, register(context, libc::REG_RAX)) {
        *place = result as i64;
    }
    real::set_errno(before);
}

fn register(context: &mut ucontext_t, name: c_int) -> Option<&mut i64> {
    context.uc_mcontext.gregs.get_mut(name as usize)
}

/// The six arguments of the trapped call.
fn arguments(context: &mut ucontext_t) -> [usize; 6] {
    let names = [
        libc::REG_RDI,
        libc::REG_RSI,
        libc::REG_RDX,
        libc::REG_R10,
        libc::REG_R8,
        libc::REG_R9,
    ];
    names.map(|name| register(context, name).map_or(0, |place| *place as usize))
}

/// What a function of libc gave, as the kernel says it.
fn as_kernel(result: isize) -> isize {
    if result == -1 {
        -(real::errno() as isize)
    } else {
        result
    }
}

/// The arguments of a trapped call, if it was made by our own text.
pub fn own_call(context: &mut ucontext_t) -> Option<[usize; 6]> {
    let at = register(context, libc::REG_RIP).map_or(0, |place| *place as usize);
    let [from, to] = OWN.each_ref().map(|word| word.load(Ordering::Relaxed));
    (from..to).contains(&at).then(|| arguments(context))
}

/// Makes the call; `None`: it is made behind the handler.
fn make(number: c_long, context: &mut ucontext_t) -> Option<isize> {
    let x = arguments(context);
    if own_call(context).is_some() {
        // SAFETY: the arguments of the trapped call, which libraries that we are built of make by themselves.
        return Some(unsafe { sys::call(number, x) });
    }
    match number {
        libc::SYS_rt_sigreturn => {
            if let Some(place) = register(context, libc::REG_RIP) {
                *place = RESTORER.load(Ordering::Relaxed) as i64;
            }
            None
        }
        libc::SYS_rt_sigprocmask => Some(change_mask(x, context)),
        libc::SYS_sigaltstack => Some(change_stack(x, context)),
        libc::SYS_rt_sigaction => Some(signals::change_raw(x)),
        libc::SYS_clone if x[0] & libc::CLONE_VM as usize != 0 || x[1] != 0 => clone(x, context),
        libc::SYS_vfork => clone([0; 6], context),
        libc::SYS_clone3 => Some(clone3(x)),
        libc::SYS_clone | libc::SYS_fork => Some(forked(number, x)),
        // SAFETY: the program's own arguments for this call.
        _ => Some(as_kernel(unsafe { calls::by_number(number, x) })),
    }
}

/// The mask of the frame that the handler returns to.
fn mask_of(context: &mut ucontext_t) -> *mut u64 {
    (&raw mut context.uc_sigmask).cast()
}

fn change_mask(x: [usize; 6], context: &mut ucontext_t) -> isize {
    let [how, set, old, size, ..] = x;
    let mut wanted = [0u64];
    let mut given = 0;
    if set != 0 && size == 8 {
        if !memory::fetch_all(&mut wanted, std::ptr::with_exposed_provenance(set)) {
            return -(libc::EFAULT as isize);
        }
        if how != libc::SIG_UNBLOCK as usize {
            wanted = wanted.map(without);
        }
        given = wanted.as_ptr().addr();
    }
    // SAFETY: our copy of the set; the kernel checks the rest.
    let result = unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, given, old, size, 0, 0]) };
    let into = mask_of(context).addr();
    // SAFETY: asks for the mask, into the frame. The handler runs with the trapped code's own mask.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [0, 0, into, 8, 0, 0]) };
    result
}

fn change_stack(x: [usize; 6], context: &mut ucontext_t) -> isize {
    // SAFETY: the program's own arguments, which the kernel checks.
    let result = unsafe { sys::call(libc::SYS_sigaltstack, x) };
    let into = (&raw mut context.uc_stack).addr();
    // SAFETY: asks for the stack, into the frame, from which it is set again when the handler returns.
    unsafe { sys::call(libc::SYS_sigaltstack, [0, into, 0, 0, 0, 0]) };
    result
}

/// A copy of the process on a copy of this stack.
fn forked(number: c_long, x: [usize; 6]) -> isize {
    // SAFETY: the program's own arguments; the child has its own copy of everything.
    let result = unsafe { sys::call(number, x) };
    if result == 0 {
        // What is needed in a child is done where it is noticed.
        owner::is_ours();
    }
    result
}

/// `clone_args` of every version begin so.
const FLAGS: usize = 0;
const STACK: usize = 5;

fn clone3(x: [usize; 6]) -> isize {
    let mut words = [0u64; 8];
    if x[1] >= size_of_val(&words)
        && memory::fetch_all(&mut words, std::ptr::with_exposed_provenance(x[0]))
        && (words[FLAGS] & libc::CLONE_VM as u64 != 0 || words[STACK] != 0)
    {
        return -(libc::ENOSYS as isize);
    }
    forked(libc::SYS_clone3, x)
}

/// The child would run on this very stack, or on another: the call is made when the handler has returned.
fn clone(x: [usize; 6], context: &mut ucontext_t) -> Option<isize> {
    calls::note_number(libc::SYS_clone, x);
    let back = register(context, libc::REG_RIP).map_or(0, |place| *place as usize);
    let [target, second] = resume();
    target.store(back, Ordering::Relaxed);
    second.store(x[1], Ordering::Relaxed);
    let code = if x[1] == 0 {
        shared as *const ()
    } else {
        let top = x[1].wrapping_sub(size_of::<usize>());
        if !memory::readable(std::ptr::with_exposed_provenance(top), size_of::<usize>()) {
            return Some(-(libc::EFAULT as isize));
        }
        let place: *mut usize = std::ptr::with_exposed_provenance_mut(top);
        // SAFETY: the program gave this memory as a stack that nobody uses yet.
        unsafe { place.write_unaligned(back) };
        if let Some(place) = register(context, libc::REG_RSI) {
            *place = top as i64;
        }
        stacked as *const ()
    };
    switch(OFF);
    if let Some(place) = register(context, libc::REG_RIP) {
        *place = code.addr() as i64;
    }
    None
}

/// Defines the code that makes a `clone` or `vfork` in the program's own registers, with dispatch switched off. In the
/// parent it switches dispatch on again and goes on behind the trapped instruction; a system call destroys rcx and r11
/// anyway. `$child` is where the child goes on, and `$parent` what the parent still restores.
macro_rules! behind {
    ($(#[doc = $text:literal])+ $name:ident, parent $parent:literal, child $($child:literal),+) => {
        $(#[doc = $text])+
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "syscall",
                "mov rcx, qword ptr [rip + windlass_sockets_strict@gottpoff]",
                "test rax, rax",
                "jz 2f",
                "lea rsp, [rsp - 128]",
                "push rax",
                "push rdi",
                "push rsi",
                "push rdx",
                "push r10",
                "push r8",
                "mov eax, 157",
                "mov edi, 59",
                "mov esi, 1",
                "mov rdx, qword ptr [rip + {range}]",
                "mov r10, qword ptr [rip + {range} + 8]",
                "xor r8d, r8d",
                "syscall",
                "pop r8",
                "pop r10",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rax",
                "lea rsp, [rsp + 128]",
                "mov rcx, qword ptr [rip + windlass_sockets_strict@gottpoff]",
                $parent,
                "jmp qword ptr fs:[rcx]",
                "2:",
                $($child,)+
                range = sym RANGE,
            )
        }
    };
}

behind! {
    /// The child uses this stack, and this thread's memory.
    shared, parent "", child "jmp qword ptr fs:[rcx]"
}

behind! {
    /// The child has a stack of its own, on which its return address waits.
    stacked, parent "mov rsi, qword ptr fs:[rcx + 8]", child "lea rsi, [rsi + 8]", "ret"
}

/// `sigaction` of `SIGSYS` as it looks to the program.
pub fn is_kept(signal: c_int) -> bool {
    signal == libc::SIGSYS && is_on()
}

/// The same mask in an action.
pub fn strip(action: &mut sigaction) {
    if is_on() {
        let place: *mut u64 = (&raw mut action.sa_mask).cast();
        // SAFETY: libc's mask begins with the kernel's 64 bits.
        unsafe { *place &= !BIT };
    }
}
