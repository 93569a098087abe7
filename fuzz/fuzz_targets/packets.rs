//! Arbitrary bytes as a pcap or pcapng file.
//!
//! `cargo +nightly fuzz run packets`. Inputs that crashed are kept in `corpus/packets`;
//! `cargo test -p windlass-capture --test files` replays that directory.
#![no_main]

#[path = "../../crates/engines/capture/tests/packets/mod.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| packets::check(data));
