//! A process that touches sockets of other processes, in the broker's place.
//!
//! # Purpose
//! A descriptor of a foreign process can hold up whoever closes it last: a connection that lingers, a file of a file
//! system that its user serves, a socket that is locked. And what is written through it carries the ids of the writer.
//! So the broker never holds one. For each user, group and user namespace it starts a helper with just those ids and no
//! capability, which takes a copy of a socket, does one [`Job`], and closes it. It only looks at a Unix socket without a copy.
//!
//! # Where it sits
//! ```text
//!   windlass-broker --jobs--> helper --what it may not take--> getter (root's broker only)
//!                             the user's ids,       <--socket--  CAP_SYS_PTRACE alone
//!                             no capability
//! ```
//!
//! # Ownership and lifetime
//! It ends when the broker closes its end, and the broker kills one that does not answer in time. The kernel kills it when the
//! broker's thread that started it has ended (`PR_SET_PDEATHSIG`): its user may have stopped it. Its lock on a channel
//! is in a slot of its own, which the broker declares dead with it.
//!
//! # Limits
//! [`FILES_MAX`] descriptors, [`SPACE_BYTES_MAX`] of addresses, no process, no core file. It cannot be traced by its user.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::socket_cookie;
use rustix::process::{
    DumpableBehavior, Gid, PidfdGetfdFlags, Resource, Rlimit, Signal, Uid, geteuid, getrlimit,
    pidfd_getfd, set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use windlass_channel::layout::Side;
use windlass_channel::snapshot::{MappedSlab, MappedTable};
use windlass_channel::{Fd, Owner, Reason, Reclaimed, Who};
use windlass_sys::identity;
use windlass_sys::process;
use windlass_sys::unix;

use crate::facts::Facts;
use crate::getter;
use crate::helpers::Key;
use crate::jobs::{Job, LATE, MESSAGE_BYTES_MAX, Reclaim, SOURCES_MAX, Said};
use crate::limits::LOOKS_SURE;
use windlass_listing::plain::Plain;

/// Words of the command line that make the program a helper or a getter, before user, group, and device and inode of the user
/// namespace.
pub(crate) const HELPER: &str = "helper";
/// See [`HELPER`].
pub(crate) const GETTER: &str = "getter";

/// Descriptors of a helper or a getter, which has no more than come with one job. But the kernel refuses to pass one on while all
/// processes of its user have more than this many in flight, and root's broker has so many on their way to helpers that hang.
const FILES_MAX: u64 = 131_072;
/// Addresses of a helper, in bytes: a slab of 258 MiB, and the program.
const SPACE_BYTES_MAX: u64 = 1 << 30;
/// The thread that a helper or the broker is where it takes a lock.
pub(crate) const THREAD: u16 = 1;
/// The socket may be there, but the helper may not take it.
const OUT_OF_REACH: Reason = Reason::Privileged;
/// How long the getter is waited for.
const GETTER_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// What is known of a socket, and a copy of it where one was needed.
pub(crate) type Found = (Facts, Option<OwnedFd>);
/// An answer, and the descriptor that goes with it.
pub(crate) type Answer = (Said, Option<OwnedFd>);

/// Serves as a helper or a getter on the standard input, if the arguments say so, and returns whether they did.
///
/// # Errors
/// If the process cannot be confined: it has done nothing then.
pub fn serve_if_asked(mut words: impl Iterator<Item = String>) -> Result<bool, Errno> {
    let role = words.next().unwrap_or_default();
    if ![HELPER, GETTER].contains(&role.as_str()) {
        return Ok(false);
    }
    let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let [uid, gid, device, inode] = *numbers else {
        return Err(Errno::INVAL);
    };
    let id = |number: u64| u32::try_from(number).map_err(|_| Errno::INVAL);
    let (uid, gid, userns) = (id(uid)?, id(gid)?, (device, inode));
    let key = Key { uid, gid, userns };
    if role == GETTER {
        confine(None, CapabilitySet::SYS_PTRACE)?;
        serve(|job, fds| getter::fetch(&job, &fds, key));
    } else {
        confine(Some(key), CapabilitySet::empty())?;
        serve(|job, fds| (do_job(&job, fds), None));
    }
    Ok(true)
}

/// Takes the ids of a user, if one is given, and keeps these capabilities alone.
fn confine(user: Option<Key>, keep: CapabilitySet) -> Result<(), Errno> {
    for (resource, most) in [
        (Resource::Nofile, FILES_MAX),
        (Resource::As, SPACE_BYTES_MAX),
        (Resource::Nproc, 0),
        (Resource::Core, 0),
    ] {
        let before = getrlimit(resource).maximum;
        let maximum = Some(before.map_or(most, |before| before.min(most)));
        let current = maximum;
        setrlimit(resource, Rlimit { current, maximum })?;
    }
    if let Some(user) = user.filter(|_| geteuid().is_root()) {
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    // Behind the change of ids, which may make it dumpable (`fs.suid_dumpable`).
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // Last: a change of ids takes it back.
    set_parent_process_death_signal(Some(Signal::KILL))
}

/// Answers jobs until the broker closes its end.
fn serve(work: impl Fn(Job, Vec<OwnedFd>) -> Answer) {
    let stdin = std::io::stdin();
    let socket = stdin.as_fd();
    // Where it still does not wait, it turns until the broker ends it.
    let _ = rustix::io::ioctl_fionbio(socket, false);
    loop {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let received = match unix::receive_with_fds(socket, &mut message, SOURCES_MAX + 2) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            _ => return,
        };
        let Some(job) = message.get(..received.bytes).and_then(Job::of_bytes) else {
            return;
        };
        let (said, taken) = work(job, received.fds);
        let fds: Vec<_> = taken.iter().map(AsFd::as_fd).collect();
        if unix::send_with_fds(socket, &[IoSlice::new(&said.to_bytes())], &fds).is_err() {
            return;
        }
    }
}

/// Does a job. Every descriptor is closed before the answer, except by the last reference of another process.
fn do_job(job: &Job, mut fds: Vec<OwnedFd>) -> Said {
    let memory = job.reclaim.and_then(|reclaim| {
        let (table, slab) = (fds.pop()?, fds.pop()?);
        Some((reclaim, slab, table))
    });
    let (facts, socket) = match from_processes(job, &fds, |_, _| true) {
        Err(OUT_OF_REACH) => from_getter(job, &fds)?,
        found => found?,
    };
    let socket = socket.filter(|_| job.reclaim.is_some());
    let mut facts = facts.with_peer();
    if job.reclaim.is_some() {
        let ((reclaim, slab, table), socket) = memory.zip(socket).ok_or(Reason::Broken)?;
        // A connection that is over has an error to tell, once, to its owner: a send would take it.
        if facts.is_over {
            return Ok(facts);
        }
        // Where one user has both ends and the other one is gone, the cookie alone counts.
        let is_one = |far: Facts| facts.mirrors(&far, reclaim.same_user) && !far.names_senders;
        if !reclaim.far.map_or(reclaim.same_user, is_one) {
            return Err(Reason::Mismatch);
        }
        facts.moved = moved(&reclaim, &socket, &slab, &table)?;
    }
    Ok(facts)
}

/// Whether a cookie is the job's. Of a peer's, the directory has the low half alone.
fn has_cookie(job: &Job, its: u64) -> bool {
    its == job.cookie || u32::try_from(job.cookie).is_ok_and(|half| its as u32 == half)
}

/// The same, from the getter, which is behind the standard output if there is one.
fn from_getter(job: &Job, pidfds: &[OwnedFd]) -> Result<Found, Reason> {
    let stdout = std::io::stdout();
    let getter = stdout.as_fd();
    let mut fetch = *job;
    fetch.reclaim = None;
    let fds: Vec<_> = pidfds.iter().map(AsFd::as_fd).collect();
    let sent = unix::send_with_fds(getter, &[IoSlice::new(&fetch.to_bytes())], &fds);
    sent.map_err(|errno| match errno {
        Errno::NOTSOCK => Reason::NotRescuable,
        _ => LATE,
    })?;
    let mut entries = [PollFd::new(&getter, PollFlags::IN)];
    // Nothing that came is found out by the receive.
    let _ = poll(&mut entries, Some(&GETTER_WAIT));
    let mut message = [0; MESSAGE_BYTES_MAX];
    let received = unix::receive_with_fds(getter, &mut message, 1);
    // Where no answer came the broker ends both: a late one is never taken for the next.
    let received = received.ok().filter(|received| received.bytes > 0);
    let received = received.ok_or(LATE)?;
    let said = message.get(..received.bytes).and_then(Said::of_bytes);
    Ok((said.ok_or(LATE)??, received.fds.into_iter().next()))
}

/// What the kernel says of the job's socket that one of the processes has, and a copy if that is needed: under the number that was
/// named, or under another one, of which at most so many as the job says are looked at. Each must be `allowed`, before that and after
/// it.
pub(crate) fn from_processes(
    job: &Job,
    pidfds: &[OwnedFd],
    allowed: impl Fn(&OwnedFd, u32) -> bool,
) -> Result<Found, Reason> {
    let mut left = Some(job.looks);
    let mut why = Reason::NotRescuable;
    for (pidfd, pid) in pidfds.iter().zip(job.pids) {
        if !allowed(pidfd, pid) {
            continue;
        }
        if let Some(facts) = unheld(job, pidfd, pid).filter(|_| allowed(pidfd, pid)) {
            return Ok((facts, None));
        }
        let take = |fd| take_socket(pidfd, fd, job);
        let found = take(job.fd).or_else(|said| {
            let mut others = numbers_of(pid, &mut left);
            others.find_map(|fd| take(fd).ok()).ok_or(said)
        });
        match found {
            Ok(socket) if allowed(pidfd, pid) => {
                let mut facts = Facts::of(&socket).ok_or(Reason::NotRescuable)?;
                facts.looked = job.looks - left.unwrap_or(0);
                return Ok((facts, Some(socket)));
            }
            Err(OUT_OF_REACH) => why = OUT_OF_REACH,
            _ => {}
        }
    }
    let is_unsure = left.is_none() && job.is_for_rescue && job.looks < LOOKS_SURE;
    Err(if is_unsure { Reason::Limit } else { why })
}

/// What the job asks for where that is known without a copy. The process might be copied from, and lives still: so its id was its own
/// all along.
fn unheld(job: &Job, pidfd: &OwnedFd, pid: u32) -> Option<Facts> {
    let facts = Facts::unheld(pid, job.fd).filter(|_| !job.is_for_rescue)?;
    let none = pidfd_getfd(pidfd, i32::MAX, PidfdGetfdFlags::empty());
    (has_cookie(job, facts.cookie) && none.err() == Some(Errno::BADF)).then_some(facts)
}

/// A copy of the job's socket that a process has under a number. Both are only what somebody said.
fn take_socket(pidfd: &OwnedFd, fd: i32, job: &Job) -> Result<OwnedFd, Reason> {
    if fd < 0 {
        return Err(Reason::NotRescuable);
    }
    let taken = pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty());
    let taken = taken.map_err(|errno| match errno {
        Errno::PERM => OUT_OF_REACH,
        _ => Reason::NotRescuable,
    })?;
    let is_found = socket_cookie(&taken).is_ok_and(|its| has_cookie(job, its));
    is_found.then_some(taken).ok_or(Reason::NotRescuable)
}

/// The numbers under which a process has sockets, as far as they may be seen, among at most `left` descriptors; `None` where there were
/// more.
fn numbers_of(pid: u32, left: &mut Option<u32>) -> impl Iterator<Item = i32> {
    // Not even the list is read for one that has none left.
    *left = left.filter(|left| *left > 0);
    let numbers = left.map(|_| identity::descriptors(pid));
    let looked_at = numbers.into_iter().flatten().map_while(move |number| {
        *left = left.and_then(|left| left.checked_sub(1));
        left.map(|_| number)
    });
    looked_at.filter(move |fd| identity::is_socket(pid, *fd))
}

/// Moves the unread bytes of a direction into the socket, and counts them.
fn moved(job: &Reclaim, socket: &OwnedFd, slab: &OwnedFd, table: &OwnedFd) -> Result<u64, Reason> {
    let slab = MappedSlab::open(slab.as_fd()).ok_or(Reason::Broken)?;
    let table = MappedTable::open(table.as_fd()).ok_or(Reason::Broken)?;
    let link = slab.link(job.chan, Side::from_u8(job.side));
    let link = link.ok_or(Reason::Broken)?;
    let who = Who {
        owner: Owner::new(job.slot, THREAD).ok_or(Reason::Broken)?,
        alive: &table,
    };
    let fd = process::number(socket.as_fd());
    let connected = link.info(link.side()).connected;
    match link.outgoing().reclaim(who, &Fd { fd, connected }) {
        Reclaimed::All(bytes) => Ok(bytes as u64),
        // The kernel did not take all, or a reader is in the middle of taking them.
        Reclaimed::Part(_) | Reclaimed::Busy => Err(Reason::Limit),
        Reclaimed::Error(_) => {
            // The send may have taken what the kernel tells once.
            if Facts::of(socket).is_some_and(|facts| facts.is_over) {
                link.outgoing().set_error_taken();
            }
            Err(Reason::NotEstablished)
        }
        Reclaimed::Broken => Err(Reason::Broken),
    }
}
