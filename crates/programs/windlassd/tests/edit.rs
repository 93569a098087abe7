//! The data plane under changes that fail: real workers and tables over a host of the test's own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bridge;
mod daemon;
mod lab;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bridge::{bridge_of, datagram, frame, mac, start};
use daemon::{Daemon, options};
use lab::{Lab, until};
use serde_json::{Value, json};
use windlass_sys::netns;
use windlass_worker::dataplane::GRACE_MAX;
use windlassd::dataplane;
use windlassd::shares::Share;

/// While a worker is late, however long, the endpoint of a member that goes down is not told that no worker has its rings:
/// it would answer its guest, and the worker would serve the ring after that. It is told once the worker has let go.
#[test]
fn a_late_worker_keeps_its_rings() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    for name in ["v0", "v1"] {
        let vnic = json!({"name": name, "bridge": "br0"});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    let (late, leaving) = (lab.guest("v0"), lab.guest("v1"));
    let hold = late.hold();
    leaving.leave();
    std::thread::sleep(Duration::from_millis(5500));
    assert_eq!(leaving.rings.load(Ordering::Acquire), 1);
    assert!(
        leaving.detached.lock().unwrap().is_empty(),
        "the worker has the ring"
    );
    drop(hold);
    until("the worker has let go", || {
        leaving.rings.load(Ordering::Acquire) == 0
    });
    until("the endpoint knows", || {
        *leaving.detached.lock().unwrap() == [0]
    });
    assert_eq!(lab.guest("v0").detached.lock().unwrap().len(), 0);
}

/// A question is no reason to poll endpoints: with many of them a restart took as long as the square of their number.
#[test]
fn questions_do_not_poll() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 2, &json!({}));
    let polls = || lab.guest("v0").polls.load(Ordering::Acquire);
    let mut before = 0;
    until("it is up, and nothing is left to do", || {
        let last = std::mem::replace(&mut before, polls());
        lab.guest("v1").rings.load(Ordering::Acquire) == 1 && last == before
    });
    for _ in 0..50 {
        daemon.must("GET", "/v1/vnics", None);
        daemon.must("GET", "/v1/stats", None);
    }
    assert_eq!(polls(), before);
    let asks = lab.guest("v1");
    let before = asks.polls.load(Ordering::Acquire);
    asks.leave();
    until("an endpoint that asks is polled", || {
        asks.polls.load(Ordering::Acquire) > before
    });
}

/// An event of one endpoint drives that one: with many guests, each that connects cost as much as all of them.
#[test]
fn an_event_drives_its_endpoint_only() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 8, &json!({}));
    let guests: Vec<_> = (0..8).map(|n| lab.guest(&format!("v{n}"))).collect();
    let polls = || -> Vec<usize> {
        let polls = guests.iter().map(|g| g.polls.load(Ordering::Acquire));
        polls.collect()
    };
    until("all are up", || {
        guests.iter().all(|g| g.rings.load(Ordering::Acquire) == 1)
    });
    let before = polls();
    guests[3].leave();
    until("it is down", || {
        guests[3].detached.lock().unwrap().len() == 1
    });
    until("it is polled again when it is down", || {
        polls()[3] >= before[3] + 2
    });
    // A question that came after it was answered after it.
    daemon.must("GET", "/v1/stats", None);
    let driven: Vec<usize> = (0..8).filter(|n| polls()[*n] != before[*n]).collect();
    assert_eq!(driven, [3]);
}

/// A namespace that comes or goes drives the TAPs that are to be in it: with many TAPs in others, each looked for its own.
#[test]
fn a_namespace_drives_its_taps_only() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_namespace_drives_its_taps_only: only root can make namespaces");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let made = |kind| format!("wle-{kind}-{}", std::process::id());
    let (stays, comes) = (made("stays"), made("comes"));
    netns::create(&stays).unwrap();
    for (n, netns) in [(0, &stays), (1, &comes)] {
        let attach = json!({"kind": "tap", "netns": netns});
        let vnic =
            json!({"name": format!("v{n}"), "bridge": "br0", "mac": mac(n), "attach": attach});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    let knows = |member: &str, is_there: bool| {
        let guest = lab.guest(member);
        until("it knows whether its namespace is there", || {
            guest.is_in.lock().unwrap().is_some() == is_there
        });
    };
    let polls = || lab.guest("v0").polls.load(Ordering::Acquire);
    knows("v0", true);
    netns::create(&comes).unwrap();
    knows("v1", true);
    let before = polls();
    netns::delete(&comes).unwrap();
    knows("v1", false);
    netns::create(&comes).unwrap();
    knows("v1", true);
    assert_eq!(polls(), before);
    for netns in [comes, stays] {
        netns::delete(&netns).unwrap();
    }
    knows("v0", false);
}

/// A member that gets another one's number is not driven by what its predecessor had under way.
#[test]
fn a_number_that_is_used_again_is_another_member() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 1, &json!({}));
    let gone = lab.guest("v0");
    daemon.must("DELETE", "/v1/vnics/v0", None);
    until("it is deleted", || lab.deleted() == 1);
    let vnic = json!({"name": "v0", "bridge": "br0", "mac": mac(0)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let guest = lab.guest("v0");
    until("the next one is up", || {
        guest.rings.load(Ordering::Acquire) == 1
    });
    daemon.must("GET", "/v1/stats", None);
    let polls = |guest: &lab::Guest| guest.polls.load(Ordering::Acquire);
    let before = (polls(&gone), polls(&guest));
    // The test has its descriptor still.
    gone.leave();
    daemon.must("GET", "/v1/stats", None);
    daemon.must("GET", "/v1/stats", None);
    assert_eq!((polls(&gone), polls(&guest)), before);
    guest.leave();
    until("the next one is heard", || {
        guest.detached.lock().unwrap().len() == 1
    });
}

/// Sends 40 frames from `v0` to `v1`, which gets them all, and `v2` none.
fn nobody_else_sees(lab: &Lab) {
    let guests = ["v0", "v1", "v2"].map(|name| lab.guest(name));
    for guest in &guests {
        guest.take_got();
    }
    guests[0].send((0..40).map(|_| frame(1, 0)));
    until("40 frames are there", || {
        guests[0].has_sent() && guests[1].got() == 40
    });
    assert_eq!(guests[2].got(), 0, "frames that a bystander sees");
}

/// Adds static entries to a bridge.
fn add_entries(daemon: &Daemon, count: usize) {
    for number in 0..count {
        let entry = json!({"mac": mac(0x1000 + number), "member": "v2"});
        daemon.must("POST", "/v1/bridges/br0/fdb", Some(entry));
    }
}

/// A table that would be too small for the fixed entries is refused, and the one that is there goes on: a bystander sees
/// none of the frames between two others.
#[test]
fn a_refused_size_changes_no_table() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    add_entries(&daemon, 20);
    let before = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    let patch = json!({"properties": {"addresses-max": 16}});
    daemon.refused("PATCH", "/v1/bridges/br0", Some(patch), "invalid");
    nobody_else_sees(&lab);
    assert_eq!(daemon.must("GET", "/v1/bridges/br0/fdb", None), before);
}

/// A change of filtering that is refused leaves every entry in its VLAN.
#[test]
fn a_refused_filtering_changes_no_vlan() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 20, &json!({"vlan-filtering": true}));
    let before = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(before["entries"][0]["vlan"], 1);
    let patch = json!({"properties": {"addresses-max": 16, "vlan-filtering": false}});
    let error = daemon.refused("PATCH", "/v1/bridges/br0", Some(patch), "invalid");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("no room"), "{message}");
    assert_eq!(daemon.must("GET", "/v1/bridges/br0/fdb", None), before);
    nobody_else_sees(&lab);
}

/// A table that is replaced while its worker is late has a writer as soon as the worker is back: entries can be added, and
/// frames find them.
#[test]
fn a_table_always_has_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let hold = lab.guest("v0").hold();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5500));
        drop(hold);
    });
    let patch = json!({"properties": {"addresses-max": 64}});
    daemon.ask("PATCH", "/v1/bridges/br0", Some(patch));
    release.join().unwrap();
    add_entries(&daemon, 4);
    let page = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(page["total"], 7, "{page}");
    nobody_else_sees(&lab);
}

/// A document is made as a whole: refused at any VNIC, nothing of it is there; then it is made, and frames pass.
#[test]
fn a_document_is_made_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let vnics: Vec<_> = (0..3)
        .map(|number| json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)}))
        .collect();
    let document = json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": vnics});
    let before = daemon.must("GET", "/v1/document", None);
    for refused in 0..3 {
        lab.steps().taken.clear();
        lab.steps().refuse = Some(refused);
        daemon.refused("PUT", "/v1/document", Some(document.clone()), "host");
        assert_eq!(daemon.must("GET", "/v1/document", None), before);
        daemon.refused("GET", "/v1/bridges/br0/fdb", None, "not_found");
        assert_eq!(daemon.must("GET", "/v1/stats", None)["members"], json!([]));
    }
    lab.steps().refuse = None;
    daemon.must("PUT", "/v1/document", Some(document));
    nobody_else_sees(&lab);
    until("the frames are counted for the bridge", || {
        let stats = daemon.must("GET", "/v1/stats", None);
        let stats: windlass_api::Stats = serde_json::from_value(stats).unwrap();
        stats.bridges[0].traffic.rx_frames == 40
    });
}

/// The largest document that people apply in one go: 500 VNICs come, and go again, by `PUT /v1/document`. The three that
/// stay go on forwarding.
#[test]
fn five_hundred_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let few = daemon.must("GET", "/v1/document", None);
    let mut many = few.clone();
    let vnics = many["vnics"].as_array_mut().unwrap();
    vnics.extend(
        (3..503).map(
            |number| json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)}),
        ),
    );
    daemon.must("PUT", "/v1/document", Some(many));
    let page = daemon.must("GET", "/v1/bridges/br0/fdb?limit=1", None);
    assert_eq!(page["total"], 503);
    let gone: Vec<_> = (3..503).map(|n| lab.guest(&format!("v{n}"))).collect();
    daemon.must("PUT", "/v1/document", Some(few.clone()));
    assert_eq!(daemon.must("GET", "/v1/document", None), few);
    let page = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(page["total"], 3);
    for guest in &gone {
        assert_eq!(guest.rings.load(Ordering::Acquire), 0, "rings of nobody");
        assert_eq!(guest.deleted.load(Ordering::Acquire), 1);
    }
    nobody_else_sees(&lab);
}

/// While a worker is late, a VNIC that it serves is not deleted: that is refused, its endpoint stays, and so does its entry
/// in the API. Once the worker is back, the VNIC is up again, gets frames, and can be deleted.
#[test]
fn a_late_worker_keeps_its_members() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let before = daemon.must("GET", "/v1/document", None);
    let (late, kept) = (lab.guest("v2"), lab.guest("v1"));
    let hold = late.hold();
    let begun = Instant::now();
    daemon.refused("DELETE", "/v1/vnics/v1", None, "host");
    assert!(begun.elapsed() < 2 * GRACE_MAX, "it is waited for once");
    assert_eq!(daemon.must("GET", "/v1/document", None), before);
    assert_eq!(kept.deleted.load(Ordering::Acquire), 0, "it may be used");
    drop(hold);
    until("it is up again", || {
        daemon.must("GET", "/v1/vnics/v1", None)["state"] == "up"
    });
    nobody_else_sees(&lab);
    daemon.must("DELETE", "/v1/vnics/v1", None);
    assert_eq!(kept.deleted.load(Ordering::Acquire), 1);
}

/// What the API shows, with learned addresses, counters and connections, which zones have directories, and how many guests were
/// deleted for good.
fn seen(daemon: &Daemon, lab: &Lab, directory: &std::path::Path) -> Value {
    let paths = [
        "document",
        "bridges/br0/fdb",
        "bridges/br1/fdb",
        "vnics",
        "uplinks",
        "bridges",
        "zones",
        "flows",
    ];
    let mut seen = paths.map(|path| daemon.must("GET", &format!("/v1/{path}"), None));
    for bridge in [1, 2] {
        for entry in seen[bridge]["entries"].as_array_mut().unwrap() {
            entry.as_object_mut().unwrap().remove("age_s");
        }
    }
    let zones = std::fs::read_dir(options(directory).runtime_dir.join("zones")).unwrap();
    let owner = |entry: std::fs::DirEntry| {
        use std::os::unix::fs::MetadataExt;
        (
            entry.file_name().into_string().unwrap(),
            entry.metadata().unwrap().uid(),
        )
    };
    let zones: std::collections::BTreeMap<_, _> =
        zones.map(|entry| owner(entry.unwrap())).collect();
    json!({"api": seen, "zones": zones, "deleted": lab.deleted()})
}

/// A method, a path, a body, and the number of steps that the host takes for it.
type Asked = (&'static str, &'static str, Option<Value>, usize);

/// Changes of each kind to what [`network`] makes.
fn changes(daemon: &Daemon) -> Vec<Asked> {
    let mut replaced = daemon.must("GET", "/v1/document", None);
    replaced["vnics"][0]["name"] = json!("v7");
    replaced["vnics"][1]["bridge"] = json!("br1");
    replaced["vnics"][2]["properties"] = json!({"mtu": 1400});
    replaced["fdb"] = json!([]);
    replaced["flows"][0]["attributes"] = json!("transport=tcp");
    let mut fewer = daemon.must("GET", "/v1/document", None);
    fewer["vnics"] = json!([{"name": "v8", "bridge": "br0"}]);
    (fewer["fdb"], fewer["flows"]) = (json!([]), json!([]));
    let mut resized = daemon.must("GET", "/v1/document", None);
    resized["bridges"][0]["properties"] = json!({"addresses-max": 64});
    let vnics = resized["vnics"].as_array_mut().unwrap();
    vnics.push(json!({"name": "v9", "bridge": "br0"}));
    resized["flows"][0]["properties"] = json!({"maxbw": 1});
    resized["flows"][1]["vnic"] = json!("v9");
    let filtering = json!({"properties": {"vlan-filtering": true}});
    let ageing = json!({"properties": {"ageing": 20}});
    let made = json!({"name": "v9", "bridge": "br0"});
    let smaller = json!({"properties": {"mtu": 1300}});
    let mut changes = vec![
        ("POST", "/v1/vnics", Some(made), 1),
        ("PATCH", "/v1/vnics/v1", Some(smaller), 1),
        (
            "PATCH",
            "/v1/vnics/v1",
            Some(json!({"mac": mac(0x2000)})),
            1,
        ),
        ("PATCH", "/v1/vnics/v1", Some(json!({"bridge": "br1"})), 1),
        ("PUT", "/v1/document", Some(replaced), 3),
        ("PUT", "/v1/document", Some(fewer), 1),
        ("PUT", "/v1/document", Some(resized), 1),
        ("PATCH", "/v1/bridges/br0", Some(filtering), 0),
        ("PATCH", "/v1/bridges/br0", Some(ageing), 0),
    ];
    changes.extend(other_changes(daemon));
    changes
}

/// Those of uplinks, zones, bridges, entries and attachments, and of all of them together.
fn other_changes(daemon: &Daemon) -> Vec<Asked> {
    let memif = json!({"kind": "memif", "socket": "m.sock", "role": "server"});
    let zone = json!({"name": "y", "owner_uid": 4322, "owner_gid": 4322, "bridges": ["br1"]});
    let uplink = json!({"name": "u9", "device": "eth9", "bridge": "br1"});
    let entry = json!({"mac": mac(0x3000), "member": "u0"});
    let mut all = daemon.must("GET", "/v1/document", None);
    all["zones"] = json!([zone.clone()]);
    all["bridges"][1]["name"] = json!("br9");
    all["zones"][0]["bridges"] = json!(["br9"]);
    all["uplinks"] = json!([{"name": "u0", "device": "eth0", "bridge": "br9"},
        {"name": "u8", "device": "eth8", "bridge": "br0"}]);
    all["vnics"][0]["attach"] = memif.clone();
    all["vnics"][1]["bridge"] = json!("br9");
    all["vnics"][3]["zone"] = json!("y");
    all["vnics"][3]["bridge"] = json!("br9");
    all["fdb"] = json!([{"bridge": "br0", "vlan": 1, "mac": mac(0x3000), "member": "u8"}]);
    let gone = "/v1/bridges/br0/fdb?mac=02:00:00:00:10:00";
    let flow = json!({"name": "f9", "vnic": "v1", "attributes": "transport=tcp"});
    let quiet = json!({"properties": {"multicast-snooping": false, "stp": true}});
    let open = json!({"properties": {"firewall": null, "neigh-suppress": null, "locked": true}});
    vec![
        ("POST", "/v1/flows", Some(flow), 0),
        (
            "PATCH",
            "/v1/flows/f1",
            Some(json!({"properties": {"maxbw": 1}})),
            0,
        ),
        ("DELETE", "/v1/flows/f1", None, 0),
        ("DELETE", "/v1/vnics/v1", None, 0),
        ("PATCH", "/v1/bridges/br0", Some(quiet), 0),
        ("PATCH", "/v1/vnics/v2", Some(open), 1),
        ("POST", "/v1/uplinks", Some(uplink), 1),
        ("PATCH", "/v1/uplinks/u0", Some(json!({"bridge": "br1"})), 1),
        (
            "PATCH",
            "/v1/uplinks/u0",
            Some(json!({"properties": {"private": true}})),
            0,
        ),
        ("DELETE", "/v1/uplinks/u0", None, 0),
        ("POST", "/v1/zones", Some(zone), 0),
        ("PATCH", "/v1/zones/z", Some(json!({"owner_uid": 4323})), 0),
        (
            "PATCH",
            "/v1/zones/z",
            Some(json!({"bridges": ["br0", "br1"]})),
            0,
        ),
        (
            "PATCH",
            "/v1/zones/z",
            Some(json!({"properties": {"firewall-base": "drop in"}})),
            1,
        ),
        ("DELETE", "/v1/vnics/z0", None, 0),
        ("POST", "/v1/bridges", Some(json!({"name": "br9"})), 0),
        ("DELETE", "/v1/bridges/br2", None, 0),
        ("POST", "/v1/bridges/br0/fdb", Some(entry), 0),
        ("DELETE", gone, None, 0),
        ("PATCH", "/v1/vnics/v1", Some(json!({"attach": memif})), 1),
        ("PUT", "/v1/document", Some(all), 5),
    ]
}

/// Bridges `br0`, `br1` and `br2`, and on the first one, which snoops, an uplink, a VNIC of a zone, and VNICs with static entries, learned
/// addresses, counted frames, flows and a firewall.
fn network(daemon: &Daemon, lab: &Lab) {
    let snoops = json!({"name": "br0", "properties": {"multicast-snooping": true}});
    daemon.must("POST", "/v1/bridges", Some(snoops));
    for number in 0..3 {
        let vnic = json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number),
            "properties": {"mac-nospoof": false}});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    let closed = json!({"firewall": "drop in tcp to port 7", "neigh-suppress": true, "allowed-ips": "10.0.0.2"});
    let closed = json!({"properties": closed});
    daemon.must("PATCH", "/v1/vnics/v2", Some(closed));
    for vnic in ["v1", "v2"] {
        let name = vnic.replace('v', "f");
        let flow = json!({"name": name, "vnic": vnic, "attributes": "transport=udp"});
        daemon.must("POST", "/v1/flows", Some(flow));
    }
    for name in ["br1", "br2"] {
        daemon.must("POST", "/v1/bridges", Some(json!({"name": name})));
    }
    let uplink = json!({"name": "u0", "device": "eth0", "bridge": "br0"});
    daemon.must("POST", "/v1/uplinks", Some(uplink));
    let zone = json!({"name": "z", "owner_uid": 4321, "owner_gid": 4321, "bridges": ["br0"]});
    daemon.must("POST", "/v1/zones", Some(zone));
    let vnic = json!({"name": "z0", "zone": "z", "bridge": "br0", "mac": mac(0x4000)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    add_entries(daemon, 2);
    for (number, name) in ["v0", "v1", "v2"].into_iter().enumerate() {
        lab.guest(name).send([frame(1, 0x70 + number as u8)]);
    }
    until("addresses are learned, and frames counted", || {
        let vnics = daemon.must("GET", "/v1/vnics", None);
        let table = daemon.must("GET", "/v1/bridges/br0/fdb", None);
        let sent = |at: usize| vnics[at]["counters"]["rx_frames"] == 1;
        table["total"] == 9 && (0..3).all(sent) && lab.guest("v1").got() == 2
    });
    lab.guest("v0").send([datagram(1, 0x70), datagram(2, 0x70)]);
    until("flows have counted, and a neighbour is known", || {
        let flows = daemon.must("GET", "/v1/flows", None);
        let bridge = daemon.must("GET", "/v1/bridges/br0", None);
        let has = |at: usize| flows[at]["tx_frames"] == 1;
        has(0) && has(1) && bridge["neighbours"]["known"] == 1
    });
}

/// Each step of the host that a change takes is refused in turn, with every later one, so that nothing can be made again:
/// the API shows what it did, learned addresses and counters among it, and the guests stay connected.
#[test]
fn a_change_that_the_host_refuses_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon, &lab);
    let before = seen(&daemon, &lab, directory.path());
    let mut faults = Vec::new();
    for (method, path, body, steps) in changes(&daemon) {
        for step in 0..steps {
            lab.steps().refuse_from(step);
            let error = daemon.refused(method, path, body.clone(), "host");
            let after = seen(&daemon, &lab, directory.path());
            if after != before {
                faults.push(format!("{method} {path} {step} {error}\n{before}\n{after}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Each of these changes is made if nobody refuses it, and takes as many steps of the host as are refused above.
#[test]
fn every_step_is_refused_above() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon, &lab);
    let before = daemon.must("GET", "/v1/document", None);
    for (method, path, body, steps) in changes(&daemon) {
        lab.steps().taken.clear();
        daemon.must(method, path, body);
        let taken = lab.steps().taken.clone();
        assert_eq!(taken.len(), steps, "{method} {path}: {taken:?}");
        let after = daemon.must("GET", "/v1/document", None);
        assert_ne!(after, before, "{method} {path}");
        daemon.must("PUT", "/v1/document", Some(before.clone()));
    }
}

/// The same if the store refuses to put the new document in the place of the old one.
#[test]
fn a_change_that_the_store_refuses_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon, &lab);
    let before = seen(&daemon, &lab, directory.path());
    let stored = options(directory.path()).state_dir.join("document.json");
    std::fs::remove_file(&stored).unwrap();
    std::fs::create_dir(&stored).unwrap();
    for (method, path, body, _) in changes(&daemon) {
        daemon.refused(method, path, body, "storage");
        assert_eq!(
            seen(&daemon, &lab, directory.path()),
            before,
            "{method} {path}"
        );
    }
}

/// Rules of a zone that the store refuses hold for no VNIC of it: frames go on. Those that it takes hold.
#[test]
fn rules_that_the_store_refuses_stop_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon, &lab);
    let (sender, receiver) = (lab.guest("v0"), lab.guest("z0"));
    let mut to_zone = datagram(0, 0x70);
    to_zone[4] = 0x40;
    let dropped = || {
        let shown = daemon.must("GET", "/v1/vnics/z0", None);
        shown["counters"]["drops"]["firewall-in"].as_u64()
    };
    let rules = json!({"properties": {"firewall-base": "drop in"}});
    let state_dir = options(directory.path()).state_dir;
    let (stored, aside) = (state_dir.join("document.json"), state_dir.join("aside"));
    std::fs::rename(&stored, &aside).unwrap();
    std::fs::create_dir(&stored).unwrap();
    daemon.refused("PATCH", "/v1/zones/z", Some(rules.clone()), "storage");
    receiver.take_got();
    sender.send([to_zone.clone()]);
    until("it is let in", || receiver.got() == 1);
    std::fs::remove_dir(&stored).unwrap();
    std::fs::rename(&aside, &stored).unwrap();
    daemon.must("PATCH", "/v1/zones/z", Some(rules));
    sender.send([to_zone]);
    until("it is dropped", || dropped() == Some(1));
    assert_eq!(receiver.got(), 1);
}

/// While the thread that answers for neighbours is busy with an edit, questions beyond those that it has room for go to everybody: nobody's
/// are lost because others have asked much.
#[test]
fn questions_are_asked_while_nobody_answers() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 8, &json!({}));
    let suppress = json!({"properties": {"neigh-suppress": true}});
    daemon.must("PATCH", "/v1/vnics/v7", Some(suppress));
    let asks = |from: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, from, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend([2, 0, 0, 0, 0, from, 10, 0, 0, from, 0, 0, 0, 0, 0, 0]);
        frame.extend([10, 0, 0, 99]);
        frame
    };
    lab.guest("v6").send([asks(6)]);
    until("a question is passed on", || lab.guest("v5").got() == 1);
    let bystander = lab.guest("v7");
    bystander.take_got();
    let vnic = json!({"name": "v9", "bridge": "br0"});
    let guests: Vec<_> = (0..6).map(|n| lab.guest(&format!("v{n}"))).collect();
    let steps = lab.steps();
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.must("POST", "/v1/vnics", Some(vnic)));
        // As soon as it waits for the host.
        std::thread::sleep(Duration::from_millis(100));
        for (from, guest) in (0..).zip(&guests) {
            guest.send((0..26).map(|_| asks(from)));
        }
        until("all have asked", || guests.iter().all(|g| g.has_sent()));
        std::thread::sleep(Duration::from_millis(200));
        drop(steps);
    });
    until("all questions are passed on", || bystander.got() == 6 * 26);
}

/// A daemon that was killed after the new document held, and before what is gone was deleted on the host, leaves nothing of
/// it there: the next one deletes it. What the documents share goes on.
#[test]
fn a_kill_leaves_nothing_that_was_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let state = options(directory.path()).state_dir;
    let daemon = start(directory.path(), &Lab::default());
    bridge_of(&daemon, 2, &json!({}));
    let many = std::fs::read(state.join("document.json")).unwrap();
    daemon.must("DELETE", "/v1/vnics/v1", None);
    assert!(!state.join("document.last").exists());
    drop(daemon);
    std::fs::write(state.join("document.last"), many).unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    daemon.refused("GET", "/v1/vnics/v1", None, "not_found");
    assert_eq!(lab.guest("v1").deleted.load(Ordering::Acquire), 1);
    until("the other one is up", || {
        daemon.must("GET", "/v1/vnics/v0", None)["state"] == "up"
    });
    assert_eq!(lab.deleted(), 1);
    assert!(!state.join("document.last").exists());
}

/// A change in place that succeeds leaves nothing of the former rules: neither the former address nor what was learned
/// behind the member. Other members' entries stay.
#[test]
fn a_change_in_place_forgets_what_was_learned() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    network(&daemon, &lab);
    let macs = |member: &str| {
        let page = daemon.must("GET", &format!("/v1/bridges/br0/fdb?member={member}"), None);
        let entries = page["entries"].as_array().unwrap().clone();
        let macs = entries.into_iter().map(|entry| entry["mac"].clone());
        macs.collect::<Vec<_>>()
    };
    let others = [macs("v0"), macs("v2")];
    let changed = json!({"mac": mac(0x2000)});
    daemon.must("PATCH", "/v1/vnics/v1", Some(changed));
    until("what was learned is forgotten", || {
        macs("v1") == [json!(mac(0x2000))]
    });
    assert_eq!([macs("v0"), macs("v2")], others);
}

/// `huge-1g` holds for what a guest offers from then on; its connection stays.
#[test]
fn pages_of_a_guest_are_allowed_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 1, &json!({}));
    let guest = lab.guest("v0");
    for (set, allowed) in [
        (json!(false), false),
        (json!(true), true),
        (json!(null), true),
    ] {
        let patch = json!({"properties": {"huge-1g": set}});
        daemon.must("PATCH", "/v1/vnics/v0", Some(patch));
        assert_eq!(guest.quota.allows_gigantic_pages(), allowed, "{set}");
    }
    assert_eq!(guest.deleted.load(Ordering::Acquire), 0);
}

/// A refused change of a member does not fill its budget of moves again.
#[test]
fn a_refused_change_gives_no_moves() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    for (name, budget) in [("v0", 1), ("v1", 100)] {
        let properties = json!({"mac-nospoof": false, "move-budget": budget});
        let patch = json!({"properties": properties});
        daemon.must("PATCH", &format!("/v1/vnics/{name}"), Some(patch));
    }
    let table = || {
        let stats = daemon.must("GET", "/v1/stats", None);
        let stats: windlass_api::Stats = serde_json::from_value(stats).unwrap();
        stats.bridges[0].table.clone()
    };
    // The address 0x70 is seen behind one member after the other.
    let seen_behind = |name: &str, what: &str, holds: &dyn Fn() -> bool| {
        lab.guest(name).send([frame(2, 0x70)]);
        until(what, holds);
    };
    seen_behind("v1", "it is learned", &|| table().learned == 1);
    seen_behind("v0", "it moves", &|| table().moved == 1);
    seen_behind("v1", "it moves back", &|| table().moved == 2);
    seen_behind("v0", "it stays", &|| table().moves_refused == 1);
    lab.steps().refuse_from(0);
    let patch = json!({"properties": {"mtu": 1300, "move-budget": 50}});
    daemon.refused("PATCH", "/v1/vnics/v0", Some(patch), "host");
    seen_behind("v0", "it stays all the same", &|| {
        table().moves_refused == 2
    });
    assert_eq!(table().moved, 2);
}

/// Owners of zones that learn addresses, of whom each may have 20.
struct Learners {
    daemon: Daemon,
    lab: Lab,
}

impl Learners {
    const MAX: u64 = 20;

    /// Zones of a name and an owner, and VNICs of a name, a zone and a bridge.
    fn start(
        directory: &std::path::Path,
        zones: &[(&str, u32)],
        vnics: &[(&str, &str, &str)],
    ) -> Learners {
        let lab = Lab::default();
        let mut options = options(directory);
        let max = Learners::MAX as u32;
        options.limits.per_user.set(Share::Addresses, max);
        let host = Box::new(lab.clone());
        let daemon = Daemon::start_over(&options, |sink| dataplane::build_on(host, &options, sink));
        let zones = zones.iter();
        let zones =
            zones.map(|(name, uid)| json!({"name": name, "owner_uid": uid, "owner_gid": uid}));
        let vnics = vnics.iter().map(|(name, zone, bridge)| {
            json!({"name": name, "zone": zone, "bridge": bridge, "properties": {"mac-nospoof": false}})
        });
        let document = json!({
            "version": 1,
            "zones": zones.collect::<Vec<_>>(),
            "bridges": [{"name": "br0"}, {"name": "br1"}],
            "vnics": vnics.collect::<Vec<_>>(),
        });
        daemon.must("PUT", "/v1/document", Some(document));
        Learners { daemon, lab }
    }

    /// A member sends from so many addresses.
    fn send(&self, member: &str, from: u8, addresses: u8) {
        let guest = self.lab.guest(member);
        // A burst may report eight new addresses.
        for number in 0..addresses {
            guest.send([frame(0xfe, from + number)]);
            until("it is sent", || guest.has_sent());
        }
    }

    fn learned(&self, bridge: &str, member: &str) -> u64 {
        let path = format!("/v1/bridges/{bridge}/fdb");
        let page = self.daemon.must("GET", &path, None);
        let entries = page["entries"].as_array().unwrap().iter();
        let of = entries.filter(|entry| entry["member"] == member && entry["kind"] == "learned");
        of.count() as u64
    }

    /// What counts for an owner.
    fn used(&self, uid: u32) -> u64 {
        let shown = self.daemon.must("GET", "/v1/daemon", None);
        let mut rows = shown["limits"].as_array().unwrap().iter();
        let row = rows.find(|row| row["uid"] == uid && row["limit"] == Share::Addresses.option());
        row.map_or(0, |row| row["used"].as_u64().unwrap())
    }
}

/// Addresses learned on all VNICs of one owner count together, over bridges: what is beyond the limit is not learned, another
/// owner's are, and room comes back when they are forgotten.
#[test]
fn learned_addresses_count_for_their_owner() {
    let directory = tempfile::tempdir().unwrap();
    let owners = Learners::start(
        directory.path(),
        &[("greedy", 1001), ("other", 1002)],
        &[
            ("g0", "greedy", "br0"),
            ("g1", "greedy", "br1"),
            ("o0", "other", "br0"),
        ],
    );
    let is_full = |bridge, member| owners.learned(bridge, member) == Learners::MAX;
    owners.send("g0", 0x20, 30);
    until("as many as may be", || is_full("br0", "g0"));
    owners.send("g1", 0x40, 30);
    owners.send("o0", 0x60, 30);
    until("the other one's", || is_full("br0", "o0"));
    assert_eq!(owners.learned("br1", "g1"), 0);
    assert_eq!((owners.used(1001), owners.used(1002)), (20, 20));
    let zones = owners.daemon.must("GET", "/v1/zones", None);
    let of_zones = [0, 1].map(|at| (&zones[at]["name"], &zones[at]["addresses"]));
    let expected = [
        (&json!("greedy"), &json!(20)),
        (&json!("other"), &json!(20)),
    ];
    assert_eq!(of_zones, expected);
    owners.daemon.must("DELETE", "/v1/vnics/g0", None);
    owners.send("g1", 0x40, 30);
    until("there is room again", || is_full("br1", "g1"));
}

/// Addresses learned in a zone count for its next owner from then on, and stay learned. If that one may not have as many, or the
/// store refuses, they count as before.
#[test]
fn learned_addresses_go_with_their_zone() {
    let directory = tempfile::tempdir().unwrap();
    let owners = Learners::start(
        directory.path(),
        &[("goes", 1001), ("stays", 1001), ("other", 1002)],
        &[
            ("g0", "goes", "br0"),
            ("s0", "stays", "br0"),
            ("o0", "other", "br1"),
        ],
    );
    owners.send("g0", 0x20, 15);
    owners.send("o0", 0x60, 10);
    until("they are learned", || {
        (owners.used(1001), owners.used(1002)) == (15, 10)
    });
    let daemon = &owners.daemon;
    let give = |uid: u32| Some(json!({"owner_uid": uid, "owner_gid": uid}));
    let error = daemon.refused("PATCH", "/v1/zones/goes", give(1002), "invalid");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(Share::Addresses.option()), "{message}");
    assert!(message.contains("user 1002 "), "{message}");
    assert_eq!((owners.used(1001), owners.used(1002)), (15, 10));
    daemon.must("DELETE", "/v1/vnics/o0", None);

    let stored = options(directory.path()).state_dir.join("document.json");
    let aside = directory.path().join("aside");
    std::fs::rename(&stored, &aside).unwrap();
    std::fs::create_dir(&stored).unwrap();
    daemon.refused("PATCH", "/v1/zones/goes", give(1002), "storage");
    assert_eq!((owners.used(1001), owners.used(1002)), (15, 0));
    std::fs::remove_dir(&stored).unwrap();
    std::fs::rename(&aside, &stored).unwrap();

    daemon.must("PATCH", "/v1/zones/goes", give(1002));
    assert_eq!((owners.used(1001), owners.used(1002)), (0, 15));
    assert_eq!(owners.learned("br0", "g0"), 15, "they stay");
    owners.send("s0", 0x60, 30);
    owners.send("g0", 0x90, 30);
    until("each has its own limit", || {
        (owners.learned("br0", "s0"), owners.learned("br0", "g0")) == (20, 20)
    });
    daemon.must("DELETE", "/v1/vnics/g0", None);
    until("they are forgotten", || {
        (owners.used(1001), owners.used(1002)) == (20, 0)
    });
}
