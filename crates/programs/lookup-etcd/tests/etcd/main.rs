//! The plugin against Debian's etcd.
//!
//! Each test starts its own members and hosts. A bar on time is a limit of patience, never a measurement.

mod claims;
mod faults;
mod stage;
mod strangers;
mod writers;

use stage::{Host, Member, is_here, mac};
use windlass_lookup::protocol::EndpointState;

/// What one host announces, the other one is told, with its target; what it retires goes, and leaves no key.
#[test]
fn endpoints_are_told() {
    if !is_here("endpoints_are_told") {
        return;
    }
    let etcd = Member::started();
    let mut a = Host::started("a", &etcd.url());
    let mut b = Host::started("b", &etcd.url());
    assert_eq!(a.owns(mac(1), &["10.0.0.1", "fd00::1"]), 1);
    b.sees(mac(1), Some("a"));
    let entry = &b.table[&(23, mac(1))];
    assert_eq!(entry.target.ip.to_string(), "192.0.2.97");
    assert_eq!(
        (entry.target.port, entry.ips.len(), entry.generation),
        (4789, 2, 1)
    );
    b.until("a is alive", |b| {
        b.hosts.get("a") == Some(&windlass_lookup::protocol::HostState::Alive)
    });
    b.until("a gets what is for everybody", |b| {
        b.flood.get(&23) == Some(&1)
    });
    assert_eq!(a.places(mac(1)), None);
    // Other addresses: the one that was given up is free.
    a.owns(mac(1), &["10.0.0.2"]);
    assert_eq!(etcd.keys("ip/"), ["ip/000017/10.0.0.2"]);
    a.retire(mac(1));
    b.sees(mac(1), None);
    assert_eq!(etcd.keys("ep/"), [""; 0]);
    assert_eq!(etcd.keys("ip/"), [""; 0]);
}

/// A guest that moves is standby on its new host, then active there: its old host is told that it is lost, all others where it is.
#[test]
fn a_guest_moves() {
    if !is_here("a_guest_moves") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    c.sees(mac(1), Some("a"));
    b.announce_as(23, mac(1), &["10.0.0.1"], EndpointState::Standby);
    b.until("standby is answered", |b| b.own.contains_key(&(23, mac(1))));
    b.announce(mac(1), &["10.0.0.1"]);
    b.until("b owns it", |b| b.own.get(&(23, mac(1))) == Some(&Ok(2)));
    b.sees(mac(1), None);
    c.sees(mac(1), Some("b"));
    a.sees(mac(1), Some("b"));
    a.until("a lost it", |a| {
        a.own.get(&(23, mac(1))) == Some(&Err("b".to_owned()))
    });
    // What the old host retires by then is not its own any more.
    a.retire(mac(1));
    a.owns(mac(2), &[]);
    assert_eq!(etcd.keys("ep/").len(), 2);
    assert_eq!(etcd.keys("ip/").len(), 1);
}

/// Of two hosts that claim one MAC address, or one IP address, the second is refused, and served when the first is gone.
#[test]
fn two_hosts_claim_one_address() {
    if !is_here("two_hosts_claim_one_address") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    for (of, ip) in [(mac(1), "10.0.0.9"), (mac(2), "10.0.0.1")] {
        b.announce(of, &[ip]);
        b.until("it is refused", |b| {
            b.own.get(&(23, of)) == Some(&Err("a".to_owned()))
        });
    }
    b.retire(mac(2));
    a.retire(mac(1));
    b.until("it is b's", |b| {
        matches!(b.own.get(&(23, mac(1))), Some(Ok(_)))
    });
    a.sees(mac(1), Some("b"));
}
