//! The status file: what the slow paths tell a reader outside the process.
//!
//! # Model
//! [`start`] makes the file before the program's constructors, maps it and closes its descriptor. A slow path stores to the rows that it changed
//! ([`windlass_memory`]), under the lock that it holds anyway. Without a file nothing is stored.
//!
//! # Ownership and lifetime
//! The mapping is not inherited by fork, and [`Page`] is zeros in the child, whatever made it: the child never writes the parent's file. Its next slow
//! path makes one of its own ([`renew`]) and tells everything.
//!
//! # What can be lost and what cannot
//! A page of the file is allocated before its first store (MADV_POPULATE_WRITE). Where the file system has no room, private memory takes the page's place: a store
//! never ends in SIGBUS.

use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use windlass_memory::options::Key;
use windlass_memory::{
    BASES, DIRECTORY, EVENT, EventRow, FILE_LEN, HEADER, Header, HeaderRow, MAGIC, Table, VERSION,
    What,
};
use windlass_slab::{SPAN, UNIT};

use crate::cache;
use crate::heap;
use crate::lock::Lock;
use crate::options;
use crate::report::Line;
use crate::sample;
use crate::sys;
use crate::umem;

/// A page of the file system; on larger ones more than is needed is allocated.
const PAGE: usize = 4096;
const PAGES: usize = FILE_LEN / PAGE;
/// Threads that have a row; the last one is everybody else's.
const THREADS: usize = windlass_memory::THREAD.rows - 1;

/// Bytes of names that are looked at in a go when a file is made, and how often: some 1,300 names.
const ENTRIES_LEN: usize = 4096;
const SWEEPS: usize = 16;

/// No file yet.
const NONE: u32 = 0;
const BEING_MADE: u32 = 1;
const READY: u32 = 2;
/// There will be none.
const REFUSED: u32 = 3;

/// What belongs to one process's file. In private memory that reads as zeros after a fork.
struct Page {
    state: AtomicU32,
    /// Held for the first store to a page.
    touching: Lock<()>,
    start: AtomicUsize,
    epoch: AtomicU64,
    events: AtomicU64,
    /// Pages that may be stored to, a bit each.
    touched: [AtomicU64; PAGES.div_ceil(64)],
    /// Thread rows that are taken, a bit each.
    threads: [AtomicU64; THREADS / 64],
}

static PAGE_AT: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// The absolute path of the file, as long as it is this process's.
static PATH: Lock<Path> = Lock::new(Path {
    base: [const { Line::new() }; 3],
    file: Line::new(),
});

struct Path {
    /// Directories, in the order in which they are tried.
    base: [Line; 1 + BASES.len()],
    file: Line,
}

fn page() -> Option<&'static Page> {
    // SAFETY: null, or a mapping that stays.
    unsafe { PAGE_AT.load(Acquire).as_ref() }
}

/// The file of this process, if there is one.
#[derive(Clone, Copy)]
pub struct File(&'static Page);

/// See [`File`].
pub fn file() -> Option<File> {
    let page = page()?;
    (page.state.load(Acquire) == READY).then_some(File(page))
}

impl File {
    /// A row. `None`: there is none of this number.
    pub fn row<T>(&self, table: &Table, number: usize) -> Option<&'static T> {
        let offset = table.row(number)?;
        debug_assert_eq!(table.stride, size_of::<T>());
        (offset / PAGE..=(offset + size_of::<T>() - 1) / PAGE).for_each(|page| self.touch(page));
        let row = (self.0.start.load(Relaxed) + offset) as *const T;
        // SAFETY: a row of the mapping, which stays, on pages that are there; it consists of atomic words.
        Some(unsafe { &*row })
    }

    /// When it was made; another file has another number.
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Relaxed)
    }

    fn touch(&self, number: usize) {
        let (word, bit) = (&self.0.touched[number / 64], 1 << (number % 64));
        if word.load(Relaxed) & bit != 0 {
            return;
        }
        let _touching = self.0.touching.lock();
        if word.load(Acquire) & bit == 0 {
            let page = self.0.start.load(Relaxed) + number * PAGE;
            if !sys::populate(page, PAGE) {
                sys::replace(page, PAGE);
            }
            word.fetch_or(bit, Release);
        }
    }

    /// Takes a free row of the table of threads; the last row if there is none.
    pub fn take_thread(&self) -> usize {
        for (at, word) in self.0.threads.iter().enumerate() {
            let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
            if let Ok(taken) = word.fetch_update(Relaxed, Relaxed, free) {
                return at * 64 + taken.trailing_ones() as usize;
            }
        }
        THREADS
    }

    /// Whether a row is one thread's alone.
    pub fn is_own(row: usize) -> bool {
        row < THREADS
    }

    /// Ends [`File::take_thread`].
    pub fn release_thread(&self, row: usize) {
        if let Some(word) = self.0.threads.get(row / 64) {
            word.fetch_and(!(1 << (row % 64)), Relaxed);
        }
    }
}

/// A row of the file, if there is one.
pub fn row<T>(table: &Table, number: usize) -> Option<&'static T> {
    file()?.row(table, number)
}

/// Notes an event.
pub fn event(what: What, first: usize, second: usize) {
    let Some(file) = file() else {
        return;
    };
    let number = file.0.events.fetch_add(1, Relaxed);
    let Some(row) = file.row::<EventRow>(&EVENT, number as usize % EVENT.rows) else {
        return;
    };
    row.set(&windlass_memory::Event {
        number: number + 1,
        time: sys::coarse_time(),
        what: what as u64,
        first: first as u64,
        second: second as u64,
        tid: sys::thread_id(),
    });
}

/// Makes the first file. `environment` is the program's.
pub fn start(environment: *const *const c_char) {
    if sys::is_privileged() {
        return;
    }
    let Some(at) = sys::map_wiped(size_of::<Page>()) else {
        return;
    };
    {
        let mut path = PATH.lock();
        if let Some(runtime) = sys::variable(environment, c"XDG_RUNTIME_DIR")
            && runtime.to_bytes().starts_with(b"/")
        {
            write(&mut path.base[0], runtime, "/windlass");
        }
        for (line, base) in path.base[1..].iter_mut().zip(BASES) {
            // A line takes what fits: a number of 32 bits does.
            let _ = write!(line, "{base}{}\0", sys::user());
        }
    }
    PAGE_AT.store(at as *mut Page, Release);
    renew();
}

fn write(line: &mut Line, directory: &CStr, name: &str) {
    let whole = line.extend(directory.to_bytes()) && line.extend(name.as_bytes());
    if !(whole && line.extend(b"\0")) {
        line.clear();
    }
}

/// Makes the file if this process has none: the first one, or that of a fork's child. No lock is held.
#[inline]
pub fn renew() {
    if page().is_some_and(|page| page.state.load(Relaxed) == NONE) {
        make();
    }
}

#[cold]
#[inline(never)]
fn make() {
    let Some(page) = page() else {
        return;
    };
    let claim = page
        .state
        .compare_exchange(NONE, BEING_MADE, Acquire, Relaxed);
    if claim.is_err() {
        return;
    }
    let Some((start, identity)) = create() else {
        page.state.store(REFUSED, Relaxed);
        return;
    };
    page.start.store(start, Relaxed);
    page.epoch.store(identity.epoch, Relaxed);
    for number in 0..identity.touched {
        page.touched[number / 64].fetch_or(1 << (number % 64), Relaxed);
    }
    page.state.store(READY, Release);
    if let Some(row) = File(page).row::<HeaderRow>(&HEADER, 0) {
        row.set(&identity.header());
    }
    event(What::Made, identity.epoch as usize, 0);
    heap::show_all();
    umem::show_all();
    cache::show_all();
    sample::show_all();
}

/// Who this process is.
struct Identity {
    pid: u64,
    start: u64,
    epoch: u64,
    /// Pages that are allocated already.
    touched: usize,
}

impl Identity {
    fn header(&self) -> Header {
        let option = |key| options::get(key) as u64;
        Header {
            magic: MAGIC,
            version: VERSION,
            len: FILE_LEN as u64,
            pid: self.pid,
            start: self.start,
            epoch: self.epoch,
            uid: sys::user().into(),
            unit: UNIT as u64,
            span: SPAN as u64,
            sample_mean: option(Key::Sample),
            thread_cap: option(Key::PerthreadCache),
            keep_share: option(Key::Keep),
            pages: option(Key::Pages),
            debug: options::debugging(),
        }
    }
}

/// Creates and maps the file.
fn create() -> Option<(usize, Identity)> {
    if !sys::may_write(FILE_LEN) {
        // The kernel would answer with a signal.
        return None;
    }
    let (pid, start) = sys::own_start().unwrap_or((sys::process_id(), 0));
    let mut path = PATH.lock();
    let mut name = Line::new();
    // As above.
    let _ = write!(name, "{pid}.{start}\0");
    let Path { base, file } = &mut *path;
    base.iter().find_map(|base| {
        let directory = Directory::open(base.text()?)?;
        directory.sweep();
        let descriptor = directory.create(name.text()?)?;
        let (mapped, touched) = map(descriptor);
        sys::close(descriptor);
        let Some(mapped) = mapped else {
            sys::unlink_at(directory.0, name.text()?);
            return None;
        };
        file.clear();
        let directory = DIRECTORY.as_bytes();
        let parts = [base.bytes(), b"/", directory, b"/", name.bytes(), b"\0"];
        if !parts.into_iter().all(|part| file.extend(part)) {
            file.clear();
        }
        let epoch = sys::boot_time();
        let identity = Identity {
            pid,
            start,
            epoch,
            touched,
        };
        Some((mapped, identity))
    })
}

/// Maps the file, for this process alone, and allocates what every process writes to.
fn map(descriptor: i32) -> (Option<usize>, usize) {
    // Rows of the process, of the classes and of the first threads.
    let first = windlass_memory::THREAD.offset + PAGE;
    if !sys::is_safe_to_map(descriptor) || !sys::set_len(descriptor, FILE_LEN) {
        return (None, 0);
    }
    let Some(start) = sys::map_file(descriptor, FILE_LEN) else {
        return (None, 0);
    };
    if !sys::keep_from_children(start, FILE_LEN) || !sys::populate(start, first) {
        sys::unmap(start, FILE_LEN);
        return (None, 0);
    }
    (Some(start), first / PAGE)
}

/// The directory of files: this user's, and nobody else's.
struct Directory(i32);

impl Directory {
    fn open(base: &CStr) -> Option<Self> {
        let outer = Self::enter(libc::AT_FDCWD, base, 0o022)?;
        Self::enter(outer.0, c"memory", 0o077)
    }

    /// Opens a directory, which is made if it is not there. `None`: it is a link, another user's, or others have some of the rights of `closed`.
    fn enter(at: i32, name: &CStr, closed: u32) -> Option<Self> {
        let opened = sys::open_directory(at, name).or_else(|| {
            sys::make_directory(at, name);
            sys::open_directory(at, name)
        });
        let directory = Self(opened?);
        let (owner, mode) = sys::owner_and_mode(directory.0)?;
        (owner == sys::user() && mode & closed == 0).then_some(directory)
    }

    /// Creates a file. One of that name is of what this process was before exec. It is locked as long as it is mapped: that is how others see that it is used.
    fn create(&self, name: &CStr) -> Option<i32> {
        let created = sys::create_file(self.0, name).or_else(|| {
            sys::unlink_at(self.0, name);
            sys::create_file(self.0, name)
        })?;
        sys::try_lock(created);
        Some(created)
    }

    /// Removes files of processes that ended without removing theirs (`_exit`, a signal): programs that make many such children would fill the
    /// file system. A process of another PID namespace seems to be gone, and has its file locked.
    fn sweep(&self) {
        let mut space = Entries([0; ENTRIES_LEN]);
        for _ in 0..SWEEPS {
            let entries = sys::read_directory(self.0, &mut space.0);
            if entries.is_empty() {
                return;
            }
            each_name(entries, |name| {
                if pid_of(name).is_some_and(sys::is_gone)
                    && let Some(file) = sys::open_file(self.0, name)
                {
                    if sys::try_lock(file) {
                        sys::unlink_at(self.0, name);
                    }
                    sys::close(file);
                }
            });
        }
    }
}

/// Aligned as the kernel's entries are.
#[repr(align(8))]
struct Entries([u8; ENTRIES_LEN]);

/// Calls `visit` for each name of what getdents64(2) returned.
fn each_name(mut entries: &[u8], mut visit: impl FnMut(&CStr)) {
    // Inode, offset, the entry's length, its type, and the name.
    while let Some(len) = entries.get(16..18) {
        let len = usize::from(u16::from_ne_bytes([len[0], len[1]]));
        let Some((entry, rest)) = entries.split_at_checked(len.max(19)) else {
            return;
        };
        if let Ok(name) = CStr::from_bytes_until_nul(&entry[19..]) {
            visit(name);
        }
        entries = rest;
    }
}

/// The process that a file is of.
fn pid_of(name: &CStr) -> Option<usize> {
    let (pid, _) = name.to_str().ok()?.split_once('.')?;
    pid.parse().ok().filter(|&pid| pid > 0)
}

impl Drop for Directory {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// The process ends: its file goes.
pub fn end() {
    if file().is_some()
        && let Some(path) = PATH.lock().file.text()
    {
        sys::unlink_at(libc::AT_FDCWD, path);
    }
}

/// Takes the lock, before a fork.
pub fn hold() {
    PATH.hold();
}

/// Ends [`hold`].
pub fn release() {
    PATH.release();
}
