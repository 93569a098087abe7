//! Half a round trip between two processes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use windlass_bench::sock::ping;

/// Sends a message there and back between two processes, and prints the times of half a round trip
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    end: ping::End,
}

fn main() -> ExitCode {
    match ping::run(&Options::parse().end) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sock-ping: {error:#}");
            ExitCode::FAILURE
        }
    }
}
