//! Resets: what the kernel drops leaves no gap, and what it tells once is told.
#![cfg(not(loom))]

mod harness;

use std::cell::Cell;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{
    Asleep, Bufs, End, Moved, RecvHow, Sent, Side, Socket, Took, WhenFull, sys,
};

/// Both ends in this process, of a connection with small receive buffers.
fn ends() -> ([TcpStream; 2], Endpoint, Endpoint) {
    let shared = Shared::map(
        memory(SLAB_BYTES).as_raw_fd(),
        memory(4096).as_raw_fd(),
        true,
    );
    let (a, b) = tcp();
    set(&a, libc::SO_RCVBUF, 4_096);
    let chan = join(shared, &a, &b);
    let low = Endpoint::new(shared, chan, Side::Low, a.as_raw_fd(), true);
    let high = Endpoint::new(shared, chan, Side::High, b.as_raw_fd(), false);
    ([a, b], low, high)
}

/// One send at the high end.
fn send(from: &Endpoint, data: &[u8]) -> Sent {
    let bufs = Bufs::out(data.as_ptr(), data.len());
    let out = from.link.outgoing();
    out.send(from.who(1), &from.fd, &bufs, 0, WhenFull::Kernel)
}

/// One receive that asks the kernel, too.
fn recv(to: &Endpoint, into: &mut [u8]) -> Took {
    let how = RecvHow {
        look: true,
        ..RecvHow::default()
    };
    let bufs = Bufs::one(into.as_mut_ptr(), into.len());
    to.link.incoming().recv(to.who(2), &to.fd, &bufs, 0, how)
}

/// Closes a connection with a reset.
fn reset(socket: TcpStream) {
    let now = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set(&socket, libc::SO_LINGER, now);
    drop(socket);
}

fn kernel(bytes: usize) -> Moved {
    Moved {
        ring: 0,
        kernel: bytes,
    }
}

fn ring(bytes: usize) -> Moved {
    Moved {
        ring: bytes,
        kernel: 0,
    }
}

/// A reset that drops bytes in the kernel ends the stream there: younger ones in the ring would follow a gap.
#[test]
fn nothing_follows_a_gap() {
    let ([_a, b], low, high) = ends();
    let data: Vec<u8> = (0..60_100).map(|at| byte_at(Side::High, at)).collect();
    high.link.outgoing().chill(1);
    assert_eq!(send(&high, &data[..60_000]), Sent::Bytes(kernel(60_000)));
    assert_eq!(send(&high, &data[60_000..]), Sent::Bytes(ring(100)));
    reset(b);
    let (mut got, mut piece) = (Vec::new(), [0; 70_000]);
    let until = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match recv(&low, &mut piece) {
            Took::Bytes(moved) => got.extend_from_slice(&piece[..moved.total()]),
            Took::Pending if Instant::now() < until => sys::yield_now(),
            Took::Error(error) => break error,
            other => panic!("{other:?} after {} bytes", got.len()),
        }
    };
    assert_eq!(error, libc::ECONNRESET);
    assert!(got.len() < 60_000, "the reset dropped nothing");
    assert!(data.starts_with(&got));
    // As the kernel's own: told once, and then the end.
    assert_eq!(recv(&low, &mut piece), Took::Eof);
}

/// Bytes that a reader has taken round the library are not taken for lost ones: those of the ring come, then the error.
#[test]
fn an_error_comes_after_the_last_bytes() {
    for asleep in [false, true] {
        let ([a, b], low, high) = ends();
        high.link.outgoing().chill(1);
        assert_eq!(send(&high, b"kernel"), Sent::Bytes(kernel(6)));
        assert_eq!(send(&high, b"ring"), Sent::Bytes(ring(4)));
        let mut piece = [0; 100];
        // SAFETY: an own buffer.
        let read = unsafe { libc::recv(a.as_raw_fd(), piece.as_mut_ptr().cast(), 6, 0) };
        assert_eq!(read, 6);
        reset(b);
        let failing = Took::Failing(ring(4), libc::ECONNRESET);
        if asleep {
            let (bufs, end) = (
                Bufs::one(piece.as_mut_ptr(), 100),
                End::Error(libc::ECONNRESET),
            );
            let (inc, how) = (low.link.incoming(), RecvHow::default());
            let took = inc.recv_last(low.who(2), &low.fd, &bufs, how, end);
            assert_eq!(took, failing);
        } else {
            assert_eq!(recv(&low, &mut piece), failing);
            assert_eq!(recv(&low, &mut piece), Took::Eof);
        }
        assert_eq!(piece[..4], *b"ring");
    }
}

/// A socket that is reset at each send.
#[derive(Default)]
struct Reset {
    told: Cell<bool>,
}

impl Socket for Reset {
    fn send(&self, _: &Bufs, _: i32) -> Result<usize, i32> {
        self.told.set(true);
        Err(libc::ECONNRESET)
    }

    fn recv(&self, _: &Bufs, _: usize, _: i32) -> Result<usize, i32> {
        Err(libc::EAGAIN)
    }

    fn written(&self) -> Option<u64> {
        None
    }

    fn received(&self) -> Option<u64> {
        None
    }

    fn raise_send_buffer(&self) {}
}

/// An error that a send meets is the result of that send, also where the bytes were in the ring already and the receiver fell
/// asleep meanwhile.
#[test]
fn every_error_of_a_send_is_told() {
    let (_sockets, low, high) = ends();
    let over = &AtomicBool::new(false);
    let (pushed, swallowed) = std::thread::scope(|scope| {
        // Asleep and awake in turn; what was pushed is taken.
        scope.spawn(move || {
            let (socket, mut piece) = (Reset::default(), [0; 64]);
            let (inc, bufs) = (low.link.incoming(), Bufs::one(piece.as_mut_ptr(), 64));
            while !over.load(Ordering::Relaxed) {
                if inc.fall_asleep() == Asleep::Yes {
                    inc.woke(0);
                }
                let _ = inc.recv(low.who(2), &socket, &bufs, 0, RecvHow::default());
            }
        });
        let (out, socket) = (high.link.outgoing(), Reset::default());
        let until = Instant::now() + Duration::from_secs(90);
        let (mut pushed, mut swallowed) = (0, 0);
        while pushed < 5 && Instant::now() < until {
            let was_empty = !out.unread();
            socket.told.set(false);
            let bufs = Bufs::out(b"x".as_ptr(), 1);
            let sent = out.send(high.who(1), &socket, &bufs, 0, WhenFull::Kernel);
            if socket.told.get() {
                pushed += u32::from(was_empty && out.unread());
                swallowed += u32::from(sent != Sent::Error(libc::ECONNRESET));
            }
        }
        over.store(true, Ordering::Relaxed);
        (pushed, swallowed)
    });
    assert_eq!(swallowed, 0, "errors that no call returned");
    assert_ne!(pushed, 0, "no send met a receiver that fell asleep");
}
