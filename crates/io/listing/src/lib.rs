//! Where brokers of accelerated sockets are asked, and what they tell about processes and channels.
//!
//! # Purpose
//! `windlass-broker` writes listings and the `windlass` command reads them. What both must agree on is here, so that neither needs
//! the other.
//!
//! # Where it sits
//! ```text
//!   windlass-broker --rows, in sealed memory--> windlass (sockets, stackdump, run)
//!        |
//!        '---jobs and answers, [plain]--- its helpers
//! ```
//!
//! # Model
//! A row is [`ROW_BYTES`] long: its kind, then its fields, each in the bytes of its type ([`plain::Plain`]).
//!
//! # Failure modes
//! What is not a row is left out; bytes that are cut off or odd are values or nothing, never a panic.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

pub mod plain;

use std::ffi::OsString;
use std::path::PathBuf;

use windlass_channel::EndInfo;
use windlass_channel::snapshot::{ChanWords, DirWords};

use crate::plain::Plain;

/// Directory of the socket of root's broker.
pub const SYSTEM_DIRECTORY: &str = "/run/windlass";
/// Name of the broker's socket in its directory.
pub const SOCKET_NAME: &str = "sockets.sock";

/// Bytes of a row.
pub const ROW_BYTES: usize = 512;
const PROCESS: u8 = 1;
const CHANNEL: u8 = 2;
/// Bytes of a process's name in a row; the kernel has no more.
const COMM_BYTES: usize = 16;

/// A process that registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its slot.
    pub slot: u16,
    /// Its id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// `SO_NETNS_COOKIE` of its network namespace.
    pub netns: u64,
    /// Address in it of what may be read about its sockets, 0: nothing.
    pub report: u64,
    /// Slabs that it has.
    pub slabs: u32,
    /// It has ended; slabs name it still.
    pub dead: bool,
    /// The lines of its status page that are not 0, a bit each: line 0 is the process, the others its epoll instances that sleep.
    pub status: u64,
    /// What it is called.
    pub comm: String,
}

/// A channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelRow {
    /// Its slab.
    pub slab: u32,
    /// Its index there.
    pub chan: u16,
    /// The time-stamp counter when the words were read.
    pub now: u64,
    /// What it says.
    pub words: ChanWords,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// A process.
    Process(ProcessRow),
    /// A channel.
    Channel(Box<ChannelRow>),
}

plain!(ProcessRow: slot, pid, uid, netns, report, slabs, dead, status, comm);
plain!(ChannelRow: slab, chan, now, words);
plain!(ChanWords: news, ends, dirs);
plain!(EndInfo: join, cookie, netns, local, peer, slot, pid, fd, connected);
plain!(
    DirWords: head, k_sent, pos, tail, krecv, reclaimed, pushed_at, write_lock, read_lock, stream, uncounted, owed, mark, attn,
    flags, slot, ring_bytes
);

/// A name: what the kernel has room for.
impl Plain for String {
    fn put(&self, to: &mut Vec<u8>) {
        let mut name = [0; COMM_BYTES];
        name.iter_mut()
            .zip(self.bytes())
            .for_each(|(to, from)| *to = from);
        name.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let bytes = <[u8; COMM_BYTES]>::take(from)?;
        let name = bytes.split(|byte| *byte == 0).next();
        Some(Self::from_utf8_lossy(name.unwrap_or_default()).into_owned())
    }
}

impl Row {
    /// Adds the row to the memory of a listing.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut row = match self {
            Self::Process(row) => (PROCESS, row.to_bytes()),
            Self::Channel(row) => (CHANNEL, row.to_bytes()),
        };
        debug_assert!(row.1.len() < ROW_BYTES, "a row is too long");
        row.1.resize(ROW_BYTES - 1, 0);
        bytes.push(row.0);
        bytes.append(&mut row.1);
    }

    /// The rows in the memory of a listing; what is not one is left out.
    pub fn decode_all(bytes: &[u8]) -> Vec<Row> {
        let rows = bytes.chunks_exact(ROW_BYTES).filter_map(|row| {
            let (kind, mut fields) = row.split_first()?;
            match *kind {
                PROCESS => Some(Self::Process(Plain::take(&mut fields)?)),
                CHANNEL => Some(Self::Channel(Box::new(Plain::take(&mut fields)?))),
                _ => None,
            }
        });
        rows.collect()
    }
}

/// Where brokers listen, in the order in which they are tried: at `given` (`WINDLASS_SOCKETS`) alone if there is one, else root's,
/// then the user's in `$XDG_RUNTIME_DIR` and in `/tmp`.
///
/// # Examples
/// ```
/// let paths = windlass_listing::paths(None, Some("/run/user/7".into()), 7);
/// assert_eq!(paths[0].to_str(), Some("/run/windlass/sockets.sock"));
/// assert_eq!(paths[1].to_str(), Some("/run/user/7/windlass/sockets.sock"));
/// assert_eq!(paths[2].to_str(), Some("/tmp/windlass-7/sockets.sock"));
/// ```
pub fn paths(given: Option<OsString>, xdg_runtime_dir: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return vec![given.into()];
    }
    let mut paths = vec![PathBuf::from(SYSTEM_DIRECTORY).join(SOCKET_NAME)];
    let xdg = xdg_runtime_dir
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute());
    paths.extend(xdg.map(|dir| dir.join("windlass").join(SOCKET_NAME)));
    paths.push(PathBuf::from(format!("/tmp/windlass-{uid}")).join(SOCKET_NAME));
    paths
}
