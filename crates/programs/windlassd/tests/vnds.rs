//! vnd devices through the API: what libvnd would refuse is refused under its name, and a change is whole or did not happen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use daemon::{Daemon, ask_on, connect_as, options};
use serde_json::{Value, json};
use windlass_api::VndView;

const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

/// A bridge, zones of two users, and VNICs: v0 and v1 outside zones, r0 and r1 in red's, a TAP t0.
fn document() -> Value {
    json!({"version": 1, "bridges": [{"name": "br0"}],
        "zones": [{"name": "red", "owner_uid": RED, "owner_gid": RED, "netns": "red", "bridges": ["br0"]},
            {"name": "blue", "owner_uid": BLUE, "owner_gid": BLUE, "bridges": ["br0"]}],
        "vnics": [{"name": "v0", "bridge": "br0"}, {"name": "v1", "bridge": "br0"},
            {"name": "dotted.name", "bridge": "br0"},
            {"name": "t0", "bridge": "br0", "attach": {"kind": "tap"}},
            {"name": "r0", "bridge": "br0", "zone": "red"}, {"name": "r1", "bridge": "br0", "zone": "red"}]})
}

/// Each failure that libvnd has a name for and that has a meaning here: who asks for what, the code, libvnd's name, and the place. A
/// VNIC or a device of others is none, and a tenant is not told which zones there are.
const FAILURES: &str = r#"
root | POST /v1/vnds | {"vnic": "v1", "name": ""} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "a b"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "a/b"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "a.b"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": ".."} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "ctl"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "zone"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "\u00e9"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "a\u0000"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v1", "name": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "dotted.name"} | invalid | BADNAME | .name
root | PATCH /v1/vnds/global/v0 | {"name": "zone"} | invalid | BADNAME | .name
root | POST /v1/vnds | {"vnic": "v9"} | not_found | NODATALINK | .vnic
root | POST /v1/vnds | {"vnic": "a b", "name": "x"} | not_found | NODATALINK | .vnic
root | POST /v1/vnds | {"vnic": "r1"} | not_found | NODATALINK | .vnic
red | POST /v1/vnds | {"vnic": "v1", "zone": "red"} | not_found | NODATALINK | .vnic
red | POST /v1/vnds | {"vnic": "v9", "zone": "red"} | not_found | NODATALINK | .vnic
root | POST /v1/vnds | {"vnic": "v1", "zone": "green"} | not_found | NOZONE | .zone
root | POST /v1/vnds | {"vnic": "v1", "zone": "a b"} | not_found | NOZONE | .zone
root | POST /v1/vnds | {"vnic": "v1", "name": "v0"} | exists | LINKEXISTS |
root | POST /v1/vnds | {"vnic": "v0"} | exists | LINKEXISTS |
red | PATCH /v1/vnds/red/r0 | {"name": "r1"} | exists | LINKEXISTS |
root | POST /v1/vnds | {"vnic": "v0", "name": "second"} | in_use | DLEXCL | .vnic
root | POST /v1/vnds | {"vnic": "t0"} | in_use | DLEXCL | .vnic
root | PATCH /v1/vnics/v0 | {"attach": {"kind": "tap"}} | in_use | DLEXCL | .vnic
root | DELETE /v1/vnics/v0 | null | in_use | DLEXCL | .vnic
red | DELETE /v1/vnics/r0 | null | in_use | DLEXCL | .vnic
blue | POST /v1/vnds | {"vnic": "r0", "name": "x", "zone": "blue"} | not_found | NODATALINK | blue/x.vnic
blue | POST /v1/vnds | {"vnic": "r0", "name": "a", "zone": "red"} | forbidden | PERM | red/a
blue | POST /v1/vnds | {"vnic": "r0", "name": "x", "zone": "red"} | forbidden | PERM | red/x
red | POST /v1/vnds | {"vnic": "v1"} | forbidden | PERM |
red | POST /v1/vnds | {"vnic": "v1", "zone": "blue"} | forbidden | PERM |
red | POST /v1/vnds | {"vnic": "v1", "zone": "green"} | forbidden | PERM |
root | GET /v1/vnds/global/none | null | not_found | NODEV |
root | DELETE /v1/vnds/global/r0 | null | not_found | NODEV |
red | GET /v1/vnds/global/v0 | null | not_found | NODEV |
blue | DELETE /v1/vnds/red/r0 | null | not_found | NODEV |
blue | PATCH /v1/vnds/red/r0 | {"name": "mine"} | not_found | NODEV |
root | PATCH /v1/vnds/global/v0 | {"properties": {"rxbuf": 4194305}} | invalid | BUFTOOBIG | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"txbuf": 1099511627776}} | invalid | BUFTOOBIG | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"rxbuf": 1517}} | invalid | BUFTOOSMALL | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"txbuf": 0}} | invalid | BUFTOOSMALL | .properties
root | PATCH /v1/vnics/v0 | {"properties": {"mtu": 65521}} | invalid | BUFTOOSMALL | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"rxbuf": "2M"}} | invalid | BADPROPSIZE | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"rxbuf": -1}} | invalid | BADPROPSIZE | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"rxbuf": 2000.5}} | invalid | BADPROPSIZE | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"_nflush": 10}} | invalid | BADPROP | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"ageing": 10}} | invalid | BADPROP | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"maxsize": 1}} | invalid | PROPRDONLY | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"mintu": 1}} | invalid | PROPRDONLY | .properties
root | PATCH /v1/vnds/global/v0 | {"properties": {"maxtu": 1}} | invalid | PROPRDONLY | .properties
"#;

/// A request as one of the users, or as the operator who runs the test.
fn ask(daemon: &Daemon, who: &str, request: &str, body: Option<&Value>) -> (u16, Value) {
    let (method, path) = request.split_once(' ').expect("a request");
    let uid = match who {
        "red" => RED,
        "blue" => BLUE,
        _ => return daemon.ask(method, path, body.cloned()),
    };
    let body = body.map(Value::to_string).unwrap_or_default();
    ask_on(connect_as(uid, &daemon.socket), method, path, &body)
}

/// A daemon with [`document`], and devices v0 and, in red's zone, r0 and r1.
fn daemon(directory: &std::path::Path) -> Daemon {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&options(directory), None);
    daemon.must("PUT", "/v1/document", Some(document()));
    for vnd in [json!({"vnic": "v0"}), json!({"vnic": "r0", "zone": "red"})] {
        daemon.must("POST", "/v1/vnds", Some(vnd));
    }
    daemon.must(
        "POST",
        "/v1/vnds",
        Some(json!({"vnic": "r1", "zone": "red"})),
    );
    daemon
}

/// Each failure has its code, libvnd's name, and the place; nothing has changed after it.
#[test]
fn failures_have_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path());
    let before = daemon.must("GET", "/v1/document", None);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped in part: failures_have_their_names: only root can connect as others");
    }
    for row in FAILURES.lines().filter(|row| !row.is_empty()) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [who, request, body, code, errno, place] = cells[..] else {
            panic!("{row}");
        };
        if who != "root" && !is_root {
            continue;
        }
        let body: Option<Value> = serde_json::from_str(body).expect(row);
        let (status, error) = ask(&daemon, who, request, body.as_ref());
        let what = format!("{row}: {status} {error}");
        assert_eq!(error["code"], code, "{what}");
        assert_eq!(error["details"][0]["errno"], errno, "{what}");
        let path = error["details"][0]["path"].as_str().unwrap();
        assert!(path.starts_with("vnds.") && path.ends_with(place), "{what}");
    }
    if is_root {
        // A VNIC of others, with a device or without one, is refused in the words for one that is not there.
        let told = |vnic: &str| {
            let body = json!({"vnic": vnic, "name": "x", "zone": "blue"});
            let (_, error) = ask(&daemon, "blue", "POST /v1/vnds", Some(&body));
            error.to_string().replace(vnic, "VNIC")
        };
        assert_eq!([told("r0"), told("v1")], [told("v9"), told("v9")]);
    }
    assert_eq!(daemon.must("GET", "/v1/document", None), before);
}

/// What is allowed at its edges: the sizes of buffers, a name that begins with a dash, the same name in two zones; defaults come back.
#[test]
fn the_edges_are_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path());
    let view =
        |path: &str| -> VndView { serde_json::from_value(daemon.must("GET", path, None)).unwrap() };
    let (first, limit) = (view("/v1/vnds/global/v0"), 1 << 22);
    assert_eq!((first.rxbuf, first.txbuf), (65_536, 65_536));
    assert_eq!((first.maxsize, first.mintu, first.maxtu), (limit, 0, 1518));
    assert_eq!((first.rx_slots, first.tx_slots), (1024, 1024));
    daemon.must(
        "PATCH",
        "/v1/vnds/global/v0",
        Some(json!({"properties": {"rxbuf": 1518, "txbuf": limit}})),
    );
    let small = view("/v1/vnds/global/v0");
    assert_eq!((small.rxbuf, small.txbuf), (1518, limit));
    assert_eq!((small.rx_slots, small.tx_slots), (32, 16_384));
    daemon.must(
        "PATCH",
        "/v1/vnds/global/v0",
        Some(json!({"properties": {"rxbuf": null, "txbuf": null}})),
    );
    assert_eq!(view("/v1/vnds/global/v0"), first);
    daemon.must("PATCH", "/v1/vnds/red/r1", Some(json!({"name": "v0"})));
    daemon.must("PATCH", "/v1/vnds/red/v0", Some(json!({"name": "-x:_0"})));
    let long = "a".repeat(31);
    daemon.must("PATCH", "/v1/vnds/red/-x:_0", Some(json!({"name": long})));
    daemon.must(
        "PATCH",
        "/v1/vnics/v0",
        Some(json!({"properties": {"mtu": 9000}})),
    );
    assert_eq!(view("/v1/vnds/global/v0").maxtu, 9018);
}

/// An owner sees and changes the devices of its zones; who is in their group sees them; nobody else does.
#[test]
fn owners_have_their_own() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: owners_have_their_own: only root can connect as others");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path());
    let names = |who| -> Vec<String> {
        let (status, list) = ask(&daemon, who, "GET /v1/vnds", None);
        assert_eq!(status, 200, "{list}");
        let names = list.as_array().unwrap().iter();
        let names = names.map(|vnd| vnd["name"].as_str().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(names("root"), ["v0", "r0", "r1"]);
    assert_eq!(names("red"), ["r0", "r1"]);
    assert!(names("blue").is_empty());
    let stats = |who| ask(&daemon, who, "GET /v1/stats", None).1["vnds"].clone();
    assert_eq!(stats("red").as_array().unwrap().len(), 2);
    assert_eq!(stats("blue"), Value::Null);
    for (request, body) in [
        ("DELETE /v1/vnds/red/r1", Value::Null),
        (
            "POST /v1/vnds",
            json!({"vnic": "r1", "zone": "red", "name": "own"}),
        ),
        (
            "PATCH /v1/vnds/red/own",
            json!({"name": "renamed", "properties": {"rxbuf": 2000}}),
        ),
    ] {
        let body = Some(&body).filter(|body| !body.is_null());
        let (status, answer) = ask(&daemon, "red", request, body);
        assert!((200..300).contains(&status), "{request}: {answer}");
    }
    assert_eq!(names("red"), ["r0", "renamed"]);
    // The zone is given away with its devices: by the operator alone.
    let given = json!({"owner_uid": BLUE});
    daemon.must("PATCH", "/v1/zones/red", Some(given));
    assert!(names("red").len() == 2, "its group still sees it");
    let (_, error) = ask(&daemon, "red", "DELETE /v1/vnds/red/r0", None);
    assert_eq!(error["details"][0]["errno"], "PERM", "{error}");
    assert_eq!(names("blue"), ["r0", "renamed"]);
}

/// A VNIC that is made anew has its device again, after it; two devices swap their names in one change; a change that fails in the
/// middle undoes what it did.
#[test]
fn changes_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path());
    daemon.must("POST", "/v1/vnds", Some(json!({"vnic": "v1"})));
    let document = daemon.must("GET", "/v1/document", None);
    daemon.calls();

    let mut other = document.clone();
    let vnds = other["vnds"].as_array_mut().unwrap();
    for vnd in vnds.iter_mut().filter(|vnd| vnd["zone"] == "global") {
        vnd["name"] = if vnd["name"] == "v0" { "v1" } else { "v0" }.into();
    }
    let dry = daemon.must("PUT", "/v1/document?dry_run=true", Some(other.clone()));
    assert!(daemon.calls().is_empty());
    assert_eq!(dry["changes"][0]["op"], "delete");
    daemon.memory.lock().unwrap().fail = Some("set_vnd v1 global/v0".into());
    daemon.refused("PUT", "/v1/document", Some(other.clone()), "host");
    let (gone, back) = (
        ["set_vnd v0 none", "set_vnd v1 none", "set_vnd v0 global/v1"],
        [
            "set_vnd v0 none",
            "set_vnd v1 global/v1",
            "set_vnd v0 global/v0",
        ],
    );
    assert_eq!(daemon.calls(), [gone, back].concat());
    assert_eq!(daemon.must("GET", "/v1/document", None), document);
    daemon.must("PUT", "/v1/document", Some(other));
    let done = [gone.as_slice(), &["set_vnd v1 global/v0"]].concat();
    assert_eq!(daemon.calls(), done);
    let renamed = json!({"name": "other"});
    daemon.must("PATCH", "/v1/vnds/global/v0", Some(renamed));
    assert_eq!(daemon.calls(), ["set_vnd v1 global/other"]);

    daemon.must("PUT", "/v1/document", Some(document.clone()));
    daemon.calls();
    let mut moved = document;
    for kind in ["vnics", "vnds"] {
        for object in moved[kind].as_array_mut().unwrap() {
            if object["name"] == "v1" {
                object["zone"] = "red".into();
            }
        }
    }
    daemon.must("PUT", "/v1/document", Some(moved));
    let calls = [
        "set_vnd v1 none",
        "delete_vnic v1",
        "create_vnic v1",
        "set_vnd v1 red/v1",
    ];
    assert_eq!(daemon.calls(), calls);
}

/// A directory of devices that is a link, or that others can write to, is refused before anything is made.
#[test]
fn a_prepared_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("PUT", "/v1/document", Some(document()));
    let of_zone = directory.path().join("run/vnd/global");
    std::os::unix::fs::symlink("/tmp", &of_zone).unwrap();
    let vnd = || Some(json!({"vnic": "v0"}));
    let error = daemon.refused("POST", "/v1/vnds", vnd(), "host");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("not a directory"),
        "{error}"
    );
    fs::remove_file(&of_zone).unwrap();
    fs::create_dir(&of_zone).unwrap();
    fs::set_permissions(&of_zone, fs::Permissions::from_mode(0o777)).unwrap();
    daemon.refused("POST", "/v1/vnds", vnd(), "host");
    assert_eq!(daemon.must("GET", "/v1/vnds", None), json!([]));
    fs::set_permissions(&of_zone, fs::Permissions::from_mode(0o711)).unwrap();
    daemon.must("POST", "/v1/vnds", vnd());
}

/// What a daemon that was killed in a change has left is removed at the next start, and nothing else: sockets of devices that are not in
/// the document, directories of zones that are not. Links are not followed.
#[test]
fn remains_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let first = Daemon::start(&options, None);
    first.must("PUT", "/v1/document", Some(document()));
    first.must("POST", "/v1/vnds", Some(json!({"vnic": "v0"})));
    drop(first);
    let all = directory.path().join("run/vnd");
    let elsewhere = directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(all.join("gone")).unwrap();
    for path in [
        "global/v0",
        "global/left",
        "gone/left",
        "../../elsewhere/kept",
    ] {
        drop(UnixListener::bind(all.join(path)).unwrap());
    }
    fs::write(all.join("global/file"), "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, all.join("link")).unwrap();
    let _second = Daemon::start(&options, None);
    let is_there = |path: &str| fs::symlink_metadata(all.join(path)).is_ok();
    let left = ["global/left", "gone/left", "gone"].map(is_there);
    let kept = ["global/v0", "global/file", "link", "link/kept"].map(is_there);
    assert_eq!((left, kept), ([false; 3], [true; 4]));
}
