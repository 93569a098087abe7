//! Programs at ticks of processors' clocks, at events of the kernel, and when they are called.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::map::{BPF_LINK_CREATE, Link, LinkAttributes};
use super::{Program, bpf};
use crate::vectored::last_errno;

const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
/// `BPF_PERF_EVENT` of `enum bpf_attach_type`.
const ATTACH_SAMPLES: u32 = 41;
/// `PERF_TYPE_SOFTWARE`; its event 0 is the processor's clock.
const SOFTWARE: u32 = 1;
/// `freq` of `struct perf_event_attr`: samples a second are given, not the time between them.
const BY_FREQUENCY: u64 = 1 << 10;

/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// `struct perf_event_attr` as of its first version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    samples: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

/// The part of `union bpf_attr` that BPF_PROG_TEST_RUN has had since Linux 5.10.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RunAttributes {
    program: u32,
    result: u32,
    sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_sizes: [u32; 2],
    contexts: [u64; 2],
    flags: u32,
    processor: u32,
    batch: u32,
    padding: u32,
}

/// The part of `union bpf_attr` that BPF_RAW_TRACEPOINT_OPEN has had since Linux 4.17.
#[repr(C)]
#[derive(Clone, Copy)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    padding: u32,
}

impl Program {
    /// Runs a program of the kind [`super::ProgramKind::Call`] once.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn run(&self) -> Result<(), Errno> {
        let mut attributes = RunAttributes {
            program: self.as_fd().as_raw_fd().cast_unsigned(),
            ..RunAttributes::default()
        };
        // SAFETY: these are the attributes of a run without data or context: there are no addresses in them.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }.map(drop)
    }
}

impl Link {
    /// Has a program of the kind [`super::ProgramKind::Sample`] run so often a second while the processor is busy.
    ///
    /// # Errors
    /// `EPERM` without `CAP_PERFMON`, `ENODEV` for a processor that is not there, `EINVAL` from a kernel before 5.15.
    pub fn samples(program: &Program, processor: u32, each_second: u32) -> Result<Self, Errno> {
        let event = EventAttributes {
            kind: SOFTWARE,
            size: u32::try_from(size_of::<EventAttributes>()).unwrap_or(0),
            samples: each_second.into(),
            flags: BY_FREQUENCY,
            ..EventAttributes::default()
        };
        let processor = i32::try_from(processor).map_err(|_| Errno::NODEV)?;
        // SAFETY: reads the attributes, whose size they say.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const event,
                -1,
                processor,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(last_errno)?;
        // SAFETY: the kernel just returned this descriptor, which nobody else knows. The link keeps the event.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut attributes = LinkAttributes {
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            target: event.as_raw_fd().cast_unsigned(),
            attach_type: ATTACH_SAMPLES,
            flags: 0,
        };
        // SAFETY: these are the attributes of a link; there are no addresses in them.
        let link = unsafe { bpf(BPF_LINK_CREATE, &mut attributes) }?;
        Ok(Self::of(link))
    }

    /// Has a program of the kind [`super::ProgramKind::Event`] run at an event of the kernel, as `sched_switch`.
    ///
    /// # Errors
    /// `ENOENT` without such an event, `EPERM` without `CAP_PERFMON`.
    pub fn event(program: &Program, name: &str) -> Result<Self, Errno> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut attributes = TracepointAttributes {
            name: name.as_ptr().expose_provenance() as u64,
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            padding: 0,
        };
        // SAFETY: the address is that of a string, which outlives the call.
        let link = unsafe { bpf(BPF_RAW_TRACEPOINT_OPEN, &mut attributes) }?;
        Ok(Self::of(link))
    }
}
