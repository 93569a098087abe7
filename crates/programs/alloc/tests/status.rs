//! The status file: what a reader outside sees of a program, and what happens where there can be no file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass_memory::*;

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.with_file_name("libwindlass_alloc.so")
}

/// The program of `programs/status.c`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("status");
        fs::create_dir_all(&place).expect("a directory for programs");
        let binary = place.join(format!("status-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/status.c");
        let mut compiler = Command::new("cc");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        compiler.arg("-I").arg(include);
        compiler.args(["-w", "-O1", "-fno-omit-frame-pointer", "-pthread", "-o"]);
        let status = compiler.arg(&binary).arg(source).status();
        assert!(status.expect("a compiler").success());
        binary
    })
}

/// A directory in memory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-test-{}-{number}", std::process::id());
        let place = Path::new("/dev/shm").join(name);
        fs::create_dir(&place).expect("a directory in memory");
        Self(place)
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.0.join("windlass/memory")) else {
            return Vec::new();
        };
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }

    fn file(&self, pid: u32) -> Option<PathBuf> {
        let name = format!("{pid}.");
        let is_its = |file: &PathBuf| {
            file.file_name()
                .is_some_and(|own| own.to_string_lossy().starts_with(&name))
        };
        self.files().into_iter().find(is_its)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that waits.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn number(&mut self) -> u64 {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().parse().unwrap_or_else(|_| panic!("{line:?}"))
    }

    /// Its input ends, and so does the program, without a complaint.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it ends");
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        assert!(status.success(), "{status} {rest}");
    }
}

fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).env_clear();
    command
        .env("LD_PRELOAD", library())
        .env("XDG_RUNTIME_DIR", &place.0);
    command
}

/// What a reader sees.
struct Image(Vec<u8>);

impl Image {
    fn of(place: &Place, pid: u32) -> Self {
        let file = place
            .file(pid)
            .unwrap_or_else(|| panic!("no file of {pid}: {:?}", place.files()));
        let mode = fs::metadata(&file).expect("its state").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        Self(fs::read(file).expect("its contents"))
    }

    fn bytes(&self, table: &Table, row: usize) -> &[u8] {
        &self.0[table.row(row).expect("a row")..]
    }

    fn header(&self) -> Header {
        Header::from_bytes(self.bytes(&HEADER, 0)).expect("whole")
    }

    fn threads(&self) -> Vec<Thread> {
        let rows = (0..THREAD.rows)
            .map(|row| Thread::from_bytes(self.bytes(&THREAD, row)).expect("whole"));
        rows.filter(|row| row.state != ThreadState::Free as u64)
            .collect()
    }

    fn samples(&self) -> Vec<Sample> {
        let rows = (0..SAMPLE.rows)
            .map(|row| Sample::from_bytes(self.bytes(&SAMPLE, row)).expect("whole"));
        rows.filter(|row| row.address != 0).collect()
    }

    fn stack(&self, sample: &Sample) -> Stack {
        Stack::from_bytes(self.bytes(&STACK, sample.stack as usize - 1)).expect("whole")
    }

    fn caches(&self) -> Vec<Cache> {
        let rows =
            (0..CACHE.rows).map(|row| Cache::from_bytes(self.bytes(&CACHE, row)).expect("whole"));
        rows.filter(|row| row.address != 0).collect()
    }

    fn class(&self, number: u64) -> Class {
        Class::from_bytes(self.bytes(&CLASS, number as usize)).expect("whole")
    }

    fn in_use(&self) -> u64 {
        let classes =
            (0..CLASS.rows).map(|row| Class::from_bytes(self.bytes(&CLASS, row)).expect("whole"));
        let small: u64 = classes
            .map(|row| (row.objects - row.in_slabs - row.in_depot) * row.size)
            .sum();
        let arena = Arena::from_bytes(self.bytes(&ARENA, 0)).expect("whole");
        let mapped = Mapped::from_bytes(self.bytes(&MAPPED, 0)).expect("whole");
        let cached: u64 = self.threads().iter().map(|thread| thread.cached).sum();
        let caches = self.caches();
        let shared = caches
            .iter()
            .map(|row| (row.objects - row.in_slabs) * row.size);
        small
            + shared.sum::<u64>()
            + (arena.used_units - arena.slab_units) * self.header().unit
            + mapped.bytes
            - cached
    }
}

/// What is in use, of a program that holds objects of 100 bytes and says how much that is: to a magazine of each class.
fn agrees(place: &Place, pid: u32, said: u64) {
    let seen = Image::of(place, pid).in_use();
    assert!(
        seen.abs_diff(said) < 1 << 20,
        "{pid}: {seen} instead of {said}"
    );
}

/// The file is there while the program runs, says what mallinfo2 says, and goes with the program. Nobody else can read it.
#[test]
fn a_file_says_what_is_in_use() {
    let place = Place::new();
    let mut running = Running::start(command(&place, &["hold", "1000000"]));
    let said = running.number();
    assert!(said > 1_000_000 * 100);
    agrees(&place, running.child.id(), said);
    let header = Image::of(&place, running.child.id()).header();
    assert_eq!((header.magic, header.version), (MAGIC, VERSION));
    assert_eq!(
        (header.pid, header.len),
        (running.child.id().into(), FILE_LEN as u64)
    );
    assert_eq!(header.sample_mean, 512 << 10);
    let stat = fs::read_to_string(format!("/proc/{}/stat", header.pid)).expect("it runs");
    let start = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .nth(19)
        .expect("field 22");
    assert_eq!(start, header.start.to_string());
    running.end();
    assert!(place.files().is_empty());
}

/// A killed program leaves its file; a program that is replaced by exec has one file, which is new.
#[test]
fn kill_and_exec_leave_one_file() {
    let place = Place::new();
    let mut running = Running::start(command(&place, &["hold", "1000"]));
    running.number();
    running.child.kill().expect("it runs");
    running.child.wait().expect("it ends");
    assert_eq!(place.files().len(), 1);
    fs::remove_file(&place.files()[0]).expect("it is there");
    let mut running = Running::start(command(&place, &["exec", "1000000"]));
    let said = running.number();
    assert_eq!(place.files().len(), 1);
    assert!(said < 1 << 20);
    agrees(&place, running.child.id(), said);
    running.end();
    assert!(place.files().is_empty());
}

/// Children that are killed or call `_exit` leave their files to the next process, which removes them: they do not fill the file system. A process that lives
/// keeps its file, though in another PID namespace nobody sees it.
#[test]
fn files_of_the_dead_do_not_pile_up() {
    let place = Place::new();
    let mut living = Running::start(command(&place, &["hold", "1000"]));
    living.number();
    let kept = place.files();
    let mut running = Running::start(command(&place, &["leave", "300"]));
    running.number();
    assert!(place.files().len() <= 3, "{:?}", place.files());
    assert!(kept.iter().all(|file| file.exists()));
    running.end();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(program());
    command.args(["leave", "10"]).env_clear();
    command
        .env("LD_PRELOAD", library())
        .env("XDG_RUNTIME_DIR", &place.0)
        .stdin(Stdio::null());
    let output = command.output().expect("unshare");
    if !output.status.success() {
        println!("skipped: no PID namespace: {output:?}");
    }
    assert!(kept.iter().all(|file| file.exists()), "{:?}", place.files());
    living.end();
}

/// A child has a file of its own, with what its parent had and what it allocated itself, samples included; the parent's file knows nothing of it. The same of a
/// fork that the C library does not see.
#[test]
fn parent_and_child_have_their_files() {
    for what in ["fork", "raw-fork"] {
        let place = Place::new();
        let mut running = Running::start(command(&place, &[what, "1000000"]));
        let (first, second) = (running.number(), running.number());
        // The child says its number, which is small; which of the two comes first is open.
        let (pid, said) = (first.min(second) as u32, first.max(second));
        agrees(&place, running.child.id(), said);
        let (parent, child) = (
            Image::of(&place, running.child.id()),
            Image::of(&place, pid),
        );
        assert_eq!(child.header().pid, u64::from(pid), "{what}");
        assert!(child.header().epoch > parent.header().epoch, "{what}");
        // 1,000,000 objects of 112 bytes before, 2,000,000 after.
        assert!(
            child.in_use().abs_diff(3 * 112_000_000) < 4 << 20,
            "{what}: {}",
            child.in_use()
        );
        for (image, expected) in [(&parent, 1.5e8), (&child, 3e8)] {
            let samples = image.samples();
            let estimate: u64 = samples.iter().map(|sample| sample.weight).sum();
            let error = (samples
                .iter()
                .map(|sample| (sample.weight as f64).powi(2))
                .sum::<f64>())
            .sqrt();
            assert!(
                (estimate as f64 - expected).abs() < 5.0 * error,
                "{what}: {estimate}"
            );
            assert!(
                samples
                    .iter()
                    .all(|sample| sample.stack > 0 && image.stack(sample).live > 0)
            );
        }
        running.end();
    }
}

fn name(cache: &Cache) -> String {
    let bytes: Vec<u8> = cache
        .name
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}

/// Object caches have rows with their figures, in the file of a child, too. Of a destroyed one nothing is left: its number's figures begin anew, and what an idle
/// thread's magazine held of it does not count.
#[test]
fn object_caches_have_rows() {
    for what in ["caches", "caches-fork"] {
        let place = Place::new();
        let mut running = Running::start(command(&place, &[what]));
        let is_child = what == "caches-fork";
        let pid = match is_child {
            true => running.number() as u32,
            false => running.child.id(),
        };
        let said = running.number();
        let image = Image::of(&place, pid);
        let caches = image.caches();
        let names: Vec<_> = caches.iter().map(name).collect();
        let expected = ["conn_cache", "large", "unused", "child's"];
        assert_eq!(names, expected[..3 + usize::from(is_child)], "{what}");
        let number = caches[0].class;
        let classes: Vec<_> = (windlass_slab::CLASSES..CLASSES)
            .map(|number| image.class(number as u64).size)
            .filter(|size| *size > 0)
            .collect();
        assert_eq!(classes, [192, 72][..1 + usize::from(is_child)], "{what}");
        let class = image.class(number);
        let held: u64 = (image.threads().iter())
            .map(|thread| thread.by_class[number as usize])
            .sum();
        let out = class.objects - class.in_slabs - class.in_depot;
        assert_eq!((class.size, held % 192), (192, 0), "{what}");
        // To a magazine: 1,000 were taken, 100 given back.
        let in_use = out - held / 192;
        assert!((900..=1000).contains(&in_use), "{what}: {in_use}");
        let (large, unused) = (&caches[1], &caches[2]);
        assert_eq!((large.class, large.objects - large.in_slabs), (0, 7));
        let of_slab = large.units * image.header().unit / large.size;
        assert_eq!(large.objects, large.slabs * of_slab);
        assert_eq!((unused.class, unused.slabs, unused.size), (0, 0, 64));
        let counted = if is_child { (0, 0) } else { (10, 3) };
        assert_eq!((large.refills, large.flushes), counted, "{what}");
        for thread in image.threads() {
            assert_eq!(thread.cached, thread.by_class.iter().sum(), "{what}");
        }
        let seen = image.in_use();
        assert!(seen.abs_diff(said) < 1 << 16, "{what}: {seen} {said}");
        running.end();
    }
}

/// 10,000 idle threads: 1,024 have rows, the last row is the sum of the others. 100,000 short ones leave one row.
#[test]
fn threads_have_rows() {
    let place = Place::new();
    let mut running = Running::start(command(&place, &["threads", "10000"]));
    running.number();
    let threads = Image::of(&place, running.child.id()).threads();
    assert_eq!(threads.len(), 1024 + 1);
    assert_eq!(threads[1024].tid, 10_001 - 1024);
    assert!(threads.iter().all(|thread| thread.cached <= thread.limit));
    let each = threads[1].cached;
    assert!(
        each > 0
            && threads[1024].cached.abs_diff(each * threads[1024].tid) < threads[1024].cached / 10
    );
    running.child.kill().expect("it runs");
    running.child.wait().expect("it ends");
    let mut running = Running::start(command(&place, &["short", "100000"]));
    running.number();
    let image = Image::of(&place, running.child.id());
    assert_eq!(image.threads().len(), 1);
    assert_eq!(image.threads()[0].tid, u64::from(running.child.id()));
    running.end();
}

/// Each of ten sites is estimated within its error bar, of 99.99 % (3.9 standard deviations of a sum of samples, each of which stands for `weight` with the
/// probability `bytes / weight`). What was freed does not count. The generator's seed is fixed, and the program has one thread: the samples are the same each time.
#[test]
fn ten_sites_are_estimated() {
    are_estimated("sites");
}

/// The same of nine object caches and `umem_alloc`.
#[test]
fn ten_sites_of_caches_are_estimated() {
    are_estimated("cache-sites");
}

fn are_estimated(what: &str) {
    let place = Place::new();
    let mut command = command(&place, &[what]);
    // A mean of one's own choosing does not follow the clock.
    command.env("WINDLASS_MEMORY", "sample=500k");
    let mut running = Running::start(command);
    let mut exact = BTreeMap::new();
    for _ in 0..10 {
        let mut line = String::new();
        running.lines.read_line(&mut line).expect("a line");
        let (address, total) = line.trim().split_once(' ').expect("two numbers");
        exact.insert(
            address.parse::<u64>().expect("an address"),
            total.parse::<f64>().expect("bytes"),
        );
    }
    running.number();
    let image = Image::of(&place, running.child.id());
    let mut sums: BTreeMap<u64, (f64, f64, usize)> = BTreeMap::new();
    for sample in image.samples() {
        let stack = image.stack(&sample);
        let Some((site, _)) = exact.range(..stack.frames[0]).next_back() else {
            continue;
        };
        let (weight, bytes) = (sample.weight as f64, sample.bytes as f64);
        let sum = sums.entry(*site).or_default();
        *sum = (sum.0 + weight, sum.1 + weight * (weight - bytes), sum.2 + 1);
    }
    for (site, total) in exact {
        let (estimate, variance, count) = sums[&site];
        let bar = 3.9 * variance.sqrt() + total / 1e6;
        println!("{total} bytes: {estimate:.0} +- {bar:.0} of {count} samples");
        assert!(
            (estimate - total).abs() <= bar,
            "{total} bytes: {estimate} +- {bar} of {count} samples"
        );
        assert!(count >= 9);
    }
    running.end();
}

/// Large samples that are made longer, shorter, moved and made small: none is left, and none is counted twice.
#[test]
fn resized_samples_are_forgotten() {
    are_forgotten("resize");
}

/// Samples of object caches end with the objects, and none is left of a cache that is gone.
#[test]
fn samples_of_caches_are_forgotten() {
    are_forgotten("ending-caches");
}

fn are_forgotten(what: &str) {
    let place = Place::new();
    let mut command = command(&place, &[what]);
    if what == "ending-caches" {
        command.env("WINDLASS_MEMORY", "sample=20k");
    }
    let mut running = Running::start(command);
    running.number();
    let image = Image::of(&place, running.child.id());
    let sampling = Sampling::from_bytes(image.bytes(&SAMPLING, 0)).expect("whole");
    assert!(sampling.taken > 1000);
    assert_eq!(
        (sampling.live as usize, sampling.lost),
        (image.samples().len(), 0)
    );
    assert!(sampling.live < 3, "{:?}", image.samples());
    running.end();
}

/// Programs run without a file where there can be none: the directory is another user's, open to others, a link, a file, or files may not be that long. Nothing
/// is written where it should not be.
#[test]
fn programs_run_without_a_file() {
    let elsewhere = Place::new();
    for what in ["another's", "open", "link", "file", "missing", "limited"] {
        let place = Place::new();
        let inner = place.0.join("windlass");
        match what {
            "another's" => {
                fs::create_dir(&inner).expect("new");
                if chown(&inner, Some(12_345), None).is_err() {
                    println!("skipped: {what}: needs root");
                    continue;
                }
            }
            "open" => {
                fs::create_dir(&inner).expect("new");
                fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).expect("ours");
            }
            "link" => symlink(&elsewhere.0, &inner).expect("new"),
            "file" => fs::write(&inner, "").expect("new"),
            "missing" => fs::remove_dir(&place.0).expect("empty"),
            _ => {}
        }
        let shell = if what == "limited" {
            "ulimit -f 100; "
        } else {
            ""
        };
        let mut command = Command::new("bash");
        let line = format!(
            "{shell}LD_PRELOAD={} exec {} hold 100000",
            library().display(),
            program().display()
        );
        command
            .args(["-c", &line])
            .env_clear()
            .env("XDG_RUNTIME_DIR", &place.0);
        let mut running = Running::start(command);
        assert!(running.number() > 10_000_000, "{what}");
        assert!(
            place.files().is_empty() && !elsewhere.0.join("memory").exists(),
            "{what}"
        );
        running.end();
    }
}

/// After every descriptor was closed the file is still told, and after chroot a child without one runs.
#[test]
fn descriptors_and_roots_do_not_matter() {
    let place = Place::new();
    let mut running = Running::start(command(&place, &["closed", "1000000"]));
    let said = running.number();
    agrees(&place, running.child.id(), said);
    running.end();
    let mut running = Running::start(command(&place, &["chroot", "100000"]));
    running.number();
    running.end();
}

/// A file system that is full at the start, or fills up later, is no SIGBUS.
#[test]
fn full_file_systems_do_no_harm() {
    let place = Place::new();
    for (size, later) in [
        ("8k", ""),
        ("64k", "dd if=/dev/zero of=$0/fill bs=4k 2>/dev/null; "),
    ] {
        // The program's file takes its first pages; the rest is filled before the program goes on to rows of samples.
        let line = format!(
            "mount -t tmpfs -o size={size} none $0 || exit 77; export XDG_RUNTIME_DIR=$0
             mkfifo $0/go; (read x <$0/go; LD_PRELOAD={} exec {} sites) & program=$!
             {later} echo >$0/go; wait $program",
            library().display(),
            program().display()
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "bash", "-c", &line])
            .arg(&place.0)
            .stdin(Stdio::null());
        let output = command.output().expect("unshare");
        if output.status.code() == Some(77) || output.stderr.starts_with(b"unshare:") {
            println!(
                "skipped: no mount namespace: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
        assert!(
            output.status.success(),
            "{size}: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(
            output.stdout.iter().filter(|&&byte| byte == b'\n').count(),
            11
        );
    }
}
