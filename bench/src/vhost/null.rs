//! A switch that moves lengths only, between two guests of one process: the generator's own limit.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::place::Place;
use super::{Layout, Port};

/// Frames moved at once: indexes that change one by one cost the generator more than a real switch does.
const BURST: u16 = 32;

/// Looks that found less than a burst before what is there is moved.
const PATIENCE: u32 = 64;

const AVAIL: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);
const FLAGS: u64 = 0xffff << 48;
const LENGTH: u64 = 0xffff_ffff;
const NO_NOTIFY: u16 = 1;

/// Moves frames both ways between two ports whose memory is this process's, until `ends`.
pub fn forward(ports: [&Port; 2], layout: Layout, ends: &AtomicBool) {
    let [a, b] = ports;
    let mut ways = [(a, b), (b, a)].map(|(from, to)| Way::new(from.place(1), to.place(0)));
    while !ends.load(Relaxed) {
        for way in &mut ways {
            let count = way.movable(layout);
            if count < BURST && (count == 0 || way.looks < PATIENCE) {
                way.looks += 1;
                std::hint::spin_loop();
                continue;
            }
            way.looks = 0;
            match layout {
                Layout::Split => way.shift_split(count),
                Layout::Packed => way.shift_packed(count),
            }
        }
    }
}

/// One direction.
struct Way<'p> {
    from: Place<'p>,
    to: Place<'p>,
    taken: u16,
    given: u16,
    looks: u32,
}

impl<'p> Way<'p> {
    fn new(from: Place<'p>, to: Place<'p>) -> Way<'p> {
        for place in [&from, &to] {
            // The split ring's flags and the packed ring's event structure: no kicks.
            place.memory.store_u16(place.used(), NO_NOTIFY, Relaxed);
            place.memory.store_u16(place.used() + 2, 0, Relaxed);
        }
        Way {
            from,
            to,
            taken: 0,
            given: 0,
            looks: 0,
        }
    }

    /// How many frames are there and fit, up to a burst; of a packed ring all or one.
    fn movable(&self, layout: Layout) -> u16 {
        let ends = [(&self.from, self.taken), (&self.to, self.given)];
        let waiting = ends.map(|(place, done)| match layout {
            Layout::Split => {
                let head = place.memory.load_u16(place.avail() + 2, Acquire);
                head.wrapping_sub(done).min(BURST)
            }
            Layout::Packed if available(place, done).is_none() => 0,
            Layout::Packed => match available(place, done.wrapping_add(BURST - 1)) {
                Some(_) => BURST,
                None => 1,
            },
        });
        waiting[0].min(waiting[1])
    }

    fn shift_split(&mut self, count: u16) {
        for i in 0..count {
            let slot = self.from.slot(self.taken.wrapping_add(i));
            let at = self.from.desc_at(slot) + 8;
            let length = self.from.memory.load_u32(at, Relaxed);
            put_used(&self.from, self.taken.wrapping_add(i), 0);
            put_used(&self.to, self.given.wrapping_add(i), length);
        }
        self.taken = self.taken.wrapping_add(count);
        self.given = self.given.wrapping_add(count);
        for (place, index) in [(&self.to, self.given), (&self.from, self.taken)] {
            place.memory.store_u16(place.used() + 2, index, Release);
        }
    }

    /// The first descriptor is given back last.
    fn shift_packed(&mut self, count: u16) {
        for i in (0..count).rev() {
            let (from, to) = (self.taken.wrapping_add(i), self.given.wrapping_add(i));
            if let (Some(frame), Some(room)) =
                (available(&self.from, from), available(&self.to, to))
            {
                use_up(&self.to, to, room & !LENGTH | frame & LENGTH);
                use_up(&self.from, from, frame);
            }
        }
        self.taken = self.taken.wrapping_add(count);
        self.given = self.given.wrapping_add(count);
    }
}

fn put_used(place: &Place<'_>, index: u16, length: u32) {
    let slot = place.slot(index);
    let at = place.used() + 4 + 8 * u32::from(slot);
    place.memory.store_u32(at, u32::from(slot), Relaxed);
    place.memory.store_u32(at + 4, length, Relaxed);
}

/// The second word of the descriptor at an index, once the driver has made it available.
fn available(place: &Place<'_>, index: u16) -> Option<u64> {
    let at = place.desc_at(place.slot(index)) + 8;
    let word = place.memory.load_u64(at, Acquire);
    let wanted = match index & place.size == 0 {
        true => AVAIL,
        false => USED,
    };
    (word & (AVAIL | USED) == wanted).then_some(word)
}

fn use_up(place: &Place<'_>, index: u16, word: u64) {
    let at = place.desc_at(place.slot(index)) + 8;
    let flags = match index & place.size == 0 {
        true => AVAIL | USED,
        false => 0,
    };
    place.memory.store_u64(at, word & !FLAGS | flags, Release);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::generator::{Ends, Inlet, Outlet, Plan, Sink, announce, run_rate};
    use crate::vhost::{Buffers, PortOptions};

    fn run<O: Outlet, I: Inlet>(mut sender: Ends<O, I>, mut sink: Ends<O, I>, what: &str) {
        announce(&mut sender, &mut sink, 10).unwrap();
        let plan = Plan {
            size: 200,
            addresses: 10,
            flows: 1,
            sink: Sink::Count,
            warm: Duration::from_millis(10),
            time: Duration::from_millis(50),
        };
        let report = run_rate(&mut sender, &mut sink, &plan).unwrap();
        assert!(report.sent > 0, "{what}");
        assert_eq!((report.lost, report.wrong_length), (0, 0), "{what}");
    }

    /// Guests of both layouts, with and without mergeable buffers, get every frame that was sent, in its length.
    #[test]
    fn every_frame_arrives() {
        for (layout, mergeable) in [
            (Layout::Split, false),
            (Layout::Split, true),
            (Layout::Packed, false),
            (Layout::Packed, true),
        ] {
            let options = PortOptions {
                layout,
                mergeable,
                in_order: false,
                segments: false,
                buffers: [Buffers::of_dpdk(8); 2],
            };
            let ports = [(); 2].map(|()| Port::create(options).unwrap());
            let [a, b] = &ports;
            let ends = AtomicBool::new(false);
            let what = format!("{layout:?} {mergeable}");
            std::thread::scope(|threads| {
                let null = threads.spawn(|| forward([a, b], layout, &ends));
                match layout {
                    Layout::Split => run(a.split(), b.split(), &what),
                    Layout::Packed => run(a.packed(), b.packed(), &what),
                }
                ends.store(true, Relaxed);
                null.join().unwrap();
            });
        }
    }
}
