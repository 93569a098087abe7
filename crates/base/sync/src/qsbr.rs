//! Quiescent-state-based reclamation: readers follow a pointer with one Acquire load and no shared
//! write.
//!
//! # Purpose
//!
//! Workers look at the topology, the guest memory maps and the forwarding table for every burst;
//! control threads replace them rarely. What was replaced must stay until no worker can still look
//! at it. Workers say so themselves, once a loop, by one store to a line of their own.
//!
//! # Where it sits
//!
//! ```text
//!   worker loop                                  control thread
//!   section() -> load() -> ... visit ...         publish(new) -> Retired(old)
//!   drop section; quiesce()  ----- epoch ----->  grace over?  -> free old
//!   offline(); epoll_wait; online()
//! ```
//!
//! # Model
//!
//! A [`Domain`] counts epochs. A writer unlinks the old value and then moves the epoch on
//! ([`Domain::start_grace`]). A worker that [quiesces](Worker::quiesce) copies the epoch to its own
//! slot. When every slot has reached the writer's epoch, every worker has passed a point at which
//! it held nothing, and the [`Grace`] is over. A worker that is about to sleep is *offline*: its
//! slot holds the largest number, so that nobody waits for it.
//!
//! [`Section`] is the proof that a worker is online. It borrows the worker mutably and everything
//! that is read under it borrows the section, so nothing can be kept over a quiescent point:
//!
//! ```compile_fail,E0499
//! # use windlass_sync::qsbr::{Domain, Published};
//! let domain = Domain::new(1);
//! let topology = Published::new(&domain, Box::new(7));
//! let mut worker = domain.register();
//! let section = worker.section();
//! let kept = topology.load(&section);
//! worker.quiesce(); // error: `worker` is still borrowed by `section`, which `kept` keeps alive
//! println!("{kept}");
//! ```
//!
//! Without the use after the quiescent point it compiles:
//!
//! ```
//! # use windlass_sync::qsbr::{Domain, Published};
//! let domain = Domain::new(1);
//! let topology = Published::new(&domain, Box::new(7));
//! let mut worker = domain.register();
//! let section = worker.section();
//! assert_eq!(*topology.load(&section), 7);
//! worker.quiesce();
//! ```
//!
//! A section does not leave its thread:
//!
//! ```compile_fail,E0277
//! # use windlass_sync::qsbr::Domain;
//! let mut worker = Domain::new(1).register();
//! let section = worker.section();
//! std::thread::scope(|s| { s.spawn(|| drop(section)); });
//! ```
//!
//! # States
//!
//! | slot | meaning | leaves by |
//! | --- | --- | --- |
//! | `OFFLINE` | holds nothing and looks at nothing | [`Worker::online`], [`Worker::section`] |
//! | epoch `e` | everything unlinked before epoch `e` began is out of its hands | [`Worker::quiesce`], [`Worker::offline`] |
//!
//! # Ownership and lifetime
//!
//! [`Published`] owns the current value; [`Retired`] owns a replaced one and frees it only after
//! its grace, by [`Retired::wait`] or through a [`Limbo`]. A `Retired` or a `Limbo` that is dropped
//! early leaks what it holds: a leak is a counter that grows, a free too early is another guest's
//! memory. Domains carry an identity, so a section or a grace of one domain is refused by another.
//!
//! # Synchronization
//!
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `publish`: pointer swap, AcqRel | `load`: Acquire | the new value is whole when a worker follows the pointer |
//! | `start_grace`: epoch add, AcqRel | `quiesce`, `online`: epoch load, Acquire | a worker that has copied epoch `e` sees every pointer that was swapped before `e` began |
//! | `quiesce`, `offline`, `online`: slot store, Release | `is_over`: slot load, Acquire | the worker's last reads of the old value come before the free |
//! | `online`: slot store, then fence SeqCst, then pointer loads | `start_grace`: pointer swap, then fence SeqCst, then slot loads | either the writer sees the worker online, or the worker sees the new pointer (store buffering: without both fences both may look at the past) |
//!
//! `quiesce` needs no such fence: until its store is seen, the writer sees an older epoch and
//! merely waits longer.
//!
//! # Limits
//!
//! The number of workers is fixed when the domain is made. Epochs are 64 bits and do not wrap in
//! practice.
//!
//! # Failure modes
//!
//! A worker that stays online without quiescing holds every grace open: [`Grace::wait`] and
//! [`Retired::wait`] take a timeout, and [`Domain::laggard`] names the worker.

use crate::Padded;
use crate::shim::{Arc, AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Slot value of a worker that holds nothing: no epoch is larger.
const OFFLINE: u64 = u64::MAX;

/// First and longest pause between two looks at the slots by a waiting control thread.
const POLL_FIRST: Duration = Duration::from_micros(20);
const POLL_LONGEST: Duration = Duration::from_millis(1);

/// Identity of a [`Domain`], never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(u64);

impl DomainId {
    fn next() -> Self {
        // Identities order nothing, so the model need not see them: always the plain atomic.
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

struct WorkerSlot {
    epoch: AtomicU64,
    taken: AtomicBool,
}

struct Shared {
    id: DomainId,
    epoch: Padded<AtomicU64>,
    slots: Box<[Padded<WorkerSlot>]>,
}

/// A set of workers and the epochs that they pass. Clones are handles to the same domain.
#[derive(Clone)]
pub struct Domain {
    shared: Arc<Shared>,
}

impl Domain {
    /// A domain for at most `workers` workers at a time.
    pub fn new(workers: usize) -> Self {
        let slot = |_| {
            let (epoch, taken) = (AtomicU64::new(OFFLINE), AtomicBool::new(false));
            Padded::new(WorkerSlot { epoch, taken })
        };
        let shared = Shared {
            id: DomainId::next(),
            epoch: Padded::new(AtomicU64::new(0)),
            slots: (0..workers).map(slot).collect(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// This domain's identity.
    pub fn id(&self) -> DomainId {
        self.shared.id
    }

    /// Takes a slot for a worker, which starts offline.
    ///
    /// # Panics
    ///
    /// If as many workers are registered as the domain was made for.
    pub fn register(&self) -> Worker {
        // Acquire pairs with the Release of a dropped worker, whose slot says OFFLINE by then.
        let claim = |slot: &Padded<WorkerSlot>| {
            slot.taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let index = self.shared.slots.iter().position(claim);
        let index = index.expect("more workers than the domain was made for");
        Worker {
            shared: self.shared.clone(),
            index,
            online: false,
            _not_sync: PhantomData,
        }
    }

    /// Begins a grace period for everything that the caller has unlinked so far.
    pub fn start_grace(&self) -> Grace {
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        fence(Ordering::SeqCst);
        Grace {
            epoch,
            domain: self.shared.id,
        }
    }

    /// The index, in order of registration, of a worker that holds `grace` open.
    pub fn laggard(&self, grace: &Grace) -> Option<usize> {
        assert_eq!(grace.domain, self.shared.id, "a grace of another domain");
        let lags = |slot: &Padded<WorkerSlot>| slot.epoch.load(Ordering::Acquire) < grace.epoch;
        self.shared.slots.iter().position(lags)
    }
}

/// A grace period that has begun: over when no worker can hold what was unlinked before it.
#[derive(Clone, Copy, Debug)]
#[must_use = "a grace period says nothing until somebody asks whether it is over"]
pub struct Grace {
    epoch: u64,
    domain: DomainId,
}

impl Grace {
    /// Whether every worker of the domain has passed a quiescent point since, or is offline.
    ///
    /// # Panics
    ///
    /// If the grace was started by another domain.
    pub fn is_over(&self, domain: &Domain) -> bool {
        domain.laggard(self).is_none()
    }

    /// Sleeps until the grace period is over, or until `timeout` has passed. True if it is over.
    ///
    /// A call for control threads: a worker that is online would wait for itself.
    pub fn wait(&self, domain: &Domain, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut pause = POLL_FIRST;
        while !self.is_over(domain) {
            if start.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_LONGEST);
        }
        true
    }
}

/// One worker's place in a [`Domain`]. It moves between threads but is used by one at a time.
pub struct Worker {
    shared: Arc<Shared>,
    index: usize,
    online: bool,
    /// Not `Sync`: a slot has one thread.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

impl Worker {
    /// Begins to read: goes online if necessary, and gives the proof of it.
    #[inline]
    pub fn section(&mut self) -> Section<'_> {
        if !self.online {
            self.online();
        }
        Section {
            domain: self.shared.id,
            _worker: PhantomData,
        }
    }

    /// Says that this worker holds nothing at this moment. Once a loop; does nothing offline.
    #[inline]
    pub fn quiesce(&mut self) {
        if self.online {
            let epoch = self.shared.epoch.load(Ordering::Acquire);
            self.slot().epoch.store(epoch, Ordering::Release);
        }
    }

    /// Says that this worker holds nothing and looks at nothing until it is online again: before it
    /// sleeps.
    #[inline]
    pub fn offline(&mut self) {
        self.slot().epoch.store(OFFLINE, Ordering::Release);
        self.online = false;
    }

    /// Comes back: before anything shared is looked at. Online already, it is a quiescent point.
    #[inline]
    pub fn online(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        self.slot().epoch.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
        self.online = true;
    }

    /// Comes back without the fence: exists so that a model can show that the fence is needed.
    #[cfg(loom)]
    #[doc(hidden)]
    pub fn online_without_fence(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        self.slot().epoch.store(epoch, Ordering::Release);
        self.online = true;
    }

    /// Whether this worker is online.
    pub fn is_online(&self) -> bool {
        self.online
    }

    /// This worker's index in the domain: what [`Domain::laggard`] names.
    pub fn index(&self) -> usize {
        self.index
    }

    #[inline]
    fn slot(&self) -> &WorkerSlot {
        &self.shared.slots[self.index]
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.offline();
        self.slot().taken.store(false, Ordering::Release);
    }
}

/// Proof that a worker is online and passes no quiescent point while this lives.
///
/// It borrows the worker mutably and is neither `Send` nor `Sync`. Other crates lend out foreign
/// memory for as long as a section is borrowed.
pub struct Section<'w> {
    domain: DomainId,
    _worker: PhantomData<(&'w mut (), *const ())>,
}

impl Section<'_> {
    /// The domain whose graces this section holds open.
    #[inline]
    pub fn domain(&self) -> DomainId {
        self.domain
    }
}

/// A pointer to an immutable value that workers follow and control threads replace.
pub struct Published<T> {
    current: AtomicPtr<T>,
    domain: Domain,
    _owns: PhantomData<Box<T>>,
}

// SAFETY: a `Published` hands out `&T` to many threads (T: Sync) and lets any thread take a
// replaced value away to drop it (T: Send), as an `Arc<T>` does.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

impl<T> Published<T> {
    /// Publishes a first value to the workers of `domain`.
    pub fn new(domain: &Domain, value: Box<T>) -> Self {
        let current = AtomicPtr::new(Box::into_raw(value));
        Self {
            current,
            domain: domain.clone(),
            _owns: PhantomData,
        }
    }

    /// The current value, for as long as the section is borrowed.
    ///
    /// Two loads in one section may give two values: a visit loads once.
    ///
    /// # Panics
    ///
    /// If the section belongs to another domain.
    #[inline]
    pub fn load<'q>(&'q self, section: &'q Section<'_>) -> &'q T {
        assert!(
            section.domain == self.domain.id(),
            "a section of another domain"
        );
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: `current` came from `Box::into_raw` and is freed only by `Retired`, after a grace
        // that cannot end while `section` keeps its worker from quiescing, or by our `Drop`, which
        // cannot run while `self` is borrowed.
        unsafe { &*current }
    }

    /// Replaces the value, and begins the grace period of the old one.
    pub fn publish(&self, value: Box<T>) -> Retired<T> {
        let old = self.current.swap(Box::into_raw(value), Ordering::AcqRel);
        let grace = self.domain.start_grace();
        // SAFETY: pointers in `current` come from `Box::into_raw` and are never null.
        let value = unsafe { NonNull::new_unchecked(old) };
        Retired { value, grace }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: it came from `Box::into_raw`, no `Retired` has it since it is still current, and
        // no reference from `load` lives since those borrow `self`.
        drop(unsafe { Box::from_raw(current) });
    }
}

/// A replaced value that workers may still look at. Dropped, it leaks.
#[must_use = "a retired value is leaked unless it is waited for or put into a Limbo"]
pub struct Retired<T> {
    value: NonNull<T>,
    grace: Grace,
}

// SAFETY: a `Retired` owns its value like a box; while workers still look at it, `Sync` is needed
// too, and `Published::load` on other threads required that already.
unsafe impl<T: Send + Sync> Send for Retired<T> {}

impl<T> Retired<T> {
    /// The grace period after which the value is freed.
    pub fn grace(&self) -> Grace {
        self.grace
    }

    /// Sleeps until the grace period is over and gives the value back, or gives up after `timeout`.
    ///
    /// # Errors
    ///
    /// The retired value itself, still unfreed, when `timeout` has passed.
    ///
    /// # Panics
    ///
    /// If the value was published in another domain.
    pub fn wait(self, domain: &Domain, timeout: Duration) -> Result<Box<T>, Self> {
        if !self.grace.wait(domain, timeout) {
            return Err(self);
        }
        // SAFETY: the value came from `Box::into_raw` in `Published`, and its grace is over, so no
        // worker looks at it; `self` is the only owner and ends here.
        Ok(unsafe { Box::from_raw(self.value.as_ptr()) })
    }
}

/// Retired values of any type that wait for their graces. Dropped, it leaks those that it still
/// holds.
#[derive(Default)]
pub struct Limbo {
    held: Vec<(Grace, NonNull<dyn Any + Send>)>,
}

// SAFETY: it owns values that are `Send` (bound of `add`).
unsafe impl Send for Limbo {}

impl Limbo {
    /// An empty list.
    pub const fn new() -> Self {
        Self { held: Vec::new() }
    }

    /// Takes a retired value, to be freed by a later [`reclaim`](Self::reclaim).
    pub fn add<T: Send + Sync + 'static>(&mut self, retired: Retired<T>) {
        let value: NonNull<dyn Any + Send> = retired.value;
        self.held.push((retired.grace, value));
    }

    /// Frees every value whose grace in `domain` is over, without waiting; how many that were.
    /// Values of other domains stay.
    pub fn reclaim(&mut self, domain: &Domain) -> usize {
        let before = self.held.len();
        self.held.retain(|(grace, value)| {
            if grace.domain != domain.id() || !grace.is_over(domain) {
                return true;
            }
            // SAFETY: the value came from `Box::into_raw` in `Published`, its grace is over, and
            // returning false removes this, its only owner.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
            false
        });
        before - self.held.len()
    }

    /// How many values are still held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("id", &self.shared.id)
            .field("workers", &self.shared.slots.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("domain", &self.shared.id)
            .field("index", &self.index)
            .field("online", &self.online)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Section<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published")
            .field("domain", &self.domain.id())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired")
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Limbo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limbo")
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(20);

    /// Counts its drops and is poisoned by them.
    struct Counted {
        drops: std::sync::Arc<AtomicUsize>,
        word: u64,
        copy: u64,
    }

    impl Counted {
        fn boxed(word: u64, drops: &std::sync::Arc<AtomicUsize>) -> Box<Self> {
            Box::new(Self {
                drops: drops.clone(),
                word,
                copy: !word,
            })
        }

        fn check(&self) -> u64 {
            assert_eq!(self.word, !self.copy, "a freed value was read");
            self.word
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.copy = self.word;
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A grace waits for a worker that is online, names it, and ends when it quiesces or sleeps.
    #[test]
    fn a_grace_ends_when_each_worker_quiesced_or_sleeps() {
        let domain = Domain::new(3);
        let (mut first, mut second) = (domain.register(), domain.register());
        first.online();
        let grace = domain.start_grace();
        assert_eq!(domain.laggard(&grace), Some(first.index()));
        first.quiesce();
        assert!(grace.is_over(&domain));
        second.online();
        assert!(
            grace.is_over(&domain),
            "a later arrival holds no earlier grace open"
        );
        let grace = domain.start_grace();
        first.offline();
        assert_eq!(domain.laggard(&grace), Some(second.index()));
        assert!(!domain.start_grace().wait(&domain, SHORT));
        drop(second);
        assert!(grace.is_over(&domain) && domain.start_grace().wait(&domain, SHORT));
        first.quiesce();
        assert!(
            !first.is_online(),
            "a quiescent point does not wake a sleeper up"
        );
    }

    /// Slots of dropped workers are used again, and one worker too many is refused.
    #[test]
    #[should_panic(expected = "more workers than the domain was made for")]
    fn slots_are_bounded() {
        let domain = Domain::new(1);
        drop(domain.register());
        let _kept = domain.register();
        let _refused = domain.register();
    }

    /// A retired value outlives its readers, comes back after the grace, and is leaked rather than
    /// freed early.
    #[test]
    fn retired_values_are_freed_after_the_grace_or_never() {
        let drops = std::sync::Arc::new(AtomicUsize::new(0));
        let domain = Domain::new(1);
        let published = Published::new(&domain, Counted::boxed(0, &drops));
        let mut worker = domain.register();
        let section = worker.section();
        let held = published.load(&section);
        let Err(retired) = published
            .publish(Counted::boxed(1, &drops))
            .wait(&domain, SHORT)
        else {
            panic!("given back under a reader");
        };
        assert_eq!((held.check(), published.load(&section).check()), (0, 1));
        let mut limbo = Limbo::new();
        limbo.add(retired);
        assert_eq!((limbo.reclaim(&domain), limbo.len()), (0, 1));
        worker.quiesce();
        assert_eq!(
            limbo.reclaim(&Domain::new(0)),
            0,
            "another domain frees nothing"
        );
        assert_eq!((limbo.reclaim(&domain), limbo.is_empty()), (1, true));
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        let _leaked = published.publish(Counted::boxed(2, &drops));
        worker.quiesce();
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        drop(published);
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    }

    /// A section of another domain proves nothing here.
    #[test]
    #[should_panic(expected = "a section of another domain")]
    fn sections_of_other_domains_are_refused() {
        let published = Published::new(&Domain::new(1), Box::new(1));
        let mut worker = Domain::new(1).register();
        published.load(&worker.section());
    }

    /// Real threads: readers that load, quiesce and sleep while a writer replaces and frees as fast
    /// as it may; nobody reads a freed value, nobody sees an older value than before, and all
    /// replaced are freed.
    #[test]
    fn readers_and_a_writer_at_full_speed() {
        const VALUES: u64 = 500;
        let drops = std::sync::Arc::new(AtomicUsize::new(0));
        let domain = Domain::new(2);
        let published = Published::new(&domain, Counted::boxed(0, &drops));
        let workers = [domain.register(), domain.register()];
        std::thread::scope(|scope| {
            let readers = workers.map(|mut worker| {
                let published = &published;
                scope.spawn(move || {
                    let (mut last, mut round) = (0, 0u32);
                    while last < VALUES {
                        let section = worker.section();
                        let seen = published.load(&section).check();
                        assert!(seen >= last, "{seen} after {last}");
                        last = seen;
                        worker.quiesce();
                        round += 1;
                        if round.is_multiple_of(16) {
                            worker.offline();
                            std::thread::yield_now();
                        }
                    }
                })
            });
            let mut limbo = Limbo::new();
            for value in 1..=VALUES {
                limbo.add(published.publish(Counted::boxed(value, &drops)));
                limbo.reclaim(&domain);
            }
            assert!(domain.start_grace().wait(&domain, LONG));
            limbo.reclaim(&domain);
            assert!(limbo.is_empty());
            readers.into_iter().for_each(|r| r.join().unwrap());
        });
        assert_eq!(drops.load(Ordering::Relaxed) as u64, VALUES);
    }
}
