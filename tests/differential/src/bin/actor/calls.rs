//! Every call of the C library that an actor makes, by its own name, so that a preloaded library
//! interposes it; with slices in place of pointers, and nothing retried or hidden.
//!
//! Descriptors are plain numbers: a script may name one that is closed, and the answer is compared.

use std::ffi::c_int;

use crate::raw;

/// What a call returned, and errno where that was negative (else 0).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) value: i64,
    pub(crate) errno: i32,
}

fn answer(value: i64) -> Answer {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Answer {
        value,
        errno: if value < 0 { errno } else { 0 },
    }
}

fn int(value: c_int) -> Answer {
    answer(i64::from(value))
}

fn size(value: isize) -> Answer {
    answer(value as i64)
}

/// A descriptor number that is not an owned one: closing it is what the script says.
pub(crate) type Fd = c_int;

pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Answer {
    // SAFETY: takes numbers only.
    int(unsafe { libc::socket(domain, kind, protocol) })
}

pub(crate) fn socketpair(domain: c_int, kind: c_int, pair: &mut [Fd; 2]) -> Answer {
    // SAFETY: `pair` has room for two numbers.
    int(unsafe { libc::socketpair(domain, kind, 0, pair.as_mut_ptr()) })
}

pub(crate) fn pipe(pair: &mut [Fd; 2], flags: c_int) -> Answer {
    // SAFETY: `pair` has room for two numbers.
    int(unsafe { libc::pipe2(pair.as_mut_ptr(), flags) })
}

pub(crate) fn bind(fd: Fd, address: &[u8]) -> Answer {
    // SAFETY: `address` is readable for the length given with it.
    int(unsafe { libc::bind(fd, address.as_ptr().cast(), address.len() as u32) })
}

pub(crate) fn connect(fd: Fd, address: &[u8]) -> Answer {
    // SAFETY: `address` is readable for the length given with it.
    int(unsafe { libc::connect(fd, address.as_ptr().cast(), address.len() as u32) })
}

pub(crate) fn listen(fd: Fd, backlog: c_int) -> Answer {
    // SAFETY: takes numbers only.
    int(unsafe { libc::listen(fd, backlog) })
}

pub(crate) fn accept(fd: Fd) -> Answer {
    // SAFETY: no address is asked for, so nothing is written.
    int(unsafe { libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()) })
}

pub(crate) fn accept4(fd: Fd, flags: c_int) -> Answer {
    // SAFETY: no address is asked for, so nothing is written.
    int(unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// The signature that getsockname and getpeername share.
type NameCall = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

pub(crate) fn name(fd: Fd, peer: bool) -> (Answer, Vec<u8>) {
    let call: NameCall = if peer {
        libc::getpeername
    } else {
        libc::getsockname
    };
    let mut bytes = vec![0u8; 128];
    let mut length = bytes.len() as u32;
    // SAFETY: `bytes` is writable for `length` bytes, and the call writes no more than that.
    let done = int(unsafe { call(fd, bytes.as_mut_ptr().cast(), &mut length) });
    bytes.truncate(length as usize);
    (done, if done.value < 0 { Vec::new() } else { bytes })
}

pub(crate) fn shutdown(fd: Fd, how: c_int) -> Answer {
    // SAFETY: takes numbers only.
    int(unsafe { raw::shutdown(fd, how) })
}

pub(crate) fn close(fd: Fd) -> Answer {
    // SAFETY: the number belongs to the script; nothing of this program owns it.
    int(unsafe { raw::close(fd) })
}

pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Answer {
    // SAFETY: the numbers belong to the script.
    int(unsafe { libc::close_range(first, last, flags) })
}

pub(crate) fn dup(fd: Fd) -> Answer {
    // SAFETY: takes a number only.
    int(unsafe { raw::dup(fd) })
}

pub(crate) fn dup2(fd: Fd, onto: Fd) -> Answer {
    // SAFETY: both numbers belong to the script.
    int(unsafe { raw::dup2(fd, onto) })
}

pub(crate) fn dup3(fd: Fd, onto: Fd, flags: c_int) -> Answer {
    // SAFETY: both numbers belong to the script.
    int(unsafe { raw::dup3(fd, onto, flags) })
}

pub(crate) fn fcntl(fd: Fd, command: c_int, argument: c_int) -> Answer {
    // SAFETY: only commands with a number as their argument are given.
    int(unsafe { libc::fcntl(fd, command, argument) })
}

pub(crate) fn ioctl(fd: Fd, request: libc::Ioctl, value: &mut c_int) -> Answer {
    // SAFETY: only requests that read or write one int are given.
    int(unsafe { libc::ioctl(fd, request, std::ptr::from_mut(value)) })
}

pub(crate) fn setsockopt(fd: Fd, level: c_int, option: c_int, value: &[u8]) -> Answer {
    let length = value.len() as u32;
    // SAFETY: `value` is readable for the length given with it.
    int(unsafe { libc::setsockopt(fd, level, option, value.as_ptr().cast(), length) })
}

pub(crate) fn getsockopt(fd: Fd, level: c_int, option: c_int, value: &mut [u8]) -> Answer {
    let mut length = value.len() as u32;
    let into = value.as_mut_ptr().cast();
    // SAFETY: `value` is writable for `length` bytes, and the call writes no more than that.
    int(unsafe { libc::getsockopt(fd, level, option, into, &mut length) })
}

pub(crate) fn send(fd: Fd, data: &[u8], flags: c_int) -> Answer {
    // SAFETY: `data` is readable for its length.
    size(unsafe { raw::send(fd, data.as_ptr().cast(), data.len(), flags) })
}

/// To nobody in particular where the address is empty.
pub(crate) fn sendto(fd: Fd, data: &[u8], flags: c_int, to: &[u8]) -> Answer {
    let from = data.as_ptr().cast();
    let name = match to {
        [] => std::ptr::null(),
        _ => to.as_ptr().cast(),
    };
    // SAFETY: data and address are readable for their lengths.
    size(unsafe { raw::sendto(fd, from, data.len(), flags, name, to.len() as u32) })
}

pub(crate) fn write(fd: Fd, data: &[u8]) -> Answer {
    // SAFETY: `data` is readable for its length.
    size(unsafe { raw::write(fd, data.as_ptr().cast(), data.len()) })
}

/// A system call that no library sees: for the control pipes.
pub(crate) fn raw_write(fd: Fd, data: &[u8]) -> Answer {
    // SAFETY: `data` is readable for its length.
    size(unsafe { libc::syscall(libc::SYS_write, fd, data.as_ptr(), data.len()) } as isize)
}

/// A system call that no library sees: for the control pipes.
pub(crate) fn raw_read(fd: Fd, data: &mut [u8]) -> Answer {
    // SAFETY: `data` is writable for its length.
    size(unsafe { libc::syscall(libc::SYS_read, fd, data.as_mut_ptr(), data.len()) } as isize)
}

/// Sends or receives with memory that is not there: the answer is EFAULT, or that of an error that
/// comes first.
pub(crate) fn transfer_nowhere(fd: Fd, sends: bool, length: usize, flags: c_int) -> Answer {
    let nowhere = std::ptr::without_provenance_mut::<libc::c_void>(8);
    size(if sends {
        // SAFETY: the kernel finds that the address is not mapped; nothing is read.
        unsafe { raw::send(fd, nowhere, length, flags) }
    } else {
        // SAFETY: the kernel finds that the address is not mapped; nothing is written.
        unsafe { raw::recv(fd, nowhere, length, flags) }
    })
}

pub(crate) fn recv(fd: Fd, into: &mut [u8], flags: c_int) -> Answer {
    // SAFETY: `into` is writable for its length.
    size(unsafe { raw::recv(fd, into.as_mut_ptr().cast(), into.len(), flags) })
}

pub(crate) fn recvfrom(fd: Fd, into: &mut [u8], flags: c_int) -> Answer {
    let (to, length) = (into.as_mut_ptr().cast(), into.len());
    let none = std::ptr::null_mut();
    // SAFETY: `into` is writable for its length; no address is asked for.
    size(unsafe { raw::recvfrom(fd, to, length, flags, none, std::ptr::null_mut()) })
}

/// The sender's name, too.
pub(crate) fn recvname(fd: Fd, into: &mut [u8], flags: c_int) -> (Answer, Vec<u8>) {
    let mut name = vec![0_u8; 128];
    let mut room = 128;
    let (to, length) = (into.as_mut_ptr().cast(), into.len());
    let at = name.as_mut_ptr().cast();
    // SAFETY: `into` and the name are writable for their lengths.
    let answer = size(unsafe { raw::recvfrom(fd, to, length, flags, at, &raw mut room) });
    name.truncate(if answer.value < 0 { 0 } else { room as usize });
    (answer, name)
}

pub(crate) fn read(fd: Fd, into: &mut [u8]) -> Answer {
    // SAFETY: `into` is writable for its length.
    size(unsafe { raw::read(fd, into.as_mut_ptr().cast(), into.len()) })
}

fn vectors(data: &[u8], pieces: usize) -> Vec<libc::iovec> {
    let piece = data.len().div_ceil(pieces.max(1)).max(1);
    let of = |part: &[u8]| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    };
    if data.is_empty() {
        vec![of(data)]
    } else {
        data.chunks(piece).map(of).collect()
    }
}

fn vectors_mut(data: &mut [u8], pieces: usize) -> Vec<libc::iovec> {
    let piece = data.len().div_ceil(pieces.max(1)).max(1);
    let of = |part: &mut [u8]| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    };
    if data.is_empty() {
        vec![of(data)]
    } else {
        data.chunks_mut(piece).map(of).collect()
    }
}

pub(crate) fn writev(fd: Fd, data: &[u8], pieces: usize) -> Answer {
    let vectors = vectors(data, pieces);
    // SAFETY: each vector names a part of `data`, which is readable.
    size(unsafe { raw::writev(fd, vectors.as_ptr(), vectors.len() as c_int) })
}

pub(crate) fn readv(fd: Fd, into: &mut [u8], pieces: usize) -> Answer {
    let vectors = vectors_mut(into, pieces);
    // SAFETY: each vector names a part of `into`, which is writable and borrowed alone.
    size(unsafe { raw::readv(fd, vectors.as_ptr(), vectors.len() as c_int) })
}

fn header(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr is plain numbers and pointers, for which zeros are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    header
}

/// One control message that carries one descriptor: length, level and type, number, padding.
const RIGHTS: usize = 20;

pub(crate) fn sendmsg(
    fd: Fd,
    data: &[u8],
    pieces: usize,
    flags: c_int,
    pass: Option<Fd>,
) -> Answer {
    let mut vectors = vectors(data, pieces);
    let mut header = header(&mut vectors);
    let level_and_type = (1u64 << 32) | 1; // SOL_SOCKET, SCM_RIGHTS
    let mut control = [
        RIGHTS as u64,
        level_and_type,
        pass.unwrap_or(-1) as u32 as u64,
    ];
    if pass.is_some() {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = 24;
    }
    // SAFETY: the header names `vectors`, parts of `data` and `control`, all alive here.
    size(unsafe { raw::sendmsg(fd, &header, flags) })
}

/// What recvmsg says besides its value: the flags, and a descriptor that came along.
pub(crate) struct Message {
    pub(crate) answer: Answer,
    pub(crate) flags: c_int,
    pub(crate) passed: Option<Fd>,
}

pub(crate) fn recvmsg(fd: Fd, into: &mut [u8], pieces: usize, flags: c_int) -> Message {
    let mut vectors = vectors_mut(into, pieces);
    let mut header = header(&mut vectors);
    let mut control = [0u64; 8];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = 64;
    // SAFETY: the header names `vectors`, parts of `into` and `control`, all alive here.
    let answer = size(unsafe { raw::recvmsg(fd, &mut header, flags) });
    let came = answer.value >= 0 && header.msg_controllen >= RIGHTS && control[1] == (1 << 32) | 1;
    let passed = came.then_some(control[2] as u32 as i32);
    Message {
        answer,
        flags: if answer.value < 0 {
            0
        } else {
            header.msg_flags
        },
        passed,
    }
}

/// Sends `data` as `count` messages of equal size; the value is the number of messages.
pub(crate) fn sendmmsg(fd: Fd, data: &[u8], count: usize, flags: c_int) -> (Answer, u64) {
    let mut vectors = vectors(data, count);
    let mut headers: Vec<libc::mmsghdr> = vectors.chunks_mut(1).map(of_many).collect();
    let count = headers.len() as u32;
    // SAFETY: each header names one vector, a part of `data`, all alive here.
    let done = int(unsafe { raw::sendmmsg(fd, headers.as_mut_ptr(), count, flags) });
    (done, total(&headers, done))
}

/// Receives up to `count` messages into equal parts of `into`; also gives the length of each.
pub(crate) fn recvmmsg(
    fd: Fd,
    into: &mut [u8],
    count: usize,
    flags: c_int,
) -> (Answer, Vec<usize>) {
    let mut vectors = vectors_mut(into, count);
    let mut headers: Vec<libc::mmsghdr> = vectors.chunks_mut(1).map(of_many).collect();
    let count = headers.len() as u32;
    let none = std::ptr::null_mut();
    // SAFETY: each header names one vector, a part of `into`, all alive here; no time limit.
    let done = int(unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags, none) });
    let lengths = headers.iter().take(done.value.max(0) as usize);
    (
        done,
        lengths.map(|header| header.msg_len as usize).collect(),
    )
}

fn of_many(vectors: &mut [libc::iovec]) -> libc::mmsghdr {
    libc::mmsghdr {
        msg_hdr: header(vectors),
        msg_len: 0,
    }
}

fn total(headers: &[libc::mmsghdr], done: Answer) -> u64 {
    let sent = headers.iter().take(done.value.max(0) as usize);
    sent.map(|header| u64::from(header.msg_len)).sum()
}

pub(crate) fn poll(members: &mut [libc::pollfd], timeout_ms: c_int) -> Answer {
    // SAFETY: `members` is readable and writable for its length.
    int(unsafe { raw::poll(members.as_mut_ptr(), members.len() as u64, timeout_ms) })
}

fn timespec(timeout_ms: c_int) -> libc::timespec {
    let (seconds, rest) = (timeout_ms / 1000, timeout_ms % 1000);
    libc::timespec {
        tv_sec: seconds.into(),
        tv_nsec: i64::from(rest) * 1_000_000,
    }
}

/// A pointer to a limit of time, or none where the time is negative.
fn limit(time: &libc::timespec, timeout_ms: c_int) -> *const libc::timespec {
    if timeout_ms < 0 {
        std::ptr::null()
    } else {
        time
    }
}

pub(crate) fn ppoll(members: &mut [libc::pollfd], timeout_ms: c_int) -> Answer {
    let time = timespec(timeout_ms);
    let (limit, count) = (limit(&time, timeout_ms), members.len() as u64);
    // SAFETY: `members` is readable and writable for its length; the time lives on; no mask.
    int(unsafe { libc::ppoll(members.as_mut_ptr(), count, limit, std::ptr::null()) })
}

/// A set of descriptors as select takes it: a bit for each of 1,024.
pub(crate) type Set = [u64; 16];

/// select, or pselect where `masked`, on three sets.
pub(crate) fn select(top: c_int, sets: &mut [Set; 3], timeout_ms: c_int, masked: bool) -> Answer {
    let [read, write, other] = sets.each_mut().map(|set| set.as_mut_ptr().cast());
    let time = timespec(timeout_ms);
    if masked {
        let limit = limit(&time, timeout_ms);
        // SAFETY: each set has 1,024 bits, `top` is at most that; no mask.
        return int(unsafe { libc::pselect(top, read, write, other, limit, std::ptr::null()) });
    }
    let mut interval = libc::timeval {
        tv_sec: time.tv_sec,
        tv_usec: time.tv_nsec / 1000,
    };
    let limit = if timeout_ms < 0 {
        std::ptr::null_mut()
    } else {
        &raw mut interval
    };
    // SAFETY: each set has 1,024 bits, `top` is at most that; the time lives on.
    int(unsafe { libc::select(top, read, write, other, limit) })
}

pub(crate) fn epoll_create() -> Answer {
    // SAFETY: takes a number only.
    int(unsafe { libc::epoll_create1(0) })
}

pub(crate) fn epoll_ctl(set: Fd, op: c_int, fd: Fd, events: u32, label: u64) -> Answer {
    let mut event = libc::epoll_event { events, u64: label };
    // SAFETY: the event is readable.
    int(unsafe { raw::epoll_ctl(set, op, fd, &mut event) })
}

pub(crate) fn epoll_wait(
    set: Fd,
    events: &mut [libc::epoll_event],
    timeout_ms: c_int,
    masked: bool,
) -> Answer {
    let (into, count) = (events.as_mut_ptr(), events.len() as c_int);
    if masked {
        // SAFETY: `events` is writable for its length; no mask.
        return int(unsafe { libc::epoll_pwait(set, into, count, timeout_ms, std::ptr::null()) });
    }
    // SAFETY: `events` is writable for its length.
    int(unsafe { raw::epoll_wait(set, into, count, timeout_ms) })
}

/// An anonymous file with these bytes, read from its start.
pub(crate) fn file_of(data: &[u8]) -> Fd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"actor".as_ptr(), libc::MFD_CLOEXEC) };
    raw_write(fd, data);
    // SAFETY: takes numbers only.
    unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
    fd
}

pub(crate) fn sendfile(fd: Fd, file: Fd, length: usize) -> Answer {
    // SAFETY: no offset is given.
    size(unsafe { raw::sendfile(fd, file, std::ptr::null_mut(), length) })
}

pub(crate) fn splice(from: Fd, to: Fd, length: usize, flags: u32) -> Answer {
    let none = std::ptr::null_mut();
    // SAFETY: no offsets are given.
    size(unsafe { libc::splice(from, none, to, std::ptr::null_mut(), length, flags) })
}

/// Writes through a stream of the C library made on the descriptor, which it owns from now on.
pub(crate) fn stdio_write(fd: Fd, data: &[u8]) -> Answer {
    // SAFETY: the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"w".as_ptr()) };
    if stream.is_null() {
        return answer(-1);
    }
    // SAFETY: `data` is readable for its length and the stream is open.
    let written = unsafe { libc::fwrite(data.as_ptr().cast(), 1, data.len(), stream) };
    // SAFETY: the stream is open, and closed once.
    let closed = unsafe { libc::fclose(stream) };
    if closed < 0 {
        int(closed)
    } else {
        answer(written as i64)
    }
}

/// Reads through an unbuffered stream of the C library, which owns the descriptor from now on.
pub(crate) fn stdio_read(fd: Fd, into: &mut [u8]) -> Answer {
    // SAFETY: the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"r".as_ptr()) };
    if stream.is_null() {
        return answer(-1);
    }
    // SAFETY: the stream is open, and nothing was read from it.
    unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
    // SAFETY: `into` is writable for its length and the stream is open.
    let taken = unsafe { libc::fread(into.as_mut_ptr().cast(), 1, into.len(), stream) };
    // SAFETY: the stream is open, and closed once.
    unsafe { libc::fclose(stream) };
    answer(taken as i64)
}

pub(crate) fn fork() -> i32 {
    // SAFETY: the child goes on alone in this thread and makes its other threads anew.
    unsafe { libc::fork() }
}

/// Ends the process as a program does that returns from main.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: destructors and handlers of exit run while other threads sit in calls, as in any program.
    unsafe { libc::exit(status) }
}

pub(crate) fn exec(
    program: &std::ffi::CStr,
    arguments: &[&std::ffi::CStr],
    environment: &[std::ffi::CString],
) -> Answer {
    let end = std::iter::once(std::ptr::null());
    let arguments: Vec<_> = arguments
        .iter()
        .map(|one| one.as_ptr())
        .chain(end.clone())
        .collect();
    let environment: Vec<_> = environment
        .iter()
        .map(|one| one.as_ptr())
        .chain(end)
        .collect();
    // SAFETY: both lists end with a null pointer and hold C strings that live on.
    int(unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) })
}

pub(crate) fn thread_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

pub(crate) fn signal_thread(thread: i32, signal: c_int) -> Answer {
    // SAFETY: takes numbers only; the process is this one.
    answer(unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) })
}

/// Sets the handler of a signal, with SA_RESTART where asked.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int), restart: bool) -> Answer {
    // SAFETY: a sigaction is plain numbers, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: the handler only makes calls that are safe in one, and touches atomics.
    int(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })
}

/// errno is the thread's own, and a handler leaves it as it was.
pub(crate) fn keeping_errno(body: impl FnOnce()) {
    // SAFETY: the address of this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for the life of the thread.
    let before = unsafe { *place };
    body();
    // SAFETY: as above.
    unsafe { *place = before };
}
