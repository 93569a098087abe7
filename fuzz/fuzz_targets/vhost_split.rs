//! Arbitrary bytes as what a guest does with a pair of split rings: descriptors, tables, indexes, noise, and visits.
//!
//! `cargo +nightly fuzz run vhost_split`. Inputs that crashed are kept in `corpus/vhost_split`;
//! `cargo test -p windlass-attach --test vhost_replay` replays that directory.
#![no_main]

#[path = "../../crates/io/attach/tests/vhost_rings/mod.rs"]
mod vhost_rings;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vhost_rings::check_split(data);
});
