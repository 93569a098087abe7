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
    /// By the name of a port: those that have connected and were not accepted. And the port of a listener.
    connecting: BTreeMap<String, VecDeque<File>>,
    ports: BTreeMap<File, String>,
    /// The other end of a connection.
    peers: BTreeMap<File, File>,
    /// Steps so far.
    clock: u64,
    /// When something last came to a file, and when something last happened that may be news of any file.
    came: BTreeMap<File, u64>,
    changed: u64,
    /// Processes in which a signal handler has been set that sends.
    sending_handlers: BTreeSet<char>,
    /// When a file last had less room than it was asked for.
    refused: BTreeMap<File, u64>,
    /// When a set last told of the bytes or the room of the member with a label.
    told: BTreeMap<(File, String, News), u64>,
}

/// What an epoll set tells of a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum News {
    Bytes,
    Room,
}

impl News {
    /// Its event.
    pub(crate) fn event(self) -> &'static str {
        match self {
            Self::Bytes => "in",
            Self::Room => "out",
        }
    }
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

/// What may be news of any file: the end of a stream.
const CHANGES: &[&str] = &["shutdown", "close", "closerange", "exec", "exit", "kill"];

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
        if GIVES.contains(&step.verb()) {
            self.find_room(step, Some(reply));
        }
        let has_failed = ["ret", "fd", "passed"]
            .iter()
            .any(|key| reply.number(key).is_some_and(|value| value < 0));
        match step.verb() {
            _ if has_failed => {}
            "socket" | "epoll" => {
                self.make(process, one);
            }
            "accept" | "accept4" => {
                let file = self.make(process, one);
                let port = self.file(process, other).and_then(|it| self.ports.get(&it));
                let peer = port.and_then(|port| self.connecting.get_mut(port)?.pop_front());
                peer.into_iter().for_each(|peer| self.join(file, peer));
            }
            "pair" | "pipe" => {
                let ends = [self.make(process, one), self.make(process, other)];
                self.join(ends[0], ends[1]);
            }
            "listen" => {
                let file = self.file(process, one);
                self.ports
                    .extend(file.map(|file| (file, step.word(3).to_owned())));
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
            "ctl" => {
                self.changed = self.clock;
                self.register(step);
            }
            _ => {}
        }
    }

    fn make(&mut self, process: char, name: &str) -> File {
        self.count += 1;
        self.name(process, name, Some(self.count));
        self.count
    }

    fn join(&mut self, one: File, other: File) {
        self.peers.extend([(one, other), (other, one)]);
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, step: &Step) {
        self.clock += 1;
        let file = self.file(step.who.process, step.word(1));
        if step.verb() == "connect" {
            // It may have connected although it has not answered, or says EINPROGRESS.
            let port = step.word(2).trim_start_matches("6:");
            let port = port.trim_start_matches("u:").to_owned();
            self.connecting.entry(port).or_default().extend(file);
        }
        if GIVES.contains(&step.verb()) {
            let peer = file.and_then(|file| self.peers.get(&file));
            self.came.extend(peer.map(|peer| (*peer, self.clock)));
        }
        let process = step.who.process;
        if step.verb() == "handler" && !step.word(2).is_empty() {
            self.sending_handlers.insert(process);
        }
        let sends = step.verb() == "tkill" && self.sending_handlers.contains(&process);
        if sends || CHANGES.contains(&step.verb()) {
            self.changed = self.clock;
        }
    }

    /// The subject's set that a step waits in has told news of its member with this label.
    pub(crate) fn tell(&mut self, step: &Step, label: &str, news: News) {
        let set = self.file(step.who.process, step.word(1));
        self.told
            .extend(set.map(|set| ((set, label.to_owned(), news), self.clock)));
    }

    /// Whether it has told so since the member has got bytes, or was last found without room.
    pub(crate) fn was_told(&self, step: &Step, member: &Member, news: News) -> bool {
        let set = self.file(step.who.process, step.word(1));
        let told = set.and_then(|set| self.told.get(&(set, member.label.clone(), news)));
        let last = match news {
            News::Bytes if !self.peers.contains_key(&member.file) => return false,
            News::Bytes => self.came.get(&member.file),
            News::Room => self.refused.get(&member.file),
        };
        let last = last.copied().unwrap_or(0).max(self.changed);
        told.is_some_and(|told| *told >= last)
    }

    /// A step that sends was answered, or sleeps: it has found less room than it wanted, if so.
    fn find_room(&mut self, step: &Step, reply: Option<&Reply>) {
        let number = |key: &str| reply.and_then(|reply| reply.number(key));
        let is_whole = number("ret") == step.word(2).parse().ok();
        let file = self.file(step.who.process, step.word(1));
        if !is_whole || step.verb() == "sendmmsg" {
            self.refused.extend(file.map(|file| (file, self.clock)));
        }
    }

    /// A step sleeps.
    pub(crate) fn sleeps(&mut self, step: &Step) {
        if GIVES.contains(&step.verb()) {
            self.find_room(step, None);
        }
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

    /// Whether a step takes bytes.
    pub(crate) fn takes(step: &Step) -> bool {
        TAKES.contains(&step.verb())
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
