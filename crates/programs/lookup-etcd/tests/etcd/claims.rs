//! Addresses that hosts give out of pools that they share.

use std::collections::BTreeSet;
use std::net::IpAddr;

use windlass_lookup::protocol::ToPlugin;

use crate::stage::{Host, Member, OVERLAY, is_here, mac, until};

const RANGE: [&str; 2] = ["10.0.0.1", "10.0.3.254"];
/// Room for two.
const SMALL: [&str; 2] = ["10.0.9.1", "10.0.9.2"];

/// Both hosts give a hundred addresses at once, out of one pool: none twice, none refused, each host in blocks of its own.
#[test]
fn hosts_share_a_pool() {
    if !is_here("hosts_share_a_pool") {
        return;
    }
    let etcd = Member::started();
    let mut hosts = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    for host in &mut hosts {
        // Its first claim needs its sign of life.
        host.owns(mac(u16::from(host.name.as_bytes()[0])), &[]);
        (0..100).for_each(|id| host.claim(id, &format!("cni:{id}/eth0"), RANGE, &[]));
    }
    let mut all = BTreeSet::new();
    let mut blocks = BTreeSet::new();
    for host in &mut hosts {
        for id in 0..100 {
            let (mac, ips) = host.claimed(id).expect("an address");
            assert_eq!(ips.len(), 1);
            assert!(all.insert(ips[0]), "{} twice", ips[0]);
            assert!(mac.is_unicast_source());
            let IpAddr::V4(ip) = ips[0] else {
                panic!("{ips:?}");
            };
            blocks.insert((host.name.clone(), u32::from(ip) >> 6));
        }
    }
    assert_eq!(blocks.len(), 4, "{blocks:?}");
    assert_eq!(etcd.keys("block/p0/").len(), 4);
    assert_eq!(etcd.keys("ip/000017/").len(), 200);
}

/// An address that was given is an endpoint's once that is announced. It rests when the endpoint goes, for its own host too, and so does
/// one that was claimed for nothing.
#[test]
fn addresses_are_given_and_rest() {
    if !is_here("addresses_are_given_and_rest") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    // They are connected then.
    a.owns(mac(1), &[]);
    b.owns(mac(2), &[]);
    a.claim(1, "cni:x/eth0", SMALL, &[]);
    let (first, ips) = a.claimed(1).expect("an address");
    // The same owner asks again: it did not hear the answer.
    a.claim(2, "cni:x/eth0", SMALL, &[]);
    assert_eq!(a.claimed(2), Ok((first, ips.clone())));
    let ip = ips[0].to_string();
    // That it asks what there is takes nothing from it.
    a.ask_for(3, "cni:x/eth0", RANGE, &[], true);
    a.claimed(3).expect("there is one");
    let value = etcd.done(&[
        "get",
        "--prefix",
        "--print-value-only",
        "/windlass/v1/test/ip/",
    ]);
    assert!(value.contains(r#""o":"cni:x/eth0""#), "{value}");
    assert_eq!(b.places(first), None);
    a.owns(first, &[&ip]);
    b.sees(first, Some("a"));
    let wanted = |host: &mut Host, id, ip: &str| {
        host.claim(id, "cni:y/eth0", SMALL, &[ip]);
        host.claimed(id).expect_err("it is refused")
    };
    assert!(wanted(&mut b, 1, &ip).contains("is taken, or was until a moment ago"));
    a.retire(first);
    b.sees(first, None);
    let rests = |ip: &str| {
        let key = format!("/windlass/v1/test/ip/000017/{ip}");
        etcd.done(&["get", "--print-value-only", &key])
            .contains(r#""rest":true"#)
    };
    assert!(rests(&ip));
    assert!(wanted(&mut a, 3, &ip).contains("is taken, or was until a moment ago"));
    assert_eq!(etcd.keys("rest/000017/").len(), 1);
    // The other one of the two, and then there is none.
    a.claim(4, "cni:z/eth0", SMALL, &[]);
    let (_, ips) = a.claimed(4).expect("the other one");
    b.claim(5, "cni:w/eth0", SMALL, &[]);
    let told = b.claimed(5).expect_err("none is left");
    assert!(told.contains("taken, or rest"), "{told}");
    a.say(&ToPlugin::Release {
        overlay: OVERLAY.to_owned(),
        vni: 23,
        owner: "cni:z/eth0".to_owned(),
    });
    until("it rests", || rests(&ips[0].to_string()));
    until("the endpoint is gone", || etcd.keys("ep/").len() == 2);
}

/// Without etcd a claim is refused at once, in words; one that a kill of etcd overtakes is refused too, and leaves nothing.
#[test]
fn claims_without_etcd_are_refused() {
    if !is_here("claims_without_etcd_are_refused") {
        return;
    }
    let mut etcd = Member::new();
    let mut a = Host::started("a", &etcd.url());
    a.claim(1, "cni:x/eth0", RANGE, &[]);
    let told = a.claimed(1).expect_err("it is refused");
    assert!(told.contains("etcd cannot be reached"), "{told}");
    etcd.start();
    a.owns(mac(1), &[]);
    etcd.stop();
    a.claim(2, "cni:x/eth0", RANGE, &[]);
    a.listen(std::time::Duration::from_millis(100));
    assert_eq!(a.claimed.get(&2), None);
    etcd.kill();
    let told = a.claimed(2).expect_err("it is refused");
    assert!(told.contains("etcd cannot be reached"), "{told}");
    etcd.start();
    a.until("it is whole", |a| a.degraded.is_none());
    a.claim(3, "cni:x/eth0", RANGE, &[]);
    assert!(a.claimed(3).is_ok());
    let [one] = etcd.keys("ip/000017/").try_into().expect("one address");
    assert!(one.starts_with("ip/000017/10.0."), "{one}");
}
