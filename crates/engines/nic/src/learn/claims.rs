//! Addresses that a member takes for itself: stable-privacy and temporary ones (RFC 7217, RFC 8981), and such link-local ones.
//!
//! # Model
//! Nobody gives these. Before a guest uses one, it asks all others whether they have it (duplicate address detection, RFC 4862, section 5.4).
//! Who asks first gets the address (RFC 6620, FCFS SAVI), if it lies in a prefix that a router has advertised, or is link-local:
//!
//! ```text
//!   NS from :: ---> claimed ---- nobody objects for 0.5 s ---> a lease of SLAAC
//!                      |
//!                      +-- NA, or NS from ::, of its target to the member ---> nobody's
//! ```
//! A claimed address is nobody else's meanwhile, and the guest may send nothing from it. A question for what another
//! learner of the VLAN has is dropped.
//!
//! # Limits
//! [`CLAIMS_MAX`] such addresses. Above that, the one that neighbour discovery has not shown for longest gives way: a guest makes a new
//! temporary address each day and says nothing when an old one ends.

use std::net::{IpAddr, Ipv6Addr};

use windlass_frame::Tick;
use windlass_wire::ether::{self, proto};

use super::{LEASES_MAX, Lease, Method, SECOND, Table, message};
use crate::guard::{interface_id, nd};

/// Addresses of its own choice that one member can have.
pub const CLAIMS_MAX: usize = 32;
/// Time for others to object (RFC 6620: the lifetime of a tentative binding).
const TENTATIVE_NS: u64 = SECOND / 2;
/// The upper half of link-local addresses.
const LOCAL: u64 = 0xfe80 << 48;
/// Interface identifiers of subnet anycast addresses, from here up to all ones but for the u bit (RFC 2526), and of the router's, 0.
const ANYCAST: std::ops::RangeInclusive<u64> = 0xfdff_ffff_ffff_ff80..=0xfdff_ffff_ffff_ffff;

/// An address that is asked for.
#[derive(Debug)]
pub(super) struct Claim {
    address: Ipv6Addr,
    at: Tick,
}

/// Upper and lower half.
fn halves(address: Ipv6Addr) -> (u64, u64) {
    let bits = address.to_bits();
    ((bits >> 64) as u64, bits as u64)
}

/// Whose address a frame to the member says it is, in the form that is usual: an advertisement, or a question as the member's own. It did
/// not come by a router.
pub(super) fn objected(bytes: &[u8]) -> Option<Ipv6Addr> {
    let head: &[u8; 78] = bytes.first_chunk()?;
    let [.., number, _, _, _, _, _, _, _] = *head.first_chunk::<62>()?;
    let source: &[u8; 16] = head.get(22..38)?.first_chunk()?;
    let is_icmp = u16::from_be_bytes([head[12], head[13]]) == ether::IPV6
        && (head[20], head[21]) == (proto::ICMPV6, 255);
    let objects = match number {
        nd::NEIGHBOUR_ADVERTISEMENT => true,
        nd::NEIGHBOUR_SOLICITATION => *source == [0; 16],
        _ => false,
    };
    let target: &[u8; 16] = head.last_chunk()?;
    (is_icmp && objects).then(|| (*target).into())
}

/// Addresses of SLAAC, and when they end.
fn slaac(leases: &[Lease]) -> impl Iterator<Item = (Ipv6Addr, Option<Tick>)> + '_ {
    leases.iter().filter_map(|lease| match lease.address {
        IpAddr::V6(address) if lease.method == Method::Slaac => Some((address, lease.until)),
        _ => None,
    })
}

impl Table {
    /// The member asks whether anybody has an address that it may not use yet, in a frame of `len` bytes of which these are private; whether
    /// it may.
    #[cold]
    pub(crate) fn claims(&mut self, now: Tick, bytes: &[u8], len: u32) -> bool {
        let asked = message::asked(bytes, len);
        asked.is_some_and(|address| self.claim(now, address))
    }

    fn claim(&mut self, now: Tick, address: Ipv6Addr) -> bool {
        if self.claims.iter().any(|claim| claim.address == address) {
            return true;
        }
        let (prefix, id) = halves(address);
        let may_be = self.conf.methods.slaac
            && id != 0
            && !ANYCAST.contains(&id)
            && self.life_in(prefix).is_some()
            && !self.holders.has_named(address.into(), 128, self.member);
        if !may_be || !self.holders.claim_free(address.into(), &self.me) {
            return false;
        }
        if !self.has_room() {
            self.holders.release(address.into(), &self.me);
            return false;
        }
        self.claims.push(Claim { address, at: now });
        self.note_claims();
        true
    }

    /// Room for one more, if need be in the place of another.
    fn has_room(&mut self) -> bool {
        let chosen = self.chosen().count();
        if chosen.saturating_add(self.claims.len()) < CLAIMS_MAX {
            return self.leases.len().saturating_add(self.claims.len()) < LEASES_MAX;
        }
        // A guest has one that is link-local and many others.
        let last = self.chosen().find(|address| halves(*address).0 != LOCAL);
        let Some(last) = last.or_else(|| self.chosen().next()) else {
            return false;
        };
        self.forget(|lease| lease.method == Method::Slaac && lease.address == last);
        true
    }

    /// Addresses of SLAAC that are not made of the member's link-layer addresses, the one that was not seen for longest first.
    fn chosen(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        let made = |id| self.macs.iter().any(|mac| interface_id(*mac) == id);
        slaac(&self.leases).filter_map(move |(address, _)| {
            let (_, id) = halves(address);
            (!made(id)).then_some(address)
        })
    }

    /// The lower halves of those in a prefix.
    pub(super) fn chosen_in(&self, prefix: u64) -> impl Iterator<Item = u64> + '_ {
        self.chosen().filter_map(move |address| {
            let (upper, id) = halves(address);
            (upper == prefix).then_some(id)
        })
    }

    /// Whether an earlier learner of the member may have let it have a link-local address; others are as those that are given.
    pub(super) fn may_have_chosen(&self, lease: &Lease) -> bool {
        let is_local = matches!(lease.address, IpAddr::V6(address) if halves(address).0 == LOCAL);
        let is_one = lease.bits == 128 && lease.method == Method::Slaac;
        is_local && is_one && !self.holders.has_named(lease.address, 128, self.member)
    }

    /// How long addresses of a prefix live that the member may make addresses of: as long as the one made of its link-layer address.
    fn life_in(&self, prefix: u64) -> Option<Option<Tick>> {
        if prefix == LOCAL {
            return Some(None);
        }
        let made = |id| self.macs.iter().any(|mac| interface_id(*mac) == id);
        let mut all = slaac(&self.leases);
        let found = all.find(|(address, _)| {
            let (upper, id) = halves(*address);
            upper == prefix && made(id)
        });
        found.map(|(_, until)| until)
    }

    /// Others have had their time to object to these.
    #[cold]
    pub(super) fn ripen(&mut self, now: Tick) {
        let ripe = |claim: &mut Claim| now.since(claim.at) >= TENTATIVE_NS;
        let ripe: Vec<Claim> = self.claims.extract_if(.., ripe).collect();
        for Claim { address, .. } in ripe {
            let (address_ip, (prefix, _)) = (address.into(), halves(address));
            match self.life_in(prefix) {
                Some(until) if self.leases.len() < LEASES_MAX => self.leases.push(Lease {
                    address: address_ip,
                    bits: 128,
                    method: Method::Slaac,
                    client: Box::default(),
                    until,
                }),
                _ => self.holders.release(address_ip, &self.me),
            }
        }
        self.note_claims();
        self.renew();
        (self.tell)();
    }

    /// Somebody else has an address that the member asked for.
    pub(super) fn is_objected(&mut self, address: IpAddr) {
        let gone = self.claims.extract_if(.., |claim| address == claim.address);
        if gone.count() != 0 {
            self.holders.release(address, &self.me);
            self.note_claims();
        }
    }

    /// All claims end.
    pub(super) fn end_claims(&mut self) {
        for Claim { address, .. } in std::mem::take(&mut self.claims) {
            self.holders.release(address.into(), &self.me);
        }
        self.note_claims();
    }

    /// Neighbour discovery shows that the member uses an address: others give way before it.
    pub(super) fn uses(&mut self, address: IpAddr) {
        let is_it = |lease: &Lease| lease.method == Method::Slaac && lease.address == address;
        if let Some(at) = self.leases.iter().position(is_it) {
            let lease = self.leases.remove(at);
            self.leases.push(lease);
        }
    }

    /// Finds anew whether there are claims, and when the first one is ripe.
    fn note_claims(&mut self) {
        let first = self.claims.iter().map(|claim| claim.at).min();
        self.ripens = first.map(|at| at.plus(TENTATIVE_NS));
        if let Some(learner) = self.me.upgrade() {
            learner.note_claims(first.is_some());
        }
    }
}
