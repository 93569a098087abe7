//! `windlass sockets`: every socket of accelerated programs, as ss(8) lists the kernel's.
//!
//! # Model
//! The brokers that this user reaches say which processes and channels there are; [`unlisted`] finds those that no broker
//! lists. Sockets that are on no channel are in the library's own records, in the memory of each process. They are read
//! here, with the rights of the person who asks, and not by a broker, which a process could make wait. Their names come
//! from copies of the processes' descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlass_channel::client::Client;
use windlass_channel::snapshot::DirWords;
use windlass_channel::{EndInfo, Reason, unix};
use windlass_listing::{ChannelRow, ProcessRow, Row};
use windlass_sys::{identity, process};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::options::Repeat;
use crate::run::trusted;
use crate::statistics::{self, Keys, Sample};
use crate::unlisted;

const KEYS: Keys = Keys {
    name: &["pid", "cookie", "local", "peer"],
    counters: &[&[
        "ring_tx_bytes",
        "ring_rx_bytes",
        "kernel_tx_bytes",
        "kernel_rx_bytes",
    ]],
};

/// `windlass sockets`
pub(crate) fn show(session: &mut Session<'_>, how_often: &Repeat) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::SOCKETS)? else {
        return Ok(());
    };
    let started = Instant::now();
    statistics::repeat(session, &chosen, how_often, KEYS, |_| {
        let listing = listing("list sockets")?;
        let time_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Sample {
            time_ns,
            rows: rows(&listing),
        })
    })
}

/// The rows of all sockets, as far as brokers and processes tell; `None` if there is neither.
pub(crate) fn now() -> Result<Option<Vec<Value>>, Failure> {
    match listing("list sockets") {
        Ok(listing) => Ok(Some(rows(&listing))),
        Err(failure) if failure.code() == Some(ErrorCode::Unreachable) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// What one broker says.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) processes: Vec<ProcessRow>,
    pub(crate) channels: Vec<ChannelRow>,
}

/// What each broker that this user reaches says.
pub(crate) fn listing(what: &str) -> Result<Vec<Listing>, Failure> {
    let uid = process::effective_uid();
    let variable = |name| std::env::var_os(name);
    let paths = windlass_listing::paths(
        variable("WINDLASS_SOCKETS"),
        variable("XDG_RUNTIME_DIR"),
        uid,
    );
    let mut found = Vec::new();
    for path in paths.iter().filter(|path| trusted(path, uid).is_ok()) {
        let client = Client::new();
        client.locate(Some(path.as_os_str().as_encoded_bytes()), None, uid);
        let Ok((memory, bytes)) = client.list() else {
            continue;
        };
        let mut text = vec![0; usize::try_from(bytes).unwrap_or(0)];
        File::from(memory).read_exact_at(&mut text, 0)?;
        let mut listing = Listing::default();
        for row in Row::decode_all(&text) {
            match row {
                Row::Process(row) => listing.processes.push(row),
                Row::Channel(row) => listing.channels.push(*row),
            }
        }
        found.push(listing);
    }
    let unlisted = unlisted::listing(&mut found);
    if !unlisted.processes.is_empty() {
        found.push(unlisted);
    }
    if found.is_empty() {
        let tried: Vec<_> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let why = format!(
            "no broker of accelerated sockets listens at {}",
            tried.join(" or ")
        );
        let todo = "\"windlass run PROGRAM\" starts one";
        return Err(Failure::new(ErrorCode::Unreachable, what, why, todo));
    }
    Ok(found)
}

fn rows(listings: &[Listing]) -> Vec<Value> {
    let channels = listings.iter().flat_map(|listing| &listing.channels);
    let ends = channels.flat_map(|channel| &channel.words.ends);
    let mut joined = ends.map(|end| end.cookie).collect();
    let all = listings.iter();
    all.flat_map(|listing| of_broker(listing, listings, &mut joined))
        .collect()
}

/// The rows of one listing; `joined`: sockets that have a row, or get one as an end of a channel.
fn of_broker(listing: &Listing, all: &[Listing], joined: &mut BTreeSet<u64>) -> Vec<Value> {
    let by_slot: BTreeMap<u16, &ProcessRow> = listing
        .processes
        .iter()
        .map(|row| (row.slot, row))
        .collect();
    // The other end of a connection from before the broker may be listed apart.
    let of_end = |end: &EndInfo| {
        let mut rows = all.iter().flat_map(|listing| &listing.processes);
        let is_it = |row: &&ProcessRow| (row.slot, row.pid) == (end.slot, end.pid);
        by_slot.get(&end.slot).copied().or_else(|| rows.find(is_it))
    };
    let mut rows = Vec::new();
    for channel in &listing.channels {
        for side in [0, 1] {
            rows.push(end(channel, side, of_end));
        }
    }
    for process in listing
        .processes
        .iter()
        .filter(|process| !process.dead && process.report != 0)
    {
        let Some(records) = records(process) else {
            continue;
        };
        let mut names = None;
        for record in records {
            // Processes that were forked share their records.
            if record.cookie == 0 || !joined.insert(record.cookie) {
                continue;
            }
            let names = names.get_or_insert_with(|| names_of(process.pid));
            rows.push(plain(process, &record, names.get(&record.cookie)));
        }
    }
    rows
}

/// What an end is called: address and port, or, of a Unix socket, its inode as `/proc/PID/fd` shows it.
pub(crate) fn end_name(name: SocketAddr) -> String {
    match unix::inode_in(name) {
        Some(inode) => format!("socket:[{inode}]"),
        None => name.to_string(),
    }
}

/// One end of a channel.
fn end<'a>(
    channel: &ChannelRow,
    side: usize,
    of_end: impl Fn(&EndInfo) -> Option<&'a ProcessRow>,
) -> Value {
    let words = &channel.words;
    let (own, peer) = (&words.ends[side], &words.ends[1 - side]);
    let (tx, rx) = (&words.dirs[side], &words.dirs[1 - side]);
    let joined = own.join == 2 && peer.join == 2;
    let on_ring = joined && (tx.may_ring() || rx.may_ring());
    let reason = match (joined, tx.reason(), rx.reason()) {
        (true, Reason::None, reason) | (true, reason, _) => reason,
        (false, Reason::None, Reason::None) => Reason::Young,
        (false, Reason::None, reason) | (false, reason, _) => reason,
    };
    let (process, peer_process) = (of_end(own), of_end(peer));
    let kind = match unix::inode_in(own.local) {
        Some(_) => "unix-stream",
        None => "tcp",
    };
    let (tx, rx) = (Bytes::of(tx, kind), Bytes::of(rx, kind));
    json!({
        "local": end_name(own.local), "peer": end_name(own.peer),
        "kind": kind,
        "pid": own.pid, "comm": process.map(|row| &row.comm), "uid": process.map(|row| row.uid),
        "peer_pid": peer.pid, "peer_comm": peer_process.map(|row| &row.comm),
        "state": if on_ring { "ring" } else { "kernel" },
        "reason": reason.word(), "explanation": reason.text(),
        "ring_tx_bytes": tx.ring, "ring_rx_bytes": rx.ring,
        "kernel_tx_bytes": tx.kernel_sent, "kernel_rx_bytes": rx.kernel_taken,
        "tx_queue_bytes": tx.queue, "rx_queue_bytes": rx.queue,
        "cookie": own.cookie, "slab": channel.slab, "channel": channel.chan, "side": side,
    })
}

/// Bytes of one direction.
struct Bytes {
    ring: u64,
    kernel_sent: u64,
    kernel_taken: u64,
    /// Unread, in ring and kernel.
    queue: u64,
}

impl Bytes {
    fn of(dir: &DirWords, kind: &str) -> Self {
        // The kernel does not count what goes by a Unix socket: only what went since the join is known.
        let start = if kind == "tcp" { 0 } else { unix::START };
        Self {
            ring: dir.ring_total(),
            kernel_sent: dir.k_sent.saturating_sub(start),
            kernel_taken: dir.krecv.saturating_sub(start),
            queue: dir.ring_queue().saturating_add(dir.kernel_queue()),
        }
    }
}

/// A socket that is on no channel.
fn plain(process: &ProcessRow, record: &Record, names: Option<&Names>) -> Value {
    let name = |name: Option<SocketAddr>| name.map(|name| name.to_string());
    let reason = match Reason::from_u8(record.reason) {
        Reason::None => Reason::Young,
        reason => reason,
    };
    json!({
        "local": name(names.and_then(|names| names.local)), "peer": name(names.and_then(|names| names.peer)),
        "kind": record.kind, "pid": process.pid, "comm": process.comm, "uid": process.uid,
        "peer_pid": null, "peer_comm": null, "state": "kernel",
        "reason": reason.word(), "explanation": reason.text(),
        "ring_tx_bytes": record.ring_sent, "ring_rx_bytes": record.ring_received,
        "kernel_tx_bytes": record.kernel_sent, "kernel_rx_bytes": record.kernel_received,
        "tx_queue_bytes": null, "rx_queue_bytes": null,
        "cookie": record.cookie, "slab": null, "channel": null, "side": null,
    })
}

/// What the library notes of a socket. The layout is that of `record.rs` of the preload library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    kind: &'static str,
    pub(crate) is_joined: bool,
    pub(crate) cookie: u64,
    pub(crate) slab: u32,
    pub(crate) channel: u16,
    pub(crate) side: u8,
    reason: u8,
    ring_sent: u64,
    ring_received: u64,
    kernel_sent: u64,
    kernel_received: u64,
}

/// First word of the records.
pub(crate) const ARENA_MAGIC: u64 = u64::from_le_bytes(*b"wlsockr1");
pub(crate) const RECORD_BYTES: usize = 128;
/// Records that a process has room for.
pub(crate) const RECORDS_MAX: u32 = 262_144;
/// Records read at once.
const BATCH: usize = 512;
/// `flag::LISTENS` of the records: nothing to accelerate.
const LISTENS: u32 = 1 << 5;
/// The engine's flag of the records: slab, channel and side are in it.
const JOINED: u32 = 1 << 8;

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().unwrap_or([0; N])
}

impl Record {
    fn read(bytes: &[u8]) -> Option<Self> {
        let kind = match u32::from_le_bytes(word(bytes, 0)) as u8 {
            1 => "tcp",
            2 => "unix-stream",
            _ => return None,
        };
        let flags = u32::from_le_bytes(word(bytes, 4));
        if flags & LISTENS != 0 {
            return None;
        }
        let long = |at| u64::from_le_bytes(word(bytes, at));
        Some(Self {
            kind,
            is_joined: flags & JOINED != 0,
            cookie: long(16),
            slab: u32::from_le_bytes(word(bytes, 24)),
            channel: u16::from_le_bytes(word(bytes, 28)),
            side: u8::from_le_bytes(word(bytes, 30)),
            reason: u8::from_le_bytes(word(bytes, 31)),
            ring_sent: long(40),
            ring_received: long(48),
            kernel_sent: long(56),
            kernel_received: long(64),
        })
    }
}

/// The records of a process; `None` if they may not be read, or are none.
pub(crate) fn records(process: &ProcessRow) -> Option<Vec<Record>> {
    let memory = File::open(format!("/proc/{}/mem", process.pid)).ok()?;
    let mut head = [0; 16];
    memory.read_exact_at(&mut head, process.report).ok()?;
    if u64::from_le_bytes(word(&head, 0)) != ARENA_MAGIC {
        return None;
    }
    let span = u32::from_le_bytes(word(&head, 12)).min(RECORDS_MAX) as usize;
    let mut records = Vec::new();
    let mut space = vec![0; BATCH * RECORD_BYTES];
    for first in (0..span).step_by(BATCH) {
        let at = process.report.checked_add((first * RECORD_BYTES) as u64)?;
        let room = space.get_mut(..BATCH.min(span - first) * RECORD_BYTES)?;
        memory.read_exact_at(room, at).ok()?;
        // The head stands in the place of the first one.
        let skip = usize::from(first == 0);
        records.extend(
            room.chunks_exact(RECORD_BYTES)
                .skip(skip)
                .filter_map(Record::read),
        );
    }
    Some(records)
}

/// The names of a socket.
#[derive(Debug, Clone, Copy)]
struct Names {
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
}

/// The names of a process's sockets, by their cookies, as far as copies of them can be taken.
fn names_of(pid: u32) -> BTreeMap<u64, Names> {
    let mut names = BTreeMap::new();
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pidfd) = id.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok()) else {
        return names;
    };
    for number in identity::descriptors(pid).filter(|fd| identity::is_socket(pid, *fd)) {
        let Ok(socket) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let local = rustix::net::getsockname(&socket).ok();
        let peer = rustix::net::getpeername(&socket).ok().flatten();
        let [local, peer] =
            [local, peer].map(|name| name.and_then(|name| SocketAddr::try_from(name).ok()));
        if let Ok(cookie) = socket_cookie(&socket) {
            names.insert(cookie, Names { local, peer });
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page about accelerated sockets explains every reason, with its own sentence.
    #[test]
    fn reasons_are_documented() {
        let page = include_str!("../../../../docs/sockets.md");
        for reason in Reason::ALL
            .iter()
            .filter(|reason| !matches!(reason, Reason::None | Reason::Unknown))
        {
            let row = format!("| `{}` | {}", reason.word(), reason.text());
            assert!(page.contains(&row), "docs/sockets.md lacks: {row}");
        }
    }

    /// An end over IP is its address, and one of a Unix socket its inode.
    #[test]
    fn ends_have_names() {
        let name = "127.0.0.1:6379".parse().expect("a name");
        assert_eq!(end_name(name), "127.0.0.1:6379");
        assert_eq!(end_name(unix::name(77)), "socket:[77]");
    }

    /// A record is read as the library writes it; free ones, epoll instances and listeners are left out.
    #[test]
    fn records_are_read() {
        let mut bytes = [0; RECORD_BYTES];
        assert_eq!(Record::read(&bytes), None, "free");
        bytes[0] = 1;
        bytes[16..24].copy_from_slice(&77_u64.to_le_bytes());
        bytes[31] = Reason::Stdio as u8;
        bytes[56..64].copy_from_slice(&5_u64.to_le_bytes());
        let record = Record::read(&bytes).expect("a record");
        assert_eq!(
            (record.kind, record.cookie, record.kernel_sent),
            ("tcp", 77, 5)
        );
        assert_eq!(Reason::from_u8(record.reason), Reason::Stdio);
        bytes[4] = LISTENS as u8;
        assert_eq!(Record::read(&bytes), None, "listens");
        (bytes[0], bytes[4]) = (3, 0);
        assert_eq!(Record::read(&bytes), None, "epoll");
        assert_eq!(
            Record::read(&[1, 0, 0, 0]).map(|record| record.cookie),
            Some(0),
            "cut off"
        );
    }
}
