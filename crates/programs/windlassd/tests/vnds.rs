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

/// A request as a user, or as the operator who runs the test.
fn ask(daemon: &Daemon, uid: Option<u32>, (method, path, body): &Request) -> (u16, Value) {
    match uid {
        None => daemon.ask(method, path, body.clone()),
        Some(uid) => {
            let body = body.as_ref().map(Value::to_string).unwrap_or_default();
            ask_on(connect_as(uid, &daemon.socket), method, path, &body)
        }
    }
}

type Request = (&'static str, &'static str, Option<Value>);

fn create(body: Value) -> Request {
    ("POST", "/v1/vnds", Some(body))
}

fn patch(path: &'static str, body: Value) -> Request {
    ("PATCH", path, Some(body))
}

fn set(properties: Value) -> Request {
    patch("/v1/vnds/global/v0", json!({"properties": properties}))
}

/// Each failure that libvnd has a name for and that has a meaning here: who asks for what, the code, libvnd's name, and the place.
fn failures() -> Vec<(
    Option<u32>,
    Request,
    &'static str,
    &'static str,
    &'static str,
)> {
    let named = |name: &str| create(json!({"vnic": "v1", "name": name}));
    let long = "a".repeat(32);
    let bad = [
        "", "a b", "a/b", "a.b", "..", "ctl", "zone", "é", "a\u{0}", &long,
    ];
    let bad = bad.map(|name| (None, named(name), "invalid", "BADNAME", ".name"));
    let red = Some(RED);
    let of_red = "/v1/vnds/red/r0";
    let mut all = bad.to_vec();
    all.extend([
        (
            None,
            create(json!({"vnic": "dotted.name"})),
            "invalid",
            "BADNAME",
            ".name",
        ),
        (
            None,
            patch("/v1/vnds/global/v0", json!({"name": "zone"})),
            "invalid",
            "BADNAME",
            ".name",
        ),
        (
            None,
            create(json!({"vnic": "v9"})),
            "not_found",
            "NODATALINK",
            ".vnic",
        ),
        (
            None,
            create(json!({"vnic": "a b", "name": "x"})),
            "not_found",
            "NODATALINK",
            ".vnic",
        ),
        // A VNIC of another zone is none.
        (
            None,
            create(json!({"vnic": "r1"})),
            "not_found",
            "NODATALINK",
            ".vnic",
        ),
        (
            red,
            create(json!({"vnic": "v1", "zone": "red"})),
            "not_found",
            "NODATALINK",
            ".vnic",
        ),
        (
            red,
            create(json!({"vnic": "v9", "zone": "red"})),
            "not_found",
            "NODATALINK",
            ".vnic",
        ),
        (
            None,
            create(json!({"vnic": "v1", "zone": "green"})),
            "not_found",
            "NOZONE",
            ".zone",
        ),
        (
            None,
            create(json!({"vnic": "v1", "zone": "a b"})),
            "not_found",
            "NOZONE",
            ".zone",
        ),
        (
            None,
            create(json!({"vnic": "v1", "name": "v0"})),
            "exists",
            "LINKEXISTS",
            "",
        ),
        (
            None,
            create(json!({"vnic": "v0"})),
            "exists",
            "LINKEXISTS",
            "",
        ),
        (
            red,
            patch("/v1/vnds/red/r0", json!({"name": "r1"})),
            "exists",
            "LINKEXISTS",
            "",
        ),
        (
            None,
            create(json!({"vnic": "v0", "name": "second"})),
            "in_use",
            "DLEXCL",
            ".vnic",
        ),
        (
            None,
            create(json!({"vnic": "t0"})),
            "in_use",
            "DLEXCL",
            ".vnic",
        ),
        (
            None,
            patch("/v1/vnics/v0", json!({"attach": {"kind": "tap"}})),
            "in_use",
            "DLEXCL",
            ".vnic",
        ),
        (
            None,
            ("DELETE", "/v1/vnics/v0", None),
            "in_use",
            "DLEXCL",
            ".vnic",
        ),
        (
            red,
            ("DELETE", "/v1/vnics/r0", None),
            "in_use",
            "DLEXCL",
            ".vnic",
        ),
        (red, create(json!({"vnic": "v1"})), "forbidden", "PERM", ""),
        (
            red,
            create(json!({"vnic": "v1", "zone": "blue"})),
            "forbidden",
            "PERM",
            "",
        ),
        // Whether there is such a zone is not told.
        (
            red,
            create(json!({"vnic": "v1", "zone": "green"})),
            "forbidden",
            "PERM",
            "",
        ),
        (
            None,
            ("GET", "/v1/vnds/global/none", None),
            "not_found",
            "NODEV",
            "",
        ),
        (
            None,
            ("DELETE", "/v1/vnds/global/r0", None),
            "not_found",
            "NODEV",
            "",
        ),
        // Devices of others are none.
        (
            red,
            ("GET", "/v1/vnds/global/v0", None),
            "not_found",
            "NODEV",
            "",
        ),
        (
            Some(BLUE),
            ("DELETE", of_red, None),
            "not_found",
            "NODEV",
            "",
        ),
        (
            Some(BLUE),
            patch(of_red, json!({"name": "mine"})),
            "not_found",
            "NODEV",
            "",
        ),
        (
            None,
            set(json!({"rxbuf": 4_194_305})),
            "invalid",
            "BUFTOOBIG",
            ".properties",
        ),
        (
            None,
            set(json!({"txbuf": 1_u64 << 40})),
            "invalid",
            "BUFTOOBIG",
            ".properties",
        ),
        (
            None,
            set(json!({"rxbuf": 1517})),
            "invalid",
            "BUFTOOSMALL",
            ".properties",
        ),
        (
            None,
            set(json!({"txbuf": 0})),
            "invalid",
            "BUFTOOSMALL",
            ".properties",
        ),
        (
            None,
            patch("/v1/vnics/v0", json!({"properties": {"mtu": 65_521}})),
            "invalid",
            "BUFTOOSMALL",
            ".properties",
        ),
        (
            None,
            set(json!({"rxbuf": "2M"})),
            "invalid",
            "BADPROPSIZE",
            ".properties",
        ),
        (
            None,
            set(json!({"rxbuf": -1})),
            "invalid",
            "BADPROPSIZE",
            ".properties",
        ),
        (
            None,
            set(json!({"rxbuf": 2000.5})),
            "invalid",
            "BADPROPSIZE",
            ".properties",
        ),
        (
            None,
            set(json!({"_nflush": 10})),
            "invalid",
            "BADPROP",
            ".properties",
        ),
        (
            None,
            set(json!({"ageing": 10})),
            "invalid",
            "BADPROP",
            ".properties",
        ),
        (
            None,
            set(json!({"maxsize": 1})),
            "invalid",
            "PROPRDONLY",
            ".properties",
        ),
        (
            None,
            set(json!({"mintu": 1})),
            "invalid",
            "PROPRDONLY",
            ".properties",
        ),
        (
            None,
            set(json!({"maxtu": 1})),
            "invalid",
            "PROPRDONLY",
            ".properties",
        ),
    ]);
    all
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
    for (uid, request, code, errno, place) in failures() {
        if uid.is_some() && !is_root {
            continue;
        }
        let (status, error) = ask(&daemon, uid, &request);
        let what = format!("{uid:?} {request:?}: {status} {error}");
        assert_eq!(error["code"], code, "{what}");
        assert_eq!(error["details"][0]["errno"], errno, "{what}");
        let path = error["details"][0]["path"].as_str().unwrap();
        assert!(path.starts_with("vnds.") && path.ends_with(place), "{what}");
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
    let names = |uid| -> Vec<String> {
        let (status, list) = ask(&daemon, uid, &("GET", "/v1/vnds", None));
        assert_eq!(status, 200, "{list}");
        let names = list.as_array().unwrap().iter();
        names
            .map(|vnd| vnd["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(None), ["v0", "r0", "r1"]);
    assert_eq!(names(Some(RED)), ["r0", "r1"]);
    assert!(names(Some(BLUE)).is_empty());
    let stats = |uid| ask(&daemon, uid, &("GET", "/v1/stats", None)).1["vnds"].clone();
    assert_eq!(stats(Some(RED)).as_array().unwrap().len(), 2);
    assert_eq!(stats(Some(BLUE)), Value::Null);
    let requests = [
        ("DELETE", "/v1/vnds/red/r1", None),
        (
            "POST",
            "/v1/vnds",
            Some(json!({"vnic": "r1", "zone": "red", "name": "own"})),
        ),
        (
            "PATCH",
            "/v1/vnds/red/own",
            Some(json!({"name": "renamed", "properties": {"rxbuf": 2000}})),
        ),
    ];
    for request in &requests {
        let (status, answer) = ask(&daemon, Some(RED), request);
        assert!((200..300).contains(&status), "{request:?}: {answer}");
    }
    assert_eq!(names(Some(RED)), ["r0", "renamed"]);
    // The zone is given away with its devices: by the operator alone.
    let patch = json!({"owner_uid": BLUE});
    daemon.must("PATCH", "/v1/zones/red", Some(patch));
    assert!(names(Some(RED)).len() == 2, "its group still sees it");
    let (_, error) = ask(&daemon, Some(RED), &("DELETE", "/v1/vnds/red/r0", None));
    assert_eq!(error["details"][0]["errno"], "PERM", "{error}");
    assert_eq!(names(Some(BLUE)), ["r0", "renamed"]);
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
