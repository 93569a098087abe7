//! Large TCP segments that leave a tunnel endpoint uncut.
//!
//! # Purpose
//! A UDP socket sends datagrams: a large segment is cut, copied and summed for it. The kernel's own VXLAN device takes one whole, and
//! hands it whole to a device or peer that cuts it, or takes it as it is. This module sends such frames through VXLAN devices.
//!
//! # Where it sits
//! ```text
//!   Target::tx_burst --- small frames --> Outbox -> UDP socket -------+--> routes, firewall, path MTU of the underlay
//!                  \---- TSO frames ----> PacketSender -> w0 (vxlan) -+
//! ```
//!
//! # Model
//! [`Devices`] is a network namespace with no name, and in it a VXLAN device for each target that needs one. A device sends through
//! the namespace of the endpoint's sockets, in which it was made. Its outer headers are those of the sockets: the endpoint's address,
//! TTL, TOS and ECN by the same rules, no fragments, a checksum. Their source port is that which the flow has on the sockets
//! too: the kernel takes it from a frame's hash, and a program at the device sets that hash ([`hash`]), which comes with the frame as its
//! mark. What the kernel would send by itself has no mark, and the program drops it.
//!
//! All of it is made when the first large segment has been sent, which is cut. A device listens, since the kernel's do, at a free port of
//! the underlay. What comes there ends in the namespace, where nobody is.
//!
//! # Order
//! A worker sends what it has gathered for a port before a large segment of that port.
//!
//! # Ownership and lifetime
//! The namespace is held by [`Devices`] and goes with the process at the latest, and the devices in it. A device goes with its target.
//!
//! # Synchronization
//! Devices are made and removed by the control thread. A worker reads a target's index, and says there that it wants one.
//!
//! # What can be lost
//! The device does not tell what the kernel could not send. Where a socket has been told that a target cannot be reached, large segments
//! are cut for a while ([`PAUSE_NS`]), and counted as they fail.
//!
//! # Failure modes
//! Where a device cannot be made (no driver, no program, no capability), segments are cut as before; [`Devices::trouble`] says why.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use windlass_frame::{Gso, Heads, Pick, Tick};
use windlass_shm::Tails;
use windlass_sys::Errno;
use windlass_sys::bpf::{Program, Side};
use windlass_sys::netlink::{Netlink, NetlinkError, VxlanSender};
use windlass_sys::netns::{NetnsRef, within, within_new};
use windlass_sys::packet::PacketSender;
use windlass_sys::shortcut::Hook;
use windlass_sys::udp;

use super::{PORTS_FROM, PORTS_MAX, SOCKET_BYTES, TargetConf, Tos, VtepConf};
use crate::gather::Gather;

/// Targets of one endpoint with a device.
const DEVICES_MAX: u32 = 256;
/// For how long segments are cut after a target could not be reached: 1 s.
const PAUSE_NS: u64 = 1_000_000_000;
/// Bytes of an outer IPv6, a UDP and a VXLAN header.
const OUTER: u32 = 40 + 8 + 8;
/// Bytes of an IP packet at most.
const PACKET_MAX: u32 = 65_535;

thread_local! {
    static GATHER: RefCell<Gather> = RefCell::default();
}

/// The devices of one endpoint.
#[derive(Debug)]
pub(super) struct Devices {
    /// That of the endpoint's sockets.
    underlay: NetnsRef,
    /// That of the devices.
    namespace: NetnsRef,
    program: Program,
    hook: Hook,
    /// Where the devices listen.
    port: u16,
    /// By worker.
    senders: Vec<PacketSender>,
    /// Networks that devices have had: no two have the same.
    made: AtomicU32,
    there: AtomicU32,
    /// Why none could be made.
    trouble: Mutex<Option<String>>,
}

/// What one target has of it.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// The index of its device; 0: it has none.
    index: AtomicU32,
    /// A worker had a frame for it.
    is_wanted: AtomicBool,
    /// Until when it is not used.
    paused: AtomicU64,
}

impl Devices {
    /// For an endpoint whose sockets are in the namespace `underlay`.
    ///
    /// # Errors
    /// Why there can be none.
    pub(super) fn open(
        conf: &VtepConf,
        underlay: NetnsRef,
        lanes: usize,
    ) -> Result<Devices, String> {
        let hooks = [Hook::Clsact, Hook::Tcx];
        let hook = hooks.into_iter().find(|hook| hook.is_there());
        let hook = hook.ok_or("the kernel has neither clsact with cls_bpf nor tcx")?;
        let program = Program::hash_by_mark().map_err(|error| error.to_string())?;
        let inside = || {
            let namespace = NetnsRef::current().map_err(|_| Errno::NOENT)?;
            let sender = |_| PacketSender::open(SOCKET_BYTES);
            let senders: Result<Vec<_>, Errno> = (0..lanes).map(sender).collect();
            Ok((namespace, senders?))
        };
        let (namespace, senders) =
            within_new("devices", inside).map_err(|error| error.to_string())?;
        let port = within(&underlay, || free_port(conf.local.ip()));
        let port = port.map_err(|error| error.to_string())?;
        let port = port.map_err(|errno| format!("no UDP port is free: {errno}"))?;
        Ok(Devices {
            underlay,
            namespace,
            program,
            hook,
            port,
            senders,
            made: AtomicU32::new(0),
            there: AtomicU32::new(0),
            trouble: Mutex::default(),
        })
    }

    /// Why a device could not be made, in a sentence.
    pub(super) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a device for a target, if it is another host: what goes to this one stays with the sockets.
    pub(super) fn make_for(&self, device: &Device, conf: &VtepConf, target: &TargetConf) {
        let to = target.to.ip();
        let is_own = || udp::open(SocketAddr::new(to, 0), false).is_ok();
        let is_full = self.there.load(Ordering::Relaxed) >= DEVICES_MAX;
        // What failed once is not tried again.
        if is_full || to.is_multicast() || self.trouble().is_some() {
            return;
        }
        if within(&self.underlay, is_own).unwrap_or(true) {
            return;
        }
        match self.make(conf, target) {
            Ok(index) => {
                self.there.fetch_add(1, Ordering::Relaxed);
                device.index.store(index, Ordering::Release);
            }
            Err(error) => {
                let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
                *trouble = Some(error.to_string());
            }
        }
    }

    fn make(&self, conf: &VtepConf, target: &TargetConf) -> Result<u32, NetlinkError> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name = format!("w{number}");
        let range = self.senders.len() as u16 * u16::from(PORTS_MAX);
        let sender = VxlanSender {
            local: conf.local.ip(),
            listen: self.port,
            vni: number,
            ttl: conf.ttl,
            tos: match conf.tos {
                Tos::Inherit => None,
                Tos::Fixed(tos) => Some(tos & !windlass_overlay::ecn::MASK),
            },
            ports: PORTS_FROM..=PORTS_FROM.saturating_add(range),
        };
        let mut underlay = Netlink::open_in(&self.underlay)?;
        underlay.create_vxlan(&name, &self.namespace, &sender)?;
        within(&self.namespace, || {
            let mut inside = Netlink::open()?;
            let link = inside.link_by_name(&name)?;
            let index = link.map_or(0, |link| link.index);
            let ready = inside
                .set_vxlan_remote(index, target.to, target.vni.get())
                .and_then(|()| {
                    self.hook
                        .put(&mut inside, &self.program, index, Side::Egress)
                })
                .and_then(|()| inside.set_link_up(index, true));
            ready.map(|()| index).inspect_err(|_| {
                let _ = inside.delete_link(index);
            })
        })?
    }

    /// Removes a target's device.
    pub(super) fn remove(&self, device: &Device) {
        let index = device.index.swap(0, Ordering::Relaxed);
        if index == 0 {
            return;
        }
        self.there.fetch_sub(1, Ordering::Relaxed);
        let removed = Netlink::open_in(&self.namespace);
        // One that stays sends nothing, and goes with the namespace.
        let _ = removed.and_then(|mut netlink| netlink.delete_link(index));
    }

    /// Sends a frame from the port `port` of the worker `lane`. `None` if it has to be cut.
    pub(super) fn send(
        &self,
        device: &Device,
        (lane, port): (usize, usize),
        heads: &Heads,
        tails: &Tails<'_>,
        pick: Pick,
    ) -> Option<Result<(), Errno>> {
        let sender = self.senders.get(lane)?;
        let index = device.index.load(Ordering::Acquire);
        let range = self.senders.len() * usize::from(PORTS_MAX);
        let mark = hash(lane * usize::from(PORTS_MAX) + port, range);
        let sent = GATHER.with_borrow_mut(|gather| {
            let ranges = gather.only(heads, tails, pick, sender.header_bytes());
            // SAFETY: a frame's bytes are there for its receiver; pieces that are no longer mapped are an error.
            unsafe { sender.send_raw(index, mark, ranges) }
        });
        match sent {
            // What the device does not take is cut: such as one that somebody has set down.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::FAULT) | Ok(()) => Some(sent),
            Err(_) => {
                device.pause(heads.now);
                None
            }
        }
    }
}

impl Device {
    /// Whether a frame leaves by it. Where there is none, and it would, one is wanted.
    pub(super) fn takes(&self, heads: &Heads, pick: Pick) -> bool {
        let meta = &heads.meta[pick.index()];
        let is_large = matches!(meta.off.gso, Gso::Tcp4 | Gso::Tcp6);
        if !is_large || pick.tagged() || meta.len + OUTER > PACKET_MAX {
            return false;
        }
        if self.index.load(Ordering::Relaxed) == 0 {
            self.is_wanted.store(true, Ordering::Relaxed);
            return false;
        }
        self.paused.load(Ordering::Relaxed) <= heads.now.0
    }

    /// Whether it is to be made, since a worker has had a frame for it.
    pub(super) fn is_due(&self) -> bool {
        self.index.load(Ordering::Relaxed) == 0 && self.is_wanted.swap(false, Ordering::Relaxed)
    }

    /// Does without for a while.
    pub(super) fn pause(&self, now: Tick) {
        let until = now.plus(PAUSE_NS).0;
        self.paused.store(until, Ordering::Relaxed);
    }

    /// Whether it is there.
    pub(super) fn is_made(&self) -> bool {
        self.index.load(Ordering::Relaxed) != 0
    }
}

/// The hash by which the kernel takes the `at`th of so many ports: it mixes the lower half into the upper one, and scales the result to the
/// number of ports. This is the middle of what leads to a port.
fn hash(at: usize, ports: usize) -> u32 {
    let mixed = (((at as u64 * 2 + 1) << 31) / ports.max(1) as u64) as u32;
    mixed ^ (mixed << 16)
}

/// A UDP port that nobody has at any address.
fn free_port(like: IpAddr) -> Result<u16, Errno> {
    let any: IpAddr = match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket: OwnedFd = udp::open(SocketAddr::new(any, 0), false)?;
    udp::local_port(&socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the kernel's rule (`udp_flow_src_port`) each hash leads to its port, whatever the number of ports, and none is 0, which would be
    /// taken for none.
    #[test]
    fn a_hash_leads_to_its_port() {
        for ports in [1, 16, 32, 48, 512, 16_384] {
            for at in 0..ports {
                let hash = hash(at, ports);
                let mixed = hash ^ (hash << 16);
                let port = (u64::from(mixed) * ports as u64) >> 32;
                assert_eq!((port, hash == 0), (at as u64, false), "{at} of {ports}");
            }
        }
    }
}
