//! Targets of overlays.

use axum::Extension;
use axum::extract::State;
use windlass_api::{Flushed, TargetQuery, TargetView};

use crate::authority::Peer;
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
