//! Which members are captured.
//!
//! # Model
//! A [`Watch`] is entered at a member of the draft, and goes when that goes: the next member of its number has none.

use std::sync::Arc;

use super::{DataPlane, DataPlaneError};
use crate::capture::{Capture, WATCHES, Watch};

impl DataPlane {
    /// Captures a member. What comes after the topology is published is captured.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`]; [`DataPlaneError::Captures`]: it has as many of the kind as it may have.
    pub fn watch(&mut self, id: u16, watch: Watch) -> Result<(), DataPlaneError> {
        let member = self.draft_member(id)?;
        let others = member.watches.iter();
        let others = others.filter(|other| other.is_both == watch.is_both);
        if others.count() >= WATCHES / 2 {
            return Err(DataPlaneError::Captures);
        }
        member.watches.push(watch);
        self.publish_batch();
        Ok(())
    }

    /// Whether a member is captured so.
    pub fn is_watched(&self, id: u16, capture: &Arc<Capture>) -> bool {
        let member = self.members.get(usize::from(id)).and_then(Option::as_ref);
        let mut watches = member.into_iter().flat_map(|member| &member.watches);
        watches.any(|watch| Arc::ptr_eq(&watch.capture, capture))
    }

    /// Ends a capture at all its members. When this returns nothing more is captured, or a worker is late, or a batch is open.
    pub fn unwatch(&mut self, capture: &Arc<Capture>) {
        for member in self.members.iter_mut().flatten() {
            let watches = &mut member.watches;
            watches.retain(|watch| !Arc::ptr_eq(&watch.capture, capture));
        }
        if !self.is_batch {
            self.put_in_force();
        }
    }
}
