//! What searches tell of an overlay's targets, and what they are told of this host's endpoints.
//!
//! # Model
//! Searches run on the look-up thread ([`Lookups`]), which starts with the first overlay that needs one. It tells over a bounded
//! channel, read in each round of this thread. An overlay is made, or its search changed, after the first word of the search, so that a mistake
//! is the answer to whoever made it: the search begins [`Ahead`] of that, and this thread waits for none. An overlay that is there goes on
//! meanwhile with the search that it has. What a daemon that starts makes, or makes again, is degraded until its search speaks, as is what
//! is undone.
//!
//! A registry is told of each VNIC on the overlay's bridge, in each network: its address, the IP addresses that it may use or is given,
//! and whether it is live.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use windlass_api::{
    AddressClaim, AddressRelease, HostLife, HostView, MacAddr, Name, OverlaySettings, Properties,
    Scope, Search, Value,
};
use windlass_lookup::protocol::{self, EndpointState, HostState, IPS_MAX};
use windlass_lookup::table::{Changes, ENTRIES_MAX};
use windlass_sys::eventfd;
use windlass_worker::dataplane::now;

use super::{Behind, Overlay};
use crate::backend::BackendError;
use crate::dataplane::ports::{MemberState, Ports};
use crate::lookup::{
    Answered, Endpoint, LookupConf, LookupKind, Lookups, Pace, PluginFrom, PluginUser, StartError,
    Started, Told,
};

/// Time that a search has for its first word, when an overlay is made or changed.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// Messages of searches that wait for this thread at most: eight whole tables in an edit.
const TOLD_MAX: usize = 256;
/// The plugin of `search=etcd`.
const ETCD_PLUGIN: &str = "windlass-lookup-etcd";
/// Where it is, if it is neither beside the daemon nor in `../lib/windlass`.
const PLUGINS: &str = "/usr/lib/windlass";

/// A search that has begun before its overlay, or before its overlay has it.
struct Ahead {
    conf: LookupConf,
    /// Its overlay is there, and has a search.
    is_change: bool,
    started: Started,
    /// Its first word.
    word: Option<Result<(), StartError>>,
    /// How long that is waited for, and then, that somebody makes or changes the overlay.
    until: Instant,
    /// What it has told since, and its overlay does not know of yet.
    told: Vec<Told>,
    /// Addresses in that.
    entries: usize,
}

impl Ahead {
    /// Whether what is told is for the overlay as it is to be.
    fn is_for_later(&self, told: &Told, is_own: impl Fn(u32) -> bool) -> bool {
        let vni = match told {
            Told::Entries { vni, .. } | Told::Flood { vni, .. } => Some(*vni),
            _ => None,
        };
        !self.is_change || vni.is_some_and(|vni| !is_own(vni))
    }

    /// Keeps what it tells for its overlay. A search that changes its mind without end is refused: true when it is from now on.
    fn keep(&mut self, told: Told) -> bool {
        if let Told::Entries { changes, .. } = &told {
            self.entries += changes.len();
        }
        if self.entries <= 2 * ENTRIES_MAX {
            self.told.push(told);
            return false;
        }
        let error = StartError("its plugin tells too much".to_owned());
        let is_refused = self.word.as_ref().is_some_and(Result::is_err);
        self.told.clear();
        self.word = Some(Err(error));
        !is_refused
    }
}

/// The look-up thread, and what it has told.
pub(in crate::dataplane::ports) struct Searches {
    /// Dropped before the look-up thread is waited for, which may wait for room here.
    told: Receiver<(Name, Told)>,
    to: SyncSender<(Name, Told)>,
    /// What was told before its overlay was there, or had that search.
    told_before: Vec<(Name, Told)>,
    ahead: BTreeMap<Name, Ahead>,
    pub(super) lookups: Option<Lookups>,
    /// Questions so far.
    questions: u64,
    /// The stored configuration has been made: overlays that come or change now wait for their search.
    pub(in crate::dataplane::ports) has_begun: bool,
}

impl Default for Searches {
    fn default() -> Self {
        let (to, told) = sync_channel(TOLD_MAX);
        Searches {
            told,
            to,
            told_before: Vec::new(),
            ahead: BTreeMap::new(),
            lookups: None,
            questions: 0,
            has_begun: false,
        }
    }
}

impl Searches {
    /// The number of one more question.
    pub(super) fn next_question(&mut self) -> u64 {
        self.questions += 1;
        self.questions
    }

    /// When a search that has begun ahead has waited long enough. With its first word it tells something, which wakes this thread.
    pub(super) fn due(&self) -> Option<Instant> {
        self.ahead.values().map(|ahead| ahead.until).min()
    }
}

/// What a registry knows of one endpoint of this host.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Announced {
    ips: Vec<IpAddr>,
    state: EndpointState,
}

impl Announced {
    /// Whether frames for it are for this host.
    pub(super) fn is_live(&self) -> bool {
        self.state == EndpointState::Active
    }
}

/// What the registry says of an endpoint that was announced: which host has it.
pub(super) type Lost = BTreeMap<(u32, MacAddr), String>;

/// Where a plugin that comes with windlass is.
fn plugin(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let installed = own.parent().map(|sbin| sbin.with_file_name("lib"));
    let installed = installed.map(|lib| lib.join("windlass").join(name));
    let places = [Some(own.with_file_name(name)), installed];
    let found = places.into_iter().flatten().find(|place| place.exists());
    found.unwrap_or_else(|| PathBuf::from(PLUGINS).join(name))
}

/// The properties of an overlay whose names begin with `prefix`, as a plugin is told them.
fn told_properties(set: &Properties, prefix: &str) -> BTreeMap<String, serde_json::Value> {
    let rows = windlass_api::properties(Scope::Overlay).map(|row| row.option.name);
    let own = rows.filter(|name| name.starts_with(prefix));
    let values = own.filter_map(|name| Some((name, set.effective(Scope::Overlay, name)?)));
    let json = values.filter_map(|(name, value)| {
        let value = match value {
            Value::Text(text) if text.is_empty() => return None,
            Value::Text(text) => text.into(),
            Value::Number(number) => number.into(),
            Value::Flag(flag) => flag.into(),
            Value::Vlans(vlans) => vlans.to_string().into(),
        };
        Some((name.to_owned(), value))
    });
    json.collect()
}

/// How the targets of an overlay are looked up; `None` if everything stands in its properties.
pub(super) fn lookup_kind(
    search: Search,
    settings: &OverlaySettings,
    set: &Properties,
) -> Option<LookupKind> {
    let text = |name: &str| match set.effective(Scope::Overlay, name) {
        Some(Value::Text(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    match search {
        Search::Direct | Search::Learn => None,
        Search::Files => Some(LookupKind::Files {
            config: settings.file.clone().unwrap_or_default(),
        }),
        Search::Etcd => {
            let mut properties = told_properties(set, "etcd/");
            properties.extend(told_properties(set, "vxlan/listen-"));
            Some(LookupKind::Plugin {
                from: PluginFrom::Command(vec![plugin(ETCD_PLUGIN).display().to_string()]),
                properties,
            })
        }
        Search::Plugin => Some(LookupKind::Plugin {
            from: match text("plugin/socket") {
                Some(socket) => PluginFrom::Socket(socket.into()),
                None => PluginFrom::Command(
                    text("plugin/command")
                        .unwrap_or_default()
                        .split_whitespace()
                        .map(str::to_owned)
                        .collect(),
                ),
            },
            properties: told_properties(set, "plugin/"),
        }),
    }
}

impl Ports {
    /// The look-up thread, which is started if it is not there.
    fn lookups(&mut self) -> Result<&Lookups, BackendError> {
        if self.searches.lookups.is_none() {
            let (to, wake) = (self.searches.to.clone(), self.wake.clone());
            let tell = move |name: &Name, told: Told| {
                // Where this thread has ended there is nobody to be told.
                let _ = to.send((name.clone(), told));
                let _ = eventfd::signal(&*wake);
            };
            let lookups = Lookups::new(Pace::of(PluginUser::find()), tell)
                .map_err(|error| BackendError::Host(format!("the look-up thread: {error}")))?;
            self.searches.lookups = Some(lookups);
        }
        let missing = || BackendError::Host("there is no look-up thread".to_owned());
        self.searches.lookups.as_ref().ok_or_else(missing)
    }

    /// Has an overlay's search begin, or go on with other properties. One that has begun ahead has said its first word; another's is
    /// not waited for.
    ///
    /// # Errors
    /// There is no look-up thread.
    pub(super) fn begin_search(&mut self, name: &Name, is_new: bool) -> Result<(), BackendError> {
        let conf = self.overlay(name).and_then(|state| state.lookup_conf(name));
        let Some(conf) = conf else {
            return Ok(());
        };
        let ahead = self.searches.ahead.remove(name);
        if ahead.is_some() {
            // Another change may wait behind it.
            self.sink.changed(name);
        }
        let is_ready = |ahead: &Ahead| ahead.conf == conf && matches!(ahead.word, Some(Ok(())));
        let is_its = |ahead: &Ahead| ahead.is_change != is_new;
        if let Some(ahead) = ahead.filter(is_its).filter(is_ready) {
            let told = ahead.told.into_iter().map(|told| (name.clone(), told));
            // Older than what the look-up thread has told meanwhile.
            self.searches.told_before.splice(..0, told);
            let _ = eventfd::signal(&*self.wake);
            return Ok(());
        }
        let lookups = self.lookups()?;
        match is_new {
            true => drop(lookups.start(conf)),
            false => drop(lookups.set(conf)),
        }
        Ok(())
    }

    /// Has the search begin of an overlay that is to be made, or to have another search. `None` until it has said its first word. Where
    /// another one of its name is taken away in the same edit, the new one's is not waited for.
    pub fn begin_search_ahead(
        &mut self,
        overlay: &windlass_api::Overlay,
        filters: bool,
    ) -> Option<Result<(), BackendError>> {
        let name = &overlay.name;
        let former = self.overlay(name).and_then(|state| state.lookup_conf(name));
        let next = Overlay::new(overlay, filters).lookup_conf(name);
        let may_begin = self.searches.has_begun && !self.edit.has_aside(name);
        let Some(conf) = next.filter(|conf| may_begin && former.as_ref() != Some(conf)) else {
            return Some(Ok(()));
        };
        let is_change = former.is_some();
        if let Some(ahead) = self.searches.ahead.get(name) {
            // Where another change is first, this one is looked at again when that is over.
            let is_same = ahead.conf == conf && ahead.is_change == is_change;
            let word = ahead.word.clone().filter(|_| is_same)?;
            if word.is_err() {
                self.give_up(name);
            }
            return Some(word.map_err(|error| refused(name, &error)));
        }
        let started = match (self.lookups(), is_change) {
            (Ok(lookups), true) => lookups.try_set(conf.clone()),
            (Ok(lookups), false) => lookups.start(conf.clone()),
            (Err(error), _) => return Some(Err(error)),
        };
        let ahead = Ahead {
            conf,
            is_change,
            started,
            word: None,
            until: Instant::now() + FIRST_WORD,
            told: Vec::new(),
            entries: 0,
        };
        self.searches.ahead.insert(name.clone(), ahead);
        None
    }

    /// Nobody makes the overlay of a search that has begun ahead, or changes it: one that is there goes on with what it has.
    pub fn give_up(&mut self, name: &Name) {
        let Some(ahead) = self.searches.ahead.remove(name) else {
            return;
        };
        // Another change may wait behind it.
        self.sink.changed(name);
        if !ahead.is_change {
            return self.end_search(name);
        }
        let conf = self.overlay(name).and_then(|state| state.lookup_conf(name));
        if let (Some(conf), Some(lookups)) = (conf, &self.searches.lookups) {
            drop(lookups.set(conf));
        }
    }

    /// Hears first words of searches that have begun ahead, and ends those whose overlays nobody makes.
    fn hear_ahead(&mut self) {
        let now = Instant::now();
        let mut over = Vec::new();
        for (name, ahead) in &mut self.searches.ahead {
            let is_late = now >= ahead.until;
            if ahead.word.is_some() {
                over.extend(is_late.then(|| name.clone()));
                continue;
            }
            let word = ahead.started.wait_for(Duration::ZERO);
            ahead.word = word.or_else(|| is_late.then(|| Err(StartError::late())));
            if ahead.word.is_some() {
                ahead.until = now + FIRST_WORD;
                self.sink.changed(name);
            }
        }
        for name in over {
            self.give_up(&name);
        }
    }

    /// Has the search of an overlay that was set aside go on, or begin anew if another overlay of its name has had one since.
    pub(super) fn search_on(&mut self, name: &Name) -> Result<(), BackendError> {
        let others = self.edit.dropped(name).filter_map(|m| m.overlay.as_deref());
        if !{ others }.any(|other| other.lookup.is_some()) {
            return Ok(());
        }
        if let Some(state) = self.overlay_mut(name) {
            // A search that begins knows of none of them.
            state.announced.clear();
        }
        self.begin_search(name, true)
    }

    /// Ends the search of an overlay that is no more, unless another one that has its name has a search. Who waits to change it is told.
    pub(in crate::dataplane::ports) fn leave_search(&mut self, name: &Name) {
        let ahead = self.searches.ahead.get(name);
        if ahead.is_some_and(|ahead| ahead.is_change) {
            self.searches.ahead.remove(name);
            self.sink.changed(name);
        }
        let other = self.overlay(name);
        if other.is_none_or(|other| other.lookup.is_none())
            && !self.searches.ahead.contains_key(name)
        {
            self.end_search(name);
        }
    }

    /// Ends the search of an overlay.
    fn end_search(&self, name: &Name) {
        if let Some(lookups) = &self.searches.lookups {
            lookups.stop(name);
        }
    }

    /// Takes in what searches have told.
    pub(in crate::dataplane::ports) fn hear_searches(&mut self) {
        // Those that come meanwhile wake this thread again.
        let mut told = std::mem::take(&mut self.searches.told_before);
        told.extend(self.searches.told.try_iter().take(TOLD_MAX));
        self.hear_ahead();
        for (name, told) in told {
            let state = self.members.get(&name).and_then(|m| m.overlay.as_deref());
            let is_own = |vni| state.is_some_and(|state| state.vlan_of(vni).is_some());
            if let Some(ahead) = self.searches.ahead.get_mut(&name)
                && ahead.is_for_later(&told, is_own)
            {
                if ahead.keep(told) {
                    self.sink.changed(&name);
                }
                continue;
            }
            if let Err(error) = self.told(&name, told) {
                tracing::error!("{name}: {error}");
                if let Some(state) = self.overlay_mut(&name) {
                    state.trouble = Some(error.to_string());
                }
                self.sink.changed(&name);
            }
        }
    }

    fn told(&mut self, name: &Name, told: Told) -> Result<(), BackendError> {
        // One without a search may have the name of one that had.
        let state = self.overlay_mut(name);
        let Some(state) = state.filter(|state| state.lookup.is_some()) else {
            return Ok(());
        };
        match told {
            Told::Begun => {
                (state.trouble, state.flooded) = (None, BTreeMap::new());
                (state.hosts, state.lost) = (BTreeMap::new(), Lost::new());
                let former = std::mem::take(&mut state.questions);
                self.tell_neighbours(name, former.neighbours().collect());
                let gone = self.told_addresses(name);
                self.push(name, gone)?;
                self.match_floods(name);
                self.remove_idle(name);
            }
            Told::Entries { vni, changes } => return self.told_entries(name, vni, changes),
            Told::Flood { vni, targets } => {
                state.flooded.insert(vni, targets);
                self.match_floods(name);
                self.remove_idle(name);
            }
            Told::Degraded(why) => state.trouble = Some(why),
            Told::Restored => state.trouble = None,
            // This thread has listened already.
            Told::Spoken => return Ok(()),
            Told::Owned { vni, mac, .. } => {
                let endpoint = (vni, MacAddr(mac.0));
                if state.lost.remove(&endpoint).is_some() && state.is_live(endpoint) {
                    state.moves.come(endpoint);
                }
            }
            Told::Refused { vni, mac, by } => {
                let mac = MacAddr(mac.0);
                tracing::warn!("{name}: {mac} in VNI {vni} is an endpoint of host {by}");
                let is_new = state.lost.insert((vni, mac), by).is_none();
                if is_new && state.is_live((vni, mac)) {
                    state.moves.leave((vni, mac), now());
                }
            }
            Told::Host {
                host,
                targets,
                state: life,
            } => {
                let known = match life {
                    HostState::Alive => Some(HostLife::Alive),
                    HostState::Unsure => Some(HostLife::Unsure),
                    HostState::Gone => None,
                };
                match known {
                    Some(life) => drop(state.hosts.insert(host, (targets, life))),
                    None => drop(state.hosts.remove(&host)),
                }
                return Ok(());
            }
            Told::Answer { id, answer } => return self.hear_answer(name, id, answer),
        }
        self.sink.changed(name);
        Ok(())
    }

    fn told_entries(
        &mut self,
        name: &Name,
        vni: u32,
        changes: Changes,
    ) -> Result<(), BackendError> {
        let Some(vlan) = self.overlay(name).and_then(|state| state.vlan_of(vni)) else {
            return Ok(());
        };
        let changes = changes.into_iter().map(|(mac, record)| {
            let behind = record.map(|record| Behind { record, life: None });
            (vlan, MacAddr(mac.0), behind)
        });
        self.push(name, changes.collect())
    }

    pub fn hosts(&self, name: &Name) -> Vec<HostView> {
        let hosts = self
            .overlay(name)
            .into_iter()
            .flat_map(|state| &state.hosts);
        let views = hosts.map(|(host, (targets, state))| HostView {
            host: host.clone(),
            targets: targets.clone(),
            state: *state,
        });
        views.collect()
    }

    pub fn forget_host(&self, name: &Name, host: String) {
        if let Some(lookups) = &self.searches.lookups {
            lookups.forget(name, host);
        }
    }

    pub fn resync(&self, name: &Name) {
        if let Some(lookups) = &self.searches.lookups {
            lookups.resync(name);
        }
    }

    /// Has an overlay's registry give addresses.
    ///
    /// # Errors
    /// It has no registry, or no network in that VLAN.
    pub fn claim_addresses(
        &self,
        name: &Name,
        claim: AddressClaim,
        answer: Answered,
    ) -> Result<(), String> {
        let (lookups, vni) = self.registry(name, claim.vlan)?;
        let claim = protocol::Claim {
            id: 0,
            overlay: name.to_string(),
            vni,
            owner: claim.owner,
            mac: claim.mac.map(|mac| windlass_wire::MacAddr(mac.0)),
            pool: claim.pool,
            sets: claim.sets,
            ips: claim.ips,
            dry_run: claim.dry_run,
        };
        lookups.claim(name, claim, answer);
        Ok(())
    }

    /// Gives addresses back to an overlay's registry.
    ///
    /// # Errors
    /// As [`Self::claim_addresses`].
    pub fn release_addresses(&self, name: &Name, release: AddressRelease) -> Result<(), String> {
        let (lookups, vni) = self.registry(name, release.vlan)?;
        lookups.release(name, vni, release.owner);
        Ok(())
    }

    /// Whom an overlay's registry is asked of, and the network of a VLAN.
    fn registry(&self, name: &Name, vlan: u16) -> Result<(&Lookups, u32), String> {
        let state = self.overlay(name);
        let state = state.filter(|of| matches!(of.search, Search::Etcd | Search::Plugin));
        let state = state.ok_or_else(|| format!("overlay `{name}` has no registry"))?;
        let vni = state.vni_of(vlan);
        let vni = vni.ok_or_else(|| format!("overlay `{name}` has no network in VLAN {vlan}"))?;
        let lookups = self.searches.lookups.as_ref();
        Ok((lookups.ok_or("there is no look-up thread")?, vni))
    }

    /// Tells registries which endpoints this host has.
    pub(in crate::dataplane::ports) fn announce(&mut self) {
        let registries = self.members.overlays();
        let registries =
            registries.filter(|(.., state)| matches!(state.search, Search::Etcd | Search::Plugin));
        let registries: Vec<Name> = registries.map(|(name, ..)| name.clone()).collect();
        for name in registries {
            let wanted = self.endpoints_of(&name);
            let (Some(lookups), Some(member)) = (&self.searches.lookups, self.members.get(&name))
            else {
                continue;
            };
            let Some(state) = member.overlay.as_deref() else {
                continue;
            };
            for ((vni, mac), endpoint) in &wanted {
                if state.announced.get(&(*vni, *mac)) != Some(endpoint) {
                    lookups.announce(
                        &name,
                        Endpoint {
                            vni: *vni,
                            mac: windlass_wire::MacAddr(mac.0),
                            ips: endpoint.ips.clone(),
                            state: endpoint.state,
                        },
                    );
                }
            }
            for (vni, mac) in state
                .announced
                .keys()
                .filter(|key| !wanted.contains_key(key))
            {
                lookups.retire(&name, *vni, windlass_wire::MacAddr(mac.0));
            }
            if let Some(state) = self.overlay_mut(&name) {
                state.note_moves(&wanted);
                state.lost.retain(|key, _| wanted.contains_key(key));
                state.announced = wanted;
            }
        }
    }

    /// What VNICs an overlay carries, in each of its networks.
    fn endpoints_of(&self, overlay: &Name) -> BTreeMap<(u32, MacAddr), Announced> {
        let mut endpoints = BTreeMap::new();
        let Some(own) = self.members.get(overlay) else {
            return endpoints;
        };
        let (Some(state), Some(bridge)) = (&own.overlay, self.bridges.get(&own.bridge)) else {
            return endpoints;
        };
        let neighbours = self.members.values().filter(|m| m.bridge == own.bridge);
        for member in neighbours.filter(|member| member.own.is_some()) {
            let macs = member.own.into_iter().chain(member.settings.macs.iter());
            let vlans: &[u16] = if bridge.filtering {
                &member.vlans
            } else {
                &[0]
            };
            let vnis = vlans.iter().filter_map(|vlan| state.vni_of(*vlan));
            let vnis: Vec<u32> = vnis.collect();
            for mac in macs {
                let told = Announced {
                    ips: announced_ips(member),
                    state: match member.settings.standby {
                        true => EndpointState::Standby,
                        false => EndpointState::Active,
                    },
                };
                endpoints.extend(vnis.iter().map(|vni| ((*vni, mac), told.clone())));
            }
        }
        endpoints
    }
}

/// The IP addresses of hosts that a VNIC may use.
pub(in crate::dataplane::ports) fn allowed_ips(
    member: &MemberState,
) -> impl Iterator<Item = IpAddr> {
    let ips = member.settings.guard.ips.iter().flat_map(|ips| ips.iter());
    let hosts = ips.filter(|(ip, bits)| *bits == if ip.is_ipv4() { 32 } else { 128 });
    hosts.map(|(ip, _)| ip)
}

/// Those, and the addresses that its interface is given: as many as a registry takes.
fn announced_ips(member: &MemberState) -> Vec<IpAddr> {
    let all: BTreeSet<IpAddr> = (member.addresses.iter().copied())
        .chain(allowed_ips(member))
        .collect();
    all.into_iter().take(IPS_MAX).collect()
}

/// A search cannot begin.
fn refused(name: &Name, error: &StartError) -> BackendError {
    BackendError::Host(format!("search of overlay `{name}`: {error}"))
}

impl Overlay {
    /// What is looked up for it, and how; `None` if everything stands in its properties.
    fn lookup_conf(&self, name: &Name) -> Option<LookupConf> {
        Some(LookupConf {
            overlay: name.clone(),
            vnis: self.networks.clone(),
            kind: self.lookup.clone()?,
        })
    }

    /// The targets that the search wants flooded.
    pub(super) fn told_floods(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        let all = self.flooded.iter();
        all.flat_map(|(vni, hosts)| hosts.iter().map(move |host| (*vni, *host)))
    }

    /// What the registry says against this host's endpoints, in a sentence.
    pub(super) fn lost(&self) -> Option<String> {
        let ((vni, mac), by) = self.lost.first_key_value()?;
        let more = match self.lost.len() {
            1 => String::new(),
            n => format!(" ({} more)", n - 1),
        };
        Some(format!(
            "{mac} in VNI {vni} is an endpoint of host {by}{more}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::CHANGES_MAX;

    /// What a search tells before its overlay is made is bounded: beyond, it is refused, once, and nothing more is kept.
    #[test]
    fn what_is_told_ahead_is_bounded() {
        let pace = Pace::of(PluginUser::Missing);
        let lookups = Lookups::new(pace, |_, _| {}).expect("a thread");
        let conf = LookupConf {
            overlay: "ov0".parse().expect("a name"),
            vnis: vec![(0, 23)],
            kind: LookupKind::Files {
                config: PathBuf::from("/nowhere/hosts.json"),
            },
        };
        let mut ahead = Ahead {
            conf: conf.clone(),
            is_change: false,
            started: lookups.start(conf),
            word: Some(Ok(())),
            until: Instant::now(),
            told: Vec::new(),
            entries: 0,
        };
        let gone = (windlass_wire::MacAddr([2, 0, 0, 0, 0, 1]), None);
        let changes: Changes = vec![gone; CHANGES_MAX];
        let entries = || Told::Entries {
            vni: 23,
            changes: changes.clone(),
        };
        let most = 2 * ENTRIES_MAX / CHANGES_MAX;
        assert!((0..most).all(|_| !ahead.keep(entries())));
        assert_eq!(ahead.told.len(), most);
        assert!(ahead.keep(entries()), "it is refused");
        assert!(!ahead.keep(entries()), "it was");
        assert!(ahead.told.is_empty());
        assert!(matches!(ahead.word, Some(Err(_))));
    }
}
