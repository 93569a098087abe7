//! Arbitrary bytes as frames and events of a bridge that answers for neighbours.
//!
//! `cargo +nightly fuzz run neigh`. Inputs that crashed are kept in `corpus/neigh`;
//! `cargo test -p windlass-neigh --test frames` replays that directory.
#![no_main]

#[path = "../../crates/engines/neigh/tests/heard/mod.rs"]
mod heard;

libfuzzer_sys::fuzz_target!(|data: &[u8]| heard::check(data));
