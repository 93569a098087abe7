//! The checker with its two ends in two processes: left alone, stopped, and killed at random instants.
#![cfg(not(loom))]

mod harness;

use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// A small receive buffer, in bytes.
const RECEIVE_BUFFER: i32 = 16 * 1024;
const CHILD: &str = "WINDLASS_CHANNEL_CHILD";

fn habits_of(seed: u64) -> Habits {
    let mut random = Random(seed * 2 + 1);
    random.next();
    let pick = |list: [u64; 4], n: u64| list[n as usize % 4];
    Habits {
        spin: Duration::from_micros(pick([0, 5, 20, 50], random.next() >> 5)),
        excursion: pick([2, 3, 10, 100], random.next() >> 5),
        poll: random.next() & 64 == 0,
        nonblocking: random.next() & 64 == 0,
    }
}

/// Bytes received, and the error that ended them.
type Totals = mpsc::Receiver<(u64, Option<i32>)>;

/// Both threads of one end; the receiver's count and error.
fn both_threads(
    shared: Shared,
    chan: u16,
    side: Side,
    fd: RawFd,
    seed: u64,
) -> (Totals, JoinHandle<Option<i32>>) {
    let (done, result) = mpsc::channel();
    let h = habits_of(seed);
    let connected = side == Side::Low;
    let sending = std::thread::spawn(move || {
        let end = Endpoint::new(shared, chan, side, fd, connected);
        sender(&end, h, seed)
    });
    std::thread::spawn(move || {
        let end = Endpoint::new(shared, chan, side, fd, connected);
        let _ = done.send(receiver(&end, h, seed + 5));
    });
    (result, sending)
}

/// The other process: nothing unless a parent asked for it by the environment.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else {
        return;
    };
    assert!(sys::register_membarrier());
    let numbers: Vec<u64> = text.split(',').map(|n| n.parse().unwrap()).collect();
    let [slab, board, socket, chan, seed] = numbers[..] else {
        panic!("{text}");
    };
    let shared = Shared::map(slab as RawFd, board as RawFd, false);
    let (result, _) = both_threads(shared, chan as u16, Side::High, socket as RawFd, seed);
    let (got, error) = result.recv().unwrap();
    assert_eq!(error, None);
    while shared.board.done[1].load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = shared.board.sent[0].load(Ordering::Acquire);
    assert_eq!(got, sent);
}

/// A connection whose high end is a child process.
struct Two {
    shared: Shared,
    child: Child,
    result: Totals,
    sending: JoinHandle<Option<i32>>,
    socket: TcpStream,
}

/// `receive_buffer`: of both ends, in bytes, or the system's choice. With a small one much of what was given to the kernel has
/// not left its sender.
fn start(seed: u64, receive_buffer: Option<i32>) -> Two {
    let (slab, board) = (memory(SLAB_BYTES), memory(4096));
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let (a, b) = tcp();
    if let Some(bytes) = receive_buffer {
        set(&a, libc::SO_RCVBUF, bytes);
        set(&b, libc::SO_RCVBUF, bytes);
    }
    let chan = join(shared, &a, &b);
    // SAFETY: a copy of an own descriptor, inherited by the child.
    let inherited = unsafe { libc::dup(b.as_raw_fd()) };
    drop(b);
    let numbers = [
        slab.as_raw_fd() as u64,
        board.as_raw_fd() as u64,
        inherited as u64,
        chan.into(),
        seed + 1,
    ]
    .map(|n| n.to_string());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, numbers.join(","))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // SAFETY: the copy, which the child has now.
    unsafe { libc::close(inherited) };
    let (result, sending) = both_threads(shared, chan, Side::Low, a.as_raw_fd(), seed);
    Two {
        shared,
        child,
        result,
        sending,
        socket: a,
    }
}

impl Two {
    /// Lets both stop, and checks the totals.
    fn finish(mut self, seed: u64) {
        self.shared.board.stop.store(1, Ordering::Relaxed);
        let (got, error) = self
            .result
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| panic!("the receiver hangs, seed {seed}"));
        assert_eq!(error, None, "seed {seed}");
        assert_eq!(got, self.shared.board.sent[1].load(Ordering::Acquire));
        assert!(self.child.wait().unwrap().success(), "seed {seed}");
        self.sending.join().unwrap();
        drop(self.socket);
    }

    /// Waits until the child has begun to send, so that what follows happens in the middle of traffic.
    fn traffic(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.shared.board.sent[1].load(Ordering::Acquire) < 100_000 {
            assert!(Instant::now() < until, "no traffic");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: an own child that was not reaped.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

/// Two processes exchange every byte once and in order, also when one of them is stopped for a while in the middle.
#[test]
fn two_processes_agree_also_when_one_is_stopped() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    for seed in 1..=(4.0 * factor()) as u64 {
        let two = start(seed, None);
        two.traffic();
        let mut random = Random(seed);
        for _ in 0..4 {
            std::thread::sleep(Duration::from_micros(random.next() % 80_000));
            two.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_micros(random.next() % 40_000));
            two.signal(libc::SIGCONT);
        }
        std::thread::sleep(Duration::from_millis(100));
        two.finish(seed);
    }
}

/// A process killed at a random instant: the other one gets a correct prefix and then the end or a reset, at once. At an end
/// without a reset it has got every byte whose send had returned. In every second connection receive buffers are small: the
/// reset then drops bytes older than those in the ring.
#[test]
fn a_killed_process_leaves_a_correct_prefix() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let mut ends = [0u32; 2];
    for seed in 1..=(40.0 * factor()) as u64 {
        let mut two = start(seed * 31, (seed % 2 == 0).then_some(RECEIVE_BUFFER));
        two.traffic();
        let mut random = Random(seed);
        std::thread::sleep(Duration::from_nanos(random.next() % 5_000_000));
        two.child.kill().unwrap();
        two.child.wait().unwrap();
        two.shared.board.dead[1].store(1, Ordering::Release);
        let (got, error) = two
            .result
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|why| match why {
                mpsc::RecvTimeoutError::Timeout => panic!("the survivor hangs, seed {seed}"),
                mpsc::RecvTimeoutError::Disconnected => {
                    panic!("the survivor found a wrong byte, seed {seed}")
                }
            });
        let sent = two.shared.board.sent[1].load(Ordering::Acquire);
        two.shared.board.stop.store(1, Ordering::Relaxed);
        // The descriptor's number must not be another connection's while the sender may still use it.
        let other_thread = two.sending.join().unwrap();
        // The kernel tells of a reset once: the thread that sends may have been the one. Any other call that meets it reports it,
        // so `EPIPE` alone says that all bytes had come.
        match error.or(other_thread.filter(|&error| error == libc::ECONNRESET)) {
            None => {
                assert!(got >= sent, "{got} of {sent} bytes, seed {seed}");
                ends[0] += 1;
            }
            Some(libc::ECONNRESET | libc::EPIPE) => ends[1] += 1,
            other => panic!("{other:?}, seed {seed}"),
        }
        drop(two.socket);
    }
    println!("{} ends of stream, {} resets", ends[0], ends[1]);
}
