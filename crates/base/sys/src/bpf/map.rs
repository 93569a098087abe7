//! Maps that programs and we share, and attachments that end with a descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Program, bpf};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_LINK_CREATE: libc::c_int = 28;
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
    /// Values of 4 bytes by keys of 8.
    Hash = 1,
    /// Connected sockets by number ([`crate::sockmap`]).
    Sockets = 15,
    /// AF_XDP sockets by number.
    XdpSockets = 17,
}

/// A map of the kernel's, with values of 4 bytes.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
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
    /// A map with room for so many entries.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF`; `EINVAL` from a kernel without such maps.
    pub fn create(kind: MapKind, entries: u32) -> Result<Map, Errno> {
        let is_hash = kind == MapKind::Hash;
        let mut attributes = MapAttributes {
            kind: kind as u32,
            key_bytes: if is_hash { 8 } else { 4 },
            value_bytes: 4,
            entries,
            flags: if is_hash { NO_PREALLOC } else { 0 },
        };
        // SAFETY: these are the attributes of a map; there are no addresses in them.
        let fd = unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?;
        // SAFETY: bpf(2) just returned this descriptor, which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Map { fd, kind })
    }

    /// Puts a socket into a map of sockets, in the place of what was there.
    ///
    /// # Errors
    /// `EBADF` and `EOPNOTSUPP` for what is no socket of its kind, `E2BIG` beyond the last entry.
    pub fn put_socket(&self, key: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.put(key.into(), socket.as_raw_fd().cast_unsigned())
    }

    /// Enters a key of a hash.
    ///
    /// # Errors
    /// `E2BIG` if the map is full.
    pub fn insert(&self, key: u64) -> Result<(), Errno> {
        self.put(key, 1)
    }

    /// Takes a key out of a hash. It need not be there.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn remove(&self, key: u64) -> Result<(), Errno> {
        let mut attributes = self.element(&key, 0);
        // SAFETY: the key is 8 bytes long, at least as long as the map's, and outlives the call.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attributes) } {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn put(&self, key: u64, value: u32) -> Result<(), Errno> {
        let mut attributes = self.element(&key, (&raw const value).expose_provenance() as u64);
        // SAFETY: key and value are at least as long as the map says, and outlive the call. A key of 4 bytes is the first 4
        // of a little-endian number of 8.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
    }

    fn element(&self, key: &u64, value: u64) -> ElementAttributes {
        ElementAttributes {
            map: self.fd.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: std::ptr::from_ref(key).expose_provenance() as u64,
            value,
            flags: 0,
        }
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
struct LinkAttributes {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
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
        // SAFETY: bpf(2) just returned this descriptor, which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Link { _fd: fd })
    }
}
