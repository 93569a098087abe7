//! `-w`: pcapng, in one file or in several that take turns.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use windlass_api::CaptureKind;
use windlass_capture::pcapng::{Blocks, Packet};
use windlass_capture::ring::Counted;

use super::{Shown, Sink};
use crate::failure::Failure;
use crate::options::SnoopArgs;
use windlass_api::ErrorCode;

/// Bytes that are written at once.
const BUFFER: usize = 256 << 10;
/// Bytes of one unit of `-C`, as of tcpdump's.
const UNIT: u64 = 1_000_000;

/// An interface of the file at hand.
#[derive(Debug, Clone, Copy)]
struct Interface {
    number: u32,
    frames: u64,
}

/// Where frames are written.
pub(super) struct Files<'a> {
    path: PathBuf,
    /// The file at hand.
    name: PathBuf,
    out: BufWriter<Box<dyn Write + 'a>>,
    blocks: Blocks,
    snap: u32,
    kind: CaptureKind,
    /// Bytes of the file at hand.
    bytes: u64,
    /// Bytes after which another file is begun; 0: never.
    bytes_max: u64,
    /// Files that take turns; 0: there is no end of them.
    files_max: u64,
    /// Files before this one.
    files: u64,
    /// By port.
    interfaces: Vec<Option<Interface>>,
    /// When the last frame came.
    time_ns: u64,
}

impl<'a> Files<'a> {
    /// Makes the first file; `-` is the output.
    pub(super) fn create(
        args: &SnoopArgs,
        snap: u32,
        kind: CaptureKind,
        path: &Path,
        out: &'a mut dyn Write,
    ) -> Result<Files<'a>, Failure> {
        let bytes_max = args.file_size.unwrap_or(0).saturating_mul(UNIT);
        let files_max = args.file_count.unwrap_or(0);
        let name = name(path, 0, bytes_max, files_max);
        let out: Box<dyn Write> = match is_output(path) {
            true => Box::new(out),
            false => Box::new(create(&name)?),
        };
        let mut files = Files {
            path: path.into(),
            name,
            out: BufWriter::with_capacity(BUFFER, out),
            blocks: Blocks::default(),
            snap,
            kind,
            bytes: 0,
            bytes_max: if is_output(path) { 0 } else { bytes_max },
            files_max,
            files: 0,
            interfaces: Vec::new(),
            time_ns: 0,
        };
        files.begin()?;
        files.flush()?;
        Ok(files)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        let program = concat!("windlass snoop ", env!("CARGO_PKG_VERSION"));
        let written = self.blocks.section(program, &mut self.out);
        self.bytes = written.map_err(|error| self.failed(error))?;
        self.interfaces.clear();
        Ok(())
    }

    /// The interface of a port, which is written when it is new.
    fn interface(&mut self, shown: &Shown<'_>) -> Result<u32, Failure> {
        let at = usize::from(shown.head.port);
        if self.interfaces.len() <= at {
            self.interfaces.resize(at + 1, None);
        }
        if let Some(interface) = self.interfaces.get_mut(at).and_then(Option::as_mut) {
            interface.frames += 1;
            return Ok(interface.number);
        }
        let written = self
            .blocks
            .interface((shown.port, ""), self.snap, &mut self.out);
        let (number, bytes) = written.map_err(|error| self.failed(error))?;
        self.bytes += bytes;
        if let Some(place) = self.interfaces.get_mut(at) {
            *place = Some(Interface { number, frames: 1 });
        }
        Ok(number)
    }

    /// Statistics of all interfaces; `counted` has what the workers counted, if it is of this file alone.
    fn statistics(&mut self, counted: Option<Counted>) -> Result<(), Failure> {
        let interfaces: Vec<_> = self.interfaces.iter().flatten().copied().collect();
        for interface in interfaces {
            let counts = match counted {
                Some(Counted { matched, lost }) => (matched, Some(lost)),
                None => (interface.frames, None),
            };
            let number = interface.number;
            let written = self
                .blocks
                .statistics(number, self.time_ns, counts, &mut self.out);
            written.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Goes on in the next file.
    fn turn(&mut self) -> Result<(), Failure> {
        self.statistics(None)?;
        self.flush()?;
        self.files += 1;
        self.name = name(&self.path, self.files, self.bytes_max, self.files_max);
        self.out = BufWriter::with_capacity(BUFFER, Box::new(create(&self.name)?));
        self.begin()
    }

    fn failed(&self, error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::Pipe;
        }
        let what = format!("write {}", self.name.display());
        let todo = "what was written before can be read";
        Failure::new(ErrorCode::Host, what, error.to_string(), todo)
    }
}

impl Sink for Files<'_> {
    fn frame(&mut self, shown: &Shown<'_>) -> Result<(), Failure> {
        if self.bytes_max != 0 && self.bytes >= self.bytes_max {
            self.turn()?;
        }
        let interface = self.interface(shown)?;
        self.time_ns = shown.head.time_ns;
        let comment = shown.reason.map(|reason| format!("dropped: {reason}"));
        let packet = Packet {
            interface,
            time_ns: shown.head.time_ns,
            direction: shown.direction,
            len: shown.head.len,
            bytes: shown.bytes,
            comment: comment.as_deref(),
        };
        let written = self.blocks.packet(&packet, &mut self.out);
        self.bytes += written.map_err(|error| self.failed(error))?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.failed(error))
    }

    fn end(&mut self, counted: Counted) -> Result<(), Failure> {
        let is_of_one = self.files == 0 && self.kind == CaptureKind::Member;
        self.statistics(is_of_one.then_some(counted))?;
        self.flush()
    }
}

fn is_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// The name of a file: with `-C` the first has none but its own, and further ones a number behind it; with `-W`
/// all have one of as many digits, and it begins again after the last.
fn name(path: &Path, number: u64, bytes_max: u64, files_max: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    match (bytes_max, files_max) {
        (0, _) => {}
        (_, 0) if number == 0 => {}
        (_, 0) => name.push(number.to_string()),
        (_, files) => {
            let digits = (files - 1).to_string().len();
            name.push(format!("{:0digits$}", number % files));
        }
    }
    name.into()
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        let what = format!("make {}", path.display());
        Failure::new(
            ErrorCode::Host,
            what,
            error.to_string(),
            "name another file with -w",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are tcpdump's.
    #[test]
    fn files_take_turns() {
        let named = |number, bytes, files| {
            let name = name(Path::new("a"), number, bytes, files);
            name.into_os_string().into_string().expect("ASCII")
        };
        assert_eq!(named(0, 0, 0), "a");
        assert_eq!([0, 1, 12].map(|n| named(n, 1, 0)), ["a", "a1", "a12"]);
        assert_eq!(
            [0, 1, 10, 11].map(|n| named(n, 1, 11)),
            ["a00", "a01", "a10", "a00"]
        );
        assert_eq!([0, 9, 10].map(|n| named(n, 1, 10)), ["a0", "a9", "a0"]);
    }
}
