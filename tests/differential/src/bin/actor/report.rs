//! The words of a command and the text of its answer.

use std::fmt::{Display, Write};

use crate::calls::Answer;

/// The hash of no bytes.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// The words of one command; the first is its verb.
pub(crate) struct Arguments<'a>(pub(crate) &'a [&'a str]);

impl<'a> Arguments<'a> {
    /// Word `index`, empty where there are fewer.
    pub(crate) fn word(&self, index: usize) -> &'a str {
        self.0.get(index).copied().unwrap_or("")
    }

    /// Word `index` as a number, 0 where it is none.
    pub(crate) fn number(&self, index: usize) -> i64 {
        self.word(index).parse().unwrap_or(0)
    }

    /// Words from `index` on.
    pub(crate) fn rest(&self, index: usize) -> &'a [&'a str] {
        self.0.get(index..).unwrap_or(&[])
    }
}

/// `key=value` words. A key that starts with `~` is for the runner only and is not compared.
#[derive(Default)]
pub(crate) struct Report(String);

impl Report {
    pub(crate) fn put(&mut self, key: &str, value: impl Display) {
        // A String takes whatever is written to it.
        let _ = write!(self.0, "{key}={value} ");
    }

    /// What a call returned.
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.put("ret", answer.value);
        if answer.errno != 0 {
            self.put("errno", answer.errno);
        }
    }

    /// What a call returned that makes a descriptor.
    pub(crate) fn made(&mut self, answer: Answer) {
        self.put("fd", answer.value);
        if answer.errno != 0 {
            self.put("errno", answer.errno);
        }
    }

    /// Bytes that came: their hash and the first four.
    pub(crate) fn data(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.more_data(HASH_START, bytes);
        let first: String = bytes
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.put("~first", first);
    }

    /// Bytes that came after others, whose hash is `state`.
    pub(crate) fn more_data(&mut self, state: u64, bytes: &[u8]) {
        self.put("data", format_args!("{:016x}", hash(state, bytes)));
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

const PRIME: u64 = 0x0000_0100_0000_01b3;

/// More bytes than this are hashed eight at a time.
const HASHED_SINGLY: usize = 65_536;

/// FNV-1a, which can go on where it ended: what arrives in two parts has the hash of the whole.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    if bytes.len() > HASHED_SINGLY {
        let words = bytes.chunks_exact(8);
        let rest = hash(state, words.remainder());
        let word = |chunk: &[u8]| chunk.try_into().map(u64::from_le_bytes).unwrap_or_default();
        return words.fold(rest, |hash, chunk| {
            (hash ^ word(chunk)).wrapping_mul(PRIME).rotate_left(23)
        });
    }
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    bytes.iter().fold(state, step)
}

/// Bytes of one round of [`pattern`]: a prime, so that no buffer's size is a multiple of it.
const ROUND: usize = 4093;

/// Bytes that depend on their position: byte `i` of what starts at `tag`.
pub(crate) fn pattern(tag: u64, length: usize) -> Vec<u8> {
    static TABLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        (0..ROUND as u64)
            .map(|i| ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect()
    });
    let mut bytes = Vec::with_capacity(length);
    let mut from = (tag % ROUND as u64) as usize;
    while bytes.len() < length {
        let to = ROUND.min(from + length - bytes.len());
        bytes.extend_from_slice(&TABLE[from..to]);
        from = 0;
    }
    bytes
}
