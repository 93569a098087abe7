//! The Debian package: installed, upgraded beneath a daemon that carries traffic, and purged.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_tests::{Daemon, Lab, program, run, skip, write_program};

/// Makes a package of this version from the programs under test.
fn package(version: &str, to: &Path) -> PathBuf {
    let bin = program("windlassd");
    let target = bin.ancestors().nth(2).expect("a target directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut make = Command::new(root.join("scripts/deb"));
    make.arg(version).arg(to).env("CARGO_TARGET_DIR", target);
    // dpkg-deb(1): nobody downloads it.
    make.env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    let made = run(&mut make);
    assert_eq!(made.code, 0, "{}", made.err);
    PathBuf::from(made.out.trim())
}

/// A root directory with nothing in it but what dpkg needs.
struct Root(PathBuf);

impl Root {
    fn new(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("var/lib/dpkg")).expect("a directory");
        fs::write(path.join("var/lib/dpkg/status"), "").expect("a file");
        Self(path)
    }

    /// Runs dpkg on it. What the package depends on is the host's.
    fn dpkg(&self, words: &[&str], of: &Path) {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.display()));
        dpkg.args(["--force-script-chrootless", "--force-depends"]);
        let done = run(dpkg.args(words).arg(of));
        assert_eq!(done.code, 0, "{words:?}: {}", done.err);
    }

    /// Runs the package's script as it runs where systemd does: systemctl is the test's, and knows one daemon.
    fn configure(&self, lab: &Lab, daemon: u32) {
        let tools = lab.directory().join("tools");
        fs::create_dir_all(&tools).expect("a directory");
        let systemctl = tools.join("systemctl");
        let asked = lab.directory().join("asked");
        let script = format!(
            "#!/bin/sh\n\
             echo \"$*\" >> {}\n\
             [ \"$*\" != 'kill --kill-whom=main --signal=SIGUSR2 windlassd.service' ] || kill -USR2 {daemon}\n",
            asked.display()
        );
        write_program(&systemctl, &script);
        let path = std::env::var("PATH").unwrap_or_default();
        let within = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec \"$0\" configure 0.0.1";
        let done = run(Command::new("unshare")
            .args(["--mount", "sh", "-c", within])
            .arg(self.0.join("var/lib/dpkg/info/windlass.postinst"))
            .env("PATH", format!("{}:{path}", tools.display()))
            .env_remove("DPKG_ROOT"));
        assert_eq!(done.code, 0, "{}", done.err);
        let asked = fs::read_to_string(asked).expect("it was asked");
        assert_eq!(
            asked.lines().collect::<Vec<_>>(),
            [
                "daemon-reload",
                "--quiet is-active windlassd.service",
                "kill --kill-whom=main --signal=SIGUSR2 windlassd.service",
                "try-restart windlass-broker.service"
            ]
        );
    }

    /// Every file but dpkg's own.
    fn files(&self) -> BTreeSet<String> {
        fn walk(at: &Path, root: &Path, found: &mut BTreeSet<String>) {
            for entry in fs::read_dir(at).expect("a directory") {
                let path = entry.expect("an entry").path();
                let name = path
                    .strip_prefix(root)
                    .expect("below")
                    .display()
                    .to_string();
                // The plugins' user stays, as users of removed packages do.
                let accounts = ["passwd", "shadow", "group", "gshadow", ".pwd.lock"];
                let is_account = |file: &str| accounts.iter().any(|a| file.starts_with(a));
                if name.strip_prefix("etc/").is_some_and(is_account)
                    || name.starts_with("var/lib/dpkg")
                {
                    continue;
                }
                if path.is_dir() {
                    walk(&path, root, found);
                } else {
                    found.insert(name);
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(&self.0, &self.0, &mut found);
        found
    }
}

/// The files of a fresh installation, which are where they belong.
fn checked_files(root: &Root) -> BTreeSet<String> {
    let files = root.files();
    for expected in [
        "etc/windlass/windlass.toml",
        "etc/windlass/sockets.conf",
        "usr/bin/windlass",
        "usr/sbin/windlassd",
        "usr/sbin/windlass-broker",
        "usr/lib/cni/windlass-cni",
        "usr/lib/windlass/windlass-lookup-etcd",
        "usr/lib/windlass/libwindlass_sockets.so",
        "usr/lib/windlass/libwindlass_alloc.so",
        "usr/lib/libwindlass.so.1",
        "usr/lib/libwindlass.a",
        "usr/lib/pkgconfig/windlass.pc",
        "usr/include/windlass.h",
        "usr/lib/systemd/system/windlassd.service",
        "usr/share/man/man1/windlass-run.1.gz",
        "usr/share/doc/windlass/copyright",
    ] {
        assert!(files.contains(expected), "{expected} is missing: {files:?}");
    }
    let unit = root.0.join("usr/lib/systemd/system/windlassd.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    assert!(unit.contains("\nExecStart=/usr/sbin/windlassd\n"), "{unit}");
    files
}

/// An upgrade does not touch the daemon that runs; the next one carries on; changed configuration stays until a purge, which
/// leaves nothing.
#[test]
fn installed_upgraded_and_purged() {
    let name = "installed_upgraded_and_purged";
    for tool in ["dpkg-deb", "objdump", "make"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(name, &format!("{tool} is missing"));
        }
    }
    if !program("libwindlass_sockets.so").exists() {
        return skip(name, "the release programs are not built: make build");
    }
    let Some(lab) = Lab::start(name) else { return };
    let root = Root::new(lab.directory().join("root"));
    let old = package("0.0.1", lab.directory());
    root.dpkg(&["--install"], &old);
    let files = checked_files(&root);

    let mut daemon = Daemon::start_program(&lab, "host", 0, root.0.join("usr/sbin/windlassd"));
    daemon.must("bridge create br0");
    for (short, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24")] {
        lab.namespace(short);
        let attach = format!(",address={address}");
        daemon.tap(&lab, short, short, &attach, "");
    }
    assert!(lab.ping("a", "10.0.0.2", 1), "before the upgrade");
    let options = root.0.join("etc/windlass/windlass.toml");
    fs::write(&options, "log-level = \"warn\"\n").expect("the options");

    let new = package("0.0.2", lab.directory());
    let lost = lab.lost_while("a", "b", "10.0.0.2", || {
        root.dpkg(&["--force-confold", "--install"], &new);
        daemon.upgrade_by(|daemon| root.configure(&lab, daemon.pid()));
    });
    assert_eq!(lost, 0, "frames were lost in the upgrade");
    assert_eq!(root.files(), files, "both versions have the same files");
    let kept = fs::read_to_string(&options).expect("the options");
    assert_eq!(kept, "log-level = \"warn\"\n");
    assert_eq!(daemon.terminate(), 0);

    root.dpkg(&["--remove"], Path::new("windlass"));
    assert_eq!(
        root.files(),
        BTreeSet::from([
            "etc/windlass/sockets.conf".to_owned(),
            "etc/windlass/windlass.toml".to_owned()
        ])
    );
    root.dpkg(&["--purge"], Path::new("windlass"));
    assert_eq!(root.files(), BTreeSet::new());
}

/// Debian's checker has nothing to say about the package: what it would say and is meant so stands in the package, with why.
#[test]
fn the_package_is_clean() {
    let name = "the_package_is_clean";
    if Command::new("lintian").arg("--version").output().is_err() {
        return skip(name, "lintian is missing");
    }
    if !program("libwindlass_sockets.so").exists() {
        return skip(name, "the release programs are not built: make build");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let package = package("0.0.1", directory.path());
    let mut lintian = Command::new("lintian");
    let done = run(lintian.args(["--fail-on", "error,warning"]).arg(package));
    assert_eq!((done.code, done.out.trim()), (0, ""), "{}", done.err);
}
