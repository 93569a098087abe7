//! Arbitrary bytes as frames that wait for rates, which change.
//!
//! `cargo +nightly fuzz run shaper`. Inputs that crashed are kept in `corpus/shaper`;
//! `cargo test -p windlass-shaper --test waiting` replays that directory.
#![no_main]

#[path = "../../crates/engines/shaper/tests/waited/mod.rs"]
mod waited;

libfuzzer_sys::fuzz_target!(|data: &[u8]| waited::check(data));
