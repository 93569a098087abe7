//! Flows of VNICs.
//!
//! # Model
//! A flow that is deleted in an edit stays with its VNIC until the edit ends: if the edit is undone, the same one is put back, with what it
//! has counted and what waits in it.

use std::collections::{BTreeMap, BTreeSet};

use windlass_api::{Flow, FlowCounters, Name};
use windlass_shaper::{Cause, Direction};
use windlass_stats::Drop;
use windlass_worker::dataplane::{FlowTotals, FlowTuning};

use super::Ports;
use crate::dataplane::translate::priority;

/// By VNIC: its flows, by name. They are kept apart from members, so that a VNIC that is made again has its own.
#[derive(Default)]
pub(super) struct Flows {
    by_vnic: BTreeMap<Name, BTreeMap<Name, FlowTuning>>,
    /// Deleted in this edit, with VNIC and name.
    gone: Vec<(Name, Name, FlowTuning)>,
    /// Flows that ever were.
    made: u64,
}

impl Flows {
    /// Those of a VNIC, within an edit with those that it deletes.
    pub(super) fn of(&self, vnic: &Name) -> Vec<FlowTuning> {
        let flows = self.by_vnic.get(vnic).into_iter();
        let gone = self.gone.iter().filter(|(of, ..)| of == vnic);
        let gone = gone.map(|(.., tuning)| tuning);
        flows
            .flat_map(BTreeMap::values)
            .chain(gone)
            .copied()
            .collect()
    }

    /// The edit is over: what it deleted does not come back.
    pub(super) fn end_edit(&mut self) {
        self.gone.clear();
    }

    fn id(&self, flow: &Flow) -> Option<u64> {
        let found = self.by_vnic.get(&flow.vnic)?.get(&flow.name)?;
        Some(found.id)
    }

    fn forget(&mut self, flow: &Flow) {
        if let Some(flows) = self.by_vnic.get_mut(&flow.vnic) {
            let gone = flows.remove(&flow.name);
            let gone = gone.map(|tuning| (flow.vnic.clone(), flow.name.clone(), tuning));
            self.gone.extend(gone);
            if flows.is_empty() {
                self.by_vnic.remove(&flow.vnic);
            }
        }
    }

    /// Takes a flow back that was deleted in this edit.
    fn take_back(&mut self, flow: &Flow) -> Option<u64> {
        let is_it = |(vnic, name, tuning): &(Name, Name, FlowTuning)| {
            let attributes = tuning.attributes == flow.attributes.0;
            *vnic == flow.vnic && *name == flow.name && attributes
        };
        let at = self.gone.iter().position(is_it)?;
        let (.., tuning) = self.gone.swap_remove(at);
        Some(tuning.id)
    }

    /// It is as written there; one that is there already has counted what it has.
    fn put(&mut self, flow: &Flow) {
        let known = self.id(flow).or_else(|| self.take_back(flow));
        let id = known.unwrap_or_else(|| {
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
    /// Has a VNIC have other flows from the end of the edit on.
    pub fn set_flow(&mut self, from: Option<&Flow>, to: Option<&Flow>) {
        match (from, to) {
            (_, Some(to)) => self.flows.put(to),
            (Some(from), None) => self.flows.forget(from),
            (None, None) => {}
        }
        let vnics = from.into_iter().chain(to).map(|flow| flow.vnic.clone());
        self.edit.flows.extend(vnics);
    }

    /// Gives VNICs the flows that they have after an edit.
    pub(super) fn end_flows(&mut self, vnics: BTreeSet<Name>) {
        self.flows.end_edit();
        for vnic in vnics {
            let Some(id) = self.members.get(&vnic).map(|member| member.id) else {
                continue;
            };
            if let Err(error) = self.plane.set_flows(id, self.flows.of(&vnic)) {
                tracing::error!("{vnic} has former flows: {error}");
            }
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
        rx_marked: rx.marked,
        rx_dropped: dropped(rx),
        rx_held: rx.held,
        tx_matched: tx.matched,
        tx_frames: tx.frames,
        tx_bytes: tx.bytes,
        tx_marked: tx.marked,
        tx_dropped: dropped(tx),
        tx_held: tx.held,
        drops: all
            .filter(|(_, n)| *n != 0)
            .map(|(reason, n)| (reason.name().to_owned(), n))
            .collect(),
    }
}
