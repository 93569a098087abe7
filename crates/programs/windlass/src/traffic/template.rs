//! Frames that are made: UDP over IPv4 or IPv6, with a [`Mark`] and zeros behind it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use windlass_api::{MacAddr, Name, Vnic};
use windlass_wire::build::{Ends, Link, udp_frame};
use windlass_wire::checksum::Sum;
use windlass_wire::ether::proto;

use super::device::Open;
use super::mark::{MARK_BYTES, Mark};
use super::{Frames, Next};
use crate::Session;
use crate::failure::Failure;
use crate::objects::suggest;
use crate::options::GenArgs;

/// Longest frame: an Ethernet header and the longest IPv4 packet.
const FRAME_MAX: u32 = 14 + 65_535;
/// Addresses for benchmarks (RFC 2544, RFC 5180).
const V4: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
const V6: (Ipv6Addr, Ipv6Addr) = (
    Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2),
);
/// Packets of 40, 576 and 1500 bytes as 7 : 4 : 1, in frames; those of 40 are padded.
const IMIX: [u32; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];

/// How long frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Evenly distributed, from and to these bytes.
    Range(u32, u32),
    /// [`IMIX`].
    Imix,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Sizes::Imix);
        }
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if min <= max && max <= FRAME_MAX => Ok(Sizes::Range(min, max)),
            _ => Err(format!(
                "not a number of bytes up to {FRAME_MAX}, MIN-MAX, or imix"
            )),
        }
    }
}

impl Sizes {
    /// The least and the most.
    fn bounds(self) -> (u32, u32) {
        match self {
            Sizes::Range(min, max) => (min, max),
            Sizes::Imix => (60, 1514),
        }
    }

    /// The bytes of a frame, by its number: the same in each run.
    fn of(self, number: u64) -> u32 {
        match self {
            Sizes::Range(min, max) => {
                let random = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
                let span = u64::from(max - min) + 1;
                min + ((u64::from(random) * span) >> 32) as u32
            }
            Sizes::Imix => IMIX[(number % IMIX.len() as u64) as usize],
        }
    }
}

/// An address, or the VNIC that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Station {
    Mac(MacAddr),
    Vnic(Name),
}

impl FromStr for Station {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text.parse(), text.parse()) {
            (Ok(mac), _) => Ok(Station::Mac(mac)),
            (_, Ok(name)) => Ok(Station::Vnic(name)),
            _ => Err("neither a MAC address nor the name of a VNIC".into()),
        }
    }
}

/// What the frames of one length share: headers with source port 0, and the sum that their UDP checksum begins with.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    sum: Sum,
}

/// Makes frames.
#[derive(Debug)]
pub(crate) struct Template {
    link: Link,
    ends: Ends,
    ports: (u16, u16),
    sizes: Sizes,
    flows: u64,
    /// By length: no more than there are lengths.
    heads: HashMap<u32, Head>,
    mark: Mark,
}

impl Template {
    /// Frames as the arguments say, for this device.
    pub(crate) fn new(
        session: &mut Session<'_>,
        what: &str,
        args: &GenArgs,
        open: &Open,
    ) -> Result<Template, Failure> {
        let src = args.src_mac.or(open.mac).ok_or_else(|| {
            let why = format!("the address of {} is not known", args.at.device);
            Failure::usage(why, "name one with --src-mac")
        })?;
        let dst = match &args.dst_mac {
            Some(station) => {
                let mac = station.mac(session, what);
                mac.map_err(|failure| match station {
                    Station::Vnic(vnic) => suggest::<Vnic>(session, vnic, failure),
                    Station::Mac(_) => failure,
                })?
            }
            None => MacAddr([0xff; 6]),
        };
        let ends = ends(args.src_ip, args.dst_ip)?;
        let least = (14 + ends.header() + 8 + MARK_BYTES) as u32;
        let (mut min, max) = args.size.bounds();
        if args.size == Sizes::Imix {
            min = min.max(least);
        }
        let most = open.frame_max.unwrap_or(FRAME_MAX);
        if min < least || max > most {
            let bytes = match min == max {
                true => format!("{min}"),
                false => format!("{min} to {max}"),
            };
            let why = format!("frames of {bytes} bytes cannot be sent");
            let todo = format!("with these addresses, --size is {least} to {most}");
            return Err(Failure::usage(why, todo));
        }
        Ok(Template {
            link: Link {
                dst: windlass_wire::MacAddr(dst.0),
                src: windlass_wire::MacAddr(src.0),
                tag: None,
            },
            ends,
            ports: (args.src_port, args.dst_port),
            sizes: args.size,
            flows: args.flows.into(),
            heads: HashMap::new(),
            mark: Mark {
                // Two generators at once are told apart by it.
                stream: RandomState::new().build_hasher().finish() as u16,
                flow: 0,
                number: 0,
                time_ns: 0,
            },
        })
    }

    fn size(&self) -> u32 {
        let least = 14 + self.ends.header() + 8 + MARK_BYTES;
        self.sizes.of(self.mark.number).max(least as u32)
    }
}

impl Frames for Template {
    fn next(&mut self) -> Result<Option<Next>, Failure> {
        let bytes = self.size() as usize;
        Ok(Some(Next {
            bytes,
            time_ns: None,
        }))
    }

    fn take(&mut self, due_ns: u64, to: &mut Vec<u8>) {
        let size = self.size();
        let (link, ends, port) = (&self.link, &self.ends, self.ports.1);
        let head = self
            .heads
            .entry(size)
            .or_insert_with(|| head(link, ends, port, size as usize));
        let flow = (self.mark.number % self.flows) as u16;
        let source = self.ports.0.wrapping_add(flow);
        let mark = Mark {
            flow,
            time_ns: due_ns,
            ..self.mark
        }
        .bytes();
        let mut sum = head.sum;
        sum.add_u16_be(source);
        sum.add_bytes(&mark);
        let begin = to.len();
        to.extend(&head.bytes);
        to.extend(&mark);
        to.resize(begin + size as usize, 0);
        let udp = begin + head.bytes.len() - 8;
        to[udp..udp + 2].copy_from_slice(&source.to_be_bytes());
        to[udp + 6..udp + 8].copy_from_slice(&sum.finish_udp().to_be_bytes());
        self.mark.number += 1;
    }
}

fn head(link: &Link, ends: &Ends, port: u16, size: usize) -> Head {
    let len = 14 + ends.header() + 8;
    let payload = vec![0; size - len];
    let mut bytes = vec![0; size];
    // Every length was found good.
    let _ = udp_frame(&mut bytes, link, ends, (0, port), &payload);
    bytes.truncate(len);
    let udp = bytes.len() - 8;
    bytes[udp + 6..].fill(0);
    let mut sum = ends.pseudo(proto::UDP, (size - udp) as u16);
    sum.add_bytes(&bytes[udp..]);
    Head { bytes, sum }
}

fn ends(src: Option<IpAddr>, dst: Option<IpAddr>) -> Result<Ends, Failure> {
    match (src, dst) {
        (None, None) => Ok(Ends::V4(V4.0, V4.1)),
        (Some(IpAddr::V4(src)), None) => Ok(Ends::V4(src, V4.1)),
        (None, Some(IpAddr::V4(dst))) => Ok(Ends::V4(V4.0, dst)),
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => Ok(Ends::V4(src, dst)),
        (Some(IpAddr::V6(src)), None) => Ok(Ends::V6(src, V6.1)),
        (None, Some(IpAddr::V6(dst))) => Ok(Ends::V6(V6.0, dst)),
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => Ok(Ends::V6(src, dst)),
        (Some(src), Some(dst)) => {
            let why = format!("{src} and {dst} are not of one IP version");
            Err(Failure::usage(why, "give --src-ip and --dst-ip two of one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each frame is, byte for byte, what one that is built as a whole is, with its own checksums; sizes and flows are as they were asked for.
    #[test]
    fn frames_are_whole() {
        let link = Link {
            dst: windlass_wire::MacAddr([2, 0, 0, 0, 0, 1]),
            src: windlass_wire::MacAddr([2, 0, 0, 0, 0, 2]),
            tag: None,
        };
        for (ends, least) in [(Ends::V4(V4.0, V4.1), 60), (Ends::V6(V6.0, V6.1), 80)] {
            for sizes in [
                Sizes::Imix,
                Sizes::Range(least, 300),
                Sizes::Range(9000, 9001),
            ] {
                let mut template = Template {
                    link,
                    ends,
                    ports: (65_535, 9),
                    sizes,
                    flows: 3,
                    heads: HashMap::new(),
                    mark: Mark {
                        stream: 0xffee,
                        flow: 0,
                        number: 0,
                        time_ns: 0,
                    },
                };
                let mut all = Vec::new();
                for number in 0..600u64 {
                    let next = template.next().expect("a frame").expect("a frame");
                    let (mut frame, time_ns) = (vec![7], number << 20);
                    template.take(time_ns, &mut frame);
                    assert_eq!(frame.len(), next.bytes + 1);
                    let mark = Mark {
                        stream: 0xffee,
                        flow: (number % 3) as u16,
                        number,
                        time_ns,
                    };
                    assert_eq!(Mark::of(&frame[1..]), Some(mark));
                    let mut payload = mark.bytes().to_vec();
                    payload.resize(next.bytes - 14 - ends.header() - 8, 0);
                    let mut whole = vec![0; next.bytes];
                    let ports = (65_535u16.wrapping_add(mark.flow), 9);
                    let built = udp_frame(&mut whole, &link, &ends, ports, &payload);
                    assert_eq!(built, Ok(next.bytes));
                    assert_eq!(frame[1..], whole);
                    all.push(next.bytes as u32);
                }
                let (min, max) = sizes.bounds();
                let bounds = (all.iter().min(), all.iter().max());
                assert_eq!(bounds, (Some(&min.max(least)), Some(&max)));
            }
        }
    }
}
