//! A program that is started to be traced.

use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus};

use windlass_sys::ptrace::{self, Held};

/// `AT_ENTRY` of the auxiliary vector: where the program itself begins, behind the dynamic linker.
const AT_ENTRY: u64 = 9;
/// Where x86-64's general registers have `rip` (`struct user_regs_struct`).
const RIP: usize = 16;
/// The instruction that traps.
const TRAP: u8 = 0xcc;
const SIGTRAP: i32 = 5;

/// It stands before its first instruction, with its libraries mapped, until it is let go.
pub(super) struct Started {
    child: Child,
    is_held: bool,
}

impl Started {
    pub(super) fn new(command: &str) -> Result<Self, String> {
        let words = words(command)?;
        let Some((program, args)) = words.split_first() else {
            return Err("-c names no program".to_owned());
        };
        let child = ptrace::start(Command::new(program).args(args));
        let mut child = child.map_err(|error| format!("{program}: {error}"))?;
        match to_entry(child.id()) {
            Ok(()) => Ok(Self {
                child,
                is_held: true,
            }),
            Err(why) => {
                let _ = child.kill();
                let ended = child.wait().ok().and_then(told);
                Err(format!("{program}: {}", ended.unwrap_or(why)))
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it run.
    pub(super) fn go(&mut self) -> Result<(), String> {
        self.is_held = false;
        let gone = ptrace::detach(self.child.id(), 0);
        gone.map_err(|errno| format!("let the program go: {errno}"))
    }

    /// How it has ended, unless well; nothing while it runs.
    pub(super) fn ending(&mut self) -> Option<String> {
        told(self.child.try_wait().ok()??)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_held {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn told(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| format!("the program has ended: {status}"))
}

/// Runs the dynamic linker, up to the program's own first instruction: a trap is there meanwhile.
fn to_entry(pid: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let auxv = std::fs::read(format!("/proc/{pid}/auxv")).map_err(failed)?;
    let words: Vec<u64> = auxv
        .chunks_exact(8)
        .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
        .collect();
    let entry = words.chunks_exact(2).find_map(|pair| match pair {
        [AT_ENTRY, address] => Some(*address),
        _ => None,
    });
    let entry = entry.ok_or("the kernel does not say where it begins")?;
    let memory = std::fs::OpenOptions::new();
    let memory = { memory }
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .map_err(failed)?;
    let mut own = [0];
    memory.read_exact_at(&mut own, entry).map_err(failed)?;
    memory.write_all_at(&[TRAP], entry).map_err(failed)?;
    let mut signal = 0;
    loop {
        let held = ptrace::resume(pid, signal).and_then(|()| ptrace::wait(pid));
        signal = match held.map_err(|errno| errno.to_string())? {
            Held::Stopped(signal) => signal,
            _ => return Err("it has ended".to_owned()),
        };
        let registers = ptrace::registers(pid).map_err(|errno| errno.to_string())?;
        if signal == SIGTRAP && registers.get(RIP) == Some(&(entry + 1)) {
            memory.write_all_at(&own, entry).map_err(failed)?;
            let mut registers = registers;
            if let Some(rip) = registers.get_mut(RIP) {
                *rip = entry;
            }
            return ptrace::set_registers(pid, registers).map_err(|errno| errno.to_string());
        }
    }
}

/// The words of a command: between spaces, or quotes.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(format!("a quote is not closed in {text}"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_words() {
        let words = |text| words(text).unwrap();
        assert_eq!(
            words(" ./a  -b 'c d' e\"f g\"''"),
            ["./a", "-b", "c d", "ef g"]
        );
        assert_eq!(words("a ''"), ["a", ""]);
        assert!(super::words("a 'b").is_err());
    }
}
