//! What a host is answered, message by message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::served::{
    HOST, LEASE_S, LINK, V4, V6, discovery, given, host, network, request, to_server, to_servers,
};
use windlass_dhcp::{Host, MESSAGE_MAX, Network, Outcome, SERVER_V4, SERVER_V6, about};
use windlass_wire::dhcp::{Message4, Options4, Options6, code4, code6, type4, type6};
use windlass_wire::host::About;
use windlass_wire::parse;

/// The DUID of the server, and one of another.
const SERVER: [u8; 10] = [0, 3, 0, 1, 2, b'w', b'l', 0, 0, 1];
const OTHER: [u8; 4] = [0, 3, 0, 1];
const CLIENT: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 5];

fn receive(frame: &[u8]) -> Outcome {
    network().receive(frame, Some(&host()))
}

fn payload(frame: &[u8]) -> &[u8] {
    &frame[parse(frame, frame.len() as u32).headers()..]
}

/// The destination of a packet.
fn to(frame: &[u8]) -> IpAddr {
    match frame[12] {
        8 => Ipv4Addr::from(*frame[30..].first_chunk::<4>().expect("a header")).into(),
        _ => Ipv6Addr::from(*frame[38..].first_chunk::<16>().expect("a header")).into(),
    }
}

fn option4(frame: &[u8], code: u8) -> Option<&[u8]> {
    let mut options = Options4(&payload(frame)[240..]).map(|option| option.expect("sound"));
    options
        .find(|(this, _)| *this == code)
        .map(|(_, value)| value)
}

/// An answer, and its type of message.
fn said4(outcome: Outcome) -> (u8, Vec<u8>) {
    match outcome {
        Outcome::Answer(frame) | Outcome::Refuse(frame) => {
            (option4(&frame, code4::TYPE).expect("a type")[0], frame)
        }
        other => panic!("{other:?}"),
    }
}

/// A host without an address gets what its record says: address, mask, router, MTU, times. In the network's own subnet, not the first of its
/// addresses.
#[test]
fn a_host_gets_its_record() {
    let discover = to_server(&request(&[(code4::TYPE, &[type4::DISCOVER])]));
    assert_eq!(about(&discover), Some(About::Leases));
    let (kind, frame) = said4(receive(&discover));
    assert_eq!(
        (kind, &frame[..6], to(&frame)),
        (type4::OFFER, &HOST[..], V4.into())
    );
    let message = Message4::new(payload(&frame)).expect("a message");
    assert_eq!((message.gets, message.xid), (V4, 0x0102_0304));
    assert_eq!(message.server, Some(&SERVER_V4.octets()[..]));
    assert!(payload(&frame).len() >= 300);
    let expected: [(u8, &[u8]); 7] = [
        (code4::MASK, &[255, 255, 252, 0]),
        (code4::ROUTER, &[10, 0, 0, 1]),
        (code4::NAME_SERVERS, &[10, 0, 0, 2, 10, 0, 0, 3]),
        (code4::MTU, &1450_u16.to_be_bytes()),
        (code4::LEASE_TIME, &LEASE_S.to_be_bytes()),
        (code4::RENEWAL_TIME, &1800_u32.to_be_bytes()),
        (code4::REBINDING_TIME, &1860_u32.to_be_bytes()),
    ];
    for (code, value) in expected {
        assert_eq!(option4(&frame, code), Some(value), "option {code}");
    }
    // A client that cannot take unicast says so.
    let mut cannot = request(&[
        (code4::TYPE, &[type4::DISCOVER]),
        (code4::CLIENT_ID, b"\x01abc"),
    ]);
    cannot[10] = 0x80;
    let (_, frame) = said4(receive(&to_server(&cannot)));
    assert_eq!(
        (&frame[..6], to(&frame)),
        (&[0xff; 6][..], Ipv4Addr::BROADCAST.into())
    );
    assert_eq!(option4(&frame, code4::CLIENT_ID), Some(&b"\x01abc"[..]));
}

/// A lease has times in their order, however short it is: a client that is answered at the second of them alone keeps it.
#[test]
fn leases_are_renewed_before_they_end() {
    for (lease_s, renew, rebind) in [(3600, 1800, 1860), (30, 15, 18), (86_400, 43_200, 43_260)] {
        let network = Network {
            lease_s,
            ..network()
        };
        let discover = to_server(&request(&[(code4::TYPE, &[type4::DISCOVER])]));
        let (_, frame) = said4(network.receive(&discover, Some(&host())));
        let time = |code| {
            let option = option4(&frame, code).expect("a time");
            u32::from_be_bytes(*option.first_chunk().expect("a time"))
        };
        let times = [code4::RENEWAL_TIME, code4::REBINDING_TIME].map(time);
        assert_eq!(times, [renew, rebind]);
        let solicit = network.receive(&solicit(&[]), Some(&host()));
        let association = option6(&said6(solicit).1, code6::IA_NA).expect("an association");
        assert_eq!(association[4..8], renew.to_be_bytes());
        assert_eq!(association[8..12], rebind.to_be_bytes());
    }
}

/// The four requests of a client (RFC 2131, section 4.3.2), for its own address and for another's.
#[test]
fn requests_are_for_the_record() {
    let (own, others) = (V4.octets(), [10, 0, 0, 6]);
    let server = SERVER_V4.octets();
    let ask = |has: [u8; 4], options: &[(u8, &[u8])]| {
        let all = [&[(code4::TYPE, &[type4::REQUEST][..])], options].concat();
        let mut message = request(&all);
        message[12..16].copy_from_slice(&has);
        receive(&to_server(&message))
    };
    let nobody = [0; 4];
    for (wanted, kind) in [(own, type4::ACK), (others, type4::NAK)] {
        let selecting: [(u8, &[u8]); 2] =
            [(code4::SERVER_ID, &server), (code4::REQUESTED, &wanted)];
        assert_eq!(said4(ask(nobody, &selecting)).0, kind);
        let (said, frame) = said4(ask(nobody, &[(code4::REQUESTED, &wanted)]));
        assert_eq!(said, kind);
        let gets = if kind == type4::ACK {
            V4
        } else {
            Ipv4Addr::UNSPECIFIED
        };
        assert_eq!(
            Message4::new(payload(&frame)).expect("a message").gets,
            gets
        );
        // Renewing and rebinding.
        let (said, frame) = said4(ask(wanted, &[]));
        assert_eq!(said, kind);
        let expected = if kind == type4::ACK {
            V4
        } else {
            Ipv4Addr::BROADCAST
        };
        assert_eq!(to(&frame), expected);
    }
    assert!(matches!(ask(nobody, &[]), Outcome::Refuse(_)));
    let elsewhere: [(u8, &[u8]); 2] =
        [(code4::SERVER_ID, &[10, 0, 0, 9]), (code4::REQUESTED, &own)];
    assert_eq!(ask(nobody, &elsewhere), Outcome::Done);
}

/// What needs no lease: INFORM of the address's owner, and of another; RELEASE and DECLINE.
#[test]
fn the_rest_of_a_client() {
    let say = |kind: u8, has: [u8; 4]| {
        let mut message = request(&[(code4::TYPE, &[kind])]);
        message[12..16].copy_from_slice(&has);
        receive(&to_server(&message))
    };
    let (kind, frame) = said4(say(type4::INFORM, V4.octets()));
    assert_eq!((kind, to(&frame)), (type4::ACK, V4.into()));
    assert_eq!(option4(&frame, code4::LEASE_TIME), None);
    assert_eq!(
        Message4::new(payload(&frame)).expect("a message").gets,
        Ipv4Addr::UNSPECIFIED
    );
    assert_eq!(say(type4::INFORM, [10, 0, 0, 6]), Outcome::Done);
    assert_eq!(say(type4::RELEASE, V4.octets()), Outcome::Done);
    assert_eq!(say(type4::DECLINE, [0; 4]), Outcome::Done);
    for server in [type4::OFFER, type4::ACK, type4::NAK, 9] {
        assert_eq!(say(server, [0; 4]), Outcome::Drop);
    }
}

/// What is not a client's, or is not whole, is dropped: relays, another's hardware address, answers, giants, parts, anything cut off.
#[test]
fn what_is_no_request_is_dropped() {
    let good = request(&[(code4::TYPE, &[type4::DISCOVER])]);
    let changed = |at: usize, byte: u8| {
        let mut message = good.clone();
        message[at] = byte;
        receive(&to_server(&message))
    };
    // Operation, hardware type and length, relay, hardware address, cookie.
    for (at, byte) in [(0, 2), (1, 6), (2, 16), (24, 10), (33, 6), (236, 0)] {
        assert_eq!(changed(at, byte), Outcome::Drop, "byte {at}");
    }
    let mut giant = good.clone();
    giant.resize(MESSAGE_MAX, 0);
    assert!(matches!(receive(&to_server(&giant)), Outcome::Answer(_)));
    giant.push(0);
    assert_eq!(receive(&to_server(&giant)), Outcome::Drop);
    let frame = to_server(&good);
    let mut part = frame.clone();
    part[20] = 0x20;
    assert_eq!(receive(&part), Outcome::Drop);
    for end in 0..frame.len() {
        let outcome = receive(&frame[..end]);
        assert!(
            matches!(outcome, Outcome::Drop | Outcome::Pass),
            "{end}: {outcome:?}"
        );
    }
    // Two types of message, an option that goes beyond the end.
    let twice = request(&[(code4::TYPE, &[1]), (code4::TYPE, &[3])]);
    assert_eq!(receive(&to_server(&twice)), Outcome::Drop);
    let mut beyond = request(&[(code4::TYPE, &[1])]);
    beyond.truncate(243);
    beyond.extend([code4::CLIENT_ID, 200]);
    assert_eq!(receive(&to_server(&beyond)), Outcome::Drop);
}

/// Who has no record, none of this version of IP, or none in the network, is not known: the frame goes on. So it does where the network does not serve.
#[test]
fn strangers_are_passed_on() {
    let discover = to_server(&request(&[(code4::TYPE, &[type4::DISCOVER])]));
    let solicit = solicit(&[]);
    let network = network();
    for ips in [vec![], vec![[192, 0, 2, 7].into()]] {
        let host = Host { mac: HOST, ips };
        for frame in [&discover, &solicit] {
            assert_eq!(network.receive(frame, Some(&host)), Outcome::Pass);
            assert_eq!(network.receive(frame, None), Outcome::Pass);
        }
    }
    let silent = Network {
        leases: false,
        advertises: false,
        ..network
    };
    let router = discovery(LINK, &[133, 0, 0, 0, 0, 0, 0, 0]);
    let advertisement = discovery(LINK, &[134; 16]);
    for frame in [discover, solicit, router, advertisement] {
        assert_eq!(silent.receive(&frame, Some(&host())), Outcome::Pass);
    }
}

/// A message of DHCPv6 with a client identifier and these options.
fn message6(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![kind, 7, 8, 9];
    for (code, value) in [(code6::CLIENT_ID, &CLIENT[..])].iter().chain(options) {
        message.extend(code.to_be_bytes());
        message.extend((value.len() as u16).to_be_bytes());
        message.extend(*value);
    }
    message
}

fn solicit(options: &[(u16, &[u8])]) -> Vec<u8> {
    let association: (u16, &[u8]) = (code6::IA_NA, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    to_servers(&message6(
        type6::SOLICIT,
        &[&[association], options].concat(),
    ))
}

/// An identity association with addresses.
fn association(id: u8, addresses: &[Ipv6Addr]) -> Vec<u8> {
    let mut value = vec![0, 0, 0, id, 0, 0, 0, 0, 0, 0, 0, 0];
    for address in addresses {
        value.extend([0, 5, 0, 24]);
        value.extend(address.octets());
        value.extend([0, 0, 1, 0, 0, 0, 1, 0]);
    }
    value
}

fn said6(outcome: Outcome) -> (u8, Vec<u8>) {
    match outcome {
        Outcome::Answer(frame) | Outcome::Refuse(frame) => {
            let message = payload(&frame).to_vec();
            assert_eq!((to(&frame), &frame[..6]), (LINK.into(), &HOST[..]));
            assert_eq!(frame[22..38], SERVER_V6.octets());
            assert_eq!(message[1..4], [7, 8, 9]);
            (message[0], message)
        }
        other => panic!("{other:?}"),
    }
}

fn option6(message: &[u8], code: u16) -> Option<Vec<u8>> {
    let mut options = Options6(&message[4..]).map(|option| option.expect("sound"));
    options
        .find(|(this, _)| *this == code)
        .map(|(_, value)| value.to_vec())
}

/// SOLICIT and REQUEST give the record's address; with rapid commit the first is enough. A second association gets nothing.
#[test]
fn a_host_gets_its_record_over_ipv6() {
    let (kind, message) = said6(receive(&solicit(&[])));
    assert_eq!(
        (kind, given(&message[4..])),
        (type6::ADVERTISE, vec![(V6, LEASE_S)])
    );
    assert_eq!(option6(&message, code6::SERVER_ID), Some(SERVER.to_vec()));
    assert_eq!(option6(&message, code6::CLIENT_ID), Some(CLIENT.to_vec()));
    let (kind, message) = said6(receive(&solicit(&[(code6::RAPID_COMMIT, &[])])));
    assert_eq!(
        (kind, option6(&message, code6::RAPID_COMMIT)),
        (type6::REPLY, Some(vec![]))
    );
    let [first, second] = [1, 2].map(|id| association(id, &[]));
    let both: [(u16, &[u8]); 3] = [
        (code6::SERVER_ID, &SERVER),
        (code6::IA_NA, &first),
        (code6::IA_NA, &second),
    ];
    let (kind, message) = said6(receive(&to_servers(&message6(type6::REQUEST, &both))));
    assert_eq!(
        (kind, given(&message[4..])),
        (type6::REPLY, vec![(V6, LEASE_S)])
    );
    let information = message6(type6::INFORMATION, &[]);
    assert_eq!(said6(receive(&to_servers(&information))).0, type6::REPLY);
    let anonymous = to_servers(&[type6::INFORMATION, 7, 8, 9]);
    let (kind, message) = said6(receive(&anonymous));
    let server = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    let told = option6(&message, code6::NAME_SERVERS);
    assert_eq!((kind, told), (type6::REPLY, Some(server.octets().to_vec())));
}

/// Another's address is not kept: RENEW and REBIND end it, CONFIRM says that it is not here. One's own is.
#[test]
fn others_addresses_end() {
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 6);
    let server: (u16, &[u8]) = (code6::SERVER_ID, &SERVER);
    let say = |kind: u8, addresses: &[Ipv6Addr]| {
        let ia = association(1, addresses);
        let named = matches!(kind, type6::RENEW | type6::RELEASE | type6::DECLINE);
        let options = [(code6::IA_NA, &ia[..])];
        let all = if named {
            vec![server, options[0]]
        } else {
            options.to_vec()
        };
        receive(&to_servers(&message6(kind, &all)))
    };
    for kind in [type6::RENEW, type6::REBIND] {
        let outcome = say(kind, &[V6]);
        assert!(matches!(outcome, Outcome::Answer(_)));
        assert_eq!(given(&said6(outcome).1[4..]), [(V6, LEASE_S)]);
        let outcome = say(kind, &[other]);
        assert!(matches!(outcome, Outcome::Refuse(_)));
        assert_eq!(given(&said6(outcome).1[4..]), [(V6, LEASE_S), (other, 0)]);
    }
    let status = |outcome| option6(&said6(outcome).1, code6::STATUS).expect("a status");
    assert_eq!(status(say(type6::CONFIRM, &[V6])), [0, 0]);
    assert_eq!(status(say(type6::CONFIRM, &[V6, other])), [0, 4]);
    assert_eq!(say(type6::CONFIRM, &[]), Outcome::Done);
    assert_eq!(status(say(type6::RELEASE, &[V6])), [0, 0]);
    assert_eq!(status(say(type6::DECLINE, &[V6])), [0, 0]);
}

/// Messages that RFC 8415, section 16, has servers discard, those of relays, and those that are not whole.
#[test]
fn what_is_no_request_is_dropped_over_ipv6() {
    let drop =
        |message: Vec<u8>| assert_eq!(receive(&to_servers(&message)), Outcome::Drop, "{message:?}");
    let server: (u16, &[u8]) = (code6::SERVER_ID, &SERVER);
    for kind in [type6::SOLICIT, type6::CONFIRM, type6::REBIND] {
        drop(message6(kind, &[server]));
        drop(vec![kind, 7, 8, 9]);
    }
    for kind in [type6::REQUEST, type6::RENEW, type6::RELEASE, type6::DECLINE] {
        drop(message6(kind, &[]));
    }
    // Those of servers and relays.
    for kind in [0, type6::ADVERTISE, type6::REPLY, 10, 12, 13] {
        drop(message6(kind, &[]));
    }
    drop(message6(type6::SOLICIT, &[(code6::CLIENT_ID, &CLIENT)]));
    drop(message6(type6::SOLICIT, &[(code6::IA_NA, &[0; 11])]));
    let nine = [(code6::IA_NA, &[0; 12][..]); 9];
    drop(message6(type6::SOLICIT, &nine));
    let long = [&[0, 0, 0, 131][..], &[1; 131]].concat();
    drop([&[type6::SOLICIT, 7, 8, 9, 0, 1][..], &long[2..]].concat());
    let other: (u16, &[u8]) = (code6::SERVER_ID, &OTHER);
    let request = to_servers(&message6(type6::REQUEST, &[other]));
    assert_eq!(receive(&request), Outcome::Done);
    let whole = solicit(&[]);
    for end in 0..whole.len() {
        let outcome = receive(&whole[..end]);
        assert!(
            matches!(outcome, Outcome::Drop | Outcome::Pass),
            "{end}: {outcome:?}"
        );
    }
}

/// The longest message that names addresses gets an answer within its bounds.
#[test]
fn the_longest_answer_fits() {
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 6);
    let ias: Vec<_> = (0..8)
        .map(|id| association(id, &[other; 4][..3 + usize::from(id % 2)]))
        .collect();
    let options: Vec<_> = ias.iter().map(|ia| (code6::IA_NA, &ia[..])).collect();
    let message = message6(type6::REBIND, &options);
    assert!(
        (900..=MESSAGE_MAX).contains(&message.len()),
        "{}",
        message.len()
    );
    let (_, message) = said6(receive(&to_servers(&message)));
    assert_eq!(given(&message[4..]).len(), 1 + 28);
}

/// A solicitation is answered to its sender, or to all where it has no address; what a router could not have sent is not.
#[test]
fn routers_are_solicited() {
    let solicitation = [133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 5];
    let advertised = |outcome: Outcome| match outcome {
        Outcome::Answer(frame) => frame,
        other => panic!("{other:?}"),
    };
    let frame = advertised(receive(&discovery(LINK, &solicitation)));
    assert_eq!((to(&frame), &frame[..6]), (LINK.into(), &HOST[..]));
    // From the router, hop limit 255.
    assert_eq!(
        (frame[21], &frame[22..24], frame[37]),
        (255, &[0xfe, 0x80][..], 1)
    );
    // Managed, for half an hour; MTU; the prefix is on the link, and makes no addresses; a name server for half an hour.
    assert_eq!(
        (frame[59], &frame[60..62]),
        (0x80, &1800_u16.to_be_bytes()[..])
    );
    assert_eq!(&frame[70..78], &[5, 1, 0, 0, 0, 0, 5, 0xaa]);
    assert_eq!(&frame[78..82], &[3, 4, 64, 0x80]);
    assert_eq!(&frame[110..120], &[25, 3, 0, 0, 0, 0, 7, 8, 0xfd, 0]);
    assert_eq!(frame.len(), 14 + 40 + 16 + 8 + 32 + 24);
    let alone = Network {
        router_v6: None,
        leases: false,
        ..network()
    };
    let frame = advertised(alone.receive(&discovery(LINK, &solicitation), None));
    assert_eq!(
        (&frame[22..38], &frame[60..62]),
        (&SERVER_V6.octets()[..], &[0, 0][..])
    );
    assert_eq!((frame[59], &frame[78..82]), (0, &[3, 4, 64, 0xc0][..]));
    let frame = advertised(receive(&discovery(
        Ipv6Addr::UNSPECIFIED,
        &solicitation[..8],
    )));
    assert_eq!(frame, network().advertisement().expect("it advertises"));

    let mut far = discovery(LINK, &solicitation);
    far[21] = 254;
    let mut wrong = discovery(LINK, &solicitation);
    wrong[57] ^= 1;
    let mut code = solicitation;
    code[1] = 1;
    let mut endless = solicitation;
    endless[9] = 0;
    let bad = [
        far,
        wrong,
        discovery(LINK, &code),
        discovery(LINK, &endless),
        discovery(LINK, &solicitation[..12]),
        // No address, and an option that says one.
        discovery(Ipv6Addr::UNSPECIFIED, &solicitation),
        discovery(LINK, &[134; 16]),
    ];
    for frame in bad {
        assert_eq!(receive(&frame), Outcome::Drop);
    }
}
