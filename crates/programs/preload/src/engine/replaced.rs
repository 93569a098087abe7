//! At an exec: a Unix socket whose peer has died gives way to one that says in the kernel what the ring and this library say
//! of it.
//!
//! # Model
//! The next image of the program looks only at the kernel, and nobody can add to what is unread in a socket whose peer is
//! gone. So a new pair of sockets takes what is unread, from the kernel and then from the ring. Where a reset is owed, a byte
//! is left unread at its far end. Then that end is closed, and the near end takes the numbers of the old socket, and its
//! places in epoll instances.
//!
//! # Limits
//! The new socket has no name, nor has its peer; of the options it has the time limits. Where another process has the
//! socket, too, or descriptors are on their way in it, the old one stays, and what is in the ring is lost with this image.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Bufs, Link, RecvHow, Took, sys};

use super::{death, kernel, process, promote, sets, stream, unix};
use crate::own::Sock;
use crate::{signals, table};

/// What is unread is moved in pieces of so many bytes.
const PIECE: usize = 16 * 1024;
/// Room for all that can be unread, as `SO_SNDBUF`.
const ROOM: i32 = 1 << 20;

/// A socket of the new pair; closed unless its number was given away.
struct End(c_int);

impl Drop for End {
    fn drop(&mut self) {
        kernel::close(self.0 as usize);
    }
}

/// Replaces the socket if its peer has died and the kernel does not know all of it.
pub fn replace(sock: &Sock, link: &Link<'static>) {
    let is_gone = death::is_peers(sock) || link.info(link.side().other()).join == stream::LEFT;
    if !is_gone || !unix::is_stream(sock.record) {
        return;
    }
    let owes = unix::owes_error(sock);
    let numbers = || table::each().filter(|other| other.index() == sock.index());
    let is_shared = sock.record.holders.load(Relaxed) as usize != numbers().count();
    if is_shared || !owes && link.incoming().queued() == 0 || carries_descriptors(sock.fd) {
        return;
    }
    let Some([near, far]) = pair() else { return };
    // More than may be had is not needed: what is unread fits in as much.
    let _ = kernel::set_option(far.0, libc::SOL_SOCKET, libc::SO_SNDBUF, &ROOM);
    if !move_unread(sock, link, &far) || owes && send(near.0, &[0]) != Ok(1) {
        return;
    }
    drop(far);
    copy_settings(sock.fd, near.0);
    for number in numbers() {
        let cloexec = kernel::descriptor_flags(number.fd).unwrap_or(0) & libc::FD_CLOEXEC as usize;
        let flags = if cloexec != 0 { libc::O_CLOEXEC } else { 0 };
        let args = [near.0 as usize, number.fd as usize, flags as usize, 0, 0, 0];
        // SAFETY: no pointers; the number is this socket's.
        let _ = unsafe { sys::checked(libc::SYS_dup3, args) };
    }
    sets::add_again(sock);
}

fn pair() -> Option<[End; 2]> {
    let mut made = [-1_i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let at = made.as_mut_ptr() as usize;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, at, 0, 0];
    // SAFETY: two numbers, of this stack.
    unsafe { sys::checked(libc::SYS_socketpair, args) }.ok()?;
    Some(made.map(End))
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

/// Takes what is unread, and sends it to the new socket. False: not all of it could be had.
fn move_unread(sock: &Sock, link: &Link<'static>, far: &End) -> bool {
    let Some(who) = process::who() else {
        return false;
    };
    let mut piece = [0_u8; PIECE];
    let how = RecvHow {
        look: true,
        ..RecvHow::default()
    };
    loop {
        let into = Bufs::one(piece.as_mut_ptr(), PIECE);
        signals::enter();
        let took = link
            .incoming()
            .recv(who, &promote::descriptor(sock), &into, 0, how);
        signals::leave();
        match took {
            Took::Bytes(moved) | Took::Failing(moved, _) => {
                let bytes = piece.get(..moved.total()).unwrap_or_default();
                if send(far.0, bytes) != Ok(bytes.len()) {
                    return false;
                }
            }
            Took::Eof | Took::Empty | Took::Error(_) => return true,
            Took::Pending | Took::Busy | Took::Broken => return false,
        }
    }
}

/// Whether descriptors lie among the first unread bytes of the kernel: a receive without room for them says so.
fn carries_descriptors(fd: c_int) -> bool {
    let mut bytes = [0_u8; PIECE];
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: PIECE,
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

/// Gives the new socket the flags and the time limits of the old one.
fn copy_settings(from: c_int, to: c_int) {
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
        if kernel::option(from, libc::SOL_SOCKET, name, &mut limit).is_ok() {
            let _ = kernel::set_option(to, libc::SOL_SOCKET, name, &limit);
        }
    }
}
