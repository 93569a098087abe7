//! Replays the corpus of the fuzz target `broker_messages`, and what random scripts add to it.

#[path = "messages/mod.rs"]
mod messages;

/// Inputs that fuzzing found, and 300 random ones, leave the broker at work.
#[test]
fn scripts_replay() {
    let corpus = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../fuzz/corpus/broker_messages"
    );
    let files = std::fs::read_dir(corpus).expect("the corpus").flatten();
    let inputs: Vec<Vec<u8>> = files
        .map(|file| std::fs::read(file.path()).expect("an input"))
        .collect();
    assert!(!inputs.is_empty(), "an empty corpus proves nothing");
    inputs.iter().for_each(|input| messages::run(input));
    let mut state = 1_u64;
    for len in 0..300 {
        let random = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        let input: Vec<u8> = (0..len * 3).map(random).collect();
        messages::run(&input);
    }
}
