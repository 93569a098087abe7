//! Which frames the interface receives for us: those for addresses that it was given, or all.
//!
//! # Model
//! As Crossbow's default group: the addresses behind the bridge's other members go into the interface's filters, and it is
//! promiscuous only where these do not do. A driver whose own filters run out, or that has none, receives all by itself.
//!
//! # What can be lost
//! Nothing by a change: what is received more is asked for before what is received less.

use std::collections::BTreeSet;
use std::fmt;

use windlass_sys::Errno;
use windlass_sys::packet::{Membership, PacketSocket};

use crate::endpoint::Addresses;

/// An interface that can be told what to receive.
pub(super) trait Nic {
    /// More.
    fn join(&self, what: Membership) -> Result<(), Errno>;
    /// Not that any more.
    fn leave(&self, what: Membership) -> Result<(), Errno>;
}

impl Nic for PacketSocket {
    fn join(&self, what: Membership) -> Result<(), Errno> {
        PacketSocket::join(self, what)
    }

    fn leave(&self, what: Membership) -> Result<(), Errno> {
        PacketSocket::leave(self, what)
    }
}

/// Why an interface receives all frames.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// It was asked for.
    Asked,
    /// An interface that is not promiscuous may drop VLANs that it was not told of.
    Tagged,
    /// Any address may be behind that member.
    Behind(String),
    /// So many addresses are known.
    TooMany { known: usize, most: usize },
    /// The kernel did not take an address.
    Refused(Errno),
}

impl fmt::Display for Why {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Asked => write!(to, "filters-max is 0"),
            Why::Tagged => write!(to, "frames with tags are taken"),
            Why::Behind(member) => write!(to, "any address may be behind {member}"),
            Why::TooMany { known, most } => write!(to, "{known} addresses, above {most}"),
            Why::Refused(errno) => write!(to, "the kernel refused a filter: {errno}"),
        }
    }
}

/// What an interface was asked to receive.
#[derive(Debug, Default)]
pub(super) struct Filters {
    joined: BTreeSet<Membership>,
    why: Option<Why>,
}

impl Filters {
    /// Has the interface receive what is for these addresses.
    ///
    /// # Errors
    /// It cannot be had to receive all, and may miss frames.
    pub(super) fn follow(&mut self, nic: &dyn Nic, addresses: &Addresses) -> Result<(), Errno> {
        self.why = match wanted(addresses) {
            Ok(wanted) => match self.change(nic, &wanted) {
                Ok(()) => None,
                Err(errno) => Some(Why::Refused(errno)),
            },
            Err(why) => Some(why),
        };
        match self.why {
            Some(_) => self.change(nic, &[Membership::Promiscuous].into()),
            None => Ok(()),
        }
    }

    fn change(&mut self, nic: &dyn Nic, wanted: &BTreeSet<Membership>) -> Result<(), Errno> {
        for more in wanted {
            if !self.joined.contains(more) {
                nic.join(*more)?;
                self.joined.insert(*more);
            }
        }
        self.joined.retain(|less| {
            let stays = wanted.contains(less);
            if !stays {
                // It goes with the socket, too.
                let _ = nic.leave(*less);
            }
            stays
        });
        Ok(())
    }

    /// What the interface receives, for people.
    pub(super) fn describe(&self) -> String {
        let is_one = |joined: &&Membership| matches!(joined, Membership::Unicast(_));
        match &self.why {
            Some(why) => format!("none, promiscuous: {why}"),
            None => self.joined.iter().filter(is_one).count().to_string(),
        }
    }
}

/// What is to be received for these addresses, or why it is all.
fn wanted(addresses: &Addresses) -> Result<BTreeSet<Membership>, Why> {
    if addresses.filters_max == 0 {
        return Err(Why::Asked);
    }
    if addresses.tagged {
        return Err(Why::Tagged);
    }
    if let Some(member) = &addresses.open {
        return Err(Why::Behind(member.clone()));
    }
    let all: BTreeSet<u64> = addresses.own.union(&addresses.others).copied().collect();
    let (known, most) = (all.len(), addresses.filters_max);
    if known > most {
        return Err(Why::TooMany { known, most });
    }
    let filter = |word: u64| {
        let [a, b, c, d, e, f, ..] = word.to_le_bytes();
        Membership::Unicast([a, b, c, d, e, f])
    };
    let filters = all.into_iter().map(filter);
    Ok(filters.chain([Membership::AllMulticast]).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// An interface that writes down what it is told. After `room` addresses it takes no more.
    #[derive(Default)]
    struct Recorder {
        room: usize,
        told: RefCell<Vec<(bool, Membership)>>,
        joined: RefCell<BTreeSet<Membership>>,
    }

    impl Nic for Recorder {
        fn join(&self, what: Membership) -> Result<(), Errno> {
            let mut joined = self.joined.borrow_mut();
            let is_filter = |m: &Membership| matches!(m, Membership::Unicast(_));
            let taken = joined.iter().filter(|m| is_filter(m)).count();
            if is_filter(&what) && taken == self.room {
                return Err(Errno::NOMEM);
            }
            assert!(joined.insert(what), "{what:?} twice");
            self.told.borrow_mut().push((true, what));
            Ok(())
        }

        fn leave(&self, what: Membership) -> Result<(), Errno> {
            assert!(self.joined.borrow_mut().remove(&what), "{what:?} was not");
            self.told.borrow_mut().push((false, what));
            Ok(())
        }
    }

    fn addresses(own: &[u64], open: Option<&str>) -> Addresses {
        Addresses {
            own: own.iter().copied().collect(),
            others: BTreeSet::new(),
            tagged: false,
            open: open.map(str::to_owned),
            filters_max: 3,
            rings: Vec::new(),
        }
    }

    fn one(low: u8) -> Membership {
        Membership::Unicast([low, 0, 0, 0, 0, 0])
    }

    /// Filters while these do; more is asked for before less; the reason is told.
    #[test]
    fn promiscuous_only_where_filters_do_not_do() {
        let nic = Recorder {
            room: 9,
            ..Recorder::default()
        };
        let (mut filters, all) = (Filters::default(), Membership::Promiscuous);
        let mut follow = |own: &[u64], open, said: &str| {
            nic.told.borrow_mut().clear();
            filters.follow(&nic, &addresses(own, open)).unwrap();
            assert_eq!(filters.describe(), said);
            nic.told.borrow().clone()
        };
        let groups = Membership::AllMulticast;
        let behind = "none, promiscuous: any address may be behind v0";
        assert_eq!(follow(&[1], Some("v0"), behind), [(true, all)]);
        assert_eq!(follow(&[2], Some("v0"), behind), []);
        let told = follow(&[1, 2], None, "2");
        let wanted = [(true, groups), (true, one(1)), (true, one(2)), (false, all)];
        assert_eq!(told, wanted);
        let told = follow(&[2, 3], None, "2");
        assert_eq!(told, [(true, one(3)), (false, one(1))]);
        let told = follow(
            &[1, 2, 3, 4],
            None,
            "none, promiscuous: 4 addresses, above 3",
        );
        let wanted = [
            (true, all),
            (false, groups),
            (false, one(2)),
            (false, one(3)),
        ];
        assert_eq!(told, wanted);
        follow(&[], None, "0");
    }

    /// Where the kernel does not take an address the interface receives all, and what it took is given back.
    #[test]
    fn a_refusal_is_promiscuous() {
        let nic = Recorder {
            room: 1,
            ..Recorder::default()
        };
        let mut filters = Filters::default();
        filters.follow(&nic, &addresses(&[1, 2], None)).unwrap();
        let said = filters.describe();
        assert!(
            said.starts_with("none, promiscuous: the kernel refused a filter"),
            "{said}"
        );
        assert_eq!(*nic.joined.borrow(), [Membership::Promiscuous].into());
        filters.follow(&nic, &addresses(&[2], None)).unwrap();
        assert_eq!(filters.describe(), "1");
    }
}
