//! What a guest that sprays through an overlay costs two others, beside what an honest one does that sends as many frames.
//!
//! # Model
//! ```text
//!   client -- TAP -- host wlc-near ==== u0 ==== host wlc-far -- TAP -- server
//!   third  -- TAP --'
//! ```
//! Both overlays learn: a frame to an unknown address goes to the other host and to each of its guests, and a source is learned on both.
//! The third guest sends frames of 64 bytes at one rate, whatever it does: to the server, to ever other addresses, or from ever other ones.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use windlass_sys::affinity;
use windlass_sys::netlink::Netlink;
use windlass_sys::netns::{NetnsRef, within};
use windlass_sys::packet::{PacketOptions, PacketSocket};

use super::host::{Namespace, Scratch};
use super::iperf::{CLIENT, Comparison, SERVER, Traffic, Turns, Variant, World};
use super::tunnel::{self, FAR, NEAR};

/// The third guest's namespace, and its address.
const THIRD: (&str, &str) = ("wlc-third", "02:00:00:00:00:03");
/// Addresses that it makes up: their last 24 bits.
const ADDRESSES: u64 = 1 << 20;
/// Its core: the client's.
const CORE: usize = 1;
/// Time from one of its batches to the next.
const TICK: Duration = Duration::from_millis(1);
/// Its frames, in bytes.
const FRAME: usize = 60;

/// Two guests on two hosts, and a third one that sprays.
#[derive(Args, Debug)]
pub struct Options {
    /// What the third guest does, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "honest,destinations,sources"
    )]
    subjects: Vec<Subject>,
    /// Frames that it sends a second
    #[arg(long, default_value_t = 50_000)]
    frames: u32,
    #[command(flatten)]
    turns: Turns,
}

/// What the third guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// It sends to the server, from its own address.
    Honest,
    /// It sends to a million addresses that nobody has.
    Destinations,
    /// It sends from a million addresses.
    Sources,
}

/// The least share of the others' rate beside an honest guest.
const BARS: &[(Subject, (f64, Option<f64>))] = &[
    (Subject::Destinations, (0.95, None)),
    (Subject::Sources, (0.95, None)),
];

const STREAM: Variant<Subject> = Variant {
    name: "1 stream",
    client: Some(1),
    server: Some(0),
    forwarders: [Some(1), Some(0)],
    processes: 1,
    streams: 1,
    traffic: Traffic::Streams,
    congestion: "cubic",
    bars: BARS,
};

const VARIANTS: [Variant<Subject>; 2] = [
    STREAM,
    Variant {
        name: "UDP of 64 bytes",
        traffic: Traffic::Datagrams,
        ..STREAM
    },
];

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// As [`Comparison::run`].
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let comparison = Comparison {
        title: "two guests beside a third that sprays through their tunnel",
        subjects: &options.subjects,
        base: Subject::Honest,
        variants: &VARIANTS,
        programs,
        build: &|subject, world, scratch| build(subject, options.frames, world, scratch, programs),
    };
    comparison.run(&options.turns, json)
}

fn build(
    subject: Subject,
    frames: u32,
    world: &mut World,
    scratch: &Scratch,
    programs: &Path,
) -> Result<()> {
    tunnel::join(world)?;
    let others = [(NEAR, FAR, CLIENT), (FAR, NEAR, SERVER)];
    for (own, other, guest) in others {
        let daemon = tunnel::start(own.0, scratch, programs)?;
        let search = format!("learn --set learn/remotes={}", other.1);
        world
            .daemons
            .push(tunnel::overlay(daemon, own.1, &search, guest)?);
    }
    let third = Namespace::create(THIRD.0)?;
    let near = world.daemons.first().context("a daemon")?;
    near.command(&format!(
        "vnic create third --over ov0 --mac {} --set mac-nospoof=off --attach tap,netns={},name=eth0",
        THIRD.1, THIRD.0
    ))?;
    let address = format!("cat /sys/class/net/{}/address", SERVER.0);
    let shown = world.server.exec(&address)?;
    let server = parse_mac(shown.trim()).context("the server's address")?;
    world.third = Some(Sprayer::start(third, subject, server, frames)?);
    Ok(())
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let octets: Option<Vec<u8>> = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok())
        .collect();
    octets?.try_into().ok()
}

/// The third guest, which sends until it is dropped.
pub struct Sprayer {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _namespace: Namespace,
}

impl Sprayer {
    fn start(namespace: Namespace, subject: Subject, server: [u8; 6], frames: u32) -> Result<Self> {
        let inside = NetnsRef::open(namespace.name())?;
        let socket = within(&inside, || -> Result<PacketSocket> {
            let link = Netlink::open()?
                .link_by_name("eth0")?
                .context("the third guest's TAP")?;
            Ok(PacketSocket::open(link.index, &PacketOptions::default())?)
        })??;
        let own = parse_mac(THIRD.1).context("an address")?;
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let thread = std::thread::spawn(move || {
            // Elsewhere it disturbs less.
            let _ = affinity::pin_thread(CORE);
            spray(&socket, subject, (own, server), frames, &until);
        });
        Ok(Sprayer {
            ends,
            thread: Some(thread),
            _namespace: namespace,
        })
    }
}

impl Drop for Sprayer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends frames at a rate. What the TAP has no room for is not sent again.
fn spray(
    socket: &PacketSocket,
    subject: Subject,
    (own, server): ([u8; 6], [u8; 6]),
    rate: u32,
    ends: &AtomicBool,
) {
    let mut frame = [0; FRAME];
    let (begun, mut sent) = (Instant::now(), 0_u64);
    while !ends.load(Ordering::Relaxed) {
        let due = begun.elapsed().as_micros() as u64 * u64::from(rate) / 1_000_000;
        // After a pause it does not make up for more than a tick.
        sent = sent.max(due.saturating_sub(u64::from(rate) / 500));
        while sent < due {
            let [.., a, b, c] = (sent % ADDRESSES).to_be_bytes();
            let made_up = [6, 0, 0, a, b, c];
            let (to, from) = match subject {
                Subject::Honest => (server, own),
                Subject::Destinations => (made_up, own),
                Subject::Sources => (server, made_up),
            };
            for (field, value) in frame.iter_mut().zip([to, from].as_flattened()) {
                *field = *value;
            }
            // An Ethernet type for experiments (IEEE 802).
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            let _ = socket.write_frame(&[IoSlice::new(&frame)]);
            sent += 1;
        }
        std::thread::sleep(TICK);
    }
}
