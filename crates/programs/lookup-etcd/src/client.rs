//! One connection to one member of etcd.
//!
//! # Model
//! gRPC by tonic without generated code: a path and two message types a call. Every call says `hasleader`, so that a member that is cut off
//! from its cluster fails it instead of answering with what it last knew; a list that may be old is the exception.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::proto::{
    AuthenticateRequest, AuthenticateResponse, Compare, DeleteRangeRequest, EQUAL, KeyValue,
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, MOD,
    PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
    WatchRequest, WatchResponse, request_op,
};
use crate::registry::{Kv, Lease, Op, Outcome, Txn};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// How long an answer may take. A registry that is slow by seconds is slow, not gone.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// HTTP/2 pings, while nothing else is heard, and how long their answer may take.
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_MAX: Duration = Duration::from_secs(20);
/// Keys of one answer. etcd 3.4 counts the rest of the range for each page: small pages make long lists. Where values are so long that
/// an answer has more than [`ANSWER_BYTES_MAX`], smaller ones are asked for.
const PAGE_KEYS: i64 = 10_000;
/// Bytes of one answer. A request, and so a value, has at most 1.5 MiB, unless etcd is told otherwise.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Bytes of a value, and of a key, beyond which it is none of ours.
const VALUE_BYTES_MAX: usize = 4 << 10;
const KEY_BYTES_MAX: usize = 2 << 10;
/// Keys of a list.
const KEYS_MAX: usize = 1 << 19;

/// The first key behind all that begin with `prefix`.
#[must_use]
pub fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// Everything under a prefix at one revision.
#[derive(Debug)]
pub struct Listing {
    /// The revision.
    pub revision: i64,
    /// The keys in order.
    pub kvs: Vec<Kv>,
}

/// A connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    token: Option<AsciiMetadataValue>,
}

impl Client {
    /// Connects, and authenticates where there is a user.
    ///
    /// # Errors
    /// A sentence.
    pub async fn connect(
        endpoint: &Endpoint,
        user: Option<(String, String)>,
    ) -> Result<Self, String> {
        let endpoint = endpoint
            .clone()
            .connect_timeout(CONNECT_MAX)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_MAX)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let connected = tokio::time::timeout(CONNECT_MAX, endpoint.connect()).await;
        let channel = match connected {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(causes(&error)),
            Err(_) => return Err(format!("no connection in {} s", CONNECT_MAX.as_secs())),
        };
        let mut client = Self {
            channel,
            token: None,
        };
        if let Some((name, password)) = user {
            let asked = AuthenticateRequest { name, password };
            let answer = client.unary("/etcdserverpb.Auth/Authenticate", asked);
            let answer: AuthenticateResponse = answer.await.map_err(|status| said(&status))?;
            let token = answer
                .token
                .parse()
                .map_err(|_| "a token that is no text")?;
            client.token = Some(token);
        }
        Ok(client)
    }

    fn request<M>(&self, message: M, with_leader: bool) -> Request<M> {
        let mut request = Request::new(message);
        if with_leader {
            let metadata = request.metadata_mut();
            metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
        }
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    async fn unary<A, B>(&self, path: &'static str, message: A) -> Result<B, Status>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        self.call(path, self.request(message, true)).await
    }

    async fn call<A, B>(&self, path: &'static str, request: Request<A>) -> Result<B, Status>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc();
        let call = async {
            ready(&mut grpc).await?;
            let path = PathAndQuery::from_static(path);
            grpc.unary(request, path, ProstCodec::<A, B>::default())
                .await
        };
        match tokio::time::timeout(ANSWER_MAX, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    async fn stream<A, B, S>(&self, path: &'static str, messages: S) -> Result<Streaming<B>, Status>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
        S: Stream<Item = A> + Send + 'static,
    {
        let mut grpc = self.grpc();
        ready(&mut grpc).await?;
        let path = PathAndQuery::from_static(path);
        let request = self.request(messages, true);
        let opened = grpc.streaming(request, path, ProstCodec::<A, B>::default());
        match tokio::time::timeout(ANSWER_MAX, opened).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Does a transaction; tells who answered, and as of when.
    ///
    /// # Errors
    /// The call's. Whether it was applied is not known then.
    pub async fn txn(&self, txn: &Txn) -> Result<(ResponseHeader, Outcome), Status> {
        let answer: TxnResponse = self.unary("/etcdserverpb.KV/Txn", written(txn)).await?;
        let header = answer.header.unwrap_or_default();
        if answer.succeeded {
            return Ok((header, Outcome::Done));
        }
        let found = answer.responses.into_iter().map(|response| {
            let range = response.range.unwrap_or_default();
            range.kvs.into_iter().next().and_then(kv)
        });
        Ok((header, Outcome::Conflict(found.collect())))
    }

    /// Lists a prefix at one revision, in pages.
    ///
    /// # Errors
    /// The call's.
    pub async fn list(&self, prefix: &str, fresh: bool) -> Result<Listing, Status> {
        let mut listing = Listing {
            revision: 0,
            kvs: Vec::new(),
        };
        let mut key = prefix.as_bytes().to_vec();
        let mut limit = PAGE_KEYS;
        loop {
            let asked = RangeRequest {
                key: key.clone(),
                range_end: range_end(prefix),
                limit,
                revision: listing.revision,
                serializable: !fresh,
            };
            let request = self.request(asked, fresh);
            let page: Result<RangeResponse, Status> =
                self.call("/etcdserverpb.KV/Range", request).await;
            let page = match page {
                Err(status) if is_too_long(&status) && limit > 1 => {
                    limit = (limit / 8).max(1);
                    continue;
                }
                page => page?,
            };
            if listing.revision == 0 {
                listing.revision = page.header.unwrap_or_default().revision;
            }
            if let Some(last) = page.kvs.last() {
                key.clone_from(&last.key);
                key.push(0);
            }
            let is_empty = page.kvs.is_empty();
            listing.kvs.extend(page.kvs.into_iter().filter_map(kv));
            if listing.kvs.len() > KEYS_MAX {
                let text = format!("more than {KEYS_MAX} keys under {prefix}");
                return Err(Status::resource_exhausted(text));
            }
            if !page.more || is_empty {
                return Ok(listing);
            }
        }
    }

    /// Whether a key got a value at a revision, or was absent then; `None`: the past is gone.
    ///
    /// # Errors
    /// The call's.
    pub async fn check(
        &self,
        key: &str,
        value: Option<&[u8]>,
        revision: i64,
    ) -> Result<Option<bool>, Status> {
        let asked = RangeRequest {
            key: key.as_bytes().to_vec(),
            revision,
            ..RangeRequest::default()
        };
        let answer: Result<RangeResponse, Status> =
            self.unary("/etcdserverpb.KV/Range", asked).await;
        match answer {
            Ok(answer) => {
                let is_it = |kv: &KeyValue| {
                    kv.mod_revision == revision && value == Some(kv.value.as_slice())
                };
                Ok(Some(answer.kvs.first().map_or(value.is_none(), is_it)))
            }
            Err(status) if status.code() == Code::OutOfRange => {
                // It is either of the past that was compacted, or of a future.
                Ok((!is_compacted(&status)).then_some(false))
            }
            Err(status) => Err(status),
        }
    }

    /// Grants a lease.
    ///
    /// # Errors
    /// The call's.
    pub async fn grant(&self, of: Lease) -> Result<i64, Status> {
        let asked = LeaseGrantRequest { ttl_s: of.ttl_s() };
        let answer: LeaseGrantResponse =
            self.unary("/etcdserverpb.Lease/LeaseGrant", asked).await?;
        Ok(answer.id)
    }

    /// Renews a lease; `false`: it is gone.
    ///
    /// # Errors
    /// The call's.
    pub async fn keep_alive(&self, lease: i64) -> Result<bool, Status> {
        let asked = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let mut answers: Streaming<LeaseKeepAliveResponse> = self.stream(path, asked).await?;
        match tokio::time::timeout(ANSWER_MAX, answers.message()).await {
            Ok(answer) => Ok(answer?.is_some_and(|answer| answer.ttl_s > 0)),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Opens the stream that carries all watches.
    ///
    /// # Errors
    /// The call's.
    pub async fn watch(
        &self,
        asked: mpsc::UnboundedReceiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, Status> {
        self.stream("/etcdserverpb.Watch/Watch", Received(asked))
            .await
    }
}

/// What a channel delivers, as a stream.
struct Received(mpsc::UnboundedReceiver<WatchRequest>);

impl Stream for Received {
    type Item = WatchRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<WatchRequest>> {
        self.0.poll_recv(context)
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(causes(&error)))
}

/// A key with its value; `None`: it is none of ours. A value that is none is cut to nothing.
#[must_use]
pub fn kv(from: KeyValue) -> Option<Kv> {
    let mut value = from.value;
    if value.len() > VALUE_BYTES_MAX {
        value = Vec::new();
    }
    (from.key.len() <= KEY_BYTES_MAX).then(|| Kv {
        key: String::from_utf8_lossy(&from.key).into_owned(),
        value,
        mod_revision: from.mod_revision,
    })
}

fn is_compacted(status: &Status) -> bool {
    status.message().contains("compacted")
}

/// Whether an answer has more bytes than are taken: tonic's own words.
fn is_too_long(status: &Status) -> bool {
    status.code() == Code::OutOfRange && !is_compacted(status)
}

fn written(txn: &Txn) -> TxnRequest {
    let op = |request| RequestOp {
        request: Some(request),
    };
    let compare = txn.expect.iter().map(|(key, revision)| Compare {
        result: EQUAL,
        target: MOD,
        key: key.clone().into_bytes(),
        mod_revision: Some(*revision),
    });
    let success = txn.then.iter().map(|step| {
        op(match step {
            Op::Put { key, value, lease } => request_op::Request::Put(PutRequest {
                key: key.clone().into_bytes(),
                value: value.clone(),
                lease: *lease,
            }),
            Op::Delete { key } => request_op::Request::DeleteRange(DeleteRangeRequest {
                key: key.clone().into_bytes(),
            }),
        })
    });
    let failure = txn.expect.iter().map(|(key, _)| {
        op(request_op::Request::Range(RangeRequest {
            key: key.clone().into_bytes(),
            ..RangeRequest::default()
        }))
    });
    TxnRequest {
        compare: compare.collect(),
        success: success.collect(),
        failure: failure.collect(),
    }
}

/// What a call failed with, in words.
#[must_use]
pub fn said(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text += &format!(": {error}");
        next = error.source();
    }
    text
}
