//! Port Role Transitions (17.29) and Port State Transition (17.30).
//!
//! Without an agreement a port waits for FwdDelay in each state, as in 802.1D-1998. The forwardDelay of 17.20.5 is shorter (HelloTime on a port
//! that speaks RSTP): where stale information counts up around a cycle, at one BPDU a second, it is too short, and the cycle forwards. The
//! simulation shows that within 30 seeds.

use super::Step;
use crate::port::{Port, Role, State, View};

/// Port Role Transitions.
pub(crate) fn transition(port: &mut Port, view: &View) -> Step {
    if !port.is_selected() {
        return Step::Still;
    }
    if port.role != port.selected_role {
        change(port, view);
        return Step::Moved;
    }
    match port.role {
        Role::Disabled => Step::of(disabled(port)),
        Role::Root => root(port, view),
        Role::Designated => Step::of(designated(port, view)),
        Role::Alternate | Role::Backup => alternate(port, view),
    }
}

/// DISABLE_PORT, BLOCK_PORT, ROOT_PORT, DESIGNATED_PORT: the selected role is taken. Timers that the former role kept
/// reloading start.
fn change(port: &mut Port, view: &View) {
    match port.role {
        Role::Disabled => port.forward_while = view.timer(view.max_age_ns()),
        Role::Root => port.root_while = view.timer(view.forward_delay_ns()),
        Role::Alternate => port.forward_while = view.timer(view.forward_delay_ns()),
        Role::Backup => {
            port.forward_while = view.timer(view.forward_delay_ns());
            port.backup_while = view.timer(view.hello_ns().saturating_mul(2));
        }
        Role::Designated => {}
    }
    port.role = port.selected_role;
    port.disputed = false;
    // What an alternate port agreed to holds for what its bridge said then; by this way it says something worse.
    port.agree &= port.role != Role::Root;
    if !matches!(port.role, Role::Root | Role::Designated) {
        port.learn = false;
        port.forward = false;
        // Whatever it was in sync with: it is once it is quiet.
        port.synced = false;
    }
}

/// DISABLED_PORT and ALTERNATE_PORT: in sync, and no root port of late.
fn sync_when_quiet(port: &mut Port) -> bool {
    let is_due = port.is_quiet()
        && (port.sync || port.reroot || !port.synced || port.root_while != <_>::default());
    if is_due {
        port.synced = true;
        port.root_while = <_>::default();
        port.sync = false;
        port.reroot = false;
    }
    is_due
}

fn disabled(port: &mut Port) -> bool {
    sync_when_quiet(port)
}

fn alternate(port: &mut Port, view: &View) -> Step {
    if sync_when_quiet(port) {
        return Step::Moved;
    }
    if !port.is_quiet() {
        return Step::Still;
    }
    answer_proposal(port, view)
}

/// ROOT_PROPOSED and ROOT_AGREED, ALTERNATE_PROPOSED and ALTERNATE_AGREED.
fn answer_proposal(port: &mut Port, view: &View) -> Step {
    let agrees = (view.all_synced && !port.agree) || (port.proposed && port.agree);
    if agrees {
        port.proposed = false;
        port.sync = false;
        port.agree = true;
        port.new_info = true;
        Step::Moved
    } else if port.proposed && !port.agree {
        port.proposed = false;
        Step::SyncTree
    } else {
        Step::Still
    }
}

fn root(port: &mut Port, view: &View) -> Step {
    let answer = answer_proposal(port, view);
    if answer != Step::Still {
        return answer;
    }
    if !port.forward && !port.reroot {
        return Step::ReRootTree; // REROOT
    }
    if port.reroot && port.forward {
        port.reroot = false; // REROOTED
        return Step::Moved;
    }
    let waited = !port.forward_while.runs(view.now);
    let is_only_root = view.rerooted && !port.backup_while.runs(view.now) && view.rstp;
    Step::of((waited || is_only_root) && open(port, view))
}

/// One state further: ROOT_LEARN and ROOT_FORWARD, DESIGNATED_LEARN and DESIGNATED_FORWARD.
fn open(port: &mut Port, view: &View) -> bool {
    if !port.learn {
        port.learn = true;
        port.forward_while = view.timer(view.forward_delay_ns());
    } else if !port.forward {
        port.forward = true;
        port.forward_while = <_>::default();
    } else {
        return false;
    }
    true
}

fn designated(port: &mut Port, view: &View) -> bool {
    let retires = port.reroot && port.root_while.runs(view.now);
    if !port.forward && !port.agreed && !port.proposing && !port.is_edge {
        // DESIGNATED_PROPOSE
        port.proposing = true;
        port.edge_delay = view.edge_delay(&port.conf);
        port.new_info = true;
        return true;
    }
    if port.crossing != <_>::default() && !port.crossing.runs(view.now) {
        // From now on an answer counts.
        port.crossing = <_>::default();
        port.new_info |= port.proposing;
        return true;
    }
    let is_in_sync = port.is_quiet() || port.agreed || port.is_edge;
    if (is_in_sync && !port.synced) || (port.sync && port.synced) {
        // DESIGNATED_SYNCED
        port.root_while = <_>::default();
        port.synced = true;
        port.sync = false;
        return true;
    }
    if port.reroot && !retires {
        port.reroot = false; // DESIGNATED_RETIRED
        return true;
    }
    let has_to_stop = (port.sync && !port.synced) || retires || port.disputed;
    if has_to_stop && !port.is_edge && (port.learn || port.forward) {
        // DESIGNATED_DISCARD
        port.learn = false;
        port.forward = false;
        port.disputed = false;
        port.forward_while = view.timer(view.forward_delay_ns());
        return true;
    }
    let may = !port.forward_while.runs(view.now) || port.agreed || port.is_edge;
    if may && !retires && !port.sync && open(port, view) {
        if port.forward {
            port.agreed = port.send_rstp; // DESIGNATED_FORWARD
        }
        return true;
    }
    false
}

/// Port State Transition: the state that is to be put into effect now, if it is another one.
pub(crate) fn state(port: &mut Port) -> Option<State> {
    let next = match (port.state, port.learn, port.forward) {
        (State::Discarding, true, _) => State::Learning,
        (State::Learning, false, _) => State::Discarding,
        (State::Learning, true, true) => State::Forwarding,
        (State::Forwarding, _, false) => State::Discarding,
        _ => return None,
    };
    port.state = next;
    Some(next)
}
