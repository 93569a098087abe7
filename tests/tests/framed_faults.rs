//! libwindlass when something goes wrong: what is refused, a daemon that is killed, processes that fork, devices that go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, waitpid};
use windlass_framed::{Code, Device, Error, Options, ReadVec, Readiness, WriteVec};
use windlass_tests::{Daemon, Lab, until};

/// Makes VNIC `n` on `br0`, and gives its socket.
fn vnic(daemon: &Daemon, n: u8) -> PathBuf {
    let path = daemon.runtime_dir().join(format!("f{n}"));
    daemon.must(&format!(
        "vnic create f{n} --bridge br0 --mac 02:00:00:00:0f:{n:02x} --attach memif,socket={},role=server",
        path.display()
    ));
    until("the socket is there", || path.exists());
    path
}

fn daemon_with(lab: &Lab, vnics: u8) -> (Daemon, Vec<PathBuf>) {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let paths = (0..vnics).map(|n| vnic(&daemon, n)).collect();
    (daemon, paths)
}

fn open(path: &Path, log2_ring: u8) -> Device {
    let options = Options {
        log2_rx: log2_ring,
        log2_tx: log2_ring,
        nonblocking: true,
        ..Options::default()
    };
    Device::open_path(path, options).expect("a device")
}

/// Frame `number` from VNIC `from` to VNIC `to`.
fn frame(to: u8, from: u8, number: u64) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0xf, to, 2, 0, 0, 0, 0xf, from, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

fn write(device: &Device, frame: &[u8]) -> Result<usize, Errno> {
    device.write(1, &mut [WriteVec::new(frame)])
}

/// The number of the next frame.
fn read(device: &Device) -> Result<u64, Errno> {
    let mut room = [0; 1600];
    let mut vecs = [ReadVec::new(&mut room)];
    device.read(1, &mut vecs)?;
    let number = vecs[0].data()[14..22].try_into().expect("eight bytes");
    Ok(u64::from_be_bytes(number))
}

/// The first probe that is not taken for another frame.
const PROBE: u64 = 1 << 60;

/// Waits until frames from one handle reach the other, and until no probe is on its way.
fn meet(a: &Device, b: &Device) {
    let mut sent = PROBE;
    until("the two meet", || {
        sent += 1;
        write(a, &frame(1, 0, sent)).is_ok() && read(b).is_ok()
    });
    sent += 1;
    until("a last probe is sent", || {
        write(a, &frame(1, 0, sent)).is_ok()
    });
    until("it has come", || read(b) == Ok(sent));
}

/// What is not a device, is another's or taken is refused by name, with the number that C programs see.
#[test]
fn opens_are_refused_by_name() {
    let Some(lab) = Lab::start("opens_are_refused_by_name") else {
        return;
    };
    let (daemon, paths) = daemon_with(&lab, 2);
    let first = open(&paths[0], 8);
    let stale = lab.directory().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).expect("a socket"));
    let wrong = lab.directory().join("stream");
    let _listener = std::os::unix::net::UnixListener::bind(&wrong).expect("a socket");
    let long = lab.directory().join("n".repeat(200));
    let missing = lab.directory().join("missing");
    let cases: [(&Path, Code, Errno); 6] = [
        (&missing, Code::NoDevice, Errno::NOENT),
        (&stale, Code::NoDevice, Errno::NOENT),
        (&wrong, Code::BadName, Errno::INVAL),
        (&long, Code::BadName, Errno::INVAL),
        (Path::new(""), Code::BadName, Errno::INVAL),
        (&paths[0], Code::Busy, Errno::BUSY),
    ];
    for (path, code, errno) in cases {
        let error = Device::open_path(path, Options::default()).expect_err("refused");
        assert_eq!((error.code(), error.errno()), (code, errno), "{error}");
        assert!(!Code::text(code as i32).is_empty());
    }
    assert!(matches!(
        Device::open_path(
            &paths[1],
            Options {
                log2_rx: 15,
                ..Options::default()
            }
        ),
        Err(Error::BadName(_))
    ));
    // The number of interface 0 is another's: none has it.
    let other = daemon.runtime_dir().join("other");
    daemon.must(&format!(
        "vnic create other --bridge br0 --attach memif,socket={},role=server,id=7",
        other.display()
    ));
    until("the socket is there", || other.exists());
    let error = Device::open_path(&other, Options::default()).expect_err("refused");
    assert_eq!(error.code(), Code::NoDevice, "{error}");
    drop(first);
    let _again = open(&paths[0], 8);
}

/// Each line of the errors of framed reads and writes.
#[test]
fn calls_fail_as_documented() {
    let Some(lab) = Lab::start("calls_fail_as_documented") else {
        return;
    };
    let (_daemon, paths) = daemon_with(&lab, 2);
    let (a, b) = (open(&paths[0], 6), open(&paths[1], 6));
    meet(&a, &b);
    let good = frame(1, 0, 1);
    let vecs = |n: usize| (0..n).map(|_| WriteVec::new(&good)).collect::<Vec<_>>();
    for (nvpf, count) in [(1, 0), (1, 33), (0, 1), (2, 3), (64, 64), (3, 2)] {
        assert_eq!(
            a.write(nvpf, &mut vecs(count)),
            Err(Errno::INVAL),
            "{nvpf} {count}"
        );
        let mut rooms = vec![[0; 64]; count];
        let mut vecs: Vec<_> = rooms.iter_mut().map(|room| ReadVec::new(room)).collect();
        assert_eq!(b.read(nvpf, &mut vecs), Err(Errno::INVAL), "{nvpf} {count}");
    }
    assert_eq!(write(&a, &[]), Err(Errno::INVAL));
    assert_eq!(write(&a, &good[..13]), Err(Errno::INVAL));
    assert_eq!(write(&a, &vec![0; 70_000]), Err(Errno::OVERFLOW));
    // More than the ring of 64 slots ever holds.
    let giant = vec![2; 5000];
    let mut many: Vec<_> = (0..32).map(|_| WriteVec::new(&giant)).collect();
    assert_eq!(a.write(1, &mut many), Err(Errno::INVAL));
    assert_eq!(read(&b), Err(Errno::AGAIN));
}

/// A frame that is longer than its vectors stays, and comes when there is room; those before it come alone. Lent frames keep other
/// readers out.
#[test]
fn frames_stay_until_they_are_read() {
    let Some(lab) = Lab::start("frames_stay_until_they_are_read") else {
        return;
    };
    let (_daemon, paths) = daemon_with(&lab, 2);
    let (a, b) = (open(&paths[0], 6), open(&paths[1], 6));
    meet(&a, &b);
    let good = frame(1, 0, 1);
    for n in 1..=2 {
        assert_eq!(write(&a, &frame(1, 0, n)), Ok(1));
    }
    let mut rooms = [[0; 64], [0; 64]];
    let [first, second] = &mut rooms;
    let mut call = || {
        b.read(
            1,
            &mut [
                ReadVec::new(&mut first[..]),
                ReadVec::new(&mut second[..63]),
            ],
        )
    };
    let mut done = Err(Errno::AGAIN);
    until("a frame", || {
        done = call();
        done != Err(Errno::AGAIN)
    });
    assert_eq!(done, Ok(1), "the second does not fit");
    let mut short = [0; 63];
    let mut done = Err(Errno::AGAIN);
    until("the other", || {
        done = b.read(1, &mut [ReadVec::new(&mut short)]);
        done != Err(Errno::AGAIN)
    });
    assert_eq!(done, Err(Errno::OVERFLOW));
    assert_eq!(read(&b), Ok(2));

    // Lent frames keep others out, and a second reader is told so.
    assert_eq!(write(&a, &good), Ok(1));
    until("a frame", || {
        let Ok(peeked) = b.peek(32) else { return false };
        assert_eq!(read(&b), Err(Errno::BUSY));
        assert_eq!(b.peek(1).map(|_| ()), Err(Errno::BUSY));
        peeked.release(0);
        true
    });
    assert_eq!(read(&b), Ok(1));
    assert_eq!(b.peek(0).map(|_| ()), Err(Errno::INVAL));
    assert_eq!(a.reserve(0).map(|_| ()), Err(Errno::INVAL));
    assert_eq!(a.reserve(33).map(|_| ()), Err(Errno::INVAL));
    for lens in [&[][..], &[13], &[2049], &[64, 64]] {
        assert_eq!(
            a.reserve(1).expect("a buffer").commit(lens),
            Err(Errno::INVAL)
        );
    }
}

/// A daemon that is killed and started again, three times: every frame that was acknowledged comes, in order. A burst that
/// was delivered when the daemon died before it said so may come twice: at most 64 frames each time.
#[test]
fn a_killed_daemon_loses_no_frame() {
    let Some(lab) = Lab::start("a_killed_daemon_loses_no_frame") else {
        return;
    };
    let (mut daemon, paths) = daemon_with(&lab, 2);
    let (a, b) = (open(&paths[0], 8), open(&paths[1], 10));
    meet(&a, &b);
    let (mut written, mut next, mut twice) = (0, 0, 0);
    let mut take = |next: &mut u64| {
        while let Ok(number) = read(&b) {
            if number >= PROBE {
                continue;
            }
            assert!(number <= *next, "{number} came before {next}");
            twice += u64::from(number < *next);
            *next = number + 1;
        }
    };
    for round in 0..3 {
        // Never more on the way than the receiver has room for.
        while written < (round + 1) * 2000 {
            if written - next < 500 && write(&a, &frame(1, 0, written)).is_ok() {
                written += 1;
            } else {
                take(&mut next);
            }
        }
        daemon.kill();
        // With nobody there, writes are taken until the ring is full.
        let before = written;
        while write(&a, &frame(1, 0, written)).is_ok() {
            written += 1;
        }
        assert!(written - before <= 256);
        assert_eq!(write(&a, &frame(1, 0, written)), Err(Errno::AGAIN));
        take(&mut next);
        // The receiver is there first, so that the bridge has somewhere to deliver to.
        daemon.start_again();
        until("the receiver is back", || {
            take(&mut next);
            daemon.show("vnic", "f1")["state"] == "up"
        });
        std::thread::sleep(Duration::from_millis(50));
        until("all have come", || {
            let _ = a.drain(Duration::from_millis(1));
            take(&mut next);
            next == written
        });
    }
    assert!(twice <= 3 * 64, "{twice} came twice");
}

/// A blocked reader sleeps through the end of its daemon, and gets what the next one brings. A device that is deleted ends it.
#[test]
fn a_sleeper_outlives_its_daemon() {
    let Some(lab) = Lab::start("a_sleeper_outlives_its_daemon") else {
        return;
    };
    let (mut daemon, paths) = daemon_with(&lab, 2);
    let (a, b) = (open(&paths[0], 8), open(&paths[1], 8));
    meet(&a, &b);
    b.set_nonblocking(false);
    b.set_patience(Duration::from_millis(300));
    let wait = || loop {
        match read(&b) {
            Err(Errno::INTR) => {}
            Ok(number) if number >= PROBE => {}
            other => return other,
        }
    };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| (wait(), wait()));
        daemon.kill();
        daemon.start_again();
        daemon.wait_for_state("vnic", "f1", "up");
        until("a frame is through", || {
            let _ = write(&a, &frame(1, 0, 7));
            daemon.counters("f1")["tx_frames"]
                .as_u64()
                .is_some_and(|n| n > 0)
        });
        // The sleeper may get several of these.
        std::thread::sleep(Duration::from_millis(20));
        daemon.must("vnic delete f1");
        let (first, second) = sleeper.join().expect("a thread");
        assert_eq!(first, Ok(7));
        assert!(matches!(second, Ok(7) | Err(Errno::NXIO)), "{second:?}");
    });
    until("the device is gone", || {
        matches!(read(&b), Err(Errno::NXIO))
    });
    assert_eq!(write(&b, &frame(0, 1, 0)), Err(Errno::NXIO));
}

/// A child of fork(2) has a handle that is its parent's: every call says `ENXIO`, a close harms nothing, and it may open another
/// device. No descriptor of a handle is left open for programs that are executed.
#[test]
fn a_child_has_no_handle() {
    let Some(lab) = Lab::start("a_child_has_no_handle") else {
        return;
    };
    let (_daemon, paths) = daemon_with(&lab, 3);
    let (a, b) = (open(&paths[0], 8), open(&paths[1], 8));
    meet(&a, &b);
    let mut handle = Some(a);
    // SAFETY: the child calls the library, and ends with `_exit`.
    #[allow(unsafe_code, reason = "fork has no safe form")]
    let child = unsafe { libc::fork() };
    if child == 0 {
        let a = handle.take().expect("a handle");
        let refused = [
            write(&a, &frame(1, 0, 1)).err(),
            read(&a).err(),
            a.pollfd(Readiness::Read).err(),
            a.drain(Duration::ZERO).err(),
            a.reserve(1).err(),
            a.peek(1).err(),
        ];
        let mut failed = i32::from(refused.iter().any(|errno| *errno != Some(Errno::NXIO)));
        drop(a);
        let own = Device::open_path(&paths[2], Options::default());
        failed |= match own.map(|own| write(&own, &frame(1, 2, 5))) {
            Ok(Ok(1)) => 0,
            _ => 2,
        };
        // SAFETY: ends this process at once.
        #[allow(unsafe_code, reason = "the child must not run the test's end")]
        unsafe {
            libc::_exit(failed)
        };
    }
    let pid = rustix::process::Pid::from_raw(child);
    let (_, status) = waitpid(pid, WaitOptions::empty())
        .expect("a child")
        .expect("ended");
    assert_eq!(status.exit_status(), Some(0));
    let a = handle.take().expect("a handle");
    assert_eq!(write(&a, &frame(1, 0, 2)), Ok(1));
    until("the parent's frame", || read(&b) == Ok(2));
    let listed = std::process::Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output();
    let listed = String::from_utf8(listed.expect("ls").stdout).expect("text");
    for word in ["memfd", "eventfd", "eventpoll", "timerfd", "socket"] {
        assert!(!listed.contains(word), "{listed}");
    }
}

/// The descriptor of a handle can be given to another process, which can wait on it, and no more.
#[test]
fn another_process_can_wait() {
    let Some(lab) = Lab::start("another_process_can_wait") else {
        return;
    };
    let (_daemon, paths) = daemon_with(&lab, 2);
    let (a, b) = (open(&paths[0], 8), open(&paths[1], 8));
    meet(&a, &b);
    let fd = b.pollfd(Readiness::Read).expect("a descriptor");
    assert_eq!(read(&b), Err(Errno::AGAIN));
    let (ours, theirs) =
        windlass_sys::unix::pair(windlass_sys::unix::SocketKind::SeqPacket).expect("a pair");
    let byte = [windlass_sys::IoSlice::new(b"x")];
    windlass_sys::unix::send_with_fds(&ours, &byte, &[fd]).expect("sent");
    let came = windlass_sys::unix::receive_with_fds(&theirs, &mut [0], 1).expect("received");
    let wait = |ms: i64| {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: ms * 1_000_000,
        };
        let mut fds = [PollFd::new(&came.fds[0], PollFlags::IN)];
        poll(&mut fds, Some(&limit)) == Ok(1)
    };
    assert!(!wait(1));
    assert_eq!(write(&a, &frame(1, 0, 3)), Ok(1));
    until("it is told", || wait(100));
    assert_eq!(
        rustix::io::read(&came.fds[0], &mut [0; 8]),
        Err(Errno::INVAL)
    );
    drop(came);
    assert_eq!(read(&b), Ok(3));
}
