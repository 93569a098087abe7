//! Overlays that wait for their search: made, changed, given up and handed over, while others go on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bridge;
mod daemon;
mod lab;
mod searched;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use bridge::{mac, start};
use daemon::{Daemon, options};
use lab::{Lab, until};
use searched::{Plugin, overlay, push, pushed, tell};
use serde_json::{Value, json};
use windlass_api::Document;
use windlassd::authority::Peer;
use windlassd::engine::Engine;

/// While an overlay that is made waits for its plugin's first word, others' changes are made. What the plugin tells with its word is kept for
/// the overlay, and its refusal is the answer.
#[test]
fn an_overlay_that_waits_hinders_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    *plugin.is_mute.lock().unwrap() = true;
    bridge::bridge_of(&daemon, 0, &json!({}));
    let socket = options(directory.path()).socket;
    let wanted = [23, 24].map(|vni| plugin.overlay(&format!("o{vni}"), json!({"vnetid": vni})));
    let words = [
        vec![json!({"op": "ok", "overlay": "o23"}), push("o23", 23, 1)],
        vec![json!({"op": "error", "overlay": "o24", "text": "not with me"})],
    ];
    for (number, (wanted, words)) in wanted.iter().zip(&words).enumerate() {
        std::thread::scope(|scope| {
            let make = || daemon::ask(&socket, "POST", "/v1/overlays", Some(wanted.clone()));
            let made = scope.spawn(make);
            until("told of", || plugin.heard("start") > number);
            let vnic = json!({"name": format!("v{number}"), "bridge": "br0"});
            daemon.must("POST", "/v1/vnics", Some(vnic));
            assert!(!made.is_finished());
            words.iter().for_each(|word| plugin.say(word));
            let (status, answer) = made.join().unwrap();
            assert_eq!(status, [201, 502][number], "{answer}");
            let is_told = answer.to_string().contains("not with me");
            assert_eq!(is_told, number == 1, "{answer}");
        });
    }
    until("told", || pushed(&daemon, "o23") == [(1, mac(1))]);
    assert_eq!(
        daemon
            .must("GET", "/v1/overlays", None)
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// Two plugins, and an overlay `a` of the first one's, which has told of an address.
fn with_two_plugins(directory: &Path, daemon: &Daemon) -> [Plugin; 2] {
    let aside = directory.join("other");
    std::fs::create_dir(&aside).unwrap();
    let plugins = [directory, &aside].map(|at| Plugin::start(at, |_| Vec::new()));
    let wanted = plugins[0].overlay("a", json!({"vnetid": 23}));
    daemon.must("POST", "/v1/overlays", Some(wanted));
    plugins[0].say(&push("a", 23, 1));
    until("told", || pushed(daemon, "a") == [(1, mac(1))]);
    for plugin in &plugins {
        *plugin.is_mute.lock().unwrap() = true;
    }
    plugins
}

/// What a plugin says of a start or a change of `a`.
fn word(op: &str) -> Value {
    json!({"op": op, "overlay": "a", "text": "not with me"})
}

/// While a change of an overlay waits for its plugin's word, others' changes are made and the plugin is heard. A refusal is the answer, and
/// leaves what is known; what the plugin tells of another network with its word is entered.
#[test]
fn a_change_that_waits_hinders_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [plugin, _other] = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let networks = json!({"properties": {"vnetid": 24}});
    let known = [(1, mac(1)), (1, mac(2))];
    for (number, op) in ["error", "ok"].into_iter().enumerate() {
        std::thread::scope(|scope| {
            let change = || daemon::ask(&socket, "PATCH", "/v1/overlays/a", Some(networks.clone()));
            let changed = scope.spawn(change);
            until("told of", || plugin.heard("set") > number);
            let vnic = json!({"name": format!("v{number}"), "bridge": "a"});
            daemon.must("POST", "/v1/vnics", Some(vnic));
            let other = json!({"properties": {"mtu": 1300 + number}});
            daemon.must("PATCH", "/v1/overlays/a", Some(other));
            plugin.say(&push("a", 23, 2));
            until("it is heard", || pushed(&daemon, "a") == known);
            assert!(!changed.is_finished());
            plugin.say(&word(op));
            if number == 1 {
                plugin.say(&push("a", 24, 3));
            }
            let (status, answer) = changed.join().unwrap();
            assert_eq!(status, [502, 200][number], "{answer}");
            let is_told = answer.to_string().contains("not with me");
            assert_eq!(is_told, number == 0, "{answer}");
        });
        if number == 0 {
            assert_eq!(pushed(&daemon, "a"), known);
        }
    }
    until("it is another network", || {
        pushed(&daemon, "a") == [(1, mac(3))]
    });
}

/// Another plugin is tried beside the one that an overlay has, which goes on if the other refuses it, in the same session.
#[test]
fn another_plugin_is_tried_beside() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugins = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let change = json!({"properties": {"plugin/socket": plugins[1].path}});
    let ask = || daemon::ask(&socket, "PATCH", "/v1/overlays/a", Some(change.clone()));
    for (number, op) in ["error", "ok"].into_iter().enumerate() {
        std::thread::scope(|scope| {
            let changed = scope.spawn(ask);
            until("told of", || plugins[1].heard("start") > number);
            plugins[0].say(&push("a", 23, 2 + number));
            until("it is heard", || pushed(&daemon, "a").len() == 2 + number);
            plugins[1].say(&push("a", 23, 9));
            plugins[1].say(&word(op));
            let (status, answer) = changed.join().unwrap();
            assert_eq!(status, [502, 200][number], "{answer}");
        });
        // One that is asked brings nothing anew.
        let known = [(1, mac(1)), (1, mac(2))];
        assert_eq!(pushed(&daemon, "a"), known[..[2, 0][number]]);
        let shown = daemon.must("GET", "/v1/overlays/a", None);
        assert_eq!(shown["reason"], Value::Null, "{shown}");
    }
    assert_eq!(
        [plugins[0].heard("hello"), plugins[0].heard("start")],
        [1; 2]
    );
    plugins[1].say(&push("a", 23, 4));
    until("it is the other's", || {
        pushed(&daemon, "a") == [(1, mac(4))]
    });
}

/// An edit that gives an overlay another kind of search is not made before that has said its word; others' changes are.
#[test]
fn another_search_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [_, plugin] = with_two_plugins(directory.path(), &daemon);
    let file = directory.path().join("hosts.json");
    tell(&file, 5);
    let files = overlay("b", "files", json!({"vnetid": 25, "files/config": file}));
    daemon.must("POST", "/v1/overlays", Some(files));
    until("told", || pushed(&daemon, "b") == [(1, mac(5))]);
    let socket = options(directory.path()).socket;
    let put = |changes: &dyn Fn(&mut Value)| {
        let mut document = daemon.must("GET", "/v1/document", None);
        document["overlays"][1] = plugin.overlay("b", json!({"vnetid": 25}));
        changes(&mut document);
        daemon::ask(&socket, "PUT", "/v1/document", Some(document))
    };
    for (number, op) in ["error", "ok"].into_iter().enumerate() {
        std::thread::scope(|scope| {
            let edit = |document: &mut Value| {
                document["vnics"] = json!([{"name": "v1", "bridge": "b"}]);
            };
            let made = scope.spawn(move || put(&edit));
            until("told of", || plugin.heard("start") > number);
            daemon.must(
                "PATCH",
                "/v1/overlays/a",
                Some(json!({"properties": {"mtu": 1300}})),
            );
            assert!(!made.is_finished());
            tell(&file, 6 + number);
            until("the file is read", || {
                pushed(&daemon, "b") == [(1, mac(6 + number))]
            });
            plugin.say(&json!({"op": op, "overlay": "b", "text": "not with me"}));
            *plugin.is_mute.lock().unwrap() = op == "error";
            let (status, answer) = made.join().unwrap();
            assert_eq!(status, [502, 200][number], "{answer}");
        });
        let vnics = daemon.must("GET", "/v1/vnics", None);
        assert_eq!(vnics.as_array().unwrap().len(), number);
    }
    until("it is the plugin's", || {
        plugin.say(&push("b", 25, 8));
        pushed(&daemon, "b") == [(1, mac(8))]
    });
    tell(&file, 9);
    assert_eq!(pushed(&daemon, "b"), [(1, mac(8))]);
}

/// Changes of an overlay's search that meet are made one after the other. Deletion of the overlay ends one that waits.
#[test]
fn changes_of_a_search_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [plugin, other] = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let ask = |properties: Value| {
        let change = json!({"properties": properties});
        daemon::ask(&socket, "PATCH", "/v1/overlays/a", Some(change))
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(json!({"vnetid": 24})));
        until("told of", || plugin.heard("set") == 1);
        let second = scope.spawn(|| ask(json!({"vnetid": 25})));
        // It has been checked: what comes after it is.
        daemon.must(
            "POST",
            "/v1/vnics",
            Some(json!({"name": "v0", "bridge": "a"})),
        );
        plugin.say(&word("ok"));
        let (status, answer) = first.join().unwrap();
        assert_eq!(status, 200, "{answer}");
        until("told of the second", || plugin.heard("set") == 2);
        plugin.say(&word("ok"));
        let (status, answer) = second.join().unwrap();
        assert_eq!(status, 200, "{answer}");
    });
    let shown = daemon.must("GET", "/v1/overlays/a", None);
    assert_eq!(shown["details"]["networks"], "1=25");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ask(json!({"plugin/socket": other.path})));
        until("told of", || other.heard("start") == 1);
        daemon.must("DELETE", "/v1/vnics/v0", None);
        daemon.must("DELETE", "/v1/overlays/a", None);
        let (status, answer) = waits.join().unwrap();
        assert_eq!(status, 404, "{answer}");
    });
    // Nothing of the plugin that was tried is left.
    until("its session ends", || {
        other.heard("hello") == 1 && !other.path.exists()
    });
}

/// A client that goes away leaves its change, which is made with the plugin's word. One that waits when the daemon ends is told so.
#[test]
fn who_waits_may_go() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [plugin, _other] = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let body = json!({"properties": {"vnetid": 24}}).to_string();
    let mut client = daemon::connect(&socket);
    let length = body.len();
    write!(
        client,
        "PATCH /v1/overlays/a HTTP/1.1\r\nhost: windlass\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    until("told of", || plugin.heard("set") == 1);
    drop(client);
    plugin.say(&word("ok"));
    until("it is made", || {
        let shown = daemon.must("GET", "/v1/overlays/a", None);
        shown["details"]["networks"] == "1=24"
    });
    let engine = daemon.engine();
    let waits = std::thread::spawn(move || {
        let edit = |_: &Engine, document: &mut Document| {
            let mut overlay = json!(document.overlays[0]);
            overlay["properties"]["vnetid"] = json!(25);
            document.overlays[0] = serde_json::from_value(overlay).unwrap();
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        runtime.block_on(engine.change(&Peer::daemon(), None, false, edit))
    });
    until("told of", || plugin.heard("set") == 2);
    let over = Instant::now();
    drop(daemon);
    assert!(over.elapsed() < Duration::from_secs(4));
    let refused = waits.join().unwrap().unwrap_err();
    assert_eq!(refused.message, "the daemon is ending");
}

/// A change that a plugin does not answer in time is refused, and undone there. What it says of that later is not the answer to anything
/// else.
#[test]
fn a_late_answer_is_to_its_own_change() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [plugin, _other] = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let networks = |vni: u32| json!({"properties": {"vnetid": vni}});
    let late = daemon.refused("PATCH", "/v1/overlays/a", Some(networks(24)), "host");
    assert!(late.to_string().contains("does not answer"), "{late}");
    until("it is undone", || plugin.heard("set") == 2);
    for said in [word("error"), word("ok"), push("a", 23, 2)] {
        plugin.say(&said);
    }
    until("it is heard", || pushed(&daemon, "a").len() == 2);
    let shown = daemon.must("GET", "/v1/overlays/a", None);
    assert_eq!(shown["reason"], Value::Null, "{shown}");
    std::thread::scope(|scope| {
        let ask = || daemon::ask(&socket, "PATCH", "/v1/overlays/a", Some(networks(25)));
        let changed = scope.spawn(ask);
        until("told of", || plugin.heard("set") == 3);
        plugin.say(&word("ok"));
        assert_eq!(changed.join().unwrap().0, 200);
    });
}

/// A daemon that hands over makes nothing that waits: whoever asked is told to ask the successor.
#[test]
fn a_successor_is_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let [plugin, _other] = with_two_plugins(directory.path(), &daemon);
    let socket = options(directory.path()).socket;
    let ask = || {
        let change = json!({"properties": {"vnetid": 24}});
        daemon::ask(&socket, "PATCH", "/v1/overlays/a", Some(change))
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(ask);
        until("told of", || plugin.heard("set") == 1);
        let handed = daemon.call(|engine| Ok(engine.hand_over().len()));
        assert_eq!(handed, Ok(0));
        let (status, answer) = waits.join().unwrap();
        assert_eq!((status, &answer["code"]), (503, &json!("busy")), "{answer}");
    });
    until("it is undone", || plugin.heard("set") == 2);
    // It has read the first alone, and is of that network for a while.
    for said in [word("ok"), push("a", 24, 3), push("a", 23, 2)] {
        plugin.say(&said);
    }
    let known = [(1, mac(1)), (1, mac(2))];
    until("it is heard", || pushed(&daemon, "a") == known);
    // The successor has failed.
    let keep = |engine: &mut Engine| {
        engine.keep();
        Ok(())
    };
    daemon.call(keep).unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(ask);
        until("told of", || plugin.heard("set") == 3);
        // To what undid the first, and to this.
        plugin.say(&word("ok"));
        plugin.say(&word("ok"));
        assert_eq!(again.join().unwrap().0, 200);
    });
}
