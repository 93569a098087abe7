//! Replays the fuzz corpus of `wire_parse`, and what random and truncated frames add to it.

mod invariants;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/wire_parse");
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("directory entry").path())
        .map(|path| {
            (
                path.display().to_string(),
                fs::read(&path).expect("corpus file"),
            )
        })
        .collect();
    files.sort();
    files
}

/// Every committed input, crashing ones of the past among them, keeps the invariants. The frame
/// seeds are all found (an empty corpus would prove nothing).
#[test]
fn corpus_replays() {
    let files = corpus();
    assert!(files.len() >= 8, "only {} corpus files", files.len());
    for (name, data) in files {
        println!("{name}");
        invariants::check(&data);
    }
}

/// Each corpus frame cut at every length, with every amount of it given, keeps the invariants.
#[test]
fn corpus_truncated_everywhere() {
    for (_, data) in corpus() {
        let frame = &data[data.len().min(2)..];
        for end in 0..=frame.len().min(160) {
            for have in 0..=end.min(160) {
                let mut input = (have as u16).to_le_bytes().to_vec();
                input.extend(&frame[..end]);
                invariants::check(&input);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random bytes keep the invariants.
    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..300)) {
        invariants::check(&data);
    }

    /// Corpus frames with a few bytes changed, which get deeper than random ones, keep them too.
    #[test]
    fn mutated_corpus(pick: prop::sample::Index, have: u16,
                      edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let files = corpus();
        let mut data = pick.get(&files).1.clone();
        for (at, value) in edits {
            let at = at.index(data.len());
            data[at] = value;
        }
        invariants::check(&data);
        data[..2].copy_from_slice(&(have % 300).to_le_bytes());
        invariants::check(&data);
    }
}
