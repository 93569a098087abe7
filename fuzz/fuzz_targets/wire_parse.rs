//! Arbitrary bytes as a frame: parse, deepen, segment, retag, finish checksums.
//!
//! `cargo +nightly fuzz run wire_parse`. Inputs that crashed are kept in `corpus/wire_parse`;
//! `cargo test -p windlass-wire` replays that directory.
#![no_main]

#[path = "../../crates/base/wire/tests/invariants/mod.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|data: &[u8]| invariants::check(data));
