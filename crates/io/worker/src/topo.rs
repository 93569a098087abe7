//! The topology: an immutable picture of members and bridges that every visit loads once.

use std::sync::Arc;

use windlass_attach::port::TxPort;
use windlass_bridge::forward::Bridge;
use windlass_nic::{EgressStage, IngressStage};
use windlass_shaper::{Priority, Shaper};
use windlass_stats::{MemberCounters, Padded};

use crate::capture::Watch;
use crate::meter::Account;
use crate::placement::Placement;
use crate::questions::Asker;
use crate::ring::Spin;
use crate::spread::Weights;

/// A member of a bridge, as workers see it.
pub struct Member {
    /// The bridge's index.
    pub bridge: u16,
    /// The transmit half, while somebody is connected.
    pub tx: Option<Arc<dyn TxPort>>,
    /// It has several rings to choose from.
    pub several: bool,
    /// How these share what it gets.
    pub weights: Weights,
    /// Its search is asked for the destination of what is sent to it: it is an overlay.
    pub(crate) asker: Option<Arc<Asker>>,
    /// It has several rings, stages or rates on the way to it, a search or captures, or wants small frames gathered: what is sent to it takes the
    /// long way.
    pub is_special: bool,
    /// It has stages or rates on the way from it, or captures.
    pub is_staged: bool,
    /// Its captures.
    pub watches: Box<[Watch]>,
    /// What its frames pass before the bridge.
    pub ingress: Box<[Arc<dyn IngressStage>]>,
    /// What frames pass on their way to it.
    pub egress: Box<[Arc<dyn EgressStage>]>,
    /// Its rates and flows for what it sends, behind its stages.
    pub shape_out: Option<Arc<Shaper>>,
    /// Those for what it gets.
    pub shape_in: Option<Arc<Shaper>>,
    /// The user whose members share room for frames that wait; `None`: it is one by itself.
    pub owner: Option<u32>,
    /// Its place among members whose frames wait.
    pub priority: Priority,
    /// The least time between two notifications of the member, in nanoseconds; 0 is no limit.
    pub kick_gap_ns: u64,
    /// How long its rings are polled after they were found empty.
    pub spin: Spin,
    /// Which of all attachments it has; 0: none.
    pub attachment: u64,
    /// One block for each worker.
    pub counters: Arc<[Padded<MemberCounters>]>,
    /// What it owes each worker.
    pub accounts: Arc<[Account]>,
}

/// All members and bridges by index.
#[derive(Default)]
pub struct Topo {
    /// Members: the index is the `RxId` and the `TxId`.
    pub members: Vec<Option<Arc<Member>>>,
    /// Bridges.
    pub bridges: Vec<Option<Arc<Bridge>>>,
    /// Which worker serves what.
    pub placement: Arc<Placement>,
}

impl Topo {
    /// The member of an index.
    #[inline(always)]
    pub fn member(&self, id: u16) -> Option<&Member> {
        self.members.get(id as usize)?.as_deref()
    }

    /// The bridge of an index.
    #[inline(always)]
    pub fn bridge(&self, id: u16) -> Option<&Bridge> {
        self.bridges.get(id as usize)?.as_deref()
    }
}
