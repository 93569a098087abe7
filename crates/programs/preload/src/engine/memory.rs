//! The program's memory, which may not be there: values are fetched and put by the channel's copy routine, in which a
//! fault ends the copy.

use std::mem::MaybeUninit;

use windlass_channel::copy::copy;

/// A value of the program's; none if it is not all there.
#[inline]
pub fn fetch<T: Copy>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the value is ours and has that size; a fault in reading ends the copy.
    let copied = unsafe { copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) };
    // SAFETY: all bytes were copied, from where the program keeps such a value.
    (copied == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// Writes a value where the program wants it; false if there is no memory.
#[inline]
pub fn put<T: Copy>(to: *mut T, value: T) -> bool {
    put_all(to, &[value])
}

/// The same for several values.
#[inline]
pub fn put_all<T: Copy>(to: *mut T, values: &[T]) -> bool {
    let bytes = size_of_val(values);
    // SAFETY: the values are ours and have that size; a fault in writing ends the copy.
    unsafe { copy(to.cast(), values.as_ptr().cast(), bytes) == bytes }
}

/// Several values of the program's; false if they are not all there.
#[inline]
pub fn fetch_all<T: Copy>(into: &mut [T], from: *const T) -> bool {
    let bytes = size_of_val(into);
    // SAFETY: the values are ours and have that size; a fault in reading ends the copy.
    unsafe { copy(into.as_mut_ptr().cast(), from.cast(), bytes) == bytes }
}
