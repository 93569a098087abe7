//! The command line of `windlass trace`.

use clap::{Args, ValueHint};

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The process that is traced: all of its threads, and none of its children.
    #[arg(short = 'p', long, value_name = "PID", value_hint = ValueHint::Other, required_unless_present_any = ["command", "all"])]
    pub(crate) pid: Option<u32>,
    /// A program with its arguments, which is started and traced from before its first instruction on. Words with spaces stand between
    /// quotes. It goes on when tracing ends before it does.
    #[arg(short = 'c', long, value_name = "COMMAND", value_hint = ValueHint::CommandString, conflicts_with = "pid")]
    pub(crate) command: Option<String>,
    /// All processes: those that have the file of the probe mapped now, and those that map it later.
    #[arg(long, conflicts_with_all = ["pid", "command"])]
    pub(crate) all: bool,
    /// List the places that the probes are put on, the arguments with where they lie there, and what a hit costs.
    #[arg(short, long, conflicts_with = "clauses")]
    pub(crate) list: bool,
    /// End after so many seconds; without this, at a signal or with the process.
    #[arg(long, value_name = "SECONDS", value_parser = super::interval)]
    pub(crate) seconds: Option<std::time::Duration>,
    /// `[MODULE:]FUNCTION[:entry|:return]`, with * for any text: `libc.so.6:mem*`, `server:handle:return`.
    /// Also `FILE:LINE`, `sdt:PROVIDER:NAME`, `kernel:EVENT`, `profile:99`, `tick:1s`, `begin` and `end`.
    #[arg(value_name = "PROBE", value_hint = ValueHint::Other)]
    pub(crate) probe: String,
    /// What is done at each hit: `[/FILTER/] print(VALUE, ...); @NAME[KEY, ...] = count()`. Without it, the arguments are printed. More
    /// probes may follow, each with its clause.
    #[arg(value_name = "CLAUSE", value_hint = ValueHint::Other)]
    pub(crate) clauses: Vec<String>,
    /// Of the same name as the option of every command, whose letter is the process here.
    #[arg(id = "parsable", long = "parsable", hide = true, action = clap::ArgAction::SetTrue)]
    pub(crate) _parsable: bool,
}
