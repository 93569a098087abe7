//! Stands in a switch's place and moves descriptors only, between memif interfaces 0 and 1.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use windlass_bench::core::pin;
use windlass_bench::memif::Listener;
use windlass_bench::null_switch::serve;

/// Moves memif descriptors between interfaces 0 and 1 without touching a frame.
#[derive(Parser)]
struct Options {
    /// Where to listen
    #[arg(long)]
    socket: PathBuf,
    /// Core to run on
    #[arg(long, default_value_t = 0)]
    core: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    pin(options.core)?;
    serve(&Listener::bind(&options.socket)?)
}
