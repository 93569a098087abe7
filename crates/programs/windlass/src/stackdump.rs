//! `windlass stackdump`: every word of shared memory that decides where a byte goes.
//!
//! # Model
//! Everything is read twice, [`PAUSE`] apart: a lock that the same owner holds in both is held so long at least, and
//! the two
//! readings of the time-stamp counter give its rate. The words are what processes wrote; they need not make sense.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlass_channel::protocol::BROKER_SLOT;
use windlass_channel::snapshot::DirWords;
use windlass_listing::{ChannelRow, ProcessRow};

use crate::Session;
use crate::failure::Failure;
use crate::options::Processes;
use crate::sockets::{Listing, end_name, listing};
use crate::table::{Form, clean};

/// Time between the two readings.
const PAUSE: Duration = Duration::from_millis(5);
const WHAT: &str = "dump channels";

/// `windlass stackdump`
pub(crate) fn show(session: &mut Session<'_>, which: Processes) -> Result<(), Failure> {
    let (before, started) = (listing(WHAT)?, Instant::now());
    std::thread::sleep(PAUSE);
    let after = listing(WHAT)?;
    let between = started.elapsed();
    let mut brokers = Vec::new();
    for now in &after {
        let is_same = |old: &&Listing| {
            old.processes.first().map(|row| row.pid) == now.processes.first().map(|row| row.pid)
        };
        brokers.push(Dump::of(before.iter().find(is_same), now, which, between));
    }
    if let Processes::One(pid) = which
        && brokers.iter().all(|dump| dump.processes.is_empty())
    {
        let why = format!("process {pid} is not accelerated, or another user's");
        return Err(Failure::new(
            ErrorCode::NotFound,
            WHAT,
            why,
            "\"windlass sockets\" lists those that are",
        ));
    }
    for dump in &brokers {
        if session.form == Form::Json {
            continue;
        }
        dump.write(session.out)?;
    }
    if session.form == Form::Json {
        let rows: Vec<Value> = brokers.iter().flat_map(Dump::rows).collect();
        session.rows(&rows, &Vec::new())?;
    }
    Ok(())
}

/// What one broker says of the processes that are meant.
struct Dump<'a> {
    processes: Vec<&'a ProcessRow>,
    channels: Vec<(&'a ChannelRow, Option<&'a ChannelRow>)>,
    names: BTreeMap<u16, &'a ProcessRow>,
    between: Duration,
}

impl<'a> Dump<'a> {
    fn of(
        before: Option<&'a Listing>,
        now: &'a Listing,
        which: Processes,
        between: Duration,
    ) -> Self {
        let meant = |row: &&ProcessRow| which == Processes::All || which == Processes::One(row.pid);
        let processes: Vec<_> = now.processes.iter().filter(meant).collect();
        let channels = now.channels.iter().filter(|channel| {
            let ends = &channel.words.ends;
            processes
                .iter()
                .any(|row| ends.iter().any(|end| end.slot == row.slot))
                || which == Processes::All
        });
        let old = |channel: &ChannelRow| {
            let channels = before.into_iter().flat_map(|listing| &listing.channels);
            channels
                .into_iter()
                .find(|old| (old.slab, old.chan) == (channel.slab, channel.chan))
        };
        Self {
            channels: channels.map(|channel| (channel, old(channel))).collect(),
            names: now.processes.iter().map(|row| (row.slot, row)).collect(),
            processes,
            between,
        }
    }

    fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        for row in &self.processes {
            let ProcessRow {
                slot,
                pid,
                uid,
                slabs,
                ..
            } = row;
            let state = if row.dead { "dead" } else { "alive" };
            let comm = clean(&row.comm);
            let asleep: Vec<String> = (0..64)
                .filter(|line| row.status >> line & 1 == 1)
                .map(|line| line.to_string())
                .collect();
            let asleep = if asleep.is_empty() {
                "none".to_owned()
            } else {
                asleep.join(" ")
            };
            writeln!(
                out,
                "process {pid} {comm}: slot {slot}, user {uid}, {state}, slabs {slabs}, raised status lines {asleep}"
            )?;
        }
        for (channel, old) in &self.channels {
            writeln!(out, "slab {} channel {}", channel.slab, channel.chan)?;
            for (side, end) in channel.words.ends.iter().enumerate() {
                let state = match end.join {
                    0 => "not here",
                    1 => "offered",
                    2 => "joined",
                    3 => "left",
                    _ => "no state",
                };
                let news = if channel.words.news[side] {
                    ", has news"
                } else {
                    ""
                };
                let connected = if end.connected { ", connected" } else { "" };
                writeln!(
                    out,
                    "  end {side}: {} -> {}, {state}, {}, fd {}, cookie {}{connected}{news}",
                    end_name(end.local),
                    end_name(end.peer),
                    self.who(end.slot),
                    end.fd,
                    end.cookie
                )?;
            }
            for side in [0, 1] {
                let dir = &channel.words.dirs[side];
                let before = old.map(|old| (&old.words.dirs[side], old.now));
                self.direction(side, dir, (channel.now, before), out)?;
            }
        }
        Ok(())
    }

    fn direction(
        &self,
        side: usize,
        dir: &DirWords,
        (now, before): (u64, Option<(&DirWords, u64)>),
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let flags: Vec<_> = dir.flag_words().collect();
        let flags = if flags.is_empty() {
            "none".to_owned()
        } else {
            flags.join(" ")
        };
        writeln!(
            out,
            "  from {side}: flags {flags}; reason {}: {}",
            dir.reason().word(),
            dir.reason().text()
        )?;
        writeln!(
            out,
            "    ring {} bytes: head {} pos {} tail {}: {} unread; reclaimed {}; last push {}",
            dir.ring_bytes,
            dir.head,
            dir.pos,
            dir.tail,
            dir.ring_queue(),
            dir.reclaimed,
            self.age(now, dir.pushed_at, before.map(|(_, then)| then)),
        )?;
        writeln!(
            out,
            "    kernel: k_sent {} krecv {}: {} unread; stream {} uncounted {} owed {} reclaiming {}",
            dir.k_sent,
            dir.krecv,
            dir.kernel_queue(),
            dir.stream,
            dir.uncounted,
            dir.owed,
            dir.mark
        )?;
        writeln!(
            out,
            "    write lock {}; read lock {}; receiver asleep: attn {} slot {}",
            self.lock(dir.write_lock, before.map(|(old, _)| old.write_lock)),
            self.lock(dir.read_lock, before.map(|(old, _)| old.read_lock)),
            dir.attn,
            dir.slot
        )?;
        Ok(())
    }

    fn who(&self, slot: u16) -> String {
        match self.names.get(&slot) {
            Some(row) => format!("process {} {} (slot {slot})", row.pid, clean(&row.comm)),
            None if slot == BROKER_SLOT => "the broker".into(),
            None => format!("slot {slot}"),
        }
    }

    fn lock(&self, word: u32, before: Option<u32>) -> String {
        if word == 0 {
            return "free".into();
        }
        let (slot, thread) = ((word >> 16) as u16, word as u16);
        let dead = self.names.get(&slot).is_none_or(|row| row.dead) && slot != BROKER_SLOT;
        let dead = if dead { ", which is dead" } else { "" };
        let since = if before == Some(word) {
            format!(" for {} ms or more", self.between.as_millis())
        } else {
            String::new()
        };
        format!("of thread {thread} of {}{dead}{since}", self.who(slot))
    }

    /// How long ago the time-stamp counter was at `then`.
    fn age(&self, now: u64, then: u64, earlier: Option<u64>) -> String {
        let cycles = earlier.map_or(0, |earlier| now.saturating_sub(earlier));
        if then == 0 || then > now || cycles == 0 {
            return "not noted".into();
        }
        let seconds = (now - then) as f64 / cycles as f64 * self.between.as_secs_f64();
        format!("{:.3} ms ago", seconds * 1e3)
    }

    fn rows(&self) -> Vec<Value> {
        let processes = self.processes.iter().map(|row| {
            json!({
                "process": row.pid, "slot": row.slot, "uid": row.uid, "comm": row.comm, "dead": row.dead,
                "slabs": row.slabs, "status_lines": row.status, "netns_cookie": row.netns,
            })
        });
        let channels = self.channels.iter().map(|(channel, old)| {
            let ends: Vec<_> = channel
                .words
                .ends
                .iter()
                .zip(channel.words.news)
                .map(|(end, news)| {
                    json!({
                        "local": end_name(end.local), "peer": end_name(end.peer), "join": end.join,
                        "slot": end.slot, "pid": end.pid, "fd": end.fd, "cookie": end.cookie,
                        "connected": end.connected, "news": news,
                    })
                })
                .collect();
            let dirs: Vec<_> = [0, 1]
                .into_iter()
                .map(|side| {
                    let held = |lock: fn(&DirWords) -> u32| {
                        let now = lock(&channel.words.dirs[side]);
                        now != 0 && old.map(|old| lock(&old.words.dirs[side])) == Some(now)
                    };
                    let (write, read) = (held(|dir| dir.write_lock), held(|dir| dir.read_lock));
                    direction(&channel.words.dirs[side], write, read)
                })
                .collect();
            json!({"slab": channel.slab, "channel": channel.chan, "ends": ends, "directions": dirs})
        });
        processes.chain(channels).collect()
    }
}

fn direction(dir: &DirWords, write_held: bool, read_held: bool) -> Value {
    let flags: Vec<_> = dir.flag_words().collect();
    json!({
        "flags": flags, "reason": dir.reason().word(), "ring_bytes": dir.ring_bytes, "head": dir.head,
        "pos": dir.pos, "tail": dir.tail, "k_sent": dir.k_sent, "krecv": dir.krecv,
        "reclaimed": dir.reclaimed, "stream": dir.stream, "uncounted": dir.uncounted, "owed": dir.owed,
        "reclaiming": dir.mark, "attn": dir.attn, "slot": dir.slot,
        "write_lock": dir.write_lock, "write_lock_held": write_held,
        "read_lock": dir.read_lock, "read_lock_held": read_held,
    })
}
