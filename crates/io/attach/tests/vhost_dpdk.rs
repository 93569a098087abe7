//! The rings against DPDK's `net_virtio_user` in its layouts, where `dpdk-testpmd` is installed.
#![allow(missing_docs)]

mod vhost_drive;
mod vhost_front;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vhost_drive::*;
use vhost_front::{Host, SERVER, conf};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::port::Stop;

const PATIENCE: Duration = Duration::from_secs(10);

/// A testpmd that sends every frame back on the device that it came from. Ended when dropped.
struct Testpmd(Child);

impl Testpmd {
    /// `None`, with the reason printed, where it cannot be run.
    fn start(test: &str, socket: &Path, options: &str) -> Option<Testpmd> {
        let log = std::fs::File::create(socket.with_extension("log")).expect("log");
        let path = socket.display();
        let started = Command::new("dpdk-testpmd")
            .arg(format!(
                "--file-prefix=windlass-rings-{}",
                std::process::id()
            ))
            .args(["-l", "0,1", "--no-huge", "--no-shconf", "-m", "256"])
            .args([
                "--no-pci",
                "--no-telemetry",
                "--force-max-simd-bitwidth=512",
            ])
            .arg(format!("--vdev=net_virtio_user0,path={path},{options}"))
            .args(["--", "--forward-mode=io", "--port-topology=loop"])
            .args(["--nb-cores=1", "--auto-start", "--total-num-mbufs=8192"])
            // The second: else it drops what arrives between the connection and the start of its forwarding.
            .args(["--disable-link-check", "--no-flush-rx"])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn();
        match started {
            Ok(child) => Some(Testpmd(child)),
            Err(error) => {
                println!("skipped: {test}: dpdk-testpmd cannot be run: {error}");
                None
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The end of what testpmd said, for a test that failed.
fn log_of(socket: &Path) -> String {
    let log = std::fs::read_to_string(socket.with_extension("log")).unwrap_or_default();
    log.lines().rev().take(15).collect::<Vec<_>>().join("\n")
}

/// Frame `n` of so many bytes.
fn numbered(n: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend((0..len - 14).map(|k| (k * 7 + n) as u8));
    bytes
}

/// Waits until testpmd forwards: what it finds when it begins, it throws away.
fn wake_up(host: &mut Host, socket: &Path) {
    let mut station = Station::new();
    let end = Instant::now() + PATIENCE;
    let mut quiet_since = None;
    loop {
        host.step();
        assert!(Instant::now() < end, "no echo\n{}", log_of(socket));
        let Some(rings) = host.rings.as_mut() else {
            continue;
        };
        if !station.receive(rings.rx[0].as_mut()).is_empty() {
            quiet_since = Some(Instant::now());
        }
        match quiet_since {
            None => {
                station.send(rings.tx.as_ref(), ONE, &[numbered(0, 60)]);
                std::thread::sleep(Duration::from_millis(20));
            }
            Some(since) if since.elapsed() > Duration::from_millis(100) => return,
            Some(_) => {}
        }
    }
}

/// Sends frames, a few at a time so that none is dropped on the way, and expects each back as it was, in order.
fn echo(host: &mut Host, socket: &Path, lengths: &[usize]) {
    let mut station = Station::new();
    let (mut sent, mut got) = (0, 0);
    let end = Instant::now() + PATIENCE;
    while got < lengths.len() {
        host.step();
        assert!(
            Instant::now() < end,
            "{got} of {sent} came back, {:?}\n{}",
            host.downs,
            log_of(socket)
        );
        let Some(rings) = host.rings.as_mut() else {
            continue;
        };
        if sent < lengths.len() && sent - got < 24 {
            let upto = lengths.len().min(sent + 8);
            let frames: Vec<_> = (sent..upto).map(|n| numbered(n, lengths[n])).collect();
            let done = station.send(rings.tx.as_ref(), ONE, &frames);
            assert!(matches!(done.stop, Stop::Done | Stop::Full), "{done:?}");
            assert_eq!(done.frames as usize, done.taken, "{done:?}");
            sent += done.taken;
        }
        for came in station.receive(rings.rx[0].as_mut()) {
            assert!(
                came == Ok(numbered(got, lengths[got])),
                "frame {got} of {} bytes: {:?}",
                lengths[got],
                came.map(|bytes| bytes.len())
            );
            got += 1;
        }
    }
}

/// What virtio-user is told for each of its layouts, and the kind of ring that this is. It takes its vectorized functions
/// over split rings without any other feature, over packed ones (if the processor has AVX-512) in order.
fn layouts() -> Vec<(String, &'static str)> {
    let mut layouts = Vec::new();
    for (kind, sizes) in [
        ("split", [256, 128, 256, 128]),
        ("packed", [256, 128, 255, 128]),
    ] {
        let packed = u8::from(kind == "packed");
        for (shape, size) in [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter().zip(sizes) {
            let [in_order, mergeable] = shape;
            let told = format!("packed_vq={packed},in_order={in_order},mrg_rxbuf={mergeable}");
            layouts.push((format!("{told},queue_size={size}"), kind));
            if in_order == packed && (mergeable == 0 || packed == 1) {
                layouts.push((format!("{told},vectorized=1,queue_size=256"), kind));
            }
        }
    }
    layouts
}

/// Every frame comes back as it was in each layout, through wraps of small rings and rings that are no power of two, and
/// a testpmd that was killed comes back on the same socket.
#[test]
fn testpmd_in_every_layout() {
    let directory = tempfile::tempdir().expect("tempdir");
    let socket = directory.path().join("s");
    let mut host = Host::new(conf(&socket, SERVER, 1));
    host.step();
    for (options, layout) in layouts() {
        let mut lengths: Vec<usize> = (60..1515).step_by(31).collect();
        lengths.extend([60; 2000]);
        if options.contains("mrg_rxbuf=1") {
            lengths.extend([2036, 2037, 4000, 8000, 60]);
        }
        let Some(peer) = Testpmd::start("testpmd_in_every_layout", &socket, &options) else {
            return;
        };
        let begin = Instant::now();
        while host.rings.is_none() && begin.elapsed() < PATIENCE {
            host.step();
        }
        let details = host.endpoint.status().details;
        assert!(host.rings.is_some(), "{options}\n{}", log_of(&socket));
        println!("{options}: {details:?}");
        assert!(
            details.iter().any(|(_, value)| value.contains(layout)),
            "{details:?}"
        );
        wake_up(&mut host, &socket);
        echo(&mut host, &socket, &lengths);
        drop(peer);
        host.until("the end", |host| host.rings.is_none());
    }
}
