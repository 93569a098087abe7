//! This host's endpoints, what is due, and what a person removes.

use super::*;
use crate::mirror::ME;

/// Writes of one transaction that forgets a host; etcd takes 128.
const FORGET_OPS: usize = 50;

impl Engine {
    /// Whether a host may keep what it has. One of which nothing is known yet may.
    pub(super) fn may_keep(&self, name: &str) -> bool {
        let is_known = self
            .scopes
            .get(&Scope::Alive)
            .is_some_and(|sync| sync.revision != 0);
        let id = self.mirror.known(name);
        !is_known || id.is_some_and(|id| self.mirror.host(id).is_alive)
    }

    pub(super) fn own_answered(
        &mut self,
        id: u64,
        key: (u32, MacAddr),
        revision: i64,
        outcome: Outcome,
    ) {
        let now = self.now;
        let Some(mut own) = self.owns.remove(&key) else {
            return;
        };
        if own.phase != Phase::Busy(id) {
            self.owns.insert(key, own);
            return;
        }
        let leaf = schema::digits(key.1);
        let scope = Scope::Endpoints(key.0);
        match outcome {
            Outcome::Done => {
                let (removes, held) = (own.removes, own.done(revision, now));
                let is_over = held.is_none() && own.phase == Phase::Held;
                self.claim_done(key);
                if !is_over {
                    self.owns.insert(key, own);
                }
                let value = held.as_ref().map(schema::value);
                if removes || value.is_some() {
                    self.apply(scope, &leaf, value.as_deref(), revision, false);
                }
                if let Some(record) = held {
                    self.tell_owned(key, record.generation);
                }
                self.denied = None;
                self.changes += 1;
            }
            Outcome::Conflict(found) if self.claim_conflicts(key, &found) => {}
            Outcome::Conflict(found) => {
                let at = (self.conf.host.as_str(), key.0, key.1);
                let verdict = own.conflict(&self.keys, at, &found, |name| self.may_keep(name));
                self.judged(key, own, verdict);
            }
            Outcome::Denied(_) => {
                self.owns.insert(key, own);
            }
        }
    }

    fn judged(&mut self, key: (u32, MacAddr), mut own: Own, verdict: Verdict) {
        let now = self.now;
        match verdict {
            Verdict::Held(record) => {
                let (leaf, at) = (schema::digits(key.1), own.seen);
                self.owns.insert(key, own);
                let value = schema::value(&record);
                self.apply(Scope::Endpoints(key.0), &leaf, Some(&value), at, false);
                self.tell_owned(key, record.generation);
                self.changes += 1;
                return;
            }
            Verdict::Again => {
                own.tries += 1;
                let wait = match own.tries {
                    ..TRIES_AT_ONCE => 0,
                    tries => self.backoff(tries - TRIES_AT_ONCE),
                };
                own.phase = Phase::Owed(now + wait);
            }
            Verdict::Wait(generation) => {
                own.phase = Phase::Waiting;
                self.tell_owned(key, generation);
            }
            Verdict::Refused(by) => {
                own.phase = Phase::Refused(by.clone(), now + REFUSED_MS);
                if own.is_mine() {
                    own.released_to = Some(by.clone());
                    own.phase = Phase::Owed(now);
                }
                self.tell_refused(key, by);
            }
            Verdict::Gone => match own.released_to.take() {
                Some(by) => own.phase = Phase::Refused(by, now + REFUSED_MS),
                None => return,
            },
        }
        self.owns.insert(key, own);
    }

    /// The record of an endpoint changed at a revision.
    pub(super) fn own_seen(&mut self, key: (u32, MacAddr), revision: i64) {
        let now = self.now;
        let entry = self.mirror.entry(key.0, key.1).cloned();
        let Some(own) = self.owns.get_mut(&key) else {
            return;
        };
        let is_mine = entry.as_ref().is_some_and(|entry| entry.host == ME);
        match (&own.phase, &entry) {
            (Phase::Held, _) if revision <= own.seen => {}
            (Phase::Held, None) => own.vanished(now),
            (Phase::Held, Some(entry)) if is_mine => own.confirmed(entry.generation, revision),
            (Phase::Held, Some(entry)) => {
                let by = self.mirror.host(entry.host).name.clone();
                let is_live = own.state == windlass_lookup::protocol::EndpointState::Active;
                own.phase = if is_live { Phase::Lost } else { Phase::Waiting };
                if is_live {
                    self.tell_refused(key, by);
                }
            }
            (Phase::Refused(..) | Phase::Waiting, None) => own.phase = Phase::Owed(now),
            (Phase::Refused(..) | Phase::Waiting, Some(_)) if is_mine => {
                own.phase = Phase::Owed(now)
            }
            _ => {}
        }
    }

    /// The record of an endpoint was changed to what is none, at a revision: the one that has it writes it again.
    pub(super) fn own_garbled(&mut self, key: (u32, MacAddr), revision: i64) {
        let now = self.now;
        let own = self.owns.get_mut(&key);
        let held = own.filter(|own| own.phase == Phase::Held && own.seen < revision);
        held.into_iter().for_each(|own| own.vanished(now));
    }

    /// A host is not alive any more: what it kept from this one is asked for again.
    pub(super) fn may_be_taken(&mut self, name: &str) {
        let now = self.now;
        for own in self.owns.values_mut() {
            if matches!(&own.phase, Phase::Refused(by, _) if by == name) {
                own.phase = Phase::Owed(now);
            }
        }
    }

    pub(super) fn tell_owned(&mut self, (vni, mac): (u32, MacAddr), generation: u64) {
        if let Some(overlay) = self.of_vni.get(&vni).cloned() {
            self.outbox.say(FromPlugin::Owned {
                overlay,
                vni,
                mac,
                generation,
            });
        }
    }

    fn tell_refused(&mut self, (vni, mac): (u32, MacAddr), by: String) {
        if let Some(overlay) = self.of_vni.get(&vni).cloned() {
            self.outbox.say(FromPlugin::Refused {
                overlay,
                vni,
                mac,
                by,
            });
        }
    }

    /// Does what is due at a time.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        if !self.is_registered {
            return;
        }
        if self.keep_alive_at.is_some_and(|at| at <= self.now) {
            self.keep_alive_at = Some(self.now + KEEP_ALIVE_MS);
            self.asks.push(match self.lease {
                0 => Ask::Grant { of: Lease::Alive },
                lease => Ask::KeepAlive { lease },
            });
        }
        self.settle_watches();
        self.fill_up();
        self.list_next();
        self.retire_stale();
        self.claims_tick();
        self.claim_due();
    }

    /// The first time at which something is due; `None`: only news can change anything.
    #[must_use]
    pub fn due_at(&self) -> Option<u64> {
        if !self.is_registered {
            return None;
        }
        let is_listing = self
            .scopes
            .values()
            .any(|sync| sync.standing == Standing::Listing);
        let scopes = self.scopes.values().flat_map(|sync| {
            let list = match sync.standing {
                Standing::Due { at } if !is_listing => Some(at),
                _ => None,
            };
            [
                list,
                sync.settled_at,
                sync.stale_at.filter(|at| *at != u64::MAX),
            ]
        });
        let has_room = self.is_alive && self.busy() < BUSY_MAX;
        let owns = self.owns.values().map(|own| match own.phase {
            _ if self.rest.is_asked && own.rests() => None,
            Phase::Owed(at) | Phase::Refused(_, at) if has_room => Some(at),
            _ => None,
        });
        scopes
            .chain(owns)
            .chain([self.keep_alive_at, self.claims_due_at()])
            .flatten()
            .min()
    }

    fn settle_watches(&mut self) {
        let now = self.now;
        let due = self
            .scopes
            .iter_mut()
            .filter(|(_, sync)| sync.settled_at.is_some_and(|at| at <= now));
        let due = due.map(|(scope, sync)| {
            sync.settled_at = None;
            sync.is_told = true;
            sync.stale_at.get_or_insert(now + STALE_MS);
            *scope
        });
        let due: Vec<_> = due.collect();
        due.into_iter().for_each(|scope| self.tell_all(scope));
    }

    /// One list at a time: hosts before what is on them.
    fn list_next(&mut self) {
        let now = self.now;
        if self
            .scopes
            .values()
            .any(|sync| sync.standing == Standing::Listing)
        {
            return;
        }
        let is_due = |sync: &Sync| matches!(sync.standing, Standing::Due { at } if at <= now);
        if let Some((scope, sync)) = self.scopes.iter_mut().find(|(_, sync)| is_due(sync)) {
            sync.standing = Standing::Listing;
            let (scope, fresh) = (*scope, sync.fresh);
            self.asks.push(Ask::List { scope, fresh });
        }
    }

    /// Own records that the daemon did not announce again are of endpoints that are gone.
    fn retire_stale(&mut self) {
        let now = self.now;
        let mut stale = Vec::new();
        for (scope, sync) in &mut self.scopes {
            let is_due = sync.stale_at.is_some_and(|at| at <= now);
            if is_due && now < self.twin_until {
                // They may be those of another host of this name.
                sync.stale_at = Some(self.twin_until);
            } else if let (Scope::Endpoints(vni), true) = (*scope, is_due) {
                sync.stale_at = Some(u64::MAX);
                let entries = self.mirror.vnis.get(&vni).map(|of| of.entries.iter());
                let mine = entries
                    .into_iter()
                    .flatten()
                    .filter(|(_, entry)| entry.host == ME);
                stale.extend(mine.map(|(mac, _)| (vni, *mac)));
            } else if !matches!(scope, Scope::Endpoints(_)) {
                sync.stale_at = None;
            }
        }
        stale.retain(|key| !self.owns.contains_key(key));
        stale
            .into_iter()
            .for_each(|(vni, mac)| self.retire(now, vni, mac));
    }

    fn busy(&self) -> usize {
        self.owns
            .values()
            .filter(|own| matches!(own.phase, Phase::Busy(_)))
            .count()
    }

    fn claim_due(&mut self) {
        let now = self.now;
        if !self.is_alive {
            return;
        }
        let room = BUSY_MAX.saturating_sub(self.busy());
        let is_due =
            |own: &Own| matches!(own.phase, Phase::Owed(at) | Phase::Refused(_, at) if at <= now);
        let mut due = self.owns.values().filter(|own| is_due(own));
        let rests = due.any(Own::rests);
        let lease = rests.then(|| self.rest_lease()).flatten();
        // What rests waits for its lease, and keeps nothing else from its turn.
        let due = self.owns.iter().filter(|(_, own)| is_due(own));
        let due = due.filter_map(|(key, own)| Some((*key, if own.rests() { lease? } else { 0 })));
        let due: Vec<_> = due.take(room).collect();
        for ((vni, mac), rest) in due {
            let id = self.id(Pending::Own(vni, mac));
            if let Some(own) = self.owns.get_mut(&(vni, mac)) {
                let txn = own.txn(id, &self.keys, (&self.conf.host, vni, mac), rest);
                self.asks.push(Ask::Txn { id, txn });
            }
        }
    }

    /// The lease for what rests; `None`: it comes.
    fn rest_lease(&mut self) -> Option<i64> {
        if self.rest.lease != 0 && self.now < self.rest.until {
            return Some(self.rest.lease);
        }
        if !self.rest.is_asked {
            self.rest = Rest {
                lease: 0,
                until: self.now + REST_SHARED_MS,
                is_asked: true,
            };
            self.asks.push(Ask::Grant { of: Lease::Rest });
        }
        None
    }

    /// Removes everything of the hosts that are to be forgotten, as it was listed.
    pub(super) fn forget_of(&mut self, kvs: &[Kv]) {
        for host in std::mem::take(&mut self.forgetting) {
            let gone: Vec<_> = kvs
                .iter()
                .filter(|kv| self.keys.is_of(&kv.key, &kv.value, &host))
                .collect();
            for some in gone.chunks(FORGET_OPS) {
                let id = self.id(Pending::Forget(host.clone()));
                let txn = Txn {
                    expect: some
                        .iter()
                        .map(|kv| (kv.key.clone(), kv.mod_revision))
                        .collect(),
                    then: some
                        .iter()
                        .map(|kv| Op::Delete {
                            key: kv.key.clone(),
                        })
                        .collect(),
                };
                self.asks.push(Ask::Txn { id, txn });
            }
        }
    }
}
