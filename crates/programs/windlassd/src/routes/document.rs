//! The whole configuration: export and apply.

use axum::Extension;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_api::{Applied, Document, ErrorBody, ErrorCode};

use crate::authority::Peer;
use crate::engine::Engine;
use crate::http::{Answer, App, Failure, Json, Query, answer};

/// The query of `PUT /v1/document`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyQuery {
    /// Only say what would be changed.
    #[serde(default)]
    pub dry_run: bool,
}

/// `GET /v1/document`
pub async fn show(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Result<Response, Failure> {
    let call = move |engine: &mut Engine| {
        peer.must_operate("read the whole configuration")?;
        Ok((engine.revision(), engine.document().clone()))
    };
    let (revision, document): (u64, Document) = app.engine.call(&peer, call).await?;
    Ok((
        [(header::ETAG, format!("\"{revision}\""))],
        axum::Json(document),
    )
        .into_response())
}

fn expected(headers: &HeaderMap) -> Result<Option<u64>, ErrorBody> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let revision = value
        .to_str()
        .ok()
        .and_then(|text| text.trim_matches('"').parse().ok());
    match revision {
        Some(revision) => Ok(Some(revision)),
        None => {
            let message = "If-Match is the ETag of GET /v1/document: \"REVISION\"";
            Err(ErrorBody::plain(ErrorCode::Malformed, message))
        }
    }
}

/// `PUT /v1/document`
pub async fn replace(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<ApplyQuery>,
    headers: HeaderMap,
    request: Request,
) -> Answer<Applied> {
    // Before the body is read: it is large.
    peer.must_operate("apply a whole configuration")?;
    let expected = expected(&headers)?;
    let Json(next) = Json::<Document>::from_request(request, &app).await?;
    let edit = move |_: &Engine, document: &mut Document| {
        document.clone_from(&next);
        Ok(())
    };
    let applied = app.engine.change(&peer, expected, query.dry_run, edit);
    answer(applied.await)
}
