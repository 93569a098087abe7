//! A descriptor whose last close waits.
#![allow(dead_code, missing_docs)]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::set_socket_linger;
use windlass_sys::unix;

/// How long it waits, in seconds.
pub const LINGER_S: u64 = 20;

/// A socket whose last close takes [`LINGER_S`], unless its peer, which reads nothing, goes first.
pub struct Lingering {
    _peer: TcpStream,
    fd: Option<OwnedFd>,
}

impl Lingering {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let mut sender =
            TcpStream::connect(listener.local_addr().expect("a socket")).expect("a socket");
        let (peer, _) = listener.accept().expect("a socket");
        sender.set_nonblocking(true).expect("a socket");
        while sender.write(&[0; 65_536]).is_ok() {}
        sender.set_nonblocking(false).expect("a socket");
        set_socket_linger(&sender, Some(Duration::from_secs(LINGER_S))).expect("a socket");
        Self {
            _peer: peer,
            fd: Some(sender.into()),
        }
    }

    /// Sends bytes, and the last reference to the descriptor with them.
    pub fn send(&mut self, socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
        let fd = self.fd.take().expect("not sent yet");
        let sent = unix::send_with_fds(socket, &[IoSlice::new(bytes)], &[fd.as_fd()]);
        if sent.is_err() {
            self.fd = Some(fd);
        }
        sent
    }
}
