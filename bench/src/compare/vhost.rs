//! vhost-user to vhost-user: guests of each ring layout, through one forwarding core.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgAction, Args};

use super::peers::Plug;
use super::rate::{self, Guest};
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
