//! The boundary between the control plane and the data plane.
//!
//! # Purpose
//! The engine owns the document and decides *what* there is; a [`Backend`] makes it so: workers, rings,
//! TAPs, sockets, forwarding tables. The real one lies in [`crate::dataplane`]; [`crate::memory`] has one
//! that only remembers, for tests.
//!
//! # Model
//! All calls come from the one engine thread, one after the other. Each call takes effect before it
//! returns, and either wholly or not at all: after an error the backend is as it was. A call may take up
//! to a second (a grace period, a system call on the host); it must not wait for a peer.
//!
//! Objects are made, changed and deleted within an edit, from [`Backend::begin_edit`] to [`Backend::end_edit`]. Each call is
//! whole or not at all, as ever; but what is made may show only at the end of the edit, and what is deleted stays, with its
//! peer, its counters and its learned addresses, until then. An edit is undone before its end, by the inverse calls in
//! reverse order: to create again exactly what was deleted takes it back, and asks nothing of the host. So a document is
//! published once, not once for each of its objects, and nothing is deleted before the store has the new document.
//!
//! Objects arrive validated (`windlass_api::validate`), in the order of `windlass_api::diff`: what
//! an object refers to exists. VNICs carry their address.
//!
//! # What persists, and adoption
//! A TAP outlives the daemon, whether it ends in order or by a signal. At start, `create_*` is called for
//! every object of the stored document, and must take over what persists on the host: same interface,
//! addresses, routes. What the host lacks for the moment (a namespace, a device, a peer) is no error: the
//! call succeeds and [`Backend::statuses`] says `waiting` with the reason. Only `delete_*` removes what
//! persists, and [`Backend::shutdown`] never does.
//!
//! # Failure modes
//! `delete_*` of an object that the backend does not know must remove what of it persists on the host,
//! and succeed if there is nothing: after a kill in the middle of a change, the engine deletes so what
//! the change may have left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::lookup::Answered;
use crate::paths;
use crate::shares::{Holders, Used};
use thiserror::Error;
use windlass_api::{
    AddressClaim, AddressRelease, Bridge, BridgePlace, CaptureDirection, CaptureKind, Counters,
    ErrorBody, ErrorCode, EventKind, FdbEntry, FdbPage, FdbQuery, Flow, FlowCounters, HostView,
    MacAddr, McastView, Name, NeighboursView, Overlay, SocketPath, StaticEntry, Status, TableStats,
    TargetQuery, TargetView, TreeView, Uplink, Vnd, VndName, Vnic, WorkerStats, Zone, ZoneRef,
};
use windlass_attach::endpoint::Handed;
use windlass_capture::Program;
use windlass_capture::ring::{Memory, Shape};
use windlass_shm::Extent;
use windlass_worker::Capture;

/// What the thread that drives members does itself while no frame is forwarded, so that no other one is waited for; whether it
/// was done.
pub type Step = Box<dyn FnOnce() -> bool + Send>;

/// Memory of a member or a bridge.
#[derive(Debug, Clone)]
pub struct Region {
    /// Whose it is.
    pub owner: Name,
    /// What it is: see [`windlass_api::RegionView::kind`].
    pub kind: &'static str,
    /// Where it is.
    pub extent: Extent,
}

/// Numbers of one moment, each in the order in which it was asked for.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// Of members.
    pub counters: Vec<Counters>,
    /// Of bridges.
    pub tables: Vec<TableStats>,
    /// Of all workers.
    pub workers: Vec<WorkerStats>,
}

/// What an overlay has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OverlayCounts {
    /// Targets.
    pub targets: u64,
    /// Addresses behind them.
    pub addresses: u64,
}

/// Why the data plane did not do what it was told. It is then as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BackendError {
    /// The host refused: the sentence says what was tried, on what, and the error of the system.
    #[error("{0}")]
    Host(String),
    /// This kernel, build or privilege cannot do it: the sentence says what would be needed.
    #[error("{0}")]
    Unsupported(String),
    /// Something that must be free is in use: an interface with addresses, a socket of another daemon.
    #[error("{0}")]
    InUse(String),
    /// A fixed limit of the data plane is reached.
    #[error("{0}")]
    Limit(String),
}

impl From<BackendError> for ErrorBody {
    fn from(error: BackendError) -> Self {
        let code = match &error {
            BackendError::Host(_) => ErrorCode::Host,
            BackendError::Unsupported(_) => ErrorCode::Unsupported,
            BackendError::InUse(_) => ErrorCode::InUse,
            BackendError::Limit(_) => ErrorCode::Invalid,
        };
        ErrorBody::plain(code, error.to_string())
    }
}

/// Where the sockets of a VNIC lie, whose they are, and what holds for all VNICs there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Directory of the zone's sockets; it exists. Its owner may put links into it: open what lies in
    /// it without following them.
    pub directory: PathBuf,
    /// User and group that a socket made here is given; `None`: the daemon's own.
    pub owner: Option<(u32, u32)>,
    /// Directory of the sockets of its vnd devices. Nobody else can write to it.
    pub devices: PathBuf,
    /// The rules that packets of each VNIC there have to pass.
    pub rules: Arc<str>,
}

impl Place {
    /// The place of a zone, or of the global one, under the runtime directory.
    pub fn of(runtime_dir: &Path, zone: Option<&Zone>) -> Self {
        let zones = runtime_dir.join("zones");
        let name = zone.map_or(ZoneRef::GLOBAL, |zone| zone.name.as_str());
        let devices = runtime_dir.join(paths::VND_DIRECTORY).join(name);
        match zone {
            Some(zone) => Self {
                directory: zones.join(name),
                devices,
                owner: Some((zone.owner_uid, zone.owner_gid)),
                rules: zone.rules(),
            },
            None => Self {
                directory: zones.join(name),
                devices,
                owner: None,
                rules: "".into(),
            },
        }
    }

    /// The path of a vnd device's socket.
    pub fn device(&self, name: &VndName) -> PathBuf {
        self.devices.join(name.as_str())
    }

    /// The full path of a socket: absolute ones as they are, others in the directory.
    pub fn socket(&self, path: &SocketPath) -> PathBuf {
        self.directory.join(path.as_str())
    }
}

/// How the data plane says that the state of a member may have changed.
///
/// A call costs a short lock and never waits; what is said is bounded by the number of members. It is
/// for control threads, not for the workers' loops.
#[derive(Debug, Clone)]
pub struct StateSink {
    shared: Arc<Shared>,
    holders: Holders,
}

#[derive(Debug)]
struct Shared {
    names: Mutex<BTreeSet<Name>>,
    clashes: Mutex<Vec<EventKind>>,
    wake: std::sync::mpsc::SyncSender<()>,
}

impl StateSink {
    /// A sink, and where its reader waits: a unit arrives when names are there after there were none.
    pub fn pair() -> (Self, std::sync::mpsc::Receiver<()>) {
        let (wake, woken) = std::sync::mpsc::sync_channel(1);
        (
            Self {
                shared: Arc::new(Shared {
                    names: Mutex::default(),
                    clashes: Mutex::default(),
                    wake,
                }),
                holders: Holders::default(),
            },
            woken,
        )
    }

    /// What users hold, of which the data plane counts mappings.
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Says that [`Backend::statuses`] of this member may answer otherwise than before.
    pub fn changed(&self, member: &Name) {
        let mut names = self
            .shared
            .names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        names.insert(member.clone());
        drop(names);
        // A full channel means that the reader is being woken already.
        let _ = self.shared.wake.try_send(());
    }

    /// Says that an address is used by two: [`EventKind::Clash`]. At most once a bridge in ten seconds.
    pub fn clashed(&self, clash: EventKind) {
        let mut clashes = self
            .shared
            .clashes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        clashes.push(clash);
        drop(clashes);
        let _ = self.shared.wake.try_send(());
    }

    /// Takes the clashes that were said since the last time.
    pub fn take_clashes(&self) -> Vec<EventKind> {
        std::mem::take(
            &mut self
                .shared
                .clashes
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Takes the names that were said since the last time.
    pub fn take(&self) -> BTreeSet<Name> {
        std::mem::take(
            &mut self
                .shared
                .names
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// What is to be captured.
#[derive(Debug)]
pub struct CaptureWanted {
    /// A member or a bridge.
    pub link: Name,
    /// Which of the two.
    pub kind: CaptureKind,
    /// The user whose it is; none if it is an operator's.
    pub tenant: Option<u32>,
    /// Which frames.
    pub direction: CaptureDirection,
    /// Those that died, too.
    pub drops: bool,
    /// Which of them; none: all.
    pub filter: Option<Program>,
    /// Bytes of each frame at most.
    pub snap: u32,
    /// Where its records go; the reader has mapped it.
    pub memory: Arc<Memory>,
    /// A socket at whose other end its reader is.
    pub reader: OwnedFd,
}

/// A capture that has begun.
#[derive(Debug)]
pub struct CaptureMade {
    /// The capture.
    pub capture: Arc<Capture>,
    /// What it is of.
    pub kind: CaptureKind,
}

/// The data plane. The contract of all calls is in the module's theory statement.
pub trait Backend: Send {
    /// Changes follow, to take effect together, or to be undone, by [`Backend::end_edit`].
    fn begin_edit(&mut self) {}

    /// Changes the host's interfaces as the edit says, after all its calls; whatever else can be refused was not.
    ///
    /// # Errors
    /// The host refused that of this member; none is changed then, and the edit is to be undone.
    fn configure(&mut self) -> Result<(), (Name, BackendError)> {
        Ok(())
    }

    /// Everything since [`Backend::begin_edit`] that was not undone takes effect before this returns.
    fn end_edit(&mut self) {}

    /// Makes an empty bridge.
    ///
    /// # Errors
    /// A limit, or no memory for its table.
    fn create_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError>;

    /// Changes properties of a bridge while frames pass.
    ///
    /// # Errors
    /// No memory for its new table.
    fn set_bridge(&mut self, from: &Bridge, to: &Bridge) -> Result<(), BackendError>;

    /// Removes a bridge, which has no members any more.
    ///
    /// # Errors
    /// None is expected.
    fn delete_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError>;

    /// Takes an interface of the host as member of its bridge. A missing one leaves it waiting.
    ///
    /// # Errors
    /// The interface has addresses or a master and `share` is off; a privilege is missing.
    fn create_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError>;

    /// Changes the bridge or properties of an uplink. Device, attachment and `share` are the same.
    ///
    /// # Errors
    /// As [`Self::create_uplink`].
    fn set_uplink(&mut self, from: &Uplink, to: &Uplink) -> Result<(), BackendError>;

    /// Gives the interface back to the host as it was.
    ///
    /// # Errors
    /// The host refused.
    fn delete_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError>;

    /// Has the search of an overlay that is to be made or changed begin, on a bridge that filters VLANs or not. `None` until its first word, and
    /// then [`StateSink::changed`] of it. [`Backend::end_search`] ends the search if the overlay is not made or changed, as does some time.
    ///
    /// # Errors
    /// It cannot begin: the sentence of the search.
    fn begin_search(
        &mut self,
        overlay: &Overlay,
        filters: bool,
    ) -> Option<Result<(), BackendError>>;

    /// The overlay whose search has begun is not made or changed: the search ends, and a former one goes on.
    fn end_search(&mut self, overlay: &Name);

    /// Makes an overlay. A missing underlay address leaves it waiting, and a search that has not begun is not waited for.
    ///
    /// # Errors
    /// A limit.
    fn create_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError>;

    /// Changes properties of an overlay. Bridge, search and underlay address are the same.
    ///
    /// # Errors
    /// As [`Self::create_overlay`].
    fn set_overlay(&mut self, from: &Overlay, to: &Overlay) -> Result<(), BackendError>;

    /// Removes an overlay with its targets.
    ///
    /// # Errors
    /// A worker is late.
    fn delete_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError>;

    /// What overlays have at the moment, in their order; zero of one that is not known.
    fn overlay_counts(&self, overlays: &[Name]) -> Vec<OverlayCounts>;

    /// The targets of an overlay that match, each with an address behind it.
    fn targets(&self, overlay: &Name, query: &TargetQuery) -> Vec<TargetView>;

    /// Forgets learned addresses behind targets that match, and answers of a plugin; how many.
    fn flush_targets(&mut self, overlay: &Name, query: &TargetQuery) -> u64;

    /// The hosts of an overlay's registry.
    fn hosts(&self, overlay: &Name) -> Vec<HostView>;

    /// Has the registry of an overlay drop what a host has announced.
    fn forget_host(&mut self, overlay: &Name, host: &str);

    /// Has an overlay's registry give addresses. The answer comes from another thread, and perhaps never.
    ///
    /// # Errors
    /// It has no registry, or no network in that VLAN: a sentence.
    fn claim_addresses(
        &mut self,
        overlay: &Name,
        claim: AddressClaim,
        answer: Answered,
    ) -> Result<(), String>;

    /// Gives addresses back to an overlay's registry.
    ///
    /// # Errors
    /// As [`Self::claim_addresses`].
    fn release_addresses(&mut self, overlay: &Name, release: AddressRelease) -> Result<(), String>;

    /// Has an overlay take its registry as it is, though that is younger than what is known.
    fn resync(&mut self, overlay: &Name);

    /// Makes a VNIC and its attachment. A missing namespace or peer leaves it waiting.
    ///
    /// # Errors
    /// The interface or socket cannot be made; a privilege is missing; a limit.
    fn create_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError>;

    /// Changes the bridge, the address or properties of a VNIC, the rules of its place, or what a TAP can change in place
    /// (`address`, `host_mac`). Zone, and the rest of the attachment, are the same.
    ///
    /// # Errors
    /// As [`Self::create_vnic`].
    fn set_vnic(&mut self, from: &Vnic, to: &Vnic, place: &Place) -> Result<(), BackendError>;

    /// Removes a VNIC and what persists of its attachment.
    ///
    /// # Errors
    /// The host refused.
    fn delete_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError>;

    /// What these VNICs have of what counts for their owner while it is used.
    fn used(&self, _vnics: &[Name]) -> Used {
        Used::default()
    }

    /// These VNICs are of another user and group: what they have counts for that one, and their sockets are that one's. Peers that
    /// are connected stay. A VNIC that is not known is left out.
    ///
    /// # Errors
    /// The host refused.
    fn set_owner(
        &mut self,
        vnics: &[Name],
        from: (u32, u32),
        to: (u32, u32),
    ) -> Result<(), BackendError>;

    /// Makes a flow (no `from`), changes its properties, or removes it (no `to`). Its VNIC may be one that could not be made; then
    /// it has its flow once it is.
    ///
    /// # Errors
    /// The VNIC cannot be changed.
    fn set_flow(&mut self, from: Option<&Flow>, to: Option<&Flow>) -> Result<(), BackendError>;

    /// Gives a VNIC a vnd device, changes the device's name or properties, or takes it away (`None`): one that is open then lives on
    /// without a name. The VNIC may be one that could not be made; then it has its device once it is.
    ///
    /// # Errors
    /// The device cannot be made.
    fn set_vnd(&mut self, vnic: &Vnic, to: Option<&Vnd>, place: &Place)
    -> Result<(), BackendError>;

    /// The vnd devices that have no name any more, and are open, as they were.
    fn unlinked(&self) -> Vec<Vnd> {
        Vec::new()
    }

    /// How often programs found the rings of their frames full, by VNIC, in their order.
    fn flow_controls(&self, vnics: &[Name]) -> Vec<u64> {
        vec![0; vnics.len()]
    }

    /// The traffic of flows since they were made, in their order; zero if one is not known.
    fn flow_counters(&self, flows: &[Flow]) -> Vec<FlowCounters>;

    /// What the rules of a VNIC that count have counted, in their order: frames and bytes.
    fn counted(&self, _vnic: &Name) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Puts a static entry into a table, in the place of a learned one if there is one.
    ///
    /// # Errors
    /// The table has no room for it.
    fn fdb_add(&mut self, entry: &StaticEntry) -> Result<(), BackendError>;

    /// Removes a static entry.
    ///
    /// # Errors
    /// None is expected.
    fn fdb_delete(&mut self, entry: &StaticEntry) -> Result<(), BackendError>;

    /// Forgets one learned address; whether it was there.
    fn fdb_forget(&mut self, bridge: &Name, vlan: u16, mac: MacAddr) -> bool;

    /// Forgets all learned addresses that match; how many they were.
    fn fdb_flush(&mut self, bridge: &Name, query: &FdbQuery) -> u64;

    /// Asks the bridges behind a member of a spanning tree, or behind all, again whether they speak RSTP; behind how many.
    fn check_migration(&mut self, bridge: &Name, member: Option<&Name>) -> u64;

    /// The entries that match, in order of VLAN and address, `limit` at most.
    fn fdb_show(&mut self, bridge: &Name, query: &FdbQuery) -> FdbPage;

    /// The learned and sticky entries of these addresses, in any VLAN; none if there is no such bridge.
    fn fdb_learned(&mut self, bridge: &Name, addresses: &BTreeSet<MacAddr>) -> Vec<FdbEntry>;

    /// A table in numbers.
    fn table(&self, bridge: &Name) -> TableStats;

    /// The live states of uplinks or VNICs, in their order; down if one is not known.
    fn statuses(&self, members: &[Name]) -> Vec<Status>;

    /// The traffic of uplinks or VNICs since they were made, in their order; zero if one is not known.
    fn counters(&self, members: &[Name]) -> Vec<Counters>;

    /// What was dropped, by reason, of each member that has dropped something. The kernel is asked for nothing.
    fn drops(&self) -> BTreeMap<Name, BTreeMap<String, u64>>;

    /// What each worker did.
    fn workers(&self) -> Vec<WorkerStats>;

    /// Memory through which members and bridges forward, bridges first.
    fn regions(&self) -> Vec<Region> {
        Vec::new()
    }

    /// Which workers serve a bridge.
    fn bridge_place(&self, bridge: &Name) -> BridgePlace;

    /// The spanning tree of a bridge, if it has one.
    fn tree(&self, _bridge: &Name) -> Option<TreeView> {
        None
    }

    /// What multicast snooping of a bridge found, if it snoops.
    fn multicast(&self, _bridge: &Name) -> Option<McastView> {
        None
    }

    /// What a bridge knows of neighbours, if it answers for them.
    fn neighbours(&self, _bridge: &Name) -> Option<NeighboursView> {
        None
    }

    /// Has a worker serve a receive ring of a member, or all of them, from now on; how many another one served before. No
    /// frame is lost or overtaken.
    ///
    /// # Errors
    /// There is no such ring or worker, or a worker is late.
    fn move_rings(
        &mut self,
        member: &Name,
        ring: Option<u16>,
        worker: u16,
    ) -> Result<u16, BackendError>;

    /// Has a worker write the forwarding table of a bridge from now on; 1 if another one did before.
    ///
    /// # Errors
    /// There is no such worker, or one is late.
    fn move_table(&mut self, bridge: &Name, worker: u16) -> Result<u16, BackendError>;

    /// All of these at one moment: the traffic of members, the tables of bridges, and the workers.
    fn moment(&self, members: &[Name], bridges: &[Name]) -> Moment {
        Moment {
            counters: self.counters(members),
            tables: bridges.iter().map(|bridge| self.table(bridge)).collect(),
            workers: self.workers(),
        }
    }

    /// How the memory of a capture is divided whose rings have so many bytes.
    ///
    /// # Errors
    /// There is no such memory.
    fn capture_shape(&mut self, _ring_bytes: u32) -> Result<Shape, BackendError> {
        Err(BackendError::Unsupported("there are no workers".into()))
    }

    /// Begins a capture. It ends with [`Backend::end_capture`], or when its link goes.
    ///
    /// # Errors
    /// No memory; a limit.
    fn start_capture(&mut self, _wanted: CaptureWanted) -> Result<CaptureMade, BackendError> {
        Err(BackendError::Unsupported("there are no workers".into()))
    }

    /// Ends a capture; nothing if it has ended.
    fn end_capture(&mut self, _capture: &Arc<Capture>) {}

    /// What keeps frames from being lost between this daemon and its successor.
    fn hand_over(&mut self) -> Vec<Handed> {
        Vec::new()
    }

    /// Uses nothing any more of what was handed over, sends what it holds of frames, and does `then` at once; whether all that was
    /// done.
    fn rest(&mut self, then: Step) -> bool {
        then()
    }

    /// The successor is gone: all goes on here.
    fn keep(&mut self) {}

    /// What members have counted, but for what the kernel counts: for a successor.
    fn last_counters(&mut self) -> Vec<(Name, Counters)> {
        Vec::new()
    }

    /// What is made from now on has no effect on the host before [`Backend::adopted`].
    fn hold(&mut self) {}

    /// What the daemon before this one has handed over, for what was made, or is before [`Backend::adopted`].
    fn take_over(&mut self, _handed: Vec<Handed>) {}

    /// Goes on with that at once when `is_free` has returned true, which waits until the daemon before uses it no more; whether it
    /// does.
    fn go(&mut self, is_free: Step) -> bool {
        is_free()
    }

    /// Goes on counting where the daemon before has ended.
    fn carry(&mut self, _counters: Vec<(Name, Counters)>) {}

    /// Every object of the stored document was made: what was held goes on, and what an earlier daemon left on the host and none
    /// of them took over is removed.
    fn adopted(&mut self) {}

    /// Whether every worker has made progress since the last call, or sleeps with nothing to do: the
    /// watchdog is fed only then.
    fn alive(&mut self) -> bool;

    /// Ends the workers, each after the burst in hand. What persists stays, and no call follows.
    fn shutdown(&mut self);
}
