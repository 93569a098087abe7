//! The real programs: `windlassd` in a namespace, `windlass` to speak with it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};
use serde_json::Value;

use crate::lab::{Lab, Output, run, until, until_some};

/// Where the programs are: `WINDLASS_BIN_DIR`, else beside the test program, which is built if need be.
pub fn program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        if let Some(directory) = std::env::var_os("WINDLASS_BIN_DIR") {
            return directory.into();
        }
        // The test program is PROFILE/deps/NAME-HASH.
        let own = std::env::current_exe().expect("a path");
        let profile = own.ancestors().nth(2).expect("a directory").to_owned();
        let is_there = |name: &str| profile.join(name).exists();
        let programs = [
            "windlassd",
            "windlass",
            "windlass-broker",
            "windlass-cni",
            "libwindlass_framed.a",
        ];
        if !programs.into_iter().all(is_there) {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--locked", "-p", "windlassd", "-p", "windlass"]);
            build.args([
                "-p",
                "windlass-broker",
                "-p",
                "windlass-framed",
                "-p",
                "windlass-cni",
            ]);
            if profile.ends_with("release") {
                build.arg("--release");
            }
            build
                .arg("--target-dir")
                .arg(profile.parent().expect("a target directory"));
            build.current_dir(env!("CARGO_MANIFEST_DIR"));
            let done = run(&mut build);
            assert_eq!(done.code, 0, "{}", done.err);
        }
        profile
    });
    directory.join(name)
}

/// How long a daemon may take that is to end, in seconds.
const END_S_MAX: i64 = 30;

/// What `windlass` answered.
pub type Done = Output;

/// A daemon; dropping it kills it. Its objects on the host go with the lab's namespaces.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    /// What an upgrade has put in its place.
    successor: Option<OwnedFd>,
    program: PathBuf,
    namespace: String,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl Daemon {
    /// Starts a daemon in a namespace of the lab, with a directory of its own, and waits until it serves.
    pub fn start(lab: &Lab, short: &str, number: u32) -> Daemon {
        Daemon::start_program(lab, short, number, program("windlassd"))
    }

    /// The same with further arguments.
    pub fn start_with(lab: &Lab, short: &str, number: u32, arguments: &[&str]) -> Daemon {
        let mut daemon = Daemon::prepare(lab, short, number, program("windlassd"));
        daemon.arguments = arguments.iter().map(ToString::to_string).collect();
        daemon.start_again();
        daemon
    }

    /// The same with a daemon that lies elsewhere.
    pub fn start_program(lab: &Lab, short: &str, number: u32, program: PathBuf) -> Daemon {
        let mut daemon = Daemon::prepare(lab, short, number, program);
        daemon.start_again();
        daemon
    }

    fn prepare(lab: &Lab, short: &str, number: u32, program: PathBuf) -> Daemon {
        let directory = lab.directory().join(format!("daemon{number}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        Daemon {
            child: None,
            successor: None,
            program,
            namespace: lab.name(short),
            directory,
            arguments: Vec::new(),
        }
    }

    /// Starts it after it has ended, over what it has left.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.directory.join("log"))
            .expect("a log");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.namespace))
            .arg("--")
            .arg(&self.program)
            .arg("--socket")
            .arg(self.socket())
            .arg("--state-dir")
            .arg(self.directory.join("state"))
            .arg("--runtime-dir")
            .arg(self.directory.join("run"))
            .args(&self.arguments)
            .env_remove("WINDLASS_CONFIG")
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        self.child = Some(command.spawn().expect("windlassd"));
        until("the daemon serves", || {
            self.assert_alive();
            self.try_do("bridge show").code == 0
        });
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// The directory of its sockets.
    pub fn runtime_dir(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// A directory for what the test adds.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Fails the test if it has ended.
    pub fn assert_alive(&mut self) {
        let child = self.child.as_mut().expect("it was started");
        if let Some(status) = child.try_wait().expect("a child") {
            panic!("windlassd ended with {status}: {}", self.log());
        }
    }

    /// Has it start its successor from its program.
    pub fn signal_upgrade(&self) {
        match (&self.successor, &self.child) {
            (Some(successor), _) => pidfd_send_signal(successor, Signal::USR2),
            (None, Some(child)) => kill_process(Pid::from_child(child), Signal::USR2),
            (None, None) => panic!("it runs"),
        }
        .expect("it runs");
    }

    /// The same, and waits until it has ended.
    pub fn upgrade(&mut self) {
        self.upgrade_by(Daemon::signal_upgrade);
    }

    /// Has something upgrade it, and waits until it has ended.
    pub fn upgrade_by(&mut self, upgrade: impl FnOnce(&Daemon)) {
        let before = self.pid();
        upgrade(self);
        let status = self.wait_for_end();
        assert!(
            status.is_none_or(|status| status.success()),
            "{}",
            self.log()
        );
        assert_ne!(self.find_successor(), before);
    }

    /// Waits until it has ended, by itself or by the test. Gives how, if it is no other process's child.
    pub fn wait_for_end(&mut self) -> Option<ExitStatus> {
        let process = match (&self.successor, &self.child) {
            (Some(successor), _) => successor.try_clone().expect("a descriptor"),
            (None, Some(child)) => {
                pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a child")
            }
            (None, None) => panic!("it runs"),
        };
        let wait = Timespec {
            tv_sec: END_S_MAX,
            tv_nsec: 0,
        };
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let ended = poll(&mut ended, Some(&wait)).expect("a process");
        assert_eq!(ended, 1, "it has not ended: {}", self.log());
        self.successor = None;
        let child = self.child.take();
        child.map(|mut child| child.wait().expect("a child"))
    }

    /// The same, and waits until its successor serves.
    pub fn follow(&mut self) {
        self.wait_for_end();
        until("its successor serves", || {
            self.try_do("bridge show").code == 0
        });
        self.find_successor();
    }

    /// The process id of the daemon that answers.
    pub fn pid(&self) -> u32 {
        let mut socket = UnixStream::connect(self.socket()).expect("it serves");
        let ask = b"GET /v1/daemon HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
        socket.write_all(ask).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        let view: Value = serde_json::from_str(body).expect("JSON");
        let pid = view["pid"].as_u64();
        u32::try_from(pid.expect("a process id")).expect("a process id")
    }

    fn find_successor(&mut self) -> u32 {
        let number = self.pid();
        let pid = Pid::from_raw(number as i32).expect("a process id");
        self.successor = Some(pidfd_open(pid, PidfdFlags::empty()).expect("it runs"));
        number
    }

    /// Kills it: it can do nothing more.
    pub fn kill(&mut self) {
        if let Some(successor) = self.successor.take() {
            let _ = pidfd_send_signal(&successor, Signal::KILL);
            let mut ended = [PollFd::new(&successor, PollFlags::IN)];
            let _ = poll(&mut ended, None);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Does something while the daemon is stopped, all its threads.
    pub fn while_stopped<T>(&self, work: impl FnOnce() -> T) -> T {
        let child = self.child.as_ref().expect("it runs");
        let pid = Pid::from_child(child);
        kill_process(pid, Signal::STOP).expect("a child");
        let stopped = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED);
        assert!(stopped.expect("a child").is_some_and(|s| s.stopped()));
        let done = work();
        kill_process(pid, Signal::CONT).expect("goes on");
        done
    }

    /// Ends it with SIGTERM, and gives its exit code.
    pub fn terminate(&mut self) -> i32 {
        if let Some(successor) = self.successor.take() {
            pidfd_send_signal(&successor, Signal::TERM).expect("it runs");
            let mut ended = [PollFd::new(&successor, PollFlags::IN)];
            poll(&mut ended, None).expect("it ends");
            // It is another process's child.
            return 0;
        }
        let mut child = self.child.take().expect("it runs");
        let id = Pid::from_child(&child);
        kill_process(id, Signal::TERM).expect("a child");
        child.wait().expect("a child").code().unwrap_or(-1)
    }

    /// A command of `windlass` for this daemon.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program("windlass"));
        command.arg("--socket").arg(self.socket());
        command
    }

    /// Runs `windlass` with these words, which contain no blanks themselves.
    pub fn try_do(&self, words: &str) -> Done {
        run(self.command().args(words.split_whitespace()))
    }

    /// Runs `windlass` with these words; it must succeed. Gives what it printed.
    pub fn must(&self, words: &str) -> String {
        let done = self.try_do(words);
        assert_eq!(
            done.code,
            0,
            "windlass {words}: {}\n{}",
            done.err,
            self.log()
        );
        done.out
    }

    /// Runs `windlass` with these words; it must fail with this code. Gives what it said.
    pub fn refuses(&self, code: i32, words: &str) -> String {
        let done = self.try_do(words);
        assert_eq!(
            done.code, code,
            "windlass {words}: {}{}",
            done.out, done.err
        );
        done.err
    }

    /// Runs `windlass` with these words and `--json`; it must succeed.
    pub fn json(&self, words: &str) -> Value {
        let text = self.must(&format!("{words} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
    }

    /// A VNIC or an uplink as `show` gives it.
    pub fn show(&self, kind: &str, name: &str) -> Value {
        self.json(&format!("{kind} show {name}"))[0].take()
    }

    /// Waits until a VNIC is in this state, and gives the reason that it tells.
    pub fn wait_for_state(&self, kind: &str, name: &str, state: &str) -> String {
        until_some(&format!("{kind} {name} is {state}"), || {
            let view = self.show(kind, name);
            let reason = view["reason"].as_str().unwrap_or_default();
            (view["state"] == state).then(|| reason.to_owned())
        })
    }

    /// A member's counters: `rx_frames` and so on, and `drops` by reason.
    pub fn counters(&self, member: &str) -> Value {
        self.json(&format!("stat {member}"))[0].take()
    }

    /// Frames of a member dropped for this reason.
    pub fn drops(&self, member: &str, reason: &str) -> u64 {
        self.counters(member)["drops"][reason].as_u64().unwrap_or(0)
    }

    /// Makes a TAP VNIC named `name` in the namespace `short`, with the interface `eth0` and these further
    /// words, and waits until it is up.
    pub fn tap(&self, lab: &Lab, name: &str, short: &str, attach: &str, words: &str) {
        let netns = lab.name(short);
        self.must(&format!(
            "vnic create {name} --bridge br0 --attach tap,name=eth0,netns={netns}{attach} {words}"
        ));
        self.wait_for_state("vnic", name, "up");
    }

    /// Whether the bridge's table has this address at this member, in any VLAN.
    pub fn knows(&self, address: &str, member: &str) -> bool {
        let entries = self.json("fdb show br0");
        let entries = entries.as_array().expect("a list");
        entries
            .iter()
            .any(|entry| entry["mac"] == address && entry["member"] == member)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
