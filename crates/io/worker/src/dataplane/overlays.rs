//! Overlays: members of a bridge whose frames go through tunnels, and their targets.

use std::net::SocketAddr;
use std::sync::Arc;

use windlass_attach::vxlan::Vtep;
use windlass_bridge::member::MemberConf;
use windlass_overlay::Vni;
use windlass_stats::Drop;

use super::{DataPlane, DataPlaneError, MemberTuning};

/// The first place of a target: members have the numbers below.
pub const TARGETS: u16 = 4096;
/// Targets of a data plane at most.
pub const TARGETS_MAX: u16 = 16_384;

/// What becomes of unicast frames whose destination is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They do not enter the tunnel.
    #[default]
    Drop,
    /// They go to each target that takes broadcasts.
    Flood,
    /// They wait for somebody who knows.
    Lookup,
}

/// Whose datagrams an overlay takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// Those that come from the address of one of its targets.
    #[default]
    Vtep,
    /// The same, and the table must have the inner source behind that target.
    Strict,
    /// From any address.
    Open,
}

/// What an overlay is besides its place on the bridge.
#[derive(Clone, Debug)]
pub struct OverlayTuning {
    /// Its tunnel endpoint, which others may share.
    pub vtep: Arc<Vtep>,
    /// Its networks: VLAN (0 where the bridge does not filter) and identifier.
    pub vnis: Vec<(u16, Vni)>,
    /// Frames keep their VLAN's tag in the tunnel.
    pub keep_inner_tag: bool,
    /// What becomes of frames to unknown addresses.
    pub unknown: Unknown,
    /// Broadcast and multicast frames enter the tunnel.
    pub broadcast: bool,
    /// Whose datagrams it takes.
    pub source_check: SourceCheck,
    /// Sources behind targets are learned.
    pub learn: bool,
    /// Longest inner packet, in bytes behind the link header.
    pub mtu: u16,
    /// What it is as a member.
    pub member: MemberTuning,
}

/// One remote tunnel endpoint of one overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetTuning {
    /// Its address and port.
    pub to: SocketAddr,
    /// The network: one of the overlay's.
    pub vni: Vni,
    /// Broadcasts are replicated to it.
    pub bum: bool,
    /// Longest inner packet on the way to it, in bytes behind the link header.
    pub mtu: u16,
}

/// What a target has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetTotals {
    /// Frames sent to it.
    pub tx_frames: u64,
    /// Bytes of those, without outer headers.
    pub tx_bytes: u64,
}

/// How a tunnel endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VtepState {
    /// Its address and port.
    pub local: SocketAddr,
    /// The overlays that use it, by number.
    pub overlays: Vec<u16>,
    /// What is wrong, a sentence each; none: nothing.
    pub troubles: Vec<String>,
    /// Datagrams that belong to no overlay, by reason.
    pub drops: [u64; Drop::COUNT],
}

impl DataPlane {
    /// Adds an overlay to a bridge and returns its number (`conf.id` is ignored), which is also its own place.
    ///
    /// # Errors
    /// As [`DataPlane::add_member`]; [`DataPlaneError::VniTaken`].
    pub fn add_overlay(
        &mut self,
        bridge: u16,
        conf: MemberConf,
        tuning: OverlayTuning,
    ) -> Result<u16, DataPlaneError> {
        self.add_member(bridge, conf, tuning.member)
    }

    /// Changes an overlay. Targets of networks that it has no more are to be removed first.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`]; [`DataPlaneError::VniTaken`].
    pub fn set_overlay(
        &mut self,
        overlay: u16,
        conf: MemberConf,
        tuning: OverlayTuning,
    ) -> Result<(), DataPlaneError> {
        self.set_member(overlay, conf, tuning.member)
    }

    /// Adds a target to an overlay and returns its place.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`], [`DataPlaneError::NoVni`], [`DataPlaneError::TooManyTargets`].
    pub fn add_target(
        &mut self,
        overlay: u16,
        target: TargetTuning,
    ) -> Result<u16, DataPlaneError> {
        let _ = target;
        Err(DataPlaneError::NoMember(overlay))
    }

    /// Changes a target in place: what is known behind it stays.
    ///
    /// # Errors
    /// [`DataPlaneError::NoTarget`], [`DataPlaneError::NoVni`].
    pub fn set_target(&mut self, place: u16, target: TargetTuning) -> Result<(), DataPlaneError> {
        let _ = target;
        Err(DataPlaneError::NoTarget(place))
    }

    /// Removes targets with everything that is known behind them. Their places are used again after a grace period.
    ///
    /// # Errors
    /// [`DataPlaneError::NoTarget`]: nothing has changed. [`DataPlaneError::Stuck`]: to be removed again.
    pub fn remove_targets(&mut self, places: &[u16]) -> Result<(), DataPlaneError> {
        places
            .first()
            .map_or(Ok(()), |place| Err(DataPlaneError::NoTarget(*place)))
    }

    /// Enters addresses into a bridge's table that no frame ages or moves: VLAN (0 where the bridge does not filter), address
    /// as the low 48 bits of a little-endian load, and the place behind which it is; without a place, the entry goes.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn push_entries(
        &mut self,
        bridge: u16,
        entries: Vec<(u16, u64, Option<u16>)>,
    ) -> Result<(), DataPlaneError> {
        let _ = entries;
        self.bridge_of(bridge).map(|_| ())
    }

    /// What a target has counted; zeros if there is none.
    pub fn target_totals(&self, place: u16) -> TargetTotals {
        let _ = place;
        TargetTotals::default()
    }

    /// How each tunnel endpoint in use is.
    pub fn vtep_states(&mut self) -> Vec<VtepState> {
        Vec::new()
    }
}
