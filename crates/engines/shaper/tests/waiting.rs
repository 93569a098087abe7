//! Any bytes as what happens to the engine.

mod waited;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Random bytes: nothing that [`waited::check`] forbids.
    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..600)) {
        waited::check(&data);
    }
}

/// Every committed input keeps the invariants, whole and cut anywhere.
#[test]
fn corpus_replays() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/shaper");
    let files: Vec<_> = fs::read_dir(&dir).expect("the corpus").collect();
    assert!(files.len() >= 2, "only {} corpus files", files.len());
    for file in files {
        let data = fs::read(file.expect("an entry").path()).expect("a file");
        (0..=data.len()).for_each(|end| waited::check(&data[..end]));
    }
}
