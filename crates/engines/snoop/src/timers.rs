//! What is due when.

use std::collections::BTreeSet;
use std::net::IpAddr;

use windlass_frame::Tick;

use crate::message::Family;

/// Something with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A membership ends, or its group is asked for once more.
    Membership(u16, IpAddr, u16),
    /// A router is gone.
    Router(u16, Family, u16),
    /// The querier is gone, our next query, or receivers have answered.
    Vlan(u16, Family),
}

/// A queue from which entries can be taken out, so that it never has more than there are objects.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Tick, Timer)>);

impl Timers {
    /// Has an object be due at `to` and not at `armed`.
    pub(crate) fn arm(&mut self, armed: &mut Option<Tick>, to: Option<Tick>, timer: Timer) {
        if *armed == to {
            return;
        }
        if let Some(at) = *armed {
            self.0.remove(&(at, timer));
        }
        if let Some(at) = to {
            self.0.insert((at, timer));
        }
        *armed = to;
    }

    pub(crate) fn due(&self) -> Option<Tick> {
        self.0.first().map(|(at, _)| *at)
    }

    /// The first that is due at `now`. Its object is not armed any more.
    pub(crate) fn take(&mut self, now: Tick) -> Option<Timer> {
        let (at, timer) = *self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        Some(timer)
    }
}
