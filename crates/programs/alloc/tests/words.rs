//! Debugging words, and what is noticed with and without them.

mod harness;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use harness::*;

fn program(source: &'static str, place: &'static OnceLock<PathBuf>) -> &'static Path {
    place.get_or_init(|| compile("cc", source))
}

/// Runs a program under the library with these words.
fn run(program: &Path, arguments: &[&str], words: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("WINDLASS_MEMORY", words);
    output(command, true)
}

fn words_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    program("words.c", &PROGRAM)
}

/// The same of `words.c`.
fn words(arguments: &[&str], words: &str) -> Output {
    run(words_program(), arguments, words)
}

/// The same of `alloc.c`.
fn calls(arguments: &[&str], words: &str) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    run(program("alloc.c", &PROGRAM), arguments, words)
}

fn passes(output: &Output, what: &str) {
    let said = text(output);
    assert!(
        output.status.success(),
        "{what}: {:?} {said}",
        output.status
    );
}

/// It aborted; what it said.
fn aborted(output: &Output, what: &str) -> String {
    let said = text(output);
    assert_eq!(output.status.signal(), Some(ABORTED), "{what}: {said}");
    said
}

/// What each way of looking misses of the 37 errors.
fn missed(words: &str) -> BTreeSet<String> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = program("errors.c", &PROGRAM);
    let list = text(&run(program, &[], ""));
    assert_eq!(list.lines().count(), 37);
    let is_missed = |name: &&str| run(program, &[name], words).status.success();
    list.lines().filter(is_missed).map(str::to_owned).collect()
}

/// Of 37 small errors the library catches 14 by itself, 29 with guards, and 34 with walls, too.
#[test]
fn small_errors_are_caught() {
    let nobody = ["read_before_1", "read_before_64", "unset_read"];
    let by_walls = [
        "behind_far",
        "read_behind_1",
        "read_behind_64",
        "after_read",
        "moved_read",
    ];
    let by_guards = [
        "behind_1",
        "behind_8",
        "behind_64",
        "behind_odd",
        "behind_nothing",
        "before_1",
        "before_8",
        "before_64",
        "after_1",
        "after_64",
        "after_reuse",
        "after_follow",
        "moved_write",
        "measure_freed",
        "twice_far",
    ];
    let set = |lists: &[&[&str]]| -> BTreeSet<String> {
        lists.concat().into_iter().map(str::to_owned).collect()
    };
    assert_eq!(missed("guards,firewall=1"), set(&[&nobody]));
    assert_eq!(missed("guards"), set(&[&nobody, &by_walls]));
    assert_eq!(missed(""), set(&[&nobody, &by_walls, &by_guards]));
}

/// Each wrong address is named with its buffer; what is no buffer's, without.
#[test]
fn wrong_addresses_are_named() {
    let (twice, start, nothing) = (
        "already freed",
        "not the start of an allocation",
        "nothing is allocated there",
    );
    for words in ["guards", "guards,firewall=1", "audit", "nosignal"] {
        for (what, call, sentence) in [
            ("twice", "free", twice),
            ("twice-apart", "free", twice),
            ("unaligned", "free", start),
            ("interior", "free", start),
            ("stack", "free", nothing),
            ("run-interior", "free", start),
            ("run-twice", "free", twice),
            ("mapping-interior", "free", start),
            ("mapping-twice", "free", twice),
            ("realloc", "realloc", nothing),
        ] {
            let said = aborted(&calls(&["wrong", what], words), what);
            let first = said.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("windlass: {call}(0x")), "{said}");
            assert!(
                first.ends_with(&format!("): {sentence}")),
                "{words}: {said}"
            );
            assert_eq!(said.contains("buffer 0x"), sentence != nothing, "{said}");
        }
    }
}

/// Every call, threads, forks and the end do with debugging words what they do without.
#[test]
fn calls_do_what_they_do_without() {
    let all: &[_] = &["calls", "threads", "forks", "ends"];
    for (words, whats) in [
        ("default,transaction", all),
        ("guards,firewall=1", &all[..2]),
    ] {
        for what in whats {
            passes(&calls(&[what], words), &format!("{words}: {what}"));
        }
    }
    for words in ["", "guards", "firewall=1", "nosignal"] {
        for what in ["early", "cancelled", "child"] {
            passes(&self::words(&[what], words), &format!("{words}: {what}"));
        }
    }
    for variable in ["UMEM_DEBUG", "UMEM_LOGGING"] {
        let mut command = script("bash", &["-c", "echo $((6 * 7)); (exit 3); echo $?"]);
        command.env(
            variable,
            if variable == "UMEM_DEBUG" {
                "default"
            } else {
                "transaction=1m,contents,fail"
            },
        );
        assert_eq!(text(&output(command, true)), "42\n3\n");
    }
}

/// Patterns are libumem's, and all of the usable bytes, which are those asked for, may be written.
#[test]
fn patterns_and_sizes_are_exact() {
    for words in ["guards", "default"] {
        passes(&self::words(&["patterns"], words), words);
        passes(&self::words(&["usable"], words), words);
    }
    passes(&words(&["usable"], "guards,firewall=1"), "walls");
    passes(&words(&["walls"], "firewall=16"), "walls");
}

/// Threads that free at the same time have no buffer wait longer, or twice: 4,096 wait at most.
#[test]
fn threads_keep_few_freed_buffers() {
    passes(&words(&["many"], "guards"), "many");
}

/// A buffer that another thread is freeing is not taken for a damaged one when the program ends.
#[test]
fn programs_end_while_threads_free() {
    for round in 0..60 {
        passes(
            &words(&["ends-meanwhile"], "guards"),
            &format!("round {round}"),
        );
    }
}

/// An error tells thread, time and stack of the last transaction, the contents, and of whoever calls.
#[test]
fn errors_tell_what_happened() {
    let said = aborted(&words(&["twice"], "default,verbose,transaction"), "twice");
    for part in [
        "64 bytes, cache wl_alloc_96",
        "last transaction: freed, thread ",
        "contents when freed: 74686520636f6e74656e747300caddba",
        "earlier: allocated, thread ",
        "now: thread ",
        "libc.so.6+0x",
        " __libc_start_main+0x",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = aborted(&words(&["fails-once"], "default,fail"), "fails-once");
    let failed = "an allocation of 18446744073709550616 bytes:\nwindlass:   failed, thread ";
    assert!(said.contains(failed), "{said}");
    let one = aborted(&words(&["twice"], "audit=1"), "one frame");
    let all = aborted(&words(&["twice"], "audit"), "all frames");
    assert!(one.lines().count() < all.lines().count(), "{one}{all}");
}

/// A write after free is found when the memory would be used again, not only at exit.
#[test]
fn memory_is_verified_before_it_is_used_again() {
    let said = aborted(&words(&["sooner"], "guards"), "sooner");
    let sentence = "written after the buffer was freed, found at free\n";
    assert!(said.contains(sentence), "{said}");
    assert!(said.contains("is at byte 5 of it"), "{said}");
}

/// With noabort errors are told and wrong calls do nothing.
#[test]
fn programs_go_on() {
    let output = words(&["goes-on"], "guards,noabort");
    passes(&output, "goes-on");
    let said = text(&output);
    for sentence in [
        "went on\n",
        "written behind the buffer, found at free",
        "already freed",
        "not the start of an allocation, which is freed, too",
        "nothing is allocated there",
        "realloc(0x",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
}

/// mtbf, nosignal, maxverify and lite.
#[test]
fn other_words_are_obeyed() {
    assert_eq!(text(&words(&["fails"], "mtbf=10")), "about a tenth\n");
    assert_eq!(text(&words(&["handler"], "guards")), "handled\n");
    let said = aborted(&words(&["handler"], "nosignal"), "handler");
    assert!(
        said.starts_with("windlass: malloc: called from a signal handler\n"),
        "{said}"
    );
    for (words, at, is_found) in [
        ("guards", "20", true),
        ("guards,maxverify=8", "20", false),
        ("lite", "20", false),
        ("lite", "7", true),
    ] {
        let output = self::words(&["after", at], words);
        assert_eq!(output.status.success(), !is_found, "{words} {at}");
    }
    // Nobody hears the sentence.
    assert_eq!(
        aborted(&words(&["descriptors"], "guards"), "descriptors"),
        ""
    );
}

/// gdb stops where an error aborts; valgrind runs the library with guards beneath it.
#[test]
fn debuggers_run_programs() {
    let name = "debuggers_run_programs";
    if is_installed(name, "gdb") {
        let preload = format!("set exec-wrapper env LD_PRELOAD={}", library().display());
        let binary = words_program();
        let mut command = script(
            "gdb",
            &["-q", "-batch", "-ex", &preload, "-ex", "run", "-ex", "bt"],
        );
        command
            .arg("--args")
            .arg(binary)
            .arg("twice")
            .env("WINDLASS_MEMORY", "default");
        let said = text(&output(command, false));
        for part in ["already freed", "SIGABRT", "in release (", "in main ("] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    if is_installed(name, "valgrind") {
        let line = format!(
            "LD_PRELOAD={} exec valgrind -q --error-exitcode=9 --soname-synonyms=somalloc=none {} usable",
            library().display(),
            words_program().display()
        );
        let mut command = script("bash", &["-c", &line]);
        command.env("WINDLASS_MEMORY", "default");
        passes(&output(command, false), "valgrind");
    }
}

/// Runs the program of `objects.c` with these words.
fn objects(what: &[&str], words: &str) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    run(
        PROGRAM.get_or_init(|| compile_linked("objects.c")),
        what,
        words,
    )
}

/// What each way of looking misses of the 45 errors.
fn missed_with_caches(words: &str) -> BTreeSet<String> {
    let list = text(&objects(&[], ""));
    assert_eq!(list.lines().count(), 45);
    let is_missed = |name: &&str| objects(&[name], words).status.success();
    list.lines().filter(is_missed).map(str::to_owned).collect()
}

/// Of 45 small errors with object caches the library catches 25 by itself, 43 with guards, and all with walls.
#[test]
fn small_errors_with_caches_are_caught() {
    let by_walls = ["read_behind", "after_read"];
    let by_guards = [
        "behind_1",
        "behind_8",
        "behind_odd",
        "behind_built",
        "behind_locked",
        "before_1",
        "before_8",
        "after_1",
        "after_all",
        "after_built",
        "after_locked",
        "after_reuse",
        "freed_by_free",
        "resized",
        "gone_write",
        "sized_near",
        "sized_behind",
        "sized_after",
    ];
    let set = |lists: &[&[&str]]| -> BTreeSet<String> {
        lists.concat().into_iter().map(str::to_owned).collect()
    };
    assert_eq!(missed_with_caches("guards,firewall=1"), set(&[]));
    assert_eq!(missed_with_caches("guards"), set(&[&by_walls]));
    assert_eq!(missed_with_caches("default"), set(&[&by_walls]));
    // Chance decides where a sample lies, and thereby whether both copies of an object in a magazine are flushed.
    assert_eq!(
        missed_with_caches("sample=0"),
        set(&[&by_walls, &by_guards])
    );
}

const FREED: &str = "last transaction: freed, thread ";
const ALLOCATED: &str = "last transaction: allocated, thread ";
/// An error of `objects.c`, the sentence without the address, the buffer, and its last transaction.
const NAMED: [(&str, &str, &str, &str); 12] = [
    (
        "twice_apart",
        "umem_cache_free(plain, 0x.): already freed",
        "64 bytes, cache plain",
        FREED,
    ),
    (
        "twice_built",
        "umem_cache_free(built, 0x.): already freed",
        "64 bytes, cache built",
        FREED,
    ),
    (
        "other_cache",
        "umem_cache_free(built, 0x.): not an object of this cache",
        "64 bytes, cache plain",
        ALLOCATED,
    ),
    (
        "malloced",
        "umem_cache_free(plain, 0x.): not an object of this cache",
        "64 bytes, cache wl_alloc_96",
        ALLOCATED,
    ),
    (
        "interior_8",
        "umem_cache_free(plain, 0x.): not the start of an allocation",
        "64 bytes, cache plain",
        ALLOCATED,
    ),
    (
        "freed_by_free",
        "free(0x.): an object of a cache, which umem_cache_free frees",
        "64 bytes, cache plain",
        ALLOCATED,
    ),
    (
        "resized",
        "realloc(0x.): an object of a cache, which umem_cache_free frees",
        "64 bytes, cache plain",
        ALLOCATED,
    ),
    (
        "behind_odd",
        "0x.: written behind the buffer, found at umem_cache_free",
        "61 bytes, cache odd",
        ALLOCATED,
    ),
    (
        "after_built",
        "0x.: written after the buffer was freed, found at free",
        "64 bytes, cache built",
        FREED,
    ),
    (
        "gone_write",
        "0x.: written after the buffer was freed, found at free",
        "64 bytes, cache one",
        FREED,
    ),
    (
        "left",
        "umem_cache_destroy(one): 1 objects are still allocated",
        "64 bytes, cache one",
        ALLOCATED,
    ),
    (
        "sized_near",
        "umem_free(0x.): allocated with another size",
        "60 bytes, cache wl_alloc_96",
        ALLOCATED,
    ),
];

/// An error names the buffer, its cache, its size, and the last transaction.
#[test]
fn errors_name_the_cache() {
    for (what, first, buffer, last) in NAMED {
        let output = objects(&[what], "default");
        let said = text(&output);
        assert_eq!(output.status.signal(), Some(ABORTED), "{what}: {said}");
        let (before, after) = first.split_once("0x.").unwrap_or((first, ""));
        let line = said.lines().next().unwrap_or_default();
        let is_it = line.strip_prefix(&format!("windlass: {before}"));
        assert!(is_it.is_some_and(|rest| rest.ends_with(after)), "{said}");
        for part in [buffer, last, "now: thread "] {
            assert!(said.contains(part), "{what}: {part}: {said}");
        }
    }
    // A stranger's has no buffer.
    let said = text(&objects(&["on_stack"], "default"));
    assert!(said.contains("): not an object of this cache\n"), "{said}");
    assert!(!said.contains("buffer 0x"), "{said}");
}

/// Each allocation is constructed and each free destructed; what is free has the pattern; `UMC_NODEBUG` changes nothing of a cache.
#[test]
fn checked_objects_are_constructed_each_time() {
    for words in ["guards", "default"] {
        let output = objects(&["-rules"], words);
        assert_eq!(text(&output), "as they are\n", "{words}");
    }
}

/// With noabort a wrong free is told and does nothing, and a cache with objects out stays.
#[test]
fn programs_with_caches_go_on() {
    for what in ["twice_apart", "other_cache", "freed_by_free", "left"] {
        let output = objects(&[what], "default,noabort");
        assert!(output.status.success(), "{what}: {}", text(&output));
    }
}

/// Caches of many threads, forks and sizes do with debugging words what they do without.
#[test]
fn caches_do_what_they_do_without() {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile_linked("umem.c"));
    let all: &[_] = &["threads", "churn", "many", "exits", "forks", "arguments"];
    for (words, whats) in [
        ("default", all),
        ("guards,firewall=1", &["churn", "arguments"]),
        ("nosignal", &["churn", "forks"]),
    ] {
        for what in whats {
            let output = run(program, &[what], words);
            assert_eq!(text(&output), "done\n", "{words}: {what}");
        }
    }
    assert_eq!(
        run(program, &["nofail"], "default").status.code(),
        Some(255)
    );
}
