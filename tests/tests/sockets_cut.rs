//! Processes killed and held at chosen instructions of send, receive, wait and join, by a debugger's means.
//!
//! `sockets/cut.c` runs one end of a stream up to the entry of a function of the library and so many instructions
//! further. The stream's bytes depend on their place, so whatever the other end gets is checked by itself.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use place::{HOW, How, LIBRARY, PATIENCE, Pair, Place, Random, seed, soaks};
use rustix::process::{Pid, Signal, kill_process};
use windlass_tests::{program, skip};

/// What makes cuts, and where.
struct Cutter {
    place: Place,
    tool: PathBuf,
    /// Functions of the library, by name, from its first byte on.
    functions: BTreeMap<String, u64>,
}

/// A cut under way.
struct Cut {
    tool: Child,
    said: PathBuf,
}

impl Cutter {
    fn new(name: &str) -> Option<Cutter> {
        let place = Place::new(name)?;
        let tool = place.directory.path().join("cut");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/cut.c");
        let compiled = Command::new("cc")
            .arg("-O2")
            .arg("-o")
            .arg(&tool)
            .arg(source)
            .status();
        assert!(
            compiled.is_ok_and(|status| status.success()),
            "cut.c does not compile"
        );
        let library = program("windlass").with_file_name(LIBRARY);
        let Ok(listed) = Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library)
            .output()
        else {
            skip(name, "nm is missing");
            return None;
        };
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let functions = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, _, name) = (words.next()?, words.next()?, words.next()?);
            Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
        });
        Some(Cutter {
            functions: functions.collect(),
            tool,
            place,
        })
    }

    /// Starts both ends, with the cutter at one of them before it has sent or received a byte. `None` if that process may
    /// not be traced.
    fn start(
        &self,
        how: &How<'_>,
        victim: usize,
        words: [&str; 3],
        functions: &[&str],
    ) -> Option<(Pair, Cut)> {
        let directory = self.place.room();
        let roles = ["listen", "connect"];
        let first = self.place.end(how, &directory, roles[victim]);
        let pid = Pid::from_child(&first).as_raw_nonzero();
        let base = until("the library in the program", || {
            let own = self.place.directory.path().join("peer");
            let runs = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own);
            base_of(&fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
                .filter(|_| runs)
        });
        if victim == 0 {
            // It has bound its socket, and nobody is there yet.
            until("the listener", || {
                directory.join("port").exists().then_some(())
            });
        }
        let said = directory.join("cut");
        let log = File::create(&said).expect("a log");
        let addresses = functions
            .iter()
            .map(|name| format!("{:x}", base + self.functions[*name]));
        let mut tool = Command::new(&self.tool);
        tool.arg(pid.to_string()).args(words).args(addresses);
        let tool = tool
            .stdout(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("the cutter");
        let mut cut = Cut { tool, said };
        until("the cutter", || {
            let ended = cut.tool.try_wait().expect("a child").is_some();
            (cut.said().contains("ready") || ended).then_some(())
        });
        let is_refused = cut.said().contains("FAIL attach");
        let second = self.place.end(how, &directory, roles[1 - victim]);
        let ends = if victim == 0 {
            [first, second]
        } else {
            [second, first]
        };
        let pair = self.place.pair(how, directory, ends);
        (!is_refused).then_some((pair, cut))
    }
}

/// Where the library begins in a process, once its code is in its place: the loader maps the whole file first and the code over it
/// then, and in between other bytes stand at the addresses of functions.
fn base_of(maps: &str) -> Option<u64> {
    let mut lines = maps.lines().filter(|line| line.ends_with(LIBRARY));
    let line = lines.next()?;
    lines.find(|line| line.contains(" r-xp "))?;
    u64::from_str_radix(line.split('-').next()?, 16).ok()
}

fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Cut {
    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits for the cutter's end.
    fn wait(&mut self) -> String {
        until("the cut", || self.tool.try_wait().expect("a child"));
        self.said()
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = self.tool.kill();
        let _ = self.tool.wait();
    }
}

/// A number of instructions: as likely few as many.
fn some_steps(random: &mut Random, bits: u64) -> u64 {
    let bits = random.below(bits + 1);
    random.below(1 << bits)
}

/// Ways of waiting with one process at each end.
const WAYS: [&str; 6] = ["block", "level", "edge", "poll", "select", "oneshot"];
/// By which function each of them waits.
const WAITS: [&str; 6] = [
    "recv",
    "epoll_wait",
    "epoll_wait",
    "poll",
    "select",
    "epoll_wait",
];

/// One end killed at an instruction inside send, receive, wait (with bytes that are being taken back into the kernel in
/// every third), or of the join: the other end sees everything that was sent if the stream just ends, a right beginning
/// of it if it is reset, and it does end.
#[test]
fn killed_at_any_instruction() {
    let Some(cutter) = Cutter::new("killed_at_any_instruction") else {
        return;
    };
    let mut random = seed();
    let (mut ends, mut cuts) = (BTreeMap::new(), 0);
    for round in 0..if soaks() { 3_000 } else { 27 } {
        let way = random.below(WAYS.len() as u64) as usize;
        let function = ["send", "recv", WAITS[way]][round % 3];
        let joins = random.below(3) == 0;
        let (hits, steps) = match joins {
            true => (1 + random.below(8), some_steps(&mut random, 14)),
            // The warm-up is 50 calls of send and of recv at each end.
            false => (60 + random.below(190), some_steps(&mut random, 10)),
        };
        let reclaims = format!("300,{}", random.below(1 << 30));
        let options = [("WINDLASS_RECLAIM", reclaims.as_str())];
        let how = How {
            way: WAYS[way],
            spin: ["0", "50"][random.below(2) as usize],
            bytes: 0,
            options: if random.below(3) == 0 { &options } else { &[] },
            ..HOW
        };
        let victim = random.below(2) as usize;
        let words = [hits.to_string(), steps.to_string()];
        let words = [&words[0], &words[1], "kill"];
        let Some((mut pair, mut cut)) = cutter.start(&how, victim, words, &[function]) else {
            skip(
                "killed_at_any_instruction",
                "processes may not be traced here",
            );
            return;
        };
        let told = format!("{function} {hits} {steps} {how:?} victim {victim}");
        let at = cut.wait();
        assert!(at.contains("cut at"), "{told}: {at} {}", pair.both());
        cuts += 1;
        // Before the warm-up is over, an end says so in its own words; only cuts in a join come so early.
        let said = pair.end_of(1 - victim);
        let sent = pair.noted(victim)[1];
        let Some(got) = said.lines().find_map(|line| line.strip_prefix("got ")) else {
            assert!(joins && said.contains("FAIL warm-up"), "{told}: {said}");
            continue;
        };
        let (got, end) = got.split_once(' ').expect("an end");
        assert!(matches!(end, "eof" | "reset"), "{told}: {said}");
        let got: u64 = got.parse().expect("a number");
        assert!(
            end == "reset" || got >= sent,
            "{told}: {got} of {sent} bytes came"
        );
        *ends.entry(end.to_owned()).or_insert(0) += 1;
    }
    println!("{cuts} cuts: {ends:?}");
}

/// A daemon that is stopped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// One end killed inside a receive, often with its lock held and bytes unread, while nobody tells the other one of the death but
/// the kernel: it comes to its end all the same, by events that it waits for.
#[test]
fn killed_without_a_daemon_that_tells() {
    let Some(cutter) = Cutter::new("killed_without_a_daemon_that_tells") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 300 } else { 16 } {
        let reclaims = format!("300,{}", random.below(1 << 30));
        let options = [("WINDLASS_RECLAIM", reclaims.as_str())];
        let how = How {
            way: ["edge", "level", "block", "poll"][round % 4],
            spin: ["0", "50"][random.below(2) as usize],
            bytes: 0,
            options: if random.below(2) == 0 { &options } else { &[] },
            ..HOW
        };
        let victim = random.below(2) as usize;
        let (hits, steps) = (2_000 + random.below(500), 20 + random.below(200));
        let words = [hits.to_string(), steps.to_string()];
        let words = [&words[0], &words[1], "kill"];
        let Some((mut pair, mut cut)) = cutter.start(&how, victim, words, &["recv"]) else {
            skip(
                "killed_without_a_daemon_that_tells",
                "processes may not be traced here",
            );
            return;
        };
        pair.warm();
        let _stopped = cutter.place.daemon_process().map(|daemon| {
            kill_process(daemon, Signal::STOP).expect("a daemon");
            Stopped(daemon)
        });
        let at = cut.wait();
        assert!(at.contains("cut at"), "{how:?}: {at} {}", pair.both());
        let said = pair.end_of(1 - victim);
        assert!(
            said.contains(" eof\n") || said.contains(" reset\n"),
            "{hits} {steps} {how:?} victim {victim}: {said}"
        );
    }
}

/// A process killed at an instruction inside send or receive, while another one that it has forked has the socket, too: that
/// one goes on where it was, and both streams are whole, but for what the killed call had taken.
#[test]
fn a_forked_process_goes_on() {
    let Some(cutter) = Cutter::new("a_forked_process_goes_on") else {
        return;
    };
    let mut random = seed();
    let mut cuts = 0;
    for round in 0..if soaks() { 300 } else { 10 } {
        let function = ["send", "recv"][round % 2];
        let (hits, steps) = (60 + random.below(150), some_steps(&mut random, 10));
        let reclaims = format!("300,{}", random.below(1 << 30));
        let options = [("WINDLASS_RECLAIM", reclaims.as_str())];
        let how = How {
            way: "heir",
            spin: ["0", "50"][random.below(2) as usize],
            options: if random.below(3) == 0 { &options } else { &[] },
            ..HOW
        };
        let victim = random.below(2) as usize;
        let words = [hits.to_string(), steps.to_string()];
        let words = [&words[0], &words[1], "kill"];
        let Some((mut pair, mut cut)) = cutter.start(&how, victim, words, &[function]) else {
            skip(
                "a_forked_process_goes_on",
                "processes may not be traced here",
            );
            return;
        };
        let at = cut.wait();
        let told = format!("{function} {hits} {steps} victim {victim}: {at}");
        assert!(at.contains("cut at"), "{told} {}", pair.both());
        cuts += 1;
        let whole = format!("got {} eof\n", how.bytes);
        let said = pair.wait(1 - victim);
        assert!(said.contains(&whole), "{told} {}", pair.both());
        pair.until("the end of the heir", |pair| {
            let said = pair.said(victim);
            assert!(!said.contains("WRONG"), "{told} {}", pair.both());
            said.contains(&whole)
        });
    }
    println!("{cuts} cuts");
}

/// One end held again and again at instructions inside send, receive, wait and join, for so long that the daemon rescues
/// its bytes in some: both streams come to their ends, and are right.
#[test]
fn held_at_any_instruction() {
    let Some(cutter) = Cutter::new("held_at_any_instruction") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 300 } else { 4 } {
        let (way, wait) = (WAYS[round % WAYS.len()], WAITS[round % WAYS.len()]);
        let reclaims = format!("100,{}", random.below(1 << 30));
        let options = [("WINDLASS_RECLAIM", reclaims.as_str())];
        let how = How {
            way,
            spin: ["0", "50"][random.below(2) as usize],
            options: if random.below(2) == 0 { &options } else { &[] },
            ..HOW
        };
        let seed = (1 + random.below(1 << 40)).to_string();
        let mut functions = vec!["send", "recv", wait];
        functions.dedup();
        let words = ["12", seed.as_str(), "hold"];
        let victim = random.below(2) as usize;
        let Some((pair, mut cut)) = cutter.start(&how, victim, words, &functions) else {
            skip(
                "held_at_any_instruction",
                "processes may not be traced here",
            );
            return;
        };
        pair.finish(HOW.bytes);
        let said = cut.wait();
        assert!(said.contains("cut") || said.contains("gone"), "{said}");
    }
    cutter.place.assert_rung();
}
