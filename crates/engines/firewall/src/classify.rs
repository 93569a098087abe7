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
//! Most rules leave most fields open. A class has its bits in blocks of 512 rules, of which equal ones are kept once, and a word that says which of them
//! have a bit: only blocks that have one in all classes are looked at. A field that no rule names is not looked up.
//!
//! # Limits
//! Cost: five searches, and at most 28 blocks of each field, whatever the rules are. Memory: [`BYTES_MAX`]; rules that would take more, such as
//! thousands that each have other ranges, are refused. So are rules that would take long to compile ([`CompileError::TooSlow`]).
//! Rules that name the same set are swept as one.

use thiserror::Error;
use windlass_rules::Addresses::{Any, Set};
use windlass_rules::{Direction, Family, Prefix, RULES_MAX, Rule, Rules, Side, State};

use windlass_wire::ether::proto;

use crate::class::{Block, Budget, Class, Field, Ranges, WORDS};
use crate::packet::Packet;
use crate::search::{Number, Search};

/// Rules are grouped by which of their fields are open: so many groups at most.
const GROUPS: usize = 64;
/// Words of bits at most: a group begins a word.
pub const WORDS_MAX: usize = RULES_MAX.div_ceil(64) + GROUPS;
/// Bytes of the classes of a list at most; what finds them is not counted.
pub const BYTES_MAX: usize = 8 << 20;

/// Why rules are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Their tables would be larger than [`BYTES_MAX`], or a field's have more than 65,536 different blocks.
    #[error("the rules overlap too much: their tables would be too large")]
    TooLarge,
    /// It would take too long.
    #[error("the rules overlap too much: they would take too long to compile")]
    TooSlow,
    /// More than [`RULES_MAX`].
    #[error("{0} rules; there may be {RULES_MAX}")]
    TooMany(usize),
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

    /// What finds addresses of this version.
    fn of(family: Family) -> impl Fn(&[(u128, u32)]) -> Addresses {
        move |starts| match family {
            Family::V4 => Addresses::V4(narrow(starts)),
            Family::V6 => Addresses::V6(Search::new(starts)),
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
    kinds: Lookup<Search<u16>>,
    to_port: Option<Lookup<Search<u16>>>,
    from: Option<Lookup<Addresses>>,
    to: Option<Lookup<Addresses>>,
    from_port: Option<Lookup<Search<u16>>>,
}

/// A field that some rule names.
#[derive(Debug)]
struct Lookup<S> {
    search: S,
    field: Field,
}

impl<S> Lookup<S> {
    /// The class of a number.
    #[inline(always)]
    fn class<K>(&self, find: impl Fn(&S, K) -> u32, number: K) -> Class<'_> {
        self.field.class(find(&self.search, number))
    }

    fn new(
        ranges: Ranges,
        search: impl Fn(&[(u128, u32)]) -> S,
        budget: &mut Budget,
    ) -> Result<Lookup<S>, CompileError> {
        let (field, starts) = ranges.classes(budget)?;
        Ok(Lookup {
            search: search(&starts),
            field,
        })
    }

    /// None if no rule names the field.
    fn of(
        ranges: Ranges,
        search: impl Fn(&[(u128, u32)]) -> S,
        budget: &mut Budget,
    ) -> Result<Option<Lookup<S>>, CompileError> {
        let named = (!ranges.is_open()).then_some(ranges);
        named
            .map(|ranges| Lookup::new(ranges, search, budget))
            .transpose()
    }
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
fn narrow<K: Number + TryFrom<u128>>(starts: &[(u128, u32)]) -> Search<K> {
    let narrow = |(start, class): &(u128, u32)| Some((K::try_from(*start).ok()?, *class));
    let starts: Vec<_> = starts.iter().filter_map(narrow).collect();
    Search::new(&starts)
}

impl Table {
    fn new(
        list: &Rules,
        direction: Direction,
        family: Family,
        budget: &mut Budget,
    ) -> Result<Option<Box<Table>>, CompileError> {
        let has_any = |prefixes: &[Prefix]| prefixes.iter().any(|p| family_of(p) == family);
        // Thousands of rules may name a set of thousands.
        let sets_here: Vec<bool> = list.sets.iter().map(|set| has_any(&set.prefixes)).collect();
        let can_match = |rule: &Rule| {
            let is_here = |side: &Side| match side.addresses {
                Set(set) => sets_here.get(set).copied().unwrap_or(false),
                _ => list.prefixes(side).is_none_or(&has_any),
            };
            let of_icmp = if family == Family::V4 {
                proto::ICMP
            } else {
                proto::ICMPV6
            };
            rule.direction.is_none_or(|d| d == direction)
                && (rule.icmp.is_none() || rule.protocol == Some(of_icmp))
                && rule.family.is_none_or(|f| f == family)
                && is_here(&rule.from)
                && is_here(&rule.to)
        };
        let numbered = (0u16..).zip(&list.rules);
        let here: Vec<(u16, &Rule)> = numbered.filter(|(_, rule)| can_match(rule)).collect();
        if here.is_empty() {
            return Ok(None);
        }
        let here = grouped(here);
        let [kinds, to_port, from, to, from_port] = ranges(list, &here, family);
        Ok(Some(Box::new(Table {
            rules: here
                .iter()
                .map(|rule| rule.map_or(NONE, |(number, _)| number))
                .collect(),
            kinds: Lookup::new(kinds, narrow, budget)?,
            to_port: Lookup::of(to_port, narrow, budget)?,
            from: Lookup::of(from, Addresses::of(family), budget)?,
            to: Lookup::of(to, Addresses::of(family), budget)?,
            from_port: Lookup::of(from_port, narrow, budget)?,
        })))
    }

    #[inline(always)]
    fn first(&self, packet: &Packet, state: State) -> Option<u16> {
        let (from_port, to_port) = packet.ports_of_rules();
        let kinds = self.kinds.class(Search::find, kind(packet.protocol, state));
        let others = [
            self.to_port
                .as_ref()
                .map(|port| port.class(Search::find, to_port)),
            self.to
                .as_ref()
                .map(|to| to.class(|to, at| to.find(at), packet.to)),
            self.from
                .as_ref()
                .map(|from| from.class(|from, at| from.find(at), packet.from)),
            self.from_port
                .as_ref()
                .map(|port| port.class(Search::find, from_port)),
        ];
        let mut blocks = others
            .iter()
            .flatten()
            .fold(kinds.nonzero, |all, class| all & class.nonzero);
        let mut best = NONE;
        while blocks != 0 {
            let index = blocks.trailing_zeros() as usize;
            blocks &= blocks.wrapping_sub(1);
            let Block(words) = others
                .iter()
                .flatten()
                .fold(kinds.common(index, Block::ALL), |also, class| {
                    class.common(index, also)
                });
            let first = index.wrapping_mul(WORDS.wrapping_mul(64));
            for (first, word) in (first..).step_by(64).zip(words) {
                if word != 0 {
                    let index = first.wrapping_add(word.trailing_zeros() as usize);
                    best = best.min(self.rules.get(index).copied().unwrap_or(NONE));
                }
            }
        }
        (best != NONE).then_some(best)
    }

    fn bytes(&self) -> usize {
        let ports = [
            Some(&self.kinds),
            self.to_port.as_ref(),
            self.from_port.as_ref(),
        ];
        let ports = ports.into_iter().flatten();
        let ports = ports.map(|port| port.search.bytes().saturating_add(port.field.bytes()));
        let addresses = [&self.from, &self.to].into_iter().flatten();
        let addresses = addresses.map(|of| of.search.bytes().saturating_add(of.field.bytes()));
        ports
            .chain(addresses)
            .sum::<usize>()
            .saturating_add(size_of_val(&*self.rules))
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
        let mut budget = Budget::new();
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
