//! Sockets whose bytes the kernel hands straight to another local socket.
//!
//! # Purpose
//! The kernel's own shortcut between two sockets of one host: a program runs at each send of one socket and puts the
//! bytes into the receive queue of another, past the TCP stack. It is a peer to be compared with.
//!
//! # Model
//! Two maps of one socket each (`BPF_MAP_TYPE_SOCKMAP`): the sender's carries the program, the receiver's is where the
//! program points. [`Redirect`] holds both; the kernel takes a socket out when it is closed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::bpf::{Instruction, LoadError, Program, ProgramKind};
use crate::vectored::last_errno;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
const BPF_SK_MSG_VERDICT: u32 = 7;

/// `bpf_msg_redirect_map(message, map, key, flags)`.
const MSG_REDIRECT_MAP: i32 = 60;
/// `BPF_F_INGRESS`: into the receive queue.
const INGRESS: i32 = 1;

/// A shortcut could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The kernel has no such maps, or we may not use them.
    #[error("{step}: {errno}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The program was not taken.
    #[error(transparent)]
    Program(#[from] LoadError),
}

/// What one connected socket sends goes straight into another's receive queue, as long as this lives.
#[derive(Debug)]
pub struct Redirect {
    _from: OwnedFd,
    _to: OwnedFd,
    _program: Program,
}

impl Redirect {
    /// Connects the two ends of one TCP connection of this host, in one direction. Needs `CAP_BPF` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel refuses a map, the program or a socket.
    pub fn connect(sender: impl AsFd, receiver: impl AsFd) -> Result<Redirect, RedirectError> {
        let (from, to) = (create_map()?, create_map()?);
        let [first, second] = Instruction::load_map(2, to.as_fd());
        let program = [
            first,
            second,
            Instruction::move_immediate(3, 0),
            Instruction::move_immediate(4, INGRESS),
            Instruction::call(MSG_REDIRECT_MAP),
            Instruction::exit(),
        ];
        let program = Program::load("windlass_redir", ProgramKind::SocketMessage, &program)?;
        attach(from.as_fd(), program.as_fd())?;
        put(to.as_fd(), receiver.as_fd())?;
        put(from.as_fd(), sender.as_fd())?;
        Ok(Redirect {
            _from: from,
            _to: to,
            _program: program,
        })
    }
}

/// The part of `union bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// The part for BPF_MAP_UPDATE_ELEM.
#[repr(C)]
struct ElementAttributes {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part for BPF_PROG_ATTACH.
#[repr(C)]
struct AttachAttributes {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is what `command` wants, and the addresses in it outlive the call.
unsafe fn bpf<T>(
    step: &'static str,
    command: libc::c_int,
    attributes: &mut T,
) -> Result<i32, RedirectError> {
    let at = std::ptr::from_mut(attributes);
    // SAFETY: the structure is as long as is said; its meaning is the caller's duty.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    let errno = last_errno();
    match i32::try_from(result) {
        Ok(done) if done >= 0 => Ok(done),
        _ => Err(RedirectError::Refused { step, errno }),
    }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn create_map() -> Result<OwnedFd, RedirectError> {
    let mut attributes = MapAttributes {
        kind: BPF_MAP_TYPE_SOCKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries: 1,
        flags: 0,
    };
    // SAFETY: these are the attributes of a map; there are no addresses in them.
    let fd = unsafe { bpf("make a map of sockets", BPF_MAP_CREATE, &mut attributes)? };
    // SAFETY: bpf(2) just returned this descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attach(map: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), RedirectError> {
    let mut attributes = AttachAttributes {
        target: number(map),
        program: number(program),
        kind: BPF_SK_MSG_VERDICT,
        flags: 0,
    };
    // SAFETY: these are the attributes of an attachment; there are no addresses in them.
    unsafe { bpf("attach the program", BPF_PROG_ATTACH, &mut attributes) }.map(drop)
}

fn put(map: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> Result<(), RedirectError> {
    let (key, value) = (0_u32, number(socket));
    let mut attributes = ElementAttributes {
        map: number(map),
        padding: 0,
        key: (&raw const key).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: these are the attributes of an update; key and value are 4 bytes each, as the map says, and outlive it.
    unsafe {
        bpf(
            "put a socket into the map",
            BPF_MAP_UPDATE_ELEM,
            &mut attributes,
        )
    }
    .map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// What one end sends arrives at the other, in order, through the shortcut, where we may make one.
    #[test]
    fn bytes_arrive() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        let redirect = match Redirect::connect(&sender, &receiver) {
            Ok(redirect) => redirect,
            Err(error) => {
                println!("skipped: bytes_arrive: {error}");
                return Ok(());
            }
        };
        let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        sender.write_all(&sent)?;
        let mut got = vec![0; sent.len()];
        receiver.read_exact(&mut got)?;
        assert_eq!(got, sent);
        drop(redirect);
        Ok(())
    }
}
