//! Overlays with a search, and a plugin that a test speaks for.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::bridge::mac;
use super::daemon::Daemon;

/// An overlay at an address of its own, which is the host's own.
pub fn overlay(name: &str, search: &str, properties: Value) -> Value {
    static OVERLAYS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let number = OVERLAYS.fetch_add(1, Ordering::Relaxed);
    let mut overlay = json!({"name": name, "search": search, "properties": properties});
    overlay["properties"]["vxlan/listen-ip"] = json!(Ipv4Addr::new(127, high, low, number));
    overlay
}

/// Addresses that the search of an overlay has told, with their VLANs.
pub fn pushed(daemon: &Daemon, overlay: &str) -> Vec<(u64, String)> {
    let targets = daemon.must("GET", &format!("/v1/overlays/{overlay}/targets"), None);
    let targets = targets.as_array().unwrap().iter();
    let pushed = targets.filter(|target| target["kind"] == "pushed");
    let key = |target: &Value| {
        let mac = target["mac"].as_str().unwrap().to_owned();
        (target["vlan"].as_u64().unwrap(), mac)
    };
    pushed.map(key).collect()
}

/// Puts a file with one address there.
pub fn tell(file: &Path, number: usize) {
    let next = file.with_extension("next");
    let text = json!({mac(number): {"ip": "192.0.2.9"}}).to_string();
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, file).unwrap();
}

/// A plugin that connects, takes all overlays and says more of each.
pub struct Plugin {
    pub path: PathBuf,
    pub heard: Arc<Mutex<Vec<Value>>>,
    /// It takes no change.
    pub refuses: Arc<Mutex<bool>>,
    /// It says nothing of overlays that it is told of.
    pub is_mute: Arc<Mutex<bool>>,
    session: Arc<Mutex<Option<UnixStream>>>,
}

impl Plugin {
    /// `says`: what it says once it has taken an overlay of this name.
    pub fn start(directory: &Path, says: fn(&str) -> Vec<Value>) -> Self {
        let plugin = Self {
            path: directory.join("plugin.sock"),
            heard: Arc::default(),
            refuses: Arc::default(),
            is_mute: Arc::default(),
            session: Arc::default(),
        };
        let (path, heard) = (plugin.path.clone(), Arc::clone(&plugin.heard));
        let refuses = Arc::clone(&plugin.refuses);
        let is_mute = Arc::clone(&plugin.is_mute);
        let session = Arc::clone(&plugin.session);
        // It ends with the test.
        std::thread::spawn(move || {
            loop {
                if let Ok(stream) = UnixStream::connect(&path) {
                    *session.lock().unwrap() = stream.try_clone().ok();
                    serve(&stream, &heard, [&refuses, &is_mute], says);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        plugin
    }

    pub fn overlay(&self, name: &str, mut properties: Value) -> Value {
        properties["plugin/socket"] = json!(self.path);
        overlay(name, "plugin", properties)
    }

    /// Says something unasked.
    pub fn say(&self, message: &Value) {
        let session = self.session.lock().unwrap();
        writeln!(session.as_ref().unwrap(), "{message}").unwrap();
    }

    /// The number of the last question.
    pub fn asked(&self) -> Value {
        let heard = self.heard.lock().unwrap();
        let asked = heard.iter().rfind(|message| message["op"] == "lookup");
        asked.unwrap()["id"].clone()
    }

    /// How often it has heard that.
    pub fn heard(&self, op: &str) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|message| message["op"] == op).count()
    }
}

/// One session.
fn serve(
    mut stream: &UnixStream,
    heard: &Mutex<Vec<Value>>,
    [refuses, is_mute]: [&Mutex<bool>; 2],
    says: fn(&str) -> Vec<Value>,
) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else {
            return;
        };
        let message: Value = serde_json::from_str(&line).unwrap();
        let overlay = message["overlay"].as_str().unwrap_or_default();
        let mut answers = match message["op"].as_str().unwrap() {
            "hello" => vec![json!({"op": "hello", "v": 1, "kind": "dynamic", "properties": []})],
            "ping" => vec![json!({"op": "pong", "id": message["id"]})],
            "start" if *is_mute.lock().unwrap() => Vec::new(),
            "start" => [vec![json!({"op": "ok", "overlay": overlay})], says(overlay)].concat(),
            "set" if *is_mute.lock().unwrap() => Vec::new(),
            "set" if *refuses.lock().unwrap() => {
                vec![json!({"op": "error", "overlay": overlay, "text": "no"})]
            }
            "set" => vec![json!({"op": "ok", "overlay": overlay})],
            _ => Vec::new(),
        };
        heard.lock().unwrap().push(message);
        for answer in answers.drain(..) {
            if writeln!(stream, "{answer}").is_err() {
                return;
            }
        }
    }
}

/// What a plugin says of an address.
pub fn push(overlay: &str, vni: u32, number: usize) -> Value {
    let entry = json!({"vni": vni, "mac": mac(number), "target": {"ip": "192.0.2.9"}, "host": "h", "gen": 1});
    json!({"op": "push", "overlay": overlay, "entries": [entry]})
}
