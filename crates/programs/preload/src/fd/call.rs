//! What a call carries: which socket, which memory, and the call itself.

use std::ffi::{c_int, c_void};

use libc::iovec;
use windlass_channel::Bufs;

use crate::fd::record::Record;
use crate::sys::{memory, real::Slot};

/// The program's own call, with its own arguments: to be made when the kernel is to answer.
///
/// Plain numbers without a destructor, so that a thread may be cancelled inside [`Own::call`].
#[derive(Clone, Copy)]
pub struct Own {
    function: *mut c_void,
    arguments: [usize; 6],
    /// The function gives an `int`: the upper half of the register means nothing.
    int: bool,
}

pub trait Gives {
    const INT: bool;
}

impl Gives for c_int {
    const INT: bool = true;
}

impl Gives for isize {
    const INT: bool = false;
}

#[inline(always)]
pub const fn six<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let (mut all, mut at) = ([0; 6], 0);
    while at < N {
        all[at] = given[at];
        at += 1;
    }
    all
}

impl Own {
    #[inline(always)]
    pub fn of<R: Gives>(slot: &Slot, arguments: [usize; 6]) -> Own {
        Own {
            function: slot.get(),
            arguments,
            int: R::INT,
        }
    }

    /// A function that takes whole numbers and pointers only, which gives an `int` or a `ssize_t`.
    pub fn named(function: *const (), arguments: [usize; 6], int: bool) -> Own {
        Own {
            function: function.cast_mut().cast(),
            arguments,
            int,
        }
    }

    /// Makes the call: -1 and `errno`, or the result. A cancellation point where the program's call
    /// is one: the thread may be unwound from here.
    #[inline(always)]
    pub fn call(&self) -> isize {
        let [a, b, c, d, e, f] = self.arguments;
        type Call = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize) -> isize;
        // SAFETY: on x86-64 and aarch64 every function of at most six whole-number or pointer arguments is called
        // so; it ignores the registers that it has no use for.
        let call = unsafe { std::mem::transmute::<*mut c_void, Call>(self.function) };
        // SAFETY: the arguments are those that the program gave for this very function.
        let result = unsafe { call(a, b, c, d, e, f) };
        if self.int {
            result as i32 as isize
        } else {
            result
        }
    }

    /// The same call with one argument (0 to 5) replaced, for instance flags or a length.
    #[inline]
    pub fn with(mut self, index: usize, value: usize) -> Own {
        if let Some(place) = self.arguments.get_mut(index) {
            *place = value;
        }
        self
    }
}

/// A socket of the table, as one call sees it.
#[derive(Clone, Copy)]
pub struct Sock {
    /// The number that the program used.
    pub fd: c_int,
    /// The entry of the table as it was found; see [`Sock::still`].
    pub word: u64,
    /// Its record, shared with the processes that share the socket.
    pub record: &'static Record,
}

/// The longest list of pieces of memory that a call may give (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1_024;
/// Lists up to this length are copied before they are used.
pub const PIECES_COPIED: usize = 16;

/// The program's memory of one call, as it gave it: possibly not there at all.
#[derive(Clone, Copy)]
pub struct Data {
    /// The only piece, unless the program has given a list of so many.
    piece: iovec,
    list: Option<(*const iovec, usize)>,
    /// The receiver that `sendto` names, or where `recvfrom` wants the length of the sender's name; null elsewhere.
    pub name: *const c_void,
}

impl Data {
    #[inline(always)]
    pub fn one(start: *const c_void, bytes: usize, name: *const c_void) -> Data {
        let piece = iovec {
            iov_base: start.cast_mut(),
            iov_len: bytes,
        };
        Data {
            piece,
            list: None,
            name,
        }
    }

    pub fn list(list: *const iovec, count: usize) -> Data {
        Data {
            list: Some((list, count)),
            ..Self::one(std::ptr::null(), 0, std::ptr::null())
        }
    }

    /// Whether the call is `readv`, `writev` or one of their kin, which do nothing where there is no byte to move.
    pub fn is_list(&self) -> bool {
        self.list.is_some()
    }

    /// Hands the pieces to `with`. Where the list is not readable, too long or adds up to too much, the program's own call says so.
    pub fn pieces(&self, own: Own, with: impl FnOnce(Bufs<'_>) -> isize) -> isize {
        let mut copy = [self.piece; PIECES_COPIED];
        let list = match self.list {
            None => copy.get(..1),
            Some((from, count)) => match copy.get_mut(..count) {
                Some(copy) => memory::fetch_all(copy, from).then_some(&*copy),
                None => long_list(from, count),
            },
        };
        let is_possible = |list: &&[iovec]| {
            let lengths = list.iter().map(|piece| piece.iov_len);
            lengths.fold(0_usize, usize::saturating_add) <= isize::MAX as usize
        };
        let pieces = list.filter(is_possible).and_then(Bufs::vector);
        pieces.map_or_else(|| own.call(), with)
    }
}

fn long_list<'a>(from: *const iovec, count: usize) -> Option<&'a [iovec]> {
    let is_there = count <= PIECES_MAX && memory::readable(from.cast(), count * size_of::<iovec>());
    // SAFETY: every page of the list was read a moment ago; the program keeps it for the call.
    is_there.then(|| unsafe { std::slice::from_raw_parts(from, count) })
}
