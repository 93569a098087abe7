//! What the searches of overlays are asked: where an address is that nobody has told of.
//!
//! # Life of an address
//! ```text
//!   worker: Question -> asked --answer--> workers have sent what they held -> entry -> asked again -> ...
//!                         |                                                     |        30 s before its end
//!                         '- no answer: nothing is known                        '-- "drop": it goes
//! ```
//! An entry is not taken away because a plugin is silent: at the end of its life it is asked for again, until there is an answer. Only
//! where more than half of [`ANSWERS_MAX`] are known, entries end with their lives: traffic has them asked for again.
//!
//! # Limits
//! [`ANSWERS_MAX`] entries of an overlay, [`ASKED_MAX`] questions without an answer, [`AGAIN_MAX`] entries that are asked for again in
//! [`AGAIN_GAP`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use windlass_api::{MacAddr, Name};
use windlass_bridge::fdb::Key as TableKey;
use windlass_worker::questions::{Question, WAIT_NS};

use super::{Behind, Overlay, Ports, TargetKey};
use crate::backend::BackendError;
use crate::lookup::{Answer, Key};

/// Entries of an overlay that were asked for.
const ANSWERS_MAX: usize = 16_384;
/// Questions of an overlay without an answer that are remembered.
const ASKED_MAX: usize = 1_024;
/// How long before the end of its life an entry is asked for again.
const BEFORE: Duration = Duration::from_secs(30);
/// The life of an entry, whatever the plugin says.
const LIFE_MIN: Duration = Duration::from_secs(1);
const LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the answer holds that an IP address has a MAC address. Whoever asks after that has it asked for again.
const NEIGHBOUR_LIFE: Duration = Duration::from_secs(300);
/// Entries of an overlay that are asked for again at once, and the time from one such turn to the next.
const AGAIN_MAX: usize = 50;
const AGAIN_GAP: Duration = Duration::from_millis(100);

/// An address, with its VLAN.
type Address = (u16, MacAddr);
/// What the table is to have of an address; without a target, nothing.
type Change = (u16, MacAddr, Option<Behind>);
/// An IP address, with its VLAN.
type Neighbour = (u16, IpAddr);

/// What is asked.
#[derive(Clone, PartialEq, Eq)]
enum Subject {
    /// Where an address is.
    Target(Address),
    /// Who has an IP address.
    Mac(Neighbour),
}

/// Who asks for an IP address: the member, its number, and the frame that asks.
struct Guest(Name, u16, Box<[u8]>);

/// A question without an answer.
struct Asked {
    subject: Subject,
    at: Instant,
    guest: Option<Guest>,
}

/// How long an entry holds that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    /// Its end.
    until: Instant,
    /// When it is asked for again, or looked at.
    again: Instant,
    /// How long an answer holds.
    ttl: Duration,
}

impl Life {
    fn new(ttl: Duration, now: Instant) -> Life {
        let ttl = ttl.clamp(LIFE_MIN, LIFE_MAX);
        Life {
            until: now + ttl,
            again: now + (ttl / 2).max(ttl.saturating_sub(BEFORE)),
            ttl,
        }
    }

    /// Not answered: it is asked for again.
    fn later(self, now: Instant) -> Life {
        let again = now + (self.ttl / 2).clamp(LIFE_MIN, BEFORE);
        Life { again, ..self }
    }
}

/// What an overlay's search was asked, and has answered.
#[derive(Default)]
pub(super) struct Questions {
    asked: BTreeMap<u64, Asked>,
    /// IP addresses that were asked for, and until when the answer holds.
    neighbours: BTreeSet<(Instant, Neighbour)>,
    /// Answers that are on their way to the workers.
    answers: BTreeMap<Address, (TargetKey, Duration)>,
    /// When entries are asked for again.
    lives: BTreeSet<(Instant, Address)>,
    /// When some were asked for last.
    turned: Option<Instant>,
}

impl Questions {
    /// An entry has a life, or has none.
    pub(super) fn note_life(&mut self, address: Address, life: Option<Life>) {
        self.lives.extend(life.map(|life| (life.again, address)));
    }

    /// These are all lives that there are.
    pub(super) fn renew(&mut self, lives: impl Iterator<Item = (Address, Life)>) {
        self.lives = lives.map(|(address, life)| (life.again, address)).collect();
    }

    /// Whether an answer that is on its way leads to a target.
    pub(super) fn leads_to(&self, target: &TargetKey) -> bool {
        self.answers.values().any(|(to, _)| to == target)
    }

    /// IP addresses that were asked for, each as one that nobody has.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = (u16, IpAddr, Option<MacAddr>)> {
        self.neighbours
            .iter()
            .map(|(_, (vlan, ip))| (*vlan, *ip, None))
    }

    /// When entries are to be asked for again, or end.
    pub(super) fn due(&self) -> Option<Instant> {
        let turn = self.turned.map(|turned| turned + AGAIN_GAP);
        let lives = self.lives.first().map(|(first, _)| *first).max(turn);
        let lives = lives.filter(|_| !self.lives.is_empty());
        let neighbours = self.neighbours.first().map(|(first, _)| *first);
        lives.into_iter().chain(neighbours).min()
    }

    /// Takes note of a question. False if it has just been asked.
    fn ask(&mut self, id: u64, subject: Subject, guest: Option<Guest>) -> bool {
        let (now, wait) = (Instant::now(), Duration::from_nanos(WAIT_NS));
        let mut asked = self.asked.values();
        if asked.any(|asked| asked.subject == subject && now < asked.at + wait) {
            return false;
        }
        if self.asked.len() >= ASKED_MAX {
            self.asked.pop_first();
        }
        let at = now;
        self.asked.insert(id, Asked { subject, at, guest });
        true
    }
}

impl Ports {
    /// Takes what workers ask, and what they have done with answers.
    pub(in crate::dataplane::ports) fn hear_questions(&mut self) {
        for question in self.plane.take_answered() {
            if let Err(error) = self.enter_answer(question) {
                tracing::error!("the answer of a search: {error}");
            }
            self.plane.end_question(question);
        }
        for question in self.plane.take_questions() {
            self.hear_question_of(question);
        }
    }

    fn hear_question_of(&mut self, question: Question) {
        let Some(name) = self.members.name_of(question.overlay).cloned() else {
            return;
        };
        let address = (question.key.vid(), MacAddr(question.key.octets()));
        let Some(state) = self.overlay(&name) else {
            return;
        };
        if let Some(place) = state.place_behind(address) {
            // It has been answered since.
            return self.plane.answer_question(question, Some(place));
        }
        if !state.questions.answers.contains_key(&address) {
            self.ask(&name, Subject::Target(address), None);
        }
    }

    /// Asks the search of an overlay.
    fn ask(&mut self, name: &Name, subject: Subject, guest: Option<Guest>) {
        let id = self.searches.next_question();
        let (vlan, key) = match subject {
            Subject::Target((vlan, mac)) => (vlan, Key::Target(windlass_wire::MacAddr(mac.0))),
            Subject::Mac((vlan, ip)) => (vlan, Key::Mac(ip)),
        };
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        if let Some(vni) = state.vni_of(vlan)
            && state.questions.ask(id, subject, guest)
            && let Some(lookups) = &self.searches.lookups
        {
            lookups.lookup(name, id, vni, key);
        }
    }

    /// Asks the searches on a bridge who has an IP address, for a member that does.
    pub(in crate::dataplane::ports) fn ask_neighbour(
        &mut self,
        bridge: &Name,
        (from, vid, ip): (u16, u16, IpAddr),
        frame: &[u8],
    ) {
        let Some(guest) = self.members.name_of(from).cloned() else {
            return;
        };
        let asks = |overlay: &Overlay| {
            let is_asked = overlay.settings.unknown == windlass_api::Unknown::Lookup;
            is_asked && overlay.answers_for(ip) && overlay.vni_of(vid).is_some()
        };
        // A VLAN has one overlay.
        let mut there = self.members.overlays();
        let found = there.find(|(_, m, overlay)| m.bridge == *bridge && asks(overlay));
        let found = found.map(|(name, ..)| name.clone());
        drop(there);
        if let Some(name) = found {
            let guest = Guest(guest, from, frame.into());
            self.ask(&name, Subject::Mac((vid, ip)), Some(guest));
        }
    }

    /// The search of an overlay has said who has an IP address: whoever asked is answered.
    fn hear_neighbour(&mut self, name: &Name, (vlan, ip): Neighbour, guest: Guest, mac: MacAddr) {
        let Guest(asker, from, frame) = guest;
        // One that asks for its own address hears of no other.
        let is_own = frame.get(6..12) == Some(&mac.0);
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        if is_own || state.questions.neighbours.len() >= ANSWERS_MAX {
            return;
        }
        let until = Instant::now() + NEIGHBOUR_LIFE;
        state.questions.neighbours.insert((until, (vlan, ip)));
        self.tell_neighbours(name, vec![(vlan, ip, Some(mac))]);
        if self.members.get(&asker).is_some_and(|m| m.id == from) {
            self.answer_neighbour(from, vlan, &frame);
        }
    }

    /// The search of an overlay has answered.
    pub(super) fn hear_answer(
        &mut self,
        name: &Name,
        id: u64,
        answer: Answer,
    ) -> Result<(), BackendError> {
        let Some(overlay) = self.members.get(name).map(|member| member.id) else {
            return Ok(());
        };
        let asked = self.overlay_mut(name);
        let asked = asked.and_then(|state| state.questions.asked.remove(&id));
        let Some(Asked { subject, guest, .. }) = asked else {
            return Ok(());
        };
        let address = match (subject, guest, answer) {
            (Subject::Target(address), ..) => address,
            (Subject::Mac(asked), Some(guest), Answer::Mac(mac)) => {
                self.hear_neighbour(name, asked, guest, MacAddr(mac.0));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let question = Question {
            overlay,
            key: TableKey::from_octets(address.0, address.1.0),
        };
        let Answer::Target(to, ttl) = answer else {
            self.plane.answer_question(question, None);
            // Nor is it where an answer before this one says.
            if let Some(state) = self.overlay_mut(name)
                && let Some((target, _)) = state.questions.answers.remove(&address)
            {
                state.idle.insert(target);
            }
            return self.drop_answer(name, address);
        };
        let state = self.overlay(name);
        let known = state.and_then(|state| state.pushed.get(&address));
        match known.map(|pushed| (pushed.life, pushed.ips.clone())) {
            // What was told since holds.
            Some((None, _)) => return Ok(()),
            Some((Some(_), ips)) => {
                let life = Some(Life::new(ttl, Instant::now()));
                let behind = Behind {
                    to,
                    ips,
                    life,
                    dhcp: None,
                };
                return self.push(name, vec![(address.0, address.1, Some(behind))]);
            }
            None => {}
        }
        let lives = state.map_or(0, |state| state.questions.lives.len());
        let full =
            || BackendError::Limit(format!("its search has {ANSWERS_MAX} addresses asked for"));
        let has_room = (lives < ANSWERS_MAX).then_some(()).ok_or_else(full);
        let place = has_room.and_then(|()| self.target_of(name, address.0, to));
        let to_workers = place.as_ref().ok().copied();
        if let Some(state) = self.overlay_mut(name).filter(|_| to_workers.is_some()) {
            let vni = state.vni_of(address.0).unwrap_or_default();
            let answer = ((vni, to), ttl);
            state.questions.answers.insert(address, answer);
        }
        self.plane.answer_question(question, to_workers);
        place.map(drop)
    }

    /// An address that was asked for is nowhere any more.
    fn drop_answer(&mut self, name: &Name, (vlan, mac): Address) -> Result<(), BackendError> {
        let known = self.overlay(name).and_then(|s| s.pushed.get(&(vlan, mac)));
        match known.is_some_and(|pushed| pushed.life.is_some()) {
            true => self.push(name, vec![(vlan, mac, None)]),
            false => Ok(()),
        }
    }

    /// All workers have sent what they held: the table may have the address.
    fn enter_answer(&mut self, question: Question) -> Result<(), BackendError> {
        let Some(name) = self.members.name_of(question.overlay).cloned() else {
            return Ok(());
        };
        let address = (question.key.vid(), MacAddr(question.key.octets()));
        let Some(state) = self.overlay_mut(&name) else {
            return Ok(());
        };
        let Some(((_, to), ttl)) = state.questions.answers.remove(&address) else {
            return Ok(());
        };
        if state.pushed.contains_key(&address) {
            return Ok(());
        }
        let behind = Behind {
            to,
            ips: Vec::new(),
            life: Some(Life::new(ttl, Instant::now())),
            dhcp: None,
        };
        self.push(&name, vec![(address.0, address.1, Some(behind))])
    }

    /// Has searches asked again for entries whose lives end.
    pub(super) fn run_lives(&mut self) {
        let now = Instant::now();
        let due = self.members.overlays();
        let due = due.filter(|(_, _, o)| o.questions.due().is_some_and(|due| due <= now));
        let due: Vec<Name> = due.map(|(name, ..)| name.clone()).collect();
        for name in due {
            let Some(state) = self.overlay_mut(&name) else {
                continue;
            };
            let ((again, over), gone) = (state.take_due(now), state.take_neighbours(now));
            for address in again {
                self.ask(&name, Subject::Target(address), None);
            }
            self.tell_neighbours(&name, gone);
            if let Err(error) = self.push(&name, over) {
                tracing::error!("{name}: {error}");
            }
        }
    }
}

impl Overlay {
    /// The place that a search told for an address.
    fn place_behind(&self, address: Address) -> Option<u16> {
        let target = self.pushed.get(&address)?.target;
        self.targets.get(&target).map(|target| target.place)
    }

    /// IP addresses that were asked for and are to be asked for again, each as one that nobody has.
    fn take_neighbours(&mut self, now: Instant) -> Vec<(u16, IpAddr, Option<MacAddr>)> {
        let later = self
            .questions
            .neighbours
            .split_off(&(now, (0, IpAddr::from([0; 4]))));
        let over = std::mem::replace(&mut self.questions.neighbours, later);
        let over = over.into_iter().map(|(_, asked)| asked);
        // What was pushed since holds.
        let over = over.filter(|asked| !self.answers().any(|(vlan, ip, _)| (vlan, ip) == *asked));
        over.map(|(vlan, ip)| (vlan, ip, None)).collect()
    }

    /// Entries that are to be asked for again now, and those whose lives are over.
    fn take_due(&mut self, now: Instant) -> (Vec<Address>, Vec<Change>) {
        let is_crowded = self.questions.lives.len() > ANSWERS_MAX / 2;
        self.questions.turned = Some(now);
        let (mut again, mut over) = (Vec::new(), Vec::new());
        for _ in 0..AGAIN_MAX {
            let lives = &mut self.questions.lives;
            let first = lives.first().copied().filter(|(at, _)| *at <= now);
            let Some((at, address)) = first else {
                break;
            };
            lives.remove(&(at, address));
            let life = self.pushed.get_mut(&address);
            let life = life.and_then(|pushed| pushed.life.as_mut());
            // It has gone, or has another one.
            let Some(life) = life.filter(|life| life.again == at) else {
                continue;
            };
            if is_crowded && life.until <= now {
                over.push((address.0, address.1, None));
                continue;
            }
            *life = match is_crowded {
                true => Life {
                    again: life.until,
                    ..*life
                },
                false => life.later(now),
            };
            lives.insert((life.again, address));
            again.extend((!is_crowded).then_some(address));
        }
        (again, over)
    }
}
