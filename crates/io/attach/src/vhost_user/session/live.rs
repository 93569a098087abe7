//! A session that goes on in another daemon: what was said on it, as words and descriptors.
//!
//! # Model
//! Where its rings stand is not among them: split ones tell it, and packed ones where it is kept outside the process, as after
//! a kill. So the session is written down while workers still have its rings.
//!
//! # Limits
//! Not handed over, so that the front end connects again: a session with a log, an inflight region or an IOMMU, one without rings,
//! and packed rings that would not survive a kill.

use std::os::fd::{AsFd, OwnedFd};

use super::super::device::Queue;
use super::super::guest_map::REGIONS_MAX;
use super::super::message::{Region, RingAddress};
use super::Session;

/// Of this form; another daemon may know others.
const FORM: u64 = 1;

/// Bits of a queue's last word.
const HAS_SIZE: u64 = 1;
const HAS_ADDRESS: u64 = 2;
const IS_STARTED: u64 = 4;
const HAS_KICK: u64 = 8;
const HAS_CALL: u64 = 16;
const HAS_ERR: u64 = 32;
const IS_ENABLED: u64 = 64;
const IS_STOPPED: u64 = 128;

/// Takes words and descriptors one after the other.
struct Reader<'a> {
    words: core::slice::Iter<'a, u64>,
    fds: std::vec::IntoIter<OwnedFd>,
}

impl Reader<'_> {
    fn word(&mut self) -> Option<u64> {
        self.words.next().copied()
    }

    fn fd_if(&mut self, there: bool) -> Option<Option<OwnedFd>> {
        match there {
            true => self.fds.next().map(Some),
            false => Some(None),
        }
    }
}

impl Session {
    /// What was said on it; none if it cannot go on elsewhere.
    pub(in super::super) fn hand_over(&self) -> Option<(Vec<u64>, Vec<OwnedFd>)> {
        let device = &self.device;
        let is_plain = device.is_running()
            && !device.is_broken()
            && !device.has_iommu()
            && device.log.is_none()
            && device.inflight.is_none()
            && device.survives_a_kill();
        if !is_plain {
            return None;
        }
        let (mut words, mut fds) = (vec![FORM, self.protocol], Vec::new());
        words.extend([u64::from(self.status), device.features]);
        words.push(device.memory.len() as u64);
        for (region, fd) in device.memory.table() {
            words.extend([region.gpa, region.len, region.user, region.offset]);
            fds.push(fd.as_fd().try_clone_to_owned().ok()?);
        }
        words.push(device.queues.len() as u64);
        for queue in &device.queues {
            write(queue, &mut words, &mut fds)?;
        }
        Some((words, fds))
    }

    /// Goes on with what [`Session::hand_over`] gave; false if that is of no use, and then the session is.
    pub(in super::super) fn resume(&mut self, words: &[u64], fds: Vec<OwnedFd>) -> bool {
        let reader = Reader {
            words: words.iter(),
            fds: fds.into_iter(),
        };
        self.read(reader).is_some()
    }

    fn read(&mut self, mut from: Reader<'_>) -> Option<()> {
        (from.word()? == FORM).then_some(())?;
        self.protocol = from.word()?;
        self.status = u8::try_from(from.word()?).ok()?;
        self.device.features = from.word()?;
        let count = usize::try_from(from.word()?).ok()?;
        (count <= REGIONS_MAX).then_some(())?;
        let (mut regions, mut files) = (Vec::new(), Vec::new());
        for _ in 0..count {
            regions.push(Region {
                gpa: from.word()?,
                len: from.word()?,
                user: from.word()?,
                offset: from.word()?,
            });
            files.push(from.fds.next()?);
        }
        self.device.memory.set(&regions, &files).ok()?;
        // Of a VNIC whose queues have become fewer or more, the front end has to be told.
        (from.word()? == self.device.queues.len() as u64).then_some(())?;
        for queue in &mut self.device.queues {
            *queue = read(&mut from)?;
        }
        self.device.goes_on = true;
        Some(())
    }
}

fn write(queue: &Queue, words: &mut Vec<u64>, fds: &mut Vec<OwnedFd>) -> Option<()> {
    let at = queue.at.unwrap_or(RingAddress {
        flags: 0,
        desc: 0,
        used: 0,
        avail: 0,
        log: 0,
    });
    words.push(u64::from(queue.size.unwrap_or(0)));
    words.extend([u64::from(at.flags), at.desc, at.used, at.avail, at.log]);
    words.push(u64::from(queue.base));
    let kick = queue.kick.as_ref();
    let bits = [
        (queue.size.is_some(), HAS_SIZE),
        (queue.at.is_some(), HAS_ADDRESS),
        (kick.is_some(), IS_STARTED),
        (kick.is_some_and(Option::is_some), HAS_KICK),
        (queue.call.is_some(), HAS_CALL),
        (queue.err.is_some(), HAS_ERR),
        (queue.enabled, IS_ENABLED),
        (queue.stopped, IS_STOPPED),
    ];
    let set = bits.iter().filter(|(is_set, _)| *is_set);
    words.push(set.fold(0, |word, (_, bit)| word | bit));
    let kick = kick.and_then(Option::as_ref);
    for fd in [kick, queue.call.as_ref(), queue.err.as_ref()]
        .into_iter()
        .flatten()
    {
        fds.push(fd.try_clone().ok()?);
    }
    Some(())
}

fn read(from: &mut Reader<'_>) -> Option<Queue> {
    let size = u16::try_from(from.word()?).ok()?;
    let at = RingAddress {
        flags: u32::try_from(from.word()?).ok()?,
        desc: from.word()?,
        used: from.word()?,
        avail: from.word()?,
        log: from.word()?,
    };
    let base = u32::try_from(from.word()?).ok()?;
    let word = from.word()?;
    let has = |bit| word & bit != 0;
    let kick = from.fd_if(has(HAS_KICK))?;
    Some(Queue {
        size: has(HAS_SIZE).then_some(size),
        at: has(HAS_ADDRESS).then_some(at),
        base,
        kick: has(IS_STARTED).then_some(kick),
        call: from.fd_if(has(HAS_CALL))?,
        err: from.fd_if(has(HAS_ERR))?,
        enabled: has(IS_ENABLED),
        stopped: has(IS_STOPPED),
        unfound: false,
    })
}
