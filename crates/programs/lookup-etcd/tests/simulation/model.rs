//! A model of etcd: keys with revisions, a past that can be compacted or lost, leases.

use std::collections::BTreeMap;

use windlass_lookup_etcd::registry::{Change, Kv, Lease, Op, Outcome, Txn};

/// It.
#[derive(Clone, Default)]
pub struct Model {
    pub cluster: u64,
    pub revision: i64,
    keys: BTreeMap<String, (Vec<u8>, i64, i64)>,
    past: Vec<Change>,
    compacted: i64,
    leases: BTreeMap<i64, (u64, Lease)>,
    /// Leases that were ever granted.
    pub granted: i64,
}

fn ttl_ms(of: Lease) -> u64 {
    u64::try_from(of.ttl_s()).expect("positive") * 1_000
}

impl Model {
    /// An empty one.
    pub fn new(cluster: u64) -> Self {
        Self {
            cluster,
            revision: 1,
            ..Self::default()
        }
    }

    fn kv(&self, key: &str) -> Option<Kv> {
        let (value, mod_revision, _) = self.keys.get(key)?;
        Some(Kv {
            key: key.to_owned(),
            value: value.clone(),
            mod_revision: *mod_revision,
        })
    }

    /// What is under a prefix.
    pub fn under(&self, prefix: &str) -> Vec<Kv> {
        let from = self.keys.range(prefix.to_owned()..);
        let keys = from.map(|(key, _)| key);
        let keys = keys.take_while(|key| key.starts_with(prefix));
        keys.filter_map(|key| self.kv(key)).collect()
    }

    pub fn txn(&mut self, txn: &Txn) -> Outcome {
        let seen = |key: &str| self.keys.get(key).map_or(0, |(_, revision, _)| *revision);
        if txn
            .expect
            .iter()
            .any(|(key, revision)| seen(key) != *revision)
        {
            return Outcome::Conflict(txn.expect.iter().map(|(key, _)| self.kv(key)).collect());
        }
        if txn.then.is_empty() {
            return Outcome::Done;
        }
        let is_gone = |op: &Op| matches!(op, Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease));
        if txn.then.iter().any(is_gone) {
            return Outcome::Denied("lease not found".to_owned());
        }
        self.revision += 1;
        for op in &txn.then {
            match op {
                Op::Put { key, value, lease } => {
                    let may_lapse = key.contains("/alive/")
                        || key.contains("/rest/")
                        || (key.contains("/ip/") && value.ends_with(br#""rest":true}"#));
                    assert!(*lease == 0 || may_lapse, "{key} hangs on a lease");
                    self.write(key, Some((value.clone(), *lease)));
                }
                Op::Delete { key } => self.write(key, None),
            }
        }
        Outcome::Done
    }

    /// One write at the present revision.
    fn write(&mut self, key: &str, value: Option<(Vec<u8>, i64)>) {
        let had = self.keys.contains_key(key);
        if had || value.is_some() {
            self.past.push(Change {
                key: key.to_owned(),
                value: value.as_ref().map(|(value, _)| value.clone()),
                mod_revision: self.revision,
            });
        }
        match value {
            Some((value, lease)) => self
                .keys
                .insert(key.to_owned(), (value, self.revision, lease)),
            None => self.keys.remove(key),
        };
    }

    /// Changes under a prefix from a revision on; `None`: they are gone.
    pub fn since(&self, prefix: &str, from: i64) -> Option<Vec<Change>> {
        if from <= self.compacted {
            return None;
        }
        let at = self
            .past
            .partition_point(|change| change.mod_revision < from);
        let new = self.past.iter().skip(at);
        Some(
            new.filter(|change| change.key.starts_with(prefix))
                .cloned()
                .collect(),
        )
    }

    pub fn check(&self, key: &str, value: Option<&[u8]>, revision: i64) -> Option<bool> {
        if revision > self.revision {
            return Some(false);
        }
        if revision < self.compacted {
            return None;
        }
        let until = |change: &&Change| change.mod_revision <= revision && change.key == key;
        let last = self.past.iter().rev().find(until);
        let is_then = last.is_some_and(|change| change.mod_revision == revision);
        let found = last.and_then(|change| change.value.as_deref());
        Some(found == value && (is_then || value.is_none()))
    }

    pub fn compact(&mut self) {
        self.compacted = self.revision;
    }

    pub fn grant(&mut self, now: u64, of: Lease) -> i64 {
        // etcd's are random: one of a registry that is gone is not one of this.
        self.granted += 1;
        let lease = self.granted;
        self.leases.insert(lease, (now + ttl_ms(of), of));
        lease
    }

    pub fn keep_alive(&mut self, lease: i64, now: u64) -> bool {
        let lease = self.leases.get_mut(&lease);
        lease
            .map(|(until, of)| *until = now + ttl_ms(*of))
            .is_some()
    }

    /// Leases lapse.
    pub fn lapse(&mut self, now: u64) {
        self.leases.retain(|_, (until, _)| *until > now);
        let gone = self
            .keys
            .iter()
            .filter(|(_, (_, _, lease))| *lease != 0 && !self.leases.contains_key(lease));
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        if !gone.is_empty() {
            self.revision += 1;
        }
        gone.iter().for_each(|key| self.write(key, None));
    }

    /// Writes that are nobody's of ours.
    pub fn pass(&mut self, revisions: i64) {
        self.revision += revisions;
    }
}
