//! TAP to TAP and veth to veth between two namespaces, beside the kernel's bridge with veth pairs and OVS in user space with TAPs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::child::{Child, run_line};
use super::host::{Namespace, Scratch, require};
use super::iperf::{CLIENT, Comparison, SERVER, Traffic, Turns, Variant, World, plug};
use super::peers::{ovs_vsctl, start_ovs};
use super::windlass::Daemon;

/// The OVS build without DPDK.
const OVS: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";

const KERNEL_BRIDGE: &str = "wlc-bridge";

/// The MTU of the namespaces' interfaces.
const MTU: u16 = 1500;

/// TAP to TAP between namespaces, with iperf3 and sock-ping.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,windlass,veth,ovs"
    )]
    subjects: Vec<Subject>,
    #[command(flatten)]
    turns: Turns,
}

/// What can stand between the two namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// The kernel's bridge with two veth pairs.
    Kernel,
    /// windlassd with two TAPs.
    Windlass,
    /// windlassd with two veths: frames pass in the kernel.
    Veth,
    /// OVS in user space with two TAPs (its internal ports).
    Ovs,
}

use Subject::{Veth, Windlass};

const PINNED: Variant<Subject> = Variant {
    name: "1 stream",
    client: Some(1),
    server: Some(0),
    forwarders: [Some(0); 2],
    processes: 1,
    streams: 1,
    traffic: Traffic::Streams,
    congestion: "cubic",
    bars: &[(Windlass, (1.0, Some(1.25))), (Veth, (1.0, Some(1.0)))],
};

const ANYWHERE: Variant<Subject> = Variant {
    client: None,
    server: None,
    forwarders: [None; 2],
    ..PINNED
};

const VARIANTS: [Variant<Subject>; 10] = [
    PINNED,
    Variant {
        name: "4 processes",
        processes: 4,
        bars: &[(Windlass, (0.85, Some(1.4))), (Veth, (1.0, Some(1.0)))],
        ..PINNED
    },
    Variant {
        name: "1 process, -P 4",
        streams: 4,
        bars: &[(Windlass, (0.5, None)), (Veth, (1.0, Some(1.0)))],
        ..PINNED
    },
    Variant {
        name: "1 stream, unpinned",
        bars: &[(Windlass, (0.9, Some(1.35))), (Veth, (1.0, Some(1.0)))],
        ..ANYWHERE
    },
    Variant {
        name: "UDP of 64 bytes",
        traffic: Traffic::Datagrams,
        bars: &[(Windlass, (0.85, None)), (Veth, (1.25, None))],
        ..PINNED
    },
    Variant {
        name: "4 processes, unpinned",
        processes: 4,
        bars: &[],
        ..ANYWHERE
    },
    Variant {
        name: "1 stream, all on one core",
        client: Some(0),
        bars: &[],
        ..PINNED
    },
    Variant {
        name: "1 stream, daemon with sender",
        forwarders: [Some(1); 2],
        bars: &[],
        ..PINNED
    },
    Variant {
        name: "1 stream, bbr",
        congestion: "bbr",
        bars: &[],
        ..PINNED
    },
    Variant {
        name: "half a round trip",
        traffic: Traffic::Trips,
        bars: &[(Veth, (1.0, None))],
        ..PINNED
    },
];

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// As [`Comparison::run`]; also if OVS is asked for and missing.
pub fn run_all(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    if options.subjects.contains(&Subject::Ovs) {
        require(&[
            (OVS, "openvswitch-switch"),
            ("ovsdb-server", "openvswitch-switch"),
        ])?;
    }
    let comparison = Comparison {
        title: "TAP to TAP",
        subjects: &options.subjects,
        base: Subject::Kernel,
        variants: &VARIANTS,
        programs,
        build: &|subject, world, scratch| build(subject, world, scratch, programs),
    };
    comparison.run(&options.turns, json)
}

fn build(subject: Subject, world: &mut World, scratch: &Scratch, programs: &Path) -> Result<()> {
    match subject {
        Subject::Kernel => world.between.push(kernel_bridge()?),
        Subject::Windlass | Subject::Veth => {
            let kind = if subject == Subject::Veth {
                "veth"
            } else {
                "tap"
            };
            let daemon = Daemon::start(programs, scratch, &[])?;
            daemon.command("bridge create br0")?;
            for (name, address) in [CLIENT, SERVER] {
                daemon.command(&format!(
                    "vnic create {name} --bridge br0 --attach {kind},netns={name},address={address}/24"
                ))?;
            }
            world.daemons.push(daemon);
        }
        Subject::Ovs => world.ovs = Some(ovs(scratch, [&world.client, &world.server])?),
    }
    Ok(())
}

fn kernel_bridge() -> Result<Namespace> {
    let bridge = Namespace::create(KERNEL_BRIDGE)?;
    bridge.ip("link add br0 type bridge")?;
    bridge.ip("link set br0 up")?;
    for guest in [CLIENT, SERVER] {
        plug(&bridge, guest, MTU)?;
    }
    Ok(bridge)
}

fn ovs(scratch: &Scratch, namespaces: [&Namespace; 2]) -> Result<(Child, Child)> {
    let directory = scratch.join("ovs-tap");
    let (switch, database) = start_ovs(&directory, Path::new(OVS), &[])?;
    let configure = |line: &str| ovs_vsctl(&directory, line.split_ascii_whitespace());
    configure("add-br br0 -- set bridge br0 datapath_type=netdev")?;
    for (namespace, (_, address)) in namespaces.iter().zip([CLIENT, SERVER]) {
        let name = namespace.name();
        configure(&format!(
            "add-port br0 {name} -- set Interface {name} type=internal"
        ))?;
        let pid = switch.pid();
        run_line(&format!(
            "nsenter -t {pid} -n ip link set {name} netns {name}"
        ))?;
        namespace.ip(&format!("address add {address}/24 dev {name}"))?;
        namespace.ip(&format!("link set {name} up"))?;
    }
    Ok((switch, database))
}
