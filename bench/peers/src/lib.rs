#![forbid(unsafe_code)]
//! Empty: see `Cargo.toml`.
