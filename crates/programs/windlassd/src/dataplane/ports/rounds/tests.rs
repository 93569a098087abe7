use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use windlass_api::{Document, State};
use windlass_attach::endpoint::{Endpoint, Rings, Status};
use windlass_attach::port::{Lane, Sent, TxCaps, TxPort};
use windlass_frame::{Heads, Pick};
use windlass_shm::{Section, Tails};
use windlass_sys::eventfd;
use windlass_worker::{DataPlane, DataPlaneOptions};

use super::*;
use crate::backend::{BackendError, Place, StateSink};
use crate::dataplane::host::Host;
use crate::shares::PerUser;

struct NoSender;

impl TxPort for NoSender {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        Sent::default()
    }

    fn kick(&self, _: Lane) {}
}

/// A peer that is there as soon as somebody looks, until its endpoint is condemned.
struct Ready {
    fd: OwnedFd,
    is_up: bool,
    condemned: Option<String>,
    /// Why it was condemned last.
    reason: String,
}

impl Endpoint for Ready {
    fn poll(&mut self, _: Instant) -> Vec<Event> {
        match (&self.condemned, self.is_up) {
            (None, false) => {
                self.is_up = true;
                vec![Event::Up(Rings {
                    rx: Vec::new(),
                    tx: Arc::new(NoSender),
                })]
            }
            (Some(reason), true) => {
                self.is_up = false;
                vec![Event::Down(reason.clone())]
            }
            _ => Vec::new(),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn condemn(&mut self, reason: &str) {
        self.condemned = Some(reason.to_owned());
        self.reason = reason.to_owned();
    }

    fn detached(&mut self) {
        self.condemned = None;
    }

    fn status(&self) -> Status {
        Status {
            up: self.is_up,
            reason: self.reason.clone(),
            details: Vec::new(),
            connects: 1,
        }
    }

    fn delete(&mut self) {}
}

/// The host; what it knows of each interface.
#[derive(Clone, Default)]
struct Peers {
    device: Arc<Mutex<Option<Device>>>,
}

fn ready() -> Ready {
    Ready {
        fd: eventfd::create().unwrap(),
        is_up: false,
        condemned: None,
        reason: String::new(),
    }
}

impl Host for Peers {
    fn vnic(
        &mut self,
        _: &windlass_api::Vnic,
        _: &Place,
    ) -> Result<Option<Box<dyn Endpoint>>, BackendError> {
        Ok(Some(Box::new(ready())))
    }

    fn uplink(&mut self, _: &windlass_api::Uplink) -> Result<Box<dyn Endpoint>, BackendError> {
        Ok(Box::new(ready()))
    }

    fn device(&mut self, _: &str) -> Option<Device> {
        *self.device.lock().unwrap()
    }

    fn release_others(&mut self, _: &[String], _: &dyn Fn(&str) -> bool) {}
}

/// A data plane with nothing in it, on that host; and that document.
fn plane(peers: &Peers, json: serde_json::Value) -> (Ports, Document) {
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 16,
    };
    let plane = DataPlane::start(&options).unwrap();
    let wake = Arc::new(eventfd::create().unwrap());
    let (sink, _woken) = StateSink::pair();
    let host = Box::new(peers.clone());
    let per_user = PerUser::of(|_| 16);
    let nowhere = std::path::Path::new("/nonexistent");
    let ports = Ports::new(plane, vec![None], sink, host, wake, per_user, nowhere).unwrap();
    (ports, serde_json::from_value(json).unwrap())
}

/// Endpoints that are due go on.
fn drive(ports: &mut Ports) {
    for token in ports.watch.take_due(Instant::now()) {
        let name = ports.members.name_at(token).cloned().unwrap();
        ports.drive(&name);
    }
}

fn place() -> Place {
    Place::of(std::path::Path::new("/nonexistent"), None)
}

/// A port that comes up, and whose rings the workers do not get, is told so and goes down: nobody takes its VNIC for up.
#[test]
fn a_port_that_cannot_be_attached_does_not_stay_up() {
    let json = serde_json::json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": [
        {"name": "v0", "bridge": "br0", "mac": "02:00:00:00:00:01"}]});
    let (mut ports, document) = plane(&Peers::default(), json);
    ports.begin_edit();
    ports.create_bridge(&document.bridges[0]).unwrap();
    ports.create_vnic(&document.vnics[0], &place()).unwrap();
    // The data plane loses the member before its peer is looked at.
    let name = &document.vnics[0].name;
    let id = ports.members.get(name).unwrap().id;
    ports.plane.remove_members(&[id]).unwrap();
    ports.end_edit();
    (0..2).for_each(|_| drive(&mut ports));
    let status = ports.status(name);
    assert_eq!(status.state, State::Waiting);
    let reason = status.reason.unwrap();
    assert!(
        reason.contains(&format!("no member with number {id}")),
        "{reason}"
    );
    assert_eq!(ports.members.get(name).unwrap().rings, 0);
    ports.stop();
}

/// An uplink whose interface cannot be looked at as it comes up does not go on with the address that it had: its status says why
/// it waits, and it comes up with the interface's address once that can be read.
#[test]
fn an_uplink_does_not_come_up_with_an_old_address() {
    let json = serde_json::json!({"version": 1, "bridges": [{"name": "br0"}], "uplinks": [
        {"name": "up0", "bridge": "br0", "device": "eth7"}]});
    let peers = Peers::default();
    let (mut ports, document) = plane(&peers, json);
    ports.begin_edit();
    ports.create_bridge(&document.bridges[0]).unwrap();
    ports.create_uplink(&document.uplinks[0]).unwrap();
    ports.end_edit();
    let name = &document.uplinks[0].name;
    drive(&mut ports);
    let status = ports.status(name);
    let reason = status.reason.as_deref();
    assert_eq!(reason, Some("interface eth7 cannot be read"));
    assert_eq!((status.state, status.rings_now), (State::Waiting, 0));
    let device = Device { mtu: 9000, mac: 7 };
    *peers.device.lock().unwrap() = Some(device);
    (0..3).for_each(|_| drive(&mut ports));
    let status = ports.status(name);
    assert_eq!((status.state, status.mtu_now), (State::Up, 9000));
    ports.stop();
}

/// A VNIC's rules are compiled when they change, and not when another property does.
#[test]
fn other_properties_leave_the_rules_compiled() {
    let vnic = |properties: serde_json::Value| {
        serde_json::json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": [
            {"name": "v0", "bridge": "br0", "mac": "02:00:00:00:00:01", "properties": properties}]})
    };
    let before = vnic(serde_json::json!({"firewall": "drop in"}));
    let (mut ports, before) = plane(&Peers::default(), before);
    let after = vnic(serde_json::json!({"firewall": "drop in", "maxbw": 10}));
    let after: Document = serde_json::from_value(after).unwrap();
    ports.begin_edit();
    ports.create_bridge(&before.bridges[0]).unwrap();
    let [from, to] = [&before, &after].map(|document| &document.vnics[0]);
    ports.create_vnic(from, &place()).unwrap();
    ports.end_edit();
    let firewall = to.settings().firewall;
    let rules = ports.firewalls.get(&firewall).unwrap().unwrap().rules;
    assert!(
        Arc::strong_count(&rules) > 1,
        "the member has others at once"
    );
    ports.begin_edit();
    ports.set_vnic(from, to, &place()).unwrap();
    ports.end_edit();
    assert!(Arc::strong_count(&rules) > 1, "the member has others since");
    ports.stop();
}

fn edit(ports: &mut Ports, steps: impl FnOnce(&mut Ports)) {
    ports.begin_edit();
    steps(ports);
    ports.end_edit();
}

/// A VNIC that takes the number, the address or both of another one that went since followers looked last is what they know, not what
/// went.
#[test]
fn followers_know_what_came_in_place_of_another() {
    let vnic = |name: &str, mac: &str, groups: &str| {
        serde_json::json!({"name": name, "bridge": "br0", "mac": mac, "properties": {
            "multicast-groups": groups, "neigh-suppress": true, "allowed-ips": "10.0.0.2"}})
    };
    let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let json = serde_json::json!({"version": 1,
        "bridges": [{"name": "br0", "properties": {"multicast-snooping": true}}],
        "vnics": [vnic("late", one, "239.1.1.1"), vnic("early", two, "239.1.1.2")]});
    let (mut ports, document) = plane(&Peers::default(), json);
    let (bridge, [late, early]) = (&document.bridges[0], [0, 1].map(|n| &document.vnics[n]));
    let known = |ports: &mut Ports| {
        ports.run_neighbours();
        ports.run_snoops();
        let groups = ports.multicast(&bridge.name).map(|m| m.groups_total);
        (groups, ports.neighbours(&bridge.name).map(|n| n.known))
    };
    edit(&mut ports, |ports| {
        ports.create_bridge(bridge).unwrap();
        ports.create_vnic(late, &place()).unwrap();
    });
    assert_eq!(known(&mut ports), (Some(1), Some(1)));
    let id = ports.members.get(&late.name).unwrap().id;
    // Two edits, and no look in between.
    edit(&mut ports, |ports| {
        ports.delete_vnic(late, &place()).unwrap()
    });
    edit(&mut ports, |ports| {
        ports.create_vnic(early, &place()).unwrap()
    });
    assert_eq!(ports.members.get(&early.name).unwrap().id, id);
    assert_eq!(known(&mut ports), (Some(1), Some(1)));
    // One edit: the address goes from one to the other.
    edit(&mut ports, |ports| {
        ports.delete_vnic(early, &place()).unwrap();
        ports.create_vnic(late, &place()).unwrap();
    });
    assert_eq!(known(&mut ports), (Some(1), Some(1)));
    edit(&mut ports, |ports| {
        ports.delete_vnic(late, &place()).unwrap();
        ports.create_vnic(early, &place()).unwrap();
    });
    assert_eq!(known(&mut ports), (Some(1), Some(1)));
    ports.stop();
}

/// A member for which its bridge's tree had no number gets one as soon as one is free.
#[test]
fn a_member_waits_for_a_number_in_the_tree() {
    let json = serde_json::json!({"version": 1,
        "bridges": [{"name": "br0", "properties": {"stp": true}}],
        "vnics": [{"name": "v0", "bridge": "br0", "mac": "02:00:00:00:00:01", "properties": {"stp": true}}]});
    let (mut ports, document) = plane(&Peers::default(), json);
    let (bridge, vnic) = (&document.bridges[0], &document.vnics[0]);
    edit(&mut ports, |ports| ports.create_bridge(bridge).unwrap());
    ports.run_trees();
    let taken = (1..=windlass_rstp::vector::PortId::NUMBER_MAX).map(|n| (n, vnic.name.clone()));
    ports
        .trees
        .get_mut(&bridge.name)
        .unwrap()
        .names
        .extend(taken);
    edit(&mut ports, |ports| {
        ports.create_vnic(vnic, &place()).unwrap();
    });
    ports.run_trees();
    assert_eq!(ports.describe_port(&vnic.name), None);
    ports.trees.get_mut(&bridge.name).unwrap().names.clear();
    ports.run_trees();
    assert_ne!(ports.describe_port(&vnic.name), None);
    ports.stop();
}
