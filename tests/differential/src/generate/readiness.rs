//! Idioms that look: poll, select and epoll.

use crate::model::{Model, Set};
use crate::script::Who;

/// A look at several ends at once.
pub(super) fn look(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let members = members_of(model, process);
    if members.is_empty() {
        return;
    }
    let verb = *model
        .random
        .one(&["poll", "poll", "ppoll", "select", "pselect"]);
    let events: &[&str] = match verb {
        "poll" | "ppoll" => &["in", "out", "in|out", "in|rdhup", "in|out|pri|rdhup", "pri"],
        _ => &["in", "out", "in|out", "in|out|pri"],
    };
    let mut text = format!("{verb} {}", model.random.one(&[0, 0, 0, 3]));
    for (link, _, name) in &members {
        let asked = *model.random.one(events);
        let asked = if model.links[*link].tight {
            without_room(asked)
        } else {
            asked
        };
        text += &format!(" {name}:{asked}");
    }
    if verb == "poll" && model.random.chance(10) {
        text += " never:in";
    }
    model.say(who, &text);
}

/// Events without the question for room: when a small buffer has some depends on acknowledgements, which the kernel delays.
fn without_room(events: &str) -> &str {
    match events {
        "out" => "pri",
        "in|out" => "in",
        "in|out|pri" => "in|pri",
        "in|out|pri|rdhup" => "in|pri|rdhup",
        "in|out|et" => "in|et",
        other => other,
    }
}

/// Ends that a process holds, by link, end and one name.
pub(super) fn members_of(model: &Model, process: char) -> Vec<(usize, usize, String)> {
    let mut members = Vec::new();
    for (link, state) in model.links.iter().enumerate() {
        for (end, at) in state.ends.iter().enumerate() {
            if let Some((_, name)) = at.holders.iter().find(|(holder, _)| *holder == process) {
                members.push((link, end, name.clone()));
            }
        }
    }
    members
}

/// A look that sleeps until something comes.
pub(super) fn look_asleep(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let Some(who) = model.thread(process, true) else {
        return;
    };
    let members = members_of(model, process);
    let reads = members
        .iter()
        .any(|(link, end, _)| model.links[*link].ends[*end].reader.is_some());
    if members.is_empty() || reads {
        return;
    }
    let verb = *model.random.one(&["poll", "ppoll", "select", "pselect"]);
    let names: Vec<String> = members
        .iter()
        .map(|(_, _, name)| format!("{name}:in"))
        .collect();
    model.say(who, &format!("{verb} -1 {}", names.join(" ")));
    let now = model.steps.len();
    model.busy.insert(who, now);
    members
        .iter()
        .for_each(|(link, end, _)| model.links[*link].ends[*end].watched = true);
}

/// A set is made, or a member comes, changes or goes.
pub(super) fn epoll(model: &mut Model) {
    let process = *model.random.one(&model.alive.clone());
    let Some(who) = model.thread(process, false) else {
        return;
    };
    let sets: Vec<usize> = (0..model.sets.len())
        .filter(|&set| {
            model.sets[set]
                .holders
                .iter()
                .any(|(holder, _)| *holder == process)
        })
        .collect();
    if sets.is_empty() || (sets.len() < 3 && model.random.chance(15)) {
        return new_set(model, who);
    }
    let set = *model.random.one(&sets);
    let name = model.sets[set]
        .holders
        .iter()
        .find(|(holder, _)| *holder == process);
    let Some((_, name)) = name.cloned() else {
        return;
    };
    let members = members_of(model, process);
    if members.is_empty() || model.sets[set].waiting {
        return;
    }
    let (link, end, member) = model.random.one(&members).clone();
    let kinds = [
        "in",
        "in|et",
        "in|out|et",
        "in|out",
        "in|rdhup|et",
        "in|oneshot",
        "in|excl",
        "in|et|oneshot",
    ];
    let events = *model.random.one(&kinds);
    let events = if model.links[link].tight {
        without_room(events)
    } else {
        events
    };
    model.links[link].asked_for_room |= events.contains("out");
    let known = model.sets[set]
        .members
        .iter()
        .position(|&(l, e, _)| (l, e) == (link, end));
    match known {
        None => {
            let label = 10 * link + end;
            model.say(who, &format!("ctl {name} add {member} {events} {label}"));
            model.sets[set].members.push((link, end, label));
        }
        Some(at) if model.random.chance(30) => {
            model.say(who, &format!("ctl {name} del {member} - 0"));
            model.sets[set].members.remove(at);
        }
        Some(at) => {
            let label = model.sets[set].members[at].2;
            model.say(who, &format!("ctl {name} mod {member} {events} {label}"));
        }
    }
}

pub(super) fn new_set(model: &mut Model, who: Who) {
    let name = model.name("e");
    model.say(who, &format!("epoll {name}"));
    let nested = model
        .sets
        .iter()
        .flat_map(|set| &set.holders)
        .find(|(holder, _)| *holder == who.process);
    if let Some((_, inner)) = nested.cloned()
        && model.random.chance(50)
    {
        model.say(who, &format!("ctl {name} add {inner} in 99"));
    }
    model.sets.push(Set {
        holders: vec![(who.process, name)],
        members: Vec::new(),
        waiting: false,
    });
}

/// A set is asked, at once or asleep.
pub(super) fn epoll_wait(model: &mut Model) {
    if model.sets.is_empty() {
        return epoll(model);
    }
    let set = model.random.below(model.sets.len());
    let holders = model.sets[set].holders.clone();
    let (process, name) = model.random.one(&holders).clone();
    let reads = model.sets[set]
        .members
        .iter()
        .any(|&(link, end, _)| model.links[link].ends[end].reader.is_some());
    let sleeps =
        !reads && !model.sets[set].waiting && model.sets.len() == 1 && model.random.chance(25);
    let Some(who) = model.thread(process, sleeps) else {
        return;
    };
    let verb = *model.random.one(&["wait", "wait", "pwait"]);
    if !sleeps {
        let limit = *model.random.one(&[0, 0, 0, 2]);
        return model.say(who, &format!("{verb} {name} 32 {limit}"));
    }
    model.say(who, &format!("{verb} {name} 32 -1"));
    let now = model.steps.len();
    model.busy.insert(who, now);
    model.sets[set].waiting = true;
    for (link, end, _) in model.sets[set].members.clone() {
        model.links[link].ends[end].watched = true;
    }
}
