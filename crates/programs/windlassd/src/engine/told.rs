//! What the engine tells the log: who changed what, who was refused what, and how members fare.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windlass_api::{
    Change, ErrorBody, ErrorCode, Member, Name, Object, Overlay, State, Status, Uplink, Vnic,
};

use super::Engine;
use crate::authority::Peer;
use crate::log::{Source, may};

/// Members of one change whose waiting is told.
const WAITING_MAX: usize = 64;

impl Engine {
    /// Changes that were made. An object that was deleted to be made anew was set, for who asked for it.
    pub(super) fn tell_changes(&self, peer: &Peer, revision: u64, changes: &[Change]) {
        let key = |object: &Object| (object.kind(), object.name());
        let mut former: BTreeMap<_, &Object> = BTreeMap::new();
        let mut made = BTreeSet::new();
        for change in changes {
            match change {
                Change::Delete { from } => drop(former.insert(key(from), from)),
                Change::Create { to } => drop(made.insert(key(to))),
                Change::Set { .. } => {}
            }
        }
        for change in changes {
            let object = change.object();
            let before = match change {
                Change::Delete { from } if made.contains(&key(from)) => continue,
                Change::Delete { .. } => None,
                Change::Create { to } => former.get(&key(to)).copied(),
                Change::Set { from, .. } => Some(from),
            };
            match (change, before) {
                (Change::Delete { .. }, _) => {
                    self.tell_change(peer, revision, object, "delete", "")
                }
                (_, None) => self.tell_change(peer, revision, object, "create", ""),
                (_, Some(from)) => {
                    let differing = differing(from, object);
                    self.tell_change(peer, revision, object, "set", &differing);
                }
            }
        }
    }

    fn tell_change(
        &self,
        peer: &Peer,
        revision: u64,
        object: &Object,
        how: &str,
        properties: &str,
    ) {
        if !peer.operator && !may(Source::User(peer.uid)) {
            return;
        }
        let (kind, name) = (object.kind(), object.name());
        let uid = u64::from(peer.uid);
        tracing::info!(
            event = "change",
            uid,
            change = how,
            kind,
            name = %name,
            properties,
            revision,
            "user {uid}: {how} {kind} {name}"
        );
    }

    /// A change that was refused for a right, a limit, the host or the store; not what was only typed wrong.
    pub(super) fn tell_refused(&self, peer: &Peer, error: &ErrorBody) {
        let told = [
            ErrorCode::Forbidden,
            ErrorCode::Host,
            ErrorCode::Storage,
            ErrorCode::Unsupported,
        ];
        if told.contains(&error.code) && may(Source::User(peer.uid)) {
            let (uid, code) = (u64::from(peer.uid), error.code.name());
            let why = &error.message;
            tracing::warn!(
                event = "refused",
                uid,
                code,
                "user {uid} was refused: {why}"
            );
        }
    }

    /// Of members that a change has made: what they wait for. Of thousands nobody reads that.
    pub(super) fn tell_waiting(&self, changes: &[Change]) {
        for change in changes.iter().take(WAITING_MAX) {
            let Change::Create { to } = change else {
                continue;
            };
            let name = match to {
                Object::Vnic(Vnic { name, .. }) => name,
                Object::Uplink(Uplink { name, .. }) => name,
                Object::Overlay(Overlay { name, .. }) => name,
                _ => continue,
            };
            let status = self.status(name);
            if status.state == State::Waiting {
                self.tell_state(name, None, &status);
            }
        }
    }

    /// A member whose state is another one than before.
    pub(super) fn tell_state(&self, name: &Name, before: Option<&Status>, now: &Status) {
        let is_same = before.is_some_and(|before| {
            (before.state, &before.reason, before.connects)
                == (now.state, &now.reason, now.connects)
        });
        let vnic = self.document.vnic(name.as_str());
        let zone = vnic.and_then(|vnic| vnic.zone.name()).cloned();
        if is_same || !may(Source::Zone(zone.clone())) {
            return;
        }
        let zone = zone.map_or_else(String::new, |zone| zone.to_string());
        let kind = match self.document.member(name.as_str()) {
            Some(Member::Vnic(_)) => "vnic",
            Some(Member::Overlay(_)) => "overlay",
            Some(Member::Uplink(_)) | None => "uplink",
        };
        let reason = now.reason.as_deref().unwrap_or_default();
        let was_up = before.is_some_and(|before| before.state == State::Up);
        match now.state {
            State::Up => {
                let connects = now.connects;
                tracing::info!(event = "up", kind, name = %name, zone, connects, "{kind} {name} is up");
            }
            _ if was_up && kind == "overlay" => tracing::warn!(
                event = "degraded",
                kind,
                name = %name,
                zone,
                reason,
                "overlay {name} is degraded: {reason}"
            ),
            _ if was_up => tracing::warn!(
                event = "lost",
                kind,
                name = %name,
                zone,
                reason,
                "{kind} {name} has lost its peer: {reason}"
            ),
            _ => tracing::info!(
                event = "waiting",
                kind,
                name = %name,
                zone,
                reason,
                "{kind} {name} is waiting: {reason}"
            ),
        }
    }
}

/// Names of what differs, without values: some are secret.
fn differing(from: &Object, to: &Object) -> String {
    let fields = |object: &Object| {
        let value = serde_json::to_value(object).unwrap_or_default();
        let mut fields = value["config"].as_object().cloned().unwrap_or_default();
        if let Some(Value::Object(properties)) = fields.remove("properties") {
            fields.extend(properties);
        }
        fields
    };
    let (from, to) = (fields(from), fields(to));
    let mut names: Vec<_> = from.keys().chain(to.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| from.get(*name) != to.get(*name));
    let names: Vec<_> = names.into_iter().map(String::as_str).collect();
    names.join(",")
}
