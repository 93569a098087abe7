//! Stages: what a member's frames pass besides the bridge.
//!
//! # Model
//! ```text
//! rx_burst -> leave -> IngressStage.. -> shaper -> bridge -> group -> EgressStage.. -> shaper -> tx_burst
//! ```
//! A member has a list of each, made when it is configured; most have none, which is asked once for each burst. A stage is
//! given a whole burst.
//!
//! | | on its way in | on its way out |
//! | --- | --- | --- |
//! | pass | no verdict | [`Fate::Pass`] |
//! | drop | [`Leaving::decide`] | [`Entering::drop_frame`] |
//! | consume | [`Verdict::LOCAL`] | no: whoever answers for a member does so before the bridge decides |
//! | rewrite | the private bytes, for all receivers | [`Entering::rewrite`], for this receiver only |
//!
//! A stage holds no frame: what has to wait does so behind all of them (windlass-shaper).
//!
//! # Ownership and lifetime
//! Stages are shared by all workers. What they keep (the connections of a firewall) holds for the member, whatever the
//! number of workers, and survives topologies.

use std::net::IpAddr;
use std::sync::Arc;

use windlass_frame::{BURST, Deepen, Heads, Meta, Pick, Tick, Verdict};
use windlass_stats::Drop;

use crate::guard::{Guard, Protection};
use crate::learn::Learner;

/// Decides about frames of one member before its bridge does.
pub trait IngressStage: Send + Sync {
    /// Decides about the frames that still pass.
    fn leave(&self, frames: &mut Leaving<'_>);

    /// Which untagged IPv4, IPv6 and ARP frames from the member's own address it passes, and only passes.
    fn plain(&self) -> Plain {
        Plain::None
    }
}

/// Frames that a stage does nothing with, as can be told from each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    /// None that could be named.
    None,
    /// All.
    All,
    /// Whole TCP segments, and whole UDP datagrams to no port of DHCP, over IPv4 without options and not in fragments, or over IPv6
    /// without extension headers; if addresses are named, from these.
    Transport(Option<Vec<IpAddr>>),
}

/// Decides about frames on their way to one member.
pub trait EgressStage: Send + Sync {
    /// Decides about the frames that still pass.
    fn enter(&self, now: Tick, frames: &mut Entering<'_>);
}

/// Frames of a burst on their way from their member to its bridge.
pub struct Leaving<'a> {
    heads: &'a mut Heads,
    tails: &'a mut dyn Deepen,
}

impl<'a> Leaving<'a> {
    /// All frames of a burst; those that have a verdict keep it.
    pub fn new(heads: &'a mut Heads, tails: &'a mut dyn Deepen) -> Leaving<'a> {
        Leaving { heads, tails }
    }

    /// Frames, whatever becomes of them.
    #[inline]
    pub fn len(&self) -> usize {
        self.heads.n.min(BURST)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The burst.
    pub fn heads(&self) -> &Heads {
        self.heads
    }

    /// The burst, to be rewritten for all receivers.
    pub fn rewrite(&mut self) -> &mut Heads {
        self.heads
    }

    /// Makes at least `upto` bytes of a frame private; false if that cannot be.
    pub fn deepen(&mut self, i: usize, upto: usize) -> bool {
        let is_done = self.tails.deepen(self.heads, i, upto);
        is_done && self.heads.private(i).len() >= upto
    }

    /// What is known of a frame that still passes.
    #[inline]
    pub fn passing(&self, i: usize) -> Option<&Meta> {
        let passes = i < self.len() && self.heads.verdict.get(i) == Some(&Verdict::NONE);
        self.heads.meta.get(i).filter(|_| passes)
    }

    /// The private bytes of a frame that still passes, and its length.
    #[inline]
    pub fn private(&self, i: usize) -> Option<(&[u8], u32)> {
        let len = self.passing(i)?.len;
        Some((self.heads.private(i), len))
    }

    /// Gives a frame its verdict, if it has none.
    pub fn decide(&mut self, i: usize, verdict: Verdict) {
        if let Some(given) = self.heads.verdict.get_mut(i)
            && *given == Verdict::NONE
        {
            *given = verdict;
        }
    }
}

/// What becomes of a frame on its way to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    #[default]
    Pass,
    /// It is dropped.
    Drop(Drop),
}

/// Frames of a burst on their way to one member. Numbers count the picks.
pub struct Entering<'a> {
    given: &'a Heads,
    own: &'a mut Heads,
    is_own: bool,
    picks: &'a [Pick],
    fates: [Fate; BURST],
}

impl<'a> Entering<'a> {
    /// Frames `picks` of a burst; `own` has room for what is rewritten.
    pub fn new(given: &'a Heads, own: &'a mut Heads, picks: &'a [Pick]) -> Entering<'a> {
        Entering {
            given,
            own,
            is_own: false,
            picks: picks.get(..picks.len().min(BURST)).unwrap_or(&[]),
            fates: [Fate::Pass; BURST],
        }
    }

    /// The burst, as far as it was rewritten.
    pub fn heads(&self) -> &Heads {
        if self.is_own { self.own } else { self.given }
    }

    /// The frames and what becomes of them.
    pub fn fates(&self) -> impl Iterator<Item = (Pick, Fate)> + '_ {
        self.picks.iter().copied().zip(self.fates)
    }

    /// Whether [`Entering::heads`] differs from what was given.
    pub fn is_rewritten(&self) -> bool {
        self.is_own
    }

    /// Frames, whatever becomes of them.
    pub fn len(&self) -> usize {
        self.picks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.picks.is_empty()
    }

    /// Which of the burst's frames it is.
    pub fn pick(&self, k: usize) -> Option<Pick> {
        self.picks.get(k).copied()
    }

    /// What is known of a frame that still passes.
    #[inline]
    pub fn passing(&self, k: usize) -> Option<&Meta> {
        let passes = self.fates.get(k) == Some(&Fate::Pass);
        let pick = self.picks.get(k).filter(|_| passes)?;
        self.heads().meta.get(pick.index())
    }

    /// The private bytes of a frame that still passes, and its length.
    pub fn private(&self, k: usize) -> Option<(&[u8], u32)> {
        let len = self.passing(k)?.len;
        let pick = self.picks.get(k)?;
        Some((self.heads().private(pick.index()), len))
    }

    /// Drops a frame.
    pub fn drop_frame(&mut self, k: usize, reason: Drop) {
        if let Some(fate) = self.fates.get_mut(k) {
            *fate = Fate::Drop(reason);
        }
    }

    /// The burst, to be rewritten for this member: others get it as it was.
    pub fn rewrite(&mut self) -> &mut Heads {
        if !self.is_own {
            self.is_own = true;
            self.own.clear(self.given.from, self.given.now);
            self.own.n = self.given.n;
            for pick in self.picks {
                self.own.copy_frame(self.given, pick.index());
            }
        }
        self.own
    }
}

/// What the frames of a member of these link-layer addresses are held against before its bridge decides, in this order:
/// [`MacNospoof`], where that is on and something else is, [`Restricted`], [`Guard`].
pub fn protect(
    macs: &Arc<[u64]>,
    mac_nospoof: bool,
    protection: &Arc<Protection>,
    learner: Option<Arc<Learner>>,
) -> impl Iterator<Item = Arc<dyn IngressStage>> {
    let restricted = protection.restricted.then(|| Arc::new(Restricted) as _);
    let guard = Guard::new(macs, protection, learner).map(|guard| Arc::new(guard) as _);
    let is_first = mac_nospoof && (restricted.is_some() || guard.is_some());
    let first = is_first.then(|| Arc::new(MacNospoof(macs.clone())) as _);
    [first, restricted, guard].into_iter().flatten()
}

/// The member sends from its own addresses only: these, as [`Heads::src`] has them. The bridge checks the same; before other
/// stages it is checked here, so that frames of strangers are counted as such.
#[derive(Clone, Debug)]
pub struct MacNospoof(pub Arc<[u64]>);

impl IngressStage for MacNospoof {
    fn plain(&self) -> Plain {
        Plain::All
    }

    fn leave(&self, frames: &mut Leaving<'_>) {
        for i in 0..frames.len() {
            let heads = frames.heads();
            let is_own = heads.src.get(i).is_some_and(|src| is_one(&self.0, *src));
            if !is_own && heads.meta.get(i).is_some_and(|meta| meta.len >= 14) {
                frames.decide(i, Verdict::drop(Drop::MacSpoof));
            }
        }
    }
}

/// Whether it is one of some addresses, most times the first.
#[inline(always)]
fn is_one(macs: &[u64], src: u64) -> bool {
    match macs {
        [first, rest @ ..] => src == *first || (!rest.is_empty() && rest.contains(&src)),
        [] => false,
    }
}

/// EtherTypes that a restricted VNIC may send, and the tag before them, as little-endian loads.
const ALLOWED: [u16; 3] = [0x0008, 0x0608, 0xdd86];
const TAG: u16 = 0x0081;

/// The member sends IPv4, IPv6 and ARP only, with at most one 802.1Q tag.
#[derive(Clone, Copy, Debug)]
pub struct Restricted;

impl IngressStage for Restricted {
    fn plain(&self) -> Plain {
        Plain::All
    }

    fn leave(&self, frames: &mut Leaving<'_>) {
        for i in 0..frames.len() {
            let heads = frames.heads();
            let Some(mut kind) = heads.kind.get(i).copied() else {
                return;
            };
            if kind == TAG {
                let behind = heads.private(i).get(16..).and_then(|p| p.first_chunk());
                kind = behind.map_or(0, |kind| u16::from_le_bytes(*kind));
            }
            let is_whole = heads.meta.get(i).is_some_and(|meta| meta.len >= 14);
            if !ALLOWED.contains(&kind) && is_whole {
                frames.decide(i, Verdict::drop(Drop::Restricted));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, HEADROOM};

    /// No frame here has anything behind its snapshot.
    struct Nothing;

    impl Deepen for Nothing {
        fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
            false
        }
    }

    fn burst(frames: &[&[u8]]) -> Box<Heads> {
        let mut heads = Heads::boxed();
        for (i, frame) in frames.iter().enumerate() {
            heads.snap[i].0[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
            heads.admit(i, frame.len() as u32, Claim::NONE);
        }
        heads.n = frames.len();
        heads
    }

    fn typed(kinds: &[u16]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
        frame.resize(60, 0);
        frame
    }

    /// What is not IPv4, IPv6 or ARP is dropped, also behind a tag, also what is cut off or has no type; a verdict stays.
    #[test]
    fn restricted_is_ip_and_arp() {
        let cases = [
            (typed(&[0x0800]), true),
            (typed(&[0x0806]), true),
            (typed(&[0x86dd]), true),
            (typed(&[0x8100, 5, 0x0800]), true),
            (typed(&[0x8100, 5, 0x88cc]), false),
            (typed(&[0x8100, 5, 0x8100, 5, 0x0800]), false),
            (typed(&[0x88a8, 5, 0x0800]), false),
            (typed(&[0x8100, 5])[..17].to_vec(), false),
            (typed(&[0x8864]), false),
            (typed(&[0x0026, 0x4242]), false),
        ];
        let frames: Vec<&[u8]> = cases.iter().map(|(frame, _)| &**frame).collect();
        let mut heads = burst(&frames);
        Restricted.leave(&mut Leaving::new(&mut heads, &mut Nothing));
        for (i, (frame, passes)) in cases.iter().enumerate() {
            let expected = match passes {
                true => Verdict::NONE,
                false => Verdict::drop(Drop::Restricted),
            };
            assert_eq!(heads.verdict[i], expected, "{frame:02x?}");
        }
        heads.verdict[4] = Verdict::drop(Drop::BadOffload);
        Restricted.leave(&mut Leaving::new(&mut heads, &mut Nothing));
        assert_eq!(heads.verdict[4], Verdict::drop(Drop::BadOffload));
    }

    /// Sources that are not the member's own are dropped; a verdict stays, and a runt is the bridge's.
    #[test]
    fn strangers_are_dropped() {
        let (own, mut other) = (typed(&[0x0800]), typed(&[0x0800]));
        other[11] = 3;
        let mut heads = burst(&[&own, &other, &other, &other[..13]]);
        heads.verdict[2] = Verdict::drop(Drop::BadOffload);
        MacNospoof([0x0202_0202_0202].into()).leave(&mut Leaving::new(&mut heads, &mut Nothing));
        let given = [0, 1, 2, 3].map(|i| heads.verdict[i].as_drop());
        let expected = [None, Some(Drop::MacSpoof), Some(Drop::BadOffload), None];
        assert_eq!(given, expected);
    }

    /// Stages are there for what is on and in their order: a frame that all would refuse is the first one's.
    #[test]
    fn protection_has_an_order() {
        let mut spoofed = typed(&[0x0800]);
        spoofed[11] = 3;
        let own = typed(&[0x0800]);
        let frames = [spoofed, typed(&[0x88cc]), own];
        let outcome = |mac_nospoof, restricted, router_guard| {
            let protection = Arc::new(Protection {
                restricted,
                router_guard,
                ..Protection::default()
            });
            let mut heads = burst(&[&frames[0], &frames[1], &frames[2]]);
            let macs = [0x0202_0202_0202].into();
            let stages: Vec<_> = protect(&macs, mac_nospoof, &protection, None).collect();
            for stage in &stages {
                stage.leave(&mut Leaving::new(&mut heads, &mut Nothing));
            }
            let drops = [0, 1, 2].map(|i| heads.verdict[i].as_drop());
            (stages.len(), drops)
        };
        let (spoof, kind) = (Some(Drop::MacSpoof), Some(Drop::Restricted));
        // A packet of zeros cannot be read.
        let unread = Some(Drop::RouterGuard);
        assert_eq!(outcome(true, false, false), (0, [None; 3]));
        assert_eq!(outcome(true, true, false), (2, [spoof, kind, None]));
        assert_eq!(outcome(true, true, true), (3, [spoof, kind, unread]));
        assert_eq!(outcome(false, true, true), (2, [unread, kind, unread]));
        assert_eq!(outcome(false, false, true), (1, [unread, None, unread]));
    }

    /// A frame that is rewritten on its way to one member is what it was on its way to others.
    #[test]
    fn a_rewrite_is_for_one_receiver() {
        let frame = typed(&[0x0800]);
        let given = burst(&[&frame, &frame]);
        let mut own = Heads::boxed();
        let picks = [Pick::frame(1, false)];
        let mut entering = Entering::new(&given, &mut own, &picks);
        assert!(!entering.is_rewritten());
        assert!(entering.rewrite().prepend(1, &[0xee; 50]));
        assert!(entering.is_rewritten());
        let heads = entering.heads();
        assert_eq!(&heads.private(1)[..50], &[0xee; 50]);
        assert_eq!(&heads.private(1)[50..], &frame[..]);
        assert_eq!(entering.passing(0).map(|meta| meta.len), Some(110));
        assert_eq!(given.private(1), &frame[..]);
    }
}
