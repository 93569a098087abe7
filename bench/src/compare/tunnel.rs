//! # Purpose
//! TCP and small UDP datagrams from TAP to TAP through an overlay of two daemons, beside the kernel's bridge, VXLAN and veth.
//!
//! # Model
//! ```text
//!   client -- TAP or veth -- host wlc-near ==== u0, MTU 1500 ==== host wlc-far -- TAP or veth -- server
//! ```
//! Each host is a namespace: one with a windlassd that has an overlay, one with the kernel's bridge and VXLAN device, or one
//! with a windlassd whose uplink is the kernel's VXLAN device.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use windlass_sys::netns::{NetnsRef, within};

use super::host::{Namespace, Scratch};
use super::iperf::{CLIENT, Comparison, SERVER, Traffic, Turns, Variant, World, plug};
use super::windlass::Daemon;

/// Namespaces of the hosts, and their addresses in the underlay.
pub(super) const NEAR: (&str, &str) = ("wlc-near", "192.0.2.1");
pub(super) const FAR: (&str, &str) = ("wlc-far", "192.0.2.2");
/// What guests may send: the underlay's MTU without the outer headers.
const MTU: u16 = 1450;

/// TAP to TAP through a tunnel, with iperf3.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,windlass,windlass-kernel,kernel-windlass,uplink"
    )]
    subjects: Vec<Subject>,
    #[command(flatten)]
    turns: Turns,
}

/// What the two hosts are; the first one sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// The kernel's bridge and VXLAN on both.
    Kernel,
    /// Overlays on both.
    Windlass,
    /// An overlay, the kernel.
    WindlassKernel,
    /// The kernel, an overlay.
    KernelWindlass,
    /// Uplinks on the kernel's VXLAN device on both.
    Uplink,
}

/// How a host takes its guest into the network.
#[derive(Clone, Copy)]
enum Host {
    Overlay,
    Kernel,
    Uplink,
}

impl Subject {
    fn hosts(self) -> [Host; 2] {
        match self {
            Subject::Kernel => [Host::Kernel; 2],
            Subject::Windlass => [Host::Overlay; 2],
            Subject::WindlassKernel => [Host::Overlay, Host::Kernel],
            Subject::KernelWindlass => [Host::Kernel, Host::Overlay],
            Subject::Uplink => [Host::Uplink; 2],
        }
    }
}

use Subject::{KernelWindlass, Windlass, WindlassKernel};

/// Each host has a core.
const PINNED: Variant<Subject> = Variant {
    name: "1 stream",
    client: Some(1),
    server: Some(0),
    forwarders: [Some(1), Some(0)],
    processes: 1,
    streams: 1,
    traffic: Traffic::Streams,
    congestion: "cubic",
    bars: &[
        (Windlass, (1.0, Some(1.25))),
        (WindlassKernel, (0.8, None)),
        (KernelWindlass, (0.8, None)),
    ],
};

const VARIANTS: [Variant<Subject>; 3] = [
    PINNED,
    Variant {
        name: "1 stream, unpinned",
        client: None,
        server: None,
        forwarders: [None; 2],
        ..PINNED
    },
    Variant {
        name: "UDP of 64 bytes",
        traffic: Traffic::Datagrams,
        bars: &[(Windlass, (0.85, None))],
        ..PINNED
    },
];

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// As [`Comparison::run`].
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let comparison = Comparison {
        title: "TAP to TAP through a tunnel",
        subjects: &options.subjects,
        base: Subject::Kernel,
        variants: &VARIANTS,
        programs,
        build: &|subject, world, scratch| build(subject, world, scratch, programs),
    };
    comparison.run(&options.turns, json)
}

/// Makes the two hosts, with a cable between them.
pub(super) fn join(world: &mut World) -> Result<()> {
    let (near, far) = (Namespace::create(NEAR.0)?, Namespace::create(FAR.0)?);
    let pair = format!("link add u0 type veth peer name u0 netns {}", FAR.0);
    near.ip(&pair)?;
    world.between = vec![near, far];
    for (host, (_, address)) in world.between.iter().zip([NEAR, FAR]) {
        host.ip(&format!("address add {address}/24 dev u0"))?;
        host.ip("link set u0 up")?;
    }
    Ok(())
}

/// Starts a daemon on a host.
pub(super) fn start(host: &str, scratch: &Scratch, programs: &Path) -> Result<Daemon> {
    let directory = scratch.join(host);
    let namespace = NetnsRef::open(host)?;
    within(&namespace, || Daemon::start_in(&directory, programs, &[]))?
}

fn build(subject: Subject, world: &mut World, scratch: &Scratch, programs: &Path) -> Result<()> {
    join(world)?;
    let addresses = [NEAR.1, FAR.1];
    let others = addresses.into_iter().rev();
    let ends = addresses.into_iter().zip(others).zip([CLIENT, SERVER]);
    for ((host, kind), (from_to, guest)) in world.between.iter().zip(subject.hosts()).zip(ends) {
        let start = || start(host.name(), scratch, programs);
        match kind {
            Host::Kernel => kernel(host, from_to, guest)?,
            Host::Overlay => {
                let (from, to) = from_to;
                let search = format!("direct --set direct/dest-ip={to}");
                world.daemons.push(overlay(start()?, from, &search, guest)?);
            }
            Host::Uplink => {
                vxlan(host, from_to)?;
                world.daemons.push(uplink(start()?, guest)?);
            }
        }
    }
    Ok(())
}

/// The kernel's VXLAN device `vx0` from one address to the other.
fn vxlan(host: &Namespace, (from, to): (&str, &str)) -> Result<()> {
    host.ip(&format!(
        "link add vx0 mtu {MTU} type vxlan id 23 dstport 4789 local {from} remote {to}"
    ))?;
    host.ip("link set vx0 up")?;
    Ok(())
}

fn kernel(host: &Namespace, from_to: (&str, &str), guest: (&str, &str)) -> Result<()> {
    vxlan(host, from_to)?;
    host.ip("link add br0 type bridge")?;
    host.ip("link set br0 up")?;
    host.ip("link set vx0 master br0")?;
    plug(host, guest, MTU)
}

/// Gives a host an overlay with a guest, whose search is told with its properties.
pub(super) fn overlay(
    daemon: Daemon,
    from: &str,
    search: &str,
    (name, address): (&str, &str),
) -> Result<Daemon> {
    daemon.command(&format!(
        "overlay create ov0 --vni 23 --search {search} --set vxlan/listen-ip={from}"
    ))?;
    daemon.command(&format!(
        "vnic create {name} --over ov0 --attach tap,netns={name},address={address}/24"
    ))?;
    Ok(daemon)
}

fn uplink(daemon: Daemon, (name, address): (&str, &str)) -> Result<Daemon> {
    daemon.command("bridge create br0")?;
    daemon.command("uplink create vx0 --device vx0 --bridge br0 --attach packet")?;
    daemon.command(&format!(
        "vnic create {name} --bridge br0 --mtu {MTU} --attach tap,netns={name},address={address}/24"
    ))?;
    Ok(daemon)
}
