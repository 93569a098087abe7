//! Memory on a file system that answers when it likes.

#![allow(clippy::unwrap_used)]

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use windlass_shm::{MapError, Mapping};

const NAME: &str = "a_silent_file_system_is_refused_at_once";

/// Operations of the FUSE protocol (linux/fuse.h).
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// The file's inode number; the root has 1.
const NODE: u64 = 2;
/// Bytes that the file says it has.
const BYTES: u64 = 1 << 20;

/// A mount with one file, whose server answers what opening needs and nothing else.
struct Mount {
    directory: tempfile::TempDir,
}

impl Mount {
    fn create() -> std::io::Result<Mount> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let directory = tempfile::tempdir()?;
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0\0");
        let options = CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        let flags = MountFlags::empty();
        mount("windlass-test", directory.path(), "fuse", flags, options)?;
        std::thread::spawn(move || serve(device));
        Ok(Mount { directory })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // By force: whoever waits for an answer is let go.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let _ = unmount(self.directory.path(), flags);
    }
}

fn longs<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.map(u64::to_le_bytes).concat()
}

fn ints<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.map(u32::to_le_bytes).concat()
}

/// Attributes of the root or the file (`struct fuse_attr`).
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == NODE { 0o100_600 } else { 0o040_700 };
    let mut out = longs([node, BYTES, BYTES / 512, 0, 0, 0]);
    out.extend(ints([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    out
}

/// Answers until the mount is gone.
fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(got) = device.read(&mut request) {
        assert!(got >= 40, "a whole header");
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let (operation, node) = (word(4), u64::from(word(16)));
        let body = match operation {
            // Version 7.31, and no options.
            INIT => ints([7, 31, 0, 0, 0, 1 << 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            LOOKUP => [longs([NODE, 0, 60, 0, 0]), attributes(NODE)].concat(),
            // Valid for no time at all: the next question is asked again.
            GETATTR if node != NODE => [longs([0, 0]), attributes(node)].concat(),
            OPEN => longs([0, 0]),
            _ => continue,
        };
        let mut answer = ints([16 + body.len() as u32, 0]);
        answer.extend_from_slice(&request[8..16]);
        answer.extend(body);
        let _ = device.write_all(&answer);
    }
}

fn answer_to(path: &Path) -> Option<Result<(), MapError>> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(Mapping::foreign(file.as_fd(), BYTES).map(|_| ()));
    });
    told.recv_timeout(Duration::from_secs(5)).ok()
}

/// A file whose server never says what it is (`fstat` and `fstatfs` of it would wait for ever) is refused at once.
#[test]
fn a_silent_file_system_is_refused_at_once() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {NAME}: needs root to mount");
        return;
    }
    let mount = match Mount::create() {
        Ok(mount) => mount,
        Err(error) => {
            println!("skipped: {NAME}: no FUSE here: {error}");
            return;
        }
    };
    let answer = answer_to(&mount.directory.path().join("memory"));
    assert!(
        matches!(answer, Some(Err(MapError::FileSystem))),
        "{answer:?}"
    );
}
