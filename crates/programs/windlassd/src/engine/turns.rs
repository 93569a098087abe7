//! Whose calls wait for the engine: a user's next call waits for that user's own, not for a place that others need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authority::Peer;

/// Calls of all operators that wait for the engine at once.
pub const OPERATOR_CALLS_MAX: usize = 1024;
/// Calls of all others.
const TENANT_CALLS_MAX: usize = 96;
/// Those of one user who is no operator.
const TENANT_CALLS: usize = 4;

/// The places of calls that wait.
#[derive(Debug)]
pub(super) struct Turns {
    operators: Arc<Semaphore>,
    others: Arc<Semaphore>,
    tenants: Mutex<HashMap<u32, Weak<Semaphore>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            operators: Arc::new(Semaphore::new(OPERATOR_CALLS_MAX)),
            others: Arc::new(Semaphore::new(TENANT_CALLS_MAX)),
            tenants: Mutex::default(),
        }
    }

    fn of_tenant(&self, uid: u32) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = tenants.get(&uid).and_then(Weak::upgrade) {
            return own;
        }
        tenants.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(TENANT_CALLS));
        tenants.insert(uid, Arc::downgrade(&own));
        own
    }

    /// A place for a call of this peer; `None` if too many calls wait.
    pub(super) async fn take(&self, peer: &Peer) -> Option<Turn> {
        let (own, places) = match peer.operator {
            true => (None, &self.operators),
            false => {
                let own = self.of_tenant(peer.uid).acquire_owned().await.ok()?;
                (Some(own), &self.others)
            }
        };
        let place = Arc::clone(places).try_acquire_owned().ok()?;
        Some(Turn {
            _place: place,
            _own: own,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn take_soon(turns: &Turns, peer: &Peer) -> Option<Turn> {
        let soon = tokio::time::timeout(Duration::from_millis(20), turns.take(peer));
        soon.await.ok().flatten()
    }

    /// One user has a few calls at once and waits for the next; many users together take none of the operators'.
    #[tokio::test]
    async fn nobody_takes_the_places_of_others() {
        let turns = Turns::new();
        let tenant = |uid| Peer {
            uid,
            gid: uid,
            operator: false,
        };
        let mut held = Vec::new();
        for uid in 1..=100 {
            for _ in 0..TENANT_CALLS {
                held.extend(take_soon(&turns, &tenant(uid)).await);
            }
            if uid == 1 {
                assert!(take_soon(&turns, &tenant(1)).await.is_none());
            }
        }
        assert_eq!(held.len(), TENANT_CALLS_MAX);
        assert!(take_soon(&turns, &Peer::daemon()).await.is_some());
        held.clear();
        assert!(take_soon(&turns, &tenant(1)).await.is_some());
        // Those who have none are forgotten.
        assert_eq!(turns.tenants.lock().unwrap().len(), 1);
    }
}
