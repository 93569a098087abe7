//! Arbitrary bytes as messages to a broker that runs, and to every reader of messages and listings.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::io::{Errno, IoSlice};
use windlass_broker::{Broker, Settings};
use windlass_channel::protocol::{Answer, MAGIC, MESSAGE_BYTES, Request, VERSION};
use windlass_listing::Row;
use windlass_sys::signals::Signals;
use windlass_sys::unix::{self, SocketKind};

/// Bytes of a script that make one message: its kind, and words of 7 bytes.
const STEP_BYTES: usize = 50;
/// Messages of one script.
const STEPS_MAX: usize = 64;

/// The socket of a broker that runs as long as this process.
static BROKER: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("windlass-messages-{}", std::process::id()));
    let settings = Settings {
        others: true,
        // Nothing is executed: every helper ends at once.
        program: "/bin/true".into(),
        policy: None,
        linger: None,
    };
    let broker = Broker::listen(&path, None, settings, Box::new(|_, _| {})).expect("a broker");
    std::thread::spawn(|| {
        let (signals, _never) = std::io::pipe().expect("a pipe");
        broker.run(&Signals::from(OwnedFd::from(signals)))
    });
    path
});

/// A message whose head is right: the words are the script's.
fn message(step: &[u8]) -> Vec<u8> {
    let (kind, words) = step.split_first().unwrap_or((&0, &[]));
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([kind % 9, 0]);
    for word in words.chunks(7) {
        let mut space = [0; 8];
        // The first byte says how long the word is: most fields are short.
        let (len, rest) = word.split_first().unwrap_or((&0, &[]));
        let used = rest.iter().take(usize::from(len % 7));
        for (to, from) in space.iter_mut().zip(used) {
            *to = *from;
        }
        bytes.extend(space);
    }
    bytes.resize(MESSAGE_BYTES, 0);
    bytes
}

/// Reads the bytes in every way that there is, sends them as messages, and sees whether the broker still answers.
pub fn run(data: &[u8]) {
    if let Some(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
    }
    let _ = Answer::decode(data);
    let _ = Row::decode_all(data);
    let mut socket = connect();
    for step in data.chunks(STEP_BYTES).take(STEPS_MAX) {
        let send = |socket: &_| unix::send_with_fds(socket, &[IoSlice::new(&message(step))], &[]);
        // A connection carries one request; several may come before it is closed.
        if send(&socket).is_err() {
            socket = connect();
            let _ = send(&socket);
        }
    }
    assert!(answers(), "the broker does not answer");
}

fn connect() -> OwnedFd {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match unix::connect(&BROKER, SocketKind::SeqPacket) {
            Ok(socket) => return socket,
            Err(Errno::AGAIN) if Instant::now() < end => std::thread::yield_now(),
            Err(errno) => panic!("the broker does not listen: {errno}"),
        }
    }
}

/// Whether a listing, or a refusal of one, comes; or the end of a connection for which its user has asked too much.
fn answers() -> bool {
    let socket = connect();
    match unix::send_with_fds(&socket, &[IoSlice::new(&Request::List.encode())], &[]) {
        Ok(_) => {}
        // It has ended before the request.
        Err(Errno::PIPE | Errno::CONNRESET) => return true,
        Err(errno) => panic!("a request cannot be sent: {errno}"),
    }
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let mut space = [0; MESSAGE_BYTES];
        match unix::receive_with_fds(&socket, &mut space, 1) {
            Ok(message) => return message.bytes == 0 || Answer::decode(&space).is_some(),
            Err(Errno::CONNRESET) => return true,
            Err(_) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    false
}
