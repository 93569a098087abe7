//! Every frame is accounted for: workers in this process, between ports of the test's own, which refuse,
//! are full, and are shared, as real ones do.
//!
//! What must hold, when nothing moves any more, is for each member
//! `rx = unicast + flooded + local + ingress drops + held` and `offered = delivered + egress drops + held`, for
//! all together `offered = unicast + copies + copies for span members`, and what the ports themselves have
//! counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass_attach::endpoint::Rings;
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_bridge::fdb::{EntryFlags, FdbWriter, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, SNAP, TxId};
use windlass_shm::{Section, Tails};
use windlass_stats::{Drop, MemberTotals};
use windlass_tests::{Mac, frame, until};
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::{DataPlane, DataPlaneOptions, MemberTuning};

/// Frames between two looks at the clock.
const PIECE: u64 = 10_000;
const ALL: Mac = [0xff; 6];

/// An address as the engines have it: first byte lowest.
fn word(mac: Mac) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// The address of a member.
fn own(member: u16) -> Mac {
    let [high, low] = member.to_be_bytes();
    [0x02, 0, 0, 0, high, low]
}

/// Gives the frames that `make` writes, of the length that it returns, from the moment that `go` is set.
struct Source<F> {
    make: F,
    number: u64,
    count: u64,
    go: Arc<AtomicBool>,
    /// None: it has no way to notify.
    wake: Option<Arc<OwnedFd>>,
}

impl<F: FnMut(u64, &mut [u8]) -> usize + Send> RxPort for Source<F> {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let mut n = 0;
        if self.go.load(Ordering::Acquire) {
            while n < limit.frames.min(BURST) && self.number < self.count {
                let room = &mut heads.snap[n].0[HEADROOM..HEADROOM + SNAP];
                let len = (self.make)(self.number, room);
                heads.admit(n, len as u32, Claim::NONE);
                self.number += 1;
                n += 1;
            }
        }
        heads.n = n;
        let left = self.number < self.count && self.go.load(Ordering::Acquire);
        (
            Loan::default(),
            if left { More::Left } else { More::Drained },
        )
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        match self.go.load(Ordering::Acquire) && self.number < self.count {
            true => Armed::Work,
            false if self.wake.is_none() => Armed::Poll(100),
            false => Armed::Yes,
        }
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// What a receiver does besides counting.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    /// Takes everything.
    Willing,
    /// Takes half of a burst and is full, at every third call.
    OftenFull,
    /// Takes nothing.
    Stuck,
    /// Another worker is sending to it, at every sixteenth call.
    OftenBusy,
}

/// Counts what it takes; its one ring is locked while it does, so that a second worker finds it busy.
struct Sink {
    mood: Mood,
    calls: Mutex<u64>,
    frames: AtomicU64,
    busy: AtomicU64,
}

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        _: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        _: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let Ok(mut calls) = self.calls.try_lock() else {
            self.busy.fetch_add(1, Ordering::Relaxed);
            sent.stop = Stop::Busy;
            return sent;
        };
        *calls += 1;
        sent.taken = match self.mood {
            Mood::OftenBusy if calls.is_multiple_of(16) => {
                sent.stop = Stop::Busy;
                return sent;
            }
            Mood::Willing | Mood::OftenBusy => picks.len(),
            Mood::OftenFull if calls.is_multiple_of(3) => picks.len() / 2,
            Mood::OftenFull => picks.len(),
            Mood::Stuck => 0,
        };
        if lane.workers > 1 {
            // The longer a ring is held, the likelier the other worker comes meanwhile.
            std::thread::yield_now();
        }
        sent.frames = sent.taken as u64;
        sent.bytes = 60 * sent.frames;
        sent.stop = if sent.taken < picks.len() {
            Stop::Full
        } else {
            Stop::Done
        };
        sent.kick = Kick::No;
        debug_assert!(heads.n <= BURST);
        self.frames.fetch_add(sent.frames, Ordering::Relaxed);
        sent
    }

    fn kick(&self, _: Lane) {}
}

/// A bridge of members between ports of ours.
struct Bench {
    plane: DataPlane,
    bridge: u16,
    go: Arc<AtomicBool>,
    wakes: Vec<Arc<OwnedFd>>,
    /// Whether members that are added have no way to notify.
    is_mute: bool,
    members: Vec<(u16, Arc<Sink>)>,
    frames: u64,
}

impl Bench {
    fn start(workers: usize, entries: u32) -> Bench {
        let options = DataPlaneOptions {
            workers: vec![None; workers],
            members_max: 1024,
        };
        let mut plane = DataPlane::start(&options).expect("workers");
        let tuning = BridgeTuning {
            filtering: true,
            mac: 0,
        };
        let bridge = plane.add_bridge(tuning, Limits::new(entries, [1, 2]));
        Bench {
            plane,
            bridge,
            go: Arc::default(),
            wakes: Vec::new(),
            is_mute: false,
            members: Vec::new(),
            frames: 0,
        }
    }

    /// Adds a member that will send `count` frames of `make` and receives in this mood.
    fn add(
        &mut self,
        mood: Mood,
        count: u64,
        mut make: impl FnMut(u64) -> Vec<u8> + Send + 'static,
        change: impl FnOnce(&mut MemberConf),
    ) -> u16 {
        let write = move |number, room: &mut [u8]| {
            let bytes = make(number);
            room[..bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        };
        self.add_source(mood, count, write, change)
    }

    /// As [`Bench::add`], with frames written where they are sent from.
    fn add_source(
        &mut self,
        mood: Mood,
        count: u64,
        make: impl FnMut(u64, &mut [u8]) -> usize + Send + 'static,
        change: impl FnOnce(&mut MemberConf),
    ) -> u16 {
        let mut conf = MemberConf::new(TxId(0), word(own(self.members.len() as u16)));
        conf.storm_limit = 0;
        change(&mut conf);
        let mac = conf.mac;
        let tuning = MemberTuning::default();
        let id = self
            .plane
            .add_member(self.bridge, conf, tuning)
            .expect("a member");
        let bridge = self.bridge;
        let key = Key::new(1, mac);
        until("the member's own address is in the table", || {
            let add = move |writer: &mut FdbWriter<_>, now| {
                writer.add_fixed(key, id, EntryFlags::LOCAL, now).is_ok()
            };
            self.plane.ask_fdb(bridge, add).expect("the table")
        });
        let wake = Arc::new(windlass_sys::eventfd::create().expect("an eventfd"));
        let sink = Arc::new(Sink {
            mood,
            calls: Mutex::default(),
            frames: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        });
        let source = Source {
            make,
            number: 0,
            count,
            go: self.go.clone(),
            wake: (!self.is_mute).then(|| wake.clone()),
        };
        let rings = Rings {
            rx: vec![Box::new(source)],
            tx: sink.clone(),
        };
        self.plane.attach(id, rings).expect("attached");
        self.wakes.push(wake);
        self.members.push((id, sink));
        self.frames += count;
        id
    }

    fn totals(&self) -> Vec<MemberTotals> {
        let ids = self.members.iter();
        ids.map(|(id, _)| self.plane.totals(*id).expect("a member"))
            .collect()
    }

    /// Lets everybody send.
    fn release(&self) {
        self.go.store(true, Ordering::Release);
        for wake in &self.wakes {
            windlass_sys::eventfd::signal(wake.as_fd()).expect("signalled");
        }
    }

    /// Lets everybody send, waits until all has come to rest, checks every equation, and gives the totals.
    fn run(&self) -> Vec<MemberTotals> {
        self.release();
        until("every frame is taken and every number rests", || {
            let before = self.totals();
            std::thread::sleep(std::time::Duration::from_millis(50));
            let taken: u64 = before.iter().map(|t| t.ingress.frames).sum();
            taken == self.frames && before == self.totals()
        });
        let totals = self.totals();
        let sum = |of: fn(&MemberTotals) -> u64| totals.iter().map(of).sum::<u64>();
        for (total, (id, sink)) in totals.iter().zip(&self.members) {
            assert!(total.conserved(), "member {id}: {total:?}");
            let held = (total.ingress.held, total.egress.held);
            assert_eq!(held, (0, 0), "member {id} holds nothing at rest");
            assert_eq!(
                total.egress.frames,
                sink.frames.load(Ordering::Relaxed),
                "member {id}"
            );
        }
        assert_eq!(
            sum(|t| t.egress.offered),
            sum(|t| t.ingress.unicast) + sum(|t| t.ingress.copies) + sum(|t| t.egress.span_copies)
        );
        totals
    }
}

fn silent(_: u64) -> Vec<u8> {
    unreachable!("it sends nothing")
}

/// One worker: unicast, bursts of floods to 40 members (more than the 512 copies of a visit, so jobs finish
/// them), spoofed sources, unknown VLANs, receivers that are often full and one that takes nothing.
#[test]
fn one_worker_with_large_floods() {
    let mut bench = Bench::start(1, 8192);
    let make = |number: u64| match number % 10 {
        0..4 => frame(ALL, own(0), &[], "flood"),
        4 => frame(own(1), own(77), &[], "spoof"),
        5 => frame(own(1), own(0), &[windlass_tests::vlan_tag(9)], "denied"),
        6 => frame(own(2), own(0), &[], "stuck"),
        7 => frame(own(0), own(0), &[], "to itself"),
        8 => frame([0x01, 0x80, 0xc2, 0, 0, 1], own(0), &[], "reserved"),
        _ => frame(own(1), own(0), &[], "unicast"),
    };
    bench.add(Mood::Willing, 10_000, make, |_| ());
    bench.add(Mood::OftenFull, 0, silent, |_| ());
    bench.add(Mood::Stuck, 0, silent, |_| ());
    bench.add(Mood::Willing, 0, silent, |conf| conf.span = true);
    for member in 4..40 {
        let mood = if member % 10 == 0 {
            Mood::OftenFull
        } else {
            Mood::Willing
        };
        bench.add(mood, 0, silent, |_| ());
    }
    let totals = bench.run();
    let sender = totals[0].ingress;
    assert_eq!(sender.unicast, 2000);
    assert_eq!(
        sender.flooded + totals[0].drops[Drop::FloodBacklog as usize],
        4000
    );
    assert_eq!(sender.dropped, 4000 + 4000 - sender.flooded);
    // A flood that was not cut short reached all but its source and the span member.
    assert!(
        sender.copies >= (sender.flooded - sender.floods_cut) * 38,
        "{sender:?}"
    );
    assert!(
        totals[2].egress.dropped >= 1000 && totals[2].egress.frames == 0,
        "{:?}",
        totals[2]
    );
    assert!(totals[3].egress.span_copies > 0);
}

/// A VNIC's storm limit is the VNIC's: four rings on two workers get no more together than one does.
#[test]
fn a_storm_limit_is_for_all_rings() {
    const RATE: u32 = 10_000;
    let mut bench = Bench::start(2, 64);
    bench.add(Mood::Willing, 0, silent, |_| ());
    let mut conf = MemberConf::new(TxId(0), word(own(1)));
    conf.storm_limit = RATE;
    let id = bench
        .plane
        .add_member(bench.bridge, conf.clone(), MemberTuning::default())
        .expect("a member");
    let count = 5_000;
    let rx = (0..4).map(|_| {
        Box::new(Source {
            make: |_, room: &mut [u8]| {
                let bytes = frame(ALL, own(1), &[], "flood");
                room[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            },
            number: 0,
            count,
            go: bench.go.clone(),
            wake: None,
        }) as _
    });
    let rings = Rings {
        rx: rx.collect(),
        tx: bench.members[0].1.clone(),
    };
    bench.plane.attach(id, rings).expect("attached");
    let begun = Instant::now();
    bench.release();
    until("every frame is taken", || {
        // What has been used stays used when the member is changed.
        let tuning = MemberTuning::default();
        bench
            .plane
            .set_member(id, conf.clone(), tuning)
            .expect("set");
        let totals = bench.plane.totals(id).expect("a member");
        totals.ingress.frames == 4 * count
    });
    let totals = bench.plane.totals(id).expect("a member");
    let most = 501 + begun.elapsed().as_micros() as u64 * u64::from(RATE) / 1_000_000 + 1;
    let (flooded, storm) = (totals.ingress.flooded, totals.drops[Drop::Storm as usize]);
    assert_eq!(flooded + storm, 4 * count);
    assert!(
        (501..=most).contains(&flooded),
        "{flooded} flooded, at most {most}"
    );
}

/// Two workers send to one ring that only one of them can hold at a time: the other's frames wait in private memory, are sent
/// when the ring is free, and are dropped by name when they cannot wait longer.
#[test]
fn two_workers_share_a_ring() {
    let mut bench = Bench::start(2, 8192);
    let count = 20_000;
    for member in 0..4 {
        let make = move |number: u64| match number % 16 {
            0 => frame(ALL, own(member), &[], "flood"),
            _ => frame(own(4 + (number % 2) as u16), own(member), &[], "unicast"),
        };
        bench.add(Mood::Willing, count, make, |_| ());
    }
    bench.add(Mood::Willing, 0, silent, |_| ());
    bench.add(Mood::OftenFull, 0, silent, |_| ());
    let totals = bench.run();
    let workers = bench.plane.workers();
    assert!(
        workers.iter().all(|worker| worker.frames > 0),
        "both work: {workers:?}"
    );
    let busy: u64 = bench
        .members
        .iter()
        .map(|(_, sink)| sink.busy.load(Ordering::Relaxed))
        .sum();
    let spilled: u64 = totals.iter().map(|t| t.egress.spilled).sum();
    assert!(
        busy == 0 || spilled > 0,
        "{busy} times busy, {spilled} frames spilled"
    );
}

/// Frames for a ring that another worker holds at every sixteenth call all wait and arrive: who waits catches up.
#[test]
fn frames_for_a_busy_ring_wait() {
    let mut bench = Bench::start(1, 8192);
    let make = |number: u64| match number % 16 {
        0 => frame(ALL, own(0), &[], "flood"),
        _ => frame(own(1), own(0), &[], "unicast"),
    };
    bench.add(Mood::Willing, 20_000, make, |_| ());
    bench.add(Mood::OftenBusy, 0, silent, |_| ());
    let totals = bench.run();
    let busy = totals[1].egress;
    assert_eq!((busy.offered, busy.frames), (20_000, 20_000));
    assert!(busy.spilled > 1_000, "{busy:?}");
}

/// Frames above a member's `maxbw` wait, and are sent or dropped by name; what others are sent does not wait for them.
#[test]
fn frames_above_maxbw_wait() {
    let mut bench = Bench::start(1, 8192);
    let make = |number: u64| match number % 16 {
        0 => frame(ALL, own(0), &[], "flood"),
        n => frame(own(1 + (n % 2) as u16), own(0), &[], "unicast"),
    };
    bench.add(Mood::Willing, 20_000, make, |_| ());
    let slow = bench.add(Mood::OftenFull, 0, silent, |_| ());
    bench.add(Mood::Willing, 0, silent, |_| ());
    let tuning = MemberTuning {
        maxbw: 10_000_000,
        ..MemberTuning::default()
    };
    let mut conf = MemberConf::new(TxId(0), word(own(1)));
    conf.storm_limit = 0;
    bench.plane.set_member(slow, conf, tuning).expect("set");
    let totals = bench.run();
    let (slow, fast) = (&totals[1], totals[2].egress);
    assert_eq!((fast.offered, fast.frames), (11_250, 11_250));
    let queue_full = slow.drops[Drop::QueueFull as usize];
    assert!(queue_full > 0, "{slow:?}");
    // What a queue holds at 10 Mbit/s in its 100 ms, in frames of 60 bytes and more, and what came meanwhile.
    assert!(slow.egress.frames > 100, "{slow:?}");
}

/// Frames above their sender's `maxbw` wait, and go or are dropped by name, over two workers; what others send does not wait for
/// them.
#[test]
fn frames_above_their_senders_maxbw_wait() {
    let mut bench = Bench::start(2, 8192);
    let make = |from: u16| {
        move |number: u64| match number % 16 {
            0 => frame(ALL, own(from), &[], "flood"),
            n => frame(
                own((from + 1 + (n % 2) as u16) % 3),
                own(from),
                &[],
                "unicast",
            ),
        }
    };
    let slow = bench.add(Mood::OftenFull, 20_000, make(0), |_| ());
    bench.add(Mood::OftenBusy, 20_000, make(1), |_| ());
    bench.add(Mood::Willing, 20_000, make(2), |_| ());
    let tuning = MemberTuning {
        maxbw: 10_000_000,
        ..MemberTuning::default()
    };
    let mut conf = MemberConf::new(TxId(0), word(own(0)));
    conf.storm_limit = 0;
    bench.plane.set_member(slow, conf, tuning).expect("set");
    let totals = bench.run();
    let sent = |of: &MemberTotals| of.ingress.unicast + of.ingress.flooded;
    let queue_full = totals[0].drops[Drop::RxQueueFull as usize];
    assert!(queue_full > 0 && sent(&totals[0]) > 100, "{:?}", totals[0]);
    assert_eq!(totals[0].ingress.frames, 20_000);
    for other in &totals[1..] {
        assert_eq!(sent(other), 20_000, "{other:?}");
    }
}

/// A member that sends from ever new addresses (10 million; 300,000 in a debug build) fills the table, and
/// no more: what another member has learned before stays, memory is bounded, and the other's frames go
/// where they went.
#[test]
fn ten_million_sources() {
    let sources = if cfg!(debug_assertions) {
        300_000
    } else {
        10_000_000
    };
    let mut bench = Bench::start(1, 8192);
    let flooder = |number: u64| {
        let [_, _, _, _, b, c, d, e] = number.to_be_bytes();
        frame(own(1), [0x02, 0x10, b, c, d, e], &[], "new")
    };
    let honest = |number: u64| frame(own(0), [0x02, 0x20, 0, 0, 0, (number % 100) as u8], &[], "");
    let learn = |conf: &mut MemberConf| conf.nospoof = false;
    let first = bench.add(Mood::Willing, 1000, honest, learn);
    bench.add(Mood::Willing, 0, silent, |_| ());
    bench.run();
    let learned = |bench: &Bench, member: u16| {
        let entries = bench.plane.fdb_entries(bench.bridge).expect("a table");
        entries
            .iter()
            .filter(|entry| entry.member == member)
            .count()
    };
    until("the honest addresses are learned", || {
        learned(&bench, first) == 101
    });
    let second = bench.add(Mood::Willing, sources, flooder, learn);
    bench.run();
    assert_eq!(learned(&bench, first), 101, "the honest addresses stay");
    let others = learned(&bench, second);
    assert!(
        (1000..=8192).contains(&others),
        "{others} entries of the flooder"
    );
}

/// What ever new addresses of one member cost another: the frames a second that both get through, beside those of as many
/// frames from addresses that are known. Printed in a release build; no debug build is timed.
#[test]
fn new_sources_do_not_slow_others() {
    let count = if cfg!(debug_assertions) {
        20_000
    } else {
        10_000_000
    };
    // How long the honest one's pieces take, of `PIECE` frames each: other work on this machine only adds to some.
    let pieces = |addresses: u64| {
        let learn = |conf: &mut MemberConf| conf.nospoof = false;
        let mut bench = Bench::start(1, 8192);
        let moments = Arc::new(Mutex::new(Vec::new()));
        for (member, addresses) in [(0, 100), (1, addresses)] {
            let template = frame(own(2), own(member), &[], "");
            let moments = Arc::clone(&moments);
            let make = move |number: u64, room: &mut [u8]| {
                if member == 0 && number.is_multiple_of(PIECE) {
                    moments.lock().expect("no panic").push(Instant::now());
                }
                room[..template.len()].copy_from_slice(&template);
                let address = ((number % addresses) as u32).to_be_bytes();
                room[7..11].copy_from_slice(&address);
                template.len()
            };
            bench.add_source(Mood::Willing, count, make, learn);
        }
        bench.add(Mood::Willing, 0, silent, |_| ());
        bench.run();
        let moments = moments.lock().expect("no panic");
        let pairs = moments.windows(2);
        pairs.map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    let quartile = |mut pieces: Vec<Duration>| {
        pieces.sort();
        pieces[pieces.len() / 4].as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| quartile(pieces(100)) / quartile(pieces(u64::MAX)))
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("rate beside ever new sources / beside known ones: {ratios:.3?}");
    if !cfg!(debug_assertions) {
        assert!(ratios[2] > 0.9, "{ratios:?}");
    }
}

/// An address that moves between two members with every frame: moves are damped to the members' budgets,
/// no frame is lost for it, and the entry is one.
#[test]
fn an_address_moves_at_full_rate() {
    let mut bench = Bench::start(1, 8192);
    let count = 50_000;
    let learn = |conf: &mut MemberConf| conf.nospoof = false;
    let restless = [0x02, 0x30, 0, 0, 0, 1];
    for _ in 0..2 {
        let make = move |_| frame(own(2), restless, &[], "here, and there");
        bench.add(Mood::Willing, count, make, learn);
    }
    bench.add(Mood::Willing, 0, silent, |_| ());
    let totals = bench.run();
    assert_eq!(totals[2].egress.frames, 2 * count);
    let counts = bench.plane.fdb_counts(bench.bridge).expect("a table");
    // Each member has 1,000 moves at once, and 40 a second come back.
    assert!(counts.moved <= 2 * 1000 + 2 * 40 * 15, "{counts:?}");
    let entries = bench.plane.fdb_entries(bench.bridge).expect("a table");
    let key = Key::new(1, word(restless));
    assert_eq!(entries.iter().filter(|entry| entry.key == key).count(), 1);
}

/// The worker that keeps a bridge's table sleeps, and learns all the same what another worker sees: a new address, and one
/// that has moved.
#[test]
fn a_table_learns_while_its_worker_sleeps() {
    let mut bench = Bench::start(2, 8192);
    let restless = [0x02, 0x40, 0, 0, 0, 1];
    let key = Key::new(1, word(restless));
    for _ in 0..2 {
        // Rings go to the workers by turns: the silent member's to the worker that keeps the table.
        bench.go = Arc::default();
        bench.add(Mood::Willing, 0, silent, |_| ());
        let make = move |_| frame(own(0), restless, &[], "from elsewhere");
        let member = bench.add(Mood::Willing, 1, make, |conf| conf.nospoof = false);
        let sleeps = || bench.plane.workers().iter().map(|w| w.sleeps).sum::<u64>();
        until("both workers sleep", || {
            let before = sleeps();
            std::thread::sleep(Duration::from_millis(20));
            before == sleeps()
        });
        bench.go.store(true, Ordering::Release);
        let wake = bench.wakes.last().expect("the sender's");
        windlass_sys::eventfd::signal(wake.as_fd()).expect("signalled");
        until("the address is learned behind its last sender", || {
            let entries = bench.plane.fdb_entries(bench.bridge).expect("a table");
            entries
                .iter()
                .any(|entry| entry.key == key && entry.member == member)
        });
    }
}

/// A ring whose peer has no way to notify is heard again after it was idle, however long.
#[test]
fn a_peer_without_a_kick_is_heard_again() {
    let mut bench = Bench::start(1, 8192);
    bench.is_mute = true;
    let make = |_| frame(own(1), own(0), &[], "unicast");
    bench.add(Mood::Willing, 1, make, |_| ());
    bench.add(Mood::Willing, 0, silent, |_| ());
    std::thread::sleep(Duration::from_millis(50));
    let totals = bench.run();
    assert_eq!(totals[1].egress.frames, 1);
}

/// Whoever gets the number of a member that was removed gets nothing that was learned behind it: not what other workers had
/// posted, and the table's worker, which was late, had not yet learned.
#[test]
fn a_number_that_is_used_again_has_learned_nothing() {
    const WORKERS: u8 = 8;
    let mut bench = Bench::start(usize::from(WORKERS), 65_536);
    bench.add(Mood::Willing, 0, silent, |_| ());
    let former = bench.add(Mood::Willing, 0, silent, |conf| conf.nospoof = false);
    bench.plane.detach(former).expect("detached");
    let source = |worker: u8| -> Box<dyn RxPort> {
        let make = move |number: u64, room: &mut [u8]| {
            let [.., high, low] = number.to_be_bytes();
            let bytes = frame(own(0), [0x02, 0x50, 0, worker, high, low], &[], "ever new");
            room[..bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        };
        Box::new(Source {
            make,
            number: 0,
            count: u64::MAX,
            go: bench.go.clone(),
            wake: Some(bench.wakes[1].clone()),
        })
    };
    // The first worker has the table, and is late.
    let rings = Rings {
        rx: (0..WORKERS).map(source).collect(),
        tx: bench.members[1].1.clone(),
    };
    bench.plane.attach(former, rings).expect("attached");
    let (go_on, late) = std::sync::mpsc::channel::<()>();
    let stand_still = move |_: &mut FdbWriter<_>, _| {
        let _ = late.recv_timeout(Duration::from_secs(4));
    };
    bench
        .plane
        .fdb(bench.bridge, stand_still)
        .expect("the table");
    bench.release();
    // More than the table's worker takes of all others in two of its rounds. What a member posts is paced.
    let most = 2 * 256 * u64::from(WORKERS - 1);
    let posted = || -> u64 { bench.plane.workers().iter().map(|w| w.sightings).sum() };
    until("enough is posted", || posted() > most);
    bench.go.store(false, Ordering::Release);
    let posted = posted();
    let reminder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(go_on);
    });
    bench.plane.remove_members(&[former]).expect("removed");
    reminder.join().expect("no panic");
    let conf = MemberConf::new(TxId(0), word(own(1)));
    let (bridge, tuning) = (bench.bridge, MemberTuning::default());
    let id = bench.plane.add_member(bridge, conf, tuning).expect("added");
    assert_eq!(id, former);
    let all = move |writer: &mut FdbWriter<_>, _| writer.member_len(id);
    let learned = bench.plane.ask_fdb(bridge, all).expect("the table");
    assert_eq!(learned, (0, 0), "of {posted} sightings");
}

/// Its memory is invalid.
struct Broken(Arc<OwnedFd>);

impl RxPort for Broken {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        _: Limit,
    ) -> (Loan, More) {
        heads.n = 0;
        (Loan::default(), More::Dead)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// A port that a worker has found dead is told while it is attached, and not when another one has come in its place.
#[test]
fn who_comes_after_a_dead_port_is_not_condemned() {
    let mut bench = Bench::start(1, 8192);
    let id = bench.add(Mood::Willing, 0, silent, |_| ());
    for is_late in [false, true] {
        bench.plane.detach(id).expect("detached");
        let broken = Broken(bench.wakes[0].clone());
        let rings = Rings {
            rx: vec![Box::new(broken)],
            tx: bench.members[0].1.clone(),
        };
        bench.plane.attach(id, rings).expect("attached");
        let mut alarm = [rustix::event::PollFd::from_borrowed_fd(
            bench.plane.alarm(),
            rustix::event::PollFlags::IN,
        )];
        let patience = rustix::time::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        let heard = rustix::event::poll(&mut alarm, Some(&patience)).expect("poll");
        assert_eq!(heard, 1);
        if is_late {
            bench.plane.detach(id).expect("detached");
            let rings = Rings {
                rx: Vec::new(),
                tx: bench.members[0].1.clone(),
            };
            bench.plane.attach(id, rings).expect("attached");
        }
        let condemned = bench.plane.take_condemned();
        assert_eq!(condemned.len(), usize::from(!is_late), "{condemned:?}");
    }
}

/// A ring whose descriptor the kernel does not watch is told of: it would never be heard again once its worker sleeps.
#[test]
fn a_ring_that_cannot_wake_its_worker_is_condemned() {
    let mut bench = Bench::start(1, 8192);
    let id = bench.add(Mood::Willing, 0, silent, |_| ());
    bench.plane.detach(id).expect("detached");
    let file = std::fs::File::open("/proc/self/exe").expect("a file, which epoll refuses");
    let source = Source {
        make: |_: u64, _: &mut [u8]| unreachable!("it sends nothing"),
        number: 0,
        count: 0,
        go: bench.go.clone(),
        wake: Some(Arc::new(file.into())),
    };
    let rings = Rings {
        rx: vec![Box::new(source)],
        tx: bench.members[0].1.clone(),
    };
    bench.plane.attach(id, rings).expect("attached");
    let mut condemned = Vec::new();
    until("it is condemned", || {
        condemned.extend(bench.plane.take_condemned());
        !condemned.is_empty()
    });
    assert_eq!(condemned[0].member, id);
    assert!(
        condemned[0].reason.contains("does not watch"),
        "{condemned:?}"
    );
}

/// Time in visits that find nothing is counted.
#[test]
fn polling_is_counted() {
    let mut bench = Bench::start(1, 8192);
    bench.add(Mood::Willing, 0, silent, |_| ());
    until("an empty visit is counted with its time", || {
        let worker = bench.plane.workers()[0];
        worker.visits_empty > 0 && worker.polling_cycles > 0
    });
}
