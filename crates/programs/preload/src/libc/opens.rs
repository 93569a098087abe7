//! Calls that open what is no socket: a number that one of them gives was closed, seen or not.

use std::ffi::{c_char, c_int, c_uint};

use libc::{mode_t, pid_t, sigset_t};

use crate::fd::table;

#[inline(always)]
fn other(fd: c_int) -> c_int {
    if fd >= 0 {
        table::other(fd);
    }
    fd
}

/// Calls that give a number which is no socket.
macro_rules! opens {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        interpose! {
            $(fn $name($($arg: $type),*) -> c_int { other(pass!($name($($arg),*))) })*
        }
    };
}

opens! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t);
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn __open_2(path: *const c_char, flags: c_int);
    fn __openat_2(at: c_int, path: *const c_char, flags: c_int);
    fn creat(path: *const c_char, mode: mode_t);
    fn eventfd(value: c_uint, flags: c_int);
    fn timerfd_create(clock: c_int, flags: c_int);
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    fn inotify_init();
    fn inotify_init1(flags: c_int);
    fn memfd_create(name: *const c_char, flags: c_uint);
    fn pidfd_open(pid: pid_t, flags: c_uint);
}

// Those for large files are the same: `off_t` has 64 bits.
alias! {
    open64 = open;
    __open = open;
    __open64 = open;
    openat64 = openat;
    __open64_2 = __open_2;
    __openat64_2 = __openat_2;
    creat64 = creat;
}
