//! Bytes one way as fast as they go: through a connection, the kernel's own shortcut, or bare shared memory.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use windlass_sync::{Padded, tsc};
use windlass_sys::sockmap::Redirect;

use super::place::{Listener, Place, Stream};
use crate::core::pin;

/// Seconds before bytes count.
const WARM_UP_S: f64 = 0.15;

/// The sender goes on for so long after its own time: the receiver's may end later.
const AFTER_S: f64 = 0.15;

/// Calls between two looks at the clock.
const CALLS_A_LOOK: u64 = 64;

/// Words of 8 bytes in the ring of bare shared memory: it lies in the caches that two cores share.
const RING_WORDS: usize = 256 * 1024 / 8;

/// Which end this is.
#[derive(Subcommand, Debug)]
pub enum End {
    /// Receives and measures
    Take(Options),
    /// Sends and measures
    Give(Options),
    /// Both, as two threads of this process
    Both(Both),
}

/// What both ends are told.
#[derive(Args, Debug)]
pub struct Options {
    /// Address and port, or the path of a Unix socket
    #[arg(long)]
    at: Place,
    /// Core to run on; without it, any
    #[arg(long)]
    core: Option<usize>,
    /// Never wait in a call: try again without a pause
    #[arg(long)]
    spin: bool,
    /// Let the kernel gather small writes (Nagle's algorithm)
    #[arg(long)]
    gather: bool,
    /// Bytes of each send and of each receive
    #[arg(long)]
    size: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// Two threads of one process.
#[derive(Args, Debug)]
pub struct Both {
    /// What lies between them
    #[arg(long, value_enum)]
    via: Via,
    /// Their cores: receiver, sender
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Bytes of each write and of each read
    #[arg(long)]
    size: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// What lies between two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// TCP, redirected by the kernel from socket to socket
    Sockmap,
    /// A ring in memory, which both poll: no calls, no descriptors
    Memory,
}

/// What one end has measured, in its own time.
#[derive(Serialize)]
struct Report {
    bytes: u64,
    calls: u64,
    ns: f64,
    cpu_ns: f64,
}

/// Counts calls and bytes from the end of the warm-up on.
struct Meter {
    clock: ClockId,
    from: u64,
    to: u64,
    report: Report,
    begun: Option<(u64, f64)>,
    looks: u64,
}

fn cpu_ns(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

impl Meter {
    fn new(seconds: f64, clock: ClockId) -> Meter {
        let hz = tsc::Clock::get().hz() as f64;
        let from = tsc::now() + (WARM_UP_S * hz) as u64;
        Meter {
            clock,
            from,
            to: from + (seconds * hz) as u64,
            report: Report {
                bytes: 0,
                calls: 0,
                ns: 0.0,
                cpu_ns: 0.0,
            },
            begun: None,
            looks: 0,
        }
    }

    /// Counts one call; false when the time is over.
    #[inline]
    fn count(&mut self, bytes: usize) -> bool {
        self.report.calls += 1;
        self.report.bytes += bytes as u64;
        self.looks += 1;
        !self.looks.is_multiple_of(CALLS_A_LOOK) || self.look()
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> bool {
        let now = tsc::now();
        match self.begun {
            None if now >= self.from => {
                self.begun = Some((now, cpu_ns(self.clock)));
                (self.report.bytes, self.report.calls) = (0, 0);
            }
            Some(begun) if now >= self.to => {
                self.end(now, begun);
                return false;
            }
            _ => {}
        }
        true
    }

    fn end(&mut self, now: u64, (begun, cpu_before): (u64, f64)) {
        let hz = tsc::Clock::get().hz() as f64;
        self.report.ns = (now - begun) as f64 * 1e9 / hz;
        self.report.cpu_ns = cpu_ns(self.clock) - cpu_before;
    }
}

/// Runs one end, or both.
///
/// # Errors
/// If there is no such core, or the connection breaks.
pub fn run(end: &End) -> Result<()> {
    match end {
        End::Take(options) => {
            let mut stream = prepare(options, || Listener::bind(&options.at)?.accept())?;
            let report = take(&mut stream, options, ClockId::ProcessCPUTime)?;
            print(&report)
        }
        End::Give(options) => {
            let mut stream = prepare(options, || Stream::connect(&options.at))?;
            let report = give(&mut stream, options, ClockId::ProcessCPUTime)?;
            print(&report)
        }
        End::Both(both) => run_both(both),
    }
}

fn print(report: &Report) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(report)?)?;
    Ok(())
}

fn prepare(options: &Options, connect: impl FnOnce() -> Result<Stream>) -> Result<Stream> {
    if let Some(core) = options.core {
        pin(core)?;
    }
    let stream = connect()?;
    if let (Stream::Tcp(tcp), true) = (&stream, options.gather) {
        tcp.set_nodelay(false)?;
    }
    stream.set_nonblocking(options.spin)?;
    Ok(stream)
}

/// Receives until the end of the stream; what comes after the measured time is thrown away.
fn take(stream: &mut Stream, options: &Options, clock: ClockId) -> Result<Report> {
    let mut buffer = vec![0; options.size];
    let first = stream.take(&mut buffer)?;
    let mut meter = Meter::new(options.seconds, clock);
    let mut counts = meter.count(first);
    loop {
        let got = stream.take(&mut buffer)?;
        if got == 0 {
            break;
        }
        counts = counts && meter.count(got);
    }
    Ok(meter.report)
}

fn give(stream: &mut Stream, options: &Options, clock: ClockId) -> Result<Report> {
    let message = vec![0x5a; options.size];
    let mut meter = Meter::new(options.seconds, clock);
    loop {
        stream.give_all(&message)?;
        if !meter.count(message.len()) {
            break;
        }
    }
    let hz = tsc::Clock::get().hz() as f64;
    let end = tsc::now() + (AFTER_S * hz) as u64;
    while tsc::now() < end {
        stream.give_all(&message)?;
    }
    Ok(meter.report)
}

fn run_both(both: &Both) -> Result<()> {
    let &[receiver, sender] = both.cores.as_slice() else {
        anyhow::bail!("two cores are needed");
    };
    match both.via {
        Via::Sockmap => through_sockmap(both, receiver, sender),
        Via::Memory => through_memory(both, receiver, sender),
    }
}

fn through_sockmap(both: &Both, receiver: usize, sender: usize) -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let at = Place::Tcp(listener.local_addr()?);
    let options = |core| Options {
        at: at.clone(),
        core: Some(core),
        spin: false,
        gather: false,
        size: both.size,
        seconds: both.seconds,
    };
    let (takes, gives) = (options(receiver), options(sender));
    let listener = Listener::Tcp(listener);
    let mut giver = Stream::connect(&at)?;
    let mut taker = listener.accept()?;
    let redirect = Redirect::connect(&giver, &taker)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<Report> {
            pin(receiver)?;
            take(&mut taker, &takes, ClockId::ThreadCPUTime)
        });
        let gives = scope.spawn(move || -> Result<Report> {
            pin(sender)?;
            give(&mut giver, &gives, ClockId::ThreadCPUTime)
        });
        let given = gives.join().ok().context("the sender")?;
        let taken = thread.join().ok().context("the receiver")??;
        drop(redirect);
        print(&taken)?;
        print(&given?)
    })
}

/// Writes of at least so many words are copied as a whole.
const WHOLE_WORDS: usize = 512;

/// Where the bytes lie: whichever is faster for the size of a write.
enum Room {
    /// Words, for small writes.
    Words(Vec<AtomicU64>),
    /// One place for each write; the counts say whose turn it is, so that nobody ever waits for a lock.
    Places(Vec<Mutex<Vec<u64>>>),
}

/// A ring in memory: words written and read so far, each on lines of its own.
struct Ring {
    room: Room,
    written: Padded<AtomicU64>,
    read: Padded<AtomicU64>,
    over: AtomicBool,
}

impl Ring {
    /// For writes of so many words, which must divide the ring.
    fn new(words: usize) -> Ring {
        let room = if words < WHOLE_WORDS {
            Room::Words((0..RING_WORDS).map(|_| AtomicU64::new(0)).collect())
        } else {
            let place = || Mutex::new(vec![0; words]);
            Room::Places((0..RING_WORDS / words).map(|_| place()).collect())
        };
        Ring {
            room,
            written: Padded::default(),
            read: Padded::default(),
            over: AtomicBool::new(false),
        }
    }

    fn copy_in(&self, at: u64, message: &[u64]) {
        let first = at as usize % RING_WORDS;
        match &self.room {
            Room::Words(words) => {
                for (to, word) in words[first..first + message.len()].iter().zip(message) {
                    to.store(*word, Ordering::Relaxed);
                }
            }
            Room::Places(places) => {
                let place = places[first / message.len()].lock();
                place
                    .unwrap_or_else(PoisonError::into_inner)
                    .copy_from_slice(message);
            }
        }
    }

    fn copy_out(&self, at: u64, into: &mut [u64]) {
        let first = at as usize % RING_WORDS;
        match &self.room {
            Room::Words(words) => {
                for (word, from) in into.iter_mut().zip(&words[first..]) {
                    *word = from.load(Ordering::Relaxed);
                }
            }
            Room::Places(places) => {
                let place = places[first / into.len()].lock();
                into.copy_from_slice(&place.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn write(&self, message: &[u64], meter: &mut Meter) {
        let (mut written, mut read) = (0, 0);
        loop {
            while written + message.len() as u64 - read > RING_WORDS as u64 {
                read = self.read.load(Ordering::Acquire);
            }
            self.copy_in(written, message);
            written += message.len() as u64;
            self.written.store(written, Ordering::Release);
            if !meter.count(message.len() * 8) {
                return;
            }
        }
    }

    fn read(&self, into: &mut [u64], meter: &mut Meter) {
        let (mut read, mut written) = (0, 0);
        let mut counts = true;
        loop {
            while written < read + into.len() as u64 {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                written = self.written.load(Ordering::Acquire);
            }
            self.copy_out(read, into);
            std::hint::black_box(&mut *into);
            read += into.len() as u64;
            self.read.store(read, Ordering::Release);
            counts = counts && meter.count(into.len() * 8);
        }
    }
}

fn through_memory(both: &Both, receiver: usize, sender: usize) -> Result<()> {
    let words = both.size.div_ceil(8);
    if words == 0 || !RING_WORDS.is_multiple_of(words) {
        anyhow::bail!("a write must divide {} bytes", RING_WORDS * 8);
    }
    let ring = Ring::new(words);
    let (ring, seconds) = (&ring, both.seconds);
    std::thread::scope(|scope| {
        let takes = scope.spawn(move || -> Result<Report> {
            pin(receiver)?;
            let mut meter = Meter::new(seconds, ClockId::ThreadCPUTime);
            ring.read(&mut vec![0; words], &mut meter);
            Ok(meter.report)
        });
        let gives = scope.spawn(move || -> Result<Report> {
            pin(sender)?;
            // The receiver's time ends first.
            let mut meter = Meter::new(seconds + AFTER_S, ClockId::ThreadCPUTime);
            ring.write(&vec![0x5a5a; words], &mut meter);
            ring.over.store(true, Ordering::Relaxed);
            Ok(meter.report)
        });
        let given = gives.join().ok().context("the sender")??;
        print(&takes.join().ok().context("the receiver")??)?;
        print(&given)
    })
}
