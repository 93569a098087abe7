//! Names of functions as their languages write them.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Bytes of a name at most; longer ones are shown as they are stored, and cut.
pub const NAME_MAX: usize = 1024;
/// How deep a C++ name may nest.
const DEPTH_MAX: u32 = 64;

/// Text that refuses to grow: a short name can mean an endless one.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len().saturating_add(part.len()) > NAME_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

/// A C++ or Rust name in its own spelling; any other name as it is, without the version of its library. Control characters are replaced.
pub fn demangle(name: &str) -> String {
    let plain = name.split('@').next().unwrap_or_default();
    let name: String = plain.chars().take(NAME_MAX).collect();
    let spelt = rust(&name).or_else(|| cpp(&name)).unwrap_or(name);
    spelt
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn rust(name: &str) -> Option<String> {
    let parsed = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded(String::new());
    // Without the hash.
    write!(text, "{parsed:#}").ok()?;
    Some(text.0)
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let parsing = ParseOptions::default().recursion_limit(DEPTH_MAX);
    let symbol = Symbol::new_with_options(name.as_bytes(), &parsing).ok()?;
    let options = DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(DEPTH_MAX);
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C++ loses its parameters, Rust its hash, C nothing.
    #[test]
    fn names_are_spelt() {
        for (stored, spelt) in [
            ("main", "main"),
            ("_IO_file_write@@GLIBC_2.2.5", "_IO_file_write"),
            ("_ZN5redis5parseEPKci", "redis::parse"),
            (
                "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
                "core::fmt::Formatter::pad",
            ),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Znonsense", "_Znonsense"),
            ("a\x1b[31mb", "a?[31mb"),
            ("", ""),
        ] {
            assert_eq!(demangle(stored), spelt);
        }
    }

    /// A name whose every substitution doubles it ends, and so does one that nests for ever.
    #[test]
    fn endless_names_end() {
        let mut doubling = String::from("_Z1fI1aE");
        for at in 0..200 {
            doubling.push_str(&format!("S{at}_S{at}_"));
        }
        for name in [
            doubling,
            format!("_Z{}", "N".repeat(100_000)),
            "_Z".to_owned() + &"P".repeat(50_000),
        ] {
            assert!(demangle(&name).len() <= NAME_MAX);
        }
    }
}
