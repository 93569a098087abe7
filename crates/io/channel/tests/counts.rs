//! Counts that somebody has made wrong, and who puts them right.
#![cfg(not(loom))]

mod harness;

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use harness::*;
use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{Asleep, Bufs, Moved, RecvHow, Sent, Side, Took, WhenFull};

/// Both ends in this process; the high one has sent "kernel" by the kernel and "ring" by the ring.
fn sent() -> ([TcpStream; 2], Endpoint, Endpoint) {
    let shared = Shared::map(
        memory(SLAB_BYTES).as_raw_fd(),
        memory(4096).as_raw_fd(),
        true,
    );
    let (a, b) = tcp();
    let chan = join(shared, &a, &b);
    let low = Endpoint::new(shared, chan, Side::Low, a.as_raw_fd(), true);
    let high = Endpoint::new(shared, chan, Side::High, b.as_raw_fd(), false);
    high.link.outgoing().chill(1);
    for (data, moved) in [(&b"kernel"[..], [0, 6]), (b"ring", [4, 0])] {
        let bufs = Bufs::out(data.as_ptr(), data.len());
        let out = high.link.outgoing();
        let sent = out.send(high.who(1), &high.fd, &bufs, 0, WhenFull::Kernel);
        let [ring, kernel] = moved;
        assert_eq!(sent, Sent::Bytes(Moved { ring, kernel }));
    }
    ([a, b], low, high)
}

/// A receive that does not wait; what came.
fn recv(to: &Endpoint) -> (Took, Vec<u8>) {
    let mut piece = [0; 64];
    let bufs = Bufs::one(piece.as_mut_ptr(), piece.len());
    let inc = to.link.incoming();
    let took = inc.recv(to.who(2), &to.fd, &bufs, 0, RecvHow::default());
    let bytes = match took {
        Took::Bytes(moved) => piece[..moved.total()].to_vec(),
        _ => Vec::new(),
    };
    (took, bytes)
}

/// Reads round the channel.
fn read_bare(socket: &TcpStream, bytes: usize) -> Vec<u8> {
    let mut piece = vec![0; bytes];
    // SAFETY: an own buffer.
    let read = unsafe { libc::recv(socket.as_raw_fd(), piece.as_mut_ptr().cast(), bytes, 0) };
    assert_eq!(read, bytes as isize);
    piece
}

/// All announced bytes were read round the channel: the next receive counts them by the kernel, and takes the ring's.
#[test]
fn a_bare_read_of_all_is_counted() {
    let ([a, _b], low, _high) = sent();
    assert_eq!(read_bare(&a, 6), b"kernel");
    assert_eq!(recv(&low).1, b"ring");
}

/// The same of some of them: what is left comes first, and the ring's with the next one.
#[test]
fn a_bare_read_of_some_is_counted() {
    let ([a, _b], low, _high) = sent();
    assert_eq!(read_bare(&a, 2), b"ke");
    assert_eq!(recv(&low).1, b"rnel");
    assert_eq!(recv(&low).1, b"ring");
}

/// Bytes in the hands of a thread asleep are not counted twice: nothing is put right until it has counted them.
#[test]
fn bytes_of_a_sleeper_are_counted_once() {
    let ([a, _b], low, _high) = sent();
    let inc = low.link.incoming();
    assert_eq!(inc.fall_asleep(), Asleep::Yes);
    assert_eq!(read_bare(&a, 6), b"kernel");
    assert_eq!(recv(&low).0, Took::Pending);
    inc.woke(6);
    assert_eq!(recv(&low).1, b"ring");
    assert_eq!(recv(&low).0, Took::Empty);
}
