//! Rules of a zone that come to several VNICs, and are refused at one of them.
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

use bridge::{bridge_of, datagram, mac, start};
use daemon::Daemon;
use lab::{Lab, until};
use serde_json::{Value, json};

/// A bridge, `v1` on it, and VNICs `v2` to `v4` of zone `z`, whose rules are these.
fn zone_of_three(daemon: &Daemon, lab: &Lab, rules: &str) {
    bridge_of(daemon, 2, &json!({}));
    let zone = json!({"name": "z", "owner_uid": 4321, "owner_gid": 4321, "bridges": ["br0"],
        "properties": {"firewall-base": rules}});
    daemon.must("POST", "/v1/zones", Some(zone));
    for number in 2..5 {
        let vnic = json!({"name": format!("v{number}"), "zone": "z", "bridge": "br0",
            "mac": mac(number)});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    until("all are up", || {
        let names = (1..5).map(|number| format!("v{number}"));
        let mut guests = names.map(|name| lab.guest(&name));
        guests.all(|guest| guest.rings.load(Ordering::Acquire) == 1)
    });
}

/// Rules of a zone that are refused at any of its VNICs hold at none: the document and the API are what they were, counts among it, and each VNIC gets
/// frames by the former rules. Taken, they hold at each.
#[test]
fn rules_that_a_vnic_refuses_hold_at_none() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    zone_of_three(&daemon, &lab, "accept count in udp; drop in");
    let shown = || {
        let paths = [
            "document",
            "zones",
            "vnics/v2/rules",
            "vnics/v3/rules",
            "vnics/v4/rules",
        ];
        paths.map(|path| daemon.must("GET", &format!("/v1/{path}"), None))
    };
    let guests = [2, 3, 4].map(|number| lab.guest(&format!("v{number}")));
    let each_gets_one = || {
        let before = shown();
        for guest in &guests {
            guest.take_got();
        }
        lab.guest("v1").send((2..5).map(|to| datagram(to, 1)));
        until("each gets one", || {
            guests.iter().all(|guest| guest.got() == 1)
        });
        until("the rules of each have counted it", || {
            let count = |rules: &Value| rules[0]["frames"].as_u64().unwrap();
            let (before, now) = (&before[2..], &shown()[2..]);
            let mut pairs = before.iter().zip(now);
            pairs.all(|(before, now)| count(now) == count(before) + 1)
        });
    };
    each_gets_one();
    let rules = json!({"properties": {"firewall-base": "drop count in udp"}});
    for step in 0..3 {
        for is_last in [false, true] {
            let before = shown();
            match is_last {
                true => lab.steps().refuse_from(step),
                false => lab.steps().refuse_once(step),
            }
            daemon.refused("PATCH", "/v1/zones/z", Some(rules.clone()), "host");
            assert_eq!(shown(), before, "step {step}");
            each_gets_one();
        }
    }
    lab.steps().refuse_once(usize::MAX);
    daemon.must("PATCH", "/v1/zones/z", Some(rules));
    assert_eq!(lab.steps().taken.len(), 3);
    for guest in &guests {
        guest.take_got();
    }
    lab.guest("v1").send((2..5).map(|to| datagram(to, 1)));
    until("the rules of each have counted one", || {
        shown()[2..].iter().all(|rules| rules[0]["frames"] == 1)
    });
    assert!(guests.iter().all(|guest| guest.got() == 0));
}

/// A change of a zone's rules and of its VNICs at once reaches their interfaces, and is undone there.
#[test]
fn rules_and_interfaces_change_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    zone_of_three(&daemon, &lab, "drop in");
    let before = daemon.must("GET", "/v1/document", None);
    let mut after = before.clone();
    after["zones"][0]["properties"] = json!({"firewall-base": "drop out"});
    for number in [2, 3] {
        after["vnics"][number]["properties"] = json!({"mtu": 1400});
    }
    let mtus = || [2, 3, 4].map(|n| lab.guest(&format!("v{n}")).interface.lock().unwrap().mtu);
    daemon.must("PUT", "/v1/document", Some(before.clone()));
    for step in 0..3 {
        lab.steps().refuse_once(step);
        daemon.refused("PUT", "/v1/document", Some(after.clone()), "host");
        assert_eq!(daemon.must("GET", "/v1/document", None), before);
        assert!(
            mtus().iter().all(|mtu| [0, 1500].contains(mtu)),
            "{:?}",
            mtus()
        );
    }
    lab.steps().refuse_once(usize::MAX);
    daemon.must("PUT", "/v1/document", Some(after));
    assert_eq!(mtus(), [1400, 1400, 1500]);
    daemon.must("PUT", "/v1/document", Some(before));
    assert_eq!(mtus(), [1500; 3]);
}
