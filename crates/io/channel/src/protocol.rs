//! What a process and the broker say to each other.
//!
//! # Model
//! A `SOCK_SEQPACKET` Unix socket; each message is [`MESSAGE_BYTES`] long, little-endian, with a magic number and a version, and is
//! read only if it is exactly that. A process connects, sends a [`Request`], receives one [`Answer`] with descriptors beside it,
//! and closes. Who it is, the kernel says (`SO_PEERCRED`); no message says it.
//!
//! | request | answer | descriptors with the answer |
//! | --- | --- | --- |
//! | [`Request::Register`] | [`Answer::Registered`] | status page, directory, processes (for reading) |
//! | [`Request::Pair`], [`Request::Slab`] | [`Answer::Paired`] | slab, the peer's status page (for reading) |
//! | [`Request::Prove`], [`Request::Rescue`] | [`Answer::Done`] | none |
//! | [`Request::Watch`] | none | none |
//! | [`Request::List`] | [`Answer::Listing`] | memory with the rows |
//!
//! Whatever is not granted is answered with [`Answer::Refused`] and a [`Reason`].
//!
//! # Failure modes
//! A message that is not understood ends its connection. No request carries a descriptor; one that comes along ends the
//! connection, too.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use crate::Reason;

/// Length of every message, in bytes.
pub const MESSAGE_BYTES: usize = 64;
/// `WLS1`, in the order of bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"WLS1");
/// Version of messages and of the memory that they hand over: both sides are built together.
pub const VERSION: u16 = 4;
/// Slots that there can be; slot 0 is nobody's.
pub const SLOTS: usize = 65_536;
/// The broker's own slot, which it takes locks with. Its word in the table of processes is the broker's process id.
pub const BROKER_SLOT: u16 = u16::MAX;
/// Bytes of the table of processes: for each slot the process id (`u32`), 0 if there is none that lives.
pub const PROCESSES_BYTES: usize = SLOTS * 4;
/// Descriptors beside one message, at most.
pub const FDS_MAX: usize = 3;
/// [`Request::Register`]: this process may be joined with those of other users who say so, too.
pub const SHARE: u32 = 1;
/// [`Request::Register`]: this process goes on with connections of a former broker, which gave it the slot in `parent`; it needs
/// just that one.
pub const RETURNS: u32 = 2;

/// A connection as a process names it to the broker, which finds both sockets and compares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Number of the own socket.
    pub socket: i32,
    /// Its `SO_COOKIE`.
    pub cookie: u64,
    /// Number of the peer's socket in its process, as the directory has it.
    pub peer_socket: i32,
    /// The low 32 bits of its `SO_COOKIE`, likewise.
    pub peer_cookie: u32,
}

/// What a process asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Take this process in.
    Register {
        /// A socket of its own, for a trial of `pidfd_getfd`.
        socket: i32,
        /// That socket's `SO_COOKIE`.
        cookie: u64,
        /// [`SHARE`] and [`RETURNS`], or 0.
        flags: u32,
        /// Slot of the process that it was forked from, whose slabs it uses too; 0: none.
        parent: u16,
        /// Address in it of what may be read about its sockets, 0: nothing.
        report: u64,
    },
    /// Memory shared with another process, for a connection with it.
    Pair {
        /// The other process.
        peer: u16,
        /// Slabs of this pair that are full: the next one is meant.
        full: u16,
        /// The connection.
        ends: Ends,
    },
    /// Whether the two ends of a channel are one connection, where [`Answer::Paired`] says that each is to be proved.
    Prove {
        /// The slab.
        slab: u32,
        /// The channel in it.
        chan: u16,
        /// Number of the own socket.
        socket: i32,
        /// Its `SO_COOKIE`.
        cookie: u64,
    },
    /// Memory of which this process knows by a record that it shares with the one that it was forked from.
    Slab {
        /// The slab.
        slab: u32,
    },
    /// Move the unread bytes of one direction into the kernel.
    Rescue {
        /// The slab.
        slab: u32,
        /// The channel in it.
        chan: u16,
        /// The side whose outgoing bytes are meant.
        side: u8,
    },
    /// Look after this slab for a while.
    Watch {
        /// The slab.
        slab: u32,
    },
    /// Every process and channel that the asking user may see.
    List,
}

/// What the broker answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// It was not.
    Refused {
        /// Why.
        reason: Reason,
        /// The broker's process id where it sees itself, for `PR_SET_PTRACER`.
        broker: u32,
    },
    /// The process was taken in.
    Registered {
        /// Its slot.
        slot: u16,
        /// Bytes of its status page.
        status_bytes: u32,
        /// Bytes of the directory.
        directory_bytes: u32,
    },
    /// The memory of two processes.
    Paired {
        /// The slab.
        slab: u32,
        /// The side of the process that asked.
        side: u8,
        /// The process on the other side.
        peer: u16,
        /// Bytes of the slab.
        slab_bytes: u64,
        /// Bytes of the peer's status page.
        status_bytes: u32,
        /// The peer has other ids: each further connection with it is to be proved ([`Request::Prove`]).
        proves: bool,
    },
    /// Rows of [`Request::List`].
    Listing {
        /// Their bytes.
        bytes: u64,
    },
}

const KIND_AT: usize = 6;
const WORDS_AT: usize = 8;

/// A message as seven words behind its head: every field has a word of its own.
struct Words {
    kind: u16,
    words: [u64; 7],
}

impl Words {
    fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let mark = MAGIC.to_le_bytes().into_iter().chain(VERSION.to_le_bytes());
        let head = mark.chain(self.kind.to_le_bytes());
        let words = self.words.iter().flat_map(|word| word.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(head.chain(words)) {
            *to = from;
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != MESSAGE_BYTES {
            return None;
        }
        let (head, rest) = bytes.split_at_checked(WORDS_AT)?;
        let (mark, kind) = head.split_at_checked(KIND_AT)?;
        let (magic, version) = mark.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*magic) != MAGIC || version != VERSION.to_le_bytes() {
            return None;
        }
        let mut words = [0; 7];
        let (chunks, _) = rest.as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = u64::from_le_bytes(*chunk);
        }
        let kind = u16::from_le_bytes(kind.try_into().ok()?);
        Some(Self { kind, words })
    }
}

fn side(word: u64) -> Option<u8> {
    u8::try_from(word).ok().filter(|side| *side < 2)
}

impl Request {
    /// The message.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let (kind, words) = match *self {
            Self::Register {
                socket,
                cookie,
                flags,
                parent,
                report,
            } => {
                let socket = u64::from(socket.cast_unsigned());
                (
                    1,
                    [socket, cookie, flags.into(), parent.into(), report, 0, 0],
                )
            }
            Self::Pair { peer, full, ends } => {
                let own = u64::from(ends.socket.cast_unsigned());
                let peers = u64::from(ends.peer_socket.cast_unsigned());
                let words = [
                    peer.into(),
                    full.into(),
                    own,
                    ends.cookie,
                    peers,
                    ends.peer_cookie.into(),
                    0,
                ];
                (2, words)
            }
            Self::Prove {
                slab,
                chan,
                socket,
                cookie,
            } => {
                let socket = u64::from(socket.cast_unsigned());
                (7, [slab.into(), chan.into(), socket, cookie, 0, 0, 0])
            }
            Self::Slab { slab } => (3, [slab.into(), 0, 0, 0, 0, 0, 0]),
            Self::Rescue { slab, chan, side } => {
                (4, [slab.into(), chan.into(), side.into(), 0, 0, 0, 0])
            }
            Self::Watch { slab } => (5, [slab.into(), 0, 0, 0, 0, 0, 0]),
            Self::List => (6, [0; 7]),
        };
        Words { kind, words }.encode()
    }

    /// The request in a message; `None` if it is not one, to the last bit.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let Words { kind, words } = Words::decode(bytes)?;
        let [a, b, c, d, e, f, ..] = words;
        let request = match kind {
            1 => Self::Register {
                socket: u32::try_from(a).ok()?.cast_signed(),
                cookie: b,
                flags: u32::try_from(c).ok()?,
                parent: u16::try_from(d).ok()?,
                report: e,
            },
            2 => Self::Pair {
                peer: u16::try_from(a).ok()?,
                full: u16::try_from(b).ok()?,
                ends: Ends {
                    socket: u32::try_from(c).ok()?.cast_signed(),
                    cookie: d,
                    peer_socket: u32::try_from(e).ok()?.cast_signed(),
                    peer_cookie: u32::try_from(f).ok()?,
                },
            },
            7 => Self::Prove {
                slab: u32::try_from(a).ok()?,
                chan: u16::try_from(b).ok()?,
                socket: u32::try_from(c).ok()?.cast_signed(),
                cookie: d,
            },
            3 => Self::Slab {
                slab: u32::try_from(a).ok()?,
            },
            4 => Self::Rescue {
                slab: u32::try_from(a).ok()?,
                chan: u16::try_from(b).ok()?,
                side: side(c)?,
            },
            5 => Self::Watch {
                slab: u32::try_from(a).ok()?,
            },
            6 => Self::List,
            _ => return None,
        };
        // What has no meaning yet must be zero.
        (request.encode() == bytes).then_some(request)
    }
}

impl Answer {
    /// The message.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let (kind, words) = match *self {
            Self::Done => (0x81, [0; 7]),
            Self::Refused { reason, broker } => (
                0x82,
                [u64::from(reason as u8), broker.into(), 0, 0, 0, 0, 0],
            ),
            Self::Registered {
                slot,
                status_bytes,
                directory_bytes,
            } => (
                0x83,
                [
                    slot.into(),
                    status_bytes.into(),
                    directory_bytes.into(),
                    0,
                    0,
                    0,
                    0,
                ],
            ),
            Self::Paired {
                slab,
                side,
                peer,
                slab_bytes,
                status_bytes,
                proves,
            } => {
                let words = [
                    slab.into(),
                    side.into(),
                    peer.into(),
                    slab_bytes,
                    status_bytes.into(),
                    proves.into(),
                    0,
                ];
                (0x84, words)
            }
            Self::Listing { bytes } => (0x85, [bytes, 0, 0, 0, 0, 0, 0]),
        };
        Words { kind, words }.encode()
    }

    /// The answer in a message; `None` if it is not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let Words { kind, words } = Words::decode(bytes)?;
        let [a, b, c, d, e, f, ..] = words;
        Some(match kind {
            0x81 => Self::Done,
            0x82 => Self::Refused {
                reason: Reason::from_u8(u8::try_from(a).ok()?),
                broker: u32::try_from(b).ok()?,
            },
            0x83 => Self::Registered {
                slot: u16::try_from(a).ok()?,
                status_bytes: u32::try_from(b).ok()?,
                directory_bytes: u32::try_from(c).ok()?,
            },
            0x84 => Self::Paired {
                slab: u32::try_from(a).ok()?,
                side: side(b)?,
                peer: u16::try_from(c).ok()?,
                slab_bytes: d,
                status_bytes: u32::try_from(e).ok()?,
                proves: f != 0,
            },
            0x85 => Self::Listing { bytes: a },
            _ => return None,
        })
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    /// Every request is read as it was written, and no other bit pattern is: each flipped bit is refused or is another request.
    #[test]
    fn requests_are_read_exactly() {
        let register = Request::Register {
            socket: 7,
            cookie: u64::MAX,
            flags: SHARE,
            parent: 3,
            report: 1 << 47,
        };
        let all = [
            register,
            Request::Pair {
                peer: 65_534,
                full: 2,
                ends: Ends {
                    socket: 9,
                    cookie: u64::MAX,
                    peer_socket: -1,
                    peer_cookie: u32::MAX,
                },
            },
            Request::Prove {
                slab: u32::MAX,
                chan: 7,
                socket: 3,
                cookie: 1 << 63,
            },
            Request::Slab { slab: u32::MAX },
            Request::Rescue {
                slab: 1,
                chan: 1023,
                side: 1,
            },
            Request::Watch { slab: 9 },
            Request::List,
        ];
        for request in all {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[..63]), None);
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None);
            for bit in 0..MESSAGE_BYTES * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Request::decode(&changed), Some(request), "bit {bit}");
            }
        }
    }

    /// Every answer is read as it was written.
    #[test]
    fn answers_are_read_exactly() {
        let all = [
            Answer::Done,
            Answer::Refused {
                reason: Reason::NotRescuable,
                broker: 7,
            },
            Answer::Registered {
                slot: 5,
                status_bytes: 8192,
                directory_bytes: 1 << 21,
            },
            Answer::Paired {
                slab: 8,
                side: 1,
                peer: 4,
                slab_bytes: 1 << 33,
                status_bytes: 8192,
                proves: true,
            },
            Answer::Listing { bytes: 99 },
        ];
        for answer in all {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }
}
