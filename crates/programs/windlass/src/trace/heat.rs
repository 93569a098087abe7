//! Aggregations that keep the time: `heat` and `subsecond`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_script::code::step_begins;
use windlass_script::lower::Kept;
use windlass_script::syntax::Aggregate;

use super::record::word;
use crate::Session;
use crate::failure::Failure;
use crate::table::{Form, clean};

/// Seconds that are kept.
const COLUMNS_MAX: usize = 600;
/// Keys that are told apart; the others are one.
const KEYS_MAX: usize = 16;
/// Rows of a second, and how many of them a printed line has.
const ROWS: u64 = 100;
const ROWS_A_LINE: u64 = 5;
/// Columns that are printed: the last ones.
const PRINTED: usize = 60;
/// What a cell looks like, the darkest last.
const SHADES: [char; 8] = ['.', ':', '-', '=', '+', '*', '#', '@'];

/// What one aggregation has kept.
#[derive(Default)]
pub(super) struct Heat {
    /// The keys without the time.
    keys: Vec<Vec<u8>>,
    /// By second, row and key.
    cells: BTreeMap<u64, BTreeMap<(u64, usize), u64>>,
}

/// The second that a key is of, behind the key itself.
pub(super) fn second(kept: &Kept, key: &[u8]) -> Option<u64> {
    let time = split(kept, key)?.1;
    Some(match kept.how {
        Aggregate::Heat => word(time, 0)?,
        _ => word(time, 0)? / ROWS,
    })
}

fn split<'k>(kept: &Kept, key: &'k [u8]) -> Option<(&'k [u8], &'k [u8])> {
    let bytes = match kept.how {
        Aggregate::Heat => 16,
        _ => 8,
    };
    key.split_at_checked(key.len().checked_sub(bytes)?)
}

impl Heat {
    /// Adds a line of the map.
    pub(super) fn add(&mut self, kept: &Kept, key: &[u8], count: u64) {
        let (Some((own, time)), Some(second)) = (split(kept, key), second(kept, key)) else {
            return;
        };
        let row = match kept.how {
            Aggregate::Heat => word(time, 8).unwrap_or(0),
            _ => word(time, 0).unwrap_or(0) % ROWS,
        };
        let known = self.keys.iter().position(|other| other == own);
        let number = known.unwrap_or_else(|| {
            if self.keys.len() < KEYS_MAX {
                self.keys.push(own.to_vec());
                self.keys.len() - 1
            } else {
                KEYS_MAX
            }
        });
        let cell = self.cells.entry(second).or_default();
        let cell = cell.entry((row, number)).or_default();
        *cell = cell.saturating_add(count);
        while self.cells.len() > COLUMNS_MAX {
            self.cells.pop_first();
        }
    }

    /// Writes it: in JSON all columns, else a table of the last ones for each key.
    pub(super) fn write(
        &self,
        session: &mut Session<'_>,
        kept: &Kept,
        mut name: impl FnMut(&[u8]) -> String,
    ) -> Result<(), Failure> {
        let mut keys: Vec<String> = self.keys.iter().map(|key| name(key)).collect();
        let all = self.cells.values().flat_map(BTreeMap::keys);
        if all.clone().any(|(_, key)| *key == KEYS_MAX) {
            keys.push("other".to_owned());
        }
        if session.form == Form::Json {
            writeln!(session.out, "{}", self.json(kept, &keys))?;
            return Ok(());
        }
        for (number, key) in keys.iter().enumerate() {
            writeln!(session.out, "{}", clean(&title(kept, key)))?;
            self.table(session, kept, number)?;
        }
        Ok(())
    }

    fn json(&self, kept: &Kept, keys: &[String]) -> Value {
        let (first, last) = self.span();
        let rows: BTreeSet<u64> = match kept.how {
            Aggregate::Heat => self.rows(None),
            _ => (0..ROWS).collect(),
        };
        let place = |row: u64| rows.iter().position(|other| *other == row).unwrap_or(0);
        let column = |second: u64| -> Vec<Value> {
            let cells = self.cells.get(&second).into_iter().flatten();
            cells
                .map(|((row, key), count)| json!([place(*row), key, count]))
                .collect()
        };
        let columns: Vec<Vec<Value>> = (first..=last).map(column).collect();
        let (mode, unit) = match kept.how {
            Aggregate::Heat => ("value", ""),
            _ => ("subsecond", "ns"),
        };
        json!({
            "heat": kept.name, "version": 1, "mode": mode, "unit": unit,
            "rows": rows.iter().map(|row| edge(kept, *row)).collect::<Vec<_>>(),
            "keys": keys, "t0": first, "columns": if self.cells.is_empty() { Vec::new() } else { columns },
        })
    }

    /// The first and the last second, at most [`COLUMNS_MAX`] apart.
    fn span(&self) -> (u64, u64) {
        let last = self.cells.keys().next_back().copied().unwrap_or(0);
        let first = self.cells.keys().next().copied().unwrap_or(0);
        let most = COLUMNS_MAX as u64;
        (first.max(last.saturating_sub(most - 1)), last)
    }

    /// The rows that hold something, of one key or of all.
    fn rows(&self, key: Option<usize>) -> BTreeSet<u64> {
        let cells = self.cells.values().flat_map(BTreeMap::keys);
        let own = cells.filter(|(_, of)| key.is_none_or(|key| key == *of));
        own.map(|(row, _)| *row).collect()
    }

    /// One key's lines: the greatest values above, the last second at the right.
    fn table(&self, session: &mut Session<'_>, kept: &Kept, key: usize) -> Result<(), Failure> {
        let (first, last) = self.span();
        let first = first.max(last.saturating_sub(PRINTED as u64 - 1));
        let each = match kept.how {
            Aggregate::Heat => 1,
            _ => ROWS_A_LINE,
        };
        let lines: BTreeSet<u64> = match kept.how {
            Aggregate::Heat => self.rows(Some(key)),
            _ => (0..ROWS / each).collect(),
        };
        let count = |line: u64, second: u64| -> u64 {
            let column = self.cells.get(&second);
            let rows = line.saturating_mul(each)..line.saturating_mul(each).saturating_add(each);
            // What is below 0 is the last number that there is.
            let rows = if line == u64::MAX {
                vec![line]
            } else {
                rows.collect()
            };
            let cell = |row| column.and_then(|column| column.get(&(row, key)));
            rows.into_iter().filter_map(cell).sum()
        };
        let all = lines
            .iter()
            .flat_map(|line| (first..=last).map(|second| count(*line, second)));
        let most = all.max().unwrap_or(0).max(1);
        let mut lines: Vec<u64> = lines.into_iter().collect();
        // Numbers below 0 are below the others.
        lines.sort_by_key(|line| std::cmp::Reverse(line.wrapping_add(1)));
        for line in lines {
            let cells = (first..=last).map(|second| shade(count(line, second), most));
            let cells: String = cells.collect();
            let edge = match line {
                u64::MAX => "below 0".to_owned(),
                line => edge(kept, line.saturating_mul(each)).to_string(),
            };
            writeln!(session.out, "{edge:>20} |{cells}|")?;
        }
        writeln!(
            session.out,
            "{:>20}  {} seconds, up to {most} a cell",
            "",
            last - first + 1
        )?;
        Ok(())
    }
}

fn title(kept: &Kept, key: &str) -> String {
    let name = format!("@{}", kept.name);
    match key.is_empty() {
        true => name,
        false => format!("{name}[{key}]"),
    }
}

/// The least value of a row: nanoseconds within the second, or the value itself.
fn edge(kept: &Kept, row: u64) -> i128 {
    match (kept.how, row) {
        (Aggregate::Heat, u64::MAX) => -1,
        (Aggregate::Heat, row) => step_begins(row).into(),
        (_, row) => (row * (1_000_000_000 / ROWS)).into(),
    }
}

/// Darker by the logarithm.
fn shade(count: u64, most: u64) -> char {
    if count == 0 {
        return ' ';
    }
    let last = SHADES.len() - 1;
    let bits = |count: u64| (u64::BITS - count.leading_zeros()) as usize;
    let at = match bits(most) - 1 {
        0 => last,
        scale => (bits(count) - 1) * last / scale,
    };
    SHADES.get(at).copied().unwrap_or('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_of_their_second_and_row() {
        let kept = |how| Kept {
            name: "x".into(),
            how,
            is_unsigned: false,
            keys: Vec::new(),
            module: 0,
            key_bytes: 8,
        };
        let mut heat = Heat::default();
        let subsecond = kept(Aggregate::Subsecond);
        heat.add(&subsecond, &1_234_u64.to_le_bytes(), 3);
        heat.add(&subsecond, &1_434_u64.to_le_bytes(), 1);
        let json = heat.json(&subsecond, &[]);
        assert_eq!(json["t0"], 12);
        assert_eq!(json["columns"], json!([[[34, 0, 3]], [], [[34, 0, 1]]]));
        assert_eq!(json["rows"][34], 340_000_000);
        let values = kept(Aggregate::Heat);
        let mut heat = Heat::default();
        let key = [7_u64.to_le_bytes(), 9_u64.to_le_bytes()].concat();
        heat.add(&values, &key, 2);
        let json = heat.json(&values, &[]);
        assert_eq!((&json["t0"], &json["rows"]), (&json!(7), &json!([10])));
        assert_eq!(json["columns"], json!([[[0, 0, 2]]]));
        assert_eq!((shade(0, 9), shade(1, 8), shade(8, 8)), (' ', '.', '@'));
    }
}
