//! The command line of `windlass memory`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use windlass_api::Name;

use super::Repeat;

/// Arguments of `memory`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MemoryArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<MemoryVerb>,
    /// Process id; all processes that you may see if there is none.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) pid: Option<u32>,
    /// List the regions of memory through which the daemon forwards, of these members and bridges; all if there is none: which pages
    /// were asked for, and which the kernel gave.
    #[arg(long, value_name = "MEMBER", num_args = 0.., conflicts_with = "pid")]
    pub(crate) regions: Option<Vec<Name>>,
    /// Show its threads' caches alone.
    #[arg(long, requires = "pid")]
    pub(crate) threads: bool,
    /// Show its caches of objects alone, malloc's classes first.
    #[arg(long, requires = "pid", conflicts_with = "threads")]
    pub(crate) caches: bool,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
}

/// What is asked about a process's memory.
#[derive(Debug, Subcommand)]
pub(crate) enum MemoryVerb {
    /// Show which stacks' allocations live, estimated from samples.
    ///
    /// A sample is taken every 512 KiB of allocations on average. The error is that of 95 % of all cases.
    #[command(arg_required_else_help = true)]
    Growth(GrowthArgs),
    /// Find objects that nothing points to.
    ///
    /// Stops the process, and looks for their addresses, and for addresses inside them, in registers, stacks, data and reached objects. A
    /// number that looks like an address hides a leak.
    #[command(arg_required_else_help = true)]
    Leaks(LeaksArgs),
    /// Say what an address is.
    #[command(arg_required_else_help = true)]
    Whatis(WhatisArgs),
}

/// Arguments of `memory growth`.
#[derive(Debug, Args)]
pub(crate) struct GrowthArgs {
    /// Process id.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) pid: u32,
    /// Count what was allocated in this time alone, and lives still: a number with s, m, h or d.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) since: Option<Duration>,
    /// Write the profile to this file, too, for pprof.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) pprof: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
}

/// Arguments of `memory leaks`.
#[derive(Debug, Args)]
pub(crate) struct LeaksArgs {
    /// Process id.
    #[arg(value_hint = ValueHint::Other, required_unless_present = "core", conflicts_with = "core")]
    pub(crate) pid: Option<u32>,
    /// Look into this core file instead.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) core: Option<std::path::PathBuf>,
    /// Do it: the process stands still meanwhile, a second for each gigabyte or so.
    #[arg(long, required = true)]
    pub(crate) scan: bool,
}

/// Arguments of `memory whatis`.
#[derive(Debug, Args)]
pub(crate) struct WhatisArgs {
    /// Process id.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) pid: u32,
    /// Address, in hexadecimal.
    #[arg(value_parser = address, value_hint = ValueHint::Other)]
    pub(crate) address: u64,
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| "not an address in hexadecimal".into())
}

/// A length of time: `90s`, `5m`, `1h`, `2d`; seconds without a letter.
fn span(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter),
        _ => (text, 's'),
    };
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err("not a number with s, m, h or d".into()),
    };
    let number: u32 = number
        .parse()
        .map_err(|_| "not a number with s, m, h or d".to_owned())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times have a unit or are seconds; addresses are hexadecimal either way.
    #[test]
    fn times_and_addresses_are_read() {
        for (text, seconds) in [
            ("5", 5),
            ("90s", 90),
            ("5m", 300),
            ("1h", 3600),
            ("2d", 172_800),
        ] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "h", "1w", "-1s", "1.5h", "99999999999s", "1\u{e9}"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert_eq!((address("0x7f"), address("7F")), (Ok(0x7f), Ok(0x7f)));
        assert!(address("").is_err() && address("0xg").is_err());
    }
}
