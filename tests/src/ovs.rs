//! Open vSwitch, in user space.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::lab::{Lab, run, skip, until};

/// Open vSwitch in a namespace, with every file in a directory of its own; ended when dropped.
#[derive(Debug)]
pub struct Ovs {
    directory: PathBuf,
    children: Vec<Child>,
}

impl Ovs {
    /// Whether it is here; if not, says that the test `name` is skipped.
    pub fn is_here(name: &str) -> bool {
        let tools = ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl"];
        let is_missing = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
        let missing = tools.into_iter().find(is_missing);
        if let Some(tool) = missing {
            skip(name, &format!("{tool} is missing"));
        }
        missing.is_none()
    }

    /// Starts it in a namespace.
    pub fn start(lab: &Lab, short: &str) -> Ovs {
        let directory = lab.directory().join(short);
        std::fs::create_dir(&directory).expect("a directory");
        let path = |name: &str| directory.join(name).display().to_string();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        let made = run(Command::new("ovsdb-tool").args(["create", &path("conf.db"), schema]));
        assert_eq!(made.code, 0, "{}", made.err);
        let remote = format!("punix:{}", path("db.sock"));
        let start = |program: &str, words: &[&str]| {
            let mut command = lab.command(short, program);
            command
                .args(words)
                .arg(format!("--unixctl={}", path(&format!("{program}.ctl"))));
            command.arg(format!("--log-file={}", path("log")));
            command.env("OVS_RUNDIR", &directory);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}"))
        };
        let mut ovs = Ovs {
            children: vec![start(
                "ovsdb-server",
                &[&format!("--remote={remote}"), &path("conf.db")],
            )],
            directory: directory.clone(),
        };
        until("the database", || Path::new(&path("db.sock")).exists());
        ovs.must("--no-wait init");
        let database = format!("unix:{}", path("db.sock"));
        ovs.children.push(start("ovs-vswitchd", &[&database]));
        ovs
    }

    /// Runs `ovs-vsctl` with these words; it must succeed. Gives what it printed.
    pub fn must(&self, words: &str) -> String {
        let database = format!("--db=unix:{}", self.directory.join("db.sock").display());
        let mut command = Command::new("ovs-vsctl");
        let done = run(command
            .args([&database, "--timeout=20"])
            .args(words.split(' ')));
        assert_eq!(done.code, 0, "{words}: {}", done.err);
        done.out
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
