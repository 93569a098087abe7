//! What a file that is about to be executed will be: with this library or without.
//!
//! The same questions as the kernel and the loader ask: `LD_PRELOAD` in the new environment; the
//! interpreter of a script; ELF for this machine with a program interpreter (else static); setuid,
//! setgid and file capabilities (the loader ignores us then). Whoever cannot be read is plain.
//! Nothing here allocates, so that the child of a `vfork` may ask.

use std::ffi::{CStr, c_char, c_int};

use crate::real;

/// What the new program will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// There is no such file: the call will fail.
    Missing,
    /// It will not have this library.
    Plain,
    /// It will.
    Accelerated,
}

const LIBRARY: &[u8] = b"libwindlass_sockets.so";
/// Bytes of the file that are looked at: the kernel's own limit for scripts is 256; program headers
/// follow the ELF header in every linker's output.
const HEAD: usize = 2_048;
const SCRIPTS_MAX: usize = 5;
const PT_INTERP: u32 = 3;

/// Judges the file at `path`, relative to the directory `at`.
///
/// # Safety
/// `path` and the list `environment` are as for `execveat`, or null.
pub unsafe fn judge(at: c_int, path: *const c_char, environment: *const *const c_char) -> Target {
    if path.is_null() {
        return Target::Missing;
    }
    let before = real::errno();
    // SAFETY: the caller's list is as for execve.
    let preloaded = unsafe { has_library(environment) };
    let target = file(at, path, 0);
    real::set_errno(before);
    if target == Target::Accelerated && !preloaded {
        Target::Plain
    } else {
        target
    }
}

/// Judges an open file.
///
/// # Safety
/// `environment` is as for `fexecve`, or null.
pub unsafe fn judge_open(fd: c_int, environment: *const *const c_char) -> Target {
    let before = real::errno();
    // SAFETY: the caller's list is as for fexecve.
    let preloaded = unsafe { has_library(environment) };
    let target = content(fd, 0);
    real::set_errno(before);
    if target == Target::Accelerated && !preloaded {
        Target::Plain
    } else {
        target
    }
}

/// Judges the file that a search of `PATH` finds.
///
/// # Safety
/// As [`judge`].
pub unsafe fn judge_search(name: *const c_char, environment: *const *const c_char) -> Target {
    if name.is_null() {
        return Target::Missing;
    }
    // SAFETY: execvp reads it as a C string.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if bytes.contains(&b'/') {
        // SAFETY: as the caller says.
        return unsafe { judge(libc::AT_FDCWD, name, environment) };
    }
    // SAFETY: reads the environment, as execvp does.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path: &[u8] = if path.is_null() {
        b"/bin:/usr/bin"
    } else {
        // SAFETY: a C string of the environment.
        unsafe { CStr::from_ptr(path) }.to_bytes()
    };
    for directory in path.split(|byte| *byte == b':') {
        let mut full = [0u8; libc::PATH_MAX as usize];
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let mut rest = &mut full[..];
        for part in [directory, slash, bytes, b"\0"] {
            let Some((place, after)) = rest.split_at_mut_checked(part.len()) else {
                return Target::Plain;
            };
            place.copy_from_slice(part);
            rest = after;
        }
        // SAFETY: terminated just now; the environment is as the caller says.
        let target = unsafe { judge(libc::AT_FDCWD, full.as_ptr().cast(), environment) };
        if target != Target::Missing {
            return target;
        }
    }
    Target::Missing
}

/// Whether `LD_PRELOAD` of this environment names the library.
unsafe fn has_library(environment: *const *const c_char) -> bool {
    if environment.is_null() {
        return false;
    }
    let mut place = environment;
    loop {
        // SAFETY: the list ends with null, and we stop there.
        let variable = unsafe { *place };
        if variable.is_null() {
            return false;
        }
        // SAFETY: each member is a C string.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        if let Some(value) = text.strip_prefix(b"LD_PRELOAD=") {
            return value.windows(LIBRARY.len()).any(|part| part == LIBRARY);
        }
        // SAFETY: not yet the end of the list.
        place = unsafe { place.add(1) };
    }
}

fn file(at: c_int, path: *const c_char, depth: usize) -> Target {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the path is the program's own C string.
    let executable = unsafe { libc::faccessat(at, path, libc::X_OK, libc::AT_EACCESS) } == 0;
    if !executable {
        return Target::Missing;
    }
    // SAFETY: as above.
    let fd = unsafe { real::openat(at, path, flags, 0) };
    if fd < 0 {
        return Target::Plain;
    }
    let target = content(fd, depth);
    // SAFETY: opened above.
    unsafe { real::close(fd) };
    target
}

/// Judges what is in an open file.
fn content(fd: c_int, depth: usize) -> Target {
    // SAFETY: zeroes are a valid `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live variable.
    if unsafe { libc::fstat(fd, &mut status) } != 0
        || status.st_mode & libc::S_IFMT != libc::S_IFREG
    {
        return Target::Plain;
    }
    let mut head = [0u8; HEAD];
    // SAFETY: reads at most the array's length into it.
    let read = unsafe { libc::pread(fd, head.as_mut_ptr().cast(), HEAD, 0) };
    let Some(head) = usize::try_from(read).ok().and_then(|read| head.get(..read)) else {
        return Target::Plain;
    };
    if let Some(script) = head.strip_prefix(b"#!") {
        return interpreter(script, depth);
    }
    // SAFETY: names and sizes only; the value is not asked for.
    let capabilities =
        unsafe { libc::fgetxattr(fd, c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    let raised = status.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 || capabilities > 0;
    if raised || !is_dynamic(head) {
        Target::Plain
    } else {
        Target::Accelerated
    }
}

/// The interpreter of a script.
fn interpreter(script: &[u8], depth: usize) -> Target {
    let line = script.split(|byte| *byte == b'\n').next().unwrap_or(script);
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    let mut path = [0u8; 256];
    let Some(word) = words.next().filter(|word| word.len() < path.len()) else {
        return Target::Plain;
    };
    if depth >= SCRIPTS_MAX {
        return Target::Missing;
    }
    for (place, byte) in path.iter_mut().zip(word) {
        *place = *byte;
    }
    file(libc::AT_FDCWD, path.as_ptr().cast(), depth + 1)
}

/// ELF for this machine with a program interpreter.
fn is_dynamic(head: &[u8]) -> bool {
    let half = |at: usize| {
        head.get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    let long = |at: usize| {
        head.get(at..at + 8)?
            .try_into()
            .ok()
            .map(u64::from_le_bytes)
    };
    if !head.starts_with(b"\x7fELF\x02\x01") || half(18) != Some(62) {
        return false;
    }
    let (Some(table), Some(size), Some(count)) = (long(32), half(54), half(56)) else {
        return false;
    };
    (0..usize::from(count)).any(|index| {
        let at = (table as usize).saturating_add(index * usize::from(size));
        let kind = at.checked_add(4).and_then(|end| head.get(at..end));
        kind.is_some_and(|kind| kind == PT_INTERP.to_le_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    const OURS: &CStr = c"LD_PRELOAD=/usr/lib/libwindlass_sockets.so";

    fn of(path: &str, variables: &[&CStr]) -> Target {
        let path = CString::new(path).expect("no zero inside");
        let mut list: Vec<*const c_char> = variables.iter().map(|text| text.as_ptr()).collect();
        list.push(std::ptr::null());
        // SAFETY: a C string and a list that ends with null.
        unsafe { judge(libc::AT_FDCWD, path.as_ptr(), list.as_ptr()) }
    }

    fn script(text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let name = format!("windlass-script-{}-{}", std::process::id(), text.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our file");
        path.to_str().expect("plain text").to_owned()
    }

    /// Programs, scripts and what is neither are told apart as the kernel and the loader do.
    #[test]
    fn targets_are_judged() {
        assert_eq!(of("/bin/sh", &[c"A=b", OURS]), Target::Accelerated);
        assert_eq!(of("/bin/sh", &[c"A=b"]), Target::Plain);
        assert_eq!(of("/bin/sh", &[c"LD_PRELOAD=/lib/other.so"]), Target::Plain);
        assert_eq!(of("/does/not/exist", &[OURS]), Target::Missing);
        assert_eq!(of("/etc/passwd", &[OURS]), Target::Missing);
        let plain = script("no interpreter\n");
        assert_eq!(of(&plain, &[OURS]), Target::Plain);
        let good = script("#! /bin/sh -e\nexit 0\n");
        assert_eq!(of(&good, &[OURS]), Target::Accelerated);
        let nested = script(&format!("#!{good}\n"));
        assert_eq!(of(&nested, &[OURS]), Target::Accelerated);
        let missing = script("#!/does/not/exist\n");
        assert_eq!(of(&missing, &[OURS]), Target::Missing);
        for path in [plain, good, nested, missing] {
            let _ = std::fs::remove_file(path);
        }
        // SAFETY: takes nothing.
        let root = unsafe { libc::geteuid() } == 0;
        if root || of("/usr/bin/su", &[OURS]) != Target::Missing {
            assert_eq!(of("/usr/bin/su", &[OURS]), Target::Plain);
        }
    }
}
