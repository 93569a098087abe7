//! VNICs with a veth: the shortcut that they share.
//!
//! # Model
//! The first VNIC with a veth has the maps made that all share. Where the kernel has no place for the programs, or refuses them, a VNIC
//! gets a TAP in the namespace instead, and says so.

use std::sync::Arc;

use windlass_api::{Veth, Vnic};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::tap::{TapConf, TapEndpoint};
use windlass_attach::veth::{VethConf, VethEndpoint};
use windlass_sys::bpf;
use windlass_sys::shortcut::{Shortcut, Slot};

use super::translate;
use crate::backend::BackendError;

/// The maps of the daemon's veths, once there is one.
#[derive(Default)]
pub struct Shortcuts(Option<Arc<Shortcut>>);

impl Shortcuts {
    /// A slot for one more member.
    fn slot(&mut self) -> Result<Slot, String> {
        if !bpf::has_places() {
            return Err("the kernel has no tcx (Linux 6.6)".into());
        }
        let maps = match &self.0 {
            Some(maps) => maps.clone(),
            None => {
                let made = Shortcut::new().map_err(|error| error.to_string())?;
                self.0.insert(Arc::new(made)).clone()
            }
        };
        maps.slot().map_err(|error| error.to_string())
    }
}

/// The control half of a veth.
///
/// # Errors
/// What the host refuses at once.
pub(super) fn endpoint(
    vnic: &Vnic,
    veth: &Veth,
    shortcuts: &mut Shortcuts,
    state_id: &str,
) -> Result<Box<dyn Endpoint>, BackendError> {
    translate::may_make_interfaces()?;
    let name = translate::interface_name(vnic, veth.ifname(&vnic.name))?;
    let netns = veth.netns.as_str().to_owned();
    let mark = translate::tap_mark(state_id, &vnic.name);
    let interface = translate::interface(vnic);
    let refused = |errno| BackendError::Host(format!("veth of `{}`: {errno}", vnic.name));
    match shortcuts.slot() {
        Ok(slot) => {
            let conf = VethConf {
                name,
                netns,
                mark,
                interface,
            };
            let endpoint = VethEndpoint::new(conf, slot).map_err(refused)?;
            Ok(Box::new(endpoint))
        }
        Err(why) => {
            let conf = TapConf {
                name,
                netns: Some(netns),
                queues: 1,
                multi_queue: false,
                mark,
                interface,
            };
            let endpoint = TapEndpoint::in_place_of_veth(conf, why).map_err(refused)?;
            Ok(Box::new(endpoint))
        }
    }
}
