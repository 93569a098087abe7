//! What the control thread knows of bridges and members before it is published.

use std::sync::Arc;

use windlass_attach::port::TxPort;
use windlass_bridge::fdb::Fdb;
use windlass_bridge::member::MemberConf;
use windlass_nic::{EgressStage, IngressStage, MaxBw, Protection, protect};
use windlass_stats::{MemberCounters, Padded};

use crate::meter::Account;
use crate::ring::Spin;

/// What a member is besides its place on the bridge.
#[derive(Clone, Debug, Default)]
pub struct MemberTuning {
    /// What it may send.
    pub protection: Arc<Protection>,
    /// Bits a second from it, and as many towards it; 0 is no limit.
    pub maxbw: u64,
    /// The least time between two notifications of the member, in nanoseconds; 0 is no limit.
    pub kick_gap_ns: u64,
    /// Polling before sleep.
    pub spin: Spin,
}

pub(super) struct DraftMember {
    pub(super) bridge: u16,
    pub(super) conf: MemberConf,
    pub(super) tuning: MemberTuning,
    /// The limits of `tuning.maxbw` from it and towards it: what they have counted survives other changes.
    pub(super) maxbw: Option<[Arc<MaxBw>; 2]>,
    pub(super) tx: Option<Arc<dyn TxPort>>,
    /// Which of all attachments it has; 0: none.
    pub(super) attachment: u64,
    /// Its receive rings; 0: nobody is attached.
    pub(super) rings: u16,
    /// It is being removed: no topology has it any more.
    pub(super) is_leaving: bool,
    pub(super) counters: Arc<[Padded<MemberCounters>]>,
    pub(super) accounts: Arc<[Account]>,
}

impl DraftMember {
    /// What its frames pass before the bridge.
    pub(super) fn ingress(&self) -> Box<[Arc<dyn IngressStage>]> {
        let (mac, nospoof) = (self.conf.mac, self.conf.nospoof);
        let protection = protect(mac, nospoof, &self.tuning.protection);
        let maxbw = self.maxbw.clone().map(|[from, _]| from as _);
        protection.chain(maxbw).collect()
    }

    /// What frames pass on their way to it.
    pub(super) fn egress(&self) -> Box<[Arc<dyn EgressStage>]> {
        let maxbw = self.maxbw.clone().map(|[_, towards]| towards as _);
        maxbw.into_iter().collect()
    }
}

pub(super) fn max_bandwidth(tuning: &MemberTuning) -> Option<[Arc<MaxBw>; 2]> {
    let limit = || Arc::new(MaxBw::new(tuning.maxbw));
    (tuning.maxbw != 0).then(|| [limit(), limit()])
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
}
