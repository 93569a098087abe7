//! Bytes one way between two processes, with the time that both spend.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use windlass_bench::sock::stream;

/// Sends bytes one way between two processes, and prints what both ends spent
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    end: stream::End,
}

fn main() -> ExitCode {
    match stream::run(&Options::parse().end) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sock-stream: {error:#}");
            ExitCode::FAILURE
        }
    }
}
