//! The random full-duplex checker over real loopback sockets, within one process. `WINDLASS_CHANNEL_SOAK`
//! multiplies the time.
#![cfg(not(loom))]

mod harness;

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{Side, sys};

/// How much longer than in `cargo test`.
fn factor() -> f64 {
    std::env::var("WINDLASS_CHANNEL_SOAK")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(1.0)
}

/// Runs both directions for a time, and checks every byte and the totals.
fn run(time: Duration, habits: [Habits; 2], seed: u64) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let (slab, board) = (memory(SLAB_BYTES), memory(4096));
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let (a, b) = tcp();
    let chan = join(shared, &a, &b);
    let (done, finished) = mpsc::channel();
    let mut threads = Vec::new();
    for (side, socket, h) in [(Side::Low, &a, habits[0]), (Side::High, &b, habits[1])] {
        let fd = socket.as_raw_fd();
        let connected = side == Side::Low;
        for is_sender in [true, false] {
            let done = done.clone();
            threads.push(std::thread::spawn(move || {
                let end = Endpoint::new(shared, chan, side, fd, connected);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    if is_sender {
                        assert_eq!(sender(&end, h, seed + side as u64), None);
                        None
                    } else {
                        let (got, error) = receiver(&end, h, seed ^ 0xff);
                        assert_eq!(error, None, "{h:?}");
                        Some((side.other(), got))
                    }
                }));
                let _ = done.send(result.ok());
            }));
        }
    }
    std::thread::sleep(time);
    shared.board.stop.store(1, Ordering::Relaxed);
    for _ in 0..4 {
        let result = finished
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| {
                let words = [Side::Low, Side::High]
                    .map(|s| format!("{:?}", shared.slab.link(chan, s).unwrap().outgoing()));
                panic!(
                    "a thread hangs: {habits:?}, seed {seed}\n{}\n{}",
                    words[0], words[1]
                )
            })
            .expect("a thread failed");
        if let Some((from, got)) = result {
            let sent = shared.board.sent[from as usize].load(Ordering::Acquire);
            assert_eq!(got, sent, "bytes from {from:?}, {habits:?}");
        }
    }
    // The descriptors' numbers must not be another connection's while a thread may still use them.
    threads.into_iter().for_each(|t| t.join().unwrap());
}

const MICROS: [u64; 4] = [0, 5, 20, 50];
const EXCURSIONS: [u64; 4] = [2, 3, 10, 100];

/// Every byte arrives once and in order, in both directions at once, whatever the sizes, however often a
/// direction goes to
/// the kernel and back, however long the ends spin, and wherever they sleep.
#[test]
fn every_byte_arrives_once_and_in_order() {
    assert!(sys::register_membarrier());
    let time = Duration::from_secs_f64(0.3 * factor());
    for (i, &spin) in MICROS.iter().enumerate() {
        for (j, &excursion) in EXCURSIONS.iter().enumerate() {
            let habits = |poll, nonblocking| Habits {
                spin: Duration::from_micros(spin),
                excursion,
                poll,
                nonblocking,
            };
            let both = [
                habits((i + j) % 2 == 0, false),
                habits(j % 2 == 0, i % 2 == 1),
            ];
            run(time, both, (i * 4 + j) as u64 * 77 + 1);
        }
    }
}
