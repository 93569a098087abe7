//! What this host does to each packet over `lo`: rules, queues and programs that bytes in a ring would pass unseen.
//!
//! # Model
//! Asked for before a pair is given memory: the rules of nftables in the network namespace of both, the queueing disciplines and
//! eBPF programs of its `lo`, and the eBPF programs of both processes' cgroups. The look is a thread's, one for a user at a time:
//! whoever owns a namespace decides how long it takes. Only root can see all of that; a user's broker does not ask. What was found
//! in a namespace holds for [`HOLDS`], and longer where it took long to find out.
//!
//! # Failure modes
//! What may not be seen (`EPERM`: a daemon in a container) is not found. Rules that cannot be read or understood, and a process
//! that has gone to another namespace than its sockets', count as findings: nobody can say that nothing is there.
//!
//! # Not done
//! Rules of `iptables-legacy` and XDP programs are not looked at, nor are rules that are made after two processes have been joined.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use windlass_sys::netlink::{Netlink, NetlinkError};
use windlass_sys::netns::{NetnsRef, within};
use windlass_sys::{hooks, process, process::Pinned};

/// How long a look at a namespace holds.
const HOLDS: Duration = Duration::from_secs(1);
/// A look that took long holds so many times longer.
const HOLDS_TIMES: u32 = 20;
/// How long the broker waits for a look before it answers that it does not know yet. One takes about 1 ms.
const PATIENCE: Duration = Duration::from_millis(10);
/// Namespaces that are remembered.
const NAMESPACES_MAX: usize = 1_024;

/// A look at a namespace.
#[derive(Debug)]
struct Seen {
    until: Instant,
    finding: Option<String>,
}

/// A look that is under way.
#[derive(Debug)]
struct Looking {
    netns: u64,
    /// With it, how long the look holds.
    finding: Receiver<(Option<String>, Instant)>,
}

/// What was found in each network namespace, by its cookie.
#[derive(Debug, Default)]
pub(crate) struct Host {
    seen: HashMap<u64, Seen>,
    /// By the user for whom.
    looking: HashMap<u32, Looking>,
}

impl Host {
    /// What is done to packets over `lo` in the namespace with this cookie, where these processes of a user are. `None`
    /// where that is not known yet: the user asks again later.
    pub(crate) fn finding(
        &mut self,
        netns: u64,
        uid: u32,
        both: Vec<Pinned>,
    ) -> Option<Option<String>> {
        let is_fresh = |seen: &&Seen| seen.until > Instant::now();
        if self.seen.get(&netns).filter(is_fresh).is_none() {
            self.look(netns, uid, both.clone())?;
        }
        let seen = self.seen.get(&netns).filter(is_fresh)?;
        let of_cgroup = || Some(both.iter().find_map(hooks::of_cgroup)?.to_string());
        Some(seen.finding.clone().or_else(of_cgroup))
    }

    /// Looks, on a thread of its own: the rules of a namespace are as many as its owner likes.
    fn look(&mut self, netns: u64, uid: u32, both: Vec<Pinned>) -> Option<()> {
        let mut patience = Duration::ZERO;
        let looking = match self.looking.entry(uid) {
            Entry::Occupied(looking) => looking.into_mut(),
            Entry::Vacant(place) => {
                let (tell, finding) = mpsc::sync_channel(1);
                let work = move || {
                    let since = Instant::now();
                    let found = look(netns, &both);
                    let took = since.elapsed();
                    let until = Instant::now() + HOLDS.max(took * HOLDS_TIMES);
                    // Nobody may want to hear it any more.
                    let _ = tell.send((found, until));
                };
                let thread = std::thread::Builder::new().name("look".into());
                thread.spawn(work).ok()?;
                patience = PATIENCE;
                place.insert(Looking { netns, finding })
            }
        };
        let (finding, until) = match looking.finding.recv_timeout(patience) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                (Some("nobody could look".into()), Instant::now() + HOLDS)
            }
        };
        let looking = self.looking.remove(&uid)?;
        if self.seen.len() >= NAMESPACES_MAX {
            self.seen.clear();
        }
        // It may be another namespace than the one that is asked for now.
        self.seen.insert(looking.netns, Seen { until, finding });
        Some(())
    }
}

fn look(netns: u64, both: &[Pinned]) -> Option<String> {
    let mut reason = "the processes are in another network namespace than their sockets".to_owned();
    for process in both {
        match namespace(netns, process) {
            Ok(Some(finding)) => return finding,
            Ok(None) => {}
            Err(error) if matches!(error.errno(), Some(Errno::PERM | Errno::ACCESS)) => {
                return None;
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Some(reason)
}

/// What is found in the namespace of a process; `None` if that is not the one meant.
fn namespace(netns: u64, of: &Pinned) -> Result<Option<Option<String>>, NetlinkError> {
    let there = NetnsRef::of_process(of)?;
    within(&there, || {
        let mut links = Netlink::open()?;
        if process::netns_cookie(&links) != Ok(netns) {
            return Ok(None);
        }
        let rules = Netlink::open_netfilter()?.ruleset()?;
        Ok(Some(match windlass_filter::finding(&rules) {
            None => hooks::at_loopback(&mut links)?.map(|hook| hook.to_string()),
            found => found,
        }))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The namespace of this process can be seen by root, is remembered, and a wrong cookie counts as a finding.
    #[test]
    fn the_own_namespace_is_seen() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: the_own_namespace_is_seen: needs root");
            return;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let netns = process::netns_cookie(&socket).expect("a cookie");
        let own = process::pin(std::process::id()).expect("a pidfd");
        let mut host = Host::default();
        let mut find = |netns| {
            let end = Instant::now() + Duration::from_secs(5);
            loop {
                match host.finding(netns, 0, vec![own.clone()]) {
                    Some(found) => return found,
                    None => assert!(Instant::now() < end, "no answer"),
                }
            }
        };
        let first = find(netns);
        let started = Instant::now();
        for _ in 0..100 {
            assert_eq!(find(netns), first);
        }
        assert!(started.elapsed() < Duration::from_secs(1), "not remembered");
        assert!(find(netns ^ 1).is_some());
    }
}
