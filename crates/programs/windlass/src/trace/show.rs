//! What is shown of places, records and aggregations.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use windlass_script::ebpf::{Field, KEY_TEXT, OUTCOMES, Outcome};
use windlass_script::lower::Shown;
use windlass_types::print::{Limits, Nothing, World, quoted};
use windlass_types::{Node, TypeId, Types};

use super::Armed;
use super::attached::Line;
use super::record::{Record, Recorded, word};
use super::site::Site;
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
    pub(super) fn new(armed: &'r [Armed], types: &'r [Types<'a>]) -> Self {
        Self {
            armed,
            types,
            began: now(),
            probe: 0,
            columns: Vec::new(),
        }
    }

    /// What is printed in columns at a site.
    fn columns(armed: &Armed) -> impl Iterator<Item = &Shown> {
        armed
            .lowered
            .shown
            .iter()
            .flatten()
            .filter(|shown| !is_object(armed, shown))
    }

    /// Writes the titles.
    pub(super) fn begin(&mut self, session: &mut Session<'_>) -> Result<(), Failure> {
        let name = |armed: &Armed| armed.site.name.chars().count();
        self.probe = self.armed.iter().map(name).max().unwrap_or(0).max(5);
        let tells =
            |armed: &Armed| armed.lowered.plan.is_told || !armed.lowered.plan.fields.is_empty();
        if session.form == Form::Json || session.options.no_header || !self.armed.iter().any(tells)
        {
            return Ok(());
        }
        let mut titles = vec!["TIME".to_owned(), "TID".to_owned(), "PROBE".to_owned()];
        // Where all places print the same.
        if let Some(first) = self.armed.first() {
            let texts: Vec<&str> = Self::columns(first)
                .map(|shown| shown.text.as_str())
                .collect();
            let alike = |armed: &Armed| {
                let own = Self::columns(armed).map(|shown| shown.text.as_str());
                own.eq(texts.iter().copied())
            };
            match self.armed.iter().all(alike) {
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
        let all = || armed.lowered.shown.iter().flatten();
        if session.form == Form::Json {
            let value = |shown: &Shown| (shown.text.clone(), json_value(types, shown, &fields));
            let row = json!({
                "time": record.time, "pid": record.pid, "tid": record.tid, "probe": armed.site.name,
                "values": all().map(value).collect::<Map<_, _>>(),
            });
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
        words.extend(Self::columns(armed).map(|shown| clean(&value(types, shown, &fields))));
        self.line(session, words)?;
        for shown in all().filter(|shown| is_object(armed, shown)) {
            // Names of members are the program's own.
            for line in value(types, shown, &fields).lines() {
                writeln!(session.out, "{}", clean(line))?;
            }
        }
        Ok(())
    }

    /// Writes an aggregation, the least line first.
    pub(super) fn aggregation(
        &self,
        session: &mut Session<'_>,
        number: usize,
        mut lines: Vec<(Vec<u8>, Line)>,
    ) -> Result<(), Failure> {
        let weight = |line: &Line| match line {
            Line::Number(number) => *number,
            Line::Buckets(buckets) => buckets.iter().map(|count| i128::from(*count)).sum(),
        };
        lines.sort_by(|(a, one), (b, other)| (weight(one), a).cmp(&(weight(other), b)));
        let Some(armed) = self.armed.first() else {
            return Ok(());
        };
        let keys = armed
            .lowered
            .keys
            .get(number)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let types = self.types.get(armed.site.module);
        for (key, line) in lines {
            let words = key_words(types, keys, &key);
            if session.form == Form::Json {
                let value = match &line {
                    Line::Number(number) => json_number(*number),
                    Line::Buckets(buckets) => json!(rows(buckets)),
                };
                let row = json!({"aggregation": number, "key": words, "value": value});
                writeln!(session.out, "{row}")?;
                continue;
            }
            let shown = clean(&words.join(", "));
            match line {
                Line::Number(number) => writeln!(session.out, "{shown:<40}  {number}")?,
                Line::Buckets(buckets) => {
                    writeln!(session.out, "{shown}")?;
                    histogram(session, &rows(&buckets))?;
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
        counts: [u64; OUTCOMES],
    ) -> Result<(), Failure> {
        session.out.flush()?;
        let of = |outcome: Outcome| counts.get(outcome as usize).copied().unwrap_or(0);
        let plural = if probes == 1 { "" } else { "s" };
        let mut line = format!(
            "{probes} probe{plural}, {} hits, {} records",
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
        eprintln!("{line}, {} dropped", of(Outcome::Dropped));
        Ok(())
    }
}

/// It has more than fits into a column.
fn is_object(armed: &Armed, shown: &Shown) -> bool {
    let field = armed.lowered.plan.fields.get(shown.field);
    matches!(field, Some(Field::Object(_, bytes)) if *bytes > COLUMN_BYTES || !shown.is_text)
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
            Recorded::Scalar(_) | Recorded::Fault(_) => None,
        });
        let found = found.unwrap_or_default();
        for (into, from) in into.iter_mut().zip(&found) {
            *into = *from;
        }
        found.len()
    }
}

/// A value as a person reads it.
fn value(types: &Types<'_>, shown: &Shown, fields: &[Recorded<'_>]) -> String {
    match fields.get(shown.field) {
        Some(Recorded::Scalar(number)) => scalar(types, shown.ty, *number),
        Some(Recorded::Text(_, bytes, goes_on)) => text(bytes, *goes_on),
        Some(Recorded::Object(_, bytes)) => {
            let behind = fields
                .get(shown.field..shown.behind.end)
                .unwrap_or_default();
            let limits = Limits {
                pointers: 2,
                ..Limits::default()
            };
            types.show(shown.ty, bytes, &Captured(behind), limits)
        }
        Some(Recorded::Fault(at)) => format!("<fault {at:#x}>"),
        None => String::new(),
    }
}

fn json_value(types: &Types<'_>, shown: &Shown, fields: &[Recorded<'_>]) -> Value {
    match fields.get(shown.field) {
        Some(Recorded::Scalar(number)) => match types.bare(shown.ty) {
            Node::Int {
                encoding, size: 8, ..
            } if !encoding.is_signed() => json!(number),
            Node::Int { .. } => json!(number.cast_signed()),
            _ => json!(scalar(types, shown.ty, *number)),
        },
        Some(Recorded::Text(_, bytes, _)) => json!(String::from_utf8_lossy(bytes)),
        Some(Recorded::Object(_, bytes)) if shown.is_text => {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            json!(String::from_utf8_lossy(text))
        }
        Some(_) => json!(value(types, shown, fields)),
        None => Value::Null,
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

fn key_words(types: Option<&Types<'_>>, keys: &[Option<TypeId>], key: &[u8]) -> Vec<String> {
    let mut at = 0;
    let words = keys.iter().map(|ty| match (ty, types) {
        (Some(ty), Some(types)) => {
            let number = word(key, at).unwrap_or(0);
            at += 8;
            scalar(types, *ty, number)
        }
        _ => {
            let text = key.get(at..).unwrap_or_default();
            let text = text.get(..KEY_TEXT as usize).unwrap_or(text);
            at += KEY_TEXT as usize;
            let end = text.iter().position(|byte| *byte == 0);
            self::text(text, end.is_none())
        }
    });
    words.collect()
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
fn rows(buckets: &[u64]) -> Vec<(i128, u64)> {
    let first = buckets.iter().position(|count| *count > 0).unwrap_or(0);
    let last = buckets.iter().rposition(|count| *count > 0).unwrap_or(0);
    let least = |bucket: usize| match bucket {
        64 => 0,
        65.. => 1_i128 << (bucket - 65),
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
