//! Makes the pair and its TAP, waits for the namespace, notices the end of any of them.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_sys::Errno;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::netns::{Named, NetnsId, NetnsRef};
use windlass_sys::shortcut::{self, Ends, Hook, Passed, Slot};

use super::pair::{self, Pair, PairError};
use crate::endpoint::{Doomed, Endpoint, Event, Handed, InterfaceConf, Rings, Status};
use crate::tap::{TapConf, TapEndpoint};

/// Time between two looks at what is waited for.
const RETRY: Duration = Duration::from_millis(250);

/// What interface to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethConf {
    /// Its name in the namespace, at most 15 bytes.
    pub name: String,
    /// The namespace by name or absolute path.
    pub netns: String,
    /// Written on our end as its alias: tells it from every other.
    pub mark: String,
    /// Where its programs are.
    pub hook: Hook,
    /// Its address, its MTU, and its network addresses.
    pub interface: InterfaceConf,
}

impl VethConf {
    /// The TAP behind it.
    fn tap(&self) -> TapConf {
        TapConf {
            name: pair::hidden_name("wlt", &self.mark),
            netns: None,
            queues: 1,
            multi_queue: false,
            mark: self.mark.clone(),
            interface: of_tap(&self.interface),
        }
    }
}

/// What the TAP has of the interface's configuration.
fn of_tap(interface: &InterfaceConf) -> InterfaceConf {
    InterfaceConf {
        addresses: Vec::new(),
        ..interface.clone()
    }
}

/// The control half of a veth.
pub struct VethEndpoint {
    conf: VethConf,
    tap: TapEndpoint,
    slot: Arc<Slot>,
    epoll: Epoll,
    /// The addresses that the interface was given.
    given: Vec<(IpAddr, u8)>,
    pair: Option<Pair>,
    /// The process that the namespace is named by. A later one of its number is another one.
    process: Option<Named>,
    /// A pair may be there that is not open: a daemon before has made it, or something has failed.
    may_be_left: bool,
    is_set_down: bool,
    is_changed: bool,
    ending: Option<String>,
    reason: String,
    leaving: bool,
    retry_at: Instant,
}

impl VethEndpoint {
    /// An interface to be made at the first [`Endpoint::poll`]. `may_be_left`: a daemon before may have made it.
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set, or does not take the address.
    pub fn new(conf: VethConf, slot: Slot, may_be_left: bool) -> Result<VethEndpoint, Errno> {
        slot.set_address(conf.interface.mac)?;
        let slot = Arc::new(slot);
        let tap = TapEndpoint::of_veth(conf.tap(), Some(slot.clone()))?;
        let epoll = Epoll::create()?;
        epoll.add(tap.fd(), 0, Interest::READABLE)?;
        Ok(VethEndpoint {
            given: conf.interface.addresses.clone(),
            conf,
            tap,
            slot,
            epoll,
            pair: None,
            process: None,
            may_be_left,
            is_set_down: false,
            is_changed: false,
            ending: None,
            reason: "not tried yet".to_owned(),
            leaving: false,
            retry_at: Instant::now(),
        })
    }

    fn open_namespace(&self) -> Result<NetnsRef, PairError> {
        if self.process.as_ref().is_some_and(Named::has_ended) {
            return Err(PairError::Ended(self.conf.netns.clone()));
        }
        Ok(NetnsRef::open(&self.conf.netns)?)
    }

    fn try_open(&mut self, now: Instant) -> Result<Rings, PairError> {
        let namespace = self.open_namespace()?;
        self.process = namespace.process().cloned();
        let may_be_left = std::mem::replace(&mut self.may_be_left, true);
        let mut pair = Pair::open(&self.conf, &self.given, namespace, may_be_left)?;
        self.given.clone_from(&self.conf.interface.addresses);
        let rings = self
            .tap
            .poll(now)
            .into_iter()
            .find_map(|event| match event {
                Event::Up(rings) => Some(rings),
                Event::Down(_) => None,
            });
        let (Some(rings), Some(tap)) = (rings, self.tap.index()) else {
            return Err(PairError::Tap(self.tap.status().reason));
        };
        let joined = pair.join(self.conf.hook, &self.slot, self.ends(&pair, tap));
        let watched = joined.and_then(|is_up| Ok(self.watch(&pair).map(|()| is_up)?));
        match watched {
            Ok(is_up) => {
                self.is_set_down = !is_up;
                self.pair = Some(pair);
                Ok(rings)
            }
            Err(error) => {
                self.tap.condemn("the veth could not be made");
                self.tap.poll(now);
                drop(rings);
                self.tap.detached();
                Err(error)
            }
        }
    }

    fn ends(&self, pair: &Pair, tap: u32) -> Ends {
        Ends {
            mac: self.conf.interface.mac,
            host: pair.host,
            tap,
        }
    }

    fn watch(&self, pair: &Pair) -> Result<(), Errno> {
        let process = pair.namespace.process().map(Named::as_fd);
        for fd in std::iter::once(pair.monitor.as_fd()).chain(process) {
            let added = self.epoll.add(fd, 0, Interest::READABLE);
            added.inspect_err(|_| self.unwatch(pair))?;
        }
        Ok(())
    }

    fn unwatch(&self, pair: &Pair) {
        let _ = self.epoll.remove(&pair.monitor);
        if let Some(process) = pair.namespace.process() {
            let _ = self.epoll.remove(process.as_fd());
        }
    }

    fn close(&mut self) -> Option<Pair> {
        let pair = self.pair.take()?;
        self.unwatch(&pair);
        Some(pair)
    }

    /// Takes what the kernel has to tell; why the pair is of no use any more, if so.
    fn take_news(&mut self) -> Option<String> {
        if let Some(reason) = self.ending.take() {
            return Some(reason);
        }
        let pair = self.pair.as_mut()?;
        if !pair.namespace.is_named_still() {
            return Some(format!("network namespace `{}` is gone", self.conf.netns));
        }
        while let Some(news) = pair.news() {
            let Some(is_up) = news else {
                let name = &self.conf.name;
                return Some(format!("interface `{name}` was deleted or moved away"));
            };
            if self.is_set_down == is_up {
                self.is_set_down = !is_up;
                self.is_changed = true;
                if let Some(tap) = self.tap.index()
                    && let Err(error) = pair.follow(&self.slot, tap, is_up)
                {
                    return Some(error.to_string());
                }
            }
        }
        None
    }

    /// Changes what is open.
    fn reconfigure(&mut self, from: &InterfaceConf, to: &InterfaceConf) -> Result<(), String> {
        self.tap.configure(&of_tap(to))?;
        let Some(tap) = self.tap.index() else {
            return Ok(());
        };
        let Some(mut pair) = self.pair.take() else {
            return Ok(());
        };
        let changed = pair.change(from, to).map_err(PairError::from);
        let done = changed.and_then(|()| match from.mac == to.mac {
            true => Ok(()),
            false => {
                self.slot.set_ends(self.ends(&pair, tap))?;
                shortcut::settle();
                Ok(())
            }
        });
        self.pair = Some(pair);
        done.map_err(|error| error.to_string())
    }
}

impl Endpoint for VethEndpoint {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        if self.leaving {
            return Vec::new();
        }
        if self.pair.is_some() {
            if let Some(reason) = self.take_news() {
                self.tap.condemn(&reason);
                // Before there is nobody behind it.
                let _ = self.slot.set_up(false);
                // Nothing of it is left, wherever the other end is.
                if let Some(pair) = self.close() {
                    pair.delete();
                }
            }
            let events = self.tap.poll(now);
            if let Some(Event::Down(reason)) = events.first() {
                self.reason.clone_from(reason);
                self.leaving = true;
            }
            return events;
        }
        if now < self.retry_at {
            return Vec::new();
        }
        match self.try_open(now) {
            Ok(rings) => {
                self.reason.clear();
                vec![Event::Up(rings)]
            }
            Err(error) => {
                if self.may_be_left {
                    self.may_be_left = pair::cut_off(&self.conf.mark).is_err();
                }
                self.reason = error.to_string();
                self.retry_at = now + RETRY;
                Vec::new()
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn namespace(&self) -> Option<(&str, Option<NetnsId>)> {
        let is_in = self.pair.as_ref().map(|pair| pair.namespace.id());
        Some((&self.conf.netns, is_in))
    }

    fn deadline(&self) -> Option<Instant> {
        (self.pair.is_none() && !self.leaving).then_some(self.retry_at)
    }

    fn condemn(&mut self, reason: &str) {
        self.ending = Some(reason.to_owned());
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn detached(&mut self) {
        self.tap.detached();
        self.close();
        self.leaving = false;
        self.retry_at = Instant::now();
    }

    fn status(&self) -> Status {
        let tap = self.tap.status();
        let is_open = self.pair.is_some() && !self.leaving;
        let mut details = vec![
            ("interface", self.conf.name.clone()),
            ("netns", self.conf.netns.clone()),
        ];
        let others = tap.details.into_iter();
        details.extend(others.filter(|(name, _)| *name == "features"));
        if is_open {
            let shortcut = if self.slot.is_open() {
                "open"
            } else {
                "closed"
            };
            details.push(("shortcut", shortcut.to_owned()));
            let Passed {
                rx_frames,
                tx_frames,
                ..
            } = self.slot.passed();
            let frames = format!("{rx_frames} rx, {tx_frames} tx");
            details.push(("shortcut-frames", frames));
        }
        let reason = match self.is_set_down && is_open {
            true => format!("interface `{}` is set down", self.conf.name),
            false => self.reason.clone(),
        };
        Status {
            up: is_open && !self.is_set_down,
            reason,
            details,
            connects: tap.connects,
        }
    }

    fn configure(&mut self, interface: &InterfaceConf) -> Result<(), String> {
        let before = std::mem::replace(&mut self.conf.interface, interface.clone());
        let done = self.reconfigure(&before, interface);
        match &done {
            Ok(()) if self.pair.is_some() => self.given.clone_from(&interface.addresses),
            Ok(()) => {}
            Err(_) => {
                self.conf.interface = before.clone();
                // What the kernel took is taken back; it had all that before.
                let _ = self.reconfigure(interface, &before);
            }
        }
        done.map_err(|error| format!("interface `{}`: {error}", self.conf.name))
    }

    fn passed(&self) -> Passed {
        self.slot.passed()
    }

    fn kernel_drops(&mut self) -> u64 {
        self.tap.kernel_drops()
    }

    fn mark(&self) -> Option<String> {
        self.tap.mark()
    }

    fn hand_over(&mut self) -> Option<Handed> {
        self.tap.hand_over()
    }

    /// The other daemon may have put its own programs at the interfaces, which pass what that one allowed, or nothing.
    fn keep(&mut self, is_used: bool) -> bool {
        if let (true, Some(tap), Some(mut pair)) = (is_used, self.tap.index(), self.pair.take()) {
            let ends = self.ends(&pair, tap);
            let put = pair.put_programs(self.conf.hook, &self.slot, ends);
            self.ending = self
                .ending
                .take()
                .or(put.err().map(|error| error.to_string()));
            self.pair = Some(pair);
        }
        false
    }

    /// The programs at the interfaces are the other daemon's until the first poll.
    fn take_over(&mut self, handed: Handed) {
        self.tap.take_over(handed);
    }

    fn delete(&mut self) {
        match self.close() {
            Some(pair) => pair.delete(),
            None => {
                // It is gone, or was never there.
                let _ = pair::remove(&self.conf.mark);
            }
        }
        self.tap.delete();
    }

    fn delete_with(&mut self, doomed: &mut Doomed) {
        match self.close() {
            Some(pair) => {
                doomed.links.push(pair.host);
                self.tap.leave_to(doomed);
            }
            None => self.delete(),
        }
    }
}
