//! Port Protocol Migration (17.24) and Bridge Detection (17.25).

use crate::port::{MIGRATE_NS, Migration, Port, View};

/// Port Protocol Migration: which version the port speaks.
pub(crate) fn migrate(port: &mut Port, view: &View) -> bool {
    let check = |port: &mut Port| {
        port.mcheck = false;
        port.send_rstp = view.rstp;
        port.migration = Migration::CheckingRstp;
        port.migration_delay = view.timer(MIGRATE_NS);
    };
    let sense = |port: &mut Port| {
        port.received_rstp = false;
        port.received_stp = false;
        port.migration = Migration::Sensing;
    };
    if !port.is_enabled() {
        let moved = port.migration != Migration::CheckingRstp || port.send_rstp != view.rstp;
        if moved {
            sense(port);
            check(port);
        }
        return moved;
    }
    let waits = port.migration_delay.runs(view.now);
    match port.migration {
        Migration::CheckingRstp if !waits => sense(port),
        Migration::SelectingStp if !waits || port.mcheck => sense(port),
        Migration::Sensing if port.mcheck => check(port),
        Migration::Sensing if view.rstp && !port.send_rstp && port.received_rstp => check(port),
        Migration::Sensing if port.send_rstp && port.received_stp => {
            port.send_rstp = false;
            port.migration = Migration::SelectingStp;
            port.migration_delay = view.timer(MIGRATE_NS);
        }
        _ => return false,
    }
    true
}

/// Bridge Detection: whether the port is an edge. A BPDU ends that ([`crate::Bridge::receive`]).
pub(crate) fn detect(port: &mut Port, view: &View) -> bool {
    let is_edge = if !port.is_enabled() {
        port.conf.edge
    } else {
        let is_silent = !port.edge_delay.runs(view.now);
        port.is_edge || (is_silent && port.conf.auto_edge && port.send_rstp && port.proposing)
    };
    let moved = is_edge != port.is_edge;
    port.is_edge = is_edge;
    moved
}
