//! What the broker tells about processes and channels, in sealed memory.
//!
//! # Model
//! A user gets the rows of his own processes and of channels that one of them has an end of; root gets all. What stands in
//! channels is what their processes wrote.
//!
//! # Not done
//! The broker does not read the memory of processes for sockets that are not joined: one that maps a file of a
//! file system of its own could make it wait. Whoever lists does that himself, with [`ProcessRow::report`].

use windlass_channel::layout::{STATUS_BYTES, STATUS_LINES};
use windlass_listing::{ChannelRow, ProcessRow, ROW_BYTES, Row};

use crate::limits::{ROWS_MAX, ROWS_PER_USER_MAX};
use crate::processes::{Process, Processes};
use crate::slabs::Slabs;

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

/// All rows that a user may see; all that there are without one.
pub(crate) fn rows(processes: &Processes, slabs: &Slabs, uid: Option<u32>) -> Vec<u8> {
    let is_his = |slot: &u16| {
        let process = processes.get(*slot);
        uid.is_none() || process.map(|process| process.who.key.uid) == uid
    };
    let rows_max = uid.map_or(ROWS_MAX, |_| ROWS_PER_USER_MAX);
    let mut bytes = Vec::new();
    let own = processes.iter().filter(|(slot, _)| is_his(slot));
    for (slot, process) in own.take(rows_max) {
        let who = &process.who;
        let row = ProcessRow {
            slot,
            pid: who.pid(),
            uid: who.key.uid,
            netns: who.netns,
            report: who.report,
            slabs: u32::try_from(process.slabs.len()).unwrap_or(u32::MAX),
            dead: process.dead,
            status: status_lines(process),
            comm: process.comm.clone(),
        };
        Row::Process(row).encode(&mut bytes);
    }
    let is_seen = |slots: [u16; 2]| slots.iter().any(is_his);
    for (id, slab) in slabs.iter().filter(|(_, slab)| is_seen(slab.slots)) {
        let channels = slab.map.channels();
        for (chan, words) in channels.filter_map(|chan| Some((chan, slab.map.chan(chan)?))) {
            if bytes.len() >= rows_max * ROW_BYTES {
                return bytes;
            }
            let row = ChannelRow {
                slab: id,
                chan,
                now: windlass_channel::sys::cycles(),
                words,
            };
            Row::Channel(Box::new(row)).encode(&mut bytes);
        }
    }
    bytes
}
