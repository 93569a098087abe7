//! Flows: parts of a VNIC's traffic with counters, a bandwidth and a priority of their own.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use windlass_rules::{FlowError, FlowMatch};

use crate::name::{Name, ZoneRef};
use crate::object::Document;
use crate::option::Value;
use crate::property::{Properties, PropertyPatch, Scope};

/// Flows in a document at most.
pub const FLOWS_MAX: usize = 16_384;
/// Flows of a VNIC at most.
pub const FLOWS_OF_VNIC_MAX: usize = 64;
/// Flows of the VNICs in a zone at most.
pub const FLOWS_OF_ZONE_MAX: usize = 1_024;

/// What is in a flow: one of flowadm's six combinations of attributes. In JSON a text such as `transport=tcp,local_port=443`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowAttributes(pub FlowMatch);

impl FromStr for FlowAttributes {
    type Err = FlowError;
    fn from_str(text: &str) -> Result<Self, FlowError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for FlowAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for FlowAttributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FlowAttributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for FlowAttributes {
    fn schema_name() -> Cow<'static, str> {
        "FlowAttributes".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "What is in the flow: local_ip=PREFIX; remote_ip=PREFIX; transport=PROTOCOL (tcp, udp, sctp, icmp, \
                icmpv6); transport=PROTOCOL,local_port=PORT; transport=PROTOCOL,remote_port=PORT; dsfield=VALUE[:MASK]."
        })
    }
}

/// A part of a VNIC's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Its name.
    pub name: Name,
    /// The VNIC.
    pub vnic: Name,
    /// What is in it.
    pub attributes: FlowAttributes,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Flow {
    /// Every property with the value that holds.
    pub fn settings(&self) -> FlowSettings {
        FlowSettings {
            maxbw: self.properties.number(Scope::Flow, "maxbw").unwrap_or(0),
            priority: Priority::of(Scope::Flow, &self.properties),
        }
    }
}

/// Every property of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSettings {
    /// Mbit/s in each direction; 0 is no limit.
    pub maxbw: u32,
    /// Its place among what waits.
    pub priority: Priority,
}

/// The order of service among what waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// After all others.
    Low,
    /// What most have.
    #[default]
    Medium,
    /// Before all others.
    High,
}

impl Priority {
    /// The words, in the order of the values.
    pub const WORDS: &'static [&'static str] = &["low", "medium", "high"];

    /// What holds where these properties were set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        match set.effective(scope, "priority") {
            Some(Value::Text(word)) if word == "low" => Self::Low,
            Some(Value::Text(word)) if word == "high" => Self::High,
            _ => Self::Medium,
        }
    }
}

/// Body of `PATCH /v1/flows/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowPatch {
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

impl FlowPatch {
    /// Changes the flow.
    pub fn apply(self, flow: &mut Flow) {
        flow.properties.patch(&self.properties);
    }
}

/// Traffic of a flow. rx is what windlass received from the VNIC, tx what the VNIC was sent. Whenever no frame is on its way at the
/// moment of reading, `rx_matched = rx_frames + rx_dropped + rx_held`, and so with tx.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowCounters {
    /// Frames from the VNIC that were in the flow; each segment, where a large one was cut for a `maxbw`.
    #[serde(default)]
    pub rx_matched: u64,
    /// Of `rx_matched`: went on, as soon as the rates of the flow and of the VNIC let them.
    #[serde(default)]
    pub rx_frames: u64,
    /// Bytes of `rx_frames`.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Of `rx_frames`: marked (ECN) in a queue that would have dropped it for its delay.
    #[serde(default)]
    pub rx_marked: u64,
    /// Of `rx_matched`: dropped while they waited, or for want of room to wait.
    #[serde(default)]
    pub rx_dropped: u64,
    /// Of `rx_matched`: waiting at the moment. A level, not a total.
    #[serde(default)]
    pub rx_held: u64,
    /// Frames to the VNIC that were in the flow; each segment, where a large one was cut for a `maxbw`.
    #[serde(default)]
    pub tx_matched: u64,
    /// Of `tx_matched`: went on, as soon as the rates of the flow and of the VNIC let them.
    #[serde(default)]
    pub tx_frames: u64,
    /// Bytes of `tx_frames`.
    #[serde(default)]
    pub tx_bytes: u64,
    /// Of `tx_frames`: marked (ECN) in a queue that would have dropped it for its delay.
    #[serde(default)]
    pub tx_marked: u64,
    /// Of `tx_matched`: dropped while they waited, or for want of room to wait.
    #[serde(default)]
    pub tx_dropped: u64,
    /// Of `tx_matched`: waiting at the moment. A level, not a total.
    #[serde(default)]
    pub tx_held: u64,
    /// Dropped frames by the name of the reason, see windlass-drops(7). They are among the VNIC's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

/// A flow, and what it has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowView {
    /// Its configuration.
    #[serde(flatten)]
    pub config: Flow,
    /// Its traffic since it was made, or its VNIC last was.
    #[serde(flatten)]
    pub counters: FlowCounters,
}

/// The first flow of a VNIC: what its others have to be like.
struct First<'a> {
    flow: &'a Flow,
    count: usize,
}

/// Checks the flows of a document, and tells of each defect where it is.
pub(crate) fn check(document: &Document, mut defect: impl FnMut(String, String)) {
    if document.flows.is_empty() {
        return;
    }
    let zones: HashMap<&Name, &ZoneRef> = document
        .vnics
        .iter()
        .map(|vnic| (&vnic.name, &vnic.zone))
        .collect();
    let (mut names, mut same) = (HashSet::new(), HashMap::new());
    let mut firsts: HashMap<&Name, First<'_>> = HashMap::new();
    let mut in_zones: HashMap<&Name, usize> = HashMap::new();
    for flow in &document.flows {
        let path = format!("flows.{}", flow.name);
        if !names.insert(&flow.name) {
            defect(path.clone(), "this name is used twice".into());
        }
        if let Err(error) = flow.properties.check(Scope::Flow) {
            defect(format!("{path}.properties"), error.to_string());
        }
        let Some(zone) = zones.get(&flow.vnic) else {
            defect(
                format!("{path}.vnic"),
                format!("there is no VNIC \"{}\"", flow.vnic),
            );
            continue;
        };
        if let Some(other) = same.insert((&flow.vnic, flow.attributes), &flow.name) {
            let message = format!("flow \"{other}\" of the VNIC has the same attributes");
            defect(format!("{path}.attributes"), message);
        }
        let first = firsts.entry(&flow.vnic).or_insert(First { flow, count: 0 });
        first.count += 1;
        let kinds = [flow, first.flow].map(|flow| flow.attributes.0.combination());
        if kinds[0] != kinds[1] {
            let message = format!(
                "{} is not {}, which flow \"{}\" has: all flows of a VNIC have the same attributes",
                kinds[0], kinds[1], first.flow.name
            );
            defect(format!("{path}.attributes"), message);
        }
        if first.count == FLOWS_OF_VNIC_MAX + 1 {
            let message = format!(
                "VNIC \"{}\" has more than {FLOWS_OF_VNIC_MAX} flows",
                flow.vnic
            );
            defect(path.clone(), message);
        }
        if let Some(zone) = zone.name() {
            let count = in_zones.entry(zone).or_default();
            *count += 1;
            if *count == FLOWS_OF_ZONE_MAX + 1 {
                defect(
                    path,
                    format!("zone \"{zone}\" has more than {FLOWS_OF_ZONE_MAX} flows"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(flows: &str) -> Result<Document, serde_json::Error> {
        let text = format!(
            r#"{{"version":1,"bridges":[{{"name":"br0"}}],"vnics":[{{"name":"v0","bridge":"br0"}},
                {{"name":"v1","bridge":"br0"}}],"flows":[{flows}]}}"#
        );
        serde_json::from_str(&text)
    }

    fn flow(name: &str, vnic: &str, attributes: &str) -> String {
        format!(r#"{{"name":"{name}","vnic":"{vnic}","attributes":"{attributes}"}}"#)
    }

    /// What flowadm refuses is refused here: other combinations, an attribute twice, two combinations on one VNIC; also the
    /// same flow twice, one of nobody, properties of something else, too many.
    #[test]
    fn flows_are_checked() {
        let many: Vec<String> = (0..=FLOWS_OF_VNIC_MAX)
            .map(|n| flow(&format!("f{n}"), "v0", &format!("local_ip=10.0.0.{n}")))
            .collect();
        let maxbw = |bw: &str| {
            let flow = flow("f", "v0", "transport=tcp");
            flow.replace('}', &format!(r#","properties":{{{bw}}}}}"#))
        };
        let two = |a: [&str; 3], b: [&str; 3]| {
            let [a, b] = [a, b].map(|[name, vnic, attributes]| flow(name, vnic, attributes));
            format!("{a},{b}")
        };
        let tcp = ["f", "v0", "transport=tcp"];
        let near = ["f", "v0", "local_ip=10.0.0.1"];
        for (flows, reason) in [
            (flow("f", "v2", "transport=tcp"), "there is no VNIC \"v2\""),
            (two(tcp, ["f", "v1", "transport=udp"]), "used twice"),
            (two(tcp, ["g", "v0", "transport=tcp"]), "same attributes"),
            (
                two(tcp, ["g", "v0", "local_ip=10.0.0.1"]),
                "is not transport",
            ),
            (
                two(near, ["g", "v0", "remote_ip=10.0.0.1"]),
                "is not local_ip",
            ),
            (many.join(","), "more than 64 flows"),
            (maxbw(r#""ageing":7"#), "there is no property \"ageing\""),
        ] {
            let document = document(&flows).expect(&flows);
            let error = crate::validate(&document, &Document::default()).expect_err(&flows);
            assert!(error.message.contains(reason), "{flows}: {}", error.message);
        }
        for (flows, reason) in [
            (flow("f", "v0", "local_port=80"), "a port needs"),
            (
                flow("f", "v0", "transport=tcp,transport=udp"),
                "given twice",
            ),
            (
                flow("f", "v0", "local_ip=10.0.0.1,remote_ip=10.0.0.2"),
                "a flow has one of",
            ),
            (maxbw(r#""maxbw":100001"#), "100001"),
            (maxbw(r#""priority":"highest""#), "highest"),
        ] {
            let error = document(&flows).expect_err(&flows).to_string();
            assert!(error.contains(reason), "{flows}: {error}");
        }
    }

    /// Flows of several VNICs differ as they like; what was set of one holds, else the defaults.
    #[test]
    fn flows_have_settings() {
        let web = flow("f", "v0", "transport=tcp")
            .replace('}', r#","properties":{"maxbw":10,"priority":"low"}}"#);
        let text = format!("{web},{}", flow("g", "v1", "dsfield=0xb8:0xfc"));
        let document = document(&text).expect("flows");
        crate::validate(&document, &Document::default()).expect("valid");
        let settings = |at: usize| {
            let settings = document.flows[at].settings();
            (settings.maxbw, settings.priority)
        };
        assert_eq!(settings(0), (10, Priority::Low));
        assert_eq!(settings(1), (0, Priority::Medium));
    }

    /// A flow that becomes another one goes and comes, and so does that of a VNIC that is made anew; else it changes in place.
    #[test]
    fn flows_change() {
        let old = document(&flow("f", "v0", "transport=tcp")).expect("a flow");
        let steps = |new: &Document| -> Vec<String> {
            let changes = crate::diff(&old, new);
            let mut patched = old.clone();
            crate::patch(&mut patched, &changes);
            assert_eq!(patched, *new);
            changes.iter().map(ToString::to_string).collect()
        };
        let mut new = old.clone();
        assert_eq!(steps(&new), Vec::<String>::new());
        new.flows[0]
            .properties
            .set(Scope::Flow, "maxbw", "5")
            .expect("a property");
        assert_eq!(steps(&new), ["~ flow f maxbw: - -> 5"]);
        new.flows[0].vnic = "v1".parse().expect("a name");
        let anew = [
            "- flow f",
            "+ flow f attributes=transport=tcp maxbw=5 vnic=v1",
        ];
        assert_eq!(steps(&new), anew);
        let mut new = old.clone();
        new.vnics[0].attach = "tap".parse().expect("an attachment");
        let order: Vec<String> = steps(&new)
            .iter()
            .map(|step| step[..8].to_owned())
            .collect();
        assert_eq!(order, ["- flow f", "- vnic v", "+ vnic v", "+ flow f"]);
        let mut new = old.clone();
        new.release_member("v0");
        assert_eq!(steps(&new), ["- flow f"]);
    }
}
