//! The plugins of `samples/lookup`, as they are.

mod told;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use told::{PATIENCE, name};
use windlass_wire::MacAddr;
use windlassd::lookup::{Answer, Key, LookupConf, LookupKind, Pace, PluginFrom, PluginUser, Told};

fn sample(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../samples/lookup");
    root.join(file)
}

/// Where a program is put that nobody else can change.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Whether a tool is here; else says that the test was skipped.
fn has(tool: &str, test: &str) -> bool {
    let found = Command::new(tool).arg("--help").output().is_ok();
    if !found {
        println!("skipped: {test}: there is no {tool}");
    }
    found
}

fn build(command: &mut Command) {
    let built = command.output().expect("it was found");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
}

/// A sample starts, answers what it knows, drops what it does not, and answers pings.
fn serves(program: &Path) {
    let pace = Pace {
        ping: Duration::from_millis(20),
        answer_max: PATIENCE,
        ..Pace::of(PluginUser::Own)
    };
    let (lookups, seen) = told::lookups(pace);
    let words = [program.display().to_string(), "192.0.2.7".to_owned()];
    let conf = LookupConf {
        overlay: name("ov0"),
        vnis: vec![(0, 23)],
        kind: LookupKind::Plugin {
            from: PluginFrom::Command(words.to_vec()),
            properties: BTreeMap::new(),
        },
    };
    let started = lookups.start(conf.clone()).wait(PATIENCE);
    started.expect("it says ok");
    let vnis = vec![(0, 23), (1, 24)];
    let more = LookupConf { vnis, ..conf };
    lookups.set(more).wait(PATIENCE).expect("it says ok again");
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    for (id, key) in [
        (1, Key::Target(mac)),
        (2, Key::Mac([10, 0, 0, 1].into())),
        (3, Key::Mac("fd00::1".parse().expect("an address"))),
        (4, Key::Dhcp(mac)),
    ] {
        // Several signs of life are asked for meanwhile.
        std::thread::sleep(Duration::from_millis(50));
        lookups.lookup(&name("ov0"), id, 23, key);
    }
    let target = Answer::Target(([192, 0, 2, 7], 4789).into(), Duration::from_secs(60));
    let answers = [target, Answer::Drop, Answer::Drop, Answer::Drop];
    let answers: Vec<_> = (1..)
        .zip(answers)
        .map(|(id, answer)| Told::Answer { id, answer })
        .collect();
    seen.until("answers", |seen| seen.rest == answers);
    assert_eq!(seen.reasons(), [""; 0]);
}

/// The sample in C serves.
#[test]
fn the_sample_in_c_serves() {
    if has("cc", "the_sample_in_c_serves") {
        let program = place("one-host-c");
        build(
            Command::new("cc")
                .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
                .arg(&program)
                .arg(sample("one-host.c")),
        );
        serves(&program);
    }
}

/// The sample in Go serves.
#[test]
fn the_sample_in_go_serves() {
    if has("go", "the_sample_in_go_serves") {
        let program = place("one-host-go");
        build(
            Command::new("go")
                .args(["build", "-o"])
                .arg(&program)
                .arg(sample("one-host.go")),
        );
        serves(&program);
    }
}

/// The sample in Python serves.
#[test]
fn the_sample_in_python_serves() {
    if has("/usr/bin/python3", "the_sample_in_python_serves") {
        let program = place("one-host.py");
        // Not by this process: another test's child would have the copy open for writing, and nobody could run it.
        let mut copy = Command::new("cp");
        let copied = copy.args([&sample("one-host.py"), &program]).status();
        assert!(copied.expect("cp").success());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
        serves(&program);
    }
}
