//! Overlays with a kernel's VXLAN as the peer.

mod tunnel;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use windlass_tests::{Lab, mac, run, uninterrupted};

use tunnel::{Host, join};

/// Bytes of a stream.
const BYTES: usize = 16 << 20;
/// How long a stream may stand still.
const PATIENCE: Duration = Duration::from_secs(20);
const A: &str = "02:00:00:00:00:0a";

/// A guest behind a TAP and the address of a kernel's VXLAN device, with two namespaces for the underlay.
fn pair(name: &str) -> Option<(Lab, Host, u16)> {
    let lab = Lab::start(name)?;
    for short in ["near", "far", "guest"] {
        lab.namespace(short);
    }
    join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    let device =
        "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local 192.0.2.2 remote 192.0.2.1";
    lab.ip("far", device);
    lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
    lab.ip("far", "link set vx0 up");
    let mut host = Host::start();
    host.tap(&lab, "guest", mac(A), "10.0.0.1/24", 1450);
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    host.target(overlay, "192.0.2.2:4789");
    Some((lab, host, overlay))
}

/// A guest and a kernel reach each other.
#[test]
fn a_kernel_answers() {
    let Some((lab, _host, _)) = pair("a_kernel_answers") else {
        return;
    };
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(lab.ping("far", "10.0.0.1", 5));
}

/// TCP passes both ways, whatever is left to be done inside by the kernel's veth: with its offloads and without.
#[test]
fn tcp_passes_both_ways() {
    let Some((lab, host, overlay)) = pair("tcp_passes_both_ways") else {
        return;
    };
    for offloads in ["on", "off"] {
        let mut ethtool = lab.command("far", "ethtool");
        ethtool.args([
            "-K", "to-near", "tx", offloads, "tso", offloads, "gso", offloads,
        ]);
        assert_eq!(run(&mut ethtool).code, 0);
        stream(&lab, ("guest", "10.0.0.1"), "far");
        stream(&lab, ("far", "10.0.0.2"), "guest");
    }
    let totals = host.plane.totals(overlay).expect("an overlay");
    assert!(
        totals.ingress.frames > 0 && totals.egress.segments > 0,
        "{totals:?}"
    );
}

/// A listener in one namespace gets a stream from another, whole.
fn stream(lab: &Lab, (receiver, address): (&str, &str), sender: &str) {
    let listener = lab
        .within(receiver, || TcpListener::bind((address, 0)))
        .expect("a port");
    let to = listener.local_addr().expect("an address");
    let sent: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = lab
                .within(sender, || TcpStream::connect(to))
                .expect("a connection");
            stream.write_all(&sent).expect("sent");
        });
        let (mut stream, _) = uninterrupted(|| listener.accept()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut got = Vec::new();
        while uninterrupted(|| (&mut stream).take(1 << 20).read_to_end(&mut got)).expect("bytes")
            > 0
        {}
        assert!(got == sent, "{} of {}", got.len(), sent.len());
    });
}
