//! Arbitrary bytes as what a plugin says, and as a file of endpoints.
//!
//! `cargo +nightly fuzz run lookup`. Inputs that crashed are kept in `corpus/lookup`;
//! `cargo test -p windlass-lookup --test bytes` replays that directory.
#![no_main]

#[path = "../../crates/control/lookup/tests/said/mod.rs"]
mod said;

libfuzzer_sys::fuzz_target!(|data: &[u8]| said::check(data));
