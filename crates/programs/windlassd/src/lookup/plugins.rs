//! Overlays and their plugins: who is told what, and what is believed of what they say.
//!
//! # Model
//! Overlays that name the same plugin share a [`Session`]. Each is started in each session, and every endpoint of this host is
//! announced again after that. A claim of addresses is answered by the session that it was made in, or by its end.
//!
//! # Failure modes
//! What a plugin says of an overlay that it does not serve (any more) is not heard. What it says of a VNI that is not the
//! overlay's, an endpoint too many, and an answer that does not fit its question end the session: whatever it said before is believed, and
//! nothing after.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

use windlass_api::Name;
use windlass_lookup::protocol::{self, FromPlugin, HostState, Kind, Question, Target, ToPlugin};
use windlass_lookup::table::{Table, TableError};
use windlass_sys::epoll::Epoll;
use windlass_wire::MacAddr;

use super::claims::Claims;
use super::overlay::{Overlay, Overlays, Stage, Tell, announced, described, retired};
use super::session::{Said, Session};
use super::{Answer, Answered, Endpoint, Key, LookupKind, Pace, PluginFrom, Told};

/// What is reported for the first session; each other has a number of its own.
pub(super) const SESSIONS: u64 = 2;
/// Hosts of an overlay's registry.
const HOSTS_MAX: usize = 4_096;
/// Endpoints that were retired while no plugin was there; those beyond stay in the registry.
const OWED_MAX: usize = 65_536;
/// Questions that plugins have not answered.
const QUESTIONS_MAX: usize = 4_096;
/// After how long a question is forgotten.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(5);
/// When an overlay that a plugin has refused is offered again.
const OFFERS: Duration = Duration::from_secs(30);
/// How long an answer holds that does not say.
const TTL: Duration = Duration::from_secs(300);
/// How often it is looked whether processes that were killed have ended.
const REAPS: Duration = Duration::from_secs(1);

/// A question that a plugin has not answered.
struct Asked {
    overlay: Name,
    id: u64,
    key: Key,
    session: u64,
    at: Instant,
}

/// Plugins, and what they were asked.
pub(super) struct Plugins {
    pace: Pace,
    sessions: BTreeMap<u64, Session>,
    /// The number of the next session.
    next: u64,
    asked: BTreeMap<u64, Asked>,
    claims: Claims,
    questions: u64,
    /// Those that were killed and may not have ended.
    dying: Vec<Child>,
}

impl Plugins {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            sessions: BTreeMap::new(),
            next: SESSIONS,
            asked: BTreeMap::new(),
            claims: Claims::default(),
            questions: 0,
            dying: Vec::new(),
        }
    }

    pub(super) fn deadline(&self, overlays: &Overlays) -> Option<Instant> {
        let sessions = self.sessions.values().filter_map(Session::deadline);
        let stages = overlays.all().filter_map(|overlay| match overlay.stage {
            Stage::Asked(at) | Stage::Refused(at) => Some(at),
            Stage::Absent | Stage::Started => None,
        });
        let reap = (!self.dying.is_empty()).then(|| Instant::now() + REAPS);
        sessions.chain(stages).chain(reap).min()
    }

    /// Gives an overlay its plugin: one that is there already, if another overlay has the same.
    pub(super) fn join(&mut self, epoll: &Epoll, overlay: &mut Overlay, tell: &Tell) {
        let Some(from) = overlay.plugin() else {
            return;
        };
        let mut sessions = self.sessions.iter();
        let same = sessions.find(|(_, session)| session.from == *from);
        let number = same.map(|(number, _)| *number);
        let number = number.unwrap_or_else(|| self.begin(from.clone()));
        overlay.session = Some(number);
        overlay.stage = Stage::Absent;
        let session = self.sessions.get(&number);
        if session.is_some_and(|session| session.greeting().is_some()) {
            self.offer(epoll, overlay, tell);
        }
    }

    fn begin(&mut self, from: PluginFrom) -> u64 {
        let number = self.next;
        self.next += 1;
        let session = Session::new(from, self.pace, number);
        self.sessions.insert(number, session);
        number
    }

    /// Takes its plugin from an overlay. A plugin that no other overlay has ends.
    pub(super) fn leave(&mut self, epoll: &Epoll, overlay: &mut Overlay, others: &Overlays) {
        let Some(number) = overlay.session.take() else {
            return;
        };
        let stage = std::mem::replace(&mut overlay.stage, Stage::Absent);
        let name = &overlay.conf.overlay;
        self.asked
            .retain(|_, asked| asked.session != number || asked.overlay != *name);
        self.claims.leave(number, name.as_str());
        let is_others = others.all().any(|other| other.session == Some(number));
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        if is_others {
            if stage != Stage::Absent {
                let name = overlay.conf.overlay.to_string();
                session.send(epoll, &ToPlugin::Stop { overlay: name });
            }
            return;
        }
        self.dying.extend(session.end(epoll));
        self.sessions.remove(&number);
    }

    /// Tells an overlay's plugin of it, if what it needs is there.
    fn offer(&mut self, epoll: &Epoll, overlay: &mut Overlay, tell: &Tell) {
        let session = overlay
            .session
            .and_then(|number| self.sessions.get_mut(&number));
        let Some(session) = session else {
            return;
        };
        let now = Instant::now();
        let good = is_complete(session, &overlay.conf.kind);
        if let Err(reason) = good {
            overlay.stage = Stage::Refused(now + OFFERS);
            return overlay.say(tell, Err(reason));
        }
        overlay.stage = Stage::Asked(now + self.pace.answer_max);
        let start = ToPlugin::Start(described(&overlay.conf));
        session.send(epoll, &start);
    }

    /// Asks an overlay's plugin to take another configuration.
    pub(super) fn change(&mut self, epoll: &Epoll, overlay: &mut Overlay, tell: &Tell) {
        let session = overlay
            .session
            .and_then(|number| self.sessions.get_mut(&number));
        let (Some(next), Some(session)) = (&overlay.next, session) else {
            return;
        };
        match is_complete(session, &next.kind) {
            Ok(()) => {
                let set = ToPlugin::Set(described(next));
                overlay.stage = Stage::Asked(Instant::now() + self.pace.answer_max);
                session.send(epoll, &set);
            }
            Err(reason) => overlay.keep(tell, reason),
        }
    }

    /// Something can be read from a session, or written to it.
    pub(super) fn ready(
        &mut self,
        epoll: &Epoll,
        number: u64,
        overlays: &mut Overlays,
        tell: &Tell,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let (messages, mut done) = session.ready(epoll);
        for said in messages {
            if let Err(reason) = self.hear(epoll, number, said, overlays, tell) {
                done = Err(reason);
                break;
            }
        }
        for overlay in overlays.of(number) {
            overlay.tell_changes(tell);
        }
        if let Err(reason) = done {
            self.lose(epoll, number, reason, overlays, tell);
        }
    }

    /// Ends a session. Another one is begun later.
    fn lose(
        &mut self,
        epoll: &Epoll,
        number: u64,
        reason: String,
        overlays: &mut Overlays,
        tell: &Tell,
    ) {
        self.asked.retain(|_, asked| asked.session != number);
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let reason = format!("its lookup plugin: {reason}");
        self.claims.lose(number, &reason);
        self.dying.extend(session.close(epoll, reason.clone()));
        for overlay in overlays.of(number) {
            overlay.lose(tell, &reason);
        }
    }

    pub(super) fn do_what_is_due(&mut self, epoll: &Epoll, overlays: &mut Overlays, tell: &Tell) {
        self.dying
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let now = Instant::now();
        let mut ended = Vec::new();
        for (number, session) in &mut self.sessions {
            if let Err(reason) = session.do_what_is_due(epoll) {
                ended.push((*number, reason));
            } else if let Some(reason) = session.missing() {
                for overlay in overlays.of(*number) {
                    overlay.degrade(tell, reason);
                }
            }
        }
        for overlay in overlays.all_mut() {
            match (overlay.stage, overlay.session) {
                (Stage::Asked(at), Some(number)) if at <= now => {
                    let name = &overlay.conf.overlay;
                    ended.push((number, format!("it does not answer for {name}")));
                }
                (Stage::Refused(at), Some(_)) if at <= now => self.offer(epoll, overlay, tell),
                _ => {}
            }
        }
        for (number, reason) in ended {
            self.lose(epoll, number, reason, overlays, tell);
        }
    }

    /// Takes a message.
    ///
    /// # Errors
    /// Why nothing more of this session is believed.
    fn hear(
        &mut self,
        epoll: &Epoll,
        number: u64,
        said: Said,
        overlays: &mut Overlays,
        tell: &Tell,
    ) -> Result<(), String> {
        let Said { message, is_behind } = said;
        if let FromPlugin::Hello { .. } = message {
            for overlay in overlays.of(number) {
                self.offer(epoll, overlay, tell);
            }
            return Ok(());
        }
        if let FromPlugin::Answer {
            id,
            target,
            ttl,
            mac,
            ..
        } = message
        {
            return self.take_answer(number, id, target.zip(Some(ttl)), mac, tell);
        }
        match message {
            FromPlugin::Claimed { id, mac, ips, text } => {
                let claimed = mac.map(|mac| (mac, ips)).ok_or(text.unwrap_or_default());
                return self.claims.close(number, id, claimed);
            }
            FromPlugin::Unsupported { what } => {
                self.answer_unsupported(number, &what, tell);
                return Ok(());
            }
            _ => {}
        }
        let name = message.overlay().unwrap_or_default();
        let Some(overlay) = overlays.named(name, number) else {
            return Ok(());
        };
        match (overlay.stage, &message) {
            (Stage::Asked(_), FromPlugin::Ok { .. }) => {
                if overlay.is_trial {
                    self.adopt(epoll, name, overlays);
                }
                if let Some(overlay) = overlays.named(name, number) {
                    self.started(epoll, overlay, tell);
                }
                Ok(())
            }
            (Stage::Asked(_), FromPlugin::Error { text, .. }) => {
                if overlay.next.is_some() {
                    overlay.keep(tell, text.clone());
                } else {
                    overlay.stage = Stage::Refused(Instant::now() + OFFERS);
                    overlay.say(tell, Err(text.clone()));
                }
                Ok(())
            }
            _ if overlay.is_served() => {
                let message = overlay.own_part(message, is_behind);
                message.map_or(Ok(()), |message| overlay.hear(message, tell))
            }
            // Said before it has read that this overlay was stopped, and started anew.
            _ => Ok(()),
        }
    }

    /// Answers what a session was asked and does not know of.
    fn answer_unsupported(&mut self, number: u64, what: &str, tell: &Tell) {
        if what == "claim" {
            let why = "its lookup plugin gives no addresses";
            self.claims.lose(number, why);
        }
        if what == "dhcp" {
            let is_it = |_: &u64, asked: &mut Asked| {
                asked.session == number && matches!(asked.key, Key::Dhcp(_))
            };
            for (_, Asked { overlay, id, .. }) in self.asked.extract_if(.., is_it) {
                let answer = Answer::Drop;
                tell(&overlay, Told::Answer { id, answer });
            }
        }
    }

    /// An overlay goes on with the source that it was tried with. What is known stays.
    pub(super) fn adopt(&mut self, epoll: &Epoll, name: &str, overlays: &mut Overlays) {
        let former = overlays.there.remove(name);
        let (Some(mut overlay), Some(trial)) = (former, overlays.trials.remove(name)) else {
            return;
        };
        self.leave(epoll, &mut overlay, overlays);
        overlay.is_inherited = overlay.plugin() != trial.plugin();
        let watch = std::mem::replace(&mut overlay.looks, trial.looks).watch;
        overlays.left.extend(watch);
        (overlay.conf, overlay.next) = (trial.conf, None);
        (overlay.session, overlay.stage) = (trial.session, trial.stage);
        (overlay.waiter, overlay.plugins) = (trial.waiter, None);
        overlay.set_vnis();
        overlays.there.insert(overlay.conf.overlay.clone(), overlay);
    }

    /// A plugin has said ok.
    fn started(&mut self, epoll: &Epoll, overlay: &mut Overlay, tell: &Tell) {
        let session = overlay
            .session
            .and_then(|number| self.sessions.get_mut(&number));
        let Some(session) = session else {
            return;
        };
        overlay.stage = Stage::Started;
        if let Some(next) = overlay.next.take() {
            overlay.conf = next;
            overlay.set_vnis();
        } else {
            overlay.forget_hosts(tell);
            for key in std::mem::take(&mut overlay.owed) {
                session.send(epoll, &retired(&overlay.conf.overlay, key));
            }
            for endpoint in overlay.endpoints.values() {
                let announced = announced(&overlay.conf.overlay, endpoint);
                session.send(epoll, &ToPlugin::Announce(announced));
            }
        }
        let kind = session.greeting().map(|greeting| greeting.kind);
        if std::mem::take(&mut overlay.is_inherited) && kind != Some(Kind::Table) {
            // Nobody will ever bring it again.
            overlay.table.clear();
        }
        overlay.say(tell, Ok(()));
    }

    fn take_answer(
        &mut self,
        number: u64,
        id: u64,
        target: Option<(Target, Option<u32>)>,
        mac: Option<MacAddr>,
        tell: &Tell,
    ) -> Result<(), String> {
        let asked = self.asked.get(&id);
        if asked.is_some_and(|asked| asked.session != number) {
            return Err(format!("it answers question {id}, which another was asked"));
        }
        let Some(asked) = self.asked.remove(&id) else {
            // It was forgotten.
            return Ok(());
        };
        let answer = match (asked.key, target, mac) {
            (_, None, None) => Answer::Drop,
            (Key::Target(_), Some((to, ttl)), None) => {
                let ttl = ttl.map_or(TTL, |seconds| Duration::from_secs(seconds.into()));
                Answer::Target(SocketAddr::from(to), ttl)
            }
            (Key::Mac(_) | Key::Dhcp(_), None, Some(mac)) => Answer::Mac(mac),
            _ => return Err(format!("its answer to question {id} does not fit")),
        };
        let id = asked.id;
        tell(&asked.overlay, Told::Answer { id, answer });
        Ok(())
    }

    /// Asks an overlay's plugin, if it is there and is of the kind that is asked.
    pub(super) fn ask(
        &mut self,
        epoll: &Epoll,
        overlay: &mut Overlay,
        (id, vni, key): (u64, u32, Key),
    ) -> Option<Answer> {
        let number = overlay.session.filter(|_| overlay.is_served())?;
        let session = self.sessions.get_mut(&number)?;
        if session.greeting()?.kind == Kind::Table {
            return Some(Answer::Drop);
        }
        let now = Instant::now();
        while let Some(oldest) = self.asked.first_entry()
            && oldest.get().at + QUESTION_TIME_MAX <= now
        {
            oldest.remove();
        }
        // As many as are free after that: a plugin that does not answer for one overlay leaves room to others.
        let name = &overlay.conf.overlay;
        let own = self.asked.values().filter(|asked| asked.overlay == *name);
        if own.count() >= QUESTIONS_MAX.saturating_sub(self.asked.len()) {
            return None;
        }
        self.questions += 1;
        let asked = Asked {
            overlay: name.clone(),
            id,
            key,
            session: number,
            at: now,
        };
        self.asked.insert(self.questions, asked);
        let message = question(self.questions, name, vni, key);
        session.send(epoll, &message);
        None
    }

    /// Has an overlay's plugin give addresses, if it is there.
    pub(super) fn claim(
        &mut self,
        epoll: &Epoll,
        overlay: &Overlay,
        mut claim: protocol::Claim,
        answer: Answered,
    ) {
        let Some(number) = overlay.session.filter(|_| overlay.is_served()) else {
            let why = overlay
                .trouble()
                .unwrap_or("it has no plugin for addresses");
            return answer(Err(why.to_owned()));
        };
        if self.claims.open(number, &mut claim, answer) {
            self.tell(epoll, overlay, &ToPlugin::Claim(claim));
        }
    }

    /// Says something to the plugin of an overlay that it serves.
    pub(super) fn tell(&mut self, epoll: &Epoll, overlay: &Overlay, message: &ToPlugin) {
        let session = overlay
            .session
            .and_then(|number| self.sessions.get_mut(&number));
        if let Some(session) = session.filter(|_| overlay.is_served()) {
            session.send(epoll, message);
        }
    }

    /// Ends all of them.
    pub(super) fn end(mut self, epoll: &Epoll) {
        for session in self.sessions.values_mut() {
            self.dying.extend(session.end(epoll));
        }
        for mut child in self.dying {
            // One that waits in the kernel is left to the daemon's own end.
            let _ = child.try_wait();
        }
    }
}

/// Whether an overlay has the properties that its plugin wants.
fn is_complete(session: &Session, kind: &LookupKind) -> Result<(), String> {
    match (session.greeting(), kind) {
        (Some(greeting), LookupKind::Plugin { properties, .. }) => {
            protocol::check_properties(&greeting.properties, properties)
        }
        _ => Ok(()),
    }
}

/// A question as a plugin is asked it.
fn question(id: u64, overlay: &Name, vni: u32, key: Key) -> ToPlugin {
    let overlay = overlay.to_string();
    match key {
        Key::Target(mac) => ToPlugin::Lookup {
            id,
            overlay,
            vni,
            mac,
        },
        Key::Dhcp(mac) => ToPlugin::Dhcp {
            id,
            overlay,
            vni,
            mac,
        },
        Key::Mac(ip) => {
            let question = Question {
                id,
                overlay,
                vni,
                ip,
            };
            match ip.is_ipv4() {
                true => ToPlugin::Arp(question),
                false => ToPlugin::Ndp(question),
            }
        }
    }
}

/// Changes a table by each of these, up to the first that it does not take.
fn in_table<T>(
    table: &mut Table,
    all: impl IntoIterator<Item = T>,
    change: impl Fn(&mut Table, T) -> Result<(), TableError>,
) -> Result<(), String> {
    let mut all = all.into_iter();
    let changed = all.try_for_each(|one| change(table, one));
    changed.map_err(|error| error.to_string())
}

impl Overlay {
    /// Whether its plugin has said ok, in this session.
    pub(super) fn is_served(&self) -> bool {
        match self.stage {
            Stage::Started => true,
            Stage::Asked(_) => self.next.is_some(),
            Stage::Absent | Stage::Refused(_) => false,
        }
    }

    /// What holds of a message; if it is of a change that was given up (`is_behind`), what it says of networks that the overlay has. It is not
    /// all that there is in them: that comes when the plugin takes what was wanted instead.
    fn own_part(&self, mut message: FromPlugin, is_behind: bool) -> Option<FromPlugin> {
        if !is_behind {
            return Some(message);
        }
        let is_own = |vni| self.table.is_own(vni).is_ok();
        match &mut message {
            FromPlugin::Push { entries, .. } => entries.retain(|entry| is_own(entry.vni)),
            FromPlugin::Withdraw { entries, .. } => entries.retain(|gone| is_own(gone.vni)),
            FromPlugin::SyncBegin { .. } | FromPlugin::SyncEnd { .. } => return None,
            FromPlugin::Flood { vni, .. } if !is_own(*vni) => return None,
            _ => {}
        }
        Some(message)
    }

    /// Takes what the plugin says of an overlay that it serves.
    fn hear(&mut self, message: FromPlugin, tell: &Tell) -> Result<(), String> {
        let targets = |targets: Vec<Target>| targets.into_iter().map(SocketAddr::from).collect();
        let told = match message {
            FromPlugin::Push { entries, .. } => {
                return in_table(&mut self.table, entries, |table, entry| table.push(entry));
            }
            FromPlugin::Withdraw { entries, .. } => {
                return in_table(&mut self.table, entries, |table, gone| {
                    table.withdraw(&gone)
                });
            }
            FromPlugin::SyncBegin { vni, .. } => {
                return in_table(&mut self.table, [vni], Table::sync_begin);
            }
            FromPlugin::SyncEnd { vni, .. } => {
                return in_table(&mut self.table, [vni], Table::sync_end);
            }
            FromPlugin::Flood {
                vni, targets: to, ..
            } => {
                in_table(&mut self.table, [vni], |table, vni| table.is_own(vni))?;
                let targets = targets(to);
                Told::Flood { vni, targets }
            }
            FromPlugin::Host {
                host,
                targets: at,
                state,
                ..
            } => {
                self.note_host(&host, state)?;
                let targets = targets(at);
                Told::Host {
                    host,
                    targets,
                    state,
                }
            }
            FromPlugin::Degraded { .. } | FromPlugin::Restored { .. } => {
                self.plugins = match message {
                    FromPlugin::Degraded { text, .. } => Some(text),
                    _ => None,
                };
                self.say_degraded(tell);
                return Ok(());
            }
            FromPlugin::Owned { .. } | FromPlugin::Refused { .. } => match self.decided(message) {
                Some(told) => told,
                None => return Ok(()),
            },
            // The answer to a start before this one.
            FromPlugin::Ok { .. } | FromPlugin::Error { .. } => return Ok(()),
            // Of the session, and taken there.
            FromPlugin::Hello { .. }
            | FromPlugin::Pong { .. }
            | FromPlugin::Answer { .. }
            | FromPlugin::Claimed { .. }
            | FromPlugin::Unsupported { .. } => return Ok(()),
        };
        tell(&self.conf.overlay, told);
        Ok(())
    }

    /// Another session tells of all hosts that there are: those that have gone meanwhile are not told of.
    fn forget_hosts(&mut self, tell: &Tell) {
        for host in std::mem::take(&mut self.hosts) {
            let gone = Told::Host {
                host,
                targets: Vec::new(),
                state: HostState::Gone,
            };
            tell(&self.conf.overlay, gone);
        }
    }

    /// Takes note of a host of the registry.
    fn note_host(&mut self, host: &str, state: HostState) -> Result<(), String> {
        match state {
            HostState::Gone => self.hosts.remove(host),
            HostState::Alive | HostState::Unsure => self.hosts.insert(host.to_owned()),
        };
        match self.hosts.len() {
            ..=HOSTS_MAX => Ok(()),
            _ => Err(format!("more than {HOSTS_MAX} hosts")),
        }
    }

    /// The registry's word about an endpoint of this host; `None` if it was retired meanwhile.
    fn decided(&self, message: FromPlugin) -> Option<Told> {
        let (key, told) = match message {
            FromPlugin::Owned {
                vni,
                mac,
                generation,
                ..
            } => {
                let told = Told::Owned {
                    vni,
                    mac,
                    generation,
                };
                ((vni, mac), told)
            }
            FromPlugin::Refused { vni, mac, by, .. } => {
                ((vni, mac), Told::Refused { vni, mac, by })
            }
            _ => return None,
        };
        self.endpoints.contains_key(&key).then_some(told)
    }

    /// Takes note that this host has an endpoint no more; false if its plugin has to be told later.
    pub(super) fn retire(&mut self, key: (u32, MacAddr)) -> bool {
        self.endpoints.remove(&key);
        let is_served = self.is_served();
        if !is_served && self.owed.len() < OWED_MAX {
            self.owed.insert(key);
        }
        is_served
    }

    /// Takes note of an endpoint of this host; false if it is known already, as it is.
    pub(super) fn note(&mut self, endpoint: &Endpoint) -> bool {
        let key = (endpoint.vni, endpoint.mac);
        self.owed.remove(&key);
        let before = self.endpoints.insert(key, endpoint.clone());
        before.as_ref() != Some(endpoint)
    }
}
