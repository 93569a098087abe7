//! A guest behind an IOMMU whose front end never answers, beside guests that are served: workers in this process hold what
//! waits for it.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;
#[path = "../../crates/io/attach/tests/vhost_iommu/mod.rs"]
mod vhost_iommu;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vhost_drive::Layout;
use vhost_front::{FEATURES, Host, PATIENCE, RING, SERVER, conf};
use vhost_iommu::{BOTH, Machine, PAGE, buffer};
use windlass_attach::endpoint::Rings;
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_bridge::fdb::{EntryFlags, FdbWriter, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, TxId};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::{DataPlane, DataPlaneOptions, MemberTuning};

/// The guest of whose front end the test decides, the plain one, and the one behind an IOMMU that is answered.
const GUESTS: [[u8; 6]; 3] = [
    [2, 0, 0, 0, 0, 0xe0],
    [2, 0, 0, 0, 0, 0xe1],
    [2, 0, 0, 0, 0, 0xe2],
];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// How long each is looked at.
const TIME: Duration = Duration::from_millis(600);

fn word(mac: [u8; 6]) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// Sends to each guest in turn, a burst of a few at a time, while it is told to.
struct Source {
    goes: Arc<AtomicBool>,
    next: Instant,
    wake: OwnedFd,
}

/// Frames of a burst for each guest, and how often one comes. The others get less than they can take.
const EACH: [usize; 3] = [12, 4, 1];
const PACE: Duration = Duration::from_millis(1);

impl RxPort for Source {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let now = Instant::now();
        heads.n = 0;
        if self.goes.load(Ordering::Relaxed) && now >= self.next {
            self.next = now + PACE;
            let each = GUESTS.iter().zip(EACH);
            let to = each.flat_map(|(mac, count)| std::iter::repeat_n(mac, count));
            for (n, to) in to.enumerate().take(limit.frames.min(BURST)) {
                let mut bytes = [0u8; 60];
                bytes[..6].copy_from_slice(to);
                bytes[6..12].copy_from_slice(&SOURCE);
                heads.snap[n].0[HEADROOM..HEADROOM + 60].copy_from_slice(&bytes);
                heads.admit(n, 60, Claim::NONE);
                heads.n = n + 1;
            }
        }
        (Loan::default(), More::Left)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        Armed::Work
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// A transmit half that is never used.
struct Nowhere;

impl TxPort for Nowhere {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        Sent {
            stop: Stop::Down,
            kick: Kick::No,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

/// A bridge with the source and the guests.
struct Bench {
    plane: DataPlane,
    members: [u16; 3],
    goes: Arc<AtomicBool>,
}

impl Bench {
    fn start(rings: [Rings; 3]) -> Bench {
        let options = DataPlaneOptions {
            workers: vec![None],
            members_max: 16,
        };
        let mut plane = DataPlane::start(&options).expect("workers");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1024, [1, 2]));
        let mut add = |mac: [u8; 6]| {
            let mut conf = MemberConf::new(TxId(0), word(mac));
            conf.storm_limit = 0;
            let tuning = MemberTuning::default();
            let id = plane.add_member(bridge, conf, tuning).expect("a member");
            let key = Key::new(0, word(mac));
            let fix = move |writer: &mut FdbWriter<_>, now| {
                writer.add_fixed(key, id, EntryFlags::LOCAL, now).is_ok()
            };
            assert!(plane.ask_fdb(bridge, fix).expect("the table"));
            id
        };
        let members = GUESTS.map(&mut add);
        let source = add(SOURCE);
        let goes = Arc::new(AtomicBool::new(false));
        let port = Source {
            goes: goes.clone(),
            next: Instant::now(),
            wake: windlass_sys::eventfd::create().expect("an eventfd"),
        };
        for (member, rings) in members.into_iter().zip(rings) {
            plane.attach(member, rings).expect("attached");
        }
        let rings = Rings {
            rx: vec![Box::new(port)],
            tx: Arc::new(Nowhere),
        };
        plane.attach(source, rings).expect("attached");
        Bench {
            plane,
            members,
            goes,
        }
    }

    /// What was offered to a guest, given to it, and dropped for want of room for what waits.
    fn totals(&self, guest: usize) -> [u64; 3] {
        let totals = self.plane.totals(self.members[guest]).expect("a guest");
        let given = totals.egress.frames;
        let drops: u64 = totals.drops.iter().sum();
        [given + drops, given, totals.drops[Drop::SpillFull as usize]]
    }
}

/// A guest with a front end.
enum Kind {
    Plain(vhost_front::Machine),
    Behind(Machine),
}

struct Peer {
    _directory: tempfile::TempDir,
    host: Host,
    kind: Kind,
}

impl Peer {
    fn start(behind: bool) -> Peer {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut kind = match behind {
            true => Kind::Behind(Machine::start(&mut host, &path, Layout::Split, FEATURES)),
            false => Kind::Plain(vhost_front::Machine::start(
                &mut host,
                &path,
                Layout::Split,
                1,
            )),
        };
        for id in 0..RING {
            match &mut kind {
                Kind::Plain(machine) => machine.offer(0, id),
                Kind::Behind(machine) => machine.offer(id),
            }
        }
        Peer {
            _directory: directory,
            host,
            kind,
        }
    }

    fn rings(&mut self) -> Rings {
        self.host.rings.take().expect("rings")
    }

    /// Empties what has come, and answers what is asked.
    fn serve(&mut self) {
        match &mut self.kind {
            Kind::Plain(machine) => {
                for (id, _) in machine.queues[0].ring.reap() {
                    machine.offer(0, id);
                }
            }
            Kind::Behind(machine) => {
                machine.answer(&mut self.host);
                for (id, _) in machine.queues[0].ring.reap() {
                    machine.offer(id);
                }
            }
        }
    }

    /// Tells where all of the guest's buffers are.
    fn tell_all(&mut self) {
        if let Kind::Behind(machine) = &self.kind {
            let buffers = (0..RING).map(|id| buffer(0, id) / PAGE * PAGE);
            for page in buffers.flat_map(|page| [page, page + PAGE]) {
                assert_eq!(machine.tell(&mut self.host, page, BOTH), 0);
            }
        }
    }
}

/// While frames for a guest wait whose front end never answers, and take all the room that there is for such frames, none
/// is dropped for want of room that is for a plain guest, nor for one whose translations are known.
#[test]
fn a_front_end_that_never_answers_takes_nothing_of_others() {
    let mut peers = [true, false, true].map(Peer::start);
    let bench = Bench::start([0, 1, 2].map(|i| peers[i].rings()));
    peers[2].tell_all();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, peer) in peers.iter_mut().enumerate() {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match number {
                        0 => peer.host.step(),
                        _ => peer.serve(),
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
        // Its ring is found with the first frame.
        bench.goes.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        while bench.totals(2)[1] == 0 && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = [1, 2].map(|guest| bench.totals(guest));
        std::thread::sleep(TIME);
        bench.goes.store(false, Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
        let silent = bench.totals(0);
        println!("silent: {silent:?}");
        assert!(silent[1] == 0 && silent[2] > 0, "{silent:?}");
        for (guest, before) in [1, 2].into_iter().zip(before) {
            let after = bench.totals(guest);
            let [all, given, room] = [0, 1, 2].map(|k| after[k] - before[k]);
            println!("guest {guest}: {given} of {all}, {room} without room");
            assert_eq!(room, 0, "guest {guest}: {given} of {all}");
            assert!(
                given * 2 > all && given > 0,
                "guest {guest}: {given} of {all}"
            );
        }
    });
}
