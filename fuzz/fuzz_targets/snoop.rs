//! Arbitrary bytes as frames and events of a bridge that snoops.
//!
//! `cargo +nightly fuzz run snoop`. Inputs that crashed are kept in `corpus/snoop`;
//! `cargo test -p windlass-snoop --test frames` replays that directory.
#![no_main]

#[path = "../../crates/engines/snoop/tests/heard/mod.rs"]
mod heard;

libfuzzer_sys::fuzz_target!(|data: &[u8]| heard::check(data));
