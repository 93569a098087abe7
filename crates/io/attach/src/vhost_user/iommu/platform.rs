//! The session's side of an IOMMU: what the front end tells of translations, and what it is asked.
//!
//! # Model
//! The front end's IOTLB messages change a [`Table`], and each change is published to the workers. An answer to a message
//! that takes a translation away waits until no visit uses it any more ([`Shared::visits`]). What workers come upon and is not
//! translated is asked for on a second socket that the front end gave, once each, until it is answered or taken back, or the
//! front end has let it wait for [`REPEAT_FIRST`]: then whoever still wants it asks again.
//!
//! A front end stops telling what is no longer true once it has stopped a queue, and speaks of other memory after it has
//! changed that: both forget everything.
//!
//! # Limits
//! [`ASKED_MAX`] questions without an answer. A front end that does not read them ends its connection.
//!
//! # Failure modes
//! A front end does not answer for an address that the guest has not mapped when the question is looked at. By then a question
//! can be one of the past: asked for a buffer that was used meanwhile, and for whose address the guest now has another one,
//! which a ring waits for. So silence is not final. Of an address that is never mapped the ring waits, and the front end is
//! bothered every few seconds ([`DOUBLINGS`]). That is between the guest and its driver.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};
use windlass_sys::Errno;

use super::gate::{Shared, Visits};
use super::iotlb::Table;
use crate::peer_fds::DeferredClose;
use crate::vhost_user::guest_map::{Extent, Miss, READ, WRITE};
use crate::vhost_user::memory::Memory;
use crate::vhost_user::message::{Iotlb, iotlb_miss};
use crate::vhost_user::wire::WireError;

/// Questions without an answer: fewer than fill a socket.
pub(crate) const ASKED_MAX: usize = 128;

/// How long a question waits for its answer before it is forgotten, and so can be asked again: twice as long each time, until
/// there is an answer to all that was asked. A front end under emulation on a busy machine needs part of it.
pub(crate) const REPEAT_FIRST: Duration = Duration::from_millis(250);
/// How often that is doubled at most.
const DOUBLINGS: u32 = 5;

/// Why an IOTLB message was not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IotlbError {
    /// Neither an update nor an invalidation.
    #[error("a message of kind {0}")]
    Kind(u8),
    /// Not 1, 2 or 3.
    #[error("access {0}")]
    Access(u8),
    /// Empty, or beyond the last address.
    #[error("{len} bytes from {iova:#x} on")]
    Range {
        /// First address of the device.
        iova: u64,
        /// Bytes.
        len: u64,
    },
    /// Not inside one region of memory.
    #[error("{len} bytes at {user:#x}, which are not in one region of the front end's memory")]
    Memory {
        /// First address in the front end's own address space.
        user: u64,
        /// Bytes.
        len: u64,
    },
}

/// `VHOST_IOTLB_UPDATE`.
const UPDATE: u8 = 2;
/// `VHOST_IOTLB_INVALIDATE`.
const INVALIDATE: u8 = 3;

/// The session's side of an IOMMU.
#[derive(Debug, Default)]
pub(crate) struct Platform {
    table: Table,
    channel: Option<DeferredClose<OwnedFd>>,
    /// Asked and not answered, and when: the oldest first.
    asked: Vec<(Miss, Instant)>,
    /// How often in a row an answer was given up.
    given_up: u32,
    /// Visits that an answer waits for.
    visits: Option<Visits>,
    /// Questions in all.
    questions: u64,
    /// Invalidations in all.
    invalidations: u64,
}

/// What a message asks for beyond the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Workers may go on with more than they had.
    More,
    /// They are to stop using something before the answer.
    Less,
}

impl Platform {
    /// Whether questions can be asked.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Asks on this socket from now on, for everything again.
    pub(crate) fn set_channel(&mut self, channel: DeferredClose<OwnedFd>) {
        self.channel = Some(channel);
        self.asked.clear();
    }

    /// Follows an IOTLB message.
    pub(crate) fn follow(&mut self, said: &Iotlb, memory: &Memory) -> Result<Follow, IotlbError> {
        match said.kind {
            UPDATE => self.update(said, memory),
            INVALIDATE => {
                // A range of all addresses has a length that cannot be said: 0. To forget more than was meant is no fault.
                let first = if said.len == 0 { 0 } else { said.iova };
                let last = match said.len {
                    0 => u64::MAX,
                    len => said.iova.saturating_add(len.wrapping_sub(1)),
                };
                self.table.invalidate(first, last);
                self.invalidations = self.invalidations.wrapping_add(1);
                // Whoever still wants it asks again.
                let within = |miss: &Miss| (first..=last).contains(&miss.page);
                self.asked.retain(|(miss, _)| !within(miss));
                Ok(Follow::Less)
            }
            kind => Err(IotlbError::Kind(kind)),
        }
    }

    fn update(&mut self, said: &Iotlb, memory: &Memory) -> Result<Follow, IotlbError> {
        let Iotlb {
            iova,
            len,
            user,
            perm,
            ..
        } = *said;
        if !(READ..=READ | WRITE).contains(&perm) {
            return Err(IotlbError::Access(perm));
        }
        if len == 0 || iova.checked_add(len.wrapping_sub(1)).is_none() {
            return Err(IotlbError::Range { iova, len });
        }
        let place = memory.place(user, len);
        let (real, base) = place.ok_or(IotlbError::Memory { user, len })?;
        let changed = self.table.update(Extent {
            gpa: iova,
            len,
            base,
            real,
            access: perm,
        });
        let table = &self.table;
        self.asked
            .retain(|(miss, _)| !table.covers(miss.access, miss.page, 1));
        if self.asked.is_empty() {
            self.given_up = 0;
        }
        Ok(match changed {
            true => Follow::Less,
            false => Follow::More,
        })
    }

    /// Forgets all translations and questions.
    pub(crate) fn forget(&mut self) {
        self.table.clear();
        self.asked.clear();
    }

    fn patience(&self) -> Duration {
        REPEAT_FIRST.saturating_mul(1 << self.given_up.min(DOUBLINGS))
    }

    /// When the oldest question has waited for too long.
    pub(crate) fn due(&self) -> Option<Instant> {
        let (_, since) = self.asked.first()?;
        since.checked_add(self.patience())
    }

    /// Forgets the questions that have waited for too long: whoever still wants an answer is to ask again. Whether there were
    /// any.
    pub(crate) fn give_up(&mut self, now: Instant) -> bool {
        if self.due().is_none_or(|due| now < due) {
            return false;
        }
        let patience = self.patience();
        self.asked
            .retain(|(_, since)| now.saturating_duration_since(*since) < patience);
        self.given_up = self.given_up.saturating_add(1);
        true
    }

    /// The translations as workers use them.
    pub(crate) fn snapshot(&self) -> Arc<[Extent]> {
        self.table.snapshot()
    }

    /// An answer waits for these visits.
    pub(crate) fn await_visits(&mut self, visits: Visits) {
        self.visits = Some(visits);
    }

    /// Whether no answer has to wait any more; `shared`: what the workers have, if they have rings.
    pub(crate) fn is_clear(&mut self, shared: Option<&Shared>) -> bool {
        let (Some(visits), Some(shared)) = (&mut self.visits, shared) else {
            self.visits = None;
            return true;
        };
        let over = shared.are_over(visits);
        if over {
            self.visits = None;
        }
        over
    }

    /// Asks for what workers of so many queues have come upon.
    ///
    /// # Errors
    /// [`WireError`]: the front end is gone, or does not read.
    pub(crate) fn ask(&mut self, shared: &Shared, queues: usize) -> Result<(), WireError> {
        let Some(channel) = &self.channel else {
            return Ok(());
        };
        for gate in (0..queues).filter_map(|queue| shared.gate(queue)) {
            while self.asked.len() < ASKED_MAX
                && let Some(miss) = gate.take()
            {
                let is_asked = self.asked.iter().any(|(asked, _)| *asked == miss);
                if is_asked || self.table.covers(miss.access, miss.page, 1) {
                    continue;
                }
                let bytes = iotlb_miss(miss.page, miss.access);
                // Whether the socket waits is for the other side to say.
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match send(&**channel, &bytes, flags) {
                    Ok(n) if n == bytes.len() => {}
                    Ok(_) | Err(Errno::AGAIN) => return Err(WireError::Deaf),
                    Err(Errno::PIPE | Errno::CONNRESET) => return Err(WireError::Closed),
                    Err(errno) => return Err(WireError::Socket(errno)),
                }
                self.asked.push((miss, Instant::now()));
                self.questions = self.questions.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Translations, questions without an answer, questions and invalidations in all, for people.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} translations, {} asked for; {} questions and {} invalidations so far",
            self.table.len(),
            self.asked.len(),
            self.questions,
            self.invalidations
        )
    }
}
