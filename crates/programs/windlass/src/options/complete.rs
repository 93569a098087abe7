//! The command line of `windlass __complete`.

use clap::Args;

/// Arguments of `__complete`.
#[derive(Debug, Args)]
pub(crate) struct CompleteArgs {
    /// zone, bridge, uplink, vnic, member or flow; attach, attr, setting, property, program or inspection.
    pub(crate) kind: String,
    /// The word as far as it is typed.
    #[arg(default_value = "")]
    pub(crate) word: String,
    /// The words before it.
    #[arg(last = true)]
    pub(crate) line: Vec<String>,
}
