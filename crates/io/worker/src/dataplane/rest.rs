//! Having the workers leave the rings alone.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{DataPlane, DataPlaneError};
use crate::command::Command;

impl DataPlane {
    /// Has the workers fetch nothing more from any ring, and send what lies in their private memory. What does after `patience`
    /// is dropped, as `peer-down`; how many frames. From then on no ring is read or written until [`DataPlane::go_on`], and the
    /// counters of members stand still.
    ///
    /// # Errors
    /// [`DataPlaneError::Stuck`]: a worker is late; the others rest.
    pub fn rest(&mut self, patience: Duration) -> Result<u64, DataPlaneError> {
        if self.is_late {
            return Err(DataPlaneError::Stuck);
        }
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let told: Vec<_> = (self.workers.iter())
            .map(|worker| {
                let (done, rests) = sync_channel(1);
                worker.send(Command::Rest { patience_ns, done });
                (worker, rests)
            })
            .collect();
        let dropped = told
            .iter()
            .map(|(worker, rests)| self.answer(worker, rests));
        dropped.sum()
    }

    /// Ends [`DataPlane::rest`].
    pub fn go_on(&mut self) {
        for worker in &self.workers {
            worker.send(Command::GoOn);
        }
    }
}
