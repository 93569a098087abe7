//! ARP (RFC 826) and neighbour discovery (RFC 4861) over Ethernet: questions read, answers made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_wire::checksum::pseudo_v6;

/// An Ethernet address.
pub type Mac = [u8; 6];

const ARP: [u8; 2] = [8, 6];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Who says it, unless it has no address yet.
    pub sender: Option<(IpAddr, Mac)>,
    /// Which address it looks for; `None`: it only announces itself.
    pub target: Option<IpAddr>,
    /// Where the answer goes.
    asker: Mac,
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// Reads a frame without tags; `None`: nothing to be learned or answered.
pub fn parse(frame: &[u8]) -> Option<Said> {
    let from = chunk::<6>(frame, 6)?;
    let said = match chunk::<2>(frame, 12)? {
        ARP => arp(frame, from),
        IPV6 => discovery(frame, from),
        _ => None,
    }?;
    let is_good = |ip: IpAddr| !ip.is_multicast() && !ip.is_unspecified() && !ip.is_loopback();
    let ips = said.sender.map(|(ip, _)| ip).into_iter().chain(said.target);
    let is_one = |mac: Mac| mac[0] & 1 == 0 && mac != [0; 6];
    let macs = said.sender.is_none_or(|(_, mac)| is_one(mac));
    (ips.into_iter().all(is_good) && macs && is_one(from)).then_some(said)
}

fn arp(frame: &[u8], from: Mac) -> Option<Said> {
    // Ethernet, IPv4, request.
    if chunk::<8>(frame, 14)? != [0, 1, 8, 0, 6, 4, 0, 1] {
        return None;
    }
    let (mac, ip) = (
        chunk::<6>(frame, 22)?,
        Ipv4Addr::from(chunk::<4>(frame, 28)?),
    );
    let target = Ipv4Addr::from(chunk::<4>(frame, 38)?);
    // A sender that claims another's address in one of its two places is not believed.
    if mac != from || ip.is_broadcast() || target.is_broadcast() {
        return None;
    }
    let sender = (!ip.is_unspecified()).then_some((ip.into(), mac));
    let target = (ip != target).then_some(target.into());
    Some(Said {
        sender,
        target,
        asker: from,
    })
}

fn discovery(frame: &[u8], from: Mac) -> Option<Said> {
    let packet = frame.get(14..)?;
    let length = usize::from(u16::from_be_bytes(chunk(packet, 4)?));
    let [next, hops] = chunk(packet, 6)?;
    let body = packet.get(40..)?.get(..length)?;
    let (source, to) = (chunk::<16>(packet, 8)?, chunk::<16>(packet, 24)?);
    let mut sum = pseudo_v6(&source, &to, ICMPV6, body.len() as u32);
    sum.add_bytes(body);
    let [kind, code] = chunk(body, 0)?;
    if packet.first()? >> 4 != 6 || (next, hops, code) != (ICMPV6, 255, 0) || sum.finish() != 0 {
        return None;
    }
    let (source, target) = (
        Ipv6Addr::from(source),
        Ipv6Addr::from(chunk::<16>(body, 8)?),
    );
    let is_new = source.is_unspecified();
    let option = link_address(body.get(24..)?, if kind == SOLICITATION { 1 } else { 2 })?;
    let believed = option.filter(|mac| *mac == from);
    match (kind, option) {
        // RFC 4861, 7.1.1: no source address, no option.
        (SOLICITATION, Some(_)) if is_new => None,
        (SOLICITATION, _) => Some(Said {
            sender: believed.map(|mac| (source.into(), mac)),
            target: Some(target.into()),
            asker: from,
        }),
        (ADVERTISEMENT, _) => Some(Said {
            sender: Some((target.into(), believed?)),
            target: None,
            asker: from,
        }),
        _ => None,
    }
}

/// The link-layer address among options, if there is one. `None` if they are malformed.
fn link_address(mut options: &[u8], kind: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while !options.is_empty() {
        let [this, units] = chunk(options, 0)?;
        let (option, rest) = options.split_at_checked(usize::from(units).checked_mul(8)?)?;
        if units == 0 {
            return None;
        }
        if this == kind && units == 1 {
            found = chunk(option, 2);
        }
        options = rest;
    }
    Some(found)
}

/// The answer to a question: `target` is at `mac`, and no router.
pub fn answer(said: &Said, target: IpAddr, mac: Mac) -> Vec<u8> {
    match (target, said.sender) {
        (IpAddr::V4(target), sender) => {
            let to = match sender {
                Some((IpAddr::V4(ip), _)) => ip,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let mut frame = [&said.asker[..], &mac, &ARP, &[0, 1, 8, 0, 6, 4, 0, 2]].concat();
            frame.extend(mac);
            frame.extend(target.octets());
            frame.extend(said.asker);
            frame.extend(to.octets());
            frame.resize(60, 0);
            frame
        }
        (IpAddr::V6(target), Some((IpAddr::V6(ip), _))) => {
            advertisement(said.asker, ip, SOLICITED | OVERRIDE, target, mac)
        }
        (IpAddr::V6(target), _) => {
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            advertisement([0x33, 0x33, 0, 0, 0, 1], all, OVERRIDE, target, mac)
        }
    }
}

fn advertisement(to_mac: Mac, to: Ipv6Addr, flags: u8, target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut body = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    body.extend(target.octets());
    body.extend([2, 1]);
    body.extend(mac);
    let mut sum = pseudo_v6(&target.octets(), &to.octets(), ICMPV6, body.len() as u32);
    sum.add_bytes(&body);
    let sum = sum.finish().to_be_bytes();
    if let Some(field) = body.get_mut(2..).and_then(|b| b.first_chunk_mut()) {
        *field = sum;
    }
    let mut frame = [
        &to_mac[..],
        &mac,
        &IPV6,
        &[0x60, 0, 0, 0, 0, 32, ICMPV6, 255],
    ]
    .concat();
    frame.extend(target.octets());
    frame.extend(to.octets());
    frame.extend(body);
    frame
}
