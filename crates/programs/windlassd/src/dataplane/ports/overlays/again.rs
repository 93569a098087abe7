//! What the data plane has not taken of an overlay, and is tried again.
//!
//! # Model
//! Targets beyond the limit, addresses for which the bridge's table has no room, and whatever a late worker was asked. All of it is tried again every
//! second, unless a worker is late still: that one is waited for no more than once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use windlass_api::{MacAddr, Name};
use windlass_bridge::fdb::Key;
use windlass_worker::DataPlaneError;

use super::{Behind, Overlay, Ports};

/// How long workers may take before what is to be done again is done.
const PROMPT: Duration = Duration::from_millis(10);

/// Addresses of an overlay that are tried first: each has eight slots of the table, so one may have room where another has none.
const TRIED: usize = 64;

/// What a search told of addresses whose targets cannot be made.
#[derive(Default)]
pub(super) struct Unmade {
    pub(super) told: BTreeMap<(u16, MacAddr), Behind>,
    pub(super) why: String,
}

/// Addresses of which the bridge's table may not have what the search told.
#[derive(Default)]
pub(super) struct Unentered {
    pub(super) keys: BTreeSet<Key>,
    pub(super) why: String,
    /// The last that was tried again.
    last: Option<Key>,
    /// A worker is late: it is asked for nothing before it is prompt again.
    pub(super) is_late: bool,
}

impl Unmade {
    /// In a sentence.
    pub(super) fn words(&self) -> Option<String> {
        let Unmade { told, why } = self;
        let first = told.keys().next()?.1;
        Some(format!(
            "{} addresses ({first} the first) are behind targets that cannot be made: {why}",
            told.len()
        ))
    }
}

impl Unentered {
    /// So many of them, those first that were tried longest ago.
    fn next(&mut self, at_most: usize) -> Vec<Key> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.keys.range((behind, Bound::Unbounded));
        let earlier = self.last.into_iter();
        let earlier = earlier.flat_map(|last| self.keys.range(..=last));
        let next: Vec<Key> = later.chain(earlier).take(at_most).copied().collect();
        self.last = next.last().copied();
        next
    }

    /// In a sentence.
    pub(super) fn words(&self) -> Option<String> {
        let (count, first) = (self.keys.len(), self.keys.first()?);
        let first = MacAddr(first.octets());
        let why = &self.why;
        Some(format!(
            "{count} addresses ({first} the first) are not in the forwarding table: {why}"
        ))
    }
}

impl Ports {
    /// Has the bridge's table have what the search told of addresses, and removes targets that nobody uses any more.
    pub(super) fn enter_told(&mut self, name: &Name, entries: Vec<(u16, u64, Option<u16>)>) {
        let member = self.members.get(name);
        let Some(bridge) = member.and_then(|member| self.bridges.get(&member.bridge)) else {
            return;
        };
        if entries.is_empty() {
            return self.remove_idle(name);
        }
        let keys = entries.iter().map(|(vlan, mac, _)| Key::new(*vlan, *mac));
        let keys: Vec<Key> = keys.collect();
        let is_late = self.overlay(name).is_some_and(|o| o.unentered.is_late);
        let entered = match is_late {
            true => Err(DataPlaneError::Stuck),
            false => self.plane.push_entries(bridge.id, entries),
        };
        let is_late = entered.is_err();
        let (lacking, why) = match entered {
            Ok(refused) => (refused, "it has no room".to_owned()),
            Err(error) => (keys, error.to_string()),
        };
        if let Some(state) = self.overlay_mut(name)
            && !lacking.is_empty()
        {
            let unentered = &mut state.unentered;
            unentered.keys.extend(lacking);
            (unentered.why, unentered.is_late) = (why, is_late);
            self.sink.changed(name);
        }
        if !is_late {
            self.remove_idle(name);
        }
    }

    /// Tries again what the data plane has not taken, unless a worker is late still.
    pub(super) fn try_again(&mut self) {
        let behind = self.members.overlays();
        let behind = behind.filter(|(_, _, overlay)| overlay.is_behind());
        let behind: Vec<Name> = behind.map(|(name, ..)| name.clone()).collect();
        if behind.is_empty() || self.plane.stuck(PROMPT).is_some() {
            return;
        }
        for name in &behind {
            if let Some(state) = self.overlay_mut(name) {
                state.unentered.is_late = false;
            }
        }
        self.make_unmade();
        self.enter_unentered();
        self.flood_unflooded();
        for name in behind {
            self.remove_idle(&name);
        }
    }

    /// Tries again to make targets that could not be made: first one of each overlay.
    fn make_unmade(&mut self) {
        let unmade = self.members.overlays();
        let unmade = unmade.filter(|(_, _, overlay)| !overlay.unmade.told.is_empty());
        let unmade: Vec<Name> = unmade.map(|(name, ..)| name.clone()).collect();
        for name in unmade {
            let again = |ports: &mut Self, at_most| {
                let told = ports.overlay_mut(&name).map(|state| {
                    let told = &mut state.unmade.told;
                    let some = std::iter::from_fn(|| told.pop_first()).take(at_most);
                    some.map(|((vlan, mac), told)| (vlan, mac, Some(told)))
                        .collect()
                });
                ports.push(&name, told.unwrap_or_default())
            };
            let left = |ports: &Self| ports.overlay(&name).map_or(0, |s| s.unmade.told.len());
            let before = left(self);
            let mut done = again(self, 1);
            if left(self) < before {
                done = done.and_then(|()| again(self, usize::MAX));
                self.sink.changed(&name);
            }
            if let Err(error) = done {
                tracing::error!("{name}: {error}");
            }
        }
    }

    /// Tries again to enter addresses: first some of each overlay.
    fn enter_unentered(&mut self) {
        let lacking = self.members.overlays();
        let lacking = lacking.filter(|(_, _, overlay)| !overlay.unentered.keys.is_empty());
        for name in lacking.map(|(name, ..)| name.clone()).collect::<Vec<_>>() {
            let again = |ports: &mut Self, at_most| {
                let told = ports.overlay_mut(&name).map(|state| {
                    let keys = state.unentered.next(at_most).into_iter();
                    keys.map(|key| state.told_of(key)).collect()
                });
                let done = ports.push(&name, told.unwrap_or_default());
                done.unwrap_or_else(|error| tracing::error!("{name}: {error}"));
            };
            let left = |ports: &Self| ports.overlay(&name).map_or(0, |s| s.unentered.keys.len());
            let before = left(self);
            again(self, TRIED);
            if left(self) < before {
                again(self, usize::MAX);
                self.sink.changed(&name);
            }
        }
    }

    /// Tries again to have targets get what is flooded.
    fn flood_unflooded(&mut self) {
        let lacking = self.members.overlays();
        let lacking = lacking.filter(|(_, _, overlay)| overlay.unflooded.is_some());
        for name in lacking.map(|(name, ..)| name.clone()).collect::<Vec<_>>() {
            self.match_floods(&name);
            self.sink.changed(&name);
        }
    }
}

impl Overlay {
    /// Whether the data plane has not taken all of it.
    fn is_behind(&self) -> bool {
        let has_all = self.unmade.told.is_empty() && self.unentered.keys.is_empty();
        !has_all || self.unflooded.is_some() || !self.going.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One address that has no room keeps none from being tried.
    #[test]
    fn each_is_tried_in_its_turn() {
        let [one, two, three] = [1, 2, 3].map(|vlan| Key::from_octets(vlan, [2, 0, 0, 0, 0, 1]));
        let mut unentered = Unentered {
            keys: [one, two, three].into(),
            ..Unentered::default()
        };
        assert_eq!(unentered.next(2), [one, two]);
        assert_eq!(unentered.next(2), [three, one]);
        unentered.keys.remove(&one);
        assert_eq!(unentered.next(usize::MAX), [two, three]);
        unentered.keys.clear();
        assert_eq!(unentered.next(1), []);
    }
}
