//! TAPs that were moved to another namespace while no daemon ran.
//!
//! A TAP is looked for where its VNIC has it, and made there if it is not. One that somebody has moved would stay where it is
//! for good, with nobody behind it. While a daemon runs, it ends such a TAP when it is moved; this is for the time before.

use std::collections::HashMap;

use windlass_sys::netlink::{Netlink, NetlinkError};
use windlass_sys::netns::{self, NetnsRef};

/// Removes interfaces that bear one of these marks in a namespace other than the mark's own, among the daemon's and those with a
/// name; `None` is the daemon's. Nothing is removed on account of a mark whose namespace is not there. Returns how many were.
///
/// Whoever may write a mark on an interface may also remove that interface: a forged mark gains nothing.
pub fn remove_strays(homes: &HashMap<String, Option<String>>) -> usize {
    let mut opened = HashMap::new();
    for home in homes.values() {
        let open = || match home {
            Some(name) => NetnsRef::open(name).ok(),
            None => NetnsRef::current().ok(),
        };
        opened.entry(home).or_insert_with(open);
    }
    let names = std::fs::read_dir(netns::DIRECTORY).into_iter().flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let named = names.filter_map(|name| NetnsRef::open(&name).ok());
    let mut removed = 0;
    for namespace in NetnsRef::current().into_iter().chain(named) {
        let is_elsewhere = |mark: &str| {
            let home = homes.get(mark).and_then(|home| opened.get(home)?.as_ref());
            home.is_some_and(|home| home.id() != namespace.id())
        };
        removed += remove_from(&namespace, is_elsewhere).unwrap_or(0);
    }
    removed
}

fn remove_from(
    namespace: &NetnsRef,
    is_stray: impl Fn(&str) -> bool,
) -> Result<usize, NetlinkError> {
    let mut netlink = Netlink::open_in(namespace)?;
    let mut removed = 0;
    for link in netlink.links_of("tun")? {
        if link.alias.as_deref().is_some_and(&is_stray) {
            netlink.delete_link(link.index)?;
            removed += 1;
        }
    }
    Ok(removed)
}
