//! Records: `AF_UNIX` `SOCK_SEQPACKET` and `SOCK_DGRAM`, and what differs from streams.
//!
//! # Model
//! Pairs are found, joined and ended as Unix streams are ([`super::unix`]); what goes by the ring are records
//! ([`windlass_channel::records`]). A send is one record, whole or not at all; a receive is one record, whose rest is dropped. A
//! record without bytes is one, too, and the kernel tells it from the end of the connection only by what else it
//! says. Descriptors and credentials go by the kernel, behind what the ring holds.
//!
//! # Waiting for room
//! The kernel lets a blocked sender go on as soon as there is room for a record, and poll(2) only when a quarter of the send
//! buffer is used. So a sender asleep in poll looks for itself after a while, and ever later: [`LOOK_MS`].
//!
//! # Not done
//! A call with a name (`sendto` with an address) or a flag that is not known leaves what the socket
//! sends there for good.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::{msghdr, sockaddr, socklen_t};
use windlass_channel::records::{self, Got, Record as Taken, RecordFd, RecordSocket};
use windlass_channel::{
    Bufs, End, Link, Moved, Reason, Reclaimed, RecvHow, Sent, Socket, Took, WhenFull, Who,
};

use super::patience::Patience;
use super::waiter::Waiter;
use super::{datagrams, death, kernel, memory, promote, rest, straight, stream, unix};
use crate::calls::message::header;
use crate::counters::{self, Counter};
use crate::own::{Own, Sock};
use crate::record::{Kind, Record};
use crate::{owner, real, signals};

/// How long a sender that is asleep for room in the kernel does so before it looks for itself: first and last, in
/// milliseconds; it doubles.
const LOOK_MS: (c_int, c_int) = (4, 512);
/// How long a blocking sender waits for room in the ring before the kernel has to take the record.
const SPACE_NS: u64 = 10_000_000;
/// Flags of a send that we do ourselves. The others than `MSG_DONTWAIT` mean nothing on such a socket.
const SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;
/// Place in [`Record::engine`] of the bytes of slots that may be in the ring. Free once the socket has joined.
const RING_MAX: usize = promote::LEFT;

/// Whether what the socket carries are records.
#[inline(always)]
pub fn is_record(record: &Record) -> bool {
    matches!(
        record.kind(),
        Some(Kind::UnixSeqpacket | Kind::UnixDatagram | Kind::Udp)
    )
}

/// The socket itself, as the channel uses it.
#[inline(always)]
fn descriptor(sock: &Sock) -> RecordFd {
    RecordFd(sock.fd)
}

/// The program is about to set the size of the send buffer: what is in the ring was sent under the old one, and moves under it.
pub fn before_buffer(sock: &Sock) {
    if let Some(link) = promote::joined(sock) {
        let _ = stream::reclaim(sock, &link);
    }
}

/// Finds out how large the send buffer is: when the socket joins, and when the program has set it.
pub fn note_buffer(sock: &Sock) {
    if !sock.record.has(promote::JOINED | promote::JOINING) || datagrams::is_udp(sock.record) {
        // The place is another one's until the socket joins, and of UDP for good, where the receiver says what there is room for.
        return;
    }
    let mut bytes = 0_i32;
    let known = kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut bytes);
    let bytes = known.map_or(0, |_| usize::try_from(bytes).unwrap_or(0));
    sock.record.engine[RING_MAX].store(records::ring_max(bytes) as u64, Relaxed);
}

/// The calling thread, for the locks of a joined socket; none: the call is the kernel's.
#[inline(always)]
fn caller(sock: &Sock, link: &Link<'static>) -> Option<Who<'static>> {
    if sock.record.has(datagrams::STRAYED) {
        None
    } else {
        stream::caller(sock, link)
    }
}

/// Whether flags of a send ask for what only the kernel does. Of UDP it holds datagrams back for more.
#[inline(always)]
fn is_odd(sock: &Sock, flags: c_int) -> bool {
    flags & !SEND_FLAGS != 0 || flags & libc::MSG_MORE != 0 && datagrams::is_udp(sock.record)
}

/// Whether a send may wait.
#[inline(always)]
fn waits(sock: &Sock, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !stream::is_nonblocking(sock)
}

/// One call that sends.
struct Sending<'a> {
    sock: &'a Sock,
    link: Link<'static>,
    who: Who<'static>,
    flags: c_int,
    waits: bool,
}

impl Sending<'_> {
    fn ring_max(&self) -> usize {
        if datagrams::is_udp(self.sock.record) {
            return datagrams::ring_max(&self.link);
        }
        self.sock.record.engine[RING_MAX].load(Relaxed) as usize
    }

    /// What an attempt does first where the ring is full.
    #[inline(always)]
    fn when_full(&self) -> WhenFull {
        if self.waits || datagrams::is_udp(self.sock.record) {
            WhenFull::Say
        } else {
            WhenFull::Kernel
        }
    }

    /// One attempt.
    #[inline(always)]
    fn attempt(&self, data: &Bufs<'_>, full: WhenFull) -> Sent {
        let out = self.link.outgoing();
        let ring_max = if datagrams::is_long(self.sock.record, data.len()) {
            0
        } else {
            self.ring_max()
        };
        signals::enter();
        let sent = out.send_record(
            self.who,
            &descriptor(self.sock),
            data,
            self.flags | libc::MSG_NOSIGNAL,
            full,
            ring_max,
        );
        signals::leave();
        sent
    }
}

/// `write`, `send` and their kin on a joined socket.
#[inline]
pub fn send(sock: &Sock, link: Link<'static>, data: Bufs<'_>, flags: c_int, own: Own) -> isize {
    if is_odd(sock, flags) {
        return send_uncounted(sock, &link, flags, own);
    }
    let Some(who) = caller(sock, &link) else {
        return own.call();
    };
    let _ = stream::look_for_end(sock, &link);
    if let Some(error) = stream::due(sock, &link) {
        return stream::fail(error);
    }
    let call = Sending {
        sock,
        link,
        who,
        flags,
        waits: waits(sock, flags),
    };
    match call.attempt(&data, call.when_full()) {
        Sent::Bytes(moved) => {
            straight::count_sent(sock, moved);
            data.len() as isize
        }
        sent => send_more(&call, sent, data.len(), |full| call.attempt(&data, full)),
    }
}

/// Goes on after a first attempt to send a record of so many bytes that did not end the call.
#[cold]
#[inline(never)]
fn send_more(
    call: &Sending<'_>,
    mut sent: Sent,
    length: usize,
    attempt: impl Fn(WhenFull) -> Sent,
) -> isize {
    let Sending {
        sock,
        ref link,
        waits,
        ..
    } = *call;
    let mut patience = Patience::new();
    let mut full = call.when_full();
    let (mut waited, mut look) = (0, LOOK_MS.0);
    loop {
        let error = match sent {
            Sent::Bytes(moved) => {
                straight::count_sent(sock, moved);
                return length as isize;
            }
            Sent::RingFull if datagrams::is_udp(sock.record) => {
                if link.outgoing().has_to_drop(length, call.ring_max()) {
                    counters::add(Counter::Dropped, 1);
                    return length as isize;
                }
                full = WhenFull::Kernel;
                0
            }
            Sent::RingFull => {
                if !wait_for_space(call, length) {
                    full = WhenFull::Kernel;
                }
                0
            }
            Sent::KernelFull if !waits => libc::EAGAIN,
            Sent::KernelFull => wait_for_kernel(sock, &mut waited, &mut look),
            Sent::Busy => patience.wait(sock, waits),
            Sent::Error(error) => {
                datagrams::note_refusal(sock, link);
                error
            }
            Sent::Broken => libc::ECONNRESET,
        };
        if error != 0 {
            return stream::fail(error);
        }
        if death::is_peers(sock) {
            death::bury_all(sock, link);
        }
        if let Some(error) = stream::due(sock, link) {
            return stream::fail(error);
        }
        sent = attempt(full);
    }
}

/// Waits for room in the ring: spins, then sleeps for a while. False: there is none.
fn wait_for_space(call: &Sending<'_>, length: usize) -> bool {
    let out = call.link.outgoing();
    let ring_max = call.ring_max();
    let is_over = || {
        let is_over = !out.is_full_for(length, ring_max) || !call.sock.still();
        if !is_over {
            out.pause();
        }
        is_over
    };
    if stream::spin(is_over) {
        return true;
    }
    out.wait_while(SPACE_NS, || out.is_full_for(length, ring_max));
    !out.is_full_for(length, ring_max)
}

/// Sleeps for room in the kernel, for a while; the error that ends the call, or 0. A cancellation point.
fn wait_for_kernel(sock: &Sock, waited: &mut i64, look: &mut c_int) -> c_int {
    let mut limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let known = kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut limit);
    let limit = known.map_or(0, |_| {
        limit.tv_sec.saturating_mul(1_000) + (limit.tv_usec + 999) / 1_000
    });
    let left = limit - *waited;
    if limit != 0 && left <= 0 {
        return libc::EAGAIN;
    }
    let now = if limit == 0 {
        *look
    } else {
        (*look).min(c_int::try_from(left).unwrap_or(c_int::MAX))
    };
    *look = (*look * 2).min(LOOK_MS.1);
    let mut entry = libc::pollfd {
        fd: sock.fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    let interrupted = || owner::thread().interrupted.load(Relaxed);
    let before = interrupted();
    // SAFETY: one entry, of this stack.
    match unsafe { real::poll(&raw mut entry, 1, now) } {
        0 => {
            *waited += i64::from(now);
            0
        }
        // As the kernel's own call: begun again, unless a time limit is set or a handler wants otherwise.
        -1 if real::errno() == libc::EINTR && limit == 0 && interrupted() == before => 0,
        -1 => real::errno(),
        _ => 0,
    }
}

/// A send that only the kernel understands: what the ring holds goes before it, and nothing comes into the ring again.
#[cold]
pub fn send_uncounted(sock: &Sock, link: &Link<'static>, flags: c_int, own: Own) -> isize {
    link.outgoing().set_wild();
    let (mut waited, mut look) = (0, LOOK_MS.0);
    while let Some(Reclaimed::Part(_)) = stream::reclaim(sock, link) {
        let error = if waits(sock, flags) {
            wait_for_kernel(sock, &mut waited, &mut look)
        } else {
            libc::EAGAIN
        };
        if error != 0 {
            return stream::fail(error);
        }
    }
    let result = own.call();
    if result < 0 {
        datagrams::note_refusal(sock, link);
    }
    result
}

/// Real calls of a message: they carry its name and control data.
struct Carrier {
    fd: RecordFd,
    control: (*mut c_void, usize),
    flags: c_int,
    /// Control data and flags that came, once a real receive succeeded.
    came: Cell<Option<(usize, c_int)>>,
}

impl Carrier {
    fn of(sock: &Sock, head: &msghdr, flags: c_int) -> Self {
        Self {
            fd: descriptor(sock),
            control: (head.msg_control, head.msg_controllen),
            flags,
            came: Cell::new(None),
        }
    }
}

impl Socket for Carrier {
    const RECORDS: bool = true;

    fn send(&self, data: &Bufs<'_>, flags: i32) -> Result<usize, i32> {
        let sent = self
            .fd
            .message(libc::SYS_sendmsg, data, self.control, flags)?;
        Ok(sent.0)
    }

    fn recv(&self, into: &Bufs<'_>, _limit: usize, flags: i32) -> Result<usize, i32> {
        Ok(self.recv_record(into, flags)?.copied)
    }

    fn written(&self) -> Option<u64> {
        self.fd.written()
    }

    fn received(&self) -> Option<u64> {
        self.fd.received()
    }

    fn unread(&self) -> Option<u64> {
        self.fd.unread()
    }

    fn raise_send_buffer(&self) {
        self.fd.raise_send_buffer();
    }
}

impl RecordSocket for Carrier {
    fn recv_record(&self, into: &Bufs<'_>, flags: i32) -> Result<Taken, i32> {
        let flags = flags | self.flags | libc::MSG_TRUNC;
        let (length, said) = self
            .fd
            .message(libc::SYS_recvmsg, into, self.control, flags)?;
        self.came.set(Some((said.msg_controllen, said.msg_flags)));
        Ok(Taken {
            copied: length.min(into.len()),
            length,
            is_kernels: true,
        })
    }

    fn has_ended(&self) -> bool {
        self.fd.has_ended()
    }
}

/// `sendmsg`.
pub fn send_message(
    sock: &Sock,
    link: Link<'static>,
    head: &msghdr,
    data: Bufs<'_>,
    flags: c_int,
    own: Own,
) -> isize {
    let has_name = !head.msg_name.is_null() && head.msg_namelen != 0;
    let has_control = !head.msg_control.is_null() && head.msg_controllen != 0;
    // Control data of UDP may make several datagrams of one call.
    let is_several = has_control && datagrams::is_udp(sock.record);
    if has_name || is_several || is_odd(sock, flags) {
        return send_uncounted(sock, &link, flags, own);
    }
    if !has_control {
        return send(sock, link, data, flags, own);
    }
    let Some(who) = caller(sock, &link) else {
        return own.call();
    };
    if let Some(error) = stream::due(sock, &link) {
        return stream::fail(error);
    }
    let carrier = Carrier::of(sock, head, 0);
    let attempt = |_| {
        signals::enter();
        let sent = link.outgoing().send_apart(
            who,
            &carrier.fd,
            &carrier,
            &data,
            flags | libc::MSG_NOSIGNAL,
        );
        signals::leave();
        sent
    };
    let call = Sending {
        sock,
        link,
        who,
        flags,
        waits: waits(sock, flags),
    };
    send_more(&call, attempt(WhenFull::Kernel), data.len(), attempt)
}

/// What a call that receives came to.
enum Outcome {
    /// A record that this library has put into the program's memory.
    Record(Taken),
    /// The result of the program's own call, or that of the end of the connection or an error, with `errno`.
    Result(isize),
}

/// One call that receives.
struct Receiving<'a, S> {
    sock: &'a Sock,
    link: Link<'static>,
    who: Who<'static>,
    how: RecvHow,
    waits: bool,
    own: Own,
    /// What takes the kernel's records.
    through: &'a S,
}

/// What a record's receiver is told: its length where `MSG_TRUNC` asks for that, else what was copied.
const fn told(record: Taken, flags: c_int) -> isize {
    if flags & libc::MSG_TRUNC == 0 {
        record.copied as isize
    } else {
        record.length as isize
    }
}

/// `read`, `recv`, `recvfrom` and their kin on a joined socket. `name` is where the sender's name goes.
#[inline]
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    into: Bufs<'_>,
    flags: c_int,
    name: (*mut sockaddr, *mut socklen_t),
    own: Own,
) -> isize {
    match take(sock, link, &into, flags, own, &descriptor(sock)) {
        Outcome::Record(record) => {
            if !name.1.is_null() {
                return match put_name(sock, name) {
                    0 => told(record, flags),
                    error => stream::fail(error),
                };
            }
            told(record, flags)
        }
        Outcome::Result(result) => result,
    }
}

/// Writes the sender's name where `recvfrom` wants it; the error that the kernel would give, or 0.
#[cold]
fn put_name(sock: &Sock, (name, length): (*mut sockaddr, *mut socklen_t)) -> c_int {
    let Some(room) = memory::fetch(length) else {
        return libc::EFAULT;
    };
    if room.cast_signed() < 0 {
        return libc::EINVAL;
    }
    // SAFETY: all zeros is a header.
    let mut wanted: msghdr = unsafe { std::mem::zeroed() };
    (wanted.msg_name, wanted.msg_namelen) = (name.cast(), room);
    memory::put(length, unix::put_name(sock, &wanted));
    0
}

/// `recvmsg`.
pub fn receive_message(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    into: Bufs<'_>,
    flags: c_int,
    own: Own,
) -> isize {
    let Some(before) = header(message) else {
        return own.call();
    };
    let carrier = Carrier::of(sock, &before, flags & libc::MSG_CMSG_CLOEXEC);
    let record = match take(sock, link, &into, flags, own, &carrier) {
        Outcome::Record(record) => record,
        Outcome::Result(result) => return result,
    };
    let mut after = before;
    after.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    after.msg_controllen = 0;
    if record.is_kernels
        && let Some((control, said)) = carrier.came.get()
    {
        (after.msg_controllen, after.msg_flags) = (control, said);
    } else if record.length > record.copied {
        after.msg_flags |= libc::MSG_TRUNC;
    }
    if !before.msg_name.is_null() {
        after.msg_namelen = unix::put_name(sock, &before);
    }
    memory::put(message, after);
    told(record, flags)
}

/// Receives one record.
#[inline(always)]
fn take<S: RecordSocket>(
    sock: &Sock,
    link: Link<'static>,
    into: &Bufs<'_>,
    flags: c_int,
    own: Own,
    through: &S,
) -> Outcome {
    let Some(who) = caller(sock, &link) else {
        return Outcome::Result(own.call());
    };
    if flags & !stream::RECEIVE_FLAGS != 0 {
        return Outcome::Result(stream::receive_oddly(sock, &link, own));
    }
    // Of records, the kernel tells an error before what it has, and so before what the ring has.
    if death::is_peers(sock) {
        if let Some(error) = death::take_noted(sock) {
            return Outcome::Result(stream::fail(error));
        }
        death::bury_all(sock, &link);
    }
    if link.incoming().reason() != Reason::None {
        unix::note_reset(sock, &link);
    }
    if let Some(error) = stream::due(sock, &link) {
        return Outcome::Result(stream::fail(error));
    }
    let how = RecvHow {
        peek: flags & libc::MSG_PEEK != 0,
        ..RecvHow::default()
    };
    signals::enter();
    let got = link.incoming().recv_record(who, through, into, 0, how);
    signals::leave();
    match got {
        Got::Record(record) => {
            count(sock, record, how);
            Outcome::Record(record)
        }
        Got::No(took) => {
            let waits = waits(sock, flags);
            let call = Receiving {
                sock,
                link,
                who,
                how,
                waits,
                own,
                through,
            };
            take_more(&call, into, took)
        }
    }
}

#[inline(always)]
fn count(sock: &Sock, record: Taken, how: RecvHow) {
    let (ring, kernel) = if record.is_kernels {
        (0, record.length)
    } else {
        (record.length, 0)
    };
    straight::count_received(sock, Moved { ring, kernel }, how);
}

/// Goes on after a first attempt that did not end the call.
#[cold]
#[inline(never)]
fn take_more<S: RecordSocket>(call: &Receiving<'_, S>, into: &Bufs<'_>, mut took: Took) -> Outcome {
    let mut patience = Patience::new();
    let mut has_looked = false;
    loop {
        match judge(call, into, took, &mut patience, &mut has_looked) {
            Some(outcome) => return outcome,
            None => {
                let how = RecvHow {
                    look: has_looked,
                    ..call.how
                };
                let inc = call.link.incoming();
                signals::enter();
                let got = inc.recv_record(call.who, call.through, into, 0, how);
                signals::leave();
                match got {
                    Got::Record(record) => {
                        count(call.sock, record, call.how);
                        return Outcome::Record(record);
                    }
                    Got::No(again) => took = again,
                }
            }
        }
    }
}

/// What follows an attempt that gave no record; nothing: another attempt.
fn judge<S: RecordSocket>(
    call: &Receiving<'_, S>,
    into: &Bufs<'_>,
    took: Took,
    patience: &mut Patience,
    has_looked: &mut bool,
) -> Option<Outcome> {
    let Receiving {
        sock, link, waits, ..
    } = *call;
    let error = match took {
        Took::Empty | Took::Pending if stream::has_error(sock) => {
            stream::take_error(sock).unwrap_or(0)
        }
        Took::Empty | Took::Pending if !waits => {
            let asks =
                !*has_looked && (stream::is_look_due(sock) || stream::is_ending(sock, &link));
            *has_looked |= asks;
            if asks { 0 } else { libc::EAGAIN }
        }
        Took::Empty => return sleep(call, into, has_looked),
        Took::Pending => {
            let mut waiter = Waiter::new(*sock);
            let error = rest::wait_for_pending(&mut waiter, &link);
            waiter.end();
            error
        }
        Took::Eof => return Some(ended(sock, &link)),
        Took::Error(error) => {
            if error == libc::EFAULT {
                // Whether a record went with it, only the kernel knows.
                stream::drain(sock, &link, Reason::Killed);
            } else {
                link.outgoing().plain(Reason::Closing);
            }
            error
        }
        Took::Busy => patience.wait(sock, waits),
        Took::Broken | Took::Bytes(_) | Took::Failing(..) => libc::ECONNRESET,
    };
    (error != 0).then(|| Outcome::Result(stream::fail(error)))
}

/// The end of the connection.
#[cold]
fn ended(sock: &Sock, link: &Link<'static>) -> Outcome {
    match stream::ended(sock, link, 0) {
        stream::Next::Return(result) => Outcome::Result(result),
        stream::Next::Again | stream::Next::Sleep => Outcome::Result(0),
    }
}

/// Waits for a record: spins, then sleeps in the program's own call. Nothing: look at the ring again.
fn sleep<S: RecordSocket>(
    call: &Receiving<'_, S>,
    into: &Bufs<'_>,
    has_looked: &mut bool,
) -> Option<Outcome> {
    let Receiving {
        sock,
        link,
        how,
        own,
        ..
    } = *call;
    let inc = link.incoming();
    let mut waiter = Waiter::new(*sock);
    let asleep = rest::fall_asleep(&mut waiter, &link);
    waiter.end();
    match asleep {
        rest::Wait::Ready => return None,
        rest::Wait::Gone => return Some(Outcome::Result(stream::fail(libc::EBADF))),
        rest::Wait::Waited(error) => {
            *has_looked = true;
            return (error != 0).then(|| Outcome::Result(stream::fail(error)));
        }
        rest::Wait::Asleep => {}
    }
    let result = own.call();
    let error = real::errno();
    let is_record = result > 0 || result == 0 && inc.was_record(&descriptor(sock));
    signals::enter();
    if is_record && !how.peek {
        inc.took_record(result as usize);
    }
    inc.woke(0);
    signals::leave();
    if is_record {
        let record = Taken {
            copied: result as usize,
            length: result as usize,
            is_kernels: true,
        };
        count(sock, record, how);
        return Some(Outcome::Result(result));
    }
    Some(awoke(call, into, result, error))
}

/// What a real call's result means that has taken no record.
fn awoke<S: RecordSocket>(
    call: &Receiving<'_, S>,
    into: &Bufs<'_>,
    result: isize,
    error: c_int,
) -> Outcome {
    let Receiving {
        sock,
        link,
        who,
        how,
        ..
    } = *call;
    let end = match (result, error) {
        (0, _) => End::Eof,
        (_, libc::EFAULT) => {
            stream::drain(sock, &link, Reason::Killed);
            return Outcome::Result(stream::fail(error));
        }
        (_, libc::EAGAIN | libc::EINTR | libc::EBADF) => {
            return Outcome::Result(stream::fail(error));
        }
        _ => End::Error(error),
    };
    let inc = link.incoming();
    let mut patience = Patience::new();
    let last = loop {
        signals::enter();
        let last = inc.recv_record_last(who, &descriptor(sock), into, how, end);
        signals::leave();
        if !matches!(last, Got::No(Took::Busy)) || patience.wait(sock, true) != 0 {
            break last;
        }
    };
    match last {
        Got::Record(record) => {
            if let End::Error(error) = end {
                stream::fail_later(sock, error);
            }
            count(sock, record, how);
            Outcome::Record(record)
        }
        Got::No(Took::Eof) => ended(sock, &link),
        Got::No(Took::Error(error)) => Outcome::Result(stream::fail(error)),
        Got::No(_) => Outcome::Result(stream::fail(libc::ECONNRESET)),
    }
}

/// Bytes that `FIONREAD` adds to the kernel's.
pub fn queued(link: &Link<'static>) -> usize {
    link.incoming().queued_in_records()
}
