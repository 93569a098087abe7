//! What the worker itself costs a frame: instructions of everything but the ports.
//!
//! One worker takes bursts of 32 frames of 60 bytes from one port of this program and gives them to others, which do nothing.
//! Run it twice with different numbers of frames, and add up what visits, engines, groups and egress have
//! (`callgrind_annotate`); the difference of the sums, divided by the difference of the numbers, is the cost of a frame:
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=OUT target/release/examples/visit_cost KIND FRAMES [CAPTURE]
//! ```
//!
//! `KIND` is `memif` (between two memif ports, whose clients are in this program too), `one` (all frames to one address), `many` (to 1,000 addresses behind one member, by turns), `two` (to two members by
//! turns) or `flood` (broadcasts to three). With a `CAPTURE` the sender is captured: `nothing` (a filter that asks for the EtherType and
//! the protocol, and matches no frame), `headers` (all of each frame; the ring is as large as may be) or `lost` (nobody reads, and the
//! ring is as small as may be).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, MemifServer, Offloads, ServerConfig};
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_bridge::fdb::{EntryFlags, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_capture::ring::{Memory, Shape};
use windlass_capture::{Instruction, Program};
use windlass_frame::{Claim, HEADROOM, Heads, Pick, RxId, Tick, TxId};
use windlass_shm::{HugePages, Quota, Section, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::{Capture, DataPlane, DataPlaneOptions, MemberTuning, Points, Watch};

const AT_ONCE: u64 = 32;
const BYTES: usize = 60;
const MANY: u16 = 1000;

struct Source {
    frames: Vec<[u8; BYTES]>,
    /// The next one.
    at: usize,
    left: u64,
    wake: OwnedFd,
}

impl RxPort for Source {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        _: Limit,
    ) -> (Loan, More) {
        let n = self.left.min(AT_ONCE) as usize;
        for i in 0..n {
            let frame = &self.frames[self.at];
            self.at = (self.at + 1) % self.frames.len();
            heads.snap[i].0[HEADROOM..HEADROOM + BYTES].copy_from_slice(frame);
            heads.admit(i, BYTES as u32, Claim::NONE);
        }
        heads.n = n;
        self.left -= n as u64;
        let more = match self.left {
            0 => More::Drained,
            _ => More::Left,
        };
        (Loan::default(), more)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct Sink(AtomicU64);

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, picks: &[Pick]) -> Sent {
        let n = picks.len() as u64;
        self.0.fetch_add(n, Ordering::Relaxed);
        Sent {
            taken: picks.len(),
            frames: n,
            bytes: n * BYTES as u64,
            stop: Stop::Done,
            kick: Kick::No,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

fn mac(member: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, member]
}

/// One of many addresses behind member 1.
fn behind(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [2, 1, 0, 0, high, low]
}

fn frame(dst: [u8; 6]) -> [u8; BYTES] {
    let mut frame = [0; BYTES];
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&mac(0));
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A capture of so many bytes a ring; nobody reads it.
fn capture(kind: &str) -> Watch {
    let of = |(code, jt, jf, k)| Instruction { code, jt, jf, k };
    // As libpcap compiles "tcp port 80", up to where it refuses.
    let program = [
        (0x28, 0, 0, 12),
        (0x15, 4, 0, 0x86dd),
        (0x15, 0, 3, 0x88b5),
        (0x30, 0, 0, 23),
        (0x15, 0, 1, 6),
        (0x06, 0, 0, u32::MAX),
        (0x06, 0, 0, 0),
    ];
    let program = || Program::check(program.map(of).into()).expect("a program");
    let shape = Shape {
        workers: 1,
        ring_bytes: if kind == "lost" { 64 << 10 } else { 64 << 20 },
    };
    let (memory, fd) = Memory::create(shape).expect("memory");
    memory.close(fd.as_fd()).expect("closed");
    let points = Points {
        from: true,
        to: true,
        drops: false,
    };
    let (reader, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let filter = (kind == "nothing").then(program);
    Watch {
        capture: Arc::new(Capture::new((filter, 64, points), &memory, reader.into())),
        port: 0,
        is_both: true,
    }
}

/// A memif server of the plane's, and its client; both stay as long as they are kept.
struct Pair {
    _server: MemifServer,
    _client: MemifClient,
    served: Option<Rings>,
    rings: Rings,
}

fn memif(path: std::path::PathBuf) -> Pair {
    let server = ServerConfig {
        path: path.clone(),
        id: 0,
        secret: Secret::NONE,
        name: "server".into(),
        rings: 1,
        mode: 0o600,
        owner: None,
        quota: Quota::new(4),
    };
    let client = ClientConfig {
        path: path.clone(),
        owner: None,
        id: 0,
        secret: Secret::NONE,
        name: "client".into(),
        rings: 1,
        log2_sizes: [10; 2],
        offloads: Offloads::None,
        huge: HugePages::No,
    };
    let mut server = MemifServer::new(server).expect("a server");
    let mut client = MemifClient::new(client).expect("a client");
    let (mut served, mut rings) = (None, None);
    while served.is_none() || rings.is_none() {
        let ends: [(&mut dyn Endpoint, _); 2] =
            [(&mut server, &mut served), (&mut client, &mut rings)];
        for (end, rings) in ends {
            for event in end.poll(Instant::now()) {
                match event {
                    Event::Up(up) => *rings = Some(up),
                    Event::Down(why) => panic!("{why}"),
                }
            }
        }
    }
    let _ = std::fs::remove_file(path);
    Pair {
        _server: server,
        _client: client,
        served,
        rings: rings.expect("up"),
    }
}

/// Sends frames to one pair's client from the other's until all have come.
fn exchange([from, to]: &mut [Pair; 2], frames: u64) {
    const ALONE: Lane = Lane {
        worker: 0,
        workers: 1,
    };
    let mut worker = Domain::new(1).register();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let text = frame(mac(1));
    let (mut sent, mut came) = (0, 0);
    while came < frames {
        let section = worker.section();
        let n = (frames - sent).min(AT_ONCE);
        if n > 0 && sent == came {
            let tails = Tails::bind(&mut store, &section);
            heads.clear(RxId(0), Tick(0));
            for i in 0..n as usize {
                heads.snap[i].0[HEADROOM..HEADROOM + BYTES].copy_from_slice(&text);
                heads.admit(i, BYTES as u32, Claim::NONE);
            }
            heads.n = n as usize;
            let picks: [Pick; AT_ONCE as usize] = std::array::from_fn(|i| Pick::frame(i, false));
            let tx = &from.rings.tx;
            sent += tx
                .tx_burst(&section, ALONE, &heads, &tails, &picks[..n as usize])
                .frames;
            if tx.wants_kick(ALONE) {
                tx.kick(ALONE);
            }
        }
        let rx = &mut to.rings.rx[0];
        let mut tails = Tails::bind(&mut store, &section);
        heads.clear(RxId(0), Tick(0));
        let (loan, _) = rx.rx_burst(&section, &mut heads, &mut tails, Limit::FULL);
        came += heads.n as u64;
        rx.release(&section, loan);
        if heads.n == 0 {
            std::thread::yield_now();
        }
        worker.quiesce();
    }
    println!("{came} of {frames} frames");
}

/// Two memifs, if frames go between memifs.
fn pairs_of(kind: &str) -> Option<[Pair; 2]> {
    let path = |end| format!("visit-cost-{}-{end}", std::process::id());
    (kind == "memif").then(|| [0, 1].map(|end| memif(std::env::temp_dir().join(path(end)))))
}

/// Rings of the plane: those of a memif, or a source and a sink of this program.
fn rings_of(
    pairs: &mut Option<[Pair; 2]>,
    member: usize,
    source: Source,
    sink: &Arc<Sink>,
) -> Rings {
    let pair = pairs.as_mut().and_then(|pairs| pairs.get_mut(member));
    let memif = pair.and_then(|pair| pair.served.take());
    memif.unwrap_or_else(|| Rings {
        rx: vec![Box::new(source)],
        tx: sink.clone(),
    })
}

fn main() {
    let mut words = std::env::args().skip(1);
    let kind = words.next().unwrap_or_default();
    let frames = words.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let captured = words.next();
    let (each, copies) = match kind.as_str() {
        "one" | "memif" => (vec![frame(mac(1))], 1),
        "many" => ((0..MANY).map(|n| frame(behind(n))).collect(), 1),
        "two" => (vec![frame(mac(1)), frame(mac(2))], 1),
        "flood" => (vec![frame([0xff; 6])], 3),
        _ => panic!("memif, one, many, two or flood"),
    };
    let mut pairs = pairs_of(&kind);
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 64,
    };
    let mut plane = DataPlane::start(&options).expect("a worker");
    let tuning = BridgeTuning {
        filtering: true,
        mac: 0,
    };
    let bridge = plane.add_bridge(tuning, Limits::new(16_384, [1, 2]));
    let sinks: Vec<_> = (0..4).map(|_| Arc::new(Sink::default())).collect();
    for (member, sink) in sinks.iter().enumerate().rev() {
        let own = Key::from_octets(1, mac(member as u8));
        let mut conf = MemberConf::new(TxId(0), own.mac());
        conf.storm_limit = 0;
        let id = plane.add_member(bridge, conf, MemberTuning::default());
        let id = id.expect("a number");
        let enter = plane.ask_fdb(bridge, move |writer, now| {
            writer.add_fixed(own, id, EntryFlags::LOCAL, now)
        });
        enter.expect("an answer").expect("room");
        if member == 1 && kind == "many" {
            let enter = plane.ask_fdb(bridge, move |writer, now| {
                (0..MANY).try_for_each(|n| {
                    let key = Key::from_octets(1, behind(n));
                    writer.add_fixed(key, id, EntryFlags::STATIC, now)
                })
            });
            enter.expect("an answer").expect("room");
        }
        let source = Source {
            frames: each.clone(),
            at: 0,
            left: if member == 0 { frames } else { 0 },
            wake: windlass_sys::eventfd::create().expect("an eventfd"),
        };
        let rings = rings_of(&mut pairs, member, source, sink);
        if let Some(kind) = captured.as_ref().filter(|_| member == 0) {
            plane.watch(id, capture(kind)).expect("captured");
        }
        plane.attach(id, rings).expect("attached");
    }
    if let Some(pairs) = &mut pairs {
        return exchange(pairs, frames);
    }
    let taken = || {
        sinks
            .iter()
            .map(|s| s.0.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    while taken() < frames * copies {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{} copies of {frames} frames", taken());
}
