//! TCP segments as frames, and two ends that speak to each other through a firewall.

use std::collections::VecDeque;

use windlass_firewall::Decision;
use windlass_frame::Tick;

use crate::member::*;
use crate::packets::{IPV4, IPV6, TCP, ethernet, ipv4, ipv6};

/// A segment.
#[derive(Debug, Clone, Copy)]
pub struct Seg {
    /// 0: from the guest.
    pub way: usize,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub scale: Option<u8>,
    pub payload: u32,
}

impl Seg {
    pub fn of(way: usize) -> Seg {
        Seg {
            way,
            seq: 0,
            ack: 0,
            flags: ACK,
            window: 0,
            scale: None,
            payload: 0,
        }
    }

    pub fn carries(self, payload: u32) -> Seg {
        Seg { payload, ..self }
    }

    pub fn offers(self, window: u16) -> Seg {
        Seg { window, ..self }
    }
}

/// How segments are framed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flow {
    is_v6: bool,
    is_tagged: bool,
}

impl Flow {
    pub fn all() -> impl Iterator<Item = Flow> {
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        kinds
            .into_iter()
            .map(|(is_v6, is_tagged)| Flow { is_v6, is_tagged })
    }

    /// The headers of a frame, and its length.
    pub fn frame(self, seg: &Seg) -> (Vec<u8>, u32) {
        let ports = if seg.way == 0 {
            [1_000u16, 80]
        } else {
            [80, 1_000]
        };
        let options: &[u8] = match seg.scale {
            Some(scale) => &[2, 4, 5, 0xb4, 1, 3, 3, scale],
            None => &[],
        };
        let header = [
            &ports[0].to_be_bytes()[..],
            &ports[1].to_be_bytes(),
            &seg.seq.to_be_bytes(),
            &seg.ack.to_be_bytes(),
            &[(5 + options.len() as u8 / 4) << 4, seg.flags],
            &seg.window.to_be_bytes(),
            &[0; 4],
            options,
        ]
        .concat();
        let (four, six) = ([GUEST, PEER], [GUEST6, PEER6]);
        let tags: &[[u8; 4]] = if self.is_tagged {
            &[[0x81, 0, 0, 5]]
        } else {
            &[]
        };
        let (kind, mut packet, at, counted) = match self.is_v6 {
            true => (
                IPV6,
                ipv6(six[seg.way], six[1 - seg.way], TCP, &header),
                4,
                0,
            ),
            false => (
                IPV4,
                ipv4(four[seg.way], four[1 - seg.way], TCP, &header),
                2,
                20,
            ),
        };
        let size = counted + header.len() as u32 + seg.payload;
        let size = u16::try_from(size).expect("as much as IP can say");
        packet[at..at + 2].copy_from_slice(&size.to_be_bytes());
        let frame = ethernet([2; 6], [4; 6], tags, kind, &packet);
        let len = frame.len() as u32 + seg.payload;
        (frame, len)
    }

    pub fn judge(self, member: &Member, seg: &Seg) -> Decision {
        let (frame, len) = self.frame(seg);
        let firewall = &member.ways[seg.way];
        let mut tracker = firewall.lock();
        firewall.judge(&mut tracker, Tick(member.now), &frame, len)
    }
}

/// Numbers of which each seed gives others.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as u32) % n
    }
}

/// One end. Numbers count from its first.
#[derive(Debug, Clone, Copy)]
struct End {
    isn: u32,
    scale: u8,
    has_scale: bool,
    buffer: u64,
    /// Sent, acknowledged by the other, and what that lets it send.
    sent: u64,
    acked: u64,
    limit: u64,
    /// Received of the other, and read.
    got: u64,
    read: u64,
}

/// What is on its way: where it begins, how long it is, what had been acknowledged to its sender, and what it is.
type Item = (u64, u64, u64, Seg);
type Line = VecDeque<Item>;

/// Sends on one way; most times the line keeps it, sometimes twice, sometimes before another one of the same trip.
fn put(line: &mut Line, random: &mut Random, item: Item) {
    if random.below(10) == 0 {
        return;
    }
    line.push_back(item);
    let last = line.len() - 1;
    match (random.below(20), last.checked_sub(1)) {
        (0, _) => line.push_back(item),
        (1, Some(before)) if line[before].2 == item.2 && line[before].3.ack == item.3.ack => {
            line.swap(last, before);
        }
        _ => {}
    }
}

/// A connection on its way through a firewall.
struct Talk {
    seed: u64,
    flow: Flow,
    random: Random,
    ends: [End; 2],
    member: Member,
    /// To the firewall and behind it, by who sent it.
    lines: [[Line; 2]; 2],
}

/// Two ends of a connection that speak until each has reset it or has ended. In half of all runs the firewall comes when both have spoken for
/// long.
pub fn talk(seed: u64, rules: &str) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let flow = Flow {
        is_v6: random.below(2) == 0,
        is_tagged: false,
    };
    let mut ends = [End::new(&mut random), End::new(&mut random)];
    if !(ends[0].has_scale && ends[1].has_scale) {
        ends.iter_mut().for_each(|end| end.scale = 0);
    }
    let begins_at = random.below(2) * 300;
    let mut talk = Talk {
        seed,
        flow,
        random,
        ends,
        member: Member::new(&[rules], 64),
        lines: Default::default(),
    };
    talk.begin();
    for step in 0..1_000 {
        if step == begins_at && step > 0 {
            talk.member = Member::new(&[rules], 64);
        }
        talk.send();
        for _ in 0..talk.random.below(4) {
            talk.carry();
        }
    }
    for way in [0, 1] {
        let last = segment(&talk.ends, way, talk.ends[way].sent, 0);
        let flags = [RST, FIN | ACK][talk.random.below(2) as usize];
        talk.passes(&Seg { flags, ..last });
    }
    let ends = &talk.ends;
    assert!(
        ends.iter().any(|end| end.acked > 10_000),
        "{seed}: {ends:?}"
    );
}

impl End {
    fn new(random: &mut Random) -> End {
        End {
            isn: 0u32.wrapping_sub(random.below(1 << 20)),
            scale: random.below(15) as u8,
            has_scale: random.below(4) != 0,
            buffer: 1_000 + u64::from(random.below(1 << 22)),
            sent: 0,
            acked: 0,
            limit: 0,
            got: 0,
            read: 0,
        }
    }
}

impl Talk {
    fn passes(&self, seg: &Seg) {
        let decision = self.flow.judge(&self.member, seg);
        assert_eq!(decision, Decision::Accept, "{}: {seg:?}", self.seed);
    }

    fn begin(&mut self) {
        for way in [0, 1] {
            let end = self.ends[way];
            let seg = Seg {
                seq: end.isn,
                ack: self.ends[0].isn.wrapping_add(1),
                flags: if way == 0 { SYN } else { SYN | ACK },
                window: end.buffer.min(65_535) as u16,
                scale: end.has_scale.then_some(end.scale),
                ..Seg::of(way)
            };
            self.passes(&seg);
            self.ends[1 - way].limit = end.buffer.min(65_535);
        }
        self.passes(&segment(&self.ends, 0, 0, 0));
    }

    /// One of them sends.
    fn send(&mut self) {
        let random = &mut self.random;
        let way = random.below(2) as usize;
        let end = self.ends[way];
        let room = end.limit.saturating_sub(end.sent).min(64_000);
        let (from, size) = match random.below(8) {
            0..=3 if room > 0 => (end.sent, 1 + u64::from(random.below(room as u32))),
            // Again; a keep-alive; nothing but what it offers.
            4 => (end.acked, (end.sent - end.acked).min(1_448)),
            5 if end.sent > 0 => (end.sent - 1, 0),
            _ => (end.sent, 0),
        };
        self.ends[way].sent = end.sent.max(from + size);
        let unread = end.got - end.read;
        self.ends[way].read += u64::from(random.below(4) / 3) * unread;
        let seg = segment(&self.ends, way, from, size as u32);
        put(
            &mut self.lines[0][way],
            random,
            (from, size, end.acked, seg),
        );
    }

    /// What one of them has sent reaches the firewall, or its receiver.
    fn carry(&mut self) {
        let way = self.random.below(2) as usize;
        if let Some(item) = self.lines[0][way].pop_front() {
            self.passes(&item.3);
            put(&mut self.lines[1][way], &mut self.random, item);
        }
        let Some((from, size, _, seg)) = self.lines[1][way].pop_front() else {
            return;
        };
        let (isn, scale) = (self.ends[1 - way].isn, self.ends[way].scale);
        let receiver = &mut self.ends[1 - way];
        let is_next = from <= receiver.got && from + size > receiver.got;
        if is_next && from + size <= receiver.read + receiver.buffer {
            receiver.got = from + size;
        }
        let ack = seg.ack.wrapping_sub(isn.wrapping_add(1));
        let ack = receiver.acked + u64::from(ack.wrapping_sub(receiver.acked as u32));
        if ack <= receiver.sent {
            receiver.acked = ack;
            let offered = u64::from(seg.window) << scale;
            receiver.limit = receiver.limit.max(ack + offered);
        }
    }
}

/// Bytes of an end from a number on, with what it acknowledges and offers.
fn segment(ends: &[End; 2], way: usize, from: u64, payload: u32) -> Seg {
    let (end, other) = (&ends[way], &ends[1 - way]);
    let offered = (end.buffer - (end.got - end.read)) >> end.scale;
    Seg {
        seq: end.isn.wrapping_add(1).wrapping_add(from as u32),
        ack: other.isn.wrapping_add(1).wrapping_add(end.got as u32),
        flags: ACK,
        window: offered.min(65_535) as u16,
        payload,
        ..Seg::of(way)
    }
}
