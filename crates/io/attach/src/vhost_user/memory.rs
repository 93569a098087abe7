//! The memory that a front end announces, region by region, and what becomes of it.
//!
//! # Model
//! Regions of one file share one mapping, from its start to the end of the last of them. A table that is sent again
//! keeps what is mapped already. Ring addresses come as addresses of the front end ([`Memory::guest_address`]), the
//! guest's descriptors have guest addresses ([`Memory::map`]).
//!
//! QEMU (7.2 at least) says each addition and removal of a region once for every queue pair: a region that is there
//! is there when it is added again, and one that is gone is gone when it is removed again.
//!
//! # Failure modes
//! After a refusal the table is as before.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use windlass_shm::{Extent, MapError, Mapping, Quota};
use windlass_sys::Errno;

use super::guest_map::{BYTES_MAX, GuestMap, GuestMapError, Part, REGIONS_MAX};
use super::message::Region;

/// A file on this host.
type File = (u64, u64);

#[derive(Clone, Debug)]
struct Known {
    region: Region,
    file: File,
    mapping: Arc<Mapping>,
    /// The file itself, for a daemon that takes this one's place.
    fd: Arc<OwnedFd>,
}

/// The regions of one front end.
#[derive(Debug)]
pub struct Memory {
    known: Vec<Known>,
    /// Of whom the mappings count.
    quota: Quota,
}

impl Memory {
    /// No region, of a front end whose mappings count in `quota`.
    pub fn new(quota: Quota) -> Memory {
        Memory {
            known: Vec::new(),
            quota,
        }
    }

    /// Replaces all regions.
    ///
    /// # Errors
    /// [`GuestMapError`].
    pub fn set(&mut self, regions: &[Region], fds: &[OwnedFd]) -> Result<(), GuestMapError> {
        let mut table = Vec::with_capacity(regions.len());
        // The largest end first, so that the other regions of a file find it mapped far enough.
        let mut order: Vec<_> = regions.iter().zip(fds).collect();
        order.sort_by_key(|(region, _)| {
            core::cmp::Reverse(region.offset.saturating_add(region.len))
        });
        for (region, fd) in order {
            let known = map(region, fd, &table).or_else(|| map(region, fd, &self.known));
            let known = known.map_or_else(|| map_anew(region, fd, &self.quota), Ok)?;
            table.push(known);
        }
        self.replace(table)
    }

    /// Adds one region, unless it is there.
    ///
    /// # Errors
    /// [`GuestMapError`].
    pub fn add(&mut self, region: &Region, fd: &OwnedFd) -> Result<(), GuestMapError> {
        let file = Mapping::identity(fd.as_fd()).ok();
        let same = |known: &Known| {
            known.region == *region && Some(known.file) == file && !known.mapping.is_dead()
        };
        if self.known.iter().any(same) {
            return Ok(());
        }
        if self.known.len() >= REGIONS_MAX {
            return Err(GuestMapError::Count(REGIONS_MAX.saturating_add(1)));
        }
        let known = map(region, fd, &self.known);
        let known = known.map_or_else(|| map_anew(region, fd, &self.quota), Ok)?;
        let mut table = self.known.clone();
        table.push(known);
        self.replace(table)
    }

    /// Takes one region away, if it is there.
    pub fn remove(&mut self, region: &Region) {
        let same = |known: &Region| {
            (known.gpa, known.user, known.len) == (region.gpa, region.user, region.len)
        };
        self.known.retain(|known| !same(&known.region));
    }

    /// Forgets all regions.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Every region and its file.
    pub(super) fn table(&self) -> impl Iterator<Item = (&Region, &OwnedFd)> {
        self.known.iter().map(|known| (&known.region, &*known.fd))
    }

    /// Regions at the moment.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        let sizes = self.known.iter().map(|known| known.region.len);
        sizes.fold(0, u64::saturating_add)
    }

    /// Every file that is mapped, once.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<_> = self.known.iter().map(|k| k.mapping.extent()).collect();
        extents.sort_by_key(|extent| extent.start);
        extents.dedup();
        extents
    }

    /// The guest address of what the front end calls `user`.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        self.known.iter().find_map(|known| {
            let at = user.checked_sub(known.region.user)?;
            (at < known.region.len).then(|| known.region.gpa.wrapping_add(at))
        })
    }

    /// Where the `len` bytes are that the front end calls `user`, if they lie in one region: in guest memory, and in ours.
    /// Holds as long as the region does.
    pub(super) fn place(&self, user: u64, len: u64) -> Option<(u64, *mut u8)> {
        self.known.iter().find_map(|known| {
            let at = user.checked_sub(known.region.user)?;
            let left = known.region.len.checked_sub(at)?;
            let offset = known.region.offset.wrapping_add(at);
            let base = known.mapping.base().wrapping_add(offset as usize);
            (len <= left && left != 0).then(|| (known.region.gpa.wrapping_add(at), base))
        })
    }

    /// The file that guest address `gpa` lies in: device and inode.
    pub(super) fn file_at(&self, gpa: u64) -> Option<(u64, u64)> {
        file_at(&self.files(), gpa)
    }

    /// The same for every address: first one, bytes, and the file.
    pub(super) fn files(&self) -> Box<[FileAt]> {
        let each = |known: &Known| FileAt {
            gpa: known.region.gpa,
            len: known.region.len,
            file: known.file,
        };
        self.known.iter().map(each).collect()
    }

    /// The regions as the data path uses them.
    ///
    /// # Errors
    /// [`GuestMapError`].
    pub fn map(&self, alarm: OwnedFd) -> Result<GuestMap, GuestMapError> {
        GuestMap::of(&parts(&self.known), alarm)
    }

    fn replace(&mut self, table: Vec<Known>) -> Result<(), GuestMapError> {
        check(&table)?;
        self.known = table;
        Ok(())
    }
}

/// The file of a range of guest addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileAt {
    gpa: u64,
    len: u64,
    /// Device and inode.
    file: (u64, u64),
}

/// The file among these that guest address `gpa` lies in.
pub(super) fn file_at(files: &[FileAt], gpa: u64) -> Option<(u64, u64)> {
    let inside = |range: &&FileAt| gpa.checked_sub(range.gpa).is_some_and(|at| at < range.len);
    files.iter().find(inside).map(|range| range.file)
}

fn parts(table: &[Known]) -> Vec<Part> {
    let part = |known: &Known| Part {
        gpa: known.region.gpa,
        len: known.region.len,
        offset: known.region.offset,
        mapping: known.mapping.clone(),
    };
    table.iter().map(part).collect()
}

/// Refuses what [`GuestMap::of`] would, before the front end is told that all is well.
fn check(table: &[Known]) -> Result<(), GuestMapError> {
    let mut sorted: Vec<&Region> = table.iter().map(|known| &known.region).collect();
    sorted.sort_by_key(|region| region.gpa);
    for region in &sorted {
        let (gpa, len) = (region.gpa, region.len);
        if len == 0 || gpa.checked_add(len).is_none() || region.user.checked_add(len).is_none() {
            return Err(GuestMapError::Range { gpa, len });
        }
    }
    for (low, high) in sorted.iter().zip(sorted.iter().skip(1)) {
        if high.gpa.wrapping_sub(low.gpa) < low.len {
            return Err(GuestMapError::Overlap(high.gpa));
        }
    }
    let mut mappings: Vec<_> = table.iter().map(|known| &known.mapping).collect();
    mappings.sort_by_key(|mapping| Arc::as_ptr(mapping));
    mappings.dedup_by_key(|mapping| Arc::as_ptr(mapping));
    let bytes = mappings.iter().map(|mapping| mapping.len() as u64);
    match bytes.fold(0, u64::saturating_add) {
        ..=BYTES_MAX => Ok(()),
        bytes => Err(GuestMapError::Bytes(bytes)),
    }
}

/// The region in a file that is mapped far enough, if it is in `table` and whole.
fn map(region: &Region, fd: &OwnedFd, table: &[Known]) -> Option<Known> {
    let file = Mapping::identity(fd.as_fd()).ok()?;
    let end = region.offset.checked_add(region.len)?;
    let fits = |known: &&Known| {
        known.file == file && known.mapping.len() as u64 >= end && !known.mapping.is_dead()
    };
    let found = table.iter().find(fits)?;
    Some(Known {
        region: *region,
        file,
        mapping: found.mapping.clone(),
        fd: found.fd.clone(),
    })
}

fn map_anew(region: &Region, fd: &OwnedFd, quota: &Quota) -> Result<Known, GuestMapError> {
    let (gpa, len) = (region.gpa, region.len);
    let end = region.offset.checked_add(len);
    let end = end
        .filter(|_| len != 0)
        .ok_or(GuestMapError::Range { gpa, len })?;
    let memory = |source| GuestMapError::Memory { gpa, source };
    let file = Mapping::identity(fd.as_fd()).map_err(memory)?;
    let mapping = Mapping::foreign_within(quota, fd.as_fd(), end).map_err(memory)?;
    let copy = fd.try_clone().map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
        memory(MapError::System("dup", errno))
    })?;
    Ok(Known {
        region: *region,
        file,
        mapping: Arc::new(mapping),
        fd: Arc::new(copy),
    })
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;
    use windlass_shm::HugePages;

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> OwnedFd {
        let bytes = (pages * PAGE) as usize;
        Mapping::create("windlass-guest", bytes, HugePages::No)
            .unwrap()
            .1
    }

    fn region(gpa: u64, offset: u64) -> Region {
        Region {
            gpa,
            len: PAGE,
            user: 0x7000_0000 + offset,
            offset,
        }
    }

    fn again(fd: &OwnedFd) -> OwnedFd {
        fd.try_clone().unwrap()
    }

    /// Regions of one file are mapped once, also when the table is sent again or grows.
    #[test]
    fn one_mapping_for_each_file() {
        let (a, b) = (file(4), file(1));
        let mut memory = Memory::new(Quota::new(64));
        let table = [
            region(0, 0),
            region(0x10_0000, 3 * PAGE),
            region(0x20_0000, 0),
        ];
        memory
            .set(&table, &[again(&a), again(&a), again(&b)])
            .unwrap();
        let distinct = |memory: &Memory| {
            let mut at: Vec<_> = memory
                .known
                .iter()
                .map(|k| Arc::as_ptr(&k.mapping))
                .collect();
            at.sort();
            at.dedup();
            at
        };
        let first = distinct(&memory);
        assert_eq!(first.len(), 2);
        memory
            .set(&table, &[again(&a), again(&a), again(&b)])
            .unwrap();
        memory.add(&region(0x30_0000, PAGE), &again(&a)).unwrap();
        assert_eq!(distinct(&memory), first);
        assert_eq!((memory.len(), memory.bytes()), (4, 4 * PAGE));
    }

    /// A front end cannot map more than its user may: the table stays as it was, and what is taken away makes room.
    #[test]
    fn mappings_are_counted() {
        let mut memory = Memory::new(Quota::new(2));
        for gpa in [0, 0x10_0000] {
            memory.add(&region(gpa, 0), &file(1)).unwrap();
        }
        let third = region(0x20_0000, 0);
        let refused = memory.add(&third, &file(1)).unwrap_err();
        let quota = |source: &MapError| matches!(source, MapError::Quota(2));
        assert!(
            matches!(&refused, GuestMapError::Memory { source, .. } if quota(source)),
            "{refused}"
        );
        assert_eq!(memory.len(), 2);
        memory.remove(&region(0, 0));
        memory.add(&third, &file(1)).unwrap();
    }

    /// A region that is said once for every queue pair is there once, and gone after its first removal; another file
    /// or another place in it is another region.
    #[test]
    fn regions_may_be_repeated() {
        let (a, b) = (file(4), file(4));
        let mut memory = Memory::new(Quota::new(64));
        for _ in 0..2 {
            memory.add(&region(0x10_0000, 0), &again(&a)).unwrap();
            assert_eq!(memory.len(), 1);
        }
        for (file, offset) in [(&b, 0), (&a, PAGE)] {
            let refused = memory.add(&region(0x10_0000, offset), &again(file));
            assert!(matches!(refused, Err(GuestMapError::Overlap(0x10_0000))));
        }
        memory.add(&region(0x20_0000, PAGE), &again(&a)).unwrap();
        for _ in 0..2 {
            memory.remove(&region(0x10_0000, 0));
            assert_eq!(memory.len(), 1);
        }
        assert_eq!(memory.guest_address(0x7000_0000 + PAGE), Some(0x20_0000));
    }

    /// Addresses of the front end become the guest's; the end of a region is outside.
    #[test]
    fn addresses_are_translated() {
        let mut memory = Memory::new(Quota::new(64));
        memory.set(&[region(0x5000, PAGE)], &[file(2)]).unwrap();
        let user = 0x7000_0000 + PAGE;
        assert_eq!(memory.guest_address(user), Some(0x5000));
        assert_eq!(memory.guest_address(user + PAGE - 1), Some(0x5fff));
        assert_eq!(memory.guest_address(user + PAGE), None);
        assert_eq!(memory.guest_address(user - 1), None);
        assert_eq!(memory.guest_address(0), None);
    }

    /// The files of one guest are not mapped without end, however little of them there is.
    #[test]
    fn addresses_are_rationed() {
        let each = 60u64 << 30;
        let mut memory = Memory::new(Quota::new(64));
        let mut add = |i: u64| {
            let name = "windlass-sparse";
            let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, each).unwrap();
            let region = Region {
                gpa: i * each,
                len: each,
                user: i * each,
                offset: 0,
            };
            memory.add(&region, &file)
        };
        for i in 0..8 {
            add(i).unwrap();
        }
        assert!(matches!(add(8), Err(GuestMapError::Bytes(_))));
    }

    /// A table that is refused leaves the one before in place.
    #[test]
    fn a_refusal_changes_nothing() {
        let mut memory = Memory::new(Quota::new(64));
        memory.set(&[region(0x1000, 0)], &[file(1)]).unwrap();
        let overlapping = [region(0x1000, 0), region(0x1800, 0)];
        let refused = memory.set(&overlapping, &[file(1), file(1)]);
        assert!(matches!(refused, Err(GuestMapError::Overlap(0x1800))));
        let short = memory.add(&region(0x9000, PAGE), &file(1));
        assert!(matches!(short, Err(GuestMapError::Memory { .. })));
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        let plain = memory.add(&region(0x9000, 0), &plain.into());
        assert!(matches!(
            plain,
            Err(GuestMapError::Memory {
                source: MapError::FileSystem,
                ..
            })
        ));
        assert_eq!(memory.len(), 1);
        assert_eq!(memory.guest_address(0x7000_0000), Some(0x1000));
    }
}
