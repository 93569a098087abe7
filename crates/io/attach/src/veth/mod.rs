//! A veth: one end is an interface of a namespace, the other one is ours.
//!
//! # Purpose
//! What a container's frames to a container of the same bridge cost in user space, they need not cost: where the bridge would simply
//! pass them on, the kernel does it ([`windlass_sys::shortcut`]). All others take the way of a TAP.
//!
//! # Where it sits
//! ```text
//!   namespace            the daemon's namespace
//!     eth0 ========== wlv... --+-- the shortcut --> eth0 of another namespace
//!                              |
//!                            wlt... (a TAP) <--> worker
//! ```
//!
//! # Model
//! A [`VethEndpoint`] has the [`TapEndpoint`](crate::tap::TapEndpoint) whose rings workers serve, and a `Pair`. Programs at the
//! ingress of the pair's host end and of the TAP lead frames from one to the other; programs at their egress keep out whatever the
//! host itself sends there. So neither interface needs an address, and nobody in the container reaches either.
//! [`Bypass`] says to whom the shortcut is open. The programs are where the kernel has a place for them ([`shortcut::Hook`]).
//!
//! # Ownership and lifetime
//! The host end bears the daemon's mark, as a TAP does. The pair and its programs outlive the daemon: what may pass by the shortcut
//! goes on passing, everything else ends at the host end. The TAP ends with the daemon. The pair goes with the namespace. One that the
//! next daemon cannot take over is cut off: its host end is set down. One whose VNIC is no more is removed ([`remove_others`]).
//!
//! # Failure modes
//! A container that deletes its end or moves it away loses the pair, and is given a new one. What else it does to its end (address,
//! MTU, queues, programs) changes nothing on ours.
//!
//! # Not done
//! netkit. A kernel with neither tcx nor clsact: there the container gets a TAP.

mod endpoint;
mod pair;

pub use endpoint::{VethConf, VethEndpoint};
pub(crate) use pair::remove;
pub use pair::remove_others;

use windlass_sys::shortcut::{self, Place, Slot};

use crate::port::Bypass;

impl Bypass for Slot {
    /// What cannot be opened goes the other way.
    fn open(&self, place: Option<Place>) {
        let _ = Slot::open(self, place);
    }

    fn settle(&self) {
        shortcut::settle();
    }
}
