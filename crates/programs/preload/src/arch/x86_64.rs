//! x86-64.

/// A function without a frame that goes on to another by a jump.
macro_rules! jump {
    ($target:path) => {
        std::arch::naked_asm!("jmp {target}", target = sym $target)
    };
}

/// Goes on to a function that takes a first argument and a list: the words in registers are pushed below those on the stack, over
/// the return address, which goes beneath.
macro_rules! list_and_call {
    ($target:path) => {
        std::arch::naked_asm!(
            "pop rax",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            "push rax",
            "call {target}",
            "pop rcx",
            "add rsp, 40",
            "push rcx",
            "ret",
            target = sym $target,
        )
    };
}

/// Calls a function with the first argument and goes on, with all of them, to the one whose address that gives.
macro_rules! look_and_jump {
    ($target:path) => {
        std::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "sub rsp, 512",
            "fxsave [rsp]",
            "call {target}",
            "mov r11, rax",
            "fxrstor [rsp]",
            "add rsp, 512",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp r11",
            target = sym $target,
        )
    };
}

/// `vfork`, with a word of the thread raised until the child is gone. It returns twice on one stack, so nothing of it may be
/// there: the return address waits in a register, as in libc's own.
macro_rules! marked_vfork {
    ($before:path, $failed:path, $word:expr) => {
        std::arch::naked_asm!(
            "sub rsp, 8",
            "call {before}",
            "add rsp, 8",
            "pop rdi",
            "mov rsi, qword ptr [rip + windlass_sockets_thread@gottpoff]",
            "add rsi, qword ptr fs:[0]",
            "inc dword ptr [rsi + {word}]",
            "mov eax, 58",
            "syscall",
            "push rdi",
            "test eax, eax",
            "jz 2f",
            "dec dword ptr [rsi + {word}]",
            "cmp eax, -4095",
            "jae 3f",
            "2:",
            "ret",
            "3:",
            "mov edi, eax",
            "neg edi",
            "sub rsp, 8",
            "call {failed}",
            "add rsp, 8",
            "mov eax, -1",
            "ret",
            word = const $word,
            before = sym $before,
            failed = sym $failed,
        )
    };
}

/// Where the calling thread's `windlass_sockets_thread` is.
#[inline(always)]
pub fn thread_place() -> *const () {
    let place;
    // SAFETY: reads the thread pointer and the symbol's offset from it, which never change; changes nothing.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + windlass_sockets_thread@gottpoff]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, nomem, nostack),
        );
    }
    place
}

/// The instruction at which a signal found the thread, and with which it goes on behind the handler.
pub fn instruction(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}
