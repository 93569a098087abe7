//! Arguments of captures: `snoop`, and `extcap` for Wireshark.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use windlass_api::{CaptureDirection, Name};

use super::number;

/// Arguments of `snoop`.
#[derive(Debug, Args)]
pub(crate) struct SnoopArgs {
    /// The VNIC, uplink or bridge.
    #[arg(short = 'd', long = "link", value_name = "LINK")]
    pub(crate) link: Name,
    /// Only if the VNIC is in this zone; "global" is none.
    #[arg(short, long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
    /// Write a pcapng file; "-" is the standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) write: Option<PathBuf>,
    /// End after so many frames.
    #[arg(short, long, value_name = "COUNT", value_parser = number(1..))]
    pub(crate) count: Option<u64>,
    /// Capture so many bytes of each frame, 0 for all [default: all].
    #[arg(short = 's', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=262_144))]
    pub(crate) length: Option<u32>,
    /// Begin another file after so many million bytes.
    #[arg(short = 'C', long, value_name = "MEGABYTES", requires = "write",
          value_parser = number(1..=1_000_000))]
    pub(crate) file_size: Option<u64>,
    /// Write so many files in turn, the first again after the last.
    #[arg(short = 'W', long, value_name = "FILES", requires = "file_size",
          value_parser = number(1..=1_000_000))]
    pub(crate) file_count: Option<u64>,
    /// Which frames of a VNIC: those that its guest or program receives (in), sends (out), or both (inout); of an uplink the host's.
    #[arg(short = 'Q', long, value_name = "WAY", default_value = "inout")]
    pub(crate) direction: Way,
    /// Capture frames that died, too, with the reason.
    #[arg(long)]
    pub(crate) drops: bool,
    /// Write the link header and fields of the IP header, too.
    #[arg(short, long, conflicts_with = "write")]
    pub(crate) verbose: bool,
    /// Write the bytes of each frame, too.
    #[arg(short = 'x', long = "hex", conflicts_with = "write")]
    pub(crate) bytes: bool,
    /// Room for frames that are not read yet, in KiB for each worker.
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pub(crate) buffer: u32,
    /// Which frames, as in: tcp port 80.
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
}

/// Arguments of `extcap`.
#[derive(Debug, Args)]
pub(crate) struct ExtcapArgs {
    /// List links.
    #[arg(long = "extcap-interfaces")]
    pub(crate) interfaces: bool,
    /// The link that is asked about.
    #[arg(long = "extcap-interface", value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// List its link types.
    #[arg(long = "extcap-dlts")]
    pub(crate) dlts: bool,
    /// List its options.
    #[arg(long = "extcap-config")]
    pub(crate) config: bool,
    /// Capture.
    #[arg(long)]
    pub(crate) capture: bool,
    /// The filter.
    #[arg(long = "extcap-capture-filter", value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// The named pipe to capture into.
    #[arg(long, value_name = "FIFO", value_hint = ValueHint::FilePath)]
    pub(crate) fifo: Option<PathBuf>,
    /// The version of who asks.
    #[arg(long = "extcap-version", value_name = "VERSION")]
    pub(crate) _version: Option<String>,
    /// As of snoop.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=262_144))]
    pub(crate) length: Option<u32>,
    /// As of snoop.
    #[arg(long, value_name = "WAY", default_value = "inout")]
    pub(crate) direction: Way,
    /// As of snoop.
    #[arg(long)]
    pub(crate) drops: bool,
    /// As of snoop.
    #[arg(long, value_name = "KIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pub(crate) buffer: u32,
}

/// Which frames are captured.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Way {
    /// Received.
    In,
    /// Sent.
    Out,
    /// All.
    Inout,
}

impl From<Way> for CaptureDirection {
    fn from(way: Way) -> Self {
        match way {
            Way::In => Self::In,
            Way::Out => Self::Out,
            Way::Inout => Self::InOut,
        }
    }
}
