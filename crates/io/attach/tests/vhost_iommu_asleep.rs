//! Guests behind an IOMMU whose worker sleeps, as a real one does, whenever it may: no ring is left waiting, whenever the
//! front end answers, takes translations back, loses a question, or meets another back end.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;
mod vhost_iommu;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost_drive::{LAYOUTS, Layout, Station};
use vhost_front::{FEATURES, Host, SERVER, conf};
use vhost_iommu::*;
use windlass_attach::endpoint::{Endpoint, Rings};
use windlass_attach::port::{Armed, More};
use windlass_attach::vhost_user::features::IN_ORDER;
use windlass_sys::epoll::{Epoll, Events, Interest};

/// Each chain is given back by a store of its own.
const ASKED: u64 = FEATURES & !IN_ORDER;
/// How long a ring with something in it may stand still: longer than a question waits that was lost, and asked again twice.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How long guests send bursts.
const TIME: Duration = Duration::from_secs(5);
/// Frames of a burst at most.
const BURST: u16 = 7;

fn frame(number: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend((14..900).map(|i| number ^ (i as u8)));
    bytes
}

/// A worker that visits the guest's transmit ring, and sleeps until it is woken whenever the ring lets it.
struct Sleeper {
    stop: Arc<AtomicBool>,
    came: Receiver<u8>,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn start(rings: Rings) -> Sleeper {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, came) = channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || work(rings, &stopped, &tell));
        Sleeper { stop, came, thread }
    }

    /// What it received until it was stopped, in the middle of whatever it did.
    fn kill(self) -> Vec<u8> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the worker");
        self.came.try_iter().collect()
    }
}

fn work(mut rings: Rings, stop: &AtomicBool, came: &Sender<u8>) {
    let mut station = Station::new();
    let rx = rings.rx[0].as_mut();
    let (epoll, mut events) = (Epoll::create().expect("a set"), Events::default());
    let wake = rx.wake().expect("the guest kicks");
    let added = epoll.add(wake, 0, Interest::READABLE_EDGE);
    added.expect("in the set");
    rx.disarm(&station.worker.section());
    while !stop.load(Ordering::Relaxed) {
        let (numbers, more) = station.visit(rx, |_, heads, tails, more| {
            let each = (0..heads.n).map(|i| vhost_drive::frame(heads, tails, i));
            (each.collect::<Vec<_>>(), more)
        });
        for bytes in numbers {
            let bytes = bytes.expect("a frame");
            let number = bytes[14] ^ 14;
            assert_eq!(bytes, frame(number));
            let _ = came.send(number);
        }
        assert_ne!(more, More::Dead);
        if more == More::Left || rx.arm(&station.worker.section()) == Armed::Work {
            continue;
        }
        while !stop.load(Ordering::Relaxed) {
            let _ = epoll.wait(&mut events, Some(Duration::from_millis(5)));
            if events.iter().next().is_some() {
                break;
            }
        }
        rx.disarm(&station.worker.section());
    }
}

/// Numbers that follow from a seed (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A guest with its front end, and the back end with its worker.
struct Lab<'a> {
    path: &'a Path,
    places: Option<PathBuf>,
    host: Host,
    worker: Option<Sleeper>,
    machine: Machine,
    chance: Chance,
    /// Questions, and when each is to be answered.
    asked: Vec<(Instant, u64)>,
    kills: usize,
}

fn host(path: &Path, places: Option<&PathBuf>) -> Host {
    let mut conf = conf(path, SERVER, 1);
    conf.ring_progress = places.cloned();
    Host::new(conf)
}

impl Lab<'_> {
    fn start(path: &Path, places: Option<PathBuf>, layout: Layout, seed: u64) -> Lab<'_> {
        let mut host = host(path, places.as_ref());
        let machine = Machine::start(&mut host, path, layout, ASKED);
        let worker = Some(Sleeper::start(host.rings.take().expect("rings")));
        Lab {
            path,
            places,
            host,
            worker,
            machine,
            chance: Chance(seed),
            asked: Vec::new(),
            kills: 0,
        }
    }

    /// Kills the back end, and has the front end find another one. What it had been asked is forgotten.
    fn kill(&mut self, came: &mut BTreeSet<u8>) {
        came.extend(self.worker.take().into_iter().flat_map(Sleeper::kill));
        let _ = std::fs::remove_file(self.path);
        self.host = host(self.path, self.places.as_ref());
        self.machine
            .reconnect(&mut self.host, self.path, ASKED, None);
        self.worker = Some(Sleeper::start(self.host.rings.take().expect("rings")));
        self.asked.clear();
        self.kills += 1;
    }

    /// One step of the front end: it answers late, in any order, and takes everything back at any time.
    fn step(&mut self) {
        self.host.step();
        let now = Instant::now();
        while let Some((iova, _)) = self.machine.question() {
            let late = Duration::from_micros(self.chance.below(60));
            self.asked.push((now + late, iova));
        }
        let (due, later) = self.asked.drain(..).partition(|(at, _)| *at <= now);
        self.asked = later;
        let due: Vec<_> = due;
        for (_, iova) in due {
            assert_eq!(self.machine.tell(&mut self.host, iova, BOTH), 0);
            if self.chance.below(40) == 0 {
                self.machine.take_back(&mut self.host, IOVA, PAGES * PAGE);
            }
        }
    }

    /// Has the guest send a burst, and say nothing more until it has all of it back.
    fn burst(&mut self, kills: bool) {
        let count = 1 + self.chance.below(u64::from(BURST)) as u16;
        let ids: BTreeSet<u16> = (0..count).map(|k| k * 2).collect();
        for id in &ids {
            self.machine.send(*id, &frame(*id as u8));
        }
        let (mut left, mut came) = (ids.clone(), BTreeSet::new());
        let mut since = Instant::now();
        while !left.is_empty() {
            self.step();
            if kills && self.chance.below(150) == 0 {
                self.kill(&mut came);
            }
            for (id, _) in self.machine.queues[1].ring.reap() {
                assert!(left.remove(&id), "{id} came back twice");
                since = Instant::now();
            }
            let detail = || self.host.detail("iommu");
            let stands = since.elapsed();
            assert!(stands < STANDSTILL, "{left:?} are left: {}", detail());
        }
        let numbers = ids.iter().map(|id| *id as u8).collect();
        while came != numbers {
            let worker = self.worker.as_ref().expect("a worker");
            let number = worker.came.recv_timeout(STANDSTILL);
            came.insert(number.expect("what was given back was received"));
        }
    }
}

/// Bursts of a guest that kicks once and then waits, with and without kills; how many kills there were.
fn run(layout: Layout, seed: u64, kills: bool) -> usize {
    let directory = tempfile::tempdir().expect("a directory");
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    let places = memory.as_ref().map(|memory| memory.path().join("rings"));
    let kills = kills && (layout == Layout::Split || places.is_some());
    let path = directory.path().join("s");
    let mut lab = Lab::start(&path, places, layout, seed);
    let end = Instant::now() + TIME;
    let mut bursts = 0;
    while Instant::now() < end {
        lab.burst(kills);
        if lab.chance.below(3) == 0 {
            let Lab { host, machine, .. } = &mut lab;
            machine.take_back(host, IOVA, PAGES * PAGE);
        }
        bursts += 1;
    }
    println!(
        "{layout:?}, seed {seed}: {bursts} bursts, {} kills",
        lab.kills
    );
    drop(lab.worker.take().map(Sleeper::kill));
    lab.kills
}

/// A ring's worker may sleep while the ring waits for translations, and is woken by each answer and each invalidation, at
/// whatever moment they come: the guest, which says nothing more, gets all of every burst back, and each of its frames was
/// received. So too when the back end is killed in between, again and again.
#[test]
fn no_ring_is_left_asleep() {
    // More threads than cores: what happens between any two steps of one can be seen by the other.
    let kills: usize = std::thread::scope(|scope| {
        let seeds = [0x9e37_79b9, 0x7f4a_7c15, 0xf39c_c060, 0x5ced_c834];
        let all = LAYOUTS
            .into_iter()
            .flat_map(|layout| seeds.map(|seed| (layout, seed)));
        let start = |(layout, seed)| scope.spawn(move || run(layout, seed, seed % 2 == 1));
        let running: Vec<_> = all.map(start).collect();
        let ended = running.into_iter().map(|one| one.join().expect("a guest"));
        ended.sum()
    });
    assert!(kills > 0);
}

/// A question that the front end loses is asked again, after a while, and more and more seldom; with the answer the ring goes
/// on by itself. Nothing else happens meanwhile that anybody would notice.
#[test]
fn a_lost_question_is_asked_again() {
    for layout in LAYOUTS {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let mut lab = Lab::start(&path, None, layout, 1);
        lab.machine.send(0, &frame(0));
        let mut last: Option<Instant> = None;
        let mut waits = Vec::new();
        while waits.len() < 2 {
            lab.host.step();
            let now = Instant::now();
            let asked = std::iter::from_fn(|| lab.machine.question()).count();
            let silence = last.map(|last| now - last);
            if asked > 0 {
                waits.extend(silence.filter(|silence| *silence > Duration::from_millis(200)));
                last = Some(now);
            }
            assert!(silence.is_none_or(|silence| silence < STANDSTILL));
            let deadline = lab.host.endpoint.deadline();
            assert!(asked == 0 || deadline.is_some(), "nobody would look");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(waits[1] > waits[0], "{waits:?}");
        let end = Instant::now() + STANDSTILL;
        while lab.machine.queues[1].ring.reap().is_empty() {
            assert!(Instant::now() < end, "{}", lab.host.detail("iommu"));
            lab.step();
        }
        drop(lab.worker.take().map(Sleeper::kill));
    }
}
