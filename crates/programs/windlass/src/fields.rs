//! The columns of every table: what `-o` can name.

use serde_json::Value;

use crate::objects::Fact;
use crate::table::{Cell, Column, at, attachment, size_at};

/// A field that `-o` can name, for the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldRow {
    /// Its name.
    pub name: &'static str,
    /// What stands in it.
    pub about: &'static str,
}

/// The fields of the tables of a command (`vnic show`, `vnic show -s`, `fdb show`, ...), in order.
pub fn fields() -> Vec<(&'static str, Vec<FieldRow>)> {
    let tables: [(&str, &[Column]); 34] = [
        ("zone show", ZONE),
        ("bridge show", BRIDGE),
        ("bridge show -s", TABLE),
        ("bridge show --ports", PORTS),
        ("bridge mdb show", MDB),
        ("uplink show", UPLINK),
        ("uplink show -s", TRAFFIC),
        ("overlay show", OVERLAY),
        ("overlay show -f", FAULTS),
        ("overlay show -t", TARGET),
        ("overlay show -s", TRAFFIC),
        ("overlay host show", HOST),
        ("vnic show", VNIC),
        ("vnic show -s", TRAFFIC),
        ("stat", TRAFFIC),
        ("stat --drops", DROPS),
        ("vnic rules", RULES),
        ("flow show", FLOW),
        ("vnd list", VND),
        ("vnd get", PROPERTY),
        ("vnd stat", VND_STAT),
        ("fdb show", FDB),
        ("worker show", WORKER),
        ("memory --regions", REGION),
        ("vnic get", PROPERTY),
        ("sockets", SOCKETS),
        ("memory", MEMORY),
        ("memory --threads", MEMORY_THREADS),
        ("memory --caches", MEMORY_CACHES),
        ("memory growth", GROWTH),
        ("memory leaks", LEAKS),
        ("memory whatis", WHATIS),
        ("gen", GEN),
        ("sink", SINK),
    ];
    let rows = |columns: &[Column]| {
        columns
            .iter()
            .map(|column| FieldRow {
                name: column.name,
                about: column.about,
            })
            .collect()
    };
    tables
        .into_iter()
        .chain(crate::inspect::fields::TABLES)
        .map(|(command, columns)| (command, rows(columns)))
        .collect()
}

macro_rules! columns {
    ($(#[$doc:meta])* $table:ident: $($name:literal $usual:ident $about:literal $cell:expr;)*) => {
        $(#[$doc])*
        pub(crate) const $table: &[Column] = &[
            $( Column { name: $name, about: $about, usual: columns!(@ $usual), cell: $cell }, )*
        ];
    };
    (@ usual) => { true };
    (@ more) => { false };
}
pub(crate) use columns;

columns! {
    /// `zone show`.
    ZONE:
    "name" usual "Name of the zone." |row| at(row, "/name");
    "owner" usual "User who acts in it." |row| at(row, "/owner_uid");
    "group" usual "Group whose members see it." |row| at(row, "/owner_gid");
    "netns" usual "Network namespace of its TAPs." |row| at(row, "/netns");
    "bridges" usual "Bridges on which its owner may make VNICs." |row| at(row, "/bridges");
    "vnics" usual "VNICs in it." |row| at(row, "/vnics");
    "descriptors" more "Descriptors that its VNICs may come to need." |row| at(row, "/descriptors");
    "mappings" more "Shared mappings that their peers have." |row| at(row, "/mappings");
    "addresses" more "Addresses learned on them." |row| at(row, "/addresses");
    "log-lines" more "Lines of the log that count against log-lines-burst still." |row| at(row, "/log_lines");
    "directory" more "Directory under which its sockets lie." |row| at(row, "/directory");
}

columns! {
    /// `bridge show`.
    BRIDGE:
    "name" usual "Name of the bridge." |row| at(row, "/name");
    "members" usual "Its uplinks, overlays and VNICs." |row| at(row, "/members");
    "addresses" usual "Addresses in its forwarding table." |row| at(row, "/table/addresses");
    "home" more "Worker that writes its forwarding table." |row| at(row, "/home");
    "workers" more "Workers that serve it." |row| at(row, "/workers");
    "properties" usual "Properties that were set." set;
}

columns! {
    /// `uplink show`.
    UPLINK:
    "name" usual "Name of the uplink." |row| at(row, "/name");
    "device" usual "Interface of the host." |row| at(row, "/device");
    "bridge" usual "Bridge that it is a member of." |row| at(row, "/bridge");
    "state" usual "up, waiting or down." |row| at(row, "/state");
    "mtu-now" usual "Largest packet now, in bytes." mtu_now;
    "attach" usual "How frames are taken from it." attachment;
    "rings-now" more "Rings in use, in each direction." |row| at(row, "/rings_now");
    "workers" more "Worker of each ring." |row| at(row, "/workers");
    "connects" more "Connections that came up since it was made." |row| at(row, "/connects");
    "details" more "Peer, features, ring sizes and what else the attachment tells." details;
    "share" more "Whether it was taken although it has addresses or a master." share;
    "properties" more "Properties that were set." set;
    "reason" usual "Why it is not up." |row| at(row, "/reason");
}

columns! {
    /// `overlay show`.
    OVERLAY:
    "name" usual "Name of the overlay." |row| at(row, "/name");
    "bridge" usual "Bridge that it is a member of." overlay_bridge;
    "state" usual "up (online), or waiting (degraded)." |row| at(row, "/state");
    "networks" usual "Network identifier, or one for each VLAN." |row| at(row, "/details/networks");
    "search" usual "How the host of an address is found." |row| at(row, "/search");
    "listen" usual "Underlay address and port of this host." |row| at(row, "/details/listen");
    "mtu-now" usual "Largest inner packet now, in bytes." mtu_now;
    "targets" usual "Remote hosts, once for each network." |row| at(row, "/targets");
    "addresses" usual "Addresses behind them." |row| at(row, "/addresses");
    "properties" more "Properties that were set." set;
    "reason" usual "Why it is degraded." |row| at(row, "/reason");
}

columns! {
    /// `overlay show -f`.
    FAULTS:
    "name" usual "Name of the overlay." |row| at(row, "/name");
    "state" usual "online, or degraded." |row| at(row, "/state");
    "details" usual "Why it is degraded." |row| at(row, "/details");
}

columns! {
    /// `overlay show -t`, `overlay target show`.
    TARGET:
    "overlay" usual "Name of the overlay." |row| at(row, "/overlay");
    "mac" usual "Address behind the target; -- for what is flooded." |row| at(row, "/mac");
    "vlan" more "VLAN on the bridge; 0 where it does not filter." |row| at(row, "/vlan");
    "vni" usual "Network identifier." |row| at(row, "/vni");
    "target" usual "Underlay address and port of the remote host." |row| at(row, "/target");
    "since" usual "Seconds since a learned address was seen last." |row| at(row, "/age_s");
    "kind" usual "static (set by hand), pushed (by the search), learned or flood." |row| at(row, "/kind");
}

columns! {
    /// `overlay host show`.
    HOST:
    "overlay" usual "Name of the overlay." |row| at(row, "/overlay");
    "host" usual "Name of the host in the registry." |row| at(row, "/host");
    "targets" usual "Its underlay addresses and ports." |row| at(row, "/targets");
    "state" usual "alive, or unsure: it has not said so for 30 s." |row| at(row, "/state");
}

/// The bridge of an overlay: without one, that of its name.
fn overlay_bridge(row: &Value) -> Cell {
    match at(row, "/bridge") {
        Cell::Missing => at(row, "/name"),
        bridge => bridge,
    }
}

columns! {
    /// `vnic show`.
    VNIC:
    "name" usual "Name of the VNIC." |row| at(row, "/name");
    "bridge" usual "Bridge that it is a member of." |row| at(row, "/bridge");
    "zone" usual "Zone that it belongs to." |row| at(row, "/zone");
    "mac" usual "Its address." |row| at(row, "/mac");
    "state" usual "up, waiting or down." |row| at(row, "/state");
    "mtu-now" usual "Largest packet now, in bytes." mtu_now;
    "attach" usual "Who is on the other side." attachment;
    "rings-now" more "Rings in use, in each direction." |row| at(row, "/rings_now");
    "workers" more "Worker of each ring." |row| at(row, "/workers");
    "connects" more "Connections that came up since it was made." |row| at(row, "/connects");
    "learned" more "Addresses that it was given, each with the method and the seconds left." learned;
    "details" more "Peer, features, ring sizes and what else the attachment tells." details;
    "properties" more "Properties that were set." set;
    "reason" usual "Why it is not up." |row| at(row, "/reason");
}

columns! {
    /// `flow show`. rx is what windlass received from the VNIC.
    FLOW:
    "name" usual "Name of the flow." |row| at(row, "/name");
    "vnic" usual "VNIC whose traffic it is a part of." |row| at(row, "/vnic");
    "attributes" usual "What is in it." |row| at(row, "/attributes");
    "properties" usual "Properties that were set." set;
    "rx-frames" usual "Frames of the VNIC in it that went on." |row| counted(row, "rx_frames");
    "rx-bytes" usual "Their bytes." |row| counted(row, "rx_bytes");
    "rx-dropped" usual "Frames of the VNIC in it that were dropped." |row| counted(row, "rx_dropped");
    "tx-frames" usual "Frames to the VNIC in it that went on." |row| counted(row, "tx_frames");
    "tx-bytes" usual "Their bytes." |row| counted(row, "tx_bytes");
    "tx-dropped" usual "Frames to the VNIC in it that were dropped." |row| counted(row, "tx_dropped");
    "rx-matched" more "Frames of the VNIC in it." |row| counted(row, "rx_matched");
    "rx-marked" more "Frames of the VNIC in it that were ECN-marked, not dropped." |row| counted(row, "rx_marked");
    "rx-held" more "Frames of the VNIC in it that wait now." |row| at(row, "/rx_held");
    "tx-matched" more "Frames to the VNIC in it." |row| counted(row, "tx_matched");
    "tx-marked" more "Frames to the VNIC in it that were ECN-marked, not dropped." |row| counted(row, "tx_marked");
    "tx-held" more "Frames to the VNIC in it that wait now." |row| at(row, "/tx_held");
    "drops" more "Dropped frames by reason." flow_drops;
}

columns! {
    /// `vnd list`.
    VND:
    "name" usual "Name of the device; <unknown> if it was destroyed and a program has it open still." device;
    "datalink" usual "VNIC that it is over." |row| at(row, "/vnic");
    "zonename" usual "Zone that it belongs to." |row| at(row, "/zone");
    "state" more "up while a program has it open; waiting while none has." |row| at(row, "/state");
    "socket" more "Socket by which a program opens it." |row| at(row, "/socket");
    "connects" more "How often it was opened." |row| at(row, "/connects");
    "details" more "The program, and the size of its rings." details;
    "reason" more "Why it is not up." |row| at(row, "/reason");
}

columns! {
    /// `vnd stat`. rx is what the program receives.
    VND_STAT:
    "name" usual "Name of the device; <unknown> if it was destroyed and a program has it open still." device;
    "rx-bytes" usual "Bytes for the program." |row| counted(row, "device_rx_bytes");
    "tx-bytes" usual "Bytes from the program." |row| counted(row, "device_tx_bytes");
    "drops" usual "Frames that were dropped, in either direction." |row| counted(row, "drops");
    "txfc" usual "Times that the ring of the program's frames was full and was released." |row| counted(row, "txfc");
    "zone" usual "Zone that it belongs to." |row| at(row, "/zone");
    "vnic" more "VNIC that it is over." |row| at(row, "/vnic");
}

columns! {
    /// `gen`.
    GEN:
    "time" usual "Seconds since the beginning; total: the whole run." run_time;
    "frames" usual "Frames sent a second." |row| rate(row, "frames_per_s");
    "bytes" usual "Bytes sent a second." |row| rate(row, "bytes_per_s");
    "p50-us" usual "Half of the frames left no later than that behind their schedule, in microseconds." |row| at(row, "/p50_us");
    "p90-us" more "The same for 90 %." |row| at(row, "/p90_us");
    "p99-us" usual "The same for 99 %." |row| at(row, "/p99_us");
    "p999-us" more "The same for 99.9 %." |row| at(row, "/p999_us");
    "max-us" usual "The latest one." |row| at(row, "/max_us");
    "sent" more "Frames sent." |row| at(row, "/frames");
    "sent-bytes" more "Bytes sent." |row| at(row, "/bytes");
}

columns! {
    /// `sink`.
    SINK:
    "time" usual "Seconds since the beginning; total: the whole run." run_time;
    "frames" usual "Frames received a second." |row| rate(row, "frames_per_s");
    "bytes" usual "Bytes received a second." |row| rate(row, "bytes_per_s");
    "lost" usual "Numbered frames that did not come, between the first and the last that came." |row| at(row, "/lost");
    "duplicates" usual "Numbered frames that came again." |row| at(row, "/duplicates");
    "reordered" usual "Numbered frames that came behind a later one of their flow." |row| at(row, "/reordered");
    "p50-us" usual "Half of the frames took no longer than that since they were due, in microseconds." |row| at(row, "/p50_us");
    "p90-us" usual "The same for 90 %." |row| at(row, "/p90_us");
    "p99-us" usual "The same for 99 %." |row| at(row, "/p99_us");
    "p999-us" usual "The same for 99.9 %." |row| at(row, "/p999_us");
    "max-us" usual "The one that took longest." |row| at(row, "/max_us");
    "received" more "Frames received." |row| at(row, "/frames");
    "received-bytes" more "Bytes received." |row| at(row, "/bytes");
}

fn rate(row: &Value, key: &str) -> Cell {
    row.get(key)
        .and_then(Value::as_f64)
        .map_or(Cell::Missing, Cell::Rate)
}

fn run_time(row: &Value) -> Cell {
    match at(row, "/span") {
        Cell::Text(span) if span == "total" => Cell::Text(span),
        _ => at(row, "/time_s"),
    }
}

/// The name of a vnd device, as libvnd has it.
fn device(row: &Value) -> Cell {
    match at(row, "/name") {
        Cell::Missing => Cell::Text("<unknown>".into()),
        name => name,
    }
}

columns! {
    /// What begins a row of traffic.
    MEMBER:
    "name" usual "Name of the member." |row| at(row, "/name");
    "bridge" usual "Bridge that it is a member of." |row| at(row, "/bridge");
}

columns! {
    /// What everybody wants to know of a member's traffic. rx is what windlass received from the member.
    SUMS:
    "rx-frames" usual "Frames received from it." |row| counted(row, "rx_frames");
    "rx-bytes" usual "Their bytes." |row| counted(row, "rx_bytes");
    "tx-frames" usual "Frames sent to it." |row| counted(row, "tx_frames");
    "tx-bytes" usual "Their bytes." |row| counted(row, "tx_bytes");
    "rx-dropped" usual "Frames from it that were dropped." |row| counted(row, "rx_dropped");
    "tx-dropped" usual "Frames for it that were dropped." |row| counted(row, "tx_dropped");
}

columns! {
    /// The other terms of the equations by which frames are conserved, and what lies outside them.
    TERMS:
    "rx-unicast" more "Frames from it that went to one member." |row| counted(row, "rx_unicast");
    "rx-flooded" more "Frames from it that were flooded." |row| counted(row, "rx_flooded");
    "rx-copies" more "Copies that flooding made of those." |row| counted(row, "rx_copies");
    "rx-floods-cut" more "Floods that ended before everyone had a copy." |row| counted(row, "rx_floods_cut");
    "rx-local" more "Frames from it that ended at the bridge, for the daemon." |row| counted(row, "rx_local");
    "rx-held" more "Frames from it that wait in private memory now." |row| at(row, "/rx_held");
    "rx-cut" more "Frames more than it sent: large segments cut for a maxbw." |row| counted(row, "rx_cut");
    "rx-marked" more "Frames from it that were ECN-marked, not dropped." |row| counted(row, "rx_marked");
    "tx-offered" more "Frames and copies that were to go to it." |row| counted(row, "tx_offered");
    "tx-cut" more "Frames more than those: large segments cut for a maxbw." |row| counted(row, "tx_cut");
    "tx-marked" more "Of those, ECN-marked, not dropped." |row| counted(row, "tx_marked");
    "tx-held" more "Of those, waiting in private memory now." |row| at(row, "/tx_held");
    "tx-span" more "Of those, copies for a span member." |row| counted(row, "tx_span");
    "tx-spilled" more "Of those, waited in private memory for a while." |row| counted(row, "tx_spilled");
    "tx-segments" more "Frames that software segmentation wrote." |row| counted(row, "tx_segments");
    "kicks" more "Notifications sent to the other side." |row| counted(row, "kicks");
    "kernel-drops" more "Frames dropped by the kernel behind it." |row| counted(row, "kernel_drops");
    "stalled-ns" more "Time that access to its memory took beyond what it may." |row| counted(row, "stalled_ns");
}

columns! {
    /// Traffic of all members of a bridge together.
    TOGETHER:
    "rx-frames" more "Frames received from its members." |row| counted(row, "rx_frames");
    "rx-bytes" more "Their bytes." |row| counted(row, "rx_bytes");
    "tx-frames" more "Frames sent to its members." |row| counted(row, "tx_frames");
    "tx-bytes" more "Their bytes." |row| counted(row, "tx_bytes");
    "rx-dropped" more "Frames from its members that were dropped." |row| counted(row, "rx_dropped");
    "tx-dropped" more "Frames for its members that were dropped." |row| counted(row, "tx_dropped");
}

/// `vnic show -s`, `uplink show -s`, `stat`.
pub(crate) static TRAFFIC: &[Column] =
    &join::<{ MEMBER.len() + SUMS.len() + TERMS.len() }>([MEMBER, SUMS, TERMS]);

/// `bridge show -s`.
pub(crate) static TABLE: &[Column] =
    &join::<{ LEARNING.len() + TOGETHER.len() + TERMS.len() }>([LEARNING, TOGETHER, TERMS]);

/// `bridge show --ports`.
pub(crate) static PORTS: &[Column] =
    &join::<{ MEMBER.len() + PORT.len() + SUMS.len() }>([MEMBER, PORT, SUMS]);

columns! {
    /// What a bridge does with a member.
    PORT:
    "state" usual "up, waiting or down." |row| at(row, "/state");
    "role" usual "Part in the spanning tree, where the bridge has one." |row| at(row, "/role");
    "cost" usual "What the way over it costs." |row| at(row, "/cost");
    "priority" usual "Priority in the port identifier." |row| at(row, "/priority");
    "flags" usual "Properties of these that are on: learn, discover, private, locked, sticky, span, stp, edge, auto-edge, point-to-point, root-guard, bpdu-guard." |row| at(row, "/flags");
}

columns! {
    /// `bridge mdb show`.
    MDB:
    "bridge" usual "The bridge." |row| at(row, "/bridge");
    "vlan" usual "VLAN; 0 on a bridge without VLAN filtering." |row| at(row, "/vlan");
    "group" usual "The group." |row| at(row, "/group");
    "member" usual "Member that gets its frames." |row| at(row, "/member");
    "kind" usual "permanent (mdb add), or learned from IGMP or MLD." |row| at(row, "/kind");
    "left" usual "Seconds until it ends, unless the member renews it." |row| at(row, "/left_s");
}

/// Columns one after the other; `N` is their number.
const fn join<const N: usize>(parts: [&[Column]; 3]) -> [Column; N] {
    let mut all = [parts[0][0]; N];
    let (mut part, mut at, mut i) = (0, 0, 0);
    while i < N {
        while at == parts[part].len() {
            (part, at) = (part + 1, 0);
        }
        all[i] = parts[part][at];
        (at, i) = (at + 1, i + 1);
    }
    all
}

columns! {
    /// `vnic show -s -s`, `stat --drops`.
    DROPS:
    "name" usual "Name of the member at which it is counted." |row| at(row, "/name");
    "bridge" usual "Bridge that it is a member of." |row| at(row, "/bridge");
    "reason" usual "Why the frames were dropped, see windlass-drops(7)." |row| at(row, "/reason");
    "stage" usual "ingress: from the member; egress: for the member." |row| at(row, "/stage");
    "frames" usual "Frames dropped." |row| counted(row, "frames");
    "explanation" more "The reason in a sentence." |row| at(row, "/explanation");
}

columns! {
    /// A forwarding table in numbers.
    LEARNING:
    "name" usual "Name of the bridge." |row| at(row, "/name");
    "addresses" usual "Addresses in its forwarding table now." |row| at(row, "/addresses");
    "learned" usual "Addresses learned." |row| counted(row, "learned");
    "moved" usual "Addresses that moved to another member." |row| counted(row, "moved");
    "moves-refused" usual "Moves refused: sticky, static or over the budget." |row| counted(row, "moves_refused");
    "expired" usual "Addresses that aged out." |row| counted(row, "expired");
    "evicted" usual "Addresses that had to go for others." |row| counted(row, "evicted");
    "refused" usual "Addresses not learned for a limit." |row| counted(row, "refused");
    "sightings-lost" more "Sightings not acted on: over the budget of their burst or ring, or the learner was behind." |row| counted(row, "sightings_lost");
}

columns! {
    /// `vnic rules`.
    RULES:
    "list" usual "Property that it stands in." |row| at(row, "/list");
    "frames" usual "Frames that it has decided." |row| counted(row, "frames");
    "bytes" usual "Bytes of those frames." |row| counted(row, "bytes");
    "rule" usual "The rule." |row| at(row, "/rule");
}

columns! {
    /// `fdb show`.
    FDB:
    "bridge" usual "The bridge." |row| at(row, "/bridge");
    "vlan" usual "VLAN; 0 on a bridge without VLAN filtering." |row| at(row, "/vlan");
    "mac" usual "The address." |row| at(row, "/mac");
    "member" usual "Member that gets its frames." |row| at(row, "/member");
    "kind" usual "learned, static, sticky or own." |row| at(row, "/kind");
    "age" usual "Seconds since it was last seen." |row| at(row, "/age_s");
}

columns! {
    /// `worker show`.
    WORKER:
    "worker" usual "Number of the worker." |row| at(row, "/worker");
    "core" usual "Core that it is pinned to." |row| at(row, "/core");
    "rings" usual "Rings that it serves." |row| at(row, "/rings");
    "frames" usual "Frames that it moved." |row| counted(row, "frames");
    "visits" usual "Visits to rings that found frames." |row| counted(row, "visits");
    "visits-empty" usual "Visits that found none." |row| counted(row, "visits_empty");
    "sleeps" usual "Times that it went to sleep." |row| counted(row, "sleeps");
    "yields" more "Times that it gave its core to receivers that the kernel schedules." |row| counted(row, "yields");
    "busy%" usual "Share of the interval that it spent on frames." |row| share_of(row, "cycles_busy");
    "polling%" usual "Share of the interval that it spent on empty rings." |row| share_of(row, "cycles_polling");
    "cycles-per-frame" usual "Busy time-stamp cycles for each frame." cycles_per_frame;
    "held" more "Frames in its private memory now." |row| at(row, "/held");
}

columns! {
    /// `memory --regions`.
    REGION:
    "owner" usual "The member or bridge whose it is." |row| at(row, "/owner");
    "kind" usual "memif (rings and buffers), guest (a virtual machine's memory), xdp (frames of an interface), table (a forwarding table)." |row| at(row, "/kind");
    "bytes" usual "Its size." |row| at(row, "/bytes");
    "asked" usual "What the daemon asked for: huge or 4k; peer: its owner chose." |row| at(row, "/asked");
    "had" usual "What there is: hugetlb (pages of the reserve), thp (transparent huge pages) or 4k." |row| at(row, "/had");
    "page" more "Bytes of the pages that it is mapped in." |row| at(row, "/page_bytes");
    "resident" more "Bytes that have memory." |row| at(row, "/resident_bytes");
    "huge" usual "Bytes of them in huge pages." |row| at(row, "/huge_bytes");
    "page-table" usual "Bytes of page tables for it, calculated." |row| at(row, "/page_table_bytes");
    "reason" usual "Why the pages are small, or what small ones cost." |row| at(row, "/reason");
}

columns! {
    /// `sockets`. tx is what the process sent.
    SOCKETS:
    "local" usual "Own name of the socket." |row| at(row, "/local");
    "peer" usual "Name of the other end." |row| at(row, "/peer");
    "pid" usual "Process that has it." |row| at(row, "/pid");
    "comm" usual "What the process is called." |row| at(row, "/comm");
    "peer-pid" usual "Process at the other end." |row| at(row, "/peer_pid");
    "peer-comm" more "What that process is called." |row| at(row, "/peer_comm");
    "kind" more "tcp or unix-stream." |row| at(row, "/kind");
    "uid" more "User of the process." |row| at(row, "/uid");
    "state" usual "ring: bytes may bypass the kernel; kernel: none does." |row| at(row, "/state");
    "reason" usual "Why it is on the kernel." |row| at(row, "/reason");
    "ring%" usual "Share of its bytes that went by the ring." ring_share;
    "ring-tx" usual "Bytes sent by the ring." |row| counted(row, "ring_tx_bytes");
    "ring-rx" usual "Bytes received by the ring." |row| counted(row, "ring_rx_bytes");
    "kernel-tx" usual "Bytes sent by the kernel." |row| counted(row, "kernel_tx_bytes");
    "kernel-rx" usual "Bytes received by the kernel." |row| counted(row, "kernel_rx_bytes");
    "tx-queue" more "Bytes sent that the other end has not read." |row| at(row, "/tx_queue_bytes");
    "rx-queue" more "Bytes received that the process has not read." |row| at(row, "/rx_queue_bytes");
    "slab" more "Memory that the two processes share." |row| at(row, "/slab");
    "channel" more "Its place in that memory." |row| at(row, "/channel");
    "explanation" more "The reason in a sentence." |row| at(row, "/explanation");
}

/// The share of a socket's bytes that went by the ring, in percent: of the interval if there is one.
fn ring_share(row: &Value) -> Cell {
    let number = |key| match counted(row, key) {
        Cell::Count(count) => count as f64,
        Cell::Rate(rate) => rate,
        _ => 0.0,
    };
    let ring = number("ring_tx_bytes") + number("ring_rx_bytes");
    let all = ring + number("kernel_tx_bytes") + number("kernel_rx_bytes");
    if all > 0.0 {
        Cell::Ratio(ring / all * 100.0)
    } else {
        Cell::Missing
    }
}

columns! {
    /// `memory`. in-use, cached, kept, lost and what the program has beside malloc are resident together.
    MEMORY:
    "pid" usual "Process." |row| at(row, "/pid");
    "comm" usual "What the process is called." |row| at(row, "/comm");
    "uid" more "User of the process." |row| at(row, "/uid");
    "up-s" more "Seconds since it started, or was forked." |row| at(row, "/up_s");
    "resident" usual "Memory that the process has, of malloc or not." |row| size_at(row, "/resident_bytes");
    "in-use" usual "Bytes that the program has allocated." |row| size_at(row, "/in_use_bytes");
    "cached" usual "Bytes in threads' magazines and in depots." |row| size_at(row, "/cached_bytes");
    "kept" usual "Bytes that hold nothing, and that the kernel has not got back." |row| size_at(row, "/kept_bytes");
    "lost" usual "Bytes of slabs that are free between objects: fragmentation." |row| size_at(row, "/lost_bytes");
    "mapped" more "Bytes of objects that are mappings of their own, of in-use." |row| size_at(row, "/mapped_bytes");
    "mappings" more "Number of such objects." |row| at(row, "/mappings");
    "threads" usual "Threads that have a cache." |row| at(row, "/threads");
    "slow-calls" usual "Calls that a thread's magazines could not serve." |row| counted(row, "slow_calls");
    "returned-bytes" more "Bytes given back to the kernel so far." |row| counted(row, "returned_bytes");
    "samples" more "Sampled objects that live." |row| at(row, "/samples");
    "samples-lost" more "Samples that found their table full." |row| at(row, "/samples_lost");
    "sample-mean" more "Bytes between two samples, on average; 0: none are taken." |row| size_at(row, "/sample_mean_bytes");
    "thread-cap" more "Bytes that one thread's magazines may hold." |row| size_at(row, "/thread_cap_bytes");
    "process-cap" more "Bytes that all of them may hold together." |row| size_at(row, "/process_cap_bytes");
    "spans" more "Spans of 2 MiB that the arena has." |row| at(row, "/spans");
    "broken-spans" more "Spans of which a part went back to the kernel." |row| at(row, "/broken_spans");
    "huge-asked" more "Bytes for which huge pages were asked." |row| size_at(row, "/huge_asked_bytes");
    "huge" more "Bytes in transparent huge pages, of malloc or not; not counted at an interval." |row| size_at(row, "/huge_bytes");
    "page-tables" more "Bytes of page tables." |row| size_at(row, "/page_tables_bytes");
}

columns! {
    /// `memory --threads`.
    MEMORY_THREADS:
    "pid" more "Process." |row| at(row, "/pid");
    "tid" usual "Thread." |row| at(row, "/tid");
    "name" usual "What the thread is called." |row| at(row, "/name");
    "cached" usual "Bytes in its magazines." |row| size_at(row, "/cached_bytes");
    "cap%" usual "Their share of what they may hold." |row| at(row, "/cap_percent");
    "limit" more "Bytes that its magazines may hold as they are now." |row| size_at(row, "/limit_bytes");
    "to-64" usual "Bytes in objects of up to 64 bytes." |row| size_at(row, "/to_64_bytes");
    "to-256" usual "Bytes in larger objects of up to 256." |row| size_at(row, "/to_256_bytes");
    "to-1k" usual "Bytes in larger objects of up to 1 KiB." |row| size_at(row, "/to_1k_bytes");
    "to-4k" usual "Bytes in larger objects of up to 4 KiB." |row| size_at(row, "/to_4k_bytes");
    "to-32k" usual "Bytes in larger objects of up to 32 KiB." |row| size_at(row, "/to_32k_bytes");
    "slow-calls" more "Calls that its magazines could not serve." |row| counted(row, "slow_calls");
    "idle-s" usual "Seconds since the last such call." |row| at(row, "/idle_s");
}

columns! {
    /// `memory --caches`. Counts of objects, but memory.
    MEMORY_CACHES:
    "pid" more "Process." |row| at(row, "/pid");
    "cache" usual "wl_alloc_SIZE: malloc's; others by their names." |row| at(row, "/cache");
    "size" usual "Bytes of an object." |row| at(row, "/size");
    "in-use" usual "Objects that the program has." |row| at(row, "/in_use");
    "in-mags" usual "Objects in threads' magazines." |row| at(row, "/in_mags");
    "in-depot" usual "Objects in the depot." |row| at(row, "/in_depot");
    "total" usual "Objects in all slabs, free or not." |row| at(row, "/total");
    "memory" usual "Bytes of the slabs." |row| size_at(row, "/memory_bytes");
    "slabs" more "Slabs." |row| at(row, "/slabs");
    "refills" usual "Batches that magazines took." |row| counted(row, "refills");
    "flushes" more "Batches that magazines gave back." |row| counted(row, "flushes");
    "contended" usual "Times that a thread waited for the lock." |row| counted(row, "contended");
}

columns! {
    /// `memory growth`.
    GROWTH:
    "bytes" usual "Bytes that live, estimated." |row| size_at(row, "/bytes");
    "error" usual "How far they may be off, in 95 % of all cases." |row| size_at(row, "/error_bytes");
    "objects" more "Objects that live, estimated." |row| at(row, "/objects");
    "samples" usual "Samples that the estimate is made of." |row| at(row, "/samples");
    "stack" usual "Who allocated, innermost first." |row| at(row, "/stack_text");
    "frames" more "The same as addresses." |row| at(row, "/frames");
}

columns! {
    /// `memory leaks`.
    LEAKS:
    "buffers" usual "Objects of this size that nothing points to." |row| at(row, "/buffers");
    "size" usual "Bytes of each." |row| at(row, "/size");
    "bytes" usual "Bytes of all." |row| size_at(row, "/bytes");
    "stack" usual "Who allocated them, of sampled ones." |row| at(row, "/stack_text");
    "addresses" usual "The first of them." |row| at(row, "/addresses");
}

columns! {
    /// `memory whatis`.
    WHATIS:
    "address" usual "The address." |row| at(row, "/address");
    "kind" usual "object, large, mapping: of malloc; arena, allocator, code, memory, nothing: not." |row| at(row, "/kind");
    "cache" usual "Cache of the object." |row| at(row, "/cache");
    "start" usual "First byte of the object." |row| at(row, "/start");
    "size" usual "Bytes of the object." |row| at(row, "/size");
    "offset" usual "Bytes before the address in the object." |row| at(row, "/offset");
    "state" usual "allocated or free." |row| at(row, "/state");
    "span" more "Span of the arena." |row| at(row, "/span");
    "text" more "All this in a sentence." |row| at(row, "/text");
}

columns! {
    /// `get`.
    PROPERTY:
    "name" usual "Name of the object." |row| at(row, "/name");
    "property" usual "The property." |row| at(row, "/property");
    "perm" usual "rw: it can be set; r-: it cannot." |row| at(row, "/perm");
    "value" usual "The value that holds." |row| at(row, "/value");
    "default" usual "The value when none was set." |row| at(row, "/default");
    "possible" usual "The values that there are." |row| at(row, "/possible");
    "unit" more "The unit of a number." |row| at(row, "/unit");
    "description" more "What it does." |row| at(row, "/description");
}

columns! {
    /// `show-props`.
    PROPERTIES:
    "property" usual "The property." |row| at(row, "/property");
    "perm" usual "rw: it can be set; r-: it cannot." |row| at(row, "/perm");
    "default" usual "The value when none was set." |row| at(row, "/default");
    "possible" usual "The values that there are." |row| at(row, "/possible");
    "unit" usual "The unit of a number." |row| at(row, "/unit");
    "description" usual "What it does." |row| at(row, "/description");
}

macro_rules! facts {
    ($(#[$doc:meta])* $table:ident: $($name:literal $perm:ident $about:literal $cell:expr;)*) => {
        $(#[$doc])*
        pub(crate) static $table: &[Fact] = &[
            $( Fact { name: $name, writable: facts!(@ $perm), about: $about, cell: $cell }, )*
        ];
    };
    (@ rw) => { true };
    (@ r) => { false };
}

facts! {
    /// `zone get`.
    ZONE_FACTS:
    "owner" rw "User who acts in it." |row| at(row, "/owner_uid");
    "group" rw "Group whose members see it." |row| at(row, "/owner_gid");
    "netns" rw "Network namespace of its TAPs." |row| at(row, "/netns");
    "bridges" rw "Bridges on which its owner may make VNICs." |row| at(row, "/bridges");
    "vnics" r "VNICs in it." |row| at(row, "/vnics");
    "descriptors" r "Descriptors that its VNICs may come to need." |row| at(row, "/descriptors");
    "mappings" r "Shared mappings that their peers have." |row| at(row, "/mappings");
    "addresses" r "Addresses learned on them." |row| at(row, "/addresses");
    "directory" r "Directory under which its sockets lie." |row| at(row, "/directory");
}

facts! {
    /// `bridge get`.
    BRIDGE_FACTS:
    "members" r "Its uplinks, overlays and VNICs." |row| at(row, "/members");
    "addresses" r "Addresses in its forwarding table." |row| at(row, "/table/addresses");
    "home" r "Worker that writes its forwarding table." |row| at(row, "/home");
    "workers" r "Workers that serve it." |row| at(row, "/workers");
}

facts! {
    /// `uplink get`.
    UPLINK_FACTS:
    "device" r "Interface of the host." |row| at(row, "/device");
    "bridge" rw "Bridge that it is a member of." |row| at(row, "/bridge");
    "attach" r "How frames are taken from it." attachment;
    "share" r "Whether it was taken although it has addresses or a master." share;
    "state" r "up, waiting or down." |row| at(row, "/state");
    "reason" r "Why it is not up." |row| at(row, "/reason");
    "mtu-now" r "Largest packet now, in bytes." mtu_now;
    "rings-now" r "Rings in use, in each direction." |row| at(row, "/rings_now");
    "workers" r "Worker of each ring." |row| at(row, "/workers");
    "details" r "Peer, features, ring sizes and what else the attachment tells." details;
}

facts! {
    /// `overlay get`.
    OVERLAY_FACTS:
    "bridge" r "Bridge that it is a member of." overlay_bridge;
    "encap" r "How frames are put on the wire." |row| at(row, "/encap");
    "search" r "How the host of an address is found." |row| at(row, "/search");
    "state" r "up (online), or waiting (degraded)." |row| at(row, "/state");
    "reason" r "Why it is degraded." |row| at(row, "/reason");
    "mtu-now" r "Largest inner packet now, in bytes." mtu_now;
}

facts! {
    /// `vnic get`.
    VNIC_FACTS:
    "bridge" rw "Bridge that it is a member of." |row| at(row, "/bridge");
    "zone" r "Zone that it belongs to." |row| at(row, "/zone");
    "mac" rw "Its address." |row| at(row, "/mac");
    "attach" rw "Who is on the other side." attachment;
    "state" r "up, waiting or down." |row| at(row, "/state");
    "reason" r "Why it is not up." |row| at(row, "/reason");
    "mtu-now" r "Largest packet now, in bytes." mtu_now;
    "rings-now" r "Rings in use, in each direction." |row| at(row, "/rings_now");
    "workers" r "Worker of each ring." |row| at(row, "/workers");
    "details" r "Peer, features, ring sizes and what else the attachment tells." details;
}

facts! {
    /// `flow get`.
    FLOW_FACTS:
    "vnic" r "VNIC whose traffic it is a part of." |row| at(row, "/vnic");
    "attributes" r "What is in it." |row| at(row, "/attributes");
}

/// Dropped frames of a flow by reason.
fn flow_drops(row: &Value) -> Cell {
    let drops = row.get("drops").and_then(Value::as_object);
    let drops = drops.into_iter().flatten();
    let words: Vec<_> = drops.map(|(reason, n)| format!("{reason}={n}")).collect();
    match words.is_empty() {
        true => Cell::Missing,
        false => Cell::Text(words.join(" ")),
    }
}

/// What a counter gains in a second, if the row has that.
fn rate_of(row: &Value, key: &str) -> Option<f64> {
    let rates = row.get("rates")?;
    rates.get(format!("{key}_per_s"))?.as_f64()
}

/// A counter: its rate if the row has one, else its total.
fn counted(row: &Value, key: &str) -> Cell {
    match rate_of(row, key) {
        Some(rate) => Cell::Rate(rate),
        None => at(row, key),
    }
}

/// The share of a worker's time that a rate of cycles is, in percent.
fn share_of(row: &Value, key: &str) -> Cell {
    let rate = rate_of(row, key);
    let whole = row.get("cycles_per_second").and_then(Value::as_f64);
    match (rate, whole) {
        (Some(rate), Some(whole)) if whole > 0.0 => Cell::Ratio(rate / whole * 100.0),
        _ => Cell::Missing,
    }
}

fn cycles_per_frame(row: &Value) -> Cell {
    let number = |key| match counted(row, key) {
        Cell::Count(count) => count as f64,
        Cell::Rate(rate) => rate,
        _ => 0.0,
    };
    let (cycles, frames) = (number("cycles_busy"), number("frames"));
    if frames > 0.0 {
        Cell::Ratio(cycles / frames)
    } else {
        Cell::Missing
    }
}

/// The largest packet in force; 0 means that it is not known yet.
fn mtu_now(row: &Value) -> Cell {
    match at(row, "/mtu_now") {
        Cell::Count(0) => Cell::Unknown,
        cell => cell,
    }
}

/// What an attachment tells of its connection, as `NAME=VALUE` with blanks between.
fn details(row: &Value) -> Cell {
    let Some(details) = row.get("details").and_then(Value::as_object) else {
        return Cell::Missing;
    };
    let words = details.iter().map(|(name, value)| {
        let value = value.as_str().unwrap_or("?");
        format!("{name}={value}")
    });
    Cell::Text(words.collect::<Vec<_>>().join(" "))
}

/// Addresses that a VNIC was given, as `ADDRESS METHOD 3600s`, with commas between.
fn learned(row: &Value) -> Cell {
    let Some(learned) = row.get("learned").and_then(Value::as_array) else {
        return Cell::Missing;
    };
    let words = learned.iter().map(|lease| {
        let word = |name| lease.get(name).and_then(Value::as_str).unwrap_or("?");
        let left = lease.get("seconds_left").and_then(Value::as_u64);
        let left = left.map_or_else(|| "forever".into(), |left| format!("{left}s"));
        format!("{} {} {left}", word("address"), word("method"))
    });
    Cell::Text(words.collect::<Vec<_>>().join(", "))
}

fn share(row: &Value) -> Cell {
    match at(row, "/share") {
        Cell::Missing => Cell::Text("off".into()),
        cell => cell,
    }
}

/// The properties that were set, as `KEY=VALUE` with blanks between, because a value can hold commas.
fn set(row: &Value) -> Cell {
    let Some(properties) = row.get("properties").and_then(Value::as_object) else {
        return Cell::Missing;
    };
    let words = properties.keys().map(|key| {
        let value = match at(row, &format!("/properties/{key}")) {
            Cell::Text(text) => text,
            Cell::Count(count) => count.to_string(),
            _ => "?".into(),
        };
        format!("{key}={value}")
    });
    Cell::Text(words.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A field's name is unlike the others of its table, and each is explained.
    #[test]
    fn fields_are_distinct() {
        for (command, rows) in fields() {
            for (i, row) in rows.iter().enumerate() {
                assert!(
                    rows.iter().skip(i + 1).all(|other| other.name != row.name),
                    "{command}"
                );
                assert!(row.about.ends_with('.'), "{command} {}", row.name);
            }
        }
    }

    /// Other names than the field's own: for its number a column has the account's name, and no unit.
    const SPELT: [(&str, &str); 3] = [
        ("owner", "owner_uid"),
        ("group", "owner_gid"),
        ("age", "age_s"),
    ];

    /// Every field but counters, of whatever there are tables of.
    const ROW: &str = r#"
            {"name": "a", "owner_uid": 1, "owner_gid": 1, "netns": "a", "bridges": ["a"], "vnics": 1, "descriptors": 1, "mappings": 1, "addresses": 1, "log_lines": 1, "directory":
            "/", "members": ["a"], "table": {"addresses": 1}, "properties": {"vlan": 1}, "device": "a", "bridge": "a",
            "state": "up", "mtu_now": 1, "attach": {"kind": "packet"}, "rings_now": 1, "connects": 1, "details": {"a":
            "b"}, "share": true, "reason": "a", "zone": "a", "mac": "a", "stage": "a", "explanation": "a", "vlan": 1,
            "member": "a", "kind": "a", "age_s": 1, "local": "a", "peer": "a", "pid": 1, "comm": "a", "peer_pid": 1,
            "peer_comm": "a", "uid": 1, "ring_tx_bytes": 1, "ring_rx_bytes": 1, "kernel_tx_bytes": 1,
            "kernel_rx_bytes": 1, "tx_queue_bytes": 1, "rx_queue_bytes": 1, "slab": 1, "channel": 1, "core": 1, "home": 1, "workers": [1], "frames": 1, "bytes": 1, "list": "a", "rule": "a", "property": "a", "vnic": "a", "attributes": "a", "drops": {"a": 1},
            "perm": "a", "value": "a", "default": "a", "possible": "a", "unit": "a", "description": "a"}
            "#;

    /// What a table shows is called as in JSON, in every table alike; a column made of several fields has a name of its own.
    #[test]
    fn columns_are_called_like_their_fields() {
        let mut row: Value = serde_json::from_str(ROW).expect("JSON");
        for view in [
            serde_json::to_value(windlass_api::Counters::default()),
            serde_json::to_value(windlass_api::FlowCounters::default()),
            serde_json::to_value(windlass_api::TableStats::default()),
            serde_json::to_value(windlass_api::WorkerStats::default()),
        ] {
            let view = view.expect("JSON");
            let fields = row.as_object_mut().expect("an object");
            fields.extend(view.as_object().expect("an object").clone());
        }
        (row["frames"], row["cycles_busy"]) = (json!(1), json!(1));
        // A count in a bridge's table, a list in a VNIC.
        row["learned"] = json!([{"address": "10.0.0.1", "method": "dhcpv4"}]);
        let facts = [
            ZONE_FACTS,
            BRIDGE_FACTS,
            UPLINK_FACTS,
            VNIC_FACTS,
            FLOW_FACTS,
        ];
        let facts = facts
            .iter()
            .flat_map(|facts| facts.iter())
            .map(|fact| (fact.name, fact.cell));
        let tables = [
            ZONE, BRIDGE, UPLINK, VNIC, RULES, FLOW, TRAFFIC, TABLE, DROPS, FDB, WORKER, SOCKETS,
            PROPERTY, PROPERTIES,
        ];
        let columns = tables.iter().flat_map(|table| table.iter());
        let columns = columns.map(|column| (column.name, column.cell));
        for (name, cell) in columns.chain(facts) {
            let made_of: Vec<_> = (row.as_object().expect("an object").keys())
                .filter(|key| {
                    let mut without = row.clone();
                    without.as_object_mut().expect("an object").remove(*key);
                    cell(&without) != cell(&row)
                })
                .collect();
            // Shares are of rates.
            assert!(
                name.ends_with('%') || !made_of.is_empty(),
                "{name}: the row of this test lacks its field"
            );
            let [field] = made_of[..] else { continue };
            let plain = name.replace('-', "_");
            let is_spelt = SPELT.contains(&(name, field.as_str()));
            let is_named = [&plain, &format!("{plain}_bytes")].contains(&field);
            // The addresses of a bridge's table lie in it.
            let is_within = field == "table" && row["table"].get(&plain).is_some();
            assert!(
                is_spelt || is_named || is_within,
                "{name} and {field} are one quantity"
            );
        }
    }

    /// Rates win over totals; shares and quotients are of the interval and never divide by zero.
    #[test]
    fn derived_cells() {
        let row = json!({"frames": 10, "cycles_busy": 500, "cycles_per_second": 1000});
        assert_eq!(cycles_per_frame(&row), Cell::Ratio(50.0));
        assert_eq!(share_of(&row, "cycles_busy"), Cell::Missing);
        let row = json!({"frames": 10, "cycles_busy": 500, "cycles_per_second": 1000,
            "rates": {"frames_per_s": 4.0, "cycles_busy_per_s": 400.0}});
        assert_eq!(cycles_per_frame(&row), Cell::Ratio(100.0));
        assert_eq!(share_of(&row, "cycles_busy"), Cell::Ratio(40.0));
        assert_eq!(cycles_per_frame(&json!({})), Cell::Missing);
        let row = json!({"properties": {"learn": false, "tagged": "1,2", "vlan": 7}});
        assert_eq!(set(&row), Cell::Text("learn=off tagged=1,2 vlan=7".into()));
    }
}
