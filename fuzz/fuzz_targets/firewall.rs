//! Arbitrary bytes as frames from and to a member with a firewall.
//!
//! `cargo +nightly fuzz run firewall`. Inputs that crashed are kept in `corpus/firewall`;
//! `cargo test -p windlass-firewall --test frames` replays that directory.
#![no_main]

#[path = "../../crates/engines/firewall/tests/seen/mod.rs"]
mod seen;

libfuzzer_sys::fuzz_target!(|data: &[u8]| seen::check(data));
