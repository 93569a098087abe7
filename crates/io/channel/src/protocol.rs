//! What a process and the broker say to each other.
//!
//! # Model
//! A `SOCK_SEQPACKET` Unix socket; each message is [`MESSAGE_BYTES`] long, little-endian, with a magic number and a version. A
//! process connects, sends a [`Request`], receives one [`Answer`], and closes. Who it is, the kernel says (`SO_PEERCRED`).
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
//! A message that is not exactly a request ends its connection, and so does a descriptor that comes along.

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
pub const VERSION: u16 = 6;
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

/// A part of a message: one word, but for [`Ends`].
trait Part: Sized {
    /// Writes it where the next words of a message are.
    fn put<'w>(self, to: &mut impl Iterator<Item = &'w mut u64>);
    /// What the next words say; `None` where nobody writes these.
    fn take(from: &mut impl Iterator<Item = u64>) -> Option<Self>;
}

macro_rules! parts {
    ($($type:ty: $part:ident => $put:expr, $word:ident => $take:expr;)*) => {
        $(impl Part for $type {
            fn put<'w>(self, to: &mut impl Iterator<Item = &'w mut u64>) {
                let $part = self;
                if let Some(to) = to.next() {
                    *to = $put;
                }
            }

            fn take(from: &mut impl Iterator<Item = u64>) -> Option<Self> {
                let $word = from.next()?;
                $take
            }
        })*
    };
}

parts! {
    u64: part => part, word => Some(word);
    u32: part => part.into(), word => word.try_into().ok();
    u16: part => part.into(), word => word.try_into().ok();
    i32: part => part.cast_unsigned().into(), word => u32::try_from(word).ok().map(u32::cast_signed);
    bool: part => part.into(), word => Some(word != 0);
    // A side.
    u8: part => part.into(), word => word.try_into().ok().filter(|side| *side < 2);
    Reason: part => u64::from(part as u8), word => u8::try_from(word).ok().map(Reason::from_u8);
}

impl Part for Ends {
    fn put<'w>(self, to: &mut impl Iterator<Item = &'w mut u64>) {
        self.socket.put(to);
        self.cookie.put(to);
        self.peer_socket.put(to);
        self.peer_cookie.put(to);
    }

    fn take(from: &mut impl Iterator<Item = u64>) -> Option<Self> {
        Some(Self {
            socket: Part::take(from)?,
            cookie: Part::take(from)?,
            peer_socket: Part::take(from)?,
            peer_cookie: Part::take(from)?,
        })
    }
}

/// The first word of a message of this kind.
const fn head(kind: u16) -> u64 {
    MAGIC as u64 | (VERSION as u64) << 32 | (kind as u64) << 48
}

/// Declares messages with their numbers: behind the head, each part has a word or more of its own, in this order.
macro_rules! messages {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$about:meta])* $kind:literal: $message:ident $({
            $($(#[$what:meta])* $part:ident: $type:ty,)*
        })?,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])* $message $({ $($(#[$what])* $part: $type,)* })?,)*
        }

        impl $name {
            /// The message.
            pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
                let mut words = [0; MESSAGE_BYTES / 8];
                let mut to = words.iter_mut();
                match *self {
                    $(Self::$message $({ $($part,)* })? => {
                        head($kind).put(&mut to);
                        $($($part.put(&mut to);)*)?
                    })*
                }
                let mut message = [0; MESSAGE_BYTES];
                let (places, _) = message.as_chunks_mut::<8>();
                for (place, word) in places.iter_mut().zip(words) {
                    *place = word.to_le_bytes();
                }
                message
            }

            /// What these bytes say; `None` if they are no such message, to the last bit.
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                let (words, _) = bytes.as_chunks::<8>();
                let mut from = words.iter().map(|word| u64::from_le_bytes(*word));
                let kind = from.next()?;
                let message = match kind {
                    $(_ if kind == head($kind) => Self::$message $({ $($part: Part::take(&mut from)?,)* })?,)*
                    _ => return None,
                };
                // What has no meaning yet must be zero.
                (message.encode() == bytes).then_some(message)
            }
        }
    };
}

messages! {
    /// What a process asks.
    Request {
        /// Take this process in.
        1: Register {
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
        2: Pair {
            /// The other process.
            peer: u16,
            /// Slabs of this pair that are full: the next one is meant.
            full: u16,
            /// The connection.
            ends: Ends,
        },
        /// Whether the two ends of a channel are one connection, where [`Answer::Paired`] says that each is to be proved.
        7: Prove {
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
        3: Slab {
            /// The slab.
            slab: u32,
            /// The side that the record's socket has.
            side: u8,
        },
        /// Move the unread bytes of one direction into the kernel.
        4: Rescue {
            /// The slab.
            slab: u32,
            /// The channel in it.
            chan: u16,
            /// The side whose outgoing bytes are meant.
            side: u8,
        },
        /// Look after this slab for a while.
        5: Watch {
            /// The slab.
            slab: u32,
        },
        /// Every process and channel that the asking user may see.
        6: List,
    }
}

messages! {
    /// What the broker answers.
    Answer {
        /// It was done.
        0x81: Done,
        /// It was not.
        0x82: Refused {
            /// Why.
            reason: Reason,
            /// The broker's process id where it sees itself, for `PR_SET_PTRACER`.
            broker: u32,
        },
        /// The process was taken in.
        0x83: Registered {
            /// Its slot.
            slot: u16,
        },
        /// The memory of two processes.
        0x84: Paired {
            /// The slab.
            slab: u32,
            /// The side of the process that asked.
            side: u8,
            /// The process on the other side.
            peer: u16,
            /// The peer has other ids: each further connection with it is to be proved ([`Request::Prove`]).
            proves: bool,
        },
        /// Rows of [`Request::List`].
        0x85: Listing {
            /// Their bytes.
            bytes: u64,
        },
    }
}

#[cfg(test)]
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
            Request::Slab { slab: 9, side: 1 },
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
            Answer::Registered { slot: 5 },
            Answer::Paired {
                slab: 8,
                side: 1,
                peer: 4,
                proves: true,
            },
            Answer::Listing { bytes: 99 },
        ];
        for answer in all {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }
}
