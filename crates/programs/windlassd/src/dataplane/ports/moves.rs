//! Rings and tables that are moved from worker to worker.

use windlass_api::{BridgePlace, Name};

use super::{Ports, failed};
use crate::backend::BackendError;

impl Ports {
    pub fn bridge_place(&self, name: &Name) -> BridgePlace {
        let Some(bridge) = self.bridges.get(name) else {
            return BridgePlace::default();
        };
        BridgePlace {
            home: Some(self.plane.placement().home(bridge.id)),
            workers: self.plane.serving(bridge.id).into_iter().collect(),
        }
    }

    /// Moves a ring or all rings of a member, or none.
    pub fn move_rings(
        &mut self,
        name: &Name,
        ring: Option<u16>,
        worker: u16,
    ) -> Result<u16, BackendError> {
        let Some(id) = self.members.get(name).map(|member| member.id) else {
            let missing = format!("the data plane has no member `{name}`");
            return Err(BackendError::Host(missing));
        };
        let before = self.plane.rings(id).to_vec();
        if before.is_empty() {
            let nobody = format!("`{name}` has no rings: nobody is attached");
            return Err(BackendError::Host(nobody));
        }
        let rings = ring.map_or(0..before.len() as u16, |ring| ring..ring.saturating_add(1));
        let mut moved = Vec::new();
        for ring in rings {
            let former = before.get(usize::from(ring)).copied();
            if let Err(error) = self.plane.move_ring(id, ring, worker) {
                for (ring, former) in moved {
                    if let Err(error) = self.plane.move_ring(id, ring, former) {
                        tracing::error!(
                            "ring {ring} of {name} stays with worker {worker}: {error}"
                        );
                    }
                }
                self.sink.changed(name);
                return Err(failed(error));
            }
            moved.extend(former.filter(|former| *former != worker).map(|f| (ring, f)));
        }
        self.sink.changed(name);
        Ok(moved.len() as u16)
    }

    pub fn move_table(&mut self, name: &Name, worker: u16) -> Result<u16, BackendError> {
        let bridge = self.bridge(name)?.id;
        let former = self.plane.placement().home(bridge);
        self.plane.move_home(bridge, worker).map_err(failed)?;
        Ok(u16::from(former != worker))
    }
}
