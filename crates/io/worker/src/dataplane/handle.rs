//! The control thread's end of one worker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use windlass_sync::mpsc;

use crate::bell::Bell;
use crate::command::Command;

/// A worker's mailbox, and what did not fit into it. Commands reach the worker in the order in which they were sent,
/// however late it is; the control thread never waits for room.
pub(super) struct WorkerHandle {
    mailbox: mpsc::Queue<Command>,
    outbox: RefCell<VecDeque<Command>>,
    bell: Arc<Bell>,
    /// None before it runs.
    pub(super) thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    pub(super) fn new(mailbox: mpsc::Queue<Command>, bell: Arc<Bell>) -> WorkerHandle {
        WorkerHandle {
            mailbox,
            outbox: RefCell::default(),
            bell,
            thread: None,
        }
    }

    pub(super) fn send(&self, command: Command) {
        self.outbox.borrow_mut().push_back(command);
        self.flush();
    }

    /// Sends what has waited for room; whether nothing waits any more.
    pub(super) fn flush(&self) -> bool {
        let mut outbox = self.outbox.borrow_mut();
        let mut has_sent = false;
        while let Some(command) = outbox.pop_front() {
            match self.mailbox.push(command) {
                Ok(()) => has_sent = true,
                Err(back) => {
                    outbox.push_front(back);
                    break;
                }
            }
        }
        if has_sent {
            self.bell.mail();
        }
        outbox.is_empty()
    }

    /// Whether the worker's thread is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}
