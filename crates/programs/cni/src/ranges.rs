//! Networks, ranges of addresses, and which address is given next.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use windlass_wire::number;

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Net {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix; those of a host if none was written.
    pub prefix: u8,
}

impl FromStr for Net {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let wrong = || format!("\"{text}\" is not an address with a prefix");
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let bits = bits(ip);
        let prefix = prefix.map_or(Ok(bits), |prefix| prefix.parse().map_err(|_| wrong()))?;
        match prefix <= bits {
            true => Ok(Self { ip, prefix }),
            false => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Net {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Net> for String {
    fn from(net: Net) -> Self {
        net.to_string()
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// Bits of an address of this family.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// A part of a network, as it is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(Net),
    Part(Part),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Part {
    subnet: Net,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

/// Addresses that may be given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Range {
    subnet: Net,
    start: u128,
    end: u128,
    /// The next hop of routes; nobody gets it.
    pub gateway: Option<IpAddr>,
}

impl TryFrom<Written> for Range {
    type Error = String;
    fn try_from(written: Written) -> Result<Self, String> {
        let part = match written {
            Written::Part(part) => part,
            Written::Whole(subnet) => Part {
                subnet,
                range_start: None,
                range_end: None,
                gateway: None,
            },
        };
        let subnet = part.subnet;
        let host_bits = u32::from(bits(subnet.ip) - subnet.prefix);
        let mask = 1u128
            .checked_shl(host_bits)
            .map_or(u128::MAX, |size| size - 1);
        let (first, last) = (number::of(subnet.ip) & !mask, number::of(subnet.ip) | mask);
        let within = |ip: IpAddr| {
            let is_within = bits(ip) == bits(subnet.ip) && (first..=last).contains(&number::of(ip));
            is_within
                .then(|| number::of(ip))
                .ok_or_else(|| format!("{ip} is not in {subnet}"))
        };
        // The network's own address and, of IPv4, everybody's; a network of two has neither (RFC 3021).
        let has_ends = host_bits > 1;
        let lowest = if has_ends { first + 1 } else { first };
        let highest = if has_ends && subnet.ip.is_ipv4() {
            last - 1
        } else {
            last
        };
        part.gateway.map(within).transpose()?;
        let range = Self {
            subnet,
            start: part.range_start.map_or(Ok(lowest), within)?,
            end: part.range_end.map_or(Ok(highest), within)?,
            gateway: part.gateway,
        };
        match range.start <= range.end {
            true => Ok(range),
            false => Err(format!("the range in {subnet} ends before it starts")),
        }
    }
}

/// Ranges of which one address is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct RangeSet(Vec<Range>);

/// An address that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// It, with the prefix of its network.
    pub net: Net,
    /// The next hop of routes there.
    pub gateway: Option<IpAddr>,
}

impl RangeSet {
    /// Whether there is no range in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// From the first to the last address of each range, without its gateway.
    pub fn bounds(&self) -> Vec<(IpAddr, IpAddr)> {
        self.0.iter().flat_map(Range::bounds).collect()
    }

    /// This address, if it is in the set.
    pub fn find(&self, ip: IpAddr) -> Option<Pick> {
        let mut ranges = self.0.iter();
        let range = ranges.find(|range| {
            let is_like = ip.is_ipv4() == range.subnet.ip.is_ipv4();
            is_like
                && (range.start..=range.end).contains(&number::of(ip))
                && range.gateway != Some(ip)
        });
        range.map(|range| range.pick(ip))
    }

    /// The first free address after the last one that was given, so that one that was given back rests as long as there are
    /// others. At most `taken` addresses are not free.
    pub fn next(
        &self,
        last: Option<IpAddr>,
        taken: usize,
        is_free: impl Fn(IpAddr) -> bool,
    ) -> Option<Pick> {
        let before = last.and_then(|last| self.0.iter().position(|range| range.has(last)));
        let (start, after) = (before.unwrap_or(0), before.and(last));
        let (earlier, later) = self.0.split_at_checked(start)?;
        // The range of the last one comes first for what is after it, and again, at the end, for the rest.
        let turns = later.iter().chain(earlier).chain(later.first());
        for (turn, range) in turns.enumerate() {
            let from = match (turn, after) {
                (0, Some(after)) => number::of(after).saturating_add(1),
                _ => range.start,
            };
            // Besides those that are taken there is the gateway.
            let candidates = (from..=range.end).take(taken.saturating_add(2));
            let mut candidates = candidates.map(|number| number::address(number, range.subnet.ip));
            let found = candidates.find(|ip| range.gateway != Some(*ip) && is_free(*ip));
            if let Some(ip) = found {
                return Some(range.pick(ip));
            }
        }
        None
    }
}

impl Range {
    fn has(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.subnet.ip.is_ipv4()
            && (self.start..=self.end).contains(&number::of(ip))
    }

    fn bounds(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        let gateway = self.gateway.filter(|ip| self.has(*ip)).map(number::of);
        let halves = match gateway {
            None => [Some((self.start, self.end)), None],
            Some(at) => [
                at.checked_sub(1).map(|end| (self.start, end)),
                at.checked_add(1).map(|start| (start, self.end)),
            ],
        };
        let halves = halves
            .into_iter()
            .flatten()
            .filter(|(start, end)| start <= end);
        let like = self.subnet.ip;
        halves.map(move |(start, end)| (number::address(start, like), number::address(end, like)))
    }

    fn pick(&self, ip: IpAddr) -> Pick {
        Pick {
            net: Net {
                ip,
                prefix: self.subnet.prefix,
            },
            gateway: self.gateway,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn set(json: serde_json::Value) -> RangeSet {
        serde_json::from_value(json).expect("a set")
    }

    /// Each address is given once before any is given again, and never the network's, everybody's or the gateway's.
    #[test]
    fn all_are_given_in_turn() {
        let set = set(json!([
            {"subnet": "10.0.0.0/29", "gateway": "10.0.0.3"},
            {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.10", "rangeEnd": "10.0.1.12"}
        ]));
        let mut given = BTreeSet::new();
        let mut last = None;
        for _ in 0..8 {
            let pick = set.next(last, given.len(), |ip| !given.contains(&ip));
            let ip = pick.expect("a free one").net.ip;
            assert!(given.insert(ip), "{ip}");
            last = Some(ip);
        }
        let text: Vec<_> = given.iter().map(ToString::to_string).collect();
        let first = ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        assert_eq!(text[..5], first);
        assert_eq!(text[5..], ["10.0.1.10", "10.0.1.11", "10.0.1.12"]);
        assert_eq!(set.next(last, 8, |ip| !given.contains(&ip)), None);
        let back: IpAddr = "10.0.0.2".parse().expect("an address");
        let only = set.next(last, 7, |ip| ip == back);
        assert_eq!(
            only.map(|pick| pick.net.to_string()),
            Some("10.0.0.2/29".into())
        );
    }

    /// A registry is told all but the gateways.
    #[test]
    fn bounds_have_no_gateway() {
        let set = set(json!([
            {"subnet": "10.0.0.0/29", "gateway": "10.0.0.3"},
            {"subnet": "10.0.1.0/30", "gateway": "10.0.1.1"},
            {"subnet": "10.0.2.0/31", "rangeStart": "10.0.2.1", "gateway": "10.0.2.1"},
            {"subnet": "fd00::/126", "gateway": "fd00::0"}
        ]));
        let bounds = set.bounds().into_iter();
        let text: Vec<_> = bounds
            .map(|(first, last)| format!("{first} {last}"))
            .collect();
        let wanted = [
            "10.0.0.1 10.0.0.2",
            "10.0.0.4 10.0.0.6",
            "10.0.1.2 10.0.1.2",
            "fd00::1 fd00::3",
        ];
        assert_eq!(text, wanted);
    }

    /// A range is a part of its network.
    #[test]
    fn bad_ranges_are_refused() {
        for bad in [
            json!("10.0.0.0/33"),
            json!("net"),
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}),
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.1"}),
            json!({"subnet": "10.0.0.0/24", "gateway": "fd00::1"}),
            json!({"subnet": "10.0.0.0/24", "start": "10.0.0.1"}),
        ] {
            assert!(
                serde_json::from_value::<Range>(bad.clone()).is_err(),
                "{bad}"
            );
        }
        let all = set(json!(["::/0", "10.0.0.0/31"]));
        assert!(all.next(None, 0, |_| true).is_some());
        assert!(all.find("10.0.0.0".parse().expect("an address")).is_some());
    }
}
