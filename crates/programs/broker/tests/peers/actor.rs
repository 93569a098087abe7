//! A process that does what it is told over its standard streams: what the library does inside a program, step by step.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_cookie;
use windlass_channel::client::{Client, Paired, Registered};
use windlass_channel::layout::Side;
use windlass_channel::protocol::{Answer, Ends, MESSAGE_BYTES, RETURNS, Request};
use windlass_channel::{
    Alive, Bufs, Counts, Fd, Life, Offer, Owner, Reason, RecvHow, Sent, Slab, Took, WhenFull, Who,
};
use windlass_sys::process;

/// The variable that names the broker's socket to an actor.
pub const SOCKET: &str = "WINDLASS_TEST_BROKER";

/// How long a thread has been ready and had no core, in microseconds, by its schedstat (proc(5)).
fn waited_us(schedstat: &str) -> u64 {
    let text = std::fs::read_to_string(schedstat).expect("schedstat");
    let waited_ns = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    waited_ns.map_or(0, |ns: u64| ns / 1_000)
}

/// The broker's program, which is executed as a helper.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_windlass-broker"))
}

/// An actor, as the test sees it. Killed when dropped.
pub struct Actor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts one, by running this test program anew with the test that plays it.
    pub fn start(socket: &Path) -> Self {
        Self::of(socket, Command::new(own()))
    }

    /// The same as another user; only root can.
    pub fn start_as(socket: &Path, uid: u32) -> Self {
        Self::start_in(socket, uid, uid)
    }

    /// The same in another group.
    pub fn start_in(socket: &Path, uid: u32, gid: u32) -> Self {
        let mut command = Command::new(own());
        command.uid(uid).gid(gid);
        Self::of(socket, command)
    }

    fn of(socket: &Path, mut command: Command) -> Self {
        let mut child = command
            .args([
                "act",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("actor");
        let to = child.stdin.take().expect("stdin");
        let from = BufReader::new(child.stdout.take().expect("stdout"));
        let mut actor = Self { child, to, from };
        assert_eq!(actor.answer(), "ready");
        actor
    }

    /// Tells it a line, without waiting.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("actor lives");
    }

    /// Its next answer.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.from.read_line(&mut line).expect("line"),
                0,
                "the actor ended"
            );
            // The test runner's own words stand between.
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Tells it a line, and gives the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// The same where the answer is a number.
    pub fn number(&mut self, line: &str) -> u64 {
        let answer = self.ask(line);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{line}: {answer}"))
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("signal");
    }

    /// Has it execute a program that plays an actor, with its connection open.
    pub fn exec(&mut self, program: &Path) {
        self.tell(&format!("exec {}", program.display()));
        assert_eq!(self.answer(), "ready");
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

fn own() -> PathBuf {
    std::env::current_exe().expect("own path")
}

/// What an actor has.
#[derive(Default)]
struct Stage {
    client: Client,
    registered: Option<Registered>,
    paired: Option<Paired>,
    slab: Option<Slab>,
    listener: Option<TcpListener>,
    stream: Option<TcpStream>,
    connected: bool,
    offer: Option<Offer>,
    chan: u16,
    /// Slabs with the peer that have no channel left.
    full: u16,
    /// Those that were filled.
    filled: Vec<u32>,
    /// Descriptors that stay open.
    kept: Vec<std::os::fd::OwnedFd>,
}

/// The table of processes, as an actor sees it.
struct Table(Registered);

impl Alive for Table {
    fn life(&self, owner: Owner) -> Life {
        let table = NonNull::new(self.0.processes.base)
            .expect("mapped")
            .cast::<u32>();
        let at = table.as_ptr().wrapping_add(owner.process().into());
        // SAFETY: the table has a word for every slot and stays mapped.
        match unsafe { at.read_volatile() } {
            0 => Life::Dead,
            _ => Life::Lives,
        }
    }
}

/// Plays an actor until its test lets go of it.
pub fn act() {
    let Ok(socket) = std::env::var(SOCKET) else {
        return;
    };
    let mut stage = Stage::default();
    stage.client.locate(Some(socket.as_bytes()), None, 0);
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("line");
        let words: Vec<&str> = line.split(' ').collect();
        println!("> {}", stage.does(&words));
    }
}

fn said<T: std::fmt::Display>(result: Result<T, Reason>) -> String {
    match result {
        Ok(value) => value.to_string(),
        Err(reason) => reason.word().to_owned(),
    }
}

impl Stage {
    fn does(&mut self, words: &[&str]) -> String {
        match *words {
            ["listen"] => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
                let port = listener.local_addr().expect("name").port();
                self.listener = Some(listener);
                port.to_string()
            }
            ["connect", port] => {
                let port: u16 = port.parse().expect("port");
                self.stream = Some(TcpStream::connect(("127.0.0.1", port)).expect("connected"));
                self.connected = true;
                "done".into()
            }
            ["accept"] => {
                let listener = self.listener.as_ref().expect("listener");
                let before = self.stream.replace(listener.accept().expect("accepted").0);
                self.kept.extend(before.map(Into::into));
                "done".into()
            }
            ["listen-unix", path] => {
                let listener = UnixListener::bind(path).expect("listener");
                self.kept.push(listener.into());
                "done".into()
            }
            ["connect-unix", path] => {
                let stream = UnixStream::connect(path).expect("connected");
                self.stream = Some(OwnedFd::from(stream).into());
                "done".into()
            }
            ["accept-unix"] => {
                let accepted = rustix::net::accept(self.kept.first().expect("listener"));
                self.stream = Some(accepted.expect("accepted").into());
                "done".into()
            }
            ["cookie"] => self.cookie().to_string(),
            ["socket"] => self.stream().as_raw_fd().to_string(),
            ["pair", peer, fd, cookie] => {
                let cookie: u64 = cookie.parse().expect("cookie");
                let ends = Ends {
                    socket: self.stream().as_raw_fd(),
                    cookie: self.cookie(),
                    peer_socket: fd.parse().expect("fd"),
                    peer_cookie: cookie as u32,
                };
                self.pair(peer.parse().expect("slot"), ends)
            }
            ["prove"] => {
                let (slab, chan) = (self.paired.expect("pair").slab, self.chan);
                let (fd, cookie) = (self.stream().as_raw_fd(), self.cookie());
                let request = Request::Prove {
                    slab,
                    chan,
                    socket: fd,
                    cookie,
                };
                let proved = self.patiently(|client| client.ask(&request));
                said(proved.map(|()| "proved"))
            }
            ["slab", id, side] => {
                let (slab, side) = (id.parse().expect("slab"), side.parse().expect("side"));
                let slab = self.patiently(|client| client.pair(&Request::Slab { slab, side }));
                said(slab.map(|paired| format!("{} {} {}", paired.slab, paired.side, paired.peer)))
            }
            _ => self.does_register(words),
        }
    }

    fn does_register(&mut self, words: &[&str]) -> String {
        match *words {
            ["patient"] => {
                self.client.answer_ms_min.store(20_000, Relaxed);
                "done".into()
            }
            ["register"] => self.register(0, 0),
            ["register-heir", parent] => self.register(0, parent.parse().expect("slot")),
            ["register-again", slot] => {
                let parent = slot.parse().expect("slot");
                let who = registration(self.stream().as_raw_fd(), self.cookie(), RETURNS, parent);
                said(
                    self.client
                        .register(&who, false)
                        .map(|registered| registered.slot),
                )
            }
            ["broker", path] => {
                println!("> serving");
                let mut broker = Command::new(program());
                broker.args(["--private", "--linger-ms", "60000", "--socket", path]);
                panic!("{path}: {}", broker.exec())
            }
            ["register-at-once"] => {
                let who = registration(self.stream().as_raw_fd(), self.cookie(), 0, 0);
                said(
                    self.client
                        .register(&who, false)
                        .map(|registered| registered.slot),
                )
            }
            ["register", flags] => self.register(flags.parse().expect("flags"), 0),
            ["register-wrong", fd, cookie] => {
                let (fd, cookie) = (fd.parse().expect("fd"), cookie.parse().expect("cookie"));
                let who = registration(fd, cookie, 0, 0);
                said(
                    self.patiently(|client| client.register(&who, false))
                        .map(|r| r.slot),
                )
            }
            _ => self.does_in_a_channel(words),
        }
    }

    fn does_in_a_channel(&mut self, words: &[&str]) -> String {
        match *words {
            ["allocate"] => {
                self.chan = self.slab().allocate().expect("channel");
                self.chan.to_string()
            }
            ["offer", chan, peer_cookie] => {
                self.chan = chan.parse().expect("channel");
                self.offer(peer_cookie.parse().expect("cookie"))
            }
            ["check"] => format!("{:?}", self.link().check(&self.offer.expect("offer"))),
            ["push", text] => self.push(text.as_bytes()),
            ["receive"] => self.receive(),
            ["raw-read", bytes] => self.raw_read(bytes.parse().expect("bytes")),
            ["renumber"] => {
                self.stream = Some(self.stream().try_clone().expect("another number"));
                "done".into()
            }
            ["rescue", side] => {
                let side = side.parse().expect("side");
                let slab = self.paired.expect("pair").slab;
                let started = Instant::now();
                let chan = self.chan;
                let done = self.client.ask(&Request::Rescue { slab, chan, side });
                said(done.map(|()| started.elapsed().as_micros()))
            }
            ["watch"] => {
                self.client.watch(self.paired.expect("pair").slab);
                "done".into()
            }
            ["life", slot] => {
                let owner = Owner::new(slot.parse().expect("slot"), 1).expect("owner");
                format!(
                    "{:?}",
                    Table(self.registered.expect("registered")).life(owner)
                )
            }
            ["scribble", seed] => self.scribble(seed.parse().expect("seed")),
            ["undumpable"] => {
                let behaviour = rustix::process::DumpableBehavior::NotDumpable;
                rustix::process::set_dumpable_behavior(behaviour).expect("prctl");
                "done".into()
            }
            ["writable-status"] => self.writes_status().to_string(),
            ["descriptors"] => {
                let count = std::fs::read_dir("/proc/self/fd")
                    .expect("descriptors")
                    .count();
                count.to_string()
            }
            _ => self.attacks(words),
        }
    }

    /// What no library does.
    fn attacks(&mut self, words: &[&str]) -> String {
        match *words {
            ["name-unix", path] => {
                // The end says from now on that it is this socket.
                let socket = std::os::unix::net::UnixStream::connect(path).expect("connected");
                let offer = Offer {
                    cookie: socket_cookie(&socket).expect("cookie"),
                    fd: socket.as_raw_fd(),
                    ..self.offer.expect("offer")
                };
                self.link().offer(&offer);
                self.kept.push(socket.into());
                "done".into()
            }
            ["mimic", chan, peer_cookie] => {
                // Whatever the other end says that its connection is, mirrored.
                self.chan = chan.parse().expect("channel");
                let link = self.link();
                let theirs = link.info(link.side().other());
                let counts = self.socket().counts().expect("established");
                link.offer(&Offer {
                    local: theirs.peer,
                    peer: theirs.local,
                    netns: theirs.netns,
                    ..self.own_offer(peer_cookie.parse().expect("cookie"), counts)
                });
                "done".into()
            }
            ["exec", program] => {
                let stream = self.stream();
                rustix::io::fcntl_setfd(stream, rustix::io::FdFlags::empty()).expect("kept");
                let error = Command::new(program).args(std::env::args().skip(1)).exec();
                panic!("{program}: {error}")
            }
            ["readable"] => {
                let stream = self.stream();
                stream.set_nonblocking(true).expect("nonblocking");
                let readable = stream.peek(&mut [0]).is_ok();
                stream.set_nonblocking(false).expect("blocking");
                readable.to_string()
            }
            _ => self.disturbs(words),
        }
    }

    /// What keeps a broker busy, or would.
    fn disturbs(&mut self, words: &[&str]) -> String {
        match *words {
            ["name-netlink", port] => {
                let socket = netlink_to(port.parse().expect("port"));
                let offer = Offer {
                    cookie: socket_cookie(&socket).expect("cookie"),
                    fd: socket.as_raw_fd(),
                    ..self.offer.expect("offer")
                };
                self.link().offer(&offer);
                let registered = self.does(&[
                    "register-wrong",
                    &offer.fd.to_string(),
                    &offer.cookie.to_string(),
                ]);
                self.kept.push(socket);
                registered
            }
            ["register-time", ref others @ ..] => {
                // One question, however late its answer is.
                self.client.answer_ms_min.store(5_000, Relaxed);
                let all = others.iter().chain(&["/proc/thread-self/schedstat"]);
                let waited = || all.clone().map(|file| waited_us(file)).sum::<u64>();
                let (before, started) = (waited(), Instant::now());
                let registered = self.register(0, 0);
                assert!(registered.parse::<u16>().is_ok(), "{registered}");
                let took = started.elapsed().as_micros() as u64;
                took.saturating_sub(waited() - before).to_string()
            }
            ["flood", what] => {
                let request = match what {
                    "list" => Request::List,
                    _ => Request::Register {
                        socket: self.stream().as_raw_fd(),
                        cookie: self.cookie(),
                        flags: 0,
                        parent: 0,
                        report: 0,
                    },
                };
                for _ in 0..4 {
                    std::thread::spawn(move || flood(&request));
                }
                "done".into()
            }
            ["list"] => {
                let listed = self.patiently(Client::list);
                said(listed.map(|(_, bytes)| bytes))
            }
            ["full", count] => {
                self.full = count.parse().expect("count");
                "done".into()
            }
            ["fill", peer, fd, cookie, slabs] => {
                // Channels as of thousands of idle connections.
                let mut count = 0;
                for full in 0..slabs.parse().expect("count") {
                    self.full = full;
                    let paired = self.does(&["pair", peer, fd, cookie]);
                    assert!(paired.contains(' '), "{paired}");
                    self.filled.push(self.paired.expect("pair").slab);
                    count += std::iter::from_fn(|| self.slab().allocate()).count();
                }
                count.to_string()
            }
            _ => self.changes(words),
        }
    }

    /// What changes the actor's process, or the descriptors that it keeps.
    fn changes(&mut self, words: &[&str]) -> String {
        match *words {
            ["fork"] => {
                // Alone in its process, the thread goes on as the actor.
                // SAFETY: no other thread of this process holds a lock that is needed.
                match unsafe { libc::fork() } {
                    0 => "done".into(),
                    child => {
                        // SAFETY: waits for an own child, and takes no status.
                        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                        std::process::exit(0)
                    }
                }
            }
            ["own-namespace"] => {
                let flags = rustix::thread::UnshareFlags::NEWUSER;
                // SAFETY: this thread is the only one that goes on, and shares no namespace with memory that depends on it.
                said(
                    unsafe { rustix::thread::unshare_unsafe(flags) }
                        .map(|()| "done")
                        .map_err(|_| Reason::Limit),
                )
            }
            ["change-and-register", id] => self.change_and_register(id.parse().expect("an id")),
            ["lingering"] => {
                std::thread::spawn(linger_on_and_on);
                "done".into()
            }
            ["touch"] => {
                let region = self.paired.expect("pair").memory;
                for at in (0..region.len).step_by(4_096).skip(2_048) {
                    // SAFETY: inside the mapping; other processes expect anything there.
                    unsafe { region.base.wrapping_add(at).write_volatile(1) };
                }
                "done".into()
            }
            ["watch-filled"] => {
                let filled = self.filled.clone();
                std::thread::spawn(move || {
                    let client = Client::new();
                    client.locate(Some(broker().as_os_str().as_encoded_bytes()), None, 0);
                    loop {
                        filled.iter().for_each(|slab| client.watch(*slab));
                        std::thread::sleep(Duration::from_millis(500));
                    }
                });
                "done".into()
            }
            ["pass-lingering"] => pass_lingering(&mut self.kept).to_string(),
            ["open", path] => {
                let file = std::fs::File::open(path).expect("a file");
                let number = file.as_raw_fd().to_string();
                self.kept.push(file.into());
                number
            }
            ["idle", count] => {
                let path = std::env::var(SOCKET).expect("a path");
                let kind = windlass_sys::unix::SocketKind::SeqPacket;
                let connect = |_| windlass_sys::unix::connect(Path::new(&path), kind).ok();
                let count: usize = count.parse().expect("count");
                self.kept.extend((0..count).filter_map(connect));
                "done".into()
            }
            _ => panic!("{words:?} is not understood"),
        }
    }

    fn stream(&self) -> &TcpStream {
        self.stream.as_ref().expect("stream")
    }

    fn cookie(&self) -> u64 {
        socket_cookie(self.stream()).expect("cookie")
    }

    fn slab(&self) -> &Slab {
        self.slab.as_ref().expect("slab")
    }

    fn link(&self) -> windlass_channel::Link<'_> {
        let side = Side::from_u8(self.paired.expect("pair").side);
        self.slab().link(self.chan, side).expect("channel")
    }

    fn socket(&self) -> Fd {
        Fd {
            fd: self.stream().as_raw_fd(),
            connected: self.connected,
        }
    }

    /// Connects, takes the ids of a user, and asks to be registered; why that is refused.
    fn change_and_register(&self, id: u32) -> String {
        let kind = windlass_sys::unix::SocketKind::SeqPacket;
        let to = windlass_sys::unix::connect(&broker(), kind).expect("connected");
        // Those of all threads: the kernel shows the first one's.
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::setresgid(id, id, id) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setresuid(id, id, id) }, 0);
        let who = registration(self.stream().as_raw_fd(), self.cookie(), 0, 0);
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&to, &who.encode(), flags).expect("asked");
        rustix::io::ioctl_fionbio(&to, false).expect("it waits");
        let mut answer = [0; MESSAGE_BYTES];
        rustix::io::read(&to, &mut answer).expect("an answer");
        match Answer::decode(&answer) {
            Some(Answer::Refused { reason, .. }) => reason.word().into(),
            other => format!("{other:?}"),
        }
    }

    /// Does what the broker must answer: again after a while if it did not get to it in time, as the library does. For five seconds, or
    /// as long as three answers are waited for.
    fn patiently<T>(&self, ask: impl Fn(&Client) -> Result<T, Reason>) -> Result<T, Reason> {
        let patience_ms = 3 * self.client.answer_ms_min.load(Relaxed);
        let end = Instant::now() + Duration::from_millis(patience_ms.max(5_000));
        loop {
            match ask(&self.client) {
                Err(Reason::NoDaemon) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(15));
                }
                done => return done,
            }
        }
    }

    fn register(&mut self, flags: u32, parent: u16) -> String {
        let socket = self.stream().as_raw_fd();
        let who = registration(socket, self.cookie(), flags, parent);
        let done = self.patiently(|client| client.register(&who, false));
        self.registered = done.ok();
        said(done.map(|registered| registered.slot))
    }

    fn pair(&mut self, peer: u16, ends: Ends) -> String {
        let full = self.full;
        let request = Request::Pair { peer, full, ends };
        let paired = match self.patiently(|client| client.pair(&request)) {
            Ok(paired) => paired,
            Err(reason) => return reason.word().into(),
        };
        let base = NonNull::new(paired.memory.base).expect("mapped");
        // SAFETY: the region was mapped by the client, is sealed, and stays mapped until this process ends.
        let slab = unsafe { Slab::attach(base, paired.memory.len, [None, None]) };
        self.slab = Some(slab.expect("slab"));
        self.paired = Some(paired);
        format!("{} {}", paired.slab, paired.side)
    }

    fn offer(&mut self, peer_cookie: u64) -> String {
        let counts = self.socket().counts().expect("established");
        let offer = self.own_offer(peer_cookie, counts);
        self.link().offer(&offer);
        self.offer = Some(offer);
        "done".into()
    }

    fn own_offer(&self, peer_cookie: u64, counts: Counts) -> Offer {
        Offer {
            cookie: self.cookie(),
            peer_cookie: peer_cookie as u32,
            netns: process::netns_cookie(self.stream()).expect("cookie"),
            local: self.stream().local_addr().expect("name"),
            peer: self.stream().peer_addr().expect("name"),
            slot: self.registered.expect("registered").slot,
            pid: std::process::id(),
            fd: self.stream().as_raw_fd(),
            connected: self.connected,
            written: counts.written(self.connected).expect("count"),
            received: counts.read().expect("count"),
            asleep: 0,
            is_recounted: false,
            is_tracked: false,
        }
    }

    /// How often something is done with who does it.
    fn with<T>(&self, work: impl FnOnce(Who<'_>) -> T) -> T {
        let registered = self.registered.expect("registered");
        let owner = Owner::new(registered.slot, 1).expect("owner");
        work(Who {
            owner,
            alive: &Table(registered),
        })
    }

    fn push(&self, text: &[u8]) -> String {
        let data = Bufs::out(text.as_ptr(), text.len());
        let sent = self.with(|who| {
            let flags = libc::MSG_NOSIGNAL;
            self.link()
                .outgoing()
                .send(who, &self.socket(), &data, flags, WhenFull::Kernel)
        });
        match sent {
            Sent::Bytes(moved) => format!("{} {}", moved.ring, moved.kernel),
            other => format!("{other:?}"),
        }
    }

    fn receive(&self) -> String {
        let mut space = [0; 4096];
        let into = Bufs::one(space.as_mut_ptr(), space.len());
        let how = RecvHow {
            look: true,
            ..RecvHow::default()
        };
        let took = self.with(|who| {
            self.link()
                .incoming()
                .recv(who, &self.socket(), &into, 0, how)
        });
        match took {
            Took::Bytes(moved) => String::from_utf8_lossy(&space[..moved.total()]).into_owned(),
            other => format!("{other:?}"),
        }
    }

    /// Reads round the library, as a plain program does.
    fn raw_read(&self, bytes: usize) -> String {
        let mut space = vec![0; bytes];
        self.stream().read_exact(&mut space).expect("bytes");
        String::from_utf8_lossy(&space).into_owned()
    }

    /// Fills the slab's header, channels and some pages with anything but the number of channels in use.
    fn scribble(&self, seed: u64) -> String {
        let region = self.paired.expect("pair").memory;
        let words = NonNull::new(region.base).expect("mapped").cast::<u64>();
        let mut state = seed | 1;
        for at in (0..region.len.min(4 << 20) / 8).skip(1) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let value = if state >> 62 == 0 { u64::MAX } else { state };
            let place = words.as_ptr().wrapping_add(at);
            // SAFETY: inside the mapping; other processes expect anything there.
            unsafe { place.write_volatile(value) };
        }
        "done".into()
    }

    /// Whether the peer's status page can be made writable.
    fn writes_status(&self) -> bool {
        let status = self.paired.expect("pair").peer_status;
        let flags = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: only gives the pages another protection, and nothing refers to them.
        unsafe { rustix::mm::mprotect(status.base.cast(), status.len, flags) }.is_ok()
    }
}

fn registration(socket: i32, cookie: u64, flags: u32, parent: u16) -> Request {
    Request::Register {
        socket,
        cookie,
        report: 0,
        flags,
        parent,
    }
}

/// A raw netlink socket that sends to another one, in this process.
fn netlink_to(port: u32) -> std::os::fd::OwnedFd {
    let kind = rustix::net::SocketType::RAW;
    let family = rustix::net::AddressFamily::NETLINK;
    let protocol = Some(rustix::net::netlink::USERSOCK);
    let socket = rustix::net::socket(family, kind, protocol).expect("netlink");
    let to = rustix::net::netlink::SocketAddrNetlink::new(port, 0);
    rustix::net::connect(&socket, &to).expect("connected");
    socket
}

/// The socket of the broker that an actor was given.
fn broker() -> PathBuf {
    std::env::var_os(SOCKET).expect("a path").into()
}

/// Asks again and again without reading an answer, over as many connections as the broker leaves it.
fn flood(request: &Request) {
    let mut kept = std::collections::VecDeque::new();
    loop {
        let kind = windlass_sys::unix::SocketKind::SeqPacket;
        let Ok(socket) = windlass_sys::unix::connect(&broker(), kind) else {
            std::thread::yield_now();
            continue;
        };
        // One that is not taken is as good.
        let _ = rustix::net::send(&socket, &request.encode(), rustix::net::SendFlags::NOSIGNAL);
        kept.push_back(socket);
        if kept.len() > 64 {
            kept.pop_front();
        }
    }
}

/// A socket that lingers with bytes that nobody reads, and the other end.
fn lingering() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let bytes = vec![0; 8 << 20];
    let name = listener.local_addr().expect("name");
    let socket = TcpStream::connect(name).expect("connected");
    let unread = listener.accept().expect("accepted").0;
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(30)))
        .expect("linger");
    socket.set_nonblocking(true).expect("nonblocking");
    // As much as there is room for.
    while std::io::Write::write(&mut (&socket), &bytes).is_ok() {}
    [socket, unread]
}

/// Sends a request with a socket beside it whose last close is left to the broker. Whether that was sent.
fn pass_lingering(kept: &mut Vec<std::os::fd::OwnedFd>) -> bool {
    let [socket, unread] = lingering();
    let kind = windlass_sys::unix::SocketKind::SeqPacket;
    let to = windlass_sys::unix::connect(&broker(), kind).expect("connected");
    let message = Request::List.encode();
    let parts = [std::io::IoSlice::new(&message)];
    let sent = windlass_sys::unix::send_with_fds(&to, &parts, &[socket.as_fd()]);
    kept.extend([to, unread.into()]);
    if sent.is_err() {
        // This process would wait for its own close.
        kept.push(socket.into());
    }
    sent.is_ok()
}

/// Names sockets that linger with bytes that nobody reads, and closes each while it is looked at, so that the last close may be
/// the helper's.
fn linger_on_and_on() {
    let client = Client::new();
    client.locate(Some(broker().as_os_str().as_encoded_bytes()), None, 0);
    for round in 0_u64.. {
        let [socket, _unread] = lingering();
        let (fd, cookie) = (socket.as_raw_fd(), socket_cookie(&socket).expect("cookie"));
        let closer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round % 40 * 10));
            drop(socket);
        });
        let _ = client.register(&registration(fd, cookie, 0, 0), false);
        closer.join().expect("closed");
    }
}
