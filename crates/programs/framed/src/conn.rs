//! One connection: its memory and its two rings.
//!
//! # Failure modes
//! The memory is ours and sealed, so it does not go away. Whatever the daemon writes there is a claim: an index that cannot be
//! ends the connection ([`Conn::fail`]), a length or a chain that cannot be is a bad frame.

use std::os::fd::OwnedFd;

use windlass_attach::memif::Offloads;
use windlass_attach::memif::offer::Offer;
use windlass_attach::memif::rings::RingSpec;
use windlass_attach::memif::view::{Buffers, Ring, Role, View};
use windlass_sys::Errno;

/// A ring, its buffers, and the eventfd of its consumer.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) ring: Ring,
    pub(crate) buffers: Buffers,
    pub(crate) event: OwnedFd,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    view: View,
    /// Towards the daemon.
    pub(crate) tx: Half,
    /// From the daemon.
    pub(crate) rx: Half,
    /// What both sides agreed on.
    offloads: Offloads,
}

impl Half {
    fn new(view: &View, mut specs: Vec<RingSpec>) -> Option<Half> {
        let spec = specs.pop().filter(|_| specs.is_empty())?;
        Some(Half {
            ring: Ring::new(view, Role::Client, spec.region, spec.place)?,
            buffers: spec.buffers?,
            event: spec.event?,
        })
    }

    /// The buffer of a slot: `room` bytes of the region.
    #[inline(always)]
    pub(crate) fn buffer(&self, base: *mut u8, index: u16) -> *mut u8 {
        base.wrapping_add(self.offset(index) as usize)
    }

    /// Where in the region that is.
    #[inline(always)]
    pub(crate) fn offset(&self, index: u16) -> u32 {
        let slot = index & self.ring.size().wrapping_sub(1);
        self.buffers.offset(slot)
    }

    /// Describes `len` bytes in the buffer of a slot. `metadata` is of the frame that begins there.
    #[inline(always)]
    pub(crate) fn describe(&self, index: u16, len: u32, flags: u16, metadata: u32) {
        let low = u64::from(len) << 32 | u64::from(self.buffers.region) << 16;
        self.ring.set_low(index, low | u64::from(flags));
        let high = u64::from(metadata) << 32 | u64::from(self.offset(index));
        self.ring.set_high(index, high);
    }
}

impl Conn {
    /// The connection over an accepted offer, for which `offloads` were asked.
    ///
    /// # Errors
    /// `EPROTO` for an offer without exactly one ring each way; `EOPNOTSUPP` for a server that does not offer what was asked; a failed
    /// system call.
    pub(crate) fn new(offer: Offer, offloads: Offloads) -> Result<Conn, Errno> {
        let alarm = windlass_sys::eventfd::create()?;
        let view = View::new(vec![offer.mapping], alarm).ok_or(Errno::PROTO)?;
        let tx = Half::new(&view, offer.from_client).ok_or(Errno::PROTO)?;
        let rx = Half::new(&view, offer.from_server).ok_or(Errno::PROTO)?;
        if tx.ring.offloads() != offloads && offloads != Offloads::None {
            return Err(Errno::OPNOTSUPP);
        }
        let conn = Conn {
            view,
            tx,
            rx,
            offloads,
        };
        conn.mask(true);
        Ok(conn)
    }

    /// Says whether notifications of frames are unwanted.
    #[inline(always)]
    pub(crate) fn mask(&self, masked: bool) {
        self.rx.ring.mask(masked, self.offloads.flags());
    }

    /// First byte of the region.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.view
            .mappings()
            .first()
            .map_or(core::ptr::null_mut(), |m| m.base())
    }

    /// The daemon broke the protocol: nothing more is taken from it or given to it.
    #[cold]
    pub(crate) fn fail(&self) {
        self.view.fail();
    }

    /// Signalled by [`Conn::fail`].
    pub(crate) fn alarm(&self) -> &OwnedFd {
        self.view.alarm()
    }

    /// Whether the metadata words of descriptors mean something.
    #[inline(always)]
    pub(crate) fn carries_offloads(&self) -> bool {
        self.offloads != Offloads::None
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.view.is_dead()
    }

    /// Whether the daemon tells when there is room: windlassd does, other servers of memif do not, and may have missed our wish
    /// for a notification besides.
    pub(crate) fn tells_all(&self) -> bool {
        self.tx.ring.answers_wishes()
    }
}
