//! Makes the interface, waits for its namespace, notices its end.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use windlass_sys::netlink::{LinkEvent, LinkMonitor, Netlink, NetlinkError};
use windlass_sys::netns::{self, NetnsError, NetnsRef};
use windlass_sys::tap::{Tap, TapError, TapOptions, TapQueue};

use super::{TapRx, TapTx};
use crate::endpoint::{Endpoint, Event, Rings, Status};
use crate::port::{RxPort, TxCaps};

/// Time between two looks at what is waited for.
const RETRY: Duration = Duration::from_millis(250);

/// What interface to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConf {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// The namespace by name; none is the daemon's own.
    pub netns: Option<String>,
    /// Addresses with prefix lengths that a new interface gets.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Queues: one for each worker.
    pub queues: u16,
    /// The interface's address: the VNIC's own.
    pub mac: [u8; 6],
    /// The interface's MTU in bytes, without the Ethernet header.
    pub mtu: u32,
}

/// What cannot be made.
#[derive(Debug, Error)]
enum OpenError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Tap(#[from] TapError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("interface `{0}` vanished while it was being set up")]
    Vanished(String),
}

/// An interface that is up.
struct Open {
    index: u32,
    monitor: LinkMonitor,
    netlink: Netlink,
    namespace: NetnsRef,
    queues: Vec<Arc<TapQueue>>,
    features: String,
}

/// The control half of a TAP.
pub struct TapEndpoint {
    conf: TapConf,
    open: Option<Open>,
    reason: String,
    ending: Option<String>,
    leaving: bool,
    retry_at: Instant,
    connects: u64,
    drops_before: u64,
}

impl TapEndpoint {
    /// An interface to be made at the first [`Endpoint::poll`].
    pub fn new(conf: TapConf) -> TapEndpoint {
        TapEndpoint {
            conf,
            open: None,
            reason: "not tried yet".to_owned(),
            ending: None,
            leaving: false,
            retry_at: Instant::now(),
            connects: 0,
            drops_before: 0,
        }
    }

    fn namespace(&self) -> Result<NetnsRef, NetnsError> {
        match &self.conf.netns {
            Some(name) => NetnsRef::open(name),
            None => NetnsRef::current(),
        }
    }

    fn try_open(&mut self) -> Result<Rings, OpenError> {
        let namespace = self.namespace()?;
        let conf = &self.conf;
        let (open, caps) = netns::within(&namespace, || set_up(conf, &namespace))??;
        let rx = open
            .queues
            .iter()
            .map(|q| Box::new(TapRx::new(q.clone())) as Box<dyn RxPort>);
        let rings = Rings {
            rx: rx.collect(),
            tx: Arc::new(TapTx::new(open.queues.clone(), caps)),
        };
        self.open = Some(open);
        Ok(rings)
    }

    /// Why the interface is of no use any more, if the kernel says so.
    fn ended(&mut self) -> Option<String> {
        if let Some(reason) = self.ending.take() {
            return Some(reason);
        }
        let open = self.open.as_mut()?;
        // What is open keeps a namespace alive that nobody can reach by its name any more.
        if !open.namespace.is_named_still() {
            let name = open.namespace.name().unwrap_or_default();
            return Some(format!("network namespace `{name}` was deleted"));
        }
        while let Ok(Some(event)) = open.monitor.next_event() {
            match event {
                LinkEvent::Removed(link) if link.index == open.index => {
                    return Some(format!("interface `{}` was deleted", self.conf.name));
                }
                _ => {}
            }
        }
        None
    }
}

/// Opens the TAP in the calling thread's namespace; a new one gets its address, MTU and addresses, and is set up.
fn set_up(conf: &TapConf, namespace: &NetnsRef) -> Result<(Open, TxCaps), OpenError> {
    let monitor = LinkMonitor::open()?;
    let mut netlink = Netlink::open()?;
    let options = TapOptions {
        multi_queue: conf.queues > 1,
        ..TapOptions::default()
    };
    let tap = Tap::open(&conf.name, conf.queues, &options)?;
    tap.set_persistent(true)?;
    if conf.queues > 1
        && let Ok(program) = windlass_sys::bpf::Program::steer_by_hash()
    {
        tap.set_steering(Some(&program))?;
    }
    let index = tap.index();
    let link = netlink.link_by_index(index)?;
    let link = link.ok_or_else(|| OpenError::Vanished(conf.name.clone()))?;
    if link.mac != Some(conf.mac) {
        netlink.set_link_mac(index, conf.mac)?;
    }
    if link.mtu != conf.mtu {
        netlink.set_link_mtu(index, conf.mtu)?;
    }
    if tap.was_created() {
        for (ip, prefix) in &conf.addresses {
            netlink.add_address(index, *ip, *prefix)?;
        }
        netlink.set_link_up(index, true)?;
    }
    let granted = tap.offloads();
    let caps = TxCaps {
        csum: granted.checksum,
        tso4: granted.tso,
        tso6: granted.tso,
        ecn: granted.ecn,
        uso: granted.uso,
    };
    let mut features = Vec::new();
    for (on, name) in [
        (caps.csum, "csum"),
        (caps.tso4, "tso"),
        (caps.ecn, "ecn"),
        (caps.uso, "uso"),
    ] {
        if on {
            features.push(name);
        }
    }
    let queues = tap.into_queues().into_iter().map(Arc::new).collect();
    let features = features.join(",");
    let namespace = namespace.clone();
    Ok((
        Open {
            index,
            monitor,
            netlink,
            namespace,
            queues,
            features,
        },
        caps,
    ))
}

impl Endpoint for TapEndpoint {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        if self.leaving {
            return Vec::new();
        }
        if self.open.is_some() {
            return match self.ended() {
                Some(reason) => {
                    self.drops_before = self.kernel_drops();
                    self.leaving = true;
                    self.reason.clone_from(&reason);
                    vec![Event::Down(reason)]
                }
                None => Vec::new(),
            };
        }
        if now < self.retry_at {
            return Vec::new();
        }
        match self.try_open() {
            Ok(rings) => {
                self.connects += 1;
                self.reason.clear();
                vec![Event::Up(rings)]
            }
            Err(error) => {
                self.reason = error.to_string();
                self.retry_at = now + RETRY;
                Vec::new()
            }
        }
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.open.iter().map(|o| o.monitor.as_fd()).collect()
    }

    fn deadline(&self) -> Option<Instant> {
        (self.open.is_none() && !self.leaving).then_some(self.retry_at)
    }

    fn condemn(&mut self, reason: &str) {
        self.ending = Some(reason.to_owned());
    }

    fn detached(&mut self) {
        self.open = None;
        self.leaving = false;
        self.retry_at = Instant::now();
    }

    fn status(&self) -> Status {
        let mut details = vec![("interface", self.conf.name.clone())];
        if let Some(netns) = &self.conf.netns {
            details.push(("netns", netns.clone()));
        }
        if let Some(open) = &self.open {
            details.push(("features", open.features.clone()));
            details.push(("queues", open.queues.len().to_string()));
        }
        Status {
            up: self.open.is_some() && !self.leaving,
            reason: self.reason.clone(),
            details,
            connects: self.connects,
        }
    }

    fn kernel_drops(&mut self) -> u64 {
        let link = self
            .open
            .as_mut()
            .and_then(|o| o.netlink.link_by_index(o.index).ok().flatten());
        link.map_or(self.drops_before, |l| l.stats.tx_dropped)
    }

    fn delete(&mut self) {
        let open = self.open.take();
        let (namespace, index) = match &open {
            Some(open) => (Ok(open.namespace.clone()), Some(open.index)),
            None => (self.namespace(), None),
        };
        drop(open);
        let Ok(namespace) = namespace else { return };
        let Ok(mut netlink) = Netlink::open_in(&namespace) else {
            return;
        };
        // The one that was open is ours, whatever its guest calls it and whatever address he gave it; one
        // that is only found by its name must have the address, too.
        let found = match index {
            Some(index) => netlink.link_by_index(index),
            None => netlink.link_by_name(&self.conf.name),
        };
        if let Ok(Some(link)) = found
            && link.kind.as_deref() == Some("tun")
            && (index.is_some() || link.mac == Some(self.conf.mac))
        {
            let _ = netlink.delete_link(link.index);
        }
    }
}
