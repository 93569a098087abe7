//! Lists that are due, and what is told before they are made.

use windlass_lookup_etcd::registry::{Op, Outcome, Scope, Told, Txn};

use crate::host::Key;
use crate::{HEALED_MS, World, guest};

/// A world whose first host knows an endpoint that the registry has lost, and its host does not write again.
fn lost(others: &[u64]) -> (World, Key) {
    let mut world = World::new(1, true);
    world.wait(5_000, 200);
    for number in others {
        let (key, ips) = guest(*number);
        world.create(2, key, &ips);
    }
    world.wait(5_000, 200);
    world.old = Some(world.model.clone());
    let (key, ips) = guest(0);
    world.create(1, key, &ips);
    world.wait(5_000, 200);
    world.hosts[1].is_cut = true;
    world.lose();
    world.wait(HEALED_MS, 200);
    assert!(world.hosts[0].table.contains_key(&key));
    assert!(world.hosts[0].degraded.is_some());
    (world, key)
}

/// What a person accepts goes, also where the registry has nothing of a network any more.
#[test]
fn a_loss_of_all_is_accepted() {
    let (mut world, key) = lost(&[]);
    world.hosts[0].engine.accept();
    world.wait(HEALED_MS, 200);
    assert_eq!(world.hosts[0].degraded, None);
    assert!(!world.hosts[0].table.contains_key(&key));
}

/// A registry lost an endpoint, and a person accepted that. An event, and the end of the connection, come before the list: it is made on the
/// next one all the same, and the endpoint goes.
#[test]
fn an_event_replaces_no_list() {
    let (mut world, (vni, mac)) = lost(&[8]);
    let (now, revision) = (world.now, world.model.revision);
    let event = Told::Changed {
        scope: Scope::Endpoints(vni),
        revision,
        changes: Vec::new(),
    };
    let host = &mut world.hosts[0];
    host.engine.accept();
    host.engine.told(now, event);
    host.cut(now, None);
    world.wait(HEALED_MS, 200);
    assert_eq!(world.hosts[0].degraded, None);
    assert!(!world.hosts[0].table.contains_key(&(vni, mac)));
}

/// An event of a later revision comes while a list is due: the list, which a member answers that is behind, is taken, and what follows is
/// watched.
#[test]
fn a_list_is_not_too_old_for_what_was_told_before() {
    let mut world = World::new(1, false);
    let ((vni, mac), _) = guest(0);
    let scope = Scope::Endpoints(vni);
    world.wait(5_000, 200);
    let (now, later) = (world.now, world.model.revision + 1_000);
    let host = &mut world.hosts[0];
    host.end_watch(now, scope);
    let event = Told::Changed {
        scope,
        revision: later,
        changes: Vec::new(),
    };
    host.engine.told(now, event);
    world.wait(5_000, 200);
    let put = Op::Put {
        key: world.keys.endpoint(vni, mac),
        value: br#"{"h":"h1","g":1,"ip":[],"st":"active"}"#.to_vec(),
        lease: 0,
    };
    let (expect, then) = (Vec::new(), vec![put]);
    world.announced.insert((vni, mac));
    assert_eq!(world.model.txn(&Txn { expect, then }), Outcome::Done);
    world.wait(5_000, 200);
    assert!(world.hosts[0].table.contains_key(&(vni, mac)));
}
