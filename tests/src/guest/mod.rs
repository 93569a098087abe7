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

mod console;
mod image;
mod libvirt;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

pub use console::Console;
pub use image::Image;
pub use libvirt::Libvirt;

use crate::daemon::Daemon;
use crate::lab::{run, until_some};

/// How long a command of QEMU's control protocol may take: emulated, on a machine that others use too.
const COMMAND: Duration = Duration::from_secs(180);
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
    qemu: Child,
    console: Console,
    control: PathBuf,
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
            .args(["-append", Image::KERNEL_ARGUMENTS])
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
            qemu,
            console: Console::new(name, console, &log),
            control,
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
}

impl Deref for Guest {
    type Target = Console;

    fn deref(&self) -> &Console {
        &self.console
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Console {
        &mut self.console
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
