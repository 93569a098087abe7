//! A front end that changes at run time how many of a guest's queues are in use: the others do not notice.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;
mod vhost_iommu;

use std::path::Path;
use std::sync::Arc;

use vhost_drive::{Guest, LAYOUTS, Layout, ONE, Station, put};
use vhost_front::{FEATURES, Front, Host, Queue, RING, SERVER, conf};
use windlass_attach::port::{Armed, Kick, Stop, TxPort};
use windlass_attach::vhost_user::message::Code;
use windlass_frame::{Pick, RxId, Tick};
use windlass_shm::Tails;
use windlass_sys::eventfd;

const PAIRS: u16 = 4;
const ROUNDS: u32 = 400;

/// A guest with several queue pairs, with or without an IOMMU.
enum Machine {
    Plain(vhost_front::Machine),
    Iommu(vhost_iommu::Machine),
}

impl Machine {
    fn start(host: &mut Host, path: &Path, layout: Layout, behind: bool) -> Machine {
        if !behind {
            let pairs = u32::from(PAIRS);
            return Machine::Plain(vhost_front::Machine::start(host, path, layout, pairs));
        }
        let guest = Guest::new();
        let queue = |number| Queue::new(&guest, layout, number);
        let queues = (0..u32::from(PAIRS) * 2).map(queue).collect();
        let known = (guest, queues);
        Machine::Iommu(vhost_iommu::Machine::of(host, path, known, FEATURES))
    }

    fn front(&self) -> &Front {
        match self {
            Machine::Plain(machine) => &machine.front,
            Machine::Iommu(machine) => &machine.front,
        }
    }

    fn queues(&mut self) -> &mut [Queue] {
        match self {
            Machine::Plain(machine) => &mut machine.queues,
            Machine::Iommu(machine) => &mut machine.queues,
        }
    }

    fn guest(&self) -> Arc<Guest> {
        match self {
            Machine::Plain(machine) => machine.guest.clone(),
            Machine::Iommu(machine) => machine.guest.clone(),
        }
    }

    /// Answers what is asked of translations.
    fn answer(&self, host: &mut Host) {
        match self {
            Machine::Plain(_) => (0..3).for_each(|_| host.step()),
            Machine::Iommu(machine) => drop(machine.answer(host)),
        }
    }

    /// Where buffer `id` of queue `queue` is for the device, and for us.
    fn buffer(&self, queue: usize, id: u16) -> (u64, u64) {
        let gpa = vhost_drive::HIGH + (queue as u64 * u64::from(RING) + u64::from(id)) * 4096;
        let device = match self {
            Machine::Plain(_) => gpa,
            Machine::Iommu(_) => vhost_iommu::iova_of(Guest::offset(gpa) as u64),
        };
        (device, gpa)
    }

    fn offer(&mut self, queue: usize, id: u16) {
        let (device, _) = self.buffer(queue, id);
        self.queues()[queue].ring.offer_one(id, device, 2048, 2);
    }

    fn send(&mut self, queue: usize, id: u16, bytes: &[u8]) {
        let (device, gpa) = self.buffer(queue, id);
        let guest = self.guest();
        guest.write(gpa, &[0; 12]);
        guest.write(gpa + 12, bytes);
        let ring = &mut self.queues()[queue].ring;
        ring.offer_one(id, device, bytes.len() as u32 + 12, 0);
        let _ = eventfd::signal(&self.queues()[queue].kick);
    }

    /// The numbers of the frames that came to a queue; its buffers are offered again.
    fn take(&mut self, queue: usize) -> Vec<u32> {
        let mut got = Vec::new();
        for (id, bytes) in self.queues()[queue].ring.reap() {
            let (_, gpa) = self.buffer(queue, id);
            let bytes = self.guest().read(gpa + 12, bytes as usize - 12);
            got.push(u32::from_ne_bytes(bytes[14..18].try_into().expect("4")));
            self.offer(queue, id);
        }
        got
    }

    fn switch(&self, host: &mut Host, pair: u32, on: bool) {
        for queue in [pair * 2, pair * 2 + 1] {
            let state = windlass_attach::vhost_user::message::queue_state(queue, on.into());
            let code = Code::SET_VRING_ENABLE;
            assert_eq!(self.front().acknowledged(host, code, &state, &[]), 0);
        }
    }
}

fn frame(number: u32) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend(number.to_ne_bytes());
    bytes.resize(60, 0);
    bytes
}

/// Transmits one frame to ring `ring`, or whichever it is to go to instead; whether it was taken.
fn send_on(station: &mut Station, tx: &dyn TxPort, ring: u8, bytes: &[u8]) -> bool {
    let section = station.worker.section();
    let mut tails = Tails::bind(&mut station.store, &section);
    station.heads.clear(RxId(0), Tick(0));
    put(&mut station.heads, &mut tails, 0, bytes);
    station.heads.n = 1;
    let picks = [Pick::frame(0, false)];
    let sent = tx.tx_burst_on(&section, ONE, ring, &station.heads, &tails, &picks);
    assert_ne!(sent.stop, Stop::Down, "{ring}");
    if sent.kick != Kick::No {
        tx.kick(ONE);
    }
    assert_eq!(sent.frames as usize, sent.taken, "none is dropped");
    sent.taken == 1
}

/// While a front end switches all queue pairs but the first on and off, hundreds of times, the rings are never taken from the
/// workers, no frame finds the guest away, those for the first queue come to it in order, and those for a queue that is off
/// come to one that is on, all of them once.
#[test]
fn the_others_do_not_notice() {
    for (layout, behind) in LAYOUTS.into_iter().flat_map(|l| [(l, false), (l, true)]) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, PAIRS));
        let mut machine = Machine::start(&mut host, &path, layout, behind);
        let what = format!("{layout:?}, IOMMU: {behind}");
        for queue in 0..usize::from(PAIRS) {
            (0..RING).for_each(|id| machine.offer(queue * 2, id));
        }
        let tx = host.rings.as_ref().expect("rings").tx.clone();
        assert!(tx.has_choice());
        let mut station = Station::new();
        let mut on = 0b1111u32;
        let (mut number, mut first, mut all) = (0, Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let pair = 1 + round % 7 % 3;
            on ^= 1 << pair;
            machine.switch(&mut host, pair, on >> pair & 1 != 0);
            assert_eq!(tx.choices(ONE), on, "{what}");
            for ring in [0, 1, 2, 3, 0] {
                number += 1;
                if ring == 0 {
                    first.push(number);
                }
                // Rings count the guest's receive queues.
                while !send_on(&mut station, tx.as_ref(), ring, &frame(number)) {
                    machine.answer(&mut host);
                }
            }
            let mut came = Vec::new();
            for queue in 0..usize::from(PAIRS) {
                let got = machine.take(queue * 2);
                assert!(
                    got.is_empty() || on >> queue & 1 != 0,
                    "{what}: {queue} is off"
                );
                came.push(got);
            }
            let mut due = first.iter();
            assert!(
                came[0]
                    .iter()
                    .filter(|n| **n % 5 < 2)
                    .all(|n| due.next() == Some(n))
            );
            first.clear();
            all.extend(came.into_iter().flatten());
        }
        all.sort_unstable();
        assert_eq!(all, (1..=number).collect::<Vec<_>>(), "{what}");
        assert_eq!((host.ups, &host.downs[..]), (1, &[][..]), "{what}");
        assert_eq!(host.detail("queue-pairs"), (on.count_ones()).to_string());
    }
}

/// What a guest has put into a queue that is off stays there, its worker sleeps, and is woken when the queue is switched on;
/// then it comes. The other queues are heard meanwhile.
#[test]
fn a_queue_that_is_off_is_left_alone() {
    for (layout, behind) in LAYOUTS.into_iter().flat_map(|l| [(l, false), (l, true)]) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, PAIRS));
        let mut machine = Machine::start(&mut host, &path, layout, behind);
        let mut station = Station::new();
        let receive =
            |host: &mut Host, machine: &mut Machine, station: &mut Station, ring: usize| {
                for _ in 0..10 {
                    let rings = host.rings.as_mut().expect("rings");
                    let got = station.receive(rings.rx[ring].as_mut());
                    if !got.is_empty() {
                        return got;
                    }
                    machine.answer(host);
                }
                Vec::new()
            };
        for round in 0..100u32 {
            let id = (round % u32::from(RING)) as u16;
            machine.switch(&mut host, 2, false);
            let _ = eventfd::drain(&machine.queues()[5].kick);
            machine.send(5, id, &frame(round));
            assert!(eventfd::drain(&machine.queues()[5].kick).is_ok());
            machine.send(1, id, &frame(round));
            assert_eq!(receive(&mut host, &mut machine, &mut station, 2), []);
            let rx = &mut host.rings.as_mut().expect("rings").rx[2];
            assert_eq!(rx.arm(&station.worker.section()), Armed::Yes);
            rx.disarm(&station.worker.section());
            let other = receive(&mut host, &mut machine, &mut station, 0);
            assert_eq!(other, [Ok(frame(round))]);
            machine.switch(&mut host, 2, true);
            assert!(eventfd::drain(&machine.queues()[5].kick).is_ok_and(|n| n > 0));
            let came = receive(&mut host, &mut machine, &mut station, 2);
            assert_eq!(came, [Ok(frame(round))]);
            for queue in [1, 5] {
                assert_eq!(machine.queues()[queue].ring.reap().len(), 1);
            }
        }
        assert_eq!((host.ups, host.downs.len()), (1, 0));
    }
}
