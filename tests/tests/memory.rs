//! `windlass memory` on real programs: its figures against what they did, whose allocations grow, what is lost, what an address is.

#[path = "memory/place.rs"]
mod place;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{Place, WITH_POINTERS, WITHOUT_POINTERS};
use serde_json::Value;
use windlass_tests::{copy_program, program, run, skip};

const MIB: u64 = 1 << 20;
/// Objects of 1,000 bytes, 64 MiB of them, and the size of their class.
const OBJECTS: u64 = 67_109;
const CLASS: u64 = 1024;
/// What the one thread's magazines may hold, by which figures may lag, and what the program allocates besides.
const LAG: u64 = MIB + (64 << 10);

fn number(row: &Value, key: &str) -> u64 {
    row[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {row}"))
}

fn sum(rows: &[Value], key: &str) -> u64 {
    rows.iter().map(|row| number(row, key)).sum()
}

/// Figures of a program that has so many objects and mappings.
fn check_figures(row: &Value, objects: u64, mappings: u64) {
    let used = objects * CLASS + mappings * 5 * MIB;
    let shown = number(row, "in_use_bytes");
    assert!(shown.abs_diff(used) <= LAG, "{shown} for {used}: {row}");
    assert_eq!(number(row, "mappings"), mappings);
    assert_eq!(number(row, "mapped_bytes"), mappings * 5 * MIB);
    assert_eq!(number(row, "threads"), 1);
    assert!(number(row, "cached_bytes") <= LAG, "{row}");
}

/// Sizes, counts and mappings are what the program allocated, before and after it frees half; the tables of threads and caches agree with the
/// sums; tables for people have the same.
#[test]
fn figures_are_what_the_program_did() {
    let Some(place) = Place::new("figures_are_what_the_program_did") else {
        return;
    };
    let mut program = place.start(WITH_POINTERS);
    let pid = program.pid();
    let name = pid.to_string();
    program.say(&format!("small {OBJECTS} 1000"));
    program.say("large 10 5242880");
    check_figures(&place.listed(pid).expect("listed"), OBJECTS, 10);
    program.say("half");
    let rows = place.rows(&[&name]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let (row, kept) = (&rows[0], OBJECTS / 2);
    check_figures(row, kept, 5);
    let lost = number(row, "lost_bytes");
    assert!(lost > OBJECTS / 2 * CLASS - 2 * MIB, "{lost}: {row}");
    assert!(number(row, "resident_bytes") > kept * CLASS, "{row}");

    let threads = place.rows(&[&name, "--threads"]);
    assert_eq!(row["by_thread"].as_array(), Some(&threads));
    let thread = &threads[0];
    assert_eq!((threads.len(), number(thread, "tid")), (1, pid.into()));
    let columns = [
        "to_64_bytes",
        "to_256_bytes",
        "to_1k_bytes",
        "to_4k_bytes",
        "to_32k_bytes",
    ];
    let by_size: u64 = columns.iter().map(|key| number(thread, key)).sum();
    assert_eq!(by_size, number(thread, "cached_bytes"));
    assert!(number(thread, "limit_bytes") <= MIB && by_size <= MIB);

    let caches = place.rows(&[&name, "--caches"]);
    assert_eq!(row["by_cache"].as_array(), Some(&caches));
    let of_class = |row: &&Value| row["cache"] == format!("wl_alloc_{CLASS}");
    let cache = caches.iter().find(of_class).expect("a cache");
    let parts = ["in_use", "in_mags", "in_depot"].map(|key| number(cache, key));
    assert!(parts[0].abs_diff(kept) <= MIB / CLASS, "{cache}");
    assert!(parts.iter().sum::<u64>() <= number(cache, "total"));
    assert!(number(cache, "total") * CLASS <= sum(&caches, "memory_bytes"));

    let screen = place.memory(&[&name]);
    assert_eq!((screen.code, screen.err.as_str()), (0, ""));
    for part in [
        "program",
        &format!(" {pid}  up"),
        "\nCACHE",
        "wl_alloc_1024",
        "CAP%",
    ] {
        assert!(screen.out.contains(part), "{part:?}: {}", screen.out);
    }
}

/// A fork's child has a row and figures of its own. Of killed ones nothing is listed, and the next listing removes their files.
#[test]
fn forks_have_rows_and_the_dead_have_none() {
    let Some(place) = Place::new("forks_have_rows_and_the_dead_have_none") else {
        return;
    };
    let mut program = place.start(WITH_POINTERS);
    let pid = program.pid();
    program.say("large 2 5242880");
    let (child, _) = program.say("fork");
    assert_ne!(child, pid);
    for (pid, mappings) in [(pid, 2), (child, 3)] {
        let row = place.listed(pid).expect("listed");
        assert_eq!(number(&row, "mappings"), mappings, "{row}");
    }
    let (parent, _) = program.say("end");
    assert_eq!(parent, pid, "the parent goes on");
    assert!(place.listed(child).is_none());
    let (file, name) = (place.file(pid), pid.to_string());
    program.kill();
    assert!(file.exists(), "a killed program leaves its file");
    assert!(place.listed(pid).is_none());
    assert!(!file.exists(), "the listing removes it");
    let left = fs::read_dir(place.files()).expect("a directory");
    assert_eq!(left.count(), 0);
    for verb in [&[][..], &["growth"], &["leaks", "--scan"]] {
        let done = place.memory(&[verb, &[&name]].concat());
        let gone = format!("there is no process {pid}");
        assert!(done.code == 4 && done.err.contains(&gone), "{}", done.err);
    }
    let own = std::process::id().to_string();
    let done = place.memory(&[&own]);
    let plain = done.err.contains("does not run on libwindlass_alloc.so");
    assert!(done.code == 4 && plain, "{}", done.err);
}

/// Root sees the program of a user, who sees it, too; another user is refused, and it is not listed to them.
#[test]
fn other_users_are_refused() {
    const TEST: &str = "other_users_are_refused";
    const OWNER: u32 = 61_301;
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let is_there = Command::new("setpriv").arg("-V").output().is_ok();
    if !is_there || !rustix::process::geteuid().is_root() {
        return skip(TEST, "it needs root and setpriv");
    }
    // The build may lie where these users may not look.
    for name in ["windlass", "libwindlass_alloc.so"] {
        copy_program(&program(name), &place.path(name));
    }
    fs::set_permissions(place.directory.path(), PermissionsExt::from_mode(0o755)).expect("opened");
    let runtime = place.path("runtime");
    fs::create_dir(&runtime).expect("a directory");
    chown(&runtime, Some(OWNER), Some(OWNER)).expect("given away");
    let act = |uid: u32| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        command.args(["--clear-groups", "env"]);
        command
    };
    let mut command = act(OWNER);
    let preload = format!(
        "LD_PRELOAD={}",
        place.path("libwindlass_alloc.so").display()
    );
    command.args([preload, format!("XDG_RUNTIME_DIR={}", runtime.display())]);
    command.arg(place.compile(WITH_POINTERS));
    let mut program = place.start_as(command);
    let (pid, _) = program.say("large 3 5242880");
    let name = pid.to_string();
    let ask = |uid: u32, words: &[&str]| {
        let mut command = act(uid);
        command.arg(format!("XDG_RUNTIME_DIR={}", runtime.display()));
        command.args(["timeout", "60"]).arg(place.path("windlass"));
        run(command.arg("memory").args(words).stdin(Stdio::null()))
    };
    for uid in [0, OWNER] {
        let done = ask(uid, &[&name, "--json"]);
        let rows: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
        assert_eq!(
            (number(&rows[0], "uid"), number(&rows[0], "mappings")),
            (OWNER.into(), 3)
        );
    }
    assert!(ask(OWNER, &[]).out.contains(&name));
    for verb in [&[][..], &["growth"], &["leaks", "--scan"]] {
        let done = ask(OWNER + 1, &[verb, &[&name]].concat());
        assert!(
            done.code == 6 && done.err.contains("another user's"),
            "{done:?}"
        );
    }
    let list = ask(OWNER + 1, &["--json"]);
    assert_eq!((list.code, list.out.trim()), (0, "[]"), "{}", list.err);
}

/// A varint of a profile.
fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("too long")
}

/// Fields of a message, with their numbers.
type Fields<T> = Vec<(u64, T)>;

/// The fields of a message that are texts or messages, and those that are numbers.
fn message(mut bytes: &[u8]) -> (Fields<&[u8]>, Fields<u64>) {
    let (mut parts, mut numbers) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => numbers.push((key >> 3, varint(&mut bytes))),
            2 => {
                let len = usize::try_from(varint(&mut bytes)).expect("a length");
                let (part, rest) = bytes.split_at(len);
                parts.push((key >> 3, part));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    (parts, numbers)
}

/// A profile that gzip accepts: two values a sample, of the right names and units; places of samples exist; a function is named.
fn check_profile(path: &std::path::Path, function: &str) {
    let done = Command::new("gzip").arg("-dc").arg(path).output();
    let done = done.expect("gzip");
    assert!(done.status.success(), "{done:?}");
    let (parts, _) = message(&done.stdout);
    let of = |field: u64| {
        let own = parts.iter().filter(move |(number, _)| *number == field);
        own.map(|(_, part)| *part)
    };
    let texts: Vec<_> = of(6).map(String::from_utf8_lossy).collect();
    let text = |number: u64| texts[usize::try_from(number).expect("small")].as_ref();
    assert_eq!(text(0), "");
    let types: Vec<_> = of(1).map(|part| message(part).1).collect();
    let types: Vec<_> = types
        .iter()
        .map(|fields| [text(fields[0].1), text(fields[1].1)])
        .collect();
    assert_eq!(
        types,
        [["inuse_objects", "count"], ["inuse_space", "bytes"]]
    );
    let places: Vec<u64> = of(4).map(|part| message(part).1[0].1).collect();
    assert!(of(2).count() > 0 && !places.is_empty());
    for sample in of(2) {
        let (fields, _) = message(sample);
        for (field, mut packed) in fields {
            let mut values = Vec::new();
            while !packed.is_empty() {
                values.push(varint(&mut packed));
            }
            match field {
                1 => assert!(values.iter().all(|value| places.contains(value))),
                2 => assert_eq!(values.len(), 2),
                other => panic!("field {other}"),
            }
        }
    }
    assert!(texts.iter().any(|text| text == function), "{texts:?}");
}

/// With frame pointers and without, growth names the function and its callers, and its estimate holds; so does the profile for pprof.
/// `--since` counts what is young alone.
#[test]
fn growth_names_functions() {
    let Some(place) = Place::new("growth_names_functions") else {
        return;
    };
    for flags in [WITH_POINTERS, WITHOUT_POINTERS] {
        let mut program = place.start(flags);
        let pid = program.pid().to_string();
        let count = 32 * MIB / 1000;
        program.say(&format!("small {count} 1000"));
        let early = Instant::now();
        let path = place.path("profile");
        let profile = path.to_str().expect("UTF-8");
        let rows = place.rows(&["growth", &pid, "--pprof", profile]);
        let [bytes, error] = ["bytes", "error_bytes"].map(|key| number(&rows[0], key));
        // Five deviations.
        let off = bytes.abs_diff(count * 1000);
        assert!(error > 0 && off * 2 < error * 5, "{bytes} {error}");
        let stack = rows[0]["stack_text"].as_str().expect("text");
        // The part of the stack that is copied ends in `step`.
        let callers = if flags == WITH_POINTERS {
            " <- main"
        } else {
            ""
        };
        let named = stack.starts_with(&format!("keep_sessions <- step{callers}"));
        assert!(named && !stack.contains("0x"), "{flags:?}: {stack}");
        check_profile(&path, "keep_sessions");

        let site = |name: &str, rows: &[Value]| {
            let is_it = |row: &&Value| {
                row["stack_text"]
                    .as_str()
                    .is_some_and(|stack| stack.starts_with(name))
            };
            rows.iter().find(is_it).map(|row| number(row, "samples"))
        };
        // A machine that stands still between the allocation and the reading proves nothing: then once more.
        loop {
            std::thread::sleep(Duration::from_secs(3).saturating_sub(early.elapsed()));
            let late = Instant::now();
            program.say("late 16384 1000");
            let rows = place.rows(&["growth", &pid, "--since", "2s"]);
            if late.elapsed() < Duration::from_secs(2) {
                assert!(site("late_sessions", &rows).is_some(), "{rows:?}");
                assert_eq!(site("keep_sessions", &rows), None, "{rows:?}");
                break;
            }
        }
        let all = place.rows(&["growth", &pid, "--since", "1h"]);
        assert!(site("keep_sessions", &all).is_some() && site("late_sessions", &all).is_some());
    }
}

/// Objects that leaks name, by their sizes.
fn leaked(rows: &[Value]) -> Vec<(u64, u64)> {
    let row = |row: &Value| (number(row, "size"), number(row, "buffers"));
    rows.iter().map(row).collect()
}

/// What the program of the test loses.
const LOST: [(u64, u64); 3] = [(5 * MIB, 1), (64 << 10, 1), (64, 17)];

/// The objects that the program lost are found, none of those that it keeps, and it goes on.
#[test]
fn leaks_are_found() {
    let Some(place) = Place::new("leaks_are_found") else {
        return;
    };
    for flags in [WITH_POINTERS, WITHOUT_POINTERS] {
        let mut program = place.start(flags);
        let pid = program.pid().to_string();
        program.say("small 1000 64");
        program.say("large 2 5242880");
        let none = place.memory(&["leaks", &pid, "--scan"]);
        assert!(none.out.contains("every object is referred to"), "{none:?}");
        program.say("lose");
        let rows = place.rows(&["leaks", &pid, "--scan"]);
        assert_eq!(by_size(&rows), LOST, "{rows:?}");
        let large = rows.iter().find(|row| row["size"] == 5 * MIB);
        let stack = large.and_then(|row| row["stack_text"].as_str());
        assert!(
            stack.is_some_and(|stack| stack.contains("lose")),
            "{rows:?}"
        );
        check_inspect(&place, &pid, &rows);
        let (again, _) = program.say("small 10 64");
        assert_eq!(again, program.pid());
    }
}

/// `windlass inspect` says the same of the program: leaks, caches, buffers.
fn check_inspect(place: &Place, pid: &str, rows: &[Value]) {
    let ask = |command: &str| place.windlass(&["inspect", pid, "--", command]);
    let found = ask("::findleaks");
    assert!(found.out.contains("lose"), "{found:?}");
    let caches = ask("::umastat");
    assert!(caches.out.contains("wl_alloc_64"), "{caches:?}");
    assert!(ask("magazines").out.contains("TID"));
    let buffers = ask("bufs wl_alloc_64 | count").out;
    assert!(
        buffers
            .trim()
            .parse::<u64>()
            .is_ok_and(|count| count >= 1_017),
        "{buffers}"
    );
    let lost = rows.iter().find(|row| row["size"] == 64);
    let lost = lost
        .and_then(|row| row["addresses"][0].as_str())
        .expect("an address");
    assert!(ask("bufs wl_alloc_64").out.contains(lost));
    assert!(ask(&format!("whatis {lost}")).out.contains("wl_alloc_64"));
    assert!(ask("bufs nothing").err.contains("wl_alloc_64"));
}

/// The same, of all stacks together.
fn by_size(rows: &[Value]) -> Vec<(u64, u64)> {
    let mut all = std::collections::BTreeMap::new();
    for (size, buffers) in leaked(rows) {
        *all.entry(size).or_insert(0) += buffers;
    }
    all.into_iter().rev().collect()
}

/// Checks what a core file says of a program that lost objects and kept others.
fn check_core(place: &Place, core: &std::path::Path) {
    let rows = place.rows(&["leaks", "--scan", "--core", core.to_str().expect("UTF-8")]);
    assert_eq!(by_size(&rows), LOST, "{rows:?}");
    // Addresses that are merely reserved are not in it.
    let len = fs::metadata(core).expect("a core").len();
    assert!(len < CORE_MAX, "{len}");
}

/// Bytes of a core: the program has 15 MiB.
const CORE_MAX: u64 = 256 * MIB;

/// The same objects are found in the core that the kernel writes.
#[test]
fn leaks_are_found_in_the_kernels_core() {
    const TEST: &str = "leaks_are_found_in_the_kernels_core";
    const LIMIT: &str = "ulimit -c 1000000";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let may = Command::new("sh").args(["-c", LIMIT]).output();
    if pattern.trim() != "core" || !may.is_ok_and(|done| done.status.success()) {
        return skip(TEST, "core files are not written beside their program");
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{LIMIT}; LD_PRELOAD=$0 exec $1")]);
    command
        .arg(place.library())
        .arg(place.compile(WITH_POINTERS));
    let mut program = place.start_as(command);
    for words in ["small 1000 64", "large 2 5242880", "lose"] {
        program.say(words);
    }
    program.tell("abort");
    assert!(program.wait().core_dumped());
    let entries = fs::read_dir(place.directory.path()).expect("a directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let is_core = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("core")
    };
    check_core(&place, &paths.find(is_core).expect("a core"));
}

/// And in the one that a debugger writes of a live program.
#[test]
fn leaks_are_found_in_a_debuggers_core() {
    const TEST: &str = "leaks_are_found_in_a_debuggers_core";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let is_missing = |tool: &&str| Command::new(tool).arg("-v").output().is_err();
    if let Some(tool) = ["gcore", "prlimit"].into_iter().find(is_missing) {
        return skip(TEST, &format!("{tool} is missing"));
    }
    let mut program = place.start(WITH_POINTERS);
    for words in ["small 1000 64", "large 2 5242880", "lose"] {
        program.say(words);
    }
    // A file that has all that is reserved would fill the disk.
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--fsize={CORE_MAX}"))
        .args(["gcore", "-o"]);
    command
        .arg(place.path("core"))
        .arg(program.pid().to_string());
    let done = run(&mut command);
    assert_eq!(done.code, 0, "{} {}", done.out, done.err);
    check_core(&place, &place.path(&format!("core.{}", program.pid())));
}

/// Each kind of address has its kind, start, offset and state.
#[test]
fn addresses_are_explained() {
    let Some(place) = Place::new("addresses_are_explained") else {
        return;
    };
    let mut program = place.start(WITH_POINTERS);
    let pid = program.pid().to_string();
    program.say("small 100 1000");
    program.say("large 1 5242880");
    let (_, addresses) = program.say("addresses");
    let address = |text: &String| {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal")
    };
    let addresses: Vec<_> = addresses.iter().map(address).collect();
    let [object, freed, large, units, stack, code] = addresses[..] else {
        panic!("{addresses:?}")
    };
    let allocated = Some("allocated");
    let in_magazine = Some("free, in a magazine or a depot");
    for (address, kind, offset, state) in [
        (object, "object", Some(0), allocated),
        (object + 999, "object", Some(999), allocated),
        (freed, "object", Some(0), in_magazine),
        (large, "mapping", Some(0), allocated),
        (large + 4 * MIB, "mapping", Some(4 * MIB), allocated),
        (units + 70_000, "large", Some(70_000), allocated),
        (stack, "memory", None, None),
        (code, "code", None, None),
        (0x1000, "nothing", None, None),
        (u64::MAX, "nothing", None, None),
    ] {
        let rows = place.rows(&["whatis", &pid, &format!("{address:#x}")]);
        let row = &rows[0];
        let said = (
            row["kind"].as_str(),
            row["offset"].as_u64(),
            row["state"].as_str(),
        );
        assert_eq!(said, (Some(kind), offset, state), "{address:#x}: {row}");
        let text = place.memory(&["whatis", &pid, &format!("{address:x}")]);
        assert!(
            text.out.contains(row["text"].as_str().expect("text")),
            "{text:?}"
        );
    }
    let texts =
        [stack, code].map(|address| place.memory(&["whatis", &pid, &format!("{address:x}")]).out);
    assert!(
        texts[0].contains("[stack]") && texts[1].contains("keep_sessions"),
        "{texts:?}"
    );
}
