//! Memberships, routers and queriers of one bridge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;
use windlass_frame::Tick;
use windlass_wire::group::has_members;

use crate::message::{Asker, Change, Family, Message, ParseError, parse};
use crate::timers::{Timer, Timers};

/// Robustness variable (RFC 3376, 8.1): so many messages can be lost, less one.
const ROBUSTNESS: u8 = 2;
/// Query response interval (RFC 3376, 8.3), at most half of the query interval.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
/// Last member query interval (RFC 3376, 8.8).
const LAST_RESPONSE: Duration = Duration::from_secs(1);
/// When a membership ends that does not.
const NEVER: Tick = Tick(u64::MAX);
/// Groups of a bridge at most: a number is not another group's before as many others were.
const NUMBERS: u16 = 40_960;

/// How a bridge snoops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Asks where nobody else does.
    pub querier: bool,
    /// Time from one query to the next, in seconds.
    pub interval_s: u32,
    /// Source of queries over IPv4; unspecified: any other querier goes before this one.
    pub address: std::net::Ipv4Addr,
    /// The bridge's address.
    pub mac: [u8; 6],
    /// Memberships at most.
    pub groups_max: u32,
}

/// Whether multicast routers may be behind a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routers {
    /// None: what only routers send is refused.
    #[default]
    Never,
    /// While one is heard.
    Learned,
    /// At any time.
    Always,
}

/// How a port takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortConf {
    /// Routers behind it.
    pub routers: Routers,
    /// One receiver is behind it: where it leaves nobody is asked.
    pub fast_leave: bool,
    /// Memberships at most; 0: only the bridge's limit.
    pub groups_max: u32,
}

/// What a port has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Reports and leaves.
    pub reports: u64,
    /// Queries, and what else routers say.
    pub queries: u64,
    /// The same, refused.
    pub refused: u64,
    /// What could not be read.
    pub malformed: u64,
    /// Memberships for which there was no room, or that another port took.
    pub over_limit: u64,
}

/// Who gets a frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relay {
    /// Ports where routers are.
    Routers(Family),
    /// Everybody.
    All,
}

/// Why nobody gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is malformed.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// Only a router says so, and none may be there.
    #[error("a multicast router, and the port may have none")]
    Router,
    /// There is no such port.
    #[error("no port {0}")]
    NoPort(u16),
}

/// A query of this bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// In which VLAN.
    pub vid: u16,
    /// To which port; `None`: to all.
    pub port: Option<u16>,
    /// The frame, without a tag.
    pub frame: Vec<u8>,
}

/// A group and who receives it.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// In which VLAN.
    pub vid: u16,
    /// Its address.
    pub address: IpAddr,
    /// Its number, which is not another group's soon after.
    pub number: u16,
    ports: &'a BTreeMap<u16, Membership>,
}

impl<'a> Group<'a> {
    /// Its ports, and until when each is in it; `None`: at all times ([`Snooper::set_static`]).
    pub fn ports(&self) -> impl Iterator<Item = (u16, Option<Tick>)> + use<'a> {
        let until = |m: &Membership| (!m.is_static()).then_some(m.until);
        self.ports.iter().map(move |(port, m)| (*port, until(m)))
    }
}

#[derive(Debug, Default)]
struct Port {
    conf: PortConf,
    /// What it has asked for.
    groups: BTreeSet<(u16, IpAddr)>,
    /// What it is in at all times.
    statics: BTreeSet<(u16, IpAddr)>,
    counts: PortCounts,
}

#[derive(Debug)]
struct Membership {
    until: Tick,
    /// Until then somebody may be there who does not say that he leaves.
    silent_until: Tick,
    /// When it is asked for once more.
    ask_at: Option<Tick>,
    armed: Option<Tick>,
}

impl Membership {
    fn is_static(&self) -> bool {
        self.until == NEVER
    }
}

#[derive(Debug)]
struct Entry {
    number: u16,
    ports: BTreeMap<u16, Membership>,
}

/// Another querier.
#[derive(Clone, Copy, Debug)]
struct Other {
    source: IpAddr,
    port: u16,
    until: Tick,
}

/// A port where a router was heard.
#[derive(Clone, Copy, Debug)]
struct Router {
    until: Tick,
    armed: Option<Tick>,
}

/// One VLAN and family.
#[derive(Debug, Default)]
struct Vlan {
    other: Option<Other>,
    /// Our next query, and how many come soon.
    query_at: Option<Tick>,
    startup: u8,
    /// Since when, or from when on, groups go to members only.
    snoops_from: Option<Tick>,
    is_snooped: bool,
    routers: BTreeMap<u16, Router>,
    armed: Option<Tick>,
}

impl Vlan {
    fn next(&self) -> Option<Tick> {
        let answered = self.snoops_from.filter(|_| !self.is_snooped);
        let other = self.other.map(|other| other.until);
        [answered, other, self.query_at].into_iter().flatten().min()
    }
}

/// Memberships, routers and queriers of one bridge.
#[derive(Debug)]
pub struct Snooper {
    conf: Conf,
    vids: BTreeSet<u16>,
    ports: BTreeMap<u16, Port>,
    /// Those where routers are at all times.
    always: BTreeSet<u16>,
    vlans: BTreeMap<(u16, Family), Vlan>,
    groups: BTreeMap<(u16, IpAddr), Entry>,
    memberships: u32,
    /// Numbers that were groups', in the order in which they became free; those above were none's so far.
    free: VecDeque<u16>,
    unused: u16,
    timers: Timers,
    queries: Vec<Query>,
    version: u64,
}

impl Snooper {
    /// With no port and no VLAN.
    pub fn new(conf: Conf) -> Snooper {
        Snooper {
            conf,
            vids: BTreeSet::new(),
            ports: BTreeMap::new(),
            always: BTreeSet::new(),
            vlans: BTreeMap::new(),
            groups: BTreeMap::new(),
            memberships: 0,
            free: VecDeque::new(),
            unused: 0,
            timers: Timers::default(),
            queries: Vec::new(),
            version: 0,
        }
    }

    /// Changes how it snoops, and in which VLANs.
    pub fn configure(&mut self, conf: Conf, vids: &BTreeSet<u16>, now: Tick) {
        let former = std::mem::replace(&mut self.conf, conf);
        if former == conf && *vids == self.vids {
            return;
        }
        self.vids.clone_from(vids);
        let gone: Vec<_> = self
            .vlans
            .keys()
            .filter(|(vid, _)| !vids.contains(vid))
            .copied()
            .collect();
        for key in gone {
            self.forget_vlan(key);
        }
        for key in vids.iter().flat_map(|vid| Family::ALL.map(|f| (*vid, f))) {
            let is_new = !self.vlans.contains_key(&key);
            let vlan = self.vlans.entry(key).or_default();
            let asks = conf.querier && vlan.other.is_none();
            if !asks && vlan.query_at.take().is_some() && vlan.other.is_none() {
                // Nobody renews memberships any more.
                (vlan.snoops_from, vlan.is_snooped) = (None, false);
                self.version = self.version.wrapping_add(1);
            }
            if asks && (is_new || former != conf || vlan.query_at.is_none()) {
                vlan.query_at = Some(now);
                vlan.startup = ROBUSTNESS;
            }
            self.arm_vlan(key);
        }
        while self.memberships > conf.groups_max && self.take_from_richest() {}
    }

    fn forget_vlan(&mut self, (vid, family): (u16, Family)) {
        let Some(mut vlan) = self.vlans.remove(&(vid, family)) else {
            return;
        };
        let timer = Timer::Vlan(vid, family);
        self.timers.arm(&mut vlan.armed, None, timer);
        for (port, mut router) in vlan.routers {
            let timer = Timer::Router(vid, family, port);
            self.timers.arm(&mut router.armed, None, timer);
        }
        let here = |(v, group): &&(u16, IpAddr)| *v == vid && Family::of(*group) == family;
        let groups: Vec<_> = self.groups.keys().filter(here).copied().collect();
        for (vid, group) in groups {
            let ports = self.groups.get(&(vid, group)).into_iter();
            let ports: Vec<_> = ports.flat_map(|e| e.ports.keys().copied()).collect();
            ports.into_iter().for_each(|p| self.end(vid, group, p));
        }
        self.version = self.version.wrapping_add(1);
    }

    /// Adds a port, or changes how it takes part.
    pub fn set_port(&mut self, id: u16, conf: PortConf) {
        let is_new = !self.ports.contains_key(&id);
        let port = self.ports.entry(id).or_default();
        let former = std::mem::replace(&mut port.conf, conf);
        match conf.routers {
            Routers::Always => self.always.insert(id),
            _ => self.always.remove(&id),
        };
        if former.routers != conf.routers || is_new {
            self.version = self.version.wrapping_add(1);
            if conf.routers == Routers::Never {
                self.forget_router(id);
            }
        }
    }

    /// Which groups a port is in at all times, whatever it says. They have a place before those that are asked for, and the limit of
    /// the port does not count them. Those of VLANs that are not snooped count for nothing: to be told again when VLANs change.
    pub fn set_static(&mut self, id: u16, wanted: &BTreeSet<(u16, IpAddr)>) {
        let Some(port) = self.ports.get(&id) else {
            return;
        };
        let gone: Vec<_> = port.statics.difference(wanted).copied().collect();
        let new: Vec<_> = wanted.difference(&port.statics).copied().collect();
        for (vid, group) in gone {
            self.end(vid, group, id);
        }
        for (vid, group) in new {
            if !self.vlans.contains_key(&(vid, Family::of(group))) {
                continue;
            }
            self.end(vid, group, id);
            while self.memberships >= self.conf.groups_max && self.take_from_richest() {}
            self.enter(vid, group, id, (NEVER, NEVER));
        }
    }

    /// Removes a port.
    pub fn remove_port(&mut self, id: u16) {
        self.set_static(id, &BTreeSet::new());
        self.link_down(id);
        let port = self.ports.remove(&id);
        self.always.remove(&id);
        self.version = self.version.wrapping_add(u64::from(port.is_some()));
    }

    /// Nobody is behind a port any more, and nothing is asked there: its number may be another port's before the queries are sent.
    pub fn link_down(&mut self, id: u16) {
        self.queries.retain(|query| query.port != Some(id));
        let port = self.ports.get_mut(&id);
        let groups = port.map(|port| std::mem::take(&mut port.groups));
        for (vid, group) in groups.into_iter().flatten() {
            self.end(vid, group, id);
        }
        self.forget_router(id);
    }

    fn forget_router(&mut self, id: u16) {
        for ((vid, family), vlan) in &mut self.vlans {
            if let Some(mut router) = vlan.routers.remove(&id) {
                let timer = Timer::Router(*vid, *family, id);
                self.timers.arm(&mut router.armed, None, timer);
                self.version = self.version.wrapping_add(1);
            }
        }
    }

    /// The topology behind ports has changed: groups go to everybody until receivers have answered the next general query, which is
    /// ours and comes at once where this bridge is the querier (RFC 4541, 2.1.1).
    pub fn reopen(&mut self, now: Tick) {
        let keys: Vec<_> = self.vlans.keys().copied().collect();
        for key in keys {
            if let Some(vlan) = self.vlans.get_mut(&key) {
                (vlan.snoops_from, vlan.is_snooped) = (None, false);
                vlan.query_at = vlan.query_at.map(|_| now);
            }
            self.arm_vlan(key);
        }
        self.version = self.version.wrapping_add(1);
    }

    /// How it snoops.
    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// Another number after each change that the data plane has to know of.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Queries to be sent, in order.
    pub fn take_queries(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.queries)
    }

    /// Whether groups of a family go to members and routers only.
    pub fn is_snooped(&self, vid: u16, family: Family) -> bool {
        let vlan = self.vlans.get(&(vid, family));
        vlan.is_some_and(|vlan| vlan.is_snooped)
    }

    /// VLANs and families.
    pub fn vlans(&self) -> impl Iterator<Item = (u16, Family)> + '_ {
        self.vlans.keys().copied()
    }

    /// Ports behind which routers of a VLAN are.
    pub fn routers(&self, vid: u16, family: Family) -> Vec<u16> {
        let vlan = self.vlans.get(&(vid, family)).into_iter();
        let learned = vlan.flat_map(|vlan| vlan.routers.keys());
        let all: BTreeSet<u16> = learned.chain(&self.always).copied().collect();
        all.into_iter().collect()
    }

    /// The querier of a VLAN: its source, and the port that it is behind; `None`: this bridge.
    pub fn querier(&self, vid: u16, family: Family) -> Option<(IpAddr, Option<u16>)> {
        let vlan = self.vlans.get(&(vid, family))?;
        match vlan.other {
            Some(other) => Some((other.source, Some(other.port))),
            None => {
                let ours = (self.asker().source(family), None);
                vlan.query_at.map(|_| ours)
            }
        }
    }

    /// Groups and who receives them.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        self.groups.iter().map(|((vid, address), entry)| Group {
            vid: *vid,
            address: *address,
            number: entry.number,
            ports: &entry.ports,
        })
    }

    /// What a port has sent.
    pub fn counts(&self, port: u16) -> PortCounts {
        self.ports
            .get(&port)
            .map_or_else(PortCounts::default, |p| p.counts)
    }

    /// Memberships that a port has asked for.
    pub fn memberships(&self, port: u16) -> usize {
        self.ports.get(&port).map_or(0, |p| p.groups.len())
    }

    /// Reads a frame that came from a port; who gets it.
    ///
    /// # Errors
    /// Why nobody does.
    pub fn receive(
        &mut self,
        id: u16,
        vid: u16,
        frame: &[u8],
        now: Tick,
    ) -> Result<Relay, Refused> {
        let port = self.ports.get_mut(&id).ok_or(Refused::NoPort(id))?;
        let (family, message) = parse(frame)
            .inspect_err(|_| port.counts.malformed = port.counts.malformed.wrapping_add(1))?;
        let counts = &mut port.counts;
        let may_route = port.conf.routers != Routers::Never;
        match &message {
            Message::Query { .. } | Message::Router if !may_route => {
                counts.refused = counts.refused.wrapping_add(1);
                return Err(Refused::Router);
            }
            Message::Query { .. } | Message::Router => {
                counts.queries = counts.queries.wrapping_add(1);
            }
            Message::Reports(_) => counts.reports = counts.reports.wrapping_add(1),
            Message::Other => {}
        }
        match message {
            Message::Reports(reports) => {
                for (group, change) in reports.into_iter().filter(|(g, _)| has_members(*g)) {
                    match change {
                        Change::Join => self.join(vid, group, id, false, now),
                        Change::JoinV1 => self.join(vid, group, id, true, now),
                        Change::Leave => self.leave(vid, group, id, true, now),
                        Change::Block => self.leave(vid, group, id, false, now),
                    }
                }
                Ok(Relay::Routers(family))
            }
            Message::Router => {
                self.hear_router(vid, family, id, now);
                Ok(Relay::All)
            }
            Message::Query {
                source,
                group,
                response,
                suppress,
            } => {
                if !source.is_unspecified() {
                    self.hear_router(vid, family, id, now);
                    self.hear_query((vid, family), id, source, (group, response, suppress), now);
                }
                Ok(Relay::All)
            }
            Message::Other => Ok(Relay::All),
        }
    }

    fn asker(&self) -> Asker {
        Asker {
            mac: self.conf.mac,
            address: self.conf.address,
            robustness: ROBUSTNESS,
            interval_s: self.conf.interval_s,
        }
    }

    fn response(&self) -> Duration {
        RESPONSE_MAX.min(Duration::from_nanos(self.interval_ns() / 2))
    }

    fn interval_ns(&self) -> u64 {
        seconds(self.conf.interval_s.max(1))
    }

    /// RFC 3376, 8.4.
    fn membership_ns(&self) -> u64 {
        let queries = self.interval_ns().saturating_mul(u64::from(ROBUSTNESS));
        queries.saturating_add(nanos(self.response()))
    }

    fn hear_router(&mut self, vid: u16, family: Family, id: u16, now: Tick) {
        let until = now.plus(self.membership_ns());
        let Some(vlan) = self.vlans.get_mut(&(vid, family)) else {
            return;
        };
        if let Some(router) = vlan.routers.get_mut(&id) {
            router.until = until;
            return;
        }
        let mut router = Router { until, armed: None };
        let timer = Timer::Router(vid, family, id);
        self.timers.arm(&mut router.armed, Some(until), timer);
        vlan.routers.insert(id, router);
        self.version = self.version.wrapping_add(1);
    }

    fn hear_query(
        &mut self,
        key: (u16, Family),
        port: u16,
        source: IpAddr,
        (group, response, suppress): (Option<IpAddr>, Duration, bool),
        now: Tick,
    ) {
        let ours = self.asker().source(key.1);
        let until = now.plus(
            self.membership_ns()
                .saturating_sub(nanos(self.response()) / 2),
        );
        let Some(vlan) = self.vlans.get_mut(&key) else {
            return;
        };
        let is_lower = match vlan.other {
            Some(other) => source <= other.source,
            None => vlan.query_at.is_none() || ours.is_unspecified() || source < ours,
        };
        if !is_lower {
            return;
        }
        vlan.other = Some(Other {
            source,
            port,
            until,
        });
        vlan.query_at = None;
        match group {
            None => {
                vlan.snoops_from.get_or_insert(now.plus(nanos(response)));
            }
            Some(group) if !suppress => {
                let until = now.plus(nanos(response).saturating_mul(ROBUSTNESS.into()));
                self.shorten(key.0, group, until);
            }
            Some(_) => {}
        }
        self.arm_vlan(key);
    }

    /// A group's memberships end soon, unless they are renewed.
    fn shorten(&mut self, vid: u16, group: IpAddr, until: Tick) {
        let Some(entry) = self.groups.get_mut(&(vid, group)) else {
            return;
        };
        for (port, membership) in entry.ports.iter_mut().filter(|(_, m)| !m.is_static()) {
            membership.until = membership.until.min(until);
            arm(&mut self.timers, membership, (vid, group, *port));
        }
    }

    fn join(&mut self, vid: u16, group: IpAddr, id: u16, is_v1: bool, now: Tick) {
        let until = now.plus(self.membership_ns());
        if !self.vlans.contains_key(&(vid, Family::of(group))) {
            return;
        }
        let silent_until = if is_v1 { until } else { Tick(0) };
        let entry = self.groups.get_mut(&(vid, group));
        if let Some(known) = entry.and_then(|entry| entry.ports.get_mut(&id)) {
            known.until = known.until.max(until);
            known.silent_until = known.silent_until.max(silent_until);
            // The timer finds that it is too early.
            known.ask_at = None;
            return;
        }
        if !self.make_room(id) {
            return;
        }
        self.enter(vid, group, id, (until, silent_until));
    }

    /// A membership begins, for which there is room.
    fn enter(&mut self, vid: u16, group: IpAddr, id: u16, (until, silent_until): (Tick, Tick)) {
        let number = match self.groups.get(&(vid, group)) {
            Some(entry) => Some(entry.number),
            None => self.number(),
        };
        let (Some(number), Some(port)) = (number, self.ports.get_mut(&id)) else {
            return;
        };
        let mut membership = Membership {
            until,
            silent_until,
            ask_at: None,
            armed: None,
        };
        let list = match membership.is_static() {
            true => &mut port.statics,
            false => {
                arm(&mut self.timers, &mut membership, (vid, group, id));
                &mut port.groups
            }
        };
        list.insert((vid, group));
        let entry = self.groups.entry((vid, group)).or_insert_with(|| Entry {
            number,
            ports: BTreeMap::new(),
        });
        entry.ports.insert(id, membership);
        self.memberships = self.memberships.saturating_add(1);
        self.version = self.version.wrapping_add(1);
    }

    /// A number for a group.
    fn number(&mut self) -> Option<u16> {
        if self.unused < NUMBERS {
            let number = self.unused;
            self.unused = self.unused.saturating_add(1);
            return Some(number);
        }
        self.free.pop_front()
    }

    /// Whether a port can have one membership more.
    fn make_room(&mut self, id: u16) -> bool {
        let has = |port: &Port| port.groups.len();
        let Some(port) = self.ports.get_mut(&id) else {
            return false;
        };
        let (mine, max) = (has(port), port.conf.groups_max as usize);
        let mut is_room = max == 0 || mine < max;
        if is_room && self.memberships >= self.conf.groups_max {
            let most = self.ports.values().map(has).max().unwrap_or(0);
            is_room = most > mine.saturating_add(1);
            if is_room {
                self.take_from_richest();
            }
        }
        if let (false, Some(port)) = (is_room, self.ports.get_mut(&id)) {
            port.counts.over_limit = port.counts.over_limit.wrapping_add(1);
        }
        is_room
    }

    /// Ends a membership of the port that has asked for most; whether there was one.
    fn take_from_richest(&mut self) -> bool {
        let ports = self.ports.iter_mut();
        let Some((id, port)) = ports.max_by_key(|(_, p)| p.groups.len()) else {
            return false;
        };
        let (id, Some((vid, group))) = (*id, port.groups.last().copied()) else {
            return false;
        };
        port.counts.over_limit = port.counts.over_limit.wrapping_add(1);
        self.end(vid, group, id);
        true
    }

    /// A membership ends.
    fn end(&mut self, vid: u16, group: IpAddr, id: u16) {
        let Some(entry) = self.groups.get_mut(&(vid, group)) else {
            return;
        };
        let Some(mut membership) = entry.ports.remove(&id) else {
            return;
        };
        let timer = Timer::Membership(vid, group, id);
        self.timers.arm(&mut membership.armed, None, timer);
        if entry.ports.is_empty() {
            self.free.push_back(entry.number);
            self.groups.remove(&(vid, group));
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.groups.remove(&(vid, group));
            port.statics.remove(&(vid, group));
        }
        self.memberships = self.memberships.saturating_sub(1);
        self.version = self.version.wrapping_add(1);
    }

    fn leave(&mut self, vid: u16, group: IpAddr, id: u16, is_whole: bool, now: Tick) {
        let family = Family::of(group);
        let is_fast = self.ports.get(&id).is_some_and(|p| p.conf.fast_leave);
        let vlan = self.vlans.get(&(vid, family));
        let asks = vlan.is_some_and(|vlan| vlan.query_at.is_some());
        let frame = self.asker().query(family, Some(group), LAST_RESPONSE);
        let Some(entry) = self.groups.get_mut(&(vid, group)) else {
            return;
        };
        let Some(membership) = entry.ports.get_mut(&id) else {
            return;
        };
        if membership.silent_until > now {
            return;
        }
        if is_fast && is_whole {
            self.end(vid, group, id);
        } else if asks && membership.ask_at.is_none() {
            let last = nanos(LAST_RESPONSE);
            let until = now.plus(last.saturating_mul(ROBUSTNESS.into()));
            if membership.until <= until {
                // Asked for already.
                return;
            }
            membership.until = until;
            membership.ask_at = Some(now.plus(last));
            arm(&mut self.timers, membership, (vid, group, id));
            let port = Some(id);
            self.queries.push(Query { vid, port, frame });
        }
    }

    /// When [`Snooper::advance`] has something to do.
    pub fn due(&self) -> Option<Tick> {
        self.timers.due()
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Tick) {
        while let Some(timer) = self.timers.take(now) {
            match timer {
                Timer::Membership(vid, group, port) => self.membership_due(vid, group, port, now),
                Timer::Router(vid, family, port) => self.router_due((vid, family), port, now),
                Timer::Vlan(vid, family) => self.vlan_due((vid, family), now),
            }
        }
    }

    fn membership_due(&mut self, vid: u16, group: IpAddr, id: u16, now: Tick) {
        let asker = self.asker();
        let Some(entry) = self.groups.get_mut(&(vid, group)) else {
            return;
        };
        let Some(membership) = entry.ports.get_mut(&id) else {
            return;
        };
        membership.armed = None;
        if membership.until <= now {
            return self.end(vid, group, id);
        }
        if membership.ask_at.is_some_and(|at| at <= now) {
            membership.ask_at = None;
            self.queries.push(Query {
                vid,
                port: Some(id),
                frame: asker.query(Family::of(group), Some(group), LAST_RESPONSE),
            });
        }
        arm(&mut self.timers, membership, (vid, group, id));
    }

    fn router_due(&mut self, key: (u16, Family), id: u16, now: Tick) {
        let Some(vlan) = self.vlans.get_mut(&key) else {
            return;
        };
        let Some(router) = vlan.routers.get_mut(&id) else {
            return;
        };
        router.armed = None;
        if router.until <= now {
            vlan.routers.remove(&id);
            self.version = self.version.wrapping_add(1);
            return;
        }
        let timer = Timer::Router(key.0, key.1, id);
        let until = Some(router.until);
        self.timers.arm(&mut router.armed, until, timer);
    }

    fn vlan_due(&mut self, key: (u16, Family), now: Tick) {
        let (asker, querier, interval) = (self.asker(), self.conf.querier, self.interval_ns());
        let response = self.response();
        let Some(vlan) = self.vlans.get_mut(&key) else {
            return;
        };
        vlan.armed = None;
        if vlan.other.is_some_and(|other| other.until <= now) {
            vlan.other = None;
            if querier {
                (vlan.query_at, vlan.startup) = (Some(now), ROBUSTNESS);
            } else {
                (vlan.snoops_from, vlan.is_snooped) = (None, false);
                self.version = self.version.wrapping_add(1);
            }
        }
        if vlan.query_at.is_some_and(|at| at <= now) {
            vlan.startup = vlan.startup.saturating_sub(1);
            // RFC 3376, 8.6.
            let wait = if vlan.startup > 0 {
                interval / 4
            } else {
                interval
            };
            vlan.query_at = Some(now.plus(wait));
            vlan.snoops_from.get_or_insert(now.plus(nanos(response)));
            self.queries.push(Query {
                vid: key.0,
                port: None,
                frame: asker.query(key.1, None, response),
            });
        }
        if !vlan.is_snooped && vlan.snoops_from.is_some_and(|from| from <= now) {
            vlan.is_snooped = true;
            self.version = self.version.wrapping_add(1);
        }
        self.arm_vlan(key);
    }

    fn arm_vlan(&mut self, key: (u16, Family)) {
        if let Some(vlan) = self.vlans.get_mut(&key) {
            let next = vlan.next();
            let timer = Timer::Vlan(key.0, key.1);
            self.timers.arm(&mut vlan.armed, next, timer);
        }
    }
}

/// Has a membership's timer be due no later than it ends or is asked for. One that is due earlier finds so.
fn arm(timers: &mut Timers, membership: &mut Membership, (vid, group, id): (u16, IpAddr, u16)) {
    let next = membership.ask_at.unwrap_or(membership.until);
    let next = next.min(membership.until);
    let next = membership.armed.map_or(next, |armed| armed.min(next));
    let timer = Timer::Membership(vid, group, id);
    timers.arm(&mut membership.armed, Some(next), timer);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(n: u32) -> u64 {
    u64::from(n).saturating_mul(1_000_000_000)
}
