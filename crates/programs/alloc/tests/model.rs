//! Threads under the library against a plain model: which objects live, what is in them, and what all figures then have to say.

#[allow(dead_code, reason = "not all of it is used here")]
mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use harness::*;
use windlass_memory::{
    ARENA, Arena, CLASS, Class, HEADER, Header, MAPPED, Mapped, THREAD, Table, Thread,
};

/// Seeds of each number of threads.
const SEEDS: u32 = 2;
const PHASES: &str = "5";

/// The program of `programs/model.c`.
fn model(seed: u32, threads: u32) -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("cc", "model.c"));
    let mut command = Command::new(program);
    command.args([&seed.to_string(), &threads.to_string(), PHASES]);
    command
}

/// Bytes in use, as a reader of the status file counts them.
fn in_use(file: &Path) -> u64 {
    let image = fs::read(file).expect("its contents");
    let row = |table: &Table, number| &image[table.row(number).expect("a row")..];
    let arena = Arena::from_bytes(row(&ARENA, 0)).expect("whole");
    let mapped = Mapped::from_bytes(row(&MAPPED, 0)).expect("whole");
    let unit = Header::from_bytes(row(&HEADER, 0)).expect("whole").unit;
    let class = |number| Class::from_bytes(row(&CLASS, number)).expect("whole");
    let out = (0..CLASS.rows)
        .map(class)
        .map(|row| (row.objects - row.in_slabs - row.in_depot) * row.size);
    let thread = |number| Thread::from_bytes(row(&THREAD, number)).expect("whole");
    let cached = (0..THREAD.rows).map(|number| thread(number).cached);
    let large = (arena.used_units - arena.slab_units) * unit + mapped.bytes;
    out.sum::<u64>() + large - cached.sum::<u64>()
}

/// Two to four threads allocate, resize, free, hand objects to each other, end and begin. After each phase contents are what the model says, and mallinfo2
/// is the sum of what lives, to the byte; when the threads have ended, the status file says the same number.
#[test]
fn threads_agree_with_the_model() {
    for run in 0..3 * SEEDS {
        let name = format!("windlass-test-model-{}-{run}", std::process::id());
        let runtime = Path::new("/dev/shm").join(name);
        fs::create_dir(&runtime).expect("a directory in memory");
        let mut command = model(run, 2 + run % 3);
        command
            .env("LD_PRELOAD", library())
            .env("XDG_RUNTIME_DIR", &runtime)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        lines.read_line(&mut line).expect("a line");
        let said = line.trim().parse::<u64>();
        let mut files = fs::read_dir(runtime.join("windlass/memory")).expect("status files");
        let file = files.next().expect("its file").expect("an entry").path();
        let seen = in_use(&file);
        drop(child.stdin.take());
        fs::remove_dir_all(&runtime).expect("it was made");
        assert!(child.wait().expect("it ends").success(), "{run}: {line}");
        assert_eq!(said.as_ref(), Ok(&seen), "{run}: {line}");
    }
}

/// The same with debugging words, without caches, and with samples of nearly all objects: contents stay.
#[test]
fn contents_agree_under_words() {
    for words in [
        "guards",
        "perthread_cache=0",
        "perthread_cache=64k,sample=1k,keep=0",
        "check=full",
    ] {
        let mut command = model(77, 4);
        command.env("WINDLASS_MEMORY", words);
        let output = output(command, true);
        assert!(output.status.success(), "{words}: {}", text(&output));
    }
}
