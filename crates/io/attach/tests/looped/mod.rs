//! A tunnel endpoint that is its own target, over loopback: used by tests and by the fuzz target `vxlan`.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_attach::port::{Lane, Limit, More, RxPort, TxCaps, TxPort};
use windlass_attach::soft;
use windlass_attach::vxlan::{Network, PORTS_MAX, Tables, Target, TargetConf, Tos, Vtep, VtepConf};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, RxId, SNAP, Tick, Verdict};
use windlass_overlay::Vni;
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_sync::qsbr::{Domain, Worker};

/// Bytes of what one socket sends.
const DATAGRAM_MAX: usize = 65_000;

thread_local! {
    static ENDPOINT: RefCell<Loop> = RefCell::new(Loop::start());
}

/// The first two bytes are the size of datagrams, those behind them what they are: none of it breaks an endpoint, and each frame is as long as it
/// says.
pub fn check(bytes: &[u8]) {
    let Some(([low, high], train)) = bytes.split_first_chunk() else {
        return;
    };
    let train = train.get(..DATAGRAM_MAX).unwrap_or(train);
    let size = u16::from_le_bytes([*low, *high]);
    ENDPOINT.with_borrow_mut(|endpoint| endpoint.hear(train, size));
}

const OVERLAY: u16 = 7;
const PLACE: u16 = 4096;
const MTU: u16 = 1450;

/// The endpoint, its receive half, and the worker that has them.
pub struct Loop {
    pub target: Target,
    rx: Box<dyn RxPort>,
    pub vtep: Arc<Vtep>,
    pub local: SocketAddr,
    /// When bursts are sent and received.
    pub now: Tick,
    worker: Worker,
    stores: [SegStore; 2],
}

impl Loop {
    pub fn start() -> Loop {
        Loop::at(1)
    }

    /// At 127.0.0.`last`; hosts 1 to 4 are targets of its network.
    pub fn at(last: u8) -> Loop {
        let host = |last| Ipv4Addr::new(127, 0, 0, last);
        let free = UdpSocket::bind((host(last), 0)).expect("a port");
        let local = free.local_addr().expect("an address");
        drop(free);
        let conf = VtepConf {
            local,
            ttl: 64,
            tos: Tos::Inherit,
            ports: PORTS_MAX,
        };
        let vtep = Vtep::open(&conf, 1).expect("an endpoint");
        let vni = Vni::new(9).expect("24 bits");
        let network = Network {
            overlay: OVERLAY,
            mtu: MTU,
            strangers: None,
        };
        let sources = (1..=4).map(|last| ((vni, host(last).into()), PLACE));
        vtep.set_tables(Tables::new([(vni, network)], sources));
        let target = Target::new(vtep.clone(), TargetConf { to: local, vni });
        Loop {
            target,
            rx: vtep.rings().rx.remove(0),
            vtep,
            local,
            now: Tick(1),
            worker: Domain::new(1).register(),
            stores: Default::default(),
        }
    }

    /// Sends frames with their claims, in bursts; gives what they are when they are finished.
    pub fn send(&mut self, frames: &[(Vec<u8>, Claim)]) -> Vec<Vec<u8>> {
        let lane = Lane {
            worker: 0,
            workers: 1,
        };
        let mut finished = Vec::new();
        for burst in frames.chunks(BURST) {
            let section = self.worker.section();
            let mut heads = Heads::boxed();
            heads.clear(RxId(1), self.now);
            let mut tails = Tails::bind(&mut self.stores[0], &section);
            for (i, (frame, claim)) in burst.iter().enumerate() {
                let (start, rest) = frame.split_at(frame.len().min(SNAP));
                heads.snap[i].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
                heads.admit(i, frame.len() as u32, *claim);
                let (a, b) = rest.split_at(rest.len() / 3);
                assert!(tails.push(i, Foreign::private(a)) && tails.push(i, Foreign::private(b)));
            }
            heads.n = burst.len();
            windlass_nic::leave(&mut heads, &mut tails);
            let picks: Vec<_> = (0..heads.n).map(|i| Pick::frame(i, false)).collect();
            for pick in &picks {
                assert_eq!(heads.verdict[pick.index()], Verdict::NONE);
                finish(&heads, &tails, *pick, &mut finished);
            }
            let sent = self.target.tx_burst(&section, lane, &heads, &tails, &picks);
            assert_eq!((sent.taken, sent.frames), (picks.len(), picks.len() as u64));
        }
        finished
    }

    /// Sends bytes to the endpoint, as datagrams of `size` bytes each if they are few enough, and receives them.
    pub fn hear(&mut self, bytes: &[u8], size: u16) {
        let socket = UdpSocket::bind((self.local.ip(), 0)).expect("a port");
        let is_few = bytes.len() / usize::from(size.max(1)) < 64;
        let segment = if is_few { size } else { 0 };
        windlass_sys::udp::set_segment_bytes(&socket, segment).expect("segments");
        socket.send_to(bytes, self.local).expect("sent");
        self.receive();
    }

    /// What comes until it is `len` finished frames, or ten seconds are over: a busy kernel is late. And how many frames it was before.
    pub fn receive_all(&mut self, len: usize) -> (Vec<Vec<u8>>, usize) {
        let (mut finished, mut frames) = (Vec::new(), 0);
        let begun = Instant::now();
        while finished.len() < len && begun.elapsed() < Duration::from_secs(10) {
            let (came, before) = self.receive();
            finished.extend(came);
            frames += before;
        }
        (finished, frames)
    }

    /// One burst of at most so many frames: how many it has, and what it says is left.
    pub fn burst(&mut self, frames: usize) -> (usize, More) {
        let section = self.worker.section();
        let mut heads = Heads::boxed();
        heads.clear(RxId(0), self.now);
        let mut tails = Tails::bind(&mut self.stores[1], &section);
        let limit = Limit {
            frames,
            ..Limit::FULL
        };
        let (loan, more) = self.rx.rx_burst(&section, &mut heads, &mut tails, limit);
        windlass_nic::leave(&mut heads, &mut tails);
        self.rx.release(&section, loan);
        (heads.n, more)
    }

    /// All that has come, finished; and how many frames it was before.
    pub fn receive(&mut self) -> (Vec<Vec<u8>>, usize) {
        let (mut finished, mut frames) = (Vec::new(), 0);
        loop {
            let section = self.worker.section();
            let mut heads = Heads::boxed();
            heads.clear(RxId(0), self.now);
            let mut tails = Tails::bind(&mut self.stores[1], &section);
            let (loan, more) = self
                .rx
                .rx_burst(&section, &mut heads, &mut tails, Limit::FULL);
            windlass_nic::leave(&mut heads, &mut tails);
            assert!(heads.n <= BURST);
            frames += heads.n;
            for i in 0..heads.n {
                assert_eq!(heads.from, RxId(PLACE));
                let private = heads.private(i).len();
                let rest: usize = tails.of(i).map(|piece| piece.len()).sum();
                assert_eq!(private + rest, heads.meta[i].len as usize);
                if heads.verdict[i] == Verdict::NONE {
                    finish(&heads, &tails, Pick::frame(i, false), &mut finished);
                }
            }
            let is_empty = heads.n == 0;
            self.rx.release(&section, loan);
            if is_empty && more == More::Drained {
                return (finished, frames);
            }
        }
    }
}

fn finish(heads: &Heads, tails: &Tails<'_>, pick: Pick, into: &mut Vec<Vec<u8>>) {
    let caps = TxCaps::default();
    let made = soft::finish(heads, tails, pick, caps, |frame| {
        into.push(frame.to_vec());
        true
    });
    made.expect("a frame");
}
