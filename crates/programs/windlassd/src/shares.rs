//! What one user may have: each limit of a user in one table.
//!
//! # Model
//! A [`Share`] is an option of the daemon, which has its name, unit and default. A zone counts for its owner, and with all that it
//! has for another one when it changes its owner. What VNICs take is
//! counted in the document ([`configured`]), before a change is made; what is in use at a moment is [`Held`] until it is dropped.
//! Operators hold without a limit. Who meets a limit is told its name, its value, and whose it is; nobody else is refused.
//!
//! # Limits
//! Descriptors are counted as what a VNIC may come to need, not as what it has open.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use windlass_api::{
    Attachment, DAEMON_OPTIONS, Document, ErrorBody, ErrorCode, LimitView, Name, Vnic,
};
use windlass_bridge::fdb::Tally;
use windlass_shm::Pool;

use crate::authority::Peer;
use crate::http::{App, Failure};
use crate::log::{self, Source, may};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// VNICs in all zones of the user.
    Vnics,
    /// Descriptors that those may come to need.
    Descriptors,
    /// Flows of those.
    Flows,
    /// Shared mappings of their peers.
    Mappings,
    /// Addresses learned on them, over all bridges.
    Addresses,
    /// Readers of events.
    Monitors,
    /// Captures.
    Captures,
    /// Other answers that are being made or read.
    Answers,
}

impl Share {
    /// All of them.
    pub const ALL: [Share; 8] = [
        Share::Vnics,
        Share::Descriptors,
        Share::Flows,
        Share::Mappings,
        Share::Addresses,
        Share::Monitors,
        Share::Captures,
        Share::Answers,
    ];

    /// Those that a zone takes along to another owner.
    pub const OF_ZONES: [Share; 5] = [
        Share::Vnics,
        Share::Descriptors,
        Share::Flows,
        Share::Mappings,
        Share::Addresses,
    ];

    /// Those whose limit holds until a restart: what counts against it was made with it.
    pub const FIXED: [Share; 2] = [Share::Mappings, Share::Addresses];

    /// The option that sets its limit.
    pub fn option(self) -> &'static str {
        match self {
            Share::Vnics => "vnics-per-uid-max",
            Share::Descriptors => "descriptors-per-uid-max",
            Share::Flows => "flows-per-uid-max",
            Share::Mappings => "mappings-per-uid-max",
            Share::Addresses => "addresses-per-uid-max",
            Share::Monitors => "monitors-per-uid-max",
            Share::Captures => "captures-per-uid-max",
            Share::Answers => "answers-per-uid-max",
        }
    }

    /// Refuses a zone to a user who has so much before and would have so much after it.
    pub fn refuse_zone(self, uid: u32, [before, after]: [u32; 2], max: u32) -> ErrorBody {
        let (limit, unit) = (self.option(), self.unit());
        let message = format!(
            "user {uid} has {before} of {max} {unit} ({limit}), and would have {after}: delete some first, or raise the limit"
        );
        ErrorBody::plain(ErrorCode::Invalid, message)
    }

    fn unit(self) -> &'static str {
        let mut options = DAEMON_OPTIONS.iter();
        let spec = options.find(|spec| spec.name == self.option());
        spec.map_or("", |spec| spec.unit)
    }

    /// What a VNIC takes of it.
    fn taken_by(self, vnic: &Vnic) -> u32 {
        match self {
            Share::Vnics => 1,
            Share::Descriptors => descriptors(&vnic.attach),
            Share::Flows
            | Share::Mappings
            | Share::Addresses
            | Share::Monitors
            | Share::Captures
            | Share::Answers => 0,
        }
    }

    /// Refuses more than `max` to a user who has `used`, and logs it.
    pub fn refuse(self, code: ErrorCode, uid: u32, used: u32, max: u32) -> ErrorBody {
        let (limit, unit) = (self.option(), self.unit());
        tell(uid, limit, max);
        let message = format!(
            "user {uid} has {used} of {max} {unit} ({limit}): end or delete some, or ask an operator"
        );
        ErrorBody::plain(code, message)
    }
}

/// What VNICs have of shares that are counted while they are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Mappings of their peers' memory.
    pub mappings: u32,
    /// Addresses learned on them.
    pub addresses: u32,
}

/// Logs that a user has met a limit.
pub fn tell(uid: u32, limit: &'static str, max: u32) {
    if may(Source::User(uid)) {
        let (uid, max) = (u64::from(uid), u64::from(max));
        tracing::warn!(
            event = "limit",
            uid,
            limit,
            max,
            "user {uid} has met {limit} ({max})"
        );
    }
}

/// Of a memif: listener, connection, a descriptor on its way; regions.
const MEMIF_DESCRIPTORS: u32 = 10;
/// Of a ring of it: an event in each direction.
const MEMIF_RING_DESCRIPTORS: u32 = 2;

/// Descriptors that an attachment may come to need: of its sockets, namespaces and memory, and of each queue.
fn descriptors(attach: &Attachment) -> u32 {
    let (fixed, per_queue) = match attach {
        Attachment::None(_) => (0, 0),
        // What it waits for, netlink twice, the namespace and its process; the queue.
        Attachment::Tap(_) | Attachment::Packet(_) | Attachment::Xdp(_) => (5, 1),
        // The same twice, but for the namespace; the TAP's queue.
        Attachment::Veth(_) => (9, 1),
        Attachment::Memif(_) => (MEMIF_DESCRIPTORS, MEMIF_RING_DESCRIPTORS),
        // Listener, connection, requests, log; kick, call and error in each direction.
        Attachment::VhostUser(_) => (6, 6),
    };
    fixed + per_queue * u32::from(attach.queues())
}

/// The limits of each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerUser([u32; Share::ALL.len()]);

impl PerUser {
    /// What `max` says for the option of each share.
    pub fn of(max: impl Fn(&str) -> u64) -> Self {
        Self(Share::ALL.map(|share| u32::try_from(max(share.option())).unwrap_or(u32::MAX)))
    }

    /// The limit of a share.
    pub fn max(&self, share: Share) -> u32 {
        let at = Share::ALL.iter().position(|other| *other == share);
        at.and_then(|at| self.0.get(at)).copied().unwrap_or(0)
    }

    /// Sets it.
    pub fn set(&mut self, share: Share, max: u32) {
        for (other, place) in Share::ALL.iter().zip(&mut self.0) {
            if *other == share {
                *place = max;
            }
        }
    }
}

/// What the VNICs in a zone take.
pub fn configured_in(share: Share, zone: &Name, document: &Document) -> u32 {
    taken(share, document, |other| other == zone)
}

/// What the VNICs in all zones of a user take.
pub fn configured(share: Share, uid: u32, document: &Document) -> u32 {
    let owned: HashSet<&Name> = (document.zones.iter())
        .filter(|zone| zone.owner_uid == uid)
        .map(|zone| &zone.name)
        .collect();
    taken(share, document, |zone| owned.contains(zone))
}

fn taken(share: Share, document: &Document, counts: impl Fn(&Name) -> bool) -> u32 {
    let vnics = document.vnics.iter();
    let vnics = vnics.filter(|vnic| vnic.zone.name().is_some_and(&counts));
    if share == Share::Flows {
        if document.flows.is_empty() {
            return 0;
        }
        let vnics: HashSet<&Name> = vnics.map(|vnic| &vnic.name).collect();
        let flows = document.flows.iter();
        return flows.filter(|flow| vnics.contains(&flow.vnic)).count() as u32;
    }
    let vnics = vnics.fold(0u32, |sum, vnic| sum.saturating_add(share.taken_by(vnic)));
    if share != Share::Descriptors {
        return vnics;
    }
    let devices = document.vnds.iter();
    let devices = devices.filter(|vnd| vnd.zone.name().is_some_and(&counts));
    devices.fold(vnics, |sum, _| {
        sum.saturating_add(MEMIF_DESCRIPTORS + MEMIF_RING_DESCRIPTORS)
    })
}

/// What users hold at the moment. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Holders(Arc<Mutex<Holdings>>);

#[derive(Debug, Default)]
struct Holdings {
    counts: HashMap<(u32, Share), u32>,
    mappings: HashMap<u32, Pool>,
    addresses: HashMap<u32, Tally>,
}

/// One that counts until it is dropped.
#[derive(Debug)]
pub struct Held {
    holders: Holders,
    uid: u32,
    share: Share,
}

impl Holders {
    fn with<T>(&self, work: impl FnOnce(&mut Holdings) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one for a user.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] if the user has `max`.
    pub fn take(&self, share: Share, uid: u32, max: u32) -> Result<Held, ErrorBody> {
        let is_taken = self.with(|now| {
            let count = now.counts.entry((uid, share)).or_default();
            let is_free = *count < max;
            *count += u32::from(is_free);
            is_free
        });
        if !is_taken {
            return Err(share.refuse(ErrorCode::Busy, uid, max, max));
        }
        Ok(Held {
            holders: self.clone(),
            uid,
            share,
        })
    }

    /// Where mappings of the peers of all VNICs of a user count, who may have `max`.
    pub fn mappings(&self, uid: u32, max: u32) -> Pool {
        self.with(|now| {
            now.mappings
                .retain(|&other, pool| other == uid || pool.is_shared());
            let pool = now.mappings.entry(uid);
            pool.or_insert_with(|| Pool::new(max)).clone()
        })
    }

    /// Where addresses learned on all VNICs of a user count, who may have `max`.
    pub fn addresses(&self, uid: u32, max: u32) -> Tally {
        self.with(|now| {
            now.addresses
                .retain(|&other, tally| other == uid || tally.is_shared());
            let tally = now.addresses.entry(uid);
            tally.or_insert_with(|| Tally::new(max)).clone()
        })
    }

    /// What the peer sees of limits: its own, or, an operator, those of which somebody has something.
    pub fn view(&self, peer: &Peer, document: &Document, limits: &PerUser) -> Vec<LimitView> {
        let uids = if peer.operator {
            let held = self.with(|now| {
                let counted = now.counts.keys().map(|(uid, _)| *uid);
                counted.collect::<BTreeSet<_>>()
            });
            let owners = document.zones.iter().map(|zone| zone.owner_uid);
            owners.chain(held).collect()
        } else {
            BTreeSet::from([peer.uid])
        };
        let uids = uids.into_iter();
        let rows = uids.flat_map(|uid| self.view_of(uid, document, limits));
        rows.filter(|row| !peer.operator || row.used != 0).collect()
    }

    /// The limits of a user, with what it has.
    pub fn view_of(&self, uid: u32, document: &Document, limits: &PerUser) -> Vec<LimitView> {
        let view = |share: Share| LimitView {
            uid,
            limit: share.option().into(),
            unit: share.unit().into(),
            used: self.used(share, uid, document),
            max: limits.max(share),
        };
        let lines = log::lines(&Source::User(uid)).map(|(used, max)| LimitView {
            uid,
            limit: "log-lines-burst".into(),
            unit: "lines".into(),
            used,
            max,
        });
        Share::ALL.map(view).into_iter().chain(lines).collect()
    }

    /// What a user has.
    pub fn used(&self, share: Share, uid: u32, document: &Document) -> u32 {
        match share {
            Share::Vnics | Share::Descriptors | Share::Flows => configured(share, uid, document),
            Share::Mappings => self.with(|now| now.mappings.get(&uid).map_or(0, Pool::used)),
            Share::Addresses => self.with(|now| now.addresses.get(&uid).map_or(0, Tally::used)),
            Share::Monitors | Share::Captures | Share::Answers => {
                self.with(|now| now.counts.get(&(uid, share)).copied().unwrap_or(0))
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let key = (self.uid, self.share);
        self.holders.with(|now| {
            if let Some(count) = now.counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    now.counts.remove(&key);
                }
            }
        });
    }
}

/// Bytes of an answer that leave its user's share before they are sent.
const PIECE_BYTES: usize = 16 * 1024;

/// A body that counts until its last piece is to be sent.
struct Counted {
    body: Body,
    rest: Bytes,
    _held: Held,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let bytes = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(bytes);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut both = SizeHint::new();
        both.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            both.set_upper(upper.saturating_add(rest));
        }
        both
    }
}

/// Counts what is read from the control socket, from the request to the end of the answer.
pub async fn counted(State(app): State<App>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let Some(peer) = peer.filter(|peer| !peer.operator && request.method() == Method::GET) else {
        return next.run(request).await;
    };
    let share = match request.uri().path() {
        "/v1/monitor" => Share::Monitors,
        _ => Share::Answers,
    };
    let max = app.limits.borrow().per_user.max(share);
    let held = match app.engine.holders().take(share, peer.uid, max) {
        Ok(held) => held,
        Err(error) => return Failure(error).into_response(),
    };
    let (head, body) = next.run(request).await.into_parts();
    let counted = Counted {
        body,
        rest: Bytes::new(),
        _held: held,
    };
    Response::from_parts(head, Body::new(counted))
}
