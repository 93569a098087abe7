use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

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
    }

    fn detached(&mut self) {}

    fn status(&self) -> Status {
        Status {
            up: self.is_up,
            reason: self.condemned.clone().unwrap_or_default(),
            details: Vec::new(),
            connects: 1,
        }
    }

    fn delete(&mut self) {}
}

struct Peers;

impl Host for Peers {
    fn vnic(
        &mut self,
        _: &windlass_api::Vnic,
        _: &Place,
    ) -> Result<Option<Box<dyn Endpoint>>, BackendError> {
        Ok(Some(Box::new(Ready {
            fd: eventfd::create().unwrap(),
            is_up: false,
            condemned: None,
        })))
    }

    fn uplink(&mut self, _: &windlass_api::Uplink) -> Result<Box<dyn Endpoint>, BackendError> {
        unreachable!("there is none")
    }

    fn device(&mut self, _: &str) -> Option<Device> {
        None
    }

    fn release_others(&mut self, _: &[String]) {}
}

/// A port that comes up, and whose rings the workers do not get, is told so and goes down: nobody takes its VNIC for up.
#[test]
fn a_port_that_cannot_be_attached_does_not_stay_up() {
    let json = serde_json::json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": [
        {"name": "v0", "bridge": "br0", "mac": "02:00:00:00:00:01"}]});
    let document: Document = serde_json::from_value(json).unwrap();
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 16,
    };
    let plane = DataPlane::start(&options).unwrap();
    let wake = Arc::new(eventfd::create().unwrap());
    let (sink, _woken) = StateSink::pair();
    let per_user = PerUser::of(|_| 16);
    let host = Box::new(Peers);
    let mut ports = Ports::new(plane, vec![None], sink, host, wake, per_user).unwrap();
    let place = Place::of(std::path::Path::new("/nonexistent"), None);
    ports.begin_edit();
    ports.create_bridge(&document.bridges[0]).unwrap();
    ports.create_vnic(&document.vnics[0], &place).unwrap();
    // The plane loses the member before its peer is looked at.
    let name = &document.vnics[0].name;
    let id = ports.members.get(name).unwrap().id;
    ports.plane.remove_members(&[id]).unwrap();
    ports.end_edit();
    for _ in 0..2 {
        let driven = ports.watch.take_due(Instant::now());
        driven.iter().for_each(|_| ports.drive(name));
    }
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
