//! What happens: statistics, workers, the daemon itself, and the stream of events.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use windlass_api::{
    DaemonView, EventKind, MigrationCheck, MigrationChecked, MonitorEvent, Moved, RecentDrops,
    RuleView, Stats, WorkerMove, WorkerStats,
};

use crate::authority::Peer;
use crate::engine::Published;
use crate::http::{Answer, App, Failure, Json, Named, answer};
use crate::metrics;

/// `GET /v1/stats`
pub async fn stats(State(app): State<App>, Extension(peer): Extension<Peer>) -> Answer<Stats> {
    answer(
        app.engine
            .call(&peer, move |engine| Ok(engine.stats(&peer)))
            .await,
    )
}

/// `GET /v1/workers`
pub async fn workers(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<Vec<WorkerStats>> {
    answer(
        app.engine
            .call(&peer, move |engine| engine.workers(&peer))
            .await,
    )
}

/// `POST /v1/workers/move`
pub async fn move_to_worker(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Json(what): Json<WorkerMove>,
) -> Answer<Moved> {
    answer(
        app.engine
            .call(&peer, move |engine| engine.move_to_worker(&peer, &what))
            .await,
    )
}

/// `POST /v1/bridges/NAME/mcheck`
pub async fn check_migration(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(bridge): Named,
    Json(check): Json<MigrationCheck>,
) -> Answer<MigrationChecked> {
    answer(
        app.engine
            .call(&peer, move |engine| {
                engine.check_migration(&peer, &bridge, &check)
            })
            .await,
    )
}

/// `GET /v1/daemon`
pub async fn daemon(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<DaemonView> {
    answer(
        app.engine
            .call(&peer, move |engine| Ok(engine.daemon_view(&peer)))
            .await,
    )
}

/// `GET /v1/drops`
pub async fn drops(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<RecentDrops> {
    answer(
        app.engine
            .call(&peer, move |engine| Ok(engine.recent_drops(&peer)))
            .await,
    )
}

/// `GET /v1/vnics/NAME/rules`
pub async fn rules(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(vnic): Named,
) -> Answer<Vec<RuleView>> {
    answer(
        app.engine
            .call(&peer, move |engine| engine.rules(&peer, &vnic))
            .await,
    )
}

/// `GET /v1/metrics`: text, not JSON.
pub async fn metrics(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Result<Response, Failure> {
    let sample = app
        .engine
        .call(&peer, move |engine| Ok(engine.sample(&peer)));
    let text = metrics::text(&sample.await?);
    Ok(([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response())
}

type Events = Receiver<Arc<Published>>;
type Next = Pin<Box<dyn Future<Output = (Events, Option<Bytes>)> + Send>>;

/// A body that never ends: one line of JSON for every event. It is dropped, and its place among the
/// readers with it, as soon as the connection is closed.
struct Lines {
    next: Next,
    peer: Peer,
}

fn line(event: &MonitorEvent) -> Bytes {
    let mut text = serde_json::to_vec(event).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

async fn next(mut events: Events, peer: Peer) -> (Events, Option<Bytes>) {
    let mut last = (0, 0);
    loop {
        match events.recv().await {
            Ok(published) => {
                if let Some(event) = published.for_peer(&peer) {
                    return (events, Some(line(&event)));
                }
                last = (published.event.time_ns, published.event.revision);
            }
            Err(RecvError::Lagged(count)) => {
                let (time_ns, revision) = last;
                let kind = EventKind::Lost { events: count };
                return (
                    events,
                    Some(line(&MonitorEvent {
                        time_ns,
                        revision,
                        kind,
                    })),
                );
            }
            Err(RecvError::Closed) => return (events, None),
        }
    }
}

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Poll::Ready((events, text)) = self.next.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.next = Box::pin(next(events, self.peer));
        Poll::Ready(text.map(|text| Ok(Frame::data(text))))
    }
}

/// `GET /v1/monitor`
pub async fn monitor(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Result<Response, Failure> {
    let events = app.engine.subscribe();
    let revision = app
        .engine
        .call(&peer, |engine| Ok(engine.revision()))
        .await?;
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let time_ns = u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    let start = line(&MonitorEvent {
        time_ns,
        revision,
        kind: EventKind::Start,
    });
    let body = Lines {
        next: Box::pin(async move { (events, Some(start)) }),
        peer,
    };
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::new(body)).into_response())
}
