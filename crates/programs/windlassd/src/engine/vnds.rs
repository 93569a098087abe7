//! vnd devices: what the engine asks of the data plane for them, who else uses their VNICs, and how they are shown.

use std::collections::HashMap;

use windlass_api::vnd::{MAXSIZE, MINTU, maxtu, slots};
use windlass_api::{
    Change, Counters, Document, ErrorBody, Name, Object, Status, Vnd, VndError, VndStats, VndView,
    Vnic,
};

use super::Engine;
use crate::authority::Peer;
use crate::backend::BackendError;
use crate::paths;

/// A device, and whether a name leads to it.
#[derive(Clone)]
struct Listed {
    vnd: Vnd,
    is_linked: bool,
}

impl Engine {
    /// Gives the VNIC of a device another one, or none.
    pub(super) fn set_vnd(&mut self, vnd: &Vnd, to: Option<&Vnd>) -> Result<(), BackendError> {
        // It is gone with all that it had.
        let Some(vnic) = self.document.vnic(vnd.vnic.as_str()).cloned() else {
            return Ok(());
        };
        let place = self.place_of(&vnic);
        if to.is_some() {
            paths::make_device_dir(&place.devices).map_err(|error| {
                BackendError::Host(format!("directory of vnd devices: {error:#}"))
            })?;
        }
        self.backend.set_vnd(&vnic, to, &place)
    }

    /// Refuses to delete a VNIC under a device, and to give a VNIC another consumer while a device that was destroyed is open.
    ///
    /// # Errors
    /// [`ErrorCode::InUse`](windlass_api::ErrorCode::InUse), naming the VNIC.
    pub(super) fn check_vnds(&self, next: &Document, changes: &[Change]) -> Result<(), ErrorBody> {
        let refuse = |vnd: &Vnd, consumer: String| {
            let vnic = vnd.vnic.clone();
            Err(VndError::DlExcl { vnic, consumer }.body(&vnd.label()))
        };
        let mut concerns_devices = false;
        for change in changes {
            match change {
                Change::Delete {
                    from: Object::Vnic(vnic),
                } if next.vnic(vnic.name.as_str()).is_none() => {
                    if let Some(vnd) = next.vnd_over(vnic.name.as_str()) {
                        let consumer = format!("has vnd device \"{}\": destroy it first", vnd.name);
                        return refuse(vnd, consumer);
                    }
                }
                change => {
                    concerns_devices |= matches!(change.object(), Object::Vnic(_) | Object::Vnd(_));
                }
            }
        }
        if !concerns_devices {
            return Ok(());
        }
        for vnd in self.backend.unlinked() {
            let name = vnd.vnic.as_str();
            let attached = |document: &Document| document.vnic(name).map(|v| v.attach.clone());
            let [before, after] = [attached(&self.document), attached(next)];
            // Without its VNIC the device ends.
            if next.vnd_over(name).is_some() || (after.is_some() && before != after) {
                return refuse(
                    &vnd,
                    "has a vnd device that was destroyed and is open".into(),
                );
            }
        }
        Ok(())
    }

    /// Every device that the peer may see, those without a name last.
    fn listed(&self, peer: &Peer) -> Vec<Listed> {
        let linked = self.document.vnds.iter().cloned();
        let linked = linked.map(|vnd| (vnd, true));
        let unlinked = self.backend.unlinked().into_iter().map(|vnd| (vnd, false));
        let all = linked.chain(unlinked);
        let all = all.map(|(vnd, is_linked)| Listed { vnd, is_linked });
        all.filter(|listed| peer.sees_vnd(&listed.vnd, &self.document))
            .collect()
    }

    /// Devices as the peer sees them.
    pub fn vnd_views(&self, peer: &Peer) -> Vec<VndView> {
        self.views_of(self.listed(peer))
    }

    /// A device that has this name.
    ///
    /// # Errors
    /// There is none, as far as the peer may know.
    pub fn vnd_view(&self, peer: &Peer, zone: &str, name: &str) -> Result<VndView, ErrorBody> {
        let vnd = self.seen_vnd(peer, zone, name)?.clone();
        let is_linked = true;
        let view = self.views_of(vec![Listed { vnd, is_linked }]).pop();
        view.ok_or_else(|| no_such_vnd(zone, name))
    }

    /// The configuration of a device.
    ///
    /// # Errors
    /// There is none of this name, as far as the peer may know.
    pub fn seen_vnd(&self, peer: &Peer, zone: &str, name: &str) -> Result<&Vnd, ErrorBody> {
        let mut vnds = self.document.vnds.iter();
        let found = vnds.find(|vnd| vnd.is(zone, name));
        let seen = found.filter(|vnd| peer.sees_vnd(vnd, &self.document));
        seen.ok_or_else(|| no_such_vnd(zone, name))
    }

    fn views_of(&self, listed: Vec<Listed>) -> Vec<VndView> {
        let names: Vec<Name> = listed.iter().map(|l| l.vnd.vnic.clone()).collect();
        let statuses = self.statuses(&names);
        let views = listed.into_iter().zip(statuses);
        views
            .map(|(listed, status)| self.view_of(listed, status))
            .collect()
    }

    fn view_of(&self, listed: Listed, status: Status) -> VndView {
        let Listed { vnd, is_linked } = listed;
        let place = self.place(vnd.zone.name().map(Name::as_str));
        let socket = place.device(&vnd.name).display().to_string();
        let mtu = self.document.vnic(vnd.vnic.as_str()).map_or(0, Vnic::mtu);
        let (rxbuf, txbuf) = (vnd.rxbuf(), vnd.txbuf());
        VndView {
            name: is_linked.then_some(vnd.name),
            zone: vnd.zone,
            vnic: vnd.vnic,
            socket: is_linked.then_some(socket),
            status,
            rxbuf,
            txbuf,
            maxsize: MAXSIZE,
            mintu: MINTU,
            maxtu: maxtu(mtu),
            rx_slots: slots(rxbuf),
            tx_slots: slots(txbuf),
        }
    }

    /// The traffic of devices that the peer may see, of counters by VNIC.
    pub(super) fn vnd_stats(
        &self,
        peer: &Peer,
        counters: &HashMap<&Name, &Counters>,
    ) -> Vec<VndStats> {
        let listed = self.listed(peer);
        if listed.is_empty() {
            return Vec::new();
        }
        let names: Vec<Name> = listed.iter().map(|l| l.vnd.vnic.clone()).collect();
        let flow_controls = self.backend.flow_controls(&names);
        let none = Counters::default();
        let stats = listed.into_iter().zip(flow_controls).map(|(listed, txfc)| {
            let counters = counters.get(&listed.vnd.vnic).copied().unwrap_or(&none);
            VndStats {
                name: listed.is_linked.then_some(listed.vnd.name),
                zone: listed.vnd.zone,
                vnic: listed.vnd.vnic,
                device_rx_bytes: counters.tx_bytes,
                device_tx_bytes: counters.rx_bytes,
                drops: counters.rx_dropped + counters.tx_dropped,
                txfc,
            }
        });
        stats.collect()
    }
}

fn no_such_vnd(zone: &str, name: &str) -> ErrorBody {
    let cut = |text: &str| text.chars().take(64).collect::<String>();
    let (zone, name) = (cut(zone), cut(name));
    let label = format!("{zone}/{name}");
    VndError::NoDev { name, zone }.body(&label)
}
