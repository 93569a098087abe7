//! What the library may answer otherwise than the kernel did, and why. Anything else that differs is a failure.
//!
//! | rule | what may differ | reason |
//! | --- | --- | --- |
//! | lag | a look that found less finds the same when it is repeated, within 20 ms | TCP's own news lag, too: its segments arrive by a softirq |
//! | short read | a receive gives less; what is missing comes at once, and the bytes of both parts are compared. Of a call that slept the kernel's may be the shorter one | a stream has no messages (recv(2)); old bytes lie in the kernel, new ones in the ring; a sleeper that is woken by the first of two messages may come before the second |
//! | one more edge | an edge-triggered wait reports `in` once more than the kernel, with `out` or without, where poll says so, too; asked again, it reports nothing | bytes that leave the ring arrive anew in the kernel; epoll(7) allows several edges |
//! | partial edge | an edge for room lacks `in`, of bytes that the subject has told since they came; an edge for bytes lacks `out`, which the subject has told since a call last found too little room | an edge of the kernel carries all that holds; ring and kernel do not know all of each other, and the program has been told |
//! | short peek | with calls that the library does not see, a peek gives less; the bytes are the kernel's first ones | a call out of sight leaves the counts behind until the other end sleeps |
//!
//! With calls that the library does not see a lag may last 600 ms: the broker's watch moves the bytes then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::compare::Pair;
use crate::files::News;
use crate::script::{Step, Who};
use crate::world::{Replies, Reply, World};

/// Pauses before a look is repeated, in microseconds: 15.5 ms and the looks themselves.
const PAUSES_US: &[u64] = &[100, 400, 1_000, 4_000, 10_000];

/// The same where the broker has to move bytes into the kernel for a reader that is not seen.
const PAUSES_RAW_US: &[u64] = &[
    100, 400, 1_000, 4_000, 10_000, 30_000, 50_000, 50_000, 50_000, 50_000, 50_000, 50_000, 50_000,
    100_000, 100_000,
];

/// How long a call that a rule makes may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pauses before a look is repeated.
pub(crate) fn pauses_us(is_raw: bool) -> &'static [u64] {
    if is_raw { PAUSES_RAW_US } else { PAUSES_US }
}

/// Whether a rule allows this difference between what a thread has answered to a call on the kernel and on the subject; none: it
/// is in its call. Where the subject has answered and the kernel has not, the subject's thread makes the call again.
pub(crate) fn allow(
    pair: &mut Pair,
    who: Who,
    call: &Step,
    kernel: Option<&Reply>,
    subject: Option<&Reply>,
) -> bool {
    let Some(subject) = subject else { return false };
    match call.verb() {
        "wait" | "pwait" => {
            is_partial_edge(pair, call, kernel, subject)
                || is_one_more_edge(pair, who, call, kernel, subject)
        }
        _ if pair.is_raw && call.word(3).contains("peek") => {
            kernel.is_some_and(|kernel| is_short_peek(pair, call, kernel, subject))
        }
        _ => false,
    }
}

/// Events of an answer, by label.
pub(crate) fn events(reply: Option<&Reply>) -> BTreeMap<&str, BTreeSet<&str>> {
    let text = reply.and_then(|reply| reply.get("events")).unwrap_or("");
    let pairs = text.split(',').filter_map(|one| one.split_once(':'));
    pairs
        .map(|(label, bits)| (label, bits.split('|').collect()))
        .collect()
}

/// The kernel's answer is the subject's but for `in` beside `out`, or `out` beside `in`, of edge-triggered members of which the
/// subject has told that.
fn is_partial_edge(pair: &Pair, call: &Step, kernel: Option<&Reply>, subject: &Reply) -> bool {
    let (one, other) = (events(kernel), events(Some(subject)));
    let members = pair.files.members(call);
    let is_known = |label: &str, news| {
        let mut labelled = members.iter().filter(|member| member.label == label);
        labelled.any(|member| member.is_edge && pair.files.was_told(call, member, news))
    };
    one.keys().eq(other.keys())
        && one.iter().all(|(label, bits)| {
            let theirs = &other[label];
            let missing: Vec<_> = bits.difference(theirs).copied().collect();
            let is_partial = |news: News, beside: News| {
                missing == [news.event()]
                    && theirs.contains(beside.event())
                    && is_known(label, news)
            };
            theirs.is_subset(bits)
                && (missing.is_empty()
                    || is_partial(News::Bytes, News::Room)
                    || is_partial(News::Room, News::Bytes))
        })
}

/// The subject has reported all that the kernel has, and of some edge-triggered members `in`, perhaps with `out`; a poll on the
/// kernel says the same; and it is an edge: when asked again, the subject has nothing more.
fn is_one_more_edge(
    pair: &mut Pair,
    who: Who,
    call: &Step,
    kernel: Option<&Reply>,
    subject: &Reply,
) -> bool {
    let (one, mut other) = (events(kernel), events(Some(subject)));
    for (label, bits) in &one {
        let Some(theirs) = other.get_mut(label).filter(|theirs| bits.is_subset(theirs)) else {
            return false;
        };
        theirs.retain(|bit| !bits.contains(bit));
    }
    other.retain(|_, bits| !bits.is_empty());
    let members = pair.files.members(call);
    let mut names = Vec::new();
    for (label, bits) in &other {
        let mut labelled = members.iter().filter(|member| member.label == *label);
        let only = labelled.next().filter(|_| labelled.next().is_none());
        let Some(member) = only.filter(|member| member.is_edge) else {
            return false;
        };
        if !bits.contains("in") {
            return false;
        }
        names.push((member.name.clone(), bits.clone()));
    }
    let mut members = names.iter();
    if names.is_empty() || !members.all(|(name, bits)| holds(pair, who.process, name, bits)) {
        return false;
    }
    let again = if kernel.is_some() {
        call.at_once()
    } else {
        call.clone()
    };
    let wanted = again.ends().then_some(who).into_iter().collect();
    pair.subject.issue(&again);
    let answers = pair.subject.until_quiet(&wanted, PATIENCE);
    let is_quiet = match (kernel, answers.get(&who)) {
        (None, answer) => answer.is_none(),
        (Some(_), answer) => {
            let now = events(answer);
            answer.is_some() && other.keys().all(|label| !now.contains_key(label))
        }
    };
    pair.tally.edges += u64::from(is_quiet);
    is_quiet
}

/// Whether a poll on the kernel reports input, or input and room, by any thread of the process that has nothing to do.
fn holds(pair: &mut Pair, process: char, name: &str, bits: &BTreeSet<&str>) -> bool {
    let looks = ['0', '1', '2'].map(|thread| Step {
        who: Who { process, thread },
        words: ["poll", "0", &format!("{name}:in|out")]
            .map(str::to_owned)
            .to_vec(),
    });
    let Some(look) = looks.iter().find(|look| pair.kernel.is_free(look)) else {
        return false;
    };
    let answer = ask(&mut pair.kernel, look);
    let answer = answer.as_ref().and_then(|answer| answer.get("revents"));
    let found: BTreeSet<&str> = answer.unwrap_or("").split('|').collect();
    bits.is_subset(&found)
}

/// A peek of as many bytes on the kernel gives the same bytes.
fn is_short_peek(pair: &mut Pair, call: &Step, kernel: &Reply, subject: &Reply) -> bool {
    let (Some(whole), Some(part)) = (kernel.number("ret"), subject.number("ret")) else {
        return false;
    };
    let mut shorter = call.clone();
    if part <= 0 || part >= whole || !pair.kernel.is_free(call) {
        return false;
    }
    let Some(length) = shorter.words.get_mut(2) else {
        return false;
    };
    *length = part.to_string();
    let answer = ask(&mut pair.kernel, &shorter);
    let is_first = answer.is_some_and(|answer| answer.get("data") == subject.get("data"));
    pair.tally.short_peeks += u64::from(is_first);
    is_first
}

/// The answer to a call that ends.
fn ask(world: &mut World, step: &Step) -> Option<Reply> {
    world.issue(step);
    let mut replies: Replies = world.until_quiet(&BTreeSet::from([step.who]), PATIENCE);
    replies.remove(&step.who)
}
