//! Maps that programs and we share, and attachments that end with a descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

use super::{Program, bpf};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
pub(super) const BPF_LINK_CREATE: libc::c_int = 28;
/// `BPF_F_NO_PREALLOC`: memory for an entry when it comes.
const NO_PREALLOC: u32 = 1;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE` of `<linux/if_link.h>`: in the driver, not behind it.
const IN_DRIVER: u32 = 1 << 2;

/// What a map holds, by the kernel's numbers (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Values by keys.
    Hash = 1,
    /// Values by number.
    Array = 2,
    /// Values by keys, one for each processor.
    HashPerProcessor = 5,
    /// Values by number, one for each processor.
    PerProcessor = 6,
    /// Values by keys; a full one drops what was used least of late.
    RecentHash = 9,
    /// Connected sockets by number ([`crate::sockmap`]).
    Sockets = 15,
    /// AF_XDP sockets by number.
    XdpSockets = 17,
    /// Records in a ring ([`super::RecordRing`]).
    RecordRing = 27,
}

/// Processors of a machine at most (`NR_CPUS` of any Linux).
const PROCESSORS_MAX: usize = 8192;
/// Those that there may be on this one, as `0-7`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many processors there may be: so many values a read of a [`MapKind::PerProcessor`] gives at most.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    let count = || last_processor(&std::fs::read_to_string(POSSIBLE).ok()?)?.checked_add(1);
    *COUNT.get_or_init(|| count().unwrap_or(PROCESSORS_MAX))
}

/// The last one of a list such as `0-3,8-11`.
fn last_processor(list: &str) -> Option<usize> {
    list.trim().rsplit(['-', ',']).next()?.parse().ok()
}

/// A map of the kernel's.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
    key_bytes: usize,
    value_bytes: usize,
    entries: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementAttributes {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// A map with room for so many entries: of a hash with keys of 8 bytes, else with numbers; with values of 4 bytes.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF`; `EINVAL` from a kernel without such maps.
    pub fn create(kind: MapKind, entries: u32) -> Result<Map, Errno> {
        let key_bytes = if kind == MapKind::Hash { 8 } else { 4 };
        Map::sized(kind, (key_bytes, 4), entries)
    }

    /// A map with room for so many entries, whose keys and values have so many bytes.
    ///
    /// # Errors
    /// As [`Map::create`].
    pub fn sized(
        kind: MapKind,
        (key_bytes, value_bytes): (u32, u32),
        entries: u32,
    ) -> Result<Map, Errno> {
        let mut attributes = MapAttributes {
            kind: kind as u32,
            key_bytes,
            value_bytes,
            entries,
            flags: if kind == MapKind::Hash {
                NO_PREALLOC
            } else {
                0
            },
        };
        // SAFETY: these are the attributes of a map; there are no addresses in them.
        let fd = unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?;
        // SAFETY: bpf(2) just returned this descriptor, which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Map {
            fd,
            kind,
            key_bytes: key_bytes as usize,
            value_bytes: value_bytes as usize,
            entries: entries as usize,
        })
    }

    /// Puts a socket into a map of sockets, in the place of what was there.
    ///
    /// # Errors
    /// `EBADF` and `EOPNOTSUPP` for what is no socket of its kind, `E2BIG` beyond the last entry.
    pub fn put_socket(&self, key: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.put(&key.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// Enters a key of a hash.
    ///
    /// # Errors
    /// `E2BIG` if the map is full.
    pub fn insert(&self, key: u64) -> Result<(), Errno> {
        self.put(&key.to_ne_bytes(), &1_u32.to_ne_bytes())
    }

    /// Takes a key out of a hash. It need not be there.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn remove(&self, key: u64) -> Result<(), Errno> {
        self.take(&key.to_ne_bytes())
    }

    /// Gives a key a value, in the place of the one that it had.
    ///
    /// # Errors
    /// `E2BIG` if the map is full, `EINVAL` for lengths that are not the map's.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if self.kind == MapKind::PerProcessor || value.len() != self.value_bytes {
            return Err(Errno::INVAL);
        }
        let value = value.as_ptr().expose_provenance() as u64;
        let mut attributes = self.element(key, value)?;
        // SAFETY: key and value have the map's lengths, and outlive the call.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
    }

    /// Takes a key and its value out. It need not be there.
    ///
    /// # Errors
    /// `EINVAL` for a length that is not the map's.
    pub fn take(&self, key: &[u8]) -> Result<(), Errno> {
        let mut attributes = self.element(key, 0)?;
        // SAFETY: the key has the map's length, and outlives the call.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attributes) } {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The words of a [`MapKind::PerProcessor`] value, added up over all processors.
    ///
    /// # Errors
    /// `EINVAL` for a map of another kind or with values of another length.
    pub fn sum<const WORDS: usize>(&self, key: u32) -> Result<[u64; WORDS], Errno> {
        if self.kind != MapKind::PerProcessor || self.value_bytes != size_of::<[u64; WORDS]>() {
            return Err(Errno::INVAL);
        }
        let mut values = vec![[0_u64; WORDS]; processors()];
        let place = values.as_mut_ptr().expose_provenance() as u64;
        let key = key.to_ne_bytes();
        let mut attributes = self.element(&key, place)?;
        // SAFETY: the key has the map's length; there is room for a value of each processor that there may be. Both outlive the call.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }?;
        let mut sums = [0; WORDS];
        for value in &values {
            for (sum, word) in sums.iter_mut().zip(value) {
                *sum = u64::wrapping_add(*sum, *word);
            }
        }
        Ok(sums)
    }

    /// A value of 8 bytes of a [`MapKind::Array`].
    ///
    /// # Errors
    /// `EINVAL` for a map of another kind or with values of another length, `ENOENT` beyond the last one.
    pub fn word(&self, key: u32) -> Result<u64, Errno> {
        if self.kind != MapKind::Array || self.value_bytes != size_of::<u64>() {
            return Err(Errno::INVAL);
        }
        let mut value = 0_u64;
        let place = (&raw mut value).expose_provenance() as u64;
        let key = key.to_ne_bytes();
        let mut attributes = self.element(&key, place)?;
        // SAFETY: the key has the map's length, and there is room for a value. Both outlive the call.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }?;
        Ok(value)
    }

    /// Takes all keys and values out of a [`MapKind::HashPerProcessor`]: of each key its value in `words` of 8 bytes, those of one processor
    /// behind those of another. A key that comes while this goes on may be given the next time.
    ///
    /// # Errors
    /// `EINVAL` for a map of another kind; the kernel's answer.
    pub fn drain(&self, take: impl FnMut(&[u8], &[u64])) -> Result<(), Errno> {
        self.drain_if(|_| true, take)
    }

    /// As [`Map::drain`], those keys alone that `is_wanted`.
    ///
    /// # Errors
    /// As [`Map::drain`].
    pub fn drain_if(
        &self,
        is_wanted: impl Fn(&[u8]) -> bool,
        mut take: impl FnMut(&[u8], &[u64]),
    ) -> Result<(), Errno> {
        if self.kind != MapKind::HashPerProcessor {
            return Err(Errno::INVAL);
        }
        let mut values = vec![0_u64; processors() * self.value_bytes.div_ceil(8)];
        for key in self.keys()?.iter().filter(|key| is_wanted(key)) {
            let place = values.as_mut_ptr().expose_provenance() as u64;
            let mut element = self.element(key, place)?;
            // SAFETY: the key has the map's length; there is room for a value of each processor that there may be. Both outlive the call.
            match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut element) } {
                Ok(_) => {}
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            }
            self.take(key)?;
            take(key, &values);
        }
        Ok(())
    }

    /// The keys of a hash.
    fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        let mut key = vec![0_u8; self.key_bytes];
        loop {
            let last = all
                .last()
                .map_or(0, |last| last.as_ptr().expose_provenance());
            let mut next = ElementAttributes {
                map: self.fd.as_raw_fd().cast_unsigned(),
                padding: 0,
                key: last as u64,
                value: key.as_mut_ptr().expose_provenance() as u64,
                flags: 0,
            };
            // SAFETY: the key behind the last one, or without one the first, is written to `key`; both have the map's length and outlive the call.
            match unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut next) } {
                // A key that was taken meanwhile begins anew: more than fit are not there.
                Ok(_) if all.len() < self.entries => all.push(key.clone()),
                Ok(_) | Err(Errno::NOENT) => return Ok(all),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn element(&self, key: &[u8], value: u64) -> Result<ElementAttributes, Errno> {
        if key.len() != self.key_bytes {
            return Err(Errno::INVAL);
        }
        Ok(ElementAttributes {
            map: self.fd.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: key.as_ptr().expose_provenance() as u64,
            value,
            flags: 0,
        })
    }

    /// What it holds.
    #[must_use]
    pub fn kind(&self) -> MapKind {
        self.kind
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A program at its place, for as long as this descriptor is open: the kernel takes it away when the process ends,
/// however that is.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LinkAttributes {
    pub(super) program: u32,
    pub(super) target: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

impl Link {
    /// Has an XDP program run in the driver of the interface `index`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from a driver without XDP, `EBUSY` and `EEXIST` if a program is there, others of the driver's own.
    pub fn xdp(program: &Program, index: u32) -> Result<Link, Errno> {
        let mut attributes = LinkAttributes {
            program: program.as_fd().as_raw_fd().cast_unsigned(),
            target: index,
            attach_type: ATTACH_XDP,
            flags: IN_DRIVER,
        };
        // SAFETY: these are the attributes of a link; there are no addresses in them.
        let fd = unsafe { bpf(BPF_LINK_CREATE, &mut attributes) }?;
        Ok(Self::of(fd))
    }

    /// Of a descriptor that bpf(2) just returned.
    pub(super) fn of(fd: i32) -> Self {
        // SAFETY: nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { _fd: fd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last processor of a list decides how much room a read has; what is no list gives the most that there may be.
    #[test]
    fn a_list_of_processors_is_read() {
        for (list, last) in [("0\n", 0), ("0-1\n", 1), ("0-3,8-11\n", 11), ("0,2", 2)] {
            assert_eq!(last_processor(list), Some(last), "{list:?}");
        }
        for list in ["", "\n", "0-", "none"] {
            assert_eq!(last_processor(list), None, "{list:?}");
        }
    }
}
