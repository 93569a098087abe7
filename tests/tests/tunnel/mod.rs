//! A data plane with an overlay, and a kernel as its peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use windlass_attach::endpoint::{Endpoint, Event, InterfaceConf};
use windlass_attach::tap::{TapConf, TapEndpoint};
use windlass_attach::vxlan::{Tos, Vtep, VtepConf};
use windlass_bridge::fdb::{EntryFlags, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::TxId;
use windlass_overlay::Vni;
use windlass_tests::{Lab, Mac, until};
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::dataplane::overlays::{OverlayTuning, SourceCheck, TargetTuning, Unknown};
use windlass_worker::{DataPlane, DataPlaneOptions, MemberTuning};

/// The network of most tests.
pub const VNI: u32 = 23;
/// The inner MTU over an underlay of 1,500 bytes and IPv4.
pub const MTU: u16 = 1450;

/// An address in the table's form.
pub fn word(mac: Mac) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    u64::from_le_bytes(bytes)
}

pub fn vni(number: u32) -> Vni {
    Vni::new(number).expect("24 bits")
}

/// Joins namespaces by a veth pair, whose ends have these addresses, with prefix lengths.
pub fn join(lab: &Lab, (a, at_a): (&str, &str), (b, at_b): (&str, &str)) {
    let peer = lab.name(b);
    lab.ip(
        a,
        &format!("link add to-{b} type veth peer name to-{a} netns {peer}"),
    );
    for (short, other, address) in [(a, b, at_a), (b, a, at_b)] {
        lab.ip(short, &format!("addr add {address} dev to-{other} nodad"));
        lab.ip(short, &format!("link set to-{other} up"));
    }
}

/// A data plane.
pub struct Host {
    pub plane: DataPlane,
    pub bridge: u16,
    taps: Vec<(u16, TapEndpoint)>,
}

impl Host {
    pub fn start() -> Host {
        Host::start_with(BridgeTuning::default(), 1)
    }

    /// With a bridge of its own kind, and so many workers.
    pub fn start_with(tuning: BridgeTuning, workers: usize) -> Host {
        let options = DataPlaneOptions {
            workers: vec![None; workers],
            members_max: 256,
        };
        let mut plane = DataPlane::start(&options).expect("a worker");
        let bridge = plane.add_bridge(tuning, Limits::new(200_000, [1, 2]));
        Host {
            plane,
            bridge,
            taps: Vec::new(),
        }
    }

    /// Adds a TAP `t0` of this address in a namespace.
    pub fn tap(&mut self, lab: &Lab, short: &str, mac: Mac, address: &str, mtu: u16) -> u16 {
        let mut conf = MemberConf::new(TxId(0), word(mac));
        (conf.mtu, conf.nospoof) = (mtu.into(), false);
        let member = self
            .plane
            .add_member(self.bridge, conf, MemberTuning::default());
        let member = member.expect("a member");
        let (address, prefix) = address.split_once('/').expect("a prefix");
        let address: IpAddr = address.parse().expect("an address");
        let tap = TapEndpoint::new(TapConf {
            name: "t0".into(),
            netns: Some(lab.name(short)),
            queues: 1,
            multi_queue: true,
            mark: "windlass test".into(),
            interface: InterfaceConf {
                addresses: vec![(address, prefix.parse().expect("a number"))],
                mac,
                mtu: mtu.into(),
            },
        });
        self.taps.push((member, tap.expect("an endpoint")));
        let (_, tap) = self.taps.last_mut().expect("a TAP");
        let plane = &mut self.plane;
        until("the TAP is up", || {
            tap.poll(Instant::now())
                .into_iter()
                .any(|event| match event {
                    Event::Up(rings) => plane.attach(member, rings).is_ok(),
                    Event::Down(why) => panic!("{why}"),
                })
        });
        let key = Key::new(0, word(mac));
        let own = move |writer: &mut windlass_bridge::fdb::FdbWriter<_>, now| {
            writer
                .add_fixed(key, member, EntryFlags::LOCAL, now)
                .is_ok()
        };
        assert!(self.plane.ask_fdb(self.bridge, own).expect("the table"));
        member
    }

    /// Adds an overlay whose endpoint has this address in a namespace.
    pub fn overlay(
        &mut self,
        lab: &Lab,
        short: &str,
        local: &str,
        change: impl FnOnce(&mut OverlayTuning),
    ) -> u16 {
        let vtep = vtep(lab, short, local, self.plane.workers().len() as u16);
        let mut tuning = OverlayTuning {
            vtep,
            vnis: vec![(0, vni(VNI))],
            keep_inner_tag: false,
            unknown: Unknown::Flood,
            broadcast: true,
            source_check: SourceCheck::Vtep,
            learn: true,
            mtu: MTU,
            member: MemberTuning::default(),
        };
        change(&mut tuning);
        let conf = MemberConf::new(TxId(0), 0);
        self.plane
            .add_overlay(self.bridge, conf, tuning)
            .expect("an overlay")
    }

    /// Adds a target that takes broadcasts.
    pub fn target(&mut self, overlay: u16, to: &str) -> u16 {
        let target = target(to);
        self.plane.add_target(overlay, target).expect("a target")
    }
}

pub fn target(to: &str) -> TargetTuning {
    TargetTuning {
        to: to.parse().expect("an address"),
        vni: vni(VNI),
        bum: true,
        mtu: MTU,
    }
}

pub fn vtep(lab: &Lab, short: &str, local: &str, workers: u16) -> Arc<Vtep> {
    let local: SocketAddr = local.parse().expect("an address");
    let conf = VtepConf {
        local,
        ttl: 64,
        tos: Tos::Inherit,
        ports: 16,
    };
    lab.within(short, || Vtep::open(&conf, workers))
        .expect("an endpoint")
}
