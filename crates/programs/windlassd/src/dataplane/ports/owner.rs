//! VNICs whose zone gets another owner.
//!
//! # Model
//! What an owner's VNICs have is counted by objects of that owner ([`crate::shares`]), and frames that wait by its number. They are moved in place: rings, learned
//! addresses and peers stay.

use std::collections::BTreeMap;

use windlass_api::Name;
use windlass_bridge::fdb::Tally;

use super::{Ports, failed};
use crate::backend::BackendError;
use crate::shares::{Share, Used};

impl Ports {
    /// Where addresses learned on an owner's VNICs count.
    pub(super) fn tally_of(&self, uid: u32) -> Tally {
        let max = self.per_user.max(Share::Addresses);
        self.sink.holders().addresses(uid, max)
    }

    /// What counts for the owner of these VNICs.
    pub fn used(&mut self, vnics: &[Name]) -> Used {
        let members = vnics.iter().filter_map(|name| self.members.get(name));
        let endpoints = members.filter_map(|member| member.endpoint.as_ref());
        let quotas = endpoints.filter_map(|endpoint| endpoint.quota());
        let mappings = quotas.fold(0u32, |sum, quota| sum.saturating_add(quota.used()));
        let addresses = self.by_bridge(vnics).into_iter().map(|(bridge, members)| {
            let learned = self.plane.ask_fdb(bridge, move |w, _| {
                let learned = members.iter().map(|id| w.member_len(*id).0);
                learned.fold(0, u32::saturating_add)
            });
            learned.unwrap_or_default()
        });
        let addresses = addresses.fold(0, u32::saturating_add);
        Used {
            mappings,
            addresses,
        }
    }

    /// Their numbers, by that of their bridge.
    fn by_bridge(&self, vnics: &[Name]) -> BTreeMap<u16, Vec<u16>> {
        let mut found: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for member in vnics.iter().filter_map(|name| self.members.get(name)) {
            if let Some(bridge) = self.bridges.get(&member.bridge) {
                found.entry(bridge.id).or_default().push(member.id);
            }
        }
        found
    }

    /// Gives VNICs to another user and group, or changes nothing.
    pub fn set_owner(
        &mut self,
        vnics: &[Name],
        from: (u32, u32),
        to: (u32, u32),
    ) -> Result<(), BackendError> {
        self.end_captures_of(vnics, to.0);
        self.give_to(vnics, to).inspect_err(|_| {
            if let Err(error) = self.give_to(vnics, from) {
                tracing::error!("VNICs of user {} are not as they were: {error}", from.0);
            }
        })
    }

    fn give_to(&mut self, vnics: &[Name], owner: (u32, u32)) -> Result<(), BackendError> {
        let (uid, _) = owner;
        let max = self.per_user.max(Share::Mappings);
        let pool = self.sink.holders().mappings(uid, max);
        let tally = self.tally_of(uid);
        for name in vnics {
            let Some(member) = self.members.get_mut(name) else {
                continue;
            };
            if let Some(endpoint) = member.endpoint.as_mut() {
                let refused = |error| BackendError::Host(format!("VNIC \"{name}\": {error}"));
                endpoint.set_owner(owner).map_err(refused)?;
                if let Some(quota) = endpoint.quota() {
                    quota.move_to(pool.clone());
                }
            }
            member.tally = Some(tally.clone());
            self.plane.set_owner(member.id, Some(uid)).map_err(failed)?;
        }
        for (bridge, members) in self.by_bridge(vnics) {
            let tally = tally.clone();
            if let Some(table) = self.edit.table(bridge) {
                for id in members {
                    table.set_member_tally(id, Some(tally.clone()));
                }
                continue;
            }
            // Done when the change is answered: nobody sees them count for the former owner.
            let moved = self.plane.ask_fdb(bridge, move |w, _| {
                for id in &members {
                    w.set_member_tally(*id, Some(tally.clone()));
                }
            });
            moved.map_err(failed)?;
        }
        Ok(())
    }
}
