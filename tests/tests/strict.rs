//! `windlass run --strict`: calls made by the instruction itself, which never pass libc; and sockets that go on to another
//! program.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use windlass_tests::{program, skip};

/// Longest time that anything may take; nothing needs two seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A broker that a busy machine does not let answer in time is asked again later; a run may be over by then.
const TRIES: usize = 6;

/// A directory of one test, with the compiled program.
struct Place {
    directory: tempfile::TempDir,
}

/// How a program ended, what it printed, and what the library counted.
struct Ended {
    code: Option<i32>,
    said: String,
    counts: BTreeMap<String, u64>,
}

impl Ended {
    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// A program that runs.
struct Runs {
    child: Child,
    directory: PathBuf,
    name: String,
}

impl Runs {
    fn wait(mut self) -> Ended {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status;
            }
            if begin.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("{} hangs after: {}", self.name, self.text("said"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut counts = BTreeMap::new();
        for line in self.text("counters").lines() {
            if let Some((name, value)) = line.split_once(' ') {
                *counts.entry(name.to_owned()).or_insert(0) += value.parse::<u64>().unwrap_or(0);
            }
        }
        Ended {
            code: status.code(),
            said: self.text("said"),
            counts,
        }
    }

    fn text(&self, kind: &str) -> String {
        let path = self.directory.join(format!("{}.{kind}", self.name));
        fs::read_to_string(path).unwrap_or_default()
    }
}

impl Place {
    fn new(name: &str) -> Option<Place> {
        let windlass = program("windlass");
        if !windlass.with_file_name("libwindlass_sockets.so").exists() {
            skip(name, "libwindlass_sockets.so was not built beside windlass");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(directory.path(), closed).expect("closed to others");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/strict.c");
        let binary = directory.path().join("strict");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-pthread", "-o"])
            .arg(binary)
            .arg(source);
        match compiler.status() {
            Ok(status) => assert!(status.success(), "strict.c does not compile"),
            Err(error) => {
                skip(name, &format!("cc: {error}"));
                return None;
            }
        }
        Some(Place { directory })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the program, by `windlass run` with these options, or plain.
    fn start(&self, name: &str, options: Option<&[&str]>, words: &[&str]) -> Runs {
        let binary = self.path().join("strict");
        let mut command = match options {
            Some(options) => {
                let mut command = Command::new(program("windlass"));
                command.arg("run").args(options).arg("--").arg(binary);
                command
            }
            None => Command::new(binary),
        };
        let said = fs::File::create(self.path().join(format!("{name}.said"))).expect("a log");
        let counters = self.path().join(format!("{name}.counters"));
        let _ = fs::remove_file(&counters);
        command.args(words).current_dir(self.path());
        command.env("XDG_RUNTIME_DIR", self.path());
        command.env("WINDLASS_COUNTERS", counters);
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone().expect("a log"))
            .stderr(said);
        Runs {
            child: command.spawn().expect("the program starts"),
            directory: self.path().to_owned(),
            name: name.to_owned(),
        }
    }

    /// Both ends of the connections; `None`: not joined this time.
    fn pair(&self, options: &[&str], numbers: &[&str]) -> Option<[Ended; 2]> {
        let _ = fs::remove_file(self.path().join("port"));
        let ends = ["listen", "connect"];
        let ends = ends.map(|role| {
            let words = [&[role, "port"], numbers].concat();
            self.start(role, Some(options), &words)
        });
        let ends = ends.map(Runs::wait);
        for end in &ends {
            assert_eq!((end.code, end.said.as_str()), (Some(0), "right\n"));
        }
        ends.iter()
            .all(|end| end.count("joined") == 2)
            .then_some(ends)
    }
}

/// Each kind of bare system call that needs care (handlers with a restorer of their own, masks, stacks, forks, `vfork`,
/// threads by `clone`, `execve`) gives the same under `--strict` as without the library, and was caught.
#[test]
fn bare_calls_give_the_same_results() {
    let Some(place) = Place::new("bare_calls_give_the_same_results") else {
        return;
    };
    let plain = place.start("plain", None, &["calls"]).wait();
    let strict = place
        .start("strict", Some(&["--strict"]), &["calls"])
        .wait();
    assert_eq!(plain.said, strict.said);
    assert_eq!((plain.code, strict.code), (Some(0), Some(0)));
    assert!(plain.said.contains("after clone 1"), "{}", plain.said);
    assert!(strict.count("calls_trapped") > 30, "{:?}", strict.counts);
}

/// Bytes sent by bare system calls and through libc, mixed on one direction, arrive in order under `--strict` on joined
/// connections, part of them by the ring.
#[test]
fn mixed_writes_stay_in_order() {
    let Some(place) = Place::new("mixed_writes_stay_in_order") else {
        return;
    };
    for spin in ["20", "0"] {
        let mut tries = 0..TRIES;
        let ends = tries.find_map(|_| place.pair(&["--strict", "--spin", spin], &["800"]));
        let ends = ends.expect("joined in one of the tries");
        for end in &ends {
            assert!(end.count("calls_trapped") > 800, "{:?}", end.counts);
        }
        let rung: u64 = ends.iter().map(|end| end.count("ring_tx_bytes")).sum();
        assert!(rung > 0 || spin == "0", "nothing went by the ring");
    }
}

/// A joined socket that becomes standard input and output of a program with the library (by `posix_spawn`, and by `vfork`
/// with `dup2`) goes on by the kernel at once, in order: what its peer sends does not wait in a ring that nobody reads.
#[test]
fn a_socket_handed_on_goes_by_the_kernel() {
    /// Bytes that the client sends behind the hand-over; the first of each connection may be in the ring by then.
    const BEHIND: u64 = 2 * 200 * 8;
    let Some(place) = Place::new("a_socket_handed_on_goes_by_the_kernel") else {
        return;
    };
    let mut tries = 0..TRIES;
    let ends = tries.find_map(|_| place.pair(&["--strict", "--spin", "20"], &["400", "200"]));
    let [_, client] = ends.expect("joined in one of the tries");
    let by_kernel = client.count("kernel_tx_bytes");
    assert!(by_kernel >= BEHIND - 2 * 8, "{:?}", client.counts);
}
