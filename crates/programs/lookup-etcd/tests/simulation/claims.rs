//! Claims of addresses, one at a time.

use windlass_lookup_etcd::registry::{Op, Outcome, Txn};
use windlass_lookup_etcd::schema;

use crate::host::{VNIS, wish};
use crate::{POOL, Scope, World};

const VNI: u32 = VNIS[0];
/// When a host has come up.
const UP_MS: u64 = 5_000;

/// A world whose first host is up.
fn world() -> World {
    let mut world = World::new(1, false);
    world.wait(UP_MS, 200);
    world
}

fn keys(world: &World, scope: Scope) -> Vec<String> {
    let under = world.model.under(&world.keys.prefix(scope));
    under.into_iter().map(|kv| kv.key).collect()
}

fn write(world: &mut World, then: Vec<Op>) {
    let expect = Vec::new();
    assert_eq!(world.model.txn(&Txn { expect, then }), Outcome::Done);
}

/// An owner that claims again while its claim waits for blocks gets one set of addresses; if it wants others, the earlier claim ends.
#[test]
fn an_owner_has_one_claim() {
    let mut world = world();
    let now = world.now;
    let other = schema::mac("020000000077");
    for id in 1..=4 {
        let mut claim = wish(id, VNI, id / 3);
        claim.mac = other.filter(|_| id == 4);
        world.hosts[0].claim_as(now, claim);
    }
    world.wait(UP_MS, 200);
    let answers = &world.hosts[0].answered;
    assert_eq!(answers.len(), 4);
    assert!(answers[&1].is_ok());
    assert_eq!(answers[&1], answers[&2]);
    assert_eq!(answers[&3], Err("its owner claimed again".to_owned()));
    let last = answers[&4].clone().expect("addresses");
    assert_eq!(Some(last.0), other);
    assert_eq!(keys(&world, Scope::Addresses(VNI)).len(), 2);
    assert_eq!(keys(&world, Scope::Endpoints(VNI)).len(), 2);
}

/// A dry run says whether there are addresses, and writes nothing. A block that only dry runs look at is given up.
#[test]
fn a_dry_run_writes_nothing() {
    let mut world = world();
    let before = world.model.revision;
    let mut claim = wish(1, VNI, 1);
    claim.dry_run = true;
    world.hosts[0].claim_as(world.now, claim.clone());
    world.wait(UP_MS, 200);
    let (_, ips) = world.hosts[0].answered[&1].clone().expect("an address");
    assert!(POOL.contains(&ips[0]), "{ips:?}");
    assert_eq!(world.model.revision, before);
    world.hosts[0].claim(world.now, VNI, 1);
    world.wait(UP_MS, 200);
    assert_eq!(keys(&world, Scope::Blocks).len(), 1);
    for key in world.hosts[0].claimed.clone() {
        world.retire(0, key);
    }
    for _ in 0..13 {
        world.hosts[0].claim_as(world.now, claim.clone());
        world.wait(100_000, 1_000);
    }
    assert_eq!(keys(&world, Scope::Blocks), [""; 0]);
}

/// A host that gives back at once more addresses than one claim tries gets another one: those rest.
#[test]
fn what_rests_is_passed_over() {
    let mut world = world();
    for owner in 1..=201 {
        if owner == 201 {
            world.wait(UP_MS, 200);
            for key in world.hosts[0].claimed.clone() {
                world.retire(0, key);
            }
            world.wait(UP_MS, 200);
        }
        let mut claim = wish(owner, VNI, owner);
        claim.sets = vec![vec![([10, 1, 0, 1].into(), [10, 1, 3, 254].into())]];
        world.hosts[0].claim_as(world.now, claim);
    }
    world.wait(UP_MS, 200);
    let answers = &world.hosts[0].answered;
    let refused: Vec<_> = answers.values().filter(|of| of.is_err()).collect();
    assert_eq!((answers.len(), refused), (201, Vec::new()));
}

/// A block that another host gives up is claimed, on the connection on which it was taken before.
#[test]
fn a_block_changes_hands() {
    let mut world = world();
    let block = world.keys.block("p0", [10, 1, 0, 0].into());
    let value = schema::value(&schema::BlockRecord {
        host: "h1".to_owned(),
    });
    let put = Op::Put {
        key: block.clone(),
        value,
        lease: 0,
    };
    write(&mut world, vec![put]);
    world.hosts[0].claim(world.now, VNI, 1);
    world.wait(UP_MS, 200);
    write(&mut world, vec![Op::Delete { key: block.clone() }]);
    world.wait(60_000, 1_000);
    world.hosts[0].claim(world.now, VNI, 2);
    world.wait(UP_MS, 200);
    let answers: Vec<_> = world.hosts[0].answered.values().collect();
    assert!(
        answers.len() == 2 && answers.iter().all(|of| of.is_ok()),
        "{answers:?}"
    );
    let kv = world.model.under(&block).pop().expect("a block");
    assert_eq!(schema::block(&kv.value).expect("a record").host, "h0");
}

/// A host that has no sign of life in the registry refuses claims at once and says why; the sign is written again within seconds.
#[test]
fn a_host_without_a_sign_of_life_refuses() {
    let mut world = world();
    let key = world.keys.alive("h0");
    write(&mut world, vec![Op::Delete { key: key.clone() }]);
    while world.hosts[0].degraded.is_none() && world.now < 2 * UP_MS {
        world.pass(10);
    }
    world.hosts[0].claim_as(world.now, wish(1, VNI, 1));
    world.pass(1);
    let why = "this host has not said in etcd yet that it is alive".to_owned();
    assert_eq!(world.hosts[0].degraded, Some(why.clone()));
    assert_eq!(world.hosts[0].answered.get(&1), Some(&Err(why)));
    world.wait(2_000, 200);
    assert_eq!(world.hosts[0].degraded, None);
    assert_eq!(world.model.under(&key).len(), 1);
}
