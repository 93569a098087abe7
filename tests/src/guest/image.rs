//! What a guest boots: Debian's kernel as it is, and an initramfs made here of the host's own programs.
//!
//! The initramfs is an archive in the "newc" form (the kernel's `Documentation/driver-api/early-userspace/
//! buffer-format.rst`): busybox, iperf3 and ethtool with their libraries, the modules of virtio-net, and an `/init` that
//! runs the lines it is given on the serial port.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::run;

/// Where a directory with `boot/vmlinuz-*` and `lib/modules/*` may be named.
const DIRECTORY_VARIABLE: &str = "WINDLASS_GUEST_DIR";
/// Programs that every guest has.
const PROGRAMS: [&str; 3] = ["busybox", "iperf3", "ethtool"];
/// Modules that make a virtio network device, without those that they need.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
/// `S_IFDIR | 0755`, `S_IFREG | 0755`.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// The first program. It answers each line with what that printed and its exit code: see [`super::console::Console::run`].
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module.ko; done
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo -icrnl -onlcr
ip link set lo up
echo @ready
while IFS= read -r line; do
    (eval \"$line\") </dev/null
    echo \"@done $?\"
done
";

/// What `udhcpc` runs when it has an address.
const LEASE: &str = "#!/bin/sh
[ \"$1\" = bound ] && ip addr add $ip/$mask dev $interface
";

/// A kernel and an initramfs, ready to boot.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initramfs, in the directory of the lab.
    pub initramfs: PathBuf,
}

impl Image {
    /// What the kernel is told, whoever starts the machine. Its test whether the timer ticks fails where the emulator gets no processor.
    pub const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=1 net.ifnames=0 no_timer_check";

    /// Makes an initramfs in `directory` for the newest kernel at hand.
    ///
    /// # Errors
    /// What is missing on this machine, in words.
    pub fn make(directory: &Path) -> Result<Image, String> {
        let (root, release) = find_kernel()?;
        let mut archive = Archive::default();
        archive.add("init", FILE, INIT.as_bytes());
        archive.add("lease", FILE, LEASE.as_bytes());
        for name in ["dev", "proc", "sys", "tmp"] {
            archive.add(name, DIRECTORY, &[]);
        }
        for program in PROGRAMS {
            let path = find_program(program)?;
            archive.file(&format!("bin/{program}"), &path)?;
            for library in libraries(&path) {
                archive.file(library.trim_start_matches('/'), Path::new(&library))?;
            }
        }
        let tree = root.join("lib/modules").join(&release);
        let mut order = Vec::new();
        for module in MODULES {
            archive.module(&tree, module, &mut order)?;
        }
        archive.add("modules/order", FILE, order.join("\n").as_bytes());
        let initramfs = directory.join("initramfs");
        fs::write(&initramfs, archive.end()).map_err(|error| error.to_string())?;
        Ok(Image {
            kernel: root.join("boot").join(format!("vmlinuz-{release}")),
            initramfs,
        })
    }
}

/// The directory and the release of a kernel whose modules are there too.
fn find_kernel() -> Result<(PathBuf, String), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut places: Vec<PathBuf> = std::env::var_os(DIRECTORY_VARIABLE)
        .map(PathBuf::from)
        .into_iter()
        .collect();
    // Where scripts/need has put one: TARGET/guest, where the test program is TARGET/PROFILE/deps/NAME.
    places.extend(own.ancestors().nth(3).map(|target| target.join("guest")));
    places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest"));
    places.push("/".into());
    for place in places {
        let Ok(entries) = fs::read_dir(place.join("boot")) else {
            continue;
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let releases = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
        let usable = |release: &String| place.join("lib/modules").join(release).is_dir();
        if let Some(release) = releases.filter(usable).max() {
            return Ok((place, release));
        }
    }
    Err("no kernel for guests: scripts/need test fetches one".into())
}

fn find_program(name: &str) -> Result<PathBuf, String> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"]
        .into_iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| format!("{name} is missing"))
}

/// The libraries of a program and its loader, as absolute paths; a static program has none.
fn libraries(program: &Path) -> BTreeSet<String> {
    let told = run(Command::new("ldd").arg(program)).out;
    let words = told.split_whitespace();
    words
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(str::to_owned)
        .collect()
}

/// The file of a module, anywhere in the tree of its kernel; modules may be named with either dash.
fn find_module(tree: &Path, name: &str) -> Option<PathBuf> {
    let mut waiting = vec![tree.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).ok()?.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ko")
                && path
                    .file_stem()
                    .is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name)
            {
                return Some(path);
            }
        }
    }
    None
}

/// Whether the kernel has this module built in.
fn is_built_in(tree: &Path, name: &str) -> bool {
    let list = fs::read_to_string(tree.join("modules.builtin")).unwrap_or_default();
    let end = format!("/{name}.ko");
    list.lines()
        .any(|line| line.replace('-', "_").ends_with(&end))
}

/// What a module says that it needs: the entry `depends` of its section `.modinfo`.
fn needed_by(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let rest = &module[at + key.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&rest[..end]);
    names
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// An archive in the making.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds an entry, once, and the directories on its way.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.add(parent, DIRECTORY, &[]);
        }
        if self.names.insert(name.to_owned()) {
            self.entry(name, mode, content);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = u32::try_from(self.names.len()).expect("few entries");
        let length = u32::try_from(content.len()).expect("small files");
        let name_length = u32::try_from(name.len() + 1).expect("short names");
        // Inode, mode, user, group, links, time, size, device (2), special device (2), name, check.
        let fields = [number, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn file(&mut self, name: &str, source: &Path) -> Result<(), String> {
        let content = fs::read(source).map_err(|error| format!("{}: {error}", source.display()))?;
        self.add(name, FILE, &content);
        Ok(())
    }

    /// Adds a module after those that it needs, and notes the order.
    fn module(&mut self, tree: &Path, name: &str, order: &mut Vec<String>) -> Result<(), String> {
        if order.iter().any(|known| known == name) || is_built_in(tree, name) {
            return Ok(());
        }
        let Some(path) = find_module(tree, name) else {
            return Err(format!("the guests' kernel has no module {name}.ko"));
        };
        let content = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for needed in needed_by(&content) {
            self.module(tree, &needed, order)?;
        }
        order.push(name.to_owned());
        self.add(&format!("modules/{name}.ko"), FILE, &content);
        Ok(())
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
