//! Topology Change (17.31): who has to forget addresses, and who is told.

use super::Step;
use crate::port::{Port, Role, Topology, View};

/// What the machine did, and whether addresses learned on the port are to be forgotten (fdbFlush, 17.19.7).
pub(crate) fn change(port: &mut Port, view: &View) -> (Step, bool) {
    let takes_part = matches!(port.role, Role::Root | Role::Designated);
    match port.topology {
        Topology::Inactive if port.learn => {
            port.topology = Topology::Learning;
            forget_news(port);
            (Step::Moved, false)
        }
        Topology::Learning if takes_part && port.forward && !port.is_edge => {
            // DETECTED
            tell(port, view);
            port.new_info = true;
            port.topology = Topology::Active;
            (Step::PropagateChange, false)
        }
        Topology::Learning if has_news(port) => {
            forget_news(port);
            (Step::Moved, false)
        }
        Topology::Learning if !takes_part && port.is_quiet() => {
            port.topology = Topology::Inactive;
            port.change_while = <_>::default();
            port.change_ack = false;
            (Step::Moved, true)
        }
        Topology::Active if !takes_part || port.is_edge => {
            port.topology = Topology::Learning;
            forget_news(port);
            (Step::Moved, false)
        }
        Topology::Active => active(port, view),
        Topology::Inactive | Topology::Learning => (Step::Still, false),
    }
}

fn has_news(port: &Port) -> bool {
    port.received_change || port.received_notification || port.received_ack || port.propagate
}

fn forget_news(port: &mut Port) {
    port.received_change = false;
    port.received_notification = false;
    port.received_ack = false;
    port.propagate = false;
}

fn active(port: &mut Port, view: &View) -> (Step, bool) {
    if port.received_change || port.received_notification {
        // NOTIFIED_TCN, NOTIFIED_TC
        if port.received_notification {
            tell(port, view);
        }
        port.received_change = false;
        port.change_ack |= port.received_notification && port.role == Role::Designated;
        port.received_notification = false;
        (Step::PropagateChange, false)
    } else if port.propagate {
        // PROPAGATING
        tell(port, view);
        port.propagate = false;
        (Step::Moved, true)
    } else if port.received_ack {
        // ACKNOWLEDGED
        port.change_while = <_>::default();
        port.received_ack = false;
        (Step::Moved, false)
    } else {
        (Step::Still, false)
    }
}

/// newTcWhile (17.21.7).
fn tell(port: &mut Port, view: &View) {
    if port.change_while.runs(view.now) {
        return;
    }
    let time = if port.send_rstp {
        port.new_info = true;
        view.hello_ns().saturating_add(1_000_000_000)
    } else {
        view.max_age_ns().saturating_add(view.forward_delay_ns())
    };
    port.change_while = view.timer(time);
}
