//! Making, naming, copying, configuring and ending descriptors.

use crate::Actor;
use crate::calls::{self, Answer, Fd};
use crate::report::{Arguments, Report};

/// Does the command if it is one of these.
pub(crate) fn run(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    ends(actor, words, report) || copies(actor, words, report) || settings(actor, words, report)
}

fn flag(text: &str, nonblock: i32, cloexec: i32) -> i32 {
    let of = |word| match word {
        "nonblock" => nonblock,
        "cloexec" => cloexec,
        _ => 0,
    };
    text.split('|').map(of).fold(0, |all, bit| all | bit)
}

fn socket_flags(text: &str) -> i32 {
    flag(text, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC)
}

fn family(kind: &str) -> (i32, i32) {
    match kind {
        "tcp" => (libc::AF_INET, libc::SOCK_STREAM),
        "tcp6" => (libc::AF_INET6, libc::SOCK_STREAM),
        _ => (libc::AF_UNIX, libc::SOCK_STREAM),
    }
}

/// `4:ADDRESS:PORT`, `6:ADDRESS:PORT` in IPv6's form of that address, `u:NAME` (abstract), or `none` (`AF_UNSPEC`).
pub(crate) fn address(text: &str) -> Vec<u8> {
    if text == "none" {
        return vec![0; size_of::<libc::sockaddr>()];
    }
    let (kind, rest) = text.split_once(':').unwrap_or(("", ""));
    if kind == "u" {
        let family = (libc::AF_UNIX as u16).to_ne_bytes();
        return [&family[..], &[0], rest.as_bytes()].concat();
    }
    let (ip, port) = rest.rsplit_once(':').unwrap_or((rest, "0"));
    let port: u16 = port.parse().unwrap_or(0);
    let ip: std::net::Ipv4Addr = ip.parse().unwrap_or(std::net::Ipv4Addr::LOCALHOST);
    if kind == "6" {
        let family = (libc::AF_INET6 as u16).to_ne_bytes();
        let ip = ip.to_ipv6_mapped().octets();
        return [&family[..], &port.to_be_bytes(), &[0; 4], &ip, &[0; 4]].concat();
    }
    let family = (libc::AF_INET as u16).to_ne_bytes();
    [&family[..], &port.to_be_bytes(), &ip.octets(), &[0; 8]].concat()
}

/// The address and the port that a name of a socket holds; for Unix its text.
fn told(name: &[u8]) -> (String, Option<u16>) {
    let family = name
        .first_chunk()
        .map_or(0, |bytes| i32::from(u16::from_ne_bytes(*bytes)));
    let port = name
        .get(2..4)
        .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = name
                .get(4..8)
                .and_then(|ip| ip.try_into().ok())
                .unwrap_or_default();
            (std::net::Ipv4Addr::from(ip).to_string(), port)
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = name
                .get(8..24)
                .and_then(|ip| ip.try_into().ok())
                .unwrap_or_default();
            (std::net::Ipv6Addr::from(ip).to_string(), port)
        }
        _ => (
            format!(
                "unix:{}",
                String::from_utf8_lossy(name.get(3..).unwrap_or(&[]))
            ),
            None,
        ),
    }
}

/// Reports whose name it is, and the name.
pub(crate) fn tell(whose: &str, name: &[u8], report: &mut Report) {
    let (address, port) = told(name);
    report.put(&format!("{whose}_address"), address);
    if let Some(port) = port {
        report.put(&format!("{whose}_port"), port);
    }
}

fn ends(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    let (one, two) = (words.word(1), words.word(2));
    let mut made = |answer: Answer| {
        actor.set(one, answer.value as Fd);
        report.made(answer);
    };
    match words.word(0) {
        "socket" => {
            let (domain, kind) = family(two);
            made(calls::socket(domain, kind | socket_flags(words.word(3)), 0));
        }
        "accept" => made(calls::accept(actor.fd(two))),
        "accept4" => made(calls::accept4(actor.fd(two), socket_flags(words.word(3)))),
        "pair" | "pipe" => {
            let mut pair = [-1; 2];
            let (domain, kind) = family(words.word(3));
            let answer = match words.word(0) {
                "pipe" => calls::pipe(&mut pair, 0),
                _ => calls::socketpair(domain, kind | socket_flags(words.word(4)), &mut pair),
            };
            actor.set(one, pair[0]);
            actor.set(two, pair[1]);
            report.answer(answer);
            report.put("fds", format_args!("{},{}", pair[0], pair[1]));
        }
        "bind" => {
            report.answer(calls::bind(actor.fd(one), &address(two)));
            if !words.word(3).is_empty() {
                let (_, name) = calls::name(actor.fd(one), false);
                report.put("~port", told(&name).1.unwrap_or(0));
            }
        }
        "listen" => {
            report.answer(calls::listen(actor.fd(one), words.number(2) as i32));
            let (_, name) = calls::name(actor.fd(one), false);
            report.put("~port", told(&name).1.unwrap_or(0));
        }
        "connect" => report.answer(calls::connect(actor.fd(one), &address(two))),
        "name" => {
            for (key, peer) in [("local", false), ("peer", true)] {
                let (answer, name) = calls::name(actor.fd(one), peer);
                report.answer(answer);
                tell(key, &name, report);
            }
        }
        "shutdown" => {
            let how = match two {
                "rd" => libc::SHUT_RD,
                "wr" => libc::SHUT_WR,
                _ => libc::SHUT_RDWR,
            };
            report.answer(calls::shutdown(actor.fd(one), how));
        }
        "close" => report.answer(calls::close(actor.fd(one))),
        "closerange" => {
            let fd = actor.fd(one);
            let first = if fd < 0 { u32::MAX } else { fd as u32 };
            report.answer(calls::close_range(first, first, 0));
        }
        _ => return false,
    }
    true
}

/// `dup NEW OLD`, `dup2 ONTO OLD`, `dup3 ONTO OLD cloexec`, `dupfd NEW OLD MINIMUM`, `sleep MS`.
fn copies(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    let (new, old) = (words.word(1), actor.fd(words.word(2)));
    let onto = actor.fd(new);
    let made = match words.word(0) {
        "dup" => calls::dup(old),
        "dup2" => calls::dup2(old, onto),
        "dup3" => calls::dup3(old, onto, flag(words.word(3), 0, libc::O_CLOEXEC)),
        "dupfd" => calls::fcntl(old, libc::F_DUPFD, words.number(3) as i32),
        "dupfdc" => calls::fcntl(old, libc::F_DUPFD_CLOEXEC, words.number(3) as i32),
        "sleep" => {
            std::thread::sleep(std::time::Duration::from_millis(
                words.number(1).unsigned_abs(),
            ));
            report.put("ret", 0);
            return true;
        }
        _ => return false,
    };
    if made.value >= 0 {
        actor.set(new, made.value as Fd);
    }
    report.made(made);
    true
}

/// Whether the next byte is urgent: `linux/sockios.h`; the libc crate does not have it.
const SIOCATMARK: libc::Ioctl = 0x8905;

/// How an option's value is written in scripts.
#[derive(Clone, Copy)]
enum Value {
    Number,
    Linger,
    Milliseconds,
}

/// Options by name: level, number, form.
const OPTIONS: &[(&str, i32, i32, Value)] = &[
    (
        "nodelay",
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        Value::Number,
    ),
    ("cork", libc::IPPROTO_TCP, libc::TCP_CORK, Value::Number),
    (
        "quickack",
        libc::IPPROTO_TCP,
        libc::TCP_QUICKACK,
        Value::Number,
    ),
    ("sndbuf", libc::SOL_SOCKET, libc::SO_SNDBUF, Value::Number),
    ("rcvbuf", libc::SOL_SOCKET, libc::SO_RCVBUF, Value::Number),
    (
        "rcvtimeo",
        libc::SOL_SOCKET,
        libc::SO_RCVTIMEO,
        Value::Milliseconds,
    ),
    (
        "sndtimeo",
        libc::SOL_SOCKET,
        libc::SO_SNDTIMEO,
        Value::Milliseconds,
    ),
    ("linger", libc::SOL_SOCKET, libc::SO_LINGER, Value::Linger),
    (
        "rcvlowat",
        libc::SOL_SOCKET,
        libc::SO_RCVLOWAT,
        Value::Number,
    ),
    (
        "keepalive",
        libc::SOL_SOCKET,
        libc::SO_KEEPALIVE,
        Value::Number,
    ),
    (
        "reuseaddr",
        libc::SOL_SOCKET,
        libc::SO_REUSEADDR,
        Value::Number,
    ),
    (
        "oobinline",
        libc::SOL_SOCKET,
        libc::SO_OOBINLINE,
        Value::Number,
    ),
    ("error", libc::SOL_SOCKET, libc::SO_ERROR, Value::Number),
    (
        "acceptconn",
        libc::SOL_SOCKET,
        libc::SO_ACCEPTCONN,
        Value::Number,
    ),
    ("type", libc::SOL_SOCKET, libc::SO_TYPE, Value::Number),
    ("domain", libc::SOL_SOCKET, libc::SO_DOMAIN, Value::Number),
    (
        "protocol",
        libc::SOL_SOCKET,
        libc::SO_PROTOCOL,
        Value::Number,
    ),
    (
        "passcred",
        libc::SOL_SOCKET,
        libc::SO_PASSCRED,
        Value::Number,
    ),
    (
        "peekoff",
        libc::SOL_SOCKET,
        libc::SO_PEEK_OFF,
        Value::Number,
    ),
];

/// setsockopt and getsockopt: a lingering time is in seconds, -1 is off.
fn option(actor: &Actor, words: &Arguments, report: &mut Report) {
    let (fd, name, number) = (actor.fd(words.word(1)), words.word(2), words.number(3));
    let Some(&(_, level, option, form)) = OPTIONS.iter().find(|(known, ..)| *known == name) else {
        return report.put("unknown", name);
    };
    if words.word(0) == "setopt" {
        let small = |value: i64| (value as i32).to_ne_bytes();
        let value = match form {
            Value::Number => small(number).to_vec(),
            Value::Linger => [small(i64::from(number >= 0)), small(number.max(0))].concat(),
            Value::Milliseconds => [
                (number / 1000).to_ne_bytes(),
                (number % 1000 * 1000).to_ne_bytes(),
            ]
            .concat(),
        };
        return report.answer(calls::setsockopt(fd, level, option, &value));
    }
    let mut value = [0u8; 16];
    let length = match form {
        Value::Number => 4,
        Value::Linger => 8,
        Value::Milliseconds => 16,
    };
    let answer = calls::getsockopt(fd, level, option, &mut value[..length]);
    report.answer(answer);
    if answer.value >= 0 {
        let small = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| value[at + i]));
        let key = if name == "sndbuf" || name == "rcvbuf" {
            "buffer"
        } else {
            "value"
        };
        match form {
            Value::Number => report.put(key, small(0)),
            Value::Linger => report.put(key, format_args!("{},{}", small(0), small(4))),
            Value::Milliseconds => report.put(key, small(0) * 1000 + small(8) / 1000),
        }
    }
}

fn settings(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    let fd = actor.fd(words.word(1));
    let mut value = words.number(2) as i32;
    match words.word(0) {
        "setopt" | "getopt" => option(actor, words, report),
        "getfl" => report.answer(calls::fcntl(fd, libc::F_GETFL, 0)),
        "setfl" => {
            let flags = flag(words.word(2), libc::O_NONBLOCK, 0);
            report.answer(calls::fcntl(fd, libc::F_SETFL, flags));
        }
        "getfd" => report.answer(calls::fcntl(fd, libc::F_GETFD, 0)),
        "setfd" => report.answer(calls::fcntl(fd, libc::F_SETFD, value)),
        "fionbio" => report.answer(calls::ioctl(fd, libc::FIONBIO, &mut value)),
        "fionread" | "outq" | "atmark" => {
            let (request, key) = match words.word(0) {
                "fionread" => (libc::FIONREAD, "unread"),
                "outq" => (libc::TIOCOUTQ, "~unsent"),
                _ => (SIOCATMARK, "mark"),
            };
            let answer = calls::ioctl(fd, request, &mut value);
            report.answer(answer);
            if answer.value >= 0 {
                report.put(key, value);
            }
        }
        _ => return false,
    }
    true
}
