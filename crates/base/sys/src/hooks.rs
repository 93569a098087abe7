//! What the kernel has in the way of packets beside the rules of nftables: queues and eBPF programs.
//!
//! # Purpose
//! Packets that go another way than the kernel's pass these unseen. Who sends them another way looks here first.
//!
//! # Not done
//! XDP programs, and classifiers and actions behind a `clsact` qdisc, which counts as a queue.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::bpf::{self, Attached};
use crate::netlink::{Netlink, NetlinkError};
use crate::process::{Pinned, has_ended};

/// The index of `lo`, which is the first interface of every namespace.
pub const LOOPBACK_INDEX: u32 = 1;

/// Something that sees, holds or drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A queueing discipline of this kind at `lo`, other than none.
    Queue(String),
    /// An eBPF program at `lo`.
    Program,
    /// An eBPF program at this cgroup, or at one above it.
    CgroupProgram(String),
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(kind) => write!(f, "tc: a queue of kind {kind} at lo"),
            Self::Program => f.write_str("an eBPF program at lo"),
            Self::CgroupProgram(path) => {
                write!(f, "an eBPF program sees the packets of cgroup /{path}")
            }
        }
    }
}

/// The first one at `lo` of the network namespace in which `links` was opened, and in which this thread is. Needs
/// `CAP_NET_ADMIN`.
pub fn at_loopback(links: &mut Netlink) -> Result<Option<Hook>, NetlinkError> {
    let mut kinds = links.qdiscs(LOOPBACK_INDEX)?.into_iter();
    if let Some(kind) = kinds.find(|kind| kind != "noqueue") {
        return Ok(Some(Hook::Queue(kind)));
    }
    let places = [Attached::LinkIngress, Attached::LinkEgress].map(|at| at(LOOPBACK_INDEX));
    for place in places {
        let attached = bpf::attached(place).map_err(|errno| NetlinkError::Kernel {
            operation: "look for eBPF programs",
            errno,
            message: None,
        });
        if attached? > 0 {
            return Ok(Some(Hook::Program));
        }
    }
    Ok(None)
}

/// The programs that see what a process sends and receives because of its cgroup; `None` also where that cannot be seen, and of
/// a process that has ended.
pub fn of_cgroup((pid, pidfd): &Pinned) -> Option<Hook> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    if has_ended(pidfd) {
        return None;
    }
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Where there are hierarchies of the old kind, too, the new one has a place of its own.
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let mut roots = roots.into_iter();
    let root = roots.find(|root| root.join("cgroup.procs").exists())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(root.join(path), flags, Mode::empty()).ok()?;
    let places = [
        Attached::CgroupIngress(directory.as_fd()),
        Attached::CgroupEgress(directory.as_fd()),
    ];
    let mut places = places.into_iter();
    let any = places.any(|place| bpf::attached(place).is_ok_and(|count| count > 0));
    any.then(|| Hook::CgroupProgram(path.to_owned()))
}
