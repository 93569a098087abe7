//! Frames are conserved, as anybody can check from outside: the terms that the API gives fit the equations of its
//! `Counters`, after real traffic through TAPs with floods and drops on either side.

use std::time::Duration;

use serde_json::Value;
use windlass_stats::{Drop, Stage};
use windlass_tests::{Daemon, Lab, Wire, frame, mac, until, until_some};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";

fn of(counters: &Value, name: &str) -> u64 {
    counters[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {counters}"))
}

/// The counters of all members and of the bridge, once nothing moves any more.
fn settled(daemon: &Daemon) -> (Vec<Value>, Value) {
    until_some("nothing moves any more", || {
        let read = || (daemon.json("stat"), daemon.json("bridge show br0 -s"));
        let first = read();
        std::thread::sleep(Duration::from_millis(100));
        let (members, mut bridges) = read();
        let same = first.0 == members && first.1 == bridges;
        same.then(|| {
            (
                members.as_array().expect("a list").clone(),
                bridges[0].take(),
            )
        })
    })
}

/// The drops of one stage.
fn drops(counters: &Value, stage: Stage) -> u64 {
    let reasons = Drop::ALL.iter().filter(|reason| reason.stage() == stage);
    let count = |reason: &Drop| counters["drops"][reason.name()].as_u64().unwrap_or(0);
    reasons.map(count).sum()
}

/// The equations of one member, or of all members of a bridge together.
fn check(counters: &Value) {
    let of = |name| of(counters, name);
    assert_eq!(
        of("rx_frames") + of("rx_cut"),
        of("rx_unicast") + of("rx_flooded") + of("rx_local") + of("rx_dropped") + of("rx_held"),
        "{counters}"
    );
    assert_eq!(
        of("tx_offered") + of("tx_cut"),
        of("tx_frames") + of("tx_dropped") + of("tx_held"),
        "{counters}"
    );
    assert_eq!(
        of("rx_dropped"),
        drops(counters, Stage::Ingress),
        "{counters}"
    );
    assert_eq!(
        of("tx_dropped"),
        drops(counters, Stage::Egress),
        "{counters}"
    );
}

/// Unicast both ways, broadcasts to three receivers and a span member, unknown unicast, and frames that are dropped
/// before (a forged source) and behind the decision (nobody attached): for each member, and for the bridge over all of
/// them, every frame that came in went somewhere, and every copy that was made arrived, waits or is named.
#[test]
fn every_frame_is_accounted_for() {
    let Some(lab) = Lab::start("every_frame_is_accounted_for") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, words) in [
        ("a", format!("--mac {A}")),
        ("b", format!("--mac {B}")),
        ("c", String::new()),
        ("s", "--set span=on".to_owned()),
    ] {
        lab.namespace(guest);
        let address = match guest {
            "a" => ",address=10.1.0.1/24",
            "b" => ",address=10.1.0.2/24",
            _ => "",
        };
        daemon.tap(&lab, &format!("{guest}0"), guest, address, &words);
    }
    daemon.must("vnic create nobody --bridge br0");
    assert!(lab.ping("a", "10.1.0.2", 3) && lab.ping("b", "10.1.0.1", 3));
    let (a, b) = (Wire::open(&lab, "a", "eth0"), Wire::open(&lab, "b", "eth0"));
    let stranger = mac("02:00:00:00:00:77");
    for number in 0..500 {
        let text = format!("{number}");
        a.send(&frame(mac(B), mac(A), &[], &text));
        if number % 5 == 0 {
            a.send(&frame([0xff; 6], mac(A), &[], &text));
            b.send(&frame(stranger, mac(B), &[], &text));
            b.send(&frame(mac(A), stranger, &[], "forged"));
        }
    }
    let (members, bridge) = settled(&daemon);
    assert_eq!(members.len(), 5);
    for member in &members {
        check(member);
    }
    check(&bridge);
    assert_eq!(
        of(&bridge, "tx_offered"),
        of(&bridge, "rx_unicast") + of(&bridge, "rx_copies") + of(&bridge, "tx_span"),
        "{bridge}"
    );

    let member = |name: &str| {
        let found = members.iter().find(|member| member["name"] == name);
        found.expect("a member")
    };
    let (from_a, from_b) = (member("a0"), member("b0"));
    assert!(of(from_a, "rx_unicast") >= 500, "{from_a}");
    assert!(of(from_a, "rx_flooded") >= 100, "{from_a}");
    assert!(
        of(from_a, "rx_copies") >= 3 * of(from_a, "rx_flooded"),
        "{from_a}"
    );
    assert!(of(from_b, "rx_flooded") >= 100, "{from_b}");
    assert_eq!(of(&from_b["drops"], "mac-spoof"), 100, "{from_b}");
    let nobody = member("nobody");
    assert!(of(&nobody["drops"], "peer-down") >= 200, "{nobody}");
    assert!(of(member("s0"), "tx_span") >= 700, "{}", member("s0"));
    for name in ["rx_frames", "tx_offered", "rx_flooded", "tx_span"] {
        let sum: u64 = members.iter().map(|member| of(member, name)).sum();
        assert_eq!(of(&bridge, name), sum, "{name}");
    }
}

/// Frames that wait in queues, on their way from a member above its `maxbw` and on their way to one, are terms of the
/// equations: they are seen waiting, and all of them have gone or are named when nothing moves any more.
#[test]
fn frames_that_wait_are_accounted_for() {
    let Some(lab) = Lab::start("frames_that_wait_are_accounted_for") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, words) in [
        ("a", format!("--mac {A} --set maxbw=10")),
        ("b", format!("--mac {B} --set maxbw=5")),
        ("c", String::new()),
    ] {
        lab.namespace(guest);
        daemon.tap(&lab, &format!("{guest}0"), guest, "", &words);
    }
    let a = Wire::open(&lab, "a", "eth0");
    let send = |count: u32| {
        for number in 0..count {
            let to = if number % 8 == 0 { [0xff; 6] } else { mac(B) };
            let mut bytes = frame(to, mac(A), &[], &format!("{number}"));
            bytes.resize(1000, 0);
            a.send(&bytes);
        }
    };
    let waits = || {
        let held = |name, counter| daemon.counters(name)[counter].as_u64() > Some(0);
        held("a0", "rx_held") && held("b0", "tx_held")
    };
    let check_all = || {
        let (members, bridge) = settled(&daemon);
        members.iter().for_each(check);
        check(&bridge);
        assert_eq!(
            of(&bridge, "tx_offered"),
            of(&bridge, "rx_unicast") + of(&bridge, "rx_copies"),
            "{bridge}"
        );
        let held = |member: &Value| of(member, "rx_held") + of(member, "tx_held");
        assert!(members.iter().all(|member| held(member) == 0));
    };
    until("frames wait on both ways", || {
        send(50);
        waits()
    });
    check_all();
    send(1000);
    check_all();
    let (a0, b0) = (daemon.counters("a0"), daemon.counters("b0"));
    assert!(of(&a0["drops"], "rx-queue-full") > 0, "{a0}");
    assert!(of(&b0["drops"], "queue-full") > 0, "{b0}");
    assert!(of(&a0, "rx_flooded") > 0 && of(&b0, "tx_frames") > 0);
}
