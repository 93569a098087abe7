//! The rings against a kernel that is played here: an honest one, in copy mode and without copies, and one that writes what it
//! likes.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rustix::io::Errno;
use windlass_frame::{Claim, HEADROOM, Heads, Offload, Pick, RxId, Tick};
use windlass_shm::{SegStore, Tails};
use windlass_sync::qsbr::{Domain, Section};
use windlass_sys::xdp::{Descriptor, HEADROOM_BYTES, Ring};

use super::memory::{FRAMES, MTU_MAX, Memory};
use super::port::{Kernel, Queue, Rings, XdpRx, XdpTx};
use crate::port::{Armed, Lane, Limit, More, RxPort, Stop, TxPort};

const LANE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// What the played kernel answers, and how often it was asked.
#[derive(Default)]
struct Calls {
    answers: Mutex<Vec<Result<(), Errno>>>,
    sends: Mutex<usize>,
}

impl Kernel for Arc<Calls> {
    fn send(&self) -> Result<(), Errno> {
        *self.sends.lock().unwrap() += 1;
        self.answers.lock().unwrap().pop().unwrap_or(Ok(()))
    }

    fn poll(&self) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The kernel's side of one queue.
struct Played {
    queue: Arc<Queue>,
    memory: Arc<Memory>,
    calls: Arc<Calls>,
    /// Where it stands in each ring.
    filled: u32,
    received: u32,
    sent: u32,
    completed: u32,
}

impl Played {
    /// Queue `number` of two.
    fn new(number: u32) -> Played {
        let rings = Rings {
            receive: Ring::private(FRAMES).unwrap(),
            transmit: Ring::private(FRAMES).unwrap(),
            fill: Ring::private(FRAMES).unwrap(),
            completion: Ring::private(FRAMES).unwrap(),
        };
        let memory = Arc::new(Memory::new(2, 1500).unwrap());
        let calls = Arc::new(Calls::default());
        let queue = Queue::new(number, rings, Box::new(calls.clone()), memory.clone());
        Played {
            queue: Arc::new(queue),
            memory,
            calls,
            filled: 0,
            received: 0,
            sent: 0,
            completed: 0,
        }
    }

    /// Receives a frame, `shift` bytes into the next free place; false without one.
    fn receive(&mut self, frame: &[u8], shift: u64) -> bool {
        let rings = &self.queue.rings;
        if rings.fill.producer() == self.filled {
            return false;
        }
        let address = rings.fill.address(self.filled) + shift;
        self.filled = self.filled.wrapping_add(1);
        rings.fill.set_consumer(self.filled);
        assert!(self.memory.mapping().write(address, frame));
        self.put(Descriptor {
            address,
            len: frame.len() as u32,
            options: 0,
        });
        true
    }

    /// Puts any descriptor into the receive ring.
    fn put(&mut self, descriptor: Descriptor) {
        let ring = &self.queue.rings.receive;
        ring.set_descriptor(self.received, descriptor);
        self.received = self.received.wrapping_add(1);
        ring.set_producer(self.received);
    }

    /// Takes up to `most` frames out of the transmit ring, and gives their places back.
    fn take(&mut self, most: usize) -> Vec<Vec<u8>> {
        let rings = &self.queue.rings;
        let mut frames = Vec::new();
        while self.sent != rings.transmit.producer() && frames.len() < most {
            let descriptor = rings.transmit.descriptor(self.sent);
            let mut frame = vec![0; descriptor.len as usize];
            assert!(self.memory.mapping().read(descriptor.address, &mut frame));
            frames.push(frame);
            self.sent = self.sent.wrapping_add(1);
            rings
                .completion
                .set_address(self.completed, descriptor.address);
            self.completed = self.completed.wrapping_add(1);
        }
        rings.transmit.set_consumer(self.sent);
        rings.completion.set_producer(self.completed);
        frames
    }
}

thread_local! {
    /// What a worker has.
    static OWN: RefCell<(Box<Heads>, SegStore)> = RefCell::new((Heads::boxed(), SegStore::default()));
}

/// Runs with what a worker has, emptied.
fn with_own<T>(run: impl FnOnce(&Section<'_>, &mut Heads, &mut SegStore) -> T) -> T {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    OWN.with_borrow_mut(|(heads, store)| {
        heads.clear(RxId(0), Tick(0));
        run(&section, heads, store)
    })
}

/// One burst, as bytes of the frames that were not dropped, and how many were.
fn burst(rx: &mut XdpRx, limit: Limit) -> (Vec<Vec<u8>>, usize, More) {
    with_own(|section, heads, store| {
        let mut tails = Tails::bind(store, section);
        let (loan, more) = rx.rx_burst(section, heads, &mut tails, limit);
        let whole = |i: usize| {
            let mut frame = heads.private(i).to_vec();
            for piece in tails.of(i) {
                let mut bytes = vec![0; piece.len()];
                piece.read(&mut bytes);
                frame.extend(bytes);
            }
            assert_eq!(frame.len(), heads.meta[i].len as usize);
            frame
        };
        let frames: Vec<_> = (0..heads.n).map(whole).filter(|f| !f.is_empty()).collect();
        let dropped = heads.n - frames.len();
        rx.release(section, loan);
        (frames, dropped, more)
    })
}

/// Sends frames in one burst; what was taken and sent, and why it ended.
fn send(tx: &XdpTx, frames: &[Vec<u8>], off: Offload) -> (usize, u64, Stop) {
    with_own(|section, heads, store| {
        let mut tails = Tails::bind(store, section);
        for (i, frame) in frames.iter().enumerate() {
            let have = frame.len().min(128);
            heads.snap[i].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
            heads.admit(i, frame.len() as u32, Claim::NONE);
            heads.meta[i].off = off;
            assert!(tails.push(i, windlass_shm::Foreign::private(&frame[have..])));
        }
        heads.n = frames.len();
        let picks: Vec<_> = (0..frames.len()).map(|i| Pick::frame(i, false)).collect();
        let sent = tx.tx_burst(section, LANE, heads, &tails, &picks);
        (sent.taken, sent.frames, sent.stop)
    })
}

fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ seed)
        .collect()
}

/// What happens between the two sides.
#[derive(Clone, Debug)]
enum Step {
    Receive(usize, u64),
    Burst(usize),
    Send(usize, usize),
    Take(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (14usize..1500, 0u64..200).prop_map(|(len, shift)| Step::Receive(len, shift)),
        (1usize..=64).prop_map(Step::Burst),
        (1usize..=64, 14usize..1700).prop_map(|(count, len)| Step::Send(count, len)),
        (0usize..300).prop_map(Step::Take),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every frame arrives once, whole and in its order, either way; a place is never in two rings, and none is lost: at the
    /// end all are free again. The queue's second half of the memory is another queue's.
    #[test]
    fn frames_pass_in_order(steps in steps()) {
        let mut kernel = Played::new(1);
        let mut rx = XdpRx::new(kernel.queue.clone(), false, false);
        let tx = XdpTx::new(vec![kernel.queue.clone()]);
        let (mut coming, mut came, mut going, mut gone) = (vec![], vec![], vec![], vec![]);
        let mut seed = 0u8;
        for step in steps {
            seed = seed.wrapping_add(1);
            match step {
                Step::Receive(len, shift) => {
                    let frame = frame(seed, len);
                    prop_assert!(kernel.receive(&frame, shift));
                    coming.push(frame);
                }
                Step::Burst(frames) => {
                    let (got, dropped, more) = burst(&mut rx, Limit { frames, ..Limit::FULL });
                    came.extend(got);
                    prop_assert_eq!(dropped, 0);
                    prop_assert_eq!(more == More::Left, came.len() < coming.len());
                }
                Step::Send(count, len) => {
                    let frames: Vec<_> = (0..count).map(|k| frame(seed ^ k as u8, len)).collect();
                    let (taken, sent, stop) = send(&tx, &frames, Offload::NONE);
                    prop_assert_eq!(taken == count, stop == Stop::Done);
                    prop_assert_eq!(taken as u64, sent);
                    going.extend(frames.into_iter().take(taken));
                }
                Step::Take(most) => gone.extend(kernel.take(most)),
            }
        }
        while came.len() < coming.len() {
            came.extend(burst(&mut rx, Limit::FULL).0);
        }
        gone.extend(kernel.take(usize::MAX));
        prop_assert!(came == coming && gone == going);
        // All places are free: so many frames fit, and none more.
        let mut fitted = 0;
        while kernel.receive(&[0; 60], 0) {
            fitted += 1;
        }
        let mut sent = 0;
        while send(&tx, &[frame(1, 60)], Offload::NONE).1 == 1 {
            sent += 1;
        }
        prop_assert_eq!((fitted, sent), (FRAMES, FRAMES));
    }

    /// Whatever the kernel's side writes, no byte outside of the queue's own places is read or written, nobody panics, and
    /// the connection ends.
    #[test]
    fn a_broken_kernel_ends_it(
        address in any::<u64>(), len in any::<u32>(), options in any::<u32>(), jump in any::<u32>(), good in 0usize..70,
    ) {
        let mut kernel = Played::new(0);
        let mut rx = XdpRx::new(kernel.queue.clone(), false, false);
        for k in 0..good {
            kernel.receive(&frame(k as u8, 200), 0);
        }
        // One that lies in the memory, in the place of another queue.
        let foreign = Descriptor { address: u64::from(FRAMES) * 2 * 2048 + address % 4096, len: 60, options: 0 };
        let wild = Descriptor { address, len: len | 0x1_0000, options };
        kernel.put(if jump.is_multiple_of(2) { foreign } else { wild });
        let (mut frames, mut dropped, mut ended) = (0, 0, false);
        for _ in 0..4 {
            let (got, bad, more) = burst(&mut rx, Limit::FULL);
            (frames, dropped, ended) = (frames + got.len(), dropped + bad, more == More::Dead);
        }
        prop_assert!(ended && frames == good, "{frames} of {good}");
        prop_assert!(dropped <= 1);

        let mut kernel = Played::new(0);
        let mut rx = XdpRx::new(kernel.queue.clone(), false, false);
        kernel.queue.rings.receive.set_producer(jump | 0x1_0000);
        prop_assert_eq!(burst(&mut rx, Limit::FULL).2, More::Dead);

        let tx = XdpTx::new(vec![kernel.queue.clone()]);
        kernel.queue.rings.completion.set_address(0, address | 1 << 40);
        kernel.queue.rings.completion.set_producer(1);
        prop_assert_eq!(send(&tx, &[frame(1, 60)], Offload::NONE).2, Stop::Down);
        kernel.queue.rings.completion.set_producer(jump | 0x1_0000);
        prop_assert_eq!(send(&tx, &[frame(1, 60)], Offload::NONE).2, Stop::Down);
        kernel.take(0);
    }
}

/// A place that the kernel names twice is taken twice, and the free list does not grow beyond the places that there are.
#[test]
fn completions_of_what_was_not_sent_end_it() {
    let kernel = Played::new(0);
    let tx = XdpTx::new(vec![kernel.queue.clone()]);
    let [_, places] = kernel.memory.of_queue(0);
    let first = places.all().next().unwrap();
    kernel.queue.rings.completion.set_address(0, first);
    kernel.queue.rings.completion.set_producer(1);
    assert_eq!(send(&tx, &[frame(1, 60)], Offload::NONE).2, Stop::Down);
}

/// The kernel is called where it wants to be, once for a burst; again while it has not sent all, but not for ever. What is
/// left then is sent with the next burst of either half, and a worker looks again soon. A frame that the interface dropped is
/// counted.
#[test]
fn the_kernel_is_called() {
    let kernel = Played::new(0);
    let mut rx = XdpRx::new(kernel.queue.clone(), false, false);
    let tx = XdpTx::new(vec![kernel.queue.clone()]);
    let frames: Vec<_> = (0..64).map(|k| frame(k, 60)).collect();
    let sends = || std::mem::take(&mut *kernel.calls.sends.lock().unwrap());
    let answer = |answers: Vec<_>| *kernel.calls.answers.lock().unwrap() = answers;
    assert_eq!(send(&tx, &frames, Offload::NONE).1, 64);
    assert_eq!(sends(), 0, "it does not want to be called");
    kernel.queue.rings.transmit.set_needs_wakeup(true);
    send(&tx, &frames, Offload::NONE);
    assert_eq!(sends(), 1);
    answer(vec![Ok(()), Err(Errno::BUSY), Err(Errno::AGAIN)]);
    send(&tx, &frames, Offload::NONE);
    assert_eq!((sends(), kernel.queue.refused()), (3, 1));
    answer(vec![Err(Errno::AGAIN); 1000]);
    assert_eq!(send(&tx, &frames, Offload::NONE), (64, 64, Stop::Done));
    assert_eq!(sends(), 64);
    let armed = with_own(|section, _, _| rx.arm(section));
    assert_eq!((armed, sends()), (Armed::Poll(50), 64));
    answer(Vec::new());
    assert_eq!(burst(&mut rx, Limit::FULL).2, More::Drained);
    assert_eq!(sends(), 1);
    let armed = with_own(|section, _, _| rx.arm(section));
    assert_eq!(armed, Armed::Yes);
    answer(vec![Err(Errno::NETDOWN)]);
    send(&tx, &frames, Offload::NONE);
    answer(vec![Err(Errno::NETDOWN)]);
    assert_eq!(send(&tx, &frames, Offload::NONE), (0, 0, Stop::Down));
}

/// What the interface was too busy for goes when a worker looks again, though no other frame comes; while it is down nobody looks.
#[test]
fn what_is_left_goes_later() {
    let kernel = Played::new(0);
    let mut rx = XdpRx::new(kernel.queue.clone(), false, false);
    let tx = XdpTx::new(vec![kernel.queue.clone()]);
    kernel.queue.rings.transmit.set_needs_wakeup(true);
    let answer = |answers: Vec<_>| *kernel.calls.answers.lock().unwrap() = answers;
    let mut look = || with_own(|section, _, _| rx.arm(section));
    answer(vec![Err(Errno::AGAIN); 1000]);
    send(&tx, &[frame(1, 60)], Offload::NONE);
    for _ in 0..3 {
        assert!(matches!(look(), Armed::Poll(_)));
    }
    answer(Vec::new());
    *kernel.calls.sends.lock().unwrap() = 0;
    assert_eq!(look(), Armed::Yes);
    assert_eq!(*kernel.calls.sends.lock().unwrap(), 1);
    answer(vec![Err(Errno::NETDOWN); 1000]);
    send(&tx, &[frame(1, 60)], Offload::NONE);
    assert_eq!(look(), Armed::Yes);
}

/// What needs no place is not sent: a frame that is too long is dropped, a segment is cut, and a burst that arrives while
/// nothing is free waits. A worker that finds another one at the queue spills.
#[test]
fn odd_frames() {
    let mut kernel = Played::new(0);
    let tx = XdpTx::new(vec![kernel.queue.clone()]);
    let longest = (2048 - HEADROOM_BYTES) as usize;
    let frames = [frame(1, longest + 1), frame(2, longest)];
    assert_eq!(send(&tx, &frames, Offload::NONE), (2, 1, Stop::Done));
    assert_eq!(kernel.take(9), [frame(2, longest)]);
    // A datagram over IPv4 whose checksum is still to be completed.
    let mut open = frame(3, 60);
    open[12..14].copy_from_slice(&[8, 0]);
    open[14] = 0x45;
    open[16..18].copy_from_slice(&46u16.to_be_bytes());
    open[20..22].fill(0);
    open[23] = 17;
    open[38..40].copy_from_slice(&26u16.to_be_bytes());
    assert_eq!(
        send(&tx, &[open.clone()], Offload::needing_csum(34, 6)).1,
        1
    );
    let taken = kernel.take(9);
    assert_eq!(taken.len(), 1);
    assert_ne!(taken[0][40..42], open[40..42]);
    assert_eq!(taken[0][42..], open[42..]);
    let burst: Vec<_> = (0..64).map(|k| frame(k, 60)).collect();
    let fitting = (0..).take_while(|_| send(&tx, &burst, Offload::NONE).2 == Stop::Done);
    assert_eq!(fitting.count(), FRAMES as usize / 64);
    assert_eq!(send(&tx, &burst, Offload::NONE), (0, 0, Stop::Full));
    assert_eq!(kernel.take(usize::MAX).len(), FRAMES as usize);
    assert_eq!(send(&tx, &burst, Offload::NONE), (64, 64, Stop::Done));
}

/// A frame that the software stage finishes and that is too long takes no place along: as many as there are places do no harm.
#[test]
fn long_frames_leave_the_places() {
    let kernel = Played::new(0);
    let tx = XdpTx::new(vec![kernel.queue.clone()]);
    let mut long = frame(3, 3000);
    long[12..14].copy_from_slice(&[8, 0]);
    long[14] = 0x45;
    long[16..18].copy_from_slice(&2986u16.to_be_bytes());
    long[20..22].fill(0);
    long[23] = 17;
    long[38..40].copy_from_slice(&2966u16.to_be_bytes());
    for _ in 0..FRAMES {
        let done = send(&tx, &[long.clone()], Offload::needing_csum(34, 6));
        assert_eq!(done, (1, 0, Stop::Done));
    }
    let sent = send(&tx, &[frame(1, 60)], Offload::NONE);
    assert_eq!(sent, (1, 1, Stop::Done));
}

/// A frame from a virtual wire, whose checksum field holds the sum of the pseudo header alone, comes with the claim that says
/// so; one that is complete, a part of a packet, or one of another protocol does not.
#[test]
fn open_checksums_are_recognized() {
    use windlass_wire::checksum::{self, Sum};
    let mut kernel = Played::new(0);
    let mut rx = XdpRx::new(kernel.queue.clone(), false, true);
    let mut claims_of = |frame: &[u8]| {
        assert!(kernel.receive(frame, 0));
        with_own(|section, heads, store| {
            let mut tails = Tails::bind(store, section);
            let (loan, _) = rx.rx_burst(section, heads, &mut tails, Limit::FULL);
            rx.release(section, loan);
            let claim = heads.meta[0].claim;
            (claim.flags, claim.csum_start, claim.csum_offset)
        })
    };
    for tcp in [false, true] {
        let (proto, offset, len) = if tcp {
            (6, 16, 20 + 8)
        } else {
            (17, 6, 8 + 20)
        };
        let mut frame = frame(3, 14 + 20 + len);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..20].copy_from_slice(&[0x45, 0, 0, 20 + len as u8, 0, 0]);
        frame[20..24].copy_from_slice(&[0x40, 0, 64, proto]);
        frame[24..26].fill(0);
        let sum = checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        match tcp {
            true => frame[46] = 0x50,
            false => frame[38..40].copy_from_slice(&(len as u16).to_be_bytes()),
        }
        let (src, dst) = (
            *frame[26..].first_chunk().unwrap(),
            *frame[30..].first_chunk().unwrap(),
        );
        let pseudo = checksum::pseudo_v4(&src, &dst, proto, len as u16);
        let at = 34 + offset;
        frame[at..at + 2].copy_from_slice(&pseudo.partial().to_be_bytes());
        assert_eq!(claims_of(&frame), (Claim::NEEDS_CSUM, 34, offset as u16));
        let mut complete = frame.clone();
        assert!(checksum::finish_in_place(&mut complete, 34, offset));
        assert_eq!(claims_of(&complete).0, 0);
        let mut sum: Sum = pseudo;
        sum.add_bytes(&complete[34..]);
        assert_eq!(sum.finish(), 0, "the checksum is right");
        let mut part = frame.clone();
        part[20] = 0x20;
        assert_eq!(claims_of(&part).0, 0);
        let mut other = frame.clone();
        other[23] = 47;
        assert_eq!(claims_of(&other).0, 0);
    }
    assert_eq!(claims_of(&frame(9, 14)).0, 0);
}

/// The places are as large as frames can be, and no larger MTU is taken.
#[test]
fn places_have_room() {
    assert_eq!(MTU_MAX, 3818);
    let of = |mtu| {
        let memory = Memory::new(1, mtu)?;
        Ok::<_, windlass_shm::MapError>((
            memory.place_bytes(),
            memory.frame_max(),
            memory.mtu_max(),
        ))
    };
    assert_eq!(of(1500).unwrap(), (2048, 1792, 1770));
    assert_eq!(of(1770).unwrap(), (2048, 1792, 1770));
    assert_eq!(of(1771).unwrap(), (4096, 3840, MTU_MAX));
    assert_eq!(of(MTU_MAX).unwrap(), (4096, 3840, MTU_MAX));
    assert!(of(MTU_MAX + 1).is_err());
}
