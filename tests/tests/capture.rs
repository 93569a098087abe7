//! Captures: `windlass snoop` with the kernel's guests, and readers that behave badly.

mod pcapng;

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pcapng::{Capture, Packet};
use rustix::process::{Pid, Signal, kill_process};
use windlass_shm::Mapping;
use windlass_sys::unix;
use windlass_tests::{
    Daemon, Lab, Output, Wire, as_user, copy_program, frame, mac, run, skip, until, write_program,
};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const GONE: &str = "02:00:00:00:00:0c";

/// A bridge with the guests a and b, which have 10.9.0.1 and 10.9.0.2.
fn two_guests(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (name, address, mac) in [("a", "10.9.0.1", A), ("b", "10.9.0.2", B)] {
        lab.namespace(name);
        let address = format!(",address={address}/24");
        daemon.tap(
            lab,
            &format!("{name}0"),
            name,
            &address,
            &format!("--mac {mac}"),
        );
    }
    daemon
}

/// A running `windlass snoop`, and its file.
struct Snoop {
    child: Child,
    file: PathBuf,
}

impl Snoop {
    /// Starts one with these words that writes the file `name`, and waits until it captures.
    fn start(lab: &Lab, daemon: &Daemon, name: &str, words: &str) -> Snoop {
        let mut command = daemon.command();
        command.arg("snoop").args(words.split_whitespace());
        Snoop::spawn(lab, name, command)
    }

    fn spawn(lab: &Lab, name: &str, mut command: Command) -> Snoop {
        let file = lab.directory().join(name);
        if file.metadata().is_ok_and(|file| file.len() > 0) {
            std::fs::remove_file(&file).expect("removed");
        }
        command.arg("-w").arg(&file).stderr(Stdio::piped());
        let child = command.spawn().expect("windlass");
        let mut snoop = Snoop { child, file };
        until("the capture begins", || {
            let has_ended = snoop.child.try_wait().expect("a child").is_some();
            has_ended || snoop.file.metadata().is_ok_and(|file| file.len() > 0)
        });
        snoop
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child");
    }

    /// Waits for its end: its exit code, what it said, and its file.
    fn wait(mut self) -> (i32, String, Capture) {
        let mut said = String::new();
        let mut errors = self.child.stderr.take().expect("a pipe");
        errors.read_to_string(&mut said).expect("text");
        let code = self.child.wait().expect("a child").code().unwrap_or(-1);
        let (first, rest) = said.split_once('\n').expect("lines");
        assert!(first.starts_with("listening on "), "{first}");
        let said = rest.to_owned();
        (code, said, Capture::read(&self.file))
    }

    /// Ends it as Ctrl-C does.
    fn end(self) -> (String, Capture) {
        self.signal(Signal::INT);
        let (code, said, capture) = self.wait();
        assert_eq!(code, 0, "{said}");
        (said, capture)
    }
}

fn counts(captured: u64, matched: u64, lost: u64) -> String {
    let packets = |n: u64| if n == 1 { "packet" } else { "packets" };
    format!(
        "{captured} {} captured\n{matched} {} received by filter\n{lost} {} dropped\n",
        packets(captured),
        packets(matched),
        packets(lost),
    )
}

/// The lines that tcpdump makes of a file.
fn tcpdump(snoop: &Path, words: &str) -> String {
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-r"]).arg(snoop);
    let Output { code, out, err } = run(command.args(words.split_whitespace()));
    assert_eq!(code, 0, "{err}");
    out
}

/// What a guest sends and receives is in the file as it was on its interface: whole, in both directions, with times of now, and tcpdump
/// reads it.
#[test]
fn a_guests_frames_are_in_the_file() {
    let Some(lab) = Lab::start("a_guests_frames_are_in_the_file") else {
        return;
    };
    let daemon = two_guests(&lab);
    let began = std::time::SystemTime::now();
    let snoop = Snoop::start(&lab, &daemon, "f", "-d a0");
    let file = snoop.file.clone();
    let mut command = lab.command("a", "ping");
    command.args([
        "-n", "-q", "-c", "3", "-i", "0.05", "-s", "1000", "10.9.0.2",
    ]);
    assert_eq!(run(&mut command).code, 0);
    let (said, capture) = snoop.end();
    let n = capture.packets.len() as u64;
    assert_eq!(said, counts(n, n, 0));
    assert_eq!(capture.interfaces, ["a0"]);
    assert_eq!(capture.statistics, [(0, Some(n), Some(0))]);
    let text = tcpdump(&file, "-tt -e");
    let requests = text
        .lines()
        .filter(|line| line.contains("10.9.0.1 > 10.9.0.2: ICMP echo request"));
    let replies = text
        .lines()
        .filter(|line| line.contains("10.9.0.2 > 10.9.0.1: ICMP echo reply"));
    assert_eq!((requests.count(), replies.count()), (3, 3), "{text}");
    let own = mac(A);
    for Packet {
        bytes,
        is_inbound,
        len,
        time,
        comment,
        ..
    } in &capture.packets
    {
        assert_eq!(bytes[6..12] == own, !is_inbound, "{text}");
        assert_eq!(bytes.len(), *len as usize);
        assert!(comment.is_none());
        assert!(
            *time >= began && *time <= std::time::SystemTime::now(),
            "{time:?}"
        );
    }
    assert!(capture.packets.iter().any(|packet| packet.len == 1042));
}

/// A bridge shows each frame once, at the member where it enters, and members that come later.
#[test]
fn a_bridge_shows_each_frame_once() {
    let Some(lab) = Lab::start("a_bridge_shows_each_frame_once") else {
        return;
    };
    let daemon = two_guests(&lab);
    let snoop = Snoop::start(&lab, &daemon, "f", "-d br0 icmp");
    assert!(lab.ping("a", "10.9.0.2", 5));
    lab.namespace("c");
    daemon.tap(&lab, "c0", "c", ",address=10.9.0.3/24", "");
    assert!(lab.ping("c", "10.9.0.1", 5));
    let (_, capture) = snoop.end();
    let seen: Vec<_> = capture
        .packets
        .iter()
        .map(|p| (p.interface.as_str(), p.is_inbound))
        .collect();
    assert_eq!(
        seen,
        [("a0", true), ("b0", true), ("c0", true), ("a0", true)]
    );
    assert_eq!(capture.statistics.len(), 3);
}

/// The filter runs before the copy: what it refuses is not counted; the snapshot's length and the number of frames are kept; what the
/// guest itself sends can be left out.
#[test]
fn filters_lengths_and_directions_hold() {
    let Some(lab) = Lab::start("filters_lengths_and_directions_hold") else {
        return;
    };
    let daemon = two_guests(&lab);
    let (a, b) = (Wire::open(&lab, "a", "eth0"), Wire::open(&lab, "b", "eth0"));
    let run = |words: &str| {
        let snoop = Snoop::start(&lab, &daemon, "f", words);
        for n in 0..5 {
            a.send(&frame(mac(B), mac(A), &[], &format!("to {n}")));
            b.send(&frame(mac(A), mac(B), &[], &format!("from {n}")));
        }
        b.send(&frame(mac(A), mac(B), &[], "last"));
        a.frames_until("last");
        snoop.end()
    };
    let (said, capture) = run("-d a0 -s 20 -Q in");
    assert_eq!(said, counts(6, 6, 0));
    assert!(
        capture
            .packets
            .iter()
            .all(|p| p.is_inbound && p.bytes.len() == 20 && p.len > 20)
    );
    let (said, capture) = run(&format!("-d a0 -Q out ether src {A}"));
    assert_eq!(said, counts(5, 5, 0));
    assert!(capture.packets.iter().all(|p| !p.is_inbound));
    let (said, _) = run("-d a0 tcp port 80");
    assert_eq!(said, counts(0, 0, 0));
    let snoop = Snoop::start(&lab, &daemon, "f", "-d a0 -c 2");
    a.send(&frame(mac(B), mac(A), &[], "1"));
    a.send(&frame(mac(B), mac(A), &[], "2"));
    let (code, said, capture) = snoop.wait();
    assert_eq!((code, capture.packets.len()), (0, 2), "{said}");
}

/// A datagram from a's address, to another port of the bridge.
fn datagram(to: &str) -> Vec<u8> {
    let mut bytes = frame(mac(to), mac(A), &[], "");
    bytes.truncate(12);
    bytes.extend([
        8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0x66, 0xbf, 10, 9, 0, 1, 10, 9, 0, 2,
    ]);
    bytes.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// A frame that a sends, what it dies of, and where.
struct Death {
    vnic: &'static str,
    setting: &'static str,
    back: &'static str,
    link: &'static str,
    reason: &'static str,
    bytes: Vec<u8>,
}

fn deaths() -> Vec<Death> {
    let other = mac("02:00:00:00:00:99");
    let pause = mac("01:80:c2:00:00:01");
    let death = |(vnic, setting, back), link, reason, bytes| Death {
        vnic,
        setting,
        back,
        link,
        reason,
        bytes,
    };
    let plain = |to| frame(to, mac(A), &[], "x");
    let nothing = ("a0", "mtu=1500", "mtu=1500");
    let spoof = ("a0", "mac-nospoof=on", "mac-nospoof=off");
    let restricted = ("a0", "restricted=on", "restricted=off");
    let out = ("a0", "firewall=drop out udp", "firewall=");
    let inwards = ("b0", "firewall=drop in udp", "firewall=");
    vec![
        death(spoof, "a0", "mac-spoof", frame(mac(B), other, &[], "x")),
        death(restricted, "a0", "restricted", plain(mac(B))),
        death(nothing, "a0", "reserved-address", plain(pause)),
        death(nothing, "a0", "same-member", plain(mac(A))),
        death(out, "a0", "firewall", datagram(B)),
        death(inwards, "b0", "firewall-in", datagram(B)),
        death(nothing, "gone", "peer-down", datagram(GONE)),
    ]
}

/// A frame that died has a record that says why: at its sender if no destination was decided, else at its receiver.
#[test]
fn frames_that_died_say_why() {
    let Some(lab) = Lab::start("frames_that_died_say_why") else {
        return;
    };
    let daemon = two_guests(&lab);
    daemon.must(&format!(
        "vnic create gone --bridge br0 --attach none --mac {GONE}"
    ));
    let a = Wire::open(&lab, "a", "eth0");
    for death in deaths() {
        let Death {
            vnic,
            setting,
            back,
            link,
            reason,
            bytes,
        } = &death;
        let done = run(daemon.command().args(["vnic", "set", vnic, setting]));
        assert_eq!(done.code, 0, "{setting}: {}", done.err);
        let snoop = Snoop::start(&lab, &daemon, "f", &format!("-d {link} --drops"));
        let before = daemon.drops(link, reason);
        a.send(bytes);
        until(reason, || daemon.drops(link, reason) > before);
        let (_, capture) = snoop.end();
        let comment = Some(format!("dropped: {reason}"));
        let died: Vec<_> = capture
            .packets
            .iter()
            .filter(|p| p.comment.is_some())
            .collect();
        assert!(!died.is_empty(), "{reason}");
        for packet in died {
            assert_eq!(packet.comment, comment);
            assert_eq!(packet.bytes[..14], bytes[..14], "{reason}");
            assert_eq!(packet.is_inbound, *link != "a0", "{reason}");
        }
        daemon.must(&format!("vnic set {vnic} {back}"));
    }
    // Without --drops nothing is said of them.
    let snoop = Snoop::start(&lab, &daemon, "f", "-d gone");
    let before = daemon.drops("gone", "peer-down");
    a.send(&datagram(GONE));
    until("it died", || daemon.drops("gone", "peer-down") > before);
    assert!(snoop.end().1.packets.is_empty());
}

const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

/// A command of windlass as another user, whose program lies where everybody may execute it.
fn command_as(lab: &Lab, daemon: &Daemon, uid: u32) -> Command {
    let program = lab.directory().join("windlass");
    if !program.exists() {
        copy_program(&windlass_tests::program("windlass"), &program);
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(lab.directory(), all.clone()).expect("a mode");
        std::fs::set_permissions(&program, all).expect("a mode");
        for path in [
            daemon.directory(),
            &daemon.runtime_dir(),
            daemon.socket().parent().expect("a directory"),
        ] {
            let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
        }
    }
    let mut command = Command::new(program);
    command
        .arg("--socket")
        .arg(daemon.socket())
        .uid(uid)
        .gid(uid);
    command
}

/// Connections that say nothing count as captures of their user: others are heard.
fn the_silent_have_their_share(daemon: &Daemon) {
    let silent: Vec<UnixStream> = as_user(RED, || (0..100).map(|_| connect(daemon)).collect());
    let answered = (&silent[99]).read(&mut [0; 512]);
    assert!(answered.is_ok_and(|n| n > 0), "one too many is refused");
    let request = "{\"link\":\"br0\",\"snap\":64,\"ring_bytes\":65536}\n";
    let (.., text) = begin(daemon, request, false);
    assert!(text.contains("started"), "{text}");
}

/// A user captures VNICs of its own zones, and nothing else; what it is refused it does not learn the name of. When the zone gets another owner, or
/// the VNIC goes, its capture ends before that is answered, and a VNIC of the same name has none.
#[test]
fn users_capture_what_is_theirs() {
    let Some(lab) = Lab::start("users_capture_what_is_theirs") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (zone, uid, name) in [("red", RED, "r0"), ("blue", BLUE, "b0")] {
        daemon.must(&format!(
            "zone create {zone} --owner {uid} --group {uid} --bridge br0"
        ));
        daemon.must(&format!(
            "vnic create {name} --zone {zone} --bridge br0 --attach none"
        ));
    }
    let refused = |words: &str, code: i32| {
        let mut command = command_as(&lab, &daemon, RED);
        let done = run(command.arg("snoop").args(words.split(' ')));
        assert_eq!(done.code, code, "{words}: {}", done.err);
        done.err
    };
    let none = "there is no VNIC, uplink, overlay or bridge \"b0\"";
    assert!(refused("-d b0 -w -", 4).contains(none));
    assert!(refused("-d br0 -w -", 6).contains("capture a bridge"));
    refused("-d r0 -z blue -w -", 4);
    refused("-d r0 -B 65536 -w -", 1);
    let long: Vec<String> = (0..200).map(|n| format!("port {n}")).collect();
    refused(&format!("-d r0 -w - {}", long.join(" or ")), 1);

    let start = |name: &str| {
        let mut command = command_as(&lab, &daemon, RED);
        let file = lab.directory().join(name);
        std::fs::write(&file, "").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("a mode");
        command.args(["snoop", "-d", "r0", "-z", "red"]);
        Snoop::spawn(&lab, name, command)
    };
    let ended = |snoop: Snoop| {
        let (code, said, _) = snoop.wait();
        assert_eq!(code, 0, "{said}");
        said
    };
    // As many at once as it may have.
    let all: Vec<Snoop> = ["1", "2", "3", "4"].map(start).into();
    assert!(refused("-d r0 -w -", 1).contains("captures-per-uid-max"));
    daemon.must(&format!("zone set red --owner {BLUE} --group {BLUE}"));
    for snoop in all {
        assert!(ended(snoop).contains("its zone has another owner"));
    }
    daemon.must(&format!("zone set red --owner {RED} --group {RED}"));
    let snoop = start("5");
    daemon.must("vnic delete r0");
    assert!(ended(snoop).contains("r0: it is gone"));
    daemon.must("vnic create r0 --zone red --bridge br0 --attach none");
    let snoop = start("6");
    // Deleted and made again in one change: another VNIC.
    let text = daemon.must("export");
    let path = lab.directory().join("document");
    std::fs::write(
        &path,
        text.replace("\"zone\": \"red\"", "\"zone\": \"blue\""),
    )
    .expect("written");
    daemon.must(&format!("apply {}", path.display()));
    assert!(ended(snoop).contains("r0: it is gone"));
    refused("-d r0 -w -", 4);
    the_silent_have_their_share(&daemon);
}

/// A capture goes along with a VNIC that moves to another bridge. It ends with its link, and with the daemon.
#[test]
fn captures_end_with_their_link() {
    let Some(lab) = Lab::start("captures_end_with_their_link") else {
        return;
    };
    let mut daemon = two_guests(&lab);
    daemon.must("bridge create br1");
    let snoop = Snoop::start(&lab, &daemon, "f", "-d a0 arp or icmp");
    assert!(lab.ping("a", "10.9.0.2", 5));
    daemon.must("vnic set a0 --bridge br1");
    daemon.must("vnic set b0 --bridge br1");
    daemon.wait_for_state("vnic", "a0", "up");
    assert!(lab.ping("a", "10.9.0.2", 5));
    let of_bridge = Snoop::start(&lab, &daemon, "g", "-d br0");
    daemon.must("bridge delete br0");
    assert!(of_bridge.wait().1.contains("br0: it is gone"));
    daemon.must("vnic delete a0");
    let (code, said, capture) = snoop.wait();
    assert!(code == 0 && said.contains("a0: it is gone"), "{said}");
    let pings = capture.packets.iter().filter(|p| p.bytes[12..14] == [8, 0]);
    assert_eq!(pings.count(), 4, "{said}");
    let snoop = Snoop::start(&lab, &daemon, "h", "-d b0");
    daemon.kill();
    let (code, said, _) = snoop.wait();
    assert!(
        code == 0 && said.contains("the daemon has closed the connection"),
        "{said}"
    );
}

/// A reader that is stopped loses records, which are counted, and no frame. What it goes on with is whole.
#[test]
fn a_slow_reader_loses_records_only() {
    let Some(lab) = Lab::start("a_slow_reader_loses_records_only") else {
        return;
    };
    let daemon = two_guests(&lab);
    let (a, b) = (Wire::open(&lab, "a", "eth0"), Wire::open(&lab, "b", "eth0"));
    let snoop = Snoop::start(
        &lab,
        &daemon,
        "f",
        &format!("-d b0 -B 64 -Q in ether src {A}"),
    );
    snoop.signal(Signal::STOP);
    let bytes = |n: u64| {
        let mut bytes = frame(mac(B), mac(A), &[], &format!("{n}"));
        bytes.resize(1000, 0);
        bytes
    };
    const SENT: u64 = 300;
    let before = daemon.counters("b0")["tx_frames"]
        .as_u64()
        .expect("a number");
    for n in 0..SENT {
        a.send(&bytes(n));
    }
    a.send(&frame(mac(B), mac(A), &[], "last"));
    let arrived = b.frames_until("last");
    assert_eq!(arrived.len() as u64, SENT);
    assert!(
        daemon.counters("b0")["tx_frames"]
            .as_u64()
            .expect("a number")
            > before + SENT
    );
    snoop.signal(Signal::CONT);
    let packets = |file: &Path| Capture::read(file).packets.len();
    until("it reads again", || packets(&snoop.file) >= 60);
    a.send(&bytes(SENT + 1));
    a.send(&frame(mac(B), mac(A), &[], "end"));
    b.frames_until("end");
    let (said, capture) = snoop.end();
    let n = capture.packets.len() as u64;
    let lost = SENT + 3 - n;
    assert_eq!(said, counts(n, SENT + 3, lost));
    assert_eq!(capture.statistics, [(0, Some(SENT + 3), Some(lost))]);
    assert!((60..80).contains(&n), "{n}");
    assert!(
        capture
            .packets
            .iter()
            .all(|p| p.bytes[..12] == bytes(0)[..12])
    );
}

/// A connection to the socket of captures.
fn connect(daemon: &Daemon) -> UnixStream {
    let mut path = daemon.socket().into_os_string();
    path.push(".capture");
    UnixStream::connect(path).expect("connected")
}

/// Says a line, and has the answer.
fn ask(stream: &mut UnixStream, line: &str) -> (Option<OwnedFd>, String) {
    stream.write_all(line.as_bytes()).expect("written");
    let mut room = [0; 8192];
    let answer = unix::receive_with_fds(stream, &mut room, 1).expect("an answer");
    let text = String::from_utf8_lossy(&room[..answer.bytes]).into_owned();
    (answer.fds.into_iter().next(), text)
}

/// A capture whose reader is this test, which maps its memory or does not: the connection, the memory, the last answer.
fn begin(
    daemon: &Daemon,
    request: &str,
    maps: bool,
) -> (UnixStream, Option<(OwnedFd, Mapping)>, String) {
    let mut stream = connect(daemon);
    let (memory, text) = ask(&mut stream, request);
    let Some(memory) = memory else {
        return (stream, None, text);
    };
    assert!(text.contains("offered"), "{text}");
    let bytes = rustix::fs::fstat(&memory).expect("memory").st_size as u64;
    let bytes = if maps { bytes } else { 4096 };
    let mapping = Mapping::foreign(memory.as_fd(), bytes).expect("mapped");
    let (_, text) = ask(&mut stream, "\n");
    (stream, Some((memory, mapping)), text)
}

/// Readers that write nonsense into the memory, fill it, never read it, or are not readers at all cost themselves; frames pass, and the daemon
/// takes the next one.
#[test]
fn hostile_readers_cost_themselves() {
    let Some(lab) = Lab::start("hostile_readers_cost_themselves") else {
        return;
    };
    let mut daemon = two_guests(&lab);
    let request = "{\"link\":\"a0\",\"snap\":64,\"ring_bytes\":65536}\n";
    let mut kept = Vec::new();
    for nonsense in [0u64, u64::MAX, 1 << 63, 0x4141_4141_4141_4141] {
        let (stream, memory, text) = begin(&daemon, request, true);
        assert!(text.contains("started"), "{text}");
        let (memory, mapping) = memory.expect("memory");
        assert!(rustix::fs::ftruncate(&memory, 0).is_err(), "it is sealed");
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&memory, flags, 0, 1 << 20);
        assert_eq!(
            punched,
            Err(rustix::io::Errno::PERM),
            "a worker would pay for new pages"
        );
        // All lines: head, tail, and that the reader sleeps.
        let line = nonsense.to_ne_bytes().repeat(512);
        assert!(mapping.write(0, &line));
        kept.push((stream, memory, mapping));
        assert!(lab.ping("a", "10.9.0.2", 5), "{nonsense:#x}");
    }
    for bad in [
        "\n",
        "GET / HTTP/1.1\r\n\r\n",
        "{\"link\":\"a0\",\"snap\":64,\"ring_bytes\":1}\n",
        "{\"link\":\"a0\",\"snap\":64,\"ring_bytes\":65536,\"filter\":[[6,0,0]]}\n",
        "{\"link\":\"a0\",\"snap\":64,\"ring_bytes\":65536,\"filter\":[[5,0,0,4294967295]]}\n",
        "{\"link\":\"a0\",\"snap\":64,\"ring_bytes\":65536,\"filter\":[[32,0,0,4294963200],[6,0,0,1]]}\n",
    ] {
        let (_, memory, text) = begin(&daemon, bad, true);
        assert!(
            text.contains("refused") && memory.is_none(),
            "{bad}: {text}"
        );
    }
    // Seals of the reader's: nothing begins.
    let mut stream = connect(&daemon);
    let (memory, _) = ask(&mut stream, request);
    rustix::fs::fcntl_add_seals(memory.expect("memory"), rustix::fs::SealFlags::SEAL)
        .expect("sealed");
    let (_, text) = ask(&mut stream, "\n");
    assert!(text.contains("refused"), "{text}");
    // Nothing is said, or half of a request, or what is no end of one.
    let quiet: Vec<UnixStream> = (0..20).map(|_| connect(&daemon)).collect();
    (&quiet[0]).write_all(b"{\"link\":").expect("written");
    let flood = vec![b'x'; 1 << 20];
    let _ = quiet[1].set_write_timeout(Some(Duration::from_secs(5)));
    let _ = (&quiet[1]).write_all(&flood);
    // Descriptors are not wanted.
    let file = std::fs::File::open("/dev/null").expect("a file");
    let _ = unix::send_with_fds(&quiet[2], &[IoSlice::new(b"x")], &[file.as_fd()]);
    assert!(lab.ping("a", "10.9.0.2", 5));
    // At most so many of one link.
    let (_, _, text) = begin(&daemon, request, false);
    assert!(
        text.contains("refused") && text.contains("captures already"),
        "{text}"
    );
    drop(kept);
    drop(quiet);
    until("there is room again", || {
        begin(&daemon, request, false).2.contains("started")
    });
    daemon.assert_alive();
}

/// Files take turns by size.
#[test]
fn files_take_turns() {
    let Some(lab) = Lab::start("files_take_turns") else {
        return;
    };
    let daemon = two_guests(&lab);
    let (a, b) = (Wire::open(&lab, "a", "eth0"), Wire::open(&lab, "b", "eth0"));
    let send = |count: u64| {
        for n in 0..count {
            let mut bytes = frame(mac(B), mac(A), &[], &format!("{n}"));
            bytes.resize(1500, 0);
            a.send(&bytes);
        }
        a.send(&frame(mac(B), mac(A), &[], "last"));
        b.frames_until("last");
    };
    let mut command = daemon.command();
    command.args([
        "snoop", "-d", "a0", "-C", "1", "-W", "2", "-B", "16384", "-w",
    ]);
    let path = lab.directory().join("turn");
    let mut child = command
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .expect("windlass");
    let file = |n: u8| lab.directory().join(format!("turn{n}"));
    until("it begins", || file(0).exists());
    send(1500);
    until("the second file", || file(1).exists());
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    assert!(child.wait().expect("a child").success());
    let both = [0, 1].map(|n| Capture::read(&file(n)).packets.len() as u64);
    assert!(both.iter().all(|n| *n > 0), "{both:?}");
    assert!(file(0).metadata().expect("a file").len() < 1_100_000);
}

/// A full disk ends a capture with a word, a closed pipe without one. The place where a filter is wrong is shown.
#[test]
fn outputs_end_as_they_should() {
    let Some(lab) = Lab::start("outputs_end_as_they_should") else {
        return;
    };
    let daemon = two_guests(&lab);
    let mut child = daemon.command();
    child
        .args(["snoop", "-d", "a0", "-w", "/dev/full"])
        .stderr(Stdio::piped());
    let done = run(&mut child);
    assert!(
        done.code == 1 && done.err.contains("No space left"),
        "{}",
        done.err
    );

    let mut child = daemon.command();
    child
        .args(["snoop", "-d", "a0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().expect("windlass");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    let mut ping = lab.command("a", "ping");
    ping.args(["-n", "-q", "-i", "0.05", "10.9.0.2"])
        .stdout(Stdio::null());
    let mut ping = ping.spawn().expect("ping");
    lines.read_line(&mut line).expect("a line");
    assert!(line.contains(" a0 "), "{line}");
    drop(lines);
    until("it ends", || child.try_wait().expect("a child").is_some());
    ping.kill().expect("a child");
    ping.wait().expect("a child");
    assert!(child.wait().expect("a child").success());

    let mut command = daemon.command();
    let done = run(command.args(["snoop", "-d", "a0", "tcp", "prt", "80"]));
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(done.err.contains("  tcp prt 80\n      ^\n"), "{}", done.err);
}

/// A link that is never quiet keeps nobody from ending a capture, and what was delivered before is in the file.
#[test]
fn a_busy_link_lets_go() {
    let Some(lab) = Lab::start("a_busy_link_lets_go") else {
        return;
    };
    let daemon = two_guests(&lab);
    let wire = Wire::open(&lab, "a", "eth0");
    let snoop = Snoop::start(&lab, &daemon, "f", "-d a0 -s 64 ether proto 0x88b5");
    let is_over = AtomicBool::new(false);
    let (said, capture) = std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                wire.send(&frame(mac(B), mac(A), &[], "again"));
            }
        });
        let received = || daemon.counters("a0")["rx_frames"].as_u64().unwrap_or(0);
        let before = received();
        until("it is busy", || received() > before + 1000);
        let ended = snoop.end();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    assert!(capture.packets.len() >= 1000, "{said}");
    let lengths = capture.packets.iter().map(|packet| packet.bytes.len());
    assert!(lengths.max() <= Some(64));
}

fn has_tshark() -> bool {
    Command::new("tshark").arg("-v").output().is_ok()
}

/// tshark and capinfos read the files.
#[test]
fn wireshark_reads_files() {
    let name = "wireshark_reads_files";
    if !has_tshark() {
        return skip(name, "there is no tshark");
    }
    let Some(lab) = Lab::start(name) else {
        return;
    };
    let daemon = two_guests(&lab);
    let snoop = Snoop::start(&lab, &daemon, "f", "-d br0 --drops icmp");
    let file = snoop.file.clone();
    assert!(lab.ping("a", "10.9.0.2", 5));
    snoop.end();
    let fields = "frame.interface_name,frame.packet_flags_direction,icmp.type";
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields"]);
    let done = run(tshark.args(fields.split(',').flat_map(|field| ["-e", field])));
    assert_eq!(
        done.out, "a0\t0x00000001\t8\nb0\t0x00000001\t0\n",
        "{}",
        done.err
    );
    let done = run(Command::new("capinfos").args(["-M", "-c", "-I"]).arg(&file));
    assert!(
        done.code == 0 && done.out.contains("Number of packets:   2"),
        "{}{}",
        done.out,
        done.err
    );
}

/// tshark finds our links as those of an extcap program, and captures from one.
#[test]
fn wireshark_finds_links() {
    let name = "wireshark_finds_links";
    if !has_tshark() {
        return skip(name, "there is no tshark");
    }
    let Some(lab) = Lab::start(name) else {
        return;
    };
    let daemon = two_guests(&lab);
    // As Wireshark finds it: a script in its extcap directory.
    let home = lab.directory().join("home");
    let windlass = windlass_tests::program("windlass");
    let script = format!(
        "#!/bin/sh\nWINDLASS_SOCKET={} exec {} extcap \"$@\"\n",
        daemon.socket().display(),
        windlass.display()
    );
    for place in [".local/lib/wireshark/extcap", ".config/wireshark/extcap"] {
        let directory = home.join(place);
        std::fs::create_dir_all(&directory).expect("a directory");
        write_program(&directory.join("windlass"), &script);
    }
    let tshark = || {
        let mut command = Command::new("tshark");
        command.env("HOME", &home).env_remove("XDG_CONFIG_HOME");
        command
    };
    let done = run(tshark().arg("-D"));
    assert!(
        done.out.contains("windlass-a0 (windlass VNIC: a0)"),
        "{}{}",
        done.out,
        done.err
    );
    assert!(
        done.out.contains("windlass-br0 (windlass bridge: br0)"),
        "{}",
        done.out
    );
    let mut command = tshark();
    command.args([
        "-i",
        "windlass-a0",
        "-f",
        "icmp",
        "-c",
        "2",
        "-T",
        "fields",
        "-e",
        "icmp.type",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tshark");
    until("two frames", || {
        lab.ping("a", "10.9.0.2", 5);
        child.try_wait().expect("a child").is_some()
    });
    let mut text = String::new();
    let mut out = child.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("text");
    assert_eq!(text, "8\n0\n");
}
