//! What a daemon's memory is while its searches have told of many endpoints.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bridge;
mod daemon;
mod lab;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bridge::{mac, start};
use lab::{Lab, until};
use serde_json::{Value, json};

/// Bytes that are allocated.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counted;

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// Endpoints, and those of one line.
const ENDPOINTS: usize = 10_000;
const A_LINE: usize = 200;
/// Bytes that the daemon may have of each, in all its tables: 100,000 of them in 64 MiB, with what the allocator adds.
const BYTES_MAX: usize = 350;

/// A plugin that takes every overlay, and says what it is given.
fn plugin(mut stream: UnixStream) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let message: Value = serde_json::from_str(&line).unwrap();
        let answer = match message["op"].as_str().unwrap() {
            "hello" => json!({"op": "hello", "v": 1, "kind": "table", "properties": []}),
            "ping" => json!({"op": "pong", "id": message["id"]}),
            "start" => json!({"op": "ok", "overlay": message["overlay"]}),
            _ => continue,
        };
        if writeln!(stream, "{answer}").is_err() {
            return;
        }
    }
}

fn push(numbers: std::ops::Range<usize>) -> Value {
    let entry = |n: usize| {
        let [.., high, low] = n.to_be_bytes();
        let target = json!({"ip": format!("192.0.2.{}", n % 50 + 1)});
        let (host, ip) = (format!("host{}", n % 50), format!("10.0.{high}.{low}"));
        json!({"vni": 23, "mac": mac(n), "target": target, "ips": [ip], "host": host, "gen": 1})
    };
    let entries: Vec<Value> = numbers.map(entry).collect();
    json!({"op": "push", "overlay": "a", "entries": entries})
}

/// An endpoint that a search told of, and its IP address that is answered for, take few bytes.
#[test]
fn an_endpoint_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let socket = directory.path().join("plugin.sock");
    let (to, session) = mpsc::channel();
    let path = socket.clone();
    // It ends with the test.
    std::thread::spawn(move || {
        let stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        to.send(stream.try_clone().unwrap()).unwrap();
        plugin(stream);
    });
    let bridge = json!({"name": "br0", "properties": {"addresses-max": 20_000}});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    let [.., high, low] = std::process::id().to_be_bytes();
    let listen = format!("127.{high}.{low}.1");
    let properties = json!({
        "vnetid": 23, "plugin/socket": socket, "vxlan/listen-ip": listen, "proxy": "arp,ndp",
    });
    let overlay =
        json!({"name": "a", "bridge": "br0", "search": "plugin", "properties": properties});
    daemon.must("POST", "/v1/overlays", Some(overlay));
    let mut session = session.recv().unwrap();
    let mut tell = |numbers: std::ops::Range<usize>| {
        let end = numbers.end;
        for from in numbers.step_by(A_LINE) {
            let line = push(from..(from + A_LINE).min(end));
            writeln!(session, "{line}").unwrap();
        }
        until("told", || {
            daemon.must("GET", "/v1/overlays/a", None)["addresses"] == end
        });
    };
    // With the first ones come the targets.
    tell(0..A_LINE);
    let before = BYTES.load(Ordering::Relaxed);
    tell(A_LINE..ENDPOINTS);
    let more = || BYTES.load(Ordering::Relaxed).saturating_sub(before);
    // What is on its way is allocated still.
    until("small", || more() <= BYTES_MAX * (ENDPOINTS - A_LINE));
}
