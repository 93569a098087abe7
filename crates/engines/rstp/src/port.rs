//! One port: how it is configured, and the variables of its machines (IEEE 802.1D-2004, 17.19).

use serde::{Deserialize, Serialize};
use windlass_frame::Tick;

use crate::bpdu::Bpdu;
use crate::vector::{PortId, PriorityVector, Times, ns};

/// MigrateTime (table 17-1): how long a port waits before it changes the version that it speaks, or takes silence for an edge.
pub const MIGRATE_NS: u64 = 3_000_000_000;

/// How long a port that says again what it said lately, or was no designated port lately, takes no agreement: it may be one to
/// what was said before. Longer than a BPDU and the answer to it take; not in the standard.
pub(crate) const CROSSING_NS: u64 = 250_000_000;

/// How a port is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortConf {
    /// PathCost (17.13.11), 1 to 200,000,000.
    pub cost: u32,
    /// Priority, 0 to 240 in steps of 16.
    pub priority: u8,
    /// AdminEdge (17.13.1): nobody but hosts is expected behind it.
    pub edge: bool,
    /// AutoEdge (17.13.3): it becomes an edge when nobody answers its proposals.
    pub auto_edge: bool,
    /// operPointToPointMAC (6.4.3): at most one bridge is behind it.
    pub point_to_point: bool,
    /// restrictedRole (802.1Q 13.27.64): the root is never looked for behind it.
    pub root_guard: bool,
    /// A BPDU disables it.
    pub bpdu_guard: bool,
}

impl Default for PortConf {
    /// A link of 1 Gbit/s between two bridges.
    fn default() -> PortConf {
        PortConf {
            cost: 20_000,
            priority: 128,
            edge: false,
            auto_edge: true,
            point_to_point: true,
            root_guard: false,
            bpdu_guard: false,
        }
    }
}

/// A port's part in the tree (17.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Role {
    /// It takes no part: its link is down, or a guard closed it.
    #[default]
    Disabled,
    /// The way to the root.
    Root,
    /// It serves what is behind it.
    Designated,
    /// Another way to the root.
    Alternate,
    /// Another way to what a port of the same bridge serves.
    Backup,
}

/// What a port does with frames (17.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum State {
    /// Neither forwards nor learns.
    #[default]
    Discarding,
    /// Learns, does not forward.
    Learning,
    /// Learns and forwards.
    Forwarding,
}

/// A timer (17.17) as the moment at which it runs out.
///
/// A timer that the standard reloads for as long as a port has a role is started when the port leaves the role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Option<u64>", into = "Option<u64>")]
pub(crate) struct Timer(Option<Tick>);

impl From<Option<u64>> for Timer {
    fn from(until: Option<u64>) -> Timer {
        Timer(until.map(Tick))
    }
}

impl From<Timer> for Option<u64> {
    fn from(timer: Timer) -> Option<u64> {
        timer.0.map(|until| until.0)
    }
}

impl Timer {
    pub(crate) fn after(now: Tick, ns: u64) -> Timer {
        Timer(Some(now.plus(ns)))
    }

    pub(crate) fn runs(self, now: Tick) -> bool {
        self.0.is_some_and(|until| until > now)
    }

    /// When it runs out, if it has not by `now`.
    pub(crate) fn due(self, now: Tick) -> Option<Tick> {
        self.0.filter(|until| *until > now)
    }

    /// With as much left at `to` as there was at `from`.
    pub(crate) fn rebase(&mut self, from: Tick, to: Tick) {
        self.0 = self.0.map(|until| to.plus(until.since(from)));
    }
}

/// Where a port's information comes from (infoIs, 17.19.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Info {
    #[default]
    Disabled,
    Aged,
    Mine,
    Received,
}

/// States of Port Protocol Migration (17.24).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Migration {
    #[default]
    CheckingRstp,
    SelectingStp,
    Sensing,
}

/// States of Topology Change (17.31) in which it stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Topology {
    #[default]
    Inactive,
    Learning,
    Active,
}

/// Variables of one port, by their names in 17.19.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) id: PortId,
    pub(crate) conf: PortConf,
    /// The link works.
    pub(crate) link: bool,
    /// A BPDU came in spite of the guard; until the link goes down or the guard is taken away.
    pub(crate) guarded: bool,

    /// rcvdMsg and the message; none between two calls.
    #[serde(skip)]
    pub(crate) message: Option<Bpdu>,
    pub(crate) received_rstp: bool,
    pub(crate) received_stp: bool,
    pub(crate) migration: Migration,
    /// mdelayWhile.
    pub(crate) migration_delay: Timer,
    pub(crate) mcheck: bool,
    pub(crate) send_rstp: bool,
    /// operEdge.
    pub(crate) is_edge: bool,
    /// edgeDelayWhile.
    pub(crate) edge_delay: Timer,

    pub(crate) info: Info,
    /// portPriority, portTimes.
    pub(crate) vector: PriorityVector,
    pub(crate) times: Times,
    /// designatedPriority.
    pub(crate) designated: PriorityVector,
    /// rcvdInfoWhile.
    pub(crate) info_while: Timer,
    pub(crate) reselect: bool,
    pub(crate) selected: bool,
    /// updtInfo.
    pub(crate) update: bool,
    pub(crate) proposing: bool,
    pub(crate) proposed: bool,
    pub(crate) agree: bool,
    pub(crate) agreed: bool,
    /// What this port said before, and until when agreements to it may come.
    pub(crate) said: PriorityVector,
    pub(crate) said_while: Timer,
    /// Runs for [`CROSSING_NS`].
    pub(crate) crossing: Timer,
    /// disputed (802.1Q 13.27.22).
    pub(crate) disputed: bool,

    pub(crate) role: Role,
    pub(crate) selected_role: Role,
    pub(crate) learn: bool,
    pub(crate) forward: bool,
    /// What was last put into effect: the standard's learning and forwarding.
    pub(crate) state: State,
    pub(crate) sync: bool,
    pub(crate) synced: bool,
    pub(crate) reroot: bool,
    /// fdWhile, rrWhile, rbWhile.
    pub(crate) forward_while: Timer,
    pub(crate) root_while: Timer,
    pub(crate) backup_while: Timer,

    pub(crate) topology: Topology,
    /// tcWhile.
    pub(crate) change_while: Timer,
    pub(crate) received_change: bool,
    pub(crate) received_notification: bool,
    pub(crate) received_ack: bool,
    /// tcAck.
    pub(crate) change_ack: bool,
    /// tcProp.
    pub(crate) propagate: bool,

    pub(crate) new_info: bool,
    /// txCount, and when it falls by one.
    pub(crate) sent: u8,
    pub(crate) sent_less: Timer,
    /// helloWhen.
    pub(crate) hello_when: Timer,
}

impl Port {
    /// A port after BEGIN.
    pub(crate) fn new(id: PortId, conf: PortConf) -> Port {
        Port {
            id,
            conf,
            is_edge: conf.edge,
            reselect: true,
            sync: true,
            reroot: true,
            ..Port::default()
        }
    }

    /// portEnabled.
    pub(crate) fn is_enabled(&self) -> bool {
        self.link && !self.guarded
    }

    /// Roles have to be selected anew on account of this port.
    pub(crate) fn ask_selection(&mut self) {
        self.reselect = true;
        self.selected = false;
    }

    /// Whether its role is the one that was selected for it, with nothing to be told yet.
    pub(crate) fn is_selected(&self) -> bool {
        self.selected && !self.update
    }

    pub(crate) fn is_learning(&self) -> bool {
        self.state != State::Discarding
    }

    pub(crate) fn is_forwarding(&self) -> bool {
        self.state == State::Forwarding
    }

    /// Neither learns nor forwards, and is not to.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.learn && !self.forward && !self.is_learning()
    }

    /// Whether this port lets `allSynced` be true (802.1Q 13.28.2: 17.20.3 forgets updtInfo, and so lets a bridge agree to what its
    /// designated ports have not heard of yet).
    pub(crate) fn lets_all_synced(&self) -> bool {
        self.is_selected()
            && self.role == self.selected_role
            && (self.role == Role::Root || self.synced)
    }

    /// Whether it was the root port so lately that its rrWhile runs.
    pub(crate) fn was_root(&self, now: Tick) -> bool {
        self.role == Role::Root || self.root_while.runs(now)
    }

    /// The next moment at which one of its timers runs out.
    pub(crate) fn due(&self, now: Tick) -> Option<Tick> {
        if !self.is_enabled() {
            return None;
        }
        let timers = [
            self.migration_delay,
            self.edge_delay,
            self.info_while,
            self.forward_while,
            self.root_while,
            self.backup_while,
            self.change_while,
            self.sent_less,
            self.hello_when,
            self.crossing,
        ];
        timers.iter().filter_map(|timer| timer.due(now)).min()
    }

    /// With as much left of each timer at `to` as there was at `from`.
    pub(crate) fn rebase(&mut self, from: Tick, to: Tick) {
        let timers = [
            &mut self.migration_delay,
            &mut self.edge_delay,
            &mut self.info_while,
            &mut self.forward_while,
            &mut self.root_while,
            &mut self.backup_while,
            &mut self.change_while,
            &mut self.sent_less,
            &mut self.hello_when,
            &mut self.crossing,
            &mut self.said_while,
        ];
        timers.into_iter().for_each(|timer| timer.rebase(from, to));
    }
}

/// What the machines of a port see of its bridge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) now: Tick,
    /// designatedTimes: what the bridge's designated ports say.
    pub(crate) times: Times,
    /// rstpVersion (17.20.11).
    pub(crate) rstp: bool,
    /// TxHoldCount.
    pub(crate) hold_count: u8,
    /// allSynced (17.20.3).
    pub(crate) all_synced: bool,
    /// reRooted (17.20.10), and the root port's neighbour is not behind this bridge.
    pub(crate) rerooted: bool,
}

impl View {
    pub(crate) fn hello_ns(&self) -> u64 {
        ns(self.times.hello)
    }

    pub(crate) fn forward_delay_ns(&self) -> u64 {
        ns(self.times.forward_delay)
    }

    pub(crate) fn max_age_ns(&self) -> u64 {
        ns(self.times.max_age)
    }

    /// How long a port that says it is designated hears nothing before it is taken for an edge (EdgeDelay, 17.20.4).
    pub(crate) fn edge_delay(&self, conf: &PortConf) -> Timer {
        self.timer(match conf.point_to_point {
            true => MIGRATE_NS,
            false => self.max_age_ns(),
        })
    }

    pub(crate) fn timer(&self, ns: u64) -> Timer {
        Timer::after(self.now, ns)
    }
}
