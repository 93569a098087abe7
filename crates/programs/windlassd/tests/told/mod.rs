//! What a look-up thread has told, for tests to wait for.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use windlass_api::Name;
use windlass_lookup::protocol::HostState;
use windlass_lookup::table::Record;
use windlass_wire::MacAddr;
use windlassd::lookup::{Lookups, Pace, Told};

/// How long is waited for what has to come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What was told.
#[derive(Debug, Default)]
pub struct State {
    /// The endpoints.
    pub records: BTreeMap<(u32, MacAddr), Arc<Record>>,
    /// How many changes of them.
    pub changes: usize,
    /// Why the overlay is degraded.
    pub degraded: Option<String>,
    /// Every reason that was told.
    pub reasons: Vec<String>,
    /// All else.
    pub rest: Vec<Told>,
}

impl State {
    /// The endpoints as lines.
    pub fn targets(&self) -> Vec<String> {
        let line = |((vni, mac), record): (&(u32, MacAddr), &Arc<Record>)| {
            format!("{vni} {mac} {}", record.target)
        };
        self.records.iter().map(line).collect()
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Entries { vni, changes } => {
                self.changes += changes.len();
                for (mac, record) in changes {
                    match record {
                        Some(record) => self.records.insert((vni, mac), record),
                        None => self.records.remove(&(vni, mac)),
                    };
                }
            }
            Told::Degraded(reason) => {
                self.reasons.push(reason.clone());
                self.degraded = Some(reason);
            }
            Told::Restored => self.degraded = None,
            Told::Begun | Told::Spoken => {}
            other => self.rest.push(other),
        }
    }
}

/// What was told, of all overlays.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<(Mutex<State>, Condvar)>);

impl Seen {
    /// Waits until something holds.
    pub fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let start = Instant::now();
        let mut state = self.0.0.lock().unwrap();
        while !holds(&state) {
            assert!(start.elapsed() < PATIENCE, "not yet: {what}: {state:?}");
            state = self
                .0
                .1
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap()
                .0;
        }
    }

    /// See [`State::targets`].
    pub fn targets(&self) -> Vec<String> {
        self.0.0.lock().unwrap().targets()
    }

    /// See [`State::changes`].
    pub fn changes(&self) -> usize {
        self.0.0.lock().unwrap().changes
    }

    /// Names of hosts that were told to be there, in order.
    pub fn hosts(&self) -> Vec<String> {
        let state = self.0.0.lock().unwrap();
        let host = |told: &Told| match told {
            Told::Host { host, state, .. } if *state != HostState::Gone => Some(host.clone()),
            _ => None,
        };
        state.rest.iter().filter_map(host).collect()
    }

    /// See [`State::degraded`].
    pub fn degraded(&self) -> Option<String> {
        self.0.0.lock().unwrap().degraded.clone()
    }

    /// See [`State::reasons`].
    pub fn reasons(&self) -> Vec<String> {
        self.0.0.lock().unwrap().reasons.clone()
    }
}

/// A look-up thread with this pace of plugins, and what it tells.
pub fn lookups(pace: Pace) -> (Lookups, Seen) {
    let seen = Seen::default();
    let told = seen.clone();
    let tell = move |_: &Name, what: Told| {
        told.0.0.lock().unwrap().take(what);
        told.0.1.notify_all();
    };
    (Lookups::new(pace, tell).unwrap(), seen)
}

/// A name.
pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}
