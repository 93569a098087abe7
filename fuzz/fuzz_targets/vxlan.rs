//! Arbitrary bytes as datagrams for a tunnel endpoint.
//!
//! `cargo +nightly fuzz run vxlan`. Inputs that crashed are kept in `corpus/vxlan`;
//! `cargo test -p windlass-attach --test vxlan_loop` replays that directory.
#![no_main]

#[path = "../../crates/io/attach/tests/looped/mod.rs"]
mod looped;

libfuzzer_sys::fuzz_target!(|data: &[u8]| looped::check(data));
