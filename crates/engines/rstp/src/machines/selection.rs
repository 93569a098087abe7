//! Port Role Selection (17.28): one for a bridge.

use serde::{Deserialize, Serialize};

use crate::port::{Info, Port, Role};
use crate::vector::{BridgeId, PriorityVector, Times};

/// What the bridge knows of the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    /// rootPriority.
    pub(crate) root: PriorityVector,
    /// rootPortId: the number of the root port, 0 if this bridge is the root.
    pub(crate) root_port: u16,
    /// rootTimes.
    pub(crate) times: Times,
}

impl Tree {
    /// The bridge as its own root.
    pub(crate) fn alone(id: BridgeId, times: Times) -> Tree {
        Tree {
            root: PriorityVector {
                root: id,
                bridge: id,
                ..PriorityVector::default()
            },
            root_port: 0,
            times,
        }
    }
}

/// The port's root path priority vector (17.5), with its own id as the last word; None if no root is behind it.
fn path(port: &Port, id: BridgeId) -> Option<(PriorityVector, u16)> {
    let leads = port.info == Info::Received
        && port.vector.bridge.address() != id.address()
        && !port.conf.root_guard;
    let vector = PriorityVector {
        cost: port.vector.cost.saturating_add(port.conf.cost),
        ..port.vector
    };
    leads.then_some((vector, port.id.0))
}

/// updtRolesTree (17.21.25): the root, and a role for every port. `own` are the times of this bridge.
pub(crate) fn select(ports: &mut [Port], id: BridgeId, own: Times) -> Tree {
    let mut tree = Tree::alone(id, own);
    let mut best = (tree.root, 0);
    for port in ports.iter() {
        if let Some(way) = path(port, id).filter(|way| *way < best) {
            best = way;
            tree = Tree {
                root: way.0,
                root_port: port.id.number(),
                times: port.times.aged(),
            };
        }
    }
    let times = said(&tree, own);
    for port in ports.iter_mut() {
        port.reselect = false;
        port.designated = PriorityVector {
            root: tree.root.root,
            cost: tree.root.cost,
            bridge: id,
            port: port.id,
        };
        let is_root = port.id.number() == tree.root_port;
        (port.selected_role, port.update) = role(port, is_root, times);
    }
    // setSelectedTree (17.21.16)
    ports.iter_mut().for_each(|port| port.selected = true);
    tree
}

/// designatedTimes: the root's, with this bridge's hello.
pub(crate) fn said(tree: &Tree, own: Times) -> Times {
    Times {
        hello: own.hello,
        ..tree.times
    }
}

/// A port's role, and whether it has to say something new for it.
fn role(port: &Port, is_root: bool, times: Times) -> (Role, bool) {
    match port.info {
        Info::Disabled => (Role::Disabled, false),
        Info::Aged => (Role::Designated, true),
        Info::Mine => {
            let is_new = port.vector != port.designated || port.times != times;
            (Role::Designated, is_new)
        }
        Info::Received if is_root => (Role::Root, false),
        Info::Received if port.designated < port.vector => (Role::Designated, true),
        Info::Received if port.vector.bridge.address() == port.designated.bridge.address() => {
            (Role::Backup, false)
        }
        Info::Received => (Role::Alternate, false),
    }
}
