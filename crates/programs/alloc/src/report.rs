//! A sentence on stderr and an abort.

use core::fmt::{self, Write};

use windlass_memory::options::Key;
use windlass_slab::Fault;

use crate::debug;
use crate::options;
use crate::sys;

/// A line on the stack; what does not fit is left out.
struct Line {
    text: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = &mut self.text[self.len..];
        let taken = part.len().min(room.len());
        room[..taken].copy_from_slice(&part.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Says it.
pub fn say(what: fmt::Arguments<'_>) {
    let mut line = Line {
        text: [0; 256],
        len: 0,
    };
    // A line takes whatever is written.
    let _ = line.write_fmt(format_args!("windlass: {what}\n"));
    sys::complain(&line.text[..line.len]);
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

/// Says what the program did wrong and aborts, unless the options say otherwise.
#[cold]
pub fn error(what: fmt::Arguments<'_>) {
    say(what);
    if options::is_debugging() {
        debug::stack();
    }
    if options::get(Key::Noabort) == 0 {
        abort();
    }
}
