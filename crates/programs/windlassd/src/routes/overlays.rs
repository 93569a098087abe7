//! Targets of overlays.

use axum::Extension;
use axum::extract::{Path, State};
use windlass_api::{Applied, Flushed, HostView, TargetQuery, TargetView};

use crate::authority::Peer;
use crate::engine::Engine;
use crate::http::{Answer, App, Json, Named, Query, answer};

/// `GET /v1/overlays/NAME/targets`
pub async fn targets(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Query(query): Query<TargetQuery>,
) -> Answer<Vec<TargetView>> {
    let call = app
        .engine
        .call(&peer, move |engine| engine.targets(&peer, &name, &query));
    answer(call.await)
}

/// `GET /v1/overlays/NAME/hosts`
pub async fn hosts(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
) -> Answer<Vec<HostView>> {
    let call = app
        .engine
        .call(&peer, move |engine| engine.hosts(&peer, &name));
    answer(call.await)
}

/// `DELETE /v1/overlays/NAME/hosts/HOST`
pub async fn forget_host(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Path((name, host)): Path<(String, String)>,
) -> Answer<Applied> {
    let call = app.engine.call(&peer, move |engine| {
        engine.forget_host(&peer, &name, &host)?;
        Ok(unchanged(engine))
    });
    answer(call.await)
}

/// `POST /v1/overlays/NAME/resync`
pub async fn resync(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
) -> Answer<Applied> {
    let call = app.engine.call(&peer, move |engine| {
        engine.resync(&peer, &name)?;
        Ok(unchanged(engine))
    });
    answer(call.await)
}

/// The document is as it was.
fn unchanged(engine: &Engine) -> Applied {
    Applied {
        revision: engine.revision(),
        ..Applied::default()
    }
}

/// `POST /v1/overlays/NAME/targets/flush`
pub async fn flush(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Json(query): Json<TargetQuery>,
) -> Answer<Flushed> {
    let call = app.engine.call(&peer, move |engine| {
        let entries = engine.flush_targets(&peer, &name, &query)?;
        Ok(Flushed { entries })
    });
    answer(call.await)
}
