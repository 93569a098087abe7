//! Frames of 64 bytes between two ends of one program: framed I/O through windlassd, beside TAPs and packet sockets on the kernel's
//! bridge, and testpmd over memif.
//!
//! The program is `bench/c/framed-gen.c`: one thread, one core. The daemon has the other core; the kernel's bridge works in the program's
//! own calls. testpmd has the daemon's core, and forwards between the two ends of `memif-gen`, whose sink only counts: as in the comparison
//! of memif, and in testpmd's favour.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::child::{run, run_line};
use super::host::{HugePages, Namespace, Scratch, describe, require};
use super::peers::{self, Plug, Setup, check_programs, wait_for_socket};
use super::rate::{self, Turns};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;

/// What 32 frames a call are to be, as a multiple of TAP and of packet sockets.
const BARS: [(Subject, f64); 2] = [(Subject::Tap, 10.0), (Subject::Packet, 5.0)];

const NAMESPACE: &str = "wlc-framed";

/// Framed I/O, TAP, sendmmsg, testpmd over memif.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    turns: Turns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// Framed calls with so many frames.
    Framed(u32),
    /// 32 frames a call, in the memory of the ring.
    Lent,
    /// write(2) and read(2) at TAPs of the kernel's bridge.
    Tap,
    /// sendmmsg(2) and recvmmsg(2) at veth pairs of the kernel's bridge, 32 frames a call.
    Packet,
    /// testpmd between two memif clients.
    Testpmd,
}

const SUBJECTS: [Subject; 7] = [
    Subject::Framed(1),
    Subject::Framed(8),
    Subject::Framed(32),
    Subject::Lent,
    Subject::Tap,
    Subject::Packet,
    Subject::Testpmd,
];

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Framed(frames) => write!(f, "framed, {frames} a call"),
            Subject::Lent => f.write_str("framed, 32 a call, no copy"),
            Subject::Tap => f.write_str("TAP, read and write"),
            Subject::Packet => f.write_str("sendmmsg and recvmmsg, 32 a call"),
            Subject::Testpmd => f.write_str("testpmd over memif"),
        }
    }
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    subject: Subject,
    million_frames_s: f64,
}

/// Compiles the program against the library that was built.
pub(super) fn compile(programs: &Path, scratch: &Scratch) -> Result<PathBuf> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let generator = scratch.join("framed-gen");
    let words = [
        "-O2".to_owned(),
        "-o".to_owned(),
        text(generator.clone()),
        text(tree.join("c/framed-gen.c")),
        "-I".to_owned(),
        text(tree.join("../crates/programs/framed/dist")),
        text(programs.join("libwindlass_framed.a")),
    ];
    let libraries = ["-lgcc_s", "-lpthread", "-ldl", "-lm"].map(str::to_owned);
    run("cc", words.iter().chain(&libraries))?;
    Ok(generator)
}

/// Where the subjects are.
struct Places<'a> {
    generator: PathBuf,
    programs: &'a Path,
    daemon: Daemon,
    scratch: &'a Scratch,
    kernel: Namespace,
}

/// Measures one of them, and gives its rate.
fn shoot(options: &Turns, subject: Subject, places: &Places<'_>) -> Result<f64> {
    let Places {
        generator,
        programs,
        daemon,
        scratch,
        kernel,
    } = places;
    let core = options.cores.generator_core;
    let (mode, frames) = match subject {
        Subject::Framed(frames) => ("framed", frames),
        Subject::Lent => ("lent", 32),
        Subject::Tap => ("tap", 1),
        Subject::Packet => ("packet", 32),
        Subject::Testpmd => {
            let setup = Setup {
                scratch,
                programs,
                core: options.cores.switch_core,
                plug: Plug::Memif,
            };
            return rate::smallest(options, peers::Subject::Testpmd, &setup);
        }
    };
    let line = |from: &str, to: &str| {
        let (generator, seconds) = (generator.display(), options.seconds);
        format!("taskset -c {core} {generator} {mode} {from} {to} {frames} {seconds}")
    };
    let said = match subject {
        Subject::Tap => kernel.exec(&line("t0", "t1"))?,
        Subject::Packet => kernel.exec(&line("v0", "v1"))?,
        Subject::Framed(_) | Subject::Lent | Subject::Testpmd => {
            let made = |n: u8| -> Result<String> {
                let path = scratch.join(&format!("f{n}"));
                daemon.command(&format!(
                    "vnic create f{n} --bridge br0 --mac 02:00:00:00:0f:0{n} --attach memif,socket={},role=server",
                    path.display()
                ))?;
                wait_for_socket(&path)?;
                Ok(path.to_string_lossy().into_owned())
            };
            let (from, to) = (made(0)?, made(1)?);
            let said = run_line(&line(&from, &to));
            for n in 0..2 {
                daemon.command(&format!("vnic delete f{n}"))?;
            }
            said?
        }
    };
    let rate = said.split(' ').next().context("it says nothing")?;
    rate.parse().with_context(|| format!("a rate: {said}"))
}

/// The kernel's bridge with two TAPs, and one with two veth pairs.
pub(super) fn kernel() -> Result<Namespace> {
    let namespace = Namespace::create(NAMESPACE)?;
    let mut lines = vec![
        "link add taps type bridge".to_owned(),
        "link add veths type bridge".to_owned(),
    ];
    for n in 0..2 {
        lines.push(format!("tuntap add t{n} mode tap"));
        lines.push(format!("link set t{n} master taps up"));
        lines.push(format!("link add v{n} type veth peer name p{n}"));
        lines.push(format!("link set v{n} up"));
        lines.push(format!("link set p{n} master veths up"));
    }
    lines.extend([
        "link set taps up".to_owned(),
        "link set veths up".to_owned(),
    ]);
    namespace.exec(
        "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
    )?;
    for line in lines {
        namespace.ip(&line)?;
    }
    Ok(namespace)
}

/// Measures every subject in turns.
///
/// # Errors
/// If a program is missing, or one of them fails.
pub fn run_all(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[("cc", "gcc"), ("taskset", "util-linux"), ("ip", "iproute2")])?;
    peers::Subject::Testpmd.prepare()?;
    check_programs(programs, &["memif-gen"])?;
    let turns = &options.turns;
    let _pages = HugePages::reserve(rate::HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    let places = Places {
        generator: compile(programs, &scratch)?,
        programs,
        daemon: Daemon::start(programs, &scratch, &[turns.cores.switch_core])?,
        scratch: &scratch,
        kernel: kernel()?,
    };
    places.daemon.command("bridge create br0")?;
    let mut shots = Vec::new();
    for _ in 0..turns.rounds {
        for subject in SUBJECTS {
            stop::check()?;
            let million_frames_s = shoot(turns, subject, &places)?;
            shots.push(Shot {
                subject,
                million_frames_s,
            });
        }
    }
    let of = |subject| {
        let of_it = shots.iter().filter(|shot| shot.subject == subject);
        Spread::of(of_it.map(|shot| shot.million_frames_s)).context("no measurement")
    };
    println!(
        "64-byte frames between two ends of one thread; {}",
        describe()
    );
    let mut table = Table::new(&["subject", "million frames/s"]);
    for subject in SUBJECTS {
        table.row(vec![subject.to_string(), of(subject)?.to_string()]);
    }
    print!("{table}");
    for (peer, bar) in BARS {
        let ratio = of(Subject::Framed(32))?.median / of(peer)?.median;
        println!(
            "32 frames a call: {ratio:.1} times {peer} (bar: {bar}: {})",
            verdict(ratio >= bar)
        );
    }
    let ratio = of(Subject::Lent)?.median / of(Subject::Testpmd)?.median;
    println!(
        "without a copy: {ratio:.2} times testpmd over memif (bar: ahead: {})",
        verdict(ratio > 1.0)
    );
    write_json(json, &shots)
}
