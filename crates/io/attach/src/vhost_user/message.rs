//! The words of the vhost-user protocol (QEMU, docs/interop/vhost-user.rst), pure: no socket, no memory.
//!
//! # Model
//! ```text
//! request 32 | flags 32 | payload bytes 32 | payload
//! ```
//! All in the host's byte order. [`Header::decode`] says how long the payload is, [`Request::decode`] what it means.
//! A request that this end does not know is [`Request::Unknown`], which the sender may be told; a known one whose
//! length or number of descriptors is not exactly right is a [`Malformed`], after which the stream means nothing.
//!
//! # Limits
//! [`PAYLOAD_MAX`] bytes, [`FDS_MAX`] descriptors.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::fmt;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Regions of one SET_MEM_TABLE (`VHOST_MEMORY_BASELINE_NREGIONS`).
pub const TABLE_REGIONS: usize = 8;
/// Descriptors of one message: a full memory table's.
pub const FDS_MAX: usize = TABLE_REGIONS;
/// Bytes of the longest payload: a full memory table.
pub const PAYLOAD_MAX: usize = 8 + TABLE_REGIONS * REGION_BYTES;
const REGION_BYTES: usize = 32;

/// The version in every header.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Protocol features (`VHOST_USER_PROTOCOL_F_*`).
pub mod protocol {
    /// Several queue pairs.
    pub const MQ: u64 = 1 << 0;
    /// The log of writes comes as a descriptor.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// The back end announces a guest that moved.
    pub const RARP: u64 = 1 << 2;
    /// Any message can be answered.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front end says the MTU.
    pub const MTU: u64 = 1 << 4;
    /// A second socket for requests of the back end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// Memory that tells the next back end how far the last one was.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// RESET_DEVICE.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Regions of memory are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The device's status is told and asked.
    pub const STATUS: u64 = 1 << 16;

    /// Their names, for people.
    pub const NAMES: &[(u64, &str)] = &[
        (MQ, "mq"),
        (LOG_SHMFD, "log-shmfd"),
        (RARP, "rarp"),
        (REPLY_ACK, "reply-ack"),
        (MTU, "mtu"),
        (BACKEND_REQ, "backend-req"),
        (INFLIGHT_SHMFD, "inflight-shmfd"),
        (RESET_DEVICE, "reset-device"),
        (CONFIGURE_MEM_SLOTS, "configure-mem-slots"),
        (STATUS, "status"),
    ];
}

/// The number of a request and its name in the specification.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($( $name:ident = $number:literal, )*) => {
        #[allow(missing_docs, reason = "the names of the specification")]
        impl Code {
            $( pub const $name: Code = Code($number); )*

            /// The name in the specification, if this end knows it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    RESET_OWNER = 4,
    SET_MEM_TABLE = 5,
    SET_LOG_BASE = 6,
    SET_LOG_FD = 7,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    GET_VRING_BASE = 11,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15,
    SET_PROTOCOL_FEATURES = 16,
    GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18,
    SEND_RARP = 19,
    NET_SET_MTU = 20,
    SET_BACKEND_REQ_FD = 21,
    IOTLB_MSG = 22,
    GET_INFLIGHT_FD = 31,
    SET_INFLIGHT_FD = 32,
    RESET_DEVICE = 34,
    GET_MAX_MEM_SLOTS = 36,
    ADD_MEM_REG = 37,
    REM_MEM_REG = 38,
    SET_STATUS = 39,
    GET_STATUS = 40,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "request {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is wrong with the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another version than 1.
    #[error("a message of version {0}")]
    Version(u32),
    /// An answer to nothing.
    #[error("a reply to a request that was not made")]
    Reply,
    /// Longer than any message.
    #[error("{code} with {bytes} bytes, more than any message has")]
    Oversize {
        /// Which.
        code: Code,
        /// How many.
        bytes: u32,
    },
    /// Not as long as this message is.
    #[error("{code} with {bytes} bytes")]
    Length {
        /// Which.
        code: Code,
        /// How many.
        bytes: usize,
    },
    /// Too few or too many descriptors.
    #[error("{code} with {count} descriptors")]
    Descriptors {
        /// Which.
        code: Code,
        /// How many.
        count: usize,
    },
    /// More regions than one message carries.
    #[error("a memory table of {0} regions")]
    Regions(u32),
}

/// The first 12 bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message.
    pub code: Code,
    /// The sender waits for an answer, also where the message has none by itself.
    pub need_reply: bool,
    /// Bytes that follow.
    pub payload: usize,
}

impl Header {
    /// Takes a header apart.
    ///
    /// # Errors
    /// [`Malformed`]: the version, a reply, or a length beyond [`PAYLOAD_MAX`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let mut words = Words(bytes);
        let (code, flags, size) = (Code(words.u32()), words.u32(), words.u32());
        if flags & VERSION_MASK != VERSION {
            return Err(Malformed::Version(flags & VERSION_MASK));
        }
        if flags & FLAG_REPLY != 0 {
            return Err(Malformed::Reply);
        }
        let payload = size as usize;
        if payload > PAYLOAD_MAX {
            return Err(Malformed::Oversize { code, bytes: size });
        }
        Ok(Header {
            code,
            need_reply: flags & FLAG_NEED_REPLY != 0,
            payload,
        })
    }
}

/// One region of the guest's memory (`VhostUserMemoryRegion`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First guest address.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
    /// Its address in the front end's own address space: what SET_VRING_ADDR speaks of.
    pub user: u64,
    /// Where in the file it begins.
    pub offset: u64,
}

/// Where a ring lies, in addresses of the front end (SET_VRING_ADDR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddress {
    /// Bit 0: writes to the used ring are logged.
    pub flags: u32,
    /// The descriptors.
    pub desc: u64,
    /// The used ring; of a packed ring, the device's event area.
    pub used: u64,
    /// The available ring; of a packed ring, the driver's event area.
    pub avail: u64,
    /// Guest address of the used ring, for the log.
    pub log: u64,
}

/// What an IOTLB message says about a range (linux/vhost_types.h, `struct vhost_iotlb_msg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iotlb {
    /// First address of the device.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// First address in the front end's own address space.
    pub user: u64,
    /// 1 read, 2 write, 3 both.
    pub perm: u8,
    /// 1 miss, 2 update, 3 invalidate, 4 access failed.
    pub kind: u8,
}

/// The memory that tells how far a back end was (`VhostUserInflight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes.
    pub len: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Queues that it has records for.
    pub queues: u16,
    /// Descriptors of each.
    pub size: u16,
}

/// A message of the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the message of this name, each field its payload's"
)]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetLogBase {
        len: u64,
        offset: u64,
    },
    SetLogFd,
    SetVringNum {
        queue: u32,
        size: u32,
    },
    SetVringAddr {
        queue: u32,
        at: RingAddress,
    },
    SetVringBase {
        queue: u32,
        base: u32,
    },
    GetVringBase {
        queue: u32,
    },
    SetVringKick {
        queue: u32,
    },
    SetVringCall {
        queue: u32,
    },
    SetVringErr {
        queue: u32,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable {
        queue: u32,
        on: bool,
    },
    SendRarp([u8; 6]),
    NetSetMtu(u64),
    SetBackendReqFd,
    Iotlb(Iotlb),
    GetInflightFd(Inflight),
    SetInflightFd(Inflight),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(Region),
    SetStatus(u64),
    GetStatus,
    /// A number that this end does not know.
    Unknown(Code),
}

/// The bytes of a message, taken from the front. Missing ones read as zero: lengths are checked before.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *head
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn region(&mut self) -> Region {
        Region {
            gpa: self.u64(),
            len: self.u64(),
            user: self.u64(),
            offset: self.u64(),
        }
    }
}

/// The number in a message about a queue's descriptor, and whether the descriptor is there.
const QUEUE_MASK: u64 = 0xff;
const NO_FD: u64 = 1 << 8;

impl Request {
    /// Takes the payload of a message apart; `fds`: descriptors that came with it.
    ///
    /// # Errors
    /// [`Malformed`], if its length or the number of descriptors is not what the message has.
    pub fn decode(code: Code, payload: &[u8], fds: usize) -> Result<Request, Malformed> {
        let bytes = payload.len();
        let Some((lengths, count)) = shape(code, payload) else {
            return Ok(Request::Unknown(code));
        };
        if !lengths.contains(&bytes) {
            return Err(Malformed::Length { code, bytes });
        }
        if !count.contains(&fds) {
            return Err(Malformed::Descriptors { code, count: fds });
        }
        Self::of(code, Words(payload), bytes)
    }

    /// The request in a payload of the right length.
    fn of(code: Code, mut words: Words<'_>, bytes: usize) -> Result<Request, Malformed> {
        Ok(match code {
            Code::GET_FEATURES => Request::GetFeatures,
            Code::SET_FEATURES => Request::SetFeatures(words.u64()),
            Code::SET_OWNER => Request::SetOwner,
            Code::RESET_OWNER => Request::ResetOwner,
            Code::SET_MEM_TABLE => Request::SetMemTable(regions(words, bytes)?),
            Code::SET_LOG_BASE => Request::SetLogBase {
                len: words.u64(),
                offset: words.u64(),
            },
            Code::SET_LOG_FD => Request::SetLogFd,
            Code::SET_VRING_NUM => Request::SetVringNum {
                queue: words.u32(),
                size: words.u32(),
            },
            Code::SET_VRING_ADDR => ring_address(words),
            Code::SET_VRING_BASE => Request::SetVringBase {
                queue: words.u32(),
                base: words.u32(),
            },
            Code::GET_VRING_BASE => Request::GetVringBase { queue: words.u32() },
            Code::SET_VRING_KICK => Request::SetVringKick {
                queue: queue_of(&mut words),
            },
            Code::SET_VRING_CALL => Request::SetVringCall {
                queue: queue_of(&mut words),
            },
            Code::SET_VRING_ERR => Request::SetVringErr {
                queue: queue_of(&mut words),
            },
            Code::GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
            Code::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(words.u64()),
            Code::GET_QUEUE_NUM => Request::GetQueueNum,
            Code::SET_VRING_ENABLE => Request::SetVringEnable {
                queue: words.u32(),
                on: words.u32() != 0,
            },
            Code::SEND_RARP => Request::SendRarp(words.take()),
            Code::NET_SET_MTU => Request::NetSetMtu(words.u64()),
            Code::SET_BACKEND_REQ_FD => Request::SetBackendReqFd,
            Code::IOTLB_MSG => iotlb(words),
            Code::GET_INFLIGHT_FD => Request::GetInflightFd(inflight(words)),
            Code::SET_INFLIGHT_FD => Request::SetInflightFd(inflight(words)),
            Code::RESET_DEVICE => Request::ResetDevice,
            Code::GET_MAX_MEM_SLOTS => Request::GetMaxMemSlots,
            Code::ADD_MEM_REG => Request::AddMemReg(padded_region(words)),
            Code::REM_MEM_REG => Request::RemMemReg(padded_region(words)),
            Code::SET_STATUS => Request::SetStatus(words.u64()),
            Code::GET_STATUS => Request::GetStatus,
            other => Request::Unknown(other),
        })
    }
}

type Span = core::ops::RangeInclusive<usize>;

/// The bytes and the descriptors that a message has; `None` for one that this end does not know.
fn shape(code: Code, payload: &[u8]) -> Option<(Span, Span)> {
    let exactly = |n: usize| n..=n;
    let (bytes, fds) = match code {
        Code::GET_FEATURES
        | Code::SET_OWNER
        | Code::RESET_OWNER
        | Code::GET_PROTOCOL_FEATURES
        | Code::GET_QUEUE_NUM
        | Code::RESET_DEVICE
        | Code::GET_MAX_MEM_SLOTS
        | Code::GET_STATUS => (exactly(0), exactly(0)),
        Code::SET_FEATURES
        | Code::SET_PROTOCOL_FEATURES
        | Code::SEND_RARP
        | Code::NET_SET_MTU
        | Code::SET_STATUS
        | Code::SET_VRING_NUM
        | Code::SET_VRING_BASE
        | Code::GET_VRING_BASE
        | Code::SET_VRING_ENABLE => (exactly(8), exactly(0)),
        Code::SET_VRING_KICK | Code::SET_VRING_CALL | Code::SET_VRING_ERR => {
            let without = Words(payload).u64() & NO_FD != 0;
            (exactly(8), exactly(usize::from(!without)))
        }
        Code::SET_MEM_TABLE => {
            let count = Words(payload).u32() as usize;
            (8..=PAYLOAD_MAX, exactly(count))
        }
        Code::SET_LOG_BASE => (exactly(16), exactly(1)),
        // Front ends differ in whether it has a payload; what it says is nothing.
        Code::SET_LOG_FD => (0..=8, exactly(1)),
        Code::SET_VRING_ADDR => (exactly(40), exactly(0)),
        Code::SET_BACKEND_REQ_FD => (exactly(0), exactly(1)),
        Code::IOTLB_MSG => (exactly(32), exactly(0)),
        // 20 bytes by the specification; a C compiler makes 24 of them.
        Code::GET_INFLIGHT_FD => (20..=24, exactly(0)),
        Code::SET_INFLIGHT_FD => (20..=24, exactly(1)),
        Code::ADD_MEM_REG => (exactly(40), exactly(1)),
        // Some versions of QEMU send the region's descriptor along.
        Code::REM_MEM_REG => (exactly(40), 0..=1),
        _ => return None,
    };
    Some((bytes, fds))
}

fn queue_of(words: &mut Words<'_>) -> u32 {
    (words.u64() & QUEUE_MASK) as u32
}

fn regions(mut words: Words<'_>, bytes: usize) -> Result<Vec<Region>, Malformed> {
    let (count, _padding) = (words.u32(), words.u32());
    if count as usize > TABLE_REGIONS {
        return Err(Malformed::Regions(count));
    }
    let wanted = (count as usize)
        .saturating_mul(REGION_BYTES)
        .saturating_add(8);
    if bytes != wanted {
        return Err(Malformed::Length {
            code: Code::SET_MEM_TABLE,
            bytes,
        });
    }
    Ok((0..count).map(|_| words.region()).collect())
}

fn padded_region(mut words: Words<'_>) -> Region {
    let _padding = words.u64();
    words.region()
}

fn ring_address(mut words: Words<'_>) -> Request {
    let (queue, flags) = (words.u32(), words.u32());
    let (desc, used, avail, log) = (words.u64(), words.u64(), words.u64(), words.u64());
    Request::SetVringAddr {
        queue,
        at: RingAddress {
            flags,
            desc,
            used,
            avail,
            log,
        },
    }
}

fn iotlb(mut words: Words<'_>) -> Request {
    let (iova, len, user) = (words.u64(), words.u64(), words.u64());
    let [perm, kind] = words.take();
    Request::Iotlb(Iotlb {
        iova,
        len,
        user,
        perm,
        kind,
    })
}

fn inflight(mut words: Words<'_>) -> Inflight {
    Inflight {
        len: words.u64(),
        offset: words.u64(),
        queues: words.u16(),
        size: words.u16(),
    }
}

/// The bytes of an answer to `code` with `payload`.
pub fn reply(code: Code, payload: &[u8]) -> Vec<u8> {
    framed(code, VERSION | FLAG_REPLY, payload)
}

/// The bytes of a request with `payload`: what a front end says, for tests and generators.
pub fn request(code: Code, need_reply: bool, payload: &[u8]) -> Vec<u8> {
    let flags = VERSION | if need_reply { FLAG_NEED_REPLY } else { 0 };
    framed(code, flags, payload)
}

fn framed(code: Code, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let words = [code.0, flags, size].map(u32::to_ne_bytes);
    [words.as_flattened(), payload].concat()
}

/// Number of the back end's own request about translations (`VHOST_USER_BACKEND_IOTLB_MSG`).
pub const BACKEND_IOTLB_MSG: Code = Code(1);
/// `VHOST_IOTLB_MISS`.
const IOTLB_MISS: u8 = 1;

/// The bytes by which the front end is asked for a translation of `iova` that allows `perm`.
pub fn iotlb_miss(iova: u64, perm: u8) -> Vec<u8> {
    let asked = Iotlb {
        iova,
        len: 0,
        user: 0,
        perm,
        kind: IOTLB_MISS,
    };
    framed(BACKEND_IOTLB_MSG, VERSION, &asked.encode())
}

/// The payload that names a queue and a number.
pub fn queue_state(queue: u32, number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (to, from) in bytes
        .iter_mut()
        .zip(queue.to_ne_bytes().into_iter().chain(number.to_ne_bytes()))
    {
        *to = from;
    }
    bytes
}

impl Inflight {
    /// The payload, in the 24 bytes that C makes of it.
    pub fn encode(&self) -> Vec<u8> {
        [
            &self.len.to_ne_bytes()[..],
            &self.offset.to_ne_bytes(),
            &self.queues.to_ne_bytes(),
            &self.size.to_ne_bytes(),
            &[0; 4],
        ]
        .concat()
    }
}

impl Iotlb {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        [
            &self.iova.to_ne_bytes()[..],
            &self.len.to_ne_bytes(),
            &self.user.to_ne_bytes(),
            &[self.perm, self.kind],
            &[0; 6],
        ]
        .concat()
    }
}

impl Region {
    /// The 32 bytes of the region.
    pub fn encode(&self) -> Vec<u8> {
        [self.gpa, self.len, self.user, self.offset]
            .map(u64::to_ne_bytes)
            .concat()
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(bytes: &[u8], fds: usize) -> Result<Request, Malformed> {
        let header = Header::decode(bytes.first_chunk().unwrap())?;
        Request::decode(header.code, &bytes[HEADER_BYTES..], fds)
    }

    /// A message is what its fields say, byte by byte as the specification lays them out.
    #[test]
    fn fields_lie_where_the_specification_says() {
        let mut table = request(Code::SET_MEM_TABLE, true, &[0; 40]);
        assert_eq!(&table[..12], &[5, 0, 0, 0, 9, 0, 0, 0, 40, 0, 0, 0]);
        table[12] = 1;
        for (i, byte) in (20..52).enumerate() {
            table[byte] = if i % 8 == 0 { i as u8 + 1 } else { 0 };
        }
        let region = Region {
            gpa: 1,
            len: 9,
            user: 17,
            offset: 25,
        };
        assert_eq!(decoded(&table, 1), Ok(Request::SetMemTable(vec![region])));
        let kick = |value: u64| request(Code::SET_VRING_KICK, false, &value.to_ne_bytes());
        let queue = Request::SetVringKick { queue: 3 };
        assert_eq!(decoded(&kick(3), 1), Ok(queue.clone()));
        assert_eq!(decoded(&kick(0x103), 0), Ok(queue));
        let on = request(Code::SET_VRING_ENABLE, false, &queue_state(2, 1));
        let enable = Request::SetVringEnable { queue: 2, on: true };
        assert_eq!(decoded(&on, 0), Ok(enable));
        let rarp = request(Code::SEND_RARP, false, &[2, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(decoded(&rarp, 0), Ok(Request::SendRarp([2, 0, 0, 0, 0, 7])));
    }

    /// One byte more or less, one descriptor more or less, a reply, another version: refused.
    #[test]
    fn only_exact_messages_are_taken() {
        for number in 0..64 {
            let code = Code(number);
            for fds in 0..=FDS_MAX {
                let known = (0..=PAYLOAD_MAX)
                    .filter(|n| Request::decode(code, &vec![0; *n], fds).is_ok())
                    .count();
                match (code.name(), fds) {
                    (None, _) => assert_eq!(known, PAYLOAD_MAX + 1),
                    (Some(_), 0..=1) => assert!(known <= 9, "{code} with {fds}: {known} lengths"),
                    (Some(_), _) => assert_eq!(known, 0, "{code} takes {fds} descriptors"),
                }
            }
        }
        let mut bytes = request(Code::GET_FEATURES, false, &[]);
        bytes[4] = 2;
        assert_eq!(decoded(&bytes, 0), Err(Malformed::Version(2)));
        bytes[4] = 5;
        assert_eq!(decoded(&bytes, 0), Err(Malformed::Reply));
        let long = request(Code::GET_FEATURES, false, &[0; PAYLOAD_MAX + 1]);
        assert!(matches!(decoded(&long, 0), Err(Malformed::Oversize { .. })));
    }

    proptest! {
        /// No bytes make the decoder do anything but answer.
        #[test]
        fn any_bytes_are_survived(
            number in 0u32..48,
            payload in prop::collection::vec(any::<u8>(), 0..PAYLOAD_MAX),
            fds in 0usize..10,
        ) {
            let _ = Request::decode(Code(number), &payload, fds);
        }
    }
}
