//! The classes of a field: which rules match within which of its intervals.
//!
//! # Model
//! A class is a bit for each rule, in [`Block`]s of a cache line each, and the numbers of its blocks. Most rules leave most fields open, so most blocks
//! are those of other classes, and equal ones are kept once. [`Field::nonzero`] says which blocks have a bit.
//!
//! Intervals are swept in ascending order, and with each edge the rules that have it change.

use std::collections::HashMap;

use crate::classify::{BYTES_MAX, CompileError, WORDS_MAX};

/// Words of a block.
pub(crate) const WORDS: usize = 8;
const _: () = assert!(WORDS_MAX.div_ceil(WORDS) <= u32::BITS as usize);
/// Words of bits that are changed and looked up while a list is compiled.
const TIME_MAX: usize = 8 << 20;

/// Bits of 512 rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [u64; WORDS]);

impl Block {
    const ZERO: Block = Block([0; WORDS]);
    /// All rules.
    pub(crate) const ALL: Block = Block([u64::MAX; WORDS]);
}

/// The classes of a field.
#[derive(Debug, Default)]
pub(crate) struct Field {
    /// By class: blocks that are not 0.
    nonzero: Vec<u32>,
    /// By class: the numbers of its blocks.
    rows: Vec<u16>,
    /// Blocks of a class.
    width: usize,
    blocks: Vec<Block>,
}

/// One class of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class<'a> {
    field: &'a Field,
    /// Where its row begins.
    row: usize,
    /// Blocks that are not 0.
    pub(crate) nonzero: u32,
}

impl Class<'_> {
    /// The rules of a block that are `also` these.
    #[inline(always)]
    pub(crate) fn common(&self, index: usize, also: Block) -> Block {
        let number = self.field.rows.get(self.row.wrapping_add(index));
        let block = number.and_then(|number| self.field.blocks.get(usize::from(*number)));
        let (
            Block([a0, a1, a2, a3, a4, a5, a6, a7]),
            Some(Block([b0, b1, b2, b3, b4, b5, b6, b7])),
        ) = (also, block)
        else {
            return Block::ZERO;
        };
        Block([
            a0 & b0,
            a1 & b1,
            a2 & b2,
            a3 & b3,
            a4 & b4,
            a5 & b5,
            a6 & b6,
            a7 & b7,
        ])
    }
}

impl Field {
    #[inline(always)]
    pub(crate) fn class(&self, class: u32) -> Class<'_> {
        let class = class as usize;
        Class {
            field: self,
            row: class.wrapping_mul(self.width),
            nonzero: self.nonzero.get(class).copied().unwrap_or(0),
        }
    }

    fn shrunk(mut self) -> Field {
        self.nonzero.shrink_to_fit();
        self.rows.shrink_to_fit();
        self.blocks.shrink_to_fit();
        self
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let classes = size_of_val(&*self.nonzero).saturating_add(size_of_val(&*self.rows));
        classes.saturating_add(size_of_val(&*self.blocks))
    }
}

/// What compiling a list may take.
pub(crate) struct Budget {
    /// Bytes of classes and blocks.
    bytes: usize,
    /// Words that are changed and looked up.
    words: usize,
}

impl Budget {
    pub(crate) const fn new() -> Budget {
        Budget {
            bytes: BYTES_MAX,
            words: TIME_MAX,
        }
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), CompileError> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or(CompileError::TooLarge)?;
        Ok(())
    }

    fn take_words(&mut self, words: usize) -> Result<(), CompileError> {
        let left = self.words.checked_sub(words);
        self.words = left.ok_or(CompileError::TooSlow)?;
        Ok(())
    }
}

/// Ranges of a field, each with the group of rules that has it, and the rules for which it is open. A rule is in one group at most.
pub(crate) struct Ranges {
    ranges: Vec<(u128, u128, u32)>,
    /// Of each group: its rules, as bits of words in ascending order.
    groups: Vec<Vec<(u32, u64)>>,
    /// Groups of the rules that name a set.
    by_set: HashMap<usize, u32>,
    /// Bits of the rules for which it is open.
    open: Vec<Block>,
}

impl Ranges {
    pub(crate) fn new(rules: usize) -> Ranges {
        Ranges {
            ranges: Vec::new(),
            groups: Vec::new(),
            by_set: HashMap::new(),
            open: vec![Block::ZERO; rules.div_ceil(64).div_ceil(WORDS)],
        }
    }

    /// Rules come in ascending order.
    pub(crate) fn add(&mut self, rule: u32, ranges: Option<Vec<(u128, u128)>>) {
        match ranges {
            None => toggle(&mut self.open, bit_of(rule)),
            Some(ranges) => {
                let group = self.groups.len() as u32;
                self.groups.push(vec![bit_of(rule)]);
                let ranges = ranges.into_iter().map(|(first, last)| (first, last, group));
                self.ranges.extend(ranges);
            }
        }
    }

    /// The same for a set, whose ranges are asked for once.
    pub(crate) fn add_set(
        &mut self,
        rule: u32,
        set: usize,
        ranges: impl FnOnce() -> Vec<(u128, u128)>,
    ) {
        let Some(group) = self.by_set.get(&set) else {
            self.by_set.insert(set, self.groups.len() as u32);
            self.add(rule, Some(ranges()));
            return;
        };
        let (word, bit) = bit_of(rule);
        if let Some(bits) = self.groups.get_mut(*group as usize) {
            match bits.last_mut() {
                Some((last, bits)) if *last == word => *bits |= bit,
                _ => bits.push((word, bit)),
            }
        }
    }

    /// Whether it is open for all rules.
    pub(crate) fn is_open(&self) -> bool {
        self.groups.is_empty()
    }

    /// The field, and the intervals with their classes.
    pub(crate) fn classes(
        self,
        budget: &mut Budget,
    ) -> Result<(Field, Vec<(u128, u32)>), CompileError> {
        // Where a range begins or has ended, in order.
        let mut edges: Vec<(u128, bool, u32)> = Vec::new();
        for (first, last, group) in self.ranges {
            edges.push((first, true, group));
            if let Some(behind) = last.checked_add(1) {
                edges.push((behind, false, group));
            }
        }
        edges.sort_unstable();
        let mut sweep = Sweep {
            depth: vec![0; self.groups.len()],
            groups: self.groups,
            row: vec![0; self.open.len()],
            field: Field {
                width: self.open.len(),
                ..Field::default()
            },
            now: self.open,
            changed: u32::MAX,
            numbers: HashMap::new(),
            known: HashMap::new(),
        };
        let mut starts = Vec::new();
        let mut edges = edges.into_iter().peekable();
        let mut at = 0;
        loop {
            while let Some((_, begins, group)) = edges.next_if(|(edge, ..)| *edge == at) {
                sweep.step(group, begins, budget)?;
            }
            let class = sweep.class(budget)?;
            // A range that ends where another begins may change nothing.
            if starts.last().is_none_or(|(_, last)| *last != class) {
                starts.push((at, class));
            }
            match edges.peek() {
                Some((edge, ..)) => at = *edge,
                None => return Ok((sweep.field.shrunk(), starts)),
            }
        }
    }
}

/// The word of a rule, and its bit there.
const fn bit_of(rule: u32) -> (u32, u64) {
    (rule / 64, 1 << (rule % 64))
}

/// Changes bits of a word.
fn toggle(blocks: &mut [Block], (word, bits): (u32, u64)) {
    let word = word as usize;
    let block = blocks.get_mut(word / WORDS);
    if let Some(word) = block.and_then(|Block(words)| words.get_mut(word % WORDS)) {
        *word ^= bits;
    }
}

/// Intervals in ascending order.
struct Sweep {
    /// By group: how many of its ranges are open here.
    depth: Vec<u32>,
    groups: Vec<Vec<(u32, u64)>>,
    now: Vec<Block>,
    /// The number of each block of `now`, but for those that have `changed` since.
    row: Vec<u16>,
    changed: u32,
    numbers: HashMap<Block, u16>,
    /// Classes by their blocks.
    known: HashMap<Vec<u16>, u32>,
    field: Field,
}

impl Sweep {
    fn step(&mut self, group: u32, begins: bool, budget: &mut Budget) -> Result<(), CompileError> {
        let index = group as usize;
        let (Some(depth), Some(bits)) = (self.depth.get_mut(index), self.groups.get(index)) else {
            return Ok(());
        };
        let was = *depth;
        *depth = if begins {
            was.saturating_add(1)
        } else {
            was.saturating_sub(1)
        };
        if (was == 0) != (*depth == 0) {
            budget.take_words(bits.len())?;
            for bits in bits {
                toggle(&mut self.now, *bits);
                self.changed |= 1 << (bits.0 as usize / WORDS);
            }
        }
        Ok(())
    }

    /// The number of a block.
    fn number(&mut self, block: Block, budget: &mut Budget) -> Result<u16, CompileError> {
        budget.take_words(WORDS)?;
        if let Some(number) = self.numbers.get(&block) {
            return Ok(*number);
        }
        budget.take_bytes(size_of::<Block>())?;
        let number = u16::try_from(self.field.blocks.len()).map_err(|_| CompileError::TooLarge)?;
        self.field.blocks.push(block);
        self.numbers.insert(block, number);
        Ok(number)
    }

    fn class(&mut self, budget: &mut Budget) -> Result<u32, CompileError> {
        let changed = std::mem::take(&mut self.changed);
        for index in (0..self.now.len()).filter(|index| changed >> index & 1 != 0) {
            let Some(block) = self.now.get(index).copied() else {
                continue;
            };
            let number = self.number(block, budget)?;
            if let Some(place) = self.row.get_mut(index) {
                *place = number;
            }
        }
        budget.take_words(self.row.len().div_ceil(4))?;
        if let Some(class) = self.known.get(&self.row) {
            return Ok(*class);
        }
        budget.take_bytes(size_of_val(&*self.row).saturating_add(4))?;
        let class = self.field.nonzero.len() as u32;
        let nonzero = (0..)
            .zip(&self.now)
            .filter(|(_, block)| **block != Block::ZERO);
        let nonzero = nonzero.fold(0, |all, (index, _)| all | 1u32 << index);
        self.field.nonzero.push(nonzero);
        self.field.rows.extend(&self.row);
        self.known.insert(self.row.clone(), class);
        Ok(class)
    }
}
