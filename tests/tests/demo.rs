//! The demo: it holds what it claims, as root and as an ordinary user, and leaves nothing, also when it is
//! stopped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_tests::{Lab, copy_program, program, run, skip, until};

/// A copy of the demo and its programs in the lab's directory, where everybody may read and run them, and
/// by whose path their processes can be told from all others.
fn copied(lab: &Lab, name: &str) -> Option<PathBuf> {
    if Command::new("iperf3").arg("--version").output().is_err() {
        skip(name, "iperf3 is missing");
        return None;
    }
    let scripts = lab.directory().join("scripts");
    fs::create_dir(&scripts).expect("a directory");
    fs::set_permissions(lab.directory(), PermissionsExt::from_mode(0o755)).expect("opened");
    let demo = scripts.join("demo");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo");
    copy_program(&source, &demo);
    for name in ["windlass", "windlassd"] {
        copy_program(&program(name), &lab.directory().join(name));
    }
    Some(demo)
}

/// The demo with short measurements, in a process group of its own.
fn demo(lab: &Lab, mut command: Command) -> Command {
    command
        .env("WINDLASS_BIN_DIR", lab.directory())
        .env("SECONDS_EACH", "2")
        // Its figures need both cores, which other tests use now; programs.rs has the same programs.
        .env("SOCKETS", "no");
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Processes whose command line names the lab's directory.
fn processes(lab: &Lab) -> Vec<String> {
    let directory = lab.directory().to_str().expect("text").to_owned();
    let lines = command_lines();
    lines.filter(|line| line.contains(&directory)).collect()
}

/// The command line of each process.
fn command_lines() -> impl Iterator<Item = String> {
    let all = fs::read_dir("/proc").expect("a directory");
    let lines = all.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
}

/// What `ip netns` and the mounts show, which the demo must not change.
fn names() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| ["red", "blue", "stranger"].contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

/// As root every claim holds, and no process or namespace is left.
#[test]
fn the_demo_holds() {
    let Some(lab) = Lab::start("the_demo_holds") else {
        return;
    };
    let Some(script) = copied(&lab, "the_demo_holds") else {
        return;
    };
    let before = names();
    let done = run(&mut demo(&lab, Command::new(script)));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(
        done.out.contains("all of it holds") && !done.out.contains("FAILED"),
        "{}",
        done.out
    );
    for claim in [
        "TCP, red to blue",
        "UDP, red to blue",
        "stranger does not reach red",
    ] {
        assert!(done.out.contains(claim), "{claim}: {}", done.out);
    }
    until("its processes are gone", || processes(&lab).is_empty());
    assert_eq!(names(), before);
}

/// So it is with the demo of overlays: three hosts, a registry that goes and comes, a guest that moves.
#[test]
fn the_overlay_demo_holds() {
    const NAME: &str = "the_overlay_demo_holds";
    for tool in ["iperf3", "etcd"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(NAME, &format!("{tool} is missing"));
        }
    }
    let Some(_lab) = Lab::start(NAME) else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo-overlay");
    let mut demo = Command::new(script);
    let programs = program("windlassd");
    demo.env("WINDLASS_BIN_DIR", programs.parent().expect("a directory"));
    let done = run(demo.env("SECONDS_EACH", "1").stdin(Stdio::null()));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains("All 9 claims hold"), "{}", done.out);
    let is_its =
        |line: &String| line.contains("/run/demo/etcd") || line.contains("/run/demo/cache");
    until("its processes are gone", || {
        !command_lines().any(|line| is_its(&line))
    });
}

/// As a user without any privilege the same holds, in a user namespace.
#[test]
fn the_demo_holds_for_an_ordinary_user() {
    let name = "the_demo_holds_for_an_ordinary_user";
    let Some(lab) = Lab::start(name) else { return };
    let Some(script) = copied(&lab, name) else {
        return;
    };
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command
    };
    let may = run(nobody().args(["unshare", "-Urnm", "true"]));
    if may.code != 0 {
        return skip(name, "user namespaces are not allowed here");
    }
    if run(nobody().args(["test", "-w", "/dev/net/tun"])).code != 0 {
        return skip(name, "only root may open /dev/net/tun here");
    }
    let mut command = nobody();
    command.arg(script);
    let done = run(&mut demo(&lab, command));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains("all of it holds"), "{}", done.out);
    until("its processes are gone", || processes(&lab).is_empty());
}

/// Ctrl-C in the middle ends it with code 130; the daemon and all else that it has started are gone.
#[test]
fn a_stopped_demo_leaves_nothing() {
    let Some(lab) = Lab::start("a_stopped_demo_leaves_nothing") else {
        return;
    };
    let Some(script) = copied(&lab, "a_stopped_demo_leaves_nothing") else {
        return;
    };
    let before = names();
    // Whoever runs the tests in the background may have them ignore the signal, and a shell cannot trap it then.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(script);
    let mut child = demo(&lab, command)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    until("its daemon runs", || {
        processes(&lab)
            .iter()
            .any(|line| line.contains("windlassd"))
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    let group = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).expect("a group");
    assert_eq!(child.wait().expect("a child").code(), Some(130));
    until("its processes are gone", || processes(&lab).is_empty());
    assert_eq!(names(), before);
}
