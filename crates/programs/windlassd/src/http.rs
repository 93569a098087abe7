//! The control socket: HTTP/1.1 over a Unix socket, with limits on everything.
//!
//! # Model
//! One task accepts; each connection is a task of its own ([`Server`]), and knows its [`Peer`] from the moment it was
//! accepted. Bodies are read whole, up to a limit and within a time, before anything looks at them.
//!
//! No descriptor gets into the daemon through this socket: the last close of a file may take as long as its file system or
//! `SO_LINGER` says, and the kernel does it in the call that reads or closes the socket. From Linux 6.16 the kernel refuses to
//! send one ([`set_accepts_fds`](windlass_sys::unix::set_accepts_fds)). Where it does not, each connection has a thread of its own, which may hang, and
//! counts until it ends.
//!
//! # Limits
//! Connections in all and per user; the head of a request ([`HEAD_BYTES_MAX`]); its body (`body-bytes-max`, and
//! [`TENANT_BODY_BYTES_MAX`] for tenants); the time in which each must arrive, and in which the peer must take something of
//! an answer (`read-timeout-ms`).
//!
//! # Failure modes
//! Every answer that is not a success has an [`ErrorBody`]. A peer that reads its answer slowly costs its
//! own connection, nothing else: the engine has long finished.
//!
//! # Not done
//! Before Linux 6.16 a connection above the limits is closed by one thread for all. While a descriptor keeps that thread
//! waiting, further ones stay open, and use up the daemon's descriptors.

mod connections;
mod socket;

pub use connections::{OPERATOR_CONNECTIONS_MAX, Server};
pub use socket::SocketLock;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path as UrlPath, Query as UrlQuery, Request};
use axum::http::{StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use windlass_api::{ErrorBody, ErrorCode};

use crate::authority::Peer;
use crate::engine::EngineHandle;
use crate::options::Limits;

/// Largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Largest body of a request by somebody who is no operator, in bytes: more than any object takes.
pub const TENANT_BODY_BYTES_MAX: usize = 64 * 1024;

/// What every handler has.
#[derive(Clone)]
pub struct App {
    /// The owner of the document.
    pub engine: EngineHandle,
    /// What is allowed at the moment.
    pub limits: watch::Receiver<Limits>,
}

/// An error on its way to the peer.
#[derive(Debug)]
pub struct Failure(pub ErrorBody);

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self(body)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, axum::Json(self.0)).into_response()
    }
}

/// What a handler returns.
pub type Answer<T> = Result<axum::Json<T>, Failure>;

/// Wraps an answer.
///
/// # Errors
/// The one that it is given.
pub fn answer<T: Serialize>(result: Result<T, ErrorBody>) -> Answer<T> {
    result.map(axum::Json).map_err(Failure)
}

/// The body of a request, as JSON of a type; errors name the path of the key.
#[derive(Debug)]
pub struct Json<T>(pub T);

async fn read_body(request: Request, app: &App) -> Result<Bytes, ErrorBody> {
    let limits = *app.limits.borrow();
    let is_operator = (request.extensions().get::<Peer>()).is_some_and(|peer| peer.operator);
    let bytes_max = match is_operator {
        true => limits.body_bytes_max,
        false => limits.body_bytes_max.min(TENANT_BODY_BYTES_MAX),
    };
    let too_large = || {
        let message = format!("the body is larger than {bytes_max} bytes");
        ErrorBody::plain(ErrorCode::TooLarge, message)
    };
    let body = request.into_body();
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let read = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(limits.read_timeout, read).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ErrorBody::plain(
            ErrorCode::Malformed,
            format!("cannot read the body: {error}"),
        )),
        Err(_) => {
            let message = format!("the body did not arrive in {:?}", limits.read_timeout);
            Err(ErrorBody::plain(ErrorCode::Timeout, message))
        }
    }
}

/// Reads JSON and says where it is wrong.
///
/// # Errors
/// [`ErrorCode::Malformed`] with the path of the key.
pub fn parse_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ErrorBody> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let malformed = |path: String, message: String| {
        let text = if path == "." {
            message.clone()
        } else {
            format!("{path}: {message}")
        };
        ErrorBody::plain(ErrorCode::Malformed, text).at(path, message)
    };
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        malformed(path, error.into_inner().to_string())
    })?;
    json.end()
        .map_err(|error| malformed(".".into(), error.to_string()))?;
    Ok(value)
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let body = read_body(request, app).await?;
        Ok(Self(parse_json(&body)?))
    }
}

/// The query of a request, as a type.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let malformed = |error: axum::extract::rejection::QueryRejection| {
            ErrorBody::plain(
                ErrorCode::Malformed,
                format!("query: {}", error.body_text()),
            )
        };
        let UrlQuery(query) = UrlQuery::try_from_uri(&parts.uri).map_err(malformed)?;
        Ok(Self(query))
    }
}

/// The name in the path of a request.
#[derive(Debug)]
pub struct Named(pub String);

impl FromRequestParts<App> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        match UrlPath::<String>::from_request_parts(parts, app).await {
            Ok(UrlPath(name)) => Ok(Self(name)),
            Err(error) => Err(bad_path(&error.body_text())),
        }
    }
}

/// The zone and the name in the path of a request.
#[derive(Debug)]
pub struct NamedIn(pub String, pub String);

impl FromRequestParts<App> for NamedIn {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        match UrlPath::<(String, String)>::from_request_parts(parts, app).await {
            Ok(UrlPath((zone, name))) => Ok(Self(zone, name)),
            Err(error) => Err(bad_path(&error.body_text())),
        }
    }
}

fn bad_path(why: &str) -> Failure {
    ErrorBody::plain(ErrorCode::Malformed, format!("path: {why}")).into()
}

/// A response of JSON text that was made before.
pub fn json_text(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}
