//! Spanning tree with real links: windlass alone, and beside the Linux bridge's STP and Open vSwitch's RSTP.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use windlass_tests::{Daemon, Lab, Ovs, Wire, frame, mac, until};

/// The shortest times that table 17-1 of IEEE 802.1D-2004 allows.
const TIMES: &str = "max-age=6 hello=1 forward-delay=4";
/// Max age, two forward delays, and four of the longest hello (Open vSwitch's 2 s): see the user guide.
const BOUND: Duration = Duration::from_secs(6 + 2 * 4 + 4 * 2);

/// The host at Open vSwitch.
const OVS_HOST: &str = "h3";

/// A daemon with the bridges br0 and br1, which have spanning trees.
fn two_bridges(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    let times: String = TIMES
        .split(' ')
        .map(|time| format!(" --set {time}"))
        .collect();
    for (bridge, priority) in [("br0", 4096), ("br1", 8192)] {
        daemon.must(&format!(
            "bridge create {bridge} --set stp=on --set priority={priority}{times}"
        ));
    }
    daemon
}

/// A TAP of a guest in a namespace of its own, on a bridge.
fn guest(lab: &Lab, daemon: &Daemon, name: &str, bridge: &str) -> Wire {
    let netns = lab.namespace(name);
    daemon.must(&format!(
        "vnic create {name} --bridge {bridge} --attach tap,name=eth0,netns={netns} --set mac-nospoof=off"
    ));
    daemon.wait_for_state("vnic", name, "up");
    Wire::open(lab, name, "eth0")
}

fn uplink(daemon: &Daemon, device: &str, bridge: &str) {
    daemon.must(&format!(
        "uplink create {device} --device {device} --bridge {bridge}"
    ));
    daemon.wait_for_state("uplink", device, "up");
}

/// What `uplink show` says of a member's part in the tree.
fn part(daemon: &Daemon, uplink: &str) -> String {
    let view = daemon.show("uplink", uplink);
    view["details"]["stp"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Broadcasts that are counted where they arrive.
struct Probes {
    wires: BTreeMap<&'static str, Wire>,
    sent: u64,
}

impl Probes {
    /// Sends a broadcast from one host; how many copies of it and of those before came to each other host meanwhile.
    fn send(&mut self, from: &str, wait: Duration) -> BTreeMap<&'static str, usize> {
        self.sent += 1;
        let text = format!("probe {}", self.sent);
        let source = mac("02:00:00:00:00:ee");
        self.wires[from].send(&frame([0xff; 6], source, &[], &text));
        std::thread::sleep(wait);
        let mut came = BTreeMap::new();
        for (host, wire) in &self.wires {
            let frames = wire.frames_during(Duration::from_millis(2));
            let mut copies: BTreeMap<String, usize> = BTreeMap::new();
            for text in frames.iter().filter_map(|frame| frame.text()) {
                *copies.entry(text).or_default() += 1;
            }
            let most = copies.values().max().copied().unwrap_or(0);
            // Open vSwitch agrees before its flows know that a port is closed: one frame may come by the old way, too, to its host
            // alone. In a loop it comes without end.
            let copies_max = if *host == OVS_HOST { 2 } else { 1 };
            assert!(most <= copies_max, "{copies:?} at {host}: a loop");
            came.insert(*host, copies.get(&text).copied().unwrap_or(0));
        }
        came
    }

    /// Sends until a broadcast comes once to every other host; how long that took.
    fn reach_all(&mut self, from: &str, bound: Duration) -> Duration {
        let begun = Instant::now();
        loop {
            let came = self.send(from, Duration::from_millis(40));
            if came
                .iter()
                .all(|(host, copies)| *host == from || *copies >= 1)
            {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < bound,
                "after {:?}: {came:?}",
                begun.elapsed()
            );
        }
    }
}

/// Two bridges with two cables between them: one forwards. When it is cut the other one takes over, and back. A guest's BPDUs
/// change nothing; with `bpdu-guard` they close its member.
#[test]
fn two_cables_are_no_loop() {
    let Some(lab) = Lab::start("two_cables_are_no_loop") else {
        return;
    };
    let daemon = two_bridges(&lab);
    for pair in ["x", "y"] {
        lab.ip(
            "host",
            &format!("link add {pair}0 type veth peer name {pair}1"),
        );
        for end in ["0", "1"] {
            lab.ip("host", &format!("link set {pair}{end} up"));
        }
        for end in ["0", "1"] {
            let device = format!("{pair}{end}");
            uplink(&daemon, &device, &format!("br{end}"));
        }
    }
    let a = guest(&lab, &daemon, "a0", "br0");
    let b = guest(&lab, &daemon, "b0", "br1");
    let mut probes = Probes {
        wires: BTreeMap::from([("a", a), ("b", b)]),
        sent: 0,
    };
    println!("at first {:?}", probes.reach_all("a", BOUND));
    until("one port is closed", || {
        part(&daemon, "y1").starts_with("alternate discarding")
    });
    assert!(
        part(&daemon, "x1").starts_with("root forwarding"),
        "{}",
        part(&daemon, "x1")
    );
    let tree = daemon.show("bridge", "br1")["tree"].take();
    assert_eq!(tree["root_port"], "x1", "{tree}");
    let port = &tree["ports"][1];
    assert_eq!(
        (&port["member"], &port["malformed"]),
        (&"y1".into(), &0.into())
    );
    assert_eq!(port["part"], "alternate discarding", "{tree}");
    assert!(
        port["received"].as_u64() > Some(0) && port["sent"].as_u64() > Some(0),
        "{tree}"
    );
    for up in ["down", "up"] {
        lab.ip("host", &format!("link set x0 {up}"));
        let time = probes.reach_all("b", BOUND);
        println!("x {up}: {time:?}");
        // Nobody waits for hellos that do not come; the first one after a mend may be lost, and the next ones come in a second.
        let time_max = if up == "down" { 1 } else { 3 };
        assert!(time < Duration::from_secs(time_max), "x {up}: {time:?}");
    }
    until("x is used again", || {
        part(&daemon, "x1").starts_with("root forwarding")
    });
    a_guest_speaks(&daemon, &mut probes);
    // Without spanning tree every member forwards.
    daemon.must("uplink delete y0");
    daemon.must("bridge set br0 stp=off");
    probes.reach_all("a", BOUND);
}

/// A daemon that takes another one's place goes on with its trees: no port stops, beside a neighbour with which that would take two forward
/// delays.
#[test]
fn an_upgrade_is_no_change_of_topology() {
    let Some(lab) = Lab::start("an_upgrade_is_no_change_of_topology") else {
        return;
    };
    lab.namespace("linux");
    let mut daemon = two_bridges(&lab);
    lab.ip(
        "linux",
        "link add l0 type bridge stp_state 1 forward_delay 400 hello_time 100 max_age 600 priority 0",
    );
    lab.ip("linux", "link set l0 up");
    cable(&lab, "host", "c0", "linux", "l1");
    lab.ip("linux", "link set l1 master l0");
    uplink(&daemon, "c0", "br0");
    lab.namespace("far");
    cable(&lab, "far", "eth0", "linux", "l2");
    lab.ip("linux", "link set l2 master l0");
    let mut probes = Probes {
        wires: BTreeMap::from([
            ("near", guest(&lab, &daemon, "a0", "br0")),
            ("far", Wire::open(&lab, "far", "eth0")),
        ]),
        sent: 0,
    };
    probes.reach_all("near", BOUND);
    let before = part(&daemon, "c0");
    assert!(
        before.starts_with("root forwarding, speaks STP"),
        "{before}"
    );
    daemon.upgrade();
    let gap = probes.reach_all("near", BOUND);
    assert!(gap < Duration::from_secs(1), "{gap:?}: {}", daemon.log());
    assert_eq!(part(&daemon, "c0"), before);
    // The engine works: what it hears keeps it from taking itself for the root.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(part(&daemon, "c0"), before);
    probes.reach_all("far", Duration::from_secs(1));
    assert!(!daemon.log().contains("begins anew"), "{}", daemon.log());
}

/// A superior configuration BPDU of the guest a0, without and with a guard.
fn a_guest_speaks(daemon: &Daemon, probes: &mut Probes) {
    let mut bpdu = mac("01:80:c2:00:00:00").to_vec();
    bpdu.extend(mac("02:00:00:00:00:ee"));
    bpdu.extend([0, 38, 0x42, 0x42, 3, 0, 0, 0, 0, 0]);
    bpdu.extend([[0; 8].as_slice(), &[0; 4], &[0; 8], &[0x80, 1]].concat());
    bpdu.extend([0, 0, 20, 0, 2, 0, 15, 0]);
    bpdu.resize(60, 0);
    let before = part(daemon, "x1");
    probes.wires["a"].send(&bpdu);
    until("it is heard", || {
        daemon.show("vnic", "a0")["details"]["heard"] == "stp 1"
    });
    probes.reach_all("a", Duration::from_secs(2));
    assert_eq!(part(daemon, "x1"), before);
    daemon.must("vnic set a0 bpdu-guard=on");
    probes.reach_all("a", Duration::from_secs(2));
    probes.wires["a"].send(&bpdu);
    until("the guard closes it", || {
        let view = daemon.show("vnic", "a0");
        view["details"]["stp"]
            .as_str()
            .unwrap_or_default()
            .contains("closed by bpdu-guard")
    });
    let blocked = daemon.drops("a0", "blocked");
    assert_eq!(probes.send("a", Duration::from_millis(200))["b"], 0);
    until("it is counted", || daemon.drops("a0", "blocked") > blocked);
    daemon.must("vnic set a0 bpdu-guard=off");
    probes.reach_all("a", BOUND);
}

/// Four switches: br0 and br1 of windlass, a Linux bridge, Open vSwitch; a cable between every two of them.
struct Mesh {
    daemon: Daemon,
    _ovs: Ovs,
    probes: Probes,
    /// Namespace and interface of one end of each cable, the switches at its ends, and whether it is whole.
    cables: Vec<(&'static str, String, (usize, usize), bool)>,
}

/// The namespace of each switch.
const WHERE: [&str; 4] = ["host", "host", "linux", "ovs"];

impl Mesh {
    fn new(lab: &Lab) -> Mesh {
        lab.namespace("linux");
        lab.namespace("ovs");
        let daemon = two_bridges(lab);
        let ovs = Ovs::start(lab, "ovs");
        lab.ip(
            "linux",
            "link add l0 type bridge stp_state 1 forward_delay 400 hello_time 100 max_age 600 priority 12288",
        );
        lab.ip("linux", "link set l0 up");
        ovs.must(
            "add-br o0 -- set bridge o0 datapath_type=netdev rstp_enable=true other_config:rstp-priority=16384 other_config:rstp-max-age=6 other_config:rstp-forward-delay=4",
        );
        let mut cables = Vec::new();
        let mut wires = BTreeMap::new();
        let join = |switch: usize, device: &str| match switch {
            0 | 1 => uplink(&daemon, device, &format!("br{switch}")),
            2 => drop(lab.ip("linux", &format!("link set {device} master l0"))),
            _ => drop(ovs.must(&format!("add-port o0 {device}"))),
        };
        for (one, near_netns) in WHERE.into_iter().enumerate() {
            for (two, far_netns) in WHERE.into_iter().enumerate().skip(one + 1) {
                let (near, far) = (format!("c{one}{two}"), format!("c{two}{one}"));
                cable(lab, near_netns, &near, far_netns, &far);
                join(one, &near);
                join(two, &far);
                cables.push((near_netns, near, (one, two), true));
            }
        }
        wires.insert("a0", guest(lab, &daemon, "a0", "br0"));
        wires.insert("b0", guest(lab, &daemon, "b0", "br1"));
        for (switch, host) in [(2, "h2"), (3, OVS_HOST)] {
            lab.namespace(host);
            cable(lab, host, "eth0", WHERE[switch], host);
            join(switch, host);
            wires.insert(host, Wire::open(lab, host, "eth0"));
        }
        Mesh {
            daemon,
            _ovs: ovs,
            probes: Probes { wires, sent: 0 },
            cables,
        }
    }

    /// Whether the whole cables connect all switches.
    fn is_connected(&self) -> bool {
        let mut seen = [true, false, false, false];
        for _ in 0..4 {
            for (_, _, (one, two), whole) in &self.cables {
                if *whole && (seen[*one] || seen[*two]) {
                    (seen[*one], seen[*two]) = (true, true);
                }
            }
        }
        seen == [true; 4]
    }

    /// Cuts or mends a cable, unless that would part the switches.
    fn turn(&mut self, lab: &Lab, at: usize) -> bool {
        let whole = !self.cables[at].3;
        self.cables[at].3 = whole;
        if !self.is_connected() {
            self.cables[at].3 = !whole;
            return false;
        }
        let (short, device, ..) = &self.cables[at];
        let state = if whole { "up" } else { "down" };
        lab.ip(short, &format!("link set {device} {state}"));
        true
    }
}

fn cable(lab: &Lab, one: &str, near: &str, two: &str, far: &str) {
    let other = lab.name(two);
    lab.ip(
        one,
        &format!("link add {near} type veth peer name {far} netns {other}"),
    );
    lab.ip(one, &format!("link set {near} up"));
    lab.ip(two, &format!("link set {far} up"));
}

/// Cables are cut and mended at random. Whatever happens, no broadcast comes twice; within the bound it comes to every host, from every
/// host. Two such networks wait for their timers at once.
#[test]
fn four_switches_of_three_kinds() {
    const NAME: &str = "four_switches_of_three_kinds";
    if !Ovs::is_here(NAME) {
        return;
    }
    let seed = std::env::var("WINDLASS_SEED");
    let seed = seed.ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(vec![1, 2], |seed| vec![seed]);
    std::thread::scope(|scope| {
        for seed in seeds {
            let Some(lab) = Lab::start(NAME) else {
                return;
            };
            scope.spawn(move || turns(&lab, seed));
        }
    });
}

/// Four times a few cables of a network are cut or mended, as a seed says.
fn turns(lab: &Lab, seed: u64) {
    let mut mesh = Mesh::new(lab);
    println!("at first {:?}", mesh.probes.reach_all("a0", BOUND));
    println!("WINDLASS_SEED={seed}");
    let mut random = seed;
    for _ in 0..4 {
        let mut turned = Vec::new();
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        for shift in [32, 40, 48] {
            let at = (random >> shift) as usize % mesh.cables.len();
            if mesh.turn(lab, at) {
                turned.push(format!("{:?} {}", mesh.cables[at].2, mesh.cables[at].3));
            }
        }
        for from in ["a0", "b0", "h2", OVS_HOST] {
            println!(
                "{turned:?}, from {from}: {:?}",
                mesh.probes.reach_all(from, BOUND)
            );
        }
        // What settles now makes no loop either.
        for _ in 0..25 {
            mesh.probes.send("h2", Duration::from_millis(40));
        }
    }
    mesh.daemon.assert_alive();
}

/// A bridge that is to speak STP does, and its neighbour with it; set back, both speak RSTP again.
#[test]
fn stp_can_be_forced() {
    let Some(lab) = Lab::start("stp_can_be_forced") else {
        return;
    };
    let daemon = two_bridges(&lab);
    lab.ip("host", "link add x0 type veth peer name x1");
    for end in ["0", "1"] {
        lab.ip("host", &format!("link set x{end} up"));
    }
    for end in ["0", "1"] {
        uplink(&daemon, &format!("x{end}"), &format!("br{end}"));
    }
    let speak_stp = || ["x0", "x1"].map(|x| part(&daemon, x).contains("speaks STP"));
    until("a root port", || {
        part(&daemon, "x1").starts_with("root forwarding")
    });
    assert_eq!(speak_stp(), [false; 2]);
    let tree = daemon.show("bridge", "br0")["tree"].take();
    let port = daemon.show("bridge", "br1")["tree"]["ports"][0].take();
    let designated = port["designated"].as_str().expect("a text");
    let bridge = tree["id"].as_str().expect("a text");
    assert_eq!(designated, format!("{bridge} 128.1"), "{port}");
    assert_eq!(
        (&port["edge"], &port["point_to_point"]),
        (&false.into(), &true.into())
    );
    daemon.must("uplink set x1 root-guard=off locked=on stp-cost=7 stp-priority=32 discover=off");
    let row = daemon.json("bridge show --ports br1")[0].take();
    let shown = ["name", "bridge", "state", "cost", "priority"].map(|key| row[key].to_string());
    assert_eq!(shown, ["\"x1\"", "\"br1\"", "\"up\"", "7", "32"], "{row}");
    let flags = ["learn", "locked", "stp", "auto-edge", "point-to-point"];
    assert_eq!(row["flags"], serde_json::json!(flags));
    assert!(
        row["role"]
            .as_str()
            .expect("a role")
            .starts_with("root forwarding")
    );
    assert!(row["rx_frames"].as_u64() > Some(0), "{row}");
    daemon.must("bridge set br0 stp-force-version=stp");
    until("both speak STP", || speak_stp() == [true; 2]);
    daemon.must("bridge set br0 stp-force-version=rstp");
    until("both speak RSTP", || speak_stp() == [false; 2]);
    // One that goes without a word leaves its neighbour with STP, until that asks again.
    daemon.must("bridge set br0 stp-force-version=stp");
    until("both speak STP again", || speak_stp() == [true; 2]);
    daemon.must("bridge set br0 stp=off");
    assert!(part(&daemon, "x1").contains("speaks STP"));
    let told = daemon.refuses(4, "bridge mcheck br1 --member x0");
    assert!(told.contains("x0"), "{told}");
    assert_eq!(daemon.json("bridge mcheck br1")[0]["members"], 1);
    until("it asks", || !part(&daemon, "x1").contains("speaks STP"));
}
