//! `windlass metrics`: the daemon's counters as text for Prometheus, once or for a scraper.
//!
//! # Model
//! The daemon opens no TCP port. A scraper asks this command, which asks the daemon with the rights of the user who
//! started it: a tenant's scraper sees the tenant's zone.
//!
//! # Limits
//! [`CONNECTIONS_MAX`] connections at once, a further one is closed; the head of a request must arrive in [`HEAD_TIME_MAX`]
//! and may have [`HEAD_BYTES_MAX`] bytes. Only `GET /metrics` is answered, and only where `Host` names the address or
//! `localhost`, so that no web page can have a browser read it under another name.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::failure::Failure;
use crate::options::{Global, MetricsArgs};
use crate::sent::Sent;
use crate::{Session, connect, sockets};

/// Connections that are served at once.
const CONNECTIONS_MAX: usize = 16;
/// Time in which the head of a request must arrive; an idle connection ends after it.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a token, at least and at most.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

const WHAT: &str = "serve metrics";

/// `windlass metrics`
pub(crate) fn run(session: &mut Session<'_>, args: &MetricsArgs) -> Result<(), Failure> {
    if session.options.json || session.options.fields.is_some() {
        let todo = "\"windlass stat -j\" writes the counters as JSON";
        return Err(Failure::usage("metrics are text of one form", todo));
    }
    let Some(address) = args.listen else {
        let what = "show metrics";
        let text = session.client(what)?.metrics();
        let text = text.map_err(|error| Failure::of(what, error))?;
        return Ok(session.out.write_all(text.as_bytes())?);
    };
    let token = args.token_file.as_deref().map(token).transpose()?;
    if token.is_none() && !address.ip().is_loopback() {
        let why = format!("{address} is not a loopback address, and everyone could read there");
        return Err(Failure::usage(why, "add --token-file"));
    }
    // A wrong --socket is told now and not to the first scraper.
    session.client(WHAT)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(address, token, session))
}

/// The token in the file, without white space around it.
fn token(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        let why = format!("cannot read {}: {error}", path.display());
        Failure::usage(why, "name a file with a token in it")
    })?;
    let token = text.trim();
    let is_good = TOKEN_BYTES.contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
    if is_good {
        Ok(token.into())
    } else {
        let why = format!("{} has no token", path.display());
        Err(Failure::usage(
            why,
            "a token is one word of 16 to 4096 ASCII characters",
        ))
    }
}

/// What answers: the address, who may ask, and where the counters are.
struct Server {
    address: SocketAddr,
    token: Option<String>,
    options: Global,
    /// What accelerated sockets have sent since it listens.
    sent: Mutex<Sent>,
}

async fn serve(
    address: SocketAddr,
    token: Option<String>,
    session: &mut Session<'_>,
) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        let why = format!("cannot listen on {address}: {error}");
        Failure::usage(
            why,
            "choose an address of this host and a port that is free",
        )
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr()?;
    writeln!(session.out, "http://{address}/metrics")?;
    session.out.flush()?;
    let server = Arc::new(Server {
        address,
        token,
        options: session.options.clone(),
        sent: Mutex::default(),
    });
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // No descriptors left, most likely: others must be closed first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            continue;
        };
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            connection(stream, server).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(|request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that goes away has its reasons, and nobody here wants to know them.
    let _ = connection.await;
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

impl Server {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let value = |name| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if !self.is_called(value(header::HOST)) {
            return answer(StatusCode::MISDIRECTED_REQUEST, "Host is another address\n");
        }
        if !self.admits(value(header::AUTHORIZATION)) {
            return answer(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
        }
        if request.uri().path() != "/metrics" {
            return answer(StatusCode::NOT_FOUND, "see /metrics\n");
        }
        if request.method() != Method::GET {
            return answer(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        }
        let asked = tokio::task::spawn_blocking(move || {
            let text = connect(&self.options)?.metrics()?;
            Ok::<_, windlass_client::Error>(text + &self.sent_now())
        });
        let asked = asked.await;
        match asked {
            Ok(Ok(text)) => answer(StatusCode::OK, text),
            Ok(Err(error)) => answer(StatusCode::BAD_GATEWAY, format!("{error}\n")),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, "the call has failed\n"),
        }
    }

    /// Lines about accelerated sockets, once there were any.
    fn sent_now(&self) -> String {
        let Ok(Some(sockets)) = sockets::now() else {
            return String::new();
        };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.note(&sockets);
        sent.text()
    }

    /// Whether the value of `Host` names this server. On an address that stands for all of the host's, any name does: a
    /// token is needed there.
    fn is_called(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return false };
        let local = format!("localhost:{}", self.address.port());
        host == self.address.to_string() || host == local || self.token.is_some()
    }

    /// Whether the value of `Authorization` has the token. The time this takes does not depend on where it differs.
    fn admits(&self, authorization: Option<&str>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = authorization
            .and_then(|value| value.strip_prefix("Bearer "))
            .unwrap_or_default();
        let pairs = given.bytes().zip(token.bytes());
        given.len() == token.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}
