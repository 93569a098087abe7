//! Spanning tree: the engine of each bridge that has it, between the data plane and the clock.
//!
//! # Model
//! ```text
//! Ports::hear --BPDU--> Bridge::receive --+
//! members, rings ---> Bridge::set_port,   |   +--> DataPlane::set_states   (before what is sent: a port stops first)
//!                     Bridge::set_link ---+---+--> FdbWriter::flush_member
//! Ports::wait ------> Bridge::advance ----+   +--> DataPlane::send
//! ```
//! [`Ports::run_trees`] compares each engine with the members that have changed, after every turn of the thread outside of edits: no edit has to
//! know of spanning tree. A member that takes part starts as discarding ([`Ports::first_state`]).
//!
//! A member is up while its state is. Where a link is cut and the kernel does not know, three hellos without a BPDU tell.
//!
//! # Over an upgrade
//! A successor goes on with the engines, on its own clock, and with the state of each port, so that nobody else sees a change
//! ([`Ports::hand_over_trees`]). Until it does, or [`Ports::keep`] says that there is none, the predecessor's trees stand still: what they would
//! agree to the successor would not know. What cannot be read, of another version say, begins anew.
//!
//! # Limits
//! 4,095 members of a bridge take part; one more forwards nothing. The bridge's address is the lowest of its members that take part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windlass_api::{Name, StpBridge, StpMember, TreePortView, TreeView};
use windlass_attach::endpoint::Handed;
use windlass_bridge::member::{MemberConf, PortState};
use windlass_frame::Tick;
use windlass_rstp::vector::PortId;
use windlass_rstp::{Action, Bridge, BridgeConf, PortConf, PortStatus, Role, State, bpdu};
use windlass_worker::dataplane::now;

use super::members::Follower;
use super::{MemberState, Ports, mac_word};
use crate::dataplane::host::Host;

/// With the name of its bridge, the mark of a tree that is handed over; in pieces of at most so many bytes.
const MARK: &str = "spanning tree ";
const PIECE: usize = 16 << 10;

/// One member in a tree.
struct TreePort {
    /// Its number in the tree, and in the data plane.
    number: u16,
    id: u16,
    /// Its address, first byte lowest.
    mac: u64,
    /// It sends BPDUs.
    sends: bool,
    cost: u32,
    bpdus: Bpdus,
}

/// BPDUs of a port since it was made.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Bpdus {
    sent: u64,
    received: u64,
    malformed: u64,
}

/// The spanning tree of one bridge.
pub(super) struct Tree {
    engine: Bridge,
    ports: BTreeMap<Name, TreePort>,
    /// Their names by number in the tree.
    pub(super) names: BTreeMap<u16, Name>,
    /// The lowest address of its ports, first byte lowest; 0: there is none.
    mac: u64,
    /// It was compared with all members of its bridge, and none of them waits for a number.
    is_matched: bool,
}

/// A tree for a successor.
#[derive(Serialize, Deserialize)]
struct Left {
    /// Based on 0.
    engine: Bridge,
    ports: Vec<(Name, u16, Bpdus)>,
}

impl Tree {
    fn new(engine: Bridge) -> Tree {
        Tree {
            engine,
            ports: BTreeMap::new(),
            names: BTreeMap::new(),
            mac: 0,
            is_matched: false,
        }
    }

    fn free_number(&self) -> Option<u16> {
        let is_free = |n: &u16| !self.names.contains_key(n);
        (1..=PortId::NUMBER_MAX).find(is_free)
    }

    fn insert(&mut self, name: &Name, port: TreePort) {
        self.names.insert(port.number, name.clone());
        self.ports.insert(name.clone(), port);
    }

    fn remove(&mut self, name: &Name) {
        if let Some(port) = self.ports.remove(name) {
            self.names.remove(&port.number);
        }
    }

    fn name(&self, number: u16) -> Option<(&Name, &TreePort)> {
        self.ports.get_key_value(self.names.get(&number)?)
    }
}

/// Whether a member of a bridge with a tree is watched by it.
fn takes_part(member: &MemberState) -> bool {
    let stp = &member.settings.stp;
    (stp.member || stp.bpdu_guard) && !member.settings.span
}

/// A member as a port of a tree.
fn tree_port(member: &MemberState, host: &mut dyn Host, number: u16) -> TreePort {
    let device = member.device.as_deref().and_then(|d| host.device(d));
    TreePort {
        number,
        id: member.id,
        mac: match member.own {
            Some(mac) => mac_word(mac),
            None => device.map_or(0, |device| device.mac),
        },
        sends: false,
        cost: 0,
        bpdus: Bpdus::default(),
    }
}

fn port_conf(stp: &StpMember) -> PortConf {
    let usual = PortConf::default();
    PortConf {
        cost: stp.cost.unwrap_or(usual.cost),
        priority: stp.priority,
        // What takes no part says nothing, and nobody can agree with it.
        edge: stp.edge == Some(true) || !stp.member,
        auto_edge: stp.edge != Some(false),
        point_to_point: stp.point_to_point,
        root_guard: stp.root_guard,
        bpdu_guard: stp.bpdu_guard,
    }
}

fn bridge_conf(stp: &StpBridge, mac: u64) -> BridgeConf {
    let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
    BridgeConf {
        address: [a, b, c, d, e, f],
        priority: stp.priority,
        max_age_s: stp.max_age_s,
        hello_s: stp.hello_s,
        forward_delay_s: stp.forward_delay_s,
        hold_count: stp.hold_count,
        rstp: stp.rstp,
    }
}

fn plane_state(state: State) -> PortState {
    match state {
        State::Discarding => PortState::Discarding,
        State::Learning => PortState::Learning,
        State::Forwarding => PortState::Forwarding,
    }
}

impl Ports {
    /// The configuration of a member that is to come to a bridge: it forwards nothing before the tree says so.
    pub(super) fn first_state(&self, bridge: &Name, conf: MemberConf) -> MemberConf {
        let has_tree = self.bridges.get(bridge).is_some_and(|b| b.stp.is_some());
        let waits = has_tree && conf.stp && !conf.span;
        let state = if waits {
            PortState::Discarding
        } else {
            PortState::Forwarding
        };
        MemberConf { state, ..conf }
    }

    /// When a tree has something to do next.
    pub(super) fn trees_due(&self) -> Option<Instant> {
        if self.trees_stand {
            return None;
        }
        let due = self.trees.values().filter_map(|tree| tree.engine.due());
        let left = due.min()?.since(now());
        Some(Instant::now() + Duration::from_nanos(left))
    }

    /// Gives a tree a BPDU that came from one of its members.
    pub(super) fn hear_bpdu(&mut self, id: u16, frame: &[u8]) {
        if !frame.starts_with(&bpdu::DESTINATION) {
            return;
        }
        let name = self.members.name_of(id);
        let member = name.and_then(|name| self.members.get(name));
        let tree = member.and_then(|member| self.trees.get_mut(&member.bridge));
        let (Some(name), Some(tree)) = (name, tree) else {
            return;
        };
        let Some(port) = tree.ports.get_mut(name).filter(|port| port.id == id) else {
            return;
        };
        match bpdu::parse(frame) {
            Ok(heard) => {
                port.bpdus.received += 1;
                tree.engine.receive(port.number, heard, now());
            }
            Err(error) => {
                port.bpdus.malformed += 1;
                tracing::debug!("a malformed BPDU: {error}");
            }
        }
    }

    /// Asks the bridges behind a member, or behind all, again whether they speak RSTP; behind how many.
    pub fn check_migration(&mut self, bridge: &Name, member: Option<&Name>) -> u64 {
        let Some(tree) = self.trees.get_mut(bridge).filter(|_| !self.trees_stand) else {
            return 0;
        };
        let is_meant = |name: &Name| member.is_none_or(|member| member == name);
        let ports = tree.ports.iter().filter(|(name, _)| is_meant(name));
        let asked = ports.map(|(_, port)| tree.engine.check_migration(port.number, now()));
        asked.count() as u64
    }

    /// Brings trees up to date with members and time, and does what they ask for.
    pub(super) fn run_trees(&mut self) {
        if self.trees_stand {
            return;
        }
        let configured = self.bridges.iter();
        let wanted: Vec<_> = configured
            .filter_map(|(name, bridge)| Some((name.clone(), bridge.stp?)))
            .collect();
        self.drop_trees(&wanted);
        let changed = self.members.take_changed(Follower::Trees);
        for (name, stp) in wanted {
            let new = || Tree::new(Bridge::new(bridge_conf(&stp, 0), now()));
            let mut tree = self.trees.remove(&name).unwrap_or_else(new);
            let all = (!tree.is_matched).then(|| {
                let mut all = self.members.on_bridge(&name);
                all.extend(tree.ports.keys().cloned());
                all
            });
            let names = all.as_ref().unwrap_or(&changed);
            tree.is_matched = self.match_ports(&name, names, &mut tree);
            // Before anything is said.
            let conf = bridge_conf(&stp, tree.mac);
            tree.engine.configure(conf, now());
            self.match_links(names, &mut tree);
            tree.engine.advance(now());
            self.act(&name, &mut tree);
            self.trees.insert(name, tree);
        }
    }

    /// Bridges without a tree any more: all their members forward.
    fn drop_trees(&mut self, wanted: &[(Name, StpBridge)]) {
        let is_wanted = |name: &Name| wanted.iter().any(|(wanted, _)| wanted == name);
        let gone: Vec<Name> = self
            .trees
            .keys()
            .filter(|n| !is_wanted(n))
            .cloned()
            .collect();
        for name in gone {
            let members = self.members.values().filter(|m| m.bridge == name);
            let open: Vec<_> = members.map(|m| (m.id, PortState::Forwarding)).collect();
            self.plane.set_states(&open);
            self.trees.remove(&name);
        }
    }

    /// Tells a tree which of these members are its ports; whether it has a number for each of them.
    fn match_ports(&mut self, bridge: &Name, names: &BTreeSet<Name>, tree: &mut Tree) -> bool {
        let (mut opened, mut is_other, mut has_room) = (Vec::new(), false, true);
        for name in names {
            let member = self.members.get(name).filter(|m| m.bridge == *bridge);
            let Some(port) = tree.ports.get(name) else {
                continue;
            };
            let same = member.filter(|m| m.id == port.id);
            if !same.is_some_and(takes_part) {
                tree.engine.remove_port(port.number, now());
                opened.extend(same.map(|m| (m.id, PortState::Forwarding)));
                tree.remove(name);
                is_other = true;
            }
        }
        self.plane.set_states(&opened);
        for name in names {
            let member = self.members.get(name).filter(|m| m.bridge == *bridge);
            let Some(member) = member.filter(|m| takes_part(m) && !tree.ports.contains_key(name))
            else {
                continue;
            };
            let Some(number) = tree.free_number() else {
                has_room = false;
                break;
            };
            let port = tree_port(member, self.host.as_mut(), number);
            tree.insert(name, port);
            is_other = true;
        }
        if is_other || !tree.is_matched {
            let macs = tree.ports.values().map(|port| port.mac);
            let mac = macs
                .filter(|mac| *mac != 0)
                .min_by_key(|mac| mac.swap_bytes());
            tree.mac = mac.unwrap_or(0);
        }
        has_room
    }

    /// Tells a tree how these of its ports are configured, and whether they are up.
    fn match_links(&self, names: &BTreeSet<Name>, tree: &mut Tree) {
        for name in names {
            let (Some(member), Some(port)) = (self.members.get(name), tree.ports.get_mut(name))
            else {
                continue;
            };
            let settings = &member.settings.stp;
            port.sends = settings.member;
            let conf = port_conf(settings);
            port.cost = conf.cost;
            tree.engine.set_port(port.number, conf, now());
            let endpoint = member.endpoint.as_ref();
            let is_up = member.rings != 0 && endpoint.is_some_and(|e| e.status().up);
            tree.engine.set_link(port.number, is_up, now());
        }
    }

    /// Stops all trees, and says how they stand, for a successor.
    pub(super) fn hand_over_trees(&mut self) -> Vec<Handed> {
        self.run_trees();
        self.trees_stand = true;
        let mut handed = Vec::new();
        for (bridge, tree) in &self.trees {
            let ports = tree.ports.iter();
            let left = Left {
                engine: tree.engine.rebased(Tick(0)),
                ports: ports
                    .map(|(name, port)| (name.clone(), port.number, port.bpdus))
                    .collect(),
            };
            let state = serde_json::to_vec(&left).unwrap_or_default();
            handed.extend(state.chunks(PIECE).map(|piece| Handed {
                mark: format!("{MARK}{bridge}"),
                state: piece.to_vec(),
                fds: Vec::new(),
            }));
        }
        handed
    }

    /// Goes on with the trees among what was handed over, and puts their ports into the states that they were in; gives the rest.
    pub(super) fn take_over_trees(&mut self, handed: Vec<Handed>) -> Vec<Handed> {
        let (trees, others): (Vec<_>, Vec<_>) = handed
            .into_iter()
            .partition(|handed| handed.mark.starts_with(MARK));
        for pieces in trees.chunk_by(|one, two| one.mark == two.mark) {
            let name = pieces.first().and_then(|p| p.mark.strip_prefix(MARK));
            let Some(bridge) = name.and_then(|name| name.parse::<Name>().ok()) else {
                continue;
            };
            let state: Vec<u8> = pieces
                .iter()
                .flat_map(|p| p.state.iter().copied())
                .collect();
            match serde_json::from_slice(&state) {
                Ok(left) => self.go_on_with(bridge, left),
                Err(error) => {
                    tracing::warn!("bridge {bridge}: its spanning tree begins anew: {error}")
                }
            }
        }
        others
    }

    fn go_on_with(&mut self, bridge: Name, left: Left) {
        let mut tree = Tree::new(left.engine.rebased(now()));
        let mut states = Vec::new();
        for (name, number, bpdus) in left.ports {
            let member = self.members.get(&name).filter(|m| m.bridge == bridge);
            if let (Some(member), Some(port)) = (member, tree.engine.port(number)) {
                states.push((member.id, plane_state(port.state)));
                let mut port = tree_port(member, self.host.as_mut(), number);
                port.bpdus = bpdus;
                tree.insert(&name, port);
            } else {
                tree.engine.remove_port(number, now());
            }
        }
        self.plane.set_states(&states);
        self.trees.insert(bridge, tree);
    }

    /// Does what a tree asks for, in its order.
    fn act(&mut self, bridge: &Name, tree: &mut Tree) {
        let mut states = Vec::new();
        for action in tree.engine.take_actions() {
            match action {
                Action::Set(number, state) => {
                    if let Some((name, port)) = tree.name(number) {
                        tracing::info!("bridge {bridge}: {name} is {state:?}");
                        states.push((port.id, plane_state(state)));
                        self.sink.changed(name);
                    }
                }
                Action::Flush(number) => {
                    self.forget_learned(bridge, tree, number);
                    self.reopen_groups(bridge);
                }
                Action::Guarded(number) => {
                    if let Some((name, _)) = tree.name(number) {
                        tracing::warn!("bridge {bridge}: {name} is closed, a BPDU came from it");
                    }
                }
                Action::Send(number, message) => {
                    self.plane.set_states(&std::mem::take(&mut states));
                    let frame = message.frame(tree.engine.conf().address);
                    let name = tree.names.get(&number);
                    let port = name.and_then(|name| tree.ports.get_mut(name));
                    if let (Some(name), Some(port)) = (name, port.filter(|port| port.sends)) {
                        match self.plane.send(port.id, &frame) {
                            Ok(()) => port.bpdus.sent += 1,
                            Err(error) => {
                                tracing::warn!("bridge {bridge}: no BPDU to {name}: {error}");
                            }
                        }
                    }
                }
            }
        }
        self.plane.set_states(&states);
    }

    fn forget_learned(&self, bridge: &Name, tree: &Tree, number: u16) {
        let (Some(state), Some((_, port))) = (self.bridges.get(bridge), tree.name(number)) else {
            return;
        };
        let id = port.id;
        let flush = self
            .plane
            .fdb(state.id, move |w, _| w.flush_member(id, false));
        if let Err(error) = flush {
            tracing::error!("bridge {bridge}: {error}");
        }
    }

    /// A member's part in its bridge's tree, in words.
    pub(super) fn describe_port(&self, name: &Name) -> Option<String> {
        let tree = self.trees.get(&self.members.get(name)?.bridge)?;
        let status = tree.engine.port(tree.ports.get(name)?.number)?;
        let root = tree.engine.root();
        let part = describe(&status);
        Some(format!("{part}; root {} at cost {}", root.root, root.cost))
    }

    /// The tree of a bridge, for people.
    pub(in crate::dataplane) fn tree(&self, bridge: &Name) -> Option<TreeView> {
        let tree = self.trees.get(bridge)?;
        let root = tree.engine.root();
        let root_port = tree.engine.root_port().and_then(|number| tree.name(number));
        let ports = tree.ports.iter().filter_map(|(name, port)| {
            let status = tree.engine.port(port.number)?;
            let (bridge, at) = (status.vector.bridge, status.vector.port);
            let member = self.members.get(name)?;
            Some(TreePortView {
                member: name.clone(),
                part: describe(&status),
                cost: port.cost,
                designated: format!("{bridge} {}.{}", at.priority(), at.number()),
                edge: status.is_edge,
                point_to_point: member.settings.stp.point_to_point,
                sent: port.bpdus.sent,
                received: port.bpdus.received,
                malformed: port.bpdus.malformed,
            })
        });
        Some(TreeView {
            id: tree.engine.conf().id().to_string(),
            root: root.root.to_string(),
            cost: root.cost,
            root_port: root_port.map(|(name, _)| name.clone()),
            topology_changes: tree.engine.topology_changes(),
            ports: ports.collect(),
        })
    }
}

fn describe(port: &PortStatus) -> String {
    let role = match port.role {
        Role::Disabled => "disabled",
        Role::Root => "root",
        Role::Designated => "designated",
        Role::Alternate => "alternate",
        Role::Backup => "backup",
    };
    let state = match port.state {
        State::Discarding => "discarding",
        State::Learning => "learning",
        State::Forwarding => "forwarding",
    };
    let mut text = format!("{role} {state}");
    for (is, word) in [
        (port.is_edge, "edge"),
        (port.is_guarded, "closed by bpdu-guard"),
        (port.is_root_refused, "closed by root-guard"),
        (
            !port.sends_rstp && port.role != Role::Disabled,
            "speaks STP",
        ),
    ] {
        if is {
            text = format!("{text}, {word}");
        }
    }
    text
}
