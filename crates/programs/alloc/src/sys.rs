//! The kernel's calls. None of them touches `errno`.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::AtomicU32;

use crate::arch::call;

const READ_WRITE: usize = (libc::PROT_READ | libc::PROT_WRITE) as usize;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The address that a mapping call returned.
fn address(result: isize) -> Option<usize> {
    // A negative number is an errno.
    usize::try_from(result).ok()
}

fn map(len: usize, protection: usize, flags: i32) -> Option<usize> {
    let arguments = [0, len, protection, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping, at an address that the kernel chooses.
    address(unsafe { call(libc::SYS_mmap, arguments) })
}

/// New memory that reads as zeros.
pub fn map_memory(len: usize) -> Option<usize> {
    map(len, READ_WRITE, ANONYMOUS)
}

/// Addresses that nobody may touch, and that no core file has: a debugger would write a terabyte of zeros.
pub fn reserve(len: usize) -> Option<usize> {
    let start = map(
        len,
        libc::PROT_NONE as usize,
        ANONYMOUS | libc::MAP_NORESERVE,
    )?;
    advise(start, len, libc::MADV_DONTDUMP);
    Some(start)
}

/// Memory that children share; it reads as zeros.
pub fn map_shared(len: usize) -> Option<usize> {
    map(len, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
}

/// Puts pages of the reserve in the place of memory of ours in which nobody has anything, all of them now. `false`: it is as before, because
/// the reserve has no room.
pub fn map_reserved(start: usize, len: usize) -> bool {
    let pages = ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    // Elsewhere first: what the kernel refuses in the place of something else leaves a hole there, and another thread may be given its addresses.
    let Some(new) = map(len, READ_WRITE, pages) else {
        return false;
    };
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: from a mapping of ours to a part of the arena in which nobody has anything.
    let moves = || unsafe { call(libc::SYS_mremap, [new, len, len, flags, start, 0]) };
    if populate(new, len) && moves() == start as isize {
        return true;
    }
    unmap(new, len);
    // If the kernel had no memory in the middle of the move, there is a hole.
    map_over(start, len, libc::MAP_FIXED_NOREPLACE);
    false
}

/// Puts ordinary memory that reads as zeros in the place of memory in which nobody has anything.
pub fn unmap_reserved(start: usize, len: usize) {
    if !map_over(start, len, libc::MAP_FIXED) {
        // SAFETY: memory of ours in which nobody has anything.
        unsafe { ptr::write_bytes(start as *mut u8, 0, len) };
    }
}

fn map_over(start: usize, len: usize, how: i32) -> bool {
    let arguments = [
        start,
        len,
        READ_WRITE,
        (ANONYMOUS | how) as usize,
        usize::MAX,
        0,
    ];
    // SAFETY: a part of the arena in which nobody has anything.
    unsafe { call(libc::SYS_mmap, arguments) == start as isize }
}

/// Has the kernel use huge pages for what is touched from now on, or not. Whether it knows them.
pub fn advise_huge(start: usize, len: usize, wanted: bool) -> bool {
    let advice = if wanted {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    let arguments = [start, len, advice as usize, 0, 0, 0];
    // SAFETY: memory of ours, whose contents stay.
    unsafe { call(libc::SYS_madvise, arguments) == 0 }
}

/// Whether the process has refused transparent huge pages (`PR_SET_THP_DISABLE`).
pub fn has_no_thp() -> bool {
    let arguments = [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0, 0];
    // SAFETY: asks for a number.
    unsafe { call(libc::SYS_prctl, arguments) > 0 }
}

/// Makes a part of what was reserved usable; it reads as zeros.
pub fn make_usable(start: usize, len: usize) -> bool {
    let arguments = [start, len, READ_WRITE, 0, 0, 0];
    // SAFETY: a part of a reservation of ours.
    let is_usable = unsafe { call(libc::SYS_mprotect, arguments) == 0 };
    if is_usable {
        advise(start, len, libc::MADV_DODUMP);
    }
    is_usable
}

/// Makes memory untouchable.
pub fn forbid(start: usize, len: usize) -> bool {
    let arguments = [start, len, libc::PROT_NONE as usize, 0, 0, 0];
    // SAFETY: memory of ours in which nobody has anything.
    unsafe { call(libc::SYS_mprotect, arguments) == 0 }
}

/// Gives memory back to the kernel; the addresses stay ours and read as zeros.
pub fn give_back(start: usize, len: usize) {
    if !discard(start, len) {
        // A page of it is locked (mlock(2)): the kernel takes none.
        // SAFETY: memory of ours in which nobody has anything.
        unsafe { ptr::write_bytes(start as *mut u8, 0, len) };
    }
}

/// Whether the kernel has taken memory; its addresses stay.
fn discard(start: usize, len: usize) -> bool {
    let arguments = [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0];
    // SAFETY: memory of ours in which nobody has anything.
    unsafe { call(libc::SYS_madvise, arguments) == 0 }
}

/// Removes a mapping. Where the kernel would have to split one of its areas and may not, the memory goes and the addresses stay.
pub fn unmap(start: usize, len: usize) {
    // SAFETY: a mapping of ours in which nobody has anything.
    if unsafe { call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) } != 0 {
        discard(start, len);
    }
}

/// Makes a mapping longer or shorter, elsewhere if need be. Its address.
pub fn remap(start: usize, old: usize, len: usize) -> Option<usize> {
    let arguments = [start, old, len, libc::MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: a mapping of ours, whose owner asks for it.
    address(unsafe { call(libc::SYS_mremap, arguments) })
}

/// The limit of the address space (`ulimit -v`), if there is one.
pub fn address_space() -> Option<usize> {
    limit(libc::RLIMIT_AS)
}

fn limit(resource: u32) -> Option<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    let old = &raw mut limit as usize;
    // SAFETY: writes the limit.
    unsafe { call(libc::SYS_prlimit64, [0, resource as usize, 0, old, 0, 0]) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as usize)
}

/// Sleeps while the word is `value`.
pub fn wait(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [
        word.as_ptr() as usize,
        operation as usize,
        value as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the word outlives the call.
    unsafe { call(libc::SYS_futex, arguments) };
}

/// Wakes one thread that sleeps at the word.
pub fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [word.as_ptr() as usize, operation as usize, 1, 0, 0, 0];
    // SAFETY: an address to look up.
    unsafe { call(libc::SYS_futex, arguments) };
}

/// Writes to stderr, as far as that takes it.
pub fn complain(text: &[u8]) {
    let arguments = [2, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: reads the text.
    unsafe { call(libc::SYS_write, arguments) };
}

/// The thread's number.
pub fn thread() -> u32 {
    // SAFETY: asks for a number.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sets `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno };
}

/// Allocates pages of a mapping for stores. `false`: one of them has no room, or the kernel cannot say.
pub fn populate(start: usize, len: usize) -> bool {
    advise(start, len, libc::MADV_POPULATE_WRITE)
}

fn advise(start: usize, len: usize, advice: i32) -> bool {
    let arguments = [start, len, advice as usize, 0, 0, 0];
    // SAFETY: advice that changes no contents of this process's.
    unsafe { call(libc::SYS_madvise, arguments) == 0 }
}

/// Memory that reads as zeros after a fork, too.
pub fn map_wiped(len: usize) -> Option<usize> {
    let start = map_memory(len)?;
    if advise(start, len, libc::MADV_WIPEONFORK) {
        return Some(start);
    }
    unmap(start, len);
    None
}

/// Keeps a mapping out of a fork's child.
pub fn keep_from_children(start: usize, len: usize) -> bool {
    advise(start, len, libc::MADV_DONTFORK)
}

/// Private memory in the place of a part of a mapping.
pub fn replace(start: usize, len: usize) {
    let flags = ANONYMOUS | libc::MAP_FIXED;
    let arguments = [start, len, READ_WRITE, flags as usize, usize::MAX, 0];
    // SAFETY: a part of a mapping of ours.
    unsafe { call(libc::SYS_mmap, arguments) };
}

/// Maps a file, shared.
pub fn map_file(descriptor: i32, len: usize) -> Option<usize> {
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE) as usize;
    let arguments = [0, len, READ_WRITE, flags, descriptor as usize, 0];
    // SAFETY: a new mapping, at an address that the kernel chooses.
    address(unsafe { call(libc::SYS_mmap, arguments) })
}

/// A descriptor that a call returned.
fn descriptor(result: isize) -> Option<i32> {
    i32::try_from(result).ok().filter(|number| *number >= 0)
}

fn open_at(at: i32, name: &CStr, flags: i32) -> Option<i32> {
    let flags = (flags | libc::O_CLOEXEC | libc::O_NOFOLLOW) as usize;
    let arguments = [at as usize, name.as_ptr() as usize, flags, 0o600, 0, 0];
    // SAFETY: reads the name.
    descriptor(unsafe { call(libc::SYS_openat, arguments) })
}

/// Opens a directory that is no link.
pub fn open_directory(at: i32, name: &CStr) -> Option<i32> {
    open_at(at, name, libc::O_DIRECTORY | libc::O_RDONLY)
}

/// Makes a directory for this user alone, if nothing has the name.
pub fn make_directory(at: i32, name: &CStr) {
    let arguments = [at as usize, name.as_ptr() as usize, 0o700, 0, 0, 0];
    // SAFETY: reads the name.
    unsafe { call(libc::SYS_mkdirat, arguments) };
}

/// Creates a file of which nothing has the name.
pub fn create_file(at: i32, name: &CStr) -> Option<i32> {
    open_at(at, name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)
}

/// Opens a file that is no link, without waiting for anybody.
pub fn open_file(at: i32, name: &CStr) -> Option<i32> {
    open_at(at, name, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)
}

/// Locks an open file (flock(2)), until its last descriptor and mapping are gone. `false`: another one has it.
pub fn try_lock(descriptor: i32) -> bool {
    let operation = (libc::LOCK_EX | libc::LOCK_NB) as usize;
    // SAFETY: a descriptor of ours.
    unsafe {
        call(
            libc::SYS_flock,
            [descriptor as usize, operation, 0, 0, 0, 0],
        ) == 0
    }
}

/// The next entries of a directory, as the kernel writes them; nothing at its end.
pub fn read_directory(descriptor: i32, into: &mut [u8]) -> &[u8] {
    let (at, len) = (into.as_mut_ptr() as usize, into.len());
    // SAFETY: writes the entries.
    let result = unsafe {
        call(
            libc::SYS_getdents64,
            [descriptor as usize, at, len, 0, 0, 0],
        )
    };
    usize::try_from(result)
        .ok()
        .and_then(|len| into.get(..len))
        .unwrap_or_default()
}

/// Whether there is no process of this number.
pub fn is_gone(pid: usize) -> bool {
    // SAFETY: signal 0 is none.
    unsafe { call(libc::SYS_kill, [pid, 0, 0, 0, 0, 0]) == -(libc::ESRCH as isize) }
}

/// Removes a file.
pub fn unlink_at(at: i32, name: &CStr) {
    let arguments = [at as usize, name.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: reads the name.
    unsafe { call(libc::SYS_unlinkat, arguments) };
}

/// Closes a descriptor of ours.
pub fn close(descriptor: i32) {
    // SAFETY: nobody else has it.
    unsafe { call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

/// Makes a file so long.
pub fn set_len(descriptor: i32, len: usize) -> bool {
    // SAFETY: a file of ours.
    unsafe { call(libc::SYS_ftruncate, [descriptor as usize, len, 0, 0, 0, 0]) == 0 }
}

/// Who owns what was opened, and its rights.
pub fn owner_and_mode(descriptor: i32) -> Option<(u32, u32)> {
    let mut state = MaybeUninit::<libc::stat>::zeroed();
    let arguments = [descriptor as usize, state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: writes the state.
    let result = unsafe { call(libc::SYS_fstat, arguments) };
    // SAFETY: zeros, or what the kernel wrote.
    let state = unsafe { state.assume_init() };
    (result == 0).then_some((state.st_uid, state.st_mode))
}

/// File systems on which a page that was allocated once takes stores ever after: not those that copy on write, or over a network.
const KEEPING: [u64; 5] = [
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x794c_7630, // overlayfs
];

/// Whether stores to a mapping of the file cannot fail once its pages are allocated.
pub fn is_safe_to_map(descriptor: i32) -> bool {
    let mut state = MaybeUninit::<libc::statfs>::zeroed();
    let arguments = [descriptor as usize, state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: writes the state.
    let result = unsafe { call(libc::SYS_fstatfs, arguments) };
    // SAFETY: zeros, or what the kernel wrote.
    let state = unsafe { state.assume_init() };
    result == 0 && KEEPING.contains(&(state.f_type as u64))
}

/// Whether a file may become so long (`ulimit -f`).
pub fn may_write(len: usize) -> bool {
    limit(libc::RLIMIT_FSIZE).is_none_or(|limit| limit >= len)
}

/// Number of this process and the time when it started, as `/proc` says.
pub fn own_start() -> Option<(u64, u64)> {
    let file = open_at(libc::AT_FDCWD, c"/proc/self/stat", libc::O_RDONLY)?;
    let mut text = [0; 1024];
    let arguments = [
        file as usize,
        text.as_mut_ptr() as usize,
        text.len(),
        0,
        0,
        0,
    ];
    // SAFETY: writes the text.
    let len = usize::try_from(unsafe { call(libc::SYS_read, arguments) });
    close(file);
    let text = text.get(..len.ok()?)?;
    let number = |word: &[u8]| core::str::from_utf8(word).ok()?.parse().ok();
    let pid = text.split(|byte| *byte == b' ').next()?;
    // The name in parentheses may have anything in it. The field after it is the third.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let start = text[name_end..].split(|byte| *byte == b' ').nth(22 - 2)?;
    Some((number(pid)?, number(start)?))
}

/// Number of this process.
pub fn process_id() -> u64 {
    // SAFETY: asks for a number.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u64 }
}

/// Number of this thread.
pub fn thread_id() -> u64 {
    // SAFETY: asks for a number.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u64 }
}

/// The user whose rights this process has.
pub fn user() -> u32 {
    // SAFETY: asks for a number.
    unsafe { call(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// Whether the program has rights that its caller has not.
pub fn is_privileged() -> bool {
    // SAFETY: asks for a number that the kernel always gives.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn time(clock: i32) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time; with a clock that exists it cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_MONOTONIC_COARSE, ns: a few instructions.
pub fn coarse_time() -> u64 {
    time(libc::CLOCK_MONOTONIC_COARSE)
}

/// CLOCK_BOOTTIME, ns.
pub fn boot_time() -> u64 {
    time(libc::CLOCK_BOOTTIME)
}

/// A variable of an environment.
pub fn variable(environment: *const *const c_char, name: &CStr) -> Option<&'static CStr> {
    let mut next = environment;
    loop {
        // SAFETY: an environment ends with null; null itself is none.
        let entry = unsafe { next.as_ref() }?;
        if entry.is_null() {
            return None;
        }
        // SAFETY: a string, which stays while constructors run.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes_with_nul();
        if let Some(value) = text.strip_prefix(name.to_bytes())
            && let Some(value) = value.strip_prefix(b"=")
        {
            return CStr::from_bytes_with_nul(value).ok();
        }
        next = next.wrapping_add(1);
    }
}

/// Whether a part of the address space can be read. Not by a kernel before 5.14, which cannot say.
pub fn is_readable(start: usize, len: usize) -> bool {
    advise(start, len, libc::MADV_POPULATE_READ)
}

/// CLOCK_MONOTONIC, ns: some 20 ns.
pub fn precise_time() -> u64 {
    time(libc::CLOCK_MONOTONIC)
}
