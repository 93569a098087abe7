//! A process from fork to exit: what happens to its sockets when it forks, executes a file, enters a filter, and ends.
//!
//! Forks are followed by handlers of `pthread_atfork`, since libc forks by itself too; a fork that passes those by is noticed at the
//! next call that matters.

use std::sync::atomic::{AtomicBool, Ordering};

use windlass_channel::Reason;

use crate::counts::{counters, summary};
use crate::fd::{
    record::{self, flag},
    table,
};
use crate::process::{identity, mark, registration};
use crate::ready::{
    deferred_ctl::{self, flush_epoll_ctl},
    sets,
};
use crate::socket::{
    close,
    demote::{self, demote_all},
    peer_death, reclaim, state, waiter,
};

static ENDED: AtomicBool = AtomicBool::new(false);

/// A thread ends: it waits no more, and another one has the mark of its process.
pub fn thread_ends() {
    waiter::abandon();
    mark::let_go();
}

/// The process ends by its own will: once.
pub fn ends() {
    if !identity::is_started() || !identity::is_ours() || ENDED.swap(true, Ordering::AcqRel) {
        return;
    }
    if table::exists() {
        leave_nothing();
        if record::is_shared() {
            table::let_go();
        }
    }
    summary::write();
    counters::write();
}

/// The process is about to enter a seccomp filter, which may forbid every call but those of the program: whatever it holds is the
/// kernel's, what it counted is written, and from then on the library makes no system call of its own. Not in the child of a `vfork`.
pub fn before_seccomp() {
    if !identity::is_started() || !identity::is_ours() {
        return;
    }
    if table::exists() {
        demote_all(Reason::Seccomp);
    }
    table::retire();
    if !ENDED.swap(true, Ordering::AcqRel) {
        summary::write();
        counters::write();
    }
}

/// The process, or the child of a `vfork` with its memory, may be replaced now. What it counted is written.
pub fn before_exec() {
    if table::exists() {
        demote_surviving(false);
        table::before_exec(false);
    }
    if !table::is_retired() && identity::is_ours() {
        counters::write();
    }
}

/// The process, or a child with its descriptors, is about to become another program, which would not look at a ring: joined
/// sockets that it inherits go back to the kernel.
fn demote_surviving(is_spawned: bool) {
    flush_epoll_ctl();
    let is_ours = identity::is_ours();
    if is_ours {
        peer_death::notice();
    }
    for sock in table::sockets() {
        if is_ours && !is_spawned {
            close::fold(sock.record);
        }
        if !sock.record.has(flag::JOINED) || !table::survives(&sock) {
            continue;
        }
        if is_ours {
            demote::demote(&sock, Reason::Exec);
            state::give_back_delay(&sock);
        } else {
            // The child of a vfork: memory is the parent's, descriptors are not. Only words may be changed here.
            demote::mark(&sock, Reason::Exec);
        }
    }
}

/// The process ends: nothing of it stays in a ring. What other processes have counted stays theirs.
fn leave_nothing() {
    for sock in table::sockets().filter(|sock| !sock.record.is_foreign()) {
        if let Some(link) = state::link_of(&sock) {
            let _ = reclaim::reclaim(&sock, &link);
        }
        close::fold(sock.record);
    }
}

pub fn exec_failed() {
    if table::exists() {
        table::exec_failed();
    }
}

/// libc is about to make a child by itself that executes a file.
pub fn before_spawn() {
    if table::exists() {
        demote_surviving(true);
        table::before_exec(true);
    }
}

pub extern "C" fn before_fork() {
    if table::exists() {
        flush_epoll_ctl();
        table::fork_prepare();
    }
}

pub extern "C" fn after_fork_parent() {
    table::fork_done(false);
}

pub extern "C" fn after_fork_child() {
    if table::is_retired() {
        return;
    }
    identity::adopt();
    table::fork_done(true);
    counters::clear();
    summary::clear();
    ENDED.store(false, Ordering::Relaxed);
    if table::exists() {
        registration::forked();
        waiter::forked();
        deferred_ctl::forked();
        sets::forked();
    }
}

pub fn fork_failed() {
    if table::exists() {
        table::let_go();
    }
}

/// This process is a copy that was made out of our sight.
#[cold]
pub fn unseen_fork() {
    if table::exists() {
        table::fork_unseen();
    }
    after_fork_child();
}
