//! Debug data of a file: in the file itself, or apart from it.
//!
//! # Model
//! A file without `.debug_info` may have it in another: by its build id under `/usr/lib/debug/.build-id`, or by the name in `.gnu_debuglink`.
//! Each is looked for under the root of the program first, then under that of this host. A file counts if its build id is the same; one
//! without a build id, if the checksum of the link is its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::elf::{Bytes, Elf};

/// Where debug data is installed.
const INSTALLED: &str = "/usr/lib/debug";
/// Bytes of a file whose checksum is made at most.
const CHECKED_MAX: u64 = 2 << 30;

/// The sections that describe types, functions and frames.
const NAMES: [&str; 19] = [
    ".BTF",
    ".BTF.base",
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_frame",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
    ".eh_frame",
    ".eh_frame_hdr",
    ".text",
];

/// The sections that have types, each kind in its own format.
const TYPES: [&str; 2] = [".debug_info", ".BTF"];

/// The kernel's own types, as BTF, or those of a module of it.
///
/// # Errors
/// If the kernel does not offer them.
pub fn of_kernel(module: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(Path::new("/sys/kernel/btf").join(module))
}

/// The debug data of a file.
#[derive(Debug, Default)]
pub struct Debug {
    sections: BTreeMap<&'static str, (u64, Bytes)>,
    looked_in: Vec<String>,
}

impl Debug {
    /// Looks for the debug data of a file. `path` is its name for the program, `root` the directory that is `/` for the program.
    pub fn of(elf: &Elf, path: &Path, root: &Path) -> Self {
        let mut own = Self::default();
        own.looked_in.push(path.display().to_string());
        let apart = match elf.has_section(".debug_info") {
            true => None,
            false => own.apart(elf, path, root),
        };
        for name in NAMES {
            let found = apart.as_ref().and_then(|apart| content(apart, name));
            if let Some(section) = found.or_else(|| content(elf, name)) {
                own.sections.insert(name, section);
            }
        }
        own
    }

    /// The debug data of a file of this host.
    ///
    /// # Errors
    /// If the file cannot be read, or is no ELF file.
    pub fn of_file(path: &Path) -> std::io::Result<Self> {
        let elf = Elf::new(File::open(path)?)?;
        Ok(Self::of(&elf, path, Path::new("/")))
    }

    /// Whether there are types.
    pub fn has_types(&self) -> bool {
        let is_there = |name| !self.section(name).1.is_empty();
        TYPES.into_iter().any(is_there)
    }

    /// Where it was looked for, in order.
    pub fn looked_in(&self) -> &[String] {
        &self.looked_in
    }

    /// The address and content of a section; nothing if there is none.
    pub fn section(&self, name: &str) -> (u64, &[u8]) {
        let section = self.sections.get(name);
        section.map_or((0, &[]), |(address, bytes)| (*address, bytes))
    }

    /// The file that has the debug data of another.
    fn apart(&mut self, elf: &Elf, path: &Path, root: &Path) -> Option<Elf> {
        let id = elf.build_id();
        let link = link(elf);
        let mut places: Vec<(PathBuf, Option<u32>)> = Vec::new();
        if let Some((first, rest)) = id.split_first() {
            let mut name = format!("{INSTALLED}/.build-id/{first:02x}/");
            for byte in rest {
                let _ = write!(name, "{byte:02x}");
            }
            name.push_str(".debug");
            places.push((name.into(), None));
        }
        if let (Some((name, sum)), Some(directory)) = (link, path.parent()) {
            let below = directory.strip_prefix("/").unwrap_or(directory);
            let installed = Path::new(INSTALLED).join(below);
            for directory in [directory, &directory.join(".debug"), &installed] {
                places.push((directory.join(&name), Some(sum)));
            }
        }
        let host = Path::new("/");
        let roots = match root == host {
            true => vec![root],
            false => vec![root, host],
        };
        for (place, sum) in &places {
            self.looked_in.push(place.display().to_string());
            for root in &roots {
                let file = below(root, place);
                let found = file.and_then(|file| Elf::new(file).ok());
                let is_it = |found: &Elf| match id.is_empty() {
                    true => sum.is_some_and(|sum| checksum(found) == Some(sum)),
                    false => found.build_id() == id,
                };
                if let Some(found) = found.filter(is_it)
                    && found.has_section(".debug_info")
                {
                    return Some(found);
                }
            }
        }
        None
    }
}

fn content(elf: &Elf, name: &'static str) -> Option<(u64, Bytes)> {
    let (address, bytes) = elf.section_bytes(name)?;
    // Of the code only the address counts.
    let bytes = match name {
        ".text" => Bytes::Copied(Vec::new()),
        _ => bytes,
    };
    (name == ".text" || !bytes.is_empty()).then_some((address, bytes))
}

/// Opens a regular file of another root; links of that root stay in it.
fn below(root: &Path, path: &Path) -> Option<File> {
    let directory = File::open(root).ok()?;
    let path = path.strip_prefix("/").ok()?;
    let place = rustix::fs::openat2(
        &directory,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT,
    );
    let place = File::from(place.ok()?);
    place.metadata().ok().filter(|found| found.is_file())?;
    let readable = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, readable, flags, Mode::empty());
    file.ok().map(File::from)
}

/// The name and checksum in `.gnu_debuglink`.
fn link(elf: &Elf) -> Option<(String, u32)> {
    let (_, bytes) = elf.section_of(".gnu_debuglink")?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(bytes.get(..end)?).ok()?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let at = end.checked_add(1)?.checked_next_multiple_of(4)?;
    let sum = bytes.get(at..)?.first_chunk()?;
    Some((name.to_owned(), u32::from_le_bytes(*sum)))
}

/// CRC-32 of a whole file.
fn checksum(elf: &Elf) -> Option<u32> {
    let len = elf.len();
    if len > CHECKED_MAX {
        return None;
    }
    let table: [u32; 256] = std::array::from_fn(|byte| {
        let byte = u32::try_from(byte).unwrap_or(0);
        (0..8).fold(byte, |sum, _| {
            (sum >> 1) ^ if sum & 1 != 0 { 0xedb8_8320 } else { 0 }
        })
    });
    let mut sum = u32::MAX;
    let mut part = vec![0; 1 << 16];
    let mut at = 0_u64;
    while at < len {
        let read = elf.read(at, &mut part);
        if read == 0 {
            return None;
        }
        for byte in part.get(..read)? {
            let low = usize::try_from((sum ^ u32::from(*byte)) & 0xff).unwrap_or(0);
            sum = (sum >> 8) ^ table.get(low)?;
        }
        at = at.saturating_add(read as u64);
    }
    Some(!sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file apart is found by its name and checksum, and not if its content was changed.
    #[test]
    fn links_are_checked() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let run = |program: &str, arguments: &[&str]| {
            let done = std::process::Command::new(program)
                .args(arguments)
                .current_dir(directory.path())
                .status();
            assert!(
                done.is_ok_and(|status| status.success()),
                "{program} {arguments:?}"
            );
        };
        std::fs::write(at("a.c"), "int main(void) { return 0; }").expect("written");
        run(
            "gcc",
            &["-g", "-gz", "-Wl,--build-id=none", "a.c", "-o", "a"],
        );
        let whole = Debug::of_file(&at("a")).expect("an ELF file");
        assert!(whole.has_types());
        run("objcopy", &["--only-keep-debug", "a", "a.debug"]);
        run("objcopy", &["--strip-debug", "a"]);
        assert!(!Debug::of_file(&at("a")).expect("an ELF file").has_types());
        run("objcopy", &["--add-gnu-debuglink=a.debug", "a"]);
        let apart = Debug::of_file(&at("a")).expect("an ELF file");
        assert_eq!(apart.section(".debug_info"), whole.section(".debug_info"));
        assert_eq!(apart.section(".eh_frame"), whole.section(".eh_frame"));
        let mut bytes = std::fs::read(at("a.debug")).expect("there");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::write(at("a.debug"), bytes).expect("written");
        let changed = Debug::of_file(&at("a")).expect("an ELF file");
        assert!(!changed.has_types());
        assert!(
            changed
                .looked_in()
                .iter()
                .any(|place| place.ends_with("/.debug/a.debug"))
        );
    }
}
