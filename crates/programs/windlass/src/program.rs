//! [`Program`]: what a program file is, and whether the preload library can accelerate it.
//!
//! # Model
//! The questions are those of the kernel and of the loader. A name is looked up in `PATH`. A script leads to its
//! interpreter, and `env` to the program behind it. The file at the end is ELF for this machine or not, has a loader
//! or not, and raises privileges or not. The answer is about the file alone: a broker, Yama and seccomp filters can
//! still stand against the ring, and `windlass sockets` names them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{getgid, getuid};

/// Bytes of a file that hold the first line of a script, or the headers of an ELF file.
const HEAD_BYTES: usize = 4096;
/// Bytes of one note segment that are looked at.
const NOTES_BYTES: u64 = 4096;
/// Scripts that may interpret each other: the kernel's own limit.
const SCRIPTS_MAX: usize = 5;
/// File name of glibc's loader.
const LOADER: &str = if cfg!(target_arch = "x86_64") {
    "ld-linux-x86-64.so.2"
} else {
    "ld-linux-aarch64.so.1"
};
/// This machine in an ELF file: `EM_X86_64`, `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// Why a program cannot be accelerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It is not ELF for this machine.
    Foreign,
    /// It has no loader.
    Static,
    /// Its loader is not glibc's.
    Loader,
    /// It is written in Go.
    Go,
    /// It runs as another user or group.
    SetId,
    /// It has file capabilities.
    Capabilities,
    /// Its file cannot be read.
    Unreadable,
}

impl Obstacle {
    /// One sentence for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Foreign => "it is not an ELF program for this machine",
            Self::Static => "it is statically linked, so no library can be preloaded",
            Self::Loader => "its loader is not glibc's, so the library cannot be loaded",
            Self::Go => "Go programs make system calls without libc",
            Self::SetId => {
                "it is set-user-ID or set-group-ID, so the loader ignores preloaded libraries"
            }
            Self::Capabilities => {
                "it has file capabilities, so the loader ignores preloaded libraries"
            }
            Self::Unreadable => "its file cannot be read, so nothing is known of it",
        }
    }
}

/// A program file, found as the kernel finds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The file that was named.
    pub(crate) file: PathBuf,
    /// The file that is executed in the end; another one for a script.
    pub(crate) runs: PathBuf,
    /// What stands against its acceleration.
    pub(crate) obstacle: Option<Obstacle>,
}

impl Program {
    /// Looks at the program of a command line.
    ///
    /// # Errors
    /// As execvp(3): `NotFound` if there is no such file, else why it cannot be executed.
    pub(crate) fn of(command: &[OsString]) -> io::Result<Self> {
        let name = command.first().ok_or(ErrorKind::NotFound)?;
        let file = find(name)?;
        let mut arguments = command.get(1..).unwrap_or_default().to_vec();
        let mut runs = file.clone();
        for _ in 0..SCRIPTS_MAX {
            let Some(next) = next(&runs, &mut arguments)? else {
                break;
            };
            runs = next;
        }
        let obstacle = obstacle(&runs).unwrap_or(Some(Obstacle::Unreadable));
        Ok(Self {
            file,
            runs,
            obstacle,
        })
    }
}

/// The file that execvp(3) executes for a name.
fn find(name: &OsStr) -> io::Result<PathBuf> {
    let is_executable = |path: &Path| {
        let is_file = std::fs::metadata(path)?.is_file();
        access(path, Access::EXEC_OK)?;
        if is_file {
            Ok(())
        } else {
            Err(io::Error::from(ErrorKind::PermissionDenied))
        }
    };
    if name.as_bytes().contains(&b'/') {
        return is_executable(Path::new(name)).map(|()| name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut why = io::Error::from(ErrorKind::NotFound);
    for directory in std::env::split_paths(&path) {
        let file = directory.join(name);
        match is_executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => why = error,
            Err(_) => {}
        }
    }
    Err(why)
}

/// The program that a file leaves the work to, if it does: a script's interpreter, or what `env` executes.
fn next(file: &Path, arguments: &mut Vec<OsString>) -> io::Result<Option<PathBuf>> {
    if file.file_name() == Some(OsStr::new("env")) {
        let is_name = |word: &&OsString| {
            let word = word.as_bytes();
            !word.starts_with(b"-") && !word.contains(&b'=')
        };
        return arguments
            .iter()
            .find(is_name)
            .map(|name| find(name))
            .transpose();
    }
    let Ok(head) = head(file) else {
        return Ok(None);
    };
    let Some(script) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = script.split(|byte| *byte == b'\n').next().unwrap_or(script);
    let mut words = line
        .split(|byte| b" \t".contains(byte))
        .filter(|word| !word.is_empty())
        .map(|word| OsStr::from_bytes(word).to_owned());
    let Some(interpreter) = words.next() else {
        return Ok(None);
    };
    arguments.insert(0, file.into());
    arguments.splice(0..0, words);
    find(&interpreter).map(Some)
}

/// What stands against a file that is no script.
fn obstacle(file: &Path) -> io::Result<Option<Obstacle>> {
    let status = std::fs::metadata(file)?;
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let is_set_uid = status.mode() & 0o4000 != 0 && status.uid() != uid;
    let is_set_gid = status.mode() & 0o2010 == 0o2010 && status.gid() != gid;
    if is_set_uid || is_set_gid {
        return Ok(Some(Obstacle::SetId));
    }
    let mut none: [u8; 0] = [];
    if uid != 0 && rustix::fs::getxattr(file, "security.capability", &mut none).is_ok() {
        return Ok(Some(Obstacle::Capabilities));
    }
    let head = head(file)?;
    Ok(match Elf::of(&head) {
        None => Some(Obstacle::Foreign),
        Some(elf) if elf.is_go(&File::open(file)?) => Some(Obstacle::Go),
        Some(elf) => match elf.loader() {
            None => Some(Obstacle::Static),
            Some(loader) if loader.file_name() != Some(OsStr::new(LOADER)) => {
                Some(Obstacle::Loader)
            }
            Some(_) => None,
        },
    })
}

/// The first bytes of a file.
fn head(file: &Path) -> io::Result<Vec<u8>> {
    bytes_at(&File::open(file)?, 0, HEAD_BYTES as u64)
}

/// As many bytes of a file from a place on as there are, and no more than a page.
fn bytes_at(file: &File, at: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count.min(NOTES_BYTES) as usize];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The headers of an ELF file for this machine.
struct Elf<'a> {
    head: &'a [u8],
}

/// A segment: its type, where it begins in the file, and its bytes there.
struct Segment {
    kind: u32,
    at: u64,
    bytes: u64,
}

impl<'a> Elf<'a> {
    /// `None`: not 64 bits, not little-endian, or not for this machine.
    fn of(head: &'a [u8]) -> Option<Self> {
        let elf = Self { head };
        (head.starts_with(b"\x7fELF\x02\x01") && elf.half(18)? == MACHINE).then_some(elf)
    }

    fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.head.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*bytes))
    }

    fn long(&self, at: usize) -> Option<u64> {
        let bytes = self.head.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// The segments whose headers lie in the first bytes, where every linker puts them.
    fn segments(&self) -> impl Iterator<Item = Segment> {
        let table = self.long(32).and_then(|at| usize::try_from(at).ok());
        let (size, count) = (self.half(54).unwrap_or(0), self.half(56).unwrap_or(0));
        (0..usize::from(count)).filter_map(move |index| {
            let at = table?.checked_add(index * usize::from(size))?;
            Some(Segment {
                kind: self.long(at)? as u32,
                at: self.long(at + 8)?,
                bytes: self.long(at + 32)?,
            })
        })
    }

    fn loader(&self) -> Option<&Path> {
        let segment = self.segments().find(|segment| segment.kind == PT_INTERP)?;
        let at = usize::try_from(segment.at).ok()?;
        let text = self.head.get(at..)?.split(|byte| *byte == 0).next()?;
        Some(Path::new(OsStr::from_bytes(text)))
    }

    /// Whether Go's linker made it: its note names the maker `Go`.
    fn is_go(&self, file: &File) -> bool {
        let mut notes = self.segments().filter(|segment| segment.kind == PT_NOTE);
        notes.any(|note| {
            let bytes = bytes_at(file, note.at, note.bytes).unwrap_or_default();
            bytes
                .get(12..)
                .is_some_and(|name| name.starts_with(b"Go\0"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn of(words: &[&str]) -> io::Result<Program> {
        let command: Vec<OsString> = words.iter().map(OsString::from).collect();
        Program::of(&command)
    }

    fn file(directory: &Path, name: &str, bytes: &[u8], mode: u32) -> String {
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("our file");
        path.to_str().expect("text").to_owned()
    }

    /// An ELF file of segments, each with its type and what is in it, laid out one behind the other.
    fn elf(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * segments.len()];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = MACHINE as u8;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = segments.len() as u8;
        for (index, (kind, content)) in segments.iter().enumerate() {
            let (header, at) = (64 + 56 * index, bytes.len() as u64);
            bytes[header..header + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[header + 8..header + 16].copy_from_slice(&at.to_le_bytes());
            bytes[header + 32..header + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn glibc() -> Vec<u8> {
        format!("/lib64/{LOADER}\0").into_bytes()
    }

    /// Each kind of ELF file is told from the others by its headers.
    #[test]
    fn programs_are_told_apart() {
        let directory = tempfile::tempdir().expect("a directory");
        let go = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id";
        for (name, bytes, obstacle) in [
            ("good", elf(&[(PT_INTERP, &glibc())]), None),
            ("static", elf(&[(1, b"code")]), Some(Obstacle::Static)),
            (
                "musl",
                elf(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")]),
                Some(Obstacle::Loader),
            ),
            ("go", elf(&[(PT_NOTE, go)]), Some(Obstacle::Go)),
            (
                "cgo",
                elf(&[(PT_INTERP, &glibc()), (PT_NOTE, go)]),
                Some(Obstacle::Go),
            ),
            ("text", b"no program\n".to_vec(), Some(Obstacle::Foreign)),
            (
                "cut",
                elf(&[(PT_INTERP, &glibc())])[..40].to_vec(),
                Some(Obstacle::Static),
            ),
        ] {
            let path = file(directory.path(), name, &bytes, 0o755);
            assert_eq!(of(&[&path]).expect(name).obstacle, obstacle, "{name}");
        }
        assert_eq!(of(&["sh"]).expect("a shell").obstacle, None);
    }

    /// A file of another user with the set-user-ID bit is refused by the loader; the bit on an own file means nothing.
    #[test]
    fn privileges_are_seen() {
        let directory = tempfile::tempdir().expect("a directory");
        let good = elf(&[(PT_INTERP, &glibc())]);
        let path = file(directory.path(), "own", &good, 0o4755);
        assert_eq!(of(&[&path]).expect("own").obstacle, None);
        if std::os::unix::fs::chown(&path, Some(61_999), None).is_err() {
            eprintln!("skipped: privileges_are_seen: files cannot be given away");
            return;
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("set");
        assert_eq!(
            of(&[&path]).expect("set-id").obstacle,
            Some(Obstacle::SetId)
        );
    }

    /// A script leads to its interpreter, also by way of `env` and of other scripts; a loop of scripts ends.
    #[test]
    fn scripts_lead_to_their_interpreters() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = |name: &str, line: &str| file(directory.path(), name, line.as_bytes(), 0o755);
        let shell = of(&["/bin/sh"]).expect("a shell").runs;
        let first = script("first", "#! /bin/sh -e\nexit 0\n");
        let program = of(&[&first]).expect("a script");
        assert_eq!((program.runs, program.obstacle), (shell.clone(), None));
        let second = script("second", &format!("#!{first}\n"));
        assert_eq!(of(&[&second]).expect("a script of a script").runs, shell);
        let by_env = script("by-env", "#!/usr/bin/env -S A=b sh -e\n");
        let program = of(&[&by_env, "argument"]).expect("by env");
        assert_eq!(program.file, Path::new(&by_env));
        assert_eq!(program.runs.file_name(), Some(OsStr::new("sh")));
        let round = directory.path().join("round");
        script("round", &format!("#!{}\n", round.display()));
        assert_eq!(
            of(&[round.to_str().expect("text")])
                .expect("found")
                .obstacle,
            Some(Obstacle::Foreign)
        );
    }

    /// What cannot be executed is an error, as the program that tries would see it.
    #[test]
    fn what_is_no_program_is_an_error() {
        let kind = |words: &[&str]| of(words).expect_err("no program").kind();
        assert_eq!(kind(&["windlass-no-such-program"]), ErrorKind::NotFound);
        assert_eq!(kind(&["/nonexistent/program"]), ErrorKind::NotFound);
        assert_eq!(kind(&["/etc/passwd"]), ErrorKind::PermissionDenied);
        assert_eq!(kind(&["/"]), ErrorKind::PermissionDenied);
        let directory = tempfile::tempdir().expect("a directory");
        let lost = file(directory.path(), "lost", b"#!/nonexistent/sh\n", 0o755);
        assert_eq!(kind(&[&lost]), ErrorKind::NotFound);
    }
}
