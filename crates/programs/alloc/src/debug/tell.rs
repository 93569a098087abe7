//! What an error says: the buffer, its cache, its size, and its last transaction.

use core::ffi::CStr;
use core::fmt;
use core::mem::MaybeUninit;

use windlass_memory::options::Key;
use windlass_slab::size;

use crate::options;
use crate::report::{self, say};
use crate::umem;

use super::STATE;
use super::log::Event;
use super::record::{LIVE, Record};
use super::stack::{self, FRAMES, Transaction};

/// Earlier transactions of a buffer, and failures, that are printed.
const EVENTS_MAX: usize = 4;
/// Bytes of a buffer that are printed.
const SHOWN: usize = 32;

/// Where something was written that should not have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before a buffer.
    Before,
    /// Behind it.
    Behind,
    /// Into it, after it was freed.
    After,
}

/// A call of the program's.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Whose objects it takes: 1 + the place of an object cache; 0: malloc's.
    pub owner: u32,
}

impl Call {
    /// One of malloc's family.
    pub const fn of_malloc(name: &'static str) -> Self {
        Self { name, owner: 0 }
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It is free already.
    Twice,
    /// It is inside a buffer.
    Interior,
    /// It is an object of another cache, or of none.
    Stranger,
    /// It is an object of a cache, and malloc's call frees it.
    Cached,
    /// It was allocated with another size than this one.
    Size(usize),
    /// There is something where nothing may be.
    Written(Place),
}

impl Wrong {
    fn sentence(self, record: &Record) -> &'static str {
        match self {
            Self::Twice => "already freed",
            Self::Interior if record.state == LIVE => "not the start of an allocation",
            Self::Interior => "not the start of an allocation, which is freed, too",
            Self::Stranger => "not an object of this cache",
            Self::Cached => "an object of a cache, which umem_cache_free frees",
            Self::Size(_) => "allocated with another size",
            Self::Written(Place::Before) => "written before the buffer",
            Self::Written(Place::Behind) => "written behind the buffer",
            Self::Written(Place::After) => "written after the buffer was freed",
        }
    }
}

/// Prints an error; it ends the process, or does not with `noabort`.
pub fn error(call: Call, address: usize, wrong: Wrong, record: &Record) {
    let sentence = wrong.sentence(record);
    let name = call.name;
    match wrong {
        Wrong::Written(_) => say(format_args!("{address:#x}: {sentence}, found at {name}")),
        _ => match umem::name_of(call.owner) {
            Some(cache) => say(format_args!("{name}({cache}, {address:#x}): {sentence}")),
            None => say(format_args!("{name}({address:#x}): {sentence}")),
        },
    }
    buffer(record);
    if let Wrong::Size(bytes) = wrong {
        say(format_args!("  freed as {bytes} bytes"));
    }
    let object = record.object;
    let from = address.wrapping_sub(object) as isize;
    if from != 0 {
        say(format_args!("  {address:#x} is at byte {from} of it"));
    }
    transaction("last transaction: ", &record.last);
    kept(object);
    if options::get(Key::Verbose) == 1 {
        events("earlier: ", object, record.last.time_ns);
    }
    now();
    events("", 0, u64::MAX);
    finish();
}

/// The buffer's line.
fn buffer(record: &Record) {
    let (object, bytes) = (record.object, record.size);
    match (umem::name_of(record.link), usize::from(record.class)) {
        (Some(cache), _) => say(format_args!(
            "  buffer {object:#x}, {bytes} bytes, cache {cache}"
        )),
        (None, 0) => say(format_args!(
            "  buffer {object:#x}, {bytes} bytes, pages of its own"
        )),
        (None, class) => say(format_args!(
            "  buffer {object:#x}, {bytes} bytes, cache wl_alloc_{}",
            size(class)
        )),
    }
}

/// The first buffers of a cache that the program has.
pub fn live(owner: u32) {
    let mut from = 0;
    for _ in 0..EVENTS_MAX {
        let found = STATE.lock().records.next_live(owner, from);
        let Some((index, record)) = found else {
            break;
        };
        buffer(&record);
        transaction("last transaction: ", &record.last);
        from = index + 1;
    }
}

/// A call came from a signal handler.
pub fn signal(call: &str, is_nested: bool) {
    say(format_args!("{call}: called from a signal handler"));
    now();
    if is_nested {
        report::abort();
    }
    finish();
}

/// Prints who calls.
pub fn now() {
    transaction("now: ", &Transaction::with(0, FRAMES));
}

fn finish() {
    if options::get(Key::Noabort) == 0 {
        report::abort();
    }
}

fn transaction(what: &str, done: &Transaction) {
    let kind = match done.kind {
        stack::ALLOCATED => "allocated, ",
        stack::FREED => "freed, ",
        stack::FAILED => "failed, ",
        _ => "",
    };
    if done.time_ns == 0 {
        if !kind.is_empty() {
            let kind = kind.trim_end_matches(", ");
            say(format_args!("  {what}{kind} (audit says by whom and when)"));
        }
        return;
    }
    let (seconds, rest) = (done.time_ns / 1_000_000_000, done.time_ns % 1_000_000_000);
    let thread = done.thread;
    say(format_args!(
        "  {what}{kind}thread {thread}, at {seconds}.{rest:09} s"
    ));
    for &frame in done.frames() {
        say(format_args!("    {}", Frame(frame)));
    }
}

/// Copies what the log has, so that nothing is printed under the lock.
fn events(what: &str, object: usize, before_ns: u64) {
    let mut found: [Option<Event>; EVENTS_MAX] = [const { None }; EVENTS_MAX];
    let state = STATE.lock();
    let log = state.logs.events(object);
    let others = log.filter(|event| event.what.time_ns < before_ns);
    for (place, event) in found.iter_mut().zip(others) {
        *place = Some(event.clone());
    }
    drop(state);
    for event in found.iter().flatten() {
        if object == 0 {
            say(format_args!("  an allocation of {} bytes:", event.size));
        }
        transaction(what, &event.what);
    }
}

/// What the log has of a buffer's contents.
fn kept(object: usize) {
    let state = STATE.lock();
    let contents = state.logs.last_contents(object).cloned();
    drop(state);
    let Some(contents) = contents else {
        return;
    };
    let shown = &contents.bytes[..contents.len.min(SHOWN)];
    say(format_args!("  contents when freed: {}", Bytes(shown)));
}

struct Bytes<'a>(&'a [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// An address of code: module and offset, and the function if the module says its name.
struct Frame(usize);

impl fmt::Display for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: looks an address up; it neither allocates nor keeps anything.
        let is_found = unsafe { libc::dladdr(self.0 as *const _, found.as_mut_ptr()) } != 0;
        // SAFETY: all zeros is a value of it.
        let found = unsafe { found.assume_init() };
        if !is_found || found.dli_fname.is_null() {
            return write!(out, "{:#x}", self.0);
        }
        // SAFETY: a string of the loader's.
        let path = unsafe { CStr::from_ptr(found.dli_fname) };
        let path = path.to_str().unwrap_or("?");
        let name = path.rsplit('/').next().unwrap_or(path);
        write!(out, "{name}+{:#x}", self.0 - found.dli_fbase as usize)?;
        if found.dli_sname.is_null() {
            return Ok(());
        }
        // SAFETY: a string of the module's.
        let symbol = unsafe { CStr::from_ptr(found.dli_sname) };
        let symbol = symbol.to_str().unwrap_or("?");
        write!(out, " {symbol}+{:#x}", self.0 - found.dli_saddr as usize)
    }
}
