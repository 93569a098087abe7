//! The control socket: HTTP/1.1 over a Unix socket, with limits on everything.
//!
//! # Model
//! One task accepts; each connection is a task of its own, and knows its [`Peer`] from the moment it was
//! accepted. Bodies are read whole, up to a limit and within a time, before anything looks at them.
//!
//! No descriptor gets into the daemon through this socket: the last close of a file may take as long as its file system or
//! `SO_LINGER` says, and the kernel does it in the call that reads or closes the socket. From Linux 6.16 the kernel refuses to
//! send one ([`unix::set_accepts_fds`]). Where it does not, each connection has a thread of its own, which may hang, and
//! counts until it ends.
//!
//! # Limits
//! Connections in all and per user (a further one is answered 503 and closed); the head of a request
//! ([`HEAD_BYTES_MAX`]); its body (`body-bytes-max`); the time in which each must arrive
//! (`read-timeout-ms`). Operators have [`OPERATOR_RESERVE`] connections that others cannot take.
//!
//! # Failure modes
//! Every answer that is not a success has an [`ErrorBody`]. A peer that reads its answer slowly costs its
//! own connection, nothing else: the engine has long finished.
//!
//! # Not done
//! Before Linux 6.16 a connection above the limits is closed by one thread for all. While a descriptor keeps that thread
//! waiting, further ones stay open, and use up the daemon's descriptors.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path as UrlPath, Query as UrlQuery, Request};
use axum::http::{StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use windlass_api::{ErrorBody, ErrorCode};
use windlass_sys::unix;

use crate::authority::Peer;
use crate::engine::EngineHandle;
use crate::options::Limits;

/// Largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Connections that only operators can have, of all.
pub const OPERATOR_RESERVE: usize = 8;

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
    let too_large = || {
        let message = format!("the body is larger than {} bytes", limits.body_bytes_max);
        ErrorBody::plain(ErrorCode::TooLarge, message)
    };
    let body = request.into_body();
    if body.size_hint().lower() > limits.body_bytes_max as u64 {
        return Err(too_large());
    }
    let read = Limited::new(body, limits.body_bytes_max).collect();
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
            Err(error) => {
                let message = format!("path: {}", error.body_text());
                Err(ErrorBody::plain(ErrorCode::Malformed, message).into())
            }
        }
    }
}

/// The path of the control socket, held: another daemon cannot take it while this lives.
#[derive(Debug)]
pub struct SocketLock {
    path: PathBuf,
    /// The socket, if the service manager made it; then its path is the manager's, too.
    given: Option<net::UnixListener>,
    _lock: File,
}

/// How long a lock is tried for: a process that is just being started holds a copy of every descriptor of its parent's until
/// it executes its program, so the lock of a daemon that has ended may live on for a moment.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

/// Locks a file, and tries again for [`LOCK_PATIENCE`] if somebody has it.
fn patiently(lock: &File) -> Result<(), TryLockError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5))
            }
            other => return other,
        }
    }
}

impl SocketLock {
    /// Locks the file `PATH.lock` beside the socket.
    ///
    /// # Errors
    /// If another daemon has it, or the directory does not exist.
    pub fn take(path: &Path) -> Result<Self> {
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&lock_path)
            .with_context(|| {
                let lock = lock_path.display();
                format!("cannot make {lock}, which locks the control socket: see that its directory is there and yours")
            })?;
        match patiently(&lock) {
            Ok(()) => Ok(Self {
                path: path.into(),
                given: activated(path)?,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is served by another windlassd: give this one its own --socket",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => {
                bail!("cannot lock {}: {error}", lock_path.display())
            }
        }
    }

    /// Listens on the socket, that of the service manager if it gave one; one that a dead daemon left is replaced. Root's can be connected to by
    /// anyone, another user's only by himself and root. Peers cannot send descriptors to it, from Linux 6.16.
    ///
    /// # Errors
    /// If something that is no socket lies there, or the system refuses.
    pub fn listen(&self) -> Result<UnixListener> {
        let path = &self.path;
        if let Some(given) = &self.given {
            refuse_fds(given);
            return Ok(UnixListener::from_std(given.try_clone()?)?);
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => bail!("{} is there and is not a socket", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => bail!("{}: {error}", path.display()),
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        refuse_fds(&listener);
        let mode = if rustix::process::geteuid().is_root() {
            0o666
        } else {
            0o600
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(listener)
    }
}

fn refuse_fds(listener: &impl AsFd) {
    if let Err(errno) = unix::set_accepts_fds(listener, false) {
        tracing::debug!("descriptors are read and closed by threads: {errno}");
    }
}

/// The listening socket that the service manager handed over (`LISTEN_FDS`, sd_listen_fds(3)), if it did.
fn activated(path: &Path) -> Result<Option<net::UnixListener>> {
    let mut fds = sd_notify::listen_fds().context("LISTEN_FDS")?;
    let Some(fd) = fds.next() else {
        return Ok(None);
    };
    if fds.len() > 0 {
        bail!("the service manager gave several sockets: windlassd takes one");
    }
    let socket = windlass_sys::unix::inherited(fd).context("the socket of the service manager")?;
    let listener = net::UnixListener::from(socket);
    let address = listener
        .local_addr()
        .context("the socket of the service manager")?;
    if address.as_pathname() != Some(path) {
        bail!(
            "the service manager listens on {address:?}, not on {}: let --socket name the same",
            path.display()
        );
    }
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if self.given.is_some() {
            return;
        }
        let is_socket =
            fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("{} stays: {error}", self.path.display());
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_uid: HashMap<u32, usize>,
}

/// A connection that counts as long as it lives.
#[derive(Debug)]
struct Admission {
    counts: Arc<Mutex<Counts>>,
    uid: u32,
}

impl Admission {
    fn of(counts: &Arc<Mutex<Counts>>, peer: &Peer, limits: &Limits) -> Option<Self> {
        let mut now = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let reserve = if peer.operator { 0 } else { OPERATOR_RESERVE };
        let all_max = limits.connections_max.saturating_sub(reserve).max(1);
        let own = now.by_uid.get(&peer.uid).copied().unwrap_or(0);
        if now.all >= all_max || own >= limits.connections_per_uid_max {
            return None;
        }
        now.all += 1;
        now.by_uid.insert(peer.uid, own + 1);
        Some(Self {
            counts: Arc::clone(counts),
            uid: peer.uid,
        })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut now = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        now.all -= 1;
        if let Some(own) = now.by_uid.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                now.by_uid.remove(&self.uid);
            }
        }
    }
}

/// Accepts connections for ever, as many as `limits` says at the moment. To be ended by dropping the future.
pub async fn serve(listener: UnixListener, router: Router, limits: watch::Receiver<Limits>) {
    let counts = Arc::new(Mutex::new(Counts::default()));
    let (turned_away, to_close) = mpsc::channel::<UnixStream>();
    aside(move || to_close.into_iter().for_each(drop));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptors left, most likely: others must be closed first.
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let holds_fds = unix::accepts_fds(&stream);
        let limits = *limits.borrow();
        let peer = stream.peer_cred().ok();
        let peer = peer.map(|peer| Peer::of(peer.uid(), peer.gid(), peer.pid()));
        let admitted = peer.and_then(|peer| Some((peer, Admission::of(&counts, &peer, &limits)?)));
        let Some((peer, admission)) = admitted else {
            turn_away(&stream);
            if holds_fds {
                // Closed here if there is no thread.
                let _ = turned_away.send(stream);
            }
            continue;
        };
        let service = router.clone().layer(Extension(peer));
        let read_timeout = limits.read_timeout;
        if holds_fds {
            aside(move || {
                let done = serve_alone(stream, service, read_timeout);
                if let Err(error) = done {
                    tracing::warn!("cannot serve a connection: {error}");
                }
                drop(admission);
            });
        } else {
            tokio::spawn(async move {
                connection(stream, service, read_timeout).await;
                drop(admission);
            });
        }
    }
}

/// Does what may hang on a thread of its own; without room for a thread it is not done.
fn aside(work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name("windlass-aside".into());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!("cannot start a thread: {error}");
    }
}

/// Serves a connection on the calling thread.
fn serve_alone(stream: UnixStream, service: Router, read_timeout: Duration) -> io::Result<()> {
    let stream = stream.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        connection(UnixStream::from_std(stream)?, service, read_timeout).await;
        Ok(())
    })
}

async fn connection(stream: UnixStream, service: Router, read_timeout: Duration) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(read_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = connection.await {
        tracing::debug!("connection: {error}");
    }
}

fn turn_away(stream: &UnixStream) {
    let body = ErrorBody::plain(ErrorCode::Busy, "too many connections: try again later");
    let body = serde_json::to_string(&body).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // An empty socket buffer takes it; a peer that is gone does not want it.
    let _ = stream.try_write(text.as_bytes());
}

/// A response of JSON text that was made before.
pub fn json_text(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}
