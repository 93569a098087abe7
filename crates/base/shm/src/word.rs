//! Single words in shared memory: loads and stores with an order, never a reference.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

macro_rules! words {
    ($( $load:ident, $store:ident, $atomic:ty, $int:ty; )*) => { $(
        /// Loads the word at `p`.
        ///
        /// # Safety
        /// `p` must be aligned for the word and stay mapped during the call.
        #[inline(always)]
        pub unsafe fn $load(p: *const $int, order: Ordering) -> $int {
            // SAFETY: aligned and mapped (caller); an atomic may be shared with any other process.
            let word = unsafe { &*p.cast::<$atomic>() };
            word.load(order)
        }

        /// Stores the word at `p`.
        ///
        /// # Safety
        /// `p` must be aligned for the word and stay mapped and writable during the call.
        #[inline(always)]
        pub unsafe fn $store(p: *mut $int, value: $int, order: Ordering) {
            // SAFETY: aligned and mapped (caller); an atomic may be shared with any other process.
            let word = unsafe { &*p.cast::<$atomic>() };
            word.store(value, order);
        }
    )* };
}

words! {
    load_u8, store_u8, AtomicU8, u8;
    load_u16, store_u16, AtomicU16, u16;
    load_u32, store_u32, AtomicU32, u32;
    load_u64, store_u64, AtomicU64, u64;
}
