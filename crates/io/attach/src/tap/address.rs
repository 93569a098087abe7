//! The network addresses of an interface: those that the configuration names, and nobody else's.

use std::net::IpAddr;
use std::path::PathBuf;

use windlass_sys::Errno;
use windlass_sys::netlink::{Netlink, NetlinkError};
use windlass_sys::netns::{self, NetnsRef};

type Addresses = [(IpAddr, u8)];

/// Takes away what only `old` has and adds what only `new` has. Others' addresses stay; one that is gone or there
/// already is well.
///
/// # Errors
/// What the kernel refused; some of the changes may have been made.
pub(crate) fn change(
    netlink: &mut Netlink,
    namespace: &NetnsRef,
    index: u32,
    old: &Addresses,
    new: &Addresses,
) -> Result<(), NetlinkError> {
    let gone: Vec<_> = old.iter().filter(|one| !new.contains(one)).collect();
    let come: Vec<_> = new.iter().filter(|one| !old.contains(one)).collect();
    let before = if gone.is_empty() {
        Vec::new()
    } else {
        netlink.addresses_of(index)?
    };
    let link = netlink.link_by_index(index)?;
    let promotion = match link {
        Some(link) if gone.iter().any(|(ip, _)| ip.is_ipv4()) => {
            Promotion::begin(namespace, &link.name)
        }
        _ => None,
    };
    for (ip, prefix) in &gone {
        allow(
            netlink.delete_address(index, *ip, *prefix),
            Errno::ADDRNOTAVAIL,
        )?;
    }
    for (ip, prefix) in &come {
        allow(netlink.add_address(index, *ip, *prefix), Errno::EXIST)?;
    }
    drop(promotion);
    if !gone.is_empty() {
        // Where promotion could not be had, the kernel took every further address of the same network along.
        let after = netlink.addresses_of(index)?;
        let ours = |ip: IpAddr, prefix: u8| gone.iter().any(|one| **one == (ip, prefix));
        for lost in before.into_iter().filter(|one| one.ip.is_ipv4()) {
            let there = after
                .iter()
                .any(|a| (a.ip, a.prefix) == (lost.ip, lost.prefix));
            if !there && !ours(lost.ip, lost.prefix) {
                allow(
                    netlink.add_address(index, lost.ip, lost.prefix),
                    Errno::EXIST,
                )?;
            }
        }
    }
    Ok(())
}

fn allow(done: Result<(), NetlinkError>, errno: Errno) -> Result<(), NetlinkError> {
    match done {
        Err(error) if error.errno() != Some(errno) => Err(error),
        _ => Ok(()),
    }
}

/// While it lives, the removal of an interface's first IPv4 address of a network promotes the second instead of removing
/// all of them (`promote_secondaries`, Documentation/networking/ip-sysctl.rst).
struct Promotion {
    namespace: NetnsRef,
    path: PathBuf,
    before: String,
}

impl Promotion {
    fn begin(namespace: &NetnsRef, interface: &str) -> Option<Promotion> {
        let path = PathBuf::from(format!(
            "/proc/sys/net/ipv4/conf/{interface}/promote_secondaries"
        ));
        // These files are those of the namespace of the thread that opens them.
        let before = netns::within(namespace, || {
            let before = std::fs::read_to_string(&path)?;
            std::fs::write(&path, "1").map(|()| before)
        });
        let before = before.ok()?.ok()?;
        Some(Promotion {
            namespace: namespace.clone(),
            path,
            before,
        })
    }
}

impl Drop for Promotion {
    fn drop(&mut self) {
        // A file that could be written a moment ago can be written again, unless the interface is gone.
        let _ = netns::within(&self.namespace, || std::fs::write(&self.path, &self.before));
    }
}
