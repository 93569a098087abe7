//! vhost-user to vhost-user: guests of each ring layout, through one forwarding core.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgAction, Args};

use super::peers::{Plug, Subject};
use super::rate::{self, Case, Guest, Run, Turns};
use crate::vhost::Layout;

/// Two guests, through one forwarding core.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    rate: rate::Options,
    /// Layouts of the guests' rings
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "split,packed"
    )]
    layouts: Vec<Layout>,
    /// Mergeable receive buffers, or not
    #[arg(long, value_delimiter = ',', default_value = "false,true", action = ArgAction::Set)]
    mergeable: Vec<bool>,
    /// Guests that do not agree to use buffers in order
    #[arg(long)]
    any_order: bool,
    /// Descriptors of each ring, as a power of two
    #[arg(long, default_value_t = 10)]
    log2_ring: u8,
}

/// Measures and prints.
///
/// # Errors
/// As [`rate::run`].
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let mut guests = Vec::new();
    for &layout in &options.layouts {
        for &mergeable in &options.mergeable {
            guests.push(Guest {
                layout,
                mergeable,
                in_order: !options.any_order,
                log2_ring: options.log2_ring,
            });
        }
    }
    rate::run(&options.rate, Plug::Vhost, &guests, programs, json)
}

/// One frame there and one back.
#[derive(Args, Debug)]
pub struct TripOptions {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "windlass-polling,windlass,windlass-interrupt,testpmd,ovs"
    )]
    subjects: Vec<Subject>,
    /// Layouts of the guests' rings
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "split,packed"
    )]
    layouts: Vec<Layout>,
    /// Pauses between two trips, in microseconds: in the longer ones rings fall asleep
    #[arg(long, value_delimiter = ',', default_value = "0,500")]
    pauses: Vec<u64>,
    #[command(flatten)]
    turns: Turns,
}

/// Measures the time of single frames there and back, and prints.
///
/// # Errors
/// As [`rate::run`].
pub fn run_trip(options: &TripOptions, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let mut cases = Vec::new();
    for &layout in &options.layouts {
        for &pause_us in &options.pauses {
            let guest = Guest {
                layout,
                mergeable: false,
                in_order: true,
                log2_ring: 10,
            };
            cases.push(Case::Trip { guest, pause_us });
        }
    }
    let run = Run {
        turns: &options.turns,
        subjects: &options.subjects,
        cases,
        plug: Plug::Vhost,
    };
    rate::take_turns(&run, programs, json)
}
