//! Who has which address in one VLAN of a bridge.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use super::Learner;

/// The addresses of the members of one VLAN: by name, and learned.
#[derive(Debug, Default)]
pub struct Holders(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Members by the addresses that are named for them.
    named: BTreeMap<IpAddr, Vec<u16>>,
    learned: BTreeMap<IpAddr, Weak<Learner>>,
}

impl Holders {
    fn known(&self) -> MutexGuard<'_, Known> {
        // What a panic might have left are two maps, each whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these addresses are named for these members, and no others.
    pub fn name(&self, named: impl IntoIterator<Item = (IpAddr, u16)>) {
        let mut all: BTreeMap<IpAddr, Vec<u16>> = BTreeMap::new();
        for (address, member) in named {
            all.entry(address).or_default().push(member);
        }
        self.known().named = all;
    }

    /// Whether an address of this prefix is named for a member other than this one, and not for this one.
    pub(super) fn has_named(&self, address: IpAddr, bits: u8, member: u16) -> bool {
        let last = last(address, bits);
        let known = self.known();
        let mut named = known.named.range(address..=last);
        named.any(|(_, members)| !members.contains(&member))
    }

    /// The address is this learner's. Whose it was, if it was another one's.
    pub(super) fn claim(
        &self,
        address: IpAddr,
        by: &Weak<Learner>,
    ) -> Option<std::sync::Arc<Learner>> {
        let former = self.known().learned.insert(address, by.clone());
        former
            .filter(|former| !former.ptr_eq(by))
            .and_then(|former| former.upgrade())
    }

    /// The address is this learner's, unless another one has it; whether it is.
    pub(super) fn claim_free(&self, address: IpAddr, by: &Weak<Learner>) -> bool {
        let mut known = self.known();
        let has = known.learned.get(&address);
        let is_free = has.is_none_or(|has| has.ptr_eq(by) || has.strong_count() == 0);
        if is_free {
            known.learned.insert(address, by.clone());
        }
        is_free
    }

    /// The address is nobody's, if it was this learner's.
    pub(super) fn release(&self, address: IpAddr, by: &Weak<Learner>) {
        let mut known = self.known();
        if known.learned.get(&address).is_some_and(|of| of.ptr_eq(by)) {
            known.learned.remove(&address);
        }
    }
}

/// The last address of a prefix.
fn last(first: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match first {
        IpAddr::V4(first) => {
            let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
            Ipv4Addr::from_bits(first.to_bits() | rest).into()
        }
        IpAddr::V6(first) => {
            let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
            Ipv6Addr::from_bits(first.to_bits() | rest).into()
        }
    }
}
