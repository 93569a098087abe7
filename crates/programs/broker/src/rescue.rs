//! Taking a sender's unread bytes out of the ring, into the sender's own socket.
//!
//! # Model
//! The slab names a process, a descriptor and a cookie. All three are what somebody wrote into shared memory, so they
//! are hints: the process must be one that has this slab on that side, and be today what it was when it registered; its
//! descriptor must be a connected stream socket with that cookie, and mirror the socket of the other end. Where the
//! process has ended, or has the socket under another number by now, the socket is looked for among all of that side that have
//! the slab. So bytes that a hostile peer put into a ring can reach only the connection that the peer itself is the other
//! end of, and a [helper](crate::helper) writes them with no more than the sender's own ids. Where the two processes
//! belong to one user and the other end is gone, the cookie alone counts.
//!
//! A receiver that is told who sent each piece (`SO_PASSCRED` and its kin) would be told of the helper: what is meant for
//! such a receiver stays where it is.

use windlass_channel::layout::Side;
use windlass_channel::protocol::Answer;
use windlass_channel::{EndInfo, Reason};

use crate::inquiry::{Asker, Target};
use crate::jobs::{Reclaim, SOURCES_MAX, Said};
use crate::requests::send;
use crate::server::Broker;

impl Broker {
    /// Begins to move the unread bytes that `side` of a channel has pushed into the kernel. `looks`: descriptors that may be
    /// looked at for sockets that are not where their ends said.
    pub(crate) fn begin_rescue(
        &mut self,
        asker: &Asker,
        (slab, chan, side): (u32, u16, u8),
        looks: u32,
    ) -> Result<(), Reason> {
        let from = Side::from_u8(side);
        let found = self.slabs.get(slab).ok_or(Reason::NotEligible)?;
        let link = found.map.link(chan, from).ok_or(Reason::NotEligible)?;
        let (own, other) = (link.info(from), link.info(from.other()));
        let same_user = found.same_user();
        let sender = self.target(slab, from, &own, looks);
        let mut sender = sender.ok_or(Reason::NotEligible)?;
        let Some(mut far) = self.target(slab, from.other(), &other, looks) else {
            // The sender has the kernel answer for a dead reader.
            return send(asker, &Answer::Done, &[]);
        };
        far.job.is_for_rescue = true;
        sender.job.is_for_rescue = true;
        self.look(asker, far, move |broker, asker, far| {
            broker.count_looks(asker, looks, &far);
            if far == Err(Reason::Limit) {
                return Err(Reason::Limit);
            }
            sender.job.reclaim = Some(Reclaim {
                slab,
                chan,
                side,
                slot: 0,
                same_user,
                far: far.ok(),
            });
            broker.look(asker, sender, move |broker, asker, said| {
                broker.count_looks(asker, looks, &said);
                let place = format_args!("slab {slab}, channel {chan}, side {side}");
                match said.map(|facts| facts.moved) {
                    Ok(bytes) => broker.detail(format_args!("rescued {bytes} bytes of {place}")),
                    // The kernel did not take all, or a reader was in the middle of taking them.
                    Err(Reason::Limit) => {}
                    Err(reason) => {
                        broker.notice(format_args!("no rescue of {place}: {}", reason.text()));
                    }
                }
                said.and_then(|_| send(asker, &Answer::Done, &[]))
            });
            Ok(())
        });
        Ok(())
    }

    /// Has the user who asks pay for the descriptors that were looked at: for all where the socket was not found.
    fn count_looks(&mut self, asker: &Asker, looks: u32, said: &Said) {
        let count = match said {
            Ok(facts) => facts.looked,
            Err(Reason::NotRescuable) => looks,
            Err(_) => 0,
        };
        if let Some(connection) = asker {
            self.looks.asked(connection.who.uid, count as usize);
        }
    }

    /// The socket of an end: with the processes on that side that have the slab, the one in the end's slot first. `None`
    /// if none of them lives.
    pub(crate) fn target(
        &mut self,
        slab: u32,
        side: Side,
        end: &EndInfo,
        looks: u32,
    ) -> Option<Target> {
        let holders = &self.slabs.get(slab)?.holders[side as usize];
        let mut holders: Vec<u16> = holders.iter().copied().collect();
        holders.sort_by_key(|slot| *slot != end.slot);
        let its = holders.into_iter();
        let mut its = its.filter_map(|slot| Some(self.is_still(slot)?.target(end.fd, end.cookie)));
        let mut target = its.next()?;
        target.job.looks = looks;
        let others = its.filter(|one| one.key == target.key);
        let sources = others.flat_map(|one| one.sources);
        target.sources.extend(sources.take(SOURCES_MAX - 1));
        Some(target)
    }
}
