//! At an exec: a socket whose peer has died gives way to one that says in the kernel what the ring and this library say of it.
//!
//! # Model
//! The next image of the program looks only at the kernel, and nobody can add to what is unread in a socket whose peer is
//! gone. So a new pair of sockets takes what is unread, from the kernel and then from the ring; a TCP one is a connection
//! between the addresses of the old one. Then the far end is closed as the peer was, with a FIN or with a reset, and the near
//! end takes the numbers of the old socket, and its places in epoll instances.
//!
//! # Limits
//! The new socket has other ports than the old one, and a Unix socket has no name; of the options it has those of
//! [`copy_settings`]. UDP needs none: [`send_again`]. Where another process has the socket, too, or descriptors are on their way in it, the old one stays, and
//! what is in the ring is lost with this image ([`Counter::Lost`]). Before a reset of a TCP connection no more bytes come than
//! `net.core.rmem_max` has room for.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use windlass_channel::records::{Got, RecordFd};
use windlass_channel::{Bufs, Link, Reclaimed, RecvHow, Took, Who, sys};

use super::{datagrams, death, kernel, promote, records, sets, stream, unix};
use crate::counters::{self, Counter};
use crate::own::Sock;
use crate::record::{Kind, flag};
use crate::{signals, table};

/// Room for all that can be unread, as `SO_SNDBUF` and `SO_RCVBUF`; and for one record.
const ROOM: i32 = 1 << 20;
/// How long is waited for what the kernel does by itself, in milliseconds: it closes what a killed process had, and connects.
const PATIENCE_MS: u32 = 100;
/// How long it may take after the process has ended, in milliseconds: for the last segments.
const LAST_MS: u32 = 5;

const NONE: usize = 0;

/// A socket of the new pair; closed unless its number was given away.
struct End(c_int);

impl Drop for End {
    fn drop(&mut self) {
        kernel::close(self.0 as usize);
    }
}

/// Memory for what is moved. An exec may be made in a signal handler, so the heap is not to be had.
struct Room(NonNull<u8>);

impl Room {
    fn take() -> Option<Self> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let args = [NONE, ROOM as usize, access, flags, usize::MAX, NONE];
        // SAFETY: an anonymous mapping at any address.
        let base = unsafe { sys::checked(libc::SYS_mmap, args) }.ok()?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(base)).map(Self)
    }

    fn whole(&self) -> Bufs<'_> {
        Bufs::one(self.0.as_ptr(), ROOM as usize)
    }

    /// Its first bytes.
    fn first(&self, bytes: usize) -> &[u8] {
        // SAFETY: the mapping is readable and this long, and nobody writes while the slice lives.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), bytes.min(ROOM as usize)) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let args = [
            self.0.as_ptr() as usize,
            ROOM as usize,
            NONE,
            NONE,
            NONE,
            NONE,
        ];
        // SAFETY: the range was mapped by `take`, and nobody has it any more.
        let _ = unsafe { sys::checked(libc::SYS_munmap, args) };
    }
}

/// How the peer went, as far as this end still has to see it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It has sent all.
    Eof,
    /// A reset has come, and no call has told of it.
    Reset,
    /// The same after the peer's end: the kernel tells it as `EPIPE`.
    ResetAfterEnd,
    /// A reset was told, or both ends have sent all.
    Over,
}

/// Replaces the socket if its peer has died and the kernel does not know all of it; whether it did.
pub fn replace(sock: &Sock, link: &Link<'static>) -> bool {
    let is_gone = death::is_peers(sock) || link.info(link.side().other()).join == stream::LEFT;
    if datagrams::is_datagram(sock.record) {
        return is_gone && link.incoming().queued() != 0 && keep_datagrams(sock, link);
    }
    // Where the kernel was made to note the reset of a TCP connection, it has the wrong name.
    let is_misnamed = sock.record.kind() == Some(Kind::Tcp)
        && sock.record.has(death::RESET)
        && death::events(sock) & libc::EPOLLERR != 0;
    let is_needed = link.incoming().queued() != 0 || is_misnamed || unix::owes_error(sock);
    if !is_gone || !is_needed || !has_ended(sock, link) {
        return false;
    }
    counted(make_and_put(sock, link))
}

/// Whether it was done, which is counted.
fn counted(done: Option<()>) -> bool {
    let counter = match done {
        Some(()) => Counter::Replaced,
        None => Counter::Lost,
    };
    counters::add(counter, 1);
    done.is_some()
}

/// The same of datagrams: nothing says in the kernel that a peer is gone. UDP's are sent once more, whoever shares the socket; a
/// Unix socket gives way if it has no name, by which others may reach it later.
fn keep_datagrams(sock: &Sock, link: &Link<'static>) -> bool {
    let pid = link.info(link.side().other()).pid;
    let mut name = [0_u8; 128];
    let length = kernel::name(sock.fd, false, &mut name).unwrap_or(name.len());
    let kept = if !within(PATIENCE_MS, || !kernel::lives(pid)) {
        None
    } else if datagrams::is_udp(sock.record) {
        send_again(sock, link)
    } else if length == size_of::<libc::sa_family_t>() {
        make_and_put(sock, link)
    } else {
        None
    };
    counted(kept)
}

/// Puts what is unread in the ring into the kernel's queue, behind what is there, from a socket at the address of the dead peer.
fn send_again(sock: &Sock, link: &Link<'static>) -> Option<()> {
    let (mut own, mut peers) = ([0_u8; 128], [0_u8; 128]);
    let own_length = kernel::name(sock.fd, false, &mut own).ok()?;
    let peers_length = kernel::name(sock.fd, true, &mut peers).ok()?;
    let family = u16::from_ne_bytes(*peers.first_chunk()?);
    let far = inet(family, libc::SOCK_DGRAM)?;
    let at = peers.as_ptr() as usize;
    let args = [far.0 as usize, at, peers_length, 0, 0, 0];
    // SAFETY: the name lives for the call.
    unsafe { sys::checked(libc::SYS_bind, args) }.ok()?;
    let at = own.as_ptr() as usize;
    let args = [far.0 as usize, at, own_length, 0, 0, 0];
    // SAFETY: as above.
    unsafe { sys::checked(libc::SYS_connect, args) }.ok()?;
    let who = stream::caller(sock, link)?;
    let is_moved = || {
        signals::enter();
        let reclaimed = link.other().outgoing().reclaim(who, &RecordFd(far.0));
        signals::leave();
        matches!(reclaimed, Reclaimed::Empty | Reclaimed::All(_))
    };
    within(PATIENCE_MS, is_moved).then_some(())
}

/// A socket of a family of IP.
fn inet(family: u16, kind: c_int) -> Option<End> {
    let kind = (kind | libc::SOCK_CLOEXEC) as usize;
    let args = [usize::from(family), kind, 0, 0, 0, 0];
    // SAFETY: no pointers.
    let made = unsafe { sys::checked(libc::SYS_socket, args) }.ok()?;
    Some(End(made as c_int))
}

/// Whether the kernel has ended the connection, too: else another process has the peer's socket. One that is just being killed
/// is waited for.
fn has_ended(sock: &Sock, link: &Link<'static>) -> bool {
    let pid = link.info(link.side().other()).pid;
    let ends = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    let is_over = || kernel::poll_one(sock.fd, libc::EPOLLRDHUP as u32) & ends != 0;
    within(PATIENCE_MS, || is_over() || !kernel::lives(pid)) && within(LAST_MS, is_over)
}

/// Looks every millisecond; false if it did not come true within so many.
fn within(millis: u32, is_true: impl Fn() -> bool) -> bool {
    for _ in 0..millis {
        if is_true() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    is_true()
}

/// The new socket in the place of the old one; none if that is not possible.
fn make_and_put(sock: &Sock, link: &Link<'static>) -> Option<()> {
    let numbers = || table::each().filter(|other| other.index() == sock.index());
    let is_shared = sock.record.holders.load(Relaxed) as usize != numbers().count();
    let kind = sock.record.kind()?;
    if is_shared || kind != Kind::Tcp && carries_descriptors(sock.fd) {
        return None;
    }
    let who = stream::caller(sock, link)?;
    let ending = ending(sock);
    let (near, far) = match kind {
        Kind::Tcp => connection(sock.fd)?,
        Kind::UnixStream => pair(libc::SOCK_STREAM)?,
        Kind::UnixSeqpacket => pair(libc::SOCK_SEQPACKET)?,
        Kind::UnixDatagram => pair(libc::SOCK_DGRAM)?,
        _ => return None,
    };
    let room = Room::take()?;
    let moved = if records::is_record(sock.record) {
        // The kernel tells an error of records before what it has.
        let _ = death::take_noted(sock);
        move_records(sock, link, who, &room, &far)?
    } else {
        move_bytes(sock, link, who, &room, &far)?
    };
    if kind == Kind::Tcp {
        end_connection(&near, far, ending, moved);
    } else {
        end_pair(&near, far, ending)?;
    }
    copy_settings(sock, near.0);
    for number in numbers() {
        let cloexec = kernel::descriptor_flags(number.fd).unwrap_or(0) & libc::FD_CLOEXEC as usize;
        let flags = if cloexec != 0 { libc::O_CLOEXEC } else { 0 };
        let args = [near.0 as usize, number.fd as usize, flags as usize, 0, 0, 0];
        // SAFETY: no pointers; the number is this socket's.
        let _ = unsafe { sys::checked(libc::SYS_dup3, args) };
    }
    sets::add_again(sock);
    Some(())
}

fn ending(sock: &Sock) -> Ending {
    let events = death::events(sock);
    let is_tcp = sock.record.kind() == Some(Kind::Tcp);
    if events & libc::EPOLLERR != 0 && is_tcp && death::take_noted(sock) == Some(libc::EPIPE) {
        Ending::ResetAfterEnd
    } else if events & libc::EPOLLERR != 0 || unix::owes_error(sock) {
        Ending::Reset
    } else if events & libc::EPOLLHUP != 0 {
        Ending::Over
    } else {
        Ending::Eof
    }
}

/// Two Unix sockets that are connected with each other; the far one has room for all that can be unread.
fn pair(kind: c_int) -> Option<(End, End)> {
    let mut made = [-1_i32; 2];
    let kind = kind | libc::SOCK_CLOEXEC;
    let at = made.as_mut_ptr() as usize;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, at, 0, 0];
    // SAFETY: two numbers, of this stack.
    unsafe { sys::checked(libc::SYS_socketpair, args) }.ok()?;
    let [near, far] = made.map(End);
    // More than may be had is not needed: what is unread fits in as much.
    let _ = kernel::set_option(far.0, libc::SOL_SOCKET, libc::SO_SNDBUF, &ROOM);
    Some((near, far))
}

/// The far end of a Unix pair is closed as the peer was.
fn end_pair(near: &End, far: End, ending: Ending) -> Option<()> {
    if ending == Ending::Reset {
        // What it leaves unread resets the connection.
        send(near.0, &[0]).ok()?;
    }
    drop(far);
    Some(())
}

/// Two TCP sockets that are connected with each other, at the address of an old one; the near one has room for all that can be
/// unread.
fn connection(old: c_int) -> Option<(End, End)> {
    let mut name = [0_u8; 128];
    let length = kernel::name(old, false, &mut name).ok()?;
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let make = || inet(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let (listener, far) = (make()?, make()?);
    // As much as may be had, before the connection: its window is agreed on then.
    let _ = kernel::set_option(listener.0, libc::SOL_SOCKET, libc::SO_RCVBUF, &ROOM);
    // Any port: the old one's is taken.
    name.get_mut(2..4)?.fill(0);
    let at = name.as_ptr() as usize;
    let args = [listener.0 as usize, at, length, 0, 0, 0];
    // SAFETY: the name lives for the call.
    unsafe { sys::checked(libc::SYS_bind, args) }.ok()?;
    let args = [listener.0 as usize, 1, 0, 0, 0, 0];
    // SAFETY: no pointers.
    unsafe { sys::checked(libc::SYS_listen, args) }.ok()?;
    let length = kernel::name(listener.0, false, &mut name).ok()?;
    let at = name.as_ptr() as usize;
    let args = [far.0 as usize, at, length, 0, 0, 0];
    // SAFETY: the name lives for the call. That it goes on, or has failed, the next look says.
    let _ = unsafe { sys::checked(libc::SYS_connect, args) };
    let input = libc::POLLIN as u32;
    if !within(PATIENCE_MS, || kernel::poll_one(listener.0, input) != 0) {
        return None;
    }
    let args = [listener.0 as usize, 0, 0, libc::SOCK_CLOEXEC as usize, 0, 0];
    // SAFETY: no pointers.
    let near = End(unsafe { sys::checked(libc::SYS_accept4, args) }.ok()? as c_int);
    let (mut own, mut peers) = ([0_u8; 128], [0_u8; 128]);
    kernel::name(far.0, false, &mut own).ok()?;
    kernel::name(near.0, true, &mut peers).ok()?;
    // Anybody on this host may have been faster.
    (own == peers).then_some((near, far))
}

/// The far end of a TCP connection is closed as the peer was, once so many bytes have come to the near end, or as many as will.
fn end_connection(near: &End, far: End, ending: Ending, moved: usize) {
    if ending == Ending::Eof {
        return;
    }
    let _ = within(PATIENCE_MS, || kernel::unread(near.0) >= moved);
    if ending == Ending::ResetAfterEnd {
        let args = [far.0 as usize, libc::SHUT_WR as usize, 0, 0, 0, 0];
        // SAFETY: no pointers.
        let _ = unsafe { sys::checked(libc::SYS_shutdown, args) };
        let end = libc::EPOLLRDHUP as u32;
        let _ = within(PATIENCE_MS, || kernel::poll_one(near.0, end) & end != 0);
    }
    let linger = [1_i32, 0_i32];
    let _ = kernel::set_option(far.0, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    drop(far);
    if ending == Ending::Over {
        let mut told = 0_i32;
        let _ = kernel::option(near.0, libc::SOL_SOCKET, libc::SO_ERROR, &mut told);
    }
}

fn send(fd: c_int, bytes: &[u8]) -> kernel::Done {
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let args = [
        fd as usize,
        bytes.as_ptr() as usize,
        bytes.len(),
        flags,
        0,
        0,
    ];
    // SAFETY: the bytes live for the call.
    unsafe { sys::checked(libc::SYS_sendto, args) }
}

/// How everything is taken that can come.
const HOW: RecvHow = RecvHow {
    peek: false,
    discard: false,
    look: true,
};

/// Takes the unread bytes of a stream, and sends them to the new socket; how many. None: not all of them could be had.
fn move_bytes(
    sock: &Sock,
    link: &Link<'static>,
    who: Who<'static>,
    room: &Room,
    far: &End,
) -> Option<usize> {
    if kernel::unread(sock.fd) + link.incoming().queued() > ROOM as usize {
        return None;
    }
    let mut all = 0;
    loop {
        signals::enter();
        let fd = promote::descriptor(sock);
        let took = link.incoming().recv(who, &fd, &room.whole(), 0, HOW);
        signals::leave();
        match took {
            Took::Bytes(moved) | Took::Failing(moved, _) => {
                send_all(far.0, room.first(moved.total()))?;
                all += moved.total();
            }
            Took::Eof | Took::Empty | Took::Error(_) => return Some(all),
            Took::Pending | Took::Busy | Took::Broken => return None,
        }
    }
}

fn send_all(fd: c_int, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let sent = send(fd, bytes).ok()?;
        bytes = bytes.get(sent..)?;
    }
    Some(())
}

/// The same of records; how many bytes they have.
fn move_records(
    sock: &Sock,
    link: &Link<'static>,
    who: Who<'static>,
    room: &Room,
    far: &End,
) -> Option<usize> {
    let through = RecordFd(sock.fd);
    let mut all = 0;
    loop {
        signals::enter();
        let got = link
            .incoming()
            .recv_record(who, &through, &room.whole(), 0, HOW);
        signals::leave();
        match got {
            Got::Record(record) if record.length == record.copied => {
                send(far.0, room.first(record.copied)).ok()?;
                all += record.copied;
            }
            Got::No(Took::Eof | Took::Empty | Took::Error(_)) => return Some(all),
            Got::Record(_) | Got::No(_) => return None,
        }
    }
}

/// Whether descriptors lie among the first unread bytes of the kernel: a receive without room for them says so.
fn carries_descriptors(fd: c_int) -> bool {
    let mut byte = 0_u8;
    let mut piece = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: zeros are a header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT) as usize;
    let args = [fd as usize, &raw mut header as usize, flags, 0, 0, 0];
    // SAFETY: the header and what it names live for the call.
    let seen = unsafe { sys::checked(libc::SYS_recvmsg, args) };
    seen.is_ok() && header.msg_flags & libc::MSG_CTRUNC != 0
}

/// Options that are copied: whole numbers.
const OPTIONS: [(c_int, c_int); 5] = [
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
];

/// Gives the new socket the flags, the time limits and the options of the old one that programs are likely to have set.
fn copy_settings(sock: &Sock, to: c_int) {
    let from = sock.fd;
    if let Ok(flags) = kernel::file_flags(from) {
        let args = [to as usize, libc::F_SETFL as usize, flags, 0, 0, 0];
        // SAFETY: no pointers.
        let _ = unsafe { sys::checked(libc::SYS_fcntl, args) };
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut limit = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        copy_option(from, to, libc::SOL_SOCKET, name, &mut limit);
    }
    copy_option(from, to, libc::SOL_SOCKET, libc::SO_LINGER, &mut [0_i32; 2]);
    for (level, name) in OPTIONS {
        copy_option(from, to, level, name, &mut 0_i32);
    }
    if sock.record.kind() == Some(Kind::Tcp) {
        let mut bytes = 0_i32;
        // It is told as twice what was set.
        if kernel::option(from, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes).is_ok() {
            let _ = kernel::set_option(to, libc::SOL_SOCKET, libc::SO_RCVBUF, &(bytes / 2));
        }
        let is_quick = i32::from(sock.record.has(flag::NODELAY));
        let _ = kernel::set_option(to, libc::IPPROTO_TCP, libc::TCP_NODELAY, &is_quick);
    }
}

/// An option that the kernel does not know, or does not let this process set, stays as it is.
fn copy_option<T: kernel::Plain>(from: c_int, to: c_int, level: c_int, name: c_int, value: &mut T) {
    if kernel::option(from, level, name, value).is_ok() {
        let _ = kernel::set_option(to, level, name, value);
    }
}
