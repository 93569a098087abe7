//! Programs in the kernel, at the places of a probe, and what they write and count.

use windlass_script::ebpf::{self, BUCKETS, MapUse, OUTCOMES, Plan};
use windlass_script::syntax::Aggregate;
use windlass_sys::Errno;
use windlass_sys::bpf::{
    Instruction, Link, LoadError, Map, MapKind, Program, ProgramKind, RecordRing, UprobePlace,
};

use super::site::{Module, Site};

use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of the ring of records.
const RING_BYTES: u32 = 4 << 20;
/// `ENOTSUPP`: of an instruction that the kernel can neither emulate nor execute aside.
const NOT_SUPPORTED: Errno = Errno::from_raw_os_error(524);
/// Lines of an aggregation.
const LINES_MAX: u32 = 4096;

/// Why nothing is traced.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("{0}")]
    Plan(#[from] ebpf::PlanError),
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
    pub(super) how: Aggregate,
    /// Its values are 0 or more.
    pub(super) is_unsigned: bool,
}

/// What runs in the kernel. It ends with this object, or with this process.
pub(super) struct Attached {
    counts: Map,
    pub(super) ring: RecordRing,
    pub(super) aggregations: Vec<Aggregation>,
    zeros: Map,
    links: Vec<Link>,
    /// The numbers of sites that the kernel puts no probe on.
    pub(super) refused: Vec<u64>,
}

impl Attached {
    /// Attaches a plan to each site.
    pub(super) fn new(
        pid: u32,
        modules: &[Module],
        sites: &[(Site, Plan)],
    ) -> Result<Self, AttachError> {
        let words = |words: usize| u32::try_from(words * 8).unwrap_or(u32::MAX);
        let counts = Map::sized(MapKind::PerProcessor, (4, words(OUTCOMES)), 1);
        let zeros = Map::sized(MapKind::Array, (4, words(BUCKETS)), 1);
        let first = sites.first().map(|(_, plan)| plan.additions.as_slice());
        let mut aggregations = Vec::new();
        for addition in first.unwrap_or_default() {
            let key = addition.key.iter().map(ebpf::KeyPart::bytes).sum::<u32>();
            let size = (key.max(8), words(ebpf::words(addition.how)));
            let map = Map::sized(MapKind::HashPerProcessor, size, LINES_MAX);
            aggregations.push(Aggregation {
                map: map.map_err(kernel("make an aggregation"))?,
                how: addition.how,
                is_unsigned: addition.is_unsigned,
            });
        }
        let mut own = Self {
            counts: counts.map_err(kernel("make the counts"))?,
            ring: RecordRing::create(RING_BYTES).map_err(kernel("make the ring of records"))?,
            aggregations,
            zeros: zeros.map_err(kernel("make a map"))?,
            links: Vec::new(),
            refused: Vec::new(),
        };
        own.attach(pid, modules, sites)?;
        Ok(own)
    }

    fn attach(
        &mut self,
        pid: u32,
        modules: &[Module],
        sites: &[(Site, Plan)],
    ) -> Result<(), AttachError> {
        // Places at which the same is done share a program.
        let mut groups: Vec<(usize, &Plan, Vec<UprobePlace>)> = Vec::new();
        for (cookie, (site, plan)) in (0..).zip(sites) {
            let offset = site.offset;
            let place = UprobePlace { offset, cookie };
            let same = groups
                .iter_mut()
                .find(|(module, of, _)| *module == site.module && *of == plan);
            match same {
                Some((.., places)) => places.push(place),
                None => groups.push((site.module, plan, vec![place])),
            }
        }
        for (module, plan, places) in groups {
            let code = plan.program(&|register, which| self.map(register, which))?;
            let program = Program::load("windlass_trace", ProgramKind::Uprobe, &code)?;
            let Some(module) = modules.get(module) else {
                continue;
            };
            self.link(&program, (&module.file, pid), &places)?;
        }
        match self.links.is_empty() {
            true => Err(kernel("put the probes")(NOT_SUPPORTED)),
            false => Ok(()),
        }
    }

    /// Has a program run at places of a file. The kernel takes all or none, and does not say which ones it cannot take: they are found by halves.
    fn link(
        &mut self,
        program: &Program,
        of: (&Path, u32),
        places: &[UprobePlace],
    ) -> Result<(), AttachError> {
        match (Link::uprobes(program, of.0, places, Some(of.1)), places) {
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
            MapUse::Aggregation(number) => match self.aggregations.get(number) {
                Some(aggregation) => aggregation.map.as_fd(),
                None => self.zeros.as_fd(),
            },
        };
        Instruction::load_map(register, map)
    }

    /// What has been counted of hits, in the order of [`ebpf::Outcome`].
    pub(super) fn counts(&self) -> Result<[u64; OUTCOMES], AttachError> {
        self.counts.sum(0).map_err(kernel("read the counts"))
    }

    /// Ends the probes: nothing is counted any more.
    pub(super) fn detach(&mut self) {
        self.links.clear();
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
        let mut all = Vec::new();
        let drained = self.map.drain(|key, values| {
            all.push((key.to_vec(), self.line(values)));
        });
        drained.map_err(kernel("read an aggregation"))?;
        Ok(all)
    }

    fn line(&self, values: &[u64]) -> Line {
        let words = ebpf::words(self.how);
        let number = |word: u64| match self.is_unsigned {
            true => i128::from(word),
            false => i128::from(word.cast_signed()),
        };
        let each = || values.chunks_exact(words);
        let column = |at: usize| each().filter_map(move |words| words.get(at).copied());
        match self.how {
            Aggregate::Count => Line::Number(column(0).map(i128::from).sum()),
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
                let found = match self.how {
                    Aggregate::Min => there.min(),
                    _ => there.max(),
                };
                Line::Number(found.unwrap_or(0))
            }
            Aggregate::Quantize => {
                let mut sums = vec![0_u64; BUCKETS];
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
