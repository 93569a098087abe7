//! Each rule of the bridge, and all of them together against a bridge written the slow way.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use windlass_bridge::fdb::{EntryFlags, Fdb, FdbWriter, Key, Limits, NoReaders, Sightings};
use windlass_bridge::flood::FloodKind;
use windlass_bridge::forward::{BPDUS_A_SECOND, Bridge, BridgeConf, LEARNED_A_SECOND, Tally};
use windlass_bridge::member::{MemberConf, PortState};
use windlass_bridge::vlan::VlanMap;
use windlass_frame::{Claim, Gso, HEADROOM, Heads, Offload, RxId, Tick, TxId, Verdict};
use windlass_stats::Drop;

const NOW: Tick = Tick(7_000_000_000);
const BROADCAST: [u8; 6] = [0xff; 6];
const BRIDGE_MAC: [u8; 6] = [2, 0, 0, 0, 0xee, 0xee];

/// The own address of a member.
fn own(member: u16) -> [u8; 6] {
    [2, 0, 0, 0, 1, member as u8]
}

/// An address behind a member.
fn behind(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 2, n]
}

fn mac(m: [u8; 6]) -> u64 {
    Key::from_octets(0, m).mac()
}

fn conf(id: u16) -> MemberConf {
    MemberConf {
        nospoof: false,
        storm_limit: 0,
        ..MemberConf::new(TxId(id), mac(own(id)))
    }
}

fn frame(dst: [u8; 6], src: [u8; 6], tags: &[u16], len: usize) -> Vec<u8> {
    let mut f = [dst, src].concat();
    for tci in tags {
        f.extend(0x8100_u16.to_be_bytes());
        f.extend(tci.to_be_bytes());
    }
    f.extend([0x88, 0xb5]);
    f.resize(len.max(f.len()), 0);
    f
}

/// A bridge with its table, and one burst.
struct Fixture {
    bridge: Bridge,
    writer: FdbWriter<NoReaders>,
    heads: Box<Heads>,
    sightings: Sightings,
    now: Tick,
}

/// Stands for the daemon among destinations.
const LOCAL: (u16, bool) = (u16::MAX, false);

/// Frames of a burst that something became of.
fn sum(tally: &Tally) -> usize {
    (tally.unicast + tally.flooded + tally.dropped + tally.local) as usize
}

impl Fixture {
    fn new(filtering: bool, members: Vec<MemberConf>) -> Fixture {
        let (fdb, writer) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
        let conf = BridgeConf {
            fdb: Arc::clone(&fdb),
            filtering,
            mac: mac(BRIDGE_MAC),
            members,
            groups: None,
        };
        Fixture {
            bridge: Bridge::new(conf),
            writer,
            heads: Heads::boxed(),
            sightings: Sightings::new(),
            now: NOW,
        }
    }

    fn begin(&mut self, from: u16) {
        self.heads.clear(RxId(from), self.now);
    }

    fn add(&mut self, f: &[u8]) {
        let i = self.heads.n;
        let have = f.len().min(128);
        self.heads.snap[i].0[HEADROOM..HEADROOM + have].copy_from_slice(&f[..have]);
        self.heads.admit(i, f.len() as u32, Claim::NONE);
        self.heads.n += 1;
    }

    fn run(&mut self) -> Tally {
        self.bridge.forward(&mut self.heads, &mut self.sightings)
    }

    fn learn(&mut self) {
        for s in self.sightings.posts().to_vec() {
            self.writer.learn(s, self.now);
        }
    }

    /// One frame in a burst of its own; what it taught is learned.
    fn send(&mut self, from: u16, f: &[u8]) -> Verdict {
        self.begin(from);
        self.add(f);
        let tally = self.run();
        assert_eq!(sum(&tally), 1);
        self.learn();
        self.heads.verdict[0]
    }

    /// Destinations of the last burst's frame `i`, with the tag decision.
    fn destinations(&self, i: usize) -> Vec<(u16, bool)> {
        let v = self.heads.verdict[i];
        let from = self.bridge.flood_from(self.heads.from.0);
        match (v.as_to(), v.as_flood()) {
            (Some((id, tagged)), _) => vec![(id.0, tagged)],
            (_, Some(id)) => {
                let set = self.bridge.flood(id).expect("a set");
                set.each_fitting(from, &self.heads, i)
                    .map(|t| (t.id.0, t.tagged))
                    .collect()
            }
            _ if v.is_local() => vec![LOCAL],
            _ => vec![],
        }
    }

    fn drop_of(&mut self, from: u16, f: &[u8]) -> Option<Drop> {
        self.send(from, f).as_drop()
    }
}

fn plain(n: u16) -> Fixture {
    Fixture::new(false, (0..n).map(conf).collect())
}

/// A member that discards sends and gets nothing; one that learns is learned behind, too. BPDUs come from both, at a rate that other frames
/// for the daemon do not share.
#[test]
fn states_of_members() {
    let states = [PortState::Discarding, PortState::Learning];
    for (filtering, state) in states.into_iter().flat_map(|s| [(false, s), (true, s)]) {
        let stopped = MemberConf {
            state,
            stp: true,
            ..conf(0)
        };
        let mut f = Fixture::new(filtering, vec![stopped, conf(1), conf(2)]);
        let vlan = u16::from(filtering);
        let own_key = Key::from_octets(vlan, own(0));
        let fixed = f.writer.add_fixed(own_key, 0, EntryFlags::LOCAL, NOW);
        fixed.expect("room");
        for to in [BROADCAST, own(1), behind(9)] {
            let drop = f.drop_of(0, &frame(to, behind(1), &[], 60));
            assert_eq!(drop, Some(Drop::Blocked), "{state:?}");
        }
        assert_eq!(
            f.drop_of(0, &frame(own(1), BROADCAST, &[], 60)),
            Some(Drop::BadSource)
        );
        assert_eq!(
            f.drop_of(1, &frame(own(0), behind(2), &[], 60)),
            Some(Drop::Blocked)
        );
        f.send(1, &frame(BROADCAST, behind(2), &[], 60));
        assert_eq!(f.destinations(0), [(2, false)]);
        let learned = f.drop_of(1, &frame(behind(1), behind(2), &[], 60));
        let expected = (state == PortState::Learning).then_some(Drop::Blocked);
        assert_eq!(learned, expected, "{state:?}: behind it, or flooded");

        let reserved = |last| frame([1, 0x80, 0xc2, 0, 0, last], behind(1), &[], 60);
        while f.send(0, &reserved(2)) == Verdict::LOCAL {}
        let bpdus = (0..100).filter(|_| f.send(0, &reserved(0)) == Verdict::BPDU);
        assert_eq!(bpdus.count(), 1 + BPDUS_A_SECOND as usize / 20);
        assert_eq!(f.send(1, &reserved(0)), Verdict::LOCAL);
    }
}

/// Addresses are learned, unicast then goes to one member, and back to the sender nowhere.
#[test]
fn learns_and_forwards() {
    let mut f = plain(3);
    f.send(0, &frame(behind(2), behind(1), &[], 60));
    assert_eq!(f.destinations(0), [(1, false), (2, false)]);
    assert_eq!(
        f.send(2, &frame(behind(1), behind(2), &[], 60)),
        Verdict::to(TxId(0), false)
    );
    assert_eq!(
        f.send(0, &frame(behind(2), behind(1), &[], 60)),
        Verdict::to(TxId(2), false)
    );
    assert_eq!(
        f.drop_of(2, &frame(behind(2), behind(3), &[], 60)),
        Some(Drop::SameMember)
    );
    f.send(1, &frame(BROADCAST, behind(1), &[], 60));
    assert_eq!(f.destinations(0), [(0, false), (2, false)]);
    assert_eq!(
        f.send(2, &frame(behind(1), behind(2), &[], 60)),
        Verdict::to(TxId(1), false),
        "moved"
    );
}

/// Frames that are malformed or have an impossible source are dropped, each under its reason.
#[test]
fn bad_frames() {
    let mut f = plain(3);
    f.begin(0);
    f.add(&frame(BROADCAST, behind(1), &[], 60)[..13]);
    assert_eq!(
        (f.run().dropped, f.heads.verdict[0].as_drop()),
        (1, Some(Drop::Runt))
    );
    let mut nobody = Fixture::new(false, vec![MemberConf { mac: 0, ..conf(0) }, conf(1)]);
    assert_eq!(
        nobody.drop_of(0, &frame(own(1), [0; 6], &[], 60)),
        Some(Drop::BadSource)
    );
    let cases = [
        ([0; 6], Drop::BadSource),
        ([3, 0, 0, 0, 0, 1], Drop::BadSource),
        (BROADCAST, Drop::BadSource),
        (BRIDGE_MAC, Drop::BadSource),
    ];
    for (src, reason) in cases {
        assert_eq!(
            f.drop_of(0, &frame(own(1), src, &[], 60)),
            Some(reason),
            "{src:?}"
        );
    }
    let reserved = |last| frame([1, 0x80, 0xc2, 0, 0, last], behind(1), &[], 60);
    for last in 0..=16_u8 {
        let verdict = f.send(0, &reserved(last));
        let expected = match last {
            1 => Verdict::drop(Drop::ReservedAddress),
            16 => Verdict::flood(FloodKind::Group.id(0)),
            _ => Verdict::LOCAL,
        };
        assert_eq!(verdict, expected, "{last}");
    }
    // At the rate of the member, once what may come at once has come.
    let more = (15..100).map(|_| f.send(0, &reserved(2)).as_drop());
    let refused = more.filter(|drop| *drop == Some(Drop::LocalFull));
    assert_eq!(refused.count(), 100 - 51);
    f.now = f.now.plus(1_000_000_000);
    assert_eq!(f.send(0, &reserved(2)), Verdict::LOCAL);
    let mut g = Fixture::new(
        false,
        vec![
            MemberConf {
                frame_max: 1514,
                ..conf(0)
            },
            conf(1),
        ],
    );
    assert_eq!(
        g.drop_of(0, &frame(BROADCAST, behind(1), &[], 1515)),
        Some(Drop::Giant)
    );
    assert_eq!(g.drop_of(0, &frame(BROADCAST, behind(1), &[], 1514)), None);
    assert_eq!(
        g.drop_of(7, &frame(BROADCAST, behind(1), &[], 60)),
        Some(Drop::NotReady)
    );
}

/// With mac-nospoof only the member's own address passes; the bridge's own address belongs to the
/// member that has it.
#[test]
fn spoofing() {
    let host = MemberConf {
        nospoof: true,
        ..MemberConf::new(TxId(2), mac(BRIDGE_MAC))
    };
    let guest = MemberConf {
        nospoof: true,
        ..conf(0)
    };
    let mut f = Fixture::new(false, vec![guest, conf(1), host]);
    assert_eq!(
        f.drop_of(0, &frame(BROADCAST, behind(1), &[], 60)),
        Some(Drop::MacSpoof)
    );
    assert_eq!(
        f.drop_of(0, &frame(BROADCAST, BRIDGE_MAC, &[], 60)),
        Some(Drop::BadSource)
    );
    assert_eq!(f.drop_of(0, &frame(BROADCAST, own(0), &[], 60)), None);
    assert_eq!(f.drop_of(2, &frame(BROADCAST, BRIDGE_MAC, &[], 60)), None);
    assert_eq!(f.writer.len(), 0, "there is nothing to learn");
}

/// A locked member sends from addresses that have a static entry at it, in their VLAN; with mab others are learned, and may not.
#[test]
fn locked_members() {
    for (learn, mab) in [(true, false), (false, false), (true, true), (false, true)] {
        let locked = MemberConf {
            locked: true,
            learn,
            mab,
            ..conf(0)
        };
        let mut f = Fixture::new(false, vec![locked, conf(1)]);
        let fixed = [
            (behind(1), 0, EntryFlags::STATIC),
            (behind(2), 1, EntryFlags::STATIC),
            (behind(3), 0, EntryFlags::STICKY),
        ];
        for (address, member, flags) in fixed {
            let key = Key::from_octets(0, address);
            f.writer.add_fixed(key, member, flags, NOW).expect("room");
        }
        assert_eq!(f.drop_of(0, &frame(BROADCAST, behind(1), &[], 60)), None);
        for n in [2, 3, 4] {
            for to in [BROADCAST, own(1)] {
                let drop = f.drop_of(0, &frame(to, behind(n), &[], 60));
                assert_eq!(drop, Some(Drop::Locked), "{n}");
            }
        }
        // Who is known elsewhere does not move.
        assert_eq!(f.drop_of(1, &frame(BROADCAST, behind(5), &[], 60)), None);
        let drop = f.drop_of(0, &frame(BROADCAST, behind(5), &[], 60));
        assert_eq!(drop, Some(Drop::Locked));
        f.send(1, &frame(behind(5), own(1), &[], 60));
        assert_eq!(f.heads.verdict[0].as_drop(), Some(Drop::SameMember));
        // 1, 2, 3, 5, the other member's own address, and with mab 4.
        assert_eq!(f.writer.len(), 5 + u32::from(mab));
        let key = Key::from_octets(0, behind(4));
        f.writer
            .add_fixed(key, 0, EntryFlags::STATIC, NOW)
            .expect("room");
        assert_eq!(f.drop_of(0, &frame(BROADCAST, behind(4), &[], 60)), None);
        // Burst of its own address alone: it has no entry here.
        let drop = f.drop_of(0, &frame(own(1), own(0), &[], 60));
        assert_eq!(drop, Some(Drop::Locked));
    }
}

/// A standby member with mac-nospoof has its own address learned, from wherever it was, and no other one.
#[test]
fn a_standby_member_is_learned() {
    let standby = MemberConf {
        nospoof: true,
        standby: true,
        ..conf(0)
    };
    let mut f = Fixture::new(false, vec![standby, conf(1)]);
    let is_behind = |f: &Fixture, member| {
        let table = f.bridge.fdb();
        let hit = table.lookup(Key::from_octets(0, own(0)), table.at(f.now));
        hit.map(|hit| hit.member) == Some(member)
    };
    f.send(1, &frame(BROADCAST, own(0), &[], 60));
    assert!(is_behind(&f, 1));
    assert_eq!(
        f.drop_of(0, &frame(BROADCAST, behind(1), &[], 60)),
        Some(Drop::MacSpoof)
    );
    assert!(is_behind(&f, 1));
    f.send(0, &frame(BROADCAST, own(0), &[], 60));
    assert!(is_behind(&f, 0) && !is_behind(&f, 1));
    assert_eq!(f.writer.len(), 1);
}

/// A static or sticky address cannot be used elsewhere, and a member at its own limit gets no new source through.
#[test]
fn sources_of_others_and_beyond_the_limit() {
    let mut f = Fixture::new(
        false,
        vec![
            conf(0),
            conf(1),
            MemberConf {
                sticky: true,
                ..conf(2)
            },
        ],
    );
    f.writer
        .add_fixed(Key::from_octets(0, own(1)), 1, EntryFlags::LOCAL, NOW)
        .unwrap();
    assert_eq!(
        f.drop_of(0, &frame(BROADCAST, own(1), &[], 60)),
        Some(Drop::StickySource)
    );
    f.send(2, &frame(BROADCAST, behind(9), &[], 60));
    assert_eq!(
        f.drop_of(0, &frame(BROADCAST, behind(9), &[], 60)),
        Some(Drop::StickySource)
    );
    f.writer.set_member_limits(0, 2, 1000);
    for n in 0..4 {
        let got = f.drop_of(0, &frame(BROADCAST, behind(n), &[], 60));
        assert_eq!(got, (n >= 2).then_some(Drop::SourceLimit), "{n}");
    }
    assert_eq!(f.drop_of(0, &frame(BROADCAST, behind(1), &[], 60)), None);
    f.writer.set_member_limits(0, 0, 1000);
    assert_eq!(f.drop_of(0, &frame(BROADCAST, behind(3), &[], 60)), None);
}

/// VLANs: closed by default, untagged and tagged on each side, in the key, and their frames changed accordingly.
#[test]
fn vlans() {
    let member = |id, pvid, tagged: &[u16]| MemberConf {
        pvid,
        tagged: VlanMap::of(tagged.iter().copied()),
        ..conf(id)
    };
    let mut f = Fixture::new(
        true,
        vec![
            member(0, Some(10), &[20]),
            member(1, Some(20), &[10]),
            member(2, Some(10), &[]),
            member(3, None, &[]),
        ],
    );
    let from_0 = |tags: &[u16]| frame(BROADCAST, behind(1), tags, 60);
    f.send(0, &from_0(&[]));
    assert_eq!(f.destinations(0), [(1, true), (2, false)]);
    f.send(0, &from_0(&[0x6000 | 20]));
    assert_eq!(f.destinations(0), [(1, false)]);
    assert_eq!(
        (
            f.heads.meta[0].tci,
            f.heads.meta[0].vid,
            f.heads.meta[0].len
        ),
        (0x6014, 20, 56)
    );
    assert_eq!(
        f.heads.private(0)[12..14],
        [0x88, 0xb5],
        "the tag was taken out"
    );
    f.send(0, &from_0(&[0xe000]));
    assert_eq!(f.destinations(0), [(1, true), (2, false)]);
    assert_eq!(f.drop_of(0, &from_0(&[10])), Some(Drop::VlanTag));
    assert_eq!(f.drop_of(0, &from_0(&[4095])), Some(Drop::VlanTag));
    assert_eq!(f.drop_of(0, &from_0(&[20, 20])), Some(Drop::VlanTag));
    assert_eq!(f.drop_of(0, &from_0(&[30])), Some(Drop::VlanDenied));
    assert_eq!(f.drop_of(3, &from_0(&[])), Some(Drop::VlanDenied));
    assert_eq!(f.drop_of(0, &from_0(&[20])[..16]), Some(Drop::Runt));
    assert_eq!(
        f.send(1, &frame(behind(1), behind(2), &[10], 60)),
        Verdict::to(TxId(0), false)
    );
    assert_eq!(
        f.send(1, &frame(behind(1), behind(2), &[], 60)),
        Verdict::to(TxId(0), true)
    );
    f.writer
        .add_fixed(Key::from_octets(20, own(2)), 2, EntryFlags::STATIC, NOW)
        .unwrap();
    assert_eq!(
        f.drop_of(1, &frame(own(2), behind(2), &[], 60)),
        Some(Drop::EgressVlan)
    );
    let mut open = plain(2);
    open.send(0, &from_0(&[5, 6]));
    assert_eq!(open.destinations(0), [(1, false)]);
    assert_eq!(
        open.heads.meta[0].len, 60,
        "tags are left in where nothing is filtered"
    );
}

/// Private members reach others but not each other, by unicast or flood; a span member gets nothing
/// by itself and sends nothing; discover off keeps unknown unicast away; nobody left is a drop.
#[test]
fn private_span_discover() {
    let private = |id| MemberConf {
        private: true,
        ..conf(id)
    };
    let span = MemberConf {
        span: true,
        ..conf(3)
    };
    let quiet = MemberConf {
        discover: false,
        ..conf(2)
    };
    let mut f = Fixture::new(false, vec![private(0), private(1), quiet, span]);
    assert_eq!(f.bridge.spans(), [TxId(3)]);
    f.send(0, &frame(BROADCAST, behind(1), &[], 60));
    assert_eq!(f.destinations(0), [(2, false)]);
    f.send(2, &frame(BROADCAST, behind(2), &[], 60));
    assert_eq!(f.destinations(0), [(0, false), (1, false)]);
    assert_eq!(
        f.drop_of(0, &frame(behind(7), behind(1), &[], 60)),
        Some(Drop::NoDestination)
    );
    assert_eq!(
        f.drop_of(1, &frame(behind(1), behind(3), &[], 60)),
        Some(Drop::Private)
    );
    assert_eq!(
        f.send(2, &frame(behind(1), behind(2), &[], 60)),
        Verdict::to(TxId(0), false)
    );
    assert_eq!(
        f.drop_of(3, &frame(behind(1), behind(4), &[], 60)),
        Some(Drop::SpanSource)
    );
}

/// MTU: by length behind the link header with its tags, by segment for what will be segmented, and
/// for each copy of a flood.
#[test]
fn mtu() {
    let mut f = Fixture::new(
        false,
        vec![
            conf(0),
            conf(1),
            MemberConf {
                mtu: 1000,
                ..conf(2)
            },
        ],
    );
    f.send(2, &frame(BROADCAST, behind(2), &[], 60));
    let of = |len, tags: &[u16]| frame(behind(2), behind(1), tags, len);
    assert_eq!(f.drop_of(0, &of(1014, &[])), None);
    assert_eq!(f.drop_of(0, &of(1015, &[])), Some(Drop::Mtu));
    assert_eq!(f.drop_of(0, &of(1018, &[7])), None);
    assert_eq!(f.drop_of(0, &of(1022, &[7, 8])), None);
    assert_eq!(f.drop_of(0, &of(1023, &[7, 8])), Some(Drop::Mtu));
    f.send(0, &frame(BROADCAST, behind(1), &[], 1200));
    assert_eq!(f.destinations(0), [(1, false)]);
    for (gso_size, fits) in [(960, true), (961, false)] {
        f.begin(0);
        f.add(&of(9000, &[]));
        let m = &mut f.heads.meta[0];
        (m.l2, m.l3, m.l4) = (14, 20, 20);
        m.off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, gso_size, false);
        f.run();
        assert_eq!(f.heads.verdict[0].as_drop(), (!fits).then_some(Drop::Mtu));
    }
}

/// A member can have so many addresses learned at once and so many a second; the rest is counted as lost, its frames pass,
/// and one that is learned later is not refused.
#[test]
fn ever_new_sources_are_paced() {
    let mut f = plain(2);
    let at_once = u64::from(LEARNED_A_SECOND) / 20 + 1;
    let (mut posted, mut lost) = (0, 0);
    for number in 0..200u32 {
        f.begin(0);
        for i in 0..64 {
            let [_, b, c, d] = (number * 64 + i).to_be_bytes();
            f.add(&frame(BROADCAST, [0x02, 0x77, 0, b, c, d], &[], 60));
        }
        let tally = f.run();
        assert_eq!((tally.flooded, tally.dropped), (64, 0));
        posted += f.sightings.posts().len() as u64;
        lost += f.sightings.take_lost();
    }
    assert_eq!((posted, lost), (at_once, 200 * 64 - at_once));
    f.now = f.now.plus(1_000_000_000);
    f.send(0, &frame(BROADCAST, behind(9), &[], 60));
    assert_eq!(f.sightings.posts().len(), 1, "and comes back");
}

/// A storm is cut to its rate, unicast is not; and what was dropped before the bridge stays dropped.
#[test]
fn storms_and_earlier_verdicts() {
    let mut f = Fixture::new(
        false,
        vec![
            MemberConf {
                storm_limit: 1000,
                ..conf(0)
            },
            conf(1),
        ],
    );
    f.send(1, &frame(BROADCAST, behind(2), &[], 60));
    let mut passed = 0;
    for _ in 0..20 {
        f.begin(0);
        for i in 0..64 {
            let dst = if i % 2 == 0 { BROADCAST } else { behind(2) };
            f.add(&frame(dst, behind(1), &[], 60));
        }
        let t = f.run();
        assert_eq!((t.unicast, t.flooded + t.dropped), (32, 32));
        passed += t.flooded;
    }
    assert_eq!(passed, 51, "50 ms' worth of 1,000 a second");
    f.begin(0);
    f.add(&frame(behind(2), behind(1), &[], 60));
    f.heads.verdict[0] = Verdict::drop(Drop::BadOffload);
    assert_eq!(
        f.run(),
        Tally {
            dropped: 1,
            bytes: 60,
            ..Tally::default()
        }
    );
    assert_eq!(f.heads.verdict[0].as_drop(), Some(Drop::BadOffload));
}

/// An entry that is used as a source stays; one that is not ages, and its frames are flooded again.
#[test]
fn ageing() {
    let mut f = plain(3);
    f.send(0, &frame(BROADCAST, behind(1), &[], 60));
    f.send(1, &frame(BROADCAST, behind(2), &[], 60));
    for _ in 0..40 {
        f.now = f.now.plus(20_000_000_000);
        f.send(0, &frame(BROADCAST, behind(1), &[], 60));
        f.writer.sweep_due(f.now);
    }
    assert!(
        f.send(2, &frame(behind(1), behind(3), &[], 60))
            .as_to()
            .is_some()
    );
    assert!(
        f.send(2, &frame(behind(2), behind(3), &[], 60))
            .as_flood()
            .is_some()
    );
}

/// VLAN and address.
type Address = (u16, [u8; 6]);
/// An address, its member, and whether it stays there.
type Placed = (Address, (u16, bool));

/// A bridge written the slow way, for the oracle.
struct Naive {
    filtering: bool,
    members: Vec<MemberConf>,
    known: HashMap<Address, (u16, bool)>,
}

impl Naive {
    fn vid(&self, m: &MemberConf, f: &[u8]) -> Result<(u16, usize), Drop> {
        let tag = |at: usize| f.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        if !self.filtering {
            return Ok((0, 0));
        }
        if tag(12).ok_or(Drop::Runt)? != 0x8100 {
            return m.pvid.map(|p| (p, 0)).ok_or(Drop::VlanDenied);
        }
        let (tci, inner) = (tag(14).ok_or(Drop::Runt)?, tag(16).ok_or(Drop::Runt)?);
        let vid = tci % 4096;
        if inner == 0x8100 || vid == 4095 || (vid != 0 && m.pvid == Some(vid)) {
            return Err(Drop::VlanTag);
        }
        if vid == 0 {
            return m.pvid.map(|p| (p, 4)).ok_or(Drop::VlanDenied);
        }
        if m.tagged.contains(vid) {
            Ok((vid, 4))
        } else {
            Err(Drop::VlanDenied)
        }
    }

    /// The members that get the frame, with the tag decision, or the reason why none does.
    fn forward(&mut self, from: u16, f: &[u8]) -> Result<Vec<(u16, bool)>, Drop> {
        let mut source = None;
        let result = self.decide(from, f, &mut source);
        self.known.extend(source);
        result
    }

    /// The same; an address to be learned is left in `source`.
    fn decide(
        &self,
        from: u16,
        f: &[u8],
        source: &mut Option<Placed>,
    ) -> Result<Vec<(u16, bool)>, Drop> {
        let m = self
            .members
            .iter()
            .find(|m| m.id.0 == from)
            .ok_or(Drop::NotReady)?
            .clone();
        if m.span {
            return Err(Drop::SpanSource);
        }
        if f.len() < 14 {
            return Err(Drop::Runt);
        }
        let (dst, src): ([u8; 6], [u8; 6]) =
            (f[..6].try_into().unwrap(), f[6..12].try_into().unwrap());
        if src != own(from) {
            if src[0] & 1 == 1 || src == [0; 6] || src == BRIDGE_MAC {
                return Err(Drop::BadSource);
            }
            if m.nospoof {
                return Err(Drop::MacSpoof);
            }
        }
        if dst[..5] == [1, 0x80, 0xc2, 0, 0] && dst[5] < 16 {
            return match dst[5] {
                1 => Err(Drop::ReservedAddress),
                _ => Ok(vec![LOCAL]),
            };
        }
        let (vid, popped) = self.vid(&m, f)?;
        if m.learn && !m.nospoof {
            match self.known.get(&(vid, src)) {
                Some((at, true)) if *at != from => return Err(Drop::StickySource),
                Some((_, true)) => {}
                _ => *source = Some(((vid, src), (from, m.sticky))),
            }
        }
        let takes = |to: &&MemberConf| {
            let tags = if self.filtering {
                0
            } else {
                f[12..]
                    .chunks(4)
                    .take_while(|c| c.starts_with(&[0x81, 0]))
                    .count()
                    .min(2)
            };
            f.len().saturating_sub(popped + 14 + 4 * tags) <= to.mtu as usize
        };
        let open = |to: &MemberConf| !self.filtering || to.takes(vid);
        let pick = |to: &MemberConf| (to.id.0, self.filtering && to.pvid != Some(vid));
        let known = if dst[0] & 1 == 1 {
            None
        } else {
            self.known.get(&(vid, dst))
        };
        if let Some((at, _)) = known {
            let to = self.members.iter().find(|m| m.id.0 == *at).expect("member");
            return match () {
                () if *at == from => Err(Drop::SameMember),
                () if to.private && m.private => Err(Drop::Private),
                () if !open(to) => Err(Drop::EgressVlan),
                () if !takes(&to) => Err(Drop::Mtu),
                () => Ok(vec![pick(to)]),
            };
        }
        let set: Vec<&MemberConf> = self
            .members
            .iter()
            .filter(|to| to.id.0 != from && !to.span && !(to.private && m.private) && open(to))
            .filter(|to| dst[0] & 1 == 1 || to.discover)
            .collect();
        if set.is_empty() {
            return Err(Drop::NoDestination);
        }
        Ok(set.into_iter().filter(takes).map(pick).collect())
    }
}

fn member(id: u16) -> impl Strategy<Value = MemberConf> {
    let flags = any::<[bool; 6]>();
    (
        flags,
        0u16..4,
        prop::collection::vec(0u16..5, 0..3),
        any::<u8>(),
    )
        .prop_map(
            move |([learn, discover, sticky, private, nospoof, small], pvid, tagged, rare)| {
                MemberConf {
                    learn: learn || rare & 1 == 0,
                    discover: discover || rare & 2 == 0,
                    sticky: sticky && rare & 12 == 0,
                    private,
                    span: rare < 10,
                    nospoof: nospoof && rare & 16 == 0,
                    mtu: if small { 100 } else { 1500 },
                    pvid: (1..4).contains(&pvid).then_some(pvid),
                    tagged: VlanMap::of(tagged),
                    ..conf(id)
                }
            },
        )
}

fn address() -> impl Strategy<Value = [u8; 6]> {
    prop_oneof![
        8 => (0u8..6).prop_map(behind),
        6 => (0u16..5).prop_map(own),
        1 => Just(BROADCAST),
        1 => Just([0; 6]),
        1 => Just(BRIDGE_MAC),
        1 => (0u8..20).prop_map(|n| [1, 0x80, 0xc2, 0, 0, n]),
    ]
}

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(
        prop_oneof![4 => 0u16..5, 1 => Just(4095u16), 1 => Just(0x6002u16)],
        0..3,
    );
    (
        address(),
        address(),
        tags,
        prop_oneof![8 => 60usize..64, 2 => 110usize..125],
        0u8..40,
    )
        .prop_map(|(d, s, tags, len, cut)| {
            let mut f = frame(d, s, &tags, len);
            if cut < 4 {
                f.truncate(11 + 2 * cut as usize);
            }
            f
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Over any members and any frames, every frame gets the verdict that the slow bridge gives it.
    #[test]
    fn agrees_with_the_slow_bridge(
        filtering in any::<bool>(),
        members in (member(0), member(1), member(2), member(3)),
        frames in prop::collection::vec((0u16..5, wire()), 1..120),
    ) {
        let members = vec![members.0, members.1, members.2, members.3];
        let mut naive = Naive { filtering, members: members.clone(), known: HashMap::new() };
        let mut f = Fixture::new(filtering, members);
        for (n, (from, bytes)) in frames.iter().enumerate() {
            f.now = f.now.plus(2_000_000);
            let expected = naive.forward(*from, bytes);
            let verdict = f.send(*from, bytes);
            let got = match verdict.as_drop() {
                Some(reason) => Err(reason),
                None => Ok(f.destinations(0)),
            };
            prop_assert_eq!(got, expected, "frame {}: {:02x?} from {}", n, bytes, from);
        }
    }

    /// Members that are plain on the same VLAN get each other's untagged unicast frames from and to their own addresses, whole and
    /// without a tag, and nothing is to be learned of them; and a bridge of plain VNICs has some.
    #[test]
    fn plain_members_get_each_others_frames(
        filtering in any::<bool>(),
        members in (member(0), member(1), member(2), member(3)),
        stops in 0u16..6,
        away in 0u16..6,
    ) {
        let mut members = vec![members.0, members.1, members.2, members.3];
        for m in members.iter_mut().filter(|m| m.id.0 == stops) {
            m.state = PortState::Learning;
        }
        let mut f = Fixture::new(filtering, members.clone());
        for m in &members {
            let vids: Vec<u16> = if filtering { (1..4).collect() } else { vec![0] };
            for vid in vids {
                // The address of one of them is behind another one.
                let at = if m.id.0 == away { (m.id.0 + 1) % 4 } else { m.id.0 };
                let key = Key::from_octets(vid, own(m.id.0));
                f.writer.add_fixed(key, at, EntryFlags::LOCAL, f.now).expect("room");
            }
        }
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                let [a, b] = [from, to].map(|id| f.bridge.plain_vlan(id, f.now));
                if a.is_none() || a != b {
                    continue;
                }
                let bytes = frame(own(to), own(from), &[], 100);
                let verdict = f.send(from, &bytes);
                prop_assert_eq!(verdict, Verdict::to(TxId(to), false));
                prop_assert!(f.sightings.posts().is_empty());
            }
        }
        let plain = Fixture::new(false, vec![conf(0)]).bridge.plain_vlan(0, NOW);
        prop_assert_eq!(plain, None, "not in the table");
    }

    /// The same for bursts of plain frames: all from the member's own address, untagged, unicast, and a few that are not.
    #[test]
    fn a_plain_burst_is_its_frames(
        filtering in any::<bool>(),
        members in (member(0), member(1), member(2), member(3)),
        frames in prop::collection::vec((0u8..6, 60usize..130), 1..=64),
        strange in prop::option::weighted(0.2, (0usize..64, wire())),
    ) {
        let first = MemberConf { nospoof: true, span: false, pvid: Some(1), ..members.0 };
        let mut f = Fixture::new(filtering, vec![first, members.1, members.2, members.3]);
        for (n, at) in [(0, 1), (1, 2), (2, 3), (3, 1), (4, 0)] {
            for vid in [0, 1] {
                f.writer.add_fixed(Key::from_octets(vid, behind(n)), at, EntryFlags::STATIC, NOW).unwrap();
            }
        }
        let mut frames: Vec<_> = frames.iter().map(|&(n, len)| frame(behind(n), own(0), &[], len)).collect();
        if let Some((at, odd)) = strange {
            let n = frames.len();
            frames[at % n] = odd;
        }
        let single: Vec<Verdict> = frames.iter().map(|b| f.send(0, b)).collect();
        f.begin(0);
        frames.iter().for_each(|b| f.add(b));
        let tally = f.run();
        prop_assert_eq!(&f.heads.verdict[..frames.len()], &single[..]);
        prop_assert_eq!(sum(&tally), frames.len());
    }

    /// A burst gets the verdicts that its frames get one by one, when no address is new.
    #[test]
    fn a_burst_is_its_frames(
        filtering in any::<bool>(),
        members in (member(0), member(1), member(2), member(3)),
        from in 0u16..4,
        frames in prop::collection::vec(wire(), 1..=64),
    ) {
        let members = vec![members.0, members.1, members.2, members.3];
        let mut f = Fixture::new(filtering, members);
        for bytes in &frames {
            f.now = f.now.plus(2_000_000);
            f.send(from, bytes);
        }
        let single: Vec<Verdict> = frames.iter().map(|b| f.send(from, b)).collect();
        f.begin(from);
        frames.iter().for_each(|b| f.add(b));
        let tally = f.run();
        prop_assert_eq!(&f.heads.verdict[..frames.len()], &single[..]);
        prop_assert_eq!(sum(&tally), frames.len());
    }
}
