//! Virtual machines of QEMU at a bridge: Linux with its own virtio-net, in software emulation.
//!
//! One machine after the other is booted in these tests, never more than two at a time, and what can be tried in one
//! boot is tried in it.

#[path = "qemu/matrix.rs"]
mod matrix;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use windlass_tests::{Daemon, Dhcp, Guest, Image, Lab, check_qemu, skip, until};

/// Largest frame of an MTU of 1500 without segmentation.
const FRAME_1500: u64 = 1514;
/// Bytes of one frame on average above which segments were certainly not cut to an MTU of 9000.
const LARGE: u64 = 16_000;
const MIB: u64 = 1 << 20;
/// How often the daemon is killed during one transfer.
const KILLS: u32 = 3;
/// How long a stream may last, and stand still while its receiver moves.
const STREAM: Duration = Duration::from_secs(240);
/// How long a transfer may last, and nothing of it come: at its slowest TCP tries again after some ten seconds here.
const TRANSFER: Duration = Duration::from_secs(600);
const STANDSTILL: Duration = Duration::from_secs(60);
/// Bytes that count as some: more than what keeps a connection or an address.
const SOME: u64 = 64 << 10;
/// The guest that moves from one host to another.
const MIGRATING: &str = "02:00:00:00:09:03";

/// Two guests need both cores of a small machine: the tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab and what guests boot, or `None`, said aloud.
fn place(name: &str) -> Option<(Lab, Image)> {
    if let Err(reason) = check_qemu() {
        skip(name, &reason);
        return None;
    }
    let lab = Lab::start_in_memory(name)?;
    match Image::make(lab.directory()) {
        Ok(image) => Some((lab, image)),
        Err(reason) => {
            skip(name, &reason);
            None
        }
    }
}

/// A bridge with the host's VNIC `h0` (10.9.0.1, in "h"), and a VNIC for each of two guests: windlass connects to
/// QEMU's socket of `g0`, and listens for `g1`; the latter has two queue pairs.
fn bridge(lab: &Lab) -> Daemon {
    bridge_with(lab, [1, 2])
}

/// Such a bridge; the guests have so many queue pairs.
fn bridge_with(lab: &Lab, queues: [u16; 2]) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.namespace("h");
    daemon.tap(lab, "h0", "h", ",address=10.9.0.1/24", "");
    let socket = daemon.directory().join("g0.sock");
    for attach in [
        format!(
            "g0 --attach vhost-user,socket={},role=client,queues={}",
            socket.display(),
            queues[0]
        ),
        format!(
            "g1 --attach vhost-user,socket=g1,role=server,queues={}",
            queues[1]
        ),
    ] {
        daemon.must(&format!("vnic create --bridge br0 {attach}"));
    }
    daemon
}

/// Boots both guests, side by side.
fn boot(daemon: &Daemon, image: &Image, device: &str) -> [Guest; 2] {
    let mut guests = ["g0", "g1"].map(|name| Guest::start(daemon, image, name, device, &[]));
    for guest in &mut guests {
        guest.ready();
    }
    guests
}

fn address(guest: &Guest) -> &'static str {
    if guest.name() == "g0" {
        "10.9.0.2"
    } else {
        "10.9.0.3"
    }
}

/// Gives a guest its address, and waits until it reaches the host.
fn set_up(daemon: &Daemon, guest: &mut Guest) {
    let address = address(guest);
    guest.must(&format!(
        "ip addr add {address}/24 dev eth0; ip link set eth0 up"
    ));
    daemon.wait_for_state("vnic", guest.name(), "up");
    guest.until("ping -q -c 1 -W 1 10.9.0.1");
}

fn reaches(from: &mut Guest, to: &str) {
    from.until(&format!("ping -q -c 1 -W 1 {to}"));
}

/// Bytes and frames that a guest has sent and was given.
fn traffic(daemon: &Daemon, name: &str) -> [u64; 4] {
    let counters = daemon.counters(name);
    ["rx_bytes", "rx_frames", "tx_bytes", "tx_frames"]
        .map(|field| counters[field].as_u64().expect("a number"))
}

/// Sends random bytes from one guest to the other over TCP and compares their digests; gives the average size of the
/// frames that the sender sent and that the receiver was given, in bytes.
fn copy(daemon: &Daemon, from: &mut Guest, to: &mut Guest, to_address: &str, mib: u64) -> [u64; 2] {
    let before = [traffic(daemon, from.name()), traffic(daemon, to.name())];
    receive(to);
    from.must(&format!("head -c {} /dev/urandom >/tmp/sent", mib * MIB));
    let sum = from.must("md5sum </tmp/sent");
    let answer = from.must(&format!("nc {to_address} 7000 </tmp/sent"));
    assert_eq!(answer, sum, "what came is not what was sent");
    sizes(daemon, [from.name(), to.name()], before, mib * MIB)
}

/// The average size of the frames that one guest sent and of those that the other was given since `before`; both have
/// handled this many bytes at least.
fn sizes(daemon: &Daemon, names: [&str; 2], before: [[u64; 4]; 2], bytes: u64) -> [u64; 2] {
    let after = names.map(|name| traffic(daemon, name));
    let grew = |guest: usize, field: usize| after[guest][field] - before[guest][field];
    assert!(
        grew(0, 0) >= bytes && grew(1, 2) >= bytes,
        "{before:?} {after:?}"
    );
    [grew(0, 0) / grew(0, 1), grew(1, 2) / grew(1, 3)]
}

/// Has a guest take one connection, digest what comes, and answer with that.
fn receive(to: &mut Guest) {
    to.must("nc -l -p 7000 -e md5sum & until netstat -lnt | grep -q :7000; do usleep 50000; done");
}

/// Whether one of the guests, and the host, have addresses of DHCP's range; gives the guest's.
fn lease(guest: &mut Guest) -> String {
    guest.must("ip link set eth0 up; udhcpc -i eth0 -n -q -t 60 -T 1 -s /lease");
    let shown = guest.must("ip -o -4 addr show eth0");
    let address = shown
        .split_whitespace()
        .find_map(|word| word.strip_suffix("/24"));
    let address = address
        .unwrap_or_else(|| panic!("no address: {shown}"))
        .to_owned();
    assert!(
        address.starts_with("10.9.0.5"),
        "{address} is not of the range"
    );
    address
}

/// Two guests, one with windlass as client and one as server: addresses by DHCP from a server behind the host's VNIC;
/// everyone reaches everyone, in packets of the whole MTU too; segments of TCP pass from guest to guest uncut and
/// unharmed, and cut where the sender's offloads are switched off, in every combination; a driver taken away and given
/// back and a guest booted again go on where they were.
#[test]
fn two_guests_on_a_bridge() {
    let name = "two_guests_on_a_bridge";
    let _turn = alone();
    let Some((lab, image)) = place(name) else {
        return;
    };
    let daemon = bridge(&lab);
    let _dhcp = match Dhcp::start(&lab, "h", "eth0", "10.9.0.50,10.9.0.59,255.255.255.0") {
        Ok(dhcp) => dhcp,
        Err(reason) => return skip(name, &reason),
    };
    let [mut a, mut b] = boot(&daemon, &image, "");
    let to = [lease(&mut a), lease(&mut b)];
    assert_ne!(to[0], to[1]);
    for (guest, other) in [(&mut a, &to[1]), (&mut b, &to[0])] {
        reaches(guest, "10.9.0.1");
        reaches(guest, other);
    }
    for address in &to {
        whole_packets(&lab, address, 1472);
    }
    copy(&daemon, &mut a, &mut b, &to[1], 8);
    copy(&daemon, &mut b, &mut a, &to[0], 8);
    streams(&daemon, &mut a, &mut b, &to[0]);
    offloads(&daemon, &mut a, &mut b, &to[1], FRAME_1500);
    for queues in ["2", "1"] {
        b.must(&format!("ethtool -L eth0 combined {queues}"));
        let shown = || daemon.show("vnic", "g1")["details"]["queue-pairs"] == queues;
        until("the rings follow", shown);
        copy(&daemon, &mut a, &mut b, &to[1], 2);
        copy(&daemon, &mut b, &mut a, &to[0], 2);
    }

    comes_back(&daemon, &mut b, &to[0]);
    copy(&daemon, &mut b, &mut a, &to[0], 2);
    for name in ["g0", "g1"] {
        assert_eq!(daemon.drops(name, "broken"), 0);
    }
}

/// Takes a guest's driver away and gives it back, and boots the guest again.
fn comes_back(daemon: &Daemon, guest: &mut Guest, other: &str) {
    guest.must(
        "cd /sys/bus/virtio/drivers/virtio_net; echo virtio0 >unbind; while test -e /sys/class/net/eth0; do usleep 50000; done; \
         echo virtio0 >bind",
    );
    set_up(daemon, guest);
    reaches(guest, other);
    guest.reboot();
    set_up(daemon, guest);
    reaches(guest, other);
}

/// The host's packets of this payload, that may not be fragmented, are answered.
fn whole_packets(lab: &Lab, address: &str, payload: u32) {
    until(&format!("{address} answers to {payload} bytes"), || {
        let mut ping = lab.command("h", "ping");
        ping.args(["-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s"]);
        windlass_tests::run(ping.arg(payload.to_string()).arg(address)).code == 0
    });
}

/// iperf3 both ways between guests, in segments that are not cut on their way. In reverse it ends before the last of its
/// bytes have come.
fn streams(daemon: &Daemon, server: &mut Guest, client: &mut Guest, to: &str) {
    server.must("iperf3 -s -D");
    for (direction, from, to_name) in [
        ("", client.name().to_owned(), server.name().to_owned()),
        ("-R", server.name().to_owned(), client.name().to_owned()),
    ] {
        let before = [traffic(daemon, &from), traffic(daemon, &to_name)];
        client.until(&format!("iperf3 -c {to} -n 32M {direction}"));
        let sizes = sizes(daemon, [&from, &to_name], before, 28 * MIB);
        assert!(sizes.iter().all(|size| *size > LARGE), "cut: {sizes:?}");
    }
    server.must("killall iperf3");
}

/// Copies with each combination of offloads at the sender and the receiver; `frame` is the largest frame.
fn offloads(daemon: &Daemon, from: &mut Guest, to: &mut Guest, to_address: &str, frame: u64) {
    for sender in [
        "tso off gso on tx on",
        "tso off gso off tx on",
        "tso off gso off tx off sg off",
    ] {
        for receiver in [
            "gro on rx-gro-hw on",
            "gro on rx-gro-hw off",
            "gro off rx-gro-hw off",
        ] {
            from.must(&format!("ethtool -K eth0 {sender}"));
            to.must(&format!("ethtool -K eth0 {receiver}"));
            let sizes = copy(daemon, from, to, to_address, 2);
            assert!(
                sizes.iter().all(|size| *size <= frame),
                "{sender}, {receiver}: {sizes:?}"
            );
        }
    }
    from.must("ethtool -K eth0 sg on tx on tso on gso on");
    to.must("ethtool -K eth0 gro on rx-gro-hw on");
    let sizes = copy(daemon, from, to, to_address, 4);
    assert!(
        sizes.iter().all(|size| *size > frame),
        "all on again: {sizes:?}"
    );
}

/// Under traffic from guest to guest, over split and over packed rings, the daemon is killed and started again, three
/// times: the transfer goes on by itself and arrives whole. A QEMU killed under traffic harms nobody, and another one on the same
/// socket, with an MTU of 9000, is served as the first was.
#[test]
fn either_side_is_killed_under_traffic() {
    let _turn = alone();
    let Some((lab, image)) = place("either_side_is_killed_under_traffic") else {
        return;
    };
    let mut daemon = bridge(&lab);
    for (device, layout) in [("", "split"), (",packed=on", "packed")] {
        let [mut a, mut b] = boot(&daemon, &image, device);
        for guest in [&mut a, &mut b] {
            set_up(&daemon, guest);
            let view = daemon.show("vnic", guest.name());
            assert_eq!(view["details"]["ring-layout"], layout, "{view}");
            assert_eq!(view["details"]["survives-a-kill"], "yes", "{view}");
        }
        the_daemon_dies(&mut daemon, &mut a, &mut b);
        if layout == "split" {
            machines_die(&lab, &daemon, &image, [a, b]);
            daemon.must("vnic set h0 mtu=1500");
            daemon.must("vnic set g0 mtu=1500");
            daemon.must("vnic set g1 mtu=1500");
        }
    }
}

/// Kills the daemon in the middle of a transfer from `b`, which has two queue pairs, to `a`. It ends when `b` is told so,
/// behind the last kill, however fast the machine is.
fn the_daemon_dies(daemon: &mut Daemon, a: &mut Guest, b: &mut Guest) {
    b.must("ethtool -L eth0 combined 2; rm -f /tmp/enough /tmp/sent /tmp/answer");
    receive(a);
    b.must("head -c 262144 /dev/urandom >/tmp/piece");
    let before = traffic(daemon, "g0")[2];
    let pieces = "until test -e /tmp/enough; do n=$((n+1)); echo $n >>/tmp/sent; echo $n; cat /tmp/piece; done";
    b.must(&format!(
        "({pieces}) | nc {} 7000 >/tmp/answer 2>&1 &",
        address(a)
    ));
    let more_than = |before: u64| {
        move |daemon: &Daemon, _: &mut Guest| traffic(daemon, "g0")[2] > before + 2 * MIB
    };
    while_it_flows(
        "a transfer begins",
        daemon,
        [&mut *a, &mut *b],
        more_than(before),
    );
    for kill in 0..KILLS {
        daemon.kill();
        daemon.start_again();
        let what = format!("after kill {kill}");
        while_it_flows(&what, daemon, [&mut *a, &mut *b], more_than(0));
    }
    b.must("touch /tmp/enough");
    let answered = |_: &Daemon, b: &mut Guest| b.run("test -s /tmp/answer").code == 0;
    while_it_flows("the rest", daemon, [&mut *a, &mut *b], answered);
    assert_eq!(
        b.must("cat /tmp/answer"),
        b.must("for n in $(cat /tmp/sent); do echo $n; cat /tmp/piece; done | md5sum"),
        "what came is not what was sent"
    );
    for guest in [a, b] {
        assert!(guest.is_alive());
        reaches(guest, "10.9.0.1");
    }
}

/// Waits until `ends` holds for the second guest, however long that takes while bytes go on coming to the first. If they
/// do not, fails with all that both sides can tell.
fn while_it_flows(
    what: &str,
    daemon: &mut Daemon,
    [a, b]: [&mut Guest; 2],
    ends: impl Fn(&Daemon, &mut Guest) -> bool,
) {
    let begun = Instant::now();
    let (mut came, mut since) = (0, begun);
    while !ends(daemon, b) {
        daemon.assert_alive();
        let now = traffic(daemon, "g0")[2];
        if now > came + SOME {
            (came, since) = (now, Instant::now());
        }
        if since.elapsed() > STANDSTILL || begun.elapsed() > TRANSFER {
            for vnic in ["g0", "g1"] {
                println!("{:#}", daemon.show("vnic", vnic));
                println!("{}", daemon.counters(vnic));
            }
            println!("{}", daemon.log());
            for guest in [a, b] {
                let told = guest.run(
                    "netstat -tn; cat /proc/net/tcp /proc/net/dev; grep Tcp: /proc/net/snmp; \
                     grep virtio /proc/interrupts",
                );
                println!("{}: {}", guest.name(), told.out);
            }
            let [whole, still] = [begun, since].map(|instant| instant.elapsed());
            panic!("{what}: {came} bytes have come in {whole:?}, the last of them {still:?} ago");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{what}: {:?}, {came} bytes", begun.elapsed());
}

/// Kills both machines, the first under traffic.
fn are_killed(daemon: &Daemon, mut a: Guest, mut b: Guest) {
    a.must("iperf3 -s -D");
    b.must("iperf3 -c 10.9.0.2 -t 60 >/dev/null 2>&1 &");
    let before = traffic(daemon, "g0")[2];
    until("traffic", || traffic(daemon, "g0")[2] > before + 4 * MIB);
    a.kill();
    daemon.wait_for_state("vnic", "g0", "waiting");
    assert!(b.is_alive());
    reaches(&mut b, "10.9.0.1");
    b.kill();
    daemon.wait_for_state("vnic", "g1", "waiting");
}

/// Kills both machines, and boots two with an MTU of 9000 in their place.
fn machines_die(lab: &Lab, daemon: &Daemon, image: &Image, [a, b]: [Guest; 2]) {
    are_killed(daemon, a, b);
    for vnic in ["h0", "g0", "g1"] {
        daemon.must(&format!("vnic set {vnic} mtu=9000"));
    }
    let [mut a, mut b] = boot(daemon, image, "");
    for guest in [&mut a, &mut b] {
        set_up(daemon, guest);
        assert_eq!(guest.must("cat /sys/class/net/eth0/mtu").trim(), "9000");
        whole_packets(lab, address(guest), 8972);
    }
    streams(daemon, &mut a, &mut b, "10.9.0.2");
    b.must("ethtool -K eth0 tso off gso off");
    let sizes = copy(daemon, &mut b, &mut a, "10.9.0.2", 4);
    assert!(
        sizes.iter().all(|size| (FRAME_1500..=9014).contains(size)),
        "{sizes:?}"
    );
}

/// Two hosts with an uplink each on one network, and a machine that migrates from one to the other and back. The first
/// time nobody asks it anything: its announcement alone makes the network send to the new place. The second time a
/// stream flows into its memory all the while, and arrives whole.
#[test]
fn a_guest_migrates() {
    let _turn = alone();
    let Some((lab, image)) = place("a_guest_migrates") else {
        return;
    };
    let hosts = two_hosts(&lab);
    for device in ["", ",packed=on"] {
        there_and_back(&lab, &image, &hosts, device);
    }
}

fn there_and_back(lab: &Lab, image: &Image, [near, far, lan]: &[Daemon; 3], device: &str) {
    let mut guest = Guest::start(near, image, "g1", device, &[]);
    guest.ready();
    guest.must("ethtool -L eth0 combined 2; ip addr add 10.9.0.3/24 dev eth0; ip link set eth0 up");
    guest.until("ping -q -c 1 -W 1 10.9.0.1");
    until("the network knows the first place", || {
        lan.knows(MIGRATING, "near")
    });

    let mut guest = migrate(lab, image, guest, far, device);
    until("the network knows the second place", || {
        lan.knows(MIGRATING, "far")
    });
    assert!(
        lab.ping("h", "10.9.0.3", 5),
        "it answers from its new place"
    );
    reaches(&mut guest, "10.9.0.1");

    receive_later(&mut guest);
    let flows = AtomicBool::new(true);
    let mut guest = std::thread::scope(|scope| {
        let stream = scope.spawn(|| lab.within("h", || stream_while(&flows)));
        let given = || traffic(far, "g1")[2];
        let before = given();
        until("the stream flows", || given() > before + MIB / 4);
        // Slow enough for most of the stream to come behind the first pass over memory.
        guest.control("migrate-set-parameters", json!({"max-bandwidth": 25 * MIB}));
        let mut guest = migrate(lab, image, guest, near, device);
        guest.must("touch /tmp/go");
        until("the stream goes on", || traffic(near, "g1")[2] > MIB);
        flows.store(false, Ordering::Relaxed);
        let [sent, came] = stream.join().expect("a stream");
        assert_eq!(came, sent, "what came is not what was sent");
        guest
    });
    assert!(lan.knows(MIGRATING, "near"), "it is back");
    reaches(&mut guest, "10.9.0.1");
}

/// Has a guest take one connection and digest what comes once there is a file `/tmp/go`. Until then it lies in the
/// buffers of its socket, which are made large: in the pages that windlass wrote it to.
fn receive_later(guest: &mut Guest) {
    guest.must(
        "echo '4096 16777216 16777216' >/proc/sys/net/ipv4/tcp_rmem; \
         nc -l -p 7000 -e sh -c 'until test -e /tmp/go; do usleep 50000; done; exec md5sum' & \
         until netstat -lnt | grep -q :7000; do usleep 50000; done",
    );
}

/// Moves a machine to another host, and gives it as it is there.
fn migrate(lab: &Lab, image: &Image, mut guest: Guest, to: &Daemon, device: &str) -> Guest {
    let path = lab.directory().join("migration");
    let channel = format!("unix:{}", path.display());
    let moved = Guest::start(to, image, guest.name(), device, &["-incoming", &channel]);
    until("the new machine listens", || path.exists());
    guest.control("migrate", json!({"uri": channel}));
    let begun = Instant::now();
    loop {
        let told = guest.control("query-migrate", json!({}));
        assert_ne!(told["status"], "failed", "{told}");
        if told["status"] == "completed" {
            break;
        }
        assert!(
            begun.elapsed() < STREAM,
            "the migration does not end: {told}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = std::fs::remove_file(path);
    moved
}

/// Sends to the guest that digests what comes, while `flows`; gives the digests of what was sent and of what came.
fn stream_while(flows: &AtomicBool) -> [String; 2] {
    let mut digest = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("md5sum");
    let mut own = digest.stdin.take().expect("a pipe");
    let mut stream = TcpStream::connect("10.9.0.3:7000").expect("a connection");
    stream.set_write_timeout(Some(STREAM)).expect("a timeout");
    stream.set_read_timeout(Some(STREAM)).expect("a timeout");
    let mut piece = vec![0; 64 << 10];
    let mut round = 0u64;
    let begun = Instant::now();
    while flows.load(Ordering::Relaxed) && begun.elapsed() < STREAM {
        for (number, word) in piece.chunks_exact_mut(8).enumerate() {
            let value = (round << 16 | number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&value.to_le_bytes());
        }
        round += 1;
        own.write_all(&piece).expect("md5sum reads");
        stream.write_all(&piece).expect("the guest reads");
        std::thread::sleep(Duration::from_millis(25));
    }
    drop(own);
    stream
        .shutdown(Shutdown::Write)
        .expect("the end of a stream");
    let mut came = String::new();
    stream
        .read_to_string(&mut came)
        .expect("the guest's digest");
    let sent = digest.wait_with_output().expect("a digest").stdout;
    [String::from_utf8(sent).expect("text"), came]
}

/// Daemons in "host" and "far" with a VNIC `g1` of the same address each, and uplinks to a third one in "lan", which
/// has a VNIC with 10.9.0.1 in "h".
fn two_hosts(lab: &Lab) -> [Daemon; 3] {
    for short in ["far", "h"] {
        lab.namespace(short);
    }
    let lan_name = lab.namespace("lan");
    let lan = Daemon::start(lab, "lan", 2);
    lan.must("bridge create br0");
    lan.tap(lab, "h0", "h", ",address=10.9.0.1/24", "");
    let [near, far] = [("host", "near", 0), ("far", "far", 1)].map(|(short, port, number)| {
        lab.ip(short, &format!("link add up0 type veth peer name {port} netns {lan_name}"));
        lab.ip(short, "link set up0 up");
        lab.ip("lan", &format!("link set {port} up"));
        lan.must(&format!("uplink create {port} --device {port} --bridge br0 --attach packet"));
        let daemon = Daemon::start(lab, short, number);
        daemon.must("bridge create br0");
        daemon.must("uplink create up0 --device up0 --bridge br0 --attach packet");
        daemon.must(&format!(
            "vnic create g1 --bridge br0 --mac {MIGRATING} --attach vhost-user,socket=g1,role=server,queues=2"
        ));
        daemon
    });
    [near, far, lan]
}
