//! VLANs on one bridge: who is in which, and which tags are refused.

use std::time::Duration;

use windlass_tests::{Daemon, Lab, Mac, Wire, frame, mac, until, vlan_tag};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const C: &str = "02:00:00:00:00:0c";
const TRUNK: &str = "02:00:00:00:00:0d";
const ALL: Mac = [0xff; 6];

/// Guests a and b in VLAN 10, c in VLAN 20, and a trunk whose untagged frames are VLAN 5.
fn four_guests(lab: &Lab) -> Daemon {
    for guest in ["a", "b", "c", "t"] {
        lab.namespace(guest);
    }
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(lab, "a0", "a", "", &format!("--mac {A} --vlan 10"));
    daemon.tap(lab, "b0", "b", "", &format!("--mac {B} --vlan 10"));
    daemon.tap(lab, "c0", "c", "", &format!("--mac {C} --vlan 20"));
    daemon.tap(
        lab,
        "t0",
        "t",
        "",
        &format!("--mac {TRUNK} --vlan 5 --tagged 10,20"),
    );
    daemon
}

/// Untagged frames stay in their VLAN, unicast and broadcast, and reach the trunk with the right tag; the
/// trunk's tagged frames reach exactly the members of the VLAN, without the tag.
#[test]
fn frames_stay_in_their_vlan() {
    let Some(lab) = Lab::start("frames_stay_in_their_vlan") else {
        return;
    };
    let daemon = four_guests(&lab);
    let [a, b, c, t] = ["a", "b", "c", "t"].map(|guest| Wire::open(&lab, guest, "eth0"));
    a.send(&frame(ALL, mac(A), &[], "to all of 10"));
    a.send(&frame(mac(B), mac(A), &[], "to b"));
    a.send(&frame(mac(C), mac(A), &[], "to c, who is not there"));
    a.send(&frame(ALL, mac(A), &[], "end"));
    let texts = |wire: &Wire| -> Vec<String> {
        wire.frames_until("end")
            .iter()
            .filter_map(|frame| frame.text())
            .collect()
    };
    assert_eq!(
        texts(&b),
        ["to all of 10", "to b", "to c, who is not there"]
    );
    let trunk = t.frames_until("end");
    assert!(trunk.iter().all(|frame| frame.vids() == [10]), "{trunk:?}");
    assert_eq!(trunk.len(), 2, "unicast for b is not flooded: {trunk:?}");

    t.send(&frame(ALL, mac(TRUNK), &[vlan_tag(20)], "to all of 20"));
    t.send(&frame(mac(C), mac(TRUNK), &[vlan_tag(20)], "end"));
    let seen = c.frames_until("end");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].vids().is_empty() && seen[0].text().as_deref() == Some("to all of 20"));
    for wire in [&a, &b] {
        assert_eq!(
            wire.frames_during(Duration::from_millis(50)),
            [],
            "VLAN 20 at a member of 10"
        );
    }
    assert_eq!(daemon.counters("c0")["rx_frames"], 0, "nobody spoke for c");
}

/// Who sends, by which member, from which address, with which tags, and why it is dropped.
type Case<'a> = (&'a Wire, &'a str, &'a str, &'a [[u8; 4]], &'a str);

/// Each kind of tag that a member may not send is dropped under its reason, and reaches nobody: its own
/// untagged VLAN with a tag, VID 4095, a stack of tags (`vlan-tag`), and VLANs that are not its
/// (`vlan-denied`). VID 0 is only a priority: such a frame belongs to the untagged VLAN.
#[test]
fn tags_that_may_not_be_sent() {
    let Some(lab) = Lab::start("tags_that_may_not_be_sent") else {
        return;
    };
    let daemon = four_guests(&lab);
    let [a, b, t] = ["a", "b", "t"].map(|guest| Wire::open(&lab, guest, "eth0"));
    let stack = [vlan_tag(10), vlan_tag(20)];
    let cases: [Case<'_>; 6] = [
        (&t, "t0", TRUNK, &[vlan_tag(5)], "vlan-tag"),
        (&t, "t0", TRUNK, &[vlan_tag(4095)], "vlan-tag"),
        (&t, "t0", TRUNK, &stack, "vlan-tag"),
        (&t, "t0", TRUNK, &[vlan_tag(11)], "vlan-denied"),
        (&a, "a0", A, &[vlan_tag(20)], "vlan-denied"),
        (&a, "a0", A, &[vlan_tag(10)], "vlan-tag"),
    ];
    for (wire, member, from, tags, reason) in cases {
        let before = daemon.drops(member, reason);
        wire.send(&frame(ALL, mac(from), tags, "never"));
        until(
            &format!("{tags:?} from {member} is counted as {reason}"),
            || daemon.drops(member, reason) == before + 1,
        );
    }
    a.send(&frame(ALL, mac(A), &[vlan_tag(0)], "with priority"));
    a.send(&frame(ALL, mac(A), &[], "end"));
    let seen = b.frames_until("end");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].text().as_deref(), Some("with priority"));
}

/// With `vlan=0` a member's untagged frames are dropped; a change of a member's VLAN while it works moves
/// it.
#[test]
fn vlans_change_while_they_work() {
    let Some(lab) = Lab::start("vlans_change_while_they_work") else {
        return;
    };
    let daemon = four_guests(&lab);
    let [a, c] = ["a", "c"].map(|guest| Wire::open(&lab, guest, "eth0"));
    daemon.must("vnic set a0 vlan=0");
    a.send(&frame(ALL, mac(A), &[], "never"));
    until("untagged is refused", || {
        daemon.drops("a0", "vlan-denied") == 1
    });
    daemon.must("vnic set a0 vlan=20");
    a.send(&frame(ALL, mac(A), &[], "end"));
    assert_eq!(c.frames_until("end"), []);
}

/// Without filtering, tags are carried like any other bytes.
#[test]
fn without_filtering_tags_are_carried() {
    let Some(lab) = Lab::start("without_filtering_tags_are_carried") else {
        return;
    };
    lab.namespace("a");
    lab.namespace("b");
    let daemon = lab.daemon();
    daemon.must("bridge create br0 --set vlan-filtering=off");
    daemon.tap(&lab, "a0", "a", "", &format!("--mac {A}"));
    daemon.tap(&lab, "b0", "b", "", &format!("--mac {B}"));
    let [a, b] = ["a", "b"].map(|guest| Wire::open(&lab, guest, "eth0"));
    a.send(&frame(
        mac(B),
        mac(A),
        &[vlan_tag(77), vlan_tag(78)],
        "carried",
    ));
    a.send(&frame(mac(B), mac(A), &[], "end"));
    let seen = b.frames_until("end");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].vids(), [77, 78]);
}
