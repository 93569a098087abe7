//! Members of a bridge: how they are configured, and what the data path needs of it.

use std::sync::Arc;

use windlass_frame::{FRAME_MAX, TxId};

use crate::pace::Paces;
use crate::vlan::VlanMap;

/// The group bit of an address whose first byte is lowest.
pub(crate) const GROUP_BIT: u64 = 1;

/// What a member does with frames (IEEE 802.1D-2004, 17.4). Frames for the daemon come from it in every state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// Neither forwards nor learns.
    Discarding,
    /// Learns, does not forward.
    Learning,
    /// Both.
    #[default]
    Forwarding,
}

/// How one member of a bridge is configured. Fixed for the life of a topology.
#[derive(Clone, Debug)]
pub struct MemberConf {
    /// Its number: as source, as destination, and in the forwarding table.
    pub id: TxId,
    /// Its own address, first byte lowest (as in [`windlass_frame::Heads`]).
    pub mac: u64,
    /// Further addresses of its own.
    pub macs: Arc<[u64]>,
    /// VLAN of untagged frames, both ways; None: they are dropped. Without effect on a bridge that does not filter.
    pub pvid: Option<u16>,
    /// VLANs of tagged frames, both ways.
    pub tagged: VlanMap,
    /// Longest packet that it takes, in bytes behind the link header.
    pub mtu: u32,
    /// Longest frame that it may send, in bytes.
    pub frame_max: u32,
    /// Sources of its frames are learned.
    pub learn: bool,
    /// What spanning tree lets it do.
    pub state: PortState,
    /// Its BPDUs count: they have a rate of their own.
    pub stp: bool,
    /// Frames to unknown addresses are flooded to it.
    pub discover: bool,
    /// Frames to groups are flooded to it.
    pub groups: bool,
    /// What is learned behind it neither ages nor moves.
    pub sticky: bool,
    /// Only sources that have a static entry at it may send.
    pub locked: bool,
    /// Other sources of a locked member are learned, though their frames are dropped.
    pub mab: bool,
    /// Exchanges nothing with other private members.
    pub private: bool,
    /// A host is behind it, not a link with servers and routers of its own: the bridge may serve it.
    pub host: bool,
    /// Members of one horizon exchange nothing (split horizon); 0: it has none.
    pub horizon: u16,
    /// Receives a copy of every accepted frame and sends none.
    pub span: bool,
    /// Sources other than its own address are dropped.
    pub nospoof: bool,
    /// Its own address is not in the table before it is learned.
    pub standby: bool,
    /// Broadcast, multicast and unknown unicast frames a second taken from it; 0: no limit.
    pub storm_limit: u32,
    /// What it has used of its limits, over all its rings.
    pub paces: Arc<Paces>,
}

impl MemberConf {
    /// A member with the defaults of a VNIC: VLAN 1 untagged, MTU 1,500, learning, discovering, confined to its own
    /// address, 50,000 flooded frames a second.
    pub fn new(id: TxId, mac: u64) -> MemberConf {
        MemberConf {
            id,
            mac,
            macs: Arc::default(),
            pvid: Some(1),
            tagged: VlanMap::default(),
            mtu: 1500,
            frame_max: FRAME_MAX as u32,
            state: PortState::Forwarding,
            stp: false,
            learn: true,
            discover: true,
            groups: true,
            sticky: false,
            locked: false,
            mab: false,
            private: false,
            host: true,
            horizon: 0,
            span: false,
            nospoof: true,
            standby: false,
            storm_limit: 50_000,
            paces: Arc::default(),
        }
    }

    /// All its own addresses.
    pub fn all_macs(&self) -> Arc<[u64]> {
        [self.mac].iter().chain(&*self.macs).copied().collect()
    }

    /// Whether a source address is the member's own, and one that a frame can come from.
    #[inline(always)]
    pub fn owns(&self, src: u64) -> bool {
        (src == self.mac || self.macs.contains(&src)) && src != 0 && src & GROUP_BIT == 0
    }

    /// Whether frames of a VLAN pass between the member and the bridge.
    #[inline(always)]
    pub fn takes(&self, vid: u16) -> bool {
        self.pvid == Some(vid) || self.tagged.contains(vid)
    }

    /// Whether a frame of a VLAN that it takes goes to it with a tag.
    #[inline(always)]
    pub fn wants_tag(&self, vid: u16) -> bool {
        self.pvid != Some(vid)
    }

    /// Whether new sources have to be looked for in its frames: with one permitted source, static in
    /// the table, there is nothing to learn. That of a standby member is not. Those of a locked member are looked for in any case.
    #[inline(always)]
    pub fn is_learning(&self) -> bool {
        (!self.nospoof || self.standby) && (self.learn || self.locked) && !self.span
    }
}
