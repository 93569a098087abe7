//! Frames as text: a line each, as tcpdump has them, with numbers for names.
//!
//! # Model
//! `TIME PORT WAY PACKET`. The time is of day, in UTC, to the nanosecond. With `-v` the link header and the fields of the IP header stand before the
//! packet; with `-x` the bytes that were captured follow.
//!
//! # Failure modes
//! What a frame says is foreign input. Headers are read through `windlass-wire`; a header that was not captured whole, or contradicts
//! itself, is told so and read no further.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use windlass_capture::pcapng::Direction;
use windlass_capture::ring::Counted;
use windlass_wire::ether::proto;
use windlass_wire::{Fault, Kind, Layers, MacAddr, Tci, parse};

use super::{Shown, Sink};
use crate::failure::Failure;

/// Bytes of one line of `-x`.
const ROW: usize = 16;

/// Where lines are written.
pub(super) struct Lines<'a> {
    out: &'a mut dyn Write,
    is_verbose: bool,
    has_bytes: bool,
    line: String,
}

impl<'a> Lines<'a> {
    pub(super) fn new(out: &'a mut dyn Write, is_verbose: bool, has_bytes: bool) -> Lines<'a> {
        Lines {
            out,
            is_verbose,
            has_bytes,
            line: String::new(),
        }
    }
}

impl Sink for Lines<'_> {
    fn frame(&mut self, shown: &Shown<'_>) -> Result<(), Failure> {
        self.line.clear();
        let line = Line {
            shown,
            is_verbose: self.is_verbose,
        };
        // A String takes whatever is written.
        let _ = write!(self.line, "{line}");
        writeln!(self.out, "{}", crate::table::clean(&self.line))?;
        if self.has_bytes {
            dump(shown.bytes, self.out)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    fn end(&mut self, _: Counted) -> Result<(), Failure> {
        self.flush()
    }
}

fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for (at, row) in bytes.chunks(ROW).enumerate() {
        let mut hex = String::new();
        for pair in row.chunks(2) {
            hex.push(' ');
            for byte in pair {
                let _ = write!(hex, "{byte:02x}");
            }
        }
        let is_shown = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let text = row.iter().map(|byte| {
            if is_shown(byte) {
                char::from(*byte)
            } else {
                '.'
            }
        });
        let text: String = text.collect();
        writeln!(out, "\t0x{:04x}: {hex:<40}  {text}", at * ROW)?;
    }
    Ok(())
}

struct Line<'a> {
    shown: &'a Shown<'a>,
    is_verbose: bool,
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown {
            head,
            bytes,
            direction,
            port,
            reason,
        } = self.shown;
        let (seconds, ns) = (head.time_ns / 1_000_000_000, head.time_ns % 1_000_000_000);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let way = match direction {
            Direction::Inbound => "In",
            Direction::Outbound => "Out",
        };
        write!(
            f,
            "{hour:02}:{minute:02}:{second:02}.{ns:09} {port} {way:<3} "
        )?;
        let layers = parse(bytes, head.len);
        let frame = Decoded {
            bytes,
            layers,
            len: head.len,
        };
        if self.is_verbose {
            frame.link(f)?;
        }
        frame.packet(f, self.is_verbose)?;
        match reason {
            Some(reason) => write!(f, " [dropped: {reason}]"),
            None => Ok(()),
        }
    }
}

struct Decoded<'a> {
    bytes: &'a [u8],
    layers: Layers,
    /// Bytes of the whole frame.
    len: u32,
}

impl Decoded<'_> {
    /// `N` bytes at an offset of the frame.
    fn at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    fn half(&self, at: usize) -> Option<u16> {
        self.at(at).map(u16::from_be_bytes)
    }

    fn mac(&self, at: usize) -> MacAddr {
        MacAddr(self.at(at).unwrap_or_default())
    }

    fn link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, from) = (self.mac(0), self.mac(6));
        write!(f, "{from} > {to}, ethertype {:#06x}", self.layers.ethertype)?;
        if self.layers.tags > 0 {
            let tci = Tci(self.layers.tci);
            write!(f, ", vlan {}, p {}", tci.vid().get(), tci.priority())?;
        }
        write!(f, ", length {}: ", self.len)
    }

    fn packet(&self, f: &mut fmt::Formatter<'_>, is_verbose: bool) -> fmt::Result {
        let Layers { tags, tci, .. } = self.layers;
        if tags > 0 && !is_verbose {
            write!(f, "vlan {}, ", Tci(tci).vid().get())?;
        }
        match self.layers.kind {
            Kind::Arp => self.arp(f),
            Kind::Ipv4 => self.ipv4(f, is_verbose),
            Kind::Ipv6 => self.ipv6(f, is_verbose),
            Kind::Llc => write!(f, "LLC, length {}", self.len),
            Kind::Other => {
                let kind = self.layers.ethertype;
                write!(f, "ethertype {kind:#06x}, length {}", self.len)
            }
            Kind::None => write!(f, "no Ethernet header, length {}", self.len),
        }
    }

    /// Says why no more is read; whether it is so.
    fn stops(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let Layers { fault, need, .. } = self.layers;
        if fault == Fault::None && need == 0 {
            return Ok(false);
        }
        match fault {
            Fault::None => write!(f, "[cut by the capture], length {}", self.len)?,
            fault => write!(f, "[bad: {fault:?}], length {}", self.len)?,
        }
        Ok(true)
    }

    fn arp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.layers.l3_at();
        let address = |from: usize| self.at::<4>(at + from).map(Ipv4Addr::from);
        let is_known = self.at(at) == Some([0, 1, 8, 0, 6, 4]);
        let (Some(op), Some(sender), Some(target), true) =
            (self.half(at + 6), address(14), address(24), is_known)
        else {
            return write!(f, "ARP, length {}", self.len);
        };
        match op {
            1 => write!(f, "ARP, Request who-has {target} tell {sender}")?,
            2 => write!(f, "ARP, Reply {sender} is-at {}", self.mac(at + 8))?,
            op => write!(f, "ARP, op {op}")?,
        }
        write!(f, ", length {}", (self.len as usize).saturating_sub(at))
    }

    fn ipv4(&self, f: &mut fmt::Formatter<'_>, is_verbose: bool) -> fmt::Result {
        let at = self.layers.l3_at();
        let ends = [12, 16].map(|from| self.at::<4>(at + from).map(Ipv4Addr::from));
        let [Some(source), Some(target)] = ends else {
            return write!(f, "IP [cut by the capture], length {}", self.len);
        };
        f.write_str("IP ")?;
        if is_verbose {
            let [tos, ttl] = [1, 8].map(|from| self.at(at + from).map_or(0, |[byte]| byte));
            let (id, part) = (self.half(at + 4), self.half(at + 6).unwrap_or(0));
            write!(f, "(tos {tos:#x}, ttl {ttl}, id {}", id.unwrap_or(0))?;
            if part & 0x3fff != 0 {
                let offset = u32::from(part & 0x1fff) * 8;
                write!(
                    f,
                    ", offset {offset}{}",
                    if part & 0x2000 != 0 { "+" } else { "" }
                )?;
            }
            write!(f, ", proto {}) ", self.layers.proto)?;
        }
        self.transport(f, &source, &target)
    }

    fn ipv6(&self, f: &mut fmt::Formatter<'_>, is_verbose: bool) -> fmt::Result {
        let at = self.layers.l3_at();
        let ends = [8, 24].map(|from| self.at::<16>(at + from).map(Ipv6Addr::from));
        let [Some(source), Some(target)] = ends else {
            return write!(f, "IP6 [cut by the capture], length {}", self.len);
        };
        f.write_str("IP6 ")?;
        if is_verbose {
            let hops = self.at(at + 7).map_or(0, |[byte]| byte);
            write!(f, "(hlim {hops}, proto {}) ", self.layers.proto)?;
        }
        self.transport(f, &source, &target)
    }

    fn transport(
        &self,
        f: &mut fmt::Formatter<'_>,
        source: &dyn Display,
        target: &dyn Display,
    ) -> fmt::Result {
        let at = self.layers.l4_at();
        let ports = (self.half(at), self.half(at + 2));
        let has_ports =
            self.layers.l4 != 0 && [proto::TCP, proto::UDP].contains(&self.layers.proto);
        match ports {
            (Some(from), Some(to)) if has_ports => write!(f, "{source}.{from} > {target}.{to}: ")?,
            _ => write!(f, "{source} > {target}: ")?,
        }
        if self.stops(f)? {
            return Ok(());
        }
        let length = (self.layers.end as usize).saturating_sub(at);
        let payload = (self.layers.end as usize).saturating_sub(self.layers.headers());
        if !self.layers.is_whole() && self.layers.l4 == 0 {
            return write!(f, "fragment, proto {}, length {length}", self.layers.proto);
        }
        match self.layers.proto {
            proto::TCP => self.tcp(f, payload),
            proto::UDP => write!(f, "UDP, length {payload}"),
            proto::ICMP => self.icmp(f, length),
            proto::ICMPV6 => self.icmpv6(f, length),
            proto::IGMP => write!(f, "IGMP, length {length}"),
            proto => write!(f, "proto {proto}, length {length}"),
        }
    }

    fn tcp(&self, f: &mut fmt::Formatter<'_>, payload: usize) -> fmt::Result {
        let at = self.layers.l4_at();
        let word = |from: usize| self.at(at + from).map_or(0, u32::from_be_bytes);
        let flags = self.at(at + 13).map_or(0, |[byte]| byte);
        let names = [
            (2, 'S'),
            (1, 'F'),
            (8, 'P'),
            (4, 'R'),
            (0x20, 'U'),
            (0x80, 'W'),
            (0x40, 'E'),
        ];
        let mut text: String = names
            .iter()
            .filter(|(bit, _)| flags & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let has_ack = flags & 0x10 != 0;
        if has_ack {
            text.push('.');
        }
        write!(
            f,
            "Flags [{}]",
            if text.is_empty() { "none" } else { &text }
        )?;
        let seq = word(4);
        match payload {
            0 if flags & 7 == 0 => {}
            0 => write!(f, ", seq {seq}")?,
            n => write!(f, ", seq {seq}:{}", seq.wrapping_add(n as u32))?,
        }
        if has_ack {
            write!(f, ", ack {}", word(8))?;
        }
        write!(
            f,
            ", win {}, length {payload}",
            self.half(at + 14).unwrap_or(0)
        )
    }

    fn icmp(&self, f: &mut fmt::Formatter<'_>, length: usize) -> fmt::Result {
        let at = self.layers.l4_at();
        let [kind, code] = self.at(at).unwrap_or_default();
        self.echo_or(
            f,
            "ICMP",
            match kind {
                8 => Some("request"),
                0 => Some("reply"),
                _ => None,
            },
        )?;
        match kind {
            0 | 8 => {}
            3 => write!(f, "ICMP unreachable, code {code}")?,
            5 => write!(f, "ICMP redirect, code {code}")?,
            11 => write!(f, "ICMP time exceeded, code {code}")?,
            kind => write!(f, "ICMP type {kind}, code {code}")?,
        }
        write!(f, ", length {length}")
    }

    fn icmpv6(&self, f: &mut fmt::Formatter<'_>, length: usize) -> fmt::Result {
        let at = self.layers.l4_at();
        let [kind, code] = self.at(at).unwrap_or_default();
        let target = self.at::<16>(at + 8).map(Ipv6Addr::from);
        self.echo_or(
            f,
            "ICMP6,",
            match kind {
                128 => Some("request"),
                129 => Some("reply"),
                _ => None,
            },
        )?;
        match (kind, target) {
            (128 | 129, _) => {}
            (133, _) => f.write_str("ICMP6, router solicitation")?,
            (134, _) => f.write_str("ICMP6, router advertisement")?,
            (135, Some(target)) => write!(f, "ICMP6, neighbor solicitation, who has {target}")?,
            (136, Some(target)) => write!(f, "ICMP6, neighbor advertisement, tgt is {target}")?,
            (kind, _) => write!(f, "ICMP6, type {kind}, code {code}")?,
        }
        write!(f, ", length {length}")
    }

    fn echo_or(&self, f: &mut fmt::Formatter<'_>, name: &str, echo: Option<&str>) -> fmt::Result {
        let at = self.layers.l4_at();
        let (id, seq) = (
            self.half(at + 4).unwrap_or(0),
            self.half(at + 6).unwrap_or(0),
        );
        match echo {
            Some(echo) => write!(f, "{name} echo {echo}, id {id}, seq {seq}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_capture::ring::{Head, Way};

    fn line(bytes: &[u8], len: u32, is_verbose: bool) -> String {
        let shown = Shown {
            head: Head {
                port: 0,
                way: Way::From,
                reason: 0,
                time_ns: 86_400_000_000_000 * 9 + 3_661_000_000_007,
                len,
            },
            bytes,
            direction: Direction::Outbound,
            port: "v0",
            reason: None,
        };
        let line = Line {
            shown: &shown,
            is_verbose,
        };
        line.to_string()
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[a, b]| (a * 16 + b) as u8)
            .collect()
    }

    const ETHER: &str = "02000000000b 02000000000a";

    /// What frames of each kind look like.
    #[test]
    fn frames_are_told_in_a_line() {
        let udp =
            "0800 4500 0020 0001 0000 4011 0000 0a090001 0a090002 0035 1234 000c 0000 01020304";
        let tcp = "0800 4500 002a 0001 0000 4006 0000 0a090001 0a090002 0050 1234 0000000a 0000000b 5018 0064 0000 0000 4142";
        let icmp =
            "0800 4500 0020 0001 0000 4001 0000 0a090001 0a090002 0800 0000 0005 0003 01020304";
        let arp = "0806 0001 0800 06 04 0001 02000000000a 0a090001 000000000000 0a090002";
        let ns = "86dd 6000 0000 0018 3aff fe800000000000000000000000000001 ff0200000000000000000001ff000002 8700 0000 00000000 \
                  fe800000000000000000000000000002";
        let vlan = "8100 2064 0800 4500 0014 0001 0000 40fd 0000 0a090001 0a090002";
        for (text, wanted) in [
            (udp, "IP 10.9.0.1.53 > 10.9.0.2.4660: UDP, length 4"),
            (
                tcp,
                "IP 10.9.0.1.80 > 10.9.0.2.4660: Flags [P.], seq 10:12, ack 11, win 100, length 2",
            ),
            (
                icmp,
                "IP 10.9.0.1 > 10.9.0.2: ICMP echo request, id 5, seq 3, length 12",
            ),
            (
                arp,
                "ARP, Request who-has 10.9.0.2 tell 10.9.0.1, length 28",
            ),
            (
                ns,
                "IP6 fe80::1 > ff02::1:ff00:2: ICMP6, neighbor solicitation, who has fe80::2, length 24",
            ),
            (
                vlan,
                "vlan 100, IP 10.9.0.1 > 10.9.0.2: proto 253, length 0",
            ),
            ("88cc 0207", "ethertype 0x88cc, length 16"),
            ("0026 4242", "LLC, length 16"),
        ] {
            let bytes = hex(&format!("{ETHER}{text}"));
            let line = line(&bytes, bytes.len() as u32, false);
            assert_eq!(line, format!("01:01:01.000000007 v0 Out {wanted}"));
        }
        let bytes = hex(&format!("{ETHER}{udp}"));
        let link = "02:00:00:00:00:0a > 02:00:00:00:00:0b, ethertype 0x0800, length 46: ";
        let verbose = line(&bytes, 46, true);
        assert!(
            verbose.contains(link)
                && verbose.contains("IP (tos 0x0, ttl 64, id 1, proto 17) 10.9.0.1.53"),
            "{verbose}"
        );
    }

    /// Whatever is cut off, and whatever the bytes are, there is a line of it.
    #[test]
    fn every_frame_has_a_line() {
        let mut seed = 7u64;
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..round % 120)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 56) as u8
                })
                .collect();
            let kinds = [[8, 0], [8, 6], [0x86, 0xdd], [0x81, 0], [0, 9]];
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&kinds[round % 5]);
                bytes[14] = [0x45, 0x60, 0x46, 0][round % 4];
            }
            for len in [bytes.len(), bytes.len() + 1000, 0] {
                assert!(!line(&bytes, len as u32, round % 2 == 0).is_empty());
            }
        }
        let bytes = hex(&format!(
            "{ETHER} 0800 4500 0400 0001 0000 4006 0000 0a090001 0a090002 0050"
        ));
        assert!(
            line(&bytes, 1038, false)
                .ends_with("10.9.0.1 > 10.9.0.2: [cut by the capture], length 1038")
        );
    }
}
