//! What the rows of a status file amount to.
//!
//! # Model
//! Rows are consistent each by itself, and any word may be anything: sums saturate, differences end at 0, divisions check.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use windlass_memory::{CLASSES, Cache, Class, SAMPLED, Thread, ThreadState};
use windlass_sys::identity;

use super::status::Status;

/// Classes of magazines by the sizes of their objects, as the table of threads shows them.
const UP_TO: [(&str, u64); 5] = [
    ("to_64", 64),
    ("to_256", 256),
    ("to_1k", 1 << 10),
    ("to_4k", 4 << 10),
    ("to_32k", 32 << 10),
];

/// The rows of a process, at one moment.
#[derive(Debug)]
pub(crate) struct Figures {
    classes: Vec<Class>,
    threads: Vec<Thread>,
    /// The sum of the threads that have no row.
    others: Option<Thread>,
    caches: Vec<Cache>,
}

/// How much a thread's magazines hold of a class.
fn held(threads: &[Thread], class: usize) -> u64 {
    let bytes = threads
        .iter()
        .filter_map(|thread| thread.by_class.get(class));
    bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Objects of a class that are not in its slabs.
fn out(class: &Class) -> u64 {
    class.objects.saturating_sub(class.in_slabs)
}

/// Bytes that the program has of a cache without a class.
fn shared_bytes(cache: &Cache) -> u64 {
    let out = cache.objects.saturating_sub(cache.in_slabs);
    out.saturating_mul(cache.size)
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

impl Figures {
    pub(crate) fn of(status: &Status) -> Self {
        let classes = status.classes().into_iter();
        // A row that could not be read counts nothing, and keeps its number.
        let nothing = Class {
            size: 0,
            units: 0,
            slabs: 0,
            objects: 0,
            in_slabs: 0,
            in_depot: 0,
            refills: 0,
            flushes: 0,
            contended: 0,
        };
        let mut threads = status.threads();
        let others = threads.pop().flatten();
        let lives = |thread: &Thread| thread.state != ThreadState::Free as u64;
        Self {
            classes: classes.map(|class| class.unwrap_or(nothing)).collect(),
            threads: threads.into_iter().flatten().filter(lives).collect(),
            others: others.filter(lives),
            caches: status
                .caches()
                .into_iter()
                .flatten()
                .filter(|cache| cache.address != 0)
                .collect(),
        }
    }

    fn all_threads(&self) -> Vec<Thread> {
        self.threads.iter().chain(&self.others).copied().collect()
    }

    /// The row of a process.
    pub(crate) fn process(&self, status: &Status, pages: Pages) -> Value {
        let (unit, pid) = (status.header.unit, status.pid);
        let arena = status.arena();
        let (mapped, sampling) = (status.mapped(), status.sampling());
        let of_arena = |field: fn(&windlass_memory::Arena) -> u64| arena.as_ref().map_or(0, field);
        let threads = self.all_threads();
        let slab_bytes = of_arena(|arena| arena.slab_units).saturating_mul(unit);
        let used = of_arena(|arena| arena.used_units).saturating_mul(unit);
        let given = sum(self
            .classes
            .iter()
            .map(|class| out(class).saturating_mul(class.size)))
        .saturating_add(sum(self.caches.iter().map(shared_bytes)));
        let depots = sum(self
            .classes
            .iter()
            .map(|class| class.in_depot.saturating_mul(class.size)));
        let cached = sum(threads.iter().map(|thread| thread.cached)).saturating_add(depots);
        let large = used.saturating_sub(slab_bytes);
        let mapped_bytes = mapped.as_ref().map_or(0, |mapped| mapped.bytes);
        let in_use = given
            .saturating_sub(cached)
            .saturating_add(large)
            .saturating_add(mapped_bytes);
        let kernel = Kernel::of(pid, pages);
        json!({
            "pid": pid, "comm": identity::comm(pid), "uid": status.uid, "up_s": up(status),
            "resident_bytes": kernel.resident, "in_use_bytes": in_use, "cached_bytes": cached,
            "kept_bytes": of_arena(|arena| arena.kept_units).saturating_mul(unit),
            "lost_bytes": slab_bytes.saturating_sub(given),
            "mapped_bytes": mapped_bytes, "mappings": mapped.as_ref().map(|mapped| mapped.count),
            "threads": (self.threads.len() as u64).saturating_add(self.others.map_or(0, |others| others.tid)),
            "slow_calls": sum(threads.iter().map(|thread| thread.slow_calls)),
            "returned_bytes": of_arena(|arena| arena.returned),
            "samples": sampling.as_ref().map(|sampling| sampling.live),
            "samples_lost": sampling.as_ref().map(|sampling| sampling.lost),
            "sample_mean_bytes": status.header.sample_mean, "thread_cap_bytes": status.header.thread_cap,
            "process_cap_bytes": of_arena(|arena| arena.process_cap),
            "spans": of_arena(|arena| arena.usable_spans), "broken_spans": of_arena(|arena| arena.broken_spans),
            "huge_asked_bytes": of_arena(|arena| arena.huge_spans).saturating_mul(status.header.span),
            "huge_bytes": kernel.huge, "page_tables_bytes": kernel.page_tables,
        })
    }

    /// The rows of its threads.
    pub(crate) fn threads(&self, status: &Status) -> Vec<Value> {
        let now = monotonic();
        let name = |thread: &Thread| {
            let path = format!("/proc/{}/task/{}/comm", status.pid, thread.tid);
            let name = fs::read(path).ok()?;
            Some(String::from_utf8_lossy(&name).trim_end().to_owned())
        };
        let row = |thread: &Thread| {
            let share = match status.header.thread_cap {
                0 => None,
                cap => Some(thread.cached as f64 * 100.0 / cap as f64),
            };
            let idle = Duration::from_nanos(now.saturating_sub(thread.last_slow));
            let mut row = json!({
                "pid": status.pid, "tid": thread.tid, "name": name(thread), "cached_bytes": thread.cached,
                "limit_bytes": thread.limit, "cap_percent": share, "slow_calls": thread.slow_calls, "idle_s": idle.as_secs(),
            });
            for (bytes, (key, _)) in self.by_size(thread).into_iter().zip(UP_TO) {
                row[format!("{key}_bytes")] = bytes.into();
            }
            row
        };
        let mut rows: Vec<_> = self.threads.iter().map(row).collect();
        if let Some(others) = &self.others {
            let mut row = row(others);
            row["tid"] = Value::Null;
            row["name"] = format!("{} more threads", others.tid).into();
            rows.push(row);
        }
        rows
    }

    /// Bytes in a thread's magazines, by sizes of objects.
    fn by_size(&self, thread: &Thread) -> [u64; UP_TO.len()] {
        let mut all = [0_u64; UP_TO.len()];
        for (class, bytes) in self.classes.iter().zip(thread.by_class) {
            let place = UP_TO.iter().position(|(_, most)| class.size <= *most);
            if let Some(sum) = place.and_then(|place| all.get_mut(place)) {
                *sum = sum.saturating_add(bytes);
            }
        }
        all
    }

    /// The rows of its caches: malloc's classes, then object caches.
    pub(crate) fn caches(&self, status: &Status) -> Vec<Value> {
        let threads = self.all_threads();
        let mut rows = Vec::new();
        let owned = |number: usize| {
            self.caches
                .iter()
                .find(|cache| cache.class == number as u64 && number != 0)
        };
        for (number, class) in self
            .classes
            .iter()
            .enumerate()
            .take(CLASSES)
            .filter(|(_, class)| class.size > 0)
        {
            // Sampled objects of the class have slabs of their own.
            let sampled = self.classes.get(SAMPLED + number);
            let both =
                |field: fn(&Class) -> u64| sampled.map_or(0, field).saturating_add(field(class));
            if owned(number).is_none() && both(|class| class.refills | class.objects) == 0 {
                continue;
            }
            let in_mags = held(&threads, number) / class.size;
            let in_depot = both(|class| class.in_depot);
            let name = class_name(owned(number), number, class.size);
            let memory = both(|class| class.slabs.saturating_mul(class.units))
                .saturating_mul(status.header.unit);
            rows.push(json!({
                "pid": status.pid, "cache": name, "size": class.size,
                "in_use": both(out).saturating_sub(in_depot).saturating_sub(in_mags), "in_mags": in_mags, "in_depot": in_depot,
                "total": both(|class| class.objects), "memory_bytes": memory, "slabs": both(|class| class.slabs),
                "refills": both(|class| class.refills), "flushes": both(|class| class.flushes),
                "contended": both(|class| class.contended),
            }));
        }
        let without_class = self.caches.iter().filter(|cache| cache.class == 0);
        rows.extend(without_class.map(|cache| {
            let memory = cache.slabs.saturating_mul(cache.units).saturating_mul(status.header.unit);
            json!({
                "pid": status.pid, "cache": name(cache), "size": cache.size,
                "in_use": cache.objects.saturating_sub(cache.in_slabs), "in_mags": 0, "in_depot": 0, "total": cache.objects,
                "memory_bytes": memory, "slabs": cache.slabs, "refills": cache.refills, "flushes": cache.flushes,
                "contended": cache.contended,
            })
        }));
        rows
    }
}

/// The name of a class, which an object cache may have.
pub(crate) fn class_name(cache: Option<&Cache>, class: usize, size: u64) -> String {
    match cache {
        Some(cache) => name(cache),
        None if class < windlass_slab::CLASSES => format!("wl_alloc_{size}"),
        None => "an object cache".to_owned(),
    }
}

/// The name of an object cache.
pub(crate) fn name(cache: &Cache) -> String {
    let bytes: Vec<u8> = cache
        .name
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The clock of births and slow calls, in ns.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Seconds since the file was made.
fn up(status: &Status) -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let now = u64::try_from(now.tv_sec).unwrap_or(0);
    now.saturating_sub(status.header.epoch / 1_000_000_000)
}

/// Whether the kernel is asked how the memory is mapped: it walks all of it, and nothing is mapped meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    Counted,
    Unasked,
}

/// What the kernel says of a process.
#[derive(Debug, Default)]
struct Kernel {
    resident: Option<u64>,
    page_tables: Option<u64>,
    huge: Option<u64>,
}

impl Kernel {
    fn of(pid: u32, pages: Pages) -> Self {
        let read =
            |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let status = read("status");
        let rollup = match pages {
            Pages::Counted => read("smaps_rollup"),
            Pages::Unasked => String::new(),
        };
        Self {
            resident: kilobytes(&status, "VmRSS:"),
            page_tables: kilobytes(&status, "VmPTE:"),
            huge: kilobytes(&rollup, "AnonHugePages:"),
        }
    }
}

/// The number behind a word, in bytes.
fn kilobytes(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}
