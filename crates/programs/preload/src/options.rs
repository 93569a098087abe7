//! The options of the library: environment variables, read once when it is loaded.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Up to two numbers, separated by a comma, each with a default and a largest value, to which greater ones are lowered.
struct Numbers {
    name: &'static CStr,
    values: [AtomicU64; 2],
    max: [u64; 2],
}

const fn numbers(name: &'static CStr, first: (u64, u64), second: (u64, u64)) -> Numbers {
    Numbers {
        name,
        values: [AtomicU64::new(first.0), AtomicU64::new(second.0)],
        max: [first.1, second.1],
    }
}

const fn number(name: &'static CStr, default: u64, max: u64) -> Numbers {
    numbers(name, (default, max), (0, 0))
}

/// A path of less than [`PATH_MAX`] bytes; longer ones are ignored.
struct Path {
    name: &'static CStr,
    value: [AtomicU8; PATH_MAX],
}

/// Bytes of a path, with the zero at its end.
const PATH_MAX: usize = 512;

const fn path(name: &'static CStr) -> Path {
    let value = [const { AtomicU8::new(0) }; PATH_MAX];
    Path { name, value }
}

/// The value of [`SPIN`] where the user gives none.
const SPIN_UNSAID: u64 = u64::MAX;
/// How long a busy thread spins then, in microseconds.
const SPIN_DEFAULT_US: u64 = 30;

/// How long a call that waits looks at the ring before it sleeps in the kernel, in microseconds; unset: [`SPIN_DEFAULT_US`], and only
/// in a thread that waits again within 300 us.
static SPIN: Numbers = number(c"WINDLASS_SPIN", SPIN_UNSAID, 1_000_000);
/// 1: connections with programs of another user are accelerated, if those ask too.
static SHARE: Numbers = number(c"WINDLASS_SHARE", 0, 1);
/// 0: Unix sockets stay on the kernel.
static UNIX: Numbers = number(c"WINDLASS_UNIX", 1, 1);
/// 1: a line about the process's connections goes to stderr when it ends.
static SUMMARY: Numbers = number(c"WINDLASS_SUMMARY", 0, 1);
/// Calls each way, or bytes one way, after which a connection is accelerated.
static PROMOTE: Numbers = numbers(
    c"WINDLASS_PROMOTE",
    (2, u32::MAX as u64),
    (65_536, u64::MAX),
);
/// How often one message of a connection that connection tracking follows goes by the kernel, in milliseconds.
static REFRESH: Numbers = number(c"WINDLASS_REFRESH", 30_000, 1_000_000);
/// For tests: this share of 1,000 calls goes straight to the kernel; the seed of the choice.
static BYPASS: Numbers = numbers(c"WINDLASS_BYPASS", (0, 1_000), (1, u64::MAX));
/// For tests: this share of 1,000 calls first moves unread bytes into the kernel; the seed of the choice.
static RECLAIM: Numbers = numbers(c"WINDLASS_RECLAIM", (0, 1_000), (1, u64::MAX));
/// For tests: 0: nobody moves unread bytes for a reader that sleeps, so that each lost wake-up is a hang.
static NETS: Numbers = number(c"WINDLASS_NETS", 1, 1);
/// The broker's socket.
static SOCKETS: Path = path(c"WINDLASS_SOCKETS");
/// A file to which is appended why connections stay on the kernel.
static LOG: Path = path(c"WINDLASS_LOG");
/// A file to which the counters are appended when the process ends, one `name value` a line.
static COUNTERS: Path = path(c"WINDLASS_COUNTERS");

static NUMBERS: [&Numbers; 9] = [
    &SPIN, &SHARE, &UNIX, &SUMMARY, &PROMOTE, &REFRESH, &BYPASS, &RECLAIM, &NETS,
];
static PATHS: [&Path; 3] = [&SOCKETS, &LOG, &COUNTERS];

impl Numbers {
    fn get(&self) -> u64 {
        self.pair().0
    }

    fn pair(&self) -> (u64, u64) {
        let [first, second] = self.values.each_ref().map(|it| it.load(Ordering::Relaxed));
        (first, second)
    }

    fn read(&self) {
        let parts = variable(self.name).map(|text| text.split(|byte| *byte == b','));
        for ((value, max), part) in self
            .values
            .iter()
            .zip(self.max)
            .zip(parts.into_iter().flatten())
        {
            let decimal = std::str::from_utf8(part)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            if let Some(given) = decimal {
                value.store(max.min(given), Ordering::Relaxed);
            }
        }
    }
}

impl Path {
    fn get(&'static self) -> Option<&'static CStr> {
        if self.value[0].load(Ordering::Relaxed) == 0 {
            return None;
        }
        let start: *const c_char = self.value.as_ptr().cast();
        // SAFETY: written once by `read`, which leaves a zero at the end, before anyone else runs.
        Some(unsafe { CStr::from_ptr(start) })
    }

    fn read(&self) {
        let text = variable(self.name).filter(|text| text.len() < PATH_MAX);
        let bytes = self.value.iter().zip(text.unwrap_or_default());
        bytes.for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
    }
}

/// An environment variable, while no other thread changes the environment.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string.
    let text = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Reads the environment. Called once, by the constructor; allocates nothing.
pub fn read() {
    NUMBERS.iter().for_each(|option| option.read());
    PATHS.iter().for_each(|option| option.read());
}

/// How long a call spins, in microseconds.
#[inline]
pub fn spin_us() -> u64 {
    match SPIN.get() {
        SPIN_UNSAID => SPIN_DEFAULT_US,
        us => us,
    }
}

/// Whether the user has said so.
#[inline]
pub fn is_spin_given() -> bool {
    SPIN.get() != SPIN_UNSAID
}

/// Whether other users' programs may share.
pub fn share() -> bool {
    SHARE.get() != 0
}

/// Whether Unix sockets are joined.
#[inline]
pub fn unix() -> bool {
    UNIX.get() != 0
}

/// Whether the process says at its end what its connections did.
pub fn summary() -> bool {
    SUMMARY.get() != 0
}

/// Calls each way, and bytes one way, before a connection is joined.
#[inline]
pub fn promote() -> (u64, u64) {
    PROMOTE.pair()
}

/// After how many milliseconds a message of a tracked connection goes by the kernel.
#[inline]
pub fn refresh_ms() -> u64 {
    REFRESH.get().max(1)
}

/// For tests: calls in 1000 that go straight to the kernel; seed.
#[inline]
pub fn bypass() -> (u64, u64) {
    BYPASS.pair()
}

/// For tests: calls in 1000 that reclaim first; seed.
#[inline]
pub fn reclaim() -> (u64, u64) {
    RECLAIM.pair()
}

/// Whether a process that sleeps moves what it left in its rings, and has the broker watch them. Off only for tests: every
/// reader then has to be woken by the bytes themselves.
#[inline]
pub fn has_nets() -> bool {
    NETS.get() != 0
}

/// For tests: whether any call is treated so.
pub fn is_disturbed() -> bool {
    bypass().0 != 0 || reclaim().0 != 0
}

/// The broker's socket, if it was named.
pub fn sockets() -> Option<&'static CStr> {
    SOCKETS.get()
}

/// Where to log, if anywhere.
pub fn log() -> Option<&'static CStr> {
    LOG.get()
}

/// Where to write counters, if anywhere.
pub fn counters() -> Option<&'static CStr> {
    COUNTERS.get()
}
