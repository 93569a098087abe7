//! # Purpose
//! A third guest beside the two that are measured: an honest one, or one that makes work for the switch.
//!
//! # Model
//! Its transmit queue is a split ring whose descriptors are written once, since a back end does not change them; what it
//! offers is then one store, whatever it is. It offers descriptors and sends kicks at a rate, from the thread that
//! measures: so it costs the others the same time on their own core, whatever it does, and the rest of the difference is
//! the switch's. Descriptors that the switch has not given back are not offered again.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::frames::{Mac, SENDER, announcement};
use crate::generator::{Inlet, RateReport};
use crate::vhost::place::{GUEST, Place, SPLIT_FLAGS};
use crate::vhost::{Buffers, HEADER_BYTES, Layout, Port, PortOptions, SplitIn};

/// Its address.
pub const THIRD: Mac = [0x02, 0, 0, 0, 0, 0x03];

const LOG2_RING: u8 = 10;
const OPTIONS: PortOptions = PortOptions {
    layout: Layout::Split,
    mergeable: false,
    in_order: false,
    segments: false,
    buffers: [Buffers::of_dpdk(LOG2_RING); 2],
};
/// Frames taken at once of what comes to it.
const TAKE_BURST: u16 = 64;

const NEXT: u64 = 1;
const NO_INTERRUPT: u16 = 1;
/// Descriptors that the header is spread over: as many as a chain may have.
const SPREAD: u16 = 64;
/// More than any frame has.
const OVERSIZE: u32 = 200_000;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Conduct {
    /// Sends frames to one of the others, one descriptor each.
    Honest,
    /// Chains that go on outside the table.
    Broken,
    /// Descriptors that are their own successors.
    Loop,
    /// Buffers outside its memory, and such that wrap around the end of addresses.
    OutOfRange,
    /// Frames whose header lies byte by byte in as many descriptors as a chain may have.
    Spread,
    /// Frames that are longer than any may be.
    Oversized,
    /// Sources that are not its own, another one in each frame.
    Spoofed,
    /// Kicks, and no descriptor.
    KicksOnly,
}

impl Conduct {
    /// As it is called, in tables and on command lines.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Descriptors of each chain.
    fn chain(self) -> u16 {
        if self == Conduct::Spread { SPREAD } else { 1 }
    }
}

/// What it has done.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ThirdReport {
    /// Descriptors that it has offered.
    pub offered: u64,
    /// Descriptors that the switch has given back.
    pub taken: u64,
    /// Kicks that it has sent.
    pub kicks: u64,
    /// Whether the switch has ended the connection.
    pub left: bool,
}

/// What the measured two have seen beside it.
#[derive(Debug, Serialize)]
pub struct Beside {
    /// The two.
    #[serde(flatten)]
    pub rate: RateReport,
    /// The third.
    pub third: ThirdReport,
}

/// The third guest.
pub struct Third<'p> {
    place: Place<'p>,
    inlet: SplitIn<'p>,
    chain: u16,
    descriptors_per_s: f64,
    kicks_per_s: f64,
    begun: Instant,
    /// Chains that were offered and given back.
    head: u64,
    seen: u64,
    kicks: u64,
}

impl<'p> Third<'p> {
    /// A port for it.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn port() -> Result<Port> {
        Port::create(OPTIONS)
    }

    /// A port with so much memory, in small pages.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn port_with(bytes: usize) -> Result<Port> {
        Port::create_small(OPTIONS, bytes)
    }

    /// The guest on a port of its own that no back end knows yet, which offers and kicks so often a second.
    #[must_use]
    pub fn new(port: &'p Port, conduct: Conduct, descriptors: f64, kicks: f64) -> Third<'p> {
        let third = Third {
            place: port.place(1),
            inlet: port.split().inlet,
            chain: conduct.chain(),
            descriptors_per_s: if conduct == Conduct::KicksOnly {
                0.0
            } else {
                descriptors
            },
            kicks_per_s: kicks,
            begun: Instant::now(),
            head: 0,
            seen: 0,
            kicks: 0,
        };
        third.describe(conduct);
        third
    }

    fn describe(&self, conduct: Conduct) {
        let (place, memory) = (self.place, self.place.memory);
        memory.store_u16(place.avail(), NO_INTERRUPT, Relaxed);
        for entry in 0..place.size {
            let head = (entry * self.chain) & (place.size - 1);
            memory.store_u16(place.avail() + 4 + 2 * u32::from(entry), head, Relaxed);
        }
        for slot in 0..place.size {
            let mut from = THIRD;
            if conduct == Conduct::Spoofed {
                [from[4], from[5]] = slot.to_be_bytes();
            }
            let frame = announcement(SENDER, from);
            memory.write(place.frame(slot), &frame);
            let whole = frame.len() as u32 + HEADER_BYTES;
            let begin = GUEST + u64::from(place.frame(slot) - HEADER_BYTES);
            let (address, len, next) = match conduct {
                Conduct::Broken => (begin, whole, Some(u16::MAX)),
                Conduct::Loop => (begin, whole, Some(slot)),
                Conduct::OutOfRange if slot % 2 == 0 => (GUEST + (1 << 40), whole, None),
                Conduct::OutOfRange => (u64::MAX - 8, whole, None),
                Conduct::Oversized => (GUEST, OVERSIZE, None),
                Conduct::Spread => self.spread(slot, whole),
                Conduct::Honest | Conduct::Spoofed | Conduct::KicksOnly => (begin, whole, None),
            };
            let flags = next.map_or(0, |next| NEXT | u64::from(next) << 16);
            memory.store_u64(place.desc_at(slot), address, Relaxed);
            let word = u64::from(len) | flags << SPLIT_FLAGS;
            memory.store_u64(place.desc_at(slot) + 8, word, Relaxed);
        }
    }

    /// A descriptor of a chain of which each has one byte of the first one's buffer, and the last the rest.
    fn spread(&self, slot: u16, whole: u32) -> (u64, u32, Option<u16>) {
        let (first, i) = (slot / SPREAD * SPREAD, slot % SPREAD);
        let begin = GUEST + u64::from(self.place.frame(first) - HEADER_BYTES);
        let address = begin + u64::from(i);
        match i + 1 < SPREAD {
            true => (address, 1, Some(slot + 1)),
            false => (address, whole - u32::from(i), None),
        }
    }

    /// Offers and kicks as much as is due.
    pub fn act(&mut self) {
        while self.inlet.take(TAKE_BURST, |_, _, _| ()) > 0 {}
        let (place, memory) = (self.place, self.place.memory);
        let used = memory.load_u16(place.used() + 2, Acquire);
        self.seen += u64::from(used.wrapping_sub(self.seen as u16));
        let elapsed = self.begun.elapsed().as_secs_f64();
        let due = (elapsed * self.descriptors_per_s) as u64 / u64::from(self.chain);
        let room = u64::from(place.size / self.chain) - (self.head - self.seen);
        let count = due.saturating_sub(self.head).min(room);
        if count > 0 {
            self.head += count;
            memory.store_u16(place.avail() + 2, self.head as u16, Release);
        }
        while self.kicks < (elapsed * self.kicks_per_s) as u64 {
            place.wake();
            self.kicks += 1;
        }
    }

    /// What it has done; `left` says whether the switch has ended the connection.
    #[must_use]
    pub fn report(&self, left: bool) -> ThirdReport {
        ThirdReport {
            offered: self.head * u64::from(self.chain),
            taken: self.seen * u64::from(self.chain),
            kicks: self.kicks,
            left,
        }
    }
}
