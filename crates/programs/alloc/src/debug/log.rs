//! Logs: rings of what happened last.

use core::marker::PhantomData;
use core::ptr;

use windlass_memory::options::Key;

use crate::options;
use crate::sys;

use super::record::describe_table;
use super::stack::{FAILED, Transaction};

/// An allocation or a free.
#[derive(Debug, Clone)]
pub struct Event {
    /// The buffer; 0: the allocation failed.
    pub object: usize,
    /// Its size.
    pub size: usize,
    /// What, who, when.
    pub what: Transaction,
}

/// The first bytes that a freed buffer had.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The buffer.
    pub object: usize,
    /// Bytes that were copied.
    pub len: usize,
    /// They.
    pub bytes: [u8; CONTENTS_MAX],
}

/// Bytes of a buffer that can be kept.
pub const CONTENTS_MAX: usize = 256;

/// The last entries, as many as an option says in bytes.
struct Ring<T> {
    key: Key,
    /// Its number for readers from outside.
    table: usize,
    first: usize,
    room: usize,
    written: usize,
    entries: PhantomData<T>,
}

impl<T> Ring<T> {
    const fn new(key: Key, table: usize) -> Self {
        Self {
            key,
            table,
            first: 0,
            room: 0,
            written: 0,
            entries: PhantomData,
        }
    }

    fn place(&self, at: usize) -> *mut T {
        (self.first as *mut T).wrapping_add(at % self.room)
    }

    fn push(&mut self, entry: T) {
        let room = options::get(self.key) / size_of::<T>();
        if room == 0 {
            return;
        }
        if self.room == 0 {
            let len = room * size_of::<T>();
            let Some(first) = sys::map_memory(len) else {
                return;
            };
            describe_table(self.table, first, len);
            (self.first, self.room) = (first, room);
        }
        // SAFETY: a place of the ring, which this has alone.
        unsafe { self.place(self.written).write(entry) };
        self.written += 1;
    }

    /// The entries, the newest first.
    fn newest(&self) -> impl Iterator<Item = &T> {
        let oldest = self.written.saturating_sub(self.room);
        (oldest..self.written).rev().map(|at| {
            // SAFETY: an entry that was written.
            unsafe { &*self.place(at) }
        })
    }
}

/// The three logs.
pub struct Logs {
    events: Ring<Event>,
    contents: Ring<Contents>,
    failures: Ring<Event>,
}

impl Logs {
    /// Logs without entries.
    pub const fn new() -> Self {
        Self {
            events: Ring::new(Key::Transaction, 1),
            contents: Ring::new(Key::ContentsLog, 2),
            failures: Ring::new(Key::Fail, 3),
        }
    }

    /// Notes a transaction.
    pub fn happened(&mut self, object: usize, size: usize, what: &Transaction) {
        self.events.push(Event {
            object,
            size,
            what: what.clone(),
        });
    }

    /// Notes an allocation that failed.
    pub fn failed(&mut self, size: usize, what: &Transaction) {
        let mut what = what.clone();
        what.kind = FAILED;
        self.failures.push(Event {
            object: 0,
            size,
            what,
        });
    }

    /// How many bytes of a freed buffer are to be kept.
    pub fn wants_contents(&self, size: usize) -> Option<usize> {
        let wanted = options::get(Key::Contents).min(CONTENTS_MAX);
        (wanted > 0 && options::get(Key::ContentsLog) > 0).then_some(wanted.min(size))
    }

    /// Keeps the first bytes of a freed buffer.
    pub fn contents(&mut self, object: usize, len: usize) {
        let mut bytes = [0; CONTENTS_MAX];
        // SAFETY: a buffer that its owner has just freed, of at least that many bytes.
        unsafe { ptr::copy_nonoverlapping(object as *const u8, bytes.as_mut_ptr(), len) };
        self.contents.push(Contents { object, len, bytes });
    }

    /// What was kept of a buffer last.
    pub fn last_contents(&self, object: usize) -> Option<&Contents> {
        self.contents.newest().find(|kept| kept.object == object)
    }

    /// The transactions of a buffer, or the failures (`object` 0), the newest first.
    pub fn events(&self, object: usize) -> impl Iterator<Item = &Event> {
        let log = if object == 0 {
            &self.failures
        } else {
            &self.events
        };
        log.newest().filter(move |event| event.object == object)
    }
}
