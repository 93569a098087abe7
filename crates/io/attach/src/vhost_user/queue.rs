//! One queue as both sides agreed on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_sys::eventfd;

use super::features::{LOG_ALL, RING_PACKED, SUPPORTED, VERSION_1};
use super::guest_map::GuestMap;
use super::log::DirtyLog;

/// The largest ring (VIRTIO 1.2, 2.7 and 2.8.10.1).
pub const SIZE_MAX: u16 = 32_768;
/// Features that a queue can be made with; [`VERSION_1`] must be among them.
pub const ACCEPTED: u64 = SUPPORTED | RING_PACKED | LOG_ALL;

/// Where a queue stands: what `VHOST_USER_SET_VRING_BASE` says and `GET_VRING_BASE` asks for.
///
/// Chains are given back in order, so that both places are the same when a queue stands still: the first chain that
/// was not given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Split: index of the available ring. Packed: descriptor, below the size.
    pub avail: u16,
    /// Split: index of the used ring, which is that of the available ring. Packed: descriptor, below the size.
    pub used: u16,
    /// Packed: the driver's wrap counter at `avail`.
    pub avail_wrap: bool,
    /// Packed: the device's wrap counter at `used`.
    pub used_wrap: bool,
}

impl Base {
    /// A split ring that stands at `index`.
    pub const fn split(index: u16) -> Base {
        Base {
            avail: index,
            used: index,
            avail_wrap: true,
            used_wrap: true,
        }
    }

    /// A packed ring that stands at descriptor `slot` in a lap with wrap counter `wrap`.
    pub const fn packed(slot: u16, wrap: bool) -> Base {
        Base {
            avail: slot,
            used: slot,
            avail_wrap: wrap,
            used_wrap: wrap,
        }
    }
}

/// What the messages of a connection come to, for one queue. Addresses are the guest's: the front end announces its
/// own virtual ones, and whoever speaks the messages translates them by the same memory table.
#[derive(Debug)]
pub struct QueueSetup {
    /// The guest's memory.
    pub map: Arc<GuestMap>,
    /// Guest address of the descriptor table, or of the packed ring.
    pub desc: u64,
    /// Guest address of the available ring, or of the driver's event suppression structure.
    pub avail: u64,
    /// Guest address of the used ring, or of the device's event suppression structure.
    pub used: u64,
    /// Descriptors: up to [`SIZE_MAX`]; a power of two in a split ring.
    pub size: u16,
    /// Where the ring stands. What is available and not used at the start is taken again: `base.used` counts.
    pub base: Base,
    /// Feature bits that the guest accepted.
    pub features: u64,
    /// Readable when the guest has made chains available.
    pub kick: Option<OwnedFd>,
    /// Interrupts the guest.
    pub call: Option<OwnedFd>,
    /// Where pages that we write are logged, while the front end asks for it ([`LOG_ALL`]).
    pub log: Option<Arc<DirtyLog>>,
}

/// Why a queue was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Zero, more than [`SIZE_MAX`], or no power of two in a split ring.
    #[error("a ring of {0} descriptors")]
    Size(u16),
    /// A packed ring that would stand behind its end.
    #[error("the ring stands at descriptor {0}, behind its end")]
    Base(u16),
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
    /// More receive queues than one device has.
    #[error("{0} receive queues")]
    Queues(usize),
}

impl QueueSetup {
    /// Whether the ring is packed.
    pub fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    /// Refuses what does not depend on memory.
    pub(super) fn check(&self) -> Result<(), QueueError> {
        let shape = self.is_packed() || self.size.is_power_of_two();
        if self.size == 0 || self.size > SIZE_MAX || !shape {
            return Err(QueueError::Size(self.size));
        }
        if self.is_packed() && self.base.used >= self.size {
            return Err(QueueError::Base(self.base.used));
        }
        if self.features & VERSION_1 == 0 {
            return Err(QueueError::Legacy);
        }
        if self.features & !ACCEPTED != 0 {
            return Err(QueueError::Features(self.features & !ACCEPTED));
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
