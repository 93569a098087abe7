//! The program's memory, which may not be there: values are fetched and put by the channel's copy routine, in which a
//! fault ends the copy.

use std::mem::MaybeUninit;

use windlass_channel::copy::copy;

/// A value of the program's; none if it is not all there.
#[inline]
pub fn fetch<T: Copy>(from: *const T) -> Option<T> {
    let mut value = [MaybeUninit::<T>::uninit()];
    // SAFETY: all bytes were copied, from where the program keeps such a value.
    fetch_all(&mut value, from.cast()).then(|| unsafe { value[0].assume_init() })
}

/// Writes a value where the program wants it; false if there is no memory.
#[inline]
pub fn put<T: Copy>(to: *mut T, value: T) -> bool {
    put_all(to, &[value])
}

/// Whether the program's memory can be read: looks at a byte of each page.
#[inline]
pub fn readable(from: *const u8, bytes: usize) -> bool {
    let last = bytes.saturating_sub(1);
    let mut at = 0;
    while at < last {
        if fetch(from.wrapping_add(at)).is_none() {
            return false;
        }
        at += 4_096;
    }
    fetch(from.wrapping_add(last)).is_some()
}

#[inline]
pub fn put_all<T: Copy>(to: *mut T, values: &[T]) -> bool {
    let bytes = size_of_val(values);
    // SAFETY: the values are ours and have that size; a fault in writing ends the copy.
    unsafe { copy(to.cast(), values.as_ptr().cast(), bytes) == bytes }
}

/// Several values of the program's; false if they are not all there. A null pointer, which means that there is none, costs no
/// fault: signals take microseconds.
#[inline]
pub fn fetch_all<T: Copy>(into: &mut [T], from: *const T) -> bool {
    if from.is_null() {
        return false;
    }
    let bytes = size_of_val(into);
    // SAFETY: the values are ours and have that size; a fault in reading ends the copy.
    unsafe { copy(into.as_mut_ptr().cast(), from.cast(), bytes) == bytes }
}

#[cfg(test)]
mod tests {
    use windlass_channel::copy;

    use super::*;
    use crate::process::signals;

    /// Memory that is not there is noticed, at the first byte, at the last, and inside a longer range.
    #[test]
    fn missing_memory_is_noticed() {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // The standard library has taken both in a test.
            // SAFETY: zeroes are the default.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: live variables.
            unsafe { crate::sys::real::sigaction(signal, &default, std::ptr::null_mut()) };
        }
        signals::set_fixup(copy::start(), copy::end(), copy::fixup());
        signals::guard();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: an anonymous mapping at any address.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), 3 * 4_096, access, flags, -1, 0) };
        let start: *const u8 = place.cast();
        let middle = start.wrapping_add(4_096).cast_mut().cast();
        // SAFETY: the middle page of the mapping.
        unsafe { libc::mprotect(middle, 4_096, libc::PROT_NONE) };
        assert!(readable(start, 4_096));
        assert!(!readable(start, 4_097));
        assert!(!readable(start.wrapping_add(4_096), 1));
        assert!(!readable(start, 3 * 4_096));
        assert!(readable(start.wrapping_add(8_192), 4_096));
        let mut two = [0u64; 2];
        assert!(fetch_all(&mut two, start.wrapping_add(4_080).cast()));
        assert!(!fetch_all(&mut two, start.wrapping_add(4_088).cast()));
        assert!(!fetch_all(&mut two, std::ptr::null()));
    }
}
