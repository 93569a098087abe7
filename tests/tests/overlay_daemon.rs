//! Overlays as a daemon has them: searches, targets by hand, answers for neighbours, an underlay that comes and goes, restarts.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use windlass_tests::{Daemon, Lab, until};

const GUEST: &str = "02:00:00:00:00:0a";
const FAR: &str = "02:00:00:00:02:02";

/// A host and another one, `far`, on an underlay of 192.0.2.0/24; a guest's namespace.
fn hosts(name: &str) -> Option<Lab> {
    let lab = Lab::start(name)?;
    for short in ["guest", "far"] {
        lab.namespace(short);
    }
    let far = lab.name("far");
    let pair = format!("link add under0 type veth peer name under0 netns {far}");
    lab.ip("host", &pair);
    for (short, address) in [("host", "192.0.2.1/24"), ("far", "192.0.2.2/24")] {
        lab.ip(short, &format!("addr add {address} dev under0"));
        lab.ip(short, "link set under0 up");
    }
    Some(lab)
}

/// A kernel's VXLAN device on the far host, with 10.0.0.2 in the network.
fn far_device(lab: &Lab, vni: u32, more: &str) {
    let device = format!(
        "link add vx{vni} address {FAR} mtu 1450 type vxlan id {vni} dstport 4789 local 192.0.2.2 remote 192.0.2.1"
    );
    lab.ip("far", &device);
    lab.ip("far", &format!("addr add 10.0.0.2/24 dev vx{vni}"));
    lab.ip("far", &format!("link set vx{vni} {more} up"));
}

/// An overlay and a guest with 10.0.0.1 on its bridge.
fn overlay(lab: &Lab, daemon: &Daemon, search: &str) {
    let create = format!("overlay create ov0 --vni 23 {search},vxlan/listen-ip=192.0.2.1");
    daemon.must(&create);
    let netns = lab.name("guest");
    daemon.must(&format!(
        "vnic create g0 --over ov0 --mac {GUEST} --attach tap,netns={netns},address=10.0.0.1/24"
    ));
    daemon.wait_for_state("vnic", "g0", "up");
}

/// What a file says of the far host: its address, and the IP address that is answered for.
fn far_in(file: &Path, target: &str) {
    let text = json!({FAR: {"ip": target, "port": 4789, "arp": "10.0.0.2"}}).to_string();
    fs::write(file.with_extension("new"), text).expect("a file");
    fs::rename(file.with_extension("new"), file).expect("a file");
}

/// Address, target and kind of all targets.
fn targets(daemon: &Daemon) -> Vec<[String; 3]> {
    let rows = daemon.json("overlay target show ov0");
    let rows = rows.as_array().expect("rows").iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    rows.map(|row| ["mac", "target", "kind"].map(|key| text(row, key)))
        .collect()
}

fn is_target(daemon: &Daemon, mac: &str, target: &str, kind: &str) -> bool {
    targets(daemon).contains(&[mac, target, kind].map(str::to_owned))
}

/// With one target for everything, a guest and a kernel's VXLAN device reach each other; the guest has the MTU that the tunnel
/// carries. The overlay takes its bridge with it, but not while a VNIC is on it.
#[test]
fn one_target_gets_everything() {
    let Some(lab) = hosts("one_target_gets_everything") else {
        return;
    };
    far_device(&lab, 23, "");
    let daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search direct --set direct/dest-ip=192.0.2.2",
    );
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(lab.ping("far", "10.0.0.1", 5));
    assert_eq!(daemon.show("vnic", "g0")["mtu_now"], 1450);
    assert!(lab.ip("guest", "link show g0").contains("mtu 1450"));
    assert!(is_target(&daemon, "-", "192.0.2.2:4789", "flood"));
    let said = daemon.refuses(1, "overlay delete ov0");
    assert!(said.contains("g0"), "{said}");
    daemon.must("vnic delete g0");
    daemon.must("overlay delete ov0");
    assert_eq!(daemon.json("bridge show"), json!([]));
}

/// What a file says is known at once, without a question: the bridge answers ARP in the place of a far host that does not. A file that
/// is replaced is taken, one that is damaged degrades the overlay, in a sentence with its line, and what was known goes on.
#[test]
fn a_file_is_taken_whole_or_not_at_all() {
    let Some(lab) = hosts("a_file_is_taken_whole_or_not_at_all") else {
        return;
    };
    // It neither asks nor answers.
    far_device(&lab, 23, "arp off");
    lab.ip(
        "far",
        &format!("neigh add 10.0.0.1 lladdr {GUEST} dev vx23"),
    );
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.2");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "pushed"));

    far_in(&file, "192.0.2.9");
    until("the far host has moved", || {
        is_target(&daemon, FAR, "192.0.2.9:4789", "pushed")
    });
    assert_eq!(targets(&daemon).len(), 1, "the former target is gone");
    far_in(&file, "192.0.2.2");
    until("and back", || lab.ping("guest", "10.0.0.2", 1));

    fs::write(&file, "{\n\"x\": 1}").expect("a file");
    let why = daemon.wait_for_state("overlay", "ov0", "waiting");
    assert!(why.contains("line 2"), "{why}");
    let faults = daemon.json("overlay show -f");
    assert_eq!(faults[0]["state"], "degraded");
    assert!(lab.ping("guest", "10.0.0.2", 2));
    far_in(&file, "192.0.2.2");
    daemon.wait_for_state("overlay", "ov0", "up");
    let said = daemon.refuses(1, "overlay set ov0 files/config=/nowhere");
    assert!(said.contains("/nowhere"), "{said}");
    assert!(lab.ping("guest", "10.0.0.2", 2));
}

/// What a person says of an address holds before the file; without it, the file's word holds again. Such an entry is in the
/// document, and names its target.
#[test]
fn a_target_by_hand_holds_first() {
    let Some(lab) = hosts("a_target_by_hand_holds_first") else {
        return;
    };
    far_device(&lab, 23, "");
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.9");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    assert!(!lab.ping("guest", "10.0.0.2", 1), "nobody is at 192.0.2.9");
    daemon.must(&format!("overlay target set ov0 {FAR} 192.0.2.2:4789"));
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "static"));
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    let fdb = daemon.json("export")["fdb"].clone();
    assert_eq!(fdb[0]["target"], "192.0.2.2:4789");
    let shown = daemon.json("fdb show ov0");
    let shown = shown.as_array().expect("rows").iter();
    let entry = shown
        .clone()
        .find(|row| row["mac"] == FAR)
        .expect("an entry");
    assert_eq!(
        (&entry["member"], &entry["target"]),
        (&json!("ov0"), &json!("192.0.2.2:4789"))
    );
    // A file that speaks meanwhile changes nothing.
    far_in(&file, "192.0.2.8");
    daemon.must(&format!("overlay target set ov0 {FAR} 192.0.2.2:4789"));
    assert!(lab.ping("guest", "10.0.0.2", 2));
    daemon.must(&format!("overlay target delete ov0 {FAR}"));
    until("the file's word holds", || {
        is_target(&daemon, FAR, "192.0.2.8:4789", "pushed")
    });
    daemon.refuses(4, &format!("overlay target delete ov0 02:00:00:00:00:77"));
}

/// An overlay whose underlay address is not there waits and says so, and begins when the address comes. A killed daemon brings
/// it back, with the targets that the file and a person told.
#[test]
fn it_comes_with_the_underlay_and_after_a_kill() {
    let Some(lab) = hosts("it_comes_with_the_underlay_and_after_a_kill") else {
        return;
    };
    far_device(&lab, 23, "");
    lab.ip("host", "addr del 192.0.2.1/24 dev under0");
    let mut daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search learn --set learn/remotes=192.0.2.2",
    );
    let why = daemon.wait_for_state("overlay", "ov0", "waiting");
    assert!(why.contains("192.0.2.1:4789"), "{why}");
    assert!(!lab.ping("guest", "10.0.0.2", 1));
    lab.ip("host", "addr add 192.0.2.1/24 dev under0");
    daemon.wait_for_state("overlay", "ov0", "up");
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "learned"));
    daemon.must("overlay target set ov0 02:00:00:00:00:77 192.0.2.7:4789");

    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("overlay", "ov0", "up");
    until("the guest reaches it again", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(
        &daemon,
        "02:00:00:00:00:77",
        "192.0.2.7:4789",
        "static"
    ));
    assert!(is_target(&daemon, "-", "192.0.2.2:4789", "flood"));
}

/// Two tenants with the same addresses at one underlay address: each reaches its own far host, and nothing of the other's.
#[test]
fn tenants_with_one_address_do_not_meet() {
    let Some(lab) = hosts("tenants_with_one_address_do_not_meet") else {
        return;
    };
    lab.namespace("other");
    far_device(&lab, 23, "");
    let daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search direct --set direct/dest-ip=192.0.2.2",
    );
    daemon.must(
        "overlay create ov1 --vni 24 --search direct --set direct/dest-ip=192.0.2.2,vxlan/listen-ip=192.0.2.1",
    );
    let netns = lab.name("other");
    daemon.must(&format!(
        "vnic create g1 --over ov1 --mac {GUEST} --attach tap,netns={netns},address=10.0.0.1/24"
    ));
    daemon.wait_for_state("vnic", "g1", "up");
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(!lab.ping("other", "10.0.0.2", 1), "VNI 24 has nobody");
    lab.ip("far", "link del vx23");
    far_device(&lab, 24, "");
    until("the other reaches its own", || {
        lab.ping("other", "10.0.0.2", 1)
    });
    assert!(!lab.ping("guest", "10.0.0.2", 1), "VNI 23 has nobody");
    let said = daemon.refuses(
        1,
        "overlay create ov2 --vni 23 --search direct --set direct/dest-ip=192.0.2.2,vxlan/listen-ip=192.0.2.1",
    );
    assert!(said.contains("ov0"), "{said}");
}

/// Another table, and VLANs that are filtered or not, leave an overlay what it was told.
#[test]
fn a_bridge_may_change_under_an_overlay() {
    let Some(lab) = hosts("a_bridge_may_change_under_an_overlay") else {
        return;
    };
    far_device(&lab, 23, "");
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.2");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    for change in [
        "addresses-max=20000",
        "vlan-filtering=off",
        "vlan-filtering=on",
        "ageing=60",
    ] {
        daemon.must(&format!("bridge set ov0 {change}"));
        assert!(
            is_target(&daemon, FAR, "192.0.2.2:4789", "pushed"),
            "{change}"
        );
        until(change, || lab.ping("guest", "10.0.0.2", 1));
    }
}
