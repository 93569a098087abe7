//! What root's broker sees on a host keeps connections off the ring: rules that count, limit or log packets of `lo`.

#[path = "sockets/place.rs"]
mod place;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use place::{HOW, How, PATIENCE, PATIENT, Pair, Place, soaks};
use serde_json::Value;
use windlass_tests::{Lab, run, skip};

/// A broker in one namespace, and a place for programs in another one.
struct Scene {
    lab: Lab,
    broker: windlass_tests::Broker,
    place: Place,
}

impl Scene {
    fn new(name: &str, tools: &[&str]) -> Option<Scene> {
        let place = Place::new(name)?;
        for tool in tools {
            if Command::new(tool).arg("-V").output().is_err() {
                skip(name, &format!("{tool} is missing"));
                return None;
            }
        }
        let lab = Lab::start(name)?;
        lab.namespace("a");
        let broker = windlass_tests::Broker::start(&lab, "host");
        Some(Scene { lab, broker, place })
    }

    fn must(&self, words: &str) {
        let mut words = words.split(' ');
        let program = words.next().expect("a program");
        let done = run(self.lab.command("a", program).args(words));
        assert_eq!(done.code, 0, "{}", done.err);
    }

    /// Starts a pair of programs, with these words before each.
    fn start(&self, words: &[&str]) -> Pair {
        self.start_with(words, &[])
    }

    /// With more variables.
    fn start_with(&self, words: &[&str], more: &[(&str, &str)]) -> Pair {
        let socket = self.broker.socket();
        let options = [
            ("WINDLASS_SOCKETS", socket.to_str().expect("a path")),
            PATIENT,
        ];
        let options = [&options, more].concat();
        let namespace = format!("--net=/run/netns/{}", self.lab.name("a"));
        let before = [&["nsenter", &namespace, "--"], words].concat();
        self.place.connect(&How {
            spin: "50",
            options: &options,
            before: &before,
            ..HOW
        })
    }

    /// Runs a pair of programs; gives how many of the ends were joined, and how many were refused.
    fn joined(&self) -> (usize, usize) {
        let mut pair = self.start(&[]);
        for end in 0..2 {
            pair.wait(end);
        }
        let ends = [pair.counted(0), pair.counted(1)];
        let have = |name| {
            ends.iter()
                .filter(|counted| counted.get(name).is_some_and(|count| *count > 0))
                .count()
        };
        (have("joined"), have("joins_refused"))
    }

    /// Programs are joined once what the broker last saw no longer holds: before that it rightly refuses them, for a second, or for 20
    /// times as long as its look took. It never takes a rule for gone that is there, and nothing else keeps a pair from joining.
    fn assert_joins(&self, what: &str) {
        let started = Instant::now();
        loop {
            let (joined, refused) = self.joined();
            if joined == 2 {
                return;
            }
            let log = self.broker.log();
            assert!(refused > 0, "{what}: neither joined nor refused: {log}");
            assert!(started.elapsed() < PATIENCE, "{what}: {log}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Programs stay on the kernel, and the broker says why; no pair is joined once it has seen it.
    fn assert_kept(&self, finding: &str) {
        let started = Instant::now();
        let told = |scene: &Scene| scene.broker.log().matches(finding).count();
        let before = told(self);
        loop {
            let (joined, _) = self.joined();
            if told(self) > before {
                break;
            }
            let log = self.broker.log();
            assert!(
                started.elapsed() < PATIENCE,
                "{finding}: {joined} joined: {log}"
            );
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(self.joined().0, 0, "{finding}");
    }
}

/// Rules of nftables that mean every packet of `lo` keep connections on the kernel, by name; rules about other interfaces,
/// about first packets, or behind an acceptance of all of `lo` do not. Once they are gone, programs are joined again.
#[test]
fn rules_of_nftables_are_respected() {
    let Some(scene) = Scene::new("rules_of_nftables_are_respected", &["nft"]) else {
        return;
    };
    scene.assert_joins("without rules");
    let chain = "nft add table inet t; add chain inet t c { type filter hook input priority 0; }";
    let all = [
        ("counter", "handle 2: counter"),
        ("quota over 4000 mbytes drop", "handle 2: quota"),
        ("limit rate over 1000 mbytes/second drop", "handle 2: limit"),
        ("tcp dport 1-65535 log", "handle 2: log"),
    ];
    for (rule, finding) in all.into_iter().take(if soaks() { 4 } else { 2 }) {
        scene.must(&format!("{chain}; add rule inet t c {rule}"));
        scene.assert_kept(finding);
        scene.must("nft flush ruleset");
    }
    scene.must(&format!(
        "{chain}; add rule inet t c iifname eth0 counter; add rule inet t c iif lo accept; add rule inet t c counter"
    ));
    scene.must("nft add table ip n; add chain ip n c { type nat hook output priority 0; }; add rule ip n c counter");
    scene.assert_joins("rules that do not mean lo");
}

/// The private broker of a user looks at no rules: programs are joined where root's broker keeps them on the kernel.
#[test]
fn a_private_broker_sees_no_rules() {
    const NAME: &str = "a_private_broker_sees_no_rules";
    let Some(scene) = Scene::new(NAME, &["nft"]) else {
        return;
    };
    let Some(place) = Place::of_user(NAME, "peer.c") else {
        return;
    };
    let user = place.user.expect("root makes namespaces").to_string();
    scene.must("nft add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c counter");
    let network = format!("--net=/run/netns/{}", scene.lab.name("a"));
    let before = ["nsenter", &network, "-S", &user, "-G", &user, "--"];
    let how = How {
        spin: "50",
        options: &[PATIENT],
        before: &before,
        ..HOW
    };
    let directory = place.room();
    let ends = ["listen", "connect"].map(|role| place.end_as(None, &how, &directory, role));
    let mut pair = place.pair(&how, directory, ends);
    for end in 0..2 {
        pair.wait(end);
        let counted = pair.counted(end);
        assert!(counted.contains_key("joined"), "{}", pair.both());
    }
    scene.assert_kept("handle 2: counter");
}

/// Rules that are made after the join, and drop every packet of `lo`, are not seen, and drop nothing of the ring.
#[test]
fn bytes_of_the_ring_pass_no_rule() {
    let Some(scene) = Scene::new("bytes_of_the_ring_pass_no_rule", &["nft"]) else {
        return;
    };
    let socket = scene.broker.socket();
    let mut pair = scene.start_with(&[], &[("PEER_HOLD", "1")]);
    let rung = |pair: &Pair, bytes: u64| {
        let so = |rows: &[Value]| place::has_rung(rows, [bytes; 2]);
        let ends = pair.ends.each_ref();
        place::until_rows(&socket, ends, "bytes by the ring", so, || pair.both());
    };
    rung(&pair, 10_000);
    scene.must("nft add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }");
    let carried = pair.ends.each_ref().map(|end| {
        let rows = place::rows(&socket, end.id());
        rows[0]["ring_tx_bytes"].as_u64().expect("a number")
    });
    rung(&pair, carried[0].max(carried[1]) + 10_000);
    scene.must("nft flush ruleset");
    std::fs::write(pair.directory.join("port.go"), "").expect("a file");
    for end in 0..2 {
        pair.wait(end);
    }
}

/// Loads an eBPF program that lets everything pass, and attaches it to what a cgroup sends: `bpf(2)` by hand.
const ATTACH: &str = r#"
import ctypes, os, struct, sys
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes)
    result = ctypes.CDLL(None, use_errno=True).syscall(321, command, buffer, len(attributes))
    if result < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return result
code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xb7, 0, 0, 1, 0x95, 0, 0, 0))
licence = ctypes.create_string_buffer(b"GPL")
address = ctypes.addressof
program = bpf(5, struct.pack("<IIQQIIQII", 8, 2, address(code), address(licence), 0, 0, 0, 0, 0))
group = os.open(sys.argv[1], os.O_RDONLY)
bpf(8, struct.pack("<IIII", group, program, 1, 0))
"#;

/// A cgroup of its own, with a program attached; gone with the value.
struct Group(std::path::PathBuf);

impl Group {
    /// Why there is none, where none can be made.
    fn with_program() -> Result<Group, String> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let root = roots
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists());
        let root = root.ok_or("there is no hierarchy of cgroups (version 2)")?;
        let path = Path::new(root).join(format!("windlass-tests-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| error.to_string())?;
        let group = Group(path);
        let done = run(Command::new("python3").args(["-c", ATTACH]).arg(&group.0));
        match done.code {
            0 => Ok(group),
            _ => Err(done.err),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let started = Instant::now();
        // A process that was killed a moment ago may still be there.
        while std::fs::remove_dir(&self.0).is_err() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An eBPF program that sees the packets of the processes' cgroup keeps their connections on the kernel, and those of
/// processes elsewhere not.
#[test]
fn programs_of_cgroups_are_respected() {
    let name = "programs_of_cgroups_are_respected";
    let Some(scene) = Scene::new(name, &["python3"]) else {
        return;
    };
    let group = match Group::with_program() {
        Ok(group) => group,
        Err(why) => return skip(name, &why),
    };
    let enter = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", group.0.display());
    scene.assert_joins("outside");
    let started = Instant::now();
    let mut refused = 0;
    while refused == 0 {
        let mut pair = scene.start(&["sh", "-c", &enter, "sh"]);
        for end in 0..2 {
            pair.wait(end);
            let counted = pair.counted(end);
            assert_eq!(counted.get("joined"), None, "inside");
            refused += counted.get("joins_refused").copied().unwrap_or(0);
        }
        assert!(
            started.elapsed() < PATIENCE,
            "nobody asked: {}",
            pair.both()
        );
    }
}

/// A queue on `lo` that somebody has put there keeps connections on the kernel.
#[test]
fn queues_of_lo_are_respected() {
    let Some(scene) = Scene::new("queues_of_lo_are_respected", &["tc"]) else {
        return;
    };
    scene.must("tc qdisc add dev lo root tbf rate 100gbit burst 10mb latency 50ms");
    scene.assert_kept("a queue of kind tbf at lo");
    scene.must("tc qdisc del dev lo root");
    scene.assert_joins("without a queue");
}
