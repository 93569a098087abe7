//! Scripts from seeds: connections, then idioms picked at random, each of which is exact on a kernel.

mod life;
mod readiness;
mod transfer;

use crate::model::{Kind, Model};
use crate::script::{Step, Who};
use life::{
    ask, close, connect, connect_late, copy, exec, fork, kill, mistake, nonblocking, option, pass,
    shut_down, signal, stop,
};
use readiness::{epoll, epoll_wait, look, look_asleep};
use transfer::{
    cork, fill_and_drain, interrupt, odd_transfer, receive, receive_asleep, send, take_all,
    time_limit, transfer_large, urgent, wait_for_all,
};

/// Steps of a script, without what sets up connections.
const STEPS_MIN: usize = 12;
const STEPS_MORE: usize = 36;

/// An idiom: how likely it is, and what writes it.
type Idiom = (usize, fn(&mut Model));

const IDIOMS: &[Idiom] = &[
    (30, send),
    (26, receive),
    (5, receive_asleep),
    (3, wait_for_all),
    (3, interrupt),
    (8, take_all),
    (3, transfer_large),
    (2, fill_and_drain),
    (10, look),
    (4, look_asleep),
    (12, epoll),
    (6, epoll_wait),
    (5, copy),
    (4, nonblocking),
    (6, ask),
    (4, option),
    (3, cork),
    (3, urgent),
    (3, odd_transfer),
    (3, time_limit),
    (3, signal),
    (3, shut_down),
    (4, close),
    (3, mistake),
    (2, fork),
    (1, exec),
    (2, pass),
    (1, kill),
    (2, connect_late),
    (1, stop),
];

/// The script of a seed; its connections are mixed, or all of one kind.
pub fn generate(seed: u64, warm_up: bool, kind: Option<Kind>) -> Vec<Step> {
    let mut model = Model::new(seed, kind);
    for _ in 0..1 + model.random.below(2) {
        connect(&mut model, warm_up);
    }
    let length = model.steps.len() + STEPS_MIN + model.random.below(STEPS_MORE);
    let total: usize = IDIOMS.iter().map(|(weight, _)| weight).sum();
    while model.steps.len() < length {
        let mut pick = model.random.below(total);
        let idiom = IDIOMS.iter().find(|(weight, _)| {
            let found = pick < *weight;
            pick = pick.saturating_sub(*weight);
            found
        });
        if let Some((_, write)) = idiom {
            write(&mut model);
        }
        model.forget_sleepers();
        if model.alive.is_empty() {
            break;
        }
    }
    finish(&mut model);
    model.steps
}

fn first(process: char) -> Who {
    Who {
        process,
        thread: '0',
    }
}

/// What nobody asked for is read, so that every script compares every byte and the end of each stream.
fn finish(model: &mut Model) {
    for link in 0..model.links.len() {
        for end in 0..2 {
            if let Some((process, name)) = model.holder(link, end) {
                model.say(first(process), &format!("recv {name} 60000 dontwait"));
                let room = if model.links[link].tight { "" } else { "out|" };
                model.say(first(process), &format!("poll 0 {name}:in|{room}rdhup"));
            }
        }
    }
}
