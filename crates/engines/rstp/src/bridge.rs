//! A bridge: its ports, what it is told, what it asks for.

use serde::{Deserialize, Serialize};
use windlass_frame::Tick;

use crate::bpdu::Bpdu;
use crate::machines::selection::{self, Tree};
use crate::machines::{Step, information, migration, role, topology, transmit};
use crate::port::{MIGRATE_NS, Port, PortConf, Role, State, Timer, View};
use crate::vector::{BridgeId, PortId, PriorityVector, Times};

/// Timers run out on multiples of this: bridges with a thousand ports wake 20 times a second at most.
pub const GRAIN_NS: u64 = 50_000_000;

/// Rounds of the machines after one input. What would move after that moves with the next input; no known input gets near.
const ROUNDS_MAX: usize = 200;

/// How a bridge is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BridgeConf {
    /// Its address.
    pub address: [u8; 6],
    /// Its priority, 0 to 61,440 in steps of 4,096.
    pub priority: u16,
    /// Bridge Max Age, 6 to 40 s: what is older is forgotten. Counts if the bridge is the root.
    pub max_age_s: u8,
    /// Bridge Hello Time, 1 to 10 s.
    pub hello_s: u8,
    /// Bridge Forward Delay, 4 to 30 s. Counts if the bridge is the root.
    pub forward_delay_s: u8,
    /// Transmit Hold Count, 1 to 10: BPDUs at once; then one a second.
    pub hold_count: u8,
    /// Force Protocol Version (17.13.4): false for STP alone.
    pub rstp: bool,
}

impl Default for BridgeConf {
    /// The recommended values of table 17-1.
    fn default() -> BridgeConf {
        BridgeConf {
            address: [0; 6],
            priority: 32_768,
            max_age_s: 20,
            hello_s: 2,
            forward_delay_s: 15,
            hold_count: 6,
            rstp: true,
        }
    }
}

impl BridgeConf {
    /// Its identifier.
    pub fn id(&self) -> BridgeId {
        BridgeId::new(self.priority, self.address)
    }

    fn times(&self) -> Times {
        Times::of_root(self.max_age_s, self.hello_s, self.forward_delay_s)
    }
}

/// What the owner of a bridge has to do, in this order: a port stops before its bridge agrees to something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Put a port into a state.
    Set(u16, State),
    /// Forget what was learned behind a port.
    Flush(u16),
    /// Send a BPDU out of a port.
    Send(u16, Bpdu),
    /// A BPDU came from a guarded port, which is disabled now.
    Guarded(u16),
}

/// A port, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// Its number.
    pub number: u16,
    /// Its part in the tree.
    pub role: Role,
    /// What it does with frames.
    pub state: State,
    /// Taken for an edge (operEdge).
    pub is_edge: bool,
    /// A BPDU came in spite of the guard.
    pub is_guarded: bool,
    /// The root is behind it, and the root guard keeps the port closed.
    pub is_root_refused: bool,
    /// Speaks RSTP, not STP.
    pub sends_rstp: bool,
    /// The designated bridge and port of its link, and their way to the root.
    pub vector: PriorityVector,
}

/// The best that neighbours may still believe of this bridge: what it said, since they last agreed to what it says now.
///
/// Not in the standard, where an alternate port takes over as root port at once. What its neighbour says may be this bridge's own words,
/// which came back around a cycle before the news did: then that port closes a loop (count to infinity). A neighbour that is nearer
/// to the root than this bridge ever claimed to be cannot have its way from here, as in the feasibility condition of EIGRP (RFC 7868, 3.5). Any
/// other one has to wait for forward delays, or until all designated ports are in sync with the news.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Feasible {
    best: PriorityVector,
    now_said: PriorityVector,
    /// After max age nobody believes what was said before.
    lasts: Timer,
}

impl Feasible {
    fn of(said: PriorityVector) -> Feasible {
        Feasible {
            best: said,
            now_said: said,
            lasts: Timer::default(),
        }
    }

    fn say(&mut self, said: PriorityVector, now: Tick, times: Times) {
        if said != self.now_said {
            self.now_said = said;
            self.lasts = Timer::after(now, crate::vector::ns(times.max_age));
        }
        self.best = self.best.min(said);
    }

    fn advance(&mut self, now: Tick) {
        if !self.lasts.runs(now) {
            self.agreed();
        }
    }

    fn agreed(&mut self) {
        self.best = self.now_said;
        self.lasts = Timer::default();
    }

    fn allows(&self, port: &Port) -> bool {
        port.vector < self.best
    }
}

/// A bridge's ports and what they know. As JSON or the like it is for the same program, started anew: see [`Bridge::rebased`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bridge {
    conf: BridgeConf,
    tree: Tree,
    /// In order of their numbers.
    ports: Vec<Port>,
    #[serde(skip)]
    now: Tick,
    #[serde(skip)]
    actions: Vec<Action>,
    feasible: Feasible,
    /// Topology changes seen on its own ports.
    changes: u64,
}

impl Bridge {
    /// A bridge without ports.
    pub fn new(conf: BridgeConf, now: Tick) -> Bridge {
        Bridge {
            tree: Tree::alone(conf.id(), conf.times()),
            conf,
            ports: Vec::new(),
            now,
            actions: Vec::new(),
            feasible: Feasible::of(Tree::alone(conf.id(), conf.times()).root),
            changes: 0,
        }
    }

    /// A copy that goes on at `now`, on another clock, as if no time had passed since the last call. For another process it is to be
    /// based on 0, without actions that wait; that process bases it on its own time.
    pub fn rebased(&self, now: Tick) -> Bridge {
        let mut copy = self.clone();
        copy.now = now;
        copy.feasible.lasts.rebase(self.now, now);
        for port in &mut copy.ports {
            port.rebase(self.now, now);
        }
        copy
    }

    /// How it is configured.
    pub fn conf(&self) -> &BridgeConf {
        &self.conf
    }

    /// Changes the configuration. A new version or address is a new beginning of all ports.
    pub fn configure(&mut self, conf: BridgeConf, now: Tick) {
        if conf == self.conf {
            return;
        }
        let begins = conf.rstp != self.conf.rstp || conf.address != self.conf.address;
        self.conf = conf;
        for at in 0..self.ports.len() {
            if begins && let Some(port) = self.ports.get_mut(at) {
                let (id, conf, link) = (port.id, port.conf, port.link);
                *port = Port::new(id, conf);
                self.actions
                    .push(Action::Set(id.number(), State::Discarding));
                if link {
                    self.enable(at, now);
                }
            }
        }
        self.select_again(now);
    }

    /// Adds a port, or changes one. Numbers are 1 to [`PortId::NUMBER_MAX`]; others are ignored.
    pub fn set_port(&mut self, number: u16, conf: PortConf, now: Tick) {
        if number == 0 || number > PortId::NUMBER_MAX {
            return;
        }
        let id = PortId::new(conf.priority, number);
        match self.find(number) {
            Ok(at) => {
                let Some(port) = self.ports.get_mut(at) else {
                    return;
                };
                if port.conf == conf {
                    return;
                }
                let silent = !port.edge_delay.runs(now);
                if conf.edge != port.conf.edge || conf.auto_edge != port.conf.auto_edge {
                    port.is_edge = silent && (conf.edge || (port.is_edge && conf.auto_edge));
                }
                port.conf = conf;
                port.id = id;
                if port.guarded && !conf.bpdu_guard {
                    port.guarded = false;
                    if port.link {
                        self.enable(at, now);
                    }
                }
            }
            Err(at) => {
                self.ports.insert(at, Port::new(id, conf));
                self.actions.push(Action::Set(number, State::Discarding));
            }
        }
        self.select_again(now);
    }

    /// Takes a port away.
    pub fn remove_port(&mut self, number: u16, now: Tick) {
        if let Ok(at) = self.find(number) {
            self.ports.remove(at);
            self.select_again(now);
        }
    }

    /// A port's link works, or does not. A guard that closed the port is open again after it was down.
    pub fn set_link(&mut self, number: u16, up: bool, now: Tick) {
        let Ok(at) = self.find(number) else {
            return;
        };
        let Some(port) = self.ports.get_mut(at).filter(|port| port.link != up) else {
            return;
        };
        port.link = up;
        port.guarded = false;
        if up {
            self.enable(at, now);
        }
        self.run(now);
    }

    /// Takes a BPDU from a port (Port Receive, 17.23).
    pub fn receive(&mut self, number: u16, bpdu: Bpdu, now: Tick) {
        let Ok(at) = self.find(number) else {
            return;
        };
        // Timers that have run out count before what comes now.
        self.run(now);
        let view = self.view(false, false);
        let Some(port) = self.ports.get_mut(at).filter(|port| port.is_enabled()) else {
            return;
        };
        if port.conf.bpdu_guard {
            port.guarded = true;
            self.actions.push(Action::Guarded(number));
        } else {
            // updtBPDUVersion (17.21.22)
            match bpdu {
                Bpdu::Rst(_) => port.received_rstp |= self.conf.rstp,
                Bpdu::Config(_) | Bpdu::Tcn => port.received_stp = true,
            }
            port.is_edge = false;
            port.edge_delay = view.edge_delay(&port.conf);
            port.message = Some(bpdu);
        }
        self.run(now);
    }

    /// mcheck (17.13.9): asks the other end again whether it speaks RSTP.
    pub fn check_migration(&mut self, number: u16, now: Tick) {
        if let Ok(at) = self.find(number)
            && let Some(port) = self.ports.get_mut(at)
        {
            port.mcheck = self.conf.rstp;
            self.run(now);
        }
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Tick) {
        self.run(now);
    }

    /// When [`Bridge::advance`] is due next; None: nothing happens by itself.
    pub fn due(&self) -> Option<Tick> {
        let timers = self.ports.iter().filter_map(|port| port.due(self.now));
        let first = timers.chain(self.feasible.lasts.due(self.now)).min()?;
        Some(Tick(first.0.div_ceil(GRAIN_NS).saturating_mul(GRAIN_NS)))
    }

    /// What is to be done since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The root, the cost to it, and the bridge and port that lead there (this bridge and 0 if it is the root).
    pub fn root(&self) -> PriorityVector {
        self.tree.root
    }

    /// The number of the root port, if this bridge is not the root.
    pub fn root_port(&self) -> Option<u16> {
        (self.tree.root_port != 0).then_some(self.tree.root_port)
    }

    /// The times in force: the root's.
    pub fn times(&self) -> Times {
        self.tree.times
    }

    /// Topology changes that this bridge saw first.
    pub fn topology_changes(&self) -> u64 {
        self.changes
    }

    /// All ports, in order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = PortStatus> {
        self.ports.iter().map(status)
    }

    /// One port.
    pub fn port(&self, number: u16) -> Option<PortStatus> {
        self.ports.get(self.find(number).ok()?).map(status)
    }

    fn find(&self, number: u16) -> Result<usize, usize> {
        self.ports
            .binary_search_by_key(&number, |port| port.id.number())
    }

    /// Starts what a port's machines hold while it is disabled.
    fn enable(&mut self, at: usize, now: Tick) {
        let times = selection::said(&self.tree, self.conf.times());
        if let Some(port) = self.ports.get_mut(at) {
            port.link = true;
            port.migration = <_>::default();
            port.mcheck = false;
            port.send_rstp = self.conf.rstp;
            port.received_rstp = false;
            port.received_stp = false;
            port.migration_delay = Timer::after(now, MIGRATE_NS);
            port.edge_delay = Timer::after(now, MIGRATE_NS);
            port.hello_when = Timer::after(now, crate::vector::ns(times.hello));
            port.new_info = true;
        }
    }

    fn select_again(&mut self, now: Tick) {
        self.ports.iter_mut().for_each(Port::ask_selection);
        if self.ports.is_empty() {
            self.tree = Tree::alone(self.conf.id(), self.conf.times());
        }
        self.run(now);
    }

    /// Runs all machines until nothing moves.
    fn run(&mut self, now: Tick) {
        self.now = now.max(self.now);
        self.feasible.advance(self.now);
        let view = self.view(false, false);
        self.ports
            .iter_mut()
            .for_each(|port| transmit::drain(port, &view));
        for _ in 0..ROUNDS_MAX {
            let mut moved = self.select();
            for at in 0..self.ports.len() {
                moved |= self.step(at);
            }
            if !moved {
                return;
            }
        }
        debug_assert!(false, "the machines do not come to rest");
    }

    /// Port Role Selection (17.28).
    fn select(&mut self) -> bool {
        let asked = self.ports.iter().any(|port| port.reselect);
        if asked {
            let (id, times) = (self.conf.id(), self.conf.times());
            self.tree = selection::select(&mut self.ports, id, times);
            let said = PriorityVector {
                bridge: id,
                port: PortId::default(),
                ..self.tree.root
            };
            self.feasible.say(said, self.now, self.tree.times);
        }
        asked
    }

    fn view(&self, all_synced: bool, rerooted: bool) -> View {
        View {
            now: self.now,
            times: selection::said(&self.tree, self.conf.times()),
            rstp: self.conf.rstp,
            hold_count: self.conf.hold_count,
            all_synced,
            rerooted,
        }
    }

    /// One step of each machine of a port. Whether any moved.
    fn step(&mut self, at: usize) -> bool {
        let Some(port) = self.ports.get(at) else {
            return false;
        };
        // Few ports have a role that has to look at all others.
        let looks = !matches!(port.role, Role::Designated | Role::Disabled);
        let all_synced = looks && self.ports.iter().all(Port::lets_all_synced);
        if all_synced {
            self.feasible.agreed();
        }
        let others = || self.ports.iter().enumerate().filter(|(i, _)| *i != at);
        let rerooted = looks
            && (all_synced || self.feasible.allows(port))
            && !others().any(|(_, other)| other.was_root(self.now));
        let view = self.view(all_synced, rerooted);
        let Some(port) = self.ports.get_mut(at) else {
            return false;
        };
        let number = port.id.number();
        let mut moved = migration::migrate(port, &view);
        moved |= migration::detect(port, &view);
        moved |= information::inform(port, &view);
        let role_step = role::transition(port, &view);
        if let Some(state) = role::state(port) {
            self.actions.push(Action::Set(number, state));
            moved = true;
        }
        let was_active = port.topology == crate::port::Topology::Active;
        let (change_step, flush) = topology::change(port, &view);
        if !was_active && change_step == Step::PropagateChange {
            self.changes = self.changes.saturating_add(1);
        }
        if flush {
            self.actions.push(Action::Flush(number));
        }
        let (sent, bpdu) = transmit::transmit(port, &view);
        moved |= sent;
        if let Some(bpdu) = bpdu {
            self.actions.push(Action::Send(number, bpdu));
        }
        for step in [role_step, change_step] {
            moved |= step != Step::Still;
            self.reach(at, step);
        }
        moved
    }

    /// What a step means for all ports.
    fn reach(&mut self, at: usize, step: Step) {
        match step {
            Step::Still | Step::Moved => {}
            Step::SyncTree => self.ports.iter_mut().for_each(|port| port.sync = true),
            Step::ReRootTree => self.ports.iter_mut().for_each(|port| port.reroot = true),
            Step::PropagateChange => {
                let others = self.ports.iter_mut().enumerate().filter(|(i, _)| *i != at);
                others.for_each(|(_, port)| port.propagate = true);
            }
        }
    }
}

fn status(port: &Port) -> PortStatus {
    PortStatus {
        number: port.id.number(),
        role: port.role,
        state: port.state,
        is_edge: port.is_edge,
        is_guarded: port.guarded,
        is_root_refused: port.conf.root_guard
            && port.role == Role::Alternate
            && port.vector.root < port.designated.root,
        sends_rstp: port.send_rstp,
        vector: port.vector,
    }
}
