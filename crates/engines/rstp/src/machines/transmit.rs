//! Port Transmit (17.26).

use crate::bpdu::{Bpdu, Config, Rst, SaidRole};
use crate::port::{Port, Role, View};

const SECOND_NS: u64 = 1_000_000_000;

/// Port Timers' part of txCount (17.22): it falls by one a second.
pub(crate) fn drain(port: &mut Port, view: &View) {
    if port.sent != 0 && !port.sent_less.runs(view.now) {
        port.sent = port.sent.saturating_sub(1);
        let wait = if port.sent == 0 { 0 } else { SECOND_NS };
        port.sent_less = view.timer(wait);
    }
}

/// What the port sends now, and whether the machine moved at all.
pub(crate) fn transmit(port: &mut Port, view: &View) -> (bool, Option<Bpdu>) {
    if !port.is_enabled() || !port.is_selected() {
        return (false, None);
    }
    if !port.hello_when.runs(view.now) {
        // TRANSMIT_PERIODIC, IDLE
        let tells = port.role == Role::Root && port.change_while.runs(view.now);
        port.new_info |= port.role == Role::Designated || tells;
        port.hello_when = view.timer(view.hello_ns());
        return (true, None);
    }
    if !port.new_info || port.sent >= view.hold_count {
        return (false, None);
    }
    let change = port.change_while.runs(view.now);
    let bpdu = match port.role {
        _ if port.send_rstp => Bpdu::Rst(rst(port, view, change)),
        // Who heard it would discard it (9.3.4).
        Role::Designated if view.times.message_age >= view.times.max_age => {
            port.new_info = false;
            return (true, None);
        }
        Role::Designated => Bpdu::Config(Config {
            vector: port.designated,
            times: view.times,
            topology_change: change,
            topology_change_ack: port.change_ack,
        }),
        Role::Root => Bpdu::Tcn,
        _ => return (false, None),
    };
    port.new_info = false;
    if bpdu != Bpdu::Tcn {
        port.change_ack = false;
    }
    if port.sent == 0 {
        port.sent_less = view.timer(SECOND_NS);
    }
    port.sent = port.sent.saturating_add(1);
    port.hello_when = view.timer(view.hello_ns());
    (true, Some(bpdu))
}

/// txRstp (17.21.20).
fn rst(port: &Port, view: &View, topology_change: bool) -> Rst {
    Rst {
        vector: port.designated,
        times: view.times,
        role: match port.role {
            Role::Root => SaidRole::Root,
            Role::Designated => SaidRole::Designated,
            Role::Alternate | Role::Backup => SaidRole::AlternateOrBackup,
            Role::Disabled => SaidRole::Unknown,
        },
        topology_change,
        proposal: port.proposing,
        agreement: port.agree,
        learning: port.is_learning(),
        forwarding: port.is_forwarding(),
    }
}
