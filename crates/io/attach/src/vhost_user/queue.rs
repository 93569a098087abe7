//! One queue as both sides agreed on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_sys::eventfd;

use super::features::{SUPPORTED, VERSION_1};
use super::guest_map::GuestMap;

/// The largest ring (VIRTIO 1.2, 2.7).
pub const SIZE_MAX: u16 = 32_768;

/// What the messages of a connection come to, for one queue. Addresses are the guest's: the front end announces its
/// own virtual ones, and whoever speaks the messages translates them by the same memory table.
#[derive(Debug)]
pub struct QueueSetup {
    /// The guest's memory.
    pub map: Arc<GuestMap>,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// Descriptors: a power of two.
    pub size: u16,
    /// Index of the first chain that was not used yet (`VHOST_USER_SET_VRING_BASE`).
    pub base: u16,
    /// Feature bits that the guest accepted.
    pub features: u64,
    /// Readable when the guest has made chains available.
    pub kick: Option<OwnedFd>,
    /// Interrupts the guest.
    pub call: Option<OwnedFd>,
}

/// Why a queue was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Not a power of two up to [`SIZE_MAX`].
    #[error("a ring of {0} descriptors")]
    Size(u16),
    /// A part of the ring does not lie in one region of the guest's memory, or is not aligned.
    #[error("the {part} at guest address {gpa:#x} is not in the guest's memory, or not aligned")]
    Place {
        /// Which part.
        part: &'static str,
        /// Where it was said to be.
        gpa: u64,
    },
    /// Bits that were never offered.
    #[error("feature bits {0:#x} are not done here")]
    Features(u64),
    /// A device of before VIRTIO 1.0.
    #[error("the guest did not accept VIRTIO_F_VERSION_1")]
    Legacy,
    /// Any other file could keep a worker waiting.
    #[error("the {0} descriptor is not an eventfd")]
    NotEventfd(&'static str),
}

impl QueueSetup {
    /// Refuses what does not depend on memory.
    pub(super) fn check(&self) -> Result<(), QueueError> {
        if !self.size.is_power_of_two() || self.size > SIZE_MAX {
            return Err(QueueError::Size(self.size));
        }
        if self.features & VERSION_1 == 0 {
            return Err(QueueError::Legacy);
        }
        if self.features & !SUPPORTED != 0 {
            return Err(QueueError::Features(self.features & !SUPPORTED));
        }
        for (name, fd) in [("kick", &self.kick), ("call", &self.call)] {
            let Some(fd) = fd else { continue };
            if !eventfd::is_eventfd(fd) || eventfd::set_nonblocking(fd).is_err() {
                return Err(QueueError::NotEventfd(name));
            }
        }
        Ok(())
    }
}
