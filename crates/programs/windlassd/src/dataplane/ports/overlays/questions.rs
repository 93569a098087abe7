//! What the searches of overlays are asked: where an address is that nobody has told of.
//!
//! # Life of an address
//! ```text
//!   worker: Question -> asked --answer--> workers have sent what they held -> entry -> asked again -> ...
//!                         |                                                     |        30 s before its end
//!                         '- no answer: nothing is known                        '-- "drop": it goes
//! ```
//! Where the search pushes an address that is asked for, workers send what they hold at once; the answer is not waited for any more.
//!
//! An entry is not taken away because a plugin is silent: at the end of its life it is asked for again, until there is an answer. Only
//! where more than half of [`ANSWERS_MAX`] are known, entries end with their lives: traffic has them asked for again.
//!
//! A DHCP client's server is asked for with the first frame of it, which waits for the answer; a frame meanwhile is lost, as is that of a plugin
//! that does not answer. Once known, it is used until there is another answer.
//!
//! # Limits
//! [`ANSWERS_MAX`] entries of an overlay: answers beyond are refused, and the overlay is degraded while there is no room.
//! [`ASKED_MAX`] questions without an answer, each for [`LATE`]; a member may have as many of them as are free after that.
//! [`AGAIN_MAX`] entries that are asked for again in [`AGAIN_GAP`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
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
const ASKED_MAX: usize = 512;
/// How long an answer is taken after its question.
const LATE: Duration = Duration::from_secs(5);
/// How long before the end of its life an entry is asked for again.
const BEFORE: Duration = Duration::from_secs(30);
/// The life of an entry, whatever the plugin says.
const LIFE_MIN: Duration = Duration::from_secs(1);
const LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the answer holds that an IP address has a MAC address, or a client a DHCP server. Whoever asks after that has it asked for again.
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
    /// Who is the DHCP server of an address.
    Server(Address),
}

/// Whom a DHCP client's frame is for.
pub(in crate::dataplane::ports) enum Server {
    /// This address.
    Is(MacAddr),
    /// The client has no server of its own.
    Nobody,
    /// That is not known.
    Unknown,
}

/// Who asks for an IP address or a DHCP server: the member, and the frame that asks.
struct Guest(Name, Box<[u8]>);

/// A question without an answer.
struct Asked {
    subject: Subject,
    at: Instant,
    /// The member that has it asked.
    from: u16,
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
    /// DHCP servers of the bridge's VNICs, if they have one, and when they are asked for again.
    servers: BTreeMap<Address, (Option<MacAddr>, Instant)>,
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

    /// An entry is no more.
    pub(super) fn end_life(&mut self, address: Address, life: Option<Life>) {
        if let Some(life) = life {
            self.lives.remove(&(life.again, address));
        }
    }

    /// That there is no room for another entry, in a sentence.
    pub(super) fn full(&self) -> Option<String> {
        let is_full = self.lives.len() >= ANSWERS_MAX;
        is_full.then(|| format!("its search has {ANSWERS_MAX} addresses asked for"))
    }

    /// Takes note of a question of a member's. False if it has just been asked, or the member has too many.
    fn ask(&mut self, id: u64, asked: Asked) -> bool {
        let (now, wait) = (asked.at, Duration::from_nanos(WAIT_NS));
        while let Some(oldest) = self.asked.first_entry()
            && oldest.get().at + LATE <= now
        {
            oldest.remove();
        }
        let mut others = self.asked.values();
        if others.any(|other| other.subject == asked.subject && now < other.at + wait) {
            return false;
        }
        let own = self.asked.values().filter(|a| a.from == asked.from);
        if own.count() >= ASKED_MAX - self.asked.len() {
            return false;
        }
        self.asked.insert(id, asked);
        true
    }

    /// Of these addresses, those that are asked for. Nobody waits for the answer any more.
    fn end_asked(&mut self, mut told: BTreeMap<Address, u16>) -> BTreeMap<Address, u16> {
        let asked = self.asked.values().filter_map(|asked| match asked.subject {
            Subject::Target(address) => Some(address),
            Subject::Mac(_) | Subject::Server(_) => None,
        });
        let asked: BTreeSet<Address> = asked.collect();
        told.retain(|address, _| asked.contains(address));
        self.asked.retain(|_, asked| match asked.subject {
            Subject::Target(address) => !told.contains_key(&address),
            Subject::Mac(_) | Subject::Server(_) => true,
        });
        told
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
        for (question, from) in self.plane.take_questions() {
            self.hear_question_of(question, from);
        }
    }

    fn hear_question_of(&mut self, question: Question, from: u16) {
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
            self.ask(&name, Subject::Target(address), from, None);
        }
    }

    /// Asks the search of an overlay, for a member.
    fn ask(&mut self, name: &Name, subject: Subject, from: u16, guest: Option<Guest>) {
        let id = self.searches.next_question();
        let (vlan, key) = match subject {
            Subject::Target((vlan, mac)) => (vlan, Key::Target(windlass_wire::MacAddr(mac.0))),
            Subject::Mac((vlan, ip)) => (vlan, Key::Mac(ip)),
            Subject::Server((vlan, mac)) => (vlan, Key::Dhcp(windlass_wire::MacAddr(mac.0))),
        };
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        let asked = Asked {
            subject,
            at: Instant::now(),
            from,
            guest,
        };
        if let Some(vni) = state.vni_of(vlan)
            && state.questions.ask(id, asked)
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
            let guest = Guest(guest, frame.into());
            self.ask(&name, Subject::Mac((vid, ip)), from, Some(guest));
        }
    }

    /// The DHCP server of a VNIC, as its overlay's search says; if that is not known, the frame waits for the answer.
    pub(in crate::dataplane::ports) fn ask_server(
        &mut self,
        name: &Name,
        (from, vlan): (u16, u16),
        frame: &[u8],
    ) -> Server {
        let (mac, guest) = (
            frame.get(6..).and_then(|frame| frame.first_chunk()),
            self.members.name_of(from).cloned(),
        );
        let (Some(mac), Some(guest), Some(state)) = (mac, guest, self.overlay(name)) else {
            return Server::Nobody;
        };
        let address = (vlan, MacAddr(*mac));
        let known = state.questions.servers.get(&address).copied();
        let is_asked = state.settings.unknown == windlass_api::Unknown::Lookup;
        let is_old = known.is_none_or(|(_, until)| until <= Instant::now());
        // One that is in trouble does not answer.
        if is_asked && is_old && state.trouble.is_none() {
            let guest = known.is_none().then(|| Guest(guest, frame.into()));
            self.ask(name, Subject::Server(address), from, guest);
            if known.is_none() {
                return Server::Unknown;
            }
        }
        known
            .and_then(|(server, _)| server)
            .map_or(Server::Nobody, Server::Is)
    }

    /// The search of an overlay has said who is the DHCP server of a VNIC: the frame that waits goes there, or to everybody.
    fn hear_server(
        &mut self,
        name: &Name,
        address: Address,
        (from, guest): (u16, Option<Guest>),
        server: Option<MacAddr>,
    ) {
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        let now = Instant::now();
        let servers = &mut state.questions.servers;
        // Those of VNICs that are gone.
        servers.retain(|_, (_, until)| *until + NEIGHBOUR_LIFE > now);
        servers.insert(address, (server, now + NEIGHBOUR_LIFE));
        if let Some(Guest(asker, frame)) = guest
            && self.members.get(&asker).is_some_and(|m| m.id == from)
        {
            let server = server.map_or(Server::Nobody, Server::Is);
            self.find_server(name, (from, address.0), &frame, server);
        }
    }

    /// The search of an overlay has said who has an IP address: whoever asked is answered.
    fn hear_neighbour(
        &mut self,
        name: &Name,
        (vlan, ip): Neighbour,
        (from, guest): (u16, Guest),
        mac: MacAddr,
    ) {
        let Guest(asker, frame) = guest;
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
        let Some(Asked {
            subject,
            from,
            guest,
            ..
        }) = asked
        else {
            return Ok(());
        };
        let address = match (subject, guest, answer) {
            (Subject::Target(address), ..) => address,
            (Subject::Mac(asked), Some(guest), Answer::Mac(mac)) => {
                self.hear_neighbour(name, asked, (from, guest), MacAddr(mac.0));
                return Ok(());
            }
            (Subject::Server(address), guest, answer) => {
                let server = match answer {
                    Answer::Mac(mac) => Some(MacAddr(mac.0)),
                    Answer::Target(..) | Answer::Drop => None,
                };
                self.hear_server(name, address, (from, guest), server);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let question = Question {
            overlay,
            key: TableKey::from_octets(address.0, address.1.0),
        };
        match answer {
            Answer::Target(to, ttl) => self.hear_target(name, question, (to, ttl)),
            _ => {
                self.plane.answer_question(question, None);
                // Nor is it where an answer before this one says.
                if let Some(state) = self.overlay_mut(name)
                    && let Some((target, _)) = state.questions.answers.remove(&address)
                {
                    state.idle.insert(target);
                }
                self.drop_answer(name, address)
            }
        }
    }

    /// The search has said behind which target an address is, and for how long.
    fn hear_target(
        &mut self,
        name: &Name,
        question: Question,
        (to, ttl): (SocketAddr, Duration),
    ) -> Result<(), BackendError> {
        let (vlan, mac) = (question.key.vid(), MacAddr(question.key.octets()));
        let state = self.overlay(name);
        let known = state.and_then(|state| state.pushed.get(&(vlan, mac)));
        let known = known.map(|pushed| &pushed.behind);
        let ips = match known.map(|of| (of.life(), of.record.ips.clone())) {
            // What was told since holds.
            Some((None, _)) => return Ok(()),
            Some((Some(_), ips)) => Some(ips),
            None => None,
        };
        let behind = |ips| Behind::asked(to, ips, Life::new(ttl, Instant::now()));
        if let Some(ips) = ips {
            return self.push(name, vec![(vlan, mac, Some(behind(ips)))]);
        }
        if state.is_none_or(|state| !state.has_room()) {
            self.plane.answer_question(question, None);
            self.sink.changed(name);
            return Ok(());
        }
        let place = self.target_of(name, vlan, to);
        let to_workers = place.as_ref().ok().copied();
        self.plane.answer_question(question, to_workers);
        if place.is_err() {
            // It is kept until the target can be made.
            self.sink.changed(name);
            return self.push(name, vec![(vlan, mac, Some(behind(Box::default())))]);
        }
        if let Some(state) = self.overlay_mut(name) {
            let vni = state.vni_of(vlan).unwrap_or_default();
            let answers = &mut state.questions.answers;
            let former = answers.insert((vlan, mac), ((vni, to), ttl));
            state.idle.extend(former.map(|(target, _)| target));
        }
        Ok(())
    }

    /// Addresses were told, with their places: workers send there what they hold for those that are asked for.
    pub(super) fn answer_asked(&mut self, name: &Name, told: BTreeMap<Address, u16>) {
        let Some(overlay) = self.members.get(name).map(|member| member.id) else {
            return;
        };
        let asked = self.overlay_mut(name);
        let asked = asked.map(|state| state.questions.end_asked(told));
        for ((vlan, mac), place) in asked.unwrap_or_default() {
            let key = TableKey::from_octets(vlan, mac.0);
            let question = Question { overlay, key };
            self.plane.answer_question(question, Some(place));
        }
    }

    /// An address that was asked for is nowhere any more.
    fn drop_answer(&mut self, name: &Name, (vlan, mac): Address) -> Result<(), BackendError> {
        let state = self.overlay(name);
        let life = state.and_then(|state| match state.pushed.get(&(vlan, mac)) {
            Some(pushed) => pushed.behind.life(),
            None => state.unmade.told.get(&(vlan, mac))?.life(),
        });
        match life.is_some() {
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
        let behind = Behind::asked(to, Box::default(), Life::new(ttl, Instant::now()));
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
            let own = self.members.get(&name).map_or(0, |member| member.id);
            for address in again {
                self.ask(&name, Subject::Target(address), own, None);
            }
            self.tell_neighbours(&name, gone);
            if !over.is_empty() {
                self.sink.changed(&name);
            }
            if let Err(error) = self.push(&name, over) {
                tracing::error!("{name}: {error}");
            }
        }
    }
}

impl Overlay {
    /// Whether another address may be asked for.
    fn has_room(&self) -> bool {
        self.questions.full().is_none() && self.unmade.told.len() < ANSWERS_MAX
    }

    /// The place that a search told for an address.
    fn place_behind(&self, address: Address) -> Option<u16> {
        let target = self.pushed.get(&address)?.target();
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
            let life = life.and_then(|pushed| pushed.behind.life.as_deref_mut());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Members that ask for ever other addresses leave room for others' questions, and take nobody's away. A question is forgotten after five
    /// seconds.
    #[test]
    fn a_member_leaves_room_for_questions() {
        let (mut questions, mut id) = (Questions::default(), 0);
        let now = Instant::now();
        let mut ask = |from: u16, at| {
            id += 1;
            let ip = IpAddr::from(u32::to_be_bytes(id as u32));
            let asked = Asked {
                subject: Subject::Mac((0, ip)),
                at,
                from,
                guest: None,
            };
            questions.ask(id, asked);
            let own = questions.asked.values().filter(|asked| asked.from == from);
            (own.count(), questions.asked.contains_key(&1))
        };
        assert_eq!(ask(9, now), (1, true));
        for (from, most) in [(1, 256), (2, 128), (3, 64)] {
            let all = (0..2 * ASKED_MAX).map(|_| ask(from, now));
            assert_eq!(all.last(), Some((most, true)));
        }
        assert_eq!(ask(9, now), (2, true));
        assert_eq!(ask(9, now + LATE), (1, false));
    }

    /// An address that goes leaves its room at once.
    #[test]
    fn what_goes_leaves_its_room() {
        let conf =
            serde_json::json!({"name": "ov0", "search": "direct", "properties": {"vnetid": 23}});
        let conf = serde_json::from_value(conf).expect("an overlay");
        let mut overlay = Overlay::new(&conf, false);
        let address = (0, MacAddr([2, 0, 0, 0, 0, 1]));
        for _ in 0..2 {
            let to = "192.0.2.1:4789".parse().expect("an address");
            let told = Behind::asked(to, Box::default(), Life::new(LIFE_MAX, Instant::now()));
            overlay.take_pushed(address);
            overlay.put_pushed(address, told);
            assert_eq!(overlay.questions.lives.len(), 1);
        }
        overlay.take_pushed(address);
        assert!(overlay.questions.lives.is_empty());
    }
}
