//! Small frames that are gathered.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use windlass_attach::vxlan::{Target, TargetConf, Tos, Vtep, VtepConf};
use windlass_overlay::Vni;
use windlass_sys::Errno;
use windlass_sys::udp::{self, messages};

use super::order::Dice;
use super::*;
use crate::cork::{ENOUGH, FRAMES, PORTS, SMALL};

const WORKERS: u16 = 2;
/// Bytes before a frame's number.
const HEADER: usize = 14;

/// A remote host: keeps the bursts that it is sent, unless somebody else holds its ring or it takes only some.
#[derive(Default)]
struct Remote {
    bursts: Mutex<Vec<Vec<Vec<u8>>>>,
    is_held: Mutex<bool>,
    /// It refuses each so manyth frame, and has room for so many.
    refuses: Option<(usize, Drop)>,
    room: Option<usize>,
}

impl Remote {
    fn frames(&self) -> Vec<Vec<u8>> {
        self.bursts.lock().expect("no panic").concat()
    }

    fn sizes(&self) -> Vec<usize> {
        let bursts = self.bursts.lock().expect("no panic");
        bursts.iter().map(Vec::len).collect()
    }
}

impl TxPort for Remote {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn wants_runs(&self) -> bool {
        true
    }

    fn tx_burst(
        &self,
        _: &Section<'_>,
        _: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        if *self.is_held.lock().expect("no panic") {
            sent.stop = Stop::Busy;
            return sent;
        }
        let mut burst = Vec::new();
        for (at, pick) in picks.iter().enumerate() {
            if self.room.is_some_and(|room| burst.len() == room) {
                sent.stop = Stop::Full;
                break;
            }
            let refused = self.refuses.filter(|(each, _)| (at + 1) % each == 0);
            match refused {
                Some((_, reason)) => sent.drop_frame(reason),
                None => {
                    let i = pick.index();
                    let mut bytes = heads.private(i).to_vec();
                    for piece in tails.of(i) {
                        let mut part = vec![0; piece.len()];
                        piece.read(&mut part);
                        bytes.extend(part);
                    }
                    assert_eq!(bytes.len(), heads.meta[i].len as usize);
                    bytes.push(pick.tagged().into());
                    burst.push(bytes);
                    sent.frames += 1;
                }
            }
            sent.taken += 1;
        }
        self.bursts.lock().expect("no panic").push(burst);
        sent
    }

    fn kick(&self, _: Lane) {}
}

fn to_port(tx: Arc<dyn TxPort>) -> Option<Arc<Member>> {
    let counters = (0..WORKERS).map(|_| Padded::new(MemberCounters::zero()));
    Some(Arc::new(Member {
        watches: Box::default(),
        bridge: 0,
        tx: Some(tx),
        several: false,
        asker: None,
        weights: Default::default(),
        is_special: true,
        is_staged: false,
        shape_out: None,
        shape_in: None,
        ingress: Box::default(),
        egress: Box::default(),
        owner: None,
        priority: Default::default(),
        kick_gap_ns: 0,
        spin: Spin::default(),
        attachment: 1,
        accounts: (0..WORKERS).map(|_| Account::default()).collect(),
        counters: counters.collect(),
    }))
}

fn to_remotes(remotes: &[Arc<Remote>]) -> Topo {
    Topo {
        members: remotes.iter().map(|r| to_port(r.clone())).collect(),
        ..Topo::default()
    }
}

fn remotes(n: usize) -> Vec<Arc<Remote>> {
    (0..n).map(|_| Arc::default()).collect()
}

fn refusing(each: usize, reason: Drop) -> Arc<Remote> {
    Arc::new(Remote {
        refuses: Some((each, reason)),
        ..Remote::default()
    })
}

/// The bytes of a frame of a number, with a length.
fn bytes_of(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|b| (b as u32 ^ number) as u8).collect();
    bytes[HEADER..HEADER + 4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// A worker's transmit half, and a burst.
struct Sender {
    egress: Egress,
    heads: Box<Heads>,
    store: SegStore,
    worker: u16,
}

impl Sender {
    fn new(worker: u16) -> Sender {
        let mut egress = Egress::new(PORTS * 2, [1, 2], unmetered());
        egress.begin_visit(true);
        Sender {
            egress,
            heads: Heads::boxed(),
            store: SegStore::default(),
            worker,
        }
    }

    fn context<'a>(&self, section: &'a Section<'a>, topo: &'a Topo) -> Context<'a> {
        let lane = Lane {
            worker: self.worker,
            workers: WORKERS,
        };
        Context {
            section,
            topo,
            lane,
            now: Tick(1_000_000_000),
        }
    }

    /// Offers frames of these numbers and lengths.
    fn offer(&mut self, cx: &Context<'_>, to: u16, frames: &[(u32, usize)]) {
        let bytes: Vec<Vec<u8>> = frames.iter().map(|(n, len)| bytes_of(*n, *len)).collect();
        self.heads.clear(RxId(9), cx.now);
        let mut tails = Tails::bind(&mut self.store, cx.section);
        let mut picks = Vec::new();
        for (i, frame) in bytes.iter().enumerate() {
            let (start, rest) = frame.split_at(frame.len().min(SNAP));
            self.heads.snap[i].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
            self.heads.admit(i, frame.len() as u32, Claim::NONE);
            tails.push(i, Foreign::private(rest));
            picks.push(Pick::frame(i, frames[i].0 % 2 == 1));
        }
        self.heads.n = picks.len();
        let taken = self.egress.offer(cx, &self.heads, &tails, TxId(to), &picks);
        assert_eq!(taken, picks.len());
    }
}

fn totals_of(topo: &Topo, member: usize, worker: u16) -> MemberTotals {
    let mut totals = MemberTotals::default();
    let member = topo.members[member].as_ref().expect("a member");
    totals.add(&member.counters[usize::from(worker)]);
    totals
}

fn with_section(test: impl FnOnce(&Section<'_>)) {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    test(&worker.section());
}

/// Bursts of 8 for each of 8 hosts leave as runs of [`BURST`], and not earlier; what many are for one host leaves at once, without
/// a copy; so does everything while the source has no more.
#[test]
fn bursts_for_many_hosts_become_runs() {
    with_section(|section| {
        let remotes = remotes(8);
        let topo = to_remotes(&remotes);
        let mut sender = Sender::new(0);
        let cx = sender.context(section, &topo);
        for burst in 0..8 {
            for to in 0..8 {
                assert_eq!(remotes[usize::from(to)].sizes(), [0; 0]);
                let frames: Vec<_> = (burst * 8..burst * 8 + 8).map(|n| (n, 64)).collect();
                sender.offer(&cx, to, &frames);
            }
        }
        assert!(remotes.iter().all(|r| r.sizes() == [BURST]));
        assert!(!sender.egress.has_corked());
        let many: Vec<_> = (0..ENOUGH as u32).map(|n| (n, 64)).collect();
        sender.offer(&cx, 0, &many);
        assert_eq!(remotes[0].sizes(), [BURST, ENOUGH]);
        sender.egress.begin_visit(false);
        sender.offer(&cx, 1, &[(0, 64)]);
        assert_eq!(remotes[1].sizes(), [BURST, 1]);
        assert!(!sender.egress.has_corked());
    });
}

/// Whatever is offered, in whatever sizes, to hosts some of which others hold now and then: each host gets the bytes of all its frames
/// in order, no more wait than may, and all are accounted for at each step.
#[test]
fn order_and_bytes_survive() {
    for seed in 1..=300 {
        with_section(|section| random_offers(section, &mut Dice(seed)));
    }
}

fn random_offers(section: &Section<'_>, dice: &mut Dice) {
    let remotes = remotes(1 + dice.below(PORTS as u64 + 10) as usize);
    let topo = to_remotes(&remotes);
    let mut sender = Sender::new(0);
    let cx = sender.context(section, &topo);
    let mut expected = vec![Vec::new(); remotes.len()];
    for _ in 0..150 {
        let to = dice.below(remotes.len() as u64) as usize;
        match dice.below(20) {
            0 => sender.egress.uncork(&cx),
            1 => sender.egress.begin_visit(dice.below(2) == 0),
            2 => {
                let mut is_held = remotes[to].is_held.lock().expect("no panic");
                *is_held = !*is_held && dice.below(8) == 0;
            }
            3 => sender.egress.drain(&cx),
            _ => {
                let most = [SMALL + 1, SMALL + 1, SMALL + 1, 900][dice.below(4) as usize] as u64;
                let first = expected[to].len() as u32;
                let count = [4, 12, BURST as u64][dice.below(3) as usize];
                let count = 1 + dice.below(count);
                let frame = |n| (first + n as u32, 60 + dice.below(most - 60) as usize);
                let frames: Vec<_> = (0..count).map(frame).collect();
                expected[to].extend(&frames);
                sender.offer(&cx, to as u16, &frames);
            }
        }
        assert!(sender.egress.corked() <= FRAMES);
        let all = (0..remotes.len()).map(|to| totals_of(&topo, to, 0));
        let held: u64 = all
            .map(|totals| {
                assert!(totals.conserved(), "{totals:?}");
                totals.egress.held
            })
            .sum();
        assert_eq!(held, sender.egress.held_frames() as u64);
    }
    sender.egress.uncork(&cx);
    assert_eq!(sender.egress.corked(), 0);
    for remote in &remotes {
        *remote.is_held.lock().expect("no panic") = false;
    }
    while sender.egress.has_waiting() {
        sender.egress.drain(&cx);
    }
    for (to, remote) in remotes.iter().enumerate() {
        assert!(remote.sizes().iter().all(|n| *n <= BURST));
        let lost = totals_of(&topo, to, 0).drops[Drop::SpillFull as usize];
        let mut frames = remote.frames().into_iter();
        let mut missing = 0;
        for (number, len) in &expected[to] {
            let mut frame = bytes_of(*number, *len);
            frame.push((number % 2 == 1).into());
            match frames.as_slice().first() == Some(&frame) {
                true => _ = frames.next(),
                false => missing += 1,
            }
        }
        assert_eq!((frames.next(), missing), (None, lost), "host {to}");
    }
}

/// More hosts than frames can be gathered for, and more frames than there is memory for: what is gathered leaves, and nothing is lost.
#[test]
fn what_is_gathered_is_bounded() {
    with_section(|section| {
        let remotes = remotes(PORTS + 6);
        let topo = to_remotes(&remotes);
        let mut sender = Sender::new(0);
        let cx = sender.context(section, &topo);
        for to in 0..PORTS as u16 {
            sender.offer(&cx, to, &[(0, SMALL)]);
        }
        assert_eq!(sender.egress.corked(), PORTS);
        sender.offer(&cx, PORTS as u16, &[(0, SMALL)]);
        assert_eq!(sender.egress.corked(), 1);
        sender.egress.uncork(&cx);
        let (each, hosts) = (BURST as u32 / 2 - 1, 40);
        for first in [0, each] {
            for to in 0..hosts {
                let frames: Vec<_> = (first..first + each).map(|n| (n, SMALL)).collect();
                sender.offer(&cx, to, &frames);
                assert!(sender.egress.corked() <= FRAMES);
            }
        }
        sender.egress.uncork(&cx);
        for to in 0..hosts {
            let totals = totals_of(&topo, usize::from(to), 0);
            assert_eq!(totals.egress.frames, 1 + 2 * u64::from(each));
            assert!(totals.conserved() && totals.egress.held == 0);
        }
    });
}

/// A frame that is gathered counts when it leaves: as sent, under the reason that its port has, or as `ring-full`; once, and as held before.
#[test]
fn refusals_are_counted_when_frames_leave() {
    with_section(|section| {
        let full = Arc::new(Remote {
            room: Some(5),
            ..Remote::default()
        });
        let topo = to_remotes(&[
            refusing(3, Drop::UnderlayFull),
            refusing(1, Drop::TooBig),
            full,
        ]);
        let mut sender = Sender::new(0);
        let cx = sender.context(section, &topo);
        let frames: Vec<_> = (0..9).map(|n| (n, 100)).collect();
        for to in 0..3 {
            sender.offer(&cx, to, &frames);
            let totals = totals_of(&topo, usize::from(to), 0);
            assert_eq!((totals.egress.held, totals.egress.dropped), (9, 0));
            assert!(totals.conserved());
        }
        sender.egress.uncork(&cx);
        let outcome = [
            (6, Drop::UnderlayFull),
            (0, Drop::TooBig),
            (5, Drop::RingFull),
        ];
        for (to, (sent, reason)) in outcome.into_iter().enumerate() {
            let totals = totals_of(&topo, to, 0);
            assert_eq!((totals.egress.held, totals.egress.frames), (0, sent));
            assert_eq!(totals.drops[reason as usize], 9 - sent);
            assert!(totals.conserved());
        }
    });
}

/// The topology changes while frames are gathered: they leave by the member that they were offered to, before those for its successor at
/// the same place, and are counted there, also if the place is nobody's any more.
#[test]
fn members_move_and_go_with_frames_gathered() {
    with_section(|section| {
        let [former, later] = [0, 1].map(|_| Arc::<Remote>::default());
        let topos = [&former, &later].map(|remote| to_remotes(std::slice::from_ref(remote)));
        let mut sender = Sender::new(0);
        let frames = [(0, 64), (1, 64)];
        sender.offer(&sender.context(section, &topos[0]), 0, &frames);
        sender.offer(&sender.context(section, &topos[1]), 0, &frames);
        assert_eq!((former.sizes(), later.sizes()), (vec![2], vec![]));
        sender
            .egress
            .uncork(&sender.context(section, &Topo::default()));
        assert_eq!(later.sizes(), [2]);
        for topo in &topos {
            let totals = totals_of(topo, 0, 0);
            assert!(totals.conserved() && totals.egress.held == 0);
            assert_eq!(totals.egress.frames, 2);
        }
    });
}

/// Two workers gather for the same hosts: each its own frames, in its own counters.
#[test]
fn workers_gather_by_themselves() {
    with_section(|section| {
        let remotes = remotes(1);
        let topo = to_remotes(&remotes);
        let mut senders = [Sender::new(0), Sender::new(1)];
        for sender in &mut senders {
            let cx = sender.context(section, &topo);
            sender.offer(&cx, 0, &[(u32::from(sender.worker), 64)]);
        }
        assert_eq!(remotes[0].sizes(), [0; 0]);
        senders[1]
            .egress
            .uncork(&senders[1].context(section, &topo));
        assert_eq!(remotes[0].frames()[0][..64], bytes_of(1, 64));
        let held = [0, 1].map(|worker| totals_of(&topo, 0, worker).egress.held);
        assert_eq!(held, [1, 0]);
        senders[0]
            .egress
            .uncork(&senders[0].context(section, &topo));
        assert_eq!(remotes[0].sizes(), [1, 1]);
    });
}

fn wait_for_message(socket: &UdpSocket) -> messages::Received {
    let mut space = vec![0; 1 << 16];
    let (begun, mut received) = (Instant::now(), [None; messages::RECEIVED_MAX]);
    loop {
        match messages::receive(socket, &mut space, 1 << 16, &mut received) {
            Ok(_) => return received[0].expect("a message"),
            Err(Errno::AGAIN) if begun.elapsed() < Duration::from_secs(10) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// Eight bursts of eight frames for a real tunnel are one message in the kernel, which the receiver sees as such.
#[test]
fn a_tunnel_sends_one_message() {
    let listen = || UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = |socket: &UdpSocket| -> SocketAddr { socket.local_addr().expect("an address") };
    let receiver = listen();
    receiver.set_nonblocking(true).expect("a socket");
    udp::set_merged(&receiver, true).expect("UDP_GRO");
    let conf = VtepConf {
        local: address(&listen()),
        ttl: 64,
        tos: Tos::Inherit,
        ports: 1,
    };
    let target = TargetConf {
        to: address(&receiver),
        vni: Vni::new(9).expect("24 bits"),
    };
    let vtep = Vtep::open(&conf, WORKERS).expect("an endpoint");
    let topo = Topo {
        members: vec![to_port(Arc::new(Target::new(vtep, target)))],
        ..Topo::default()
    };
    with_section(|section| {
        let mut sender = Sender::new(0);
        let cx = sender.context(section, &topo);
        for burst in 0..8 {
            let frames: Vec<_> = (burst * 8..burst * 8 + 8).map(|n| (n * 2, 64)).collect();
            sender.offer(&cx, 0, &frames);
        }
        let message = wait_for_message(&receiver);
        assert_eq!((message.len, message.segment), (64 * 72, Some(72)));
        assert_eq!(totals_of(&topo, 0, 0).egress.frames, 64);
    });
}
