//! One daemon takes another one's place: what it makes before, and what endpoints go on with.

use windlass_api::Name;
use windlass_attach::endpoint::Handed;

use super::Ports;

/// What the daemon before has handed over, and no endpoint has taken yet.
#[derive(Debug, Default)]
pub(super) struct Held {
    handed: Vec<Handed>,
}

impl Ports {
    /// What a successor goes on with. Peers are not heard until [`Ports::keep`].
    pub fn hand_over(&mut self) -> Vec<Handed> {
        let endpoints = self.members.endpoints_mut();
        let handed = endpoints.filter_map(|endpoint| {
            let handed = endpoint.hand_over()?;
            endpoint.listen(false);
            Some(handed)
        });
        handed.collect()
    }

    /// There is no successor.
    pub fn keep(&mut self) {
        for endpoint in self.members.endpoints_mut() {
            endpoint.keep();
            endpoint.listen(true);
            self.watch.make_due(endpoint);
        }
    }

    /// Endpoints that are made wait for [`Ports::adopted`].
    pub fn hold(&mut self) {
        self.held = Some(Held::default());
    }

    /// Gives endpoints what another daemon has handed over.
    pub fn take_over(&mut self, handed: Vec<Handed>) {
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
        for endpoint in self.members.endpoints_mut() {
            if let Some(handed) = endpoint.mark().and_then(|mark| handed.remove(&mark)) {
                endpoint.take_over(handed);
            }
        }
        held.handed = handed.into_values().collect();
    }

    /// Has all endpoints that were held go on, at one moment.
    pub(super) fn let_go(&mut self) {
        // For those that were made again since.
        self.give();
        if self.held.take().is_none() {
            return;
        }
        let names: Vec<Name> = self.members.keys().cloned().collect();
        self.plane.begin_batch();
        for name in names {
            self.drive(&name);
        }
        self.plane.end_batch();
    }
}
