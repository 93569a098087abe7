//! The netlink client against the kernel.

#![allow(clippy::unwrap_used)]

mod lab;

use std::net::IpAddr;

use lab::{Lab, can_run, readable};
use windlass_sys::Errno;
use windlass_sys::bpf::{Instruction, Program, ProgramKind};
use windlass_sys::netlink::{
    ALIAS_BYTES_MAX, LinkEvent, LinkMonitor, Netlink, NetlinkError, Route,
};
use windlass_sys::netns::within;

fn refusal<T: std::fmt::Debug>(outcome: Result<T, NetlinkError>) -> (Errno, Option<String>) {
    match outcome {
        Err(NetlinkError::Kernel { errno, message, .. }) => (errno, message),
        other => panic!("not refused: {other:?}"),
    }
}

/// What is set on a link is what is read back, by name, by index and in the list.
#[test]
fn links_read_back_what_was_set() {
    if !can_run("links_read_back_what_was_set") {
        return;
    }
    let (lab, far) = (Lab::create("nl-a"), Lab::create("nl-b"));
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let mut there = Netlink::open_in(&far.namespace).unwrap();
    netlink
        .create_veth("v0", "v1", Some(&far.namespace))
        .unwrap();
    assert_eq!(netlink.link_by_name("v1").unwrap(), None);
    let peer = there.link_by_name("v1").unwrap().unwrap();
    let index = netlink.link_by_name("v0").unwrap().unwrap().index;

    let mac = [2, 0, 0, 0, 0, 7];
    netlink.set_link_mac(index, mac).unwrap();
    netlink.set_link_mtu(index, 9000).unwrap();
    netlink.set_link_queue(index, 77).unwrap();
    netlink.rename_link(index, "uplink0").unwrap();
    netlink.set_link_up(index, true).unwrap();
    let link = netlink.link_by_index(index).unwrap().unwrap();
    assert_eq!(
        (link.name.as_str(), link.mtu, link.mac),
        ("uplink0", 9000, Some(mac))
    );
    assert_eq!(
        (link.queue_frames, link.kind.as_deref()),
        (77, Some("veth"))
    );
    assert_eq!((link.master, link.lower), (None, Some(peer.index)));
    assert!(link.is_up() && !link.has_carrier(), "the peer is down");
    assert!(link.is_ethernet() && link.alias.is_none());
    assert!(!netlink.link_by_name("lo").unwrap().unwrap().is_ethernet());
    there.set_link_up(peer.index, true).unwrap();
    assert!(netlink.link_by_index(index).unwrap().unwrap().has_carrier());
    let names: Vec<_> = netlink
        .links()
        .unwrap()
        .into_iter()
        .map(|link| link.name)
        .collect();
    assert_eq!(names, ["lo", "uplink0"]);

    netlink.delete_link(index).unwrap();
    assert_eq!(netlink.link_by_index(index).unwrap(), None);
    assert_eq!(there.link_by_name("v1").unwrap(), None);
}

/// A link that was unlisted is found by nobody, nor is its peer, and its name is free; one that is not there is refused.
#[test]
fn an_unlisted_link_is_gone() {
    if !can_run("an_unlisted_link_is_gone") {
        return;
    }
    let (lab, far) = (Lab::create("nl-un"), Lab::create("nl-unfar"));
    let mut there = Netlink::open_in(&far.namespace).unwrap();
    for _ in 0..100 {
        let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
        netlink
            .create_veth("v0", "v1", Some(&far.namespace))
            .unwrap();
        let index = netlink.link_by_name("v0").unwrap().unwrap().index;
        netlink.unlist_link(index).unwrap();
        let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
        assert_eq!(netlink.link_by_index(index).unwrap(), None);
        assert_eq!(there.link_by_name("v1").unwrap(), None);
        assert_eq!(refusal(netlink.unlist_link(index)).0, Errno::NODEV);
    }
}

/// Links that are unlisted together are gone, each of them, and no other link; one that is gone before is no error.
#[test]
fn links_unlisted_together_are_gone() {
    if !can_run("links_unlisted_together_are_gone") {
        return;
    }
    let lab = Lab::create("nl-uns");
    let names = |netlink: &mut Netlink| -> Vec<String> {
        let links = netlink.links().unwrap().into_iter();
        links.map(|link| link.name).collect()
    };
    for count in [1, 2, 100] {
        let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
        netlink.create_link("other", "bridge").unwrap();
        let mut indices = vec![9999];
        for number in 0..count {
            let name = format!("d{number}");
            netlink.create_link(&name, "bridge").unwrap();
            indices.push(netlink.link_by_name(&name).unwrap().unwrap().index);
        }
        netlink.unlist_links(&indices).unwrap();
        let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
        assert_eq!(names(&mut netlink), ["lo", "other"]);
        let other = netlink.link_by_name("other").unwrap().unwrap().index;
        netlink.delete_link(other).unwrap();
        let netlink = Netlink::open_in(&lab.namespace).unwrap();
        netlink.unlist_links(&indices).unwrap();
    }
}

/// An alias is read back, up to the length that the kernel takes; the empty one takes it away.
#[test]
fn aliases_read_back() {
    if !can_run("aliases_read_back") {
        return;
    }
    let lab = Lab::create("nl-alias");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink.create_veth("v0", "v1", None).unwrap();
    let index = netlink.link_by_name("v0").unwrap().unwrap().index;
    for text in ["windlass:0123/v0".to_owned(), "a".repeat(ALIAS_BYTES_MAX)] {
        netlink.set_link_alias(index, &text).unwrap();
        let link = netlink.link_by_index(index).unwrap().unwrap();
        assert_eq!(link.alias.as_deref(), Some(text.as_str()));
    }
    let long = "a".repeat(ALIAS_BYTES_MAX + 1);
    let (errno, _) = refusal(netlink.set_link_alias(index, &long));
    assert!([Errno::INVAL, Errno::RANGE].contains(&errno), "{errno}");
    netlink.set_link_alias(index, "").unwrap();
    assert_eq!(netlink.link_by_index(index).unwrap().unwrap().alias, None);
}

/// Refusals carry the kernel's errno, and its own sentence where it has one.
#[test]
fn refusals_carry_the_kernels_words() {
    if !can_run("refusals_carry_the_kernels_words") {
        return;
    }
    let lab = Lab::create("nl-err");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink.create_veth("v0", "v1", None).unwrap();
    let index = netlink.link_by_name("v0").unwrap().unwrap().index;
    assert_eq!(
        refusal(netlink.create_veth("v0", "v2", None)).0,
        Errno::EXIST
    );
    assert_eq!(refusal(netlink.delete_link(9999)).0, Errno::NODEV);
    assert_eq!(
        refusal(netlink.set_link_mac(index, [1; 6])).0,
        Errno::ADDRNOTAVAIL
    );
    let (errno, message) = refusal(netlink.set_link_mtu(index, 1));
    assert_eq!(errno, Errno::INVAL);
    assert!(
        message.unwrap().contains("mtu"),
        "the kernel says what is wrong"
    );
    let (errno, _) = refusal(netlink.delete_address(index, IpAddr::from([10, 0, 0, 1]), 24));
    assert_eq!(errno, Errno::ADDRNOTAVAIL);
    // The socket is as good as before.
    assert_eq!(netlink.links().unwrap().len(), 3);
    let mut names: Vec<_> = netlink
        .links_of("veth")
        .unwrap()
        .into_iter()
        .map(|l| l.name)
        .collect();
    names.sort();
    assert_eq!(names, ["v0", "v1"]);
    assert!(netlink.links_of("no such kind").unwrap().is_empty());
}

/// Addresses of both families, and routes over a device and a gateway, come back as added and go
/// when removed.
#[test]
fn addresses_and_routes_read_back() {
    if !can_run("addresses_and_routes_read_back") {
        return;
    }
    let lab = Lab::create("nl-addr");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink
        .create_link("d0", "bridge")
        .or_else(|_| netlink.create_veth("d0", "d1", None))
        .unwrap();
    let index = netlink.link_by_name("d0").unwrap().unwrap().index;
    netlink.set_link_up(index, true).unwrap();
    let four = IpAddr::from([10, 20, 0, 1]);
    let six: IpAddr = "fd00:20::1".parse().unwrap();
    netlink.add_address(index, four, 24).unwrap();
    netlink.add_address(index, six, 64).unwrap();
    assert_eq!(
        refusal(netlink.add_address(index, four, 24)).0,
        Errno::EXIST
    );
    let list = netlink.addresses_of(index).unwrap();
    for (ip, prefix) in [(four, 24), (six, 64)] {
        let found = list.iter().find(|address| address.ip == ip).unwrap();
        assert_eq!((found.prefix, found.is_link_local), (prefix, false));
    }

    let on_link = Route {
        network: IpAddr::from([10, 30, 0, 0]),
        prefix: 16,
        gateway: None,
        index: Some(index),
    };
    let through = Route {
        network: IpAddr::from([0; 4]),
        prefix: 0,
        gateway: Some(IpAddr::from([10, 20, 0, 254])),
        index: Some(index),
    };
    for route in [on_link, through] {
        netlink.add_route(&route).unwrap();
        assert!(netlink.routes().unwrap().contains(&route), "{route:?}");
        netlink.delete_route(&route).unwrap();
        assert!(!netlink.routes().unwrap().contains(&route), "{route:?}");
        assert_eq!(refusal(netlink.delete_route(&route)).0, Errno::SRCH);
    }
    netlink.delete_address(index, four, 24).unwrap();
    assert!(
        netlink
            .addresses_of(index)
            .unwrap()
            .iter()
            .all(|address| address.ip != four)
    );
}

/// A neighbour that does not answer is forgotten, one of another link is not.
#[test]
fn unresolved_neighbours_are_forgotten() {
    if !can_run("unresolved_neighbours_are_forgotten") {
        return;
    }
    let lab = Lab::create("nl-neigh");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    let mut indexes = Vec::new();
    for (net, [name, peer]) in [["a0", "a1"], ["b0", "b1"]].into_iter().enumerate() {
        netlink.create_veth(name, peer, None).unwrap();
        let [index, other] =
            [name, peer].map(|name| netlink.link_by_name(name).unwrap().unwrap().index);
        netlink.set_link_up(index, true).unwrap();
        netlink.set_link_up(other, true).unwrap();
        let own = IpAddr::from([10, 20, net as u8, 1]);
        netlink.add_address(index, own, 24).unwrap();
        indexes.push(index);
    }
    let asked = || {
        let mut ip = std::process::Command::new("ip");
        ip.args(["neigh", "show", "nud", "incomplete"]);
        let told = within(&lab.namespace, || ip.output()).unwrap().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        ["10.20.0.9", "10.20.1.9"].map(|ip| told.contains(ip))
    };
    let socket = within(&lab.namespace, || std::net::UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.unwrap().unwrap();
    for ip in ["10.20.0.9:9", "10.20.1.9:9"] {
        socket.send_to(&[0], ip).unwrap();
    }
    assert_eq!(asked(), [true, true]);
    netlink.forget_unresolved(indexes[0]).unwrap();
    assert_eq!(asked(), [false, true]);
}

/// The monitor tells of a link's birth, change and end, and only of its own namespace.
#[test]
fn monitor_tells_of_changes() {
    if !can_run("monitor_tells_of_changes") {
        return;
    }
    let (lab, other) = (Lab::create("nl-mon"), Lab::create("nl-else"));
    let mut monitor = LinkMonitor::open_in(&lab.namespace).unwrap();
    assert_eq!(monitor.next_event().unwrap(), None);
    Netlink::open_in(&other.namespace)
        .unwrap()
        .create_veth("x0", "x1", None)
        .unwrap();
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink.create_veth("v0", "v1", None).unwrap();
    let index = netlink.link_by_name("v0").unwrap().unwrap().index;
    netlink.set_link_up(index, true).unwrap();
    netlink.delete_link(index).unwrap();

    let (mut born, mut up, mut gone) = (false, false, false);
    while !gone {
        assert!(readable(&monitor), "born {born}, up {up}");
        while let Some(event) = monitor.next_event().unwrap() {
            match event {
                LinkEvent::Changed(link) => {
                    assert!(!link.name.starts_with('x'), "{link:?}");
                    born |= link.index == index;
                    up |= link.index == index && link.is_up();
                }
                LinkEvent::Removed(link) => gone |= link.index == index,
                LinkEvent::Overrun => panic!("a few events overran the socket"),
            }
        }
    }
    assert!(born && up);
}

/// A monitor that keeps to one link is not woken for another, and hears the end of its own.
#[test]
fn monitor_keeps_to_a_link() {
    if !can_run("monitor_keeps_to_a_link") {
        return;
    }
    let lab = Lab::create("nl-keep");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink.create_veth("v0", "v1", None).unwrap();
    netlink.create_veth("x0", "x1", None).unwrap();
    let [own, other] = ["v0", "x0"].map(|name| netlink.link_by_name(name).unwrap().unwrap().index);
    let mut monitor = LinkMonitor::open_in(&lab.namespace).unwrap();
    monitor.keep_to(own).unwrap();
    netlink.set_link_up(other, true).unwrap();
    netlink.delete_link(other).unwrap();
    assert_eq!(monitor.next_event().unwrap(), None);
    netlink.delete_link(own).unwrap();
    let mut is_gone = false;
    while let Some(event) = monitor.next_event().unwrap() {
        match event {
            LinkEvent::Changed(link) => assert_eq!(link.index, own),
            LinkEvent::Removed(link) => is_gone |= link.index == own,
            LinkEvent::Overrun => panic!("a few events overran the socket"),
        }
    }
    assert!(is_gone);
}

/// A program at ingress is listed by its name, refuses a second at its place, and goes; a program
/// that the verifier rejects comes back with the verifier's words.
#[test]
fn ingress_programs_are_listed_and_removed() {
    if !can_run("ingress_programs_are_listed_and_removed") {
        return;
    }
    let lab = Lab::create("nl-tc");
    let mut netlink = Netlink::open_in(&lab.namespace).unwrap();
    netlink.create_veth("v0", "v1", None).unwrap();
    let index = netlink.link_by_name("v0").unwrap().unwrap().index;
    assert!(!netlink.has_clsact(index).unwrap());
    assert_eq!(netlink.ingress_filters(index).unwrap(), []);
    let program = Program::drop_all_ingress().unwrap();
    assert!(
        netlink
            .attach_ingress(index, 1, "windlass", &program)
            .is_err(),
        "no clsact yet"
    );

    netlink.add_clsact(index).unwrap();
    assert!(netlink.has_clsact(index).unwrap());
    assert_eq!(refusal(netlink.add_clsact(index)).0, Errno::EXIST);
    netlink
        .attach_ingress(index, 3, "windlass", &program)
        .unwrap();
    assert_eq!(
        refusal(netlink.attach_ingress(index, 3, "windlass", &program)).0,
        Errno::EXIST
    );
    drop(program);
    let filters = netlink.ingress_filters(index).unwrap();
    assert_eq!(filters.len(), 1);
    assert_eq!(
        (filters[0].priority, filters[0].name.as_str()),
        (3, "windlass")
    );
    assert_ne!(filters[0].program_id, 0);
    netlink.detach_ingress(index, 3).unwrap();
    assert_eq!(netlink.ingress_filters(index).unwrap(), []);
    assert_eq!(refusal(netlink.detach_ingress(index, 3)).0, Errno::NOENT);
    netlink.delete_clsact(index).unwrap();
    assert!(!netlink.has_clsact(index).unwrap());

    let unset = [Instruction::exit()];
    let error = Program::load("bad", ProgramKind::Classifier, &unset).unwrap_err();
    assert!(error.log.contains("R0"), "{error}");
}
