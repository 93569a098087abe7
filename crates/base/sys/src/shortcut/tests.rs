//! The program of a member's end, run by the kernel.

use std::os::fd::{AsFd, AsRawFd};

use super::*;

const ENDS: Ends = Ends {
    mac: [0x82, 0xff, 0xfe, 0xfd, 0xfc, 0xfb],
    host: 0xffff_0001,
    tap: 0x8000_0002,
};

fn shortcut(name: &str) -> Option<Arc<Shortcut>> {
    match Shortcut::new() {
        Ok(shortcut) => Some(Arc::new(shortcut)),
        Err(error) => {
            println!("skipped: {name}: {error}");
            None
        }
    }
}

/// The part of `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RunAttributes {
    program: u32,
    answer: u32,
    frame_bytes: u32,
    frame_bytes_out: u32,
    frame: u64,
    frame_out: u64,
    repeat: u32,
    duration: u32,
    context_bytes: u32,
    context_bytes_out: u32,
    context: u64,
    context_out: u64,
}

const BPF_PROG_TEST_RUN: libc::c_int = 10;
const TC_ACT_REDIRECT: u32 = 7;

/// A member at whose interface the programs are: in a test, the loopback interface is everybody's.
struct At {
    of: Arc<Shortcut>,
    found: [u8; 24],
}

impl At {
    fn of(slot: &Slot, mac: Mac) -> At {
        At {
            of: slot.of.clone(),
            found: slot.interface(mac, ENDS.tap),
        }
    }

    fn enter(&self) {
        let index = crate::hooks::LOOPBACK_INDEX.to_ne_bytes();
        let put = self.of.maps.interfaces.put(&index, &self.found);
        put.expect("an interface");
    }
}

/// Has a member send a frame that is to be cut into segments of so many bytes, or not at all (0).
fn run(at: &At, frame: &[u8], gso_size: u32) {
    at.enter();
    let answer = answer(&at.of.leave, frame, gso_size);
    assert_eq!(answer, TC_ACT_REDIRECT, "to one of the two");
}

/// What a program says of a frame.
fn answer(program: &Program, frame: &[u8], gso_size: u32) -> u32 {
    let mut context = [0_u32; 48];
    context[usize::try_from(GSO_SIZE).expect("an offset") / 4] = gso_size;
    let mut attributes = RunAttributes {
        program: program.as_fd().as_raw_fd().cast_unsigned(),
        frame_bytes: frame.len() as u32,
        frame: frame.as_ptr().expose_provenance() as u64,
        repeat: 1,
        context_bytes: size_of_val(&context) as u32,
        context: context.as_ptr().expose_provenance() as u64,
        ..RunAttributes::default()
    };
    // SAFETY: the addresses are those of a frame and a context of the lengths beside them, which outlive the call.
    let done = unsafe { crate::bpf::bpf(BPF_PROG_TEST_RUN, &mut attributes) };
    done.expect("a run");
    attributes.answer
}

/// A member of place 1, and its end.
fn member(shortcut: &Arc<Shortcut>, last: u8) -> (Slot, At) {
    checked(shortcut, last, Checks::None)
}

/// The same with checks.
fn checked(shortcut: &Arc<Shortcut>, last: u8, checks: Checks) -> (Slot, At) {
    let slot = shortcut.slot().expect("a slot");
    let mac = [0x82, 0xff, 0xfe, 0xfd, 0xfc, last];
    let ends = Ends { mac, ..ENDS };
    slot.set_ends(ends).expect("ends");
    slot.set_up(true).expect("up");
    slot.open(Some(Place {
        number: 1,
        mtu: 1500,
        checks,
    }))
    .expect("open");
    let at = At::of(&slot, mac);
    (slot, at)
}

/// TCP over IPv4 between two members.
fn frame(to: u8, from: u8, bytes: usize) -> Vec<u8> {
    let mut frame = vec![
        0x82, 0xff, 0xfe, 0xfd, 0xfc, to, 0x82, 0xff, 0xfe, 0xfd, 0xfc, from,
    ];
    frame.extend([8, 0, 0x45]);
    frame.resize(bytes, 0);
    frame[23] = 6;
    frame[46] = 0x80;
    frame
}

/// A slot's number that is another member's now opens nothing to the program of the member before, which may still be at its
/// interface.
#[test]
fn a_number_that_is_used_again_opens_nothing() {
    let name = "a_number_that_is_used_again_opens_nothing";
    let Some(shortcut) = shortcut(name) else {
        return;
    };
    let (a, of_a) = member(&shortcut, 1);
    let (b, _) = member(&shortcut, 2);
    run(&of_a, &frame(2, 1, 100), 0);
    let passed = Passed {
        rx_frames: 1,
        rx_bytes: 100,
        ..Passed::default()
    };
    assert_eq!(a.passed(), passed);
    assert_eq!((b.passed().tx_frames, b.passed().tx_bytes), (1, 100));
    let number = a.number;
    drop(a);
    let (c, of_c) = member(&shortcut, 3);
    assert_eq!(c.number, number);
    run(&of_a, &frame(2, 1, 100), 0);
    assert_eq!((b.passed().tx_frames, c.passed().rx_frames), (1, 0));
    run(&of_c, &frame(2, 3, 100), 0);
    assert_eq!((b.passed().tx_frames, c.passed().rx_frames), (2, 1));
}

/// Only what the receiver takes goes by: its own address, from the sender's own, of a kind that it may be, whole or in segments that
/// fit. After a frame that did not, the pair's next ones do not either: it may still be on its way.
#[test]
fn only_what_fits_goes_by() {
    let Some(shortcut) = shortcut("only_what_fits_goes_by") else {
        return;
    };
    let goes_by = |frame: &[u8], gso_size| {
        let (a, of_a) = member(&shortcut, 1);
        let (_b, _) = member(&shortcut, 2);
        let before = a.passed().rx_frames;
        run(&of_a, frame, gso_size);
        let goes_by = a.passed().rx_frames > before;
        shortcut
            .maps
            .pairs
            .take(&[&frame[..12], &[0; 4]].concat())
            .expect("a pair");
        goes_by
    };
    assert!(goes_by(&frame(2, 1, 60), 0) && goes_by(&frame(2, 1, 1514), 0));
    assert!(!goes_by(&frame(2, 1, 1515), 0), "longer than the MTU");
    // 20 bytes of IPv4, 32 of TCP.
    assert!(goes_by(&frame(2, 1, 3000), 1448));
    assert!(!goes_by(&frame(2, 1, 3000), 1449));
    let mut other = frame(2, 1, 3000);
    other[23] = 132;
    assert!(!goes_by(&other, 1000), "SCTP, to be cut");
    let mut options = frame(2, 1, 3000);
    options[14] = 0x46;
    assert!(!goes_by(&options, 1000), "IPv4 with options, to be cut");
    assert!(!goes_by(&frame(3, 1, 60), 0), "to a stranger");
    assert!(!goes_by(&frame(2, 3, 60), 0), "from a stranger");
    assert!(!goes_by(&frame(1, 2, 60), 0), "from the other one");
    let mut kind = frame(2, 1, 60);
    kind[12] = 0x88;
    assert!(!goes_by(&kind, 0), "of another kind");

    let (a, of_a) = member(&shortcut, 1);
    let (_b, _) = member(&shortcut, 2);
    let before = a.passed().rx_frames;
    run(&of_a, &kind, 0);
    run(&of_a, &frame(2, 1, 60), 0);
    assert_eq!(a.passed().rx_frames, before, "behind one that is under way");
}

/// A program that has read the place of a member, and nothing of the checks any more, lets nothing by.
#[test]
fn half_a_place_is_none() {
    let Some(shortcut) = shortcut("half_a_place_is_none") else {
        return;
    };
    let (a, of_a) = member(&shortcut, 1);
    let (_b, _) = member(&shortcut, 2);
    let torn = [1, a.whose, 0, 0].map(u32::to_ne_bytes);
    let number = a.number.to_ne_bytes();
    shortcut
        .maps
        .places
        .put(&number, torn.as_flattened())
        .expect("put");
    run(&of_a, &frame(2, 1, 60), 0);
    assert_eq!(a.passed().rx_frames, 0);
}

/// A frame that is no plain one, but goes to the same member, counts as under way: what is written of it would else be taken for
/// another one.
#[test]
fn what_is_not_plain_counts_as_under_way() {
    let Some(shortcut) = shortcut("what_is_not_plain_counts_as_under_way") else {
        return;
    };
    let mut tagged = frame(2, 1, 60);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut short = frame(2, 1, 60);
    short[12] = 0x88;
    short.truncate(33);
    for strange in [tagged, short] {
        let (a, of_a) = member(&shortcut, 1);
        let (_b, of_b) = member(&shortcut, 2);
        run(&of_a, &frame(2, 1, 1515), 0);
        run(&of_a, &strange, 0);
        // The worker has written one of the two.
        of_b.enter();
        assert_eq!(answer(&shortcut.arrive, &strange, 0), TC_ACT_REDIRECT);
        run(&of_a, &frame(2, 1, 60), 0);
        assert_eq!(a.passed().rx_frames, 0, "the first is under way");
        let pair = [&strange[..12], &[0; 4]].concat();
        shortcut.maps.pairs.take(&pair).expect("a pair");
    }
}

/// A whole TCP segment or UDP datagram over IPv4, with `bytes` of payload and addresses of zeros.
fn packet4(protocol: u8, port: u16, bytes: usize) -> Vec<u8> {
    let header = if protocol == 6 { 20 } else { 8 };
    let mut packet = frame(2, 1, 100);
    packet.resize(34 + header + bytes, 0);
    let size = (20 + header + bytes) as u16;
    packet[16..18].copy_from_slice(&size.to_be_bytes());
    packet[23] = protocol;
    packet[26..30].copy_from_slice(&[10, 1, 0, 1]);
    packet[36..38].copy_from_slice(&port.to_be_bytes());
    match protocol {
        6 => packet[46] = 0x50,
        _ => packet[38..40].copy_from_slice(&(size - 20).to_be_bytes()),
    }
    packet
}

/// The same over IPv6.
fn packet6(protocol: u8, port: u16, bytes: usize) -> Vec<u8> {
    let v4 = packet4(protocol, port, bytes);
    let mut packet = v4[..14].to_vec();
    packet[12..14].copy_from_slice(&[0x86, 0xdd]);
    packet.extend([0x60, 0, 0, 0]);
    let size = (v4.len() - 34) as u16;
    packet.extend(size.to_be_bytes());
    packet.extend([protocol, 64]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0; 16]);
    packet.extend(&v4[34..]);
    packet
}

/// With checks on, whole segments and datagrams go by if their source is allowed; whatever else there is goes to the worker, which
/// judges it.
#[test]
fn what_is_checked_is_whole() {
    let Some(shortcut) = shortcut("what_is_checked_is_whole") else {
        return;
    };
    let goes_by = |checks: &Checks, frame: &[u8]| {
        let (a, of_a) = checked(&shortcut, 1, checks.clone());
        let (_b, _) = member(&shortcut, 2);
        run(&of_a, frame, 0);
        let pair = [&frame[..12], &[0; 4]].concat();
        shortcut.maps.pairs.take(&pair).expect("a pair");
        a.passed().rx_frames == 1
    };
    let all = Checks::Transport;
    let of = |addresses: &[&str]| {
        let parsed = addresses
            .iter()
            .map(|text| text.parse().expect("an address"));
        Checks::Sources(parsed.collect())
    };
    let (own, other) = (
        of(&["10.1.0.1", "fd00::1"]),
        of(&["10.1.0.2", "fd00::2", "::10.1.0.1"]),
    );
    let plain = [
        packet4(6, 80, 20),
        packet4(17, 80, 0),
        packet6(6, 80, 20),
        packet6(17, 80, 20),
    ];
    for frame in &plain {
        assert!(goes_by(&all, frame) && goes_by(&own, frame), "{frame:02x?}");
        assert!(!goes_by(&other, frame), "another's: {frame:02x?}");
        assert!(!goes_by(&of(&[]), frame), "nobody's: {frame:02x?}");
    }
    let changed = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    let [tcp4, udp4, tcp6, udp6] = &plain;
    for (what, frame) in [
        ("options", changed(tcp4, 14, 0x46)),
        ("the first fragment", changed(tcp4, 20, 0x20)),
        ("a later fragment", changed(udp4, 21, 1)),
        ("ICMP", changed(tcp4, 23, 1)),
        ("longer than the frame", changed(tcp4, 17, 61)),
        ("shorter than its headers", changed(tcp4, 17, 39)),
        ("a long header", changed(tcp4, 46, 0xb0)),
        ("a short header", changed(tcp4, 46, 0x40)),
        ("a long datagram", changed(udp4, 39, 9)),
        ("a short datagram", changed(udp4, 39, 7)),
        ("another version", changed(tcp6, 14, 0x40)),
        ("ICMPv6", changed(tcp6, 20, 58)),
        ("longer than the frame", changed(tcp6, 19, 41)),
        ("an extension header", changed(udp6, 20, 0)),
        ("to a DHCP server", packet4(17, 67, 20)),
        ("to a DHCP client", packet4(17, 68, 20)),
        ("to a DHCPv6 client", packet6(17, 546, 20)),
        ("to a DHCPv6 server", packet6(17, 547, 20)),
        ("ARP", changed(&changed(tcp4, 12, 8), 13, 6)),
    ] {
        assert!(!goes_by(&all, &frame), "{what}");
        assert!(goes_by(&Checks::None, &frame), "{what}, unchecked");
    }
}

/// Addresses are those of the open member alone: opened anew, it has none of the former.
#[test]
fn sources_go_with_their_place() {
    let Some(shortcut) = shortcut("sources_go_with_their_place") else {
        return;
    };
    let [own, other] = ["10.1.0.1", "10.1.0.2"]
        .map(|text| Checks::Sources([text.parse().expect("an address")].into()));
    let tcp4 = packet4(6, 80, 20);
    let (a, of_a) = checked(&shortcut, 1, own);
    a.open(None).expect("closed");
    let (b, _) = member(&shortcut, 2);
    a.open(Some(Place {
        number: 1,
        mtu: 1500,
        checks: other,
    }))
    .expect("open");
    run(&of_a, &tcp4, 0);
    assert_eq!(b.passed().tx_frames, 0, "no address of its own any more");
}

/// At an interface of no member, and at one whose member is gone, the programs pass nothing.
#[test]
fn without_a_member_nothing_passes() {
    let Some(shortcut) = shortcut("without_a_member_nothing_passes") else {
        return;
    };
    let index = crate::hooks::LOOPBACK_INDEX;
    let passes = || {
        let programs = [&shortcut.leave, &shortcut.arrive];
        programs.map(|program| answer(program, &frame(2, 1, 60), 0) == TC_ACT_REDIRECT)
    };
    assert_eq!(passes(), [false; 2]);
    let slot = shortcut.slot().expect("a slot");
    let at = |tap| Ends {
        host: index,
        tap,
        ..ENDS
    };
    slot.set_ends(at(7)).expect("ends");
    assert_eq!(passes(), [true; 2]);
    // Its interfaces have other indices now, and this one is another member's.
    let other = shortcut.slot().expect("a slot");
    other.set_ends(at(8)).expect("ends");
    slot.set_ends(ENDS).expect("ends");
    assert_eq!(passes(), [true; 2]);
    drop(slot);
    assert_eq!(passes(), [true; 2]);
    drop(other);
    assert_eq!(passes(), [false; 2]);
}

/// As many members as there are slots may each get other interfaces and another address.
#[test]
fn all_members_may_be_made_anew() {
    let Some(shortcut) = shortcut("all_members_may_be_made_anew") else {
        return;
    };
    let slots: Vec<Slot> = std::iter::from_fn(|| shortcut.slot().ok()).collect();
    assert_eq!(slots.len(), SLOTS as usize);
    for round in 0..2 {
        for (number, slot) in (0..).zip(&slots) {
            let index = (round << 20) | (number << 1);
            let [_, a, b, c] = u32::to_be_bytes(index);
            let ends = Ends {
                mac: [0x82, 0, 0, a, b, c],
                host: index + 1,
                tap: index + 2,
            };
            slot.set_ends(ends).expect("room");
        }
    }
}
