//! The running daemon: the words of other commands, asked over its control socket.

use clap::Parser;

use crate::Session;
use crate::failure::Failure;
use crate::options::Options;

use super::WHAT;
use super::commands::Call;

/// The daemon's process.
pub(super) fn pid(session: &mut Session<'_>) -> Result<u32, Failure> {
    let daemon = session.client(WHAT)?.daemon();
    Ok(daemon.map_err(|error| Failure::of(WHAT, error))?.pid)
}

/// Answers as `windlass WORDS ARGUMENTS` does.
pub(super) fn ask(
    session: &mut Session<'_>,
    words: &[&str],
    call: &Call<'_>,
) -> Result<(), Failure> {
    let all = ["windlass"].iter().chain(words).copied();
    let all = all.chain(call.rest.split_whitespace());
    let mut options = Options::try_parse_from(all).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default();
        let why = why.trim_start_matches("error: ").to_owned();
        Failure::usage(why, "\"help\" shows the arguments of each command")
    })?;
    options.global = session.options.clone();
    crate::dispatch(options, false, session.out)
}
