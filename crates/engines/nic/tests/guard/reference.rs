//! The same rules, written plainly: copies of what it looks at, one step after the other, of a whole frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_stats::Drop;

use crate::packets::{Mac, link_local};

/// What can be made private of a frame.
const DEEPEST: usize = 1920;

#[derive(Clone, Debug, Default)]
pub struct Plain {
    pub own: Mac,
    pub addresses: Option<Vec<(IpAddr, u8)>>,
    pub clients: Option<(Vec<Vec<u8>>, bool)>,
    pub router_guard: bool,
    pub dhcp_guard: bool,
}

#[derive(PartialEq, Clone, Copy)]
enum Part {
    Whole,
    /// With a fragment header all the same.
    Atomic,
    First,
    Later,
}

struct Ip {
    source: IpAddr,
    part: Part,
    proto: u8,
    /// From the transport header to the end of the packet, and where that is in the frame.
    message: Vec<u8>,
    end: usize,
}

enum Seen {
    Unread,
    Other,
    Arp(Vec<u8>),
    Ip(Ip),
}

/// The drop that the rules come to.
pub fn refuses(rules: &Plain, frame: &[u8]) -> Option<Drop> {
    if frame.len() < 14 {
        return None;
    }
    let source = Mac::try_from(&frame[6..12]).unwrap();
    let seen = look(frame).unwrap_or(Seen::Unread);
    let is_unread = matches!(seen, Seen::Unread);
    let spoofs_ip = |named: &Vec<(IpAddr, u8)>| match &seen {
        Seen::Arp(arp) => !arp_is_right(named, source, arp),
        Seen::Ip(ip) => !ip_is_right(named, rules.own, source, ip),
        _ => false,
    };
    let ip = match &seen {
        Seen::Ip(ip) => Some(ip),
        _ => None,
    };
    let wrong = [
        (Drop::IpSpoof, rules.addresses.as_ref().map(spoofs_ip)),
        (
            Drop::DhcpSpoof,
            rules
                .clients
                .as_ref()
                .map(|c| ip.is_some_and(|ip| !client_is_right(c, rules.own, ip))),
        ),
        (
            Drop::RouterGuard,
            rules.router_guard.then(|| ip.is_some_and(is_router)),
        ),
        (
            Drop::DhcpGuard,
            rules.dhcp_guard.then(|| ip.is_some_and(is_server)),
        ),
    ];
    let mut on = wrong
        .into_iter()
        .filter_map(|(reason, wrong)| Some((reason, wrong?)));
    on.find(|(_, wrong)| *wrong || is_unread)
        .map(|(reason, _)| reason)
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |n, byte| n << 8 | usize::from(*byte))
}

fn look(frame: &[u8]) -> Option<Seen> {
    let mut at = 12;
    let mut tags = 0;
    while matches!(number(frame.get(at..at + 2)?), 0x8100 | 0x88a8) {
        at += 4;
        tags += 1;
        if tags > 4 {
            return None;
        }
    }
    let kind = number(&frame[at..at + 2]);
    let packet = frame[at + 2..].to_vec();
    match kind {
        0x0800 => look_v4(&packet, at + 2),
        0x86dd => look_v6(&packet, at + 2),
        0x0806 => Some(Seen::Arp(packet)),
        0x9100 | 0x9200 | 0x9300 => None,
        0..0x600 => {
            let has = |at: usize, byte: u8| packet.get(at) == Some(&byte);
            let is_ip = packet.len() > 1 && (has(0, 6) || has(1, 6));
            let is_snap = packet.len() > 5 && packet[0] & 0xfe == 0xaa && packet[3..6] == [0; 3];
            (!(is_ip || is_snap || packet == [6])).then_some(Seen::Other)
        }
        _ => Some(Seen::Other),
    }
}

fn look_v4(packet: &[u8], at: usize) -> Option<Seen> {
    let header = packet.get(..20)?;
    let size = usize::from(header[0] & 15) * 4;
    let total = number(&header[2..4]);
    if header[0] >> 4 != 4 || size < 20 || total < size || total > packet.len() {
        return None;
    }
    let part = match (number(&header[6..8]) & 0x1fff, header[6] & 0x20 != 0) {
        (0, false) => Part::Whole,
        (0, true) => Part::First,
        _ => Part::Later,
    };
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(&header[12..16]).unwrap());
    finish(Ip {
        source: source.into(),
        part,
        proto: header[9],
        message: packet[size..total].to_vec(),
        end: at + total,
    })
}

fn look_v6(packet: &[u8], at: usize) -> Option<Seen> {
    let header = packet.get(..40)?;
    let total = 40 + number(&header[4..6]);
    if header[0] >> 4 != 6 || total > packet.len() {
        return None;
    }
    let mut rest = packet[40..total].to_vec();
    let (mut next, mut part, mut count) = (header[6], Part::Whole, 0);
    while part != Part::Later && matches!(next, 0 | 43 | 44 | 60) {
        let first = rest.get(..8)?.to_vec();
        let mut size = 8 + 8 * usize::from(first[1]);
        if next == 44 {
            size = 8;
            let found = match (number(&first[2..4]) >> 3, first[3] & 1) {
                (0, 0) => Part::Atomic,
                (0, _) => Part::First,
                _ => Part::Later,
            };
            if !(part == Part::First && found == Part::Atomic) {
                part = found;
            }
        }
        next = first[0];
        rest = rest.get(size..)?.to_vec();
        count += 1;
        if count > 8 || at + total - rest.len() > DEEPEST {
            return None;
        }
    }
    if part == Part::Later && matches!(next, 0 | 43 | 44 | 51 | 60) {
        return None;
    }
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).unwrap());
    finish(Ip {
        source: source.into(),
        part,
        proto: next,
        message: rest,
        end: at + total,
    })
}

/// The transport header, as far as it has to hold together.
fn finish(mut ip: Ip) -> Option<Seen> {
    let message = &ip.message;
    let is_whole = match (ip.part, ip.proto) {
        (Part::Later, _) => true,
        (_, 6) => {
            let words = usize::from(message.get(12)? >> 4);
            message.len() >= 20 && words >= 5 && words * 4 <= message.len()
        }
        (part, 17) => {
            let size = number(message.get(4..6)?);
            let fits = size <= message.len() || part == Part::First;
            message.len() >= 8 && size >= 8 && fits
        }
        (_, 1) if ip.source.is_ipv4() => message.len() >= 8,
        (_, 58) if ip.source.is_ipv6() => message.len() >= 8,
        _ => true,
    };
    if ip.proto == 17 && ip.part != Part::Later {
        // What the datagram does not say is its own is padding.
        let size = number(&message[4..6]).min(message.len());
        ip.end -= message.len() - size;
        ip.message.truncate(size);
    }
    is_whole.then_some(Seen::Ip(ip))
}

fn is_named(named: &[(IpAddr, u8)], address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().map(|byte| format!("{byte:08b}")).concat(),
        IpAddr::V6(v6) => v6.octets().map(|byte| format!("{byte:08b}")).concat(),
    };
    let begins = |(prefix, size): &(IpAddr, u8)| {
        prefix.is_ipv4() == address.is_ipv4()
            && bits(*prefix)[..usize::from(*size)] == bits(address)[..usize::from(*size)]
    };
    named.iter().any(begins)
}

/// Whether a member may speak for an address.
fn may_use(named: &[(IpAddr, u8)], own: Mac, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => is_named(named, address),
        IpAddr::V6(v6) => {
            v6.to_ipv4_mapped().is_none() && (v6 == link_local(own) || is_named(named, address))
        }
    }
}

fn arp_is_right(named: &[(IpAddr, u8)], source: Mac, arp: &[u8]) -> bool {
    if arp.len() < 28 || arp[..6] != [0, 1, 8, 0, 6, 4] || arp[8..14] != source {
        return false;
    }
    let address = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
    let (sender, target) = (address(14), address(24));
    let asked = if sender.is_unspecified() {
        target
    } else {
        sender
    };
    match number(&arp[6..8]) {
        1 => !asked.is_unspecified() && is_named(named, asked.into()),
        2 => !sender.is_unspecified() && is_named(named, sender.into()),
        _ => false,
    }
}

fn ip_is_right(named: &[(IpAddr, u8)], own: Mac, source: Mac, ip: &Ip) -> bool {
    let is_nobody = ip.source.is_unspecified();
    if !is_nobody && !may_use(named, own, ip.source) {
        return false;
    }
    if ip.source.is_ipv4() {
        return !is_nobody
            || ip.proto == 17 && ip.part == Part::Whole && number(&ip.message[2..4]) == 67;
    }
    if ip.proto != 58 || ip.part == Part::Later {
        return !is_nobody;
    }
    let kind = ip.message[0];
    if !(133..=137).contains(&kind) {
        return !is_nobody || matches!(kind, 131 | 132 | 143);
    }
    if ip.part != Part::Whole || ip.end > DEEPEST {
        return false;
    }
    let target = ip
        .message
        .get(8..24)
        .map(|t| Ipv6Addr::from(<[u8; 16]>::try_from(t).unwrap()));
    let has_target = target.is_some_and(|t| !t.is_unspecified() && may_use(named, own, t.into()));
    let header = match kind {
        133 => 8,
        134 if !is_nobody => 16,
        135 if !is_nobody || has_target => 24,
        136 if !is_nobody && has_target => 24,
        137 => return !is_nobody && ip.message.len() >= 40,
        _ => return false,
    };
    let Some(options) = ip.message.get(header..) else {
        return false;
    };
    let mut options = options.to_vec();
    while !options.is_empty() {
        let size = options.get(1).map_or(0, |units| usize::from(*units) * 8);
        if size == 0 || size > options.len() {
            return false;
        }
        let option: Vec<u8> = options.drain(..size).collect();
        if matches!(option[0], 1 | 2) && (is_nobody || size != 8 || option[2..] != source) {
            return false;
        }
    }
    true
}

/// The port that a datagram, or the first part of one, goes to, with its family.
fn port(ip: &Ip) -> Option<(bool, usize)> {
    let is_udp = ip.proto == 17 && ip.part != Part::Later;
    is_udp.then(|| (ip.source.is_ipv4(), number(&ip.message[2..4])))
}

/// What a whole datagram carries.
fn carried(ip: &Ip) -> Option<&[u8]> {
    let is_whole = matches!(ip.part, Part::Whole | Part::Atomic) && ip.end <= DEEPEST;
    (is_whole && port(ip).is_some()).then(|| &ip.message[8..])
}

fn client_is_right((ids, any): &(Vec<Vec<u8>>, bool), own: Mac, ip: &Ip) -> bool {
    let is_named = |id: &[u8]| ids.iter().any(|named| named == id);
    let duid_is_right = |duid: &[u8]| {
        let begins = [&[0, 3, 0, 1][..], &own].concat() == duid;
        let has_time = duid.len() == 14 && duid[..4] == [0, 1, 0, 1] && duid[8..] == own;
        begins || has_time || is_named(duid)
    };
    match (port(ip), carried(ip)) {
        (Some((true, 67) | (false, 547)), None) => false,
        (Some((true, 67)), Some(message)) => match message.first() {
            Some(2) => message.len() > 2,
            Some(1) => {
                if message.len() < 240
                    || message[1..3] != [1, 6]
                    || message[28..34] != own
                    || message[236..240] != [99, 130, 83, 99]
                {
                    return false;
                }
                match option_61(&message[240..]) {
                    None => false,
                    Some(found) => found.is_none_or(|id| {
                        *any || is_named(&id)
                            || id == [&[1][..], &own].concat()
                            || id.len() > 4 && id[0] == 255 && duid_is_right(&id[5..])
                    }),
                }
            }
            _ => false,
        },
        (Some((false, 547)), Some(message)) if message.len() >= 4 => match message[0] {
            2 | 7 | 10 | 13 => true,
            1 | 3..=6 | 8 | 9 | 11 => match option_1(&message[4..]) {
                None => false,
                Some(None) => message[0] == 11,
                Some(Some(duid)) => *any || duid_is_right(&duid),
            },
            _ => false,
        },
        (Some((false, 547)), Some(_)) => false,
        _ => true,
    }
}

/// The client identifier, if there is one; outer none: that cannot be told.
fn option_61(options: &[u8]) -> Option<Option<Vec<u8>>> {
    let (mut at, mut found) = (0, None);
    while at < options.len() && options[at] != 255 {
        if options[at] == 0 {
            at += 1;
            continue;
        }
        let size = usize::from(*options.get(at + 1)?);
        let value = options.get(at + 2..at + 2 + size)?.to_vec();
        match options[at] {
            52 => return None,
            61 if found.is_some() => return None,
            61 => found = Some(value),
            _ => {}
        }
        at += 2 + size;
    }
    Some(found)
}

fn option_1(options: &[u8]) -> Option<Option<Vec<u8>>> {
    let (mut at, mut found) = (0, None);
    while at < options.len() {
        let size = number(options.get(at + 2..at + 4)?);
        let value = options.get(at + 4..at + 4 + size)?.to_vec();
        if number(&options[at..at + 2]) == 1 && found.replace(value).is_some() {
            return None;
        }
        at += 4 + size;
    }
    Some(found)
}

fn is_router(ip: &Ip) -> bool {
    let kind = ip.message.first().filter(|_| ip.part != Part::Later);
    match ip.source {
        IpAddr::V4(_) => ip.proto == 1 && matches!(kind, Some(5 | 9)),
        IpAddr::V6(_) => ip.proto == 58 && matches!(kind, Some(134 | 137)),
    }
}

fn is_server(ip: &Ip) -> bool {
    let first = carried(ip).and_then(|message| message.first());
    match port(ip) {
        Some((true, 68) | (false, 546)) => true,
        Some((true, 67)) => first != Some(&1),
        Some((false, 547)) => first.is_none_or(|kind| matches!(kind, 2 | 7 | 10 | 13)),
        _ => false,
    }
}
