//! Lines of source.

use std::rc::Rc;

use crate::dwarf::{Dwarf, Unit};
use crate::functions::FunctionRef;
use crate::graph::Types;

/// Rows of a unit's table that are read at most.
const ROWS_MAX: usize = 16 << 20;

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its file, as the compiler was told of it.
    pub file: Rc<str>,
    /// Its number; 0: none.
    pub line: u32,
}

/// The path of a file of a unit's table.
pub(crate) fn file<'a>(dwarf: &Dwarf<'a>, unit: &Unit<'a>, number: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(number)?;
    let text = |value| {
        let text = dwarf.sections.attr_string(unit, value).ok()?;
        Some(String::from_utf8_lossy(text.slice()).into_owned())
    };
    let name = text(file.path_name())?;
    let is_inner = !name.starts_with('/') && file.directory_index() != 0;
    match file.directory(header).filter(|_| is_inner).and_then(text) {
        Some(directory) => Some(format!("{directory}/{name}")),
        None => Some(name),
    }
}

impl<'a> Types<'a> {
    /// Where the prologue of a function ends: as the compiler says, else where the second row of its table begins.
    pub(crate) fn body_pc(&self, unit: &Unit<'a>, function: &FunctionRef) -> u64 {
        let low_pc = function.low_pc;
        let end = function.ranges.iter().find(|range| range.contains(&low_pc));
        let Some((program, end)) = unit.line_program.clone().zip(end) else {
            return low_pc;
        };
        let mut rows = program.rows();
        let mut second = None;
        for _ in 0..ROWS_MAX {
            let Ok(Some((_, row))) = rows.next_row() else {
                break;
            };
            if !end.contains(&row.address()) || row.end_sequence() {
                continue;
            }
            if row.prologue_end() {
                return row.address();
            }
            if second.is_none() && row.address() > low_pc {
                second = Some(row.address());
            }
        }
        second.unwrap_or(low_pc)
    }

    /// The line that an instruction is from.
    pub fn line(&self, pc: u64) -> Option<Line> {
        let dwarf = self.dwarf()?;
        let unit = dwarf.unit(dwarf.unit_at(pc)?)?;
        let mut rows = unit.line_program.clone()?.rows();
        // The last row of a sequence at or before the instruction.
        let mut last: Option<(u64, u64, u64)> = None;
        for _ in 0..ROWS_MAX {
            let Ok(Some((_, row))) = rows.next_row() else {
                break;
            };
            if let Some((start, number, line)) = last
                && (start..row.address()).contains(&pc)
            {
                let file = file(dwarf, &unit, number)?;
                let line = u32::try_from(line).unwrap_or(0);
                return Some(Line {
                    file: file.into(),
                    line,
                });
            }
            let line = row.line().map_or(0, std::num::NonZero::get);
            last = (!row.end_sequence()).then(|| (row.address(), row.file_index(), line));
        }
        None
    }
}
