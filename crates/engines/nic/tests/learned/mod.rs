//! Any bytes as what a member and others say of its addresses: what must hold whatever it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use windlass_frame::{Claim, Deepen, HEADROOM, Heads, Pick, RxId, SNAP, Tick};
use windlass_nic::{
    Conf, EgressStage, Entering, Given, Guard, Holders, IngressStage, IpNospoof, LEASES_MAX,
    Learner, Leaving, Methods, Protection, Trusted,
};

use crate::packets::*;

const OWN: Mac = [2, 0, 0, 0, 0, 0x0a];
const SERVER: Mac = [2, 0, 0, 0, 0, 0x01];
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const METHODS: Methods = Methods {
    dhcpv4: true,
    dhcpv6: true,
    slaac: true,
};
/// Another member's by name.
const NAMED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);

struct Rest<'a>(&'a [u8]);

impl Deepen for Rest<'_> {
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool {
        let have = usize::from(heads.meta[i].have);
        let Some(bytes) = self.0.get(have..upto) else {
            return false;
        };
        let Some(room) = heads.grow(i, upto - have) else {
            return false;
        };
        room.copy_from_slice(bytes);
        true
    }
}

struct World {
    heads: Box<Heads>,
    own: Box<Heads>,
    guard: Guard,
    learner: Arc<Learner>,
    now: Tick,
}

impl World {
    fn admit(&mut self, frame: &[u8]) {
        self.heads.clear(RxId(0), self.now);
        let n = frame.len().min(SNAP);
        self.heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
        self.heads.admit(0, frame.len() as u32, Claim::NONE);
        self.heads.n = 1;
    }

    fn sends(&mut self, frame: &[u8]) {
        self.admit(frame);
        let mut rest = Rest(frame);
        self.guard
            .leave(&mut Leaving::new(&mut self.heads, &mut rest));
    }

    fn gets(&mut self, frame: &[u8], trusted: bool) {
        self.admit(frame);
        if trusted {
            let mut rest = Rest(frame);
            Trusted.leave(&mut Leaving::new(&mut self.heads, &mut rest));
        }
        let picks = [Pick::frame(0, false)];
        let mut entering = Entering::new(&self.heads, &mut self.own, &picks);
        Given(self.learner.clone()).enter(self.now, &mut entering);
    }

    /// What must hold; how many leases there are.
    fn check(&self) -> usize {
        let leases = self.learner.leases(self.now);
        assert!(leases.len() <= LEASES_MAX);
        for lease in &leases {
            match lease.address {
                IpAddr::V4(address) => {
                    assert!(
                        !address.is_unspecified() && !address.is_loopback(),
                        "{lease:?}"
                    );
                    assert!(
                        !address.is_multicast() && !address.is_broadcast(),
                        "{lease:?}"
                    );
                    assert!(address != NAMED && lease.bits == 32, "{lease:?}");
                }
                IpAddr::V6(address) => {
                    let [first, ..] = address.octets();
                    assert!(first >> 5 == 1 || first >> 1 == 0xfc >> 1, "{lease:?}");
                    assert!((3..=128).contains(&lease.bits), "{lease:?}");
                }
            }
            assert!(
                lease.until.is_none_or(|until| until > self.now),
                "{lease:?}"
            );
        }
        leases.len()
    }
}

/// A step is a byte that says what, two with its length, and bytes: whole frames, or messages that are put into frames. Gives how many
/// addresses were learned at a time.
pub fn check(mut data: &[u8]) -> usize {
    let mut most = 0;
    let mut own = [0; 8];
    own[..6].copy_from_slice(&OWN);
    let (macs, holders) = ([u64::from_le_bytes(own)].into(), Arc::<Holders>::default());
    holders.name([(NAMED.into(), 2)]);
    let conf = Conf {
        methods: METHODS,
        named: IpNospoof::default(),
    };
    let learner = Learner::new(1, &macs, conf, &holders, Arc::new(|| ()));
    let rules = Protection {
        addresses: Some(IpNospoof::default()),
        methods: METHODS,
        ..Protection::default()
    };
    let guard = Guard::new(&macs, &rules.into(), Some(learner.clone()));
    let mut world = World {
        heads: Heads::boxed(),
        own: Heads::boxed(),
        guard: guard.expect("rules"),
        learner,
        now: Tick(1),
    };
    while let Some((&[kind, l0, l1], rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([l0, l1])) % 2048;
        let (bytes, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        let four = |from: Mac, ports: (u16, u16)| {
            let packet = ipv4(
                Ipv4Addr::UNSPECIFIED,
                NAMED,
                UDP,
                &udp(ports.0, ports.1, bytes),
            );
            ethernet(ALL, from, &[], IPV4, &packet)
        };
        let six = |from: Mac, next, payload: &[u8]| {
            ethernet(
                ALL,
                from,
                &[],
                IPV6,
                &ipv6(link_local(from), NODES, next, payload),
            )
        };
        match kind % 9 {
            0 => world.sends(bytes),
            1 => world.gets(bytes, true),
            2 => world.sends(&four(OWN, (68, 67))),
            3 => world.gets(&four(SERVER, (67, 68)), true),
            4 => world.sends(&six(OWN, UDP, &udp(546, 547, bytes))),
            5 => world.gets(&six(SERVER, UDP, &udp(547, 546, bytes)), true),
            6 => world.gets(&six(SERVER, ICMP6, bytes), true),
            7 => world.now = world.now.plus(u64::from(l1) << 33),
            _ => {
                let before = world.learner.leases(world.now);
                world.gets(bytes, false);
                world.gets(&four(SERVER, (67, 68)), false);
                world.gets(&six(SERVER, ICMP6, bytes), false);
                assert_eq!(world.learner.leases(world.now), before);
            }
        }
        most = most.max(world.check());
    }
    most
}
