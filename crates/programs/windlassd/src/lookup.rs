//! Where the endpoints of overlays are: files and plugins, asked by one thread of their own.
//!
//! # Purpose
//! An overlay needs to know which host has which address. Files and plugins tell; this thread keeps what they told, and tells its
//! differences to those who forward.
//!
//! # Where it sits
//! ```text
//!  file in a directory --inotify--> reader (a thread for each read) --+
//!                                                                     +--> windlass-lookup --Told--> the ports thread
//!  plugin (a process) <--lines, ping--> sessions ---------------------+
//!                                          ^ start, set, stop, look up, announce
//! ```
//!
//! # Model
//! - [`Lookups`]: what others ask of the thread. No call waits; the answer comes as [`Started`] or [`Told`].
//! - `turns`: the thread. One turn takes what is ready, and tells what has changed since.
//! - `overlay`: what is known for one overlay, and told.
//! - `session`, `plugins`: a plugin's process or connection; what it is told, and what is believed of what it says.
//! - `file`: when a file is read, by whom, and what of it is believed.
//!
//! # Failure modes
//! A source that is gone, hangs or lies takes nothing away: the table stays as it was, and the overlay is degraded, in a
//! sentence. A file is opened and read by a thread of its own, so that a file system that does not answer keeps nobody else.
//!
//! # Limits
//! Those of [`windlass_lookup`] for each overlay.

mod claims;
mod file;
mod overlay;
mod plugins;
mod session;
mod turns;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use windlass_api::Name;
use windlass_lookup::protocol::{self, EndpointState, HostState};
use windlass_lookup::table::Changes;
use windlass_sys::eventfd;
use windlass_wire::MacAddr;

/// Where an overlay looks its endpoints up.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupConf {
    /// The overlay.
    pub overlay: Name,
    /// Its VNIs, each with its VLAN; VLAN 0 where the bridge does not filter.
    pub vnis: Vec<(u16, u32)>,
    /// Who knows.
    pub kind: LookupKind,
}

impl LookupConf {
    /// Its plugin, if it has one.
    fn plugin(&self) -> Option<&PluginFrom> {
        match &self.kind {
            LookupKind::Files { .. } => None,
            LookupKind::Plugin { from, .. } => Some(from),
        }
    }
}

/// Who knows where an overlay's endpoints are.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupKind {
    /// A file ([`windlass_lookup::files`]). Its endpoints are in each VNI of the overlay.
    Files {
        /// Its absolute path.
        config: PathBuf,
    },
    /// A process that speaks [`windlass_lookup::protocol`].
    Plugin {
        /// How it comes.
        from: PluginFrom,
        /// Its properties, by name.
        properties: BTreeMap<String, Value>,
    },
}

/// How a plugin comes. Overlays of the same value share one process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginFrom {
    /// Started: an absolute path, and arguments.
    Command(Vec<String>),
    /// It connects to the daemon's socket at this path.
    Socket(PathBuf),
}

/// Whose processes the plugins are that the daemon starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginUser {
    /// The daemon's own user, without its capabilities.
    Own,
    /// This user and group.
    Other {
        /// The user's id.
        uid: u32,
        /// The group's id.
        gid: u32,
    },
    /// The user that they need is not there: no plugin is started.
    Missing,
}

/// How plugins are run, and how long they are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Whose processes they are.
    pub user: PluginUser,
    /// How long after an answer the next sign of life is asked for.
    pub ping: Duration,
    /// How long a plugin may take for its first word, and for an answer.
    pub answer_max: Duration,
    /// After how long a plugin that ends again and again is started again at most. One that lived for so long is started
    /// again at once.
    pub restart_max: Duration,
}

impl Pace {
    /// What a daemon has: 10 s, 10 s, 30 s.
    #[must_use]
    pub fn of(user: PluginUser) -> Self {
        Self {
            user,
            ping: Duration::from_secs(10),
            answer_max: Duration::from_secs(10),
            restart_max: Duration::from_secs(30),
        }
    }
}

/// The user of plugins, where the daemon is root's.
pub const PLUGIN_USER: &str = "windlass-lookup";

impl PluginUser {
    /// [`PLUGIN_USER`] of `/etc/passwd` (passwd(5)) for root's daemon; else the daemon's own.
    #[must_use]
    pub fn find() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::Own;
        }
        Self::named(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn named(passwd: &str) -> Self {
        let of_line = |line: &str| {
            let mut fields = line
                .strip_prefix(PLUGIN_USER)?
                .strip_prefix(':')?
                .split(':');
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            // As root it could do what it is started without.
            (uid != 0).then_some(Self::Other { uid, gid })
        };
        passwd.lines().find_map(of_line).unwrap_or(Self::Missing)
    }
}

/// What is told of an overlay.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// The overlay's lookup has begun: nothing that was told of one of this name before holds any more.
    Begun,
    /// Endpoints that are new, changed or gone since the last time. A whole sync is told as its difference, at most
    /// [`CHANGES_MAX`] at a time.
    Entries {
        /// The VNI.
        vni: u32,
        /// The endpoints.
        changes: Changes,
    },
    /// All hosts that get what is for everybody in a VNI.
    Flood {
        /// The VNI.
        vni: u32,
        /// The hosts.
        targets: Vec<SocketAddr>,
    },
    /// A host of the registry.
    Host {
        /// Its name.
        host: String,
        /// Its addresses.
        targets: Vec<SocketAddr>,
        /// How it is.
        state: HostState,
    },
    /// What is known may be old or incomplete; why, in a sentence. Said again with another sentence if the reason changes.
    Degraded(String),
    /// No longer.
    Restored,
    /// [`Started`] has the outcome of a start or a change.
    Spoken,
    /// The answer to [`Lookups::lookup`]. There is none if the plugin ends before.
    Answer {
        /// The number of the question.
        id: u64,
        /// What the plugin knows.
        answer: Answer,
    },
    /// An endpoint that was announced is this host's.
    Owned {
        /// The VNI.
        vni: u32,
        /// The endpoint.
        mac: MacAddr,
        /// The generation of this ownership.
        generation: u64,
    },
    /// An endpoint that was announced is another host's.
    Refused {
        /// The VNI.
        vni: u32,
        /// The endpoint.
        mac: MacAddr,
        /// Whose it is.
        by: String,
    },
}

/// Changes of one [`Told::Entries`].
pub const CHANGES_MAX: usize = 4_096;

/// What is asked of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Which host has a MAC address?
    Target(MacAddr),
    /// Which MAC address has an IP address (ARP, neighbour discovery)?
    Mac(IpAddr),
    /// Which MAC address is the DHCP server of a client?
    Dhcp(MacAddr),
}

/// What a plugin knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The host, and how long that holds.
    Target(SocketAddr, Duration),
    /// The MAC address.
    Mac(MacAddr),
    /// There is none.
    Drop,
}

/// An endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its VNI.
    pub vni: u32,
    /// Its address.
    pub mac: MacAddr,
    /// Its IP addresses.
    pub ips: Vec<IpAddr>,
    /// Whether it is live.
    pub state: EndpointState,
}

/// The answer to [`Lookups::claim`]: addresses, or why there are none, in a sentence.
pub type Claimed = Result<(MacAddr, Vec<IpAddr>), String>;

/// Takes the answer to [`Lookups::claim`]. It is not called if the thread ends before.
pub type Answered = Box<dyn FnOnce(Claimed) + Send>;

/// Why an overlay cannot be looked up in: a sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StartError(pub String);

impl StartError {
    /// Nothing came in time.
    #[must_use]
    pub fn late() -> Self {
        Self("its lookup plugin does not answer".to_owned())
    }
}

/// The answer to [`Lookups::start`], [`Lookups::set`] or [`Lookups::try_set`].
#[derive(Debug)]
pub struct Started(Receiver<Result<(), StartError>>);

impl Started {
    /// Waits for the first whole table, or the plugin's word.
    ///
    /// # Errors
    /// What is wrong, or that nothing came in time. The overlay stays as it is, degraded: [`Lookups::stop`] ends it.
    pub fn wait(self, time: Duration) -> Result<(), StartError> {
        self.wait_for(time)
            .unwrap_or_else(|| Err(StartError::late()))
    }

    /// The same; `None` if nothing came in this time and may come yet.
    pub fn wait_for(&self, time: Duration) -> Option<Result<(), StartError>> {
        match self.0.recv_timeout(time) {
            Ok(how) => Some(how),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(StartError::late())),
        }
    }
}

/// What the thread is asked to do.
enum Ask {
    Start(LookupConf, Sender<Result<(), StartError>>),
    Set(LookupConf, Sender<Result<(), StartError>>),
    Try(LookupConf, Sender<Result<(), StartError>>),
    Stop(Name),
    Reload(Name),
    Lookup {
        overlay: Name,
        id: u64,
        vni: u32,
        key: Key,
    },
    Announce(Name, Endpoint),
    Retire(Name, u32, MacAddr),
    Claim(Name, protocol::Claim, Answered),
    Release(Name, u32, String),
    Forget(Name, String),
    Resync(Name),
    End,
}

/// The look-up thread. It ends when this is dropped, and its plugins with it.
#[derive(Debug)]
pub struct Lookups {
    asks: Sender<Ask>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Lookups {
    /// Starts the thread. Plugins are run as `pace` says. `tell` is called on it, and keeps every overlay's lookup
    /// waiting while it waits itself.
    ///
    /// # Errors
    /// If there is no thread or no descriptor for it.
    pub fn new(pace: Pace, tell: impl Fn(&Name, Told) + Send + 'static) -> io::Result<Self> {
        let wake = Arc::new(eventfd::create()?);
        let (asks, asked) = mpsc::channel();
        let turns = turns::Turns::create(pace, Box::new(tell), asked, Arc::clone(&wake))?;
        let thread = std::thread::Builder::new().name("lookup".into());
        Ok(Self {
            asks,
            wake,
            thread: Some(thread.spawn(move || turns.run())?),
        })
    }

    /// Begins to look up for an overlay. An overlay of this name that is there already is stopped first.
    pub fn start(&self, conf: LookupConf) -> Started {
        let (to, answer) = mpsc::channel();
        self.ask(Ask::Start(conf, to));
        Started(answer)
    }

    /// Tries a change of VNIs, path or properties of an overlay. Another file or another [`PluginFrom`] is tried beside the one that is there, which
    /// goes on until the new one has taken the overlay, or else. What is known stays until the new one has brought its own.
    ///
    /// [`Lookups::set`] ends it, also after an error.
    pub fn try_set(&self, conf: LookupConf) -> Started {
        let (to, answer) = mpsc::channel();
        self.ask(Ask::Try(conf, to));
        Started(answer)
    }

    /// The same, of what is right: an overlay whose new source does not take it is degraded, and has no other one. An overlay that is
    /// so already goes on, without an outcome.
    pub fn set(&self, conf: LookupConf) -> Started {
        let (to, answer) = mpsc::channel();
        self.ask(Ask::Set(conf, to));
        Started(answer)
    }

    /// Ends an overlay's lookup. Nothing more is told of it, once what is being told now has been.
    pub fn stop(&self, overlay: &Name) {
        self.ask(Ask::Stop(overlay.clone()));
    }

    /// Reads an overlay's file again, whether or not it looks changed.
    pub fn reload(&self, overlay: &Name) {
        self.ask(Ask::Reload(overlay.clone()));
    }

    /// Asks a plugin; `id` comes back with the answer. Of an overlay whose plugin is not there, nothing is answered.
    pub fn lookup(&self, overlay: &Name, id: u64, vni: u32, key: Key) {
        let overlay = overlay.clone();
        self.ask(Ask::Lookup {
            overlay,
            id,
            vni,
            key,
        });
    }

    /// Tells the registry of an endpoint of this host: now, and to each later session of the plugin until it is retired.
    pub fn announce(&self, overlay: &Name, endpoint: Endpoint) {
        self.ask(Ask::Announce(overlay.clone(), endpoint));
    }

    /// Tells the registry that this host has an endpoint no more.
    pub fn retire(&self, overlay: &Name, vni: u32, mac: MacAddr) {
        self.ask(Ask::Retire(overlay.clone(), vni, mac));
    }

    /// Has the registry give addresses to an endpoint that is to be made. Without a plugin that serves the overlay, the answer comes
    /// at once.
    pub fn claim(&self, overlay: &Name, claim: protocol::Claim, answer: Answered) {
        self.ask(Ask::Claim(overlay.clone(), claim, answer));
    }

    /// Gives addresses back that were claimed, and for which no endpoint is made.
    pub fn release(&self, overlay: &Name, vni: u32, owner: String) {
        self.ask(Ask::Release(overlay.clone(), vni, owner));
    }

    /// Has the registry drop what a host has announced.
    pub fn forget(&self, overlay: &Name, host: String) {
        self.ask(Ask::Forget(overlay.clone(), host));
    }

    /// Has the plugin take the registry as it is now, though it is younger than what is known.
    pub fn resync(&self, overlay: &Name) {
        self.ask(Ask::Resync(overlay.clone()));
    }

    fn ask(&self, ask: Ask) {
        // Where the thread has ended there is nobody to be told.
        let _ = self.asks.send(ask);
        let _ = eventfd::signal(&self.wake);
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        self.ask(Ask::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plugins' user is found by its whole name, and never is root.
    #[test]
    fn the_user_is_found() {
        let named = |line: &str| PluginUser::named(&format!("root:x:0:0::/:\n{line}\n"));
        let found = PluginUser::Other { uid: 97, gid: 98 };
        assert_eq!(named("windlass-lookup:x:97:98::/:/bin/false"), found);
        for line in [
            "",
            "windlass-lookup2:x:97:98::/:",
            "windlass-lookup:x:0:98::/:",
            "windlass-lookup:x:a:98::/:",
            "windlass-lookup:x:97",
        ] {
            assert_eq!(named(line), PluginUser::Missing, "{line}");
        }
    }
}
