//! What is mapped where.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Mappings that are read at most.
pub const MAPPINGS_MAX: usize = 262_144;
/// Bytes of a listing that are read at most.
const LISTING_MAX: u64 = 64 << 20;

/// A mapping of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address behind it; above `start`.
    pub end: u64,
    /// The program may read it.
    pub is_readable: bool,
    /// The program may write to it.
    pub is_writable: bool,
    /// The program may execute it.
    pub is_executable: bool,
    /// Others see what is written.
    pub is_shared: bool,
    /// Where in its file it begins.
    pub offset: u64,
    /// Inode of its file; 0: none.
    pub inode: u64,
    /// Its file, or a name of the kernel's in brackets; empty if it has none.
    pub name: String,
}

impl Mapping {
    /// Whether an address is in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The path of its file, if it has one.
    pub fn path(&self) -> Option<PathBuf> {
        self.name.starts_with('/').then(|| self.name.clone().into())
    }

    /// Parses a line of `/proc/PID/maps`.
    fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after.trim_start_matches(' ');
            field
        };
        let (start, end) = field().split_once('-')?;
        let flags = field().as_bytes();
        let offset = field();
        let _device = field();
        let inode = field();
        let number = |text| u64::from_str_radix(text, 16).ok();
        let has = |at: usize, flag| flags.get(at) == Some(&flag);
        let mapping = Self {
            start: number(start)?,
            end: number(end)?,
            is_readable: has(0, b'r'),
            is_writable: has(1, b'w'),
            is_executable: has(2, b'x'),
            is_shared: has(3, b's'),
            offset: number(offset)?,
            inode: inode.parse().ok()?,
            name: rest.to_owned(),
        };
        (mapping.start < mapping.end).then_some(mapping)
    }
}

/// The mappings of a process, in the order of their addresses.
///
/// # Errors
/// The kernel's: no such process, or no right to see them.
pub fn of(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?
        .take(LISTING_MAX)
        .read_to_end(&mut text)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// The mappings that a listing names. Lines that make no sense are left out.
pub fn parse(text: &str) -> Vec<Mapping> {
    let lines = text.lines().take(MAPPINGS_MAX);
    let mut mappings: Vec<_> = lines.filter_map(Mapping::parse).collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// The mapping that an address is in, of mappings in order.
pub fn find(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    mapping.contains(address).then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a b (deleted)
nonsense
7fff-7ffe r--p 0 0 0
7ffc00000000-7ffc00021000 rw-s 00000000 00:00 0                          [stack]
";

    /// Lines are read with spaces in names; others are left out; an address finds its mapping.
    #[test]
    fn listings_are_read() {
        let all = parse(TEXT);
        let names: Vec<_> = all.iter().map(|mapping| mapping.name.as_str()).collect();
        assert_eq!(names, ["/usr/bin/a b (deleted)", "", "[stack]"]);
        let code = find(&all, 0x40_1000).expect("mapped");
        assert!(code.is_executable && code.is_readable && !code.is_writable && !code.is_shared);
        assert_eq!((code.offset, code.inode), (0x1000, 173_521));
        assert!(find(&all, 0x45_2000).is_none() && find(&all, 0).is_none());
        assert!(find(&all, 0x7ffc_0000_0000).expect("mapped").is_shared);
    }

    /// Our own mappings hold our own code and stack.
    #[test]
    fn our_own_are_read() {
        let all = of(std::process::id()).expect("our own");
        let code = find(&all, parse as *const () as u64).expect("mapped");
        assert!(code.is_executable && code.path().is_some());
        let local = 0;
        let stack = find(&all, std::ptr::from_ref(&local) as u64).expect("mapped");
        assert!(stack.is_writable);
    }
}
