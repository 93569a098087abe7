//! What the control thread knows of bridges and members before it is published.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use windlass_attach::port::TxPort;
use windlass_bridge::fdb::Fdb;
use windlass_bridge::groups::GroupsConf;
use windlass_bridge::member::MemberConf;
use windlass_firewall::{Compiled, Firewall, Ledger, Owner, Policy, Tracker};
use windlass_nic::{
    EgressStage, Given, Holders, IngressStage, Learner, Protection, Trusted, protect,
};
use windlass_shaper::Priority;
use windlass_stats::{MemberCounters, Padded};

use super::shaping::{FlowTuning, Shaping};
use crate::capture::Watch;
use crate::meter::Account;
use crate::ring::Spin;
use crate::spread::Weights;

/// What a member is besides its place on the bridge.
#[derive(Clone, Debug, Default)]
pub struct MemberTuning {
    /// What it may send.
    pub protection: Arc<Protection>,
    /// What it sends as a DHCP server or router gives others addresses.
    pub trusted: bool,
    /// What its packets and those to it have to pass.
    pub firewall: Option<FirewallTuning>,
    /// Bits a second from it, and as many towards it; 0 is no limit.
    pub maxbw: u64,
    /// Its flows.
    pub flows: Vec<FlowTuning>,
    /// Its place among members whose frames wait.
    pub priority: Priority,
    /// How its rings share what it gets.
    pub weights: Weights,
    /// The least time between two notifications of the member, in nanoseconds; 0 is no limit.
    pub kick_gap_ns: u64,
    /// Polling before sleep.
    pub spin: Spin,
}

/// A member's firewall.
#[derive(Clone, Debug)]
pub struct FirewallTuning {
    /// Its rules.
    pub rules: Arc<Compiled>,
    /// Room for connections.
    pub connections: u32,
    /// What connections are hashed by: nobody knows it.
    pub seeds: [u64; 2],
}

pub(super) struct DraftMember {
    pub(super) bridge: u16,
    pub(super) conf: MemberConf,
    /// The user that it belongs to.
    pub(super) owner: Option<u32>,
    pub(super) tuning: MemberTuning,
    /// Its rates and flows: what they have counted survives other changes.
    pub(super) shaping: Shaping,
    pub(super) guarding: Guarding,
    /// What it has learned of its addresses.
    pub(super) learner: Option<Arc<Learner>>,
    /// Others on its bridge learn of what it sends.
    pub(super) is_heard: bool,
    pub(super) tx: Option<Arc<dyn TxPort>>,
    /// Which of all attachments it has; 0: none.
    pub(super) attachment: u64,
    /// Its receive rings; 0: nobody is attached.
    pub(super) rings: u16,
    /// It is being removed: no topology has it any more.
    pub(super) is_leaving: bool,
    /// Its captures.
    pub(super) watches: Vec<Watch>,
    pub(super) counters: Arc<[Padded<MemberCounters>]>,
    pub(super) accounts: Arc<[Account]>,
}

impl DraftMember {
    /// What its frames pass before the bridge.
    pub(super) fn ingress(&self, owner: &Owner) -> Box<[Arc<dyn IngressStage>]> {
        let (macs, learner) = (self.conf.all_macs(), self.learner.clone());
        let protection = protect(&macs, self.conf.nospoof, &self.tuning.protection, learner);
        let firewall = self.firewall(owner).map(|[out, _]| Arc::new(out) as _);
        // Behind all that drops frames.
        let trusted = self.is_heard.then(|| Arc::new(Trusted) as _);
        protection.chain(firewall).chain(trusted).collect()
    }

    /// What frames pass on their way to it.
    pub(super) fn egress(&self, owner: &Owner) -> Box<[Arc<dyn EgressStage>]> {
        let firewall = self
            .firewall(owner)
            .map(|[_, inwards]| Arc::new(inwards) as _);
        let learner = self.learner.clone().map(|to| Arc::new(Given(to)) as _);
        firewall.into_iter().chain(learner).collect()
    }

    fn firewall(&self, owner: &Owner) -> Option<[Firewall; 2]> {
        let guarding = &self.guarding;
        Some(Firewall::both(
            guarding.policy.as_ref()?,
            guarding.tracker.as_ref()?,
            owner,
        ))
    }
}

/// What a member's firewall keeps.
#[derive(Default)]
pub(super) struct Guarding {
    /// The rules that are in force.
    pub(super) policy: Option<Arc<Policy>>,
    /// What rules have counted.
    ledger: Ledger,
    /// The connections that it knows; they survive other rules.
    tracker: Option<Arc<Mutex<Tracker>>>,
    /// Room for them.
    connections: u32,
}

impl Guarding {
    pub(super) fn new(firewall: Option<&FirewallTuning>) -> Guarding {
        let mut guarding = Guarding::default();
        guarding.set(firewall);
        guarding
    }

    /// The rules hold that are written there. What is the same goes on.
    pub(super) fn set(&mut self, firewall: Option<&FirewallTuning>) {
        let Some(firewall) = firewall else {
            (self.policy, self.tracker) = (None, None);
            return;
        };
        let is_same = |policy: &Arc<Policy>| policy.is_of(&firewall.rules);
        if !self.policy.as_ref().is_some_and(is_same) {
            let policy = Policy::new(firewall.rules.clone(), &mut self.ledger);
            self.policy = Some(Arc::new(policy));
        }
        if self.tracker.is_none() || self.connections != firewall.connections {
            let tracker = Tracker::new(firewall.connections as usize, firewall.seeds);
            self.tracker = Some(Arc::new(Mutex::new(tracker)));
            self.connections = firewall.connections;
        }
    }
}

/// What a bridge is besides its table and its members.
#[derive(Clone, Copy, Debug, Default)]
pub struct BridgeTuning {
    /// Members are confined to their VLANs.
    pub filtering: bool,
    /// The bridge's own address as the low 48 bits of a little-endian load; 0: none.
    pub mac: u64,
}

pub(super) struct DraftBridge {
    pub(super) tuning: BridgeTuning,
    pub(super) fdb: Arc<Fdb>,
    /// What snooping found, if it snoops.
    pub(super) groups: Option<Arc<GroupsConf>>,
    /// By untagged VLAN (0 where it does not filter) of members that learn their addresses: whose addresses are whose.
    pub(super) holders: BTreeMap<u16, Arc<Holders>>,
}
