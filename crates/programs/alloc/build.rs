//! How the library is linked: under a name of its own, bound at start, never unloaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for option in ["-soname,libwindlass_alloc.so", "-z,now", "-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{option}");
    }
}
