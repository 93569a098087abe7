//! What is taken from the workers, until none of them has it any more.
//!
//! # States
//! | state | leaves when |
//! | --- | --- |
//! | draining | every worker has given the receive halves back, and the grace period is over |
//! | over | at once: endpoints are told |
//!
//! # Failure modes
//! A worker that is late, for however long, keeps a drain in its state: nothing that it may still use is given away.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use windlass_attach::port::{RxPort, TxPort};
use windlass_stats::{MemberCounters, Padded};
use windlass_sync::qsbr::{Domain, Grace};

use super::handle::WorkerHandle;
use crate::capture::Watch;
use crate::command::Command;

type Rings = Vec<Box<dyn RxPort>>;

/// The rest of one change.
pub(super) struct Drain {
    grace: Grace,
    /// Workers that still have receive halves.
    rings_out: Vec<Receiver<Rings>>,
    /// Receive halves that came back, and transmit halves: nobody's, when the grace period is over.
    returned: Rings,
    senders: Vec<Arc<dyn TxPort>>,
    /// Members whose rings these are.
    pub(super) detached: Vec<u16>,
}

impl Drain {
    /// Begins with the topology that was replaced when `grace` began.
    pub(super) fn new(grace: Grace) -> Drain {
        Drain {
            grace,
            rings_out: Vec::new(),
            returned: Vec::new(),
            senders: Vec::new(),
            detached: Vec::new(),
        }
    }

    /// Takes a member's rings from the workers.
    pub(super) fn take(
        &mut self,
        member: u16,
        (counters, watches): (&Arc<[Padded<MemberCounters>]>, &[Watch]),
        sender: Option<Arc<dyn TxPort>>,
        workers: &[WorkerHandle],
    ) {
        self.detached.push(member);
        self.senders.extend(sender);
        let watches: Arc<[Watch]> = watches.into();
        for worker in workers {
            let (done, given_back) = sync_channel(1);
            worker.send(Command::Detach {
                member,
                counters: counters.clone(),
                watches: watches.clone(),
                done,
            });
            self.rings_out.push(given_back);
        }
    }

    /// Goes on as far as is possible without waiting; whether it is over.
    pub(super) fn advance(&mut self, domain: &Domain) -> bool {
        let returned = &mut self.returned;
        self.rings_out.retain(|from| match from.try_recv() {
            Ok(rings) => {
                returned.extend(rings);
                false
            }
            Err(why) => why == TryRecvError::Empty,
        });
        self.rings_out.is_empty() && self.grace.is_over(domain)
    }
}
