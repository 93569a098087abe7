//! `windlass gen` and `windlass sink`: numbered frames through the bridge, rates, captures that are sent again, and daemons that die.

mod pcapng;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use pcapng::Capture;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use windlass_tests::{Daemon, Lab, run, until};

/// `windlass gen` or `windlass sink` that runs, and the file with its rows.
struct Running {
    child: Child,
    out: PathBuf,
}

impl Running {
    fn start(daemon: &Daemon, name: &str, words: &str) -> Running {
        let out = daemon.directory().join(name);
        let file = File::create(&out).expect("a file");
        let mut command = daemon.command();
        command.args(words.split_whitespace()).arg("--json");
        let child = command.stdout(file).spawn().expect("it starts");
        Running { child, out }
    }

    /// Its whole rows so far: of each interval, and at the end in all.
    fn rows(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let rows = whole.lines().map(|line| {
            let mut row: Value = serde_json::from_str(line).expect("JSON");
            row[0].take()
        });
        rows.collect()
    }

    /// What its rows of intervals have of this in all.
    fn so_far(&self, key: &str) -> u64 {
        let rows = self.rows();
        let intervals = rows.iter().filter(|row| row["span"] == "interval");
        intervals.map(|row| number(row, key)).sum()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The row of its end, which it comes to by itself.
    fn total(&mut self) -> Value {
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}");
        let total = self.rows().pop().expect("a row");
        assert_eq!(total["span"], "total");
        total
    }

    /// The same, by Ctrl-C.
    fn end(&mut self) -> Value {
        self.signal(Signal::INT);
        self.total()
    }

    /// Seconds of the processor that it has used.
    fn cpu_s(&self) -> f64 {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        let ns: f64 = text
            .split(' ')
            .next()
            .expect("a number")
            .parse()
            .expect("ns");
        ns / 1e9
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(row: &Value, key: &str) -> u64 {
    row[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key}: {row}"))
}

/// VNICs p0 and p1, each with a device: the sink's has room for so many KiB of 64-byte frames.
fn devices(lab: &Lab, sink_kib: u32) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for name in ["p0", "p1"] {
        daemon.must(&format!("vnic create {name} --bridge br0"));
    }
    daemon.must("vnd create p0 --set rxbuf=64K --set txbuf=64K");
    let room = format!("--set rxbuf={sink_kib}K --set txbuf={sink_kib}K");
    daemon.must(&format!("vnd create p1 {room}"));
    daemon
}

/// A sink at p1 that is connected.
fn sink(daemon: &Daemon, words: &str) -> Running {
    let sink = Running::start(daemon, "sink", &format!("sink p1 -i 0.1 {words}"));
    daemon.wait_for_state("vnic", "p1", "up");
    sink
}

/// Every frame of a mix of sizes and flows comes once, in order, with a latency; both sides count the same; with IPv6 too.
#[test]
fn every_frame_is_counted() {
    let Some(lab) = Lab::start("every_frame_is_counted") else {
        return;
    };
    let daemon = devices(&lab, 1024);
    for name in ["p0", "p1"] {
        daemon.must(&format!("vnic set {name} mtu=9000"));
    }
    for words in [
        "--size imix --flows 7",
        // Longer than a buffer of the ring.
        "--size 60-9000 --bps 60M",
        "--size 80-1500 --flows 65536 --src-ip fd00::1 --bps 20M",
        "--size 64 --src-mac 02:00:00:00:00:07 --src-ip 10.0.0.1 --dst-port 5000",
    ] {
        let is_foreign = words.contains("--src-mac");
        let guard = if is_foreign { "off" } else { "on" };
        daemon.must(&format!("vnic set p0 mac-nospoof={guard}"));
        let mut sink = sink(&daemon, "-c 1200");
        let rate = if words.contains("--bps") {
            ""
        } else {
            "--rate 3k"
        };
        let gen_line = format!("gen p0 --dst-mac p1 -c 1200 {rate} {words}");
        let sent = Running::start(&daemon, "gen", &gen_line).total();
        let got = sink.total();
        for key in ["frames", "bytes"] {
            assert_eq!(number(&got, key), number(&sent, key), "{words}: {got}");
        }
        assert_eq!(number(&got, "frames"), 1200);
        for key in ["lost", "duplicates", "reordered"] {
            assert_eq!(number(&got, key), 0, "{words}: {key}");
        }
        let times = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
        let times = times.map(|key| got[key].as_f64().expect("a time"));
        assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
        if words.contains("imix") {
            assert_eq!(number(&got, "bytes"), 100 * (7 * 60 + 4 * 590 + 1514));
        }
    }
}

/// A file whose frames the generator's ring has room for, but not for as many as it sends at once; and one with a frame that is longer than
/// the whole ring, which is left out and said.
#[test]
fn a_small_ring_takes_long_frames() {
    let Some(lab) = Lab::start("a_small_ring_takes_long_frames") else {
        return;
    };
    let daemon = devices(&lab, 64);
    daemon.must("vnd set p0 txbuf=1518");
    let mut file: Vec<u8> = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1]
        .map(u32::to_le_bytes)
        .concat();
    let packet = |bytes: u32| {
        let mut packet = [0, 0, bytes, bytes].map(u32::to_le_bytes).concat();
        packet.extend(vec![2; bytes as usize]);
        packet
    };
    let longest = [file.clone(), packet(32 * 2048 + 1)].concat();
    for _ in 0..40 {
        file.extend(packet(9000));
    }
    let path = lab.directory().join("long");
    std::fs::write(&path, file).expect("a file");
    let line = format!("gen p0 --rate max --replay {}", path.display());
    let sent = Running::start(&daemon, "gen", &line).total();
    assert_eq!(number(&sent, "frames"), 40);
    std::fs::write(&path, longest).expect("a file");
    let told = daemon.refuses(1, &line);
    let said = "none of its 1 frames can be sent: they were captured in part, or the device does not take their length";
    assert!(told.contains(said), "{told}");
}

/// A sink that is stopped loses what its ring has no room for: it counts what the bridge counts, and no frame else is missing.
#[test]
fn what_a_stopped_sink_misses_is_counted() {
    let Some(lab) = Lab::start("what_a_stopped_sink_misses_is_counted") else {
        return;
    };
    let daemon = devices(&lab, 64);
    let dropped = || number(&daemon.counters("p1"), "tx_dropped");
    let mut sink = sink(&daemon, "");
    let mut sender = Running::start(&daemon, "gen", "gen p0 --dst-mac p1 --rate 2k");
    until("frames come", || sink.so_far("frames") > 0);
    sink.signal(Signal::STOP);
    until("its ring is full", || dropped() > 300);
    sink.signal(Signal::CONT);
    until("it has seen that frames are missing", || {
        sink.so_far("lost") > 0
    });
    let sent = number(&sender.end(), "frames");
    // What its last report has not told yet is in its ring.
    let mut before = 0;
    until("it has taken what there is", || {
        let now = sink.so_far("frames");
        std::mem::replace(&mut before, now) + dropped() == sent && now == before
    });
    let got = sink.end();
    assert_eq!(number(&got, "frames") + dropped(), sent, "{got}");
    let lost = number(&got, "lost");
    assert!((1..=dropped()).contains(&lost), "{lost} of {}", dropped());
    assert_eq!(number(&got, "duplicates") + number(&got, "reordered"), 0);
}

/// A rate is never exceeded, and kept but for what the generator itself reports as late. It sleeps between frames.
#[test]
fn rates_are_held() {
    let Some(lab) = Lab::start("rates_are_held") else {
        return;
    };
    let daemon = devices(&lab, 64);
    for (words, frames, wanted_s) in [
        ("--rate 1k", 700, 0.699),
        ("--bps 1.6M --size 1000", 150, 149.0 / 200.0),
    ] {
        let line = format!("gen p0 --dst-mac p1 -c {frames} {words}");
        let sent = Running::start(&daemon, "gen", &line).total();
        let took_s = sent["time_s"].as_f64().expect("a time");
        let late_s = sent["max_us"].as_f64().expect("a time") / 1e6;
        assert_eq!(number(&sent, "frames"), frames);
        // The end comes right behind the last frame; half a second is for a machine that does something else there.
        let most_s = wanted_s + late_s + 0.5;
        assert!((wanted_s..most_s).contains(&took_s), "{words}: {sent}");
    }
    let mut slow = Running::start(&daemon, "gen", "gen p0 --dst-mac p1 --rate 200 -i 0.5");
    until("it has sent", || slow.so_far("frames") >= 200);
    let (used_s, row) = (slow.cpu_s(), slow.end());
    let took_s = row["time_s"].as_f64().expect("a time");
    assert!(used_s < took_s / 4.0, "{used_s} s of {took_s} s");
}

/// Captures `count` frames that p0 sends into a file while `send` sends them.
fn captured(daemon: &Daemon, file: &Path, count: usize, send: impl FnOnce()) -> Capture {
    let mut snoop = daemon.command();
    snoop.args([
        "snoop",
        "-d",
        "p0",
        "-Q",
        "out",
        "-c",
        &count.to_string(),
        "-w",
    ]);
    let log = file.with_extension("log");
    snoop.arg(file).stderr(File::create(&log).expect("a log"));
    let mut snoop = snoop.spawn().expect("it starts");
    until("it listens", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.starts_with("listening"))
    });
    send();
    assert!(snoop.wait().expect("a child").success());
    Capture::read(file)
}

/// The frames of a capture, which are all whole, and p0's own.
fn frames(capture: &Capture) -> Vec<&[u8]> {
    assert_eq!(capture.interfaces, ["p0"]);
    let count = capture.packets.len() as u64;
    assert_eq!(capture.statistics, [(0, Some(count), Some(0))]);
    let bytes = capture.packets.iter().map(|packet| {
        assert_eq!(
            (packet.interface.as_str(), packet.is_inbound),
            ("p0", false)
        );
        assert_eq!(
            (packet.len as usize, &packet.comment),
            (packet.bytes.len(), &None)
        );
        packet.bytes.as_slice()
    });
    bytes.collect()
}

/// What a capture of ours has, a replay sends again: the same frames in the same order, at the times of the file or faster.
#[test]
fn a_capture_is_sent_again() {
    let Some(lab) = Lab::start("a_capture_is_sent_again") else {
        return;
    };
    let daemon = devices(&lab, 64);
    let file = |name: &str| lab.directory().join(name);
    let first = captured(&daemon, &file("first"), 60, || {
        daemon.must("gen p0 --dst-mac p1 -c 60 --rate 200 --size 60-1514 --flows 3");
    });
    assert_eq!(first.packets.len(), 60);
    let times = || first.packets.iter().map(|packet| packet.time);
    let span = times().max().zip(times().min()).expect("times");
    let span_s = span
        .0
        .duration_since(span.1)
        .expect("time goes on")
        .as_secs_f64();
    for (name, rate) in [
        ("timed", ""),
        ("rated", "--rate 5k"),
        ("fast", "--rate max"),
    ] {
        let mut took_s = 0.0;
        let again = captured(&daemon, &file(name), 60, || {
            let line = format!("gen p0 --replay {} {rate}", file("first").display());
            let sent = Running::start(&daemon, name, &line).total();
            assert_eq!(number(&sent, "frames"), 60);
            took_s = sent["time_s"].as_f64().expect("a time");
        });
        assert_eq!(frames(&again), frames(&first), "{name}");
        if rate.is_empty() {
            assert!(took_s >= span_s, "{took_s} s of {span_s} s");
        }
    }
}

/// A file that cannot be replayed is refused with what is wrong and where; what stands before a cut is sent.
#[test]
fn a_malformed_capture_is_refused() {
    let Some(lab) = Lab::start("a_malformed_capture_is_refused") else {
        return;
    };
    let daemon = devices(&lab, 64);
    let path = lab.directory().join("file");
    let replay = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        let mut command = daemon.command();
        run(command
            .args(["--json", "gen", "p0", "--rate", "max", "--replay"])
            .arg(&path))
    };
    let mut pcap: Vec<u8> = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for (captured, len) in [(60u32, 60u32), (60, 1000), (10, 10), (60, 60)] {
        pcap.extend(
            [1, 0, captured, len]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        pcap.extend(vec![0x88; captured as usize]);
    }
    let whole = replay(&pcap);
    assert_eq!(whole.code, 0, "{}", whole.err);
    assert!(whole.out.contains("\"frames\":2,"), "{}", whole.out);
    assert!(
        whole.err.starts_with("windlass: 2 frames were not sent"),
        "{}",
        whole.err
    );
    pcap.pop();
    let cut = replay(&pcap);
    assert_eq!(cut.code, 1);
    assert!(cut.out.contains("\"frames\":1,"), "{}", cut.out);
    assert!(
        cut.err
            .contains("it is cut: what begins at byte 202 is not whole"),
        "{}",
        cut.err
    );
    // The head, and a frame that was captured in part.
    let partial = [&pcap[..24], &pcap[100..176]].concat();
    let none = replay(&partial);
    assert_eq!(none.code, 1, "{}", none.err);
    let said = "none of its 1 frames can be sent: they were captured in part";
    assert!(none.err.contains(said), "{}", none.err);
    let empty = replay(&partial[..24]);
    assert_eq!(empty.code, 1, "{}", empty.err);
    assert!(empty.err.contains("it has no frame"), "{}", empty.err);
    pcap[20] = 113;
    for (bytes, said) in [
        (&pcap[..], "link type 113"),
        (b"#!/bin/sh\n", "neither a pcap nor a pcapng file"),
        (b"", "neither a pcap nor a pcapng file"),
    ] {
        let done = replay(bytes);
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{said}");
        assert!(done.err.contains(said), "{}", done.err);
    }
    daemon.refuses(4, "gen p0 --replay /no/such/file");
    let told = daemon.refuses(1, "gen p0 --replay /");
    assert!(told.contains("name a pcap or pcapng file"), "{told}");
}

/// Generator and sink go on with the next daemon when theirs is killed: every frame comes, and of a burst some may come twice.
#[test]
fn a_killed_daemon_ends_neither() {
    let Some(lab) = Lab::start("a_killed_daemon_ends_neither") else {
        return;
    };
    let mut daemon = devices(&lab, 1024);
    let mut sink = sink(&daemon, "");
    let mut sender = Running::start(&daemon, "gen", "gen p0 --dst-mac p1 --rate 1k");
    for _ in 0..2 {
        let before = sink.so_far("frames");
        until("frames come", || sink.so_far("frames") > before + 100);
        daemon.kill();
        // The receiver is there first, so that the bridge has somewhere to deliver to.
        sender.signal(Signal::STOP);
        daemon.start_again();
        daemon.wait_for_state("vnic", "p1", "up");
        std::thread::sleep(Duration::from_millis(50));
        sender.signal(Signal::CONT);
    }
    let before = sink.so_far("frames");
    until("frames come again", || sink.so_far("frames") > before);
    let sent = number(&sender.end(), "frames");
    until("all have come", || {
        sink.so_far("frames") - sink.so_far("duplicates") >= sent
    });
    let got = sink.end();
    let twice = number(&got, "duplicates");
    assert_eq!(number(&got, "frames") - twice, sent, "{got}");
    assert_eq!(
        (number(&got, "lost"), number(&got, "reordered")),
        (0, 0),
        "{got}"
    );
    assert!(twice <= 2 * 64, "{got}");
}

/// What is refused, by which exit code, and what is said.
const REFUSED: &[(i32, &str, &str)] = &[
    (4, "sink secnd", "did you mean \"second\"?"),
    (
        4,
        "sink bare",
        "VNIC \"bare\" has no vnd device; \"windlass vnd create bare -z global\"",
    ),
    (4, "sink p1 -z red", "there is no zone \"red\""),
    (4, "vnd list -z red", "there is no zone \"red\""),
    (4, "sink /no/such/socket", "no such device"),
    (2, "gen p0", "--dst-mac <MAC|VNIC>"),
    (4, "gen p0 --dst-mac nobody", "nobody"),
    (2, "gen p0 --dst-mac p1 --size 59", "--size is 60 to 1518"),
    (2, "gen p0 --dst-mac p1 --size 1519", "--size is 60 to 1518"),
    (
        2,
        "gen p0 --dst-mac p1 --src-ip fd00::1",
        "--size is 80 to 1518",
    ),
    (
        2,
        "gen p0 --dst-mac p1 --src-ip fd00::1 --dst-ip 10.0.0.1",
        "not of one IP version",
    ),
    (2, "gen p0 --dst-mac p1 --rate 0", "not a number from 1"),
    (
        2,
        "gen p0 --dst-mac p1 --size 10",
        "frames of 10 bytes cannot",
    ),
    (4, "gen p0 --dst-mac nodev", "windlass vnic show"),
    (4, "snoop -d nodev", "windlass vnic show"),
    (
        2,
        "gen p0 --dst-mac p1 --rate 5 --bps 5",
        "cannot be used with",
    ),
    (2, "gen p0 --replay x --size 64", "cannot be used with"),
    (2, "sink p1 -o speed", "there is no field \"speed\""),
];

/// What a name means, and what is said where it leads nowhere, or to a device that is in use.
#[test]
fn names_of_devices() {
    let Some(lab) = Lab::start("names_of_devices") else {
        return;
    };
    let daemon = devices(&lab, 64);
    let socket = lab.directory().join("m0");
    daemon.must(&format!(
        "vnic create m0 --bridge br0 --attach memif,socket={},role=server",
        socket.display()
    ));
    daemon.must("vnic create m1 --bridge br0 --attach memif,socket=m1.sock,role=server");
    daemon.must("vnic create bare --bridge br0");
    daemon.must("vnd rename p1 second");
    until("the socket is there", || socket.exists());
    // A device, its VNIC, a VNIC's socket by name and by path.
    let path = socket.display().to_string();
    let macs = "--src-mac 02:00:00:00:00:01 --dst-mac 02:00:00:00:00:09";
    for name in ["second", "p1", "m0", "m1", &path] {
        daemon.must(&format!("gen {name} {macs} -c 1"));
        daemon.must(&format!("sink {name} --time 0"));
    }
    let fields = daemon.must("sink p1 --time 0 -p -o time,received,p99-us");
    assert_eq!(fields, "total:0:--\n");
    let path_alone = format!("gen {path} --dst-mac p1");
    for (code, words, said) in REFUSED.iter().chain(&[(2, &*path_alone, "--src-mac")]) {
        let told = daemon.refuses(*code, words);
        assert!(told.contains(said), "{words}: {told}");
    }
    let first = Running::start(&daemon, "sink", "sink second");
    daemon.wait_for_state("vnic", "p1", "up");
    let told = daemon.refuses(1, "sink second");
    let holder = format!("in use by windlass (pid {})", first.child.id());
    assert!(told.contains(&holder), "{told}");
}

/// A pipe that is full keeps nobody from ending a command by a second signal, and by one that it does not see for seconds.
#[test]
fn a_full_pipe_keeps_nothing_alive() {
    let Some(lab) = Lab::start("a_full_pipe_keeps_nothing_alive") else {
        return;
    };
    let daemon = devices(&lab, 64);
    let full = |device: &str| {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        rustix::pipe::fcntl_setpipe_size(&to, 4096).expect("a small one");
        let mut command = daemon.command();
        command.args(["sink", device, "-i", "0.01", "--json"]);
        let child = command.stdout(to).spawn().expect("it starts");
        let waits = format!("/proc/{}/wchan", child.id());
        until("it waits for the pipe", || {
            std::fs::read_to_string(&waits).is_ok_and(|of| of.contains("pipe_write"))
        });
        (child, from)
    };
    let (mut one, _of_one) = full("p0");
    let (mut two, _of_two) = full("p1");
    for child in [&one, &two] {
        kill_process(Pid::from_child(child), Signal::TERM).expect("it runs");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        one.try_wait().expect("a child").is_none(),
        "it has ended by itself"
    );
    kill_process(Pid::from_child(&one), Signal::TERM).expect("it runs");
    for child in [&mut one, &mut two] {
        until("it has ended", || {
            child.try_wait().expect("a child").is_some()
        });
        assert_eq!(child.wait().expect("a child").code(), Some(128 + 15));
    }
}
