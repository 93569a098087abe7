//! The files that a program has mapped, and the functions in them.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::debug::Debug;
use crate::demangle;
use crate::elf::{self, Elf, Functions, Tables};
use crate::maps::Mapping;
use crate::memory::Memory;

/// Where separate symbols lie, by build id.
const DEBUG: &str = "/usr/lib/debug/.build-id";
/// Bytes at the start of a mapped file in which its build id is looked for.
const HEAD: usize = 4096;

/// A function, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, as its language writes it.
    pub function: Option<String>,
    /// How far into the function; without one, into the file's addresses.
    pub offset: u64,
    /// The last part of its file's path.
    pub module: String,
}

impl std::fmt::Display for Symbol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function}+{:#x}", self.offset),
            None => write!(f, "{}+{:#x}", self.module, self.offset),
        }
    }
}

/// Whose files they are.
#[derive(Debug, Clone, Copy)]
enum Owner<'a> {
    Process(u32),
    /// A program that is no more: a file counts if its build id is that in memory.
    Memory(&'a dyn MemoryDebug),
}

/// [`Memory`] that can stand in a derived `Debug`.
trait MemoryDebug: Memory + std::fmt::Debug {}
impl<T: Memory + std::fmt::Debug> MemoryDebug for T {}

/// The files that a program has mapped to execute them.
#[derive(Debug, Default)]
pub struct Modules {
    modules: Vec<Module>,
    /// Start and end of each executable mapping, in order, with the number of its module.
    ranges: Vec<(u64, u64, usize)>,
}

/// A file that a program has mapped to execute it.
#[derive(Debug)]
pub struct Module {
    name: String,
    /// Its name for the program.
    path: PathBuf,
    /// The directory that is `/` for the program.
    root: PathBuf,
    /// How far it was moved from the addresses in it.
    bias: u64,
    elf: Option<Elf>,
    functions: OnceCell<Functions>,
    tables: OnceCell<Tables>,
    debug: OnceCell<Debug>,
}

impl Modules {
    /// The files of a live process.
    pub fn of_process(pid: u32, mappings: &[Mapping]) -> Self {
        Self::of(Owner::Process(pid), mappings)
    }

    /// The files of a core, as far as this host has them with the same build ids.
    pub fn of_core<M: Memory + std::fmt::Debug>(core: &M, mappings: &[Mapping]) -> Self {
        Self::of(Owner::Memory(core), mappings)
    }

    fn of(owner: Owner<'_>, mappings: &[Mapping]) -> Self {
        let mut own = Self::default();
        let mut last: Option<&Mapping> = None;
        let code = mappings.iter().filter(|mapping| mapping.is_executable);
        for mapping in code {
            // A library whose code has several mappings is one.
            let same = last.is_some_and(|last| {
                (last.inode, &last.name) == (mapping.inode, &mapping.name)
                    && mapping.start.wrapping_sub(last.start)
                        == mapping.offset.wrapping_sub(last.offset)
            });
            if !same {
                own.modules.push(Module::of(owner, mapping, mappings));
            }
            last = Some(mapping);
            if let Some(number) = own.modules.len().checked_sub(1) {
                own.ranges.push((mapping.start, mapping.end, number));
            }
        }
        own
    }

    /// The files, in the order of their addresses.
    pub fn list(&self) -> &[Module] {
        &self.modules
    }

    /// Copies bytes that the files have at an address of the program: of what is only read, and a core may lack. Returns how many.
    pub fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut read = |module: &Module| {
            let elf = module.elf.as_ref()?;
            let inner = at.wrapping_sub(module.bias);
            let segment = elf.segments().iter().find(|segment| {
                let end = segment.address.saturating_add(segment.file_len);
                let is_constant = segment.kind == elf::PT_LOAD && segment.flags & elf::PF_W == 0;
                is_constant && (segment.address..end).contains(&inner)
            })?;
            let skipped = inner.checked_sub(segment.address)?;
            let there = usize::try_from(segment.file_len.checked_sub(skipped)?).ok()?;
            let len = there.min(into.len());
            Some(elf.read(segment.offset.checked_add(skipped)?, into.get_mut(..len)?))
        };
        self.modules.iter().find_map(&mut read).unwrap_or(0)
    }

    /// The file whose code an address is in, and the address in that file.
    pub fn at(&self, address: u64) -> Option<(&Module, u64)> {
        let after = self.ranges.partition_point(|(start, ..)| *start <= address);
        let (_, end, number) = self.ranges.get(after.checked_sub(1)?)?;
        let module = self.modules.get(*number)?;
        (address < *end).then(|| (module, address.wrapping_sub(module.bias)))
    }

    pub(crate) fn tables(&self, address: u64) -> Option<(&Tables, u64)> {
        let (module, inner) = self.at(address)?;
        let elf = module.elf.as_ref()?;
        Some((module.tables.get_or_init(|| elf.tables()), inner))
    }

    /// The function that an address is in.
    pub fn symbol(&self, address: u64) -> Option<Symbol> {
        let (module, inner) = self.at(address)?;
        let found = module.functions().find(inner);
        Some(Symbol {
            function: found.map(|(name, _)| demangle::demangle(name)),
            offset: found.map_or(inner, |(_, offset)| offset),
            module: module.name.clone(),
        })
    }

    /// The address of a symbol that a file offers to others.
    pub fn exported(&self, name: &str) -> Option<u64> {
        self.modules.iter().find_map(|module| {
            let found = module.elf.as_ref()?.exported(name)?;
            Some(found.wrapping_add(module.bias))
        })
    }

    /// The name of an address: its function and how far it is into that, else its file, else the number.
    pub fn name(&self, address: u64) -> String {
        match self.symbol(address) {
            Some(symbol) => symbol.to_string(),
            None => format!("{address:#x}"),
        }
    }
}

impl Module {
    fn of(owner: Owner<'_>, mapping: &Mapping, mappings: &[Mapping]) -> Self {
        let elf = open(owner, mapping, mappings);
        let bias = elf
            .as_ref()
            .and_then(|elf| elf.bias(mapping.start, mapping.offset));
        let path = mapping.name.trim_end_matches(" (deleted)");
        let name = path.rsplit('/').next().unwrap_or_default();
        Self {
            name: demangle::demangle(name),
            path: path.into(),
            root: match owner {
                Owner::Process(pid) => format!("/proc/{pid}/root").into(),
                Owner::Memory(_) => "/".into(),
            },
            bias: bias.unwrap_or(mapping.start),
            elf: elf.filter(|_| bias.is_some()),
            functions: OnceCell::new(),
            tables: OnceCell::new(),
            debug: OnceCell::new(),
        }
    }

    /// The last part of its path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path, as the program named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How far it was moved from the addresses in it.
    pub fn bias(&self) -> u64 {
        self.bias
    }

    /// The file; `None` if it could not be opened, or is another than the mapped one.
    pub fn elf(&self) -> Option<&Elf> {
        self.elf.as_ref()
    }

    /// Its debug data; read at first use.
    pub fn debug(&self) -> &Debug {
        self.debug.get_or_init(|| match &self.elf {
            Some(elf) => Debug::of(elf, &self.path, &self.root),
            None => Debug::default(),
        })
    }

    /// Its functions.
    pub fn functions(&self) -> &Functions {
        self.functions.get_or_init(|| {
            let Some(elf) = &self.elf else {
                return Functions::default();
            };
            let separate = || separate(&elf.build_id()).map(|debug| debug.functions());
            let found = if elf.has_symbols() { None } else { separate() };
            found
                .filter(|functions| !functions.is_empty())
                .unwrap_or_else(|| elf.functions())
        })
    }
}

/// Opens a regular file. What it is, is known before: a device's driver may act on being opened.
fn regular(path: &Path) -> Option<File> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let place = File::from(place);
    place.metadata().ok().filter(|found| found.is_file())?;
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).ok()
}

fn open(owner: Owner<'_>, mapping: &Mapping, mappings: &[Mapping]) -> Option<Elf> {
    let path = mapping.path()?;
    match owner {
        Owner::Process(pid) => {
            let (start, end) = (mapping.start, mapping.end);
            let mapped = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
            let file = regular(Path::new(&mapped)).or_else(|| {
                let inner = path.strip_prefix("/").ok()?;
                let file = regular(&PathBuf::from(format!("/proc/{pid}/root")).join(inner))?;
                (file.metadata().ok()?.ino() == mapping.inode).then_some(file)
            })?;
            Elf::new(file).ok()
        }
        Owner::Memory(memory) => {
            let first = mappings
                .iter()
                .find(|other| other.name == mapping.name && other.offset == 0)?;
            let id = build_id_in(memory, first.start)?;
            let elf = Elf::new(regular(&path)?).ok()?;
            (elf.build_id() == id).then_some(elf)
        }
    }
}

/// The build id of a file whose beginning is mapped here.
fn build_id_in(memory: &(impl Memory + ?Sized), start: u64) -> Option<Vec<u8>> {
    let mut head = vec![0; HEAD];
    let len = memory.read(start, &mut head);
    head.truncate(len);
    let at = usize::try_from(elf::quad(&head, 32)).ok()?;
    let headers = head
        .get(at..)?
        .chunks_exact(56)
        .take(usize::from(elf::half(&head, 56)));
    headers
        .filter(|header| elf::long(header, 0) == elf::PT_NOTE)
        .find_map(|header| {
            let at = usize::try_from(elf::quad(header, 8)).ok()?;
            let len = usize::try_from(elf::quad(header, 32)).ok()?;
            elf::build_id(head.get(at..at.checked_add(len)?)?)
        })
}

/// The file that has the symbols of a file of this build id.
fn separate(id: &[u8]) -> Option<Elf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = regular(Path::new(&format!("{DEBUG}/{first:02x}/{rest}.debug")))?;
    let elf = Elf::new(file).ok()?;
    (elf.build_id() == id).then_some(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but a regular file is opened: not a device, a directory, or a pipe that nobody writes to.
    #[test]
    fn only_files_are_opened() {
        let place =
            std::env::temp_dir().join(format!("windlass-target-pipe-{}", std::process::id()));
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &place,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        );
        made.expect("a pipe");
        let pipe = regular(&place);
        std::fs::remove_file(&place).expect("it is there");
        assert!(pipe.is_none());
        assert!(regular(Path::new("/dev/null")).is_none() && regular(Path::new("/")).is_none());
        let own = std::env::current_exe().expect("a path");
        assert!(
            regular(&own).is_some_and(|file| file.metadata().is_ok_and(|found| found.len() > 0))
        );
    }
}
