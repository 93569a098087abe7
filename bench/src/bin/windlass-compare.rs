//! Measures windlass beside named peers, in turns, and prints both sides.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use windlass_bench::compare::peers::Plug;
use windlass_bench::compare::{
    alloc, capacity, capture, cni, firewall, framed, gap, idle, inspect, neighbour, overlay,
    overload, pages, peers, rate, registry, segments, sockets, spray, stop, tap, trace, tunnel,
    uplink, vhost, workers,
};

/// Measures windlass beside named peers, in turns, and prints both sides with their spread.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Directory of windlassd, windlass, memif-gen, vhost-gen and null-switch; without it, that of this program
    #[arg(long, global = true)]
    programs: Option<PathBuf>,
    /// Write every single measurement to this file
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

/// What is compared.
#[derive(Subcommand)]
enum What {
    /// memif to memif: null switch, windlass, testpmd, OVS-DPDK
    Memif(rate::Options),
    /// Guest to guest over vhost-user: windlass, testpmd, OVS-DPDK, and the generator's own limit
    Vhost(vhost::Options),
    /// 64 KiB segments guest to guest, beside a plain memcpy of the same bytes
    VhostSegments(segments::Options),
    /// One frame from guest to guest and one back: windlass polling, adaptive and with interrupts, testpmd, OVS-DPDK
    VhostTrip(vhost::TripOptions),
    /// What a bad guest costs two others, beside what an honest one does
    Neighbour(neighbour::Options),
    /// The daemon killed under load: how long frames stay away, and what happens to them
    Gap(gap::Options),
    /// Two pairs of memif ports with generators on both cores: one worker and two
    Workers(workers::Options),
    /// The same rules with connection tracking: windlass' firewall, OVS-DPDK
    Firewall(firewall::Options),
    /// Frames of 64 bytes between programs: framed I/O, TAP, sendmmsg, testpmd over memif
    Framed(framed::Options),
    /// What a capture costs the frames that it captures
    Capture(capture::Options),
    /// TAP to TAP with iperf3: the kernel's bridge, windlass, OVS in user space
    Tap(tap::Options),
    /// Processor time of an idle daemon
    Idle(idle::Options),
    /// malloc and free: empty functions, glibc, jemalloc, tcmalloc, windlass
    Alloc(alloc::Options),
    /// 512 MiB in small pages, transparent huge pages and pages of the reserve: touch, page tables, io_uring, loads
    Pages(pages::Options),
    /// What a hit of a probe costs the traced program: windlass trace, bpftrace
    Trace(trace::Options),
    /// A walk of a live list and Tab among many names: gdb, windlass inspect
    Inspect(inspect::Options),
    /// Memory of the daemon with VNICs, flows and tracked connections
    Capacity(capacity::Options),
    /// Sources that do not stop by themselves, far beyond the capacity
    Overload(overload::Options),
    /// Frames of 64 bytes through a tunnel: overlays, the kernel's VXLAN
    Overlay(overlay::Options),
    /// TAP to TAP through a tunnel with iperf3: overlays, the kernel's VXLAN, one of each
    Tunnel(tunnel::Options),
    /// What a guest that sprays through a tunnel costs two others, beside what an honest one does
    Spray(spray::Options),
    /// Containers that come and go: windlass-cni, the reference plugins
    Cni(cni::Options),
    /// Many hosts with one registry in etcd: moves, a restart, a compaction; what one host needs
    Registry(registry::Options),
    /// AF_XDP, packet sockets and the Linux bridge between two veth pairs
    Uplink(uplink::Options),
    /// The same programs on this host's sockets, through the kernel and accelerated
    Sockets(sockets::Options),
    /// One end of the overload test, run by it inside a namespace
    #[command(hide = true)]
    OverloadEnd(overload::End),
    /// The sender of the uplinks' test, run by it inside a namespace
    #[command(hide = true)]
    UplinkEnd(uplink::End),
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    stop::watch()?;
    let programs = options.programs.map_or_else(peers::own_directory, Ok)?;
    let json = options.json.as_ref();
    match options.what {
        What::Memif(options) => rate::run(&options, Plug::Memif, &[], &programs, json),
        What::Vhost(options) => vhost::run(&options, &programs, json),
        What::VhostSegments(options) => segments::run(&options, &programs, json),
        What::VhostTrip(options) => vhost::run_trip(&options, &programs, json),
        What::Neighbour(options) => neighbour::run(&options, &programs, json),
        What::Gap(options) => gap::run(&options, &programs, json),
        What::Workers(options) => workers::run(&options, &programs, json),
        What::Firewall(options) => firewall::run(&options, &programs, json),
        What::Framed(options) => framed::run_all(&options, &programs, json),
        What::Capture(options) => capture::run(&options, &programs, json),
        What::Tap(options) => tap::run_all(&options, &programs, json),
        What::Idle(options) => idle::run(&options, &programs),
        What::Pages(options) => pages::run(&options, json),
        What::Inspect(options) => inspect::run(&options, &programs, json),
        What::Alloc(options) => alloc::run(&options, &programs, json),
        What::Trace(options) => trace::run(&options, &programs, json),
        What::Capacity(options) => capacity::run(&options, &programs, json),
        What::Overload(options) => overload::run(&options, &programs, json),
        What::Overlay(options) => overlay::run(&options, json),
        What::Tunnel(options) => tunnel::run(&options, &programs, json),
        What::Spray(options) => spray::run(&options, &programs, json),
        What::Cni(options) => cni::run(&options, &programs, json),
        What::Registry(options) => registry::run(&options, &programs, json),
        What::Uplink(options) => uplink::run(&options, &programs, json),
        What::Sockets(options) => sockets::run(&options, &programs, json),
        What::OverloadEnd(end) => overload::be(&end),
        What::UplinkEnd(end) => uplink::be(&end),
    }
}
