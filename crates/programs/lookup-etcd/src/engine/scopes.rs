//! What lists and watches bring, and what the daemon is told of it.

use super::*;
use crate::mirror::ME;

impl Engine {
    pub(super) fn listed(&mut self, scope: Scope, revision: i64, kvs: Vec<Kv>) {
        let now = self.now;
        let is_empty = kvs.is_empty() && self.has_others(scope);
        let Some(sync) = self.scopes.get_mut(&scope) else {
            return;
        };
        if sync.standing != Standing::Listing {
            return;
        }
        if !sync.is_doubted && revision < sync.revision {
            // A member that is behind: the leader knows more.
            sync.fresh = true;
            sync.standing = Standing::Due { at: now };
            return;
        }
        // Without a revision, a person has accepted what is there.
        let is_loss = is_empty && !sync.is_doubted && sync.revision != 0;
        if let (true, Scope::Endpoints(vni)) = (is_loss, scope) {
            sync.is_doubted = true;
            self.mirror.doubt_entries(vni);
        }
        sync.revision = revision;
        sync.tries = 0;
        sync.is_short = false;
        sync.fresh = false;
        sync.standing = Standing::Watching;
        sync.settled_at = None;
        sync.stale_at.get_or_insert(now + STALE_MS);
        let is_doubted = sync.is_doubted;
        let from = revision + 1;
        self.asks.push(Ask::Watch { scope, from });
        let mut gone = self.leaves(scope);
        for kv in kvs {
            if let Some(leaf) = self.keys.leaf(scope, &kv.key).map(str::to_owned) {
                gone.remove(&leaf);
                self.apply(scope, &leaf, Some(&kv.value), kv.mod_revision, true);
            }
        }
        if !is_doubted {
            for leaf in gone {
                self.apply(scope, &leaf, None, revision, true);
            }
        }
        self.tell_all(scope);
        self.settle(scope);
        self.changes += 1;
    }

    /// Whether there are endpoints of other hosts in a scope.
    fn has_others(&self, scope: Scope) -> bool {
        let Scope::Endpoints(vni) = scope else {
            return false;
        };
        let of = self.mirror.vnis.get(&vni);
        of.is_some_and(|of| of.entries.values().any(|entry| entry.host != ME))
    }

    /// What the keys of everything that is known of a scope end with.
    fn leaves(&self, scope: Scope) -> BTreeSet<String> {
        let name = |id: HostId| self.mirror.host(id).name.clone();
        match scope {
            Scope::Hosts => {
                let known = self
                    .mirror
                    .hosts()
                    .filter(|(_, host)| host.record.is_some());
                known.map(|(_, host)| host.name.clone()).collect()
            }
            Scope::Alive => {
                let alive = self.mirror.hosts().filter(|(_, host)| host.is_alive);
                alive.map(|(_, host)| host.name.clone()).collect()
            }
            Scope::Endpoints(vni) => {
                let of = self.mirror.vnis.get(&vni).map(|of| of.entries.keys());
                of.into_iter()
                    .flatten()
                    .map(|mac| schema::digits(*mac))
                    .collect()
            }
            Scope::Flood(vni) => {
                let of = self.mirror.vnis.get(&vni).map(|of| of.flood.keys());
                of.into_iter().flatten().map(|id| name(*id)).collect()
            }
            Scope::Addresses(_) | Scope::Blocks | Scope::All => BTreeSet::new(),
        }
    }

    pub(super) fn changed(&mut self, scope: Scope, revision: i64, changes: Vec<Change>) {
        let Some(sync) = self.scopes.get_mut(&scope) else {
            return;
        };
        if sync.standing == Standing::Closed {
            return;
        }
        // A list that is due is not to be taken for older than what it is to replace.
        if sync.standing == Standing::Watching {
            sync.revision = sync.revision.max(revision);
        }
        let was_quiet = changes.is_empty();
        for change in changes {
            if let Some(leaf) = self.keys.leaf(scope, &change.key).map(str::to_owned) {
                self.apply(
                    scope,
                    &leaf,
                    change.value.as_deref(),
                    change.mod_revision,
                    false,
                );
            }
        }
        if !was_quiet {
            self.settle(scope);
            self.changes += 1;
        }
    }

    /// A scope that has nothing left in doubt is whole again.
    fn settle(&mut self, scope: Scope) {
        let is_doubted = match scope {
            _ if !self.scopes.get(&scope).is_some_and(|sync| sync.is_doubted) => return,
            Scope::Hosts => !self.mirror.doubted_hosts().is_empty(),
            Scope::Endpoints(vni) => !self.mirror.doubted_entries(vni).is_empty(),
            Scope::Flood(vni) => !self.mirror.doubted_flood(vni).is_empty(),
            Scope::Alive | Scope::Addresses(_) | Scope::Blocks | Scope::All => false,
        };
        if let Some(sync) = self.scopes.get_mut(&scope) {
            sync.is_doubted = is_doubted;
        }
        if !is_doubted {
            // The daemon may know what a plugin before this one did.
            self.tell_all(scope);
        }
    }

    /// Takes one record, or its end. Quiet: the daemon is told of the scope as a whole afterwards.
    pub(super) fn apply(
        &mut self,
        scope: Scope,
        leaf: &str,
        value: Option<&[u8]>,
        revision: i64,
        quiet: bool,
    ) {
        self.proves(&(self.keys.prefix(scope) + leaf), value, revision);
        match scope {
            Scope::Hosts => self.apply_host(leaf, value, revision),
            Scope::Alive => self.apply_alive(leaf, value, revision),
            Scope::Endpoints(vni) => self.apply_endpoint(vni, leaf, value, revision, quiet),
            Scope::Flood(vni) => self.apply_flood(vni, leaf, value.map(|_| revision), quiet),
            Scope::Addresses(_) | Scope::Blocks | Scope::All => {}
        }
        self.note_overflow(scope);
    }

    /// Something of a scope was left out, if something was.
    pub(super) fn note_overflow(&mut self, scope: Scope) {
        if std::mem::take(&mut self.mirror.has_overflown) {
            let [known, restored] = [&mut self.scopes, &mut self.restored];
            let sync = known.get_mut(&scope).or_else(|| restored.get_mut(&scope));
            sync.into_iter().for_each(|sync| sync.is_short = true);
        }
    }

    /// Lists again what was left out, once there is room.
    pub(super) fn fill_up(&mut self) {
        if !self.mirror.has_room() {
            return;
        }
        let short = self.scopes.iter();
        let short = short.filter(|(_, sync)| sync.is_short && sync.standing == Standing::Watching);
        let short: Vec<_> = short.map(|(scope, _)| *scope).collect();
        short.into_iter().for_each(|scope| self.delay(scope));
    }

    /// The number of a host that a key names. One of which nothing was known needs none where a key went.
    fn host_of(&mut self, name: &str, has_value: bool) -> Option<HostId> {
        match has_value && schema::is_name(name) {
            true => self.mirror.id(name),
            false => self.mirror.known(name),
        }
    }

    fn apply_host(&mut self, name: &str, value: Option<&[u8]>, revision: i64) {
        let record = value.and_then(schema::host);
        let Some(id) = self.host_of(name, record.is_some()) else {
            return;
        };
        if id == ME {
            if revision < self.host_seen() {
                return;
            }
            let is_gone = record.is_none();
            if record.as_ref().is_some_and(|of| *of != self.conf.record) {
                self.twin_until = self.now + TWIN_MS;
            }
            let at = value.map_or(0, |_| revision);
            self.mirror.see_me(record, at);
            // Somebody forgot a host that is there.
            if is_gone && self.is_registered {
                self.up();
            }
            return;
        }
        // What is no record leaves what is known.
        let is_record = record.is_some() == value.is_some();
        if is_record && self.mirror.set_host(id, record, revision) {
            self.host_moved(id);
        }
    }

    /// A host has other addresses: everything on it is told again.
    fn host_moved(&mut self, id: HostId) {
        for overlay in self.overlays.keys().cloned().collect::<Vec<_>>() {
            self.tell_host(&overlay, id);
        }
        for vni in self.of_vni.keys().copied().collect::<Vec<_>>() {
            let Some(of) = self.mirror.vnis.get(&vni) else {
                continue;
            };
            let on_it = of.entries.iter().filter(|(_, entry)| entry.host == id);
            let on_it: Vec<_> = on_it.map(|(mac, _)| *mac).collect();
            let is_flooded = of.flood.contains_key(&id);
            on_it.into_iter().for_each(|mac| self.push(vni, mac));
            if is_flooded {
                self.tell_flood(vni);
            }
        }
    }

    fn apply_alive(&mut self, name: &str, value: Option<&[u8]>, revision: i64) {
        let record: Option<AliveRecord> =
            value.and_then(|value| serde_json::from_slice(value).ok());
        let Some(id) = self.host_of(name, record.is_some()) else {
            return;
        };
        if id == ME {
            self.see_sign(record.as_ref(), revision);
        }
        if !self.mirror.set_alive(id, record.is_some()) {
            return;
        }
        for overlay in self.overlays.keys().cloned().collect::<Vec<_>>() {
            self.tell_host(&overlay, id);
        }
        if record.is_none() {
            self.may_be_taken(name);
        }
    }

    /// The sign of life of this host is another one, or is gone.
    fn see_sign(&mut self, record: Option<&AliveRecord>, revision: i64) {
        if self.sign == 0 || revision <= self.sign {
            return;
        }
        match record {
            Some(record) if record.lease != self.lease => self.twin_until = self.now + TWIN_MS,
            Some(_) => {}
            None => {
                // It is written again with the renewal, unless the lease is gone with it.
                (self.sign, self.is_alive, self.twin_until) = (0, false, 0);
                self.keep_alive_at = Some(self.now);
            }
        }
    }

    fn apply_endpoint(
        &mut self,
        vni: u32,
        leaf: &str,
        value: Option<&[u8]>,
        revision: i64,
        quiet: bool,
    ) {
        let Some(mac) = schema::mac(leaf) else {
            return;
        };
        let (had, is_changed) = match value {
            None => {
                let had = self.mirror.drop_entry(vni, mac, revision);
                let is_changed = had.is_some();
                (had, is_changed)
            }
            Some(value) => match schema::endpoint(value) {
                Some(record) => self.mirror.set_entry(vni, mac, record, revision),
                None => return self.own_garbled((vni, mac), revision),
            },
        };
        if !is_changed {
            return;
        }
        if !quiet {
            let shown = self
                .mirror
                .entry(vni, mac)
                .is_some_and(|entry| self.is_shown(entry));
            match had.filter(|had| self.is_shown(had)) {
                _ if shown => self.push(vni, mac),
                Some(had) => self.withdraw(vni, mac, &had),
                None => {}
            }
        }
        self.own_seen((vni, mac), revision);
    }

    fn apply_flood(&mut self, vni: u32, name: &str, revision: Option<i64>, quiet: bool) {
        let Some(id) = self.host_of(name, revision.is_some()) else {
            return;
        };
        let is_mine = id == ME;
        if self.mirror.set_flood(vni, id, revision) && !quiet && !is_mine {
            self.tell_flood(vni);
        }
        if is_mine && revision.is_none() {
            self.join_flood(vni);
        }
    }

    /// Says in the registry that this host has members in a VNI.
    fn join_flood(&mut self, vni: u32) {
        let put = Op::Put {
            key: self.keys.flood(vni, &self.conf.host),
            value: b"{}".to_vec(),
            lease: 0,
        };
        self.write(Pending::Flood, put);
    }

    /// Takes a record that was on disk. Nothing is told yet.
    pub(super) fn restore_record(&mut self, scope: Scope, leaf: &str, kv: &Kv) {
        match scope {
            Scope::Hosts => {
                let record = schema::host(&kv.value);
                if let Some(id) = self.host_of(leaf, record.is_some()) {
                    self.mirror.set_host(id, record, kv.mod_revision);
                }
            }
            Scope::Endpoints(vni) => {
                if let Some((mac, record)) = schema::mac(leaf).zip(schema::endpoint(&kv.value)) {
                    self.mirror.set_entry(vni, mac, record, kv.mod_revision);
                }
            }
            Scope::Flood(vni) => {
                if let Some(id) = self.host_of(leaf, true) {
                    self.mirror.set_flood(vni, id, Some(kv.mod_revision));
                }
            }
            Scope::Alive | Scope::Addresses(_) | Scope::Blocks | Scope::All => {}
        }
    }

    /// What is known of a scope, as the registry has it.
    #[must_use]
    pub fn records(&self, scope: Scope) -> Vec<Kv> {
        let kv = |leaf: &str, value, mod_revision| Kv {
            key: self.keys.prefix(scope) + leaf,
            value,
            mod_revision,
        };
        match scope {
            Scope::Hosts => {
                let known = self.mirror.hosts().filter_map(|(_, host)| {
                    let value = schema::value(host.record.as_ref()?);
                    Some(kv(&host.name, value, host.mod_revision))
                });
                known.collect()
            }
            Scope::Endpoints(vni) => {
                let of = self.mirror.vnis.get(&vni).map(|of| of.entries.iter());
                let known = of.into_iter().flatten().map(|(mac, entry)| {
                    let record = self.mirror.record(entry);
                    kv(
                        &schema::digits(*mac),
                        schema::value(&record),
                        entry.mod_revision,
                    )
                });
                known.collect()
            }
            Scope::Flood(vni) => {
                let of = self.mirror.vnis.get(&vni).map(|of| of.flood.iter());
                let known = of.into_iter().flatten();
                known
                    .map(|(id, revision)| {
                        kv(&self.mirror.host(*id).name, b"{}".to_vec(), *revision)
                    })
                    .collect()
            }
            Scope::Alive | Scope::Addresses(_) | Scope::Blocks | Scope::All => Vec::new(),
        }
    }

    // What the daemon is told.

    /// Whether the daemon is told of a record: it is live, on another host.
    fn is_shown(&self, entry: &mirror::Entry) -> bool {
        entry.is_active && entry.host != ME
    }

    fn is_v4(&self) -> bool {
        self.conf.record.vtep.first().is_none_or(IpAddr::is_ipv4)
    }

    fn push(&mut self, vni: u32, mac: MacAddr) {
        let Some(entry) = self
            .mirror
            .entry(vni, mac)
            .filter(|entry| self.is_shown(entry))
        else {
            return;
        };
        let (Some(overlay), Some(target)) = (
            self.of_vni.get(&vni),
            self.mirror.target(entry.host, self.is_v4()),
        ) else {
            return;
        };
        let line = Entry {
            vni,
            mac,
            target,
            ips: entry.ips.to_vec(),
            dhcp: None,
            host: Some(self.mirror.host(entry.host).name.clone()),
            generation: entry.generation,
        };
        self.outbox.push(overlay, line);
    }

    pub(super) fn push_all(&mut self, vni: u32) {
        let entries = self
            .mirror
            .vnis
            .get(&vni)
            .map(|of| of.entries.keys().copied());
        let macs: Vec<_> = entries.into_iter().flatten().collect();
        macs.into_iter().for_each(|mac| self.push(vni, mac));
    }

    fn withdraw(&mut self, vni: u32, mac: MacAddr, had: &mirror::Entry) {
        if let Some(overlay) = self.of_vni.get(&vni) {
            let line = Withdrawn {
                vni,
                mac,
                host: Some(self.mirror.host(had.host).name.clone()),
                generation: had.generation,
            };
            self.outbox.withdraw(overlay, line);
        }
    }

    /// Tells all of a scope; between marks, so that the daemon drops the rest, unless some of it is in doubt.
    pub(super) fn tell_all(&mut self, scope: Scope) {
        match scope {
            Scope::Endpoints(vni) => {
                let Some(overlay) = self.of_vni.get(&vni).cloned() else {
                    return;
                };
                let is_whole = self.scopes.get(&scope).is_some_and(|sync| !sync.is_doubted);
                let vni = Some(vni);
                if is_whole {
                    let overlay = overlay.clone();
                    self.outbox.say(FromPlugin::SyncBegin { overlay, vni });
                }
                vni.into_iter().for_each(|vni| self.push_all(vni));
                if is_whole {
                    self.outbox.say(FromPlugin::SyncEnd { overlay, vni });
                }
                if let Some(sync) = self.scopes.get_mut(&scope) {
                    sync.is_told |= is_whole;
                }
            }
            Scope::Flood(vni) => {
                self.tell_flood(vni);
                let of = self.mirror.vnis.get(&vni);
                let is_in = of
                    .and_then(|of| of.flood.get(&ME))
                    .is_some_and(|seen| *seen != 0);
                if !is_in {
                    self.join_flood(vni);
                }
            }
            Scope::Hosts | Scope::Alive | Scope::Addresses(_) | Scope::Blocks | Scope::All => {}
        }
    }

    pub(super) fn tell_flood(&mut self, vni: u32) {
        let (Some(overlay), Some(of)) = (self.of_vni.get(&vni), self.mirror.vnis.get(&vni)) else {
            return;
        };
        let others = of.flood.keys().filter(|id| **id != ME);
        let targets = others.filter_map(|id| self.mirror.target(*id, self.is_v4()));
        let line = FromPlugin::Flood {
            overlay: overlay.clone(),
            vni,
            targets: targets.take(TARGETS_MAX).collect(),
        };
        self.outbox.say(line);
    }

    pub(super) fn tell_host(&mut self, overlay: &str, id: HostId) {
        let host = self.mirror.host(id);
        let targets = host.record.iter().flat_map(|record| {
            let port = record.port;
            let target = move |ip: &IpAddr| std::net::SocketAddr::new(*ip, port).into();
            record.vtep.iter().map(target)
        });
        let state = match (host.record.is_some(), host.is_alive) {
            (true, true) => HostState::Alive,
            (true, false) => HostState::Unsure,
            (false, _) => HostState::Gone,
        };
        let line = FromPlugin::Host {
            overlay: overlay.to_owned(),
            host: host.name.clone(),
            targets: targets.collect(),
            state,
        };
        self.outbox.say(line);
    }

    /// Tells each overlay when what is wrong has changed.
    pub(super) fn tell_health(&mut self) {
        let wrong = self.wrong();
        for (overlay, told) in &mut self.overlays {
            if *told == wrong {
                continue;
            }
            told.clone_from(&wrong);
            let overlay = overlay.clone();
            self.outbox.say(match wrong.clone() {
                Some(text) => FromPlugin::Degraded { overlay, text },
                None => FromPlugin::Restored { overlay },
            });
        }
    }

    /// Why nothing of this host can be written now.
    pub(super) fn cannot_write(&self) -> Option<String> {
        if !self.is_registered {
            return Some(format!("etcd cannot be reached: {}", self.why_down));
        }
        if self.is_alive {
            return None;
        }
        Some(self.denied.as_ref().map_or_else(
            || "this host has not said in etcd yet that it is alive".to_owned(),
            |why| refusal(why),
        ))
    }

    /// What is wrong, in a sentence.
    fn wrong(&self) -> Option<String> {
        let any = |what: fn(&Sync) -> bool| self.scopes.values().any(what);
        if any(|sync| sync.is_doubted) {
            let text = "the registry is younger than what is known here: what it lacks is kept until \"overlay resync --accept\"";
            Some(text.to_owned())
        } else if let Some(why) = self.cannot_write() {
            Some(why)
        } else if let Some(why) = &self.denied {
            Some(refusal(why))
        } else if self.has_twin() {
            let host = &self.conf.host;
            Some(format!(
                "another host calls itself {host}: give one of them another name"
            ))
        } else if any(|sync| sync.is_short) {
            let (most, hosts) = (mirror::ENDPOINTS_MAX, mirror::HOSTS_MAX);
            Some(format!(
                "more than {most} endpoints or {hosts} hosts: some are not known here"
            ))
        } else if any(|sync| sync.tries > 1) {
            Some("the registry cannot be listed".to_owned())
        } else {
            None
        }
    }
}
