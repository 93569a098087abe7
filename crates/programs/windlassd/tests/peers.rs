//! Who may do what: the same daemon, asked by root and by another user.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use daemon::{Daemon, ask, options};
use serde_json::{Value, json};

const OTHER: u32 = 65_534;

/// Not a test: what the test below runs as another user, to ask in his name.
#[test]
#[ignore = "run by other_users_are_confined as another user"]
fn ask_as_other_user() {
    let get = |name| std::env::var(name).unwrap();
    let body = serde_json::from_str(&get("ASK_BODY")).unwrap();
    let (status, json) = ask(
        Path::new(&get("ASK_SOCKET")),
        &get("ASK_METHOD"),
        &get("ASK_PATH"),
        body,
    );
    std::fs::write(get("ASK_ANSWER"), json!([status, json]).to_string()).unwrap();
}

struct Other<'a> {
    daemon: &'a Daemon,
    program: &'a Path,
    answers: &'a Path,
}

impl Other<'_> {
    fn ask(&self, method: &str, path: &str, body: Value) -> (u64, Value) {
        let answer = self.answers.join("answer.json");
        let output = Command::new(self.program)
            .args(["--exact", "ask_as_other_user", "--ignored"])
            .env("ASK_SOCKET", &self.daemon.socket)
            .envs([
                ("ASK_METHOD", method),
                ("ASK_PATH", path),
                ("ASK_BODY", &body.to_string()),
            ])
            .env("ASK_ANSWER", &answer)
            .uid(OTHER)
            .gid(OTHER)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&std::fs::read(&answer).unwrap()).unwrap();
        (json[0].as_u64().unwrap(), json[1].clone())
    }

    fn must(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, json) = self.ask(method, path, body);
        assert!(
            (200..300).contains(&status),
            "{method} {path}: {status} {json}"
        );
        json
    }

    fn refused(&self, method: &str, path: &str, body: Value, code: &str) {
        let (_, json) = self.ask(method, path, body);
        assert_eq!(json["code"], code, "{method} {path}: {json}");
    }
}

fn vnic(name: &str, extra: Value) -> Value {
    let mut vnic = json!({"name": name, "zone": "a", "bridge": "br0"});
    vnic.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    vnic
}

/// A user who owns a zone makes VNICs in it, on granted bridges, in its namespace, with sockets under its
/// directory and with properties of his own; everything else is refused or not there for him.
#[test]
fn other_users_are_confined() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: other_users_are_confined: only root can ask as another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // The test's program may lie where the other user cannot go: a copy does not.
    let program = directory.path().join("ask");
    // Not by this process: another test's child would have the copy open for writing, and nobody could run it.
    let own = std::env::current_exe().unwrap();
    let copied = Command::new("cp").args([&own, &program]).status();
    assert!(copied.unwrap().success());
    let answers = directory.path().join("answers");
    std::fs::create_dir(&answers).unwrap();
    for (path, mode) in [
        (directory.path(), 0o755),
        (&program, 0o755),
        (&answers, 0o777),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    if daemon.must("GET", "/v1/daemon", None)["you"]["operator"] != true {
        panic!("root of the daemon's own powers is no operator");
    }
    daemon.must(
        "PUT",
        "/v1/document",
        Some(json!({"version": 1,
        "zones": [
            {"name": "a", "owner_uid": OTHER, "owner_gid": OTHER, "netns": "a", "bridges": ["br0"]},
            {"name": "b", "owner_uid": 1, "owner_gid": 1}],
        "bridges": [{"name": "br0"}, {"name": "br1"}],
        "uplinks": [{"name": "up0", "device": "eth0", "bridge": "br0"}],
        "vnics": [
            {"name": "root0", "bridge": "br0"}, {"name": "b0", "zone": "b", "bridge": "br1"},
            {"name": "a9", "zone": "a", "bridge": "br0", "properties": {"private": true}}]})),
    );
    let other = Other {
        daemon: &daemon,
        program: &program,
        answers: &answers,
    };
    makes_and_sees_his_own(&other);
    cannot_make_more(&other);
    cannot_touch_others(&other);
    cannot_place(&other);
}

fn cannot_place(other: &Other<'_>) {
    for what in ["a9", "root0", "up0"] {
        let body = json!({"member": what, "worker": 0});
        other.refused("POST", "/v1/workers/move", body, "forbidden");
    }
    let body = json!({"bridge": "br0", "worker": 0});
    other.refused("POST", "/v1/workers/move", body, "forbidden");
    let bridge = other.must("GET", "/v1/bridges/br0", Value::Null);
    assert!(bridge.get("home").is_none() && bridge.get("workers").is_none());
}

fn makes_and_sees_his_own(other: &Other<'_>) {
    let null = Value::Null;
    let you = &other.must("GET", "/v1/daemon", null.clone())["you"];
    assert_eq!(
        (&you["operator"], &you["zones"]),
        (&json!(false), &json!(["a"]))
    );
    other.must(
        "POST",
        "/v1/vnics",
        vnic("a0", json!({"attach": {"kind": "tap", "netns": "a"}})),
    );
    let memif = json!({"kind": "memif", "socket": "m.sock", "role": "server"});
    other.must(
        "POST",
        "/v1/vnics",
        vnic("a1", json!({"attach": memif, "properties": {"mtu": 9000}})),
    );
    for (path, expected) in [
        ("/v1/vnics", json!(["a0", "a1", "a9"])),
        ("/v1/zones", json!(["a"])),
        ("/v1/bridges", json!(["br0"])),
        ("/v1/uplinks", json!([])),
    ] {
        let list = other.must("GET", path, null.clone());
        let names: Vec<_> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["name"])
            .collect();
        assert_eq!(json!(names), expected, "{path}");
    }
    let bridge = other.must("GET", "/v1/bridges/br0", null.clone());
    assert_eq!(bridge["members"], json!(["a0", "a1", "a9"]));
    let members = &other.must("GET", "/v1/stats", null.clone())["members"];
    assert_eq!(members.as_array().unwrap().len(), 3);
}

fn cannot_make_more(other: &Other<'_>) {
    let outside = json!({"attach": {"kind": "memif", "socket": "/tmp/m.sock", "role": "server"}});
    for refused in [
        vnic("x", json!({"bridge": "br1"})),
        vnic("x", json!({"zone": "global"})),
        vnic("x", json!({"zone": "b", "bridge": "br1"})),
        vnic("x", json!({"attach": {"kind": "tap"}})),
        vnic("x", json!({"attach": {"kind": "tap", "netns": "b"}})),
        vnic(
            "x",
            json!({"attach": {"kind": "tap", "netns": "/proc/1/ns/net"}}),
        ),
        vnic("x", json!({"properties": {"mac-nospoof": false}})),
        vnic("x", json!({"properties": {"span": true}})),
        vnic("x", json!({"properties": {"vlan": 20}})),
        vnic("x", json!({"properties": {"tagged": "20"}})),
        vnic("x", outside),
    ] {
        other.refused("POST", "/v1/vnics", refused, "forbidden");
    }
}

/// Nobody hears whose a VNIC is by asking for a flow of it.
fn hears_of_no_owner(other: &Other<'_>) {
    for vnic in ["root0", "b0", "absent"] {
        let flow = json!({"name": "f", "vnic": vnic, "attributes": "transport=tcp"});
        let (_, error) = other.ask("POST", "/v1/flows", flow);
        let why = format!("may not change flows of \"{vnic}\": root");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(&why), "{error}");
    }
}

fn cannot_touch_others(other: &Other<'_>) {
    let null = Value::Null;
    for (method, path, body) in [
        (
            "PATCH",
            "/v1/vnics/a9",
            json!({"properties": {"private": null}}),
        ),
        ("PATCH", "/v1/vnics/a0", json!({"bridge": "br1"})),
        ("PATCH", "/v1/zones/a", json!({"bridges": ["br0", "br1"]})),
        ("DELETE", "/v1/bridges/br0", null.clone()),
        ("POST", "/v1/bridges", json!({"name": "br2"})),
        (
            "POST",
            "/v1/zones",
            json!({"name": "z", "owner_uid": OTHER, "owner_gid": OTHER}),
        ),
        (
            "POST",
            "/v1/uplinks",
            json!({"name": "u", "device": "eth1", "bridge": "br0"}),
        ),
        ("GET", "/v1/document", null.clone()),
        ("PUT", "/v1/document?dry_run=true", json!({"version": 1})),
        ("GET", "/v1/workers", null.clone()),
        ("GET", "/v1/bridges/br0/fdb", null.clone()),
        ("GET", "/v1/bridges/br0/fdb?member=root0", null.clone()),
        ("POST", "/v1/bridges/br0/fdb/flush", json!({})),
        ("POST", "/v1/bridges/br0/mcheck", json!({})),
        (
            "POST",
            "/v1/bridges/br0/fdb",
            json!({"mac": "02:00:00:00:00:01", "member": "a0"}),
        ),
    ] {
        other.refused(method, path, body, "forbidden");
    }
    for (method, path) in [
        ("GET", "/v1/vnics/root0"),
        ("DELETE", "/v1/vnics/root0"),
        ("DELETE", "/v1/vnics/b0"),
        ("DELETE", "/v1/zones/b"),
        ("GET", "/v1/zones/b"),
        ("GET", "/v1/uplinks/up0"),
        ("GET", "/v1/bridges/br1"),
    ] {
        other.refused(method, path, null.clone(), "not_found");
    }
    for path in ["/v1/vnics/root0", "/v1/vnics/b0"] {
        let body = json!({"properties": {"mtu": 1000}});
        other.refused("PATCH", path, body, "not_found");
    }
    for (path, body) in [
        ("/v1/zones/b", json!({"owner_uid": OTHER})),
        ("/v1/bridges/br1", json!({"properties": {"ageing": 1}})),
        ("/v1/uplinks/up0", json!({"bridge": "br1"})),
    ] {
        other.refused("PATCH", path, body, "not_found");
    }
    hears_of_no_owner(other);
    other.must("GET", "/v1/bridges/br0/fdb?member=a0", null.clone());
    other.must(
        "PATCH",
        "/v1/vnics/a0",
        json!({"properties": {"mtu": 1400}}),
    );
    other.must("DELETE", "/v1/vnics/a0", null);
}

/// The socket of an unprivileged daemon, and the state of any, is nobody else's.
#[test]
fn files_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&options.state_dir), 0o700);
    assert_eq!(mode(&options.state_dir.join("document.json")), 0o600);
    let root = rustix::process::geteuid().is_root();
    assert_eq!(mode(&options.socket), if root { 0o666 } else { 0o600 });
    assert_eq!(mode(&options.runtime_dir), if root { 0o755 } else { 0o700 });
}
