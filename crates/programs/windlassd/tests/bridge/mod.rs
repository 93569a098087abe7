//! A daemon over a host of the test's own, a bridge with VNICs there, and their frames.
#![allow(dead_code)]

use std::path::Path;

use serde_json::{Value, json};
use windlassd::dataplane;

use crate::daemon::{Daemon, options};
use crate::lab::Lab;

/// A daemon with real workers over that host.
pub fn start(directory: &Path, lab: &Lab) -> Daemon {
    let options = options(directory);
    let host = Box::new(lab.clone());
    Daemon::start_over(&options, |sink| dataplane::build_on(host, &options, sink))
}

/// The address of a member.
pub fn mac(number: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 0xff)
}

/// A frame from one member to another.
pub fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.resize(60, 0);
    frame
}

/// A bridge with VNICs `v0` and so on, whose addresses are [`mac`].
pub fn bridge_of(daemon: &Daemon, members: usize, properties: &Value) {
    let bridge = json!({"name": "br0", "properties": properties});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    for number in 0..members {
        let vnic = json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
}

/// A datagram over IPv4, as far as anybody looks.
pub fn datagram(to: u8, from: u8) -> Vec<u8> {
    let mut frame = frame(to, from);
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&46u16.to_be_bytes());
    (frame[22], frame[23], frame[39]) = (64, 17, 26);
    frame
}
