//! C, C++ and real programs under the library.

mod harness;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use harness::*;

/// The program of `programs/alloc.c`.
fn calls() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("cc", "alloc.c"))
}

/// Runs the program of `alloc.c` under the library; it must be content.
fn passes(what: &str) {
    let mut command = Command::new(calls());
    command.arg(what);
    let output = output(command, true);
    assert!(
        output.status.success(),
        "{what}: {:?} {}",
        output.status,
        text(&output)
    );
}

/// A directory for status files, of this test alone.
fn runtime(name: &str) -> PathBuf {
    let place = Path::new("/dev/shm").join(format!("windlass-test-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).expect("a directory in memory");
    place
}

/// Runs without and with the library and compares.
fn same(make: impl Fn() -> Command) -> String {
    let (plain, ours) = (output(make(), false), output(make(), true));
    assert_eq!(text(&plain), text(&ours));
    assert_eq!(plain.status, ours.status);
    text(&ours)
}

/// Eight threads allocate, resize and free objects of all sizes, their own and each other's: no two overlap, and contents stay.
#[test]
fn contents_stay_whole() {
    passes("threads");
}

/// 20,000 threads that are made and joined leave less than 16 MiB.
#[test]
fn short_threads_leave_little() {
    passes("short-threads");
}

/// A program that allocates little touches little of the library's own memory: 44 KiB are written to of 800.
#[test]
fn the_library_touches_little() {
    let mut command = Command::new("cat");
    command.arg("/proc/self/smaps");
    let maps = text(&output(command, true));
    let mut is_ours = false;
    let mut written = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Private_Dirty:"), Some(kib)) if is_ours => {
                written += kib.parse::<usize>().expect("a number");
            }
            // The mapping's first line; the library's zeros lie behind its file's.
            (Some(range), Some(_)) if !range.ends_with(':') => {
                is_ours = line.ends_with("libwindlass_alloc.so")
                    || is_ours && line.split_whitespace().count() == 5;
            }
            _ => {}
        }
    }
    assert!((1..=128).contains(&written), "{written} KiB");
}

/// 300 forks under four allocating threads: the child allocates and makes threads. And vfork, posix_spawn.
#[test]
fn children_allocate() {
    passes("forks");
}

/// Freed memory of which a page is locked is zeros for calloc.
#[test]
fn locked_memory_reads_as_zeros() {
    passes("locked");
}

/// Every call: results, alignments, errno, sizes near SIZE_MAX, growing and shrinking.
#[test]
fn calls_do_what_their_pages_say() {
    passes("calls");
}

/// mallinfo2 agrees with what the program has, to the byte.
#[test]
fn figures_are_true() {
    passes("figures");
}

/// Samples come at the rate that was asked for, whatever their size and call: within five standard deviations.
#[test]
fn samples_come_at_their_rate() {
    let runtime = runtime("samples");
    let mut command = Command::new(calls());
    command
        .arg("samples")
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("WINDLASS_MEMORY", "sample=256k");
    let output = output(command, true);
    fs::remove_dir_all(&runtime).expect("it was made");
    assert!(output.status.success(), "{}", text(&output));
}

/// A gigabyte in small, middle and large objects has been given back when the last free returns.
#[test]
fn a_freed_gigabyte_goes_back() {
    passes("gigabyte");
}

/// Without memory calls return NULL and ENOMEM, and what there is stays.
#[test]
fn out_of_memory_changes_nothing() {
    passes("limited");
}

/// Destructors after the library's own, pthread_exit, exit handlers, and every descriptor closed.
#[test]
fn the_end_is_quiet() {
    passes("ends");
}

/// The same calls where the arena has to be small, and where there is none.
#[test]
fn a_small_address_space_suffices() {
    for (what, limit_kib) in [
        ("calls", 3_000_000),
        ("threads", 3_000_000),
        ("threads", 900_000),
    ] {
        let line = format!(
            "ulimit -v {limit_kib}; LD_PRELOAD={} exec {} {what}",
            library().display(),
            calls().display()
        );
        let output = output(script("bash", &["-c", &line]), false);
        assert!(
            output.status.success(),
            "{what} in {limit_kib}: {}",
            text(&output)
        );
    }
}

/// Each wrong address gets its sentence and an abort.
#[test]
fn wrong_addresses_are_named() {
    let (twice, start, nothing) = (
        "already freed",
        "not the start of an allocation",
        "nothing is allocated there",
    );
    for (what, call, sentence) in [
        ("twice", "free", twice),
        ("twice-apart", "free", twice),
        ("unaligned", "free", start),
        ("interior", "free", start),
        ("stack", "free", nothing),
        ("run-interior", "free", start),
        ("run-twice", "free", nothing),
        ("mapping-interior", "free", nothing),
        ("mapping-twice", "free", nothing),
        ("realloc", "realloc", nothing),
    ] {
        let output = output(
            script(calls().to_str().expect("a plain path"), &["wrong", what]),
            true,
        );
        let said = text(&output);
        assert_eq!(output.status.signal(), Some(ABORTED), "{what}: {said}");
        assert!(
            said.starts_with(&format!("windlass: {call}(0x")),
            "{what}: {said}"
        );
        assert!(
            said.ends_with(&format!("): {sentence}\n")),
            "{what}: {said}"
        );
    }
}

/// Runs `options.c` under these words in this variable.
fn under(variable: &str, words: &str, what: &str) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let mut command = Command::new(PROGRAM.get_or_init(|| compile("cc", "options.c")));
    command.arg(what).env(variable, words);
    output(command, true)
}

/// What each option changes, and what stays without it.
#[test]
fn options_are_obeyed() {
    for (words, what, expected) in [
        ("", "keep", "much"),
        ("keep=0", "keep", "little"),
        ("keep=all", "keep", "much"),
        ("unknown-free=ignore", "stranger", "ignored"),
    ] {
        for variable in ["WINDLASS_MEMORY", "UMEM_OPTIONS"] {
            let output = under(variable, words, what);
            assert_eq!(text(&output), format!("{expected}\n"), "{words}: {what}");
            assert!(output.status.success(), "{words}: {what}");
        }
    }
    // Without one of these words, when the process ends.
    for words in ["", "reap_interval=10"] {
        let said = text(&under("WINDLASS_MEMORY", words, "twice"));
        assert!(said.starts_with("unnoticed\nwindlass: free("), "{said}");
        assert!(said.ends_with("): already freed\n"), "{said}");
    }
    for words in ["check=full", "nomagazines", "perthread_cache=0"] {
        let said = text(&under("WINDLASS_MEMORY", words, "twice"));
        assert!(said.ends_with("): already freed\n"), "{words}: {said}");
    }
}

/// Unknown words are named once a process; those beside them count.
#[test]
fn unknown_words_are_named() {
    let output = under(
        "WINDLASS_MEMORY",
        "nonsense,unknown-free=ignore,keep=x",
        "stranger",
    );
    let said = "ignored\nwindlass: WINDLASS_MEMORY: unknown word \"nonsense\"\n\
                windlass: WINDLASS_MEMORY: unknown word \"keep=x\"\n";
    assert_eq!(text(&output), said);
}

/// Runs the program of `umem.c`, which is linked with the library; it must be content.
fn caches_pass(what: &[&str], words: &str) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile_linked("umem.c"));
    let mut command = Command::new(program);
    command.args(what).env("WINDLASS_MEMORY", words);
    output(command, false)
}

/// Object caches: each object is constructed once before it is handed out and destructed once after it came back, and has one owner at a time.
/// Six threads, thirty caches with and without numbers, constructors that fail; caches that come and go and take over numbers; 10,000 of them;
/// threads that end; forks; sizes, alignments, names and what is refused; reclaim without memory.
#[test]
fn object_caches_keep_their_promises() {
    for what in [
        "stays",
        "threads",
        "churn",
        "many",
        "exits",
        "races",
        "forks",
        "arguments",
        "shortage",
    ] {
        let output = caches_pass(&[what], "");
        let said = text(&output);
        let is_end = match what {
            // The callback's answer.
            "shortage" => output.status.code() == Some(7),
            _ => output.status.success() && said == "done\n",
        };
        assert!(is_end, "{what}: {:?} {said}", output.status);
    }
    // Each object of more than a few bytes is a sample, in a slab of its own kind.
    for what in ["threads", "churn", "exits", "forks"] {
        let output = caches_pass(&[what], "sample=50");
        assert_eq!(text(&output), "done\n", "{what}");
    }
    assert_eq!(caches_pass(&["nofail"], "").status.code(), Some(255));
}

/// Wrong uses of object caches are named.
#[test]
fn wrong_uses_of_caches_are_named() {
    let (other, start, gone) = (
        "not an object of this cache",
        "not the start of an object",
        "no such cache",
    );
    for (what, call, sentence) in [
        ("twice", "free(0x", "already freed"),
        ("twice-apart", "umem_cache_free(ours, 0x", "already freed"),
        ("other", "umem_cache_free(other, 0x", other),
        ("interior", "umem_cache_free(ours, 0x", start),
        ("unaligned", "umem_cache_free(ours, 0x", start),
        ("stack", "umem_cache_free(ours, 0x", other),
        ("null", "umem_cache_free(ours, 0x0", other),
        ("malloc", "umem_cache_free(ours, 0x", other),
        (
            "out",
            "umem_cache_destroy(ours",
            "2 objects are still allocated",
        ),
        ("gone", "umem_cache_alloc(0x", gone),
        ("gone-twice", "umem_cache_destroy(0x", gone),
        ("gone-free", "umem_cache_free(0x", gone),
        (
            "locked-twice",
            "umem_cache_free(locked, 0x",
            "already freed",
        ),
        ("locked-other", "umem_cache_free(locked2, 0x", other),
        ("locked-interior", "umem_cache_free(locked, 0x", start),
        (
            "locked-free",
            "free(0x",
            "an object of a cache, which umem_cache_free frees",
        ),
        ("size", "umem_free(0x", "allocated with another size"),
    ] {
        let output = caches_pass(&["wrong", what], "");
        let said = text(&output);
        assert_eq!(output.status.signal(), Some(ABORTED), "{what}: {said}");
        assert!(
            said.starts_with(&format!("windlass: {call}")),
            "{what}: {said}"
        );
        assert!(
            said.ends_with(&format!("): {sentence}\n")),
            "{what}: {said}"
        );
    }
}

/// C++: every operator, bad_alloc, the new-handler, containers and exceptions.
#[test]
fn operators_do_what_the_standard_says() {
    if is_installed("operators_do_what_the_standard_says", "c++") {
        let program = compile("c++", "operators.cpp");
        same(|| Command::new(&program));
    }
}

/// A shell with pipes, subshells and many variables.
#[test]
fn bash_runs_the_same() {
    let line = "for i in {1..20000}; do a[i]=$i$i; done; echo ${#a[@]} ${a[777]}; \
                for i in 1 2 3; do (echo $i | tr 1 x) ; done; x=$(printf '%0100000d' 7); echo ${#x}; exit 3";
    same(|| script("bash", &["-c", line]));
}

/// Perl's hashes, sorts and regular expressions.
#[test]
fn perl_runs_the_same() {
    if is_installed("perl_runs_the_same", "perl") {
        let line = "my %h; $h{$_ * 7919 % 100003} = 'v' x ($_ % 50) for 1..100000; my $s = join ',', map { \"$_=$h{$_}\" } sort keys %h; \
                    $s =~ s/v+/w/g; print length($s), substr($s, 5000, 60), qq(\\n)";
        same(|| script("perl", &["-e", line]));
    }
}

/// Python with malloc beneath every object: threads, subprocesses, json, forks.
#[test]
fn python_runs_the_same() {
    if !is_installed("python_runs_the_same", "python3") {
        return;
    }
    let line = "import json, threading, subprocess, os, hashlib, sys
data = {str(i): list(range(i % 40)) for i in range(20000)}
out = [None] * 4
def work(at): out[at] = hashlib.md5(json.dumps(json.loads(json.dumps(data))).encode()).hexdigest()
threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(out, subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout)
sys.stdout.flush()
if os.fork() == 0: print(len(bytearray(50 << 20))); sys.stdout.flush(); os._exit(0)
print(os.wait()[1])";
    same(|| {
        let mut command = script("python3", &["-c", line]);
        command.env("PYTHONMALLOC", "malloc");
        command
    });
}

/// A compiler makes the same object.
#[test]
fn a_compiler_compiles_the_same() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/alloc.c");
    let line = format!("cc -w -O2 -S -o - {} | cksum", source.display());
    same(|| script("bash", &["-c", &line]));
}

/// redis: data of many kinds, a fork that saves, and a restart that loads.
#[test]
fn redis_answers_the_same() {
    let name = "redis_answers_the_same";
    if !is_installed(name, "redis-server") || !is_installed(name, "redis-cli") {
        return;
    }
    let directory = scratch("redis");
    fs::create_dir_all(&directory).expect("a directory for redis");
    let line = r#"cd "$0"; rm -f dump.rdb
        cli() { redis-cli -s socket "$@"; }
        start() { redis-server --port 0 --unixsocket "$0/socket" --save '' --dir "$0" >log 2>&1 & server=$!
            until cli ping >/dev/null 2>&1; do kill -0 $server || exit 1; done; }
        start "$0"
        for i in $(seq 2000); do echo "set k$i $(printf "%0$((i % 300))d" $i)"; echo "lpush l $i"; echo "hset h f$i $i"; echo "zadd z $i m$i"; done | cli | sort | uniq -c
        cli eval 'local t = {} for i = 1, 1000 do t[i] = redis.call("get", "k" .. i) end return #table.concat(t)' 0
        cli save; cli bgsave; until [ "$(cli info persistence | grep -c rdb_bgsave_in_progress:0)" = 1 ]; do :; done
        cli shutdown nosave; wait $server; echo $?
        start "$0"; cli dbsize; cli lrange l 0 5; cli get k1234; cli shutdown nosave; wait $server; echo $?"#;
    let directory = directory.to_str().expect("a plain path");
    let said = same(|| script("bash", &["-c", line, directory]));
    assert!(said.ends_with("\n0\n"), "{said}");
}

/// valgrind: its own allocator in our place, and ours under it.
#[test]
fn valgrind_runs_programs() {
    if !is_installed("valgrind_runs_programs", "valgrind") {
        return;
    }
    for synonym in ["somalloc=libwindlass_alloc.so", "somalloc=none"] {
        let line = format!(
            "LD_PRELOAD={} exec valgrind -q --error-exitcode=9 --soname-synonyms={synonym} {} figures",
            library().display(),
            calls().display()
        );
        let output = output(script("bash", &["-c", &line]), false);
        // valgrind's own allocator has no figures.
        let expected = if synonym.ends_with(".so") { 1 } else { 0 };
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{synonym}: {}",
            text(&output)
        );
    }
}

/// Runs the program of `pages.c` with `pages=` set. What its "show"s printed: MiB in transparent huge pages, in pages of the reserve, resident.
fn shown(pages: &str, words: &str) -> Vec<[i64; 3]> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let mut command = Command::new(PROGRAM.get_or_init(|| compile("cc", "pages.c")));
    command.args(words.split(' '));
    command.env("WINDLASS_MEMORY", format!("pages={pages}"));
    let output = output(command, true);
    assert!(output.status.success(), "{words}: {}", text(&output));
    let row = |line: &str| {
        let mut numbers = line
            .split(' ')
            .map(|kib| kib.parse::<i64>().expect("KiB") >> 10);
        [(); 3].map(|()| numbers.next().expect("three numbers"))
    };
    text(&output).lines().map(row).collect()
}

/// Whether the kernel has transparent huge pages for who asks, and only for those.
fn has_transparent(test: &str) -> bool {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let has = setting.is_ok_and(|text| text.contains("[madvise]") || text.contains("[always]"));
    if !has {
        println!("skipped: {test}: the kernel has no transparent huge pages");
    }
    has
}

/// `auto` asks for huge pages from 64 MiB on, `thp` at once and for large objects, `4k` never. A process that has refused them gets none.
#[test]
fn huge_pages_come_when_they_are_asked_for() {
    if !has_transparent("huge_pages_come_when_they_are_asked_for") {
        return;
    }
    let auto = shown("auto", "grow=40 show grow=300 show");
    assert_eq!(auto[0][0], 0, "{auto:?}");
    // The kernel may have run out of them; what was there before stays as it was.
    assert!(
        auto[1][0] >= 100 && auto[1][2] - auto[1][0] >= 60,
        "{auto:?}"
    );
    assert_eq!(shown("auto", "nothp grow=200 show")[0][0], 0);
    assert_eq!(shown("4k", "grow=200 large show")[0][0], 0);
    let thp = shown("thp", "grow=20 show large show");
    assert!(thp[0][0] >= 10 && thp[1][0] >= thp[0][0] + 8, "{thp:?}");
}

/// While a child has the heap, `auto` adds small pages, and for good if it had it for long; one that executes another program does not matter.
#[test]
fn children_that_stay_keep_pages_small() {
    if !has_transparent("children_that_stay_keep_pages_small") {
        return;
    }
    let exec = shown("auto", "grow=150 exec wait=150 show grow=250 show");
    assert!(exec[1][0] >= exec[0][0] + 50, "{exec:?}");
    let stay = shown("auto", "grow=150 stay wait=150 show grow=250 show");
    // The span that was begun before goes on.
    assert!(stay[1][0] <= stay[0][0] + 2, "{stay:?}");
}

/// Of a heap in huge pages in which little is left as much goes back as of one in small pages: they are broken then, and stay so.
#[test]
fn nearly_empty_huge_pages_are_broken() {
    if !has_transparent("nearly_empty_huge_pages_are_broken") {
        return;
    }
    let shown = shown("thp", "grow=200 show thin=512 show");
    assert!(shown[0][0] >= 100, "{shown:?}");
    // An eighth of the slabs, 8 MiB, magazines, the array of addresses and the program.
    assert!(shown[1][2] <= 25 + 8 + 16 && shown[1][0] <= 20, "{shown:?}");
}

/// A reserve that has no room leaves no hole in the arena into which another thread's mapping falls, to be overwritten.
#[test]
fn a_full_reserve_overwrites_nothing() {
    shown("hugetlb,keep=0", "strangers");
}

/// `hugetlb` takes pages of the reserve while it has some, others after that, and gives them back with the memory.
#[test]
fn the_reserve_is_used_up_and_no_further() {
    const RESERVE: &str = "/proc/sys/vm/nr_hugepages";
    let before = fs::read_to_string(RESERVE).unwrap_or_default();
    let pages = before.trim().parse::<i64>().unwrap_or(0);
    let set = |pages: i64| fs::write(RESERVE, pages.to_string()).is_ok();
    let has = |least: i64| {
        let now = fs::read_to_string(RESERVE).unwrap_or_default();
        now.trim().parse::<i64>().is_ok_and(|pages| pages >= least)
    };
    if !set(pages + 8) || !has(pages + 8) {
        set(pages);
        println!("skipped: the_reserve_is_used_up_and_no_further: {RESERVE} cannot be raised");
        return;
    }
    let shown = shown("hugetlb", "grow=60 show thin=1048576 show");
    set(pages);
    // Other programs may take some.
    assert!((2..=16 + 2 * pages).contains(&shown[0][1]), "{shown:?}");
    assert!(shown[1][1] <= 12, "{shown:?}");
}
