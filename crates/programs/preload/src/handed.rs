//! Sockets that a program hands on to the program that it becomes.
//!
//! # Purpose
//! A socket that a new image finds under a number may have been given to anybody before: it stays on the kernel. The old image
//! knows better, and says which of its sockets no other process has. So they may be joined again.
//!
//! # Model
//! The list goes in the environment of the new image, as [`NAME`]: the process id, then for each socket its number, its
//! `SO_COOKIE` and a digit, all in hexadecimal. The constructor takes the variable out of the environment before anybody
//! looks, and believes what is of this very process and names a socket that is still there under its number. Whoever forges it
//! deceives himself: he could call this library's functions as well.
//!
//! # Limits
//! [`TEXT_BYTES`] of text, some 2,000 sockets: the others stay on the kernel.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write};

use crate::own::Sock;
use crate::record::flag;
use crate::{real, table};

/// The name of the variable.
pub const NAME: &CStr = c"WINDLASS_INHERITED";
/// Bytes of the list, with the name and the zero at its end. A string of the environment may have 128 KiB.
const TEXT_BYTES: usize = 64 * 1024;
/// The socket was connected by the program, and not accepted.
const IS_CONNECTOR: u32 = 1;

type Strings = *const *const c_char;

/// An environment with the list in it; unmapped when dropped, where the exec has failed.
pub struct Environment {
    base: *mut u8,
    bytes: usize,
    length: usize,
    sockets: usize,
}

impl Environment {
    /// The strings of `environment`, and an empty list. `None`: there is no memory for it.
    ///
    /// # Safety
    /// `environment` is as for `execve`, or null.
    pub unsafe fn over(environment: Strings) -> Option<Self> {
        let mut count = 0;
        // SAFETY: as the caller says.
        while !unsafe { string(environment, count) }.is_null() {
            count += 1;
        }
        let bytes = TEXT_BYTES + (count + 2) * size_of::<*const c_char>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at any address.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mut made = Self {
            base: base.cast(),
            bytes,
            length: 0,
            sockets: 0,
        };
        let mut place = made.strings();
        let mut put = |value: *const c_char| {
            // SAFETY: the mapping has room for all strings, the list and the null at the end.
            unsafe { place.write(value) };
            place = place.wrapping_add(1);
        };
        put(made.base.cast());
        for at in 0..count {
            // SAFETY: as above.
            let text = unsafe { string(environment, at) };
            // SAFETY: a C string, as the caller says.
            if !is_list(unsafe { CStr::from_ptr(text) }) {
                put(text);
            }
        }
        put(std::ptr::null());
        let name = NAME.to_str().unwrap_or_default();
        write!(made, "{name}={:x}", std::process::id()).ok()?;
        Some(made)
    }

    fn strings(&self) -> *mut *const c_char {
        let at = self.base.wrapping_add(TEXT_BYTES);
        // `TEXT_BYTES` from the start of a page.
        std::ptr::with_exposed_provenance_mut(at.expose_provenance())
    }

    /// The program will have this socket, and no other process has it.
    pub fn add(&mut self, sock: &Sock) {
        let is_connector = u32::from(sock.record.has(flag::CONNECTED_BY_US)) * IS_CONNECTOR;
        let before = self.length;
        let cookie = sock.record.cookie_by(sock.fd);
        if write!(self, ",{:x}:{cookie:x}:{is_connector:x}", sock.fd).is_err() {
            self.length = before;
        } else {
            self.sockets += 1;
        }
    }

    /// The list for `execve`, if there is any socket in it.
    pub fn list(&self) -> Option<Strings> {
        // The rest is zeros, or of an entry that did not fit.
        let end = self.base.wrapping_add(self.length);
        // SAFETY: one byte is kept free behind the text.
        unsafe { end.write(0) };
        (self.sockets != 0).then(|| self.strings().cast_const())
    }
}

impl Write for Environment {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        if end >= TEXT_BYTES {
            return Err(fmt::Error);
        }
        let to = self.base.wrapping_add(self.length);
        // SAFETY: the text fits, with a byte to spare, and the mapping is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len()) };
        self.length = end;
        Ok(())
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        let before = real::errno();
        // SAFETY: mapped by `over`, and the exec that used it has failed.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
        real::set_errno(before);
    }
}

/// The string at a place of a list, which ends with null.
///
/// # Safety
/// The list is null, or has as many strings or ends there.
unsafe fn string(list: Strings, at: usize) -> *const c_char {
    if list.is_null() {
        return std::ptr::null();
    }
    let place = list.wrapping_add(at);
    // SAFETY: as the caller says.
    unsafe { *place }
}

fn is_list(text: &CStr) -> bool {
    let rest = text.to_bytes().strip_prefix(NAME.to_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Enters the sockets that the image before this one has handed on, and takes the variable out of the environment. By the
/// constructor; `is_confined`: the library does nothing here.
pub fn take(is_confined: bool) {
    // SAFETY: a C string; no other thread changes the environment while libraries are loaded.
    let text = unsafe { libc::getenv(NAME.as_ptr()) };
    if text.is_null() {
        return;
    }
    if !is_confined {
        // SAFETY: a C string of the environment.
        enter_all(unsafe { CStr::from_ptr(text) }.to_bytes());
    }
    // SAFETY: as above.
    unsafe { libc::unsetenv(NAME.as_ptr()) };
}

fn enter_all(text: &[u8]) {
    let mut entries = text.split(|byte| *byte == b',');
    if entries.next().and_then(number) != Some(u64::from(std::process::id())) {
        return;
    }
    for entry in entries {
        let mut words = entry.split(|byte| *byte == b':').map(number);
        let (Some(Some(fd)), Some(Some(cookie)), Some(Some(bits))) =
            (words.next(), words.next(), words.next())
        else {
            return;
        };
        let is_connector = bits & u64::from(IS_CONNECTOR) != 0;
        let flags = if is_connector {
            flag::CONNECTED_BY_US
        } else {
            0
        };
        table::handed(c_int::try_from(fd).unwrap_or(-1), cookie, flags);
    }
}

fn number(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}
