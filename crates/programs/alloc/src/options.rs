//! The options: words of the environment, read once.
//!
//! They are read by the first thread that wants a cache, or by the library's constructor. The loader allocates earlier, when there is no
//! `environ` yet: until then no thread gets a cache, and no buffer a record.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::*};

use windlass_memory::options::{Group, Key, OPTIONS, Row, VARIABLES, words};

use crate::report;

const UNREAD: u8 = 0;
const READING: u8 = 1;
const NORMAL: u8 = 2;
const DEBUGGING: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static VALUES: [AtomicUsize; OPTIONS.len()] = {
    let mut values = [const { AtomicUsize::new(0) }; OPTIONS.len()];
    let mut at = 0;
    while at < OPTIONS.len() {
        values[at] = AtomicUsize::new(OPTIONS[at].initial);
        at += 1;
    }
    values
};

unsafe extern "C" {
    /// The C library's; null before its constructor has run.
    static environ: AtomicPtr<*const c_char>;
}

/// The value of an option.
pub fn get(key: Key) -> usize {
    VALUES[key as usize].load(Relaxed)
}

/// The debugging words in force: bit `n` is row `n` of the table.
pub fn debugging() -> u64 {
    let in_force = |row: &&Row| row.group != Group::Tuning && get(row.key) != row.initial;
    let bits = OPTIONS.iter().filter(in_force);
    bits.fold(0, |bits, row| bits | 1 << row.key as u8)
}

/// Whether a debugging word was named.
#[inline(always)]
pub fn is_debugging() -> bool {
    STATE.load(Acquire) == DEBUGGING
}

/// Reads the options if there is an environment and nobody has read it. Whether they are read.
#[cold]
pub fn read() -> bool {
    // SAFETY: a pointer's word.
    let first = unsafe { environ.load(Relaxed) };
    !first.is_null() && read_from(first)
}

/// Reads the options; without an environment each has its default. For the constructor.
pub fn read_anyway() {
    if !read() {
        let _ = STATE.compare_exchange(UNREAD, NORMAL, Release, Relaxed);
    }
}

/// Whether a thread may have a cache.
pub fn allow_caches() -> bool {
    let is_read = STATE.load(Acquire) >= NORMAL || read();
    is_read && STATE.load(Acquire) == NORMAL && get(Key::PerthreadCache) > 0
}

fn read_from(environment: *const *const c_char) -> bool {
    if STATE
        .compare_exchange(UNREAD, READING, Acquire, Acquire)
        .is_err()
    {
        return STATE.load(Acquire) >= NORMAL;
    }
    // SAFETY: asks for a number.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let mut is_debugging = false;
    for variable in VARIABLES {
        if let Some(text) = find(environment, variable)
            && !is_secure
        {
            is_debugging |= apply(variable, text);
        }
    }
    let state = if is_debugging { DEBUGGING } else { NORMAL };
    STATE.store(state, Release);
    true
}

/// Sets what a variable says. Whether it has a debugging word.
fn apply(variable: &str, text: &[u8]) -> bool {
    let mut is_debugging = false;
    let set = |key: Key, value: usize| VALUES[key as usize].store(value, Relaxed);
    let good = |key: Key, value: usize| {
        set(key, value);
        is_debugging |= OPTIONS[key as usize].group != Group::Tuning && value != 0;
        let default = |key: Key| set(key, OPTIONS[key as usize].bare.unwrap_or(1));
        match key {
            Key::Default if value == 1 => {
                let words = [Key::Audit, Key::Contents, Key::Guards, Key::ContentsLog];
                words.into_iter().for_each(default);
            }
            Key::Audit if value > 0 => default(Key::Guards),
            Key::Contents if get(Key::ContentsLog) == 0 => default(Key::ContentsLog),
            Key::Lite if value == 1 => {
                default(Key::Guards);
                set(Key::Maxverify, LITE);
            }
            // What is exact needs no magazines, and without them it is.
            Key::Nomagazines | Key::Check if value == 1 => set(Key::PerthreadCache, 0),
            _ => {}
        }
    };
    words(variable, text, good, |word| {
        let word = core::str::from_utf8(word).unwrap_or("?");
        report::say(format_args!("{variable}: unknown word \"{word}\""));
    });
    is_debugging
}

/// Bytes that `lite` fills and verifies.
const LITE: usize = 8;

/// The value of a variable.
fn find(environment: *const *const c_char, name: &str) -> Option<&'static [u8]> {
    let mut at = environment;
    loop {
        // SAFETY: the environment ends with a null.
        let line = unsafe { *at };
        if line.is_null() {
            return None;
        }
        // SAFETY: a string of the environment; it stays as it is while it is read.
        let line = unsafe { CStr::from_ptr(line) }.to_bytes();
        if let Some(rest) = line.strip_prefix(name.as_bytes())
            && let Some(value) = rest.strip_prefix(b"=")
        {
            return Some(value);
        }
        at = at.wrapping_add(1);
    }
}
