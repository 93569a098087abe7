//! libwindlass with offload metadata: checksums that are still to be computed, and segments that are still to be cut, from and to
//! kernels and programs, those that ask and those that do not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use windlass_framed::{Device, Offload, Offloads, Options, ReadVec, Readiness, WriteVec};
use windlass_tests::{Daemon, Lab, uninterrupted, until};
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use windlass_wire::{Kind, MacAddr, parse};

/// The longest frame of an interface with an MTU of 1,500.
const WIRE_MAX: usize = 1514;
const FRAME_MAX: usize = 65_557;
const ALL: [Offloads; 3] = [Offloads::None, Offloads::Csum, Offloads::Gso];

/// Makes a VNIC, and gives its socket; `words` begin with its name.
fn vnic(daemon: &Daemon, words: &str, bridge: &str) -> PathBuf {
    let name = words.split(' ').next().unwrap_or_default();
    let path = daemon.runtime_dir().join(name);
    daemon.must(&format!(
        "vnic create {words} --bridge {bridge} --attach memif,socket={},role=server --set mac-nospoof=off",
        path.display()
    ));
    until("the socket is there", || path.exists());
    path
}

fn open(path: &Path, offloads: Offloads) -> Device {
    let options = Options {
        offloads,
        nonblocking: true,
        ..Options::default()
    };
    Device::open_path(path, options).expect("a device")
}

/// Whether every checksum of a frame's packet is right.
fn is_summed(frame: &[u8]) -> bool {
    let layers = parse(frame, frame.len() as u32);
    let (ip, transport) = (layers.l3_at(), &frame[layers.l4_at()..layers.end as usize]);
    let address = |from: usize| &frame[ip + from..];
    let mut sum = match layers.kind {
        Kind::Ipv4 => {
            let mut header = Sum::new();
            header.add_bytes(&frame[ip..layers.l4_at()]);
            assert_eq!(header.finish(), 0, "the header's checksum");
            let source = address(12).first_chunk().expect("an address");
            let target = address(16).first_chunk().expect("an address");
            pseudo_v4(source, target, layers.proto, transport.len() as u16)
        }
        _ => {
            let source = address(8).first_chunk().expect("an address");
            let target = address(24).first_chunk().expect("an address");
            pseudo_v6(source, target, layers.proto, transport.len() as u32)
        }
    };
    sum.add_bytes(transport);
    sum.finish() == 0
}

/// The next frame, and what is said of it.
fn read(device: &Device, room: &mut [u8]) -> Result<(usize, Offload), Errno> {
    let mut vecs = [ReadVec::new(room)];
    let mut offload = [Offload::default()];
    device.read_offload(1, &mut vecs, &mut offload)?;
    Ok((vecs[0].data().len(), offload[0]))
}

fn write(device: &Device, frame: &[u8], offload: Offload) -> Result<usize, Errno> {
    device.write_offload(1, &mut [WriteVec::new(frame)], &[offload])
}

/// What a program has seen of TCP over IPv4 that it passed on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    longest: usize,
    unsummed: bool,
    segments: bool,
}

/// Passes frames on between two devices until it is over, and checks what is said of each.
fn pass_on(devices: &[Device; 2], is_over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut room = vec![0; FRAME_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let mut idle = true;
        for [from, to] in [[0, 1], [1, 0]] {
            let Ok((len, offload)) = read(&devices[from], &mut room) else {
                continue;
            };
            idle = false;
            let frame = &room[..len];
            let layers = parse(frame, len as u32);
            if layers.kind == Kind::Ipv4 && layers.is_tcp() {
                seen.longest = seen.longest.max(len);
                let needs = offload.flags & Offload::NEEDS_CSUM != 0;
                match needs {
                    true => {
                        let at = usize::from(offload.csum_start);
                        assert_eq!((at, offload.csum_offset), (layers.l4_at(), 16));
                    }
                    false => assert!(is_summed(frame), "{offload:?}"),
                }
                if offload.gso_type != 0 {
                    assert_eq!(offload.gso_type & !Offload::ECN, Offload::TCP4);
                    assert_eq!(usize::from(offload.hdr_len), layers.headers());
                    assert!(usize::from(offload.gso_size) + layers.headers() <= WIRE_MAX);
                    assert!(len > WIRE_MAX, "{len} bytes in one segment");
                    seen.segments = true;
                }
                seen.unsummed |= needs;
            }
            while write(&devices[to], frame, offload) == Err(Errno::AGAIN) {
                std::thread::yield_now();
            }
        }
        if idle {
            let fds = devices.each_ref().map(|d| d.pollfd(Readiness::Read));
            let mut fds = fds
                .each_ref()
                .map(|fd| PollFd::new(fd.as_ref().expect("a descriptor"), PollFlags::IN));
            let _ = poll(
                &mut fds,
                Some(&rustix::time::Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                }),
            );
        }
    }
    seen
}

/// Sends bytes over TCP from a namespace to another, and compares them.
fn stream(lab: &Lab, bytes: &[u8]) {
    let listener = lab.within("b", || TcpListener::bind("10.8.0.2:7000").expect("bound"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let connect = || TcpStream::connect("10.8.0.2:7000");
            let mut to = lab
                .within("a", || uninterrupted(connect))
                .expect("connected");
            to.write_all(bytes).expect("sent");
        });
        let (mut from, _) = uninterrupted(|| listener.accept()).expect("a connection");
        let mut got = Vec::new();
        from.read_to_end(&mut got).expect("received");
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    });
}

/// A TCP stream between two kernels passes through a program that sits between two bridges. A program that asks for segments gets them
/// uncut, and the kernel takes what it passes on; one that asks for checksums gets segments cut, and unsummed frames; one that asks for
/// nothing gets what it always got.
#[test]
fn a_stream_passes_as_it_was_asked_for() {
    let Some(lab) = Lab::start("a_stream_passes_as_it_was_asked_for") else {
        return;
    };
    let daemon = lab.daemon();
    for (n, short) in ["a", "b"].iter().enumerate() {
        lab.namespace(short);
        daemon.must(&format!("bridge create br{n}"));
        let (netns, host) = (lab.name(short), n + 1);
        daemon.must(&format!(
            "vnic create t{n} --bridge br{n} --attach tap,name=eth0,netns={netns},address=10.8.0.{host}/24"
        ));
        daemon.wait_for_state("vnic", &format!("t{n}"), "up");
    }
    let paths = [vnic(&daemon, "p0", "br0"), vnic(&daemon, "p1", "br1")];
    let bytes: Vec<u8> = (0u32..1 << 20).map(|n| (n ^ n >> 9) as u8).collect();
    for offloads in ALL {
        let devices = [0, 1].map(|n| open(&paths[n], offloads));
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let passing = scope.spawn(|| pass_on(&devices, &is_over));
            until("the two hear each other", || lab.ping("a", "10.8.0.2", 1));
            stream(&lab, &bytes);
            is_over.store(true, Ordering::Relaxed);
            passing.join().expect("no check failed")
        });
        let (unsummed, segments) = (offloads != Offloads::None, offloads == Offloads::Gso);
        assert_eq!(
            (seen.unsummed, seen.segments),
            (unsummed, segments),
            "{seen:?}"
        );
        assert_eq!(seen.longest > WIRE_MAX, segments, "{seen:?}");
        for n in [0, 1] {
            assert_eq!(daemon.drops(&format!("p{n}"), "bad-offload"), 0);
        }
    }
    let details = daemon.show("vnic", "p0");
    assert!(!details.to_string().contains("offloads"), "{details}");
}

const V4: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
const V6: Ends = Ends::V6(
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
);

/// Each pair of addresses, with TCP and with UDP.
const PACKETS: [(Ends, bool); 4] = [(V4, true), (V4, false), (V6, true), (V6, false)];

/// A broadcast frame of TCP or UDP, and the same with the sum of the pseudo header where its checksum is.
fn packet(ends: &Ends, is_tcp: bool, payload: usize) -> (Vec<u8>, Vec<u8>) {
    let link = Link {
        dst: MacAddr([0xff; 6]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let payload: Vec<u8> = (0..payload).map(|n| (n ^ n >> 8) as u8).collect();
    let mut whole = vec![0; payload.len() + 100];
    let len = match is_tcp {
        true => build::tcp_frame(&mut whole, &link, ends, &Tcp::default(), &payload),
        false => build::udp_frame(&mut whole, &link, ends, (7, 8), &payload),
    };
    whole.truncate(len.expect("a frame"));
    let layers = parse(&whole, whole.len() as u32);
    let transport = whole.len() - layers.l4_at();
    let field = layers.l4_at() + if is_tcp { 16 } else { 6 };
    let sum = ends.pseudo(layers.proto, transport as u16).partial();
    let mut asking = whole.clone();
    asking[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    (whole, asking)
}

/// What asks for the checksum of TCP or UDP.
fn needing(ends: &Ends, is_tcp: bool) -> Offload {
    let ip = match ends {
        Ends::V4(..) => 20,
        Ends::V6(..) => 40,
    };
    Offload {
        flags: Offload::NEEDS_CSUM,
        csum_start: 14 + ip,
        csum_offset: if is_tcp { 16 } else { 6 },
        ..Offload::default()
    }
}

/// A broadcast frame of no protocol.
fn probe() -> Vec<u8> {
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

/// The frames that come until one comes that says that it is the last.
fn until_last(device: &Device, last: &[u8]) -> Vec<(Vec<u8>, Offload)> {
    let (mut got, mut room) = (Vec::new(), vec![0; FRAME_MAX]);
    until("the last frame comes", || {
        while let Ok((len, offload)) = read(device, &mut room) {
            if room[..len] == *last {
                return true;
            }
            got.push((room[..len].to_vec(), offload));
        }
        false
    });
    got
}

/// A sender that asks, and three receivers on its bridge that ask for nothing, for checksums and for segments.
struct Net {
    daemon: Daemon,
    sender: Device,
    receivers: [Device; 3],
}

impl Net {
    fn start(lab: &Lab) -> Net {
        let daemon = lab.daemon();
        daemon.must("bridge create br0");
        let sender = open(&vnic(&daemon, "s", "br0"), Offloads::Gso);
        let receivers = [0, 1, 2].map(|n| open(&vnic(&daemon, &format!("r{n}"), "br0"), ALL[n]));
        let (mut room, mut met) = (vec![0; FRAME_MAX], [false; 3]);
        until("all hear the sender", || {
            let _ = write(&sender, &probe(), Offload::default());
            std::thread::sleep(Duration::from_millis(5));
            for (met, receiver) in met.iter_mut().zip(&receivers) {
                *met |= read(receiver, &mut room).is_ok();
            }
            met.iter().all(|met| *met)
        });
        let net = Net {
            daemon,
            sender,
            receivers,
        };
        net.each(|_, _| {});
        net
    }

    /// What each receiver has got by now.
    fn each(&self, check: impl Fn(usize, Vec<(Vec<u8>, Offload)>)) {
        let mut last = probe();
        last.push(9);
        assert_eq!(write(&self.sender, &last, Offload::default()), Ok(1));
        for (n, receiver) in self.receivers.iter().enumerate() {
            check(n, until_last(receiver, &last));
        }
    }
}

/// Each receiver gets a frame without its checksum, and one with it, as it has asked for them. That this one is right it does not take from the
/// sender's word.
#[test]
fn checksums_are_left_to_those_who_ask() {
    let Some(lab) = Lab::start("checksums_are_left_to_those_who_ask") else {
        return;
    };
    let net = Net::start(&lab);
    let valid = Offload {
        flags: Offload::DATA_VALID,
        ..Offload::default()
    };
    for (ends, is_tcp) in PACKETS {
        let (whole, asking) = packet(&ends, is_tcp, 1000);
        let offload = needing(&ends, is_tcp);
        assert_eq!(write(&net.sender, &asking, offload), Ok(1));
        assert_eq!(write(&net.sender, &whole, valid), Ok(1));
        net.each(|n, got| {
            let expected = match ALL[n] {
                Offloads::None => [(&whole, Offload::default()); 2],
                _ => [(&asking, offload), (&whole, Offload::default())],
            };
            let got: Vec<_> = got.iter().map(|(frame, of)| (frame, *of)).collect();
            assert!(got == expected, "receiver {n}, {ends:?}, TCP {is_tcp}");
        });
    }
    let told = |n: usize| net.daemon.show("vnic", &format!("r{n}")).to_string();
    assert!(!told(0).contains("offloads"), "{}", told(0));
    assert!(told(1).contains(r#""offloads":"csum""#), "{}", told(1));
    assert!(told(2).contains(r#""offloads":"csum,gso""#), "{}", told(2));
}

/// The receiver that asks for segments gets one whole; the others get frames with right checksums that hold the same bytes.
#[test]
fn segments_are_cut_for_those_who_do_not_ask() {
    let Some(lab) = Lab::start("segments_are_cut_for_those_who_do_not_ask") else {
        return;
    };
    const PAYLOAD: usize = 60_000;
    let net = Net::start(&lab);
    for (ends, is_tcp) in PACKETS {
        let (_, asking) = packet(&ends, is_tcp, PAYLOAD);
        let headers = asking.len() - PAYLOAD;
        let offload = Offload {
            gso_type: match (ends, is_tcp) {
                (Ends::V4(..), true) => Offload::TCP4,
                (Ends::V6(..), true) => Offload::TCP6,
                _ => Offload::UDP,
            },
            gso_size: 1400,
            hdr_len: headers as u16,
            ..needing(&ends, is_tcp)
        };
        assert_eq!(write(&net.sender, &asking, offload), Ok(1));
        net.each(|n, got| {
            if ALL[n] == Offloads::Gso {
                assert!(got == [(asking.clone(), offload)], "receiver {n}");
                return;
            }
            assert_eq!(got.len(), PAYLOAD.div_ceil(1400), "receiver {n}");
            let mut payload = Vec::new();
            for (frame, offload) in got {
                assert_eq!(offload, Offload::default());
                assert!(is_summed(&frame), "receiver {n}");
                payload.extend_from_slice(&frame[headers..]);
            }
            assert!(payload == asking[headers..], "receiver {n}");
        });
    }
}

/// Frames in the memory of the ring carry the same.
#[test]
fn lent_frames_carry_requests() {
    let Some(lab) = Lab::start("lent_frames_carry_requests") else {
        return;
    };
    let net = Net::start(&lab);
    let (whole, asking) = packet(&V4, true, 500);
    let offload = needing(&V4, true);
    let mut buffers = net.sender.reserve(1).expect("room");
    assert!(buffers.put(0, &asking));
    let frames = [(asking.len(), offload)];
    buffers.commit_offload(&frames).expect("sent");
    for (n, receiver) in net.receivers.iter().enumerate() {
        let mut peeked = None;
        until("a frame is there", || {
            peeked = receiver.peek(1).ok();
            peeked.is_some()
        });
        let peeked = peeked.expect("a frame");
        let lent = peeked.frames().next().expect("a frame");
        let mut got = vec![0; lent.len()];
        lent.copy(0, &mut got);
        let expected = match ALL[n] {
            Offloads::None => (&whole, Offload::default()),
            _ => (&asking, offload),
        };
        assert!((&got, lent.offload()) == expected, "receiver {n}");
        peeked.release(1);
    }
    let mut buffers = net.sender.reserve(1).expect("room");
    assert!(buffers.put(0, &asking));
    let wild = Offload {
        csum_start: 2048,
        ..offload
    };
    let refused = buffers.commit_offload(&[(asking.len(), wild)]);
    assert_eq!(refused, Err(Errno::INVAL));
}

/// What cannot be asked is refused by the call, with nothing sent; a handle that has not asked may ask for nothing, and one that has does
/// not read without hearing what is to be done.
#[test]
fn bad_requests_are_refused() {
    let Some(lab) = Lab::start("bad_requests_are_refused") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let path = vnic(&daemon, "p0", "br0");
    let (_, frame) = packet(&V4, true, 3000);
    let good = needing(&V4, true);
    let segment = Offload {
        gso_type: Offload::TCP4,
        gso_size: 1000,
        ..good
    };
    let with = |change: &dyn Fn(&mut Offload)| {
        let mut offload = segment;
        change(&mut offload);
        offload
    };
    for offloads in ALL {
        let device = open(&path, offloads);
        for bad in [
            with(&|o| o.flags = 4),
            with(&|o| o.flags = 0),
            with(&|o| (o.flags, o.csum_start, o.csum_offset) = (Offload::DATA_VALID, 0, 0)),
            with(&|o| o.gso_type = 3),
            with(&|o| o.gso_type = Offload::ECN),
            with(&|o| o.gso_size = 0),
            with(&|o| o.csum_start = 2048),
            with(&|o| o.csum_offset = 6),
        ] {
            assert_eq!(write(&device, &frame, bad), Err(Errno::INVAL), "{bad:?}");
        }
        let expected = |is_good| if is_good { Ok(1) } else { Err(Errno::INVAL) };
        let asked = (offloads != Offloads::None, offloads == Offloads::Gso);
        assert_eq!(write(&device, &frame, good), expected(asked.0));
        assert_eq!(write(&device, &frame, segment), expected(asked.1));
        let mut vecs = [WriteVec::new(&frame)];
        assert_eq!(device.write_offload(1, &mut vecs, &[]), Err(Errno::INVAL));
        let mut room = [0; 100];
        let mut vecs = [ReadVec::new(&mut room)];
        let refused = match offloads {
            Offloads::None => Errno::AGAIN,
            _ => Errno::INVAL,
        };
        assert_eq!(device.read(1, &mut vecs), Err(refused));
        let places = &mut [];
        assert_eq!(device.read_offload(1, &mut vecs, places), Err(Errno::INVAL));
    }
}

/// Frame `number` on its way to the receiver, and what it asks for: each third is a segment, if those were asked for.
fn numbered(number: u64, offloads: Offloads) -> (Vec<u8>, Offload) {
    let is_segment = offloads == Offloads::Gso && number.is_multiple_of(3);
    let (_, mut frame) = packet(&V4, true, if is_segment { 3000 } else { 100 });
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[54..62].copy_from_slice(&number.to_be_bytes());
    let offload = match is_segment {
        false => needing(&V4, true),
        true => Offload {
            gso_type: Offload::TCP4,
            gso_size: 1000,
            hdr_len: 54,
            ..needing(&V4, true)
        },
    };
    (frame, offload)
}

/// Handles that asked for offloads, under a daemon that is killed and started again: they have them with the next daemon, every frame that was
/// acknowledged comes with what was asked for it, and of a burst that was delivered when the daemon died at most 64 frames come twice.
#[test]
fn a_killed_daemon_agrees_anew() {
    let Some(lab) = Lab::start("a_killed_daemon_agrees_anew") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    let receiver = "r --mac 02:00:00:00:00:09";
    let paths = ["s", receiver].map(|words| vnic(&daemon, words, "br0"));
    for (offloads, told) in [
        (Offloads::Csum, "\"csum\""),
        (Offloads::Gso, "\"csum,gso\""),
    ] {
        let [sender, receiver] = [0, 1].map(|n| open(&paths[n], offloads));
        let mut room = vec![0; FRAME_MAX];
        until("they hear each other", || {
            let _ = write(&sender, &probe(), Offload::default());
            std::thread::sleep(Duration::from_millis(5));
            read(&receiver, &mut room).is_ok()
        });
        let (mut written, mut next, mut twice) = (0u64, 0u64, 0);
        let mut take = |next: &mut u64| {
            while let Ok((len, said)) = read(&receiver, &mut room) {
                if room[..len] == *probe() {
                    continue;
                }
                let number = u64::from_be_bytes(room[54..62].try_into().expect("eight bytes"));
                let (frame, offload) = numbered(number, offloads);
                assert!(
                    room[..len] == frame && said == offload,
                    "{number}: {said:?}"
                );
                assert!(number <= *next, "{number} came before {next}");
                twice += u64::from(number < *next);
                *next = number + 1;
            }
        };
        for round in 1..=3 {
            // Never more on the way than the receiver has room for.
            while written < round * 600 {
                let (frame, offload) = numbered(written, offloads);
                match written - next < 300 && write(&sender, &frame, offload).is_ok() {
                    true => written += 1,
                    false => take(&mut next),
                }
            }
            daemon.kill();
            // With nobody there, these wait for the next daemon.
            for _ in 0..100 {
                let (frame, offload) = numbered(written, offloads);
                written += u64::from(write(&sender, &frame, offload).is_ok());
            }
            take(&mut next);
            daemon.start_again();
            until("the receiver is back, with its offloads", || {
                take(&mut next);
                let shown = daemon.show("vnic", "r").to_string();
                shown.contains(&format!("\"offloads\":{told}"))
            });
            until("all have come", || {
                let _ = sender.drain(Duration::from_millis(1));
                take(&mut next);
                next == written
            });
        }
        assert!(twice <= 3 * 64, "{twice} came twice");
    }
}

/// Frames with requests that hold or do not.
struct Wild {
    state: u64,
    packets: Vec<Vec<u8>>,
}

impl Wild {
    fn new() -> Wild {
        let mut packets = Vec::new();
        for (ends, is_tcp) in PACKETS {
            packets.extend([0, 40, 1400, 9000].map(|len| packet(&ends, is_tcp, len).1));
        }
        let state = 0x1234_5678_9abc_def1;
        Wild { state, packets }
    }

    fn next(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state as usize
    }

    fn request(&mut self) -> (Vec<u8>, Offload) {
        let at = self.next() % self.packets.len();
        let mut frame = self.packets[at].clone();
        match self.next() % 4 {
            // Some bytes of the headers are something else.
            0 => (0..3).for_each(|_| frame[self.next() % 42] = self.next() as u8),
            1 => frame.truncate(14 + self.next() % 60),
            _ => {}
        }
        frame[..6].fill(0xff);
        let pick = self.next();
        let kinds = [0, Offload::TCP4, Offload::TCP6, Offload::UDP];
        let offload = Offload {
            flags: [Offload::NEEDS_CSUM, Offload::DATA_VALID][pick & 1],
            gso_type: kinds[pick >> 1 & 3] | (pick >> 3 & 0x80) as u8,
            gso_size: [1, 8, 64, 1000, 1400, 65_535][(pick >> 16) % 6],
            csum_start: [0, 14, 34, 54, 60, 2047][(pick >> 24) % 6],
            csum_offset: [6, 16, 6, 16, 0, 2000][(pick >> 32) % 6],
            hdr_len: pick as u16,
        };
        (frame, offload)
    }
}

/// A program that asks for anything, in frames of any kind, harms nobody: what does not hold is dropped and counted, what others get is
/// no longer than the wire and, where the request was right, summed. What passes by meanwhile is not disturbed.
#[test]
fn wild_requests_harm_nobody() {
    let Some(lab) = Lab::start("wild_requests_harm_nobody") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    let paths = ["h", "r"].map(|name| vnic(&daemon, name, "br0"));
    let (hostile, receiver) = (
        open(&paths[0], Offloads::Gso),
        open(&paths[1], Offloads::None),
    );
    let mut room = vec![0; FRAME_MAX];
    until("it is heard", || {
        let _ = write(&hostile, &probe(), Offload::default());
        std::thread::sleep(Duration::from_millis(5));
        read(&receiver, &mut room).is_ok()
    });
    let mut wild = Wild::new();
    let (mut sent, mut got) = (0, 0);
    while sent < 1500 {
        let (frame, offload) = wild.request();
        match write(&hostile, &frame, offload) {
            Ok(_) => sent += 1,
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(errno) => assert_eq!(errno, Errno::INVAL, "{offload:?}"),
        }
        while let Ok((len, said)) = read(&receiver, &mut room) {
            assert_eq!(said, Offload::default());
            assert!(len <= 9100, "{len} bytes");
            got += 1;
        }
    }
    daemon.assert_alive();
    until("all were seen", || {
        while read(&receiver, &mut room).is_ok() {
            got += 1;
        }
        let counters = daemon.counters("h");
        counters["rx_frames"].as_u64().unwrap_or(0) >= sent
    });
    assert!(daemon.drops("h", "bad-offload") > 100 && got > 100, "{got}");
    // A good request passes still.
    let (whole, asking) = packet(&V4, true, 99);
    until("a good one passes", || {
        let _ = write(&hostile, &asking, needing(&V4, true));
        std::thread::sleep(Duration::from_millis(5));
        matches!(read(&receiver, &mut room), Ok((len, _)) if room[..len] == *whole)
    });
}
