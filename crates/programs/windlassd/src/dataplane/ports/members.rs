//! Members by name, by number and by the token of their endpoint.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;

use windlass_api::Name;

use super::MemberState;
use super::watch::{Token, Watched};

/// All members that were not set aside.
#[derive(Default)]
pub(super) struct Members {
    states: BTreeMap<Name, MemberState>,
    numbers: HashMap<u16, Name>,
    tokens: HashMap<Token, Name>,
}

impl Members {
    /// Takes a member; no other one has its name.
    pub(super) fn insert(&mut self, name: Name, state: MemberState) {
        self.numbers.insert(state.id, name.clone());
        let token = state.endpoint.as_ref().map(Watched::token);
        self.tokens.extend(token.map(|token| (token, name.clone())));
        self.states.insert(name, state);
    }

    /// Gives a member back.
    pub(super) fn remove(&mut self, name: &Name) -> Option<MemberState> {
        let state = self.states.remove(name)?;
        self.numbers.remove(&state.id);
        if let Some(endpoint) = &state.endpoint {
            self.tokens.remove(&endpoint.token());
        }
        Some(state)
    }

    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut MemberState> {
        self.states.get_mut(name)
    }

    /// The name of the member with this number.
    pub(super) fn name_of(&self, id: u16) -> Option<&Name> {
        self.numbers.get(&id)
    }

    /// The name of the member whose endpoint has this token.
    pub(super) fn name_at(&self, token: Token) -> Option<&Name> {
        self.tokens.get(&token)
    }

    /// The member with this number.
    pub(super) fn of(&mut self, id: u16) -> Option<&mut MemberState> {
        self.states.get_mut(self.numbers.get(&id)?)
    }

    /// The endpoint of the member with this number.
    pub(super) fn endpoint_of(&mut self, id: u16) -> Option<&mut Watched> {
        self.of(id)?.endpoint.as_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Name, &mut MemberState)> {
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
