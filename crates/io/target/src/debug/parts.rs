//! Files that debug data leans on, and where they are looked for.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use windlass_types::Skeleton;

use super::{INSTALLED, Sections, sections};
use crate::elf::{Bytes, Elf};

/// Names of places that are kept for the error message.
const LOOKED_MAX: usize = 64;

/// The roots under which a file is looked for: that of the program, then that of this host.
pub(super) struct Places<'p>(Vec<&'p Path>);

impl<'p> Places<'p> {
    pub(super) fn of(root: &'p Path) -> Self {
        let host = Path::new("/");
        match root == host {
            true => Self(vec![root]),
            false => Self(vec![root, host]),
        }
    }

    /// The first file of a name that is the one that is meant.
    pub(super) fn find(
        &self,
        place: &Path,
        looked_in: &mut Vec<String>,
        is_it: &dyn Fn(&Elf) -> bool,
    ) -> Option<Elf> {
        if looked_in.len() < LOOKED_MAX {
            looked_in.push(place.display().to_string());
        }
        self.0.iter().find_map(|root| {
            let found = Elf::new(below(root, place)?).ok()?;
            is_it(&found).then_some(found)
        })
    }
}

/// windlass's own type file of a program: beside it, or installed by build id.
pub(super) fn type_file(
    id: &[u8],
    path: &Path,
    places: &Places<'_>,
    looked_in: &mut Vec<String>,
) -> Option<Bytes> {
    let mut beside = OsString::from(path);
    beside.push(".types");
    let installed = by_id(id)?.with_extension("types");
    [PathBuf::from(beside), installed].iter().find_map(|place| {
        looked_in.push(place.display().to_string());
        places.0.iter().find_map(|root| {
            let bytes = Bytes::of(&below(root, place)?)?;
            (windlass_types::build_id(&bytes) == Some(id)).then_some(bytes)
        })
    })
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

/// Where the debug data of a build id is installed.
pub(super) fn by_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut name = format!("{INSTALLED}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(name, "{byte:02x}");
    }
    name.push_str(".debug");
    Some(name.into())
}

/// The name and build id of the file that the programs of a package share: in `.gnu_debugaltlink`, since DWARF 5 in `.debug_sup`.
fn link(elf: &Elf) -> Option<(PathBuf, Vec<u8>)> {
    let named = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let rest = bytes.get(end.checked_add(1)?..)?.to_vec();
        (!name.is_empty()).then(|| (PathBuf::from(name), rest))
    };
    let older = elf.section_of(".gnu_debugaltlink");
    if let Some(found) = older.and_then(|(_, bytes)| named(&bytes)) {
        return Some(found);
    }
    // A version of two bytes, and whether this is the shared file itself; before the checksum its length.
    let (_, bytes) = elf.section_of(".debug_sup")?;
    let (name, sum) = named(bytes.strip_prefix(&[5, 0, 0])?)?;
    let (len, sum) = sum.split_first()?;
    Some((name, sum.get(..usize::from(*len))?.to_vec()))
}

/// What the programs of a package share.
pub(super) fn shared(
    elf: &Elf,
    path: &Path,
    places: &Places<'_>,
    looked_in: &mut Vec<String>,
) -> Option<Sections> {
    let (name, id) = link(elf)?;
    let is_it = |found: &Elf| {
        let other = found.build_id();
        let sum = found.section_of(".debug_sup");
        let is_same = || sum.is_some_and(|(_, bytes)| !id.is_empty() && bytes.ends_with(&id));
        (!other.is_empty() && other == id) || is_same()
    };
    let beside = path.parent().unwrap_or(Path::new("/")).join(&name);
    let installed = name.file_name();
    let installed = installed.map(|name| Path::new(INSTALLED).join(".dwz").join(name));
    let all = [Some(beside), by_id(&id), installed];
    let found = all
        .into_iter()
        .flatten()
        .find_map(|place| places.find(&place, looked_in, &is_it))?;
    Some(sections(&found))
}

/// The package of the units of a file.
pub(super) fn package(
    path: &Path,
    places: &Places<'_>,
    looked_in: &mut Vec<String>,
) -> Option<Elf> {
    let mut name = OsString::from(path);
    name.push(".dwp");
    let is_it = |found: &Elf| found.has_section(".debug_cu_index");
    let stem = path.with_extension("dwp");
    let all = [PathBuf::from(name), stem];
    all.iter()
        .find_map(|place| places.find(place, looked_in, &is_it))
}

/// The file of a unit: where the compiler put it, else beside the program.
pub(super) fn unit(
    skeleton: &Skeleton,
    beside: &Path,
    places: &Places<'_>,
    looked_in: &mut Vec<String>,
) -> Option<Elf> {
    let name = Path::new(&skeleton.name);
    let made = Path::new(&skeleton.directory).join(name);
    let moved = beside.join(name.file_name()?);
    let is_it = |found: &Elf| found.has_section(".debug_info.dwo");
    [made, moved]
        .iter()
        .find_map(|place| places.find(place, looked_in, &is_it))
}
