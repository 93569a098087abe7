//! Virtual devices of DPDK (virtio-user) at a bridge, in both roles of the socket and both ring layouts, and either
//! side of it killed under traffic. `WINDLASS_MATRIX=full` tries every way to set a device up, else a few of them.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_tests::{Daemon, Lab, Wire, frame, mac, skip, until};

const STARTER: &str = "02:00:00:00:01:0f";
const NAMES: [&str; 2] = ["v0", "v1"];
const MACS: [&str; 2] = ["02:00:00:00:01:00", "02:00:00:00:01:01"];
/// Descriptors of a ring.
const RING: u64 = 256;
/// Frames that must have passed in each direction for traffic to count as flowing.
const FRAMES: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the daemon is killed over each layout.
const KILLS: u64 = 50;

/// One way to set a device up.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// windlass listens.
    server: bool,
    queues: u16,
    packed: bool,
    in_order: bool,
    mergeable: bool,
    vectorized: bool,
}

const fn way(server: bool, queues: u16, [packed, in_order, mergeable, vectorized]: [u8; 4]) -> Way {
    Way {
        server,
        queues,
        packed: packed == 1,
        in_order: in_order == 1,
        mergeable: mergeable == 1,
        vectorized: vectorized == 1,
    }
}

/// Those of `make test`: both roles, both layouts, and each property with and without.
const FEW: [Way; 6] = [
    way(true, 8, [0, 0, 1, 0]),
    way(true, 1, [0, 1, 1, 0]),
    way(true, 2, [1, 0, 1, 0]),
    way(false, 1, [0, 0, 0, 0]),
    way(false, 2, [1, 1, 0, 0]),
    way(false, 1, [0, 0, 0, 1]),
];

impl Way {
    /// Every way that virtio-user has.
    fn all() -> Vec<Way> {
        let mut ways = Vec::new();
        for bits in 0..32u8 {
            let [server, packed, in_order, mergeable, vectorized] =
                [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1);
            for queues in [1, 2, 8] {
                let shape = [packed, in_order, mergeable, vectorized];
                ways.push(way(server == 1, queues, shape));
            }
        }
        ways.retain(|way| !way.vectorized || way.can_be_vectorized());
        ways
    }

    /// Whether DPDK takes its vectorized functions, in one direction at least, when it is told to.
    fn can_be_vectorized(self) -> bool {
        if self.packed {
            self.in_order && is_wide()
        } else {
            !self.in_order && !self.mergeable
        }
    }

    /// Whether DPDK 22.11 may confuse its own buffers when the daemon comes back. For a new connection it resets packed
    /// rings a millisecond after it told its other threads to keep off them, whether they do by then or not; and what
    /// its vectorized reception has handed on already it frees once more. Two frames then come to lie in one buffer.
    fn may_mix_frames_up(self) -> bool {
        self.packed && self.vectorized && !self.server
    }

    /// What virtio-user is told.
    fn device(self) -> String {
        let Way {
            queues,
            packed,
            in_order,
            mergeable,
            vectorized,
            ..
        } = self;
        let [packed, in_order, mergeable, vectorized] =
            [packed, in_order, mergeable, vectorized].map(u8::from);
        format!(
            "queues={queues},queue_size={RING},packed_vq={packed},in_order={in_order},\
             mrg_rxbuf={mergeable},vectorized={vectorized}"
        )
    }

    /// The functions that testpmd then says it receives and sends with.
    fn functions(self) -> [&'static str; 2] {
        match self {
            Way { packed: true, .. } => [
                match self {
                    Way {
                        mergeable: true, ..
                    } => "packed ring mergeable buffer Rx",
                    Way {
                        vectorized: true, ..
                    } => "packed ring vectorized Rx",
                    _ => "packed ring standard Rx",
                },
                if self.vectorized {
                    "packed ring vectorized Tx"
                } else {
                    "packed ring standard Tx"
                },
            ],
            Way { in_order: true, .. } => ["inorder Rx", "inorder Tx"],
            Way {
                vectorized: true, ..
            } => ["vectorized Rx", "standard Tx"],
            Way {
                mergeable: true, ..
            } => ["mergeable buffer Rx", "standard Tx"],
            _ => ["standard Rx", "standard Tx"],
        }
    }
}

/// Whether this processor has what DPDK's vectorized functions for packed rings are made of.
fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_wide = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let is_wide = true;
    is_wide
}

/// Whether every way is wanted, which takes minutes.
fn is_full() -> bool {
    std::env::var("WINDLASS_MATRIX").is_ok_and(|extent| extent == "full")
}

/// A testpmd polls on one core without pause, and so does the daemon under its load: the tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A testpmd that sends each frame that comes to one of its two devices out of the other one, to the first one's
/// address: so that it goes round for ever. Killed when dropped.
struct Testpmd {
    child: Child,
    log: PathBuf,
}

impl Testpmd {
    fn start(lab: &Lab, sockets: &[PathBuf; 2], way: Way) -> Testpmd {
        let path = lab.directory().join("testpmd.log");
        let log = File::create(&path).expect("a log");
        let mut command = Command::new("dpdk-testpmd");
        command
            .arg(format!("--file-prefix={}", lab.name("testpmd")))
            .args(["-l", "0,1", "--no-huge", "--no-shconf", "-m", "256"])
            .args(["--no-pci", "--no-telemetry"])
            .args(["--log-level=pmd.net.virtio.init:info"])
            .args(["--force-max-simd-bitwidth=512"]);
        for (i, (socket, mac)) in sockets.iter().zip(MACS).enumerate() {
            let path = socket.display();
            let device = way.device();
            let end = if way.server { "" } else { ",server=1" };
            command.arg(format!(
                "--vdev=net_virtio_user{i},path={path},mac={mac},{device}{end}"
            ));
        }
        let queues = way.queues.to_string();
        let child = command
            .args(["--", "--interactive", "--forward-mode=mac", "--auto-start"])
            .args(["--nb-cores=1", "--total-num-mbufs=16384", "--no-flush-rx"])
            .args(["--rxq", &queues, "--txq", &queues])
            .arg(format!("--eth-peer=0,{}", MACS[1]))
            .arg(format!("--eth-peer=1,{}", MACS[0]))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Testpmd {
            child: child.expect("dpdk-testpmd"),
            log: path,
        }
    }

    /// What it has said.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn say(&mut self, line: &str) {
        let prompt = self.child.stdin.as_mut().expect("a pipe");
        writeln!(prompt, "{line}").expect("testpmd reads");
    }

    /// Ends it, and gives how many frames each queue of both devices has sent, and what it says of that.
    fn end(mut self, way: Way) -> (Vec<u64>, String) {
        self.say("stop\nquit");
        until(&format!("testpmd ends: {}", self.said()), || {
            self.child.try_wait().expect("a child").is_some()
        });
        // Its prompt is not in the order of what else it says.
        let mut said = self.said().replace('\r', "");
        for line in ["stop", "set fwd txonly", "start", "quit"] {
            said = said.replace(&format!("testpmd> {line}\n"), "");
        }
        let (_, said) = said
            .rsplit_once("txonly packet forwarding")
            .unwrap_or_default();
        let of_each = if way.queues > 1 {
            "Forward Stats for RX Port"
        } else {
            "Forward statistics for port"
        };
        let queues = said.split(of_each).skip(1);
        let sent = queues.filter_map(|part| part.split("TX-packets:").nth(1));
        let word = |rest: &str| rest.split_whitespace().next()?.parse().ok();
        (sent.filter_map(word).collect(), said.to_owned())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A daemon with a bridge, both devices' VNICs, and a TAP from which frames come.
struct Place {
    daemon: Daemon,
    starter: Wire,
    lab: Lab,
    /// The daemon was killed since the VNICs were made.
    restarted: bool,
}

impl Place {
    /// `None`, said aloud, if it cannot be made here.
    fn make(test: &str) -> Option<Place> {
        let lab = Lab::start(test)?;
        if let Err(error) = Command::new("dpdk-testpmd").arg("-v").output() {
            skip(test, &format!("dpdk-testpmd cannot be run: {error}"));
            return None;
        }
        let daemon = lab.daemon();
        daemon.must("bridge create br0");
        lab.namespace("t");
        daemon.tap(&lab, "t0", "t", "", &format!("--mac {STARTER}"));
        let starter = Wire::open(&lab, "t", "eth0");
        Some(Place {
            daemon,
            starter,
            lab,
            restarted: false,
        })
    }

    fn create(&self, way: Way, number: usize) -> [PathBuf; 2] {
        let sockets = [0, 1].map(|i| self.lab.directory().join(format!("vhost{number}-{i}")));
        let role = if way.server { "server" } else { "client" };
        for ((name, mac), socket) in NAMES.iter().zip(MACS).zip(&sockets) {
            self.daemon.must(&format!(
                "vnic create {name} --bridge br0 --mac {mac} --attach vhost-user,socket={},role={role},queues={}",
                socket.display(),
                way.queues
            ));
        }
        sockets
    }

    fn delete(&mut self) {
        self.restarted = false;
        for name in NAMES {
            self.daemon.must(&format!("vnic delete {name}"));
        }
    }

    fn restart(&mut self) {
        self.restarted = true;
        self.daemon.kill();
        self.daemon.start_again();
    }

    /// Waits until frames go round both ways, and fails for any drop but those of overload and of a peer that is away.
    fn flows(&self, testpmd: &Testpmd, way: Way, what: &str) {
        let what = &format!("{way:?}, {what}");
        for name in NAMES {
            until(&format!("{what}: {name} is up: {}", testpmd.said()), || {
                self.daemon.show("vnic", name)["state"] == "up"
            });
        }
        let given = |name| {
            self.daemon.counters(name)["tx_frames"]
                .as_u64()
                .unwrap_or(0)
        };
        let flow = |(name, before)| given(name) >= before + FRAMES;
        let before = NAMES.map(given);
        let begun = Instant::now();
        while !NAMES.into_iter().zip(before).all(flow) {
            for to in MACS {
                self.starter
                    .send(&frame(mac(to), mac(STARTER), &[], "round"));
            }
            let counters = NAMES.map(|name| self.daemon.counters(name));
            let said = testpmd.said();
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: no frames both ways: {counters:?} {said}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        self.only_expected_drops(way, what);
    }

    fn only_expected_drops(&self, way: Way, what: &str) {
        let mut expected = vec!["ring-full", "peer-down", "storm"];
        if self.restarted && way.may_mix_frames_up() {
            expected.extend(["mac-spoof", "bad-descriptor"]);
        }
        for name in NAMES {
            let counters = self.daemon.counters(name);
            let drops = counters["drops"].as_object().cloned().unwrap_or_default();
            for (reason, count) in drops {
                assert!(
                    expected.contains(&reason.as_str()),
                    "{what}: {name}: {count} frames dropped as {reason}"
                );
            }
        }
    }

    /// The status tells what was agreed on, and testpmd uses the functions that are to be tried.
    fn agreed(&self, testpmd: &Testpmd, way: Way) {
        let details = self.daemon.show("vnic", "v0")["details"].take();
        let detail = |name: &str| details[name].as_str().unwrap_or_default().to_owned();
        let layout = if way.packed { "packed" } else { "split" };
        assert_eq!(detail("ring-layout"), layout, "{way:?}: {details}");
        let queues = way.queues.to_string();
        assert_eq!(detail("queue-pairs"), queues, "{way:?}: {details}");
        let features = detail("features");
        let features: Vec<_> = features.split([',', ' ']).collect();
        for (feature, is_there) in [
            ("version-1", true),
            ("ring-packed", way.packed),
            ("in-order", way.in_order),
            ("mrg-rxbuf", way.mergeable),
            ("mq", way.queues > 1),
        ] {
            assert_eq!(
                features.contains(&feature),
                is_there,
                "{way:?}: {feature}: {features:?}"
            );
        }
        let said = testpmd.said();
        for function in way.functions() {
            let told = format!("using {function} path");
            assert!(said.contains(&told), "{way:?}: not {told}: {said}");
        }
    }
}

/// Every queue of both devices sends more than its ring holds: all of them are read.
fn all_queues_send(place: &Place, mut testpmd: Testpmd, way: Way) {
    let taken = || NAMES.map(|name| place.daemon.counters(name)["rx_frames"].as_u64());
    testpmd.say("stop\nset fwd txonly");
    until(&format!("{way:?}: silence"), || {
        let before = taken();
        std::thread::sleep(Duration::from_millis(20));
        taken() == before
    });
    let before = taken();
    testpmd.say("start");
    let many = 16 * RING * u64::from(way.queues);
    until(&format!("{way:?}: frames from all queues"), || {
        let mut both = taken().into_iter().zip(before);
        both.all(|(now, before)| {
            now.zip(before)
                .is_some_and(|(now, before)| now > before + many)
        })
    });
    let (sent, said) = testpmd.end(way);
    assert_eq!(
        sent.len(),
        2 * usize::from(way.queues),
        "{way:?}: {sent:?}: {said}"
    );
    assert!(
        sent.iter().all(|frames| *frames > RING),
        "{way:?}: {sent:?}: {said}"
    );
    place.only_expected_drops(way, &format!("{way:?}, from all queues"));
}

/// One way: traffic, and traffic again after either side was killed and started again. Only where testpmd listens can
/// it go on by itself when the daemon was killed: as a client it does not connect again.
fn try_way(place: &mut Place, way: Way, number: usize) {
    let sockets = place.create(way, number);
    let mut testpmd = Testpmd::start(&place.lab, &sockets, way);
    place.flows(&testpmd, way, "at first");
    place.agreed(&testpmd, way);

    testpmd.kill();
    place.daemon.wait_for_state("vnic", "v0", "waiting");
    if !way.server {
        for socket in &sockets {
            std::fs::remove_file(socket).expect("a socket, which is not ours to remove");
        }
    }
    let mut testpmd = Testpmd::start(&place.lab, &sockets, way);
    place.flows(&testpmd, way, "testpmd started again");

    place.restart();
    if way.server {
        testpmd.kill();
        testpmd = Testpmd::start(&place.lab, &sockets, way);
    }
    place.flows(&testpmd, way, "the daemon started again");
    all_queues_send(place, testpmd, way);
    place.delete();
    let left = sockets.iter().any(|socket| socket.exists());
    assert!(!left, "{way:?}: a socket of ours is left");
}

/// Devices of every way exchange frames over all their queues, the status tells what was agreed on, and traffic resumes
/// after testpmd was killed and started again, and after the daemon was: by itself, where windlass is the client.
#[test]
fn testpmd_through_a_bridge() {
    let _turn = alone();
    let Some(mut place) = Place::make("testpmd_through_a_bridge") else {
        return;
    };
    let ways = if is_full() { Way::all() } else { FEW.to_vec() };
    for (number, way) in ways.iter().enumerate() {
        println!("{way:?}");
        try_way(&mut place, *way, number);
    }
    println!("{} ways; AVX-512: {}", ways.len(), is_wide());
}

/// Over split and over packed rings, the daemon is killed again and again at other moments of full load both ways:
/// each time the frames go on by themselves.
#[test]
#[ignore = "run by make soak"]
fn frames_go_on_after_every_kill() {
    let _turn = alone();
    let Some(mut place) = Place::make("frames_go_on_after_every_kill") else {
        return;
    };
    let ways = [
        way(false, 1, [0, 0, 1, 0]),
        way(false, 2, [0, 1, 0, 0]),
        way(false, 1, [1, 0, 1, 0]),
        way(false, 2, [1, 1, 0, 0]),
        way(false, 8, [1, 0, 0, 0]),
        way(false, 1, [1, 1, 1, 0]),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let sockets = place.create(way, number);
        let testpmd = Testpmd::start(&place.lab, &sockets, way);
        for kill in 1..=KILLS {
            place.flows(&testpmd, way, &format!("kill {kill}"));
            std::thread::sleep(Duration::from_millis(kill * 7 % 64));
            place.restart();
        }
        place.flows(&testpmd, way, "the last kill");
        place.agreed(&testpmd, way);
        all_queues_send(&place, testpmd, way);
        place.delete();
    }
    println!("{KILLS} kills for each of {} ways", ways.len());
}
