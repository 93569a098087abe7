//! Receives on a joined socket: ring or kernel, and how a call waits.
//!
//! # Model
//! As [`send`](crate::socket::send): attempts, and waits between them.

use windlass_channel::{Bufs, End, Link, Moved, Reason, RecvHow, Took, Who};

use crate::fd::{
    call::{Own, Sock},
    record::flag,
};
use crate::process::signals;
use crate::socket::{
    demote::demote,
    errors::{fail, fail_later, take_error},
    file_flags,
    kernel_look::{count_received, is_ending, is_look_due},
    kind, peer_death,
    reclaim::{caller, drain},
    sleep, state,
    waiter::{self, Waiter},
};
use crate::sys::real;

/// Flags that mean something to a receive by the ring.
pub const FLAGS: i32 = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_WAITALL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives on a joined socket; flags as `recv`'s.
#[cold]
#[inline(never)]
pub fn receive(sock: Sock, link: Link<'static>, into: Bufs<'_>, flags: i32, own: Own) -> isize {
    let Some(who) = caller(&sock, &link) else {
        return own.call();
    };
    if into.is_empty() {
        // The kernel says EAGAIN to one who asks for nothing while it has nothing.
        return if link.incoming().ring_ready() {
            0
        } else {
            peer_death::receive_nothing(&sock, &link, own)
        };
    }
    if flags & !FLAGS != 0 {
        return receive_oddly(&sock, &link, own);
    }
    let how = RecvHow {
        peek: flags & libc::MSG_PEEK != 0,
        // tcp(7); a Unix stream gives the bytes all the same.
        discard: flags & libc::MSG_TRUNC != 0 && kind::of(sock.record).is_counted,
        look: false,
    };
    let mut call = Receiving {
        waiter: Waiter::new(sock),
        link,
        who,
        how,
        waits: file_flags::waits(&sock, flags),
        all: flags & libc::MSG_WAITALL != 0,
        own,
        rest: into,
        done: 0,
    };
    let result = call.run();
    call.waiter.end();
    result
}

/// One call that receives, and how far it is.
struct Receiving<'a> {
    waiter: Waiter,
    link: Link<'static>,
    who: Who<'static>,
    /// It asks the kernel at its next attempt, whatever the counts say, if it has been woken or has found a look due.
    how: RecvHow,
    waits: bool,
    all: bool,
    own: Own,
    rest: Bufs<'a>,
    done: usize,
}

enum Next {
    Return(isize),
    Again,
    Sleep,
}

impl Next {
    fn result(self) -> Option<isize> {
        match self {
            Next::Return(result) => Some(result),
            Next::Again | Next::Sleep => None,
        }
    }
}

impl Receiving<'_> {
    fn run(&mut self) -> isize {
        loop {
            let fd = state::descriptor(self.waiter.sock());
            signals::enter();
            let inc = self.link.incoming();
            let took = inc.recv(self.who, &fd, &self.rest, 0, self.how);
            signals::leave();
            match self.judge(took) {
                Next::Return(result) => return result,
                Next::Again => {}
                Next::Sleep => {
                    if let Some(ended) = self.wait_for_bytes() {
                        return ended;
                    }
                }
            }
        }
    }

    fn judge(&mut self, took: Took) -> Next {
        let sock = &{ *self.waiter.sock() };
        match took {
            Took::Bytes(moved) => {
                self.count(moved);
                if self.rest.is_empty() || !self.all || self.how.peek {
                    Next::Return(self.done as isize)
                } else {
                    Next::Again
                }
            }
            Took::Failing(moved, error) => {
                fail_later(sock, peer_death::named(sock, error));
                self.count(moved);
                Next::Return(self.done as isize)
            }
            Took::Empty | Took::Pending if sock.record.has(flag::FAILED) => {
                take_error(sock).map_or(Next::Again, |error| self.stopped(error))
            }
            Took::Empty | Took::Pending if !self.waits => self.find_nothing(),
            Took::Empty => Next::Sleep,
            Took::Pending => match sleep::wait_for_pending(&mut self.waiter, &self.link) {
                0 => {
                    // What has woken it may be the end, which only the kernel tells.
                    self.how.look = true;
                    Next::Again
                }
                error => self.stopped(error),
            },
            Took::Eof => self.ended(),
            Took::Error(error) => {
                if error != libc::EFAULT {
                    self.link.outgoing().stop(Reason::Closing);
                }
                self.stopped(peer_death::named(sock, error))
            }
            Took::Broken => self.stopped(libc::ECONNRESET),
            Took::Busy => match self.waiter.wait_for_lock(self.waits, libc::SO_RCVTIMEO) {
                0 => Next::Again,
                error => self.stopped(error),
            },
        }
    }

    fn count(&mut self, moved: Moved) {
        count_received(self.waiter.sock(), moved, self.how);
        self.done += moved.total();
        self.rest.advance(moved.total());
    }

    /// A call that does not wait finds nothing: it looks at the kernel once, if that is due, and at its number.
    fn find_nothing(&mut self) -> Next {
        let sock = &{ *self.waiter.sock() };
        if self.how.look || !(is_look_due(sock) || is_ending(sock, &self.link)) {
            return self.stopped(libc::EAGAIN);
        }
        self.how.look = true;
        if waiter::verify(sock) {
            Next::Again
        } else {
            Next::Return(self.own.call())
        }
    }

    /// An error ends the call: it has what it has. Where the number is not the socket's any more, it is another file's.
    #[cold]
    fn stopped(&self, error: i32) -> Next {
        Next::Return(if self.done > 0 {
            self.done as isize
        } else if error == libc::EBADF && self.waiter.is_replaced() {
            self.own.call()
        } else {
            fail(error)
        })
    }

    /// Waits for bytes: spins, then sleeps in the kernel. The call's result if that ends it.
    fn wait_for_bytes(&mut self) -> Option<isize> {
        match sleep::fall_asleep(&mut self.waiter, &self.link) {
            sleep::Wait::Ready => return None,
            sleep::Wait::Gone => return self.stopped(libc::EBADF).result(),
            sleep::Wait::Asleep => {}
        }
        let result = self.sleep();
        let kernel = usize::try_from(result).unwrap_or(0);
        if !self.waiter.follow() {
            // The channel is nobody's, or another socket's: what came is the call's.
            return Some(if self.done == 0 {
                result
            } else {
                (self.done + kernel) as isize
            });
        }
        let taken = if self.how.peek { 0 } else { kernel };
        signals::enter();
        self.link.incoming().woke(taken);
        signals::leave();
        self.awoke(result)
    }

    /// The end of the stream; an error that a reclaim met comes first, and a peer that was killed with unread bytes in its ring is
    /// a reset, as it would have been with unread bytes in the kernel.
    #[cold]
    fn ended(&self) -> Next {
        let (sock, link) = (self.waiter.sock(), &self.link);
        // What is sent from now on is the kernel's matter.
        link.outgoing().stop(Reason::Closing);
        if self.done > 0 {
            return Next::Return(self.done as isize);
        }
        peer_death::notice_of(sock, link);
        peer_death::take_owed(sock).map_or(Next::Return(0), |error| self.stopped(error))
    }

    /// The real call, in which the thread sleeps: the program's own while nothing has been received yet.
    fn sleep(&self) -> isize {
        let fd = self.waiter.sock().fd;
        if self.done == 0 {
            return self.own.with(0, fd as usize).call();
        }
        let (at, length) = self.rest.piece();
        let flags = libc::MSG_WAITALL | if self.how.discard { libc::MSG_TRUNC } else { 0 };
        // SAFETY: the program's own buffer, which the kernel checks.
        unsafe { real::recv(fd, at.cast(), length, flags) }
    }

    /// What a real call's result means: the end of the call, or that it goes on.
    fn awoke(&mut self, result: isize) -> Option<isize> {
        if result > 0 {
            // A real call that is to wait for all comes back with less only after a signal, or at the end. Only the first of
            // several pieces was asked for where something had been received before.
            let (kernel, (_, piece)) = (result as usize, self.rest.piece());
            let goes_on = self.all && self.done > 0 && kernel == piece && piece < self.rest.len();
            self.count(Moved { ring: 0, kernel });
            return (!goes_on).then_some(self.done as isize);
        }
        let (sock, error) = (&{ *self.waiter.sock() }, real::errno());
        let end = match (result, error) {
            (0, _) => End::Eof,
            (_, libc::EAGAIN | libc::EINTR | libc::EFAULT | libc::EBADF) => {
                return self.stopped(error).result();
            }
            _ => End::Error(error),
        };
        signals::enter();
        let (inc, fd) = (self.link.incoming(), state::descriptor(sock));
        let last = inc.recv_last(self.who, &fd, &self.rest, self.how, end);
        signals::leave();
        if let (Took::Busy, End::Error(error)) = (last, end) {
            // Another thread is inside. The kernel will only tell the end again.
            fail_later(sock, peer_death::named(sock, error));
        }
        self.how.look = true;
        self.judge(last).result()
    }
}

/// A receive with flags that only the kernel understands: urgent data, the queue of errors.
#[cold]
pub fn receive_oddly(sock: &Sock, link: &Link<'static>, own: Own) -> isize {
    drain(sock, link, Reason::Flag);
    let result = own.call();
    if result < 0 {
        real::set_errno(peer_death::named(sock, real::errno()));
    }
    peer_death::received_nothing(sock, result)
}

/// `recvfrom` that wants the sender's name: the kernel's, since only its call knows where to put it.
#[cold]
pub fn receive_named(sock: &Sock, own: Own) -> isize {
    demote(sock, Reason::Flag);
    peer_death::received_nothing(sock, own.call())
}
