//! Replays the corpus of the fuzz target `packets`.

#[path = "packets/mod.rs"]
mod packets;

/// Files that fuzzing found, and each cut anywhere, or with any byte changed, are read to an end.
#[test]
fn files_replay() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/packets");
    let files = std::fs::read_dir(corpus).expect("the corpus").flatten();
    let mut count = 0;
    for file in files {
        count += 1;
        let bytes = std::fs::read(file.path()).expect("an input");
        packets::check(&bytes);
        for at in 0..bytes.len() {
            packets::check(&bytes[..at]);
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            packets::check(&changed);
        }
    }
    assert!(count > 0, "an empty corpus proves nothing");
}
