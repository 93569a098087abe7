//! vnd devices, which have their names by zone.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use windlass_api::{Applied, VndCreate, VndPatch, VndView};

use crate::authority::Peer;
use crate::engine::Engine;
use crate::http::{Answer, App, Failure, Json, NamedIn, answer};

/// `GET /v1/vnds`
pub async fn list(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<Vec<VndView>> {
    let call = move |engine: &mut Engine| Ok(engine.vnd_views(&peer));
    answer(app.engine.call(&peer, call).await)
}

/// `GET /v1/vnds/ZONE/NAME`
pub async fn show(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    NamedIn(zone, name): NamedIn,
) -> Answer<VndView> {
    let call = move |engine: &mut Engine| engine.vnd_view(&peer, &zone, &name);
    answer(app.engine.call(&peer, call).await)
}

/// `POST /v1/vnds`
pub async fn create(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Json(asked): Json<VndCreate>,
) -> Result<(StatusCode, axum::Json<Applied>), Failure> {
    let call = move |engine: &mut Engine| {
        let vnd = asked.parsed().map_err(|error| error.body(&asked.label()))?;
        engine.change(&peer, None, false, move |document| {
            document.vnds.push(vnd);
            Ok(())
        })
    };
    let applied = app.engine.call(&peer, call).await?;
    Ok((StatusCode::CREATED, axum::Json(applied)))
}

/// `PATCH /v1/vnds/ZONE/NAME`
pub async fn patch(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    NamedIn(zone, name): NamedIn,
    Json(patch): Json<VndPatch>,
) -> Answer<Applied> {
    let call = move |engine: &mut Engine| {
        engine.seen_vnd(&peer, &zone, &name)?;
        engine.change(&peer, None, false, move |document| {
            let mut vnds = document.vnds.iter_mut();
            match vnds.find(|vnd| vnd.is(&zone, &name)) {
                Some(vnd) => patch
                    .apply(vnd)
                    .map_err(|error| error.body(&format!("{zone}/{name}"))),
                None => Ok(()),
            }
        })
    };
    answer(app.engine.call(&peer, call).await)
}

/// `DELETE /v1/vnds/ZONE/NAME`
pub async fn delete(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    NamedIn(zone, name): NamedIn,
) -> Answer<Applied> {
    let call = move |engine: &mut Engine| {
        engine.seen_vnd(&peer, &zone, &name)?;
        engine.change(&peer, None, false, move |document| {
            document.vnds.retain(|vnd| !vnd.is(&zone, &name));
            Ok(())
        })
    };
    answer(app.engine.call(&peer, call).await)
}
