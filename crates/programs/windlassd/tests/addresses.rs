//! Whose address and whose interface it is: nobody is given what another one has, and a clash is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;
mod lab;

use std::io::{BufRead, BufReader, Write};

use daemon::{Daemon, connect, options};
use lab::{Lab, until};
use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlassd::authority::Peer;
use windlassd::dataplane;

/// The address that is fought for.
const GATEWAY: &str = "02:00:00:00:00:fe";

fn start(directory: &std::path::Path, lab: &Lab) -> Daemon {
    let options = options(directory);
    let host = Box::new(lab.clone());
    Daemon::start_over(&options, |sink| dataplane::build_on(host, &options, sink))
}

/// A bridge with a VNIC `inner`, behind which there are others, and an uplink `outer`.
fn network(daemon: &Daemon) {
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let inner = json!({"name": "inner", "bridge": "br0", "mac": "02:00:00:00:00:01",
        "properties": {"mac-nospoof": false}});
    daemon.must("POST", "/v1/vnics", Some(inner));
    let outer = json!({"name": "outer", "bridge": "br0", "device": "eth7"});
    daemon.must("POST", "/v1/uplinks", Some(outer));
}

/// Has the address learned behind a member.
fn learned_behind(daemon: &Daemon, lab: &Lab, member: &str) {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 0xfe, 0x88, 0xb5]);
    frame.resize(60, 0);
    lab.guest(member).send([frame]);
    until("the address is learned", || holder(daemon) == member);
}

/// The member that has the address now; empty: none.
fn holder(daemon: &Daemon) -> String {
    let path = format!("/v1/bridges/br0/fdb?mac={GATEWAY}");
    let page = daemon.must("GET", &path, None);
    page["entries"][0]["member"]
        .as_str()
        .unwrap_or("")
        .to_owned()
}

fn claim() -> Value {
    json!({"name": "thief", "bridge": "br0", "mac": GATEWAY})
}

/// An address that is learned behind another VNIC is refused, whoever asks and however: as a new VNIC, as the new address
/// of one, in a document, and in a dry run. Its holder keeps its traffic and is named.
#[test]
fn an_address_behind_another_vnic_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    learned_behind(&daemon, &lab, "inner");
    let error = daemon.refused("POST", "/v1/vnics", Some(claim()), "in_use");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"inner\""), "{message}");
    assert_eq!(error["details"][0]["path"], "vnics.thief.mac");
    let mut document = daemon.must("GET", "/v1/document", None);
    document["vnics"].as_array_mut().unwrap().push(claim());
    for path in ["/v1/document?dry_run=true", "/v1/document"] {
        daemon.refused("PUT", path, Some(document.clone()), "in_use");
    }
    let honest = json!({"name": "thief", "bridge": "br0"});
    daemon.must("POST", "/v1/vnics", Some(honest));
    let patch = json!({"mac": GATEWAY});
    daemon.refused("PATCH", "/v1/vnics/thief", Some(patch), "in_use");
    assert_eq!(holder(&daemon), "inner");
    // Its holder may have it, and so may anyone once it is forgotten.
    daemon.must(
        "DELETE",
        &format!("/v1/bridges/br0/fdb?mac={GATEWAY}"),
        None,
    );
    daemon.must("PATCH", "/v1/vnics/thief", Some(json!({"mac": GATEWAY})));
    assert_eq!(holder(&daemon), "thief");
}

/// An address that was learned in one VLAN may be had in another one.
#[test]
fn an_address_is_taken_in_its_vlan() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    let filtering = json!({"properties": {"vlan-filtering": true}});
    daemon.must("PATCH", "/v1/bridges/br0", Some(filtering));
    learned_behind(&daemon, &lab, "inner");
    let mut other = claim();
    other["properties"] = json!({"vlan": 7});
    daemon.must("POST", "/v1/vnics", Some(other));
    let patch = json!({"properties": {"vlan": 1}});
    daemon.refused("PATCH", "/v1/vnics/thief", Some(patch), "in_use");
}

/// Who owns zone "z", which is made and may use the bridge.
fn tenant_of_a_zone(daemon: &Daemon) -> Peer {
    let zone = json!({"name": "z", "owner_uid": 4321, "owner_gid": 4321, "bridges": ["br0"]});
    daemon.must("POST", "/v1/zones", Some(zone));
    Peer {
        uid: 4321,
        gid: 4321,
        operator: false,
    }
}

/// An address that is learned behind an uplink is refused to a tenant; an operator gets it, and is told. The daemon after
/// this one makes it without asking.
#[test]
fn an_address_behind_an_uplink_is_the_operators() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    let tenant = tenant_of_a_zone(&daemon);
    learned_behind(&daemon, &lab, "outer");
    let mut mine = claim();
    mine["zone"] = json!("z");
    let refused = daemon.change(tenant, |document| {
        document.vnics.push(serde_json::from_value(mine).unwrap());
        Ok(())
    });
    let error = refused.unwrap_err();
    assert_eq!(error.code, ErrorCode::InUse);
    assert!(error.message.contains("\"outer\""), "{}", error.message);
    assert_eq!(holder(&daemon), "outer");
    let applied = daemon.must("POST", "/v1/vnics", Some(claim()));
    let warning = applied["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains(GATEWAY) && warning.contains("\"outer\"") && warning.contains("\"thief\""),
        "{warning}"
    );
    assert_eq!(holder(&daemon), "thief");
    drop(daemon);
    let daemon = start(directory.path(), &lab);
    assert_eq!(holder(&daemon), "thief");
}

/// With `state=standby` an address that is learned behind an uplink stays there, for an operator alone, until the VNIC sends from
/// it: the announcement after a live migration. What the VNIC sends from others is dropped all the same. `state=active` fixes
/// it, at whatever time.
#[test]
fn a_standby_vnic_takes_its_address_when_it_speaks() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    learned_behind(&daemon, &lab, "outer");
    let mut standby = claim();
    standby["properties"] = json!({"state": "standby"});
    let applied = daemon.must("POST", "/v1/vnics", Some(standby));
    let warning = applied["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("\"outer\"") && warning.contains("state=active"),
        "{warning}"
    );
    assert_eq!(holder(&daemon), "outer");
    let shown = || {
        let vnic = daemon.must("GET", "/v1/vnics/thief", None);
        vnic["details"]["standby"].as_str().unwrap_or("").to_owned()
    };
    assert_eq!(shown(), format!("{GATEWAY} is behind outer"));
    until("the guest is there", || {
        daemon.must("GET", "/v1/vnics/thief", None)["state"] == "up"
    });

    let frame = |source: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, source, 0x80, 0x35]);
        frame.resize(60, 0);
        frame
    };
    lab.guest("thief").send([frame(0xfd)]);
    until("what is not its own is dropped", || {
        let vnic = daemon.must("GET", "/v1/vnics/thief", None);
        vnic["counters"]["drops"]["mac-spoof"] == 1
    });
    assert_eq!(holder(&daemon), "outer");
    lab.guest("thief").send([frame(0xfe)]);
    until("it has moved", || holder(&daemon) == "thief");
    assert_eq!(shown(), format!("{GATEWAY} was learned here"));
    // The former host may still speak: it is learned, until the address is fixed.
    learned_behind(&daemon, &lab, "outer");
    let active = json!({"properties": {"state": "active"}});
    let applied = daemon.must("PATCH", "/v1/vnics/thief", Some(active));
    let warning = applied["warnings"][0].as_str().unwrap();
    assert!(warning.contains("\"outer\""), "{warning}");
    assert_eq!(holder(&daemon), "thief");
    assert_eq!(shown(), "");
    lab.guest("outer").send([frame(0xfe)]);
    until("nobody else may use it", || {
        let uplink = daemon.must("GET", "/v1/uplinks/outer", None);
        uplink["counters"]["drops"]["sticky-source"] == 1
    });
    assert_eq!(holder(&daemon), "thief");
    // It may be given back: a migration that failed.
    let patch = json!({"properties": {"state": "standby"}});
    daemon.must("PATCH", "/v1/vnics/thief", Some(patch));
    assert_eq!(holder(&daemon), "");
}

/// A tenant gets no address that is learned behind an uplink with `state=standby` either, which is not its to set; a VNIC that an
/// operator has made standby takes no other one.
#[test]
fn standby_is_the_operators() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    let tenant = tenant_of_a_zone(&daemon);
    learned_behind(&daemon, &lab, "outer");
    let standby = |name: &str, mac: &str| json!({"name": name, "zone": "z", "bridge": "br0", "mac": mac, "properties": {"state": "standby"}});
    let mine = standby("mine", GATEWAY);
    let refused = daemon.change(tenant, |document| {
        document.vnics.push(serde_json::from_value(mine).unwrap());
        Ok(())
    });
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    let given = standby("given", "02:00:00:00:00:77");
    daemon.must("POST", "/v1/vnics", Some(given));
    let refused = daemon.change(tenant, |document| {
        let mut vnics = document.vnics.iter_mut();
        vnics.find(|vnic| vnic.name == *"given").unwrap().mac = Some(GATEWAY.parse().unwrap());
        Ok(())
    });
    let error = refused.unwrap_err();
    assert_eq!(error.code, ErrorCode::InUse);
    assert!(error.message.contains("\"outer\""), "{}", error.message);
}

/// The address of a static entry is refused to a VNIC, and that of a VNIC to a static entry: both are named.
#[test]
fn a_static_address_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    let entry = json!({"mac": GATEWAY, "member": "inner"});
    daemon.must("POST", "/v1/bridges/br0/fdb", Some(entry));
    let error = daemon.refused("POST", "/v1/vnics", Some(claim()), "invalid");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("\"inner\"") && message.contains("\"thief\""),
        "{message}"
    );
    let entry = json!({"mac": "02:00:00:00:00:01", "member": "outer"});
    let error = daemon.refused("POST", "/v1/bridges/br0/fdb", Some(entry), "invalid");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"inner\""), "{message}");
}

/// A member that sends from the address of another one gets none of its traffic, and the monitor tells of the clash.
#[test]
fn a_later_clash_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon);
    daemon.must("POST", "/v1/vnics", Some(claim()));
    let mut stream = connect(&daemon.socket);
    stream
        .write_all(b"GET /v1/monitor HTTP/1.1\r\nhost: w\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream)
        .lines()
        .map(Result::unwrap)
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str::<Value>(&line).unwrap());
    assert_eq!(lines.next().unwrap()["event"], "start");
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 0xfe, 0x88, 0xb5]);
    frame.resize(60, 0);
    lab.guest("outer").send([frame]);
    let clash = lines.find(|event| event["event"] == "clash").unwrap();
    assert_eq!(
        [
            &clash["bridge"],
            &clash["mac"],
            &clash["holder"],
            &clash["member"]
        ],
        ["br0", GATEWAY, "thief", "outer"]
    );
    assert_eq!(holder(&daemon), "thief");
}

/// A TAP of a bridge, in the daemon's namespace, is not taken as an uplink of the same bridge, in whatever order the two
/// are made: its frames would go round. As an uplink of another bridge it joins the two.
#[test]
fn a_bridge_is_not_its_own_uplink() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    for name in ["br0", "br1"] {
        daemon.must("POST", "/v1/bridges", Some(json!({"name": name})));
    }
    let tap = |bridge: &str, netns: Option<&str>| json!({"name": "v0", "bridge": bridge, "attach": {"kind": "tap", "name": "host0", "netns": netns}});
    let uplink = json!({"name": "loop", "bridge": "br0", "device": "host0"});
    daemon.must("POST", "/v1/vnics", Some(tap("br0", None)));
    let error = daemon.refused("POST", "/v1/uplinks", Some(uplink.clone()), "in_use");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"v0\""), "{message}");
    daemon.must("DELETE", "/v1/vnics/v0", None);
    daemon.must("POST", "/v1/uplinks", Some(uplink));
    daemon.refused("POST", "/v1/vnics", Some(tap("br0", None)), "in_use");
    daemon.must("POST", "/v1/vnics", Some(tap("br1", None)));
    daemon.refused(
        "PATCH",
        "/v1/vnics/v0",
        Some(json!({"bridge": "br0"})),
        "in_use",
    );
    daemon.must("DELETE", "/v1/vnics/v0", None);
    daemon.must("POST", "/v1/vnics", Some(tap("br0", Some("a"))));
}
