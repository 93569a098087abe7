//! Multicast snooping with the sockets of kernels that join groups, and beside the Linux bridge as the querier.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::Value;
use windlass_tests::{Daemon, Frame, Lab, Wire, run, uninterrupted, until};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
const GROUP6_MAC: [u8; 6] = [0x33, 0x33, 0, 1, 0, 3];
const ALL_MAC: [u8; 6] = [1, 0, 0x5e, 0, 0, 251];
const PORT: u16 = 5_000;
/// Sockets of IPv6 take IPv4, too.
const PORT6: u16 = 5_001;
/// A frame that is in none of the queues any more did not come.
const SOON: Duration = Duration::from_millis(300);

/// A guest with a kernel of its own on the bridge br0: `guests[n]` has 10.9.0.n.
fn guest(lab: &Lab, daemon: &Daemon, name: &str, number: u8) -> Wire {
    with_ipv6(lab, name);
    let words = format!("--mac 02:00:00:00:00:0{number}");
    let address = format!(",address=10.9.0.{number}/24");
    daemon.tap(lab, &format!("{name}0"), name, &address, &words);
    lab.ip(name, "route add 224.0.0.0/4 dev eth0");
    Wire::open(lab, name, "eth0")
}

fn with_ipv6(lab: &Lab, name: &str) {
    lab.namespace(name);
    lab.within(name, || {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            std::fs::write(path, "0").expect("written");
        }
    });
}

fn index(lab: &Lab, name: &str) -> u32 {
    let shown = lab.ip(name, "-o link show dev eth0");
    let number = shown.split(':').next().expect("a number");
    number.trim().parse().expect("a number")
}

fn socket(lab: &Lab, name: &str, any: &str) -> UdpSocket {
    let port = if any == "::" { PORT6 } else { PORT };
    let at = SocketAddr::new(any.parse().expect("an address"), port);
    lab.within(name, || UdpSocket::bind(at).expect("bound"))
}

/// How many frames to an address came within [`SOON`] after the first, or at all.
fn heard(wire: &Wire, to: [u8; 6], patience: Duration) -> usize {
    let (begun, mut came) = (Instant::now(), 0);
    while begun.elapsed() < patience {
        match wire.receive() {
            Some(frame) if frame.0[..6] == to => came += 1,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    came
}

fn multicast(daemon: &Daemon) -> Value {
    daemon.show("bridge", "br0")["multicast"].take()
}

fn queriers(daemon: &Daemon) -> Vec<String> {
    let shown = multicast(daemon);
    let queriers = shown["queriers"].as_array().expect("a list");
    let queriers = queriers.iter().filter_map(Value::as_str);
    queriers.map(str::to_owned).collect()
}

fn are_snooped(daemon: &Daemon) -> bool {
    queriers(daemon).iter().all(|q| q.ends_with("; snooped"))
}

/// Members of a group.
fn members(daemon: &Daemon, group: &str) -> Vec<String> {
    let shown = multicast(daemon);
    let groups = shown["groups"].as_array().expect("a list");
    let group = groups.iter().find(|g| g["group"] == group);
    let members = group.and_then(|group| group["members"].as_object());
    members
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

fn port(daemon: &Daemon, member: &str) -> Value {
    let shown = multicast(daemon);
    let ports = shown["ports"].as_array().expect("a list");
    let port = ports.iter().find(|port| port["member"] == member);
    port.expect("a port").clone()
}

/// Receives the datagrams 0 to 9.
fn receives_ten(socket: &UdpSocket, what: &str) {
    let patience = Some(Duration::from_secs(5));
    socket.set_read_timeout(patience).expect("a time");
    for n in 0..10 {
        let mut got = [0];
        uninterrupted(|| socket.recv(&mut got))
            .unwrap_or_else(|error| panic!("{what} {n}: {error}"));
        assert_eq!(got, [n], "{what}");
    }
}

/// A group goes to guests whose kernels joined it, and to no others, over IPv4 and IPv6; who leaves gets it no more; all get
/// 224.0.0.0/24.
#[test]
fn groups_go_to_members_only() {
    let Some(lab) = Lab::start("groups_go_to_members_only") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must(
        "bridge create br0 --set multicast-snooping=on --set multicast-querier=on --set multicast-query-interval=4 \
         --set multicast-unknown=routers",
    );
    let _a = guest(&lab, &daemon, "a", 1);
    let b = guest(&lab, &daemon, "b", 2);
    let c = guest(&lab, &daemon, "c", 3);
    let sender = socket(&lab, "a", "10.9.0.1");
    sender.set_multicast_loop_v4(false).expect("set");
    let sender6 = socket(&lab, "a", "::");
    let (b4, b6) = (socket(&lab, "b", "0.0.0.0"), socket(&lab, "b", "::"));
    b4.join_multicast_v4(&GROUP, &Ipv4Addr::new(10, 9, 0, 2))
        .expect("joined");
    b6.join_multicast_v6(&GROUP6, index(&lab, "b"))
        .expect("joined");
    until("the bridge snoops", || are_snooped(&daemon));
    until("memberships", || {
        members(&daemon, "239.1.2.3") == ["b0"] && members(&daemon, "ff05::1:3") == ["b0"]
    });

    let to6 = std::net::SocketAddrV6::new(GROUP6, PORT6, 0, index(&lab, "a"));
    heard(&c, GROUP_MAC, SOON);
    for n in 0..10_u8 {
        sender.send_to(&[n], (GROUP, PORT)).expect("sent");
        sender6.send_to(&[n], to6).expect("sent");
        sender.send_to(&[n], ("224.0.0.251", PORT)).expect("sent");
    }
    receives_ten(&b4, "IPv4");
    receives_ten(&b6, "IPv6");
    // Everything came to the one that was sent last, too: the group for all was seen, the others were not.
    let mut came = [0; 3];
    let begun = Instant::now();
    while came[2] < 10 || begun.elapsed() < SOON {
        assert!(begun.elapsed() < Duration::from_secs(5), "{came:?}");
        let Some(frame) = c.receive() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let groups = [GROUP_MAC, GROUP6_MAC, ALL_MAC];
        if let Some(at) = groups.iter().position(|mac| frame.0[..6] == *mac) {
            came[at] += 1;
        }
    }
    assert_eq!(came, [0, 0, 10]);

    b4.leave_multicast_v4(&GROUP, &Ipv4Addr::new(10, 9, 0, 2))
        .expect("left");
    b6.leave_multicast_v6(&GROUP6, index(&lab, "b"))
        .expect("left");
    until("memberships end", || {
        members(&daemon, "239.1.2.3").is_empty() && members(&daemon, "ff05::1:3").is_empty()
    });
    heard(&b, GROUP_MAC, SOON);
    let before = daemon.drops("a0", "no-destination");
    sender.send_to(&[99], (GROUP, PORT)).expect("sent");
    until("nobody gets it", || {
        daemon.drops("a0", "no-destination") > before
    });
    assert_eq!(heard(&b, GROUP_MAC, SOON), 0);
}

/// Frames to the two groups that come before the next one that is for everybody.
fn groups_before_all(wire: &Wire) -> usize {
    let mut others = 0;
    until("what is for all", || {
        let Some(Frame(frame)) = wire.receive() else {
            return false;
        };
        let groups = [GROUP_MAC, [1, 0, 0x5e, 9, 9, 9]];
        others += usize::from(groups.iter().any(|group| frame[..6] == *group));
        frame[..6] == ALL_MAC
    });
    others
}

/// A bridge without VLANs snoops, and so does one with an overlay: who is not in a group does not get it, but remote hosts get all groups, and hear of our
/// receivers, though no router is known there.
#[test]
fn tunnels_get_all_groups_and_reports() {
    let Some(lab) = Lab::start("tunnels_get_all_groups_and_reports") else {
        return;
    };
    lab.namespace("far");
    lab.underlay("far", &["192.0.2.2"]);
    for words in [
        "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local 192.0.2.2 remote 192.0.2.1",
        "address add 10.9.0.8/24 dev vx0",
        "link set vx0 up",
        "route add 224.0.0.0/4 dev vx0",
    ] {
        lab.ip("far", words);
    }
    let far = Wire::open(&lab, "far", "vx0");
    let daemon = lab.daemon();
    daemon.must(
        "bridge create br0 --set vlan-filtering=off --set multicast-snooping=on --set multicast-querier=on \
         --set multicast-query-interval=4 --set multicast-unknown=routers",
    );
    daemon.must(
        "overlay create ov0 --bridge br0 --vni 23 --search direct --set vxlan/listen-ip=192.0.2.1,direct/dest-ip=192.0.2.2",
    );
    let _a = guest(&lab, &daemon, "a", 1);
    let _b = guest(&lab, &daemon, "b", 2);
    let c = guest(&lab, &daemon, "c", 3);
    until("the bridge snoops", || are_snooped(&daemon));
    let receiver = socket(&lab, "b", "0.0.0.0");
    receiver
        .join_multicast_v4(&GROUP, &Ipv4Addr::new(10, 9, 0, 2))
        .expect("joined");
    until("its membership", || members(&daemon, "239.1.2.3") == ["b0"]);
    let is_report = |Frame(frame): Frame| {
        let is_igmp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&2);
        is_igmp && frame.get(26..30) == Some(&[10, 9, 0, 2])
    };
    until("its report in the tunnel", || {
        far.receive().is_some_and(is_report)
    });

    let here = socket(&lab, "a", "10.9.0.1");
    let there = socket(&lab, "far", "10.9.0.8");
    heard(&c, ALL_MAC, SOON);
    for n in 0..10_u8 {
        here.send_to(&[n], (GROUP, PORT)).expect("sent");
    }
    receives_ten(&receiver, "from a neighbour");
    for n in 0..10_u8 {
        there.send_to(&[n], (GROUP, PORT)).expect("sent");
    }
    receives_ten(&receiver, "out of the tunnel");
    // A group that nobody here is in.
    here.send_to(&[1], ("239.9.9.9", PORT)).expect("sent");
    until("the far host gets it", || {
        let came = std::iter::from_fn(|| far.receive());
        let mut came = came.map(|Frame(frame)| frame);
        came.any(|frame| frame[..6] == [1, 0, 0x5e, 9, 9, 9])
    });
    here.send_to(&[2], ("224.0.0.251", PORT)).expect("sent");
    assert_eq!(groups_before_all(&c), 0);
}

/// A member that was put into a group gets it though its kernel joined nothing, in the VLAN that was named, after a leave and after a restart;
/// it is listed as permanent, and is out when it is taken out. What cannot be is refused, and so is more than the bridge has room for.
#[test]
fn members_are_put_into_groups() {
    let Some(lab) = Lab::start("members_are_put_into_groups") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must(
        "bridge create br0 --set multicast-snooping=on --set multicast-querier=on --set multicast-query-interval=4 \
         --set multicast-unknown=routers --set multicast-groups-max=3",
    );
    let _a = guest(&lab, &daemon, "a", 1);
    let b = guest(&lab, &daemon, "b", 2);
    let c = guest(&lab, &daemon, "c", 3);
    daemon.must("vnic set c0 tagged=10");
    daemon.must("bridge mdb add br0 239.1.2.3 b0");
    daemon.must("bridge mdb add br0 239.1.2.3 c0 --vlan 10");
    daemon.must("bridge mdb add br0 239.1.2.3 b0 --vlan 1 --may-exist");
    let told = daemon.refuses(5, "bridge mdb add br0 239.1.2.3 b0");
    assert!(told.contains("is in this group already"), "{told}");
    let told = daemon.refuses(1, "bridge mdb add br0 239.1.2.4 b0 --vlan 10");
    assert!(told.contains("does not have its VLAN"), "{told}");
    daemon.refuses(2, "bridge mdb add br0 224.0.0.251 b0");
    daemon.refuses(4, "bridge mdb add br1 239.1.2.3 b0");
    daemon.refuses(4, "bridge mdb delete br0 239.1.2.4 b0");
    daemon.must("bridge mdb add br0 239.1.2.5 a0");
    let told = daemon.refuses(1, "bridge mdb add br0 239.1.2.6 a0");
    assert!(told.contains("3 is less than the 4"), "{told}");
    daemon.must("bridge mdb delete br0 239.1.2.5 a0");
    let sender = socket(&lab, "a", "0.0.0.0");
    let send = || sender.send_to(&[7], (GROUP, PORT)).expect("sent");
    let check = |daemon: &Daemon, what: &str| {
        until("the bridge snoops", || are_snooped(daemon));
        let rows = daemon.json("bridge mdb show br0");
        let rows = rows.as_array().expect("rows").iter();
        let rows = rows.filter(|row| row["kind"] == "permanent" && row["group"] == "239.1.2.3");
        let rows: Vec<_> = rows
            .map(|row| format!("{} {}", row["vlan"], row["member"]))
            .collect();
        assert_eq!(rows, ["1 \"b0\"", "10 \"c0\""], "{what}");
        send();
        assert_eq!(heard(&b, GROUP_MAC, SOON), 1, "{what}");
        assert_eq!(heard(&c, GROUP_MAC, SOON), 0, "{what}");
    };
    check(&daemon, "put in");
    // Its kernel joins, and leaves.
    let socket = socket(&lab, "b", "0.0.0.0");
    let own = Ipv4Addr::new(10, 9, 0, 2);
    socket.join_multicast_v4(&GROUP, &own).expect("joined");
    socket.leave_multicast_v4(&GROUP, &own).expect("left");
    until("the leave was heard", || {
        port(&daemon, "b0")["reports"].as_u64() >= Some(2)
    });
    std::thread::sleep(Duration::from_secs(3));
    check(&daemon, "after a leave");
    assert!(
        daemon
            .must("bridge show br0")
            .contains("VLAN 1: b0 (permanent)")
    );
    daemon.terminate();
    daemon.start_again();
    daemon.wait_for_state("vnic", "b0", "up");
    check(&daemon, "after a restart");
    daemon.must("bridge mdb delete br0 239.1.2.3 b0 --vlan 1");
    daemon.must("bridge mdb delete br0 239.1.2.3 b0 --if-exists");
    send();
    assert_eq!(heard(&b, GROUP_MAC, SOON), 0);
}

/// A guest's query makes it no router and no querier, and reaches nobody.
#[test]
fn a_guest_is_no_router() {
    let Some(lab) = Lab::start("a_guest_is_no_router") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must(
        "bridge create br0 --set multicast-snooping=on --set multicast-querier=on --set multicast-query-interval=4",
    );
    let a = guest(&lab, &daemon, "a", 1);
    let c = guest(&lab, &daemon, "c", 3);
    until("the bridge snoops", || are_snooped(&daemon));
    // A guest's query: IGMPv2, from 10.9.0.3.
    let query = [
        &[1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 3, 8, 0][..],
        &[
            0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0xcf, 0xd3, 10, 9, 0, 3, 224, 0, 0, 1,
        ],
        &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0],
    ]
    .concat();
    c.send(&query);
    until("refused", || port(&daemon, "c0")["refused"] == 1);
    let shown = port(&daemon, "c0");
    assert_eq!(
        (&shown["router"], &shown["malformed"]),
        (&false.into(), &0.into())
    );
    assert!(queriers(&daemon).iter().all(|q| q.contains("this bridge")));
    let text = daemon.must("bridge show br0");
    assert!(
        text.contains("VLAN 1 IPv4: 0.0.0.0, this bridge; snooped"),
        "{text}"
    );
    while let Some(Frame(frame)) = a.receive() {
        assert_ne!(frame[..14], query[..14]);
    }
}

/// A namespace "k" behind the Linux bridge kb, which asks in the name of 10.9.0.254 and to which the uplink u0 leads.
fn linux_bridge(lab: &Lab, daemon: &Daemon) -> Wire {
    with_ipv6(lab, "k");
    let k = lab.name("k");
    for words in [
        "link add kb type bridge mcast_snooping 1 mcast_querier 1 mcast_query_use_ifaddr 1 mcast_query_interval 400 \
         mcast_query_response_interval 100 mcast_querier_interval 600",
        "address add 10.9.0.254/24 dev kb",
        "link add u0 type veth peer name u1",
        &format!("link add k1 type veth peer name eth0 netns {k}"),
        "link set u1 master kb",
        "link set k1 master kb",
    ] {
        lab.ip("host", words);
    }
    for link in ["kb", "u0", "u1", "k1"] {
        lab.ip("host", &format!("link set {link} up"));
    }
    for words in [
        "link set eth0 up",
        "address add 10.9.0.9/24 dev eth0",
        "route add 224.0.0.0/4 dev eth0",
    ] {
        lab.ip("k", words);
    }
    daemon.must("uplink create u0 --device u0 --bridge br0");
    daemon.wait_for_state("uplink", "u0", "up");
    Wire::open(lab, "k", "eth0")
}

/// The ports of the Linux bridge that are in the group.
fn linux_members(lab: &Lab) -> Vec<String> {
    let mut command = lab.command("host", "bridge");
    let shown = run(command.args(["mdb", "show", "dev", "kb"])).out;
    let lines = shown
        .lines()
        .filter(|line| line.contains(" grp 239.1.2.3 "));
    let port = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "port");
        words.nth(1).map(str::to_owned)
    };
    lines.filter_map(port).collect()
}

/// The Linux bridge is the querier: its port is where the router is. It hears of our receivers, and theirs are beyond the router; a
/// group goes over the cable for receivers only, and where its querier falls silent ours takes over.
#[test]
fn the_linux_bridge_queries() {
    let Some(lab) = Lab::start("the_linux_bridge_queries") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must(
        "bridge create br0 --set multicast-snooping=on --set multicast-querier=on --set multicast-query-interval=4 \
         --set multicast-unknown=routers --set multicast-querier-address=10.9.0.100",
    );
    let a = guest(&lab, &daemon, "a", 1);
    let b = guest(&lab, &daemon, "b", 2);
    let k = linux_bridge(&lab, &daemon);
    // 10.9.0.100 is lower than 10.9.0.254.
    let ours = "VLAN 1 IPv4: 10.9.0.100, this bridge; snooped";
    until("we query", || queriers(&daemon).iter().any(|q| q == ours));
    lab.ip("host", "address delete 10.9.0.254/24 dev kb");
    lab.ip("host", "address add 10.9.0.20/24 dev kb");
    let theirs = "VLAN 1 IPv4: 10.9.0.20 behind u0; snooped";
    // Linux asks once nobody else has for 6 s.
    daemon.must("bridge set br0 multicast-querier=off multicast-querier-address=10.9.0.30");
    until("they query", || {
        queriers(&daemon).iter().any(|q| q == theirs)
    });
    daemon.must("bridge set br0 multicast-querier=on");
    until("a router is there", || {
        port(&daemon, "u0")["router"] == true
    });

    // Our receiver is known there, and only there: reports go to routers.
    let a4 = socket(&lab, "a", "0.0.0.0");
    a4.join_multicast_v4(&GROUP, &Ipv4Addr::new(10, 9, 0, 1))
        .expect("joined");
    until("it is known on both sides", || {
        members(&daemon, "239.1.2.3") == ["a0"] && linux_members(&lab) == ["u1"]
    });
    let sender = socket(&lab, "k", "10.9.0.9");
    heard(&b, GROUP_MAC, SOON);
    (0..10_u8).for_each(|n| {
        sender.send_to(&[n], (GROUP, PORT)).expect("sent");
    });
    receives_ten(&a4, "from the Linux bridge");
    assert_eq!(heard(&b, GROUP_MAC, SOON), 0);

    // A group that nobody asked for goes to the router, and ends there.
    let sender = socket(&lab, "b", "10.9.0.2");
    heard(&a, [1, 0, 0x5e, 9, 9, 9], SOON);
    let before = daemon.counters("u0")["tx_frames"].as_u64();
    sender.send_to(&[1], ("239.9.9.9", PORT)).expect("sent");
    until("it went to the router", || {
        daemon.counters("u0")["tx_frames"].as_u64() > before
    });
    assert_eq!(heard(&a, [1, 0, 0x5e, 9, 9, 9], SOON), 0);
    drop(k);

    // They fall silent.
    lab.ip("host", "link set kb type bridge mcast_querier 0");
    let ours = "VLAN 1 IPv4: 10.9.0.30, this bridge; snooped";
    until("we query again", || {
        queriers(&daemon).iter().any(|q| q == ours)
    });
    assert_eq!(members(&daemon, "239.1.2.3"), ["a0"]);
}
