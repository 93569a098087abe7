//! Programs in the kernel, at the places of a probe, and what they write and count.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use windlass_script::ebpf::{self, BUCKETS, MapUse, Mark, OUTCOMES, On, Plan};
use windlass_script::lower::{Kept, Shared};
use windlass_script::syntax::Aggregate;
use windlass_sys::Errno;
use windlass_sys::bpf::{
    Instruction, Link, LoadError, Map, MapKind, Program, RecordRing, UprobePlace, processors,
};

use super::module::Module;
use super::probe::Probe;
use super::site::{Entered, Site};

/// Bytes of the ring of records.
const RING_BYTES: u32 = 4 << 20;
/// `ENOTSUPP`: of an instruction that the kernel can neither emulate nor execute aside.
const NOT_SUPPORTED: Errno = Errno::from_raw_os_error(524);
/// Lines of an aggregation.
const LINES_MAX: u32 = 4096;
/// Variables of threads that are not 0.
const VARIABLES_MAX: u32 = 10_240;
/// Functions that were entered and have not returned. What was left by a jump or an exception is dropped when there is no more room.
const ENTRIES_MAX: u32 = 10_240;

/// Why nothing is traced.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("{0}")]
    Plan(#[from] ebpf::PlanError),
    #[error("the kernel has no event {0}: they are in /sys/kernel/tracing/events")]
    Event(String),
    #[error("the kernel puts no probe on an instruction of this kind")]
    Instruction,
    #[error("{what}: {errno}")]
    Kernel { what: &'static str, errno: Errno },
}

fn kernel(what: &'static str) -> impl Fn(Errno) -> AttachError {
    move |errno| match errno {
        NOT_SUPPORTED => AttachError::Instruction,
        errno => AttachError::Kernel { what, errno },
    }
}

/// One aggregation.
pub(super) struct Aggregation {
    map: Map,
    /// What is kept.
    pub(super) kept: Kept,
}

/// What runs in the kernel. It ends with this object, or with this process.
pub(super) struct Attached {
    counts: Map,
    pub(super) ring: RecordRing,
    pub(super) aggregations: Vec<Aggregation>,
    zeros: Map,
    threads: Map,
    entries: Map,
    stops: Map,
    links: Vec<Link>,
    /// The numbers of sites that the kernel puts no probe on.
    pub(super) refused: Vec<u64>,
    /// What this process calls at the end.
    ends: Vec<Program>,
    /// And at each so much time.
    pub(super) ticks: Vec<(Duration, Program)>,
}

/// What is to be traced.
pub(super) struct Wanted<'w> {
    /// Without it, all processes.
    pub(super) pid: Option<u32>,
    pub(super) modules: &'w [Module],
    pub(super) sites: &'w [(Site, Plan)],
    pub(super) entries: &'w [Entered],
    pub(super) shared: &'w Shared,
    pub(super) clauses: usize,
}

impl Attached {
    /// Attaches a plan to each site.
    pub(super) fn new(wanted: &Wanted<'_>) -> Result<Self, AttachError> {
        let words = |words: usize| u32::try_from(words * 8).unwrap_or(u32::MAX);
        let clauses = u32::try_from(wanted.clauses).unwrap_or(u32::MAX);
        let counts = Map::sized(MapKind::PerProcessor, (4, words(OUTCOMES)), clauses);
        let zeros = Map::sized(MapKind::Array, (4, words(BUCKETS)), 1);
        let mut aggregations = Vec::new();
        for kept in &wanted.shared.kept {
            let size = (kept.key_bytes, words(ebpf::words(kept.how)));
            let map = Map::sized(MapKind::HashPerProcessor, size, LINES_MAX);
            aggregations.push(Aggregation {
                map: map.map_err(kernel("make an aggregation"))?,
                kept: kept.clone(),
            });
        }
        let map =
            |kind, size, entries| Map::sized(kind, size, entries).map_err(kernel("make a map"));
        let mut own = Self {
            counts: counts.map_err(kernel("make the counts"))?,
            ring: RecordRing::create(RING_BYTES).map_err(kernel("make the ring of records"))?,
            aggregations,
            zeros: zeros.map_err(kernel("make a map"))?,
            threads: map(MapKind::Hash, (8, 8), VARIABLES_MAX)?,
            entries: map(MapKind::RecentHash, (16, 8), ENTRIES_MAX)?,
            stops: map(MapKind::Array, (4, 8), clauses.saturating_add(1))?,
            links: Vec::new(),
            refused: Vec::new(),
            ends: Vec::new(),
            ticks: Vec::new(),
        };
        own.begin(wanted)?;
        // Before the returns, which look for them.
        own.enter(wanted)?;
        own.attach(wanted)?;
        Ok(own)
    }

    fn load(&self, plan: &Plan) -> Result<Program, AttachError> {
        let code = plan.program(&|register, which| self.map(register, which))?;
        Ok(Program::load("windlass_trace", plan.on.kind(), &code)?)
    }

    /// Does what is done before everything else, and loads what this process calls later.
    fn begin(&mut self, wanted: &Wanted<'_>) -> Result<(), AttachError> {
        for (site, plan) in wanted.sites {
            match &site.probe {
                Probe::Begin => {
                    let program = self.load(plan)?;
                    program.run().map_err(kernel("run what begins"))?;
                }
                Probe::End => self.ends.push(self.load(plan)?),
                Probe::Tick(every) => self.ticks.push((*every, self.load(plan)?)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Remembers when functions are entered whose returns ask for it.
    fn enter(&mut self, wanted: &Wanted<'_>) -> Result<(), AttachError> {
        for (function, entered) in (0..).zip(wanted.entries) {
            let frame = entered.frame.clone();
            let plan = Plan {
                mark: Some(Mark { frame, function }),
                ..Plan::default()
            };
            let program = self.load(&plan)?;
            let place = UprobePlace {
                offset: entered.offset,
                cookie: 0,
                semaphore: 0,
            };
            if let Some(module) = wanted.modules.get(entered.module) {
                let link = Link::uprobes(&program, &module.file, &[place], wanted.pid);
                self.links.push(link.map_err(kernel("put the probes"))?);
            }
        }
        Ok(())
    }

    fn attach(&mut self, wanted: &Wanted<'_>) -> Result<(), AttachError> {
        // Places at which the same is done share a program.
        let mut groups: Vec<(usize, &Plan, Vec<UprobePlace>)> = Vec::new();
        for (cookie, (site, plan)) in (0..).zip(wanted.sites) {
            if let Probe::Profile(rate) = site.probe {
                self.sample(plan, rate)?;
            }
            if let Probe::Kernel(event) = &site.probe {
                let link = Link::event(&self.load(plan)?, event);
                self.links.push(link.map_err(|errno| match errno {
                    Errno::NOENT => AttachError::Event(event.clone()),
                    errno => kernel("put the probes")(errno),
                })?);
            }
            if plan.on != On::Instruction {
                continue;
            }
            let place = UprobePlace {
                offset: site.offset,
                cookie,
                semaphore: site.semaphore,
            };
            let same = groups
                .iter_mut()
                .find(|(module, of, _)| *module == site.module && *of == plan);
            match same {
                Some((.., places)) => places.push(place),
                None => groups.push((site.module, plan, vec![place])),
            }
        }
        let is_asked = !groups.is_empty();
        let before = self.links.len();
        for (module, plan, places) in groups {
            let program = self.load(plan)?;
            let Some(module) = wanted.modules.get(module) else {
                continue;
            };
            self.link(&program, (&module.file, wanted.pid), &places)?;
        }
        match is_asked && self.links.len() == before {
            true => Err(kernel("put the probes")(NOT_SUPPORTED)),
            false => Ok(()),
        }
    }

    /// Samples each processor that is there.
    fn sample(&mut self, plan: &Plan, rate: u32) -> Result<(), AttachError> {
        let program = self.load(plan)?;
        for processor in (0..).take(processors()) {
            match Link::samples(&program, processor, rate) {
                Ok(link) => self.links.push(link),
                Err(Errno::NODEV) => {}
                Err(errno) => return Err(kernel("sample")(errno)),
            }
        }
        Ok(())
    }

    /// Has a program run at places of a file. The kernel takes all or none, and does not say which ones it cannot take: they are found by halves.
    fn link(
        &mut self,
        program: &Program,
        of: (&Path, Option<u32>),
        places: &[UprobePlace],
    ) -> Result<(), AttachError> {
        match (Link::uprobes(program, of.0, places, of.1), places) {
            (Ok(link), _) => self.links.push(link),
            (Err(NOT_SUPPORTED), [one]) => self.refused.push(one.cookie),
            (Err(NOT_SUPPORTED), [_, _, ..]) => {
                let (some, others) = places.split_at(places.len() / 2);
                self.link(program, of, some)?;
                self.link(program, of, others)?;
            }
            (Err(errno), _) => return Err(kernel("put the probes")(errno)),
        }
        Ok(())
    }

    fn map(&self, register: u8, which: MapUse) -> [Instruction; 2] {
        let map = match which {
            MapUse::Counts => self.counts.as_fd(),
            MapUse::Ring => self.ring.as_fd(),
            MapUse::Zeros => self.zeros.as_fd(),
            MapUse::Threads => self.threads.as_fd(),
            MapUse::Entries => self.entries.as_fd(),
            MapUse::Stops => self.stops.as_fd(),
            MapUse::Aggregation(number) => match self.aggregations.get(number) {
                Some(aggregation) => aggregation.map.as_fd(),
                None => self.zeros.as_fd(),
            },
        };
        Instruction::load_map(register, map)
    }

    /// What has been counted of a clause's hits, in the order of [`ebpf::Outcome`].
    pub(super) fn counts(&self, clause: usize) -> Result<[u64; OUTCOMES], AttachError> {
        let clause = u32::try_from(clause).unwrap_or(u32::MAX);
        self.counts.sum(clause).map_err(kernel("read the counts"))
    }

    /// Whether a clause has ended the tracing.
    pub(super) fn has_stopped(&self) -> bool {
        self.stops.word(0).is_ok_and(|word| word != 0)
    }

    /// Ends the probes, so that nothing is counted any more but what is done at the end.
    pub(super) fn detach(&mut self) -> Result<(), AttachError> {
        self.links.clear();
        for program in self.ends.drain(..) {
            program.run().map_err(kernel("run what ends"))?;
        }
        Ok(())
    }
}

/// A line of an aggregation, over all processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// A count, a sum, a least or greatest value, a mean.
    Number(i128),
    /// How many there are in each bucket.
    Buckets(Vec<u64>),
}

impl Aggregation {
    /// Takes all lines out, each with its key.
    pub(super) fn lines(&self) -> Result<Vec<(Vec<u8>, Line)>, AttachError> {
        self.lines_if(|_| true)
    }

    /// Takes lines out, those whose keys are wanted.
    pub(super) fn lines_if(
        &self,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Line)>, AttachError> {
        let mut all = Vec::new();
        let drained = self.map.drain_if(is_wanted, |key, values| {
            all.push((key.to_vec(), self.line(values)));
        });
        drained.map_err(kernel("read an aggregation"))?;
        Ok(all)
    }

    fn line(&self, values: &[u64]) -> Line {
        let words = ebpf::words(self.kept.how);
        let number = |word: u64| match self.kept.is_unsigned {
            true => i128::from(word),
            false => i128::from(word.cast_signed()),
        };
        let each = || values.chunks_exact(words);
        let column = |at: usize| each().filter_map(move |words| words.get(at).copied());
        match self.kept.how {
            Aggregate::Count | Aggregate::Heat | Aggregate::Subsecond => {
                Line::Number(column(0).map(i128::from).sum())
            }
            Aggregate::Sum => {
                let sum = column(0).fold(0, u64::wrapping_add);
                Line::Number(number(sum))
            }
            Aggregate::Avg => {
                let count: u64 = column(0).sum();
                let sum: i128 = column(1).map(number).sum();
                Line::Number(sum / i128::from(count.max(1)))
            }
            Aggregate::Min | Aggregate::Max => {
                // The first word says that there is a value.
                let there = each().filter(|words| words.first() != Some(&0));
                let there = there.filter_map(|words| words.get(1).copied().map(number));
                let found = match self.kept.how {
                    Aggregate::Min => there.min(),
                    _ => there.max(),
                };
                Line::Number(found.unwrap_or(0))
            }
            Aggregate::Stddev => {
                let total = |at: usize| column(at).map(i128::from).sum::<i128>();
                let product = |at: usize| total(at).wrapping_add(total(at + 1) << 32);
                let squares = product(2)
                    .wrapping_add(product(4) << 33)
                    .wrapping_add(product(6) << 64);
                let sum = column(1).map(number).sum();
                Line::Number(deviation(total(0).max(1), sum, squares))
            }
            Aggregate::Quantize | Aggregate::Linear { .. } => {
                let mut sums = vec![0_u64; words];
                for words in each() {
                    for (sum, word) in sums.iter_mut().zip(words) {
                        *sum = sum.wrapping_add(*word);
                    }
                }
                Line::Buckets(sums)
            }
        }
    }
}

/// The standard deviation of so many numbers, by their sum and that of their squares.
fn deviation(count: i128, sum: i128, squares: i128) -> i128 {
    let exact = || {
        let all = count.checked_mul(squares)?;
        Some(all.checked_sub(sum.checked_mul(sum)?)?.max(0).isqrt() / count)
    };
    let mean = sum / count;
    // Of numbers that large, what is left out does not count.
    exact().unwrap_or_else(|| {
        let square = mean.saturating_mul(mean);
        (squares / count).saturating_sub(square).max(0).isqrt()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_exact() {
        // 2, 4, 4, 4, 5, 5, 7, 9
        assert_eq!(deviation(8, 40, 232), 2);
        assert_eq!(deviation(2, 0, 200), 10);
        assert_eq!(deviation(1, -7, 49), 0);
        let large = 1_i128 << 62;
        assert_eq!(deviation(2, 0, 2 * large * large), large);
    }
}
