//! Makes the interface, waits for its namespace, notices its end.
//!
//! # Ownership and lifetime
//! An interface that windlass made bears its [`TapConf::mark`] as alias (`IFLA_IFALIAS`, which `ip link` shows and which
//! outlives the daemon). It is written before the interface is made persistent: so whatever outlives a daemon that is
//! killed at any instant is marked and complete. Only a TAP with the mark is taken back, whatever its guest calls it by
//! then, and only such a one is deleted; another interface of the wanted name is left alone, and the endpoint waits.
//!
//! Addresses: a new interface gets those of its configuration. A change of the configuration takes away and adds what it
//! names, and leaves what somebody has added by hand.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use windlass_sys::Errno;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::netlink::{Link, LinkMonitor, Netlink, NetlinkError};
use windlass_sys::netns::{self, Named, NetnsError, NetnsId, NetnsRef};
use windlass_sys::tap::{Tap, TapError, TapOffloads, TapOptions, TapQueue};

use super::{TapRx, TapTx, address};
use crate::endpoint::{Doomed, Endpoint, Event, Handed, InterfaceConf, Rings, Status};
use crate::port::{Bypass, RxPort, TxCaps};
use crate::veth;

/// Time between two looks at what is waited for.
const RETRY: Duration = Duration::from_millis(250);

/// What interface to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConf {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// The namespace by name or absolute path; none is the daemon's own.
    pub netns: Option<String>,
    /// Queues: one for each worker.
    pub queues: u16,
    /// Whether the interface can have several queues. Fixed when it is made, so it does not follow the number of
    /// workers as `queues` does.
    pub multi_queue: bool,
    /// Written on the interface as its alias: tells it from every other. At most
    /// [`ALIAS_BYTES_MAX`](windlass_sys::netlink::ALIAS_BYTES_MAX) bytes.
    pub mark: String,
    /// Its address, its MTU, and its network addresses.
    pub interface: InterfaceConf,
}

/// What cannot be made.
#[derive(Debug, Error)]
enum OpenError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("the process of `{0}` has ended: attach the VNIC to another namespace")]
    Ended(String),
    #[error(transparent)]
    Tap(#[from] TapError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("epoll_ctl: {0}")]
    Watch(#[from] Errno),
    #[error("interface `{0}` vanished while it was being set up")]
    Vanished(String),
    #[error(
        "interface `{0}` exists and was not made for this VNIC: rename or delete it, or attach the VNIC with another name="
    )]
    Foreign(String, u32),
}

/// An interface that is up.
struct Open {
    index: u32,
    /// Its guest has set it down.
    is_set_down: bool,
    has_carrier: bool,
    monitor: LinkMonitor,
    netlink: Netlink,
    namespace: NetnsRef,
    queues: Vec<Arc<TapQueue>>,
    features: String,
    /// What the kernel had dropped already when it was opened.
    drops_at_open: u64,
}

/// The control half of a TAP.
pub struct TapEndpoint {
    conf: TapConf,
    /// The way past it, if it is a part of a veth: such a TAP ends with its queues, and is set up by the veth.
    bypass: Option<Arc<dyn Bypass>>,
    /// Why there is no veth in its place, if one was asked for.
    no_veth: Option<String>,
    /// A veth may be in its place: a daemon before has made it, and its programs pass what that one allowed.
    may_be_veth: bool,
    epoll: Epoll,
    /// The addresses that the interface was given, which a configuration that changes while it is away leaves behind.
    given: Vec<(std::net::IpAddr, u8)>,
    open: Option<Open>,
    /// The process that the namespace is named by. A later one of its number is another one.
    process: Option<Named>,
    /// The interface of the wanted name that is not ours, by index: while it is there, nothing else is looked for.
    foreign: Option<u32>,
    reason: String,
    ending: Option<String>,
    /// Queues that the daemon before has open.
    handed: Vec<OwnedFd>,
    /// Rings on them, for the first poll.
    prepared: Option<Rings>,
    /// It was set down or up since somebody asked.
    is_changed: bool,
    leaving: bool,
    retry_at: Instant,
    connects: u64,
    drops_before: u64,
}

impl TapEndpoint {
    /// An interface to be made at the first [`Endpoint::poll`].
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set.
    pub fn new(conf: TapConf) -> Result<TapEndpoint, Errno> {
        TapEndpoint::of_veth(conf, None)
    }

    /// The same where a veth was asked for that cannot be had, and why not.
    ///
    /// # Errors
    /// As [`TapEndpoint::new`].
    pub fn in_place_of_veth(conf: TapConf, why: String) -> Result<TapEndpoint, Errno> {
        let endpoint = TapEndpoint::new(conf)?;
        Ok(TapEndpoint {
            no_veth: Some(why),
            may_be_veth: true,
            ..endpoint
        })
    }

    /// The same for the TAP of a veth, with the way past it.
    ///
    /// # Errors
    /// As [`TapEndpoint::new`].
    pub(crate) fn of_veth(
        conf: TapConf,
        bypass: Option<Arc<dyn Bypass>>,
    ) -> Result<TapEndpoint, Errno> {
        Ok(TapEndpoint {
            given: conf.interface.addresses.clone(),
            conf,
            bypass,
            no_veth: None,
            may_be_veth: false,
            epoll: Epoll::create()?,
            open: None,
            process: None,
            foreign: None,
            reason: "not tried yet".to_owned(),
            ending: None,
            handed: Vec::new(),
            prepared: None,
            is_changed: false,
            leaving: false,
            retry_at: Instant::now(),
            connects: 0,
            drops_before: 0,
        })
    }

    /// The index of the interface, while it is open.
    pub(crate) fn index(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.index)
    }

    /// Leaves the interface, which is one of the daemon's namespace, to be deleted with others.
    pub(crate) fn leave_to(&mut self, doomed: &mut Doomed) {
        if let Some(open) = self.close() {
            doomed.links.push(open.index);
            doomed.queues.extend(open.queues);
        }
    }

    fn open_namespace(&self) -> Result<NetnsRef, OpenError> {
        let Some(name) = &self.conf.netns else {
            return Ok(NetnsRef::current()?);
        };
        if self.process.as_ref().is_some_and(Named::has_ended) {
            return Err(OpenError::Ended(name.clone()));
        }
        Ok(NetnsRef::open(name)?)
    }

    /// Removes what is in its place.
    fn remove_veth(&mut self) -> Result<(), OpenError> {
        if self.may_be_veth {
            veth::remove(&self.conf.mark)?;
            self.may_be_veth = false;
        }
        Ok(())
    }

    fn try_open(&mut self) -> Result<Rings, OpenError> {
        let namespace = self.open_namespace()?;
        self.process = namespace.process().cloned();
        let (conf, given, foreign) = (&self.conf, &self.given, self.foreign);
        let handed = std::mem::take(&mut self.handed);
        let persists = self.bypass.is_none();
        let make = || set_up(conf, given, foreign, handed, &namespace, persists);
        let outcome = match &conf.netns {
            Some(_) => netns::within(&namespace, make)?,
            None => make(),
        };
        self.foreign = match &outcome {
            Err(OpenError::Foreign(_, index)) => Some(*index),
            _ => None,
        };
        let (open, caps) = outcome?;
        open.watch(&self.epoll)?;
        self.given.clone_from(&self.conf.interface.addresses);
        let rx = open
            .queues
            .iter()
            .map(|q| Box::new(TapRx::new(q.clone())) as Box<dyn RxPort>);
        let rings = Rings {
            rx: rx.collect(),
            tx: Arc::new(TapTx::new(open.queues.clone(), caps, self.bypass.clone())),
        };
        self.open = Some(open);
        Ok(rings)
    }

    /// Lets the interface go.
    fn close(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        open.unwatch(&self.epoll);
        Some(open)
    }

    /// Takes what the kernel has to tell of the interface and of its namespace; why the interface is of no use any more, if so.
    fn take_news(&mut self) -> Option<String> {
        if let Some(reason) = self.ending.take() {
            return Some(reason);
        }
        let open = self.open.as_mut()?;
        // What is open keeps a namespace alive that nobody can reach by its name any more.
        if !open.namespace.is_named_still() {
            let name = open.namespace.name().unwrap_or_default();
            return Some(format!("network namespace `{name}` is gone"));
        }
        while let Some(link) = open.monitor.next_of(open.index, &mut open.netlink) {
            let Some(link) = link else {
                // One that was moved to another namespace would stay there for good, and be nobody's. If it was
                // deleted there is nothing to end.
                if let Some(queue) = open.queues.first() {
                    let _ = queue.end_with_queues();
                }
                let name = &self.conf.name;
                return Some(format!("interface `{name}` was deleted or moved away"));
            };
            self.is_changed |= open.is_set_down == link.is_up();
            open.is_set_down = !link.is_up();
            if !std::mem::replace(&mut open.has_carrier, link.has_carrier()) && link.has_carrier() {
                open.ask_again();
            }
        }
        None
    }
}

impl Open {
    /// The carrier is back: what the namespace asked of its neighbours (ARP, NDP) just before is lost in its kernel, which would ask again
    /// after a second.
    fn ask_again(&mut self) {
        // If that fails it does.
        let _ = self.netlink.forget_unresolved(self.index);
    }

    /// Has changes of the interface and the end of the namespace's process reported.
    fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        let process = self.namespace.process().map(Named::as_fd);
        let fds = std::iter::once(self.monitor.as_fd()).chain(process);
        for fd in fds {
            epoll
                .add(fd, 0, Interest::READABLE)
                .inspect_err(|_| self.unwatch(epoll))?;
        }
        Ok(())
    }

    /// The process's descriptor outlives this, and is readable for good once the process has ended.
    fn unwatch(&self, epoll: &Epoll) {
        let _ = epoll.remove(&self.monitor);
        if let Some(process) = self.namespace.process() {
            let _ = epoll.remove(process.as_fd());
        }
    }
}

/// The interface that bears our mark, under whatever name. `foreign`: which one of the wanted name is known not to. `may_be_left`: there
/// may be one of another name.
fn find(
    conf: &TapConf,
    foreign: Option<u32>,
    netlink: &mut Netlink,
    may_be_left: bool,
) -> Result<Option<Link>, OpenError> {
    let is_ours = |link: &Link| {
        link.kind.as_deref() == Some("tun") && link.alias.as_deref() == Some(conf.mark.as_str())
    };
    let named = netlink.link_by_name(&conf.name)?;
    if named.as_ref().is_some_and(is_ours) {
        return Ok(named);
    }
    let known = named.as_ref().filter(|link| Some(link.index) == foreign);
    let ours = match known {
        None if may_be_left => netlink.links_of("tun")?.into_iter().find(is_ours),
        _ => None,
    };
    match (ours, named) {
        (None, Some(link)) => Err(OpenError::Foreign(conf.name.clone(), link.index)),
        (ours, _) => Ok(ours),
    }
}

/// Opens the TAP in the calling thread's namespace: ours if it is there, else a new one.
fn set_up(
    conf: &TapConf,
    given: &[(std::net::IpAddr, u8)],
    foreign: Option<u32>,
    handed: Vec<OwnedFd>,
    namespace: &NetnsRef,
    persists: bool,
) -> Result<(Open, TxCaps), OpenError> {
    let (monitor, mut netlink) = (LinkMonitor::open()?, Netlink::open()?);
    let may_be_left = persists || !handed.is_empty();
    let found = find(conf, foreign, &mut netlink, may_be_left)?;
    let options = TapOptions {
        must_create: found.is_none(),
        multi_queue: conf.multi_queue,
        ..TapOptions::default()
    };
    let name = found.as_ref().map_or(&conf.name, |link| &link.name);
    let tap = match handed.is_empty() {
        true => Tap::open(name, conf.queues, &options)?,
        false => {
            let link = found.as_ref();
            let tap = link.and_then(|link| Tap::take_over(name, link.index, handed, &options));
            tap.ok_or_else(|| OpenError::Vanished(conf.name.clone()))?
        }
    };
    let index = tap.index();
    monitor.keep_to(index)?;
    let link = netlink.link_by_index(index)?;
    let link = link.ok_or_else(|| OpenError::Vanished(conf.name.clone()))?;
    if found.as_ref().is_some_and(|found| found.index != index) {
        // It went meanwhile: what was opened is a new one, without a mark, and goes with its queues.
        return Err(OpenError::Vanished(conf.name.clone()));
    }
    if conf.multi_queue
        && let Ok(program) = windlass_sys::bpf::Program::steer_by_hash()
    {
        tap.set_steering(Some(&program))?;
    }
    let interface = &conf.interface;
    if link.mac != Some(interface.mac) {
        netlink.set_link_mac(index, interface.mac)?;
    }
    if link.mtu != interface.mtu {
        netlink.set_link_mtu(index, interface.mtu)?;
    }
    if found.is_some() {
        address::change(&mut netlink, namespace, index, given, &interface.addresses)?;
    } else {
        netlink.set_link_alias(index, &conf.mark)?;
        address::change(&mut netlink, namespace, index, &[], &interface.addresses)?;
        if persists {
            netlink.set_link_up(index, true)?;
            tap.set_persistent(true)?;
        }
    }
    let caps = caps_of(tap.offloads());
    let open = Open {
        index,
        is_set_down: found.is_some() && !link.is_up(),
        has_carrier: false,
        monitor,
        netlink,
        namespace: namespace.clone(),
        queues: tap.into_queues().into_iter().map(Arc::new).collect(),
        features: features_of(&caps),
        drops_at_open: link.stats.tx_dropped,
    };
    Ok((open, caps))
}

fn caps_of(granted: TapOffloads) -> TxCaps {
    TxCaps {
        csum: granted.checksum,
        tso4: granted.tso,
        tso6: granted.tso,
        ecn: granted.ecn,
        uso: granted.uso,
    }
}

/// What was granted, for people.
fn features_of(caps: &TxCaps) -> String {
    let all = [
        (caps.csum, "csum"),
        (caps.tso4, "tso"),
        (caps.ecn, "ecn"),
        (caps.uso, "uso"),
    ];
    let granted: Vec<_> = all
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    granted.join(",")
}

impl Endpoint for TapEndpoint {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        if self.leaving {
            return Vec::new();
        }
        if let Some(rings) = self.prepared.take() {
            self.connects += 1;
            self.reason.clear();
            return vec![Event::Up(rings)];
        }
        if self.open.is_some() {
            return match self.take_news() {
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
        match self.remove_veth().and_then(|()| self.try_open()) {
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

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn namespace(&self) -> Option<(&str, Option<NetnsId>)> {
        let is_in = self.open.as_ref().map(|open| open.namespace.id());
        Some((self.conf.netns.as_deref()?, is_in))
    }

    fn deadline(&self) -> Option<Instant> {
        (self.open.is_none() && !self.leaving).then_some(self.retry_at)
    }

    fn condemn(&mut self, reason: &str) {
        self.ending = Some(reason.to_owned());
    }

    fn detached(&mut self) {
        self.close();
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
        if let Some(why) = &self.no_veth {
            details.push(("shortcut", format!("none, a TAP: {why}")));
        }
        let is_set_down = self.open.as_ref().is_some_and(|open| open.is_set_down);
        let reason = match is_set_down && !self.leaving {
            true => format!("interface `{}` is set down", self.conf.name),
            false => self.reason.clone(),
        };
        Status {
            up: self.open.is_some() && !self.leaving && !is_set_down,
            reason,
            details,
            connects: self.connects,
        }
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn configure(&mut self, interface: &InterfaceConf) -> Result<(), String> {
        let before = std::mem::replace(&mut self.conf.interface, interface.clone());
        let Some(open) = self.open.as_mut() else {
            return Ok(());
        };
        let done = reconfigure(open, &before, interface);
        match &done {
            Ok(()) => self.given.clone_from(&interface.addresses),
            Err(_) => {
                // What the kernel took is taken back; it had all that before.
                let _ = reconfigure(open, interface, &before);
                self.conf.interface = before;
            }
        }
        done.map_err(|error| format!("interface `{}`: {error}", self.conf.name))
    }

    fn kernel_drops(&mut self) -> u64 {
        let Some(open) = self.open.as_mut() else {
            return self.drops_before;
        };
        let link = open.netlink.link_by_index(open.index).ok().flatten();
        let now = link.map_or(0, |link| link.stats.tx_dropped);
        self.drops_before
            .saturating_add(now.saturating_sub(open.drops_at_open))
    }

    fn mark(&self) -> Option<String> {
        Some(self.conf.mark.clone())
    }

    fn hand_over(&mut self) -> Option<Handed> {
        let open = self.open.as_ref()?;
        let drops = [self.drops_before, open.drops_at_open];
        let fds = open
            .queues
            .iter()
            .map(|queue| queue.as_fd().try_clone_to_owned());
        Some(Handed {
            mark: self.conf.mark.clone(),
            state: drops.iter().flat_map(|word| word.to_le_bytes()).collect(),
            fds: fds.collect::<Result<_, _>>().ok()?,
        })
    }

    /// All but the rings' way to the workers is done here, while the other daemon has them.
    fn take_over(&mut self, handed: Handed) {
        if handed.fds.len() != usize::from(self.conf.queues) {
            return;
        }
        self.handed = handed.fds;
        // An interface that is not there is not to be made before its time.
        self.prepared = self.try_open().ok();
        let drops = handed.state.as_chunks::<8>().0;
        if let (Some(open), [before, at_open]) = (&mut self.open, drops) {
            self.drops_before = u64::from_le_bytes(*before);
            open.drops_at_open = u64::from_le_bytes(*at_open);
        }
    }

    fn delete(&mut self) {
        let (mut netlink, link, queues) = match self.close() {
            // The one that was open is ours, whatever its guest has written on it.
            Some(open) => (open.netlink, Some(open.index), open.queues),
            None => {
                let namespace = self.open_namespace().ok();
                let netlink = namespace.and_then(|namespace| Netlink::open_in(&namespace).ok());
                let Some(mut netlink) = netlink else { return };
                let found = find(&self.conf, None, &mut netlink, true).ok().flatten();
                (netlink, found.map(|link| link.index), Vec::new())
            }
        };
        let link = link.and_then(|index| netlink.link_by_index(index).ok().flatten());
        if let Some(link) = link.filter(|link| link.kind.as_deref() == Some("tun")) {
            let _ = netlink.unlist_link(link.index);
        }
        // The last one to close deletes an interface that does not persist, and waits for it.
        drop(queues);
    }
}

/// Changes an open interface.
fn reconfigure(
    open: &mut Open,
    from: &InterfaceConf,
    to: &InterfaceConf,
) -> Result<(), NetlinkError> {
    let Open {
        netlink,
        namespace,
        index,
        ..
    } = open;
    if from.mtu != to.mtu {
        netlink.set_link_mtu(*index, to.mtu)?;
    }
    if from.mac != to.mac {
        netlink.set_link_mac(*index, to.mac)?;
    }
    address::change(netlink, namespace, *index, &from.addresses, &to.addresses)
}
