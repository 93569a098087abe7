//! `libwindlass_sockets.so`: sockets of unmodified programs that bypass the kernel.
//!
//! # Purpose
//! Loaded into a program by `LD_PRELOAD` (`windlass run`), it stands between the program and libc for every call that
//! touches a descriptor. Connections whose other end is such a program too carry their bytes through shared
//! memory while both are awake; everything else stays what it was.
//!
//! # Where it sits
//! ```text
//!   program --> calls::* --- table: none of ours ------------------------> real::* (libc) --> kernel
//!                  |                                                          ^
//!                  +------- table: tracked --> engine::* --- own.call() ------+
//!                                                 |
//!                                                 +--> windlass-channel: rings, joins, the broker
//! ```
//!
//! # Model
//! Every tracked socket is a real kernel socket, and the kernel can answer every call on it at any moment. The
//! engine may answer first; if it does not, the program's own call is made, with its own arguments
//! ([`own::Own`]). What a process knows of a number is an entry of [`table`]; what its family of forks knows of a
//! socket is a [`record`].
//!
//! # Life
//! [`start`]: the constructor reads [`options`], finds libc's functions ([`real`]) and prepares [`owner`]; nothing else
//! happens until the first socket, which makes table and records, and nobody is asked anything until the first
//! join. Forks, executions and ends are told to the engine.
//!
//! # Synchronization
//! The program's threads and signal handlers call in at any time. The table is lock-free; channels have locks of
//! their own, held for some hundred nanoseconds, in which signals wait ([`signals`]). No function holds anything
//! with a destructor across a call that may block, because a cancelled thread is unwound through it.
//!
//! # Failure modes
//! What cannot be had (memory, a daemon, a function of libc) leaves the socket on the kernel. A close, dup, read
//! or wait that was not seen may cost time; it never gives wrong bytes.
//!
//! # What it shows
//! Nothing, unless asked: [`counters`] to `WINDLASS_COUNTERS`, reasons to `WINDLASS_LOG`. It keeps no descriptor.
//!
//! # Not done
//! Only x86-64 Linux with glibc. Only streams are tracked. Signal handlers installed by a bare system call are not deferred.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod counts;
mod dispatch;
mod fd;
mod join;
#[cfg_attr(
    test,
    allow(
        dead_code,
        reason = "in unit tests libc's names keep their own meaning"
    )
)]
mod libc;
mod lifecycle;
mod options;
mod process;
mod ready;
mod socket;
#[cfg_attr(
    test,
    allow(dead_code, reason = "unit tests are not loaded as a library")
)]
mod start;
mod sys;
