//! A sentence on stderr and an abort.

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use windlass_memory::options::Key;
use windlass_slab::Fault;

use crate::debug;
use crate::options;
use crate::sys;

/// Bytes of a [`Line`].
const LINE: usize = 256;

/// A line without an allocation; what does not fit is left out.
pub struct Line {
    text: [u8; LINE],
    len: usize,
}

impl Line {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            text: [0; LINE],
            len: 0,
        }
    }

    /// Appends. Whether all of it fitted.
    pub fn extend(&mut self, part: &[u8]) -> bool {
        let room = &mut self.text[self.len..];
        let taken = part.len().min(room.len());
        room[..taken].copy_from_slice(&part[..taken]);
        self.len += taken;
        taken == part.len()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Up to the first zero, if there is one.
    pub fn text(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.text[..self.len]).ok()
    }

    /// Without the zero.
    pub fn bytes(&self) -> &[u8] {
        let text = &self.text[..self.len];
        text.strip_suffix(b"\0").unwrap_or(text)
    }
}

impl Write for Line {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.extend(part.as_bytes());
        Ok(())
    }
}

/// Says it.
pub fn say(what: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // A line takes whatever is written.
    let _ = line.write_fmt(format_args!("windlass: {what}\n"));
    sys::complain(line.bytes());
}

/// Says it and aborts. No lock is held, because the program may have a handler for the signal.
pub fn die(what: fmt::Arguments<'_>) -> ! {
    say(what);
    abort()
}

/// Ends the process.
pub fn abort() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Names a wrong address and aborts, unless the options say otherwise.
#[cold]
pub fn fault(call: &str, fault: Fault) {
    let (address, what) = match fault {
        Fault::Unknown(address) => (address, "nothing is allocated there"),
        Fault::Interior(address) => (address, "not the start of an allocation"),
        Fault::Twice(address) => (address, "already freed"),
    };
    error(format_args!("{call}({address:#x}): {what}"));
}

/// The process ends anyway: from now on errors are sentences alone, because an abort would lose what the program has not yet flushed.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// See [`IS_ENDING`].
pub fn process_ends() {
    IS_ENDING.store(true, Relaxed);
}

/// Says what the program did wrong and aborts, unless the options say otherwise.
#[cold]
pub fn error(what: fmt::Arguments<'_>) {
    error_with(what, || {});
}

/// The same, with further lines.
#[cold]
pub fn error_with(what: fmt::Arguments<'_>, more: impl FnOnce()) {
    say(what);
    more();
    if options::is_debugging() {
        debug::stack();
    }
    if options::get(Key::Noabort) == 0 && !IS_ENDING.load(Relaxed) {
        abort();
    }
}
