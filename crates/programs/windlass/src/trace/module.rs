//! Files that are traced.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use windlass_target::Elf;
use windlass_target::debug::Debug;
use windlass_target::elf::Functions;
use windlass_target::maps::{self, Mapping};
use windlass_types::{Types, fits};

/// The pattern of all files.
const ANY: Option<&str> = Some("*");
/// Bytes of a function that are decoded at most.
const CODE_MAX: u64 = 1 << 20;
/// Execute, of a segment's flags.
const EXECUTE: u32 = 1;

/// A file that a program has mapped.
pub(super) struct Module {
    /// The last part of its path.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// What is opened for it: also of a file that was removed, or is in another root.
    pub(super) file: PathBuf,
    /// How far it was moved, where that is the same for all who run it.
    pub(super) bias: Option<u64>,
    /// It is the program itself.
    pub(super) is_program: bool,
    pub(super) elf: Elf,
    pub(super) functions: Functions,
    debug: Debug,
}

impl Module {
    /// The files of a process that probes name: without a pattern, its program.
    pub(super) fn find(pid: u32, patterns: &[Option<&str>]) -> Result<Vec<Self>, String> {
        let mappings = maps::of(pid).map_err(|error| error.to_string())?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = program.map_err(|error| error.to_string())?;
        let code = mappings.iter().filter(|mapping| mapping.is_executable);
        let mut found: Vec<Self> = Vec::new();
        let mut names = Vec::new();
        for mapping in code {
            let Some(path) = mapping.path() else {
                continue;
            };
            let name = name_of(&path);
            names.push(name.clone());
            let is_program = path == program;
            let is_wanted = |pattern: &Option<&str>| match pattern {
                Some(pattern) => fits(pattern, &name) || Path::new(pattern) == path,
                None => is_program,
            };
            let is_new = !found.iter().any(|module| module.path == path);
            if is_new && patterns.iter().any(is_wanted) {
                match Self::open(pid, mapping, &path, name.clone(), is_program) {
                    Ok(module) => found.push(module),
                    // Of all files, those are meant that can be read.
                    Err(_) if !patterns.iter().any(|own| *own != ANY && is_wanted(own)) => {}
                    Err(why) => return Err(why),
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        for pattern in patterns {
            let is_there = |module: &Self| match pattern {
                Some(pattern) => fits(pattern, &module.name) || Path::new(pattern) == module.path,
                None => module.is_program,
            };
            if !found.iter().any(is_there) {
                let pattern = pattern.unwrap_or("its program");
                let names = names.join(", ");
                return Err(format!("it has not mapped {pattern}; it has {names}"));
            }
        }
        Ok(found)
    }

    /// The files of all processes that probes name.
    pub(super) fn find_everywhere(patterns: &[Option<&str>]) -> Result<Vec<Self>, String> {
        let mut found: Vec<Self> = Vec::new();
        let mut seen = BTreeSet::new();
        let processes = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
        let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for pid in names.filter_map(|name| name.parse::<u32>().ok()) {
            // One that has ended meanwhile has mapped nothing.
            let mappings = maps::of(pid).unwrap_or_default();
            for mapping in mappings.iter().filter(|mapping| mapping.is_executable) {
                let Some(path) = mapping.path() else {
                    continue;
                };
                let name = name_of(&path);
                let is_wanted = |pattern: &Option<&str>| {
                    pattern
                        .is_some_and(|pattern| fits(pattern, &name) || Path::new(pattern) == path)
                };
                if !patterns.iter().any(is_wanted) || !seen.insert((mapping.inode, path.clone())) {
                    continue;
                }
                let opened = Self::open(pid, mapping, &path, name.clone(), false);
                found.extend(opened.ok().map(|module| Self {
                    bias: None,
                    ..module
                }));
            }
        }
        match (
            patterns.contains(&None) || patterns.contains(&ANY),
            found.is_empty(),
        ) {
            (true, _) => Err("with --all, a probe names its file: MODULE:FUNCTION".to_owned()),
            (false, true) if !patterns.is_empty() => {
                Err("no process has mapped such a file".to_owned())
            }
            _ => Ok(found),
        }
    }

    /// What to say of a file that is not what is on the disk any more.
    pub(super) fn replaced(&self) -> Option<String> {
        let is_replaced = self.path.to_string_lossy().ends_with(" (deleted)");
        is_replaced.then(|| {
            format!(
                "{}: the file was removed or replaced; the probes are on what the process runs",
                self.name
            )
        })
    }

    fn open(
        pid: u32,
        mapping: &Mapping,
        path: &Path,
        name: String,
        is_program: bool,
    ) -> Result<Self, String> {
        let (start, end) = (mapping.start, mapping.end);
        let file = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        let why = |error: std::io::Error| format!("{}: {error}", path.display());
        let elf = Elf::new(File::open(&file).map_err(why)?).map_err(why)?;
        let debug = Debug::of(&elf, path, Path::new(&format!("/proc/{pid}/root")));
        let bias = elf.bias(start, mapping.offset);
        let bias = bias.ok_or_else(|| format!("{} is not as it is mapped", path.display()))?;
        Ok(Self {
            name,
            path: path.to_owned(),
            file,
            bias: Some(bias),
            is_program,
            functions: elf.functions(),
            elf,
            debug,
        })
    }

    /// The types that its debug data has.
    pub(super) fn types(&self) -> Types<'_> {
        self.debug.types()
    }

    /// Where debug data was looked for, if there is none.
    pub(super) fn without_debug(&self) -> Option<String> {
        let places = self.debug.looked_in().join(", ");
        (!self.debug.has_types()).then(|| format!("{}: no debug data in {places}", self.name))
    }

    /// Where an address of code lies in the file.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&windlass_target::elf::Segment| {
            let end = segment.address.saturating_add(segment.file_len);
            segment.kind == 1
                && segment.flags & EXECUTE != 0
                && (segment.address..end).contains(&address)
        };
        let segment = self.elf.segments().iter().find(holds)?;
        (address - segment.address).checked_add(segment.offset)
    }

    /// Where an address of data lies in the file.
    pub(super) fn offset_of_data(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&windlass_target::elf::Segment| {
            let end = segment.address.saturating_add(segment.file_len);
            segment.kind == 1 && (segment.address..end).contains(&address)
        };
        let segment = self.elf.segments().iter().find(holds)?;
        (address - segment.address).checked_add(segment.offset)
    }

    pub(super) fn code(&self, range: std::ops::Range<u64>) -> Vec<u8> {
        let len = range.end.saturating_sub(range.start).min(CODE_MAX);
        let offset = self.offset(range.start);
        offset.map_or(Vec::new(), |offset| self.elf.bytes(offset, len))
    }
}

/// The last part of a path.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(" (deleted)").to_owned()
}
