//! Frames in the ring's own memory: no copy.
//!
//! # Failure modes
//! The daemon can write to this memory at any time. So Rust programs get addresses and copies, never a reference; a C program reads
//! each byte once if it decides on it.

use core::fmt;
use core::marker::PhantomData;

use windlass_attach::memif::offer::BUFFER_BYTES;
use windlass_shm::{copy_in, copy_out};
use windlass_sys::Errno;

use crate::device::Device;
use crate::frameio::{FRAME_MIN, FRAMEIO_NVECS_MAX};
use crate::offload::Offload;
use crate::rx::Place;
use crate::tx::Grant;

/// Received frames that are lent. Dropped without [`Peeked::release`], they stay to be read.
pub struct Peeked<'a> {
    device: &'a Device,
    frames: [Place; FRAMEIO_NVECS_MAX],
    count: usize,
}

/// One lent frame.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    place: Place,
    _lent: PhantomData<&'a [u8]>,
}

/// Reserved buffers. Dropped without [`Reserved::commit`], they are abandoned.
#[derive(Debug)]
pub struct Reserved<'a> {
    device: &'a Device,
    grant: Option<Grant>,
}

impl Device {
    /// Lends the next frames, at most `max` and at most 32.
    ///
    /// # Errors
    /// As [`Device::read`]; `EOVERFLOW` if the first frame does not lie in one buffer: it is to be read. `EINVAL` for a `max` of 0.
    pub fn peek(&self, max: usize) -> Result<Peeked<'_>, Errno> {
        let mut frames = [Place::default(); FRAMEIO_NVECS_MAX];
        let max = max.min(FRAMEIO_NVECS_MAX);
        let count = self.lend(frames.get_mut(..max).unwrap_or_default())?;
        Ok(Peeked {
            device: self,
            frames,
            count,
        })
    }

    /// Reserves `count` buffers of 2048 bytes, 1 to 32, all or none. Frames of other threads that are reserved later leave later: an
    /// uncommitted reservation holds them up.
    ///
    /// # Errors
    /// As [`Device::write`].
    pub fn reserve(&self, count: usize) -> Result<Reserved<'_>, Errno> {
        if !(1..=FRAMEIO_NVECS_MAX).contains(&count) {
            return Err(Errno::INVAL);
        }
        let grant = Some(self.reserve_slots(count)?);
        Ok(Reserved {
            device: self,
            grant,
        })
    }
}

impl Peeked<'_> {
    /// How many frames are lent; at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Never: at least one is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The frames, in their order.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = Lent<'_>> {
        let lent = |place: &Place| Lent {
            place: *place,
            _lent: PhantomData,
        };
        self.frames
            .get(..self.count)
            .unwrap_or_default()
            .iter()
            .map(lent)
    }

    /// Takes the first `count` as read; the others come again.
    pub fn release(self, count: usize) {
        let count = count.min(self.count);
        let _ = self.device.unlend(count);
        core::mem::forget(self);
    }
}

impl Drop for Peeked<'_> {
    fn drop(&mut self) {
        let _ = self.device.unlend(0);
    }
}

impl fmt::Debug for Peeked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames()).finish()
    }
}

impl Lent<'_> {
    /// Bytes of the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.place.len
    }

    /// What is still to be done with it, for a handle that has asked.
    #[must_use]
    pub fn offload(&self) -> Offload {
        self.place.offload
    }

    /// Never: a frame has bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.place.len == 0
    }

    /// Its first byte. Valid as long as this is; the daemon may write there.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.place.ptr
    }

    /// Copies the bytes from `at` on; gives how many there were.
    pub fn copy(&self, at: usize, to: &mut [u8]) -> usize {
        let n = self.place.len.saturating_sub(at).min(to.len());
        // SAFETY: `n` bytes inside the buffer, which is lent as long as this is; `to` is private.
        unsafe { copy_in(to.as_mut_ptr(), self.place.ptr.wrapping_add(at), n) };
        n
    }
}

impl Reserved<'_> {
    /// How many buffers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.grant.as_ref().map_or(0, |grant| grant.count().into())
    }

    /// Never: at least one is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte of a buffer, which has room for 2048.
    #[must_use]
    pub fn buffer(&mut self, number: usize) -> Option<*mut u8> {
        let grant = self.grant.as_ref()?;
        let number = u16::try_from(number).ok().filter(|n| *n < grant.count())?;
        Some(grant.buffer(number).0)
    }

    /// Copies a frame into a buffer. False if there is no such buffer, or the frame is longer.
    pub fn put(&mut self, number: usize, frame: &[u8]) -> bool {
        let Some(to) = self
            .buffer(number)
            .filter(|_| frame.len() <= BUFFER_BYTES as usize)
        else {
            return false;
        };
        // SAFETY: a buffer of ours with room for so many bytes.
        unsafe { copy_out(to, frame.as_ptr(), frame.len()) };
        true
    }

    /// Sends the frames in the first buffers, of so many bytes each: one length for each frame, fewer than there are buffers leave the rest
    /// unused.
    ///
    /// # Errors
    /// `EINVAL`: more lengths than buffers, none, or one that is not within 14 to 2048. Nothing is sent.
    pub fn commit(self, lens: &[usize]) -> Result<(), Errno> {
        self.commit_frames(lens.iter().map(|len| (*len, Offload::default())))
    }

    /// The same, with what is still to be done with each frame.
    ///
    /// # Errors
    /// `EINVAL` also for what no frame can ask, or the handle has not asked for.
    pub fn commit_offload(self, frames: &[(usize, Offload)]) -> Result<(), Errno> {
        self.commit_frames(frames.iter().copied())
    }

    fn commit_frames(
        mut self,
        frames: impl ExactSizeIterator<Item = (usize, Offload)> + Clone,
    ) -> Result<(), Errno> {
        let Some(grant) = self.grant.take() else {
            return Err(Errno::INVAL);
        };
        commit(self.device, grant, frames)
    }
}

/// [`Reserved::commit_offload`].
pub(crate) fn commit(
    device: &Device,
    grant: Grant,
    frames: impl ExactSizeIterator<Item = (usize, Offload)> + Clone,
) -> Result<(), Errno> {
    let mut all = frames.clone();
    let is_good = (1..=usize::from(grant.count())).contains(&frames.len())
        && all.all(|(len, offload)| {
            (FRAME_MIN..=BUFFER_BYTES as usize).contains(&len) && device.word(&offload).is_ok()
        });
    if !is_good {
        abandon(device, grant);
        return Err(Errno::INVAL);
    }
    grant.describe(frames.map(|(len, offload)| (len as u32, device.word(&offload).unwrap_or(0))));
    device.publish(grant);
    Ok(())
}

fn abandon(device: &Device, grant: Grant) {
    grant.describe(core::iter::empty());
    device.publish(grant);
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            abandon(self.device, grant);
        }
    }
}
