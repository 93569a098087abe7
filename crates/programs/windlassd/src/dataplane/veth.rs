//! VNICs with a veth: the shortcut that they share.
//!
//! # Model
//! The first VNIC with a veth has the maps made that all share, and the place for programs chosen: the first of those that the daemon's
//! options name and the kernel has. Where there is none, or the kernel refuses the maps, a VNIC gets a TAP in the namespace instead,
//! and says so.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use windlass_api::{Veth, Vnic};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::tap::{TapConf, TapEndpoint};
use windlass_attach::veth::{VethConf, VethEndpoint};
use windlass_sys::shortcut::{Hook, Shortcut, Slot};

use super::translate;
use crate::backend::BackendError;

/// The maps of the daemon's veths, once there is one.
pub struct Shortcuts {
    /// Those that may be used, the best first.
    hooks: Vec<Hook>,
    /// The first that the kernel has, once somebody has looked.
    hook: OnceCell<Option<Hook>>,
    maps: Option<Arc<Shortcut>>,
    /// The marks of veths that a daemon before may have made; before they are known, all may be of one.
    left: Option<HashSet<String>>,
}

impl Shortcuts {
    /// With the programs at one of these places.
    pub(super) fn new(hooks: Vec<Hook>) -> Shortcuts {
        Shortcuts {
            hooks,
            hook: OnceCell::new(),
            maps: None,
            left: None,
        }
    }

    /// No veth of another mark than these is a former daemon's.
    pub(super) fn set_left(&mut self, marks: HashSet<String>) {
        self.left = Some(marks);
    }

    fn hook(&self) -> Result<Hook, String> {
        let first = || self.hooks.iter().copied().find(|hook| hook.is_there());
        self.hook.get_or_init(first).ok_or_else(|| {
            let hooks: Vec<_> = self.hooks.iter().map(Hook::to_string).collect();
            match hooks.is_empty() {
                true => "the daemon's option `shortcut` is off".into(),
                false => format!("the kernel has no {}", hooks.join(" and no ")),
            }
        })
    }

    /// A slot for one more member, and where its programs are.
    fn slot(&mut self) -> Result<(Slot, Hook), String> {
        let hook = self.hook()?;
        let maps = match &self.maps {
            Some(maps) => maps.clone(),
            None => {
                let made = Shortcut::new().map_err(|error| error.to_string())?;
                self.maps.insert(Arc::new(made)).clone()
            }
        };
        let slot = maps.slot().map_err(|error| error.to_string())?;
        Ok((slot, hook))
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
    let left = shortcuts.left.as_ref();
    let may_be_left = left.is_none_or(|marks| marks.contains(&mark));
    match shortcuts.slot() {
        Ok((slot, hook)) => {
            let conf = VethConf {
                name,
                netns,
                mark,
                hook,
                interface,
            };
            let endpoint = VethEndpoint::new(conf, slot, may_be_left).map_err(refused)?;
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
