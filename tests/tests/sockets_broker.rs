//! The daemon of accelerated sockets at its ends: one that is about to end is met, and one is killed.

#[path = "sockets/place.rs"]
mod place;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use place::{HOW, How, One, PATIENCE, PATIENT, Pair, Place, seed, soaks};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use windlass_channel::Reason;
use windlass_channel::protocol::Answer;
use windlass_sys::unix::{self, SocketKind};
use windlass_tests::{program, skip, until, until_some};

/// What `windlass sockets` says of the pair, and whether both its ends are on the ring.
fn listed(place: &Place, pair: &Pair) -> (String, bool) {
    listed_as(place, pair.ends.each_ref())
}

/// The same of two processes.
fn listed_as(place: &Place, ends: [&Child; 2]) -> (String, bool) {
    listed_each(place, ends, 1)
}

/// The same where each has so many connections.
fn listed_each(place: &Place, ends: [&Child; 2], count: usize) -> (String, bool) {
    let mut command = Command::new(program("windlass"));
    command
        .args(["sockets", "--json"])
        .env("WINDLASS_SOCKETS", place.daemon());
    let listed = command.output().expect("windlass");
    let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    let pids = ends.map(|end| u64::from(end.id()));
    let on_ring = |pid: u64| {
        let rows = rows.as_array().into_iter().flatten();
        let own = rows.filter(|row| row["pid"] == pid && row["state"] == "ring");
        own.count() == count
    };
    let text = [listed.stdout, listed.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (text, pids.into_iter().all(on_ring))
}

/// `windlass run` meets a daemon that is about to end, again and again: each pair of programs has one, and is joined.
#[test]
fn a_daemon_about_to_end_leaves_another_one() {
    let Some(place) = Place::of_user("a_daemon_about_to_end_leaves_another_one", "peer.c") else {
        return;
    };
    let mut random = seed();
    let linger = Duration::from_millis(40);
    let millis = linger.as_millis().to_string();
    let options = [("WINDLASS_LINGER_MS", millis.as_str())];
    let mut daemons = std::collections::BTreeSet::new();
    let rounds = if soaks() { 200 } else { 20 };
    for round in 0..rounds {
        let mut pair = place.connect(&How {
            way: "level",
            bytes: 0,
            options: &options,
            ..HOW
        });
        let started = Instant::now();
        loop {
            let (text, is_joined) = listed(&place, &pair);
            if is_joined {
                break;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "round {round}: {} {text}",
                pair.both()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        daemons.extend(place.daemon_process().map(Pid::as_raw_nonzero));
        for end in 0..2 {
            pair.signal(end, Signal::KILL);
            let _ = pair.ends[end].wait();
        }
        // The next one comes when its time is nearly over, or just.
        let micros = random.below(2 * linger.as_micros() as u64);
        std::thread::sleep(Duration::from_micros(micros));
    }
    println!("{} daemons in {rounds} rounds", daemons.len());
    // Where this process is of the daemons' user, they wait for it, too.
    let is_other = rustix::process::geteuid().is_root();
    assert!(daemons.len() > 1 || !is_other, "no daemon has ended");
}

/// The daemon is killed under traffic: the streams go on and are right; and programs that start later have a daemon again.
#[test]
fn streams_outlive_the_daemon() {
    let Some(place) = Place::new("streams_outlive_the_daemon") else {
        return;
    };
    let mut killed = None;
    for way in ["block", "level", "edge"] {
        let bytes = 4 * HOW.bytes;
        let mut pair = place.connect(&How {
            way,
            spin: "50",
            bytes,
            ..HOW
        });
        pair.warm();
        pair.until("the daemon", |_| place.daemon_process().is_some());
        let daemon = place.kill_daemon();
        assert_ne!(killed.replace(daemon), Some(daemon), "it was killed");
        pair.finish(bytes);
    }
    place
        .connect_rung(&How {
            way: "level",
            ..HOW
        })
        .finish(HOW.bytes);
}

/// Two programs, killed when dropped.
struct Both([Child; 2]);

impl Drop for Both {
    fn drop(&mut self) {
        for end in &mut self.0 {
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

impl Both {
    /// Waits until something is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut [Child; 2]) -> Result<(), String>) {
        let started = Instant::now();
        while let Err(text) = is_so(&mut self.0) {
            assert!(started.elapsed() < PATIENCE, "{what} did not come: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Compiles a program of `sockets/`.
fn compile(place: &Place, name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets");
    let mut compiler = Command::new("cc");
    let status = compiler
        .args(["-O2", "-pthread", "-o"])
        .arg(place.directory.path().join(name))
        .arg(sources.join(name).with_extension("c"))
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{name}.c does not compile"
    );
}

/// The daemon is killed under traffic, and another one is started: the programs that had registered with the first one join
/// new connections with the second one. One of them has a thread asleep in an epoll instance all the time.
#[test]
fn programs_outlive_the_daemon() {
    if let Some(place) = Place::new("programs_outlive_the_daemon") {
        outlive(&place, "ask", 1);
    }
}

/// The same where the first connection stays open: it goes on, and a new one joins beside it.
#[test]
fn a_joined_connection_keeps_no_other_from_joining() {
    if let Some(place) = Place::new("a_joined_connection_keeps_no_other_from_joining") {
        outlive(&place, "hold", 2);
    }
}

/// Two programs with ever more connections, of which each is made with another broker.
struct Keepers<'a> {
    place: &'a Place,
    directory: PathBuf,
    both: Both,
}

impl<'a> Keepers<'a> {
    fn start(place: &'a Place) -> Self {
        compile(place, "outlive");
        place.have_daemon();
        let directory = place.room();
        let both = Both(["serve", "keep"].map(|role| {
            let mut command = Command::new(program("windlass"));
            command.args(["run", "--spin", "50", "--"]);
            command.arg(place.directory.path().join("outlive"));
            command.arg(role).arg(directory.join("port"));
            command.env("WINDLASS_SOCKETS", place.daemon());
            command.stdout(Stdio::null()).spawn().expect("windlass")
        }));
        Self {
            place,
            directory,
            both,
        }
    }

    fn mark(&self, name: &str) {
        fs::write(self.directory.join(format!("port.{name}")), "").expect("a file");
    }

    /// One more connection.
    fn connect(&self, number: usize) {
        self.mark(&number.to_string());
    }

    /// Kills the broker, and has another one.
    fn replace_daemon(&self, between: impl FnOnce()) {
        self.place.kill_daemon();
        between();
        self.place.have_daemon();
    }

    /// Waits until both have so many connections on the ring, and so many on the kernel as no broker would join them.
    fn until(&self, joined: usize, refused: usize) {
        place::until_rows(
            &self.place.daemon(),
            self.both.0.each_ref(),
            "the connections",
            |rows| {
                let count = |state, reason| {
                    let is_so = |row: &&Value| row["state"] == state && row["reason"] == reason;
                    rows.iter().filter(is_so).count()
                };
                count("ring", "none") == joined && count("kernel", "no-daemon") == refused
            },
            String::new,
        );
    }
}

/// Two programs hold joined connections over nine brokers, the eight former ones among them. With the next one they join none.
#[test]
fn connections_over_nine_brokers_are_held() {
    const BROKERS: usize = 9;
    let Some(place) = Place::new("connections_over_nine_brokers_are_held") else {
        return;
    };
    let keepers = Keepers::start(&place);
    for number in 0..BROKERS {
        keepers.connect(number);
        keepers.until(number + 1, 0);
        keepers.replace_daemon(|| ());
    }
    keepers.connect(BROKERS);
    keepers.until(BROKERS, 1);
}

/// The file of process ids is removed while no broker runs: a process that holds a joined connection joins no other one until that is
/// closed.
#[test]
fn a_broker_without_its_processes_waits() {
    let Some(place) = Place::new("a_broker_without_its_processes_waits") else {
        return;
    };
    let keepers = Keepers::start(&place);
    keepers.connect(0);
    keepers.until(1, 0);
    keepers.replace_daemon(|| {
        let file = place.daemon().with_file_name("sockets.processes");
        fs::remove_file(file).expect("the process ids");
    });
    keepers.connect(1);
    keepers.until(1, 1);
    keepers.mark("drop");
    keepers.until(1, 0);
}

/// Programs whose broker gives this answer to everything stay on the kernel and go on, and ask ever less often.
fn is_none(name: &str, answer: &'static [u8]) {
    let Some(place) = Place::new(name) else {
        return;
    };
    let kind = SocketKind::SeqPacket;
    let listener = unix::bind_socket(&place.daemon(), kind, 0o600, None).expect("a listener");
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        loop {
            match listener.accept() {
                Ok(socket) => {
                    count.fetch_add(1, Ordering::Relaxed);
                    _ = rustix::io::write(&socket, answer);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    let started = Instant::now();
    let mut pair = place.connect(&How {
        chunk: 64,
        options: &[("WINDLASS_SUMMARY", "1")],
        ..HOW
    });
    for end in 0..2 {
        let said = pair.wait(end);
        assert!(said.contains(" 1 connected, 0 joined; "), "{said}");
        assert!(said.contains("; on the kernel: 1 no-daemon"), "{said}");
    }
    // The eighth pause is a second. `windlass run` looks, too.
    let asked = asked.load(Ordering::Relaxed);
    let most = 2 * (10 + started.elapsed().as_secs());
    assert!(asked <= most, "asked {asked} times, not {most} at most");
}

/// A broker that does not understand its programs is none.
#[test]
fn a_broker_of_another_version_is_none() {
    is_none("a_broker_of_another_version_is_none", b"another version");
}

/// A broker that answers that it cannot do it now is none, and is left alone: its user's other programs may ask, too.
#[test]
fn a_broker_that_puts_its_programs_off_is_left_alone() {
    let (reason, broker) = (Reason::NoDaemon, 1);
    let answer = Answer::Refused { reason, broker }.encode();
    is_none(
        "a_broker_that_puts_its_programs_off_is_left_alone",
        Vec::leak(answer.into()),
    );
}

/// `asker`: `ask` or `hold`; `joined`: connections that each program has joined in the end.
fn outlive(place: &Place, asker: &str, joined: usize) {
    compile(place, "outlive");
    let own = place.directory.path();
    let directory = place.room();
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let run = |words: &[&str], log: Option<fs::File>| {
        let mut command = Command::new(program("windlass"));
        command.args(["run", "--spin", "50", "--"]).args(words);
        command.env("WINDLASS_SOCKETS", place.daemon());
        command
            .stdin(Stdio::null())
            .stdout(log.map_or_else(Stdio::null, Stdio::from));
        command.spawn().expect("windlass")
    };
    let mut both = Both(["serve", asker].map(|role| {
        let log = fs::File::create(directory.join(role)).expect("a log");
        let outlive = own.join("outlive");
        let port = directory.join("port");
        let words =
            [outlive.as_path(), Path::new(role), &port].map(|word| word.to_str().expect("text"));
        run(&words, Some(log))
    }));
    let mark = |name: &str| fs::write(directory.join(name), "").expect("a file");
    let on_ring = |ends: &mut [Child; 2], count: usize| {
        let (text, is_joined) = listed_each(place, ends.each_ref(), count);
        is_joined
            .then_some(())
            .ok_or_else(|| format!("{text} {:?} {:?}", said("serve"), said(asker)))
    };
    both.until("the first join", |ends| on_ring(ends, 1));
    let killed = place.kill_daemon();
    mark("port.first");
    both.until("the end of the first connection", |_| {
        let text = said(asker);
        (text == "alone\n").then_some(()).ok_or(text)
    });
    assert!(
        run(&["true"], None)
            .wait()
            .is_ok_and(|status| status.success())
    );
    mark("port.second");
    both.until("the second join", |ends| on_ring(ends, joined));
    assert_ne!(place.daemon_process(), Some(killed), "it was killed");
    mark("port.end");
    both.until("the end", |ends| {
        let [serve, ask] = ends.each_mut().map(|end| end.try_wait().expect("a child"));
        let is_done = serve.is_some() && ask.is_some();
        is_done
            .then_some(())
            .ok_or_else(|| format!("{:?} {:?}", said("serve"), said(asker)))
    });
    assert_eq!(
        (said("serve"), said(asker)),
        ("done\n".into(), "alone\ndone\n".into())
    );
}

/// A signal that comes while the broker is asked whether a connection of two users is one puts its join off, and does not end it. The
/// broker is stopped meanwhile; `proved.c` plays both ends.
#[test]
fn a_signal_while_a_connection_is_proved_puts_the_join_off() {
    const NAME: &str = "a_signal_while_a_connection_is_proved_puts_the_join_off";
    let Some(place) = Place::of_user(NAME, "proved.c") else {
        return;
    };
    let Some(user) = place.user else {
        return skip(NAME, "only root can act as two users");
    };
    let mut broker = Command::new(program("windlass-broker"));
    let broker = broker.arg("--socket").arg(place.daemon()).spawn();
    let broker = One(broker.expect("a broker"));
    until("the broker", || place.daemon_process().is_some());
    let directory = place.room();
    let how = How {
        options: &[("WINDLASS_SHARE", "1"), PATIENT],
        spin: "50",
        ..HOW
    };
    let start = |user, role| place.end_as(user, &how, &directory, role);
    let ends = [start(None, "listen"), start(Some(user), "connect")];
    let mut pair = place.pair(&how, directory, ends);
    let mark = |pair: &Pair, name: &str| {
        fs::write(pair.directory.join(name), "").expect("a file");
    };
    let until_joined = |pair: &mut Pair, count: usize| {
        pair.until("the join", |pair| {
            listed_each(&place, pair.ends.each_ref(), count).1
        });
    };
    until_joined(&mut pair, 1);
    let broker = Pid::from_child(&broker.0);
    rustix::process::kill_process(broker, Signal::STOP).expect("stopped");
    mark(&pair, "port.again");
    pair.until("the signals", |pair| pair.said(1).contains("asked\n"));
    rustix::process::kill_process(broker, Signal::CONT).expect("continued");
    until_joined(&mut pair, 2);
    mark(&pair, "port.end");
    for end in 0..2 {
        assert!(pair.wait(end).contains("right\n"), "{}", pair.both());
    }
}

/// The helper of the broker's only user and, where the broker is root, the getter that is started beside it.
fn both_helpers(place: &Place) -> Vec<String> {
    let all = 1 + usize::from(rustix::process::geteuid().is_root());
    until_some("the helper and its getter", || {
        let helpers = place.helpers(&["helper", "getter"]);
        helpers.filter(|helpers| helpers.len() == all)
    })
}

/// A helper of the broker that is stopped while it has a copy of a connection keeps a close from the peer, until the broker kills it.
#[test]
fn a_stopped_helper_delays_a_close() {
    const NAME: &str = "a_stopped_helper_delays_a_close";
    let Some(place) = Place::compiled(NAME, "held.c", &[]) else {
        return;
    };
    let start = |words: [&str; 2]| {
        let program = place.directory.path().join("peer");
        let mut command = match words[0] {
            "hold" => Command::new(&program),
            _ => Command::new(windlass_tests::program("windlass")),
        };
        if words[0] != "hold" {
            command.args(["run", "--"]).arg(&program);
        }
        command.args(words).env("WINDLASS_SOCKETS", place.daemon());
        let said = place
            .directory
            .path()
            .join(format!("{}.{}", words[0], words[1]));
        let log = File::create(&said).expect("a log");
        let child = One(command.stdout(log).spawn().expect("a program"));
        (child, move || fs::read_to_string(&said).unwrap_or_default())
    };
    // One accelerated program, whose peer is this test: both have exchanged their bytes.
    let talk = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("a name").port().to_string();
        let talking = start(["talk", &port]);
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut byte = [0];
        for _ in 0..10 {
            stream.read_exact(&mut byte).expect("a byte");
            stream.write_all(&byte).expect("a byte");
        }
        (stream, talking)
    };
    place.have_daemon();
    let _first = talk();
    // The getter takes the copy where the helper may not: from programs of root.
    let helpers = both_helpers(&place);
    let holders: Vec<_> = helpers.iter().map(|pid| start(["hold", pid])).collect();
    let said = |words: &str| {
        holders
            .iter()
            .filter(|(_, said)| said().contains(words))
            .count()
    };
    until("the holders", || {
        said("ready") + said("FAIL attach") == helpers.len()
    });
    if said("FAIL attach") > 0 {
        skip(NAME, "processes may not be traced here");
        return;
    }
    let (mut stream, (_talker, talks)) = talk();
    until("the copy", || said("held") == 1);
    stream.write_all(&[0]).expect("the last byte");
    until("the close", || talks().contains("closed"));
    stream.set_nonblocking(true).expect("an option");
    let early = stream.read(&mut [0]).map_err(|error| error.kind());
    assert!(
        early == Err(ErrorKind::WouldBlock) || said("gone") > 0,
        "{early:?}"
    );
    stream.set_nonblocking(false).expect("an option");
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    until("the end of both", || said("gone") == helpers.len());
}
