//! # Purpose
//! Sends on one memif interface and counts on another, from one thread, so lean that the switch between them is the
//! limit.
//!
//! # Life of a frame
//! It is built once, in the sending port's own memory; sending it again is a descriptor and an index. The sink looks
//! at its length only ([`Sink::Count`]), or copies it out and compares every byte ([`Sink::Check`]), and offers the
//! buffer again at once.
//!
//! # What can be lost
//! Nothing here: a full sending ring is waited for, and receive buffers are given back before more is sent. A frame
//! that was taken from the sending ring and does not come out of the other port was lost by the switch.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use windlass_attach::memif::layout::Desc;
use windlass_sync::tsc;

use crate::frames::{Frames, Mac, SENDER, SEQUENCE_AT, announcement, sequence_of, sink_address};
use crate::memif::{Port, Ring};

/// Frames sent at once, and most frames taken at once, twice as many so that the sink keeps up.
const SEND_BURST: u16 = 32;
const TAKE_BURST: u16 = 64;

/// The clock is read, and stray frames to the sender are dropped, once in so many rounds.
const ROUNDS_BETWEEN_CHORES: u32 = 64;

/// After the last frame was sent, the switch has this long to deliver what it holds.
const DRAIN: Duration = Duration::from_millis(300);

/// A single frame that has not come back after this long is lost.
const SINGLE_LOST_AFTER: Duration = Duration::from_millis(100);

/// Addresses announced at once: windlass posts at most eight new addresses of one burst to its learner.
const ANNOUNCE_BURST: usize = 8;
/// Rounds of announcements, and the pause between their bursts.
const ANNOUNCE_ROUNDS: u16 = 3;
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(2);

/// What the receiving side does with each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sink {
    /// Looks at the descriptor only.
    Count,
    /// Copies the frame out and compares all of it.
    Check,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of each frame.
    pub size: usize,
    /// Destination addresses.
    pub addresses: u16,
    /// What the sink does.
    pub sink: Sink,
    /// Not counted, before the measurement.
    pub warm: Duration,
    /// The measurement.
    pub time: Duration,
    /// Leave the sending descriptors as they are after their first use: no real client can.
    pub keep_descriptors: bool,
}

/// What a run at full rate has seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RateReport {
    /// Bytes of each frame.
    pub size: usize,
    /// Destination addresses.
    pub addresses: u16,
    /// Frames that the switch took, warm-up included.
    pub sent: u64,
    /// Frames that came out, warm-up included.
    pub received: u64,
    /// The difference.
    pub lost: u64,
    /// Lost over sent, warm-up included.
    pub lost_share: f64,
    /// Millions of frames a second that came out in the measured time.
    pub mpps: f64,
    /// Length of the measured time.
    pub seconds: f64,
    /// Frames with another length or a continuation: an error of the switch.
    pub wrong_length: u64,
    /// Frames whose bytes differ from what was sent: an error of the switch.
    pub wrong_bytes: u64,
    /// Frames whose sequence number is lower than that of the frame before.
    pub reordered: u64,
    /// Share of rounds in which nothing could be sent and nothing had come: near 0 the generator is the limit.
    pub idle_share: f64,
    /// Whether the memory is in huge pages.
    pub huge_pages: bool,
    /// Cycles of the time-stamp counter a second.
    pub tsc_hz: u64,
}

/// What a run with one frame at a time has seen, in nanoseconds from publishing to seeing it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LatencyReport {
    /// Bytes of each frame.
    pub size: usize,
    /// Frames measured.
    pub frames: usize,
    /// Frames that did not come back.
    pub lost: u64,
    /// Half of the frames took at most this long.
    pub p50_ns: u64,
    /// 99 of 100 frames took at most this long.
    pub p99_ns: u64,
    /// 999 of 1,000 frames took at most this long.
    pub p999_ns: u64,
    /// Cycles of the time-stamp counter a second.
    pub tsc_hz: u64,
}

/// The sending half.
struct Sender<'p> {
    port: &'p Port,
    ring: Ring<'p>,
    mask: u16,
    head: u16,
    tail_seen: u16,
    sent: u64,
    /// Of the next frame: its slot, plus a multiple of the ring's size.
    sequence: u64,
    size: u32,
    stamp: bool,
    keep: bool,
}

impl<'p> Sender<'p> {
    fn new(port: &'p Port, frames: &Frames, plan: &Plan) -> Sender<'p> {
        let ring = port.tx();
        for slot in 0..ring.size() {
            port.memory()
                .write(port.tx_buffer(slot), &frames.frame(slot));
        }
        let mut sender = Sender {
            port,
            ring,
            mask: ring.size() - 1,
            head: ring.head(),
            tail_seen: ring.tail(),
            sent: 0,
            sequence: u64::from(ring.head() & (ring.size() - 1)),
            size: frames.size() as u32,
            stamp: plan.sink == Sink::Check,
            keep: false,
        };
        for index in 0..ring.size() {
            sender.describe(index);
        }
        sender.keep = plan.keep_descriptors;
        sender
    }

    #[inline]
    fn describe(&mut self, index: u16) {
        let slot = index & self.mask;
        let offset = self.port.tx_buffer(slot);
        self.ring.set_desc(
            index,
            Desc {
                length: self.size,
                offset,
                ..Desc::default()
            },
        );
    }

    /// Publishes `count` frames if there is room for all of them.
    #[inline]
    fn send(&mut self, count: u16) -> bool {
        let free = |tail: u16| self.ring.size() - self.head.wrapping_sub(tail);
        if free(self.tail_seen) < count {
            self.tail_seen = self.ring.tail();
            if free(self.tail_seen) < count {
                return false;
            }
        }
        for i in 0..count {
            let index = self.head.wrapping_add(i);
            if self.stamp {
                let at = self.port.tx_buffer(index & self.mask) + SEQUENCE_AT as u32;
                let sequence = self.sequence + u64::from(i);
                self.port
                    .memory()
                    .store_u64(at, sequence, std::sync::atomic::Ordering::Relaxed);
            }
            if !self.keep {
                self.describe(index);
            }
        }
        self.head = self.head.wrapping_add(count);
        self.ring.set_head(self.head);
        self.sequence += u64::from(count);
        self.sent += u64::from(count);
        wake(self.port, &self.ring);
        true
    }

    fn is_drained(&self) -> bool {
        self.ring.tail() == self.head
    }
}

/// Wakes the server if it sleeps. The fence orders the index that was just published before the flags that are read:
/// without it both sides can miss each other.
#[inline]
fn wake(port: &Port, ring: &Ring<'_>) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if ring.wants_interrupt() {
        port.kick();
    }
}

/// The receiving half.
struct Receiver<'p> {
    port: &'p Port,
    ring: Ring<'p>,
    mask: u16,
    next: u16,
    received: u64,
    wrong_length: u64,
    wrong_bytes: u64,
    reordered: u64,
    last_sequence: u64,
    frame: Vec<u8>,
}

impl<'p> Receiver<'p> {
    fn new(port: &'p Port, frames: &Frames) -> Receiver<'p> {
        let ring = port.rx();
        for slot in 0..ring.size() {
            port.memory()
                .write(port.rx_buffer(slot), &frames.frame(slot));
        }
        Receiver {
            port,
            ring,
            mask: ring.size() - 1,
            next: ring.tail(),
            received: 0,
            wrong_length: 0,
            wrong_bytes: 0,
            reordered: 0,
            last_sequence: 0,
            frame: vec![0; frames.size()],
        }
    }

    /// Takes up to `most` frames, hands each slot to `look`, and offers the buffers again.
    #[inline]
    fn take(&mut self, most: u16, mut look: impl FnMut(&mut Self, u16)) -> u16 {
        let count = self.ring.tail().wrapping_sub(self.next).min(most);
        if count == 0 {
            return 0;
        }
        for i in 0..count {
            let index = self.next.wrapping_add(i);
            let slot = index & self.mask;
            let desc = self.ring.desc_start(index);
            if desc.length != self.frame.len() as u32 || desc.goes_on() {
                self.wrong_length += 1;
            } else {
                look(self, slot);
            }
            self.ring.set_desc_start(index, self.port.empty(slot));
        }
        self.next = self.next.wrapping_add(count);
        self.ring.set_head(self.next.wrapping_add(self.ring.size()));
        self.received += u64::from(count);
        count
    }

    #[inline]
    fn check(&mut self, frames: &Frames, slot: u16) {
        let at = self.port.rx_buffer(slot);
        self.port.memory().read(at, &mut self.frame);
        if !frames.is_intact(&self.frame) {
            self.wrong_bytes += 1;
            return;
        }
        let sequence = sequence_of(&self.frame).unwrap_or(0);
        self.reordered += u64::from(sequence < self.last_sequence);
        self.last_sequence = sequence;
    }

    #[inline]
    fn take_and(&mut self, sink: Sink, frames: &Frames) -> u16 {
        match sink {
            Sink::Count => self.take(TAKE_BURST, |_, _| ()),
            Sink::Check => self.take(TAKE_BURST, |this, slot| this.check(frames, slot)),
        }
    }
}

/// Drops whatever came in on a port.
struct Drain<'p> {
    port: &'p Port,
    ring: Ring<'p>,
    next: u16,
}

impl<'p> Drain<'p> {
    fn new(port: &'p Port) -> Drain<'p> {
        let ring = port.rx();
        let next = ring.head().wrapping_sub(ring.size());
        Drain { port, ring, next }
    }

    fn discard(&mut self) {
        let tail = self.ring.tail();
        while self.next != tail {
            let slot = self.next & (self.ring.size() - 1);
            self.ring.set_desc_start(self.next, self.port.empty(slot));
            self.next = self.next.wrapping_add(1);
        }
        self.ring.set_head(self.next.wrapping_add(self.ring.size()));
    }
}

/// Lets a learning bridge learn: the sender's address from its port, `addresses` addresses from the sink's.
///
/// # Errors
/// If the switch takes no frames.
pub fn announce(sender: &Port, sink: &Port, addresses: u16) -> Result<()> {
    let mut from_sender = Drain::new(sender);
    let mut from_sink = Drain::new(sink);
    for _ in 0..ANNOUNCE_ROUNDS {
        say(sender, [(sink_address(0), SENDER)].into_iter())?;
        std::thread::sleep(ANNOUNCE_PAUSE);
        from_sink.discard();
        let addresses: Vec<_> = (0..addresses).map(|i| (SENDER, sink_address(i))).collect();
        for burst in addresses.chunks(ANNOUNCE_BURST) {
            say(sink, burst.iter().copied())?;
            std::thread::sleep(ANNOUNCE_PAUSE);
            from_sender.discard();
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    from_sender.discard();
    from_sink.discard();
    Ok(())
}

/// Sends one announcement for each pair of destination and source.
fn say(port: &Port, pairs: impl Iterator<Item = (Mac, Mac)>) -> Result<()> {
    let ring = port.tx();
    let begun = Instant::now();
    while ring.tail() != ring.head() {
        if begun.elapsed() > Duration::from_secs(3) {
            bail!("the switch takes no frames");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let mut head = ring.head();
    for (to, from) in pairs {
        let frame = announcement(to, from);
        let offset = port.tx_buffer(head & (ring.size() - 1));
        port.memory().write(offset, &frame);
        let length = frame.len() as u32;
        ring.set_desc(
            head,
            Desc {
                length,
                offset,
                ..Desc::default()
            },
        );
        head = head.wrapping_add(1);
    }
    ring.set_head(head);
    wake(port, &ring);
    Ok(())
}

/// Sends at full rate.
///
/// # Errors
/// If the plan asks for frames that cannot be.
pub fn run_rate(sender_port: &Port, sink_port: &Port, plan: &Plan) -> Result<RateReport> {
    let frames = Frames::new(plan.size, sender_port.tx().size(), plan.addresses)?;
    let mut sender = Sender::new(sender_port, &frames, plan);
    let mut receiver = Receiver::new(sink_port, &frames);
    let mut stray = Drain::new(sender_port);
    pump(
        &mut sender,
        &mut receiver,
        &mut stray,
        &frames,
        plan,
        plan.warm,
    );
    let received = receiver.received;
    let begun = Instant::now();
    let idle_share = pump(
        &mut sender,
        &mut receiver,
        &mut stray,
        &frames,
        plan,
        plan.time,
    );
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (receiver.received - received) as f64 / seconds;
    let end = Instant::now() + DRAIN;
    while Instant::now() < end {
        receiver.take_and(plan.sink, &frames);
        stray.discard();
    }
    if !sender.is_drained() {
        bail!("the switch stopped taking frames");
    }
    let lost = sender.sent.saturating_sub(receiver.received);
    Ok(RateReport {
        size: plan.size,
        addresses: plan.addresses,
        sent: sender.sent,
        received: receiver.received,
        lost,
        lost_share: lost as f64 / sender.sent.max(1) as f64,
        mpps: rate / 1e6,
        seconds,
        wrong_length: receiver.wrong_length,
        wrong_bytes: receiver.wrong_bytes,
        reordered: receiver.reordered,
        idle_share,
        huge_pages: sender_port.memory().is_huge() && sink_port.memory().is_huge(),
        tsc_hz: tsc::Clock::get().hz(),
    })
}

/// Sends and receives for `time`; gives the share of idle rounds.
fn pump(
    sender: &mut Sender<'_>,
    receiver: &mut Receiver<'_>,
    stray: &mut Drain<'_>,
    frames: &Frames,
    plan: &Plan,
    time: Duration,
) -> f64 {
    let end = Instant::now() + time;
    let (mut rounds, mut idle) = (0u64, 0u64);
    loop {
        for _ in 0..ROUNDS_BETWEEN_CHORES {
            let sent = sender.send(SEND_BURST);
            let taken = receiver.take_and(plan.sink, frames);
            if !sent && taken == 0 {
                idle += 1;
                std::hint::spin_loop();
            }
        }
        rounds += u64::from(ROUNDS_BETWEEN_CHORES);
        stray.discard();
        if Instant::now() >= end {
            return idle as f64 / rounds as f64;
        }
    }
}

/// Sends one frame at a time, each after the one before has come back or is lost.
///
/// # Errors
/// If the plan asks for frames that cannot be, or not one frame came back.
pub fn run_latency(sender_port: &Port, sink_port: &Port, plan: &Plan) -> Result<LatencyReport> {
    let frames = Frames::new(plan.size, sender_port.tx().size(), plan.addresses)?;
    let mut sender = Sender::new(sender_port, &frames, plan);
    let mut receiver = Receiver::new(sink_port, &frames);
    let clock = tsc::Clock::get();
    let lost_after = clock.cycles(SINGLE_LOST_AFTER.as_nanos() as u64);
    let mut times = Vec::with_capacity(1 << 22);
    let (mut lost, mut stray) = (0, Drain::new(sender_port));
    let warm_until = Instant::now() + plan.warm;
    let end = warm_until + plan.time;
    while Instant::now() < end {
        let start = tsc::now();
        if !sender.send(1) {
            bail!("the switch takes no frames");
        }
        let taken = loop {
            let taken = receiver.take_and(plan.sink, &frames);
            let cycles = tsc::now().wrapping_sub(start);
            if taken > 0 {
                break Some(cycles);
            }
            if cycles > lost_after {
                break None;
            }
        };
        match taken {
            Some(cycles) if Instant::now() >= warm_until => times.push(cycles),
            Some(_) => {}
            None => lost += 1,
        }
        stray.discard();
    }
    if times.is_empty() {
        bail!("not one frame came back");
    }
    times.sort_unstable();
    let at = |share: f64| clock.ns(times[((times.len() - 1) as f64 * share) as usize]);
    Ok(LatencyReport {
        size: plan.size,
        frames: times.len(),
        lost,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        tsc_hz: clock.hz(),
    })
}
