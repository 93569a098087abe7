//! Arbitrary bytes as the sections of debug data.
//!
//! `cargo +nightly fuzz run types`. Inputs that crashed are kept in `corpus/types`;
//! `cargo test -p windlass-types --test hostile` replays that directory.
#![no_main]

#[path = "../../crates/engines/types/tests/questions/mod.rs"]
mod questions;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    questions::ask(&questions::parse(data));
});
