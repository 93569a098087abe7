//! [`Waiter`]: a call that waits keeps the open file that it began with.
//!
//! # Model
//! The kernel holds an open file for as long as a system call lasts. A call of this library consists of several system calls, each
//! of which finds the file by its number, and between them another thread may close that number and get it for another file.
//! So a call counts itself as a waiter of the record before its first wait. A close of the last number of a record that has
//! waiters keeps the open file under a private number, by which the waiters go on; the last one of them closes it.
//! So the connection ends when the kernel would end it: after the call. A process in which nobody closes what others
//! wait on pays two atomic additions a wait and needs no descriptor.
//!
//! # States of a record's word
//! | word | meaning | leaves by |
//! | --- | --- | --- |
//! | count | so many calls of this process wait | the end of a call; a close |
//! | count, [`CLOSING`] | a thread closes a number; a call that is about to wait lets it end first | the end of the close |
//!
//! # Ownership and lifetime
//! The channel of a record with waiters is not left, since the private number is a holder of the record like any other: neither
//! channel nor slab is anybody else's before the last waiter has gone. A forked child has no waiters (the kernel wipes the
//! words), and closes its copies of private numbers.
//!
//! # Synchronization
//! Counts and [`CLOSING`] share a word: of a close and a wait that begin at once, the close sees the waiter, or the waiter sees the
//! close. Of the last waiter and a close that end at once, the one whose operation leaves the word 0 closes the private number. The
//! private number is in the table before the program's number leaves it.
//!
//! # Failure modes
//! A thread that leaves a wait by a jump or by cancellation does not take itself off the count. It does so when it waits on another
//! record, closes a number of this one, or ends; a close by another thread meanwhile ends the connection only then.
//! Where the process may have no further descriptor, nothing is kept, and the call ends with what it has moved, or `EBADF`.
//! A number that was closed and opened anew out of our sight is told by `SO_COOKIE`, before each wait and after it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::fd::{call::Sock, record, table};
use crate::process::{identity, signals};
use crate::socket::BUSY;
use crate::sys::{
    clock::Limit,
    kernel::{self, Backoff},
    real,
    reserved::Reserved,
};

/// A thread closes a number of the record.
const CLOSING: u32 = 1 << 31;
/// Waits for a lock of a call that may not wait, and of one that may before it sleeps between them.
const LOCK_WAITS: (u32, u32) = (3, 20);
/// Private numbers begin here if they may, so that the program finds its own ones where it expects them.
const PRIVATE_FROM: usize = 512;

/// Waiters by record; the kernel wipes it in a forked child.
static WORDS: Reserved<AtomicU32> = Reserved::new();
/// Private numbers of this process, at least: one that the program closes stays counted.
static KEPT: AtomicU32 = AtomicU32::new(0);

pub fn make() -> bool {
    let count = record::RECORDS_MAX as usize;
    WORDS.make(count, libc::MAP_PRIVATE, libc::MADV_WIPEONFORK, |_| {})
}

fn word(index: u32) -> &'static AtomicU32 {
    // SAFETY: a record exists only after the words were made, one for each of RECORDS_MAX.
    unsafe { WORDS.at(index as usize) }
}

/// A call that may have to wait. Without a destructor, so that a thread may be cancelled in a wait: [`Waiter::end`] ends it.
#[derive(Clone, Copy)]
pub struct Waiter {
    sock: Sock,
    cookie: u64,
    is_counted: bool,
    is_replaced: bool,
    /// When the wait has to end, once that was asked.
    limit: Option<Limit>,
    /// How often a lock of the channel was not to be had.
    busy: u32,
}

impl Waiter {
    #[inline]
    pub fn new(sock: Sock) -> Self {
        Self {
            sock,
            cookie: sock.record.cookie.load(Relaxed),
            is_counted: false,
            is_replaced: false,
            limit: None,
            busy: 0,
        }
    }

    #[inline]
    pub fn sock(&self) -> &Sock {
        &self.sock
    }

    /// The number was closed and opened anew out of our sight: it is another file's.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Before a wait. False: the number is not the socket's any more.
    pub fn begin(&mut self) -> bool {
        self.enter() && self.is_here()
    }

    /// Before the first part of a call that has several, each of which may wait. False: as above.
    pub fn enter(&mut self) -> bool {
        if !self.is_counted {
            self.count();
        }
        self.follow()
    }

    fn count(&mut self) {
        let index = self.sock.index();
        let waits = &identity::thread().waits;
        match waits.load(Relaxed) {
            0 => {}
            // A call that this one is a part of is counted.
            outer if outer == index + 1 => return,
            _ => abandon(),
        }
        let mut backoff = Backoff::default();
        signals::enter();
        while word(index).fetch_add(1, SeqCst) & CLOSING != 0 && self.sock.still() {
            uncount(index);
            backoff.wait();
        }
        waits.store(index + 1, Relaxed);
        self.is_counted = true;
        signals::leave();
    }

    /// The same by what the table says: after a real call, in which the kernel held the file, and where nothing was waited for.
    #[inline]
    pub fn follow(&mut self) -> bool {
        self.sock.still() || self.find()
    }

    #[cold]
    fn find(&mut self) -> bool {
        let index = self.sock.index();
        let is_counted = identity::thread().waits.load(Relaxed) == index + 1;
        match table::numbers_of(index).next().filter(|_| is_counted) {
            Some(other) => {
                self.sock = other;
                true
            }
            None => false,
        }
    }

    /// After a wait, and before the socket is used by its number again: it may have another one. False: it has none.
    pub fn is_here(&mut self) -> bool {
        if !self.follow() {
            return false;
        }
        if is_same(self.sock.fd, self.cookie) {
            return true;
        }
        self.is_replaced = true;
        table::changed(&self.sock);
        false
    }

    #[inline]
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_counted)
            && identity::thread().waits.load(Relaxed) == self.sock.index() + 1
        {
            abandon();
        }
    }

    /// Sleeps until the kernel has room or bytes, for as long as an option (`SO_SNDTIMEO`, `SO_RCVTIMEO`) says; the error that ends
    /// the call, or 0. A cancellation point.
    pub fn wait_for(&mut self, events: i16, option: i32) -> i32 {
        if !self.begin() {
            return libc::EBADF;
        }
        let limit = self.limit(option);
        let mut entry = libc::pollfd {
            fd: self.sock.fd,
            events,
            revents: 0,
        };
        let (before, is_endless) = (signals::handled(), limit.left_ns().is_none());
        // SAFETY: one entry, of this stack; no mask.
        let error = match unsafe { limit.poll(&raw mut entry, 1, std::ptr::null()) } {
            0 => libc::EAGAIN,
            // As the kernel's own call: begun again, unless a time limit is set or a handler wants otherwise.
            -1 if real::errno() != libc::EINTR => real::errno(),
            -1 if is_endless && !signals::was_interrupted(before) => 0,
            -1 => real::errno(),
            _ => 0,
        };
        self.checked(error)
    }

    /// Waits a little for a lock of the channel that somebody holds; the error that ends the call, or 0. The holder lives, and may be
    /// stopped for as long as somebody wants: that is a wait, as for a peer that does not read.
    pub fn wait_for_lock(&mut self, waits: bool, option: i32) -> i32 {
        if waits && !self.begin() {
            return libc::EBADF;
        }
        self.busy = self.busy.saturating_add(1);
        let (short, long) = LOCK_WAITS;
        if !waits && self.busy >= short {
            BUSY.get().into_iter().for_each(|busy| busy(&self.sock));
            return libc::EAGAIN;
        }
        let error = if self.busy < long {
            std::thread::yield_now();
            0
        // SAFETY: no entries; a cancellation point and interrupted by signals, as the kernel's own wait.
        } else if unsafe { real::poll(std::ptr::null_mut(), 0, 1) } < 0 {
            real::errno()
        } else {
            0
        };
        if error == 0 && waits && self.limit(option).is_over() {
            return libc::EAGAIN;
        }
        self.checked(error)
    }

    /// What a wait has come to, unless the socket is gone.
    fn checked(&mut self, error: i32) -> i32 {
        if error == 0 && !self.is_here() {
            libc::EBADF
        } else {
            error
        }
    }

    /// How long a wait may last by an option: the time is the call's, and begins with its first wait.
    fn limit(&mut self, option: i32) -> Limit {
        let fd = self.sock.fd;
        *self
            .limit
            .get_or_insert_with(|| Limit::from_ns(limit_ns(fd, option)))
    }
}

/// What an option says, in nanoseconds; none: there is no limit.
fn limit_ns(fd: i32, option: i32) -> Option<u64> {
    let mut limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    kernel::option(fd, libc::SOL_SOCKET, option, &mut limit).ok()?;
    let micros = (limit.tv_sec as u64).saturating_mul(1_000_000) + limit.tv_usec as u64;
    (micros != 0).then(|| micros.saturating_mul(1_000))
}

/// Whether a number names the socket with this cookie; true where that is not known.
fn is_same(fd: i32, cookie: u64) -> bool {
    cookie == 0 || kernel::cookie(fd) == Ok(cookie)
}

/// Looks whether a number that nobody has closed in our sight still names its socket. False: it is forgotten.
#[cold]
pub fn verify(sock: &Sock) -> bool {
    let is_right = is_same(sock.fd, sock.record.cookie.load(Relaxed));
    if !is_right {
        table::changed(sock);
    }
    is_right
}

fn uncount(index: u32) {
    if word(index).fetch_sub(1, SeqCst) == 1 {
        close_kept(index);
    }
}

/// The calling thread waits no more, or has left a wait by a jump, by cancellation or by its end.
pub fn abandon() {
    let waits = identity::thread().waits.swap(0, Relaxed);
    if waits != 0 {
        uncount(waits - 1);
    }
}

/// A number is about to be closed. True: its open file stays, under another number.
pub fn keep(sock: &Sock) -> bool {
    let index = sock.index();
    if identity::thread().waits.load(Relaxed) == index + 1 {
        abandon();
    }
    let has_waiters = word(index).fetch_or(CLOSING, SeqCst) & !CLOSING != 0;
    if !has_waiters || table::numbers_of(index).nth(1).is_some() {
        return false;
    }
    let double = |least| kernel::fcntl(sock.fd, libc::F_DUPFD_CLOEXEC, least);
    let number = double(PRIVATE_FROM).or_else(|_| double(0));
    let Ok(number) = number else { return false };
    KEPT.fetch_add(1, SeqCst);
    table::keep(sock, number as i32);
    true
}

/// A number of the record was taken from the table.
pub fn closed(index: u32) {
    if word(index).fetch_and(!CLOSING, SeqCst) == CLOSING {
        close_kept(index);
    }
}

/// Nobody waits any more.
fn close_kept(index: u32) {
    if KEPT.load(SeqCst) == 0 {
        return;
    }
    for sock in table::numbers_of(index).filter(|sock| table::is_private(sock.word)) {
        table::closing(sock);
        KEPT.fetch_sub(1, SeqCst);
        kernel::close(sock.fd as usize);
    }
}

/// In a forked child: only a wait that the forking thread is in the middle of, in a signal handler, is still one.
pub fn forked() {
    match identity::thread().waits.load(Relaxed) {
        0 => {}
        waits => word(waits - 1).store(1, Relaxed),
    }
    if KEPT.swap(0, Relaxed) != 0 {
        for sock in table::each().filter(|sock| table::is_private(sock.word)) {
            table::forget_private(&sock);
            kernel::close(sock.fd as usize);
        }
    }
}
