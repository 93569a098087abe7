//! Arbitrary bytes as what hosts of a network say to DHCP servers and routers.
//!
//! `cargo +nightly fuzz run dhcp`. Inputs that crashed are kept in `corpus/dhcp`;
//! `cargo test -p windlass-dhcp --test frames` replays that directory.
#![no_main]

#[path = "../../crates/engines/dhcp/tests/served/mod.rs"]
mod served;

libfuzzer_sys::fuzz_target!(|data: &[u8]| served::check(data));
