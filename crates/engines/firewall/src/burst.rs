//! The frames of a burst that are the next of their connections and no more, what most are, or the first of others.
//!
//! # Model
//! Two passes. The first looks for the connections of all plain frames, so that the memory of each comes while others are looked for. The
//! second lets those pass that change nothing but numbers and times of their connection, in the order of the burst, and has those of no connection
//! decided, up to the first that is something else or does not pass. What was found holds until the
//! tracker makes an entry, which may take the place of another, or be that of a frame to come; from then on each known frame is looked for when its
//! turn comes, and one of no connection is [judged](crate::Firewall) if its bucket may have an entry now.

use windlass_frame::{BURST, Tick};
use windlass_rules::Direction;
use windlass_wire::parse;

use crate::policy::Policy;
use crate::stages::Decision;
use crate::track::{Moment, Next, Tracker, moment};

/// The private bytes of a frame, and its length.
type Frame<'a> = (&'a [u8], u32);

/// A burst in one direction.
pub(crate) struct Burst<'a, const IS_OUT: bool> {
    policy: &'a Policy,
    now: Moment,
    found: [Option<Next>; BURST],
    /// Plain frames of no connection, as bits.
    unknown: u64,
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
            unknown: 0,
            turn: 0,
            len: 0,
            made: 0,
        }
    }

    /// Finds what a frame is the next of; false if it is plain and of no connection.
    #[inline(always)]
    fn find(&mut self, i: usize, tracker: &Tracker, frame: Option<Frame<'_>>) -> bool {
        let (Some(found), Some((bytes, len))) = (self.found.get_mut(i), frame) else {
            return true;
        };
        let Some(head) = parse::plain(bytes, len) else {
            return true;
        };
        tracker.seek(Self::DIRECTION, head, (self.now, len), found)
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
            if !self.find(i, tracker, frame(i)) {
                self.unknown |= 1 << i;
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
        if let Some(found) = self.found.get_mut(i) {
            *found = None;
        }
        self.find(i, tracker, frame(i));
    }

    /// Lets frames pass, and has those of no connection decided by `begin`, which is told whether that is certain. The first that was decided not to
    /// pass, or has to be judged; its turn is over.
    #[inline(never)]
    pub(crate) fn follow<'f>(
        &mut self,
        tracker: &mut Tracker,
        frame: impl Fn(usize) -> Option<Frame<'f>>,
        begin: impl Fn(&mut Tracker, Frame<'f>, bool) -> Option<Decision>,
    ) -> Option<(usize, Option<Decision>)> {
        let at = (self.now, self.policy.generation);
        while self.turn < self.len {
            let i = self.turn;
            self.turn = i.wrapping_add(1);
            let is_old = self.made != tracker.made;
            if is_old && self.found.get(i).is_some_and(Option::is_some) {
                self.renew(i, tracker, &frame);
            }
            let Some(Some(next)) = self.found.get(i) else {
                let frame = (self.unknown >> i & 1 != 0).then(|| frame(i)).flatten();
                match frame.and_then(|frame| begin(tracker, frame, !is_old)) {
                    Some(Decision::Accept) => continue,
                    decision => return Some((i, decision)),
                }
            };
            let Some(decided) = tracker.follow(next, Self::DIRECTION, at) else {
                return Some((i, None));
            };
            if decided.number() != 0 {
                let counts = &self.policy.counts;
                counts.add_by_number(decided.number(), next.len);
            }
        }
        None
    }
}
