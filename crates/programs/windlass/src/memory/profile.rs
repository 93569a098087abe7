//! `windlass memory growth`: live sampled objects by the stacks that allocated them.
//!
//! # Model
//! A sample of `bytes` stands for `weight` bytes, so it was taken with probability `bytes / weight`. The sum of weights is an unbiased estimate, and
//! the sum of `weight² (1 - bytes / weight)` one of its variance. The error bar is 1.96 of its roots: 95 %.
//!
//! A stack is what the process found by frame pointers, or what is found here in the copy of its top by the program's own tables, whichever is longer.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_memory::{FRAMES, RAW, Raw, Sample, Stack};
use windlass_target::threads::Registers;
use windlass_target::{Modules, Snapshot, maps, unwind};

use super::figures::monotonic;
use super::status::Status;

/// The library's own frames are of no interest.
const LIBRARY: &str = "libwindlass_alloc.so";
/// Frames in a table's cell.
const SHOWN: usize = 6;
/// Normal deviates of 95 %.
const DEVIATES: f64 = 1.96;

/// What one stack has allocated and not freed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Site {
    /// Innermost first.
    pub(crate) frames: Vec<u64>,
    /// Estimated.
    pub(crate) bytes: f64,
    /// Estimated.
    pub(crate) objects: f64,
    pub(crate) samples: u64,
    variance: f64,
}

impl Site {
    fn add(&mut self, sample: &Sample) {
        let bytes = sample.bytes.max(1) as f64;
        let weight = (sample.weight as f64).max(bytes);
        self.bytes += weight;
        self.objects += weight / bytes;
        self.variance += weight * (weight - bytes);
        self.samples += 1;
    }

    /// How far the estimate may be off.
    pub(crate) fn error(&self) -> f64 {
        DEVIATES * self.variance.sqrt()
    }
}

/// The profile of a process.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Most bytes first.
    pub(crate) sites: Vec<Site>,
    pub(crate) modules: Modules,
    /// The site of each sampled object.
    by_address: HashMap<u64, Vec<u64>>,
}

/// The stacks of a process's samples.
struct Stacks<'a> {
    status: &'a Status,
    rows: Vec<Option<Stack>>,
    modules: &'a Modules,
    found: HashMap<u64, Vec<u64>>,
}

impl Stacks<'_> {
    /// The frames of a stack by the number that a sample has.
    fn frames(&mut self, number: u64) -> Vec<u64> {
        if let Some(frames) = self.found.get(&number) {
            return frames.clone();
        }
        let index = number
            .checked_sub(1)
            .and_then(|index| usize::try_from(index).ok());
        let row = index.and_then(|index| self.rows.get(index).copied().flatten());
        let frames = row.map(|row| self.of(&row, number)).unwrap_or_default();
        self.found.insert(number, frames.clone());
        frames
    }

    fn of(&self, row: &Stack, number: u64) -> Vec<u64> {
        let depth = usize::try_from(row.depth).unwrap_or(FRAMES).min(FRAMES);
        let by_pointers = row.frames[..depth].to_vec();
        let copied = row.raw.checked_sub(1).and_then(|place| {
            let raw = self.status.raw(usize::try_from(place).ok()? % RAW.rows)?;
            // A later stack may lie there by now.
            (raw.number == place && raw.stack.checked_add(1) == Some(number)).then_some(raw)
        });
        let by_tables = copied
            .map(|raw| unwound(&raw, self.modules))
            .unwrap_or_default();
        let longer = match by_tables.len() > by_pointers.len() {
            true => by_tables,
            false => by_pointers,
        };
        foreign(self.modules, longer)
    }
}

/// A stack without the library's own innermost frames.
pub(crate) fn foreign(modules: &Modules, frames: Vec<u64>) -> Vec<u64> {
    let is_ours = |pc: &u64| {
        let symbol = modules.symbol(*pc);
        symbol.is_some_and(|symbol| symbol.module == LIBRARY)
    };
    frames.into_iter().skip_while(is_ours).collect()
}

/// The functions of return addresses, which are behind their calls.
pub(crate) fn names(modules: &Modules, frames: &[u64]) -> Vec<String> {
    let name = |pc: &u64| modules.name(pc.saturating_sub(1));
    frames.iter().map(name).collect()
}

/// The frames in a copied stack.
fn unwound(raw: &Raw, modules: &Modules) -> Vec<u64> {
    let len = usize::try_from(raw.len)
        .unwrap_or(usize::MAX)
        .min(raw.words.len());
    let bytes = raw.words[..len]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let stack = Snapshot::default().with(raw.sp, bytes);
    unwind::callers(&stack, modules, Registers::of(raw.pc, raw.sp, raw.fp))
}

impl Profile {
    /// What lives, of what was allocated in this time if one is given.
    pub(crate) fn of(status: &Status, since: Option<Duration>) -> Self {
        let mappings = maps::of(status.pid).unwrap_or_default();
        let modules = Modules::of_process(status.pid, &mappings);
        let since = since.map(|since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let from = since.map_or(0, |since| monotonic().saturating_sub(since));
        let mut stacks = Stacks {
            status,
            rows: status.stacks(),
            modules: &modules,
            found: HashMap::new(),
        };
        let mut sites: HashMap<Vec<u64>, Site> = HashMap::new();
        let mut by_address = HashMap::new();
        let live = status.samples().into_iter().flatten();
        for sample in live.filter(|sample| sample.address != 0 && sample.born >= from) {
            let frames = stacks.frames(sample.stack);
            by_address.insert(sample.address, frames.clone());
            sites.entry(frames).or_default().add(&sample);
        }
        let with_frames = sites
            .into_iter()
            .map(|(frames, site)| Site { frames, ..site });
        let mut sites: Vec<_> = with_frames.collect();
        sites.sort_by(|a, b| {
            b.bytes
                .total_cmp(&a.bytes)
                .then_with(|| a.frames.cmp(&b.frames))
        });
        Self {
            sites,
            modules,
            by_address,
        }
    }

    /// Who allocated the object that starts there, if it is a sample.
    pub(crate) fn stack_of(&self, address: u64) -> Option<Vec<String>> {
        let frames = self
            .by_address
            .get(&address)
            .filter(|frames| !frames.is_empty())?;
        Some(names(&self.modules, frames))
    }

    /// The same of every sample.
    pub(crate) fn stacks_by_address(&self) -> HashMap<u64, Vec<String>> {
        let all = self.by_address.keys();
        all.filter_map(|address| Some((*address, self.stack_of(*address)?)))
            .collect()
    }

    /// A row for each stack.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let row = |site: &Site| {
            let names = names(&self.modules, &site.frames);
            json!({
                "bytes": site.bytes.round() as u64, "error_bytes": site.error().round() as u64,
                "objects": site.objects.round() as u64, "samples": site.samples,
                "stack_text": text(&names), "stack": names,
                "frames": site.frames.iter().map(|pc| format!("{pc:#x}")).collect::<Vec<_>>(),
            })
        };
        self.sites.iter().map(row).collect()
    }
}

/// The functions of a stack in a line.
pub(crate) fn text(names: &[String]) -> String {
    if names.is_empty() {
        return "unknown".into();
    }
    let functions = names.iter().take(SHOWN);
    let functions: Vec<_> = functions
        .map(|name| {
            name.rsplit_once('+')
                .map_or(name.as_str(), |(function, _)| function)
        })
        .collect();
    let more = if names.len() > SHOWN { " <- ..." } else { "" };
    functions.join(" <- ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: u64, weight: u64) -> Sample {
        Sample {
            address: 1,
            bytes,
            weight,
            stack: 0,
            born: 0,
            tid: 0,
        }
    }

    /// Large objects are certain; of small ones the error grows with the root of their number; lies are no trouble.
    #[test]
    fn errors_follow_the_weights() {
        let site = |samples: &[(u64, u64)]| {
            let mut site = Site::default();
            samples
                .iter()
                .for_each(|(bytes, weight)| site.add(&sample(*bytes, *weight)));
            site
        };
        let certain = site(&[(1 << 30, 1 << 30)]);
        assert_eq!(
            (certain.bytes, certain.error()),
            ((1_u64 << 30) as f64, 0.0)
        );
        let hundred = site(&[(64, 512 << 10); 100]);
        let relative = hundred.error() / hundred.bytes;
        assert!((0.195..0.197).contains(&relative), "{relative}");
        let lies = site(&[(0, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]);
        assert!(lies.bytes.is_finite() && lies.error().is_finite() && lies.error() > 0.0);
    }

    /// Of a long stack the innermost functions are shown.
    #[test]
    fn stacks_are_cut() {
        let names: Vec<_> = (0..9).map(|at| format!("operator+{at}+0x{at}")).collect();
        assert_eq!(text(&names[..2]), "operator+0 <- operator+1");
        assert!(text(&names).ends_with("operator+5 <- ..."));
        assert_eq!(text(&[]), "unknown");
    }
}
