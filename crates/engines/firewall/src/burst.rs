//! The frames of a burst that are the next of their connections and no more: what most are.
//!
//! # Model
//! Two passes. The first looks for the connections of all plain frames, so that the memory of each comes while others are looked for. The
//! second lets those pass that change nothing but numbers and times of their connection, in the order of the burst, up to the first that is
//! something else. [`Firewall`](crate::Firewall) judges that one, and the second pass goes on behind it. What was found holds until the
//! tracker makes an entry, which may take the place of another; from then on each frame is looked for when its turn comes.

use windlass_frame::{BURST, Tick};
use windlass_rules::Direction;
use windlass_wire::parse;

use crate::policy::Policy;
use crate::track::{Moment, Next, Tracker, moment};

/// The private bytes of a frame, and its length.
type Frame<'a> = (&'a [u8], u32);

/// A burst in one direction.
pub(crate) struct Burst<'a, const IS_OUT: bool> {
    policy: &'a Policy,
    now: Moment,
    found: [Option<Next>; BURST],
    /// The frames whose turn has not come: from this one on, up to that.
    turn: usize,
    len: usize,
    /// What was found holds while the tracker has made so many entries.
    made: u32,
}

impl<'a, const IS_OUT: bool> Burst<'a, IS_OUT> {
    const DIRECTION: Direction = match IS_OUT {
        true => Direction::Out,
        false => Direction::In,
    };

    #[inline(always)]
    pub(crate) fn new(policy: &'a Policy, now: Tick) -> Burst<'a, IS_OUT> {
        Burst {
            policy,
            now: moment(now.0),
            found: [None; BURST],
            turn: 0,
            len: 0,
            made: 0,
        }
    }

    /// What a frame is the next of.
    #[inline(always)]
    fn next(&self, tracker: &Tracker, frame: Option<Frame<'_>>) -> Option<Next> {
        let (bytes, len) = frame?;
        tracker.seek(Self::DIRECTION, parse::plain(bytes, len)?, self.now, len)
    }

    /// Looks for the connections of `len` frames. Apart, for the sake of its registers.
    #[inline(never)]
    pub(crate) fn seek<'f>(
        &mut self,
        tracker: &Tracker,
        len: usize,
        frame: impl Fn(usize) -> Option<Frame<'f>>,
    ) {
        for i in 0..len.min(BURST) {
            if let Some(next) = self.next(tracker, frame(i))
                && let Some(found) = self.found.get_mut(i)
            {
                *found = Some(next);
            }
        }
        (self.len, self.made) = (len.min(BURST), tracker.made);
    }

    /// Looks for the connection of frame `i` once more.
    #[cold]
    #[inline(never)]
    fn renew<'f>(
        &mut self,
        i: usize,
        tracker: &Tracker,
        frame: &impl Fn(usize) -> Option<Frame<'f>>,
    ) {
        let next = self.next(tracker, frame(i));
        if let Some(found) = self.found.get_mut(i) {
            *found = next;
        }
    }

    /// Lets frames pass. The first that has to be judged; its turn is over.
    #[inline(never)]
    pub(crate) fn follow<'f>(
        &mut self,
        tracker: &mut Tracker,
        frame: impl Fn(usize) -> Option<Frame<'f>>,
    ) -> Option<usize> {
        let at = (self.now, self.policy.generation);
        while self.turn < self.len {
            let i = self.turn;
            self.turn = i.wrapping_add(1);
            // Who was not known is looked for when it is judged.
            if self.made != tracker.made && self.found.get(i).is_some_and(Option::is_some) {
                self.renew(i, tracker, &frame);
            }
            let Some(Some(next)) = self.found.get(i) else {
                return Some(i);
            };
            let Some(decided) = tracker.follow(next, Self::DIRECTION, at) else {
                return Some(i);
            };
            if decided.number() != 0 {
                let counts = &self.policy.counts;
                counts.add_by_number(decided.number(), next.len);
            }
        }
        None
    }
}
