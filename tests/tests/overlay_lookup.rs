//! Overlays whose plugin is asked where an address is: frames that wait, and plugins that do not answer, answer wrongly, or change their
//! minds.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_tests::{Daemon, Lab, Mac, Wire, frame, mac, run, until, until_some};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};

const GUEST: &str = "02:00:00:00:00:0a";
const OTHER: &str = "02:00:00:00:00:0b";

/// What a plugin says to a question, as lines.
type Answers = Box<dyn FnMut(&Value) -> Vec<String> + Send>;

/// A plugin that connects, again and again, and answers as it is told to.
struct Plugin {
    path: PathBuf,
    heard: Arc<Mutex<Vec<Value>>>,
    answers: Arc<Mutex<Answers>>,
    session: Arc<Mutex<Option<UnixStream>>>,
}

impl Plugin {
    fn start(lab: &Lab) -> Plugin {
        let plugin = Plugin {
            path: lab.directory().join("plugin.sock"),
            heard: Arc::default(),
            answers: Arc::new(Mutex::new(Box::new(|_| Vec::new()))),
            session: Arc::default(),
        };
        let (path, heard) = (plugin.path.clone(), plugin.heard.clone());
        let (answers, session) = (plugin.answers.clone(), plugin.session.clone());
        // It ends with the test.
        std::thread::spawn(move || {
            loop {
                if let Ok(stream) = UnixStream::connect(&path) {
                    *session.lock().expect("no panic") = stream.try_clone().ok();
                    serve(&stream, &heard, &answers);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        plugin
    }

    /// What it says from now on.
    fn answer(&self, answers: impl FnMut(&Value) -> Vec<String> + Send + 'static) {
        *self.answers.lock().expect("no panic") = Box::new(answers);
    }

    /// Says something unasked.
    fn say(&self, line: &str) {
        let session = self.session.lock().expect("no panic");
        let mut session = session.as_ref().expect("a session");
        session
            .write_all(format!("{line}\n").as_bytes())
            .expect("said");
    }

    /// The addresses that it was asked for, as often as it was.
    fn asked(&self) -> BTreeMap<String, usize> {
        let heard = self.heard.lock().expect("no panic");
        let lookups = heard.iter().filter(|message| message["op"] == "lookup");
        let mut asked = BTreeMap::new();
        for lookup in lookups {
            let of = lookup["mac"].as_str().expect("an address");
            *asked.entry(of.to_owned()).or_default() += 1;
        }
        asked
    }

    /// The number of the last question for an address.
    fn question(&self, mac: &str) -> u64 {
        let heard = self.heard.lock().expect("no panic");
        let mut lookups = heard.iter().rev();
        let last = lookups.find(|message| message["op"] == "lookup" && message["mac"] == mac);
        last.expect("a question")["id"].as_u64().expect("a number")
    }
}

fn serve(mut stream: &UnixStream, heard: &Mutex<Vec<Value>>, answers: &Mutex<Answers>) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else {
            return;
        };
        let message: Value = serde_json::from_str(&line).expect("a message");
        let lines = match message["op"].as_str().expect("an op") {
            "hello" => vec![json!({"op": "hello", "v": 1, "kind": "dynamic"}).to_string()],
            "ping" => vec![json!({"op": "pong", "id": message["id"]}).to_string()],
            "start" => vec![json!({"op": "ok", "overlay": message["overlay"]}).to_string()],
            _ => answers.lock().expect("no panic")(&message),
        };
        heard.lock().expect("no panic").push(message);
        for line in lines {
            if writeln!(stream, "{line}").is_err() {
                return;
            }
        }
    }
}

/// The answer that an address is at a host.
fn at(id: &Value, host: &str, ttl: u32) -> String {
    json!({"op": "answer", "id": id, "target": {"ip": host, "port": 4789}, "ttl": ttl}).to_string()
}

/// A host with an overlay that asks, its guests, and far hosts.
struct Hosts {
    lab: Lab,
    daemon: Daemon,
    plugin: Plugin,
    guest: Wire,
    /// At 192.0.2.2 and 192.0.2.3.
    far: [UdpSocket; 2],
    /// Frames that were sent.
    sent: Cell<u64>,
}

impl Hosts {
    fn start(name: &str) -> Option<Hosts> {
        let lab = Lab::start(name)?;
        for short in ["guest", "far"] {
            lab.namespace(short);
        }
        lab.underlay("far", &["192.0.2.2", "192.0.2.3"]);
        let far = ["192.0.2.2:4789", "192.0.2.3:4789"].map(|address| {
            let socket = lab.within("far", || UdpSocket::bind(address));
            let socket = socket.expect("a socket");
            socket.set_nonblocking(true).expect("a socket");
            socket
        });
        let plugin = Plugin::start(&lab);
        let daemon = lab.daemon();
        daemon.must(&format!(
            "overlay create ov0 --vni 23 --search plugin --set vxlan/listen-ip=192.0.2.1,plugin/socket={}",
            plugin.path.display()
        ));
        let guest = guest(&lab, &daemon, "g0", GUEST);
        Some(Hosts {
            lab,
            daemon,
            plugin,
            guest,
            far,
            sent: Cell::new(0),
        })
    }

    /// Sends a frame of the guest with this text.
    fn send(&self, to: &str, text: &str) {
        self.sent.set(self.sent.get() + 1);
        self.guest.send(&frame(mac(to), mac(GUEST), &[], text));
    }

    /// Texts of the frames that have come to a far host.
    fn come(&self, host: usize) -> Vec<String> {
        let mut bytes = [0; 2000];
        let datagrams = std::iter::from_fn(|| {
            self.far[host]
                .recv(&mut bytes)
                .ok()
                .map(|n| bytes[..n].to_vec())
        });
        let texts = datagrams.map(|datagram| text(&datagram[8..]));
        texts.collect()
    }

    /// Sends frames to an address until one comes: those before it have. On a busy machine a plugin's answer may be late, and the first
    /// ones lost.
    fn settle(&self, to: &str, host: usize) -> Vec<String> {
        let mut all = Vec::new();
        until("the last one has come", || {
            self.send(to, "last");
            all.extend(self.come(host));
            all.last().is_some_and(|last| last == "last")
        });
        all.retain(|text| text != "last");
        all
    }
}

fn text(frame: &[u8]) -> String {
    windlass_tests::Frame(frame.to_vec())
        .text()
        .unwrap_or_default()
}

/// A guest `name` with a packet socket on its interface.
fn guest(lab: &Lab, daemon: &Daemon, name: &str, address: &str) -> Wire {
    let netns = lab.name("guest");
    daemon.must(&format!(
        "vnic create {name} --over ov0 --mac {address} --attach tap,netns={netns}"
    ));
    daemon.wait_for_state("vnic", name, "up");
    Wire::open(lab, "guest", name)
}

/// An address of a far endpoint.
fn far(number: u32) -> String {
    let [.., high, low] = number.to_be_bytes();
    format!("02:00:00:01:{high:02x}:{low:02x}")
}

/// Frames that wait for an answer go before those that come while it is taken in, and before those that find the address in the table.
#[test]
fn frames_wait_for_an_answer_in_order() {
    let Some(hosts) = Hosts::start("frames_wait_for_an_answer_in_order") else {
        return;
    };
    let mut rounds = 0;
    for round in 0..50 {
        let to = far(round);
        let late = hosts.daemon.drops("ov0", "lookup-timeout");
        (0..8).for_each(|n| hosts.send(&to, &format!("{n:04}")));
        until("it is asked", || hosts.plugin.asked().contains_key(&to));
        let id = hosts.plugin.question(&to);
        hosts.plugin.say(&at(&json!(id), "192.0.2.2", 300));
        let (mut next, mut come) = (8, Vec::new());
        until("the answer is taken in", || {
            (next..next + 100).for_each(|n| hosts.send(&to, &format!("{n:04}")));
            next += 100;
            come.extend(hosts.come(0));
            come.len() > 100
        });
        come.extend(hosts.settle(&to, 0));
        come.retain(|text| text != "last");
        assert!(come.is_sorted(), "round {round}: {come:?}");
        // On a machine that is too busy to answer within a second there is nothing to see.
        if hosts.daemon.drops("ov0", "lookup-timeout") > late {
            continue;
        }
        let first: Vec<String> = (0..8).map(|n| format!("{n:04}")).collect();
        assert_eq!(come[..8], first, "round {round}");
        assert_eq!(hosts.plugin.asked()[&to], 1);
        rounds += 1;
        if rounds == 5 {
            break;
        }
    }
    assert_eq!(rounds, 5);
    until("every frame is accounted for", || {
        let reasons = ["lookup-queue", "lookup-timeout"];
        let lost = reasons.map(|reason| hosts.daemon.drops("ov0", reason));
        let gone = hosts.daemon.counters("ov0")["tx_frames"].as_u64();
        gone == Some(hosts.sent.get() - lost[0] - lost[1])
    });
}

/// What the plugin does not know is not asked for again at once, and what it does not answer is dropped after its time. Nothing that is
/// known changes while a plugin is silent, talks nonsense, answers what was not asked, or is gone.
#[test]
fn a_bad_plugin_changes_nothing_that_is_known() {
    let Some(hosts) = Hosts::start("a_bad_plugin_changes_nothing_that_is_known") else {
        return;
    };
    let good = far(1);
    hosts
        .plugin
        .answer(|question| vec![at(&question["id"], "192.0.2.2", 300)]);
    assert!(hosts.settle(&good, 0).is_empty());
    // Refused.
    hosts
        .plugin
        .answer(|q| vec![json!({"op": "answer", "id": q["id"], "drop": true}).to_string()]);
    let refused = || hosts.daemon.drops("ov0", "lookup-refused");
    until("it is refused", || {
        hosts.send(&far(2), "one");
        refused() > 0
    });
    let begun = Instant::now();
    let (asked, before) = (hosts.plugin.asked(), refused());
    (0..20).for_each(|_| hosts.send(&far(2), "again"));
    until("they are dropped", || refused() >= before + 20);
    if begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(hosts.plugin.asked(), asked);
    }
    // Not answered.
    hosts.plugin.answer(|_| Vec::new());
    hosts.send(&far(3), "one");
    until("its time is over", || {
        hosts.daemon.drops("ov0", "lookup-timeout") > 0
    });
    assert!(hosts.settle(&good, 0).is_empty());
    // Nonsense of all kinds ends the session, each.
    let nonsense: [fn(&Value) -> String; 4] = [
        |_| "nonsense".to_owned(),
        |q| json!({"op": "answer", "id": q["id"], "mac": GUEST}).to_string(),
        |q| json!({"op": "answer", "id": q["id"], "target": {"ip": "nowhere"}}).to_string(),
        |q| {
            let entry = json!({"vni": 24, "mac": far(1), "target": {"ip": "192.0.2.3"}, "host": "h", "gen": 1});
            json!({"op": "push", "overlay": q["overlay"], "entries": [entry]}).to_string()
        },
    ];
    for (number, lie) in (4..).zip(nonsense) {
        hosts.daemon.wait_for_state("overlay", "ov0", "up");
        hosts.plugin.answer(move |q| match q["op"].as_str() {
            Some("lookup") => vec![lie(q)],
            _ => Vec::new(),
        });
        until("its session ends", || {
            hosts.send(&far(number), "one");
            hosts.daemon.show("overlay", "ov0")["state"] == "waiting"
        });
        assert!(hosts.settle(&good, 0).is_empty(), "{number}");
    }
    // An answer to what nobody asked.
    hosts.plugin.answer(|_| Vec::new());
    hosts.daemon.wait_for_state("overlay", "ov0", "up");
    hosts.plugin.say(&at(&json!(77_777), "192.0.2.3", 300));
    assert!(hosts.settle(&good, 0).is_empty());
    let known = hosts.daemon.json("overlay target show ov0");
    assert_eq!(known.as_array().map(Vec::len), Some(1), "{known}");
}

/// A guest's question for an IP address is the plugin's, and answered in the place of the far host, the next one without the plugin. Who
/// asks for its own address hears nothing, whatever the plugin says.
#[test]
fn a_plugin_is_asked_for_neighbours() {
    let Some(hosts) = Hosts::start("a_plugin_is_asked_for_neighbours") else {
        return;
    };
    hosts.plugin.answer(|q| {
        let mac = match q["ip"].as_str() {
            Some("10.0.0.2" | "fd00::2") => far(2),
            Some("10.0.0.9") => GUEST.to_owned(),
            _ => return vec![json!({"op": "answer", "id": q["id"], "drop": true}).to_string()],
        };
        vec![json!({"op": "answer", "id": q["id"], "mac": mac}).to_string()]
    });
    let asks = |host: u8| {
        let words = [0, 1, 8, 0, 6, 4, 0, 1];
        let ends = [&mac(GUEST)[..], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, host]];
        let question = [&[0xff; 6], &mac(GUEST)[..], &[8, 6], &words, &ends.concat()].concat();
        hosts.guest.send(&question);
    };
    let answer = || {
        let frames = std::iter::from_fn(|| hosts.guest.receive());
        let mut answers = frames.filter(|frame| frame.0[12..14] == [8, 6] && frame.0[21] == 2);
        answers.next().map(|frame| frame.0[22..32].to_vec())
    };
    asks(9);
    for _ in 0..2 {
        asks(2);
        let said = until_some("an answer", answer);
        assert_eq!(said, [&mac(&far(2))[..], &[10, 0, 0, 2]].concat());
    }
    let heard = hosts.plugin.heard.lock().expect("no panic").clone();
    let questions = heard.iter().filter(|q| q["op"] == "arp");
    let ips: Vec<_> = questions.map(|q| q["ip"].clone()).collect();
    assert_eq!(ips, ["10.0.0.9", "10.0.0.2"]);
    let allow = ["sysctl", "-qw", "net.ipv6.conf.g0.disable_ipv6=0"];
    run(hosts.lab.command("guest", allow[0]).args(&allow[1..]));
    hosts.lab.ip("guest", "addr add fd00::1/64 dev g0 nodad");
    until("the kernel knows the neighbour", || {
        hosts.lab.ping("guest", "fd00::2", 1);
        let known = hosts.lab.ip("guest", "neigh show fd00::2 dev g0");
        known.contains(&far(2))
    });
}

/// A request of a guest to DHCP servers.
fn discover(from: &str) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4];
    message.resize(28, 0);
    message.extend(mac(from));
    message.resize(236, 0);
    message.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let link = Link {
        dst: MacAddr([0xff; 6]),
        src: MacAddr(mac(from)),
        tag: None,
    };
    let ends = Ends::V4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    let mut frame = vec![0; 400];
    let length = build::udp_frame(&mut frame, &link, &ends, (68, 67), &message).expect("room");
    frame.truncate(length);
    frame
}

/// A plugin says who is the DHCP server of a guest: its requests go there alone, that before the answer, too, and those after it without another question. The
/// requests of a guest that has none go to everybody, and so do all if the plugin does not know such questions, or is gone.
#[test]
fn a_plugin_is_asked_for_dhcp_servers() {
    let Some(hosts) = Hosts::start("a_plugin_is_asked_for_dhcp_servers") else {
        return;
    };
    const THIRD: &str = "02:00:00:00:00:0c";
    hosts.daemon.must("overlay set ov0 proxy=arp,ndp,dhcp");
    let server = guest(&hosts.lab, &hosts.daemon, "g1", OTHER);
    let third = guest(&hosts.lab, &hosts.daemon, "g2", THIRD);
    hosts.plugin.answer(|q| {
        let answer = match (q["op"].as_str(), q["mac"].as_str()) {
            (Some("dhcp"), Some(GUEST)) => json!({"op": "answer", "id": q["id"], "mac": OTHER}),
            (Some("dhcp"), _) => json!({"op": "answer", "id": q["id"], "drop": true}),
            _ => return Vec::new(),
        };
        vec![answer.to_string()]
    });
    let hears = |wire: &Wire, frame: &[u8], why: &str| {
        until(why, || wire.receive().is_some_and(|heard| heard.0 == frame));
    };
    let readdressed = [&mac(OTHER)[..], &discover(GUEST)[6..]].concat();
    for which in [
        "its server gets the request that waited",
        "and the next one",
    ] {
        hosts.guest.send(&discover(GUEST));
        hears(&server, &readdressed, which);
    }
    third.send(&discover(THIRD));
    hears(&server, &discover(THIRD), "everybody gets it");
    hears(&hosts.guest, &discover(THIRD), "everybody gets it");
    let questions = || {
        let heard = hosts.plugin.heard.lock().expect("no panic");
        let questions = heard.iter().filter(|q| q["op"] == "dhcp");
        questions.map(|q| q["mac"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(questions(), [GUEST, THIRD]);
    // Nobody but its server heard of the first guest's.
    while let Some(heard) = third.receive() {
        assert_ne!(heard.0[6..12], mac(GUEST));
    }

    hosts.plugin.answer(|q| match q["op"].as_str() {
        Some("dhcp") => vec![json!({"op": "unsupported", "what": "dhcp"}).to_string()],
        _ => Vec::new(),
    });
    server.send(&discover(OTHER));
    hears(&third, &discover(OTHER), "nobody knows such questions");
    assert_eq!(questions(), [GUEST, THIRD, OTHER]);
    hosts.guest.send(&discover(GUEST));
    hears(&server, &readdressed, "what is known stays");
}

/// An answer holds for its time, and is asked for again before: another answer moves the address, a silent plugin leaves it, and one that
/// says there is none takes it away.
#[test]
fn answers_are_asked_for_again() {
    let Some(hosts) = Hosts::start("answers_are_asked_for_again") else {
        return;
    };
    let to = far(1);
    hosts.plugin.answer(|q| vec![at(&q["id"], "192.0.2.2", 1)]);
    hosts.settle(&to, 0);
    hosts.plugin.answer(|q| vec![at(&q["id"], "192.0.2.3", 1)]);
    until("it has moved", || {
        hosts.send(&to, "moved");
        !hosts.come(1).is_empty()
    });
    hosts.plugin.answer(|_| Vec::new());
    let before = hosts.plugin.asked()[&to];
    until("it is asked for, and not answered", || {
        hosts.plugin.asked()[&to] >= before + 3
    });
    hosts.settle(&to, 1);
    hosts
        .plugin
        .answer(|q| vec![json!({"op": "answer", "id": q["id"], "drop": true}).to_string()]);
    until("it is gone", || {
        hosts.daemon.json("overlay target show ov0") == json!([])
    });
}

/// A guest that sends to ever other addresses, which the plugin does not answer for, leaves room to another guest's.
#[test]
fn a_guest_that_sprays_pays_for_it() {
    let Some(hosts) = Hosts::start("a_guest_that_sprays_pays_for_it") else {
        return;
    };
    let other = guest(&hosts.lab, &hosts.daemon, "g1", OTHER);
    let is_good = |mac: &str| mac.starts_with("02:00:00:01:ff:");
    hosts.plugin.answer(move |q| {
        let mac = q["mac"].as_str().unwrap_or_default();
        let good = is_good(mac).then(|| at(&q["id"], "192.0.2.2", 300));
        good.into_iter().collect()
    });
    let spray = |from: u32| {
        let to: Vec<Mac> = (from..from + 500).map(|n| mac(&far(n))).collect();
        to.iter()
            .for_each(|to| hosts.guest.send(&frame(*to, mac(GUEST), &[], "spray")));
    };
    let mut come = BTreeSet::new();
    for number in 0..10 {
        spray(number * 500);
        let to = mac(&far(0xff00 + number));
        // An answer may be late on a busy machine: it is not for want of room that it is asked for again.
        until("the other's has come", || {
            other.send(&frame(to, mac(OTHER), &[], &format!("{number}")));
            come.extend(hosts.come(0));
            come.contains(&number.to_string())
        });
    }
    let asked = hosts.plugin.asked();
    let sprayed = asked.keys().filter(|mac| !is_good(mac)).count();
    assert!((1..2_000).contains(&sprayed), "{sprayed} of 5,000");
    assert!(hosts.daemon.drops("ov0", "lookup-queue") > 3_000);
    until("nothing waits", || {
        hosts.daemon.counters("ov0")["tx_held"]
            .as_u64()
            .unwrap_or(0)
            == 0
    });
}
