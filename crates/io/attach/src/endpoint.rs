//! The control half of an attachment: makes the rings, notices that they are gone, makes them again.
//!
//! # Model
//! One thread of the daemon drives every endpoint: when [`Endpoint::fd`] is readable or [`Endpoint::deadline`]
//! has passed, it calls [`Endpoint::poll`] of that endpoint, which never blocks.
//! An endpoint answers with [`Event`]s; the thread attaches and detaches rings in the workers.
//!
//! [`Endpoint::fd`] is a set of the endpoint's own. What comes and goes behind it (sockets of peers, listeners) concerns
//! nobody else, so that a descriptor whose number is used again cannot be mistaken. A file is in the set of one endpoint only: the
//! kernel refuses (`EINVAL`) a file from which more than some hundred nested sets are reached.
//!
//! # States
//! ```text
//!            +------------- poll -------------+
//!            v                                |
//! Waiting(reason) --- Event::Up(Rings) ---> Up --- Event::Down(reason) ---> Leaving --- detached() ---> Waiting
//! ```
//! *Waiting*: nobody on the other side, a namespace or a device missing; tried again with a back-off or when something
//! changes. *Up*: the rings are with the workers. *Leaving*: the rings are being taken from them; the endpoint keeps
//! whatever they use, until [`Endpoint::detached`] says that the grace period is over.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use windlass_nic::rings::Wish;
use windlass_shm::{Extent, Quota};
use windlass_sys::netlink::Netlink;
use windlass_sys::netns::NetnsId;
use windlass_sys::shortcut::Passed;
use windlass_sys::tap::TapQueue;

use crate::port::{RxPort, TxPort};

/// The rings of one connection.
pub struct Rings {
    /// One receive half for each ring.
    pub rx: Vec<Box<dyn RxPort>>,
    /// The transmit half.
    pub tx: Arc<dyn TxPort>,
}

impl core::fmt::Debug for Rings {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rings")
            .field("rx", &self.rx.len())
            .finish_non_exhaustive()
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Rings to be given to the workers.
    Up(Rings),
    /// The rings are of no use any more, for this reason.
    Down(String),
}

/// What an endpoint is doing, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether rings are up, and the other side takes part.
    pub up: bool,
    /// Why not, if not.
    pub reason: String,
    /// What there is to tell about the connection, by name: peer, features, ring sizes.
    pub details: Vec<(&'static str, String)>,
    /// Connections that came up since the endpoint was made.
    pub connects: u64,
}

/// What windlass names of a kernel interface behind the rings; it can change while frames pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceConf {
    /// Addresses with prefix lengths, in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The interface's own address.
    pub mac: [u8; 6],
    /// Its MTU in bytes, without the Ethernet header.
    pub mtu: u32,
}

/// The addresses behind the other members of an uplink's bridge, as the low 48 bits of a little-endian load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of VNICs: nobody else on the host has a use for frames to them.
    pub own: BTreeSet<u64>,
    /// Others that may be there.
    pub others: BTreeSet<u64>,
    /// The bridge takes frames with tags from it.
    pub tagged: bool,
    /// A member behind which any other address may be.
    pub open: Option<String>,
    /// How many the interface is to be given at most.
    pub filters_max: usize,
    /// VNICs that are to have rings of the interface for themselves.
    pub rings: Vec<Wish>,
}

/// What an endpoint hands over to that of another daemon ([`Endpoint::hand_over`]).
#[derive(Debug)]
pub struct Handed {
    /// Tells it from every other: the mark that it bears on the host.
    pub mark: String,
    /// What it has to tell; in a form of its kind.
    pub state: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

/// The control half of one attachment.
pub trait Endpoint: Send {
    /// Goes on as far as is possible without waiting.
    fn poll(&mut self, now: Instant) -> Vec<Event>;

    /// Readable as long as there is a reason to poll; the same one as long as the endpoint lives.
    fn fd(&self) -> BorrowedFd<'_>;

    /// When to poll at the latest, even if nothing became readable. Changes in [`Endpoint::poll`] and
    /// [`Endpoint::detached`] only.
    fn deadline(&self) -> Option<Instant>;

    /// The network namespace that it is to be in, by name, and the one that it is in: to be polled when the name leads to another one.
    fn namespace(&self) -> Option<(&str, Option<NetnsId>)> {
        None
    }

    /// A worker found the port dead, for example because the peer took its memory away. To be polled after it.
    fn condemn(&mut self, reason: &str);

    /// Whether [`Endpoint::status`] answers otherwise than at the last call of this, though there was no event.
    fn take_changed(&mut self) -> bool {
        false
    }

    /// The rings of the last [`Event::Down`] are with no worker any more. To be polled after it.
    fn detached(&mut self);

    /// Nobody polls it any more, until it is deleted.
    fn rest(&mut self) {}

    /// What it is doing.
    fn status(&self) -> Status;

    /// Changes the kernel interface behind the rings while frames pass. Nothing is to be done where there is none.
    ///
    /// # Errors
    /// What the kernel refused, as a sentence; the interface is as before.
    fn configure(&mut self, _interface: &InterfaceConf) -> Result<(), String> {
        Ok(())
    }

    /// The socket that it listens on is for another user and group from now on. Who waits there is turned away, a peer that is
    /// connected stays.
    ///
    /// # Errors
    /// What the kernel refused, as a sentence; the socket is as before.
    fn set_owner(&mut self, _owner: (u32, u32)) -> Result<(), String> {
        Ok(())
    }

    /// Leaves the path of the socket that it listens on, for another one or for good. Who waits there is turned away, a peer that is
    /// connected stays. To be polled after it.
    fn set_path(&mut self, _path: Option<PathBuf>) {}

    /// Whether it has left its path for good ([`Endpoint::set_path`]).
    fn is_unlinked(&self) -> bool {
        false
    }

    /// Whether it has left its path for good and no peer is connected: it is of no use any more.
    fn is_over(&self) -> bool {
        false
    }

    /// Times that a ring of the peer's frames was found full and was released after that, in all connections since the endpoint was
    /// made.
    fn flow_controls(&self) -> u64 {
        0
    }

    /// The addresses behind its bridge's other members, if it is an uplink. True says that it is to be polled.
    fn set_addresses(&mut self, _addresses: &Addresses) -> bool {
        false
    }

    /// Something that the operator is to be told, once.
    fn take_notice(&mut self) -> Option<String> {
        None
    }

    /// Where mappings of its peer's memory count.
    fn quota(&self) -> Option<&Quota> {
        None
    }

    /// The memory that rings and frames lie in: what it is, and where.
    fn regions(&self) -> Vec<(&'static str, Extent)> {
        Vec::new()
    }

    /// Frames that the kernel dropped before or behind the rings (a full socket buffer, a full device queue), since the
    /// endpoint was made. Outside the conservation of frames.
    fn kernel_drops(&mut self) -> u64 {
        0
    }

    /// What passed between the member and others without any worker, since the endpoint was made.
    fn passed(&self) -> Passed {
        Passed::default()
    }

    /// What it bears on the host, if it can go on in another daemon.
    fn mark(&self) -> Option<String> {
        None
    }

    /// What the daemon that takes this one's place goes on with: nothing between the two is lost. The rings stay as they are, and
    /// until [`Endpoint::keep`] nothing is taken from the peer.
    fn hand_over(&mut self) -> Option<Handed> {
        None
    }

    /// The other daemon did not take it: goes on here. Where the other one may have used the rings (`is_used`), true says that
    /// they are to be taken from the workers, for others to be made; [`Endpoint::detached`] follows.
    fn keep(&mut self, _is_used: bool) -> bool {
        false
    }

    /// Prepares to go on with what that of the daemon before has handed over, which uses it until the first [`Endpoint::poll`]
    /// from here.
    fn take_over(&mut self, _handed: Handed) {}

    /// The attachment is deleted for good: what persists on the host (a TAP, a socket file) is removed. Without this call a
    /// drop leaves it for the next daemon.
    fn delete(&mut self);

    /// The same together with others: links that are left to `doomed` go with [`Doomed::delete`].
    fn delete_with(&mut self, _doomed: &mut Doomed) {
        self.delete();
    }
}

/// Links of the daemon's namespace that are deleted together, for which the kernel waits once.
#[derive(Default)]
pub struct Doomed {
    /// By index.
    pub(crate) links: Vec<u32>,
    /// Queues of TAPs among them: closing the last one of a TAP would delete it first.
    pub(crate) queues: Vec<Arc<TapQueue>>,
}

impl Doomed {
    /// Deletes them, and returns once nobody finds them.
    pub fn delete(self) {
        if self.links.is_empty() {
            return;
        }
        let together = |netlink: Netlink| netlink.unlist_links(&self.links);
        if Netlink::open().and_then(together).is_ok() {
            return;
        }
        for index in self.links {
            // One by one, as far as that goes: what stays has a mark, which the next daemon finds.
            let _ = Netlink::open().and_then(|netlink| netlink.unlist_link(index));
        }
    }
}
