//! Connections: how many there are, whose they are, and when one ends.
//!
//! # Model
//! Each connection is a task, and counts until it ends. It ends when the peer closes it, sends nothing for the
//! read timeout, or takes nothing of an answer or of events for as long. Operators have [`OPERATOR_CONNECTIONS_MAX`]
//! connections together, which count apart from those of others. A further connection of another user who has his number,
//! or of any of them when all are taken, is answered 503; but whoever has fewer connections than another user gets the
//! oldest one of the user with most. So nobody's number of connections keeps another user out.
//!
//! A connection that is refused is answered once its request arrives, and closed once the peer has closed it:
//! a client that writes before it reads then reads the answer, and no broken pipe. For that it has
//! [`REFUSAL_TIME_MAX`], and [`REFUSALS_MAX`] connections; further ones are answered and closed at once.
//!
//! # Limits
//! See [`Limits`], for tenants.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, Sleep};
use windlass_api::{ErrorBody, ErrorCode};
use windlass_sys::unix;

use super::HEAD_BYTES_MAX;
use crate::authority::Peer;
use crate::options::Limits;
use crate::shares::tell;

/// Connections of all operators at once.
pub const OPERATOR_CONNECTIONS_MAX: usize = 1024;
/// Refused connections that wait for their peer at once.
const REFUSALS_MAX: usize = 64;
/// How long a refused connection waits for its peer to ask, and then to read.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

/// The connections of one user, in the order in which they came. Without a handle one cannot be ended from here.
type Held = BTreeMap<u64, Option<AbortHandle>>;

#[derive(Debug, Default)]
struct Counts {
    last: u64,
    operators: usize,
    /// Of those who are no operators.
    tenants: usize,
    /// The same, by user.
    by_uid: HashMap<u32, Held>,
}

impl Counts {
    /// Ends the oldest connection of the user with most, if that is more than `own`; whether there was one.
    fn take_from_richest(&mut self, own: usize) -> bool {
        let others = self.by_uid.values_mut();
        let richer = others.filter(|held| held.len() > own + 1);
        let richest = richer.max_by_key(|held| held.len());
        let Some(handle) = richest.and_then(|held| held.values_mut().find_map(Option::take)) else {
            return false;
        };
        handle.abort();
        true
    }

    /// Counts one more of a user who is no operator; its number.
    fn admit(&mut self, uid: u32, limits: &Limits) -> Result<u64, ErrorBody> {
        let own = self.by_uid.get(&uid).map_or(0, Held::len);
        if own >= limits.connections_per_uid_max {
            let max = limits.connections_per_uid_max;
            return Err(turned_away(uid, ("connections-per-uid-max", max), || {
                format!("user {uid} has {own} of {max} connections")
            }));
        }
        // What is ended counts until its task is gone, which is soon.
        if self.tenants >= limits.connections_max && !self.take_from_richest(own) {
            let max = limits.connections_max;
            return Err(turned_away(uid, ("connections-max", max), || {
                format!("all {max} connections are taken, {own} by user {uid}")
            }));
        }
        self.tenants += 1;
        self.last += 1;
        self.by_uid.entry(uid).or_default().insert(self.last, None);
        Ok(self.last)
    }
}

/// A connection that counts as long as it lives.
#[derive(Debug)]
struct Admission {
    counts: Arc<Mutex<Counts>>,
    /// Its user and number; none if it is an operator's.
    tenant: Option<(u32, u64)>,
}

impl Admission {
    /// # Errors
    /// Says whose limit is met, and logs it.
    fn of(counts: &Arc<Mutex<Counts>>, peer: &Peer, limits: &Limits) -> Result<Self, ErrorBody> {
        let mut now = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant = match peer.operator {
            true => {
                if now.operators >= OPERATOR_CONNECTIONS_MAX {
                    let message = format!(
                        "operators have {OPERATOR_CONNECTIONS_MAX} connections, and no more: try again later"
                    );
                    return Err(ErrorBody::plain(ErrorCode::Busy, message));
                }
                now.operators += 1;
                None
            }
            false => Some((peer.uid, now.admit(peer.uid, limits)?)),
        };
        Ok(Self {
            counts: Arc::clone(counts),
            tenant,
        })
    }

    /// Has the connection end if another user gets its place.
    fn ends_by(&self, handle: AbortHandle) {
        let Some((uid, number)) = self.tenant else {
            return;
        };
        let mut now = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let held = now.by_uid.get_mut(&uid);
        if let Some(place) = held.and_then(|held| held.get_mut(&number)) {
            *place = Some(handle);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut now = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((uid, number)) = self.tenant else {
            now.operators -= 1;
            return;
        };
        now.tenants -= 1;
        if let Some(own) = now.by_uid.get_mut(&uid) {
            own.remove(&number);
            if own.is_empty() {
                now.by_uid.remove(&uid);
            }
        }
    }
}

/// A stream whose peer takes something of what is written within a time, or is given up.
struct Bounded {
    stream: UnixStream,
    timeout: Duration,
    /// Runs while the peer takes nothing.
    stalled: Pin<Box<Sleep>>,
    is_stalled: bool,
}

impl Bounded {
    fn new(stream: UnixStream, timeout: Duration) -> Self {
        Self {
            stream,
            timeout,
            stalled: Box::pin(tokio::time::sleep(timeout)),
            is_stalled: false,
        }
    }

    fn within_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.is_stalled = false;
            return poll;
        }
        if !self.is_stalled {
            self.is_stalled = true;
            self.stalled.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(self.stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, from);
        self.within_time(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Accepts connections, until [`Server::end`].
#[derive(Debug)]
pub struct Server {
    accepts: JoinHandle<()>,
    /// Closed when no connection is left.
    ended: Receiver<()>,
}

impl Server {
    /// Accepts as many connections as `limits` says at the moment.
    pub fn start(listener: UnixListener, router: Router, limits: watch::Receiver<Limits>) -> Self {
        let (open, ended) = channel(1);
        Self {
            accepts: tokio::spawn(serve(listener, router, limits, open)),
            ended,
        }
    }

    /// Accepts no more, and gives those that are open this time to end.
    pub async fn end(&mut self, time_max: Duration) {
        self.accepts.abort();
        let _ = tokio::time::timeout(time_max, self.ended.recv()).await;
    }
}

/// Accepts connections for ever; each holds a clone of `open`.
async fn serve(
    listener: UnixListener,
    router: Router,
    limits: watch::Receiver<Limits>,
    open: Sender<()>,
) {
    let counts = Arc::new(Mutex::new(Counts::default()));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let (unread, to_close) = mpsc::channel::<UnixStream>();
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
        let unknown = || ErrorBody::plain(ErrorCode::Busy, "the peer is gone");
        let admitted = Peer::of(&stream).ok_or_else(unknown);
        let admitted =
            admitted.and_then(|peer| Ok((peer, Admission::of(&counts, &peer, &limits)?)));
        let (peer, admission) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                if holds_fds {
                    refuse(&stream, &error);
                    // Closed here if there is no thread.
                    let _ = unread.send(stream);
                } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                    tokio::spawn(async move {
                        refuse_patiently(stream, &error).await;
                        drop(place);
                    });
                } else {
                    refuse(&stream, &error);
                }
                continue;
            }
        };
        let service = router.clone().layer(Extension(peer));
        let read_timeout = limits.read_timeout;
        let open = open.clone();
        if holds_fds {
            aside(move || {
                let done = serve_alone(stream, service, read_timeout);
                if let Err(error) = done {
                    tracing::warn!("cannot serve a connection: {error}");
                }
                drop((admission, open));
            });
        } else {
            let admission = Arc::new(admission);
            let held = Arc::clone(&admission);
            let task = tokio::spawn(async move {
                connection(stream, service, read_timeout).await;
                drop((held, open));
            });
            admission.ends_by(task.abort_handle());
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
        .serve_connection(
            TokioIo::new(Bounded::new(stream, read_timeout)),
            TowerToHyperService::new(service),
        );
    if let Err(error) = connection.await {
        tracing::debug!("connection: {error}");
    }
}

fn turned_away(
    uid: u32,
    (limit, max): (&'static str, usize),
    what: impl FnOnce() -> String,
) -> ErrorBody {
    tell(uid, limit, u32::try_from(max).unwrap_or(u32::MAX));
    let message = format!("{} ({limit}): try again later", what());
    ErrorBody::plain(ErrorCode::Busy, message)
}

/// Answers a connection that is not served.
fn refuse(stream: &UnixStream, error: &ErrorBody) {
    let body = serde_json::to_string(error).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // An empty socket buffer takes it; a peer that is gone does not want it.
    let _ = stream.try_write(text.as_bytes());
}

/// The same, once its peer has asked; it ends when the peer has closed it.
async fn refuse_patiently(mut stream: UnixStream, error: &ErrorBody) {
    let mut unread = [0; 1024];
    let _ = tokio::time::timeout(REFUSAL_TIME_MAX, stream.read(&mut unread)).await;
    refuse(&stream, error);
    let _ = stream.shutdown().await;
    let rest = async { while stream.read(&mut unread).await.is_ok_and(|bytes| bytes != 0) {} };
    let _ = tokio::time::timeout(REFUSAL_TIME_MAX, rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Args, Options};

    /// A server that ends answers the request in hand, and waits no longer than for that; without a connection it waits for nothing.
    #[tokio::test]
    async fn the_end_waits_for_what_is_open_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let slow = || tokio::time::sleep(Duration::from_millis(100));
        let router = Router::new().route("/", axum::routing::get(slow));
        let config = directory.path().join("none.toml");
        std::fs::write(&config, "").expect("a file");
        let config = Some(config);
        let options = Options::load(&Args {
            config,
            ..Args::default()
        })
        .expect("options");
        let (_allow, limits) = watch::channel(options.limits);
        for is_asked in [true, false] {
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).expect("a listener");
            let mut server = Server::start(listener, router.clone(), limits.clone());
            let mut stream = UnixStream::connect(&path).await.expect("a connection");
            match is_asked {
                true => {
                    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                    stream.write_all(request).await.expect("a request");
                }
                false => drop(stream.shutdown().await),
            }
            // Until it is accepted.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let began = Instant::now();
            server.end(Duration::from_secs(20)).await;
            assert!(began.elapsed() < Duration::from_secs(10));
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            assert_eq!(answer.starts_with("HTTP/1.1 200"), is_asked, "{answer}");
        }
    }
}
