//! A network of bridges on a clock of its own: links that delay, lose and break, and the invariants of a tree.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use windlass_frame::Tick;
use windlass_rstp::bpdu::{self, Bpdu};
use windlass_rstp::{Action, Bridge, BridgeConf, PortConf, Role, State};

pub const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Numbers that a seed decides.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A cable between two ports, or a hub between several.
pub struct Medium {
    pub ends: Vec<(usize, u16)>,
    pub up: bool,
}

/// How links treat frames.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// Longest delay.
    pub delay_ms: u64,
    /// Of a hundred frames this many are lost.
    pub lost_percent: u64,
}

enum Event {
    Arrives {
        medium: usize,
        to: (usize, u16),
        frame: Vec<u8>,
        /// How often the medium had broken when it was sent.
        breaks: u64,
    },
    Link {
        end: (usize, u16),
        up: bool,
    },
}

pub struct Network {
    pub random: Random,
    pub now: u64,
    pub bridges: Vec<Bridge>,
    pub media: Vec<Medium>,
    breaks: Vec<u64>,
    pub weather: Weather,
    costs: BTreeMap<(usize, u16), u32>,
    /// What each port does, as far as its bridge said.
    pub states: BTreeMap<(usize, u16), State>,
    pub flushes: BTreeMap<(usize, u16), u64>,
    /// Never a loop, not for an instant.
    pub strict: bool,
    /// When a port's state last changed.
    pub changed_at: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    /// When the last frame of a direction arrives: a cable keeps the order.
    last: BTreeMap<(usize, (usize, u16)), u64>,
    /// When an end noticed the last cut or mend.
    noticed: BTreeMap<(usize, u16), u64>,
    next: u64,
    pub sent: u64,
}

impl Network {
    pub fn new(seed: u64, confs: Vec<BridgeConf>) -> Network {
        Network {
            random: Random::new(seed),
            now: SECOND,
            bridges: confs
                .iter()
                .map(|c| Bridge::new(*c, Tick(SECOND)))
                .collect(),
            media: Vec::new(),
            breaks: Vec::new(),
            weather: Weather::default(),
            costs: BTreeMap::new(),
            states: BTreeMap::new(),
            flushes: BTreeMap::new(),
            strict: false,
            changed_at: SECOND,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            last: BTreeMap::new(),
            noticed: BTreeMap::new(),
            next: 0,
            sent: 0,
        }
    }

    /// Connects new ports of these bridges. The medium is broken as yet.
    pub fn connect(&mut self, ends: &[(usize, PortConf)]) -> usize {
        let mut ports = Vec::new();
        for (bridge, conf) in ends {
            let number = self.bridges[*bridge].ports().count() as u16 + 1;
            self.bridges[*bridge].set_port(number, *conf, Tick(self.now));
            ports.push((*bridge, number));
            self.costs.insert((*bridge, number), conf.cost);
        }
        self.media.push(Medium {
            ends: ports,
            up: false,
        });
        self.breaks.push(0);
        for (bridge, _) in ends {
            self.act(*bridge);
        }
        self.media.len() - 1
    }

    /// Another process takes the place of a bridge's, with a clock of its own, and goes on with what it has left.
    pub fn renew(&mut self) {
        let at = self.random.below(self.bridges.len() as u64) as usize;
        self.bridges[at].advance(Tick(self.now));
        self.act(at);
        let before = &self.bridges[at];
        let left = serde_json::to_string(&before.rebased(Tick(0))).expect("JSON");
        let heir: Bridge = serde_json::from_str(&left).expect("a bridge");
        let heir = heir.rebased(Tick(self.now));
        assert_eq!(heir.due(), before.due());
        assert!(heir.ports().eq(before.ports()));
        self.bridges[at] = heir;
    }

    /// Cuts or mends a medium. Each end notices a moment later.
    pub fn set(&mut self, medium: usize, up: bool) {
        if self.media[medium].up == up {
            return;
        }
        self.media[medium].up = up;
        self.breaks[medium] += 1;
        for end in self.media[medium].ends.clone() {
            let noticed = self.noticed.entry(end).or_default();
            let at = (self.now + self.random.below(5) * MS).max(*noticed);
            *noticed = at;
            self.post(at, Event::Link { end, up });
        }
    }

    fn post(&mut self, at: u64, event: Event) {
        self.events.insert(self.next, event);
        self.queue.push(Reverse((at, self.next)));
        self.next += 1;
    }

    /// Lets time pass.
    pub fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        loop {
            let event = self.queue.peek().map(|Reverse((at, _))| *at);
            let timer = (0..self.bridges.len())
                .filter_map(|b| Some((self.bridges[b].due()?.0, b)))
                .min();
            let first = event.into_iter().chain(timer.map(|t| t.0)).min();
            let Some(at) = first.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            if event.is_some_and(|e| e <= at) {
                let Reverse((_, id)) = self.queue.pop().expect("an event");
                let event = self.events.remove(&id).expect("its content");
                self.happen(event);
            } else if let Some((_, b)) = timer {
                self.bridges[b].advance(Tick(self.now));
                self.act(b);
            }
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        let now = Tick(self.now);
        let b = match event {
            Event::Link { end: (b, port), up } => {
                self.bridges[b].set_link(port, up, now);
                b
            }
            Event::Arrives {
                medium,
                to: (b, port),
                frame,
                breaks,
            } => {
                if !self.media[medium].up || self.breaks[medium] != breaks {
                    return;
                }
                let message = bpdu::parse(&frame).expect("our own BPDU");
                // Bridges that know STP only ignore types that they do not know.
                if !self.bridges[b].conf().rstp && matches!(message, Bpdu::Rst(_)) {
                    return;
                }
                self.bridges[b].receive(port, message, now);
                b
            }
        };
        self.act(b);
    }

    fn act(&mut self, b: usize) {
        for action in self.bridges[b].take_actions() {
            match action {
                Action::Set(port, state) => {
                    let before = self.states.insert((b, port), state);
                    if before != Some(state) {
                        self.changed_at = self.now;
                    }
                    if self.strict {
                        self.assert_no_loop();
                    }
                }
                Action::Flush(port) => *self.flushes.entry((b, port)).or_default() += 1,
                Action::Guarded(_) => {}
                Action::Send(port, message) => self.send((b, port), &message),
            }
        }
    }

    fn send(&mut self, from: (usize, u16), message: &Bpdu) {
        self.sent += 1;
        let frame = message.frame([2, 0, 0, 0, from.0 as u8, from.1 as u8]);
        assert_eq!(bpdu::parse(&frame).as_ref(), Ok(message));
        let medium = self.media.iter().position(|m| m.ends.contains(&from));
        let medium = medium.expect("a medium");
        if !self.media[medium].up {
            return;
        }
        for to in self.media[medium].ends.clone() {
            if to == from || self.random.below(100) < self.weather.lost_percent {
                continue;
            }
            let delay = self.random.below(self.weather.delay_ms * MS + 1);
            let last = self.last.entry((medium, from)).or_default();
            let at = (self.now + delay).max(*last);
            *last = at;
            let (frame, breaks) = (frame.clone(), self.breaks[medium]);
            self.post(
                at,
                Event::Arrives {
                    medium,
                    to,
                    frame,
                    breaks,
                },
            );
        }
    }

    fn forwards(&self, end: (usize, u16)) -> bool {
        self.states.get(&end) == Some(&State::Forwarding)
    }

    /// Which bridges and media are one, over links for which `counts` is true; and whether there is a loop.
    fn parts(&self, counts: impl Fn(&Network, (usize, u16)) -> bool) -> (Vec<usize>, bool) {
        let bridges = self.bridges.len();
        let mut of: Vec<usize> = (0..bridges + self.media.len()).collect();
        fn top(of: &[usize], mut at: usize) -> usize {
            while of[at] != at {
                at = of[at];
            }
            at
        }
        let mut loops = false;
        for (m, medium) in self.media.iter().enumerate().filter(|(_, m)| m.up) {
            for end in medium.ends.iter().filter(|end| counts(self, **end)) {
                let (a, b) = (top(&of, bridges + m), top(&of, end.0));
                loops |= a == b;
                of[a] = b;
            }
        }
        ((0..bridges).map(|b| top(&of, b)).collect(), loops)
    }

    pub fn assert_no_loop(&self) {
        let (_, loops) = self.parts(Network::forwards);
        assert!(
            !loops,
            "a loop at {} ms: {:?}",
            self.now / MS,
            self.picture()
        );
    }

    /// What a network at rest is: a tree that reaches what the links reach, with the best bridge as the root of each part,
    /// at the lowest cost.
    pub fn assert_tree(&self) {
        self.assert_no_loop();
        let (wanted, _) = self.parts(|_, _| true);
        let (found, _) = self.parts(Network::forwards);
        let groups = |of: &[usize]| -> BTreeSet<BTreeSet<usize>> {
            let mut groups: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for (b, top) in of.iter().enumerate() {
                groups.entry(*top).or_default().insert(b);
            }
            groups.into_values().collect()
        };
        assert_eq!(groups(&found), groups(&wanted), "{:?}", self.picture());
        for part in groups(&wanted) {
            let root = part.iter().map(|b| self.bridges[*b].conf().id()).min();
            for b in &part {
                let seen = self.bridges[*b].root();
                assert_eq!(Some(seen.root), root, "bridge {b}: {:?}", self.picture());
                let id = root.expect("a root");
                assert_eq!(
                    seen.cost,
                    self.cost(*b, id),
                    "bridge {b}: {:?}",
                    self.picture()
                );
            }
        }
    }

    /// The lowest cost from a bridge to the bridge `root`.
    fn cost(&self, from: usize, root: windlass_rstp::vector::BridgeId) -> u32 {
        let mut best = vec![u32::MAX; self.bridges.len()];
        best[from] = 0;
        // The cost of a way is that of its ports towards the root.
        for _ in 0..self.bridges.len() {
            for medium in self.media.iter().filter(|m| m.up) {
                for a in &medium.ends {
                    for b in medium.ends.iter().filter(|b| *b != a) {
                        let step = self.costs[&(a.0, a.1)];
                        best[b.0] = best[b.0].min(best[a.0].saturating_add(step));
                    }
                }
            }
        }
        let at = self.bridges.iter().position(|b| b.conf().id() == root);
        best[at.expect("the root")]
    }

    pub fn role(&self, end: (usize, u16)) -> Role {
        self.bridges[end.0].port(end.1).expect("a port").role
    }

    /// Every medium that is up, with roles and states at its ends.
    pub fn picture(&self) -> Vec<String> {
        let ends = |m: &Medium| -> Vec<String> {
            let end = |e: &(usize, u16)| {
                let (role, state) = (self.role(*e), self.states.get(e));
                format!("{}.{} {role:?} {state:?}", e.0, e.1)
            };
            m.ends.iter().map(end).collect()
        };
        let up = self.media.iter().filter(|m| m.up);
        up.map(|m| ends(m).join(" -- ")).collect()
    }
}
