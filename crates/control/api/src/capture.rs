//! Captures: what the reader and the daemon say to each other.
//!
//! # Model
//! A capture has a connection of its own to the socket beside the control socket (its path with [`CAPTURE_SUFFIX`]). Each message is one
//! line of JSON.
//!
//! ```text
//! reader --CaptureRequest--> daemon
//! reader <--CaptureAnswer--- daemon: what is offered, with the descriptor of the memory that both share
//! reader ----empty line----> daemon: the memory is mapped; from now on nobody can map it to write, or punch holes into it
//! reader <--CaptureAnswer--- daemon: the capture has begun
//! reader <---empty line----- daemon: there are records, and the reader had said that it sleeps
//! reader <---CaptureEnd----- daemon: why it ends; then the connection ends
//! ```
//! The capture ends with the connection, from either side. A reader that wants all there is closes its half only: the daemon ends the capture, so that
//! no worker writes any more, and then the connection.

use serde::{Deserialize, Serialize};

use crate::error::ErrorBody;
use crate::name::Name;

/// What the capture socket's path has behind that of the control socket.
pub const CAPTURE_SUFFIX: &str = ".capture";
/// Bytes of a request at most.
pub const CAPTURE_REQUEST_BYTES_MAX: usize = 256 << 10;
/// Instructions of a filter at most, for who is no operator.
pub const TENANT_INSTRUCTIONS_MAX: usize = 256;

/// Which frames, as the link's user sees them: who is behind a VNIC, the host of an uplink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureDirection {
    /// Those that it receives.
    In,
    /// Those that it sends.
    Out,
    /// All.
    #[default]
    InOut,
}

/// What is to be captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// A VNIC, an uplink or a bridge.
    pub link: Name,
    /// The zone that the VNIC must be in; "global" is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Which frames; of a bridge it is all.
    #[serde(default)]
    pub direction: CaptureDirection,
    /// Frames that died, too.
    #[serde(default)]
    pub drops: bool,
    /// Bytes of each frame at most.
    pub snap: u32,
    /// Bytes of each worker's ring: a power of two.
    pub ring_bytes: u32,
    /// Classic BPF: code, jt, jf, k. None: all frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<(u16, u8, u8, u32)>,
}

/// What is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureKind {
    /// One VNIC or uplink.
    Member,
    /// What enters a bridge.
    Bridge,
}

/// The memory of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureOffer {
    /// Rings in it.
    pub workers: u32,
    /// Bytes of each.
    pub ring_bytes: u32,
}

/// A capture that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// What it is of.
    pub kind: CaptureKind,
    /// Names of reasons for which frames die, in the order of their numbers.
    pub reasons: Vec<String>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureAnswer {
    /// It can begin.
    Offered(CaptureOffer),
    /// It has begun.
    Started(CaptureStarted),
    /// It does not begin.
    Refused(ErrorBody),
}

/// The last message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureEnd {
    /// Why.
    pub ended: String,
}
