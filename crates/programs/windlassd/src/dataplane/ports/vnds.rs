//! vnd devices: what VNICs have in the place of an attachment.
//!
//! # Model
//! A device is a memif server at its own path. Its VNIC has no attachment: the endpoint is made, moved and taken away while the VNIC
//! stays, with its counters and entries. Until an edit ends, the endpoints that it has made wait beside the members, and paths are as
//! before; then all devices that change leave their paths, and come to the new ones after that. So two can swap their names.
//!
//! # States
//! A device that is taken away while a program has it open becomes *unlinked*: no path leads to it. It ends with the
//! connection, or with the VNIC.
//!
//! # Failure modes
//! A path that cannot be bound leaves the device waiting, with the reason, and is tried again every second. A program that has the device
//! open keeps it.
//!
//! # Not done
//! Unlinked devices end with the daemon, and at an upgrade, as all connections of memif do; without a path no program could come back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use windlass_api::{Attachment, Memif, Name, NameError, Vnd, Vnic};

use super::Ports;
use super::watch::Watched;
use crate::backend::{BackendError, Place};

/// By VNIC. They are kept apart from members, so that a VNIC that is made again has its own.
#[derive(Default)]
pub(super) struct Devices {
    by_vnic: BTreeMap<Name, Device>,
    /// Changed in this edit.
    touched: BTreeSet<Name>,
    /// Made in this edit, for members that have no endpoint.
    made: BTreeMap<Name, Watched>,
    /// Taken away in this edit.
    gone: BTreeMap<Name, Vnd>,
    /// Taken away while they were open. One of a VNIC that is gone stays here until an edit ends.
    unlinked: BTreeMap<Name, Vnd>,
}

struct Device {
    vnd: Vnd,
    path: PathBuf,
}

impl Devices {
    /// The VNIC with the attachment that its device is.
    ///
    /// # Errors
    /// The path of the device is too long for a socket.
    pub(super) fn attached(&self, vnic: &Vnic) -> Result<Vnic, BackendError> {
        match self.by_vnic.get(&vnic.name) {
            None => Ok(vnic.clone()),
            Some(device) => Ok(Vnic {
                attach: device.attachment()?,
                ..vnic.clone()
            }),
        }
    }
}

impl Device {
    fn attachment(&self) -> Result<Attachment, BackendError> {
        let path = self.path.to_str().unwrap_or_default();
        let socket = path.parse().map_err(|error: NameError| {
            BackendError::Host(format!("vnd device {}: {error}", self.vnd.label()))
        })?;
        Ok(Attachment::Memif(Memif::server(socket)))
    }
}

impl Ports {
    /// Gives a VNIC a device, or another one, or none, at the end of the edit.
    pub fn set_vnd(
        &mut self,
        vnic: &Vnic,
        to: Option<&Vnd>,
        place: &Place,
    ) -> Result<(), BackendError> {
        let name = &vnic.name;
        let devices = &mut self.devices;
        devices.touched.insert(name.clone());
        let Some(vnd) = to else {
            devices.made.remove(name);
            let gone = devices.by_vnic.remove(name);
            devices
                .gone
                .extend(gone.map(|gone| (name.clone(), gone.vnd)));
            return Ok(());
        };
        let device = Device {
            vnd: vnd.clone(),
            path: place.device(&vnd.name),
        };
        let attach = device.attachment()?;
        let member = self.members.get(name);
        let is_bare = member.is_some_and(|member| member.endpoint.is_none());
        if is_bare && !devices.made.contains_key(name) {
            let attached = Vnic {
                attach,
                ..vnic.clone()
            };
            if let Some(endpoint) = self.host.vnic(&attached, place)? {
                devices
                    .made
                    .insert(name.clone(), self.watch.take(endpoint)?);
            }
        }
        devices.by_vnic.insert(name.clone(), device);
        Ok(())
    }

    /// Gives VNICs the devices that they have after an edit; which ones are to be driven.
    pub(super) fn end_vnds(&mut self) -> BTreeSet<Name> {
        let touched = std::mem::take(&mut self.devices.touched);
        let mut made = std::mem::take(&mut self.devices.made);
        let mut gone = std::mem::take(&mut self.devices.gone);
        for name in &touched {
            let path = self
                .devices
                .by_vnic
                .get(name)
                .map(|device| device.path.clone());
            let Some(member) = self.members.get_mut(name) else {
                continue;
            };
            let Some(endpoint) = member.endpoint.as_mut() else {
                self.members.set_endpoint(name, made.remove(name));
                continue;
            };
            endpoint.set_path(path.clone());
            if endpoint.is_over() {
                self.end_device(name);
            } else if path.is_none() {
                let unlinked = gone.remove(name).map(|vnd| (name.clone(), vnd));
                self.devices.unlinked.extend(unlinked);
            }
        }
        let members = &self.members;
        let unlinked = &mut self.devices.unlinked;
        unlinked.retain(|name, _| {
            let endpoint = members.get(name).and_then(|m| m.endpoint.as_ref());
            endpoint.is_some_and(|endpoint| endpoint.is_unlinked())
        });
        touched
    }

    /// A device has no name and nobody has it open: its VNIC is free.
    pub(super) fn end_device(&mut self, name: &Name) {
        if let Some(mut endpoint) = self.members.set_endpoint(name, None) {
            endpoint.delete();
        }
        self.devices.unlinked.remove(name);
        self.sink.changed(name);
    }

    pub fn unlinked(&self) -> Vec<Vnd> {
        self.devices.unlinked.values().cloned().collect()
    }

    pub fn flow_controls(&self, vnics: &[Name]) -> Vec<u64> {
        let of = |name| {
            let endpoint = self.members.get(name)?.endpoint.as_ref()?;
            Some(endpoint.flow_controls())
        };
        vnics.iter().map(|name| of(name).unwrap_or(0)).collect()
    }
}
