//! A memif client that takes and gives single frames.
#![allow(dead_code)] // No test uses all of it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, Offloads, Refusal};
use windlass_attach::port::{Kick, Lane, Limit, Stop};
use windlass_frame::{Claim, HEADROOM, Heads, Pick, RxId, SNAP, Tick};
use windlass_shm::{Foreign, HugePages, SegStore, Tails};
use windlass_sync::qsbr::{Domain, Worker};
use windlass_tests::until_some;

const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// A program's end of a memif.
pub(crate) struct Peer {
    client: MemifClient,
    rings: Rings,
    worker: Worker,
    heads: Box<Heads>,
    store: SegStore,
    /// Frames that came, and nobody has taken yet.
    pub waiting: VecDeque<Vec<u8>>,
    /// Frames that came.
    pub frames: u64,
    /// The longest of them, in bytes.
    pub longest: usize,
}

fn config(path: PathBuf, rings: u16) -> ClientConfig {
    ClientConfig {
        path,
        owner: None,
        id: 0,
        secret: Secret::NONE,
        name: "peer".to_owned(),
        rings,
        log2_sizes: [10; 2],
        offloads: Offloads::None,
        huge: HugePages::Try,
    }
}

impl Peer {
    pub fn connect(path: PathBuf, rings: u16) -> Peer {
        let mut client = MemifClient::new(config(path, rings)).expect("a client");
        let rings = until_some("the memif is connected", || {
            match client.poll(Instant::now()).pop() {
                Some(Event::Up(rings)) => Some(rings),
                _ => None,
            }
        });
        Peer {
            client,
            rings,
            worker: Domain::new(1).register(),
            heads: Heads::boxed(),
            store: SegStore::default(),
            waiting: VecDeque::new(),
            frames: 0,
            longest: 0,
        }
    }

    /// Why the daemon does not take a client; panics if it does.
    pub fn refused(path: PathBuf) -> String {
        let mut client = MemifClient::new(config(path, 1)).expect("a client");
        let silent = Refusal::Silent.to_string();
        until_some("the client is refused", || {
            let events = client.poll(Instant::now());
            assert!(events.is_empty(), "{events:?}");
            let reason = client.status().reason;
            assert!(!reason.contains(&silent), "it was let in first");
            reason.contains("in use").then_some(reason)
        })
    }

    /// Whether the daemon has ended the connection.
    pub fn has_ended(&mut self) -> bool {
        let events = self.client.poll(Instant::now());
        events.iter().any(|event| matches!(event, Event::Down(_)))
    }

    /// Takes what waits in a ring.
    pub fn take(&mut self, ring: usize) {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let rx = self.rings.rx[ring].as_mut();
        let (loan, _) = rx.rx_burst(&section, heads, &mut tails, Limit::FULL);
        for i in 0..heads.n {
            assert!(
                heads.verdict[i].as_drop().is_none(),
                "{:?}",
                heads.verdict[i]
            );
            let mut frame = heads.private(i).to_vec();
            for piece in tails.of(i) {
                let at = frame.len();
                frame.resize(at + piece.len(), 0);
                piece.read(&mut frame[at..]);
            }
            self.frames += 1;
            self.longest = self.longest.max(frame.len());
            self.waiting.push_back(frame);
        }
        rx.release(&section, loan);
        self.worker.quiesce();
    }

    /// Sends one frame; waits while the ring is full.
    pub fn give(&mut self, frame: &[u8]) {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let have = frame.len().min(SNAP);
        heads.snap[0].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        assert!(tails.push(0, Foreign::private(&frame[have..])));
        heads.n = 1;
        loop {
            let picks = [Pick::frame(0, false)];
            let sent = self
                .rings
                .tx
                .tx_burst(&section, ALONE, heads, &tails, &picks);
            if sent.kick == Kick::Now {
                self.rings.tx.kick(ALONE);
            }
            if sent.stop == Stop::Done {
                return;
            }
            std::thread::yield_now();
        }
    }
}
