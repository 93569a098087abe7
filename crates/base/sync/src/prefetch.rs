//! Starts a cache miss early, behind safe calls: engines forbid `unsafe`, and the intrinsics need
//! it.
//!
//! # Model
//!
//! A prefetch is a hint. It changes no value, and an address that is unmapped, foreign or nonsense
//! makes the processor drop it instead of raising a fault (Intel SDM volume 2, PREFETCHh; Arm ARM,
//! PRFM), so any pointer is fine.
//!
//! [`read`] brings a line in for reading. [`write()`] brings it in for writing: a line that another
//! core has is then taken over in one coherence transaction, where a read followed by a write takes
//! two.

use std::arch::asm;

/// Prefetches the line at `address` into all cache levels, to be read.
#[inline(always)]
pub fn read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 reads no value and never faults, whatever the address.
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM reads no value and never faults, whatever the address.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
}

/// Prefetches the line at `address` into all cache levels, to be written.
///
/// `prefetchw` is written out because the compiler turns its own write hint into a read hint unless
/// the build names a processor. All 64-bit processors accept the instruction.
#[inline(always)]
pub fn write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW reads no value, changes none and never faults, whatever the address.
    unsafe {
        asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM reads no value, changes none and never faults, whatever the address.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
}

/// Prefetches the first line of `value`, to be read.
#[inline(always)]
pub fn read_ref<T: ?Sized>(value: &T) {
    read((&raw const *value).cast());
}

/// Tells the processor that this is a spin loop (PAUSE, on aarch64 ISB): about 40 to 140 cycles, during
/// which the sibling hyperthread runs and the polled line stays with its writer.
#[inline(always)]
pub fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// No address makes a prefetch fault, and prefetching for writing leaves the value alone.
    #[test]
    fn any_address_is_accepted() {
        let word = 0x5a5a_u64;
        read_ref(&word);
        write((&raw const word).cast());
        for address in [0usize, 1, 4096, usize::MAX, 0xdead_beef_dead_beef] {
            read(address as *const u8);
            write(address as *const u8);
        }
        pause();
        assert_eq!(word, 0x5a5a);
    }
}
