//! ELF files: segments, sections, symbols, notes.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use windlass_sys::mapped::Mapped;

/// Bytes of a section that are read at most.
pub const SECTION_MAX: u64 = 512 << 20;
/// Symbols of a file that are read at most.
pub const SYMBOLS_MAX: usize = 4 << 20;
/// Segments and sections that are looked at.
const HEADERS_MAX: u64 = 65_535;
/// Bytes of a build id at most.
const BUILD_ID_MAX: usize = 64;

const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// A segment that is loaded.
pub const PT_LOAD: u32 = 1;
/// A segment of notes.
pub const PT_NOTE: u32 = 4;
/// The program may execute a segment.
const PF_X: u32 = 1;
/// The program may write to a segment.
pub(crate) const PF_W: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHF_COMPRESSED: u64 = 1 << 11;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const NT_GNU_BUILD_ID: u32 = 3;

/// The 2, 4 or 8 bytes at an offset; zeros if they are not there.
pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn quad(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

/// A part of a file that is loaded, or that describes one.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// `PT_LOAD` and so on.
    pub kind: u32,
    /// What the program may do with it: 1 execute, 2 write, 4 read.
    pub flags: u32,
    /// Where it lies in the file.
    pub offset: u64,
    /// Where it lies in memory, before the file is moved to where it is mapped.
    pub address: u64,
    /// Its bytes in the file.
    pub file_len: u64,
    /// Its bytes in memory.
    pub memory_len: u64,
}

impl Segment {
    fn parse(bytes: &[u8]) -> Self {
        Self {
            kind: long(bytes, 0),
            flags: long(bytes, 4),
            offset: quad(bytes, 8),
            address: quad(bytes, 16),
            file_len: quad(bytes, 32),
            memory_len: quad(bytes, 40),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    len: u64,
    link: u32,
    entry_len: u64,
}

impl Section {
    fn parse(bytes: &[u8]) -> Self {
        Self {
            name: long(bytes, 0),
            kind: long(bytes, 4),
            flags: quad(bytes, 8),
            address: quad(bytes, 16),
            offset: quad(bytes, 24),
            len: quad(bytes, 32),
            link: long(bytes, 40),
            entry_len: quad(bytes, 56),
        }
    }
}

/// A function of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Function {
    address: u64,
    len: u64,
    /// Where its name begins, in the table of names.
    name: u32,
    is_indirect: bool,
}

/// The functions of a file, in the order of their addresses.
#[derive(Debug, Default)]
pub struct Functions {
    functions: Vec<Function>,
    names: Vec<u8>,
}

impl Functions {
    /// The function that an address of the file is in: its name as it is stored, and how far into it the address is.
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self
            .functions
            .partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        let offset = address.checked_sub(function.address)?;
        // Assembly gives no length.
        if function.len != 0 && offset >= function.len {
            return None;
        }
        Some((self.name(function)?, offset))
    }

    fn name(&self, function: &Function) -> Option<&str> {
        let rest = self.names.get(usize::try_from(function.name).ok()?..)?;
        let len = rest.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(rest.get(..len)?).ok()?;
        (!name.is_empty()).then_some(name)
    }

    /// Each function's name as it is stored, its address and its bytes (0: not known).
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let of = |function: &Function| {
            let name = self.name(function)?;
            Some((name, function.address, function.len))
        };
        self.functions.iter().filter_map(of)
    }

    /// Whether a function that begins there only chooses another one, as the program is started (`STT_GNU_IFUNC`).
    pub fn is_indirect(&self, address: u64) -> bool {
        let first = self
            .functions
            .partition_point(|function| function.address < address);
        let here = self.functions.iter().skip(first);
        let mut here = here.take_while(|function| function.address == address);
        here.any(|function| function.is_indirect)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    fn of(symbols: &[u8], names: Vec<u8>) -> Self {
        let function = |symbol: &[u8]| {
            let kind = symbol.get(4)? & 0xf;
            let is_function = matches!(kind, STT_FUNC | STT_GNU_IFUNC) && half(symbol, 6) != 0;
            is_function.then(|| Function {
                address: quad(symbol, 8),
                len: quad(symbol, 16),
                name: long(symbol, 0),
                is_indirect: kind == STT_GNU_IFUNC,
            })
        };
        let all = symbols.chunks_exact(SYMBOL_LEN).take(SYMBOLS_MAX);
        let mut functions: Vec<_> = all.filter_map(function).collect();
        functions.sort_by_key(|function| (function.address, function.len));
        Self { functions, names }
    }
}

const SYMBOL_LEN: usize = 24;

/// What unwinding needs of a file.
#[derive(Debug, Default)]
pub struct Tables {
    /// `.eh_frame`, and its address.
    pub frames: (u64, Vec<u8>),
    /// `.eh_frame_hdr`, and its address; empty if there is none.
    pub header: (u64, Vec<u8>),
    /// Address of `.text`; 0 if there is none.
    pub text: u64,
}

/// Bytes of a file: mapped if nobody can change them, else a copy.
#[derive(Debug, Clone)]
pub enum Bytes {
    /// Part of a mapped file.
    Mapped(Arc<Mapped>, Range<usize>),
    /// A copy.
    Copied(Vec<u8>),
}

impl Bytes {
    /// All of a file, up to [`SECTION_MAX`].
    pub(crate) fn of(file: &File) -> Option<Self> {
        let len = file.metadata().ok()?.len();
        if let Some(mapped) = Mapped::of(file) {
            let range = 0..mapped.len();
            return Some(Self::Mapped(Arc::new(mapped), range));
        }
        let mut bytes = vec![0; usize::try_from(len.min(SECTION_MAX)).ok()?];
        file.read_exact_at(&mut bytes, 0).ok()?;
        Some(Self::Copied(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(file, range) => file.get(range.clone()).unwrap_or_default(),
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A file of the 64-bit little-endian kind.
#[derive(Debug)]
pub struct Elf {
    file: File,
    mapped: OnceLock<Option<Arc<Mapped>>>,
    /// What the file is: executable, library, core.
    pub kind: u16,
    /// For which processor.
    pub machine: u16,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    names: Vec<u8>,
}

impl Elf {
    /// Reads the headers of a file.
    ///
    /// # Errors
    /// If it cannot be read, or is none of that kind.
    pub fn new(file: File) -> io::Result<Self> {
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0)?;
        if !head.starts_with(&MAGIC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut elf = Self {
            file,
            mapped: OnceLock::new(),
            kind: half(&head, 16),
            machine: half(&head, 18),
            segments: Vec::new(),
            sections: Vec::new(),
            names: Vec::new(),
        };
        let sections = elf.headers(quad(&head, 40), half(&head, 58), half(&head, 60).into(), 64);
        let first = sections.first().map(|bytes| Section::parse(bytes));
        // Where a count does not fit into its field, the first section has it (a core of many mappings).
        let sections = match (half(&head, 60), first) {
            (0, _) if quad(&head, 40) != 0 => {
                let first = elf.headers(quad(&head, 40), half(&head, 58), 1, 64);
                let count = first.first().map_or(0, |bytes| quad(bytes, 32));
                elf.headers(quad(&head, 40), half(&head, 58), count, 64)
            }
            _ => sections,
        };
        elf.sections = sections.iter().map(|bytes| Section::parse(bytes)).collect();
        let first = sections.first().map_or(0, |bytes| long(bytes, 44));
        let segments = match half(&head, 56) {
            u16::MAX => first.into(),
            count => count.into(),
        };
        let segments = elf.headers(quad(&head, 32), half(&head, 54), segments, 56);
        elf.segments = segments.iter().map(|bytes| Segment::parse(bytes)).collect();
        if let Some(names) = elf.sections.get(usize::from(half(&head, 62))).copied() {
            elf.names = elf.bytes(names.offset, names.len.min(1 << 20));
        }
        Ok(elf)
    }

    /// Headers of at least `len` bytes each.
    fn headers(&self, offset: u64, step: u16, count: u64, len: usize) -> Vec<Vec<u8>> {
        let step = usize::from(step);
        if step < len {
            return Vec::new();
        }
        let all = count.min(HEADERS_MAX).saturating_mul(step as u64);
        let bytes = self.bytes(offset, all);
        bytes.chunks_exact(step).map(<[u8]>::to_vec).collect()
    }

    /// Bytes of the file: as many as there are, up to `len`.
    pub fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        // What the file does not have is not allocated.
        let there = self.file.metadata().map_or(0, |file| file.len());
        let len = len.min(SECTION_MAX).min(there.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// Copies bytes of the file; returns how many.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) | Err(_) => break,
                Ok(more) => done = done.saturating_add(more),
            }
        }
        done
    }

    /// Its segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    fn name(&self, section: &Section) -> &[u8] {
        let at = usize::try_from(section.name).unwrap_or(usize::MAX);
        let rest = self.names.get(at..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn section(&self, name: &str) -> Option<&Section> {
        let is_it = |section: &&Section| self.name(section) == name.as_bytes();
        self.sections.iter().find(is_it)
    }

    fn content(&self, section: &Section) -> Vec<u8> {
        if section.kind == SHT_NOBITS {
            return Vec::new();
        }
        let bytes = self.bytes(section.offset, section.len);
        match section.flags & SHF_COMPRESSED != 0 {
            true => inflate(&bytes).unwrap_or_default(),
            false => bytes,
        }
    }

    /// Whether it has a section with content.
    pub fn has_section(&self, name: &str) -> bool {
        let section = self.section(name);
        section.is_some_and(|section| section.kind != SHT_NOBITS && section.len > 0)
    }

    /// The address and content of a section, inflated if it is compressed.
    pub fn section_of(&self, name: &str) -> Option<(u64, Vec<u8>)> {
        let section = self.section(name)?;
        Some((section.address, self.content(section)))
    }

    /// The address of a section, and its content without a copy if that can be.
    pub fn section_bytes(&self, name: &str) -> Option<(u64, Bytes)> {
        let section = self.section(name)?;
        let is_plain = section.kind != SHT_NOBITS && section.flags & SHF_COMPRESSED == 0;
        let mapped = || {
            let mapped = self
                .mapped
                .get_or_init(|| Mapped::of(&self.file).map(Arc::new));
            let start = usize::try_from(section.offset).ok()?;
            let end = start.checked_add(usize::try_from(section.len).ok()?)?;
            let mapped = mapped.as_ref()?;
            mapped.get(start..end)?;
            Some(Bytes::Mapped(mapped.clone(), start..end))
        };
        let bytes = if is_plain { mapped() } else { None };
        let bytes = bytes.unwrap_or_else(|| Bytes::Copied(self.content(section)));
        Some((section.address, bytes))
    }

    /// Whether nobody but the system and this user can change the file.
    pub(crate) fn is_safe(&self) -> bool {
        let map = || Mapped::of(&self.file).map(Arc::new);
        self.mapped.get_or_init(map).is_some()
    }

    /// The content of all sections of one name, one behind the other: a file that is not linked can have several.
    pub fn joined(&self, name: &str) -> Option<(u64, Bytes)> {
        let is_it = |section: &&Section| self.name(section) == name.as_bytes();
        if self.sections.iter().filter(is_it).count() < 2 {
            return self.section_bytes(name);
        }
        let mut whole = Vec::new();
        for section in self.sections.iter().filter(is_it) {
            let part = self.content(section);
            if (whole.len().saturating_add(part.len())) as u64 <= SECTION_MAX {
                whole.extend(part);
            }
        }
        Some((0, Bytes::Copied(whole)))
    }

    /// Bytes of the whole file.
    pub fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    /// Whether the file has no bytes any more.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its functions: of the full table of symbols if it has one, else of that of the dynamic loader.
    pub fn functions(&self) -> Functions {
        let of_kind = |kind| {
            self.sections
                .iter()
                .find(move |section| section.kind == kind)
        };
        let tables = [SHT_SYMTAB, SHT_DYNSYM].into_iter().filter_map(of_kind);
        let all = tables.filter(|table| table.entry_len == SYMBOL_LEN as u64);
        let read = all.map(|table| {
            let names = usize::try_from(table.link).ok();
            let names = names.and_then(|link| self.sections.get(link));
            let names = names.map(|names| self.content(names)).unwrap_or_default();
            Functions::of(&self.content(table), names)
        });
        read.into_iter()
            .find(|functions| !functions.is_empty())
            .unwrap_or_default()
    }

    /// Whether it has the full table of symbols.
    pub fn has_symbols(&self) -> bool {
        let mut kinds = self
            .sections
            .iter()
            .map(|section| (section.kind, section.len));
        kinds.any(|(kind, len)| kind == SHT_SYMTAB && len > 0)
    }

    /// The address of a symbol of the dynamic loader's table.
    pub fn exported(&self, wanted: &str) -> Option<u64> {
        let table = self
            .sections
            .iter()
            .find(|section| section.kind == SHT_DYNSYM)?;
        let names = self.sections.get(usize::try_from(table.link).ok()?)?;
        let (symbols, names) = (self.content(table), self.content(names));
        let mut all = symbols.chunks_exact(SYMBOL_LEN).take(SYMBOLS_MAX);
        all.find_map(|symbol| {
            let rest = names.get(usize::try_from(long(symbol, 0)).ok()?..)?;
            let name = rest.split(|byte| *byte == 0).next()?;
            (name == wanted.as_bytes() && half(symbol, 6) != 0).then(|| quad(symbol, 8))
        })
    }

    /// What unwinding needs of it.
    pub fn tables(&self) -> Tables {
        let read = |name| match self.section(name) {
            Some(section) => (section.address, self.content(section)),
            None => (0, Vec::new()),
        };
        let mut header = read(".eh_frame_hdr");
        let by_segment = |segment: &&Segment| segment.kind == PT_GNU_EH_FRAME;
        if header.1.is_empty()
            && let Some(segment) = self.segments.iter().find(by_segment)
        {
            header = (
                segment.address,
                self.bytes(segment.offset, segment.file_len),
            );
        }
        Tables {
            frames: read(".eh_frame"),
            header,
            text: self.section(".text").map_or(0, |text| text.address),
        }
    }

    /// Its build id; empty if it has none.
    pub fn build_id(&self) -> Vec<u8> {
        let notes = self
            .segments
            .iter()
            .filter(|segment| segment.kind == PT_NOTE);
        notes
            .map(|segment| self.bytes(segment.offset, segment.file_len.min(1 << 20)))
            .find_map(|notes| build_id(&notes))
            // What programs share of their debug data has no segments.
            .or_else(|| build_id(&self.section_of(".note.gnu.build-id")?.1))
            .unwrap_or_default()
    }

    /// How far a file was moved from the addresses in it, if the page at `offset` is mapped at `start`. Two segments can share a page of the file,
    /// which is mapped for each of them; the one with code is meant.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let page = |value: u64| value & !PAGE.wrapping_sub(1);
        let holds = |segment: &&Segment| {
            let end = segment.offset.saturating_add(segment.file_len);
            segment.kind == PT_LOAD && (page(segment.offset)..end).contains(&offset)
        };
        let all = self.segments.iter().filter(holds);
        let segment = all.min_by_key(|segment| segment.flags & PF_X == 0)?;
        let moved = start.wrapping_sub(offset).wrapping_add(segment.offset);
        Some(moved.wrapping_sub(segment.address))
    }
}

/// The content of a compressed section: 8 bytes of format, its length, its alignment, and the data.
fn inflate(bytes: &[u8]) -> Option<Vec<u8>> {
    use object::read::{CompressedData, CompressionFormat};
    let format = match long(bytes, 0) {
        1 => CompressionFormat::Zlib,
        2 => CompressionFormat::Zstandard,
        _ => return None,
    };
    let data = bytes.get(24..)?;
    let uncompressed_size = quad(bytes, 8);
    if uncompressed_size > SECTION_MAX {
        return None;
    }
    let section = CompressedData {
        format,
        data,
        uncompressed_size,
    };
    section.decompress().ok().map(std::borrow::Cow::into_owned)
}

/// A note: its owner, kind and content.
pub type Note<'a> = (&'a [u8], u32, &'a [u8]);

/// The notes in these bytes.
pub fn notes(bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let head = rest.get(..12)?;
        let [name_len, len, kind] = [0, 4, 8].map(|at| long(head, at));
        let (name, after) = padded(rest.get(12..)?, name_len)?;
        let (content, after) = padded(after, len)?;
        rest = after;
        Some((name.strip_suffix(b"\0").unwrap_or(name), kind, content))
    })
}

/// So many bytes, and what follows them at a multiple of 4.
fn padded(bytes: &[u8], len: u32) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(len).ok()?;
    let content = bytes.get(..len)?;
    let after = len.checked_next_multiple_of(4)?;
    Some((content, bytes.get(after..).unwrap_or_default()))
}

/// The build id among notes.
pub fn build_id(bytes: &[u8]) -> Option<Vec<u8>> {
    let is_it = |(name, kind, content): &Note<'_>| {
        *name == b"GNU" && *kind == NT_GNU_BUILD_ID && content.len() <= BUILD_ID_MAX
    };
    let found = notes(bytes).find(is_it);
    found.map(|(_, _, content)| content.to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn own() -> Elf {
        let file = File::open("/proc/self/exe").expect("our own");
        Elf::new(file).expect("an ELF file")
    }

    #[inline(never)]
    fn well_known_function() -> u64 {
        std::hint::black_box(42)
    }

    /// The functions of this program are found by their addresses.
    #[test]
    fn functions_are_found() {
        let elf = own();
        assert_eq!(well_known_function(), 42);
        let all = elf.functions();
        assert!(all.len() > 100 && elf.has_symbols());
        let at = all.functions.iter().find(|function| {
            all.find(function.address)
                .is_some_and(|(name, _)| name.contains("well_known_function"))
        });
        let at = at.expect("in the table");
        let (name, offset) = all.find(at.address.wrapping_add(1)).expect("a function");
        assert!(name.contains("well_known_function") && offset == 1);
        assert!(all.find(u64::MAX).is_none_or(|(_, offset)| offset > 0));
        assert!(!elf.tables().frames.1.is_empty() && !elf.tables().header.1.is_empty());
    }

    /// Of two segments that share a page of the file, the mapping with code is that of the second.
    #[test]
    fn shared_pages_have_the_bias_of_their_code() {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(64 + 2 * 56, 0);
        bytes.splice(32..40, 64_u64.to_le_bytes());
        bytes.splice(54..58, [56, 0, 2, 0]);
        for (at, flags, offset, address, len) in [
            (64, 4, 0_u64, 0_u64, 0x1234_u64),
            (64 + 56, 5, 0x1234, 0x2234, 0x5000),
        ] {
            bytes.splice(at..at + 4, PT_LOAD.to_le_bytes());
            bytes.splice(at + 4..at + 8, u32::to_le_bytes(flags));
            bytes.splice(at + 8..at + 16, offset.to_le_bytes());
            bytes.splice(at + 16..at + 24, address.to_le_bytes());
            bytes.splice(at + 32..at + 40, len.to_le_bytes());
        }
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        let elf = Elf::new(file).expect("an ELF file");
        assert_eq!(elf.bias(0x7000_0000, 0), Some(0x7000_0000));
        assert_eq!(elf.bias(0x7000_2000, 0x1000), Some(0x7000_0000));
    }

    /// Notes that lie about their lengths end the list.
    #[test]
    fn notes_end() {
        let mut bytes = Vec::new();
        for word in [4, 3, NT_GNU_BUILD_ID] {
            bytes.extend_from_slice(&u32::to_le_bytes(word));
        }
        bytes.extend_from_slice(b"GNU\0abc\0");
        assert_eq!(build_id(&bytes), Some(b"abc".to_vec()));
        for len in [u32::MAX, u32::MAX - 3, 100] {
            let mut lying = bytes.clone();
            lying.splice(4..8, len.to_le_bytes());
            assert_eq!(notes(&lying).count(), 0);
        }
    }

    /// Every byte of a small file in turn is made anything: nothing panics, and nothing large is allocated.
    #[test]
    fn any_file_is_survived() {
        let whole = std::fs::read("/proc/self/exe").expect("our own");
        let mut random = 1_u64;
        for round in 0..300_usize {
            let mut bytes = whole.get(..4096).expect("long").to_vec();
            for _ in 0..8 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(round as u64 | 1);
                let at = usize::try_from(random >> 40).expect("small") % 64;
                if let Some(byte) = bytes.get_mut(16_usize.max(at)) {
                    *byte = (random >> 32) as u8;
                }
            }
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&bytes).expect("written");
            let Ok(elf) = Elf::new(file) else { continue };
            let _ = (
                elf.functions().find(random),
                elf.build_id(),
                elf.tables(),
                elf.bias(random, random),
            );
            assert_eq!(elf.exported("x"), None);
        }
    }
}
