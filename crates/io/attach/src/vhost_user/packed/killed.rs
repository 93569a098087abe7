//! What several workers leave of a packed ring whose daemon is killed, and what the next one makes of it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::tests::{drive, is_empty_behind, reap, ring, scribble, setup};
use super::*;
use crate::vhost_user::area::Paged;
use crate::vhost_user::guest_map::{Extent, GuestRegion, READ, WRITE};
use crate::vhost_user::message::Inflight;
use crate::vhost_user::places::{Places, RingKey};
use std::os::fd::AsFd;
use windlass_shm::{HugePages, Mapping};
use windlass_sys::eventfd;

const KEY: RingKey = RingKey {
    queue: 0,
    desc: 0,
    size: 16,
    file: (0, 0),
};

/// Where a ring lies.
trait Place: Area {
    /// Memory with a ring of 16 that its driver has just made.
    fn make() -> (QueueSetup, Mapping);
}

impl Place for Flat {
    fn make() -> (QueueSetup, Mapping) {
        let (_, map, memory) = ring(16);
        (setup(map, 16, Base::packed(0, true)), memory)
    }
}

impl Place for Paged {
    /// Over the border of two pages, which lie the other way round in memory.
    fn make() -> (QueueSetup, Mapping) {
        const PAGE: u64 = 4096;
        let (memory, file) = Mapping::create("paged", 3 * 4096, HugePages::No).unwrap();
        let region = GuestRegion {
            gpa: 0,
            len: 3 * PAGE,
            offset: 0,
            fd: file.as_fd(),
        };
        let plain = GuestMap::new(&[region], eventfd::create().unwrap()).unwrap();
        let base = plain.find_for(READ, 0, 1).unwrap();
        let page = |number: u64| Extent {
            gpa: 0x7000 + number * PAGE,
            len: PAGE,
            base: base.wrapping_add(((2 - number) * PAGE) as usize),
            real: (2 - number) * PAGE,
            access: READ | WRITE,
        };
        let map = Arc::new(plain.behind([0, 1, 2].map(page).into(), READ));
        let [desc, avail, used] = [0x7000 + PAGE - 5 * 16, 0x9000, 0x9004];
        let setup = QueueSetup {
            desc,
            avail,
            used,
            ..setup(map, 16, Base::packed(0, true))
        };
        (setup, memory)
    }
}

/// Three workers' runs on a ring of 16, from a place on, as a kill leaves them.
#[derive(Clone, Copy, Debug)]
struct Killed<'a> {
    start: u16,
    /// The chains of each.
    runs: [&'a [u16]; 3],
    /// How much of each was opened.
    stores: [usize; 3],
    /// How many were published together.
    settled: usize,
    /// The guest has taken what it could, and made the whole ring available again.
    refilled: bool,
}

/// What a kill left.
struct Wreck<A> {
    ring: PackedOver<A>,
    setup: QueueSetup,
    /// Where the driver stands.
    seen: u16,
    /// Where what it has made available ends.
    end: u16,
    _memory: Mapping,
}

impl Killed<'_> {
    fn leave<A: Place>(&self, places: &Places) -> Wreck<A> {
        let (mut setup, memory) = A::make();
        let mut ring = PackedOver::<A>::new(&setup).unwrap();
        for n in 0..16 {
            let (slot, wrap) = ring.slot(ring.advance(self.start, n));
            let before = PackedOver::<A>::used(!wrap, 99, 1);
            ring.set_high(slot, before, Ordering::Relaxed);
        }
        let spans = self.runs.concat();
        let mut end = drive(&ring, self.start, &spans);
        setup.base = ring.base(self.start);
        places.forget(0);
        ring.keep(places.begin(&KEY, &setup).unwrap().0);
        let (mut at, mut id, mut numbers) = (self.start, 20, Vec::new());
        for (spans, stores) in self.runs.into_iter().zip(self.stores) {
            let mut held = Held::default();
            for span in spans {
                ring.put(&mut held, at, id, 77);
                (at, id) = (ring.advance(at, *span), id + 1);
            }
            numbers.push((at, ring.lease(at)));
            for (slot, high) in held.stores().take(stores) {
                ring.set_high(slot, high, Ordering::Release);
            }
        }
        if let Some((end, number)) = numbers[..self.settled].last() {
            ring.settle(*end, number.wrapping_add(1));
        }
        let (_, seen) = reap(&ring, self.start, &spans);
        if self.refilled {
            let room = 16 - ring.distance(seen, end);
            end = drive(&ring, end, &vec![1; room.into()]);
        }
        Wreck {
            ring,
            setup,
            seen,
            end,
            _memory: memory,
        }
    }

    fn is_whole(&self, run: usize) -> bool {
        self.stores[run] == self.runs[run].len()
    }

    /// Runs at the front that the guest can see.
    fn front(&self) -> usize {
        (0..3).take_while(|k| self.is_whole(*k)).count()
    }

    /// Runs up to the last one of which anything was written.
    fn touched(&self) -> usize {
        (0..3).rfind(|k| self.stores[*k] > 0).map_or(0, |k| k + 1)
    }

    /// What the guest is to find behind what it could see: a run that was whole as it was, all others empty.
    fn expected(&self) -> Vec<(u16, u32)> {
        let mut found = Vec::new();
        for k in self.front()..self.touched() {
            let first = 20 + self.runs[..k].concat().len() as u16;
            let len = if self.is_whole(k) { 77 } else { 0 };
            found.extend((first..).take(self.runs[k].len()).map(|id| (id, len)));
        }
        found
    }
}

impl<A: Area> Wreck<A> {
    /// Where the next daemon finds the ring to stand; none where nothing tells it from a fresh one.
    fn resume(&self, places: &Places, stands: u16) -> Option<u16> {
        let alike = !self.ring.is_in_use() && stands != 0;
        let begin = || places.begin(&KEY, &self.setup).unwrap().1;
        (!alike).then(|| self.ring.place(begin()))
    }

    fn words(&self) -> Vec<u64> {
        let word = |slot| self.ring.high(slot, Ordering::Relaxed);
        (0..16).map(word).collect()
    }

    /// Whether all from a place on is as the driver wrote it.
    fn is_available_from(&self, at: u16) -> bool {
        (0..self.ring.distance(at, self.end)).all(|n| {
            let (slot, wrap) = self.ring.slot(self.ring.advance(at, n));
            PackedOver::<A>::is_available(self.ring.high(slot, Ordering::Relaxed), wrap)
        })
    }
}

/// Several workers that are cut off behind any of their stores, whatever they had published together, and whether or
/// not the guest has filled its ring again, leave a ring that goes on: no place is passed over that the guest waits
/// for, none is used twice, and all behind it is as the driver wrote it. So it is if the next daemon is cut off too.
#[test]
fn runs_of_several_workers_are_cut_off_anywhere() {
    are_cut_off_anywhere::<Flat>();
}

/// The same of rings behind an IOMMU, that lie in two pages.
#[test]
fn runs_over_two_pages_are_cut_off_anywhere() {
    are_cut_off_anywhere::<Paged>();
}

fn are_cut_off_anywhere<A: Place>() {
    let asked = Inflight {
        len: 0,
        offset: 0,
        queues: 1,
        size: 16,
    };
    let (file, said) = Places::offer(&asked, 1).unwrap();
    let places = || Places::brought(&file, &said).unwrap();
    let shapes: [[&[u16]; 3]; 3] = [
        [&[1, 1], &[1, 1, 1], &[1]],
        [&[3, 1], &[2], &[1, 2, 1]],
        [&[1], &[1, 4], &[2, 1]],
    ];
    let (mut tried, mut alike) = (0, 0);
    for case in 0..3 * 32 * 64 * 2 * 4 {
        let killed = Killed {
            start: (case / 3 % 32) as u16,
            runs: shapes[case % 3],
            stores: [1, 4, 16].map(|k| case / 96 / k % 4),
            settled: case / (96 * 64) % 4,
            refilled: case / (96 * 64 * 4) == 1,
        };
        let fits = (0..3).all(|k| killed.stores[k] <= killed.runs[k].len());
        if !fits || killed.settled > killed.front() {
            continue;
        }
        tried += 1;
        let wreck = killed.leave::<A>(&places());
        let touched: u16 = killed.runs[..killed.touched()].concat().iter().sum();
        let stands = wreck.ring.advance(killed.start, touched);
        let before = wreck.words();
        let Some(found) = wreck.resume(&places(), stands) else {
            alike += 1;
            continue;
        };
        assert_eq!(found, stands, "{killed:?}");
        let unseen = killed.runs[killed.front()..].concat();
        let came = reap(&wreck.ring, wreck.seen, &unseen);
        assert_eq!(came, (killed.expected(), stands), "{killed:?}");
        assert!(wreck.is_available_from(stands), "{killed:?}");

        let after = wreck.words();
        let slots = (0..16).map(|n| wreck.ring.slot(wreck.ring.advance(killed.start, n)).0);
        let changed = slots.map(usize::from).filter(|n| before[*n] != after[*n]);
        let changed: Vec<usize> = changed.collect();
        for kept in 1..=changed.len() {
            let wreck = killed.leave::<A>(&places());
            for slot in &changed[changed.len() - kept..] {
                let high = after[*slot];
                wreck.ring.set_high(*slot as u16, high, Ordering::Release);
            }
            if let Some(found) = wreck.resume(&places(), stands) {
                assert_eq!(found, stands, "{killed:?}, {kept} stores");
                let came = reap(&wreck.ring, wreck.seen, &unseen);
                assert_eq!(
                    came,
                    (killed.expected(), stands),
                    "{killed:?}, {kept} stores"
                );
            }
        }
    }
    assert!(tried > 5000 && alike < tried / 50, "{tried} {alike}");
}

/// Whatever a record says of runs, and whatever the guest's descriptors say, the ring stands at one of the places
/// that the record named, and nothing outside it is written.
#[test]
fn runs_are_no_more_than_a_hint() {
    for seed in 0..2000u64 {
        let (ring, _map, memory) = ring(8);
        let mut next = scribble(&memory, seed);
        let from = Base::packed((next() % 8) as u16, next() & 64 != 0);
        let ends: Vec<u16> = (0..16).map(|_| (next() % 20) as u16).collect();
        let stands = ring.resume_runs(from, &ends);
        assert!(stands == from || ends.contains(&ring.place(stands)));
        assert!(is_empty_behind(&memory));
    }
}

/// What is given back by whoever comes behind a kill is written from its end to its beginning: of two words for one place
/// the first one stays.
#[test]
fn the_first_is_given_back_last() {
    let (ring, _map, _memory) = ring(16);
    ring.give_back(3, 4, &[(3, 10), (3, 20)]);
    assert_eq!(ring.high(3, Ordering::Relaxed), 10);
}
