//! Bandwidth of VNICs and of their flows, with the sockets of two kernels.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windlass_tests::{Daemon, Lab};

const A: &str = "10.9.0.1";
const B: &str = "10.9.0.2";
const LONG: Duration = Duration::from_secs(10);

/// Guests a and b, which know each other's link-layer address.
fn guests(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, number) in [("a", 1), ("b", 2)] {
        lab.namespace(guest);
        daemon.tap(
            lab,
            &format!("{guest}0"),
            guest,
            &format!(",address=10.9.0.{number}/24"),
            &format!("--mac 02:00:00:00:00:0{number}"),
        );
    }
    assert!(lab.ping("a", B, 5));
    daemon
}

fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

/// A connection from a to a port of b, and b's end of it.
fn connect(lab: &Lab, port: u16) -> (TcpStream, TcpStream) {
    let listener = lab.within("b", || TcpListener::bind(at(B, port)).expect("bound"));
    let near = lab.within("a", || TcpStream::connect_timeout(&at(B, port), LONG));
    (
        near.expect("connected"),
        listener.accept().expect("a connection").0,
    )
}

/// Ends a load when it is dropped, also by a test that fails.
struct Load<'a> {
    is_over: &'a AtomicBool,
    near: &'a UdpSocket,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.near.send_to(&[], at(B, 7)).expect("sent");
    }
}

/// Sends as much as goes, until told.
fn flood(mut stream: TcpStream, is_over: &AtomicBool) {
    let stalled = stream.set_write_timeout(Some(Duration::from_millis(100)));
    stalled.expect("a time");
    while !is_over.load(Ordering::Relaxed) {
        match stream.write(&[0x55; 65_536]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes what comes, until the end; how many bytes.
fn drain(mut stream: TcpStream) -> u64 {
    stream.set_read_timeout(Some(LONG)).expect("a time");
    let (mut buffer, mut sum) = (vec![0; 65_536], 0);
    loop {
        match stream.read(&mut buffer).expect("bytes or the end") {
            0 => return sum,
            n => sum += n as u64,
        }
    }
}

/// Returns each datagram to its sender, until one is empty.
fn echo(socket: &UdpSocket) {
    socket.set_read_timeout(Some(LONG)).expect("a time");
    let mut buffer = [0; 2048];
    loop {
        let (n, from) = socket.recv_from(&mut buffer).expect("a datagram");
        if n == 0 {
            return;
        }
        socket.send_to(&buffer[..n], from).expect("sent");
    }
}

/// The times that `count` datagrams took to b's port and back, sorted.
fn trips(socket: &UdpSocket, port: u16, count: u32) -> Vec<Duration> {
    socket.set_read_timeout(Some(LONG)).expect("a time");
    let mut times: Vec<Duration> = (0..count)
        .map(|number| {
            std::thread::sleep(Duration::from_millis(15));
            let begun = Instant::now();
            socket
                .send_to(&number.to_be_bytes(), at(B, port))
                .expect("sent");
            let mut got = [0; 4];
            while socket.recv(&mut got).expect("it comes back") != 4 || got != number.to_be_bytes()
            {
            }
            begun.elapsed()
        })
        .collect();
    times.sort();
    times
}

/// Through a VNIC that gets 10 Mbit/s and is loaded with TCP, a datagram goes there and back in a few milliseconds and none is lost, in
/// either direction of the load; and TCP has nearly the whole rate. Drops of the queues are counted by their reason.
#[test]
fn a_trip_stays_short_beside_tcp() {
    let Some(lab) = Lab::start("a_trip_stays_short_beside_tcp") else {
        return;
    };
    let daemon = guests(&lab);
    let far = lab.within("b", || UdpSocket::bind(at(B, 7)).expect("bound"));
    let near = lab.within("a", || UdpSocket::bind(at(A, 7)).expect("bound"));
    for (vnic, slow, cut) in [
        ("b0", "queue-slow", "tx_cut"),
        ("a0", "rx-queue-slow", "rx_cut"),
    ] {
        daemon.must(&format!("vnic set {vnic} maxbw=10"));
        let pairs = [9000, 9001].map(|port| connect(&lab, port));
        let is_over = AtomicBool::new(false);
        let begun = Instant::now();
        let (times, bytes) = std::thread::scope(|threads| {
            threads.spawn(|| echo(&far));
            let load = Load {
                is_over: &is_over,
                near: &near,
            };
            let readers = pairs.map(|(sends, takes)| {
                let is_over = &is_over;
                threads.spawn(move || flood(sends, is_over));
                threads.spawn(move || drain(takes))
            });
            std::thread::sleep(Duration::from_secs(1));
            let times = trips(&near, 7, 150);
            drop(load);
            let bytes = readers.map(|reader| reader.join().expect("all came"));
            (times, bytes)
        });
        let took = begun.elapsed();
        let (half, most) = (times[times.len() / 2], times[times.len() * 95 / 100]);
        assert!(
            half < Duration::from_millis(8),
            "{vnic}: {half:?}, {most:?}"
        );
        assert!(
            most < Duration::from_millis(25),
            "{vnic}: {half:?}, {most:?}"
        );
        let bits = (bytes[0] + bytes[1]) as f64 * 8.0 / took.as_secs_f64();
        assert!((8.0e6..10.2e6).contains(&bits), "{vnic}: {bits} bit/s");
        assert!(daemon.drops(vnic, slow) > 0, "{slow}");
        assert!(daemon.counters(vnic)[cut].as_u64() > Some(0), "{cut}");
        daemon.must(&format!("vnic set {vnic} maxbw=0"));
    }
}
