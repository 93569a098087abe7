//! # Purpose
//! Sends on one port of a switch and counts on another (memif or vhost-user), from one thread, so lean that the switch between them is the
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

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use windlass_sync::tsc;

use crate::frames::{Frames, Mac, SENDER, SEQUENCE_AT, announcement, sequence_of, sink_address};
use crate::memory::Memory;

/// Frames sent at once, and most frames taken at once, twice as many so that the sink keeps up.
const SEND_BURST: u16 = 32;
const TAKE_BURST: u16 = 64;

/// The clock is read, and stray frames to the sender are dropped, once in so many rounds.
const ROUNDS_BETWEEN_CHORES: u32 = 64;

/// After the last frame was sent, the switch has this long to deliver what it holds.
const DRAIN: Duration = Duration::from_millis(300);

/// A single frame that has not come back after this long is lost.
const SINGLE_LOST_AFTER: Duration = Duration::from_millis(100);

/// A switch that has not taken an announcement after this long takes none.
const TAKEN_WITHIN: Duration = Duration::from_secs(3);

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
    /// Source ports.
    pub flows: u16,
    /// What the sink does.
    pub sink: Sink,
    /// Not counted, before the measurement.
    pub warm: Duration,
    /// The measurement.
    pub time: Duration,
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
    /// Frames behind one that was sent after them.
    pub reordered: u64,
    /// Share of rounds in which nothing could be sent and nothing had come: near 0 the generator is the limit.
    pub idle_share: f64,
    /// Whether the memory is in huge pages.
    pub huge_pages: bool,
    /// Cycles of the time-stamp counter a second.
    pub tsc_hz: u64,
}

/// What a run has seen in which the switch was started again.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct GapReport {
    /// How often a port was connected anew.
    pub restarts: u64,
    /// Longest time without a frame in which a port was connected anew, in milliseconds.
    pub gap_ms: f64,
    /// Longest other time without a frame, in milliseconds.
    pub longest_other_ms: f64,
    /// Frames that were put into the ring.
    pub sent: u64,
    /// Frames that came out.
    pub received: u64,
    /// Frames that came behind one that was sent after them: most likely for the second time.
    pub repeated: u64,
    /// Sequence numbers that were left out in a time in which a port was connected anew.
    pub missing: u64,
    /// Sequence numbers that were left out at other times.
    pub missing_other: u64,
    /// Frames with another length or other bytes than were sent.
    pub wrong: u64,
    /// All times of [`SILENCE_MIN`] and more without a frame: beginning and end, in nanoseconds on the monotonic clock.
    pub silences: Vec<(u64, u64)>,
}

/// Shorter times without a frame are not listed.
pub const SILENCE_MIN: Duration = Duration::from_micros(500);

/// The monotonic clock, in nanoseconds; all processes of a host read the same one.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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

impl LatencyReport {
    /// Of times in cycles of the time-stamp counter, at least one.
    fn of(mut times: Vec<u64>, size: usize, lost: u64) -> LatencyReport {
        let clock = tsc::Clock::get();
        times.sort_unstable();
        let at = |share: f64| clock.ns(times[((times.len() - 1) as f64 * share) as usize]);
        LatencyReport {
            size,
            frames: times.len(),
            lost,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            tsc_hz: clock.hz(),
        }
    }
}

/// Where frames are sent: buffers at offsets in one memory, used in order.
pub trait Outlet {
    /// The memory that the buffers lie in.
    fn memory(&self) -> &Memory;
    /// Number of buffers, a power of two.
    fn slots(&self) -> u16;
    /// The slot of the frame that is sent next.
    fn next_slot(&self) -> u16;
    /// Offset of a slot's frame.
    fn buffer(&self, slot: u16) -> u32;
    /// Publishes `count` frames of `size` bytes, each after `prepare` got the memory, its number and its offset,
    /// if there is room for all of them.
    fn send(&mut self, count: u16, size: u32, prepare: impl FnMut(&Memory, u16, u32)) -> bool;
    /// Whether the switch has given back everything.
    fn is_drained(&mut self) -> bool;
}

/// Where frames come out.
pub trait Inlet {
    /// The memory that the buffers lie in.
    fn memory(&self) -> &Memory;
    /// Number of buffers, a power of two.
    fn slots(&self) -> u16;
    /// Offset of a slot's frame.
    fn buffer(&self, slot: u16) -> u32;
    /// Takes up to `most` frames, shows the offset of each and its length, none for one that is not whole in its buffer,
    /// and offers the buffers again.
    fn take(&mut self, most: u16, look: impl FnMut(&Memory, u32, Option<u32>)) -> u16;
}

/// Both directions of one port.
pub struct Ends<O, I> {
    /// To the switch.
    pub outlet: O,
    /// From the switch.
    pub inlet: I,
}

impl<O, I: Inlet> Ends<O, I> {
    /// Drops what has come.
    fn discard(&mut self) {
        while self.inlet.take(TAKE_BURST, |_, _, _| ()) > 0 {}
    }
}

/// The sending half.
struct Sender<'e, O> {
    outlet: &'e mut O,
    sent: u64,
    /// Of the next frame: its slot, plus a multiple of the number of slots.
    sequence: u64,
    /// Numbers that were not used, because the ring began anew.
    skipped: u64,
    size: u32,
    stamp: bool,
}

impl<'e, O: Outlet> Sender<'e, O> {
    fn new(outlet: &'e mut O, frames: &Frames, plan: &Plan) -> Sender<'e, O> {
        for slot in 0..outlet.slots() {
            outlet
                .memory()
                .write(outlet.buffer(slot), &frames.frame(slot));
        }
        Sender {
            sent: 0,
            sequence: u64::from(outlet.next_slot()),
            skipped: 0,
            size: frames.size() as u32,
            stamp: plan.sink == Sink::Check,
            outlet,
        }
    }

    /// Publishes `count` frames if there is room for all of them.
    #[inline]
    fn send(&mut self, count: u16) -> bool {
        let sent = if self.stamp {
            let ahead = self.outlet.next_slot().wrapping_sub(self.sequence as u16);
            let skip = u64::from(ahead & (self.outlet.slots() - 1));
            self.skipped += skip;
            self.sequence += skip;
            let first = self.sequence;
            self.outlet.send(count, self.size, |memory, i, at| {
                let at = at + SEQUENCE_AT as u32;
                memory.store_u64(at, first + u64::from(i), Ordering::Relaxed);
            })
        } else {
            self.outlet.send(count, self.size, |_, _, _| ())
        };
        if sent {
            self.sequence += u64::from(count);
            self.sent += u64::from(count);
        }
        sent
    }
}

/// The receiving half.
struct Receiver<'e, I> {
    inlet: &'e mut I,
    seen: Seen,
}

/// What has come.
struct Seen {
    received: u64,
    wrong_length: u64,
    wrong_bytes: u64,
    /// Frames behind one that was sent after them.
    late: u64,
    /// Sequence numbers that were left out.
    gaps: u64,
    next_sequence: u64,
    frame: Vec<u8>,
}

impl Seen {
    #[inline]
    fn check(&mut self, frames: &Frames, memory: &Memory, at: u32) {
        memory.read(at, &mut self.frame);
        if !frames.is_intact(&self.frame) {
            self.wrong_bytes += 1;
            return;
        }
        let sequence = sequence_of(&self.frame).unwrap_or(0);
        if sequence < self.next_sequence {
            self.late += 1;
        } else {
            self.gaps += sequence - self.next_sequence;
            self.next_sequence = sequence + 1;
        }
    }
}

impl<'e, I: Inlet> Receiver<'e, I> {
    fn new(inlet: &'e mut I, frames: &Frames, first_sequence: u64) -> Receiver<'e, I> {
        for slot in 0..inlet.slots() {
            inlet
                .memory()
                .write(inlet.buffer(slot), &frames.frame(slot));
        }
        let seen = Seen {
            received: 0,
            wrong_length: 0,
            wrong_bytes: 0,
            late: 0,
            gaps: 0,
            next_sequence: first_sequence,
            frame: vec![0; frames.size()],
        };
        Receiver { inlet, seen }
    }

    #[inline]
    fn take(&mut self, sink: Sink, frames: &Frames) -> u16 {
        let seen = &mut self.seen;
        let size = frames.size() as u32;
        let count = match sink {
            Sink::Count => self.inlet.take(TAKE_BURST, |_, _, length| {
                seen.wrong_length += u64::from(length != Some(size));
            }),
            Sink::Check => self.inlet.take(TAKE_BURST, |memory, at, length| {
                if length == Some(size) {
                    seen.check(frames, memory, at);
                } else {
                    seen.wrong_length += 1;
                }
            }),
        };
        seen.received += u64::from(count);
        count
    }
}

/// Lets a learning bridge learn: the sender's address from its port, `addresses` addresses from the sink's.
///
/// # Errors
/// If the switch takes no frames.
pub fn announce<O: Outlet, I: Inlet>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    addresses: u16,
) -> Result<()> {
    for _ in 0..ANNOUNCE_ROUNDS {
        say(&mut sender.outlet, &[(sink_address(0), SENDER)])?;
        std::thread::sleep(ANNOUNCE_PAUSE);
        sink.discard();
        let addresses: Vec<_> = (0..addresses).map(|i| (SENDER, sink_address(i))).collect();
        for burst in addresses.chunks(ANNOUNCE_BURST) {
            say(&mut sink.outlet, burst)?;
            std::thread::sleep(ANNOUNCE_PAUSE);
            sender.discard();
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    sender.discard();
    sink.discard();
    Ok(())
}

/// Sends one announcement for each pair of destination and source.
fn say(outlet: &mut impl Outlet, pairs: &[(Mac, Mac)]) -> Result<()> {
    let begun = Instant::now();
    while !outlet.is_drained() {
        if begun.elapsed() > TAKEN_WITHIN {
            bail!("the switch takes no frames");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let frames: Vec<_> = pairs
        .iter()
        .map(|(to, from)| announcement(*to, *from))
        .collect();
    let length = frames.first().map_or(0, Vec::len);
    let count = frames.len() as u16;
    outlet.send(count, length as u32, |memory, i, at| {
        memory.write(at, &frames[usize::from(i)]);
    });
    Ok(())
}

/// Sends at full rate.
///
/// # Errors
/// If the plan asks for frames that cannot be.
pub fn run_rate<O: Outlet, I: Inlet>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    plan: &Plan,
) -> Result<RateReport> {
    run_rate_beside(sender, sink, plan, || ())
}

/// As [`run_rate`], and calls `beside` once in some rounds: what another guest does meanwhile.
///
/// # Errors
/// As [`run_rate`].
pub fn run_rate_beside<O: Outlet, I: Inlet>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    plan: &Plan,
    mut beside: impl FnMut(),
) -> Result<RateReport> {
    let huge_pages = sender.inlet.memory().is_huge() && sink.inlet.memory().is_huge();
    let mut pump = Pump::new(sender, sink, plan)?;
    pump.run(plan.warm, &mut beside);
    let received = pump.receiver.seen.received;
    let begun = Instant::now();
    let idle_share = pump.run(plan.time, &mut beside);
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (pump.receiver.seen.received - received) as f64 / seconds;
    pump.drain()?;
    let (sent, seen) = (pump.sender.sent, &pump.receiver.seen);
    let lost = sent.saturating_sub(seen.received);
    Ok(RateReport {
        size: plan.size,
        addresses: plan.addresses,
        sent,
        received: seen.received,
        lost,
        lost_share: lost as f64 / sent.max(1) as f64,
        mpps: rate / 1e6,
        seconds,
        wrong_length: seen.wrong_length,
        wrong_bytes: seen.wrong_bytes,
        reordered: seen.late,
        idle_share,
        huge_pages,
        tsc_hz: tsc::Clock::get().hz(),
    })
}

/// Sends at full rate with a sink that checks, while the switch goes and comes again: `mend` looks whether it has gone,
/// and lets the next one in.
///
/// # Errors
/// If the plan asks for frames that cannot be, or no other switch comes.
pub fn run_gap<O: Outlet, I: Inlet>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    plan: &Plan,
    mut mend: impl FnMut() -> Result<bool>,
) -> Result<GapReport> {
    let mut pump = Pump::new(sender, sink, plan)?;
    let (mut gap, mut longest_other) = (Duration::ZERO, Duration::ZERO);
    let (mut restarts, mut mended) = (0, false);
    let (mut missing, mut gaps) = (0, 0);
    let mut silences = Vec::new();
    let (mut last, begun_ns) = (Instant::now(), monotonic_ns());
    let begun = last;
    let end = last + plan.warm + plan.time;
    while last < end {
        let moved = pump.rounds().1;
        if mend()? {
            (restarts, mended) = (restarts + 1, true);
        }
        let now = Instant::now();
        if moved {
            let since = now.duration_since(last);
            let longest = if mended { &mut gap } else { &mut longest_other };
            *longest = since.max(*longest);
            if since >= SILENCE_MIN {
                let ns = |at: Instant| begun_ns + at.duration_since(begun).as_nanos() as u64;
                silences.push((ns(last), ns(now)));
            }
            let left_out = pump.receiver.seen.gaps - gaps;
            missing += if mended { left_out } else { 0 };
            gaps += left_out;
            (last, mended) = (now, false);
        } else if now > end {
            break;
        }
    }
    pump.drain()?;
    let seen = &pump.receiver.seen;
    Ok(GapReport {
        restarts,
        gap_ms: gap.as_secs_f64() * 1e3,
        longest_other_ms: longest_other.as_secs_f64() * 1e3,
        sent: pump.sender.sent,
        received: seen.received,
        repeated: seen.late,
        missing: missing.saturating_sub(pump.sender.skipped),
        missing_other: seen.gaps - missing,
        wrong: seen.wrong_length + seen.wrong_bytes,
        silences,
    })
}

/// Both halves at work.
struct Pump<'e, O, I> {
    sender: Sender<'e, O>,
    receiver: Receiver<'e, I>,
    /// What comes back to the sender is dropped.
    stray: &'e mut I,
    frames: Frames,
    sink: Sink,
}

impl<'e, O: Outlet, I: Inlet> Pump<'e, O, I> {
    fn new(
        sender: &'e mut Ends<O, I>,
        sink: &'e mut Ends<O, I>,
        plan: &Plan,
    ) -> Result<Pump<'e, O, I>> {
        let frames = Frames::new(plan.size, sender.outlet.slots(), plan.addresses, plan.flows)?;
        let half = Sender::new(&mut sender.outlet, &frames, plan);
        Ok(Pump {
            receiver: Receiver::new(&mut sink.inlet, &frames, half.sequence),
            sender: half,
            stray: &mut sender.inlet,
            frames,
            sink: plan.sink,
        })
    }

    /// Some rounds, and a chore: how many of them were idle, and whether anything came.
    #[inline]
    fn rounds(&mut self) -> (u64, bool) {
        let (mut idle, mut came) = (0, false);
        for _ in 0..ROUNDS_BETWEEN_CHORES {
            let sent = self.sender.send(SEND_BURST);
            let taken = self.receiver.take(self.sink, &self.frames);
            came |= taken > 0;
            if !sent && taken == 0 {
                idle += 1;
                std::hint::spin_loop();
            }
        }
        self.discard_stray();
        (idle, came)
    }

    /// Sends and receives for `time`; gives the share of idle rounds.
    fn run(&mut self, time: Duration, beside: &mut impl FnMut()) -> f64 {
        let end = Instant::now() + time;
        let (mut rounds, mut idle) = (0u64, 0u64);
        loop {
            idle += self.rounds().0;
            beside();
            rounds += u64::from(ROUNDS_BETWEEN_CHORES);
            if Instant::now() >= end {
                return idle as f64 / rounds as f64;
            }
        }
    }

    fn discard_stray(&mut self) {
        while self.stray.take(TAKE_BURST, |_, _, _| ()) > 0 {}
    }

    /// Takes what the switch still holds.
    fn drain(&mut self) -> Result<()> {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            self.receiver.take(self.sink, &self.frames);
            self.discard_stray();
        }
        if !self.sender.outlet.is_drained() {
            bail!("the switch stopped taking frames");
        }
        Ok(())
    }
}

/// Sends one frame at a time, each after the one before has come back or is lost.
///
/// # Errors
/// If the plan asks for frames that cannot be, or not one frame came back.
pub fn run_latency<O: Outlet, I: Inlet>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    plan: &Plan,
) -> Result<LatencyReport> {
    let mut pump = Pump::new(sender, sink, plan)?;
    let clock = tsc::Clock::get();
    let lost_after = clock.cycles(SINGLE_LOST_AFTER.as_nanos() as u64);
    let mut times = Vec::with_capacity(1 << 22);
    let mut lost = 0;
    let warm_until = Instant::now() + plan.warm;
    let end = warm_until + plan.time;
    while Instant::now() < end {
        let start = tsc::now();
        if !pump.sender.send(1) {
            bail!("the switch takes no frames");
        }
        let taken = loop {
            let taken = pump.receiver.take(pump.sink, &pump.frames);
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
        pump.discard_stray();
    }
    if times.is_empty() {
        bail!("not one frame came back");
    }
    Ok(LatencyReport::of(times, plan.size, lost))
}

/// Sends one short frame at a time there and, once it has come, one back; `pause` between two of these trips, in which both
/// guests poll on and the switch has nothing to do.
///
/// # Errors
/// If the switch takes no frames, or none came back.
pub fn run_trip<O: Outlet, I: Inlet>(
    there: &mut Ends<O, I>,
    back: &mut Ends<O, I>,
    (warm, time, pause): (Duration, Duration, Duration),
) -> Result<LatencyReport> {
    let (request, reply) = (
        announcement(sink_address(0), SENDER),
        announcement(SENDER, sink_address(0)),
    );
    let size = request.len();
    for (end, frame) in [(&*there, &request), (&*back, &reply)] {
        for slot in 0..end.outlet.slots() {
            end.outlet.memory().write(end.outlet.buffer(slot), frame);
        }
    }
    let (mut times, mut lost, mut number) = (Vec::with_capacity(1 << 20), 0, 0);
    let warm_until = Instant::now() + warm;
    let end = warm_until + time;
    while Instant::now() < end {
        let start = tsc::now();
        number += 1;
        let came = cross(&mut there.outlet, &mut back.inlet, size, number)?
            && cross(&mut back.outlet, &mut there.inlet, size, number)?;
        let cycles = tsc::now().wrapping_sub(start);
        let now = Instant::now();
        match came {
            true if now >= warm_until => times.push(cycles),
            true => {}
            false => lost += 1,
        }
        while now.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
    if times.is_empty() {
        bail!("not one frame came back");
    }
    Ok(LatencyReport::of(times, size, lost))
}

/// Sends the frame that all buffers hold with a number in it, and waits until that has come; false if it is lost. One
/// that comes after it was given up has another number.
fn cross(
    outlet: &mut impl Outlet,
    inlet: &mut impl Inlet,
    size: usize,
    number: u64,
) -> Result<bool> {
    let begun = tsc::now();
    let lost_after = tsc::Clock::get().cycles(SINGLE_LOST_AFTER.as_nanos() as u64);
    let number_at = SEQUENCE_AT as u32;
    let sent = outlet.send(1, size as u32, |memory, _, at| {
        memory.store_u64(at + number_at, number, Ordering::Relaxed);
    });
    if !sent {
        bail!("the switch takes no frames");
    }
    let mut came = false;
    loop {
        inlet.take(TAKE_BURST, |memory, at, length| {
            came |= length == Some(size as u32)
                && memory.load_u64(at + number_at, Ordering::Relaxed) == number;
        });
        if came || tsc::now().wrapping_sub(begun) > lost_after {
            return Ok(came);
        }
    }
}
