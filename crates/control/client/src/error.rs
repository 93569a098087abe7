//! Why a call to the daemon did not succeed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use windlass_api::{ErrorBody, ErrorCode};

use crate::socket::Unsafe;

/// Why a call to the daemon did not succeed.
#[derive(Debug, Error)]
pub enum Error {
    /// No path was given, and no socket lies at any of the usual ones.
    #[error("there is no control socket at {}", list(.0))]
    NoSocket(Vec<PathBuf>),
    /// The socket is not one that a careful client connects to.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// The socket could not be connected to: nobody listens, or it may not be opened.
    #[error("{}: {source}", path.display())]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon answered, and did not do it.
    #[error("{0}")]
    Refused(ErrorBody),
    /// The answer did not come in time. What was asked may still be done.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The connection broke before the answer was complete.
    #[error("the daemon closed the connection: {0}")]
    Broken(String),
    /// The answer is not what this client understands: perhaps the daemon is of another version.
    #[error("the daemon's answer to {request} was not understood: {reason}")]
    Answer {
        /// Method and path.
        request: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" or ")
}

impl Error {
    /// The code of it, from which the exit code of a command follows.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoSocket(_) | Self::Unsafe(_) | Self::Broken(_) => ErrorCode::Unreachable,
            Self::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorCode::Forbidden,
                _ => ErrorCode::Unreachable,
            },
            Self::Refused(body) => body.code,
            Self::Timeout(_) => ErrorCode::Timeout,
            Self::Answer { .. } => ErrorCode::Malformed,
        }
    }
}
