//! `windlass memory` on processes that lie: status files and memory with anything in them. The command ends in time, as documented, prints
//! no control characters, and does not panic.

#[allow(dead_code, reason = "tests/memory.rs uses all of it")]
#[path = "memory/place.rs"]
mod place;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use place::{Place, Running, WITH_POINTERS};
use windlass_memory::{
    ANCHOR, Anchor, CACHE, CLASS, FILE_LEN, HEADER, Header, SAMPLE, STACK, THREAD,
};

/// The place of the number of the process in a status file.
const PID_AT: usize = 32;

/// A program that is not on the allocator, and the status file of one that is.
struct Liar {
    place: Place,
    running: Running,
    honest: Vec<u8>,
}

impl Liar {
    fn new(test: &str) -> Option<Self> {
        let place = Place::new(test)?;
        let mut program = place.start(WITH_POINTERS);
        program.say("small 20000 1000");
        program.say("large 3 5242880");
        let mut honest = fs::read(place.file(program.pid())).expect("a status file");
        program.kill();
        let running = place.start_as(Command::new(place.compile(WITH_POINTERS)));
        let header = Header::from_bytes(&honest).expect("a header");
        let pid_at = honest.get(PID_AT..PID_AT + 8).expect("long");
        assert_eq!(pid_at, header.pid.to_le_bytes(), "the layout has changed");
        put(&mut honest, PID_AT, running.pid().into());
        Some(Self {
            place,
            running,
            honest,
        })
    }

    /// Has these bytes as its status file.
    fn lie(&mut self, bytes: &[u8]) {
        let path = self.place.file(self.running.pid());
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("written");
        let (_, done) = self.running.say(&format!("map {}", path.display()));
        assert_eq!(done, ["1"], "it maps its file");
    }

    /// Looks at it in these ways, and says with which codes these ended.
    fn look(&self, ways: &[&[&str]]) -> Vec<i32> {
        let pid = self.running.pid().to_string();
        let look = |way: &&[&str]| {
            let words: Vec<_> = way
                .iter()
                .map(|word| if *word == "PID" { &pid } else { *word })
                .collect();
            let done = self.place.memory(&words);
            let texts = [&done.out, &done.err];
            let is_control = |byte: u8| byte.is_ascii_control() && byte != b'\n';
            let has_control = texts.iter().any(|text| text.bytes().any(is_control));
            assert!(!has_control, "{words:?}: {done:?}");
            assert!([0, 1, 4, 6].contains(&done.code), "{words:?}: {done:?}");
            assert!(!done.err.contains("panicked"), "{words:?}: {done:?}");
            done.code
        };
        ways.iter().map(look).collect()
    }
}

const ALL: &[&[&str]] = &[
    &[],
    &["PID"],
    &["PID", "--json"],
    &["growth", "PID"],
    &["leaks", "PID", "--scan"],
    &["whatis", "PID", "7f0000000000"],
];
const TABLES: &[&[&str]] = &[&[], &["PID"], &["PID", "-p", "-o", "all", "--caches"]];
const MEMORY: &[&[&str]] = &[
    &["leaks", "PID", "--scan"],
    &["whatis", "PID", "7f0000000000"],
];

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Sets every word of a row but its sequence.
fn fill(bytes: &mut [u8], (at, len): (usize, usize), mut value: impl FnMut(usize) -> u64) {
    put(bytes, at, 2);
    (8..len)
        .step_by(8)
        .for_each(|inner| put(bytes, at + inner, value(inner)));
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// What is no regular file is no status.
#[test]
fn strange_files_are_refused() {
    let Some(mut liar) = Liar::new("strange_files_are_refused") else {
        return;
    };
    let path = liar.place.file(liar.running.pid());
    let target = liar.place.path("target");
    fs::write(&target, &liar.honest).expect("written");
    let kinds: [&dyn Fn(); 4] = [
        &|| fs::create_dir(&path).expect("a directory"),
        &|| symlink(&target, &path).expect("a link"),
        &|| symlink("/dev/zero", &path).expect("a link"),
        &|| {
            let made = Command::new("mkfifo").arg(&path).status();
            assert!(made.is_ok_and(|status| status.success()));
        },
    ];
    for make in kinds {
        make();
        let codes = liar.look(&[&[], &["PID"], &["growth", "PID"]]);
        assert_eq!(codes[0], 0);
        assert!(codes[1] != 0 && codes[2] != 0, "{codes:?}");
        assert!(liar.place.listed(liar.running.pid()).is_none());
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
    // The same bytes in a regular file count, so it is the kind of file that was refused.
    let honest = liar.honest.clone();
    liar.lie(&honest);
    assert_eq!(liar.look(ALL), [0; 6]);
}

/// A file that is short, of another version or process, or of random bytes; also one that becomes shorter and longer while it is read.
#[test]
fn short_and_random_files_are_survived() {
    let Some(mut liar) = Liar::new("short_and_random_files_are_survived") else {
        return;
    };
    let honest = liar.honest.clone();
    for len in [
        0,
        1,
        PID_AT + 1,
        HEADER.end(),
        THREAD.offset + 100,
        FILE_LEN - 1,
    ] {
        liar.lie(&honest[..len]);
        liar.look(TABLES);
    }
    for at in [8, 16, 24, PID_AT] {
        let mut bytes = honest.clone();
        put(&mut bytes, at, 0x7777);
        liar.lie(&bytes);
        let codes = liar.look(TABLES);
        assert!(codes[0] == 0 && codes[1] != 0, "word {at}: {codes:?}");
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut bytes = honest.clone();
    for at in (HEADER.end()..FILE_LEN - 8).step_by(8) {
        put(&mut bytes, at, random(&mut seed));
    }
    liar.lie(&bytes);
    liar.look(ALL);
    liar.lie(&honest);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(liar.place.file(liar.running.pid()))
        .expect("open");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for len in [0, THREAD.offset, FILE_LEN] {
                    file.set_len(len as u64).expect("its length");
                }
            }
        });
        for _ in 0..3 {
            liar.look(TABLES);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Every figure as large as can be; samples without bytes that stand for everything; stacks that lead to themselves; names that
/// steer terminals.
#[test]
fn wild_rows_are_survived() {
    let Some(mut liar) = Liar::new("wild_rows_are_survived") else {
        return;
    };
    liar.running.say("name \u{1b}[31mred");
    let mut bytes = liar.honest.clone();
    for table in [CLASS, THREAD, CACHE] {
        for row in 0..table.rows {
            fill(
                &mut bytes,
                (table.offset + row * table.stride, table.stride),
                |_| u64::MAX - 1,
            );
        }
    }
    liar.lie(&bytes);
    liar.look(ALL);
    let mut bytes = liar.honest.clone();
    let escapes = u64::from_le_bytes(*b"\x1b]0;x\x07\x1b[");
    for row in 0..CACHE.rows {
        fill(
            &mut bytes,
            (CACHE.offset + row * CACHE.stride, CACHE.stride),
            |at| if at <= 32 { escapes } else { row as u64 },
        );
    }
    for row in 0..SAMPLE.rows {
        let wild = [0, 1, u64::MAX, STACK.rows as u64, 1 << 63];
        fill(
            &mut bytes,
            (SAMPLE.offset + row * SAMPLE.stride, SAMPLE.stride),
            |at| wild[(at / 8 + row) % wild.len()],
        );
    }
    for row in 0..STACK.rows {
        // Each frame is that of the row before it, and copies of stacks are each other's.
        fill(
            &mut bytes,
            (STACK.offset + row * STACK.stride, STACK.stride),
            |_| row as u64,
        );
    }
    liar.lie(&bytes);
    liar.look(ALL);
    liar.look(TABLES);
}

/// An anchor that says anything, also that all tables lie in memory whose words are their own addresses: lists do not end.
#[test]
fn wild_anchors_are_survived() {
    let Some(mut liar) = Liar::new("wild_anchors_are_survived") else {
        return;
    };
    let (_, circle) = liar.running.say("circle 16777216");
    let circle = u64::from_str_radix(circle[0].trim_start_matches("0x"), 16).expect("an address");
    let mut seed = 0x2545_f491_4f6c_dd1d;
    let words = [
        0,
        1,
        8,
        16,
        64,
        4096,
        1 << 40,
        u64::MAX,
        circle,
        circle + 8,
        circle + 4096,
    ];
    for round in 0..5 {
        let mut bytes = liar.honest.clone();
        fill(&mut bytes, (ANCHOR.offset, Anchor::LEN), |_| match round {
            0 => circle,
            1 => u64::MAX,
            _ => words[random(&mut seed) as usize % words.len()],
        });
        liar.lie(&bytes);
        liar.look(MEMORY);
    }
}
