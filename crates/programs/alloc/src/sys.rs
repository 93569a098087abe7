//! The kernel's calls. None of them touches `errno`.

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

/// Addresses that nobody may touch.
pub fn reserve(len: usize) -> Option<usize> {
    map(
        len,
        libc::PROT_NONE as usize,
        ANONYMOUS | libc::MAP_NORESERVE,
    )
}

/// Memory that children share; it reads as zeros.
pub fn map_shared(len: usize) -> Option<usize> {
    map(len, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
}

/// Puts pages of the reserve in the place of memory of ours in which nobody has anything, all of them now. `false`: it is as before, because
/// the reserve has no room.
pub fn map_reserved(start: usize, len: usize) -> bool {
    let pages = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let is_there = map_over(start, len, pages) && {
        let arguments = [start, len, libc::MADV_POPULATE_WRITE as usize, 0, 0, 0];
        // SAFETY: memory of ours, whose contents stay.
        unsafe { call(libc::SYS_madvise, arguments) == 0 }
    };
    if !is_there {
        unmap_reserved(start, len);
    }
    is_there
}

/// Puts ordinary memory that reads as zeros in the place of memory in which nobody has anything.
pub fn unmap_reserved(start: usize, len: usize) {
    map_over(start, len, 0);
}

fn map_over(start: usize, len: usize, more: i32) -> bool {
    let flags = ANONYMOUS | libc::MAP_FIXED | more;
    let arguments = [start, len, READ_WRITE, flags as usize, usize::MAX, 0];
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
    unsafe { call(libc::SYS_mprotect, arguments) == 0 }
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
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    let (resource, old) = (libc::RLIMIT_AS as usize, &raw mut limit as usize);
    // SAFETY: writes the limit.
    unsafe { call(libc::SYS_prlimit64, [0, resource, 0, old, 0, 0]) };
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
