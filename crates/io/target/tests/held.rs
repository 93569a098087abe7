//! A program of C that was not prepared for anything is held, read and unwound; a core file of it gives the same.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use windlass_target::unwind::{self, FRAMES_MAX};
use windlass_target::{Core, Memory, Modules, Process, Snapshot, Stopped, maps, threads};

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The states of its threads, as letters.
    fn states(&self) -> String {
        let of = |tid: u32| {
            let stat = fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.pid()));
            stat.expect("a thread")
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.chars().next())
        };
        threads::threads(self.pid())
            .expect("threads")
            .into_iter()
            .filter_map(of)
            .collect()
    }
}

fn compile(directory: &Path, flags: &[&str]) -> PathBuf {
    let program = directory.join("deep");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deep.c");
    let done = Command::new("cc")
        .args(flags)
        .arg("-pthread")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(done.expect("a C compiler").success());
    program
}

fn start(program: &Path) -> Program {
    let mut child = Command::new(program)
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let out = child.stdout.take().expect("piped");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("ready");
    Program(child)
}

fn names(memory: &dyn Memory, modules: &Modules, registers: threads::Registers) -> Vec<String> {
    let frames = unwind::frames(memory, modules, registers);
    assert!(frames.len() <= FRAMES_MAX);
    let name = |pc: &u64| modules.symbol(*pc).and_then(|symbol| symbol.function);
    frames.iter().filter_map(name).collect()
}

/// Whether the functions of the program are there, one calling the other; the innermost may be in a call of its own still.
#[track_caller]
fn check(names: &[String]) {
    let found = names.windows(4).any(|four| four == CHAIN);
    assert!(found, "{names:?}");
}

const CHAIN: [&str; 4] = ["innermost", "middle", "outer", "main"];

/// Functions without frame pointers are found by the program's own tables, with and without them; each thread has its registers; the
/// program runs on afterwards.
#[test]
fn a_program_is_held_and_unwound() {
    let directory = tempfile::tempdir().expect("a directory");
    for flags in [
        &["-O2", "-fomit-frame-pointer"][..],
        &["-O1", "-fno-omit-frame-pointer"],
        &["-O2", "-static"],
    ] {
        let program = start(&compile(directory.path(), flags));
        let memory = Process::open(program.pid()).expect("ours");
        let mappings = maps::of(program.pid()).expect("ours");
        let modules = Modules::of_process(program.pid(), &mappings);
        let stopped = Stopped::all(program.pid()).expect("ours");
        assert_eq!(program.states(), "tttt");
        let all = stopped.registers();
        assert_eq!(all.len(), 4);
        let (_, main) = all
            .iter()
            .find(|(tid, _)| *tid == program.pid())
            .expect("its main thread");
        check(&names(&memory, &modules, *main));
        // A copy of two kilobytes of the stack and three registers will do.
        let sp = main.sp().expect("known");
        let mut copied = vec![0; 2048];
        let len = memory.read(sp, &mut copied);
        copied.truncate(len);
        let snapshot = Snapshot::default().with(sp, copied);
        let three = threads::Registers::of(main.pc, sp, main.frame_pointer().expect("known"));
        check(&names(&snapshot, &modules, three));
        assert!(stopped.release().as_secs() < 5);
        assert!(!program.states().contains('t'), "{}", program.states());
    }
}

/// The program runs on when whoever holds it is killed.
#[test]
fn the_death_of_the_holder_frees_it() {
    if std::env::var_os("WINDLASS_TEST_HOLDS").is_some() {
        let pid = std::env::var("WINDLASS_TEST_HOLDS")
            .expect("a number")
            .parse()
            .expect("a number");
        let _stopped = Stopped::all(pid).expect("ours");
        println!("held");
        loop {
            std::thread::park();
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = start(&compile(directory.path(), &["-O2"]));
    let mut holder = Command::new(std::env::current_exe().expect("our own"));
    holder.args(["--exact", "the_death_of_the_holder_frees_it", "--nocapture"]);
    holder
        .env("WINDLASS_TEST_HOLDS", program.pid().to_string())
        .stdout(Stdio::piped());
    let mut holder = Program(holder.spawn().expect("runs"));
    let lines = BufReader::new(holder.0.stdout.take().expect("piped")).lines();
    assert!(
        lines
            .map_while(Result::ok)
            .any(|line| line.contains("held"))
    );
    assert_eq!(program.states(), "tttt");
    assert!(Stopped::all(program.pid()).is_err(), "one tracer at a time");
    drop(holder);
    while program.states().contains('t') {
        std::thread::yield_now();
    }
}

/// A core file has the same stack. Cut off anywhere, or changed anywhere, it gives less, and nothing panics.
#[test]
fn a_core_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = start(&compile(directory.path(), &["-O2", "-fomit-frame-pointer"]));
    let prefix = directory.path().join("core");
    let made = Command::new("gcore")
        .arg("-o")
        .arg(&prefix)
        .arg(program.pid().to_string())
        .output();
    let path = format!("{}.{}", prefix.display(), program.pid());
    if !made.is_ok_and(|made| made.status.success()) {
        return println!("skipped: a_core_is_read: gcore (gdb) is missing");
    }
    let core = Core::open(File::open(&path).expect("written")).expect("a core");
    assert_eq!(core.threads().len(), 4);
    let mappings = core.mappings();
    let modules = Modules::of_core(&core, &mappings);
    let (_, main) = core
        .threads()
        .iter()
        .find(|(tid, _)| *tid == program.pid())
        .expect("its main thread");
    check(&names(&core, &modules, *main));
    let whole = fs::read(&path).expect("read");
    for round in 0..64_usize {
        let mut bytes = whole.clone();
        let head = 64 + 56 * 40;
        if round % 2 == 0 {
            bytes.truncate(round * round * 60);
        } else {
            for at in 0..20 {
                let at = (round * 7919 + at * 104_729) % head;
                bytes[at.max(6)] = (round * 31 + at) as u8;
            }
        }
        let path = directory.path().join("bad");
        fs::write(&path, bytes).expect("written");
        let Ok(core) = Core::open(File::open(path).expect("there")) else {
            continue;
        };
        let mappings = core.mappings();
        let modules = Modules::of_core(&core, &mappings);
        for (_, registers) in core.threads() {
            unwind::frames(&core, &modules, *registers);
        }
    }
}

/// Stacks and registers of random words: every chain ends.
#[test]
fn random_stacks_end() {
    let mappings = maps::of(std::process::id()).expect("our own");
    let modules = Modules::of_process(std::process::id(), &mappings);
    let code = maps::find(&mappings, random_stacks_end as *const () as u64).expect("mapped");
    let mut random = 7_u64;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        random >> 16
    };
    for _ in 0..2000 {
        let base = 0x7000_0000_0000;
        let inside = code.end - code.start;
        let words = (0..256).map(|_| match next() % 3 {
            0 => code.start + next() % inside,
            1 => base + next() % 2048,
            _ => next(),
        });
        let bytes = words.flat_map(u64::to_le_bytes).collect();
        let stack = Snapshot::default().with(base, bytes);
        let sp = base + next() % 64 * 8;
        let registers =
            threads::Registers::of(code.start + next() % inside, sp, base + next() % 2048);
        assert!(unwind::frames(&stack, &modules, registers).len() <= FRAMES_MAX);
    }
    let nowhere = threads::Registers::of(u64::MAX, u64::MAX, u64::MAX);
    assert_eq!(
        unwind::frames(&Snapshot::default(), &modules, nowhere),
        [u64::MAX]
    );
}
