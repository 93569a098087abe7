//! How the engine makes a change, and undoes it.

use windlass_api::{
    Change, Document, ErrorBody, ErrorCode, MacAddr, Member, Name, Object, Vnic, Zone, diff,
};

use super::Engine;
use super::owners::vnics_in;
use crate::authority::Peer;
use crate::backend::{BackendError, Place};
use crate::paths;
use crate::shares::{Share, configured};
use crate::store::Loaded;

/// Six bytes from the kernel's generator.
pub(super) fn draw_mac() -> MacAddr {
    let mut bytes = [0; 6];
    // Six bytes are never cut short, and the generator is ready long before a daemon starts
    // (getrandom(2)); if it fails all the same, the address is drawn again, and then found to be taken.
    if let Err(error) = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        tracing::error!("getrandom: {error}");
    }
    MacAddr::local(bytes)
}

/// The data plane refuses an object.
pub(super) fn refused(object: &Object, error: BackendError) -> ErrorBody {
    refused_at(format!("{}s.{}", object.kind(), object.name()), error)
}

fn refused_at(path: String, error: BackendError) -> ErrorBody {
    let message = error.to_string();
    ErrorBody::from(error).at(path, message)
}

impl Engine {
    /// Refuses a tenant whose VNICs and their flows would take more than one may have; those that are there already may stay.
    pub(super) fn check_shares(&self, peer: &Peer, next: &Document) -> Result<(), ErrorBody> {
        for share in [Share::Vnics, Share::Descriptors, Share::Flows] {
            let max = self.per_user.max(share);
            let taken = |document| configured(share, peer.uid, document);
            let (before, after) = (taken(&self.document), taken(next));
            if !peer.operator && after > max.max(before) {
                return Err(share.refuse(ErrorCode::Invalid, peer.uid, before, max));
            }
        }
        Ok(())
    }

    /// Makes changes, or none of them.
    pub(super) fn step_all(
        &mut self,
        changes: &[Change],
        before: &Document,
    ) -> Result<(), ErrorBody> {
        for (index, change) in changes.iter().enumerate() {
            if let Err(error) = self.step(change) {
                self.undo(&changes[..index], before);
                return Err(refused(change.object(), error));
            }
        }
        self.backend.configure().map_err(|(name, error)| {
            self.undo(changes, before);
            refused_at(format!("vnics.{name}"), error)
        })
    }

    /// After the edit, what a change has left of an object is forgotten, unless another change has made the object anew.
    pub(super) fn end(&mut self, change: &Change) {
        if let Change::Delete { from } = change
            && let Object::Zone(zone) = from
            && self.document.zone(zone.name.as_str()).is_none()
        {
            let place = Place::of(&self.runtime_dir, Some(zone));
            paths::remove_zone_dir(&place.directory);
            paths::remove_zone_dir(&place.devices);
        }
    }

    /// Nothing of another document is left on the host.
    pub(super) fn tidy(&mut self) {
        for done in [self.store.abandon(), self.store.finish()] {
            if let Err(error) = done {
                tracing::error!("{error}");
            }
        }
    }

    pub(super) fn undo(&mut self, done: &[Change], before: &Document) {
        for change in done.iter().rev() {
            let inverse = change.inverse();
            if let Err(error) = self.step(&inverse) {
                let object = inverse.object();
                tracing::error!("cannot undo {} {}: {error}", object.kind(), object.name());
                if let Change::Create { .. } | Change::Set { .. } = inverse {
                    self.remember_failure(object, &error);
                }
            }
        }
        self.document = before.clone();
    }

    /// Makes one change in the data plane, and keeps the document in memory in step, so that places are
    /// found.
    fn step(&mut self, change: &Change) -> Result<(), BackendError> {
        match change {
            Change::Create { to } => self.create(to)?,
            Change::Set { from, to } => self.set(from, to)?,
            Change::Delete { from } => self.delete(from)?,
        }
        change.apply(&mut self.document);
        Ok(())
    }

    pub(super) fn place_of(&self, vnic: &Vnic) -> Place {
        self.place(vnic.zone.name().map(Name::as_str))
    }

    fn create(&mut self, object: &Object) -> Result<(), BackendError> {
        match object {
            Object::Zone(zone) => self.make_zone(zone),
            Object::Bridge(bridge) => self.backend.create_bridge(bridge),
            Object::Uplink(uplink) => self.backend.create_uplink(uplink),
            Object::Overlay(overlay) => self.backend.create_overlay(overlay),
            Object::Vnic(vnic) => {
                let place = self.place_of(vnic);
                self.backend.create_vnic(vnic, &place)
            }
            Object::Flow(flow) => self.backend.set_flow(None, Some(flow)),
            Object::Vnd(vnd) => self.set_vnd(vnd, Some(vnd)),
            Object::Fdb(entry) => self.backend.fdb_add(entry),
        }
    }

    fn set(&mut self, from: &Object, to: &Object) -> Result<(), BackendError> {
        match (from, to) {
            (Object::Zone(from), Object::Zone(to)) => self.set_zone(from, to),
            (Object::Bridge(from), Object::Bridge(to)) => self.backend.set_bridge(from, to),
            (Object::Uplink(old), Object::Uplink(new)) => {
                if self.failed.contains_key(&new.name) {
                    self.backend.create_uplink(new)?;
                    self.failed.remove(&new.name);
                    return Ok(());
                }
                self.backend.set_uplink(old, new)
            }
            (Object::Overlay(old), Object::Overlay(new)) => {
                if self.failed.contains_key(&new.name) {
                    self.backend.create_overlay(new)?;
                    self.failed.remove(&new.name);
                    return Ok(());
                }
                self.backend.set_overlay(old, new)
            }
            (Object::Vnic(old), Object::Vnic(new)) => {
                let place = self.place_of(new);
                if self.failed.contains_key(&new.name) {
                    self.backend.create_vnic(new, &place)?;
                    self.failed.remove(&new.name);
                    return Ok(());
                }
                self.backend.set_vnic(old, new, &place)
            }
            (Object::Flow(old), Object::Flow(new)) => self.backend.set_flow(Some(old), Some(new)),
            (Object::Vnd(old), Object::Vnd(new)) => self.set_vnd(old, Some(new)),
            _ => {
                self.delete(from)?;
                self.create(to)
            }
        }
    }

    fn make_zone(&self, zone: &Zone) -> Result<(), BackendError> {
        let refused = |e| BackendError::Host(format!("directory of zone \"{}\": {e}", zone.name));
        self.make_zone_dir(Some(zone)).map_err(refused)
    }

    /// Its VNICs have its rules, all or none of them.
    fn set_zone(&mut self, from: &Zone, to: &Zone) -> Result<(), BackendError> {
        self.set_rules(from, to)?;
        self.give_zone(from, to).inspect_err(|_| {
            if let Err(error) = self.set_rules(to, from) {
                tracing::error!(
                    "the rules of zone {} are not as they were: {error}",
                    to.name
                );
            }
        })
    }

    fn set_rules(&mut self, from: &Zone, to: &Zone) -> Result<(), BackendError> {
        let [before, after] = [from, to].map(|zone| Place::of(&self.runtime_dir, Some(zone)));
        if before.rules == after.rules {
            return Ok(());
        }
        let vnics = self.document.vnics.iter();
        let vnics = vnics.filter(|vnic| vnic.zone.name() == Some(&to.name));
        let vnics: Vec<&Vnic> = vnics
            .filter(|vnic| !self.failed.contains_key(&vnic.name))
            .collect();
        for (done, vnic) in vnics.iter().enumerate() {
            if let Err(error) = self.backend.set_vnic(vnic, vnic, &after) {
                for vnic in vnics.iter().take(done) {
                    if let Err(error) = self.backend.set_vnic(vnic, vnic, &before) {
                        tracing::error!("{} is not as it was: {error}", vnic.name);
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Another owner gets the directory before the sockets: from then on the former one reaches none by its path.
    fn give_zone(&mut self, from: &Zone, to: &Zone) -> Result<(), BackendError> {
        self.make_zone(to)?;
        let owner = |zone: &Zone| (zone.owner_uid, zone.owner_gid);
        if owner(from) == owner(to) {
            return Ok(());
        }
        let vnics = vnics_in(&self.document, &to.name);
        let given = self.backend.set_owner(&vnics, owner(from), owner(to));
        given.inspect_err(|_| {
            if let Err(error) = self.make_zone(from) {
                tracing::error!("{error}");
            }
        })
    }

    fn delete(&mut self, object: &Object) -> Result<(), BackendError> {
        match object {
            // Its directory goes after the sockets that lie in it.
            Object::Zone(_) => Ok(()),
            Object::Bridge(bridge) => self.backend.delete_bridge(bridge),
            Object::Uplink(uplink) => {
                self.backend.delete_uplink(uplink)?;
                self.forget(&uplink.name);
                Ok(())
            }
            Object::Overlay(overlay) => {
                self.backend.delete_overlay(overlay)?;
                self.forget(&overlay.name);
                Ok(())
            }
            Object::Vnic(vnic) => {
                let place = self.place_of(vnic);
                self.backend.delete_vnic(vnic, &place)?;
                self.forget(&vnic.name);
                Ok(())
            }
            Object::Flow(flow) => self.backend.set_flow(Some(flow), None),
            Object::Vnd(vnd) => self.set_vnd(vnd, None),
            Object::Fdb(entry) => self.backend.fdb_delete(entry),
        }
    }

    fn forget(&mut self, name: &Name) {
        self.failed.remove(name);
        self.states.remove(name);
    }

    fn remember_failure(&mut self, object: &Object, error: &BackendError) {
        let name = match object {
            Object::Uplink(uplink) => &uplink.name,
            Object::Overlay(overlay) => &overlay.name,
            Object::Vnic(vnic) => &vnic.name,
            Object::Zone(_)
            | Object::Bridge(_)
            | Object::Flow(_)
            | Object::Vnd(_)
            | Object::Fdb(_) => return,
        };
        self.failed.insert(name.clone(), error.to_string());
    }

    /// Makes everything that the stored document has and is not there yet, after removing what a change that was cut short may
    /// have left on the host.
    pub(super) fn restore(&mut self, loaded: Loaded) {
        let document = loaded.document;
        let made = std::mem::take(&mut self.document);
        let others: Vec<_> = [loaded.unfinished, loaded.replaced]
            .into_iter()
            .flatten()
            .map(|other| (diff(&other, &document), other))
            .collect();
        self.backend.begin_edit();
        for (changes, other) in &others {
            self.document = other.clone();
            for change in changes {
                if let Change::Delete { from } = change
                    && let Err(error) = self.delete(from)
                {
                    tracing::warn!("remains of {} {}: {error}", from.kind(), from.name());
                }
            }
        }
        self.document = made.clone();
        for change in diff(&made, &document) {
            if let Err(error) = self.step(&change) {
                let object = change.object();
                tracing::error!("{} {}: {error}", object.kind(), object.name());
                self.remember_failure(object, &error);
            }
        }
        self.backend.end_edit();
        let changes = others.iter().flat_map(|(changes, _)| changes);
        changes.for_each(|change| self.end(change));
        self.document = document;
    }

    /// Makes everything that a document has, held back until the stored one is restored.
    pub(super) fn make_ahead(&mut self, document: Document) {
        self.backend.hold();
        self.restore(Loaded {
            document,
            ..Loaded::default()
        });
    }

    /// Tries again to make what could not be made.
    pub fn retry(&mut self) {
        let names: Vec<_> = self.failed.keys().cloned().collect();
        self.backend.begin_edit();
        for name in names {
            let object = match self.document.member(name.as_str()) {
                Some(Member::Vnic(vnic)) => Object::Vnic(vnic.clone()),
                Some(Member::Uplink(uplink)) => Object::Uplink(uplink.clone()),
                Some(Member::Overlay(overlay)) => Object::Overlay(overlay.clone()),
                None => continue,
            };
            match self.create(&object) {
                Ok(()) => {
                    self.failed.remove(&name);
                    self.sink.changed(&name);
                }
                Err(error) => self.remember_failure(&object, &error),
            }
        }
        self.backend.end_edit();
    }
}
