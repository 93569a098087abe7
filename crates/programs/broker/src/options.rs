//! The command line of `windlass-broker`.

use std::path::PathBuf;

use clap::Parser;

/// Joins programs that "windlass run" started: gives each pair the memory through which their sockets talk.
///
/// As root it serves every user of the host, by the rules of /etc/windlass/sockets.conf. As another user it serves that
/// user. "windlass run" starts one for its user where root's does not answer.
#[derive(Debug, Clone, Parser)]
#[command(name = "windlass-broker", version)]
pub struct Args {
    /// Listen at this socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/windlass/sockets.sock",
        env = "WINDLASS_SOCKETS"
    )]
    pub socket: PathBuf,
    /// Serve this user only, and end when no program has needed the broker for --linger-ms
    #[arg(long)]
    pub private: bool,
    /// How long a private broker stays without a program, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 60_000,
        env = "WINDLASS_LINGER_MS"
    )]
    pub linger_ms: u64,
    /// Log each process and rescue
    #[arg(short, long)]
    pub verbose: bool,
    /// Read /etc/windlass/sockets.conf, say whether it is good, and end
    #[arg(long)]
    pub check_config: bool,
}
