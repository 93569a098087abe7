use std::sync::atomic::{AtomicBool, Ordering};

use windlass_attach::port::{Bypass, Lane, Sent, TxCaps};
use windlass_bridge::fdb::{EntryFlags, Key, Limits};
use windlass_frame::{Heads, Pick, TxId};
use windlass_shm::{Section, Tails};
use windlass_sys::shortcut::Place;

use super::*;
use crate::wait::Asleep;
use crate::worker::WorkerInit;

/// Lets no time pass.
struct Never;

impl Wait for Never {
    fn until(&self, _: Duration, is_done: &mut dyn FnMut() -> bool) -> bool {
        is_done()
    }
}

/// A data plane with a bridge and one worker that does not run.
fn plane(wait: &'static dyn Wait) -> (DataPlane, u16, Vec<WorkerInit>) {
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 1000,
    };
    let (mut plane, inits) = DataPlane::wire(&options, wait, || 1).expect("a data plane");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1000, [1, 2]));
    (plane, bridge, inits)
}

/// A thousand members come in one publication, and go in one. What was published before is kept as long as a worker may
/// read it, so that it can be counted.
#[test]
fn a_thousand_members_are_published_at_once() {
    let (mut plane, bridge, _inits) = plane(&Never);
    let mut reader = plane.shared.domain.register();
    reader.online();
    let published = |plane: &DataPlane| plane.limbo.len();
    let before = published(&plane);
    plane.begin_batch();
    let add = |_| plane.add_member(bridge, MemberConf::new(TxId(0), 0), MemberTuning::default());
    let ids: Vec<u16> = (0..1000).map(add).collect::<Result<_, _>>().expect("added");
    plane.end_batch();
    assert_eq!(published(&plane), before + 1);
    let removed = plane.remove_members(&ids);
    assert!(
        matches!(removed, Err(DataPlaneError::Stuck)),
        "no worker runs"
    );
    assert_eq!(published(&plane), before + 2);
    assert!(plane.published.iter().all(Option::is_none));
}

/// What a batch sets is in force when it has ended: it waits for a worker that still has the topology before it.
#[test]
fn what_is_set_is_in_force() {
    let (mut plane, bridge, _inits) = plane(&Asleep);
    let conf = MemberConf::new(TxId(0), 0);
    let id = plane.add_member(bridge, conf.clone(), MemberTuning::default());
    let id = id.expect("added");
    let mut worker = plane.shared.domain.register();
    worker.online();
    let visited = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            visited.store(true, Ordering::SeqCst);
            worker.offline();
        });
        plane.begin_batch();
        let set = plane.set_member(id, conf, MemberTuning::default());
        set.expect("set");
        plane.end_batch();
        assert!(visited.load(Ordering::SeqCst), "the visit goes on");
    });
    assert!(!plane.is_draining());
}

/// However much others make the daemon say, while no worker takes it, there is room for BPDUs.
#[test]
fn replies_leave_room_to_bpdus() {
    let (mut plane, bridge, _inits) = plane(&Never);
    let conf = MemberConf::new(TxId(0), 0);
    let id = plane.add_member(bridge, conf, MemberTuning::default());
    let (id, frame) = (id.expect("added"), [0; 60]);
    let replies = (0..).take_while(|_| plane.reply(id, &frame).is_ok());
    assert_eq!(replies.count(), local::RELAYS);
    let bpdus = (0..).take_while(|_| plane.send(id, &frame).is_ok());
    assert_eq!(bpdus.count(), local::SENDS);
}

/// A way past the workers: whether it is open, and how often somebody waited for what was on it.
#[derive(Default)]
struct Way {
    is_open: AtomicBool,
    waits: AtomicUsize,
}

impl Bypass for Way {
    fn open(&self, place: Option<Place>) {
        self.is_open.store(place.is_some(), Ordering::Relaxed);
    }

    fn settle(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }
}

impl Way {
    fn state(&self) -> (bool, usize) {
        let is_open = self.is_open.load(Ordering::Relaxed);
        (is_open, self.waits.load(Ordering::Relaxed))
    }
}

/// Sends nothing itself.
struct Past(Arc<Way>);

impl TxPort for Past {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        Sent::default()
    }

    fn kick(&self, _: Lane) {}

    fn bypass(&self) -> Option<Arc<dyn Bypass>> {
        Some(self.0.clone())
    }
}

/// Where a member stays and its way past the workers is closed, it is waited until nothing is on that. A member that leaves is not waited
/// for: its interface is deleted, for which the kernel waits itself.
#[test]
fn nobody_waits_for_a_way_that_leaves() {
    const MAC: u64 = 0x02;
    let (mut plane, bridge, _inits) = plane(&Never);
    let conf = MemberConf::new(TxId(0), MAC);
    let id = plane.add_member(bridge, conf.clone(), MemberTuning::default());
    let id = id.expect("added");
    let mut table = plane.new_table(Limits::new(1000, [1, 2]));
    let entered = table.add_fixed(Key::new(0, MAC), id, EntryFlags::LOCAL, now());
    entered.expect("an entry");
    let tuned = plane.set_bridge(bridge, BridgeTuning::default(), Some(table));
    tuned.expect("a table");
    let way = Arc::new(Way::default());
    let rings = Rings {
        rx: Vec::new(),
        tx: Arc::new(Past(way.clone())),
    };
    plane.attach(id, rings).expect("attached");
    assert_eq!(way.state(), (true, 0));
    let private = MemberConf {
        private: true,
        ..conf.clone()
    };
    plane.set_conf(id, private).expect("set");
    assert_eq!(way.state(), (false, 1));
    plane.set_conf(id, conf).expect("set");
    assert_eq!(way.state(), (true, 1));
    let removed = plane.remove_members(&[id]);
    assert!(
        matches!(removed, Err(DataPlaneError::Stuck)),
        "no worker runs"
    );
    assert_eq!(way.state(), (false, 1));
}
