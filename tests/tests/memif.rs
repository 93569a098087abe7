//! A TAP, whose kernel leaves checksums and segmentation to others, and a memif peer, which takes neither:
//! windlass finishes both in between. The peer is a TCP/IP stack of another make (smoltcp), which drops
//! what has a wrong checksum.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient};
use windlass_attach::port::{Kick, Lane, Limit, Stop};
use windlass_frame::{Claim, HEADROOM, Heads, Pick, RxId, SNAP, Tick};
use windlass_shm::{Foreign, HugePages, SegStore, Tails};
use windlass_sync::qsbr::{Domain, Worker};
use windlass_tests::{Daemon, Lab, mac, skip, uninterrupted, until, until_some};

const PEER: &str = "02:00:00:00:00:0b";
const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};
/// Bytes sent each way.
const BYTES: usize = 4 << 20;

/// A testpmd whose answers can be read while it runs.
const UNBUFFERED: [&str; 3] = ["stdbuf", "-oL", "dpdk-testpmd"];
/// How long a testpmd may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

/// The byte at a place of the stream.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// The peer's end of a memif, as a network device.
struct Peer {
    _client: MemifClient,
    rings: Rings,
    worker: Worker,
    heads: Box<Heads>,
    store: SegStore,
    waiting: VecDeque<Vec<u8>>,
    frames: u64,
    longest: usize,
}

impl Peer {
    fn connect(path: PathBuf) -> Peer {
        let config = ClientConfig {
            path,
            owner: None,
            id: 0,
            secret: Secret::NONE,
            name: "peer".to_owned(),
            rings: 1,
            log2_size: 10,
            huge: HugePages::Try,
        };
        let mut client = MemifClient::new(config).expect("a client");
        let rings = until_some("the memif is connected", || {
            match client.poll(std::time::Instant::now()).pop() {
                Some(Event::Up(rings)) => Some(rings),
                _ => None,
            }
        });
        Peer {
            _client: client,
            rings,
            worker: Domain::new(1).register(),
            heads: Heads::boxed(),
            store: SegStore::default(),
            waiting: VecDeque::new(),
            frames: 0,
            longest: 0,
        }
    }

    /// Takes what waits in the ring.
    fn take(&mut self) {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let rx = self.rings.rx[0].as_mut();
        let (loan, _) = rx.rx_burst(&section, heads, &mut tails, Limit::FULL);
        for i in 0..heads.n {
            assert!(
                heads.verdict[i].as_drop().is_none(),
                "{:?}",
                heads.verdict[i]
            );
            let mut frame = heads.private(i).to_vec();
            for piece in tails.of(i) {
                let at = frame.len();
                frame.resize(at + piece.len(), 0);
                piece.read(&mut frame[at..]);
            }
            self.frames += 1;
            self.longest = self.longest.max(frame.len());
            self.waiting.push_back(frame);
        }
        rx.release(&section, loan);
        self.worker.quiesce();
    }

    /// Sends one frame; waits while the ring is full.
    fn give(&mut self, frame: &[u8]) {
        let section = self.worker.section();
        let heads = &mut self.heads;
        let mut tails = Tails::bind(&mut self.store, &section);
        heads.clear(RxId(0), Tick(0));
        let have = frame.len().min(SNAP);
        heads.snap[0].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        assert!(tails.push(0, Foreign::private(&frame[have..])));
        heads.n = 1;
        loop {
            let picks = [Pick::frame(0, false)];
            let sent = self
                .rings
                .tx
                .tx_burst(&section, ALONE, heads, &tails, &picks);
            if sent.kick == Kick::Now {
                self.rings.tx.kick(ALONE);
            }
            if sent.stop == Stop::Done {
                return;
            }
            std::thread::yield_now();
        }
    }
}

struct Came(Vec<u8>);
struct Goes<'a>(&'a mut Peer);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, work: F) -> R {
        work(&self.0)
    }
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, work: F) -> R {
        let mut frame = vec![0; len];
        let result = work(&mut frame);
        self.0.give(&frame);
        result
    }
}

impl Device for Peer {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        if self.waiting.is_empty() {
            self.take();
        }
        let frame = self.waiting.pop_front()?;
        Some((Came(frame), Goes(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        Some(Goes(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// The peer's stack: takes [`BYTES`] over TCP and sends as many back, and echoes datagrams meanwhile.
/// Ends when `done` says so.
fn serve(peer: &mut Peer, done: impl Fn() -> bool) {
    let address = EthernetAddress(mac(PEER));
    let mut interface = Interface::new(Config::new(address.into()), peer, Instant::now());
    interface.update_ip_addrs(|addresses| {
        addresses
            .push(IpCidr::new(IpAddress::v4(10, 1, 0, 2), 24))
            .expect("room");
    });
    let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 18]);
    let mut stream = tcp::Socket::new(buffer(), buffer());
    stream.listen(7000).expect("a port");
    let packets =
        || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 << 10]);
    let mut datagrams = udp::Socket::new(packets(), packets());
    datagrams.bind(7001).expect("a port");
    let mut sockets = SocketSet::new(Vec::new());
    let (stream, datagrams) = (sockets.add(stream), sockets.add(datagrams));
    let (mut received, mut sent) = (0, 0);
    let begun = std::time::Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{received} bytes received, {sent} sent"
        );
        interface.poll(Instant::now(), peer, &mut sockets);
        let socket = sockets.get_mut::<udp::Socket<'_>>(datagrams);
        while let Ok((data, from)) = socket.recv().map(|(data, from)| (data.to_vec(), from)) {
            socket.send_slice(&data, from.endpoint).expect("echoed");
        }
        let socket = sockets.get_mut::<tcp::Socket<'_>>(stream);
        while socket.can_recv() {
            let got = socket
                .recv(|data| (data.len(), data.to_vec()))
                .expect("data");
            for byte in got {
                assert_eq!(byte, pattern(received), "byte {received}");
                received += 1;
            }
        }
        while received == BYTES && sent < BYTES && socket.can_send() {
            sent += socket
                .send(|space| {
                    let n = space.len().min(BYTES - sent);
                    for (i, byte) in space[..n].iter_mut().enumerate() {
                        *byte = pattern(sent + i);
                    }
                    (n, n)
                })
                .expect("room");
        }
    }
    assert_eq!((received, sent), (BYTES, BYTES));
}

/// What the guest does: TCP both ways, then datagrams that come back.
fn guest(lab: &Lab) {
    let timeout = Some(Duration::from_secs(20));
    let mut stream = lab.within("a", || {
        let peer = "10.1.0.2:7000".parse().expect("an address");
        TcpStream::connect_timeout(&peer, Duration::from_secs(5)).expect("connected")
    });
    stream.set_read_timeout(timeout).expect("a socket");
    stream.set_write_timeout(timeout).expect("a socket");
    let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
    stream.write_all(&bytes).expect("sent");
    let mut back = vec![0; BYTES];
    stream.read_exact(&mut back).expect("received");
    assert!(back == bytes, "what came back differs");
    let socket = lab.within("a", || UdpSocket::bind("10.1.0.1:0").expect("a socket"));
    socket.set_read_timeout(timeout).expect("a socket");
    socket.connect("10.1.0.2:7001").expect("an address");
    for length in [0, 1, 2, 17, 200, 201, 1471, 1472] {
        let sent = &bytes[..length];
        socket.send(sent).expect("sent");
        let mut space = [0; 2000];
        let n = uninterrupted(|| socket.recv(&mut space)).expect("an echo");
        assert_eq!(&space[..n], sent);
    }
}

/// TCP and UDP between a TAP with offloads and a peer without: the kernel's large segments arrive cut to
/// the MTU, with checksums that another stack finds right, byte for byte; and the other way round.
#[test]
fn offloads_end_at_the_peer() {
    let Some(lab) = Lab::start("offloads_end_at_the_peer") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    let path = daemon.runtime_dir().join("peer.sock");
    daemon.must(&format!(
        "vnic create p0 --bridge br0 --mac {PEER} --attach memif,socket={},id=0,role=server",
        path.display()
    ));
    let mut peer = Peer::connect(path);
    daemon.wait_for_state("vnic", "p0", "up");
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| guest(&lab));
        serve(&mut peer, || guest.is_finished());
        guest.join().expect("the guest is content");
    });
    assert_eq!(peer.longest, 1514, "nothing above the MTU");
    let from_tap = daemon.counters("a0");
    let of = |name: &str| from_tap[name].as_u64().expect("a number");
    assert!(
        of("rx_bytes") / of("rx_frames") > 1600,
        "the kernel sent large segments: {from_tap}"
    );
    assert!(
        peer.frames > of("rx_frames"),
        "which arrived cut: {} frames",
        peer.frames
    );
}

/// A testpmd with two memif ports. Each frame that comes to one port goes out of the other one. Killed when dropped.
struct Testpmd {
    child: Child,
    log: PathBuf,
}

impl Testpmd {
    /// Descriptors of each ring, as a power of two.
    const LOG2_DESCRIPTORS: u32 = 10;

    /// With memory of its own on hugetlbfs, which both ports share.
    fn with_huge_pages(lab: &Lab, ports: &[String; 2]) -> Testpmd {
        let pages = lab.directory().join("huge");
        std::fs::create_dir(&pages).expect("a directory");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c"])
            .arg("mount -t hugetlbfs -o pagesize=2M none \"$0\" && exec \"$@\"")
            .arg(&pages)
            .args(UNBUFFERED)
            .arg(format!("--huge-dir={}", pages.display()))
            .args(["--single-file-segments", "-m", "64"]);
        Testpmd::start(lab, command, ports)
    }

    fn with_small_pages(lab: &Lab, ports: &[String; 2]) -> Testpmd {
        let [program, arguments @ ..] = UNBUFFERED;
        let mut command = Command::new(program);
        command.args(arguments).args(["--no-huge", "-m", "256"]);
        Testpmd::start(lab, command, ports)
    }

    fn start(lab: &Lab, mut command: Command, ports: &[String; 2]) -> Testpmd {
        let path = lab.directory().join("testpmd.log");
        let log = std::fs::File::create(&path).expect("a log");
        command
            .arg(format!("--file-prefix={}", lab.name("testpmd")))
            .args(["-l", "0,1", "--no-shconf", "--no-pci", "--no-telemetry"]);
        for (id, port) in ports.iter().enumerate() {
            let size = Self::LOG2_DESCRIPTORS;
            command.arg(format!(
                "--vdev=net_memif{id},{port},socket-abstract=no,id={id},rsize={size}"
            ));
        }
        let child = command
            .args(["--", "--interactive", "--forward-mode=io", "--auto-start"])
            .args(["--nb-cores=1", "--total-num-mbufs=8192"])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Testpmd {
            child: child.expect("testpmd"),
            log: path,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Types a line at its prompt, and waits for the answer.
    fn say(&mut self, line: &str, answer: &str) {
        let before = self.said().len();
        let prompt = self.child.stdin.as_mut().expect("its input");
        let typed = writeln!(prompt, "{line}");
        let ended = self.child.try_wait();
        assert!(typed.is_ok(), "{ended:?}: {}", self.said());
        until(&format!("{answer:?} is the answer to {line:?}"), || {
            self.said()[before..].contains(answer)
        });
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether testpmd is there; else the test is skipped.
fn has_testpmd(test: &str) -> bool {
    let there = Command::new("dpdk-testpmd").arg("-v").output();
    if let Err(error) = &there {
        skip(test, &format!("dpdk-testpmd cannot be run: {error}"));
    }
    there.is_ok()
}

/// Namespace `a` on a bridge with VNIC `m0`, and `b` on another one with `m1`, attached like that.
fn two_bridges(lab: &Lab, daemon: &Daemon, attach: [String; 2]) {
    for (id, (namespace, attach)) in ["a", "b"].into_iter().zip(attach).enumerate() {
        lab.namespace(namespace);
        daemon.must(&format!("bridge create br{id}"));
        let address = format!(",address=10.1.0.{}/24", id + 1);
        let name = format!("{namespace}0");
        daemon.must(&format!(
            "vnic create {name} --bridge br{id} --attach tap,netns={}{address}",
            lab.name(namespace)
        ));
        daemon.must(&format!(
            "vnic create m{id} --bridge br{id} --set mac-nospoof=off --attach {attach},id={id}"
        ));
    }
}

fn both_are_up(daemon: &Daemon, testpmd: &Testpmd) {
    for name in ["m0", "m1"] {
        let begun = std::time::Instant::now();
        loop {
            let vnic = daemon.show("vnic", name);
            if vnic["state"] == "up" {
                break;
            }
            let said = || testpmd.said();
            assert!(begun.elapsed() < PATIENCE, "{vnic}\n{}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Two ports of one DPDK process connect to one socket with `zero-copy=yes`, each once, and frames pass through both: from a
/// namespace on one bridge to a namespace on another one, both ways.
#[test]
fn zero_copy_clients_share_a_socket() {
    const NAME: &str = "zero_copy_clients_share_a_socket";
    let Some(lab) = Lab::start(NAME) else {
        return;
    };
    if !has_testpmd(NAME) {
        return;
    }
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if !free.is_ok_and(|free| free.trim().parse::<u32>().is_ok_and(|pages| pages >= 40)) {
        return skip(NAME, "there are no 40 free huge pages of 2 MiB");
    }
    let daemon = lab.daemon();
    let socket = daemon.runtime_dir().join("both.sock");
    let attach = format!("memif,socket={},role=server", socket.display());
    two_bridges(&lab, &daemon, [attach.clone(), attach]);
    let port = format!("socket={},role=client,zero-copy=yes", socket.display());
    let testpmd = Testpmd::with_huge_pages(&lab, &[port.clone(), port]);
    both_are_up(&daemon, &testpmd);
    assert!(lab.ping("a", "10.1.0.2", 20), "{}", testpmd.said());
    for name in ["m0", "m1"] {
        let shown = daemon.show("vnic", name);
        assert_eq!(shown["connects"], 1, "{shown}\n{}", testpmd.said());
        let ring = 1u32 << Testpmd::LOG2_DESCRIPTORS;
        assert!(
            shown["details"].to_string().contains(&ring.to_string()),
            "{shown}"
        );
        let counters = daemon.counters(name);
        for counter in ["rx_frames", "tx_frames"] {
            assert!(counters[counter].as_u64() >= Some(1), "{counters}");
        }
    }
    assert!(
        !testpmd.said().contains("sendmsg fail"),
        "{}",
        testpmd.said()
    );
}

/// Frames pass through a DPDK program after the daemon was killed and started again, and after it was ended and started again,
/// in either role of the program: windlass connects again to a server by itself; a client connects when its ports are started
/// again. The program forwards nothing meanwhile: DPDK 22.11 unmaps rings under the threads that poll them.
#[test]
fn a_dpdk_program_goes_on_after_a_restart() {
    const NAME: &str = "a_dpdk_program_goes_on_after_a_restart";
    if !has_testpmd(NAME) {
        return;
    }
    for is_server in [true, false] {
        let Some(lab) = Lab::start(NAME) else {
            return;
        };
        let mut daemon = lab.daemon();
        let (ours, theirs) = match is_server {
            true => ("client", "server"),
            false => ("server", "client"),
        };
        let sockets = [0, 1].map(|id| daemon.runtime_dir().join(format!("dpdk{id}.sock")));
        let end = |role: &str| {
            let of = |socket: &PathBuf| format!("socket={},role={role}", socket.display());
            [of(&sockets[0]), of(&sockets[1])]
        };
        two_bridges(&lab, &daemon, end(ours).map(|end| format!("memif,{end}")));
        let mut testpmd = Testpmd::with_small_pages(&lab, &end(theirs));
        both_are_up(&daemon, &testpmd);
        assert!(lab.ping("a", "10.1.0.2", 20), "{}", testpmd.said());
        for is_killed in [true, false] {
            testpmd.say("stop", "Done.");
            match is_killed {
                true => daemon.kill(),
                false => assert_eq!(daemon.terminate(), 0),
            }
            daemon.start_again();
            if !is_server {
                testpmd.say("port stop all", "Done");
                testpmd.say("port start all", "Done");
            }
            both_are_up(&daemon, &testpmd);
            testpmd.say("start", "packet forwarding");
            let goes_on = lab.ping("a", "10.1.0.2", 20);
            let said = testpmd.said();
            assert!(goes_on, "testpmd as {theirs}, killed: {is_killed}: {said}");
        }
    }
}
