//! Loom models of the channel: the code itself, over a kernel connection that is modelled. Each model has a
//! twin with a fault in
//! the protocol, which it has to find. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::thread;
use windlass_channel::model::{self, Barrier, Fault, Kernel};
use windlass_channel::{
    Alive, Asleep, Bufs, End, Life, Owner, RecvHow, Sent, Side, Slab, Straight, Took, WhenFull, Who,
};

/// Processes 1 and 2 live; `9` is one that was killed.
struct Known;

impl Alive for Known {
    fn life(&self, owner: Owner) -> Life {
        if owner.process() == 9 {
            Life::Dead
        } else {
            Life::Lives
        }
    }
}

fn who(process: u16) -> Who<'static> {
    Who {
        owner: Owner::new(process, 1).unwrap(),
        alive: &Known,
    }
}

fn model(barrier: Barrier, fault: Fault, body: impl Fn() + Sync + Send + 'static) {
    model::set(barrier, fault);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 100_000;
    builder.check(move || {
        model::begin();
        body();
    });
}

/// The environment variable that makes a twin run its model instead of a process that does.
const TWIN: &str = "WINDLASS_CHANNEL_TWIN";

/// The model has to fail. It fails by a panic out of loom's scheduler, which may not be unwound, so it runs
/// in a process of its
/// own; `name` is the test's.
fn found(name: &str, barrier: Barrier, fault: Fault, body: impl Fn() + Sync + Send + 'static) {
    if std::env::var_os(TWIN).is_some() {
        return model(barrier, fault, body);
    }
    let twin = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(TWIN, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    assert!(!twin.status.success(), "{fault:?} was not found");
}

/// Sends bytes one by one from the low side, and does what is owed afterwards, as a sender's next call would.
fn send(slab: &Slab, kernel: &Kernel, process: u16, bytes: &[u8]) {
    let out = slab.link(0, Side::Low).unwrap().outgoing();
    for byte in bytes {
        loop {
            let data = Bufs::out(byte, 1);
            // The first byte makes the ring; the others go as the library sends most.
            let sent = match out.send_straight(who(process).owner, &data) {
                Straight::Sent => break,
                Straight::Asleep => out.look_after_sleeper(who(process), kernel, 1),
                Straight::No => out.send(who(process), kernel, &data, 0, WhenFull::Kernel),
            };
            match sent {
                Sent::Bytes(moved) => {
                    assert_eq!(moved.total(), 1);
                    break;
                }
                Sent::Busy => thread::yield_now(),
                other => panic!("{other:?}"),
            }
        }
    }
    while out.wanted() {
        let _ = out.reclaim(who(process), kernel);
        thread::yield_now();
    }
}

/// Receives `want` bytes at the high side, asleep in the kernel where there is nothing.
fn receive(slab: &Slab, kernel: &Kernel, want: usize) -> Vec<u8> {
    let inc = slab.link(0, Side::High).unwrap().incoming();
    let mut got = Vec::new();
    while got.len() < want {
        let mut buffer = [0u8; 4];
        let bufs = Bufs::one(buffer.as_mut_ptr(), 4);
        let straight = inc.recv_straight(who(2).owner, &bufs);
        if straight != 0 {
            got.extend_from_slice(&buffer[..straight]);
            continue;
        }
        match inc.recv(who(2), kernel, &bufs, 0, RecvHow::default()) {
            Took::Bytes(moved) => {
                got.extend_from_slice(&buffer[..moved.total()]);
                continue;
            }
            Took::Busy => {
                thread::yield_now();
                continue;
            }
            Took::Empty | Took::Pending => {}
            other => panic!("{other:?}"),
        }
        if inc.fall_asleep() == Asleep::Ready {
            continue;
        }
        if model::pruned() {
            break;
        }
        let n = kernel.recv_blocking(&mut buffer);
        inc.woke(n);
        got.extend_from_slice(&buffer[..n]);
    }
    got
}

/// A sender of `bytes`, a receiver that sleeps: all arrive in order, and nobody sleeps beside a full ring.
fn stream_of(bytes: &'static [u8]) -> impl Fn() + Sync + Send + 'static {
    move || {
        let slab = Arc::new(model::slab([None, None]));
        let kernel = Arc::new(Kernel::new());
        let (s, k) = (slab.clone(), kernel.clone());
        let sender = thread::spawn(move || send(&s, &k, 1, bytes));
        let got = receive(&slab, &kernel, bytes.len());
        assert_eq!(got, &bytes[..got.len()]);
        assert!(got.len() == bytes.len() || model::pruned());
        sender.join().unwrap();
    }
}

/// (a), (c): a push against a fall asleep loses no wake, and the reclaim of who fell asleep in between keeps
/// every byte once and
/// in order.
#[test]
fn a_sleeper_is_woken_by_its_bytes() {
    model(Barrier::Never, Fault::None, stream_of(&[1, 2]));
}

#[test]
fn a_missing_fence_is_found() {
    found(
        "a_missing_fence_is_found",
        Barrier::Never,
        Fault::NoFence,
        stream_of(&[1]),
    );
}

#[test]
fn a_missing_second_look_is_found() {
    found(
        "a_missing_second_look_is_found",
        Barrier::Never,
        Fault::NoSecondLook,
        stream_of(&[1]),
    );
}

/// (b): stream mode loses no wake: executions with a `membarrier`, and those without.
#[test]
fn stream_mode_loses_no_wake() {
    model(Barrier::Fences, Fault::None, stream_of(&[1, 2]));
    model(Barrier::Prunes, Fault::None, stream_of(&[1, 2]));
}

#[test]
fn a_sleeper_that_ignores_stream_mode_is_found() {
    found(
        "a_sleeper_that_ignores_stream_mode_is_found",
        Barrier::Prunes,
        Fault::StreamIgnored,
        stream_of(&[1, 2]),
    );
}

#[test]
fn an_unfenced_entry_to_stream_mode_is_found() {
    found(
        "an_unfenced_entry_to_stream_mode_is_found",
        Barrier::Prunes,
        Fault::StreamUnfenced,
        stream_of(&[1, 2]),
    );
}

/// A reclaim beside a reader: every byte once and in order, whoever gets the read lock.
fn reclaim_beside_reader() {
    let slab = Arc::new(model::slab([None, None]));
    let kernel = Arc::new(Kernel::new());
    send(&slab, &kernel, 1, &[1, 2]);
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || {
        let out = s.link(0, Side::Low).unwrap().outgoing();
        let _ = out.reclaim(who(1), &*k);
        send(&s, &k, 1, &[3]);
    });
    let got = receive(&slab, &kernel, 3);
    assert_eq!(got, [1, 2, 3]);
    sender.join().unwrap();
}

/// (c): I1 and I3.
#[test]
fn a_reclaim_beside_a_reader_keeps_every_byte_once() {
    model(Barrier::Never, Fault::None, reclaim_beside_reader);
}

#[test]
fn a_reclaim_without_the_read_lock_is_found() {
    found(
        "a_reclaim_without_the_read_lock_is_found",
        Barrier::Never,
        Fault::ReclaimUnlocked,
        reclaim_beside_reader,
    );
}

/// (d): an epoll instance that takes its news, raises its slot, takes them again and then sleeps.
fn epoll() {
    let page = model::status();
    let slab = Arc::new(model::slab([None, Some(page.clone())]));
    let kernel = Arc::new(Kernel::new());
    let high = slab.link(0, Side::High).unwrap();
    high.incoming().set_slots([1, 0, 0, 0]);
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || send(&s, &k, 1, &[1, 2]));
    let mut got = Vec::new();
    let look = |got: &mut Vec<u8>| {
        let mut found = false;
        slab.take_news(Side::High, |_| {
            let mut buffer = [0u8; 4];
            let bufs = Bufs::one(buffer.as_mut_ptr(), 4);
            if let Took::Bytes(moved) =
                high.incoming()
                    .recv(who(2), &*kernel, &bufs, 0, RecvHow::default())
            {
                got.extend_from_slice(&buffer[..moved.total()]);
                found = true;
            }
        });
        found
    };
    while got.len() < 2 {
        if look(&mut got) {
            continue;
        }
        page.raise(1);
        if look(&mut got) {
            page.lower(1);
            continue;
        }
        // The real epoll_wait, and the receive that follows it.
        let mut buffer = [0u8; 4];
        let n = kernel.recv_blocking(&mut buffer);
        high.incoming().took(n);
        page.lower(1);
        got.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(got, [1, 2]);
    sender.join().unwrap();
}

#[test]
fn news_are_not_lost() {
    model(Barrier::Never, Fault::None, epoll);
}

#[test]
fn news_before_the_fence_are_found() {
    found(
        "news_before_the_fence_are_found",
        Barrier::Never,
        Fault::NewsEarly,
        epoll,
    );
}

/// (e): a byte by the kernel, then one by the ring, to a receiver that is awake.
fn kernel_then_ring() {
    let slab = Arc::new(model::slab([None, None]));
    let kernel = Arc::new(Kernel::new());
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || {
        s.link(0, Side::Low).unwrap().outgoing().chill(1);
        send(&s, &k, 1, &[1, 2]);
    });
    let inc = slab.link(0, Side::High).unwrap().incoming();
    let mut got = Vec::new();
    while got.len() < 2 {
        let mut buffer = [0u8; 4];
        let bufs = Bufs::one(buffer.as_mut_ptr(), 4);
        match inc.recv(who(2), &*kernel, &bufs, 0, RecvHow::default()) {
            Took::Bytes(moved) => got.extend_from_slice(&buffer[..moved.total()]),
            _ => thread::yield_now(),
        }
    }
    assert_eq!(got, [1, 2]);
    sender.join().unwrap();
}

#[test]
fn kernel_bytes_come_before_ring_bytes() {
    model(Barrier::Never, Fault::None, kernel_then_ring);
}

#[test]
fn a_head_that_overtakes_the_count_is_found() {
    found(
        "a_head_that_overtakes_the_count_is_found",
        Barrier::Never,
        Fault::CountEarly,
        kernel_then_ring,
    );
}

/// (f): a sharer of the sender's side is killed inside a reclaim, after one of two bytes went; the other
/// sharer goes on.
fn killed_in_reclaim() {
    let slab = Arc::new(model::slab([None, None]));
    let kernel = Arc::new(Kernel::new());
    send(&slab, &kernel, 1, &[1, 2]);
    kernel.kill_in(1, 1);
    let out = slab.link(0, Side::Low).unwrap().outgoing();
    let died = catch_unwind(AssertUnwindSafe(|| out.reclaim(who(9), &*kernel)));
    assert!(died.is_err());
    let (s, k) = (slab.clone(), kernel.clone());
    let heir = thread::spawn(move || send(&s, &k, 1, &[3]));
    let got = receive(&slab, &kernel, 3);
    assert_eq!(got, [1, 2, 3]);
    heir.join().unwrap();
}

#[test]
fn a_lock_is_taken_over_and_repaired() {
    model(Barrier::Never, Fault::None, killed_in_reclaim);
}

#[test]
fn a_take_over_without_repair_is_found() {
    found(
        "a_take_over_without_repair_is_found",
        Barrier::Never,
        Fault::NoRepair,
        killed_in_reclaim,
    );
}

/// (f): the only sender is killed inside a reclaim: the receiver gets both bytes once, then the end.
#[test]
fn the_receiver_of_a_dead_reclaimer_repairs_alone() {
    model(Barrier::Never, Fault::None, || {
        let slab = Arc::new(model::slab([None, None]));
        let kernel = Arc::new(Kernel::new());
        send(&slab, &kernel, 1, &[1, 2]);
        kernel.kill_in(1, 1);
        let out = slab.link(0, Side::Low).unwrap().outgoing();
        let died = catch_unwind(AssertUnwindSafe(|| out.reclaim(who(9), &*kernel)));
        assert!(died.is_err());
        kernel.close();
        let inc = slab.link(0, Side::High).unwrap().incoming();
        let mut got = Vec::new();
        loop {
            let mut buffer = [0u8; 4];
            let bufs = Bufs::one(buffer.as_mut_ptr(), 4);
            match inc.recv(who(2), &*kernel, &bufs, 0, RecvHow::default()) {
                Took::Bytes(moved) => got.extend_from_slice(&buffer[..moved.total()]),
                Took::Eof => break,
                Took::Empty => {
                    match inc.recv_last(who(2), &*kernel, &bufs, RecvHow::default(), End::Eof) {
                        Took::Eof => break,
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, [1, 2]);
    });
}
