//! What is shown of overlays.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Overlay;
use crate::name::MacAddr;
use crate::view::{Counters, Status};

/// An overlay and its state. It is `up` (ONLINE), or `waiting` with a reason (DEGRADED): what it knows still carries traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverlayView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Overlay,
    /// Its state.
    #[serde(flatten)]
    pub status: Status,
    /// Remote hosts that it sends to, once for each of its networks.
    pub targets: u64,
    /// Addresses behind them.
    pub addresses: u64,
    /// Its traffic: rx came out of the tunnel.
    pub counters: Counters,
}

/// How a target came to have an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// A person entered it.
    Static,
    /// The search told it.
    Pushed,
    /// A frame from the target had it.
    Learned,
    /// Without an address: it gets what is flooded.
    Flood,
}

impl TargetKind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Pushed => "pushed",
            Self::Learned => "learned",
            Self::Flood => "flood",
        }
    }
}

/// An address behind a target, or a target that gets what is flooded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetView {
    /// The address; `None`: whatever is flooded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// VLAN on the bridge; 0 where it does not filter.
    pub vlan: u16,
    /// The network identifier.
    pub vni: u32,
    /// The remote host.
    pub target: SocketAddr,
    /// How it came.
    pub kind: TargetKind,
    /// Seconds since it was seen last, of a learned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
}

/// How a host of the registry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostLife {
    /// It says that it is there.
    Alive,
    /// It has not said so for a while. Frames are still sent to it.
    Unsure,
}

/// A host of an overlay's registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostView {
    /// Its name.
    pub host: String,
    /// Its underlay addresses and ports.
    pub targets: Vec<SocketAddr>,
    /// How it is.
    pub state: HostLife,
}

/// Which targets are meant; all without any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetQuery {
    /// That with this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Those of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}
