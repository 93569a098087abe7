//! Arbitrary bytes as what a hostile peer writes into a slab, and as the calls of the honest side in between.
//!
//! `cargo +nightly fuzz run slab`. Inputs that crashed are kept in `corpus/slab`;
//! `cargo test -p windlass-channel --test hostile` replays that directory.
#![no_main]

#[path = "../../crates/io/channel/tests/lies/mod.rs"]
mod lies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lies::check(data);
});
