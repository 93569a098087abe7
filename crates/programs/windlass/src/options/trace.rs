//! The command line of `windlass trace`.

use clap::{Args, ValueHint};

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The process that is traced: all of its threads, and none of its children.
    #[arg(short = 'p', long, value_name = "PID", value_hint = ValueHint::Other)]
    pub(crate) pid: u32,
    /// List the places that the probes are put on, the arguments with where they lie there, and what a hit costs.
    #[arg(short, long, conflicts_with = "clause")]
    pub(crate) list: bool,
    /// End after so many seconds; without this, at a signal or with the process.
    #[arg(long, value_name = "SECONDS", value_parser = super::interval)]
    pub(crate) seconds: Option<std::time::Duration>,
    /// `[MODULE:]FUNCTION[:entry|:return]`, with * for any text: `libc.so.6:mem*`, `server:handle:return`.
    #[arg(value_name = "PROBE", value_hint = ValueHint::Other)]
    pub(crate) probe: String,
    /// What is done at each hit: `[/FILTER/] print(VALUE, ...); @NAME[KEY, ...] = count()`. Without it, the arguments are printed.
    #[arg(value_name = "CLAUSE", value_hint = ValueHint::Other)]
    pub(crate) clause: Option<String>,
    /// Of the same name as the option of every command, whose letter is the process here.
    #[arg(id = "parsable", long = "parsable", hide = true, action = clap::ArgAction::SetTrue)]
    pub(crate) _parsable: bool,
}
