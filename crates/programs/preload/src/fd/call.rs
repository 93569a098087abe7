//! What a call carries: which socket, which memory, and the call itself.

use std::ffi::{c_int, c_void};

use libc::{iovec, socklen_t};
use windlass_channel::Bufs;

use crate::fd::{record::Record, table};
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

/// What a function gives.
pub trait Gives {
    /// It is an `int`.
    const INT: bool;
}

impl Gives for c_int {
    const INT: bool = true;
}

impl Gives for isize {
    const INT: bool = false;
}

/// Up to six arguments.
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
    /// A function that gives an `int` or a `ssize_t`.
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

impl Sock {
    /// Whether the number still names the same socket: one load. A call that spins looks at it, since
    /// another thread may close the number.
    #[inline(always)]
    pub fn still(&self) -> bool {
        table::word(self.fd) == self.word
    }

    /// The index of the record in the arena.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        table::record_of(self.word)
    }
}

/// The longest list of pieces of memory that a call may give (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1_024;
/// Lists up to this length are copied before they are used.
pub const PIECES_COPIED: usize = 16;

/// The program's memory of one call, as it gave it: possibly not there at all.
#[derive(Clone, Copy)]
pub struct Data {
    iov: *const iovec,
    count: usize,
    /// The list is our own, not the program's.
    ours: bool,
    /// Where `recvfrom` wants the length of the sender's name; null elsewhere. A stream's socket reports 0.
    pub name_length: *mut socklen_t,
    /// The call names a receiver or wants the sender's name or control data.
    pub named: bool,
}

/// A place for a copied list.
pub struct Store([iovec; PIECES_COPIED]);

impl Default for Store {
    #[inline(always)]
    fn default() -> Store {
        let none = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Store([none; PIECES_COPIED])
    }
}

impl Data {
    /// One piece of memory; `iov` must be a variable of the calling function.
    #[inline(always)]
    pub fn one(iov: &iovec) -> Data {
        Data {
            iov,
            count: 1,
            ours: true,
            name_length: std::ptr::null_mut(),
            named: false,
        }
    }

    /// The program's own list.
    pub fn list(iov: *const iovec, count: usize) -> Data {
        Data {
            iov,
            count,
            ours: false,
            name_length: std::ptr::null_mut(),
            named: false,
        }
    }

    /// The bytes of a call that names one piece of memory; otherwise, or if the piece is too long, see [`Data::fetch`].
    #[inline(always)]
    pub fn single(&self) -> Option<Bufs<'_>> {
        if !self.ours {
            return None;
        }
        // SAFETY: `one` was given a live variable, and `self` does not outlive the call.
        let piece = unsafe { &*self.iov };
        (piece.iov_len <= isize::MAX as usize)
            .then(|| Bufs::one(piece.iov_base.cast(), piece.iov_len))
    }

    /// Whether it is of `readv`, `writev` or their kin, which do nothing where there is no byte to move; a record without
    /// any moves by the other calls.
    #[inline(always)]
    pub fn is_list(&self) -> bool {
        !self.ours
    }

    /// The pieces, readable. `None`: the list is not readable, too long or adds up to too much: the program's own call gives the
    /// error.
    #[inline(always)]
    pub fn fetch<'a>(&'a self, store: &'a mut Store) -> Option<&'a [iovec]> {
        if self.ours {
            // SAFETY: `one` was given a live variable, and `self` does not outlive the call.
            let list = unsafe { std::slice::from_raw_parts(self.iov, self.count) };
            return is_possible(list).then_some(list);
        }
        self.fetch_list(store)
    }

    fn fetch_list<'a>(&'a self, store: &'a mut Store) -> Option<&'a [iovec]> {
        if self.count > PIECES_MAX {
            return None;
        }
        let bytes = self.count * size_of::<iovec>();
        let list = if self.count <= PIECES_COPIED {
            let into = store.0.get_mut(..self.count)?;
            memory::fetch_all(into, self.iov).then_some(())?;
            into
        } else {
            memory::readable(self.iov.cast(), bytes).then_some(())?;
            // SAFETY: every page of the list was read a moment ago; the program keeps it for the call.
            unsafe { std::slice::from_raw_parts(self.iov, self.count) }
        };
        is_possible(list).then_some(list)
    }
}

/// Whether a call may have so many bytes.
fn is_possible(list: &[iovec]) -> bool {
    let lengths = list.iter().map(|piece| piece.iov_len);
    let total = lengths.fold(0_usize, usize::saturating_add);
    total <= isize::MAX as usize
}
