//! The two programs together: who may do what, and what a person is told.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass_tests::{Daemon, Lab, Output, copy_program, program, run, skip, until};

const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

/// Runs a program as another user, with no group and no capability.
fn as_user(uid: u32, program: &std::path::Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={uid}"))
        .arg(format!("--regid={uid}"));
    command.arg("--clear-groups").arg("--").arg(program);
    command
}

/// Runs `windlass` as another user.
fn owner_does(daemon: &Daemon, uid: u32, words: &str) -> Output {
    // The build may lie where that user may not look.
    let copy = daemon.directory().join("windlass");
    if !copy.exists() {
        copy_program(&program("windlass"), &copy);
    }
    for path in [
        daemon.directory(),
        daemon.directory().parent().expect("a lab"),
    ] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("opened");
    }
    let mut command = as_user(uid, &copy);
    run(command
        .arg("--socket")
        .arg(daemon.socket())
        .args(words.split_whitespace()))
}

/// Two owners, each with a zone: each makes and deletes VNICs of his own, in his own namespace and on the
/// granted bridge; he neither sees nor changes the other's, nor makes bridges, uplinks, TAPs elsewhere,
/// sockets outside his directory, or settings that protect others from him.
#[test]
fn owners_are_confined_to_their_zones() {
    let Some(lab) = Lab::start("owners_are_confined_to_their_zones") else {
        return;
    };
    if Command::new("setpriv").arg("-V").output().is_err() {
        return skip("owners_are_confined_to_their_zones", "setpriv is missing");
    }
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("bridge create secret");
    for (zone, uid) in [("red", RED), ("blue", BLUE)] {
        let netns = lab.namespace(zone);
        daemon.must(&format!(
            "zone create {zone} --owner {uid} --group {uid} --netns {netns} --bridge br0"
        ));
        let made = owner_does(
            &daemon,
            uid,
            &format!(
                "vnic create {zone}0 --zone {zone} --bridge br0 --attach tap,name=eth0,netns={netns}"
            ),
        );
        assert_eq!(made.code, 0, "{}", made.err);
        daemon.wait_for_state("vnic", &format!("{zone}0"), "up");
    }
    let blue_netns = lab.name("blue");
    let before = daemon.must("export");
    for (words, codes) in [
        ("vnic delete blue0".to_owned(), [4, 6]),
        ("vnic set blue0 mtu=1000".to_owned(), [4, 6]),
        ("vnic set red0 mac-nospoof=off".to_owned(), [6, 6]),
        ("vnic set red0 vlan=7".to_owned(), [6, 6]),
        ("bridge create mine".to_owned(), [6, 6]),
        ("bridge delete br0".to_owned(), [6, 6]),
        ("zone set red --bridge secret".to_owned(), [6, 6]),
        (
            "uplink create up0 --device lo --bridge br0".to_owned(),
            [6, 6],
        ),
        (
            "vnic create x --zone red --bridge secret".to_owned(),
            [4, 6],
        ),
        ("vnic create x --zone blue --bridge br0".to_owned(), [4, 6]),
        ("vnic create x --bridge br0".to_owned(), [6, 6]),
        (
            format!("vnic create x --zone red --bridge br0 --attach tap,netns={blue_netns}"),
            [6, 6],
        ),
        (
            "vnic create x --zone red --bridge br0 --attach tap".to_owned(),
            [6, 6],
        ),
        (
            "vnic create x --zone red --bridge br0 --attach memif,socket=/tmp/x,role=server"
                .to_owned(),
            [6, 6],
        ),
        ("fdb add br0 02:00:00:00:00:77 red0".to_owned(), [6, 6]),
    ] {
        let done = owner_does(&daemon, RED, &words);
        assert!(
            codes.contains(&done.code),
            "red: windlass {words}: {} {}",
            done.code,
            done.err
        );
    }
    assert_eq!(daemon.must("export"), before, "nothing has changed");
    let seen = owner_does(&daemon, RED, "vnic show");
    assert!(
        seen.out.contains("red0") && !seen.out.contains("blue0"),
        "{}",
        seen.out
    );
    let stranger = owner_does(&daemon, 60_003, "vnic show --json");
    assert_eq!(
        (stranger.code, stranger.out.trim()),
        (0, "[]"),
        "{}",
        stranger.err
    );
    assert_eq!(owner_does(&daemon, RED, "vnic delete red0").code, 0);
    assert!(!lab.ip("red", "-o link show").contains("eth0"));
}

/// A zone's owner may put what he likes into his directory: a link there leads the daemon, which is root, neither to make
/// a socket elsewhere nor to connect in his name to another zone's. The VNIC waits and says why.
#[test]
fn links_of_owners_lead_nowhere() {
    let Some(lab) = Lab::start("links_of_owners_lead_nowhere") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (zone, uid) in [("red", RED), ("blue", BLUE)] {
        daemon.must(&format!(
            "zone create {zone} --owner {uid} --group {uid} --bridge br0"
        ));
    }
    let zones = daemon.runtime_dir().join("zones");
    daemon.must(
        "vnic create blue0 --zone blue --bridge br0 --attach memif,socket=m.sock,role=server",
    );
    let victim = zones.join("blue/m.sock");
    until("blue's socket is there", || victim.exists());
    let link = |to: &std::path::Path, name: &str| {
        std::os::unix::fs::symlink(to, zones.join("red").join(name)).expect("a link");
    };
    link(&zones.join("blue"), "way");
    link(&victim, "socket");
    let guest =
        std::os::unix::net::UnixListener::bind(zones.join("blue/v.sock")).expect("a socket");
    guest.set_nonblocking(true).expect("a socket");
    for (name, attach, part) in [
        (
            "red0",
            "memif,socket=way/new.sock,role=server",
            "symbolic link",
        ),
        ("red1", "memif,socket=socket,role=client", "socket: "),
        ("red2", "memif,socket=way/m.sock,role=client", "m.sock: "),
        (
            "red3",
            "vhost-user,socket=way/v.sock,role=client",
            "v.sock: ",
        ),
    ] {
        daemon.must(&format!(
            "vnic create {name} --zone red --bridge br0 --attach {attach}"
        ));
        let reason = daemon.wait_for_state("vnic", name, "waiting");
        assert!(reason.contains(part), "{name}: {reason}");
    }
    std::thread::sleep(Duration::from_millis(500));
    for name in ["blue0", "red1", "red2"] {
        assert_eq!(daemon.show("vnic", name)["connects"], 0, "{name}");
    }
    assert!(!zones.join("blue/new.sock").exists());
    assert!(guest.accept().is_err(), "nobody came to blue's guest");
    daemon.assert_alive();
    for name in ["red0", "red1", "red2", "red3"] {
        daemon.must(&format!("vnic delete {name}"));
    }
    assert!(victim.exists());
}

/// Names that try to be paths, or anything else but names, are refused before anything is done.
#[test]
fn names_are_not_paths() {
    let Some(lab) = Lab::start("names_are_not_paths") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for name in [
        "../x",
        "a/b",
        ".",
        "..",
        "/etc/passwd",
        "a%2fb",
        "-x",
        "a\u{e9}",
        "a b",
        "",
    ] {
        for words in [
            &["bridge", "create", "--", name][..],
            &["vnic", "create", "--bridge", "br0", "--", name],
            &["zone", "create", "--owner", "1", "--", name],
            &[
                "uplink", "create", "--device", name, "--bridge", "br0", "up0",
            ],
            &["bridge", "delete", "--", name],
        ] {
            let done = run(daemon.command().args(words));
            assert!(
                [1, 2].contains(&done.code),
                "{words:?}: {} {}",
                done.code,
                done.err
            );
        }
    }
    for attach in [
        "tap,netns=../../etc",
        "tap,netns=a/b",
        "tap,name=../x",
        "tap,name=much-too-long-a-name",
    ] {
        let done = daemon.try_do(&format!("vnic create v0 --bridge br0 --attach {attach}"));
        assert!(
            [1, 2].contains(&done.code),
            "{attach}: {} {}",
            done.code,
            done.err
        );
    }
    for path in [
        "/v1/bridges/..%2f..%2fx",
        "/v1/bridges/../zones",
        "//v1/bridges",
        "/v1/vnics/%00",
    ] {
        let answer = ask(
            &daemon,
            &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        );
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
    }
    daemon.assert_alive();
    assert_eq!(daemon.json("vnic show"), serde_json::json!([]));
}

/// Sends bytes to the control socket and gives what comes back until it closes.
fn ask(daemon: &Daemon, request: &str) -> String {
    let mut stream = UnixStream::connect(daemon.socket()).expect("connected");
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .expect("a socket");
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Requests that are too large, not HTTP or not JSON get an error or a closed connection; the daemon
/// serves on.
#[test]
fn malformed_and_oversized_requests() {
    let Some(lab) = Lab::start("malformed_and_oversized_requests") else {
        return;
    };
    let mut daemon = lab.daemon();
    let head = "POST /v1/bridges HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let huge = format!("{{\"name\": \"{}\"}}", "a".repeat(32 << 20));
    let cases = [
        "\0\0\0\0\r\n\r\n".to_owned(),
        "GET /v1/bridges\r\n\r\n".to_owned(),
        format!(
            "GET /{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "a".repeat(1 << 20)
        ),
        format!("{head}Content-Length: 5\r\n\r\n{{\"nam"),
        format!("{head}Content-Length: {}\r\n\r\n{huge}", huge.len()),
        format!("{head}Content-Length: 99999999999999\r\n\r\n{{}}"),
        format!(
            "{head}Content-Length: 1000000\r\n\r\n{}",
            "[".repeat(1_000_000)
        ),
    ];
    for request in cases {
        let answer = ask(&daemon, &request);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
        daemon.assert_alive();
    }
    assert_eq!(daemon.json("bridge show"), serde_json::json!([]));
}

/// Several daemons live side by side, each with objects of the same names, and neither touches what the
/// other has made.
#[test]
fn daemons_side_by_side() {
    let Some(lab) = Lab::start("daemons_side_by_side") else {
        return;
    };
    let daemons = [0, 1].map(|number| Daemon::start(&lab, "host", number));
    for (daemon, guests) in daemons.iter().zip([["a", "b"], ["c", "d"]]) {
        daemon.must("bridge create br0");
        for (number, guest) in guests.into_iter().enumerate() {
            lab.namespace(guest);
            let address = format!(",address=10.1.0.{}/24", number + 1);
            daemon.tap(&lab, &format!("v{number}"), guest, &address, "");
        }
    }
    for guest in ["a", "c"] {
        assert!(lab.ping(guest, "10.1.0.2", 3), "{guest}");
    }
    daemons[0].must("vnic delete v0");
    daemons[0].must("vnic delete v1");
    daemons[0].must("bridge delete br0");
    assert!(lab.ping("c", "10.1.0.2", 3));
    assert_eq!(
        daemons[1].json("vnic show").as_array().map(Vec::len),
        Some(2)
    );
}

/// What `export` writes `apply` reads: nothing changes; a dry run prints what would be and does nothing; a
/// document without a VNIC removes it; an unknown key is refused by its name.
#[test]
fn apply_and_export() {
    let Some(lab) = Lab::start("apply_and_export") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0 --set ageing=60");
    daemon.tap(
        &lab,
        "a0",
        "a",
        ",address=10.1.0.1/24",
        "--vlan 7 --tagged 8,10-12",
    );
    daemon.must("fdb add br0 02:00:00:00:00:77 a0");
    let document = daemon.must("export");
    let file = daemon.directory().join("document.json");
    let apply = |text: &str, words: &str| {
        std::fs::write(&file, text).expect("a file");
        daemon.try_do(&format!("apply {words} {}", file.display()))
    };
    let index = lab.ip("a", "-o link show eth0");
    assert_eq!(apply(&document, "").code, 0);
    assert_eq!(daemon.must("export"), document);
    assert_eq!(
        lab.ip("a", "-o link show eth0"),
        index,
        "the interface was not touched"
    );

    let mut less: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    less["vnics"] = serde_json::json!([]);
    less["fdb"] = serde_json::json!([]);
    let dry = apply(&less.to_string(), "--dry-run");
    assert!(
        dry.code == 0 && dry.out.contains("a0"),
        "{} {}",
        dry.out,
        dry.err
    );
    assert_eq!(daemon.must("export"), document, "a dry run changes nothing");
    let unknown = apply(&document.replacen("\"ageing\"", "\"agging\"", 1), "");
    assert!(
        unknown.code != 0 && unknown.err.contains("agging"),
        "{}",
        unknown.err
    );
    assert_eq!(apply(&less.to_string(), "").code, 0);
    assert_eq!(daemon.json("vnic show"), serde_json::json!([]));
    assert!(!lab.ip("a", "-o link show").contains("eth0"));
    assert_eq!(apply(&document, "").code, 0, "and back again");
    daemon.wait_for_state("vnic", "a0", "up");
}

/// On a full disk a change is refused and the old document stays, on disk too: a restart finds it. When
/// there is room again, the change is made.
#[test]
fn a_full_disk_keeps_the_old_document() {
    let Some(lab) = Lab::start("a_full_disk_keeps_the_old_document") else {
        return;
    };
    let state = lab.directory().join("daemon0/state");
    std::fs::create_dir_all(&state).expect("a directory");
    let mounted = run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"])
        .arg(&state));
    if mounted.code != 0 {
        return skip("a_full_disk_keeps_the_old_document", mounted.err.trim());
    }
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    let document = daemon.must("export");
    let filler = state.join("filler");
    let full = std::fs::write(&filler, vec![0; 1 << 20]);
    let refused = daemon.try_do("bridge create br1");
    let after = daemon.must("export");
    daemon.kill();
    daemon.start_again();
    let restarted = daemon.must("export");
    std::fs::remove_file(&filler).expect("removed");
    let made = daemon.try_do("bridge create br1");
    drop(daemon);
    run(Command::new("umount").arg(&state));
    assert!(full.is_err(), "the disk is not full");
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert_eq!((after, restarted), (document.clone(), document));
    assert_eq!(made.code, 0, "{}", made.err);
}

/// As an ordinary user, with no capability at all, a daemon serves memif VNICs: it makes the socket, waits
/// for the peer, and says so; a TAP is refused or waits with the reason, and harms nothing.
#[test]
fn without_any_privilege() {
    let Some(lab) = Lab::start("without_any_privilege") else {
        return;
    };
    let directory = lab.directory().join("nobody");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(65_534), Some(65_534)).expect("given");
    std::fs::set_permissions(lab.directory(), PermissionsExt::from_mode(0o755)).expect("opened");
    for name in ["windlass", "windlassd"] {
        copy_program(&program(name), &lab.directory().join(name));
    }
    let socket = directory.join("control.sock");
    let mut command = as_user(65_534, &lab.directory().join("windlassd"));
    command
        .arg("--socket")
        .arg(&socket)
        .arg("--state-dir")
        .arg(directory.join("state"));
    command.arg("--runtime-dir").arg(directory.join("run"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("windlassd");
    let windlass = |words: &str| {
        let mut command = as_user(65_534, &lab.directory().join("windlass"));
        run(command
            .arg("--socket")
            .arg(&socket)
            .args(words.split_whitespace()))
    };
    windlass_tests::until("it serves", || windlass("bridge show").code == 0);
    let memif = directory.join("run/m.sock");
    let made = [
        windlass("bridge create br0"),
        windlass(&format!(
            "vnic create v0 --bridge br0 --attach memif,socket={},id=0,role=server",
            memif.display()
        )),
    ];
    windlass_tests::until("the socket is there", || memif.exists());
    let shown = windlass("vnic show v0 -p -o state");
    let tap = windlass("vnic create t0 --bridge br0 --attach tap");
    let tap_shown = windlass("vnic show t0 -p -o state,reason");
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a child");
    let status = child.wait().expect("a child");
    assert!(made.iter().all(|done| done.code == 0), "{made:?}");
    assert_eq!(shown.out.trim(), "waiting");
    assert!(
        tap.code == 1 || tap_shown.out.starts_with("waiting:"),
        "{tap:?} {tap_shown:?}"
    );
    assert!(status.success(), "{status}");
}
