//! One queue as both sides agreed on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_sys::eventfd;

use super::features::{EVENT_IDX, LOG_ALL, RING_PACKED, SUPPORTED, VERSION_1};
use super::guest_map::{GuestMap, READ, WRITE};
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

/// One part of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Its address, as descriptors name addresses.
    pub(super) gpa: u64,
    pub(super) bytes: u32,
    pub(super) align: usize,
    /// How the device accesses it.
    pub(super) access: u8,
}

/// The parts of a ring of `size` descriptors at these addresses: descriptors, what the driver writes beside them, what
/// the device does (VIRTIO 1.2, 2.7 and 2.8).
pub(super) fn parts(features: u64, size: u16, [desc, avail, used]: [u64; 3]) -> [Part; 3] {
    let part = |name, gpa, bytes, align, access| Part {
        name,
        gpa,
        bytes,
        align,
        access,
    };
    let size = u32::from(size);
    if features & RING_PACKED != 0 {
        return [
            part("descriptor ring", desc, size * 16, 16, READ | WRITE),
            part("driver event", avail, 4, 4, READ),
            part("device event", used, 4, 4, WRITE),
        ];
    }
    let fixed = if features & EVENT_IDX != 0 { 6 } else { 4 };
    [
        part("descriptor table", desc, size * 16, 16, READ),
        part("available ring", avail, size * 2 + fixed, 2, READ),
        part("used ring", used, size * 8 + fixed, 4, WRITE),
    ]
}

/// Refuses what depends on neither memory nor descriptors.
pub(super) fn check(features: u64, size: u16, base: Base) -> Result<(), QueueError> {
    let packed = features & RING_PACKED != 0;
    let shape = packed || size.is_power_of_two();
    if size == 0 || size > SIZE_MAX || !shape {
        return Err(QueueError::Size(size));
    }
    if packed && base.used >= size {
        return Err(QueueError::Base(base.used));
    }
    if features & VERSION_1 == 0 {
        return Err(QueueError::Legacy);
    }
    if features & !ACCEPTED != 0 {
        return Err(QueueError::Features(features & !ACCEPTED));
    }
    Ok(())
}

impl QueueSetup {
    /// The parts of the ring.
    pub(super) fn parts(&self) -> [Part; 3] {
        parts(self.features, self.size, [self.desc, self.avail, self.used])
    }

    /// Whether the ring is packed.
    pub fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    /// Refuses what does not depend on memory.
    pub(super) fn check(&self) -> Result<(), QueueError> {
        check(self.features, self.size, self.base)?;
        for (name, fd) in [("kick", &self.kick), ("call", &self.call)] {
            let Some(fd) = fd else { continue };
            if !eventfd::is_eventfd(fd) || eventfd::set_nonblocking(fd).is_err() {
                return Err(QueueError::NotEventfd(name));
            }
        }
        Ok(())
    }
}
