//! Sockets whose bytes the kernel hands straight to another local socket.
//!
//! # Purpose
//! The kernel's own shortcut between two sockets of one host: a program runs at each send of one socket and puts the
//! bytes into the receive queue of another, past the TCP stack. It is a peer to be compared with.
//!
//! # Model
//! Two maps of one socket each (`BPF_MAP_TYPE_SOCKMAP`): the sender's carries the program, the receiver's is where the
//! program points. [`Redirect`] holds both; the kernel takes a socket out when it is closed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::bpf::{Instruction, LoadError, Map, MapKind, Program, ProgramKind, bpf};

const BPF_PROG_ATTACH: libc::c_int = 8;
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
    _from: Map,
    _to: Map,
    _program: Program,
}

impl Redirect {
    /// Connects the two ends of one TCP connection of this host, in one direction. Needs `CAP_BPF` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel refuses a map, the program or a socket.
    pub fn connect(sender: impl AsFd, receiver: impl AsFd) -> Result<Redirect, RedirectError> {
        let create = || {
            let made = Map::create(MapKind::Sockets, 1);
            made.map_err(refused("make a map of sockets"))
        };
        let (from, to) = (create()?, create()?);
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
        for (map, socket) in [(&to, receiver.as_fd()), (&from, sender.as_fd())] {
            map.put_socket(0, socket)
                .map_err(refused("put a socket into the map"))?;
        }
        Ok(Redirect {
            _from: from,
            _to: to,
            _program: program,
        })
    }
}

/// The part for BPF_PROG_ATTACH.
#[repr(C)]
#[derive(Clone, Copy)]
struct AttachAttributes {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

fn refused(step: &'static str) -> impl Fn(Errno) -> RedirectError {
    move |errno| RedirectError::Refused { step, errno }
}

fn attach(map: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), RedirectError> {
    let number = |fd: BorrowedFd<'_>| fd.as_raw_fd().cast_unsigned();
    let mut attributes = AttachAttributes {
        target: number(map),
        program: number(program),
        kind: BPF_SK_MSG_VERDICT,
        flags: 0,
    };
    // SAFETY: these are the attributes of an attachment; there are no addresses in them.
    let done = unsafe { bpf(BPF_PROG_ATTACH, &mut attributes) };
    done.map(drop).map_err(refused("attach the program"))
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
