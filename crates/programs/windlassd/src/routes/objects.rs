//! Zones, bridges, uplinks, overlays, VNICs and flows: one set of handlers for all kinds of objects.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::{
    Applied, Bridge, BridgePatch, BridgeView, Document, ErrorBody, ErrorCode, Flow, FlowPatch,
    FlowView, Name, Overlay, OverlayPatch, OverlayView, Uplink, UplinkPatch, UplinkView, Vnic,
    VnicPatch, VnicView, Zone, ZonePatch, ZoneView,
};

use crate::authority::Peer;
use crate::engine::{Engine, no_such};
use crate::http::{Answer, App, Failure, Json, Named, answer};

/// What differs between the kinds of objects.
pub trait Kind: 'static {
    /// Its configuration.
    type Config: DeserializeOwned + Clone + Send + 'static;
    /// The body of a PATCH.
    type Patch: DeserializeOwned + Clone + Send + 'static;
    /// What is shown of it.
    type View: Serialize + Send + 'static;
    /// The word for one.
    const WORD: &'static str;
    /// The word in the path.
    const PATH: &'static str;

    /// Its list in the document.
    fn list(document: &Document) -> &Vec<Self::Config>;
    /// Its list in the document.
    fn list_mut(document: &mut Document) -> &mut Vec<Self::Config>;
    /// Its name.
    fn name(config: &Self::Config) -> &Name;
    /// Changes it.
    fn patch(patch: Self::Patch, config: &mut Self::Config);
    /// Those that the peer may see, as it sees them.
    fn views(engine: &Engine, peer: &Peer, all: &[Self::Config]) -> Vec<Self::View>;
    /// Takes away what goes with it, before it goes.
    ///
    /// # Errors
    /// [`ErrorCode::InUse`] if something needs it.
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody>;
}

fn in_use<'a>(what: &str, users: impl Iterator<Item = &'a Name>) -> Result<(), ErrorBody> {
    let users: Vec<_> = users.take(4).map(|name| format!("\"{name}\"")).collect();
    match users.as_slice() {
        [] => Ok(()),
        [first @ .., last] => {
            let list = if first.is_empty() {
                last.clone()
            } else {
                format!("{} and {last}", first.join(", "))
            };
            let more = if users.len() == 4 {
                " among others"
            } else {
                ""
            };
            let message = format!("{what} is used by {list}{more}: delete or move those first");
            Err(ErrorBody::plain(ErrorCode::InUse, message))
        }
    }
}

/// The zones.
pub enum Zones {}

impl Kind for Zones {
    type Config = Zone;
    type Patch = ZonePatch;
    type View = ZoneView;
    const WORD: &'static str = "zone";
    const PATH: &'static str = "zones";

    fn list(document: &Document) -> &Vec<Zone> {
        &document.zones
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Zone> {
        &mut document.zones
    }
    fn name(config: &Zone) -> &Name {
        &config.name
    }
    fn patch(patch: ZonePatch, config: &mut Zone) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Zone]) -> Vec<ZoneView> {
        let views = all.iter().filter_map(|zone| engine.zone_view(peer, zone));
        views.collect()
    }
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody> {
        let within = document
            .vnics
            .iter()
            .filter(|vnic| vnic.zone.as_str() == name);
        in_use(&format!("zone \"{name}\""), within.map(|vnic| &vnic.name))
    }
}

/// The bridges.
pub enum Bridges {}

impl Kind for Bridges {
    type Config = Bridge;
    type Patch = BridgePatch;
    type View = BridgeView;
    const WORD: &'static str = "bridge";
    const PATH: &'static str = "bridges";

    fn list(document: &Document) -> &Vec<Bridge> {
        &document.bridges
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Bridge> {
        &mut document.bridges
    }
    fn name(config: &Bridge) -> &Name {
        &config.name
    }
    fn patch(patch: BridgePatch, config: &mut Bridge) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Bridge]) -> Vec<BridgeView> {
        let views = all.iter().filter_map(|one| engine.bridge_view(peer, one));
        views.collect()
    }
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody> {
        let members = document
            .members()
            .filter(|member| *member.bridge() == *name);
        in_use(
            &format!("bridge \"{name}\""),
            members.map(|member| member.name()),
        )?;
        document.release_bridge(name);
        Ok(())
    }
}

/// The uplinks.
pub enum Uplinks {}

impl Kind for Uplinks {
    type Config = Uplink;
    type Patch = UplinkPatch;
    type View = UplinkView;
    const WORD: &'static str = "uplink";
    const PATH: &'static str = "uplinks";

    fn list(document: &Document) -> &Vec<Uplink> {
        &document.uplinks
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Uplink> {
        &mut document.uplinks
    }
    fn name(config: &Uplink) -> &Name {
        &config.name
    }
    fn patch(patch: UplinkPatch, config: &mut Uplink) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Uplink]) -> Vec<UplinkView> {
        engine.uplink_views(peer, all)
    }
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody> {
        document.release_member(name);
        Ok(())
    }
}

/// The overlays.
pub enum Overlays {}

impl Kind for Overlays {
    type Config = Overlay;
    type Patch = OverlayPatch;
    type View = OverlayView;
    const WORD: &'static str = "overlay";
    const PATH: &'static str = "overlays";

    fn list(document: &Document) -> &Vec<Overlay> {
        &document.overlays
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Overlay> {
        &mut document.overlays
    }
    fn name(config: &Overlay) -> &Name {
        &config.name
    }
    fn patch(patch: OverlayPatch, config: &mut Overlay) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Overlay]) -> Vec<OverlayView> {
        engine.overlay_views(peer, all)
    }
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody> {
        let own = document
            .overlay(name)
            .is_some_and(|overlay| overlay.bridge.is_none());
        if own {
            let others = document.members().filter(|member| *member.name() != *name);
            let others = others.filter(|member| *member.bridge() == *name);
            in_use(
                &format!("overlay \"{name}\""),
                others.map(|member| member.name()),
            )?;
            document.release_bridge(name);
        }
        document.release_member(name);
        Ok(())
    }
}

/// The VNICs.
pub enum Vnics {}

impl Kind for Vnics {
    type Config = Vnic;
    type Patch = VnicPatch;
    type View = VnicView;
    const WORD: &'static str = "vnic";
    const PATH: &'static str = "vnics";

    fn list(document: &Document) -> &Vec<Vnic> {
        &document.vnics
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Vnic> {
        &mut document.vnics
    }
    fn name(config: &Vnic) -> &Name {
        &config.name
    }
    fn patch(patch: VnicPatch, config: &mut Vnic) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Vnic]) -> Vec<VnicView> {
        engine.vnic_views(peer, all)
    }
    fn release(document: &mut Document, name: &str) -> Result<(), ErrorBody> {
        document.release_member(name);
        Ok(())
    }
}

/// The flows.
pub enum Flows {}

impl Kind for Flows {
    type Config = Flow;
    type Patch = FlowPatch;
    type View = FlowView;
    const WORD: &'static str = "flow";
    const PATH: &'static str = "flows";

    fn list(document: &Document) -> &Vec<Flow> {
        &document.flows
    }
    fn list_mut(document: &mut Document) -> &mut Vec<Flow> {
        &mut document.flows
    }
    fn name(config: &Flow) -> &Name {
        &config.name
    }
    fn patch(patch: FlowPatch, config: &mut Flow) {
        patch.apply(config);
    }
    fn views(engine: &Engine, peer: &Peer, all: &[Flow]) -> Vec<FlowView> {
        engine.flow_views(peer, all)
    }
    fn release(_: &mut Document, _: &str) -> Result<(), ErrorBody> {
        Ok(())
    }
}

fn find<'a, K: Kind>(document: &'a Document, name: &str) -> Option<&'a K::Config> {
    K::list(document)
        .iter()
        .find(|config| *K::name(config) == *name)
}

/// The object, if it is there and the peer may know of it.
fn seen<K: Kind>(engine: &Engine, peer: &Peer, name: &str) -> Result<K::View, ErrorBody> {
    find::<K>(engine.document(), name)
        .and_then(|config| K::views(engine, peer, std::slice::from_ref(config)).pop())
        .ok_or_else(|| no_such(K::WORD, name))
}

/// `GET /v1/KINDs`
pub async fn list<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<Vec<K::View>> {
    let call = move |engine: &mut Engine| {
        let all = K::list(engine.document());
        Ok(K::views(engine, &peer, all))
    };
    answer(app.engine.call(&peer, call).await)
}

/// `GET /v1/KINDs/NAME`
pub async fn show<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
) -> Answer<K::View> {
    answer(
        app.engine
            .call(&peer, move |engine| seen::<K>(engine, &peer, &name))
            .await,
    )
}

/// `POST /v1/KINDs`
pub async fn create<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Json(config): Json<K::Config>,
) -> Result<(StatusCode, axum::Json<Applied>), Failure> {
    let edit = move |_: &Engine, document: &mut Document| {
        let name = K::name(&config).as_str();
        if find::<K>(document, name).is_some() {
            let message = format!("{} \"{name}\" exists already", K::WORD);
            return Err(ErrorBody::plain(ErrorCode::Exists, message));
        }
        K::list_mut(document).push(config.clone());
        Ok(())
    };
    let applied = app.engine.change(&peer, None, false, edit).await?;
    Ok((StatusCode::CREATED, axum::Json(applied)))
}

/// `PUT /v1/KINDs/NAME`: makes it, or makes it so.
pub async fn replace<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Json(config): Json<K::Config>,
) -> Answer<Applied> {
    let edit = move |engine: &Engine, document: &mut Document| {
        if *K::name(&config) != *name {
            let message = format!(
                "the name in the body, \"{}\", is not \"{name}\"",
                K::name(&config)
            );
            return Err(
                ErrorBody::plain(ErrorCode::Invalid, message).at("name", "is not the path's")
            );
        }
        if find::<K>(engine.document(), &name).is_some() {
            seen::<K>(engine, &peer, &name)?;
        }
        let list = K::list_mut(document);
        list.retain(|other| *K::name(other) != *name);
        list.push(config.clone());
        Ok(())
    };
    answer(app.engine.change(&peer, None, false, edit).await)
}

/// `PATCH /v1/KINDs/NAME`
pub async fn patch<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Json(patch): Json<K::Patch>,
) -> Answer<Applied> {
    let edit = move |engine: &Engine, document: &mut Document| {
        seen::<K>(engine, &peer, &name)?;
        let mut list = K::list_mut(document).iter_mut();
        if let Some(config) = list.find(|config| *K::name(config) == *name) {
            K::patch(patch.clone(), config);
        }
        Ok(())
    };
    answer(app.engine.change(&peer, None, false, edit).await)
}

/// `DELETE /v1/KINDs/NAME`
pub async fn delete<K: Kind>(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
) -> Answer<Applied> {
    let edit = move |engine: &Engine, document: &mut Document| {
        seen::<K>(engine, &peer, &name)?;
        // A tenant is not told whose VNICs use it: authority refuses the change then.
        if let Err(error) = K::release(document, &name)
            && peer.operator
        {
            return Err(error);
        }
        K::list_mut(document).retain(|config| *K::name(config) != *name);
        Ok(())
    };
    answer(app.engine.change(&peer, None, false, edit).await)
}
