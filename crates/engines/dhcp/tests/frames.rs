//! What hosts say: message by message, and any bytes.

mod answers;
mod served;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Random bytes, and random options behind a sound beginning: nothing that [`served::check`] forbids.
    #[test]
    fn random_bytes(kind in 0..13_u8, data in prop::collection::vec(any::<u8>(), 0..600)) {
        served::check(&data);
        let option = [&[0; 9][..], &[53, 1, kind], &data].concat();
        served::check(&option);
        let options = [&[kind, 1, 2, 3, 0, 1, 0, 4, 1, 2, 3, 4], &data[..]].concat();
        served::check(&options);
    }
}

/// Every committed input keeps the invariants, whole and cut anywhere.
#[test]
fn corpus_replays() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/dhcp");
    let files: Vec<_> = fs::read_dir(&dir).expect("the corpus").collect();
    assert!(files.len() >= 4, "only {} corpus files", files.len());
    for file in files {
        let data = fs::read(file.expect("an entry").path()).expect("a file");
        (0..=data.len()).for_each(|end| served::check(&data[..end]));
    }
}
