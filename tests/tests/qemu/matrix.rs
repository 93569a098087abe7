//! The full matrices: each ring layout with each MTU, each role of the socket, each count of queue pairs and each
//! setting of the offloads, and what may happen to a machine under each layout and MTU. Minutes, so not in `make test`.

use windlass_tests::{Daemon, Guest, Image, Lab, until};

use super::{
    FRAME_1500, MIGRATING, address, alone, are_killed, boot, bridge_with, comes_back, copy,
    offloads, place, set_up, streams, the_daemon_dies, there_and_back, two_hosts, whole_packets,
};

/// What is added to QEMU's network device for split and for packed rings.
const DEVICES: [&str; 2] = ["", ",packed=on"];
const MTUS: [u16; 2] = [1500, 9000];
const QUEUES: [&str; 3] = ["1", "2", "4"];
/// Bytes of an Ethernet header.
const HEADER: u64 = FRAME_1500 - 1500;

/// Each layout with each MTU.
fn ways() -> impl Iterator<Item = (&'static str, u16)> {
    DEVICES
        .into_iter()
        .flat_map(|device| MTUS.map(|mtu| (device, mtu)))
}

/// Boots two machines, windlass being the client of one and the server of the other, and gives them their addresses.
fn machines(lab: &Lab, daemon: &Daemon, image: &Image, device: &str, mtu: u16) -> [Guest; 2] {
    for vnic in ["h0", "g0", "g1"] {
        daemon.must(&format!("vnic set {vnic} mtu={mtu}"));
    }
    let mut guests = boot(daemon, image, device);
    for guest in &mut guests {
        set_up(daemon, guest);
        let layout = if device.is_empty() { "split" } else { "packed" };
        let view = daemon.show("vnic", guest.name());
        assert_eq!(view["details"]["ring-layout"], layout, "{view}");
        let own = guest.must("cat /sys/class/net/eth0/mtu");
        assert_eq!(own.trim(), mtu.to_string(), "{layout}");
        whole_packets(lab, address(guest), u32::from(mtu) - 28);
    }
    guests
}

/// With each layout and MTU, in both roles: with 1, 2 and 4 queue pairs every combination of offloads at the sender and
/// the receiver, both ways; drivers taken away and given back; machines booted again, and killed under traffic.
#[test]
#[ignore = "run by make soak"]
fn offloads_and_queues_in_every_way() {
    let _turn = alone();
    let Some((lab, image)) = place("offloads_and_queues_in_every_way") else {
        return;
    };
    let daemon = bridge_with(&lab, [4, 4]);
    for (device, mtu) in ways() {
        let [mut a, mut b] = machines(&lab, &daemon, &image, device, mtu);
        let [to_a, to_b] = [address(&a), address(&b)];
        for queues in QUEUES {
            println!("MTU {mtu}{device}, {queues} queue pairs");
            for guest in [&mut a, &mut b] {
                use_queues(&daemon, guest, queues);
            }
            let frame = u64::from(mtu) + HEADER;
            offloads(&daemon, &mut a, &mut b, to_b, frame);
            offloads(&daemon, &mut b, &mut a, to_a, frame);
            streams(&daemon, &mut a, &mut b, to_a);
        }
        comes_back(&daemon, &mut a, to_b);
        comes_back(&daemon, &mut b, to_a);
        copy(&daemon, &mut a, &mut b, to_b, 2);
        copy(&daemon, &mut b, &mut a, to_a, 2);
        are_killed(&daemon, a, b);
        for vnic in ["g0", "g1"] {
            assert_eq!(daemon.drops(vnic, "broken"), 0, "MTU {mtu}{device}");
        }
    }
}

/// With each layout and MTU, a transfer from a machine of which windlass is the server to one of which it is the client
/// goes on by itself and arrives whole when the daemon is killed on its way.
#[test]
#[ignore = "run by make soak"]
fn the_daemon_dies_in_every_way() {
    let _turn = alone();
    let Some((lab, image)) = place("the_daemon_dies_in_every_way") else {
        return;
    };
    let mut daemon = bridge_with(&lab, [4, 4]);
    for (device, mtu) in ways() {
        println!("MTU {mtu}{device}");
        let [mut a, mut b] = machines(&lab, &daemon, &image, device, mtu);
        the_daemon_dies(&mut daemon, &mut a, &mut b);
        are_killed(&daemon, a, b);
    }
}

/// Has a guest use so many queue pairs, and waits until windlass does.
fn use_queues(daemon: &Daemon, guest: &mut Guest, queues: &str) {
    guest.must(&format!("ethtool -L eth0 combined {queues}"));
    until(&format!("{}: {queues} queue pairs", guest.name()), || {
        daemon.show("vnic", guest.name())["details"]["queue-pairs"] == queues
    });
}

/// A machine migrates to another host and back with each layout, MTU and role of windlass, and a stream that flows into
/// it all the while arrives whole.
#[test]
#[ignore = "run by make soak"]
fn a_guest_migrates_in_every_way() {
    let _turn = alone();
    let Some((lab, image)) = place("a_guest_migrates_in_every_way") else {
        return;
    };
    let hosts = two_hosts(&lab);
    for role in ["server", "client"] {
        for mtu in MTUS {
            prepare(&lab, &hosts, role, mtu);
            for device in DEVICES {
                println!("{role}, MTU {mtu}{device}");
                there_and_back(&lab, &image, &hosts, device);
            }
        }
    }
}

/// Gives both hosts a VNIC for the machine in which windlass has this role, and everything on the way this MTU.
fn prepare(lab: &Lab, [near, far, lan]: &[Daemon; 3], role: &str, mtu: u16) {
    for (short, end, daemon) in [("host", "near", near), ("far", "far", far)] {
        lab.ip(short, &format!("link set up0 mtu {mtu}"));
        lab.ip("lan", &format!("link set {end} mtu {mtu}"));
        daemon.must(&format!("uplink set up0 mtu={mtu}"));
        lan.must(&format!("uplink set {end} mtu={mtu}"));
        daemon.must("vnic delete g1");
        let socket = daemon.directory().join("g1.sock");
        daemon.must(&format!(
            "vnic create g1 --bridge br0 --mac {MIGRATING} --mtu {mtu} \
             --attach vhost-user,socket={},role={role},queues=2",
            socket.display()
        ));
    }
    lan.must(&format!("vnic set h0 mtu={mtu}"));
}
