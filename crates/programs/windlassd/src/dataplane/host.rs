//! What the data plane asks of the host: control halves of attachments, and what there is to know of devices.
//!
//! # Model
//! The ports thread makes nothing on the host by itself: [`Host`] makes endpoints, and endpoints make the rest.
//! [`System`] is this machine; tests have one of their own, whose endpoints they drive.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use windlass_api::{Attachment, Uplink, Vnic};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::packet::{PacketConf, PacketEndpoint, Untakeable, release_stale};
use windlass_attach::tap::remove_strays;
use windlass_attach::veth;
use windlass_attach::xdp::XdpConf;
use windlass_shm::Quota;
use windlass_sys::shortcut::Hook;

use super::guest::RingProgress;
use super::translate;
use super::veth::Shortcuts;
use crate::backend::{BackendError, Place};
use crate::shares::Holders;

/// What is known of an interface of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its address as the low 48 bits of a little-endian load.
    pub mac: u64,
}

/// The host under the data plane. Making an endpoint has no effect on the host: that comes with its first poll.
pub trait Host: Send {
    /// The control half of a VNIC's attachment; none for a VNIC that nobody is attached to.
    ///
    /// # Errors
    /// A missing privilege; what can never be made as it is configured.
    fn vnic(
        &mut self,
        vnic: &Vnic,
        place: &Place,
    ) -> Result<Option<Box<dyn Endpoint>>, BackendError>;

    /// The control half of an uplink.
    ///
    /// # Errors
    /// A missing privilege; the interface is there and may not be taken.
    fn uplink(&mut self, uplink: &Uplink) -> Result<Box<dyn Endpoint>, BackendError>;

    /// The interface of that name, if it is there.
    fn device(&mut self, name: &str) -> Option<Device>;

    /// Removes what an earlier daemon left at interfaces other than those to be kept and of VNICs other than these, TAPs that
    /// were moved away since, and veths of VNICs that it was not asked for.
    fn release_others(&mut self, keep: &[String], is_vnic: &dyn Fn(&str) -> bool);
}

/// Shared mappings of a VNIC that nobody but operators makes: two tables of a guest with as many regions as QEMU has slots.
const MAPPINGS_PER_VNIC_MAX: u32 = 1024;

/// This machine.
pub struct System {
    workers: u16,
    state_id: String,
    progress: RingProgress,
    /// Where uplinks write down which rings VNICs have.
    records: PathBuf,
    mappings_per_uid_max: u32,
    /// With the mappings of the owners of zones.
    holders: Holders,
    /// Until the first of [`Host::release_others`].
    marks: Option<Marks>,
    shortcuts: Shortcuts,
}

/// The marks that interfaces of VNICs bear.
#[derive(Default)]
struct Marks {
    /// Of TAPs, with their namespaces.
    taps: HashMap<String, Option<String>>,
    veths: HashSet<String>,
}

impl System {
    /// The host of a daemon with so many workers; `state_id` stands for the daemon in marks on the host;
    /// `mappings_per_uid_max`: shared mappings of all peers in zones of one owner; `shortcut`: where programs of veths may be, the best
    /// first.
    pub fn new(
        workers: u16,
        state_id: String,
        progress: RingProgress,
        runtime_dir: &Path,
        holders: Holders,
        mappings_per_uid_max: u32,
        shortcut: Vec<Hook>,
    ) -> System {
        System {
            workers,
            state_id,
            progress,
            records: runtime_dir.join("uplinks"),
            mappings_per_uid_max,
            holders,
            marks: Some(Marks::default()),
            shortcuts: Shortcuts::new(shortcut),
        }
    }

    /// What the peer of a VNIC there may map: an owner's VNICs count together, an operator's each for itself. Pages of 1 GiB
    /// are for the latter, unless `huge-1g` says otherwise.
    fn quota(&self, vnic: &Vnic, place: &Place) -> Quota {
        let quota = match place.owner {
            Some((uid, _)) => Quota::within(self.holders.mappings(uid, self.mappings_per_uid_max)),
            None => Quota::new(MAPPINGS_PER_VNIC_MAX),
        };
        quota.allow_gigantic_pages(translate::gigantic_pages(
            &vnic.settings(),
            place.owner.is_some(),
        ));
        quota
    }

    fn packet_conf(&self, uplink: &Uplink) -> PacketConf {
        PacketConf {
            device: uplink.device.as_str().to_owned(),
            share: uplink.share,
            queues: uplink.attach.queues().min(self.workers).max(1),
            mark: self.filter_mark(),
            xdp: match &uplink.attach {
                Attachment::Xdp(xdp) => Some(XdpConf {
                    zero_copy: xdp.zero_copy,
                    busy_poll_us: xdp.busy_poll_us,
                }),
                _ => None,
            },
            records: self.records.clone(),
        }
    }

    /// What the names of this daemon's packet filters start with.
    fn filter_mark(&self) -> String {
        format!("windlass-{}", self.state_id)
    }
}

impl Host for System {
    fn vnic(
        &mut self,
        vnic: &Vnic,
        place: &Place,
    ) -> Result<Option<Box<dyn Endpoint>>, BackendError> {
        if let Some(marks) = &mut self.marks {
            let mark = translate::tap_mark(&self.state_id, &vnic.name);
            match &vnic.attach {
                Attachment::Tap(tap) => {
                    let netns = tap.netns.as_ref().map(|netns| netns.as_str().to_owned());
                    marks.taps.insert(mark, netns);
                }
                Attachment::Veth(_) => {
                    marks.veths.insert(mark);
                }
                _ => {}
            }
        }
        let quota = self.quota(vnic, place);
        translate::endpoint(
            vnic,
            place,
            self.workers,
            &self.state_id,
            &self.progress,
            &mut self.shortcuts,
            quota,
        )
    }

    fn uplink(&mut self, uplink: &Uplink) -> Result<Box<dyn Endpoint>, BackendError> {
        use windlass_sys::caps::{Capability, holds};
        for (capability, name) in [
            (Capability::NetRaw, "CAP_NET_RAW"),
            (Capability::NetAdmin, "CAP_NET_ADMIN"),
        ] {
            if !holds(capability) {
                return Err(BackendError::Unsupported(format!(
                    "an uplink needs {name}: start windlassd with it"
                )));
            }
        }
        let conf = self.packet_conf(uplink);
        if self.device(&conf.device).is_some() {
            PacketEndpoint::check(&conf).map_err(|why| match why {
                Untakeable::InUse(sentence) => BackendError::InUse(sentence),
                Untakeable::Unfit(sentence) => BackendError::Unsupported(sentence),
            })?;
        }
        match PacketEndpoint::new(conf) {
            Ok(endpoint) => Ok(Box::new(endpoint)),
            Err(errno) => Err(BackendError::Host(format!(
                "uplink `{}`: {errno}",
                uplink.name
            ))),
        }
    }

    fn device(&mut self, name: &str) -> Option<Device> {
        translate::device(name)
    }

    fn release_others(&mut self, keep: &[String], is_vnic: &dyn Fn(&str) -> bool) {
        release_stale(&self.filter_mark(), &self.records, keep);
        self.progress.remove_stale(is_vnic);
        let Some(Marks { taps, veths }) = self.marks.take() else {
            return;
        };
        // Programs of the daemon before are there: they pass what it allowed.
        match veth::remove_others(&translate::tap_marks(&self.state_id), &veths) {
            Ok(0) => {}
            Ok(removed) => tracing::info!("{removed} veths of VNICs that are no more: removed"),
            Err(error) => tracing::warn!("veths of VNICs that are no more stay: {error}"),
        }
        self.shortcuts.set_left(veths);
        if taps.is_empty() {
            return;
        }
        // It looks into every namespace that has a name, and nobody waits for it.
        let look = move || match remove_strays(&taps) {
            0 => {}
            removed => tracing::info!("{removed} TAPs were moved while no daemon ran: removed"),
        };
        let thread = std::thread::Builder::new().name("strays".into());
        if let Err(error) = thread.spawn(look) {
            tracing::warn!("TAPs that were moved stay: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 1 GiB are for VNICs outside zones and for those with `huge-1g=on`, and for none with `huge-1g=off`.
    #[test]
    fn gigantic_pages_are_for_some() {
        let nowhere = Path::new("/nonexistent");
        let progress = RingProgress::new(nowhere, nowhere, "test");
        let system = System::new(
            1,
            "test".into(),
            progress,
            nowhere,
            Holders::default(),
            8,
            vec![],
        );
        let allows = |owner: Option<(u32, u32)>, huge: Option<bool>| {
            let properties = serde_json::json!({"huge-1g": huge});
            let mut vnic = serde_json::json!({"name": "v", "bridge": "b"});
            if huge.is_some() {
                vnic["properties"] = properties;
            }
            let vnic: Vnic = serde_json::from_value(vnic).unwrap();
            let place = Place {
                directory: "/run/zone".into(),
                devices: "/run/vnd".into(),
                owner,
                rules: "".into(),
            };
            system.quota(&vnic, &place).allows_gigantic_pages()
        };
        let owner = Some((1000, 1000));
        let found =
            [None, Some(true), Some(false)].map(|huge| (allows(None, huge), allows(owner, huge)));
        assert_eq!(found, [(true, false), (true, true), (false, false)]);
    }
}
