//! Which pages are behind a region, as the kernel tells (`/proc/self/smaps`).
//!
//! # Limits
//! The kernel walks the page tables of every mapping of the process, about a millisecond for each GiB in small pages. Not for a thread
//! that others wait for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use crate::region::{Extent, HUGE_PAGE_BYTES, Pages};

/// Bytes of a page table.
const TABLE_BYTES: u64 = 4096;

/// What is behind a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Bytes of the pages that the mapping is made of.
    pub page_bytes: u64,
    /// Bytes that have memory.
    pub resident: u64,
    /// Those of them in pages of 2 MiB or more.
    pub huge: u64,
    /// Bytes of page tables, calculated: one page for every 2 MiB in small pages, and for every transparent huge page of private memory,
    /// which may be split; none for other huge pages.
    pub page_tables: u64,
}

/// What is behind each of these; `None` for one that is gone.
///
/// # Errors
/// The file could not be read.
pub fn backings(extents: &[Extent]) -> io::Result<Vec<Option<Backing>>> {
    parse(BufReader::new(File::open("/proc/self/smaps")?), extents)
}

/// What is summed of one region.
#[derive(Clone, Default)]
struct Sum {
    page_bytes: u64,
    /// Without pages of the reserve.
    ordinary: u64,
    reserve: u64,
    transparent: u64,
    private_transparent: u64,
}

impl Sum {
    fn add(&mut self, field: &str, bytes: u64) {
        match field {
            "KernelPageSize" => self.page_bytes = self.page_bytes.max(bytes),
            "Rss" => self.ordinary += bytes,
            "Shared_Hugetlb" | "Private_Hugetlb" => self.reserve += bytes,
            "ShmemPmdMapped" | "FilePmdMapped" => self.transparent += bytes,
            "AnonHugePages" => {
                self.transparent += bytes;
                self.private_transparent += bytes;
            }
            _ => {}
        }
    }

    fn backing(&self) -> Backing {
        let small = self.ordinary.saturating_sub(self.transparent);
        let tables = (small + self.private_transparent).div_ceil(HUGE_PAGE_BYTES as u64);
        Backing {
            page_bytes: self.page_bytes,
            resident: self.ordinary + self.reserve,
            huge: self.transparent + self.reserve,
            page_tables: tables * TABLE_BYTES,
        }
    }
}

fn parse(smaps: impl BufRead, extents: &[Extent]) -> io::Result<Vec<Option<Backing>>> {
    let by_start: BTreeMap<usize, usize> = extents.iter().map(|e| e.start).zip(0..).collect();
    let mut sums: Vec<Option<Sum>> = vec![None; extents.len()];
    let mut current = None;
    for line in smaps.lines() {
        let line = line?;
        let Some((word, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some(field) = word.strip_suffix(':') {
            let Some(sum) = current.and_then(|at: usize| sums.get_mut(at)) else {
                continue;
            };
            let kib = rest.trim().strip_suffix(" kB").map(str::parse::<u64>);
            if let Some(Ok(kib)) = kib {
                sum.get_or_insert_default().add(field, kib << 10);
            }
            continue;
        }
        current = start(word).and_then(|start| {
            let (_, &at) = by_start.range(..=start).next_back()?;
            let extent = extents.get(at)?;
            (start - extent.start < extent.len).then_some(at)
        });
    }
    Ok(sums
        .into_iter()
        .map(|sum| sum.map(|sum| sum.backing()))
        .collect())
}

/// The first address, of the head of a mapping's entry.
fn start(word: &str) -> Option<usize> {
    usize::from_str_radix(word.split_once('-')?.0, 16).ok()
}

/// Why a region of ours has small pages, as a sentence: `None` if it has others, or nobody asked.
pub fn reason(pages: Pages) -> Option<String> {
    let Pages::Refused { transparent } = pages else {
        return None;
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let reserved = read("/proc/sys/vm/nr_hugepages");
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("unknown");
    Some(format!(
        "the reserve had no room (vm.nr_hugepages={}), and the kernel refused transparent huge pages: {transparent} (shmem_enabled={chosen})",
        reserved.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:01 9 /memfd:x (deleted)
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                4096 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd wr
7f0000400000-7f0000600000 rw-s 00000000 00:01 9 /memfd:x (deleted)
KernelPageSize:        4 kB
Rss:                 400 kB
7f0000600000-7f0000800000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
Rss:                2048 kB
AnonHugePages:      2048 kB
7f0000800000-7f0000a00000 rw-p 00000000 00:0e 9 /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Private_Hugetlb:    2048 kB
";

    /// A region of several mappings is their sum, what is not asked for counts nowhere, and a region that is gone is none.
    #[test]
    fn mappings_are_summed_by_region() {
        let extent = |start, len| Extent {
            start,
            len,
            pages: Pages::Small,
        };
        let extents = [
            extent(0x7f00_0060_0000, 2 << 20),
            extent(0x7f00_0000_0000, 6 << 20),
            extent(0x7f00_0080_0000, 2 << 20),
            extent(0x7f00_00a0_0000, 2 << 20),
        ];
        let got = parse(SMAPS.as_bytes(), &extents).expect("text");
        let backing = |page_bytes, resident: u64, huge: u64, page_tables| {
            Some(Backing {
                page_bytes,
                resident: resident << 10,
                huge: huge << 10,
                page_tables,
            })
        };
        let expected = [
            backing(4096, 2048, 2048, 4096),
            backing(4096, 4496, 2048, 8192),
            backing(2 << 20, 2048, 2048, 0),
            None,
        ];
        assert_eq!(got, expected);
    }
}
