//! Port Information (17.27): what a port knows of the tree, its own or received, and how old it is.

use crate::bpdu::{Bpdu, Rst, SaidRole};
use crate::port::{CROSSING_NS, Info, Port, View};
use crate::vector::{PriorityVector, Times, ns};

/// What a message tells a port (rcvInfo, 17.21.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    SuperiorDesignated,
    RepeatedDesignated,
    InferiorDesignated,
    InferiorRootAlternate,
    /// Not in the standard: the neighbour's way to the root is another one than this port's, and better.
    SuperiorRootAlternate,
    Other,
}

/// Port Information.
pub(crate) fn inform(port: &mut Port, view: &View) -> bool {
    if !port.is_enabled() {
        return disable(port);
    }
    match port.info {
        Info::Disabled => age(port),
        _ if port.selected && port.update => update(port, view),
        _ if port.update || port.info == Info::Aged => return false,
        _ => {
            if let Some(message) = port.message.take() {
                receive(port, view, &message);
            } else if port.info == Info::Received && !port.info_while.runs(view.now) {
                age(port);
            } else {
                return false;
            }
        }
    }
    true
}

/// DISABLED.
fn disable(port: &mut Port) -> bool {
    port.message = None;
    if port.info == Info::Disabled {
        return false;
    }
    port.proposing = false;
    port.proposed = false;
    port.agree = false;
    port.agreed = false;
    port.disputed = false;
    port.info = Info::Disabled;
    port.ask_selection();
    true
}

/// AGED.
fn age(port: &mut Port) {
    port.info = Info::Aged;
    port.ask_selection();
}

/// UPDATE: the port now says what its bridge knows.
fn update(port: &mut Port, view: &View) {
    port.proposing = false;
    port.proposed = false;
    // betterorsameInfo(Mine)
    port.agreed &= port.info == Info::Mine
        && port.designated <= port.vector
        && port.designated.root == port.vector.root;
    port.synced &= port.agreed;
    if port.info != Info::Mine || port.designated != port.vector {
        // An agreement to what was said before may be on its way.
        let again = port.designated == port.said && port.said_while.runs(view.now);
        if again || port.info == Info::Received {
            port.crossing = view.timer(CROSSING_NS);
        }
        port.said = port.vector;
        port.said_while = view.timer(CROSSING_NS);
    }
    port.vector = port.designated;
    port.times = view.times;
    port.update = false;
    port.info = Info::Mine;
    port.new_info = true;
}

/// RECEIVE and the states that it leads to.
fn receive(port: &mut Port, view: &View, message: &Bpdu) {
    let heard = Heard::of(message);
    let told = heard.as_ref().map_or(Told::Other, |h| h.tells(port));
    match (told, heard) {
        (Told::SuperiorDesignated, Some(heard)) => {
            port.agreed = false;
            port.proposing = false;
            record_proposal(port, &heard);
            // betterorsameInfo(Received)
            port.agree &= port.info == Info::Received && heard.vector <= port.vector;
            port.vector = heard.vector;
            port.times = heard.times;
            keep(port, view);
            port.info = Info::Received;
            port.ask_selection();
        }
        (Told::RepeatedDesignated, Some(heard)) => {
            record_proposal(port, &heard);
            keep(port, view);
        }
        (Told::InferiorDesignated, Some(heard)) => record_dispute(port, &heard),
        (Told::InferiorRootAlternate, Some(heard)) => record_agreement(port, view, &heard),
        // What it agreed to holds no longer, and it does not follow this port as that is now.
        (Told::SuperiorRootAlternate, _) => {
            port.agreed = false;
            port.disputed = true;
        }
        _ => {}
    }
    set_change_flags(port, told, message);
}

/// What a BPDU says, its version left aside.
struct Heard {
    vector: PriorityVector,
    times: Times,
    role: SaidRole,
    /// The flags, of an RST BPDU.
    rst: Option<Rst>,
}

impl Heard {
    /// None for a notification, which says nothing of the tree.
    fn of(message: &Bpdu) -> Option<Heard> {
        let (vector, times, role, rst) = match message {
            Bpdu::Config(c) => (c.vector, c.times, SaidRole::Designated, None),
            Bpdu::Rst(r) if r.role == SaidRole::Unknown => {
                (r.vector, r.times, SaidRole::Designated, None)
            }
            Bpdu::Rst(r) => (r.vector, r.times, r.role, Some(*r)),
            Bpdu::Tcn => return None,
        };
        Some(Heard {
            vector,
            times: times.limited(),
            role,
            rst,
        })
    }

    /// rcvInfo (17.21.8).
    fn tells(&self, port: &Port) -> Told {
        let (own, heard) = (&port.designated, &self.vector);
        // Its own BPDU (9.3.4): a cable that leads back into the port.
        if heard.bridge == own.bridge && heard.port == own.port {
            return Told::Other;
        }
        let same = *heard == port.vector;
        match self.role {
            SaidRole::Designated if heard.supersedes(&port.vector) => Told::SuperiorDesignated,
            SaidRole::Designated if same && self.times != port.times => Told::SuperiorDesignated,
            SaidRole::Designated if same => Told::RepeatedDesignated,
            SaidRole::Designated => Told::InferiorDesignated,
            SaidRole::Root | SaidRole::AlternateOrBackup if *heard >= port.vector => {
                Told::InferiorRootAlternate
            }
            SaidRole::Root | SaidRole::AlternateOrBackup => Told::SuperiorRootAlternate,
            SaidRole::Unknown => Told::Other,
        }
    }
}

/// updtRcvdInfoWhile (17.21.23).
fn keep(port: &mut Port, view: &View) {
    let lasts = port.times.aged().message_age <= port.times.max_age;
    let time = if lasts { ns(port.times.hello) } else { 0 };
    port.info_while = view.timer(time.saturating_mul(3));
}

/// recordProposal (17.21.11).
fn record_proposal(port: &mut Port, heard: &Heard) {
    port.proposed |= heard.rst.is_some_and(|rst| rst.proposal);
}

/// recordDispute (802.1Q 13.29.13; 802.1D-2004 has it the other way round, by mistake): a port that learns takes itself for the
/// designated one and does not hear this port.
fn record_dispute(port: &mut Port, heard: &Heard) {
    if heard.rst.is_some_and(|rst| rst.learning) {
        port.disputed = true;
        port.agreed = false;
    }
}

/// recordAgreement (17.21.9). It counts for the root that this port speaks of, from a root port if that is one hop further, and from a port of
/// its own bridge for the cost, too: an older one may still be on its way when both ends have become designated ports.
fn record_agreement(port: &mut Port, view: &View, heard: &Heard) {
    if port.crossing.runs(view.now) {
        return;
    }
    let agrees = heard.rst.is_some_and(|rst| rst.agreement);
    let own = heard.vector.bridge == port.vector.bridge;
    let is_current =
        heard.vector.root == port.vector.root && (!own || heard.vector.cost == port.vector.cost);
    let follows =
        heard.role != SaidRole::Root || heard.times.message_age == port.times.aged().message_age;
    port.agreed = agrees && is_current && follows && view.rstp && port.conf.point_to_point;
    if port.agreed {
        port.proposing = false;
        port.disputed = false;
    }
}

/// setTcFlags (17.21.17), for what the standard's states call it.
fn set_change_flags(port: &mut Port, told: Told, message: &Bpdu) {
    let counts = !matches!(
        told,
        Told::InferiorDesignated | Told::SuperiorRootAlternate | Told::Other
    );
    match message {
        Bpdu::Tcn => port.received_notification = true,
        Bpdu::Config(c) if counts => {
            port.received_change |= c.topology_change;
            port.received_ack |= c.topology_change_ack;
        }
        Bpdu::Rst(r) if counts => port.received_change |= r.topology_change,
        _ => {}
    }
}
