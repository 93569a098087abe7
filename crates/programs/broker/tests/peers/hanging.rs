//! A file system with one file, `file`, whose close is never answered (fuse(4), linux/fuse.h).

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;
/// Number of the root directory; the file is the next one.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// For ever, in seconds.
const VALID_S: u64 = 1 << 20;

/// Mounted as long as it lives; then every hanging close ends.
pub struct Hanging {
    at: PathBuf,
    closes: Arc<AtomicUsize>,
}

impl Hanging {
    /// `None` where the system does not allow it.
    pub fn mount(at: &Path) -> Option<Self> {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .ok()?;
        let path = CString::new(at.as_os_str().as_bytes()).ok()?;
        let options = format!(
            "fd={},rootmode=40755,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let options = CString::new(options).ok()?;
        // SAFETY: C strings that live.
        let done = unsafe {
            libc::mount(
                c"hanging".as_ptr(),
                path.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            )
        };
        if done != 0 {
            return None;
        }
        let closes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&closes);
        std::thread::spawn(move || serve(device, &count));
        Some(Self {
            at: at.to_owned(),
            closes,
        })
    }

    /// Closes that wait.
    pub fn closes(&self) -> usize {
        self.closes.load(Ordering::Relaxed)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let path = CString::new(self.at.as_os_str().as_bytes()).expect("no zero");
        // SAFETY: a C string that lives. The force has the waiting requests fail.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
}

/// Answers until the file system is unmounted.
fn serve(mut device: File, closes: &AtomicUsize) {
    let mut request = vec![0; 1 << 17];
    while let Ok(bytes) = device.read(&mut request) {
        let word = |at: usize| {
            let word = request.get(at..at + 8).unwrap_or(&[0; 8]);
            u64::from_ne_bytes(word.try_into().expect("8 bytes"))
        };
        let (kind, unique, node) = (word(0) >> 32, word(8), word(16));
        let answer = match kind as u32 {
            _ if bytes < 40 => return,
            // Version 7.31, and the sizes that the kernel takes for granted.
            INIT => Some(vec![7 | 31 << 32, 1 << 16, 0, 1 << 16, 0, 0, 0, 0]),
            LOOKUP => Some([&[FILE, 0, VALID_S, VALID_S, 0][..], &attributes(FILE)].concat()),
            GETATTR => Some([&[VALID_S, 0][..], &attributes(node)].concat()),
            OPEN => Some(vec![0, 0]),
            FORGET | BATCH_FORGET => continue,
            FLUSH => {
                closes.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            _ => None,
        };
        let body = answer.as_deref().unwrap_or_default();
        let error = if answer.is_some() { 0 } else { -libc::ENOSYS };
        let length = 16 + body.len() * 8;
        let head = u64::from(error.cast_unsigned()) << 32 | length as u64;
        let words = [head, unique].into_iter().chain(body.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        if device.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// `struct fuse_attr`: number, length, blocks, times, mode and links, owner, device and block size.
fn attributes(node: u64) -> [u64; 11] {
    let mode: u64 = if node == ROOT { 0o40755 } else { 0o100_644 };
    let mut words = [0; 11];
    words[0] = node;
    // Behind three times of 8 bytes and three parts of seconds of 4 bytes.
    words[7] = mode << 32;
    words[8] = 1;
    words[10] = 4_096;
    words
}
