//! What a capture costs the frames of the link that is captured.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::host::require;
use super::peers::{Plug, Subject};
use super::rate::{self, Case, Run, Turns};
use super::table::write_json;
use super::tcpdump;

/// Frames of 64 bytes over memif while `windlass snoop` captures the sender into /dev/null, beside the same without it.
#[derive(Args, Debug)]
pub struct Options {
    /// What is captured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "off,headers,nothing"
    )]
    captures: Vec<Captured>,
    /// What is kept of each link at its own full rate, beside tcpdump at the kernel's bridge, instead
    #[arg(long)]
    tcpdump: bool,
    #[command(flatten)]
    turns: Turns,
}

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Captured {
    /// There is no capture.
    Off,
    /// 64 bytes of each frame.
    Headers,
    /// A filter matches no frame.
    Nothing,
}

impl Captured {
    /// The words behind `snoop -d LINK`; none without a capture.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::Headers => Some("-s 64"),
            Self::Nothing => Some("-s 64 tcp port 80"),
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// As [`rate::take_turns`].
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    if options.tcpdump {
        require(&[
            ("cc", "gcc"),
            ("ip", "iproute2"),
            ("tcpdump", "tcpdump"),
            ("taskset", "util-linux"),
        ])?;
        return write_json(json, &tcpdump::run(&options.turns, programs)?);
    }
    let run = Run {
        turns: &options.turns,
        subjects: &[Subject::Windlass],
        cases: options
            .captures
            .iter()
            .copied()
            .map(Case::Captured)
            .collect(),
        plug: Plug::Memif,
    };
    rate::take_turns(&run, programs, json)
}
