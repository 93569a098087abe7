//! Overlays under attack: guests and hosts that forge, guess and flood.

use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use serde_json::json;
use windlass_overlay::{Vni, header};
use windlass_tests::{Daemon, Frame, Lab, Mac, Wire, frame, mac, until};

const ALL: Mac = [0xff; 6];
/// Guests of both tenants, and a host in the network of each.
const GUEST: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];
const FAR: [&str; 2] = ["06:00:00:00:00:02", "06:00:00:00:00:03"];
/// The network of each tenant, and its remote endpoint.
const NETWORKS: [(u32, &str); 2] = [(23, "192.0.2.2"), (24, "192.0.2.3")];
const LOCAL: &str = "192.0.2.1:4789";
/// Forged datagrams of one case, and how many are sent before the daemon has to have counted them.
const FORGED: u32 = 96_000;
const AT_ONCE: u32 = 8_000;
/// Memory that the daemon may take meanwhile, in KiB.
const MORE_KIB_MAX: u64 = 16 * 1024;

/// Two tenants at one underlay address, each with a guest and the endpoint of its own remote host.
struct Tenants {
    lab: Lab,
    daemon: Daemon,
    guests: [Wire; 2],
    endpoints: [UdpSocket; 2],
}

impl Tenants {
    /// With these properties of each overlay.
    fn start(name: &str, search: impl Fn(&Lab, usize) -> String) -> Option<Tenants> {
        let lab = Lab::start(name)?;
        lab.namespace("far");
        lab.underlay("far", &NETWORKS.map(|(_, address)| address));
        let daemon = lab.daemon();
        let guests = [0, 1].map(|at| {
            let search = search(&lab, at);
            let vni = NETWORKS[at].0;
            daemon.must(&format!(
                "overlay create ov{at} --vni {vni} --set vxlan/listen-ip=192.0.2.1 {search}"
            ));
            let (name, mac) = (format!("g{at}"), GUEST[at]);
            let netns = lab.namespace(&name);
            daemon.must(&format!(
                "vnic create {name} --over ov{at} --mac {mac} --attach tap,name=eth0,netns={netns}"
            ));
            daemon.wait_for_state("vnic", &name, "up");
            Wire::open(&lab, &name, "eth0")
        });
        let endpoints = NETWORKS.map(|(_, address)| {
            let socket = lab.within("far", || UdpSocket::bind((address, 0)));
            socket.expect("a socket")
        });
        Some(Tenants {
            lab,
            daemon,
            guests,
            endpoints,
        })
    }

    /// With everything flooded to the remote host of each.
    fn that_learn(name: &str) -> Option<Tenants> {
        let search =
            |_: &Lab, at: usize| format!("--search learn --set learn/remotes={}", NETWORKS[at].1);
        Tenants::start(name, search)
    }

    /// Sends a frame from a tenant's endpoint as one of a network.
    fn send(&self, at: usize, vni: u32, frame: &[u8]) {
        let head = header::encode(Vni::new(vni).expect("24 bits"));
        let to: SocketAddr = LOCAL.parse().expect("an address");
        let bytes = [&head[..], frame].concat();
        self.endpoints[at].send_to(&bytes, to).expect("sent");
    }

    /// Has a last frame come to a guest by the tunnel; the tests' frames that came before it.
    fn settle(&self, at: usize, text: &str) -> Vec<Frame> {
        self.send(
            at,
            NETWORKS[at].0,
            &frame(mac(GUEST[at]), mac(FAR[at]), &[], text),
        );
        self.guests[at].frames_until(text)
    }

    /// A number in the details of the first overlay.
    fn detail(&self, name: &str) -> u64 {
        let details = self.daemon.show("overlay", "ov0")["details"].take();
        details[name]
            .as_str()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    }

    /// Resident memory of the daemon in KiB.
    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        kib.expect("a number")
    }

    /// Sends many forged datagrams, and has all of them counted; memory stays bounded.
    fn flood(&self, send: impl Fn(u32), counted: impl Fn() -> u64) {
        let (before, kib) = (counted(), self.resident_kib());
        for n in 0..FORGED {
            send(n);
            if (n + 1).is_multiple_of(AT_ONCE) {
                until("all are counted", || counted() - before == u64::from(n + 1));
            }
        }
        let more = self.resident_kib().saturating_sub(kib);
        assert!(more < MORE_KIB_MAX, "{more} KiB");
    }
}

/// A guest, and a remote host, that guess addresses of another tenant's network reach nobody there, at one underlay address for both.
#[test]
fn a_neighbour_reaches_nobody() {
    let Some(tenants) = Tenants::that_learn("a_neighbour_reaches_nobody") else {
        return;
    };
    // All four have spoken: nothing is merely unknown.
    for (at, own) in GUEST.into_iter().enumerate() {
        tenants.guests[at].send(&frame(ALL, mac(own), &[], "here"));
        assert!(tenants.settle(at, "there").is_empty());
    }
    for to in [GUEST[0], FAR[0], "ff:ff:ff:ff:ff:ff", "01:00:5e:01:02:03"] {
        tenants.guests[1].send(&frame(mac(to), mac(GUEST[1]), &[], "guess"));
        tenants.send(
            1,
            NETWORKS[1].0,
            &frame(mac(to), mac(FAR[1]), &[], "of its own"),
        );
        tenants.send(
            1,
            NETWORKS[0].0,
            &frame(mac(to), mac(FAR[1]), &[], "of another"),
        );
    }
    assert_eq!(tenants.settle(0, "end"), []);
    until("what claims the other network is counted", || {
        tenants.daemon.drops("ov0", "vxlan-source") == 4
    });
    let own = tenants.settle(1, "end");
    assert!(
        own.iter()
            .all(|frame| frame.text().as_deref() == Some("of its own")),
        "{own:?}"
    );
    let rows = tenants.daemon.json("overlay target show ov0").to_string();
    assert!(!rows.contains(GUEST[1]) && !rows.contains(FAR[1]), "{rows}");
}

/// Datagrams of some hundred thousand networks that nobody has are counted, each of them.
#[test]
fn unknown_networks_cost_no_memory() {
    let Some(tenants) = Tenants::that_learn("unknown_networks_cost_no_memory") else {
        return;
    };
    let bytes = frame(ALL, mac(FAR[0]), &[], "unknown");
    tenants.flood(
        |n| tenants.send(0, 1000 + n, &bytes),
        || tenants.detail("unknown-vni-datagrams"),
    );
    assert_eq!(tenants.settle(0, "end"), []);
}

/// A remote host that speaks as some hundred thousand addresses fills the table of its own bridge to its limit. A guest's address and what a
/// person has entered stay, and no frame of it goes where it should not.
#[test]
fn forged_sources_stay_within_the_table() {
    let Some(tenants) = Tenants::that_learn("forged_sources_stay_within_the_table") else {
        return;
    };
    let known = "06:00:00:00:00:77";
    tenants
        .daemon
        .must(&format!("overlay target set ov0 {known} 192.0.2.2:4789"));
    let source = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        [6, 1, a, b, c, d]
    };
    // What is sent to one behind the same endpoint is learned from and goes nowhere.
    let far = mac(known);
    let received = || {
        tenants.daemon.counters("ov0")["rx_frames"]
            .as_u64()
            .unwrap_or(0)
    };
    tenants.flood(
        |n| tenants.send(0, 23, &frame(far, source(n), &[], "forged")),
        received,
    );
    let entries = tenants.daemon.json("fdb show ov0");
    let entries = entries.as_array().expect("rows");
    assert!(entries.len() <= 8_192, "{}", entries.len());
    for stays in [GUEST[0], known] {
        assert!(entries.iter().any(|entry| entry["mac"] == stays), "{stays}");
    }
    let came = tenants.settle(0, "end");
    assert!(came.is_empty(), "{} frames for nobody", came.len());
    assert_eq!(
        tenants.settle(1, "end"),
        [],
        "the other tenant hears nothing"
    );
}

/// A guest that sends to addresses without end, where a file knows all, sends nothing into the tunnel; each frame is a counted drop.
#[test]
fn sprayed_destinations_end_at_the_edge() {
    let Some(tenants) = Tenants::start("sprayed_destinations_end_at_the_edge", endpoints) else {
        return;
    };
    let before = tenants.daemon.counters("g0")["rx_frames"]
        .as_u64()
        .expect("a number");
    let sent = || {
        tenants.daemon.counters("ov0")["tx_frames"]
            .as_u64()
            .expect("a number")
    };
    let (tunnel, kib) = (sent(), tenants.resident_kib());
    for n in 0..FORGED {
        let [_, b, c, d] = n.to_be_bytes();
        let bytes = frame([6, 2, 0, b, c, d], mac(GUEST[0]), &[], "sprayed");
        // A TAP that is full drops, and says nothing.
        tenants.guests[0].try_send(&bytes).expect("sent");
    }
    let far = mac(FAR[0]);
    until("a frame to one that is known passes", || {
        tenants.guests[0].send(&frame(far, mac(GUEST[0]), &[], "known"));
        sent() > tunnel
    });
    let counters = tenants.daemon.counters("g0");
    let of = |name: &str| counters[name].as_u64().expect("a number");
    assert!(
        of("rx_frames") - before > u64::from(FORGED / 100),
        "{counters}"
    );
    assert!(
        of("rx_dropped") + 100 > of("rx_frames") - before,
        "{counters}"
    );
    assert!(sent() - tunnel < 100, "only those that are known");
    let more = tenants.resident_kib().saturating_sub(kib);
    assert!(more < MORE_KIB_MAX, "{more} KiB");
}

/// A tenant's search: a file with its remote host, which has 10.0.0.2 in the first network and 10.0.0.9 in the second.
fn endpoints(lab: &Lab, at: usize) -> String {
    let file = lab.directory().join(format!("endpoints{at}.json"));
    let address = ["10.0.0.2", "10.0.0.9"][at];
    let text = json!({FAR[at]: {"ip": NETWORKS[at].1, "arp": address}}).to_string();
    std::fs::write(&file, text).expect("a file");
    format!("--search files --set files/config={}", file.display())
}

/// An ARP request of a guest, for an address, in the name of a sender.
fn arp(from: Mac, (sender, address): (Mac, [u8; 4]), wanted: [u8; 4]) -> Vec<u8> {
    let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    let mut bytes = [&ALL[..], &from, &head, &sender, &address, &[0; 6], &wanted].concat();
    bytes.resize(60, 0);
    bytes
}

/// The address that an ARP reply to a guest tells for an IP address.
fn answer(guest: &Wire, asked: [u8; 4]) -> Option<Mac> {
    while let Some(Frame(bytes)) = guest.receive() {
        let is_reply = bytes.get(12..14) == Some(&[8, 6]) && bytes.get(20..22) == Some(&[0, 2]);
        if is_reply && bytes.get(28..32) == Some(&asked) {
            return bytes.get(22..28)?.first_chunk().copied();
        }
    }
    None
}

/// Questions that are cut off at any length, or for another tenant's address, are not answered; forged ones change no answer.
#[test]
fn forged_questions_change_no_answer() {
    let Some(tenants) = Tenants::start("forged_questions_change_no_answer", endpoints) else {
        return;
    };
    let guest = &tenants.guests[0];
    let (own, far) = (mac(GUEST[0]), mac(FAR[0]));
    let [mine, wanted, of_another] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 9]];
    let question = arp(own, (own, mine), wanted);
    for len in 14..42 {
        let done = guest.try_send(&question[..len]);
        assert!(done.is_ok(), "{len}: {done:?}");
    }
    // It says that the far host's address is its own, then that it is the far host.
    guest.send(&arp(own, (own, wanted), mine));
    guest.send(&arp(own, (own, wanted), wanted));
    guest.send(&arp(own, (far, wanted), mine));
    let spoofed = tenants.daemon.drops("g0", "mac-spoof");
    guest.send(&arp(far, (far, wanted), mine));
    until("it is dropped", || {
        tenants.daemon.drops("g0", "mac-spoof") == spoofed + 1
    });
    guest.send(&arp(own, (own, mine), of_another));
    assert_eq!(
        answer(guest, wanted),
        None,
        "nothing was asked rightly so far"
    );
    guest.send(&question);
    let mut told = None;
    until("it is answered", || {
        told = answer(guest, wanted);
        told.is_some()
    });
    assert_eq!(told, Some(far));
    assert_eq!(answer(guest, of_another), None);
    let heard = std::iter::from_fn(|| tenants.guests[1].receive());
    let heard: Vec<_> = heard.filter(|f| f.0[6..12] == own).collect();
    assert!(heard.is_empty(), "the other tenant heard {heard:?}");
}

/// Datagrams that the underlay cuts into fragments come whole. A frame that is too long for the network is dropped, and those behind it come.
#[test]
fn fragments_come_whole() {
    let Some(tenants) = Tenants::that_learn("fragments_come_whole") else {
        return;
    };
    tenants.lab.ip("far", "link set under0 mtu 600");
    set_ip_mtu_discover(&tenants.endpoints[0], Ipv4PathMtuDiscovery::DONT).expect("an option");
    let [own, far] = [mac(GUEST[0]), mac(FAR[0])];
    for len in [100, 700, 1_464] {
        let mut bytes = frame(own, far, &[], &format!("of {len}"));
        bytes.resize(len, 7);
        tenants.send(0, NETWORKS[0].0, &bytes);
        let came = tenants.settle(0, "next");
        assert!(came.len() == 1 && came[0].0 == bytes, "{len}: {came:?}");
    }
    let mut giant = frame(own, far, &[], "giant");
    giant.resize(9_000, 0);
    tenants.send(0, NETWORKS[0].0, &giant);
    assert_eq!(tenants.settle(0, "end"), []);
    assert_eq!(tenants.daemon.drops("ov0", "mtu"), 1);
}
