//! Room: the size of a ring, and who waits for what.
#![cfg(not(loom))]

mod harness;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{Bufs, KERNEL_UNREAD_MAX, Moved, RecvHow, Sent, Side, Took, WhenFull, sys};

fn send(end: &Endpoint, len: usize, full: WhenFull) -> Sent {
    let data = vec![1u8; len];
    let bufs = Bufs::out(data.as_ptr(), len);
    let out = end.link.outgoing();
    out.send(end.who(1), &end.fd, &bufs, libc::MSG_NOSIGNAL, full)
}

fn recv(end: &Endpoint) -> Took {
    let mut data = vec![0u8; 300_000];
    let bufs = Bufs::one(data.as_mut_ptr(), data.len());
    let inc = end.link.incoming();
    inc.recv(end.who(2), &end.fd, &bufs, 0, RecvHow::default())
}

/// A non-blocking write fits into its ring at once, the first one and a larger one behind it; and a sender that may wait
/// is told to wait for bytes in the kernel of a receiver that is awake, no more for a while once such waits were in vain, and
/// then comes back to the ring.
#[test]
fn a_sender_comes_back_to_a_ring_that_is_large_enough() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (slab, board) = (memory(SLAB_BYTES), memory(4096));
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let (a, b) = tcp();
    let chan = join(shared, &a, &b);
    let low = Endpoint::new(shared, chan, Side::Low, a.as_raw_fd(), true);
    let high = Endpoint::new(shared, chan, Side::High, b.as_raw_fd(), false);
    for len in [9_000, 100_000, 262_144] {
        let whole = Moved {
            ring: len,
            kernel: 0,
        };
        assert_eq!(send(&low, len, WhenFull::Kernel), Sent::Bytes(whole));
        assert_eq!(recv(&high), Took::Bytes(whole));
    }
    let out = low.link.outgoing();
    let mut in_kernel = 0;
    while in_kernel <= KERNEL_UNREAD_MAX {
        out.chill(1);
        let Sent::Bytes(moved) = send(&low, 10_000, WhenFull::Say) else {
            panic!("the kernel has room");
        };
        assert_eq!(moved.ring, 0);
        in_kernel += moved.kernel as u64;
    }
    assert_eq!(send(&low, 64, WhenFull::Say), Sent::RingFull);
    assert!(out.is_full());
    // Waits in vain: the kernel takes this one and the next ones, here for 640 ms.
    for _ in 0..8 {
        out.wait_for_space(100_000);
    }
    let by_kernel = Sent::Bytes(Moved {
        ring: 0,
        kernel: 64,
    });
    assert_eq!(send(&low, 64, WhenFull::Kernel), by_kernel);
    assert_eq!(send(&low, 64, WhenFull::Say), by_kernel);
    in_kernel += 128;
    while in_kernel != 0 {
        match recv(&high) {
            Took::Bytes(moved) => in_kernel -= moved.kernel as u64,
            Took::Pending => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
    }
    assert!(!out.is_full());
    let by_ring = Sent::Bytes(Moved {
        ring: 64,
        kernel: 0,
    });
    assert_eq!(send(&low, 64, WhenFull::Say), by_ring);
}

/// An end whose peer waits for room, too, does not wait for long, and its next sends not at all: of two programs that write
/// and read by turns, one would else wait for the other at each turn.
#[test]
fn two_do_not_wait_for_each_other() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (slab, board) = (memory(SLAB_BYTES), memory(4096));
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let (a, b) = tcp();
    let chan = join(shared, &a, &b);
    let ends = [(Side::Low, &a), (Side::High, &b)].map(|(side, socket)| {
        Endpoint::new(shared, chan, side, socket.as_raw_fd(), side == Side::Low)
    });
    for end in &ends {
        while !end.link.outgoing().is_full() {
            end.link.outgoing().chill(1);
            assert!(matches!(send(end, 8_192, WhenFull::Kernel), Sent::Bytes(_)));
        }
        assert_eq!(send(end, 64, WhenFull::Say), Sent::RingFull);
    }
    let started = Instant::now();
    let second = Duration::from_secs(1);
    std::thread::scope(|scope| {
        let [first, other] = &ends;
        scope.spawn(|| {
            first
                .link
                .outgoing()
                .wait_for_space(second.as_nanos() as u64)
        });
        std::thread::sleep(second / 10);
        let out = other.link.outgoing();
        (0..8).for_each(|_| out.wait_for_space(10 * second.as_nanos() as u64));
        let by_kernel = Moved {
            ring: 0,
            kernel: 64,
        };
        assert_eq!(send(other, 64, WhenFull::Say), Sent::Bytes(by_kernel));
        assert!(started.elapsed() < second, "{:?}", started.elapsed());
    });
    let took = started.elapsed();
    assert!(took >= second, "the first one did not wait: {took:?}");
}
