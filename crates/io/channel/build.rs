//! Refuses other targets with one sentence, before the compiler has hundreds about them.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |key| env::var(key).unwrap_or_default();
    let target = (of("CARGO_CFG_TARGET_ARCH"), of("CARGO_CFG_TARGET_OS"));
    if target != ("x86_64".to_owned(), "linux".to_owned()) {
        println!("cargo::error=windlass runs on x86-64 Linux only");
    }
}
