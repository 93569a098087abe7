//! Networks of bridges whose links are cut and mended at random: never a loop, and a tree within the standard's bound.
//!
//! `WINDLASS_SEED=N` repeats one seed, `WINDLASS_SEEDS=M` sets their number.

mod network;

use network::{Network, Random, SECOND, Weather};
use windlass_frame::Tick;
use windlass_rstp::{BridgeConf, PortConf, Role, State};

/// Stale information dies within max age and three hellos, then come two forward delays and the hello of the last hop: with the recommended
/// values 58 s. On hubs nobody agrees, so news that come late start delays anew: one max age more.
fn bound(conf: &BridgeConf, hubs: bool) -> u64 {
    let ages = if hubs { 2 } else { 1 };
    let max_age = ages * u64::from(conf.max_age_s);
    (max_age + 2 * u64::from(conf.forward_delay_s) + 4 * u64::from(conf.hello_s)) * SECOND
}

fn seeds(all: u64) -> impl Iterator<Item = u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|v: String| v.parse::<u64>().ok())
    };
    let first = number("WINDLASS_SEED").unwrap_or(1);
    let count = number("WINDLASS_SEEDS").unwrap_or(if first == 1 { all } else { 1 });
    first..first + count
}

#[derive(Clone, Copy)]
struct Kind {
    /// Bridges that know STP only are among them.
    stp: bool,
    /// Hubs with three bridges are among the links.
    hubs: bool,
    weather: Weather,
}

/// 2 to 7 bridges, a tree of links and more of them. A max age of 6 s allows 7 in a row, and no cable from the last one to itself: there it
/// is for 6.
fn network(seed: u64, kind: Kind) -> Network {
    let mut random = Random::new(seed ^ 0x5eed);
    let n = 2 + random.below(6) as usize;
    let times = [(20, 2, 15), (6, 1, 4), (10, 1, 6)][random.below(3) as usize];
    let n = if times.0 == 6 { n.min(6) } else { n };
    let confs = (0..n).map(|b| BridgeConf {
        address: [2, 0, 0, 0, 0, b as u8],
        priority: 4096 * random.below(4) as u16,
        max_age_s: times.0,
        hello_s: times.1,
        forward_delay_s: times.2,
        rstp: !(kind.stp && random.one_in(3)),
        ..BridgeConf::default()
    });
    let mut net = Network::new(seed, confs.collect());
    net.weather = kind.weather;
    let extra = random.below(n as u64 + 3) as usize;
    for link in 1..n + extra {
        let a = if link < n {
            link
        } else {
            random.below(n as u64) as usize
        };
        let b = random.below(if link < n { link as u64 } else { n as u64 }) as usize;
        let hub = kind.hubs && random.one_in(3);
        let mut ends = vec![a, b];
        if hub {
            ends.push(random.below(n as u64) as usize);
        }
        let port = |random: &mut Random| PortConf {
            cost: [2000, 20_000, 20_000, 200_000][random.below(4) as usize],
            point_to_point: !hub,
            ..PortConf::default()
        };
        let ends: Vec<_> = ends.into_iter().map(|b| (b, port(&mut random))).collect();
        net.connect(&ends);
    }
    net
}

/// Cuts and mends links for a while, then waits for the bound: a tree, which stays.
fn shake(net: &mut Network, hubs: bool) {
    let wait = bound(net.bridges[0].conf(), hubs);
    let media = net.media.len() as u64;
    for round in 0..4 {
        let blows = if round == 0 {
            0
        } else {
            1 + net.random.below(12)
        };
        if round == 0 {
            (0..net.media.len()).for_each(|m| net.set(m, true));
        }
        for _ in 0..blows {
            let (m, up) = (net.random.below(media) as usize, net.random.one_in(2));
            net.set(m, up);
            let pause = [1, 20, 300, 3000, 20_000][net.random.below(5) as usize];
            let pause = net.random.below(pause * 1_000_000);
            net.run(pause);
            if net.random.one_in(4) {
                net.renew();
            }
        }
        let lost = std::mem::take(&mut net.weather.lost_percent);
        net.run(wait);
        net.assert_tree();
        let at = net.changed_at;
        net.renew();
        net.run(3 * SECOND + wait / 2);
        assert_eq!(net.changed_at, at, "a port changed in a network at rest");
        net.assert_tree();
        net.weather.lost_percent = lost;
    }
}

fn all(name: &str, count: u64, strict: bool, kind: Kind) {
    for seed in seeds(count) {
        println!("{name}: WINDLASS_SEED={seed}");
        let mut net = network(seed, kind);
        net.strict = strict;
        shake(&mut net, kind.hubs);
    }
}

const LATE: Weather = Weather {
    delay_ms: 40,
    lost_percent: 0,
};
const BAD: Weather = Weather {
    delay_ms: 200,
    lost_percent: 30,
};

/// RSTP over cables that lose nothing: at no instant is there a loop.
#[test]
fn never_a_loop() {
    let kind = Kind {
        stp: false,
        hubs: false,
        weather: LATE,
    };
    all("never_a_loop", 250, true, kind);
}

/// The same with hubs, on which nobody can agree.
#[test]
fn never_a_loop_with_hubs() {
    let kind = Kind {
        stp: false,
        hubs: true,
        weather: LATE,
    };
    all("never_a_loop_with_hubs", 100, true, kind);
}

/// Bridges of both versions.
#[test]
fn never_a_loop_with_stp() {
    let kind = Kind {
        stp: true,
        hubs: true,
        weather: LATE,
    };
    all("never_a_loop_with_stp", 100, true, kind);
}

/// A third of the BPDUs is lost while links are cut, in networks of both versions: a tree in the end.
#[test]
fn lost_bpdus() {
    let kind = Kind {
        stp: true,
        hubs: true,
        weather: BAD,
    };
    all("lost_bpdus", 60, false, kind);
}

fn pair() -> Network {
    let conf = |b| BridgeConf {
        address: [2, 0, 0, 0, 0, b],
        ..BridgeConf::default()
    };
    Network::new(1, vec![conf(1), conf(2)])
}

/// Two bridges agree at once; when the link in use is cut, the other one forwards within milliseconds, and addresses are forgotten.
#[test]
fn rapid() {
    let mut net = pair();
    let first = net.connect(&[(0, PortConf::default()), (1, PortConf::default())]);
    let second = net.connect(&[(0, PortConf::default()), (1, PortConf::default())]);
    net.set(first, true);
    net.set(second, true);
    net.run(SECOND / 10);
    net.assert_tree();
    assert_eq!(
        (net.role((1, 1)), net.role((1, 2))),
        (Role::Root, Role::Alternate)
    );
    net.run(5 * SECOND);
    net.set(first, false);
    net.run(SECOND / 100);
    assert_eq!(net.states[&(1, 2)], State::Forwarding);
    assert!(net.flushes[&(1, 1)] > 0);
    // And back, by proposal and agreement.
    net.set(first, true);
    net.run(SECOND / 10);
    assert_eq!(
        (net.role((1, 1)), net.role((1, 2))),
        (Role::Root, Role::Alternate)
    );
    assert_eq!(net.states[&(1, 1)], State::Forwarding);
}

/// A port behind which nobody speaks becomes an edge after MigrateTime; one that is configured so forwards at once; one that may not
/// waits for max age and a forward delay. A bridge behind it ends that.
#[test]
fn edges() {
    let mut net = pair();
    let auto = PortConf::default();
    let configured = PortConf { edge: true, ..auto };
    let never = PortConf {
        auto_edge: false,
        ..auto
    };
    for conf in [auto, configured, never] {
        let medium = net.connect(&[(0, conf)]);
        net.set(medium, true);
    }
    net.run(SECOND / 10);
    let state = |net: &Network, port| net.states[&(0, port)];
    assert_eq!(state(&net, 1), State::Discarding);
    assert_eq!(state(&net, 2), State::Forwarding);
    net.run(4 * SECOND);
    assert_eq!(state(&net, 1), State::Forwarding);
    assert_eq!(state(&net, 3), State::Discarding);
    net.run(32 * SECOND);
    assert_eq!(state(&net, 3), State::Forwarding);
    let is_edge = |net: &Network, port| net.bridges[0].port(port).expect("a port").is_edge;
    assert!(is_edge(&net, 1) && is_edge(&net, 2) && !is_edge(&net, 3));
    // Links of edges change nobody's addresses.
    assert_eq!(net.bridges[0].topology_changes(), 1);
    let cable = net.connect(&[(0, configured), (1, auto)]);
    net.set(cable, true);
    net.run(SECOND);
    assert!(!is_edge(&net, 4));
    net.assert_no_loop();
}

/// On a hub, a port that says it is designated and hears nobody is an edge after max age, also when it has heard a BPDU: others of the hub may be
/// silent for longer than MigrateTime, and one of them be a root port that goes by what it heard before.
#[test]
fn silence_on_a_hub_makes_no_edge_soon() {
    let mut net = pair();
    let hub = PortConf {
        point_to_point: false,
        ..PortConf::default()
    };
    let medium = net.connect(&[(0, hub), (1, hub)]);
    net.set(medium, true);
    net.run(SECOND);
    // The other bridge is silent: its port is one that takes no part.
    net.bridges[1].set_link(1, false, Tick(net.now));
    let is_edge = |net: &Network| net.bridges[0].port(1).expect("a port").is_edge;
    net.run(10 * SECOND);
    assert!(!is_edge(&net));
    net.run(12 * SECOND);
    assert!(is_edge(&net));
}

/// Behind a guarded port the root is not looked for, however good it is; the port opens when that bridge gives up.
#[test]
fn root_guard() {
    let mut net = pair();
    let guard = PortConf {
        root_guard: true,
        ..PortConf::default()
    };
    // Bridge 0 has the better id, and bridge 1 guards itself against it.
    let cable = net.connect(&[(1, guard), (0, PortConf::default())]);
    net.set(cable, true);
    net.run(60 * SECOND);
    let port = net.bridges[1].port(1).expect("a port");
    assert_eq!(
        (port.role, port.state),
        (Role::Alternate, State::Discarding)
    );
    assert!(port.is_root_refused);
    assert_eq!(net.bridges[1].root_port(), None);
    let worse = BridgeConf {
        priority: 61_440,
        ..*net.bridges[0].conf()
    };
    net.bridges[0].configure(worse, windlass_frame::Tick(net.now));
    net.run(60 * SECOND);
    let port = net.bridges[1].port(1).expect("a port");
    assert_eq!(
        (port.role, port.state),
        (Role::Designated, State::Forwarding)
    );
    assert!(!port.is_root_refused);
    net.assert_tree();
}

/// A BPDU closes a guarded port until its link was down.
#[test]
fn bpdu_guard() {
    let mut net = pair();
    let guard = PortConf {
        bpdu_guard: true,
        edge: true,
        ..PortConf::default()
    };
    let cable = net.connect(&[(0, guard), (1, PortConf::default())]);
    net.set(cable, true);
    net.run(60 * SECOND);
    let port = net.bridges[0].port(1).expect("a port");
    assert!(port.is_guarded);
    assert_eq!((port.role, port.state), (Role::Disabled, State::Discarding));
    net.bridges[0].set_port(
        1,
        PortConf {
            bpdu_guard: false,
            ..guard
        },
        windlass_frame::Tick(net.now),
    );
    net.run(20 * SECOND);
    net.assert_tree();
}

/// At most the hold count at once, then one a second; and a hello every two seconds from a designated port at rest, none from the others.
#[test]
fn hold_count() {
    let mut net = pair();
    let cables: Vec<_> = (0..2)
        .map(|_| net.connect(&[(0, PortConf::default()), (1, PortConf::default())]))
        .collect();
    cables.iter().for_each(|c| net.set(*c, true));
    net.run(60 * SECOND);
    let sent = net.sent;
    net.run(100 * SECOND);
    assert_eq!(net.sent - sent, 100);
    // Two ports of bridge 0 have news fifty times a second.
    let sent = net.sent;
    for i in 0..500_u16 {
        let conf = BridgeConf {
            priority: 4096 * (i % 2),
            ..*net.bridges[0].conf()
        };
        net.bridges[0].configure(conf, windlass_frame::Tick(net.now));
        net.run(SECOND / 50);
    }
    // 10 s: each of four ports has its six and one a second.
    assert!(net.sent - sent <= 4 * (6 + 11), "{}", net.sent - sent);
    net.run(60 * SECOND);
    net.assert_tree();
}

/// A bridge that knows STP only makes its neighbour's port speak STP, and only that one.
#[test]
fn falls_back_to_stp() {
    let conf = |b, rstp| BridgeConf {
        address: [2, 0, 0, 0, 0, b],
        rstp,
        ..BridgeConf::default()
    };
    let mut net = Network::new(1, vec![conf(1, false), conf(2, true), conf(3, true)]);
    let old = net.connect(&[(0, PortConf::default()), (1, PortConf::default())]);
    let new = net.connect(&[(1, PortConf::default()), (2, PortConf::default())]);
    net.set(old, true);
    net.set(new, true);
    net.run(60 * SECOND);
    net.assert_tree();
    let speaks = |net: &Network, port| net.bridges[1].port(port).expect("a port").sends_rstp;
    assert!(!speaks(&net, 1) && speaks(&net, 2));
    net.bridges[1].check_migration(1, windlass_frame::Tick(net.now));
    assert!(speaks(&net, 1));
    net.run(10 * SECOND);
    assert!(!speaks(&net, 1));
}
