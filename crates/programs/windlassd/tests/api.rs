//! The API from end to end: a daemon over the memory backend, asked through its socket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use daemon::{Daemon, ask_on, ask_text, connect, connect_as, options, read_answer};
use serde_json::{Value, json};
use windlass_api::{Applied, BridgeView, MonitorEvent, State, Status, VnicView};

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect()
}

/// Each kind of object is made, shown, changed and deleted; names that are taken, unknown or in use are
/// refused with their codes; the types of the API read what the daemon writes.
#[test]
fn objects_come_change_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    daemon.refused(
        "POST",
        "/v1/bridges",
        Some(json!({"name": "br0"})),
        "exists",
    );
    let vnic = json!({"name": "v0", "bridge": "br0", "attach": {"kind": "tap", "netns": "a"}});
    let applied = daemon.must("POST", "/v1/vnics", Some(vnic));
    let applied: Applied = serde_json::from_value(applied).unwrap();
    assert_eq!((applied.revision, applied.changes.len()), (2, 1));

    let view: VnicView = serde_json::from_value(daemon.must("GET", "/v1/vnics/v0", None)).unwrap();
    let mac = view.config.mac.unwrap();
    assert_eq!(mac.0[0], 2);
    assert_eq!(view.status.state, State::Up);
    assert!(view.config.zone.is_global());

    let patch = json!({"properties": {"mac-nospoof": false, "vlan": 10}});
    daemon.must("PATCH", "/v1/vnics/v0", Some(patch));
    daemon.must(
        "PATCH",
        "/v1/vnics/v0",
        Some(json!({"properties": {"vlan": null}})),
    );
    let view = daemon.must("GET", "/v1/vnics/v0", None);
    assert_eq!(view["properties"], json!({"mac-nospoof": false}));
    assert_eq!(view["mac"], mac.to_string());
    let same = daemon.must("PATCH", "/v1/vnics/v0", Some(json!({})));
    assert_eq!(same["changes"], json!([]));

    let body = json!({"name": "v0", "bridge": "br0", "attach": {"kind": "tap", "netns": "a"}});
    daemon.must("PUT", "/v1/vnics/v0", Some(body));
    assert_eq!(
        daemon.must("GET", "/v1/vnics/v0", None)["mac"],
        mac.to_string()
    );

    let uplink = json!({"name": "up0", "bridge": "br0", "device": "eth0"});
    daemon.must("POST", "/v1/uplinks", Some(uplink));
    let bridge = daemon.must("GET", "/v1/bridges/br0", None);
    let bridge: BridgeView = serde_json::from_value(bridge).unwrap();
    assert_eq!(bridge.members, ["up0", "v0"]);
    let error = daemon.refused("DELETE", "/v1/bridges/br0", None, "in_use");
    assert!(
        error["message"].as_str().unwrap().contains("\"v0\""),
        "{error}"
    );
    daemon.refused("GET", "/v1/vnics/up0", None, "not_found");
    daemon.refused("DELETE", "/v1/vnics/x", None, "not_found");

    for path in ["/v1/uplinks/up0", "/v1/vnics/v0", "/v1/bridges/br0"] {
        daemon.must("DELETE", path, None);
        daemon.refused("GET", path, None, "not_found");
    }
    let memory = daemon.memory.lock().unwrap();
    assert!(memory.vnics.is_empty() && memory.uplinks.is_empty() && memory.bridges.is_empty());
}

/// Static entries are kept in the configuration, get their VLAN from the member, go with it, and are
/// told from learned ones.
#[test]
fn forwarding_table() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let vnic = json!({"name": "v0", "bridge": "br0", "properties": {"vlan": 7}});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let entry = json!({"mac": "02:00:00:00:00:99", "member": "v0"});
    daemon.must("POST", "/v1/bridges/br0/fdb", Some(entry.clone()));
    daemon.refused("POST", "/v1/bridges/br0/fdb", Some(entry), "exists");
    let other = json!({"mac": "02:00:00:00:00:98", "member": "v0", "vlan": 8});
    daemon.refused("POST", "/v1/bridges/br0/fdb", Some(other), "invalid");
    let learned: windlass_api::MacAddr = "02:00:00:00:00:55".parse().unwrap();
    let key = ("br0".parse().unwrap(), 7, learned);
    let value = ("v0".parse().unwrap(), windlass_api::FdbKind::Learned);
    daemon.memory.lock().unwrap().entries.insert(key, value);

    let page = daemon.must("GET", "/v1/bridges/br0/fdb?vlan=7", None);
    assert_eq!(page["total"], 2);
    assert_eq!(page["entries"][0]["kind"], "learned");
    assert_eq!(page["entries"][1]["vlan"], 7);
    assert_eq!(
        daemon.must("GET", "/v1/bridges/br0/fdb?limit=1", None)["entries"][1],
        Value::Null
    );
    daemon.refused("GET", "/v1/bridges/br0/fdb?colour=red", None, "malformed");
    let flushed = daemon.must("POST", "/v1/bridges/br0/fdb/flush", Some(json!({})));
    assert_eq!(flushed["entries"], 1);
    daemon.must("DELETE", "/v1/bridges/br0/fdb?mac=02:00:00:00:00:99", None);
    daemon.refused(
        "DELETE",
        "/v1/bridges/br0/fdb?mac=02:00:00:00:00:99",
        None,
        "not_found",
    );
    daemon.refused("DELETE", "/v1/bridges/br0/fdb", None, "invalid");
    assert_eq!(daemon.must("GET", "/v1/bridges/br0/fdb", None)["total"], 0);

    let entry = json!({"mac": "02:00:00:00:00:99", "member": "v0"});
    daemon.must("POST", "/v1/bridges/br0/fdb", Some(entry));
    daemon.must("DELETE", "/v1/vnics/v0", None);
    assert_eq!(daemon.must("GET", "/v1/document", None)["fdb"], json!([]));
}

fn three_guests() -> Value {
    json!({"version": 1,
        "zones": [{"name": "a", "owner_uid": 1000, "owner_gid": 1000, "netns": "a", "bridges": ["br0"]}],
        "bridges": [{"name": "br0", "properties": {"ageing": 60}}],
        "uplinks": [{"name": "up0", "device": "eth0", "bridge": "br0", "attach": {"kind": "packet"}}],
        "vnics": [
            {"name": "v2", "zone": "global", "bridge": "br0", "mac": "02:00:00:00:00:02",
             "attach": {"kind": "memif", "socket": "m.sock", "id": 0, "role": "server"}},
            {"name": "v1", "zone": "a", "bridge": "br0",
             "attach": {"kind": "tap", "netns": "a", "address": ["10.0.0.1/24"]}}],
        "fdb": [{"bridge": "br0", "mac": "02:00:00:00:00:77", "member": "v1"}]})
}

/// What is exported is what was applied, in canonical form; applying it again changes nothing; a dry run
/// says what would be changed and changes nothing; what the document lacks is removed.
#[test]
fn apply_export_and_dry_run() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let dry = daemon.must("PUT", "/v1/document?dry_run=true", Some(three_guests()));
    assert_eq!(dry["changes"].as_array().unwrap().len(), 6);
    assert_eq!(
        (&dry["dry_run"], &dry["revision"]),
        (&json!(true), &json!(0))
    );
    assert!(daemon.calls().is_empty());
    daemon.must("PUT", "/v1/document", Some(three_guests()));
    let calls = daemon.calls();
    assert_eq!(calls[0], "create_bridge br0");
    assert_eq!(calls.last().unwrap(), "fdb_add 02:00:00:00:00:77");

    let exported = daemon.must("GET", "/v1/document", None);
    assert_eq!(names(&exported["vnics"]), ["v1", "v2"]);
    assert_eq!(exported["fdb"][0]["vlan"], 1);
    let again = daemon.must("PUT", "/v1/document", Some(exported.clone()));
    assert_eq!(again["changes"], json!([]));
    let again = daemon.must("PUT", "/v1/document", Some(three_guests()));
    assert_eq!(
        again["changes"],
        json!([]),
        "the address that was drawn is kept"
    );
    assert!(daemon.calls().is_empty());

    let mut without = exported.clone();
    without["vnics"].as_array_mut().unwrap().remove(0);
    without["fdb"] = json!([]);
    daemon.must("PUT", "/v1/document", Some(without));
    assert_eq!(
        daemon.calls(),
        ["fdb_delete 02:00:00:00:00:77", "delete_vnic v1"]
    );
}

/// An unknown key is refused with its path, whole documents and single objects alike; so is JSON of the
/// wrong type, with something behind it, and a document of another version.
#[test]
fn unknown_keys_are_refused_with_their_path() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let mut document = three_guests();
    document["vnics"][1]["bridg"] = json!("br0");
    let error = daemon.refused("PUT", "/v1/document", Some(document), "malformed");
    assert_eq!(error["details"][0]["path"], "vnics[1].bridg");
    let mut document = three_guests();
    document["bridges"][0]["properties"]["agein"] = json!(1);
    let error = daemon.refused("PUT", "/v1/document", Some(document), "malformed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("bridges[0].properties") && message.contains("\"agein\""),
        "{message}"
    );
    let mut document = three_guests();
    document["vnics"][0]["attach"]["colour"] = json!(1);
    let error = daemon.refused("PUT", "/v1/document", Some(document), "malformed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("vnics[0].attach") && message.contains("colour"),
        "{message}"
    );
    let mut document = three_guests();
    document["version"] = json!(2);
    daemon.refused("PUT", "/v1/document", Some(document), "invalid");
    for bad in [
        "",
        "{",
        "[]",
        "null",
        "{\"name\":\"b\"} x",
        "\u{0}",
        "{\"name\":5}",
        "{\"name\":\"../x\"}",
    ] {
        let (status, json) = ask_text(&daemon.socket, "POST", "/v1/bridges", bad);
        assert_eq!(
            (status, &json["code"]),
            (400, &json!("malformed")),
            "{bad}: {json}"
        );
    }
    let deep = "[".repeat(100_000);
    assert_eq!(
        ask_text(&daemon.socket, "PUT", "/v1/document", &deep).0,
        400
    );
    assert_eq!(
        daemon.must("GET", "/v1/document", None)["bridges"],
        json!([])
    );
}

/// A change that the data plane refuses in its middle is undone, and leaves document, disk and data
/// plane as they were; the same change can be made afterwards.
#[test]
fn a_failing_change_is_undone() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br9"})));
    let before = std::fs::read(options.state_dir.join("document.json")).unwrap();
    daemon.memory.lock().unwrap().fail = Some("create_vnic v2".into());
    let error = daemon.refused("PUT", "/v1/document", Some(three_guests()), "host");
    assert_eq!(error["details"][0]["path"], "vnics.v2");
    assert_eq!(
        names(&daemon.must("GET", "/v1/document", None)["bridges"]),
        ["br9"]
    );
    assert_eq!(
        std::fs::read(options.state_dir.join("document.json")).unwrap(),
        before
    );
    assert!(!options.state_dir.join("document.next").exists());
    {
        let memory = daemon.memory.lock().unwrap();
        assert!(memory.vnics.is_empty() && memory.uplinks.is_empty());
        assert_eq!(memory.bridges.len(), 1);
    }
    daemon.must("PUT", "/v1/document", Some(three_guests()));
}

/// Rules of a zone that the data plane refuses at any of its VNICs are taken back at those before it, also if the zone gets another owner at once; document and
/// disk stay.
#[test]
fn rules_of_a_zone_are_for_all_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let zone = json!({"name": "z", "owner_uid": 4321, "owner_gid": 4321, "bridges": ["br0"],
        "properties": {"firewall-base": "drop in"}});
    daemon.must("POST", "/v1/zones", Some(zone));
    let names = ["v0", "v1", "v2"];
    for name in names {
        let vnic = json!({"name": name, "zone": "z", "bridge": "br0"});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    let held = |rules: &str| {
        let memory = daemon.memory.lock().unwrap();
        memory.rules.len() == 3 && memory.rules.values().all(|held| &**held == rules)
    };
    assert!(held("drop in"));
    let stored = options.state_dir.join("document.json");
    let before = std::fs::read(&stored).unwrap();
    let rules = json!({"firewall-base": "drop out"});
    let changed = json!({"properties": rules.clone()});
    let given = json!({"owner_uid": 4322, "properties": rules});
    for call in ["set_vnic", "set_owner"] {
        for name in names {
            let body = if call == "set_vnic" { &changed } else { &given };
            daemon.memory.lock().unwrap().fail = Some(format!("{call} {name}"));
            daemon.refused("PATCH", "/v1/zones/z", Some(body.clone()), "host");
            assert!(held("drop in"), "{call} {name}");
            assert_eq!(std::fs::read(&stored).unwrap(), before);
            let zone = daemon.must("GET", "/v1/zones/z", None);
            assert_eq!(zone["properties"]["firewall-base"], "drop in");
            assert_eq!(zone["owner_uid"], 4321);
        }
    }
    daemon.must("PATCH", "/v1/zones/z", Some(given));
    assert!(held("drop out"));
}

/// A restart makes every object again, with the addresses that were drawn; the revision goes on; an
/// object that cannot be made is shown as down with the reason, and the others work.
#[test]
fn a_restart_restores() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    daemon.must("PUT", "/v1/document", Some(three_guests()));
    let exported = daemon.must("GET", "/v1/document", None);
    let memory = daemon.memory.clone();
    drop(daemon);
    assert!(!options.socket.exists());
    memory.lock().unwrap().fail = Some("create_uplink up0".into());
    let daemon = Daemon::start(&options, Some(memory));
    assert_eq!(daemon.must("GET", "/v1/document", None), exported);
    assert_eq!(daemon.must("GET", "/v1/daemon", None)["revision"], 1);
    let uplink = daemon.must("GET", "/v1/uplinks/up0", None);
    assert_eq!(uplink["state"], "down");
    assert!(uplink["reason"].as_str().unwrap().contains("told to fail"));
    assert_eq!(daemon.must("GET", "/v1/vnics/v1", None)["state"], "up");
    daemon.must(
        "PATCH",
        "/v1/uplinks/up0",
        Some(json!({"properties": {"learn": false}})),
    );
    assert_eq!(daemon.must("GET", "/v1/uplinks/up0", None)["state"], "up");
}

/// What a killed daemon had begun and not finished is removed from the host by the next one.
#[test]
fn remains_of_an_unfinished_change_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let daemon = Daemon::start(&options, None);
    daemon.must("PUT", "/v1/document", Some(three_guests()));
    drop(daemon);
    let path = options.state_dir.join("document.json");
    let mut next: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let half = json!({"name": "half", "bridge": "br0", "attach": {"kind": "tap"}});
    next["document"]["vnics"].as_array_mut().unwrap().push(half);
    std::fs::write(options.state_dir.join("document.next"), next.to_string()).unwrap();
    let daemon = Daemon::start(&options, None);
    assert_eq!(daemon.calls()[0], "delete_vnic half");
    assert_eq!(names(&daemon.must("GET", "/v1/vnics", None)), ["v1", "v2"]);
    assert!(!options.state_dir.join("document.next").exists());
}

/// Of two who read the same revision and write, the second is told.
#[test]
fn lost_updates_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let put = |revision: &str| {
        let body = r#"{"version":1}"#;
        let mut stream = connect(&daemon.socket);
        write!(
            stream,
            "PUT /v1/document HTTP/1.1\r\nhost: w\r\nconnection: close\r\nif-match: {revision}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        read_answer(stream).0
    };
    assert_eq!(put("\"0\""), 412);
    assert_eq!(put("yesterday"), 400);
    assert_eq!(put("\"1\""), 200);
}

/// A monitor gets a first line, then every change and every change of state, once each.
#[test]
fn the_monitor_tells() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let mut stream = connect(&daemon.socket);
    stream
        .write_all(b"GET /v1/monitor HTTP/1.1\r\nhost: w\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut event = || -> Value {
        loop {
            let line = lines.next().unwrap().unwrap();
            if line.starts_with('{') {
                let typed: MonitorEvent = serde_json::from_str(&line).unwrap();
                return serde_json::to_value(typed).unwrap();
            }
        }
    };
    assert_eq!(event()["event"], "start");
    daemon.must(
        "POST",
        "/v1/vnics",
        Some(json!({"name": "v0", "bridge": "br0"})),
    );
    let change = event();
    assert_eq!(
        (&change["event"], &change["change"]["op"]),
        (&json!("change"), &json!("create"))
    );
    assert_eq!(change["revision"], 2);
    let name = "v0".parse().unwrap();
    let reason = Some("no peer".to_owned());
    let waiting = Status {
        state: State::Waiting,
        reason,
        ..Status::default()
    };
    daemon.say(&name, waiting.clone());
    daemon.say(&name, waiting);
    daemon.say(
        &name,
        Status {
            state: State::Up,
            ..Status::default()
        },
    );
    let mut states = Vec::new();
    while states.last().is_none_or(|state| state != "up") {
        let event = event();
        assert_eq!(
            (&event["event"], &event["name"]),
            (&json!("state"), &json!("v0"))
        );
        states.push(event["status"]["state"].as_str().unwrap().to_owned());
    }
    states.dedup();
    assert!(states.len() <= 2, "{states:?}");
}

/// The counters come as text for Prometheus; no drop is recent in a daemon that moved nothing.
#[test]
fn metrics_and_recent_drops() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    daemon.must(
        "POST",
        "/v1/vnics",
        Some(json!({"name": "v0", "bridge": "br0"})),
    );
    daemon.must(
        "POST",
        "/v1/flows",
        Some(json!({"name": "http", "vnic": "v0", "attributes": "transport=tcp"})),
    );
    let mut stream = connect(&daemon.socket);
    stream
        .write_all(b"GET /v1/metrics HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("content-type: text/plain; version=0.0.4"),
        "{text}"
    );
    for line in [
        r#"windlass_vnic_up{vnic="v0",bridge="br0",zone=""} 1"#,
        r#"windlass_flow_receive_bytes_total{flow="http",vnic="v0",zone=""} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let drops = daemon.must("GET", "/v1/drops", None);
    assert_eq!(drops["drops"], json!([]));
}

/// A body over the limit, a head over the limit, a head that never ends and a body that never comes are
/// each refused in bounded time, and the daemon serves others meanwhile.
#[test]
fn oversized_and_slow_requests() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.read_timeout = Duration::from_millis(300);
    options.limits.body_bytes_max = 10_000;
    let daemon = Daemon::start(&options, None);
    let (status, json) = ask_text(&daemon.socket, "POST", "/v1/bridges", &" ".repeat(10_001));
    assert_eq!((status, &json["code"]), (413, &json!("too_large")));

    let mut chunked = connect(&daemon.socket);
    chunked
        .write_all(b"POST /v1/bridges HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    for _ in 0..12 {
        let _ = chunked.write_all(format!("3e8\r\n{}\r\n", " ".repeat(1000)).as_bytes());
    }
    assert_eq!(read_answer(chunked).0, 413);

    let mut head = connect(&daemon.socket);
    let long = format!("GET /v1/stats HTTP/1.1\r\nx: {}\r\n", "a".repeat(100_000));
    let _ = head.write_all(long.as_bytes());
    let mut text = Vec::new();
    let _ = head.read_to_end(&mut text);
    assert!(
        text.is_empty() || text.starts_with(b"HTTP/1.1 4"),
        "{:?}",
        String::from_utf8_lossy(&text)
    );

    let began = Instant::now();
    let mut slow_head = connect(&daemon.socket);
    slow_head.write_all(b"GET /v1/stats HTTP/1.1\r\n").unwrap();
    let mut slow_body = connect(&daemon.socket);
    slow_body
        .write_all(b"POST /v1/bridges HTTP/1.1\r\nhost: w\r\ncontent-length: 5\r\n\r\n{")
        .unwrap();
    let idle = connect(&daemon.socket);
    daemon.must("GET", "/v1/stats", None);
    assert_eq!(read_answer(slow_body).0, 408);
    let mut text = Vec::new();
    slow_head.read_to_end(&mut text).unwrap();
    let mut idle = idle;
    idle.read_to_end(&mut text).unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

/// A user who is no operator has a limited number of connections; the one too many is told so, whether it asks at once, much
/// or nothing; when one is closed, another can come.
#[test]
fn connections_are_limited() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: connections_are_limited: only root can connect as others");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.connections_per_uid_max = 4;
    let daemon = Daemon::start(&options, None);
    let another = || connect_as(1001, &daemon.socket);
    let mut held: Vec<_> = (0..4).map(|_| another()).collect();
    // A request on the last one shows that all four were accepted.
    held[3]
        .write_all(b"GET /v1/stats HTTP/1.1\r\nhost: w\r\n\r\n")
        .unwrap();
    let mut byte = [0];
    held[3].read_exact(&mut byte).unwrap();
    let (status, json) = read_answer(another());
    assert_eq!((status, &json["code"]), (503, &json!("busy")));
    for bytes in [0, 50_000] {
        for _ in 0..20 {
            let mut stream = another();
            // Whoever has not written all before it reads is a client that a broken pipe stops.
            let head =
                format!("POST /v1/vnics HTTP/1.1\r\nhost: w\r\ncontent-length: {bytes}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(" ".repeat(bytes).as_bytes()).unwrap();
            let (status, json) = read_answer(stream);
            assert_eq!((status, &json["code"]), (503, &json!("busy")));
            let message = json["message"].as_str().unwrap();
            assert!(message.contains("connections-per-uid-max"), "{message}");
        }
    }
    held.clear();
    let until = Instant::now() + Duration::from_secs(5);
    while ask_on(another(), "GET", "/v1/stats", "").0 == 503 {
        assert!(Instant::now() < until, "closed connections still count");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Operators who ask all at once are served, however few connections others may have.
#[test]
fn operators_wait_for_their_turn() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.connections_max = 1;
    options.limits.connections_per_uid_max = 1;
    let daemon = Daemon::start(&options, None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let asked: Vec<_> = (0..200).map(|_| connect(&daemon.socket)).collect();
    std::thread::scope(|scope| {
        for (number, stream) in asked.into_iter().enumerate() {
            let body = json!({"name": format!("v{number}"), "bridge": "br0"}).to_string();
            scope.spawn(move || {
                let (status, json) = ask_on(stream, "POST", "/v1/vnics", &body);
                assert_eq!(status, 201, "{json}");
            });
        }
    });
    let vnics = daemon.must("GET", "/v1/vnics", None);
    assert_eq!(vnics.as_array().map(Vec::len), Some(200));
}

/// Paths that are no resource, methods that a resource lacks, and names that try to be paths get an
/// error in the common form.
#[test]
fn errors_have_one_form() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.refused("GET", "/", None, "not_found");
    daemon.refused("GET", "/v2/bridges", None, "not_found");
    daemon.refused("DELETE", "/v1/stats", None, "method");
    daemon.refused("GET", "/v1/vnics/..%2f..%2fetc%2fpasswd", None, "not_found");
    daemon.refused("GET", "/v1/vnics/%ff", None, "malformed");
    daemon.refused("GET", "/v1/bridges/../vnics/x", None, "not_found");
    for name in ["..", "a/b", "-x", "", "global"] {
        daemon.refused(
            "POST",
            "/v1/bridges",
            Some(json!({"name": name})),
            "malformed",
        );
    }
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let memif = |socket: &str| json!({"kind": "memif", "socket": socket, "role": "server"});
    let long = format!("/{}", "a".repeat(107));
    for attach in [
        json!({"kind": "tap", "netns": "../../proc/1/ns/net/x"}),
        json!({"kind": "tap", "netns": "a/b"}),
        json!({"kind": "tap", "name": "../x"}),
        json!({"kind": "tap", "name": "sixteen-bytes-xx"}),
        memif("../b/m.sock"),
        memif("a/../../b"),
        memif("/run/../etc/x"),
        memif("a//b"),
        memif("/"),
        memif(""),
        memif("a\u{0}b"),
        memif(&long),
    ] {
        let body = json!({"name": "v0", "bridge": "br0", "attach": attach});
        daemon.refused("POST", "/v1/vnics", Some(body), "malformed");
    }
    assert_eq!(daemon.must("GET", "/v1/vnics", None), json!([]));
    assert_eq!(
        daemon.must("GET", "/v1/openapi.json", None)["openapi"],
        "3.1.0"
    );
    assert_eq!(
        daemon
            .must("GET", "/v1/workers", None)
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(
        daemon.must("GET", "/v1/stats", None)["time_ns"]
            .as_u64()
            .unwrap()
            > 0
    );
}

/// A move names a ring, a member or a bridge, is asked of the data plane as it was said, and changes no document; what is not
/// there, or means two things, is refused before.
#[test]
fn moves_are_no_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    daemon.must("PUT", "/v1/document", Some(three_guests()));
    daemon.calls();
    let before = daemon.must("GET", "/v1/document", None);
    let path = "/v1/workers/move";
    for what in [
        json!({"member": "v1", "ring": 3, "worker": 1}),
        json!({"member": "v2", "worker": 0}),
        json!({"bridge": "br0", "worker": 2}),
    ] {
        let answer = daemon.must("POST", path, Some(what));
        assert_eq!(answer, json!({"moved": 1}));
    }
    let asked = [
        "move_rings v1 3 1",
        "move_rings v2 all 0",
        "move_table br0 2",
    ];
    assert_eq!(daemon.calls(), asked);
    for (what, code) in [
        (json!({"worker": 0}), "invalid"),
        (
            json!({"member": "v1", "bridge": "br0", "worker": 0}),
            "invalid",
        ),
        (json!({"bridge": "br0", "ring": 0, "worker": 0}), "invalid"),
        (json!({"member": "br0", "worker": 0}), "not_found"),
        (json!({"bridge": "v1", "worker": 0}), "not_found"),
        (json!({"member": "v1"}), "malformed"),
        (json!({"member": "v1", "worker": -1}), "malformed"),
    ] {
        daemon.refused("POST", path, Some(what), code);
    }
    assert!(daemon.calls().is_empty());
    assert_eq!(daemon.must("GET", "/v1/document", None), before);
    assert_eq!(daemon.must("GET", "/v1/bridges/br0", None)["home"], 0);
}
