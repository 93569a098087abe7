//! A simulation: workers, peers and the control thread in one thread, in an order that a seed decides.
//!
//! # Purpose
//! Finds what happens once in a million times: a wake-up that is lost, a frame for a number's former owner, a ring that
//! is touched after it was given back.
//!
//! # Model
//! `world` has the workers, the clock and the scheduler. A step is one round of a worker, some frames put into or taken out
//! of a ring, a late notification, or one call of the control thread to the real [`crate::dataplane::DataPlane`]. Where a worker reads the time
//! or calls a port, others may take steps in its midst. A worker may be kept from its core for up to 8 s. `port` has the rings
//! and how their peers notify, `model` what is known of owners and frames, `control` the calls.
//!
//! A simulation goes on for about a hundred steps, comes to rest, is checked, and goes on, three times.
//!
//! # What must hold
//! At every step:
//! - a frame is given to members of its bridge only, never to its sender, and to each of them once;
//! - what is for a member's own address reaches that member only; what is for one member reaches one that has used
//!   the address;
//! - what the daemon sends out of a member reaches its owner, once, in order, and nobody else;
//! - what a restricted owner may not send reaches nobody;
//! - what is for a reserved address reaches the daemon only, once, in order, as its sender's;
//! - the frames of a flow keep their order, and so do those of its floods (a frame to an address that has become known can
//!   overtake floods to it);
//! - a move that is refused has changed nothing;
//! - no frame stays gathered behind the round of its worker, hence none before a worker that sleeps;
//! - no ring is touched after its detach was answered; only a dead attachment is condemned.
//!
//! When all rests:
//! - no frame waits in a ring before a sleeping worker, none before a sleeping peer;
//! - every frame is delivered or counted, and nothing is held, neither by a worker nor for the daemon, nor before its bridge;
//! - every ring is served by the worker that the placement names, and no other;
//! - every table has a writer, at its home;
//! - rings that were asked back are back, however late a worker was;
//! - a table holds no address behind a member that never used it, and each that only one member has used.
//!
//! # Not done
//! Rounds of two workers overlap as calls in each other, not instruction by instruction: memory order is what
//! the loom models are for.

mod control;
mod corked;
mod deaf;
mod holes;
mod model;
mod moves;
mod port;
mod questions;
pub(crate) mod random;
mod shaping;
mod storm;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use world::World;

/// Member numbers.
const MEMBERS: usize = 32;
/// Seeds that are tried.
const SEEDS: u64 = 10_000;

/// One simulation.
fn simulate(seed: u64) {
    let world = World::start(seed, 1 + (seed % 3) as usize, MEMBERS);
    world.is_crowded.set(seed % 32 == 31);
    world.is_restless.set(seed % 4 == 2);
    world.populate();
    for _ in 0..3 {
        for _ in 0..50 + world.below(100) {
            world.step();
        }
        world.run_until_quiet();
        world.check();
        world.check_tables();
        world.check_drains();
        world.run_until_quiet();
        world.go_on();
    }
    // Workers that sleep hold nothing back: the data plane frees what it has published.
    drop(world.plane.take());
    World::end();
}

/// Does something with a world, and abandons the world if that fails.
fn attempt(work: impl FnOnce()) -> std::thread::Result<()> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.inspect_err(|_| World::abandon())
}

/// The same for one test.
fn within(work: impl FnOnce()) {
    attempt(work).unwrap_or_else(|failure| resume_unwind(failure));
}

/// Seeds from `from` on, in as many threads as there are cores; prints the first that fails.
fn sweep(from: u64, count: u64) {
    let next = AtomicU64::new(from);
    let failed = AtomicU64::new(u64::MAX);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failed.load(Ordering::Relaxed) == u64::MAX {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    if attempt(|| simulate(seed)).is_err() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert_eq!(failed, u64::MAX, "again: WINDLASS_SEED={failed}");
}

/// No seed breaks what must hold. `WINDLASS_SEED` names one to be tried alone, or the first of `WINDLASS_SEEDS`.
#[test]
fn nothing_is_lost_and_nobody_is_mistaken() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let (first, count) = (number("WINDLASS_SEED"), number("WINDLASS_SEEDS"));
    let count = count.unwrap_or(first.map_or(SEEDS, |_| 1));
    sweep(first.unwrap_or(0), count);
}
