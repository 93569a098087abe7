//! libwindlass: programs that read and write frames at VNICs of a real daemon.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use windlass_framed::{Device, Offloads, Options, ReadVec, Readiness, WriteVec};
use windlass_tests::{Daemon, Lab};

const BLOCKING: Options = Options {
    log2_rx: 8,
    log2_tx: 8,
    nonblocking: false,
    offloads: Offloads::None,
};

/// The address of VNIC `n`.
fn address(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0xf, n]
}

/// Makes VNIC `n` on `br0`, and gives its socket.
fn vnic(daemon: &Daemon, n: u8) -> PathBuf {
    let path = daemon.runtime_dir().join(format!("f{n}"));
    daemon.must(&format!(
        "vnic create f{n} --bridge br0 --mac 02:00:00:00:0f:{n:02x} --attach memif,socket={},role=server",
        path.display()
    ));
    windlass_tests::until("the socket is there", || path.exists());
    path
}

/// A daemon with VNICs 0 and 1.
fn pair(lab: &Lab) -> (Daemon, [PathBuf; 2]) {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let paths = [vnic(&daemon, 0), vnic(&daemon, 1)];
    (daemon, paths)
}

fn open(path: &Path, options: Options) -> Device {
    Device::open_path(path, options).expect("a device")
}

/// A frame of `len` bytes from VNIC `from` to VNIC `to` with a number in it.
fn frame(to: u8, from: u8, number: u64, len: usize) -> Vec<u8> {
    let mut frame = [address(to), address(from)].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (at as u64 ^ number) as u8));
    frame.truncate(len);
    frame
}

/// The number of a frame.
fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[14..22].try_into().expect("eight bytes"))
}

/// Writes whole frames, one vector each.
fn write(device: &Device, frames: &[Vec<u8>]) -> Result<usize, Errno> {
    let mut vecs: Vec<_> = frames.iter().map(|frame| WriteVec::new(frame)).collect();
    device.write(1, &mut vecs)
}

/// Reads up to `max` frames, one vector each.
fn read(device: &Device, max: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut rooms = vec![vec![0; 1600]; max];
    let mut vecs: Vec<_> = rooms.iter_mut().map(|room| ReadVec::new(room)).collect();
    let done = device.read(1, &mut vecs)?;
    Ok(vecs[..done].iter().map(|vec| vec.data().to_vec()).collect())
}

/// Waits until frames from one handle reach the other: a connection is up before the worker has its rings.
fn meet(a: &Device, b: &Device) {
    let probe = |n| [frame(1, 0, n, 64)];
    for device in [a, b] {
        device.set_nonblocking(true);
    }
    let mut sent = u64::MAX / 2;
    windlass_tests::until("the two meet", || {
        sent += 1;
        assert_eq!(write(a, &probe(sent)), Ok(1));
        read(b, 1).is_ok()
    });
    sent += 1;
    assert_eq!(write(a, &probe(sent)), Ok(1));
    windlass_tests::until("the last probe is there", || {
        read(b, 1).is_ok_and(|frames| number(&frames[0]) == sent)
    });
}

/// Two handles that have met, with rings of these sizes as powers of two, blocking or not.
fn met([a, b]: &[PathBuf; 2], log2: [u8; 2], nonblocking: bool) -> [Device; 2] {
    let open = |path, log2_ring| {
        let options = Options {
            log2_rx: log2_ring,
            log2_tx: log2_ring,
            nonblocking: true,
            ..Options::default()
        };
        Device::open_path(path, options).expect("a device")
    };
    let (a, b) = (open(a, log2[0]), open(b, log2[1]));
    meet(&a, &b);
    a.set_nonblocking(nonblocking);
    b.set_nonblocking(nonblocking);
    [a, b]
}

/// Whether a descriptor of a handle is readable within a time.
fn is_ready(device: &Device, of: Readiness, limit: Duration) -> bool {
    let fd = device.pollfd(of).expect("a descriptor");
    let end = Instant::now() + limit;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        let rest = Timespec {
            tv_sec: rest.as_secs() as i64,
            tv_nsec: rest.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&rest)) {
            Ok(ready) => return ready == 1,
            Err(Errno::INTR) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// Frames of 1 to 32 vectors and of 14 to 1514 bytes pass between two programs as they were written: none merged, split or
/// reordered, however many vectors make a frame on either side. A short frame leaves the later vectors of its group empty.
#[test]
fn frames_pass_whole_and_in_order() {
    let Some(lab) = Lab::start("frames_pass_whole_and_in_order") else {
        return;
    };
    let (_daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [8, 8], false);
    let lengths = [22, 60, 64, 65, 128, 129, 500, 1514];
    let mut next = 0;
    for (per_frame, groups) in [(1, 1), (1, 32), (2, 16), (4, 8), (32, 1), (3, 5)] {
        let frames: Vec<_> = (0..groups)
            .map(|k| frame(1, 0, next + k, lengths[(next + k) as usize % lengths.len()]))
            .collect();
        let cut = |frame: &Vec<u8>| frame.len().div_ceil(per_frame).max(1);
        let mut vecs = Vec::new();
        for frame in &frames {
            let mut pieces: Vec<_> = frame.chunks(cut(frame)).collect();
            while pieces.len() < per_frame {
                let longest = pieces.iter().position(|piece| piece.len() > 1);
                let at = longest.expect("a frame has more bytes than vectors");
                let (head, tail) = pieces[at].split_at(1);
                pieces.splice(at..=at, [head, tail]);
            }
            vecs.extend(pieces.into_iter().map(WriteVec::new));
        }
        let count = vecs.len();
        assert_eq!(a.write(per_frame, &mut vecs), Ok(count));
        let mut got = Vec::new();
        while got.len() < frames.len() {
            let mut rooms = vec![[0; 1514]; 32];
            let mut vecs: Vec<_> = rooms
                .iter_mut()
                .enumerate()
                .map(|(k, room)| ReadVec::new(&mut room[..if k % 2 == 0 { 60 } else { 1514 }]))
                .collect();
            let done = b.read(2, &mut vecs).expect("frames");
            assert!(done > 0 && done % 2 == 0);
            got.extend(
                vecs[..done]
                    .chunks(2)
                    .map(|g| [g[0].data(), g[1].data()].concat()),
            );
        }
        assert_eq!(got, frames, "{per_frame} vectors a frame");
        next += groups;
    }
}

/// Nonblocking calls return `EAGAIN`, and the descriptors of the handle tell when they would not: for frames, and for room.
#[test]
fn readiness_is_told() {
    let Some(lab) = Lab::start("readiness_is_told") else {
        return;
    };
    let (daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [8, 8], true);
    let long = Duration::from_secs(30);
    assert_eq!(read(&b, 32), Err(Errno::AGAIN));
    // It may be readable once, before a call has looked.
    let _ = b.pollfd(Readiness::Read);
    assert_eq!(read(&b, 32), Err(Errno::AGAIN));
    assert!(!is_ready(&b, Readiness::Read, Duration::ZERO));
    let frames: Vec<_> = (0..32).map(|n| frame(1, 0, n, 64)).collect();
    assert_eq!(write(&a, &frames), Ok(32));
    assert!(is_ready(&b, Readiness::Read, long));
    let mut got = read(&b, 1).expect("a frame");
    while got.len() < 32 {
        assert!(is_ready(&b, Readiness::Read, long));
        got.extend(read(&b, 5).unwrap_or_default());
    }
    assert_eq!(got, frames);
    assert_eq!(read(&b, 32), Err(Errno::AGAIN));
    assert!(!is_ready(&b, Readiness::Read, Duration::ZERO));

    assert!(is_ready(&a, Readiness::Write, Duration::ZERO));
    daemon.while_stopped(|| {
        let mut written = 0;
        while write(&a, &frames) == Ok(32) {
            written += 32;
        }
        assert_eq!(written, 256, "the ring is full");
        assert_eq!(write(&a, &frames), Err(Errno::AGAIN));
        assert!(!is_ready(&a, Readiness::Write, Duration::from_millis(20)));
    });
    assert!(is_ready(&a, Readiness::Write, long));
    let mut tries = 0;
    while write(&a, &frames) != Ok(32) {
        tries += 1;
        assert!(is_ready(&a, Readiness::Write, long), "after {tries} tries");
    }
}

/// Messages go to and fro between two threads that sleep for each, in the calls and on the descriptors of the handles, with no time-out
/// anywhere: not one wake-up is lost. `WINDLASS_ROUNDS` says how many; the soak has a million.
#[test]
fn no_wake_up_is_lost() {
    let Some(lab) = Lab::start("no_wake_up_is_lost") else {
        return;
    };
    let (_daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [8, 8], false);
    let rounds = std::env::var("WINDLASS_ROUNDS").map_or(10_000, |n| n.parse().expect("a number"));
    for nonblocking in [false, true] {
        a.set_nonblocking(nonblocking);
        b.set_nonblocking(nonblocking);
        let one = |device: &Device| loop {
            match read(device, 1) {
                Ok(mut frames) => return frames.remove(0),
                Err(Errno::AGAIN) if nonblocking => {
                    let fd = device.pollfd(Readiness::Read).expect("a descriptor");
                    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None);
                }
                Err(errno) => assert_eq!(errno, Errno::INTR),
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..rounds {
                    assert_eq!(number(&one(&b)), n);
                    assert_eq!(write(&b, &[frame(0, 1, n, 64)]), Ok(1));
                }
            });
            for n in 0..rounds {
                assert_eq!(write(&a, &[frame(1, 0, n, 64)]), Ok(1));
                assert_eq!(number(&one(&a)), n);
            }
        });
    }
}

/// A writer that is always ahead of the daemon sleeps for room, and a reader for frames: all frames come, in order. The
/// writer's window is what the reader has room for, so that nothing is dropped there.
#[test]
fn writers_sleep_for_room() {
    let Some(lab) = Lab::start("writers_sleep_for_room") else {
        return;
    };
    let (daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [5, 14], false);
    const FRAMES: u64 = 16_000;
    for n in 0..FRAMES / 32 {
        let frames: Vec<_> = (0..32).map(|k| frame(1, 0, n * 32 + k, 64)).collect();
        // The whole ring: each call waits until the daemon has taken the frames of the one before.
        assert_eq!(write(&a, &frames), Ok(32));
    }
    let mut next = 0;
    while next < FRAMES {
        for got in read(&b, 32).expect("frames") {
            assert_eq!(number(&got), next, "{}", daemon.counters("f1"));
            next += 1;
        }
    }
}

/// Eight threads write to one handle, copies and lent buffers, of one slot and of several: each thread's frames come in its order,
/// each call's without others between.
#[test]
fn many_writers_keep_their_order() {
    const WRITERS: u64 = 8;
    const CALLS: u64 = 400;
    let Some(lab) = Lab::start("many_writers_keep_their_order") else {
        return;
    };
    let (daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [8, 14], false);
    let per_call = |call: u64| 1 + call % 4;
    let total: u64 = WRITERS * (0..CALLS).map(per_call).sum::<u64>();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let a = &a;
            scope.spawn(move || {
                for call in 0..CALLS {
                    let numbers = (0..per_call(call)).map(|k| writer << 32 | call << 8 | k);
                    let frames: Vec<_> = numbers.map(|n| frame(1, 0, n, 64)).collect();
                    if call % 3 != 0 {
                        assert_eq!(write(a, &frames), Ok(frames.len()));
                        continue;
                    }
                    let mut lease = a.reserve(4).expect("buffers");
                    for (k, frame) in frames.iter().enumerate() {
                        assert!(lease.put(k, frame));
                    }
                    lease.commit(&vec![64; frames.len()]).expect("sent");
                }
            });
        }
        let (mut got, mut next) = (0, [(0, 0); WRITERS as usize]);
        let mut within = None;
        while got < total {
            let peeked = b.peek(32).expect("frames");
            let count = peeked.len();
            for lent in peeked.frames() {
                let mut bytes = [0; 64];
                assert_eq!(lent.copy(0, &mut bytes), 64);
                let n = number(&bytes);
                let (writer, call, k) = ((n >> 32) as usize, n >> 8 & 0xff_ffff, n & 0xff);
                assert_eq!((call, k), next[writer], "{}", daemon.counters("f1"));
                assert!(within.is_none_or(|one| one == writer), "a call was split");
                let is_last = k + 1 == per_call(call);
                next[writer] = if is_last {
                    (call + 1, 0)
                } else {
                    (call, k + 1)
                };
                within = (!is_last).then_some(writer);
                got += 1;
            }
            peeked.release(count);
        }
    });
}

/// What was written is not lost when its program closes the handle at once.
#[test]
fn a_close_waits_for_the_daemon() {
    let Some(lab) = Lab::start("a_close_waits_for_the_daemon") else {
        return;
    };
    let (_daemon, paths) = pair(&lab);
    let [a, b] = met(&paths, [8, 11], false);
    drop(a);
    for n in 0..50 {
        let device = open(&paths[0], BLOCKING);
        let frames: Vec<_> = (0..32).map(|k| frame(1, 0, n * 32 + k, 64)).collect();
        assert_eq!(write(&device, &frames), Ok(32));
        drop(device);
    }
    let mut next = 0;
    while next < 50 * 32 {
        for got in read(&b, 32).expect("frames") {
            assert_eq!(number(&got), next);
            next += 1;
        }
    }
}
