//! What each user has taken of the broker's time and memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::limits::{
    NUMBERS_MAX, REQUESTS_PER_USER_PER_S, ROWS_PER_USER_PER_S, STARTS_PER_USER_PER_S,
};

/// How long a measure of a user's memory holds: each slab is one system call.
const MEASURED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct User {
    /// Requests that may still be made.
    requests: Bucket,
    /// Helpers that may still be started.
    starts: Bucket,
    /// Rows that may still be listed.
    rows: Bucket,
    slabs: usize,
    /// Memory of the slabs, and when it was measured.
    bytes: Option<(u64, Instant)>,
}

/// A token bucket: it holds what is filled into it in one second.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    per_s: f64,
}

impl Bucket {
    fn full(per_s: u32, now: Instant) -> Self {
        let per_s = f64::from(per_s);
        Self {
            tokens: per_s,
            filled: now,
            per_s,
        }
    }

    /// Whether there is a token.
    fn has_one(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.per_s).min(self.per_s);
        self.filled = now;
        self.tokens >= 1.0
    }

    /// Takes so many tokens; what is not there is owed.
    fn take(&mut self, count: usize) {
        self.tokens -= count as f64;
    }
}

/// Accounts by user. One without a slab is forgotten once its tokens are full again.
#[derive(Debug, Default)]
pub(crate) struct Users(HashMap<u32, User>);

/// Accounts beyond which those that say nothing are thrown out.
const ACCOUNTS_KEPT: usize = 1_024;

impl Users {
    fn of(&mut self, uid: u32, now: Instant) -> &mut User {
        if self.0.len() > ACCOUNTS_KEPT {
            let is_recent = |bucket: &Bucket| now.duration_since(bucket.filled).as_secs_f64() < 1.0;
            self.0.retain(|_, user| {
                user.slabs > 0 || is_recent(&user.requests) || is_recent(&user.starts)
            });
        }
        self.0.entry(uid).or_insert_with(|| User {
            requests: Bucket::full(REQUESTS_PER_USER_PER_S, now),
            starts: Bucket::full(STARTS_PER_USER_PER_S, now),
            rows: Bucket::full(ROWS_PER_USER_PER_S, now),
            slabs: 0,
            bytes: None,
        })
    }

    /// Whether the user may make a request now.
    pub(crate) fn may_ask(&mut self, uid: u32, now: Instant) -> bool {
        self.of(uid, now).requests.has_one(now)
    }

    /// The user has made requests, or something that costs as much.
    pub(crate) fn asked(&mut self, uid: u32, count: usize) {
        if let Some(user) = self.0.get_mut(&uid) {
            user.requests.take(count);
        }
    }

    /// Whether a helper may be started for the user now; it is counted.
    pub(crate) fn may_start(&mut self, uid: u32, now: Instant) -> bool {
        let starts = &mut self.of(uid, now).starts;
        let may = starts.has_one(now);
        starts.take(usize::from(may));
        may
    }

    /// Whether the user may have a listing now.
    pub(crate) fn may_list(&mut self, uid: u32, now: Instant) -> bool {
        self.of(uid, now).rows.has_one(now)
    }

    /// The user has a listing of so many rows.
    pub(crate) fn listed(&mut self, uid: u32, rows: usize) {
        if let Some(user) = self.0.get_mut(&uid) {
            user.rows.take(rows);
        }
    }

    /// How many descriptors may be looked at for the user now: as many as requests are left to him.
    pub(crate) fn looks(&self, uid: u32) -> usize {
        let left = |user: &User| (user.requests.tokens as usize).min(NUMBERS_MAX);
        self.0.get(&uid).map_or(0, left)
    }

    pub(crate) fn slabs(&self, uid: u32) -> usize {
        self.0.get(&uid).map_or(0, |user| user.slabs)
    }

    /// Memory of the user's slabs as `measure` says, which is asked once in [`MEASURED_FOR`].
    pub(crate) fn bytes(&mut self, uid: u32, measure: impl FnOnce() -> u64) -> u64 {
        let now = Instant::now();
        let user = self.of(uid, now);
        let fresh = user
            .bytes
            .filter(|(_, at)| now.duration_since(*at) < MEASURED_FOR);
        let (bytes, _) = *user.bytes.insert(fresh.unwrap_or_else(|| (measure(), now)));
        bytes
    }

    pub(crate) fn take_slab(&mut self, uid: u32) {
        self.of(uid, Instant::now()).slabs += 1;
    }

    pub(crate) fn give_slab(&mut self, uid: u32) {
        if let Some(user) = self.0.get_mut(&uid) {
            user.slabs = user.slabs.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
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
        let starts = (0..1_000).filter(|_| users.may_start(7, now)).count();
        assert_eq!(starts, STARTS_PER_USER_PER_S as usize);
        assert!(users.may_list(7, now));
        users.listed(7, ROWS_PER_USER_PER_S as usize);
        assert!(!users.may_list(7, now) && users.may_list(8, now));
        users.listed(7, ROWS_PER_USER_PER_S as usize);
        assert!(!users.may_list(7, now + Duration::from_millis(900)));
    }
}
