//! What the channel costs, beside the kernel's loopback, in one run. Two threads on two cores; the calls are
//! the library's, without
//! interposition. `channel_cost [seconds per row]`; `channel_cost count MESSAGES [references]` only sends
//! and receives so many, for valgrind; with the last word it counts a reference to each message's memory.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{Bufs, RecvHow, Sent, Side, Took, WhenFull, sys};

/// Keeps the calling thread on one core.
fn pin(core: usize) {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is large enough for the core.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set lives for the call.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}

/// A connection with a joined channel; dropped sockets end it.
struct Rig {
    shared: Shared,
    chan: u16,
    a: TcpStream,
    b: TcpStream,
}

impl Rig {
    fn new() -> Rig {
        let (slab, board) = (memory(SLAB_BYTES), memory(4096));
        let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
        let (a, b) = tcp();
        let chan = join(shared, &a, &b);
        Rig { shared, chan, a, b }
    }

    fn end(&self, side: Side) -> Endpoint {
        let fd = match side {
            Side::Low => self.a.as_raw_fd(),
            Side::High => self.b.as_raw_fd(),
        };
        Endpoint::new(self.shared, self.chan, side, fd, side == Side::Low)
    }
}

/// One attempt after the other until all is sent.
#[inline(always)]
fn send_spinning(end: &Endpoint, data: &[u8]) {
    let (who, out) = (end.who(1), end.link.outgoing());
    let mut bufs = Bufs::out(data.as_ptr(), data.len());
    loop {
        match out.send(who, &end.fd, &bufs, libc::MSG_NOSIGNAL, WhenFull::Say) {
            Sent::Bytes(moved) if moved.total() == bufs.len() => return,
            Sent::Bytes(moved) => bufs.advance(moved.total()),
            Sent::RingFull => {
                while out.is_full() {
                    out.pause();
                }
            }
            _ => {}
        }
    }
}

/// One attempt after the other until something came.
#[inline(always)]
fn recv_spinning(end: &Endpoint, into: &mut [u8]) -> usize {
    let (who, inc) = (end.who(2), end.link.incoming());
    let bufs = Bufs::one(into.as_mut_ptr(), into.len());
    loop {
        match inc.recv(who, &end.fd, &bufs, 0, RecvHow::default()) {
            Took::Bytes(moved) => return moved.total(),
            Took::Eof => return 0,
            _ => {
                while !inc.ready() {
                    inc.pause();
                }
            }
        }
    }
}

/// One-way time of a cache line between the two cores, in ns: the median of several short runs, since others may
/// disturb
/// each one.
fn line_time() -> f64 {
    let mut runs: Vec<f64> = (0..41).map(|_| line_time_once()).collect();
    runs.sort_unstable_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn line_time_once() -> f64 {
    static LINE: AtomicU64 = AtomicU64::new(0);
    const TRIPS: u64 = 2_000;
    LINE.store(0, Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            for i in 0..TRIPS {
                while LINE.load(Ordering::Acquire) != 2 * i + 1 {
                    std::hint::spin_loop();
                }
                LINE.store(2 * i + 2, Ordering::Release);
            }
        });
        pin(0);
        LINE.store(1, Ordering::Release);
        while LINE.load(Ordering::Acquire) != 2 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        for i in 1..TRIPS {
            LINE.store(2 * i + 1, Ordering::Release);
            while LINE.load(Ordering::Acquire) != 2 * i + 2 {
                std::hint::spin_loop();
            }
        }
        start.elapsed().as_nanos() as f64 / TRIPS as f64 / 2.0
    })
}

/// Half round trips of 64 bytes, both sides spinning: (p50, p99) in ns.
fn ping_pong(time: Duration) -> (f64, f64) {
    let rig = Rig::new();
    let stop = AtomicBool::new(false);
    let mut halves = Vec::with_capacity(4_000_000);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            let (end, mut buffer) = (rig.end(Side::High), [0u8; 64]);
            while !stop.load(Ordering::Relaxed) {
                let n = recv_spinning(&end, &mut buffer);
                send_spinning(&end, &buffer[..n]);
            }
        });
        pin(0);
        let (end, mut buffer) = (rig.end(Side::Low), [7u8; 64]);
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..1000 {
                let start = Instant::now();
                send_spinning(&end, &buffer);
                recv_spinning(&end, &mut buffer);
                halves.push(start.elapsed().as_nanos() as f64 / 2.0);
            }
        }
        stop.store(true, Ordering::Relaxed);
        send_spinning(&end, &buffer);
        recv_spinning(&end, &mut buffer);
    });
    halves.sort_unstable_by(f64::total_cmp);
    (halves[halves.len() / 2], halves[halves.len() / 100 * 99])
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Sends and receives so many messages of 64 bytes.
fn exchange(messages: usize, counts_references: bool) {
    let rig = Rig::new();
    let (low, high, mut buffer) = (rig.end(Side::Low), rig.end(Side::High), [7u8; 64]);
    let counted = Arc::new(buffer);
    for _ in 0..messages {
        let reference = counts_references.then(|| Arc::clone(&counted));
        send_spinning(&low, reference.as_deref().unwrap_or(&buffer));
        recv_spinning(&high, &mut buffer);
    }
    println!("{messages} messages");
}

/// Send and receive of 64 bytes by one thread, so that no line travels: ns of each.
fn alone() -> (f64, f64) {
    const BATCH: usize = 60;
    const ROUNDS: usize = 20_000;
    let rig = Rig::new();
    let (low, high, mut buffer) = (rig.end(Side::Low), rig.end(Side::High), [7u8; 64]);
    pin(0);
    let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        let start = cpu_time();
        for _ in 0..BATCH {
            send_spinning(&low, &buffer);
        }
        let middle = cpu_time();
        for _ in 0..BATCH {
            recv_spinning(&high, &mut buffer);
        }
        (sending, receiving) = (
            sending + (middle - start),
            receiving + (cpu_time() - middle),
        );
    }
    let each = |time: Duration| time.as_nanos() as f64 / (ROUNDS * BATCH) as f64;
    (each(sending), each(receiving))
}

/// A stream of writes of one size: Gbit/s, and ns a write.
fn stream(time: Duration, size: usize, read: usize) -> (f64, f64) {
    let rig = Rig::new();
    let (mut sent, mut elapsed) = (0u64, 0.0);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            let (end, mut buffer) = (rig.end(Side::High), vec![0u8; read]);
            while recv_spinning(&end, &mut buffer) != 0 {
                if buffer[0] == 1 {
                    break;
                }
            }
        });
        pin(0);
        let (end, mut buffer) = (rig.end(Side::Low), vec![0u8; size]);
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..64 {
                send_spinning(&end, &buffer);
            }
            sent += 64;
        }
        elapsed = begin.elapsed().as_secs_f64();
        buffer.fill(1);
        send_spinning(&end, &buffer);
        send_spinning(&end, &vec![1; read]);
    });
    let rate = sent as f64 * size as f64 * 8.0 / elapsed / 1e9;
    (rate, elapsed * 1e9 / sent as f64)
}

/// The same as [`stream`] through the kernel's loopback with blocking calls.
fn kernel_stream(time: Duration, size: usize) -> (f64, f64) {
    let (mut a, mut b) = tcp();
    let (mut sent, mut elapsed) = (0u64, 0.0);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            let mut buffer = vec![0u8; size];
            while b.read(&mut buffer).unwrap() != 0 {}
        });
        pin(0);
        let buffer = vec![0u8; size];
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..64 {
                a.write_all(&buffer).unwrap();
            }
            sent += 64;
        }
        elapsed = begin.elapsed().as_secs_f64();
        a.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let rate = sent as f64 * size as f64 * 8.0 / elapsed / 1e9;
    (rate, elapsed * 1e9 / sent as f64)
}

fn main() {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    assert!(sys::register_membarrier());
    if first.as_deref() == Some("count") {
        let messages = words.next().and_then(|n| n.parse().ok());
        let counts_references = words.next().is_some();
        return exchange(messages.expect("a number of messages"), counts_references);
    }
    let seconds = first.and_then(|s| s.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let line = line_time();
    println!("L {line:.0} ns");
    let (sending, receiving) = alone();
    println!("alone, 64 B: send {sending:.1} ns, receive {receiving:.1} ns");
    for _ in 0..3 {
        let (p50, p99) = ping_pong(time);
        let (half, tail) = (p50 / line, p99 / line);
        println!("half trip 64 B: p50 {p50:.0} ns ({half:.2} L), p99 {p99:.0} ns ({tail:.2} L)");
        let (_, ns) = stream(time, 64, 64);
        println!(
            "stream 64 B: {ns:.1} ns a message, {:.1} ns of CPU a pair",
            2.0 * ns
        );
        for size in [16 * 1024, 64 * 1024] {
            let (ring, _) = stream(time, size, size);
            let (kernel, _) = kernel_stream(time, size);
            let times = ring / kernel;
            println!("stream {size} B: {ring:.1} Gbit/s, kernel {kernel:.1}, {times:.1} times");
        }
    }
}
