//! Arbitrary bytes as what a member asks and is given: DHCPv4, DHCPv6, router advertisements.
//!
//! `cargo +nightly fuzz run learner`. Inputs that crashed are kept in `corpus/learner`;
//! `cargo test -p windlass-nic --test learned` replays that directory.
#![no_main]

#[path = "../../crates/engines/nic/tests/learned/mod.rs"]
mod learned;
#[path = "../../crates/engines/nic/tests/packets/mod.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    learned::check(data);
});
