//! The command line of `windlass inspect`.

use clap::Args;

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Process id, a core file, or "windlass" for the running daemon.
    #[arg(id = "program", value_name = "PID|CORE")]
    pub(crate) target: String,
    /// One command; without it, commands are read from standard input, one a line.
    #[arg(id = "inspection", last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
