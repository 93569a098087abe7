//! Files of endpoints: what is told of them, whatever happens to them.

mod told;

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use told::{Seen, name};
use windlassd::lookup::{LookupConf, LookupKind, Lookups, Pace, PluginUser, Started};

const ONE: &str = r#"{"2:0:0:0:0:1":{"ip":"192.0.2.1"}}"#;
const TWO: &str = r#"{"2:0:0:0:0:1":{"ip":"192.0.2.9"},
"2:0:0:0:0:2":{"ip":"192.0.2.2","arp":"10.0.0.2"}}"#;

fn conf(path: &Path, vnis: &[u32]) -> LookupConf {
    LookupConf {
        overlay: name("ov0"),
        vnis: vnis.iter().map(|vni| (0, *vni)).collect(),
        kind: LookupKind::Files {
            config: path.to_owned(),
        },
    }
}

struct Lab {
    lookups: Lookups,
    seen: Seen,
    directory: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let (lookups, seen) = told::lookups(Pace::of(PluginUser::Missing));
        Self {
            lookups,
            seen,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("hosts.json")
    }

    fn start(&self, path: &Path) -> Started {
        self.lookups.start(conf(path, &[23]))
    }

    fn started(text: &str) -> Self {
        let lab = Self::new();
        fs::write(lab.path(), text).expect("written");
        lab.start(&lab.path()).wait(told::PATIENCE).expect("good");
        lab
    }

    /// Starts with a file that is bad, and gives the reason.
    fn refused(&self, path: &Path) -> String {
        let error = self.start(path).wait(told::PATIENCE).expect_err("bad");
        let is_told = |seen: &told::State| seen.degraded.as_ref() == Some(&error.0);
        self.seen.until(&error.0, is_told);
        error.0
    }
}

/// A file that is replaced, as an editor does it or in place, is told as its difference; a bad one changes nothing and is told in words.
#[test]
fn replaced_files_are_told_as_their_difference() {
    let lab = Lab::started(ONE);
    assert_eq!(lab.seen.targets(), ["23 02:00:00:00:00:01 192.0.2.1:4789"]);

    let new = lab.directory.path().join("new");
    fs::write(&new, TWO).expect("written");
    fs::rename(&new, lab.path()).expect("renamed");
    let two = [
        "23 02:00:00:00:00:01 192.0.2.9:4789",
        "23 02:00:00:00:00:02 192.0.2.2:4789",
    ];
    lab.seen.until("the new file", |seen| seen.targets() == two);

    let told = lab.seen.changes();
    fs::write(lab.path(), "{\n\"2:0:0:0:0:1\":{\"ip\":\"192.0.2\"}}").expect("written");
    lab.seen.until("degraded", |seen| {
        let reason = seen.degraded.clone().unwrap_or_default();
        reason.contains("line 2") && reason.contains("\"192.0.2\" is not an IP address")
    });
    fs::write(lab.path(), "").expect("written");
    lab.seen.until("empty", |seen| {
        seen.degraded.as_ref().is_some_and(|r| r.contains("empty"))
    });
    fs::remove_file(lab.path()).expect("removed");
    lab.seen.until("gone", |seen| {
        seen.degraded
            .as_ref()
            .is_some_and(|r| r.contains("no such file"))
    });
    assert_eq!(
        (lab.seen.targets(), lab.seen.changes()),
        (two.map(String::from).to_vec(), told)
    );

    fs::write(lab.path(), format!("{TWO} ")).expect("written");
    lab.seen.until("restored", |seen| seen.degraded.is_none());
    assert_eq!(lab.seen.changes(), told, "nothing differs");
    fs::write(lab.path(), "{}").expect("written");
    lab.seen
        .until("an empty object", |seen| seen.targets().is_empty());
}

/// A symbolic link beside the file that is turned to another directory is a change of the file, and so is a directory that comes back.
#[test]
fn links_and_directories_are_followed() {
    let lab = Lab::new();
    let base = lab.directory.path();
    for (directory, text) in [("a", ONE), ("b", TWO)] {
        fs::create_dir(base.join(directory)).expect("made");
        fs::write(base.join(directory).join("hosts.json"), text).expect("written");
    }
    symlink("a", base.join("data")).expect("linked");
    symlink("data/hosts.json", lab.path()).expect("linked");
    lab.start(&lab.path()).wait(told::PATIENCE).expect("good");
    symlink("b", base.join("next")).expect("linked");
    fs::rename(base.join("next"), base.join("data")).expect("turned");
    lab.seen
        .until("the other", |seen| seen.targets().len() == 2);

    let moved = base.join("b/hosts.json");
    lab.start(&moved).wait(told::PATIENCE).expect("good");
    fs::rename(base.join("b"), base.join("c")).expect("moved");
    lab.seen.until("gone", |seen| seen.degraded.is_some());
    assert_eq!(lab.seen.targets().len(), 2);
    fs::rename(base.join("a"), base.join("b")).expect("moved");
    lab.seen.until("the other's", |seen| {
        seen.targets().len() == 1 && seen.degraded.is_none()
    });
    fs::write(&moved, TWO).expect("written");
    lab.seen.until("watched", |seen| seen.targets().len() == 2);
}

/// What is no file with endpoints is refused at once, in words, and is not opened.
#[test]
fn odd_files_are_refused() {
    let lab = Lab::new();
    let path = lab.path();
    assert!(lab.refused(&path).contains("no such file"));
    assert!(lab.refused(&path.join("under")).contains("no such file"));
    fs::write(&path, "").expect("written");
    assert!(lab.refused(&path).contains("the file is empty"));
    assert!(lab.refused(&path.join("under")).contains("Not a directory"));
    assert!(
        lab.refused(lab.directory.path())
            .contains("it is not a file")
    );
    assert!(
        lab.refused(Path::new("/dev/zero"))
            .contains("it is not a file")
    );
    let pipe = lab.directory.path().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    assert!(lab.refused(&pipe).contains("it is not a file"));
    symlink("turn", lab.directory.path().join("turn")).expect("linked");
    assert!(
        lab.refused(&lab.directory.path().join("turn"))
            .contains("symbolic links")
    );
    let large = fs::File::create(&path).expect("made");
    large.set_len(600 << 20).expect("a hole");
    assert!(lab.refused(&path).contains("more than 67108864 bytes"));
}

/// A file that grows under its reader is read once it rests.
#[test]
fn a_file_that_is_written_is_read_when_it_rests() {
    let lab = Lab::started(ONE);
    let (path, text) = (lab.path(), TWO.to_owned());
    let writer = std::thread::spawn(move || {
        for turn in 0..300 {
            let end = turn * 7 % text.len();
            fs::write(&path, &text[..end]).expect("written");
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::write(&path, &text).expect("written");
    });
    writer.join().expect("written");
    lab.seen.until("the whole file", |seen| {
        seen.targets().len() == 2 && seen.degraded.is_none()
    });
}

/// Each VNI of an overlay has the endpoints of its file; one that is taken from the overlay takes its own with it. What stops is told no more.
#[test]
fn vnis_come_and_go() {
    let lab = Lab::started(ONE);
    let set = |vnis: &[u32]| {
        lab.lookups
            .set(conf(&lab.path(), vnis))
            .wait(told::PATIENCE)
    };
    set(&[24, 25]).expect("good");
    let two = [
        "24 02:00:00:00:00:01 192.0.2.1:4789",
        "25 02:00:00:00:00:01 192.0.2.1:4789",
    ];
    assert_eq!(lab.seen.targets(), two);
    lab.lookups.reload(&name("ov0"));
    lab.lookups.stop(&name("ov0"));
    let other = LookupConf {
        overlay: name("ov1"),
        ..conf(&lab.path(), &[7])
    };
    lab.lookups.start(other).wait(told::PATIENCE).expect("good");
    fs::write(lab.path(), TWO).expect("written");
    lab.seen.until("the other one", |seen| {
        seen.targets()
            .iter()
            .filter(|line| line.starts_with("7 "))
            .count()
            == 2
    });
    assert_eq!(
        lab.seen.targets()[2..],
        two,
        "nothing was told of the one that stopped"
    );
}

/// A mount whose server never answers.
struct Silent(
    tempfile::TempDir,
    /// Kept open: without a server a mount answers.
    #[expect(dead_code, reason = "held")]
    fs::File,
);

impl Silent {
    fn mount() -> std::io::Result<Self> {
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")?;
        let at = tempfile::tempdir()?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = CString::new(options)?;
        mount(
            "windlass-test",
            at.path(),
            "fuse",
            MountFlags::empty(),
            options.as_c_str(),
        )?;
        Ok(Self(at, device))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // By force: whoever waits for an answer is let go.
        let _ = unmount(self.0.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

/// A file system that does not answer keeps its own overlay waiting, and no other.
#[test]
fn a_silent_file_system_keeps_nobody_else() {
    const NAME: &str = "a_silent_file_system_keeps_nobody_else";
    let silent = match Silent::mount() {
        Ok(silent) => silent,
        Err(error) => {
            println!("skipped: {NAME}: no mount of FUSE here: {error}");
            return;
        }
    };
    let lab = Lab::new();
    fs::write(lab.path(), ONE).expect("written");
    let hangs = lab.start(&silent.0.path().join("hosts.json"));
    let other = LookupConf {
        overlay: name("ov1"),
        ..conf(&lab.path(), &[7])
    };
    lab.lookups.start(other).wait(told::PATIENCE).expect("good");
    let error = hangs.wait(told::PATIENCE).expect_err("silence").0;
    assert!(
        error.ends_with("its file system does not answer"),
        "{error}"
    );
    lab.lookups.stop(&name("ov0"));
    fs::write(lab.path(), TWO).expect("written");
    lab.seen
        .until("the other one", |seen| seen.targets().len() == 2);
    drop(silent);
}
