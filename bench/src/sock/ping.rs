//! A message there and one back, over and over.

use std::io::Write;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use windlass_stats::Histogram;
use windlass_sync::tsc;
use windlass_sys::named::{NamedEpoll, READY_MAX, poll_readable, select_readable};

use super::place::{Listener, Place, Stream};
use crate::core::pin;

/// Seconds before times count.
const WARM_UP_S: f64 = 0.2;

/// How an end waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// In its receive call.
    Block,
    /// It tries a non-blocking receive without a pause.
    Spin,
    /// In `epoll_wait`, for ever, then one receive.
    Epoll,
    /// In `poll`, the same way.
    Poll,
    /// In `select`, the same way.
    Select,
}

/// Which end this is.
#[derive(Subcommand, Debug)]
pub enum End {
    /// Sends back what comes, until the asking end closes
    Serve(Options),
    /// Measures
    Ask(Options),
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
    /// How to wait
    #[arg(long, value_enum, default_value = "block")]
    wait: Wait,
    /// Connections in all, of which one is used: the others lie in the epoll set, too
    #[arg(long, default_value_t = 1)]
    members: usize,
    /// Bytes of a message
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// What the asking end has measured; times are half of a round trip.
#[derive(Serialize)]
struct Report {
    trips: u64,
    p50_ns: f64,
    p99_ns: f64,
    p999_ns: f64,
}

/// The used connection, the idle ones, and the set that holds all.
struct Ends {
    stream: Stream,
    wait: Wait,
    set: Option<NamedEpoll>,
    _idle: Vec<Stream>,
}

impl Ends {
    fn new(mut streams: Vec<Stream>, wait: Wait) -> Result<Ends> {
        let set = match wait {
            Wait::Epoll => Some(NamedEpoll::create()?),
            _ => None,
        };
        for (token, stream) in (0..).zip(&streams) {
            if let Some(set) = &set {
                set.add(stream, token)?;
            }
        }
        let stream = streams.pop().context("at least one member is needed")?;
        stream.set_nonblocking(wait == Wait::Spin)?;
        Ok(Ends {
            stream,
            wait,
            set,
            _idle: streams,
        })
    }

    #[inline]
    fn take(&mut self, into: &mut [u8]) -> Result<bool> {
        if let Some(set) = &self.set {
            while set.wait(&mut [0; READY_MAX])? == 0 {}
        }
        match self.wait {
            Wait::Poll => poll_readable(&self.stream)?,
            Wait::Select => select_readable(&self.stream)?,
            Wait::Block | Wait::Spin | Wait::Epoll => {}
        }
        Ok(self.stream.take_all(into)?)
    }
}

/// Runs one end.
///
/// # Errors
/// If there is no such core, or the connection breaks.
pub fn run(end: &End) -> Result<()> {
    let (End::Serve(options) | End::Ask(options)) = end;
    if let Some(core) = options.core {
        pin(core)?;
    }
    raise_descriptors(options.members)?;
    match end {
        End::Serve(options) => serve(options),
        End::Ask(options) => ask(options),
    }
}

/// Members need descriptors: the soft limit is raised as far as it must be.
fn raise_descriptors(members: usize) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = members as u64 + 64;
    if limit.current.is_some_and(|now| now < wanted) {
        let limit = Rlimit {
            current: Some(wanted),
            ..limit
        };
        setrlimit(Resource::Nofile, limit)
            .with_context(|| format!("{wanted} descriptors are needed"))?;
    }
    Ok(())
}

fn serve(options: &Options) -> Result<()> {
    let listener = Listener::bind(&options.at)?;
    let streams = (0..options.members)
        .map(|_| listener.accept())
        .collect::<Result<_>>()?;
    let mut ends = Ends::new(streams, options.wait)?;
    let mut message = vec![0; options.size];
    while ends.take(&mut message)? {
        ends.stream.give_all(&message)?;
    }
    Ok(())
}

fn ask(options: &Options) -> Result<()> {
    let streams = (0..options.members)
        .map(|_| Stream::connect(&options.at))
        .collect::<Result<_>>()?;
    let mut ends = Ends::new(streams, options.wait)?;
    let mut message: Vec<u8> = (0..=255).cycle().take(options.size).collect();
    let mut answer = vec![0; options.size];
    let hz = tsc::Clock::get().hz() as f64;
    let measured_from = tsc::now() + (WARM_UP_S * hz) as u64;
    let end = measured_from + (options.seconds * hz) as u64;
    let mut times = Histogram::default();
    loop {
        let begun = tsc::now();
        ends.stream.give_all(&message)?;
        if !ends.take(&mut answer)? {
            anyhow::bail!("the server closed");
        }
        let now = tsc::now();
        if begun >= measured_from {
            times.add(now - begun);
        }
        if now >= end {
            break;
        }
        if answer != message {
            anyhow::bail!("the answer is another message");
        }
        message[0] = message[0].wrapping_add(1);
    }
    let half = |share| times.percentile(share) / 2.0 * 1e9 / hz;
    let report = Report {
        trips: times.count(),
        p50_ns: half(0.5),
        p99_ns: half(0.99),
        p999_ns: half(0.999),
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}
