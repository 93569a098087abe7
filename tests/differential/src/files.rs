//! Which open file each name of a script stands for, and which calls would fight over one.
//!
//! # Model
//! Learned from the answers of the kernel's world: what makes, copies, inherits, passes and closes descriptors. A file is a
//! number. Two names of one file are two ways to one queue of bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::script::{Step, Who};
use crate::world::Reply;

/// An open file.
type File = usize;

/// A member of an epoll set, as it was last registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    file: File,
    /// The name by which it was registered.
    pub(crate) name: String,
    pub(crate) label: String,
    pub(crate) is_edge: bool,
}

/// The files of one run.
#[derive(Default, Debug)]
pub(crate) struct Files {
    count: File,
    names: BTreeMap<(char, String), File>,
    members: BTreeMap<File, Vec<Member>>,
    /// Sent by SCM_RIGHTS, not received.
    in_flight: VecDeque<Option<File>>,
}

const TAKES: &[&str] = &[
    "recv",
    "recvfrom",
    "recvname",
    "read",
    "readv",
    "recvmsg",
    "recvmmsg",
    "take",
    "drain",
    "splicein",
    "stdioread",
    "recvfd",
    "accept",
    "accept4",
];
const GIVES: &[&str] = &[
    "send",
    "sendto",
    "write",
    "writev",
    "sendmsg",
    "sendmmsg",
    "give",
    "fill",
    "sendfile",
    "spliceout",
    "stdiowrite",
    "sendfd",
];

/// What a call wants of files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Bytes,
    Room,
    News,
}

impl Files {
    /// What a step that succeeded has made, copied, registered or closed.
    pub(crate) fn learn(&mut self, step: &Step, reply: &Reply) {
        let Who { process, .. } = step.who;
        let (one, other) = (step.word(1), step.word(2));
        let has_failed = ["ret", "fd", "passed"]
            .iter()
            .any(|key| reply.number(key).is_some_and(|value| value < 0));
        match step.verb() {
            _ if has_failed => {}
            "socket" | "epoll" | "accept" | "accept4" => self.make(process, one),
            "pair" | "pipe" => {
                self.make(process, one);
                self.make(process, other);
            }
            "dup" | "dup2" | "dup3" | "dupfd" | "dupfdc" => {
                let file = self.file(process, other);
                self.name(process, one, file);
            }
            "close" | "closerange" => self.name(process, one, None),
            "sendfd" => self.in_flight.push_back(self.file(process, other)),
            "recvfd" => {
                let file = self.in_flight.pop_front().flatten();
                self.name(process, other, file);
            }
            "fork" => {
                let copies: Vec<_> = self.of(process).collect();
                copies
                    .into_iter()
                    .for_each(|(name, file)| self.name('C', &name, Some(file)));
            }
            "exit" | "kill" => self.names.retain(|(holder, _), _| *holder != process),
            "ctl" => self.register(step),
            _ => {}
        }
    }

    fn make(&mut self, process: char, name: &str) {
        self.count += 1;
        self.name(process, name, Some(self.count));
    }

    fn name(&mut self, process: char, name: &str, file: Option<File>) {
        let key = (process, name.to_owned());
        match file {
            Some(file) => self.names.insert(key, file),
            None => self.names.remove(&key),
        };
    }

    fn file(&self, process: char, name: &str) -> Option<File> {
        self.names.get(&(process, name.to_owned())).copied()
    }

    fn of(&self, process: char) -> impl Iterator<Item = (String, File)> {
        let own = self
            .names
            .iter()
            .filter(move |((holder, _), _)| *holder == process);
        own.map(|((_, name), file)| (name.clone(), *file))
    }

    fn register(&mut self, step: &Step) {
        let Who { process, .. } = step.who;
        let (Some(set), Some(file)) = (
            self.file(process, step.word(1)),
            self.file(process, step.word(3)),
        ) else {
            return;
        };
        let name = step.word(3).to_owned();
        let members = self.members.entry(set).or_default();
        members.retain(|member| (member.file, &member.name) != (file, &name));
        if step.word(2) != "del" {
            members.push(Member {
                file,
                name,
                label: step.word(5).to_owned(),
                is_edge: step.word(4).split('|').any(|word| word == "et"),
            });
        }
    }

    /// The members of the set that a step waits in.
    pub(crate) fn members(&self, step: &Step) -> &[Member] {
        let set = self.file(step.who.process, step.word(1));
        set.and_then(|set| self.members.get(&set))
            .map_or(&[], Vec::as_slice)
    }

    /// What a step wants, and of which files.
    fn wants(&self, step: &Step) -> Option<(Want, BTreeSet<File>)> {
        let file = |name: &str| self.file(step.who.process, name);
        let own = || file(step.word(1)).into_iter().collect();
        Some(match step.verb() {
            verb if TAKES.contains(&verb) => (Want::Bytes, own()),
            verb if GIVES.contains(&verb) => (Want::Room, own()),
            "poll" | "ppoll" | "select" | "pselect" => {
                let entries = step.words.iter().skip(2);
                let names = entries.filter_map(|entry| entry.split_once(':'));
                (
                    Want::News,
                    names.filter_map(|(name, _)| file(name)).collect(),
                )
            }
            "wait" | "pwait" => {
                let mut all: BTreeSet<File> = own();
                let mut left: Vec<File> = all.iter().copied().collect();
                while let Some(set) = left.pop() {
                    let members = self.members.get(&set).into_iter().flatten();
                    left.extend(
                        members
                            .map(|member| member.file)
                            .filter(|file| all.insert(*file)),
                    );
                }
                (Want::News, all)
            }
            _ => return None,
        })
    }

    /// Whether a step that may sleep wants what a sleeping one wants, so that it is nobody's promise which of them gets it: two
    /// that take bytes, or connections; one that takes them and one that waits for news of them; two that give.
    pub(crate) fn contends(&self, step: &Step, asleep: &Step) -> bool {
        let is_quick = step.word(3).split('|').any(|word| word == "dontwait")
            || step.at_once() == *step
                && ["wait", "pwait", "poll", "ppoll", "select", "pselect"].contains(&step.verb());
        let (Some((want, files)), Some((wanted, held))) = (self.wants(step), self.wants(asleep))
        else {
            return false;
        };
        let fight = match (want, wanted) {
            (Want::Room, other) | (other, Want::Room) => other == Want::Room,
            (Want::News, Want::News) => false,
            _ => true,
        };
        fight && !is_quick && !files.is_disjoint(&held)
    }

    /// Whether a sleeping call has the only descriptor of its file that its process had: what interrupts the call closes the file.
    pub(crate) fn is_closed_under(&self, asleep: &Step) -> bool {
        let has_name = TAKES.contains(&asleep.verb()) || GIVES.contains(&asleep.verb());
        has_name && self.file(asleep.who.process, asleep.word(1)).is_none()
    }
}
