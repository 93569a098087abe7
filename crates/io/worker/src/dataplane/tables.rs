//! The control side of bridges' tables: their writers live with the workers.

use std::sync::mpsc as std_mpsc;

use windlass_bridge::fdb::{Entry, Fdb, FdbCounts, FdbWriter, Limits};
use windlass_frame::Tick;

use super::{DataPlane, DataPlaneError, now};
use crate::command::Command;
use crate::grace::QsbrGrace;

impl DataPlane {
    /// A new, empty table, of no bridge yet: for [`DataPlane::set_bridge`].
    pub fn new_table(&self, limits: Limits) -> FdbWriter<QsbrGrace> {
        let limits = Limits {
            members: self.members_max as u32,
            ..limits
        };
        Fdb::new(limits, QsbrGrace::new(self.shared.domain.clone())).1
    }

    /// Makes a worker the home of a bridge's table, in the place of a former one.
    pub(super) fn give_home(&self, bridge: u16, mut writer: FdbWriter<QsbrGrace>) {
        if let Some(places) = self.overlays.admitted(bridge) {
            writer.admit_beyond(places);
        }
        self.home(bridge).send(Command::Home {
            bridge,
            writer: Box::new(writer),
        });
    }

    /// What was still seen by the former rules is not to stay in new tables. A late worker's ages out.
    pub(super) fn forget_former(&mut self) {
        let bridges = std::mem::take(&mut self.refilled);
        if bridges.is_empty() || self.is_draining() {
            return;
        }
        for bridge in bridges {
            // One that has been removed has nothing to forget.
            let _ = self.ask_fdb(bridge, |writer, _| writer.flush_all());
        }
    }

    /// Has the table's writer do something, some time soon.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb(
        &self,
        bridge: u16,
        work: impl FnOnce(&mut FdbWriter<QsbrGrace>, Tick) + Send + 'static,
    ) -> Result<(), DataPlaneError> {
        self.bridge_of(bridge)?;
        self.home(bridge).send(Command::Fdb {
            bridge,
            work: Box::new(work),
        });
        Ok(())
    }

    /// Has the table's writer do something, and waits for the answer.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`], [`DataPlaneError::Stuck`].
    pub fn ask_fdb<T: Send + 'static>(
        &self,
        bridge: u16,
        work: impl FnOnce(&mut FdbWriter<QsbrGrace>, Tick) -> T + Send + 'static,
    ) -> Result<T, DataPlaneError> {
        let (done, answer) = std_mpsc::sync_channel(1);
        self.fdb(bridge, move |writer, now| {
            let _ = done.send(work(writer, now));
        })?;
        self.answer(self.home(bridge), &answer)
    }

    /// The entries of a bridge's table, read beside the workers.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_entries(&self, bridge: u16) -> Result<Vec<Entry>, DataPlaneError> {
        let mut entries = Vec::new();
        self.bridge_of(bridge)?
            .fdb
            .for_each(now(), |entry| entries.push(entry));
        Ok(entries)
    }

    /// A bridge's table.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_table(&self, bridge: u16) -> Result<&Fdb, DataPlaneError> {
        Ok(&self.bridge_of(bridge)?.fdb)
    }

    /// The table's own counters.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_counts(&self, bridge: u16) -> Result<FdbCounts, DataPlaneError> {
        Ok(self.bridge_of(bridge)?.fdb.counts())
    }
}
