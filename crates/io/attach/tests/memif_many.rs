//! Many memif interfaces on one socket, driven as the daemon drives them: one set, and only those that have an event.
#![allow(missing_docs)]

mod memif_drive;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memif_drive::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::memif::{MemifClient, MemifServer};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::unix::{self, SocketKind};

const INTERFACES: u32 = 1000;

/// What drives the interfaces.
struct House {
    path: PathBuf,
    set: Epoll,
    servers: HashMap<u64, MemifServer>,
    /// Interfaces that were polled.
    polled: BTreeSet<u64>,
}

impl House {
    /// Polls the interface.
    fn poll(&mut self, id: u64) -> bool {
        self.polled.insert(id);
        let server = self
            .servers
            .get_mut(&id)
            .expect("an interface that is there");
        is_up(&server.poll(Instant::now()))
    }

    /// Connects a client to interface `id`; the interfaces that were polled for that.
    fn connect(&mut self, id: u64) -> (MemifClient, BTreeSet<u64>) {
        self.polled.clear();
        let config = client_config(self.path.clone(), id as u32, 1, 6);
        let mut client = MemifClient::new(config).expect("a client");
        let (mut events, end) = (Events::default(), Instant::now() + PATIENCE);
        let (mut is_served, mut is_connected) = (false, false);
        while !(is_served && is_connected) {
            assert!(Instant::now() < end, "{id}: {:?}", client.status());
            is_connected |= is_due(&client) && is_up(&client.poll(Instant::now()));
            is_served |= self.poll_due(&mut events).contains(&id);
        }
        (client, std::mem::take(&mut self.polled))
    }

    /// Polls those that have an event; those of them that are up then.
    fn poll_due(&mut self, events: &mut Events) -> Vec<u64> {
        let wait = Some(Duration::from_millis(1));
        self.set.wait(events, wait).expect("a wait");
        let due: Vec<u64> = events.iter().map(|event| event.token).collect();
        due.into_iter().filter(|id| self.poll(*id)).collect()
    }

    /// Deletes an interface.
    fn delete(&mut self, id: u64) {
        let mut server = self.servers.remove(&id).expect("an interface");
        self.set.remove(server.fd()).expect("it is in the set");
        server.delete();
    }

    /// The one interface that has a deadline, once there is one.
    fn waits(&mut self) -> u64 {
        let (mut events, end) = (Events::default(), Instant::now() + PATIENCE);
        loop {
            let servers = self.servers.iter();
            let waiting = servers.filter(|(_, server)| server.deadline().is_some());
            match waiting.map(|(id, _)| *id).collect::<Vec<_>>().as_slice() {
                [] => assert!(Instant::now() < end, "nobody waits"),
                [one] => return *one,
                all => panic!("{all:?} wait"),
            }
            self.poll_due(&mut events);
        }
    }
}

/// A thousand interfaces share a socket and wait in one set. A client that connects has its own interface polled, and the one
/// that waits for all: no others. When the latter is deleted, or nobody polls it any more, another one waits for all.
#[test]
fn a_thousand_on_one_socket() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("more descriptors");
    let directory = tempfile::tempdir().expect("a directory");
    let mut house = House {
        path: directory.path().join("s"),
        set: Epoll::create().expect("a set"),
        servers: HashMap::new(),
        polled: BTreeSet::new(),
    };
    for id in 0..INTERFACES {
        let server = MemifServer::new(server_config(house.path.clone(), id, 1)).expect("a server");
        let added = house.set.add(server.fd(), id.into(), Interest::READABLE);
        added.expect("room in the set");
        house.servers.insert(id.into(), server);
        assert!(!house.poll(id.into()));
        let status = house.servers[&id.into()].status();
        assert_eq!(status.reason, "waiting for a client");
    }

    let (_first, polled) = house.connect(777);
    assert_eq!(polled, BTreeSet::from([0, 777]));

    house.delete(0);
    let (_second, polled) = house.connect(500);
    assert_eq!(polled, BTreeSet::from([1, 500]));

    let porter = house.servers.get_mut(&1).expect("the second interface");
    porter.rest();
    let (_third, polled) = house.connect(501);
    assert_eq!(polled, BTreeSet::from([2, 501]));
    assert!(
        house
            .servers
            .values()
            .all(|server| server.deadline().is_none())
    );

    // Somebody at the door who says nothing is turned away in time, whoever waits for all then.
    let _silent = unix::connect(&house.path, SocketKind::SeqPacket).expect("a connection");
    assert_eq!(house.waits(), 2);
    house.polled.clear();
    house.delete(2);
    let (mut events, end) = (Events::default(), Instant::now() + PATIENCE);
    while house.polled.is_empty() && Instant::now() < end {
        house.poll_due(&mut events);
    }
    assert_eq!(house.polled, BTreeSet::from([3]));
    assert_eq!(house.waits(), 3);
}
