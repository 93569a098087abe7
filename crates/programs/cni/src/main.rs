//! `windlass-cni`: the CNI plugin.
//!
//! # Purpose
//! Gives a container an interface whose other end is a VNIC on a bridge of windlassd, by the Container Network Interface
//! (<https://www.cni.dev/docs/spec/>), versions 0.3.1 to 1.1.0.
//!
//! # Where it sits
//! ```text
//! runtime (podman, containerd) --environment, JSON on stdin--> windlass-cni --HTTP over a Unix socket--> windlassd
//!                                                                  |  \--exec--> another plugin for addresses (IPAM)
//!                                                                  v
//!                                              DATADIR/NETWORK.json: what was given to whom
//! ```
//!
//! # Model
//! A process of one thread for each call, without a runtime. What a container gets is written down in the ledger
//! ([`ledger`]) first, then made, and struck out when it is gone. So a plugin or daemon that is killed at any instant leaves
//! nothing that DEL or GC does not find, and a leftover is replaced by the next ADD of the same interface.
//!
//! Addresses that hosts share are in the registry of an overlay ([`shared`]): the daemon claims them before the VNIC is made, and those
//! of no VNIC lapse.
//!
//! The VNIC's name follows from network, container and interface ([`naming`]), so that DEL needs no record to delete it.
//!
//! # Failure modes
//! An ADD that fails undoes what it has made. A DEL that cannot reach the daemon writes down what it owes and succeeds: the
//! next call that reaches the daemon pays. Errors have the codes of the specification ([`failure`]).

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod call;
mod config;
mod daemon;
mod delegate;
mod failure;
mod interface;
mod ledger;
mod naming;
mod outcome;
mod ranges;
mod shared;
mod verbs;

use std::io::{Read, Write};
use std::process::ExitCode;

use failure::{Code, Failure};

/// Largest configuration that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

fn main() -> ExitCode {
    let mut text = Vec::new();
    let input = std::io::stdin().lock().take(CONFIG_BYTES_MAX);
    let done = match { input }.read_to_end(&mut text) {
        Ok(_) => verbs::run(&text),
        Err(error) => Err(Failure::new(Code::Io, format!("stdin: {error}"))),
    };
    let (json, code) = match done {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(json)) => (json, ExitCode::SUCCESS),
        Err(failure) => (failure.json(&config::version_of(&text)), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{json}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}
