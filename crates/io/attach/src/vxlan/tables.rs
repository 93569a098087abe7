//! Whose datagrams are whose: what a tunnel endpoint knows of overlays and their targets.

use std::collections::HashMap;
use std::net::IpAddr;

use windlass_overlay::Vni;

/// One overlay's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The overlay's place.
    pub overlay: u16,
    /// Longest inner packet, in bytes behind the link header.
    pub mtu: u16,
    /// The place of those that are no target; none: their datagrams are refused.
    pub strangers: Option<u16>,
}

/// What a tunnel endpoint knows.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    networks: HashMap<Vni, Network>,
    sources: HashMap<(Vni, IpAddr), u16>,
}

impl Tables {
    /// Of all networks, and the place of each target by its network and address.
    pub fn new(
        networks: impl IntoIterator<Item = (Vni, Network)>,
        sources: impl IntoIterator<Item = ((Vni, IpAddr), u16)>,
    ) -> Tables {
        Tables {
            networks: networks.into_iter().collect(),
            sources: sources.into_iter().collect(),
        }
    }

    /// A network.
    pub(super) fn network(&self, vni: Vni) -> Option<&Network> {
        self.networks.get(&vni)
    }

    /// The target of a network that an address is.
    pub(super) fn source(&self, vni: Vni, from: IpAddr) -> Option<u16> {
        self.sources.get(&(vni, from)).copied()
    }
}
