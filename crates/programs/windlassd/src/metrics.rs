//! The counters as text for Prometheus (exposition format, version 0.0.4).
//!
//! # Model
//! Each family of metrics is an entry of one of the tables below: its name, what it says, and where its value stands in a
//! view of the API. The text, the table of docs/operator-guide.md and the Grafana dashboard are made from these tables.
//!
//! # Limits
//! Labels are names of objects of the document and of reasons for drops, so that their number is bounded by the document's.
//! No address, process or connection is a label; a flow is one that somebody has named. A reason that was never met has no line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use windlass_api::{
    Counters, DaemonView, Flow, FlowCounters, FlowView, MemberStats, Name, State, Stats,
    TableStats, WorkerStats,
};

/// Content type of the text.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a metric does as time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It grows, and starts from zero with its object; of a flow, a bridge or a worker, with each daemon ([`DAEMON`] has its age).
    Counter,
    /// It is a level.
    Gauge,
}

/// Metrics of one name.
#[derive(Debug)]
pub struct Family<T> {
    /// Its name behind the prefix of its object.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Whether it is a level.
    pub kind: Kind,
    value: fn(&T) -> f64,
}

macro_rules! families {
    ($view:ident: $($name:literal $kind:ident $value:expr, $help:literal;)*) => {
        &[$(Family {
            name: $name,
            help: $help,
            kind: Kind::$kind,
            value: |$view| $value,
        }),*]
    };
}

/// Of the daemon; prefix `windlass_`.
pub const DAEMON: &[Family<DaemonView>] = families! { daemon:
    "uptime_seconds" Gauge daemon.uptime_s as f64, "Seconds since the daemon started.";
    "document_revision" Gauge daemon.revision as f64, "Revision of the configuration.";
};

/// Of a VNIC or an uplink; prefix `windlass_vnic_` or `windlass_uplink_`.
pub const MEMBER: &[Family<Counters>] = families! { counters:
    "receive_frames_total" Counter counters.rx_frames as f64, "Frames received from it.";
    "receive_bytes_total" Counter counters.rx_bytes as f64, "Bytes received from it.";
    "receive_unicast_frames_total" Counter counters.rx_unicast as f64, "Received frames sent to one member.";
    "receive_flooded_frames_total" Counter counters.rx_flooded as f64, "Received frames that were flooded.";
    "receive_local_frames_total" Counter counters.rx_local as f64, "Received frames that ended at the bridge, for the daemon.";
    "receive_dropped_frames_total" Counter counters.rx_dropped as f64, "Received frames dropped.";
    "receive_held_frames" Gauge counters.rx_held as f64, "Frames from it that wait in private memory.";
    "receive_copies_total" Counter counters.rx_copies as f64, "Copies made by flooding its frames.";
    "receive_floods_cut_total" Counter counters.rx_floods_cut as f64, "Floods that ended before everyone had a copy.";
    "receive_cut_frames_total" Counter counters.rx_cut as f64, "Frames more than came: large segments cut for a maxbw.";
    "receive_marked_frames_total" Counter counters.rx_marked as f64, "Frames from it: ECN-marked, not dropped.";
    "transmit_offered_frames_total" Counter counters.tx_offered as f64, "Frames and copies to be sent to it.";
    "transmit_frames_total" Counter counters.tx_frames as f64, "Frames sent to it.";
    "transmit_bytes_total" Counter counters.tx_bytes as f64, "Bytes sent to it.";
    "transmit_dropped_frames_total" Counter counters.tx_dropped as f64, "Frames to it that were dropped.";
    "transmit_held_frames" Gauge counters.tx_held as f64, "Frames to it that wait in private memory.";
    "transmit_cut_frames_total" Counter counters.tx_cut as f64, "Frames more than offered: large segments cut for a maxbw.";
    "transmit_marked_frames_total" Counter counters.tx_marked as f64, "Frames to it: ECN-marked, not dropped.";
    "transmit_span_frames_total" Counter counters.tx_span as f64, "Copies sent to it as a span member.";
    "transmit_spilled_frames_total" Counter counters.tx_spilled as f64, "Frames that waited in private memory.";
    "transmit_segments_total" Counter counters.tx_segments as f64, "Frames written by software segmentation.";
    "kicks_total" Counter counters.kicks as f64, "Notifications sent to the other side.";
    "kernel_drops_total" Counter counters.kernel_drops as f64, "Frames dropped by the kernel behind it.";
    "stalled_seconds_total" Counter counters.stalled_ns as f64 / 1e9, "Time that access to its memory took beyond what it may.";
};

/// Of a flow of a VNIC; prefix `windlass_flow_`. Its frames are among the VNIC's.
pub const FLOW: &[Family<FlowCounters>] = families! { counters:
    "receive_matched_frames_total" Counter counters.rx_matched as f64, "Frames from the VNIC that were in the flow.";
    "receive_frames_total" Counter counters.rx_frames as f64, "Frames of the flow from the VNIC that went on.";
    "receive_bytes_total" Counter counters.rx_bytes as f64, "Bytes of the flow from the VNIC that went on.";
    "receive_marked_frames_total" Counter counters.rx_marked as f64, "Frames of the flow from the VNIC: ECN-marked, not dropped.";
    "receive_dropped_frames_total" Counter counters.rx_dropped as f64, "Frames of the flow from the VNIC that were dropped.";
    "receive_held_frames" Gauge counters.rx_held as f64, "Frames of the flow from the VNIC that wait for a maxbw.";
    "transmit_matched_frames_total" Counter counters.tx_matched as f64, "Frames to the VNIC that were in the flow.";
    "transmit_frames_total" Counter counters.tx_frames as f64, "Frames of the flow to the VNIC that went on.";
    "transmit_bytes_total" Counter counters.tx_bytes as f64, "Bytes of the flow to the VNIC that went on.";
    "transmit_marked_frames_total" Counter counters.tx_marked as f64, "Frames of the flow to the VNIC: ECN-marked, not dropped.";
    "transmit_dropped_frames_total" Counter counters.tx_dropped as f64, "Frames of the flow to the VNIC that were dropped.";
    "transmit_held_frames" Gauge counters.tx_held as f64, "Frames of the flow to the VNIC that wait for a maxbw.";
};

/// Of a bridge; prefix `windlass_bridge_`. Traffic of a bridge is the sum over its members.
pub const BRIDGE: &[Family<TableStats>] = families! { table:
    "addresses" Gauge table.addresses as f64, "Addresses in its forwarding table.";
    "addresses_learned_total" Counter table.learned as f64, "Addresses learned.";
    "addresses_moved_total" Counter table.moved as f64, "Addresses that moved to another member.";
    "moves_refused_total" Counter table.moves_refused as f64, "Moves refused: sticky, static or too many.";
    "addresses_expired_total" Counter table.expired as f64, "Addresses that aged out.";
    "addresses_evicted_total" Counter table.evicted as f64, "Addresses that went for others.";
    "addresses_refused_total" Counter table.refused as f64, "Addresses not learned for a limit.";
    "sightings_lost_total" Counter table.sightings_lost as f64, "Sightings not acted on.";
};

/// Of a data worker; prefix `windlass_worker_`.
pub const WORKER: &[Family<WorkerStats>] = families! { worker:
    "rings" Gauge f64::from(worker.rings), "Rings that it serves.";
    "frames_total" Counter worker.frames as f64, "Frames that it moved.";
    "visits_total" Counter worker.visits as f64, "Visits to rings that found frames.";
    "visits_empty_total" Counter worker.visits_empty as f64, "Visits to rings that found none.";
    "sleeps_total" Counter worker.sleeps as f64, "Times that it went to sleep.";
    "yields_total" Counter worker.yields as f64, "Times that it gave its core away.";
    "busy_seconds_total" Counter seconds(worker.cycles_busy, worker), "Time in visits that found frames.";
    "polling_seconds_total" Counter seconds(worker.cycles_polling, worker), "Time in visits that found none.";
    "held_frames" Gauge worker.held as f64, "Frames in its private memory.";
};

fn seconds(cycles: u64, worker: &WorkerStats) -> f64 {
    match worker.cycles_per_second {
        0 => 0.0,
        rate => cycles as f64 / rate as f64,
    }
}

/// What a reader of the text may meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Its whole name.
    pub name: String,
    /// What it says.
    pub help: &'static str,
    /// Whether it is a level.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
}

/// Every metric, in the order of the text.
pub fn all() -> Vec<Metric> {
    let mut all = vec![Metric {
        name: BUILD_INFO.into(),
        help: BUILD_INFO_HELP,
        kind: Kind::Gauge,
        labels: &["version"],
    }];
    list(&mut all, "windlass_", DAEMON, &[]);
    for (prefix, labels, with_reason) in MEMBERS {
        all.push(Metric {
            name: format!("{prefix}{UP}"),
            help: UP_HELP,
            kind: Kind::Gauge,
            labels,
        });
        list(&mut all, prefix, MEMBER, labels);
        all.push(Metric {
            name: format!("{prefix}{DROPS}"),
            help: DROPS_HELP,
            kind: Kind::Counter,
            labels: with_reason,
        });
    }
    list(&mut all, "windlass_flow_", FLOW, FLOW_LABELS);
    all.push(Metric {
        name: FLOW_DROPS.into(),
        help: DROPS_HELP,
        kind: Kind::Counter,
        labels: &["flow", "vnic", "zone", "reason"],
    });
    list(&mut all, "windlass_bridge_", BRIDGE, &["bridge"]);
    list(&mut all, "windlass_worker_", WORKER, &["worker"]);
    all
}

fn list<T>(all: &mut Vec<Metric>, prefix: &str, of: &[Family<T>], labels: &'static [&'static str]) {
    let metrics = of.iter().map(|family| Metric {
        name: format!("{prefix}{}", family.name),
        help: family.help,
        kind: family.kind,
        labels,
    });
    all.extend(metrics);
}

const BUILD_INFO: &str = "windlass_build_info";
const BUILD_INFO_HELP: &str = "Version of the daemon; always 1.";
const UP: &str = "up";
const UP_HELP: &str = "1 if frames pass, 0 if it is waiting or down.";
const DROPS: &str = "drop_frames_total";
const FLOW_DROPS: &str = "windlass_flow_drop_frames_total";
const FLOW_LABELS: &[&str] = &["flow", "vnic", "zone"];
const DROPS_HELP: &str = "Frames dropped, by reason; see windlass-drops(7).";

/// Prefixes of the kinds of members, in the order of [`Group`], with their labels, and these with the reason of a drop.
type Labels = &'static [&'static str];
const MEMBERS: [(&str, Labels, Labels); 3] = [
    (
        "windlass_uplink_",
        &["uplink", "bridge"],
        &["uplink", "bridge", "reason"],
    ),
    (
        "windlass_overlay_",
        &["overlay", "bridge"],
        &["overlay", "bridge", "reason"],
    ),
    (
        "windlass_vnic_",
        &["vnic", "bridge", "zone"],
        &["vnic", "bridge", "zone", "reason"],
    ),
];

/// A kind of member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Uplink,
    Overlay,
    Vnic,
}

/// What the text is made from: one moment of the counters that a peer may see.
#[derive(Debug)]
pub struct Sample {
    /// The daemon.
    pub daemon: DaemonView,
    /// The counters.
    pub stats: Stats,
    /// State of each member of `stats`, in its order.
    pub states: Vec<State>,
    /// Zone of each VNIC, empty for the global zone; others are missing.
    pub zones: BTreeMap<Name, String>,
    /// Which members are overlays.
    pub overlays: BTreeSet<Name>,
    /// The flows of the VNICs of `stats`.
    pub flows: Vec<FlowView>,
}

/// The text.
pub fn text(sample: &Sample) -> String {
    let mut out = String::new();
    title(&mut out, BUILD_INFO, BUILD_INFO_HELP, Kind::Gauge);
    line(
        &mut out,
        BUILD_INFO,
        &label("version", &sample.daemon.version),
        1.0,
    );
    write_families(
        &mut out,
        "windlass_",
        DAEMON,
        &[(String::new(), &sample.daemon)],
    );

    write_members(&mut out, sample);
    write_flows(&mut out, sample);
    let bridges = sample.stats.bridges.iter();
    let bridges: Vec<_> = bridges
        .map(|bridge| (label("bridge", bridge.name.as_str()), &bridge.table))
        .collect();
    write_families(&mut out, "windlass_bridge_", BRIDGE, &bridges);
    let workers = sample.stats.workers.iter();
    let workers: Vec<_> = workers
        .map(|worker| (label("worker", &worker.worker.to_string()), worker))
        .collect();
    write_families(&mut out, "windlass_worker_", WORKER, &workers);
    out
}

fn write_members(out: &mut String, sample: &Sample) {
    let group = |member: &MemberStats| match () {
        () if sample.zones.contains_key(&member.name) => Group::Vnic,
        () if sample.overlays.contains(&member.name) => Group::Overlay,
        () => Group::Uplink,
    };
    let labels = |member: &MemberStats| match sample.zones.get(&member.name) {
        Some(zone) => format!(
            "{},{},{}",
            label("vnic", member.name.as_str()),
            label("bridge", member.bridge.as_str()),
            label("zone", zone)
        ),
        None => format!(
            "{},{}",
            label(
                match group(member) {
                    Group::Overlay => "overlay",
                    Group::Uplink | Group::Vnic => "uplink",
                },
                member.name.as_str()
            ),
            label("bridge", member.bridge.as_str())
        ),
    };
    let groups = [Group::Uplink, Group::Overlay, Group::Vnic];
    for ((prefix, ..), wanted) in MEMBERS.into_iter().zip(groups) {
        let of_kind = (sample.stats.members.iter().zip(&sample.states))
            .filter(|(member, _)| group(member) == wanted);
        let of_kind: Vec<_> = of_kind
            .map(|(member, state)| (labels(member), &member.counters, *state))
            .collect();
        let up = format!("{prefix}{UP}");
        title(out, &up, UP_HELP, Kind::Gauge);
        for (labels, _, state) in &of_kind {
            line(out, &up, labels, f64::from(u8::from(*state == State::Up)));
        }
        let counters: Vec<_> = (of_kind.iter())
            .map(|(labels, counters, _)| (labels.clone(), *counters))
            .collect();
        write_families(out, prefix, MEMBER, &counters);
        let drops = counters
            .iter()
            .map(|(labels, counters)| (labels.as_str(), &counters.drops));
        write_drops(out, &format!("{prefix}{DROPS}"), drops);
    }
}

fn write_flows(out: &mut String, sample: &Sample) {
    let labels = |Flow { name, vnic, .. }: &Flow| {
        let zone = sample.zones.get(vnic).map_or("", String::as_str);
        format!(
            "{},{},{}",
            label("flow", name.as_str()),
            label("vnic", vnic.as_str()),
            label("zone", zone)
        )
    };
    let flows = sample.flows.iter();
    let flows: Vec<_> = flows
        .map(|flow| (labels(&flow.config), &flow.counters))
        .collect();
    write_families(out, "windlass_flow_", FLOW, &flows);
    let drops = flows
        .iter()
        .map(|(labels, counters)| (labels.as_str(), &counters.drops));
    write_drops(out, FLOW_DROPS, drops);
}

/// What objects have dropped, by reason.
fn write_drops<'a>(
    out: &mut String,
    name: &str,
    of: impl Iterator<Item = (&'a str, &'a BTreeMap<String, u64>)>,
) {
    title(out, name, DROPS_HELP, Kind::Counter);
    for (labels, drops) in of {
        for (reason, frames) in drops {
            let labels = format!("{labels},{}", label("reason", reason));
            line(out, name, &labels, *frames as f64);
        }
    }
}

fn write_families<T>(out: &mut String, prefix: &str, families: &[Family<T>], of: &[(String, &T)]) {
    for family in families {
        let name = format!("{prefix}{}", family.name);
        title(out, &name, family.help, family.kind);
        for (labels, view) in of {
            line(out, &name, labels, (family.value)(view));
        }
    }
}

fn title(out: &mut String, name: &str, help: &str, kind: Kind) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    // Writing to a String cannot fail.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

fn label(key: &str, value: &str) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("{key}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value, json};
    use windlass_api::{BridgeStats, PeerView};

    use super::*;

    /// The view with another number in each of its counters, and these numbers.
    fn numbered<T>(first: u64) -> (T, BTreeSet<u64>)
    where
        T: Default + serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut value = serde_json::to_value(T::default()).expect("a view is JSON");
        let mut numbers = BTreeSet::new();
        for (number, (_, field)) in (first..).zip(value.as_object_mut().expect("an object")) {
            if field.is_u64() {
                *field = json!(number);
                numbers.insert(number);
            }
        }
        (
            serde_json::from_value(value).expect("the same view"),
            numbers,
        )
    }

    /// The field of the API and the metric that is made of it have one name: of the metric's, `receive` and `transmit` are rx
    /// and tx, and units may be added; cycles become seconds.
    #[test]
    fn a_metric_is_called_like_its_field() {
        fn named<T>(families: &[Family<T>])
        where
            T: Default + serde::Serialize + serde::de::DeserializeOwned,
        {
            let (view, _) = numbered::<T>(1_000);
            let mut fields = serde_json::to_value(&view).expect("a view is JSON");
            // One cycle is one second.
            let mut seconds = fields.clone();
            if let Some(rate) = seconds.get_mut("cycles_per_second") {
                *rate = json!(1);
            }
            let view = serde_json::from_value(seconds).expect("the same view");
            for family in families {
                let value = (family.value)(&view);
                let fields = fields.as_object_mut().expect("an object");
                let field = fields.iter().find(|(_, field)| {
                    let field = field.as_f64();
                    field == Some(value) || field.map(|ns| ns / 1e9) == Some(value)
                });
                let (field, _) = field.expect("a metric is made of one field");
                let name = family.name.trim_end_matches("_total");
                let name = name.replace("receive_", "rx_").replace("transmit_", "tx_");
                let units = ["_frames", "_seconds"];
                let stem = units
                    .iter()
                    .find_map(|unit| name.strip_suffix(unit))
                    .unwrap_or(&name);
                let stem = stem.strip_prefix("addresses_").unwrap_or(stem);
                let of_field = field.trim_end_matches("_ns");
                let of_field = of_field.strip_suffix("_frames").unwrap_or(of_field);
                let of_field = of_field.strip_prefix("cycles_").unwrap_or(of_field);
                assert_eq!(stem, of_field, "{} and {field}", family.name);
            }
        }
        named(MEMBER);
        named(FLOW);
        named(BRIDGE);
        named(WORKER);
    }

    fn daemon() -> DaemonView {
        DaemonView {
            version: "1".into(),
            pid: 1,
            revision: 6_000,
            uptime_s: 6_001,
            workers: 1,
            runtime_dir: String::new(),
            limits: Vec::new(),
            you: PeerView {
                uid: 0,
                gid: 0,
                operator: true,
                zones: Vec::new(),
            },
        }
    }

    fn sample() -> (Sample, BTreeSet<u64>) {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let (vnic, mut numbers) = numbered::<Counters>(1_000);
        let (uplink, more) = numbered::<Counters>(2_000);
        numbers.extend(more);
        let (flow, more) = numbered::<FlowCounters>(7_000);
        numbers.extend(more);
        let (table, more) = numbered::<TableStats>(3_000);
        numbers.extend(more);
        let (mut worker, more) = numbered::<WorkerStats>(4_000);
        numbers.extend(more);
        for gone in [u64::from(worker.worker), worker.cycles_per_second] {
            numbers.remove(&gone);
        }
        worker.cycles_per_second = 1;
        let member = |text, counters| MemberStats {
            name: name(text),
            bridge: name("lan"),
            counters,
        };
        let drops = BTreeMap::from([("no-route".into(), 5_000)]);
        let of_flow = BTreeMap::from([("queue-full".into(), 5_001)]);
        numbers.extend([5_000, 5_001]);
        let stats = Stats {
            vnds: Vec::new(),
            time_ns: 1,
            members: vec![
                member("web", Counters { drops, ..vnic }),
                member("wire", uplink),
            ],
            bridges: vec![BridgeStats {
                name: name("lan"),
                table,
                traffic: Counters::default(),
            }],
            workers: vec![worker],
        };
        numbers.extend([6_000, 6_001]);
        let zones = BTreeMap::from([(name("web"), "blue".to_owned())]);
        let states = vec![State::Up, State::Waiting];
        let config = json!({"name": "http", "vnic": "web", "attributes": "transport=tcp"});
        let flows = vec![FlowView {
            config: serde_json::from_value(config).expect("a flow"),
            counters: FlowCounters {
                drops: of_flow,
                ..flow
            },
        }];
        (
            Sample {
                daemon: daemon(),
                stats,
                states,
                overlays: BTreeSet::new(),
                zones,
                flows,
            },
            numbers,
        )
    }

    /// Each counter of the API has exactly one line, and each line a title.
    #[test]
    fn every_counter_has_its_line() {
        let (sample, numbers) = sample();
        let text = text(&sample);
        let mut titled = BTreeSet::new();
        let mut found: Map<String, Value> = Map::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("# TYPE ") {
                let (name, _) = title.split_once(' ').expect("name and kind");
                assert!(titled.insert(name), "{name} has two titles");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("series and value");
                let name = series.split('{').next().expect("a name");
                assert!(titled.contains(name), "{series} comes before its title");
                assert!(
                    found.insert(series.into(), json!(value)).is_none(),
                    "{series} comes twice"
                );
            }
        }
        for number in numbers {
            // Time is in nanoseconds in the API, in seconds here.
            let same = [number.to_string(), (number as f64 / 1e9).to_string()].map(Value::from);
            let lines = found.values().filter(|value| same.contains(*value));
            assert_eq!(lines.count(), 1, "{number} in\n{text}");
        }
        let listed: Vec<_> = all().into_iter().map(|metric| metric.name).collect();
        let listed_once: BTreeSet<_> = listed.iter().map(String::as_str).collect();
        assert_eq!((listed.len(), &listed_once), (titled.len(), &titled));
        let vnic = r#"{vnic="web",bridge="lan",zone="blue"}"#;
        let uplink = r#"{uplink="wire",bridge="lan"}"#;
        assert_eq!(found[&format!("windlass_vnic_up{vnic}")], "1");
        assert_eq!(found[&format!("windlass_uplink_up{uplink}")], "0");
        assert_eq!(
            found[r#"windlass_vnic_drop_frames_total{vnic="web",bridge="lan",zone="blue",reason="no-route"}"#],
            "5000"
        );
        assert_eq!(
            found[r#"windlass_flow_drop_frames_total{flow="http",vnic="web",zone="blue",reason="queue-full"}"#],
            "5001"
        );
    }
}
