//! Refuses other targets with one sentence, before the compiler has hundreds about them.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |key| env::var(key).unwrap_or_default();
    let (arch, os) = (of("CARGO_CFG_TARGET_ARCH"), of("CARGO_CFG_TARGET_OS"));
    if !matches!((&*arch, &*os), ("x86_64" | "aarch64", "linux")) {
        println!("cargo::error=windlass runs on Linux for x86-64 and aarch64 only");
    }
}
