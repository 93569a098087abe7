//! libvirt's daemon with a machine of its own (type `qemu`: software emulation).
//!
//! # Model
//! `libvirtd` runs in a mount namespace where the directories that it writes are empty and in memory, so that it meets
//! no other one, and in a PID namespace that ends with it and takes its machines along. A shell is the first process
//! there: somebody has to reap what libvirt leaves to it, since libvirt waits until that is gone. `virsh` finds it by the path of
//! its socket.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Console, Image};
use crate::lab::{Lab, Output, run, until_some};

/// What libvirt writes outside of the directories that its configuration names.
const DIRECTORIES: &str =
    "/etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt";
/// The user and the group that libvirt looks up before it reads its configuration; Debian's libvirt-daemon-system makes them. As a
/// group, the fields behind the number are its members: none that there is.
const ACCOUNT: &str = "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin";
/// No accounts, profiles, control groups or helpers but those that are there anyhow.
const QEMU_CONF: &str = r#"user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
remember_owner = 0
stdio_handler = "file"
"#;

/// A running `libvirtd`; it and its machines end when this is dropped.
#[derive(Debug)]
pub struct Libvirt {
    daemon: Child,
    directory: PathBuf,
}

impl Libvirt {
    /// Starts it in the lab's host; it is there when its socket answers.
    ///
    /// # Errors
    /// What is missing on this machine, in words.
    pub fn start(lab: &Lab) -> Result<Libvirt, String> {
        for tool in ["libvirtd", "virsh", "unshare"] {
            if let Err(error) = Command::new(tool).arg("--version").output() {
                return Err(format!("{tool} cannot be run: {error}"));
            }
        }
        let directory = lab.directory().join("libvirt");
        fs::create_dir(&directory).expect("a directory");
        let at = directory.display();
        fs::write(directory.join("qemu.conf"), QEMU_CONF).expect("a file");
        let own = format!("unix_sock_dir = \"{at}\"\nauth_unix_rw = \"none\"\n");
        fs::write(directory.join("libvirtd.conf"), own).expect("a file");
        let script = format!(
            "for d in {DIRECTORIES}; do mkdir -p $d && mount -t tmpfs none $d || exit; done
             for f in passwd group; do
                 cp /etc/$f {at}/$f && echo '{ACCOUNT}' >>{at}/$f && mount --bind {at}/$f /etc/$f || exit
             done
             cp {at}/qemu.conf /etc/libvirt/
             libvirtd --config {at}/libvirtd.conf --pid-file {at}/pid & wait"
        );
        let log = File::create(directory.join("log")).expect("a log");
        let mut command = lab.command("host", "setpriv");
        command
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc", "sh", "-c"])
            .arg(script)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        let mut daemon = command.spawn().map_err(|error| error.to_string())?;
        until_some("libvirtd answers", || {
            if let Some(status) = daemon.try_wait().expect("a child") {
                let said = fs::read_to_string(directory.join("log")).unwrap_or_default();
                panic!("libvirtd ended with {status}: {said}");
            }
            UnixStream::connect(directory.join("libvirt-sock")).ok()
        });
        Ok(Libvirt { daemon, directory })
    }

    /// `virsh` with these words.
    pub fn try_do(&self, words: &[&str]) -> Output {
        let socket = self.directory.join("libvirt-sock");
        let to = format!("qemu:///system?socket={}", socket.display());
        run(Command::new("virsh")
            .args(["--quiet", "--connect", &to])
            .args(words)
            .stdin(Stdio::null()))
    }

    /// `virsh` with these words, which must succeed. Gives what it printed.
    pub fn must(&self, words: &[&str]) -> String {
        let done = self.try_do(words);
        assert_eq!(done.code, 0, "virsh {words:?}: {} {}", done.out, done.err);
        done.out
    }

    /// Defines the machine `name` with two processors and the given elements, and starts it.
    ///
    /// MSI-X is off inside: under emulation QEMU 7.2 ends by itself when vhost-user meets it.
    pub fn start_machine(&self, image: &Image, name: &str, memory: &str, devices: &str) {
        let serial = self.serial(name);
        let (kernel, initramfs) = (image.kernel.display(), image.initramfs.display());
        let kernel_arguments = Image::KERNEL_ARGUMENTS;
        let xml = format!(
            "<domain type='qemu'>
            <name>{name}</name><memory unit='MiB'>256</memory><vcpu>2</vcpu>
            {memory}
            <os><type arch='x86_64' machine='pc'>hvm</type>
              <kernel>{kernel}</kernel><initrd>{initramfs}</initrd><cmdline>{kernel_arguments} pci=nomsi</cmdline></os>
            <features><acpi/></features><cpu mode='maximum'/>
            <devices>
              <serial type='unix'><source mode='bind' path='{}'/></serial>
              {devices}
            </devices></domain>",
            serial.display()
        );
        self.must(&["define", &self.file("domain.xml", &xml)]);
        self.must(&["start", name]);
    }

    /// The console of a machine that runs.
    pub fn console(&self, name: &str) -> Console {
        let serial = self.serial(name);
        let stream = until_some("the machine makes its console", || {
            UnixStream::connect(&serial).ok()
        });
        Console::new(name, stream, &self.directory.join("log"))
    }

    fn serial(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.serial"))
    }

    /// Writes a file that `virsh` is to read, and gives its path.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path: &Path = &self.directory.join(name);
        fs::write(path, content).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
