//! Moving bytes: every way to send and to receive, once or until a count is reached.

use crate::Actor;
use crate::calls::{self, Answer, Fd};
use crate::make::{address, tell};
use crate::raw;
use crate::report::{Arguments, Report, pattern};

/// Most bytes of one transfer.
const LENGTH_MAX: usize = 32 << 20;

/// `fill` stops here, however much the kernel would take.
const FILL_MAX: usize = 64 << 20;

/// `give` and `take` wait for a socket that does not block for as long as it takes.
const PATIENCE_MS: i32 = -1;

const FLAGS: &[(&str, i32)] = &[
    ("dontwait", libc::MSG_DONTWAIT),
    ("peek", libc::MSG_PEEK),
    ("waitall", libc::MSG_WAITALL),
    ("trunc", libc::MSG_TRUNC),
    ("nosignal", libc::MSG_NOSIGNAL),
    ("more", libc::MSG_MORE),
    ("oob", libc::MSG_OOB),
    ("eor", libc::MSG_EOR),
    ("cmsgcloexec", libc::MSG_CMSG_CLOEXEC),
];

fn flags(text: &str) -> i32 {
    let named = |word| {
        FLAGS
            .iter()
            .find(|(name, _)| *name == word)
            .map_or(0, |(_, bit)| *bit)
    };
    text.split('|').map(named).fold(0, |all, bit| all | bit)
}

fn length(words: &Arguments, index: usize) -> usize {
    words.number(index).clamp(0, LENGTH_MAX as i64) as usize
}

/// Does the command if it is one of these.
pub(crate) fn run(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    let fd = actor.fd(words.word(1));
    match words.word(0) {
        "send" | "sendto" | "write" | "writev" | "sendmsg" | "sendmmsg" => send(fd, words, report),
        "recv" | "recvfrom" | "recvname" | "read" | "readv" | "recvmsg" => {
            receive(fd, words, report)
        }
        "recvmmsg" => receive_many(fd, words, report),
        "more" => more(fd, words, report),
        "give" => give(fd, words, report),
        "take" => take(fd, words, report),
        "fill" => fill(fd, words, report),
        "drain" => drain(fd, words, report),
        "nowhere" => {
            let sends = words.word(2) == "send";
            report.answer(calls::transfer_nowhere(
                fd,
                sends,
                length(words, 3),
                flags(words.word(4)),
            ));
        }
        "sendfd" => {
            let (pass, data) = (
                actor.fd(words.word(2)),
                pattern(words.number(4) as u64, length(words, 3)),
            );
            report.answer(calls::sendmsg(fd, &data, 1, libc::MSG_NOSIGNAL, Some(pass)));
        }
        "recvfd" => receive_descriptor(actor, fd, words, report),
        _ => return odd(fd, words, report),
    }
    true
}

/// `send FD LENGTH TAG FLAGS PIECES`, by the call that the verb names.
fn send(fd: Fd, words: &Arguments, report: &mut Report) {
    let data = pattern(words.number(3) as u64, length(words, 2));
    let (flags, pieces) = (
        flags(words.word(4)),
        words.number(5).clamp(1, 1024) as usize,
    );
    let answer = match words.word(0) {
        "send" => calls::send(fd, &data, flags),
        "sendto" if words.word(5).is_empty() => calls::sendto(fd, &data, flags, &[]),
        "sendto" => calls::sendto(fd, &data, flags, &address(words.word(5))),
        "write" => calls::write(fd, &data),
        "writev" => calls::writev(fd, &data, pieces),
        "sendmsg" => calls::sendmsg(fd, &data, pieces, flags, None),
        _ => {
            let (answer, sent) = calls::sendmmsg(fd, &data, pieces, flags);
            report.put("sent", sent);
            answer
        }
    };
    report.answer(answer);
}

/// `recv FD LENGTH FLAGS PIECES`, by the call that the verb names.
fn receive(fd: Fd, words: &Arguments, report: &mut Report) {
    let mut into = vec![0; length(words, 2)];
    let (flags, pieces) = (
        flags(words.word(3)),
        words.number(4).clamp(1, 1024) as usize,
    );
    let answer = match words.word(0) {
        "recv" => calls::recv(fd, &mut into, flags),
        "recvfrom" => calls::recvfrom(fd, &mut into, flags),
        "recvname" => {
            let (answer, name) = calls::recvname(fd, &mut into, flags);
            tell("from", &name, report);
            answer
        }
        "read" => calls::read(fd, &mut into),
        "readv" => calls::readv(fd, &mut into, pieces),
        _ => {
            let message = calls::recvmsg(fd, &mut into, pieces, flags);
            report.put("flags", message.flags & !libc::MSG_CMSG_CLOEXEC);
            if let Some(passed) = message.passed {
                calls::close(passed);
            }
            message.answer
        }
    };
    let discards = flags & libc::MSG_TRUNC != 0 && !raw::is_unix(fd);
    received(&into, answer, discards, report);
}

/// With TRUNC a TCP socket discards its bytes and leaves the memory as it was (tcp(7)). A Unix stream does not.
fn received(into: &[u8], answer: Answer, discards: bool, report: &mut Report) {
    report.answer(answer);
    let came = (answer.value.max(0) as usize).min(into.len());
    if !discards {
        report.data(&into[..came]);
    } else if came > 0 {
        report.put("~discarded", came);
    }
}

/// `recvmmsg FD LENGTH FLAGS COUNT`: the messages one after another, and the length of each.
fn receive_many(fd: Fd, words: &Arguments, report: &mut Report) {
    let mut into = vec![0; length(words, 2)];
    let count = words.number(4).clamp(1, 1024) as usize;
    let piece = into.len().div_ceil(count).max(1);
    let (answer, lengths) = calls::recvmmsg(fd, &mut into, count, flags(words.word(3)));
    report.answer(answer);
    let parts = into
        .chunks(piece)
        .zip(&lengths)
        .flat_map(|(part, &length)| &part[..length.min(part.len())]);
    let bytes: Vec<u8> = parts.copied().collect();
    report.data(&bytes);
    if !lengths.is_empty() {
        let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
        report.put("lengths", lengths.join(","));
    }
}

/// `more FD LENGTH HASH`: what a short read left, at once; the hash goes on from that of the first part.
fn more(fd: Fd, words: &Arguments, report: &mut Report) {
    let mut into = vec![0; length(words, 2)];
    let answer = calls::recv(fd, &mut into, libc::MSG_DONTWAIT);
    report.answer(answer);
    let state = u64::from_str_radix(words.word(3), 16).unwrap_or(0);
    report.more_data(state, &into[..answer.value.max(0) as usize]);
}

/// Waits until a socket that does not block can go on; false if it never can.
fn ready(fd: Fd, answer: Answer, events: i16) -> bool {
    answer.errno == libc::EAGAIN
        && calls::poll(
            &mut [libc::pollfd {
                fd,
                events,
                revents: 0,
            }],
            PATIENCE_MS,
        )
        .value
            > 0
}

/// `give FD LENGTH TAG`: until all is sent.
fn give(fd: Fd, words: &Arguments, report: &mut Report) {
    let data = pattern(words.number(3) as u64, length(words, 2));
    let mut sent = 0;
    while sent < data.len() {
        let answer = calls::send(fd, &data[sent..], libc::MSG_NOSIGNAL);
        if answer.value > 0 {
            sent += answer.value as usize;
        } else if !ready(fd, answer, libc::POLLOUT) {
            report.put("errno", answer.errno);
            break;
        }
    }
    report.put("given", sent);
}

/// Receives until `into` is full, or the stream ends, or fails.
fn take_into(fd: Fd, into: &mut [u8], report: &mut Report) -> usize {
    let mut taken = 0;
    while taken < into.len() {
        let answer = calls::recv(fd, &mut into[taken..], 0);
        if answer.value > 0 {
            taken += answer.value as usize;
        } else if !ready(fd, answer, libc::POLLIN) {
            report.put("errno", answer.errno);
            break;
        }
    }
    report.put("taken", taken);
    taken
}

/// `take FD LENGTH`: until all came.
fn take(fd: Fd, words: &Arguments, report: &mut Report) {
    let mut into = vec![0; length(words, 2)];
    let taken = take_into(fd, &mut into, report);
    report.data(&into[..taken]);
}

/// `fill FD TAG`: until the socket takes no more; how much that was is the runner's secret.
fn fill(fd: Fd, words: &Arguments, report: &mut Report) {
    let tag = words.number(2) as u64;
    let mut filled = 0;
    let last = loop {
        let data = pattern(tag + filled as u64, 65_536);
        let answer = calls::send(fd, &data, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        if answer.value <= 0 || filled > FILL_MAX {
            break answer;
        }
        filled += answer.value as usize;
    };
    report.put("~filled", filled);
    report.answer(last);
}

/// `drain FD LENGTH TAG`: takes what `fill` sent; whether each byte is the one of its position.
fn drain(fd: Fd, words: &Arguments, report: &mut Report) {
    let expected = pattern(
        words.number(3) as u64,
        words.number(2).clamp(0, 2 * FILL_MAX as i64) as usize,
    );
    let mut into = vec![0; expected.len()];
    let mut ignored = Report::default();
    let taken = take_into(fd, &mut into, &mut ignored);
    report.put("~taken", taken);
    report.put("whole", u8::from(taken == expected.len()));
    report.put("right", u8::from(into[..taken] == expected[..taken]));
}

/// `recvfd FD NAME LENGTH FLAGS`
fn receive_descriptor(actor: &Actor, fd: Fd, words: &Arguments, report: &mut Report) {
    let mut into = vec![0; length(words, 3)];
    let message = calls::recvmsg(fd, &mut into, 1, flags(words.word(4)));
    if let Some(passed) = message.passed {
        actor.set(words.word(2), passed);
    }
    report.put("passed", message.passed.unwrap_or(-1));
    received(&into, message.answer, false, report);
}

/// sendfile, splice and stdio.
fn odd(fd: Fd, words: &Arguments, report: &mut Report) -> bool {
    let data = || pattern(words.number(3) as u64, length(words, 2));
    let mut pair = [-1; 2];
    match words.word(0) {
        "sendfile" => {
            let file = calls::file_of(&data());
            report.answer(calls::sendfile(fd, file, length(words, 2)));
            calls::close(file);
        }
        "splicein" => {
            calls::pipe(&mut pair, 0);
            let mut into = vec![0; length(words, 2)];
            let answer = calls::splice(fd, pair[1], into.len(), 0);
            into.truncate(answer.value.max(0) as usize);
            calls::raw_read(pair[0], &mut into);
            received(&into, answer, false, report);
        }
        "spliceout" => {
            calls::pipe(&mut pair, 0);
            let data = data();
            calls::raw_write(pair[1], &data[..data.len().min(32_768)]);
            report.answer(calls::splice(pair[0], fd, data.len(), 0));
        }
        "stdiowrite" => report.answer(calls::stdio_write(calls::dup(fd).value as Fd, &data())),
        "stdioread" => {
            let mut into = vec![0; length(words, 2)];
            let answer = calls::stdio_read(calls::dup(fd).value as Fd, &mut into);
            received(&into, answer, false, report);
        }
        _ => return false,
    }
    for end in pair.into_iter().filter(|end| *end >= 0) {
        calls::close(end);
    }
    true
}
