//! etcd that is not there, or not what it was.

use std::time::Duration;

use serde_json::json;
use windlass_lookup::protocol::{EndpointState, HostState, ToPlugin};

use crate::stage::{Host, Member, OVERLAY, is_here, mac};

fn is_whole(host: &Host) -> bool {
    host.degraded.is_none()
}

fn says(host: &Host, what: &str) -> bool {
    host.degraded
        .as_ref()
        .is_some_and(|text| text.contains(what))
}

/// A host starts without etcd: its overlay works, degraded, and what it announced is written once etcd is there.
#[test]
fn etcd_is_down_at_the_start() {
    if !is_here("etcd_is_down_at_the_start") {
        return;
    }
    let mut etcd = Member::new();
    let mut a = Host::started("a", &etcd.url());
    assert_eq!(a.started, Some(Ok(())));
    a.announce(mac(1), &["10.0.0.1"]);
    a.until("it is told", |a| says(a, "cannot be reached"));
    etcd.start();
    a.until("it is owned", |a| a.own.get(&(23, mac(1))) == Some(&Ok(1)));
    a.until("it is whole", is_whole);
}

/// etcd is killed and comes back: what was known serves, what was owed is written, and no host lists.
#[test]
fn etcd_is_killed_and_comes_back() {
    if !is_here("etcd_is_killed_and_comes_back") {
        return;
    }
    let mut etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &[]);
    a.owns(mac(2), &[]);
    b.sees(mac(2), Some("a"));
    let syncs = b.syncs;
    etcd.kill();
    b.until("it is told", |b| says(b, "cannot be reached"));
    a.announce(mac(3), &["10.0.0.3"]);
    a.retire(mac(1));
    assert_eq!(b.places(mac(1)), Some("a"));
    etcd.start();
    b.sees(mac(3), Some("a"));
    b.sees(mac(1), None);
    b.until("it is whole", is_whole);
    assert_eq!(b.places(mac(2)), Some("a"));
    assert_eq!(b.syncs, syncs);
}

/// A host that missed what was compacted lists, and drops what went meanwhile; until then it serves what it had on disk.
#[test]
fn what_was_missed_was_compacted() {
    if !is_here("what_was_missed_was_compacted") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &[]);
    a.owns(mac(2), &[]);
    b.sees(mac(2), Some("a"));
    b.close();
    b.table.clear();
    a.retire(mac(1));
    a.owns(mac(3), &[]);
    etcd.compact();
    b.start(&[23]);
    b.sees(mac(1), Some("a"));
    b.sees(mac(1), None);
    b.sees(mac(3), Some("a"));
    assert_eq!(b.places(mac(2)), Some("a"));
    b.until("it is whole", is_whole);
}

/// A host starts while etcd is down, and serves what it had on disk; a copy that was changed is not read.
#[test]
fn the_copy_on_disk_serves() {
    if !is_here("the_copy_on_disk_serves") {
        return;
    }
    let mut etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    b.sees(mac(1), Some("a"));
    b.close();
    etcd.kill();
    b.table.clear();
    b.start(&[23]);
    b.sees(mac(1), Some("a"));
    b.close();
    let copy = b.cache.path().join("test+b.cache");
    let text = std::fs::read_to_string(&copy).expect("a copy");
    assert!(text.contains("10.0.0.1"), "{text}");
    std::fs::write(&copy, text.replace("10.0.0.1", "10.0.0.2")).expect("it is written");
    b.table.clear();
    b.start(&[23]);
    b.until("it is told", |b| says(b, "cannot be reached"));
    assert_eq!(b.places(mac(1)), None);
}

/// The data directory is emptied: nothing that is known goes. Hosts that are there announce their own again; what only a dead host had is kept
/// until a person accepts the registry.
#[test]
fn the_data_directory_is_emptied() {
    if !is_here("the_data_directory_is_emptied") {
        return;
    }
    let mut etcd = Member::started();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    c.owns(mac(2), &["10.0.0.2"]);
    // The registry is to be younger than this.
    (0..20).for_each(|at| assert_ne!(a.owns(mac(100 + at), &[]), 0));
    b.sees(mac(1), Some("a"));
    b.sees(mac(2), Some("c"));
    c.kill();
    etcd.kill();
    std::fs::remove_dir_all(&etcd.data).expect("it goes");
    etcd.start();
    b.until("it is told", |b| says(b, "younger"));
    a.until("a owns its own again", |a| {
        a.own.get(&(23, mac(1))) == Some(&Ok(2))
    });
    b.until("b is told", |b| b.table[&(23, mac(1))].generation == 2);
    b.listen(Duration::from_secs(2));
    assert_eq!(b.places(mac(2)), Some("c"));
    assert!(says(&b, "younger"), "{:?}", b.degraded);
    b.say(&ToPlugin::Resync {
        overlay: OVERLAY.to_owned(),
    });
    b.sees(mac(2), None);
    assert_eq!(b.places(mac(1)), Some("a"));
    b.until("it is whole", is_whole);
}

/// An old snapshot is restored: an endpoint that had moved by then stays where it is, and its owner says so again.
#[test]
fn an_old_snapshot_is_restored() {
    if !is_here("an_old_snapshot_is_restored") {
        return;
    }
    let mut etcd = Member::started();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    c.sees(mac(1), Some("a"));
    let snapshot = etcd
        .data
        .with_extension("snapshot")
        .to_string_lossy()
        .into_owned();
    etcd.done(&["snapshot", "save", &snapshot]);
    b.announce_as(23, mac(1), &["10.0.0.1"], EndpointState::Standby);
    b.until("standby is answered", |b| b.own.contains_key(&(23, mac(1))));
    b.owns(mac(1), &["10.0.0.1"]);
    b.owns(mac(2), &[]);
    c.sees(mac(2), Some("b"));
    etcd.kill();
    std::fs::remove_dir_all(&etcd.data).expect("it goes");
    etcd.restore(&snapshot);
    etcd.start();
    b.until("b owns it again", |b| {
        b.own.get(&(23, mac(1))) == Some(&Ok(3))
    });
    for host in [&mut a, &mut c] {
        host.until("it is at b", |host| {
            host.table
                .get(&(23, mac(1)))
                .is_some_and(|entry| entry.generation == 3)
        });
        assert_eq!(host.places(mac(1)), Some("b"));
        host.sees(mac(2), Some("b"));
        host.until("it is whole", is_whole);
    }
}

/// A host dies: its endpoints stay, it is unsure, and another host may take one over. When it comes back, it has lost that one and nothing else.
#[test]
fn a_host_dies_and_comes_back() {
    if !is_here("a_host_dies_and_comes_back") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    a.owns(mac(2), &["10.0.0.2"]);
    b.sees(mac(2), Some("a"));
    a.kill();
    b.announce(mac(1), &["10.0.0.1"]);
    b.until("a may keep it", |b| {
        b.own.get(&(23, mac(1))) == Some(&Err("a".to_owned()))
    });
    // As if its lease had lapsed.
    etcd.done(&["del", "/windlass/v1/test/alive/a"]);
    b.until("a is unsure", |b| {
        b.hosts.get("a") == Some(&HostState::Unsure)
    });
    b.until("b took it", |b| b.own.get(&(23, mac(1))) == Some(&Ok(2)));
    assert_eq!(b.places(mac(2)), Some("a"));
    a.start(&[23]);
    a.announce(mac(1), &["10.0.0.1"]);
    a.announce(mac(2), &["10.0.0.2"]);
    a.until("it is b's", |a| {
        a.own.get(&(23, mac(1))) == Some(&Err("b".to_owned()))
    });
    a.until("it is a's", |a| a.own.get(&(23, mac(2))) == Some(&Ok(1)));
    a.sees(mac(1), Some("b"));
    b.until("a is alive", |b| {
        b.hosts.get("a") == Some(&HostState::Alive)
    });
}

/// Another machine takes a host's name, with another address: what the host has, which is announced there again, is sent to the new address
/// at once, and nobody lists.
#[test]
fn a_host_is_replaced() {
    if !is_here("a_host_is_replaced") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    a.owns(mac(2), &[]);
    b.sees(mac(2), Some("a"));
    let syncs = b.syncs;
    a.kill();
    let mut other = Host::new("a", &etcd.url());
    let properties = &mut other.properties;
    properties.insert("vxlan/listen-ip".to_owned(), json!("192.0.2.200"));
    other.start(&[23]);
    assert_eq!(other.owns(mac(1), &["10.0.0.1"]), 1);
    let is_there = |host: &Host, of| {
        let target = host.table[&(23, of)].target.ip.to_string();
        host.places(of) == Some("a") && target == "192.0.2.200"
    };
    b.until("it is sent to the new address", |b| is_there(b, mac(1)));
    // One that is not announced again yet.
    b.until("the other one, too", |b| is_there(b, mac(2)));
    b.until("it has what is for everybody", |b| {
        b.flood.get(&23) == Some(&1)
    });
    assert_eq!(b.syncs, syncs);
    b.owns(mac(3), &[]);
    other.sees(mac(3), Some("b"));
    assert!(is_whole(&other) && is_whole(&b));
}

/// Another machine calls itself like a host, with another address, and goes: the host says so while it is there, and is where it was afterwards.
#[test]
fn a_namesake_comes_and_goes() {
    if !is_here("a_namesake_comes_and_goes") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &[]);
    b.sees(mac(1), Some("a"));
    let put = |kind: &str, value: &str| {
        etcd.done(&["put", &format!("/windlass/v1/test/{kind}/a"), value]);
    };
    put("host", r#"{"vtep":["192.0.2.200"],"port":4789}"#);
    put("alive", r#"{"boot":"another"}"#);
    a.until("it is told", |a| says(a, "another host calls itself a"));
    let at = |host: &Host| host.table[&(23, mac(1))].target.ip.to_string();
    b.until("it is sent there", |b| at(b) == "192.0.2.200");
    // As if its lease had lapsed.
    etcd.done(&["del", "/windlass/v1/test/alive/a"]);
    b.until("it is sent where it was", |b| at(b) == "192.0.2.97");
    a.until("it is whole", is_whole);
    a.owns(mac(2), &[]);
    b.until("a is alive", |b| {
        b.hosts.get("a") == Some(&HostState::Alive)
    });
}

/// A host that does not come back is forgotten: nothing of it is left, here and in the registry.
#[test]
fn a_dead_host_is_forgotten() {
    if !is_here("a_dead_host_is_forgotten") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    (0..120).for_each(|at| a.announce(mac(at), &[&format!("10.0.0.{at}")]));
    a.until("all are owned", |a| a.own.len() == 120);
    b.until("all are told", |b| b.table.len() == 120);
    a.kill();
    etcd.done(&["del", "/windlass/v1/test/alive/a"]);
    b.until("a is unsure", |b| {
        b.hosts.get("a") == Some(&HostState::Unsure)
    });
    b.say(&ToPlugin::Forget {
        overlay: OVERLAY.to_owned(),
        host: "a".to_owned(),
    });
    b.until("nothing of a is left", |b| b.table.is_empty());
    b.until("a is gone", |b| b.hosts.get("a") == Some(&HostState::Gone));
    let left = etcd.keys("").into_iter().filter(|key| !key.ends_with("/b"));
    assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
}
