//! What holds whatever hosts of a network say: used by the fuzz target `dhcp` and by the tests that replay its corpus.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_dhcp::{ANSWER_MAX, Host, Mac, Network, Outcome, SERVER_V4, SERVER_V6};
use windlass_wire::build::{self, Ends, Link};
use windlass_wire::checksum::pseudo_v6;
use windlass_wire::{Fault, MacAddr, dhcp, parse};

/// The host that asks, and another one.
pub const HOST: Mac = [2, 0, 0, 0, 0, 5];
pub const LEASE_S: u32 = 3600;
pub const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
pub const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
/// Its link-local address.
pub const LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 5);

pub fn host() -> Host {
    Host {
        mac: HOST,
        ips: vec![
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            V4.into(),
            V6.into(),
        ],
    }
}

pub fn network() -> Network {
    Network {
        prefixes: vec![
            (Ipv4Addr::new(10, 0, 0, 0).into(), 22),
            (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), 64),
        ],
        router_v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
        router_v6: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        name_servers: ["10.0.0.2", "fd00::2", "10.0.0.3"]
            .map(|ip| ip.parse().expect("an address"))
            .to_vec(),
        lease_s: LEASE_S,
        mtu: 1450,
        leases: true,
        advertises: true,
    }
}

/// A datagram of the host.
pub fn datagram(ends: Ends, ports: (u16, u16), message: &[u8]) -> Vec<u8> {
    let to = match ends {
        Ends::V4(..) => [0xff; 6],
        Ends::V6(..) => [0x33, 0x33, 0, 1, 0, 2],
    };
    let link = Link {
        dst: MacAddr(to),
        src: MacAddr(HOST),
        tag: None,
    };
    let mut frame = vec![0; message.len() + 100];
    let length = build::udp_frame(&mut frame, &link, &ends, ports, message).expect("room");
    frame.truncate(length);
    frame
}

/// A message of DHCPv4 to a server.
pub fn to_server(message: &[u8]) -> Vec<u8> {
    let ends = Ends::V4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    datagram(ends, (dhcp::CLIENT, dhcp::SERVER), message)
}

/// A message of DHCPv6 to all servers.
pub fn to_servers(message: &[u8]) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
    datagram(Ends::V6(LINK, all), (dhcp::CLIENT6, dhcp::SERVER6), message)
}

/// A message of neighbour discovery; its checksum is right.
pub fn discovery(source: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let mut frame = vec![0; 54];
    build::ethernet(
        &mut frame,
        MacAddr([0x33, 0x33, 0, 0, 0, 2]),
        MacAddr(HOST),
        None,
        0x86dd,
    )
    .expect("room");
    let ip = build::Ipv6 {
        src: source,
        dst: to,
        next: 58,
        hops: 255,
    };
    build::ipv6(&mut frame[14..], &ip, body.len()).expect("room");
    frame.extend(body);
    if let Some(field) = frame.get_mut(56..58) {
        field.fill(0);
        let mut sum = pseudo_v6(&source.octets(), &to.octets(), 58, body.len() as u32);
        sum.add_bytes(&frame[54..]);
        frame[56..58].copy_from_slice(&sum.finish().to_be_bytes());
    }
    frame
}

/// Takes `data` as what a host says, in each of the forms that the network reads: nothing panics, and every answer is a whole packet of the
/// server to the host or, on its link, to all, that gives nothing but the host's own addresses.
pub fn check(data: &[u8]) {
    let (network, host) = (network(), host());
    let frames = [
        data.to_vec(),
        to_server(data),
        to_server(&whole(data)),
        to_servers(data),
        discovery(LINK, data),
        discovery(Ipv6Addr::UNSPECIFIED, data),
    ];
    for frame in frames {
        for host in [None, Some(&host)] {
            match network.receive(&frame, host) {
                Outcome::Answer(answer) | Outcome::Refuse(answer) => sound(&answer),
                _ => {}
            }
        }
    }
    sound(&network.advertisement().expect("it advertises"));
}

/// The same as a message of DHCPv4 whose fixed part is a client's: `data` is of which form, and options.
fn whole(data: &[u8]) -> Vec<u8> {
    let (form, options) = data.split_at(data.len().min(9));
    let mut message = request(&[]);
    message.truncate(240);
    for (at, byte) in [10, 12, 13, 14, 15, 24, 0, 2].into_iter().zip(form) {
        message[at] ^= byte & 0x80;
    }
    message.extend(options);
    message
}

/// A message of DHCPv4 of the host with these options.
pub fn request(options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = vec![dhcp::REQUEST, dhcp::ETHERNET, 6, 0, 1, 2, 3, 4];
    message.resize(28, 0);
    message.extend(HOST);
    message.resize(236, 0);
    message.extend(dhcp::COOKIE);
    for (code, value) in options {
        message.extend([*code, value.len() as u8]);
        message.extend(*value);
    }
    message.push(dhcp::code4::END);
    message
}

fn sound(answer: &[u8]) {
    assert!(answer.len() <= ANSWER_MAX, "{}", answer.len());
    let layers = parse(answer, answer.len() as u32);
    assert_eq!(
        (layers.fault, layers.end as usize),
        (Fault::None, answer.len())
    );
    assert_eq!(answer[6..12], windlass_dhcp::MAC.0);
    let to = &answer[..6];
    assert!(
        to == HOST || to == [0xff; 6] || to == [0x33, 0x33, 0, 0, 0, 1],
        "{to:x?}"
    );
    let message = &answer[layers.headers()..];
    match answer[12] {
        8 => {
            assert_eq!(answer[26..30], SERVER_V4.octets());
            assert!(message[16..20] == V4.octets() || message[16..20] == [0; 4]);
            assert_eq!(message[28..34], HOST);
        }
        _ if layers.is_udp() => {
            assert_eq!(answer[22..38], SERVER_V6.octets());
            let given = given(&message[4..]);
            assert!(
                given.iter().all(|(ip, s)| *ip == V6 || *s == 0),
                "{given:?}"
            );
        }
        _ => assert_eq!(answer[54], 134),
    }
}

/// The addresses in the identity associations of an answer, with their lifetimes.
pub fn given(options: &[u8]) -> Vec<(Ipv6Addr, u32)> {
    let options = dhcp::Options6(options).map(|option| option.expect("sound"));
    let ias = options.filter(|(code, _)| *code == dhcp::code6::IA_NA);
    let inner = ias.flat_map(|(_, value)| dhcp::Options6(&value[12..]));
    let inner = inner.map(|option| option.expect("sound"));
    let addresses = inner.filter(|(code, _)| *code == dhcp::code6::IA_ADDRESS);
    addresses
        .map(|(_, value)| {
            let ip = value.first_chunk::<16>().expect("an address");
            let valid = value[20..24].first_chunk::<4>().expect("a lifetime");
            (Ipv6Addr::from(*ip), u32::from_be_bytes(*valid))
        })
        .collect()
}
