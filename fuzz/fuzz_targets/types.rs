//! Arbitrary bytes as the sections of debug data.
//!
//! `cargo +nightly fuzz run types`. Inputs that crashed are kept in `corpus/types`;
//! `cargo test -p windlass-target --test types_hostile` replays that directory.
#![no_main]

#[path = "../../crates/io/target/tests/questions/mod.rs"]
mod questions;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    questions::ask(&questions::parse(data));
});
