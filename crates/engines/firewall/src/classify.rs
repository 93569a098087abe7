//! Which rule of a list is a packet's first.
//!
//! # Model
//! Bit vectors (Lakshman and Stiliadis, SIGCOMM 1998), aggregated (Baboescu and Varghese, SIGCOMM 2001). There is a [`Table`] for
//! each direction and version of IP, with the rules that can match there. For each field, numbers are cut into intervals within which
//! the same rules match: a class, which is a bit for each rule. The classes of a packet's fields are found by [`Search`], and the first
//! bit that all have is the rule.
//!
//! Rules are numbered by which fields they leave open, then by their order: bits of rules that differ in that do not share a word, in which each field
//! would find one and all none. Of each such group the first rule counts, and of those the one that comes first in the list.
//!
//! Most rules leave most fields open. A class has only those words of bits that differ from the field's `any`, the bits of rules for
//! which the field is open, and a summary of 64 words in one: the words that have a bit in all classes are found from the summaries.
//!
//! # Limits
//! Cost: four nodes for each field, and at most [`WORDS_MAX`] words of each, whatever the rules are. Memory: [`BYTES_MAX`]; rules that
//! would take more, such as thousands of nested ranges, are refused. So are rules that would take long to compile ([`CompileError::TooSlow`]).
//! Rules that name the same set are swept as one.

use std::collections::HashMap;

use thiserror::Error;
use windlass_rules::Addresses::{Any, Set};
use windlass_rules::{Direction, Family, Prefix, RULES_MAX, Rule, Rules, Side, State};

use windlass_wire::ether::proto;

use crate::packet::Packet;
use crate::search::Search;

/// Rules are grouped by which of their fields are open: so many groups at most.
const GROUPS: usize = 64;
/// Words of bits at most: a group begins a word.
pub const WORDS_MAX: usize = RULES_MAX.div_ceil(64) + GROUPS;
/// Words of a summary.
const SUMMARY: usize = WORDS_MAX.div_ceil(64);
/// Bytes of the classes and words of a list at most; the search trees are not counted.
pub const BYTES_MAX: usize = 8 << 20;
/// Words of bits that are changed and looked up while a list is compiled.
const TIME_MAX: usize = 8 << 20;

/// Why rules are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Their tables would be larger than [`BYTES_MAX`].
    #[error("the rules overlap too much: their tables would need more than {} MiB", BYTES_MAX >> 20)]
    TooLarge,
    /// It would take too long.
    #[error("the rules overlap too much: they would take too long to compile")]
    TooSlow,
    /// More than [`RULES_MAX`].
    #[error("{0} rules; there may be {RULES_MAX}")]
    TooMany(usize),
}

/// The rules that match within an interval of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class {
    /// Words that are not 0.
    nonzero: [u64; SUMMARY],
    /// Words that are not the field's `any`.
    differs: [u64; SUMMARY],
    /// Where those begin, by word of the summary.
    base: [u32; SUMMARY],
}

/// The classes of a field.
#[derive(Debug, Default)]
struct Field {
    any: Vec<u64>,
    classes: Vec<Class>,
    packed: Vec<u64>,
}

impl Field {
    #[inline(always)]
    fn class(&self, class: u32) -> Option<&Class> {
        self.classes.get(class as usize)
    }

    /// Word `bit` of summary word `s`.
    #[inline(always)]
    fn word(&self, class: &Class, s: usize, bit: u32) -> u64 {
        let differs = class.differs.get(s).copied().unwrap_or(0);
        if differs >> bit & 1 == 0 {
            let index = s.wrapping_mul(64).wrapping_add(bit as usize);
            return self.any.get(index).copied().unwrap_or(0);
        }
        let before = (differs & (1u64 << bit).wrapping_sub(1)).count_ones();
        let base = class.base.get(s).copied().unwrap_or(0);
        let index = base.wrapping_add(before) as usize;
        self.packed.get(index).copied().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        let classes = self.classes.len().saturating_mul(size_of::<Class>());
        let words = self.any.len().saturating_add(self.packed.len());
        classes.saturating_add(words.saturating_mul(8))
    }
}

/// What compiling a list may take.
struct Budget {
    /// Bytes of classes and words.
    bytes: usize,
    /// Words that are changed and looked up.
    words: usize,
}

impl Budget {
    fn take_words(&mut self, words: usize) -> Result<(), CompileError> {
        let left = self.words.checked_sub(words);
        self.words = left.ok_or(CompileError::TooSlow)?;
        Ok(())
    }
}

/// Ranges of a field, each with the group of rules that has it, and the rules for which it is open. A rule is in one group at most.
struct Ranges {
    ranges: Vec<(u128, u128, u32)>,
    /// Of each group: its rules, as bits of words in ascending order.
    groups: Vec<Vec<(u32, u64)>>,
    /// Groups of the rules that name a set.
    by_set: HashMap<usize, u32>,
    open: Vec<u32>,
    words: usize,
}

impl Ranges {
    fn new(rules: usize) -> Ranges {
        Ranges {
            ranges: Vec::new(),
            groups: Vec::new(),
            by_set: HashMap::new(),
            open: Vec::new(),
            words: rules.div_ceil(64),
        }
    }

    /// Rules come in ascending order.
    fn add(&mut self, rule: u32, ranges: Option<Vec<(u128, u128)>>) {
        match ranges {
            None => self.open.push(rule),
            Some(ranges) => {
                let group = self.groups.len() as u32;
                self.groups.push(vec![bit_of(rule)]);
                let ranges = ranges.into_iter().map(|(first, last)| (first, last, group));
                self.ranges.extend(ranges);
            }
        }
    }

    /// The same for a set, whose ranges are asked for once.
    fn add_set(&mut self, rule: u32, set: usize, ranges: impl FnOnce() -> Vec<(u128, u128)>) {
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

    /// The field, and the intervals with their classes.
    fn classes(self, budget: &mut Budget) -> Result<(Field, Vec<(u128, u32)>), CompileError> {
        let mut any = vec![0u64; self.words];
        for rule in &self.open {
            toggle(&mut any, &[bit_of(*rule)]);
        }
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
            now: any.clone(),
            known: HashMap::new(),
            field: Field {
                any,
                ..Field::default()
            },
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
                None => return Ok((sweep.field, starts)),
            }
        }
    }
}

/// The word of a rule, and its bit there.
const fn bit_of(rule: u32) -> (u32, u64) {
    (rule / 64, 1 << (rule % 64))
}

fn toggle(words: &mut [u64], bits: &[(u32, u64)]) {
    for (word, bits) in bits {
        if let Some(word) = words.get_mut(*word as usize) {
            *word ^= bits;
        }
    }
}

/// Intervals in ascending order.
struct Sweep {
    /// By group: how many of its ranges are open here.
    depth: Vec<u32>,
    groups: Vec<Vec<(u32, u64)>>,
    now: Vec<u64>,
    /// Classes by the words that differ from `any`.
    known: HashMap<Vec<(u32, u64)>, u32>,
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
            toggle(&mut self.now, bits);
        }
        Ok(())
    }

    fn class(&mut self, budget: &mut Budget) -> Result<u32, CompileError> {
        let pairs = (0..).zip(self.now.iter().zip(&self.field.any));
        let differ = pairs.filter(|(_, (now, any))| now != any);
        let words: Vec<(u32, u64)> = differ.map(|(word, (now, _))| (word, *now)).collect();
        budget.take_words(words.len())?;
        if let Some(class) = self.known.get(&words) {
            return Ok(*class);
        }
        let cost = size_of::<Class>().saturating_add(words.len().saturating_mul(8));
        let left = budget.bytes.checked_sub(cost);
        budget.bytes = left.ok_or(CompileError::TooLarge)?;
        let mut class = Class {
            nonzero: [0; SUMMARY],
            differs: [0; SUMMARY],
            base: [self.field.packed.len() as u32; SUMMARY],
        };
        let mark = |summary: &mut [u64; SUMMARY], word: u32| {
            if let Some(s) = summary.get_mut(word as usize / 64) {
                *s |= 1 << (word % 64);
            }
        };
        for (word, bits) in (0..).zip(&self.now) {
            if *bits != 0 {
                mark(&mut class.nonzero, word);
            }
        }
        for (word, bits) in &words {
            mark(&mut class.differs, *word);
            self.field.packed.push(*bits);
            let behind = class
                .base
                .iter_mut()
                .skip((*word as usize / 64).saturating_add(1));
            behind.for_each(|base| *base = self.field.packed.len() as u32);
        }
        let index = self.field.classes.len() as u32;
        self.field.classes.push(class);
        self.known.insert(words, index);
        Ok(index)
    }
}

/// Addresses of a field.
#[derive(Debug)]
enum Addresses {
    V4(Search<u32>),
    V6(Search<u128>),
}

impl Addresses {
    #[inline(always)]
    fn find(&self, address: u128) -> u32 {
        match self {
            Addresses::V4(search) => search.find(address as u32),
            Addresses::V6(search) => search.find(address),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Addresses::V4(search) => search.bytes(),
            Addresses::V6(search) => search.bytes(),
        }
    }
}

/// Fields, in this order: protocol and state, the second port, both addresses, the first port.
const FIELDS: usize = 5;

/// The rules of one direction and one version of IP.
#[derive(Debug)]
struct Table {
    /// By number here: the rule's number in the list.
    rules: Vec<u16>,
    fields: [Field; FIELDS],
    kinds: Search<u16>,
    ports: [Search<u16>; 2],
    addresses: [Addresses; 2],
}

/// No rule.
const NONE: u16 = u16::MAX;

/// Protocol and state as one number.
#[inline(always)]
fn kind(protocol: u8, state: State) -> u16 {
    u16::from(state as u8) << 8 | u16::from(protocol)
}

/// A list of rules, ready to be asked.
#[derive(Debug)]
pub struct Classifier {
    /// By direction and version of IP.
    tables: [[Option<Box<Table>>; 2]; 2],
}

fn family_of(prefix: &Prefix) -> Family {
    if prefix.address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

/// Rules by which of their fields are open, in their order, each group from the beginning of a word on.
fn grouped(mut here: Vec<(u16, &Rule)>) -> Vec<Option<(u16, &Rule)>> {
    let group = |rule: &Rule| {
        let has = |side: &Side| (side.addresses != Any, !side.ports.is_empty());
        (
            kinds_of(rule).is_some(),
            has(&rule.from),
            has(&rule.to),
            rule.icmp.is_some(),
        )
    };
    here.sort_by_key(|(_, rule)| group(rule));
    let mut slots: Vec<Option<(u16, &Rule)>> = Vec::new();
    for (number, rule) in here {
        let is_other = slots
            .last()
            .is_some_and(|last| last.is_some_and(|(_, before)| group(before) != group(rule)));
        if is_other {
            slots.resize(slots.len().next_multiple_of(64), None);
        }
        slots.push(Some((number, rule)));
    }
    slots
}

/// What the rules of a table say of each field, in the order of the fields.
fn ranges(list: &Rules, here: &[Option<(u16, &Rule)>], family: Family) -> [Ranges; FIELDS] {
    let mut ranges = [(); FIELDS].map(|()| Ranges::new(here.len()));
    let [kinds, to_port, from, to, from_port] = &mut ranges;
    for (number, rule) in (0u32..).zip(here) {
        let Some((_, rule)) = rule else {
            continue;
        };
        let prefixes = |side: &Side| {
            let prefixes = list.prefixes(side)?.iter();
            let prefixes = prefixes.filter(|prefix| family_of(prefix) == family);
            Some(prefixes.map(Prefix::range).collect::<Vec<_>>())
        };
        let addresses = |ranges: &mut Ranges, side: &Side| match side.addresses {
            Set(set) => ranges.add_set(number, set, || prefixes(side).unwrap_or_default()),
            _ => ranges.add(number, prefixes(side)),
        };
        let ports = |side: &[(u16, u16)]| {
            let wide = |(first, last): &(u16, u16)| ((*first).into(), (*last).into());
            (!side.is_empty()).then(|| side.iter().map(wide).collect())
        };
        let second = rule.icmp.map(|(kind, code)| {
            let first = u128::from(kind) << 8;
            let range = |code| (first | u128::from(code), first | u128::from(code));
            vec![code.map_or((first, first | 0xff), |code: u8| range(code))]
        });
        kinds.add(number, kinds_of(rule));
        to_port.add(number, second.or_else(|| ports(&rule.to.ports)));
        addresses(from, &rule.from);
        addresses(to, &rule.to);
        from_port.add(number, ports(&rule.from.ports));
    }
    ranges
}

/// Intervals of numbers that are narrower.
fn narrow<K: Copy + Ord + TryFrom<u128>>(starts: &[(u128, u32)], last: K) -> Search<K> {
    let narrow = |(start, class): &(u128, u32)| Some((K::try_from(*start).ok()?, *class));
    let starts: Vec<_> = starts.iter().filter_map(narrow).collect();
    Search::new(&starts, last)
}

impl Table {
    fn new(
        list: &Rules,
        direction: Direction,
        family: Family,
        budget: &mut Budget,
    ) -> Result<Option<Box<Table>>, CompileError> {
        let can_match = |rule: &Rule| {
            let is_here = |prefixes: Option<&[Prefix]>| {
                prefixes.is_none_or(|all| all.iter().any(|p| family_of(p) == family))
            };
            let of_icmp = if family == Family::V4 {
                proto::ICMP
            } else {
                proto::ICMPV6
            };
            rule.direction.is_none_or(|d| d == direction)
                && (rule.icmp.is_none() || rule.protocol == Some(of_icmp))
                && rule.family.is_none_or(|f| f == family)
                && is_here(list.prefixes(&rule.from))
                && is_here(list.prefixes(&rule.to))
        };
        let numbered = (0u16..).zip(&list.rules);
        let here: Vec<(u16, &Rule)> = numbered.filter(|(_, rule)| can_match(rule)).collect();
        if here.is_empty() {
            return Ok(None);
        }
        let here = grouped(here);
        let [kinds, to_port, from, to, from_port] = ranges(list, &here, family);
        let port = |starts: Vec<(u128, u32)>| narrow(&starts, u16::MAX);
        let address = |starts: Vec<(u128, u32)>| match family {
            Family::V4 => Addresses::V4(narrow(&starts, u32::MAX)),
            Family::V6 => Addresses::V6(Search::new(&starts, u128::MAX)),
        };
        let (f0, kinds) = kinds.classes(budget)?;
        let (f1, to_port) = to_port.classes(budget)?;
        let (f2, from) = from.classes(budget)?;
        let (f3, to) = to.classes(budget)?;
        let (f4, from_port) = from_port.classes(budget)?;
        Ok(Some(Box::new(Table {
            rules: here
                .iter()
                .map(|rule| rule.map_or(NONE, |(number, _)| number))
                .collect(),
            fields: [f0, f1, f2, f3, f4],
            kinds: port(kinds),
            ports: [port(from_port), port(to_port)],
            addresses: [address(from), address(to)],
        })))
    }

    #[inline(always)]
    fn first(&self, packet: &Packet, state: State) -> Option<u16> {
        let (from_port, second) = packet.ports_of_rules();
        let [ports_from, ports_to] = &self.ports;
        let [from, to] = &self.addresses;
        let found = [
            self.kinds.find(kind(packet.protocol, state)),
            ports_to.find(second),
            from.find(packet.from),
            to.find(packet.to),
            ports_from.find(from_port),
        ];
        let [c0, c1, c2, c3, c4] = found;
        let [f0, f1, f2, f3, f4] = &self.fields;
        let (c0, c1, c2) = (f0.class(c0)?, f1.class(c1)?, f2.class(c2)?);
        let (c3, c4) = (f3.class(c3)?, f4.class(c4)?);
        let mut best = NONE;
        for s in 0..self.rules.len().div_ceil(64 * 64).min(SUMMARY) {
            let all = [c0, c1, c2, c3, c4].map(|class| class.nonzero.get(s).copied());
            let mut words = all
                .into_iter()
                .fold(u64::MAX, |m, word| m & word.unwrap_or(0));
            while words != 0 {
                let bit = words.trailing_zeros();
                words &= words.wrapping_sub(1);
                let word = s.wrapping_mul(64).wrapping_add(bit as usize);
                let first = word.wrapping_mul(64);
                // A group is in order: what follows a match is no better.
                if self.rules.get(first).is_none_or(|rule| *rule >= best) {
                    continue;
                }
                let rules = f0.word(c0, s, bit)
                    & f1.word(c1, s, bit)
                    & f2.word(c2, s, bit)
                    & f3.word(c3, s, bit)
                    & f4.word(c4, s, bit);
                if rules != 0 {
                    let index = first.wrapping_add(rules.trailing_zeros() as usize);
                    best = best.min(self.rules.get(index).copied().unwrap_or(NONE));
                }
            }
        }
        (best != NONE).then_some(best)
    }

    fn bytes(&self) -> usize {
        let fields: usize = self.fields.iter().map(Field::bytes).sum();
        let ports: usize = self.ports.iter().map(Search::bytes).sum();
        let addresses: usize = self.addresses.iter().map(Addresses::bytes).sum();
        let rest = self
            .kinds
            .bytes()
            .saturating_add(self.rules.len().saturating_mul(2));
        fields
            .saturating_add(ports)
            .saturating_add(addresses)
            .saturating_add(rest)
    }
}

/// What a rule says of protocol and state; none if nothing.
fn kinds_of(rule: &Rule) -> Option<Vec<(u128, u128)>> {
    if rule.protocol.is_none() && rule.states.is_any() {
        return None;
    }
    let states = State::ALL
        .into_iter()
        .filter(|state| rule.states.matches(*state));
    let (first, last) = rule
        .protocol
        .map_or((0, u8::MAX), |number| (number, number));
    let range = |state| (kind(first, state).into(), kind(last, state).into());
    Some(states.map(range).collect())
}

impl Classifier {
    /// Prepares a list.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn new(list: &Rules) -> Result<Classifier, CompileError> {
        if list.rules.len() > RULES_MAX {
            return Err(CompileError::TooMany(list.rules.len()));
        }
        let mut budget = Budget {
            bytes: BYTES_MAX,
            words: TIME_MAX,
        };
        let mut table = |direction, family| Table::new(list, direction, family, &mut budget);
        let (inwards, out) = (Direction::In, Direction::Out);
        Ok(Classifier {
            tables: [
                [table(inwards, Family::V4)?, table(inwards, Family::V6)?],
                [table(out, Family::V4)?, table(out, Family::V6)?],
            ],
        })
    }

    /// The number of the first rule that matches a packet.
    #[inline]
    pub fn first(&self, direction: Direction, packet: &Packet, state: State) -> Option<u16> {
        let [inwards, out] = &self.tables;
        let [v4, v6] = match direction {
            Direction::In => inwards,
            Direction::Out => out,
        };
        let table = match packet.family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        table.as_ref()?.first(packet, state)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let tables = self.tables.iter().flatten().flatten();
        tables.map(|table| table.bytes()).sum()
    }
}
