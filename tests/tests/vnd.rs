//! vnd devices: programs open them by name, and keep them without one.

mod peer;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use peer::Peer;
use rustix::io::Errno;
use serde_json::{Value, json};
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{Daemon, Lab, as_user, frame, mac, run, skip, until};

const ONE: &str = "02:00:00:00:00:01";
const TWO: &str = "02:00:00:00:00:02";
const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

fn socket(daemon: &Daemon, device: &str) -> PathBuf {
    daemon.runtime_dir().join("vnd").join(device)
}

/// A daemon with two VNICs on a bridge, to which nobody is attached.
fn daemon(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must(&format!("vnic create v0 --bridge br0 --mac {ONE}"));
    daemon.must(&format!("vnic create v1 --bridge br0 --mac {TWO}"));
    daemon
}

/// The devices, as `vnd list` gives them: name, VNIC, zone, state.
fn listed(daemon: &Daemon) -> String {
    daemon.must("vnd list -p -o name,datalink,zonename,state")
}

/// A frame goes from one device to the other, whose address this is, and is the same there.
fn passes(from: &mut Peer, to: &mut Peer, address: &str, text: &str) {
    let source = if address == ONE { TWO } else { ONE };
    let sent = frame(mac(address), mac(source), &[], text);
    from.give(&sent);
    until("the frame has come", || {
        to.take(0);
        to.waiting.pop_front().is_some_and(|frame| frame == sent)
    });
}

/// Two programs open devices by their sockets and exchange frames. A device keeps its program when it is renamed, and when it is
/// destroyed: then no name leads to it, it is listed as unknown, and its VNIC is free once the program has left.
#[test]
fn devices_carry_frames_and_outlive_their_names() {
    let Some(lab) = Lab::start("devices_carry_frames_and_outlive_their_names") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create v0");
    daemon.must("vnd create dev1 -l v1");
    assert_eq!(
        listed(&daemon),
        "dev1:v1:global:waiting\nv0:v0:global:waiting\n"
    );
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    let mut two = Peer::connect(socket(&daemon, "global/dev1"), 1);
    daemon.wait_for_state("vnic", "v1", "up");
    passes(&mut one, &mut two, TWO, "a");
    passes(&mut two, &mut one, ONE, "b");

    daemon.must("vnd rename v0 renamed");
    assert!(!socket(&daemon, "global/v0").exists());
    passes(&mut one, &mut two, TWO, "c");
    let renamed = socket(&daemon, "global/renamed");
    until("the new path is there", || renamed.exists());
    let reason = Peer::refused(renamed);
    assert!(reason.contains("in use by"), "{reason}");
    passes(&mut two, &mut one, ONE, "still");

    daemon.must("vnd destroy dev1");
    assert!(!socket(&daemon, "global/dev1").exists());
    assert_eq!(
        listed(&daemon),
        "renamed:v0:global:up\n<unknown>:v1:global:up\n"
    );
    passes(&mut one, &mut two, TWO, "d");
    passes(&mut two, &mut one, ONE, "e");
    let error = daemon.refuses(1, "vnd create dev1 -l v1");
    assert!(error.contains("destroyed and is open"), "{error}");
    daemon.refuses(1, "vnic set v1 --attach tap");
    assert!(!one.has_ended() && !two.has_ended());
    drop(two);
    until("the VNIC is free", || {
        daemon.try_do("vnd create dev1 -l v1").code == 0
    });
    let mut two = Peer::connect(socket(&daemon, "global/dev1"), 1);
    passes(&mut one, &mut two, TWO, "f");
    assert_eq!(listed(&daemon), "dev1:v1:global:up\nrenamed:v0:global:up\n");
}

/// A device is in the document: a daemon that starts again has it, its properties and its socket.
#[test]
fn devices_come_back() {
    let Some(lab) = Lab::start("devices_come_back") else {
        return;
    };
    let mut daemon = daemon(&lab);
    daemon.must("vnd create v0 --set rxbuf=2M");
    let view = |daemon: &Daemon| daemon.json("vnd list")[0].take();
    let before = view(&daemon);
    assert_eq!(before["rxbuf"], 2 << 20);
    assert_eq!(before["rx_slots"], 1 << 14);
    assert_eq!(before["txbuf"], 65_536);
    assert_eq!(before["maxtu"], 1518);
    let path: PathBuf = before["socket"].as_str().expect("a path").into();
    assert_eq!(
        path,
        socket(&daemon, "global/v0")
            .canonicalize()
            .expect("it is there")
    );
    let meta = path.metadata().expect("it is there");
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o600, 0));
    daemon.kill();
    daemon.start_again();
    let _peer = Peer::connect(path, 1);
    daemon.wait_for_state("vnic", "v0", "up");
    let exported: Value = serde_json::from_str(&daemon.must("export")).expect("a document");
    let wanted =
        json!([{"name": "v0", "zone": "global", "vnic": "v0", "properties": {"rxbuf": 2 << 20}}]);
    assert_eq!(exported["vnds"], wanted);
}

/// The sockets under the directory of devices, as `ZONE/NAME`.
fn sockets(daemon: &Daemon) -> BTreeSet<String> {
    let all = daemon.runtime_dir().join("vnd");
    let list = |path: &Path| {
        let entries = fs::read_dir(path).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path())
    };
    let found = list(&all).flat_map(|zone| list(&zone));
    let found = found.map(|path| path.strip_prefix(&all).expect("within").to_owned());
    found.map(|path| path.display().to_string()).collect()
}

/// The devices of the daemon, as `ZONE/NAME`.
fn names(daemon: &Daemon) -> BTreeSet<String> {
    let list = daemon.json("vnd list");
    let list = list.as_array().expect("a list").iter();
    let name = |key: &Value| key.as_str().expect("text").to_owned();
    list.map(|vnd| format!("{}/{}", name(&vnd["zone"]), name(&vnd["name"])))
        .collect()
}

/// A device whose socket's place is taken waits, says why, and comes once the place is free; a rename to such a place keeps the
/// program, too. What lies there is left alone.
#[test]
fn a_taken_path_is_waited_for() {
    let Some(lab) = Lab::start("a_taken_path_is_waited_for") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create v1");
    let (first, second) = (socket(&daemon, "global/v0"), socket(&daemon, "global/new"));
    for path in [&first, &second] {
        fs::write(path, "mine").expect("a file");
    }
    daemon.must("vnd create v0");
    let reason = daemon.wait_for_state("vnic", "v0", "waiting");
    assert!(reason.contains("is not a socket"), "{reason}");
    fs::remove_file(&first).expect("removed");
    let mut one = Peer::connect(first.clone(), 1);
    let mut two = Peer::connect(socket(&daemon, "global/v1"), 1);
    passes(&mut one, &mut two, TWO, "a");
    daemon.must("vnd rename v0 new");
    passes(&mut one, &mut two, TWO, "b");
    until("it says why there is no socket", || {
        let view = daemon.json("vnd list new")[0].take();
        let why = view["details"]["socket"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        view["state"] == "up" && why.contains("is not a socket")
    });
    assert_eq!(fs::read_to_string(&second).expect("a file"), "mine");
    fs::remove_file(&second).expect("removed");
    until("the path is there", || second.exists());
    passes(&mut two, &mut one, ONE, "c");
    drop(one);
    let mut one = Peer::connect(second, 1);
    passes(&mut one, &mut two, TWO, "d");
}

/// Makes devices of both VNICs, and opens them.
fn two_open(daemon: &Daemon) -> [Peer; 2] {
    ["v0", "v1"].map(|name| {
        daemon.must(&format!("vnd create {name}"));
        Peer::connect(socket(daemon, &format!("global/{name}")), 1)
    })
}

/// Two devices swap their names in one change, and both programs stay.
#[test]
fn open_devices_swap_their_names() {
    let Some(lab) = Lab::start("open_devices_swap_their_names") else {
        return;
    };
    let daemon = daemon(&lab);
    let [mut one, mut two] = two_open(&daemon);
    let mut document: Value = serde_json::from_str(&daemon.must("export")).expect("a document");
    for (vnd, name) in [(0, "v1"), (1, "v0")] {
        document["vnds"][vnd]["name"] = name.into();
    }
    let file = lab.directory().join("swapped.json");
    fs::write(&file, document.to_string()).expect("a file");
    daemon.must(&format!("apply {}", file.display()));
    assert_eq!(listed(&daemon), "v0:v1:global:up\nv1:v0:global:up\n");
    passes(&mut one, &mut two, TWO, "a");
    passes(&mut two, &mut one, ONE, "b");
    drop(one);
    let mut one = Peer::connect(socket(&daemon, "global/v1"), 1);
    passes(&mut one, &mut two, TWO, "c");
}

/// What takes the VNIC away from under an open device ends the connection: a delete of the VNIC, where the device has no name any
/// more; and another bridge. A device with a name keeps its VNIC from being deleted, and on another bridge it can be opened again.
#[test]
fn a_device_ends_with_its_vnic() {
    let Some(lab) = Lab::start("a_device_ends_with_its_vnic") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create v0");
    let error = daemon.refuses(1, "vnic delete v0");
    assert!(error.contains("destroy it first"), "{error}");
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    daemon.wait_for_state("vnic", "v0", "up");
    daemon.must("vnd destroy v0");
    daemon.must("vnic delete v0");
    until("the connection has ended", || one.has_ended());
    assert_eq!(listed(&daemon), "");

    daemon.must("bridge create br1");
    daemon.must("vnd create v1");
    let mut two = Peer::connect(socket(&daemon, "global/v1"), 1);
    daemon.must("vnic set v1 --bridge br1");
    until("the connection has ended", || two.has_ended());
    drop(two);
    let mut two = Peer::connect(socket(&daemon, "global/v1"), 1);
    daemon.must("vnd destroy v1");
    daemon.must("vnic set v1 --bridge br0");
    until("the connection has ended", || two.has_ended());
    daemon.must("vnd create v1");
    daemon.must("vnd destroy v1");
    daemon.must("vnic delete v1");
    daemon.must("bridge delete br1");
}

/// A document that destroys an open device and gives its VNIC to a TAP ends the connection. A change that does not speak of the device, which
/// has no name any more, is refused until its program has left.
#[test]
fn an_open_device_gives_way() {
    let Some(lab) = Lab::start("an_open_device_gives_way") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create v0");
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    daemon.wait_for_state("vnic", "v0", "up");
    let mut document: Value = serde_json::from_str(&daemon.must("export --json")).expect("JSON");
    document["vnds"] = json!([]);
    let vnics = document["vnics"].as_array_mut().expect("VNICs");
    let v0 = vnics.iter_mut().find(|vnic| vnic["name"] == "v0");
    v0.expect("v0")["attach"] = json!({"kind": "tap", "name": "t0"});
    let path = lab.directory().join("one.json");
    fs::write(&path, document.to_string()).expect("room");
    daemon.must(&format!("apply {}", path.display()));
    until("the connection has ended", || one.has_ended());
    daemon.wait_for_state("vnic", "v0", "up");
    assert_eq!(listed(&daemon), "");

    daemon.must("vnd create v1");
    let mut two = Peer::connect(socket(&daemon, "global/v1"), 1);
    daemon.wait_for_state("vnic", "v1", "up");
    daemon.must("vnd destroy v1");
    let error = daemon.refuses(1, "vnic set v1 --attach tap,name=t1");
    assert!(error.contains("was destroyed and is open"), "{error}");
    assert!(!two.has_ended());
    drop(two);
    until("it has ended", || listed(&daemon).is_empty());
    daemon.must("vnic set v1 --attach tap,name=t1");
    daemon.wait_for_state("vnic", "v1", "up");
}

/// The name of a device that was destroyed while it was open can be another device's at once, and the two are not mistaken for
/// each other.
#[test]
fn a_name_is_used_again() {
    let Some(lab) = Lab::start("a_name_is_used_again") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create dev -l v0");
    let mut one = Peer::connect(socket(&daemon, "global/dev"), 1);
    daemon.wait_for_state("vnic", "v0", "up");
    daemon.must("vnd destroy dev");
    daemon.must("vnd create dev -l v1");
    let mut two = Peer::connect(socket(&daemon, "global/dev"), 1);
    passes(&mut one, &mut two, TWO, "a");
    passes(&mut two, &mut one, ONE, "b");
    assert_eq!(
        listed(&daemon),
        "dev:v1:global:up\n<unknown>:v0:global:up\n"
    );
    drop(one);
    until("the first has ended", || {
        listed(&daemon) == "dev:v1:global:up\n"
    });
    assert!(!two.has_ended() && socket(&daemon, "global/dev").exists());
}

/// The owner of a zone opens its devices and nobody else does, but root; the owner puts nothing beside them. With another owner, the
/// program that has a device open keeps it, and the next ones are the next owner's.
#[test]
fn devices_are_their_owners() {
    let Some(lab) = Lab::start("devices_are_their_owners") else {
        return;
    };
    let daemon = daemon(&lab);
    for path in [lab.directory(), daemon.directory()] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("opened");
    }
    daemon.must(&format!(
        "zone create red --owner {RED} --group {RED} --bridge br0"
    ));
    daemon.must("vnic create r0 --zone red --bridge br0");
    let error = daemon.refuses(4, "vnd create r0");
    assert!(
        error.contains("there is no VNIC \"r0\" in zone \"global\""),
        "{error}"
    );
    daemon.must("vnd create r0 -z red");
    let path = socket(&daemon, "red/r0");
    until("the socket is there", || path.exists());
    let meta = path.metadata().expect("it is there");
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o777),
        (RED, RED, 0o600)
    );
    let place = path.parent().expect("a directory");
    let meta = place.metadata().expect("it is there");
    assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o711));
    let opens = |uid| as_user(uid, || connect(&path, SocketKind::SeqPacket).map(drop));
    assert_eq!(opens(RED), Ok(()));
    assert_eq!(opens(BLUE), Err(Errno::ACCESS));
    let attacks = || {
        let file = place.join("mine");
        [
            fs::write(&file, "").is_ok(),
            fs::rename(&path, &file).is_ok(),
            fs::remove_file(&path).is_ok(),
            std::os::unix::fs::symlink("/", &file).is_ok(),
            fs::read_dir(place).is_ok(),
        ]
    };
    assert_eq!(as_user(RED, attacks), [false; 5]);

    let mut peer = Peer::connect(path.clone(), 1);
    daemon.wait_for_state("vnic", "r0", "up");
    daemon.must(&format!("zone set red --owner {BLUE} --group {BLUE}"));
    assert_eq!(path.metadata().expect("it is there").uid(), BLUE);
    assert_eq!(opens(RED), Err(Errno::ACCESS));
    daemon.must("vnd rename r0 r1 -z red");
    let renamed = socket(&daemon, "red/r1");
    until("the new path is there", || renamed.exists());
    assert_eq!(renamed.metadata().expect("it is there").uid(), BLUE);
    assert!(!peer.has_ended());
    daemon.must("vnd destroy r1 -z red");
    daemon.must("vnic delete r0");
    until("the connection has ended", || peer.has_ended());
    daemon.must("zone delete red");
    assert!(!place.exists());
}

/// A daemon that is killed at any moment of creates, renames and destroys has, once it runs again, exactly the sockets of the devices in
/// its document.
#[test]
fn a_killed_daemon_leaves_no_stray_socket() {
    const KILLS: u64 = 12;
    let Some(lab) = Lab::start("a_killed_daemon_leaves_no_stray_socket") else {
        return;
    };
    let mut daemon = daemon(&lab);
    let program = |words: &str| {
        let mut command = daemon.command();
        command.args(words.split_whitespace());
        command
    };
    let mut rounds: Vec<Vec<Command>> = Vec::new();
    for _ in 0..KILLS {
        let steps = [
            "vnd create v0",
            "vnd rename v0 other",
            "vnd create v1",
            "vnd rename v1 v0",
            "vnd rename other v1",
            "vnd destroy v1",
            "vnd destroy v0",
        ];
        rounds.push(steps.iter().map(|words| program(words)).collect());
    }
    for (round, steps) in rounds.iter_mut().enumerate() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for step in steps.iter_mut() {
                        // Refused, done or cut short.
                        run(step);
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(17 * (1 + round as u64)));
            daemon.kill();
            is_over.store(true, Ordering::Relaxed);
            changes.join().expect("ended");
        });
        daemon.start_again();
        until("the sockets are those of the document", || {
            sockets(&daemon) == names(&daemon)
        });
        for name in names(&daemon) {
            let name = name.strip_prefix("global/").expect("of no zone").to_owned();
            daemon.must(&format!("vnd destroy {name}"));
        }
    }
}

/// On a full disk no device is made, renamed or destroyed, and the program that has it open does not notice.
#[test]
fn a_full_disk_keeps_devices() {
    let Some(lab) = Lab::start("a_full_disk_keeps_devices") else {
        return;
    };
    let state = lab.directory().join("daemon0/state");
    fs::create_dir_all(&state).expect("a directory");
    let mounted = run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"])
        .arg(&state));
    if mounted.code != 0 {
        return skip("a_full_disk_keeps_devices", mounted.err.trim());
    }
    let daemon = daemon(&lab);
    daemon.must("vnd create v0");
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    daemon.wait_for_state("vnic", "v0", "up");
    let before = (listed(&daemon), sockets(&daemon));
    let full = fs::write(state.join("filler"), vec![0; 1 << 20]);
    let words = [
        "vnd create v1",
        "vnd rename v0 x",
        "vnd destroy v0",
        "vnd set v0 rxbuf=4M",
    ];
    let codes = words.map(|words| daemon.try_do(words).code);
    let after = (listed(&daemon), sockets(&daemon));
    let has_ended = one.has_ended();
    let rxbuf = daemon.json("vnd list v0")[0]["rxbuf"].take();
    drop(daemon);
    run(Command::new("umount").arg(&state));
    assert!(full.is_err(), "the disk is not full");
    assert_eq!((codes, after), ([1; 4], before));
    assert!(!has_ended);
    assert_eq!(rxbuf, 65_536);
}

/// A change that fails behind its devices takes them back: those that it made are not there, those that it destroyed or renamed are as
/// before, with their programs.
#[test]
fn a_failed_change_takes_devices_back() {
    let Some(lab) = Lab::start("a_failed_change_takes_devices_back") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("bridge set br0 addresses-max=16");
    daemon.must("vnic create v2 --bridge br0");
    let [mut one, mut two] = two_open(&daemon);
    passes(&mut one, &mut two, TWO, "a");
    let before = (listed(&daemon), sockets(&daemon));
    let mut document: Value = serde_json::from_str(&daemon.must("export")).expect("a document");
    document["vnds"] = json!([
        {"name": "x", "zone": "global", "vnic": "v0"}, {"name": "v1", "zone": "global", "vnic": "v2"}
    ]);
    // More than the table has room for.
    let entry = |n: u32| json!({"bridge": "br0", "vlan": 1, "mac": format!("02:00:00:00:01:{n:02x}"), "member": "v2"});
    document["fdb"] = (0..64).map(entry).collect();
    let file = lab.directory().join("full.json");
    fs::write(&file, document.to_string()).expect("a file");
    let error = daemon.refuses(1, &format!("apply {}", file.display()));
    assert!(error.contains("fdb"), "{error}");
    assert_eq!((listed(&daemon), sockets(&daemon)), before);
    assert!(!one.has_ended() && !two.has_ended());
    passes(&mut two, &mut one, ONE, "b");
    daemon.must("vnd create v2");
}

/// Runs `windlass` as another user.
fn as_red(daemon: &Daemon, words: &str) -> windlass_tests::Output {
    let mut command = Command::new("setpriv");
    let user = RED.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(windlass_tests::program("windlass"))
        .arg("--socket")
        .arg(daemon.socket());
    run(command.args(words.split_whitespace()))
}

/// What is refused, and what is said of it.
const REFUSED: &[(i32, &str, &str)] = &[
    (2, "vnd set v0 txbuf=1M rxbuf=5M", "not \"5242880\""),
    (
        1,
        "vnd set v0 rxbuf=1",
        "rxbuf is at least 1518 bytes (maxtu), not 1",
    ),
    (
        1,
        "vnd set v0 rxbuf=0",
        "rxbuf is at least 1518 bytes (maxtu), not 0",
    ),
    (2, "vnd set v0 txbuf=1M maxsize=8M", "maxsize cannot be set"),
    (2, "vnd set v0 txbuf=1M txbfu=8M", "did you mean \"txbuf\"?"),
    (2, "vnd get v0 tbuf", "no property"),
    (2, "vnd list -p", "-p needs -o"),
    (2, "vnd create ctl", "cannot name a vnd device"),
    (2, "vnd create dotted.name", "cannot name a vnd device"),
    (4, "vnd create nothing", "there is no VNIC"),
    (4, "vnd list v1", "did you mean \"v0\"?"),
    (4, "vnd rename v1 v2", "there is no vnd device"),
    (5, "vnd create v0", "exists already"),
];

/// What people type: settings with suffixes, one after the other; a zone that an owner of one zone need not name; forms for scripts;
/// refusals with their exit codes.
#[test]
fn the_command_speaks_of_devices() {
    let Some(lab) = Lab::start("the_command_speaks_of_devices") else {
        return;
    };
    let daemon = daemon(&lab);
    for path in [lab.directory(), daemon.directory()] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("opened");
    }
    for zone in ["red", "other"] {
        daemon.must(&format!(
            "zone create {zone} --owner {RED} --group {RED} --bridge br0"
        ));
    }
    daemon.must("vnic create r0 --zone red --bridge br0");
    daemon.must("vnic create dotted.name --bridge br0");
    let several = as_red(&daemon, "vnd create r0");
    assert!(
        several.err.contains("owns several zones"),
        "{}",
        several.err
    );
    daemon.must("zone delete other");
    let made = as_red(&daemon, "vnd create r0");
    assert_eq!(made.code, 0, "{}", made.err);
    daemon.must("vnd create v0 --set rxbuf=4M");
    let listed = as_red(&daemon, "vnd list -p -o name,datalink,zonename");
    assert_eq!(listed.out, "r0:r0:red\n");
    assert_eq!(as_red(&daemon, "vnd destroy v0 -z global").code, 4);
    assert_eq!(as_red(&daemon, "vnd create v1 -z global").code, 6);

    daemon.must("vnd set v0 txbuf=128K rxbuf=2M");
    let get = |words: &str| daemon.must(&format!("vnd get v0 {words} -p -o value"));
    assert_eq!(get("txbuf rxbuf"), "131072\n2097152\n");
    assert_eq!(get("maxsize mintu maxtu"), "4194304\n0\n1518\n");
    let error = daemon.refuses(1, "vnd set v0 txbuf=64K rxbuf=1000 txbuf=1M");
    assert!(
        error.contains("txbuf=64K was set before and stays"),
        "{error}"
    );
    assert_eq!(get("txbuf rxbuf"), "65536\n2097152\n");
    daemon.must("vnd set v0 rxbuf=auto");
    assert_eq!(get("rxbuf"), "65536\n");
    for (code, words, said) in REFUSED {
        let error = daemon.refuses(*code, words);
        assert!(error.contains(said), "{words}: {error}");
    }
    assert_eq!(
        get("txbuf"),
        "65536\n",
        "what was typed wrong changed nothing"
    );
    daemon.must("vnd destroy v1 --if-exists");
    daemon.must("vnd destroy r0 -z red");
    assert_eq!(daemon.must("vnd list -H -o name"), "v0\n");
}

/// An upgrade of the daemon ends connections: a device with a name is opened again by it, one without is gone.
#[test]
fn an_upgrade_keeps_names() {
    let Some(lab) = Lab::start("an_upgrade_keeps_names") else {
        return;
    };
    let mut daemon = daemon(&lab);
    let [mut one, mut two] = two_open(&daemon);
    daemon.wait_for_state("vnic", "v1", "up");
    daemon.must("vnd destroy v1");
    daemon.upgrade();
    until("both have ended", || one.has_ended() | two.has_ended());
    until("it serves", || daemon.try_do("vnd list").code == 0);
    assert_eq!(names(&daemon), BTreeSet::from(["global/v0".to_owned()]));
    drop((one, two));
    daemon.must("vnd create v1");
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    let mut two = Peer::connect(socket(&daemon, "global/v1"), 1);
    passes(&mut one, &mut two, TWO, "a");
}

/// `vnd stat` counts bytes as the program sees them, drops, and how often its ring was full and was released; also those of an
/// unnamed device.
#[test]
fn traffic_is_counted_as_the_program_sees_it() {
    let Some(lab) = Lab::start("traffic_is_counted_as_the_program_sees_it") else {
        return;
    };
    let daemon = daemon(&lab);
    let [mut one, mut two] = two_open(&daemon);
    passes(&mut one, &mut two, TWO, "a");
    let stat = |fields: &str| daemon.must(&format!("vnd stat -p -o {fields}"));
    // From an address that is not its own.
    one.give(&frame(mac(TWO), mac(TWO), &[], "b"));
    until("it was counted", || {
        stat("name,rx-bytes,tx-bytes,drops,txfc,zone")
            == "v0:0:120:1:0:global\nv1:60:0:0:0:global\n"
    });
    daemon.while_stopped(|| {
        let sent = frame(mac(TWO), mac(ONE), &[], "many");
        (0..1024).for_each(|_| one.give(&sent));
    });
    until("all have come", || {
        two.take(0);
        two.frames == 1025
    });
    daemon.must("vnd destroy v0");
    until("it was counted", || {
        stat("name,tx-bytes,txfc") == "v1:0:0\n<unknown>:61560:1\n"
    });
    daemon.must("vnd destroy v1");
    let text = daemon.must("vnd stat 0.05 2 -z global");
    assert!(
        text.starts_with("NAME") && text.contains("RX-BYTES/S"),
        "{text}"
    );
    let refused = daemon.refuses(4, "vnd stat -z red -p -o name");
    assert!(refused.contains("there is no zone \"red\""), "{refused}");
    daemon.must("zone create red --owner 0");
    assert_eq!(daemon.must("vnd stat -z red -p -o name"), "");
}
