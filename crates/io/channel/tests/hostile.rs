//! A peer that writes anything anywhere into the slab at any time: the honest side gets garbage or a broken channel for
//! that pair, and nothing else.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "words are taken at offsets that are masked to their size"
)]

use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_channel::layout::{
    CHAN_BYTES, CHANS, HEADER_BYTES, PAGE, PAGES_AT, PAGES_PER_SIDE, SLAB_BYTES,
};
use windlass_channel::{Side, sys};

mod lies;
use lies::harness::{ONE_AT_A_TIME, Random, map};
use lies::{Honest, Rumour, USED, check, lie, slab};

fn seconds() -> u64 {
    let soak = std::env::var_os("WINDLASS_SOAK").is_some();
    if soak { 60 } else { 3 }
}

/// Lies until told to stop: mostly about the words of the used channels, also about bitmaps, other channels and rings.
fn scribble(base: NonNull<u8>, stop: &AtomicBool, seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut lies = 0;
    while !stop.load(Ordering::Relaxed) {
        let r = random.next() as usize;
        let offset = match random.next() % 16 {
            0 => 8 + r % (HEADER_BYTES - 8),
            1 => HEADER_BYTES + r % (CHANS * CHAN_BYTES),
            2 => PAGES_AT + r % (64 * PAGE),
            3 => PAGES_AT + PAGES_PER_SIDE * PAGE + r % (64 * PAGE),
            _ => HEADER_BYTES + r % (USED as usize * CHAN_BYTES),
        };
        if random.next().is_multiple_of(2) {
            let at = base.as_ptr().wrapping_add(offset & !7).cast::<u64>();
            // SAFETY: inside the mapping, aligned; everybody accesses it by atomics or the copy routine.
            let word = unsafe { AtomicU64::from_ptr(at) };
            word.store(
                lie(&mut random, word.load(Ordering::Relaxed)),
                Ordering::Relaxed,
            );
        } else {
            let at = base.as_ptr().wrapping_add(offset & !3).cast::<u32>();
            // SAFETY: as above.
            let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(at) };
            let old = u64::from(word.load(Ordering::Relaxed));
            word.store(lie(&mut random, old) as u32, Ordering::Relaxed);
        }
        lies += 1;
        // Bursts and pauses: the honest side shall also get somewhere.
        for _ in 0..random.next() % 40_000 * u64::from(lies % 4 == 0) {
            std::hint::spin_loop();
        }
    }
    lies
}

/// Everything of a slab that is not a hole.
fn contents(base: NonNull<u8>) -> Vec<u8> {
    let piece = |from: usize, len: usize| {
        // SAFETY: inside a mapping that nobody changes now.
        unsafe { std::slice::from_raw_parts(base.as_ptr().wrapping_add(from), len) }
    };
    let mut all = piece(0, PAGES_AT + 64 * PAGE).to_vec();
    all.extend(piece(PAGES_AT + PAGES_PER_SIDE * PAGE, 64 * PAGE));
    all
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count()
}

/// While a peer writes random values and chosen lies over the whole slab, every call of the honest side comes back in
/// bounded time, within its buffers, without a panic and without an access outside the slab; what it shares with other
/// peers stays as it is, and no descriptor is left behind.
#[test]
fn a_peer_that_scribbles_harms_only_its_own_pair() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (file, base, honest_view) = slab(1);
    let (_other_file, other, other_slab) = slab(2);
    let bystander = other_slab.allocate().expect("a channel");
    other_slab
        .link(bystander, Side::High)
        .expect("in range")
        .incoming()
        .set_slot(3);
    let before = contents(other);
    let liar = map(file.as_raw_fd(), SLAB_BYTES).as_ptr() as usize;
    let (stop, seed) = (AtomicBool::new(false), std::process::id().into());
    println!("seed {seed}");
    // Channels in both states, used by both sides of a self-pair too.
    let mut honest = Honest::new(honest_view, base);
    let open = descriptors();
    let lies = std::thread::scope(|scope| {
        let liar =
            scope.spawn(|| scribble(NonNull::new(liar as *mut u8).expect("mapped"), &stop, seed));
        let (mut random, rumour) = (Random(seed ^ 0x5eed), Rumour::default());
        let until = Instant::now() + Duration::from_secs(seconds());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while Instant::now() < until {
                honest.step(&mut random, &rumour);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        liar.join().expect("the liar")
    });
    println!("{lies} lies, {:?}", honest.done);
    assert_eq!(descriptors(), open, "descriptors");
    assert!(contents(other) == before, "another pair's slab has changed");
    let done = &honest.done;
    assert!(
        done.ring > 0 && done.kernel > 0 && done.broken > 0 && done.slept > 0,
        "{done:?}"
    );
}

/// Lies that stand still, one word at a time: each word of a channel holds each chosen value while the honest side makes
/// every call once.
#[test]
fn no_single_lie_does_harm() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (_file, base, honest_view) = slab(3);
    let mut honest = Honest::new(honest_view, base);
    let (mut random, rumour) = (Random(11), Rumour::default());
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut lies = 0;
    while Instant::now() < until {
        let offset = (HEADER_BYTES + random.next() as usize % (USED as usize * CHAN_BYTES)) & !7;
        let at = base.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: inside the mapping, aligned, accessed by atomics only.
        let word = unsafe { AtomicU64::from_ptr(at) };
        let old = word.load(Ordering::Relaxed);
        word.store(lie(&mut random, old), Ordering::Relaxed);
        (0..20).for_each(|_| honest.step(&mut random, &rumour));
        word.store(old, Ordering::Relaxed);
        lies += 1;
        // A fresh start: what is broken stays broken.
        (0..USED as u16).for_each(|chan| honest.join(chan, &mut random));
    }
    println!("{lies} lies, {:?}", honest.done);
    assert!(
        lies > 100 && honest.done.ring > 0,
        "{lies} {:?}",
        honest.done
    );
}

/// Every committed input of the fuzz target `slab`, and each cut short, keeps what must hold; together they move bytes.
#[test]
fn the_corpus_of_slabs_replays() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/slab");
    let entries = std::fs::read_dir(place).expect("the corpus");
    let mut inputs: Vec<_> = entries
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("an input"))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 8, "only {} inputs", inputs.len());
    let replay = || {
        let both = inputs.iter().map(|input| {
            check(&input[..input.len() / 2]);
            check(input)
        });
        both.sum::<u64>()
    };
    // What `check` keeps goes with its thread, before another test counts descriptors.
    let moved = std::thread::scope(|scope| scope.spawn(replay).join().expect("replayed"));
    assert!(moved > 100_000, "{moved} bytes");
}
