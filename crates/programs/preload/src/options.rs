//! The options of the library: environment variables, read once when it is loaded.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A number in an option.
pub struct Number {
    /// Smallest value; smaller ones are raised.
    pub min: u64,
    /// Largest value; larger ones are lowered.
    pub max: u64,
    value: AtomicU64,
}

/// What an option holds.
pub enum Value {
    /// One or two numbers, separated by a comma.
    Numbers(&'static [Number]),
    /// A path of at most [`PATH_MAX`] bytes; longer ones are ignored.
    Path(&'static [AtomicU8; PATH_MAX]),
}

/// One option.
pub struct Opt {
    /// The environment variable.
    pub name: &'static CStr,
    /// Its value.
    pub value: Value,
}

/// Bytes of a path, with the zero at its end.
pub const PATH_MAX: usize = 512;

const fn number(default: u64, min: u64, max: u64) -> Number {
    Number {
        min,
        max,
        value: AtomicU64::new(default),
    }
}

/// The value of `SPIN` where the user gives none.
const SPIN_UNSAID: u64 = u64::MAX;
/// How long a busy thread spins then, in microseconds.
const SPIN_DEFAULT_US: u64 = 30;

static SPIN: [Number; 1] = [number(SPIN_UNSAID, 0, 1_000_000)];
static SHARE: [Number; 1] = [number(0, 0, 1)];
static UNIX: [Number; 1] = [number(1, 0, 1)];
static SUMMARY: [Number; 1] = [number(0, 0, 1)];
static PROMOTE: [Number; 2] = [number(2, 0, u32::MAX as u64), number(65_536, 0, u64::MAX)];
static REFRESH: [Number; 1] = [number(30_000, 1, 1_000_000)];
static BYPASS: [Number; 2] = [number(0, 0, 1_000), number(1, 0, u64::MAX)];
static RECLAIM: [Number; 2] = [number(0, 0, 1_000), number(1, 0, u64::MAX)];
static NETS: [Number; 1] = [number(1, 0, 1)];
static SOCKETS: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];
static LOG: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];
static COUNTERS: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];

/// All of them.
pub static OPTIONS: [Opt; 12] = [
    // How long a call that waits looks at the ring before it sleeps in the kernel; unset: 30, and only in a thread
    // that waits again within 300 us.
    Opt {
        name: c"WINDLASS_SPIN",
        value: Value::Numbers(&SPIN),
    },
    // Let connections with programs of another user be accelerated, if those ask too.
    Opt {
        name: c"WINDLASS_SHARE",
        value: Value::Numbers(&SHARE),
    },
    // 0: Unix sockets stay on the kernel.
    Opt {
        name: c"WINDLASS_UNIX",
        value: Value::Numbers(&UNIX),
    },
    // 1: write a line about the process's connections to stderr when it ends.
    Opt {
        name: c"WINDLASS_SUMMARY",
        value: Value::Numbers(&SUMMARY),
    },
    // Calls each way, or bytes one way, after which a connection is accelerated.
    Opt {
        name: c"WINDLASS_PROMOTE",
        value: Value::Numbers(&PROMOTE),
    },
    // How often one message of a connection that connection tracking follows goes by the kernel.
    Opt {
        name: c"WINDLASS_REFRESH",
        value: Value::Numbers(&REFRESH),
    },
    // For tests: this share of calls goes straight to the kernel.
    Opt {
        name: c"WINDLASS_BYPASS",
        value: Value::Numbers(&BYPASS),
    },
    // For tests: this share of calls first moves unread bytes back into the kernel.
    Opt {
        name: c"WINDLASS_RECLAIM",
        value: Value::Numbers(&RECLAIM),
    },
    // The broker's socket.
    // For tests: 0: nobody moves unread bytes for a reader that sleeps, so that each lost wake-up is a hang.
    Opt {
        name: c"WINDLASS_NETS",
        value: Value::Numbers(&NETS),
    },
    Opt {
        name: c"WINDLASS_SOCKETS",
        value: Value::Path(&SOCKETS),
    },
    // Append to this file why connections stay on the kernel.
    Opt {
        name: c"WINDLASS_LOG",
        value: Value::Path(&LOG),
    },
    // Append the counters to this file when the process ends, one `name value` a line.
    Opt {
        name: c"WINDLASS_COUNTERS",
        value: Value::Path(&COUNTERS),
    },
];

fn get(number: &Number) -> u64 {
    number.value.load(Ordering::Relaxed)
}

/// How long a call spins, in microseconds.
#[inline]
pub fn spin_us() -> u64 {
    let us = get(&SPIN[0]);
    if us == SPIN_UNSAID {
        SPIN_DEFAULT_US
    } else {
        us
    }
}

/// Whether the user has said so.
#[inline]
pub fn is_spin_given() -> bool {
    get(&SPIN[0]) != SPIN_UNSAID
}

/// Whether other users' programs may share.
pub fn share() -> bool {
    get(&SHARE[0]) != 0
}

/// Whether Unix sockets are joined.
#[inline]
pub fn unix() -> bool {
    get(&UNIX[0]) != 0
}

/// Whether the process says at its end what its connections did.
pub fn summary() -> bool {
    get(&SUMMARY[0]) != 0
}

/// Calls each way, and bytes one way, before a connection is joined.
#[inline]
pub fn promote() -> (u64, u64) {
    (get(&PROMOTE[0]), get(&PROMOTE[1]))
}

/// After how many milliseconds a message of a tracked connection goes by the kernel.
#[inline]
pub fn refresh_ms() -> u64 {
    get(&REFRESH[0])
}

/// For tests: calls in 1000 that go straight to the kernel; seed.
#[inline]
pub fn bypass() -> (u64, u64) {
    (get(&BYPASS[0]), get(&BYPASS[1]))
}

/// For tests: calls in 1000 that reclaim first; seed.
#[inline]
pub fn reclaim() -> (u64, u64) {
    (get(&RECLAIM[0]), get(&RECLAIM[1]))
}

/// Whether a process that sleeps moves what it left in its rings, and has the broker watch them. Off only for tests: every
/// reader then has to be woken by the bytes themselves.
#[inline]
pub fn has_nets() -> bool {
    get(&NETS[0]) != 0
}

/// For tests: whether any call is treated so.
pub fn is_disturbed() -> bool {
    bypass().0 != 0 || reclaim().0 != 0
}

/// The broker's socket, if it was named.
pub fn sockets() -> Option<&'static CStr> {
    path(&SOCKETS)
}

/// Where to log, if anywhere.
pub fn log() -> Option<&'static CStr> {
    path(&LOG)
}

/// Where to write counters, if anywhere.
pub fn counters() -> Option<&'static CStr> {
    path(&COUNTERS)
}

fn path(bytes: &'static [AtomicU8; PATH_MAX]) -> Option<&'static CStr> {
    if bytes[0].load(Ordering::Relaxed) == 0 {
        return None;
    }
    let start: *const c_char = bytes.as_ptr().cast();
    // SAFETY: written once by `read`, which leaves a zero at the end, before anyone else runs.
    Some(unsafe { CStr::from_ptr(start) })
}

/// Reads the environment. Called once, by the constructor; allocates nothing.
pub fn read() {
    for option in &OPTIONS {
        // SAFETY: a C string; no other thread changes the environment while libraries are loaded.
        let text = unsafe { libc::getenv(option.name.as_ptr()) };
        if text.is_null() {
            continue;
        }
        // SAFETY: a C string of the environment.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        match option.value {
            Value::Numbers(numbers) => {
                for (number, part) in numbers.iter().zip(text.split(|byte| *byte == b',')) {
                    if let Some(value) = decimal(part) {
                        number
                            .value
                            .store(value.clamp(number.min, number.max), Ordering::Relaxed);
                    }
                }
            }
            Value::Path(place) if text.len() < PATH_MAX => {
                place
                    .iter()
                    .zip(text)
                    .for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
            }
            Value::Path(_) => {}
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
