//! What fuzzing of the learner found, every truncation of it, and arbitrary steps.

#[path = "learned/mod.rs"]
mod learned;
mod packets;

use proptest::prelude::*;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/learner");

/// The exchanges of all methods, which went well.
fn exchanges() -> Vec<u8> {
    std::fs::read(format!("{CORPUS}/exchanges")).expect("a file")
}

/// Every committed input keeps what must hold, whole and cut anywhere. By the exchanges of all methods, addresses are learned.
#[test]
fn corpus_replays() {
    let files = std::fs::read_dir(CORPUS).expect("the corpus");
    for file in files {
        let data = std::fs::read(file.expect("an entry").path()).expect("a file");
        for end in 0..=data.len() {
            learned::check(&data[..end]);
        }
    }
    assert!(learned::check(&exchanges()) >= 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A few bytes of an exchange that went well are something else.
    #[test]
    fn changed_exchanges(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut bytes = exchanges();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        learned::check(&bytes);
    }
}
