//! The real program: `windlass-broker` in a namespace, at a socket of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::daemon::program;
use crate::lab::{Lab, until};

/// Root's broker; dropping it kills it.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    directory: PathBuf,
}

impl Broker {
    /// Starts one in a namespace of the lab, and waits until it listens.
    pub fn start(lab: &Lab, short: &str) -> Broker {
        let directory = lab.directory().join("broker");
        std::fs::create_dir_all(&directory).expect("a directory");
        let log = File::create(directory.join("log")).expect("a log");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", lab.name(short)))
            .arg("--")
            .arg(program("windlass-broker"))
            .arg("--socket")
            .arg(directory.join("sockets.sock"))
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        let child = command.spawn().expect("windlass-broker");
        let broker = Broker { child, directory };
        until("the broker listens", || broker.socket().exists());
        broker
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("sockets.sock")
    }

    /// A directory for what the test adds.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
