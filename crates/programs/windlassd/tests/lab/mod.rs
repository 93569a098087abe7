//! A host of the test's own: endpoints whose rings are in this process, that go down when they are told to, and a refusal
//! at any step.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windlass_api::{Attachment, Uplink, Vnic};
use windlass_attach::endpoint::{Endpoint, Event, InterfaceConf, Rings, Status};
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick};
use windlass_shm::{Quota, Section, Tails};
use windlass_sys::netns::{NetnsId, NetnsRef};
use windlassd::backend::{BackendError, Place};
use windlassd::dataplane::host::{Device, Host};

/// Waits until something holds, ten seconds at most.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What is attached to a member: the guest's side of it, for the test.
pub struct Guest {
    /// Frames that it sends.
    out: Mutex<VecDeque<Vec<u8>>>,
    /// Frames that it was sent.
    got: AtomicUsize,
    /// A worker that visits it stands still.
    holds: AtomicBool,
    /// A worker stands still in it.
    held: AtomicBool,
    /// Receive halves that are somewhere.
    pub rings: AtomicUsize,
    /// It is to go down.
    leaves: AtomicBool,
    /// Times that its endpoint was told that no worker has its rings, and how many were somewhere then.
    pub detached: Mutex<Vec<usize>>,
    /// Times that its endpoint was polled.
    pub polls: AtomicUsize,
    /// Times that its endpoint was deleted for good.
    pub deleted: AtomicUsize,
    /// The kernel interface behind it.
    pub interface: Mutex<InterfaceConf>,
    /// What it may map.
    pub quota: Quota,
    /// The namespace that it was in when it was polled last.
    pub is_in: Mutex<Option<NetnsId>>,
    kick: OwnedFd,
    wake: OwnedFd,
}

impl Guest {
    fn new() -> Guest {
        let eventfd = || windlass_sys::eventfd::create().unwrap();
        Guest {
            out: Mutex::default(),
            got: AtomicUsize::new(0),
            holds: AtomicBool::new(false),
            held: AtomicBool::new(false),
            rings: AtomicUsize::new(0),
            leaves: AtomicBool::new(false),
            detached: Mutex::default(),
            polls: AtomicUsize::new(0),
            deleted: AtomicUsize::new(0),
            interface: Mutex::default(),
            quota: Quota::new(8),
            is_in: Mutex::default(),
            kick: eventfd(),
            wake: eventfd(),
        }
    }

    /// Sends frames.
    pub fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.out.lock().unwrap().extend(frames);
        self.notify();
    }

    /// Has a worker look at its ring.
    pub fn notify(&self) {
        windlass_sys::eventfd::signal(self.kick.as_fd()).unwrap();
    }

    /// Whether the workers have taken all that it sent.
    pub fn has_sent(&self) -> bool {
        self.out.lock().unwrap().is_empty()
    }

    /// Frames that it was sent.
    pub fn got(&self) -> usize {
        self.got.load(Ordering::Acquire)
    }

    /// The same; it counts from 0 again.
    pub fn take_got(&self) -> usize {
        self.got.swap(0, Ordering::AcqRel)
    }

    /// Holds up the worker that visits it, from when this returns until the guard is dropped.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.holds.store(true, Ordering::Release);
        self.notify();
        let hold = Hold(self.clone());
        until("the worker is late", || self.held.load(Ordering::Acquire));
        hold
    }

    /// Goes away.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Release);
        windlass_sys::eventfd::signal(self.wake.as_fd()).unwrap();
    }
}

/// A worker is late.
pub struct Hold(Arc<Guest>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.store(false, Ordering::Release);
    }
}

struct Rx(Arc<Guest>);

impl Drop for Rx {
    fn drop(&mut self) {
        self.0.rings.fetch_sub(1, Ordering::AcqRel);
    }
}

impl RxPort for Rx {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        while self.0.holds.load(Ordering::Acquire) {
            self.0.held.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut out = self.0.out.lock().unwrap();
        let mut n = 0;
        while n < limit.frames.min(BURST)
            && let Some(frame) = out.pop_front()
        {
            heads.snap[n].0[HEADROOM..][..frame.len()].copy_from_slice(&frame);
            heads.admit(n, frame.len() as u32, Claim::NONE);
            n += 1;
        }
        heads.n = n;
        let more = if out.is_empty() {
            More::Drained
        } else {
            More::Left
        };
        (Loan::default(), more)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        match self.0.has_sent() && !self.0.holds.load(Ordering::Acquire) {
            true => Armed::Yes,
            false => Armed::Work,
        }
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.kick.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

struct Tx(Arc<Guest>);

impl TxPort for Tx {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, picks: &[Pick]) -> Sent {
        self.0.got.fetch_add(picks.len(), Ordering::AcqRel);
        Sent {
            taken: picks.len(),
            frames: picks.len() as u64,
            stop: Stop::Done,
            kick: Kick::No,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

enum Link {
    Waiting,
    Up,
    Leaving,
}

struct TestEndpoint {
    guest: Arc<Guest>,
    lab: Arc<Mutex<Steps>>,
    name: String,
    link: Link,
    is_condemned: bool,
    connects: u64,
    /// The namespace of a TAP.
    netns: Option<String>,
}

impl Endpoint for TestEndpoint {
    fn poll(&mut self, _: Instant) -> Vec<Event> {
        let _ = windlass_sys::eventfd::drain(self.guest.wake.as_fd());
        let netns = self.netns.as_deref();
        let is_in = netns.and_then(|name| Some(NetnsRef::open(name).ok()?.id()));
        *self.guest.is_in.lock().unwrap() = is_in;
        self.guest.polls.fetch_add(1, Ordering::AcqRel);
        match self.link {
            Link::Waiting if !self.guest.leaves.load(Ordering::Acquire) => {
                self.link = Link::Up;
                self.connects += 1;
                self.guest.rings.fetch_add(1, Ordering::AcqRel);
                vec![Event::Up(Rings {
                    rx: vec![Box::new(Rx(self.guest.clone()))],
                    tx: Arc::new(Tx(self.guest.clone())),
                })]
            }
            Link::Up if self.is_condemned || self.guest.leaves.load(Ordering::Acquire) => {
                self.link = Link::Leaving;
                self.is_condemned = false;
                vec![Event::Down("it was told to leave".into())]
            }
            _ => Vec::new(),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.guest.wake.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn namespace(&self) -> Option<(&str, Option<NetnsId>)> {
        Some((self.netns.as_deref()?, *self.guest.is_in.lock().unwrap()))
    }

    fn quota(&self) -> Option<&Quota> {
        Some(&self.guest.quota)
    }

    fn condemn(&mut self, _: &str) {
        self.is_condemned = true;
    }

    fn detached(&mut self) {
        let rings = self.guest.rings.load(Ordering::Acquire);
        self.guest.detached.lock().unwrap().push(rings);
        self.link = Link::Waiting;
    }

    fn status(&self) -> Status {
        Status {
            up: matches!(self.link, Link::Up),
            reason: "nobody is there".into(),
            details: Vec::new(),
            connects: self.connects,
        }
    }

    fn configure(&mut self, interface: &InterfaceConf) -> Result<(), String> {
        let step = format!("configure {}", self.name);
        self.lab.lock().unwrap().take(step)?;
        *self.guest.interface.lock().unwrap() = interface.clone();
        Ok(())
    }

    fn delete(&mut self) {
        self.guest.deleted.fetch_add(1, Ordering::AcqRel);
        let lab = self.lab.lock().unwrap();
        lab.deleted.fetch_add(1, Ordering::AcqRel);
    }
}

/// What was asked of the host, and at which step it refuses.
#[derive(Default)]
pub struct Steps {
    /// Steps since the last time that this was cleared.
    pub taken: Vec<String>,
    /// The number of the step that is refused.
    pub refuse: Option<usize>,
    /// From which step on every one is refused.
    refuse_from: Option<usize>,
    /// Guests that were deleted for good.
    deleted: AtomicUsize,
    /// What is attached, by member.
    guests: BTreeMap<String, Arc<Guest>>,
}

impl Steps {
    /// From now on, every step is refused, after so many others.
    pub fn refuse_from(&mut self, step: usize) {
        self.taken.clear();
        self.refuse_from = Some(step);
    }

    /// This step alone is refused, of those from now on.
    pub fn refuse_once(&mut self, step: usize) {
        self.taken.clear();
        (self.refuse, self.refuse_from) = (Some(step), None);
    }

    fn take(&mut self, step: String) -> Result<(), String> {
        let number = self.taken.len();
        self.taken.push(step.clone());
        let is_refused = self.refuse_from.is_some_and(|from| from <= number);
        match is_refused || self.refuse == Some(number) {
            true => Err(format!("{step}: refused")),
            false => Ok(()),
        }
    }
}

/// The host; clones are the same one.
#[derive(Clone, Default)]
pub struct Lab {
    steps: Arc<Mutex<Steps>>,
}

impl Lab {
    /// What was asked of it.
    pub fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap()
    }

    /// What is attached to a member now.
    pub fn guest(&self, member: &str) -> Arc<Guest> {
        self.steps().guests[member].clone()
    }

    /// Guests that were deleted for good.
    pub fn deleted(&self) -> usize {
        self.steps().deleted.load(Ordering::Acquire)
    }

    fn endpoint(
        &self,
        name: &str,
        netns: Option<String>,
    ) -> Result<Box<dyn Endpoint>, BackendError> {
        let mut steps = self.steps();
        steps
            .take(format!("attach {name}"))
            .map_err(BackendError::Host)?;
        let guest = Arc::new(Guest::new());
        steps.guests.insert(name.to_owned(), guest.clone());
        Ok(Box::new(TestEndpoint {
            guest,
            lab: self.steps.clone(),
            name: name.to_owned(),
            link: Link::Waiting,
            is_condemned: false,
            connects: 0,
            netns,
        }))
    }
}

impl Host for Lab {
    fn vnic(&mut self, vnic: &Vnic, _: &Place) -> Result<Option<Box<dyn Endpoint>>, BackendError> {
        let netns = match &vnic.attach {
            Attachment::Tap(tap) => tap.netns.as_ref().map(ToString::to_string),
            _ => None,
        };
        self.endpoint(vnic.name.as_str(), netns).map(Some)
    }

    fn uplink(&mut self, uplink: &Uplink) -> Result<Box<dyn Endpoint>, BackendError> {
        self.endpoint(uplink.name.as_str(), None)
    }

    fn device(&mut self, _: &str) -> Option<Device> {
        Some(Device {
            mtu: 1500,
            mac: 0x0002,
        })
    }

    fn release_others(&mut self, _: &[String], _: &dyn Fn(&str) -> bool) {}
}
