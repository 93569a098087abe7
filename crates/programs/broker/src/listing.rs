//! What the broker tells about processes and channels: rows of fixed length, in sealed memory.
//!
//! # Model
//! A row is [`ROW_BYTES`] of little-endian words: its kind, then its fields. A user gets the rows of his own processes and of
//! channels that one of them has an end of; root gets all. What stands in channels is what their processes wrote.
//!
//! # Not done
//! The broker does not read the memory of processes for sockets that are not joined: one that maps a file of a
//! file system of its own could make it wait. Whoever lists does that himself, with [`ProcessRow::report`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use windlass_channel::EndInfo;
use windlass_channel::layout::{STATUS_BYTES, STATUS_LINES};
use windlass_channel::snapshot::{ChanWords, DirWords};

use crate::limits::{ROWS_MAX, ROWS_PER_USER_MAX};
use crate::processes::{Process, Processes};
use crate::slabs::Slabs;

/// Bytes of a row.
pub const ROW_BYTES: usize = 512;
const WORDS: usize = ROW_BYTES / 8;
const PROCESS: u64 = 1;
const CHANNEL: u64 = 2;
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

/// Fields one after the other, as words.
#[derive(Debug)]
struct Writer {
    words: [u64; WORDS],
    at: usize,
}

impl Writer {
    fn of(kind: u64) -> Self {
        let mut writer = Self {
            words: [0; WORDS],
            at: 0,
        };
        writer.put(kind);
        writer
    }

    fn put(&mut self, word: impl Into<u64>) {
        if let Some(to) = self.words.get_mut(self.at) {
            *to = word.into();
        }
        self.at += 1;
    }

    fn name(&mut self, name: SocketAddr) {
        let address = match name.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let bits = address.to_bits();
        self.put((bits >> 64) as u64);
        self.put(bits as u64);
        self.put(name.port());
    }

    fn end(&mut self, end: &EndInfo) {
        self.put(end.join);
        self.put(end.cookie);
        self.put(end.netns);
        self.name(end.local);
        self.name(end.peer);
        self.put(end.slot);
        self.put(end.pid);
        self.put(u64::from(end.fd.cast_unsigned()));
        self.put(u64::from(end.connected));
    }

    fn dir(&mut self, dir: &DirWords) {
        for word in [
            dir.head,
            dir.k_sent,
            dir.pos,
            dir.tail,
            dir.krecv,
            dir.reclaimed,
            dir.pushed_at,
        ] {
            self.put(word);
        }
        let pairs = [
            (dir.write_lock, dir.read_lock),
            (dir.stream, dir.uncounted),
            (dir.owed, dir.mark),
            (dir.attn, dir.flags),
            (dir.slot, dir.ring_bytes),
        ];
        for (low, high) in pairs {
            self.put(u64::from(low) | u64::from(high) << 32);
        }
    }

    fn finish(self, bytes: &mut Vec<u8>) {
        debug_assert!(self.at <= WORDS, "a row is too long");
        bytes.extend_from_slice(self.words.map(u64::to_le_bytes).as_flattened());
    }
}

struct Reader<'a>(std::slice::Iter<'a, u64>);

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }

    fn half(&mut self) -> u32 {
        self.word() as u32
    }

    fn name(&mut self) -> SocketAddr {
        let (high, low) = (self.word(), self.word());
        let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        SocketAddr::new(IpAddr::V6(address).to_canonical(), self.word() as u16)
    }

    fn end(&mut self) -> EndInfo {
        let mut end = EndInfo {
            join: self.half(),
            cookie: self.word(),
            netns: self.word(),
            local: self.name(),
            peer: self.name(),
            slot: self.word() as u16,
            pid: self.half(),
            fd: self.half().cast_signed(),
            connected: false,
        };
        let word = self.word();
        end.connected = word & 1 != 0;
        end
    }

    fn dir(&mut self) -> DirWords {
        let [head, k_sent, pos, tail, krecv, reclaimed, pushed_at] = [(); 7].map(|()| self.word());
        let pair = |word: u64| (word as u32, (word >> 32) as u32);
        let (write_lock, read_lock) = pair(self.word());
        let (stream, uncounted) = pair(self.word());
        let (owed, mark) = pair(self.word());
        let (attn, flags) = pair(self.word());
        let (slot, ring_bytes) = pair(self.word());
        DirWords {
            head,
            k_sent,
            pos,
            tail,
            krecv,
            reclaimed,
            pushed_at,
            write_lock,
            read_lock,
            stream,
            uncounted,
            owed,
            mark,
            attn,
            flags,
            slot,
            ring_bytes,
        }
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
        let mut to = Writer::of(match self {
            Self::Process(_) => PROCESS,
            Self::Channel(_) => CHANNEL,
        });
        match self {
            Self::Process(row) => {
                for word in [
                    row.slot.into(),
                    row.pid.into(),
                    row.uid.into(),
                    row.netns,
                    row.report,
                ] {
                    to.put(word);
                }
                to.put(row.slabs);
                to.put(row.dead);
                to.put(row.status);
                let mut comm = [0; COMM_BYTES];
                for (to, from) in comm.iter_mut().zip(row.comm.bytes()) {
                    *to = from;
                }
                for chunk in comm.as_chunks::<8>().0 {
                    to.put(u64::from_le_bytes(*chunk));
                }
            }
            Self::Channel(row) => {
                to.put(row.slab);
                to.put(row.chan);
                to.put(row.now);
                to.put(u64::from(row.words.news[0]) | u64::from(row.words.news[1]) << 1);
                row.words.ends.iter().for_each(|end| to.end(end));
                row.words.dirs.iter().for_each(|dir| to.dir(dir));
            }
        }
        to.finish(bytes);
    }

    /// The rows in the memory of a listing; what is not one is left out.
    pub fn decode_all(bytes: &[u8]) -> Vec<Row> {
        let rows = bytes.chunks_exact(ROW_BYTES).filter_map(|row| {
            let words: Vec<u64> = row
                .as_chunks::<8>()
                .0
                .iter()
                .copied()
                .map(u64::from_le_bytes)
                .collect();
            let mut from = Reader(words.iter());
            match from.word() {
                PROCESS => Some(Self::Process(process_row(&mut from))),
                CHANNEL => {
                    let (slab, chan, now) = (from.half(), from.word() as u16, from.word());
                    let news = from.word();
                    let ends = [from.end(), from.end()];
                    let dirs = [from.dir(), from.dir()];
                    let news = [news & 1 != 0, news & 2 != 0];
                    let words = ChanWords { news, ends, dirs };
                    Some(Self::Channel(Box::new(ChannelRow {
                        slab,
                        chan,
                        now,
                        words,
                    })))
                }
                _ => None,
            }
        });
        rows.collect()
    }
}

fn process_row(from: &mut Reader<'_>) -> ProcessRow {
    ProcessRow {
        slot: from.word() as u16,
        pid: from.half(),
        uid: from.half(),
        netns: from.word(),
        report: from.word(),
        slabs: from.half(),
        dead: from.word() != 0,
        status: from.word(),
        comm: {
            let bytes = [from.word(), from.word()].map(u64::to_le_bytes);
            let name = bytes.as_flattened().split(|byte| *byte == 0).next();
            String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
        },
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
