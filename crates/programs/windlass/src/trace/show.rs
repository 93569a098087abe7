//! What is shown of places, records and aggregations.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use windlass_script::ebpf::{Field, KEY_TEXT, NAME_BYTES, OUTCOMES, Outcome};
use windlass_script::format::Given;
use windlass_script::lower::{Kept, KeyKind, Look, Shown, Told};
use windlass_script::syntax::{Aggregate, Stack};
use windlass_types::print::{Limits, Nothing, World, quoted};
use windlass_types::{Node, TypeId, Types};

use super::Armed;
use super::attached::Line;
use super::heat::Heat;
use super::record::{Record, Recorded, word};
use super::site::Site;
use super::symbols::Symbols;
use crate::Session;
use crate::failure::Failure;
use crate::table::{Form, clean};

/// Bytes of an array of characters that is shown in a column.
const COLUMN_BYTES: u32 = 64;
/// Letters of a column at least.
const COLUMN: usize = 10;
/// Columns of what a bucket holds, drawn.
const BAR: u64 = 40;

/// Shows a run.
pub(super) struct Show<'r, 'a> {
    armed: &'r [Armed],
    types: &'r [Types<'a>],
    /// When it began, as records say it.
    began: u64,
    /// Letters of the longest probe's name, and of each title behind it.
    probe: usize,
    columns: Vec<usize>,
    /// The process, if there is just one.
    pid: Option<u32>,
    symbols: Symbols,
}

/// `trace -l`
pub(super) fn list(
    session: &mut Session<'_>,
    sites: &[Site],
    types: &[Types<'_>],
) -> Result<(), Failure> {
    let cost = |site: &Site| match site.is_emulated {
        true => "about 1 us",
        false => "about 20 us: single-steps",
    };
    let mut rows = Vec::new();
    for site in sites {
        let Some(types) = types.get(site.module) else {
            continue;
        };
        let name = match site.is_inline {
            true => format!("{} (a copy in another)", site.name),
            false => site.name.clone(),
        };
        rows.push([
            name,
            site.described(types),
            site.source.clone(),
            cost(site).to_owned(),
        ]);
    }
    if session.form == Form::Json {
        for [probe, arguments, place, cost] in rows {
            let row = json!({"probe": probe, "arguments": arguments, "where": place, "cost": cost});
            writeln!(session.out, "{row}")?;
        }
        return Ok(());
    }
    let titles = ["PROBE", "ARGUMENTS", "WHERE", "COST"].map(str::to_owned);
    let all = || std::iter::once(&titles).chain(&rows);
    let width = |column: usize| {
        all()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..3).map(width).collect();
    for [probe, arguments, place, cost] in all() {
        let (probe, arguments, place) = (clean(probe), clean(arguments), clean(place));
        writeln!(
            session.out,
            "{probe:<0$}  {arguments:<1$}  {place:<2$}  {cost}",
            widths[0], widths[1], widths[2]
        )?;
    }
    Ok(())
}

/// Now, as records say it.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl<'r, 'a> Show<'r, 'a> {
    pub(super) fn new(armed: &'r [Armed], types: &'r [Types<'a>], pid: Option<u32>) -> Self {
        Self {
            pid,
            symbols: Symbols::default(),
            armed,
            types,
            began: now(),
            probe: 0,
            columns: Vec::new(),
        }
    }

    /// Looks where the process's code lies, as long as it is there.
    pub(super) fn look(&mut self) {
        if let Some(pid) = self.pid {
            self.symbols.look(pid);
        }
    }

    /// What is printed in columns at a site.
    fn columns(armed: &Armed) -> impl Iterator<Item = &Shown> {
        let values = armed.lowered.values();
        values.filter(|shown| !is_object(armed, shown))
    }

    /// Writes the titles.
    pub(super) fn begin(&mut self, session: &mut Session<'_>) -> Result<(), Failure> {
        let name = |armed: &Armed| armed.site.name.chars().count();
        self.probe = self.armed.iter().map(name).max().unwrap_or(0).max(5);
        let told: Vec<&Armed> = self.armed.iter().filter(|armed| has_line(armed)).collect();
        if session.form == Form::Json || session.options.no_header || told.is_empty() {
            return Ok(());
        }
        let mut titles = vec!["TIME".to_owned(), "TID".to_owned(), "PROBE".to_owned()];
        // Where all places print the same.
        if let Some(first) = told.first() {
            let texts: Vec<&str> = Self::columns(first)
                .map(|shown| shown.text.as_str())
                .collect();
            let alike = |armed: &Armed| {
                let own = Self::columns(armed).map(|shown| shown.text.as_str());
                own.eq(texts.iter().copied())
            };
            match told.iter().all(|armed| alike(armed)) {
                true => titles.extend(texts.iter().map(|text| clean(text))),
                false => titles.push("ARGUMENTS".to_owned()),
            }
        }
        self.columns = titles
            .iter()
            .skip(3)
            .map(|title| title.chars().count())
            .collect();
        self.line(session, titles)
    }

    /// Writes a line, each word below its title.
    fn line(&self, session: &mut Session<'_>, words: Vec<String>) -> Result<(), Failure> {
        let widths = [9, 7, self.probe].into_iter();
        let widths = widths.chain(self.columns.iter().map(|width| (*width).max(COLUMN)));
        let widths = widths.chain(std::iter::repeat(COLUMN));
        let words = words.iter().zip(widths);
        let mut line = String::new();
        for (word, width) in words {
            line.push_str(&format!("{word:<width$}  "));
        }
        writeln!(session.out, "{}", line.trim_end())?;
        Ok(())
    }

    /// Writes one record.
    pub(super) fn record(
        &mut self,
        session: &mut Session<'_>,
        record: &Record<'_>,
    ) -> Result<(), Failure> {
        let Some(armed) = self.armed.get(record.site) else {
            return Ok(());
        };
        let Some(types) = self.types.get(armed.site.module) else {
            return Ok(());
        };
        let fields = record.fields(&armed.lowered.plan);
        let mut cell = Cell {
            types,
            symbols: &mut self.symbols,
            pid: record.pid,
        };
        if session.form == Form::Json {
            let mut values = Map::new();
            let reached = armed.lowered.values();
            for shown in reached.filter(|shown| is_reached(shown, &fields)) {
                values.insert(shown.text.clone(), cell.json(shown, &fields));
            }
            let mut row = json!({
                "time": record.time, "pid": record.pid, "tid": record.tid, "probe": armed.site.name,
                "values": values,
            });
            let texts = texts(armed, &mut cell, &fields);
            if !texts.is_empty() {
                row["text"] = json!(texts.concat());
            }
            writeln!(session.out, "{row}")?;
            return Ok(());
        }
        let since = record.time.saturating_sub(self.began);
        let (seconds, micros) = (since / 1_000_000_000, since % 1_000_000_000 / 1_000);
        let mut words = vec![
            format!("{seconds}.{micros:06}"),
            record.tid.to_string(),
            clean(&armed.site.name),
        ];
        words.extend(Self::columns(armed).map(|shown| clean(&cell.value(shown, &fields))));
        let mut below = Vec::new();
        for shown in armed.lowered.values() {
            if is_object(armed, shown) && is_reached(shown, &fields) {
                // Names of members are the program's own.
                below.extend(cell.value(shown, &fields).lines().map(clean));
            }
        }
        let texts = texts(armed, &mut cell, &fields);
        let any = armed
            .lowered
            .values()
            .any(|shown| is_reached(shown, &fields));
        if any || armed.lowered.plan.is_told {
            self.line(session, words)?;
        }
        for line in below {
            writeln!(session.out, "{line}")?;
        }
        for text in texts {
            write!(session.out, "{text}")?;
        }
        Ok(())
    }

    /// Writes what an aggregation kept of the time.
    pub(super) fn heat(
        &mut self,
        session: &mut Session<'_>,
        kept: &Kept,
        heat: &Heat,
    ) -> Result<(), Failure> {
        let types = self.types.get(kept.module);
        let (symbols, pid) = (&mut self.symbols, self.pid);
        heat.write(session, kept, |key| {
            key_words(types, &kept.keys, key, (&mut *symbols, pid)).join(", ")
        })
    }

    /// Writes an aggregation, the least line first.
    pub(super) fn aggregation(
        &mut self,
        session: &mut Session<'_>,
        (number, kept): (usize, &Kept),
        mut lines: Vec<(Vec<u8>, Line)>,
    ) -> Result<(), Failure> {
        let weight = |line: &Line| match line {
            Line::Number(number) => *number,
            Line::Buckets(buckets) => buckets.iter().map(|count| i128::from(*count)).sum(),
        };
        lines.sort_by(|(a, one), (b, other)| (weight(one), a).cmp(&(weight(other), b)));
        let types = self.types.get(kept.module);
        if session.form != Form::Json && !kept.name.is_empty() && !lines.is_empty() {
            writeln!(session.out, "@{}", clean(&kept.name))?;
        }
        for (key, line) in lines {
            let words = key_words(types, &kept.keys, &key, (&mut self.symbols, self.pid));
            if session.form == Form::Json {
                let value = match &line {
                    Line::Number(number) => json_number(*number),
                    Line::Buckets(buckets) => json!(rows(kept.how, buckets)),
                };
                let row =
                    json!({"aggregation": number, "name": kept.name, "key": words, "value": value});
                writeln!(session.out, "{row}")?;
                continue;
            }
            // Callers are one below the other.
            let words: Vec<String> = words
                .iter()
                .flat_map(|word| word.lines())
                .map(clean)
                .collect();
            let has_callers = kept
                .keys
                .iter()
                .any(|kind| matches!(kind, KeyKind::Stack(..)));
            let shown = match has_callers {
                true => words.join("\n"),
                false => words.join(", "),
            };
            match line {
                Line::Number(number) if has_callers => {
                    writeln!(session.out, "{shown}\n{:<40}  {number}", "")?;
                }
                Line::Number(number) => writeln!(session.out, "{shown:<40}  {number}")?,
                Line::Buckets(buckets) => {
                    writeln!(session.out, "{shown}")?;
                    histogram(session, &rows(kept.how, &buckets))?;
                }
            }
        }
        Ok(())
    }

    /// Writes what became of all hits.
    pub(super) fn end(
        &self,
        session: &mut Session<'_>,
        probes: usize,
        counts: &[(String, [u64; OUTCOMES])],
    ) -> Result<(), Failure> {
        session.out.flush()?;
        if counts.len() > 1 {
            for (name, counts) in counts {
                eprintln!("{}: {}", clean(name), counted(counts));
            }
        }
        let mut all = [0; OUTCOMES];
        for (_, counts) in counts {
            for (sum, count) in all.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let plural = if probes == 1 { "" } else { "s" };
        eprintln!("{probes} probe{plural}, {}", counted(&all));
        Ok(())
    }
}

/// What became of hits.
fn counted(counts: &[u64; OUTCOMES]) -> String {
    let of = |outcome: Outcome| counts.get(outcome as usize).copied().unwrap_or(0);
    let mut line = format!(
        "{} hits, {} records",
        of(Outcome::Hits),
        of(Outcome::Records)
    );
    for (outcome, word) in [
        (Outcome::Aggregated, "aggregated"),
        (Outcome::Filtered, "filtered"),
        (Outcome::Faults, "faults"),
    ] {
        if of(outcome) > 0 {
            line.push_str(&format!(", {} {word}", of(outcome)));
        }
    }
    format!("{line}, {} dropped", of(Outcome::Dropped))
}

/// It prints lines with columns.
fn has_line(armed: &Armed) -> bool {
    armed.lowered.plan.is_told || armed.lowered.values().next().is_some()
}

/// The hit came to it.
fn is_reached(shown: &Shown, fields: &[Recorded<'_>]) -> bool {
    !matches!(fields.get(shown.field), Some(Recorded::Unreached))
}

/// What `printf` says.
fn texts(armed: &Armed, cell: &mut Cell<'_, '_>, fields: &[Recorded<'_>]) -> Vec<String> {
    let mut all = Vec::new();
    for told in &armed.lowered.told {
        if let Told::Text(format, values, reached) = told
            && !matches!(fields.get(*reached), Some(Recorded::Unreached))
        {
            let given = values.iter().map(|shown| cell.given(shown, fields));
            all.push(format.fill(&given.collect::<Vec<_>>()));
        }
    }
    all
}

/// It has more than fits into a column.
fn is_object(armed: &Armed, shown: &Shown) -> bool {
    let field = armed.lowered.plan.fields.get(shown.field);
    match field {
        Some(Field::Object(_, bytes)) => *bytes > COLUMN_BYTES || shown.look != Look::Text,
        field => matches!(field, Some(Field::Stack(..))),
    }
}

/// A text between quotes; with dots if there may be more of it.
fn text(bytes: &[u8], goes_on: bool) -> String {
    let more = if goes_on { ".." } else { "" };
    quoted(bytes) + more
}

/// What a record has of the program's memory.
struct Captured<'f, 'r>(&'f [Recorded<'r>]);

impl World for Captured<'_, '_> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let from = |start: u64, bytes: &[u8]| {
            let inside = usize::try_from(at.checked_sub(start)?).ok()?;
            let found = bytes.get(inside..).filter(|found| !found.is_empty())?;
            let len = found.len().min(into.len());
            Some(found.get(..len)?.to_vec())
        };
        let found = self.0.iter().find_map(|field| match field {
            Recorded::Object(start, bytes) => from(*start, bytes),
            Recorded::Text(start, bytes, goes_on) => {
                let end: &[u8] = if *goes_on { &[] } else { &[0] };
                from(*start, &[bytes, end].concat())
            }
            Recorded::Scalar(_)
            | Recorded::Fault(_)
            | Recorded::Stack(_)
            | Recorded::Name(_)
            | Recorded::Unreached => None,
        });
        let found = found.unwrap_or_default();
        for (into, from) in into.iter_mut().zip(&found) {
            *into = *from;
        }
        found.len()
    }
}

/// Shows the values of one record.
struct Cell<'s, 'a> {
    types: &'s Types<'a>,
    symbols: &'s mut Symbols,
    /// Whose.
    pid: u32,
}

impl Cell<'_, '_> {
    /// A value as a person reads it.
    fn value(&mut self, shown: &Shown, fields: &[Recorded<'_>]) -> String {
        let types = self.types;
        match (fields.get(shown.field), shown.look) {
            (Some(Recorded::Scalar(number)), Look::Symbol) => {
                self.symbols.name(Stack::User, Some(self.pid), *number)
            }
            (Some(Recorded::Scalar(number)), _) => scalar(types, shown.ty, *number),
            (Some(Recorded::Text(_, bytes, goes_on)), _) => text(bytes, *goes_on),
            (Some(Recorded::Name(bytes)), _) => text(bytes, false),
            (Some(Recorded::Stack(addresses)), look) => self.callers(look, addresses).join("\n"),
            (Some(Recorded::Object(_, bytes)), _) => {
                let behind = fields
                    .get(shown.field..shown.behind.end)
                    .unwrap_or_default();
                let limits = Limits {
                    pointers: 2,
                    ..Limits::default()
                };
                types.show(shown.ty, bytes, &Captured(behind), limits)
            }
            (Some(Recorded::Fault(at)), _) => format!("<fault {at:#x}>"),
            (Some(Recorded::Unreached) | None, _) => String::new(),
        }
    }

    fn callers(&mut self, look: Look, addresses: &[u8]) -> Vec<String> {
        let of = match look {
            Look::Stack(of) => of,
            _ => Stack::User,
        };
        let words = addresses.chunks_exact(8).filter_map(|bytes| word(bytes, 0));
        let names =
            words.map(|address| format!("  {}", self.symbols.name(of, Some(self.pid), address)));
        names.collect()
    }

    /// A value for a format.
    fn given(&mut self, shown: &Shown, fields: &[Recorded<'_>]) -> Given {
        match fields.get(shown.field) {
            Some(Recorded::Scalar(number)) if shown.look == Look::Typed => {
                match self.types.bare(shown.ty) {
                    Node::Enum { .. } | Node::Float { .. } => {
                        Given::Text(clean(&self.value(shown, fields)))
                    }
                    _ => Given::Number(*number),
                }
            }
            Some(Recorded::Text(_, bytes, _) | Recorded::Name(bytes)) => {
                Given::Text(clean(&String::from_utf8_lossy(bytes)))
            }
            Some(Recorded::Object(_, bytes)) if shown.look == Look::Text => {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                Given::Text(clean(&String::from_utf8_lossy(text)))
            }
            _ => {
                let value = self.value(shown, fields);
                Given::Text(value.lines().map(clean).collect::<Vec<_>>().join("\n"))
            }
        }
    }

    fn json(&mut self, shown: &Shown, fields: &[Recorded<'_>]) -> Value {
        match fields.get(shown.field) {
            Some(Recorded::Scalar(number)) if shown.look == Look::Typed => {
                match self.types.bare(shown.ty) {
                    Node::Int {
                        encoding, size: 8, ..
                    } if !encoding.is_signed() => json!(number),
                    Node::Int { .. } => json!(number.cast_signed()),
                    _ => json!(scalar(self.types, shown.ty, *number)),
                }
            }
            Some(Recorded::Text(_, bytes, _) | Recorded::Name(bytes)) => {
                json!(String::from_utf8_lossy(bytes))
            }
            Some(Recorded::Object(_, bytes)) if shown.look == Look::Text => {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                json!(String::from_utf8_lossy(text))
            }
            Some(Recorded::Stack(addresses)) => {
                let names = self.callers(shown.look, addresses);
                json!(names.iter().map(|name| name.trim()).collect::<Vec<_>>())
            }
            Some(_) => json!(self.value(shown, fields)),
            None => Value::Null,
        }
    }
}

fn scalar(types: &Types<'_>, ty: TypeId, number: u64) -> String {
    let bytes = number.to_le_bytes();
    let size = types.size(ty).and_then(|size| usize::try_from(size).ok());
    let bytes = size.and_then(|size| bytes.get(..size)).unwrap_or(&bytes);
    let limits = Limits {
        pointers: 0,
        ..Limits::default()
    };
    types.show(ty, bytes, &Nothing, limits)
}

fn key_words(
    types: Option<&Types<'_>>,
    keys: &[KeyKind],
    key: &[u8],
    (symbols, pid): (&mut Symbols, Option<u32>),
) -> Vec<String> {
    let mut at = 0;
    let mut take = |bytes: usize| {
        let part = key.get(at..).unwrap_or_default();
        at += bytes;
        part.get(..bytes).unwrap_or(part)
    };
    let mut words = Vec::new();
    for kind in keys {
        words.push(match (kind, types) {
            (KeyKind::Number(ty), Some(types)) => scalar(types, *ty, word(take(8), 0).unwrap_or(0)),
            (KeyKind::Number(_), None) => word(take(8), 0).unwrap_or(0).to_string(),
            (KeyKind::Symbol, _) => {
                let address = word(take(8), 0).unwrap_or(0);
                symbols.name(Stack::User, pid, address)
            }
            (KeyKind::Stack(of, depth), _) => {
                let addresses = take(8 * usize::try_from(*depth).unwrap_or(0));
                let addresses = addresses.chunks_exact(8).filter_map(|bytes| word(bytes, 0));
                let addresses = addresses.take_while(|address| *address != 0);
                let names = addresses.map(|address| symbols.name(*of, pid, address));
                names.collect::<Vec<_>>().join("\n")
            }
            (KeyKind::Text | KeyKind::Name, _) => {
                let bytes = match kind {
                    KeyKind::Name => NAME_BYTES,
                    _ => KEY_TEXT,
                };
                let text = take(bytes as usize);
                let end = text.iter().position(|byte| *byte == 0);
                self::text(text, end.is_none())
            }
        });
    }
    words
}

/// A number of 64 bits, with or without sign.
fn json_number(number: i128) -> Value {
    match (u64::try_from(number), i64::try_from(number)) {
        (Ok(number), _) => json!(number),
        (_, Ok(number)) => json!(number),
        _ => json!(number.to_string()),
    }
}

/// The buckets that hold something, and those between them: the least value of each, and how many there are.
fn rows(how: Aggregate, buckets: &[u64]) -> Vec<(i128, u64)> {
    let first = buckets.iter().position(|count| *count > 0).unwrap_or(0);
    let last = buckets.iter().rposition(|count| *count > 0).unwrap_or(0);
    let least = |bucket: usize| match (how, bucket) {
        // Below all steps there is no least one: one less than the first.
        (Aggregate::Linear { low, .. }, 0) => i128::from(low) - 1,
        (Aggregate::Linear { low, step, .. }, bucket) => {
            let steps = i128::try_from(bucket - 1).unwrap_or(0);
            i128::from(low) + i128::from(step) * steps
        }
        (_, 64) => 0,
        (_, 65..) => 1_i128 << (bucket - 65),
        _ => -(1_i128 << (63 - bucket)),
    };
    let all = buckets
        .iter()
        .enumerate()
        .skip(first)
        .take(last + 1 - first);
    all.map(|(bucket, count)| (least(bucket), *count)).collect()
}

fn histogram(session: &mut Session<'_>, rows: &[(i128, u64)]) -> Result<(), Failure> {
    let total: u64 = rows.iter().map(|(_, count)| count).sum::<u64>().max(1);
    writeln!(
        session.out,
        "{:>20}  {:-^40}  COUNT",
        "VALUE", " DISTRIBUTION "
    )?;
    for (least, count) in rows {
        let marks = usize::try_from(u128::from(*count) * u128::from(BAR) / u128::from(total));
        let bar: Cow<'_, str> = "@".repeat(marks.unwrap_or(0)).into();
        writeln!(session.out, "{least:>20} |{bar:<40} {count}")?;
    }
    Ok(())
}
