//! What was dropped lately: totals of a while ago, to be compared with those of now.
//!
//! # Model
//! Once a minute the totals of every member's drops are put aside, twice over, so that there are always some that are at least
//! a minute old, once the daemon is. A member that was made anew since counts from zero. While every worker has slept all the
//! time, nothing was dropped, and members are not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_api::{MemberDrops, Name, RecentDrops, WorkerStats};

use super::Engine;
use crate::authority::Peer;

/// Time between two totals that are put aside.
const PERIOD: Duration = Duration::from_secs(60);

/// Dropped frames, by reason, of each member that has some.
type Totals = BTreeMap<Name, BTreeMap<String, u64>>;

/// Totals of two moments.
#[derive(Debug)]
pub(super) struct Recent {
    older: (Instant, Arc<Totals>),
    newer: (Instant, Arc<Totals>),
    /// What workers had done before the newer ones.
    workers: Vec<WorkerStats>,
}

impl Default for Recent {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            older: (now, Arc::default()),
            newer: (now, Arc::default()),
            workers: Vec::new(),
        }
    }
}

impl Recent {
    /// Time until totals are to be put aside.
    pub(super) fn due_in(&self) -> Duration {
        PERIOD.saturating_sub(self.newer.0.elapsed())
    }

    fn put_aside(&mut self, now: Instant, totals: Arc<Totals>) {
        self.older = std::mem::replace(&mut self.newer, (now, totals));
    }

    /// What was dropped between the older totals and those of now.
    fn until(&self, now: Instant, totals: Totals) -> RecentDrops {
        let (then, before) = &self.older;
        let mut drops = Vec::new();
        for (name, reasons) in totals {
            let before = before.get(&name);
            for (reason, total) in reasons {
                let old = before.and_then(|reasons| reasons.get(&reason)).copied();
                let frames = total.checked_sub(old.unwrap_or(0)).unwrap_or(total);
                if frames > 0 {
                    let name = name.clone();
                    drops.push(MemberDrops {
                        name,
                        reason,
                        frames,
                    });
                }
            }
        }
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
        RecentDrops {
            seconds: now.duration_since(*then).as_secs(),
            drops,
        }
    }
}

impl Engine {
    /// Puts the totals of all members aside.
    pub(super) fn note_drops(&mut self) {
        let workers = self.backend.workers();
        let totals = if workers == self.recent.workers {
            self.recent.newer.1.clone()
        } else {
            Arc::new(self.backend.drops())
        };
        self.recent.workers = workers;
        self.recent.put_aside(Instant::now(), totals);
    }

    /// What was dropped lately of members that the peer may see.
    pub fn recent_drops(&self, peer: &Peer) -> RecentDrops {
        let seen: BTreeSet<&Name> = self.seen_by(peer).map(|member| member.name()).collect();
        let mut totals = self.backend.drops();
        totals.retain(|name, _| seen.contains(name));
        self.recent.until(Instant::now(), totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window is one to two periods long, and a member that was made anew counts from zero.
    #[test]
    fn drops_are_counted_from_the_older_totals() {
        let totals = |list: &[(&str, u64)]| -> Totals {
            let one = |(name, frames): &(&str, u64)| {
                let name: Name = name.parse().expect("a name");
                (name, BTreeMap::from([("rx-filter".to_owned(), *frames)]))
            };
            list.iter().map(one).collect::<Totals>()
        };
        let frames = |recent: &Recent, at, now: &[(&str, u64)]| {
            let until = recent.until(at, totals(now));
            let drops = until.drops.iter();
            let found = drops.map(|drop| (drop.name.to_string(), drop.frames));
            (until.seconds, found.collect::<Vec<_>>())
        };
        let mut recent = Recent::default();
        let start = recent.older.0;
        let one = start + PERIOD;
        let two = one + PERIOD;
        recent.put_aside(one, Arc::new(totals(&[("a", 100), ("b", 7)])));
        let found = frames(&recent, one, &[("a", 100), ("b", 7)]);
        assert_eq!(found, (60, vec![("a".into(), 100), ("b".into(), 7)]));
        recent.put_aside(two, Arc::new(totals(&[("a", 150), ("b", 7)])));
        let later = two + Duration::from_secs(30);
        let found = frames(&recent, later, &[("a", 170), ("b", 5), ("c", 9)]);
        let expected = vec![("a".into(), 70), ("c".into(), 9), ("b".into(), 5)];
        assert_eq!(found, (90, expected));
    }
}
