//! What a generated script has made so far: enough to keep it meaningful, and to keep out of what two
//! kernels would already do differently. It need not be right about errors.

use std::collections::BTreeMap;

use crate::script::{Step, Who};

/// Most unread bytes of one direction: well inside TCP's first window.
pub(crate) const UNREAD_MAX: usize = 24_000;

/// A sequence of numbers from a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// True `percent` times of a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// What a connection is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// TCP.
    Tcp,
    /// A Unix stream.
    Unix,
}

impl Kind {
    /// The kind that is called so on a command line, in a script's `socket` too, `tcp6` excepted.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Tcp, Self::Unix]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Its name in a script.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

/// A name in a process that stands for an end.
pub(crate) type Holder = (char, String);

/// One end of a connection.
pub(crate) struct End {
    pub(crate) holders: Vec<Holder>,
    pub(crate) nonblock: bool,
    /// Bytes that wait to be read here.
    pub(crate) unread: usize,
    /// A thread may be asleep in a read here.
    pub(crate) reader: Option<Who>,
    /// A thread may be asleep in a look at this end.
    pub(crate) watched: bool,
    pub(crate) shut: bool,
}

impl End {
    pub(crate) fn new(process: char, name: &str) -> Self {
        Self {
            holders: vec![(process, name.to_owned())],
            nonblock: false,
            unread: 0,
            reader: None,
            watched: false,
            shut: false,
        }
    }
}

/// A connection.
pub(crate) struct Link {
    pub(crate) kind: Kind,
    pub(crate) ends: [End; 2],
    /// Buffers were set: little goes in.
    pub(crate) tight: bool,
    /// An epoll set reports when it has room.
    pub(crate) asked_for_room: bool,
    /// Something was shut, closed or reset: errors are to be expected.
    pub(crate) over: bool,
}

impl Link {
    /// Room for unread bytes at this end.
    pub(crate) fn room(&self, end: usize) -> usize {
        let most = if self.tight { 600 } else { UNREAD_MAX };
        most.saturating_sub(self.ends[end].unread)
    }
}

/// An epoll set.
pub(crate) struct Set {
    pub(crate) holders: Vec<Holder>,
    /// Link, end and label.
    pub(crate) members: Vec<(usize, usize, usize)>,
    pub(crate) waiting: bool,
}

/// The script so far, and what it made.
pub(crate) struct Model {
    pub(crate) random: Random,
    /// What every connection is, if they are not mixed.
    pub(crate) kind: Option<Kind>,
    pub(crate) steps: Vec<Step>,
    pub(crate) links: Vec<Link>,
    pub(crate) sets: Vec<Set>,
    pub(crate) alive: Vec<char>,
    /// Threads that may be asleep in a call, and the length of the script when they were sent there.
    pub(crate) busy: BTreeMap<Who, usize>,
    names: usize,
}

impl Model {
    pub(crate) fn new(seed: u64, kind: Option<Kind>) -> Self {
        Self {
            random: Random::new(seed),
            kind,
            steps: Vec::new(),
            links: Vec::new(),
            sets: Vec::new(),
            alive: vec!['A', 'B'],
            busy: BTreeMap::new(),
            names: 0,
        }
    }

    /// Adds a step. Its text is made by this crate, so it is one.
    pub(crate) fn say(&mut self, who: Who, text: &str) {
        let step = Step::parse(&format!("{who} {text}"));
        debug_assert!(step.is_some(), "{who} {text}");
        self.steps.extend(step);
    }

    /// A name that was not used yet.
    pub(crate) fn name(&mut self, stem: &str) -> String {
        self.names += 1;
        format!("{stem}{}", self.names)
    }

    /// A start of bytes that no other transfer has.
    pub(crate) fn tag(&self) -> usize {
        (self.steps.len() + 1) * 1_000_003
    }

    /// A thread that is surely free; for a call that may sleep never the first, which stays free.
    pub(crate) fn thread(&mut self, process: char, may_sleep: bool) -> Option<Who> {
        let threads: &[char] = if may_sleep {
            &['1', '2']
        } else {
            &['0', '0', '1', '2']
        };
        let thread = *self.random.one(threads);
        let who = Who { process, thread };
        (self.alive.contains(&process) && !self.busy.contains_key(&who)).then_some(who)
    }

    /// A connection with both ends held, and one of the ends.
    pub(crate) fn link(&mut self) -> Option<(usize, usize)> {
        let live: Vec<usize> = (0..self.links.len())
            .filter(|&index| {
                let link = &self.links[index];
                link.ends.iter().any(|end| !end.holders.is_empty())
            })
            .collect();
        if live.is_empty() {
            return None;
        }
        let link = *self.random.one(&live);
        Some((link, self.random.below(2)))
    }

    /// Somebody who holds this end.
    pub(crate) fn holder(&mut self, link: usize, end: usize) -> Option<Holder> {
        let holders = self.links[link].ends[end].holders.clone();
        let holders: Vec<Holder> = holders
            .into_iter()
            .filter(|(process, _)| self.alive.contains(process))
            .collect();
        if holders.is_empty() {
            None
        } else {
            Some(self.random.one(&holders).clone())
        }
    }

    /// The end was sent something or changed: whoever slept for it may be awake.
    pub(crate) fn woke(&mut self, link: usize, end: usize) {
        let end = &mut self.links[link].ends[end];
        if let Some(who) = end.reader.take() {
            self.busy.remove(&who);
        }
    }

    /// Those who were sent to sleep long ago are asked again; the runner leaves out what cannot be done.
    pub(crate) fn forget_sleepers(&mut self) {
        let now = self.steps.len();
        let readers: Vec<Who> = self
            .links
            .iter()
            .flat_map(|link| link.ends.iter().filter_map(|end| end.reader))
            .collect();
        self.busy
            .retain(|who, since| readers.contains(who) || now < *since + 8);
    }
}
