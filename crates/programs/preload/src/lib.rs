//! `libwindlass_sockets.so`: sockets of unmodified programs that bypass the kernel.
//!
//! # Purpose
//! Loaded into a program by `LD_PRELOAD` (`windlass run`), it stands between the program and libc for every call that
//! touches a descriptor. Connections whose other end is such a program too carry their bytes through shared
//! memory while both are awake; everything else stays what it was.
//!
//! # Where it sits
//! Rooms, each of which uses lower ones only (`xtask check` sees to it); lower ones tell higher ones by functions that [`start`] gives them.
//! ```text
//!   program -> libc        libc's names: what is none of ours goes on to libc, by a jump
//!              dispatch    which room carries out a call on a tracked number
//!              lifecycle   fork, exec, filters, exit
//!              join        from the kernel to a ring
//!              ready       epoll, poll, select: kernel and rings together
//!              socket      state, send, receive, sleep, options, close, a peer's death, demotion
//!              fd          the table of numbers, records, the program's own call
//!              process     identity, signals, registration, the memory of each pair -> windlass-channel
//!              counts      counters and the summary
//!              sys         libc's functions, the kernel, the program's memory, time
//! ```
//!
//! # Model
//! Every tracked socket is a real kernel socket, and the kernel can answer every call on it at any moment. The ring serves a stream
//! socket that belongs to one process, is in at most one epoll instance, and has only options that the library carries out; anything
//! else [demotes](socket::demote) it: from then on it is the kernel's. What a process knows of a number is an entry of
//! [`fd::table`]; what its family of forks knows of a socket is a [`fd::record`].
//!
//! # Life
//! [`start`]: the constructor reads [`options`], finds libc's functions ([`sys::real`]) and prepares [`process::identity`]; nothing
//! else happens until the first socket, which makes table and records, and nobody is asked anything until the first join.
//!
//! # Synchronization
//! The program's threads and signal handlers call in at any time. The table is lock-free; channels have locks of
//! their own, held for some hundred nanoseconds, in which signals wait ([`process::signals`]). No function holds anything
//! with a destructor across a call that may block, because a cancelled thread is unwound through it.
//!
//! # Failure modes
//! What cannot be had (memory, a broker, a function of libc) leaves the socket on the kernel. A close, dup, read
//! or wait that was not seen may cost time; it never gives wrong bytes.
//!
//! # What it shows
//! Nothing, unless asked: [`counts::counters`] to `WINDLASS_COUNTERS`, reasons to `WINDLASS_LOG`. It keeps no descriptor.
//!
//! # Not done
//! Only Linux with glibc, on x86-64 and aarch64. Only streams are tracked. Signal handlers installed by a bare system call, or by `sigset`,
//! are not deferred.

#[macro_use]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod arch;
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
