//! Options of `memory`.

use clap::Args;
use windlass_api::Name;

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// List the regions of memory through which the daemon forwards, of these members and bridges; all if there is none: which pages
    /// were asked for, and which the kernel gave.
    #[arg(long, value_name = "MEMBER", num_args = 0.., required = true)]
    pub(crate) regions: Vec<Name>,
}
