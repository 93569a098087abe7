//! The messages of etcd's gRPC interface that this program uses.
//!
//! Field numbers are those of `rpc.proto`, `kv.proto` and `mvccpb` of etcd 3.4. They are written by hand: ten messages need neither `protoc` nor a
//! build script. Fields that nothing here reads are left out; prost skips them.

use prost::{Message, Oneof};

/// Comparison of a transaction: equality. The one that is used.
pub const EQUAL: i32 = 0;
/// Target of a comparison: the revision of a key's last change, 0 for a key that is absent.
pub const MOD: i32 = 2;
/// Type of an event: the key was deleted.
pub const DELETE: i32 = 1;

/// Who answered, and as of when.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    /// Identity of the cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// Revision of the key-value store when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key with its value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

/// Reads one key, or the keys from `key` up to `range_end`.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first key behind the range; empty: `key` alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// Keys at most; 0: no limit.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As of which revision; 0: the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Answered by the member alone, without the leader.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
}

/// What a range holds.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Keys in order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// There are more than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Writes a key.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// With which lease the key ends; 0: none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Removes a key.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    /// Which.
    #[prost(oneof = "request_op::Request", tags = "1, 2, 3")]
    pub request: Option<request_op::Request>,
}

/// Operations of a transaction.
pub mod request_op {
    use super::{DeleteRangeRequest, Oneof, PutRequest, RangeRequest};

    /// What an operation does.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Request {
        /// Reads.
        #[prost(message, tag = "1")]
        Range(RangeRequest),
        /// Writes.
        #[prost(message, tag = "2")]
        Put(PutRequest),
        /// Removes.
        #[prost(message, tag = "3")]
        DeleteRange(DeleteRangeRequest),
    }
}

/// The answer of one operation. Only reads say anything that is used.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    /// What was read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// A condition of a transaction: the revision of the last change of a key.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// [`EQUAL`].
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// [`MOD`].
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// The revision. A member of a `oneof`: it is sent also when it is 0.
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
}

/// Operations that are applied together if all conditions hold; others if not.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// Conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Done if all hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// Done if one does not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// What a transaction did.
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// An answer for each operation that was done.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// A message to the watch stream.
#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    /// Which.
    #[prost(oneof = "watch_request::Request", tags = "1, 2, 3")]
    pub request: Option<watch_request::Request>,
}

/// Messages to the watch stream.
pub mod watch_request {
    use super::{Oneof, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest};

    /// What is asked.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Request {
        /// A new watch.
        #[prost(message, tag = "1")]
        Create(WatchCreateRequest),
        /// The end of one.
        #[prost(message, tag = "2")]
        Cancel(WatchCancelRequest),
        /// A sign of life.
        #[prost(message, tag = "3")]
        Progress(WatchProgressRequest),
    }
}

/// Watches a range.
#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first key behind the range.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// Changes from this revision on.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Also tells of revisions without a change in the range, now and then.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Number of the watch within its stream.
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
    /// A message that is too long for etcd comes in pieces.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// Ends a watch.
#[derive(Clone, PartialEq, Message)]
pub struct WatchCancelRequest {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

/// Asks for a sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct WatchProgressRequest {}

/// A message of the watch stream.
#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Which watch; -1: none of them.
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    /// The watch was made.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// The watch ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// It ended since revisions before this one are gone.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why it ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Another piece of this message follows.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// Changes in order.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// A change of a key.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// 0: written; [`DELETE`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The key as it is now.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// How long it lasts without a sign of life, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl_s: i64,
}

/// A lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    /// Its number.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// A sign of life of a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The answer to a sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    /// How long it lasts from now, in seconds; 0: it is gone.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

/// Asks for a token.
#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The password.
    #[prost(string, tag = "2")]
    pub password: String,
}

/// A token.
#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateResponse {
    /// It goes into the metadata of every later request.
    #[prost(string, tag = "2")]
    pub token: String,
}
