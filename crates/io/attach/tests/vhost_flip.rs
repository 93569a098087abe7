//! A guest that changes what it gave while we work on it, or takes it away: decisions and deliveries rest on the same
//! bytes, nothing is written where nothing was offered, and nobody else notices.
#![allow(missing_docs)]

mod vhost_drive;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost_drive::*;
use windlass_attach::port::{More, Stop, TxPort};
use windlass_attach::vhost_user::features::*;
use windlass_frame::{FRAME_MAX, Pick, Verdict};
use windlass_sys::eventfd;

/// How long the other thread may take to be given a core.
const PATIENCE: Duration = Duration::from_secs(20);
const AT: u64 = HIGH + 4096;
const TABLE: u64 = LOW + 0x9_0000;

/// Does `flip` with ever new numbers until it is told to stop.
struct Flipper(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Flipper {
    fn new(mut flip: impl FnMut(u64) + Send + 'static) -> Flipper {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut n = 1u64;
            while !told.load(Ordering::Relaxed) {
                // xorshift64: numbers without a pattern that a burst could fall in step with.
                n ^= n << 13;
                n ^= n >> 7;
                n ^= n << 17;
                flip(n);
            }
        });
        Flipper(stop, Some(thread))
    }
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

/// Rewrites addresses, tag and virtio header of the frame at [`AT`], and place and length in the descriptors of the ring at
/// `desc` and in the second one of the table.
fn flip_source(guest: Arc<Guest>, desc: u64) -> Flipper {
    Flipper::new(move |n| {
        let byte = n as u8;
        guest.write(AT + 12 + 6, &[byte & 0xfe; 6]);
        guest.write(AT + 12 + 14, &[0, byte]);
        guest.write(AT, &[byte & 1, byte, 0, 0, 0, 0, 34, 0, 16, 0]);
        let len = [20u32, 100, 140, 1012, 80_000, u32::MAX][(n >> 8) as usize % 6].to_le_bytes();
        let addr = [AT, AT, AT, AT + 7, HIGH + HIGH_BYTES - 500, u64::MAX - 20];
        let addr = addr[(n >> 16) as usize % 6].to_le_bytes();
        let slot = (n >> 24) % 64;
        guest.write(desc + slot * 16 + 8, &len);
        guest.write(desc + slot * 16, &addr);
        guest.write(TABLE + 16 + 8, &len);
        guest.write(TABLE + 16, &addr);
    })
}

/// A source that rewrites addresses, tag, virtio header, and what descriptors and tables say of place and length, all
/// while we receive and transmit: what the burst says of a frame is what its private bytes say, both are what the
/// receiver gets, and no frame is longer than the burst says.
fn frames_change(layout: Layout, features: u64) {
    let (a, b) = (Guest::new(), Guest::new());
    let mut up = layout.ring(&a, 0, 64, 0);
    let mut down = layout.ring(&b, 1, 64, 0);
    let (mut rx, tx) = (up.rx(INDIRECT_DESC | features), down.tx(0));
    let mut bytes = with_header(1000, 0);
    bytes[HEADER + 12..HEADER + 16].copy_from_slice(&[0x81, 0, 0, 1]);
    a.write(AT, &bytes);
    let _flipper = flip_source(a.clone(), up.setup(0).desc);
    let mut station = Station::new();
    let (mut raced, mut delivered) = (0, 0);
    let begun = Instant::now();
    for round in 0u32.. {
        // On a busy machine the other thread may not have run yet.
        if round >= 30_000 && (raced > 10 || begun.elapsed() > PATIENCE) {
            break;
        }
        match round % 3 {
            0 => up.add(1, &[(AT, 1012)], None, 0),
            1 => up.add(1, &[(AT, 12), (AT + 12, 1000)], None, 0),
            _ => up.add(1, &[(AT, 12), (AT + 12, 1000)], Some(TABLE), 0),
        }
        up.publish();
        b.write(HIGH, &[0xee; 2048]);
        down.offer_one(3, HIGH, 2048, WRITE);
        let sent = station.visit(&mut rx, |section, heads, tails, _| {
            assert_eq!(heads.n, 1);
            if heads.verdict[0] != Verdict::NONE {
                return None;
            }
            let private = heads.private(0).to_vec();
            let word = |at: usize| {
                let mut word = [0; 8];
                word[..6].copy_from_slice(&private[at..at + 6]);
                u64::from_le_bytes(word)
            };
            assert_eq!((heads.dst[0], heads.src[0]), (word(0), word(6)));
            let len = heads.meta[0].len as usize;
            assert!(len <= FRAME_MAX && private.len() == len.min(128));
            let behind: usize = tails.of(0).map(|piece| piece.len()).sum();
            assert_eq!(private.len() + behind, len);
            let sent = tx.tx_burst(section, ONE, heads, tails, &[Pick::frame(0, false)]);
            // Whoever read a second time would have got something else now and then.
            raced += u32::from(a.read(AT + 12 + 6, 6) != private[6..12]);
            Some((private, len, sent.frames))
        });
        assert_eq!(up.reap().len(), 1);
        if let Some((private, len, 1)) = sent {
            assert_eq!(down.reap(), [(3, 12 + len as u32)]);
            assert_eq!(b.read(HIGH + 12, private.len()), private);
            let behind = b.read(HIGH, 2048).split_off(12 + len);
            assert!(behind.iter().all(|b| *b == 0xee), "{len} bytes");
            delivered += 1;
            continue;
        }
        assert!(down.reap().is_empty());
        // The buffer stays with the ring: take it back by using it up.
        assert_eq!(station.send(&tx, ONE, &[vec![2; 60]]).frames, 1);
        down.reap();
    }
    assert!(raced > 10, "the other thread changed only {raced} frames");
    assert!(delivered > 1000, "only {delivered} frames");
}

/// A hostile source over split rings.
#[test]
fn frames_that_change_meanwhile() {
    frames_change(Layout::Split, 0);
    frames_change(Layout::Split, CSUM | HOST_TSO4);
}

/// A hostile source over packed rings.
#[test]
fn packed_frames_that_change_meanwhile() {
    frames_change(Layout::Packed, 0);
    frames_change(Layout::Packed, CSUM | HOST_TSO4);
}

/// A receiver that rewrites its descriptors and tables while we fill them: every byte lands in memory that one of them
/// offered, and each frame is counted as delivered or dropped.
fn buffers_change(layout: Layout, features: u64) {
    let guest = Guest::new();
    let mut down = layout.ring(&guest, 0, 64, 0);
    let tx = down.tx(INDIRECT_DESC | features);
    // Offered are 2,048 bytes at each of these, and nothing between them.
    const PLACES: [u64; 3] = [HIGH + 0x1000, HIGH + 0x3000, HIGH + 0x5000];
    let whole = 0x8000usize;
    guest.write(HIGH, &vec![0xee; whole]);
    let (other, desc) = (guest.clone(), down.setup(0).desc);
    let flipper = Flipper::new(move |n| {
        let len = [20u32, 100, 2048, 2000, 0][(n >> 8) as usize % 5].to_le_bytes();
        let addr = [PLACES[0], PLACES[1], PLACES[2], 0, u64::MAX - 100];
        let addr = addr[(n >> 16) as usize % 5].to_le_bytes();
        let slot = (n >> 24) % 64;
        for at in [desc + slot * 16, TABLE, TABLE + 16] {
            other.write(at + 8, &len);
            other.write(at, &addr);
        }
    });
    let mut station = Station::new();
    let frames: Vec<Vec<u8>> = (0..8).map(|k| vec![2 * k as u8; 60 + k * 250]).collect();
    let mut delivered = 0;
    for round in 0..4000u32 {
        for k in 0..16u16 {
            let list = [(PLACES[0], 1024), (PLACES[1], 1024)];
            match (round + u32::from(k)) % 4 {
                0 => down.add(k * 2, &list, None, WRITE),
                1 => down.add(k * 2, &list, Some(TABLE), WRITE),
                _ => down.add(k * 2, &list[..1], None, WRITE),
            }
        }
        down.publish();
        // Whatever was offered is used up before more is.
        let mut left = 16;
        while left > 0 {
            let sent = station.send(&tx, ONE, &frames);
            let dropped: u32 = sent.dropped().iter().map(|d| d.1).sum();
            assert_eq!(sent.frames + u64::from(dropped), sent.taken as u64);
            delivered += sent.frames;
            let came = down.reap();
            assert!(came.iter().all(|c| c.1 <= 4096));
            left -= came.len();
        }
    }
    drop(flipper);
    assert!(delivered > 1000, "only {delivered} frames");
    let after = guest.read(HIGH, whole);
    for (k, chunk) in after.chunks(2048).enumerate() {
        let offered = PLACES.contains(&(HIGH + k as u64 * 2048));
        assert!(offered || chunk.iter().all(|b| *b == 0xee), "chunk {k}");
    }
}

/// A hostile receiver over split rings.
#[test]
fn buffers_that_change_meanwhile() {
    buffers_change(Layout::Split, 0);
    buffers_change(Layout::Split, MRG_RXBUF);
}

/// A hostile receiver over packed rings.
#[test]
fn packed_buffers_that_change_meanwhile() {
    buffers_change(Layout::Packed, 0);
    buffers_change(Layout::Packed, MRG_RXBUF);
}

/// A ring's own words flip at random, indexes, flags and all: every burst ends, and what is delivered is counted.
fn rings_change(layout: Layout) {
    for seed in 0..40u64 {
        let guest = Guest::new();
        let mut up = layout.ring(&guest, 0, 32, 0);
        let mut down = layout.ring(&guest, 1, 32, 0);
        let (mut rx, tx) = (
            up.rx(INDIRECT_DESC | EVENT_IDX),
            down.tx(INDIRECT_DESC | MRG_RXBUF),
        );
        let other = guest.clone();
        let _flipper = Flipper::new(move |n| {
            let n = n.wrapping_add(seed);
            let ring = LOW + (n & 1) * 0x1_0000;
            let at = [0, 0x5000, 0x6000][(n >> 1) as usize % 3] + (n >> 8) % 512;
            other.write(
                ring + at,
                &(n >> 20).to_le_bytes()[..1 + (n >> 4) as usize % 4],
            );
        });
        let mut station = Station::new();
        for id in 0..16 {
            up.add(id, &[(AT, 100)], None, 0);
            down.add(id, &[(HIGH + 0x8000, 400)], None, WRITE);
        }
        up.publish();
        down.publish();
        for _ in 0..500 {
            let sent = station.visit(&mut rx, |section, heads, tails, more| {
                if more == More::Dead {
                    return None;
                }
                assert!(heads.n <= 32);
                let picks: Vec<_> = (0..heads.n).map(|i| Pick::frame(i, false)).collect();
                Some(tx.tx_burst(section, ONE, heads, tails, &picks))
            });
            let Some(sent) = sent else { break };
            let dropped: u32 = sent.dropped().iter().map(|d| d.1).sum();
            assert_eq!(sent.frames + u64::from(dropped), sent.taken as u64);
            let section = station.worker.section();
            let _ = windlass_attach::port::RxPort::arm(&mut rx, &section);
        }
    }
}

/// Split rings whose words are noise.
#[test]
fn words_that_change_meanwhile() {
    rings_change(Layout::Split);
}

/// Packed rings whose words are noise.
#[test]
fn packed_words_that_change_meanwhile() {
    rings_change(Layout::Packed);
}

/// A guest over a file that it can shrink.
fn shrinkable() -> Arc<Guest> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::memfd_create("vhost-guest", flags).expect("memfd");
    let bytes = LOW_BYTES + HIGH_BYTES;
    rustix::fs::ftruncate(&file, bytes).expect("size");
    let memory = windlass_shm::Mapping::foreign(file.as_fd(), bytes).expect("map");
    Guest::over(memory, file)
}

/// A guest that takes its memory away costs its own port only, whether frames are gone or the rings too.
#[test]
fn memory_that_is_taken_away() {
    for layout in LAYOUTS {
        for rest in [LOW_BYTES, 0] {
            let guest = shrinkable();
            let mut up = layout.ring(&guest, 0, 16, 0);
            let mut down = layout.ring(&guest, 1, 16, 0);
            let (mut rx, tx) = (up.rx(0), down.tx(0));
            guest.write(AT, &with_header(60, 0));
            up.offer_one(0, AT, 72, 0);
            down.offer_one(0, HIGH, 100, WRITE);
            rustix::fs::ftruncate(&guest.file, rest).expect("shrink");
            let mut station = Station::new();
            // Found by touching it: zeros are no ring, or the copy ran into the hole.
            let more = station.visit(&mut rx, |_, heads, _, more| (heads.n, more));
            let sent = station.send(&tx, ONE, &[vec![2; 60]]);
            assert!(
                more == (0, More::Dead) || more == (0, More::Drained),
                "{more:?}"
            );
            assert_eq!(
                (sent.taken, sent.stop),
                (0, Stop::Down),
                "{layout:?}, {rest}"
            );
            let more = station.visit(&mut rx, |_, heads, _, more| (heads.n, more));
            assert_eq!(more, (0, More::Dead), "{layout:?}, {rest}");
            assert!(matches!(eventfd::drain(guest.map.alarm()), Ok(n) if n > 0));
        }
    }
}

/// Memory that goes away in the middle of traffic ends the visit at hand, and nothing else; a hole punched into a file
/// of ordinary pages is zeros, and no fault at all.
#[test]
fn memory_that_goes_under_traffic() {
    for layout in LAYOUTS {
        for round in 0..6u32 {
            let (a, b) = (shrinkable(), Guest::new());
            let mut up = layout.ring(&a, 0, 64, 0);
            let mut down = layout.ring(&b, 1, 64, 0);
            let (mut rx, tx) = (up.rx(0), down.tx(0));
            let file = a.file.try_clone().expect("dup");
            let punch = round % 2 == 0;
            let taker = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                if punch {
                    use rustix::fs::{FallocateFlags, fallocate};
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, flags, LOW_BYTES, HIGH_BYTES).expect("punch");
                } else {
                    rustix::fs::ftruncate(&file, LOW_BYTES).expect("shrink");
                }
            });
            let mut station = Station::new();
            let (mut dead, mut frames) = (false, 0);
            while !dead && (frames < 2000 || !taker.is_finished()) {
                for id in 0..32u16 {
                    up.add(id, &[(AT + u64::from(id) * 2048, 1012)], None, 0);
                    down.add(id, &[(HIGH + u64::from(id) * 2048, 2048)], None, WRITE);
                }
                up.publish();
                down.publish();
                dead = station.visit(&mut rx, |section, heads, tails, more| {
                    let picks: Vec<_> = (0..heads.n).map(|i| Pick::frame(i, false)).collect();
                    let sent = tx.tx_burst(section, ONE, heads, tails, &picks);
                    frames += sent.frames;
                    more == More::Dead
                });
                up.reap();
                down.reap();
            }
            taker.join().expect("taker");
            up.offer_one(40, AT, 1012, 0);
            let after = station.visit(&mut rx, |_, _, _, more| more);
            assert_eq!(after == More::Dead, !punch, "{layout:?}");
            // The receiver goes on.
            assert!(!b.map.is_dead());
            down.offer_one(1, HIGH, 2048, WRITE);
            assert_eq!(station.send(&tx, ONE, &[vec![2; 60]]).frames, 1);
        }
    }
}
