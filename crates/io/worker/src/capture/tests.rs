use super::*;
use std::os::fd::AsFd;

use windlass_attach::port::{Lane, Sent, Stop, TxCaps, TxPort};
use windlass_capture::Instruction;
use windlass_capture::ring::{Reader, Shape};
use windlass_frame::{Claim, HEADROOM, RxId, SNAP, TxId, Verdict};
use windlass_shaper::{Bucket, Shaper};
use windlass_shm::{Foreign, SegStore};
use windlass_stats::{MemberCounters, Padded};
use windlass_sync::qsbr::Domain;

use crate::context::Context;
use crate::egress::Egress;
use crate::ingress::Ingress;
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
    let capture = Capture::new((filter, snap, ALL), &memory, ours);
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

/// A filter of a whole burst finds the frames that it would find one by one, whatever it reads of them, and whether or not a frame's start
/// was moved.
#[test]
fn filters_read_whole_bursts() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let mut frames: Vec<Vec<u8>> = (0..40).map(|n| frame(n % 3, 60)).collect();
    frames[3][12..14].copy_from_slice(&[0x81, 0]);
    let mut tails = Tails::bind(&mut store, &section);
    fill(&frames, &mut heads, &mut tails);
    let mut whole = frames.clone();
    let op = |code, jt, jf, k| Instruction { code, jt, jf, k };
    for is_moved in [false, true] {
        if is_moved {
            heads.pop_tag(3);
            whole[3].drain(12..16);
        }
        let burst = Burst {
            section: &section,
            worker: 0,
            now: Tick(7),
            heads: &heads,
            tails: &tails,
        };
        for (code, bytes) in [(0x20, 4), (0x28, 2), (0x30, 1)] {
            for offset in 0..=60 - bytes {
                let number = |frame: &Vec<u8>| {
                    let bytes = frame.get(offset..offset + bytes)?.iter();
                    Some(bytes.fold(0, |number, byte| number << 8 | u32::from(*byte)))
                };
                let wanted = number(&whole[1]).expect("long enough");
                let program = vec![
                    op(code, 0, 0, offset as u32),
                    op(0x15, 0, 1, wanted),
                    op(0x06, 0, 0, 60),
                    op(0x06, 0, 0, 0),
                ];
                let program = Program::check(program).expect("a program");
                let (watch, mut reader, _socket) = capture(Some(program), 60);
                note(&[watch], &burst, (Way::To, None), &super::ALL[0][..40]);
                let all = whole.iter().filter(|frame| number(frame) == Some(wanted));
                let mut bytes = Vec::new();
                for frame in all {
                    assert!(reader.next(&mut bytes).is_some());
                    assert_eq!(&bytes, frame, "{code:#x} at {offset}");
                }
                assert_eq!(reader.next(&mut bytes), None, "{code:#x} at {offset}");
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
        asker: None,
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

fn egress() -> Egress {
    let sense = Sense {
        now_ns: Box::new(|| 0),
        used: Box::new(Used::default),
    };
    Egress::new(1, [1, 2], sense)
}

/// Another worker has its ring.
struct Busy;

impl TxPort for Busy {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        Sent {
            stop: Stop::Busy,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

/// A rate that lets nothing go for a long time.
fn slow(direction: Direction) -> Option<Arc<Shaper>> {
    let limit = Arc::new(Bucket::new(1_000));
    limit.reserve(Tick(7), 60_000, false);
    Shaper::new(direction, Vec::new(), Some(limit)).map(Arc::new)
}

/// Why each frame of a number that began in these bursts died, in the order of their first two bytes; none: it has no record with a reason.
fn reasons(reader: &mut Reader, frames: usize) -> Vec<Option<Drop>> {
    let (mut told, mut bytes) = (vec![None; frames], Vec::new());
    while let Some(head) = reader.next(&mut bytes) {
        assert_eq!((bytes.len(), head.len), (16, 300));
        assert_eq!(bytes[2..16], [9; 14]);
        let number = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let reason = Drop::ALL
            .iter()
            .find(|reason| **reason as u8 + 1 == head.reason);
        if let Some(reason) = reason {
            assert_eq!(told[number].replace(*reason), None, "it died once");
        }
    }
    told
}

/// Frames that die while they wait, for a rate or for a ring, have a record that says why, as they were: those for which queues have no
/// room, and those that wait when the member goes.
#[test]
fn who_dies_waiting_is_told() {
    use windlass_stats::Drop::{NotReady, PeerDown, QueueFull, RxQueueFull};
    const FRAMES: usize = 600;
    let domain = Domain::new(1);
    let port = || Some(Arc::new(Busy) as _);
    for (way, shaped, full, gone) in [
        (Way::To, true, QueueFull, PeerDown),
        (Way::To, false, PeerDown, PeerDown),
        (Way::From, true, RxQueueFull, NotReady),
    ] {
        let (watch, mut reader, _socket) = capture(None, 16);
        let mut member = member(port(), watch);
        if shaped {
            member.shape_in = slow(Direction::In);
            member.shape_out = slow(Direction::Out);
        }
        let topo = Topo {
            members: vec![Some(Arc::new(member))],
            ..Topo::default()
        };
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let (mut egress, mut ingress) = (egress(), Ingress::new([1, 2]));
        let cx = Context {
            section: &section,
            topo: &topo,
            lane: Lane {
                worker: 0,
                workers: 1,
            },
            now: Tick(7),
        };
        let member = topo.member(0).expect("a member");
        let counters = &member.counters[0];
        let sent = if shaped { FRAMES } else { 60 };
        for first in (0..sent).step_by(60) {
            let numbered = |number: usize| {
                let mut frame = vec![9; 300];
                frame[..2].copy_from_slice(&(number as u16).to_be_bytes());
                frame
            };
            let frames: Vec<Vec<u8>> = (first..first + 60).map(numbered).collect();
            let mut tails = Tails::bind(&mut store, &section);
            fill(&frames, &mut heads, &mut tails);
            if way == Way::From {
                ingress.leave(&cx, (member, 1), counters, &mut heads, &mut tails);
                assert_eq!(heads.verdict[..60], [Verdict::HELD; 60]);
            } else {
                let picks: Vec<Pick> = (0..60).map(|i| Pick::frame(i, false)).collect();
                assert_eq!(egress.offer(&cx, &heads, &tails, TxId(0), &picks), 60);
            }
        }
        let room = egress.held_frames() + ingress.queues.len();
        assert!(if shaped {
            (1..sent).contains(&room)
        } else {
            room == sent
        });
        egress.purge(&cx.rule_in(0, Some(member)), Some(counters));
        ingress.purge(&cx.rule_out(0, Some(member)), Some(counters));
        let told = reasons(&mut reader, sent);
        let of = |reason| told.iter().filter(|told| **told == Some(reason)).count();
        assert_eq!(of(gone), room);
        assert_eq!(of(full), if full == gone { room } else { sent - room });
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
        let mut egress = egress();
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

/// Another worker has its ring each time that it is tried first.
#[derive(Default)]
struct Late(Mutex<bool>);

impl TxPort for Late {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, picks: &[Pick]) -> Sent {
        let mut was_tried = self.0.lock().expect("no panic");
        *was_tried = !*was_tried;
        match *was_tried {
            true => Sent {
                stop: Stop::Busy,
                ..Sent::default()
            },
            false => Sent {
                taken: picks.len(),
                frames: picks.len() as u64,
                ..Sent::default()
            },
        }
    }

    fn kick(&self, _: Lane) {}
}

/// A filter of a frame that has waited for a ring reads nothing behind its end: not what another member's frame had there before it.
#[test]
fn a_frame_that_waited_ends_where_it_ends() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let op = |code, jt, jf, k| Instruction { code, jt, jf, k };
    // ldb [90]; ret #96.
    let reads = vec![op(0x30, 0, 0, 90), op(0x06, 0, 0, 96)];
    let filter = Program::check(reads).expect("a program");
    let (others, ..) = capture(None, 96);
    let (watch, mut reader, _socket) = capture(Some(filter), 96);
    let member = |watch| Some(Arc::new(member(Some(Arc::new(Late::default())), watch)));
    let topo = Topo {
        members: vec![member(others), member(watch)],
        ..Topo::default()
    };
    let cx = Context {
        section: &section,
        topo: &topo,
        lane: Lane {
            worker: 0,
            workers: 1,
        },
        now: Tick(7),
    };
    let mut egress = egress();
    for (to, len) in [(0, 100), (1, 60), (1, 100)] {
        let frames = [frame(len as u8, len)];
        let mut tails = Tails::bind(&mut store, &section);
        fill(&frames, &mut heads, &mut tails);
        let picks = [Pick::frame(0, false)];
        assert_eq!(egress.offer(&cx, &heads, &tails, TxId(to), &picks), 1);
        assert_eq!(egress.held_frames(), 1);
        egress.drain(&cx);
        assert_eq!(egress.held_frames(), 0);
    }
    let (mut lens, mut bytes) = (Vec::new(), Vec::new());
    while let Some(head) = reader.next(&mut bytes) {
        lens.push(head.len);
    }
    assert_eq!(lens, [100], "60 bytes have none at 90");
}
