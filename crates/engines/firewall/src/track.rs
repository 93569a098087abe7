//! Connections of a member, and what was decided about them.
//!
//! # Model
//! A table of fixed size in buckets of [`WAYS`], keyed by a hash that senders do not know. Each entry is one cache line; a bucket's
//! tags are half of another, so that a connection is found with two. Both [`Side`]s of a TCP connection are half of a third.
//!
//! | phase | what is known | it lives, after its last packet |
//! | --- | --- | --- |
//! | `Opening` | one side has spoken | TCP, UDP and ICMP: 30 s |
//! | `Answered` | TCP: the other has acknowledged the SYN | 30 s |
//! | `Open` | both have spoken | TCP 2 h 4 min (RFC 5382), UDP 3 min, ICMP 30 s |
//! | `Closed` | TCP: both have ended | 60 s; a SYN begins anew |
//! | `Part` | the first part of a packet was accepted, by the rules of one generation | 30 s |
//!
//! Segments of TCP change an entry if their numbers fit ([`crate::window`]). A RST leaves the phase and shortens the life to 10 s: what the
//! connection sends next restores it. TCP that nobody saw begin is new: connections survive a daemon that begins anew where the
//! rules let them begin.
//!
//! # A SYN where there is an entry
//! It may be repeated, forged, or the first of another connection between the same ports: its receiver knows. So the entry keeps what an answer
//! would acknowledge. A SYN-ACK that does begins the connection anew, whatever the phase; a reset that does passes. Any other answer,
//! such as a challenge (RFC 5961, section 4), belongs to the connection that is there.
//!
//! # Which entries give way
//! To a new one, in a full bucket: one that has expired; else, of those that are not `Open`, the one that expires first. Never one that is
//! open: a flood of beginnings cannot end what is established. If all are open, the new connection is not tracked.
//!
//! # Clocks that jump
//! An entry lives while its end is at most the longest life ahead. After a jump, in either direction, entries can end early; none lives longer
//! than it would.

use windlass_rules::{Direction, Family, State};
use windlass_wire::ether::proto;

use crate::packet::{self, Packet, Plain, Segment, flag};
use crate::tell::Bucket;
use crate::window::Side;

/// Entries of a bucket.
pub const WAYS: usize = 16;

/// A moment, in units of 268 ms, which wrap.
pub(crate) type Moment = u32;

/// A tick as a moment.
pub(crate) const fn moment(ns: u64) -> Moment {
    (ns >> 28) as u32
}

/// Seconds, rounded up.
const fn seconds(n: u64) -> u32 {
    moment(n.saturating_mul(1_000_000_000)).saturating_add(1)
}

const OPENING: u32 = seconds(30);
const OPEN_TCP: u32 = seconds(7_440);
const OPEN_UDP: u32 = seconds(180);
const OPEN_ICMP: u32 = seconds(30);
const CLOSED: u32 = seconds(60);
const RESET: u32 = seconds(10);
const LONGEST: u32 = OPEN_TCP;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
enum Phase {
    #[default]
    Opening,
    Answered,
    Open,
    Closed,
    Part,
}

/// What names a connection at its member. Packed: an entry has no byte to spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, packed(2))]
struct Key {
    /// Both addresses, the guest's first; of IPv4 in the first word.
    addresses: [u64; 4],
    /// Ports, the guest's first; twice an identifier; the number of a packet in parts.
    ports: u32,
    protocol: u8,
    /// Version of IP, and what else tells connections apart: who asks by ICMP, the way of a packet in parts.
    kind: u8,
}

const V6: u8 = 1;
const OUTWARD: u8 = 2;
const PART: u8 = 4;

/// Bits of [`Entry::flags`].
const BEGUN_OUT: u8 = 1;
const FIN_IN: u8 = 2;
const FIN_OUT: u8 = 4;
const WAS_RESET: u8 = 8;
/// A SYN passed that did not begin the entry, by direction.
const ASKED: [u8; 2] = [16, 32];

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Entry {
    key: Key,
    phase: Phase,
    flags: u8,
    /// The end of its life.
    until: Moment,
    /// Of TCP that was asked again: what an answer acknowledges. Of a packet in parts: where its headers end.
    detail: u32,
    /// By direction. Of a packet in parts: both.
    decided: [Decided; 2],
}

/// A decision, the rules that count what it is about, and for which rules and which state it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decided(u64);

impl Decided {
    /// Nothing is decided: generations begin at 1.
    pub(crate) const NONE: Decided = Decided(0);
    /// What is not compared.
    const ANSWER: u64 = 0xffff << 8 | 1;

    /// `number` is of [`Counts`](crate::count::Counts).
    #[inline(always)]
    pub(crate) const fn new(generation: u64, state: State, accepts: bool, number: u16) -> Decided {
        Decided(generation << 24 | (number as u64) << 8 | (state as u64) << 1 | accepts as u64)
    }

    #[inline(always)]
    pub(crate) const fn accepts(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn number(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Whether it is about the same.
    #[inline(always)]
    const fn is_about(self, generation: u64, state: State) -> bool {
        let same = Decided::new(generation, state, false, 0);
        self.0 & !Self::ANSWER == same.0
    }
}

/// What a packet is to what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) state: State,
    /// The entry of its connection.
    pub(crate) slot: Option<u32>,
    /// The decision that holds for it, if there is one.
    pub(crate) decided: Option<Decided>,
    /// Where its entry is, or would be, if it is of a kind that is tracked.
    pub(crate) place: Option<Place>,
}

/// Where the entry of a key is, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    bucket: u32,
    tag: u16,
}

impl Found {
    /// No connection.
    #[inline(always)]
    pub(crate) const fn unknown(state: State) -> Found {
        Found {
            state,
            slot: None,
            decided: None,
            place: None,
        }
    }
}

/// A plain packet and its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    /// Bytes of its frame.
    pub(crate) len: u32,
    slot: u32,
    protocol: u8,
    /// Those of TCP, and what else it says.
    flags: u8,
    segment: Segment,
}

/// Tags that are compared at once, and the bits of each.
const LANES: usize = 4;
const LANE_BITS: usize = 16;
/// The lowest and the highest bit of each lane.
const LOWEST: u64 = 0x0001_0001_0001_0001;
const HIGHEST: u64 = LOWEST << 15;

/// Tags of some ways of a bucket; 0 where there is no entry.
#[derive(Debug, Clone, Copy)]
struct Tags(u64);

impl Tags {
    /// The highest bit of each lane that has this tag; above the first, perhaps of others too.
    #[inline(always)]
    const fn equal(self, tag: u16) -> u64 {
        let zeros = self.0 ^ LOWEST.wrapping_mul(tag as u64);
        zeros.wrapping_sub(LOWEST) & !zeros & HIGHEST
    }

    const fn set(&mut self, lane: usize, tag: u16) {
        let at = (lane % LANES).wrapping_mul(LANE_BITS);
        self.0 = self.0 & !((u16::MAX as u64) << at) | (tag as u64) << at;
    }
}

/// The first way that has this tag and is the right one.
#[inline(always)]
fn way_with(
    tags: &[Tags; WAYS / LANES],
    tag: u16,
    mut is_right: impl FnMut(usize) -> bool,
) -> Option<usize> {
    for (word, first) in tags.iter().zip((0..).step_by(LANES)) {
        let mut equal = word.equal(tag);
        while equal != 0 {
            let way = (equal.trailing_zeros() as usize / LANE_BITS).wrapping_add(first);
            if is_right(way) {
                return Some(way);
            }
            equal &= equal.wrapping_sub(1);
        }
    }
    None
}

/// Connections of a member.
#[derive(Debug)]
pub struct Tracker {
    /// What may be sent back to senders.
    pub(crate) answers: Bucket,
    /// What rules may log.
    pub(crate) events: Bucket,
    /// Entries that were made; wraps.
    pub(crate) made: u32,
    seeds: [u64; 2],
    tags: Vec<[Tags; WAYS / LANES]>,
    entries: Vec<Entry>,
    /// By entry, of TCP: both sides, by direction.
    sides: Vec<[Side; 2]>,
}

/// The place of a direction in what is kept for both.
#[inline(always)]
const fn index(direction: Direction) -> usize {
    matches!(direction, Direction::Out) as usize
}

/// The side that sends in a direction, and the other one.
#[inline(always)]
const fn sides(pair: &mut [Side; 2], direction: Direction) -> (&mut Side, &mut Side) {
    let [inwards, out] = pair;
    match direction {
        Direction::In => (inwards, out),
        Direction::Out => (out, inwards),
    }
}

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}

/// Whether flags of TCP can stand together.
#[inline(always)]
const fn is_sane(flags: u8) -> bool {
    match flags & (flag::SYN | flag::FIN | flag::RST | flag::ACK) {
        flag::SYN | flag::RST | flag::ACK => true,
        rest => {
            matches!(rest & !flag::ACK, flag::SYN | flag::FIN | flag::RST) && rest & flag::ACK != 0
        }
    }
}

/// Types of ICMP that ask and answer by an identifier, by version of IP.
const fn echo(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (8, 0),
        Family::V6 => (128, 129),
    }
}

/// Whether a type of ICMP is an error about another packet.
pub(crate) const fn is_error(family: Family, kind: u8) -> bool {
    match family {
        Family::V4 => matches!(kind, 3 | 4 | 11 | 12),
        Family::V6 => matches!(kind, 1..=4),
    }
}

/// The addresses of a key.
#[inline(always)]
const fn words(family: Family, first: u128, second: u128) -> [u64; 4] {
    match family {
        Family::V4 => [(first as u64) << 32 | second as u32 as u64, 0, 0, 0],
        Family::V6 => [
            first as u64,
            (first >> 64) as u64,
            second as u64,
            (second >> 64) as u64,
        ],
    }
}

impl Key {
    /// The name of a packet's connection; none if it is of no kind that is tracked.
    #[inline(always)]
    fn of(direction: Direction, packet: &Packet) -> Option<Key> {
        let (from, to) = packet.ports;
        let (local, remote, ports) = match direction {
            Direction::In => (packet.to, packet.from, (to, from)),
            Direction::Out => (packet.from, packet.to, (from, to)),
        };
        let family = if packet.family == Family::V6 { V6 } else { 0 };
        let is_out = direction == Direction::Out;
        let (ports, kind) = match packet.icmp {
            _ if matches!(packet.protocol, proto::TCP | proto::UDP) => (ports, family),
            Some((kind, _, number)) => {
                let (asks, answers) = echo(packet.family);
                let asks_out = if kind == asks { is_out } else { !is_out };
                let who = if asks_out { OUTWARD } else { 0 };
                (kind == asks || kind == answers).then_some(((number, number), family | who))?
            }
            None => return None,
        };
        Some(Key {
            addresses: words(packet.family, local, remote),
            ports: u32::from(ports.0) << 16 | u32::from(ports.1),
            protocol: packet.protocol,
            kind,
        })
    }

    /// The name of a plain packet's connection.
    #[inline(always)]
    fn of_plain(direction: Direction, head: &Plain) -> Key {
        let (addresses, ports) = packet::ends(head);
        // Both are swapped as wholes.
        let (addresses, ports) = match direction {
            Direction::In => (addresses.rotate_left(32), ports.rotate_left(16)),
            Direction::Out => (addresses, ports),
        };
        Key {
            addresses: [addresses, 0, 0, 0],
            ports,
            protocol: packet::protocol(head),
            kind: 0,
        }
    }

    /// Whether it is this one of IPv4.
    #[inline(always)]
    const fn is_v4(&self, other: &Key) -> bool {
        let ([a, ..], [b, ..]) = (self.addresses, other.addresses);
        a == b && self.ports == other.ports && self.protocol == other.protocol && self.kind == 0
    }

    /// The name of a packet that comes in parts.
    fn of_part(direction: Direction, packet: &Packet, number: u32) -> Key {
        let (v6, v4) = (packet.family == Family::V6, packet.family == Family::V4);
        let way = if direction == Direction::Out {
            OUTWARD
        } else {
            0
        };
        Key {
            addresses: words(packet.family, packet.from, packet.to),
            ports: number,
            // IPv6 tells packets apart without it (RFC 8200, section 4.5).
            protocol: if v4 { packet.protocol } else { 0 },
            kind: PART | way | if v6 { V6 } else { 0 },
        }
    }
}

impl Tracker {
    /// Room for `most` entries, rounded up to a power of two and at least one bucket. The seeds are secret.
    pub fn new(most: usize, seeds: [u64; 2]) -> Tracker {
        let buckets = most.div_ceil(WAYS).max(1).checked_next_power_of_two();
        let buckets = buckets.unwrap_or(1);
        let entries = buckets.saturating_mul(WAYS);
        Tracker {
            answers: Bucket::default(),
            events: Bucket::default(),
            made: 0,
            seeds,
            tags: vec![[Tags(0); WAYS / LANES]; buckets],
            entries: vec![Entry::default(); entries],
            sides: vec![[Side::default(); 2]; entries],
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let connections = size_of_val(&*self.entries).saturating_add(size_of_val(&*self.sides));
        size_of_val(&*self.tags).saturating_add(connections)
    }

    #[inline(always)]
    fn place(&self, key: &Key) -> Place {
        let [s0, s1] = self.seeds;
        let [a0, a1, a2, a3] = key.addresses;
        let ports = u64::from(key.ports) << 16 | u64::from(key.protocol) << 8 | u64::from(key.kind);
        let mut hash = fold(a0 ^ s0, ports ^ s1);
        if key.kind & V6 != 0 {
            hash = fold(hash ^ a1, a2 ^ s1) ^ a3;
        }
        let hash = fold(hash, s0 | 1);
        let mask = self.tags.len().wrapping_sub(1);
        Place {
            bucket: (hash as usize & mask) as u32,
            tag: (hash >> 48) as u16 | 1,
        }
    }

    #[inline(always)]
    const fn slot_of(place: Place, way: usize) -> usize {
        (place.bucket as usize).wrapping_mul(WAYS).wrapping_add(way)
    }

    /// The tags of a bucket.
    #[inline(always)]
    fn tags(&self, place: Place) -> Option<&[Tags; WAYS / LANES]> {
        self.tags.get(place.bucket as usize)
    }

    /// Where the entry of a packet would be, if it is of a kind that is tracked.
    #[inline(always)]
    pub(crate) fn place_of(&self, direction: Direction, packet: &Packet) -> Option<Place> {
        Some(self.place(&Key::of(direction, packet)?))
    }

    /// Whether there may be an entry.
    #[inline(always)]
    pub(crate) fn may_know(&self, place: Place) -> bool {
        let tags = self.tags(place);
        tags.is_some_and(|tags| way_with(tags, place.tag, |_| true).is_some())
    }

    /// Finds the entry of a [plain](crate::packet::plain) packet's connection; false if there is none that lives. Loads what
    /// [`Tracker::follow`] will need.
    #[inline(always)]
    pub(crate) fn seek(
        &self,
        direction: Direction,
        head: &Plain,
        (now, len): (Moment, u32),
        found: &mut Option<Next>,
    ) -> bool {
        let key = Key::of_plain(direction, head);
        let place = self.place(&key);
        let way = self.tags(place).and_then(|tags| {
            way_with(tags, place.tag, |way| {
                let entry = self.entries.get(Self::slot_of(place, way));
                entry.is_some_and(|entry| entry.key.is_v4(&key) && entry.lives(now))
            })
        });
        let Some(way) = way else {
            return false;
        };
        let slot = Self::slot_of(place, way);
        let (flags, segment) = packet::segment(head);
        let sides = self.sides.get(slot);
        std::hint::black_box(sides.is_some_and(|[side, _]| side.is_unheard()));
        *found = Some(Next {
            slot: slot as u32,
            len,
            protocol: key.protocol,
            flags,
            segment,
        });
        true
    }

    /// Notes the next plain packet of a connection, if nothing but that is to be done: it passes, as others before it did. None, and nothing is
    /// noted, says nothing.
    #[inline(always)]
    pub(crate) fn follow(
        &mut self,
        next: &Next,
        direction: Direction,
        (now, generation): (Moment, u64),
    ) -> Option<Decided> {
        let (slot, segment) = (next.slot as usize, &next.segment);
        let entry = self.entries.get_mut(slot)?;
        let decided = *entry.decided.get(index(direction))?;
        let state = entry.state(direction, false);
        if !decided.is_about(generation, state) || !decided.accepts() {
            return None;
        }
        if next.protocol == proto::TCP {
            let marks = flag::SYN | flag::RST | flag::FIN | flag::ACK;
            let (own, other) = sides(self.sides.get_mut(slot)?, direction);
            // The flags are a constant here, so that what they decide is not asked again.
            let is_next = next.flags & marks == flag::ACK
                && !own.is_unheard()
                && !other.is_unheard()
                && own.fits(other, segment, flag::ACK);
            if !is_next {
                return None;
            }
            own.note(other, segment, flag::ACK, (false, false));
            entry.advance(direction, flag::ACK, now);
        } else {
            entry.go_on(direction, proto::UDP, now);
        }
        Some(decided)
    }

    /// The entry of a key, if it lives.
    #[inline(always)]
    fn find(&self, key: &Key, now: Moment) -> Option<usize> {
        self.find_at(self.place(key), key, now)
    }

    #[inline(always)]
    fn find_at(&self, place: Place, key: &Key, now: Moment) -> Option<usize> {
        let way = way_with(self.tags(place)?, place.tag, |way| {
            let entry = self.entries.get(Self::slot_of(place, way));
            entry.is_some_and(|entry| entry.key == *key && entry.lives(now))
        });
        Some(Self::slot_of(place, way?))
    }

    /// What a packet is. `generation` is of the rules.
    #[inline(always)]
    pub(crate) fn look(
        &self,
        direction: Direction,
        packet: &Packet,
        now: Moment,
        generation: u64,
    ) -> Found {
        let Some(key) = Key::of(direction, packet) else {
            return Found::unknown(Self::state_of_unknown(packet));
        };
        let is_tcp = packet.protocol == proto::TCP;
        if is_tcp && !is_sane(packet.flags) {
            return Found::unknown(State::Invalid);
        }
        let place = self.place(&key);
        let found = self
            .find_at(place, &key, now)
            .and_then(|slot| Some((slot, self.entries.get(slot)?)));
        let Some((slot, entry)) = found else {
            return Found {
                place: Some(place),
                ..Found::unknown(Self::state_of_unknown(packet))
            };
        };
        let is_begin = is_tcp && packet.flags & (flag::SYN | flag::ACK) == flag::SYN;
        let state = entry.state(direction, is_begin);
        let decided = entry.decided.get(index(direction)).copied();
        let decided = decided.filter(|decided| decided.is_about(generation, state));
        Found {
            state,
            slot: Some(slot as u32),
            decided,
            place: Some(place),
        }
    }

    /// What a packet of no connection is.
    #[inline(always)]
    pub(crate) fn state_of_unknown(packet: &Packet) -> State {
        let is_wrong = match packet.icmp {
            Some((kind, ..)) => kind == echo(packet.family).1,
            None if packet.protocol == proto::TCP => {
                let is_answer = packet.flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK;
                is_answer || packet.flags & flag::RST != 0 || !is_sane(packet.flags)
            }
            None => false,
        };
        match is_wrong {
            true => State::Invalid,
            false => State::New,
        }
    }

    /// Whether a packet is a segment whose numbers are not of its connection.
    pub(crate) fn is_outside(&self, slot: u32, direction: Direction, packet: &Packet) -> bool {
        let slot = slot as usize;
        let (Some(entry), Some(pair)) = (self.entries.get(slot), self.sides.get(slot)) else {
            return false;
        };
        packet.protocol == proto::TCP && !entry.fits(pair, direction, packet.flags, &packet.segment)
    }

    /// Notes an accepted packet of a connection that is known; false, and nothing is noted, if its numbers are not of it.
    #[inline(always)]
    pub(crate) fn go_on(
        &mut self,
        slot: u32,
        direction: Direction,
        packet: &Packet,
        now: Moment,
    ) -> bool {
        if packet.protocol == proto::TCP {
            let is_part = packet.part.is_some();
            return self.go_on_tcp(
                slot,
                direction,
                (packet.flags, is_part),
                packet.segment,
                now,
            );
        }
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.go_on(direction, packet.protocol, now);
        }
        true
    }

    /// The same for TCP.
    fn go_on_tcp(
        &mut self,
        slot: u32,
        direction: Direction,
        (flags, is_part): (u8, bool),
        segment: Segment,
        now: Moment,
    ) -> bool {
        let slot = slot as usize;
        let (Some(entry), Some(pair)) = (self.entries.get_mut(slot), self.sides.get_mut(slot))
        else {
            return true;
        };
        let fits = entry.fits(pair, direction, flags, &segment);
        if fits {
            entry.step_tcp(pair, direction, (flags, is_part), &segment, now);
        }
        fits
    }

    /// Notes what was decided about packets of a connection in this direction.
    pub(crate) fn decide(&mut self, slot: u32, direction: Direction, decided: Decided) {
        if let Some(entry) = self.entries.get_mut(slot as usize)
            && let Some(word) = entry.decided.get_mut(index(direction))
        {
            *word = decided;
        }
    }

    /// Makes an entry of an accepted packet that begins a connection, at the place that was found for it.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        place: Place,
        direction: Direction,
        packet: &Packet,
        now: Moment,
        decided: Decided,
    ) -> Result<(), Full> {
        let Some(key) = Key::of(direction, packet) else {
            return Ok(());
        };
        let [inwards, out] = match direction {
            Direction::In => [decided, Decided::NONE],
            Direction::Out => [Decided::NONE, decided],
        };
        let entry = Entry {
            key,
            flags: begun(direction),
            until: now.wrapping_add(OPENING),
            decided: [inwards, out],
            ..Entry::default()
        };
        let slot = self.insert(place, entry, now)?;
        if packet.protocol == proto::TCP
            && let Some(pair) = self.sides.get_mut(slot)
        {
            *pair = Default::default();
            let (own, other) = sides(pair, direction);
            let is_guest = direction == Direction::Out;
            let what = (is_guest, packet.part.is_some());
            own.note(other, &packet.segment, packet.flags, what);
        }
        Ok(())
    }

    /// Later parts of a packet go as its first one did, as long as the rules are of this generation, and are counted by the same.
    pub(crate) fn begin_parts(
        &mut self,
        direction: Direction,
        packet: &Packet,
        now: Moment,
        (generation, accepts, number): (u64, bool, u16),
    ) {
        let Some(part) = packet.part else {
            return;
        };
        let key = Key::of_part(direction, packet, part.number);
        let decided = [Decided::new(generation, State::New, true, number); 2];
        if let Some(slot) = self.find(&key, now) {
            // Two first parts: both were accepted, or none counts.
            let headers = if accepts { part.headers } else { u16::MAX };
            if let Some(entry) = self.entries.get_mut(slot) {
                let before = match entry.decided_part(generation) {
                    Some(_) => entry.detail,
                    None => 0,
                };
                (entry.detail, entry.decided) = (u32::from(headers).max(before), decided);
            }
        } else if accepts {
            let entry = Entry {
                key,
                phase: Phase::Part,
                detail: part.headers.into(),
                until: now.wrapping_add(OPENING),
                decided,
                ..Entry::default()
            };
            // Without an entry the parts are dropped.
            let _ = self.insert(self.place(&key), entry, now);
        }
    }

    /// If a later part of a packet passes, what counts it.
    pub(crate) fn number_of_part(
        &self,
        direction: Direction,
        packet: &Packet,
        now: Moment,
        generation: u64,
    ) -> Option<u16> {
        let part = packet.part?;
        let key = Key::of_part(direction, packet, part.number);
        let entry = self.entries.get(self.find(&key, now)?)?;
        let decided = entry.decided_part(generation)?;
        (u32::from(part.offset) >= entry.detail).then_some(decided.number())
    }

    /// Whether the packet that an error quotes belongs to a connection; the error goes in `direction`.
    pub(crate) fn is_related(&self, direction: Direction, quoted: &Packet, now: Moment) -> bool {
        let other = match direction {
            Direction::In => Direction::Out,
            Direction::Out => Direction::In,
        };
        let key = Key::of(other, quoted);
        let Some(slot) = key.and_then(|key| self.find(&key, now)) else {
            return false;
        };
        let Some([inwards, out]) = self.sides.get(slot) else {
            return false;
        };
        let (own, peer) = match other {
            Direction::In => (inwards, out),
            Direction::Out => (out, inwards),
        };
        quoted.protocol != proto::TCP || own.may_have_sent(peer, quoted.segment.seq)
    }

    #[inline(always)]
    fn insert(&mut self, place: Place, entry: Entry, now: Moment) -> Result<usize, Full> {
        let empty = way_with(self.tags(place).ok_or(Full)?, 0, |_| true);
        let way = empty.or_else(|| self.way_to_free(place, now)).ok_or(Full)?;
        let slot = Self::slot_of(place, way);
        self.made = self.made.wrapping_add(1);
        *self.entries.get_mut(slot).ok_or(Full)? = entry;
        let tags = self.tags.get_mut(place.bucket as usize);
        let word = tags.and_then(|tags| tags.get_mut(way / LANES));
        word.ok_or(Full)?.set(way, place.tag);
        Ok(slot)
    }

    /// The way of a full bucket that a new entry takes.
    #[inline(never)]
    fn way_to_free(&self, place: Place, now: Moment) -> Option<usize> {
        let rank = |old: &Entry| match old.phase {
            _ if !old.lives(now) => Some(0),
            Phase::Open => None,
            _ => Some(old.until.wrapping_sub(now).saturating_add(1)),
        };
        let entries = self.entries.get(Self::slot_of(place, 0)..)?;
        let ranks = (0..WAYS).zip(entries.iter().map(rank));
        let ranked = ranks.filter_map(|(way, rank)| Some((rank?, way)));
        Some(ranked.min()?.1)
    }
}

/// A bucket has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

#[inline(always)]
const fn open_life(protocol: u8) -> u32 {
    match protocol {
        proto::TCP => OPEN_TCP,
        proto::UDP => OPEN_UDP,
        _ => OPEN_ICMP,
    }
}

impl Entry {
    #[inline(always)]
    fn lives(&self, now: Moment) -> bool {
        self.until.wrapping_sub(now) <= LONGEST
    }

    /// Of a packet in parts: what was decided, by rules of this generation.
    fn decided_part(&self, generation: u64) -> Option<Decided> {
        let [decided, _] = self.decided;
        decided.is_about(generation, State::New).then_some(decided)
    }

    #[inline(always)]
    fn is_origin(&self, direction: Direction) -> bool {
        (direction == Direction::Out) == (self.flags & BEGUN_OUT != 0)
    }

    /// The state of a packet; `is_begin`: of one that begins a connection, whatever is known.
    #[inline(always)]
    fn state(&self, direction: Direction, is_begin: bool) -> State {
        let is_first = self.is_origin(direction) && self.phase == Phase::Opening;
        match is_begin || is_first {
            true => State::New,
            false => State::Established,
        }
    }

    /// Notes an accepted packet of a connection that is not TCP's.
    #[inline(always)]
    fn go_on(&mut self, direction: Direction, protocol: u8, now: Moment) {
        if !self.is_origin(direction) {
            self.phase = Phase::Open;
        }
        let life = match self.phase {
            Phase::Open => open_life(protocol),
            _ => OPENING,
        };
        self.until = now.wrapping_add(life);
    }

    /// Whether a segment answers a SYN that the other side sent when there was this entry.
    #[inline(always)]
    const fn is_answered(&self, direction: Direction, flags: u8, ack: u32) -> bool {
        let [asked_in, asked_out] = ASKED;
        let asked = match direction {
            Direction::In => asked_out,
            Direction::Out => asked_in,
        };
        let answers = flags & (flag::SYN | flag::RST) != 0 && flags & flag::ACK != 0;
        self.flags & asked != 0 && answers && ack == self.detail
    }

    /// Whether a segment can be of the connection. A SYN may begin another one.
    #[inline(always)]
    fn fits(&self, pair: &[Side; 2], direction: Direction, flags: u8, segment: &Segment) -> bool {
        let [inwards, out] = pair;
        let (own, other) = match direction {
            Direction::In => (inwards, out),
            Direction::Out => (out, inwards),
        };
        flags & (flag::SYN | flag::ACK) == flag::SYN
            || own.fits(other, segment, flags)
            || self.is_answered(direction, flags, segment.ack)
    }

    /// A segment that fits.
    #[inline(always)]
    fn step_tcp(
        &mut self,
        pair: &mut [Side; 2],
        direction: Direction,
        (flags, is_part): (u8, bool),
        segment: &Segment,
        now: Moment,
    ) {
        let is_rare = flags & (flag::SYN | flag::RST) != 0;
        if is_rare && !self.step_rare(pair, direction, (flags, *segment), now) {
            return;
        }
        let (own, other) = sides(pair, direction);
        own.note(
            other,
            segment,
            flags,
            (direction == Direction::Out, is_part),
        );
        self.advance(direction, flags, now);
    }

    /// The phase after a segment that was noted, and how long the entry lives from then on.
    #[inline(always)]
    fn advance(&mut self, direction: Direction, flags: u8, now: Moment) {
        let is_origin = self.is_origin(direction);
        if flags & (flag::SYN | flag::ACK) != flag::SYN {
            self.flags &= !WAS_RESET;
            self.phase = match self.phase {
                Phase::Opening if !is_origin && flags & flag::SYN != 0 => Phase::Answered,
                Phase::Opening if !is_origin => Phase::Open,
                Phase::Answered if is_origin => Phase::Open,
                phase => phase,
            };
        }
        if flags & flag::FIN != 0 {
            self.flags |= match direction {
                Direction::Out => FIN_OUT,
                Direction::In => FIN_IN,
            };
            if self.flags & (FIN_IN | FIN_OUT) == FIN_IN | FIN_OUT {
                self.phase = Phase::Closed;
            }
        }
        let life = match self.phase {
            Phase::Open => OPEN_TCP,
            Phase::Closed => CLOSED,
            _ => OPENING,
        };
        self.until = now.wrapping_add(life);
    }

    /// A reset or a SYN that fits; whether it is a segment of the connection as others are.
    #[inline(never)]
    fn step_rare(
        &mut self,
        pair: &mut [Side; 2],
        direction: Direction,
        (flags, segment): (u8, Segment),
        now: Moment,
    ) -> bool {
        let is_answered = self.is_answered(direction, flags, segment.ack);
        let (own, other) = sides(pair, direction);
        let left = self.until.wrapping_sub(now);
        if flags & flag::RST != 0 {
            // One that answers a later SYN says nothing of what was before.
            if own.fits(other, &segment, flags) && own.resets(other, &segment) {
                self.flags |= WAS_RESET;
                self.until = now.wrapping_add(left.min(RESET));
            }
            return false;
        }
        if flags & flag::ACK != 0 {
            if is_answered {
                *own = Side::default();
                *other = Side::picked(segment.ack);
                let origin = match direction {
                    Direction::In => Direction::Out,
                    Direction::Out => Direction::In,
                };
                (self.phase, self.flags) = (Phase::Opening, begun(origin));
            }
            return true;
        }
        if own.is_unheard() || own.has_begun_with(other, &segment, flags) {
            return true;
        }
        let asked = ASKED.get(index(direction)).copied().unwrap_or(0);
        let [asked_in, asked_out] = ASKED;
        self.flags = self.flags & !(asked_in | asked_out) | asked;
        self.detail = segment.seq.wrapping_add(1);
        self.until = now.wrapping_add(left.max(OPENING));
        false
    }
}

/// The flag of an entry whose first packet went this way.
const fn begun(direction: Direction) -> u8 {
    match direction {
        Direction::Out => BEGUN_OUT,
        Direction::In => 0,
    }
}
