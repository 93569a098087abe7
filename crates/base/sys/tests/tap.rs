//! TAP devices against the kernel.

#![allow(clippy::unwrap_used)]

mod lab;

use std::net::{IpAddr, UdpSocket};

use lab::{Lab, arp_request, can_run, is_arp_reply, readable};
use windlass_sys::bpf::Program;
use windlass_sys::netlink::{Netlink, Route};
use windlass_sys::tap::{Tap, TapError, TapOptions, TapQueue, VNET_HEADER_BYTES};
use windlass_sys::vectored::{iovec, readv_raw, writev_raw};
use windlass_sys::{Errno, IoSlice, IoSliceMut};

const MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
const IP: [u8; 4] = [10, 9, 0, 1];

fn open(lab: &Lab, name: &str, queues: u16, options: TapOptions) -> Result<Tap, TapError> {
    lab.within(|| Tap::open(name, queues, &options))
}

fn read(queue: &TapQueue) -> Result<Vec<u8>, Errno> {
    let mut header = [0; VNET_HEADER_BYTES];
    let mut frame = vec![0; 65_536];
    let space = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(&mut frame)];
    let bytes = queue.read_frame(space)?;
    frame.truncate(bytes - VNET_HEADER_BYTES);
    Ok(frame)
}

fn write(queue: &TapQueue, frame: &[u8]) -> Result<usize, Errno> {
    queue.write_frame(&[IoSlice::new(&[0; VNET_HEADER_BYTES]), IoSlice::new(frame)])
}

/// A persistent TAP keeps MAC, address and route while nobody holds it, comes back under the same
/// index, works again, and goes when it is no longer persistent.
#[test]
fn persistent_tap_survives_its_reader() {
    if !can_run("persistent_tap_survives_its_reader") {
        return;
    }
    let lab = Lab::create("tap-keep");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let tap = open(&lab, "t0", 1, TapOptions::default()).unwrap();
    let index = tap.index();
    assert!(tap.was_created() && !tap.is_persistent().unwrap());
    tap.set_persistent(true).unwrap();
    netlink.set_link_mac(index, MAC).unwrap();
    netlink.add_address(index, IpAddr::from(IP), 24).unwrap();
    netlink.set_link_up(index, true).unwrap();
    let route = Route {
        network: IpAddr::from([10, 10, 0, 0]),
        prefix: 16,
        gateway: Some(IpAddr::from([10, 9, 0, 2])),
        index: Some(index),
    };
    netlink.add_route(&route).unwrap();
    assert!(netlink.link_by_index(index).unwrap().unwrap().has_carrier());

    drop(tap);
    assert!(!netlink.link_by_index(index).unwrap().unwrap().has_carrier());
    let tap = open(&lab, "t0", 1, TapOptions::default()).unwrap();
    assert!(!tap.was_created() && tap.is_persistent().unwrap());
    assert_eq!(tap.index(), index);
    let link = netlink.link_by_index(index).unwrap().unwrap();
    assert_eq!((link.mac, link.kind.as_deref()), (Some(MAC), Some("tun")));
    assert!(link.is_up() && link.has_carrier());
    let addresses = netlink.addresses_of(index).unwrap();
    assert!(
        addresses
            .iter()
            .any(|address| address.ip == IpAddr::from(IP) && address.prefix == 24)
    );
    assert!(netlink.routes().unwrap().contains(&route));
    answers_arp(&tap.queues()[0]);

    tap.set_persistent(false).unwrap();
    drop(tap);
    assert_eq!(netlink.link_by_index(index).unwrap(), None);
}

fn answers_arp(queue: &TapQueue) {
    let request = arp_request([2, 0, 0, 0, 9, 2], [10, 9, 0, 2], IP);
    assert_eq!(
        write(queue, &request).unwrap(),
        VNET_HEADER_BYTES + request.len()
    );
    loop {
        assert!(readable(queue), "no ARP reply");
        if is_arp_reply(&read(queue).unwrap(), IP) {
            return;
        }
    }
}

/// The raw calls carry the same frames, and an unmapped range is `EFAULT` and not a signal.
#[test]
fn raw_ranges_carry_frames() {
    if !can_run("raw_ranges_carry_frames") {
        return;
    }
    let lab = Lab::create("tap-raw");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let tap = open(&lab, "t0", 1, TapOptions::default()).unwrap();
    netlink
        .add_address(tap.index(), IpAddr::from(IP), 24)
        .unwrap();
    netlink.set_link_up(tap.index(), true).unwrap();
    let queue = &tap.queues()[0];
    let mut out = vec![0; VNET_HEADER_BYTES];
    out.extend(arp_request([2, 0, 0, 0, 9, 2], [10, 9, 0, 2], IP));
    let (head, tail) = out.split_at(40);
    let ranges = [head, tail].map(|part| iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: both ranges are this test's own frame.
    assert_eq!(unsafe { writev_raw(queue, &ranges) }, Ok(out.len()));
    let nowhere = [iovec {
        iov_base: std::ptr::without_provenance_mut(4096),
        iov_len: 80,
    }];
    // SAFETY: nothing is mapped there.
    assert_eq!(unsafe { writev_raw(queue, &nowhere) }, Err(Errno::FAULT));
    let mut space = vec![0_u8; 2048];
    let whole = [iovec {
        iov_base: space.as_mut_ptr().cast(),
        iov_len: space.len(),
    }];
    loop {
        assert!(readable(queue), "no ARP reply");
        // SAFETY: the range is `space`, to which no reference is in use during the call.
        let bytes = unsafe { readv_raw(queue, &whole) }.unwrap();
        if is_arp_reply(&space[VNET_HEADER_BYTES..bytes], IP) {
            return;
        }
    }
}

/// With a steering program every frame of every flow arrives on its queue and on no other.
#[test]
fn steering_pins_the_queue() {
    if !can_run("steering_pins_the_queue") {
        return;
    }
    let lab = Lab::create("tap-steer");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let tap = open(&lab, "t0", 4, TapOptions::default()).unwrap();
    tap.set_steering(Some(&Program::steer_to_queue(2).unwrap()))
        .unwrap();
    netlink
        .add_address(tap.index(), IpAddr::from(IP), 24)
        .unwrap();
    netlink.set_link_up(tap.index(), true).unwrap();
    lab.within(|| {
        for _ in 0..50 {
            let socket = UdpSocket::bind((IpAddr::from(IP), 0)).unwrap();
            socket.set_broadcast(true).unwrap();
            socket
                .send_to(b"flow", (IpAddr::from([10, 9, 0, 255]), 9))
                .unwrap();
        }
    });
    let mut frames = 0;
    while let Ok(frame) = read(&tap.queues()[2]) {
        frames += u32::from(frame.ends_with(b"flow"));
    }
    assert_eq!(frames, 50);
    for other in [0, 1, 3] {
        assert_eq!(
            read(&tap.queues()[other]),
            Err(Errno::AGAIN),
            "queue {other}"
        );
    }
    tap.set_steering(None).unwrap();
}

/// Each way in which an interface cannot be had is told from the others.
#[test]
fn refusals_are_told_apart() {
    if !can_run("refusals_are_told_apart") {
        return;
    }
    let lab = Lab::create("tap-no");
    Netlink::open_in(&lab.namespace)
        .unwrap()
        .create_veth("v0", "v1", None)
        .unwrap();
    let plain = TapOptions::default();
    let several = TapOptions {
        multi_queue: true,
        ..plain
    };
    let single = open(&lab, "t0", 1, plain).unwrap();
    let many = open(&lab, "t1", 1, several).unwrap();
    assert!(matches!(
        open(&lab, "t0", 1, plain),
        Err(TapError::InUse(_))
    ));
    let strict = TapOptions {
        must_create: true,
        ..plain
    };
    assert!(matches!(
        open(&lab, "t0", 1, strict),
        Err(TapError::Exists(_))
    ));
    assert!(matches!(
        open(&lab, "v0", 1, plain),
        Err(TapError::OtherKind { .. })
    ));
    assert!(matches!(
        open(&lab, "t1", 1, plain),
        Err(TapError::OtherKind { .. })
    ));
    assert!(
        open(&lab, "t1", 2, several).is_ok(),
        "more queues of the same TAP"
    );
    assert!(matches!(
        open(&lab, "t%d", 1, plain),
        Err(TapError::BadName(_))
    ));
    assert!(matches!(
        open(&lab, "t2", 0, plain),
        Err(TapError::BadQueues(0))
    ));
    assert!(matches!(
        open(&lab, "t2", 257, plain),
        Err(TapError::BadQueues(257))
    ));
    assert!(single.offloads().tso && many.offloads().checksum);
    let bare = TapOptions {
        offloads: false,
        ..plain
    };
    assert_eq!(
        open(&lab, "t3", 1, bare).unwrap().offloads(),
        Default::default()
    );
}

/// A TAP that is down or deleted under its reader says so by the errno that the module names.
#[test]
fn down_and_deleted_are_told_apart() {
    if !can_run("down_and_deleted_are_told_apart") {
        return;
    }
    let lab = Lab::create("tap-gone");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let tap = open(&lab, "t0", 1, TapOptions::default()).unwrap();
    let queue = &tap.queues()[0];
    let frame = arp_request(MAC, IP, IP);
    assert_eq!(write(queue, &frame), Err(Errno::IO));
    assert_eq!(read(queue), Err(Errno::AGAIN));
    netlink.set_link_up(tap.index(), true).unwrap();
    assert_eq!(
        write(queue, &frame[..13]),
        Err(Errno::INVAL),
        "a frame without its header"
    );
    assert!(write(queue, &frame).is_ok());
    netlink.delete_link(tap.index()).unwrap();
    assert!(readable(queue));
    assert_eq!(write(queue, &frame), Err(Errno::BADFD));
    assert_eq!(read(queue), Err(Errno::BADFD));
}
