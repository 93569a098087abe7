//! memif against DPDK's `net_memif` in both roles, where `dpdk-testpmd` is installed.
#![allow(missing_docs)]

mod memif_drive;

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use memif_drive::*;
use windlass_attach::endpoint::Endpoint;
use windlass_attach::endpoint::Rings;
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{MemifClient, MemifServer};
use windlass_attach::port::{More, Stop};

/// A testpmd that sends every frame back on the port it came from. Ended when dropped.
struct Testpmd {
    child: Child,
    _stdin: Option<ChildStdin>,
}

impl Testpmd {
    /// `None`, with the reason printed, where it cannot be run.
    fn start(test: &str, socket: &Path, options: &str) -> Option<Testpmd> {
        let prefix = format!("--file-prefix=windlass-{}-{test}", std::process::id());
        let vdev = format!(
            "net_memif0,socket={},socket-abstract=no,{options}",
            socket.display()
        );
        let log = std::fs::File::create(socket.with_extension("log")).expect("log");
        let started = Command::new("dpdk-testpmd")
            .arg(prefix)
            .args([
                "-l",
                "0,1",
                "--no-huge",
                "--no-shconf",
                "-m",
                "256",
                "--no-pci",
                "--no-telemetry",
            ])
            .args(["--log-level", "pmd.net.memif:8", "--vdev", &vdev, "--"])
            .args([
                "--forward-mode=io",
                "--port-topology=loop",
                "--disable-link-check",
            ])
            .args(["--nb-cores=1", "--auto-start", "--total-num-mbufs=8192"])
            // Else it drops what arrives between the connection and the start of its forwarding.
            .arg("--no-flush-rx")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn();
        match started {
            Ok(mut child) => {
                let stdin = child.stdin.take();
                Some(Testpmd {
                    child,
                    _stdin: stdin,
                })
            }
            Err(error) => {
                println!("skipped: {test}: dpdk-testpmd cannot be run: {error}");
                None
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of what testpmd said, for a test that failed.
fn log_of(socket: &Path) -> String {
    let log = std::fs::read_to_string(socket.with_extension("log")).unwrap_or_default();
    log.lines().rev().take(15).collect::<Vec<_>>().join("\n")
}

/// Waits for the rings, or fails with what testpmd said.
fn rings_from(endpoint: &mut dyn Endpoint, socket: &Path) -> Rings {
    let end = Instant::now() + PATIENCE;
    loop {
        let events = endpoint.poll(Instant::now());
        if is_up(&events) {
            return rings_of(events);
        }
        assert!(
            Instant::now() < end,
            "{:?}\n{}",
            endpoint.status(),
            log_of(socket)
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Sends frames, a few at a time so that none is dropped on the way, and expects each back as it was.
fn echo(rings: &mut Rings, lengths: &[usize]) {
    let mut driver = Driver::default();
    let sent = frames(lengths);
    let mut got = Vec::new();
    let end = Instant::now() + PATIENCE;
    let mut at = 0;
    while got.len() < sent.len() {
        if at < sent.len() && at - got.len() < 24 {
            let upto = sent.len().min(at + 8);
            let done = driver.send(rings.tx.as_ref(), ALONE, &sent[at..upto], None);
            assert!(matches!(done.stop, Stop::Done | Stop::Full), "{done:?}");
            at += done.taken;
        }
        let (some, more) = driver.receive(rings.rx[0].as_mut());
        assert_ne!(more, More::Dead);
        got.extend(some);
        assert!(
            Instant::now() < end,
            "{} of {} frames came back",
            got.len(),
            sent.len()
        );
    }
    for (i, (got, sent)) in got.iter().zip(&sent).enumerate() {
        assert!(
            *got == Got::Frame(sent.clone()),
            "frame {i} of {} bytes differs",
            sent.len()
        );
    }
}

fn lengths() -> Vec<usize> {
    let mut lengths: Vec<usize> = (60..1519).step_by(7).collect();
    lengths.extend([64; 3000]);
    lengths.extend([1518, 2048, 2049, 4000, 9000, 60]);
    lengths
}

/// DPDK as the client: it brings the memory, shows the secret, and comes back after it was killed.
#[test]
fn testpmd_as_client() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("s");
    let mut config = server_config(path.clone(), 3, 1);
    config.secret = Secret::new("sesame").expect("secret");
    let mut server = MemifServer::new(config).expect("server");
    server.poll(Instant::now());
    for round in 0..2 {
        let options = "role=client,id=3,rsize=9,bsize=2048,secret=sesame";
        let Some(peer) = Testpmd::start("testpmd_as_client", &path, options) else {
            return;
        };
        let mut rings = rings_from(&mut server, &path);
        let details = server.status().details;
        println!("round {round}: {details:?}");
        assert!(
            details.contains(&("ring-size", "512".into())),
            "{details:?}"
        );
        echo(&mut rings, &lengths());
        drop(peer);
        drive(&mut [&mut server], |e| down_reason(&e[0]).is_some());
        drop(rings);
        server.detached();
    }
}

/// DPDK as the server: we bring the memory.
#[test]
fn testpmd_as_server() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("s");
    let mut client = MemifClient::new(client_config(path.clone(), 4, 1, 10)).expect("client");
    for _ in 0..2 {
        let _ = std::fs::remove_file(&path);
        let Some(peer) = Testpmd::start("testpmd_as_server", &path, "role=server,id=4") else {
            return;
        };
        let mut rings = rings_from(&mut client, &path);
        echo(&mut rings, &lengths());
        drop(peer);
        drive(&mut [&mut client], |e| down_reason(&e[0]).is_some());
        drop(rings);
        client.detached();
    }
}
