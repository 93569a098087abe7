//! Scatter and gather over memory that Rust may not hold a reference to.
//!
//! A guest's memory can change under the kernel's hands, so no slice may be made of it. These
//! calls take addresses instead; the kernel copies, and an address that is no longer mapped, or
//! lies past the end of its file, is `EFAULT` and no signal.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

pub use libc::iovec;

/// Most entries in one call (`UIO_MAXIOV`).
pub const IOVECS_MAX: usize = 1024;

fn outcome(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_errno())
}

/// The errno that the last failed libc call of this thread left.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `readv(2)`. Returns the bytes read; on a TAP, one frame.
///
/// # Errors
/// As `readv(2)`; `EFAULT` if a range is not mapped; `EINVAL` above [`IOVECS_MAX`] entries.
///
/// # Safety
/// For each entry, nothing in this process may hold a reference to memory in the range, and
/// writing any bytes to it must break no invariant of its owner. A range need not be mapped.
pub unsafe fn readv_raw(fd: impl AsFd, ranges: &[iovec]) -> Result<usize, Errno> {
    let count = ranges.len().min(IOVECS_MAX + 1) as libc::c_int;
    // SAFETY: the list is a live slice of that length; the caller vouches for what it points to.
    let result = unsafe { libc::readv(fd.as_fd().as_raw_fd(), ranges.as_ptr(), count) };
    outcome(result)
}

/// `writev(2)`. Returns the bytes written; on a TAP, one frame.
///
/// # Errors
/// As `writev(2)`; `EFAULT` if a range is not mapped; `EINVAL` above [`IOVECS_MAX`] entries.
///
/// # Safety
/// For each entry, the bytes in the range may be disclosed to whoever reads the other side of
/// `fd`. A range need not be mapped and may change meanwhile.
pub unsafe fn writev_raw(fd: impl AsFd, ranges: &[iovec]) -> Result<usize, Errno> {
    let count = ranges.len().min(IOVECS_MAX + 1) as libc::c_int;
    // SAFETY: the list is a live slice of that length; the caller vouches for what it points to.
    let result = unsafe { libc::writev(fd.as_fd().as_raw_fd(), ranges.as_ptr(), count) };
    outcome(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range that is not mapped is an error and not a fault, in both directions.
    #[test]
    fn unmapped_range_is_efault() -> Result<(), Errno> {
        let (reader, writer) = rustix::pipe::pipe()?;
        let nowhere = [iovec {
            iov_base: std::ptr::without_provenance_mut(4096),
            iov_len: 16,
        }];
        // SAFETY: address 4096 is below mmap_min_addr, so nothing of ours is there.
        assert_eq!(unsafe { writev_raw(&writer, &nowhere) }, Err(Errno::FAULT));
        rustix::io::write(&writer, b"0123456789")?;
        // SAFETY: as above.
        assert_eq!(unsafe { readv_raw(&reader, &nowhere) }, Err(Errno::FAULT));
        Ok(())
    }

    /// Bytes arrive in the order of the ranges.
    #[test]
    fn scatters_in_order() -> Result<(), Errno> {
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::write(&writer, b"headbody")?;
        let mut space = [0u8; 8];
        let start = space.as_mut_ptr();
        let ranges = [
            iovec {
                iov_base: start.wrapping_add(4).cast(),
                iov_len: 4,
            },
            iovec {
                iov_base: start.cast(),
                iov_len: 4,
            },
        ];
        // SAFETY: both ranges lie in `space`, to which no reference is in use meanwhile.
        assert_eq!(unsafe { readv_raw(&reader, &ranges) }, Ok(8));
        assert_eq!(&space, b"bodyhead");
        Ok(())
    }
}
