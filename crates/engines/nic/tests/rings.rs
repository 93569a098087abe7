//! Groups of rings: whatever is asked for after whatever else, nobody has another's ring, and the default group has one.

use std::collections::BTreeSet;

use proptest::prelude::*;
use windlass_nic::rings::{Device, Group, Lacks, Wish, default_table, plan, spread};

fn device(rings: u32, rules: usize) -> Device {
    Device {
        rings,
        table: (0..64).map(|i| i % rings).collect(),
        others: BTreeSet::new(),
        rules,
    }
}

fn wish(vnic: &str, addresses: &[u64], rings: u32) -> Wish {
    Wish {
        vnic: vnic.into(),
        addresses: addresses.iter().copied().collect(),
        rings,
    }
}

fn rings_of(groups: &[Group]) -> Vec<(&str, Vec<u32>)> {
    let shown = |g: &'_ Group| g.rings.iter().copied().collect();
    groups.iter().map(|g| (g.vnic.as_str(), shown(g))).collect()
}

/// Rings of their own until they run out; who came first keeps them; what others use is not given away.
#[test]
fn rings_last_until_they_run_out() {
    let mut device = device(4, 9);
    let wishes = [
        wish("a", &[1], 1),
        wish("b", &[2, 3], 2),
        wish("c", &[4], 1),
    ];
    let first = plan(&device, &[], &wishes);
    assert_eq!(rings_of(&first.make), [("a", vec![3]), ("b", vec![1, 2])]);
    assert_eq!(first.lacks, [("c".into(), Lacks::Rings(0))]);
    assert_eq!(default_table(&device.table, first.make.iter()), [0; 64]);

    let earlier = [wish("0", &[9], 1), wish("b", &[2, 3], 2)];
    let held: Vec<Group> = first
        .make
        .into_iter()
        .filter(|group| group.is_asked(&earlier))
        .collect();
    let second = plan(&device, &held, &earlier);
    assert_eq!(rings_of(&second.make), [("0", vec![3])]);

    device.others = [2, 3].into();
    let third = plan(&device, &[], &wishes);
    assert_eq!(rings_of(&third.make), [("a", vec![1]), ("c", vec![0])]);
    device.others.clear();
    device.rules = 2;
    let fourth = plan(&device, &[], &wishes);
    assert_eq!(rings_of(&fourth.make), [("a", vec![3]), ("c", vec![2])]);
    assert_eq!(fourth.lacks, [("b".into(), Lacks::Rules(1))]);
    let both = plan(&device, &[], &[wish("a", &[1], 1), wish("b", &[1], 1)]);
    assert_eq!(both.lacks, [("b".into(), Lacks::Address)]);
    // An operator has the default group on two rings: the others are taken first.
    device.table = vec![2, 3];
    let fifth = plan(&device, &[], &[wish("a", &[1], 3)]);
    assert_eq!(rings_of(&fifth.make), [("a", vec![0, 1, 3])]);
    assert_eq!(spread(&[5, 7].into(), 3), [5, 7, 5]);
}

proptest! {
    #[test]
    fn nobody_has_anothers_ring(
        rings in 1u32..9,
        rules in 0usize..12,
        steps in prop::collection::vec(
            prop::collection::vec((0u64..6, 1u32..4, 1u64..4), 0..6),
            1..6,
        ),
    ) {
        let device = device(rings, rules);
        let mut held: Vec<Group> = Vec::new();
        for step in steps {
            let mut wishes: Vec<Wish> = Vec::new();
            for (name, rings, count) in step {
                let addresses: Vec<u64> = (0..count).map(|i| name * 10 + i).collect();
                if wishes.iter().all(|w| w.vnic != name.to_string()) {
                    wishes.push(wish(&name.to_string(), &addresses, rings));
                }
            }
            held.retain(|group| group.is_asked(&wishes));
            let made = plan(&device, &held, &wishes);
            held.extend(made.make);
            prop_assert_eq!(held.len() + made.lacks.len(), wishes.len());
            let taken: Vec<u32> = held.iter().flat_map(|g| g.rings.iter().copied()).collect();
            let distinct: BTreeSet<u32> = taken.iter().copied().collect();
            prop_assert_eq!(taken.len(), distinct.len());
            prop_assert!(held.iter().map(|g| g.addresses.len()).sum::<usize>() <= rules);
            let table = default_table(&device.table, held.iter());
            prop_assert!(table.iter().all(|ring| *ring < rings && !distinct.contains(ring)));
            for wish in &wishes {
                let group = held.iter().find(|g| g.vnic == wish.vnic);
                if let Some(group) = group {
                    prop_assert_eq!(group.rings.len(), wish.rings as usize);
                    prop_assert_eq!(&group.addresses, &wish.addresses);
                }
            }
        }
    }
}
