//! Captures: `windlass snoop` with the kernel's guests, and readers that behave badly.

mod pcapng;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pcapng::{Capture, Packet};
use rustix::process::{Pid, Signal, kill_process};
use windlass_tests::{Daemon, Lab, Output, Wire, frame, mac, run, until};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";

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
fn tcpdump(snoop: &PathBuf, words: &str) -> String {
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
