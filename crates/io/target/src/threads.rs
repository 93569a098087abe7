//! Threads: their registers, and a process that is held still.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use windlass_sys::ptrace::{self, Held};

/// Threads that are held at most.
pub const THREADS_MAX: usize = 65_536;
/// Where the registers stand in `struct elf_prstatus`.
pub(crate) const REGISTERS_AT: usize = 112;
/// How long a thread may take to stop: one that sleeps in the kernel without being woken does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// Passes over the list of threads: a program that makes them faster than this is not held.
const PASSES: usize = 64;

/// Registers that DWARF gives a number, by it.
pub const NUMBERED: usize = 33;

/// The general registers of a thread, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// By DWARF's numbers.
    pub numbered: [Option<u64>; NUMBERED],
    /// Where it goes on.
    pub pc: u64,
}

#[cfg(target_arch = "x86_64")]
mod arch {
    /// DWARF's number of the stack pointer.
    pub const SP: u16 = 7;
    /// Of the frame pointer.
    pub const FP: u16 = 6;
    /// Of the column that has the return address.
    pub const RETURN: u16 = 16;
    /// Where the kernel has the program counter.
    pub const PC_AT: usize = 16;
    /// Where the kernel has each numbered register.
    pub const ORDER: [usize; 16] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
}

#[cfg(target_arch = "aarch64")]
mod arch {
    pub const SP: u16 = 31;
    pub const FP: u16 = 29;
    pub const RETURN: u16 = 30;
    pub const PC_AT: usize = 32;
    pub const ORDER: [usize; 32] = {
        let mut order = [0; 32];
        let mut at = 0;
        while at < 32 {
            order[at] = at;
            at += 1;
        }
        order
    };
}

pub(crate) use arch::RETURN;
use arch::{FP, ORDER, PC_AT, SP};

impl Registers {
    /// Registers of which only these are known.
    pub fn of(pc: u64, sp: u64, fp: u64) -> Self {
        let mut own = Self {
            numbered: [None; NUMBERED],
            pc,
        };
        own.set(SP, Some(sp));
        own.set(FP, Some(fp));
        own
    }

    /// The stack pointer.
    pub fn sp(&self) -> Option<u64> {
        self.get(SP)
    }

    /// The frame pointer.
    pub fn frame_pointer(&self) -> Option<u64> {
        self.get(FP)
    }

    /// A register by DWARF's number.
    pub fn get(&self, number: u16) -> Option<u64> {
        self.numbered.get(usize::from(number)).copied().flatten()
    }

    pub(crate) fn set(&mut self, number: u16, value: Option<u64>) {
        if let Some(register) = self.numbered.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    pub(crate) fn set_sp(&mut self, value: u64) {
        self.set(SP, Some(value));
    }

    /// Registers in the kernel's order.
    fn from_words(words: &[u64]) -> Self {
        let mut own = Self {
            numbered: [None; NUMBERED],
            pc: words.get(PC_AT).copied().unwrap_or(0),
        };
        for (register, at) in own.numbered.iter_mut().zip(ORDER) {
            *register = words.get(at).copied();
        }
        own
    }

    /// Registers as a core file has them.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(8).take(64);
        let words: Vec<_> = words.map(|word| crate::elf::quad(word, 0)).collect();
        Self::from_words(&words)
    }
}

/// Why a process is not held.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The kernel refuses.
    #[error("{0}")]
    Kernel(#[from] io::Error),
    /// One of its threads did not stop in time.
    #[error("thread {0} does not stop: it sleeps in the kernel, or its parent in vfork(2)")]
    Stubborn(u32),
    /// It makes threads faster than they can be stopped, or has too many.
    #[error("it has too many threads, or makes them too fast")]
    TooMany,
}

/// A process all of whose threads stand. They run on when this is dropped, or when this program dies. It is used and dropped by the
/// thread that made it.
#[derive(Debug)]
pub struct Stopped {
    /// Each thread, with the signal that it is owed.
    held: BTreeMap<u32, i32>,
    since: Instant,
}

impl Stopped {
    /// Stops every thread.
    ///
    /// # Errors
    /// See [`StopError`]; then none stays stopped.
    pub fn all(pid: u32) -> Result<Self, StopError> {
        let mut own = Self {
            held: BTreeMap::new(),
            since: Instant::now(),
        };
        for _ in 0..PASSES {
            let new = own.seize_new(pid)?;
            if new.is_empty() {
                return match own.held.is_empty() {
                    true => Err(io::Error::from(rustix::io::Errno::SRCH).into()),
                    false => Ok(own),
                };
            }
            for tid in new {
                own.wait(tid)?;
            }
        }
        Err(StopError::TooMany)
    }

    /// Stops one thread.
    ///
    /// # Errors
    /// See [`StopError`]; then it does not stay stopped.
    pub fn one(tid: u32) -> Result<Self, StopError> {
        let mut own = Self {
            held: BTreeMap::new(),
            since: Instant::now(),
        };
        ptrace::seize(tid).map_err(io::Error::from)?;
        ptrace::interrupt(tid).map_err(io::Error::from)?;
        own.wait(tid)?;
        match own.held.is_empty() {
            true => Err(io::Error::from(rustix::io::Errno::SRCH).into()),
            false => Ok(own),
        }
    }

    /// Seizes the threads that are not held yet, and tells them to stop.
    fn seize_new(&self, pid: u32) -> Result<Vec<u32>, StopError> {
        let mut new = Vec::new();
        for tid in threads(pid)? {
            if self.held.contains_key(&tid) {
                continue;
            }
            if self.held.len().saturating_add(new.len()) >= THREADS_MAX {
                return Err(StopError::TooMany);
            }
            match ptrace::seize(tid) {
                // One that has ended meanwhile.
                Err(rustix::io::Errno::SRCH) => continue,
                result => result.map_err(io::Error::from)?,
            }
            if ptrace::interrupt(tid).is_ok() {
                new.push(tid);
            }
        }
        Ok(new)
    }

    fn wait(&mut self, tid: u32) -> Result<(), StopError> {
        let until = Instant::now().checked_add(PATIENCE);
        loop {
            match ptrace::held(tid) {
                Ok(Held::Stopped(signal)) => {
                    self.held.insert(tid, signal);
                    return Ok(());
                }
                Ok(Held::Ended) | Err(_) => return Ok(()),
                Ok(Held::NotYet) => {}
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return Err(StopError::Stubborn(tid));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The registers of each thread.
    pub fn registers(&self) -> Vec<(u32, Registers)> {
        let of = |tid: &u32| Some((*tid, Registers::from_words(&ptrace::registers(*tid).ok()?)));
        self.held.keys().filter_map(of).collect()
    }

    /// Lets it run. Returns for how long it stood.
    pub fn release(mut self) -> Duration {
        self.let_go();
        self.since.elapsed()
    }

    fn let_go(&mut self) {
        for (tid, signal) in std::mem::take(&mut self.held) {
            // A thread that was killed meanwhile needs nothing.
            let _ = ptrace::detach(tid, signal);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The ids of a process's threads.
///
/// # Errors
/// The kernel's, if there is no such process.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let found = entries.flatten().filter_map(number);
    Ok(found.take(THREADS_MAX).collect())
}
