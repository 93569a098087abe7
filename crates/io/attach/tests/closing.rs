//! Peers whose descriptors take 20 s to close: the control thread, which serves all attachments, waits for none of them.
#![allow(missing_docs)]

mod lingering;
mod memif_drive;
mod vhost_drive;
mod vhost_front;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use lingering::{LINGER_S, Lingering};
use memif_drive::server_config;
use vhost_front::{Front, Host, PROTOCOL, SERVER, conf};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::memif::MemifServer;
use windlass_attach::memif::msg::{AddRegion, MSG_BYTES, Message};
use windlass_attach::vhost_user::message::{Code, protocol, request};
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, IoSlice};

/// Does it, and sees that it did not wait.
fn at_once<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(
        start.elapsed() < Duration::from_secs(LINGER_S / 2),
        "{what} waited for a close"
    );
    done
}

/// A UNIX stream socket that holds the last reference to a lingering descriptor.
fn parcel(lingering: &mut Lingering) -> OwnedFd {
    let (inner, outer) = unix::pair(SocketKind::Stream).expect("a pair");
    lingering.send(&outer, b"x").expect("sent");
    inner
}

/// Sends bytes, and the last reference to a descriptor with them.
fn send(socket: impl AsFd, bytes: &[u8], fd: OwnedFd) {
    unix::send_with_fds(socket, &[IoSlice::new(bytes)], &[fd.as_fd()]).expect("sent");
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Front ends: a descriptor in a socket that is not wanted, one behind the message that ended the connection, one in the
/// channel that is wanted, one of a front end that was not accepted. None keeps the control thread waiting, and the next
/// front end is met as soon as the last one's descriptors are closed.
#[test]
fn front_ends() {
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let plain = request(Code::GET_FEATURES, false, &[]);

    let mut held = Lingering::new();
    let front = Front::connect(&mut host, &path);
    send(&front.0, &plain, parcel(&mut held));
    at_once("a refused socket", || over(&mut host, &front));
    assert!(host.endpoint.status().reason.contains("do not close"));
    drop((held, front));

    let mut held = Lingering::new();
    let front = Front::connect(&mut host, &path);
    assert!(front.send_bytes(&[0xff; 12], &[]));
    held.send(&front.0, &plain).expect("sent");
    at_once("an unread message", || over(&mut host, &front));
    drop((held, front));

    let mut held = Lingering::new();
    let front = Front::connect(&mut host, &path);
    front.ask_word(&mut host, Code::GET_FEATURES);
    front.ask_word(&mut host, Code::GET_PROTOCOL_FEATURES);
    let channel = PROTOCOL | protocol::BACKEND_REQ;
    front.say_word(Code::SET_PROTOCOL_FEATURES, channel);
    let wanted = request(Code::SET_BACKEND_REQ_FD, false, &[]);
    send(&front.0, &wanted, parcel(&mut held));
    front.ask_word(&mut host, Code::GET_FEATURES);
    drop(front);
    at_once("the channel", || {
        host.until("the end", |host| {
            host.endpoint.status().reason.contains("do not close")
        });
    });
    drop(held);

    let front = Front::connect(&mut host, &path);
    front.ask_word(&mut host, Code::GET_FEATURES);
    let mut held = Lingering::new();
    let waiting = unix::connect(&path, SocketKind::Stream).expect("it listens");
    held.send(&waiting, &plain).expect("sent");
    at_once("the listener", || host.endpoint.delete());
}

/// Until the front end's connection is over.
fn over(host: &mut Host, front: &Front) {
    host.until("the end", |_| front.is_closed());
}

/// memif clients: the same, but for the channel, which memif does not have.
#[test]
fn clients() {
    let directory = directory();
    let path = directory.path().join("s");
    let mut server = MemifServer::new(server_config(path.clone(), 0, 1)).expect("server");
    let region = Message::AddRegion(AddRegion {
        index: 0,
        size: 4096,
    })
    .encode();

    let mut held = Lingering::new();
    let client = greeted(&mut server, &path);
    send(&client, &region, parcel(&mut held));
    at_once("a refused socket", || hung_up(&mut server, &client));
    drop((held, client));

    let mut held = Lingering::new();
    let client = greeted(&mut server, &path);
    unix::send_with_fds(&client, &[IoSlice::new(&[0xff; 8])], &[]).expect("sent");
    held.send(&client, &region).expect("sent");
    at_once("an unread message", || hung_up(&mut server, &client));
    drop((held, client));

    let _client = greeted(&mut server, &path);
    let mut held = Lingering::new();
    let waiting = unix::connect(&path, SocketKind::SeqPacket).expect("it listens");
    held.send(&waiting, &region).expect("sent");
    at_once("the listener", || server.delete());
}

/// A connection that the server has spoken to.
fn greeted(server: &mut MemifServer, path: &Path) -> OwnedFd {
    server.poll(Instant::now());
    let socket = unix::connect(path, SocketKind::SeqPacket).expect("it listens");
    until_received(server, &socket, |bytes| bytes == Ok(MSG_BYTES));
    socket
}

/// Until the server has closed a connection.
fn hung_up(server: &mut MemifServer, socket: &OwnedFd) {
    until_received(server, socket, |bytes| {
        !matches!(bytes, Ok(1..) | Err(Errno::AGAIN))
    });
}

fn until_received(
    server: &mut MemifServer,
    socket: &OwnedFd,
    holds: impl Fn(Result<usize, Errno>) -> bool,
) {
    let end = Instant::now() + Duration::from_secs(LINGER_S);
    loop {
        server.poll(Instant::now());
        let came = unix::receive_with_fds(socket, &mut [0; MSG_BYTES], 1);
        if holds(came.map(|came| came.bytes)) {
            return;
        }
        assert!(Instant::now() < end, "{:?}", server.status());
    }
}
