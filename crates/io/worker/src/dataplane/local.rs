//! Frames to the daemon, and from it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass_firewall::Told;
use windlass_frame::RxId;
use windlass_sync::{mpsc, spsc};

use super::{DataPlane, DataPlaneError};
use crate::command::{Command, Relayed};
use crate::local::{self, LocalFrame, Notice, Teller};

/// BPDUs of the daemon that wait for workers at most.
pub const SENDS: usize = 64;
/// Its other frames: what other members make it say delays no BPDU.
pub const RELAYS: usize = 256;
/// Its answers to what firewalls reject.
pub const ANSWERS: usize = 64;

/// Whoever sends what the daemon sends.
const DAEMON: RxId = RxId(u16::MAX);

/// What firewalls tell, and what is sent for them.
pub(super) struct Firewalls {
    /// Where they tell it.
    pub(super) teller: Arc<Teller>,
    told: mpsc::Receiver<Told>,
    /// Answers to what they reject that wait for workers.
    answers: Arc<AtomicUsize>,
}

impl Firewalls {
    pub(super) fn new(notice: &Arc<Notice>) -> Firewalls {
        let (queue, told) = mpsc::channel(local::TOLD);
        let notice = notice.clone();
        Firewalls {
            teller: Arc::new(Teller { queue, notice }),
            told,
            answers: Arc::default(),
        }
    }
}

impl DataPlane {
    /// Becomes readable when [`DataPlane::take_local`] has frames.
    pub fn local_alarm(&self) -> BorrowedFd<'_> {
        self.shared.local.as_fd()
    }

    /// Frames that bridges have for the daemon, of attachments that have not ended; those of one ring in order.
    pub fn take_local(&mut self) -> Vec<LocalFrame> {
        self.shared.local.hear();
        let mut frames = std::mem::take(&mut self.local_moved);
        self.local
            .iter_mut()
            .for_each(|queue| drain(queue, &mut frames));
        let taken = frames.len();
        frames.retain(|frame| self.attachment(frame.member) == Some(frame.attachment));
        self.local_stale += (taken - frames.len()) as u64;
        frames
    }

    /// Has a worker send a BPDU out of one member, as it is, tags included. It is counted at the member (`own_frames`), which
    /// gets or drops it as any other; of two, the first goes first.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`], [`DataPlaneError::FrameSize`]. [`DataPlaneError::Busy`]: [`SENDS`] wait already.
    pub fn send(&mut self, member: u16, frame: &[u8]) -> Result<(), DataPlaneError> {
        self.send_as(DAEMON, member, frame, (self.sends.clone(), SENDS))
    }

    /// The same for a frame that is no BPDU, also to a target of an overlay.
    ///
    /// # Errors
    /// As [`DataPlane::send`], but [`DataPlaneError::Busy`] as [`DataPlane::relay`].
    pub fn reply(&mut self, member: u16, frame: &[u8]) -> Result<(), DataPlaneError> {
        self.send_as(DAEMON, member, frame, (self.relays.clone(), RELAYS))
    }

    /// The same for a frame that answers one of the member which a firewall has rejected: no firewall of the member is asked.
    ///
    /// # Errors
    /// As [`DataPlane::send`]; [`DataPlaneError::Busy`]: [`ANSWERS`] wait already.
    pub fn send_answer(&mut self, member: u16, frame: &[u8]) -> Result<(), DataPlaneError> {
        let waiting = (self.firewalls.answers.clone(), ANSWERS);
        self.send_as(windlass_firewall::ANSWERS, member, frame, waiting)
    }

    fn send_as(
        &mut self,
        from: RxId,
        member: u16,
        frame: &[u8],
        (waiting, max): (Arc<AtomicUsize>, usize),
    ) -> Result<(), DataPlaneError> {
        let bridge = match self.overlays.bridge_at(member) {
            Some(bridge) => bridge,
            None => self.draft_member(member)?.bridge,
        };
        begin_send(&waiting, max, frame.len())?;
        self.home(bridge).send(Command::Send {
            member,
            from,
            frame: frame.into(),
            waiting,
        });
        Ok(())
    }

    /// What firewalls have told.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::iter::from_fn(|| self.firewalls.told.pop())
            .take(local::TOLD)
            .collect()
    }

    /// Forgets what firewalls told of members that are gone.
    pub(super) fn forget_told(&mut self) {
        self.local_stale += self.take_told().len() as u64;
    }

    /// Has a worker send a frame to the members of a set, each of which gets it with a tag or without as any flood. It waits behind
    /// other floods of its bridge, and takes room from its sender's share (`flood-backlog`); copies of the daemon's own are
    /// counted at their receivers (`own_frames`).
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`], [`DataPlaneError::FrameSize`]. [`DataPlaneError::Busy`]: [`RELAYS`] wait already.
    pub fn relay(&mut self, bridge: u16, frame: Relayed) -> Result<(), DataPlaneError> {
        self.draft_bridge(bridge)?;
        begin_send(&self.relays, RELAYS, frame.bytes.len())?;
        self.home(bridge).send(Command::Relay {
            bridge,
            frame: Box::new(frame),
            waiting: self.relays.clone(),
        });
        Ok(())
    }

    /// Frames for the daemon that nobody got because their attachment had ended.
    pub fn local_stale(&self) -> u64 {
        self.local_stale
    }

    /// Takes what a worker has for the daemon, before anything is taken from the next worker of its ring.
    pub(super) fn take_local_of(&mut self, worker: u16) {
        if let Some(queue) = self.local.get_mut(usize::from(worker)) {
            drain(queue, &mut self.local_moved);
        }
    }
}

/// Counts a frame that is to be sent.
fn begin_send(waiting: &AtomicUsize, max: usize, len: usize) -> Result<(), DataPlaneError> {
    if !(14..=local::BYTES_MAX).contains(&len) {
        return Err(DataPlaneError::FrameSize(len));
    }
    if waiting.load(Ordering::Relaxed) >= max {
        return Err(DataPlaneError::Busy);
    }
    waiting.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// What a queue has, without what comes meanwhile: the notice tells of that.
fn drain(queue: &mut spsc::Receiver<LocalFrame>, frames: &mut Vec<LocalFrame>) {
    for _ in 0..queue.len() {
        frames.extend(queue.pop());
    }
}
