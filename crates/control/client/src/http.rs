//! One HTTP exchange over the Unix socket.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use windlass_api::ErrorBody;

use crate::error::Error;
use crate::json;

/// Bytes of an answer at most: a forwarding table of a million entries is some 120 MB.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;

/// What is asked.
#[derive(Debug)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    /// Goes into `If-Match`.
    pub(crate) revision: Option<u64>,
}

impl Request {
    pub(crate) fn bare(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: Vec::new(),
            revision: None,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::bare("GET", path)
    }

    pub(crate) fn with<B: Serialize + ?Sized>(
        method: &'static str,
        path: impl Into<String>,
        body: &B,
    ) -> Result<Self, Error> {
        let mut request = Self::bare(method, path);
        request.body = json(body, &request.to_string())?;
        Ok(request)
    }

    fn http(&self) -> Result<hyper::Request<Full<Bytes>>, Error> {
        let mut builder = hyper::Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, "application/json");
        if !self.body.is_empty() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(revision) = self.revision {
            builder = builder.header(header::IF_MATCH, format!("\"{revision}\""));
        }
        builder
            .body(Full::new(Bytes::from(self.body.clone())))
            .map_err(|error| not_understood(self, error.to_string()))
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// The query string of a struct of optional words and numbers; all that our names and addresses are made
/// of may stand in one as it is (RFC 3986 section 3.4).
pub(crate) fn query<Q: Serialize>(query: &Q) -> Result<String, Error> {
    let value = serde_json::to_value(query).map_err(|error| Error::Answer {
        request: "query".into(),
        reason: error.to_string(),
    })?;
    let mut pairs: Vec<_> = value.as_object().into_iter().flatten().collect();
    pairs.sort_by_key(|(key, _)| *key);
    let mut text = String::new();
    for (key, value) in pairs {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(&format!("{key}={value}"));
    }
    Ok(text)
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    body: Bytes,
    /// From `ETag`.
    pub(crate) revision: Option<u64>,
}

impl Answer {
    pub(crate) fn read<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        serde_json::from_slice(self.success(request)?)
            .map_err(|error| not_understood(request, error.to_string()))
    }

    pub(crate) fn text(&self, request: &Request) -> Result<String, Error> {
        String::from_utf8(self.success(request)?.into())
            .map_err(|error| not_understood(request, error.to_string()))
    }

    fn success(&self, request: &Request) -> Result<&[u8], Error> {
        if self.status.is_success() {
            Ok(&self.body)
        } else {
            Err(refusal(request, self.status, &self.body))
        }
    }
}

fn not_understood(request: &Request, reason: String) -> Error {
    Error::Answer {
        request: request.to_string(),
        reason,
    }
}

fn refusal(request: &Request, status: StatusCode, body: &[u8]) -> Error {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => Error::Refused(body),
        Err(_) => not_understood(request, format!("status {status} without an error in JSON")),
    }
}

/// Sends the request, and gives the answer's head with its body still to come.
async fn send(socket: &Path, request: &Request) -> Result<Response<Incoming>, Error> {
    let unreachable = |source| Error::Unreachable {
        path: socket.to_owned(),
        source,
    };
    let broken = |error: hyper::Error| Error::Broken(error.to_string());
    let stream = UnixStream::connect(socket).await.map_err(unreachable)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    tokio::spawn(connection);
    sender.send_request(request.http()?).await.map_err(broken)
}

async fn in_time<T>(
    timeout: Option<Duration>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match timeout {
        None => work.await,
        Some(limit) => tokio::time::timeout(limit, work)
            .await
            .unwrap_or(Err(Error::Timeout(limit))),
    }
}

async fn collect(body: Incoming) -> Result<Bytes, Error> {
    match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(Error::Broken(error.to_string())),
    }
}

/// A whole exchange.
pub(crate) async fn exchange(
    socket: &Path,
    timeout: Option<Duration>,
    request: &Request,
) -> Result<Answer, Error> {
    in_time(timeout, async {
        let response = send(socket, request).await?;
        let (head, body) = response.into_parts();
        let revision = head
            .headers
            .get(header::ETAG)
            .and_then(|tag| tag.to_str().ok())
            .and_then(|tag| tag.trim_start_matches("W/").trim_matches('"').parse().ok());
        Ok(Answer {
            status: head.status,
            body: collect(body).await?,
            revision,
        })
    })
    .await
}

/// The body of an answer that does not end.
pub(crate) async fn open(
    socket: &Path,
    timeout: Option<Duration>,
    request: &Request,
) -> Result<Incoming, Error> {
    in_time(timeout, async {
        let response = send(socket, request).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            Ok(body)
        } else {
            Err(refusal(request, head.status, &collect(body).await?))
        }
    })
    .await
}
