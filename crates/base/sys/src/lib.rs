//! Raw kernel interfaces behind safe calls.
//!
//! # Purpose
//! Everything that windlass asks of Linux and that the standard library does not offer: TAP
//! devices, packet sockets, rtnetlink, network namespaces, eBPF programs, UNIX sockets that pass
//! descriptors, and thin layers over eventfd, epoll and timerfd.
//!
//! # Where it sits
//! ```text
//!   io/attach, io/worker, control/*      decide what to do and when
//!            |
//!        windlass-sys                    does one kernel operation at a time
//!            |
//!    rustix, libc, the kernel
//! ```
//! This crate knows no bridge, VNIC or policy. Who may enter a namespace, whether an interface may
//! be taken and what happens after an error is decided above it.
//!
//! # Model
//! A call does one thing to the kernel and reports the kernel's own error. Calls that run once per
//! frame return a bare [`Errno`]; calls that configure something return an enum of their own that
//! carries the value at fault. Each descriptor is owned by one object, closed when that is
//! dropped, and close-on-exec.
//!
//! # Ownership and lifetime
//! A namespace is entered only by a thread made for it ([`netns::within`]), which ends right
//! after; the descriptors that it opened belong to that namespace for good and may be used from any
//! thread.
//!
//! # Limits
//! Linux 5.11 or newer, x86-64 and aarch64 only: structures are written for their byte order and width. Where
//! a newer kernel offers more (UDP segmentation on TAP, 6.2; a 12-byte virtio header on packet
//! sockets, 6.6) the object says what it got.
//!
//! # Failure modes
//! Answers of the kernel are parsed with bounds checks and an answer that makes no sense is an
//! error, never a panic. Interfaces and namespaces may vanish at any time: later calls then fail
//! with the errno that the item's documentation names.

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux"
)))]
compile_error!("windlass runs on Linux for x86-64 and aarch64 only");

pub mod affinity;
pub mod batch;
pub mod bpf;
pub mod caps;
pub mod confined;
pub mod epoll;
pub mod ethtool;
pub mod eventfd;
pub mod hooks;
pub mod identity;
pub mod interface;
pub mod interrupt;
pub mod mapped;
pub mod named;
pub mod netlink;
pub mod netns;
pub mod own;
pub mod packet;
pub mod pcap;
pub mod priority;
pub mod process;
pub mod ptrace;
pub mod sealed;
pub mod shortcut;
pub mod signals;
pub mod sockmap;
mod sockopt;
pub mod tap;
pub mod timer;
pub mod trusted;
pub mod udp;
pub mod unix;
pub mod usage;
pub mod vectored;
pub mod xdp;

pub use rustix::io::{Errno, IoSlice, IoSliceMut};
