//! Overlays with Open vSwitch in user space as the peer.

use std::net::UdpSocket;
use std::time::Duration;

use windlass_tests::{Lab, Ovs, run, uninterrupted, until};

/// Bytes of a stream.
const BYTES: usize = 4 << 20;
/// The underlay's MTU in bytes, and the overlay's.
const JUMBO: [u32; 2] = [9000, 8950];

/// A guest of ours and a host of Open vSwitch's reach each other with small and jumbo frames, whether its outer datagrams have a checksum
/// or none. Ours always have one. Its ports read whole frames from the device, so nothing may be left to be done on the way, as on a wire.
#[test]
fn open_vswitch_is_a_peer() {
    const NAME: &str = "open_vswitch_is_a_peer";
    if !Ovs::is_here(NAME) {
        return;
    }
    let Some(lab) = Lab::start(NAME) else {
        return;
    };
    for short in ["guest", "ovs"] {
        lab.namespace(short);
    }
    lab.underlay("ovs", &[]);
    for short in ["host", "ovs"] {
        lab.ip(short, &format!("link set under0 mtu {}", JUMBO[0]));
        let mut ethtool = lab.command(short, "ethtool");
        ethtool.args(["-K", "under0", "tx", "off", "tso", "off", "gso", "off"]);
        ethtool.args(["tx-udp-segmentation", "off"]);
        assert_eq!(run(&mut ethtool).code, 0);
    }
    let daemon = lab.daemon();
    daemon.must(&format!(
        "overlay create ov0 --vni 23 --mtu {} --search direct --set vxlan/listen-ip=192.0.2.1,direct/dest-ip=192.0.2.2",
        JUMBO[1]
    ));
    let netns = lab.name("guest");
    daemon.must(&format!(
        "vnic create g0 --over ov0 --attach tap,netns={netns},address=10.0.0.1/24"
    ));
    daemon.wait_for_state("vnic", "g0", "up");

    let ovs = Ovs::start(&lab, "ovs");
    for words in [
        "add-br phy -- set bridge phy datapath_type=netdev",
        "add-port phy under0 -- set interface under0 mtu_request=9000",
        "set interface phy mtu_request=9000",
        "add-br inner -- set bridge inner datapath_type=netdev",
        "set interface inner mtu_request=8950",
        "add-port inner vx0 -- set interface vx0 type=vxlan options:remote_ip=192.0.2.1 options:key=23",
    ] {
        ovs.must(words);
    }
    for (device, address) in [("phy", "192.0.2.2/24"), ("inner", "10.0.0.2/24")] {
        lab.ip("ovs", &format!("addr add {address} dev {device}"));
        lab.ip("ovs", &format!("link set {device} up"));
    }
    for csum in [false, true] {
        ovs.must(&format!("set interface vx0 options:csum={csum}"));
        until("the guest reaches it", || lab.ping("guest", "10.0.0.2", 1));
        until("it reaches the guest", || lab.ping("ovs", "10.0.0.1", 1));
        lab.stream("guest", ("ovs", "10.0.0.2"), BYTES);
        lab.stream("ovs", ("guest", "10.0.0.1"), BYTES);
        echo(&lab);
    }
    let drops = daemon.counters("ov0")["rx_dropped"].as_u64();
    assert_eq!(drops, Some(0));
}

/// Datagrams of all lengths come back as they were sent.
fn echo(lab: &Lab) {
    let bind = |short, address| lab.within(short, || UdpSocket::bind((address, 0)));
    let (guest, far) = (bind("guest", "10.0.0.1"), bind("ovs", "10.0.0.2"));
    let (guest, far) = (guest.expect("a socket"), far.expect("a socket"));
    let to = far.local_addr().expect("an address");
    for socket in [&guest, &far] {
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a socket");
    }
    for bytes in [0, 1, 17, 1400, 1500, 4000, JUMBO[1] as usize - 28] {
        let sent: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let mut got = vec![0; 9000];
        guest.send_to(&sent, to).expect("sent");
        let (n, from) = uninterrupted(|| far.recv_from(&mut got)).expect("a datagram");
        far.send_to(&got[..n], from).expect("sent");
        let n = uninterrupted(|| guest.recv(&mut got)).expect("a datagram");
        assert!(got[..n] == sent, "{n} of {bytes}");
    }
}
