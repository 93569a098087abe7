//! One overlay's lookup: what it is, what is known, and what of that has been told.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use windlass_api::Name;
use windlass_lookup::protocol::{self, ToPlugin};
use windlass_lookup::table::{ENTRIES_MAX, Table};
use windlass_wire::MacAddr;

use super::file::{Endpoints, Looks};
use super::{CHANGES_MAX, Endpoint, LookupConf, LookupKind, PluginFrom, StartError, Told};

/// Who is told.
pub(super) type Tell = Box<dyn Fn(&Name, Told) + Send>;

/// Who waits for the outcome of a start or a change.
pub(super) type Waiter = Sender<Result<(), StartError>>;

/// How far a plugin is with an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is not there, or has not been told of it.
    Absent,
    /// It was told of it, and has until then to answer.
    Asked(Instant),
    /// It has refused it. It is asked again then.
    Refused(Instant),
    /// It answers for it.
    Started,
}

/// One overlay's lookup.
pub(super) struct Overlay {
    pub(super) conf: LookupConf,
    /// What a plugin was asked to take in place of `conf`.
    pub(super) next: Option<LookupConf>,
    pub(super) table: Table,
    /// Of its file, if it has one.
    pub(super) looks: Looks,
    /// The number of its plugin's session, if it has one.
    pub(super) session: Option<u64>,
    pub(super) stage: Stage,
    /// What another kind of source had brought is still there.
    pub(super) is_inherited: bool,
    /// This host's endpoints.
    pub(super) endpoints: BTreeMap<(u32, MacAddr), Endpoint>,
    /// Endpoints that were retired while no plugin was there to be told.
    pub(super) owed: BTreeSet<(u32, MacAddr)>,
    /// Hosts that were told of.
    pub(super) hosts: BTreeSet<String>,
    /// Who waits for its start.
    pub(super) waiter: Option<Waiter>,
    /// What is wrong with its source.
    wrong: Option<String>,
    /// Why its plugin says that it is degraded.
    pub(super) plugins: Option<String>,
    /// Why it is degraded, as it was told last.
    degraded: Option<String>,
    /// It is what another one is to be, once its source has taken it. Nothing of it is told but that.
    pub(super) is_trial: bool,
}

/// The lookups of all overlays.
#[derive(Default)]
pub(super) struct Overlays {
    pub(super) there: BTreeMap<Name, Overlay>,
    /// What some of these are to be, with another source.
    pub(super) trials: BTreeMap<Name, Overlay>,
    /// Watches of directories that some have left.
    pub(super) left: Vec<i32>,
}

impl Overlays {
    pub(super) fn all(&self) -> impl Iterator<Item = &Overlay> {
        self.there.values().chain(self.trials.values())
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Overlay> {
        self.there.values_mut().chain(self.trials.values_mut())
    }

    /// The overlays of a session.
    pub(super) fn of(&mut self, session: u64) -> impl Iterator<Item = &mut Overlay> {
        let all = self.all_mut();
        all.filter(move |overlay| overlay.session == Some(session))
    }

    /// One of them.
    pub(super) fn named(&mut self, name: &str, session: u64) -> Option<&mut Overlay> {
        let both = [self.there.get_mut(name), self.trials.get_mut(name)];
        let mut both = both.into_iter().flatten();
        both.find(|overlay| overlay.session == Some(session))
    }
}

impl Overlay {
    pub(super) fn new(conf: LookupConf, waiter: Waiter) -> Self {
        let mut overlay = Self {
            conf,
            next: None,
            table: Table::default(),
            looks: Looks::default(),
            session: None,
            stage: Stage::Absent,
            is_inherited: false,
            endpoints: BTreeMap::new(),
            owed: BTreeSet::new(),
            hosts: BTreeSet::new(),
            waiter: Some(waiter),
            wrong: None,
            plugins: None,
            degraded: None,
            is_trial: false,
        };
        overlay.set_vnis();
        overlay
    }

    /// Has the table hold the VNIs of the configuration alone.
    pub(super) fn set_vnis(&mut self) {
        self.table
            .set_vnis(self.conf.vnis.iter().map(|(_, vni)| *vni));
    }

    pub(super) fn file(&self) -> Option<&PathBuf> {
        match &self.conf.kind {
            LookupKind::Files { config } => Some(config),
            LookupKind::Plugin { .. } => None,
        }
    }

    pub(super) fn plugin(&self) -> Option<&PluginFrom> {
        self.conf.plugin()
    }

    /// Takes what a file has as all there is.
    pub(super) fn take(&mut self, endpoints: &Endpoints) -> Result<(), String> {
        let vnis = self.conf.vnis.len();
        if endpoints.len().saturating_mul(vnis) > ENTRIES_MAX {
            let count = endpoints.len();
            return Err(format!(
                "{count} endpoints in {vnis} VNIs are more than {ENTRIES_MAX}"
            ));
        }
        let put = |table: &mut Table| {
            table.sync_begin(None)?;
            for (_, vni) in &self.conf.vnis {
                for (mac, record) in endpoints {
                    table.put(*vni, *mac, Arc::clone(record))?;
                }
            }
            table.sync_end(None)
        };
        put(&mut self.table).map_err(|error| error.to_string())
    }

    /// Tells how its source is, also to who waits for its start.
    pub(super) fn say(&mut self, tell: &Tell, how: Result<(), String>) {
        self.answer(tell, how.clone());
        self.wrong = how.err();
        self.say_degraded(tell);
    }

    /// Tells who waits for its start or a change; whether somebody does.
    fn answer(&mut self, tell: &Tell, how: Result<(), String>) -> bool {
        let waiter = self.waiter.take();
        let is_heard = waiter.is_some_and(|waiter| waiter.send(how.map_err(StartError)).is_ok());
        if is_heard {
            tell(&self.conf.overlay, Told::Spoken);
        }
        is_heard
    }

    /// Its plugin has refused a change: all stays as it was. If that was to undo another one, it is degraded.
    pub(super) fn keep(&mut self, tell: &Tell, reason: String) {
        self.next = None;
        self.stage = Stage::Started;
        if !self.answer(tell, Err(reason.clone())) {
            self.wrong = Some(reason);
        }
        self.say_degraded(tell);
    }

    /// Tells that its source is not there yet. Who waits for its start goes on to wait.
    pub(super) fn degrade(&mut self, tell: &Tell, reason: &str) {
        self.wrong = Some(reason.to_owned());
        self.say_degraded(tell);
    }

    /// Tells whether it is degraded, if that is new.
    pub(super) fn say_degraded(&mut self, tell: &Tell) {
        if !self.is_trial && self.degraded.as_ref() != self.reason() {
            self.degraded = self.reason().cloned();
            let told = self.degraded.clone().map_or(Told::Restored, Told::Degraded);
            tell(&self.conf.overlay, told);
        }
    }

    fn reason(&self) -> Option<&String> {
        self.wrong.as_ref().or(self.plugins.as_ref())
    }

    /// Why it is degraded, as it was told last.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    pub(super) fn tell_changes(&mut self, tell: &Tell) {
        while let Some((vni, changes)) = self.table.take_changes(CHANGES_MAX) {
            tell(&self.conf.overlay, Told::Entries { vni, changes });
        }
    }

    /// Its plugin is not there any more.
    pub(super) fn lose(&mut self, tell: &Tell, reason: &str) {
        self.stage = Stage::Absent;
        self.next = None;
        self.plugins = None;
        self.table.abort_syncs();
        self.say(tell, Err(reason.to_owned()));
    }
}

/// A configuration as a plugin is told of it.
pub(super) fn described(conf: &LookupConf) -> protocol::Overlay {
    let vnis: BTreeSet<u32> = conf.vnis.iter().map(|(_, vni)| *vni).collect();
    let properties = match &conf.kind {
        LookupKind::Files { .. } => BTreeMap::new(),
        LookupKind::Plugin { properties, .. } => properties.clone(),
    };
    protocol::Overlay {
        overlay: conf.overlay.to_string(),
        vnis: vnis.into_iter().collect(),
        properties,
    }
}

/// That an endpoint is no more, as a plugin is told of it.
pub(super) fn retired(overlay: &Name, (vni, mac): (u32, MacAddr)) -> ToPlugin {
    let overlay = overlay.to_string();
    ToPlugin::Retire { overlay, vni, mac }
}

/// An endpoint as a plugin is told of it.
pub(super) fn announced(overlay: &Name, endpoint: &Endpoint) -> protocol::Endpoint {
    protocol::Endpoint {
        overlay: overlay.to_string(),
        vni: endpoint.vni,
        mac: endpoint.mac,
        ips: endpoint.ips.clone(),
        state: endpoint.state,
    }
}
