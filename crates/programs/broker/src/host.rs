//! What this host does to each packet over `lo`: rules, queues and programs that bytes in a ring would pass unseen.
//!
//! # Model
//! Asked for before a pair is given memory: the rules of nftables in the network namespace of both, the queueing disciplines and
//! eBPF programs of its `lo`, and the eBPF programs of both processes' cgroups. Only root can see all of that; a user's broker does
//! not ask. The look is a thread's, one for a user at a time, and the broker waits for none: the owner of a namespace decides how
//! long it takes. What was found holds for [`HOLDS`], and longer where it took long to find out.
//!
//! # Failure modes
//! What may not be seen (`EPERM`: a daemon in a container) is not found. Rules that cannot be read or understood, and a process
//! that has gone to another namespace than its sockets', count as findings: nobody can say that nothing is there.
//!
//! # Not done
//! Rules of `iptables-legacy` and XDP programs are not looked at, nor are rules that are made after two processes have been joined.

use std::collections::HashMap;
use std::io::PipeReader;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use windlass_channel::Reason;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::netlink::{Netlink, NetlinkError};
use windlass_sys::netns::{NetnsRef, within};
use windlass_sys::{hooks, process, process::Pinned};

use crate::inquiry::Then;
use crate::jobs::LATE;
use crate::server::LOOK;

/// How long a look at a namespace holds.
const HOLDS: Duration = Duration::from_secs(1);
/// A look that took long holds so many times longer.
const HOLDS_TIMES: u32 = 20;
/// Namespaces that are remembered.
const NAMESPACES_MAX: usize = 1_024;
/// Requests that wait for one look.
const WAITING_MAX: usize = 64;

/// What is done to packets, if anything is.
type Finding = Option<String>;
/// What a look found, and how long that holds.
type Seen = (Finding, Instant);

/// A look that is under way.
struct Looking {
    netns: u64,
    thread: JoinHandle<Seen>,
    /// Readable once the thread is at its end.
    _end: PipeReader,
    waiting: Vec<Then<Finding>>,
}

/// What was found in each network namespace, by its cookie.
#[derive(Default)]
pub(crate) struct Host {
    seen: HashMap<u64, Seen>,
    /// By the user for whom.
    looking: HashMap<u32, Looking>,
}

impl Host {
    /// What is done to packets over `lo` in the namespace with this cookie; `None` where that is not known.
    pub(crate) fn known(&self, netns: u64) -> Option<Finding> {
        let seen = self.seen.get(&netns);
        let fresh = seen.filter(|(_, until)| *until > Instant::now());
        fresh.map(|(finding, _)| finding.clone())
    }

    /// Has a thread look for a user, and `then` told. One namespace at a time: its rules are as many as its owner likes.
    pub(crate) fn find_out(
        &mut self,
        epoll: &Epoll,
        (netns, uid): (u64, u32),
        look: impl FnOnce() -> Finding + Send + 'static,
        then: Then<Finding>,
    ) -> Result<(), Reason> {
        if let Some(looking) = self.looking.get_mut(&uid) {
            if looking.netns != netns || looking.waiting.len() >= WAITING_MAX {
                return Err(LATE);
            }
            looking.waiting.push(then);
            return Ok(());
        }
        let (end, begin) = std::io::pipe().map_err(|_| Reason::Limit)?;
        let token = LOOK | u64::from(uid);
        let watched = epoll.add(&end, token, Interest::READABLE);
        watched.map_err(|_| Reason::Limit)?;
        let work = move || {
            let _at_end = begin;
            let since = Instant::now();
            let found = look();
            let holds = HOLDS.max(since.elapsed() * HOLDS_TIMES);
            (found, Instant::now() + holds)
        };
        let thread = std::thread::Builder::new().name("look".into());
        let looking = Looking {
            netns,
            thread: thread.spawn(work).map_err(|_| Reason::Limit)?,
            _end: end,
            waiting: vec![then],
        };
        self.looking.insert(uid, looking);
        Ok(())
    }

    /// The look for a user is at its end. Gives what was found, and who waits for it.
    pub(crate) fn found(&mut self, uid: u32) -> Option<(Finding, Vec<Then<Finding>>)> {
        let looking = self.looking.remove(&uid)?;
        let nothing = |_| (Some("nobody could look".into()), Instant::now() + HOLDS);
        let (finding, until) = looking.thread.join().unwrap_or_else(nothing);
        if self.seen.len() >= NAMESPACES_MAX {
            self.seen.clear();
        }
        self.seen.insert(looking.netns, (finding.clone(), until));
        Some((finding, looking.waiting))
    }
}

/// What is done to packets over `lo` in the namespace with this cookie, where these processes are.
pub(crate) fn look(netns: u64, both: &[Pinned]) -> Finding {
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
fn namespace(netns: u64, of: &Pinned) -> Result<Option<Finding>, NetlinkError> {
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
    use windlass_sys::epoll::Events;

    use super::*;
    use crate::server::Broker;

    /// Waits for the look for user 0. Gives what was found, and how many wait for that.
    fn wait(epoll: &Epoll, host: &mut Host) -> (Finding, usize) {
        let looked = epoll.wait(&mut Events::default(), Some(Duration::from_secs(5)));
        assert!(looked.is_ok_and(|count| count > 0), "no answer");
        let (found, waiting) = host.found(0).expect("a look");
        (found, waiting.len())
    }

    /// The namespace of this process can be seen by root, and a wrong cookie counts as a finding.
    #[test]
    fn the_own_namespace_is_seen() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: the_own_namespace_is_seen: needs root");
            return;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let netns = process::netns_cookie(&socket).expect("a cookie");
        let own = process::pin(std::process::id()).expect("a pidfd");
        let elsewhere = look(netns ^ 1, std::slice::from_ref(&own));
        assert!(elsewhere.is_some_and(|what| what.contains("another network namespace")));
        let here = look(netns, &[own]);
        assert!(here.is_none_or(|what| !what.contains("another network namespace")));
    }

    /// However long a look takes, asking for it takes no time, and others of the user are put off meanwhile.
    #[test]
    fn a_look_holds_nobody_up() {
        let mut host = Host::default();
        let epoll = Epoll::create().expect("epoll");
        let since = Instant::now();
        let mut ask = |netns, uid| {
            let then = Box::new(|_: &mut Broker, _| {});
            let look = || {
                std::thread::sleep(Duration::from_millis(200));
                None
            };
            host.find_out(&epoll, (netns, uid), look, then)
        };
        for uid in 0..8 {
            assert_eq!(ask(1, uid), Ok(()));
            assert_eq!(ask(2, uid), Err(LATE));
        }
        let again = (0..WAITING_MAX).map(|_| ask(1, 0));
        assert_eq!(again.filter(Result::is_ok).count(), WAITING_MAX - 1);
        assert!(since.elapsed() < Duration::from_millis(200));
        assert_eq!(wait(&epoll, &mut host), (None, WAITING_MAX));
        assert_eq!(host.known(1), Some(None));
    }
}
