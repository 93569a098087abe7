//! Hostile front ends: repeated, superfluous, random and half messages, files of the wrong kind, descriptors that block.
//! Each costs its own connection; the process keeps its descriptors, its mappings and its time.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;
mod vhost_script;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vhost_drive::{Guest, Layout, Station};
use vhost_front::*;
use vhost_script::line;
use windlass_attach::endpoint::Endpoint;
use windlass_attach::vhost_user::endpoint::MESSAGES_PER_POLL;
use windlass_attach::vhost_user::message::{Code, Iotlb, Region, protocol, queue_state, request};
use windlass_sys::eventfd;
use windlass_sys::unix::{self, SocketKind};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// All numbers that the protocol has, and some that it has not.
fn codes() -> impl Iterator<Item = Code> {
    (0..48).map(Code)
}

/// A payload of a length that the message has.
fn payload_of(code: Code) -> Vec<u8> {
    let len = match code {
        Code::SET_MEM_TABLE => return table_payload(&table()),
        Code::SET_VRING_ADDR | Code::ADD_MEM_REG | Code::REM_MEM_REG => 40,
        Code::SET_LOG_BASE => 16,
        Code::IOTLB_MSG => 32,
        Code::GET_INFLIGHT_FD | Code::SET_INFLIGHT_FD => 24,
        Code::GET_FEATURES
        | Code::SET_OWNER
        | Code::RESET_OWNER
        | Code::GET_PROTOCOL_FEATURES
        | Code::GET_QUEUE_NUM
        | Code::SET_BACKEND_REQ_FD
        | Code::RESET_DEVICE
        | Code::GET_MAX_MEM_SLOTS
        | Code::GET_STATUS => 0,
        _ => 8,
    };
    vec![0; len]
}

/// No number of descriptors on any message stays open here, and a message with too many of them ends its connection.
#[test]
fn superfluous_descriptors_are_closed() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    host.step();
    let file = Guest::new();
    let before = open_fds();
    let mut ended = 0;
    for code in codes() {
        for count in [0, 1, 2, 8, 9, 28, 253] {
            let front = Front::connect(&mut host, &path);
            let fds = vec![file.file.as_fd(); count];
            assert!(front.send_bytes(&request(code, true, &payload_of(code)), &fds));
            drop(front);
            ended += 1;
            host.until(&format!("{code} is over"), |host| {
                host.detail("reconnects") == (ended - 1).to_string()
                    && host.detail("connected-since").is_empty()
                    && !host.detail("last-error").is_empty()
            });
            if count > 8 {
                let why = host.detail("last-error");
                assert!(
                    why.contains("descriptors") || why.contains("closed"),
                    "{why}"
                );
            }
        }
    }
    host.until("all are closed", |_| open_fds() <= before);
}

/// A message that is repeated for ever neither grows anything nor keeps others waiting: one poll takes a bounded number
/// of them, and those that cost more than a few stores are rationed.
#[test]
fn repetition_costs_only_the_repeater() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let guest = Guest::new();
    for code in [
        Code::SET_FEATURES,
        Code::SET_VRING_NUM,
        Code::SET_VRING_ENABLE,
        Code::SET_VRING_CALL,
        Code::SET_MEM_TABLE,
        Code::SEND_RARP,
        Code::SET_LOG_BASE,
    ] {
        let mut host = Host::new(conf(&path, SERVER, 1));
        host.step();
        let machine = Machine::start(&mut host, &path, Layout::Split, 1);
        let event = eventfd::create().expect("an eventfd");
        let (fds, mappings) = (open_fds(), windlass_shm::regions_in_use());
        let mut payload = payload_of(code);
        let mut with = Vec::new();
        match code {
            Code::SET_FEATURES => payload = FEATURES.to_ne_bytes().to_vec(),
            Code::SET_VRING_NUM => payload = queue_state(0, 64).to_vec(),
            Code::SET_VRING_CALL => with.push(event.as_fd()),
            Code::SET_LOG_BASE => {
                payload[..8].copy_from_slice(&4096u64.to_ne_bytes());
                with.push(guest.file.as_fd());
            }
            Code::SET_MEM_TABLE => with.extend([machine.guest.file.as_fd(); 2]),
            _ => {}
        }
        let message = request(code, false, &payload);
        let end = Instant::now() + Duration::from_millis(300);
        let mut longest = Duration::ZERO;
        let mut sent = 0u32;
        while Instant::now() < end {
            // A full socket: the repeater waits.
            while sent % 512 != 511 && machine.front.send_bytes(&message, &with) {
                sent += 1;
            }
            sent += 1;
            let begun = Instant::now();
            host.step();
            longest = longest.max(begun.elapsed());
            assert!(!machine.front.is_closed() || code == Code::SET_LOG_BASE);
            if machine.front.is_closed() {
                break;
            }
        }
        assert!(longest < Duration::from_millis(250), "{code}: {longest:?}");
        assert!(sent > 100 || code == Code::SET_LOG_BASE, "{code}: {sent}");
        drop(machine);
        host.until("it is over", |h| {
            h.rings.is_none() && h.detail("connected-since").is_empty()
        });
        host.step();
        host.until(&format!("{code}: all are closed"), |_| open_fds() <= fds);
        assert!(windlass_shm::regions_in_use() <= mappings, "{code}");
    }
    const { assert!(MESSAGES_PER_POLL <= 64) };
}

/// Memory that the file does not have, and memory where an eventfd is wanted, are refused with the reason in the status;
/// where no answer was asked for the connection ends.
#[test]
fn files_of_the_wrong_kind() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.negotiate(&mut host, FEATURES);
    let guest = Guest::new();
    let event = eventfd::create().expect("an eventfd");
    let beyond = Region {
        len: 1 << 40,
        ..table()[0]
    };
    let queue = 0u64.to_ne_bytes().to_vec();
    let log = [4096u64.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
    let one = table_payload(&table()[..1]);
    let far = table_payload(&[beyond]);
    for (code, payload, fd, why) in [
        (Code::SET_MEM_TABLE, one, &event, "memory"),
        (Code::SET_MEM_TABLE, far, &guest.file, "bytes"),
        (Code::SET_LOG_BASE, log, &event, "SET_LOG_BASE"),
        (Code::SET_VRING_KICK, queue.clone(), &guest.file, "eventfd"),
        (Code::SET_VRING_CALL, queue.clone(), &guest.file, "eventfd"),
        (Code::SET_VRING_ERR, queue.clone(), &guest.file, "eventfd"),
    ] {
        let done = front.acknowledged(&mut host, code, &payload, &[fd.as_fd()]);
        assert_eq!(done, 1, "{code}");
        let said = host.detail("last-refusal");
        assert!(said.contains(why), "{code}: {said}");
    }
    front.say(Code::SET_VRING_KICK, &queue, &[guest.file.as_fd()]);
    host.until("the connection ends", |_| front.is_closed());
    assert!(host.detail("last-error").contains("eventfd"));
}

/// A descriptor that is neither memory nor an eventfd could keep its closer waiting: any message that brings one, alone or
/// among others, ends its connection at once, and the next front end is served when the descriptor is gone.
#[test]
fn descriptors_that_could_keep_us_waiting() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    host.step();
    let plain: OwnedFd = std::fs::File::open("/proc/self/exe")
        .expect("a file")
        .into();
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let event = eventfd::create().expect("an eventfd");
    let before = open_fds();
    for strange in [&plain, &pipe] {
        for fds in [
            vec![strange.as_fd()],
            vec![event.as_fd(), strange.as_fd()],
            vec![strange.as_fd(); 200],
        ] {
            for code in [
                Code::SET_VRING_KICK,
                Code::SET_MEM_TABLE,
                Code::GET_FEATURES,
            ] {
                let front = Front::connect(&mut host, &path);
                let message = request(code, true, &payload_of(code));
                assert!(front.send_bytes(&message, &fds));
                host.until("the connection ends", |_| front.is_closed());
                let why = host.detail("last-error");
                assert!(why.contains("neither shared memory nor"), "{why}");
            }
        }
    }
    host.until("all are closed", |_| open_fds() <= before);
    let _machine = Machine::start(&mut host, &path, Layout::Split, 1);
}

/// Queues that the device does not have, features that were not offered, sizes that no ring has: refused one by one.
#[test]
fn numbers_out_of_range() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.negotiate(&mut host, FEATURES);
    let mut address = vec![0; 40];
    address[..4].copy_from_slice(&255u32.to_ne_bytes());
    for (code, payload) in [
        (Code::SET_VRING_NUM, queue_state(2, 64).to_vec()),
        (Code::SET_VRING_NUM, queue_state(u32::MAX, 64).to_vec()),
        (Code::SET_VRING_NUM, queue_state(0, 0).to_vec()),
        (Code::SET_VRING_NUM, queue_state(0, 32_769).to_vec()),
        (Code::SET_VRING_BASE, queue_state(255, 0).to_vec()),
        (Code::SET_VRING_ENABLE, queue_state(2, 1).to_vec()),
        (Code::SET_VRING_ADDR, address),
        (
            Code::SET_VRING_KICK,
            (255u64 | 0x100).to_ne_bytes().to_vec(),
        ),
        (Code::SET_FEATURES, (1u64 << 63).to_ne_bytes().to_vec()),
        (
            Code::SET_PROTOCOL_FEATURES,
            (1u64 << 63).to_ne_bytes().to_vec(),
        ),
        (Code(29), vec![]),
        (Code(200), vec![1, 2, 3]),
    ] {
        assert_eq!(
            front.acknowledged(&mut host, code, &payload, &[]),
            1,
            "{code}"
        );
    }
    front.say_queue(Code::GET_VRING_BASE, 2, 0);
    host.until("the connection ends", |_| front.is_closed());
}

/// Rings that lie nowhere, outside one region, or unaligned do not come up; the status says so, and the connection goes
/// on with better ones.
#[test]
fn rings_that_lie_nowhere() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let good = machine.queues[1].address_payload();
    for (at, value, why) in [
        (8, 0u64, "no memory"),
        (16, u64::MAX, "no memory"),
        (8, USER + 0xffff0, "descriptor table"),
        (24, USER + 1, "available ring"),
    ] {
        let mut bad = good.clone();
        bad[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        machine.front.say(Code::SET_VRING_ADDR, &bad, &[]);
        host.until("it is refused", |h| {
            h.rings.is_none() && h.endpoint.status().reason.contains(why)
        });
    }
    machine.front.say(Code::SET_VRING_ADDR, &good, &[]);
    host.until_up();
    machine.send(1, 0, &[5; 64]);
    let rings = host.rings.as_mut().expect("rings");
    assert_eq!(Station::new().receive(rings.rx[0].as_mut()).len(), 1);
}

/// A guest whose interrupt counter is full and made blocking costs one worker some milliseconds, once, and then its own
/// connection.
#[test]
fn a_call_that_blocks() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let call = &machine.queues[1].call;
    eventfd::drain(call).expect("told at the start");
    rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).expect("full");
    let flags = rustix::fs::fcntl_getfl(call).expect("flags");
    rustix::fs::fcntl_setfl(call, flags - rustix::fs::OFlags::NONBLOCK).expect("blocking");
    machine.send(1, 0, &[5; 64]);
    let begun = Instant::now();
    let rings = host.rings.as_mut().expect("rings");
    let _ = Station::new().receive(rings.rx[0].as_mut());
    assert!(begun.elapsed() < Duration::from_secs(1));
    host.until("it is ended", |h| h.rings.is_none());
    assert!(
        host.downs[0].contains("broke its rings"),
        "{:?}",
        host.downs
    );
}

/// The same without any frame: a front end that hands such a counter over again and again is not asked twice.
#[test]
fn a_call_that_blocks_at_once() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let call = eventfd::create().expect("an eventfd");
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).expect("full");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::fcntl_getfl(&call).expect("flags");
            let blocks = flags - rustix::fs::OFlags::NONBLOCK;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                rustix::fs::fcntl_setfl(&call, blocks).expect("blocking");
            }
        });
        let number = 1u64.to_ne_bytes();
        let message = request(Code::SET_VRING_CALL, true, &number);
        while machine.front.send_bytes(&message, &[call.as_fd()]) {}
        let begun = Instant::now();
        while !machine.front.is_closed() && begun.elapsed() < Duration::from_secs(1) {
            let step = Instant::now();
            host.step();
            assert!(step.elapsed() < Duration::from_millis(500));
            while machine.front.answer().is_some() {}
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A guest that takes its memory away while a worker reads it loses its connection, and nobody else anything.
#[test]
fn memory_that_goes_away() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.negotiate(&mut host, FEATURES);
    // Memory without seals, as from hugetlbfs or a file in /dev/shm.
    let name = "vhost-shrinks";
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let bytes = vhost_drive::LOW_BYTES + vhost_drive::HIGH_BYTES;
    rustix::fs::ftruncate(&file, bytes).expect("a size");
    let memory = windlass_shm::Mapping::foreign(file.as_fd(), bytes).expect("mapped");
    let guest = Guest::over(memory, file);
    let fds = [guest.file.as_fd(), guest.file.as_fd()];
    front.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
    let queues: Vec<Queue> = (0..2)
        .map(|number| Queue::new(&guest, Layout::Split, number))
        .collect();
    queues.iter().for_each(|queue| queue.start(&front, 0));
    host.until_up();
    rustix::fs::ftruncate(&guest.file, 0).expect("shrunk");
    let rings = host.rings.as_mut().expect("rings");
    let _ = Station::new().receive(rings.rx[0].as_mut());
    host.until("it is ended", |h| h.rings.is_none());
    host.until("it is closed", |_| front.is_closed());
}

/// Words of a front end that begins as an honest one and goes on at random, while a worker visits whatever rings there
/// are. Half of the messages come in two parts.
fn random_words(path: &Path, script: &[(u32, u64, u64, u8, bool)]) {
    let mut host = Host::new(conf(path, SERVER, 2));
    let mut machine = Machine::start(&mut host, path, Layout::Split, 1);
    let event = eventfd::create().expect("an eventfd");
    let other = Guest::new();
    let mut station = Station::new();
    for (i, (number, first, second, kind, half)) in script.iter().enumerate() {
        let code = Code(*number);
        let mut payload = payload_of(code);
        for (to, from) in payload
            .iter_mut()
            .zip([first, second].into_iter().flat_map(|w| w.to_ne_bytes()))
        {
            *to = from;
        }
        let fd = match kind % 4 {
            0 => machine.guest.file.as_fd(),
            1 | 2 => event.as_fd(),
            _ => other.file.as_fd(),
        };
        let fds = vec![fd; usize::from(kind / 4 % 4)];
        let message = request(code, kind & 0x80 != 0, &payload);
        let (head, tail) = message.split_at(if *half { message.len() / 2 } else { 0 });
        if !head.is_empty() {
            machine.front.send_bytes(head, &[]);
            host.step();
        }
        machine.front.send_bytes(tail, &fds);
        machine.send(1, i as u16 % RING, &[7; 64]);
        host.step();
        if let Some(rings) = &mut host.rings {
            for rx in &mut rings.rx {
                let _ = station.receive(rx.as_mut());
            }
        }
        if machine.front.is_closed() {
            break;
        }
    }
    drop(machine);
    host.until("it is over", |h| {
        h.rings.is_none() && h.endpoint.status().reason != "connected; the front end has not begun"
    });
    // Whatever it did, the next one is served.
    let machine = Machine::start(&mut host, path, Layout::Split, 1);
    assert!(machine.front.ask_word(&mut host, Code::GET_FEATURES) != 0);
}

/// Whether no more descriptors are open than these, once the threads that close the last ones have had their turn.
fn are_closed_but(fds: usize) -> bool {
    let end = Instant::now() + PATIENCE;
    while open_fds() > fds && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    open_fds() <= fds
}

fn words() -> impl Strategy<Value = Vec<(u32, u64, u64, u8, bool)>> {
    let small = prop_oneof![0u64..4, 0u64..0x200, any::<u64>()];
    let number = prop_oneof![1u32..24, 1u32..48];
    let word = (number, small.clone(), small, any::<u8>(), any::<bool>());
    prop::collection::vec(word, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Random messages with a valid beginning leave the process as it was, and the next front end is served.
    #[test]
    fn random_messages(script in words()) {
        let _alone = alone();
        let directory = directory();
        let (fds, mappings) = (open_fds(), windlass_shm::regions_in_use());
        random_words(&directory.path().join("s"), &script);
        prop_assert!(are_closed_but(fds));
        prop_assert_eq!(windlass_shm::regions_in_use(), mappings);
    }

    /// Random bytes, and random words of the handler's own script, are survived without a socket as well.
    #[test]
    fn random_scripts(bytes in prop::collection::vec(any::<u8>(), 0..400), script in words()) {
        let _alone = alone();
        vhost_script::run(&bytes);
        let lines = script.iter().map(|(number, first, second, kind, _)| {
            let mut payload = payload_of(Code(*number));
            let words = [first.to_ne_bytes(), second.to_ne_bytes()].concat();
            payload.iter_mut().zip(words).for_each(|(to, from)| *to = from);
            line(*kind, kind / 4 % 3, Code(*number), &payload)
        });
        vhost_script::run(&[comes_up(), lines.flatten().collect()].concat());
    }
}

/// The script of a guest that comes up.
fn comes_up() -> Vec<u8> {
    let region = Region {
        gpa: 0,
        len: 1 << 20,
        user: USER,
        offset: 0,
    };
    let mut script = Vec::new();
    let word = |word: u64| word.to_ne_bytes();
    script.extend(line(0, 0, Code::SET_PROTOCOL_FEATURES, &word(PROTOCOL)));
    script.extend(line(0, 0, Code::SET_FEATURES, &word(FEATURES)));
    script.extend(line(0, 1, Code::SET_MEM_TABLE, &table_payload(&[region])));
    for queue in 0..2u32 {
        let at = USER + u64::from(queue) * 0x1_0000;
        let mut address = queue_state(queue, 0).to_vec();
        for part in [at, at + 0x2000, at + 0x1000, 0] {
            address.extend(part.to_ne_bytes());
        }
        script.extend(line(0, 0, Code::SET_VRING_NUM, &queue_state(queue, 64)));
        script.extend(line(0, 0, Code::SET_VRING_ADDR, &address));
        script.extend(line(2, 1, Code::SET_VRING_KICK, &word(queue.into())));
        script.extend(line(2, 1, Code::SET_VRING_CALL, &word(queue.into())));
        script.extend(line(0, 0, Code::SET_VRING_ENABLE, &queue_state(queue, 1)));
    }
    script
}

/// Every committed input of the fuzz target `vhost_message` is survived: also cut short anywhere.
#[test]
fn corpus_replays() {
    let _alone = alone();
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/vhost_message");
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 6, "only {} files", files.len());
    for file in files {
        println!("{}", file.display());
        let bytes = std::fs::read(&file).expect("a file");
        vhost_script::run(&bytes);
        for end in (0..bytes.len()).step_by(7) {
            vhost_script::run(&bytes[..end]);
        }
    }
    seeds().iter().for_each(|seed| vhost_script::run(seed));
}

/// What the corpus began with.
fn seeds() -> Vec<Vec<u8>> {
    let word = |word: u64| word.to_ne_bytes();
    let up = comes_up();
    let then = |more: Vec<u8>| [up.clone(), more].concat();
    let stop = line(0, 0, Code::GET_VRING_BASE, &queue_state(1, 0));
    let table = line(0, 2, Code::SET_MEM_TABLE, &table_payload(&table()));
    let log = [word(4096), word(0)].concat();
    let bits = FEATURES | windlass_attach::vhost_user::features::RING_PACKED;
    let packed = line(0, 0, Code::SET_VRING_BASE, &queue_state(0, 0x8000_8000));
    vec![
        up.clone(),
        then(stop),
        then(table),
        then(line(0, 1, Code::SET_LOG_BASE, &log)),
        then(line(0, 0, Code::RESET_DEVICE, &[])),
        then(line(0, 0, Code::SEND_RARP, &word(0x0900_0000_0002))),
        then(line(2, 1, Code::SET_VRING_CALL, &word(1))),
        then([line(0, 0, Code::SET_FEATURES, &word(bits)), packed].concat()),
        behind(),
    ]
}

/// A guest behind an IOMMU, told where its memory is, then not any more, and told again.
fn behind() -> Vec<u8> {
    use windlass_attach::vhost_user::features::ACCESS_PLATFORM;
    let word = |word: u64| word.to_ne_bytes();
    let iotlb = |kind, len| {
        let said = Iotlb {
            iova: USER,
            len,
            user: USER,
            perm: 3,
            kind,
        };
        line(0, 0, Code::IOTLB_MSG, &said.encode())
    };
    let protocol = PROTOCOL | protocol::BACKEND_REQ;
    [
        comes_up(),
        line(0, 0, Code::SET_PROTOCOL_FEATURES, &word(protocol)),
        line(4, 1, Code::SET_BACKEND_REQ_FD, &[]),
        line(0, 0, Code::SET_FEATURES, &word(FEATURES | ACCESS_PLATFORM)),
        iotlb(2, 1 << 20),
        iotlb(3, 4096),
        iotlb(2, 4096),
        iotlb(2, 1 << 40),
        iotlb(3, 0),
    ]
    .concat()
}

/// The door is open to others while one front end says nothing at all.
#[test]
fn a_silent_front_end_holds_only_its_own_socket() {
    let _alone = alone();
    let directory = directory();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    let mut silent = Host::new(conf(&a, SERVER, 1));
    let mut other = Host::new(conf(&b, SERVER, 1));
    silent.step();
    let socket = unix::connect(&a, SocketKind::Stream).expect("connected");
    let half = request(Code::SET_MEM_TABLE, true, &table_payload(&table()));
    let _ = Front(socket).send_bytes(&half[..20], &[]);
    silent.step();
    let begun = Instant::now();
    let _machine = Machine::start(&mut other, &b, Layout::Split, 1);
    assert!(begun.elapsed() < PATIENCE);
    let idle = silent.endpoint.deadline();
    assert!(
        idle.is_none_or(|at| at > Instant::now())
            || silent.endpoint.status().reason.contains("closed")
    );
}
