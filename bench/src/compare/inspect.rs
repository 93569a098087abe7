//! `windlass inspect` beside gdb: a walk of a live list, and Tab among many names.
//!
//! The program is C, compiled here. gdb's time is that of its loop in Python alone; that of windlass is the whole command, its start and
//! the reading of debug data included.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::child::{self, Child};
use super::host::{Scratch, describe, require};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};

/// The list that is walked. Its nodes are linked out of the order of their addresses.
const LIST: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
struct node { long value; struct node *next; char name[16]; };
struct node *head;
int main(int argc, char **argv) {
    long count = atol(argv[1]);
    struct node *all = calloc(count, sizeof *all);
    for (long at = 0, i = 0; i < count; i++, at = (at + 7919) % count) {
        all[at].value = i;
        all[at].next = head;
        head = &all[at];
    }
    puts("ready");
    fflush(stdout);
    pause();
}
"#;
const LOOP: &str = "import time
start = time.perf_counter()
node, total = gdb.parse_and_eval('head'), 0
while node != 0:
    total += int(node['value'])
    node = node['next']
print('took', time.perf_counter() - start, total)
";
/// The most that windlass may take of gdb's time.
const WALK_BAR: f64 = 0.1;
/// Milliseconds of a Tab's p99.
const TAB_BAR_MS: f64 = 10.0;
/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A walk of a live list, and Tab among many names: gdb, windlass.
#[derive(Args, Debug)]
pub struct Options {
    /// How often each side walks
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Nodes of the list
    #[arg(long, default_value_t = 100_000)]
    nodes: u64,
    /// Variables of the program in which names are completed
    #[arg(long, default_value_t = 90_000)]
    names: u32,
    /// Names that are completed
    #[arg(long, default_value_t = 300)]
    tabs: u32,
}

#[derive(Debug, Default, Serialize)]
struct Shots {
    gdb_s: Vec<f64>,
    windlass_s: Vec<f64>,
    tab_ms: Vec<f64>,
}

/// Measures, prints the tables, and writes the single measurements to `json`.
///
/// # Errors
/// If a program cannot be compiled or run, the sides disagree, or the run was interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[("cc", "gcc"), ("gdb", "gdb"), ("script", "bsdutils")])?;
    let windlass = programs.join("windlass");
    let scratch = Scratch::create()?;
    let mut shots = Shots::default();
    walk(options, &windlass, &scratch, &mut shots)?;
    tab(options, &windlass, &scratch, &mut shots)?;
    println!(
        "a list of {} nodes, {} names; {}",
        options.nodes,
        options.names,
        describe()
    );
    let mut table = Table::new(&["", "gdb's Python", "windlass", "ratio", "bar", ""]);
    if let (Some(gdb), Some(own)) = (
        Spread::of(shots.gdb_s.iter().copied()),
        Spread::of(shots.windlass_s.iter().copied()),
    ) {
        let ratio = own.median / gdb.median;
        table.row(vec![
            "walk, s".into(),
            format!("{gdb:.3}"),
            format!("{own:.3}"),
            format!("{ratio:.3}"),
            WALK_BAR.to_string(),
            verdict(ratio <= WALK_BAR).into(),
        ]);
    }
    let mut tabs = shots.tab_ms.clone();
    tabs.sort_by(f64::total_cmp);
    if let Some(p99) = tabs.get(tabs.len() * 99 / 100) {
        let median = tabs[tabs.len() / 2];
        table.row(vec![
            "Tab, p99 ms".into(),
            "--".into(),
            format!("{p99:.2} (median {median:.2})"),
            "--".into(),
            TAB_BAR_MS.to_string(),
            verdict(*p99 <= TAB_BAR_MS).into(),
        ]);
    }
    print!("{table}");
    write_json(json, &shots)
}

/// Compiles a program and starts it until it waits.
fn start(scratch: &Scratch, name: &str, source: &str, argument: &str) -> Result<Child> {
    let (file, program) = (scratch.join(&format!("{name}.c")), scratch.join(name));
    std::fs::write(&file, source)?;
    let (file, at) = (file.display().to_string(), program.display().to_string());
    child::run("cc", ["-g", "-O1", "-o", &*at, &*file])?;
    let mut command = Command::new(program);
    command.arg(argument);
    let mut started = Child::start_held(command)?;
    let line = started.first_line(PATIENCE)?;
    ensure!(line.trim() == "ready", "{name}: {line}");
    Ok(started)
}

fn walk(options: &Options, windlass: &Path, scratch: &Scratch, shots: &mut Shots) -> Result<()> {
    let program = start(scratch, "list", LIST, &options.nodes.to_string())?;
    let pid = program.pid().to_string();
    let script = scratch.join("loop.py");
    std::fs::write(&script, LOOP)?;
    let wanted = options.nodes * options.nodes.saturating_sub(1) / 2;
    for _ in 0..options.rounds {
        stop::check()?;
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-p", &pid, "-x"]).arg(&script);
        let said = gdb.output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let line = said.lines().find_map(|line| line.strip_prefix("took "));
        let (took, sum) = line
            .and_then(|line| line.split_once(' '))
            .context("gdb said nothing")?;
        ensure!(sum.parse() == Ok(wanted), "gdb: {sum}");
        shots.gdb_s.push(took.parse()?);
        let began = Instant::now();
        let mut own = Command::new(windlass);
        own.args([
            "inspect",
            &pid,
            "--",
            "list struct node next head | sum value",
        ]);
        let said = own.output()?;
        let took = began.elapsed();
        let sum = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        ensure!(
            sum.parse() == Ok(wanted),
            "windlass: {sum} {}",
            String::from_utf8_lossy(&said.stderr)
        );
        shots.windlass_s.push(took.as_secs_f64());
    }
    Ok(())
}

/// Types names at a terminal, and waits until they are complete.
fn tab(options: &Options, windlass: &Path, scratch: &Scratch, shots: &mut Shots) -> Result<()> {
    let names = (0..options.names).map(|at| format!("int v_{at:06}_x;\n"));
    let main = "#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts(\"ready\"); fflush(stdout); pause(); }\n";
    let source = names.collect::<String>() + main;
    let program = start(scratch, "names", &source, "")?;
    let command = format!("{} inspect {}", windlass.display(), program.pid());
    let mut shell = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut input, mut output) = (
        shell.stdin.take().context("a pipe")?,
        shell.stdout.take().context("a pipe")?,
    );
    let mut seen = Vec::new();
    let mut until = |wanted: &str| -> Result<()> {
        let mut part = [0; 4096];
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let read = output.read(&mut part)?;
            ensure!(
                read > 0,
                "the shell ended: {}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend_from_slice(&part[..read]);
        }
        seen.clear();
        Ok(())
    };
    for at in 0..=options.tabs {
        stop::check()?;
        let number = at.wrapping_mul(7919) % options.names;
        input.write_all(format!("print v_{number:06}").as_bytes())?;
        until(&format!("v_{number:06}"))?;
        let began = Instant::now();
        input.write_all(b"\t")?;
        until("_x")?;
        // The first one makes the index.
        if at > 0 {
            shots.tab_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        // Ends the line, and waits for the next prompt.
        input.write_all(b"\r")?;
        until("0\r\n")?;
        until("> ")?;
    }
    input.write_all(b"quit\r")?;
    drop(input);
    shell.wait()?;
    Ok(())
}
