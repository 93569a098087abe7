//! Which IP addresses a member speaks for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_wire::{Fragment, Kind};

use super::{Need, Packet, nd, word};
use windlass_wire::dhcp::SERVER;

/// An ARP packet for IPv4 over Ethernet, up to the high byte of its operation (RFC 826).
const ARP: [u8; 7] = [0, 1, 8, 0, 6, 4, 0];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// Options with a link-layer address, one unit of 8 bytes long (RFC 4861, section 4.6.1).
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// ICMPv6 reports of multicast listeners (RFC 2710, RFC 3810).
const REPORT: u8 = 131;
const DONE: u8 = 132;
const REPORT_V2: u8 = 143;
/// The upper 96 bits of an IPv4-mapped address (RFC 4291, section 2.5.5.2).
const MAPPED: u128 = 0xffff;

/// The addresses and prefixes that a member speaks for, beside the link-local addresses made of its own link-layer addresses.
///
/// | packet | refused unless |
/// | --- | --- |
/// | IPv4 | the source is named; 0.0.0.0: to a DHCP server |
/// | ARP | it is a request or a reply for IPv4 over Ethernet, the sender's link-layer address is the frame's source, its IP address is named; 0.0.0.0: a request for a named address (RFC 5227) |
/// | IPv6 | the source is named, and is no IPv4-mapped address; `::`: duplicate address detection of a named address, a router solicitation, or a report of multicast listeners, all without a link-layer address |
/// | neighbour discovery | it is no fragment, its options hold together, and link-layer addresses in them are the frame's source; an advertisement: its target is named |
///
/// A redirect may have another's link-layer address in it: it is the router guard's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpNospoof {
    /// First and last addresses, ascending, apart from each other.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl IpNospoof {
    /// These prefixes: an address and the number of its bits that count; a number above those of the address is as good as that.
    pub fn new(prefixes: impl IntoIterator<Item = (IpAddr, u8)>) -> IpNospoof {
        let mut rule = IpNospoof::default();
        for (address, bits) in prefixes {
            let bits = u32::from(bits);
            match address {
                IpAddr::V4(address) => {
                    let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
                    let first = address.to_bits() & !rest;
                    rule.v4.push((first, first | rest));
                }
                IpAddr::V6(address) => {
                    let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
                    let first = address.to_bits() & !rest;
                    rule.v6.push((first, first | rest));
                }
            }
        }
        (rule.v4, rule.v6) = (apart(rule.v4), apart(rule.v6));
        rule
    }

    /// Single addresses among them.
    pub fn singles(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v4 = self.v4.iter().filter(|(first, last)| first == last);
        let v6 = self.v6.iter().filter(|(first, last)| first == last);
        let v4 = v4.map(|(address, _)| Ipv4Addr::from_bits(*address).into());
        v4.chain(v6.map(|(address, _)| Ipv6Addr::from_bits(*address).into()))
    }

    /// All addresses that a packet's source may be; none if there are more than `max`.
    pub(super) fn each(&self, max: usize) -> Option<Vec<IpAddr>> {
        let v4 = self.v4.iter().flat_map(|&(first, last)| first..=last);
        let v6 = self.v6.iter().flat_map(|&(first, last)| first..=last);
        let v4 = v4.map(|address| IpAddr::from(Ipv4Addr::from_bits(address)));
        let v6 = v6.map(|address| IpAddr::from(Ipv6Addr::from_bits(address)));
        let mut all: Vec<_> = v4.chain(v6).take(max.saturating_add(1)).collect();
        if all.len() > max {
            return None;
        }
        all.retain(|address| match address {
            IpAddr::V4(v4) => !v4.is_unspecified(),
            IpAddr::V6(v6) => !v6.is_unspecified() && v6.to_ipv4_mapped().is_none(),
        });
        Some(all)
    }

    /// These and others: prefixes, and the link-local addresses made of link-layer addresses.
    pub(crate) fn with(
        &self,
        macs: &[u64],
        prefixes: impl IntoIterator<Item = (IpAddr, u8)>,
    ) -> IpNospoof {
        let local = macs.iter().map(|mac| (link_local(*mac).into(), 128));
        let more = IpNospoof::new(local.chain(prefixes));
        IpNospoof {
            v4: apart([self.v4.as_slice(), &more.v4].concat()),
            v6: apart([self.v6.as_slice(), &more.v6].concat()),
        }
    }

    #[inline(always)]
    pub(super) fn has_v4(&self, address: u32) -> bool {
        has(&self.v4, address)
    }

    #[inline(always)]
    pub(super) fn has_v6(&self, address: u128) -> bool {
        address >> 32 != MAPPED && has(&self.v6, address)
    }

    #[inline(always)]
    pub(super) fn allow(&self, packet: &Packet<'_>) -> Result<bool, Need> {
        match packet.layers.kind {
            Kind::Ipv4 => {
                let source = packet.ip(12).map_or(0, |a| u32::from_be_bytes(*a));
                Ok(match source {
                    0 => packet.layers.is_udp() && packet.udp_to() == Some(SERVER),
                    _ => self.has_v4(source),
                })
            }
            Kind::Ipv6 => {
                let source = packet.ip(8).map_or(0, |a| u128::from_be_bytes(*a));
                match packet.icmp6() {
                    None => Ok(source != 0 && self.has_v6(source)),
                    Some(number) => self.allow_icmp6(packet, source, number),
                }
            }
            Kind::Arp => Ok(packet
                .ip(0)
                .is_some_and(|arp| self.allow_arp(arp, packet.source))),
            _ => Ok(true),
        }
    }

    /// ARP of a member whose frame comes from `source`.
    #[inline(always)]
    pub(super) fn allow_arp(&self, arp: &[u8; 28], source: u64) -> bool {
        let &[h0, h1, p0, p1, hlen, plen, high, operation, ref rest @ ..] = arp;
        let &[
            a,
            b,
            c,
            d,
            e,
            f,
            s0,
            s1,
            s2,
            s3,
            _,
            _,
            _,
            _,
            _,
            _,
            t0,
            t1,
            t2,
            t3,
        ] = rest;
        let (sender, target) = (
            u32::from_be_bytes([s0, s1, s2, s3]),
            u32::from_be_bytes([t0, t1, t2, t3]),
        );
        [h0, h1, p0, p1, hlen, plen, high] == ARP
            && word([a, b, c, d, e, f]) == source
            && match operation {
                REQUEST if sender == 0 => target != 0 && self.has_v4(target),
                REQUEST | REPLY => sender != 0 && self.has_v4(sender),
                _ => false,
            }
    }

    /// An ICMPv6 message, or the first part of one.
    fn allow_icmp6(&self, packet: &Packet<'_>, source: u128, number: u8) -> Result<bool, Need> {
        let is_nd = (nd::ROUTER_SOLICITATION..=nd::REDIRECT).contains(&number);
        if source != 0 && !self.has_v6(source) {
            return Ok(false);
        }
        if !is_nd {
            return Ok(source != 0 || matches!(number, REPORT | DONE | REPORT_V2));
        }
        if packet.layers.fragment != Fragment::No {
            return Ok(false);
        }
        let Some(message) = packet.message(packet.layers.end as usize)? else {
            return Ok(false);
        };
        Ok(self.allow_discovery(packet, source != 0, number, message))
    }

    /// Whether a packet asks if anybody has an address (RFC 4862, section 5.4.2), whichever that is.
    pub(super) fn is_question(packet: &Packet<'_>) -> Result<bool, Need> {
        let source = packet
            .ip::<16>(8)
            .filter(|_| packet.icmp6() == Some(nd::NEIGHBOUR_SOLICITATION));
        if source != Some(&[0; 16]) || packet.layers.fragment != Fragment::No {
            return Ok(false);
        }
        let message = packet.message(packet.layers.end as usize)?;
        let options = message.and_then(|message| message.get(24..));
        Ok(options.is_some_and(|options| options_allow(options, None)))
    }

    /// A message of neighbour discovery (RFC 4861, sections 4 and 6.1, 7.1).
    fn allow_discovery(
        &self,
        packet: &Packet<'_>,
        is_specified: bool,
        number: u8,
        message: &[u8],
    ) -> bool {
        let target = message.get(8..).and_then(|target| target.first_chunk());
        let target = target.map_or(0, |target| u128::from_be_bytes(*target));
        let has_target = || target != 0 && self.has_v6(target);
        let (header, may_be) = match number {
            nd::ROUTER_SOLICITATION => (8, true),
            nd::ROUTER_ADVERTISEMENT => (16, is_specified),
            nd::NEIGHBOUR_SOLICITATION => (24, is_specified || has_target()),
            nd::NEIGHBOUR_ADVERTISEMENT => (24, is_specified && has_target()),
            _ => return is_specified && message.len() >= 40,
        };
        may_be
            && message.get(header..).is_some_and(|options| {
                options_allow(options, is_specified.then_some(packet.source))
            })
    }
}

/// The same addresses in ranges that are ascending and apart. Of two prefixes that meet, one has the other within it.
fn apart<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    ranges.dedup_by(|next, before| next.0 <= before.1);
    ranges
}

#[inline(always)]
fn has<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let at = ranges.partition_point(|(first, _)| *first <= address);
    let before = at.checked_sub(1).and_then(|at| ranges.get(at));
    before.is_some_and(|(_, last)| address <= *last)
}

/// Whether options hold together, and each link-layer address among them is this one; none: there may be none.
fn options_allow(mut options: &[u8], link: Option<u64>) -> bool {
    while !options.is_empty() {
        let &[kind, units, ..] = options else {
            return false;
        };
        let size = usize::from(units).wrapping_mul(8);
        let Some((option, rest)) = options.split_at_checked(size).filter(|_| size > 0) else {
            return false;
        };
        if matches!(kind, SOURCE_LINK | TARGET_LINK) {
            let &[_, _, a, b, c, d, e, f] = option else {
                return false;
            };
            if link != Some(word([a, b, c, d, e, f])) {
                return false;
            }
        }
        options = rest;
    }
    true
}

/// The interface identifier that is made of a link-layer address (RFC 4291, appendix A).
pub(crate) const fn interface_id(mac: u64) -> u64 {
    let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The link-local address with that identifier.
pub(crate) fn link_local(mac: u64) -> Ipv6Addr {
    (0xfe80 << 112 | u128::from(interface_id(mac))).into()
}
