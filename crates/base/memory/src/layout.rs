//! What is in the file, and where.

use crate::rows::rows;

/// First word of the file: "wlmemory", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"wlmemory");
/// Changes with every change of the rows below.
pub const VERSION: u64 = 3;

/// Where files are if not in `$XDG_RUNTIME_DIR/windlass`: the user's number follows. On a disk the first page of a file costs a millisecond, so
/// that memory comes first.
pub const BASES: [&str; 2] = ["/dev/shm/windlass-", "/tmp/windlass-"];
/// The directory of files in one of those.
pub const DIRECTORY: &str = "memory";

/// The library's own copy of the [`Anchor`] row, by its name in the table of symbols: core files do not have the status file.
pub const ANCHOR_SYMBOL: &str = "windlass_alloc_anchor";

/// Classes that a map entry can name: malloc's, then those of object caches.
pub const CLASSES: usize = 64;
/// Frames of a stack.
pub const FRAMES: usize = 32;
/// Words of a copied stack.
pub const RAW_WORDS: usize = 256;

rows! {
    /// Who wrote the file, and how to read it.
    Header, HeaderRow {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u64,
        /// Bytes of the file: [`FILE_LEN`].
        len: u64,
        /// The process.
        pid: u64,
        /// When it started: field 22 of /proc/PID/stat. 0: it could not be read.
        start: u64,
        /// When the file was made: CLOCK_BOOTTIME, ns. A child of a fork has a later one.
        epoch: u64,
        /// The user's effective id.
        uid: u64,
        /// Bytes of a unit.
        unit: u64,
        /// Bytes of a span.
        span: u64,
        /// Bytes between two samples, on average; 0: none are taken.
        sample_mean: u64,
        /// Bytes that one thread's magazines may hold.
        thread_cap: u64,
        /// Percent of what is in use that may be kept from the kernel; all ones: everything is kept.
        keep_share: u64,
        /// How pages are asked for: the word's place in its option's row.
        pages: u64,
        /// The debugging words in force: bit `n` is row `n` of [`options::OPTIONS`](crate::options::OPTIONS).
        debug: u64,
    }

    /// The arena and what is kept of it. Units and spans are counts.
    Arena, ArenaRow {
        /// Spans that have addresses.
        reserved_spans: u64,
        /// Spans that are usable.
        usable_spans: u64,
        /// Units that slabs and large objects have.
        used_units: u64,
        /// Units that are backed and hold nothing.
        kept_units: u64,
        /// Spans of which a part was given back to the kernel.
        broken_spans: u64,
        /// Spans for which huge pages were asked.
        huge_spans: u64,
        /// Ranges given back to the kernel so far.
        returns: u64,
        /// Bytes given back so far.
        returned: u64,
        /// Bytes that all magazines may hold together.
        process_cap: u64,
        /// Units of slabs, of those used.
        slab_units: u64,
    }

    /// Large objects that are mappings of their own.
    Mapped, MappedRow {
        /// Their number.
        count: u64,
        /// Their bytes.
        bytes: u64,
    }

    /// Sampling as a whole.
    Sampling, SamplingRow {
        /// Samples so far.
        taken: u64,
        /// Samples that live.
        live: u64,
        /// Samples that found the table full: growth and leaks do not know of them.
        lost: u64,
        /// Their weights.
        lost_weight: u64,
        /// Samples whose stack found no room: they have number 0.
        stackless: u64,
    }

    /// A class of objects. Rows from [`CLASSES`] on are of the same classes' sampled objects, which have slabs of their own.
    /// What two threads change in turn comes first: one cache line.
    Class, ClassRow {
        /// Objects in the depot.
        in_depot: u64,
        /// Batches that magazines took.
        refills: u64,
        /// Batches that magazines gave back.
        flushes: u64,
        /// Times that a thread waited for the class's lock.
        contended: u64,
        /// Objects that are free in slabs.
        in_slabs: u64,
        /// Slabs.
        slabs: u64,
        /// Objects in all of them, free or not.
        objects: u64,
        /// Bytes of an object; 0: no such class.
        size: u64,
        /// Units of a slab.
        units: u64,
    }

    /// A thread's cache. The last row of the table is the sum of all threads that found no row.
    Thread, ThreadRow {
        /// [`ThreadState`] as a number.
        state: u64,
        /// The thread. Its name is in /proc/PID/task/TID/comm. In the last row: the number of threads.
        tid: u64,
        /// Address of the cache.
        cache: u64,
        /// Bytes that its magazines hold.
        cached: u64,
        /// Bytes that they may hold.
        limit: u64,
        /// Calls that took the slow path.
        slow_calls: u64,
        /// When the last one was: CLOCK_MONOTONIC_COARSE, ns.
        last_slow: u64,
        /// Bytes in the magazine of each class.
        by_class: [u64; CLASSES],
    }

    /// An object cache. What a cache with a class holds is in the row of its class, and here 0.
    Cache, CacheRow {
        /// Name: bytes up to the first zero.
        name: [u64; 4],
        /// Address of the cache; 0: no such cache.
        address: u64,
        /// Bytes of an object.
        size: u64,
        /// Its class; 0: it has none of its own, and no magazines.
        class: u64,
        /// Units of a slab.
        units: u64,
        /// Slabs.
        slabs: u64,
        /// Objects in all of them, free or not.
        objects: u64,
        /// Objects that are free in slabs.
        in_slabs: u64,
        /// Objects that the program took.
        refills: u64,
        /// Objects that the program gave back.
        flushes: u64,
        /// Times that a thread waited for its lock.
        contended: u64,
    }

    /// A sampled object that lives.
    Sample, SampleRow {
        /// Where it is; 0: the row is free.
        address: u64,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that it stands for.
        weight: u64,
        /// Its stack: 1 + the row's number; 0: unknown.
        stack: u64,
        /// When it was allocated: CLOCK_MONOTONIC_COARSE, ns.
        born: u64,
        /// The thread that allocated it.
        tid: u64,
    }

    /// Who allocated.
    Stack, StackRow {
        /// Of the frames; 0: the row is free.
        hash: u64,
        /// Samples of it that live.
        live: u64,
        /// Frames that are known.
        depth: u64,
        /// Where it was copied to: 1 + its number in the ring of copies, which counts on; 0: it was not.
        raw: u64,
        /// Return addresses, the allocating function's first.
        frames: [u64; FRAMES],
    }

    /// The top of a stack of which frame pointers showed too little. Row `number % RAW` is overwritten by later ones.
    Raw, RawRow {
        /// Its number in the ring.
        number: u64,
        /// The stack row that it belongs to.
        stack: u64,
        /// Stack pointer of the function that called the allocator, as it is where that function goes on: the address of the first word.
        sp: u64,
        /// Frame pointer of that function.
        fp: u64,
        /// Where that function goes on.
        pc: u64,
        /// Words that were copied.
        len: u64,
        /// The stack, from its pointer on.
        words: [u64; RAW_WORDS],
    }

    /// What happened. Row `number % EVENTS` is overwritten by later ones.
    Event, EventRow {
        /// 1 + its number in the ring; 0: nothing yet.
        number: u64,
        /// CLOCK_MONOTONIC_COARSE, ns.
        time: u64,
        /// [`What`] as a number.
        what: u64,
        /// The first word about it.
        first: u64,
        /// The second word about it.
        second: u64,
        /// The thread.
        tid: u64,
    }

    /// Where the allocator's own tables are, for a reader of the process's memory or of its core. Offsets and strides are bytes.
    Anchor, AnchorRow {
        /// First address of the arena; 0: there is none.
        arena: u64,
        /// Address of the number of usable units, a word.
        units: u64,
        /// The map: a byte for each unit. 0: no slab; with [`SAMPLED`]: a slab of sampled objects; the rest is the class.
        map: u64,
        /// Records of units. The first unit of a slab describes it.
        slabs: u64,
        /// Bytes of a record.
        slab_stride: u64,
        /// In a record: the class, 2 bytes; from [`CACHE_OWNERS`] on: the object cache, by its row.
        slab_class: u64,
        /// In a record: how many units before this one the slab starts, a byte.
        slab_back: u64,
        /// In a record: free objects, 2 bytes.
        slab_free: u64,
        /// In a record: a bit for each object, words; 1 is free.
        slab_bits: u64,
        /// Records of spans; how many are usable follows from `units`.
        spans: u64,
        /// Bytes of a record.
        span_stride: u64,
        /// In a record: units in use, 4 bytes.
        span_used: u64,
        /// In a record: first units of runs, 4 bytes.
        span_starts: u64,
        /// In a record: units that are backed, 4 bytes.
        span_backed: u64,
        /// In a record: whether it was broken, a byte.
        span_broken: u64,
        /// States of classes, by number.
        classes: u64,
        /// The same of sampled objects.
        sampled_classes: u64,
        /// Bytes of a state.
        class_stride: u64,
        /// In a state: objects in the depot, 2 bytes.
        depot_len: u64,
        /// In a state: the address of the depot, which has addresses.
        depot: u64,
        /// Address of the address of the first thread's cache.
        caches: u64,
        /// In a cache: the next one's address.
        cache_next: u64,
        /// In a cache: magazines, by class; the first word of each is the address of its topmost slot. Slots go down to one that is 0.
        cache_magazines: u64,
        /// Bytes of a magazine.
        magazine_stride: u64,
        /// Magazines of a cache.
        magazines: u64,
        /// Address of the table of mappings: its address, then the number of its places.
        mappings: u64,
        /// In a place: the mapping's address, 0 where the place is free, then its bytes.
        mapping_stride: u64,
        /// Debugging records: address of their description.
        debug: u64,
    }
}

/// Owner of the slabs of the first object cache without a class: the next one has the next number. Owners below are classes.
pub const CACHE_OWNERS: usize = 256;

/// Set in a map entry, and added to the number of a class's row: sampled objects.
pub const SAMPLED: usize = CLASSES;

/// The states of a thread's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum ThreadState {
    /// The row is free.
    Free = 0,
    /// The thread runs.
    Live = 1,
    /// A fork left the thread behind: its cache is as full as it was, and the next new thread gets it.
    Orphan = 2,
}

/// Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum What {
    /// The file was made. First: the epoch.
    Made = 1,
    /// The arena became longer. First: usable spans.
    Grown = 2,
    /// Memory went back to the kernel. First: its address; second: bytes.
    Returned = 3,
    /// The table of samples is full. First: the lost object's address; second: its weight.
    SamplesFull = 4,
}

impl What {
    /// The event of a number.
    pub fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Made, Self::Grown, Self::Returned, Self::SamplesFull];
        all.into_iter().find(|what| *what as u64 == number)
    }
}

/// A table in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Bytes before it.
    pub offset: usize,
    /// Bytes of a row.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
}

impl Table {
    /// Where a row starts. `None`: there is no such row.
    pub fn row(&self, number: usize) -> Option<usize> {
        (number < self.rows).then_some(self.offset + number * self.stride)
    }

    /// Bytes up to its end.
    pub const fn end(&self) -> usize {
        self.offset + self.stride * self.rows
    }

    const fn after(before: Self, stride: usize, rows: usize) -> Self {
        Self {
            offset: before.end(),
            stride,
            rows,
        }
    }

    /// The same, at the start of a page.
    const fn paged(before: Self, stride: usize, rows: usize) -> Self {
        Self {
            offset: before.end().next_multiple_of(PAGE),
            stride,
            rows,
        }
    }
}

const PAGE: usize = 4096;
/// Two cache lines, so that threads with different classes share none.
const CLASS_STRIDE: usize = Class::LEN.next_multiple_of(128);
const START: Table = Table {
    offset: 0,
    stride: 0,
    rows: 0,
};

/// [`Header`].
pub const HEADER: Table = Table::after(START, Header::LEN, 1);
/// [`Arena`].
pub const ARENA: Table = Table::after(HEADER, Arena::LEN, 1);
/// [`Mapped`].
pub const MAPPED: Table = Table::after(ARENA, Mapped::LEN, 1);
/// [`Sampling`].
pub const SAMPLING: Table = Table::after(MAPPED, Sampling::LEN, 1);
/// [`Anchor`].
pub const ANCHOR: Table = Table::after(SAMPLING, Anchor::LEN, 1);
/// [`Class`]: malloc's and object caches', then their sampled objects'.
pub const CLASS: Table = Table {
    offset: ANCHOR.end().next_multiple_of(CLASS_STRIDE),
    stride: CLASS_STRIDE,
    rows: 2 * CLASSES,
};
/// [`Thread`]; the last row is a sum.
pub const THREAD: Table = Table::paged(CLASS, Thread::LEN, 1024 + 1);
/// [`Cache`]. Further caches have no row.
pub const CACHE: Table = Table::paged(THREAD, Cache::LEN, 128);
/// [`Sample`].
pub const SAMPLE: Table = Table::paged(CACHE, Sample::LEN, 16_384);
/// [`Stack`].
pub const STACK: Table = Table::paged(SAMPLE, Stack::LEN, 4096);
/// [`Raw`].
pub const RAW: Table = Table::paged(STACK, Raw::LEN, 512);
/// [`Event`].
pub const EVENT: Table = Table::paged(RAW, Event::LEN, 512);
/// Bytes of the file, most of which are holes.
pub const FILE_LEN: usize = EVENT.end().next_multiple_of(PAGE);

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use core::sync::atomic::Ordering::Relaxed;
    use std::vec::Vec;

    extern crate std;

    fn counting(len: usize) -> Vec<u8> {
        (0..len as u64 / 8).flat_map(u64::to_le_bytes).collect()
    }

    /// The reader's fields are where the writer's are.
    #[test]
    fn both_forms_agree() {
        let thread = Thread::from_bytes(&counting(Thread::LEN)).expect("whole");
        let word = |offset: usize| offset as u64 / 8;
        assert_eq!(thread.state, word(offset_of!(ThreadRow, state)));
        assert_eq!(thread.last_slow, word(offset_of!(ThreadRow, last_slow)));
        assert_eq!(thread.by_class[0], word(offset_of!(ThreadRow, by_class)));
        assert_eq!(thread.by_class[63], word(Thread::LEN) - 1);
        let row = ThreadRow::nothing();
        row.set(&thread);
        assert_eq!(row.tid.load(Relaxed), thread.tid);
        assert_eq!(row.by_class[63].load(Relaxed), thread.by_class[63]);
    }

    /// A row whose writer is at it, or whose bytes are too few, is none; more bytes are harmless.
    #[test]
    fn torn_rows_are_refused() {
        let mut bytes = counting(Mapped::LEN);
        assert_eq!(Mapped::from_bytes(&bytes[..Mapped::LEN - 1]), None);
        assert_eq!(Mapped::from_bytes(&[]), None);
        let whole = Mapped { count: 1, bytes: 2 };
        assert_eq!(Mapped::from_bytes(&bytes), Some(whole));
        assert_eq!(Mapped::from_bytes(&counting(100)), Some(whole));
        bytes[0] = 1;
        assert_eq!(Mapped::from_bytes(&bytes), None);
    }

    /// The number is odd inside [`Sequence::write`](crate::Sequence::write) and even after it, also where a writer died in the middle.
    #[test]
    fn numbers_are_odd_while_a_row_changes() {
        let row = MappedRow::nothing();
        let number = || std::format!("{:?}", row.sequence);
        for (inside, after) in [("1", "2"), ("3", "4")] {
            let seen = std::cell::RefCell::new(std::string::String::new());
            row.sequence.write(|| *seen.borrow_mut() = number());
            assert_eq!(*seen.borrow(), std::format!("Sequence({inside})"));
            assert_eq!(number(), std::format!("Sequence({after})"));
        }
    }

    /// Tables lie behind one another. Where they lie belongs to the version.
    #[test]
    fn tables_have_their_places() {
        let tables = [
            HEADER, ARENA, MAPPED, SAMPLING, ANCHOR, CLASS, THREAD, CACHE, SAMPLE, STACK, RAW,
            EVENT,
        ];
        for pair in tables.windows(2) {
            assert!(pair[0].end() <= pair[1].offset);
            assert_eq!(pair[0].row(pair[0].rows), None);
        }
        // malloc's classes.
        assert!(
            CLASS.row(42).is_some_and(|end| end <= 2 * PAGE),
            "what each process writes"
        );
        let places: Vec<_> = tables.iter().map(|table| table.offset).collect();
        let head = [0, 120, 208, 232, 280, 512, 20_480];
        let rest = [614_400, 630_784, 1_548_288, 2_760_704, 3_837_952];
        assert_eq!((VERSION, places), (3, [&head[..], &rest].concat()));
        assert_eq!(FILE_LEN, 3_866_624);
    }

    /// Each event has a number of its own.
    #[test]
    fn events_have_numbers() {
        for number in 1..=4 {
            assert_eq!(
                What::from_number(number).map(|what| what as u64),
                Some(number)
            );
        }
        assert_eq!(What::from_number(0), None);
        assert_eq!(What::from_number(5), None);
    }
}
