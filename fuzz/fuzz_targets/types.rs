//! Arbitrary bytes as the sections of debug data: each begins with its number and its length, two bytes.
//!
//! `cargo +nightly fuzz run types`. `cargo test -p windlass-types --test hostile` changes the sections of real programs in the same way.
#![no_main]

#[path = "../../crates/engines/types/tests/questions/mod.rs"]
mod questions;

use questions::{NAMES, Sections, ask};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut sections = Sections::new();
    let mut rest = data;
    while let [number, low, high, after @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (content, after) = after.split_at(len);
        let name = NAMES[usize::from(*number) % NAMES.len()];
        sections.insert(name, (0, content.to_vec()));
        rest = after;
    }
    ask(&sections);
});
