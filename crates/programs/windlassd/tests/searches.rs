//! Overlays whose search tells of targets, in edits that are made and in edits that are not.
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

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bridge::{mac, start};
use daemon::{Daemon, options};
use lab::{Lab, until};
use searched::{Plugin, overlay, push, pushed, tell};
use serde_json::{Value, json};

/// A search ends with its overlay, also if another overlay that needs none has its name in the same edit.
#[test]
fn a_search_ends_with_its_overlay() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let file = directory.path().join("hosts.json");
    tell(&file, 1);
    for name in ["a", "b"] {
        let files = overlay(name, "files", json!({"vnetid": 23, "files/config": file}));
        daemon.must("POST", "/v1/overlays", Some(files));
        until("told", || pushed(&daemon, name) == [(1, mac(1))]);
    }
    let mut document = daemon.must("GET", "/v1/document", None);
    let direct = json!({"vnetid": 23, "direct/dest-ip": "192.0.2.9"});
    document["overlays"][0] = overlay("a", "direct", direct);
    daemon.must("PUT", "/v1/document", Some(document));
    for number in 2..5 {
        tell(&file, number);
        until("told", || pushed(&daemon, "b") == [(1, mac(number))]);
    }
    assert_eq!(pushed(&daemon, "a"), []);
}

/// An overlay whose deletion is undone goes on with its search: the registry has this host's endpoints, and its word is taken.
#[test]
fn a_search_goes_on_if_its_end_is_undone() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |overlay| vec![push(overlay, 23, 1)]);
    let wanted = plugin.overlay("a", json!({"vnetid": 23}));
    daemon.must("POST", "/v1/overlays", Some(wanted));
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    until("announced", || plugin.heard("announce") == 1);
    let document = daemon.must("GET", "/v1/document", None);
    let stored = options(directory.path()).state_dir.join("document.json");
    std::fs::remove_file(&stored).unwrap();
    std::fs::create_dir(&stored).unwrap();
    let file = directory.path().join("hosts.json");
    tell(&file, 2);
    let files = overlay("a", "files", json!({"vnetid": 23, "files/config": file}));
    for other in [None, Some(files)] {
        let mut next = document.clone();
        next["overlays"] = other.into_iter().collect();
        if next["overlays"] == json!([]) {
            next["vnics"] = json!([]);
            next["bridges"] = json!([]);
        }
        daemon.refused("PUT", "/v1/document", Some(next), "storage");
        until("it is the plugin's", || {
            pushed(&daemon, "a") == [(1, mac(1))]
        });
        until("announced", || {
            plugin.heard("announce") == plugin.heard("start")
        });
    }
}

/// A change of an overlay's networks that its plugin refuses leaves what is known of them.
#[test]
fn a_refused_change_leaves_what_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let says = |overlay: &str| vec![push(overlay, 110, 1), push(overlay, 120, 2)];
    let plugin = Plugin::start(directory.path(), says);
    let bridge = json!({"name": "br0", "properties": {"vlan-filtering": true}});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    let mut wanted = plugin.overlay("a", json!({"vnis": "10=110,20=120"}));
    wanted["bridge"] = json!("br0");
    daemon.must("POST", "/v1/overlays", Some(wanted));
    let all = [(10, mac(1)), (20, mac(2))];
    until("told", || pushed(&daemon, "a") == all);
    *plugin.refuses.lock().unwrap() = true;
    let fewer = json!({"properties": {"vnis": "10=110"}});
    daemon.refused("PATCH", "/v1/overlays/a", Some(fewer.clone()), "host");
    assert_eq!(pushed(&daemon, "a"), all);
    *plugin.refuses.lock().unwrap() = false;
    daemon.must("PATCH", "/v1/overlays/a", Some(fewer));
    assert_eq!(pushed(&daemon, "a"), all[..1]);
}

/// An address that was told goes with its network: to the VLAN that has it now, or away if none has. Of a VLAN that is another network
/// now, nothing is left when that has been made.
#[test]
fn what_was_told_goes_with_its_network() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let says = |overlay: &str| vec![push(overlay, 110, 1), push(overlay, 120, 2)];
    let plugin = Plugin::start(directory.path(), says);
    let bridge = json!({"name": "br0", "properties": {"vlan-filtering": true}});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    let mut wanted = plugin.overlay("a", json!({"vnis": "10=110,20=120"}));
    wanted["bridge"] = json!("br0");
    daemon.must("POST", "/v1/overlays", Some(wanted));
    until("told", || {
        pushed(&daemon, "a") == [(10, mac(1)), (20, mac(2))]
    });
    let set = |vnis: &str| {
        let change = json!({"properties": {"vnis": vnis}});
        daemon.must("PATCH", "/v1/overlays/a", Some(change));
        pushed(&daemon, "a")
    };
    assert_eq!(
        set("10=120,20=110"),
        [(10, mac(2)), (20, mac(1))],
        "they change places"
    );
    assert_eq!(set("30=120,20=110"), [(20, mac(1)), (30, mac(2))]);
    // So many that the search is still telling that they go when the change is made.
    let many = 4_001;
    for first in (2..many).step_by(400) {
        let entries =
            (first..first + 400).map(|number| push("a", 120, number)["entries"][0].clone());
        let entries: Vec<_> = entries.collect();
        plugin.say(&json!({"op": "push", "overlay": "a", "entries": entries}));
    }
    let last = (30, mac(many));
    until("all are told", || pushed(&daemon, "a").contains(&last));
    assert_eq!(set("30=130,20=110"), [(20, mac(1))]);
}

/// What a search tells of a new overlay while the edit waits for another overlay's search is the overlay's.
#[test]
fn what_is_told_meanwhile_stays() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let quick = Plugin::start(directory.path(), |overlay| vec![push(overlay, 25, 1)]);
    let aside = directory.path().join("slow");
    std::fs::create_dir(&aside).unwrap();
    let slow = Plugin::start(&aside, |_| Vec::new());
    let wanted = slow.overlay("a", json!({"vnetid": 23}));
    daemon.must("POST", "/v1/overlays", Some(wanted));
    let mut document = daemon.must("GET", "/v1/document", None);
    let overlays = document["overlays"].as_array_mut().unwrap();
    overlays[0]["properties"]["vnetid"] = json!(24);
    overlays.push(quick.overlay("b", json!({"vnetid": 25})));
    *slow.is_mute.lock().unwrap() = true;
    std::thread::scope(|scope| {
        let put = scope.spawn(|| daemon.must("PUT", "/v1/document", Some(document)));
        until("the edit waits", || slow.heard("set") == 1);
        until("the other goes on", || quick.heard("start") == 1);
        // The daemon takes it in meanwhile.
        std::thread::sleep(Duration::from_millis(100));
        slow.say(&json!({"op": "ok", "overlay": "a"}));
        put.join().unwrap();
    });
    until("told", || pushed(&daemon, "b") == [(1, mac(1))]);
}

/// A search that has much to tell of one overlay hinders no other one of the same edit.
#[test]
fn much_that_is_told_hinders_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let says = |overlay: &str| {
        let host = |n| json!({"op": "host", "overlay": overlay, "host": format!("h{n}"), "state": "alive"});
        (0..1_000).map(host).collect()
    };
    let plugin = Plugin::start(directory.path(), says);
    let overlays: Vec<Value> = (0..4)
        .map(|n| plugin.overlay(&format!("o{n}"), json!({"vnetid": 23 + n})))
        .collect();
    let document = json!({"version": 1, "overlays": overlays});
    daemon.must("PUT", "/v1/document", Some(document));
    for n in 0..4 {
        let path = format!("/v1/overlays/o{n}/hosts");
        until("told", || {
            daemon.must("GET", &path, None).as_array().unwrap().len() == 1_000
        });
    }
}

/// More targets than there can be: the addresses behind the others are entered all the same, and the overlay says how many are not, also of
/// one that was asked for. They are when others go.
#[test]
fn a_target_too_many_hinders_no_other() {
    const TARGETS: usize = 16_384;
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let says = |overlay: &str| {
        let entry = |n: usize| {
            let [.., high, low] = (n as u32).to_be_bytes();
            let target = json!({"ip": Ipv4Addr::new(10, 0, high, low)});
            json!({"vni": 23, "mac": mac(n), "target": target, "host": "h", "gen": 1})
        };
        let all: Vec<Value> = (0..TARGETS + 10).map(entry).collect();
        let push = |entries| json!({"op": "push", "overlay": overlay, "entries": entries});
        all.chunks(500).map(push).collect()
    };
    let plugin = Plugin::start(directory.path(), says);
    let bridge = json!({"name": "br0", "properties": {"addresses-max": 40_000}});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    let mut wanted = plugin.overlay("a", json!({"vnetid": 23, "unknown": "lookup"}));
    wanted["bridge"] = json!("br0");
    daemon.must("POST", "/v1/overlays", Some(wanted));
    let reason = || {
        let shown = daemon.must("GET", "/v1/overlays/a", None);
        shown["reason"].as_str().unwrap_or_default().to_owned()
    };
    until("ten are missing", || reason().starts_with("10 addresses"));
    assert_eq!(pushed(&daemon, "a").len(), TARGETS);
    let vnic = json!({"name": "v0", "bridge": "br0", "mac": mac(0xff07)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let mut frame = bridge::frame(8, 7);
    (frame[4], frame[10]) = (0xff, 0xff);
    lab.guest("v0").send([frame]);
    until("asked", || plugin.heard("lookup") == 1);
    let target = json!({"ip": "10.1.0.0"});
    plugin.say(&json!({"op": "answer", "id": plugin.asked(), "target": target, "ttl": 300}));
    until("and one more", || reason().starts_with("11 addresses"));
    let gone: Vec<Value> = (0..20)
        .map(|n| json!({"vni": 23, "mac": mac(n), "host": "h", "gen": 1}))
        .collect();
    plugin.say(&json!({"op": "withdraw", "overlay": "a", "entries": gone}));
    until("they are there", || reason().is_empty());
    assert_eq!(pushed(&daemon, "a").len(), TARGETS - 9);
}

/// Says that an address is behind a socket.
fn behind(plugin: &Plugin, number: usize, target: SocketAddr) {
    let target = json!({"ip": target.ip(), "port": target.port()});
    let entry = json!({"vni": 23, "mac": mac(number), "target": target, "host": "h", "gen": 1});
    plugin.say(&json!({"op": "push", "overlay": "a", "entries": [entry]}));
}

/// A remote host's socket at an address of its own, which is another one than the overlay's.
fn host(overlay: &Value, number: u8) -> UdpSocket {
    let listen = &overlay["properties"]["vxlan/listen-ip"];
    let listen: Ipv4Addr = listen.as_str().unwrap().parse().unwrap();
    let [net, high, low, _] = listen.octets();
    let socket = UdpSocket::bind((Ipv4Addr::new(net, high, low, 200 + number), 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// What still comes for a VNIC that was deleted goes on to the host that has its address now; not before, and not when it is here again.
#[test]
fn what_comes_for_a_vnic_that_left_is_relayed() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let (sender, next) = (host(&wanted, 0), host(&wanted, 1));
    behind(&plugin, 8, sender.local_addr().unwrap());
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic.clone()));
    behind(&plugin, 7, next.local_addr().unwrap());
    behind(&plugin, 9, sender.local_addr().unwrap());
    until("told", || pushed(&daemon, "a").len() == 2);

    let mut datagram = vec![8, 0, 0, 0, 0, 0, 23, 0];
    datagram.extend(bridge::frame(7, 8));
    let listen = wanted["properties"]["vxlan/listen-ip"].as_str().unwrap();
    let send = || sender.send_to(&datagram, (listen, 4789)).unwrap();
    let shown = || daemon.must("GET", "/v1/overlays/a", None);
    let received = || shown()["counters"]["rx_frames"].as_u64().unwrap();
    send();
    until("it is for this host", || received() == 1);
    daemon.must("DELETE", "/v1/vnics/v0", None);
    until("it is elsewhere", || pushed(&daemon, "a").len() == 3);
    until("it is relayed", || {
        send();
        let mut bytes = [0; 100];
        let came = next.recv_from(&mut bytes);
        came.is_ok_and(|(len, from)| bytes[..len] == datagram && from.ip().to_string() == listen)
    });
    assert_ne!(shown()["details"]["relayed-datagrams"], "0");
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let before = received();
    until("it is for this host again", || {
        send();
        received() > before
    });
}

/// The former host of an endpoint that is here now stays a target for a while, although nothing is behind it any more.
#[test]
fn a_former_host_stays_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let [former, other] = [0, 1].map(|number| host(&wanted, number).local_addr().unwrap());
    behind(&plugin, 7, former);
    behind(&plugin, 8, other);
    until("told", || pushed(&daemon, "a").len() == 2);
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let gone = |number| json!({"vni": 23, "mac": mac(number), "host": "h", "gen": 1});
    let gone = json!({"op": "withdraw", "overlay": "a", "entries": [gone(7), gone(8)]});
    plugin.say(&gone);
    let shown = || daemon.must("GET", "/v1/overlays/a", None);
    until("nothing is behind them", || shown()["addresses"] == 0);
    assert_eq!(shown()["targets"], 1);
}

/// An address that is pushed while it is asked for: what waits for it is sent, although there is no answer.
#[test]
fn what_is_asked_for_and_pushed_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23, "unknown": "lookup"}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let remote = host(&wanted, 0);
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    // A frame waits for one second: on a busy machine the push may be later.
    let is_sent = (8..16).any(|number| {
        let asked = plugin.heard("lookup");
        lab.guest("v0").send([bridge::frame(number, 7)]);
        until("asked", || plugin.heard("lookup") > asked);
        behind(&plugin, number.into(), remote.local_addr().unwrap());
        let over = Instant::now() + Duration::from_millis(1_200);
        loop {
            let came = remote.recv(&mut [0; 100]).is_ok();
            if came || Instant::now() > over {
                break came;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(is_sent);
}

/// Why an overlay is degraded.
fn reason(daemon: &Daemon, overlay: &str) -> String {
    let shown = daemon.must("GET", &format!("/v1/overlays/{overlay}"), None);
    shown["reason"].as_str().unwrap_or_default().to_owned()
}

/// Addresses for which the forwarding table has no room are entered when others go.
#[test]
fn what_has_no_room_is_entered_later() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |overlay| {
        (0..100).map(|number| push(overlay, 23, number)).collect()
    });
    bridge::bridge_of(&daemon, 0, &json!({"addresses-max": 64}));
    let mut wanted = plugin.overlay("a", json!({"vnetid": 23}));
    wanted["bridge"] = json!("br0");
    daemon.must("POST", "/v1/overlays", Some(wanted));
    let lacking = || {
        let reason = reason(&daemon, "a");
        let (count, _) = reason.split_once(" addresses ").unwrap_or(("0", ""));
        count.parse::<usize>().unwrap()
    };
    until("some have no room", || {
        lacking() > 0 && pushed(&daemon, "a").len() + lacking() == 100
    });
    let (there, lacks) = (pushed(&daemon, "a"), lacking());
    let gone = there
        .iter()
        .take(lacks + 8)
        .map(|(_, mac)| json!({"vni": 23, "mac": mac, "host": "h", "gen": 1}));
    let gone: Vec<Value> = gone.collect();
    plugin.say(&json!({"op": "withdraw", "overlay": "a", "entries": gone}));
    until("the others are there", || {
        pushed(&daemon, "a").len() == 100 - gone.len()
    });
    assert_eq!(reason(&daemon, "a"), "");
}

/// A target that goes while a worker is late gets nothing any more once the worker goes on, and what was told meanwhile is entered; the overlay
/// is degraded no longer than that.
#[test]
fn a_late_worker_ends_no_removal() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23, "broadcast": true}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let hosts = [0, 1].map(|number| host(&wanted, number));
    for (number, host) in (8..).zip(&hosts) {
        behind(&plugin, number, host.local_addr().unwrap());
    }
    until("told", || pushed(&daemon, "a").len() == 2);
    let guest = lab.guest("v0");
    let mut broadcast = bridge::frame(0, 7);
    broadcast[..6].fill(0xff);
    let has = |at: usize| hosts[at].recv(&mut [0; 100]).is_ok();
    until("both get what is flooded", || {
        guest.send([broadcast.clone()]);
        has(0) && has(1)
    });
    let hold = guest.hold();
    let gone = json!({"vni": 23, "mac": mac(8), "host": "h", "gen": 1});
    plugin.say(&json!({"op": "withdraw", "overlay": "a", "entries": [gone]}));
    behind(&plugin, 9, hosts[1].local_addr().unwrap());
    until("it waits for the worker", || {
        !reason(&daemon, "a").is_empty()
    });
    drop(hold);
    until("all is done", || reason(&daemon, "a").is_empty());
    until("it gets no more", || {
        while has(0) || has(1) {}
        guest.send([broadcast.clone()]);
        until("the other one gets it", || has(1));
        !has(0)
    });
}

/// A target that goes while a worker is late, and which the worker could still send to, is removed when it goes on: it was in the flood sets for
/// ever.
#[test]
fn a_target_that_a_late_worker_has_goes() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23, "broadcast": true}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let hosts = [0, 1].map(|number| host(&wanted, number));
    let flood = |hosts: &[UdpSocket]| {
        let target = |host: &UdpSocket| {
            let at = host.local_addr().unwrap();
            json!({"ip": at.ip(), "port": at.port()})
        };
        let targets: Vec<Value> = hosts.iter().map(target).collect();
        plugin.say(&json!({"op": "flood", "overlay": "a", "vni": 23, "targets": targets}));
    };
    flood(&hosts);
    let targets = || daemon.must("GET", "/v1/overlays/a", None)["targets"].clone();
    until("told", || targets() == 2);
    let guest = lab.guest("v0");
    let mut broadcast = bridge::frame(0, 7);
    broadcast[..6].fill(0xff);
    let has = |at: usize| hosts[at].recv(&mut [0; 100]).is_ok();
    until("both get what is flooded", || {
        guest.send([broadcast.clone()]);
        has(0) && has(1)
    });
    let hold = guest.hold();
    flood(&hosts[1..]);
    until("it waits for the worker", || targets() == 1);
    drop(hold);
    until("it gets no more", || {
        while has(0) || has(1) {}
        guest.send([broadcast.clone()]);
        until("the other one gets it", || has(1));
        !has(0)
    });
}

/// A worker that is late is waited for once, however often a search tells what is flooded.
#[test]
fn a_late_worker_is_waited_for_once() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let plugin = Plugin::start(directory.path(), |_| Vec::new());
    let wanted = plugin.overlay("a", json!({"vnetid": 23, "broadcast": true}));
    daemon.must("POST", "/v1/overlays", Some(wanted.clone()));
    let vnic = json!({"name": "v0", "bridge": "a", "mac": mac(7)});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    let hosts = [0, 1].map(|number| host(&wanted, number));
    let flood = |hosts: &[UdpSocket]| {
        let target = |host: &UdpSocket| {
            let at = host.local_addr().unwrap();
            json!({"ip": at.ip(), "port": at.port()})
        };
        let targets: Vec<Value> = hosts.iter().map(target).collect();
        plugin.say(&json!({"op": "flood", "overlay": "a", "vni": 23, "targets": targets}));
    };
    let targets = || daemon.must("GET", "/v1/overlays/a", None)["targets"].clone();
    flood(&hosts);
    until("told", || targets() == 2);
    let guest = lab.guest("v0");
    let mut broadcast = bridge::frame(0, 7);
    broadcast[..6].fill(0xff);
    until("it is flooded", || {
        guest.send([broadcast.clone()]);
        hosts[0].recv(&mut [0; 100]).is_ok()
    });
    let hold = guest.hold();
    let since = Instant::now();
    (0..4).for_each(|_| flood(&hosts[1..]));
    flood(&[]);
    until("all is heard", || targets() == 0);
    assert!(since.elapsed() < Duration::from_secs(9));
    drop(hold);
}
