//! Loom models of the channel: the code itself, over a kernel connection that is modelled. Each model has a
//! twin with a fault in
//! the protocol, which it has to find. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::thread;
use windlass_channel::model::{self, Barrier, Fault, Kernel};
use windlass_channel::wait::heavy_barrier;
use windlass_channel::{
    Alive, Asleep, Bufs, End, Fast, Life, Owner, RecvHow, Sent, Side, Slab, Took, Watched,
    WhenFull, Who,
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
            let sent = match out.send_fast(who(process).owner, &data) {
                Fast::Sent => break,
                Fast::Asleep => out.look_after_sleeper(who(process), kernel, 1),
                Fast::No => out.send(who(process), kernel, &data, 0, WhenFull::Kernel),
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
        let straight = inc.recv_fast(who(2).owner, &bufs);
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

/// A sender waits at a full ring, beside a receiver that takes what is there, and then neither receives nor sleeps.
fn full_beside_receiver() {
    let slab = Arc::new(model::slab([None, None]));
    let kernel = Arc::new(Kernel::new());
    send(&slab, &kernel, 1, &[1, 2, 3, 4]);
    let s = slab.clone();
    let sender = thread::spawn(move || {
        let out = s.link(0, Side::Low).unwrap().outgoing();
        if out.is_full() {
            out.wait_for_space();
        }
    });
    let inc = slab.link(0, Side::High).unwrap().incoming();
    let mut buffer = [0u8; 4];
    let got = inc.recv_fast(who(2).owner, &Bufs::one(buffer.as_mut_ptr(), 4));
    assert_eq!((got, buffer), (4, [1, 2, 3, 4]));
    sender.join().unwrap();
}

/// Room that the receiver made before it looked for a sleeper is seen by the sender, or the sender by the receiver.
#[test]
fn a_sender_asleep_at_a_full_ring_is_woken() {
    model(Barrier::Fences, Fault::None, full_beside_receiver);
    model(Barrier::Prunes, Fault::None, full_beside_receiver);
}

#[test]
fn a_sender_that_asks_without_a_barrier_is_found() {
    found(
        "a_sender_that_asks_without_a_barrier_is_found",
        Barrier::Prunes,
        Fault::NoRoomBarrier,
        full_beside_receiver,
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

/// What an instance finds in its members, by one look.
fn look(slab: &Slab, watched: &Watched, kernel: &Kernel, got: &mut Vec<u8>) -> bool {
    let high = slab.link(0, Side::High).unwrap();
    let mut found = false;
    watched.take(slab, Side::High, |_, _| {});
    watched.each_listed(|chan| {
        let took = watched.look(chan, || {
            let mut buffer = [0u8; 4];
            let bufs = Bufs::one(buffer.as_mut_ptr(), 4);
            match high
                .incoming()
                .recv(who(2), kernel, &bufs, 0, RecvHow::default())
            {
                Took::Bytes(moved) => Some(buffer[..moved.total()].to_vec()),
                _ => None,
            }
        });
        found |= took.is_some();
        got.extend(took.unwrap_or_default());
    });
    found
}

/// (d): an epoll instance that takes its news, raises its line, takes them again and then sleeps. Another instance of the same
/// process takes its own meanwhile, if there is one.
fn epoll_beside(has_other: bool) {
    let page = model::status();
    let slab = Arc::new(model::slab([None, Some(page.clone())]));
    let kernel = Arc::new(Kernel::new());
    let watched = Watched::default();
    watched.add(0);
    let high = slab.link(0, Side::High).unwrap();
    high.incoming().set_slot(1);
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || send(&s, &k, 1, &[1, 2]));
    let s = slab.clone();
    let other = has_other.then(|| {
        thread::spawn(move || {
            let other = Watched::default();
            other.add(1);
            other.take(&s, Side::High, |_, _| {
                panic!("no member of this one has news")
            });
        })
    });
    let mut got = Vec::new();
    while got.len() < 2 {
        if look(&slab, &watched, &kernel, &mut got) {
            continue;
        }
        page.raise(1);
        if look(&slab, &watched, &kernel, &mut got) {
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
    other.into_iter().for_each(|other| other.join().unwrap());
}

fn epoll() {
    epoll_beside(false);
}

/// (d): another instance of the process leaves the news alone.
#[test]
fn news_are_taken_by_their_instance_alone() {
    model(Barrier::Never, Fault::None, || epoll_beside(true));
}

/// (d): two threads of one instance: one lists the channel that has got a byte, while the other one finds nothing in it.
fn two_takers() {
    let slab = Arc::new(model::slab([None, Some(model::status())]));
    let kernel = Arc::new(Kernel::new());
    let watched = Arc::new(Watched::default());
    watched.add(0);
    watched.list(0);
    slab.link(0, Side::High).unwrap().incoming().set_slot(1);
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || send(&s, &k, 1, &[1]));
    let (s, w) = (slab.clone(), watched.clone());
    let taker = thread::spawn(move || w.take(&s, Side::High, |_, _| {}));
    let mut got = Vec::new();
    look(&slab, &watched, &kernel, &mut got);
    taker.join().unwrap();
    sender.join().unwrap();
    look(&slab, &watched, &kernel, &mut got);
    assert_eq!(got, [1]);
}

#[test]
fn what_is_listed_meanwhile_stays_listed() {
    model(Barrier::Never, Fault::None, two_takers);
}

#[test]
fn a_member_that_is_unlisted_late_is_found() {
    found(
        "a_member_that_is_unlisted_late_is_found",
        Barrier::Never,
        Fault::UnlistedLate,
        two_takers,
    );
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

/// What goes on beside an instance's look at a member in stream mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The sender goes on to another call, which ends the mode.
    Leaves,
    /// The member is added while the sender begins.
    Added,
}

/// (d): an epoll instance whose member may send in stream mode: it sets no news bit and looks for no sleeper, so the instance
/// issues a barrier between its line and its last look. The twin does not.
fn epoll_of_streams(has_barrier: bool, beside: Beside) {
    let page = model::status();
    let slab = Arc::new(model::slab([None, Some(page.clone())]));
    let kernel = Arc::new(Kernel::new());
    let watched = Watched::default();
    watched.add(0);
    let high = slab.link(0, Side::High).unwrap();
    if beside != Beside::Added {
        high.incoming().set_slot(1);
    }
    let (s, k) = (slab.clone(), kernel.clone());
    let sender = thread::spawn(move || {
        send(&s, &k, 1, &[1, 2]);
        if beside == Beside::Leaves {
            let out = s.link(0, Side::Low).unwrap().outgoing();
            out.other_call(who(1).owner);
        }
    });
    let mut got = Vec::new();
    if beside == Beside::Added {
        high.incoming().set_slot(1);
    }
    while got.len() < 2 {
        if look(&slab, &watched, &kernel, &mut got) {
            continue;
        }
        page.raise(1);
        if has_barrier && watched.has_streams(&slab, Side::High) {
            heavy_barrier();
            if model::pruned() {
                break;
            }
        }
        if look(&slab, &watched, &kernel, &mut got) {
            page.lower(1);
            continue;
        }
        let mut buffer = [0u8; 4];
        let n = kernel.recv_blocking(&mut buffer);
        high.incoming().took(n);
        page.lower(1);
        got.extend_from_slice(&buffer[..n]);
    }
    assert!(got == [1, 2] || model::pruned());
    sender.join().unwrap();
}

#[test]
fn news_of_stream_mode_are_not_lost() {
    model(Barrier::Fences, Fault::None, || {
        epoll_of_streams(true, Beside::Nothing)
    });
    model(Barrier::Prunes, Fault::None, || {
        epoll_of_streams(true, Beside::Nothing)
    });
}

/// (d): what a sender pushed last before it leaves stream mode is news.
#[test]
fn news_of_a_sender_that_leaves_stream_mode_are_not_lost() {
    model(Barrier::Fences, Fault::None, || {
        epoll_of_streams(true, Beside::Leaves)
    });
    model(Barrier::Prunes, Fault::None, || {
        epoll_of_streams(true, Beside::Leaves)
    });
}

/// (d): a socket that is added to an instance while its sender enters stream mode is listed by one of the two.
#[test]
fn a_member_that_is_added_meanwhile_has_news() {
    model(Barrier::Fences, Fault::None, || {
        epoll_of_streams(true, Beside::Added)
    });
    model(Barrier::Prunes, Fault::None, || {
        epoll_of_streams(true, Beside::Added)
    });
}

#[test]
fn an_instance_that_ignores_stream_mode_is_found() {
    found(
        "an_instance_that_ignores_stream_mode_is_found",
        Barrier::Prunes,
        Fault::None,
        || epoll_of_streams(false, Beside::Nothing),
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
