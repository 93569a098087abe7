//! The command line of `windlass inspect`.

use clap::{Args, ValueHint};

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Process id, or a core file.
    #[arg(value_name = "PID|CORE", value_hint = ValueHint::FilePath)]
    pub(crate) target: String,
    /// One command; without it, commands are read from standard input, one a line.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
