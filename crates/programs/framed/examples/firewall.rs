//! A firewall between two devices: what the inside sends passes; of what comes from the outside, TCP connections to open ports, and
//! answers to what the inside has sent.
//!
//! ```text
//! cargo run --release -p windlass-framed --example firewall -- INSIDE OUTSIDE [PORT...]
//! ```
//! INSIDE and OUTSIDE are sockets of devices. It looks at IPv4 without options; IPv6 is dropped, and everything that is not IP passes. Flows are
//! forgotten at random when there are too many.

use std::collections::HashSet;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use windlass_framed::{Device, Options, ReadVec, Readiness, WriteVec};

const FRAMES: usize = 32;
const FRAME_MAX: usize = 2048;
const FLOWS_MAX: usize = 65_536;

/// Protocol, both addresses and both ports, the inside's first.
type Flow = (u8, [u8; 4], [u8; 4], [u8; 2], [u8; 2]);

/// What the firewall knows.
pub struct Firewall {
    open: HashSet<u16>,
    flows: HashSet<Flow>,
}

impl Firewall {
    /// These TCP ports of the inside are open.
    pub fn new(open: impl IntoIterator<Item = u16>) -> Firewall {
        Firewall {
            open: open.into_iter().collect(),
            flows: HashSet::new(),
        }
    }

    /// Whether a frame passes.
    fn passes(&mut self, frame: &[u8], from_inside: bool) -> bool {
        let Some((_, [0x08, 0x00])) = frame
            .get(..14)
            .and_then(|head| head.split_last_chunk::<2>())
        else {
            return frame.get(12..14) != Some(&[0x86, 0xdd]);
        };
        let Some(flow) = flow(&frame[14..], from_inside) else {
            return from_inside;
        };
        if from_inside {
            if self.flows.len() >= FLOWS_MAX {
                let one = self.flows.iter().next().copied();
                one.map(|one| self.flows.remove(&one));
            }
            self.flows.insert(flow);
            return true;
        }
        let (protocol, .., port, _) = flow;
        let is_open = protocol == 6 && self.open.contains(&u16::from_be_bytes(port));
        is_open || self.flows.contains(&flow)
    }

    /// Moves what is there from one device to the other; how many frames were read.
    ///
    /// # Errors
    /// The devices' own, but for `EAGAIN`. A device without room loses the frames.
    pub fn forward(
        &mut self,
        (from, to): (&Device, &Device),
        from_inside: bool,
    ) -> rustix::io::Result<usize> {
        let mut room = [[0; FRAME_MAX]; FRAMES];
        let mut vecs: Vec<ReadVec<'_>> = room.iter_mut().map(|r| ReadVec::new(r)).collect();
        let count = match from.read(1, &mut vecs) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let frames = vecs[..count].iter().map(ReadVec::data);
        let passing = frames.filter(|frame| self.passes(frame, from_inside));
        let mut out: Vec<WriteVec<'_>> = passing.map(WriteVec::new).collect();
        if !out.is_empty() {
            match to.write(1, &mut out) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(count)
    }
}

/// The flow of an IPv4 packet: its ports are zero if it has none.
fn flow(packet: &[u8], from_inside: bool) -> Option<Flow> {
    let head: &[u8; 20] = packet.first_chunk()?;
    let is_whole = head[0] == 0x45 && u16::from_be_bytes([head[6], head[7]]) & 0x3fff == 0;
    let (source, target) = (*head[12..16].first_chunk()?, *head[16..20].first_chunk()?);
    let ports = match head[9] {
        6 | 17 => packet.get(20..24)?,
        _ => &[0; 4],
    };
    let (from, to) = ([ports[0], ports[1]], [ports[2], ports[3]]);
    let flow = match from_inside {
        true => (head[9], source, target, from, to),
        false => (head[9], target, source, to, from),
    };
    is_whole.then_some(flow)
}

/// Forwards between two devices until one is gone.
///
/// # Errors
/// Why one is.
pub fn run(inside: &Device, outside: &Device, mut firewall: Firewall) -> rustix::io::Result<()> {
    let fds = [
        inside.pollfd(Readiness::Read)?,
        outside.pollfd(Readiness::Read)?,
    ];
    loop {
        let moved = firewall.forward((inside, outside), true)?
            + firewall.forward((outside, inside), false)?;
        if moved == 0 {
            let mut fds = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [inside, outside, ports @ ..] = words.as_slice() else {
        eprintln!("usage: firewall INSIDE OUTSIDE [PORT...]");
        std::process::exit(2);
    };
    let options = Options {
        nonblocking: true,
        ..Options::default()
    };
    let [inside, outside] = [inside, outside].map(|path| {
        Device::open_path(Path::new(path), options).unwrap_or_else(|error| {
            eprintln!("firewall: {error}");
            std::process::exit(1)
        })
    });
    let ports = ports.iter().map(|port| port.parse().expect("a port"));
    let ended = run(&inside, &outside, Firewall::new(ports));
    eprintln!("firewall: {}", ended.expect_err("it goes on"));
}
