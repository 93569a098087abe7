//! The functions that this library stands in front of.
//!
//! *Purpose.* Each interposed name has a [`Slot`]: the address of the next definition in the order of
//! loading (libc's, or that of another preloaded library), found once and kept.
//!
//! *Life.* [`resolve_all`] fills every slot from the constructor, so that afterwards a call is one load
//! and one jump, also in signal handlers and in the child of a `vfork`. A call before the constructor
//! (another library's constructor, a memory allocator) finds an empty slot and looks its name up by
//! itself: `dlsym` neither allocates nor prints when it finds the name. Nothing is torn down, so calls
//! after our destructors work too.
//!
//! *Versions.* `dlsym` gives the default version of a name. A program that was linked against an older
//! one (`posix_spawn@GLIBC_2.2.5`) gets the newer.
//!
//! *Missing names* (an older libc) give -1 with `ENOSYS`.
//!
//! *Unwinding.* Everything here is `C-unwind` and holds nothing that has a destructor: libc ends a
//! cancelled thread by unwinding through these frames.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, sockaddr, socklen_t, timespec,
    timeval,
};

/// One name and the address behind it.
pub struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Slot {
    const fn new(name: &'static CStr) -> Slot {
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

/// This thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: takes nothing, gives this thread's own variable.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the variable lives as long as the thread.
    unsafe { *place }
}

/// Sets this thread's `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: takes nothing, gives this thread's own variable.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the variable lives as long as the thread.
    unsafe { *place = value };
}

/// `vprintf`'s list of arguments as a parameter: a pointer on x86-64.
pub type VaList = *mut c_void;
/// What `clone` starts.
pub type CloneFn = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
/// What a thread starts with.
pub type ThreadFn = Option<unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void>;
type Args = *const *const c_char;
type MutArgs = *const *mut c_char;

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The slots, by the name of the function.
        #[allow(non_upper_case_globals)]
        pub mod slot {
            use super::Slot;
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
            pub unsafe fn $name($($arg: $type),*) -> $result {
                type Call = unsafe extern "C-unwind" fn($($type),*) -> $result;
                let address = slot::$name.get();
                // SAFETY: the address is that of the function of this name and signature.
                let call = unsafe { std::mem::transmute::<*mut c_void, Call>(address) };
                // SAFETY: the caller keeps libc's conditions.
                unsafe { call($($arg),*) }
            }
        )*

        /// Looks every name up. Called once, by the constructor.
        pub fn resolve_all() {
            $(slot::$name.get();)*
        }
    };
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int;

    read(fd: c_int, into: *mut c_void, bytes: usize) -> isize;
    __read_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize) -> isize;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> isize;
    preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize;
    recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> isize;
    __recv_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int) -> isize;
    recvfrom(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t) -> isize;
    __recvfrom_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int,
        from: *mut sockaddr, length: *mut socklen_t) -> isize;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int;
    write(fd: c_int, from: *const c_void, bytes: usize) -> isize;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> isize;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize;
    send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize;
    sendto(fd: c_int, from: *const c_void, bytes: usize, flags: c_int, to: *const sockaddr,
        length: socklen_t) -> isize;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, file: c_int, at: *mut off_t, bytes: usize) -> isize;
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, bytes: usize, flags: c_uint)
        -> isize;

    poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __poll_chk(set: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int;
    ppoll(set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int;
    __ppoll_chk(set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        room: usize) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;

    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, number: c_int) -> c_int;
    dup3(old: c_int, number: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: mode_t) -> c_int;
    pipe(pair: *mut c_int) -> c_int;
    pipe2(pair: *mut c_int, flags: c_int) -> c_int;
    eventfd(value: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags: c_int) -> c_int;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;

    fork() -> pid_t;
    _Fork() -> pid_t;
    clone(start: CloneFn, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int;
    unshare(flags: c_int) -> c_int;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    syscall(number: isize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize;
    daemon(keep_directory: c_int, keep_stdio: c_int) -> c_int;
    login_tty(fd: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    execve(path: *const c_char, arguments: Args, environment: Args) -> c_int;
    execv(path: *const c_char, arguments: Args) -> c_int;
    execvp(file: *const c_char, arguments: Args) -> c_int;
    execvpe(file: *const c_char, arguments: Args, environment: Args) -> c_int;
    fexecve(fd: c_int, arguments: Args, environment: Args) -> c_int;
    execveat(at: c_int, path: *const c_char, arguments: Args, environment: Args, flags: c_int)
        -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int,
        number: c_int) -> c_int;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: MutArgs, environment: MutArgs) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: MutArgs, environment: MutArgs) -> c_int;
    _exit(status: c_int) -> !;
    _Exit(status: c_int) -> !;

    fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    fclose(file: *mut c_void) -> c_int;
    dprintf(fd: c_int, format: *const c_char) -> c_int;
    __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, arguments: VaList) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: VaList) -> c_int;

    pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        start: ThreadFn, argument: *mut c_void) -> c_int;
    thrd_create(thread: *mut libc::pthread_t, start: ThreadFn, argument: *mut c_void) -> c_int;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}
