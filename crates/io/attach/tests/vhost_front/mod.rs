//! A front end for tests of the socket: what QEMU says, word by word, and a control thread that can be stopped between
//! any two steps.
#![allow(dead_code, missing_docs)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::vhost_user::features::{
    EVENT_IDX, IN_ORDER, INDIRECT_DESC, PROTOCOL_FEATURES, RING_PACKED, VERSION_1,
};
use windlass_attach::vhost_user::message::{
    Code, HEADER_BYTES, Inflight, Region, protocol, queue_state, request,
};
use windlass_attach::vhost_user::{SessionConf, VhostConf, VhostEndpoint, VhostRole};
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, IoSlice, eventfd};

use crate::vhost_drive::{Driver, Guest, HIGH, HIGH_BYTES, LOW, LOW_BYTES, Layout};

pub const PATIENCE: Duration = Duration::from_secs(10);
/// Where the front end has the guest's memory.
pub const USER: u64 = 0x7f00_0000_0000;
/// Features that most tests accept.
pub const FEATURES: u64 = VERSION_1 | PROTOCOL_FEATURES | EVENT_IDX | INDIRECT_DESC | IN_ORDER;
/// Protocol features that most tests accept.
pub const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::LOG_SHMFD
    | protocol::RARP
    | protocol::MTU
    | protocol::INFLIGHT_SHMFD
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::RESET_DEVICE
    | protocol::STATUS;
pub const RING: u16 = 64;

/// For tests that count what the process has open: no other of them runs, and threads that close what earlier ones left
/// are over. (One so new that it has no name yet is missed: what is counted may shrink, and never grows.)
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    while is_closing() {
        std::thread::sleep(Duration::from_millis(1));
    }
    alone
}

/// Whether a thread of the library is closing what a peer left.
fn is_closing() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("proc");
    threads.flatten().any(|thread| {
        // One that has just ended has no name any more.
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.trim() == "closer")
    })
}

/// Descriptors that the process has open.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

pub fn conf(path: &Path, role: VhostRole, pairs: u16) -> VhostConf {
    VhostConf {
        path: path.to_owned(),
        role,
        session: SessionConf { pairs, mtu: 1500 },
        quota: windlass_shm::Quota::new(2048),
        ring_progress: None,
    }
}

pub const SERVER: VhostRole = VhostRole::Server {
    mode: 0o600,
    owner: None,
};

/// The daemon's control thread with one endpoint.
pub struct Host {
    pub endpoint: VhostEndpoint,
    pub rings: Option<Rings>,
    pub ups: usize,
    pub downs: Vec<String>,
    /// Keeps the rings when they are to be taken, until [`Host::give_back`].
    pub holds: bool,
}

impl Host {
    pub fn new(conf: VhostConf) -> Host {
        Host {
            endpoint: VhostEndpoint::new(conf).expect("an endpoint"),
            rings: None,
            ups: 0,
            downs: Vec::new(),
            holds: false,
        }
    }

    /// Whether the endpoint says that it is to be polled.
    fn is_due(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.endpoint.fd(), PollFlags::IN)];
        let is_readable = poll(&mut fds, Some(&Timespec::default())).expect("poll(2)") > 0;
        let deadline = self.endpoint.deadline();
        is_readable || deadline.is_some_and(|at| at <= Instant::now())
    }

    pub fn step(&mut self) {
        for event in self.endpoint.poll(Instant::now()) {
            match event {
                Event::Up(rings) => {
                    assert!(self.rings.is_none(), "rings on top of rings");
                    self.rings = Some(rings);
                    self.ups += 1;
                }
                Event::Down(why) => {
                    assert!(self.rings.is_some(), "no rings to take: {why}");
                    self.downs.push(why);
                    if !self.holds {
                        self.give_back();
                    }
                }
            }
        }
    }

    pub fn give_back(&mut self) {
        self.rings = None;
        self.endpoint.detached();
    }

    /// Polls when it is due, until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Host) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(
                Instant::now() < end,
                "not in {PATIENCE:?}: {what}: {:?}",
                self.endpoint.status()
            );
            if self.is_due() {
                self.step();
            }
            std::thread::yield_now();
        }
    }

    pub fn until_up(&mut self) {
        self.until("rings", |host| host.rings.is_some());
    }

    pub fn detail(&self, name: &str) -> String {
        let details = self.endpoint.status().details;
        let found = details.into_iter().find(|(n, _)| *n == name);
        found.map_or_else(String::new, |(_, value)| value)
    }
}

/// The front end's end of a connection.
pub struct Front(pub OwnedFd);

impl Front {
    /// Connects to an endpoint that listens.
    pub fn connect(host: &mut Host, path: &Path) -> Front {
        let end = Instant::now() + PATIENCE;
        loop {
            host.step();
            match unix::connect(path, SocketKind::Stream) {
                Ok(socket) => return Front(socket),
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
    }

    /// Sends bytes as they are; false if the other end is gone or takes nothing more.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        match unix::send_with_fds(&self.0, &[IoSlice::new(bytes)], fds) {
            Ok(n) => n == bytes.len(),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::AGAIN) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn say(&self, code: Code, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(
            self.send_bytes(&request(code, false, payload), fds),
            "{code}"
        );
    }

    pub fn say_word(&self, code: Code, word: u64) {
        self.say(code, &word.to_ne_bytes(), &[]);
    }

    pub fn say_queue(&self, code: Code, queue: u32, number: u32) {
        self.say(code, &queue_state(queue, number), &[]);
    }

    /// A whole answer, if one is there: its code and payload. `None` also if the connection is over.
    pub fn answer(&self) -> Option<(u32, Vec<u8>)> {
        let mut bytes = [0; 512];
        let header = unix::receive_with_fds(&self.0, &mut bytes[..HEADER_BYTES], 1).ok()?;
        if header.bytes != HEADER_BYTES {
            return None;
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (code, flags, len) = (word(0), word(4), word(8) as usize);
        assert_eq!(flags, 5, "version 1, reply");
        let mut payload = vec![0; len];
        if len != 0 {
            let came = unix::receive_with_fds(&self.0, &mut payload, 1).expect("a payload");
            assert_eq!(came.bytes, len);
        }
        Some((code, payload))
    }

    /// A whole answer with a file, if one is there.
    pub fn answer_with_file(&self) -> Option<(Vec<u8>, OwnedFd)> {
        let mut bytes = [0; 64];
        let came = unix::receive_with_fds(&self.0, &mut bytes, 1).ok()?;
        let file = came.fds.into_iter().next()?;
        Some((bytes[HEADER_BYTES..came.bytes].to_vec(), file))
    }

    /// Whether the other end has closed the connection.
    pub fn is_closed(&self) -> bool {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.0, &mut byte, flags) {
            Ok((bytes, _)) => bytes == 0,
            Err(Errno::AGAIN) => false,
            Err(_) => true,
        }
    }

    /// Says something and waits for the answer's payload.
    pub fn ask(&self, host: &mut Host, code: Code, payload: &[u8]) -> Vec<u8> {
        self.say(code, payload, &[]);
        self.await_answer(host, code)
    }

    pub fn ask_word(&self, host: &mut Host, code: Code) -> u64 {
        let payload = self.ask(host, code, &[]);
        u64::from_ne_bytes(payload.try_into().expect("eight bytes"))
    }

    pub fn await_answer(&self, host: &mut Host, code: Code) -> Vec<u8> {
        let mut got = None;
        host.until(&format!("an answer to {code}"), |_| {
            got = self.answer();
            got.is_some()
        });
        let (answered, payload) = got.expect("an answer");
        assert_eq!(answered, code.0);
        payload
    }

    /// Says something with a wish for an answer; the number that comes: 0 is yes.
    pub fn acknowledged(
        &self,
        host: &mut Host,
        code: Code,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> u64 {
        assert!(
            self.send_bytes(&request(code, true, payload), fds),
            "{code}"
        );
        let payload = self.await_answer(host, code);
        u64::from_ne_bytes(payload.try_into().expect("eight bytes"))
    }

    /// Has the back end make a region that says where rings stand, and gives it back to it.
    pub fn inflight_region(&self, host: &mut Host) -> (Vec<u8>, OwnedFd) {
        let asked = Inflight {
            len: 0,
            offset: 0,
            queues: 2,
            size: RING,
        };
        self.say(Code::GET_INFLIGHT_FD, &asked.encode(), &[]);
        let mut made = None;
        host.until("a region", |_| {
            made = self.answer_with_file();
            made.is_some()
        });
        let (payload, file) = made.expect("a region");
        let done = self.acknowledged(host, Code::SET_INFLIGHT_FD, &payload, &[file.as_fd()]);
        assert_eq!(done, 0);
        host.until_up();
        (payload, file)
    }

    /// What every connection begins with.
    pub fn negotiate(&self, host: &mut Host, features: u64) {
        let offered = self.ask_word(host, Code::GET_FEATURES);
        assert_eq!(features & !offered, 0, "{offered:#x}");
        let offered = self.ask_word(host, Code::GET_PROTOCOL_FEATURES);
        assert_eq!(PROTOCOL & !offered, 0, "{offered:#x}");
        self.say_word(Code::SET_PROTOCOL_FEATURES, PROTOCOL);
        self.say(Code::SET_OWNER, &[], &[]);
        self.say_word(Code::SET_FEATURES, features);
    }
}

/// The guest's memory as a table of regions.
pub fn table() -> Vec<Region> {
    let region = |gpa, len, offset| Region {
        gpa,
        len,
        user: USER + offset,
        offset,
    };
    vec![
        region(LOW, LOW_BYTES, 0),
        region(HIGH, HIGH_BYTES, LOW_BYTES),
    ]
}

pub fn table_payload(regions: &[Region]) -> Vec<u8> {
    let mut bytes = (regions.len() as u64).to_ne_bytes().to_vec();
    bytes.extend(regions.iter().flat_map(Region::encode));
    bytes
}

pub fn user(gpa: u64) -> u64 {
    USER + Guest::offset(gpa) as u64
}

/// One queue of the guest: its side of the ring and its two descriptors.
pub struct Queue {
    pub ring: Box<dyn Driver>,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub number: u32,
}

impl Queue {
    pub fn new(guest: &Arc<Guest>, layout: Layout, number: u32) -> Queue {
        // A packed ring begins in a lap whose wrap counter is 1.
        let base = if layout == Layout::Packed { 0x8000 } else { 0 };
        Queue {
            ring: layout.ring(guest, u64::from(number), RING, base),
            kick: eventfd::create().expect("an eventfd"),
            call: eventfd::create().expect("an eventfd"),
            number,
        }
    }

    pub fn address_payload(&self) -> Vec<u8> {
        let setup = self.ring.setup(0);
        let mut bytes = queue_state(self.number, 0).to_vec();
        for gpa in [setup.desc, setup.used, setup.avail] {
            bytes.extend(user(gpa).to_ne_bytes());
        }
        bytes.extend(0u64.to_ne_bytes());
        bytes
    }

    /// All that is to be said about the ring, to start it.
    pub fn words(&self, base: u32) -> Vec<(Code, Vec<u8>, Option<BorrowedFd<'_>>)> {
        let state = |number| queue_state(self.number, number).to_vec();
        let number = u64::from(self.number).to_ne_bytes().to_vec();
        vec![
            (Code::SET_VRING_NUM, state(u32::from(RING)), None),
            (Code::SET_VRING_BASE, state(base), None),
            (Code::SET_VRING_ADDR, self.address_payload(), None),
            (
                Code::SET_VRING_KICK,
                number.clone(),
                Some(self.kick.as_fd()),
            ),
            (Code::SET_VRING_CALL, number, Some(self.call.as_fd())),
            (Code::SET_VRING_ENABLE, state(1), None),
        ]
    }

    /// Says it.
    pub fn start(&self, front: &Front, base: u32) {
        for (code, payload, fd) in self.words(base) {
            front.say(code, &payload, fd.as_slice());
        }
    }

    pub fn enable(&self, front: &Front, on: bool) {
        front.say_queue(Code::SET_VRING_ENABLE, self.number, u32::from(on));
    }
}

/// A guest with its front end, connected to an endpoint, with all its rings up.
pub struct Machine {
    pub guest: Arc<Guest>,
    pub front: Front,
    pub queues: Vec<Queue>,
}

impl Machine {
    pub fn start(host: &mut Host, path: &Path, layout: Layout, pairs: u32) -> Machine {
        let front = Front::connect(host, path);
        Machine::begin(host, front, layout, pairs)
    }

    pub fn begin(host: &mut Host, front: Front, layout: Layout, pairs: u32) -> Machine {
        let packed = match layout {
            Layout::Split => 0,
            Layout::Packed => RING_PACKED,
        };
        front.negotiate(host, FEATURES | packed);
        let guest = Guest::new();
        let fds = [guest.file.as_fd(), guest.file.as_fd()];
        front.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
        let queues: Vec<Queue> = (0..pairs * 2)
            .map(|number| Queue::new(&guest, layout, number))
            .collect();
        let base = match layout {
            Layout::Split => 0,
            Layout::Packed => 0x8000_8000,
        };
        for queue in &queues {
            queue.start(&front, base);
        }
        let machine = Machine {
            guest,
            front,
            queues,
        };
        host.until_up();
        machine
    }

    /// The same guest with another back end, as QEMU does it: it says of each ring where it stood when it was started.
    pub fn reconnect(&mut self, host: &mut Host, front: Front, kept: Option<&(Vec<u8>, OwnedFd)>) {
        front.negotiate(host, FEATURES | RING_PACKED);
        let fds = [self.guest.file.as_fd(), self.guest.file.as_fd()];
        front.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
        if let Some((payload, file)) = kept {
            front.say(Code::SET_INFLIGHT_FD, payload, &[file.as_fd()]);
        }
        for queue in &self.queues {
            queue.start(&front, 0x8000_8000);
        }
        self.front = front;
        host.until_up();
    }

    /// Has the guest send a frame on queue `queue`.
    pub fn send(&mut self, queue: usize, id: u16, frame: &[u8]) {
        let at = HIGH + u64::from(id) * 0x1000 + queue as u64 * 0x10_0000;
        self.guest.write(at, &[0; 12]);
        self.guest.write(at + 12, frame);
        let ring = &mut self.queues[queue].ring;
        ring.offer_one(id, at, frame.len() as u32 + 12, 0);
        // The worker of these tests looks by itself.
        let _ = eventfd::signal(&self.queues[queue].kick);
    }

    /// Gives the guest's queue `queue` a buffer to receive into.
    pub fn offer(&mut self, queue: usize, id: u16) {
        let at = HIGH + u64::from(id) * 0x1000 + queue as u64 * 0x10_0000;
        self.queues[queue].ring.offer_one(id, at, 2048, 2);
    }

    /// The frame in a buffer that came back.
    pub fn received(&self, queue: usize, id: u16, bytes: u32) -> Vec<u8> {
        let at = HIGH + u64::from(id) * 0x1000 + queue as u64 * 0x10_0000;
        self.guest.read(at + 12, bytes as usize - 12)
    }
}
