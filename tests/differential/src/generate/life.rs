//! Idioms that make, change, share and end connections and processes.

use super::first;
use super::readiness::members_of;
use super::transfer::{arrived, took};
use crate::model::{End, Holder, Kind, Link, Model};

/// A connection between A and B.
pub(super) fn connect(model: &mut Model, warm_up: bool) {
    let kinds = [
        Kind::Tcp,
        Kind::Tcp,
        Kind::Tcp,
        Kind::Tcp,
        Kind::Tcp,
        Kind::Unix,
    ];
    let mixed = *model.random.one(&kinds);
    let kind = model.kind.unwrap_or(mixed);
    let (client, server, listener) = (model.name("c"), model.name("s"), model.name("l"));
    let (a, b) = (first('A'), first('B'));
    match kind {
        Kind::Tcp => {
            let (family, here, port) = match model.random.chance(15) {
                true => ("tcp6", "here6", format!("6:{listener}")),
                false => ("tcp", "here", listener.clone()),
            };
            model.say(b, &format!("socket {listener} {family}"));
            model.say(b, &format!("bind {listener} {here}"));
            model.say(b, &format!("listen {listener} 5 {listener}"));
            model.say(a, &format!("socket {client} {family}"));
            model.say(a, &format!("connect {client} {port}"));
            model.say(b, &format!("accept {server} {listener}"));
            model.say(a, &format!("setopt {client} nodelay 1"));
            model.say(b, &format!("setopt {server} nodelay 1"));
        }
        Kind::Unix => {
            model.say(b, &format!("socket {listener} unix"));
            model.say(b, &format!("bind {listener} u:{listener}"));
            model.say(b, &format!("listen {listener} 5 {listener}"));
            model.say(a, &format!("socket {client} unix"));
            model.say(a, &format!("connect {client} u:{listener}"));
            model.say(b, &format!("accept {server} {listener}"));
        }
    }
    for round in 0..if warm_up { 3 } else { 0 } {
        for (one, name, other, peer) in [(a, &client, b, &server), (b, &server, a, &client)] {
            let tag = model.tag();
            model.say(one, &format!("send {name} {} {tag}", 10 + round));
            model.say(other, &format!("recv {peer} 100"));
        }
    }
    let ends = [End::new('A', &client), End::new('B', &server)];
    model.links.push(Link {
        kind,
        ends,
        tight: false,
        asked_for_room: false,
        over: false,
    });
}

/// Another number for the same end, or an end to one of several.
pub(super) fn copy(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let own = model.links[link].ends[end]
        .holders
        .iter()
        .filter(|(holder, _)| *holder == process)
        .count();
    if own > 1 && model.random.chance(50) {
        model.say(who, &format!("close {name}"));
        return model.links[link].ends[end]
            .holders
            .retain(|holder| *holder != (process, name.clone()));
    }
    let new = model.name("d");
    match model.random.below(5) {
        0 => model.say(who, &format!("dupfd {new} {name} 40")),
        1 => model.say(who, &format!("dupfdc {new} {name} 3")),
        2 => {
            model.say(who, &format!("dup {new} {name}"));
            model.say(who, &format!("dup2 {new} {name}"));
        }
        3 => {
            model.say(who, &format!("pipe {new} {new}w"));
            model.say(who, &format!("dup3 {new} {name} cloexec"));
        }
        _ => model.say(who, &format!("dup {new} {name}")),
    }
    model.links[link].ends[end].holders.push((process, new));
}

pub(super) fn nonblocking(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let on = !model.links[link].ends[end].nonblock;
    let text = match model.random.chance(50) {
        true => format!("setfl {name} {}", if on { "nonblock" } else { "-" }),
        false => format!("fionbio {name} {}", u8::from(on)),
    };
    model.say(who, &text);
    model.say(who, &format!("getfl {name}"));
    model.links[link].ends[end].nonblock = on;
}

/// Questions that change nothing.
pub(super) fn ask(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let questions = [
        "fionread",
        "fionread",
        "outq",
        "name",
        "getfl",
        "getfd",
        "getopt type",
        "getopt acceptconn",
        "getopt error",
        "getopt domain",
        "getopt protocol",
        "getopt sndbuf",
        "getopt rcvbuf",
        "getopt nodelay",
        "getopt linger",
        "getopt rcvtimeo",
        "getopt rcvlowat",
        "getopt keepalive",
    ];
    let (verb, option) = model
        .random
        .one(&questions)
        .split_once(' ')
        .unwrap_or_default();
    let question = *model.random.one(&questions);
    let text = match (verb, question.split_once(' ')) {
        ("getopt", _) => format!("getopt {name} {option}"),
        (_, Some((verb, option))) => format!("{verb} {name} {option}"),
        _ => format!("{question} {name}"),
    };
    model.say(who, &text);
}

pub(super) fn option(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let options = [
        "sndbuf 4096",
        "sndbuf 60000",
        "rcvbuf 4096",
        "rcvbuf 100000",
        "keepalive 1",
        "linger -1",
        "linger 1",
        "rcvlowat 1",
        "sndtimeo 5000",
        "oobinline 0",
    ];
    let chosen = *model.random.one(&options);
    if model.links[link].asked_for_room && chosen.contains("buf") {
        return;
    }
    model.say(who, &format!("setopt {name} {chosen}"));
    let option = chosen.split(' ').next().unwrap_or("");
    model.say(who, &format!("getopt {name} {option}"));
    model.links[link].tight |= option.ends_with("buf");
}

/// A signal to a thread, which may be asleep in a call.
pub(super) fn signal(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let how = *model.random.one(&["restart", "norestart"]);
    let mut text = format!("handler {how}");
    let target = members_of(model, process).into_iter().next();
    if let Some((link, end, name)) = target
        && model.random.chance(40)
        && !model.links[link].over
        && model.links[link].room(1 - end) > 5
    {
        text += &format!(" {name} {}", model.tag());
        arrived(model, link, 1 - end, 5);
    }
    model.say(first(process), &text);
    let thread = model.random.below(3);
    model.say(first(process), &format!("tkill {thread}"));
    model.say(first(process), "handler restart");
}

pub(super) fn shut_down(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    if let Some(who) = model.thread(process, false) {
        let how = *model.random.one(&["rd", "wr", "wr", "wr", "rdwr"]);
        model.say(who, &format!("shutdown {name} {how}"));
        let state = &mut model.links[link];
        state.over = true;
        state.ends[end].shut = true;
        model.woke(link, 0);
        model.woke(link, 1);
    }
}

/// One number of an end is closed; the last one ends the connection, with what was set for that.
pub(super) fn close(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    if model.links[link].kind == Kind::Tcp && model.random.chance(20) {
        let seconds = *model.random.one(&[0, 0, 1]);
        model.say(who, &format!("setopt {name} linger {seconds}"));
    }
    let verb = *model.random.one(&["close", "close", "closerange"]);
    model.say(who, &format!("{verb} {name}"));
    let at = &mut model.links[link].ends[end];
    at.holders
        .retain(|holder| *holder != (process, name.clone()));
    model.links[link].over |= model.links[link].ends[end].holders.is_empty();
    if model.links[link].over {
        model.woke(link, 1 - end);
        if let Some((process, name)) = model.holder(link, 1 - end)
            && let Some(who) = model.thread(process, false)
        {
            let texts = [
                "getopt {} error",
                "poll 0 {}:in|rdhup",
                "send {} 1 1",
                "recv {} 100 dontwait",
                "name {}",
            ];
            for _ in 0..model.random.below(5) {
                let text = *model.random.one(&texts);
                model.say(who, &text.replace("{}", &name));
            }
        }
    }
}

/// Calls that fail.
pub(super) fn mistake(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let name = members_of(model, process)
        .first()
        .map_or("never".to_owned(), |(_, _, name)| name.clone());
    let new = model.name("m");
    match model.random.below(10) {
        9 => {
            model.say(who, &format!("socket {new} tcp nonblock"));
            model.say(who, &format!("connect {new} nobody"));
            model.say(who, &format!("poll 1000 {new}:out"));
            model.say(who, &format!("getopt {new} error"));
            model.say(who, &format!("getopt {new} error"));
            model.say(who, &format!("close {new}"));
        }
        0 => model.say(who, "send never 10 1"),
        1 => model.say(who, "recv never 10 dontwait"),
        2 => model.say(who, &format!("nowhere {name} send 100 dontwait")),
        3 => model.say(who, &format!("nowhere {name} recv 100 dontwait")),
        4 => model.say(who, &format!("listen {name} 1 {new}")),
        5 => model.say(who, &format!("connect {name} nobody")),
        6 => {
            model.say(who, &format!("socket {new} tcp"));
            model.say(who, &format!("recv {new} 5 dontwait"));
            model.say(who, &format!("send {new} 5 1 nosignal"));
            model.say(who, &format!("connect {new} nobody"));
            model.say(who, &format!("getopt {new} error"));
            model.say(who, &format!("close {new}"));
        }
        7 => {
            model.say(who, &format!("pipe {new} {new}w"));
            model.say(who, &format!("send {new}w 5 1"));
            model.say(who, &format!("getopt {new} type"));
        }
        _ => model.say(who, &format!("accept {new} {name}")),
    }
}

/// C comes into being, with all that its parent holds.
pub(super) fn fork(model: &mut Model) {
    if model.alive.contains(&'C') {
        return;
    }
    let process = *model.random.one(&model.alive.clone());
    model.say(first(process), "fork");
    model.alive.push('C');
    let inherited = |holders: &mut Vec<Holder>| {
        let copies: Vec<Holder> = holders
            .iter()
            .filter(|(holder, _)| *holder == process)
            .map(|(_, name)| ('C', name.clone()))
            .collect();
        holders.extend(copies);
    };
    model
        .links
        .iter_mut()
        .flat_map(|link| &mut link.ends)
        .for_each(|end| inherited(&mut end.holders));
    model
        .sets
        .iter_mut()
        .for_each(|set| inherited(&mut set.holders));
}

/// Whether a process was killed: what it left unread in its ring is lost to another program that gets the other end, by an exec or
/// by SCM_RIGHTS. That one sees the end or the reset.
fn has_killed(model: &Model) -> bool {
    model.steps.iter().any(|step| step.verb() == "kill")
}

/// A process becomes a new image; what was to be closed is closed.
pub(super) fn exec(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let how = *model.random.one(&["accelerated", "plain"]);
    if has_killed(model) {
        return;
    }
    model.say(first(process), &format!("exec {how}"));
    model.busy.retain(|who, _| who.process != process);
    for end in model.links.iter_mut().flat_map(|link| &mut link.ends) {
        end.reader = end.reader.filter(|who| who.process != process);
    }
}

/// An end is passed to the other process through a pair of Unix sockets.
pub(super) fn pass(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let other = if process == 'A' { 'B' } else { 'A' };
    if !model.alive.contains(&other) || has_killed(model) {
        return;
    }
    let (from, to) = (model.name("u"), model.name("u"));
    let (listener, got) = (model.name("l"), model.name("g"));
    let (one, two) = (first(process), first(other));
    model.say(two, &format!("socket {listener} unix"));
    model.say(two, &format!("bind {listener} u:{listener}"));
    model.say(two, &format!("listen {listener} 1 {listener}"));
    model.say(one, &format!("socket {from} unix"));
    model.say(one, &format!("connect {from} u:{listener}"));
    model.say(two, &format!("accept {to} {listener}"));
    model.say(one, &format!("sendfd {from} {name} 3 {}", model.tag()));
    model.say(two, &format!("recvfd {to} {got} 10 dontwait"));
    model.links[link].ends[end].holders.push((other, got));
}

pub(super) fn kill(model: &mut Model) {
    if model.alive.len() < 2 || model.steps.len() < 40 {
        return;
    }
    let process = *model.random.one(&model.alive.clone());
    model.say(first(process), "kill");
    model.alive.retain(|&one| one != process);
    for link in &mut model.links {
        for end in &mut link.ends {
            end.holders.retain(|(holder, _)| *holder != process);
            end.reader = end.reader.filter(|who| who.process != process);
            link.over |= end.holders.is_empty();
        }
    }
    model
        .sets
        .iter_mut()
        .for_each(|set| set.holders.retain(|(holder, _)| *holder != process));
    model.sets.retain(|set| !set.holders.is_empty());
}

/// A further connection, which may not wait for its establishment.
pub(super) fn connect_late(model: &mut Model) {
    if !['A', 'B']
        .iter()
        .all(|process| model.alive.contains(process))
        || model.links.len() > 3
    {
        return;
    }
    if model.random.chance(50) {
        return connect(model, true);
    }
    let (client, server, listener) = (model.name("c"), model.name("s"), model.name("l"));
    let (a, b) = (first('A'), first('B'));
    model.say(a, &format!("socket {listener} tcp"));
    model.say(a, &format!("bind {listener} here"));
    model.say(a, &format!("listen {listener} 5 {listener}"));
    model.say(a, &format!("poll 0 {listener}:in"));
    model.say(b, &format!("socket {client} tcp nonblock"));
    model.say(b, &format!("connect {client} {listener}"));
    model.say(b, &format!("poll 1000 {client}:out"));
    model.say(b, &format!("getopt {client} error"));
    model.say(b, &format!("setopt {client} nodelay 1"));
    model.say(b, &format!("send {client} 11 {}", model.tag()));
    model.say(a, &format!("poll 1000 {listener}:in"));
    model.say(a, &format!("accept4 {server} {listener} nonblock"));
    model.say(a, &format!("setopt {server} nodelay 1"));
    model.say(a, &format!("recv {server} 100 -"));
    model.say(a, &format!("close {listener}"));
    let mut ends = [End::new('B', &client), End::new('A', &server)];
    ends.iter_mut().for_each(|end| end.nonblock = true);
    model.links.push(Link {
        kind: Kind::Tcp,
        ends,
        tight: false,
        asked_for_room: false,
        over: false,
    });
}

/// A process stands still while others go on.
pub(super) fn stop(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    model.say(first(process), "stop");
    for _ in 0..3 {
        let others: Vec<char> = model
            .alive
            .iter()
            .copied()
            .filter(|&one| one != process)
            .collect();
        let Some(&other) = others.first() else {
            break;
        };
        let Some((link, end, name)) = members_of(model, other).into_iter().next() else {
            break;
        };
        if model.links[link].room(1 - end) > 200 && !model.links[link].over {
            let tag = model.tag();
            model.say(first(other), &format!("send {name} 100 {tag} dontwait"));
            arrived(model, link, 1 - end, 100);
        }
        model.say(first(other), &format!("recv {name} 50 dontwait"));
        took(model, link, end, 50);
    }
    model.say(first(process), "cont");
}
