//! Addresses that a member is given while it works: by DHCPv4, DHCPv6 and router advertisements.
//!
//! # Purpose
//! `ip-nospoof` lets a member speak for the addresses that are named. A guest that asks for its address has one that nobody
//! named. The learner reads the exchange and lets the address pass for as long as it is the guest's.
//!
//! # Where it sits
//! ```text
//!  trusted member --> .. --> Trusted: marks what gives addresses --> bridge --> Given --> member
//!  member --> Guard: holds against Table::allowed, Table::sent notes what is asked --> bridge
//! ```
//!
//! # Model
//! Whoever can answer a DHCP request can give any address away. So only answers from *trusted* members count: [`Trusted`] is a
//! stage of those, and marks the frames ([`windlass_frame::Offload::gives`]). It makes the whole frame private first: what is
//! learned is what the guest receives. A frame of any other member never has the mark.
//!
//! | method | learned | until |
//! | --- | --- | --- |
//! | DHCPv4 | the address of an ACK with the `xid`, the hardware address and the client identifier of a request of the member in the last 60 s; one for each client | its lease time; an ACK of another address, a NAK, RELEASE, DECLINE |
//! | DHCPv6 | addresses and delegated prefixes of a REPLY with the transaction and the DUID of a request | their valid lifetime; RELEASE, DECLINE |
//! | SLAAC | for each autonomous /64 of a router advertisement, the address whose interface identifier is made of an own link-layer address (RFC 4291), and those that the guest takes for itself ([`claims`]) | its valid lifetime, by the rules of RFC 4862, section 5.5.3 |
//!
//! An address that another member of the VLAN has by name is not given: a DHCP answer with it is dropped. One that another
//! member was given is that one's no more ([`Holders`]). What is malformed, in fragments, tagged or not whole teaches nothing. Addresses of
//! DHCP are unicast, those of DHCPv6 and routers in 2000::/3 or fc00::/7: neither link-local nor IPv4-mapped.
//!
//! # Ownership and lifetime
//! A [`Learner`] belongs to one member in one VLAN with its link-layer addresses; with other ones it begins anew. It survives
//! topologies, and other named addresses.
//!
//! # Synchronization
//! A mutex for each learner, taken once for each burst that a member sends, and for bursts with marked frames to it. Inside it, the one of
//! [`Holders`]. Never two learners' at a time.
//!
//! # Limits
//! [`LEASES_MAX`] addresses and prefixes, [`PENDING_MAX`] open requests; above that the oldest request is forgotten, and an answer
//! that would give more is dropped, so a guest that fills its tables hurts nobody else. Messages up to 1,920 bytes.
//!
//! # Not done
//! **Leases of tagged VLANs**: what is learned counts for untagged frames.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use windlass_frame::Tick;
use windlass_stats::Drop as Reason;

use crate::guard::{IpNospoof, link_local};
use crate::stage::{EgressStage, Entering};

mod claims;
mod holders;
mod message;
mod trusted;

pub use claims::CLAIMS_MAX;
use claims::Claim;
pub use holders::Holders;
use message::{Answer, Offer, Said};
pub use trusted::Trusted;

/// Addresses and prefixes that one member can have learned.
pub const LEASES_MAX: usize = 64;
/// Requests of one member whose answers are waited for.
pub const PENDING_MAX: usize = 16;
/// Time in which an answer has to come.
const PENDING_NS: u64 = 60 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// A router advertisement shortens the lifetime of an address to this at most (RFC 4862, section 5.5.3).
const SHORTENED_NS: u64 = 7200 * SECOND;
/// A lifetime without an end.
const INFINITE: u32 = u32::MAX;

/// How a member comes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// DHCPv4 (RFC 2131).
    Dhcpv4,
    /// DHCPv6 (RFC 8415).
    Dhcpv6,
    /// Router advertisements (RFC 4862).
    Slaac,
}

/// The ways that are open to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods {
    /// DHCPv4.
    pub dhcpv4: bool,
    /// DHCPv6.
    pub dhcpv6: bool,
    /// Router advertisements.
    pub slaac: bool,
}

impl Methods {
    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self == Methods::default()
    }

    fn has(self, method: Method) -> bool {
        match method {
            Method::Dhcpv4 => self.dhcpv4,
            Method::Dhcpv6 => self.dhcpv6,
            Method::Slaac => self.slaac,
        }
    }
}

/// An address or a prefix that a member was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address, or the first one.
    pub address: IpAddr,
    /// Its bits that count: all, but for a delegated prefix.
    pub bits: u8,
    /// How it was learned.
    pub method: Method,
    /// The client's identifier or DUID; empty with SLAAC.
    pub client: Box<[u8]>,
    /// When it ends; none: never.
    pub until: Option<Tick>,
}

impl Lease {
    fn is(&self, method: Method, offer: &Offer) -> bool {
        (self.address, self.bits, self.method) == (offer.address, offer.bits, method)
    }

    fn is_over(&self, now: Tick) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// What a learner goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The ways that are open.
    pub methods: Methods,
    /// What the member speaks for anyway.
    pub named: IpNospoof,
}

/// A request that may be answered.
#[derive(Debug)]
struct Pending {
    method: Method,
    xid: u32,
    client: Box<[u8]>,
    at: Tick,
}

/// Who is to be told that there is something new.
type Tell = Arc<dyn Fn() + Send + Sync>;

/// What one member has learned.
pub struct Learner {
    table: Mutex<Table>,
    /// Some addresses are claimed: objections are looked for.
    has_claims: AtomicBool,
}

impl std::fmt::Debug for Learner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learner").finish_non_exhaustive()
    }
}

/// What one member has learned, under its lock.
pub struct Table {
    me: Weak<Learner>,
    member: u16,
    macs: Arc<[u64]>,
    conf: Conf,
    holders: Arc<Holders>,
    tell: Tell,
    leases: Vec<Lease>,
    /// The oldest first.
    pending: VecDeque<Pending>,
    /// What is named, what was learned, and the link-local addresses.
    allowed: IpNospoof,
    /// When the first lease ends.
    ends: Option<Tick>,
    claims: Vec<Claim>,
    /// When the first claim is a lease.
    ripens: Option<Tick>,
}

/// An answer gives what the member may not have.
#[derive(Debug, PartialEq, Eq)]
struct Refused;

/// Members that have an address no more.
type Losers = Vec<(Arc<Learner>, IpAddr)>;

impl Learner {
    /// Of a member with this number and these link-layer addresses, as [`windlass_frame::Heads::src`] has them. `holders` are those
    /// of its bridge and untagged VLAN. `tell` is called under a lock, whenever there is something new to be kept.
    pub fn new(
        member: u16,
        macs: &Arc<[u64]>,
        conf: Conf,
        holders: &Arc<Holders>,
        tell: Tell,
    ) -> Arc<Learner> {
        let learner = Arc::new_cyclic(|me| {
            let mut table = Table {
                me: me.clone(),
                member,
                macs: macs.clone(),
                allowed: conf.named.clone(),
                conf,
                holders: holders.clone(),
                tell,
                leases: Vec::new(),
                pending: VecDeque::new(),
                ends: None,
                claims: Vec::new(),
                ripens: None,
            };
            table.renew();
            Learner {
                table: Mutex::new(table),
                has_claims: AtomicBool::new(false),
            }
        });
        let me = Arc::downgrade(&learner);
        let taken = |address| Some((holders.claim(address, &me)?, address));
        take_away(own_links(macs).filter_map(taken).collect());
        learner
    }

    fn note_claims(&self, has_claims: bool) {
        self.has_claims.store(has_claims, Ordering::Release);
    }

    /// Whether it is of a member with these link-layer addresses, among these holders.
    pub fn is_of(&self, macs: &Arc<[u64]>, holders: &Arc<Holders>) -> bool {
        let table = self.table();
        table.macs == *macs && Arc::ptr_eq(&table.holders, holders)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // What a panic might have left is a list of leases, each whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is learned at this moment.
    pub fn lock(&self, now: Tick) -> MutexGuard<'_, Table> {
        let mut table = self.table();
        if table.ends.is_some_and(|ends| ends <= now) {
            table.forget(|lease| lease.is_over(now));
        }
        if table.ripens.is_some_and(|ripens| ripens <= now) {
            table.ripen(now);
        }
        table
    }

    /// Goes by something else: what came by a way that is closed now, or is another member's by name, is forgotten.
    pub fn set(&self, conf: Conf) {
        let mut table = self.table();
        if table.conf != conf {
            table.conf = conf;
            table.end_claims();
            table.renew();
        }
        let (methods, holders, member) = (table.conf.methods, table.holders.clone(), table.member);
        table.forget(|lease| {
            !methods.has(lease.method) || holders.has_named(lease.address, lease.bits, member)
        });
    }

    /// What it has.
    pub fn leases(&self, now: Tick) -> Vec<Lease> {
        self.lock(now).leases.clone()
    }

    /// Takes over what an earlier learner of the member had, as far as it may be learned here.
    pub fn restore(&self, now: Tick, leases: Vec<Lease>) {
        let mut losers = Losers::new();
        let mut table = self.lock(now);
        for lease in leases {
            let offer = Offer {
                address: lease.address,
                bits: lease.bits,
                seconds: 0,
            };
            let may_have = table.may_have(&offer) || table.may_have_chosen(&lease);
            if !lease.is_over(now) && may_have && table.conf.methods.has(lease.method) {
                table.keep(lease, &mut losers);
            }
        }
        table.renew();
        drop(table);
        take_away(losers);
    }
}

/// The member gets what trusted members give: the stage on the way to it.
#[derive(Debug)]
pub struct Given(pub Arc<Learner>);

impl EgressStage for Given {
    fn enter(&self, now: Tick, frames: &mut Entering<'_>) {
        let has_claims = self.0.has_claims.load(Ordering::Acquire);
        for k in 0..frames.len() {
            if has_claims
                && let Some((bytes, _)) = frames.private(k)
                && let Some(address) = claims::objected(bytes)
            {
                self.0.lock(now).is_objected(address.into());
            }
            if !frames.passing(k).is_some_and(|meta| meta.off.gives()) {
                continue;
            }
            let mut losers = Losers::new();
            let got = frames
                .private(k)
                .map(|(bytes, len)| self.0.lock(now).got(now, bytes, len, &mut losers));
            if got == Some(Err(Refused)) {
                frames.drop_frame(k, Reason::LeaseRefused);
            }
            take_away(losers);
        }
    }
}

/// The link-local addresses made of these link-layer addresses.
fn own_links(macs: &[u64]) -> impl Iterator<Item = IpAddr> + '_ {
    macs.iter().map(|mac| link_local(*mac).into())
}

/// Has learners forget addresses that others have now. No lock is held.
fn take_away(losers: Losers) {
    for (learner, address) in losers {
        let mut table = learner.table();
        table.is_objected(address);
        table.forget(|lease| lease.address == address);
    }
}

impl Table {
    /// What the member speaks for.
    #[inline(always)]
    pub fn allowed(&self) -> &IpNospoof {
        &self.allowed
    }

    /// Notes what the member asks for or gives back, in a frame of `len` bytes of which these are private.
    #[cold]
    pub fn sent(&mut self, now: Tick, bytes: &[u8], len: u32) {
        match message::said(bytes, len, &self.macs) {
            Some(Said::Asks {
                method,
                xid,
                client,
            }) if self.conf.methods.has(method) => {
                self.pending.retain(|p| {
                    let is_same = (p.method, p.xid, &*p.client) == (method, xid, &*client);
                    now.since(p.at) < PENDING_NS && !is_same
                });
                if self.pending.len() >= PENDING_MAX {
                    self.pending.pop_front();
                }
                self.pending.push_back(Pending {
                    method,
                    xid,
                    client,
                    at: now,
                });
            }
            Some(Said::Returns { method, addresses }) => self.forget(|lease| {
                lease.method == method && addresses.contains(&(lease.address, lease.bits))
            }),
            Some(Said::Uses(address)) => self.uses(address),
            _ => {}
        }
    }

    /// Learns from a frame that may be believed.
    #[cold]
    fn got(
        &mut self,
        now: Tick,
        bytes: &[u8],
        len: u32,
        losers: &mut Losers,
    ) -> Result<(), Refused> {
        match message::answer(bytes, len, &self.macs) {
            Some(Answer::Dhcp {
                method,
                xid,
                client,
                offers,
            }) => {
                let asked = self.pending.iter().position(|p| {
                    (p.method, p.xid, &*p.client) == (method, xid, &*client)
                        && now.since(p.at) < PENDING_NS
                });
                let Some(asked) = asked.filter(|_| self.conf.methods.has(method)) else {
                    return Ok(());
                };
                self.pending.remove(asked);
                self.give(now, method, &client, &offers, losers)
            }
            Some(Answer::Prefixes(prefixes)) if self.conf.methods.slaac => {
                for (prefix, seconds) in prefixes {
                    self.autoconfigure(now, prefix, seconds, losers);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The addresses that the member makes of an advertised prefix, and those of it that it has. What it may not have is left out: the advertisement has more in it.
    fn autoconfigure(&mut self, now: Tick, prefix: u64, seconds: u32, losers: &mut Losers) {
        let made = self.macs.iter().map(|mac| crate::guard::interface_id(*mac));
        let ids: Vec<u64> = made.chain(self.chosen_in(prefix)).collect();
        for id in ids {
            let mut offer = Offer {
                address: IpAddr::V6((u128::from(prefix) << 64 | u128::from(id)).into()),
                bits: 128,
                seconds,
            };
            let has = self.leases.iter().find(|l| l.is(Method::Slaac, &offer));
            if let Some(lease) = has {
                let left = lease.until.map_or(u64::MAX, |until| until.since(now));
                let valid = u64::from(seconds).saturating_mul(SECOND);
                if valid <= SHORTENED_NS && valid <= left && seconds != INFINITE {
                    if left <= SHORTENED_NS {
                        continue;
                    }
                    offer.seconds = 7200;
                }
            }
            let _ = self.give(now, Method::Slaac, &[], &[offer], losers);
        }
    }

    /// Gives the client of an answer all that the answer says, or nothing.
    fn give(
        &mut self,
        now: Tick,
        method: Method,
        client: &[u8],
        offers: &[Offer],
        losers: &mut Losers,
    ) -> Result<(), Refused> {
        let given = || offers.iter().filter(|offer| offer.seconds != 0);
        if !given().all(|offer| self.may_have(offer)) {
            return Err(Refused);
        }
        // A DHCPv4 client has one address.
        let ends = |lease: &Lease| {
            let same = offers.iter().find(|offer| lease.is(method, offer));
            match same {
                Some(offer) => offer.seconds == 0,
                None => {
                    method == Method::Dhcpv4 && lease.method == method && *lease.client == *client
                }
            }
        };
        let stay = self.leases.iter().filter(|lease| !ends(lease)).count();
        let is_new = |offer: &&Offer| !self.leases.iter().any(|lease| lease.is(method, offer));
        let new = given().filter(is_new).count();
        if stay.saturating_add(new) > LEASES_MAX {
            return Err(Refused);
        }
        self.forget(ends);
        for offer in given() {
            let lease = Lease {
                address: offer.address,
                bits: offer.bits,
                method,
                client: client.into(),
                until: (offer.seconds != INFINITE)
                    .then(|| now.plus(u64::from(offer.seconds).saturating_mul(SECOND))),
            };
            self.keep(lease, losers);
        }
        self.renew();
        (self.tell)();
        Ok(())
    }

    fn may_have(&self, offer: &Offer) -> bool {
        offer.can_be_given()
            && !self
                .holders
                .has_named(offer.address, offer.bits, self.member)
    }

    /// Enters one lease, in the place of the former one of the address. [`Table::renew`] has to follow.
    fn keep(&mut self, lease: Lease, losers: &mut Losers) {
        let former = self.leases.iter().position(|other| {
            (other.address, other.bits, other.method) == (lease.address, lease.bits, lease.method)
        });
        if former.is_none() && self.leases.len() >= LEASES_MAX {
            return;
        }
        if lease.address.is_ipv4() || lease.bits == 128 {
            let loser = self.holders.claim(lease.address, &self.me);
            losers.extend(loser.map(|loser| (loser, lease.address)));
        }
        match former.and_then(|at| self.leases.get_mut(at)) {
            Some(former) => *former = lease,
            None => self.leases.push(lease),
        }
    }

    /// Forgets some of what was learned.
    fn forget(&mut self, mut which: impl FnMut(&Lease) -> bool) {
        let gone: Vec<Lease> = self.leases.extract_if(.., |lease| which(lease)).collect();
        if gone.is_empty() {
            return;
        }
        for lease in gone {
            if self.leases.iter().all(|l| l.address != lease.address) {
                self.holders.release(lease.address, &self.me);
            }
        }
        self.renew();
        (self.tell)();
    }

    /// Finds anew what is allowed, and when that changes by itself.
    fn renew(&mut self) {
        let learned = self.leases.iter().map(|lease| (lease.address, lease.bits));
        self.allowed = self.conf.named.with(&self.macs, learned);
        self.ends = self.leases.iter().filter_map(|lease| lease.until).min();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.end_claims();
        let leased = self.leases.iter().map(|lease| lease.address);
        for address in leased.chain(own_links(&self.macs)) {
            self.holders.release(address, &self.me);
        }
    }
}
