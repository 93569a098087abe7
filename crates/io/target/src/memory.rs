//! Where bytes of a program come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a program.
pub trait Memory {
    /// Copies bytes from `at` on. Returns how many could be read: fewer than asked for where a mapping ends.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;

    /// Copies all of `into`; `false` if not all of it is there.
    fn read_all(&self, at: u64, into: &mut [u8]) -> bool {
        self.read(at, into) == into.len()
    }

    /// The word at an address.
    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_all(at, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }
}

/// The memory of a live process, with the rights of the person who asks: ptrace(2) says what they are.
#[derive(Debug)]
pub struct Process {
    memory: File,
}

impl Process {
    /// Opens `/proc/PID/mem`. The descriptor stays with this process even if its number is reused.
    ///
    /// # Errors
    /// The kernel's: no such process, or no right to read it.
    pub fn open(pid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Self { memory })
    }
}

impl Memory for Process {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let Some(from) = at.checked_add(done as u64) else {
                break;
            };
            match self.memory.read_at(rest, from) {
                Ok(0) | Err(_) => break,
                Ok(more) => done = done.saturating_add(more),
            }
        }
        done
    }
}

/// Memory that was copied before: a stack that a program left, or what a test makes up.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    parts: Vec<(u64, Vec<u8>)>,
}

impl Snapshot {
    /// Adds bytes that begin at an address. Parts do not overlap.
    #[must_use]
    pub fn with(mut self, at: u64, bytes: Vec<u8>) -> Self {
        self.parts.push((at, bytes));
        self
    }
}

impl Memory for Snapshot {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let found = self.parts.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(at.checked_sub(*start)?).ok()?;
            bytes.get(offset..).filter(|rest| !rest.is_empty())
        });
        let from = found.unwrap_or_default();
        let len = from.len().min(into.len());
        if let (Some(into), Some(from)) = (into.get_mut(..len), from.get(..len)) {
            into.copy_from_slice(from);
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process reads its own memory, and nothing at address 0 or behind the end of addresses.
    #[test]
    fn a_process_is_read() {
        let own = Process::open(std::process::id()).expect("our own memory");
        let value = 0x1234_5678_9abc_def0_u64;
        let at = std::ptr::from_ref(&value) as u64;
        assert_eq!(own.word(at), Some(value));
        for nowhere in [0, u64::MAX, u64::MAX - 7, 1 << 63] {
            assert_eq!(own.word(nowhere), None);
        }
    }

    /// A snapshot gives what it has, and says how much that is.
    #[test]
    fn a_snapshot_is_read_to_its_end() {
        let memory = Snapshot::default().with(0x1000, (0..16).collect());
        let mut bytes = [0xff; 12];
        assert_eq!(memory.read(0x1008, &mut bytes), 8);
        assert_eq!(
            bytes.get(..9),
            Some(&[8, 9, 10, 11, 12, 13, 14, 15, 0xff][..])
        );
        assert_eq!(memory.read(0x1010, &mut bytes), 0);
        assert_eq!(memory.read(0xfff, &mut bytes), 0);
        assert_eq!(memory.word(u64::MAX), None);
    }
}
