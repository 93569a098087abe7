//! Medians with their spread, and tables of them.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

/// A median with the lowest and the highest of the values that it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of values in any order; none of nothing.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Spread { median, low, high })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Spread { median, low, high } = self;
        write!(f, "{median:.digits$} [{low:.digits$} {high:.digits$}]")
    }
}

/// A table in plain text: the first column to the left, the others to the right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column titles.
    #[must_use]
    pub fn new(titles: &[&str]) -> Table {
        let titles = titles.iter().map(|title| (*title).to_owned()).collect();
        Table { rows: vec![titles] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(c))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(c, (cell, width))| {
                    if c == 0 {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// How a bar was taken.
#[must_use]
pub fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// Writes single measurements to a file, if one is wanted.
///
/// # Errors
/// If it cannot be written.
pub fn write_json<T: Serialize>(path: Option<&PathBuf>, shots: &T) -> Result<()> {
    let Some(path) = path else {
        return Ok(());
    };
    std::fs::write(path, serde_json::to_string_pretty(shots)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The median of an even number of values lies between the middle two, and the spread keeps the extremes.
    #[test]
    fn median_and_spread() {
        assert_eq!(Spread::of([]), None);
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.low, odd.high), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(format!("{odd:.1}"), "2.0 [1.0 3.0]");
    }

    /// Columns line up.
    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["a", "bb"]);
        table.row(vec!["long".into(), "1".into()]);
        assert_eq!(table.to_string(), "a     bb\nlong   1\n");
    }
}
