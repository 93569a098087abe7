//! The resources of the API: each handler turns a request into one call of the engine.

mod document;
mod fdb;
mod live;
mod objects;
pub mod openapi;
mod overlays;
mod regions;
mod vnds;

use axum::Router;
use axum::routing::{delete, get, post};
use windlass_api::{ErrorBody, ErrorCode};

use crate::http::{App, Failure};
use crate::shares::counted;
use objects::{Bridges, Flows, Kind, Overlays, Uplinks, Vnics, Zones};

fn objects<K: Kind>(router: Router<App>) -> Router<App> {
    let collection = format!("/v1/{}", K::PATH);
    let one = format!("/v1/{}/{{name}}", K::PATH);
    router
        .route(
            &collection,
            get(objects::list::<K>).post(objects::create::<K>),
        )
        .route(
            &one,
            get(objects::show::<K>)
                .put(objects::replace::<K>)
                .patch(objects::patch::<K>)
                .delete(objects::delete::<K>),
        )
}

async fn no_resource() -> Failure {
    ErrorBody::plain(
        ErrorCode::NotFound,
        "there is no such resource: see /v1/openapi.json",
    )
    .into()
}

async fn no_method() -> Failure {
    ErrorBody::plain(
        ErrorCode::Method,
        "the resource has no such method: see /v1/openapi.json",
    )
    .into()
}

/// All resources.
pub fn router(app: App) -> Router {
    let router = objects::<Zones>(Router::new());
    let router = objects::<Bridges>(router);
    let router = objects::<Uplinks>(router);
    let router = objects::<Overlays>(router);
    let router = objects::<Vnics>(router);
    objects::<Flows>(router)
        .route("/v1/overlays/{name}/targets", get(overlays::targets))
        .route("/v1/overlays/{name}/hosts", get(overlays::hosts))
        .route(
            "/v1/overlays/{name}/hosts/{host}",
            delete(overlays::forget_host),
        )
        .route(
            "/v1/overlays/{name}/addresses",
            post(overlays::claim_addresses),
        )
        .route(
            "/v1/overlays/{name}/addresses/release",
            post(overlays::release_addresses),
        )
        .route("/v1/overlays/{name}/resync", post(overlays::resync))
        .route("/v1/overlays/{name}/targets/flush", post(overlays::flush))
        .route("/v1/vnds", get(vnds::list).post(vnds::create))
        .route(
            "/v1/vnds/{zone}/{name}",
            get(vnds::show).patch(vnds::patch).delete(vnds::delete),
        )
        .route(
            "/v1/bridges/{name}/fdb",
            get(fdb::show).post(fdb::add).delete(fdb::delete),
        )
        .route("/v1/bridges/{name}/fdb/flush", post(fdb::flush))
        .route("/v1/bridges/{name}/mcheck", post(live::check_migration))
        .route("/v1/vnics/{name}/rules", get(live::rules))
        .route("/v1/document", get(document::show).put(document::replace))
        .route("/v1/stats", get(live::stats))
        .route("/v1/workers", get(live::workers))
        .route("/v1/workers/move", post(live::move_to_worker))
        .route("/v1/regions", get(regions::show))
        .route("/v1/daemon", get(live::daemon))
        .route("/v1/drops", get(live::drops))
        .route("/v1/metrics", get(live::metrics))
        .route("/v1/monitor", get(live::monitor))
        .route("/v1/openapi.json", get(openapi::show))
        .fallback(no_resource)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), counted))
        .with_state(app)
}
