//! The connection to etcd: which member, and what is asked of it.
//!
//! # Model
//! One connection at a time. When it fails, falls silent or its member has no leader, the next member is tried, with exponential backoff.
//! Answers carry the number of their connection: [`Link::take`] passes over those of one that is gone.
//!
//! # Synchronization
//! One thread. Each question is a task that ends with its answer, and is aborted with its connection.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::client::{self, Client};
use crate::proto::{
    DELETE, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse, watch_request::Request,
};
use crate::registry::{Ask, Change, Outcome, Scope, Told};
use crate::schema::Keys;
use crate::settings::Settings;

/// The first and the longest wait before another connection is tried.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A connection that held so long starts the waits anew.
const STABLE: Duration = Duration::from_secs(10);
/// How often a member is asked for a sign of life, and after how much silence it is left.
const PROGRESS_EVERY: Duration = Duration::from_secs(20);
const SILENT_MAX: Duration = Duration::from_secs(60);

/// It.
pub struct Link {
    settings: Settings,
    keys: Keys,
    /// Number of the connection.
    epoch: u64,
    client: Option<Client>,
    watches: Option<mpsc::UnboundedSender<WatchRequest>>,
    /// The watch of each scope, and which watch has which number.
    numbers: Vec<(i64, Scope)>,
    next_watch: i64,
    tasks: JoinSet<()>,
    since: Instant,
    wait: Duration,
    /// Which member.
    member: usize,
    news: mpsc::UnboundedSender<(u64, News)>,
    from: mpsc::UnboundedReceiver<(u64, News)>,
}

enum News {
    Connected(Client),
    Told(Told),
    Watch(WatchResponse),
    Failed(String),
}

impl Link {
    /// One that begins to connect. `seed` chooses the first member.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let (news, from) = mpsc::unbounded_channel();
        let member = usize::try_from(seed % 1024).unwrap_or(0);
        let mut link = Self {
            keys: Keys::new(&settings.cluster),
            settings,
            epoch: 0,
            client: None,
            watches: None,
            numbers: Vec::new(),
            next_watch: 1,
            tasks: JoinSet::new(),
            since: Instant::now(),
            wait: Duration::ZERO,
            member,
            news,
            from,
        };
        link.connect();
        link
    }

    fn connect(&mut self) {
        self.epoch += 1;
        self.client = None;
        self.watches = None;
        self.numbers.clear();
        // Also ends what was under way on the connection before.
        self.tasks = JoinSet::new();
        let (settings, member, wait) = (self.settings.clone(), self.member, self.wait);
        self.spawn(async move {
            tokio::time::sleep(wait).await;
            let connected = async {
                let endpoint = settings.endpoint(member)?;
                Client::connect(&endpoint, settings.login()?).await
            };
            let at = &settings.endpoints[member % settings.endpoints.len()];
            match connected.await {
                Ok(client) => News::Connected(client),
                Err(error) => News::Failed(format!("{at}: {error}")),
            }
        });
    }

    fn spawn(&mut self, work: impl Future<Output = News> + Send + 'static) {
        let (news, epoch) = (self.news.clone(), self.epoch);
        self.tasks.spawn(async move {
            let _ = news.send((epoch, work.await));
        });
    }

    /// Leaves the member for the next one.
    fn fail(&mut self, why: String) -> Told {
        if self.client.is_some() && self.since.elapsed() > STABLE {
            self.wait = Duration::ZERO;
        }
        self.wait = (self.wait * 2).clamp(RETRY_MIN, RETRY_MAX);
        let jitter = self
            .wait
            .mul_f64(f64::from(self.since.elapsed().subsec_nanos() % 1024) / 2048.0);
        self.wait -= jitter;
        self.member = self.member.wrapping_add(1);
        self.connect();
        Told::Down { why }
    }

    /// The next news. Nothing is lost if this is given up.
    pub async fn take(&mut self) -> Vec<Told> {
        loop {
            while self.tasks.try_join_next().is_some() {}
            // This side has a sender, so the channel does not end.
            let Some((epoch, news)) = self.from.recv().await else {
                continue;
            };
            if epoch != self.epoch {
                continue;
            }
            let told = match news {
                News::Connected(client) => self.connected(client),
                News::Told(Told::Down { why }) | News::Failed(why) => vec![self.fail(why)],
                News::Told(told) => vec![told],
                News::Watch(response) => self.watched(response),
            };
            if !told.is_empty() {
                return told;
            }
        }
    }

    fn connected(&mut self, client: Client) -> Vec<Told> {
        self.since = Instant::now();
        let (asks, asked) = mpsc::unbounded_channel();
        self.watches = Some(asks.clone());
        let (news, epoch) = (self.news.clone(), self.epoch);
        let stream = client.clone();
        self.spawn(async move { News::Failed(read_watches(stream, asked, news, epoch).await) });
        self.tasks.spawn(async move {
            let mut every = tokio::time::interval_at(
                tokio::time::Instant::now() + PROGRESS_EVERY,
                PROGRESS_EVERY,
            );
            loop {
                every.tick().await;
                let request = Some(Request::Progress(WatchProgressRequest {}));
                if asks.send(WatchRequest { request }).is_err() {
                    return;
                }
            }
        });
        self.client = Some(client);
        vec![Told::Up]
    }

    fn watched(&mut self, response: WatchResponse) -> Vec<Told> {
        let number = response.watch_id;
        let Some((_, scope)) = self
            .numbers
            .iter()
            .find(|(watch, _)| *watch == number)
            .copied()
        else {
            // Of a watch that was left, or a sign of life. The revision of a requested one may run ahead of events (etcd before 3.4.25).
            return Vec::new();
        };
        let revision = as_of(&response);
        if response.canceled {
            self.numbers.retain(|(watch, _)| *watch != number);
            return match response.compact_revision {
                0 => vec![self.fail(format!("a watch ended: {}", response.cancel_reason))],
                _ => vec![Told::Compacted { scope }],
            };
        }
        if response.created {
            return vec![Told::Watching { scope }];
        }
        let changes = response.events.into_iter().filter_map(|event| {
            let kv = client::kv(event.kv?)?;
            Some(Change {
                key: kv.key,
                value: (event.kind != DELETE).then_some(kv.value),
                mod_revision: kv.mod_revision,
            })
        });
        vec![Told::Changed {
            scope,
            revision,
            changes: changes.collect(),
        }]
    }

    /// Takes a question to the registry. The answer is news.
    pub fn ask(&mut self, ask: Ask) {
        let Some(client) = self.client.clone() else {
            return;
        };
        match ask {
            Ask::Txn { id, txn } => self.spawn(async move {
                match client.txn(&txn).await {
                    Ok((header, outcome)) => News::Told(Told::Txn {
                        id,
                        cluster: header.cluster_id,
                        revision: header.revision,
                        outcome,
                    }),
                    Err(status) => match is_final(&status) {
                        true => News::Told(Told::Txn {
                            id,
                            cluster: 0,
                            revision: 0,
                            outcome: Outcome::Denied(client::said(&status)),
                        }),
                        false => News::Failed(client::said(&status)),
                    },
                }
            }),
            Ask::Check {
                key,
                value,
                revision,
            } => self.spawn(async move {
                match client.check(&key, value.as_deref(), revision).await {
                    Ok(is_same) => News::Told(Told::Checked { is_same }),
                    Err(status) => News::Failed(client::said(&status)),
                }
            }),
            Ask::List { scope, fresh } => {
                let prefix = self.keys.prefix(scope);
                self.spawn(async move {
                    match client.list(&prefix, fresh).await {
                        Ok(listing) => News::Told(Told::Listed {
                            scope,
                            revision: listing.revision,
                            kvs: listing.kvs,
                        }),
                        Err(status) => News::Told(Told::ListFailed {
                            scope,
                            why: client::said(&status),
                        }),
                    }
                });
            }
            Ask::Watch { scope, from } => self.watch(scope, from),
            Ask::Unwatch { scope } => self.unwatch(scope),
            Ask::Grant { of } => self.spawn(async move {
                match client.grant(of).await {
                    Ok(lease) => News::Told(Told::Granted { of, lease }),
                    Err(status) => News::Failed(client::said(&status)),
                }
            }),
            Ask::KeepAlive { lease } => self.spawn(async move {
                match client.keep_alive(lease).await {
                    Ok(true) => News::Told(Told::LeaseKept),
                    Ok(false) => News::Told(Told::LeaseGone),
                    Err(status) => News::Failed(client::said(&status)),
                }
            }),
        }
    }

    fn watch(&mut self, scope: Scope, from: i64) {
        self.unwatch(scope);
        let number = self.next_watch;
        self.next_watch += 1;
        self.numbers.push((number, scope));
        let prefix = self.keys.prefix(scope);
        self.send(Request::Create(WatchCreateRequest {
            range_end: client::range_end(&prefix),
            key: prefix.into_bytes(),
            start_revision: from,
            progress_notify: true,
            fragment: true,
            watch_id: number,
        }));
    }

    fn unwatch(&mut self, scope: Scope) {
        if let Some(at) = self.numbers.iter().position(|(_, of)| *of == scope) {
            let (watch_id, _) = self.numbers.swap_remove(at);
            self.send(Request::Cancel(WatchCancelRequest { watch_id }));
        }
    }

    fn send(&mut self, request: Request) {
        if let Some(watches) = &self.watches {
            // A stream that has ended has told so.
            let _ = watches.send(WatchRequest {
                request: Some(request),
            });
        }
    }
}

/// The revision up to which a watch has told everything. That of the answer is ahead while a watch catches up, and the rest of the last
/// event's transaction may be in the next piece.
fn as_of(response: &WatchResponse) -> i64 {
    let last = response.events.last().and_then(|event| event.kv.as_ref());
    match last {
        Some(kv) => kv.mod_revision - i64::from(response.fragment),
        None => response.header.as_ref().map_or(0, |header| header.revision),
    }
}

/// Whether asking again would be answered alike.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::PermissionDenied | Code::InvalidArgument | Code::NotFound
    )
}

/// Reads what all watches tell, until that ends: why.
async fn read_watches(
    client: Client,
    asked: mpsc::UnboundedReceiver<WatchRequest>,
    news: mpsc::UnboundedSender<(u64, News)>,
    epoch: u64,
) -> String {
    let mut stream = match client.watch(asked).await {
        Ok(stream) => stream,
        Err(status) => return client::said(&status),
    };
    loop {
        match timeout(SILENT_MAX, stream.message()).await {
            Ok(Ok(Some(response))) => {
                let _ = news.send((epoch, News::Watch(response)));
            }
            Ok(Ok(None)) => return "the member ended the watch".to_owned(),
            Ok(Err(status)) => return client::said(&status),
            Err(_) => return format!("nothing was heard for {} s", SILENT_MAX.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Event, KeyValue, ResponseHeader};

    /// A watch that catches up, or whose message comes in pieces, is not taken to be further than its events.
    #[test]
    fn a_watch_is_as_far_as_its_events() {
        let response = |fragment, events: &[i64]| WatchResponse {
            header: Some(ResponseHeader {
                revision: 9_000,
                ..ResponseHeader::default()
            }),
            fragment,
            events: events
                .iter()
                .map(|at| Event {
                    kv: Some(KeyValue {
                        mod_revision: *at,
                        ..KeyValue::default()
                    }),
                    ..Event::default()
                })
                .collect(),
            ..WatchResponse::default()
        };
        assert_eq!(as_of(&response(false, &[])), 9_000);
        assert_eq!(as_of(&response(false, &[7, 8, 8])), 8);
        assert_eq!(as_of(&response(true, &[7, 8])), 7);
    }
}
