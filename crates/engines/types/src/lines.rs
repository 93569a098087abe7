//! Lines of source.

use std::rc::Rc;

use crate::dwarf::Unit;
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
pub(crate) fn file<'a>(unit: &Unit<'a>, number: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(number)?;
    let text = |value| {
        let text = unit.line_sections.attr_string(unit, value).ok()?;
        Some(String::from_utf8_lossy(text.slice()).into_owned())
    };
    let name = text(file.path_name())?;
    let is_inner = !name.starts_with('/') && file.directory_index() != 0;
    match file.directory(header).filter(|_| is_inner).and_then(text) {
        Some(directory) => Some(format!("{directory}/{name}")),
        None => Some(name),
    }
}

/// A row of a unit's table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    address: u64,
    file: u64,
    line: u32,
    /// Nothing of the unit is at its address.
    is_end: bool,
    /// The compiler says that the prologue ends here.
    is_body: bool,
    /// A statement begins here.
    is_statement: bool,
}

/// The rows of a unit, in the order of their addresses.
pub(crate) fn rows(unit: &Unit<'_>) -> Vec<Row> {
    let mut all = Vec::new();
    let Some(program) = unit.line_program.clone() else {
        return all;
    };
    let mut rows = program.rows();
    while all.len() < ROWS_MAX {
        let Ok(Some((_, row))) = rows.next_row() else {
            break;
        };
        let line = row.line().map_or(0, std::num::NonZero::get);
        all.push(Row {
            address: row.address(),
            file: row.file_index(),
            line: u32::try_from(line).unwrap_or(0),
            is_end: row.end_sequence(),
            is_body: row.prologue_end(),
            is_statement: row.is_stmt(),
        });
    }
    // Where one sequence ends another may begin.
    all.sort_by_key(|row| (row.address, !row.is_end));
    all
}

impl Types<'_> {
    /// Where the prologue of a function ends: as the compiler says, else where the second row of its table begins.
    pub(crate) fn body_pc(&self, unit: u32, function: &FunctionRef) -> u64 {
        let low_pc = function.low_pc;
        let own = function.ranges.iter().find(|range| range.contains(&low_pc));
        let Some((rows, own)) = self.dwarf().and_then(|dwarf| dwarf.rows(unit)).zip(own) else {
            return low_pc;
        };
        let first = rows.partition_point(|row| row.address < low_pc);
        let rows = rows.get(first..).unwrap_or_default().iter();
        let rows = rows.take_while(|row| own.contains(&row.address));
        let mut rows = rows.filter(|row| !row.is_end);
        let second = rows.clone().find(|row| row.address > low_pc);
        let said = rows.find(|row| row.is_body);
        said.or(second).map_or(low_pc, |row| row.address)
    }

    /// The instructions with which a line begins, in the order of their addresses. `name` is the end of its file's path.
    pub fn addresses(&self, name: &str, line: u32) -> Vec<u64> {
        let Some(dwarf) = self.dwarf() else {
            return Vec::new();
        };
        let is_it = |path: &str| {
            let before = path.strip_suffix(name);
            before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        let mut all = Vec::new();
        for unit in (0..dwarf.units()).filter_map(|number| Some((number, dwarf.unit_once(number)?)))
        {
            let (number, unit) = unit;
            let Some(program) = &unit.line_program else {
                continue;
            };
            let count = u64::try_from(program.header().file_names().len()).unwrap_or(0);
            let files = (0..=count).filter(|at| file(&unit, *at).is_some_and(|path| is_it(&path)));
            let files: Vec<u64> = files.collect();
            if files.is_empty() || self.is_interrupted() {
                continue;
            }
            let rows = dwarf.rows(number);
            let mut was = None;
            for row in rows.iter().flat_map(|rows| rows.iter()) {
                let here = (row.file, row.line);
                let is_new = was != Some(here) && row.is_statement && !row.is_end;
                if is_new && row.line == line && files.contains(&row.file) {
                    all.push(row.address);
                }
                was = Some(here).filter(|_| !row.is_end);
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The line that an instruction is from.
    pub fn line(&self, pc: u64) -> Option<Line> {
        let dwarf = self.dwarf()?;
        let number = dwarf.unit_at(pc)?;
        let rows = dwarf.rows(number)?;
        let after = rows.partition_point(|row| row.address <= pc);
        let row = rows.get(after.checked_sub(1)?)?;
        if row.is_end {
            return None;
        }
        let unit = dwarf.unit(number)?;
        let file = file(&unit, row.file)?;
        Some(Line {
            file: file.into(),
            line: row.line,
        })
    }
}
