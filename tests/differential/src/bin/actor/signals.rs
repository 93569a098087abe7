//! Signals of an actor: SIGPIPE is counted, SIGUSR1 does what the script said.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::Actor;
use crate::calls::{self, Fd};
use crate::report::{Arguments, Report};

static PIPES: AtomicU64 = AtomicU64::new(0);
static ANSWERS: AtomicI32 = AtomicI32::new(-1);
static SEND_ON: AtomicI32 = AtomicI32::new(-1);
static SEND_TAG: AtomicU64 = AtomicU64::new(0);

/// Bytes that a sending handler sends.
const HANDLER_BYTES: usize = 5;

extern "C" fn on_pipe(_: c_int) {
    PIPES.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn on_user(_: c_int) {
    calls::keeping_errno(|| {
        let fd = SEND_ON.load(Ordering::Relaxed);
        let mut line = *b"s sent=0\n";
        if fd >= 0 {
            let tag = SEND_TAG.load(Ordering::Relaxed).to_le_bytes();
            let sent = calls::send(
                fd,
                &tag[..HANDLER_BYTES],
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            );
            line[7] = if sent.value < 0 {
                b'E'
            } else {
                b'0' + sent.value as u8
            };
        }
        calls::raw_write(ANSWERS.load(Ordering::Relaxed), &line);
    });
}

/// Where the handler of SIGUSR1 says that it ran.
pub(crate) fn answer_on(fd: Fd) {
    ANSWERS.store(fd, Ordering::Relaxed);
}

/// SIGPIPE is counted from now on.
pub(crate) fn count_pipes() {
    calls::handle(libc::SIGPIPE, on_pipe, true);
}

/// SIGPIPEs so far.
pub(crate) fn pipes() -> u64 {
    PIPES.load(Ordering::Relaxed)
}

/// `handler restart|norestart [FD TAG]`: what SIGUSR1 does.
pub(crate) fn run(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    if words.word(0) != "handler" {
        return false;
    }
    let fd = if words.word(2).is_empty() {
        -1
    } else {
        actor.fd(words.word(2))
    };
    SEND_ON.store(fd, Ordering::Relaxed);
    SEND_TAG.store(words.number(3) as u64, Ordering::Relaxed);
    report.answer(calls::handle(
        libc::SIGUSR1,
        on_user,
        words.word(1) == "restart",
    ));
    true
}
