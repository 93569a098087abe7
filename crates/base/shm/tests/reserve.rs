//! The kernel's reserve of huge pages, which grows and shrinks while regions are made. Needs root.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs;

use windlass_shm::{HUGE_PAGE_BYTES, HugePages, Mapping, Pages, backings};

const RESERVE: &str = "/proc/sys/vm/nr_hugepages";

/// Puts the reserve back.
struct Reserve(String);

impl Reserve {
    fn open() -> Option<(Reserve, usize)> {
        let before = fs::read_to_string(RESERVE).ok()?;
        let pages = before.trim().parse().ok()?;
        let this = Reserve(before);
        this.set(pages).then_some((this, pages))
    }

    fn set(&self, pages: usize) -> bool {
        fs::write(RESERVE, pages.to_string()).is_ok()
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = fs::write(RESERVE, &self.0);
    }
}

fn free_pages() -> usize {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = fs::read_to_string(path).expect("the reserve");
    text.trim().parse().expect("a number")
}

fn make(pages: usize) -> Mapping {
    let made = Mapping::create("windlass-test", pages * HUGE_PAGE_BYTES, HugePages::Try);
    let (mapping, _) = made.expect("memory");
    for at in (0..mapping.len()).step_by(4096) {
        mapping.store_u64(at, 1, Ordering::Relaxed);
    }
    assert!(!mapping.is_dead(), "a page was missing");
    mapping
}

/// A region takes the reserve while that has room for all of it, and costs no page tables; the next one has other pages. A reserve that comes and
/// goes while regions are made costs none of them its memory.
#[test]
fn regions_take_what_the_reserve_has() {
    let Some((reserve, before)) = Reserve::open() else {
        eprintln!("skipped: regions_take_what_the_reserve_has: {RESERVE} cannot be written");
        return;
    };
    let used = before - free_pages();
    if !reserve.set(used + 3) || free_pages() < 3 {
        eprintln!("skipped: regions_take_what_the_reserve_has: no 6 MiB for the reserve");
        return;
    }
    let first = make(2);
    assert_eq!(first.extent().pages, Pages::Hugetlb);
    let backing = backings(&[first.extent()]).expect("smaps")[0].expect("mapped");
    let whole = 2 * HUGE_PAGE_BYTES as u64;
    assert_eq!((backing.page_bytes, backing.huge), (2 << 20, whole));
    assert_eq!((backing.resident, backing.page_tables), (whole, 0));
    assert_ne!(make(2).extent().pages, Pages::Hugetlb);

    let is_over = AtomicBool::new(false);
    let pages = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                reserve.set(used + 8);
                reserve.set(0);
            }
        });
        let pages: Vec<_> = (0..100).map(|_| make(2).extent().pages).collect();
        is_over.store(true, Ordering::Relaxed);
        pages
    });
    let reserved = pages.iter().filter(|pages| **pages == Pages::Hugetlb);
    eprintln!("{} of {} from the reserve", reserved.count(), pages.len());
}
