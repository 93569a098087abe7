//! Messages of a joined socket, in terms of [`crate::socket::send`] and [`crate::socket::recv`]: headers are taken apart.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr};
use windlass_channel::{Bufs, Link, Moved, RecvHow};

use crate::fd::call::{Data, Own, Sock, Store};
use crate::process::signals;
use crate::socket::{
    by_kernel, errors, fast_path, file_flags, kind, peer_death, reclaim, recv, send, sleep, unix,
    waiter::Waiter,
};
use crate::sys::{memory, real};

/// Hands the header of a message and its pieces to `with`; of what cannot be used the program's own call says why.
fn apart(message: *const msghdr, own: Own, with: impl FnOnce(&msghdr, Bufs<'_>) -> isize) -> isize {
    let Some(head) = memory::header(message) else {
        return own.call();
    };
    let (data, mut store) = (Data::list(head.msg_iov, head.msg_iovlen), Store::default());
    let pieces = data.fetch(&mut store).and_then(Bufs::vector);
    pieces.map_or_else(|| own.call(), |pieces| with(&head, pieces))
}

/// `sendmsg`.
pub fn send(
    sock: &Sock,
    link: Link<'static>,
    message: *const msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        if has_control(head) || has_name(head) {
            let given = (data.len(), |sent| sent);
            by_kernel::send_by_kernel((sock, 0), &link, given, flags, own)
        } else {
            send::send(*sock, link, data, flags, own)
        }
    })
}

/// Whether a header has a name, or room for one.
fn has_name(header: &msghdr) -> bool {
    !header.msg_name.is_null() && header.msg_namelen != 0
}

/// The same of control data.
fn has_control(header: &msghdr) -> bool {
    !header.msg_control.is_null() && header.msg_controllen != 0
}

/// `recvmsg`. What comes by the ring has neither a name nor control data.
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        if has_name(head) && kind::of(sock.record).has_senders {
            return unix::receive_named(sock, own);
        }
        if has_control(head) && !data.is_empty() {
            return receive_control(sock, link, message, data, flags, own);
        }
        let received = recv::receive(*sock, link, data, flags, own);
        bytes_alone(message, received, flags)
    })
}

/// The header of a message of bytes alone; what was received.
fn bytes_alone(message: *mut msghdr, received: isize, flags: c_int) -> isize {
    if received >= 0
        && let Some(mut after) = memory::header(message)
    {
        (after.msg_namelen, after.msg_controllen, after.msg_flags) =
            (0, 0, flags & libc::MSG_CMSG_CLOEXEC);
        memory::put(message, after);
    }
    received
}

/// Flags of a receive with room for control data that are not the kernel's alone.
const CONTROL_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
/// Looks of such a receive at a ring whose lock another thread holds, before its bytes go to the kernel for good.
const CONTROL_LOOKS: usize = 1_000;

/// `recvmsg` with room for control data: what the ring has, or else the program's own call, counted as a sleeper's, since control
/// data comes by the kernel alone.
#[cold]
fn receive_control(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    into: Bufs<'_>,
    flags: c_int,
    own: Own,
) -> isize {
    let Some(who) = reclaim::caller(sock, &link) else {
        return own.call();
    };
    if flags & !CONTROL_FLAGS != 0 {
        return recv::receive_oddly(sock, &link, own);
    }
    let (start, bytes) = into.piece();
    let piece = Bufs::one(start, bytes);
    let waits = file_flags::waits(sock, flags);
    let mut waiter = Waiter::new(*sock);
    for _ in 0..CONTROL_LOOKS {
        signals::enter();
        let got = link.incoming().recv_fast(who.owner, &piece);
        signals::leave();
        if got != 0 {
            waiter.end();
            fast_path::count_taken(sock.record, got);
            return bytes_alone(message, got as isize, flags);
        }
        match sleep::fall_asleep(&mut waiter, &link, waits) {
            sleep::Wait::Ready => std::thread::yield_now(),
            sleep::Wait::Gone => break,
            sleep::Wait::Asleep => return taken(waiter, link, (message, into), flags, own),
        }
    }
    waiter.end();
    recv::receive_oddly(sock, &link, own)
}

/// The program's own call of a receive with control data, which counts as asleep, and what follows its end.
fn taken(
    mut waiter: Waiter,
    link: Link<'static>,
    (message, into): (*mut msghdr, Bufs<'_>),
    flags: c_int,
    own: Own,
) -> isize {
    let result = own.with(0, waiter.sock().fd as usize).call();
    let error = real::errno();
    if !waiter.follow() {
        // The channel is nobody's, or another socket's: what came is the call's.
        waiter.end();
        return result;
    }
    let sock = *waiter.sock();
    let kernel = usize::try_from(result).unwrap_or(0);
    signals::enter();
    link.incoming().woke(kernel);
    signals::leave();
    waiter.end();
    let how = RecvHow {
        peek: false,
        discard: false,
        look: true,
    };
    fast_path::count_received(&sock, Moved { ring: 0, kernel }, how);
    let goes_on = [libc::EAGAIN, libc::EINTR, libc::EFAULT, libc::EBADF];
    if result > 0 || result < 0 && goes_on.contains(&error) {
        real::set_errno(error);
        return result;
    }
    // The end, or an error: what is left in the ring comes first.
    if result < 0 {
        errors::fail_later(&sock, peer_death::named(&sock, error));
    }
    let received = recv::receive(sock, link, into, flags, own);
    bytes_alone(message, received, flags)
}

/// How many bytes the first `count` messages moved, as the kernel has noted.
pub fn bytes_of(list: *const mmsghdr, count: usize) -> usize {
    let at = std::mem::offset_of!(mmsghdr, msg_len);
    let lengths = (0..count).map(|index| {
        let place = list.wrapping_add(index).wrapping_byte_add(at);
        memory::fetch::<u32>(place.cast()).unwrap_or(0) as usize
    });
    lengths.sum()
}
