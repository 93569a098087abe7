//! Targets of overlays.

use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use tokio::sync::oneshot;
use windlass_api::{
    AddressClaim, AddressRelease, Applied, ClaimedAddresses, ErrorBody, ErrorCode, Flushed,
    HostView, MacAddr, TargetQuery, TargetView,
};

use crate::authority::Peer;
use crate::engine::Engine;
use crate::http::{Answer, App, Failure, Json, Named, Query, answer};

/// How long a registry is waited for that gives addresses. One that is slow by 5 s needs two turns.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(25);

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

/// `POST /v1/overlays/NAME/addresses`
pub async fn claim_addresses(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Json(claim): Json<AddressClaim>,
) -> Answer<ClaimedAddresses> {
    let (answer, answered) = oneshot::channel();
    // The peer may have given up; then nobody wants the answer.
    let answer = Box::new(move |claimed| drop(answer.send(claimed)));
    let call = app.engine.call(&peer, move |engine| {
        engine.claim_addresses(&peer, &name, claim, answer)
    });
    call.await?;
    let refused = |code, why| Failure(ErrorBody::plain(code, why));
    match tokio::time::timeout(CLAIM_TIME_MAX, answered).await {
        Ok(Ok(Ok((mac, ips)))) => {
            let mac = MacAddr(mac.0);
            Ok(axum::Json(ClaimedAddresses { mac, ips }))
        }
        Ok(Ok(Err(why))) => Err(refused(ErrorCode::Host, why)),
        Ok(Err(_)) => Err(refused(ErrorCode::Host, "the overlay has ended".into())),
        Err(_) => {
            let seconds = CLAIM_TIME_MAX.as_secs();
            let why = format!("the registry does not answer in {seconds} s");
            Err(refused(ErrorCode::Timeout, why))
        }
    }
}

/// `POST /v1/overlays/NAME/addresses/release`
pub async fn release_addresses(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(name): Named,
    Json(release): Json<AddressRelease>,
) -> Answer<Applied> {
    let call = app.engine.call(&peer, move |engine| {
        engine.release_addresses(&peer, &name, release)?;
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
