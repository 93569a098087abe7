//! The stored document: killed at any instant, with a full disk, with two owners.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use daemon::{Daemon, options};
use serde_json::json;
use windlass_api::{Bridge, Document};
use windlassd::store::{Store, StoreError, check};

/// A document that can be told from others: as many bridges as its revision says, up to 200, all of one
/// generation.
fn document(revision: u64) -> Document {
    let mut document = Document::default();
    for index in 0..revision % 200 {
        let name = format!("b{index}.{revision}").parse().unwrap();
        document.bridges.push(Bridge::named(name));
    }
    document.canonicalize();
    document
}

/// Not a test: the writer that the test below kills.
#[test]
#[ignore = "run by a_kill_at_any_instant_leaves_a_whole_document, which kills it"]
fn write_for_ever() {
    let directory = PathBuf::from(std::env::var("STORE_DIRECTORY").unwrap());
    let mut store = Store::open(&directory).unwrap();
    let mut revision = store.load().unwrap().revision;
    loop {
        revision += 1;
        store.prepare(revision, &document(revision)).unwrap();
        store.commit().unwrap();
        std::fs::write(directory.join("acknowledged"), revision.to_string()).unwrap();
    }
}

/// How long a writer may take to write once.
const PATIENCE: Duration = Duration::from_secs(20);

/// The revision that the writer was told last to be stored.
fn acknowledged(directory: &Path) -> u64 {
    let text = std::fs::read_to_string(directory.join("acknowledged"));
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A writer that is killed at a hundred instants leaves, each time, a document that loads, is whole, and
/// is no older than the last one that was acknowledged.
#[test]
fn a_kill_at_any_instant_leaves_a_whole_document() {
    let directory = tempfile::tempdir().unwrap();
    let mut microseconds = 12_345u64;
    let mut last = 0;
    for round in 0..100 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "write_for_ever", "--ignored"])
            .env("STORE_DIRECTORY", directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        microseconds = (microseconds * 1_103_515_245 + 12_345) % (1 << 31);
        // It has begun once it has acknowledged something, however busy the machine is.
        let (begun, before) = (Instant::now(), acknowledged(directory.path()));
        while acknowledged(directory.path()) == before && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(microseconds % 5_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut store = Store::open(directory.path()).unwrap();
        let loaded = store.load().unwrap();
        assert_eq!(loaded.document, document(loaded.revision), "round {round}");
        assert!(
            loaded.revision >= acknowledged(directory.path()) && loaded.revision >= last,
            "round {round}"
        );
        last = loaded.revision;
    }
    assert!(last >= 100, "the writer wrote {last} times only");
}

/// What is damaged is refused, not taken for an empty configuration; a half-written new document is no
/// reason to refuse the old one.
#[test]
fn damage_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    store.prepare(3, &document(3)).unwrap();
    store.commit().unwrap();
    let path = directory.path().join("document.json");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        directory.path().join("document.next"),
        &good[..good.len() / 2],
    )
    .unwrap();
    let loaded = store.load().unwrap();
    assert_eq!(
        (loaded.revision, loaded.document, loaded.unfinished),
        (3, document(3), None)
    );
    for (bad, part) in [
        (good[..good.len() - 9].to_owned(), "EOF"),
        (
            good.replace("\"bridges\"", "\"bridgse\""),
            "document.bridgse",
        ),
        (good.replace("\"version\": 1", "\"version\": 9"), "version"),
        (String::new(), "EOF"),
    ] {
        std::fs::write(&path, bad).unwrap();
        let error = store.load().unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A state directory has one owner at a time.
#[test]
fn two_daemons_cannot_share_a_state() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    assert!(matches!(
        Store::open(directory.path()),
        Err(StoreError::Locked(_))
    ));
    drop(store);
    Store::open(directory.path()).unwrap();
}

struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let done = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size},mode=0700"),
                "windlass-test",
            ])
            .arg(path)
            .stderr(Stdio::null())
            .status();
        done.is_ok_and(|status| status.success())
            .then(|| Self(path.into()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// On a full disk a change is refused with code `storage`, nothing of it is made, the old document
/// stays, on disk too, and a restart finds it; when there is room again, the change succeeds.
#[test]
fn a_full_disk_refuses_the_change() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let Some(_disk) = Tmpfs::mount(&options.state_dir, "64k") else {
        eprintln!("skipped: a_full_disk_refuses_the_change: cannot mount a tmpfs here");
        return;
    };
    let daemon = Daemon::start(&options, None);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    let before = check(&options.state_dir).unwrap();
    let filler = options.state_dir.join("filler");
    let mut size = 64 * 1024;
    while std::fs::write(&filler, vec![1; size]).is_err() {
        size -= 1024;
    }
    daemon.calls();
    let error = daemon.refused(
        "POST",
        "/v1/bridges",
        Some(json!({"name": "br1"})),
        "storage",
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("nothing was changed"),
        "{error}"
    );
    assert_eq!(daemon.calls(), ["create_bridge br1", "delete_bridge br1"]);
    daemon.refused("GET", "/v1/bridges/br1", None, "not_found");
    assert_eq!(check(&options.state_dir).unwrap(), before);
    drop(daemon);
    let daemon = Daemon::start(&options, None);
    daemon.must("GET", "/v1/bridges/br0", None);
    std::fs::remove_file(&filler).unwrap();
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br1"})));
}
