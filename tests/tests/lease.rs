//! Addresses that a guest is given: by a real DHCP server and router, by forgers, and over restarts of the daemon.

#[path = "../../crates/engines/nic/tests/packets/mod.rs"]
mod packets;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use packets::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use windlass_tests::{
    Daemon, Frame, Lab, Wire, frame, run, skip, until, until_some, write_program,
};

const A: Mac = [2, 0, 0, 0, 0, 0x0a];
const B: Mac = [2, 0, 0, 0, 0, 0x0b];
const S: Mac = [2, 0, 0, 0, 0, 0x05];
const ZERO: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
const X: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 6);
const Y: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 7);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd04, 0, 0, 0, 0, 0, 0, 0);

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bridge, and guests on it with these words; their names begin with their namespace's, and so do their addresses.
fn guests<'a>(lab: &Lab, guests: impl IntoIterator<Item = (&'a str, Mac, &'a str)>) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, mac, words) in guests {
        lab.namespace(guest);
        let last = mac[5];
        let words = format!("--mac 02:00:00:00:00:{last:02x} {words}");
        daemon.tap(lab, &format!("{guest}0"), guest, "", &words);
    }
    daemon
}

fn has_ipv6(lab: &Lab, guest: &str) {
    let speaks = lab.within(guest, || {
        ["all", "default"].into_iter().try_for_each(|name| {
            let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            std::fs::write(path, "0")
        })
    });
    speaks.expect("IPv6");
}

/// What a VNIC has learned by a method.
fn learned(daemon: &Daemon, vnic: &str, method: &str) -> Vec<String> {
    let shown = daemon.show("vnic", vnic);
    let all = shown["learned"].as_array().cloned().unwrap_or_default();
    let of_method = all.iter().filter(|lease| lease["method"] == method);
    let address = |lease: &Value| lease["address"].as_str().expect("an address").to_owned();
    of_method.map(address).collect()
}

fn speaks(src: Ipv4Addr) -> Vec<u8> {
    ethernet(S, A, &[], IPV4, &ipv4(src, SERVER, TCP, &tcp()))
}

fn asks(xid: u32) -> Vec<u8> {
    let message = udp(68, 67, &dhcp_of(3, xid, A, ZERO, &[]));
    let packet = ipv4(ZERO, Ipv4Addr::BROADCAST, UDP, &message);
    ethernet(ALL, A, &[], IPV4, &packet)
}

fn acknowledges(to: Mac, from: Mac, xid: u32, address: Ipv4Addr) -> Vec<u8> {
    let message = dhcp_of(5, xid, A, address, &lease_time(3600));
    let packet = ipv4(SERVER, address, UDP, &udp(67, 68, &message));
    ethernet(to, from, &[], IPV4, &packet)
}

fn advertises(from: Mac) -> Vec<u8> {
    let message = router(134, &prefix_option(PREFIX, 64, 0xc0, 3600));
    let packet = ipv6(link_local(from), NODES, ICMP6, &message);
    ethernet([0x33, 0x33, 0, 0, 0, 1], from, &[], IPV6, &packet)
}

/// Waits until a frame comes.
fn await_frame(wire: &Wire, bytes: &[u8]) {
    until("the frame comes", || {
        while let Some(frame) = wire.receive() {
            if frame == Frame(bytes.to_vec()) {
                return true;
            }
        }
        false
    });
}

/// A guest and its server, by hand: the guest has the address then.
fn lease(a: &Wire, s: &Wire, xid: u32, address: Ipv4Addr) {
    a.send(&asks(xid));
    await_frame(s, &asks(xid));
    let answer = acknowledges(A, S, xid, address);
    s.send(&answer);
    await_frame(a, &answer);
}

/// Whether packets of the guest from an address come to the server.
fn passes(daemon: &Daemon, a: &Wire, s: &Wire, address: Ipv4Addr) -> bool {
    let before = daemon.drops("a0", "ip-spoof");
    a.send(&speaks(address));
    a.send(&frame(S, A, &[], "after"));
    let mut came = false;
    until("the frame behind it comes", || {
        while let Some(frame) = s.receive() {
            came |= frame == Frame(speaks(address));
            if frame.text().as_deref() == Some("after") {
                return true;
            }
        }
        false
    });
    assert_eq!(daemon.drops("a0", "ip-spoof") - before, u64::from(!came));
    came
}

/// The DHCP server and router of a namespace.
fn serve(lab: &Lab, guest: &str, test: &str) -> Option<Running> {
    if run(std::process::Command::new("sh").args(["-c", "command -v dnsmasq busybox"])).code != 0 {
        skip(test, "dnsmasq or busybox is missing");
        return None;
    }
    let file = lab.directory().join("leases");
    let mut command = lab.command(guest, "dnsmasq");
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
        .args(["--user=root", "--group=", "--interface=eth0", "--pid-file="])
        .args([
            "--dhcp-authoritative",
            "--no-ping",
            "--enable-ra",
            "--log-facility=-",
        ])
        .arg("--dhcp-range=10.3.0.100,10.3.0.100,255.255.255.0,120")
        .arg("--dhcp-range=fd04::100,fd04::1ff,slaac,64,120")
        .arg(format!("--dhcp-leasefile={}", file.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Some(Running(command.spawn().expect("dnsmasq")))
}

/// Has busybox ask for an address, set it, and hold it.
fn ask_for_address(lab: &Lab, guest: &str) -> Running {
    let script = lab.directory().join("bound");
    let text = "#!/bin/sh\nif [ \"$1\" = bound ]; then ip address add $ip/24 dev $interface; fi\n";
    write_program(&script, text);
    let mut command = lab.command(guest, "busybox");
    command.args(["udhcpc", "-f", "-t", "50", "-T", "1", "-i", "eth0", "-s"]);
    command
        .arg(&script)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let client = Running(command.spawn().expect("busybox"));
    until("the guest has an address", || {
        lab.ip(guest, "-o address show dev eth0")
            .contains("10.3.0.100")
    });
    client
}

/// An exchange of DHCPv6 over the guest's kernel: the address that the server gives.
fn ask_for_address6(lab: &Lab, guest: &str) -> Ipv6Addr {
    let index = lab.ip(guest, "-o link show dev eth0");
    let index: u32 = index
        .split(':')
        .next()
        .expect("an index")
        .trim()
        .parse()
        .expect("an index");
    let socket = lab
        .within(guest, || UdpSocket::bind("[::]:546"))
        .expect("a socket");
    let wait = Some(Duration::from_millis(200));
    socket.set_read_timeout(wait).expect("a socket");
    let servers: Ipv6Addr = "ff02::1:2".parse().expect("an address");
    let servers = SocketAddrV6::new(servers, 547, 0, index);
    let client = [client_duid(&duid_ll(A)), ia(3, &[])].concat();
    let exchange = |message: &[u8], answer: u8| {
        until_some("the server answers", || {
            socket.send_to(message, servers).ok()?;
            let mut space = [0; 1500];
            let (n, _) = socket.recv_from(&mut space).ok()?;
            (space[0] == answer).then(|| space[..n].to_vec())
        })
    };
    let advertised = exchange(&dhcp6(1, &client), 2);
    let mut rest = &advertised[4..];
    let server = loop {
        let size = 4 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (option, behind) = rest.split_at(size);
        if option[..2] == [0, 2] {
            break option.to_vec();
        }
        rest = behind;
    };
    let replied = exchange(&dhcp6(3, &[client, server].concat()), 7);
    let at = replied
        .windows(4)
        .position(|head| head == [0, 5, 0, 24])
        .expect("an address");
    let address: [u8; 16] = replied[at + 4..at + 20].try_into().expect("16 bytes");
    address.into()
}

/// With a real server: the kernel of a guest speaks for what it gets by DHCPv4, DHCPv6 and router advertisements, for nothing else, and no
/// more once it has given it back. All of it is shown.
#[test]
fn a_guest_speaks_for_what_it_is_given() {
    let Some(lab) = Lab::start("a_guest_speaks_for_what_it_is_given") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let on = "--set ip-nospoof=on --set dhcp-nospoof=on --set restricted=on --set router-guard=on --set dhcp-guard=on";
    for (guest, last, words) in [("s", "05", "--set trusted=on"), ("a", "0a", on)] {
        lab.namespace(guest);
        has_ipv6(&lab, guest);
        let words = format!("--mac 02:00:00:00:00:{last} {words}");
        daemon.tap(&lab, &format!("{guest}0"), guest, "", &words);
    }
    lab.ip("s", "address add 10.3.0.1/24 dev eth0");
    lab.ip("s", "address add fd04::1/64 dev eth0 nodad");
    lab.ip("a", "address add 10.3.0.9/24 dev eth0");
    assert!(!lab.ping("a", "10.3.0.1", 1));
    lab.ip("a", "address del 10.3.0.9/24 dev eth0");
    let Some(_server) = serve(&lab, "s", "a_guest_speaks_for_what_it_is_given") else {
        return;
    };
    let client = ask_for_address(&lab, "a");
    assert!(lab.ping("a", "10.3.0.1", 5));
    assert_eq!(learned(&daemon, "a0", "dhcpv4"), ["10.3.0.100"]);
    let shown = daemon.show("vnic", "a0")["learned"].clone();
    let mut shown = shown.as_array().expect("a list").iter();
    let left = &shown.find(|l| l["method"] == "dhcpv4").expect("a lease")["seconds_left"];
    assert!((1..=120).contains(&left.as_u64().unwrap_or(0)), "{left}");
    let own = "fd04::ff:fe00:a".to_owned();
    until("a router advertises", || {
        learned(&daemon, "a0", "slaac") == std::slice::from_ref(&own)
    });
    until("the guest has the address", || {
        let addresses = lab.ip("a", "-6 -o address show dev eth0 -tentative");
        addresses.contains(&own)
    });
    assert!(lab.ping("a", "fd04::1", 5));
    let given = ask_for_address6(&lab, "a");
    assert_eq!(learned(&daemon, "a0", "dhcpv6"), [given.to_string()]);
    lab.ip("a", &format!("address add {given}/128 dev eth0 nodad"));
    let from = [
        "-n",
        "-q",
        "-c",
        "1",
        "-W",
        "5",
        "-I",
        &given.to_string(),
        "fd04::1",
    ];
    assert_eq!(run(lab.command("a", "ping").args(from)).code, 0);
    let shown = daemon.must("vnic show a0 -p -o learned");
    for text in [
        "10.3.0.100 dhcpv4 ",
        &format!("{given} dhcpv6 "),
        &format!("{own} slaac "),
    ] {
        assert!(shown.replace('\\', "").contains(text), "{shown}");
    }
    let client = Pid::from_child(&client.0);
    kill_process(client, Signal::USR2).expect("a signal");
    until("the address was given back", || {
        learned(&daemon, "a0", "dhcpv4").is_empty()
    });
    assert!(!lab.ping("a", "10.3.0.1", 1));
    daemon.must("vnic set a0 dynamic-methods=none");
    assert!(!lab.ping("a", "fd04::1", 1));
}

/// Addresses that the guest's kernel makes of secrets, as most do now: a link-local one, a stable and a temporary one in each prefix. They
/// pass once nobody has objected; one that another guest has does not.
#[test]
fn a_guest_speaks_for_what_it_chooses() {
    let Some(lab) = Lab::start("a_guest_speaks_for_what_it_chooses") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let on = "--set ip-nospoof=on --set restricted=on --set router-guard=on";
    for (guest, last, words) in [
        ("s", "05", "--set trusted=on"),
        ("a", "0a", on),
        ("b", "0b", on),
    ] {
        lab.namespace(guest);
        has_ipv6(&lab, guest);
        if guest == "a" {
            let secret = lab.within(guest, || {
                let conf = "/proc/sys/net/ipv6/conf/default";
                std::fs::write(format!("{conf}/addr_gen_mode"), "3")?;
                std::fs::write(format!("{conf}/use_tempaddr"), "2")
            });
            secret.expect("secrets");
        }
        let words = format!("--mac 02:00:00:00:00:{last} {words}");
        daemon.tap(&lab, &format!("{guest}0"), guest, "", &words);
    }
    lab.ip("s", "address add 10.3.0.1/24 dev eth0");
    lab.ip("s", "address add fd04::1/64 dev eth0 nodad");
    let Some(_server) = serve(&lab, "s", "a_guest_speaks_for_what_it_chooses") else {
        return;
    };
    let has = |address: &str| {
        let own = format!("{address}/");
        let shown = lab.ip("a", "-6 -o address show dev eth0 -tentative");
        shown.contains(&own)
    };
    let chosen = until_some("a's kernel has three of its own", || {
        let all = learned(&daemon, "a0", "slaac");
        let own = |address: &String| *address != "fd04::ff:fe00:a" && has(address);
        let own: Vec<String> = all.into_iter().filter(own).collect();
        (own.len() == 3).then_some(own)
    });
    let pings = |guest: &str, from: &str, to: &str| {
        let words = ["-n", "-q", "-c", "1", "-W", "5", "-I", from, to];
        run(lab.command(guest, "ping").args(words)).code == 0
    };
    let (local, global): (Vec<_>, Vec<_>) = chosen.iter().partition(|a| a.starts_with("fe80:"));
    assert_eq!((local.len(), global.len()), (1, 2), "{chosen:?}");
    for address in &global {
        assert!(pings("a", address, "fd04::1"), "{address}");
    }
    assert!(pings(
        "a",
        &format!("{}%eth0", local[0]),
        "fe80::ff:fe00:5%eth0"
    ));
    // Another guest that takes one, and asks nobody, speaks for none.
    let stolen = global[0];
    lab.ip("b", &format!("address add {stolen}/64 dev eth0 nodad"));
    let before = daemon.drops("b0", "ip-spoof");
    assert!(!pings("b", stolen, "fd04::1"));
    assert!(daemon.drops("b0", "ip-spoof") > before);
    assert_eq!(daemon.drops("a0", "ip-spoof"), 0);
}

/// Another guest's answers give nothing, whoever they are for; nor does a server's in the wrong shape. An address that is another guest's
/// by name is refused, and counted.
#[test]
fn forgers_give_nothing() {
    let Some(lab) = Lab::start("forgers_give_nothing") else {
        return;
    };
    let words = [
        ("s", S, "--set trusted=on"),
        ("a", A, "--set ip-nospoof=on --set mac-nospoof=on"),
        ("b", B, "--set allowed-ips=10.3.0.7 --set ip-nospoof=off"),
    ];
    let daemon = guests(&lab, words);
    let [a, b, s] = ["a", "b", "s"].map(|guest| Wire::open(&lab, guest, "eth0"));
    a.send(&asks(1));
    await_frame(&b, &asks(1));
    let mut late = acknowledges(A, S, 1, X);
    late[20] = 0x20;
    for (wire, forged) in [
        (&b, acknowledges(A, B, 1, X)),
        (&b, acknowledges(ALL, B, 1, X)),
        (&b, advertises(B)),
        (&s, acknowledges(A, S, 2, X)),
        (&s, late),
    ] {
        wire.send(&forged);
        await_frame(&a, &forged);
        assert!(!passes(&daemon, &a, &s, X));
    }
    assert_eq!(daemon.show("vnic", "a0")["learned"], Value::Null);
    // The transaction is open still.
    let good = acknowledges(ALL, S, 1, X);
    s.send(&good);
    await_frame(&a, &good);
    assert!(passes(&daemon, &a, &s, X));
    assert_eq!(learned(&daemon, "a0", "dhcpv4"), ["10.3.0.6"]);

    daemon.must("vnic set b0 ip-nospoof=on");
    a.send(&asks(3));
    await_frame(&s, &asks(3));
    s.send(&acknowledges(A, S, 3, Y));
    until("the answer is refused", || {
        daemon.drops("a0", "lease-refused") == 1
    });
    assert!(!passes(&daemon, &a, &s, Y) && passes(&daemon, &a, &s, X));
    daemon.must("vnic set b0 allowed-ips=10.3.0.6");
    assert!(
        !passes(&daemon, &a, &s, X),
        "the operator has given it away"
    );
}

/// A server whose frames wait for its rate is heard all the same, and no more once it is not trusted. What was learned stays over other changes of
/// the guest, and begins anew where the check was off.
#[test]
fn a_server_is_heard_while_it_is_trusted() {
    let Some(lab) = Lab::start("a_server_is_heard_while_it_is_trusted") else {
        return;
    };
    let words = [
        ("s", S, "--set trusted=on --set maxbw=1"),
        ("a", A, "--set ip-nospoof=on"),
    ];
    let daemon = guests(&lab, words);
    let [a, s] = ["a", "s"].map(|guest| Wire::open(&lab, guest, "eth0"));
    a.send(&asks(4));
    await_frame(&s, &asks(4));
    for _ in 0..8 {
        s.send(&ethernet(
            A,
            S,
            &[],
            IPV4,
            &ipv4(SERVER, X, UDP, &udp(1, 2, &[0; 1400])),
        ));
    }
    let answer = acknowledges(ALL, S, 4, Y);
    s.send(&answer);
    await_frame(&a, &answer);
    assert!(passes(&daemon, &a, &s, Y));
    daemon.must("vnic set s0 trusted=off");
    a.send(&asks(5));
    await_frame(&s, &asks(5));
    let answer = acknowledges(A, S, 5, X);
    s.send(&answer);
    await_frame(&a, &answer);
    assert!(!passes(&daemon, &a, &s, X));
    assert!(passes(&daemon, &a, &s, Y), "what was learned stays");
    daemon.must("vnic set a0 mac-nospoof=off");
    assert!(passes(&daemon, &a, &s, Y), "so it does over a change");
    daemon.must("vnic set a0 ip-nospoof=off");
    daemon.must("vnic set a0 ip-nospoof=on");
    assert!(!passes(&daemon, &a, &s, Y), "what was off begins anew");
}

/// Others may not read what guests have, and a file that no daemon wrote stops nobody.
fn the_file_is_private_and_checked(daemon: &mut Daemon) {
    assert_eq!(daemon.terminate(), 0);
    let file = daemon.runtime_dir().join("leases.json");
    let mode = std::fs::metadata(&file)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, "{").expect("a file");
    daemon.start_again();
    assert!(daemon.log().contains("leases.json"), "{}", daemon.log());
}

/// A guest keeps the addresses that it was given over an upgrade of the daemon, a kill and an orderly end; and loses them with its place. What
/// it has given back is not given to it again.
#[test]
fn leases_outlive_the_daemon() {
    let Some(lab) = Lab::start("leases_outlive_the_daemon") else {
        return;
    };
    let words = [
        ("s", S, "--set trusted=on"),
        ("a", A, "--set ip-nospoof=on"),
    ];
    let mut daemon = guests(&lab, words);
    let [mut a, mut s] = ["a", "s"].map(|guest| Wire::open(&lab, guest, "eth0"));
    lease(&a, &s, 1, X);
    s.send(&advertises(S));
    await_frame(&a, &advertises(S));
    let all = ["dhcpv4", "slaac"].map(|method| learned(&daemon, "a0", method));
    assert_eq!(
        all,
        [
            vec!["10.3.0.6".to_owned()],
            vec!["fd04::ff:fe00:a".to_owned()]
        ]
    );
    for how in ["upgrade", "upgrade", "kill", "end"] {
        match how {
            "upgrade" => daemon.upgrade(),
            "kill" => {
                let file = daemon.runtime_dir().join("leases.json");
                until("it is kept", || {
                    let kept = std::fs::read_to_string(&file).unwrap_or_default();
                    kept.contains("10.3.0.6") && kept.contains("slaac")
                });
                daemon.kill();
                daemon.start_again();
            }
            _ => {
                assert_eq!(daemon.terminate(), 0);
                daemon.start_again();
            }
        }
        for vnic in ["a0", "s0"] {
            daemon.wait_for_state("vnic", vnic, "up");
        }
        [a, s] = ["a", "s"].map(|guest| Wire::open(&lab, guest, "eth0"));
        assert!(
            passes(&daemon, &a, &s, X) && !passes(&daemon, &a, &s, Y),
            "{how}"
        );
        let kept = ["dhcpv4", "slaac"].map(|method| learned(&daemon, "a0", method));
        assert_eq!(kept, all, "{how}");
    }
    let message = udp(68, 67, &dhcp_of(7, 2, A, X, &[]));
    let back = ethernet(S, A, &[], IPV4, &ipv4(X, SERVER, UDP, &message));
    a.send(&back);
    await_frame(&s, &back);
    assert!(!passes(&daemon, &a, &s, X));
    assert_eq!(daemon.terminate(), 0);
    daemon.start_again();
    assert_eq!(learned(&daemon, "a0", "dhcpv4"), [] as [&str; 0]);
    assert_eq!(learned(&daemon, "a0", "slaac"), all[1]);
    daemon.must("vnic set a0 vlan=2");
    assert_eq!(daemon.show("vnic", "a0")["learned"], Value::Null);
    the_file_is_private_and_checked(&mut daemon);
}

/// A guest sends from its secondary addresses and is reached by them alone; nobody else may have one of them.
#[test]
fn secondary_addresses_are_a_guests_own() {
    let Some(lab) = Lab::start("secondary_addresses_are_a_guests_own") else {
        return;
    };
    let second: Mac = [2, 0, 0, 0, 0, 0x1a];
    let words = [
        (
            "a",
            A,
            "--set secondary-macs=02:00:00:00:00:1a --set allowed-ips=10.3.0.6 --set dhcp-nospoof=on",
        ),
        ("b", B, ""),
        ("s", S, ""),
    ];
    let daemon = guests(&lab, words);
    let [a, b, s] = ["a", "b", "s"].map(|guest| Wire::open(&lab, guest, "eth0"));
    for from in [A, second] {
        a.send(&frame(B, from, &[], "from"));
        await_frame(&b, &frame(B, from, &[], "from"));
        b.send(&frame(from, B, &[], "to"));
        await_frame(&a, &frame(from, B, &[], "to"));
    }
    assert!(daemon.knows("02:00:00:00:00:1a", "a0"));
    b.send(&frame(S, B, &[], "last"));
    let seen = s.frames_until("last");
    assert!(seen.is_empty(), "nothing for a was flooded: {seen:?}");
    a.send(&frame(B, [2, 0, 0, 0, 0, 0x1b], &[], "stranger"));
    until("a stranger's is dropped", || {
        daemon.drops("a0", "mac-spoof") == 1
    });
    b.send(&frame(S, second, &[], "thief"));
    until("a thief's is dropped", || {
        daemon.drops("b0", "mac-spoof") == 1
    });
    // What it is checked for is so for each of them: neighbours, link-local addresses, DHCP.
    let claims = |from, of| ethernet(ALL, from, &[], ARP, &arp(1, (of, X), ([0; 6], SERVER)));
    let hello = ethernet(
        B,
        second,
        &[],
        IPV6,
        &ipv6(link_local(second), NODES, TCP, &tcp()),
    );
    let message = udp(68, 67, &dhcp_of(3, 1, second, ZERO, &client_id(1, &second)));
    let packet = ipv4(ZERO, Ipv4Addr::BROADCAST, UDP, &message);
    let dhcp = ethernet(ALL, second, &[], IPV4, &packet);
    for good in [claims(second, second), hello, dhcp] {
        a.send(&good);
        await_frame(&b, &good);
    }
    a.send(&claims(second, A));
    until("another's binding is dropped", || {
        daemon.drops("a0", "ip-spoof") == 1
    });
}

/// Nobody gets an address that another VNIC has as a secondary one, and a change frees it for others.
#[test]
fn secondary_addresses_are_refused_to_others() {
    let Some(lab) = Lab::start("secondary_addresses_are_refused_to_others") else {
        return;
    };
    let second: Mac = [2, 0, 0, 0, 0, 0x1a];
    let words = [
        ("a", A, "--set secondary-macs=02:00:00:00:00:1a"),
        ("b", B, ""),
    ];
    let daemon = guests(&lab, words);
    let [a, b] = ["a", "b"].map(|guest| Wire::open(&lab, guest, "eth0"));
    for (words, what) in [
        (
            "vnic create c0 --bridge br0 --mac 02:00:00:00:00:1a",
            "02:00:00:00:00:1a",
        ),
        ("vnic set b0 secondary-macs=02:00:00:00:00:1a", "a0"),
        ("vnic set b0 secondary-macs=02:00:00:00:00:0a", "a0"),
        ("vnic set b0 secondary-macs=02:00:00:00:00:0b", "b0"),
        (
            "vnic set b0 secondary-macs=01:00:00:00:00:01",
            "01:00:00:00:00:01",
        ),
        ("fdb add br0 02:00:00:00:00:1a b0", "a0"),
    ] {
        let told = daemon.try_do(words);
        assert_ne!(told.code, 0, "{words}");
        assert!(told.err.contains(what), "{words}: {}", told.err);
    }
    daemon.must("vnic set a0 secondary-macs=none");
    assert!(!daemon.knows("02:00:00:00:00:1a", "a0"));
    a.send(&frame(B, second, &[], "former"));
    until("a former one is dropped", || {
        daemon.drops("a0", "mac-spoof") == 1
    });
    daemon.must("vnic set b0 secondary-macs=02:00:00:00:00:1a");
    a.send(&frame(second, A, &[], "moved"));
    await_frame(&b, &frame(second, A, &[], "moved"));
}
