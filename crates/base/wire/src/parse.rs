//! One pass over a frame's first private bytes.
//!
//! # Model
//!
//! [`parse`] is given `bytes`, the part of the frame that was copied to private memory, and `len`,
//! the length of the whole frame. It returns [`Layers`]: the *lengths* of the link, network and
//! transport headers in `bytes`, each 0 if it is not known. Three outcomes are kept apart:
//!
//! - all that there is to know is known: `need == 0`, [`Fault::None`];
//! - the frame is longer than `bytes` and the decision lies in what is missing: `need` is the
//!   number of bytes, counted from the frame's first, with which to call again. Each call with
//!   `need` bytes either ends or asks for more, at most [`HEADERS_MAX`];
//! - the frame contradicts itself: a [`Fault`]. What was found before the fault still stands.
//!
//! # Invariants
//!
//! For every input: `l2 + l3 + l4 <= min(bytes.len(), len)`; `end <= len`, and `end >= l2 + l3 +
//! l4` where it is not 0; a fault and a need exclude each other; `need` is above the bytes given
//! and at most `len`. The fuzz target `wire_parse` checks these.
//!
//! # Limits
//!
//! [`TAGS_MAX`], [`EXTENSIONS_MAX`], [`HEADERS_MAX`]. `ethertype` and the addresses of a frame
//! beyond them are still good.

use crate::ether::{self, proto};

/// Stacked VLAN tags that are walked; more is [`Fault::TagStack`].
pub const TAGS_MAX: u8 = 4;
/// IPv6 extension headers that are walked; more is [`Fault::Chain`].
pub const EXTENSIONS_MAX: u8 = 8;
/// No header byte at or after this offset is looked at, so [`Layers::need`] is never more: what
/// fits a 2 KiB slot of the deepening pool beside its headroom. An IPv6 chain that passes it is
/// [`Fault::Chain`].
pub const HEADERS_MAX: usize = 1920;

/// What the link header carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// Shorter than an Ethernet header, or the bytes given are.
    #[default]
    None,
    /// A type that is not parsed further.
    Other,
    /// The type field is a length: LLC follows (spanning tree, LLDP's elders).
    Llc,
    /// ARP.
    Arp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Is the packet a part of one?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Fragment {
    /// Whole.
    #[default]
    No,
    /// Whole, but with an IPv6 fragment header (RFC 6946).
    Atomic,
    /// The first part: it has a transport header, whose lengths and checksum speak of the whole.
    First,
    /// Any other part: no transport header.
    Later,
}

/// How a frame contradicts itself. The frame can still be forwarded by its addresses; nothing may
/// be decided by what lies after the fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Fault {
    /// It does not.
    #[default]
    None,
    /// It ends within its link header.
    Runt,
    /// More than [`TAGS_MAX`] tags.
    TagStack,
    /// The IP version is not the one that the ether type says.
    Version,
    /// The frame ends within its network header, or an IPv4 header says less than 20 bytes.
    NetworkHeader,
    /// The packet is longer than the frame, or shorter than its own header.
    NetworkLength,
    /// More than [`EXTENSIONS_MAX`] IPv6 extension headers, or they pass [`HEADERS_MAX`].
    Chain,
    /// The packet ends within its transport header, or a TCP header says less than 20 bytes.
    TransportHeader,
    /// A UDP length that is below 8 or beyond the packet.
    TransportLength,
}

/// What [`parse`] found. 24 bytes; offsets count from the frame's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Where the packet ends in the frame (padding may follow); 0 without a checked IP header.
    pub end: u32,
    /// 0, or how many bytes of the frame the next call needs to get further.
    pub need: u16,
    /// The type after all tags walked (host order), or an LLC length; 0 if not reached.
    pub ethertype: u16,
    /// The outer tag's TPID, 0 if there is none.
    pub tpid: u16,
    /// The outer tag's control word ([`Tci`](crate::Tci)); 0 if there is none.
    pub tci: u16,
    /// Length of the network header with options and IPv6 extensions, 0 if unknown.
    pub l3: u16,
    /// Length of the link header with tags (14 to 30), 0 if unknown.
    pub l2: u8,
    /// Length of the transport header (TCP with options; UDP and ICMP 8), 0 if unknown or none.
    pub l4: u8,
    /// The transport protocol; meaningful where `l3 != 0`.
    pub proto: u8,
    /// Number of tags walked.
    pub tags: u8,
    /// What the link header carries.
    pub kind: Kind,
    /// Part of a packet?
    pub fragment: Fragment,
    /// The first contradiction found.
    pub fault: Fault,
    /// An IPv6 routing header is present: the destination in the header need not be the one in
    /// the transport checksum.
    pub routed: bool,
}

impl Layers {
    /// Offset of the network header (of the payload, for a frame that is not IP).
    #[inline]
    pub const fn l3_at(&self) -> usize {
        self.l2 as usize
    }

    /// Offset of the transport header; meaningful where `l3 != 0`.
    #[inline]
    pub const fn l4_at(&self) -> usize {
        (self.l2 as usize).wrapping_add(self.l3 as usize)
    }

    /// Length of all headers known; where `l4 != 0` the offset of the transport payload.
    #[inline]
    pub const fn headers(&self) -> usize {
        self.l4_at().wrapping_add(self.l4 as usize)
    }

    /// A whole TCP segment with a good header.
    #[inline]
    pub const fn is_tcp(&self) -> bool {
        self.l4 != 0 && self.proto == proto::TCP && self.is_whole()
    }

    /// A whole UDP datagram with a good header.
    #[inline]
    pub const fn is_udp(&self) -> bool {
        self.l4 != 0 && self.proto == proto::UDP && self.is_whole()
    }

    /// Not a part of a packet.
    #[inline]
    pub const fn is_whole(&self) -> bool {
        matches!(self.fragment, Fragment::No | Fragment::Atomic)
    }
}

/// Why a walk ended early: a need or a fault.
#[derive(Clone, Copy)]
struct Stop {
    need: u16,
    fault: Fault,
}

impl Stop {
    /// The bytes up to `upto` are not at hand. If the frame or packet ends at `limit` before them,
    /// that is `fault`.
    #[cold]
    #[inline(never)]
    fn short(limit: usize, upto: usize, fault: Fault) -> Self {
        if upto > limit {
            fault.into()
        } else if upto > HEADERS_MAX {
            Fault::Chain.into()
        } else {
            Self {
                need: upto as u16,
                fault: Fault::None,
            }
        }
    }
}

impl From<Fault> for Stop {
    #[inline(always)]
    fn from(fault: Fault) -> Self {
        Self { need: 0, fault }
    }
}

/// The bytes of a frame, and how long the frame, or from its network header on the packet, is.
#[derive(Clone, Copy)]
struct View<'a> {
    bytes: &'a [u8],
    limit: usize,
}

impl<'a> View<'a> {
    /// `N` bytes at `at`; else a need, or `fault` if the frame or packet has no such bytes.
    #[inline(always)]
    fn take<const N: usize>(self, at: usize, fault: Fault) -> Result<&'a [u8; N], Stop> {
        let end = at.wrapping_add(N);
        match self.bytes.get(at..end).and_then(|b| b.first_chunk()) {
            Some(chunk) if end <= self.limit => Ok(chunk),
            _ => Err(Stop::short(self.limit, end, fault)),
        }
    }

    /// Are the bytes up to `upto` here? Else as [`take`](Self::take).
    #[inline(always)]
    fn has(self, upto: usize, fault: Fault) -> Result<(), Stop> {
        if upto <= self.bytes.len() && upto <= self.limit {
            Ok(())
        } else {
            Err(Stop::short(self.limit, upto, fault))
        }
    }
}

/// Parses the frame of `len` bytes whose first bytes are `bytes` (bytes after `len` are ignored).
#[inline]
pub fn parse(bytes: &[u8], len: u32) -> Layers {
    match plain(bytes, len) {
        Some(head) => plain_layers(head),
        None => walked(bytes, len),
    }
}

/// The first bytes of what most frames are: untagged, IPv4 without options, whole, TCP or UDP, nothing wrong. `None` says nothing;
/// [`parse`] gives the same for all that this finds.
#[inline(always)]
pub fn plain(bytes: &[u8], len: u32) -> Option<&[u8; 54]> {
    let head: &[u8; 54] = bytes.first_chunk()?;
    let ports = head[23] == proto::TCP || head[23] == proto::UDP;
    // Each a load: the type, version and length of the header; the fragment's bits and offset.
    let kind = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) & 0x00ff_ffff;
    let part = u16::from_le_bytes([head[20], head[21]]) & 0xff3f;
    if kind != 0x0045_0008 || part != 0 || !ports {
        return None;
    }
    let total = u16::from_be_bytes([head[16], head[17]]);
    let end = u32::from(total).wrapping_add(14);
    let headers = usize::from(plain_l4(head)).wrapping_add(34);
    let wrong = if head[23] == proto::TCP {
        headers < 54
    } else {
        let length = u16::from_be_bytes([head[38], head[39]]);
        length < 8 || u32::from(length).wrapping_add(20) > u32::from(total)
    };
    let fits = end <= len && headers <= end as usize && headers <= bytes.len();
    (fits && !wrong).then_some(head)
}

/// Size of the transport header of a [`plain`] frame.
#[inline(always)]
const fn plain_l4(head: &[u8; 54]) -> u8 {
    if head[23] == proto::TCP {
        (head[46] >> 4) << 2
    } else {
        8
    }
}

#[inline(always)]
fn plain_layers(head: &[u8; 54]) -> Layers {
    Layers {
        end: u32::from(u16::from_be_bytes([head[16], head[17]])).wrapping_add(14),
        ethertype: ether::IPV4,
        l3: 20,
        l2: 14,
        l4: plain_l4(head),
        proto: head[23],
        kind: Kind::Ipv4,
        ..Layers::default()
    }
}

/// [`parse`] for any frame, header by header.
#[inline(never)]
fn walked(bytes: &[u8], len: u32) -> Layers {
    // Cut to what may be looked at, so that the result does not depend on how much was given.
    let limit = len as usize;
    let given = bytes.len().min(limit).min(HEADERS_MAX);
    let view = View {
        bytes: bytes.get(..given).unwrap_or_default(),
        limit,
    };
    // The address of `out` reaches no function that is not inlined: its fields stay in registers
    // until they are stored once. Copying bytes that were just stored singly stalls the core.
    let mut out = Layers::default();
    if let Err(stop) = walk(view, &mut out) {
        out.need = stop.need;
        out.fault = stop.fault;
    }
    out
}

#[inline(always)]
fn walk(view: View<'_>, out: &mut Layers) -> Result<(), Stop> {
    let eth = view.take::<14>(0, Fault::Runt)?;
    let mut ethertype = u16::from_be_bytes([eth[12], eth[13]]);
    let mut l2 = 14;
    if ether::is_tag(ethertype) {
        (ethertype, l2) = tags(view, out, ethertype)?;
    }
    out.l2 = l2;
    out.ethertype = ethertype;
    let at = usize::from(l2);
    let network = match ethertype {
        ether::IPV4 => {
            out.kind = Kind::Ipv4;
            ipv4(view, at)?
        }
        ether::IPV6 => {
            out.kind = Kind::Ipv6;
            ipv6(view, at)?
        }
        _ => {
            out.kind = match ethertype {
                ether::ARP => Kind::Arp,
                0..ether::TYPE_MIN => Kind::Llc,
                _ => Kind::Other,
            };
            return Ok(());
        }
    };
    out.l3 = network.size;
    out.end = network.end as u32;
    out.proto = network.proto;
    out.fragment = network.fragment;
    out.routed = network.routed;
    let packet = View {
        limit: network.end,
        ..view
    };
    out.l4 = transport(packet, at, network)?;
    Ok(())
}

/// Walks the tags of which `tpid` is the first's; returns the type after the last, and where it
/// ends. The link header stays unknown until then.
#[inline(always)]
fn tags(view: View<'_>, out: &mut Layers, mut tpid: u16) -> Result<(u16, u8), Stop> {
    let mut l2 = 14u8;
    while ether::is_tag(tpid) {
        if out.tags == TAGS_MAX {
            out.l2 = l2;
            out.ethertype = tpid;
            out.kind = Kind::Other;
            return Err(Fault::TagStack.into());
        }
        let tag = view.take::<4>(usize::from(l2), Fault::Runt)?;
        if out.tags == 0 {
            out.tpid = tpid;
            out.tci = u16::from_be_bytes([tag[0], tag[1]]);
        }
        out.tags = out.tags.wrapping_add(1);
        l2 = l2.wrapping_add(4);
        tpid = u16::from_be_bytes([tag[2], tag[3]]);
    }
    Ok((tpid, l2))
}

/// A network header that holds together.
#[derive(Clone, Copy)]
struct Network {
    /// Where the packet ends in the frame.
    end: usize,
    /// Bytes of the header with options and extensions.
    size: u16,
    proto: u8,
    fragment: Fragment,
    routed: bool,
    v4: bool,
}

#[inline(always)]
fn ipv4(view: View<'_>, at: usize) -> Result<Network, Stop> {
    let ip = view.take::<20>(at, Fault::NetworkHeader)?;
    if ip[0] >> 4 != 4 {
        return Err(Fault::Version.into());
    }
    let size = u16::from(ip[0] & 15) << 2;
    if size < 20 {
        return Err(Fault::NetworkHeader.into());
    }
    let total = u16::from_be_bytes([ip[2], ip[3]]);
    let end = at.wrapping_add(usize::from(total));
    if total < size || end > view.limit {
        return Err(Fault::NetworkLength.into());
    }
    if size > 20 {
        view.has(at.wrapping_add(usize::from(size)), Fault::NetworkHeader)?;
    }
    let fragment = match u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff {
        0 => Fragment::No,
        0x2000 => Fragment::First,
        _ => Fragment::Later,
    };
    Ok(Network {
        end,
        size,
        proto: ip[9],
        fragment,
        routed: false,
        v4: true,
    })
}

#[inline(always)]
fn ipv6(view: View<'_>, at: usize) -> Result<Network, Stop> {
    let ip = view.take::<40>(at, Fault::NetworkHeader)?;
    if ip[0] >> 4 != 6 {
        return Err(Fault::Version.into());
    }
    let payload = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let end = at.wrapping_add(40).wrapping_add(payload);
    if end > view.limit {
        return Err(Fault::NetworkLength.into());
    }
    let plain = Network {
        end,
        size: 40,
        proto: ip[6],
        fragment: Fragment::No,
        routed: false,
        v4: false,
    };
    match ip[6] {
        proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::DEST_OPTIONS => {
            extensions(view.bytes, at, plain)
        }
        _ => Ok(plain),
    }
}

/// Walks the extension headers of the packet that begins at `start` (RFC 8200, section 4).
#[inline(never)]
fn extensions(bytes: &[u8], start: usize, mut found: Network) -> Result<Network, Stop> {
    let view = View {
        bytes,
        limit: found.end,
    };
    let mut at = start.wrapping_add(40);
    let mut count = 0u8;
    while found.fragment != Fragment::Later {
        let head = match found.proto {
            proto::HOP_BY_HOP | proto::ROUTING | proto::DEST_OPTIONS | proto::FRAGMENT => {
                view.take::<8>(at, Fault::NetworkHeader)?
            }
            _ => break,
        };
        let mut size = 8;
        if found.proto == proto::FRAGMENT {
            let part = match u16::from_be_bytes([head[2], head[3]]) & 0xfff9 {
                0 => Fragment::Atomic,
                1 => Fragment::First,
                _ => Fragment::Later,
            };
            found.fragment = worse(found.fragment, part);
        } else {
            size = usize::from(head[1]).wrapping_add(1) << 3;
            found.routed |= found.proto == proto::ROUTING;
        }
        found.proto = head[0];
        count = count.wrapping_add(1);
        at = at.wrapping_add(size);
        if count > EXTENSIONS_MAX || at > HEADERS_MAX {
            return Err(Fault::Chain.into());
        }
        view.has(at, Fault::NetworkHeader)?;
    }
    found.size = at.wrapping_sub(start) as u16;
    Ok(found)
}

/// Two fragment headers: the one that hides more counts.
#[inline]
const fn worse(a: Fragment, b: Fragment) -> Fragment {
    if a as u8 >= b as u8 { a } else { b }
}

/// The length of the transport header, 0 if there is none that is known. `view` ends where the
/// packet ends, which begins at `start`.
#[inline(always)]
fn transport(view: View<'_>, start: usize, network: Network) -> Result<u8, Stop> {
    let at = start.wrapping_add(usize::from(network.size));
    if network.fragment == Fragment::Later {
        return Ok(0);
    }
    match network.proto {
        proto::TCP => {
            let tcp = view.take::<20>(at, Fault::TransportHeader)?;
            let size = (tcp[12] >> 4) << 2;
            if size < 20 {
                return Err(Fault::TransportHeader.into());
            }
            let end = at.wrapping_add(usize::from(size));
            view.has(end, Fault::TransportHeader)?;
            Ok(size)
        }
        proto::UDP => {
            let udp = view.take::<8>(at, Fault::TransportHeader)?;
            let length = u16::from_be_bytes([udp[4], udp[5]]);
            let fits = at.wrapping_add(usize::from(length)) <= view.limit;
            // The first fragment's length is the whole datagram's.
            if length < 8 || (!fits && network.fragment != Fragment::First) {
                return Err(Fault::TransportLength.into());
            }
            Ok(8)
        }
        proto::ICMP | proto::ICMPV6 if (network.proto == proto::ICMP) == network.v4 => {
            view.has(at.wrapping_add(8), Fault::TransportHeader)?;
            Ok(8)
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests;
