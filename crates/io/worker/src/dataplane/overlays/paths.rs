//! How tunnel endpoints are, and what the paths to their targets take.
//!
//! # Model
//! The kernel knows the MTU of each path: from its devices, and for ten minutes from what routers said. A datagram that was too long is
//! reported by it; from then on the path is looked at, every second where there are few such paths, and its targets take no longer packets
//! until it has recovered. So a guest is told the right size like that of any other narrow link.

use std::net::IpAddr;
use std::sync::Arc;

use windlass_attach::vxlan::{Group, Trouble};
use windlass_frame::Tick;
use windlass_sys::Errno;

use super::super::{DataPlane, DataPlaneError, now};
use super::{DraftVtep, Overlays, VtepState};

/// For how long a trouble is told after it was last heard of.
const TROUBLE_NS: u64 = 60_000_000_000;
/// Narrow paths that are looked at together.
const LOOKS: usize = 64;

/// A path that is shorter than targets were given.
pub(super) struct Path {
    /// What it takes, in bytes.
    mtu: u32,
    looked: Option<Tick>,
}

/// Bytes that a tunnel adds to an inner packet: an Ethernet, a VXLAN, a UDP and an IP header.
fn overhead(to: IpAddr) -> u32 {
    match to {
        IpAddr::V4(_) => 50,
        IpAddr::V6(_) => 70,
    }
}

impl DraftVtep {
    /// Takes what was said of datagrams.
    fn hear(&mut self, now: Tick) {
        for trouble in self.vtep.take_troubles() {
            let Trouble { to, errno, mtu } = trouble;
            if errno == Errno::MSGSIZE {
                self.paths.insert(to, Path { mtu, looked: None });
                continue;
            }
            self.troubles.retain(|(known, _)| !known.is_like(&trouble));
            self.troubles.push((trouble, now));
        }
        let vtep = &self.vtep;
        self.troubles.retain(|(trouble, at)| {
            // Where it is the way that was missing, the kernel says at once that there is one again.
            let is_way = matches!(trouble.errno, Errno::NETUNREACH | Errno::INVAL);
            let is_over = is_way && vtep.path_mtu(trouble.to).is_ok();
            now.since(*at) < TROUBLE_NS && !is_over
        });
    }

    /// Looks at paths, those first that were not looked at for longest; what they take.
    fn look(&mut self, now: Tick) -> Vec<(IpAddr, u32)> {
        let mut paths: Vec<_> = self.paths.iter_mut().collect();
        paths.sort_by_key(|(_, path)| path.looked);
        let looked = paths.into_iter().take(LOOKS).map(|(to, path)| {
            path.looked = Some(now);
            path.mtu = self.vtep.path_mtu(*to).unwrap_or(path.mtu);
            (*to, path.mtu)
        });
        looked.collect()
    }
}

impl Overlays {
    /// Targets at an address take what the path does. Whether that changes one, and whether it is narrow for one.
    fn set_path(&mut self, vtep: usize, to: IpAddr, mtu: u32) -> (bool, bool) {
        let inner = u16::try_from(mtu.saturating_sub(overhead(to))).unwrap_or(u16::MAX);
        let (vtep, overlays) = (&self.vteps[vtep].vtep, &self.overlays);
        let (mut is_other, mut is_narrow) = (false, false);
        let its = self.targets.iter_mut().flatten().filter(|target| {
            let overlay = overlays.get(&target.overlay);
            target.tuning.to.ip() == to
                && overlay.is_some_and(|o| Arc::ptr_eq(&o.tuning.vtep, vtep))
        });
        for target in its {
            let path_mtu = Some(inner).filter(|inner| *inner < target.tuning.mtu);
            is_other |= target.path_mtu != path_mtu;
            is_narrow |= path_mtu.is_some();
            target.path_mtu = path_mtu;
        }
        (is_other, is_narrow)
    }
}

impl DataPlane {
    /// Follows what paths take, and joins groups that could not be joined, or whose link has the endpoint's address no more. To be called every second.
    ///
    /// # Errors
    /// [`DataPlaneError::Stuck`].
    pub fn follow_paths(&mut self) -> Result<(), DataPlaneError> {
        let (now, mut is_other) = (now(), false);
        for at in 0..self.overlays.vteps.len() {
            let draft = &mut self.overlays.vteps[at];
            if draft.group.is_some() {
                continue;
            }
            draft.hear(now);
            for (to, mtu) in draft.look(now) {
                let (changes, is_narrow) = self.overlays.set_path(at, to, mtu);
                is_other |= changes;
                if !is_narrow {
                    self.overlays.vteps[at].paths.remove(&to);
                }
            }
        }
        if is_other {
            self.publish_batch();
        }
        let lost = |v: &DraftVtep| v.group.as_ref().is_some_and(|group| !group.is_joined());
        while let Some(at) = self.overlays.vteps.iter().position(lost) {
            self.remove_vtep(at)?;
        }
        self.settle_groups();
        Ok(())
    }

    /// Has workers the rings of the groups that targets are, and of no other. What fails is tried again by [`DataPlane::follow_paths`].
    pub(super) fn settle_groups(&mut self) {
        let mut targets = self.overlays.targets.iter().flatten();
        let mut known = self.overlays.vteps.iter();
        let is_any = targets.any(|t| t.group().is_some()) || known.any(|v| v.group.is_some());
        if is_any {
            let _ = self.settle_vteps();
        }
    }

    /// How each tunnel endpoint in use is.
    pub fn vtep_states(&mut self) -> Vec<VtepState> {
        let now = now();
        let endpoints = |v: &&mut DraftVtep| v.group.is_none();
        for draft in self.overlays.vteps.iter_mut().filter(endpoints) {
            draft.hear(now);
        }
        let drafts = self.overlays.vteps.iter().filter(|v| v.group.is_none());
        drafts
            .map(|draft| self.overlays.state(draft, now))
            .collect()
    }
}

impl Overlays {
    fn state(&self, draft: &DraftVtep, now: Tick) -> VtepState {
        let vtep = &draft.vtep;
        let local = vtep.conf().local;
        let mut troubles = Vec::new();
        // To an address of its own a host has a path.
        if vtep.path_mtu(local.ip()).is_err() {
            troubles.push(format!("this host does not have {} now", local.ip()));
        }
        let joined = |group| {
            let mut vteps = self.vteps.iter();
            vteps.any(|v| {
                Arc::ptr_eq(&v.vtep, vtep) && v.group.as_ref().map(Group::address) == Some(group)
            })
        };
        let its = self
            .targets()
            .filter(|(.., o)| Arc::ptr_eq(&o.tuning.vtep, vtep));
        let groups = its.filter_map(|(_, target, _)| target.group());
        let missing = groups.filter(|group| !joined(*group));
        troubles.extend(missing.map(|group| format!("the group {group} is not joined")));
        let said = draft.troubles.iter().map(|(trouble, _)| {
            let Trouble { to, errno, .. } = trouble;
            format!("{to}: {}", std::io::Error::from(*errno))
        });
        troubles.extend(said);
        let paths = draft.paths.iter();
        troubles.extend(
            paths.map(|(to, path)| format!("{to}: the path takes packets of {} bytes", path.mtu)),
        );
        if vtep.is_uncut(now) {
            let why = "the device cannot cut datagrams: each is sent in a call of its own";
            troubles.push(why.into());
        }
        let [headers, strangers] = vtep.refused();
        let overlays = self.overlays.iter();
        let overlays = overlays.filter(|(_, o)| Arc::ptr_eq(&o.tuning.vtep, vtep));
        VtepState {
            local,
            overlays: overlays.map(|(id, _)| *id).collect(),
            troubles,
            headers,
            strangers,
            relayed: vtep.relayed(),
        }
    }
}
