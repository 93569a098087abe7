//! The halves between the session and the workers: they carry announcements in, and places of rings out.
//!
//! # Model
//! The worker owns the half; the session keeps a [`Link`] to it. When the half is dropped, which is after the worker gave
//! it back, its place stands in the link. An announcement is a frame that the session puts there and the next burst
//! brings as if the guest had sent it, so that it is checked, learned from and flooded like any other of this VNIC. A ring
//! that the front end has disabled has nothing for the worker, which sleeps until the session wakes it.
//!
//! # Synchronization
//! `state` is a hint, read once a burst. What [`PENDING`] stands for is behind the lock. [`DISABLED`] stands for itself: it is
//! set for bursts that begin behind it, and cleared, Release, before the worker is woken; a worker that armed the ring
//! while it was set finds the wake-up.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_frame::{Claim, HEADROOM, Heads};
use windlass_shm::{Section, Tails};

use super::queue::Base;
use super::rx::VhostRx;
use crate::port::{Armed, Limit, Loan, More, RxPort};

/// Announcements that wait in one ring at most.
const WAITING_MAX: usize = 16;
/// How often a ring is looked at whose guest cannot call, in microseconds.
const MUTE_US: u32 = 200;
/// Bytes of an announcement: the shortest frame without its checksum.
const RARP_BYTES: usize = 60;

/// Announcements wait.
const PENDING: u8 = 1;
/// The ring is disabled.
const DISABLED: u8 = 2;

#[derive(Debug, Default)]
struct Inner {
    is_over: bool,
    base: Option<Base>,
    announcements: Vec<[u8; 6]>,
}

/// The session's end.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// [`PENDING`], [`DISABLED`], or both.
    state: AtomicU8,
    inner: Mutex<Inner>,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its half is gone.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Where the ring stands, once its half is gone; `None` if that never found it in memory.
    pub(super) fn base(&self) -> Option<Base> {
        self.lock().base
    }

    /// Has the ring bring an announcement of `mac`. The worker finds it with the next burst.
    pub(super) fn announce(&self, mac: [u8; 6]) {
        let mut inner = self.lock();
        if inner.announcements.len() < WAITING_MAX {
            inner.announcements.push(mac);
            self.set(PENDING, true);
        }
    }

    /// Has the ring taken from, or left alone, from the next burst on.
    pub(super) fn set_enabled(&self, on: bool) {
        self.set(DISABLED, !on);
    }

    fn set(&self, bit: u8, on: bool) {
        match on {
            true => self.state.fetch_or(bit, Ordering::Release),
            false => self.state.fetch_and(!bit, Ordering::Release),
        };
    }
}

/// A receive half that tells where its ring stands.
pub(super) trait Half: RxPort {
    /// The first chain that was not given back; `None` if the ring was never found in memory.
    fn base(&self) -> Option<Base>;
}

impl Half for VhostRx {
    fn base(&self) -> Option<Base> {
        Some(VhostRx::base(self))
    }
}

/// The worker's end: a receive half with a link.
#[derive(Debug)]
pub(super) struct LinkedRx<H: Half> {
    half: H,
    link: Arc<Link>,
    /// The burst on loan is an announcement.
    announcing: bool,
}

impl<H: Half> LinkedRx<H> {
    pub(super) fn new(half: H, link: Arc<Link>) -> LinkedRx<H> {
        LinkedRx {
            half,
            link,
            announcing: false,
        }
    }

    /// What a burst brings while the link's state is not 0, if that decides it.
    #[cold]
    fn instead(&mut self, state: u8, heads: &mut Heads) -> Option<(Loan, More)> {
        if state & DISABLED == 0 {
            return self.announce(heads);
        }
        heads.n = 0;
        Some((Loan::default(), More::Drained))
    }

    fn announce(&mut self, heads: &mut Heads) -> Option<(Loan, More)> {
        let mut inner = self.link.lock();
        let mac = inner.announcements.pop();
        self.link.set(PENDING, !inner.announcements.is_empty());
        drop(inner);
        let frame = rarp(mac?);
        let room = heads.snap.first_mut()?.0.get_mut(HEADROOM..)?;
        room.get_mut(..RARP_BYTES)?.copy_from_slice(&frame);
        heads.admit(0, RARP_BYTES as u32, Claim::NONE);
        heads.n = 1;
        self.announcing = true;
        Some((Loan { upto: 0, count: 0 }, More::Left))
    }
}

/// The frame by which QEMU announces a guest: a reverse ARP request of the guest for its own address (RFC 903).
fn rarp(mac: [u8; 6]) -> [u8; RARP_BYTES] {
    const ETHERTYPE_RARP: [u8; 2] = [0x80, 0x35];
    /// Ethernet, IPv4, lengths of both kinds of address, "request reverse".
    const FIXED: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];
    let parts: [&[u8]; 7] = [
        &[0xff; 6],
        &mac,
        &ETHERTYPE_RARP,
        &FIXED,
        &mac,
        &[0; 4],
        &mac,
    ];
    let mut frame = [0; RARP_BYTES];
    let bytes = parts.into_iter().flatten();
    for (to, from) in frame.iter_mut().zip(bytes) {
        *to = *from;
    }
    frame
}

impl<H: Half> Drop for LinkedRx<H> {
    fn drop(&mut self) {
        let mut inner = self.link.lock();
        (inner.is_over, inner.base) = (true, self.half.base());
    }
}

impl<H: Half> RxPort for LinkedRx<H> {
    #[inline]
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let state = self.link.state.load(Ordering::Acquire);
        if state != 0
            && let Some(burst) = self.instead(state, heads)
        {
            return burst;
        }
        self.half.rx_burst(section, heads, tails, limit)
    }

    #[inline]
    fn release(&mut self, section: &Section<'_>, loan: Loan) {
        if !core::mem::take(&mut self.announcing) {
            self.half.release(section, loan);
        }
    }

    fn arm(&mut self, section: &Section<'_>) -> Armed {
        let armed = match self.link.state.load(Ordering::Acquire) & DISABLED {
            0 => self.half.arm(section),
            // Its ring is not to be touched; the session wakes the worker.
            _ => Armed::Yes,
        };
        if self.link.state.load(Ordering::Acquire) == PENDING {
            return Armed::Work;
        }
        match armed {
            Armed::Yes if self.half.wake().is_none() => Armed::Poll(MUTE_US),
            armed => armed,
        }
    }

    fn disarm(&mut self, section: &Section<'_>) {
        if self.link.state.load(Ordering::Acquire) & DISABLED == 0 {
            self.half.disarm(section);
        }
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.half.wake()
    }

    fn polls_memory(&self) -> bool {
        self.half.polls_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The announcement is the frame that QEMU's own announcement is (net/announce.c).
    #[test]
    fn the_frame_of_an_announcement() {
        let frame = rarp([2, 0, 0, 0, 0, 9]);
        let mut expected = vec![0xff; 6];
        expected.extend([2, 0, 0, 0, 0, 9, 0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        expected.extend([2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9]);
        expected.resize(60, 0);
        assert_eq!(frame.to_vec(), expected);
    }
}
