//! What each user has taken of the broker's time.

use std::collections::HashMap;
use std::time::Instant;

/// Accounts beyond which full ones are thrown out.
const ACCOUNTS_KEPT: usize = 1_024;

/// A token bucket of requests; whatever else costs time counts as so many of them. What was not there is owed.
struct Bucket {
    tokens: f64,
    filled: Instant,
}

/// Accounts by user. A full one is as good as none.
pub(crate) struct Users {
    /// What is filled in in one second, and the most that there is.
    full: f64,
    buckets: HashMap<u32, Bucket>,
}

impl Users {
    /// Accounts of so many requests in a second.
    pub(crate) fn of(full: u32) -> Self {
        let (full, buckets) = (full.into(), HashMap::new());
        Self { full, buckets }
    }

    /// Whether the user may make a request now.
    pub(crate) fn may_ask(&mut self, uid: u32, now: Instant) -> bool {
        self.left(uid, now) >= 1
    }

    /// How many requests the user may make now.
    pub(crate) fn left(&mut self, uid: u32, now: Instant) -> u32 {
        let full = self.full;
        let at = |bucket: &Bucket| {
            let since = now.saturating_duration_since(bucket.filled).as_secs_f64();
            (bucket.tokens + since * full).min(full)
        };
        if self.buckets.len() > ACCOUNTS_KEPT {
            self.buckets.retain(|_, bucket| at(bucket) < full);
        }
        let bucket = self.buckets.entry(uid).or_insert(Bucket {
            tokens: full,
            filled: now,
        });
        (bucket.tokens, bucket.filled) = (at(bucket), now);
        bucket.tokens as u32
    }

    /// The user has made requests, or something that costs as much.
    pub(crate) fn asked(&mut self, uid: u32, count: usize) {
        if let Some(bucket) = self.buckets.get_mut(&uid) {
            bucket.tokens -= count as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::REQUESTS_PER_USER_PER_S;

    /// A user who asks without end is refused, comes back a moment later, and costs no other user anything.
    #[test]
    fn requests_are_limited() {
        let (mut users, now) = (Users::of(REQUESTS_PER_USER_PER_S), Instant::now());
        let ask = |users: &mut Users, uid, now| {
            let may = users.may_ask(uid, now);
            users.asked(uid, usize::from(may));
            may
        };
        let granted = (0..1_000_000).filter(|_| ask(&mut users, 7, now)).count();
        assert_eq!(granted, REQUESTS_PER_USER_PER_S as usize);
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
