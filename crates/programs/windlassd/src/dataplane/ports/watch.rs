//! What the ports thread waits for: one epoll set, with a token for each endpoint.
//!
//! # Model
//! Each endpoint has one descriptor for its life ([`Endpoint::fd`]), which is in the set under a token that is never used
//! again: an event of an endpoint that is gone names nobody, whatever has its descriptor's number or its name since. [`Watched`]
//! takes it out when it is dropped. The set is level-triggered: what was reported and not looked after is
//! reported again.
//!
//! Deadlines are entered when an endpoint has been driven, and taken when they have passed. One of an endpoint that is gone is
//! taken like others, and names nobody.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_attach::endpoint::Endpoint;
use windlass_sys::Errno;
use windlass_sys::epoll::{Epoll, Events, Interest};

use crate::backend::BackendError;

/// Stands for one endpoint, and never for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Token(u64);

/// What wakes this thread beside endpoints. Its number is its token.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The engine asks.
    Requests,
    /// Bridges have frames for the daemon.
    Local,
    /// Workers have found ports dead.
    Condemned,
    /// VNICs have learned addresses.
    Learned,
    /// A namespace came or went.
    Namespaces,
}

/// The first token of an endpoint.
const ENDPOINTS: u64 = Source::Namespaces as u64 + 1;

/// Which of [`Source`] have something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sources {
    pub(super) requests: bool,
    pub(super) local: bool,
    pub(super) condemned: bool,
    pub(super) learned: bool,
}

/// The set, and the deadlines.
#[derive(Debug)]
pub(super) struct Watch {
    set: Arc<Epoll>,
    /// The next endpoint's token.
    next: u64,
    /// Endpoints that are to be driven.
    due: BTreeSet<Token>,
    deadlines: BTreeSet<(Instant, Token)>,
    /// Namespaces have changed, and nobody has looked at them since: the kernel says it once.
    namespaces: bool,
}

/// An endpoint in the set.
pub(super) struct Watched {
    endpoint: Box<dyn Endpoint>,
    token: Token,
    set: Arc<Epoll>,
    /// What it has in [`Watch::deadlines`].
    deadline: Option<Instant>,
    listens: bool,
}

impl Watch {
    pub(super) fn create() -> Result<Watch, Errno> {
        Ok(Watch {
            set: Arc::new(Epoll::create()?),
            next: ENDPOINTS,
            due: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            namespaces: false,
        })
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, source: Source) -> Result<(), Errno> {
        self.set.add(fd, source as u64, Interest::READABLE)
    }

    /// Takes an endpoint into the set. It is not driven before it has an event, or [`Watch::make_due`] names it.
    pub(super) fn take(&mut self, endpoint: Box<dyn Endpoint>) -> Result<Watched, BackendError> {
        let token = Token(self.next);
        let added = self.set.add(endpoint.fd(), token.0, Interest::READABLE);
        added.map_err(|errno| BackendError::Host(format!("epoll_ctl: {errno}")))?;
        self.next += 1;
        Ok(Watched {
            endpoint,
            token,
            set: self.set.clone(),
            deadline: None,
            listens: true,
        })
    }

    /// Waits until something has an event, an endpoint is due, or `deadline` has passed. `events`: room for what is reported.
    pub(super) fn wait(&mut self, events: &mut Events, deadline: Option<Instant>) -> Sources {
        let own = self.deadlines.first().map(|(at, _)| *at);
        let deadline = deadline.into_iter().chain(own).min();
        let timeout = match self.due.is_empty() && !self.namespaces {
            true => deadline.map(|at| at.saturating_duration_since(Instant::now())),
            false => Some(Duration::ZERO),
        };
        let mut woken = Sources::default();
        if let Err(errno) = self.set.wait(events, timeout) {
            tracing::error!("epoll_wait: {errno}");
        }
        for event in events.iter() {
            match event.token {
                t if t == Source::Requests as u64 => woken.requests = true,
                t if t == Source::Local as u64 => woken.local = true,
                t if t == Source::Condemned as u64 => woken.condemned = true,
                t if t == Source::Learned as u64 => woken.learned = true,
                t if t == Source::Namespaces as u64 => self.namespaces = true,
                t => drop(self.due.insert(Token(t))),
            }
        }
        woken
    }

    /// Whether a namespace has come or gone since the last call.
    pub(super) fn take_namespaces(&mut self) -> bool {
        std::mem::take(&mut self.namespaces)
    }

    /// An endpoint is to be driven in the next round.
    pub(super) fn make_due(&mut self, endpoint: &Watched) {
        self.due.insert(endpoint.token);
    }

    /// Endpoints that have had an event, are due, or whose deadline has passed.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeSet<Token> {
        while let Some((at, token)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            self.due.insert(token);
        }
        std::mem::take(&mut self.due)
    }

    /// Enters the deadline of an endpoint that was driven.
    pub(super) fn put_off(&mut self, endpoint: &mut Watched) {
        let entry = |at: Option<Instant>| at.map(|at| (at, endpoint.token));
        let next = endpoint.endpoint.deadline();
        if let Some(before) = entry(endpoint.deadline) {
            self.deadlines.remove(&before);
        }
        self.deadlines.extend(entry(next));
        endpoint.deadline = next;
    }
}

impl Watched {
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Whether its events are reported.
    pub(super) fn listen(&mut self, listens: bool) {
        if self.listens == listens {
            return;
        }
        let interest = match listens {
            true => Interest::READABLE,
            false => Interest::default(),
        };
        // It is in the set.
        if let Err(errno) = self.set.modify(self.endpoint.fd(), self.token.0, interest) {
            tracing::error!("epoll_ctl: {errno}");
        }
        self.listens = listens;
    }
}

impl Deref for Watched {
    type Target = dyn Endpoint;

    fn deref(&self) -> &Self::Target {
        &*self.endpoint
    }
}

impl DerefMut for Watched {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.endpoint
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.set.remove(self.endpoint.fd());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Mutex;

    use windlass_attach::endpoint::{Event, Status};
    use windlass_sys::eventfd;

    use super::*;

    /// An endpoint that waits for a counter.
    struct Counter(Arc<OwnedFd>, Arc<Mutex<Option<Instant>>>);

    impl Endpoint for Counter {
        fn poll(&mut self, _: Instant) -> Vec<Event> {
            Vec::new()
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn deadline(&self) -> Option<Instant> {
            *self.1.lock().unwrap()
        }

        fn condemn(&mut self, _: &str) {}

        fn detached(&mut self) {}

        fn status(&self) -> Status {
            unreachable!("nobody asks")
        }

        fn delete(&mut self) {}
    }

    fn take(watch: &mut Watch) -> (Watched, Arc<OwnedFd>) {
        let fd = Arc::new(eventfd::create().unwrap());
        let endpoint = Counter(fd.clone(), Arc::default());
        (watch.take(Box::new(endpoint)).unwrap(), fd)
    }

    /// Endpoints that are to be driven now.
    fn due(watch: &mut Watch) -> Vec<Token> {
        let now = Instant::now();
        watch.wait(&mut Events::default(), Some(now));
        watch.take_due(now).into_iter().collect()
    }

    /// What an endpoint had under way concerns nobody who gets its descriptor's number, even while somebody else has the
    /// descriptor's file open; and what was reported is reported until it was looked after.
    #[test]
    fn a_number_is_used_again() {
        let mut watch = Watch::create().unwrap();
        let (mut first, fd) = take(&mut watch);
        eventfd::signal(&*fd).unwrap();
        assert_eq!(due(&mut watch), [first.token()]);
        assert_eq!(
            due(&mut watch),
            [first.token()],
            "nobody has looked after it"
        );
        first.listen(false);
        assert_eq!(due(&mut watch), []);
        first.listen(true);

        // Reported, and gone before it was driven; its file lives on.
        watch.wait(&mut Events::default(), Some(Instant::now()));
        let (stale, file) = (first.token(), fd.try_clone().unwrap());
        drop(first);
        let mut number = Arc::into_inner(fd).unwrap();
        rustix::io::dup2(eventfd::create().unwrap(), &mut number).unwrap();
        let fd = Arc::new(number);
        let endpoint = Counter(fd.clone(), Arc::default());
        let second = watch.take(Box::new(endpoint)).unwrap();
        assert_eq!(watch.take_due(Instant::now()), BTreeSet::from([stale]));
        assert_ne!(stale, second.token());
        eventfd::signal(&file).unwrap();
        assert_eq!(due(&mut watch), []);
        eventfd::signal(&*fd).unwrap();
        assert_eq!(due(&mut watch), [second.token()]);
    }

    /// That namespaces have changed is known until somebody looks at them, though the kernel says it once: the round in which it
    /// did may have had something else to do.
    #[test]
    fn news_of_namespaces_wait() {
        let mut watch = Watch::create().unwrap();
        let told = eventfd::create().unwrap();
        watch.add(told.as_fd(), Source::Namespaces).unwrap();
        assert!(!watch.take_namespaces());
        eventfd::signal(&told).unwrap();
        watch.wait(&mut Events::default(), Some(Instant::now()));
        eventfd::drain(told.as_fd()).unwrap();
        // Nobody sleeps before them.
        let (start, patience) = (Instant::now(), Duration::from_secs(5));
        watch.wait(&mut Events::default(), Some(start + patience));
        assert!(start.elapsed() < patience && watch.take_namespaces());
        assert!(!watch.take_namespaces());
    }

    /// A deadline is taken once it has passed, and entered anew when its endpoint was driven; one endpoint has one.
    #[test]
    fn deadlines_are_taken_and_entered() {
        let mut watch = Watch::create().unwrap();
        let at: Arc<Mutex<Option<Instant>>> = Arc::default();
        let fd = Arc::new(eventfd::create().unwrap());
        let mut endpoint = watch.take(Box::new(Counter(fd, at.clone()))).unwrap();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        for later in [3, 2, 5] {
            *at.lock().unwrap() = Some(start + second * later);
            watch.put_off(&mut endpoint);
            watch.put_off(&mut endpoint);
        }
        assert_eq!(watch.take_due(start + second * 4), BTreeSet::new());
        let due = BTreeSet::from([endpoint.token()]);
        assert_eq!(watch.take_due(start + second * 5), due);
        assert_eq!(watch.take_due(start + second * 6), BTreeSet::new());
        watch.put_off(&mut endpoint);
        assert_eq!(watch.take_due(start + second * 6), due);
        *at.lock().unwrap() = None;
        watch.put_off(&mut endpoint);
        assert_eq!(watch.take_due(start + second * 60), BTreeSet::new());
    }
}
