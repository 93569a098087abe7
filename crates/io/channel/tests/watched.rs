//! Which channels an epoll instance looks at, and when it stops.
#![cfg(not(loom))]

mod harness;

use std::os::fd::AsRawFd;

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{Side, Slab, Watched};

/// A slab, and two of its channels, which are in one word of a bitmap.
fn slab() -> (&'static Slab, [u16; 2]) {
    let [slab, board] = [SLAB_BYTES, 4096].map(memory);
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let chans = [tcp(), tcp()].map(|(a, b)| join(shared, &a, &b));
    (shared.slab, chans)
}

/// Sets the news bit of a channel's high side, as a sender does.
fn tell(slab: &Slab, chan: u16) {
    slab.link(chan, Side::High).expect("a channel").set_news();
}

fn taken(watched: &Watched, slab: &Slab) -> Vec<(u16, bool)> {
    let mut taken = Vec::new();
    watched.take(slab, Side::High, |chan, has_bit| {
        taken.push((chan, has_bit))
    });
    taken
}

fn listed(watched: &Watched) -> Vec<u16> {
    let mut listed = Vec::new();
    watched.each_listed(|chan| listed.push(chan));
    listed
}

/// Each of two instances takes the news of its own members once, and leaves those of the other one.
#[test]
fn news_are_taken_once_and_by_their_instance() {
    let (slab, [one, other]) = slab();
    let (mine, theirs) = (Watched::new(), Watched::new());
    mine.add(one);
    theirs.add(other);
    for chan in [one, other] {
        tell(slab, chan);
    }
    assert!(mine.has_news(slab, Side::High, None));
    assert!(!mine.has_news(slab, Side::High, Some(one)), "but for it");
    assert_eq!(taken(&mine, slab), [(one, true)]);
    assert_eq!(taken(&mine, slab), []);
    assert!(theirs.has_news(slab, Side::High, None), "it was not taken");
    assert_eq!(taken(&theirs, slab), [(other, true)]);
    // The other side's news are others.
    let fresh = Watched::new();
    fresh.add(one);
    tell(slab, one);
    assert!(!fresh.has_news(slab, Side::Low, None));
    assert!(fresh.has_news(slab, Side::High, None));
}

/// What was taken stays listed until a look finds nothing twice; what comes between the two looks is listed again.
#[test]
fn a_member_is_listed_until_nothing_is_found() {
    let (slab, [chan, _]) = slab();
    let watched = Watched::new();
    watched.add(chan);
    tell(slab, chan);
    let _ = taken(&watched, slab);
    assert_eq!(listed(&watched), [chan]);
    assert_eq!(watched.look(chan, || Some(1)), Some(1));
    assert!(watched.has_listed(), "it has something");
    let mut looks = 0;
    let second = watched.look(chan, || {
        looks += 1;
        (looks == 2).then_some(looks)
    });
    assert_eq!(second, Some(2), "it came between two looks");
    assert_eq!(listed(&watched), [chan]);
    assert_eq!(watched.look(chan, || None::<()>), None);
    assert!(!watched.has_listed());
}

/// A member that was removed is neither taken nor listed, and its news wait for whom it is added to next.
#[test]
fn a_removed_member_has_no_news() {
    let (slab, [chan, other]) = slab();
    let (first, next) = (Watched::new(), Watched::new());
    first.add(chan);
    first.add(other);
    first.list(chan);
    first.remove(chan);
    tell(slab, chan);
    assert_eq!(listed(&first), []);
    assert!(!first.has_news(slab, Side::High, None));
    assert_eq!(taken(&first, slab), []);
    next.add(chan);
    assert_eq!(taken(&next, slab), [(chan, true)]);
}
