//! Debugging records, as they lie in the process: for readers from outside.
//!
//! The description is words of 64 bits: [`Word`] is the place of each. Its address is `debug` of the status file's anchor. Without debugging words
//! [`Word::Records`] is 0. A record whose object is 0 never had a buffer.

/// A word of the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Address of the records.
    Records,
    /// Bytes of each.
    Stride,
    /// How many there are.
    Count,
    /// In a record: what the program was given, a word.
    Object,
    /// In a record: what it asked for, a word.
    Size,
    /// In a record: CLOCK_MONOTONIC of the last transaction, ns, a word; 0 without `audit`.
    Time,
    /// In a record: its thread, 4 bytes.
    Thread,
    /// In a record: frames of its stack, a byte.
    Depth,
    /// In a record: addresses behind the calls, the innermost first, a word each.
    Stack,
    /// In a record: a byte; [`LIVE`] while the program has the buffer.
    State,
    /// In a record: 4 bytes. 0: malloc's; else 1 + the row of the object cache.
    Owner,
}

/// Words of the description: those of [`Word`], then pairs of an address and bytes: further tables with addresses of buffers.
pub const WORDS: usize = TABLES_AT + 2 * TABLES;
/// Words before the first pair.
pub const TABLES_AT: usize = Word::Owner as usize + 1;
/// Pairs. Where the bytes are 0 there is no table.
pub const TABLES: usize = 4;
/// The state of a buffer that the program has.
pub const LIVE: u8 = 1;
/// The state of a buffer that was freed and whose memory is kept from being used again.
pub const WAITING: u8 = 2;
