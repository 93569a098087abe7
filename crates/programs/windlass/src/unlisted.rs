//! What no broker lists: accelerated processes that have asked none for anything yet, or whose broker has ended, and connections
//! that were joined with a broker before.
//!
//! # Model
//! A process is found by its mappings in `/proc`: the library, and the shared memory of its records, whose first word
//! tells it from others. Its joined sockets name a slab and a channel. The words of that channel are copied out of the
//! process's memory, and read as the broker reads its own. Only processes that would meet the same brokers
//! count: those with the same `WINDLASS_SOCKETS`.
//!
//! # Limits
//! All this is read with the rights of the person who asks: `/proc/PID/mem` of another user's process, or under
//! `kernel.yama.ptrace_scope` 1 of any, is open to root alone. Such processes are shown as far as a broker lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{MemfdFlags, memfd_create};
use windlass_channel::layout::{CHAN_BYTES, CHANS, HEADER_BYTES, SLAB_BYTES};
use windlass_channel::snapshot::{ChanWords, MappedSlab};
use windlass_listing::{ChannelRow, ProcessRow};
use windlass_sys::identity;

use crate::run::LIBRARY;
use crate::sockets::{ARENA_MAGIC, Listing, RECORD_BYTES, RECORDS_MAX, Record, records};

/// What the broker calls the memory of slabs.
const SLAB_NAME: &str = "/memfd:windlass-slab";
/// Where the number of a slab stands.
const SLAB_ID_AT: u64 = 8;

/// What can be seen of the processes that are not among the listed ones. Connections of listed ones that their broker does not
/// know are added to its listing.
pub(crate) fn listing(listed: &mut [Listing]) -> Listing {
    let mut found = Listing::default();
    let mut seen: BTreeSet<u64> = listed
        .iter()
        .flat_map(|listing| &listing.channels)
        .flat_map(|channel| channel.words.ends.iter().map(|end| end.cookie))
        .collect();
    let mut known = BTreeSet::new();
    for Listing {
        processes,
        channels,
    } in listed
    {
        for row in processes.iter_mut().filter(|row| !row.dead) {
            known.insert(row.pid);
            let is_unseen = |record: &Record| record.is_joined && !seen.contains(&record.cookie);
            if records(row).is_some_and(|all| all.iter().any(is_unseen))
                && let Some(mappings) = Mappings::of(row.pid)
            {
                mappings.channels(row, &mut seen, channels);
            }
        }
    }
    let pids = identity::processes();
    for pid in pids.filter(|pid| !known.contains(pid)) {
        if let Some(mappings) = Mappings::of(pid)
            && let Some(mut process) = mappings.process()
        {
            mappings.channels(&mut process, &mut seen, &mut found.channels);
            found.processes.push(process);
        }
    }
    found
}

/// The memory of a process that has the library.
struct Mappings {
    pid: u32,
    memory: File,
    /// Where the records may be.
    arenas: Vec<u64>,
    /// Where slabs are, by their numbers; more than one broker may have given the same.
    slabs: Vec<(u32, u64)>,
}

impl Mappings {
    fn of(pid: u32) -> Option<Self> {
        let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
        let maps = String::from_utf8_lossy(&maps);
        if !maps.contains(LIBRARY) || !meets_our_brokers(pid) {
            return None;
        }
        let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
        let mut own = Self {
            pid,
            memory,
            arenas: Vec::new(),
            slabs: Vec::new(),
        };
        for line in maps.lines() {
            let Some((start, bytes)) = range(line) else {
                continue;
            };
            if line.contains(SLAB_NAME) {
                let mut id = [0; 4];
                let at = start.checked_add(SLAB_ID_AT)?;
                own.memory.read_exact_at(&mut id, at).ok()?;
                own.slabs.push((u32::from_le_bytes(id), start));
            } else if bytes == u64::from(RECORDS_MAX) * RECORD_BYTES as u64 {
                own.arenas.push(start);
            }
        }
        Some(own)
    }

    fn process(&self) -> Option<ProcessRow> {
        let is_arena = |at: &&u64| {
            let mut magic = [0; 8];
            let read = self.memory.read_exact_at(&mut magic, **at);
            read.is_ok() && u64::from_le_bytes(magic) == ARENA_MAGIC
        };
        let report = *self.arenas.iter().find(is_arena)?;
        Some(ProcessRow {
            slot: 0,
            pid: self.pid,
            uid: fs::metadata(format!("/proc/{}", self.pid)).ok()?.uid(),
            netns: 0,
            report,
            slabs: u32::try_from(self.slabs.len()).unwrap_or(u32::MAX),
            dead: false,
            status: 0,
            comm: identity::comm(self.pid)?,
        })
    }

    /// The channels of its joined sockets, as far as they have not been seen yet. They tell its slot, too.
    fn channels(
        &self,
        process: &mut ProcessRow,
        seen: &mut BTreeSet<u64>,
        rows: &mut Vec<ChannelRow>,
    ) {
        let mut copies: BTreeMap<u64, Option<Copy>> = BTreeMap::new();
        for record in records(process).unwrap_or_default() {
            if !record.is_joined {
                continue;
            }
            let side = usize::from(record.side & 1);
            let mappings = self.slabs.iter().filter(|(id, _)| *id == record.slab);
            let words = mappings.into_iter().find_map(|(_, at)| {
                let copy = copies
                    .entry(*at)
                    .or_insert_with(|| Copy::of(&self.memory, *at));
                let words = copy.as_ref()?.chan(&self.memory, record.channel)?;
                (words.ends[side].cookie == record.cookie).then_some(words)
            });
            let Some(words) = words else { continue };
            process.slot = words.ends[side].slot;
            if seen.insert(record.cookie) {
                seen.extend(words.ends.iter().map(|end| end.cookie));
                rows.push(ChannelRow {
                    slab: record.slab,
                    chan: record.channel,
                    now: 0,
                    words,
                });
            }
        }
    }
}

/// A copy of the words of a slab: its header, and the channels that were asked for.
struct Copy {
    at: u64,
    file: File,
    slab: MappedSlab,
}

impl Copy {
    fn of(memory: &File, at: u64) -> Option<Self> {
        let file = File::from(memfd_create("windlass-copy", MemfdFlags::CLOEXEC).ok()?);
        file.set_len(SLAB_BYTES as u64).ok()?;
        let mut header = [0; HEADER_BYTES];
        memory.read_exact_at(&mut header, at).ok()?;
        file.write_all_at(&header, 0).ok()?;
        let slab = MappedSlab::open(file.as_fd())?;
        Some(Self { at, file, slab })
    }

    fn chan(&self, memory: &File, chan: u16) -> Option<ChanWords> {
        let offset = (HEADER_BYTES + usize::from(chan) % CHANS * CHAN_BYTES) as u64;
        let mut words = [0; CHAN_BYTES];
        let at = self.at.checked_add(offset)?;
        memory.read_exact_at(&mut words, at).ok()?;
        self.file.write_all_at(&words, offset).ok()?;
        self.slab.chan(chan)
    }
}

/// Start and length of a mapping, from its line in `/proc/PID/maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    Some((start?, end?.checked_sub(start?)?))
}

/// Whether a process looks for brokers where this one does.
fn meets_our_brokers(pid: u32) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    let mut variables = environment.split(|byte| *byte == 0);
    let theirs = variables.find_map(|line| line.strip_prefix(b"WINDLASS_SOCKETS="));
    let ours = std::env::var_os("WINDLASS_SOCKETS");
    theirs.map(OsStr::from_bytes) == ours.as_deref()
}
