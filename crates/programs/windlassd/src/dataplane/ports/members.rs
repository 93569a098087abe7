//! Members by name, by number and by the token of their endpoint; and which of them have changed.
//!
//! # Model
//! What may be another member than before is noted for each [`Follower`]: members that are made, removed, or handed out to be changed.
//! So a follower looks at those, and not at all members in each turn of the thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;

use windlass_api::Name;

use super::MemberState;
use super::overlays::Overlay;
use super::watch::{Token, Watched};

/// What goes by the members of bridges.
#[derive(Debug, Clone, Copy)]
pub(super) enum Follower {
    Trees,
    Neighbours,
    Snoops,
}

const FOLLOWERS: usize = 3;

/// All members that were not set aside.
#[derive(Default)]
pub(super) struct Members {
    states: BTreeMap<Name, MemberState>,
    numbers: HashMap<u16, Name>,
    tokens: HashMap<Token, Name>,
    /// Those of them that are overlays.
    overlays: BTreeSet<Name>,
    changed: [BTreeSet<Name>; FOLLOWERS],
}

impl Members {
    /// Takes a member; no other one has its name.
    pub(super) fn insert(&mut self, name: Name, state: MemberState) {
        self.note(&name);
        self.numbers.insert(state.id, name.clone());
        if state.overlay.is_some() {
            self.overlays.insert(name.clone());
        }
        let token = state.endpoint.as_ref().map(Watched::token);
        self.tokens.extend(token.map(|token| (token, name.clone())));
        self.states.insert(name, state);
    }

    /// Gives a member back.
    pub(super) fn remove(&mut self, name: &Name) -> Option<MemberState> {
        let state = self.states.remove(name)?;
        self.note(name);
        self.numbers.remove(&state.id);
        self.overlays.remove(name);
        if let Some(endpoint) = &state.endpoint {
            self.tokens.remove(&endpoint.token());
        }
        Some(state)
    }

    /// Gives a member another endpoint, or none, and gives back the one that it had.
    pub(super) fn set_endpoint(
        &mut self,
        name: &Name,
        endpoint: Option<Watched>,
    ) -> Option<Watched> {
        let state = self.states.get_mut(name)?;
        let token = endpoint.as_ref().map(Watched::token);
        let before = std::mem::replace(&mut state.endpoint, endpoint);
        if let Some(before) = &before {
            self.tokens.remove(&before.token());
        }
        self.tokens.extend(token.map(|token| (token, name.clone())));
        self.note(name);
        before
    }

    /// A member that may be changed.
    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut MemberState> {
        self.note(name);
        self.states.get_mut(name)
    }

    /// A frame came from a member; one that is down may have said it before, and followers are to forget it.
    pub(super) fn heard(&mut self, id: u16) {
        let name = self.numbers.get(&id);
        let is_down = |name: &&Name| self.states.get(*name).is_some_and(|m| m.rings == 0);
        if let Some(name) = name.filter(is_down).cloned() {
            self.note(&name);
        }
    }

    fn note(&mut self, name: &Name) {
        for changed in &mut self.changed {
            changed.insert(name.clone());
        }
    }

    /// Members that may have changed since this follower asked last, also those that are gone.
    pub(super) fn take_changed(&mut self, follower: Follower) -> BTreeSet<Name> {
        std::mem::take(&mut self.changed[follower as usize])
    }

    /// All overlays, each with its name and what it is as a member.
    pub(super) fn overlays(&self) -> impl Iterator<Item = (&Name, &MemberState, &Overlay)> + Clone {
        let names = self.overlays.iter();
        names.filter_map(|name| {
            let state = self.states.get(name)?;
            Some((name, state, state.overlay.as_deref()?))
        })
    }

    /// Names of all members of a bridge.
    pub(super) fn on_bridge(&self, bridge: &Name) -> BTreeSet<Name> {
        let members = self.states.iter().filter(|(_, m)| m.bridge == *bridge);
        members.map(|(name, _)| name.clone()).collect()
    }

    /// The name of the member with this number.
    pub(super) fn name_of(&self, id: u16) -> Option<&Name> {
        self.numbers.get(&id)
    }

    /// The name of the member whose endpoint has this token.
    pub(super) fn name_at(&self, token: Token) -> Option<&Name> {
        self.tokens.get(&token)
    }

    /// The member with this number, for what no follower goes by.
    pub(super) fn of(&mut self, id: u16) -> Option<&mut MemberState> {
        self.states.get_mut(self.numbers.get(&id)?)
    }

    /// The endpoint of the member with this number.
    pub(super) fn endpoint_of(&mut self, id: u16) -> Option<&mut Watched> {
        self.of(id)?.endpoint.as_mut()
    }

    /// All of them, which may be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Name, &mut MemberState)> {
        for changed in &mut self.changed {
            changed.extend(self.states.keys().cloned());
        }
        self.states.iter_mut()
    }

    pub(super) fn endpoints_mut(&mut self) -> impl Iterator<Item = &mut Watched> {
        self.states
            .values_mut()
            .filter_map(|member| member.endpoint.as_mut())
    }
}

impl Deref for Members {
    type Target = BTreeMap<Name, MemberState>;

    fn deref(&self) -> &Self::Target {
        &self.states
    }
}
