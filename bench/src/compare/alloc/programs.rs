//! Real programs: what they do is written here, so that each has the same work everywhere.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::used;
use crate::compare::child;
use crate::compare::host::{Scratch, require};
use crate::compare::stop;

/// The file that gcc compiles has so many functions.
const FUNCTIONS: usize = 1200;
/// Requests that redis answers, and the keys they are for.
const REQUESTS: &str = "500000";
const KEYS: &str = "100000";
/// redis has this long to start.
const START_WITHIN: Duration = Duration::from_secs(10);

const PYTHON: &str = "import json
value = {'key%d' % i: [i, str(i), {'a': i * 0.5, 'b': None, 'c': 'x' * (i % 60)}] for i in range(20000)}
for _ in range(12):
    value = json.loads(json.dumps(value))
";
const PERL: &str = r#"my %all;
for my $i (1 .. 300_000) { $all{"key$i"} = [$i, "value $i"]; }
for my $i (1 .. 300_000) { delete $all{"key$i"} if $i % 3; }
for my $i (1 .. 300_000) { $all{"other$i"} .= "x" x ($i % 50); }
"#;
const NODE: &str = "const crypto = require('crypto');
let text = '';
for (let i = 0; i < 100000; i++) text = crypto.createHash('md5').update(text + i).digest('hex');
";

/// The words of a program, after those of the runner.
///
/// # Errors
/// If it is neither there nor can be installed.
pub fn command(scratch: &Scratch, name: &str, command: &mut Command) -> Result<()> {
    let words: Vec<PathBuf> = match name {
        "gcc" => {
            require(&[("gcc", "gcc")])?;
            let source = file(scratch, "functions.c", functions)?;
            let words = ["gcc", "-O1", "-S", "-o", "/dev/null"];
            words.iter().map(PathBuf::from).chain([source]).collect()
        }
        "python" => {
            command.env("PYTHONMALLOC", "malloc");
            vec![python()?, file(scratch, "values.py", || PYTHON.into())?]
        }
        "perl" => {
            require(&[("perl", "perl")])?;
            vec!["perl".into(), file(scratch, "hashes.pl", || PERL.into())?]
        }
        "node" => {
            require(&[("node", "nodejs")])?;
            vec!["node".into(), file(scratch, "md5.js", || NODE.into())?]
        }
        _ => return Err(anyhow::anyhow!("no program {name}")),
    };
    command.args(words);
    Ok(())
}

/// The interpreter itself: a version manager's `python3` is a shell script.
fn python() -> Result<PathBuf> {
    require(&[("python3", "python3")])?;
    let name = child::run("python3", ["-c", "import sys; print(sys.executable)"])?;
    Ok(PathBuf::from(name.trim()))
}

/// A file of the scratch directory, written when it is first asked for.
fn file(scratch: &Scratch, name: &str, text: impl FnOnce() -> String) -> Result<PathBuf> {
    let path = scratch.join(name);
    if !path.exists() {
        fs::write(&path, text()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(path)
}

/// C source of functions that a compiler has something to do with.
fn functions() -> String {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        // A string takes whatever is written.
        let _ = write!(
            text,
            "struct s{n} {{ int a, b; double c[{}]; struct s{n} *next; }};
int f{n}(struct s{n} *s, int n) {{
    int sum = {n};
    for (struct s{n} *at = s; at; at = at->next) {{
        switch ((at->a + n) % 5) {{
        case 0: sum += at->b * {n}; break;
        case 1: sum -= at->a << 3; break;
        case 2: at->c[n % {}] *= 1.5; break;
        default: sum ^= at->a * at->b;
        }}
        for (int i = 0; i < n; i++) if (at->c[i % {}] > i) sum += f{n}(at->next, i);
    }}
    return sum;
}}
",
            n % 7 + 1,
            n % 7 + 1,
            n % 7 + 1
        );
    }
    text
}

/// User time and peak memory of a server that answers SETs, 16 in flight on each connection.
///
/// # Errors
/// If it cannot be started or asked.
pub fn redis(scratch: &Scratch, mut runner: Command) -> Result<(f64, f64)> {
    require(&[
        ("redis-server", "redis-server"),
        ("redis-benchmark", "redis-tools"),
    ])?;
    let socket = scratch.join("redis.socket");
    runner.args(["redis-server", "--port", "0", "--save", "", "--unixsocket"]);
    runner.arg(&socket).arg("--dir").arg(scratch.path());
    runner.stdout(Stdio::null()).stderr(Stdio::piped());
    let server = runner.spawn().context("cannot start redis")?;
    let asked = ask(&socket);
    // Ends it, whatever came of it.
    let ended = client(&socket, "redis-cli", &["shutdown", "nosave"]);
    let output = server.wait_with_output()?;
    asked?;
    ended?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "redis failed: {errors}");
    used(&errors)
}

fn ask(socket: &Path) -> Result<()> {
    stop::until("redis", START_WITHIN, || {
        std::os::unix::net::UnixStream::connect(socket).ok()
    })?;
    let words = [
        "-q", "-t", "set", "-P", "16", "-c", "8", "-d", "64", "-n", REQUESTS, "-r", KEYS,
    ];
    client(socket, "redis-benchmark", &words)
}

fn client(socket: &Path, program: &str, words: &[&str]) -> Result<()> {
    let mut all = vec![Path::new("-s"), socket];
    all.extend(words.iter().map(Path::new));
    child::run(program, all).map(drop)
}
