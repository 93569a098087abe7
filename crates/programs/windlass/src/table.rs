//! Rows and columns, and the three forms in which they are written: a table for people, fields for the
//! shell, JSON for programs.
//!
//! # Model
//! A row is the JSON object that the daemon gave. A [`Column`] finds its [`Cell`] in it. The table pads
//! and scales; the parsable form (`-p -o`) writes raw values between colons, with `:` and `\` escaped by
//! `\` unless there is one field only (dladm(8)); JSON writes the rows as they are, or with the fields that `-o` names, always as
//! an array.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::Value;
use windlass_api::{Attachment, ErrorCode};

use crate::failure::Failure;
use crate::suggest::nearest;

/// What stands where a row meets a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    /// There is no value: `--`.
    Missing,
    /// There is one, and it is not understood: `?`.
    Unknown,
    /// A word.
    Text(String),
    /// A whole number.
    Count(u64),
    /// Bytes of memory.
    Size(u64),
    /// A number a second.
    Rate(f64),
    /// A quotient or a share.
    Ratio(f64),
}

impl Cell {
    fn raw(&self) -> String {
        match self {
            Self::Missing => "--".into(),
            Self::Unknown => "?".into(),
            Self::Text(text) if text.is_empty() => "--".into(),
            Self::Text(text) => clean(text),
            Self::Count(count) | Self::Size(count) => count.to_string(),
            Self::Rate(number) | Self::Ratio(number) => format!("{number:.1}"),
        }
    }

    fn scaled(&self) -> String {
        match self {
            Self::Count(count) if *count >= 10_000_000 => scaled(*count as f64),
            Self::Size(bytes) => size(*bytes),
            Self::Rate(number) | Self::Ratio(number) if *number >= 100_000.0 => scaled(*number),
            Self::Rate(number) | Self::Ratio(number) if *number >= 100.0 => format!("{number:.0}"),
            other => other.raw(),
        }
    }
}

/// A number with a decimal suffix: `1.23M`.
fn scaled(number: f64) -> String {
    let (mut number, mut suffix) = (number, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        if number < 999.5 {
            break;
        }
        (number, suffix) = (number / 1000.0, next);
    }
    let places = if number < 9.995 {
        2
    } else {
        usize::from(number < 99.95)
    };
    format!("{number:.places$}{suffix}")
}

/// Bytes of memory with a binary suffix: `1.5M` is 1.5 MiB.
pub(crate) fn size(bytes: u64) -> String {
    let (mut number, mut suffix) = (bytes as f64, "");
    for next in ["K", "M", "G", "T", "P", "E"] {
        if number < 1023.5 {
            break;
        }
        (number, suffix) = (number / 1024.0, next);
    }
    let places = usize::from(!suffix.is_empty() && number < 99.95);
    format!("{number:.places$}{suffix}")
}

/// The text without control characters: what a daemon, a peer or an interface is called must not steer a
/// terminal or end a line.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    /// Its name after `-o`, and in capitals its title.
    pub(crate) name: &'static str,
    /// What stands in it, for `-o help` and the manual.
    pub(crate) about: &'static str,
    /// Whether it is shown when `-o` does not choose.
    pub(crate) usual: bool,
    /// Finds it in a row.
    pub(crate) cell: fn(&Value) -> Cell,
}

/// What lies under these keys, `/outer/inner`. `Value::pointer` makes two strings of each key, and a table has thousands.
fn inner<'a>(row: &'a Value, path: &str) -> Option<&'a Value> {
    let mut keys = path.split('/').filter(|key| !key.is_empty());
    keys.try_fold(row, |within, key| within.get(key))
}

/// The value under these keys, `/outer/inner`, as a cell.
pub(crate) fn at(row: &Value, path: &str) -> Cell {
    match inner(row, path) {
        None | Some(Value::Null) => Cell::Missing,
        Some(Value::String(text)) => Cell::Text(text.clone()),
        Some(Value::Bool(flag)) => Cell::Text(if *flag { "on" } else { "off" }.into()),
        Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
            (Some(count), _) => Cell::Count(count),
            (None, Some(number)) => Cell::Ratio(number),
            (None, None) => Cell::Unknown,
        },
        Some(Value::Array(items)) => {
            let words: Vec<_> = items
                .iter()
                .map(|item| item.as_str().map_or(item.to_string(), Into::into))
                .collect();
            Cell::Text(words.join(","))
        }
        Some(Value::Object(_)) => Cell::Unknown,
    }
}

/// The bytes of memory under these keys.
pub(crate) fn size_at(row: &Value, path: &str) -> Cell {
    match at(row, path) {
        Cell::Count(bytes) => Cell::Size(bytes),
        other => other,
    }
}

/// The attachment of a member, as it is typed after `--attach`, without its secret.
pub(crate) fn attachment(row: &Value) -> Cell {
    match row
        .get("attach")
        .map(|value| serde_json::from_value::<Attachment>(value.clone()))
    {
        None => Cell::Missing,
        Some(Err(_)) => Cell::Unknown,
        Some(Ok(attachment)) => Cell::Text(attachment.without_secret().to_string()),
    }
}

/// The line of titles of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Titles {
    /// There is one.
    Shown,
    /// There was one further up, whose widths still hold.
    Before,
    /// There is none.
    None,
}

/// The form in which rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A table for people.
    Table {
        /// Whether it has a line of titles.
        titles: Titles,
        /// With colours.
        color: bool,
    },
    /// `-p`: one line a row, fields between colons.
    Parsable,
    /// `-j`: an array of objects.
    Json,
}

/// Which columns were chosen.
pub(crate) type Chosen = Vec<&'static Column>;

/// The columns that `fields` (the word after `-o`) names; without it the usual ones. `None` after
/// `-o help`, which has been answered.
///
/// # Errors
/// If it names a field that is not there, or cannot be written.
pub(crate) fn choose(
    columns: &'static [Column],
    fields: Option<&str>,
    out: &mut dyn Write,
) -> Result<Option<Chosen>, Failure> {
    let Some(fields) = fields else {
        return Ok(Some(columns.iter().filter(|column| column.usual).collect()));
    };
    if fields.eq_ignore_ascii_case("help") {
        let width = columns
            .iter()
            .map(|column| column.name.len())
            .max()
            .unwrap_or(0);
        for column in columns {
            writeln!(out, "{:width$}  {}", column.name, column.about)?;
        }
        return Ok(None);
    }
    let mut chosen = Chosen::new();
    for field in fields.split(',') {
        if field.eq_ignore_ascii_case("all") {
            chosen.extend(columns);
            continue;
        }
        match columns
            .iter()
            .find(|column| column.name.eq_ignore_ascii_case(field))
        {
            Some(column) => chosen.push(column),
            None => {
                let near = nearest(field, columns.iter().map(|column| column.name));
                let todo = near.map_or("see \"-o help\"".into(), |near| {
                    format!("did you mean \"{near}\"? \"-o help\" lists them")
                });
                let why = format!("there is no field \"{}\"", clean(field));
                return Err(Failure::usage(why, todo));
            }
        }
    }
    Ok(Some(chosen))
}

/// Writes rows in a form. `unit` follows each title of a number, and tells totals from rates.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn write(
    rows: &[Value],
    columns: &[&'static Column],
    form: Form,
    unit: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match form {
        Form::Json => {
            serde_json::to_writer(&mut *out, rows).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Form::Parsable => {
            for row in rows {
                writeln!(out, "{}", parsable(row, columns))?;
            }
        }
        Form::Table { titles, color } => table(rows, columns, (titles, color), unit, out)?,
    }
    Ok(())
}

/// Each row with these columns alone, as JSON shows them: a key is the column's name with `_` for `-`, and what has no value
/// is null.
pub(crate) fn only(rows: &[Value], columns: &[&'static Column]) -> Vec<Value> {
    let value = |cell| match cell {
        Cell::Missing | Cell::Unknown => Value::Null,
        Cell::Text(text) => text.into(),
        Cell::Count(count) | Cell::Size(count) => count.into(),
        Cell::Rate(number) | Cell::Ratio(number) => number.into(),
    };
    let of = |row: &Value| {
        let cells = columns.iter().map(|column| {
            let key = column.name.replace('-', "_");
            (key, value((column.cell)(row)))
        });
        cells.collect()
    };
    rows.iter().map(of).collect()
}

fn parsable(row: &Value, columns: &[&'static Column]) -> String {
    let cells = columns.iter().map(|column| (column.cell)(row).raw());
    if columns.len() == 1 {
        return cells.collect();
    }
    let escaped: Vec<_> = cells
        .map(|cell| cell.replace('\\', "\\\\").replace(':', "\\:"))
        .collect();
    escaped.join(":")
}

fn table(
    rows: &[Value],
    columns: &[&'static Column],
    (titles, color): (Titles, bool),
    unit: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let cells: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| columns.iter().map(|column| (column.cell)(row)).collect())
        .collect();
    let is_number = |cell: &Cell| {
        matches!(
            cell,
            Cell::Count(_) | Cell::Size(_) | Cell::Rate(_) | Cell::Ratio(_)
        )
    };
    let mut lines: Vec<Vec<String>> = cells
        .iter()
        .map(|row| row.iter().map(Cell::scaled).collect())
        .collect();
    let right: Vec<bool> = (0..columns.len())
        .map(|i| cells.iter().any(|row| row.get(i).is_some_and(is_number)))
        .collect();
    if titles != Titles::None {
        let rated = |i: usize| {
            cells
                .iter()
                .any(|row| matches!(row.get(i), Some(Cell::Rate(_))))
        };
        let title = |(i, column): (usize, &&Column)| {
            let unit = if rated(i) { unit } else { "" };
            format!("{}{unit}", column.name.to_uppercase())
        };
        lines.insert(0, columns.iter().enumerate().map(title).collect());
    }
    let widths: Vec<usize> = (0..columns.len())
        .map(|i| {
            lines
                .iter()
                .filter_map(|line| line.get(i))
                .map(|w| w.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for line in lines.iter().skip(usize::from(titles == Titles::Before)) {
        text.clear();
        for ((word, width), right) in line.iter().zip(&widths).zip(&right) {
            if !text.is_empty() {
                text.push_str("  ");
            }
            let padding = std::iter::repeat_n(' ', width.saturating_sub(word.chars().count()));
            if *right {
                text.extend(padding);
                text.push_str(&paint(word, color));
            } else {
                text.push_str(&paint(word, color));
                text.extend(padding);
            }
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// The one thing that colour is for: a state that wants attention.
fn paint(word: &str, color: bool) -> Cow<'_, str> {
    match word {
        "down" if color => format!("\x1b[31m{word}\x1b[0m").into(),
        "waiting" if color => format!("\x1b[33m{word}\x1b[0m").into(),
        _ => word.into(),
    }
}

/// The form that the options ask for.
///
/// # Errors
/// If `-p` stands without `-o`.
pub(crate) fn form(options: &crate::options::Global, terminal: bool) -> Result<Form, Failure> {
    if options.json {
        return Ok(Form::Json);
    }
    if options.parsable {
        let todo = "add -o with the fields that you want, \"-o help\" lists them";
        return match options.fields {
            Some(_) => Ok(Form::Parsable),
            None => Err(Failure::usage("-p needs -o", todo)),
        };
    }
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let color = terminal && wanted && !options.no_color;
    let titles = if options.no_header {
        Titles::None
    } else {
        Titles::Shown
    };
    Ok(Form::Table { titles, color })
}

/// Turns an answer into rows.
///
/// # Errors
/// If it is not JSON, which no answer of ours is.
pub(crate) fn rows<T: serde::Serialize>(values: &[T]) -> Result<Vec<Value>, Failure> {
    let rows: Result<_, _> = values.iter().map(serde_json::to_value).collect();
    rows.map_err(|error| {
        Failure::new(
            ErrorCode::Internal,
            "write the answer",
            error.to_string(),
            "report it",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    static COLUMNS: &[Column] = &[
        Column {
            name: "name",
            about: "Name.",
            usual: true,
            cell: |row| at(row, "/name"),
        },
        Column {
            name: "path",
            about: "Path.",
            usual: true,
            cell: |row| at(row, "/path"),
        },
        Column {
            name: "frames",
            about: "Frames.",
            usual: true,
            cell: |row| at(row, "/n/frames"),
        },
        Column {
            name: "state",
            about: "State.",
            usual: false,
            cell: |row| at(row, "/state"),
        },
    ];

    fn written(rows: &[Value], fields: Option<&str>, form: Form) -> String {
        let mut out = Vec::new();
        let chosen = choose(COLUMNS, fields, &mut out)
            .expect("fields")
            .expect("not help");
        write(rows, &chosen, form, "/S", &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    /// Words stand left, numbers right, what is missing is `--`, nothing trails.
    #[test]
    fn tables_are_aligned() {
        let rows = [
            json!({"name": "v0", "path": "a:b", "n": {"frames": 7}}),
            json!({"name": "longer", "path": null, "n": {"frames": 123_456_789}}),
        ];
        let form = Form::Table {
            titles: Titles::Shown,
            color: false,
        };
        assert_eq!(
            written(&rows, None, form),
            "NAME    PATH  FRAMES\nv0      a:b        7\nlonger  --      123M\n"
        );
        let before = Form::Table {
            titles: Titles::Before,
            color: false,
        };
        let one = [json!({"name": "v0", "n": {"frames": 7}})];
        assert_eq!(
            written(&one, Some("name,frames"), before),
            "v0         7
"
        );
        let bare = Form::Table {
            titles: Titles::None,
            color: true,
        };
        let down = [json!({"name": "v0", "state": "down"})];
        assert_eq!(
            written(&down, Some("state,NAME"), bare),
            "\x1b[31mdown\x1b[0m  v0\n"
        );
    }

    /// Several fields are escaped, a single one is not, and no value ends a line.
    #[test]
    fn parsable_fields_follow_dladm() {
        let rows = [json!({"name": "v0", "path": "a:b\\c\nd", "n": {"frames": 123_456_789}})];
        assert_eq!(
            written(&rows, Some("name,path,frames"), Form::Parsable),
            "v0:a\\:b\\\\c?d:123456789\n"
        );
        assert_eq!(written(&rows, Some("Path"), Form::Parsable), "a:b\\c?d\n");
        assert_eq!(
            written(&rows, Some("all"), Form::Parsable),
            "v0:a\\:b\\\\c?d:123456789:--\n"
        );
    }

    /// JSON is an array even of nothing, and numbers stay numbers.
    #[test]
    fn json_is_an_array() {
        assert_eq!(written(&[], None, Form::Json), "[]\n");
        assert_eq!(
            written(&[json!({"n": 1})], None, Form::Json),
            "[{\"n\":1}]\n"
        );
    }

    /// `-o` holds for JSON, too: numbers stay numbers, and what is missing is null.
    #[test]
    fn json_has_the_chosen_fields() {
        let rows = [json!({"name": "v0", "path": "a:b", "n": {"frames": 5}})];
        let chosen = choose(COLUMNS, Some("name,frames"), &mut Vec::new());
        let chosen = chosen.expect("fields").expect("no help");
        assert_eq!(only(&rows, &chosen), [json!({"name": "v0", "frames": 5})]);
        assert_eq!(
            only(&[json!({})], &chosen),
            [json!({"name": null, "frames": null})]
        );
    }

    /// `-o help` answers with the fields; an unknown field is refused with the nearest one.
    #[test]
    fn fields_are_checked() {
        let mut out = Vec::new();
        assert!(
            choose(COLUMNS, Some("HELP"), &mut out)
                .expect("help")
                .is_none()
        );
        assert!(
            String::from_utf8(out)
                .expect("text")
                .starts_with("name    Name.\n")
        );
        let error = choose(COLUMNS, Some("name,fraems"), &mut Vec::new()).expect_err("unknown");
        assert_eq!(error.exit_code(), 2);
        assert!(format!("{error:?}").contains("frames"), "{error:?}");
    }

    /// Memory is in powers of 1,024, one decimal.
    #[test]
    fn sizes_are_binary() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536 << 10, "1.5M"),
            (1 << 30, "1.0G"),
            (200 << 20, "200M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    /// Three digits and a suffix, rounded where the suffix changes too.
    #[test]
    fn numbers_are_scaled() {
        for (number, text) in [
            (0.0, "0.00"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (9.999e6, "10.0M"),
        ] {
            assert_eq!(scaled(number), text);
        }
    }
}
