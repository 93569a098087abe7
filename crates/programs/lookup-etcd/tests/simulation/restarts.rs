//! A plugin that starts again: what it writes.

use crate::host::Host;
use crate::{HEALED_MS, World, guest};

/// Endpoints of the host, some of them without an IP address.
const OWN: u64 = 60;

/// A world whose first host has endpoints, and addresses that it claimed.
fn world() -> World {
    let mut world = World::new(1, false);
    world.wait(5_000, 200);
    for number in 0..OWN {
        let (key, _) = guest(number);
        world.create(0, key, &[[10, 2, 0, key.1.0[5]].into()]);
    }
    for owner in 0..3 {
        world.hosts[0].claim(world.now, key_of(0).0, owner);
    }
    // Until what was claimed for nobody has gone, and rested.
    world.wait(2 * HEALED_MS, 200);
    assert!(!world.hosts[0].claimed.is_empty());
    world
}

fn key_of(number: u64) -> crate::host::Key {
    guest(number).0
}

/// Restarts it, and gives what was written then, but for its sign of life.
fn restarted(world: &mut World) -> Vec<String> {
    let from = world.model.revision + 1;
    world.hosts[0].restart(world.now);
    world.wait(HEALED_MS, 200);
    let changes = world.model.since("", from).expect("the past");
    let written = changes.into_iter().map(|change| change.key);
    let written = written.filter(|key| !key.contains("/alive/")).collect();
    let Host { own, guests, .. } = &world.hosts[0];
    assert!(own.keys().eq(guests.keys()) && own.values().all(Result::is_ok));
    written
}

/// A plugin that starts again writes nothing of what the registry has of its host: with the copy on disk, with an older one, and with none.
#[test]
fn a_restart_writes_nothing() {
    for copies in 0..3 {
        let mut world = world();
        if copies > 0 {
            world.hosts[0].save();
        }
        if copies > 1 {
            world.create(0, key_of(OWN), &[]);
            world.wait(5_000, 200);
        }
        assert_eq!(restarted(&mut world), [""; 0], "{copies}");
    }
}

/// What changed while the plugin was away is written, and nothing else: an address, a state, an endpoint that is gone or new.
#[test]
fn a_restart_writes_what_differs() {
    let mut world = world();
    world.hosts[0].save();
    let [moved, gone] = [0, 4].map(key_of);
    let [former, next] = [[10, 2, 0, 0].into(), [10, 3, 0, 0].into()];
    let guests = &mut world.hosts[0].guests;
    guests.get_mut(&moved).expect("it is there").ips = vec![next];
    guests.remove(&gone).expect("it was there");
    world.settled.remove(&gone);
    let mut written = restarted(&mut world);
    written.sort_unstable();
    let keys = &world.keys;
    let mut wanted = [
        keys.endpoint(moved.0, moved.1),
        keys.address(moved.0, former),
        keys.address(moved.0, next),
        keys.endpoint(gone.0, gone.1),
        keys.address(gone.0, [10, 2, 0, 4].into()),
    ];
    wanted.sort_unstable();
    assert_eq!(written, wanted);
}

/// An endpoint has moved to a host, the registry falls back behind that, and the plugin starts again before it hears of it: the endpoint is
/// that host's still.
#[test]
fn a_restart_remembers_a_move() {
    let mut world = World::new(1, true);
    world.wait(5_000, 200);
    let (key, ips) = guest(0);
    world.create(1, key, &ips);
    world.wait(5_000, 200);
    world.old = Some(world.model.clone());
    world.standby(0, key, &ips);
    world.wait(5_000, 200);
    world.activate(0, key, &ips);
    world.wait(5_000, 200);
    let is_its = |world: &World| matches!(world.hosts[0].own.get(&key), Some(Ok(_)));
    assert!(is_its(&world));
    world.hosts[0].save();
    world.lose();
    world.hosts[0].restart(world.now);
    world.wait(HEALED_MS, 200);
    assert!(is_its(&world));
}
