//! Socket options and ioctls that rustix does not know.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::vectored::last_errno;

/// Sets an option whose value is the bytes of `value`.
pub(crate) fn set_bytes(fd: impl AsFd, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: setsockopt only reads, and only as many bytes as it is told the slice has.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Sets an option of type `int`.
pub(crate) fn set_int(fd: impl AsFd, level: i32, option: i32, value: i32) -> Result<(), Errno> {
    set_bytes(fd, level, option, &value.to_ne_bytes())
}

/// Reads an option into `value`; returns how many bytes the kernel wrote.
pub(crate) fn get_bytes(
    fd: impl AsFd,
    level: i32,
    option: i32,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: getsockopt writes at most `len` bytes, which is the length of the slice.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(len as usize)
    } else {
        Err(last_errno())
    }
}
