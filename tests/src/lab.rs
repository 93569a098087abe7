//! A place for one test: namespaces, a directory, and what runs in them.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;
use windlass_sys::caps::{Capability, holds};
use windlass_sys::netns::{self, NetnsRef};

use crate::Daemon;

/// How long something that must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says that the test `name` cannot run here, and why.
pub fn skip(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
}

/// A call whose wait has a time limit, made anew if this process was stopped and continued meanwhile, or frozen with its machine: the
/// kernel ends such a wait with EINTR, which no signal handler has to be there for (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Waits until `holds` does; panics with `what` if that takes too long.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until there is something, and gives it; panics with `what` if that takes too long.
pub fn until_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Copies a program that is to be run.
///
/// A process of its own does it. While this one has the copy open for writing, a child that another thread starts gets the descriptor too,
/// and keeps it until it has become its program: so long nobody can run the copy (`ETXTBSY`, execve(2)).
pub fn copy_program(from: &Path, to: &Path) {
    let done = run(Command::new("cp").arg("--").args([from, to]));
    assert_eq!(done.code, 0, "{}", done.err);
}

/// Writes a program that is to be run, as [`copy_program`] does.
pub fn write_program(to: &Path, text: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]);
    let done = run(command.arg(to).arg(text));
    assert_eq!(done.code, 0, "{}", done.err);
}

/// What a program answered.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Output {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Output {
        code: done.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// Namespaces and a directory of one test's own; one of the namespaces is "the host".
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    directory: TempDir,
    namespaces: Mutex<Vec<String>>,
}

impl Lab {
    /// A lab for the test `name`, or `None`, said aloud, if this process may not make one.
    pub fn start(name: &str) -> Option<Lab> {
        Lab::start_under(name, &std::env::temp_dir())
    }

    /// A lab whose directory lies in memory (tmpfs), as `/run` does; nothing in it can be executed on some hosts.
    pub fn start_in_memory(name: &str) -> Option<Lab> {
        Lab::start_under(name, Path::new("/dev/shm"))
    }

    fn start_under(name: &str, parent: &Path) -> Option<Lab> {
        let needed = [
            Capability::NetAdmin,
            Capability::NetRaw,
            Capability::SysAdmin,
        ];
        if let Some(missing) = needed.into_iter().find(|&one| !holds(one)) {
            skip(name, &format!("needs {missing:?}"));
            return None;
        }
        if !Path::new("/dev/net/tun").exists() {
            skip(name, "there is no /dev/net/tun");
            return None;
        }
        for tool in ["ip", "ping", "nsenter"] {
            if Command::new(tool).arg("-V").output().is_err() {
                skip(name, &format!("{tool} is missing"));
                return None;
            }
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut directory = tempfile::Builder::new();
        let directory = directory.prefix("windlass-lab-").tempdir_in(parent);
        let lab = Lab {
            prefix: format!("wlt{}-{number}-", std::process::id()),
            directory: directory.expect("a directory"),
            namespaces: Mutex::default(),
        };
        lab.namespace("host");
        Some(lab)
    }

    fn made(&self) -> MutexGuard<'_, Vec<String>> {
        self.namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, which goes with the lab.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The name by which the rest of the system knows a namespace of the lab.
    pub fn name(&self, short: &str) -> String {
        format!("{}{short}", self.prefix)
    }

    /// Makes a namespace, without IPv6 so that nothing speaks unasked, and gives its full name.
    pub fn namespace(&self, short: &str) -> String {
        let name = self.name(short);
        netns::create(&name).unwrap_or_else(|error| panic!("{error}"));
        self.made().push(name.clone());
        self.within(short, || {
            for which in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                let _ = std::fs::write(path, "1");
            }
        });
        self.ip(short, "link set lo up");
        name
    }

    /// Removes a namespace's name, as `ip netns delete` does.
    pub fn remove_namespace(&self, short: &str) {
        let name = self.name(short);
        netns::delete(&name).unwrap_or_else(|error| panic!("{error}"));
        self.made().retain(|one| *one != name);
    }

    /// Runs `work` on a thread inside a namespace; sockets that it makes stay there.
    pub fn within<T: Send>(&self, short: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = NetnsRef::open(&self.name(short)).expect("a namespace");
        netns::within(&namespace, work).expect("entered")
    }

    /// A command that will run inside a namespace.
    pub fn command(&self, short: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(short)));
        command.arg("--").arg(program);
        command
    }

    /// Joins another namespace with `host`'s, by a veth whose ends are both `under0`: an underlay in which `host` is 192.0.2.1, and the other one
    /// has these addresses.
    pub fn underlay(&self, far: &str, addresses: &[&str]) {
        let netns = self.name(far);
        let pair = format!("link add under0 type veth peer name under0 netns {netns}");
        self.ip("host", &pair);
        for (short, addresses) in [("host", &["192.0.2.1"][..]), (far, addresses)] {
            for address in addresses {
                self.ip(short, &format!("addr add {address}/24 dev under0"));
            }
            self.ip(short, "link set under0 up");
        }
    }

    /// Runs `ip` with these words inside a namespace; it must succeed. Gives what it printed.
    pub fn ip(&self, short: &str, words: &str) -> String {
        let done = run(self.command(short, "ip").args(words.split_whitespace()));
        assert_eq!(done.code, 0, "ip {words}: {}", done.err);
        done.out
    }

    /// Whether an address answers to one ping from a namespace within so many seconds.
    pub fn ping(&self, short: &str, to: &str, seconds: u32) -> bool {
        let mut command = self.command(short, "ping");
        command.args(["-n", "-q", "-c", "1", "-W", &seconds.to_string(), to]);
        run(&mut command).code == 0
    }

    /// Sends so many bytes by TCP from one namespace to an address of another; they must come whole.
    pub fn stream(&self, from: &str, (to, address): (&str, &str), bytes: usize) {
        let listener = self.within(to, || TcpListener::bind((address, 0)));
        let listener = listener.expect("a port");
        let to = listener.local_addr().expect("an address");
        let sent: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stream = self.within(from, || TcpStream::connect(to));
                let mut stream = stream.expect("a connection");
                stream.write_all(&sent).expect("sent");
            });
            let (mut stream, _) = uninterrupted(|| listener.accept()).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time");
            let mut got = Vec::new();
            while uninterrupted(|| (&mut stream).take(1 << 20).read_to_end(&mut got))
                .expect("bytes")
                > 0
            {}
            assert!(got == sent, "{} of {}", got.len(), sent.len());
        });
    }

    /// Sends a datagram every millisecond from one namespace to an address of another while `work` is done, and gives how many
    /// did not come.
    pub fn lost_while(&self, from: &str, to: &str, address: &str, work: impl FnOnce()) -> u64 {
        let bind = |short, address: &str| {
            let bound = self.within(short, || UdpSocket::bind((address, 0)));
            bound.expect("an address")
        };
        let (sender, sink) = (bind(from, "0.0.0.0"), bind(to, address));
        sender
            .connect(sink.local_addr().expect("an address"))
            .expect("a route");
        let wait = Duration::from_millis(500);
        sink.set_read_timeout(Some(wait)).expect("a socket");
        until("the first datagram", || {
            let _ = sender.send(&[]);
            uninterrupted(|| sink.recv(&mut [])).is_ok()
        });
        while uninterrupted(|| sink.recv(&mut [])).is_ok() {}
        let is_over = AtomicBool::new(false);
        let (sent, received) = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    sender.send(&[0]).expect("sent");
                    sent += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent
            });
            let receiving = scope.spawn(|| {
                let mut received = 0;
                loop {
                    match sink.recv(&mut [0]) {
                        Ok(_) => received += 1,
                        Err(_) if is_over.load(Ordering::Relaxed) => return received,
                        Err(_) => {}
                    }
                }
            });
            std::thread::sleep(wait);
            // Work that fails ends the datagrams, too: the scope waits for both threads.
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            std::thread::sleep(wait);
            is_over.store(true, Ordering::Relaxed);
            if let Err(failure) = worked {
                std::panic::resume_unwind(failure);
            }
            (
                sending.join().expect("sent"),
                receiving.join().expect("received"),
            )
        });
        assert!(received > 0, "nothing came");
        u64::saturating_sub(sent, received)
    }

    /// A daemon with the number 0 in the namespace "host".
    pub fn daemon(&self) -> Daemon {
        Daemon::start(self, "host", 0)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in self.made().iter() {
            let _ = netns::delete(name);
        }
    }
}

/// Does something as another user, of one group of the same number.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        // Of this thread only.
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_groups(&[]).expect("no groups");
        set_thread_res_gid(group, group, group).expect("a group");
        set_thread_res_uid(user, user, user).expect("a user");
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().expect("done"))
}
