//! Any bytes as what a plugin says, and as a file.

mod said;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Random bytes: nothing that [`said::check`] forbids.
    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..600)) {
        said::check(&data);
    }

    /// Committed inputs with a few bytes changed, which get deeper.
    #[test]
    fn changed_inputs(pick: prop::sample::Index,
                      edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut data = pick.get(&corpus()).clone();
        for (at, value) in edits {
            let at = at.index(data.len());
            data[at] = value;
        }
        said::check(&data);
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/lookup");
    let files = fs::read_dir(&dir).expect("the corpus");
    let paths = files.map(|file| file.expect("an entry").path());
    paths.map(|path| fs::read(path).expect("a file")).collect()
}

/// Every committed input keeps the invariants, whole and cut anywhere.
#[test]
fn corpus_replays() {
    let files = corpus();
    assert!(files.len() >= 4, "only {} corpus files", files.len());
    for data in files {
        (0..=data.len()).for_each(|end| said::check(&data[..end]));
    }
}
