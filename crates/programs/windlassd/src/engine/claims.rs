//! Whose an address is that a VNIC is to have, and whose an interface that an uplink is to take.
//!
//! # Model
//! A VNIC's own address is fixed in its bridge's table: whoever used it before gets no frames from then on. So an address
//! that was learned behind another VNIC is refused, to operators, too: they can have the table forget it first. One that
//! was learned behind an uplink may be that of a machine which moves here: an operator gets it, and is warned; a tenant
//! does not. With `state=standby`, which only an operator sets, the frames go on to the uplink until the VNIC sends one.
//! Addresses of the document, own and static ones, are compared by `windlass_api::validate`. A restored document claims
//! nothing: it had its addresses before.
//!
//! A TAP in the daemon's namespace is not an uplink of its own bridge: its frames would go round.
//!
//! # Not done
//! An address that nobody has sent from within the ageing time is not known to be anybody's.

use std::collections::{BTreeMap, BTreeSet};

use windlass_api::{
    Attachment, Change, Document, ErrorBody, ErrorCode, FdbEntry, Ifname, MacAddr, Member, Name,
    Object, Vnic,
};

use super::Engine;
use crate::authority::Peer;

/// The VNIC that a change gives addresses, or VLANs with them, that it did not have.
fn claimant(change: &Change) -> Option<&Vnic> {
    let claim = |vnic: &Vnic| {
        let settings = vnic.settings();
        (
            vnic.bridge.clone(),
            vnic.mac,
            settings.vlans(),
            settings.standby,
            settings.macs,
        )
    };
    match change {
        Change::Create {
            to: Object::Vnic(to),
        } => Some(to),
        Change::Set {
            from: Object::Vnic(from),
            to: Object::Vnic(to),
        } if claim(from) != claim(to) => Some(to),
        _ => None,
    }
}

impl Engine {
    /// Checks the addresses that the changes claim; what to tell of those that are granted.
    ///
    /// # Errors
    /// [`ErrorCode::InUse`], naming who has the address.
    pub(super) fn check_claims(
        &mut self,
        peer: &Peer,
        next: &Document,
        changes: &[Change],
    ) -> Result<Vec<String>, ErrorBody> {
        let mut claims: BTreeMap<&Name, BTreeMap<MacAddr, Vec<&Vnic>>> = BTreeMap::new();
        for vnic in changes.iter().filter_map(claimant) {
            let of_bridge = claims.entry(&vnic.bridge).or_default();
            for mac in vnic.macs() {
                of_bridge.entry(mac).or_default().push(vnic);
            }
        }
        let mut warnings = Vec::new();
        for (bridge, claims) in claims {
            let filtering = next
                .bridge(bridge.as_str())
                .is_some_and(|bridge| bridge.settings().vlan_filtering);
            let addresses: BTreeSet<MacAddr> = claims.keys().copied().collect();
            for entry in self.backend.fdb_learned(bridge, &addresses) {
                let Some(holder) = next.member(entry.member.as_str()) else {
                    continue;
                };
                let vnics = claims.get(&entry.mac).into_iter().flatten();
                let claims = |vnic: &Vnic| {
                    vnic.name != entry.member
                        && holder.bridge() == bridge
                        && (!filtering || vnic.settings().vlans().contains(entry.vlan))
                };
                for vnic in vnics.copied().filter(|vnic| claims(vnic)) {
                    warnings.push(granted(peer, vnic, holder, &entry)?);
                }
            }
        }
        Ok(warnings)
    }
}

fn in_use(path: String, message: String) -> ErrorBody {
    ErrorBody::plain(ErrorCode::InUse, format!("{path}: {message}")).at(path, message)
}

/// Refuses a TAP as an uplink of the bridge that it is a member of.
///
/// # Errors
/// [`ErrorCode::InUse`], naming its VNIC.
pub(super) fn check_loops(next: &Document, changes: &[Change]) -> Result<(), ErrorBody> {
    let joins = |change: &Change| {
        !matches!(change, Change::Delete { .. })
            && matches!(change.object(), Object::Vnic(_) | Object::Uplink(_))
    };
    if !changes.iter().any(joins) {
        return Ok(());
    }
    let taps: BTreeMap<(&Name, Ifname), &Name> = (next.vnics.iter())
        .filter_map(|vnic| match &vnic.attach {
            Attachment::Tap(tap) if tap.netns.is_none() => {
                Some(((&vnic.bridge, tap.ifname(&vnic.name)?), &vnic.name))
            }
            _ => None,
        })
        .collect();
    for uplink in &next.uplinks {
        if let Some(vnic) = taps.get(&(&uplink.bridge, uplink.device.clone())) {
            let path = format!("uplinks.{}.device", uplink.name);
            let message = format!(
                "\"{}\" is the TAP of VNIC \"{vnic}\" of the same bridge: frames would go round",
                uplink.device
            );
            return Err(in_use(path, message));
        }
    }
    Ok(())
}

/// What to tell a peer who gets an address that was learned behind another member.
fn granted(
    peer: &Peer,
    vnic: &Vnic,
    holder: Member<'_>,
    entry: &FdbEntry,
) -> Result<String, ErrorBody> {
    let (mac, bridge, name) = (entry.mac, &vnic.bridge, holder.name());
    let refused = |message| Err(in_use(format!("vnics.{}.mac", vnic.name), message));
    match holder {
        Member::Uplink(_) if peer.operator && vnic.settings().standby => Ok(format!(
            "{mac} was learned behind uplink \"{name}\": its frames go there until VNIC \"{}\" sends one or has state=active",
            vnic.name
        )),
        Member::Uplink(_) if peer.operator => Ok(format!(
            "{mac} was learned behind uplink \"{name}\": its frames go to VNIC \"{}\" now",
            vnic.name
        )),
        Member::Uplink(_) => refused(format!(
            "{mac} was learned behind uplink \"{name}\": only an operator may give it to a VNIC"
        )),
        Member::Overlay(_) => refused(format!(
            "{mac} was learned behind overlay \"{name}\": if it has left its host, `windlass overlay target flush {name} --mac {mac}`"
        )),
        Member::Vnic(_) => refused(format!(
            "{mac} was learned behind VNIC \"{name}\": if it has left, `windlass fdb delete {bridge} {mac}`"
        )),
    }
}
