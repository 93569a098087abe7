//! Guests behind an IOMMU with packed rings whose back end is killed: the next one has no translation to begin with, and so
//! cannot see where the rings stand.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;
mod vhost_iommu;

use std::path::{Path, PathBuf};

use vhost_drive::{Guest, LOW, LOW_BYTES, Layout, ONE, Packedq, Station};
use vhost_front::{FEATURES, Host, Queue, RING, SERVER, conf};
use vhost_iommu::*;
use windlass_attach::endpoint::Endpoint;
use windlass_attach::port::Stop;
use windlass_attach::vhost_user::features::IN_ORDER;
use windlass_sys::eventfd;

/// Each chain is given back by a store of its own.
const ASKED: u64 = FEATURES & !IN_ORDER;
/// Descriptors of a ring on its first page; the others are on another one, which does not follow it in memory.
const FIRST: u64 = 32;
/// Chains of a burst each way.
const BURST: usize = 3;

fn frame(number: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend((14..900).map(|i| number ^ (i as u8)));
    bytes
}

/// A guest whose rings go over the border of two pages.
fn queues() -> (std::sync::Arc<Guest>, Vec<Queue>) {
    let guest = Guest::new();
    let queue = |number: u32| {
        let page = LOW + u64::from(number) * 0x1_0000 + 0x8000;
        let desc = page + PAGE - FIRST * 16;
        let events = (page - 0x2000, page - 0x3000);
        let mut queue = Queue::new(&guest, Layout::Packed, number);
        queue.ring = Box::new(Packedq::at(&guest, desc, events, RING, 0x8000));
        queue
    };
    let queues = (0..2).map(queue).collect();
    (guest, queues)
}

/// What a case is made of.
struct Lab {
    _directory: tempfile::TempDir,
    path: PathBuf,
    /// The file of our own, if it is that which is tried.
    own: Option<PathBuf>,
}

impl Lab {
    fn host(&self) -> Host {
        let mut conf = conf(&self.path, SERVER, 1);
        if let Some(parent) = self.own.as_ref().and_then(|own| own.parent()) {
            let _ = std::fs::create_dir(parent);
        }
        conf.ring_progress = self.own.clone();
        Host::new(conf)
    }

    /// Kills a back end: nothing is said, nothing is cleaned up but what the kernel does.
    fn kill(&self, mut host: Host) {
        drop(host.rings.take());
        drop(host);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A machine whose rings' second pages are where they are.
fn machine(host: &mut Host, path: &Path) -> Machine {
    let mut machine = Machine::of(host, path, queues(), ASKED);
    for queue in 0..2 {
        let second = Guest::offset(machine.queues[queue].ring.setup(0).desc + FIRST * 16) as u64;
        let before = iova_of(second - PAGE);
        machine.moved.insert(before + PAGE, second);
    }
    machine
}

/// The bytes of a ring's descriptors.
fn descriptors(machine: &Machine, queue: usize) -> Vec<u8> {
    let desc = machine.queues[queue].ring.setup(0).desc;
    machine.guest.read(desc, usize::from(RING) * 16)
}

/// Sends what a guest has sent and receives frames for it, one each way, `count` times.
fn warm_up(host: &mut Host, machine: &mut Machine, station: &mut Station, count: u16) {
    for i in 0..count {
        let number = i as u8;
        machine.send(0, &frame(number));
        machine.offer(0);
        let (mut got, mut taken) = (Vec::new(), 0);
        while got.is_empty() || taken == 0 {
            let rings = host.rings.as_mut().expect("rings");
            if got.is_empty() {
                got = station.receive(rings.rx[0].as_mut());
            }
            if taken == 0 {
                taken = station.send(rings.tx.as_ref(), ONE, &[frame(number)]).taken;
            }
            if got.is_empty() || taken == 0 {
                machine.answer(host);
            }
        }
        assert_eq!(got, [Ok(frame(number))]);
        assert_eq!(machine.queues[0].ring.reap().len(), 1);
        assert_eq!(machine.queues[1].ring.reap().len(), 1);
    }
}

/// A burst through each ring, of whose publication only so many stores were done.
fn publish_a_part(host: &mut Host, machine: &mut Machine, station: &mut Station, done: [usize; 2]) {
    // What it lies in is known, so that it is one burst.
    let table = iova_of(LOW_BYTES + 2 * PAGE);
    let buffers = [0, 1].map(|q| (0..BURST as u16).map(move |id| buffer(q, id) / PAGE * PAGE));
    for page in buffers.into_iter().flatten().chain([table]) {
        assert_eq!(machine.tell(host, page, BOTH), 0);
        assert_eq!(machine.tell(host, page + PAGE, BOTH), 0);
    }
    for id in 0..BURST as u16 {
        machine.send(id, &frame(id as u8));
        machine.offer(id);
    }
    let at = [0, 1].map(|q| machine.queues[q].ring.base().used);
    let before = [0, 1].map(|q| descriptors(machine, q));
    let (mut got, mut taken) = (0, 0);
    while got == 0 || taken == 0 {
        let rings = host.rings.as_mut().expect("rings");
        if got == 0 {
            got = station.receive(rings.rx[0].as_mut()).len();
        }
        if taken == 0 {
            let frames = [7, 8, 9].map(frame);
            taken = station.send(rings.tx.as_ref(), ONE, &frames).taken;
        }
        if got == 0 || taken == 0 {
            machine.answer(host);
        }
        assert!([0, BURST].contains(&got) && [0, BURST].contains(&taken));
    }
    for queue in 0..2 {
        // The stores were done from the end on: the first ones are missing.
        for chain in 0..BURST - done[queue] {
            let slot = (at[queue] + chain as u16) % RING;
            let byte = usize::from(slot) * 16 + 8;
            let desc = machine.queues[queue].ring.setup(0).desc;
            let word = &before[queue][byte..byte + 8];
            assert_ne!(machine.guest.read(desc + byte as u64, 8), word);
            machine.guest.write(desc + byte as u64, word);
        }
    }
}

/// While a page of a ring is not translated, nothing is taken from it, nothing is put into it, and nothing of it is written;
/// whatever the order in which pages become known.
fn waits_for_its_pages(host: &mut Host, machine: &Machine, station: &mut Station, skewed: bool) {
    let before = [0, 1].map(|q| descriptors(machine, q));
    let mut asked = Vec::new();
    for _ in 0..3 {
        let rings = host.rings.as_mut().expect("rings");
        assert_eq!(station.receive(rings.rx[0].as_mut()), []);
        let sent = station.send(rings.tx.as_ref(), ONE, &[frame(66)]);
        assert_eq!(sent.taken, 0);
        assert!(matches!(sent.stop, Stop::Busy | Stop::Full));
        asked.extend(machine.questions(host));
    }
    assert!(asked.len() >= 4, "two pages of each ring: {asked:x?}");
    if skewed {
        asked.reverse();
    }
    let pages = [0, 1].map(|q| {
        let desc = machine.queues[q].ring.setup(0).desc;
        let first = iova_of(Guest::offset(desc) as u64) / PAGE * PAGE;
        [first, first + PAGE]
    });
    let mut missing: Vec<u64> = pages.into_iter().flatten().collect();
    for (iova, _) in asked {
        let rings = host.rings.as_mut().expect("rings");
        let lacks = |queue: usize| pages[queue].iter().any(|page| missing.contains(page));
        if lacks(1) {
            assert_eq!(station.receive(rings.rx[0].as_mut()), []);
            assert_eq!(descriptors(machine, 1), before[1]);
        }
        if lacks(0) {
            let sent = station.send(rings.tx.as_ref(), ONE, &[frame(66)]);
            assert_eq!(sent.taken, 0);
            assert_eq!(descriptors(machine, 0), before[0]);
        }
        assert_eq!(machine.tell(host, iova, BOTH), 0);
        missing.retain(|page| *page != iova);
    }
}

/// One kill with so many stores of a publication of each ring done, the guest's own frames' last.
fn killed_once(lab: &Lab, start: u16, done: [usize; 2]) {
    let what = format!(
        "from {start}, {done:?} stores, own file: {}",
        lab.own.is_some()
    );
    let mut host = lab.host();
    let mut machine = machine(&mut host, &lab.path);
    let kept = lab
        .own
        .is_none()
        .then(|| machine.front.inflight_region(&mut host));
    assert_eq!(host.detail("survives-a-kill"), "yes");
    let mut station = Station::new();
    warm_up(&mut host, &mut machine, &mut station, start);
    publish_a_part(&mut host, &mut machine, &mut station, done);
    lab.kill(host);
    let unseen = [0, 1].map(|q| machine.queues[q].ring.reap().len());
    assert_eq!(
        unseen,
        done.map(|n| if n == BURST { BURST } else { 0 }),
        "{what}"
    );
    machine.send(3, &frame(200));
    for queue in &machine.queues {
        let _ = eventfd::drain(&queue.call);
    }

    let mut next = lab.host();
    machine.reconnect(&mut next, &lab.path, ASKED, kept.as_ref());
    for queue in &machine.queues {
        assert!(
            eventfd::drain(&queue.call).is_ok_and(|n| n > 0),
            "{what}: what was owed"
        );
    }
    waits_for_its_pages(&mut next, &machine, &mut station, !start.is_multiple_of(2));
    let mut got = Vec::new();
    let burst = if done[1] == 0 {
        vec![0, 1, 2, 200]
    } else {
        vec![200]
    };
    while got.len() < burst.len() {
        let rings = next.rings.as_mut().expect("rings");
        let came = station.receive(rings.rx[0].as_mut());
        if came.is_empty() {
            assert!(machine.answer(&mut next) > 0, "{what}: {} came", got.len());
        }
        got.extend(came);
    }
    let expected: Vec<_> = burst.into_iter().map(|number| Ok(frame(number))).collect();
    assert_eq!(got, expected, "{what}");
    let ids: Vec<u16> = machine.queues[1]
        .ring
        .reap()
        .iter()
        .map(|(id, _)| *id)
        .collect();
    let seen = if done[1] == BURST {
        &[3][..]
    } else {
        &[0, 1, 2, 3]
    };
    assert_eq!(ids, seen, "{what}");

    receives_again(&mut next, &mut machine, &mut station, done[0], &what);
    next.endpoint.delete();
}

/// The guest gets its buffers back that it had not seen, and the next frame in the one behind them, or in the first one if
/// nothing was done.
fn receives_again(
    host: &mut Host,
    machine: &mut Machine,
    station: &mut Station,
    done: usize,
    what: &str,
) {
    machine.offer(3);
    let mut taken = 0;
    while taken == 0 {
        let tx = host.rings.as_ref().expect("rings").tx.clone();
        let sent = station.send(tx.as_ref(), ONE, &[frame(9)]);
        taken = sent.taken;
        if taken == 0 {
            machine.answer(host);
        } else {
            assert_eq!(sent.frames, 1, "{what}");
        }
    }
    let full = frame(9).len() as u32 + 12;
    let expected = match done {
        0 => vec![(0, full)],
        BURST => vec![(3, full)],
        _ => vec![(0, 0), (1, 0), (2, 0), (3, full)],
    };
    let came = machine.queues[0].ring.reap();
    assert_eq!(came, expected, "{what}");
    let id = expected[expected.len() - 1].0;
    assert_eq!(
        machine.read(buffer(0, id) + 12, full as usize - 12),
        frame(9)
    );
}

/// Packed rings of a guest behind an IOMMU go on after a kill of the back end, wherever they stood and whichever of the
/// stores of a publication had been done: with a file of our own, and with the region that the front end keeps. The next
/// back end does nothing with a ring until all of its pages are translated; then nothing that the guest has sent is lost
/// or comes twice that it has seen done, and its buffers come back.
#[test]
fn packed_rings_behind_an_iommu_survive_a_kill() {
    // It has to be in memory.
    let shared = match tempfile::tempdir_in("/dev/shm") {
        Ok(shared) => Some(shared),
        Err(error) => {
            println!("skipped: a file of our own behind an IOMMU: no tmpfs at /dev/shm: {error}");
            None
        }
    };
    let own = shared
        .as_ref()
        .map(|shared| Some(shared.path().join("rings/machine")));
    let mut cases = 0;
    for kept in [Some(None), own].into_iter().flatten() {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = Lab {
            path: directory.path().join("s"),
            _directory: directory,
            own: kept,
        };
        for start in [0, 1, 30, 31, 62, 63, 64, 95] {
            for done in (0..16).map(|n| [n % 4, n / 4]) {
                killed_once(&lab, start, done);
                cases += 1;
            }
        }
    }
    assert_eq!(cases, if shared.is_some() { 256 } else { 128 });
}
