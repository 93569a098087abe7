//! What only datagram sockets can do: other peers, none, and addresses in calls.

use super::first;
use super::transfer::{arrived, took};
use crate::model::{Kind, Model};
use crate::script::Who;

/// What a socket of this kind and name is called in `connect` and `sendto`.
pub(super) fn address(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Udp => format!("p{name}"),
        _ => format!("u:{name}"),
    }
}

/// Two sockets, bound and connected to each other.
pub(super) fn connect(model: &mut Model, kind: Kind, ends: [(Who, &str); 2]) {
    for (who, name) in ends {
        let place = match kind {
            Kind::Udp => format!("here {}", address(kind, name)),
            _ => address(kind, name),
        };
        model.say(who, &format!("socket {name} {}", kind.name()));
        model.say(who, &format!("bind {name} {place}"));
    }
    let [(one, first), (two, second)] = ends;
    let connects = [(one, first, second), (two, second, first)];
    for (who, name, peer) in connects {
        model.say(who, &format!("connect {name} {}", address(kind, peer)));
    }
}

/// One of them, on a connection that is in good order.
pub(super) fn odd(model: &mut Model) {
    let Some((link, end)) = model.link() else {
        return;
    };
    let state = &model.links[link];
    let kind = state.kind;
    let to = &state.ends[1 - end];
    if !kind.is_datagram() || state.over || to.watched || to.reader.is_some() {
        return;
    }
    let peer = state.names[1 - end].clone();
    let (Some((process, name)), Some((other, far))) =
        (model.holder(link, end), model.holder(link, 1 - end))
    else {
        return;
    };
    let (Some(who), Some(there)) = (model.thread(process, false), model.thread(other, false))
    else {
        return;
    };
    let tag = model.tag();
    match model.random.below(5) {
        0 if model.links[link].room(1 - end) > 20 => {
            model.say(who, &format!("sendto {name} 20 {tag} - {peer}"));
            arrived(model, link, 1 - end, 20);
        }
        1 => {
            // A stranger: the kernel keeps it away from a connected socket.
            let new = model.name("x");
            model.say(first(process), &format!("socket {new} {}", kind.name()));
            model.say(first(process), &format!("connect {new} {peer}"));
            let text = format!("sendto {new} 7 {tag} dontwait {peer}");
            model.say(first(process), &text);
            model.say(first(process), &format!("close {new}"));
        }
        2 => model.say(who, &format!("connect {name} {peer}")),
        3 if model.random.chance(50) => {
            model.links[link].over = true;
            model.woke(link, end);
            model.say(who, &format!("connect {name} none"));
            for _ in 0..1 + model.random.below(6) {
                let texts = [
                    (who, format!("send {name} 5 {tag} dontwait")),
                    (there, format!("send {far} 6 {tag} dontwait")),
                    (who, format!("recvname {name} 100 dontwait")),
                    (there, format!("recvname {far} 100 dontwait")),
                    (who, format!("connect {name} {peer}")),
                    (who, format!("sendto {name} 8 {tag} dontwait {peer}")),
                    (there, format!("getopt {far} error")),
                    (there, format!("poll 0 {far}:in|out")),
                    (who, format!("poll 0 {name}:in|out")),
                ];
                let (who, text) = model.random.one(&texts).clone();
                model.say(who, &text);
            }
        }
        _ => {
            model.say(there, &format!("recvname {far} 100 dontwait"));
            took(model, link, 1 - end, 100);
        }
    }
}
