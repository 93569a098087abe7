//! What this host knows of the registry: hosts, endpoints, and who has members in a VNI.
//!
//! # Model
//! A record has the revision of its last change. An older change never replaces a newer record. Revision 0 marks a record that the registry,
//! as it is now, has not confirmed: it was read from one that is gone ([`Mirror::doubt`]). Such a record serves on, yields only to a
//! generation that is not smaller, and goes when somebody accepts the registry (`resync`).
//!
//! The number of a host of which nothing is known any more goes to another one when there is no other left. This host has its own, [`ME`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use windlass_lookup::protocol::{EndpointState, TARGETS_MAX, Target};
use windlass_wire::MacAddr;

use crate::schema::{EndpointRecord, HostRecord};

/// Endpoints that a host can know.
pub const ENDPOINTS_MAX: usize = 1 << 17;
/// Hosts of a cluster.
pub const HOSTS_MAX: usize = TARGETS_MAX + 24;

/// Number of a host within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(u32);

/// This host.
pub const ME: HostId = HostId(0);

/// A host.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its addresses; `None`: not known, or forgotten.
    pub record: Option<HostRecord>,
    /// Revision of that record.
    pub mod_revision: i64,
    /// Whether it says that it is alive.
    pub is_alive: bool,
    /// Endpoints, and VNIs in which it has members.
    uses: usize,
}

impl Host {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            record: None,
            mod_revision: 0,
            is_alive: false,
            uses: 0,
        }
    }
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub host: HostId,
    /// Its generation.
    pub generation: u64,
    /// Revision of this record.
    pub mod_revision: i64,
    /// Its IP addresses.
    pub ips: Box<[IpAddr]>,
    /// Whether it is live there.
    pub is_active: bool,
}

/// What is known of a VNI.
#[derive(Debug, Clone, Default)]
pub struct Vni {
    /// Its endpoints.
    pub entries: BTreeMap<MacAddr, Entry>,
    /// The hosts that have members in it, and the revision of that record.
    pub flood: BTreeMap<HostId, i64>,
}

/// Everything.
#[derive(Debug)]
pub struct Mirror {
    names: BTreeMap<String, HostId>,
    hosts: Vec<Host>,
    /// Hosts of which nothing is known.
    unused: BTreeSet<HostId>,
    /// By number.
    pub vnis: BTreeMap<u32, Vni>,
    endpoints: usize,
    /// A record was left out, since there were too many.
    pub has_overflown: bool,
}

impl Mirror {
    /// One that knows this host's name.
    #[must_use]
    pub fn new(me: &str) -> Self {
        Self {
            names: [(me.to_owned(), ME)].into(),
            hosts: vec![Host::new(me)],
            unused: BTreeSet::new(),
            vnis: BTreeMap::new(),
            endpoints: 0,
            has_overflown: false,
        }
    }

    /// The number of a host. `None`: there are too many.
    pub fn id(&mut self, name: &str) -> Option<HostId> {
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        let id = if self.hosts.len() < HOSTS_MAX {
            self.hosts.push(Host::new(name));
            HostId(u32::try_from(self.hosts.len() - 1).ok()?)
        } else if let Some(id) = self.unused.pop_first() {
            let former = std::mem::replace(self.host_mut(id), Host::new(name));
            self.names.remove(&former.name);
            id
        } else {
            self.has_overflown = true;
            return None;
        };
        self.names.insert(name.to_owned(), id);
        self.unused.insert(id);
        Some(id)
    }

    /// Whether there is room for many records more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let hosts = self.hosts.len() - self.unused.len();
        self.endpoints <= ENDPOINTS_MAX / 8 * 7 && hosts <= HOSTS_MAX / 8 * 7
    }

    /// Notes that so many more uses a host has, or that something else of it is or is not known any more.
    fn used(&mut self, id: HostId, more: isize) {
        let host = self.host_mut(id);
        host.uses = host.uses.saturating_add_signed(more);
        if id == ME || host.record.is_some() || host.is_alive || host.uses > 0 {
            self.unused.remove(&id);
        } else {
            self.unused.insert(id);
        }
    }

    /// The number of a host that is known.
    #[must_use]
    pub fn known(&self, name: &str) -> Option<HostId> {
        self.names.get(name).copied()
    }

    /// A host.
    ///
    /// # Panics
    /// If the number is another mirror's.
    #[must_use]
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0 as usize]
    }

    fn host_mut(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[id.0 as usize]
    }

    /// Every host.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &Host)> {
        (0..).map(HostId).zip(&self.hosts)
    }

    /// Where frames for a host are sent from an address of this family; `None`: not known.
    #[must_use]
    pub fn target(&self, id: HostId, is_v4: bool) -> Option<Target> {
        let record = self.host(id).record.as_ref()?;
        let ip = record.vtep.iter().find(|ip| ip.is_ipv4() == is_v4)?;
        Some(SocketAddr::new(*ip, record.port).into())
    }

    /// An endpoint.
    #[must_use]
    pub fn entry(&self, vni: u32, mac: MacAddr) -> Option<&Entry> {
        self.vnis.get(&vni)?.entries.get(&mac)
    }

    /// An endpoint as the registry has it.
    #[must_use]
    pub fn record(&self, entry: &Entry) -> EndpointRecord {
        EndpointRecord {
            host: self.host(entry.host).name.clone(),
            generation: entry.generation,
            ips: entry.ips.to_vec(),
            state: match entry.is_active {
                true => EndpointState::Active,
                false => EndpointState::Standby,
            },
        }
    }

    /// Takes a host's record, or its end. Returns whether its addresses changed.
    pub fn set_host(&mut self, id: HostId, record: Option<HostRecord>, revision: i64) -> bool {
        let host = self.host_mut(id);
        if revision < host.mod_revision {
            return false;
        }
        host.mod_revision = if record.is_some() { revision } else { 0 };
        let changed = host.record != record;
        host.record = record;
        self.used(id, 0);
        changed
    }

    /// Takes this host's record, if it is one, as of its last change; 0: it is absent.
    pub fn see_me(&mut self, record: Option<HostRecord>, revision: i64) {
        let me = self.host_mut(ME);
        (me.record, me.mod_revision) = (record, revision);
    }

    /// Takes a host's sign of life, or its end. Returns whether that is news.
    pub fn set_alive(&mut self, id: HostId, is_alive: bool) -> bool {
        let was_alive = std::mem::replace(&mut self.host_mut(id).is_alive, is_alive);
        self.used(id, 0);
        was_alive != is_alive
    }

    /// Hosts that are alive.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_alive).count()
    }

    /// Takes an endpoint's record. Returns what was there, and whether anything changed.
    pub fn set_entry(
        &mut self,
        vni: u32,
        mac: MacAddr,
        record: EndpointRecord,
        revision: i64,
    ) -> (Option<Entry>, bool) {
        let Some(host) = self.id(&record.host) else {
            return (None, false);
        };
        let entry = Entry {
            host,
            generation: record.generation,
            mod_revision: revision,
            ips: record.ips.into(),
            is_active: record.state == EndpointState::Active,
        };
        let full = self.endpoints >= ENDPOINTS_MAX;
        let Some(of) = self.vnis.get_mut(&vni) else {
            return (None, false);
        };
        let had = match of.entries.get_mut(&mac) {
            Some(had) if revision <= had.mod_revision => return (None, false),
            // Of a registry that is gone, and later than what came back.
            Some(had) if had.mod_revision == 0 && entry.generation < had.generation => {
                return (None, false);
            }
            Some(had) => Some(std::mem::replace(had, entry)),
            None if full => {
                self.has_overflown = true;
                return (None, false);
            }
            None => {
                of.entries.insert(mac, entry);
                self.endpoints += 1;
                None
            }
        };
        self.used(host, 1);
        if let Some(had) = &had {
            self.used(had.host, -1);
        }
        (had, true)
    }

    /// Takes the end of an endpoint at a revision. Returns what was there.
    pub fn drop_entry(&mut self, vni: u32, mac: MacAddr, revision: i64) -> Option<Entry> {
        let of = self.vnis.get_mut(&vni)?;
        let had = of.entries.get(&mac)?;
        if revision <= had.mod_revision {
            return None;
        }
        let had = of.entries.remove(&mac)?;
        self.endpoints -= 1;
        self.used(had.host, -1);
        Some(had)
    }

    /// Takes that a host has members in a VNI, or has none any more. Returns whether that is news.
    pub fn set_flood(&mut self, vni: u32, id: HostId, revision: Option<i64>) -> bool {
        let Some(of) = self.vnis.get_mut(&vni) else {
            return false;
        };
        let (is_news, more) = match revision {
            Some(revision) => (of.flood.insert(id, revision).is_none(), 1),
            None => (of.flood.remove(&id).is_some(), -1),
        };
        self.used(id, if is_news { more } else { 0 });
        is_news
    }

    /// Leaves a VNI.
    pub fn drop_vni(&mut self, vni: u32) {
        if let Some(of) = self.vnis.remove(&vni) {
            self.endpoints -= of.entries.len();
            let on = of.entries.into_values().map(|entry| entry.host);
            on.chain(of.flood.into_keys())
                .for_each(|id| self.used(id, -1));
        }
    }

    /// Nothing that is known is confirmed any more.
    pub fn doubt(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.mod_revision = 0);
        for of in self.vnis.values_mut() {
            of.entries
                .values_mut()
                .for_each(|entry| entry.mod_revision = 0);
            of.flood.values_mut().for_each(|revision| *revision = 0);
        }
    }

    /// Nothing that is known of a VNI's endpoints is confirmed any more.
    pub fn doubt_entries(&mut self, vni: u32) {
        let entries = self.vnis.get_mut(&vni).map(|of| of.entries.values_mut());
        entries
            .into_iter()
            .flatten()
            .for_each(|entry| entry.mod_revision = 0);
    }

    /// What is in doubt of a VNI's endpoints yields to any record.
    pub fn yield_doubted(&mut self, vni: u32) {
        let entries = self.vnis.get_mut(&vni).map(|of| of.entries.values_mut());
        let doubted = entries
            .into_iter()
            .flatten()
            .filter(|entry| entry.mod_revision == 0);
        doubted.for_each(|entry| entry.generation = 0);
    }

    /// Hosts whose records are in doubt.
    #[must_use]
    pub fn doubted_hosts(&self) -> Vec<HostId> {
        let doubted = self
            .hosts()
            .filter(|(_, host)| host.record.is_some() && host.mod_revision == 0);
        doubted.map(|(id, _)| id).collect()
    }

    /// Endpoints of a VNI that are in doubt.
    #[must_use]
    pub fn doubted_entries(&self, vni: u32) -> Vec<MacAddr> {
        let entries = self.vnis.get(&vni).map(|of| of.entries.iter());
        let doubted = entries
            .into_iter()
            .flatten()
            .filter(|(_, entry)| entry.mod_revision == 0);
        doubted.map(|(mac, _)| *mac).collect()
    }

    /// Members of a VNI's flood set that are in doubt.
    #[must_use]
    pub fn doubted_flood(&self, vni: u32) -> Vec<HostId> {
        let flood = self.vnis.get(&vni).map(|of| of.flood.iter());
        let doubted = flood
            .into_iter()
            .flatten()
            .filter(|(_, revision)| **revision == 0);
        doubted.map(|(id, _)| *id).collect()
    }
}
