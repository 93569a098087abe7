//! Captures: what each is of, and when it ends.
//!
//! # Model
//! A capture of a member ends when that is deleted, also if one of the same name is made in the same edit: the new one may be another
//! tenant's. It goes along when the member moves to another bridge. A tenant's ends when the zone of its VNIC gets another owner. A
//! capture of a bridge has all members that there are and come, each with a number of its own, and ends with the bridge.
//!
//! # What can be lost
//! Nothing is captured of a member that is not the capture's: the topology that lacks the capture is published before, or together with, what ends it.

use std::sync::Arc;

use windlass_api::{CaptureDirection, CaptureEnd, CaptureKind, Name};
use windlass_capture::ring::{Kind, Memory, PORTS, Shape};
use windlass_worker::{Capture, Points, Watch};

use super::{Ports, failed};
use crate::backend::{BackendError, CaptureMade, CaptureWanted};

/// Captures in all.
const CAPTURES_MAX: usize = 64;

/// One that has begun.
struct Active {
    link: Name,
    kind: CaptureKind,
    /// The bridge's number.
    bridge: Option<u16>,
    tenant: Option<u32>,
    capture: Arc<Capture>,
    memory: Arc<Memory>,
    /// The number of the next member.
    next: u16,
}

impl Active {
    /// The number of one more member, whose name the reader finds.
    fn port(&mut self, name: &Name, kind: Kind) -> u16 {
        let port = self.next.min(PORTS - 1);
        self.next = port + 1;
        self.memory.name(port, kind, name.as_str());
        port
    }
}

/// All captures.
#[derive(Default)]
pub(super) struct Captures(Vec<Active>);

impl Ports {
    /// How the memory of a capture is divided.
    pub fn capture_shape(&self, ring_bytes: u32) -> Result<Shape, BackendError> {
        let shape = Shape {
            workers: self.cores.len() as u32,
            ring_bytes,
        };
        let checked = shape.check();
        checked.map_err(|error| BackendError::Limit(error.to_string()))
    }

    /// Begins a capture.
    pub fn start_capture(&mut self, wanted: CaptureWanted) -> Result<CaptureMade, BackendError> {
        if self.captures.0.len() >= CAPTURES_MAX {
            let message = format!("all {CAPTURES_MAX} captures are in use");
            return Err(BackendError::Limit(message));
        }
        let is_bridge = wanted.kind == CaptureKind::Bridge;
        let (is_in, is_out) = match wanted.direction {
            _ if is_bridge => (true, true),
            CaptureDirection::In => (true, false),
            CaptureDirection::Out => (false, true),
            CaptureDirection::InOut => (true, true),
        };
        // What an uplink's peer, the network, sends is what the host receives there.
        let is_uplink = self.kind_of(&wanted.link) == Kind::Uplink;
        let (from, to) = if is_uplink {
            (is_in, is_out)
        } else {
            (is_out, is_in)
        };
        let points = Points {
            from,
            to: to && !is_bridge,
            drops: wanted.drops,
        };
        let how = (wanted.filter, wanted.snap, points);
        let capture = Capture::new(how, &wanted.memory, wanted.reader);
        let bridge = self.bridges.get(&wanted.link).filter(|_| is_bridge);
        let active = Active {
            bridge: bridge.map(|bridge| bridge.id),
            link: wanted.link,
            kind: wanted.kind,
            tenant: wanted.tenant,
            capture: Arc::new(capture),
            memory: wanted.memory,
            next: 0,
        };
        let capture = active.capture.clone();
        self.captures.0.push(active);
        // All of them, or none.
        self.plane.begin_batch();
        let begun = self.capture_all(&capture);
        if begun.is_err() {
            self.plane.unwatch(&capture);
            self.captures.0.pop();
        }
        self.plane.end_batch();
        begun.map(|()| CaptureMade {
            capture,
            kind: wanted.kind,
        })
    }

    /// Enters a capture, which is the last, at the members that it is of.
    fn capture_all(&mut self, capture: &Arc<Capture>) -> Result<(), BackendError> {
        let Some(active) = self.captures.0.last_mut() else {
            return Ok(());
        };
        tell_time(capture);
        let names: Vec<Name> = match active.kind {
            CaptureKind::Member => vec![active.link.clone()],
            CaptureKind::Bridge => self.members.on_bridge(&active.link).into_iter().collect(),
        };
        for name in names {
            let Some(member) = self.members.get(&name) else {
                let message = format!("the data plane has no member `{name}`");
                return Err(BackendError::Host(message));
            };
            let kind = kind_of(member.device.is_some());
            let watch = Watch {
                capture: capture.clone(),
                port: active.port(&name, kind),
                is_both: active.kind == CaptureKind::Member,
            };
            self.plane.watch(member.id, watch).map_err(failed)?;
        }
        Ok(())
    }

    fn kind_of(&self, name: &Name) -> Kind {
        let member = self.members.get(name);
        kind_of(member.is_some_and(|member| member.device.is_some()))
    }

    /// Enters a member that was just made at those captures that it belongs to.
    pub(super) fn capture_new(&mut self, name: &Name) {
        let Some(member) = self.members.get(name) else {
            return;
        };
        let bridge = self.bridges.get(&member.bridge).map(|bridge| bridge.id);
        let is_moving = self.edit.moves(name);
        let kind = kind_of(member.device.is_some());
        for active in &mut self.captures.0 {
            let is_its = match active.kind {
                CaptureKind::Member => active.link == *name && is_moving,
                CaptureKind::Bridge => active.bridge == bridge,
            };
            if !is_its {
                continue;
            }
            let is_both = active.kind == CaptureKind::Member;
            let watch = Watch {
                capture: active.capture.clone(),
                port: if is_both { 0 } else { active.port(name, kind) },
                is_both,
            };
            if let Err(error) = self.plane.watch(member.id, watch) {
                tracing::error!("{name} is not captured: {error}");
            }
        }
    }

    /// Ends captures whose link is gone.
    pub(super) fn end_captures(&mut self) {
        self.end_those("it is gone", |ports, active| match active.kind {
            CaptureKind::Member => {
                let member = ports.members.get(&active.link);
                !member.is_some_and(|member| ports.plane.is_watched(member.id, &active.capture))
            }
            CaptureKind::Bridge => {
                let bridge = ports.bridges.get(&active.link).map(|bridge| bridge.id);
                bridge != active.bridge
            }
        });
    }

    /// Ends captures of tenants at VNICs that are to be another user's.
    pub(super) fn end_captures_of(&mut self, vnics: &[Name], uid: u32) {
        self.end_those("its zone has another owner", |_, active| {
            active.tenant.is_some_and(|tenant| tenant != uid) && vnics.contains(&active.link)
        });
    }

    /// Ends a capture; nothing if it has ended.
    pub fn end_capture(&mut self, capture: &Arc<Capture>) {
        self.end_those("its reader is gone", |_, active| {
            Arc::ptr_eq(&active.capture, capture)
        });
    }

    fn end_those(&mut self, why: &str, ends: impl Fn(&Ports, &Active) -> bool) {
        let all = std::mem::take(&mut self.captures.0);
        let (ended, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| ends(self, a));
        self.captures.0 = left;
        for active in ended {
            self.plane.unwatch(&active.capture);
            let end = CaptureEnd {
                ended: format!("{}: {why}", active.link),
            };
            active
                .capture
                .tell_end(&serde_json::to_string(&end).unwrap_or_default());
        }
    }
}

fn kind_of(has_device: bool) -> Kind {
    if has_device { Kind::Uplink } else { Kind::Vnic }
}

/// Looks at the two clocks, of which the quickest counts: between the two this thread may lose its core.
const LOOKS: usize = 8;

/// Tells a capture the time of day.
pub(crate) fn tell_time(capture: &Capture) {
    use windlass_worker::dataplane::now;
    let looks = (0..LOOKS).map(|_| (now(), wall_ns(), now()));
    let quickest = looks.min_by_key(|(before, _, after)| after.since(*before));
    if let Some((before, wall_ns, _)) = quickest {
        capture.set_clock(before, wall_ns);
    }
}

/// Nanoseconds since 1970.
fn wall_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}
