//! The receive half of a tunnel endpoint: one worker's socket, or that of a multicast group.
//!
//! # Life of a datagram
//! ```text
//!   recvmmsg, UDP_GRO: up to four messages, each a train of datagrams of one sender
//!   header, network                  else counted by the endpoint: it is no overlay's
//!   source                           else a frame that is dropped as vxlan-source
//!   destination                      has it moved to another host, the datagram is sent on (`relay`)
//!   inner segments merged, what a kernel has left to be done claimed
//!   congestion that the tunnel met   or dropped as ecn
//! ```
//! What does not fit into a burst, or is of another source or network than its first frame, stays in the port's memory for the
//! next one.
//!
//! # Failure modes
//! Each byte is the sender's. Claims are made of what was parsed here, and checked once more by `windlass-nic`.
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use windlass_frame::{BURST, Claim, HEADROOM, Heads, RxId, SNAP, Tick, Verdict};
use windlass_overlay::merge::{Train, half_done};
use windlass_overlay::{Vni, ecn, header};
use windlass_shm::{Foreign, Section, Tails};
use windlass_stats::Drop;
use windlass_sys::Errno;
use windlass_sys::udp::messages::{RECEIVED_MAX, Received, receive};
use windlass_wire::{Kind, Layers, parse};

use super::tables::{Network, Tables};
use super::{Relays, Vtep};
use crate::port::{Armed, Limit, Loan, More, RxPort};

/// Bytes that one message may have.
const EACH: usize = 65_536;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Receptions in one visit that give no frame.
const EMPTY_MAX: usize = 4;

/// What comes to one socket.
pub struct VtepRx {
    vtep: Arc<Vtep>,
    socket: Arc<OwnedFd>,
    tables: Arc<Tables>,
    relays: Arc<Relays>,
    version: u64,
    space: Box<[u8]>,
    received: [Option<Received>; RECEIVED_MAX],
    /// Messages in `space`.
    count: usize,
    /// The next one.
    at: usize,
    /// Where its next datagram begins.
    offset: usize,
}

/// Where a network's datagrams of one sender come from.
#[derive(Clone, Copy)]
struct Origin {
    vni: Vni,
    place: u16,
    mtu: u16,
    is_refused: bool,
}

/// One datagram's frame.
#[derive(Clone, Copy)]
struct Inner<'a> {
    frame: &'a [u8],
    /// The size of its segments, if it is a large one that was not cut.
    segment: Option<u16>,
}

impl VtepRx {
    pub(super) fn new(vtep: Arc<Vtep>, socket: Arc<OwnedFd>) -> VtepRx {
        VtepRx {
            vtep,
            socket,
            tables: Arc::default(),
            relays: Arc::default(),
            version: 0,
            space: vec![0; EACH.saturating_mul(RECEIVED_MAX)].into_boxed_slice(),
            received: [None; RECEIVED_MAX],
            count: 0,
            at: 0,
            offset: 0,
        }
    }

    /// Takes new tables and relays, if there are some.
    #[inline]
    fn refresh(&mut self) {
        let version = self.vtep.version.load(Ordering::Acquire);
        if version != self.version {
            let tables = self.vtep.tables.lock();
            self.tables = tables.unwrap_or_else(PoisonError::into_inner).clone();
            let relays = self.vtep.relays.lock();
            self.relays = relays.unwrap_or_else(PoisonError::into_inner).clone();
            self.version = version;
        }
    }

    /// Receives messages; none is left of those before. How many, or what else there is.
    fn fetch(&mut self) -> Result<usize, More> {
        (self.count, self.at, self.offset) = (0, 0, 0);
        match receive(&self.socket, &mut self.space, EACH, &mut self.received) {
            Ok(count) => {
                self.count = count;
                Ok(count)
            }
            Err(Errno::AGAIN) => Err(More::Drained),
            // Whatever else the socket has to say, it goes on.
            Err(_) => Err(More::Left),
        }
    }

    /// Turns datagrams of the message at hand into frames, as far as they are of one origin and fit. Whether the message is
    /// used up.
    fn take_message<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
        bytes: &mut usize,
    ) -> bool {
        let Some(message) = self.received.get(self.at).copied().flatten() else {
            return true;
        };
        let begin = self.at.saturating_mul(EACH);
        let space = self.space.get(begin..).unwrap_or(&[]);
        let all = space.get(..message.len).unwrap_or(&[]);
        if message.is_cut {
            Self::count(&self.vtep.headers);
            return true;
        }
        let (mut offset, now) = (self.offset, heads.now);
        let mut burst = Burst {
            section,
            heads,
            tails,
            tos: message.tos,
            train: None,
        };
        let mut last: Option<Origin> = None;
        let is_used_up = loop {
            let rest = all.get(offset..).unwrap_or(&[]);
            if rest.is_empty() {
                break true;
            }
            let (datagram, inner_size) = split(rest, message.segment);
            let part = (datagram, inner_size);
            let Some((origin, frame)) = self.receive(part, &message, last, now) else {
                offset = offset.saturating_add(datagram.len());
                continue;
            };
            last = Some(origin);
            let is_other = burst.heads.n > 0 && burst.heads.from != RxId(origin.place);
            if is_other {
                break false;
            }
            burst.heads.from = RxId(origin.place);
            let inner = Inner {
                frame,
                segment: inner_size.or_else(|| uncut_tcp(frame, origin.mtu)),
            };
            let joins = *bytes < limit.bytes && burst.join(&inner);
            if !joins {
                let is_full = burst.heads.n >= limit.frames.min(BURST)
                    || *bytes >= limit.bytes
                    || burst.tails.room() == 0;
                if is_full {
                    break false;
                }
                burst.admit(inner, origin.is_refused);
            }
            *bytes = bytes.saturating_add(frame.len());
            offset = offset.saturating_add(datagram.len());
        };
        burst.seal();
        self.offset = offset;
        is_used_up
    }

    /// Where a datagram of a message comes from, and its frame. `None` if it is not VXLAN, of a network that no overlay has, or sent on,
    /// which is counted.
    #[inline]
    fn receive<'a>(
        &self,
        (datagram, inner_size): (&'a [u8], Option<u16>),
        message: &Received,
        last: Option<Origin>,
        now: Tick,
    ) -> Option<(Origin, &'a [u8])> {
        let Some((vni, frame)) = read(datagram) else {
            Self::count(&self.vtep.headers);
            return None;
        };
        let known = last.filter(|last| last.vni == vni);
        let Some(origin) = known.or_else(|| self.origin(vni, message.from.ip())) else {
            Self::count(&self.vtep.unknown);
            return None;
        };
        let may_move = !self.relays.is_empty() && !origin.is_refused && inner_size.is_none();
        let (vtep, relays) = (&self.vtep, &self.relays);
        if may_move && vtep.relay(relays, datagram, (vni, frame), message, now) {
            return None;
        }
        Some((origin, frame))
    }

    #[cold]
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Where datagrams of a network come from; `None` if no overlay has it.
    fn origin(&self, vni: Vni, from: IpAddr) -> Option<Origin> {
        let network: &Network = self.tables.network(vni)?;
        let target = self.tables.source(vni, from);
        let is_own = from == self.vtep.conf.local.ip();
        Some(Origin {
            vni,
            place: target.or(network.strangers).unwrap_or(network.overlay),
            mtu: network.mtu,
            is_refused: target.is_none() && (network.strangers.is_none() || is_own),
        })
    }
}

/// The first datagram of what is left of a message, and the size of its inner segments if it is a large one: a kernel tells that
/// size where a train has the size of its datagrams. The first inner packet says which of them it is.
fn split(rest: &[u8], told: Option<u16>) -> (&[u8], Option<u16>) {
    let Some(size) = told.filter(|size| usize::from(*size) < rest.len()) else {
        return (rest, None);
    };
    let frame = rest.get(header::BYTES..).unwrap_or(&[]);
    let layers = parse(frame, frame.len() as u32);
    let end = (layers.end as usize).saturating_add(header::BYTES);
    if layers.l3 != 0 && end > size.into() && end == rest.len() {
        return (rest, Some(size));
    }
    (rest.get(..size.into()).unwrap_or(rest), None)
}

/// The network of a datagram, and its frame; `None` if it is not VXLAN.
fn read(datagram: &[u8]) -> Option<(Vni, &[u8])> {
    let vni = header::decode(datagram)?;
    let frame = datagram.get(header::BYTES..)?;
    (frame.len() >= ETHERNET).then_some((vni, frame))
}

/// The size of the segments of a large TCP segment that a kernel has not cut and has not told: such as the overlay's MTU allows.
fn uncut_tcp(frame: &[u8], mtu: u16) -> Option<u16> {
    if frame.len() <= usize::from(mtu).saturating_add(ETHERNET) {
        return None;
    }
    let layers = parse(frame, frame.len() as u32);
    let headers = layers.l3.saturating_add(layers.l4.into());
    layers.is_tcp().then(|| mtu.saturating_sub(headers))
}

/// Frames that are made of one message.
struct Burst<'b, 'q, 'a> {
    section: &'q Section<'q>,
    heads: &'b mut Heads,
    tails: &'b mut Tails<'q>,
    tos: u8,
    /// Segments that are merged in the last frame.
    train: Option<Train<'a>>,
}

impl<'a> Burst<'_, '_, 'a> {
    /// A piece of the port's memory.
    fn piece<'q>(section: &'q Section<'q>, bytes: &[u8]) -> Foreign<'q> {
        // SAFETY: the bytes lie in the port's memory, which is written again only when the next burst is received: behind the
        // release of this one, hence behind the section's use of them. The port is not dropped inside the section.
        unsafe { Foreign::at(section, bytes.as_ptr(), bytes.len() as u32) }
    }

    /// Puts a segment behind those of the last frame, if it follows them.
    fn join(&mut self, inner: &Inner<'a>) -> bool {
        let Some(train) = &mut self.train else {
            return false;
        };
        if inner.segment.is_some() || self.tails.room() == 0 {
            return false;
        }
        let layers = parse(inner.frame, inner.frame.len() as u32);
        let is_half = half_done(inner.frame, &layers).is_some();
        let Some(at) = train.join(inner.frame, &layers, is_half) else {
            return false;
        };
        let payload = inner.frame.get(at..).unwrap_or(&[]);
        let last = self.heads.n.saturating_sub(1);
        self.tails.push(last, Self::piece(self.section, payload))
    }

    /// Makes a frame.
    fn admit(&mut self, inner: Inner<'a>, is_refused: bool) {
        self.seal();
        let i = self.heads.n % BURST;
        let len = inner.frame.len();
        let (start, rest) = inner.frame.split_at(len.min(SNAP));
        let snap = self.heads.snap.get_mut(i).and_then(|snap| {
            let end = HEADROOM.saturating_add(start.len());
            snap.0.get_mut(HEADROOM..end)
        });
        if let Some(snap) = snap {
            snap.copy_from_slice(start);
        }
        let layers = parse(inner.frame, len as u32);
        let half = half_done(inner.frame, &layers);
        self.heads
            .admit(i, len as u32, claim(&layers, half, inner.segment));
        self.tails.push(i, Self::piece(self.section, rest));
        self.heads.n = self.heads.n.saturating_add(1);
        if is_refused {
            self.decide(i, Verdict::drop(Drop::VxlanSource));
        } else if inner.segment.is_none() && len >= SNAP {
            self.train = Train::begin(inner.frame, &layers, half.is_some());
        }
        if self.train.is_none() {
            self.congest(i);
        }
    }

    /// The last frame is complete.
    fn seal(&mut self) {
        let Some(train) = self.train.take() else {
            return;
        };
        let i = self.heads.n.saturating_sub(1) % BURST;
        if let Some(large) = train.seal(self.heads.private_mut(i))
            && let Some(meta) = self.heads.meta.get_mut(i)
        {
            meta.len = large.len;
            meta.claim = Claim {
                flags: Claim::NEEDS_CSUM,
                gso_type: match large.is_v4 {
                    true => Claim::GSO_TCPV4,
                    false => Claim::GSO_TCPV6,
                },
                gso_size: large.size,
                csum_start: large.csum.0,
                csum_offset: large.csum.1,
            };
            self.heads.claimed = true;
        }
        self.congest(i);
    }

    /// What the tunnel met becomes the inner packet's.
    fn congest(&mut self, i: usize) {
        if !ecn::apply(self.tos, self.heads.private_mut(i)) {
            self.decide(i, Verdict::drop(Drop::Ecn));
        }
    }

    fn decide(&mut self, i: usize, verdict: Verdict) {
        if let Some(place) = self.heads.verdict.get_mut(i) {
            *place = verdict;
        }
    }
}

/// What a frame waits for, as its sender would say it.
fn claim(layers: &Layers, half: Option<(u16, u16)>, segment: Option<u16>) -> Claim {
    let Some((csum_start, csum_offset)) = half else {
        return Claim::NONE;
    };
    let gso_type = match (layers.kind, layers.is_tcp()) {
        _ if segment.is_none() => 0,
        (Kind::Ipv4, true) => Claim::GSO_TCPV4,
        (_, true) => Claim::GSO_TCPV6,
        _ => Claim::GSO_UDP_L4,
    };
    Claim {
        flags: Claim::NEEDS_CSUM,
        gso_type,
        gso_size: segment.unwrap_or(0),
        csum_start,
        csum_offset,
    }
}

impl RxPort for VtepRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        self.refresh();
        let (mut bytes, mut is_fresh) = (0, false);
        for _ in 0..EMPTY_MAX {
            while self.at < self.count {
                if !self.take_message(section, heads, tails, limit, &mut bytes) {
                    return (Loan::default(), More::Left);
                }
                (self.at, self.offset) = (self.at.saturating_add(1), 0);
            }
            if heads.n > 0 {
                // The frames lie where the next messages would. What was received in an earlier visit does not say that nothing has come since.
                let is_last = is_fresh && self.count < RECEIVED_MAX;
                let more = if is_last { More::Drained } else { More::Left };
                return (Loan::default(), more);
            }
            if let Err(more) = self.fetch() {
                return (Loan::default(), more);
            }
            is_fresh = true;
        }
        (Loan::default(), More::Left)
    }

    fn release(&mut self, _section: &Section<'_>, _loan: Loan) {}

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn polls_memory(&self) -> bool {
        false
    }
}
