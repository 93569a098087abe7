//! Handing a ring, or a table, to another worker.
//!
//! # Model
//! ```text
//! control:  asked --------------------------------------> done, or refused
//!             |  mailbox                                    ^
//! former:     '-> the ring rests; what waits of it in       |
//!                 private memory is sent --> taken ---------'
//!                                              | mailbox of the next worker
//! next:                                        '-> polled, then armed
//! ```
//! A frame of the ring that the former worker fetched is with its receiver, or dropped, before the ring is in the next worker's
//! mailbox: so no flow changes its order, and nothing is in two hands. The next worker polls the ring once before it
//! waits for a notification: so no wake-up is lost between the two.
//!
//! The home of a table also sends the daemon's own frames for the bridge's members. A table is handed over when those that
//! were sent before are with their receivers, or dropped: the next home's frames come behind them. The table is written meanwhile.
//!
//! # Synchronization
//! [`Handover`] is asked once and has one outcome. The control thread may withdraw it until the former worker has taken it; from there
//! to the outcome it is a few instructions, in which the worker waits for nothing. The outcome is stored (Release) after
//! the ring is in the mailbox: what the control thread sends the next worker once it has seen that (Acquire) comes behind the
//! ring.
//!
//! # Failure modes
//! A worker that is late finds the handover withdrawn, and keeps the ring. So does one that finds the next worker's mailbox full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{State, Worker};
use crate::command::Command;

const ASKED: u8 = 0;
const WITHDRAWN: u8 = 1;
const TAKEN: u8 = 2;
const DONE: u8 = 3;
const REFUSED: u8 = 4;

/// What became of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is the next worker's.
    Done,
    /// It is not the former worker's to give, or the next one had no room for it.
    Refused,
    /// The control thread took it back: nothing has changed.
    Withdrawn,
}

/// One handover, between the control thread and the former worker.
#[derive(Debug, Default)]
pub(crate) struct Handover(AtomicU8);

impl Handover {
    fn step(&self, from: u8, to: u8) -> Result<u8, u8> {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Whether there is an outcome.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.0.load(Ordering::Acquire), ASKED | TAKEN)
    }

    /// Takes it back, unless the worker was faster.
    pub(crate) fn withdraw(&self) -> Outcome {
        loop {
            match self.step(ASKED, WITHDRAWN) {
                Ok(_) | Err(WITHDRAWN) => return Outcome::Withdrawn,
                Err(DONE) => return Outcome::Done,
                Err(REFUSED) => return Outcome::Refused,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire) == WITHDRAWN
    }

    /// From here on it cannot be withdrawn. False if it has been.
    fn take(&self) -> bool {
        self.step(ASKED, TAKEN).is_ok()
    }

    fn end(&self, is_done: bool) {
        let end = if is_done { DONE } else { REFUSED };
        self.0.store(end, Ordering::Release);
    }

    fn refuse(&self) {
        if self.take() {
            self.end(false);
        }
    }
}

/// What is to be another worker's.
enum Moved {
    /// The ring of this token, which rests.
    Ring(u64),
    /// The table of this bridge.
    Home(u16),
}

/// What is handed over once nothing waits that came of it.
pub(super) struct Move {
    what: Moved,
    to: u16,
    handover: Arc<Handover>,
    /// Frames before their bridge's decision: from this one on they are not of it.
    waiting: u64,
    /// Floods from this one on are not of it: known when its bridge has decided.
    flooded: Option<u64>,
    /// Queued frames from this one on are not of it: known when its floods are done.
    queued: Option<u64>,
    /// Spilled frames from this one on are not of it: known when its queued frames are sent.
    spilled: Option<u64>,
}

impl Move {
    /// Leaves it where it is.
    pub(super) fn refuse(&self) {
        self.handover.refuse();
    }
}

impl Worker {
    /// Lets a ring rest that is to be another worker's.
    pub(super) fn begin_move(
        &mut self,
        (member, number): (u16, u16),
        to: u16,
        handover: Arc<Handover>,
    ) {
        if handover.is_withdrawn() {
            return;
        }
        let token = self.rings.find(member, number);
        let Some((token, ring)) = token.and_then(|t| Some((t, self.rings.get_mut(t)?))) else {
            return handover.refuse();
        };
        match ring.state {
            State::Dead | State::Resting | State::Suspended => return handover.refuse(),
            State::Idle | State::Unsure(_) => {
                let section = self.qsbr.section();
                ring.port.disarm(&section);
                self.looks.clear(token as u32);
                self.armed = self.armed.saturating_sub(1);
            }
            State::Active | State::Warm(_) => self.run.retain(|other| *other != token),
        }
        ring.state = State::Resting;
        self.moves.push(Move {
            what: Moved::Ring(token),
            to,
            handover,
            waiting: self.scratch.ingress.queues.pushed(),
            flooded: None,
            queued: None,
            spilled: None,
        });
    }

    /// Notes that a table is to be another worker's.
    pub(super) fn begin_home(&mut self, bridge: u16, to: u16, handover: Arc<Handover>) {
        self.moves.push(Move {
            what: Moved::Home(bridge),
            to,
            handover,
            waiting: 0,
            flooded: Some(0),
            queued: None,
            spilled: None,
        });
    }

    /// Hands over that of which nothing waits any more.
    #[cold]
    pub(super) fn hand_over(&mut self, time: &mut impl FnMut() -> u64) {
        for mut one in std::mem::take(&mut self.moves) {
            if !one.handover.is_withdrawn() && !self.is_sent(&mut one) {
                self.moves.push(one);
                continue;
            }
            if let Moved::Home(_) = one.what {
                // What was seen before is learned before.
                self.take_posts(usize::MAX, time);
            }
            let is_taken = one.handover.take();
            match one.what {
                Moved::Ring(token) if is_taken => one.handover.end(self.give(token, one.to)),
                Moved::Ring(token) => self.serve_again(token),
                Moved::Home(bridge) if is_taken => {
                    one.handover.end(self.give_home(bridge, one.to));
                }
                Moved::Home(_) => {}
            }
        }
    }

    pub(super) fn serve_again(&mut self, token: u64) {
        if let Some(ring) = self.rings.get_mut(token) {
            ring.state = State::Active;
            self.run.push_back(token);
        }
    }

    /// Whether nothing waits that was fetched from the ring, or that the home was told to send.
    fn is_sent(&self, of: &mut Move) -> bool {
        let is_before = |oldest: Option<u64>, mark| oldest.is_some_and(|oldest| oldest < mark);
        if is_before(self.scratch.ingress.queues.oldest(), of.waiting) {
            return false;
        }
        let flooded = *of.flooded.get_or_insert(self.floods.posted());
        if is_before(self.floods.oldest(), flooded) {
            return false;
        }
        let queued = *of.queued.get_or_insert(self.egress.queued());
        if is_before(self.egress.oldest_queued(), queued) {
            return false;
        }
        let spilled = *of.spilled.get_or_insert(self.egress.spilled());
        !is_before(self.egress.oldest(), spilled)
    }

    /// Puts a ring into another worker's mailbox; whether it is there.
    fn give(&mut self, token: u64, to: u16) -> bool {
        let Some(ring) = self.rings.remove(token) else {
            return false;
        };
        if let Some(fd) = ring.port.wake() {
            let _ = self.epoll.remove(fd);
        }
        self.counters().rings.add(u64::MAX);
        match self.post_command(to, Command::Adopt(Box::new(ring))) {
            Err(Command::Adopt(ring)) => {
                self.adopt(*ring);
                false
            }
            _ => true,
        }
    }

    /// Puts a table's writer into another worker's mailbox; whether it is there.
    fn give_home(&mut self, bridge: u16, to: u16) -> bool {
        let at = self.homes.iter().position(|home| home.0 == bridge);
        let Some(at) = at else {
            return false;
        };
        let (bridge, writer) = self.homes.swap_remove(at);
        let writer = Box::new(writer);
        match self.post_command(to, Command::Home { bridge, writer }) {
            Err(Command::Home { bridge, writer }) => {
                self.homes.push((bridge, *writer));
                false
            }
            _ => true,
        }
    }

    /// Gives the command back if the other worker's mailbox is full.
    fn post_command(&self, to: u16, command: Command) -> Result<(), Command> {
        let to = usize::from(to);
        let (Some(mailbox), Some(bell)) = (self.mailboxes.get(to), self.bells.get(to)) else {
            return Err(command);
        };
        mailbox.push(command)?;
        bell.mail();
        Ok(())
    }
}
