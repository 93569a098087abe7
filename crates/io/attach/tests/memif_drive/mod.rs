//! What the tests of memif share: driving endpoints until they are up, and moving whole frames through port halves as a
//! worker does.
#![allow(dead_code, missing_docs)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, MemifServer, Offloads, ServerConfig};
use windlass_attach::port::{Lane, Limit, More, RxPort, Sent, Stop, TxPort};
use windlass_frame::{Claim, Deepen, HEADROOM, Heads, Pick, RxId, SNAP, Tick, Verdict};
use windlass_shm::{Foreign, HugePages, SegStore, Tails};
use windlass_stats::Drop;
use windlass_sync::qsbr::{Domain, Worker};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn server_config(path: PathBuf, id: u32, rings: u16) -> ServerConfig {
    ServerConfig {
        path,
        id,
        secret: Secret::NONE,
        name: format!("srv{id}"),
        rings,
        mode: 0o600,
        owner: None,
        quota: windlass_shm::Quota::new(64),
    }
}

pub fn client_config(path: PathBuf, id: u32, rings: u16, log2_size: u8) -> ClientConfig {
    ClientConfig {
        path,
        owner: None,
        id,
        secret: Secret::NONE,
        name: format!("cli{id}"),
        rings,
        log2_sizes: [log2_size; 2],
        offloads: Offloads::None,
        huge: HugePages::Try,
    }
}

/// Whether an endpoint says that it is to be polled.
pub fn is_due(endpoint: &dyn Endpoint) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(endpoint.fd(), PollFlags::IN)];
    let is_readable = poll(&mut fds, Some(&Timespec::default())).expect("poll(2)") > 0;
    is_readable || endpoint.deadline().is_some_and(|at| at <= Instant::now())
}

/// Polls whoever is due until `done` says so; returns the events of each endpoint. Panics after [`PATIENCE`].
pub fn drive(
    endpoints: &mut [&mut dyn Endpoint],
    mut done: impl FnMut(&[Vec<Event>]) -> bool,
) -> Vec<Vec<Event>> {
    let mut events: Vec<Vec<Event>> = endpoints.iter().map(|_| Vec::new()).collect();
    let end = Instant::now() + PATIENCE;
    loop {
        for (endpoint, events) in endpoints.iter_mut().zip(&mut events) {
            if is_due(*endpoint) {
                events.extend(endpoint.poll(Instant::now()));
            }
        }
        if done(&events) {
            return events;
        }
        let status: Vec<_> = endpoints.iter().map(|e| e.status()).collect();
        assert!(Instant::now() < end, "nothing happened: {status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn rings_of(events: Vec<Event>) -> Rings {
    match events.into_iter().next() {
        Some(Event::Up(rings)) => rings,
        Some(Event::Down(why)) => panic!("down: {why}"),
        None => panic!("no event"),
    }
}

pub fn is_up(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Up(_)))
}

pub fn down_reason(events: &[Event]) -> Option<String> {
    events.iter().find_map(|event| match event {
        Event::Down(why) => Some(why.clone()),
        Event::Up(_) => None,
    })
}

/// A server and a client that are connected to each other.
pub struct Pair {
    pub server: MemifServer,
    pub client: MemifClient,
    pub server_rings: Rings,
    pub client_rings: Rings,
    pub directory: tempfile::TempDir,
}

pub fn connect(rings: u16, log2_size: u8) -> Pair {
    let directory = tempfile::Builder::new()
        .prefix("windlass-memif")
        .tempdir()
        .expect("tempdir");
    let path = directory.path().join("s");
    let mut server = MemifServer::new(server_config(path.clone(), 0, rings)).expect("server");
    let mut client = MemifClient::new(client_config(path, 0, rings, log2_size)).expect("client");
    let mut events = drive(&mut [&mut server, &mut client], |e| {
        e.iter().all(|e| is_up(e))
    });
    let client_rings = rings_of(events.pop().expect("client"));
    let server_rings = rings_of(events.pop().expect("server"));
    Pair {
        server,
        client,
        server_rings,
        client_rings,
        directory,
    }
}

/// What a worker keeps.
pub struct Driver {
    worker: Worker,
    heads: Box<Heads>,
    store: SegStore,
    /// What was claimed of each frame of the last burst.
    pub claims: Vec<Claim>,
}

impl Default for Driver {
    fn default() -> Self {
        let worker = Domain::new(1).register();
        Driver {
            worker,
            heads: Heads::boxed(),
            store: SegStore::default(),
            claims: Vec::new(),
        }
    }
}

/// One frame as it came out of a burst.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    Frame(Vec<u8>),
    Dropped(Drop),
}

impl Driver {
    /// Sends frames (at most a burst), each with the verdict of its pick: tagged with `vid` and `tci`, if given.
    pub fn send(
        &mut self,
        tx: &dyn TxPort,
        lane: Lane,
        frames: &[Vec<u8>],
        tag: Option<(u16, u16)>,
    ) -> Sent {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let mut picks = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let have = frame.len().min(SNAP);
            heads.snap[i].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
            heads.admit(i, frame.len() as u32, Claim::NONE);
            assert!(tails.push(i, Foreign::private(&frame[have..])));
            if let Some((vid, tci)) = tag {
                heads.meta[i].vid = vid;
                heads.meta[i].tci = tci;
            }
            picks.push(Pick::frame(i, tag.is_some()));
        }
        heads.n = frames.len();
        let mut sent = tx.tx_burst(&section, lane, heads, &tails, &picks);
        if sent.kick == windlass_attach::port::Kick::Now && tx.wants_kick(lane) {
            tx.kick(lane);
        } else {
            sent.kick = windlass_attach::port::Kick::No;
        }
        sent
    }

    /// Sends one frame that waits for offload work; its headers have these lengths.
    pub fn send_offloaded(
        &mut self,
        tx: &dyn TxPort,
        frame: &[u8],
        offload: windlass_frame::Offload,
        headers: [u8; 3],
    ) -> Sent {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let have = frame.len().min(SNAP);
        heads.snap[0].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        assert!(tails.push(0, Foreign::private(&frame[have..])));
        let [l2, l3, l4] = headers;
        (heads.meta[0].l2, heads.meta[0].l3, heads.meta[0].l4) = (l2, u16::from(l3), l4);
        (heads.meta[0].off, heads.meta[0].proto) = (offload, 6);
        heads.n = 1;
        tx.tx_burst(&section, ALONE, heads, &tails, &[Pick::frame(0, false)])
    }

    /// Takes one burst.
    pub fn receive(&mut self, rx: &mut dyn RxPort) -> (Vec<Got>, More) {
        self.receive_upto(rx, Limit::FULL)
    }

    pub fn receive_upto(&mut self, rx: &mut dyn RxPort, limit: Limit) -> (Vec<Got>, More) {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let (loan, more) = rx.rx_burst(&section, heads, &mut tails, limit);
        let claims = heads.meta.iter().take(heads.n).map(|meta| meta.claim);
        self.claims = claims.collect();
        let mut got = Vec::new();
        for i in 0..heads.n {
            if let Some(reason) = heads.verdict[i].as_drop() {
                assert_eq!((heads.meta[i].len, heads.dst[i], heads.src[i]), (0, 0, 0));
                got.push(Got::Dropped(reason));
                continue;
            }
            assert_eq!(heads.verdict[i], Verdict::NONE);
            let mut frame = heads.private(i).to_vec();
            for piece in tails.of(i) {
                let at = frame.len();
                frame.resize(at + piece.len(), 0);
                assert_eq!(piece.read(&mut frame[at..]), piece.len());
            }
            assert_eq!(frame.len(), heads.meta[i].len as usize);
            let d = u64::from_le_bytes(frame[..8].try_into().expect("8")) & 0xffff_ffff_ffff;
            assert_eq!(heads.dst[i], d, "destination of {frame:?}");
            if i == 0 && frame.len() > SNAP {
                assert!(tails.deepen(heads, i, frame.len().min(1000)));
            }
            got.push(Got::Frame(frame));
        }
        rx.release(&section, loan);
        self.worker.quiesce();
        (got, more)
    }

    /// Arms a half and tells whether it found work.
    pub fn arm(&mut self, rx: &mut dyn RxPort) -> windlass_attach::port::Armed {
        let section = self.worker.section();
        rx.arm(&section)
    }

    pub fn disarm(&mut self, rx: &mut dyn RxPort) {
        let section = self.worker.section();
        rx.disarm(&section);
    }

    /// Sends all of `frames` through `tx` while receiving from `rx` until all have come; returns what came.
    pub fn pump(
        &mut self,
        tx: &dyn TxPort,
        rx: &mut dyn RxPort,
        lane: Lane,
        frames: &[Vec<u8>],
    ) -> Vec<Got> {
        let (mut at, mut got) = (0, Vec::new());
        let end = Instant::now() + PATIENCE;
        while got.len() < frames.len() {
            let upto = frames.len().min(at + 7);
            let sent = self.send(tx, lane, &frames[at..upto], None);
            assert_eq!(sent.frames as usize, sent.taken);
            assert!(matches!(sent.stop, Stop::Done | Stop::Full), "{sent:?}");
            at += sent.taken;
            let (some, more) = self.receive(rx);
            assert_ne!(more, More::Dead);
            got.extend(some);
            assert!(
                Instant::now() < end,
                "{} of {} frames came",
                got.len(),
                frames.len()
            );
        }
        got
    }
}

/// Frames of these lengths, each with bytes that depend on its place.
pub fn frames(lengths: &[usize]) -> Vec<Vec<u8>> {
    let frame = |(i, len): (usize, &usize)| {
        (0..*len)
            .map(|k| (k.wrapping_mul(31) ^ i.wrapping_mul(197) ^ (k >> 8)) as u8)
            .collect()
    };
    lengths.iter().enumerate().map(frame).collect()
}

/// Only worker of its ring.
pub const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};
