//! Commands of pipes: what gives elements, chooses among them, and sums them up.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::json;
use windlass_script::Code;
use windlass_types::{Encoding, Node};
use windlass_views::line::type_first;

use crate::Session;
use crate::failure::Failure;
use crate::table::{Chosen, Form, clean};

use super::commands::{Call, answer, rows, wanting};
use super::target::{Target, Typed};
use super::value::{self, Located, THIS, Value, Within};
use super::view::{self, End, NODES_MAX};
use super::{absent, fields, memory, show};

/// Elements that `head` and `tail` leave if they are not told how many.
const HEAD: usize = 10;
/// Wrappings of a container that are looked through.
const WRAPPED: usize = 8;

/// Elements as they stand at the end of a line: addresses, and numbers that are none.
pub(super) fn show(
    session: &mut Session<'_>,
    target: &Target<'_>,
    all: &[Value],
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for value in all {
        let text = match value {
            Value::Object { at, .. } => format!("{at:#x}"),
            Value::Number { .. } => show::shown(target, value)?.0,
        };
        match (session.form, value) {
            (Form::Json, Value::Object { of, .. }) => {
                rows.push(json!({ "address": text, "type": target.name(*of) }));
            }
            (Form::Json, Value::Number { of, .. }) => {
                rows.push(json!({ "value": text, "type": target.name(*of) }));
            }
            _ => writeln!(session.out, "{text}")?,
        }
    }
    match session.form {
        Form::Json => session.rows(&rows, &Chosen::new()),
        _ => Ok(()),
    }
}

/// Tells why a walk ended early.
fn tell(end: &End) {
    if let End::Cut(why) = end {
        eprintln!("windlass: the walk ends early: {}", clean(why));
    }
}

/// `list TYPE MEMBER ADDRESS`
pub(super) fn list(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let (name, rest) = type_first(call.rest);
    let (member, at) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if name.is_empty() || member.is_empty() {
        return Err(wanting("a type or a member"));
    }
    let of = target.spelled(name)?;
    let firsts = match call.input {
        Some(input) if at.trim().is_empty() => input.iter().map(Value::word).collect(),
        _ => vec![call.address(target, at.trim())?],
    };
    let mut all = Vec::new();
    for first in firsts {
        let (found, end) = memory::list(target, of, member, first)?;
        tell(&end);
        all.extend(found.into_iter().map(|at| Value::Object { of, at }));
    }
    Ok(all)
}

/// `walk WALKER [ADDRESS]`, `walk EXPR`
pub(super) fn walk(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let (name, rest) = call
        .rest
        .split_once(char::is_whitespace)
        .unwrap_or((call.rest, ""));
    let mut all = Vec::new();
    let named = |definition: &&windlass_views::Definition| definition.name.as_deref() == Some(name);
    if let Some(definition) = target.definitions.iter().find(named) {
        let (shape, _) = view::walker(target, definition)?;
        let items = shape.items();
        let items = items.ok_or_else(|| absent(format!("{name} is no sequence"), ""))?;
        let firsts = match (call.input, call.address) {
            (Some(input), _) => input.iter().map(Value::word).collect(),
            (None, Some(address)) => vec![address],
            (None, None) if rest.trim().is_empty() => vec![0],
            (None, None) => vec![value::number(target, rest.trim())?],
        };
        for first in firsts {
            visit(target, items, first, &mut all)?;
        }
        return Ok(all);
    }
    match call.input {
        Some(input) if call.rest.is_empty() => {
            for element in input {
                container(target, *element, &mut all)?;
            }
        }
        _ => {
            if call.rest.is_empty() {
                return Err(wanting("a walker or an expression"));
            }
            for expr in value::expressions(call.rest)? {
                container(target, value::value(target, call.rest, &expr)?, &mut all)?;
            }
        }
    }
    Ok(all)
}

fn visit(
    target: &Target<'_>,
    items: &view::Items,
    this: u64,
    all: &mut Vec<Value>,
) -> Result<(), Failure> {
    let end = view::each(target, items, this, &mut |item| {
        let has_room = all.len() < NODES_MAX;
        if has_room {
            all.push(item.whole.unwrap_or(item.value));
        }
        has_room
    })?;
    tell(&match end {
        End::Enough => cut(),
        end => end,
    });
    Ok(())
}

/// A walk that has as many items as there may be.
fn cut() -> End {
    End::Cut(format!("after {NODES_MAX} items"))
}

/// The items of a container that a view knows, or of an array.
fn container(target: &Target<'_>, value: Value, all: &mut Vec<Value>) -> Result<(), Failure> {
    let mut value = value;
    for _ in 0..WRAPPED {
        let full = target.complete(value.of());
        let Value::Object { at, .. } = value else {
            // A pointer to a container.
            let Node::Pointer { to, .. } = target.node(full) else {
                break;
            };
            value = Value::Object {
                of: Typed { ty: to, ..full },
                at: value.word(),
            };
            continue;
        };
        match target.node(full) {
            Node::Array {
                of,
                count: Some(count),
            } => {
                let size = target.size(Typed { ty: of, ..full })?;
                let of = Typed { ty: of, ..full };
                let item = |index: u64| Value::Object {
                    of,
                    at: at.wrapping_add(index.wrapping_mul(size)),
                };
                let room = NODES_MAX.saturating_sub(all.len()) as u64;
                all.extend((0..count.min(room)).map(item));
                if count > room {
                    tell(&cut());
                }
                return Ok(());
            }
            Node::Pointer { .. } => {
                let mut word = [0; 8];
                word.copy_from_slice(&target.bytes(at, 8)?);
                value = Value::Number {
                    of: full,
                    value: u64::from_le_bytes(word),
                };
                continue;
            }
            _ => {}
        }
        let Some(shape) = view::shape(target, full) else {
            break;
        };
        if let Some(items) = shape.items() {
            return visit(target, items, at, all);
        }
        let Some(inner) = shape.inner(target, at) else {
            break;
        };
        value = inner;
    }
    let name = clean(&target.name(value.of()));
    let todo = "\"walkers\" lists walkers, \"views\" the containers; \"list\" follows a member";
    Err(absent(format!("nothing says how to walk a {name}"), todo))
}

/// The type of what a walk of this gives, as far as that is known without memory.
pub(super) fn item_type(target: &Target<'_>, of: Typed) -> Option<Typed> {
    let mut of = of;
    for _ in 0..WRAPPED {
        let full = target.complete(of);
        match target.node(full) {
            Node::Array { of, .. } => return Some(Typed { ty: of, ..full }),
            Node::Pointer { to, .. } => {
                of = Typed { ty: to, ..full };
                continue;
            }
            _ => {}
        }
        let shape = view::shape(target, full)?;
        if let Some(items) = shape.items() {
            return items.of();
        }
        of = shape.inner_type()?;
    }
    None
}

fn input<'c>(call: &Call<'c>) -> Result<&'c [Value], Failure> {
    call.input.ok_or_else(|| {
        Failure::usage(
            "it takes what another command gives",
            "as in: walk conns | where .state == 5 | print .addr",
        )
    })
}

/// Number codes of an expression by the types of elements.
struct Numbers<'n, 'a> {
    target: &'n Target<'a>,
    text: &'n str,
    known: HashMap<(Typed, bool), (Typed, Code)>,
}

impl<'n, 'a> Numbers<'n, 'a> {
    fn of(target: &'n Target<'a>, text: &'n str) -> Self {
        Self {
            target,
            text,
            known: HashMap::new(),
        }
    }

    /// The number that the expression is of an element, and its type. A fault is an `Ok(None)`.
    fn at(&mut self, element: &Value) -> Result<Option<(Typed, u64)>, Failure> {
        let key = (element.of(), matches!(element, Value::Number { .. }));
        if !self.known.contains_key(&key) {
            let bound = [element.bound(THIS)];
            let within = Within {
                bound: &bound,
                ..Within::default()
            };
            let text = if self.text.is_empty() {
                THIS
            } else {
                self.text
            };
            self.known
                .insert(key, value::number_in(self.target, &within, text)?);
        }
        let (of, code) = &self.known[&key];
        let value = value::computed(self.target, &[element.word()], code);
        Ok(value.ok().map(|value| (*of, value)))
    }
}

/// Tells how many elements could not be read.
fn tell_faults(faults: usize) {
    if faults > 0 {
        eprintln!("windlass: {faults} elements could not be read, and are left out");
    }
}

/// `where EXPR`
pub(super) fn filter(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let input = input(call)?;
    if call.rest.is_empty() {
        return Err(wanting("an expression"));
    }
    let mut numbers = Numbers::of(target, call.rest);
    let (mut all, mut faults) = (Vec::new(), 0);
    for element in input {
        match numbers.at(element)? {
            Some((_, 0)) => {}
            Some(_) => all.push(*element),
            None => faults += 1,
        }
    }
    tell_faults(faults);
    Ok(all)
}

fn count_of(call: &Call<'_>) -> Result<usize, Failure> {
    match call.rest {
        "" => Ok(HEAD),
        text => text.parse().map_err(|_| {
            Failure::usage(
                format!("\"{}\" is no number", clean(text)),
                "as in: head 10",
            )
        }),
    }
}

/// `head N`
pub(super) fn head(
    _: &mut Session<'_>,
    _: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    Ok(input(call)?.iter().take(count_of(call)?).copied().collect())
}

/// `tail N`
pub(super) fn tail(
    _: &mut Session<'_>,
    _: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let all = input(call)?;
    let from = all.len().saturating_sub(count_of(call)?);
    Ok(all.get(from..).unwrap_or_default().to_vec())
}

/// What elements are compared by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Number(i128),
    Text(String),
}

/// The keys of elements by an expression, and as text.
fn keys(target: &Target<'_>, all: &[Value], text: &str) -> Result<Vec<(Key, String)>, Failure> {
    let text = if text.is_empty() { THIS } else { text };
    let mut known: HashMap<(Typed, bool), Located> = HashMap::new();
    let mut found = Vec::new();
    for element in all {
        let key = (element.of(), matches!(element, Value::Number { .. }));
        let located = match known.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let bound = [element.bound(THIS)];
                let within = Within {
                    bound: &bound,
                    ..Within::default()
                };
                place.insert(value::expression_in(target, &within, text)?)
            }
        };
        let value = located.at(target, &[element.word()]);
        let shown = value
            .as_ref()
            .ok()
            .and_then(|value| show::shown(target, value).ok());
        let shown = shown.map_or_else(|| "<fault>".to_owned(), |(text, _)| text);
        let number = value.ok().and_then(|value| whole(target, &value));
        let key = number.map_or_else(|| Key::Text(shown.clone()), Key::Number);
        found.push((key, shown));
    }
    Ok(found)
}

/// A number with its sign.
fn whole(target: &Target<'_>, value: &Value) -> Option<i128> {
    let full = target.complete(value.of());
    let (size, is_signed) = match target.node(full) {
        Node::Int { size, encoding, .. } => (
            size,
            matches!(encoding, Encoding::Signed | Encoding::SignedChar),
        ),
        Node::Enum {
            size, is_signed, ..
        } => (size, is_signed),
        Node::Pointer { size, .. } => (size, false),
        _ => return None,
    };
    let word = match value {
        Value::Number { value, .. } => *value,
        Value::Object { at, .. } => {
            let bytes = target.bytes(*at, size.min(8)).ok()?;
            let mut word = [0; 8];
            word.get_mut(..bytes.len())?.copy_from_slice(&bytes);
            u64::from_le_bytes(word)
        }
    };
    let unused = 64 - size.min(8) * 8;
    let top = word.checked_shl(u32::try_from(unused).ok()?)?;
    Some(match is_signed {
        true => i128::from(top.cast_signed() >> unused),
        false => i128::from(top >> unused),
    })
}

/// `sort [-r] EXPR`
pub(super) fn sort(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let (is_reverse, text) = match call.rest.strip_prefix("-r") {
        Some(rest) if rest.is_empty() || rest.starts_with(' ') => (true, rest.trim()),
        _ => (false, call.rest),
    };
    let all = input(call)?;
    let keys = keys(target, all, text)?;
    let mut pairs: Vec<_> = keys.into_iter().map(|(key, _)| key).zip(all).collect();
    pairs.sort_by(|(a, _), (b, _)| match is_reverse {
        true => b.cmp(a),
        false => a.cmp(b),
    });
    Ok(pairs.into_iter().map(|(_, value)| *value).collect())
}

/// `uniq [EXPR]`
pub(super) fn uniq(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let all = input(call)?;
    let mut seen = HashSet::new();
    let keys = keys(target, all, call.rest)?;
    let first = keys
        .into_iter()
        .zip(all)
        .filter(|((key, _), _)| seen.insert(key.clone()));
    Ok(first.map(|(_, value)| *value).collect())
}

/// `count`
pub(super) fn count(
    session: &mut Session<'_>,
    _: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    let count = input(call)?.len();
    answer(session, &count.to_string(), json!({ "count": count }))
}

/// `sum EXPR`
pub(super) fn sum(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    let mut numbers = Numbers::of(target, call.rest);
    let (mut sum, mut faults) = (0_i128, 0);
    for element in input(call)? {
        match numbers.at(element)? {
            Some((of, value)) => {
                // The number is extended to 64 bits by its own sign.
                let is_unsigned = matches!(
                    target.node(target.complete(of)),
                    Node::Int {
                        size: 8,
                        encoding: Encoding::Unsigned,
                        ..
                    } | Node::Pointer { .. }
                );
                sum += match is_unsigned {
                    true => i128::from(value),
                    false => i128::from(value.cast_signed()),
                };
            }
            None => faults += 1,
        }
    }
    tell_faults(faults);
    answer(session, &sum.to_string(), json!({ "sum": sum.to_string() }))
}

/// `group EXPR`
pub(super) fn group(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    if call.rest.is_empty() {
        return Err(wanting("an expression"));
    }
    let mut counts: HashMap<String, u64> = HashMap::new();
    for (_, text) in keys(target, input(call)?, call.rest)? {
        *counts.entry(text).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
    let found: Vec<_> = counts
        .into_iter()
        .map(|(value, count)| json!({ "count": count, "value": value }))
        .collect();
    rows(session, &found, fields::GROUP)
}

/// `walkers`, `views`
pub(super) fn definitions(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
    is_walker: bool,
) -> Result<(), Failure> {
    let fits = |definition: &&windlass_views::Definition| {
        definition.name.is_some() == is_walker
            && (call.rest.is_empty()
                || windlass_views::pattern::matches(&definition.of, call.rest).is_some()
                || definition.of.contains(call.rest))
    };
    let mut lines: Vec<_> = (target.definitions.iter().filter(fits))
        .map(|definition| json!({ "name": definition.name, "type": clean(&definition.of) }))
        .collect();
    lines.dedup();
    rows(session, &lines, fields::DEFINITIONS)
}
