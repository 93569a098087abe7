//! Programs at places of files: whoever executes them runs the program first.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use super::map::{BPF_LINK_CREATE, Link};
use super::{Program, bpf};

/// `BPF_TRACE_UPROBE_MULTI` of `enum bpf_attach_type`, since Linux 6.6.
pub(super) const ATTACH_UPROBES: u32 = 48;

/// The part of `union bpf_attr` that a link to places of a file has.
#[repr(C)]
#[derive(Clone, Copy)]
struct UprobesAttributes {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    uprobe_flags: u32,
    pid: u32,
    padding: u32,
}

/// One place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UprobePlace {
    /// Of an instruction, in the file: not an address.
    pub offset: u64,
    /// What a program that runs there is told (`bpf_get_attach_cookie`).
    pub cookie: u64,
    /// Where in the file the number is that says how many look at this place; 0: there is none.
    pub semaphore: u64,
}

impl Link {
    /// Has a program of the kind [`super::ProgramKind::Uprobe`] run at these places of a file, in every thread of one process, or of all that map the file. A
    /// child of a fork is another process.
    ///
    /// # Errors
    /// `EPERM` without `CAP_PERFMON`, `ESRCH` without such a process, `EINVAL` from a kernel before 6.6 and for a place that is in no
    /// instruction's mapping, others of the file's own.
    pub fn uprobes(
        program: &Program,
        file: &Path,
        places: &[UprobePlace],
        pid: Option<u32>,
    ) -> Result<Self, Errno> {
        let path = CString::new(file.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
        let cookies: Vec<u64> = places.iter().map(|place| place.cookie).collect();
        let semaphores: Vec<u64> = places.iter().map(|place| place.semaphore).collect();
        let has_semaphores = semaphores.iter().any(|place| *place != 0);
        let semaphores = match has_semaphores {
            true => semaphores.as_ptr().expose_provenance() as u64,
            false => 0,
        };
        let mut attributes = UprobesAttributes {
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            target: 0,
            attach_type: ATTACH_UPROBES,
            flags: 0,
            path: path.as_ptr().expose_provenance() as u64,
            offsets: offsets.as_ptr().expose_provenance() as u64,
            semaphores,
            cookies: cookies.as_ptr().expose_provenance() as u64,
            count: u32::try_from(places.len()).map_err(|_| Errno::TOOBIG)?,
            uprobe_flags: 0,
            pid: pid.unwrap_or(0),
            padding: 0,
        };
        // SAFETY: the addresses are those of a string and of lists of `count` entries, which outlive the call.
        let fd = unsafe { bpf(BPF_LINK_CREATE, &mut attributes) }?;
        Ok(Self::of(fd))
    }
}
