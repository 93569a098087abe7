//! Rules that are replaced while a worker carries frames as fast as it can, between ports of the test's own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use windlass_attach::endpoint::Rings;
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_bridge::fdb::{EntryFlags, FdbWriter, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_firewall::{Compiled, List};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, SNAP, TxId};
use windlass_rules::Rules;
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_tests::until;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::{DataPlane, DataPlaneOptions, FirewallTuning, MemberTuning};

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Ports that both rules let in, the first only, the second only, neither.
const PORTS: [u16; 4] = [100, 200, 300, 400];
const RULES: [&str; 2] = [
    "accept count in udp to port 100; accept in udp to port 200; drop in",
    "accept in udp to port 300; accept count in udp to port 100; drop in",
];
/// Changes of rules.
const CHANGES: u64 = 1_000;

/// Sends to each of the ports in turn, until it is told to end.
struct Source {
    frames: Vec<Vec<u8>>,
    number: usize,
    ends: Arc<AtomicBool>,
    sent: Arc<[AtomicU64; 4]>,
}

impl RxPort for Source {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let is_over = self.ends.load(Ordering::Acquire);
        let n = if is_over { 0 } else { limit.frames.min(BURST) };
        for i in 0..n {
            let kind = self.number % self.frames.len();
            let frame = &self.frames[kind];
            heads.snap[i].0[HEADROOM..HEADROOM + SNAP][..frame.len()].copy_from_slice(frame);
            heads.admit(i, frame.len() as u32, Claim::NONE);
            self.sent[kind].fetch_add(1, Ordering::Relaxed);
            self.number += 1;
        }
        heads.n = n;
        let more = if is_over { More::Drained } else { More::Left };
        (Loan::default(), more)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        match self.ends.load(Ordering::Acquire) {
            true => Armed::Poll(100),
            false => Armed::Work,
        }
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// Takes all, and counts it by port.
#[derive(Default)]
struct Sink([AtomicU64; 4]);

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        _: &Section<'_>,
        _: Lane,
        heads: &Heads,
        _: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        for pick in picks {
            let bytes = heads.private(pick.index());
            let port = u16::from_be_bytes([bytes[36], bytes[37]]);
            let kind = PORTS.iter().position(|known| *known == port);
            self.0[kind.expect("a port of ours")].fetch_add(1, Ordering::Relaxed);
        }
        Sent {
            taken: picks.len(),
            frames: picks.len() as u64,
            bytes: 60 * picks.len() as u64,
            stop: Stop::Done,
            kick: Kick::No,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

fn word(mac: [u8; 6]) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

fn frame(port: u16) -> Vec<u8> {
    let link = Link {
        dst: MacAddr(GUEST),
        src: MacAddr(SENDER),
        tag: None,
    };
    let ends = Ends::V4([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    let mut out = vec![0; 60];
    build::udp_frame(&mut out, &link, &ends, (9, port), &[0; 18]).expect("room");
    out
}

fn tuning(text: &str) -> MemberTuning {
    let rules: Rules = text.parse().expect("rules");
    let list = List::new(&rules).expect("few rules");
    MemberTuning {
        firewall: Some(FirewallTuning {
            rules: Arc::new(Compiled::new([Some(Arc::new(list))])),
            connections: 64,
            seeds: [3, 5],
        }),
        ..MemberTuning::default()
    }
}

/// A member of a bridge, with its ports.
fn add(
    plane: &mut DataPlane,
    bridge: u16,
    mac: [u8; 6],
    tuning: MemberTuning,
    rings: Rings,
) -> u16 {
    let mut conf = MemberConf::new(TxId(0), word(mac));
    conf.storm_limit = 0;
    let id = plane.add_member(bridge, conf, tuning).expect("a member");
    let key = Key::new(0, word(mac));
    until("the member's own address is in the table", || {
        let add = move |writer: &mut FdbWriter<_>, now| {
            writer.add_fixed(key, id, EntryFlags::LOCAL, now).is_ok()
        };
        plane.ask_fdb(bridge, add).expect("the table")
    });
    plane.attach(id, rings).expect("attached");
    id
}

/// What was sent, once nothing more is.
fn at_rest(sent: &[AtomicU64; 4]) -> Vec<u64> {
    let all = || sent.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    let mut last: Vec<u64> = all();
    until("all has come to rest", || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = all();
        let rests = now == last;
        last = now;
        rests
    });
    last
}

/// Rules are replaced a thousand times under full rate: no frame passes that neither the old nor the new ones let through, none is lost that
/// both let through, what a rule in both has counted is exact, and once rules are in force nothing passes that they refuse.
#[test]
fn rules_change_under_full_rate() {
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 8,
    };
    let mut plane = DataPlane::start(&options).expect("a worker");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(64, [1, 2]));
    let (ends, sent) = (
        Arc::<AtomicBool>::default(),
        Arc::<[AtomicU64; 4]>::default(),
    );
    let sink = Arc::new(Sink::default());
    let source = Source {
        frames: PORTS.map(frame).to_vec(),
        number: 0,
        ends: ends.clone(),
        sent: sent.clone(),
    };
    let none = Rings {
        rx: Vec::new(),
        tx: sink.clone(),
    };
    let guest = add(&mut plane, bridge, GUEST, tuning(RULES[0]), none);
    let rings = Rings {
        rx: vec![Box::new(source)],
        tx: Arc::new(Sink::default()),
    };
    add(&mut plane, bridge, SENDER, MemberTuning::default(), rings);
    let got = |kind: usize| sink.0[kind].load(Ordering::Relaxed);
    until("frames come", || got(0) > 1_000 && got(1) > 1_000);
    let begun = Instant::now();
    let mut conf = MemberConf::new(TxId(0), word(GUEST));
    conf.storm_limit = 0;
    for change in 1..=CHANGES {
        let now = change as usize % 2;
        let is_asked = change % 50 < 2;
        if is_asked {
            plane.begin_batch();
        }
        let set = plane.set_member(guest, conf.clone(), tuning(RULES[now]));
        set.expect("set");
        if is_asked {
            plane.end_batch();
            let (allowed, refused) = (1 + now, 2 - now);
            let (before, after) = (got(refused), got(allowed) + 200);
            until("what is let in comes", || got(allowed) > after);
            assert_eq!(got(refused), before, "after change {change}");
        }
    }
    let took = begun.elapsed();
    ends.store(true, Ordering::Release);
    let sent = at_rest(&sent);
    let got: Vec<u64> = (0..4).map(got).collect();
    println!("{CHANGES} changes in {took:?}: sent {sent:?}, got {got:?}");
    assert_eq!(got[0], sent[0], "both let it in");
    assert_eq!(got[3], 0, "neither lets it in");
    assert!(got[1] < sent[1] && got[2] < sent[2] && got[2] > 0);
    let drops = plane.drops(guest).expect("a member");
    let refused: u64 = sent.iter().sum::<u64>() - got.iter().sum::<u64>();
    assert_eq!(drops[Drop::FirewallIn as usize], refused);
    assert_eq!(drops.iter().sum::<u64>(), refused);
    let counted = plane.counted(guest).expect("a member");
    let counted: Vec<(u64, u64)> = counted.iter().map(|c| (c.frames, c.bytes)).collect();
    assert_eq!(counted, [(sent[0], sent[0] * 60)]);
}
