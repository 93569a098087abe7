//! The one owner of the document: every change goes through here, one after the other.
//!
//! # Model
//! A change is a function from the document to the next one. The engine fills in what was left to it,
//! validates, computes the difference, asks [`crate::authority`] and the forwarding tables (whose are the addresses that
//! the change claims?), and then:
//!
//! 1. makes each [`Change`] in an edit of the [`Backend`]; if one fails, undoes those before it in reverse order;
//! 2. writes the new document beside the old one ([`Store::prepare`]), and puts it in the place of the old one
//!    ([`Store::commit`]); if the disk is full, undoes all;
//! 3. ends the edit: what is new takes effect, what is gone is deleted on the host;
//! 4. publishes the changes to the monitors.
//!
//! Changes that wait at the same time pass step 1 one after the other, and the other steps together (`together`).
//!
//! So the stored document, the one in memory and the data plane agree after every call, whatever failed.
//!
//! # Ownership and lifetime
//! The engine runs on a thread of its own, made by [`Engine::spawn`]. Handlers send it closures through
//! [`EngineHandle::call`] and wait for the answer without blocking theirs. It ends when [`EngineHandle::stop`]
//! is called; the backend is shut down then, and what persists stays.
//!
//! # Limits
//! [`OPERATOR_CALLS_MAX`] calls of operators wait at once, and some of others; further ones are answered `busy`. A
//! tenant has few at once, and waits for those before it has more. Monitors that lag lose the oldest
//! events, counted.
//!
//! # Failure modes
//! An object of the stored document that cannot be made at start is kept, shown as `down` with the
//! reason, and tried again when it is set or at a reload. A panic in a call is answered `internal`, and
//! ends the daemon in order: its state cannot be trusted any more.

mod answer;
mod apply;
mod captures;
mod claims;
mod owners;
mod recent;
mod together;
mod told;
mod turns;
mod vnds;

pub use answer::no_such;
pub use turns::OPERATOR_CALLS_MAX;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use tokio::sync::{broadcast, oneshot};
use windlass_api::{
    Applied, Change, Counters, Document, ErrorBody, ErrorCode, EventKind, MonitorEvent, Name,
    Object, Status,
};

use windlass_attach::endpoint::Handed;

use crate::authority::Peer;
use crate::backend::{Backend, Place, StateSink, Step};
use crate::options::Options;
use crate::paths;
use crate::shares::{Holders, PerUser, Share};
use crate::store::Store;
use recent::Recent;
use together::{Proposal, TOGETHER_MAX};
use turns::Turns;

/// Time that a handler waits for the engine.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(30);

type Call = Box<dyn FnOnce(&mut Engine) + Send>;
/// What takes the answer to a message.
type Answerer<T> = Box<dyn FnOnce(Result<T, ErrorBody>) + Send>;

enum Message {
    Call(Call),
    Change(Proposal),
    Stop,
}

/// An event and who may see it.
#[derive(Debug, Clone)]
pub struct Published {
    /// The event.
    pub event: MonitorEvent,
    /// The documents before and after, to decide who may see it.
    audience: Audience,
}

#[derive(Debug, Clone)]
enum Audience {
    Operators,
    Vnic { owner_uid: u32, owner_gid: u32 },
}

impl Published {
    /// What the peer may see of it: a zone's group sees no secrets.
    pub fn for_peer(&self, peer: &Peer) -> Option<Cow<'_, MonitorEvent>> {
        let (uid, gid) = match self.audience {
            _ if peer.operator => return Some(Cow::Borrowed(&self.event)),
            Audience::Operators => return None,
            Audience::Vnic {
                owner_uid,
                owner_gid,
            } => (owner_uid, owner_gid),
        };
        if peer.uid == uid {
            return Some(Cow::Borrowed(&self.event));
        }
        let mut event = (peer.gid == gid).then(|| self.event.clone())?;
        if let EventKind::Change { change } = &mut event.kind {
            **change = change.as_ref().clone().without_secrets();
        }
        Some(Cow::Owned(event))
    }
}

/// The document, its store and the data plane. Only the engine thread has it.
pub struct Engine {
    document: Document,
    revision: u64,
    store: Store,
    backend: Box<dyn Backend>,
    sink: StateSink,
    /// Objects of the document that could not be made: their reason.
    failed: BTreeMap<Name, String>,
    states: BTreeMap<Name, Status>,
    events: broadcast::Sender<Arc<Published>>,
    runtime_dir: PathBuf,
    /// What each user may have.
    per_user: PerUser,
    started: Instant,
    recent: Recent,
    /// Changes that wait for searches of overlays.
    aside: Vec<Proposal>,
    /// One of those has said its first word.
    is_spoken: bool,
    /// None may wait.
    is_leaving: bool,
}

/// How handlers reach the engine. Clones reach the same one.
#[derive(Clone)]
pub struct EngineHandle {
    messages: mpsc::Sender<Message>,
    turns: Arc<Turns>,
    events: broadcast::Sender<Arc<Published>>,
    holders: Holders,
}

impl Engine {
    /// Changes what each user may have from now on, but for what takes a restart.
    pub fn allow(&mut self, mut per_user: PerUser) {
        for share in Share::FIXED {
            per_user.set(share, self.per_user.max(share));
        }
        self.per_user = per_user;
    }

    /// Builds the backend, loads the stored document, makes its objects, and starts the engine's thread.
    ///
    /// # Errors
    /// If the store is in use or damaged, a directory cannot be made, or `build` fails.
    pub fn spawn(
        options: &Options,
        build: impl FnOnce(StateSink) -> Result<Box<dyn Backend>>,
    ) -> Result<(EngineHandle, std::thread::JoinHandle<()>)> {
        Self::spawn_in_turn(options, build, None::<fn(&mut Engine) -> Result<()>>)
    }

    /// The same for a daemon that takes another one's place: what the stored document has is made before `turn`, with no effect
    /// on the host; `turn` ends when the other daemon has ended.
    ///
    /// # Errors
    /// As [`Engine::spawn`]; if `turn` fails.
    pub fn spawn_in_turn(
        options: &Options,
        build: impl FnOnce(StateSink) -> Result<Box<dyn Backend>>,
        turn: Option<impl FnOnce(&mut Engine) -> Result<()>>,
    ) -> Result<(EngineHandle, std::thread::JoinHandle<()>)> {
        Store::make_directory(&options.state_dir)?;
        paths::make_runtime_dir(&options.runtime_dir)?;
        // Sockets of zones are reached without following links; those above the directory are the operator's.
        let runtime_dir = options
            .runtime_dir
            .canonicalize()
            .with_context(|| options.runtime_dir.display().to_string())?;
        let (sink, woken) = StateSink::pair();
        let backend = build(sink.clone())?;
        let holders = sink.holders().clone();
        let store = Store::open_unlocked(&options.state_dir)?;
        let (events, _) = broadcast::channel(options.monitor_events_max);
        let mut engine = Engine {
            document: Document::default(),
            revision: 0,
            store,
            backend,
            sink,
            failed: BTreeMap::new(),
            states: BTreeMap::new(),
            events: events.clone(),
            runtime_dir,
            per_user: options.limits.per_user,
            started: Instant::now(),
            recent: Recent::default(),
            aside: Vec::new(),
            is_spoken: false,
            is_leaving: false,
        };
        let global = "directory of the global zone";
        let is_successor = turn.is_some();
        if let Some(turn) = turn {
            engine.make_zone_dir(None).context(global)?;
            engine.make_ahead(engine.store.peek()?);
            turn(&mut engine)?;
        }
        engine.store.lock()?;
        let loaded = engine.store.load()?;
        engine.revision = loaded.revision;
        engine.make_zone_dir(None).context(global)?;
        // What the other daemon still had.
        engine.retry();
        engine.restore(loaded);
        engine.backend.adopted();
        paths::sweep_devices(&engine.runtime_dir, &engine.document);
        if is_successor {
            // What the other daemon has dropped is not of late.
            (0..2).for_each(|_| engine.note_drops());
        }
        engine.tidy();
        let (messages, inbox) = mpsc::channel();
        let handle = EngineHandle {
            messages,
            turns: Arc::new(Turns::new()),
            events,
            holders,
        };
        tell_states(handle.messages.clone(), woken)?;
        let thread = std::thread::Builder::new()
            .name("windlass-engine".into())
            .spawn(move || engine.run(&inbox))?;
        Ok((handle, thread))
    }

    /// Has no change wait any more, until [`Engine::keep`]: whoever asked for one asks the next daemon.
    pub fn leave(&mut self) {
        self.is_leaving = true;
        for aside in std::mem::take(&mut self.aside) {
            self.refuse(aside);
        }
    }

    /// What a successor gets of the data plane.
    pub fn hand_over(&mut self) -> Vec<Handed> {
        self.leave();
        self.backend.hand_over()
    }

    /// Uses nothing of that any more, and does `then`; whether both were done.
    pub fn rest(&mut self, then: Step) -> bool {
        self.backend.rest(then)
    }

    /// The successor is gone.
    pub fn keep(&mut self) {
        self.is_leaving = false;
        self.backend.keep();
    }

    /// What members have counted, for the successor.
    pub fn last_counters(&mut self) -> Vec<(Name, Counters)> {
        self.backend.last_counters()
    }

    /// Prepares to go on with what another daemon has handed over. It changes its document no more.
    pub fn take_over(&mut self, handed: Vec<Handed>) {
        match self.store.peek() {
            Ok(document) if document != self.document => self.make_ahead(document),
            Ok(_) => {}
            // It will be read once more, and the daemon ends then.
            Err(error) => tracing::error!("{error}"),
        }
        self.backend.take_over(handed);
    }

    /// Goes on with that when `is_free` has returned true; whether it does.
    pub fn go(&mut self, is_free: Step) -> bool {
        self.backend.go(is_free)
    }

    /// Goes on counting where the other daemon has ended.
    pub fn carry(&mut self, counters: Vec<(Name, Counters)>) {
        self.backend.carry(counters);
    }

    fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        let mut is_over = false;
        while !is_over {
            let mut together = Vec::new();
            let patience = match self.is_spoken {
                true => Duration::ZERO,
                false => self.recent.due_in(),
            };
            let mut next = inbox.recv_timeout(patience);
            // Nobody has an answer to those changes yet, so that whoever calls meanwhile asks before them. There may always be another
            // one who calls.
            for taken in 1.. {
                match next {
                    Ok(Message::Call(call)) => call(&mut self),
                    Ok(Message::Change(proposal)) => together.push(proposal),
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => is_over = true,
                }
                if is_over || together.is_empty() || taken == TOGETHER_MAX {
                    break;
                }
                match inbox.try_recv() {
                    Ok(message) => next = Ok(message),
                    Err(_) => break,
                }
            }
            if std::mem::take(&mut self.is_spoken) {
                together.append(&mut self.aside);
            }
            if !together.is_empty() {
                self.change_together(together);
            }
            if self.recent.due_in().is_zero() {
                self.note_drops();
            }
        }
        self.backend.shutdown();
    }

    fn place(&self, zone: Option<&str>) -> Place {
        Place::of(
            &self.runtime_dir,
            zone.and_then(|name| self.document.zone(name)),
        )
    }

    fn make_zone_dir(&self, zone: Option<&windlass_api::Zone>) -> std::io::Result<()> {
        let place = Place::of(&self.runtime_dir, zone);
        paths::make_zone_dir(&place.directory, place.owner)
    }

    /// Tells the monitors what has changed in the states of members, and of addresses that two of them use.
    fn note_states(&mut self) {
        for clash in self.sink.take_clashes() {
            self.publish(clash, Audience::Operators);
        }
        let mut names = self.sink.take();
        let mut waits = self.aside.iter().flat_map(|aside| &aside.overlays);
        self.is_spoken |= waits.any(|overlay| names.contains(overlay));
        names.retain(|name| self.document.member(name.as_str()).is_some());
        let names: Vec<Name> = names.into_iter().collect();
        let statuses = self.statuses(&names);
        for (name, status) in names.into_iter().zip(statuses) {
            if self.states.get(&name) != Some(&status) {
                let before = self.states.insert(name.clone(), status.clone());
                self.tell_state(&name, before.as_ref(), &status);
                let audience = self.audience_of_member(&name);
                self.publish(EventKind::State { name, status }, audience);
            }
        }
    }

    fn publish(&self, kind: EventKind, audience: Audience) {
        self.publish_at(self.revision, kind, audience);
    }

    fn publish_at(&self, revision: u64, kind: EventKind, audience: Audience) {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let time_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let event = MonitorEvent {
            time_ns,
            revision,
            kind,
        };
        // Without a monitor there is nobody to send to.
        let _ = self.events.send(Arc::new(Published { event, audience }));
    }

    fn audience_of_member(&self, name: &Name) -> Audience {
        let zone = self
            .document
            .vnic(name.as_str())
            .and_then(|vnic| vnic.zone.name());
        Self::audience_of_zone(zone.and_then(|zone| self.document.zone(zone.as_str())))
    }

    fn audience_of_zone(zone: Option<&windlass_api::Zone>) -> Audience {
        match zone {
            Some(zone) => Audience::Vnic {
                owner_uid: zone.owner_uid,
                owner_gid: zone.owner_gid,
            },
            None => Audience::Operators,
        }
    }

    /// Who may see a change of the document, which was `old` before.
    fn audience_of(&self, change: &Change, old: &Document) -> Audience {
        match change.object() {
            Object::Zone(zone) => Self::audience_of_zone(Some(zone)),
            Object::Vnd(vnd) => {
                let name = vnd.zone.name().map(Name::as_str).unwrap_or_default();
                let zone = self.document.zone(name).or_else(|| old.zone(name));
                Self::audience_of_zone(zone)
            }
            Object::Flow(flow) => {
                let found = |document: &Document| {
                    let zone = document.vnic(flow.vnic.as_str())?.zone.name()?;
                    document.zone(zone.as_str()).cloned()
                };
                let zone = found(&self.document).or_else(|| found(old));
                Self::audience_of_zone(zone.as_ref())
            }
            Object::Vnic(vnic) => {
                let name = vnic.zone.name().map(Name::as_str).unwrap_or_default();
                let zone = self.document.zone(name).or_else(|| old.zone(name));
                Self::audience_of_zone(zone)
            }
            Object::Bridge(_) | Object::Uplink(_) | Object::Overlay(_) | Object::Fdb(_) => {
                Audience::Operators
            }
        }
    }
}

impl EngineHandle {
    /// What users hold.
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Runs the call of this peer on the engine's thread and gives its answer.
    ///
    /// # Errors
    /// What the call returns; [`ErrorCode::Busy`] if too many wait; [`ErrorCode::Timeout`] if it was not
    /// run in [`CALL_TIME_MAX`]; [`ErrorCode::Internal`] if the engine is gone.
    pub async fn call<T: Send + 'static>(
        &self,
        peer: &Peer,
        call: impl FnOnce(&mut Engine) -> Result<T, ErrorBody> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        self.send(peer, |answer| {
            Message::Call(Box::new(move |engine| answer(call(engine))))
        })
        .await
    }

    /// Changes the document by `edit` for this peer, together with the other changes that wait; with `dry_run` only says what
    /// would be changed. The edit also sees the engine, whose document it is, and may be made more than once: a change that makes overlays
    /// or gives them other searches waits aside until those have said their first word.
    ///
    /// # Errors
    /// Those of [`Engine::change`] and [`EngineHandle::call`].
    pub async fn change(
        &self,
        peer: &Peer,
        expected: Option<u64>,
        dry_run: bool,
        edit: impl FnMut(&Engine, &mut Document) -> Result<(), ErrorBody> + Send + 'static,
    ) -> Result<Applied, ErrorBody> {
        self.send(peer, |answer| {
            Message::Change(Proposal {
                peer: *peer,
                expected,
                dry_run,
                edit: Box::new(edit),
                answer: Box::new(answer),
                overlays: BTreeSet::new(),
            })
        })
        .await
    }

    /// Sends the message that is made of what takes its answer, and waits for that.
    async fn send<T: Send + 'static>(
        &self,
        peer: &Peer,
        message: impl FnOnce(Answerer<T>) -> Message,
    ) -> Result<T, ErrorBody> {
        let Some(turn) = self.turns.take(peer).await else {
            let message = "as many requests wait already as may: try again";
            return Err(ErrorBody::plain(ErrorCode::Busy, message));
        };
        let (answer, answered) = oneshot::channel();
        let message = message(Box::new(move |result| {
            drop(turn);
            // The handler may have given up; then nobody wants the answer.
            let _ = answer.send(result);
        }));
        let gone = || ErrorBody::plain(ErrorCode::Internal, "the daemon is ending");
        self.messages.send(message).map_err(|_| gone())?;
        match tokio::time::timeout(CALL_TIME_MAX, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                let seconds = CALL_TIME_MAX.as_secs();
                let message = format!("not done in {seconds} s; it may be done yet");
                Err(ErrorBody::plain(ErrorCode::Timeout, message))
            }
        }
    }

    /// Events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Published>> {
        self.events.subscribe()
    }

    /// Ends the engine after the calls that wait already.
    pub fn stop(&self) {
        // A thread that is gone has ended already.
        let _ = self.messages.send(Message::Stop);
    }
}

/// Has the engine tell of states that have changed, from a thread of its own.
fn tell_states(bell: mpsc::Sender<Message>, woken: mpsc::Receiver<()>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("windlass-state".into());
    let tell = move || {
        while woken.recv().is_ok() {
            let note: Call = Box::new(Engine::note_states);
            if bell.send(Message::Call(note)).is_err() {
                return;
            }
        }
    };
    thread.spawn(tell).map(drop)
}
