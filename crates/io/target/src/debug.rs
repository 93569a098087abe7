//! Debug data of a file: in the file itself, or apart from it.
//!
//! # Model
//! A file without `.debug_info` may have it in another: by its build id under `/usr/lib/debug/.build-id`, or by the name in `.gnu_debuglink`.
//! Each is looked for under the root of the program first, then under that of this host. A file counts if its build id is the same; one
//! without a build id, if the checksum of the link is its own.
//!
//! That file may lean on others: on one that the programs of a package share (dwz), whose build id it names, and on a file for each unit
//! (`.dwo`) or a package of them beside it (`.dwp`), whose units have numbers that it names.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use windlass_sys::mapped::Mapped;
use windlass_types::{Part, Section, TYPE_FILE, Types};

use crate::elf::{Bytes, Elf, SECTION_MAX};
use cache::Cache;
use parts::Places;

mod cache;
mod parts;

/// Where debug data is installed.
const INSTALLED: &str = "/usr/lib/debug";
/// Bytes of debug data from which its names are kept.
const KEPT_MIN: usize = if cfg!(test) { 1 } else { 4 << 20 };
/// Split units from which names are kept.
const SPLITS_KEPT_MIN: usize = 64;
/// Bytes of a file whose checksum is made at most.
const CHECKED_MAX: u64 = 2 << 30;

/// The sections that describe types, functions and frames.
const NAMES: [&str; 37] = [
    ".ctf",
    ".dynstr",
    ".dynsym",
    ".symtab",
    ".strtab",
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
    // Of units that lie apart.
    ".debug_abbrev.dwo",
    ".debug_cu_index",
    ".debug_info.dwo",
    ".debug_line.dwo",
    ".debug_loc.dwo",
    ".debug_loclists.dwo",
    ".debug_macinfo.dwo",
    ".debug_macro.dwo",
    ".debug_rnglists.dwo",
    ".debug_str.dwo",
    ".debug_str_offsets.dwo",
    ".debug_tu_index",
    ".debug_types.dwo",
];

/// The sections that have types, each kind in its own format.
const TYPES: [&str; 4] = [".debug_info", ".BTF", ".ctf", TYPE_FILE];

/// The kernel's own types, as BTF, or those of a module of it.
///
/// # Errors
/// If the kernel does not offer them.
pub fn of_kernel(module: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(Path::new("/sys/kernel/btf").join(module))
}

/// Why a type file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TypeFileError {
    /// A program cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// Nothing would find the file.
    #[error("{0} has no build id")]
    NoBuildId(PathBuf),
    /// Addresses of the one mean nothing in the other.
    #[error("{0} and {1} have different build ids")]
    Different(PathBuf, PathBuf),
    /// There is nothing to write.
    #[error("{0} has no types: compile it with -C debuginfo=full")]
    NoTypes(PathBuf),
}

/// The type file of an installed program, which was stripped: types and variables of what it was stripped from. It belongs beside the
/// installed one, as `PROGRAM.types`.
///
/// # Errors
/// See [`TypeFileError`]. Stripping keeps the build id; another build has another one.
pub fn type_file(full: &Path, installed: &Path) -> Result<Vec<u8>, TypeFileError> {
    let open = |path: &Path| {
        let elf = File::open(path).and_then(Elf::new);
        elf.map_err(|error| TypeFileError::Unreadable(path.to_owned(), error))
    };
    let (from, to) = (open(full)?, open(installed)?);
    let id = to.build_id();
    if id.is_empty() {
        return Err(TypeFileError::NoBuildId(installed.into()));
    }
    if id != from.build_id() {
        return Err(TypeFileError::Different(full.into(), installed.into()));
    }
    let debug = Debug::of(&from, full, Path::new("/"));
    let types = debug.types();
    let has_some = types.search("*", &|kind| kind.is_type());
    if has_some.is_ok_and(|found| found.is_empty()) {
        return Err(TypeFileError::NoTypes(full.into()));
    }
    types
        .to_file(&id)
        .map_err(|_| TypeFileError::NoTypes(full.into()))
}

type Sections = BTreeMap<&'static str, (u64, Bytes)>;

/// The debug data of a file.
#[derive(Debug, Default)]
pub struct Debug {
    sections: Sections,
    /// What the programs of its package share (dwz).
    shared: Sections,
    /// Units in files of their own, by their numbers.
    splits: HashMap<u64, Sections>,
    build_id: Vec<u8>,
    /// Nobody but the system and this user can change its files: a build id is easily forged.
    is_safe: bool,
    cache: Cache,
    kept: OnceCell<Option<Mapped>>,
    looked_in: Vec<String>,
}

impl Debug {
    /// Looks for the debug data of a file. `path` is its name for the program, `root` the directory that is `/` for the program.
    pub fn of(elf: &Elf, path: &Path, root: &Path) -> Self {
        let mut own = Self {
            build_id: elf.build_id(),
            cache: Cache::of_user(),
            ..Self::default()
        };
        own.looked_in.push(path.display().to_string());
        let apart = match elf.has_section(".debug_info") {
            true => None,
            false => own.apart(elf, path, root),
        };
        for name in NAMES {
            let found = apart.as_ref().and_then(|(apart, _)| content(apart, name));
            if let Some(section) = found.or_else(|| content(elf, name)) {
                own.sections.insert(name, section);
            }
        }
        let is_safe = |elf: &Elf| elf.is_safe();
        own.is_safe = is_safe(elf) && apart.as_ref().is_none_or(|(apart, _)| is_safe(apart));
        let places = Places::of(root);
        let types = parts::type_file(&elf.build_id(), path, &places, &mut own.looked_in);
        own.sections
            .extend(types.map(|bytes| (TYPE_FILE, (0, bytes))));
        let (elf, path) = match &apart {
            Some((apart, place)) => (apart, place.as_path()),
            None => (elf, path),
        };
        own.shared = parts::shared(elf, path, &places, &mut own.looked_in).unwrap_or_default();
        own.split(path, &places);
        own
    }

    /// Adds the units that lie in files of their own: those of the package beside the file, else each from where the compiler put it.
    fn split(&mut self, path: &Path, places: &Places<'_>) {
        let skeletons = windlass_types::skeletons(&|part, name| self.part(part, name));
        if skeletons.is_empty() {
            return;
        }
        if let Some(package) = parts::package(path, places, &mut self.looked_in) {
            for (name, section) in sections(&package) {
                self.sections.entry(name).or_insert(section);
            }
            return;
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        for skeleton in skeletons {
            if let Some(elf) = parts::unit(&skeleton, directory, places, &mut self.looked_in) {
                self.splits.insert(skeleton.id, sections(&elf));
            }
        }
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

    /// The address and content of a section of a part of the debug data.
    pub fn part(&self, part: Part, name: &str) -> Section<'_> {
        let sections = match part {
            Part::Own => Some(&self.sections),
            Part::Shared => Some(&self.shared),
            Part::Split(id) => self.splits.get(&id),
        };
        let found = sections.and_then(|sections| sections.get(name));
        found.map_or(Section::default(), |(address, bytes)| Section {
            address: *address,
            bytes,
        })
    }

    /// The types and functions that it describes. Of large debug data the names are kept for the next time.
    pub fn types(&self) -> Types<'_> {
        let types = Types::of_parts(&|part, name| self.part(part, name));
        let Some((name, key)) = self.kept_as() else {
            return types;
        };
        let kept = self.kept.get_or_init(|| self.cache.load(&name));
        match kept {
            Some(kept) if types.take_index(kept, &key) => types,
            _ => types.keeping(key, Box::new(move |bytes| self.cache.keep(&name, bytes))),
        }
    }

    /// What was wrong with the names that are kept, if anything was.
    pub fn note(&self) -> Option<String> {
        self.cache.note()
    }

    /// Under which name its index is kept, and a key that another file of the same build id does not have, as one that went through dwz.
    fn kept_as(&self) -> Option<(String, Vec<u8>)> {
        let info = |sections: &Sections| {
            sections
                .get(".debug_info")
                .map_or(0, |(_, bytes)| bytes.len())
        };
        let is_large = info(&self.sections).saturating_add(info(&self.shared)) >= KEPT_MIN;
        let parts = self.splits.values().chain([&self.shared]);
        let mut parts = parts.flat_map(Sections::values);
        let is_safe = self.is_safe
            && !parts.any(|(_, bytes)| matches!(bytes, Bytes::Copied(copy) if !copy.is_empty()));
        if !is_safe
            || self.build_id.is_empty()
            || !(is_large || self.splits.len() > SPLITS_KEPT_MIN)
        {
            return None;
        }
        let all = [&self.sections, &self.shared]
            .into_iter()
            .chain(self.splits.values());
        let lengths = all
            .flat_map(Sections::values)
            .map(|(_, bytes)| bytes.len() as u64);
        let (count, sum) = lengths.fold((0_u64, 0_u64), |(count, sum), len| {
            (
                count.wrapping_add(1),
                sum.wrapping_mul(31).wrapping_add(len),
            )
        });
        let mut key = self.build_id.get(..self.build_id.len().min(32))?.to_vec();
        key.extend(env!("CARGO_PKG_VERSION").bytes());
        key.extend(count.to_le_bytes());
        // Split units come in no order.
        let sum = if self.splits.is_empty() { sum } else { 0 };
        key.extend(sum.to_le_bytes());
        let name: String = self
            .build_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Some((format!("{name}.v1"), key))
    }

    /// The file that has the debug data of another, and where it is.
    fn apart(&mut self, elf: &Elf, path: &Path, root: &Path) -> Option<(Elf, PathBuf)> {
        let id = elf.build_id();
        let link = link(elf);
        let mut places: Vec<(PathBuf, Option<u32>)> = Vec::new();
        places.extend(parts::by_id(&id).map(|place| (place, None)));
        if let (Some((name, sum)), Some(directory)) = (link, path.parent()) {
            let below = directory.strip_prefix("/").unwrap_or(directory);
            let installed = Path::new(INSTALLED).join(below);
            for directory in [directory, &directory.join(".debug"), &installed] {
                places.push((directory.join(&name), Some(sum)));
            }
        }
        let is_it = |found: &Elf, sum: Option<u32>| match id.is_empty() {
            true => sum.is_some_and(|sum| checksum(found) == Some(sum)),
            false => found.build_id() == id,
        };
        let roots = Places::of(root);
        places.into_iter().find_map(|(place, sum)| {
            let is_it = |found: &Elf| is_it(found, sum) && found.has_section(".debug_info");
            let found = roots.find(&place, &mut self.looked_in, &is_it)?;
            Some((found, place))
        })
    }
}

/// Inflates what zlib made.
fn inflate(data: &[u8], uncompressed_size: u64) -> Option<Vec<u8>> {
    use object::read::{CompressedData, CompressionFormat};
    let format = CompressionFormat::Zlib;
    let data = CompressedData {
        format,
        data,
        uncompressed_size,
    };
    let is_bounded = uncompressed_size <= SECTION_MAX;
    let whole = is_bounded.then(|| data.decompress().ok())??;
    Some(whole.into_owned())
}

/// The sections of a part that lies in a file of its own.
fn sections(elf: &Elf) -> Sections {
    let all = NAMES.into_iter().filter(|name| name.starts_with(".debug_"));
    all.filter_map(|name| Some((name, content(elf, name)?)))
        .collect()
}

fn content(elf: &Elf, name: &'static str) -> Option<(u64, Bytes)> {
    let (address, bytes) = elf.joined(name)?;
    // Of the code only the address counts.
    let bytes = match name {
        ".text" => Bytes::Copied(Vec::new()),
        ".ctf" => {
            let whole = windlass_types::plain_ctf(&bytes, &inflate)?.into_owned();
            Bytes::Copied(whole)
        }
        _ => bytes,
    };
    (name == ".text" || !bytes.is_empty()).then_some((address, bytes))
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

    /// Names are taken from what was kept; a kept file that was cut, or is of another file, is not taken, and is made again.
    #[test]
    fn names_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("a");
        let build = |source: &str| {
            std::fs::write(directory.path().join("a.c"), source).expect("written");
            let done = std::process::Command::new("gcc")
                .args(["-g", "-Wl,--build-id=0x1234", "a.c", "-o", "a"])
                .current_dir(directory.path())
                .status();
            assert!(done.is_ok_and(|status| status.success()));
        };
        let cache = directory.path().join("cache");
        let open = || {
            let mut debug = Debug::of_file(&program).expect("an ELF file");
            debug.cache = Cache::at(Some(cache.clone()));
            debug
        };
        // Whether it was there, and what it says.
        let ask = |name: &str| {
            let debug = open();
            let types = debug.types();
            let found = types.named(windlass_types::Kind::Struct, name);
            let found = found.ok().and_then(|ty| types.size(ty));
            let key = debug.kept_as().expect("it is kept").1;
            let kept = debug.kept.get().and_then(Option::as_ref);
            let is_taken = kept.is_some_and(|kept| Types::default().take_index(kept, &key));
            (is_taken, found)
        };
        build("struct one { long a[3]; } x; int main(void) { return 0; }");
        assert_eq!(ask("one"), (false, Some(24)));
        assert_eq!(ask("one"), (true, Some(24)));
        let file = cache.join("1234.v1");
        let len = std::fs::metadata(&file).expect("kept").len();
        let cut = std::fs::OpenOptions::new().write(true).open(&file);
        cut.and_then(|file| file.set_len(len / 2)).expect("cut");
        assert_eq!(ask("one"), (false, Some(24)));
        assert_eq!(ask("one"), (true, Some(24)));
        build("struct other_one { int a[2], b; } y; int main(void) { return 0; }");
        assert_eq!(ask("one"), (false, None));
        assert_eq!(ask("other_one"), (true, Some(12)));
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&program, everybody).expect("its owner");
        assert_eq!(open().kept_as(), None);
    }

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
