//! Idioms that move bytes.

use super::first;
use crate::model::{Holder, Kind, Model};

/// One of the ways to send, small enough to fit.
pub(super) fn send(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let room = model.links[link].room(1 - end);
    let sizes = [
        0, 1, 2, 7, 64, 100, 500, 1000, 1448, 4096, 4097, 9000, 16000,
    ];
    let size = *model.random.one(&sizes);
    let asleep =
        model.links[link].ends[1 - end].reader.is_some() || model.links[link].ends[1 - end].watched;
    if size > room {
        return;
    }
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let tag = model.tag();
    let flags = *model
        .random
        .one(&["-", "-", "nosignal", "dontwait", "dontwait|nosignal"]);
    let pieces = 1 + model.random.below(9);
    let text = match model.random.below(8) {
        0 => format!("write {name} {size} {tag}"),
        1 => format!("writev {name} {size} {tag} - {pieces}"),
        2 => format!("sendmsg {name} {size} {tag} {flags} {pieces}"),
        3 => format!("sendto {name} {size} {tag} {flags}"),
        4 if !asleep && size >= pieces && pieces < 4 => {
            format!("sendmmsg {name} {size} {tag} {flags} {pieces}")
        }
        _ => format!("send {name} {size} {tag} {flags}"),
    };
    model.say(who, &text);
    arrived(model, link, 1 - end, size);
}

/// Bytes came to an end; one who slept for them took them.
pub(super) fn arrived(model: &mut Model, link: usize, end: usize, size: usize) {
    let to = &mut model.links[link].ends[end];
    if size == 0 {
        return;
    }
    if to.reader.is_none() {
        to.unread += size;
    }
    model.woke(link, end);
}

/// Bytes were taken at an end.
pub(super) fn took(model: &mut Model, link: usize, end: usize, size: usize) {
    let at = &mut model.links[link].ends[end];
    at.unread = at.unread.saturating_sub(size);
}

/// One of the ways to receive what is there, or to find that nothing is.
pub(super) fn receive(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let state = &model.links[link];
    let at = &state.ends[end];
    let may_sleep = at.unread == 0 && !at.nonblock && !state.over;
    let size = *model
        .random
        .one(&[0, 1, 3, 50, 100, 1000, 5000, 30_000, 60_000]);
    let flag = match model.random.below(8) {
        _ if may_sleep || model.links[link].over || model.links[link].ends[end].watched => {
            "dontwait"
        }
        0 => "peek",
        1 => "peek|dontwait",
        2 => "trunc|dontwait",
        4 => "dontwait",
        _ => "-",
    };
    let pieces = 1 + model.random.below(5);
    let plain = flag == "-";
    let text = match model.random.below(7) {
        0 if plain => format!("read {name} {size}"),
        1 if plain => format!("readv {name} {size} - {pieces}"),
        2 => format!("recvmsg {name} {size} {flag} {pieces}"),
        3 => format!("recvfrom {name} {size} {flag}"),
        _ => format!("recv {name} {size} {flag}"),
    };
    model.say(who, &text);
    if !flag.contains("peek") {
        took(model, link, end, size);
    }
}

/// A read that finds nothing and sleeps.
pub(super) fn receive_asleep(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let state = &model.links[link];
    let at = &state.ends[end];
    let quiet = at.unread == 0 && at.reader.is_none() && !at.watched && !at.nonblock;
    if !quiet || state.over {
        return;
    }
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    let Some(who) = model.thread(process, true) else {
        return;
    };
    let verb = *model
        .random
        .one(&["recv", "read", "recvfrom", "recvmsg", "readv"]);
    model.say(who, &format!("{verb} {name} 20000 - 1"));
    let now = model.steps.len();
    model.busy.insert(who, now);
    model.links[link].ends[end].reader = Some(who);
}

/// A read that sleeps until all came, which comes in parts; or until the stream ends.
pub(super) fn wait_for_all(model: &mut Model) {
    let Some((link, end, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix])
    else {
        return;
    };
    if model.links[link].ends[1 - end].nonblock {
        return;
    }
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, true)) else {
        return;
    };
    if from == to {
        return;
    }
    let tag = model.tag();
    let verb = *model.random.one(&["recv", "recvfrom", "recvmsg"]);
    model.say(to, &format!("{verb} {peer} 300 waitall 1"));
    model.say(from, &format!("send {name} 100 {tag}"));
    model.say(from, &format!("send {name} 50 {}", tag + 100));
    if model.random.chance(25) {
        model.say(from, &format!("shutdown {name} wr"));
        model.links[link].over = true;
        return;
    }
    model.say(from, &format!("write {name} 250 {}", tag + 150));
    model.links[link].ends[1 - end].unread = 100;
}

/// A call that sleeps is interrupted by a signal, and goes on after it or does not.
pub(super) fn interrupt(model: &mut Model) {
    let Some((link, end, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix])
    else {
        return;
    };
    if model.links[link].ends[1 - end].nonblock {
        return;
    }
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, true)) else {
        return;
    };
    let restart = model.random.chance(40);
    let calls = [
        "recv {} 100 -",
        "recv {} 100 peek",
        "read {} 100",
        "recv {} 100 waitall",
        "poll -1 {}:in",
        "select -1 {}:in",
        "ppoll -1 {}:in",
    ];
    let call = *model.random.one(&calls);
    if from == to || from.thread != '0' {
        return;
    }
    let tag = model.tag();
    model.say(
        first(other),
        &format!("handler {}", if restart { "restart" } else { "norestart" }),
    );
    model.say(to, &call.replace("{}", &peer));
    if call.contains("waitall") {
        model.say(from, &format!("send {name} 30 {tag}"));
    }
    model.say(first(other), &format!("tkill {}", to.thread));
    model.say(from, &format!("send {name} 100 {}", tag + 30));
    model.say(first(other), &format!("recv {peer} 200 dontwait"));
    model.say(first(other), "handler restart");
}

/// All that is unread, exactly.
pub(super) fn take_all(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let size = model.links[link].ends[end].unread;
    let Some((process, name)) = model.holder(link, end) else {
        return;
    };
    if size == 0 || model.links[link].over {
        return;
    }
    if let Some(who) = model.thread(process, false) {
        let waitall = !model.links[link].ends[end].nonblock && model.random.chance(50);
        let text = if waitall {
            format!("recv {name} {size} waitall")
        } else {
            format!("take {name} {size}")
        };
        model.say(who, &text);
        took(model, link, end, size);
    }
}

/// Both ends of a link in good order, nothing unread towards the second, nobody asleep; with a thread each.
pub(super) fn quiet_pair(
    model: &mut Model,
    kinds: &[Kind],
) -> Option<(usize, usize, Holder, Holder)> {
    let (link, end) = model.link()?;
    let state = &model.links[link];
    let to = &state.ends[1 - end];
    let quiet = to.unread == 0 && to.reader.is_none() && !to.watched;
    if !quiet || state.over || !kinds.contains(&state.kind) {
        return None;
    }
    let from = model.holder(link, end)?;
    let to = model.holder(link, 1 - end)?;
    Some((link, end, from, to))
}

/// More than the buffers hold: the sender sleeps until the receiver has taken it. Not through buffers that were made small, of which
/// the kernel may fill one in 200 ms.
pub(super) fn transfer_large(model: &mut Model) {
    let Some((link, _, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix])
    else {
        return;
    };
    if model.links[link].tight {
        return;
    }
    let size = *model
        .random
        .one(&[40_000, 65_536, 200_000, 262_145, 3_000_000]);
    let (Some(from), Some(to)) = (model.thread(one, true), model.thread(other, false)) else {
        return;
    };
    if from == to {
        return;
    }
    let tag = model.tag();
    model.say(from, &format!("give {name} {size} {tag}"));
    model.say(to, &format!("take {peer} {size}"));
}

/// A socket filled to the brim: who waits for room is told, and nothing is lost. Whether a TCP socket has room right after that is
/// not asked: the kernel's own answer differs from run to run on a busy machine.
pub(super) fn fill_and_drain(model: &mut Model) {
    let Some((link, _, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix])
    else {
        return;
    };
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, false)) else {
        return;
    };
    if model.links[link].tight {
        return;
    }
    let (tag, count) = (model.tag(), model.name("n"));
    model.say(from, &format!("fill {name} {tag} {count}"));
    if model.links[link].kind == Kind::Unix {
        model.say(from, &format!("poll 0 {name}:out"));
    }
    model.say(to, &format!("poll 0 {peer}:in|out"));
    model.say(to, &format!("drain {peer} ${count} {tag}"));
    model.say(from, &format!("poll 1000 {name}:out"));
}

/// Bytes held back by CORK or MORE and then let go.
pub(super) fn cork(model: &mut Model) {
    let Some((_, _, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp]) else {
        return;
    };
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, false)) else {
        return;
    };
    let (tag, corked) = (model.tag(), model.random.chance(50));
    let flag = if corked { "-" } else { "more" };
    if corked {
        model.say(from, &format!("setopt {name} cork 1"));
    }
    model.say(from, &format!("send {name} 70 {tag} {flag}"));
    model.say(from, &format!("send {name} 30 {} {flag}", tag + 70));
    if corked {
        model.say(from, &format!("setopt {name} cork 0"));
    } else {
        model.say(from, &format!("send {name} 1 {}", tag + 100));
    }
    let size = if corked { 100 } else { 101 };
    model.say(to, &format!("take {peer} {size}"));
}

/// An urgent byte between others.
pub(super) fn urgent(model: &mut Model) {
    let Some((_, _, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp]) else {
        return;
    };
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, false)) else {
        return;
    };
    let tag = model.tag();
    model.say(from, &format!("send {name} 10 {tag}"));
    model.say(from, &format!("send {name} 3 {} oob", tag + 10));
    model.say(to, &format!("poll 0 {peer}:in|pri"));
    model.say(to, &format!("fionread {peer}"));
    if model.random.chance(50) {
        model.say(to, &format!("recv {peer} 1 oob"));
        model.say(to, &format!("recv {peer} 1 oob"));
    }
    model.say(to, &format!("atmark {peer}"));
    model.say(to, &format!("recv {peer} 100 -"));
    model.say(to, &format!("atmark {peer}"));
    model.say(from, &format!("send {name} 20 {}", tag + 13));
    model.say(to, &format!("recv {peer} 100 -"));
    model.say(to, &format!("recv {peer} 100 dontwait"));
    model.say(to, &format!("poll 0 {peer}:in|pri"));
}

/// sendfile, splice, streams of the C library.
pub(super) fn odd_transfer(model: &mut Model) {
    let Some((link, _, (one, name), (other, peer))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix])
    else {
        return;
    };
    let (Some(from), Some(to)) = (model.thread(one, false), model.thread(other, false)) else {
        return;
    };
    let tag = model.tag();
    let size = *model.random.one(&[1, 10, 500]);
    let nonblock = model.links[link].ends.iter().any(|end| end.nonblock);
    let verb = *model
        .random
        .one(&["sendfile", "spliceout", "stdiowrite", "send", "send"]);
    model.say(from, &format!("{verb} {name} {size} {tag}"));
    let verb = *model.random.one(&["splicein", "stdioread", "take"]);
    let verb = if nonblock && verb == "stdioread" {
        "take"
    } else {
        verb
    };
    model.say(to, &format!("{verb} {peer} {size}"));
}

/// A read that gives up.
pub(super) fn time_limit(model: &mut Model) {
    let Some((link, end, _, (process, name))) = quiet_pair(model, &[Kind::Tcp, Kind::Unix]) else {
        return;
    };
    let Some(who) = model.thread(process, true) else {
        return;
    };
    if model.links[link].ends[1 - end].nonblock {
        return;
    }
    model.say(who, &format!("setopt {name} rcvtimeo 12"));
    let flag = *model.random.one(&["-", "waitall", "peek"]);
    model.say(who, &format!("recv {name} 100 {flag} !"));
    model.say(who, &format!("setopt {name} rcvtimeo 0"));
}
