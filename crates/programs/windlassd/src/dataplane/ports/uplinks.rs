//! What uplinks are told of their bridges.

use std::collections::BTreeSet;

use windlass_api::Name;
use windlass_attach::endpoint::Addresses;
use windlass_nic::rings::Wish;

use super::{Ports, translate};

impl Ports {
    /// Tells uplinks which addresses are behind the other members of their bridges.
    pub(super) fn tell_addresses(&mut self) {
        let members = self.members.iter();
        let uplinks = members.filter(|(_, member)| member.device.is_some());
        let told: Vec<_> = uplinks
            .map(|(name, _)| (name.clone(), self.addresses_for(name)))
            .collect();
        for (name, addresses) in told {
            let member = self.members.get_mut(&name);
            if let Some(endpoint) = member.and_then(|m| m.endpoint.as_mut())
                && endpoint.set_addresses(&addresses)
            {
                self.watch.make_due(endpoint);
            }
        }
    }

    fn addresses_for(&self, uplink: &Name) -> Addresses {
        let mut addresses = Addresses::default();
        let Some(member) = self.members.get(uplink) else {
            return addresses;
        };
        addresses.filters_max = member.settings.filters_max as usize;
        let bridge = self.bridges.get(&member.bridge);
        addresses.tagged =
            bridge.is_some_and(|b| !b.filtering) || !member.settings.tagged.is_empty();
        let others = self.members.iter().filter(|(name, _)| *name != uplink);
        for (name, other) in others.filter(|(_, m)| m.bridge == member.bridge) {
            let settings = &other.settings;
            let macs = other.own.into_iter().chain(settings.macs.iter());
            let words: BTreeSet<u64> = macs.map(translate::mac_word).collect();
            match settings.standby {
                true => addresses.others.extend(&words),
                false => addresses.own.extend(&words),
            }
            if settings.rx_rings > 0 && !settings.standby {
                addresses.rings.push(Wish {
                    vnic: name.to_string(),
                    addresses: words,
                    rings: settings.rx_rings,
                });
            }
            let is_open = other.own.is_none() || !settings.mac_nospoof || settings.span;
            if is_open && addresses.open.is_none() {
                addresses.open = Some(name.to_string());
            }
        }
        let statics = bridge.map(|bridge| &bridge.statics);
        let behind_others = statics
            .into_iter()
            .flatten()
            .filter(|e| e.member != *uplink);
        let static_words = behind_others.map(|entry| translate::mac_word(entry.mac));
        addresses.others.extend(static_words);
        addresses
    }
}
