//! Tests of the differences between documents.

use super::*;
use crate::property::Scope;
use crate::validate::validate;
use proptest::prelude::*;

/// A seed for one document: small choices that are turned into objects which refer to each other.
#[derive(Debug, Clone)]
struct Seed {
    zones: Vec<(u8, u8)>,
    bridges: Vec<(u8, u16)>,
    uplinks: Vec<(u8, u8, bool)>,
    vnics: Vec<(u8, u8, u8, u8)>,
    flows: Vec<(u8, u8, u8)>,
    vnds: Vec<(u8, u8)>,
    entries: Vec<(u8, u8)>,
}

fn seeds() -> impl Strategy<Value = Seed> {
    use proptest::collection::vec;
    (
        vec((0u8..4, 0u8..3), 0..4),
        vec((0u8..4, 16u16..20), 0..4),
        vec((0u8..4, 0u8..4, any::<bool>()), 0..4),
        vec((0u8..8, 0u8..4, 0u8..8, 0u8..5), 0..10),
        vec((0u8..4, 0u8..8, 0u8..4), 0..6),
        vec((0u8..4, 0u8..8), 0..6),
        vec((0u8..4, 0u8..8), 0..6),
    )
        .prop_map(
            |(zones, bridges, uplinks, vnics, flows, vnds, entries)| Seed {
                zones,
                bridges,
                uplinks,
                vnics,
                flows,
                vnds,
                entries,
            },
        )
}

fn named(prefix: &str, number: u8) -> Name {
    format!("{prefix}{number}").parse().expect("name")
}

fn attachment(choice: u8, id: u8) -> Attachment {
    let text = match choice {
        0 => "none".to_owned(),
        1 => "tap".to_owned(),
        2 => "tap,netns=a,address=10.0.0.1/24".to_owned(),
        3 => format!("memif,socket=m,id={id},role=server"),
        _ => "tap,address=10.0.0.2/24".to_owned(),
    };
    text.parse().expect("attachment")
}

fn flow(&(number, vnic, attributes): &(u8, u8, u8)) -> Object {
    let attributes = [
        "transport=tcp",
        "transport=udp",
        "dsfield=1",
        "local_ip=10.0.0.1",
    ][usize::from(attributes)];
    Object::Flow(Flow {
        name: named("f", number),
        vnic: named("v", vnic),
        attributes: attributes.parse().expect("attributes"),
        properties: Default::default(),
    })
}

fn vnd(&(number, vnic): &(u8, u8)) -> Object {
    Object::Vnd(Vnd {
        name: format!("d{number}").parse().expect("a name"),
        zone: Default::default(),
        vnic: named("v", vnic),
        properties: Default::default(),
    })
}

fn entry(&(bridge, member): &(u8, u8)) -> Object {
    Object::Fdb(StaticEntry {
        bridge: named("b", bridge),
        vlan: 1,
        mac: MacAddr([6, 0, 0, 0, 0, bridge]),
        member: named("v", member),
        kind: Default::default(),
        target: None,
    })
}

/// Builds a valid document: an object that would break a rule is left out.
fn document(seed: &Seed) -> Document {
    let mut document = Document::default();
    let mut objects = Vec::new();
    for &(number, size) in &seed.bridges {
        let mut bridge = Bridge::named(named("b", number));
        bridge
            .properties
            .assign(Scope::Bridge, &format!("ageing={size}"))
            .expect("number");
        objects.push(Object::Bridge(bridge));
    }
    for &(number, bridge) in &seed.zones {
        objects.push(Object::Zone(Zone {
            name: named("z", number),
            owner_uid: number.into(),
            owner_gid: 1,
            netns: None,
            bridges: vec![named("b", bridge)],
            properties: Default::default(),
        }));
    }
    for &(number, bridge, share) in &seed.uplinks {
        objects.push(Object::Uplink(Uplink {
            name: named("u", number),
            device: format!("eth{bridge}").parse().expect("ifname"),
            bridge: named("b", bridge),
            attach: "packet".parse().expect("packet"),
            share,
            properties: Default::default(),
        }));
    }
    for &(number, bridge, mac, attach) in &seed.vnics {
        objects.push(Object::Vnic(Vnic {
            name: named("v", number),
            zone: Default::default(),
            bridge: named("b", bridge),
            mac: Some(MacAddr([2, 0, 0, 0, 0, mac])),
            attach: attachment(attach, number),
            properties: Default::default(),
        }));
    }
    objects.extend(seed.flows.iter().map(flow));
    objects.extend(seed.vnds.iter().map(vnd));
    objects.extend(seed.entries.iter().map(entry));
    for object in objects {
        let mut with = document.clone();
        insert(&mut with, object);
        if validate(&with, &Document::default()).is_ok() {
            document = with;
        }
    }
    document.canonicalize();
    document
}

proptest! {
    /// The changes lead from the old document to the new one, their inverses lead back, and equal
    /// documents have none.
    #[test]
    fn diff_then_patch_is_the_new_document(old in seeds(), new in seeds()) {
        let (old, new) = (document(&old), document(&new));
        let changes = diff(&old, &new);
        prop_assert_eq!(changes.is_empty(), old == new);
        let mut result = old.clone();
        patch(&mut result, &changes);
        prop_assert_eq!(&result, &new);
        let back: Vec<_> = changes.iter().rev().map(Change::inverse).collect();
        patch(&mut result, &back);
        prop_assert_eq!(&result, &old);
    }

    /// After each single change every reference is to something that is there, no address is used
    /// twice, and no socket or interface: the data plane never sees a contradiction. (A bridge that a
    /// zone is still granted may go one step before the zone's list does not name it any more.)
    #[test]
    fn each_step_is_valid(old in seeds(), new in seeds()) {
        let (old, new) = (document(&old), document(&new));
        let mut state = old.clone();
        for change in diff(&old, &new) {
            patch(&mut state, std::slice::from_ref(&change));
            prop_assert_eq!(validate(&state, &Document::default()), Ok(()), "{}", change);
        }
    }

    /// The order of the lists is no difference.
    #[test]
    fn order_does_not_matter(seed in seeds()) {
        let sorted = document(&seed);
        let mut reversed = sorted.clone();
        reversed.vnics.reverse();
        reversed.bridges.reverse();
        prop_assert!(diff(&sorted, &reversed).is_empty());
    }
}

/// A TAP keeps its interface when its address, its bridge or its VNIC's address changes; another
/// namespace is another interface.
#[test]
fn taps_are_kept() {
    let text = |attach: &str, mac: &str| -> Document {
        let json = format!(
            r#"{{"version":1,"bridges":[{{"name":"b"}}],"vnics":[
               {{"name":"v","bridge":"b","mac":"{mac}","attach":{attach}}}]}}"#
        );
        serde_json::from_str(&json).expect("document")
    };
    let first = text(r#"{"kind":"tap","netns":"a"}"#, "02:00:00:00:00:01");
    let address = text(
        r#"{"kind":"tap","netns":"a","address":["10.0.0.1/8"]}"#,
        "02:00:00:00:00:02",
    );
    let elsewhere = text(r#"{"kind":"tap","netns":"b"}"#, "02:00:00:00:00:01");
    assert!(matches!(
        diff(&first, &address).as_slice(),
        [Change::Set { .. }]
    ));
    assert!(matches!(
        diff(&first, &elsewhere).as_slice(),
        [Change::Delete { .. }, Change::Create { .. }]
    ));
    let line = diff(&first, &address)
        .first()
        .map(ToString::to_string)
        .expect("one change");
    assert_eq!(
        line,
        "~ vnic v attach: tap,netns=a -> tap,netns=a,address=10.0.0.1/8 \
         mac: 02:00:00:00:00:01 -> 02:00:00:00:00:02"
    );
}

/// A change is written in the words of the command line, and without a secret.
#[test]
fn changes_are_written_as_they_are_typed() {
    let json = r#"{"version":1,"bridges":[{"name":"b","properties":{"ageing":60}}],
        "vnics":[{"name":"v","bridge":"b","properties":{"learn":false},
        "attach":{"kind":"memif","socket":"m.sock","role":"server","secret":"s3"}}]}"#;
    let document: Document = serde_json::from_str(json).expect("document");
    let lines: Vec<String> = diff(&Document::default(), &document)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        lines,
        [
            "+ bridge b ageing=60",
            "+ vnic v attach=memif,socket=m.sock,id=0,role=server,secret=? bridge=b learn=off zone=global"
        ]
    );
    let gone = Change::Set {
        from: Object::Bridge(document.bridges[0].clone()),
        to: Object::Bridge(Bridge::named("b".parse().expect("a name"))),
    };
    assert_eq!(gone.to_string(), "~ bridge b ageing: 60 -> -");
}
