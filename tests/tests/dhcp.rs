//! Guests of overlays whose bridge answers DHCP clients and router solicitations: real clients, forged requests, a server of another host.

#[path = "../../crates/engines/nic/tests/packets/mod.rs"]
mod packets;

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use packets::*;
use serde_json::{Value, json};
use windlass_tests::{
    Daemon, Frame, Lab, Wire, frame, run, skip, until, until_some, write_program,
};

const A: Mac = [2, 0, 0, 0, 0, 0x0a];
const B: Mac = [2, 0, 0, 0, 0, 0x0b];
const FAR: &str = "02:00:00:00:02:02";
const FAR_MAC: Mac = [2, 0, 0, 0, 2, 2];
const ZERO: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// What the records of the guests say.
const A_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
const B_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const SERVED: &str =
    "proxy/subnet=10.0.0.0/24,fd00::/64,proxy/router=10.0.0.1,fe80::1,proxy/dns=10.0.0.53,fd00::53";

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host with an overlay that has a file of records, and a far host with a kernel's VXLAN device.
fn hosts(name: &str, records: &Value, proxy: &str) -> Option<(Lab, Daemon)> {
    let lab = Lab::start(name)?;
    lab.namespace("far");
    lab.underlay("far", &["192.0.2.2"]);
    lab.ip(
        "far",
        &format!(
            "link add vx0 address {FAR} mtu 1450 type vxlan id 23 dstport 4789 local 192.0.2.2 remote 192.0.2.1"
        ),
    );
    lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
    lab.ip("far", "link set vx0 up");
    lab.ip(
        "far",
        "neigh add 10.0.0.10 lladdr 02:00:00:00:00:0a dev vx0",
    );
    let file = lab.directory().join("endpoints.json");
    fs::write(&file, records.to_string()).expect("a file");
    let daemon = lab.daemon();
    daemon.must(&format!(
        "overlay create ov0 --vni 23 --search files --set vxlan/listen-ip=192.0.2.1,files/config={} --set proxy=arp,ndp,{proxy} --set {SERVED}",
        file.display()
    ));
    Some((lab, daemon))
}

/// The records of the guests, which live here, and of the far host.
fn records() -> Value {
    json!({
        "02:00:00:00:00:0a": {"ip": "192.0.2.1", "arp": "10.0.0.10", "ndp": "fd00::10"},
        "02:00:00:00:00:0b": {"ip": "192.0.2.1", "arp": "10.0.0.11", "ndp": "fd00::11"},
        FAR: {"ip": "192.0.2.2", "arp": "10.0.0.2"},
    })
}

fn guest(lab: &Lab, daemon: &Daemon, name: &str, mac: Mac, words: &str) {
    lab.namespace(name);
    let netns = lab.name(name);
    let last = mac[5];
    daemon.must(&format!(
        "vnic create {name}0 --over ov0 --mac 02:00:00:00:00:{last:02x} --attach tap,netns={netns},name=eth0 {words}"
    ));
    daemon.wait_for_state("vnic", &format!("{name}0"), "up");
}

/// A count of requests.
fn count(daemon: &Daemon, what: &str) -> u64 {
    let details = daemon.show("overlay", "ov0")["details"].take();
    let count = &details[format!("host-requests-{what}")];
    let count = count.as_str().unwrap_or_else(|| panic!("{details}"));
    count.parse().expect("a number")
}

/// A client with a script that does this when it has an address.
fn client(lab: &Lab, name: &str, words: &[&str], script: &str) -> Running {
    let file = lab.directory().join(words[0]);
    write_program(&file, &format!("#!/bin/sh\n{script}\n"));
    let mut command = lab.command(name, words[0]);
    command.args(&words[1..]).arg(&file);
    if words[0] == "dhclient" {
        command.arg("eth0");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("a client"))
}

/// Real clients and the kernel get what the record says: address, mask, router and MTU over IPv4, address over DHCPv6, router, prefix
/// and MTU by an advertisement. A guest that may use only what it was given reaches a far host then. A new MTU is advertised at once.
#[test]
fn real_clients_are_configured() {
    let name = "real_clients_are_configured";
    if run(Command::new("sh").args(["-c", "command -v busybox && command -v dhclient"])).code != 0 {
        return skip(name, "busybox or dhclient is missing");
    }
    let Some((lab, daemon)) = hosts(name, &records(), "dhcp,ra") else {
        return;
    };
    let learns = "--set ip-nospoof=on --set dynamic-methods=dhcpv4,dhcpv6";
    guest(&lab, &daemon, "a", A, learns);
    guest(&lab, &daemon, "b", B, "");
    let b = Wire::open(&lab, "b", "eth0");
    let ipv4 = "[ \"$1\" = bound ] && ip address add $ip/$mask dev $interface && ip link set $interface mtu $mtu && ip route add default via $router";
    let busybox = [
        "busybox", "udhcpc", "-f", "-t", "50", "-T", "1", "-i", "eth0", "-O", "mtu", "-s",
    ];
    let _udhcpc = client(&lab, "a", &busybox, ipv4);
    until("the guest has a router over IPv4", || {
        lab.ip("a", "route show default").contains("via 10.0.0.1")
    });
    let shown = lab.ip("a", "address show dev eth0");
    assert!(
        shown.contains("10.0.0.10/24") && shown.contains("mtu 1450"),
        "{shown}"
    );
    assert!(lab.ping("a", "10.0.0.2", 5));

    lab.within("a", || {
        for (of, value) in [
            ("all/disable_ipv6", "0"),
            ("eth0/accept_ra", "2"),
            ("eth0/disable_ipv6", "0"),
        ] {
            fs::write(format!("/proc/sys/net/ipv6/conf/{of}"), value).expect("IPv6");
        }
    });
    until("the guest has a router over IPv6", || {
        lab.ip("a", "-6 route show default").contains("via fe80::1")
    });
    let routes = lab.ip("a", "-6 route show");
    assert!(routes.contains("fd00::/64"), "{routes}");
    let mtu = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv6/conf/eth0/mtu");
        lab.within("a", read).expect("a number").trim().to_owned()
    };
    assert_eq!(mtu(), "1450");
    let leases = lab.directory().join("leases6");
    let leases = leases.display().to_string();
    let dhclient = ["dhclient", "-6", "-d", "--no-pid", "-lf", &leases, "-sf"];
    let ipv6 = "[ \"$reason\" = BOUND6 ] && ip -6 address add $new_ip6_address/128 dev $interface";
    let _dhclient = client(&lab, "a", &dhclient, ipv6);
    until("the guest has an address over IPv6", || {
        lab.ip("a", "-6 address show dev eth0")
            .contains("fd00::10/128")
    });
    daemon.must("overlay set ov0 mtu=1400");
    until("the new MTU is advertised", || mtu() == "1400");

    let answered = count(&daemon, "answered");
    assert!(answered >= 5, "{answered}");
    assert_eq!(
        (count(&daemon, "refused"), count(&daemon, "dropped")),
        (0, 0)
    );
    // Nobody else has heard of any of it.
    while let Some(frame) = b.receive() {
        assert!(!is_dhcp(&frame), "{frame:x?}");
    }
}

/// Two guests, the first with udhcpc, the second with dhclient, whose leases hold for 30 s; and what each client has said of its own.
struct Renewing {
    lab: Lab,
    _daemon: Daemon,
    udhcpc: Running,
    _dhclient: Running,
}

impl Renewing {
    fn start(name: &str) -> Option<Renewing> {
        let found =
            run(Command::new("sh").args(["-c", "command -v busybox && command -v dhclient"]));
        if found.code != 0 {
            skip(name, "busybox or dhclient is missing");
            return None;
        }
        let (lab, daemon) = hosts(name, &records(), "dhcp,ra")?;
        daemon.must("overlay set ov0 proxy/lease=30");
        guest(&lab, &daemon, "a", A, "");
        guest(&lab, &daemon, "b", B, "");
        // A client whose script fails gives its address back.
        let says = |name: &str, what: &str| {
            let log = lab.directory().join(format!("said-{name}"));
            format!("echo {what} >> {}", log.display())
        };
        let words = [
            "busybox", "udhcpc", "-f", "-t", "50", "-T", "1", "-i", "eth0", "-s",
        ];
        let set = "[ \"$1\" = bound ] && ip address add $ip/$mask dev $interface && ip route add default via $router";
        let script = format!("{}\n{set}\ntrue", says("a", "$1 $dns"));
        let udhcpc = client(&lab, "a", &words, &script);
        let leases = lab.directory().join("leases4");
        let leases = leases.display().to_string();
        let words = ["dhclient", "-4", "-d", "--no-pid", "-lf", &leases, "-sf"];
        let set = "[ \"$reason\" = BOUND ] && ip address add $new_ip_address/24 dev $interface && ip route add default via $new_routers";
        let script = format!(
            "{}\n{set}\ntrue",
            says("b", "$reason $new_domain_name_servers")
        );
        let dhclient = client(&lab, "b", &words, &script);
        let renewing = Renewing {
            lab,
            _daemon: daemon,
            udhcpc,
            _dhclient: dhclient,
        };
        until("both have their address", || {
            renewing.said("a").contains("bound") && renewing.said("b").contains("BOUND")
        });
        Some(renewing)
    }

    /// What became of a client's lease, each with the name server.
    fn said(&self, name: &str) -> String {
        let log = self.lab.directory().join(format!("said-{name}"));
        fs::read_to_string(log).unwrap_or_default()
    }
}

/// A client that renews its lease keeps it, and is told the name server with it.
#[test]
fn leases_are_renewed() {
    let Some(renewing) = Renewing::start("leases_are_renewed") else {
        return;
    };
    assert!(renewing.said("b").contains("BOUND 10.0.0.53"));
    let pid = renewing.udhcpc.0.id().to_string();
    run(Command::new("kill").args(["-USR1", &pid]));
    until("it has renewed", || {
        renewing.said("a").ends_with("renew 10.0.0.53\n")
    });
    assert_eq!(
        renewing.said("a"),
        "deconfig\nbound 10.0.0.53\nrenew 10.0.0.53\n"
    );
}

/// Real clients keep their addresses for longer than their leases hold, though what they send to the server by unicast is lost: each asks everybody in
/// time.
#[test]
#[ignore = "run by make soak"]
fn leases_outlive_their_time() {
    let Some(renewing) = Renewing::start("leases_outlive_their_time") else {
        return;
    };
    std::thread::sleep(Duration::from_secs(75));
    let (a, b) = (renewing.said("a"), renewing.said("b"));
    let renewals = b.matches("RENEW").count() + b.matches("REBIND").count();
    assert!(a.matches("renew").count() >= 2 && renewals >= 2, "{a}{b}");
    assert_eq!(a.matches("bound").count(), 1, "{a}");
    assert_eq!(b.matches("BOUND").count(), 1, "{b}");
}

/// Whether a frame is of a DHCP client or server.
fn is_dhcp(Frame(frame): &Frame) -> bool {
    let port = |at: usize| frame.get(at..at + 2).unwrap_or_default();
    match frame.get(12..14) {
        Some([8, 0]) => frame.get(23) == Some(&UDP) && (port(34) == [0, 67] || port(36) == [0, 67]),
        _ => frame.get(20) == Some(&UDP) && (port(54) == [2, 35] || port(56) == [2, 35]),
    }
}

/// A message of DHCPv4 in a frame of a guest.
fn asks(from: Mac, message: &[u8]) -> Vec<u8> {
    let packet = ipv4(ZERO, Ipv4Addr::BROADCAST, UDP, &udp(68, 67, message));
    ethernet(ALL, from, &[], IPV4, &packet)
}

/// A request for an address.
fn wants(xid: u32, chaddr: Mac, address: Ipv4Addr) -> Vec<u8> {
    let requested = [&[50, 4][..], &address.octets()].concat();
    asks(chaddr, &dhcp_of(3, xid, chaddr, ZERO, &requested))
}

/// An advertisement of a router, in a frame from this address.
fn advertises(from: Mac) -> Vec<u8> {
    let prefix = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 0);
    let message = router(134, &prefix_option(prefix, 64, 0xc0, 3600));
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let packet = ipv6(link_local(from), all, ICMP6, &message);
    ethernet([0x33, 0x33, 0, 0, 0, 1], from, &[], IPV6, &packet)
}

/// Transaction, type and address of the next answer to a guest.
fn answer(wire: &Wire) -> (u32, u8, Ipv4Addr) {
    until_some("an answer comes", || {
        let Frame(bytes) = wire.receive()?;
        let message = bytes
            .get(42..)
            .filter(|_| bytes[34..38] == [0, 67, 0, 68])?;
        let address = message[16..].first_chunk::<4>().expect("a message");
        let xid = message[4..].first_chunk::<4>().expect("a message");
        // The type is the first option.
        assert_eq!(message[240..242], [53, 1]);
        Some((u32::from_be_bytes(*xid), message[242], (*address).into()))
    })
}

/// All that a guest hears before a frame with a text.
fn heard_until(wire: &Wire, last: &str) -> Vec<Frame> {
    let mut heard = Vec::new();
    until("the last frame comes", || {
        while let Some(frame) = wire.receive() {
            if frame.text().as_deref() == Some(last) {
                return true;
            }
            heard.push(frame);
        }
        false
    });
    heard
}

/// A guest gets its own address and no other one, whatever it says it is; what is forged, cut off, in parts or of a relay has no answer and is counted, and
/// nobody else hears it. More than the rate is dropped.
#[test]
fn forgers_get_nothing() {
    let Some((lab, daemon)) = hosts("forgers_get_nothing", &records(), "dhcp,ra") else {
        return;
    };
    guest(&lab, &daemon, "a", A, "");
    guest(&lab, &daemon, "b", B, "--set allowed-ips=10.0.0.12");
    let [a, b] = ["a", "b"].map(|name| Wire::open(&lab, name, "eth0"));
    a.send(&wants(1, A, B_IP));
    assert_eq!(answer(&a), (1, 6, ZERO), "another's address");
    a.send(&wants(2, A, A_IP));
    assert_eq!(answer(&a), (2, 5, A_IP));
    // What the person says of a guest holds before the file.
    b.send(&wants(3, B, B_IP));
    assert_eq!(answer(&b), (3, 6, ZERO));
    b.send(&wants(4, B, Ipv4Addr::new(10, 0, 0, 12)));
    assert_eq!(answer(&b), (4, 5, Ipv4Addr::new(10, 0, 0, 12)));
    assert_eq!(
        (count(&daemon, "answered"), count(&daemon, "refused")),
        (2, 2)
    );

    let chaddr = asks(A, &dhcp_of(1, 5, B, ZERO, &[]));
    let mut relayed = wants(6, A, A_IP);
    relayed[42 + 24] = 10;
    let part = {
        let mut part = wants(7, A, A_IP);
        part[20] = 0x20;
        part
    };
    let short = wants(8, A, A_IP)[..100].to_vec();
    let giant = asks(A, &[dhcp_of(1, 9, A, ZERO, &[]), vec![0; 1000]].concat());
    let forged = [chaddr, relayed, part, short, giant];
    for bad in forged.iter().chain([&advertises(A)]) {
        a.send(bad);
        // Slower than the rate above which they are dropped unread.
        std::thread::sleep(Duration::from_millis(20));
    }
    until("all are dropped", || count(&daemon, "dropped") == 6);

    // Behind them all comes what is sent last.
    a.send(&frame(B, A, &[], "last"));
    let heard = heard_until(&b, "last");
    assert!(!heard.iter().any(is_dhcp), "{heard:x?}");
    assert!(
        !heard.iter().any(|Frame(frame)| frame.get(54) == Some(&134)),
        "{heard:x?}"
    );

    until("too many are dropped", || {
        (0..50).for_each(|xid| a.send(&wants(xid, A, A_IP)));
        daemon.drops("a0", "local-full") > 0
    });
}

/// A guest without a record asks everybody, as before, and so do all once the property is off. Routers behind an uplink are heard.
#[test]
fn strangers_ask_everybody() {
    let Some((lab, daemon)) = hosts("strangers_ask_everybody", &records(), "dhcp,ra") else {
        return;
    };
    guest(&lab, &daemon, "a", A, "");
    guest(&lab, &daemon, "b", B, "");
    let [a, b] = ["a", "b"].map(|name| Wire::open(&lab, name, "eth0"));
    guest(&lab, &daemon, "c", [2, 0, 0, 0, 0, 0x0c], "");
    let c = Wire::open(&lab, "c", "eth0");
    let request = wants(10, [2, 0, 0, 0, 0, 0x0c], A_IP);
    c.send(&request);
    until("everybody hears it", || {
        b.receive() == Some(Frame(request.clone()))
    });
    assert!(count(&daemon, "passed") >= 1);

    // What is behind an uplink has its own servers.
    let of_router = advertises([2, 0, 0, 0, 0, 0x0f]);
    lab.ip("host", "link add up0 type veth peer name up1");
    for end in ["up0", "up1"] {
        lab.ip("host", &format!("link set {end} up"));
    }
    daemon.must("uplink create u0 --bridge ov0 --device up0");
    daemon.wait_for_state("uplink", "u0", "up");
    let up = Wire::open(&lab, "host", "up1");
    until("everybody hears it", || {
        up.send(&of_router);
        std::iter::from_fn(|| b.receive()).any(|heard| heard == Frame(of_router.clone()))
    });

    // As much as it likes: what floods there keeps nobody else's from the guests.
    for xid in 0..300 {
        up.send(&wants(xid, [2, 0, 0, 0, 0, 0x0f], A_IP));
    }
    up.send(&frame(ALL, [2, 0, 0, 0, 0, 0x0f], &[], "last"));
    let heard = heard_until(&b, "last");
    assert_eq!(daemon.drops("u0", "local-full"), 0);
    assert!(heard.iter().any(is_dhcp), "{heard:x?}");

    daemon.must("overlay set ov0 proxy=arp,ndp");
    let request = wants(11, A, A_IP);
    until("everybody is asked again", || {
        a.send(&request);
        std::thread::sleep(Duration::from_millis(20));
        let mut heard = std::iter::from_fn(|| b.receive());
        heard.any(|heard| heard == Frame(request.clone()))
    });
}

/// A client whose record names a DHCP server is heard by that one alone: a guest beside it, or one behind the tunnel.
#[test]
fn a_server_is_asked_alone() {
    let mut records = records();
    records["02:00:00:00:00:0a"]["dhcp-proxy"] = json!(FAR);
    records["02:00:00:00:00:0b"]["dhcp-proxy"] = json!("02:00:00:00:00:0a");
    let Some((lab, daemon)) = hosts("a_server_is_asked_alone", &records, "dhcp") else {
        return;
    };
    guest(&lab, &daemon, "a", A, "");
    guest(&lab, &daemon, "b", B, "");
    let [a, b] = ["a", "b"].map(|name| Wire::open(&lab, name, "eth0"));
    let far = Wire::open(&lab, "far", "vx0");
    let to = |mac: Mac, mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&mac);
        Frame(frame)
    };
    b.send(&wants(1, B, B_IP));
    let asked = to(A, wants(1, B, B_IP));
    until("the server beside it is asked", || {
        a.receive() == Some(asked.clone())
    });
    a.send(&wants(2, A, A_IP));
    let asked = to(FAR_MAC, wants(2, A, A_IP));
    until("the far server is asked", || {
        far.receive() == Some(asked.clone())
    });
    a.send(&frame(B, A, &[], "last"));
    assert!(!heard_until(&b, "last").iter().any(is_dhcp));
    assert_eq!(
        (count(&daemon, "passed"), count(&daemon, "answered")),
        (2, 0)
    );
}
