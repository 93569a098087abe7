//! Frames of 64 bytes through a tunnel over veth: two data planes, beside the kernel's VXLAN between the same namespaces.
//!
//! # Model
//! Both ends of either subject are in this process or in the kernel, so what all cores spend while frames pass is the cost of
//! both ends. What the sender by itself costs is measured by sending to nobody, and taken off. A veth pair passes segmented
//! datagrams uncut; with `--cut` the underlay's devices have them cut first, as before a NIC that cannot.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use windlass_attach::endpoint::Rings;
use windlass_attach::port::{Armed, Lane, Limit, Loan, More, RxPort, Sent, TxCaps, TxPort};
use windlass_attach::vxlan::{Tos, Vtep, VtepConf};
use windlass_bridge::fdb::Limits;
use windlass_bridge::member::MemberConf;
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, TxId};
use windlass_overlay::Vni;
use windlass_shm::{Section, Tails};
use windlass_sys::netlink::Netlink;
use windlass_sys::netns::{self, NetnsRef};
use windlass_sys::packet::{PacketOptions, PacketSocket};
use windlass_sys::{Errno, IoSlice};
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::dataplane::overlays::{OverlayTuning, SourceCheck, TargetTuning, Unknown};
use windlass_worker::{DataPlane, DataPlaneOptions, MemberTuning};

use super::host::{Namespace, busy_seconds, describe, require};
use super::stop;
use super::table::{Spread, Table, write_json};

const NEAR: &str = "wlc-near";
const FAR: &str = "wlc-far";
/// Bytes of a frame.
const FRAME: usize = 64;
/// The network.
const VNI: u32 = 23;
/// What runs before the measured time.
const SETTLE: Duration = Duration::from_millis(200);
/// The first bytes of a destination; the last says which.
const DESTINATION: [u8; 5] = [2, 0, 0, 0, 1];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Frames of 64 bytes through a tunnel, with the kernel's VXLAN beside it.
#[derive(Args, Debug)]
pub struct Options {
    /// Turns of each subject
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured milliseconds of each case
    #[arg(long, default_value_t = 1000)]
    millis: u64,
    /// The underlay's devices have datagrams cut before they send them
    #[arg(long)]
    cut: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Subject {
    /// Two data planes with an overlay each.
    Windlass,
    /// The same sender, to a member of its own bridge.
    WindlassBase,
    /// A packet socket on a VXLAN device.
    Kernel,
    /// The same sender on one that knows no remote host, and drops.
    KernelBase,
}

const SUBJECTS: [Subject; 4] = [
    Subject::Windlass,
    Subject::WindlassBase,
    Subject::Kernel,
    Subject::KernelBase,
];

/// Remote hosts and flows.
const CASES: [(u8, u16); 2] = [(1, 1), (8, 1000)];

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
struct Shot {
    round: usize,
    subject: Subject,
    hosts: u8,
    flows: u16,
    /// Millions of frames a second that arrived.
    rate: f64,
    /// Nanoseconds that all cores spent on each.
    ns: f64,
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If a subject fails, or the run is interrupted.
pub fn run(options: &Options, json: Option<&PathBuf>) -> Result<()> {
    require(&[("ip", "iproute2"), ("ethtool", "ethtool")])?;
    println!("Overlay, frames of {FRAME} bytes; {}", describe());
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for (hosts, flows) in CASES {
            for subject in SUBJECTS {
                let (rate, ns) = measure(options, subject, hosts, flows)
                    .with_context(|| format!("{subject:?}, {hosts} hosts"))?;
                shots.push(Shot {
                    round,
                    subject,
                    hosts,
                    flows,
                    rate,
                    ns,
                });
            }
        }
    }
    print(&shots);
    write_json(json, &shots)
}

fn print(shots: &[Shot]) {
    let mut table = Table::new(&["hosts", "", "Mframes/s", "CPU ns", "beside the kernel's"]);
    for (hosts, flows) in CASES {
        let of = |subject, value: fn(&Shot) -> f64| -> Vec<f64> {
            let here = shots
                .iter()
                .filter(|s| (s.subject, s.hosts) == (subject, hosts));
            here.map(value).collect()
        };
        let added = |subject, base| -> Vec<f64> {
            let (all, base) = (of(subject, |s| s.ns), of(base, |s| s.ns));
            all.iter().zip(base).map(|(all, base)| all - base).collect()
        };
        let ours = added(Subject::Windlass, Subject::WindlassBase);
        let theirs = added(Subject::Kernel, Subject::KernelBase);
        let ratio = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
        let ratio = Spread::of(ratio).map_or(String::new(), |s| format!("{s:.2}"));
        let rows = [
            ("windlass", Subject::Windlass, ours, ratio),
            ("kernel", Subject::Kernel, theirs, String::new()),
        ];
        for (name, subject, ns, ratio) in rows {
            let show = |values: Vec<f64>, digits| {
                Spread::of(values).map_or(String::new(), |s| format!("{s:.digits$}"))
            };
            table.row(vec![
                format!("{hosts}, {flows} flows"),
                name.into(),
                show(of(subject, |s| s.rate), 2),
                show(ns, 0),
                ratio,
            ]);
        }
    }
    println!("{table}");
    println!("CPU: of both ends, without the sender's own.");
}

/// The underlay.
struct World {
    near: Namespace,
    far: Namespace,
}

impl World {
    fn build(options: &Options) -> Result<World> {
        let (near, far) = (Namespace::create(NEAR)?, Namespace::create(FAR)?);
        near.ip(&format!("link add u0 type veth peer name u0 netns {FAR}"))?;
        near.ip("addr add 192.0.2.1/24 dev u0")?;
        for host in 0..8 {
            far.ip(&format!("addr add 192.0.2.{}/24 dev u0", 10 + host))?;
        }
        for namespace in [&near, &far] {
            namespace.ip("link set u0 up")?;
            if options.cut {
                namespace.exec("ethtool -K u0 tx-udp-segmentation off")?;
            }
        }
        Ok(World { near, far })
    }
}

fn within<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    Ok(netns::within(&NetnsRef::open(name)?, work)?)
}

/// Millions of frames a second, and CPU nanoseconds for each.
fn measure(options: &Options, subject: Subject, hosts: u8, flows: u16) -> Result<(f64, f64)> {
    let world = World::build(options)?;
    match subject {
        Subject::Windlass | Subject::WindlassBase => {
            let is_tunnel = subject == Subject::Windlass;
            let planes = Planes::start((hosts, flows), is_tunnel)?;
            let count = || Ok(planes.arrived.load(Ordering::Relaxed));
            over(options, count)
        }
        Subject::Kernel | Subject::KernelBase => {
            let is_tunnel = subject == Subject::Kernel;
            let device = kernel_devices(&world, hosts, is_tunnel)?;
            let sender = KernelSender::start(&device, hosts, flows)?;
            let count = || match is_tunnel {
                true => received(&world.far),
                false => Ok(sender.sent.load(Ordering::Relaxed)),
            };
            over(options, count)
        }
    }
}

fn over(options: &Options, count: impl Fn() -> Result<u64>) -> Result<(f64, f64)> {
    stop::pause(SETTLE)?;
    let (begin, busy) = (count()?, busy_seconds()?);
    let time = Duration::from_millis(options.millis);
    stop::pause(time)?;
    let (frames, busy) = ((count()? - begin) as f64, busy_seconds()? - busy);
    Ok((
        frames / time.as_secs_f64() / 1e6,
        busy / frames.max(1.0) * 1e9,
    ))
}

fn received(far: &Namespace) -> Result<u64> {
    let text = far.exec("cat /sys/class/net/vx0/statistics/rx_packets")?;
    Ok(text.trim().parse()?)
}

fn kernel_devices(world: &World, hosts: u8, is_tunnel: bool) -> Result<String> {
    if !is_tunnel {
        world.near.ip("link add d0 type vxlan id 99 dstport 4790")?;
        world.near.ip("link set d0 up")?;
        return Ok("d0".into());
    }
    for (namespace, local) in [(&world.near, 1), (&world.far, 10)] {
        namespace.ip(&format!(
            "link add vx0 type vxlan id {VNI} dstport 4789 local 192.0.2.{local}"
        ))?;
        namespace.ip("link set vx0 up")?;
    }
    for host in 0..hosts {
        let line = format!(
            "bridge fdb append 02:00:00:00:01:{host:02x} dev vx0 dst 192.0.2.{}",
            10 + host
        );
        world.near.exec(&line)?;
    }
    Ok("vx0".into())
}

/// A frame to a host, of a flow.
fn frame(host: u8, flow: u16) -> [u8; FRAME] {
    let mut bytes = [0; FRAME];
    bytes[..5].copy_from_slice(&DESTINATION);
    bytes[5] = host;
    bytes[6..12].copy_from_slice(&SOURCE);
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    bytes[16..18].copy_from_slice(&((FRAME - 14) as u16).to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes[38..40].copy_from_slice(&((FRAME - 34) as u16).to_be_bytes());
    bytes
}

/// A thread that writes to a device as fast as it can.
struct KernelSender {
    ends: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KernelSender {
    fn start(device: &str, hosts: u8, flows: u16) -> Result<KernelSender> {
        let options = PacketOptions {
            vnet_header: false,
            qdisc_bypass: true,
            ..PacketOptions::default()
        };
        let socket = within(NEAR, || -> Result<PacketSocket> {
            let link = Netlink::open()?.link_by_name(device)?;
            Ok(PacketSocket::open(
                link.context("no device")?.index,
                &options,
            )?)
        })??;
        let (ends, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (until, count) = (ends.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            let frames: Vec<_> = (0..flows)
                .map(|flow| frame((flow % u16::from(hosts)) as u8, flow))
                .collect();
            while !until.load(Ordering::Relaxed) {
                for frame in &frames {
                    match socket.write_frame(&[IoSlice::new(frame)]) {
                        Ok(_) => count.fetch_add(1, Ordering::Relaxed),
                        Err(Errno::NOBUFS | Errno::AGAIN) => 0,
                        Err(_) => return,
                    };
                }
            }
        });
        Ok(KernelSender {
            ends,
            sent,
            thread: Some(thread),
        })
    }
}

impl Drop for KernelSender {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two data planes, the second only where there is a tunnel.
struct Planes {
    arrived: Arc<AtomicU64>,
    /// The sender's first: it is to end before its receiver.
    _planes: Vec<DataPlane>,
}

impl Planes {
    fn start((hosts, flows): (u8, u16), is_tunnel: bool) -> Result<Planes> {
        let arrived = Arc::new(AtomicU64::new(0));
        let mut near = plane(0)?;
        let mut planes = Vec::new();
        let bridge = near.add_bridge(BridgeTuning::default(), Limits::new(1000, [1, 2]));
        let mut behind = Vec::new();
        if is_tunnel {
            let overlay = overlay(&mut near, bridge, NEAR, 1)?;
            let mut far = plane(1)?;
            let there = far.add_bridge(BridgeTuning::default(), Limits::new(1000, [1, 2]));
            let sink = member(&mut far, there, Box::new(Nothing), &arrived)?;
            for host in 0..hosts {
                behind.push(near.add_target(overlay, target(10 + host))?);
                let its = self::overlay(&mut far, there, FAR, 10 + host)?;
                far.add_target(its, target(1))?;
                far.push_entries(there, vec![(0, address(host), Some(sink))])?;
            }
            planes.push(far);
        } else {
            let sink = member(&mut near, bridge, Box::new(Nothing), &arrived)?;
            behind = vec![sink; hosts.into()];
        }
        for (host, place) in (0..).zip(behind) {
            near.push_entries(bridge, vec![(0, address(host), Some(place))])?;
        }
        let frames = (0..flows).map(|flow| frame((flow % u16::from(hosts)) as u8, flow));
        let source = Source {
            frames: frames.collect(),
            next: 0,
        };
        member(&mut near, bridge, Box::new(source), &Arc::default())?;
        planes.insert(0, near);
        Ok(Planes {
            arrived,
            _planes: planes,
        })
    }
}

fn plane(core: usize) -> Result<DataPlane> {
    Ok(DataPlane::start(&DataPlaneOptions {
        workers: vec![Some(core)],
        members_max: 64,
    })?)
}

fn address(host: u8) -> u64 {
    let [a, b, c, d, e] = DESTINATION;
    u64::from_le_bytes([a, b, c, d, e, host, 0, 0])
}

fn target(host: u8) -> TargetTuning {
    TargetTuning {
        to: ([192, 0, 2, host], 4789).into(),
        vni: Vni::new(VNI).unwrap_or_default(),
        bum: false,
        mtu: 1450,
    }
}

fn overlay(plane: &mut DataPlane, bridge: u16, short: &str, host: u8) -> Result<u16> {
    let conf = VtepConf {
        local: ([192, 0, 2, host], 4789).into(),
        ttl: 64,
        tos: Tos::Inherit,
        ports: 16,
    };
    let tuning = OverlayTuning {
        vtep: within(short, || Vtep::open(&conf, 1))??,
        vnis: vec![(0, Vni::new(VNI).unwrap_or_default())],
        keep_inner_tag: false,
        unknown: Unknown::Drop,
        broadcast: false,
        source_check: SourceCheck::Vtep,
        learn: false,
        mtu: 1450,
        member: MemberTuning::default(),
    };
    Ok(plane.add_overlay(bridge, MemberConf::new(TxId(0), 0), tuning)?)
}

fn member(
    plane: &mut DataPlane,
    bridge: u16,
    rx: Box<dyn RxPort>,
    arrived: &Arc<AtomicU64>,
) -> Result<u16> {
    let own = u64::from_le_bytes([2, 0, 0, 0, 0, 1, 0, 0]);
    let member = plane.add_member(
        bridge,
        MemberConf::new(TxId(0), own),
        MemberTuning::default(),
    )?;
    let tx = Arc::new(Sink(arrived.clone()));
    plane.attach(member, Rings { rx: vec![rx], tx })?;
    Ok(member)
}

/// A ring that never ends.
struct Source {
    frames: Vec<[u8; FRAME]>,
    next: usize,
}

impl RxPort for Source {
    fn rx_burst<'q>(
        &mut self,
        _section: &'q Section<'q>,
        heads: &mut Heads,
        _tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        heads.n = limit.frames.min(BURST);
        for i in 0..heads.n {
            heads.snap[i].0[HEADROOM..HEADROOM + FRAME].copy_from_slice(&self.frames[self.next]);
            heads.admit(i, FRAME as u32, Claim::NONE);
            self.next = (self.next + 1) % self.frames.len();
        }
        (Loan::default(), More::Left)
    }

    fn release(&mut self, _section: &Section<'_>, _loan: Loan) {}

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        Armed::Work
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// A ring with nothing in it.
struct Nothing;

impl RxPort for Nothing {
    fn rx_burst<'q>(
        &mut self,
        _section: &'q Section<'q>,
        _heads: &mut Heads,
        _tails: &mut Tails<'q>,
        _limit: Limit,
    ) -> (Loan, More) {
        (Loan::default(), More::Drained)
    }

    fn release(&mut self, _section: &Section<'_>, _loan: Loan) {}

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// Counts what comes.
struct Sink(Arc<AtomicU64>);

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        _lane: Lane,
        _heads: &Heads,
        _tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.0.fetch_add(picks.len() as u64, Ordering::Relaxed);
        Sent {
            taken: picks.len(),
            frames: picks.len() as u64,
            bytes: (picks.len() * FRAME) as u64,
            ..Sent::default()
        }
    }

    fn kick(&self, _lane: Lane) {}
}
