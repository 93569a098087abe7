//! What a member says it is: [`Guard`] holds the packets that it sends against the rules of its [`Protection`].
//!
//! # Purpose
//! Tenants on one bridge must not speak for each other. The bridge checks link-layer addresses (`mac-nospoof`); this stage
//! checks what packets claim: IP addresses, the bindings of ARP and neighbour discovery, DHCP clients, and the parts of a
//! router and of a DHCP server.
//!
//! # Model
//! Each rule is on or off. A frame is parsed once, then the rules look at it in this order, and the first that refuses it
//! names the drop:
//!
//! | rule | drop | refuses |
//! | --- | --- | --- |
//! | [`IpNospoof`] | `ip-spoof` | a source, ARP sender or neighbour that is not among the named addresses |
//! | [`DhcpNospoof`] | `dhcp-spoof` | a DHCP client that is not the member |
//! | router guard | `router-guard` | router advertisements and redirects: ICMPv6 134 and 137, ICMP 9 and 5 |
//! | DHCP guard | `dhcp-guard` | messages of a DHCP server, and all to a DHCP client's port |
//!
//! What cannot be read cannot be checked, and is refused by the first rule that is on:
//!
//! - a frame that ends in its tags, more tags than [`windlass_wire::parse()`] walks, or a tag of an old type (0x9100 to 0x9300);
//! - IP or ARP in an LLC frame;
//! - a packet that contradicts itself ([`Fault`]), or whose headers go beyond 1,920 bytes;
//! - a later IPv6 fragment that begins with an extension header: the transport header could lie in it.
//!
//! A later fragment has no transport header; its source is checked. Neighbour discovery and DHCP in fragments are refused.
//! Frames that are neither IP nor ARP pass (the `restricted` property refuses them), and so do frames below 14 bytes, which
//! the bridge drops as `runt`.
//!
//! Addresses that a member was given ([`crate::Learner`]) count as named. The learner reads the DHCP requests that pass all rules.
//!
//! # Ownership and lifetime
//! Rules are immutable and shared by all workers; a change makes new ones. The lock of a learner is taken once for each burst.
//!
//! # Limits
//! What is encrypted or encapsulated (ESP, IPv6 AH, IP in IP, GRE, MPLS, PPPoE) is checked by its outer header only.

use std::net::IpAddr;
use std::sync::Arc;

use windlass_frame::Verdict;
use windlass_stats::Drop;
use windlass_wire::parse::HEADERS_MAX;
use windlass_wire::{Fault, Fragment, Kind, Layers, ether, parse};

use crate::learn::{Learner, Methods};
use crate::stage::{IngressStage, Leaving, Plain};
use windlass_wire::dhcp::{SERVER, SERVER6};

mod address;
mod dhcp;

pub use address::IpNospoof;
pub(crate) use address::{interface_id, link_local};
pub use dhcp::DhcpNospoof;

use ether::proto;

/// ICMPv6 types of neighbour discovery (RFC 4861, section 4).
pub(crate) mod nd {
    pub(super) const ROUTER_SOLICITATION: u8 = 133;
    pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub(super) const REDIRECT: u8 = 137;
}
/// ICMP redirect (RFC 792) and router advertisement (RFC 1256).
const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER: u8 = 9;
/// Types of tags that were never standardized; some receivers look behind them.
const OLD_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];
/// Service access points of IEEE 802.2: IP (RFC 948), and SNAP (RFC 1042).
const SAP_IP: u8 = 0x06;
const SAP_SNAP: u8 = 0xaa;

/// What a member may send, beside what its bridge checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// IPv4, IPv6 and ARP only: [`Restricted`](crate::Restricted).
    pub restricted: bool,
    /// Which IP addresses it speaks for, if that is checked.
    pub addresses: Option<IpNospoof>,
    /// How it comes to further addresses, if they are checked.
    pub methods: Methods,
    /// Which DHCP client it is, if that is checked.
    pub clients: Option<DhcpNospoof>,
    /// It is no router.
    pub router_guard: bool,
    /// It is no DHCP server.
    pub dhcp_guard: bool,
}

impl Protection {
    /// The drop of the first rule of [`Guard`] that is on; none if all are off.
    fn first(&self) -> Option<Drop> {
        [
            (self.addresses.is_some(), Drop::IpSpoof),
            (self.clients.is_some(), Drop::DhcpSpoof),
            (self.router_guard, Drop::RouterGuard),
            (self.dhcp_guard, Drop::DhcpGuard),
        ]
        .into_iter()
        .find_map(|(is_on, reason)| is_on.then_some(reason))
    }
}

/// Addresses that [`Plain::Transport`] names at most: an address list and the link-local address, with room for small prefixes.
const PLAIN_SOURCES_MAX: usize = 64;

/// Bytes of a frame that have to be private before a rule can say anything: more than there are.
#[derive(Clone, Copy, Debug)]
struct Need(usize);

/// What becomes of a frame.
enum Judged {
    Passes,
    /// It passes, and a learner has to know of it.
    Asks,
    /// It passes if the learner lets the member have the address that it asks for.
    Claims,
    Drops(Drop),
}

/// Drops what the rules refuse.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The member's own addresses, as [`windlass_frame::Heads::src`] has them.
    macs: Arc<[u64]>,
    rules: Arc<Protection>,
    /// What it speaks for without a learner.
    addresses: Option<IpNospoof>,
    learner: Option<Arc<Learner>>,
    /// For what cannot be read.
    unread: Drop,
}

impl Guard {
    /// Holds the member of these link-layer addresses against the rules; none if none is on. A learner has the addresses that
    /// the rules name.
    pub fn new(
        macs: &Arc<[u64]>,
        rules: &Arc<Protection>,
        learner: Option<Arc<Learner>>,
    ) -> Option<Guard> {
        let addresses = rules.addresses.as_ref();
        Some(Guard {
            macs: macs.clone(),
            rules: rules.clone(),
            addresses: addresses.map(|named| named.with(macs, [])),
            learner: learner.filter(|_| addresses.is_some()),
            unread: rules.first()?,
        })
    }

    /// What becomes of a frame of `len` bytes, of which these are private.
    #[inline(never)]
    fn judge(
        &self,
        addresses: Option<&IpNospoof>,
        bytes: &[u8],
        len: u32,
        source: u64,
    ) -> Result<Judged, Need> {
        let layers = parse(bytes, len);
        if layers.need != 0 {
            return Err(Need(layers.need.into()));
        }
        let packet = Packet {
            bytes,
            layers,
            source,
            own: &self.macs,
        };
        let rules = &*self.rules;
        // What was learned is of the untagged VLAN.
        let named = match is_untagged(&packet.layers) {
            true => addresses,
            false => self.addresses.as_ref(),
        };
        if !is_readable(packet.bytes, &packet.layers) {
            return Ok(match len >= 14 {
                true => Judged::Drops(self.unread),
                false => Judged::Passes,
            });
        }
        if let Some(addresses) = named
            && !addresses.allow(&packet)?
        {
            let may_learn = self.learner.is_some() && is_untagged(&packet.layers);
            return Ok(match may_learn && IpNospoof::is_question(&packet)? {
                true => Judged::Claims,
                false => Judged::Drops(Drop::IpSpoof),
            });
        }
        if let Some(clients) = &rules.clients
            && !clients.allow(&packet)?
        {
            return Ok(Judged::Drops(Drop::DhcpSpoof));
        }
        if rules.router_guard && packet.is_of_router() {
            return Ok(Judged::Drops(Drop::RouterGuard));
        }
        if rules.dhcp_guard && dhcp::is_of_server(&packet)? {
            return Ok(Judged::Drops(Drop::DhcpGuard));
        }
        if self.learner.is_some() && matches!(packet.udp_to(), Some(SERVER | SERVER6)) {
            packet.datagram()?;
            return Ok(Judged::Asks);
        }
        let neighbour = nd::NEIGHBOUR_SOLICITATION..=nd::NEIGHBOUR_ADVERTISEMENT;
        if self.learner.is_some() && packet.icmp6().is_some_and(|n| neighbour.contains(&n)) {
            return Ok(Judged::Asks);
        }
        Ok(Judged::Passes)
    }
}

impl Guard {
    /// Decides about a burst of a member that speaks for these addresses, if that is checked. Of each frame that a learner has to know
    /// of, a bit, and of each that it decides about.
    fn decide(&self, named: Option<&IpNospoof>, frames: &mut Leaving<'_>) -> [u64; 2] {
        let (mut asking, mut claiming) = (0, 0);
        for i in 0..frames.len() {
            while let Some(meta) = frames.passing(i) {
                let (heads, len) = (frames.heads(), meta.len);
                let source = heads.src.get(i).copied().unwrap_or(0);
                if passes(named, heads.private(i), len, source) {
                    break;
                }
                match self.judge(named, heads.private(i), len, source) {
                    Ok(Judged::Passes) => break,
                    Ok(Judged::Asks) => {
                        asking |= 1 << i;
                        break;
                    }
                    Ok(Judged::Claims) => {
                        claiming |= 1 << i;
                        break;
                    }
                    Ok(Judged::Drops(reason)) => frames.decide(i, Verdict::drop(reason)),
                    Err(Need(upto)) if frames.deepen(i, upto) => {}
                    Err(Need(_)) => frames.decide(i, Verdict::drop(self.unread)),
                }
            }
        }
        [asking, claiming]
    }
}

impl IngressStage for Guard {
    /// As [`plain`] finds them, whatever the rules.
    fn plain(&self) -> Plain {
        let addresses = self.addresses.as_ref();
        match addresses.map(|named| named.each(PLAIN_SOURCES_MAX)) {
            _ if self.learner.is_some() => Plain::None,
            None => Plain::Transport(None),
            Some(Some(few)) => Plain::Transport(Some(few)),
            Some(None) => Plain::None,
        }
    }

    fn leave(&self, frames: &mut Leaving<'_>) {
        let Some(learner) = &self.learner else {
            self.decide(self.addresses.as_ref(), frames);
            return;
        };
        let now = frames.heads().now;
        let mut learned = learner.lock(now);
        let [asking, claiming] = self.decide(Some(learned.allowed()), frames);
        for i in (0..frames.len()).filter(|i| (asking | claiming) >> i & 1 != 0) {
            let Some(len) = frames.passing(i).map(|meta| meta.len) else {
                continue;
            };
            let bytes = frames.heads().private(i);
            if asking >> i & 1 != 0 {
                learned.sent(now, bytes, len);
            } else if !learned.claims(now, bytes, len) {
                frames.decide(i, Verdict::drop(Drop::IpSpoof));
            }
        }
    }
}

/// Whether a frame is what most are, and passes; false says nothing.
#[inline(always)]
fn passes(addresses: Option<&IpNospoof>, bytes: &[u8], len: u32, source: u64) -> bool {
    match plain(bytes, len) {
        Some(IpAddr::V4(source)) => addresses.is_none_or(|a| a.has_v4(source.to_bits())),
        Some(IpAddr::V6(source)) => addresses.is_none_or(|a| a.has_v6(source.to_bits())),
        None => match bytes.get(12..42) {
            Some([0x08, 0x06, arp @ ..]) if len >= 42 => {
                let arp = arp.first_chunk();
                arp.is_some_and(|arp| addresses.is_none_or(|a| a.allow_arp(arp, source)))
            }
            _ => false,
        },
    }
}

/// The source of what most packets are: a TCP segment or a UDP datagram that is not DHCP's, whole, over IPv4 without options or IPv6
/// without extension headers, in a frame without tags. None: it is something else, or has no source; [`Guard::judge`] gives the same for
/// all that this finds.
#[inline(always)]
fn plain(bytes: &[u8], len: u32) -> Option<IpAddr> {
    let head: &[u8; 54] = bytes.first_chunk()?;
    let &[.., a, b, c, d, _, _, _, _] = head.first_chunk::<34>()?;
    let (len, word) = (len as usize, |at: usize| {
        let word = head.get(at..).and_then(|word| word.first_chunk());
        word.map_or(0, |word| usize::from(u16::from_be_bytes(*word)))
    });
    let (source, proto, at, end, dhcp) = match u16::from_be_bytes([head[12], head[13]]) {
        ether::IPV4 if head[14] == 0x45 && word(20) & 0x3fff == 0 => {
            let end = word(16).wrapping_add(14);
            let source = IpAddr::from([a, b, c, d]);
            (source, head[23], 34, end, dhcp::PORTS)
        }
        ether::IPV6 if head[14] >> 4 == 6 => {
            let end = word(18).wrapping_add(54);
            let source: &[u8; 16] = head.get(22..38)?.first_chunk()?;
            (IpAddr::from(*source), head[20], 54, end, dhcp::PORTS6)
        }
        _ => return None,
    };
    let size = end.checked_sub(at).filter(|_| end <= len)?;
    let transport = bytes.get(at..)?;
    let is_whole = match proto {
        proto::TCP => {
            let header = transport
                .get(12)
                .map_or(0, |byte| usize::from(byte >> 4) << 2);
            (20..=size.min(transport.len())).contains(&header)
        }
        proto::UDP => {
            let &[_, _, p0, p1, l0, l1, ..] = transport.first_chunk::<8>()?;
            let length = usize::from(u16::from_be_bytes([l0, l1]));
            !dhcp.contains(&u16::from_be_bytes([p0, p1])) && (8..=size).contains(&length)
        }
        _ => false,
    };
    (is_whole && !source.is_unspecified()).then_some(source)
}

/// A frame as rules see it.
#[derive(Clone, Copy)]
struct Packet<'a> {
    bytes: &'a [u8],
    layers: Layers,
    /// The frame's source address.
    source: u64,
    /// The member's own addresses.
    own: &'a [u64],
}

impl<'a> Packet<'a> {
    /// The bytes at an offset from the network header; parsed headers are there.
    #[inline(always)]
    fn ip<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        let at = self.layers.l3_at().checked_add(at)?;
        self.bytes.get(at..)?.first_chunk()
    }

    /// The bytes at an offset from the transport header.
    #[inline(always)]
    fn transport<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        let at = self.layers.l4_at().checked_add(at)?;
        self.bytes.get(at..)?.first_chunk()
    }

    /// The destination port of a UDP datagram, or of the first part of one.
    #[inline(always)]
    fn udp_to(&self) -> Option<u16> {
        let is_udp = self.layers.l4 != 0 && self.layers.proto == proto::UDP;
        let port = self.transport(2).filter(|_| is_udp)?;
        Some(u16::from_be_bytes(*port))
    }

    /// The type of an ICMP message over IPv4, or of the first part of one.
    #[inline(always)]
    fn icmp(&self) -> Option<u8> {
        let is_icmp = self.layers.kind == Kind::Ipv4 && self.layers.proto == proto::ICMP;
        self.message_type(is_icmp)
    }

    /// The type of an ICMPv6 message over IPv6, or of the first part of one.
    #[inline(always)]
    fn icmp6(&self) -> Option<u8> {
        let is_icmp = self.layers.kind == Kind::Ipv6 && self.layers.proto == proto::ICMPV6;
        self.message_type(is_icmp)
    }

    #[inline(always)]
    fn message_type(&self, is_icmp: bool) -> Option<u8> {
        let [number] = self
            .transport(0)
            .filter(|_| is_icmp && self.layers.l4 != 0)?;
        Some(*number)
    }

    /// The transport header and what follows, `end` bytes of the frame in all; none if that is more than can be made private.
    fn message(&self, end: usize) -> Result<Option<&'a [u8]>, Need> {
        if end > HEADERS_MAX {
            return Ok(None);
        }
        match self.bytes.get(self.layers.l4_at()..end) {
            Some(message) => Ok(Some(message)),
            None => Err(Need(end)),
        }
    }

    /// What a whole UDP datagram carries; none if it is none or cannot be made private.
    fn datagram(&self) -> Result<Option<&'a [u8]>, Need> {
        let length = self.transport(4).map_or(0, |l| u16::from_be_bytes(*l));
        let end = self.layers.l4_at().checked_add(length.into());
        let (true, Some(end)) = (self.layers.is_udp(), end) else {
            return Ok(None);
        };
        let message = self.message(end)?;
        Ok(message.and_then(|message| message.get(8..)))
    }

    /// Whether only a router sends it.
    #[inline(always)]
    fn is_of_router(&self) -> bool {
        matches!(self.icmp(), Some(ICMP_REDIRECT | ICMP_ROUTER))
            || matches!(self.icmp6(), Some(nd::ROUTER_ADVERTISEMENT | nd::REDIRECT))
    }
}

/// Whether the headers of a frame hold together as far as rules ask, and no receiver might find IP or ARP in it as another type.
#[inline(always)]
pub fn is_readable(bytes: &[u8], layers: &Layers) -> bool {
    layers.fault == Fault::None
        && match layers.kind {
            Kind::Ipv4 => true,
            Kind::Ipv6 => layers.fragment != Fragment::Later || !is_extension(layers.proto),
            Kind::Arp => true,
            _ => !hides_ip(bytes, layers),
        }
}

/// Whether a receiver might find IP or ARP in a frame of another type.
#[cold]
fn hides_ip(bytes: &[u8], layers: &Layers) -> bool {
    let behind = bytes.get(layers.l3_at()..).unwrap_or_default();
    match layers.kind {
        Kind::Llc => match *behind {
            [SAP_IP, ..] | [_, SAP_IP, ..] => true,
            [dsap, _, _, 0, 0, 0, ..] if dsap & !1 == SAP_SNAP => true,
            _ => false,
        },
        _ => OLD_TAGS.contains(&layers.ethertype),
    }
}

/// Whether a frame is in its member's untagged VLAN: it has no tag, or one that says the priority alone.
#[inline(always)]
pub(crate) const fn is_untagged(layers: &Layers) -> bool {
    let is_priority = layers.tags == 1 && layers.tpid == ether::VLAN && layers.tci & 0xfff == 0;
    layers.tags == 0 || is_priority
}

/// Whether a header of this number is walked, and another follows it.
const fn is_extension(number: u8) -> bool {
    use proto::{AH, DEST_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
    matches!(number, HOP_BY_HOP | ROUTING | FRAGMENT | DEST_OPTIONS | AH)
}

/// A link-layer address as [`windlass_frame::Heads::src`] has it.
pub(crate) const fn word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}
