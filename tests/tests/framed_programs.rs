//! Programs that are built against an installed libwindlass: the examples, in C with nothing but a compiler, in Python and in Go.

#[path = "../../crates/programs/framed/examples/firewall.rs"]
#[allow(dead_code, reason = "an example's main and words for its reader")]
mod firewall;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use windlass_framed::{Device, Options, ReadVec, WriteVec};
use windlass_tests::{Daemon, Lab, program, run, until, until_some};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tree")
}

fn example(name: &str) -> PathBuf {
    root().join("crates/programs/framed/examples").join(name)
}

/// libwindlass, installed once as `make install` does.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libwindlass");
        let archive = program("libwindlass_framed.a");
        let mut install = Command::new(root().join("scripts/libwindlass"));
        let done = run(install.arg(archive).arg("").arg(&prefix));
        assert_eq!(done.code, 0, "{}", done.err);
        prefix
    })
}

/// Compiles a program with every warning, against the shared library or the static one.
fn compile(lab: &Lab, source: &Path, shared: bool) -> PathBuf {
    let prefix = installed();
    let to = lab.directory().join(source.file_stem().expect("a name"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&to);
    cc.arg("-I").arg(prefix.join("include")).arg(source);
    match shared {
        true => cc.arg("-L").arg(prefix.join("lib")).arg("-lwindlass"),
        false => {
            cc.arg(prefix.join("lib/libwindlass.a"))
                .args(["-static", "-lpthread", "-ldl", "-lm"])
        }
    };
    let done = run(&mut cc);
    assert_eq!(done.code, 0, "{}", done.err);
    to
}

/// A program that runs until it is dropped, and what it writes.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "it ended");
        line.trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program.
fn spawn(command: &mut Command, prefix: &Path) -> Running {
    command
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let out = child.stdout.take().expect("a pipe");
    Running(child, BufReader::new(out))
}

/// The same, and waits for its first line.
fn start(command: &mut Command, prefix: &Path) -> Running {
    let mut running = spawn(command, prefix);
    running.line();
    running
}

fn vnic(daemon: &Daemon, name: &str, bridge: &str, mac: &str, set: &str) -> PathBuf {
    let path = daemon.runtime_dir().join(name);
    daemon.must(&format!(
        "vnic create {name} --bridge {bridge} --mac {mac} --attach memif,socket={},role=server {set}",
        path.display()
    ));
    until("the socket is there", || path.exists());
    path
}

fn open(path: &Path) -> Device {
    let options = Options {
        log2_rx: 8,
        log2_tx: 8,
        nonblocking: true,
        ..Options::default()
    };
    Device::open_path(path, options).expect("a device")
}

/// Three bridges, each with a host and with a port for the program.
struct Net {
    daemon: Daemon,
    hosts: Vec<Device>,
    ports: Vec<PathBuf>,
}

impl Net {
    fn start(lab: &Lab) -> Net {
        let daemon = lab.daemon();
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for n in 0..3 {
            daemon.must(&format!("bridge create br{n}"));
            let bridge = format!("br{n}");
            let host = vnic(
                &daemon,
                &format!("h{n}"),
                &bridge,
                &format!("02:00:00:00:01:0{n}"),
                "",
            );
            let mac = format!("02:00:00:00:02:0{n}");
            let port = vnic(
                &daemon,
                &format!("u{n}"),
                &bridge,
                &mac,
                "--set mac-nospoof=off",
            );
            hosts.push(open(&host));
            ports.push(port);
        }
        Net {
            daemon,
            hosts,
            ports,
        }
    }

    /// Sends frame `number` from one host to an address.
    fn send(&self, from: usize, to: [u8; 6], number: u8) {
        let mut frame = [0; 64];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, from as u8]);
        frame[12..15].copy_from_slice(&[0x88, 0xb5, number]);
        assert_eq!(
            self.hosts[from].write(1, &mut [WriteVec::new(&frame)]),
            Ok(1)
        );
    }

    /// The numbers of the frames that a host has received.
    fn received(&self, host: usize) -> Vec<u8> {
        let mut numbers = Vec::new();
        let mut room = [0; 1600];
        loop {
            let mut vecs = [ReadVec::new(&mut room)];
            match self.hosts[host].read(1, &mut vecs) {
                Ok(_) => numbers.push(vecs[0].data()[14]),
                Err(_) => return numbers,
            }
        }
    }

    /// Sends broadcasts from each host until all others have one, and until none is on its way.
    fn meet(&self) {
        for from in 0..3 {
            let others = (0..3).filter(|host| *host != from);
            let mut heard = [false; 3];
            until("all hear each other", || {
                self.send(from, [0xff; 6], 0);
                std::thread::sleep(Duration::from_millis(10));
                (0..3).for_each(|host| heard[host] |= !self.received(host).is_empty());
                others.clone().all(|host| heard[host])
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        (0..3).for_each(|host| drop(self.received(host)));
    }
}

/// The hub, in C with the shared library: each frame comes to all others once, and not back.
#[test]
fn the_hub_repeats() {
    let Some(lab) = Lab::start("the_hub_repeats") else {
        return;
    };
    let prefix = installed();
    let hub = compile(&lab, &example("hub.c"), true);
    let net = Net::start(&lab);
    let _hub = start(Command::new(hub).args(&net.ports), prefix);
    net.meet();
    let mut got = [Vec::new(), Vec::new(), Vec::new()];
    for number in 1..=20 {
        net.send(0, [2, 0, 0, 0, 1, 9], number);
    }
    until("all have come", || {
        (0..3).for_each(|host| got[host].extend(net.received(host)));
        got[1].len() >= 20 && got[2].len() >= 20
    });
    let all: Vec<u8> = (1..=20).collect();
    assert_eq!(got, [vec![], all.clone(), all], "{}", net.daemon.log());
}

/// The learning switch, in C with the static library: a frame goes where its destination was seen, and to all while it was not.
#[test]
fn the_switch_learns() {
    let Some(lab) = Lab::start("the_switch_learns") else {
        return;
    };
    let prefix = installed();
    let switch = compile(&lab, &example("switch.c"), false);
    let net = Net::start(&lab);
    let _switch = start(Command::new(switch).args(&net.ports), prefix);
    net.meet();
    net.send(0, [2, 0, 0, 0, 1, 1], 1);
    net.send(0, [2, 0, 0, 0, 1, 9], 2);
    let mut got = [Vec::new(), Vec::new(), Vec::new()];
    until("all have come", || {
        (0..3).for_each(|host| got[host].extend(net.received(host)));
        got[1].len() >= 2 && !got[2].is_empty()
    });
    assert_eq!(got, [vec![], vec![1, 2], vec![2]]);
}

/// The ping, in C: a kernel's network answers it, and it answers what that asks.
#[test]
fn the_ping_is_answered() {
    let Some(lab) = Lab::start("the_ping_is_answered") else {
        return;
    };
    let prefix = installed();
    let ping = compile(&lab, &example("ping.c"), true);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.namespace("a");
    daemon.tap(&lab, "a0", "a", ",address=10.9.0.1/24", "");
    let mac = "02:00:00:00:02:00";
    let port = vnic(&daemon, "p0", "br0", mac, "");
    let pings = |target: &str| {
        let mut command = Command::new(&ping);
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        run(command.arg(&port).args([mac, "10.9.0.2", target, "2"]))
    };
    let done = pings("10.9.0.1");
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let (first, last) = done.out.trim().rsplit_once('\n').expect("lines");
    assert_eq!(last, "2 sent, 2 received");
    let is_timed = |line: &str| line.starts_with("10.9.0.1: seq ") && line.ends_with(" ms");
    assert!(first.lines().all(is_timed), "{first}");
    assert!(lab.ip("a", "neighbour show dev eth0").contains(mac));
}

/// The firewall, in Rust: what the inside sends passes, and answers to it, and what comes to open ports; nothing else from outside.
#[test]
fn the_firewall_keeps_state() {
    let Some(lab) = Lab::start("the_firewall_keeps_state") else {
        return;
    };
    let net = Net::start(&lab);
    let ports = [0, 1].map(|n| open(&net.ports[n]));
    std::thread::spawn(move || {
        let [inside, outside] = &ports;
        firewall::run(inside, outside, firewall::Firewall::new([80]))
    });
    let packet = |to_inside: bool, protocol: u8, inside_port: u16, number: u8| {
        let mut frame = [0; 64];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, u8::from(to_inside)]);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = protocol;
        let (inside, outside) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let (own, other) = (inside_port.to_be_bytes(), 5000u16.to_be_bytes());
        let (from, to, ports) = match to_inside {
            true => (outside, inside, [other, own]),
            false => (inside, outside, [own, other]),
        };
        frame[26..30].copy_from_slice(&from);
        frame[30..34].copy_from_slice(&to);
        frame[34..38].copy_from_slice(ports.as_flattened());
        frame[63] = number;
        frame
    };
    let send = |host: usize, frame: &[u8]| {
        assert_eq!(net.hosts[host].write(1, &mut [WriteVec::new(frame)]), Ok(1));
    };
    let next = |host: usize| {
        let mut room = [0; 1600];
        until_some("a frame comes", || {
            let mut vecs = [ReadVec::new(&mut room)];
            let got = net.hosts[host].read(1, &mut vecs);
            got.is_ok().then(|| *vecs[0].data().last().expect("bytes"))
        })
    };
    // Both sides are there once each has heard the other.
    until("the inside is heard", || {
        send(0, &packet(false, 17, 7, 1));
        std::thread::sleep(Duration::from_millis(10));
        !net.received(1).is_empty()
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(net.received(1));
    for refused in [
        packet(true, 6, 81, 2),
        packet(true, 17, 80, 3),
        packet(true, 17, 8, 4),
    ] {
        send(1, &refused);
    }
    send(1, &packet(true, 6, 80, 5));
    send(1, &packet(true, 17, 7, 6));
    assert_eq!([next(0), next(0)], [5, 6]);
    send(0, &packet(false, 17, 8, 7));
    assert_eq!(next(1), 7);
    send(1, &packet(true, 17, 8, 8));
    assert_eq!(next(0), 8);
}

/// The page on packet programs begins with a program of ten lines that compiles as it stands, and works: it tells the length of a
/// frame that comes to a vnd device.
#[test]
fn the_page_begins_with_a_program() {
    let Some(lab) = Lab::start("the_page_begins_with_a_program") else {
        return;
    };
    let prefix = installed();
    let page = std::fs::read_to_string(root().join("docs/packet-programs.md")).expect("a page");
    let (_, code) = page.split_once("```c\n").expect("a program");
    let (code, _) = code.split_once("```").expect("its end");
    assert_eq!(code.lines().count(), 11, "ten lines and one between");
    let source = lab.directory().join("lengths.c");
    std::fs::write(&source, code).expect("written");
    let lengths = compile(&lab, &source, true);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create p0 --bridge br0");
    daemon.must("vnd create p0");
    let path = daemon.runtime_dir().join("vnd/global/p0");
    until("the socket is there", || path.exists());
    let host = open(&vnic(&daemon, "h0", "br0", "02:00:00:00:01:00", ""));
    // Line by line, though it writes into a pipe.
    let mut program = Command::new("stdbuf");
    let mut running = spawn(program.arg("-oL").arg(lengths).arg(&path), prefix);
    let mut frame = [0; 77];
    frame[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 1, 0, 0x88, 0xb5]);
    std::thread::scope(|scope| {
        let line = scope.spawn(|| running.line());
        until("it tells a length", || {
            let _ = host.write(1, &mut [WriteVec::new(&frame)]);
            line.is_finished()
        });
        assert_eq!(line.join().expect("a thread"), "77 bytes");
    });
}

/// A Python with the wheel that `make wheel` makes, installed as a user does it; `None` where a test is to be skipped.
fn python(lab: &Lab, test: &str) -> Option<Command> {
    let venv = lab.directory().join("venv");
    let mut make = Command::new("python3");
    match make.args(["-m", "venv"]).arg(&venv).output() {
        Ok(made) if made.status.success() => {}
        _ => {
            windlass_tests::skip(test, "python3 with venv is missing");
            return None;
        }
    }
    let mut wheel = Command::new(root().join("scripts/wheel"));
    wheel.arg(program("libwindlass_framed.a"));
    let made = run(wheel.arg(lab.directory().join("wheel")));
    assert_eq!(made.code, 0, "{}", made.err);
    let python = venv.join("bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--no-index", made.out.trim()]);
    let installed = run(&mut install);
    assert_eq!(installed.code, 0, "{}{}", installed.out, installed.err);
    Some(Command::new(python))
}

/// Says what it is that fails, sends each frame back to its sender, and is over after a frame of 99 bytes.
const ECHO: &str = r#"
import os, select, sys, windlass
def fails(call):
    try:
        call()
    except (OSError, ValueError) as error:
        print(type(error).__name__, flush=True)
fails(lambda: windlass.open_socket("/none"))
with windlass.open_socket(sys.argv[1], nonblocking=True) as device:
    fails(lambda: device.read().__enter__())
    fails(lambda: device.write([b"short"]))
    with device.reserve(2):
        pass
    device.set_nonblocking(False)
    over = False
    while not over:
        select.select([device], [], [])
        with device.read() as frames:
            device.write([bytes(frame[6:12]) + bytes(frame[:6]) + bytes(frame[12:]) for frame in frames])
            over = any(len(frame) == 99 for frame in frames)
    fails(lambda: frames[0][0])
    fails(lambda: device.drain(-1))
    device.drain(10)
for call in device.fileno, device.read().__enter__, lambda: device.write([bytes(60)]), lambda: device.drain(0):
    fails(call)
"#;

/// Python programs over the wheel: the packet counter, and one that reads and writes frames of one buffer and of several, waits for them
/// with select, and hears of each failure by its exception.
#[test]
fn python_programs_run() {
    let Some(lab) = Lab::start("python_programs_run") else {
        return;
    };
    let Some(python) = python(&lab, "python_programs_run") else {
        return;
    };
    let python = || Command::new(python.get_program());
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let jumbo = "--set mtu=9000";
    let path = vnic(&daemon, "c0", "br0", "02:00:00:00:02:00", jumbo);
    let host = open(&vnic(&daemon, "h0", "br0", "02:00:00:00:01:00", jumbo));
    let frame = |len: usize| {
        let mut frame = vec![7; len];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0x88, 0xb5]);
        frame
    };
    let mut echo = spawn(
        python().args(["-c", ECHO]).arg(&path),
        Path::new("/nonexistent"),
    );
    for error in ["FileNotFoundError", "BlockingIOError", "OSError"] {
        assert_eq!(echo.line(), error);
    }
    daemon.wait_for_state("vnic", "c0", "up");
    let mut room = vec![0; 9100];
    for len in [60, 2048, 5000, 99] {
        let frame = frame(len);
        let back = [&frame[6..12], &frame[..6], &frame[12..]].concat();
        until("it comes back", || {
            let _ = host.write(1, &mut [WriteVec::new(&frame)]);
            std::thread::sleep(Duration::from_millis(10));
            let mut vecs = [ReadVec::new(&mut room)];
            host.read(1, &mut vecs).is_ok() && vecs[0].data() == back
        });
    }
    for _ in 0..6 {
        assert_eq!(echo.line(), "ValueError");
    }
    drop(echo);
    let mut counter = python();
    counter.arg(example("count.py")).arg(&path);
    let count = start(&mut counter, Path::new("/nonexistent"));
    daemon.wait_for_state("vnic", "c0", "up");
    counts(count, &host, &frame(60));
}

/// Sends frames until a program has counted some of them.
fn counts(mut program: Running, host: &Device, frame: &[u8]) {
    std::thread::scope(|scope| {
        let line = scope.spawn(|| {
            loop {
                let line = program.line();
                let counted = line.strip_prefix("88b5=");
                if counted.is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n > 40)) {
                    return;
                }
            }
        });
        until("it has counted", || {
            let _ = host.write(1, &mut [WriteVec::new(frame), WriteVec::new(frame)]);
            line.is_finished()
        });
    });
}

/// The packet counter in Go, by cgo, with what pkg-config says of the library.
#[test]
fn go_counts() {
    let Some(lab) = Lab::start("go_counts") else {
        return;
    };
    let is_there = |program: &str, word: &str| Command::new(program).arg(word).output().is_ok();
    if !is_there("go", "version") || !is_there("pkg-config", "--version") {
        return windlass_tests::skip("go_counts", "go or pkg-config is missing");
    }
    let (prefix, binary) = (installed(), lab.directory().join("count"));
    let mut build = Command::new("go");
    build.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
    build.args(["build", "-o"]).arg(&binary);
    let built = run(build.arg(example("count.go")));
    assert_eq!(built.code, 0, "{}", built.err);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let path = vnic(&daemon, "c0", "br0", "02:00:00:00:02:00", "");
    let host = open(&vnic(&daemon, "h0", "br0", "02:00:00:00:01:00", ""));
    let refused = run(Command::new(&binary)
        .arg("/none")
        .env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(refused.err, "/none: no such device\n");
    let count = start(Command::new(&binary).arg(&path), prefix);
    daemon.wait_for_state("vnic", "c0", "up");
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 1, 0, 0x88, 0xb5]);
    counts(count, &host, &frame);
}

/// What a C program calls of devices by name, and what each call gives: its value and, after -1, the number of its error.
const DEVICES: &str = r#"
#include <stdio.h>
#include <windlass.h>
static int device(const windlass_info_t *i, void *end) { printf("%s/%s/%s\n", i->zone, i->name, i->datalink); return (end != NULL); }
static int prop(const char *name, int writable, void *end) { (void) end; printf("%s %d\n", name, writable); return (0); }
#define SAY(call) do { int got = (call); printf("%s: %d %d\n", #call, got, got == -1 ? windlass_errno() : 0); } while (0)
int main(void) {
	uint64_t n = 0;
	windlass_t *open;
	SAY(windlass_create("global", "p9", "a"));
	SAY(windlass_create("none", "p0", "a"));
	SAY(windlass_create("global", "p0", "zone"));
	SAY(windlass_create("global", "taken", "a"));
	SAY(windlass_create("global", "p0", "a"));
	SAY(windlass_create("global", "p1", "a"));
	SAY(windlass_create("global", "p0", "b"));
	SAY(windlass_create("global", NULL, "b"));
	SAY(windlass_create("global", "p1", "b"));
	SAY(windlass_walk(device, NULL));
	SAY(windlass_walk(device, &n));
	SAY(windlass_prop_iter(prop, NULL));
	SAY(windlass_prop_set("global", "a", "rxbuf", 1 << 20));
	SAY(windlass_prop_get("global", "a", "rxbuf", &n));
	SAY((int)n);
	SAY(windlass_prop_get("global", "a", "speed", &n));
	SAY(windlass_prop_get("global", "c", "rxbuf", &n));
	SAY(windlass_prop_set("global", "a", "rxbuf", 1));
	SAY(windlass_prop_set("global", "a", "rxbuf", 5 << 20));
	SAY(windlass_prop_set("global", "a", "maxtu", 9000));
	SAY(windlass_prop_set("global", "a", "speed", 9000));
	SAY((open = windlass_open("global", "a", WINDLASS_NONBLOCK)) == NULL);
	SAY(windlass_open("global", "a", 0) == NULL ? -1 : 0);
	SAY(windlass_open("global", "c", 0) == NULL ? -1 : 0);
	SAY(windlass_unlink("global", "a"));
	SAY(windlass_unlink("global", "a"));
	SAY(windlass_walk(device, NULL));
	windlass_close(open);
	return (0);
}
"#;

/// The answers to [`DEVICES`].
const ANSWERS: [&str; 37] = [
    "-1 2",
    "-1 20",
    "-1 18",
    "-1 28",
    "0 0",
    "-1 24",
    "-1 28",
    "-1 33",
    "0 0",
    "global/a/p0",
    "global/b/p1",
    "0 0",
    "global/a/p0",
    "1 0",
    "rxbuf 1",
    "txbuf 1",
    "maxsize 0",
    "mintu 0",
    "maxtu 0",
    "0 0",
    "0 0",
    "0 0",
    "1048576 0",
    "-1 31",
    "-1 13",
    "-1 27",
    "-1 26",
    "-1 32",
    "-1 31",
    "0 0",
    "-1 28",
    "-1 13",
    "0 0",
    "-1 13",
    "global/b/p1",
    "global/<unknown>/p0",
    "0 0",
];

/// Devices are made, found, opened and removed by name; each refusal has its number.
#[test]
fn devices_by_name() {
    let Some(lab) = Lab::start("devices_by_name") else {
        return;
    };
    let source = lab.directory().join("devices.c");
    std::fs::write(&source, DEVICES).expect("written");
    let devices = compile(&lab, &source, true);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create p0 --bridge br0");
    daemon.must("vnic create p1 --bridge br0");
    vnic(&daemon, "taken", "br0", "02:00:00:00:01:00", "");
    let mut run_it = Command::new(devices);
    run_it.env("WINDLASS_SOCKET", daemon.socket());
    run_it.env("LD_LIBRARY_PATH", installed().join("lib"));
    let done = run(&mut run_it);
    assert_eq!(done.code, 0, "{}", done.err);
    let mut got = Vec::new();
    for line in done.out.lines() {
        got.push(line.rsplit_once(": ").map_or(line, |(_, answer)| answer));
    }
    assert_eq!(got, ANSWERS, "{}", done.out);
    // Another user may do nothing in the global zone.
    let open = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.directory(), open).expect("opened");
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    stranger.arg(lab.directory().join("devices"));
    stranger.env("WINDLASS_SOCKET", daemon.socket());
    stranger.env("LD_LIBRARY_PATH", installed().join("lib"));
    let done = run(&mut stranger);
    assert!(
        done.out.contains(r#""b"): -1 19"#),
        "{}{}",
        done.out,
        done.err
    );
    run_it.env("WINDLASS_SOCKET", lab.directory().join("none"));
    let done = run(&mut run_it);
    assert!(done.out.contains(": -1 33"), "{}", done.out);
}

/// Counts, each time that it is told to, the frames that it can write, or read, without sleeping.
const RINGS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <windlass.h>
int main(void) {
	windlass_t *device = windlass_open("global", "a", WINDLASS_NONBLOCK);
	char frame[64], room[2048], what[16];
	int done;
	if (device == NULL)
		return (1);
	memset(frame, 2, sizeof (frame));
	WINDLASS_FRAMEIO(1) out = { { 1, 1, 1 }, { { frame, sizeof (frame), 0 } } };
	WINDLASS_FRAMEIO(1) in = { { 1, 1, 1 }, { { room, sizeof (room), 0 } } };
	while (puts("ready"), fflush(stdout), fgets(what, sizeof (what), stdin) != NULL) {
		for (done = 0; (what[0] == 'w' ? windlass_frameio_write(device, &out.io) : windlass_frameio_read(device, &in.io)) == 0; done++)
			;
		printf("%d\n", done);
	}
	windlass_close(device);
	return (0);
}
"#;

/// The rings of a vnd device have the sizes that its `rxbuf` and `txbuf` say, each its own: in slots, a power of two of 64-byte frames.
#[test]
fn each_ring_has_its_size() {
    let Some(lab) = Lab::start("each_ring_has_its_size") else {
        return;
    };
    let source = lab.directory().join("rings.c");
    std::fs::write(&source, RINGS).expect("written");
    let rings = compile(&lab, &source, true);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create p0 --bridge br0 --mac 02:00:00:00:02:00");
    daemon.must("vnd create a -l p0");
    daemon.must("vnd set a rxbuf=13K txbuf=4K");
    let host = open(&vnic(&daemon, "h0", "br0", "02:00:00:00:01:00", ""));
    let mut program = Command::new(rings);
    program.env("WINDLASS_SOCKET", daemon.socket());
    let mut running = spawn(program.stdin(Stdio::piped()), installed());
    let mut orders = running.0.stdin.take().expect("a pipe");
    assert_eq!(running.line(), "ready");
    daemon.wait_for_state("vnic", "p0", "up");
    let view = daemon.json("vnd list")[0].take();
    let details = &view["details"];
    assert_eq!(
        (&view["rx_slots"], &view["tx_slots"]),
        (&256.into(), &64.into())
    );
    assert_eq!(details["ring-size-to-peer"], "256");
    assert_eq!(details["ring-size"], "64");
    let mut frame = [0; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0x88, 0xb5]);
    until("the ring is full", || {
        let _ = host.write(1, &mut [(); 32].map(|()| WriteVec::new(&frame)));
        daemon.drops("p0", "ring-full") > 0
    });
    let counted = daemon.while_stopped(|| {
        ["write", "read"].map(|what| {
            writeln!(orders, "{what}").expect("told");
            let counted = running.line();
            assert_eq!(running.line(), "ready");
            counted
        })
    });
    assert_eq!(counted, ["64", "256"]);
}

/// Says with whose rights it runs, and the devices that it finds.
const WALK: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <windlass.h>

static int each(const windlass_info_t *info, void *arg) {
	(void)arg;
	printf(" %s", info->name);
	return (0);
}

int main(void) {
	printf("%d", geteuid());
	return (windlass_walk(each, NULL) != 0);
}
"#;

/// A program with more rights than its caller does not ask the daemon that the caller names.
#[test]
fn a_set_user_id_program_goes_to_the_system() {
    let Some(lab) = Lab::start("a_set_user_id_program_goes_to_the_system") else {
        return;
    };
    let source = lab.directory().join("walk.c");
    std::fs::write(&source, WALK).expect("written");
    let walk = compile(&lab, &source, false);
    let daemon = lab.daemon();
    for setup in [
        "bridge create br0",
        "vnic create p0 --bridge br0",
        "vnd create p0",
    ] {
        daemon.must(setup);
    }
    let open = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.directory(), open).expect("opened");
    let mut caller = Command::new("setpriv");
    caller.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    caller.arg(&walk).env("WINDLASS_SOCKET", daemon.socket());
    assert_eq!(run(&mut caller).out, "65534");
    let set_user_id = PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&walk, set_user_id).expect("root's");
    assert_eq!(run(&mut caller).out, "0");
    let mut root = Command::new(&walk);
    assert_eq!(
        run(root.env("WINDLASS_SOCKET", daemon.socket())).out,
        "0 p0"
    );
}

/// pkg-config finds what was installed; the library has its version in its name and in every symbol, and exports nothing else. The static
/// one is a single object, and exports the same.
#[test]
fn the_library_is_found() {
    let prefix = installed();
    let library = prefix.join("lib/libwindlass.so.1");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library));
    let header = std::fs::read_to_string(prefix.join("include/windlass.h")).expect("a header");
    let mut names = Vec::new();
    for line in symbols.out.lines().filter(|line| line.contains(" T ")) {
        let name = line.rsplit(' ').next().expect("a name");
        let name = name.strip_suffix("@@WINDLASS_1.0").expect("a version");
        assert!(header.contains(&format!("{name}(")), "{name}");
        names.push(name);
    }
    assert_eq!(names.len(), 25, "{}", symbols.out);
    let archive = prefix.join("lib/libwindlass.a");
    let members = run(Command::new("ar").arg("t").arg(&archive)).out;
    assert_eq!(members.lines().count(), 1, "{members}");
    let mut nm = Command::new("nm");
    let symbols = run(nm.args(["-g", "-P", "--defined-only"]).arg(archive));
    let lines = symbols.out.lines().skip(1);
    let exported: Vec<_> = lines.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(exported, names);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(
        dynamic.out.contains("[libwindlass.so.1]"),
        "{}",
        dynamic.out
    );
    let mut found = Command::new("pkg-config");
    found.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    match found.args(["--cflags", "--libs", "windlass"]).output() {
        Ok(found) => {
            let flags = String::from_utf8(found.stdout).expect("text");
            assert!(
                flags.contains("-lwindlass") && flags.contains("/include"),
                "{flags}"
            );
        }
        Err(_) => windlass_tests::skip("the_library_is_found", "pkg-config is not there"),
    }
}
