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

/// Has the kernel keep of what comes to a socket only what this program (`<linux/filter.h>`) lets through.
pub(crate) fn set_filter(fd: impl AsFd, program: &mut [libc::sock_filter]) -> Result<(), Errno> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel only reads the structure and the instructions that it points to; both outlive the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// One instruction of such a program, with jumps over so many where it holds and where it does not.
pub(crate) fn instruction(code: u32, k: u32, [jt, jf]: [u8; 2]) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
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
