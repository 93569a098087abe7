//! `snoop`: frames of a link, as text or in a file that tcpdump and Wireshark read.
//!
//! # Model
//! ```text
//! daemon's workers ==shared memory==> source --record--> file (pcapng, rotated)
//!                                                    \-> text (a line each)
//! ```
//! The command compiles the filter, connects, and gives the daemon the program: frames that do not match are not copied.
//! It ends with a signal, after `-c` frames, when the link goes, or when nobody reads its output. At a signal it tells the daemon that it
//! wants no more, and takes what workers write until the daemon answers: a frame that was delivered before the signal is there.
//!
//! # What can be lost
//! Records while this process is slower than the link. They are counted, and told at the end.

mod file;
mod filter;
mod source;
mod text;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use windlass_api::{CaptureKind, CaptureRequest};
use windlass_capture::pcapng::Direction;
use windlass_capture::ring::{Counted, Head, Kind, Way};
use windlass_client::socket;

use crate::Session;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::options::SnoopArgs;
use file::Files;
use source::Source;
use text::Lines;

/// Bytes of a frame that are captured if nothing else is said: all of any.
const SNAP: u32 = 262_144;

/// Steps by which a capture's priority is lowered.
const NICE: i32 = 10;

/// How long the daemon may take to end the capture behind a signal.
const END: Duration = Duration::from_secs(1);

/// Frames between two looks for a signal.
const LOOK: u64 = 1024;

/// A frame on its way out.
#[derive(Debug, Clone, Copy)]
struct Shown<'a> {
    head: Head,
    bytes: &'a [u8],
    direction: Direction,
    /// Where it was captured.
    port: &'a str,
    /// Why it died.
    reason: Option<&'a str>,
}

/// Where frames go.
trait Sink {
    /// Takes a frame.
    fn frame(&mut self, shown: &Shown<'_>) -> Result<(), Failure>;

    /// Gives what it has kept back.
    fn flush(&mut self) -> Result<(), Failure>;

    /// No frame follows.
    fn end(&mut self, counted: Counted) -> Result<(), Failure>;
}

/// Captures until a signal, the number of frames or the end of the link. A person is told when it begins.
pub(crate) fn run(
    session: &mut Session<'_>,
    args: &SnoopArgs,
    is_by_person: bool,
) -> Result<(), Failure> {
    if session.options.json || session.options.fields.is_some() {
        let todo = "with -w it writes a file for \"tshark -T json -r FILE\"";
        return Err(Failure::usage(
            "snoop writes frames as text or pcapng",
            todo,
        ));
    }
    let what = format!("capture {}", args.link);
    let snap = match args.length {
        None | Some(0) => SNAP,
        Some(bytes) => bytes,
    };
    let request = CaptureRequest {
        link: args.link.clone(),
        zone: args.zone.clone(),
        direction: args.direction.into(),
        drops: args.drops,
        snap,
        ring_bytes: (args.buffer << 10).next_power_of_two(),
        filter: filter::compile(&args.filter.join(" "), snap)?,
    };
    // A capture leaves the processor to what it captures. A wish.
    let _ = rustix::process::nice(NICE);
    let path = socket::find(session.options.socket.clone());
    let path = path.map_err(|error| Failure::of(&what, error))?;
    let mut source = Source::open(&path, &request, &what)?;
    let mut sink: Box<dyn Sink + '_> = match &args.write {
        Some(path) => Box::new(Files::create(args, snap, source.kind(), path, session.out)?),
        None => Box::new(Lines::new(session.out, args.verbose, args.bytes)),
    };
    // While the daemon or a pipe's reader was waited for, it ended the process.
    let ending = Ending::watch()?;
    if is_by_person {
        let told = format!("listening on {}, snapshot length {snap} bytes\n", args.link);
        io::stderr().write_all(told.as_bytes())?;
    }
    let captured = capture(&mut source, &mut *sink, &ending, args.count);
    let counted = source.counted();
    let ended = captured.and_then(|captured| {
        sink.end(counted)?;
        Ok(captured)
    });
    drop(sink);
    let captured = ended?;
    let told = tell(captured, counted, source.reason());
    io::stderr().write_all(told.as_bytes())?;
    Ok(())
}

/// Whether words are a filter.
pub(crate) fn check(words: &[String]) -> Result<(), Failure> {
    filter::compile(&words.join(" "), SNAP).map(drop)
}

fn capture(
    source: &mut Source,
    sink: &mut dyn Sink,
    ending: &Ending,
    count: Option<u64>,
) -> Result<u64, Failure> {
    let count = count.unwrap_or(u64::MAX);
    let (mut captured, mut until) = (0, None);
    let (mut is_idle, mut is_over) = (false, false);
    while captured < count {
        // A link that is never quiet keeps nobody from ending the capture.
        let looks = is_idle || captured % LOOK == 0;
        if until.is_none() && looks && ending.has_come() {
            source.end();
            until = Some(Instant::now() + END);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        if let Some(shown) = source.next() {
            sink.frame(&shown)?;
            captured += 1;
            is_idle = false;
            continue;
        }
        if is_over {
            break;
        }
        sink.flush()?;
        is_over = match until {
            None => source.wait(Some(ending.as_fd()), None)?,
            Some(until) => source.wait(None, Some(until))?,
        };
        is_idle = true;
    }
    Ok(captured)
}

fn tell(captured: u64, counted: Counted, reason: Option<&str>) -> String {
    let packets = |n: u64| if n == 1 { "packet" } else { "packets" };
    let Counted { matched, lost } = counted;
    let end = reason.map(|reason| format!("windlass: the capture has ended: {reason}\n"));
    format!(
        "{}{captured} {} captured\n{matched} {} received by filter\n{lost} {} dropped\n",
        end.unwrap_or_default(),
        packets(captured),
        packets(matched),
        packets(lost),
    )
}

/// Which way a frame went for the link's user; into or out of the bridge, if that is captured.
fn direction(kind: CaptureKind, port: Option<Kind>, way: Way) -> Direction {
    let is_from_vnic = port != Some(Kind::Uplink) && kind == CaptureKind::Member;
    match (is_from_vnic, way) {
        (true, Way::From) | (false, Way::To) => Direction::Outbound,
        (true, Way::To) | (false, Way::From) => Direction::Inbound,
    }
}
