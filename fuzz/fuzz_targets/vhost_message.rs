//! Arbitrary bytes as the words of a vhost-user front end, with descriptors of several kinds beside them.
//!
//! `cargo +nightly fuzz run vhost_message`. Inputs that crashed are kept in `corpus/vhost_message`;
//! `cargo test -p windlass-attach --test vhost_messages` replays that directory.
#![no_main]

#[path = "../../crates/io/attach/tests/vhost_script/mod.rs"]
mod vhost_script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vhost_script::run(data));
