//! The kinds of object, and where each lies.

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::{
    Bridge, BridgePatch, BridgeView, Flow, FlowPatch, FlowView, Name, Overlay, OverlayPatch,
    OverlayView, Uplink, UplinkPatch, UplinkView, Vnic, VnicPatch, VnicView, Zone, ZonePatch,
    ZoneView,
};

/// A kind of object that the daemon holds.
pub trait Resource: Serialize {
    /// What describes one with its live state.
    type View: DeserializeOwned + Serialize;
    /// What changes one.
    type Patch: Serialize;
    /// Path of the collection.
    const PATH: &'static str;
    /// The word for one of them.
    const KIND: &'static str;
    /// The object's name.
    fn name(&self) -> &Name;
}

impl Resource for Zone {
    type View = ZoneView;
    type Patch = ZonePatch;
    const PATH: &'static str = "/v1/zones";
    const KIND: &'static str = "zone";
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Resource for Bridge {
    type View = BridgeView;
    type Patch = BridgePatch;
    const PATH: &'static str = "/v1/bridges";
    const KIND: &'static str = "bridge";
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Resource for Uplink {
    type View = UplinkView;
    type Patch = UplinkPatch;
    const PATH: &'static str = "/v1/uplinks";
    const KIND: &'static str = "uplink";
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Resource for Flow {
    type View = FlowView;
    type Patch = FlowPatch;
    const PATH: &'static str = "/v1/flows";
    const KIND: &'static str = "flow";
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Resource for Overlay {
    type View = OverlayView;
    type Patch = OverlayPatch;
    const PATH: &'static str = "/v1/overlays";
    const KIND: &'static str = "overlay";
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Resource for Vnic {
    type View = VnicView;
    type Patch = VnicPatch;
    const PATH: &'static str = "/v1/vnics";
    const KIND: &'static str = "vnic";
    fn name(&self) -> &Name {
        &self.name
    }
}
