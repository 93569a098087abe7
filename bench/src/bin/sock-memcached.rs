//! A load for memcached.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use windlass_bench::sock::memcached;

fn main() -> ExitCode {
    match memcached::run(&memcached::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sock-memcached: {error:#}");
            ExitCode::FAILURE
        }
    }
}
