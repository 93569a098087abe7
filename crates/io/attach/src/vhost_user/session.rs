//! What a front end may say, and what is answered: the state of one connection, without its socket.
//!
//! # Model
//! [`Session::take`] does what one message asks. Before that, the caller asks [`Session::disturbs`]: whether the
//! message changes what workers are using. If so, it holds the message back, has the rings taken from the workers,
//! says [`Session::stopped`] after their grace period, and only then gives the message to `take`: so an answer says that
//! nobody uses the old memory, the old ring or the old log any more.
//!
//! Behind an IOMMU, messages about translations are followed while workers use the rings: [`Taken::waits`] says that the
//! answer must wait until [`Session::is_clear`]. [`Session::ask`] asks for what workers have found lacking.
//!
//! [`Session::ring_change`] says whether rings should be made, or made again.
//!
//! # Failure modes
//! A [`Refusal`] is answered where the front end asked for an answer, and ends the connection where it did not: it
//! would go on as if all were well. What was refused has changed nothing.
//!
//! # Limits
//! [`PAIRS_MAX`] queue pairs.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

mod live;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use windlass_shm::{Extent, MapError, Quota};
use windlass_sys::eventfd;

use super::device::{Device, Queue, StartError};
use super::features::{self, ACCESS_PLATFORM, OFFERED, VERSION_1};
use super::guest_map::{GuestMapError, REGIONS_MAX};
use super::iommu::{Follow, IotlbError, Platform};
use super::log::DirtyLog;
use super::message::{Code, Iotlb, Malformed, Request, protocol, queue_state, reply};
use super::queue::SIZE_MAX;
use super::ring_progress::RingProgress;
use super::wire::{Incoming, WireError};
use crate::endpoint::Rings;
use crate::peer_fds::DeferredClose;

/// Queue pairs of one device.
pub const PAIRS_MAX: u16 = 16;

/// Protocol features that are offered.
pub const PROTOCOL_OFFERED: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::RARP
    | protocol::REPLY_ACK
    | protocol::MTU
    | protocol::BACKEND_REQ
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

/// What a session is made of.
#[derive(Clone, Copy, Debug)]
pub struct SessionConf {
    /// Queue pairs, 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// The VNIC's largest packet, in bytes.
    pub mtu: u32,
}

/// Why a message was not followed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A queue that the device does not have.
    #[error("{code} for queue {queue}; the device has {queues}")]
    Queue {
        /// The message.
        code: Code,
        /// The queue.
        queue: u32,
        /// How many there are.
        queues: usize,
    },
    /// Feature bits that were not offered.
    #[error("{code} with {bits:#x}, which was not offered")]
    Bits {
        /// The message.
        code: Code,
        /// The bits.
        bits: u64,
    },
    /// The memory.
    #[error("{code}: {source}")]
    Memory {
        /// The message.
        code: Code,
        /// Why.
        source: GuestMapError,
    },
    /// The log of writes.
    #[error("SET_LOG_BASE: {0}")]
    Log(#[source] MapError),
    /// The memory that says where rings stand.
    #[error("the inflight region: {0}")]
    Inflight(#[source] MapError),
    /// A ring of this size.
    #[error("SET_VRING_NUM: a ring of {0} descriptors")]
    Size(u32),
    /// Any other file could keep a worker waiting.
    #[error("{0} with a descriptor that is no eventfd")]
    NotEventfd(Code),
    /// The guest would be told another MTU than the VNIC has.
    #[error(
        "the front end says an MTU of {asked}, the VNIC's is {ours}: make both the same (host_mtu={ours}, or `windlass vnic set NAME mtu={asked}`)"
    )]
    Mtu {
        /// What the front end says.
        asked: u64,
        /// What the VNIC has.
        ours: u32,
    },
    /// The guest's addresses are to go through an IOMMU, and nobody could be asked for them.
    #[error(
        "SET_FEATURES with access-platform, but without the protocol features backend-req and reply-ack"
    )]
    NoChannel,
    /// A translation.
    #[error("IOTLB_MSG: {0}")]
    Iotlb(#[from] IotlbError),
    /// Not known here, or not offered.
    #[error("{0} is not done here")]
    Unknown(Code),
    /// A file came without being there.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Our own side.
    #[error(transparent)]
    Local(#[from] StartError),
}

/// An answer to be sent.
#[derive(Debug)]
pub struct Reply {
    /// The whole message.
    pub bytes: Vec<u8>,
    /// What goes along.
    pub fd: Option<OwnedFd>,
}

/// What became of a message.
#[derive(Debug)]
pub struct Taken {
    /// The answer, if there is one.
    pub reply: Option<Reply>,
    /// Why it was not followed, if it was not; the front end knows.
    pub refused: Option<Refusal>,
    /// The answer is not to be given before [`Session::is_clear`].
    pub waits: bool,
}

/// What is to be done about the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingChange {
    /// Nothing.
    None,
    /// There are none, and they can be made.
    Start,
    /// Those that workers have are not the right ones any more.
    Restart,
}

enum Answer {
    Done,
    /// Once no visit uses what was taken away.
    Later,
    With(Vec<u8>),
    WithFile(Vec<u8>, OwnedFd),
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    conf: SessionConf,
    device: Device,
    protocol: u64,
    status: u8,
    platform: Platform,
    /// Rings could not be made of what was said; tried again when something else is said.
    fault: Option<String>,
}

impl Session {
    /// A connection on which nothing was said yet; the mappings of its memory count in `quota`.
    pub fn new(conf: SessionConf, quota: Quota) -> Session {
        Session::over(conf, quota, None)
    }

    /// The same, where places of packed rings are kept in memory of our own.
    pub(super) fn over(conf: SessionConf, quota: Quota, own: Option<Arc<RingProgress>>) -> Session {
        let pairs = conf.pairs.clamp(1, PAIRS_MAX);
        Session {
            conf: SessionConf { pairs, ..conf },
            device: Device::new(pairs, quota, own),
            protocol: 0,
            status: 0,
            platform: Platform::default(),
            fault: None,
        }
    }

    /// Whether workers have rings of this connection.
    pub fn is_running(&self) -> bool {
        self.device.is_running()
    }

    /// Whether the guest's memory or rings were found unusable.
    pub fn is_broken(&self) -> bool {
        self.device.is_broken()
    }

    /// Where the guest's memory lies.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.device.memory.extents()
    }

    /// Tells the front end so, through the error descriptors of its rings.
    pub(super) fn tell_broken(&mut self) {
        self.device.tell_broken();
    }

    /// Why there are no rings, for people.
    pub fn missing(&self) -> &str {
        match &self.fault {
            Some(fault) => fault,
            None if self.device.memory.is_empty() => "connected; the front end has not begun",
            None if self.device.features & VERSION_1 == 0 => {
                "connected; the guest's driver is older than VIRTIO 1.0, which is not done here"
            }
            None if self.device.has_iommu() && !self.platform.has_channel() => {
                "connected; the front end has not given the socket for questions about its IOMMU"
            }
            None if self.device.is_stopped() => {
                "connected; the queues were stopped: the guest is paused, or its driver was unloaded"
            }
            None => "connected; the guest has not started its queues",
        }
    }

    /// Whether workers must give the rings back before this message is taken.
    pub fn disturbs(&self, request: &Request) -> bool {
        if !self.device.is_running() {
            return false;
        }
        match request {
            Request::SetFeatures(bits) => *bits != self.device.features,
            Request::SetMemTable(_)
            | Request::AddMemReg(_)
            | Request::RemMemReg(_)
            | Request::SetLogBase { .. }
            | Request::SetInflightFd(_)
            | Request::ResetOwner
            | Request::ResetDevice
            | Request::SetStatus(0) => true,
            // Any other queue is switched off in its ring.
            Request::SetVringEnable { queue, on: false } => {
                *queue < 2 && self.device.is_queue_running(*queue)
            }
            Request::GetVringBase { queue }
            | Request::SetVringNum { queue, .. }
            | Request::SetVringAddr { queue, .. }
            | Request::SetVringBase { queue, .. }
            | Request::SetVringKick { queue } => self.device.is_queue_running(*queue),
            _ => false,
        }
    }

    /// Workers have given the rings back.
    pub fn stopped(&mut self) {
        self.device.stopped();
    }

    /// Another daemon may have used the rings, which are to be made anew.
    pub(super) fn was_elsewhere(&mut self) {
        self.device.goes_on = true;
    }

    /// The VNIC has another MTU. A front end that was told the one before is not asked again.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.conf.mtu = mtu;
    }

    /// What is to be done about the rings.
    pub fn ring_change(&self) -> RingChange {
        if self.device.is_running() {
            return match self.device.is_outdated() {
                true => RingChange::Restart,
                false => RingChange::None,
            };
        }
        let asks = !self.device.has_iommu() || self.platform.has_channel();
        match self.fault.is_none() && self.device.is_complete() && asks {
            true => RingChange::Start,
            false => RingChange::None,
        }
    }

    /// Makes the rings. `alarm` is signalled when the data path finds them unusable.
    ///
    /// # Errors
    /// [`StartError`]; nothing is tried again until the front end says something else.
    pub fn start(&mut self, alarm: OwnedFd) -> Result<Rings, StartError> {
        let made = match self.device.has_iommu() {
            true => self
                .device
                .start_behind_iommu(alarm, self.platform.snapshot()),
            false => self.device.start(alarm),
        };
        if let Err(error) = &made {
            self.fault = Some(error.to_string());
        }
        made
    }

    /// Does what a message asks. Not to be called with one that [`Session::disturbs`] rings that workers have.
    ///
    /// # Errors
    /// [`Refusal`], where the front end has not asked for an answer: the connection is to be ended.
    pub fn take(&mut self, message: Incoming) -> Result<Taken, Refusal> {
        let code = message.code;
        let acknowledge = message.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let word = |value: u64| Reply {
            bytes: reply(code, &value.to_ne_bytes()),
            fd: None,
        };
        match self.follow(code, message.request, message.fds, message.channel) {
            Ok(Answer::With(payload)) => Ok(answered(code, &payload, None)),
            Ok(Answer::WithFile(payload, file)) => Ok(answered(code, &payload, Some(file))),
            Ok(done @ (Answer::Done | Answer::Later)) => Ok(Taken {
                reply: acknowledge.then(|| word(0)),
                refused: None,
                waits: matches!(done, Answer::Later),
            }),
            // A descriptor that blocks costs milliseconds: not twice on one connection.
            Err(Refusal::Local(StartError::Kick(error))) => {
                Err(Refusal::Local(StartError::Kick(error)))
            }
            Err(refused) if acknowledge => Ok(Taken {
                reply: Some(word(1)),
                refused: Some(refused),
                waits: false,
            }),
            Err(refused) => Err(refused),
        }
    }

    fn follow(
        &mut self,
        code: Code,
        request: Request,
        fds: Vec<OwnedFd>,
        channel: Option<DeferredClose<OwnedFd>>,
    ) -> Result<Answer, Refusal> {
        let number = |value: u64| Ok(Answer::With(value.to_ne_bytes().to_vec()));
        match request {
            Request::GetFeatures => return number(OFFERED),
            Request::GetProtocolFeatures => return number(PROTOCOL_OFFERED),
            Request::GetQueueNum => return number(u64::from(self.conf.pairs)),
            Request::GetMaxMemSlots => return number(REGIONS_MAX as u64),
            Request::GetStatus => return number(u64::from(self.status)),
            Request::SetOwner | Request::SetLogFd => {}
            Request::SetProtocolFeatures(bits) => {
                offered(code, bits, PROTOCOL_OFFERED)?;
                self.protocol = bits;
            }
            Request::NetSetMtu(asked) => self.check_mtu(asked)?,
            Request::SendRarp(mac) => self.device.announce(mac).map_err(StartError::from)?,
            Request::SetFeatures(_)
            | Request::SetMemTable(_)
            | Request::AddMemReg(_)
            | Request::RemMemReg(_)
            | Request::SetLogBase { .. }
            | Request::GetInflightFd(_)
            | Request::SetInflightFd(_)
            | Request::ResetOwner
            | Request::ResetDevice
            | Request::SetStatus(_) => return self.follow_device(code, request, &fds),
            Request::SetBackendReqFd | Request::Iotlb(_)
                if self.protocol & protocol::BACKEND_REQ == 0 =>
            {
                return Err(Refusal::Unknown(code));
            }
            Request::SetBackendReqFd => self.take_channel(code, channel)?,
            Request::Iotlb(said) => return self.follow_iotlb(&said),
            Request::Unknown(_) => return Err(Refusal::Unknown(code)),
            _ => return self.follow_queue(code, request, fds),
        }
        Ok(Answer::Done)
    }

    /// The socket for our own questions.
    fn take_channel(
        &mut self,
        code: Code,
        channel: Option<DeferredClose<OwnedFd>>,
    ) -> Result<(), Refusal> {
        let missing = Malformed::Descriptors { code, count: 0 };
        self.platform.set_channel(channel.ok_or(missing)?);
        // Rings that wait for an answer ask again.
        self.publish()
    }

    fn follow_iotlb(&mut self, said: &Iotlb) -> Result<Answer, Refusal> {
        let follow = self.platform.follow(said, &self.device.memory)?;
        self.publish()?;
        if follow == Follow::Less {
            self.platform.await_visits(self.device.visits());
            return Ok(Answer::Later);
        }
        Ok(Answer::Done)
    }

    fn publish(&self) -> Result<(), Refusal> {
        if self.device.shared().is_none() {
            return Ok(());
        }
        let published = self.device.publish(self.platform.snapshot());
        Ok(published.map_err(StartError::from)?)
    }

    /// Whether the answer that waits may be given.
    pub fn is_clear(&mut self) -> bool {
        let shared = self.device.shared();
        self.platform.is_clear(shared.map(|shared| &**shared))
    }

    /// Asks the front end for the translations that workers have found lacking.
    ///
    /// # Errors
    /// [`WireError`]: it is gone, or does not read.
    pub fn ask(&mut self) -> Result<(), WireError> {
        match self.device.shared() {
            Some(shared) => self.platform.ask(shared, self.device.queues.len()),
            None => Ok(()),
        }
    }

    /// When [`Session::ask_again`] has something to do, unless the front end answers.
    pub fn asks_again_at(&self) -> Option<Instant> {
        self.device.shared()?;
        self.platform.due()
    }

    /// Has rings ask again for what was asked for long ago and was not answered.
    ///
    /// # Errors
    /// [`Refusal`]: a worker cannot be woken.
    pub fn ask_again(&mut self, now: Instant) -> Result<(), Refusal> {
        match self.device.shared().is_some() && self.platform.give_up(now) {
            true => self.publish(),
            false => Ok(()),
        }
    }

    /// What the front end told of its IOMMU does not hold any more.
    fn forget_translations(&mut self) -> Result<(), Refusal> {
        self.platform.forget();
        self.publish()
    }

    fn set_features(&mut self, code: Code, bits: u64) -> Result<(), Refusal> {
        offered(code, bits, OFFERED)?;
        let wanted = protocol::BACKEND_REQ | protocol::REPLY_ACK;
        if bits & ACCESS_PLATFORM != 0 && self.protocol & wanted != wanted {
            return Err(Refusal::NoChannel);
        }
        if (bits ^ self.device.features) & ACCESS_PLATFORM != 0 {
            self.forget_translations()?;
        }
        self.device.features = bits;
        Ok(())
    }

    /// Messages about the device as a whole.
    fn follow_device(
        &mut self,
        code: Code,
        request: Request,
        fds: &[OwnedFd],
    ) -> Result<Answer, Refusal> {
        let memory = |source| Refusal::Memory { code, source };
        let missing = Malformed::Descriptors {
            code,
            count: fds.len(),
        };
        self.fault = None;
        match request {
            Request::SetFeatures(bits) => {
                self.set_features(code, bits)?;
            }
            Request::SetMemTable(table) => {
                self.forget_translations()?;
                self.device.memory.set(&table, fds).map_err(memory)?;
            }
            Request::AddMemReg(region) => {
                self.forget_translations()?;
                let fd = fds.first().ok_or(missing)?;
                self.device.memory.add(&region, fd).map_err(memory)?;
            }
            Request::RemMemReg(region) => {
                self.forget_translations()?;
                self.device.memory.remove(&region);
            }
            Request::SetLogBase { len, offset } => {
                let fd = fds.first().ok_or(missing)?;
                let log = DirtyLog::new(fd.as_fd(), offset, len).map_err(Refusal::Log)?;
                self.device.log = Some(Arc::new(log));
                // Waited for in any case: the log before is not written from then on.
                return Ok(Answer::With(0u64.to_ne_bytes().to_vec()));
            }
            Request::GetInflightFd(asked) => {
                let made = RingProgress::offer(&asked, self.device.queues.len());
                let (file, offer) = made.map_err(Refusal::Inflight)?;
                return Ok(Answer::WithFile(offer.encode(), file));
            }
            Request::SetInflightFd(said) => {
                let fd = fds.first().ok_or(missing)?;
                let progress = RingProgress::brought(fd, &said).map_err(Refusal::Inflight)?;
                self.device.inflight = Some(Arc::new(progress));
            }
            Request::SetStatus(status) => {
                self.status = status as u8;
                if status == 0 {
                    self.forget_translations()?;
                    self.forget_progress();
                    self.device.queues.iter_mut().for_each(|q| q.stop());
                }
            }
            Request::ResetDevice => {
                self.forget_translations()?;
                self.reset();
            }
            // What it once meant was never agreed on; the specification recommends this.
            _ => self
                .device
                .queues
                .iter_mut()
                .for_each(|q| q.enabled = false),
        }
        Ok(Answer::Done)
    }

    /// Messages about one queue.
    fn follow_queue(
        &mut self,
        code: Code,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let number = match request {
            Request::SetVringNum { queue, .. }
            | Request::SetVringAddr { queue, .. }
            | Request::SetVringBase { queue, .. }
            | Request::GetVringBase { queue }
            | Request::SetVringKick { queue }
            | Request::SetVringCall { queue }
            | Request::SetVringErr { queue }
            | Request::SetVringEnable { queue, .. } => queue,
            _ => return Err(Refusal::Unknown(code)),
        };
        let queues = self.device.queues.len();
        let eventfd = eventfd_of(code, fds)?;
        if matches!(request, Request::SetVringCall { .. }) && (number as usize) < queues {
            self.device.swap_call(number, eventfd.as_ref())?;
        }
        let Some(queue) = self.device.queues.get_mut(number as usize) else {
            return Err(Refusal::Queue {
                code,
                queue: number,
                queues,
            });
        };
        match request {
            Request::SetVringNum { size, .. } => {
                let fits = u16::try_from(size)
                    .ok()
                    .filter(|n| (1..=SIZE_MAX).contains(n));
                queue.size = Some(fits.ok_or(Refusal::Size(size))?);
            }
            Request::SetVringAddr { at, .. } => queue.at = Some(at),
            Request::SetVringBase { base, .. } => queue.base = base,
            Request::GetVringBase { .. } => {
                queue.stop();
                let state = queue_state(number, queue.base);
                if !queue.unfound {
                    self.device.forget([number as usize]);
                }
                self.forget_translations()?;
                return Ok(Answer::With(state.to_vec()));
            }
            Request::SetVringKick { .. } => queue.start(eventfd),
            Request::SetVringCall { .. } => queue.call = eventfd,
            Request::SetVringErr { .. } => queue.err = eventfd,
            Request::SetVringEnable { on, .. } => {
                let switched = self.device.switch(number as usize, on);
                switched.map_err(StartError::from)?;
            }
            _ => return Err(Refusal::Unknown(code)),
        }
        self.fault = None;
        Ok(Answer::Done)
    }

    /// Forgets what was said of the queues, but for the descriptors that the front end listens to.
    fn reset(&mut self) {
        self.status = 0;
        self.forget_progress();
        for queue in &mut self.device.queues {
            let (call, err) = (queue.call.take(), queue.err.take());
            *queue = Queue {
                call,
                err,
                ..Queue::default()
            };
        }
    }

    /// The rings are never to be gone on with.
    pub(super) fn forget_progress(&self) {
        self.device.forget(0..self.device.queues.len());
    }

    fn check_mtu(&self, asked: u64) -> Result<(), Refusal> {
        let ours = self.conf.mtu;
        match asked == u64::from(ours) {
            true => Ok(()),
            false => Err(Refusal::Mtu { asked, ours }),
        }
    }

    /// What there is to tell, by name.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let device = &self.device;
        let (receive, transmit) = device.ready();
        let sizes = |queues: &[usize]| {
            let said = queues.iter().filter_map(|q| device.queues.get(*q)?.size);
            let list: Vec<String> = said.map(|size| size.to_string()).collect();
            list.join(" ")
        };
        let layout = if device.is_packed() {
            "packed"
        } else {
            "split"
        };
        let survives = if device.survives_a_kill() {
            "yes"
        } else {
            "no: packed rings do only if the daemon has a directory in memory (tmpfs)"
        };
        let mut told = vec![
            (
                "features",
                features::describe(device.features, features::NAMES),
            ),
            (
                "protocol-features",
                features::describe(self.protocol, protocol::NAMES),
            ),
            ("queue-pairs-max", self.conf.pairs.to_string()),
            ("queue-pairs", receive.len().min(transmit.len()).to_string()),
            ("ring-layout", layout.into()),
            ("survives-a-kill", survives.into()),
            ("ring-sizes-to-guest", sizes(&receive)),
            ("ring-sizes-from-guest", sizes(&transmit)),
            ("memory-regions", device.memory.len().to_string()),
            ("memory-bytes", device.memory.bytes().to_string()),
        ];
        if device.has_iommu() {
            told.push(("iommu", self.platform.describe()));
        }
        told
    }
}

/// An answer with a payload of its own.
fn answered(code: Code, payload: &[u8], fd: Option<OwnedFd>) -> Taken {
    Taken {
        reply: Some(Reply {
            bytes: reply(code, payload),
            fd,
        }),
        refused: None,
        waits: false,
    }
}

fn offered(code: Code, bits: u64, offered: u64) -> Result<(), Refusal> {
    match bits & !offered {
        0 => Ok(()),
        bits => Err(Refusal::Bits { code, bits }),
    }
}

/// The descriptor of a message about a queue, if it brought one.
fn eventfd_of(code: Code, fds: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Refusal> {
    let Some(fd) = fds.into_iter().next() else {
        return Ok(None);
    };
    match eventfd::is_eventfd(&fd) && eventfd::set_nonblocking(&fd).is_ok() {
        true => Ok(Some(fd)),
        false => Err(Refusal::NotEventfd(code)),
    }
}
