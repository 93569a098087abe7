//! The records of a program that runs with debugging words: of each buffer, and with `audit` who allocated it.

use windlass_memory::debug::{LIVE, TABLES, TABLES_AT, WAITING, WORDS, Word};
use windlass_target::Memory;

/// Bytes of a record at most.
const RECORD_MAX: u64 = 512;
const RECORDS_MAX: u64 = 1 << 28;
/// Records that are read at once.
const PART: u64 = 4096;

/// Where the records are.
#[derive(Debug)]
pub(crate) struct Records {
    words: [u64; WORDS],
}

/// A buffer's record.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    /// What the program was given.
    pub(crate) object: u64,
    /// What it asked for.
    pub(crate) size: u64,
    /// The row of the object cache whose object it is.
    pub(crate) cache: Option<usize>,
    /// Return addresses of its last call, the innermost first.
    pub(crate) frames: Vec<u64>,
    state: u8,
}

impl Record {
    /// Whether the program has the buffer.
    pub(crate) fn is_live(&self) -> bool {
        self.state == LIVE
    }

    /// Whether it was freed and its memory is kept.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == WAITING
    }
}

impl Records {
    /// The records that a description tells of. `None`: the program runs without debugging words.
    pub(crate) fn read(memory: &dyn Memory, description: u64) -> Option<Self> {
        let mut bytes = [0; WORDS * 8];
        if description == 0 || !memory.read_all(description, &mut bytes) {
            return None;
        }
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *to = u64::from_le_bytes(*from);
        }
        let records = Self { words };
        let is_sane = (1..=RECORD_MAX).contains(&records.word(Word::Stride))
            && records.word(Word::Count) <= RECORDS_MAX;
        (records.word(Word::Records) != 0 && is_sane).then_some(records)
    }

    fn word(&self, word: Word) -> u64 {
        self.words[word as usize]
    }

    /// Start and end of the tables.
    pub(crate) fn tables(&self) -> Vec<(u64, u64)> {
        let own = self.word(Word::Stride) * self.word(Word::Count);
        let pairs = self.words[TABLES_AT..].as_chunks().0.iter().take(TABLES);
        let mut tables: Vec<_> = pairs.map(|[start, len]| (*start, *len)).collect();
        tables.push((self.word(Word::Records), own));
        let end = |(start, len): (u64, u64)| (start, start.saturating_add(len));
        tables.into_iter().map(end).collect()
    }

    /// Visits each record that has or had a buffer.
    pub(crate) fn each(&self, memory: &dyn Memory, mut visit: impl FnMut(Record)) {
        let (stride, count) = (self.word(Word::Stride), self.word(Word::Count));
        let mut space = vec![0; (stride * PART) as usize];
        for first in (0..count).step_by(PART as usize) {
            let len = (count - first).min(PART) * stride;
            let at = self.word(Word::Records).wrapping_add(first * stride);
            let read = memory.read(at, &mut space[..len as usize]);
            let records = space[..read].chunks_exact(stride as usize);
            records
                .filter_map(|bytes| self.record(bytes))
                .for_each(&mut visit);
        }
    }

    /// The record of the buffer that an address is in or was.
    pub(crate) fn find(&self, memory: &dyn Memory, address: u64) -> Option<Record> {
        let mut found = None;
        self.each(memory, |record| {
            if address.wrapping_sub(record.object) < record.size.max(1) {
                found = Some(record);
            }
        });
        found
    }

    fn record(&self, bytes: &[u8]) -> Option<Record> {
        let at = |word: Word| usize::try_from(self.word(word)).ok();
        let word = |at: usize| {
            let bytes = bytes.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let object = word(at(Word::Object)?).filter(|object| *object != 0)?;
        let owner = bytes.get(at(Word::Owner)?..)?.first_chunk()?;
        let depth = usize::from(*bytes.get(at(Word::Depth)?)?);
        let stack = at(Word::Stack)?;
        let frames = (0..depth).map_while(|frame| word(stack.checked_add(frame * 8)?));
        Some(Record {
            object,
            size: word(at(Word::Size)?)?,
            cache: (u32::from_le_bytes(*owner) as usize).checked_sub(1),
            frames: frames.collect(),
            state: *bytes.get(at(Word::State)?)?,
        })
    }
}
