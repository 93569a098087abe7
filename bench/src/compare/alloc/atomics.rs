//! Atomic read-modify-writes on the frame path and the channel: how many, and what for.
//!
//! valgrind counts how often each instruction of a program runs, objdump says which instructions are atomic, and addr2line from which source
//! lines they were made. Each program does N and then 2 N pieces of work; the difference is what the work costs. A site that runs less than
//! once in [`RARE`] pieces belongs to set-up or to a timer.
//!
//! Not counted: virtual machines, TAPs and uplinks, whose ports are not in these programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Shot;
use crate::compare::host::{Scratch, require};
use crate::compare::stop;
use crate::compare::table::{Table, verdict};

/// Pieces of work of the shorter run.
const PIECES: u64 = 32_000;
const RARE: f64 = 1000.0;
/// What an atomic instruction of each file is for; of files that are not here it is [`OTHER`].
const PURPOSES: [(&str, &str); 7] = [
    ("crates/base/sync/src/qsbr.rs", EPOCH),
    ("crates/base/sync/src/leases.rs", LOCK),
    ("crates/io/channel/src/owner.rs", LOCK),
    ("crates/io/attach/src/kick.rs", WAKING),
    ("crates/io/attach/src/memif/rx.rs", WAKING),
    ("crates/io/attach/src/memif/tx.rs", WAKING),
    ("crates/io/worker/src/bell.rs", WAKING),
];
const REFERENCE: &str = "references";
const LOCK: &str = "locks";
const WAKING: &str = "waking";
const EPOCH: &str = "epochs";
const OTHER: &str = "other";
const COLUMNS: [&str; 5] = [REFERENCE, LOCK, WAKING, EPOCH, OTHER];
/// Of the program that makes the work: not counted.
const WORKLOAD: &str = "workload";

/// A program, and what it does.
struct Case {
    title: &'static str,
    example: &'static str,
    words: &'static [&'static str],
    /// Behind the number of pieces.
    last: Option<&'static str>,
    /// References that each piece counts.
    references: f64,
}

const CASES: [Case; 5] = [
    Case {
        title: "frame from a memif to a memif",
        example: "visit_cost",
        words: &["memif"],
        last: None,
        references: 0.0,
    },
    Case {
        title: "frame in the worker alone",
        example: "visit_cost",
        words: &["one"],
        last: None,
        references: 0.0,
    },
    Case {
        title: "frame that is flooded to three",
        example: "visit_cost",
        words: &["flood"],
        last: None,
        references: 0.0,
    },
    Case {
        title: "message through a channel",
        example: "channel_cost",
        words: &["count"],
        last: None,
        references: 0.0,
    },
    Case {
        title: "the same, its memory counted (control)",
        example: "channel_cost",
        words: &["count"],
        last: Some("references"),
        references: 2.0,
    },
];

/// An atomic instruction that ran.
struct Site {
    purpose: &'static str,
    /// The source line, from the root of the tree.
    line: String,
    /// A fence is written as one: it changes no memory that anybody shares.
    is_fence: bool,
    each: f64,
}

/// Counts and prints; adds what it counted to `shots`.
///
/// # Errors
/// If a program cannot be run, or what a tool says is not understood.
pub(super) fn run(programs: &Path, shots: &mut Vec<Shot>) -> Result<()> {
    require(&[("valgrind", "valgrind"), ("objdump", "binutils")])?;
    let title = "atomic read-modify-writes for each";
    let mut table = Table::new(&[&[title], &COLUMNS[..], &["bar"]].concat());
    let mut lines = BTreeSet::new();
    for case in &CASES {
        let program = programs.join("examples").join(case.example);
        if !program.exists() {
            println!(
                "skipped: {}: there is no {} (make bench builds it)",
                case.title,
                program.display()
            );
            continue;
        }
        stop::check()?;
        let sites = count(&program, case)?;
        let sum = |purpose: &str| -> f64 {
            let of = sites.iter().filter(|site| site.purpose == purpose);
            of.fold(0.0, |sum, site| sum + site.each)
        };
        let mut row = vec![case.title.to_owned()];
        row.extend(COLUMNS.map(|purpose| format!("{:.3}", sum(purpose))));
        let is_met = (sum(REFERENCE) - case.references).abs() < 1.0 / RARE;
        row.push(verdict(is_met).to_owned());
        table.row(row);
        shots.extend(COLUMNS.map(|purpose| Shot {
            case: case.title,
            subject: purpose,
            figure: sum(purpose),
            peak: 0.0,
        }));
        for site in sites.iter().filter(|site| site.purpose != WORKLOAD) {
            let fence = if site.is_fence { ", a fence" } else { "" };
            lines.insert(format!("  {}: {}{fence}", site.purpose, site.line));
        }
    }
    print!(
        "A burst has 32 frames; the bar is: no references, and 2 where each message counts them.\n{table}"
    );
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Atomic instructions of each piece of work.
fn count(program: &Path, case: &Case) -> Result<Vec<Site>> {
    let atomic = atomic_instructions(program)?;
    let scratch = Scratch::create()?;
    let profile = |pieces: u64| {
        let out = scratch.join("callgrind");
        profile(program, case, pieces, &out)
    };
    let (few, many) = (profile(PIECES)?, profile(2 * PIECES)?);
    let mut sites = Vec::new();
    for (&address, &more) in &many {
        let Some(text) = atomic.get(&address) else {
            continue;
        };
        let less = few.get(&address).copied().unwrap_or(0);
        let each = (more as f64 - less as f64) / PIECES as f64;
        if each.abs() * RARE >= 1.0 {
            let (purpose, line) = purpose(&source_lines(program, address)?);
            sites.push(Site {
                purpose,
                line,
                is_fence: is_fence(text),
                each,
            });
        }
    }
    Ok(sites)
}

/// What a tool prints.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| name.clone())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How often each instruction of the program itself runs.
fn profile(program: &Path, case: &Case, pieces: u64, out: &PathBuf) -> Result<BTreeMap<u64, u64>> {
    let mut command = Command::new("valgrind");
    let options = [
        "--dump-instr=yes",
        "--compress-strings=no",
        "--compress-pos=no",
    ];
    command.arg("--tool=callgrind").args(options);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program).args(case.words);
    command.arg(pieces.to_string()).args(case.last);
    output(&mut command)?;
    let program = program.canonicalize()?;
    let counts = parse_profile(
        &std::fs::read_to_string(out)?,
        &program.display().to_string(),
    );
    ensure!(
        !counts.is_empty(),
        "valgrind counted nothing of {}",
        program.display()
    );
    Ok(counts)
}

/// The counts by address of one object in a file of callgrind's.
fn parse_profile(text: &str, object: &str) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    let (mut is_ours, mut is_call) = (false, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            is_ours = name == object;
        } else if line.starts_with("calls=") {
            // The next line is the sum of what was called.
            is_call = true;
        } else if let Some(rest) = line.strip_prefix("0x")
            && !core::mem::take(&mut is_call)
            && is_ours
        {
            let mut words = rest.split(' ');
            let address = words
                .next()
                .and_then(|word| u64::from_str_radix(word, 16).ok());
            let count = words.nth(1).and_then(|word| word.parse::<u64>().ok());
            if let (Some(address), Some(count)) = (address, count) {
                *counts.entry(address).or_insert(0) += count;
            }
        }
    }
    counts
}

/// The atomic read-modify-writes of a program by address.
fn atomic_instructions(program: &Path) -> Result<BTreeMap<u64, String>> {
    let mut command = Command::new("objdump");
    let text = output(command.args(["-d", "--no-show-raw-insn"]).arg(program))?;
    let atomic = text.lines().filter_map(atomic_instruction).collect();
    Ok(atomic)
}

/// Address and text, if a line of objdump's is one: it has a lock prefix, or is an exchange with memory.
fn atomic_instruction(line: &str) -> Option<(u64, String)> {
    let (address, text) = line.split_once(":\t")?;
    let is_exchange = text.starts_with("xchg") && text.contains('(');
    let is_atomic = is_exchange || text.split(' ').any(|word| word == "lock");
    let address = u64::from_str_radix(address.trim(), 16).ok()?;
    is_atomic.then(|| (address, text.trim().to_owned()))
}

/// Compilers write a fence as an atomic nothing to the own stack.
fn is_fence(text: &str) -> bool {
    text.starts_with("lock or") && text.contains("$0x0,") && text.contains("(%rsp)")
}

/// The source lines that an instruction was made from, the innermost function's first.
fn source_lines(program: &Path, address: u64) -> Result<Vec<String>> {
    let mut command = Command::new("addr2line");
    command.arg("-e").arg(program).args(["-f", "-i", "-C"]);
    let text = output(command.arg(format!("{address:#x}")))?;
    // A line with the function is followed by one with the place.
    Ok(text.lines().skip(1).step_by(2).map(str::to_owned).collect())
}

/// What an instruction is for, and the line of the tree that says so.
fn purpose(lines: &[String]) -> (&'static str, String) {
    let of_tree = |line: &String| {
        let at = line
            .find("crates/")
            .filter(|_| !line.contains("/registry/"))?;
        let line = line[at..].split(' ').next().unwrap_or_default();
        Some(line.to_owned())
    };
    let line = lines.iter().find_map(of_tree);
    let counts = |line: &String| line.contains("/alloc/src/sync.rs:");
    let purpose = if lines.iter().any(counts) {
        REFERENCE
    } else if line.as_ref().is_some_and(|at| at.contains("/examples/")) {
        WORKLOAD
    } else {
        let known =
            |(file, _): &&(&str, &str)| line.as_ref().is_some_and(|at| at.starts_with(file));
        PURPOSES
            .iter()
            .find(known)
            .map_or(OTHER, |(_, purpose)| purpose)
    };
    let unknown = || lines.last().cloned().unwrap_or_default();
    (purpose, line.unwrap_or_else(unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of the object alone, without the sums of calls.
    #[test]
    fn profiles_are_read() {
        let text = "positions: instr line\nob=/lib/c\nfn=a\n0x10 1 5\nob=/bin/p\nfl=x\nfn=b\n0x10 3 7\n\
            calls=2 0x99 4\n0x14 3 100\n0x14 3 2\nfe=y\n0x10 9 1\ntotals: 1\n";
        let counts = parse_profile(text, "/bin/p");
        assert_eq!(counts, BTreeMap::from([(0x10, 8), (0x14, 2)]));
    }

    /// Locked instructions and exchanges with memory are atomic; a fence is told from them.
    #[test]
    fn atomic_instructions_are_found() {
        let is_atomic = |text: &str| atomic_instruction(&format!("   1a2b:\t{text}")).is_some();
        assert!(is_atomic("lock xadd %rcx,(%rsi)") && is_atomic("xchg   %cl,0x14(%rax)"));
        assert!(is_atomic("xacquire lock cmpxchg %ecx,(%rdx)"));
        assert!(!is_atomic("xchg   %ax,%ax") && !is_atomic("mov    %rax,(%rbx)"));
        assert!(!is_atomic("call   5f0 <pthread_lock>"));
        assert!(is_fence("lock orl $0x0,-0x40(%rsp)") && !is_fence("lock orl $0x4,(%rsp)"));
        assert!(!is_fence("lock orl $0x0,0x8(%rdi)"));
    }

    /// A reference count is one wherever it is inlined; other instructions have the purpose of their file.
    #[test]
    fn purposes_are_told() {
        let of = |lines: &[&str]| {
            purpose(
                &lines
                    .iter()
                    .map(|&line| line.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let core = "/rustc/1/library/core/src/sync/atomic.rs:3942";
        let counted = [
            core,
            "/rustc/1/library/alloc/src/sync.rs:2811",
            "/w/crates/io/x/src/a.rs:9",
        ];
        assert_eq!(
            of(&counted),
            (REFERENCE, "crates/io/x/src/a.rs:9".to_owned())
        );
        let bell = [core, "/w/crates/io/worker/src/bell.rs:51 (discriminator 2)"];
        assert_eq!(
            of(&bell),
            (WAKING, "crates/io/worker/src/bell.rs:51".to_owned())
        );
        assert_eq!(
            of(&[core, "/w/crates/io/worker/examples/v.rs:1"]).0,
            WORKLOAD
        );
        assert_eq!(of(&[core, "/w/crates/io/new/src/a.rs:1"]).0, OTHER);
        assert_eq!(of(&[core]), (OTHER, core.to_owned()));
    }
}
