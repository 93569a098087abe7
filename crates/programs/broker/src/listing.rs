//! What the broker tells about processes and channels: rows of fixed length, in sealed memory.
//!
//! # Model
//! A row is [`ROW_BYTES`] long: its kind, then its fields. A user gets the rows of his own processes and of
//! channels that one of them has an end of; root gets all. What stands in channels is what their processes wrote.
//!
//! # Not done
//! The broker does not read the memory of processes for sockets that are not joined: one that maps a file of a
//! file system of its own could make it wait. Whoever lists does that himself, with [`ProcessRow::report`].

use windlass_channel::EndInfo;
use windlass_channel::layout::{STATUS_BYTES, STATUS_LINES};
use windlass_channel::snapshot::{ChanWords, DirWords};

use crate::limits::{ROWS_MAX, ROWS_PER_USER_MAX};
use crate::plain::{Plain, plain};
use crate::processes::{Process, Processes};
use crate::slabs::Slabs;

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

/// Which lines of a process's status page are not 0.
fn status_lines(process: &Process) -> u64 {
    let mut page = [0; STATUS_BYTES];
    // Memory of our own that cannot shrink: it is read whole, or not at all.
    let _ = rustix::io::pread(&process.status, &mut page, 0);
    let lines = page.chunks_exact(STATUS_BYTES / STATUS_LINES).enumerate();
    let raised = lines.filter(|(_, line)| line.iter().take(4).any(|byte| *byte != 0));
    raised.fold(0, |bits, (line, _)| {
        bits | 1_u64.checked_shl(line as u32).unwrap_or(0)
    })
}

impl ProcessRow {
    fn of(slot: u16, process: &Process) -> Self {
        let who = &process.who;
        Self {
            slot,
            pid: who.pid,
            uid: who.key.uid,
            netns: who.netns,
            report: who.report,
            slabs: u32::try_from(process.slabs.len()).unwrap_or(u32::MAX),
            dead: process.dead,
            status: status_lines(process),
            comm: process.comm.clone(),
        }
    }
}

impl Row {
    fn encode(&self, bytes: &mut Vec<u8>) {
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

/// All rows that a user may see; all that there are without one.
pub(crate) fn rows(processes: &Processes, slabs: &Slabs, uid: Option<u32>) -> Vec<u8> {
    let is_his = |slot: &u16| {
        let process = processes.get(*slot);
        uid.is_none() || process.map(|process| process.who.key.uid) == uid
    };
    let rows_max = if uid.is_none() {
        ROWS_MAX
    } else {
        ROWS_PER_USER_MAX
    };
    let mut bytes = Vec::new();
    let own = processes.iter().filter(|(slot, _)| is_his(slot));
    for (slot, process) in own.take(rows_max) {
        Row::Process(ProcessRow::of(slot, process)).encode(&mut bytes);
    }
    for (id, slab) in slabs
        .iter()
        .filter(|(_, slab)| slab.slots.iter().any(is_his))
    {
        for chan in slab.map.channels() {
            if bytes.len() >= rows_max * ROW_BYTES {
                return bytes;
            }
            let Some(words) = slab.map.chan(chan) else {
                continue;
            };
            let now = windlass_channel::sys::cycles();
            let row = ChannelRow {
                slab: id,
                chan,
                now,
                words,
            };
            Row::Channel(Box::new(row)).encode(&mut bytes);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row comes back as it was, and what is cut off or of an unknown kind is left out.
    #[test]
    fn rows_come_back() {
        let process = ProcessRow {
            slot: 65_000,
            pid: 4_000_000,
            uid: u32::MAX - 1,
            netns: 1 << 40,
            report: 0x7fff_1234_5000,
            slabs: 3,
            dead: true,
            status: 0x8000_0000_0000_0001,
            comm: "a-name-of-15-by".into(),
        };
        let end = EndInfo {
            join: 2,
            cookie: u64::MAX,
            netns: 4,
            local: "127.0.0.1:6379".parse().expect("name"),
            peer: "[fe80::1]:9".parse().expect("name"),
            slot: 7,
            pid: 99,
            fd: -1,
            connected: true,
        };
        let dir = DirWords {
            head: 1,
            k_sent: 2,
            pos: 3,
            tail: 4,
            krecv: 5,
            reclaimed: 6,
            pushed_at: 7,
            write_lock: 8,
            read_lock: 9,
            stream: 10,
            uncounted: 11,
            owed: 12,
            mark: 13,
            attn: 14,
            flags: 15,
            slot: u32::MAX,
            ring_bytes: 17,
        };
        let words = ChanWords {
            news: [false, true],
            ends: [end, EndInfo { slot: 8, ..end }],
            dirs: [dir, DirWords { head: 18, ..dir }],
        };
        let channel = ChannelRow {
            slab: 12,
            chan: 1023,
            now: 44,
            words,
        };
        let rows = [Row::Process(process), Row::Channel(Box::new(channel))];
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| row.encode(&mut bytes));
        bytes.extend([9; ROW_BYTES]);
        bytes.extend([1; ROW_BYTES - 1]);
        assert_eq!(Row::decode_all(&bytes), rows);
    }
}
