//! Rings that are moved from worker to worker while frames pass: of a TAP, a memif, guests with rings of either layout, an
//! uplink.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

mod machine;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use machine::Machine;
use serde_json::{Value, json};
use vhost_drive::{HEADER, HIGH, Layout, put};
use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, Offloads};
use windlass_attach::port::{Kick, Lane, Limit};
use windlass_frame::{Heads, Pick, RxId, Tick};
use windlass_shm::{HugePages, SegStore, Tails};
use windlass_sync::qsbr::{Domain, Worker};
use windlass_tests::{Daemon, Lab, Wire, frame, mac, skip, until_some};

const SINK: &str = "02:00:00:00:00:0e";
/// Frames of a sender that are under way at most.
const WINDOW: u64 = 32;
/// How often each ring is moved.
const MOVES: usize = 100;
const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// A program's end of a memif.
struct Peer {
    client: MemifClient,
    rings: Rings,
    worker: Worker,
    heads: Box<Heads>,
    store: SegStore,
}

impl Peer {
    fn connect(daemon: &Daemon, socket: &str) -> Peer {
        let config = ClientConfig {
            path: daemon.runtime_dir().join("zones/global").join(socket),
            owner: None,
            id: 0,
            secret: Secret::NONE,
            name: "peer".to_owned(),
            rings: 1,
            log2_sizes: [10; 2],
            offloads: Offloads::None,
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
            client,
            rings,
            worker: Domain::new(1).register(),
            heads: Heads::boxed(),
            store: SegStore::default(),
        }
    }

    /// Frames that came.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        let rx = self.rings.rx[0].as_mut();
        let (loan, _) = rx.rx_burst(&section, &mut self.heads, &mut tails, Limit::FULL);
        let frames = (0..self.heads.n).map(|i| self.heads.private(i).to_vec());
        let frames = frames.collect();
        rx.release(&section, loan);
        self.worker.quiesce();
        frames
    }

    fn give(&mut self, frame: &[u8]) {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        put(&mut self.heads, &mut tails, 0, frame);
        self.heads.n = 1;
        let tx = &self.rings.tx;
        let sent = tx.tx_burst(
            &section,
            ALONE,
            &self.heads,
            &tails,
            &[Pick::frame(0, false)],
        );
        assert_eq!(sent.frames, 1, "the ring has room for all under way");
        if sent.kick == Kick::Now && tx.wants_kick(ALONE) {
            tx.kick(ALONE);
        }
        self.worker.quiesce();
    }
}

/// Sends numbered frames.
enum Sender {
    Wire(Wire),
    Memif(Box<Peer>),
    Machine(Machine),
}

impl Sender {
    fn send(&mut self, number: u64, bytes: &[u8]) {
        match self {
            Sender::Wire(wire) => while !wire.try_send(bytes).expect("sent") {},
            Sender::Memif(peer) => peer.give(bytes),
            Sender::Machine(machine) => {
                let id = (number % (2 * WINDOW)) as u16;
                let at = HIGH + 0x80_0000 + u64::from(id) * 4096;
                machine.guest.write(at, &[&[0; HEADER], bytes].concat());
                let queue = &mut machine.queues[1];
                queue.ring.reap();
                let bytes = (HEADER + bytes.len()) as u32;
                queue.ring.offer_one(id, at, bytes, 0);
                windlass_sys::eventfd::signal(&queue.kick).expect("kicked");
            }
        }
    }
}

/// One sender's frames: so many were sent, and so many have come.
struct Flow {
    name: &'static str,
    mac: String,
    sender: Sender,
    sent: u64,
    came: u64,
}

impl Flow {
    fn new(name: &'static str, sender: Sender) -> Flow {
        let mac = address(name);
        Flow {
            name,
            mac,
            sender,
            sent: 0,
            came: 0,
        }
    }

    fn send_on(&mut self) {
        while self.sent < self.came + WINDOW {
            let text = format!("{} {}", self.name, self.sent);
            let bytes = frame(mac(SINK), mac(&self.mac), &[], &text);
            self.sender.send(self.sent, &bytes);
            self.sent += 1;
        }
    }
}

fn address(name: &str) -> String {
    format!("02:00:00:00:01:{:02x}", name.as_bytes()[0])
}

/// The control socket, for many requests.
struct Control(UnixStream);

impl Control {
    fn open(socket: &Path) -> Control {
        let stream = UnixStream::connect(socket).expect("the control socket");
        let wait = Some(Duration::from_secs(30));
        stream.set_read_timeout(wait).expect("a time limit");
        Control(stream)
    }

    /// Moves a ring; the answer's status and body.
    fn move_ring(&mut self, name: &str, worker: usize) -> (String, Value) {
        let body = json!({"member": name, "ring": 0, "worker": worker}).to_string();
        let head =
            "POST /v1/workers/move HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\n";
        let length = body.len();
        write!(self.0, "{head}content-length: {length}\r\n\r\n{body}").expect("sent");
        let mut answer = Vec::new();
        loop {
            let mut part = [0; 4096];
            let n = self.0.read(&mut part).expect("an answer");
            assert_ne!(n, 0, "the connection ends");
            answer.extend(&part[..n]);
            let text = String::from_utf8_lossy(&answer);
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str(body)
            {
                return (head.lines().next().unwrap_or_default().to_owned(), body);
            }
        }
    }
}

/// A daemon with two workers; the member e0 is the receiver, the others send to it.
fn start(lab: &Lab) -> (Daemon, Peer, Vec<Flow>) {
    lab.namespace("a");
    lab.namespace("wire");
    let wire = lab.name("wire");
    let link = format!("link add up0 type veth peer name eth0 netns {wire}");
    lab.ip("host", &link);
    lab.ip("host", "link set up0 up");
    let outside = address("uplink");
    lab.ip("wire", &format!("link set eth0 address {outside} up"));
    let daemon = Daemon::start_with(lab, "host", 0, &["--workers", "0,1"]);
    daemon.must("bridge create br0");
    for (name, mac) in [("e0", SINK), ("memif", &address("memif"))] {
        let attach = format!("memif,socket={name}.sock,role=server");
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --mac {mac} --attach {attach}"
        ));
    }
    daemon.tap(lab, "tap", "a", "", &format!("--mac {}", address("tap")));
    daemon.must("uplink create uplink --device up0 --bridge br0 --attach packet");
    daemon.wait_for_state("uplink", "uplink", "up");
    let sink = Peer::connect(&daemon, "e0.sock");
    let mut flows = vec![
        Flow::new("tap", Sender::Wire(Wire::open(lab, "a", "eth0"))),
        Flow::new(
            "memif",
            Sender::Memif(Box::new(Peer::connect(&daemon, "memif.sock"))),
        ),
        Flow::new("uplink", Sender::Wire(Wire::open(lab, "wire", "eth0"))),
    ];
    for (name, layout) in [("split", Layout::Split), ("packed", Layout::Packed)] {
        let (socket, mac) = (lab.directory().join(name), address(name));
        let attach = format!("vhost-user,socket={},role=server", socket.display());
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --mac {mac} --attach {attach}"
        ));
        flows.push(Flow::new(
            name,
            Sender::Machine(Machine::start(&socket, layout, 0)),
        ));
    }
    for name in ["memif", "split", "packed", "e0"] {
        daemon.wait_for_state("vnic", name, "up");
    }
    (daemon, sink, flows)
}

/// Each of five senders, of every kind, has frames under way to one receiver all the time, while a ring of each is moved to and fro
/// between two workers a hundred times: no frame is lost, none is overtaken, and none comes twice. A move is refused that
/// names what is not there.
#[test]
fn no_frame_is_lost_or_overtaken() {
    const NAME: &str = "no_frame_is_lost_or_overtaken";
    let cores = windlass_sys::affinity::allowed_cpus().expect("cores");
    if ![0, 1].iter().all(|core| cores.contains(core)) {
        return skip(NAME, "it needs the cores 0 and 1");
    }
    let Some(lab) = Lab::start(NAME) else {
        return;
    };
    let (daemon, mut sink, mut flows) = start(&lab);
    let names: Vec<&str> = flows.iter().map(|flow| flow.name).collect();
    let socket = daemon.socket();
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut control = Control::open(&socket);
            for round in 0..MOVES {
                for name in &names {
                    let (status, body) = control.move_ring(name, (round + 1) % 2);
                    assert!(status.contains("200"), "{name}, {round}: {status} {body}");
                }
            }
        });
        let mut is_over = false;
        while !is_over || flows.iter().any(|flow| flow.came < flow.sent) {
            if !is_over {
                flows.iter_mut().for_each(Flow::send_on);
            }
            is_over = mover.is_finished();
            let begun = std::time::Instant::now();
            while flows
                .iter()
                .all(|flow| is_over || flow.came + WINDOW == flow.sent)
            {
                assert!(begun.elapsed() < Duration::from_secs(20), "nothing comes");
                let came = sink.take();
                count(&mut flows, &came);
                if is_over && flows.iter().all(|flow| flow.came == flow.sent) {
                    break;
                }
            }
        }
        mover.join().expect("moved");
    });
    for flow in &flows {
        assert!(flow.came >= WINDOW, "{}: {}", flow.name, flow.came);
        let kind = if flow.name == "uplink" {
            "uplink"
        } else {
            "vnic"
        };
        assert_eq!(daemon.show(kind, flow.name)["workers"], json!([0]));
    }
    told(&daemon);
    drop(sink.client);
}

/// Every frame is the next one of its sender.
fn count(flows: &mut [Flow], came: &[Vec<u8>]) {
    for bytes in came {
        let text = windlass_tests::Frame(bytes.clone()).text();
        let text = text.unwrap_or_default();
        // Others' frames: what the kernel says of itself in a new namespace.
        let Some((name, number)) = text.split_once(' ') else {
            continue;
        };
        let flow = flows.iter_mut().find(|flow| flow.name == name);
        let flow = flow.expect("a sender");
        assert_eq!(number, flow.came.to_string(), "{name}: the next one");
        flow.came += 1;
    }
}

/// What the command says of places, and what it refuses.
fn told(daemon: &Daemon) {
    daemon.must("worker move tap 1");
    assert_eq!(daemon.show("vnic", "tap")["workers"], json!([1]));
    daemon.must("worker move --table br0 1");
    let bridge = || daemon.json("bridge show br0")[0].take();
    assert_eq!(bridge()["home"], 1);
    assert_eq!(bridge()["workers"], json!([0, 1]));
    let rows = daemon.must("vnic show tap -H -p -o name,workers");
    assert_eq!(rows.trim(), "tap:1");
    for (code, words, why) in [
        (1, "worker move tap/1 0", "there is no ring 1"),
        (
            1,
            "worker move tap 2",
            "there is no worker 2: they are 0 to 1",
        ),
        (1, "worker move --table br0 9", "there is no worker 9"),
        (4, "worker move nobody 0", "nobody"),
        (4, "worker move --table tap 0", "tap"),
        (2, "worker move tap/x 0", "not the number of a ring"),
    ] {
        let said = daemon.refuses(code, words);
        assert!(said.contains(why), "{words}: {said}");
    }
    assert_eq!(daemon.show("vnic", "tap")["workers"], json!([1]));
    // A move is not configuration, and outlives the peer.
    assert!(!daemon.must("export").contains("worker"));
}
