use super::*;
use std::os::fd::AsFd;

use windlass_attach::port::{Lane, Sent, Stop, TxCaps, TxPort};
use windlass_capture::Instruction;
use windlass_capture::ring::{Reader, Shape};
use windlass_frame::{Claim, HEADROOM, RxId, SNAP, TxId};
use windlass_shm::{Foreign, SegStore};
use windlass_stats::{MemberCounters, Padded};
use windlass_sync::qsbr::Domain;

use crate::egress::{Context, Egress};
use crate::meter::{Account, Sense, Used};
use crate::topo::{Member, Topo};

const SHAPE: Shape = Shape {
    workers: 1,
    ring_bytes: 64 << 10,
};
const ALL: Points = Points {
    from: true,
    to: true,
    drops: true,
};

/// A capture and its reader; the reader's socket.
fn capture(filter: Option<Program>, snap: u32) -> (Watch, Reader, OwnedFd) {
    let (memory, fd) = Memory::create(SHAPE).expect("memory");
    let kind = windlass_sys::unix::SocketKind::Stream;
    let (ours, theirs) = windlass_sys::unix::pair(kind).expect("sockets");
    let capture = Capture::new((filter, snap, ALL), (&memory, 1), ours);
    capture.set_clock(Tick(5), 1_000_005);
    let watch = Watch {
        capture: Arc::new(capture),
        port: 3,
        is_both: true,
    };
    (
        watch,
        Reader::new(fd.as_fd(), SHAPE).expect("mapped"),
        theirs,
    )
}

/// A burst of these frames.
fn fill<'q>(frames: &'q [Vec<u8>], heads: &mut Heads, tails: &mut Tails<'q>) {
    heads.clear(RxId(0), Tick(7));
    for (i, frame) in frames.iter().enumerate() {
        let (first, rest) = frame.split_at(frame.len().min(SNAP));
        heads.snap[i].0[HEADROOM..HEADROOM + first.len()].copy_from_slice(first);
        heads.admit(i, frame.len() as u32, Claim::NONE);
        for piece in rest.chunks(300) {
            tails.push(i, Foreign::private(piece));
        }
        heads.n = i + 1;
    }
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(7).wrapping_add(number))
        .collect()
}

/// A filter reads as far behind the private bytes as it likes, and the frame with its tag; the record has the same bytes, cut where the
/// snapshot or the filter ends it.
#[test]
fn filters_read_frames_in_pieces() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let frames: Vec<Vec<u8>> = [60, 127, 128, 129, 428, 700, 1514]
        .map(|len| frame(len as u8, len))
        .into();
    let mut tails = Tails::bind(&mut store, &section);
    fill(&frames, &mut heads, &mut tails);
    let at = |offset| {
        let op = |code, jt, jf, k| Instruction { code, jt, jf, k };
        // ld [offset]; jeq #wanted: what it returns is the snapshot.
        move |wanted, snap| {
            vec![
                op(0x20, 0, 0, offset),
                op(0x15, 0, 1, wanted),
                op(0x06, 0, 0, snap),
                op(0x06, 0, 0, 0),
            ]
        }
    };
    let burst = Burst {
        section: &section,
        worker: 0,
        now: Tick(7),
        heads: &heads,
        tails: &tails,
    };
    for (i, plain) in frames.iter().enumerate() {
        for is_tagged in [false, true] {
            let mut whole = plain.clone();
            if is_tagged {
                whole.splice(12..12, [0x81, 0, 0, 0]);
            }
            for offset in [
                0, 10, 56, 100, 125, 128, 129, 200, 426, 600, 1400, 1510, 1514,
            ] {
                let wanted = whole.get(offset..).and_then(|rest| rest.first_chunk::<4>());
                let value = wanted.map_or(0, |bytes| u32::from_be_bytes(*bytes));
                let program = Program::check(at(offset as u32)(value, 900)).expect("a program");
                let (watch, mut reader, _socket) = capture(Some(program), 800);
                note(
                    &[watch],
                    &burst,
                    (Way::To, None),
                    &[Pick::frame(i, is_tagged)],
                );
                let mut bytes = Vec::new();
                let head = reader.next(&mut bytes);
                assert_eq!(
                    head.is_some(),
                    wanted.is_some(),
                    "{} at {offset}",
                    whole.len()
                );
                let Some(head) = head else { continue };
                assert_eq!(bytes, whole[..whole.len().min(800)]);
                assert_eq!(
                    (head.len, head.port, head.reason),
                    (whole.len() as u32, 3, 0)
                );
                assert_eq!(head.time_ns, 1_000_007);
            }
        }
    }
}

/// Delivers the first, drops two, delivers one, and then has no room, or nobody is there.
struct Picky(Mutex<Option<Stop>>);

impl TxPort for Picky {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        let mut sent = Sent::default();
        let Some(stop) = self.0.lock().expect("no panic").take() else {
            sent.stop = Stop::Full;
            return sent;
        };
        for reason in [None, Some(Drop::TooBig), Some(Drop::PeerFault), None] {
            match reason {
                Some(reason) => sent.drop_frame(reason),
                None => sent.frames += 1,
            }
            sent.taken += 1;
        }
        sent.stop = stop;
        sent
    }

    fn kick(&self, _: Lane) {}
}

fn member(port: Option<Arc<dyn TxPort>>, watch: Watch) -> Member {
    Member {
        watches: [watch].into(),
        bridge: 0,
        tx: port,
        several: false,
        weights: Default::default(),
        is_special: true,
        is_staged: true,
        shape_out: None,
        shape_in: None,
        ingress: Box::default(),
        egress: Box::default(),
        owner: None,
        priority: Default::default(),
        kick_gap_ns: 0,
        spin: Default::default(),
        attachment: 1,
        accounts: [Account::default()].into(),
        counters: [Padded::new(MemberCounters::zero())].into(),
    }
}

/// Each frame for a member has one record: delivered, or why it was not, by the port, for want of room, or because nobody is there. What has no room
/// is tried once more before.
#[test]
fn every_end_of_a_frame_is_told() {
    use windlass_stats::Drop::{PeerDown, PeerFault, RingFull, TooBig};
    let domain = Domain::new(1);
    let frames: Vec<Vec<u8>> = (0..6).map(|n| frame(n, 200)).collect();
    let (full, down) = (Some(Stop::Full), Some(Stop::Down));
    for (port, rest) in [
        (Some(full), RingFull),
        (Some(down), PeerDown),
        (None, PeerDown),
    ] {
        let (watch, mut reader, _socket) = capture(None, 64);
        let port = port.map(|stop| Arc::new(Picky(Mutex::new(stop))) as _);
        let is_there = port.is_some();
        let topo = Topo {
            members: vec![Some(Arc::new(member(port, watch)))],
            ..Topo::default()
        };
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut tails = Tails::bind(&mut store, &section);
        fill(&frames, &mut heads, &mut tails);
        let sense = Sense {
            now_ns: Box::new(|| 0),
            used: Box::new(Used::default),
        };
        let mut egress = Egress::new(1, [1, 2], sense);
        let cx = Context {
            section: &section,
            topo: &topo,
            lane: Lane {
                worker: 0,
                workers: 1,
            },
            now: Tick(7),
        };
        let picks: Vec<Pick> = (0..6).map(|i| Pick::frame(i, false)).collect();
        assert_eq!(egress.offer(&cx, &heads, &tails, TxId(0), &picks), 6);
        egress.retry_late(&cx, &heads, &tails);
        let mut told = vec![None; 6];
        let mut bytes = Vec::new();
        while let Some(head) = reader.next(&mut bytes) {
            assert_eq!((bytes.len(), head.way), (64, Way::To));
            let place = told.get_mut(usize::from(bytes[0])).expect("a frame");
            assert_eq!(place.replace(head.reason), None, "one record of each");
        }
        let number = |reason| Some(reason as u8 + 1);
        let expected = match is_there {
            true => [
                Some(0),
                number(TooBig),
                number(PeerFault),
                Some(0),
                number(rest),
                number(rest),
            ],
            false => [number(rest); 6],
        };
        assert_eq!(told, expected);
    }
}
