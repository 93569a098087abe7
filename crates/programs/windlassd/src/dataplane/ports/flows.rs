//! Flows of VNICs.

use std::collections::BTreeMap;

use windlass_api::{Flow, FlowCounters, Name};
use windlass_shaper::{Cause, Direction};
use windlass_stats::Drop;
use windlass_worker::dataplane::{FlowTotals, FlowTuning};

use super::{Ports, failed};
use crate::backend::BackendError;
use crate::dataplane::translate::priority;

/// By VNIC: its flows, by name. They are kept apart from members, so that a VNIC that is made again has its own.
#[derive(Default)]
pub(super) struct Flows {
    by_vnic: BTreeMap<Name, BTreeMap<Name, FlowTuning>>,
    /// Flows that ever were.
    made: u64,
}

impl Flows {
    /// Those of a VNIC.
    pub(super) fn of(&self, vnic: &Name) -> Vec<FlowTuning> {
        let flows = self.by_vnic.get(vnic).into_iter();
        flows.flat_map(BTreeMap::values).copied().collect()
    }

    fn id(&self, flow: &Flow) -> Option<u64> {
        let found = self.by_vnic.get(&flow.vnic)?.get(&flow.name)?;
        Some(found.id)
    }

    fn forget(&mut self, flow: &Flow) {
        if let Some(flows) = self.by_vnic.get_mut(&flow.vnic) {
            flows.remove(&flow.name);
            if flows.is_empty() {
                self.by_vnic.remove(&flow.vnic);
            }
        }
    }

    /// It is as written there; one that is there already has counted what it has.
    fn put(&mut self, flow: &Flow) {
        let id = self.id(flow).unwrap_or_else(|| {
            self.made += 1;
            self.made
        });
        let settings = flow.settings();
        let tuning = FlowTuning {
            id,
            attributes: flow.attributes.0,
            maxbw: u64::from(settings.maxbw) * 1_000_000,
            priority: priority(settings.priority),
        };
        let flows = self.by_vnic.entry(flow.vnic.clone()).or_default();
        flows.insert(flow.name.clone(), tuning);
    }
}

impl Ports {
    pub fn set_flow(&mut self, from: Option<&Flow>, to: Option<&Flow>) -> Result<(), BackendError> {
        match (from, to) {
            (_, Some(to)) => self.flows.put(to),
            (Some(from), None) => self.flows.forget(from),
            (None, None) => {}
        }
        let vnic = from.or(to).map(|flow| &flow.vnic);
        match vnic.and_then(|vnic| Some((vnic, self.members.get(vnic)?.id))) {
            Some((vnic, id)) => {
                let flows = self.flows.of(vnic);
                self.plane.set_flows(id, flows).map_err(failed)
            }
            None => Ok(()),
        }
    }

    pub fn flow_counters(&self, flow: &Flow) -> FlowCounters {
        let member = self.members.get(&flow.vnic).map(|member| member.id);
        let found = member.zip(self.flows.id(flow));
        let totals = found.map(|(member, id)| self.plane.flow_totals(member, id));
        match totals {
            Some(Ok([rx, tx])) => counters(rx, tx),
            _ => FlowCounters::default(),
        }
    }
}

/// As they are shown.
fn counters(rx: FlowTotals, tx: FlowTotals) -> FlowCounters {
    let dropped = |totals: FlowTotals| totals.full + totals.slow + totals.lost;
    let drops = |direction, totals: FlowTotals, lost: Drop| {
        [
            (Cause::Full.reason(direction), totals.full),
            (Cause::Slow.reason(direction), totals.slow),
            (lost, totals.lost),
        ]
    };
    let all = drops(Direction::Out, rx, Drop::NotReady)
        .into_iter()
        .chain(drops(Direction::In, tx, Drop::PeerDown));
    FlowCounters {
        rx_matched: rx.matched,
        rx_frames: rx.frames,
        rx_bytes: rx.bytes,
        rx_dropped: dropped(rx),
        rx_held: rx.held,
        tx_matched: tx.matched,
        tx_frames: tx.frames,
        tx_bytes: tx.bytes,
        tx_dropped: dropped(tx),
        tx_held: tx.held,
        drops: all
            .filter(|(_, n)| *n != 0)
            .map(|(reason, n)| (reason.name().to_owned(), n))
            .collect(),
    }
}
