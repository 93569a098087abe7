//! A veth of a daemon whose successor has failed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_attach::endpoint::{Endpoint, Event, InterfaceConf, Rings};
use windlass_attach::veth::{VethConf, VethEndpoint};
use windlass_sys::netns;
use windlass_sys::shortcut::{Hook, Shortcut};

fn endpoint(netns: &str, hook: Hook, may_be_left: bool) -> VethEndpoint {
    let shortcut = Arc::new(Shortcut::new().expect("maps and programs"));
    let conf = VethConf {
        name: "eth0".to_owned(),
        netns: netns.to_owned(),
        mark: "kept:v0".to_owned(),
        hook,
        interface: InterfaceConf {
            addresses: vec![("10.0.0.1".parse().expect("an address"), 24)],
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
        },
    };
    let slot = shortcut.slot().expect("a slot");
    VethEndpoint::new(conf, slot, may_be_left).expect("an endpoint")
}

fn rings(of: &mut VethEndpoint) -> Rings {
    match of.poll(Instant::now()).pop() {
        Some(Event::Up(rings)) => rings,
        _ => panic!("{}", of.status().reason),
    }
}

/// A daemon whose successor has put its programs there, and has ended, puts its own back.
#[test]
fn a_failed_successor_leaves_no_programs() {
    let hook = [Hook::Tcx, Hook::Clsact];
    let hook = hook.into_iter().find(|hook| hook.is_there());
    let (Some(hook), Ok(_)) = (hook, Shortcut::new()) else {
        println!("skipped: a_failed_successor_leaves_no_programs: no place for programs");
        return;
    };
    let name = format!("wlkept-{}", std::process::id());
    let there = netns::create(&name).expect("a namespace");
    let passes = netns::within_new("host", || {
        let mut own = endpoint(&name, hook, false);
        let _rings = rings(&mut own);
        let mut other = endpoint(&name, hook, true);
        other.take_over(own.hand_over().expect("a TAP"));
        drop(rings(&mut other));
        drop(other);
        assert!(!own.keep(true));
        let queue = own.hand_over().expect("a TAP").fds.remove(0);
        let sender = netns::within(&there, || UdpSocket::bind("10.0.0.1:0"));
        let sender = sender.expect("entered").expect("a socket");
        sender.set_broadcast(true).expect("an option");
        while rustix::io::read(&queue, &mut [0; 2000]).is_ok() {}
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            sender.send_to(b"x", "10.0.0.255:9").expect("sent");
            if rustix::io::read(&queue, &mut [0; 2000]).is_ok() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(false)
    });
    netns::delete(&name).expect("removed");
    assert!(passes.expect("a namespace for the daemon"));
}
