//! Virtual devices of DPDK (virtio-user) at a bridge, in both roles of the socket and both ring layouts, and either side
//! of it killed under traffic.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use windlass_tests::{Daemon, Lab, Wire, frame, mac, skip, until};

const STARTER: &str = "02:00:00:00:01:0f";
const MACS: [&str; 2] = ["02:00:00:00:01:00", "02:00:00:00:01:01"];
/// Frames that must have passed in each direction for traffic to count as flowing.
const FRAMES: u64 = 2000;

/// One way to set a device up.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// windlass listens.
    server: bool,
    queues: u16,
    /// What virtio-user is told besides.
    device: &'static str,
    /// What the status then tells: ring layout, a feature that is there, one that is not.
    layout: &'static str,
    with: &'static str,
    without: &'static str,
}

const WAYS: [Way; 6] = [
    Way {
        server: true,
        queues: 8,
        device: "mrg_rxbuf=1,in_order=0",
        layout: "split",
        with: "mq",
        without: "in-order",
    },
    Way {
        server: true,
        queues: 1,
        device: "mrg_rxbuf=1,in_order=1",
        layout: "split",
        with: "mrg-rxbuf",
        without: "ring-packed",
    },
    Way {
        server: true,
        queues: 2,
        device: "packed_vq=1,mrg_rxbuf=1,in_order=0",
        layout: "packed",
        with: "mrg-rxbuf",
        without: "in-order",
    },
    Way {
        server: false,
        queues: 1,
        device: "mrg_rxbuf=0,in_order=0",
        layout: "split",
        with: "version-1",
        without: "mrg-rxbuf",
    },
    Way {
        server: false,
        queues: 2,
        device: "packed_vq=1,mrg_rxbuf=0,in_order=1",
        layout: "packed",
        with: "in-order",
        without: "mrg-rxbuf",
    },
    Way {
        server: false,
        queues: 1,
        device: "mrg_rxbuf=0,in_order=1,vectorized=1",
        layout: "split",
        with: "in-order",
        without: "mrg-rxbuf",
    },
];

/// A testpmd that sends each frame that comes to one of its two devices out of the other one, to the first one's
/// address: so that it goes round for ever. Killed when dropped.
struct Testpmd(Child);

impl Testpmd {
    fn start(directory: &Path, sockets: &[PathBuf; 2], way: Way) -> Testpmd {
        let log = File::create(directory.join("testpmd.log")).expect("a log");
        let mut command = Command::new("dpdk-testpmd");
        command
            .arg(format!("--file-prefix=windlass-{}", std::process::id()))
            .args(["-l", "0,1", "--no-huge", "--no-shconf", "-m", "256"])
            .args(["--no-pci", "--no-telemetry"]);
        for (i, (socket, mac)) in sockets.iter().zip(MACS).enumerate() {
            let path = socket.display();
            let end = if way.server { "" } else { ",server=1" };
            let (queues, more) = (way.queues, way.device);
            command.arg(format!(
                "--vdev=net_virtio_user{i},path={path},mac={mac},queues={queues},queue_size=256,{more}{end}"
            ));
        }
        let queues = way.queues.to_string();
        let child = command
            .args(["--", "--forward-mode=mac", "--auto-start", "--nb-cores=1"])
            .args([
                "--rxq",
                &queues,
                "--txq",
                &queues,
                "--total-num-mbufs=16384",
            ])
            .arg(format!("--eth-peer=0,{}", MACS[1]))
            .arg(format!("--eth-peer=1,{}", MACS[0]))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Testpmd(child.expect("dpdk-testpmd"))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn names() -> [&'static str; 2] {
    ["v0", "v1"]
}

/// Waits until frames go round both ways, and fails for any drop but that of a full ring.
fn flows(daemon: &Daemon, starter: &Wire, what: &str) {
    let sent = |name| daemon.counters(name)["tx_frames"].as_u64().unwrap_or(0);
    let before = names().map(sent);
    until(&format!("{what}: frames both ways"), || {
        for to in MACS {
            starter.send(&frame(mac(to), mac(STARTER), &[], "round"));
        }
        names()
            .into_iter()
            .zip(before)
            .all(|(name, before)| sent(name) >= before + FRAMES)
    });
    for name in names() {
        let counters = daemon.counters(name);
        let drops = counters["drops"].as_object().cloned().unwrap_or_default();
        for (reason, count) in drops {
            let expected = ["ring-full", "peer-down", "storm"];
            assert!(
                expected.contains(&reason.as_str()),
                "{what}: {name}: {count} frames dropped as {reason}"
            );
        }
    }
}

fn are_up(daemon: &Daemon, log: &Path) {
    for name in names() {
        let is_up = || daemon.show("vnic", name)["state"] == "up";
        until(
            &format!(
                "{name} is up: {}",
                std::fs::read_to_string(log).unwrap_or_default()
            ),
            is_up,
        );
    }
}

/// The status tells what was agreed on.
fn agreed(daemon: &Daemon, way: Way) {
    let details = daemon.show("vnic", "v0")["details"].take();
    let detail = |name: &str| details[name].as_str().unwrap_or_default().to_owned();
    let features = detail("features");
    assert_eq!(detail("ring-layout"), way.layout, "{details}");
    assert_eq!(detail("queue-pairs"), way.queues.to_string(), "{details}");
    assert!(features.contains(way.with), "{features}");
    assert!(!features.contains(way.without), "{features}");
}

/// Devices of every way exchange frames, the status tells what was agreed on, and traffic resumes by itself after
/// testpmd was killed and started again, and, where windlass is the client, after the daemon was.
#[test]
fn testpmd_through_a_bridge() {
    let Some(lab) = Lab::start("testpmd_through_a_bridge") else {
        return;
    };
    if let Err(error) = Command::new("dpdk-testpmd").arg("-v").output() {
        return skip(
            "testpmd_through_a_bridge",
            &format!("dpdk-testpmd cannot be run: {error}"),
        );
    }
    let mut daemon = lab.daemon();
    let log = lab.directory().join("testpmd.log");
    daemon.must("bridge create br0");
    lab.namespace("t");
    daemon.tap(&lab, "t0", "t", "", &format!("--mac {STARTER}"));
    let starter = Wire::open(&lab, "t", "eth0");
    for (number, way) in WAYS.into_iter().enumerate() {
        let socket = |i: usize| lab.directory().join(format!("vhost{number}-{i}"));
        let sockets = [socket(0), socket(1)];
        for ((name, mac), socket) in names().iter().zip(MACS).zip(&sockets) {
            let role = if way.server { "server" } else { "client" };
            daemon.must(&format!(
                "vnic create {name} --bridge br0 --mac {mac} --attach vhost-user,socket={},role={role},queues={}",
                socket.display(),
                way.queues
            ));
        }
        let mut testpmd = Testpmd::start(lab.directory(), &sockets, way);
        are_up(&daemon, &log);
        flows(&daemon, &starter, &format!("{way:?}"));
        agreed(&daemon, way);

        testpmd.kill();
        daemon.wait_for_state("vnic", "v0", "waiting");
        if !way.server {
            for socket in &sockets {
                std::fs::remove_file(socket).expect("a socket");
            }
        }
        let _testpmd = Testpmd::start(lab.directory(), &sockets, way);
        are_up(&daemon, &log);
        flows(
            &daemon,
            &starter,
            &format!("{way:?}, testpmd started again"),
        );
        if !way.server {
            daemon.kill();
            daemon.start_again();
            are_up(&daemon, &log);
            flows(
                &daemon,
                &starter,
                &format!("{way:?}, the daemon started again"),
            );
        }
        for name in names() {
            daemon.must(&format!("vnic delete {name}"));
        }
        assert_eq!(
            way.server,
            !sockets[0].exists(),
            "only our own socket is removed"
        );
    }
}
