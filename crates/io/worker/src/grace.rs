//! Grace periods for the forwarding table's writer, from the workers' quiescent states.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use windlass_bridge::fdb;
use windlass_sync::qsbr::{Domain, Grace};

/// Tickets kept at most; beyond that the newest stands for those after it as well.
const TICKETS: usize = 64;

/// Tickets of one writer: each stands for a grace period of the workers' domain.
#[derive(Debug)]
pub struct QsbrGrace {
    domain: DomainHandle,
    newest: u64,
    over: Cell<u64>,
    open: RefCell<VecDeque<(u64, Grace)>>,
}

struct DomainHandle(Domain);

impl core::fmt::Debug for DomainHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Domain")
    }
}

impl QsbrGrace {
    /// Tickets in `domain`.
    pub fn new(domain: Domain) -> QsbrGrace {
        QsbrGrace {
            domain: DomainHandle(domain),
            newest: 0,
            over: Cell::new(0),
            open: RefCell::new(VecDeque::with_capacity(TICKETS)),
        }
    }

    fn pop_elapsed(&self) {
        let mut open = self.open.borrow_mut();
        while let Some((ticket, grace)) = open.front() {
            if !grace.is_over(&self.domain.0) {
                break;
            }
            self.over.set(*ticket);
            open.pop_front();
        }
    }
}

impl fdb::Grace for QsbrGrace {
    fn ticket(&mut self) -> u64 {
        self.pop_elapsed();
        self.newest += 1;
        let mut open = self.open.borrow_mut();
        let entry = (self.newest, self.domain.0.start_grace());
        if open.len() >= TICKETS {
            open.pop_back();
        }
        open.push_back(entry);
        self.newest
    }

    fn is_over(&self, ticket: u64) -> bool {
        if ticket > self.over.get() {
            self.pop_elapsed();
        }
        ticket <= self.over.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bridge::fdb::Grace as _;

    /// A ticket is over once every worker has been quiescent after it was taken, however many are open.
    #[test]
    fn tickets_follow_the_domain() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let mut grace = QsbrGrace::new(domain);
        worker.online();
        let first = grace.ticket();
        assert!(!grace.is_over(first));
        let last = (0..500).map(|_| grace.ticket()).max().expect("some");
        worker.quiesce();
        assert!(grace.is_over(first) && grace.is_over(last));
        let next = grace.ticket();
        assert!(!grace.is_over(next));
        worker.offline();
        assert!(grace.is_over(next));
        assert!(grace.open.borrow().len() <= TICKETS);
    }
}
