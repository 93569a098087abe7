//! DPDK's programs at VNICs: testpmd over memif, with small pages and with zero copies, and over virtio-user.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_tests::{Daemon, Lab, Mac, Wire, frame, mac, skip, until};

/// A testpmd whose answers can be read while it runs.
const UNBUFFERED: [&str; 3] = ["stdbuf", "-oL", "dpdk-testpmd"];
/// How long a testpmd may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

/// Huge pages of 2 MiB, as many as the host had before when this is dropped.
struct HugePages(Option<u64>);

impl HugePages {
    const PLACE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

    fn read(name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(format!("{}/{name}", Self::PLACE));
        text.ok()?.trim().parse().ok()
    }

    fn set(count: u64) -> std::io::Result<()> {
        std::fs::write(format!("{}/nr_hugepages", Self::PLACE), count.to_string())
    }

    /// Has so many free ones; none if that cannot be had.
    fn reserve(count: u64) -> Option<HugePages> {
        let free = || Self::read("free_hugepages");
        let missing = count.saturating_sub(free()?);
        if missing == 0 {
            return Some(HugePages(None));
        }
        let before = Self::read("nr_hugepages")?;
        let reserved = HugePages(Some(before));
        Self::set(before + missing).ok()?;
        (free()? >= count).then_some(reserved)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = Self::set(before);
        }
    }
}

/// A testpmd with two ports. Each frame that comes to one port goes out of the other one. Killed when dropped.
struct Testpmd {
    child: Child,
    log: PathBuf,
}

impl Testpmd {
    /// Descriptors of each ring of memif, as a power of two.
    const LOG2_DESCRIPTORS: u32 = 10;

    /// Its two ports over memif: that of each number has these properties.
    fn memif(of: [String; 2]) -> [String; 2] {
        let size = Self::LOG2_DESCRIPTORS;
        let [first, second] = of;
        [(0, first), (1, second)]
            .map(|(id, of)| format!("net_memif{id},{of},socket-abstract=no,id={id},rsize={size}"))
    }

    /// With memory of its own on hugetlbfs, which both ports share.
    fn with_huge_pages(lab: &Lab, ports: &[String; 2]) -> Testpmd {
        let pages = lab.directory().join("huge");
        std::fs::create_dir(&pages).expect("a directory");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c"])
            .arg("mount -t hugetlbfs -o pagesize=2M none \"$0\" && exec \"$@\"")
            .arg(&pages)
            .args(UNBUFFERED)
            .arg(format!("--huge-dir={}", pages.display()))
            .args(["--single-file-segments", "-m", "64"]);
        Testpmd::start(lab, command, ports)
    }

    fn with_small_pages(lab: &Lab, ports: &[String; 2]) -> Testpmd {
        let [program, arguments @ ..] = UNBUFFERED;
        let mut command = Command::new(program);
        command.args(arguments).args(["--no-huge", "-m", "256"]);
        Testpmd::start(lab, command, ports)
    }

    fn start(lab: &Lab, mut command: Command, ports: &[String; 2]) -> Testpmd {
        let path = lab.directory().join("testpmd.log");
        let log = std::fs::File::create(&path).expect("a log");
        command
            .arg(format!("--file-prefix={}", lab.name("testpmd")))
            .args(["-l", "0,1", "--no-shconf", "--no-pci", "--no-telemetry"])
            .args(ports.iter().map(|port| format!("--vdev={port}")));
        let child = command
            .args(["--", "--interactive", "--forward-mode=io", "--auto-start"])
            .args(["--nb-cores=1", "--total-num-mbufs=8192", "--no-flush-rx"])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Testpmd {
            child: child.expect("testpmd"),
            log: path,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Types a line at its prompt, and waits for the answer.
    fn say(&mut self, line: &str, answer: &str) {
        let before = self.said().len();
        let prompt = self.child.stdin.as_mut().expect("its input");
        let typed = writeln!(prompt, "{line}");
        let ended = self.child.try_wait();
        assert!(typed.is_ok(), "{ended:?}: {}", self.said());
        until(&format!("{answer:?} is the answer to {line:?}"), || {
            self.said()[before..].contains(answer)
        });
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether testpmd is there; else the test is skipped.
fn has_testpmd(test: &str) -> bool {
    let there = Command::new("dpdk-testpmd").arg("-v").output();
    if let Err(error) = &there {
        skip(test, &format!("dpdk-testpmd cannot be run: {error}"));
    }
    there.is_ok()
}

/// Namespace `a` on a bridge with VNIC `m0`, and `b` on another one with `m1`, attached like that.
fn two_bridges(lab: &Lab, daemon: &Daemon, attach: [String; 2]) {
    for (id, (namespace, attach)) in ["a", "b"].into_iter().zip(attach).enumerate() {
        lab.namespace(namespace);
        daemon.must(&format!("bridge create br{id}"));
        let address = format!(",address=10.1.0.{}/24", id + 1);
        let name = format!("{namespace}0");
        daemon.must(&format!(
            "vnic create {name} --bridge br{id} --attach tap,netns={}{address}",
            lab.name(namespace)
        ));
        daemon.must(&format!(
            "vnic create m{id} --bridge br{id} --set mac-nospoof=off --attach {attach}"
        ));
    }
}

fn both_are_up(daemon: &Daemon, testpmd: &Testpmd) {
    for name in ["m0", "m1"] {
        let begun = Instant::now();
        loop {
            let vnic = daemon.show("vnic", name);
            if vnic["state"] == "up" {
                break;
            }
            let said = || testpmd.said();
            assert!(begun.elapsed() < PATIENCE, "{vnic}\n{}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Two ports of one DPDK process connect to one socket with `zero-copy=yes`, each once, and frames pass through both: from a
/// namespace on one bridge to a namespace on another one, both ways. The daemon is stopped until both have asked, so that the time
/// that a busy host takes between them does not matter.
#[test]
fn zero_copy_clients_share_a_socket() {
    const NAME: &str = "zero_copy_clients_share_a_socket";
    let Some(lab) = Lab::start(NAME) else {
        return;
    };
    if !has_testpmd(NAME) {
        return;
    }
    let Some(_pages) = HugePages::reserve(40) else {
        return skip(NAME, "no 40 huge pages of 2 MiB can be had");
    };
    let daemon = lab.daemon();
    let socket = daemon.runtime_dir().join("both.sock");
    let attach = |id| format!("memif,socket={},role=server,id={id}", socket.display());
    two_bridges(&lab, &daemon, [0, 1].map(attach));
    let port = format!("socket={},role=client,zero-copy=yes", socket.display());
    let testpmd = daemon.while_stopped(|| {
        let ports = Testpmd::memif([port.clone(), port]);
        let testpmd = Testpmd::with_huge_pages(&lab, &ports);
        until("both ports have asked", || {
            testpmd.said().contains("Checking link statuses")
        });
        testpmd
    });
    both_are_up(&daemon, &testpmd);
    assert!(lab.ping("a", "10.1.0.2", 20), "{}", testpmd.said());
    for name in ["m0", "m1"] {
        let shown = daemon.show("vnic", name);
        assert_eq!(shown["connects"], 1, "{shown}\n{}", testpmd.said());
        let ring = 1u32 << Testpmd::LOG2_DESCRIPTORS;
        assert!(
            shown["details"].to_string().contains(&ring.to_string()),
            "{shown}"
        );
        let counters = daemon.counters(name);
        for counter in ["rx_frames", "tx_frames"] {
            assert!(counters[counter].as_u64() >= Some(1), "{counters}");
        }
    }
    assert!(
        !testpmd.said().contains("sendmsg fail"),
        "{}",
        testpmd.said()
    );
}

/// Frames pass through a DPDK program after the daemon was killed and started again, and after it was ended and started again,
/// in either role of the program: windlass connects again to a server by itself; a client connects when its ports are started
/// again. The program forwards nothing meanwhile: DPDK 22.11 unmaps rings under the threads that poll them.
#[test]
fn a_dpdk_program_goes_on_after_a_restart() {
    const NAME: &str = "a_dpdk_program_goes_on_after_a_restart";
    if !has_testpmd(NAME) {
        return;
    }
    for is_server in [true, false] {
        let Some(lab) = Lab::start(NAME) else {
            return;
        };
        let mut daemon = lab.daemon();
        let (ours, theirs) = match is_server {
            true => ("client", "server"),
            false => ("server", "client"),
        };
        let sockets = [0, 1].map(|id| daemon.runtime_dir().join(format!("dpdk{id}.sock")));
        let end = |role: &str| {
            let of = |socket: &PathBuf| format!("socket={},role={role}", socket.display());
            [of(&sockets[0]), of(&sockets[1])]
        };
        let [first, second] = end(ours);
        let attach = [
            format!("memif,{first},id=0"),
            format!("memif,{second},id=1"),
        ];
        two_bridges(&lab, &daemon, attach);
        let mut testpmd = Testpmd::with_small_pages(&lab, &Testpmd::memif(end(theirs)));
        both_are_up(&daemon, &testpmd);
        assert!(lab.ping("a", "10.1.0.2", 20), "{}", testpmd.said());
        for is_killed in [true, false] {
            testpmd.say("stop", "Done.");
            match is_killed {
                true => daemon.kill(),
                false => assert_eq!(daemon.terminate(), 0),
            }
            daemon.start_again();
            if !is_server {
                testpmd.say("port stop all", "Done");
                testpmd.say("port start all", "Done");
            }
            both_are_up(&daemon, &testpmd);
            testpmd.say("start", "packet forwarding");
            let goes_on = lab.ping("a", "10.1.0.2", 20);
            let said = testpmd.said();
            assert!(goes_on, "testpmd as {theirs}, killed: {is_killed}: {said}");
        }
    }
}

/// What `b` says first, which bridges do not know the receiver of yet.
const HERE: &str = "here";

/// Most frames that can be in a program: in the rings of its two ports, and a burst in its hands.
const IN_A_PROGRAM_MAX: u64 = 2 * (1 << Testpmd::LOG2_DESCRIPTORS) + 64;

/// The frame of this number: no two are alike.
fn numbered(to: Mac, from: Mac, number: u64) -> Vec<u8> {
    let text = format!("{number:016x}").repeat(1 + (number % 90) as usize);
    frame(to, from, &[], &text)
}

/// The frames that come to `to`, which must be numbered ones, whole and in order, until `is_over`.
fn read_in_order(to: &Wire, [b, a]: [Mac; 2], received: &AtomicU64, is_over: &AtomicBool) {
    let mut next = 0;
    loop {
        let was_over = is_over.load(Ordering::Acquire);
        let Some(found) = to.receive() else {
            if was_over {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Some(text) = found.text() else { continue };
        let number = text.get(..16).map(|digits| u64::from_str_radix(digits, 16));
        let number = number.expect("a number").expect("digits");
        assert!(number >= next, "{number} came behind {next}");
        assert_eq!(found.0, numbered(b, a, number), "frame {number}");
        next = number + 1;
        received.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the VNICs on the way from `a` to `b` have counted.
#[derive(Debug)]
struct OnTheWay {
    /// Frames that `a` has sent.
    sent: u64,
    /// Those that the program was given, or that were counted as dropped before.
    to_program: u64,
    /// Those that the program was given.
    given: u64,
    /// Those that it sent.
    taken: u64,
    /// Those that `b` was given, or that were counted as dropped before.
    to_b: u64,
}

impl OnTheWay {
    fn of(daemon: &Daemon) -> OnTheWay {
        let [a0, m0, m1, b0] = ["a0", "m0", "m1", "b0"].map(|name| daemon.counters(name));
        let of =
            |counters: &serde_json::Value, name: &str| counters[name].as_u64().expect("a counter");
        OnTheWay {
            sent: of(&a0, "rx_frames") + of(&a0, "kernel_drops"),
            to_program: of(&m0, "tx_frames") + of(&m0, "tx_dropped") + of(&a0, "kernel_drops"),
            given: of(&m0, "tx_frames"),
            taken: of(&m1, "rx_frames"),
            to_b: of(&b0, "tx_frames") + of(&b0, "tx_dropped"),
        }
    }

    /// Waits until all of `sent` frames since `before` are where they end, or counted.
    fn check(daemon: &Daemon, before: &OnTheWay, sent: u64) {
        until(
            &format!(
                "{sent} frames since {before:?} are counted: {:?}",
                OnTheWay::of(daemon)
            ),
            || {
                let now = OnTheWay::of(daemon);
                let in_program = (now.given - before.given).checked_sub(now.taken - before.taken);
                now.sent - before.sent == sent
                    && now.to_program - before.to_program == sent
                    && in_program.is_some_and(|frames| frames <= IN_A_PROGRAM_MAX)
                    && now.to_b - before.to_b == now.taken - before.taken
            },
        );
    }
}

/// A DPDK program is killed while frames pass through it from one bridge to another, and started again: no frame comes damaged,
/// twice, out of order or to somebody else, each that did not come is counted, or was in the program, and frames pass again.
#[test]
fn a_program_is_killed_under_traffic() {
    const NAME: &str = "a_program_is_killed_under_traffic";
    if !has_testpmd(NAME) {
        return;
    }
    for is_memif in [true, false] {
        let Some(lab) = Lab::start(NAME) else {
            return;
        };
        let daemon = lab.daemon();
        let sockets = [0, 1].map(|id| daemon.runtime_dir().join(format!("dpdk{id}.sock")));
        let [first, second] = sockets.each_ref().map(|socket| socket.display());
        let (attach, ports) = match is_memif {
            true => (
                [
                    format!("memif,socket={first},role=server,id=0"),
                    format!("memif,socket={second},role=server,id=1"),
                ],
                Testpmd::memif([
                    format!("socket={first},role=client"),
                    format!("socket={second},role=client"),
                ]),
            ),
            false => (
                [
                    format!("vhost-user,socket={first},role=server"),
                    format!("vhost-user,socket={second},role=server"),
                ],
                [
                    format!("net_virtio_user0,path={first}"),
                    format!("net_virtio_user1,path={second}"),
                ],
            ),
        };
        two_bridges(&lab, &daemon, attach);
        for (bridge, bystander) in [("br0", "c"), ("br1", "d")] {
            lab.namespace(bystander);
            let netns = lab.name(bystander);
            daemon.must(&format!(
                "vnic create {bystander}0 --bridge {bridge} --attach tap,netns={netns}"
            ));
        }
        restart_under_traffic(&lab, &daemon, &ports);
    }
}

fn restart_under_traffic(lab: &Lab, daemon: &Daemon, ports: &[String; 2]) {
    let wire = |name: &str| {
        daemon.wait_for_state("vnic", name, "up");
        Wire::open(lab, &name[..1], name)
    };
    let [from, to, c, d] = ["a0", "b0", "c0", "d0"].map(wire);
    let [a, b] =
        ["a0", "b0"].map(|name| mac(daemon.show("vnic", name)["mac"].as_str().expect("one")));
    let testpmd = Testpmd::with_small_pages(lab, ports);
    both_are_up(daemon, &testpmd);
    until("the first bridge knows where b is", || {
        to.send(&frame(a, b, &[], HERE));
        std::iter::from_fn(|| from.receive()).any(|frame| frame.text().is_some())
    });
    let before = OnTheWay::of(daemon);
    let [sent, received] = &[0, 0].map(AtomicU64::new);
    let [is_enough, is_over] = &[false, false].map(AtomicBool::new);
    std::thread::scope(|scope| {
        let (enough, over) = (Ends(is_enough), Ends(is_over));
        let sender = scope.spawn(move || {
            while !is_enough.load(Ordering::Relaxed) {
                from.send(&numbered(b, a, sent.fetch_add(1, Ordering::Relaxed)));
            }
        });
        let reader = scope.spawn(move || read_in_order(&to, [b, a], received, is_over));
        let pass = || {
            let so_far = received.load(Ordering::Relaxed);
            until("frames pass", || {
                reader.is_finished() || received.load(Ordering::Relaxed) >= so_far + 500
            });
        };
        pass();
        drop(testpmd);
        until("frames are dropped", || {
            daemon.drops("m0", "peer-down") > 100
        });
        let testpmd = Testpmd::with_small_pages(lab, ports);
        both_are_up(daemon, &testpmd);
        pass();
        drop(enough);
        sender.join().expect("all are sent");
        OnTheWay::check(daemon, &before, sent.load(Ordering::Relaxed));
        drop(over);
        reader.join().expect("they are whole and in order");
    });
    for bystander in [c, d] {
        while let Some(frame) = bystander.receive() {
            let is_numbered = frame.text().is_some_and(|text| text != HERE);
            assert!(!is_numbered, "{frame:?} was for somebody else");
        }
    }
}
