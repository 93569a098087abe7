//! Core files: the memory, mapped files and registers of a program that has ended, or was copied (gcore).

use std::fs::File;
use std::io;

use crate::elf::{self, Elf, PT_LOAD, PT_NOTE, Segment, quad};
use crate::maps::{MAPPINGS_MAX, Mapping};
use crate::memory::Memory;
use crate::threads::{REGISTERS_AT, Registers, THREADS_MAX};

const ET_CORE: u16 = 4;
const NT_PRSTATUS: u32 = 1;
const NT_FILE: u32 = 0x4649_4c45;
/// Where the id of a thread stands in `struct elf_prstatus`.
const PID_AT: usize = 32;
/// Bytes of notes that are read at most.
const NOTES_MAX: u64 = 64 << 20;

/// A core file.
#[derive(Debug)]
pub struct Core {
    elf: Elf,
    /// What is loaded, in the order of addresses.
    loads: Vec<Segment>,
    threads: Vec<(u32, Registers)>,
    files: Vec<Mapping>,
}

impl Core {
    /// Reads the notes of a core file.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn open(file: File) -> io::Result<Self> {
        let elf = Elf::new(file)?;
        if elf.kind != ET_CORE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut loads: Vec<_> = elf.segments().to_vec();
        loads.retain(|segment| segment.kind == PT_LOAD && segment.memory_len > 0);
        loads.sort_by_key(|segment| segment.address);
        let mut core = Self {
            elf,
            loads,
            threads: Vec::new(),
            files: Vec::new(),
        };
        let notes = core
            .elf
            .segments()
            .iter()
            .filter(|segment| segment.kind == PT_NOTE);
        let notes: Vec<_> = notes
            .map(|segment| {
                core.elf
                    .bytes(segment.offset, segment.file_len.min(NOTES_MAX))
            })
            .collect();
        for (_, kind, content) in notes.iter().flat_map(|notes| elf::notes(notes)) {
            match kind {
                NT_PRSTATUS if core.threads.len() < THREADS_MAX => {
                    let registers =
                        Registers::parse(content.get(REGISTERS_AT..).unwrap_or_default());
                    core.threads.push((elf::long(content, PID_AT), registers));
                }
                NT_FILE => core.files.extend(files(content)),
                _ => {}
            }
        }
        core.files.sort_by_key(|mapping| mapping.start);
        Ok(core)
    }

    /// Its threads and their registers; the first is the one that ended it.
    pub fn threads(&self) -> &[(u32, Registers)] {
        &self.threads
    }

    /// What was mapped, as far as the core lists it. A mapping of a file of which the core has no bytes counts as executable: most are.
    pub fn mappings(&self) -> Vec<Mapping> {
        let load = |segment: &Segment| Mapping {
            start: segment.address,
            end: segment.address.saturating_add(segment.memory_len),
            is_readable: true,
            is_writable: segment.flags & 2 != 0,
            is_executable: segment.flags & 1 != 0,
            ..self.file_at(segment.address).cloned().unwrap_or_default()
        };
        let mut all: Vec<_> = self.loads.iter().take(MAPPINGS_MAX).map(load).collect();
        let is_listed = |file: &&Mapping| {
            let after = self.loads.partition_point(|load| load.address < file.end);
            let before = after
                .checked_sub(1)
                .and_then(|before| self.loads.get(before));
            before.is_some_and(|load| load.address.saturating_add(load.memory_len) > file.start)
        };
        let others = self.files.iter().filter(|file| !is_listed(file));
        all.extend(others.map(|file| Mapping {
            is_executable: true,
            ..file.clone()
        }));
        all.retain(|mapping| mapping.start < mapping.end);
        all.sort_by_key(|mapping| mapping.start);
        all
    }

    fn file_at(&self, address: u64) -> Option<&Mapping> {
        let after = self.files.partition_point(|file| file.start <= address);
        let file = self.files.get(after.checked_sub(1)?)?;
        file.contains(address).then_some(file)
    }
}

/// The mappings of files that a note lists.
fn files(note: &[u8]) -> Vec<Mapping> {
    const HEAD: usize = 16;
    const ENTRY: usize = 24;
    let count = usize::try_from(quad(note, 0))
        .unwrap_or(usize::MAX)
        .min(MAPPINGS_MAX);
    let page = quad(note, 8);
    let entries = note.get(HEAD..).unwrap_or_default();
    let names_at = count.saturating_mul(ENTRY);
    let names = entries.get(names_at..).unwrap_or_default();
    let names = names.split(|byte| *byte == 0);
    let all = entries.chunks_exact(ENTRY).take(count).zip(names);
    let mapping = |(entry, name): (&[u8], &[u8])| Mapping {
        start: quad(entry, 0),
        end: quad(entry, 8),
        offset: quad(entry, 16).saturating_mul(page),
        name: String::from_utf8_lossy(name).into_owned(),
        ..Mapping::default()
    };
    all.map(mapping)
        .filter(|mapping| mapping.start < mapping.end)
        .collect()
}

impl Memory for Core {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut done = 0_usize;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let Some(from) = at.checked_add(done as u64) else {
                break;
            };
            let after = self.loads.partition_point(|load| load.address <= from);
            let Some(load) = after
                .checked_sub(1)
                .and_then(|before| self.loads.get(before))
            else {
                break;
            };
            let inner = from.saturating_sub(load.address);
            // What a core leaves out of a segment is not known.
            let there = load.file_len.min(load.memory_len).saturating_sub(inner);
            let len = rest.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            let Some(rest) = rest.get_mut(..len).filter(|rest| !rest.is_empty()) else {
                break;
            };
            match self.elf.read(load.offset.saturating_add(inner), rest) {
                0 => break,
                more => done = done.saturating_add(more),
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note of files that lies about its counts gives what it has.
    #[test]
    fn files_are_bounded() {
        let mut note = Vec::new();
        for word in [1_u64, 4096, 0x1000, 0x3000, 2] {
            note.extend_from_slice(&word.to_le_bytes());
        }
        note.extend_from_slice(b"/bin/x\0");
        let all = files(&note);
        assert_eq!(all.len(), 1);
        let file = all.first().expect("one");
        assert_eq!(
            (file.start, file.offset, file.name.as_str()),
            (0x1000, 8192, "/bin/x")
        );
        for count in [u64::MAX, 1 << 60, 2, 1000] {
            let mut lying = note.clone();
            lying.splice(..8, count.to_le_bytes());
            assert!(files(&lying).len() <= 1);
        }
        assert!(files(&[]).is_empty());
    }
}
