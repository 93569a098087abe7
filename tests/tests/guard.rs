//! What a guest may not say it is: addresses, neighbours, DHCP clients and servers, routers.

#[path = "../../crates/engines/nic/tests/packets/mod.rs"]
mod packets;

use std::net::{Ipv4Addr, Ipv6Addr};

use packets::*;
use windlass_tests::{Daemon, Frame, Lab, Wire, frame, until};

const A: Mac = [2, 0, 0, 0, 0, 0x0a];
const B: Mac = [2, 0, 0, 0, 0, 0x0b];
const NAMED: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const ZERO: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const NAMED6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const TAG: [u8; 4] = [0x81, 0, 0, 7];
const ALLOWED: &str = "allowed-ips=10.1.0.1,fd00::1";

/// Guests a, with these words, and b.
fn guests(lab: &Lab, words: &str) -> (Daemon, Wire, Wire) {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, last, words) in [("a", "0a", words), ("b", "0b", "")] {
        lab.namespace(guest);
        let words = format!("--mac 02:00:00:00:00:{last} {words}");
        daemon.tap(lab, &format!("{guest}0"), guest, "", &words);
    }
    let [a, b] = ["a", "b"].map(|guest| Wire::open(lab, guest, "eth0"));
    (daemon, a, b)
}

/// All frames of a that have come to b, up to one with this text.
fn until_end(b: &Wire, end: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    until("the last frame comes", || {
        while let Some(frame) = b.receive() {
            if frame.text().as_deref() == Some(end) {
                return true;
            }
            frames.push(frame);
        }
        false
    });
    frames.retain(|frame| frame.0[6..12] == A);
    frames
}

fn v4(src: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(B, A, &[], IPV4, &ipv4(src, OTHER, proto, payload))
}

fn v6(src: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(B, A, &[], IPV6, &ipv6(src, NODES, next, payload))
}

fn claims(operation: u16, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    ethernet(ALL, A, &[], ARP, &arp(operation, sender, ([0; 6], target)))
}

fn tagged(tags: &[[u8; 4]], src: Ipv4Addr) -> Vec<u8> {
    ethernet(B, A, tags, IPV4, &ipv4(src, OTHER, TCP, &tcp()))
}

fn advertises(whose: Ipv6Addr, link: Mac) -> Vec<u8> {
    v6(NAMED6, ICMP6, &neighbour(136, whose, &link_option(2, link)))
}

/// By reason, frames that a guest may not send.
fn spoofed() -> [(&'static str, Vec<Vec<u8>>); 4] {
    let asks = |chaddr, options: &[u8]| v4(ZERO, UDP, &udp(68, 67, &dhcp(1, chaddr, options)));
    let far = [vec![0; 300], client_id(1, &B)].concat();
    let duid = client_duid(&duid_ll(B));
    let router = router(134, &link_option(1, A));
    let ip = vec![
        v4(OTHER, TCP, &tcp()),
        v6(OTHER6, TCP, &tcp()),
        v6(NAMED.to_ipv6_mapped(), TCP, &tcp()),
        v6(link_local(B), TCP, &tcp()),
        claims(2, (A, OTHER), NAMED),
        claims(1, (A, OTHER), OTHER),
        claims(2, (B, NAMED), OTHER),
        advertises(OTHER6, A),
        advertises(NAMED6, B),
        v6(NAMED6, 60, &extension(ICMP6, &neighbour(136, OTHER6, &[]))),
        tagged(&[TAG, TAG], OTHER),
        v4(NAMED, TCP, &tcp())[..40].to_vec(),
    ];
    let dhcp_spoofs = vec![
        asks(B, &[255]),
        asks(A, &client_id(1, &B)),
        asks(A, &far),
        v6(link_local(A), UDP, &udp(546, 547, &dhcp6(1, &duid))),
    ];
    let routers = vec![
        v6(link_local(A), ICMP6, &router),
        v6(link_local(A), 0, &extension(ICMP6, &router)),
        v6(link_local(A), ICMP6, &icmp(137, &[0; 36])),
        v4(NAMED, ICMP, &icmp(5, &[0; 4])),
    ];
    let servers = vec![
        v4(NAMED, UDP, &udp(67, 68, &dhcp(2, B, &[255]))),
        v6(link_local(A), UDP, &udp(547, 546, &dhcp6(7, &duid))),
    ];
    [
        ("ip-spoof", ip),
        ("dhcp-spoof", dhcp_spoofs),
        ("router-guard", routers),
        ("dhcp-guard", servers),
    ]
}

/// What a guest that is what it says sends.
fn honest() -> Vec<Vec<u8>> {
    let options = [client_id(1, &A), vec![255]].concat();
    let duid = client_duid(&duid_llt(A));
    vec![
        v4(NAMED, TCP, &tcp()),
        v6(NAMED6, TCP, &tcp()),
        v6(link_local(A), TCP, &tcp()),
        claims(1, (A, NAMED), OTHER),
        claims(1, (A, NAMED), NAMED),
        claims(1, (A, ZERO), NAMED),
        advertises(NAMED6, A),
        v4(ZERO, UDP, &udp(68, 67, &dhcp(1, A, &options))),
        v6(link_local(A), UDP, &udp(546, 547, &dhcp6(1, &duid))),
    ]
}

/// Each spoofed frame reaches nobody and is counted under its reason, and with the checks off all of them pass; what the guest may
/// send passes either way, byte for byte. Two honest tags are the bridge's to refuse.
#[test]
fn a_guest_is_what_it_says() {
    let Some(lab) = Lab::start("a_guest_is_what_it_says") else {
        return;
    };
    let on = "--set dhcp-nospoof=on --set router-guard=on --set dhcp-guard=on";
    let (daemon, a, b) = guests(&lab, &format!("--set {ALLOWED} {on}"));
    for (reason, frames) in spoofed() {
        frames.iter().for_each(|bytes| a.send(bytes));
        let n = frames.len() as u64;
        until(reason, || daemon.drops("a0", reason) == n);
    }
    a.send(&tagged(&[TAG, TAG], NAMED));
    until("two tags", || daemon.drops("a0", "vlan-tag") == 1);
    let honest = honest();
    honest.iter().for_each(|bytes| a.send(bytes));
    a.send(&frame(B, A, &[], "first"));
    let came = until_end(&b, "first");
    for bytes in &honest {
        assert!(came.contains(&Frame(bytes.clone())), "{bytes:02x?}");
    }
    for (reason, frames) in spoofed() {
        for bytes in frames {
            assert!(!came.contains(&Frame(bytes)), "{reason}");
        }
        assert!(daemon.drops("a0", reason) > 0);
    }

    daemon.must(
        "vnic set a0 ip-nospoof=off dhcp-nospoof=off router-guard=off dhcp-guard=off mac-nospoof=off",
    );
    let untagged = |bytes: &&Vec<u8>| bytes[12..14] != TAG[..2];
    let frames = spoofed().map(|(_, frames)| frames).concat();
    let frames: Vec<_> = frames.iter().filter(untagged).collect();
    frames.iter().for_each(|bytes| a.send(bytes));
    a.send(&frame(B, A, &[], "second"));
    let came = until_end(&b, "second");
    for bytes in frames {
        assert!(came.contains(&Frame(bytes.clone())), "off: {bytes:02x?}");
    }
}

/// The checks have dladm's order: a frame that several would refuse is counted once, as the first says.
#[test]
fn checks_have_an_order() {
    let Some(lab) = Lab::start("checks_have_an_order") else {
        return;
    };
    let on = "--set restricted=on --set dhcp-nospoof=on --set dhcp-guard=on";
    let (daemon, a, _b) = guests(&lab, &format!("--set {ALLOWED} {on}"));
    let ask = udp(68, 67, &dhcp(1, B, &[255]));
    let stranger = ethernet(B, [2, 0, 0, 0, 0, 9], &[], 0x88cc, b"lldp");
    let cases = [
        ("mac-spoof", stranger, "mac-nospoof"),
        (
            "restricted",
            ethernet(B, A, &[], 0x88cc, b"lldp"),
            "restricted",
        ),
        ("ip-spoof", v4(OTHER, UDP, &ask), "ip-nospoof"),
        ("dhcp-spoof", v4(OTHER, UDP, &ask), "dhcp-nospoof"),
    ];
    for (reason, bytes, rule) in &cases {
        a.send(bytes);
        until(reason, || daemon.drops("a0", reason) == 1);
        daemon.must(&format!("vnic set a0 {rule}=off"));
    }
    for (reason, ..) in cases {
        assert_eq!(daemon.drops("a0", reason), 1, "{reason}");
    }
}

/// Guests whose kernels use the named addresses reach each other over IPv4 and IPv6, and nothing of theirs is dropped: ARP,
/// duplicate address detection, solicitations. From an address that is not named nobody is reached.
#[test]
fn honest_kernels_notice_nothing() {
    let Some(lab) = Lab::start("honest_kernels_notice_nothing") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, number) in [("a", 1), ("b", 2)] {
        lab.namespace(guest);
        let speaks = lab.within(guest, || {
            ["all", "default"].into_iter().try_for_each(|name| {
                let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
                std::fs::write(path, "0")
            })
        });
        speaks.expect("IPv6");
        let words = format!(
            "--set allowed-ips=10.1.0.{number},fd00::{number} --set restricted=on --set dhcp-nospoof=on \
             --set router-guard=on --set dhcp-guard=on"
        );
        let address = format!(",address=10.1.0.{number}/24");
        daemon.tap(&lab, &format!("{guest}0"), guest, &address, &words);
        lab.ip(guest, &format!("address add fd00::{number}/64 dev eth0"));
    }
    assert!(lab.ping("a", "10.1.0.2", 5) && lab.ping("b", "10.1.0.1", 5));
    for guest in ["a", "b"] {
        until("addresses are no duplicates", || {
            lab.ip(guest, "-6 address show tentative").is_empty()
        });
        let duplicates = lab.ip(guest, "-6 address show dadfailed");
        assert_eq!(duplicates, "");
    }
    assert!(lab.ping("a", "fd00::2", 5) && lab.ping("b", "fd00::1", 5));
    for member in ["a0", "b0"] {
        let counters = daemon.counters(member);
        for reason in [
            "mac-spoof",
            "restricted",
            "ip-spoof",
            "dhcp-spoof",
            "router-guard",
            "dhcp-guard",
        ] {
            assert!(counters["drops"][reason].is_null(), "{counters}");
        }
    }
    lab.ip("a", "address del 10.1.0.1/24 dev eth0");
    lab.ip("a", "address add 10.1.0.3/24 dev eth0");
    assert!(!lab.ping("a", "10.1.0.2", 1));
    assert!(daemon.drops("a0", "ip-spoof") > 0);
    daemon.must("vnic set a0 allowed-ips=10.1.0.3,fd00::1");
    assert!(lab.ping("a", "10.1.0.2", 5));
}

/// Lists are shown as they hold; what is no list is refused with its entry.
#[test]
fn lists_are_checked() {
    let Some(lab) = Lab::start("lists_are_checked") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create v0 --bridge br0 --set allowed-ips=10.1.0.1/32,FD00::/64 --set allowed-dhcp-cids=one,0x01ff");
    let shown = daemon.json("vnic show v0")[0]["properties"].clone();
    assert_eq!(shown["allowed-ips"], "10.1.0.1,fd00::/64");
    assert_eq!(shown["allowed-dhcp-cids"], "one,0x01ff");
    for bad in ["10.1.0.1/24", "ten", "::ffff:10.1.0.1"] {
        let told = daemon.refuses(2, &format!("vnic set v0 allowed-ips={bad}"));
        assert!(told.contains(bad), "{told}");
    }
    daemon.must("vnic set v0 allowed-ips=auto");
    let shown = daemon.json("vnic show v0")[0]["properties"].clone();
    assert!(shown["allowed-ips"].is_null(), "{shown}");
}
