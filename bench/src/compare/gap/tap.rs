//! Datagrams from one namespace to another, at a steady pace, while the daemon between them is replaced.

use std::net::{SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use windlass_sys::netns::{NetnsRef, within};

use crate::compare::host::Namespace;
use crate::compare::stop;
use crate::compare::windlass::Daemon;
use crate::generator::GapReport;

const SENDER: (&str, &str) = ("wlc-gapa", "10.92.0.1");
const SINK: (&str, &str) = ("wlc-gapb", "10.92.0.2");
/// The two VNICs.
pub const NAMES: [&str; 2] = [SENDER.0, SINK.0];
const PORT: u16 = 5302;

/// Time between two datagrams.
const PACE: Duration = Duration::from_micros(100);

/// The sink looks so often whether the sender has ended, and waits so long for what comes last.
const LOOK: Duration = Duration::from_millis(50);

/// The first datagram has this long to arrive: the kernel resolves addresses first.
const REACH_WITHIN: Duration = Duration::from_secs(5);

/// Two namespaces with a TAP each, and a socket in each.
pub struct Pair {
    sender: UdpSocket,
    sink: UdpSocket,
    _namespaces: [Namespace; 2],
}

impl Pair {
    /// Makes them on the bridge `br0` of the daemon.
    ///
    /// # Errors
    /// If a namespace or a VNIC cannot be made, or nothing arrives.
    pub fn create(daemon: &Daemon) -> Result<Pair> {
        let namespaces = [Namespace::create(SENDER.0)?, Namespace::create(SINK.0)?];
        for (name, address) in [SENDER, SINK] {
            let attach = format!("tap,netns={name},address={address}/24");
            daemon.command(&format!(
                "vnic create {name} --bridge br0 --attach {attach}"
            ))?;
        }
        let socket = |(name, address): (&str, &str)| {
            let namespace = NetnsRef::open(name)?;
            let bound = within(&namespace, || UdpSocket::bind((address, PORT)))?;
            anyhow::Ok(bound?)
        };
        let pair = Pair {
            sender: stop::until("the sender's address", REACH_WITHIN, || socket(SENDER).ok())?,
            sink: stop::until("the sink's address", REACH_WITHIN, || socket(SINK).ok())?,
            _namespaces: namespaces,
        };
        let to: SocketAddr = format!("{}:{PORT}", SINK.1).parse()?;
        pair.sender.connect(to)?;
        pair.sink.set_read_timeout(Some(LOOK))?;
        stop::until("the first datagram", REACH_WITHIN, || {
            let _ = pair.sender.send(&u64::MAX.to_ne_bytes());
            pair.sink.recv(&mut [0; 8]).ok()
        })?;
        while pair.sink.recv(&mut [0; 8]).is_ok() {}
        Ok(pair)
    }

    /// Sends for this time, and calls `work` after `until_work`.
    ///
    /// # Errors
    /// If `work` fails, or a socket does.
    pub fn measure(
        &self,
        time: Duration,
        until_work: Duration,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<GapReport> {
        // What came too late for the measurement before.
        while self.sink.recv(&mut [0; 8]).is_ok() {}
        let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (begun, done_at) = (Instant::now(), OnceLock::new());
        let seen = std::thread::scope(|scope| {
            let sink = scope.spawn(|| self.receive(begun + until_work, &done_at, &is_over));
            scope.spawn(|| {
                let mut next = begun;
                while begun.elapsed() < time {
                    // An interface that is down refuses it: then it is lost, as in a driver's queue.
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    let _ = self.sender.send(&number.to_ne_bytes());
                    next = (next + PACE).max(Instant::now());
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let done = stop::pause(until_work).and_then(|()| work());
            let _ = done_at.set(Instant::now());
            let seen = sink.join().ok().context("the sink has failed");
            done.and(seen)
        })?;
        let sent = sent.into_inner();
        Ok(GapReport {
            restarts: 1,
            gap_ms: seen.gap.as_secs_f64() * 1e3,
            longest_other_ms: seen.longest_other.as_secs_f64() * 1e3,
            sent,
            received: seen.received,
            repeated: seen.late,
            missing: (sent + seen.late).saturating_sub(seen.received + seen.missing_other),
            missing_other: seen.missing_other,
            wrong: 0,
            silences: Vec::new(),
        })
    }

    /// The change is over at `done_at`, unless that is not known yet.
    fn receive(&self, change: Instant, done_at: &OnceLock<Instant>, is_over: &AtomicBool) -> Seen {
        let mut seen = Seen::default();
        let (mut last, mut next) = (Instant::now(), 0u64);
        let mut bytes = [0; 8];
        loop {
            let Ok(length) = self.sink.recv(&mut bytes) else {
                if is_over.load(Ordering::Relaxed) {
                    return seen;
                }
                continue;
            };
            let now = Instant::now();
            let number = u64::from_ne_bytes(bytes);
            if length != bytes.len() || number == u64::MAX {
                continue;
            }
            seen.received += 1;
            let is_after = now > change && done_at.get().is_none_or(|done| last <= *done);
            let longest = if is_after {
                &mut seen.gap
            } else {
                &mut seen.longest_other
            };
            *longest = now.duration_since(last).max(*longest);
            if number < next {
                seen.late += 1;
            } else if !is_after {
                seen.missing_other += number - next;
            }
            (last, next) = (now, next.max(number + 1));
        }
    }
}

#[derive(Default)]
struct Seen {
    received: u64,
    late: u64,
    missing_other: u64,
    gap: Duration,
    longest_other: Duration,
}
