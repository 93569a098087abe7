//! What protection refuses: row by row, and for arbitrary frames against a plain, slow parser of its own.

mod packets;
#[path = "guard/reference.rs"]
mod reference;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packets::*;
use proptest::prelude::*;
use reference::{Plain, refuses};
use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, RxId, SNAP, Tick};
use windlass_nic::{DhcpNospoof, Guard, IngressStage, IpNospoof, Leaving, Methods, Protection};
use windlass_stats::Drop;

const OWN: Mac = [2, 0, 0, 0, 0, 0x0a];
const OTHER: Mac = [2, 0, 0, 0, 0, 0x0b];
const NAMED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ZERO: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const NAMED6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const FOREIGN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const ZERO6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ID: &[u8] = b"\0guest-1";
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The frames of a burst, whole: what lies behind the snapshots is read from here, once.
struct Rest(Vec<Vec<u8>>);

impl Deepen for Rest {
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool {
        let have = usize::from(heads.meta[i].have);
        assert!(upto > have, "asked for what is there");
        let Some(bytes) = self.0[i].get(have..upto) else {
            return false;
        };
        let Some(room) = heads.grow(i, upto - have) else {
            return false;
        };
        room.copy_from_slice(bytes);
        true
    }
}

/// What becomes of each frame of a burst.
fn outcomes(rules: &Plain, frames: &[Vec<u8>]) -> Vec<Option<Drop>> {
    assert!(frames.len() <= BURST);
    let mut heads = Heads::boxed();
    heads.clear(RxId(0), Tick(0));
    heads.n = frames.len();
    for (i, frame) in frames.iter().enumerate() {
        let n = frame.len().min(SNAP);
        heads.snap[i].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
        heads.admit(i, frame.len() as u32, Claim::NONE);
    }
    let rules = Arc::new(Protection {
        restricted: false,
        addresses: rules.addresses.clone().map(IpNospoof::new),
        methods: Methods::default(),
        clients: rules.clients.clone().map(|(ids, any_id)| DhcpNospoof {
            ids: ids.into_iter().map(Vec::into_boxed_slice).collect(),
            any_id,
        }),
        router_guard: rules.router_guard,
        dhcp_guard: rules.dhcp_guard,
    });
    let mut own = [0; 8];
    own[..6].copy_from_slice(&OWN);
    if let Some(guard) = Guard::new(&[u64::from_le_bytes(own)].into(), &rules, None) {
        let mut rest = Rest(frames.to_vec());
        guard.leave(&mut Leaving::new(&mut heads, &mut rest));
    }
    let decided = heads.verdict.iter().take(frames.len());
    decided.map(|verdict| verdict.as_drop()).collect()
}

/// A guard names the addresses from which it passes whole segments and datagrams, the link-local one among them: none that packets cannot come
/// from, and nothing if there are too many.
#[test]
fn plain_sources_are_named() {
    use windlass_nic::Plain;
    let plain = |prefixes: Option<&[(IpAddr, u8)]>| {
        let rules = Protection {
            addresses: prefixes.map(|prefixes| IpNospoof::new(prefixes.iter().copied())),
            dhcp_guard: true,
            ..Protection::default()
        };
        let mut own = [0; 8];
        own[..6].copy_from_slice(&OWN);
        let guard = Guard::new(&[u64::from_le_bytes(own)].into(), &rules.into(), None);
        guard.expect("a rule").plain()
    };
    let from = |sources: &[&str]| {
        let parsed = sources.iter().map(|text| text.parse().expect("an address"));
        Plain::Transport(Some(parsed.collect()))
    };
    assert_eq!(plain(None), Plain::Transport(None));
    let named = [(NAMED.into(), 31), (NAMED6.into(), 128)];
    let expected = ["10.0.0.0", "10.0.0.1", "fd00::1", "fe80::ff:fe00:a"];
    assert_eq!(plain(Some(&named)), from(&expected));
    let mapped = NAMED.to_ipv6_mapped();
    let none = [(ZERO.into(), 32), (ZERO6.into(), 128), (mapped.into(), 128)];
    assert_eq!(plain(Some(&none)), from(&["fe80::ff:fe00:a"]));
    assert_eq!(plain(Some(&[(NAMED.into(), 24)])), Plain::None);
    assert_eq!(plain(Some(&[(NAMED6.into(), 0)])), Plain::None);
}

fn named() -> Vec<(IpAddr, u8)> {
    let prefix = Ipv4Addr::new(10, 9, 0, 0);
    let prefix6 = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 0);
    vec![
        (NAMED.into(), 32),
        (Ipv4Addr::new(10, 9, 1, 0).into(), 24),
        (prefix.into(), 24),
        (prefix.into(), 16),
        (NAMED6.into(), 128),
        (prefix6.into(), 64),
    ]
}

fn all() -> Vec<(IpAddr, u8)> {
    vec![(ZERO.into(), 0), (ZERO6.into(), 0)]
}

/// Only `ip-nospoof`; only `dhcp-nospoof`; only the router guard; only the DHCP guard.
fn each() -> [Plain; 4] {
    let off = Plain {
        own: OWN,
        ..Plain::default()
    };
    [
        Plain {
            addresses: Some(named()),
            ..off.clone()
        },
        Plain {
            clients: Some((vec![ID.to_vec()], false)),
            ..off.clone()
        },
        Plain {
            router_guard: true,
            ..off.clone()
        },
        Plain {
            dhcp_guard: true,
            ..off
        },
    ]
}

/// A row's letters, in this order: what each rule alone refuses.
const LETTERS: [(char, Drop); 4] = [
    ('i', Drop::IpSpoof),
    ('d', Drop::DhcpSpoof),
    ('r', Drop::RouterGuard),
    ('s', Drop::DhcpGuard),
];

/// Each row refuses what its letters say, alone and together, and the first of them names the drop of all together.
fn check(rows: &[(&str, &str, Vec<u8>)]) {
    for (name, letters, frame) in rows {
        for (rule, (letter, reason)) in each().iter().zip(LETTERS) {
            let expected = letters.contains(letter).then_some(reason);
            let frames = std::slice::from_ref(frame);
            assert_eq!(outcomes(rule, frames), [expected], "{name}: {reason:?}");
            assert_eq!(refuses(rule, frame), expected, "reference: {name}");
        }
        let [ip, dhcp, ..] = each();
        let all = Plain {
            clients: dhcp.clients,
            router_guard: true,
            dhcp_guard: true,
            ..ip
        };
        let first = LETTERS.iter().find(|(letter, _)| letters.contains(*letter));
        let expected = first.map(|(_, reason)| *reason);
        assert_eq!(
            outcomes(&all, std::slice::from_ref(frame)),
            [expected],
            "{name}"
        );
    }
}

fn v4(packet: Vec<u8>) -> Vec<u8> {
    ethernet(OTHER, OWN, &[], IPV4, &packet)
}

fn v6(packet: Vec<u8>) -> Vec<u8> {
    ethernet(OTHER, OWN, &[], IPV6, &packet)
}

fn from4(src: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
    v4(ipv4(src, FOREIGN, proto, payload))
}

fn from6(src: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    v6(ipv6(src, NODES, next, payload))
}

fn arp_frame(operation: u16, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let packet = arp(operation, sender, ([0; 6], target));
    ethernet(ALL, OWN, &[], ARP, &packet)
}

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn cut(mut frame: Vec<u8>, len: usize) -> Vec<u8> {
    frame.truncate(len);
    frame
}

/// Sources of IPv4 and IPv6: named addresses and prefixes pass, others do not; what is unspecified, mapped or made of
/// another's link-layer address does not.
#[test]
#[rustfmt::skip]
fn ip_sources() {
    let mapped = |address: Ipv4Addr| from6(address.to_ipv6_mapped(), TCP, &tcp());
    check(&[
        ("named", "", from4(NAMED, TCP, &tcp())),
        ("in a prefix", "", from4(Ipv4Addr::new(10, 9, 255, 7), UDP, &udp(1, 2, b"x"))),
        ("foreign", "i", from4(FOREIGN, TCP, &tcp())),
        ("beside a prefix", "i", from4(Ipv4Addr::new(10, 10, 0, 0), TCP, &tcp())),
        ("unspecified", "i", from4(ZERO, TCP, &tcp())),
        ("unspecified, another port", "i", from4(ZERO, UDP, &udp(68, 69, b"x"))),
        ("another protocol", "", from4(NAMED, 132, b"x")),
        ("echo", "", from4(NAMED, ICMP, &icmp(8, &[0; 4]))),
        ("named, v6", "", from6(NAMED6, TCP, &tcp())),
        ("prefix, v6", "", from6("fd09::7".parse().unwrap(), UDP, &udp(1, 2, b"x"))),
        ("foreign, v6", "i", from6(FOREIGN6, TCP, &tcp())),
        ("beside a prefix, v6", "i", from6("fd09:0:0:1::7".parse().unwrap(), TCP, &tcp())),
        ("own link-local", "", from6(link_local(OWN), TCP, &tcp())),
        ("another link-local", "i", from6(link_local(OTHER), TCP, &tcp())),
        ("unspecified, v6", "i", from6(ZERO6, UDP, &udp(1, 2, b"x"))),
        ("echo, unspecified", "i", from6(ZERO6, ICMP6, &icmp(128, &[0; 4]))),
        ("mapped", "i", mapped(NAMED)),
        ("neither", "", ethernet(OTHER, OWN, &[], 0x88cc, b"lldp")),
    ]);
    let anything = Plain {
        addresses: Some(all()),
        ..each()[0].clone()
    };
    let frames = [
        mapped(NAMED),
        from4(ZERO, TCP, &tcp()),
        from6(ZERO6, TCP, &tcp()),
        arp_frame(2, (OWN, ZERO), NAMED),
        from4(FOREIGN, TCP, &tcp()),
        from6(FOREIGN6, TCP, &tcp()),
    ];
    let (refused, passes) = ([Some(Drop::IpSpoof); 4], [None; 2]);
    let expected = [&refused[..], &passes].concat();
    assert_eq!(outcomes(&anything, &frames), expected, "all addresses");
}

/// ARP: requests, replies, announcements and probes for named addresses pass, with the frame's source as the sender.
#[test]
#[rustfmt::skip]
fn arp_senders() {
    let gratuitous = |address| arp_frame(1, (OWN, address), address);
    check(&[
        ("request", "", arp_frame(1, (OWN, NAMED), FOREIGN)),
        ("reply", "", arp_frame(2, (OWN, NAMED), FOREIGN)),
        ("announcement", "", gratuitous(NAMED)),
        ("probe", "", arp_frame(1, (OWN, ZERO), NAMED)),
        ("request of another", "i", arp_frame(1, (OWN, FOREIGN), NAMED)),
        ("reply of another", "i", arp_frame(2, (OWN, FOREIGN), NAMED)),
        ("announcement of another", "i", gratuitous(FOREIGN)),
        ("probe of another", "i", arp_frame(1, (OWN, ZERO), FOREIGN)),
        ("probe of nothing", "i", arp_frame(1, (OWN, ZERO), ZERO)),
        ("answer without address", "i", arp_frame(2, (OWN, ZERO), NAMED)),
        ("another's link-layer address", "i", arp_frame(2, (OTHER, NAMED), FOREIGN)),
        ("another operation", "i", arp_frame(8, (OWN, NAMED), FOREIGN)),
        ("operation beyond a byte", "i", arp_frame(0x102, (OWN, NAMED), FOREIGN)),
        ("another hardware", "i", with(arp_frame(1, (OWN, NAMED), FOREIGN), 15, &[6])),
        ("another protocol", "i", with(arp_frame(1, (OWN, NAMED), FOREIGN), 16, &[0x86, 0xdd])),
        ("no hardware address", "i", with(arp_frame(1, (OWN, NAMED), FOREIGN), 18, &[0])),
        ("another length", "i", with(arp_frame(1, (OWN, NAMED), FOREIGN), 19, &[16])),
        ("cut", "i", cut(arp_frame(1, (OWN, NAMED), FOREIGN), 41)),
        ("empty", "i", ethernet(ALL, OWN, &[], ARP, &[])),
    ]);
}

/// Neighbour discovery: targets, options, unspecified sources, and no way around by extension headers or fragments.
#[test]
#[rustfmt::skip]
fn neighbour_discovery() {
    let (source, target) = (link_option(1, OWN), link_option(2, OWN));
    let says =
        |src, number, whose, options: &[u8]| from6(src, ICMP6, &neighbour(number, whose, options));
    let advertises = |whose, options: &[u8]| says(NAMED6, ADVERTISEMENT, whose, options);
    let long = [[14, 1].repeat(4).repeat(20), link_option(2, OTHER)].concat();
    let own = advertises(NAMED6, &target);
    let message = neighbour(ADVERTISEMENT, FOREIGN6, &target);
    let named = neighbour(ADVERTISEMENT, NAMED6, &target);
    let part = |offset, more| fragment(ICMP6, offset, more, &named);
    check(&[
        ("advertisement", "", own.clone()),
        ("of own link-local", "", advertises(link_local(OWN), &target)),
        ("of another", "i", advertises(FOREIGN6, &target)),
        ("of another link-local", "i", advertises(link_local(OTHER), &target)),
        ("of nothing", "i", advertises(ZERO6, &target)),
        ("to another link", "i", advertises(NAMED6, &link_option(2, OTHER))),
        ("from another link", "i", advertises(NAMED6, &link_option(1, OTHER))),
        ("second option", "i", advertises(NAMED6, &[target.clone(), link_option(2, OTHER)].concat())),
        ("behind the snapshot", "i", advertises(NAMED6, &long)),
        ("long option", "i", advertises(NAMED6, &[&[2, 2][..], &OWN, &[0; 8]].concat())),
        ("empty option", "i", advertises(NAMED6, &[14, 0, 0, 0, 0, 0, 0, 0])),
        ("option beyond the end", "i", advertises(NAMED6, &[14, 2, 0, 0, 0, 0, 0, 0])),
        ("half an option", "i", advertises(NAMED6, &[14])),
        ("without options", "", advertises(NAMED6, &[])),
        ("short", "i", from6(NAMED6, ICMP6, &icmp(ADVERTISEMENT, &[0; 18]))),
        ("from nobody", "i", says(ZERO6, ADVERTISEMENT, NAMED6, &[])),
        ("solicitation", "", says(NAMED6, SOLICITATION, FOREIGN6, &source)),
        ("solicitation of another link", "i", says(NAMED6, SOLICITATION, FOREIGN6, &link_option(1, OTHER))),
        ("solicitation of another", "i", says(FOREIGN6, SOLICITATION, NAMED6, &source)),
        ("detection", "", says(ZERO6, SOLICITATION, NAMED6, &[14, 1, 0, 0, 0, 0, 0, 0])),
        ("detection of another", "i", says(ZERO6, SOLICITATION, FOREIGN6, &[])),
        ("detection with a link", "i", says(ZERO6, SOLICITATION, NAMED6, &source)),
        ("listener", "", from6(ZERO6, 0, &extension(ICMP6, &icmp(143, &[0; 4])))),
        ("router wanted", "", from6(NAMED6, ICMP6, &router(133, &source))),
        ("router wanted by nobody", "", from6(ZERO6, ICMP6, &router(133, &[]))),
        ("router wanted for another", "i", from6(NAMED6, ICMP6, &router(133, &link_option(1, OTHER)))),
        ("router", "r", from6(link_local(OWN), ICMP6, &router(134, &source))),
        ("router of another link", "ir", from6(link_local(OWN), ICMP6, &router(134, &link_option(1, OTHER)))),
        ("router of another", "ir", from6(link_local(OTHER), ICMP6, &router(134, &[]))),
        ("redirect", "r", from6(NAMED6, ICMP6, &icmp(137, &[0; 36]))),
        ("short redirect", "ir", from6(NAMED6, ICMP6, &icmp(137, &[0; 34]))),
        ("redirect, v4", "r", from4(NAMED, ICMP, &icmp(5, &[0; 4]))),
        ("router, v4", "r", from4(NAMED, ICMP, &icmp(9, &[0; 4]))),
        ("behind an extension", "i", from6(NAMED6, 60, &extension(ICMP6, &message))),
        ("behind a long one", "i", from6(NAMED6, 60, &[&[ICMP6, 20][..], &[0; 166], &message].concat())),
        ("router behind extensions", "r", from6(NAMED6, 0, &extension(60, &extension(ICMP6, &router(134, &[]))))),
        ("first part", "i", from6(NAMED6, FRAGMENT, &part(0, true))),
        ("whole with a fragment header", "i", from6(NAMED6, FRAGMENT, &part(0, false))),
        ("later part", "", from6(NAMED6, FRAGMENT, &part(3, false))),
        ("later part, another", "i", from6(FOREIGN6, FRAGMENT, &part(3, false))),
        ("later part hides a header", "idrs", from6(NAMED6, FRAGMENT, &fragment(60, 1, false, &message))),
        ("first part of a router", "ir", from6(NAMED6, FRAGMENT, &fragment(ICMP6, 0, true, &router(134, &[])))),
        ("headers end in the first part", "idrs", from6(NAMED6, FRAGMENT, &fragment(60, 0, true, &[ICMP6, 3, 0, 0, 0, 0, 0, 0]))),
    ]);
}

/// DHCP: clients that are the member, by their hardware address, client identifier or DUID; servers.
#[test]
#[rustfmt::skip]
fn dhcp_clients_and_servers() {
    let four =
        |src, ports: (u16, u16), message: &[u8]| from4(src, UDP, &udp(ports.0, ports.1, message));
    let asks = |chaddr, options: &[u8]| four(ZERO, (68, 67), &dhcp(1, chaddr, options));
    let end = [53, 1, 1, 255];
    let own = dhcp(1, OWN, &end);
    let node = [&[0, 0, 0, 1][..], &duid_ll(OWN)].concat();
    let strange = [&[0, 0, 0, 1][..], &duid_ll(OTHER)].concat();
    let twice = [client_id(1, &OWN), client_id(1, &OWN)].concat();
    let padded = [vec![0; 400], client_id(1, &OTHER)].concat();
    let first = with(v4(ipv4(ZERO, FOREIGN, UDP, &udp(68, 67, &own))), 20, &[0x20, 0]);
    check(&[
        ("own", "", asks(OWN, &end)),
        ("another hardware address", "d", asks(OTHER, &end)),
        ("own identifier", "", asks(OWN, &client_id(1, &OWN))),
        ("another identifier", "d", asks(OWN, &client_id(1, &OTHER))),
        ("far behind", "d", asks(OWN, &padded)),
        ("after the end", "", asks(OWN, &[&end[..], &client_id(1, &OTHER)].concat())),
        ("named", "", asks(OWN, &client_id(ID[0], &ID[1..]))),
        ("begins as a named one", "d", asks(OWN, &client_id(ID[0], &ID[1..4]))),
        ("node", "", asks(OWN, &client_id(255, &node))),
        ("another node", "d", asks(OWN, &client_id(255, &strange))),
        ("two identifiers", "d", asks(OWN, &twice)),
        ("empty identifier", "d", asks(OWN, &[61, 0, 255])),
        ("overload", "d", asks(OWN, &[52, 1, 3, 255])),
        ("option beyond the end", "d", asks(OWN, &[12, 9, 1])),
        ("half an option", "d", asks(OWN, &[12])),
        ("another hardware", "d", four(ZERO, (68, 67), &with(own.clone(), 1, &[6]))),
        ("another length", "d", four(ZERO, (68, 67), &with(own.clone(), 2, &[16]))),
        ("no cookie", "d", four(ZERO, (68, 67), &with(own.clone(), 236, &[0]))),
        ("short", "d", four(ZERO, (68, 67), &own[..200])),
        ("empty", "ds", four(NAMED, (68, 67), &[])),
        ("renewal", "", four(NAMED, (68, 67), &own)),
        ("from any port", "d", four(NAMED, (9, 67), &dhcp(1, OTHER, &end))),
        ("first part", "ids", first),
        ("too long", "ds", four(NAMED, (68, 67), &dhcp(1, OWN, &vec![0; 1800]))),
        ("offer", "s", four(NAMED, (67, 68), &dhcp(2, OTHER, &end))),
        ("anything to a client", "s", four(NAMED, (9, 68), b"x")),
        ("to a relay", "s", four(NAMED, (67, 67), &dhcp(2, OTHER, &end))),
        ("neither", "ds", four(NAMED, (67, 67), &dhcp(3, OWN, &end))),
    ]);
    let frames = [asks(OWN, &client_id(1, &OTHER)), asks(OTHER, &end), asks(OWN, &twice)];
    let refused = [None, Some(Drop::DhcpSpoof), Some(Drop::DhcpSpoof)];
    assert_eq!(outcomes(&any_id(), &frames), refused, "any identifier");
}

/// The same of DHCPv6.
#[test]
#[rustfmt::skip]
fn dhcp6_clients_and_servers() {
    let from = link_local(OWN);
    let six = |ports: (u16, u16), message: &[u8]| from6(from, UDP, &udp(ports.0, ports.1, message));
    let asks6 = |number, duid: &[u8]| six((546, 547), &dhcp6(number, &client_duid(duid)));
    check(&[
        ("own", "", asks6(1, &duid_ll(OWN))),
        ("with time", "", asks6(3, &duid_llt(OWN))),
        ("named", "", asks6(5, ID)),
        ("another", "d", asks6(8, &duid_ll(OTHER))),
        ("another with time", "d", asks6(1, &duid_llt(OTHER))),
        ("another kind", "d", asks6(1, &[0, 2, 0, 0, 0, 9, 1, 2])),
        ("question", "", six((546, 547), &dhcp6(11, &[]))),
        ("nobody", "d", six((546, 547), &dhcp6(1, &[]))),
        ("two", "d", six((546, 547), &dhcp6(1, &client_duid(&duid_ll(OWN)).repeat(2)))),
        ("half an option", "d", six((546, 547), &dhcp6(11, &[0, 6, 0, 2, 0]))),
        ("empty", "ds", six((546, 547), &[])),
        ("relay", "d", six((547, 547), &dhcp6(12, &[0; 34]))),
        ("reply to a relay", "s", six((547, 547), &dhcp6(13, &[0; 34]))),
        ("reply", "s", six((547, 546), &dhcp6(7, &client_duid(&duid_ll(OTHER))))),
        ("unknown", "d", six((546, 547), &dhcp6(20, &client_duid(&duid_ll(OWN))))),
        ("first part", "ds", from6(NAMED6, FRAGMENT, &fragment(UDP, 0, true, &udp(546, 547, &dhcp6(1, &[]))))),
    ]);
    assert_eq!(outcomes(&any_id(), &[asks6(1, ID)]), [None], "any identifier");
}

/// Only `dhcp-nospoof`, with any client identifier.
fn any_id() -> Plain {
    Plain {
        clients: Some((Vec::new(), true)),
        ..each()[1].clone()
    }
}

/// Tags are looked through; what cannot be read, or hides IP, is refused by whichever rule is on.
#[test]
#[rustfmt::skip]
fn odd_frames() {
    let packet = |src| ipv4(src, FOREIGN, TCP, &tcp());
    let tagged = |tags: &[[u8; 4]], src| ethernet(OTHER, OWN, tags, IPV4, &packet(src));
    let q = [0x81, 0, 0, 5];
    let s = [0x88, 0xa8, 0, 5];
    let llc = |bytes: &[u8]| ethernet(OTHER, OWN, &[], 60, &[bytes, &[0; 60][..]].concat());
    let good = from4(NAMED, TCP, &tcp());
    check(&[
        ("tag", "", tagged(&[q], NAMED)),
        ("tag, another", "i", tagged(&[q], FOREIGN)),
        ("two tags", "", tagged(&[s, q], NAMED)),
        ("two tags, another", "i", tagged(&[s, q], FOREIGN)),
        ("four tags, another", "i", tagged(&[q, q, s, q], FOREIGN)),
        ("five tags", "idrs", tagged(&[q; 5], NAMED)),
        ("ends in a tag", "idrs", ethernet(OTHER, OWN, &[q], IPV4, &[])[..17].to_vec()),
        ("old tag", "idrs", tagged(&[[0x91, 0, 0, 5]], NAMED)),
        ("old tag behind a tag", "idrs", tagged(&[q, [0x92, 0, 0, 5]], NAMED)),
        ("tagged ARP", "i", ethernet(ALL, OWN, &[q], ARP, &arp(2, (OWN, FOREIGN), (OTHER, NAMED)))),
        ("runt", "", vec![2; 13]),
        ("no packet", "idrs", v4(Vec::new())),
        ("version", "idrs", with(good.clone(), 14, &[0x65])),
        ("header length", "idrs", with(good.clone(), 14, &[0x44])),
        ("total length", "idrs", with(good.clone(), 16, &[1, 0])),
        ("cut in the header", "idrs", cut(good.clone(), 33)),
        ("cut in TCP", "idrs", cut(good.clone(), 50)),
        ("TCP beyond the packet", "idrs", with([good.clone(), vec![0; 60]].concat(), 46, &[0xf0])),
        ("version, v6", "idrs", with(from6(NAMED6, TCP, &tcp()), 14, &[0x50])),
        ("later part", "", with(good.clone(), 20, &[0, 3])),
        ("later part, another", "i", with(from4(FOREIGN, TCP, &tcp()), 20, &[0, 3])),
        ("padded", "", [good.clone(), vec![0; 9]].concat()),
        ("long option chain", "idrs", from6(NAMED6, 60, &[[60, 0, 1, 4, 0, 0, 0, 0].repeat(9), tcp()].concat())),
        ("routing header", "i", from6(FOREIGN6, 43, &extension(TCP, &tcp()))),
        ("BPDU", "", llc(&[0x42, 0x42, 3])),
        ("SNAP of a vendor", "", llc(&[0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b])),
        ("IP in SNAP", "idrs", llc(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0])),
        ("IP in LLC", "idrs", llc(&[6, 6, 3])),
    ]);
}

/// Nothing is decided about frames that have a verdict; frames of a burst do not depend on each other; with all rules off there is
/// no stage.
#[test]
fn bursts() {
    let [ip, ..] = each();
    let none = Plain {
        addresses: None,
        ..ip.clone()
    };
    let (good, bad) = (from4(NAMED, TCP, &tcp()), from4(FOREIGN, TCP, &tcp()));
    let frames: Vec<_> = (0..BURST).map(|i| [&good, &bad][i % 2].clone()).collect();
    let seen = outcomes(&ip, &frames);
    assert!((0..BURST).all(|i| seen[i] == (i % 2 == 1).then_some(Drop::IpSpoof)));
    assert_eq!(outcomes(&none, &frames), vec![None; BURST]);
    assert!(Guard::new(&[0].into(), &Arc::default(), None).is_none());
}

/// Choices for what a frame is made of.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn below(&mut self, n: u8) -> u8 {
        self.byte() % n
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[usize::from(self.below(all.len() as u8))].clone()
    }

    fn mac(&mut self) -> Mac {
        self.of(&[OWN, OWN, OTHER])
    }

    fn v4(&mut self) -> Ipv4Addr {
        self.of(&[NAMED, ZERO, FOREIGN, Ipv4Addr::new(10, 9, 1, 1)])
    }

    fn v6(&mut self) -> Ipv6Addr {
        let prefix = "fd09::5".parse().unwrap();
        let mapped = NAMED.to_ipv6_mapped();
        self.of(&[
            NAMED6,
            ZERO6,
            FOREIGN6,
            prefix,
            mapped,
            link_local(OWN),
            link_local(OTHER),
        ])
    }

    fn options(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..self.below(4) {
            let option = match self.below(4) {
                0 => link_option(self.byte() % 3, self.mac()),
                1 => vec![14, self.below(2), 0, 0, 0, 0, 0, 0],
                2 => [&[14, 14][..], &[0; 110]].concat(),
                _ => link_option(2, OWN),
            };
            all.extend(option);
        }
        all
    }

    fn id(&mut self) -> Vec<u8> {
        let mac = self.mac();
        match self.below(4) {
            0 => ID.to_vec(),
            1 => duid_ll(mac),
            2 => duid_llt(mac),
            _ => [&[self.byte()][..], &mac].concat(),
        }
    }

    fn dhcp_options(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..self.below(4) {
            let mut id = self.id();
            let option = match self.below(6) {
                0 => vec![0; 150],
                1 => vec![self.byte(), self.below(4)],
                2 => client_id(255, &[&[0; 4][..], &id].concat()),
                3 => vec![255],
                _ => {
                    let kind = id.remove(0);
                    client_id(kind, &id)
                }
            };
            all.extend(option);
        }
        all
    }

    fn message(&mut self, is_v6: bool) -> (u8, Vec<u8>) {
        match (self.below(6), is_v6) {
            (0, _) => (TCP, tcp()),
            (1, false) => (ICMP, icmp(self.of(&[5, 8, 9]), &[0; 4])),
            (1 | 2, true) => {
                let number = 131 + self.below(13);
                let message = match self.below(3) {
                    0 => router(number, &self.options()),
                    1 => icmp(number, &vec![0; usize::from(self.below(48))]),
                    _ => neighbour(number, self.v6(), &self.options()),
                };
                (ICMP6, message)
            }
            (_, false) => {
                let from = self.of(&[67, 68, 9]);
                let to = self.of(&[67, 67, 68, 9]);
                let message = dhcp(1 + self.below(3), self.mac(), &self.dhcp_options());
                (UDP, udp(from, to, &message))
            }
            (_, true) => {
                let to = self.of(&[546, 547, 547, 9]);
                let duids: Vec<_> = (0..self.below(3))
                    .map(|_| client_duid(&self.id()))
                    .collect();
                let number = self.of(&[1, 2, 3, 7, 11, 12, 13, 20]);
                (UDP, udp(546, to, &dhcp6(number, &duids.concat())))
            }
        }
    }

    fn packet(&mut self) -> (u16, Vec<u8>) {
        match self.below(8) {
            0 => {
                let sender = (self.mac(), self.v4());
                let target = (self.mac(), self.v4());
                (ARP, arp(self.of(&[1, 2, 3]), sender, target))
            }
            1 => {
                let sap = self.of(&[0xaa, 0xab, 6, 0x42]);
                let llc = [sap, self.of(&[0xaa, 6]), 3, 0, 0, self.below(2), 8, 0];
                (self.of(&[40, 0x9100, 0x88cc]), llc.to_vec())
            }
            2..=4 => {
                let (proto, message) = self.message(false);
                let mut packet = ipv4(self.v4(), FOREIGN, proto, &message);
                packet[6] = self.of(&[0, 0, 0x40, 0x20]);
                packet[7] = self.of(&[0, 0, 0, 3]);
                (IPV4, packet)
            }
            _ => {
                let (mut next, mut message) = self.message(true);
                for _ in 0..self.of(&[0, 0, 0, 1, 2, 3, 9]) {
                    (next, message) = match self.below(3) {
                        0 => (
                            FRAGMENT,
                            fragment(next, self.of(&[0, 0, 2u16]), self.below(2) == 1, &message),
                        ),
                        _ => (self.of(&[0, 43, 60]), extension(next, &message)),
                    };
                }
                (IPV6, ipv6(self.v6(), NODES, next, &message))
            }
        }
    }

    /// A frame of which most are well formed, some are cut, and some have other bytes.
    fn frame(&mut self) -> Vec<u8> {
        let tags: Vec<_> = (0..self.of(&[0, 0, 0, 1, 2, 4, 5]))
            .map(|_| [self.of(&[0x81, 0x88]), self.of(&[0, 0, 0xa8]), 0, 5])
            .collect();
        let (kind, packet) = self.packet();
        let mut frame = ethernet(OTHER, self.mac(), &tags, kind, &packet);
        for _ in 0..self.of(&[0, 0, 0, 1, 2]) {
            let at = usize::from(self.byte()) + usize::from(self.below(3)) * 100;
            if let Some(byte) = frame.get_mut(at) {
                *byte = self.byte();
            }
        }
        match self.below(6) {
            0 => frame.truncate(usize::from(self.byte()) + 13),
            1 => frame.extend(vec![0; usize::from(self.byte())]),
            2 if self.below(8) == 0 => frame.extend(vec![0; 2000]),
            _ => {}
        }
        frame
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// What the stage says of arbitrary frames, with only their first bytes at hand, is what the plain parser says of them whole.
    #[test]
    fn arbitrary_frames(
        choices in proptest::collection::vec(any::<u8>(), 0..900),
        which in 0u8..16,
        is_wide in any::<bool>(),
    ) {
        let rule = |bit: u8| which & 1 << bit != 0;
        let rules = Plain {
            own: OWN,
            addresses: rule(0).then(|| if is_wide { all() } else { named() }),
            clients: rule(1).then(|| (vec![ID.to_vec()], is_wide)),
            router_guard: rule(2),
            dhcp_guard: rule(3),
        };
        let mut dice = Dice(choices.iter());
        let frames: Vec<_> = (0..16).map(|_| dice.frame()).collect();
        let seen = outcomes(&rules, &frames);
        for (frame, seen) in frames.iter().zip(seen) {
            prop_assert_eq!(seen, refuses(&rules, frame), "{:02x?}", frame);
        }
    }

    /// The same for bytes that nobody arranged, behind the type of an IP packet or ARP.
    #[test]
    fn arbitrary_bytes(
        kind in proptest::sample::select(vec![ARP, IPV4, IPV6, 0x8100, 60]),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let [ip, dhcp, ..] = each();
        let rules = Plain { clients: dhcp.clients, router_guard: true, dhcp_guard: true, ..ip };
        let frame = ethernet(OTHER, OWN, &[], kind, &bytes);
        prop_assert_eq!(outcomes(&rules, std::slice::from_ref(&frame))[0], refuses(&rules, &frame));
    }
}
