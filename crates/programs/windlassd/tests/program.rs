//! The program itself: its options, its signals, the service manager, a kill.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::io::{BufRead, BufReader, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daemon::ask;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use windlass_sys::unix::{SocketKind, pair, send_with_fds};

fn command(directory: &Path) -> Command {
    let config = directory.join("windlass.toml");
    if !config.exists() {
        std::fs::write(&config, "").unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlassd"));
    command
        .env_remove("WINDLASS_SOCKET")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .arg("--config")
        .arg(config)
        .arg("--socket")
        .arg(directory.join("run/control.sock"))
        .arg("--runtime-dir")
        .arg(directory.join("run"))
        .arg("--state-dir")
        .arg(directory.join("state"))
        .stderr(Stdio::piped());
    command
}

/// A daemon of the real program, killed when dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command, directory: &Path) -> Self {
        let program = Self(command.spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        let socket = directory.join("run/control.sock");
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "windlassd does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        program
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned()
}

/// Each directory that is made on the way to the state directory is flushed in its parent: a power cut after the first
/// change does not take them away with the document. Read from the program's own system calls.
#[test]
fn new_directories_are_flushed_in_their_parents() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: new_directories_are_flushed_in_their_parents: there is no strace here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    let calls = base.join("calls");
    let plain = command(&base);
    let mut traced = Command::new("strace");
    // The tracer is the child of the program, not the other way round.
    traced.args(["-D", "-f", "-y", "-e", "trace=fsync", "-o"]);
    traced.arg(&calls).arg(plain.get_program());
    traced.args(plain.get_args().take(plain.get_args().len() - 1));
    traced.arg(base.join("a/b/state")).stderr(Stdio::null());
    drop(Program::start(&mut traced, &base));
    let until = Instant::now() + Duration::from_secs(10);
    let read = || std::fs::read_to_string(&calls).unwrap();
    while !read().contains("+++ killed by SIGKILL +++") {
        assert!(Instant::now() < until, "{}", read());
        std::thread::sleep(Duration::from_millis(5));
    }
    for parent in [base.clone(), base.join("a"), base.join("a/b")] {
        let flushed = format!("<{}>)", parent.display());
        assert!(read().contains(&flushed), "{flushed}: {}", read());
    }
}

/// The next message to the service manager. A process that is stopped and continued meanwhile waits anew.
fn told(manager: &UnixDatagram, bytes: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| Ok(recv(manager, &mut *bytes, RecvFlags::empty())?.0))
}

/// The service manager hears when the daemon is ready, reloads, is alive and ends; SIGTERM ends it with
/// code 0, and its socket is gone.
#[test]
fn the_service_manager_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut started = command(directory.path());
    started
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000");
    let mut program = Program::start(&mut started, directory.path());
    let mut heard = String::new();
    let mut until = |part: &str| {
        while !heard.contains(part) {
            let mut bytes = [0; 4096];
            let length = told(&manager, &mut bytes).expect(part);
            heard.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            heard.push('\n');
        }
        heard.clear();
    };
    until("READY=1");
    until("WATCHDOG=1");
    program.signal(Signal::HUP);
    until("MONOTONIC_USEC=");
    until("READY=1");
    program.signal(Signal::TERM);
    until("STOPPING=1");
    let status = program.0.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    assert!(!directory.path().join("run/control.sock").exists());
}

/// A socket that the service manager listens on is served, and stays when the daemon ends; one at another path is
/// refused.
#[test]
fn a_given_socket_is_served() {
    let name = "a_given_socket_is_served";
    if Command::new("systemd-socket-activate")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: {name}: there is no systemd-socket-activate here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let activated = |socket: &Path| {
        let daemon = command(directory.path());
        let mut activate = Command::new("systemd-socket-activate");
        activate.arg("-l").arg(socket).arg(daemon.get_program());
        activate.args(daemon.get_args()).stderr(Stdio::piped());
        activate
    };
    std::fs::create_dir(directory.path().join("run")).unwrap();
    let socket = directory.path().join("run/control.sock");
    let mut program = Program::start(&mut activated(&socket), directory.path());
    let (status, json) = ask(&socket, "POST", "/v1/bridges", Some(json!({"name": "br0"})));
    assert_eq!(status, 201, "{json}");
    program.signal(Signal::TERM);
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
    assert!(socket.exists(), "it is the service manager's");
    std::fs::remove_file(&socket).unwrap();

    let other = directory.path().join("other.sock");
    let child = activated(&other).stdout(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while std::os::unix::net::UnixStream::connect(&other).is_err() {
        assert!(Instant::now() < until, "nobody listens");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = child.wait_with_output().unwrap();
    assert_eq!(said.status.code(), Some(1));
    assert!(
        text(&said).contains("let --socket name the same"),
        "{}",
        text(&said)
    );
}

/// The soft limit of descriptors is raised to the hard one: it is lower than what a few hundred VNICs need.
#[test]
fn descriptors_are_not_scarce() {
    let directory = tempfile::tempdir().unwrap();
    let ours = command(directory.path());
    let mut limited = Command::new("sh");
    limited
        .args([
            "-c",
            "ulimit -S -n 64; ulimit -H -n 2000; exec \"$0\" \"$@\"",
        ])
        .arg(ours.get_program())
        .args(ours.get_args());
    let program = Program::start(&mut limited, directory.path());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.0.id())).unwrap();
    let open = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let numbers: Vec<_> = open.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["2000", "2000"]);
}

/// A reload takes new limits and another log level, says what needs a restart and why, and keeps everything where the
/// file has become bad.
#[test]
fn a_reload_takes_what_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("windlass.toml");
    let socket = directory.path().join("run/control.sock");
    let log = directory.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let mut started = command(directory.path());
    let program = Program::start(started.stderr(file), directory.path());
    let until = |part: &str| {
        let until = Instant::now() + Duration::from_secs(20);
        while !std::fs::read_to_string(&log).unwrap().contains(part) {
            assert!(Instant::now() < until, "\"{part}\" is not said");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let big = json!({"name": "br0", "properties": {"no": "x".repeat(2000)}});
    let code = || ask(&socket, "POST", "/v1/bridges", Some(big.clone())).1["code"].clone();
    assert_eq!(code(), "malformed");
    std::fs::write(&config, "body-bytes-max = 1024\nworkers = \"0-1\"").unwrap();
    program.signal(Signal::HUP);
    until("the options were read again");
    assert_eq!(code(), "too_large");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(
        said.contains("workers has changed and needs a restart: rings"),
        "{said}"
    );
    std::fs::write(&config, "body-bytes-max = 1").unwrap();
    program.signal(Signal::HUP);
    until("the old options hold");
    assert_eq!(code(), "too_large");
    std::fs::write(&config, "log-level = \"debug\"").unwrap();
    program.signal(Signal::HUP);
    until("DEBUG");
    assert_eq!(code(), "malformed");
}

/// After a kill the next daemon takes over the socket that was left and has the configuration; two cannot
/// have one state directory or one socket.
#[test]
fn kill_and_restart() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    let program = Program::start(&mut command(directory.path()), directory.path());
    let (status, json) = ask(&socket, "POST", "/v1/bridges", Some(json!({"name": "br0"})));
    assert_eq!(status, 201, "{json}");
    let second = command(directory.path()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second).contains("another windlassd"),
        "{}",
        text(&second)
    );
    program.signal(Signal::KILL);
    drop(program);
    assert!(socket.exists());
    let _program = Program::start(&mut command(directory.path()), directory.path());
    assert_eq!(ask(&socket, "GET", "/v1/bridges/br0", None).0, 200);
}

/// Waits until the service manager is told a line that starts so.
fn hear(manager: &UnixDatagram, wanted: &str) -> String {
    loop {
        let mut bytes = [0; 4096];
        let length = told(manager, &mut bytes).expect(wanted);
        let heard = std::str::from_utf8(&bytes[..length]).unwrap();
        if let Some(line) = heard.lines().find(|line| line.starts_with(wanted)) {
            return line.to_owned();
        }
    }
}

/// SIGUSR2 puts another process in the daemon's place: the service manager is told which, the configuration is there, and no
/// request is refused meanwhile. The successor can be upgraded likewise.
#[test]
fn an_upgrade_refuses_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (
        directory.path().join("run/control.sock"),
        directory.path().join("notify"),
    );
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut started = command(directory.path());
    started
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000");
    let mut program = Program::start(&mut started, directory.path());
    let hear = |wanted: &str| hear(&manager, wanted);
    hear("READY=1");
    assert_eq!(
        ask(&socket, "POST", "/v1/bridges", Some(json!({"name": "br0"}))).0,
        201
    );
    let pid_of = || {
        ask(&socket, "GET", "/v1/daemon", None).1["pid"]
            .as_u64()
            .unwrap()
    };
    let is_over = AtomicBool::new(false);
    let pids = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut pids = vec![pid_of()];
            while !is_over.load(Ordering::Relaxed) {
                let (status, bridge) = ask(&socket, "GET", "/v1/bridges/br0", None);
                assert_eq!(status, 200, "{bridge}");
                let pid = pid_of();
                if pids.last() != Some(&pid) {
                    pids.push(pid);
                }
            }
            pids
        });
        program.signal(Signal::USR2);
        let second = hear("MAINPID=");
        hear("READY=1");
        // It feeds the watchdog although it is another process than the one that was started.
        hear("WATCHDOG=1");
        assert_eq!(program.0.wait().unwrap().code(), Some(0));
        let pid = |line: &str| Pid::from_raw(line["MAINPID=".len()..].parse().unwrap()).unwrap();
        kill_process(pid(&second), Signal::USR2).unwrap();
        let third = hear("MAINPID=");
        hear("READY=1");
        std::thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Relaxed);
        let pids = asking.join().unwrap();
        kill_process(pid(&third), Signal::TERM).unwrap();
        hear("STOPPING=1");
        pids
    });
    assert_eq!(pids.len(), 3, "{pids:?}");
    let until = Instant::now() + Duration::from_secs(20);
    while socket.exists() {
        assert!(
            Instant::now() < until,
            "the last one takes its socket with it"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A successor that cannot serve ends before its predecessor lets go of anything: that one serves on.
#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    let mut program = Program::start(&mut command(directory.path()), directory.path());
    assert_eq!(
        ask(&socket, "POST", "/v1/bridges", Some(json!({"name": "br0"}))).0,
        201
    );
    let document = directory.path().join("state/document.json");
    let good = std::fs::read(&document).unwrap();
    std::fs::write(&document, "{").unwrap();
    program.signal(Signal::USR2);
    let mut lines = BufReader::new(program.0.stderr.take().unwrap()).lines();
    let serves_on = lines.any(|line| line.unwrap().contains("this daemon serves on"));
    assert!(serves_on);
    let daemon = ask(&socket, "GET", "/v1/daemon", None).1;
    assert_eq!(daemon["pid"], program.0.id());
    std::fs::write(&document, good).unwrap();
    assert_eq!(
        ask(&socket, "POST", "/v1/bridges", Some(json!({"name": "br1"}))).0,
        201
    );
    program.signal(Signal::TERM);
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
}

/// A predecessor that dies, at whichever step of handing over, leaves a successor that serves.
#[test]
fn a_predecessor_that_dies_leaves_a_daemon() {
    for steps in 0..=5 {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/control.sock");
        std::fs::create_dir(directory.path().join("run")).unwrap();
        let (ours, theirs) = pair(SocketKind::SeqPacket).unwrap();
        for end in [&ours, &theirs] {
            rustix::io::ioctl_fionbio(end, false).unwrap();
        }
        let mut started = command(directory.path());
        started.arg("--successor").stdin(theirs);
        let program = Program(started.spawn().unwrap());
        drop(started);
        let hear = || assert_eq!(rustix::io::read(&ours, &mut [0]).unwrap(), 1);
        let say = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
            send_with_fds(&ours, &[IoSlice::new(bytes)], fds).unwrap();
        };
        let counters = br#"c[["nobody",{"rx_frames":7}]]"#;
        let all: [&dyn Fn(); 5] = [
            &hear,
            &|| say(b"l", &[UnixListener::bind(&socket).unwrap().as_fd()]),
            &|| {
                say(b"a", &[]);
                hear();
            },
            &|| {
                say(b"g", &[]);
                hear();
            },
            &|| say(counters, &[]),
        ];
        all.iter().take(steps).for_each(|step| step());
        drop(ours);
        let until = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "after {steps} steps");
            std::thread::sleep(Duration::from_millis(5));
        }
        let daemon = ask(&socket, "GET", "/v1/daemon", None).1;
        assert_eq!(daemon["pid"], program.0.id(), "after {steps} steps");
    }
}

/// A zone shows the lines of the log that its members have caused of late, and its owner's limit of them.
#[test]
fn log_lines_of_a_zone_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    // A line counts for a second; five at once count for five.
    let config = directory.path().join("windlass.toml");
    std::fs::write(&config, "log-lines-per-s = 1\n").unwrap();
    let mut program = Program::start(&mut command(directory.path()), directory.path());
    let must = |path: &str, body: Value| {
        let (status, answer) = ask(&socket, "POST", path, Some(body));
        assert_eq!(status, 201, "{answer}");
    };
    must("/v1/bridges", json!({"name": "br0"}));
    let zone = json!({"name": "z", "owner_uid": 4321, "owner_gid": 4321, "bridges": ["br0"]});
    must("/v1/zones", zone);
    for id in 0..5 {
        let waits = json!({"kind": "memif", "socket": "m.sock", "id": id, "role": "client"});
        let vnic = json!({"name": format!("z{id}"), "zone": "z", "bridge": "br0", "attach": waits});
        must("/v1/vnics", vnic);
    }
    let shown = ask(&socket, "GET", "/v1/zones/z", None).1;
    assert!(shown["log_lines"].as_u64() >= Some(1), "{shown}");
    let mut limits = shown["limits"].as_array().unwrap().iter();
    let row = limits
        .find(|row| row["limit"] == "log-lines-burst")
        .unwrap();
    assert_eq!((&row["used"], &row["max"]), (&json!(0), &json!(64)));
    program.signal(Signal::TERM);
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
}

/// The log says who changed what, who was refused, and how members fare, as fields.
#[test]
fn the_log_has_fields() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    std::fs::write(
        directory.path().join("windlass.toml"),
        "log-format = \"json\"\n",
    )
    .unwrap();
    let mut program = Program::start(&mut command(directory.path()), directory.path());
    let peer = directory.path().join("run/peer.sock");
    let attach = json!({"kind": "memif", "socket": peer, "role": "client"});
    for (path, body) in [
        ("/v1/bridges", json!({"name": "br0"})),
        (
            "/v1/vnics",
            json!({"name": "web", "bridge": "br0", "attach": attach}),
        ),
    ] {
        let (status, answer) = ask(&socket, "POST", path, Some(body));
        assert_eq!(status, 201, "{answer}");
    }
    for patch in [
        json!({"properties": {"mtu": 1400}}),
        json!({"attach": {"kind": "none"}}),
    ] {
        let (status, answer) = ask(&socket, "PATCH", "/v1/vnics/web", Some(patch));
        assert_eq!(status, 200, "{answer}");
    }
    std::thread::sleep(Duration::from_millis(300));
    program.signal(Signal::TERM);
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
    let lines = BufReader::new(program.0.stderr.take().unwrap()).lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    let found = |wanted: Value| {
        let wanted = wanted.as_object().unwrap();
        let has = |line: &Value| wanted.iter().all(|(key, value)| line[key] == *value);
        assert!(lines.iter().any(has), "{wanted:?} is not in {lines:#?}");
    };
    let uid = rustix::process::getuid().as_raw();
    found(
        json!({"event": "change", "uid": uid, "change": "create", "kind": "bridge", "name": "br0"}),
    );
    found(
        json!({"event": "change", "uid": uid, "change": "set", "kind": "vnic", "name": "web", "properties": "mtu"}),
    );
    found(
        json!({"event": "change", "uid": uid, "change": "set", "kind": "vnic", "name": "web", "properties": "attach"}),
    );
    let changes = lines.iter().filter(|line| line["event"] == "change");
    assert_eq!(changes.count(), 4, "{lines:#?}");
    found(json!({"event": "waiting", "kind": "vnic", "name": "web", "zone": "", "level": "info"}));
}

/// `--check-config` finds what is wrong with the options and the stored document, and
/// `--print-default-config` prints a file that it finds good.
#[test]
fn configuration_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("windlass.toml");
    let check = || {
        command(directory.path())
            .arg("--check-config")
            .output()
            .unwrap()
    };
    assert!(check().status.success(), "{}", text(&check()));
    let printed = command(directory.path())
        .arg("--print-default-config")
        .output()
        .unwrap();
    std::fs::write(&config, printed.stdout).unwrap();
    assert!(check().status.success(), "{}", text(&check()));
    for (bad, part) in [
        ("wrokers = \"0\"", "wrokers"),
        ("workers = \"x\"", "workers"),
        (
            "workers = \"65535\"",
            "core 65535 is not one that windlassd may run on",
        ),
        ("connections-max = 0", "connections-max"),
        ("log-level = \"loud\"", "loud"),
        ("=", "windlass.toml"),
    ] {
        std::fs::write(&config, bad).unwrap();
        let output = check();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains(part), "{bad}: {}", text(&output));
    }
    std::fs::write(&config, "").unwrap();
    std::fs::create_dir(directory.path().join("state")).unwrap();
    std::fs::write(directory.path().join("state/document.json"), "{}").unwrap();
    assert!(text(&check()).contains("revision"), "{}", text(&check()));
    let started = command(directory.path()).output().unwrap();
    assert_eq!(
        started.status.code(),
        Some(1),
        "a damaged document must not be an empty one"
    );
    let version = command(directory.path()).arg("--version").output().unwrap();
    assert!(
        text(&version).starts_with("windlassd "),
        "{}",
        text(&version)
    );
}

/// A file at the path of the socket that is no socket is refused and left alone.
#[test]
fn what_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("run")).unwrap();
    let path = directory.path().join("run/control.sock");
    std::fs::write(&path, "data").unwrap();
    let output = command(directory.path()).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

/// The unit is one that systemd accepts.
#[test]
fn the_unit_is_good() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/windlassd.service");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("windlassd.service");
    let here = std::fs::read_to_string(&unit).unwrap();
    let here = here.replace("/usr/bin/windlassd", env!("CARGO_BIN_EXE_windlassd"));
    let undocumented = here
        .lines()
        .filter(|line| !line.starts_with("Documentation="));
    std::fs::write(&copy, undocumented.collect::<Vec<_>>().join("\n")).unwrap();
    let Ok(output) = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&copy)
        .output()
    else {
        eprintln!("skipped: the_unit_is_good: there is no systemd-analyze here");
        return;
    };
    let said = text(&output);
    let ours: Vec<_> = said
        .lines()
        .filter(|line| line.contains("windlassd"))
        .collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

/// A change that waits for a plugin is answered when the daemon ends.
#[test]
fn who_waits_is_told_of_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(&mut command(directory.path()), directory.path());
    let socket = directory.path().join("run/control.sock");
    let plugin = directory.path().join("plugin.sock");
    let overlay = json!({"name": "a", "search": "plugin", "properties": {
        "vnetid": 23, "vxlan/listen-ip": "127.0.0.1", "plugin/socket": plugin,
    }});
    let waits = std::thread::spawn(move || ask(&socket, "POST", "/v1/overlays", Some(overlay)));
    while !plugin.exists() {
        assert!(!waits.is_finished());
        std::thread::sleep(Duration::from_millis(1));
    }
    program.signal(Signal::TERM);
    let (status, answer) = waits.join().unwrap();
    assert_eq!((status, &answer["code"]), (503, &json!("busy")), "{answer}");
    assert!(program.0.wait().unwrap().success());
}
