//! What each user has taken of the broker's time.

use std::collections::HashMap;
use std::time::Instant;

use crate::limits::{LOOKS_PER_USER_PER_S, REQUESTS_PER_USER_PER_S};

/// What is filled in in one second, and the most that there is.
const FULL: f64 = REQUESTS_PER_USER_PER_S as f64;
/// The same of descriptors that are looked at.
const FULL_LOOKS: f64 = LOOKS_PER_USER_PER_S as f64;
/// Accounts beyond which full ones are thrown out.
const ACCOUNTS_KEPT: usize = 1_024;

/// A token bucket of requests; whatever else costs time counts as so many of them. What was not there is owed. Looks are apart: who asks
/// much would find no socket that has another number by now.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    looks: f64,
    filled: Instant,
}

impl Bucket {
    fn at(&self, now: Instant) -> f64 {
        (self.tokens + self.since(now) * FULL).min(FULL)
    }

    fn looks_at(&self, now: Instant) -> f64 {
        (self.looks + self.since(now) * FULL_LOOKS).min(FULL_LOOKS)
    }

    fn since(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.filled).as_secs_f64()
    }
}

/// Accounts by user. A full one is as good as none.
#[derive(Debug, Default)]
pub(crate) struct Users(HashMap<u32, Bucket>);

impl Users {
    /// Whether the user may make a request now.
    pub(crate) fn may_ask(&mut self, uid: u32, now: Instant) -> bool {
        if self.0.len() > ACCOUNTS_KEPT {
            let is_full =
                |bucket: &Bucket| bucket.at(now) >= FULL && bucket.looks_at(now) >= FULL_LOOKS;
            self.0.retain(|_, bucket| !is_full(bucket));
        }
        let bucket = self.0.entry(uid).or_insert(Bucket {
            tokens: FULL,
            looks: FULL_LOOKS,
            filled: now,
        });
        (bucket.tokens, bucket.looks) = (bucket.at(now), bucket.looks_at(now));
        bucket.filled = now;
        bucket.tokens >= 1.0
    }

    /// The user has made requests, or something that costs as much.
    pub(crate) fn asked(&mut self, uid: u32, count: usize) {
        if let Some(bucket) = self.0.get_mut(&uid) {
            bucket.tokens -= count as f64;
        }
    }

    /// How many descriptors may be looked at for the user now.
    pub(crate) fn looks(&self, uid: u32) -> u32 {
        self.0.get(&uid).map_or(0, |bucket| bucket.looks as u32)
    }

    /// So many have been looked at.
    pub(crate) fn looked(&mut self, uid: u32, count: u32) {
        if let Some(bucket) = self.0.get_mut(&uid) {
            bucket.looks -= f64::from(count);
        }
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
        assert_eq!(users.looks(7), LOOKS_PER_USER_PER_S);
        users.looked(8, LOOKS_PER_USER_PER_S + 7);
        assert_eq!((users.looks(7), users.looks(8)), (LOOKS_PER_USER_PER_S, 0));
        assert!(ask(&mut users, 8, now));
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
