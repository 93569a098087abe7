//! Every counter of the API can count: it becomes non-zero here, or in the test that is named for it.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use vhost_drive::{Guest, HIGH, Layout, WRITE};
use vhost_front::{FEATURES, Front, PROTOCOL, Queue, table, table_payload};
use windlass_attach::vhost_user::message::{Code, request};
use windlass_stats::Drop;
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{Daemon, Lab, Mac, Wire, frame, mac, until, until_some};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const BEHIND: &str = "06:00:00:00:00:01";
const ALL: Mac = [0xff; 6];

/// How long numbers may take to show what was done before; `expired` takes two seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is no count: a number that names something, or a rate.
const NAMES: &[&str] = &[
    "worker",
    "core",
    "cycles_per_second",
    "name",
    "zone",
    "vnic",
];

/// Counters that another test shows: the file, the test, and what it says of the counter.
const ELSEWHERE: &[(&str, &str, &str, &str)] = &[
    (
        "device_rx_bytes",
        "tests/tests/vnd.rs",
        "traffic_is_counted_as_the_program_sees_it",
        "rx-bytes",
    ),
    (
        "device_tx_bytes",
        "tests/tests/vnd.rs",
        "traffic_is_counted_as_the_program_sees_it",
        "tx-bytes",
    ),
    (
        "txfc",
        "tests/tests/vnd.rs",
        "traffic_is_counted_as_the_program_sees_it",
        "txfc",
    ),
    (
        "rx_local",
        "tests/tests/member.rs",
        "reserved_addresses_are_not_forwarded",
        "rx_local",
    ),
    (
        "rx_held",
        "tests/tests/equations.rs",
        "frames_that_wait_are_accounted_for",
        "rx_held",
    ),
    (
        "tx_span",
        "tests/tests/equations.rs",
        "every_frame_is_accounted_for",
        "tx_span",
    ),
    (
        "tx_spilled",
        "crates/io/worker/src/egress/tests.rs",
        "a_held_ring_fills_the_pool",
        "full.egress.spilled, full.egress.held), (held, held)",
    ),
    (
        "rx_cut",
        "tests/tests/flows.rs",
        "a_trip_stays_short_beside_tcp",
        "rx_cut",
    ),
    (
        "tx_cut",
        "tests/tests/flows.rs",
        "a_trip_stays_short_beside_tcp",
        "tx_cut",
    ),
    (
        "rx_marked",
        "tests/tests/flows.rs",
        "tcp_with_ecn_is_marked",
        "rx_marked",
    ),
    (
        "tx_marked",
        "tests/tests/flows.rs",
        "tcp_with_ecn_is_marked",
        "tx_marked",
    ),
    (
        "tx_segments",
        "tests/tests/uso.rs",
        "a_large_datagram_is_cut_for_others",
        "tx_segments",
    ),
    (
        "held",
        "crates/io/worker/src/simulation/moves.rs",
        "frames_go_before_their_ring",
        "world.held(), 1",
    ),
    (
        "tx_held",
        "crates/io/worker/src/simulation/moves.rs",
        "frames_go_before_their_ring",
        "egress.held, 1",
    ),
    (
        "stalled_ns",
        "tests/tests/holes.rs",
        "holes_cost_their_owner",
        "stalled_ns",
    ),
];

/// The tests that show reasons for drops that are not seen here.
const DROPS: &[(&str, &str)] = &[
    (
        "tests/tests/member.rs",
        "mac-spoof restricted locked sticky-source reserved-address local-full private mtu storm span-source queue-full rx-queue-full",
    ),
    ("tests/tests/flows.rs", "queue-slow rx-queue-slow"),
    ("tests/tests/stp.rs", "blocked"),
    ("tests/tests/vlan.rs", "vlan-tag vlan-denied"),
    (
        "crates/io/attach/tests/vhost_hostile.rs",
        "runt bad-descriptor chain-too-long peer-fault",
    ),
    ("crates/engines/nic/tests/claims.rs", "bad-offload"),
    (
        "tests/tests/guard.rs",
        "ip-spoof dhcp-spoof router-guard dhcp-guard",
    ),
    ("tests/tests/lease.rs", "lease-refused"),
    (
        "tests/tests/firewall.rs",
        "firewall firewall-in flow-limit flow-limit-in tcp-window tcp-window-in",
    ),
    (
        "crates/engines/bridge/tests/forward.rs",
        "giant source-limit same-member egress-vlan no-destination not-ready",
    ),
    ("crates/io/worker/src/simulation/storm.rs", "flood-backlog"),
    ("crates/io/worker/src/egress/tests.rs", "spill-full"),
    ("tests/tests/equations.rs", "peer-down"),
    ("crates/io/worker/src/simulation/holes.rs", "peer-slow"),
    ("crates/io/attach/src/tap/port.rs", "kernel-refused"),
    ("crates/io/attach/tests/memif_pair.rs", "segment-limit"),
    (
        "tests/tests/overlay_input.rs",
        "vxlan-source ecn underlay-unreachable",
    ),
    ("crates/io/attach/src/vxlan/target.rs", "underlay-full"),
    (
        "tests/tests/overlay_lookup.rs",
        "lookup-queue lookup-timeout lookup-refused",
    ),
];

fn source(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The counters of `GET /v1/stats` that are not zero.
fn counted(daemon: &Daemon) -> BTreeSet<String> {
    let mut socket = UnixStream::connect(daemon.socket()).expect("a socket");
    let question = "GET /v1/stats HTTP/1.1\r\nHost: windlass\r\nConnection: close\r\n\r\n";
    socket.write_all(question.as_bytes()).expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let (from, to) = (body.find('{'), body.rfind('}'));
    let body = body.get(from.expect("JSON")..=to.expect("JSON"));
    let stats: Value = serde_json::from_str(body.expect("JSON")).expect("JSON");
    let mut found = BTreeSet::new();
    collect(&stats, &mut found);
    found
}

fn collect(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if value.as_u64().is_some_and(|n| n != 0) {
                    into.insert(name.clone());
                }
                collect(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        _ => {}
    }
}

/// Every counter that the schema of the API has, and every reason for a drop.
fn all() -> BTreeSet<String> {
    let schema: Value = serde_json::from_str(&source("docs/openapi.json")).expect("JSON");
    let fields = ["Counters", "TableStats", "WorkerStats", "VndStats"].into_iter();
    let mut all: BTreeSet<String> = fields
        .flat_map(|kind| {
            let properties = &schema["components"]["schemas"][kind]["properties"];
            let properties = properties.as_object().expect("properties").clone();
            properties.into_iter().map(|(name, _)| name)
        })
        .filter(|name| name != "drops" && !NAMES.contains(&name.as_str()))
        .collect();
    all.extend(Drop::ALL.iter().map(|reason| reason.name().to_owned()));
    all
}

/// A guest of vhost-user that takes two frames and wants to be notified.
struct Taker {
    _front: Front,
    _guest: Arc<Guest>,
    queues: Vec<Queue>,
}

impl Taker {
    fn begin(socket: &Path) -> Taker {
        let socket: OwnedFd = until_some("the socket is there", || {
            connect(socket, SocketKind::Stream).ok()
        });
        let (front, guest) = (Front(socket), Guest::new());
        let queues = (0..2).map(|number| Queue::new(&guest, Layout::Split, number));
        let mut queues: Vec<Queue> = queues.collect();
        for id in 0..2 {
            let at = HIGH + u64::from(id) * 0x1000;
            queues[0].ring.offer_one(id, at, 2048, WRITE);
        }
        for (code, word) in [
            (Code::SET_PROTOCOL_FEATURES, PROTOCOL),
            (Code::SET_FEATURES, FEATURES),
        ] {
            front.say_word(code, word);
        }
        let fds = [guest.file.as_fd(), guest.file.as_fd()];
        let memory = request(Code::SET_MEM_TABLE, false, &table_payload(&table()));
        assert!(front.send_bytes(&memory, &fds));
        queues.iter().for_each(|queue| queue.start(&front, 0));
        Taker {
            _front: front,
            _guest: guest,
            queues,
        }
    }

    fn took(&mut self) -> bool {
        !self.queues[0].ring.reap().is_empty()
    }
}

/// A source address behind one of the guests.
fn behind(number: u16) -> Mac {
    let [high, low] = number.to_be_bytes();
    [0x06, 0, 0, 0, high, low]
}

/// Daemon and guests do what makes counters count; gives those that became non-zero, once all `wanted` have, or in the end.
fn scenario(lab: &Lab, wanted: &BTreeSet<String>) -> BTreeSet<String> {
    let daemon = lab.daemon();
    daemon.must("bridge create br0 --set addresses-max=16");
    for guest in ["a", "b"] {
        lab.namespace(guest);
    }
    daemon.tap(
        lab,
        "a0",
        "a",
        "",
        &format!("--mac {A} --set mac-nospoof=off --set move-budget=1"),
    );
    daemon.tap(
        lab,
        "b0",
        "b",
        "",
        &format!("--mac {B} --set mac-nospoof=off --set addresses-max=2 --set mtu=1000"),
    );
    let socket = lab.directory().join("vhost");
    daemon.must(&format!(
        "vnic create c0 --bridge br0 --attach vhost-user,socket={},role=server",
        socket.display()
    ));
    let mut taker = Taker::begin(&socket);
    daemon.wait_for_state("vnic", "c0", "up");
    let (a, b) = (Wire::open(lab, "a", "eth0"), Wire::open(lab, "b", "eth0"));
    // A flood that is too long for b, and is cut; c is notified, and has room for two.
    a.send(&frame(ALL, mac(A), &[], &"long".repeat(300)));
    until("c took the frame", || taker.took());
    for _ in 0..2 {
        a.send(&frame(ALL, mac(A), &[], "flood"));
    }
    a.send(&frame(mac(B), ALL, &[], "from a group"));
    a.send(&frame(mac(B), mac(A), &[], "unicast"));
    b.frames_until("unicast");
    an_address_moves(&daemon, &a, &b);
    the_table_fills(&daemon, &a, &b);
    more_than_the_kernel_keeps(&daemon, &a);
    too_big_for_the_kernel(lab, &daemon, &a);
    daemon.must("bridge set br0 ageing=1");
    let mut seen = BTreeSet::new();
    let begun = Instant::now();
    while !wanted.is_subset(&seen) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
        seen.extend(counted(&daemon));
    }
    seen
}

/// An address is seen behind b0 and a0 in turn, until a0 may have no more moves: it has one more from time to time. One sighting may be
/// lost.
fn an_address_moves(daemon: &Daemon, a: &Wire, b: &Wire) {
    let is_at = |member| daemon.knows(BEHIND, member);
    let send = |wire: &Wire, to| wire.send(&frame(mac(to), mac(BEHIND), &[], "seen"));
    for (wire, to, member) in [(b, A, "b0"), (a, B, "a0"), (b, A, "b0")] {
        until(member, || {
            send(wire, to);
            is_at(member)
        });
    }
    until("it stays", || {
        send(a, B);
        send(b, A);
        counted(daemon).contains("moves_refused")
    });
}

/// New addresses: more than b0 may have, more of a0's in a burst than are noted, and more than the table has room for.
fn the_table_fills(daemon: &Daemon, a: &Wire, b: &Wire) {
    let mut numbers = 2..u16::MAX;
    let mut from_next = |wire: &Wire, to| {
        let from = behind(numbers.next().expect("a number"));
        wire.send(&frame(mac(to), from, &[], "another"));
    };
    let counts = |name| counted(daemon).contains(name);
    // In one burst: frames of a member that is known to be full are dropped before.
    daemon.while_stopped(|| (0..8).for_each(|_| from_next(b, A)));
    until("b0 gets no more", || counts("refused"));
    until("a burst is not noted whole", || {
        daemon.while_stopped(|| (0..64).for_each(|_| from_next(a, B)));
        counts("sightings_lost")
    });
    until("one goes for another", || {
        from_next(a, B);
        counts("evicted")
    });
}

/// More frames than the kernel keeps for a daemon that does not read.
fn more_than_the_kernel_keeps(daemon: &Daemon, a: &Wire) {
    daemon.while_stopped(|| {
        for _ in 0..3000 {
            let _ = a.try_send(&frame(mac(B), mac(A), &[], "too many"));
        }
    });
}

/// A frame for an uplink whose interface has become too small for it.
fn too_big_for_the_kernel(lab: &Lab, daemon: &Daemon, a: &Wire) {
    lab.ip("host", "link add up0 type veth peer name up1");
    lab.ip("host", "link set up0 up");
    lab.ip("host", "link set up1 up");
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach packet");
    daemon.wait_for_state("uplink", "up0", "up");
    lab.ip("host", "link set up0 mtu 600");
    a.send(&frame(ALL, mac(A), &[], &"long".repeat(300)));
}

/// Counters and reasons that other tests show.
fn elsewhere() -> BTreeSet<String> {
    let counters = ELSEWHERE.iter().map(|row| row.0);
    let drops = DROPS.iter().flat_map(|row| row.1.split_whitespace());
    counters.chain(drops).map(str::to_owned).collect()
}

/// Every counter and reason of the API becomes non-zero in this scenario, or is in the list of those that other tests show; the list names
/// only what there is.
#[test]
fn every_counter_counts() {
    let all = all();
    let unknown: Vec<_> = elsewhere().difference(&all).cloned().collect();
    assert_eq!(unknown, [""; 0], "no such counter");
    for (counter, path, test, text) in ELSEWHERE {
        let source = source(path);
        assert!(
            source.contains(&format!("fn {test}")),
            "{counter}: {path}: {test}"
        );
        assert!(source.contains(text), "{counter}: {path}");
    }
    for (path, reasons) in DROPS {
        let source = source(path);
        for reason in reasons.split_whitespace() {
            let known = Drop::ALL.iter().find(|drop| drop.name() == reason);
            let variant = format!("Drop::{:?}", known.expect("a reason"));
            let quoted = format!("\"{reason}\"");
            assert!(
                source.contains(&quoted) || source.contains(&variant),
                "{path} says nothing of {reason}"
            );
        }
    }
    let Some(lab) = Lab::start("every_counter_counts") else {
        return;
    };
    let wanted: BTreeSet<_> = all.difference(&elsewhere()).cloned().collect();
    let zero = &wanted - &scenario(&lab, &wanted);
    assert_eq!(zero, BTreeSet::new(), "still zero");
}
