//! Several vectored reads or writes in one system call (`io_uring`, Linux 5.11).
//!
//! # Model
//! A batch is submitted and waited for in one `io_uring_enter`. Each operation carries `RWF_NOWAIT`: the kernel does it at
//! once, in the order of the batch, or answers `EAGAIN`; none is left behind in the kernel, so nothing that it points to
//! has to outlive the call.
//!
//! # Failure modes
//! `io_uring` may be switched off (`kernel.io_uring_disabled`, a container's seccomp filter): [`Batch::new`] says so, and
//! the caller falls back to [`crate::vectored`].

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types::Fd};
use libc::iovec;
use rustix::io::Errno;

/// Operations in one batch at most.
pub const BATCH_MAX: usize = 64;

/// A submission and a completion queue of one thread.
pub struct Batch {
    ring: IoUring,
}

impl core::fmt::Debug for Batch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Batch {
    /// Makes the queues.
    ///
    /// # Errors
    /// `ENOSYS`, `EPERM` where the kernel or a filter refuses `io_uring`; `ENOMEM`.
    pub fn new() -> Result<Batch, Errno> {
        let ring = IoUring::builder()
            .setup_submit_all()
            .build(BATCH_MAX as u32)
            .map_err(|e| errno(&e))?;
        Ok(Batch { ring })
    }

    /// One `readv(2)` for each list, in order; `results` gets the bytes read, up to the shorter of the two lengths and
    /// [`BATCH_MAX`]. Returns how many were done.
    ///
    /// # Errors
    /// Of the submission; single operations fail in `results`, with `EAGAIN` where nothing waits.
    ///
    /// # Safety
    /// As [`crate::vectored::readv_raw`], for every list.
    pub unsafe fn readv<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        lists: impl Iterator<Item = &'a [iovec]>,
        results: &mut [Result<usize, Errno>],
    ) -> Result<usize, Errno> {
        let fd = Fd(fd.as_raw_fd());
        let entries = lists.map(|list| {
            opcode::Readv::new(fd, list.as_ptr(), list.len() as u32)
                .rw_flags(libc::RWF_NOWAIT)
                .build()
        });
        // SAFETY: the caller vouches for the ranges; the lists live until the call returns.
        unsafe { self.perform(entries, results) }
    }

    /// One `writev(2)` for each list, in order; as [`Batch::readv`].
    ///
    /// # Errors
    /// As [`Batch::readv`].
    ///
    /// # Safety
    /// As [`crate::vectored::writev_raw`], for every list.
    pub unsafe fn writev<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        lists: impl Iterator<Item = &'a [iovec]>,
        results: &mut [Result<usize, Errno>],
    ) -> Result<usize, Errno> {
        let fd = Fd(fd.as_raw_fd());
        let entries = lists.map(|list| {
            opcode::Writev::new(fd, list.as_ptr(), list.len() as u32)
                .rw_flags(libc::RWF_NOWAIT)
                .build()
        });
        // SAFETY: as above.
        unsafe { self.perform(entries, results) }
    }

    /// Submits and waits.
    ///
    /// # Safety
    /// What the entries point to is valid until this returns, and the kernel may read or write it.
    unsafe fn perform(
        &mut self,
        entries: impl Iterator<Item = squeue::Entry>,
        results: &mut [Result<usize, Errno>],
    ) -> Result<usize, Errno> {
        let mut count = 0;
        {
            let mut queue = self.ring.submission();
            for entry in entries.take(results.len().min(BATCH_MAX)) {
                let entry = entry.user_data(count as u64);
                // SAFETY: valid until the operation is over: the loop below waits for it.
                if unsafe { queue.push(&entry) }.is_err() {
                    break;
                }
                count += 1;
            }
        }
        let mut done = 0;
        while done < count {
            match self.ring.submit_and_wait(count - done) {
                Ok(_) => {}
                Err(e) if errno(&e) == Errno::INTR => {}
                Err(e) => return self.give_up(errno(&e)),
            }
            for entry in self.ring.completion() {
                if let Some(result) = results.get_mut(entry.user_data() as usize) {
                    *result = usize::try_from(entry.result())
                        .map_err(|_| Errno::from_raw_os_error(-entry.result()));
                }
                done += 1;
            }
        }
        Ok(count)
    }

    /// The submission was refused: what the kernel has not taken must not be taken later, when it points to nothing.
    fn give_up(&mut self, why: Errno) -> Result<usize, Errno> {
        *self = Batch::new()?;
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn range(bytes: &mut [u8]) -> [iovec; 1] {
        [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }]
    }

    /// Operations are done in order, each with its own answer; a read with nothing to read is `EAGAIN` at once, also on
    /// a descriptor that would block.
    #[test]
    fn in_order_and_never_waiting() -> Result<(), Errno> {
        let (reader, writer) = rustix::pipe::pipe()?;
        let mut batch = Batch::new()?;
        let (mut one, mut two) = (*b"one", *b"two!");
        let lists = [range(&mut one), range(&mut two)];
        let mut results = [Ok(0); 2];
        // SAFETY: the ranges are arrays above, used by nobody else meanwhile.
        let done = unsafe {
            batch.writev(
                writer.as_fd(),
                lists.iter().map(|l| l.as_slice()),
                &mut results,
            )
        }?;
        assert_eq!((done, results), (2, [Ok(3), Ok(4)]));
        let (mut first, mut second, mut third) = ([0u8; 3], [0u8; 8], [0u8; 8]);
        let lists = [range(&mut first), range(&mut second), range(&mut third)];
        let mut results = [Ok(0); 3];
        // SAFETY: as above.
        let done = unsafe {
            batch.readv(
                reader.as_fd(),
                lists.iter().map(|l| l.as_slice()),
                &mut results,
            )
        }?;
        assert_eq!((done, results), (3, [Ok(3), Ok(4), Err(Errno::AGAIN)]));
        assert_eq!((&first, &second[..4]), (b"one", b"two!".as_slice()));
        Ok(())
    }

    /// A range that is not mapped fails its own operation, and the others are done.
    #[test]
    fn a_fault_costs_one_operation() -> Result<(), Errno> {
        let (reader, writer) = rustix::pipe::pipe()?;
        let mut batch = Batch::new()?;
        let mut good = *b"good";
        let nowhere = [iovec {
            iov_base: std::ptr::without_provenance_mut(4096),
            iov_len: 16,
        }];
        let lists = [nowhere, range(&mut good)];
        let mut results = [Ok(0); 2];
        // SAFETY: address 4096 is below mmap_min_addr, so nothing of ours is there; `good` is ours alone.
        unsafe {
            batch.writev(
                writer.as_fd(),
                lists.iter().map(|l| l.as_slice()),
                &mut results,
            )
        }?;
        assert_eq!(results, [Err(Errno::FAULT), Ok(4)]);
        let mut space = [0u8; 8];
        assert_eq!(rustix::io::read(&reader, &mut space), Ok(4));
        Ok(())
    }
}
