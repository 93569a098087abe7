//! Frames of a file.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use windlass_api::ErrorCode;
use windlass_capture::packets::{Packets, ReadError};

use super::{Frames, Next};
use crate::failure::Failure;

/// Shortest frame that a device takes.
const FRAME_MIN: usize = 14;

/// Why frames are left out.
const LEFT_OUT: &str = "they were captured in part, or the device does not take their length";

/// A file that is read as it is sent: it may be of any length.
#[derive(Debug)]
pub(crate) struct Replay {
    path: PathBuf,
    packets: Packets<BufReader<File>>,
    frame: Vec<u8>,
    /// What is in `frame`, if it was not taken.
    next: Option<Next>,
    has_taken: bool,
    /// Longest frame that the device takes.
    frame_max: usize,
    /// Frames that were captured in part, or that are too short or too long for the device.
    left_out: u64,
}

impl Replay {
    /// Opens a file and reads its head. Frames of up to so many bytes are sent.
    pub(crate) fn open(path: &Path, frame_max: usize) -> Result<Replay, Failure> {
        let file = File::open(path).map_err(|error| fault(path, &error.into()))?;
        let packets = Packets::open(BufReader::new(file)).map_err(|error| fault(path, &error))?;
        Ok(Replay {
            path: path.to_owned(),
            packets,
            frame: Vec::new(),
            next: None,
            has_taken: false,
            frame_max,
            left_out: 0,
        })
    }

    /// What is to be said of frames that cannot be sent.
    pub(crate) fn left_out(&self) -> Option<String> {
        (self.has_taken && self.left_out > 0)
            .then(|| format!("{} frames were not sent: {LEFT_OUT}", self.left_out))
    }

    /// There are no more. That none could be sent is a failure.
    fn end(&self) -> Result<Option<Next>, Failure> {
        if self.has_taken {
            return Ok(None);
        }
        let why = match self.left_out {
            0 => "it has no frame".into(),
            frames => format!("none of its {frames} frames can be sent: {LEFT_OUT}"),
        };
        Err(Failure::new(
            ErrorCode::Invalid,
            format!("replay {}", self.path.display()),
            why,
            "\"windlass snoop -w\" and \"tcpdump -s 0 -w\" capture whole frames",
        ))
    }
}

impl Frames for Replay {
    fn next(&mut self) -> Result<Option<Next>, Failure> {
        while self.next.is_none() {
            let read = self
                .packets
                .read()
                .map_err(|error| fault(&self.path, &error))?;
            let Some(packet) = read else {
                return self.end();
            };
            let bytes = packet.bytes.len();
            if packet.len as usize != bytes || !(FRAME_MIN..=self.frame_max).contains(&bytes) {
                self.left_out += 1;
                continue;
            }
            self.frame.clear();
            self.frame.extend(packet.bytes);
            self.next = Some(Next {
                bytes,
                time_ns: packet.time_ns,
            });
        }
        Ok(self.next)
    }

    fn take(&mut self, _due_ns: u64, to: &mut Vec<u8>) {
        to.extend(&self.frame);
        self.next = None;
        self.has_taken = true;
    }
}

fn fault(path: &Path, error: &ReadError) -> Failure {
    let (code, todo) = match error {
        ReadError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (ErrorCode::NotFound, "see its name")
        }
        ReadError::Io(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
            (ErrorCode::Invalid, "name a pcap or pcapng file")
        }
        ReadError::Io(_) => (ErrorCode::Host, "see that you may read it"),
        ReadError::Cut(_) => (ErrorCode::Invalid, "what was before it was sent"),
        _ => (
            ErrorCode::Invalid,
            "capinfos and tshark look into such files",
        ),
    };
    Failure::new(
        code,
        format!("replay {}", path.display()),
        error.to_string(),
        todo,
    )
}
