//! The program that leads an interface's frames to AF_XDP sockets.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::XdpSocket;
use crate::bpf::{Instruction, Link, LoadError, Map, MapKind, Program, ProgramKind};

/// `bpf_map_lookup_elem(map, key)`.
const LOOKUP: i32 = 1;
/// `bpf_redirect_map(map, key, what to do without an entry)`.
const REDIRECT_MAP: i32 = 51;
/// `XDP_PASS`: the frame goes on to the kernel's stack.
const PASS: i32 = 2;
// `struct xdp_md` of <linux/bpf.h>: where the frame begins, where it ends, which queue it came from.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;
/// Bytes of an Ethernet header.
const HEADER_BYTES: i32 = 14;

/// Destination addresses that can be told apart.
pub const ADDRESSES_MAX: u32 = 16_384;

/// Why frames cannot be led to sockets.
#[derive(Debug, thiserror::Error)]
pub enum DivertError {
    /// The kernel refused a map or a place in it.
    #[error("{step}: {errno}")]
    Map {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// It refused the program.
    #[error(transparent)]
    Program(#[from] LoadError),
    /// The interface does not take it.
    #[error("attach the XDP program: {0}")]
    Attach(Errno),
}

fn refused(step: &'static str) -> impl Fn(Errno) -> DivertError {
    move |errno| DivertError::Map { step, errno }
}

/// Frames of an interface go to sockets as long as this lives; what has no socket goes on to the kernel.
#[derive(Debug)]
pub struct Divert {
    sockets: Map,
    addresses: Option<Map>,
    program: Program,
    link: Option<Link>,
}

impl Divert {
    /// A program for `queues` queues that takes every frame, or with `by_address` those for the addresses of
    /// [`Divert::insert`]. Needs `CAP_BPF` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn new(queues: u32, by_address: bool) -> Result<Divert, DivertError> {
        let made = Map::create(MapKind::XdpSockets, queues);
        let sockets = made.map_err(refused("make a map of AF_XDP sockets"))?;
        let addresses = if by_address {
            let made = Map::create(MapKind::Hash, ADDRESSES_MAX);
            Some(made.map_err(refused("make a map of addresses"))?)
        } else {
            None
        };
        let code = assemble(sockets.as_fd(), addresses.as_ref().map(AsFd::as_fd));
        let program = Program::load("windlass_xdp", ProgramKind::Xdp, &code)?;
        Ok(Divert {
            sockets,
            addresses,
            program,
            link: None,
        })
    }

    /// Names the socket of a queue. It has to be bound.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn set_socket(&self, queue: u32, socket: &XdpSocket) -> Result<(), DivertError> {
        let put = self.sockets.put_socket(queue, socket.as_fd());
        put.map_err(refused("put a socket into the map"))
    }

    /// Has the interface's driver run the program.
    ///
    /// # Errors
    /// [`DivertError::Attach`].
    pub fn attach(&mut self, index: u32) -> Result<(), DivertError> {
        self.link = Some(Link::xdp(&self.program, index).map_err(DivertError::Attach)?);
        Ok(())
    }

    /// Takes the program away: every frame goes on to the kernel.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Takes frames for an address: six bytes as the low 48 bits of a little-endian load.
    ///
    /// # Errors
    /// `E2BIG` beyond [`ADDRESSES_MAX`].
    pub fn insert(&self, address: u64) -> Result<(), Errno> {
        let map = self.addresses.as_ref();
        map.map_or(Ok(()), |map| map.insert(address))
    }

    /// Takes them no more.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn remove(&self, address: u64) -> Result<(), Errno> {
        let map = self.addresses.as_ref();
        map.map_or(Ok(()), |map| map.remove(address))
    }
}

/// `r1` is the frame's `struct xdp_md`; the answer is in `r0`.
fn assemble(sockets: BorrowedFd<'_>, addresses: Option<BorrowedFd<'_>>) -> Vec<Instruction> {
    use Instruction as I;
    let mut code = vec![I::move_register(6, 1), I::move_immediate(0, PASS)];
    if let Some(addresses) = addresses {
        let [first, second] = I::load_map(1, addresses);
        code.extend([
            I::load_word(2, 1, DATA),
            I::load_word(3, 1, DATA_END),
            I::move_register(4, 2),
            I::add_immediate(4, HEADER_BYTES),
            // To the end, where r0 is PASS.
            I::skip_if_greater(4, 3, 17),
            // The key, on the stack: the destination, and two bytes of zeros.
            I::load_word(5, 2, 0),
            I::store_word(10, -8, 5),
            I::load_half(5, 2, 4),
            I::store_word(10, -4, 5),
            I::move_register(2, 10),
            I::add_immediate(2, -8),
            first,
            second,
            I::call(LOOKUP),
            I::move_register(1, 0),
            I::move_immediate(0, PASS),
            I::skip_if_zero(1, 5),
        ]);
    }
    let [first, second] = I::load_map(1, sockets);
    code.extend([
        I::load_word(2, 6, QUEUE),
        first,
        second,
        I::move_immediate(3, PASS),
        I::call(REDIRECT_MAP),
        I::exit(),
    ]);
    code
}
