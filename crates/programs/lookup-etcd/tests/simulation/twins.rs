//! Two hosts of one name.

use crate::host::{Host, VNIS};
use crate::{Scope, World, guest};

/// Two hosts that call themselves alike, on one machine, say so both; neither removes what the other one has. When one of them is gone,
/// the other one is whole.
#[test]
fn two_hosts_have_one_name() {
    let mut world = World::new(1, false);
    let name = world.hosts[0].name.clone();
    world.hosts[1] = Host::new(name);
    for at in 0..2 {
        // Both of the first network.
        let (key, ips) = guest(8 * u64::try_from(at).expect("small"));
        world.create(at, key, &ips);
        world.wait(20_000, 200);
    }
    let endpoints = world.keys.prefix(Scope::Endpoints(VNIS[0]));
    let before = world.model.under(&endpoints);
    assert_eq!(before.len(), 2);
    world.wait(150_000, 200);
    let told = Some("another host calls itself h0: give one of them another name".to_owned());
    assert_eq!(world.hosts[0].degraded, told);
    assert_eq!(world.hosts[1].degraded, told);
    assert_eq!(world.model.under(&endpoints), before);
    world.hosts[1].is_cut = true;
    world.hosts[1].cut(world.now, None);
    world.wait(60_000, 200);
    assert_eq!(world.hosts[0].degraded, None);
}

/// A host gives up no block under a name that another host has, too: the addresses in it may be that one's. When it is alone, it does.
#[test]
fn a_twin_keeps_its_blocks() {
    let mut world = World::new(1, false);
    let name = world.hosts[0].name.clone();
    world.hosts[1] = Host::new(name);
    world.wait(20_000, 200);
    world.hosts[0].claim(world.now, VNIS[0], 0);
    world.wait(20_000, 200);
    let blocks = world.keys.prefix(Scope::Blocks);
    assert_eq!(world.model.under(&blocks).len(), 1);
    // The other one looks for what is not used every ten minutes.
    world.wait(1_900_000, 1_000);
    assert!(world.hosts[1].degraded.is_some());
    assert_eq!(world.model.under(&blocks).len(), 1);
    world.hosts[0].is_cut = true;
    world.hosts[0].cut(world.now, None);
    world.wait(1_900_000, 1_000);
    assert_eq!(world.hosts[1].degraded, None);
    assert_eq!(world.model.under(&blocks), []);
}
