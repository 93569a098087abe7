//! The allocator's options: words in environment variables.
//!
//! # Model
//! [`OPTIONS`] is the one table. A value is a number: a [`Kind`] says how it is written. [`words`] splits a variable's text and
//! looks each word up.

/// An option. As a number it is the option's place in [`OPTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Key {
    /// Bytes that one thread's magazines may hold.
    PerthreadCache,
    /// Percent of what is in use that may be kept from the kernel; [`ALL`]: no bound.
    Keep,
    /// Which pages: the place of the word in its [`Kind::Words`].
    Pages,
    /// Mean of bytes between two samples; 0: none.
    Sample,
    /// 1: each free is compared with the slab's bitmap.
    Check,
    /// 1: an unknown pointer is ignored.
    UnknownFree,
    /// 1: no thread has magazines.
    Nomagazines,
    /// Without effect.
    ReapInterval,
    /// Sets [`Key::Audit`], [`Key::Contents`] and [`Key::Guards`].
    Default,
    /// Frames that are recorded of each call.
    Audit,
    /// 1: patterns and red zones.
    Guards,
    /// Bytes that are copied of each freed buffer.
    Contents,
    /// From this size on a buffer ends at a page that nobody may touch; 0: none.
    Firewall,
    /// 1: a call from a signal handler is an error.
    Nosignal,
    /// 1: errors do not end the process.
    Noabort,
    /// One of so many allocations fails; 0: none.
    Mtbf,
    /// 1: an error also prints the buffer's earlier transactions.
    Verbose,
    /// Bytes of a buffer that are filled and verified.
    Maxverify,
    /// 1: as [`Key::Maxverify`] with 8.
    Lite,
    /// Bytes of the log of transactions.
    Transaction,
    /// Bytes of the log of contents.
    ContentsLog,
    /// Bytes of the log of allocations that failed.
    Fail,
}

/// The value of `all`.
pub const ALL: usize = usize::MAX;

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The name alone: 1. `NAME=0` and `NAME=1` are allowed.
    Flag,
    /// A number of bytes, with `k`, `m` or `g` behind it.
    Bytes,
    /// A number.
    Count,
    /// A number of percent, or `all`.
    Percent,
    /// One of these words; its place is the value.
    Words(&'static [&'static str]),
}

/// What an option is for: the sections of its manual page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// What the allocator caches, keeps and samples.
    Tuning,
    /// What finds errors of the program.
    Debugging,
    /// Logs for the debugging words.
    Logs,
}

/// A row of [`OPTIONS`].
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Which one.
    pub key: Key,
    /// Its word.
    pub name: &'static str,
    /// What it is for.
    pub group: Group,
    /// How its value is written.
    pub kind: Kind,
    /// Its value where it is not named.
    pub initial: usize,
    /// Its value where it is named without one; `None`: it needs one.
    pub bare: Option<usize>,
    /// What it does.
    pub text: &'static str,
}

const fn row(
    key: Key,
    name: &'static str,
    group: Group,
    kind: Kind,
    (initial, bare): (usize, Option<usize>),
    text: &'static str,
) -> Row {
    Row {
        key,
        name,
        group,
        kind,
        initial,
        bare,
        text,
    }
}

const PAGES: Kind = Kind::Words(&["auto", "4k", "thp", "hugetlb"]);
const CHECKS: Kind = Kind::Words(&["batch", "full"]);
const STRANGERS: Kind = Kind::Words(&["abort", "ignore"]);

use Group::{Debugging, Logs, Tuning};
use Kind::{Bytes, Count, Flag, Percent};

/// Every option.
#[rustfmt::skip]
pub const OPTIONS: &[Row] = &[
    row(Key::PerthreadCache, "perthread_cache", Tuning, Bytes, (1 << 20, None),
        "How many bytes of free objects one thread's magazines may hold. 0: no magazines."),
    row(Key::Keep, "keep", Tuning, Percent, (12, None),
        "How much free memory the process keeps from the kernel, in percent of what is in use, and at least 8 MiB. \
         \"all\": nothing goes back."),
    row(Key::Pages, "pages", Tuning, PAGES, (0, None),
        "Which pages hold the heap. \"auto\": small pages until the heap is large, then transparent huge pages for what is added."),
    row(Key::Sample, "sample", Tuning, Bytes, (512 << 10, None),
        "One allocation is sampled, on average, in so many bytes. 0: none."),
    row(Key::Check, "check", Tuning, CHECKS, (0, None),
        "\"full\": no thread caches objects, and each free is compared with the slab's bitmap: a double free is found at once, on any thread. \
         \"batch\": when a magazine's batch goes back."),
    row(Key::UnknownFree, "unknown-free", Tuning, STRANGERS, (0, None),
        "What free does with a pointer that this allocator did not hand out: \"abort\" with a sentence, or \"ignore\" it."),
    row(Key::Nomagazines, "nomagazines", Tuning, Flag, (0, Some(1)),
        "No thread caches objects: each call goes to the slabs, under a lock."),
    row(Key::ReapInterval, "reap_interval", Tuning, Count, (0, None),
        "Accepted for libumem's sake, without effect: nothing here depends on time."),
    row(Key::Default, "default", Debugging, Flag, (0, Some(1)),
        "The same as audit,contents,guards."),
    row(Key::Audit, "audit", Debugging, Count, (0, Some(15)),
        "Records thread, time and stack of the last transaction of each buffer: so many frames, at most 25. Sets guards, too."),
    row(Key::Guards, "guards", Debugging, Flag, (0, Some(1)),
        "Fills buffers with 0xbaddcafe when allocated and 0xdeadbeef when freed, with red zones around them. Verified: when freed, \
         before the memory is used again, and at exit."),
    row(Key::Contents, "contents", Debugging, Bytes, (0, Some(256)),
        "Copies the first bytes of each buffer when it is freed, to show them with an error. In UMEM_LOGGING the word means contents-log."),
    row(Key::Firewall, "firewall", Debugging, Bytes, (0, Some(1)),
        "Buffers of this size or more end at a page that nobody may touch; once freed, all of it is untouchable for a while."),
    row(Key::Nosignal, "nosignal", Debugging, Flag, (0, Some(1)),
        "A call from a signal handler is an error."),
    row(Key::Noabort, "noabort", Debugging, Flag, (0, Some(1)),
        "Errors are printed, and the program goes on; a wrong free does nothing."),
    row(Key::Mtbf, "mtbf", Debugging, Count, (0, None),
        "One of so many allocations fails on average, with NULL and ENOMEM."),
    row(Key::Verbose, "verbose", Debugging, Flag, (0, Some(1)),
        "An error also prints the buffer's earlier transactions, as far as the log of transactions has them."),
    row(Key::Maxverify, "maxverify", Debugging, Bytes, (usize::MAX, None),
        "How many bytes of a buffer are filled and verified with the patterns. Default: all."),
    row(Key::Lite, "lite", Debugging, Flag, (0, Some(1)),
        "Guards with maxverify=8."),
    row(Key::Transaction, "transaction", Logs, Bytes, (0, Some(64 << 10)),
        "Size of the log of transactions, a ring. It needs audit."),
    row(Key::ContentsLog, "contents-log", Logs, Bytes, (0, Some(64 << 10)),
        "Size of the log of contents, a ring. The word contents implies 64k."),
    row(Key::Fail, "fail", Logs, Bytes, (0, Some(64 << 10)),
        "Size of the log of allocations that failed, a ring. The last ones are printed with an error."),
];

/// The variables, in the order in which they are read: a later one wins.
pub const VARIABLES: &[&str] = &[
    "UMEM_DEBUG",
    "UMEM_OPTIONS",
    "UMEM_LOGGING",
    "WINDLASS_MEMORY",
];
/// The variable in which `contents` is a log's size.
const LOGGING: &str = "UMEM_LOGGING";

/// Looks up each word of a variable's text. `good` is told options and values, `bad` words that mean nothing.
pub fn words(
    variable: &str,
    text: &[u8],
    mut good: impl FnMut(Key, usize),
    mut bad: impl FnMut(&[u8]),
) {
    for word in text.split(|&byte| byte == b',') {
        let word = word.trim_ascii();
        if word.is_empty() {
            continue;
        }
        match look_up(variable, word) {
            Some((key, value)) => good(key, value),
            None => bad(word),
        }
    }
}

fn look_up(variable: &str, word: &[u8]) -> Option<(Key, usize)> {
    let mut parts = word.splitn(2, |&byte| byte == b'=');
    let (name, value) = (parts.next()?, parts.next());
    let is_log = variable == LOGGING && name == b"contents";
    let name = if is_log { b"contents-log" } else { name };
    let row = OPTIONS.iter().find(|row| row.name.as_bytes() == name)?;
    let value = match value {
        None => row.bare?,
        Some(value) => value_of(row.kind, value)?,
    };
    Some((row.key, value))
}

fn value_of(kind: Kind, text: &[u8]) -> Option<usize> {
    match kind {
        Flag => number(text).filter(|&value| value < 2),
        Count => number(text),
        Percent if text == b"all" => Some(ALL),
        Percent => number(text.strip_suffix(b"%").unwrap_or(text)),
        Kind::Words(list) => list.iter().position(|word| word.as_bytes() == text),
        Bytes => {
            let (last, rest) = text.split_last()?;
            let shift = match last.to_ascii_lowercase() {
                b'k' => 10,
                b'm' => 20,
                b'g' => 30,
                _ => return number(text),
            };
            number(rest)?.checked_mul(1 << shift)
        }
    }
}

/// A decimal number.
fn number(text: &[u8]) -> Option<usize> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    type Found = (Vec<(Key, usize)>, Vec<Vec<u8>>);

    fn found(variable: &str, text: &str) -> Found {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let note = |key, value| good.push((key, value));
        words(variable, text.as_bytes(), note, |word| {
            bad.push(word.to_vec())
        });
        (good, bad)
    }

    /// A key is the place of its row, names are unique, and every default can be written.
    #[test]
    fn the_table_is_in_order() {
        for (at, row) in OPTIONS.iter().enumerate() {
            assert_eq!(row.key as usize, at, "{}", row.name);
            let same = OPTIONS.iter().filter(|other| other.name == row.name);
            assert_eq!(same.count(), 1, "{}", row.name);
            assert!(row.text.ends_with('.'), "{}", row.name);
            if let Kind::Words(list) = row.kind {
                assert!(row.initial < list.len(), "{}", row.name);
            }
        }
    }

    /// Numbers, units, words, bare names; libumem's two meanings of one word.
    #[test]
    fn words_are_looked_up() {
        let text = "perthread_cache=64k,keep=all, sample=2M ,,audit,audit=3,pages=thp,nomagazines,keep=25%";
        let expected = [
            (Key::PerthreadCache, 64 << 10),
            (Key::Keep, ALL),
            (Key::Sample, 2 << 20),
            (Key::Audit, 15),
            (Key::Audit, 3),
            (Key::Pages, 2),
            (Key::Nomagazines, 1),
            (Key::Keep, 25),
        ];
        assert_eq!(
            found("WINDLASS_MEMORY", text),
            (expected.to_vec(), Vec::new())
        );
        let contents = |variable| found(variable, "contents=1k").0;
        assert_eq!(contents("UMEM_DEBUG"), [(Key::Contents, 1024)]);
        assert_eq!(contents("UMEM_LOGGING"), [(Key::ContentsLog, 1024)]);
    }

    /// What means nothing is named, and the words beside it count.
    #[test]
    fn unknown_words_are_named() {
        for word in [
            "nonsense",
            "sample",
            "sample=",
            "sample=x",
            "sample=-1",
            "sample=99999999999999999999",
            "sample=17179869184g",
            "pages=huge",
            "guards=2",
            "=",
            "\u{e9}",
        ] {
            let (good, bad) = found("UMEM_DEBUG", &std::format!("{word},guards"));
            assert_eq!(good, [(Key::Guards, 1)], "{word}");
            assert_eq!(bad, [word.as_bytes()]);
        }
    }
}
