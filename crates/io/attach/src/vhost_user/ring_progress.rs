//! Where packed rings stand, kept outside this process: what the next daemon needs after a kill.
//!
//! # Model
//! A split ring says by its used index where it stands. A packed one does not, and the front end knows only where it
//! stood when it was last started or stopped in order. So each half writes one word before each publication, from where
//! to where it goes, into memory that outlives the process: the region that the front end offers (INFLIGHT_SHMFD), else
//! a file of our own. Which of the two places the ring stands at, its descriptors tell ([`PackedOver::resume`]): as the
//! protocol has it for `old_used_idx` and `used_idx`, but without a second store behind the publication.
//!
//! A word is believed if it was live, stands for the same ring in the same memory, and the ring is not a fresh one: a
//! driver that began anew has no descriptor with the USED flag anywhere, while a ring that was in use has one, or stands
//! at its very beginning. (Only one that stands behind a chain over its end, or behind a batch over it that was given back in order,
//! with nothing used since, looks fresh and is not: there the front end is believed.) Of a ring that another daemon hands over,
//! or has used and let go, it is known that its driver has not begun anew: its word is believed whatever it looks like.
//!
//! # Ownership and lifetime
//! The file lies where only the daemon writes. A ring that is stopped in order, or found broken, is forgotten.
//!
//! # What can be lost
//! Nothing that lies in a guest's ring; at most one burst a worker is done twice. What a publication that was cut off
//! would have brought to a guest is brought again if it came from another guest's ring, and lost if it came from
//! elsewhere.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use windlass_shm::{HugePages, MapError, Mapping};

use super::area::{Area, Flat, Paged};
use super::message::Inflight;
use super::packed::PackedOver;
use super::queue::{Base, QueueSetup, SIZE_MAX};
use super::ring::Ring;

/// Queues that a file of our own has room for.
const QUEUES: usize = 32;
/// Bytes of one record of ours: the word and what ring it is of, and a line that keeps the next record's away.
const RECORD: usize = 128;
const FILE_BYTES: u64 = (RECORD * (QUEUES + 1)) as u64;
/// "windlas2".
const MAGIC: u64 = u64::from_le_bytes(*b"windlas2");
/// Where the word is in a queue's part of an inflight region: used_idx, old_used_idx, used_wrap_counter,
/// old_used_wrap_counter, and padding.
const INFLIGHT_WORD: u64 = 16;
/// Header and each descriptor's state of a packed queue's part.
const INFLIGHT_UNIT: u64 = 32;
const LINE: u64 = 64;
/// In a word, in what the protocol calls padding: the ring has not been stopped.
const LIVE: u64 = 1 << 56;
/// Which ring a word stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingKey {
    pub(super) queue: usize,
    /// Guest address of its descriptors, as the memory table names it.
    pub(super) desc: u64,
    pub(super) size: u16,
    /// The file of its memory.
    pub(super) file: (u64, u64),
    /// Its driver has not begun anew since the word was written.
    pub(super) goes_on: bool,
}

/// The word of one ring.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    mapping: Arc<Mapping>,
    at: usize,
}

impl Mark {
    /// Everything up to `from` is published, and what follows up to `to` is about to be.
    #[inline(always)]
    pub(super) fn intend(&self, from: Base, to: Base) {
        let stands = u64::from(to.used) | u64::from(from.used) << 16;
        let wraps = u64::from(to.used_wrap) << 32 | u64::from(from.used_wrap) << 40;
        let word = LIVE | stands | wraps;
        self.mapping.store_u64(self.at, word, Ordering::Release);
    }

    /// From where to where a daemon was to publish that did not stop.
    fn get(&self) -> Option<(Base, Base)> {
        let word = self.mapping.load_u64(self.at, Ordering::Acquire);
        let from = Base::packed((word >> 16) as u16, word >> 40 & 1 != 0);
        let to = Base::packed(word as u16, word >> 32 & 1 != 0);
        (word & LIVE != 0).then_some((from, to))
    }

    fn clear(&self) {
        self.mapping.store_u64(self.at, 0, Ordering::Release);
    }
}

#[derive(Debug)]
enum Layout {
    /// Of the front end: where it begins in its file, and what it has room for.
    Inflight { offset: u64, queues: u16, size: u16 },
    /// A file of ours.
    Own,
}

/// Memory with words of rings.
#[derive(Debug)]
pub(super) struct RingProgress {
    mapping: Arc<Mapping>,
    layout: Layout,
}

/// Bytes of one queue's part of an inflight region.
fn stride(size: u16) -> u64 {
    let states = u64::from(size).saturating_add(1);
    states.saturating_mul(INFLIGHT_UNIT).next_multiple_of(LINE)
}

impl RingProgress {
    /// A file at `path`, in a directory that is made if it has gone; `None` where there can be none, which costs only what it is for.
    pub(super) fn own(path: &Path) -> Option<RingProgress> {
        let _ = rustix::fs::mkdir(path.parent()?, Mode::RWXU);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        rustix::fs::ftruncate(&file, FILE_BYTES).ok()?;
        let mapping = Mapping::foreign(file.as_fd(), FILE_BYTES).ok()?;
        if mapping.load_u64(0, Ordering::Acquire) != MAGIC {
            assert!(mapping.write(0, &[0; FILE_BYTES as usize]));
            mapping.store_u64(0, MAGIC, Ordering::Release);
        }
        Some(RingProgress {
            mapping: Arc::new(mapping),
            layout: Layout::Own,
        })
    }

    /// Memory for a front end that asks for some.
    ///
    /// # Errors
    /// [`MapError::Length`] beyond what a device can have.
    pub(super) fn offer(
        asked: &Inflight,
        queues_max: usize,
    ) -> Result<(OwnedFd, Inflight), MapError> {
        let bytes = stride(asked.size).saturating_mul(u64::from(asked.queues));
        let fits = (1..=SIZE_MAX).contains(&asked.size) && usize::from(asked.queues) <= queues_max;
        if !fits || bytes == 0 {
            return Err(MapError::Length(bytes));
        }
        let (mapping, file) = Mapping::create("windlass-inflight", bytes as usize, HugePages::No)?;
        let inflight = Inflight {
            len: mapping.len() as u64,
            offset: 0,
            ..*asked
        };
        Ok((file, inflight))
    }

    /// Memory that a front end brings.
    ///
    /// # Errors
    /// As [`Mapping::foreign`]; [`MapError::Length`] also if it is too short for its queues.
    pub(super) fn brought(file: &OwnedFd, said: &Inflight) -> Result<RingProgress, MapError> {
        let bytes = stride(said.size).saturating_mul(u64::from(said.queues));
        let end = said.offset.checked_add(said.len);
        let end = end.filter(|_| bytes <= said.len && said.offset.is_multiple_of(8));
        let mapping = Mapping::foreign(file.as_fd(), end.ok_or(MapError::Length(said.len))?)?;
        Ok(RingProgress {
            mapping: Arc::new(mapping),
            layout: Layout::Inflight {
                offset: said.offset,
                queues: said.queues,
                size: said.size,
            },
        })
    }

    /// The word of a queue, if there is one.
    fn word(&self, queue: usize) -> Option<Mark> {
        let at = match self.layout {
            Layout::Own => {
                let record = queue.checked_add(1).filter(|record| *record <= QUEUES)?;
                record.checked_mul(RECORD)?
            }
            Layout::Inflight {
                offset,
                queues,
                size,
            } => {
                let queue = u64::try_from(queue).ok().filter(|q| *q < queues.into())?;
                let part = stride(size).checked_mul(queue)?;
                let at = offset.checked_add(part)?.checked_add(INFLIGHT_WORD)?;
                usize::try_from(at).ok()?
            }
        };
        self.mapping.find(at as u64, 8)?;
        Some(Mark {
            mapping: self.mapping.clone(),
            at,
        })
    }

    /// The word of a ring that begins, and where it stands: as `setup` says, unless its last device was killed
    /// elsewhere. Behind an IOMMU every page of it must be translated.
    pub(super) fn begin(&self, key: &RingKey, setup: &QueueSetup) -> Option<(Mark, Base)> {
        match setup.map.is_translated() {
            false => self.begin_over::<Flat>(key, setup),
            true => self.begin_over::<Paged>(key, setup),
        }
    }

    fn begin_over<A: Area>(&self, key: &RingKey, setup: &QueueSetup) -> Option<(Mark, Base)> {
        let mark = self.word(key.queue)?;
        let ring = PackedOver::<A>::new(setup).ok()?;
        let same = self.is_of(&mark, key);
        let is_in_use = key.goes_on || ring.is_in_use();
        let left = mark.get().filter(|_| same);
        let left = left.filter(|(from, to)| from.used.max(to.used) < setup.size);
        let stands = left.map(|(from, to)| ring.resume(from, to));
        // Of a ring that has no used descriptor nothing was written.
        let stands = stands.filter(|base| is_in_use || *base == Base::packed(0, true));
        let base = stands.unwrap_or(setup.base);
        if !same {
            self.enter(&mark, key);
        }
        mark.intend(base, base);
        Some((mark, base))
    }

    /// Whether the word of a file of ours is of this ring; a region of the front end is of this device in any case.
    fn is_of(&self, mark: &Mark, key: &RingKey) -> bool {
        let Layout::Own = self.layout else {
            return true;
        };
        self.identity(key).into_iter().enumerate().all(|(i, word)| {
            let at = mark
                .at
                .saturating_add(8)
                .saturating_add(i.saturating_mul(8));
            self.mapping.load_u64(at, Ordering::Acquire) == word
        })
    }

    fn enter(&self, mark: &Mark, key: &RingKey) {
        let Layout::Own = self.layout else {
            return;
        };
        mark.clear();
        for (i, word) in self.identity(key).into_iter().enumerate() {
            let at = mark
                .at
                .saturating_add(8)
                .saturating_add(i.saturating_mul(8));
            self.mapping.store_u64(at, word, Ordering::Release);
        }
    }

    fn identity(&self, key: &RingKey) -> [u64; 4] {
        [key.desc, u64::from(key.size), key.file.0, key.file.1]
    }

    /// A ring was stopped in order: whoever starts it says where it stands.
    pub(super) fn forget(&self, queue: usize) {
        if let Some(mark) = self.word(queue) {
            mark.clear();
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::super::features::{RING_PACKED, VERSION_1};
    use super::super::guest_map::{GuestMap, GuestRegion};
    use super::super::packed::DESC_USED;
    use super::*;
    use windlass_sys::eventfd;

    const SIZE: u16 = 8;

    /// A ring in memory.
    struct Lab {
        memory: Mapping,
        map: Arc<GuestMap>,
    }

    impl Lab {
        fn new() -> Lab {
            let (memory, file) = Mapping::create("progress", 4096, HugePages::No).unwrap();
            let region = GuestRegion {
                gpa: 0,
                len: 4096,
                offset: 0,
                fd: file.as_fd(),
            };
            let map = GuestMap::new(&[region], eventfd::create().unwrap()).unwrap();
            let map = Arc::new(map);
            Lab { memory, map }
        }

        fn setup(&self, size: u16, base: Base) -> QueueSetup {
            QueueSetup {
                map: self.map.clone(),
                desc: 0,
                avail: 2048,
                used: 2052,
                size,
                base,
                features: VERSION_1 | RING_PACKED,
                kick: None,
                call: None,
                log: None,
            }
        }

        fn flags(&self, slot: u64, flags: u16) {
            self.memory
                .store_u16((slot * 16 + 14) as usize, flags, Ordering::Release);
        }
    }

    fn key(queue: usize) -> RingKey {
        RingKey {
            queue,
            desc: 0,
            size: SIZE,
            file: (1, 2),
            goes_on: false,
        }
    }

    /// What was left live in a ring that is in use is believed; not in a fresh ring, not after an orderly stop, not of
    /// another ring or memory, not beyond the ring.
    #[test]
    fn only_what_can_be_is_believed() {
        let asked = Inflight {
            len: 0,
            offset: 0,
            queues: 2,
            size: SIZE,
        };
        let (file, inflight) = RingProgress::offer(&asked, 4).unwrap();
        let brought = || RingProgress::brought(&file, &inflight).unwrap();
        let own =
            std::path::PathBuf::from(format!("/dev/shm/windlass-places-{}", std::process::id()));
        let kinds: [&dyn Fn() -> Option<RingProgress>; 2] =
            [&|| Some(brought()), &|| RingProgress::own(&own)];
        for open in kinds {
            let Some(progress) = open() else {
                println!("skipped: only_what_can_be_is_believed: no tmpfs at /dev/shm");
                continue;
            };
            let lab = Lab::new();
            let (said, left) = (Base::packed(0, true), Base::packed(5, false));
            let begin = |progress: &RingProgress, key: RingKey| {
                progress.begin(&key, &lab.setup(key.size, said)).unwrap().1
            };
            let leave = || {
                let setup = lab.setup(SIZE, said);
                let (mark, _) = open().unwrap().begin(&key(1), &setup).unwrap();
                mark.intend(left, left);
            };
            leave();
            assert_eq!(begin(&open().unwrap(), key(1)), said, "a fresh ring");
            leave();
            let goes_on = RingKey {
                goes_on: true,
                ..key(1)
            };
            assert_eq!(begin(&open().unwrap(), goes_on), left, "it only looks so");
            lab.flags(3, DESC_USED);
            leave();
            assert_eq!(begin(&open().unwrap(), key(1)), left);
            assert_eq!(begin(&progress, key(0)), said, "another queue");
            progress.forget(1);
            assert_eq!(begin(&progress, key(1)), said, "stopped in order");
            leave();
            let short = RingKey { size: 5, ..key(1) };
            assert_eq!(begin(&progress, short), said, "beyond its end");
            if matches!(progress.layout, Layout::Own) {
                leave();
                let other = RingKey {
                    file: (1, 3),
                    ..key(1)
                };
                assert_eq!(begin(&progress, other), said, "another memory");
                let setup = lab.setup(SIZE, said);
                assert!(progress.begin(&key(QUEUES), &setup).is_none());
            }
        }
        let _ = std::fs::remove_file(own);
    }

    /// Regions that are too short, too large or for more queues than there are come to nothing.
    #[test]
    fn bad_regions_are_refused() {
        let asked = |queues, size| Inflight {
            len: 0,
            offset: 0,
            queues,
            size,
        };
        for (queues, size) in [(0, 8), (5, 8), (1, 0), (1, 32_769), (u16::MAX, u16::MAX)] {
            assert!(RingProgress::offer(&asked(queues, size), 4).is_err());
        }
        let (file, good) = RingProgress::offer(&asked(2, 8), 4).unwrap();
        for bad in [
            Inflight { queues: 3, ..good },
            Inflight { offset: 4, ..good },
            Inflight {
                offset: 4096,
                ..good
            },
            Inflight {
                offset: u64::MAX,
                ..good
            },
            Inflight {
                len: u64::MAX,
                ..good
            },
            Inflight { size: 9999, ..good },
        ] {
            assert!(RingProgress::brought(&file, &bad).is_err(), "{bad:?}");
        }
    }
}
