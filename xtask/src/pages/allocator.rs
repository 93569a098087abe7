//! Section 7: the allocator's options and debugging words.

use windlass_memory::options::{ALL, Group, Kind, OPTIONS, Row, VARIABLES};

use super::Page;
use super::roff::Roff;

/// Rows of a group.
pub(crate) fn rows(group: Group) -> impl Iterator<Item = &'static Row> {
    OPTIONS.iter().filter(move |row| row.group == group)
}

/// How an option is written.
pub(crate) fn written(row: &Row) -> String {
    let value = match row.kind {
        Kind::Flag => return row.name.to_owned(),
        Kind::Bytes => "BYTES",
        Kind::Count if row.bare.is_some() => "FRAMES",
        Kind::Count => "N",
        Kind::Percent => "PERCENT|all",
        Kind::Words(words) => &words.join("|"),
    };
    match row.bare {
        Some(_) => format!("{}[={value}]", row.name),
        None => format!("{}={value}", row.name),
    }
}

/// Its value where the name stands alone, or where it is not named.
pub(crate) fn value(row: &Row, value: usize) -> String {
    match row.kind {
        Kind::Words(words) => words.get(value).copied().unwrap_or_default().to_owned(),
        _ if value == ALL => "all".to_owned(),
        Kind::Bytes if value >= 1 << 20 && value.is_multiple_of(1 << 20) => {
            format!("{}m", value >> 20)
        }
        Kind::Bytes if value >= 1 << 10 && value.is_multiple_of(1 << 10) => {
            format!("{}k", value >> 10)
        }
        _ => value.to_string(),
    }
}

pub(crate) fn page() -> Page {
    let mut page = Roff::page(
        "windlass-alloc",
        7,
        "Options and debugging words of the allocator.",
    );
    page.heading("DESCRIPTION");
    page.paragraph(
        "libwindlass_alloc.so, which \"windlass run --alloc\" preloads, reads these words from the environment when a program starts. Words \
         are separated by commas. Every word may stand in every variable. An unknown word is named on stderr and ignored. Programs \
         that run with the rights of another user or group ignore all of them.",
    );
    page.literal(
        "WINDLASS_MEMORY=guards,audit windlass run --alloc -- PROGRAM\n\
         UMEM_DEBUG=default UMEM_LOGGING=transaction windlass run --alloc -- PROGRAM",
    );
    page.paragraph(&format!(
        "The variables are libumem's and one more; a later one wins: {}. A number of bytes may end in k, m or g.",
        VARIABLES.join(", ")
    ));
    for (group, title, about) in [
        (Group::Tuning, "OPTIONS", ""),
        (
            Group::Debugging,
            "DEBUGGING WORDS",
            "With one of them no thread caches objects, and every buffer has a record. An error is a sentence on stderr with the buffer, its \
             cache, its size, its last transaction and the caller's stack; then the program aborts.",
        ),
        (
            Group::Logs,
            "LOGS",
            "Rings in memory: their newest entries are printed with an error.",
        ),
    ] {
        page.heading(title);
        if !about.is_empty() {
            page.paragraph(about);
        }
        for row in rows(group) {
            let initial = match row.initial {
                0 if group != Group::Tuning => String::new(),
                _ if matches!(row.kind, Kind::Flag) || row.initial == ALL => String::new(),
                initial => format!(" Default: {}.", value(row, initial)),
            };
            let bare = match row.bare {
                Some(bare) if !matches!(row.kind, Kind::Flag) => {
                    format!(" Without a value: {}.", value(row, bare))
                }
                _ => String::new(),
            };
            page.term(&written(row), &format!("{}{bare}{initial}", row.text));
        }
    }
    page.heading("EXAMPLES");
    page.paragraph("The stack of the free before a second one:");
    page.literal("WINDLASS_MEMORY=audit windlass run --alloc -- PROGRAM");
    page.paragraph("A fault at the instruction that reads behind a buffer or after its free:");
    page.literal("WINDLASS_MEMORY=guards,firewall windlass run --alloc -- gdb --args PROGRAM");
    page.paragraph("How a program takes allocations that fail:");
    page.literal("WINDLASS_MEMORY=mtbf=1000,audit,fail windlass run --alloc -- PROGRAM");
    page.see_also(&["windlass-run.1"]);
    page.done()
}
