//! Virtual machines: QEMU in software emulation, driven over their serial console.
//!
//! # Model
//! A guest boots a kernel and an initramfs of ours ([`Image`]) in a few seconds. Its console is a UNIX socket; `/init`
//! reads a line from it, runs it as a shell does and answers `@done CODE`. QEMU's own control socket serves migration.
//!
//! # Ownership and lifetime
//! A [`Guest`] owns its QEMU and kills it when dropped; if the thread that started it goes first, the kernel kills it.
//!
//! # Failure modes
//! Whatever is awaited is awaited for a bounded time; then the test fails with all that the console said.

mod image;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use image::Image;

use crate::daemon::Daemon;
use crate::lab::{Output, run, until_some};

/// How long a guest may take to boot, and a command in it to end: emulated, on a machine that others use too.
const BOOT: Duration = Duration::from_secs(180);
const COMMAND: Duration = Duration::from_secs(180);
/// How long a command in it may fail before it succeeds.
const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "@ready";
const DONE: &str = "@done ";
/// What each machine has; more than it needs to hold the files of its tests twice. No multiple of 256 KiB: of memory
/// that is one, QEMU before 9.0 loses what an emulated processor writes while a migration copies it (its commit
/// 03bfc2188f06).
const MEMORY: &str = "262152K";

/// Whether QEMU can be run, and if not, why.
///
/// # Errors
/// The reason, in words.
pub fn check_qemu() -> Result<(), String> {
    for tool in ["qemu-system-x86_64", "setpriv"] {
        let mut command = Command::new(tool);
        if let Err(error) = command.arg("--version").output() {
            return Err(format!("{tool} cannot be run: {error}"));
        }
    }
    Ok(())
}

/// A virtual machine.
#[derive(Debug)]
pub struct Guest {
    name: String,
    qemu: Child,
    console: UnixStream,
    /// What the console said and nobody has read yet.
    heard: String,
    control: PathBuf,
    log: PathBuf,
}

impl Guest {
    /// Starts a machine attached to the VNIC `name` with what `vnic qemu-args` prints. `device` is added to the network
    /// device (as `,packed=on`), `more` are QEMU's further arguments.
    pub fn start(daemon: &Daemon, image: &Image, name: &str, device: &str, more: &[&str]) -> Guest {
        let directory = daemon.directory();
        let [serial, control, log] =
            ["serial", "control", "log"].map(|end| directory.join(format!("{name}.{end}")));
        for socket in [&serial, &control] {
            let _ = std::fs::remove_file(socket);
        }
        let told = daemon.must(&format!("vnic qemu-args {name} --memory {MEMORY}"));
        let written = File::options()
            .append(true)
            .create(true)
            .open(&log)
            .expect("a log");
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                "qemu-system-x86_64",
                "-accel",
                "tcg",
                "-cpu",
                "max",
            ])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", "console=ttyS0 quiet panic=1 net.ifnames=0"])
            .args(["-serial", &listen(&serial), "-qmp", &listen(&control)])
            // An IOMMU has to be there before what is behind it.
            .args(more)
            .args(told.replace("\\\n", " ").split_whitespace().map(|word| {
                // Under emulation QEMU 7.2 ends by itself when vhost-user meets MSI-X.
                let is_device = word.starts_with("virtio-net-pci");
                let more = if is_device {
                    format!(",vectors=0{device}")
                } else {
                    String::new()
                };
                format!("{word}{more}")
            }))
            .stdin(Stdio::null())
            .stdout(written.try_clone().expect("a log"))
            .stderr(written);
        let mut qemu = command.spawn().expect("setpriv");
        let console = until_some("QEMU makes its console", || {
            if let Some(status) = qemu.try_wait().expect("a child") {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("QEMU ended with {status}: {said}");
            }
            UnixStream::connect(&serial).ok()
        });
        Guest {
            name: name.into(),
            qemu,
            console,
            heard: String::new(),
            control,
            log,
        }
    }

    /// Its VNIC.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it has booted.
    pub fn ready(&mut self) {
        self.await_line(READY, BOOT);
    }

    /// Boots it again, from inside.
    pub fn reboot(&mut self) {
        self.send("reboot -f");
        self.ready();
    }

    /// Runs a line in the guest's shell.
    pub fn run(&mut self, line: &str) -> Output {
        self.send(line);
        let (out, end) = self.await_line(DONE, COMMAND);
        let code = end.trim().parse().expect("an exit code");
        Output {
            code,
            out,
            err: String::new(),
        }
    }

    /// Runs a line in the guest's shell; it must succeed. Gives what it printed.
    pub fn must(&mut self, line: &str) -> String {
        let done = self.run(line);
        assert_eq!(done.code, 0, "{}: {line}: {}", self.name, done.out);
        done.out
    }

    /// Runs a line in the guest's shell again and again until it succeeds; panics if that takes too long.
    pub fn until(&mut self, line: &str) {
        let begun = Instant::now();
        loop {
            let done = self.run(line);
            if done.code == 0 {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{}: not in {PATIENCE:?}: {line}: {}",
                self.name,
                done.out
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Gives QEMU a command of its control protocol (QMP), and gives its answer.
    pub fn control(&mut self, command: &str, arguments: Value) -> Value {
        let stream = UnixStream::connect(&self.control).expect("QEMU's control socket");
        stream.set_read_timeout(Some(COMMAND)).expect("a timeout");
        let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
        let mut answer = Value::Null;
        for message in [
            json!({"execute": "qmp_capabilities"}),
            json!({"execute": command, "arguments": arguments}),
        ] {
            (&stream)
                .write_all(format!("{message}\n").as_bytes())
                .expect("QEMU reads");
            answer = loop {
                let line = lines.next().expect("an answer").expect("an answer");
                let value: Value = serde_json::from_str(&line).expect("JSON");
                assert!(value.get("error").is_none(), "{command}: {value}");
                if let Some(answer) = value.get("return") {
                    break answer.clone();
                }
            };
        }
        answer
    }

    /// Whether its QEMU still runs.
    pub fn is_alive(&mut self) -> bool {
        self.qemu.try_wait().expect("a child").is_none()
    }

    /// Kills its QEMU: it can do nothing more.
    pub fn kill(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    fn send(&mut self, line: &str) {
        self.console
            .write_all(format!("{line}\n").as_bytes())
            .expect("the console");
    }

    /// What the console says before a line that begins with `mark`, and the rest of that line.
    fn await_line(&mut self, mark: &str, patience: Duration) -> (String, String) {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(at) = self.heard.find(mark)
                && let Some(length) = self.heard[at..].find('\n')
            {
                let before = self.heard[..at].replace('\r', "");
                let rest = self.heard[at + mark.len()..at + length].to_owned();
                self.heard.drain(..=at + length);
                return (before, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let (name, heard) = (&self.name, &self.heard);
            assert!(
                !left.is_zero(),
                "{name}: no {mark} in {patience:?}: {heard}"
            );
            self.console
                .set_read_timeout(Some(left))
                .expect("a timeout");
            let mut piece = [0; 4096];
            match self.console.read(&mut piece) {
                Ok(0) => {
                    let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                    panic!("{}: its QEMU ended: {} {log}", self.name, self.heard);
                }
                Ok(length) => self.heard += &String::from_utf8_lossy(&piece[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{}: console: {error}", self.name),
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listen(path: &Path) -> String {
    format!("unix:{},server=on,wait=off", path.display())
}

/// A DHCP server (dnsmasq) for an interface of a namespace; killed when dropped.
#[derive(Debug)]
pub struct Dhcp(Child);

impl Dhcp {
    /// Starts it: `range` is the first and the last address and the mask, with commas between them.
    ///
    /// # Errors
    /// Why dnsmasq cannot be run, in words.
    pub fn start(
        lab: &crate::Lab,
        short: &str,
        interface: &str,
        range: &str,
    ) -> Result<Dhcp, String> {
        if run(Command::new("sh").args(["-c", "command -v dnsmasq"])).code != 0 {
            return Err("dnsmasq is missing".into());
        }
        let log = File::create(lab.directory().join("dnsmasq.log")).expect("a log");
        let leases = lab.directory().join("leases");
        let mut command = lab.command(short, "dnsmasq");
        command
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--port=0",
                "--user=root",
                "--group=root",
            ])
            .args([
                "--bind-interfaces",
                "--dhcp-authoritative",
                "--no-ping",
                "--log-facility=-",
            ])
            .arg(format!(
                "--pid-file={}",
                lab.directory().join("dnsmasq.pid").display()
            ))
            .arg(format!("--interface={interface}"))
            .arg(format!("--dhcp-range={range},1h"))
            .arg(format!("--dhcp-leasefile={}", leases.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        Ok(Dhcp(command.spawn().map_err(|error| error.to_string())?))
    }
}

impl Drop for Dhcp {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
