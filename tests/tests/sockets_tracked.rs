//! Connections that conntrack follows: both ends are proved to be one connection before the ring is used, and two that only
//! look like one never use it.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use place::{PATIENCE, Place};
use serde_json::Value;
use windlass_tests::{Lab, program, run, skip};

/// Answers as many connections as it is told with what they send, which it takes only once a whole message is there, if it is
/// told to wait.
const SERVER: &str = r#"
import socket, sys, threading
count, waits = map(int, sys.argv[1:])
def answer(connection):
    while True:
        while waits and 0 < len(connection.recv(64, socket.MSG_PEEK)) < 64:
            pass
        if not (data := connection.recv(4096)):
            break
        connection.sendall(data)
listener = socket.create_server(("127.0.0.1", 7000), backlog=8)
print("listens", flush=True)
threads = [threading.Thread(target=answer, args=(listener.accept()[0],)) for _ in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"#;

/// Exchanges messages of 64 bytes from a given address and port, and checks every answer, which it takes as the server does. It
/// begins when the file of its name is there, goes on until another one is, and for a number of rounds after that.
const CLIENT: &str = r#"
import os, socket, sys, time
name, address, port, begin, end, rounds, waits = sys.argv[1:]
connection = socket.create_connection(("127.0.0.1", 7000), source_address=(address, int(port)))
print("connected", flush=True)
while not os.path.exists(begin):
    time.sleep(0.005)
made = 0
def exchange():
    global made
    message = f"{name} {made}".ljust(64).encode()
    connection.sendall(message)
    while waits == "1" and 0 < len(connection.recv(64, socket.MSG_PEEK)) < 64:
        pass
    got = b""
    while len(got) < 64:
        got += connection.recv(64 - len(got))
    assert got == message, (got, message)
    made += 1
while not os.path.exists(end):
    for _ in range(16):
        exchange()
for _ in range(int(rounds)):
    exchange()
print("right", flush=True)
"#;

/// Exchanges after what the programs went on for has come.
const MORE: &str = "1000";
/// What the ring carries each way at least. More than can be unread at once.
const BY_RING: u64 = 4_096;
/// So much that it takes longer than 2 ms.
const MANY: u64 = 64 * 1_000;

/// A namespace with rules, root's broker, and what was started there.
struct Scene {
    lab: Lab,
    broker: windlass_tests::Broker,
    place: Place,
    /// Variables of what is started.
    options: Vec<(&'static str, &'static str)>,
}

/// A program that is killed when dropped.
struct One {
    child: Child,
    log: PathBuf,
    counters: PathBuf,
}

impl Drop for One {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl One {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn until(&self, word: &str) {
        let started = Instant::now();
        while !self.said().contains(word) {
            assert!(started.elapsed() < PATIENCE, "{word}: {}", self.said());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// What it has counted, once it has ended well.
    fn counted(&mut self) -> BTreeMap<String, u64> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "stuck: {}", self.said());
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert!(status.success(), "{}", self.said());
        let text = fs::read_to_string(&self.counters).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect()
    }
}

fn of(counted: &BTreeMap<String, u64>, name: &str) -> u64 {
    counted.get(name).copied().unwrap_or(0)
}

impl Scene {
    fn new(name: &str, rules: &str) -> Option<Scene> {
        for tool in ["nft", "python3"] {
            if Command::new(tool).arg("-V").output().is_err() {
                skip(name, &format!("{tool} is missing"));
                return None;
            }
        }
        let place = Place::new(name)?;
        let lab = Lab::start(name)?;
        lab.namespace("a");
        let broker = windlass_tests::Broker::start(&lab, "host");
        let done = run(lab.command("a", "nft").arg(rules));
        assert_eq!(done.code, 0, "{}", done.err);
        Some(Scene {
            lab,
            broker,
            place,
            options: Vec::new(),
        })
    }

    fn start(&self, directory: &Path, name: &str, code: &str, words: &[&str]) -> One {
        let log = directory.join(name);
        let counters = directory.join(format!("{name}.counters"));
        let file = fs::File::create(&log).expect("a log");
        let windlass = program("windlass");
        let mut command = self.lab.command("a", windlass.to_str().expect("text"));
        command
            .args(["run", "--spin", "50", "--", "python3", "-c", code])
            .args(words)
            .env("WINDLASS_SOCKETS", self.broker.socket())
            .env("WINDLASS_COUNTERS", &counters)
            .envs(self.options.iter().copied())
            .stdin(Stdio::null())
            .stderr(file.try_clone().expect("a log"))
            .stdout(file);
        One {
            child: command.spawn().expect("windlass"),
            log,
            counters,
        }
    }

    /// What a client and a server have counted that went on until the rows of both in `windlass sockets` were so. `waits`: for
    /// whole messages.
    fn exchange(
        &self,
        waits: &str,
        what: &str,
        is_so: impl Fn(&[Value]) -> bool,
    ) -> [BTreeMap<String, u64>; 2] {
        let directory = self.place.room();
        let [begin, end] = ["begin", "end"].map(|name| directory.join(name));
        fs::write(&begin, "").expect("a file");
        let mut server = self.start(&directory, "server", SERVER, &["1", waits]);
        server.until("listens");
        let [begin_at, end_at] = [&begin, &end].map(|path| path.to_str().expect("text"));
        let words = ["x", "127.0.0.1", "0", begin_at, end_at, MORE, waits];
        let mut client = self.start(&directory, "client", CLIENT, &words);
        place::until_rows(
            &self.broker.socket(),
            [&client.child, &server.child],
            what,
            is_so,
            || format!("{:?} {:?}", client.said(), server.said()),
        );
        fs::write(&end, "").expect("a file");
        let counted = [client.counted(), server.counted()];
        println!("{what}: {counted:?}");
        counted
    }
}

const STATEFUL: &str = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                        add rule inet t c ct state established,related accept; \
                        add rule inet t c ct state invalid drop";

/// Where rules look at the state of connections, two ends prove that they are one connection, and then the ring serves them.
#[test]
fn tracked_connections_are_proved() {
    let Some(scene) = Scene::new("tracked_connections_are_proved", STATEFUL) else {
        return;
    };
    let counted = scene.exchange("0", "bytes by the ring, both ways", |rows| {
        place::has_rung(rows, [BY_RING; 2])
    });
    for counted in &counted {
        assert_eq!(of(counted, "joined"), 1, "{counted:?}");
        assert!(of(counted, "ring_rx_bytes") > 0, "{counted:?}");
    }
}

/// A tracked connection on the ring sends a message by the kernel now and then, so that its state is not forgotten: as often as
/// it is told, and every 30 s if it is told nothing.
#[test]
fn tracked_connections_are_kept_known() {
    let Some(mut scene) = Scene::new("tracked_connections_are_kept_known", STATEFUL) else {
        return;
    };
    let started = Instant::now();
    let unsaid = scene.exchange("0", "bytes by the ring, both ways", |rows| {
        place::has_rung(rows, [BY_RING; 2])
    });
    let due = started.elapsed().as_secs() / 30;
    for counted in &unsaid {
        assert!(of(counted, "ring_tx_bytes") > 0, "{counted:?}");
        assert!(of(counted, "refreshes") <= due, "{counted:?}");
    }
    scene.options = vec![("WINDLASS_REFRESH", "2")];
    // One is due in the first send after 2 ms.
    let counted = scene.exchange("0", "many bytes by the ring, both ways", |rows| {
        place::has_rung(rows, [MANY; 2])
    });
    for counted in &counted {
        let refreshes = of(counted, "refreshes");
        assert!(refreshes > 0, "{counted:?}");
        assert!(of(counted, "ring_tx_bytes") >= MANY, "{counted:?}");
        // The last one may have been due when the stream ended.
        let sent = of(counted, "kernel_tx_bytes") / 64;
        assert!(sent + 1 >= refreshes, "{counted:?}");
    }
}

/// Ends that never take the first part of a cut message are cut sixteen times, and then left on the kernel for good.
#[test]
fn unproved_connections_are_given_up() {
    let Some(scene) = Scene::new("unproved_connections_are_given_up", STATEFUL) else {
        return;
    };
    let counted = scene.exchange("1", "a connection that is given up", |rows| {
        rows.iter()
            .any(|row| row["state"] == "kernel" && row["reason"] == "tracked")
    });
    for counted in &counted {
        assert_eq!(of(counted, "joins_unproved"), 1, "{counted:?}");
        let by_ring = of(counted, "ring_rx_bytes") + of(counted, "ring_tx_bytes");
        assert_eq!(by_ring, 0, "{counted:?}");
    }
}

/// The source of one connection is translated to the name of the end of another one, which is then translated as well: the
/// server's end of the first names the client's end of the second as its peer, and is named by it. Both move alike. They offer
/// a channel to each other, and never use it; every byte is right.
#[test]
fn translated_connections_are_not_mistaken() {
    let rules = "add table ip n; add chain ip n c { type nat hook postrouting priority 100; }; \
                 add rule ip n c ip saddr 127.0.0.2 tcp dport 7000 snat to 127.0.0.1:5000";
    let Some(scene) = Scene::new("translated_connections_are_not_mistaken", rules) else {
        return;
    };
    let directory = scene.place.room();
    let [begin, end] = ["begin", "end"].map(|name| directory.join(name));
    let mut server = scene.start(&directory, "server", SERVER, &["2", "0"]);
    server.until("listens");
    let client = |name: &str, address: &str| {
        let [begin, end] = [&begin, &end].map(|path| path.to_str().expect("text"));
        let words = [name, address, "5000", begin, end, MORE, "0"];
        let client = scene.start(&directory, name, CLIENT, &words);
        client.until("connected");
        client
    };
    let mut clients = [client("x", "127.0.0.2"), client("y", "127.0.0.1")];
    fs::write(&begin, "").expect("a file");
    place::until_rows(
        &scene.broker.socket(),
        [&clients[1].child, &server.child],
        "a channel",
        |rows| rows.iter().any(|row| row["channel"].is_u64()),
        || {
            format!(
                "{:?} {:?}",
                clients.each_ref().map(One::said),
                server.said()
            )
        },
    );
    fs::write(&end, "").expect("a file");
    let counted = clients.each_mut().map(One::counted);
    let served = server.counted();
    for counted in counted.iter().chain([&served]) {
        let by_ring = of(counted, "ring_rx_bytes") + of(counted, "ring_tx_bytes");
        assert_eq!(by_ring, 0, "{counted:?}");
    }
    println!("{counted:?} {served:?}");
    let [_, second] = &counted;
    assert!(
        of(second, "joined") > 0 && of(&served, "joined") > 0,
        "the two ends have not met: {second:?} {served:?}"
    );
}
