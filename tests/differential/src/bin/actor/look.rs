//! Looks at readiness: poll, select, epoll.

use crate::Actor;
use crate::calls::{self, Answer};
use crate::report::{Arguments, Report};

/// Names of events, with poll's and epoll's bits, which are the same on Linux.
const EVENTS: &[(&str, u32)] = &[
    ("in", libc::EPOLLIN as u32),
    ("pri", libc::EPOLLPRI as u32),
    ("out", libc::EPOLLOUT as u32),
    ("err", libc::EPOLLERR as u32),
    ("hup", libc::EPOLLHUP as u32),
    ("rdnorm", libc::EPOLLRDNORM as u32),
    ("rdhup", libc::EPOLLRDHUP as u32),
    ("excl", libc::EPOLLEXCLUSIVE as u32),
    ("oneshot", libc::EPOLLONESHOT as u32),
    ("et", libc::EPOLLET as u32),
];

/// POLLNVAL, which epoll does not have.
const INVALID: u32 = libc::POLLNVAL as u32;

fn bits(text: &str) -> u32 {
    let named = |word| {
        EVENTS
            .iter()
            .find(|(name, _)| *name == word)
            .map_or(0, |(_, bit)| *bit)
    };
    text.split('|').map(named).fold(0, |all, bit| all | bit)
}

fn text(bits: u32) -> String {
    let known = EVENTS
        .iter()
        .filter(|(_, bit)| bits & bit != 0)
        .map(|(name, _)| *name);
    let invalid = (bits & INVALID != 0).then_some("nval");
    let names: Vec<&str> = known.chain(invalid).collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join("|")
    }
}

/// Does the command if it is one of these.
pub(crate) fn run(actor: &Actor, words: &Arguments, report: &mut Report) -> bool {
    let label = words.word(1);
    match words.word(0) {
        "poll" | "ppoll" => poll(actor, words, report),
        "select" | "pselect" => select(actor, words, report),
        "epoll" => {
            let made = calls::epoll_create();
            actor.set(label, made.value as i32);
            report.made(made);
        }
        "ctl" => {
            let op = match words.word(2) {
                "add" => libc::EPOLL_CTL_ADD,
                "mod" => libc::EPOLL_CTL_MOD,
                _ => libc::EPOLL_CTL_DEL,
            };
            let (events, number) = (bits(words.word(4)), words.number(5) as u64);
            report.answer(calls::epoll_ctl(
                actor.fd(label),
                op,
                actor.fd(words.word(3)),
                events,
                number,
            ));
        }
        "wait" | "pwait" => wait(actor, words, report),
        _ => return false,
    }
    true
}

/// `poll MS FD:EVENTS ...`
fn poll(actor: &Actor, words: &Arguments, report: &mut Report) {
    let mut members: Vec<libc::pollfd> = words
        .rest(2)
        .iter()
        .map(|word| {
            let (name, events) = word.split_once(':').unwrap_or((word, "in"));
            libc::pollfd {
                fd: actor.fd(name),
                events: bits(events) as i16,
                revents: 0,
            }
        })
        .collect();
    let timeout = words.number(1) as i32;
    let done = match words.word(0) {
        "poll" => calls::poll(&mut members, timeout),
        _ => calls::ppoll(&mut members, timeout),
    };
    report.answer(done);
    let found: Vec<String> = members
        .iter()
        .map(|one| text(u32::from(one.revents as u16)))
        .collect();
    report.put("revents", found.join(","));
}

/// `select MS FD:EVENTS ...`: in, out and pri are the three sets.
fn select(actor: &Actor, words: &Arguments, report: &mut Report) {
    let mut sets = [[0u64; 16]; 3];
    let mut top = 0;
    let kinds = ["in", "out", "pri"].map(bits);
    let members: Vec<(usize, u32)> = words
        .rest(2)
        .iter()
        .map(|word| {
            let (name, events) = word.split_once(':').unwrap_or((word, "in"));
            (actor.fd(name).clamp(0, 1023) as usize, bits(events))
        })
        .collect();
    for &(fd, events) in &members {
        top = top.max(fd + 1);
        for (set, _) in sets
            .iter_mut()
            .zip(kinds)
            .filter(|(_, kind)| events & kind != 0)
        {
            set[fd / 64] |= 1 << (fd % 64);
        }
    }
    let masked = words.word(0) == "pselect";
    let done = calls::select(top as i32, &mut sets, words.number(1) as i32, masked);
    report.answer(done);
    if done.value < 0 {
        return;
    }
    let found = |fd: usize| {
        let in_set = |set: &calls::Set| set[fd / 64] & (1 << (fd % 64)) != 0;
        let ready = sets
            .iter()
            .zip(kinds)
            .filter(|(set, _)| in_set(set))
            .map(|(_, kind)| kind);
        text(ready.fold(0, |all, kind| all | kind))
    };
    let found: Vec<String> = members.iter().map(|&(fd, _)| found(fd)).collect();
    report.put("revents", found.join(","));
}

/// `wait SET MAX MS`: the events, sorted by label.
fn wait(actor: &Actor, words: &Arguments, report: &mut Report) {
    let room = words.number(2).clamp(1, 64) as usize;
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
    let (set, timeout) = (actor.fd(words.word(1)), words.number(3) as i32);
    let done: Answer = calls::epoll_wait(set, &mut events, timeout, words.word(0) == "pwait");
    report.answer(done);
    events.truncate(done.value.max(0) as usize);
    let mut found: Vec<(u64, u32)> = events
        .iter()
        .map(|event| (event.u64, event.events))
        .collect();
    found.sort_unstable();
    let found: Vec<String> = found
        .iter()
        .map(|(label, bits)| format!("{label}:{}", text(*bits)))
        .collect();
    if !found.is_empty() {
        report.put("events", found.join(","));
    }
}
