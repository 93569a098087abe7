//! Names of addresses of code.

use std::collections::BTreeMap;

use windlass_script::syntax::Stack;
use windlass_target::maps;
use windlass_target::modules::Modules;

/// Processes whose files are known at most.
const PROCESSES_MAX: usize = 64;
/// Symbols of the kernel at most.
const KERNEL_MAX: usize = 1 << 20;

/// Names addresses of processes and of the kernel.
#[derive(Default)]
pub(super) struct Symbols {
    /// Of each process its files; without any if they could not be read.
    processes: BTreeMap<u32, Modules>,
    /// The kernel's functions by their addresses.
    kernel: Option<BTreeMap<u64, String>>,
}

impl Symbols {
    /// Looks at a process while it is there.
    pub(super) fn look(&mut self, pid: u32) {
        let mappings = maps::of(pid).unwrap_or_default();
        let modules = Modules::of_process(pid, &mappings);
        if self.processes.len() < PROCESSES_MAX && !modules.list().is_empty() {
            self.processes.insert(pid, modules);
        }
    }

    /// An address's name: the function, and how far it is into that.
    pub(super) fn name(&mut self, of: Stack, pid: Option<u32>, address: u64) -> String {
        match of {
            Stack::Kernel => self.kernel_name(address),
            Stack::User => {
                let Some(pid) = pid else {
                    return format!("{address:#x}");
                };
                let is_known = |own: &Self| {
                    let modules = own.processes.get(&pid);
                    modules.is_some_and(|modules| modules.at(address).is_some())
                };
                if !is_known(self) {
                    self.look(pid);
                }
                let modules = self.processes.get(&pid);
                modules.map_or_else(|| format!("{address:#x}"), |modules| modules.name(address))
            }
        }
    }

    fn kernel_name(&mut self, address: u64) -> String {
        let kernel = self.kernel.get_or_insert_with(kernel);
        match kernel.range(..=address).next_back() {
            Some((start, name)) => format!("{name}+{:#x}", address - start),
            None => format!("{address:#x}"),
        }
    }
}

fn kernel() -> BTreeMap<u64, String> {
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let lines = text.lines().take(KERNEL_MAX).filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
        let name = words.next()?;
        (is_code && address != 0).then(|| (address, name.to_owned()))
    });
    lines.collect()
}
