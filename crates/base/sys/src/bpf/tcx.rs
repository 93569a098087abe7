//! Programs at a link, as tcx has them (Linux 6.6).
//!
//! # Ownership and lifetime
//! A program stays where it was put when the process that put it there has ended, and goes with the link.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::{Attached, Program, attached, bpf};

const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_DETACH: libc::c_int = 9;
/// `BPF_F_BEFORE` and `BPF_F_AFTER` of `<linux/bpf.h>`: without another program named, before the first and behind the last.
const BEFORE: u32 = 1 << 3;
const AFTER: u32 = 1 << 4;
/// Programs that one place of a link has at most (`BPF_MPROG_MAX`).
const PROGRAMS_MAX: u32 = 64;

/// Which of a link's frames a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Those that come in on the link.
    Ingress,
    /// Those that leave by it.
    Egress,
}

impl Side {
    fn attach_type(self) -> u32 {
        match self {
            Side::Ingress => 46,
            Side::Egress => 47,
        }
    }
}

/// The part of `union bpf_attr` for BPF_PROG_ATTACH and BPF_PROG_DETACH.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PlaceAttributes {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
    relative: u32,
    revision: u64,
}

/// Whether the kernel has places for programs at links.
#[must_use]
pub fn has_places() -> bool {
    let mut attributes = super::QueryAttributes {
        target: crate::hooks::LOOPBACK_INDEX,
        attach_type: Side::Ingress.attach_type(),
        ..super::QueryAttributes::default()
    };
    // SAFETY: these are the attributes of a query; with no place for ids there are no addresses in them.
    let asked = unsafe { bpf(super::BPF_PROG_QUERY, &mut attributes) };
    asked != Err(Errno::INVAL)
}

/// Puts a program at a link of the calling thread's namespace, by the link's index, in the place of all that are there. Each frame meets
/// the programs before or this one. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EINVAL` from a kernel without tcx, `ENODEV` if there is no such link.
pub fn put_at(program: &Program, index: u32, side: Side) -> Result<(), Errno> {
    let mut attributes = PlaceAttributes {
        target: index,
        program: program.as_fd().as_raw_fd().cast_unsigned(),
        attach_type: side.attach_type(),
        flags: BEFORE,
        ..PlaceAttributes::default()
    };
    // SAFETY: these are the attributes of an attachment; there are no addresses in them.
    unsafe { bpf(BPF_PROG_ATTACH, &mut attributes) }?;
    keep_first(index, side, 1)
}

/// Takes all programs of a link but the first `keep` away; there are none on a kernel without tcx.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn keep_first(index: u32, side: Side, keep: u32) -> Result<(), Errno> {
    let place = match side {
        Side::Ingress => Attached::LinkIngress(index),
        Side::Egress => Attached::LinkEgress(index),
    };
    for _ in 0..PROGRAMS_MAX {
        if attached(place)? <= keep {
            break;
        }
        let mut attributes = PlaceAttributes {
            target: index,
            attach_type: side.attach_type(),
            flags: AFTER,
            ..PlaceAttributes::default()
        };
        // SAFETY: these are the attributes of a detachment; there are no addresses in them.
        unsafe { bpf(BPF_PROG_DETACH, &mut attributes) }?;
    }
    Ok(())
}
