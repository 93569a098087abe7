//! What each user has taken of the broker's time.

use std::collections::HashMap;
use std::time::Instant;

use crate::limits::{NUMBERS_MAX, REQUESTS_PER_USER_PER_S};

/// What is filled in in one second, and the most that there is.
const FULL: f64 = REQUESTS_PER_USER_PER_S as f64;
/// Accounts beyond which full ones are thrown out.
const ACCOUNTS_KEPT: usize = 1_024;

/// A token bucket of requests; whatever else costs time counts as so many of them. What was not there is owed.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn at(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        (self.tokens + since * FULL).min(FULL)
    }
}

/// Accounts by user. A full one is as good as none.
#[derive(Debug, Default)]
pub(crate) struct Users(HashMap<u32, Bucket>);

impl Users {
    /// Whether the user may make a request now.
    pub(crate) fn may_ask(&mut self, uid: u32, now: Instant) -> bool {
        if self.0.len() > ACCOUNTS_KEPT {
            self.0.retain(|_, bucket| bucket.at(now) < FULL);
        }
        let bucket = self.0.entry(uid).or_insert(Bucket {
            tokens: FULL,
            filled: now,
        });
        bucket.tokens = bucket.at(now);
        bucket.filled = now;
        bucket.tokens >= 1.0
    }

    /// The user has made requests, or something that costs as much.
    pub(crate) fn asked(&mut self, uid: u32, count: usize) {
        if let Some(bucket) = self.0.get_mut(&uid) {
            bucket.tokens -= count as f64;
        }
    }

    /// How many descriptors may be looked at for the user now: as many as requests are left to him.
    pub(crate) fn looks(&self, uid: u32) -> usize {
        let left = |bucket: &Bucket| (bucket.tokens as usize).min(NUMBERS_MAX);
        self.0.get(&uid).map_or(0, left)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A user who asks without end is refused, comes back a moment later, and costs no other user anything.
    #[test]
    fn requests_are_limited() {
        let (mut users, now) = (Users::default(), Instant::now());
        let ask = |users: &mut Users, uid, now| {
            let may = users.may_ask(uid, now);
            users.asked(uid, usize::from(may));
            may
        };
        let granted = (0..1_000_000).filter(|_| ask(&mut users, 7, now)).count();
        assert_eq!(granted, REQUESTS_PER_USER_PER_S as usize);
        assert!(ask(&mut users, 8, now));
        assert_eq!(users.looks(7), 0);
        assert_eq!(users.looks(8), REQUESTS_PER_USER_PER_S as usize - 1);
        users.asked(8, NUMBERS_MAX);
        assert_eq!(users.looks(8), 0);
        let later = now + Duration::from_millis(100);
        let granted = (0..1_000_000).filter(|_| ask(&mut users, 7, later)).count();
        assert!(
            (1..=REQUESTS_PER_USER_PER_S as usize / 10).contains(&granted),
            "{granted}"
        );
        // What is owed is paid before anything else, also where accounts are thrown out.
        users.asked(7, 2 * REQUESTS_PER_USER_PER_S as usize);
        for uid in 100..2_000 {
            users.may_ask(uid, later);
        }
        assert!(!users.may_ask(7, later + Duration::from_millis(1_900)));
        assert!(users.may_ask(7, later + Duration::from_millis(2_100)));
    }
}
