//! What a member learns of addresses that it is given: what counts as an answer, and what ends it.

mod packets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packets::*;
use windlass_frame::{Claim, Deepen, HEADROOM, Heads, Pick, RxId, SNAP, Tick};
use windlass_nic::{
    CLAIMS_MAX, Conf, EgressStage, Entering, Fate, Given, Guard, Holders, IngressStage, IpNospoof,
    LEASES_MAX, Learner, Leaving, Methods, PENDING_MAX, Protection, Trusted,
};
use windlass_stats::Drop;

const OWN: Mac = [2, 0, 0, 0, 0, 0x0a];
const OTHER: Mac = [2, 0, 0, 0, 0, 0x0b];
const SERVER: Mac = [2, 0, 0, 0, 0, 0x01];
const SECOND: u64 = 1_000_000_000;
const HOUR: u32 = 3600;
const ZERO: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const X: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const Y: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0);
const SIX: Ipv6Addr = Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, 6);
const METHODS: Methods = Methods {
    dhcpv4: true,
    dhcpv6: true,
    slaac: true,
};

struct Rest(Vec<u8>);

impl Deepen for Rest {
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool {
        let have = usize::from(heads.meta[i].have);
        let Some(bytes) = self.0.get(have..upto) else {
            return false;
        };
        heads.grow(i, upto - have).is_some_and(|room| {
            room.copy_from_slice(bytes);
            true
        })
    }
}

fn word(mac: Mac) -> u64 {
    let mut word = [0; 8];
    word[..6].copy_from_slice(&mac);
    u64::from_le_bytes(word)
}

/// A member with `ip-nospoof` and nothing named, at a moment.
struct Member {
    mac: Mac,
    learner: Arc<Learner>,
    guard: Guard,
    now: Tick,
}

fn conf(methods: Methods) -> Conf {
    Conf {
        methods,
        named: IpNospoof::default(),
    }
}

impl Member {
    fn new(number: u16, mac: Mac, holders: &Arc<Holders>) -> Member {
        let macs = [word(mac)].into();
        let learner = Learner::new(number, &macs, conf(METHODS), holders, Arc::new(|| ()));
        let rules = Protection {
            addresses: Some(IpNospoof::default()),
            methods: METHODS,
            ..Protection::default()
        };
        let guard = Guard::new(&macs, &rules.into(), Some(learner.clone()));
        Member {
            mac,
            learner,
            guard: guard.expect("rules"),
            now: Tick(1000 * SECOND),
        }
    }

    fn alone() -> Member {
        Member::new(1, OWN, &Arc::default())
    }

    fn heads(&self, frame: &[u8]) -> Box<Heads> {
        let mut heads = Heads::boxed();
        heads.clear(RxId(0), self.now);
        let n = frame.len().min(SNAP);
        heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        heads.n = 1;
        heads
    }

    /// Whether a frame of the member passes.
    fn sends(&self, frame: &[u8]) -> bool {
        let (mut heads, mut rest) = (self.heads(frame), Rest(frame.to_vec()));
        self.guard.leave(&mut Leaving::new(&mut heads, &mut rest));
        heads.verdict[0].as_drop().is_none()
    }

    /// Whether the member gets a frame, of a trusted member or of another one.
    fn gets_of(&self, frame: &[u8], trusted: bool) -> bool {
        let (mut heads, mut rest) = (self.heads(frame), Rest(frame.to_vec()));
        if trusted {
            Trusted.leave(&mut Leaving::new(&mut heads, &mut rest));
        }
        let (picks, mut own) = ([Pick::frame(0, false)], Heads::boxed());
        let mut entering = Entering::new(&heads, &mut own, &picks);
        Given(self.learner.clone()).enter(self.now, &mut entering);
        let fate = entering.fates().next().expect("a frame").1;
        assert!(matches!(fate, Fate::Pass | Fate::Drop(Drop::LeaseRefused)));
        fate == Fate::Pass
    }

    fn gets(&self, frame: &[u8]) -> bool {
        self.gets_of(frame, true)
    }

    fn speaks_for(&self, address: impl Into<IpAddr>) -> bool {
        self.sends(&match address.into() {
            IpAddr::V4(from) => ethernet(
                SERVER,
                self.mac,
                &[],
                IPV4,
                &ipv4(from, GATEWAY, TCP, &tcp()),
            ),
            IpAddr::V6(from) => {
                ethernet(SERVER, self.mac, &[], IPV6, &ipv6(from, NODES, TCP, &tcp()))
            }
        })
    }

    fn asks(&self, message: &[u8]) -> bool {
        self.sends(&ethernet(
            ALL,
            self.mac,
            &[],
            IPV4,
            &ipv4(ZERO, GATEWAY, UDP, &udp(68, 67, message)),
        ))
    }

    fn asks6(&self, message: &[u8]) -> bool {
        let packet = ipv6(link_local(self.mac), NODES, UDP, &udp(546, 547, message));
        self.sends(&ethernet(ALL, self.mac, &[], IPV6, &packet))
    }

    /// A whole exchange of DHCPv4; whether the member gets the answer.
    fn leases(&self, xid: u32, address: Ipv4Addr, seconds: u32) -> bool {
        assert!(self.asks(&dhcp_of(3, xid, self.mac, ZERO, &[])));
        self.gets(&four(&dhcp_of(
            5,
            xid,
            self.mac,
            address,
            &lease_time(seconds),
        )))
    }

    fn leases6(&self, options: &[u8]) -> bool {
        let client = client_duid(&duid_ll(self.mac));
        assert!(self.asks6(&dhcp6(3, &client)));
        self.gets(&six(&dhcp6(7, &[&client[..], options].concat())))
    }

    fn waits(&mut self, seconds: u64) {
        self.now = self.now.plus(seconds * SECOND);
    }

    /// Asks whether anybody has an address, before it is used; whether the question passes.
    fn questions(&self, address: Ipv6Addr) -> bool {
        self.sends(&question(self.mac, address, &[]))
    }

    /// Asks, waits, and uses it.
    fn takes(&mut self, address: Ipv6Addr) -> bool {
        let passes = self.questions(address);
        self.waits(1);
        assert_eq!(self.speaks_for(address), passes);
        passes
    }
}

fn question(mac: Mac, address: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    let packet = discovery(Ipv6Addr::UNSPECIFIED, &neighbour(135, address, options));
    ethernet([0x33, 0x33, 0xff, 0, 0, 1], mac, &[], IPV6, &packet)
}

/// A message of neighbour discovery to all.
fn discovery(from: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    ipv6(from, NODES, ICMP6, message)
}

/// What another host says that has an address, or is about to.
fn objection(number: u8, from: Ipv6Addr, address: Ipv6Addr) -> Vec<u8> {
    let packet = discovery(from, &neighbour(number, address, &[]));
    ethernet([0x33, 0x33, 0, 0, 0, 1], OTHER, &[], IPV6, &packet)
}

/// An address of a guest's own choice.
fn chosen(prefix: Ipv6Addr, id: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(id))
}

fn four(message: &[u8]) -> Vec<u8> {
    ethernet(
        ALL,
        SERVER,
        &[],
        IPV4,
        &ipv4(GATEWAY, X, UDP, &udp(67, 68, message)),
    )
}

fn six(message: &[u8]) -> Vec<u8> {
    let packet = ipv6(link_local(SERVER), NODES, UDP, &udp(547, 546, message));
    ethernet(OWN, SERVER, &[], IPV6, &packet)
}

fn advertises(options: &[u8]) -> Vec<u8> {
    let packet = ipv6(link_local(SERVER), NODES, ICMP6, &router(134, options));
    ethernet([0x33, 0x33, 0, 0, 0, 1], SERVER, &[], IPV6, &packet)
}

fn own_of(prefix: Ipv6Addr, mac: Mac) -> Ipv6Addr {
    Ipv6Addr::from_bits(prefix.to_bits() | link_local(mac).to_bits() & u128::from(u64::MAX))
}

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// An address passes from its ACK to the end of its lease; also in ARP; and a renewal puts the end off.
#[test]
fn a_lease_lasts() {
    let mut a = Member::alone();
    assert!(!a.speaks_for(X));
    assert!(a.leases(7, X, HOUR));
    assert!(a.speaks_for(X) && !a.speaks_for(Y));
    let claims = |address| {
        ethernet(
            ALL,
            OWN,
            &[],
            ARP,
            &arp(1, (OWN, address), ([0; 6], GATEWAY)),
        )
    };
    assert!(a.sends(&claims(X)) && !a.sends(&claims(Y)));
    a.waits(3000);
    let renewal = udp(68, 67, &dhcp_of(3, 8, OWN, X, &[]));
    assert!(a.sends(&ethernet(
        SERVER,
        OWN,
        &[],
        IPV4,
        &ipv4(X, GATEWAY, UDP, &renewal)
    )));
    assert!(a.gets(&four(&dhcp_of(5, 8, OWN, X, &lease_time(HOUR)))));
    a.waits(3599);
    assert!(a.speaks_for(X));
    a.waits(1);
    assert!(!a.speaks_for(X));
    assert!(a.learner.leases(a.now).is_empty());
    assert!(a.leases(9, X, u32::MAX));
    a.waits(u64::from(u32::MAX));
    assert!(a.speaks_for(X));
}

/// The ways by which an address is a client's no more: another one, a refusal, and what the client says.
#[test]
fn a_lease_ends() {
    for (ends, is_answer) in [
        (dhcp_of(5, 8, OWN, Y, &lease_time(HOUR)), true),
        (dhcp_of(6, 8, OWN, ZERO, &[]), true),
        (dhcp_of(5, 8, OWN, X, &lease_time(0)), true),
        (dhcp_of(7, 9, OWN, X, &[]), false),
        (dhcp_of(4, 9, OWN, ZERO, &[50, 4, 10, 0, 0, 1]), false),
    ] {
        let a = Member::alone();
        assert!(a.leases(7, X, HOUR) && a.speaks_for(X));
        assert!(a.asks(&dhcp_of(3, 8, OWN, X, &[])));
        match is_answer {
            true => assert!(a.gets(&four(&ends))),
            false => assert!(a.asks(&ends)),
        }
        assert!(!a.speaks_for(X), "{:02x?}", &ends[236..]);
    }
}

/// What is no answer to a request of the member teaches nothing, and goes on to the member all the same.
#[test]
fn other_answers_teach_nothing() {
    let good = dhcp_of(5, 7, OWN, X, &lease_time(HOUR));
    let id = client_id(1, &OTHER);
    let answer = |options: &[u8]| dhcp_of(5, 7, OWN, X, options);
    let fragment = with(four(&good), 20, &[0x20, 0]);
    let later = with(four(&good), 20, &[0, 1]);
    let mapped = ipv6(X.to_ipv6_mapped(), NODES, UDP, &udp(67, 68, &good));
    let tag = [0x81, 0, 0, 7];
    let tagged = |tags: &[[u8; 4]]| {
        let packet = ipv4(GATEWAY, X, UDP, &udp(67, 68, &good));
        ethernet(ALL, SERVER, tags, IPV4, &packet)
    };
    let elsewhere = with(four(&good), 0, &OTHER);
    for (name, frame) in [
        (
            "another transaction",
            four(&dhcp_of(5, 8, OWN, X, &lease_time(HOUR))),
        ),
        (
            "another client's",
            four(&dhcp_of(5, 7, OTHER, X, &lease_time(HOUR))),
        ),
        (
            "another identifier",
            four(&answer(&[lease_time(HOUR), id].concat())),
        ),
        ("an offer", four(&dhcp_of(2, 7, OWN, X, &lease_time(HOUR)))),
        ("a request", four(&dhcp_of(3, 7, OWN, X, &lease_time(HOUR)))),
        ("no lease", four(&answer(&[]))),
        ("half a lease", four(&answer(&[51, 2, 1, 1]))),
        ("two leases", four(&answer(&lease_time(HOUR).repeat(2)))),
        (
            "two types",
            four(&answer(&[lease_time(HOUR), vec![53, 1, 5]].concat())),
        ),
        ("no type", four(&dhcp(2, OWN, &lease_time(HOUR)))),
        (
            "an option beyond the end",
            four(&answer(&[lease_time(HOUR), vec![12, 9]].concat())),
        ),
        ("no cookie", four(&with(good.clone(), 236, &[0]))),
        ("no options", four(&good[..236])),
        ("short", four(&good[..200])),
        ("a fragment", fragment),
        ("a later fragment", later),
        ("to another port", with(four(&good), 36, &[0, 69])),
        ("a tag", tagged(&[tag])),
        ("two tags", tagged(&[tag, tag])),
        ("over IPv6", ethernet(ALL, SERVER, &[], IPV6, &mapped)),
        ("to another", elsewhere),
        ("cut", four(&good)[..290].to_vec()),
        (
            "too long",
            four(&answer(&[lease_time(HOUR), vec![0; 1700]].concat())),
        ),
        ("options", with(four(&good), 14, &[0x46])),
    ] {
        let a = Member::alone();
        assert!(a.asks(&dhcp_of(3, 7, OWN, ZERO, &[])));
        assert!(a.gets(&frame), "{name}");
        assert!(!a.speaks_for(X), "{name}");
        assert!(a.learner.leases(a.now).is_empty(), "{name}");
    }
}

/// What cannot be anybody's is not given.
#[test]
fn addresses_of_nobody() {
    for address in [
        ZERO,
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(224, 0, 0, 1),
    ] {
        assert!(!Member::alone().leases(7, address, HOUR), "{address}");
    }
}

/// Only a trusted member's answers count, and only once.
#[test]
fn forgers_give_nothing() {
    let mut a = Member::alone();
    let good = four(&dhcp_of(5, 7, OWN, X, &lease_time(HOUR)));
    assert!(a.asks(&dhcp_of(3, 7, OWN, ZERO, &[])));
    assert!(a.gets_of(&good, false) && !a.speaks_for(X));
    let prefix = advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR));
    assert!(a.gets_of(&prefix, false) && !a.speaks_for(own_of(PREFIX, OWN)));
    assert!(a.gets(&good) && a.speaks_for(X));
    // The transaction is over: nothing comes of its number.
    let again = four(&dhcp_of(5, 7, OWN, Y, &lease_time(HOUR)));
    assert!(a.gets(&again) && !a.speaks_for(Y) && a.speaks_for(X));
    // An answer that is late comes to nothing, also where the clock has gone back.
    assert!(a.asks(&dhcp_of(3, 9, OWN, ZERO, &[])));
    a.waits(60);
    assert!(a.gets(&four(&dhcp_of(5, 9, OWN, Y, &lease_time(HOUR)))) && !a.speaks_for(Y));
    // A request in the name of another hardware address is none.
    assert!(a.asks(&dhcp_of(3, 10, OTHER, ZERO, &[])));
    assert!(a.gets(&four(&dhcp_of(5, 10, OTHER, Y, &lease_time(HOUR)))) && !a.speaks_for(Y));
    a.now = Tick(0);
    assert!(a.speaks_for(X), "a clock that has gone back ends nothing");
    a.now = Tick(u64::MAX);
    assert!(!a.speaks_for(X), "one that has jumped ahead does");
}

/// Clients of one member have an address each, by their identifiers.
#[test]
fn clients_are_told_apart() {
    let a = Member::alone();
    for (xid, id, address) in [(1, 11, X), (2, 12, Y)] {
        let id = client_id(0, &[id]);
        assert!(a.asks(&dhcp_of(3, xid, OWN, ZERO, &id)));
        let options = [lease_time(HOUR), id].concat();
        assert!(a.gets(&four(&dhcp_of(5, xid, OWN, address, &options))));
    }
    assert!(a.speaks_for(X) && a.speaks_for(Y));
    // A discovery is answered at once only where the client says that it will do.
    assert!(a.asks(&dhcp_of(1, 3, OWN, ZERO, &[])));
    assert!(a.gets(&four(&dhcp_of(5, 3, OWN, GATEWAY, &lease_time(HOUR)))));
    assert!(!a.speaks_for(GATEWAY));
    assert!(a.asks(&dhcp_of(1, 3, OWN, ZERO, &[80, 0])));
    assert!(a.gets(&four(&dhcp_of(5, 3, OWN, GATEWAY, &lease_time(HOUR)))));
    assert!(a.speaks_for(GATEWAY));
}

/// DHCPv6: addresses, temporary ones and prefixes pass for their valid lifetime, until they are given back.
#[test]
fn dhcp6_gives_addresses_and_prefixes() {
    let mut a = Member::alone();
    let temporary = Ipv6Addr::from_bits(SIX.to_bits() + 1);
    let delegated: Ipv6Addr = "fd03:0:0:100::".parse().unwrap();
    let behind: Ipv6Addr = "fd03:0:0:1ff::9".parse().unwrap();
    let beside: Ipv6Addr = "fd03:0:0:200::9".parse().unwrap();
    let all = [
        ia(3, &[(SIX, HOUR)]),
        ia(4, &[(temporary, HOUR)]),
        ia_pd(delegated, 56, 2 * HOUR),
    ];
    assert!(a.leases6(&all.concat()));
    assert!(a.speaks_for(SIX) && a.speaks_for(temporary) && a.speaks_for(behind));
    assert!(!a.speaks_for(beside));
    let client = client_duid(&duid_ll(OWN));
    let back = dhcp6(8, &[&client[..], &ia(3, &[(SIX, 0)])].concat());
    assert!(a.asks6(&back) && !a.speaks_for(SIX) && a.speaks_for(temporary));
    a.waits(u64::from(HOUR));
    assert!(!a.speaks_for(temporary) && a.speaks_for(behind));
    // A lifetime of 0 takes it away.
    assert!(a.leases6(&ia_pd(delegated, 56, 0)) && !a.speaks_for(behind));
    for bad in [
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::1",
    ] {
        let bad = bad.parse().unwrap();
        assert!(!a.leases6(&ia(3, &[(SIX, HOUR), (bad, HOUR)])), "{bad}");
        assert!(!a.speaks_for(SIX), "all or nothing");
    }
    for bits in [0, 6, 129] {
        assert!(!a.leases6(&ia_pd(PREFIX, bits, HOUR)), "{bits}");
    }
    for (name, message) in [
        ("another transaction", with(dhcp6(7, &client), 1, &[9])),
        ("an advertisement", dhcp6(2, &client)),
        ("another client", dhcp6(7, &client_duid(&duid_ll(OTHER)))),
        ("nobody's", dhcp6(7, &[])),
        ("two clients", dhcp6(7, &client.repeat(2))),
        (
            "half an option",
            dhcp6(7, &[&client[..], &[0, 3, 0]].concat()),
        ),
        (
            "half an address",
            dhcp6(7, &[&client[..], &option6(3, &[0; 14])].concat()),
        ),
        (
            "no association",
            dhcp6(7, &[&client[..], &option6(3, &[0; 4])].concat()),
        ),
    ] {
        assert!(a.asks6(&dhcp6(3, &client)));
        let message = [message, ia(3, &[(SIX, HOUR)])].concat();
        assert!(a.gets(&six(&message)), "{name}");
        assert!(!a.speaks_for(SIX), "{name}");
    }
}

/// SLAAC: the address made of the own link-layer address in each autonomous /64, by the rules for lifetimes.
#[test]
fn routers_give_prefixes() {
    let mut a = Member::alone();
    let own = own_of(PREFIX, OWN);
    let day = 24 * HOUR;
    let many = [
        vec![5, 1, 0, 0, 0, 0, 5, 220],
        link_option(1, SERVER),
        prefix_option(PREFIX, 64, 0xc0, day),
    ];
    assert!(a.gets(&advertises(&many.concat())));
    assert!(a.speaks_for(own) && !a.speaks_for(own_of(PREFIX, OTHER)) && !a.speaks_for(PREFIX));
    // Nobody ends it at once.
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, 0))));
    a.waits(7199);
    assert!(a.speaks_for(own));
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, 0))));
    a.waits(1);
    assert!(!a.speaks_for(own));
    let good = prefix_option(PREFIX, 64, 0xc0, HOUR);
    for (name, frame) in [
        (
            "not autonomous",
            advertises(&prefix_option(PREFIX, 64, 0x80, HOUR)),
        ),
        (
            "another length",
            advertises(&prefix_option(PREFIX, 63, 0xc0, HOUR)),
        ),
        (
            "link-local",
            advertises(&prefix_option("fe80::".parse().unwrap(), 64, 0xc0, HOUR)),
        ),
        (
            "multicast",
            advertises(&prefix_option("ff02::".parse().unwrap(), 64, 0xc0, HOUR)),
        ),
        (
            "an empty option",
            advertises(&[&good[..], &[1, 0]].concat()),
        ),
        ("half an option", advertises(&[&good[..], &[1]].concat())),
        ("hops", with(advertises(&good), 21, &[254])),
        ("no link-local source", with(advertises(&good), 22, &[0xfd])),
        ("a code", with(advertises(&good), 55, &[1])),
        ("cut", advertises(&good[..31])),
        ("an extension", {
            let message = extension(ICMP6, &router(134, &good));
            let packet = ipv6(link_local(SERVER), NODES, 60, &message);
            ethernet(OWN, SERVER, &[], IPV6, &packet)
        }),
        ("a fragment", {
            let message = fragment(ICMP6, 0, false, &router(134, &good));
            let packet = ipv6(link_local(SERVER), NODES, FRAGMENT, &message);
            ethernet(OWN, SERVER, &[], IPV6, &packet)
        }),
        ("to another", with(advertises(&good), 0, &OTHER)),
    ] {
        assert!(a.gets(&frame), "{name}");
        assert!(a.learner.leases(a.now).is_empty(), "{name}");
    }
}

/// What another member has by name is not given, nor a prefix around it; what another one was given is that one's no more, and comes
/// back by a newer answer. Named for both, both have it.
#[test]
fn an_address_is_one_members() {
    let holders = Arc::<Holders>::default();
    let (a, b) = (
        Member::new(1, OWN, &holders),
        Member::new(2, OTHER, &holders),
    );
    holders.name([
        (Y.into(), 2),
        (SIX.into(), 2),
        (own_of(PREFIX, OWN).into(), 2),
    ]);
    assert!(!a.leases(7, Y, HOUR) && !a.speaks_for(Y));
    assert!(!a.leases6(&ia(3, &[(SIX, HOUR)])) && !a.speaks_for(SIX));
    assert!(!a.leases6(&ia_pd("fd02::".parse().unwrap(), 64, HOUR)));
    assert!(
        a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))),
        "there is more in it"
    );
    assert!(!a.speaks_for(own_of(PREFIX, OWN)));
    assert!(b.leases(7, Y, HOUR) && b.speaks_for(Y));
    for (has, has_not) in [(&a, &b), (&b, &a), (&a, &b)] {
        assert!(has.leases(8, X, HOUR) && has.speaks_for(X) && !has_not.speaks_for(X));
    }
    holders.name([(X.into(), 2)]);
    a.learner.set(conf(METHODS));
    assert!(!a.speaks_for(X), "the operator has given it away");
    holders.name([(X.into(), 2), (X.into(), 1)]);
    assert!(a.leases(9, X, HOUR));
    drop(b);
    assert!(a.speaks_for(X));
}

/// A member's tables are its own: what is beyond their size is refused, or in the place of what is older, and others notice nothing.
#[test]
fn tables_are_bounded() {
    let holders = Arc::<Holders>::default();
    let (mut a, b) = (
        Member::new(1, OWN, &holders),
        Member::new(2, OTHER, &holders),
    );
    let lease = |a: &Member, n: u32| {
        let id = client_id(0, &n.to_be_bytes());
        assert!(a.asks(&dhcp_of(3, n, OWN, ZERO, &id)));
        let address = Ipv4Addr::from_bits(X.to_bits() + n);
        let options = [lease_time(HOUR), id].concat();
        a.gets(&four(&dhcp_of(5, n, OWN, address, &options)))
    };
    for n in 0..LEASES_MAX as u32 {
        assert!(lease(&a, n), "{n}");
    }
    let full = a.learner.leases(a.now);
    for n in 100..1100 {
        assert!(!lease(&a, n), "{n}");
    }
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    assert_eq!(a.learner.leases(a.now), full);
    // A renewal takes no room, and neither does another address of a client that has one.
    assert!(lease(&a, 5));
    assert!(b.leases(1, Y, HOUR));
    a.waits(u64::from(HOUR));
    assert!(lease(&a, 100), "what is over makes room");
    // Of open requests, the newest count.
    for xid in 1000..1000 + PENDING_MAX as u32 + 1 {
        assert!(a.asks(&dhcp_of(
            3,
            xid,
            OWN,
            ZERO,
            &client_id(0, &xid.to_be_bytes())
        )));
    }
    for (xid, is_known) in [(1000, false), (1001, true)] {
        let options = [lease_time(HOUR), client_id(0, &u32::to_be_bytes(xid))].concat();
        assert!(a.gets(&four(&dhcp_of(5, xid, OWN, GATEWAY, &options))));
        assert_eq!(a.speaks_for(GATEWAY), is_known);
    }
}

/// A way that is closed takes what came by it, and gives nothing more; what a learner leaves, the next one can take over, but for what is
/// not to be had any more.
#[test]
fn ways_are_closed_and_leases_handed_on() {
    let a = Member::alone();
    let own = own_of(PREFIX, OWN);
    assert!(a.leases(7, X, HOUR) && a.leases6(&ia(3, &[(SIX, 2 * HOUR)])));
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    let all = a.learner.leases(a.now);
    assert_eq!(all.len(), 3);
    let mut next = Member::alone();
    next.learner.restore(next.now, all.clone());
    assert!(next.speaks_for(X) && next.speaks_for(SIX) && next.speaks_for(own));
    next.waits(u64::from(HOUR));
    assert!(!next.speaks_for(X) && next.speaks_for(SIX));
    let late = Member::alone();
    late.learner.restore(next.now, all.clone());
    assert_eq!(late.learner.leases(next.now).len(), 1);
    let holders = Arc::<Holders>::default();
    holders.name([(X.into(), 9)]);
    let narrow = Member::new(1, OWN, &holders);
    narrow.learner.set(conf(Methods {
        slaac: false,
        ..METHODS
    }));
    narrow
        .learner
        .restore(narrow.now, vec![all; LEASES_MAX].concat());
    assert!(narrow.speaks_for(SIX) && !narrow.speaks_for(X) && !narrow.speaks_for(own));
    a.learner.set(conf(Methods {
        dhcpv4: true,
        ..Methods::default()
    }));
    assert!(a.speaks_for(X) && !a.speaks_for(SIX) && !a.speaks_for(own));
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))) && !a.speaks_for(own));
    assert!(a.leases6(&ia(3, &[(SIX, HOUR)])) && !a.speaks_for(SIX));
}

/// What was learned is of the untagged VLAN: with a tag the address is another's to have. A tag that says the priority alone is none.
#[test]
fn tags_are_other_vlans() {
    let a = Member::alone();
    assert!(a.leases(7, X, HOUR));
    let tagged =
        |tags: &[[u8; 4]]| ethernet(SERVER, OWN, tags, IPV4, &ipv4(X, GATEWAY, TCP, &tcp()));
    assert!(a.sends(&tagged(&[])) && a.sends(&tagged(&[[0x81, 0, 0xe0, 0]])));
    assert!(!a.sends(&tagged(&[[0x81, 0, 0, 5]])));
    assert!(!a.sends(&tagged(&[[0x81, 0, 0, 0], [0x81, 0, 0, 0]])));
    assert!(!a.sends(&tagged(&[[0x88, 0xa8, 0, 0]])));
}

/// Stable-privacy and temporary addresses: who asks whether anybody has one, has it after half a second, as long as its prefix is valid.
#[test]
fn a_guest_takes_addresses_of_its_own() {
    let local: Ipv6Addr = "fe80::".parse().expect("an address");
    let mut a = Member::alone();
    let (stable, temporary) = (chosen(PREFIX, 0x1234_5678_9abc_def0), chosen(PREFIX, 77));
    assert!(!a.questions(stable), "no router has spoken");
    assert!(a.takes(chosen(local, 99)), "link-local needs none");
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    assert!(!a.speaks_for(stable) && a.questions(stable) && !a.speaks_for(stable));
    a.now = a.now.plus(SECOND / 2 - 1);
    assert!(!a.speaks_for(stable));
    a.now = a.now.plus(1);
    assert!(a.speaks_for(stable) && a.questions(stable));
    assert!(a.takes(temporary));
    for (name, refused) in [
        ("another prefix", question(OWN, SIX, &[])),
        ("the router's", question(OWN, PREFIX, &[])),
        (
            "anycast",
            question(OWN, chosen(PREFIX, 0xfdff_ffff_ffff_ff80), &[]),
        ),
        (
            "an own link-layer address",
            question(OWN, chosen(PREFIX, 5), &link_option(1, OWN)),
        ),
        ("half an option", question(OWN, chosen(PREFIX, 5), &[1])),
        ("tagged", {
            let packet = discovery(
                Ipv6Addr::UNSPECIFIED,
                &neighbour(135, chosen(PREFIX, 5), &[]),
            );
            ethernet(ALL, OWN, &[[0x81, 0, 0, 5]], IPV6, &packet)
        }),
    ] {
        assert!(!a.sends(&refused), "{name}");
        a.waits(1);
        assert!(!a.speaks_for(chosen(PREFIX, 5)), "{name}");
    }
    // Advertisements go on for all of them.
    a.waits(u64::from(HOUR) - 60);
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    a.waits(u64::from(HOUR) - 1);
    assert!(a.speaks_for(stable) && a.speaks_for(temporary) && a.speaks_for(own_of(PREFIX, OWN)));
    a.waits(1);
    assert!(!a.speaks_for(stable) && a.speaks_for(chosen(local, 99)) && !a.questions(stable));
    let next = Member::alone();
    next.learner.restore(a.now, a.learner.leases(a.now));
    assert!(next.speaks_for(chosen(local, 99)));
}

/// Whoever has the address says so in time, or asks for it too; later it is another's word.
#[test]
fn an_objection_keeps_an_address() {
    let (source, none) = (link_local(OTHER), Ipv6Addr::UNSPECIFIED);
    let mut a = Member::alone();
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    let (want, other) = (chosen(PREFIX, 1234), chosen(PREFIX, 4321));
    for (name, frame, keeps) in [
        ("an answer", objection(136, source, want), true),
        ("the same question", objection(135, none, want), true),
        (
            "an answer about another",
            objection(136, source, other),
            false,
        ),
        (
            "a question of somebody",
            objection(135, source, want),
            false,
        ),
        (
            "from behind a router",
            with(objection(136, source, want), 21, &[254]),
            false,
        ),
        ("cut", objection(136, source, want)[..77].to_vec(), false),
    ] {
        assert!(a.questions(want), "{name}");
        assert!(a.gets_of(&frame, false), "{name}");
        a.waits(1);
        assert_eq!(a.speaks_for(want), !keeps, "{name}");
        if !keeps {
            assert!(a.gets_of(&objection(136, source, want), false));
            assert!(a.speaks_for(want), "{name}: too late");
            a = Member::alone();
            assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
        }
    }
}

/// An address is the first one's: from the question on, and for as long as it has it. Nobody takes what is made of another member's
/// link-layer address, or named for it; what a server gives goes before.
#[test]
fn who_asks_first_has_it() {
    let holders = Arc::<Holders>::default();
    let (mut a, mut b) = (
        Member::new(1, OWN, &holders),
        Member::new(2, OTHER, &holders),
    );
    let frame = advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR));
    assert!(a.gets(&frame) && b.gets(&frame));
    let want = chosen(PREFIX, 1234);
    assert!(a.questions(want) && !b.questions(want), "asked for");
    a.waits(1);
    assert!(a.speaks_for(want) && !b.takes(want));
    assert!(!a.takes(own_of(PREFIX, OTHER)) && !a.takes(link_local(OTHER)));
    holders.name([(chosen(PREFIX, 5).into(), 2)]);
    assert!(!a.takes(chosen(PREFIX, 5)));
    // A server gives the other one what it has, and what it has asked for.
    assert!(a.questions(chosen(PREFIX, 6)));
    let client = client_duid(&duid_ll(OTHER));
    let gives = ia(3, &[(chosen(PREFIX, 6), HOUR), (want, HOUR)]);
    assert!(b.asks6(&dhcp6(3, &client)));
    let answer = six(&dhcp6(7, &[&client[..], &gives].concat()));
    assert!(b.gets(&with(answer, 0, &OTHER)));
    a.waits(1);
    assert!(!a.speaks_for(chosen(PREFIX, 6)) && !a.speaks_for(want) && b.speaks_for(want));
    // One that is gone leaves what it had.
    let left = chosen(PREFIX, 7);
    assert!(a.takes(left) && !b.takes(left) && a.questions(chosen(PREFIX, 8)));
    drop(a);
    assert!(b.takes(left) && b.takes(chosen(PREFIX, 8)));
    // A member that comes later has the link-local address of its own.
    let third = [2, 0, 0, 0, 0, 0x0c];
    assert!(b.takes(link_local(third)));
    let c = Member::new(3, third, &holders);
    assert!(c.speaks_for(link_local(third)) && !b.speaks_for(link_local(third)));
}

/// A guest that always makes new ones keeps those that it uses.
#[test]
fn addresses_of_a_guests_choice_are_bounded() {
    let holders = Arc::<Holders>::default();
    let mut a = Member::new(1, OWN, &holders);
    let _other = Member::new(2, OTHER, &holders);
    let local = chosen("fe80::".parse().expect("an address"), 99);
    assert!(a.takes(local));
    assert!(a.gets(&advertises(&prefix_option(PREFIX, 64, 0xc0, HOUR))));
    let uses = |a: &Member, from: Ipv6Addr| {
        let packet = discovery(from, &neighbour(135, link_local(SERVER), &[]));
        a.sends(&ethernet(SERVER, a.mac, &[], IPV6, &packet))
    };
    let first = chosen(PREFIX, 1);
    for id in 1..=100 {
        assert!(a.takes(chosen(PREFIX, id)), "{id}");
        assert!(uses(&a, first), "{id}");
        assert!(a.learner.leases(a.now).len() <= CLAIMS_MAX + 1);
    }
    assert!(a.speaks_for(first) && a.speaks_for(local) && !a.speaks_for(chosen(PREFIX, 2)));
    let last = 100 - CLAIMS_MAX as u64 + 3;
    assert!(!a.speaks_for(chosen(PREFIX, last - 1)) && a.speaks_for(chosen(PREFIX, last)));
    // A question for what another has costs none of them.
    let before = a.learner.leases(a.now);
    assert!(!a.questions(link_local(OTHER)) && a.learner.leases(a.now) == before);
    // Questions alone are bounded, too.
    for id in 1000..1000 + CLAIMS_MAX as u64 {
        assert!(a.questions(chosen(PREFIX, id)), "{id}");
    }
    assert!(!a.questions(chosen(PREFIX, 2000)) && !a.speaks_for(local));
}
