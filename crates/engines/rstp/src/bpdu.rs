//! BPDUs as bytes (IEEE 802.1D-2004, clause 9).
//!
//! # Model
//! ```text
//! 0      6        12      14    17                              52 (Config)   53 (RST)
//! | 01-80-C2-00-00-00 | source | length | 42 42 03 | BPDU ...
//! BPDU: 0 protocol (0)  2 version  3 type  4 flags  5 root  13 cost  17 bridge  25 port
//!       27 message age  29 max age  31 hello  33 forward delay  35 version 1 length (RST)
//! ```
//! [`parse`] takes a whole frame and accepts what 9.3.4 calls valid; anything else is [`Malformed`]. Bytes behind what a type
//! needs are ignored, as the standard has it, so later versions are understood.

use thiserror::Error;

use crate::vector::{BridgeId, PortId, PriorityVector, Times};

/// The address that BPDUs are sent to (7.12.3).
pub const DESTINATION: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
/// LLC (7.12.3): both service access points 42, unnumbered information.
const LLC: [u8; 3] = [0x42, 0x42, 0x03];
const HEADER: usize = 14;
const CONFIG: u8 = 0x00;
const TCN: u8 = 0x80;
const RST: u8 = 0x02;
const CONFIG_BYTES: usize = 35;
const RST_BYTES: usize = 36;
/// The shortest Ethernet frame, without its check sequence.
const FRAME_MIN: usize = 60;
/// A type field above this is a type, else a length.
const LENGTH_MAX: usize = 1500;

const TOPOLOGY_CHANGE: u8 = 1;
const PROPOSAL: u8 = 1 << 1;
const ROLE_SHIFT: u8 = 2;
const LEARNING: u8 = 1 << 4;
const FORWARDING: u8 = 1 << 5;
const AGREEMENT: u8 = 1 << 6;
const TOPOLOGY_CHANGE_ACK: u8 = 1 << 7;

/// The role of the sender's port (9.2.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaidRole {
    /// Not said; such an RST BPDU counts as a Configuration BPDU (9.3.3).
    Unknown,
    /// Alternate or backup.
    AlternateOrBackup,
    /// Root.
    Root,
    /// Designated.
    Designated,
}

impl SaidRole {
    fn of(flags: u8) -> SaidRole {
        match flags >> ROLE_SHIFT & 3 {
            1 => SaidRole::AlternateOrBackup,
            2 => SaidRole::Root,
            3 => SaidRole::Designated,
            _ => SaidRole::Unknown,
        }
    }

    fn bits(self) -> u8 {
        let role = match self {
            SaidRole::Unknown => 0,
            SaidRole::AlternateOrBackup => 1,
            SaidRole::Root => 2,
            SaidRole::Designated => 3,
        };
        role << ROLE_SHIFT
    }
}

/// A Configuration BPDU (9.3.1), of bridges that know STP only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Who is the root, how far it is, who says so.
    pub vector: PriorityVector,
    /// With which times.
    pub times: Times,
    /// Addresses have moved.
    pub topology_change: bool,
    /// The receiver's notification has arrived.
    pub topology_change_ack: bool,
}

/// A Rapid Spanning Tree BPDU (9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rst {
    /// Who is the root, how far it is, who says so.
    pub vector: PriorityVector,
    /// With which times.
    pub times: Times,
    /// The role of the port that it came from.
    pub role: SaidRole,
    /// Addresses have moved.
    pub topology_change: bool,
    /// The port would forward at once if the receiver agrees.
    pub proposal: bool,
    /// The receiver may forward at once.
    pub agreement: bool,
    /// The port learns.
    pub learning: bool,
    /// The port forwards.
    pub forwarding: bool,
}

/// A BPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bpdu {
    /// A Configuration BPDU.
    Config(Config),
    /// A Topology Change Notification BPDU (9.3.2).
    Tcn,
    /// A Rapid Spanning Tree BPDU.
    Rst(Rst),
}

/// Why a frame is no BPDU that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// It goes to another address.
    #[error("it is not sent to 01:80:c2:00:00:00")]
    Destination,
    /// It has a type instead of a length, or is shorter than its length says.
    #[error("its length is {0}")]
    Length(u16),
    /// Not spanning tree's LLC header.
    #[error("it has no LLC header of a BPDU")]
    Llc,
    /// Not protocol 0.
    #[error("its protocol is {0}")]
    Protocol(u16),
    /// No type of 9.3, or one that its version does not have.
    #[error("its type is {kind:#04x} of version {version}")]
    Type {
        /// The type.
        kind: u8,
        /// The version.
        version: u8,
    },
    /// Shorter than its type has to be.
    #[error("it has {0} bytes")]
    Short(usize),
    /// What it says is older than it may be (9.3.4).
    #[error("its age is {0}/256 s")]
    TooOld(u16),
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn vector(bpdu: &[u8]) -> Option<PriorityVector> {
    Some(PriorityVector {
        root: BridgeId(u64::from_be_bytes(array(bpdu, 5)?)),
        cost: u32::from_be_bytes(array(bpdu, 13)?),
        bridge: BridgeId(u64::from_be_bytes(array(bpdu, 17)?)),
        port: PortId(u16::from_be_bytes(array(bpdu, 25)?)),
    })
}

fn times(bpdu: &[u8]) -> Option<Times> {
    let time = |at| array(bpdu, at).map(u16::from_be_bytes);
    Some(Times {
        message_age: time(27)?,
        max_age: time(29)?,
        hello: time(31)?,
        forward_delay: time(33)?,
    })
}

/// The BPDU in a frame.
///
/// # Errors
/// If the frame is none, or one that is to be discarded (9.3.4).
pub fn parse(frame: &[u8]) -> Result<Bpdu, Malformed> {
    if array(frame, 0) != Some(DESTINATION) {
        return Err(Malformed::Destination);
    }
    let length = u16::from_be_bytes(array(frame, 12).ok_or(Malformed::Short(frame.len()))?);
    let body = frame
        .get(HEADER..HEADER.saturating_add(usize::from(length)))
        .filter(|body| body.len() <= LENGTH_MAX)
        .ok_or(Malformed::Length(length))?;
    parse_bpdu(body.strip_prefix(&LLC).ok_or(Malformed::Llc)?)
}

fn parse_bpdu(bpdu: &[u8]) -> Result<Bpdu, Malformed> {
    let short = Malformed::Short(bpdu.len());
    let [p, q, version, kind] = array(bpdu, 0).ok_or(short)?;
    let protocol = u16::from_be_bytes([p, q]);
    if protocol != 0 {
        return Err(Malformed::Protocol(protocol));
    }
    let needed = match (kind, version) {
        (TCN, _) => return Ok(Bpdu::Tcn),
        (CONFIG, _) => CONFIG_BYTES,
        (RST, 2..) => RST_BYTES,
        _ => return Err(Malformed::Type { kind, version }),
    };
    let bpdu = bpdu.get(..needed).ok_or(short)?;
    let flags = *bpdu.get(4).ok_or(short)?;
    let (vector, times) = (vector(bpdu).ok_or(short)?, times(bpdu).ok_or(short)?);
    let is = |bit| flags & bit != 0;
    if kind == RST {
        return Ok(Bpdu::Rst(Rst {
            vector,
            times,
            role: SaidRole::of(flags),
            topology_change: is(TOPOLOGY_CHANGE),
            proposal: is(PROPOSAL),
            agreement: is(AGREEMENT),
            learning: is(LEARNING),
            forwarding: is(FORWARDING),
        }));
    }
    if times.message_age >= times.max_age {
        return Err(Malformed::TooOld(times.message_age));
    }
    Ok(Bpdu::Config(Config {
        vector,
        times,
        topology_change: is(TOPOLOGY_CHANGE),
        topology_change_ack: is(TOPOLOGY_CHANGE_ACK),
    }))
}

impl Bpdu {
    /// The whole frame, padded to the shortest that Ethernet has.
    pub fn frame(&self, source: [u8; 6]) -> Vec<u8> {
        let bpdu = self.bytes();
        let length = LLC.len().saturating_add(bpdu.len()) as u16;
        let mut frame = Vec::with_capacity(FRAME_MIN);
        frame.extend(DESTINATION);
        frame.extend(source);
        frame.extend(length.to_be_bytes());
        frame.extend(LLC);
        frame.extend(bpdu);
        frame.resize(frame.len().max(FRAME_MIN), 0);
        frame
    }

    fn bytes(&self) -> Vec<u8> {
        let on = |flag: bool, bit: u8| if flag { bit } else { 0 };
        match self {
            Bpdu::Tcn => vec![0, 0, 0, TCN],
            Bpdu::Config(c) => {
                let flags = on(c.topology_change, TOPOLOGY_CHANGE)
                    | on(c.topology_change_ack, TOPOLOGY_CHANGE_ACK);
                long(0, CONFIG, flags, &c.vector, c.times)
            }
            Bpdu::Rst(r) => {
                let flags = on(r.topology_change, TOPOLOGY_CHANGE)
                    | on(r.proposal, PROPOSAL)
                    | r.role.bits()
                    | on(r.learning, LEARNING)
                    | on(r.forwarding, FORWARDING)
                    | on(r.agreement, AGREEMENT);
                let mut bytes = long(2, RST, flags, &r.vector, r.times);
                bytes.push(0); // Version 1 Length (9.3.3)
                bytes
            }
        }
    }
}

fn long(version: u8, kind: u8, flags: u8, vector: &PriorityVector, times: Times) -> Vec<u8> {
    let mut bytes = vec![0, 0, version, kind, flags];
    bytes.extend(vector.root.0.to_be_bytes());
    bytes.extend(vector.cost.to_be_bytes());
    bytes.extend(vector.bridge.0.to_be_bytes());
    bytes.extend(vector.port.0.to_be_bytes());
    for time in [
        times.message_age,
        times.max_age,
        times.hello,
        times.forward_delay,
    ] {
        bytes.extend(time.to_be_bytes());
    }
    bytes
}
