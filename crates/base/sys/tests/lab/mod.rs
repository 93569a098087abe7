//! Namespaces that vanish with the test, and the word for a test that cannot run.

#![allow(dead_code, clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::time::Duration;

use windlass_sys::caps::{Capability, holds};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::netns::{self, NetnsRef};

/// Whether this process has what the test `name` needs; says so if not.
pub fn can_run(name: &str) -> bool {
    let needed = [
        Capability::NetAdmin,
        Capability::NetRaw,
        Capability::SysAdmin,
    ];
    for capability in needed {
        if !holds(capability) {
            println!("skipped: {name}: needs {capability:?}");
            return false;
        }
    }
    true
}

/// A named namespace of this test's own.
pub struct Lab {
    pub name: String,
    pub namespace: NetnsRef,
}

impl Lab {
    pub fn create(tag: &str) -> Self {
        let name = format!("wlsys-{}-{tag}", std::process::id());
        let namespace = netns::create(&name).unwrap();
        Self { name, namespace }
    }

    /// Runs `work` inside.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(&self.namespace, work).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = netns::delete(&self.name);
    }
}

/// Waits until `fd` is readable, at most two seconds. Whether it became so.
pub fn readable(fd: impl AsFd) -> bool {
    let epoll = Epoll::create().unwrap();
    epoll.add(fd, 0, Interest::READABLE).unwrap();
    let mut events = Events::default();
    epoll
        .wait(&mut events, Some(Duration::from_secs(2)))
        .unwrap()
        > 0
}

/// An Ethernet frame with an ARP request for `target` (RFC 826), without padding.
pub fn arp_request(from: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(from);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

/// Whether `frame` is an ARP reply from `sender`.
pub fn is_arp_reply(frame: &[u8], sender: [u8; 4]) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x06])
        && frame.get(20..22) == Some(&[0, 2])
        && frame.get(28..32) == Some(&sender)
}
