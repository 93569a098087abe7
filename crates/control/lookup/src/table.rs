//! What is known of an overlay's endpoints on other hosts.
//!
//! # Model
//! One record for each (VNI, MAC address). Sources change it by [`Table::push`] and [`Table::withdraw`], or bring all of it
//! between [`Table::sync_begin`] and [`Table::sync_end`]: what they did not bring goes at the end, never at the beginning. What has
//! changed since the last look is taken with [`Table::take_changes`]: whatever way a record came, only a difference is told.
//!
//! # Ownership and lifetime
//! A [`Record`] never changes. The table and those who were told of it share it: a daemon may know 100,000 of them.
//!
//! # Failure modes
//! A source that ends in the middle of a sync takes nothing away ([`Table::abort_syncs`]). A record beyond [`ENTRIES_MAX`], or twice as
//! many during a sync, is refused; those that are there stay.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use thiserror::Error;
use windlass_wire::MacAddr;

use crate::protocol::{Entry, Withdrawn};

/// Records of an overlay.
pub const ENTRIES_MAX: usize = 131_072;
/// The same during a sync: those that come are there beside those that go at its end.
const SYNCED_MAX: usize = 2 * ENTRIES_MAX;

/// Where an endpoint is, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where its frames are sent.
    pub target: SocketAddr,
    /// Its IP addresses.
    pub ips: Box<[IpAddr]>,
    /// Its DHCP server.
    pub dhcp: Option<MacAddr>,
    /// The host that announced it; the registry's name.
    pub host: Option<Box<str>>,
    /// Which of two records of one endpoint is the later one. 0 where the source counts none.
    pub generation: u64,
}

/// Records that are new, changed or, with `None`, gone.
pub type Changes = Vec<(MacAddr, Option<Arc<Record>>)>;

/// Why a source's message is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// There is no room.
    #[error("more than {ENTRIES_MAX} endpoints")]
    Full,
    /// The VNI is another overlay's, or nobody's.
    #[error("VNI {0} is not one of this overlay's")]
    Foreign(u32),
    /// `sync-end` without its `sync-begin`.
    #[error("the end of a sync that has not begun")]
    NotBegun,
}

#[derive(Debug)]
struct Slot {
    record: Arc<Record>,
    /// The sync in which it was brought last, by [`Table::syncs`].
    seen: u64,
}

/// The records of one overlay.
#[derive(Debug, Default)]
pub struct Table {
    vnis: BTreeSet<u32>,
    slots: HashMap<(u32, MacAddr), Slot>,
    /// What [`Table::take_changes`] has not given.
    changed: BTreeSet<(u32, MacAddr)>,
    /// How many syncs have begun.
    syncs: u64,
    /// Those that have not ended, by what they bring all of: a VNI, or each. With the number of each.
    open: BTreeMap<Option<u32>, u64>,
}

impl Table {
    /// Has these VNIs from now on. Records of others go.
    pub fn set_vnis(&mut self, vnis: impl IntoIterator<Item = u32>) {
        let vnis: BTreeSet<_> = vnis.into_iter().collect();
        self.remove_if(|vni, _| !vnis.contains(&vni));
        self.open
            .retain(|vni, _| vni.is_none_or(|vni| vnis.contains(&vni)));
        self.vnis = vnis;
    }

    /// Records.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The record of an endpoint.
    pub fn get(&self, vni: u32, mac: MacAddr) -> Option<&Record> {
        self.slots.get(&(vni, mac)).map(|slot| &*slot.record)
    }

    /// Takes an endpoint as a plugin pushes it.
    ///
    /// # Errors
    /// [`TableError::Foreign`], [`TableError::Full`].
    pub fn push(&mut self, entry: Entry) -> Result<(), TableError> {
        let record = Record {
            target: entry.target.into(),
            // A copy has the size that it needs, in what an earlier one left.
            ips: entry.ips.as_slice().into(),
            dhcp: entry.dhcp,
            host: entry.host.as_deref().map(Box::from),
            generation: entry.generation,
        };
        self.put(entry.vni, entry.mac, Arc::new(record))
    }

    /// Takes a record. Outside of a sync it is void if one of a later generation is there.
    ///
    /// # Errors
    /// [`TableError::Foreign`], [`TableError::Full`].
    pub fn put(&mut self, vni: u32, mac: MacAddr, record: Arc<Record>) -> Result<(), TableError> {
        self.is_own(vni)?;
        let is_synced = [None, Some(vni)]
            .iter()
            .any(|of| self.open.contains_key(of));
        let most = if is_synced { SYNCED_MAX } else { ENTRIES_MAX };
        let has_room = self.slots.len() < most;
        let seen = self.syncs;
        match self.slots.get_mut(&(vni, mac)) {
            Some(slot) if !is_synced && record.generation < slot.record.generation => return Ok(()),
            Some(slot) => {
                slot.seen = seen;
                if slot.record == record {
                    return Ok(());
                }
                slot.record = record;
            }
            None if has_room => {
                self.slots.insert((vni, mac), Slot { record, seen });
            }
            None => return Err(TableError::Full),
        }
        self.changed.insert((vni, mac));
        Ok(())
    }

    /// Removes an endpoint, if the host and the generation that are named still have it.
    ///
    /// # Errors
    /// [`TableError::Foreign`].
    pub fn withdraw(&mut self, gone: &Withdrawn) -> Result<(), TableError> {
        self.is_own(gone.vni)?;
        let key = (gone.vni, gone.mac);
        let is_theirs = self.slots.get(&key).is_some_and(|slot| {
            slot.record.host.as_deref() == gone.host.as_deref()
                && slot.record.generation <= gone.generation
        });
        if is_theirs {
            self.slots.remove(&key);
            self.changed.insert(key);
        }
        Ok(())
    }

    /// What comes from here on is all of a VNI, or of the overlay.
    ///
    /// # Errors
    /// [`TableError::Foreign`].
    pub fn sync_begin(&mut self, vni: Option<u32>) -> Result<(), TableError> {
        vni.map_or(Ok(()), |vni| self.is_own(vni))?;
        self.syncs = self.syncs.saturating_add(1);
        self.open.insert(vni, self.syncs);
        Ok(())
    }

    /// Removes what has not come since [`Table::sync_begin`].
    ///
    /// # Errors
    /// [`TableError::NotBegun`], [`TableError::Full`].
    pub fn sync_end(&mut self, vni: Option<u32>) -> Result<(), TableError> {
        let begun = self.open.remove(&vni).ok_or(TableError::NotBegun)?;
        self.remove_if(|of, slot| vni.is_none_or(|vni| vni == of) && slot.seen < begun);
        match self.slots.len() <= ENTRIES_MAX {
            true => Ok(()),
            false => Err(TableError::Full),
        }
    }

    /// Forgets the syncs that have not ended: their source has.
    pub fn abort_syncs(&mut self) {
        self.open.clear();
    }

    /// At most `max` changes since they were last taken, of one VNI; `None` if there are none.
    pub fn take_changes(&mut self, max: usize) -> Option<(u32, Changes)> {
        let (vni, _) = *self.changed.first()?;
        let of_vni = self.changed.iter().take_while(|(of, _)| *of == vni);
        let keys: Vec<_> = of_vni.take(max.max(1)).copied().collect();
        let mut changes = Changes::with_capacity(keys.len());
        for key in keys {
            self.changed.remove(&key);
            let record = self.slots.get(&key).map(|slot| Arc::clone(&slot.record));
            changes.push((key.1, record));
        }
        Some((vni, changes))
    }

    /// Removes every record.
    pub fn clear(&mut self) {
        self.remove_if(|_, _| true);
    }

    /// Whether a VNI is one of the overlay's.
    ///
    /// # Errors
    /// [`TableError::Foreign`].
    pub fn is_own(&self, vni: u32) -> Result<(), TableError> {
        match self.vnis.contains(&vni) {
            true => Ok(()),
            false => Err(TableError::Foreign(vni)),
        }
    }

    fn remove_if(&mut self, is_gone: impl Fn(u32, &Slot) -> bool) {
        let changed = &mut self.changed;
        self.slots.retain(|key, slot| {
            let goes = is_gone(key.0, slot);
            if goes {
                changed.insert(*key);
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(host: &str, generation: u64) -> Arc<Record> {
        Arc::new(Record {
            target: SocketAddr::from(([192, 0, 2, 1], 4789)),
            ips: Box::default(),
            dhcp: None,
            host: Some(host.into()),
            generation,
        })
    }

    fn mac(last: u32) -> MacAddr {
        let [a, b, c, d] = last.to_be_bytes();
        MacAddr([2, 0, a, b, c, d])
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.set_vnis([1, 2]);
        table
    }

    /// All changes, by VNI and address.
    fn changes(table: &mut Table) -> Vec<(u32, MacAddr, Option<u64>)> {
        let mut all = Vec::new();
        while let Some((vni, some)) = table.take_changes(2) {
            assert!(some.len() <= 2);
            let of = |(mac, record): (MacAddr, Option<Arc<Record>>)| {
                (vni, mac, record.map(|r| r.generation))
            };
            all.extend(some.into_iter().map(of));
        }
        all
    }

    fn withdrawn(vni: u32, last: u32, host: &str, generation: u64) -> Withdrawn {
        Withdrawn {
            vni,
            mac: mac(last),
            host: Some(host.to_owned()),
            generation,
        }
    }

    /// A sync is told as its difference, sweeps its own VNI at its end and nothing before, and one that is cut off sweeps nothing.
    #[test]
    fn a_sync_is_its_difference() {
        let mut table = table();
        for (vni, last) in [(1, 1), (1, 2), (2, 1)] {
            table.put(vni, mac(last), record("h1", 1)).expect("room");
        }
        assert_eq!(changes(&mut table).len(), 3);

        table.sync_begin(Some(1)).expect("own");
        table.put(1, mac(1), record("h1", 1)).expect("room");
        assert_eq!(changes(&mut table), []);
        table.abort_syncs();
        assert_eq!(table.sync_end(Some(1)), Err(TableError::NotBegun));
        assert_eq!((table.len(), changes(&mut table)), (3, vec![]));

        table.sync_begin(Some(1)).expect("own");
        table.sync_begin(Some(2)).expect("own");
        table.put(1, mac(1), record("h1", 1)).expect("room");
        table.put(1, mac(3), record("h2", 4)).expect("room");
        table.sync_end(Some(1)).expect("begun");
        let told = [(1, mac(2), None), (1, mac(3), Some(4))];
        assert_eq!(changes(&mut table), told);
        assert!(table.get(2, mac(1)).is_some(), "its sync has not ended");
        table.sync_end(Some(2)).expect("begun");
        assert_eq!(changes(&mut table), [(2, mac(1), None)]);

        table.sync_begin(None).expect("all");
        table.sync_end(None).expect("begun");
        assert!(table.is_empty());
    }

    /// A withdrawal after the successor's record, and an older record, are void; in a sync the registry's word is last.
    #[test]
    fn generations_decide() {
        let mut table = table();
        table.put(1, mac(1), record("h1", 3)).expect("room");
        table.put(1, mac(1), record("h2", 4)).expect("room");
        table.withdraw(&withdrawn(1, 1, "h1", 3)).expect("own");
        table.put(1, mac(1), record("h1", 3)).expect("room");
        assert_eq!(table.get(1, mac(1)), Some(&*record("h2", 4)));
        table.withdraw(&withdrawn(1, 1, "h2", 3)).expect("own");
        assert_eq!(table.len(), 1);
        table.sync_begin(None).expect("all");
        table.put(1, mac(1), record("h1", 1)).expect("room");
        table.sync_end(None).expect("begun");
        assert_eq!(table.get(1, mac(1)), Some(&*record("h1", 1)));
        table.withdraw(&withdrawn(1, 1, "h1", 1)).expect("own");
        assert_eq!(changes(&mut table), [(1, mac(1), None)]);
    }

    /// VNIs of others are refused in each message, and records of a VNI that was taken away go.
    #[test]
    fn foreign_vnis_are_refused() {
        let mut table = table();
        let foreign = Err(TableError::Foreign(3));
        assert_eq!(table.put(3, mac(1), record("h1", 1)), foreign);
        assert_eq!(table.withdraw(&withdrawn(3, 1, "h1", 1)), foreign);
        assert_eq!(table.sync_begin(Some(3)), foreign);
        table.put(2, mac(1), record("h1", 1)).expect("room");
        table.sync_begin(Some(2)).expect("own");
        assert_eq!(changes(&mut table).len(), 1);
        table.set_vnis([1, 3]);
        assert_eq!(changes(&mut table), [(2, mac(1), None)]);
        assert_eq!(table.sync_end(Some(2)), Err(TableError::NotBegun));
        table.put(3, mac(1), record("h1", 1)).expect("own by now");
    }

    /// A table that is full refuses new records, and changes those that it has.
    #[test]
    fn a_full_table_keeps_what_it_has() {
        let mut table = table();
        for last in 0..ENTRIES_MAX {
            let last = u32::try_from(last).expect("small");
            table.put(1, mac(last), record("h1", 1)).expect("room");
        }
        assert_eq!(table.put(2, mac(0), record("h1", 1)), Err(TableError::Full));
        table.put(1, mac(0), record("h1", 2)).expect("it is there");
        table.withdraw(&withdrawn(1, 1, "h1", 1)).expect("own");
        table.put(2, mac(0), record("h1", 1)).expect("room again");
        assert_eq!(table.len(), ENTRIES_MAX);
        // All others: a sync has room for them beside those that go at its end.
        table.sync_begin(None).expect("all");
        for last in 0..ENTRIES_MAX {
            let last = u32::try_from(ENTRIES_MAX + last).expect("small");
            table.put(1, mac(last), record("h1", 1)).expect("room");
        }
        table.sync_end(None).expect("begun");
        assert_eq!(table.len(), ENTRIES_MAX);
    }
}
