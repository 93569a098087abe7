//! The options of the library: environment variables, read once when it is loaded.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Options that are numbers: the function that gives one, the variable and the place in its list, which commas separate, the default
/// and the greatest value, to which greater ones are lowered.
macro_rules! numbers {
    ($($(#[doc = $text:literal])+ $name:ident = $variable:literal[$at:literal], $default:expr, $max:expr;)*) => {
        #[allow(non_upper_case_globals, reason = "each is called as its function")]
        mod number {
            $(pub static $name: super::AtomicU64 = super::AtomicU64::new($default);)*
        }

        $(
            $(#[doc = $text])+
            #[inline]
            pub fn $name() -> u64 {
                number::$name.load(Relaxed)
            }
        )*

        fn read_numbers() {
            $(
                if let Some(given) = nth_number($variable, $at) {
                    number::$name.store(given.min($max), Relaxed);
                }
            )*
        }
    };
}

/// The value of [`spin_given_us`] where the user gives none.
const UNSAID: u64 = u64::MAX;
/// How long a busy thread spins then, in microseconds.
const SPIN_DEFAULT_US: u64 = 30;

numbers! {
    /// How long a call that waits looks at the ring before it sleeps in the kernel, in microseconds, as the user says.
    spin_given_us = c"WINDLASS_SPIN"[0], super::UNSAID, 1_000_000;
    /// 1: connections with programs of another user are accelerated, if those ask too.
    share = c"WINDLASS_SHARE"[0], 0, 1;
    /// 0: Unix sockets stay on the kernel.
    unix = c"WINDLASS_UNIX"[0], 1, 1;
    /// 1: a line about the process's connections goes to stderr when it ends.
    summary = c"WINDLASS_SUMMARY"[0], 0, 1;
    /// Calls each way after which a connection is accelerated.
    promote_calls = c"WINDLASS_PROMOTE"[0], 2, u64::from(u32::MAX);
    /// Bytes one way after which it is, too.
    promote_bytes = c"WINDLASS_PROMOTE"[1], 65_536, u64::MAX;
    /// How often one message of a connection that connection tracking follows goes by the kernel, in milliseconds.
    refresh_ms = c"WINDLASS_REFRESH"[0], 30_000, 1_000_000;
    /// For tests: this share of 1,000 calls goes straight to the kernel.
    bypass = c"WINDLASS_BYPASS"[0], 0, 1_000;
    /// The seed of that choice.
    bypass_seed = c"WINDLASS_BYPASS"[1], 1, u64::MAX;
    /// For tests: this share of 1,000 calls first moves unread bytes into the kernel.
    reclaim = c"WINDLASS_RECLAIM"[0], 0, 1_000;
    /// The seed of that choice.
    reclaim_seed = c"WINDLASS_RECLAIM"[1], 1, u64::MAX;
    /// For tests: 0: the broker does not move unread bytes, so that each lost wake-up is a hang.
    nets = c"WINDLASS_NETS"[0], 1, 1;
    /// For tests: how long the broker is waited for at least, in milliseconds, so that a busy machine keeps no connection off the ring.
    patience_ms = c"WINDLASS_PATIENCE"[0], 0, 60_000;
}

static SOCKETS: Path = Path::new();
static LOG: Path = Path::new();
static COUNTERS: Path = Path::new();

/// The broker's socket.
pub fn sockets() -> Option<&'static CStr> {
    SOCKETS.get()
}

/// A file to which is appended why connections stay on the kernel.
pub fn log() -> Option<&'static CStr> {
    LOG.get()
}

/// A file to which the counters are appended when the process ends, one `name value` a line.
pub fn counters() -> Option<&'static CStr> {
    COUNTERS.get()
}

/// Bytes of a path, with the zero at its end: a longer one is ignored.
const PATH_MAX: usize = 512;

struct Path([AtomicU8; PATH_MAX]);

impl Path {
    const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; PATH_MAX])
    }

    fn get(&'static self) -> Option<&'static CStr> {
        if self.0[0].load(Relaxed) == 0 {
            return None;
        }
        let start: *const c_char = self.0.as_ptr().cast();
        // SAFETY: written once by `read`, which leaves a zero at the end, before anyone else runs.
        Some(unsafe { CStr::from_ptr(start) })
    }

    fn read(&self, name: &CStr) {
        let text = variable(name).filter(|text| text.len() < PATH_MAX);
        let bytes = self.0.iter().zip(text.unwrap_or_default());
        bytes.for_each(|(to, from)| to.store(*from, Relaxed));
    }
}

/// An environment variable, while no other thread changes the environment.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string.
    let text = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn nth_number(name: &CStr, at: usize) -> Option<u64> {
    let part = variable(name)?.split(|byte| *byte == b',').nth(at)?;
    std::str::from_utf8(part).ok()?.trim().parse().ok()
}

/// Reads the environment. Called once, by the constructor; allocates nothing.
pub fn read() {
    read_numbers();
    SOCKETS.read(c"WINDLASS_SOCKETS");
    LOG.read(c"WINDLASS_LOG");
    COUNTERS.read(c"WINDLASS_COUNTERS");
}

/// How long a call spins, in microseconds; where the user has not said so, only in a thread that waits again within 300 us.
#[inline]
pub fn spin_us() -> u64 {
    match spin_given_us() {
        UNSAID => SPIN_DEFAULT_US,
        us => us,
    }
}

#[inline]
pub fn is_spin_given() -> bool {
    spin_given_us() != UNSAID
}

/// For tests: whether any call is treated otherwise.
pub fn is_disturbed() -> bool {
    bypass() != 0 || reclaim() != 0
}
