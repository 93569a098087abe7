//! `windlass run` becomes the program, and `windlass sockets` and `windlass stackdump` say what a broker says.

use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use windlass_broker::{Broker, Settings};
use windlass_sys::signals::Signals;
use windlass_sys::unix::{self, SocketKind};

/// A library that is there on every system: this program has it loaded.
fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut libraries =
        paths.filter(|path| path.contains("/libgcc_s") || path.contains("/libc.so"));
    libraries.next().expect("a library").into()
}

fn run(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .env("WINDLASS_SOCKETS", socket)
        .args(["run", "--library"])
        .arg(library());
    command
}

/// A broker in a thread.
struct Brokered {
    path: PathBuf,
    /// Closing it ends the broker.
    signals: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

fn broker() -> Brokered {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let settings = Settings {
        others: false,
        program: PathBuf::new(),
        policy: None,
        linger: None,
    };
    let broker = Broker::listen(&path, None, settings, Box::new(|_, _| {})).expect("broker");
    let (signals, writer) = std::io::pipe().expect("a pipe");
    let signals = Signals::from(OwnedFd::from(signals));
    let thread = std::thread::spawn(move || broker.run(&signals).expect("runs"));
    Brokered {
        path,
        signals: Some(writer),
        thread: Some(thread),
        _dir: dir,
    }
}

impl Drop for Brokered {
    fn drop(&mut self) {
        self.signals.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Builds the broker's program beside the command, where a test of this package alone has not.
fn build_broker() {
    let command = Path::new(env!("CARGO_BIN_EXE_windlass"));
    let profile = command.parent().expect("a directory");
    if profile.join("windlass-broker").exists() {
        return;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "-p", "windlass-broker", "--target-dir"]);
    build.arg(profile.parent().expect("a target directory"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let done = build.output().expect("cargo");
    assert!(done.status.success(), "{}", text(&done.stderr));
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The program has the process id, the exit status and the streams of `windlass run`; nothing is said.
#[test]
fn the_program_takes_the_process() {
    let broker = broker();
    let child = run(&broker.path)
        .args(["--", "sh", "-c", "cat; echo $$; echo err >&2; exit 9"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let pid = child.id();
    let output = child.wait_with_output().expect("output");
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(text(&output.stdout), format!("{pid}\n"));
    assert_eq!(text(&output.stderr), "err\n");
    let output = run(&broker.path)
        .args(["sh", "-c", "kill -TERM $$"])
        .output()
        .expect("output");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(15)
    );
}

/// Ours stands first in LD_PRELOAD, others stay and none stands twice; options become variables, and only those that
/// were
/// given.
#[test]
fn the_environment_says_what_was_asked() {
    let broker = broker();
    let library = library();
    let library = library.to_str().expect("text");
    let show =
        "echo $LD_PRELOAD; echo ${WINDLASS_SPIN-none} ${WINDLASS_SHARE-none} ${WINDLASS_UNIX-none}";
    let output = run(&broker.path)
        .args(["sh", "-c", show])
        .env_remove("LD_PRELOAD")
        .output()
        .expect("output");
    assert_eq!(text(&output.stdout), format!("{library}\nnone none none\n"));
    let output = run(&broker.path)
        .args(["--spin", "50", "--share", "--unix", "sh", "-c", show])
        .env("LD_PRELOAD", format!("{library} {library}"))
        .output()
        .expect("output");
    assert_eq!(text(&output.stdout), format!("{library}\n50 1 1\n"));
    let bad = run(&broker.path)
        .args(["--spin", "1000001", "true"])
        .output()
        .expect("output");
    assert_eq!(bad.status.code(), Some(2));
}

/// Blocked and ignored signals are as the caller left them, SIGPIPE among them, and a closed stream stays closed.
#[test]
fn signals_and_streams_are_left_alone() {
    let broker = broker();
    let lines = |prepare: &str| {
        let mut script = format!("{prepare} exec \"$@\"");
        script.push_str(" 2>/dev/null");
        let run = run(&broker.path);
        let show =
            "grep -E '^Sig(Blk|Ign)' /proc/self/status; test -e /proc/self/fd/0 && echo open";
        let plain = Command::new("sh")
            .args(["-c", &script, "sh", "sh", "-c", show])
            .output()
            .expect("plain");
        let mut through = Command::new("sh");
        through
            .args(["-c", &script, "sh"])
            .arg(run.get_program())
            .args(run.get_args());
        let through = through
            .env("WINDLASS_SOCKETS", &broker.path)
            .args(["sh", "-c", show])
            .output();
        (
            text(&plain.stdout).to_owned(),
            text(&through.expect("through").stdout).to_owned(),
        )
    };
    for prepare in ["", "trap '' PIPE;", "trap '' HUP INT;", "exec <&-;"] {
        let (plain, through) = lines(prepare);
        assert!(plain.contains("SigIgn"), "{plain}");
        assert_eq!(plain, through, "{prepare}");
    }
}

/// What cannot be executed is told as env(1) tells it: 127 where there is nothing, 126 else; a missing library is
/// named.
#[test]
fn what_cannot_be_executed() {
    let broker = broker();
    for (program, code) in [
        ("/nonexistent/program", 127),
        ("windlass-no-such-program", 127),
        ("/etc/passwd", 126),
        ("/", 126),
    ] {
        let output = run(&broker.path).arg(program).output().expect("output");
        assert_eq!(output.status.code(), Some(code), "{program}");
        let said = text(&output.stderr);
        assert!(
            said.starts_with(&format!("windlass: run {program} failed: ")),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let mut none = Command::new(env!("CARGO_BIN_EXE_windlass"));
    let output = none
        .args(["run", "--library", "/nonexistent.so", "true"])
        .output()
        .expect("output");
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("/nonexistent.so"));
}

/// `--alloc` adds the allocator that lies beside the other library, once, before what was there; an error if there is none.
#[test]
fn the_allocator_is_preloaded_too() {
    let broker = broker();
    let dir = tempfile::tempdir().expect("directory");
    let place = |name: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(library(), &path).expect("a link");
        path
    };
    let sockets = place("sockets.so");
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .env("WINDLASS_SOCKETS", &broker.path)
        .args(["run", "--alloc", "--library"])
        .arg(&sockets)
        .args(["printenv", "LD_PRELOAD"]);
    let output = command.output().expect("output");
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("libwindlass_alloc.so"));

    let allocator = place("libwindlass_alloc.so");
    let other = library();
    command.env(
        "LD_PRELOAD",
        format!("{} {}", allocator.display(), other.display()),
    );
    let output = command.output().expect("output");
    let all = [sockets, allocator, other].map(|path| path.display().to_string());
    assert_eq!(text(&output.stdout).trim(), all.join(":"));
}

/// The same program without a loader: its header of that kind becomes an empty one.
fn without_loader(program: &Path, to: &Path) {
    let mut bytes = std::fs::read(program).expect("a program");
    let headers = (64..64 + 56 * usize::from(bytes[56])).step_by(56);
    for at in headers.filter(|at| bytes[*at] == 3).collect::<Vec<_>>() {
        bytes[at] = 0;
    }
    write_program(to, &bytes);
}

/// Writes a program, by a process of its own: a child that another test starts meanwhile would keep a descriptor that can write, and until
/// that has become its program nobody could run this one (`ETXTBSY`, execve(2)).
fn write_program(to: &Path, bytes: &[u8]) {
    let mut command = Command::new("sh");
    command
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(to);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("a shell");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(bytes).expect("a program");
    drop(input);
    assert!(child.wait().expect("a shell").success());
}

/// `--check` answers without running the program, `run` warns once of one that cannot be accelerated, and `-v` asks the library for
/// a summary.
#[test]
fn programs_are_checked() {
    let broker = broker();
    let dir = tempfile::tempdir().expect("directory");
    let fixed = dir.path().join("static");
    without_loader(Path::new("/bin/sh"), &fixed);
    let check = |words: &[&str], program: &Path| {
        let mut command = run(&broker.path);
        let output = command.arg("--check").args(words).arg(program).output();
        output.expect("output")
    };
    let script = dir.path().join("script");
    write_program(&script, b"#!/bin/sh\necho ran\n");
    let good = check(&[], &script);
    let answer = format!(
        "{} runs /bin/sh, which can be accelerated\n",
        script.display()
    );
    assert_eq!(text(&good.stdout), answer);
    assert_eq!((good.status.code(), text(&good.stderr)), (Some(0), ""));
    let good = check(&["--json"], &script);
    assert!(text(&good.stdout).contains(r#""runs":"/bin/sh""#));
    let bad = check(&[], &fixed);
    assert_eq!((bad.status.code(), text(&bad.stdout)), (Some(1), ""));
    assert!(
        text(&bad.stderr).contains("statically linked"),
        "{}",
        text(&bad.stderr)
    );
    let bad = check(&["--json"], &fixed);
    assert!(text(&bad.stderr).contains(r#""code":"unsupported""#));
    assert_eq!(
        check(&[], Path::new("/nonexistent")).status.code(),
        Some(127)
    );
    assert_eq!(
        check(&[], Path::new("/etc/passwd")).status.code(),
        Some(126)
    );
    let output = run(&broker.path).arg(&fixed).output().expect("output");
    let said = text(&output.stderr);
    assert!(said.starts_with("windlass: warning: "), "{said}");
    assert!(said.contains("statically linked"), "{said}");
    let output = run(&broker.path).arg(&script).output().expect("output");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("ran\n", ""),
        "no warning"
    );
    let show = ["sh", "-c", "echo ${WINDLASS_SUMMARY-none}"];
    for (word, said) in [("-v", "1\n"), ("--unix", "none\n")] {
        let output = run(&broker.path).arg(word).args(show).output();
        assert_eq!(text(&output.expect("output").stdout), said);
    }
}

/// Where nobody listens a private broker comes up, and listens before the program starts: no child of the program, in a session of its
/// own, without its descriptors, and a second program finds it.
#[test]
fn a_private_broker_is_started() {
    build_broker();
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let mut command = run(&path);
    let script = "test -S $WINDLASS_SOCKETS || echo nobody listens; sleep 0.3; cat /proc/$$/task/$$/children";
    command.args(["-v", "sh", "-c", script]);
    let output = command.process_group(0).output().expect("output");
    assert!(
        text(&output.stderr).contains("private broker started"),
        "{}",
        text(&output.stderr)
    );
    assert!(
        text(&output.stdout).trim().split(' ').count() <= 1,
        "only the cat that shows it"
    );
    let socket = unix::connect(&path, SocketKind::SeqPacket).expect("it listens");
    let pid = unix::peer_credentials(&socket)
        .expect("peer")
        .pid
        .expect("visible");
    let again = run(&path).args(["-v", "true"]).output().expect("output");
    assert!(
        text(&again.stderr).contains("broker at"),
        "{}",
        text(&again.stderr)
    );
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    assert_eq!(fields[3], pid.to_string(), "a session of its own");
    let links: Vec<_> = (0..3)
        .map(|fd| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).expect("open"))
        .collect();
    assert!(
        links.iter().all(|link| link == Path::new("/dev/null")),
        "{links:?}"
    );
    let pid = Pid::from_raw(i32::try_from(pid).expect("pid")).expect("pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("ended");
}

/// Listings of a broker without processes are empty in every form, and one that is not there is told with what to do.
#[test]
fn listings() {
    let broker = broker();
    let windlass = |words: &[&str], socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command
            .env("WINDLASS_SOCKETS", socket)
            .args(words)
            .output()
            .expect("output")
    };
    assert_eq!(
        text(&windlass(&["sockets", "--json"], &broker.path).stdout),
        "[]\n"
    );
    assert_eq!(
        text(&windlass(&["sockets", "-p", "-o", "all"], &broker.path).stdout),
        ""
    );
    assert!(text(&windlass(&["sockets"], &broker.path).stdout).starts_with("LOCAL"));
    assert_eq!(
        text(&windlass(&["stackdump", "all", "--json"], &broker.path).stdout),
        "[]\n"
    );
    assert_eq!(
        windlass(&["stackdump", "1"], &broker.path).status.code(),
        Some(4)
    );
    assert_eq!(
        windlass(&["stackdump", "x"], &broker.path).status.code(),
        Some(2)
    );
    let absent = windlass(&["sockets"], Path::new("/nonexistent/sockets.sock"));
    assert_eq!(absent.status.code(), Some(3));
    assert!(text(&absent.stderr).contains("windlass run"));
}
