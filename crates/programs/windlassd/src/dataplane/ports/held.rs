//! One daemon takes another one's place: what it makes before, and what endpoints go on with.

use std::time::Duration;

use windlass_api::{Counters, Name};
use windlass_attach::endpoint::Handed;

use super::Ports;
use crate::dataplane::translate::InKernel;

/// What the daemon before has handed over, and no endpoint has taken yet.
#[derive(Debug, Default)]
pub(super) struct Held {
    handed: Vec<Handed>,
    /// Members that have taken something.
    takers: Vec<Name>,
}

/// How long frames in private memory may keep a daemon that ends.
const REST_TIME_MAX: Duration = Duration::from_millis(1);

impl Ports {
    /// What a successor goes on with. Peers are not heard until [`Ports::keep`].
    pub fn hand_over(&mut self) -> Vec<Handed> {
        let trees = self.hand_over_trees();
        let endpoints = self.members.endpoints_mut();
        let handed = endpoints.filter_map(|endpoint| {
            let handed = endpoint.hand_over()?;
            endpoint.listen(false);
            Some(handed)
        });
        handed.chain(trees).collect()
    }

    /// Leaves all rings alone, for a successor; what lies in private memory is sent, or dropped and counted.
    pub fn rest(&mut self) -> bool {
        self.is_resting = true;
        let rests = match self.plane.rest(REST_TIME_MAX) {
            Ok(0) => true,
            Ok(frames) => {
                tracing::info!("{frames} frames that waited were dropped");
                true
            }
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        };
        // Nothing more is learned.
        self.write_leases();
        rests
    }

    /// There is no successor.
    pub fn keep(&mut self) {
        let is_used = std::mem::take(&mut self.is_resting);
        self.trees_stand = false;
        let mut again = Vec::new();
        for (name, member) in self.members.iter_mut() {
            let Some(endpoint) = member.endpoint.as_mut() else {
                continue;
            };
            endpoint.listen(true);
            if endpoint.keep(is_used) {
                member.rings = 0;
                match self.plane.detach(member.id) {
                    Ok(()) => endpoint.detached(),
                    Err(error) => {
                        // It can do nothing before `take_detached` names it.
                        endpoint.listen(false);
                        tracing::error!("{name}: {error}");
                    }
                }
                again.push(name.clone());
            }
            self.watch.make_due(endpoint);
        }
        // Before anything is fetched that is for one of them.
        self.drive_all(again);
        self.plane.go_on();
    }

    /// What members have counted, but for the kernel's drops, of which their endpoints tell.
    pub fn last_counters(&self) -> Vec<(Name, Counters)> {
        let names = self.members.keys();
        names
            .map(|name| (name.clone(), self.counters_with(name, &self.passed(name))))
            .collect()
    }

    /// What passed without a worker.
    fn passed(&self, name: &Name) -> InKernel {
        let member = self.members.get(name);
        let endpoint = member.and_then(|member| member.endpoint.as_ref());
        InKernel {
            passed: endpoint.map_or_else(Default::default, |endpoint| endpoint.passed()),
            ..InKernel::default()
        }
    }

    /// Goes on counting where the daemon before has ended.
    pub fn carry(&mut self, counters: Vec<(Name, Counters)>) {
        for (name, counters) in counters {
            if let Some(member) = self.members.get_mut(&name) {
                member.carried += &counters;
            }
        }
    }

    /// Endpoints that are made wait for [`Ports::adopted`].
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Gives endpoints what another daemon has handed over.
    pub fn take_over(&mut self, handed: Vec<Handed>) {
        if self.held.is_none() {
            return;
        }
        let handed = self.take_over_trees(handed);
        if let Some(held) = &mut self.held {
            held.handed.extend(handed);
            self.give();
        }
    }

    fn give(&mut self) {
        let Some(held) = &mut self.held else { return };
        let mut handed: std::collections::HashMap<_, _> = std::mem::take(&mut held.handed)
            .into_iter()
            .map(|handed| (handed.mark.clone(), handed))
            .collect();
        for (name, member) in self.members.iter_mut() {
            let Some(endpoint) = member.endpoint.as_mut() else {
                continue;
            };
            if let Some(handed) = endpoint.mark().and_then(|mark| handed.remove(&mark)) {
                endpoint.take_over(handed);
                held.takers.push(name.clone());
            }
        }
        held.handed = handed.into_values().collect();
    }

    /// Has those that were handed something go on with it: the daemon before leaves it alone.
    pub fn go(&mut self) {
        let takers = self
            .held
            .as_mut()
            .map(|held| std::mem::take(&mut held.takers));
        self.restore_leases();
        self.drive_all(takers.unwrap_or_default());
    }

    fn drive_all(&mut self, names: Vec<Name>) {
        self.plane.begin_batch();
        for name in names {
            self.drive(&name);
        }
        self.plane.end_batch();
    }

    /// Has all endpoints that were held go on, at one moment.
    pub(super) fn let_go(&mut self) {
        // For those that were made again since.
        self.give();
        if self.held.take().is_none() {
            return;
        }
        self.restore_leases();
        self.drive_all(self.members.keys().cloned().collect());
    }
}
