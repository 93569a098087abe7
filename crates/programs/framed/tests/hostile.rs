//! A server that keeps to the protocol of the handshake and then writes into the rings what it wants: the client crashes on none of it,
//! reads no byte outside its buffers, and ends what cannot be.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use windlass_attach::memif::layout::{
    DESC_FLAG_NEXT, Desc, RING_FLAG_CSUM, RING_FLAG_ROOM, RingPlace,
};
use windlass_attach::memif::msg::{Direction, Hello, MSG_BYTES, Message, Text, VERSION};
use windlass_framed::{Device, Offload, Offloads, Options, ReadVec, Readiness, WriteVec};
use windlass_shm::Mapping;
use windlass_sys::unix::{self, Listener, SocketKind};
use windlass_sys::{Errno, IoSlice, eventfd};

/// Slots of a ring.
const SLOTS: u16 = 32;

/// What the server has of a connection.
struct Server {
    socket: OwnedFd,
    memory: Mapping,
    from_client: RingPlace,
    from_server: RingPlace,
    event: OwnedFd,
}

/// Takes what a call has to give that says `EAGAIN` until then.
fn wait<T>(mut call: impl FnMut() -> Result<T, Errno>) -> T {
    loop {
        match call() {
            Ok(value) => return value,
            Err(Errno::AGAIN | Errno::INTR) => sleep(Duration::from_millis(1)),
            Err(errno) => panic!("{errno}"),
        }
    }
}

impl Server {
    /// Accepts a client and does the handshake.
    fn accept(listener: &Listener) -> Server {
        Server::shake(wait(|| listener.accept()), 0)
    }

    /// Does the handshake, and offers something.
    fn shake(socket: OwnedFd, offers: u16) -> Server {
        let say = |message: Message| {
            let record = message.encode();
            unix::send_with_fds(&socket, &[IoSlice::new(&record)], &[]).expect("sent");
        };
        say(Message::Hello(Hello {
            name: Text::cut(b"hostile"),
            version_min: VERSION,
            version_max: VERSION,
            region_max: 0,
            from_server_max: 0,
            from_client_max: 0,
            log2_ring_max: 5,
        }));
        let (mut memory, mut rings) = (None, Vec::new());
        loop {
            let mut record = [0; MSG_BYTES];
            let mut came = wait(|| unix::receive_with_fds(&socket, &mut record, 1));
            match Message::decode(&record[..came.bytes]).expect("a message") {
                Message::AddRegion(region) => {
                    let fd = came.fds.pop().expect("a file");
                    memory = Some(Mapping::foreign(fd.as_fd(), region.size).expect("memory"));
                }
                Message::AddRing(ring) => rings.push((ring, came.fds.pop().expect("an eventfd"))),
                Message::Connect(_) => break,
                _ => {}
            }
            say(Message::Ack);
        }
        let memory = memory.expect("a region");
        let bytes = memory.len() as u64;
        let place = |at: u32| RingPlace::checked(at, 5, bytes).expect("a place");
        let (back, event) = rings.pop().expect("two rings");
        let (out, _) = rings.pop().expect("two rings");
        let directions = (out.direction, back.direction);
        assert_eq!(directions, (Direction::FromClient, Direction::FromServer));
        let (from_client, from_server) = (place(out.offset), place(back.offset));
        let flags_at = from_client.flags_at() as usize;
        memory.store_u16(flags_at, RING_FLAG_ROOM | offers, Release);
        say(Message::Connected(Text::cut(b"hostile")));
        Server {
            socket,
            memory,
            from_client,
            from_server,
            event,
        }
    }

    fn describe(&self, slot: u16, flags: u16, length: u32, region: u16, offset: u32) {
        self.put(
            slot,
            Desc {
                flags,
                region,
                length,
                offset,
                metadata: 7,
            },
        );
    }

    fn put(&self, slot: u16, desc: Desc) {
        let [low, high] = desc.to_words();
        let at = self.from_server.desc_at(slot) as usize;
        self.memory.store_u64(at, low, Release);
        self.memory.store_u64(at + 8, high, Release);
    }

    /// Says that the ring is filled up to here.
    fn publish(&self, tail: u16) {
        let at = self.from_server.tail_at() as usize;
        self.memory.store_u16(at, tail, Release);
        eventfd::signal(&self.event).expect("signalled");
    }
}

fn listen(directory: &Path) -> (PathBuf, Listener) {
    let path = directory.join("hostile");
    let listener = unix::bind_socket(&path, SocketKind::SeqPacket, 0o600, None).expect("a socket");
    (path, listener)
}

/// A client and its server.
fn pair(path: &Path, listener: &Listener) -> (Device, Server) {
    let options = Options {
        log2_rx: 5,
        log2_tx: 5,
        nonblocking: true,
        ..Options::default()
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| Server::accept(listener));
        let device = Device::open_path(path, options).expect("a device");
        (device, server.join().expect("a thread"))
    })
}

/// Whether the descriptor for reading is readable now.
fn is_readable(device: &Device) -> bool {
    let fd = device.pollfd(Readiness::Read).expect("a descriptor");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(1)
}

fn read(device: &Device) -> Result<Vec<u8>, Errno> {
    let mut room = vec![0; 70_000];
    let mut vecs = [ReadVec::new(&mut room)];
    device.read(1, &mut vecs)?;
    Ok(vecs[0].data().to_vec())
}

/// Descriptors with lengths, regions and offsets that cannot be, and chains that do not end: each is skipped, and what is good between
/// them comes, from the client's own buffers whatever the descriptor says of them.
#[test]
fn bad_descriptors_are_skipped() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    let mut tail = 0u16;
    for length in [2049, 0, u32::MAX] {
        server.describe(tail, 0, length, 9, 0xffff_fff0);
        server.describe(tail.wrapping_add(1), 0, 60, 77, u32::MAX);
        tail = tail.wrapping_add(2);
        server.publish(tail);
        // Of the client's own buffer.
        assert_eq!(wait(|| read(&device)), [0; 60]);
    }
    // A frame without an end, of one descriptor and of all.
    for slots in [1, SLOTS] {
        for k in 0..slots {
            server.describe(tail.wrapping_add(k), DESC_FLAG_NEXT, 2048, 0, 0);
        }
        tail = tail.wrapping_add(slots);
        server.publish(tail);
        assert_eq!(read(&device), Err(Errno::AGAIN));
    }
    assert!(device.peek(1).is_err());
    // The client goes on.
    server.describe(tail, 0, 99, 0, 0);
    server.publish(tail.wrapping_add(1));
    let peeked = device.peek(32).expect("a frame");
    let lengths: Vec<_> = peeked.frames().map(|lent| lent.len()).collect();
    assert_eq!(lengths, [99]);
    peeked.release(1);
}

/// A client that has asked for offloads does not stay with a server that does not offer them.
#[test]
fn a_server_without_offloads_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    for (offloads, offers) in [
        (Offloads::Csum, 0),
        (Offloads::Gso, 0),
        (Offloads::Gso, RING_FLAG_CSUM),
    ] {
        let options = Options {
            offloads,
            ..Options::default()
        };
        std::thread::scope(|scope| {
            let server = scope.spawn(|| Server::shake(wait(|| listener.accept()), offers));
            let refused = Device::open_path(&path, options).expect_err("refused");
            assert_eq!(refused.errno(), Errno::OPNOTSUPP, "{refused}");
            drop(server.join().expect("a thread"));
        });
    }
}

/// A server that comes again without the offloads is told as one that does not come: the handle is gone, and nothing is sent or read without them.
#[test]
fn offloads_that_do_not_come_again_end_the_handle() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let options = Options {
        nonblocking: true,
        offloads: Offloads::Gso,
        ..Options::default()
    };
    let flags = Offloads::Gso.flags();
    let (device, server) = std::thread::scope(|scope| {
        let server = scope.spawn(|| Server::shake(wait(|| listener.accept()), flags));
        let device = Device::open_path(&path, options).expect("a device");
        (device, server.join().expect("a thread"))
    });
    device.set_patience(Duration::from_millis(50));
    drop(server);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Acquire) {
                match listener.accept() {
                    Ok(socket) => drop(Server::shake(socket, RING_FLAG_CSUM)),
                    Err(_) => sleep(Duration::from_millis(1)),
                }
            }
        });
        let told = loop {
            let mut room = [0; 200];
            let (mut vecs, mut said) = ([ReadVec::new(&mut room)], [Offload::default()]);
            match device.read_offload(1, &mut vecs, &mut said) {
                Err(Errno::AGAIN | Errno::INTR) => sleep(Duration::from_millis(1)),
                other => break other,
            }
        };
        is_over.store(true, Release);
        assert_eq!(told, Err(Errno::NXIO));
    });
    let written = device.write_offload(1, &mut [WriteVec::new(&[5; 60])], &[Offload::default()]);
    assert_eq!(written, Err(Errno::NXIO));
}

/// Whatever a server says of frames, a client that has asked hears it, with headers that lie in the frame; one that has not asked hears
/// nothing.
#[test]
fn wild_words_are_only_told() {
    for offloads in [Offloads::None, Offloads::Gso] {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, listener) = listen(directory.path());
        let options = Options {
            nonblocking: true,
            offloads,
            ..Options::default()
        };
        let (device, server) = std::thread::scope(|scope| {
            let server =
                scope.spawn(|| Server::shake(wait(|| listener.accept()), offloads.flags()));
            let device = Device::open_path(&path, options).expect("a device");
            (device, server.join().expect("a thread"))
        });
        let mut word = 1u32;
        for n in 0..20_000u16 {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            let length = 14 + u32::from(n) % 100;
            let desc = Desc {
                length,
                metadata: word,
                ..Desc::default()
            };
            server.put(n, desc);
            server.publish(n + 1);
            let mut room = [0; 200];
            let mut vecs = [ReadVec::new(&mut room)];
            let mut said = [Offload::default()];
            assert_eq!(device.read_offload(1, &mut vecs, &mut said), Ok(1));
            assert!(u32::from(said[0].hdr_len) <= length, "{:?}", said[0]);
            let nothing = said[0] == Offload::default();
            assert!(nothing == (offloads == Offloads::None || word & 0x1f == 0));
        }
    }
}

/// An index that cannot be ends the connection, in either ring: the client connects again, and gives the next server what this one has
/// not taken.
#[test]
fn bad_indexes_end_the_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    for is_transmit in [false, true] {
        let (device, server) = pair(&path, &listener);
        for _ in 0..SLOTS {
            assert_eq!(device.write(1, &mut [WriteVec::new(&[5; 60])]), Ok(1));
        }
        let head = server.from_client.head_at() as usize;
        assert_eq!(server.memory.load_u16(head, Acquire), SLOTS);
        let tail = server.from_client.tail_at() as usize;
        let taken = if is_transmit {
            server.memory.store_u16(tail, 0x8000, Release);
            0
        } else {
            server.memory.store_u16(tail, 10, Release);
            server.publish(SLOTS + 1);
            10
        };
        let again = std::thread::scope(|scope| {
            let again = scope.spawn(|| Server::accept(&listener));
            while !again.is_finished() {
                let _ = read(&device);
                if is_transmit {
                    let _ = device.write(1, &mut [WriteVec::new(&[6; 60])]);
                }
                sleep(Duration::from_millis(2));
            }
            again.join().expect("a thread")
        });
        // The old server is still there, and writes on: nobody looks.
        server.publish(1);
        let left = SLOTS - taken;
        let head = again.from_client.head_at() as usize;
        while again.memory.load_u16(head, Acquire) < left {
            let _ = read(&device);
            sleep(Duration::from_millis(1));
        }
        for slot in 0..left {
            let at = again.from_client.desc_at(slot) as usize;
            let load = |at| again.memory.load_u64(at, Acquire);
            let desc = Desc::from_words([load(at), load(at + 8)]);
            let mut byte = [0];
            assert!(again.memory.read(u64::from(desc.offset), &mut byte));
            assert_eq!((desc.length, byte[0]), (60, 5), "slot {slot}");
        }
        // It takes all, so that the close waits for nothing.
        let tail = again.from_client.tail_at() as usize;
        let all = again.memory.load_u16(head, Acquire);
        again.memory.store_u16(tail, all, Release);
        drop(device);
        drop((server.socket, again.socket));
    }
}

/// Reads in a thread that sleeps, from the next server that comes.
fn read_from_the_next<'a>(device: &Arc<Device>, listener: &'a Listener) -> impl FnOnce() + use<'a> {
    let device = device.clone();
    device.set_nonblocking(false);
    let reader = std::thread::spawn(move || read(&device));
    move || {
        let end = Instant::now() + Duration::from_secs(5);
        let socket = loop {
            match listener.accept() {
                Ok(socket) => break socket,
                Err(_) => assert!(Instant::now() < end, "nobody connects again"),
            }
            sleep(Duration::from_millis(1));
        };
        let next = Server::shake(socket, 0);
        next.describe(0, 0, 77, 0, 0);
        next.publish(1);
        assert_eq!(reader.join().expect("a thread"), Ok(vec![0; 77]));
    }
}

/// A thread that sleeps in a read is woken when its server breaks the protocol, and reads what the next one brings.
#[test]
fn a_sleeper_outlives_a_broken_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    let comes = read_from_the_next(&Arc::new(device), &listener);
    sleep(Duration::from_millis(20));
    server.publish(SLOTS + 1);
    comes();
}

/// With a server that answers no wishes, a writer's wait for room takes nothing from the link's: the reader comes to the next server.
#[test]
fn a_wait_for_room_leaves_the_link_its_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    let device = Arc::new(device);
    let flags = server.from_client.flags_at() as usize;
    server.memory.store_u16(flags, 0, Release);
    device.pollfd(Readiness::Write).expect("a descriptor");
    let fill = || while device.write(1, &mut [WriteVec::new(&[5; 60])]).is_ok() {};
    fill();
    // An attempt to connect fails, and the next is a while away.
    let away = directory.path().join("away");
    std::fs::rename(&path, &away).expect("renamed");
    drop(server);
    fill();
    std::fs::rename(&away, &path).expect("renamed");
    read_from_the_next(&device, &listener)();
}

/// With a server that answers no wishes, a program that polls for room finds it, although a reader that never sleeps looks after the link.
#[test]
fn a_reader_takes_no_time_from_a_writer() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    let flags = server.from_client.flags_at() as usize;
    server.memory.store_u16(flags, 0, Release);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = [WriteVec::new(&[5; 60])];
            let fd = device.pollfd(Readiness::Write).expect("a descriptor");
            let limit = Timespec {
                tv_sec: 5,
                tv_nsec: 0,
            };
            let finds_room = (0..300).all(|_| {
                while device.write(1, &mut frame).is_ok() {}
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                poll(&mut fds, Some(&limit)) == Ok(1)
            });
            server.describe(0, 0, 77, 0, 0);
            server.publish(1);
            assert!(finds_room, "the writer sleeps on");
        });
        while read(&device) == Err(Errno::AGAIN) {
            std::thread::yield_now();
        }
    });
}

/// What a server has delivered before it went is told by the descriptor, whichever thread notices that it is gone.
#[test]
fn frames_of_a_server_that_is_gone_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    assert!(is_readable(&device));
    assert_eq!(read(&device), Err(Errno::AGAIN));
    assert!(!is_readable(&device));
    server.describe(0, 0, 77, 0, 0);
    server.publish(1);
    assert!(is_readable(&device));
    drop(server);
    // A write notices it; the next server is silent.
    std::thread::scope(|scope| {
        let silent = scope.spawn(|| wait(|| listener.accept()));
        while !silent.is_finished() {
            let _ = device.write(1, &mut [WriteVec::new(&[5; 60])]);
            sleep(Duration::from_millis(2));
        }
        assert!(is_readable(&device));
        assert_eq!(read(&device), Ok(vec![0; 77]));
    });
}

/// A frame that is too long for a read keeps the descriptor readable, at whatever instant it came.
#[test]
fn a_frame_that_is_too_long_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    assert!(is_readable(&device));
    for n in 0..200u16 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.describe(n, 0, 77, 0, 0);
                server.publish(n + 1);
            });
            let mut room = [0; 60];
            while device.read(1, &mut [ReadVec::new(&mut room)]) != Err(Errno::OVERFLOW) {}
        });
        assert!(is_readable(&device), "frame {n}");
        assert_eq!(read(&device), Ok(vec![0; 77]));
    }
}

/// Lent frames are given back while another thread tries to read.
#[test]
fn a_release_meets_a_reader() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every frame is too long for it.
            let mut room = [0; 60];
            while !is_over.load(Acquire) {
                let done = device.read(1, &mut [ReadVec::new(&mut room)]);
                assert!(done.is_err());
            }
        });
        let all_came = (0..20_000u16).all(|n| {
            server.describe(n, 0, 77, 0, 0);
            server.publish(n + 1);
            let end = Instant::now() + Duration::from_secs(5);
            loop {
                match device.peek(1) {
                    Ok(peeked) => break peeked.release(1),
                    Err(Errno::BUSY | Errno::AGAIN) if Instant::now() < end => {}
                    Err(_) => return false,
                }
            }
            true
        });
        is_over.store(true, Release);
        assert!(all_came, "a frame was never given back");
    });
}

/// A close ends the connection, although a child of fork(2) has its descriptors.
#[test]
fn a_close_ends_what_a_child_has_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, listener) = listen(directory.path());
    let (device, server) = pair(&path, &listener);
    // SAFETY: the child does nothing but wait for its end.
    #[allow(unsafe_code, reason = "fork has no safe form")]
    let child = unsafe { libc::fork() };
    if child == 0 {
        sleep(Duration::from_secs(60));
        // SAFETY: ends the child, if nobody has.
        #[allow(unsafe_code, reason = "the child must not run the test's end")]
        unsafe {
            libc::_exit(0)
        };
    }
    drop(device);
    let mut record = [0; MSG_BYTES];
    let said = unix::receive_with_fds(&server.socket, &mut record, 1).map(|came| came.bytes);
    let child = rustix::process::Pid::from_raw(child).expect("a child");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("killed");
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).expect("ended");
    assert_eq!(said, Ok(0));
}
