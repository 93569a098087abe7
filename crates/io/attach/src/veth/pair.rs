//! The two interfaces of a veth: made, found again, changed, removed.

use std::collections::HashSet;

use thiserror::Error;
use windlass_sys::Errno;
use windlass_sys::bpf::Side;
use windlass_sys::netlink::{Link, LinkMonitor, Netlink, NetlinkError};
use windlass_sys::netns::{self, NetnsError, NetnsRef};
use windlass_sys::shortcut::{self, Ends, Hook, Slot};

use super::VethConf;
use crate::endpoint::InterfaceConf;
use crate::tap::address;

/// What cannot be made.
#[derive(Debug, Error)]
pub(super) enum PairError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("the process of `{0}` has ended: attach the VNIC to another namespace")]
    Ended(String),
    #[error("`{0}` is the daemon's own namespace: attach the VNIC by tap there")]
    Own(String),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(
        "interface `{0}` exists and was not made for this VNIC: rename or delete it, or attach the VNIC with another name="
    )]
    Foreign(String),
    #[error("interface `{0}` vanished while it was being set up")]
    Vanished(String),
    #[error("the TAP behind it: {0}")]
    Tap(String),
    #[error("the shortcut: {0}")]
    Kernel(#[from] Errno),
}

/// Both ends of a veth.
pub(super) struct Pair {
    /// The index of our end.
    pub(super) host: u32,
    /// The index of the container's, in its namespace.
    inner: u32,
    /// It is new: its end is not up yet.
    is_new: bool,
    pub(super) namespace: NetnsRef,
    outside: Netlink,
    inside: Netlink,
    pub(super) monitor: LinkMonitor,
}

/// The name of an interface of ours: what it is for, and which VNIC's (48 bits of FNV-1a).
pub(super) fn hidden_name(prefix: &str, mark: &str) -> String {
    let hash = mark.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{prefix}{:012x}", hash >> 16)
}

/// Our end of the pair with the mark, or of one that was made by a daemon that was killed before it had marked it.
pub(super) fn find(netlink: &mut Netlink, mark: &str) -> Result<Option<Link>, NetlinkError> {
    let name = hidden_name("wlv", mark);
    let is_ours = |link: &Link| {
        let unmarked = link.alias.is_none() && link.name == name;
        link.alias.as_deref() == Some(mark) || unmarked
    };
    Ok(netlink.links_of("veth")?.into_iter().find(is_ours))
}

/// Sets our end of a pair down that cannot be taken over: programs of a former daemon pass what that one allowed, whatever the rules are
/// now. [`Pair::join`] sets it up again.
pub(super) fn cut_off(mark: &str) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open()?;
    match find(&mut netlink, mark)? {
        Some(host) => netlink.set_link_up(host.index, false),
        None => Ok(()),
    }
}

/// Deletes the pair with the mark, if it is there.
///
/// # Errors
/// What the kernel says.
pub(crate) fn remove(mark: &str) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open()?;
    let found = find(&mut netlink, mark)?;
    found.map_or(Ok(()), |host| netlink.unlist_link(host.index))
}

/// Removes pairs whose mark begins like this and is none of these. Returns how many were.
///
/// # Errors
/// What the kernel says.
pub fn remove_others(prefix: &str, keep: &HashSet<String>) -> Result<usize, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let is_other = |mark: &str| mark.starts_with(prefix) && !keep.contains(mark);
    let mut removed = 0;
    for link in netlink.links_of("veth")? {
        if link.alias.as_deref().is_some_and(is_other) {
            netlink.delete_link(link.index)?;
            removed += 1;
        }
    }
    Ok(removed)
}

impl Pair {
    /// The pair of a VNIC: the one that is there, else a new one. `given`: addresses that it was given before. `may_be_left`: one may be
    /// there, and is looked for before one is made.
    pub(super) fn open(
        conf: &VethConf,
        given: &[(std::net::IpAddr, u8)],
        namespace: NetnsRef,
        may_be_left: bool,
    ) -> Result<Pair, PairError> {
        let own = NetnsRef::current()?;
        if own.id() == namespace.id() {
            return Err(PairError::Own(conf.netns.clone()));
        }
        let mut outside = Netlink::open()?;
        let (mut inside, monitor) = netns::within(&namespace, || {
            Ok::<_, NetlinkError>((Netlink::open()?, LinkMonitor::open()?))
        })??;
        let made = match may_be_left {
            true => None,
            false => make_first(conf, &namespace, &mut outside, &mut inside)?,
        };
        let (is_new, (host, inner)) = match made {
            Some(made) => (true, made),
            None => match left(conf, &mut outside, &mut inside)? {
                Some(left) => (false, left),
                None => (true, make(conf, &namespace, &mut outside, &mut inside)?),
            },
        };
        monitor.keep_to(inner.index)?;
        let mut pair = Pair {
            host: host.index,
            inner: inner.index,
            is_new,
            namespace,
            outside,
            inside,
            monitor,
        };
        let is = InterfaceConf {
            addresses: if is_new { Vec::new() } else { given.to_vec() },
            mac: inner.mac.unwrap_or_default(),
            // Whatever both are.
            mtu: 0,
        };
        pair.change(&is, &conf.interface)?;
        Ok(pair)
    }

    /// Gives the container's end what `to` says.
    pub(super) fn change(
        &mut self,
        from: &InterfaceConf,
        to: &InterfaceConf,
    ) -> Result<(), NetlinkError> {
        if from.mtu != to.mtu {
            self.outside.set_link_mtu(self.host, to.mtu)?;
            self.inside.set_link_mtu(self.inner, to.mtu)?;
        }
        if from.mac != to.mac {
            self.inside.set_link_mac(self.inner, to.mac)?;
        }
        let (netlink, namespace) = (&mut self.inside, &self.namespace);
        address::change(
            netlink,
            namespace,
            self.inner,
            &from.addresses,
            &to.addresses,
        )
    }

    /// Has frames pass between the pair and a TAP, and nothing else; then our ends are up. Whether the container's is.
    pub(super) fn join(&mut self, hook: Hook, slot: &Slot, ends: Ends) -> Result<bool, PairError> {
        slot.set_ends(ends)?;
        self.put_programs(hook, slot, ends)?;
        self.outside.set_link_up(ends.host, true)?;
        if self.is_new {
            // Of the time before it is up: told now, they would set the TAP down.
            while self.news().is_some() {}
            self.inside.set_link_up(self.inner, true)?;
            self.is_new = false;
        } else {
            // The programs before these may still pass a frame by what they knew.
            shortcut::settle();
        }
        let inner = self.inside.link_by_index(self.inner)?;
        let is_up = inner.is_some_and(|link| link.is_up());
        self.follow(slot, ends.tap, is_up)?;
        Ok(is_up)
    }

    /// Puts the programs at our ends, in the place of those that are there.
    pub(super) fn put_programs(
        &mut self,
        hook: Hook,
        slot: &Slot,
        ends: Ends,
    ) -> Result<(), PairError> {
        let netlink = &mut self.outside;
        for index in [ends.host, ends.tap] {
            hook.put(netlink, slot.quiet(), index, Side::Egress)?;
        }
        hook.put(netlink, slot.arrive(), ends.tap, Side::Ingress)?;
        Ok(hook.put(netlink, slot.leave(), ends.host, Side::Ingress)?)
    }

    /// The TAP is down while the container's end is: what is sent there then is counted as it is at any TAP.
    pub(super) fn follow(&mut self, slot: &Slot, tap: u32, is_up: bool) -> Result<(), PairError> {
        slot.set_up(is_up)?;
        self.outside.set_link_up(tap, is_up)?;
        Ok(())
    }

    /// Whether the container's end is up now; `None` if it is gone, or in another namespace.
    pub(super) fn news(&mut self) -> Option<Option<bool>> {
        let link = self.monitor.next_of(self.inner, &mut self.inside)?;
        Some(link.map(|link| link.is_up()))
    }

    /// Deletes both ends, wherever the container's is.
    pub(super) fn delete(self) {
        let _ = self.outside.unlist_link(self.host);
    }
}

/// The pair that a daemon before has made. One of which only our end is left is deleted.
fn left(
    conf: &VethConf,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<Option<(Link, Link)>, NetlinkError> {
    let Some(host) = find(outside, &conf.mark)? else {
        return Ok(None);
    };
    match inner_of(inside, &host)? {
        Some(inner) if host.alias.is_some() => Ok(Some((host, inner))),
        _ => {
            outside.delete_link(host.index)?;
            Ok(None)
        }
    }
}

/// The other end of our end, if it is in the namespace of `inside`.
fn inner_of(inside: &mut Netlink, host: &Link) -> Result<Option<Link>, NetlinkError> {
    let Some(index) = host.lower else {
        return Ok(None);
    };
    let inner = inside.link_by_index(index)?;
    let is_it =
        |link: &Link| link.kind.as_deref() == Some("veth") && link.lower == Some(host.index);
    Ok(inner.filter(is_it))
}

fn make(
    conf: &VethConf,
    namespace: &NetnsRef,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<(Link, Link), PairError> {
    for link in inside.links()? {
        // A daemon that could have no shortcut has made it.
        if link.kind.as_deref() == Some("tun") && link.alias.as_deref() == Some(&conf.mark) {
            inside.delete_link(link.index)?;
        } else if link.name == conf.name {
            return Err(PairError::Foreign(conf.name.clone()));
        }
    }
    create(conf, namespace, outside, inside)
}

/// A new pair, without a look at what is there, which costs the more the more there is; `None` if one of the two names is taken.
fn make_first(
    conf: &VethConf,
    namespace: &NetnsRef,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<Option<(Link, Link)>, PairError> {
    match create(conf, namespace, outside, inside) {
        Err(PairError::Netlink(error)) if error.errno() == Some(Errno::EXIST) => Ok(None),
        other => other.map(Some),
    }
}

fn create(
    conf: &VethConf,
    namespace: &NetnsRef,
    outside: &mut Netlink,
    inside: &mut Netlink,
) -> Result<(Link, Link), PairError> {
    let name = hidden_name("wlv", &conf.mark);
    outside.create_veth(&name, &conf.name, Some(namespace))?;
    let vanished = || PairError::Vanished(conf.name.clone());
    let host = outside.link_by_name(&name)?.ok_or_else(vanished)?;
    outside.set_link_alias(host.index, &conf.mark)?;
    let inner = inner_of(inside, &host)?.ok_or_else(vanished)?;
    Ok((host, inner))
}
