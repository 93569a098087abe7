//! The data plane of the daemon: workers, attachments, forwarding tables.
//!
//! # Where it sits
//! ```text
//! engine thread: DataPlaneBackend (Backend) --- requests ---> ports thread: Ports
//!                                                           |  Endpoint of each member: sockets, TAPs
//!                                                           |  DataPlane: topology, workers
//!                                                           v
//!                                                        workers
//! ```
//!
//! # Model
//! One thread, *ports*, owns everything: it drives the endpoints that have an event (they never block), moves their
//! rings to and from the workers, and does what the engine asks, one request after another (`ports::rounds`).
//! An edit of the engine takes effect at its end, or not at all (`ports::edit`).
//! `translate` turns the objects of the API into what the data path is configured with.
//!
//! # Failure modes
//! A request waits for the ports thread, and that thread for workers, at most some seconds; a worker that hangs is
//! reported by [`Backend::alive`].

mod firewalls;
mod guest;
pub mod host;
mod ports;
mod translate;
mod veth;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use windlass_api::{
    AddressClaim, AddressRelease, Bridge, BridgePlace, Counters, FdbEntry, FdbPage, FdbQuery, Flow,
    FlowCounters, HostView, MacAddr, McastView, Name, NeighboursView, Overlay, StaticEntry, Status,
    TableStats, TargetQuery, TargetView, TreeView, Uplink, Vnd, Vnic, WorkerStats,
};
use windlass_attach::endpoint::Handed;
use windlass_capture::ring::Shape;
use windlass_sync::tsc::Clock;
use windlass_worker::{Capture, DataPlane, DataPlaneOptions};

use crate::backend::{
    Backend, BackendError, CaptureMade, CaptureWanted, Moment, OverlayCounts, Place, Region,
    StateSink, Step,
};
use crate::lookup::Answered;
use crate::options::Options;
use crate::shares::{Share, Used};
use guest::RingProgress;
use host::{Host, System};
pub(crate) use ports::tell_time;
use ports::{Ports, Request};

/// Members that one daemon can have.
const MEMBERS_MAX: usize = 4096;

/// Makes the data plane: its workers are running when this returns.
///
/// # Errors
/// If the workers cannot be started as the options say.
pub fn build(options: &Options, sink: StateSink) -> Result<Box<dyn Backend>> {
    let workers = options.workers.len().max(1) as u16;
    // The same directory by another path is the same daemon's. They are there.
    let [runtime_dir, state_dir] = [&options.runtime_dir, &options.state_dir].map(|directory| {
        directory
            .canonicalize()
            .unwrap_or_else(|_| directory.clone())
    });
    let state_id = state_id(&state_dir);
    let progress = RingProgress::new(&runtime_dir, &state_dir, &state_id);
    let host = System::new(
        workers,
        state_id,
        progress,
        &runtime_dir,
        sink.holders().clone(),
        options.limits.per_user.max(Share::Mappings),
        options.shortcut.clone(),
    );
    build_on(Box::new(host), options, sink)
}

/// Makes the data plane on a host.
///
/// # Errors
/// As [`build`].
pub fn build_on(
    host: Box<dyn Host>,
    options: &Options,
    sink: StateSink,
) -> Result<Box<dyn Backend>> {
    let cores: Vec<Option<usize>> = match options.workers.as_slice() {
        [] => vec![None],
        cores => cores.iter().map(|c| Some(*c as usize)).collect(),
    };
    check_cores(&options.workers)?;
    Clock::get();
    let plane = DataPlane::start(&DataPlaneOptions {
        workers: cores.clone(),
        members_max: MEMBERS_MAX,
    })
    .context("cannot start the workers")?;
    let wake = Arc::new(windlass_sys::eventfd::create().context("eventfd")?);
    let (requests, inbox) = channel();
    let per_user = options.limits.per_user;
    let runtime_dir = &options.runtime_dir;
    let ports = Ports::new(
        plane,
        cores,
        sink,
        host,
        wake.clone(),
        per_user,
        runtime_dir,
    );
    let ports = ports.context("the ports thread cannot wait")?;
    let thread = std::thread::Builder::new()
        .name("ports".into())
        .spawn(move || ports.run(&inbox))?;
    Ok(Box::new(DataPlaneBackend {
        requests,
        wake,
        thread: Some(thread),
    }))
}

/// Whether this process may run on these cores.
///
/// # Errors
/// The first on which it may not.
pub fn check_cores(cores: &[u32]) -> Result<()> {
    let Ok(allowed) = windlass_sys::affinity::allowed_cpus() else {
        return Ok(());
    };
    match cores
        .iter()
        .find(|core| !allowed.contains(&(**core as usize)))
    {
        Some(core) => {
            let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
            bail!(
                "workers: core {core} is not one that windlassd may run on (these are {})",
                allowed.join(", ")
            )
        }
        None => Ok(()),
    }
}

/// Stands for this daemon in the marks of what it makes on the host: TAPs, packet filters. Made of the path of the state
/// directory, so that the next daemon with the same configuration knows its own, and another daemon does not.
fn state_id(directory: &Path) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in directory.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// The engine's end of the ports thread.
struct DataPlaneBackend {
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl DataPlaneBackend {
    /// Has the ports thread do something, and waits for the answer. None if that thread is gone.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ports) -> T + Send + 'static,
    ) -> Option<T> {
        let (done, wait) = sync_channel(1);
        let request: Request = Box::new(move |ports: &mut Ports| {
            let _ = done.send(work(ports));
        });
        self.requests.send(request).ok()?;
        let _ = windlass_sys::eventfd::signal(self.wake.as_fd());
        wait.recv().ok()
    }

    fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ports) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        self.ask(work).unwrap_or_else(|| {
            Err(BackendError::Host(
                "the thread that drives the attachments has ended".into(),
            ))
        })
    }
}

impl Backend for DataPlaneBackend {
    fn begin_edit(&mut self) {
        self.ask(Ports::begin_edit);
    }

    fn configure(&mut self) -> Result<(), (Name, BackendError)> {
        self.ask(Ports::configure).unwrap_or(Ok(()))
    }

    fn end_edit(&mut self) {
        self.ask(Ports::end_edit);
    }

    fn create_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let bridge = bridge.clone();
        self.change(move |p| p.create_bridge(&bridge))
    }

    fn set_bridge(&mut self, from: &Bridge, to: &Bridge) -> Result<(), BackendError> {
        let (from, to) = (from.clone(), to.clone());
        self.change(move |p| p.set_bridge(&from, &to))
    }

    fn delete_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let bridge = bridge.clone();
        self.change(move |p| {
            p.delete_bridge(&bridge);
            Ok(())
        })
    }

    fn create_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        let uplink = uplink.clone();
        self.change(move |p| p.create_uplink(&uplink))
    }

    fn set_uplink(&mut self, from: &Uplink, to: &Uplink) -> Result<(), BackendError> {
        let (from, to) = (from.clone(), to.clone());
        self.change(move |p| p.set_uplink(&from, &to))
    }

    fn delete_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        let uplink = uplink.clone();
        self.change(move |p| p.delete_uplink(&uplink))
    }

    fn begin_search(
        &mut self,
        overlay: &Overlay,
        filters: bool,
    ) -> Option<Result<(), BackendError>> {
        let overlay = overlay.clone();
        self.ask(move |p| p.begin_search_ahead(&overlay, filters))
            .unwrap_or(Some(Ok(())))
    }

    fn end_search(&mut self, overlay: &Name) {
        let overlay = overlay.clone();
        // Where that thread has ended, so have the searches.
        let _ = self.ask(move |p| p.give_up(&overlay));
    }

    fn create_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError> {
        let overlay = overlay.clone();
        self.change(move |p| p.create_overlay(&overlay))
    }

    fn set_overlay(&mut self, from: &Overlay, to: &Overlay) -> Result<(), BackendError> {
        let (from, to) = (from.clone(), to.clone());
        self.change(move |p| p.set_overlay(&from, &to))
    }

    fn delete_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError> {
        let overlay = overlay.clone();
        self.change(move |p| p.delete_overlay(&overlay))
    }

    fn overlay_counts(&self, overlays: &[Name]) -> Vec<OverlayCounts> {
        let unknown = vec![OverlayCounts::default(); overlays.len()];
        let overlays = overlays.to_vec();
        self.ask(move |p| overlays.iter().map(|o| p.overlay_counts(o)).collect())
            .unwrap_or(unknown)
    }

    fn targets(&self, overlay: &Name, query: &TargetQuery) -> Vec<TargetView> {
        let (overlay, query) = (overlay.clone(), query.clone());
        self.ask(move |p| p.targets(&overlay, &query))
            .unwrap_or_default()
    }

    fn flush_targets(&mut self, overlay: &Name, query: &TargetQuery) -> u64 {
        let (overlay, query) = (overlay.clone(), query.clone());
        self.ask(move |p| p.flush_targets(&overlay, &query))
            .unwrap_or(0)
    }

    fn hosts(&self, overlay: &Name) -> Vec<HostView> {
        let overlay = overlay.clone();
        self.ask(move |p| p.hosts(&overlay)).unwrap_or_default()
    }

    fn forget_host(&mut self, overlay: &Name, host: &str) {
        let (overlay, host) = (overlay.clone(), host.to_owned());
        self.ask(move |p| p.forget_host(&overlay, host));
    }

    fn claim_addresses(
        &mut self,
        overlay: &Name,
        claim: AddressClaim,
        answer: Answered,
    ) -> Result<(), String> {
        let overlay = overlay.clone();
        self.ask(move |p| p.claim_addresses(&overlay, claim, answer))
            .unwrap_or(Ok(()))
    }

    fn release_addresses(&mut self, overlay: &Name, release: AddressRelease) -> Result<(), String> {
        let overlay = overlay.clone();
        self.ask(move |p| p.release_addresses(&overlay, release))
            .unwrap_or(Ok(()))
    }

    fn resync(&mut self, overlay: &Name) {
        let overlay = overlay.clone();
        self.ask(move |p| p.resync(&overlay));
    }

    fn create_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError> {
        let (vnic, place) = (vnic.clone(), place.clone());
        self.change(move |p| p.create_vnic(&vnic, &place))
    }

    fn set_vnic(&mut self, from: &Vnic, to: &Vnic, place: &Place) -> Result<(), BackendError> {
        let (from, to, place) = (from.clone(), to.clone(), place.clone());
        self.change(move |p| p.set_vnic(&from, &to, &place))
    }

    fn delete_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError> {
        let (vnic, place) = (vnic.clone(), place.clone());
        self.change(move |p| p.delete_vnic(&vnic, &place))
    }

    fn used(&self, vnics: &[Name]) -> Used {
        let vnics = vnics.to_vec();
        self.ask(move |p| p.used(&vnics)).unwrap_or_default()
    }

    fn set_owner(
        &mut self,
        vnics: &[Name],
        from: (u32, u32),
        to: (u32, u32),
    ) -> Result<(), BackendError> {
        let vnics = vnics.to_vec();
        self.change(move |p| p.set_owner(&vnics, from, to))
    }

    fn tree(&self, bridge: &Name) -> Option<TreeView> {
        let bridge = bridge.clone();
        self.ask(move |p| p.tree(&bridge)).flatten()
    }

    fn multicast(&self, bridge: &Name) -> Option<McastView> {
        let bridge = bridge.clone();
        self.ask(move |p| p.multicast(&bridge)).flatten()
    }

    fn neighbours(&self, bridge: &Name) -> Option<NeighboursView> {
        let bridge = bridge.clone();
        self.ask(move |p| p.neighbours(&bridge)).flatten()
    }

    fn set_flow(&mut self, from: Option<&Flow>, to: Option<&Flow>) -> Result<(), BackendError> {
        let (from, to) = (from.cloned(), to.cloned());
        self.change(move |p| {
            p.set_flow(from.as_ref(), to.as_ref());
            Ok(())
        })
    }

    fn set_vnd(
        &mut self,
        vnic: &Vnic,
        to: Option<&Vnd>,
        place: &Place,
    ) -> Result<(), BackendError> {
        let (vnic, to, place) = (vnic.clone(), to.cloned(), place.clone());
        self.change(move |p| p.set_vnd(&vnic, to.as_ref(), &place))
    }

    fn unlinked(&self) -> Vec<Vnd> {
        self.ask(|p| p.unlinked()).unwrap_or_default()
    }

    fn flow_controls(&self, vnics: &[Name]) -> Vec<u64> {
        let unknown = vec![0; vnics.len()];
        let vnics = vnics.to_vec();
        self.ask(move |p| p.flow_controls(&vnics))
            .unwrap_or(unknown)
    }

    fn flow_counters(&self, flows: &[Flow]) -> Vec<FlowCounters> {
        let unknown = vec![FlowCounters::default(); flows.len()];
        let flows = flows.to_vec();
        self.ask(move |p| flows.iter().map(|flow| p.flow_counters(flow)).collect())
            .unwrap_or(unknown)
    }

    fn counted(&self, vnic: &Name) -> Vec<(u64, u64)> {
        let vnic = vnic.clone();
        self.ask(move |p| p.counted(&vnic)).unwrap_or_default()
    }

    fn fdb_add(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let entry = entry.clone();
        self.change(move |p| p.fdb_add(&entry))
    }

    fn fdb_delete(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let entry = entry.clone();
        self.change(move |p| p.fdb_delete(&entry))
    }

    fn fdb_forget(&mut self, bridge: &Name, vlan: u16, mac: MacAddr) -> bool {
        let bridge = bridge.clone();
        self.ask(move |p| p.fdb_forget(&bridge, vlan, mac))
            .unwrap_or(false)
    }

    fn fdb_flush(&mut self, bridge: &Name, query: &FdbQuery) -> u64 {
        let (bridge, query) = (bridge.clone(), query.clone());
        self.ask(move |p| p.fdb_flush(&bridge, &query)).unwrap_or(0)
    }

    fn check_migration(&mut self, bridge: &Name, member: Option<&Name>) -> u64 {
        let (bridge, member) = (bridge.clone(), member.cloned());
        self.ask(move |p| p.check_migration(&bridge, member.as_ref()))
            .unwrap_or(0)
    }

    fn fdb_show(&mut self, bridge: &Name, query: &FdbQuery) -> FdbPage {
        let (bridge, query) = (bridge.clone(), query.clone());
        self.ask(move |p| p.fdb_show(&bridge, &query))
            .unwrap_or_default()
    }

    fn fdb_learned(&mut self, bridge: &Name, addresses: &BTreeSet<MacAddr>) -> Vec<FdbEntry> {
        let (bridge, addresses) = (bridge.clone(), addresses.clone());
        self.ask(move |p| p.fdb_learned(&bridge, &addresses))
            .unwrap_or_default()
    }

    fn table(&self, bridge: &Name) -> TableStats {
        let bridge = bridge.clone();
        self.ask(move |p| p.table(&bridge)).unwrap_or_default()
    }

    fn statuses(&self, members: &[Name]) -> Vec<Status> {
        let unknown = vec![Status::default(); members.len()];
        let members = members.to_vec();
        self.ask(move |p| members.iter().map(|m| p.status(m)).collect())
            .unwrap_or(unknown)
    }

    fn counters(&self, members: &[Name]) -> Vec<Counters> {
        let unknown = vec![Counters::default(); members.len()];
        let members = members.to_vec();
        self.ask(move |p| members.iter().map(|m| p.counters(m)).collect())
            .unwrap_or(unknown)
    }

    fn drops(&self) -> BTreeMap<Name, BTreeMap<String, u64>> {
        self.ask(|p| p.drops()).unwrap_or_default()
    }

    fn workers(&self) -> Vec<WorkerStats> {
        self.ask(|p| p.workers()).unwrap_or_default()
    }

    fn regions(&self) -> Vec<Region> {
        self.ask(|p| p.regions()).unwrap_or_default()
    }

    fn bridge_place(&self, bridge: &Name) -> BridgePlace {
        let bridge = bridge.clone();
        self.ask(move |p| p.bridge_place(&bridge))
            .unwrap_or_default()
    }

    fn move_rings(
        &mut self,
        member: &Name,
        ring: Option<u16>,
        worker: u16,
    ) -> Result<u16, BackendError> {
        let member = member.clone();
        self.change(move |p| p.move_rings(&member, ring, worker))
    }

    fn move_table(&mut self, bridge: &Name, worker: u16) -> Result<u16, BackendError> {
        let bridge = bridge.clone();
        self.change(move |p| p.move_table(&bridge, worker))
    }

    // One question, not one for each.
    fn moment(&self, members: &[Name], bridges: &[Name]) -> Moment {
        let unknown = Moment {
            counters: vec![Counters::default(); members.len()],
            tables: vec![TableStats::default(); bridges.len()],
            workers: Vec::new(),
        };
        let (members, bridges) = (members.to_vec(), bridges.to_vec());
        self.ask(move |p| Moment {
            counters: members.iter().map(|m| p.counters(m)).collect(),
            tables: bridges.iter().map(|b| p.table(b)).collect(),
            workers: p.workers(),
        })
        .unwrap_or(unknown)
    }

    fn capture_shape(&mut self, ring_bytes: u32) -> Result<Shape, BackendError> {
        self.change(move |p| p.capture_shape(ring_bytes))
    }

    fn start_capture(&mut self, wanted: CaptureWanted) -> Result<CaptureMade, BackendError> {
        self.change(|p| p.start_capture(wanted))
    }

    fn end_capture(&mut self, capture: &Arc<Capture>) {
        let capture = capture.clone();
        self.ask(move |p| p.end_capture(&capture));
    }

    fn hand_over(&mut self) -> Vec<Handed> {
        self.ask(|p| p.hand_over()).unwrap_or_default()
    }

    fn rest(&mut self, then: Step) -> bool {
        self.ask(|p| p.rest() && then()).unwrap_or(false)
    }

    fn keep(&mut self) {
        self.ask(Ports::keep);
    }

    fn last_counters(&mut self) -> Vec<(Name, Counters)> {
        self.ask(|p| p.last_counters()).unwrap_or_default()
    }

    fn hold(&mut self) {
        self.ask(Ports::hold);
    }

    fn take_over(&mut self, handed: Vec<Handed>) {
        self.ask(|p| p.take_over(handed));
    }

    fn go(&mut self, is_free: Step) -> bool {
        self.ask(|p| {
            let goes_on = is_free();
            if goes_on {
                p.go();
            }
            goes_on
        })
        .unwrap_or(false)
    }

    fn carry(&mut self, counters: Vec<(Name, Counters)>) {
        self.ask(|p| p.carry(counters));
    }

    fn adopted(&mut self) {
        self.ask(Ports::adopted);
    }

    fn alive(&mut self) -> bool {
        self.ask(Ports::alive).unwrap_or(false)
    }

    fn shutdown(&mut self) {
        self.ask(Ports::stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for DataPlaneBackend {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shutdown();
        }
    }
}
