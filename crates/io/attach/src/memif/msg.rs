//! # Purpose
//! The control messages of memif version 2, which two processes exchange over a `SOCK_SEQPACKET` socket before any
//! frame moves: each is one record of exactly [`MSG_BYTES`] bytes, some with one file descriptor beside it.
//!
//! Source: `memif_msg_t` in VPP `src/plugins/memif/memif.h` and DPDK `drivers/net/memif/memif.h` (the same packed
//! structs under newer and older names), and the order of messages in VPP `src/plugins/memif/socket.c`.
//!
//! # Model
//! ```text
//! server                                client
//!   HELLO       ───────────────────────▶          greets whoever connects, with its limits
//!               ◀───────────────────────  INIT         which interface, which secret
//!   ACK         ───────────────────────▶
//!               ◀───────────────────────  ADD_REGION   + memory file     (each answered by ACK)
//!               ◀───────────────────────  ADD_RING     + eventfd         (each answered by ACK)
//!               ◀───────────────────────  CONNECT
//!   CONNECTED   ───────────────────────▶          frames may move
//!   DISCONNECT  ◀──────────────────────▶          from either side, at any time
//! ```
//! [`Message::decode`] admits only what this version of the protocol allows, so a decoded value needs no second look
//! except against the state of the connection: limits that were announced, sizes of memory that was received.
//!
//! # Limits
//! Version 2.0 only; rings up to [`LOG2_RING_MAX`]; texts as long as their fields.
//!
//! # Failure modes
//! [`DecodeError`] names the field and the value. Bytes after a message's last field are ignored, as the reference
//! implementations do.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::fmt;

use super::layout::{LOG2_RING_MAX, RING_ALIGN};

/// Bytes of every control message.
pub const MSG_BYTES: usize = 128;

/// Protocol version 2.0: major in the high byte, minor in the low.
pub const VERSION: u16 = 0x0200;

/// Regions that one interface may have: what VPP and DPDK allow at most.
pub const REGIONS_MAX: u16 = 256;

/// Flag of ADD_RING: the ring runs from the client to the server.
const RING_FLAG_FROM_CLIENT: u16 = 1;

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not one whole record.
    #[error("a memif message has {MSG_BYTES} bytes, not {0}")]
    Length(usize),
    /// A message type that version 2 does not have.
    #[error("memif message type {0} is unknown")]
    Type(u16),
    /// The range of versions offered does not hold 2.0.
    #[error("memif versions {min:#06x} to {max:#06x} do not include {VERSION:#06x}")]
    Version {
        /// Lowest version offered.
        min: u16,
        /// Highest version offered.
        max: u16,
    },
    /// An interface mode that version 2 does not have.
    #[error("memif interface mode {0} is unknown")]
    Mode(u8),
    /// A region index at or above [`REGIONS_MAX`].
    #[error("memif region index {0} is not below {REGIONS_MAX}")]
    Region(u16),
    /// A region without any byte.
    #[error("memif region {0} is empty")]
    RegionSize(u16),
    /// Ring flags that version 2 does not have.
    #[error("memif ring flags {0:#06x} are unknown")]
    RingFlags(u16),
    /// A ring larger than [`LOG2_RING_MAX`] allows, given as a power of two.
    #[error("a memif ring of 2^{0} descriptors is larger than 2^{LOG2_RING_MAX}")]
    RingSize(u8),
    /// A ring offset that is not a multiple of [`RING_ALIGN`].
    #[error("memif ring offset {0} is not a multiple of {RING_ALIGN}")]
    RingOffset(u32),
}

/// A text in a field of `N` bytes: ends at the first zero byte or at the end of the field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// The text, if it fits into the field and has no zero byte inside.
    #[must_use]
    pub fn new(text: &str) -> Option<Text<N>> {
        if text.len() > N || text.bytes().any(|b| b == 0) {
            return None;
        }
        Some(Text::cut(text.as_bytes()))
    }

    /// As much of `bytes` as the field holds, up to the first zero byte.
    #[must_use]
    pub fn cut(bytes: &[u8]) -> Text<N> {
        let mut field = [0; N];
        let upto_zero = bytes.iter().take_while(|b| **b != 0);
        for (slot, byte) in field.iter_mut().zip(upto_zero) {
            *slot = *byte;
        }
        Text(field)
    }

    /// The bytes before the first zero byte. They came from the peer: any value but zero.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied().take_while(|b| *b != 0)
    }

    /// Whether there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes().next().is_none()
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    /// Printable ASCII as it is, every other byte escaped: safe in a log and on a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes()
            .try_for_each(|b| write!(f, "{}", core::ascii::escape_default(b)))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The secret that a client shows in INIT. Its `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct Secret(Text<24>);

impl Secret {
    /// No secret.
    pub const NONE: Secret = Secret(Text([0; 24]));

    /// A secret of at most 24 bytes without a zero byte.
    #[must_use]
    pub fn new(text: &str) -> Option<Secret> {
        Text::new(text).map(Secret)
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, other: &Secret) -> bool {
        let Secret(Text(ours)) = self;
        let Secret(Text(theirs)) = other;
        let differing = ours
            .iter()
            .zip(theirs)
            .fold(0, |bits, (a, b)| bits | (a ^ b));
        core::hint::black_box(differing) == 0
    }

    /// Whether this is [`Secret::NONE`].
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() {
            "Secret(none)"
        } else {
            "Secret(..)"
        })
    }
}

/// What the frames of an interface begin with (`memif_interface_mode_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// An Ethernet header.
    Ethernet = 0,
    /// An IP header.
    Ip = 1,
    /// VPP's own punt and inject header.
    PuntInject = 2,
}

/// Direction of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client sends (C2S, formerly S2M).
    FromClient,
    /// The server sends (S2C, formerly M2S).
    FromServer,
}

/// HELLO: the server's name and limits. Each `max_` index is the largest that may be used, so one less than a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server program.
    pub name: Text<32>,
    /// Lowest version that the server speaks.
    pub version_min: u16,
    /// Highest version that the server speaks.
    pub version_max: u16,
    /// Largest region index.
    pub region_max: u16,
    /// Largest index of a ring from the server.
    pub from_server_max: u16,
    /// Largest index of a ring from the client.
    pub from_client_max: u16,
    /// Largest ring, as a power of two: the client takes the lesser of this and its own.
    pub log2_ring_max: u8,
}

/// INIT: which of the server's interfaces the client wants. The version is always [`VERSION`].
#[derive(Clone, Copy, Debug)]
pub struct Init {
    /// The interface's number on this socket.
    pub id: u32,
    /// What frames begin with.
    pub mode: Mode,
    /// Shown to the server, which may require one.
    pub secret: Secret,
    /// The client program.
    pub name: Text<32>,
}

/// ADD_REGION: the next region of shared memory; its file comes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRegion {
    /// Below [`REGIONS_MAX`].
    pub index: u16,
    /// Bytes, not 0. A claim: the file that came along decides.
    pub size: u64,
}

/// ADD_RING: a ring in a region added before; its eventfd comes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// Who sends on it.
    pub direction: Direction,
    /// Number among the rings of this direction.
    pub index: u16,
    /// The region that it lies in, below [`REGIONS_MAX`].
    pub region: u16,
    /// First byte in that region: a multiple of [`RING_ALIGN`], otherwise a claim.
    pub offset: u32,
    /// Number of descriptors as a power of two, at most [`LOG2_RING_MAX`].
    pub log2_size: u8,
    /// Bytes of private data before each frame; 0 with every known peer.
    pub private_bytes: u16,
}

/// DISCONNECT: the reason why the sender goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// A number without agreed meaning; the reference implementations send 0. windlass sends `EBUSY` where the interface has a
    /// client, `ENXIO` where there is no such interface, `EACCES` for a wrong secret.
    pub code: u32,
    /// For people.
    pub reason: Text<96>,
}

/// One control message.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    /// The last request was accepted.
    Ack,
    /// Server to client, first of all.
    Hello(Hello),
    /// Client to server.
    Init(Init),
    /// Client to server, with a file.
    AddRegion(AddRegion),
    /// Client to server, with an eventfd.
    AddRing(AddRing),
    /// Client to server: the name of the client's interface.
    Connect(Text<32>),
    /// Server to client: the name of the server's interface.
    Connected(Text<32>),
    /// Either way.
    Disconnect(Disconnect),
}

impl Message {
    /// Whether exactly one file descriptor comes along (otherwise none).
    #[must_use]
    pub fn has_descriptor(&self) -> bool {
        matches!(self, Message::AddRegion(_) | Message::AddRing(_))
    }

    /// The value of the type field.
    fn kind(&self) -> u16 {
        match self {
            Message::Ack => 1,
            Message::Hello(_) => 2,
            Message::Init(_) => 3,
            Message::AddRegion(_) => 4,
            Message::AddRing(_) => 5,
            Message::Connect(_) => 6,
            Message::Connected(_) => 7,
            Message::Disconnect(_) => 8,
        }
    }

    /// The record to be sent.
    #[must_use]
    pub fn encode(&self) -> [u8; MSG_BYTES] {
        let mut bytes = [0; MSG_BYTES];
        let rest = put(&mut bytes, self.kind().to_le_bytes());
        match self {
            Message::Ack => {}
            Message::Hello(hello) => {
                let rest = put(rest, hello.name.0);
                let rest = put(rest, hello.version_min.to_le_bytes());
                let rest = put(rest, hello.version_max.to_le_bytes());
                let rest = put(rest, hello.region_max.to_le_bytes());
                let rest = put(rest, hello.from_server_max.to_le_bytes());
                let rest = put(rest, hello.from_client_max.to_le_bytes());
                put(rest, [hello.log2_ring_max]);
            }
            Message::Init(init) => {
                let rest = put(rest, VERSION.to_le_bytes());
                let rest = put(rest, init.id.to_le_bytes());
                let rest = put(rest, [init.mode as u8]);
                let rest = put(rest, init.secret.0.0);
                put(rest, init.name.0);
            }
            Message::AddRegion(region) => {
                let rest = put(rest, region.index.to_le_bytes());
                put(rest, region.size.to_le_bytes());
            }
            Message::AddRing(ring) => {
                let flags = match ring.direction {
                    Direction::FromClient => RING_FLAG_FROM_CLIENT,
                    Direction::FromServer => 0,
                };
                let rest = put(rest, flags.to_le_bytes());
                let rest = put(rest, ring.index.to_le_bytes());
                let rest = put(rest, ring.region.to_le_bytes());
                let rest = put(rest, ring.offset.to_le_bytes());
                let rest = put(rest, [ring.log2_size]);
                put(rest, ring.private_bytes.to_le_bytes());
            }
            Message::Connect(name) | Message::Connected(name) => {
                put(rest, name.0);
            }
            Message::Disconnect(disconnect) => {
                let rest = put(rest, disconnect.code.to_le_bytes());
                put(rest, disconnect.reason.0);
            }
        }
        bytes
    }

    /// The message in a record that was received.
    ///
    /// # Errors
    /// [`DecodeError`], if the record is not exactly [`MSG_BYTES`] long or a field has a value that version 2 of the
    /// protocol does not allow.
    pub fn decode(record: &[u8]) -> Result<Message, DecodeError> {
        if record.len() != MSG_BYTES {
            return Err(DecodeError::Length(record.len()));
        }
        let mut fields = Fields(record);
        Ok(match fields.u16() {
            1 => Message::Ack,
            2 => Message::Hello(hello(&mut fields)?),
            3 => Message::Init(init(&mut fields)?),
            4 => Message::AddRegion(add_region(&mut fields)?),
            5 => Message::AddRing(add_ring(&mut fields)?),
            6 => Message::Connect(fields.text()),
            7 => Message::Connected(fields.text()),
            8 => Message::Disconnect(Disconnect {
                code: fields.u32(),
                reason: fields.text(),
            }),
            other => return Err(DecodeError::Type(other)),
        })
    }
}

fn hello(fields: &mut Fields<'_>) -> Result<Hello, DecodeError> {
    let hello = Hello {
        name: fields.text(),
        version_min: fields.u16(),
        version_max: fields.u16(),
        region_max: fields.u16(),
        from_server_max: fields.u16(),
        from_client_max: fields.u16(),
        log2_ring_max: fields.u8(),
    };
    let (min, max) = (hello.version_min, hello.version_max);
    if min > VERSION || max < VERSION {
        return Err(DecodeError::Version { min, max });
    }
    Ok(hello)
}

fn init(fields: &mut Fields<'_>) -> Result<Init, DecodeError> {
    let version = fields.u16();
    if version != VERSION {
        return Err(DecodeError::Version {
            min: version,
            max: version,
        });
    }
    Ok(Init {
        id: fields.u32(),
        mode: match fields.u8() {
            0 => Mode::Ethernet,
            1 => Mode::Ip,
            2 => Mode::PuntInject,
            other => return Err(DecodeError::Mode(other)),
        },
        secret: Secret(fields.text()),
        name: fields.text(),
    })
}

fn add_region(fields: &mut Fields<'_>) -> Result<AddRegion, DecodeError> {
    let index = fields.region()?;
    let size = fields.u64();
    if size == 0 {
        return Err(DecodeError::RegionSize(index));
    }
    Ok(AddRegion { index, size })
}

fn add_ring(fields: &mut Fields<'_>) -> Result<AddRing, DecodeError> {
    let direction = match fields.u16() {
        RING_FLAG_FROM_CLIENT => Direction::FromClient,
        0 => Direction::FromServer,
        other => return Err(DecodeError::RingFlags(other)),
    };
    let ring = AddRing {
        direction,
        index: fields.u16(),
        region: fields.region()?,
        offset: fields.u32(),
        log2_size: fields.u8(),
        private_bytes: fields.u16(),
    };
    if ring.log2_size > LOG2_RING_MAX {
        return Err(DecodeError::RingSize(ring.log2_size));
    }
    if ring.offset.checked_rem(RING_ALIGN) != Some(0) {
        return Err(DecodeError::RingOffset(ring.offset));
    }
    Ok(ring)
}

/// Writes a field at the front of `rest` and gives what follows it.
///
/// The longest message ends before [`MSG_BYTES`] (a test proves it), so the field always fits.
fn put<const N: usize>(rest: &mut [u8], field: [u8; N]) -> &mut [u8] {
    match rest.split_first_chunk_mut() {
        Some((slot, after)) => {
            *slot = field;
            after
        }
        None => &mut [],
    }
}

/// Takes fields from the front of a whole record, whose length was checked: a missing field cannot occur and would
/// read as zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, after)) = self.0.split_first_chunk() else {
            return [0; N];
        };
        self.0 = after;
        *field
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A text field, cleaned of what follows its first zero byte.
    fn text<const N: usize>(&mut self) -> Text<N> {
        Text::cut(&self.take::<N>())
    }

    fn region(&mut self) -> Result<u16, DecodeError> {
        match self.u16() {
            index if index < REGIONS_MAX => Ok(index),
            index => Err(DecodeError::Region(index)),
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]
mod tests {
    use super::*;

    /// A record that begins with `start`, zeros after it.
    fn record(start: &[u8]) -> [u8; MSG_BYTES] {
        let mut record = [0; MSG_BYTES];
        record[..start.len()].copy_from_slice(start);
        record
    }

    fn text<const N: usize>(text: &str) -> Text<N> {
        Text::new(text).unwrap()
    }

    /// `text` padded with zeros to `len` bytes.
    fn padded(text: &str, len: usize) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len, 0);
        bytes
    }

    /// One of each message with the bytes that the packed C structs give it.
    fn golden() -> Vec<(Message, Vec<u8>)> {
        let hello = Message::Hello(Hello {
            name: text("DPDK 22.11.11"),
            version_min: VERSION,
            version_max: VERSION,
            region_max: 255,
            from_server_max: 254,
            from_client_max: 253,
            log2_ring_max: 14,
        });
        let init = Message::Init(Init {
            id: 0x0403_0201,
            mode: Mode::Ethernet,
            secret: Secret::new("open sesame").unwrap(),
            name: text("windlass"),
        });
        let region = Message::AddRegion(AddRegion {
            index: 7,
            size: 0x0102_0304_0506_0708,
        });
        let ring = |direction| {
            Message::AddRing(AddRing {
                direction,
                index: 2,
                region: 1,
                offset: 0x0010_4080,
                log2_size: 10,
                private_bytes: 0x1122,
            })
        };
        let disconnect = Message::Disconnect(Disconnect {
            code: 9,
            reason: text("ID not found"),
        });
        let ring_bytes = [2, 0, 1, 0, 0x80, 0x40, 0x10, 0, 10, 0x22, 0x11];
        vec![
            (Message::Ack, vec![1, 0]),
            (
                hello,
                [
                    &[2, 0],
                    &padded("DPDK 22.11.11", 32)[..],
                    &[0, 2, 0, 2, 255, 0, 254, 0, 253, 0, 14],
                ]
                .concat(),
            ),
            (
                init,
                [
                    &[3, 0, 0, 2, 1, 2, 3, 4, 0],
                    &padded("open sesame", 24)[..],
                    &padded("windlass", 32)[..],
                ]
                .concat(),
            ),
            (region, vec![4, 0, 7, 0, 8, 7, 6, 5, 4, 3, 2, 1]),
            (
                ring(Direction::FromClient),
                [&[5, 0, 1, 0], &ring_bytes[..]].concat(),
            ),
            (
                ring(Direction::FromServer),
                [&[5, 0, 0, 0], &ring_bytes[..]].concat(),
            ),
            (
                Message::Connect(text("memif0")),
                [&[6, 0], &b"memif0"[..]].concat(),
            ),
            (
                Message::Connected(text("memif1")),
                [&[7, 0], &b"memif1"[..]].concat(),
            ),
            (
                disconnect,
                [&[8, 0, 9, 0, 0, 0], &b"ID not found"[..]].concat(),
            ),
        ]
    }

    /// Each message encodes to the bytes of the C structs, and those bytes decode to the same message.
    #[test]
    fn every_message_has_its_golden_bytes() {
        for (message, bytes) in golden() {
            let expected = record(&bytes);
            assert_eq!(message.encode(), expected, "{message:?}");
            let decoded = Message::decode(&expected).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{message:?}"));
            assert_eq!(decoded.encode(), expected, "{message:?}");
            let with_descriptor = matches!(bytes[0], 4 | 5);
            assert_eq!(message.has_descriptor(), with_descriptor, "{message:?}");
        }
    }

    /// Texts that fill their fields to the last byte are kept whole: no field is cut off at the end of a record.
    #[test]
    fn longest_fields_fit() {
        let reason = "r".repeat(96);
        let message = Message::Disconnect(Disconnect {
            code: u32::MAX,
            reason: text(&reason),
        });
        let Message::Disconnect(back) = Message::decode(&message.encode()).unwrap() else {
            panic!("another message came back");
        };
        assert_eq!(back.reason.to_string(), reason);
        let init = Init {
            id: 1,
            mode: Mode::Ip,
            secret: Secret::new(&"s".repeat(24)).unwrap(),
            name: text(&"n".repeat(32)),
        };
        let Message::Init(back) = Message::decode(&Message::Init(init).encode()).unwrap() else {
            panic!("another message came back");
        };
        assert_eq!(back.name.to_string(), "n".repeat(32));
        assert!(back.secret.matches(&init.secret));
        assert!(Text::<4>::new("12345").is_none());
        assert!(Text::<4>::new("1\u{0}").is_none());
    }

    /// Each value that version 2 does not allow is refused with the field's own error.
    #[test]
    fn bad_values_are_refused() {
        let refused = |start: &[u8]| Message::decode(&record(start)).unwrap_err();
        assert_eq!(refused(&[0, 0]), DecodeError::Type(0));
        assert_eq!(refused(&[9, 0]), DecodeError::Type(9));
        assert_eq!(refused(&[1, 1]), DecodeError::Type(257));
        assert_eq!(
            refused(&[3, 0, 0, 1]),
            DecodeError::Version {
                min: 0x100,
                max: 0x100
            }
        );
        assert_eq!(refused(&[3, 0, 0, 2, 0, 0, 0, 0, 3]), DecodeError::Mode(3));
        assert_eq!(refused(&[4, 0, 0, 1, 1]), DecodeError::Region(256));
        assert_eq!(refused(&[4, 0, 3, 0]), DecodeError::RegionSize(3));
        assert_eq!(refused(&[5, 0, 2, 0]), DecodeError::RingFlags(2));
        assert_eq!(refused(&[5, 0, 1, 0, 0, 0, 0, 1]), DecodeError::Region(256));
        assert_eq!(
            refused(&[5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15]),
            DecodeError::RingSize(15)
        );
        assert_eq!(
            refused(&[5, 0, 1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 10]),
            DecodeError::RingOffset(8)
        );
        let mut hello = record(&[2, 0]);
        hello[34..38].copy_from_slice(&[1, 2, 0, 3]);
        assert_eq!(
            Message::decode(&hello).unwrap_err(),
            DecodeError::Version {
                min: 0x201,
                max: 0x300
            }
        );
        assert_eq!(Message::decode(&[]).unwrap_err(), DecodeError::Length(0));
        assert_eq!(
            Message::decode(&[1; 127]).unwrap_err(),
            DecodeError::Length(127)
        );
        assert_eq!(
            Message::decode(&[1; 129]).unwrap_err(),
            DecodeError::Length(129)
        );
    }

    /// Whatever bytes come, decoding ends in a message or an error, and a message that was accepted is stable: it
    /// encodes to a record that decodes to the same.
    #[test]
    fn any_bytes_decode_or_fail() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut accepted = 0;
        for round in 0..200_000u32 {
            let mut bytes = [0u8; MSG_BYTES];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = if state & 0x300 == 0 {
                    (state >> 16) as u8
                } else {
                    0
                };
            }
            bytes[0] = (round % 10) as u8;
            bytes[1] = 0;
            if let Ok(message) = Message::decode(&bytes) {
                accepted += 1;
                let record = message.encode();
                let again = Message::decode(&record).unwrap();
                assert_eq!(again.encode(), record);
            }
        }
        assert!(
            accepted > 10_000,
            "only {accepted} of the records were accepted"
        );
    }

    /// A name from the peer cannot put control characters into a log, and a secret never shows.
    #[test]
    fn texts_print_safely() {
        let name = Text::<32>::cut(b"a\x1b[2J\xff\n\0hidden");
        assert_eq!(name.to_string(), "a\\x1b[2J\\xff\\n");
        let secret = Secret::new("hunter2").unwrap();
        assert_eq!(
            format!("{secret:?} {:?}", Secret::NONE),
            "Secret(..) Secret(none)"
        );
        assert!(!secret.matches(&Secret::NONE));
        assert!(!secret.matches(&Secret::new("hunter").unwrap()));
    }
}
