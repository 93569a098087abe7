//! The broker of accelerated sockets: a thread beside the others, which shares nothing with them.
//!
//! # Failure modes
//! A broker that cannot start (a private one of the same user listens there, or the policy is not understood) costs
//! acceleration only: the daemon says so and goes on.

use std::path::PathBuf;
use std::thread::JoinHandle;

use windlass_broker::policy::CONFIG_PATH;
use windlass_broker::{Broker, Event, Handle, Outcome, SOCKET_NAME, Settings};

use crate::options::Options;

/// The thread, if there is one.
#[derive(Debug, Default)]
pub struct Sockets(Option<(Handle, JoinHandle<()>)>);

impl Sockets {
    /// Starts it, unless the options say otherwise.
    pub fn start(options: &Options) -> Self {
        if !options.sockets {
            return Self::default();
        }
        let is_root = rustix::process::geteuid().is_root();
        let settings = Settings {
            others: is_root,
            policy: is_root.then(|| PathBuf::from(CONFIG_PATH)),
            linger: None,
            needed: || true,
        };
        let path = options.runtime_dir.join(SOCKET_NAME);
        let broker = match Broker::listen(&path, settings, tell) {
            Ok(broker) => broker,
            Err(error) => {
                tracing::error!("sockets are not accelerated: {error}");
                return Self::default();
            }
        };
        let handle = broker.handle();
        let run = move || {
            if let Err(errno) = broker.run() {
                tracing::error!("sockets are not accelerated any more: {errno}");
            }
        };
        match std::thread::Builder::new()
            .name("sockets".into())
            .spawn(run)
        {
            Ok(thread) => Self(Some((handle, thread))),
            Err(error) => {
                tracing::error!("sockets are not accelerated: {error}");
                Self::default()
            }
        }
    }

    /// Reads the policy again.
    pub fn reload(&self) {
        if let Some((handle, _)) = &self.0 {
            handle.reload();
        }
    }

    /// Ends it. Live channels go on.
    pub fn stop(self) {
        if let Some((handle, thread)) = self.0 {
            handle.stop();
            if thread.join().is_err() {
                tracing::error!("the thread of accelerated sockets has failed");
            }
        }
    }
}

fn tell(event: &Event<'_>) {
    match event {
        Event::Registered {
            slot,
            pid,
            uid,
            inherited,
        } => {
            tracing::debug!(
                "sockets: process {pid} of user {uid} has slot {slot}, {inherited} slabs inherited"
            );
        }
        Event::Refused { pid, uid, reason } => {
            let pid = pid.unwrap_or(0);
            tracing::debug!(
                "sockets: process {pid} of user {uid} refused: {}",
                reason.text()
            );
        }
        Event::Paired {
            slab,
            slots: (a, b),
        } => tracing::debug!("sockets: slab {slab} for slots {a} and {b}"),
        Event::Ruled {
            netns,
            finding: Some(finding),
        } => tracing::info!(
            "sockets: connections in network namespace {netns} stay on the kernel: {finding}"
        ),
        Event::Ruled {
            netns,
            finding: None,
        } => tracing::info!("sockets: nothing keeps network namespace {netns} on the kernel now"),
        Event::Rescue {
            slab,
            chan,
            side,
            outcome,
        } => match outcome {
            Outcome::Refused(reason) => {
                tracing::info!(
                    "sockets: no rescue of slab {slab}, channel {chan}, side {side}: {}",
                    reason.text()
                );
            }
            done => tracing::debug!(
                "sockets: rescue of slab {slab}, channel {chan}, side {side}: {done:?}"
            ),
        },
        Event::Gone { slot, pid } => {
            tracing::debug!("sockets: process {pid} of slot {slot} is gone")
        }
        Event::BadPolicy { error } => tracing::error!("sockets: the old policy holds: {error}"),
        Event::Trouble { what, errno } => tracing::warn!("sockets: {what}: {errno}"),
    }
}
