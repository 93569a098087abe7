//! Claims of addresses that plugins have not answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use windlass_lookup::protocol;

use super::{Answered, Claimed};

/// Claims that wait at most.
const CLAIMS_MAX: usize = 1_024;
/// After how long nobody waits for the answer any more.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(30);

/// A claim that a plugin has not answered.
struct Open {
    overlay: String,
    session: u64,
    since: Instant,
    answer: Answered,
}

/// All of them, by number.
#[derive(Default)]
pub(super) struct Claims {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl Claims {
    /// Takes a claim that a session is about to be told, and numbers it; false: too many wait, and it is answered so.
    pub(super) fn open(
        &mut self,
        session: u64,
        claim: &mut protocol::Claim,
        answer: Answered,
    ) -> bool {
        let since = Instant::now();
        let is_awaited = |open: &Open| since.duration_since(open.since) < CLAIM_TIME_MAX;
        self.open.retain(|_, open| is_awaited(open));
        if self.open.len() >= CLAIMS_MAX {
            answer(Err("too many claims of addresses wait".to_owned()));
            return false;
        }
        self.last += 1;
        claim.id = self.last;
        let open = Open {
            overlay: claim.overlay.clone(),
            session,
            since,
            answer,
        };
        self.open.insert(claim.id, open);
        true
    }

    /// Takes a session's answer. One that nobody waits for any more is void.
    ///
    /// # Errors
    /// Another session was asked.
    pub(super) fn close(&mut self, session: u64, id: u64, claimed: Claimed) -> Result<(), String> {
        if self
            .open
            .get(&id)
            .is_some_and(|open| open.session != session)
        {
            return Err(format!("it answers claim {id}, which another was told"));
        }
        if let Some(open) = self.open.remove(&id) {
            (open.answer)(claimed);
        }
        Ok(())
    }

    /// A session answers none of its claims any more.
    pub(super) fn lose(&mut self, session: u64, why: &str) {
        self.fail(why, |open| open.session == session);
    }

    /// An overlay leaves a session.
    pub(super) fn leave(&mut self, session: u64, overlay: &str) {
        let is_its = |open: &Open| open.session == session && open.overlay == overlay;
        self.fail("the overlay ends", is_its);
    }

    fn fail(&mut self, why: &str, is_one: impl Fn(&Open) -> bool) {
        let gone = self.open.extract_if(.., |_, open| is_one(open));
        gone.for_each(|(_, open)| (open.answer)(Err(why.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that answers another's claim is told so, and the claim waits for its own.
    #[test]
    fn a_claim_is_answered_by_its_own_session() {
        let mut claims = Claims::default();
        let mut claim = protocol::Claim {
            id: 0,
            overlay: "ov0".to_owned(),
            vni: 23,
            owner: "a".to_owned(),
            mac: None,
            pool: "p0".to_owned(),
            sets: Vec::new(),
            ips: Vec::new(),
            dry_run: false,
        };
        let (to, answers) = std::sync::mpsc::channel();
        let answer = Box::new(move |claimed| to.send(claimed).expect("awaited"));
        assert!(claims.open(1, &mut claim, answer));
        let other = claims.close(2, claim.id, Err("another's".to_owned()));
        assert!(other.is_err() && answers.try_recv().is_err());
        let own = claims.close(1, claim.id, Err("its own".to_owned()));
        assert_eq!(own, Ok(()));
        assert_eq!(answers.try_recv(), Ok(Err("its own".to_owned())));
    }
}
