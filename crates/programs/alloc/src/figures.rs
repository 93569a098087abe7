//! mallinfo2 and its neighbours.

use core::ffi::c_int;

use crate::cache;
use crate::heap;
use crate::umem;

/// `mallinfo2(3)`: `arena` is what the arena holds of memory, `hblks` and `hblkhd` are mappings, `uordblks` is what the program has,
/// `fordblks` is the rest, `keepcost` is what could go back to the kernel at once.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let cached = cache::bytes();
    let mut totals = heap::totals();
    let (small, slabs) = umem::totals();
    totals.small += small;
    totals.slabs += slabs;
    // The locks are taken one after another: while other threads allocate, the parts are of different moments.
    let in_use = (totals.small + totals.used).saturating_sub(totals.slabs + cached);
    let arena = totals.used + totals.kept;
    libc::mallinfo2 {
        arena,
        ordblks: 0,
        smblks: 0,
        hblks: totals.mappings,
        hblkhd: totals.mapped,
        usmblks: 0,
        fsmblks: 0,
        uordblks: in_use + totals.mapped,
        fordblks: arena.saturating_sub(in_use),
        keepcost: totals.kept,
    }
}

/// `malloc_trim(3)`: everything that holds nothing goes back to the kernel. Returns 1 if anything did.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_: usize) -> c_int {
    if let Some(cache) = cache::own() {
        cache.flush_all();
    }
    heap::drain();
    umem::trim();
    let before = heap::totals().kept;
    heap::give_back(|_| 0);
    c_int::from(before > 0)
}

/// `mallopt(3)`: accepted, and without effect.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_: c_int, _: c_int) -> c_int {
    1
}
