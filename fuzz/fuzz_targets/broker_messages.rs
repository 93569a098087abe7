//! Arbitrary bytes as messages to a broker of accelerated sockets.
//!
//! `cargo +nightly fuzz run broker_messages`. Inputs that crashed are kept in `corpus/broker_messages`;
//! `cargo test -p windlass-broker --test fuzzed` replays that directory.
#![no_main]

#[path = "../../crates/programs/broker/tests/messages/mod.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| messages::run(data));
