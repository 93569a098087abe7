//! Who may do what.
//!
//! # Model
//! Anyone may connect; the credentials that the kernel recorded when the peer connected (`SO_PEERCRED`)
//! decide, and nothing that the peer says. There are two kinds of peers:
//!
//! - An **operator** may do everything. It is the user whose daemon this is: the daemon's own effective
//!   user, and, for any daemon, user 0. User 0 alone is not enough: it must hold `CAP_NET_ADMIN` in its
//!   effective set, in the daemon's own user namespace, as long as the daemon itself has it. So root in a
//!   container without that capability, or in a user namespace of its own, is no operator.
//! - Anyone else is a **tenant**: of the zones whose `owner_uid` it has, or of none. It makes, changes
//!   and deletes vnd devices and VNICs of its zones, on bridges that are granted to the zone, with TAPs in the zone's
//!   namespace and sockets under the zone's directory, and sets only the properties that the table marks
//!   for tenants. It sees its zones, their VNICs and the bridges granted; the group `owner_gid` of a zone
//!   sees the same but for secrets, and changes nothing.
//!
//! The capability is looked up in `/proc/PID` of a peer whose recorded user is 0 already; a pidfd of the socket says
//! afterwards that the number was still that process's. A process that connects and then runs a set-user-ID program gains
//! nothing by it: its recorded user stays what it was.
//!
//! # Failure modes
//! A peer whose `/proc` entry cannot be read (it is gone, or in another PID namespace) is no operator.
//!
//! # Not done
//! VLANs granted with a bridge: a tenant's VNICs are in VLAN 1 until an
//! operator sets another.

use std::os::fd::AsFd;
use std::path::Path;

use windlass_api::{
    Change, Detail, Document, ErrorBody, ErrorCode, Flow, Name, Object, PeerView, Scope, Vnd,
    VndErrno, VndError, Vnic, Zone, property,
};
use windlass_sys::identity::{Rights, user_namespace};
use windlass_sys::process;
use windlass_sys::unix::{self, Credentials};

use crate::backend::Place;

const CAP_NET_ADMIN: u64 = 1 << 12; // linux/capability.h

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// User, as the kernel recorded it.
    pub uid: u32,
    /// Group, as the kernel recorded it.
    pub gid: u32,
    /// Whether it may do everything.
    pub operator: bool,
}

impl Peer {
    /// The peer of a connected socket, as the kernel recorded it; `None` if the kernel does not know.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let Credentials { pid, uid, gid } = unix::peer_credentials(&socket).ok()?;
        let own_uid = rustix::process::geteuid().as_raw();
        let operator = match uid {
            0 => root_is_operator(&socket, pid),
            uid => uid == own_uid,
        };
        Some(Self { uid, gid, operator })
    }

    /// A peer that stands for the daemon itself.
    pub fn daemon() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self {
            uid,
            gid,
            operator: true,
        }
    }

    /// Whether it may act in the zone.
    pub fn owns(&self, zone: &Zone) -> bool {
        self.operator || self.uid == zone.owner_uid
    }

    /// Whether it may look at the zone.
    pub fn sees_zone(&self, zone: &Zone) -> bool {
        self.owns(zone) || self.gid == zone.owner_gid
    }

    /// Whether it may look at a VNIC.
    pub fn sees_vnic(&self, vnic: &Vnic, document: &Document) -> bool {
        self.operator || zone_of(vnic, document).is_some_and(|zone| self.sees_zone(zone))
    }

    /// Whether it may change a VNIC, and so read its secret.
    pub fn owns_vnic(&self, vnic: &Vnic, document: &Document) -> bool {
        self.operator || zone_of(vnic, document).is_some_and(|zone| self.owns(zone))
    }

    /// Whether it may look at a vnd device.
    pub fn sees_vnd(&self, vnd: &Vnd, document: &Document) -> bool {
        let zone = vnd
            .zone
            .name()
            .and_then(|zone| document.zone(zone.as_str()));
        self.operator || zone.is_some_and(|zone| self.sees_zone(zone))
    }

    /// Whether it may look at a bridge.
    pub fn sees_bridge(&self, bridge: &Name, document: &Document) -> bool {
        let granted = |zone: &Zone| zone.bridges.contains(bridge) && self.sees_zone(zone);
        self.operator || document.zones.iter().any(granted)
    }

    /// Whether it may look at an uplink, or at what concerns the whole daemon.
    pub fn sees_host(&self) -> bool {
        self.operator
    }

    /// What the peer is told of itself.
    pub fn view(&self, document: &Document) -> PeerView {
        let zones = document
            .zones
            .iter()
            .filter(|zone| zone.owner_uid == self.uid);
        let zones = zones.map(|zone| zone.name.clone()).collect();
        PeerView {
            uid: self.uid,
            gid: self.gid,
            operator: self.operator,
            zones,
        }
    }

    /// Refuses whoever is no operator.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`], naming what was tried.
    pub fn must_operate(&self, what: &str) -> Result<(), ErrorBody> {
        if self.operator {
            Ok(())
        } else {
            Err(self.forbidden(what))
        }
    }

    fn forbidden(&self, what: &str) -> ErrorBody {
        let message = format!(
            "user {} may not {what}: root (with CAP_NET_ADMIN) and the daemon's own user may",
            self.uid
        );
        ErrorBody::plain(ErrorCode::Forbidden, message)
    }

    /// Decides on one change from `old` to `new`.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`], naming what the peer may not do.
    pub fn may(
        &self,
        change: &Change,
        old: &Document,
        new: &Document,
        runtime_dir: &Path,
    ) -> Result<(), ErrorBody> {
        if self.operator {
            return Ok(());
        }
        match change {
            Change::Create {
                to: Object::Vnic(to),
            } => self.may_have(None, to, new, runtime_dir),
            Change::Set {
                from: Object::Vnic(from),
                to: Object::Vnic(to),
            } => {
                self.must_own(from, old)?;
                self.may_have(Some(from), to, new, runtime_dir)
            }
            Change::Delete {
                from: Object::Vnic(from),
            } => self.must_own(from, old),
            Change::Create {
                to: Object::Flow(to),
            } => self.must_own_flow(to, new),
            Change::Set {
                from: Object::Flow(from),
                to: Object::Flow(to),
            } => {
                self.must_own_flow(from, old)?;
                self.must_own_flow(to, new)
            }
            Change::Delete {
                from: Object::Flow(from),
            } => self.must_own_flow(from, old),
            Change::Create {
                to: Object::Vnd(vnd),
            }
            | Change::Delete {
                from: Object::Vnd(vnd),
            } => self.must_own_vnd(vnd, old, new),
            Change::Set {
                from: Object::Vnd(from),
                to: Object::Vnd(to),
            } => {
                self.must_own_vnd(from, old, new)?;
                self.must_own_vnd(to, old, new)
            }
            // Static entries of a VNIC go with it.
            Change::Delete {
                from: Object::Fdb(entry),
            } if !new.vnics.iter().any(|vnic| vnic.name == entry.member) => {
                match old.vnic(entry.member.as_str()) {
                    Some(vnic) => self.must_own(vnic, old),
                    None => Err(self.forbidden("change forwarding tables")),
                }
            }
            Change::Create { to: object }
            | Change::Set { to: object, .. }
            | Change::Delete { from: object } => {
                Err(self.forbidden(&format!("change {} \"{}\"", object.kind(), object.name())))
            }
        }
    }

    fn must_own_flow(&self, flow: &Flow, document: &Document) -> Result<(), ErrorBody> {
        let vnic = document.vnic(flow.vnic.as_str());
        match vnic.filter(|vnic| self.sees_vnic(vnic, document)) {
            Some(vnic) => self.must_own(vnic, document),
            None => Err(self.forbidden(&format!("change flows of \"{}\"", flow.vnic))),
        }
    }

    /// Refuses devices that the peer may not have as if what it may not see were not there. Asked before [`Peer::may`]: a change of
    /// a device is found by its VNIC, so it may come from another's device.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`] for a zone of another owner, [`ErrorCode::NotFound`] for a VNIC of one.
    pub fn may_have_vnds(&self, old: &Document, new: &Document) -> Result<(), ErrorBody> {
        for vnd in new.vnds.iter().filter(|vnd| !old.vnds.contains(vnd)) {
            self.must_own_vnd(vnd, old, new)?;
            let vnic = new.vnic(vnd.vnic.as_str());
            if vnic.is_some_and(|vnic| !self.sees_vnic(vnic, new)) {
                let (vnic, zone) = (vnd.vnic.to_string(), vnd.zone.to_string());
                let error = VndError::NoDatalink { vnic, zone };
                let detail = error.detail(&vnd.label());
                // In the words for a VNIC that is not there.
                let message = format!("{}: {}", detail.path, detail.message);
                let (code, details) = (error.errno().code(), vec![detail]);
                return Err(ErrorBody {
                    code,
                    message,
                    details,
                });
            }
        }
        Ok(())
    }

    /// Both owners of a zone that is given away with its devices have to be the peer.
    fn must_own_vnd(&self, vnd: &Vnd, old: &Document, new: &Document) -> Result<(), ErrorBody> {
        let zone = vnd.zone.name().map(Name::as_str).unwrap_or_default();
        let owns = |document: &Document| document.zone(zone).is_none_or(|zone| self.owns(zone));
        let is_there = old.zone(zone).is_some() || new.zone(zone).is_some();
        if self.operator || (is_there && owns(old) && owns(new)) {
            return Ok(());
        }
        Err(self.no_act_in(vnd.zone.as_str(), &vnd.label()))
    }

    /// A peer may not do something with a vnd device of a zone.
    fn no_act_in(&self, zone: &str, device: &str) -> ErrorBody {
        let mut error = self.forbidden(&format!("act in zone \"{zone}\""));
        error.details.push(Detail {
            path: format!("vnds.{device}"),
            message: error.message.clone(),
            errno: Some(VndErrno::Perm),
        });
        error
    }

    fn must_own(&self, vnic: &Vnic, document: &Document) -> Result<(), ErrorBody> {
        match zone_of(vnic, document) {
            Some(zone) if self.owns(zone) => Ok(()),
            _ => Err(self.forbidden(&format!("act in zone \"{}\"", vnic.zone))),
        }
    }

    /// Whether a tenant may have this VNIC, changed from `from` if it was there before.
    fn may_have(
        &self,
        from: Option<&Vnic>,
        vnic: &Vnic,
        document: &Document,
        runtime_dir: &Path,
    ) -> Result<(), ErrorBody> {
        self.must_own(vnic, document)?;
        let path = format!("vnics.{}", vnic.name);
        let refuse = |key: &str, message: String| {
            let path = format!("{path}.{key}");
            Err(
                ErrorBody::plain(ErrorCode::Forbidden, format!("{path}: {message}"))
                    .at(path, message),
            )
        };
        let Some(zone) = zone_of(vnic, document) else {
            return Err(self.forbidden(&format!("act in zone \"{}\"", vnic.zone)));
        };
        if !zone.bridges.contains(&vnic.bridge) {
            let message = format!(
                "bridge \"{}\" is not granted to zone \"{}\"",
                vnic.bridge, zone.name
            );
            return refuse("bridge", message);
        }
        let mut names: Vec<_> = vnic.properties.iter().map(|(name, _)| name).collect();
        names.extend(
            from.iter()
                .flat_map(|vnic| vnic.properties.iter().map(|(name, _)| name)),
        );
        for name in names {
            let before = from.and_then(|vnic| vnic.properties.get(name));
            let unchanged = before == vnic.properties.get(name);
            let tenant = property(Scope::Vnic, name).is_some_and(|row| row.tenant);
            if !unchanged && !tenant {
                let message = "only an operator may set this".to_owned();
                return refuse(&format!("properties.{name}"), message);
            }
        }
        if let Some(netns) = vnic.attach.netns()
            && (netns.is_none() || netns != zone.netns.as_ref())
        {
            let message = match &zone.netns {
                Some(netns) => format!("the namespace of zone \"{}\" is \"{netns}\"", zone.name),
                None => format!("zone \"{}\" has no namespace", zone.name),
            };
            return refuse("attach.netns", message);
        }
        let place = Place::of(runtime_dir, Some(zone));
        match vnic.attach.socket() {
            Some((socket, _)) if !place.socket(socket).starts_with(&place.directory) => {
                let directory = place.directory.display();
                refuse(
                    "attach.socket",
                    format!("\"{socket}\" is not under {directory}"),
                )
            }
            _ => Ok(()),
        }
    }
}

/// Whether user 0 in this process holds what the daemon itself holds of `CAP_NET_ADMIN`.
fn root_is_operator(socket: impl AsFd, pid: Option<u32>) -> bool {
    let own = std::process::id();
    let manages = |pid| Rights::of(pid).map(|rights| rights.effective & CAP_NET_ADMIN != 0);
    match manages(own) {
        None => return false,
        Some(false) => return true,
        Some(true) => {}
    }
    let Some((pid, Ok(pidfd))) = pid.map(|pid| (pid, process::peer_pidfd(socket, pid))) else {
        return false;
    };
    let namespace = user_namespace(pid);
    let is_ours = namespace.is_some() && namespace == user_namespace(own);
    manages(pid) == Some(true) && is_ours && !process::has_ended(&pidfd)
}

fn zone_of<'a>(vnic: &Vnic, document: &'a Document) -> Option<&'a Zone> {
    document.zone(vnic.zone.name()?.as_str())
}
