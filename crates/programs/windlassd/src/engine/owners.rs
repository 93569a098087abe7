//! Whether the next owner of a zone may have what the zone has.
//!
//! # Model
//! Operators hold without a limit, but a zone that one gives to another user comes with mappings and addresses that others of that
//! user's VNICs would lack from then on. So the change is refused as a whole.
//!
//! # Limits
//! What is mapped or learned between this check and the change goes along.

use std::collections::BTreeSet;

use windlass_api::{Change, Document, ErrorBody, Name, Object};

use super::Engine;
use crate::shares::{Share, Used, configured};

/// The VNICs of a zone.
pub(super) fn vnics_in(document: &Document, zone: &Name) -> Vec<Name> {
    let vnics = document.vnics.iter();
    let vnics = vnics.filter(|vnic| vnic.zone.name() == Some(zone));
    vnics.map(|vnic| vnic.name.clone()).collect()
}

/// A zone that another user gets, with what counts for its owner.
struct Given {
    from: u32,
    to: u32,
    used: Used,
}

impl Engine {
    /// Checks that users who get zones may have what these have.
    ///
    /// # Errors
    /// `invalid`, naming the limit.
    pub(super) fn check_owners(
        &self,
        next: &Document,
        changes: &[Change],
    ) -> Result<(), ErrorBody> {
        let given: Vec<Given> = changes
            .iter()
            .filter_map(|change| self.given(change))
            .collect();
        let users: BTreeSet<u32> = given.iter().map(|given| given.to).collect();
        for uid in users {
            for share in Share::OF_ZONES {
                let max = self.per_user.max(share);
                let before = self.sink.holders().used(share, uid, &self.document);
                let after = after(share, uid, before, next, &given);
                if after > max.max(before) {
                    return Err(share.refuse_zone(uid, [before, after], max));
                }
            }
        }
        Ok(())
    }

    fn given(&self, change: &Change) -> Option<Given> {
        let Change::Set {
            from: Object::Zone(from),
            to: Object::Zone(to),
        } = change
        else {
            return None;
        };
        (from.owner_uid != to.owner_uid).then(|| Given {
            from: from.owner_uid,
            to: to.owner_uid,
            used: self.backend.used(&vnics_in(&self.document, &to.name)),
        })
    }
}

/// What a user has of a share after zones were given, who has `before`.
fn after(share: Share, uid: u32, before: u32, next: &Document, given: &[Given]) -> u32 {
    let of: fn(&Used) -> u32 = match share {
        Share::Mappings => |used| used.mappings,
        Share::Addresses => |used| used.addresses,
        _ => return configured(share, uid, next),
    };
    let sum = |is: fn(&Given) -> u32| {
        let zones = given.iter().filter(|given| is(given) == uid);
        zones.fold(0u32, |sum, given| sum.saturating_add(of(&given.used)))
    };
    let rest = before.saturating_sub(sum(|given| given.from));
    rest.saturating_add(sum(|given| given.to))
}
