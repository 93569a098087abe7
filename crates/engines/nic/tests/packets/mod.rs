//! Packets of guests, made by hand: no checksum is filled in.
#![allow(dead_code)]

use std::net::{Ipv4Addr, Ipv6Addr};

pub type Mac = [u8; 6];

pub const ARP: u16 = 0x0806;
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FRAGMENT: u8 = 44;
pub const ICMP6: u8 = 58;
pub const ALL: Mac = [0xff; 6];

/// A frame; tags are whole, with their type.
pub fn ethernet(to: Mac, from: Mac, tags: &[[u8; 4]], kind: u16, packet: &[u8]) -> Vec<u8> {
    let tags = tags.concat();
    [&to[..], &from, &tags, &kind.to_be_bytes(), packet].concat()
}

pub fn arp(operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let [high, low] = operation.to_be_bytes();
    let (s, t) = (sender.1.octets(), target.1.octets());
    [
        &[0, 1, 8, 0, 6, 4, high, low][..],
        &sender.0,
        &s,
        &target.0,
        &t,
    ]
    .concat()
}

pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16 + 20).to_be_bytes();
    let (src, dst) = (src.octets(), dst.octets());
    let start = [0x45, 0, high, low, 0, 1, 0, 0, 64, proto, 0, 0];
    [&start[..], &src, &dst, payload].concat()
}

pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let (src, dst) = (src.octets(), dst.octets());
    let start = [0x60, 0, 0, 0, high, low, next, 255];
    [&start[..], &src, &dst, payload].concat()
}

/// An extension header of 8 bytes, before `payload`.
pub fn extension(next: u8, payload: &[u8]) -> Vec<u8> {
    [&[next, 0, 1, 4, 0, 0, 0, 0][..], payload].concat()
}

/// A fragment header with an offset in units of 8 bytes, before `payload`.
pub fn fragment(next: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
    [&[next, 0, high, low, 0, 0, 0, 7][..], payload].concat()
}

pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let size = (payload.len() as u16 + 8).to_be_bytes();
    let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
    [&from[..], &to, &size, &[0, 0], payload].concat()
}

pub fn tcp() -> Vec<u8> {
    [
        &[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10][..],
        &[0; 6],
    ]
    .concat()
}

/// An ICMP message: type, code 0, and what follows the checksum.
pub fn icmp(number: u8, rest: &[u8]) -> Vec<u8> {
    [&[number, 0, 0, 0][..], rest].concat()
}

/// A neighbour solicitation or advertisement.
pub fn neighbour(number: u8, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    icmp(number, &[&[0; 4][..], &target.octets(), options].concat())
}

/// A router solicitation (4 bytes after the checksum) or advertisement (12).
pub fn router(number: u8, options: &[u8]) -> Vec<u8> {
    let header = if number == 133 { 4 } else { 12 };
    icmp(number, &[&vec![0; header][..], options].concat())
}

/// An option with a link-layer address: 1, the source's; 2, the target's.
pub fn link_option(number: u8, mac: Mac) -> Vec<u8> {
    [&[number, 1][..], &mac].concat()
}

/// A message of DHCPv4 without its UDP header: 1 is a request, 2 a reply.
pub fn dhcp(operation: u8, chaddr: Mac, options: &[u8]) -> Vec<u8> {
    let start = [operation, 1, 6, 0];
    let cookie = [99, 130, 83, 99];
    [&start[..], &[0; 24], &chaddr, &[0; 202], &cookie, options].concat()
}

/// Option 61 with a type.
pub fn client_id(kind: u8, id: &[u8]) -> Vec<u8> {
    [&[61, id.len() as u8 + 1, kind][..], id].concat()
}

/// A message of DHCPv6 without its UDP header.
pub fn dhcp6(number: u8, options: &[u8]) -> Vec<u8> {
    [&[number, 1, 2, 3][..], options].concat()
}

/// The client's DUID as an option.
pub fn client_duid(duid: &[u8]) -> Vec<u8> {
    [&[0, 1, 0, duid.len() as u8][..], duid].concat()
}

/// DUID-LL.
pub fn duid_ll(mac: Mac) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &mac].concat()
}

/// DUID-LLT.
pub fn duid_llt(mac: Mac) -> Vec<u8> {
    [&[0, 1, 0, 1, 9, 9, 9, 9][..], &mac].concat()
}

/// The link-local address made of a link-layer address.
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let bytes = [&[0xfe, 0x80, 0, 0, 0, 0, 0, 0][..], &id].concat();
    Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("16 bytes"))
}

/// A message of DHCPv4 with a type, between a client and a server; the address is the one that the client gets of an answer, and the
/// one that it has of a request.
pub fn dhcp_of(kind: u8, xid: u32, chaddr: Mac, address: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let operation = if matches!(kind, 2 | 5 | 6) { 2 } else { 1 };
    let mut message = dhcp(
        operation,
        chaddr,
        &[&[53, 1, kind][..], options, &[255]].concat(),
    );
    message[4..8].copy_from_slice(&xid.to_be_bytes());
    let at = if operation == 2 { 16 } else { 12 };
    message[at..at + 4].copy_from_slice(&address.octets());
    message
}

/// Option 51.
pub fn lease_time(seconds: u32) -> Vec<u8> {
    [&[51, 4][..], &seconds.to_be_bytes()].concat()
}

/// An option of DHCPv6.
pub fn option6(code: u16, value: &[u8]) -> Vec<u8> {
    let size = value.len() as u16;
    [&code.to_be_bytes()[..], &size.to_be_bytes(), value].concat()
}

/// An identity association for addresses (3) or temporary ones (4), with these.
pub fn ia(code: u16, addresses: &[(Ipv6Addr, u32)]) -> Vec<u8> {
    let head = if code == 4 { 4 } else { 12 };
    let mut value = vec![0; head];
    for (address, seconds) in addresses {
        let seconds = seconds.to_be_bytes();
        value.extend(option6(
            5,
            &[&address.octets()[..], &seconds, &seconds].concat(),
        ));
    }
    option6(code, &value)
}

/// An identity association for a delegated prefix.
pub fn ia_pd(prefix: Ipv6Addr, bits: u8, seconds: u32) -> Vec<u8> {
    let seconds = seconds.to_be_bytes();
    let prefix = [&seconds[..], &seconds, &[bits], &prefix.octets()].concat();
    option6(25, &[&[0; 12][..], &option6(26, &prefix)].concat())
}

/// A prefix in a router advertisement: 0x40 in the flags is autonomous.
pub fn prefix_option(prefix: Ipv6Addr, bits: u8, flags: u8, seconds: u32) -> Vec<u8> {
    let seconds = seconds.to_be_bytes();
    let head = [3, 4, bits, flags];
    [&head[..], &seconds, &seconds, &[0; 4], &prefix.octets()].concat()
}
