//! One frame as a list of address ranges for a vectored system call.
//!
//! The kernel copies straight from the sender's memory: a range that a peer took away is `EFAULT`,
//! and no signal.

use libc::iovec;
use windlass_frame::{Claim, Heads, Pick};
use windlass_shm::Tails;

/// Ranges of one frame at most: virtio header, addresses, tag, rest of the private bytes, and the 64 segments that a
/// chain may have.
const RANGES: usize = 4 + 64;
/// The tag protocol identifier of 802.1Q.
const TPID: [u8; 2] = [0x81, 0x00];
/// Priority and drop-eligible bits of a tag.
const PRIORITY: u16 = 0xf000;

/// The ranges of one frame. Used again for the next one.
pub(crate) struct Gather {
    header: [u8; Claim::BYTES],
    tag: [u8; 4],
    ranges: [iovec; RANGES],
    used: usize,
}

impl Gather {
    pub(crate) fn new() -> Gather {
        Gather {
            header: [0; Claim::BYTES],
            tag: [0; 4],
            ranges: [iovec {
                iov_base: core::ptr::null_mut(),
                iov_len: 0,
            }; RANGES],
            used: 0,
        }
    }

    /// The ranges of one frame behind a virtio header of `header_bytes` (0: none), or `None` if it has too many segments.
    /// Valid until `heads` changes or the section of `tails` ends; the caller passes them to one system call and
    /// forgets them.
    pub(crate) fn frame(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        pick: Pick,
        header_bytes: usize,
    ) -> Option<&[iovec]> {
        let i = pick.index();
        let meta = &heads.meta[i];
        let private = heads.private(i);
        let shift = if pick.tagged() { 4 } else { 0 };
        self.header = meta
            .off
            .encode(shift, u16::from(meta.l2) + meta.l3 + u16::from(meta.l4));
        self.used = 0;
        if header_bytes != 0 {
            let n = header_bytes.min(Claim::BYTES);
            self.push(range(self.header.get(..n)?))?;
        }
        if pick.tagged() && private.len() >= 12 {
            let [hi, lo] = (meta.tci & PRIORITY | meta.vid).to_be_bytes();
            self.tag = [TPID[0], TPID[1], hi, lo];
            let (addresses, rest) = private.split_at(12);
            self.push(range(addresses))?;
            self.push(range(&self.tag))?;
            self.push(range(rest))?;
        } else {
            self.push(range(private))?;
        }
        for segment in tails.of(i) {
            let iov_base = segment.as_ptr().cast_mut().cast();
            self.push(iovec {
                iov_base,
                iov_len: segment.len(),
            })?;
        }
        self.ranges.get(..self.used)
    }

    fn push(&mut self, range: iovec) -> Option<()> {
        *self.ranges.get_mut(self.used)? = range;
        self.used += 1;
        Some(())
    }
}

/// A range that is only read.
fn range(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}
