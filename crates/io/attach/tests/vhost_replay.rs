//! Replays the corpora of the fuzz targets `vhost_split` and `vhost_packed`, and what random steps add to them.
#![allow(missing_docs)]

mod vhost_rings;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let read = |path: std::path::PathBuf| {
        let bytes = fs::read(&path).expect("corpus file");
        (path.display().to_string(), bytes)
    };
    let entries = fs::read_dir(dir.join(name)).expect("corpus");
    let mut files: Vec<_> = entries
        .map(|entry| read(entry.expect("entry").path()))
        .collect();
    files.sort();
    files
}

/// Every committed input, crashing ones of the past among them, keeps what must hold; and so does each cut short. The
/// seeds do move frames: inputs that stop at the first check would prove nothing.
#[test]
fn corpora_replay() {
    for (name, check) in [
        (
            "vhost_split",
            vhost_rings::check_split as fn(&[u8]) -> (u64, u64),
        ),
        ("vhost_packed", vhost_rings::check_packed),
    ] {
        let files = corpus(name);
        assert!(files.len() >= 8, "only {} inputs of {name}", files.len());
        let (mut received, mut sent) = (0, 0);
        for (name, data) in files {
            for end in (4..data.len()).step_by(16 * 7) {
                check(&data[..end]);
            }
            let (in_all, out_all) = check(&data);
            println!("{name}: {in_all} in, {out_all} out");
            (received, sent) = (received + in_all, sent + out_all);
        }
        assert!(received >= 10 && sent >= 10, "{received} in, {sent} out");
    }
}

fn input() -> impl Strategy<Value = Vec<u8>> {
    let step = (
        prop_oneof![6 => 0u8..6, 1 => Just(6u8), 4 => 7u8..9, 1 => Just(9u8), 2 => 10u8..12, 4 => 12u8..16],
        any::<bool>(),
        any::<u8>(),
        any::<u16>(),
        any::<u32>(),
        prop_oneof![
            3 => (0u64..1 << 20, prop_oneof![Just(0u64), Just(1), Just(2), Just(3), Just(0x80), Just(0x8000), Just(0x82)])
                .prop_map(|(at, flags)| at | flags << 32),
            1 => any::<u64>(),
        ],
    );
    let bytes = step.prop_map(|(what, ring, shift, at, len, addr)| {
        let mut bytes = vec![what | u8::from(ring) << 4, shift];
        bytes.extend(at.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(addr.to_le_bytes());
        bytes
    });
    let steps = prop::collection::vec(bytes, 1..90);
    (any::<[u8; 4]>(), steps).prop_map(|(head, steps)| {
        let mut all = head.to_vec();
        all.extend(steps.into_iter().flatten());
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random steps keep what must hold, on rings of either layout.
    #[test]
    fn random_steps(data in input()) {
        vhost_rings::check_split(&data);
        vhost_rings::check_packed(&data);
    }
}
