//! The control half of a virtual machine's VNIC.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use windlass_api::{Role, VhostUser, Vnic};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::vhost_user::{SessionConf, VhostConf, VhostEndpoint, VhostRole};

use crate::backend::{BackendError, Place};

/// Permission bits of a socket for which none were named.
const SOCKET_MODE: u32 = 0o600;

/// Where the places of a guest's packed rings are kept: beside the directory of all zones, where only the daemon writes.
fn places(vnic: &Vnic, place: &Place) -> Option<PathBuf> {
    let directory = place.directory.parent()?.parent()?.join("rings");
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory);
    made.ok()?;
    Some(directory.join(vnic.name.as_str()))
}

/// The endpoint of a VNIC with this attachment; `mtu`: what holds for the VNIC, in bytes.
///
/// # Errors
/// An owner where the zone decides, and what the host refuses.
pub fn endpoint(
    vnic: &Vnic,
    vhost: &VhostUser,
    mtu: u32,
    place: &Place,
) -> Result<Box<dyn Endpoint>, BackendError> {
    let path = place.socket(&vhost.socket);
    if place.owner.is_some() && vhost.owner.is_some() {
        return Err(BackendError::Unsupported(format!(
            "`{}` is in a zone, whose sockets are its owner's: leave owner= out",
            vnic.name
        )));
    }
    let named = vhost.owner.map(|owner| (owner.uid, owner.gid));
    let role = match vhost.role {
        Role::Client => VhostRole::Client { owner: place.owner },
        Role::Server => VhostRole::Server {
            mode: vhost.mode.map_or(SOCKET_MODE, |mode| mode.bits()),
            owner: place.owner.or(named),
        },
    };
    let conf = VhostConf {
        path: path.clone(),
        role,
        session: SessionConf {
            pairs: vhost.queues,
            mtu,
        },
        places: places(vnic, place),
    };
    let endpoint = VhostEndpoint::new(conf).map_err(|error| {
        BackendError::Host(format!(
            "vhost-user of `{}` at {}: {error}",
            vnic.name,
            path.display()
        ))
    })?;
    Ok(Box::new(endpoint))
}
