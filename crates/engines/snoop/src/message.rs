//! What routers and receivers of groups say: IGMP (RFC 1112, 2236, 3376), MLD (RFC 2710, 3810), PIM hello (RFC 7761), and the
//! advertisements of RFC 4286.
//!
//! Every length, both checksums, the hop limit and the addresses are checked before anything is believed. A message of a type
//! that nobody here knows is [`Message::Other`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use thiserror::Error;
use windlass_wire::checksum::{Sum, checksum, pseudo_v6};

const ETHERNET: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV6_HEADER: usize = 40;
const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
const PIM: u8 = 103;
const HOP_BY_HOP: u8 = 0;
/// PIM version 2, type 0.
const PIM_HELLO: u8 = 0x20;
/// Response time of a query of IGMPv1, which has no field for it.
const RESPONSE_V1: Duration = Duration::from_secs(10);
/// Query, done, reports and advertisements of MLD.
pub const MLD_TYPES: [u8; 5] = [130, 131, 132, 143, 151];

/// Of which protocol a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: IGMP.
    V4,
    /// IPv6: MLD.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// What a report says about one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Somebody receives it.
    Join,
    /// Somebody who speaks IGMPv1 receives it, and will not say when that ends.
    JoinV1,
    /// Somebody does not any more.
    Leave,
    /// Somebody does not receive some sources any more, and maybe none.
    Block,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A querier asks.
    Query {
        /// Whom it comes from; unspecified: from a switch that does not want to be the querier.
        source: IpAddr,
        /// About which group; `None`: about all.
        group: Option<IpAddr>,
        /// Within which time receivers answer.
        response: Duration,
        /// Others do not lower their timers for it.
        suppress: bool,
    },
    /// Receivers of groups.
    Reports(Vec<(IpAddr, Change)>),
    /// A multicast router is there.
    Router,
    /// Something that nobody here knows.
    Other,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Neither IPv4 nor IPv6, or neither IGMP nor MLD nor PIM.
    #[error("neither IGMP nor MLD nor PIM")]
    Foreign,
    /// It ends too early, or a length in it is wrong.
    #[error("{0} bytes, fewer than its headers say")]
    Truncated(usize),
    /// A part of a packet.
    #[error("a fragment")]
    Fragment,
    /// It comes from another link.
    #[error("hop limit {0}, not 1")]
    Hops(u8),
    /// A checksum does not hold.
    #[error("a wrong checksum")]
    Checksum,
    /// MLD without the router alert that RFC 3810, 5 asks for.
    #[error("no hop-by-hop options")]
    NoAlert,
    /// A source that it cannot come from.
    #[error("source {0}")]
    Source(IpAddr),
    /// A group that is none.
    #[error("{0} is not a group")]
    Group(IpAddr),
}

type Parsed = Result<Message, ParseError>;

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ParseError> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(ParseError::Truncated(bytes.len()))
}

fn byte(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes
        .get(at)
        .copied()
        .ok_or(ParseError::Truncated(bytes.len()))
}

fn word(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    chunk(bytes, at).map(u16::from_be_bytes)
}

/// Reads a frame without tags.
///
/// # Errors
/// What is wrong with it.
pub fn parse(frame: &[u8]) -> Result<(Family, Message), ParseError> {
    let packet = frame.get(ETHERNET..).unwrap_or(&[]);
    match word(frame, ETHERNET - 2)? {
        IPV4 => Ok((Family::V4, parse_v4(packet)?)),
        IPV6 => Ok((Family::V6, parse_v6(packet)?)),
        _ => Err(ParseError::Foreign),
    }
}

fn parse_v4(packet: &[u8]) -> Parsed {
    let first = byte(packet, 0)?;
    let header = usize::from(first & 0xf).saturating_mul(4);
    let total = usize::from(word(packet, 2)?);
    if first >> 4 != 4 || header < 20 || total < header {
        return Err(ParseError::Truncated(packet.len()));
    }
    let whole = packet
        .get(..total)
        .ok_or(ParseError::Truncated(packet.len()))?;
    let (head, body) = whole
        .split_at_checked(header)
        .ok_or(ParseError::Truncated(total))?;
    if checksum(head) != 0 {
        return Err(ParseError::Checksum);
    }
    if word(head, 6)? & 0x3fff != 0 {
        return Err(ParseError::Fragment);
    }
    let source = Ipv4Addr::from(chunk::<4>(head, 12)?);
    if source.is_multicast() || source.is_broadcast() {
        return Err(ParseError::Source(source.into()));
    }
    match (byte(head, 9)?, byte(head, 8)?) {
        (IGMP | PIM, hops) if hops != 1 => Err(ParseError::Hops(hops)),
        (IGMP, _) if checksum(body) != 0 => Err(ParseError::Checksum),
        (IGMP, _) => igmp(source, body),
        (PIM, _) => pim(body, checksum(body)),
        _ => Err(ParseError::Foreign),
    }
}

fn parse_v6(packet: &[u8]) -> Parsed {
    let length = usize::from(word(packet, 4)?);
    let end = IPV6_HEADER.saturating_add(length);
    let whole = packet
        .get(..end)
        .ok_or(ParseError::Truncated(packet.len()))?;
    if byte(whole, 0)? >> 4 != 6 {
        return Err(ParseError::Foreign);
    }
    let (source, target) = (chunk::<16>(whole, 8)?, chunk::<16>(whole, 24)?);
    let (mut next, mut at) = (byte(whole, 6)?, IPV6_HEADER);
    let is_alerted = next == HOP_BY_HOP;
    if is_alerted {
        next = byte(whole, at)?;
        let options = usize::from(byte(whole, at.saturating_add(1))?);
        at = at.saturating_add(options.saturating_add(1).saturating_mul(8));
    }
    let body = whole.get(at..).ok_or(ParseError::Truncated(end))?;
    let hops = byte(whole, 7)?;
    if hops != 1 {
        return Err(ParseError::Hops(hops));
    }
    let from = Ipv6Addr::from(source);
    if from.is_multicast() {
        return Err(ParseError::Source(from.into()));
    }
    let mut sum = pseudo_v6(&source, &target, next, body.len() as u32);
    sum.add_bytes(body);
    match next {
        PIM => pim(body, sum.finish()),
        ICMPV6 if !is_alerted => Err(ParseError::NoAlert),
        ICMPV6 if sum.finish() != 0 => Err(ParseError::Checksum),
        ICMPV6 => mld(from, body),
        _ => Err(ParseError::Foreign),
    }
}

fn pim(body: &[u8], sum: u16) -> Parsed {
    match (byte(body, 0)?, sum) {
        (PIM_HELLO, 0) => Ok(Message::Router),
        (PIM_HELLO, _) => Err(ParseError::Checksum),
        _ => Ok(Message::Other),
    }
}

fn igmp(source: Ipv4Addr, body: &[u8]) -> Parsed {
    let group = || chunk::<4>(body, 4).map(|group| IpAddr::V4(group.into()));
    let one = |change| Ok(Message::Reports(vec![(checked(group()?)?, change)]));
    match byte(body, 0)? {
        0x11 => {
            let asked = group()?;
            let (response, suppress) = match (body.len(), byte(body, 1)?) {
                (8, 0) => (RESPONSE_V1, false),
                (0..12, code) => (tenths(u64::from(code)), false),
                (_, code) => (tenths(exponential(code)), byte(body, 8)? & 8 != 0),
            };
            query(source.into(), asked, response, suppress)
        }
        0x12 => one(Change::JoinV1),
        0x16 => one(Change::Join),
        0x17 => one(Change::Leave),
        0x22 => records(body, |at| Ok((IpAddr::V4(chunk::<4>(body, at)?.into()), 4))),
        0x30 => Ok(Message::Router),
        _ => Ok(Message::Other),
    }
}

fn mld(source: Ipv6Addr, body: &[u8]) -> Parsed {
    let group = || chunk::<16>(body, 8).map(|group| IpAddr::V6(group.into()));
    let one = |change| Ok(Message::Reports(vec![(checked(group()?)?, change)]));
    match byte(body, 0)? {
        130 => {
            if !source.is_unicast_link_local() {
                return Err(ParseError::Source(source.into()));
            }
            let code = word(body, 4)?;
            let (ms, suppress) = match body.len() {
                0..28 => (u64::from(code), false),
                _ => (exponential_16(code), byte(body, 24)? & 8 != 0),
            };
            query(source.into(), group()?, Duration::from_millis(ms), suppress)
        }
        131 => one(Change::Join),
        132 => one(Change::Leave),
        143 => records(body, |at| {
            Ok((IpAddr::V6(chunk::<16>(body, at)?.into()), 16))
        }),
        151 => Ok(Message::Router),
        _ => Ok(Message::Other),
    }
}

fn query(source: IpAddr, group: IpAddr, response: Duration, suppress: bool) -> Parsed {
    let group = match group.is_unspecified() {
        true => None,
        false => Some(checked(group)?),
    };
    Ok(Message::Query {
        source,
        group,
        response,
        suppress,
    })
}

fn checked(group: IpAddr) -> Result<IpAddr, ParseError> {
    match group.is_multicast() {
        true => Ok(group),
        false => Err(ParseError::Group(group)),
    }
}

fn tenths(n: u64) -> Duration {
    Duration::from_millis(n.saturating_mul(100))
}

/// RFC 3376, 4.1.1.
fn exponential(code: u8) -> u64 {
    match code {
        0..128 => u64::from(code),
        _ => u64::from(code & 0xf | 0x10).unbounded_shl(u32::from(code >> 4 & 7).saturating_add(3)),
    }
}

/// RFC 3810, 5.1.3.
fn exponential_16(code: u16) -> u64 {
    match code {
        0..32768 => u64::from(code),
        _ => u64::from(code & 0xfff | 0x1000)
            .unbounded_shl(u32::from(code >> 12 & 7).saturating_add(3)),
    }
}

/// The group records of IGMPv3 and MLDv2 reports: type, words behind the sources, sources, group, sources.
fn records(body: &[u8], group: impl Fn(usize) -> Result<(IpAddr, usize), ParseError>) -> Parsed {
    let mut reports = Vec::new();
    let mut at = 8_usize;
    for _ in 0..word(body, 6)? {
        let kind = byte(body, at)?;
        let more = usize::from(byte(body, at.saturating_add(1))?).saturating_mul(4);
        let sources = usize::from(word(body, at.saturating_add(2))?);
        let (group, size) = group(at.saturating_add(4))?;
        let change = match (kind, sources) {
            (2 | 4, _) => Some(Change::Join),
            (1 | 3 | 5, 1..) => Some(Change::Join),
            (3, 0) => Some(Change::Leave),
            (6, 1..) => Some(Change::Block),
            _ => None,
        };
        if let Some(change) = change {
            reports.push((checked(group)?, change));
        }
        let tail = sources.saturating_mul(size).saturating_add(more);
        at = at
            .saturating_add(4)
            .saturating_add(size)
            .saturating_add(tail);
        if at > body.len() {
            return Err(ParseError::Truncated(body.len()));
        }
    }
    Ok(Message::Reports(reports))
}

/// What a querier says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The address of its bridge.
    pub mac: [u8; 6],
    /// The source of its queries over IPv4.
    pub address: Ipv4Addr,
    /// Robustness variable.
    pub robustness: u8,
    /// Time from one query to the next, in seconds.
    pub interval_s: u32,
}

impl Asker {
    /// The source of its queries over IPv6: a link-local address made of the bridge's as in RFC 4291, appendix A, but with fffd for fffe: the
    /// bridge's address is a member's, too, which has that one.
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac;
        Ipv6Addr::from([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfd,
            d,
            e,
            f,
        ])
    }

    /// Its source in a family.
    pub fn source(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.address.into(),
            Family::V6 => self.link_local().into(),
        }
    }

    /// A query of version 3 (MLD: 2), about one group or all.
    pub fn query(&self, family: Family, group: Option<IpAddr>, response: Duration) -> Vec<u8> {
        match (family, group) {
            (Family::V4, Some(IpAddr::V4(group))) => self.igmp(group, group, response),
            (Family::V6, Some(IpAddr::V6(group))) => self.mld(group, group, response),
            (Family::V4, _) => {
                self.igmp(Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::UNSPECIFIED, response)
            }
            (Family::V6, _) => self.mld(
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
                Ipv6Addr::UNSPECIFIED,
                response,
            ),
        }
    }

    fn ethernet(&self, to: [u8; 6], kind: u16) -> Vec<u8> {
        [&to[..], &self.mac, &kind.to_be_bytes()].concat()
    }

    /// Robustness and interval, as queries of version 3 have them.
    fn periods(&self) -> [u8; 2] {
        [self.robustness & 7, encoded(self.interval_s)]
    }

    fn igmp(&self, to: Ipv4Addr, group: Ipv4Addr, response: Duration) -> Vec<u8> {
        let code = encoded((response.as_millis() / 100) as u32);
        let mut body = vec![0x11, code, 0, 0];
        body.extend(group.octets());
        body.extend(self.periods());
        body.extend([0, 0]);
        put(&mut body, 2, checksum);
        // Internetwork control, router alert (RFC 2113).
        let mut head = vec![0x46, 0xc0, 0, 36, 0, 0, 0x40, 0, 1, IGMP, 0, 0];
        head.extend(self.address.octets());
        head.extend(to.octets());
        head.extend([0x94, 4, 0, 0]);
        put(&mut head, 10, checksum);
        let [_, b, c, d] = to.octets();
        let frame = self.ethernet([1, 0, 0x5e, b & 0x7f, c, d], IPV4);
        [frame, head, body].concat()
    }

    fn mld(&self, to: Ipv6Addr, group: Ipv6Addr, response: Duration) -> Vec<u8> {
        let [high, low] = (response.as_millis().min(32767) as u16).to_be_bytes();
        let mut body = vec![130, 0, 0, 0, high, low, 0, 0];
        body.extend(group.octets());
        body.extend(self.periods());
        body.extend([0, 0]);
        let (from, target) = (self.link_local().octets(), to.octets());
        let length = body.len() as u32;
        put(&mut body, 2, |body| {
            let mut sum: Sum = pseudo_v6(&from, &target, ICMPV6, length);
            sum.add_bytes(body);
            sum.finish()
        });
        // Hop-by-hop options: router alert (RFC 2711), padding.
        let mut head = vec![0x60, 0, 0, 0, 0, 36, HOP_BY_HOP, 1];
        head.extend(from);
        head.extend(target);
        head.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        let [.., a, b, c, d] = target;
        let frame = self.ethernet([0x33, 0x33, a, b, c, d], IPV6);
        [frame, head, body].concat()
    }
}

fn put(bytes: &mut [u8], at: usize, sum: impl Fn(&[u8]) -> u16) {
    let sum = sum(bytes).to_be_bytes();
    if let Some(field) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        *field = sum;
    }
}

/// The largest code of RFC 3376, 4.1.1 and 4.1.7 that is at most `value`.
fn encoded(value: u32) -> u8 {
    if value < 128 {
        return value as u8;
    }
    let code = (128..=255_u8).rev();
    let fits = |code: &u8| exponential(*code) <= u64::from(value);
    code.into_iter().find(fits).unwrap_or(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker() -> Asker {
        Asker {
            mac: [2, 0, 0, 0, 0, 7],
            address: Ipv4Addr::new(192, 0, 2, 1),
            robustness: 2,
            interval_s: 125,
        }
    }

    /// Our queries are read back as what they were made as, and every other byte of them counts.
    #[test]
    fn queries_round_trip() {
        let groups = ["239.1.2.3", "ff05::1:3"].map(|g| g.parse::<IpAddr>().unwrap());
        for group in groups.into_iter().map(Some).chain([None, None]) {
            for family in Family::ALL {
                if group.is_some_and(|g| Family::of(g) != family) {
                    continue;
                }
                let response = Duration::from_secs(10);
                let frame = asker().query(family, group, response);
                let source = asker().source(family);
                let query = Message::Query {
                    source,
                    group,
                    response,
                    suppress: false,
                };
                assert_eq!(parse(&frame), Ok((family, query.clone())));
                for cut in 0..frame.len() {
                    assert!(parse(&frame[..cut]).is_err(), "{cut} bytes");
                }
                for at in ETHERNET..frame.len() {
                    let mut other = frame.clone();
                    other[at] ^= 0x40;
                    let is_same = parse(&other) == Ok((family, query.clone()));
                    // Traffic class, flow label and options of IPv6 are under no checksum.
                    let free = family == Family::V6 && (at < 18 || (56..62).contains(&at));
                    assert!(!is_same || free, "byte {at} of {family:?}");
                }
            }
        }
    }

    /// Codes of times, both ways.
    #[test]
    fn times_are_coded() {
        for value in [0, 1, 100, 127, 128, 136, 255, 1000, 31743] {
            let back = exponential(encoded(value));
            let value = u64::from(value);
            assert!(back <= value && back + back / 16 >= value, "{value} {back}");
        }
        assert_eq!(encoded(u32::MAX), 255);
        assert_eq!(exponential(0x8f), 0x1f << 3);
        assert_eq!(exponential_16(0x8001), 0x1001 << 3);
    }
}
