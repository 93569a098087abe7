//! Arbitrary bytes as frames that a bridge of three ports hears.
//!
//! `cargo +nightly fuzz run bpdu`. Inputs that crashed are kept in `corpus/bpdu`;
//! `cargo test -p windlass-rstp --test bpdus` replays that directory.
#![no_main]

#[path = "../../crates/engines/rstp/tests/heard/mod.rs"]
mod heard;

libfuzzer_sys::fuzz_target!(|data: &[u8]| heard::check(data));
