//! Frames as lists of address ranges for vectored system calls.
//!
//! The kernel copies straight from the sender's memory: a range that a peer took away is `EFAULT`,
//! and no signal.

use libc::iovec;
use windlass_frame::{BURST, BURST_SEGMENTS, Claim, Heads, Pick};
use windlass_shm::Tails;

use crate::soft;

/// Ranges of one frame beside its segments: virtio header, addresses, tag, rest of the private bytes.
const OWN_RANGES: usize = 4;
/// The tag protocol identifier of 802.1Q.
const TPID: [u8; 2] = [0x81, 0x00];

/// The ranges of up to a burst of frames. Used again for the next ones.
pub(crate) struct Gather {
    headers: Box<[[u8; Claim::BYTES]; BURST]>,
    tags: Box<[[u8; 4]; BURST]>,
    ranges: Vec<iovec>,
    bounds: Vec<(usize, usize)>,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather {
            headers: Box::new([[0; Claim::BYTES]; BURST]),
            tags: Box::new([[0; 4]; BURST]),
            ranges: Vec::with_capacity(BURST * OWN_RANGES + BURST_SEGMENTS),
            bounds: Vec::with_capacity(BURST),
        }
    }
}

impl Gather {
    /// Forgets all frames.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.bounds.clear();
    }

    /// Frames that were added.
    pub(crate) fn len(&self) -> usize {
        self.bounds.len()
    }

    /// The ranges of each frame. Valid until `heads` changes or the section of `tails` ends; the caller passes them to one
    /// system call and forgets them.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &[iovec]> {
        let list = |(from, to): &(usize, usize)| self.ranges.get(*from..*to).unwrap_or(&[]);
        self.bounds.iter().map(list)
    }

    /// The ranges of one frame alone; as [`Gather::lists`].
    pub(crate) fn only(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        pick: Pick,
        header_bytes: usize,
    ) -> &[iovec] {
        self.clear();
        self.add(heads, tails, pick, header_bytes);
        &self.ranges
    }

    /// Adds a frame behind a virtio header of `header_bytes` (0: none). False if a burst of frames was added already.
    pub(crate) fn add(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        pick: Pick,
        header_bytes: usize,
    ) -> bool {
        let (at, from) = (self.bounds.len(), self.ranges.len());
        let (Some(header), Some(tag)) = (self.headers.get_mut(at), self.tags.get_mut(at)) else {
            return false;
        };
        let i = pick.index();
        let meta = &heads.meta[i];
        let private = heads.private(i);
        let shift = if pick.tagged() { 4 } else { 0 };
        *header = meta
            .off
            .encode(shift, u16::from(meta.l2) + meta.l3 + u16::from(meta.l4));
        if let Some(header) = header.get(..header_bytes.min(Claim::BYTES))
            && !header.is_empty()
        {
            self.ranges.push(range(header));
        }
        match private.split_at_checked(12) {
            Some((addresses, rest)) if pick.tagged() => {
                let [hi, lo] = soft::tci(meta).0.to_be_bytes();
                *tag = [TPID[0], TPID[1], hi, lo];
                self.ranges
                    .extend([range(addresses), range(tag), range(rest)]);
            }
            _ => self.ranges.push(range(private)),
        }
        let segments = tails.of(i).map(|segment| iovec {
            iov_base: segment.as_ptr().cast_mut().cast(),
            iov_len: segment.len(),
        });
        self.ranges.extend(segments);
        self.bounds.push((from, self.ranges.len()));
        true
    }
}

/// A range that is only read.
fn range(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}
