//! Takes the interface, keeps the host's stack off it, notices its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use windlass_shm::Extent;
use windlass_sys::Errno;
use windlass_sys::bpf::{LoadError, Program};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::netlink::{Link, LinkMonitor, Netlink, NetlinkError};
use windlass_sys::packet::{Fanout, FanoutMode, PacketError, PacketOptions, PacketSocket};

use super::filters::Filters;
use super::rings::{Interface, Rings as Groups};
use super::{PacketRx, PacketTx};
use crate::endpoint::{Addresses, Endpoint, Event, Handed, Rings, Status};
use crate::port::{RxPort, TxPort};
use crate::xdp::{Attached, Unavailable, XdpConf};

/// Time between two looks at what is waited for.
const RETRY: Duration = Duration::from_millis(500);
/// Priority of our filter: before those of others.
const PRIORITY: u16 = 1;
/// Time after which it is looked whether what kept XDP away has passed; doubled each time.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(60)];
/// Receive buffer of each socket: 4 MiB hold a burst of 64 KiB segments.
const RECEIVE_BYTES: usize = 4 << 20;

/// Which interface to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConf {
    /// Its name.
    pub device: String,
    /// Take it although it has addresses or a master, and leave the host's stack on it.
    pub share: bool,
    /// Sockets: one for each worker, flows spread by hash.
    pub queues: u16,
    /// What the names of our filters start with: tells this daemon's from another's.
    pub mark: String,
    /// Take its frames by AF_XDP, if that can be had.
    pub xdp: Option<XdpConf>,
    /// Where it is written down which rings VNICs have: files named after interfaces.
    pub records: PathBuf,
}

/// Why the interface cannot be taken.
#[derive(Debug, Error)]
enum OpenError {
    #[error("interface `{0}` does not exist")]
    Missing(String),
    #[error(
        "`{0}` is the loopback interface, which leads nowhere: an uplink needs an Ethernet interface"
    )]
    Loopback(String),
    #[error(
        "interface `{0}` carries no Ethernet frames (its type is {1}): an uplink needs one that does"
    )]
    NotEthernet(String, u16),
    #[error(
        "interface `{0}` has address {1}: remove it, or use --share to leave the host's stack on it"
    )]
    Addresses(String, std::net::IpAddr),
    #[error("interface `{0}` belongs to a bridge or bond: take it out, or use --share")]
    Master(String),
    #[error("another program already filters at priority {PRIORITY} of `{0}`'s ingress ({1})")]
    Foreign(String, String),
    #[error("epoll_ctl: {0}")]
    Watch(Errno),
    #[error("`{0}` cannot be made promiscuous: {1}")]
    Promiscuous(String, Errno),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error(transparent)]
    Program(#[from] LoadError),
}

/// Why an interface cannot be taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untakeable {
    /// Somebody else uses it; the sentence says who, and what can be done.
    InUse(String),
    /// It is not of a kind that can be taken, or the kernel refused; the sentence says why.
    Unfit(String),
}

impl From<OpenError> for Untakeable {
    fn from(error: OpenError) -> Self {
        let sentence = error.to_string();
        match error {
            OpenError::Addresses(..) | OpenError::Master(_) | OpenError::Foreign(..) => {
                Untakeable::InUse(sentence)
            }
            _ => Untakeable::Unfit(sentence),
        }
    }
}

struct Open {
    index: u32,
    sockets: Vec<Arc<PacketSocket>>,
    filters: Filters,
    groups: Groups,
    monitor: LinkMonitor,
    netlink: Netlink,
    shielded: bool,
    link: Option<NoLink>,
    xdp: Option<Attached>,
    /// Why it is not by AF_XDP, though it should be.
    refusal: Option<Unavailable>,
    /// The largest MTU with which it can go on as it is.
    mtu_max: u32,
}

/// Why nothing gets through an interface that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoLink {
    /// An administrator has set it down.
    SetDown,
    /// No cable, or the other end is down.
    NoCarrier,
}

impl NoLink {
    fn of(link: &Link) -> Option<NoLink> {
        match (link.is_up(), link.has_carrier()) {
            (false, _) => Some(NoLink::SetDown),
            (true, false) => Some(NoLink::NoCarrier),
            (true, true) => None,
        }
    }
}

/// The control half of an uplink.
pub struct PacketEndpoint {
    conf: PacketConf,
    epoll: Epoll,
    open: Option<Open>,
    reason: String,
    ending: Option<String>,
    leaving: bool,
    retry_at: Instant,
    connects: u64,
    drops: u64,
    is_changed: bool,
    /// Those behind the bridge's other members.
    addresses: Addresses,
    /// When to look whether AF_XDP can be had, and after which time again.
    look_at: Option<(Instant, Duration)>,
    notice: Option<String>,
    /// The program was taken away for a successor.
    has_let_go: bool,
}

impl PacketEndpoint {
    /// An interface to be taken at the first [`Endpoint::poll`].
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set.
    pub fn new(conf: PacketConf) -> Result<PacketEndpoint, Errno> {
        Ok(PacketEndpoint {
            conf,
            epoll: Epoll::create()?,
            open: None,
            reason: "not tried yet".to_owned(),
            ending: None,
            leaving: false,
            retry_at: Instant::now(),
            connects: 0,
            drops: 0,
            is_changed: false,
            addresses: Addresses::default(),
            look_at: None,
            notice: None,
            has_let_go: false,
        })
    }

    /// Whether the interface can be taken now: for a refusal before anything is stored.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check(conf: &PacketConf) -> Result<(), Untakeable> {
        let mut netlink = Netlink::open().map_err(OpenError::from)?;
        takeable(conf, &mut netlink)?;
        Ok(())
    }

    fn try_open(&mut self) -> Result<Rings, OpenError> {
        let monitor = LinkMonitor::open()?;
        let mut netlink = Netlink::open()?;
        let link = takeable(&self.conf, &mut netlink)?;
        let index = link.index;
        let mut groups = Groups::left(&self.conf.records.join(&self.conf.device));
        take_back(&mut groups, &mut netlink);
        groups.begin(index);
        let (xdp, refusal) = match self.take_by_xdp(&link) {
            Ok(attached) => (attached, None),
            Err(why) => (None, Some(why)),
        };
        // What the program does not take comes by one socket.
        let queues = match self.conf.xdp {
            Some(_) => 1,
            None => self.conf.queues.max(1),
        };
        let sockets = open_sockets(index, queues)?;
        let mut filters = Filters::default();
        if let Some(socket) = sockets.first() {
            let followed = filters.follow(socket.as_ref(), &self.addresses);
            followed.map_err(|errno| OpenError::Promiscuous(self.conf.device.clone(), errno))?;
        }
        let shielded = !self.conf.share;
        if shielded {
            shield(&self.conf, &mut netlink, index)?;
        }
        // It leaves the set when it is closed, at the latest with this.
        self.epoll
            .add(&monitor, 0, Interest::READABLE)
            .map_err(OpenError::Watch)?;
        let by_packet = sockets
            .iter()
            .map(|s| Box::new(PacketRx::new(s.clone())) as Box<dyn RxPort>);
        let by_xdp = xdp.iter().flat_map(Attached::rx);
        let rings = Rings {
            rx: by_xdp.chain(by_packet).collect(),
            tx: match &xdp {
                Some(attached) => Arc::new(attached.tx()) as Arc<dyn TxPort>,
                None => Arc::new(PacketTx::new(sockets.clone())),
            },
        };
        self.note(refusal.as_ref());
        follow(&mut groups, &link.name, xdp.is_some(), &self.addresses);
        self.open = Some(Open {
            index,
            sockets,
            filters,
            groups,
            monitor,
            netlink,
            shielded,
            link: NoLink::of(&link),
            mtu_max: xdp.as_ref().map_or(u32::MAX, Attached::mtu_max),
            xdp,
            refusal,
        });
        Ok(rings)
    }

    /// Its frames by AF_XDP, if that is asked for.
    fn take_by_xdp(&self, link: &Link) -> Result<Option<Attached>, Unavailable> {
        let open = |conf| {
            let addresses = self.addresses.own.iter().copied();
            Attached::open(conf, link, self.conf.share, addresses)
        };
        self.conf.xdp.map(open).transpose()
    }

    /// Remembers why AF_XDP cannot be had, and when to look again.
    fn note(&mut self, refusal: Option<&Unavailable>) {
        let [first, _] = LOOK_AGAIN;
        let waits = refusal.is_some_and(Unavailable::may_pass);
        self.look_at = waits.then(|| (Instant::now() + first, first));
        self.notice = refusal.map(|why| format!("AF_XDP is not used, but a packet socket: {why}"));
    }

    /// Looks whether what kept AF_XDP away has passed: then the interface is taken anew.
    fn look_again(&mut self, now: Instant) -> Option<String> {
        let (at, after) = self.look_at?;
        if now < at {
            return None;
        }
        let [_, most] = LOOK_AGAIN;
        let after = (after * 2).min(most);
        self.look_at = Some((now + after, after));
        let open = self.open.as_mut()?;
        let link = open.netlink.link_by_index(open.index).ok().flatten()?;
        let (name, conf) = (&self.conf.device, self.conf.xdp?);
        Attached::is_free(conf, &link).then(|| format!("AF_XDP can be had on `{name}` now"))
    }

    /// Takes the news of the interface; why it is of no use any more, if so.
    fn take_news(&mut self) -> Option<String> {
        if let Some(reason) = self.ending.take() {
            return Some(reason);
        }
        let open = self.open.as_mut()?;
        while let Some(link) = open.monitor.next_of(open.index, &mut open.netlink) {
            let Some(link) = link else {
                return Some(format!("interface `{}` was deleted", self.conf.device));
            };
            let before = std::mem::replace(&mut open.link, NoLink::of(&link));
            self.is_changed |= before != open.link;
            if link.mtu > open.mtu_max {
                return Some(format!(
                    "the MTU of `{}` is {} now, above {}",
                    self.conf.device, link.mtu, open.mtu_max
                ));
            }
        }
        None
    }

    /// Gives the interface back to the host.
    fn give_back(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        self.drops += open.xdp.as_ref().map_or(0, Attached::drops);
        self.look_at = None;
        take_back(&mut open.groups, &mut open.netlink);
        if open.shielded {
            unshield(&mut open.netlink, open.index, &self.conf.mark);
        }
    }
}

/// Gives VNICs rings for themselves, as far as the interface can.
fn follow(groups: &mut Groups, device: &str, is_by_xdp: bool, addresses: &Addresses) {
    match is_by_xdp {
        true => groups.follow(&Interface(device.to_owned()), &addresses.rings),
        false => groups.refuse(&addresses.rings, "the uplink is not by AF_XDP"),
    }
}

/// Takes rings back from VNICs, by whatever name the interface has now.
fn take_back(groups: &mut Groups, netlink: &mut Netlink) {
    let Some(index) = groups.interface() else {
        return;
    };
    match netlink.link_by_index(index) {
        Ok(Some(link)) => groups.release(&Interface(link.name)),
        Ok(None) => groups.forget(),
        // It is written down.
        Err(_) => {}
    }
}

/// So many packet sockets, among which flows are spread.
fn open_sockets(index: u32, queues: u16) -> Result<Vec<Arc<PacketSocket>>, OpenError> {
    let fanout = (queues > 1).then(|| Fanout {
        group: std::process::id() as u16 ^ index as u16,
        mode: FanoutMode::Flow,
        rollover: false,
    });
    let options = PacketOptions {
        receive_bytes: Some(RECEIVE_BYTES),
        fanout,
        ..PacketOptions::default()
    };
    let open = |_| Ok(Arc::new(PacketSocket::open(index, &options)?));
    (0..queues).map(open).collect()
}

/// The interface, if it may be taken.
fn takeable(conf: &PacketConf, netlink: &mut Netlink) -> Result<Link, OpenError> {
    let link = netlink.link_by_name(&conf.device)?;
    let link = link.ok_or_else(|| OpenError::Missing(conf.device.clone()))?;
    if link.is_loopback() {
        return Err(OpenError::Loopback(conf.device.clone()));
    }
    if !link.is_ethernet() {
        return Err(OpenError::NotEthernet(
            conf.device.clone(),
            link.device_type,
        ));
    }
    if conf.share {
        return Ok(link);
    }
    if link.master.is_some() {
        return Err(OpenError::Master(conf.device.clone()));
    }
    for address in netlink.addresses_of(link.index)? {
        let kernels_own =
            matches!(address.ip, std::net::IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !kernels_own {
            return Err(OpenError::Addresses(conf.device.clone(), address.ip));
        }
    }
    Ok(link)
}

/// Drops everything at the interface's ingress, unless we did so in an earlier life.
fn shield(conf: &PacketConf, netlink: &mut Netlink, index: u32) -> Result<(), OpenError> {
    if !netlink.has_clsact(index)? {
        netlink.add_clsact(index)?;
    }
    for filter in netlink.ingress_filters(index)? {
        if filter.priority == PRIORITY {
            return match filter.name.starts_with(&conf.mark) {
                true => Ok(()),
                false => Err(OpenError::Foreign(conf.device.clone(), filter.name)),
            };
        }
    }
    let program = Program::drop_all_ingress()?;
    netlink.attach_ingress(index, PRIORITY, &conf.mark, &program)?;
    Ok(())
}

/// Removes our filter, and the qdisc if nothing else is attached to it.
fn unshield(netlink: &mut Netlink, index: u32, mark: &str) {
    let Ok(filters) = netlink.ingress_filters(index) else {
        return;
    };
    let ours =
        |f: &windlass_sys::netlink::Filter| f.priority == PRIORITY && f.name.starts_with(mark);
    if filters.iter().any(ours) {
        let _ = netlink.detach_ingress(index, PRIORITY);
        if filters.len() == 1 {
            let _ = netlink.delete_clsact(index);
        }
    }
}

/// Removes what an earlier daemon with this mark and these records left at interfaces that are not among `keep`.
pub fn release_stale(mark: &str, records: &Path, keep: &[String]) {
    let Ok(mut netlink) = Netlink::open() else {
        return;
    };
    for mut groups in Groups::all_left(records, keep) {
        take_back(&mut groups, &mut netlink);
    }
    for link in netlink.links().unwrap_or_default() {
        if !keep.contains(&link.name) {
            unshield(&mut netlink, link.index, mark);
        }
    }
}

impl Drop for PacketEndpoint {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Endpoint for PacketEndpoint {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        if self.leaving {
            return Vec::new();
        }
        if self.open.is_some() {
            return match self.take_news().or_else(|| self.look_again(now)) {
                Some(reason) => {
                    self.kernel_drops();
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

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        let waits = self.open.is_none() && !self.leaving;
        let look_at = self.look_at.filter(|_| !self.leaving).map(|(at, _)| at);
        if waits { Some(self.retry_at) } else { look_at }
    }

    fn condemn(&mut self, reason: &str) {
        self.ending = Some(reason.to_owned());
    }

    fn detached(&mut self) {
        self.give_back();
        self.leaving = false;
        self.retry_at = Instant::now();
    }

    fn status(&self) -> Status {
        let mut details = vec![("device", self.conf.device.clone())];
        if let Some(open) = &self.open {
            let stack = if open.shielded {
                "kept off"
            } else {
                "shares the interface"
            };
            details.push(("host stack", stack.to_owned()));
            details.push(("filters", open.filters.describe()));
            details.extend(open.groups.describe().map(|rings| ("rings", rings)));
            match &open.xdp {
                Some(attached) => details.extend(attached.details()),
                None => details.push(("queues", open.sockets.len().to_string())),
            }
            if let Some(why) = &open.refusal {
                details.push(("xdp", format!("not used: {why}")));
            }
        }
        let device = &self.conf.device;
        let no_link = self.open.as_ref().and_then(|open| open.link);
        let reason = match no_link.filter(|_| !self.leaving) {
            Some(NoLink::SetDown) => format!("interface `{device}` is set down"),
            Some(NoLink::NoCarrier) => format!("interface `{device}` has no carrier"),
            None => self.reason.clone(),
        };
        Status {
            up: self.open.is_some() && !self.leaving && no_link.is_none(),
            reason,
            details,
            connects: self.connects,
        }
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn kernel_drops(&mut self) -> u64 {
        let sockets = self.open.iter().flat_map(|o| &o.sockets);
        let new = sockets
            .filter_map(|s| s.take_statistics().ok())
            .map(|s| u64::from(s.drops));
        self.drops += new.sum::<u64>();
        let attached = self.open.iter().flat_map(|o| &o.xdp);
        self.drops + attached.map(Attached::drops).sum::<u64>()
    }

    fn regions(&self) -> Vec<(&'static str, Extent)> {
        let attached = self.open.iter().flat_map(|o| &o.xdp);
        attached.map(|xdp| ("xdp", xdp.extent())).collect()
    }

    fn set_addresses(&mut self, addresses: &Addresses) -> bool {
        if self.addresses == *addresses {
            return false;
        }
        if let Some(open) = &mut self.open {
            if let Some(attached) = open.xdp.as_ref().filter(|_| self.conf.share) {
                // An address that finds no room is the packet socket's, as all are without XDP.
                for gone in self.addresses.own.difference(&addresses.own) {
                    let _ = attached.divert().remove(*gone);
                }
                for came in addresses.own.difference(&self.addresses.own) {
                    let _ = attached.divert().insert(*came);
                }
            }
            if self.addresses.rings != addresses.rings
                && let Ok(Some(link)) = open.netlink.link_by_index(open.index)
            {
                follow(&mut open.groups, &link.name, open.xdp.is_some(), addresses);
            }
            let socket = open.sockets.first();
            let followed = socket.map(|s| open.filters.follow(s.as_ref(), addresses));
            if let Some(Err(errno)) = followed {
                let refused = OpenError::Promiscuous(self.conf.device.clone(), errno);
                self.ending = Some(refused.to_string());
            }
        }
        self.addresses.clone_from(addresses);
        self.ending.is_some()
    }

    /// Nothing goes with it: the program, and what VNICs have of the interface, make way for those of the other daemon.
    fn hand_over(&mut self) -> Option<Handed> {
        if let Some(open) = self.open.as_mut()
            && let Some(attached) = open.xdp.as_mut()
        {
            attached.let_go();
            take_back(&mut open.groups, &mut open.netlink);
            self.has_let_go = true;
        }
        None
    }

    fn keep(&mut self, _is_used: bool) -> bool {
        std::mem::take(&mut self.has_let_go)
    }

    fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn delete(&mut self) {
        self.give_back();
    }
}
