//! What the daemon answers: objects with their live state, statistics, forwarding tables, events.
//!
//! # Model
//! A view is the object's configuration, flattened, and beside it what is true at the moment. Counters
//! are totals since the object was made by this daemon; a rate is for the reader to compute from two of
//! them and [`Stats::time_ns`]. New fields may be added within version 1; none is removed or changes its type.
//!
//! Frames are conserved, and [`Counters`] has every term: see there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diff::Change;
use crate::name::{MacAddr, Name};
use crate::object::{Bridge, Uplink, Vnic, Zone};
use crate::vnd::VndStats;

/// Whether an object works.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Frames pass, if the other side has any.
    Up,
    /// Something that is expected to come is missing: the peer, the namespace, the interface.
    Waiting,
    /// It does not work, and will not by itself.
    #[default]
    Down,
}

impl State {
    /// The word in text and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Waiting => "waiting",
            Self::Down => "down",
        }
    }
}

/// How a VNIC came to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LearningMethod {
    /// An ACK of DHCPv4.
    Dhcpv4,
    /// A reply of DHCPv6.
    Dhcpv6,
    /// A router advertisement.
    Slaac,
}

/// An address that a VNIC was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LearnedAddress {
    /// The address; a delegated prefix with its length.
    pub address: String,
    /// How the VNIC came to it.
    pub method: LearningMethod,
    /// For how many seconds it has it, if it is not renewed; `None`: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// The state of a member, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Whether it works.
    #[serde(default)]
    pub state: State,
    /// Why it does not, in a sentence; `None` when it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Largest packet in force, in bytes; 0 while it is not known.
    #[serde(default)]
    pub mtu_now: u32,
    /// Rings in use, in each direction.
    #[serde(default)]
    pub rings_now: u16,
    /// The worker of each of those rings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u16>,
    /// Connections that came up since the object was made.
    #[serde(default)]
    pub connects: u64,
    /// Addresses that a VNIC was given and has, beside those in `allowed-ips`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<LearnedAddress>,
    /// What there is to tell about the connection at the moment, by name: peer, features, ring sizes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// Traffic of a member, or of all members of a bridge together. rx is what windlass received from it, tx what it was
/// sent.
///
/// Whenever no frame is on its way at the moment of reading,
///
/// ```text
/// rx_frames + rx_cut  = rx_unicast + rx_flooded + rx_local + rx_dropped + rx_held
/// tx_offered + tx_cut = tx_frames + tx_dropped + tx_held
/// rx_dropped + tx_dropped = the sum of drops
/// ```
///
/// and over all members of a bridge, as long as none has come or gone,
///
/// ```text
/// sum(tx_offered) = sum(rx_unicast) + sum(rx_copies) + sum(tx_span)
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Frames received from the member.
    #[serde(default)]
    pub rx_frames: u64,
    /// Bytes of `rx_frames`.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Of `rx_frames`: sent to one member.
    #[serde(default)]
    pub rx_unicast: u64,
    /// Of `rx_frames`: flooded.
    #[serde(default)]
    pub rx_flooded: u64,
    /// Of `rx_frames`: ended here, for the daemon (spanning tree, LACP, LLDP).
    #[serde(default)]
    pub rx_local: u64,
    /// Of `rx_frames`: dropped.
    #[serde(default)]
    pub rx_dropped: u64,
    /// Of `rx_frames`: above its `maxbw`, waiting at the moment. A level, not a total.
    #[serde(default)]
    pub rx_held: u64,
    /// Frames more than `rx_frames`: large segments were cut before they took their part of a `maxbw`.
    #[serde(default)]
    pub rx_cut: u64,
    /// Of `rx_frames`: marked (ECN) in a queue of a `maxbw` that would have dropped it for its delay.
    #[serde(default)]
    pub rx_marked: u64,
    /// Copies that the flooding of its frames has made, over all members that were to get one.
    #[serde(default)]
    pub rx_copies: u64,
    /// Floods of its frames that ended before everyone who was to get a copy had one.
    #[serde(default)]
    pub rx_floods_cut: u64,
    /// Frames and copies that the bridge decided to send to the member.
    #[serde(default)]
    pub tx_offered: u64,
    /// Of `tx_offered`: sent to the member.
    #[serde(default)]
    pub tx_frames: u64,
    /// Bytes of `tx_frames`.
    #[serde(default)]
    pub tx_bytes: u64,
    /// Of `tx_offered`: dropped on the way.
    #[serde(default)]
    pub tx_dropped: u64,
    /// Of `tx_offered`: waiting in private memory at the moment. A level, not a total.
    #[serde(default)]
    pub tx_held: u64,
    /// Frames more than `tx_offered`: large segments were cut before they took their part of a `maxbw`.
    #[serde(default)]
    pub tx_cut: u64,
    /// Of `tx_offered`: marked (ECN) in a queue of a `maxbw` that would have dropped it for its delay.
    #[serde(default)]
    pub tx_marked: u64,
    /// Of `tx_offered`: copies that it gets as a span member.
    #[serde(default)]
    pub tx_span: u64,
    /// Of `tx_offered`: waited in private memory for a while.
    #[serde(default)]
    pub tx_spilled: u64,
    /// Frames that software segmentation wrote in the place of larger ones, each counted once in `tx_frames`.
    #[serde(default)]
    pub tx_segments: u64,
    /// Notifications sent to the other side.
    #[serde(default)]
    pub kicks: u64,
    /// Frames dropped by the kernel behind the attachment, where it tells; not in the other counts.
    #[serde(default)]
    pub kernel_drops: u64,
    /// Nanoseconds that access to its memory took beyond what it may: see `peer-slow`.
    #[serde(default)]
    pub stalled_ns: u64,
    /// Dropped frames by the name of the reason; each reason belongs to one direction, see windlass-drops(7).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

impl std::ops::AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, more: &Counters) {
        self.rx_frames += more.rx_frames;
        self.rx_bytes += more.rx_bytes;
        self.rx_unicast += more.rx_unicast;
        self.rx_flooded += more.rx_flooded;
        self.rx_local += more.rx_local;
        self.rx_dropped += more.rx_dropped;
        self.rx_held += more.rx_held;
        self.rx_cut += more.rx_cut;
        self.rx_marked += more.rx_marked;
        self.rx_copies += more.rx_copies;
        self.rx_floods_cut += more.rx_floods_cut;
        self.tx_offered += more.tx_offered;
        self.tx_frames += more.tx_frames;
        self.tx_bytes += more.tx_bytes;
        self.tx_dropped += more.tx_dropped;
        self.tx_held += more.tx_held;
        self.tx_cut += more.tx_cut;
        self.tx_marked += more.tx_marked;
        self.tx_span += more.tx_span;
        self.tx_spilled += more.tx_spilled;
        self.tx_segments += more.tx_segments;
        self.kicks += more.kicks;
        self.kernel_drops += more.kernel_drops;
        self.stalled_ns += more.stalled_ns;
        for (reason, frames) in &more.drops {
            *self.drops.entry(reason.clone()).or_default() += frames;
        }
    }
}

/// A zone and how many VNICs it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZoneView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Zone,
    /// VNICs in it.
    pub vnics: u32,
    /// Descriptors that those may come to need.
    #[serde(default)]
    pub descriptors: u32,
    /// Shared mappings that their peers have.
    #[serde(default)]
    pub mappings: u32,
    /// Addresses learned on them.
    #[serde(default)]
    pub addresses: u32,
    /// Lines of the log that its members have caused, and that count against `log-lines-burst` still.
    #[serde(default)]
    pub log_lines: u32,
    /// Directory under which its sockets lie.
    pub directory: String,
    /// Limits of its owner, with what that has in all its zones.
    #[serde(default)]
    pub limits: Vec<LimitView>,
}

/// A bridge and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BridgeView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Bridge,
    /// Names of its members.
    pub members: Vec<Name>,
    /// Who serves it; for root and the daemon's owner only.
    #[serde(flatten)]
    pub place: BridgePlace,
    /// Its forwarding table, in numbers.
    pub table: TableStats,
    /// Its spanning tree, where it has one; for root and the daemon's owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeView>,
    /// What multicast snooping found, where it snoops; for root and the daemon's owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<McastView>,
    /// What it knows of neighbours, where it answers for them; for root and the daemon's owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<NeighboursView>,
}

/// What a bridge knows of neighbours, and what it did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighboursView {
    /// Addresses that it knows.
    pub known: u64,
    /// ARP requests and neighbour solicitations that it answered.
    pub answered: u64,
    /// Those, and announcements, that it passed on to everybody.
    pub passed: u64,
    /// Addresses that it did not learn for want of room.
    pub over_limit: u64,
    /// Frames that were lost, because too many waited.
    pub lost: u64,
}

/// What multicast snooping of a bridge found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct McastView {
    /// Who queries, by VLAN and family: `VLAN 1 IPv4: 192.0.2.1 behind up0, snooped`.
    pub queriers: Vec<String>,
    /// Members.
    pub ports: Vec<McastPortView>,
    /// Groups that have members, at most 1,000.
    pub groups: Vec<GroupView>,
    /// All groups.
    pub groups_total: u64,
    /// Frames that were not passed on, because too many waited.
    pub relays_lost: u64,
}

/// A member's part in multicast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct McastPortView {
    /// Its name.
    pub member: Name,
    /// A router is behind it.
    pub router: bool,
    /// Groups that it has asked for.
    pub groups: u64,
    /// Reports and leaves that came from it.
    pub reports: u64,
    /// Queries and what else routers say that came from it.
    pub queries: u64,
    /// The same, dropped because it may have no routers.
    pub refused: u64,
    /// Frames that could not be read, dropped.
    pub malformed: u64,
    /// Groups for which it had no room, or that another member took.
    pub over_limit: u64,
}

/// A group that has members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupView {
    /// In which VLAN; 0 where the bridge does not filter.
    pub vlan: u16,
    /// Its address.
    pub group: IpAddr,
    /// Members, each with the seconds that are left to it; `null`: it is in the group at all times.
    pub members: BTreeMap<Name, Option<u64>>,
}

/// A bridge's part in a spanning tree (IEEE 802.1D-2004).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeView {
    /// Its identifier: priority and address.
    pub id: String,
    /// The identifier of the root.
    pub root: String,
    /// What the way to the root costs.
    pub cost: u32,
    /// The member that leads there; `None` if this bridge is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_port: Option<Name>,
    /// Changes of the topology that this bridge saw first.
    pub topology_changes: u64,
    /// Members that take part.
    pub ports: Vec<TreePortView>,
}

/// A member's part in a spanning tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreePortView {
    /// Its name.
    pub member: Name,
    /// Role, state, and what else there is to tell: `designated forwarding, edge`.
    pub part: String,
    /// What the way over it costs.
    pub cost: u32,
    /// The bridge that is nearest to the root on its link, and the port there: priority and number.
    pub designated: String,
    /// Taken for an edge: no bridge is behind it.
    pub edge: bool,
    /// At most one bridge is behind it.
    pub point_to_point: bool,
    /// BPDUs that it was sent.
    pub sent: u64,
    /// BPDUs that came from it.
    pub received: u64,
    /// Frames to the address of BPDUs that are none.
    pub malformed: u64,
}

/// Which workers serve a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BridgePlace {
    /// The home of its forwarding table: the worker that writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<u16>,
    /// The home, and the workers of its members' rings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u16>,
}

/// An uplink and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Uplink,
    /// Its state.
    #[serde(flatten)]
    pub status: Status,
    /// Its traffic.
    pub counters: Counters,
}

/// A VNIC and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VnicView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Vnic,
    /// Its state.
    #[serde(flatten)]
    pub status: Status,
    /// Its traffic.
    pub counters: Counters,
}

/// A forwarding table in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableStats {
    /// Addresses in it.
    #[serde(default)]
    pub addresses: u64,
    /// Addresses learned.
    #[serde(default)]
    pub learned: u64,
    /// Addresses that moved to another member.
    #[serde(default)]
    pub moved: u64,
    /// Moves that were refused: sticky, static, or over the budget.
    #[serde(default)]
    pub moves_refused: u64,
    /// Addresses that aged out.
    #[serde(default)]
    pub expired: u64,
    /// Addresses that had to go for others.
    #[serde(default)]
    pub evicted: u64,
    /// Addresses that were not learned for a limit.
    #[serde(default)]
    pub refused: u64,
    /// Sightings not acted on: more than 8 in a burst or 20,000 a second from one
    /// member (1,001 at once), or the learner was behind.
    #[serde(default)]
    pub sightings_lost: u64,
}

/// Where an entry of a forwarding table is from.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FdbKind {
    /// Learned from a frame.
    Learned,
    /// Seen behind a locked member, which does not let it in.
    Locked,
    /// Put in by a person; does not move.
    Static,
    /// Learned on a sticky member: neither moves nor ages until it is deleted.
    Sticky,
    /// A VNIC's own address.
    Own,
}

impl FdbKind {
    /// The word in text and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Locked => "locked",
            Self::Static => "static",
            Self::Sticky => "sticky",
            Self::Own => "own",
        }
    }
}

/// An entry of a forwarding table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FdbEntry {
    /// The VLAN; 0 on a bridge without VLAN filtering.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The member that gets its frames.
    pub member: Name,
    /// Where it is from.
    pub kind: FdbKind,
    /// The target behind which it is, where the member is an overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<std::net::SocketAddr>,
    /// Seconds since it was last seen; `None` for one that does not age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
}

/// A part of a forwarding table, as `GET /v1/bridges/NAME/fdb` gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FdbPage {
    /// Entries, in order of VLAN and address.
    pub entries: Vec<FdbEntry>,
    /// Entries in the whole table that the query matches; more than given here if `limit` cut them.
    pub total: u64,
}

/// Which entries to give or to flush: those that match all that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FdbQuery {
    /// Only of this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Name>,
    /// Only of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Only this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Entries to give at most; 0 or missing: 10,000. Not for a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Entries that [`FdbQuery`] gives at most when it does not say.
pub const FDB_PAGE_DEFAULT: u32 = 10_000;

/// Answer to a flush.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flushed {
    /// Learned entries that were removed.
    pub entries: u64,
}

/// Body of `POST /v1/bridges/NAME/mcheck`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationCheck {
    /// The member behind which is asked; none: behind all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Name>,
}

/// Answer to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MigrationChecked {
    /// Members of the spanning tree behind which is asked.
    pub members: u64,
}

/// Body of `POST /v1/bridges/NAME/fdb`: the bridge is in the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FdbAdd {
    /// The VLAN; missing: the member's untagged one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The address.
    pub mac: MacAddr,
    /// The member that gets its frames.
    pub member: Name,
    /// Whether it can move.
    #[serde(default)]
    pub kind: crate::object::StaticKind,
    /// The target behind which the address is, where the member is an overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<std::net::SocketAddr>,
}

/// A member's name and traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberStats {
    /// Its name.
    pub name: Name,
    /// Its bridge.
    pub bridge: Name,
    /// Its traffic.
    #[serde(flatten)]
    pub counters: Counters,
}

/// A bridge's name and numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BridgeStats {
    /// Its name.
    pub name: Name,
    /// Its forwarding table.
    #[serde(flatten)]
    pub table: TableStats,
    /// Traffic of its members, added up.
    #[serde(flatten)]
    pub traffic: Counters,
}

/// Memory through which the daemon forwards, and the pages behind it as the kernel tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionView {
    /// The member or bridge whose it is.
    pub owner: Name,
    /// `memif`: rings and buffers; `guest`: a virtual machine's memory; `xdp`: frames of an interface; `table`: a bridge's forwarding table.
    pub kind: String,
    /// Its size.
    pub bytes: u64,
    /// What the daemon asked for: `huge`, `4k`; `peer`: its owner chose.
    pub asked: String,
    /// What there is: `hugetlb` (pages of the reserve), `thp` (transparent huge pages), `4k`.
    pub had: String,
    /// Bytes of the pages that it is mapped in.
    pub page_bytes: u64,
    /// Bytes that have memory.
    pub resident_bytes: u64,
    /// Those of them in huge pages.
    pub huge_bytes: u64,
    /// Bytes of page tables for it, calculated.
    pub page_table_bytes: u64,
    /// Why pages are small, if the daemon asked for huge ones; what small ones cost, if they are a guest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a data worker has done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStats {
    /// Its number.
    pub worker: u32,
    /// The core that it is pinned to, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Rings that it serves.
    #[serde(default)]
    pub rings: u32,
    /// Frames that it moved.
    #[serde(default)]
    pub frames: u64,
    /// Visits to rings that found frames.
    #[serde(default)]
    pub visits: u64,
    /// Visits that found none.
    #[serde(default)]
    pub visits_empty: u64,
    /// Times that it went to sleep.
    #[serde(default)]
    pub sleeps: u64,
    /// Times that it gave its core to receivers that the kernel schedules.
    #[serde(default)]
    pub yields: u64,
    /// Time-stamp cycles in visits that found frames.
    #[serde(default)]
    pub cycles_busy: u64,
    /// Time-stamp cycles in visits that found none.
    #[serde(default)]
    pub cycles_polling: u64,
    /// Time-stamp cycles a second.
    #[serde(default)]
    pub cycles_per_second: u64,
    /// Frames in its private memory: spilled or to be flooded yet.
    #[serde(default)]
    pub held: u64,
}

/// Body of `POST /v1/workers/move`: rings of a member, or the forwarding table of a bridge, for another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerMove {
    /// The uplink or VNIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Name>,
    /// Which of its receive rings, from 0; missing: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<u16>,
    /// The bridge whose table gets another home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Name>,
    /// The worker.
    pub worker: u16,
}

/// Answer to [`WorkerMove`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// Rings or tables that another worker served before.
    pub moved: u16,
}

/// All counters at one moment, as `GET /v1/stats` gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// The moment: nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// Uplinks and VNICs that the peer may see.
    pub members: Vec<MemberStats>,
    /// Bridges; for root and the daemon's owner only.
    #[serde(default)]
    pub bridges: Vec<BridgeStats>,
    /// Workers; for root and the daemon's owner only.
    #[serde(default)]
    pub workers: Vec<WorkerStats>,
    /// vnd devices that the peer may see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vnds: Vec<VndStats>,
}

/// Frames of one member that were dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberDrops {
    /// The member.
    pub name: Name,
    /// The reason, see windlass-drops(7).
    pub reason: String,
    /// The frames.
    pub frames: u64,
}

/// Answer to `GET /v1/drops`: what was dropped lately.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecentDrops {
    /// How far back it reaches: one to two minutes, less after a start.
    pub seconds: u64,
    /// Drops of members that the peer may see, most first.
    pub drops: Vec<MemberDrops>,
}

/// Answer to `PUT /v1/document` and to every change of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The document's revision now: it grows by one with every change.
    pub revision: u64,
    /// Whether nothing was done (`?dry_run=true`).
    pub dry_run: bool,
    /// What was changed, or would be, in the order of doing.
    pub changes: Vec<Change>,
    /// What the peer should know of it, a sentence each: an address that was behind an uplink is a VNIC's now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What a [`MonitorEvent`] tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum EventKind {
    /// First line of a stream: what follows is later than this revision.
    Start,
    /// The configuration has changed.
    Change {
        /// How.
        change: Box<Change>,
    },
    /// The state of a member has changed.
    State {
        /// Its name.
        name: Name,
        /// Its state now.
        status: Status,
    },
    /// A member has sent from an address that another one has for good. Its frames are dropped, and the address stays
    /// where it is. At most one event a bridge in ten seconds.
    Clash {
        /// The bridge.
        bridge: Name,
        /// A VLAN in which it has the address; 0 on a bridge without VLAN filtering.
        vlan: u16,
        /// The address.
        mac: MacAddr,
        /// The member that has it.
        holder: Name,
        /// The member that has sent from it.
        member: Name,
    },
    /// The reader was too slow.
    Lost {
        /// Events that it did not get.
        events: u64,
    },
}

/// A line of `GET /v1/monitor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MonitorEvent {
    /// Time of day: nanoseconds since 1970, UTC.
    pub time_ns: u64,
    /// The document's revision after it.
    pub revision: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Answer to `GET /v1/daemon`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonView {
    /// Version of `windlassd`.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The document's revision.
    pub revision: u64,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Data workers.
    pub workers: u32,
    /// Directory of its sockets.
    pub runtime_dir: String,
    /// Who the peer is to it.
    pub you: PeerView,
    /// Limits of the peer, with what it has; to operators, of each user who has something.
    #[serde(default)]
    pub limits: Vec<LimitView>,
}

/// A limit of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitView {
    /// The user. What is in a zone counts for its owner.
    pub uid: u32,
    /// The option of the daemon that sets it.
    pub limit: String,
    /// What is counted.
    pub unit: String,
    /// How many the user has.
    pub used: u32,
    /// How many one may have who is no operator.
    pub max: u32,
}

/// How the daemon sees the one who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerView {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether it may act in all zones, on bridges and uplinks.
    pub operator: bool,
    /// Zones that it owns.
    pub zones: Vec<Name>,
}
