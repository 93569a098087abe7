//! Arbitrary bytes as what a guest does with a pair of packed rings: descriptors, tables, flags, noise, and visits.
//!
//! `cargo +nightly fuzz run vhost_packed`. Inputs that crashed are kept in `corpus/vhost_packed`;
//! `cargo test -p windlass-attach --test vhost_replay` replays that directory.
#![no_main]

#[path = "../../crates/io/attach/tests/vhost_rings/mod.rs"]
mod vhost_rings;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vhost_rings::check_packed(data);
});
