//! The functions that this library stands in front of.
//!
//! *Purpose.* Each interposed name has a [`Slot`], made where it is interposed, or here where a lower room calls it: the address of the next definition in the order of
//! loading (libc's, or that of another preloaded library), found once and kept.
//!
//! *Life.* [`resolve`] fills every slot from the constructor, so that afterwards a call is one load and one jump, also in signal
//! handlers and in the child of a `vfork`. A call before the constructor (another library's constructor, a memory allocator) finds
//! an empty slot and looks its name up by itself: `dlsym` neither allocates nor prints when it finds the name. Nothing is torn
//! down, so calls after our destructors work too.
//!
//! *Versions.* `dlsym` gives the default version of a name. A program that was linked against an older
//! one (`posix_spawn@GLIBC_2.2.5`) gets the newer.
//!
//! *Missing names* (an older libc) give -1 with `ENOSYS`.
//!
//! *Unwinding.* Everything here is `C-unwind` and holds nothing that has a destructor: libc ends a
//! cancelled thread by unwinding through these frames.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};

pub struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Slot {
    /// Of a name that is not looked up so far.
    pub const fn new(name: &'static CStr) -> Slot {
        Slot {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The address to call; never null.
    #[inline(always)]
    pub fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            self.find()
        } else {
            address
        }
    }

    #[cold]
    #[inline(never)]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string and RTLD_NEXT needs nothing else.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let address = if found.is_null() {
            absent as *mut c_void
        } else {
            found
        };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Stands for a function that this libc does not have.
unsafe extern "C-unwind" fn absent() -> isize {
    set_errno(libc::ENOSYS);
    -1
}

pub fn errno() -> c_int {
    // SAFETY: takes nothing, gives this thread's own variable.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the variable lives as long as the thread.
    unsafe { *place }
}

pub fn set_errno(value: c_int) {
    // SAFETY: takes nothing, gives this thread's own variable.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the variable lives as long as the thread.
    unsafe { *place = value };
}

/// Slots of functions of these names, and functions that call what is in them.
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The slots, by the name of the function.
        #[allow(non_upper_case_globals)]
        pub mod slot {
            use crate::sys::real::Slot;
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub static $name: Slot = Slot::new(
                    match std::ffi::CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    });
            )*
        }

        $(
            /// libc's own.
            ///
            /// # Safety
            /// As libc asks.
            #[inline(always)]
            #[allow(dead_code, non_snake_case, clippy::too_many_arguments, reason = "libc's own signatures")]
            pub unsafe fn $name($($arg: $type),*) $(-> $result)? {
                type Call = unsafe extern "C-unwind" fn($($type),*) $(-> $result)?;
                let address = slot::$name.get();
                // SAFETY: the address is that of the function of this name and signature.
                let call = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Call>(address) };
                // SAFETY: the caller keeps libc's conditions.
                unsafe { call($($arg),*) }
            }
        )*

        /// Looks every name up. Called once, by the constructor.
        pub fn resolve() {
            $(slot::$name.get();)*
        }
    };
}

pub(crate) use real;

real! {
    recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> isize;
    send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize;
    poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}
