//! The firewall of a VNIC: properties of it and of its zone, and the settings made of them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_rules::Rules;

use crate::object::Zone;
use crate::option::{OptionSpec, Value, ValueKind};
use crate::property::{Properties, PropertySpec, Scope};

const fn row(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    (min, max): (u64, u64),
    tenant: bool,
    sentence: &'static str,
) -> PropertySpec {
    PropertySpec {
        scopes: &[Scope::Vnic],
        tenant,
        option: OptionSpec {
            name,
            kind,
            unit: if max == 0 { "" } else { "connections" },
            default,
            min,
            max,
            sentence,
        },
    }
}

/// The owner's rules.
pub(crate) const FIREWALL: PropertySpec = row(
    "firewall",
    ValueKind::Rules,
    "",
    (0, 0),
    true,
    "Rules for packets of the VNIC and to it; the first that matches decides, and what none matches passes.",
);
/// The operator's rules.
pub(crate) const FIREWALL_BASE: PropertySpec = row(
    "firewall-base",
    ValueKind::Rules,
    "",
    (0, 0),
    false,
    "The operator's rules beside firewall: a packet has to pass both, so the owner of a zone narrows them and does not widen them.",
);
/// The operator's rules for a whole zone.
pub(crate) const FIREWALL_ZONE: PropertySpec = PropertySpec {
    scopes: &[Scope::Zone],
    ..row(
        "firewall-base",
        ValueKind::Rules,
        "",
        (0, 0),
        false,
        "Rules that packets of each VNIC of the zone have to pass beside the VNIC's own, those that come later too; nobody widens them.",
    )
};
/// Room for connections.
pub(crate) const FIREWALL_CONNECTIONS: PropertySpec = row(
    "firewall-connections",
    ValueKind::Number,
    "4096",
    (16, 1_048_576),
    false,
    "Room for connections that the firewall keeps, rounded up to a power of two; 98 bytes each.",
);

/// What a VNIC's packets have to pass. Settings are read often: rules are texts here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirewallSettings {
    /// The rules of its zone, the operator's and the owner's.
    texts: [Arc<str>; 3],
    /// Room for connections.
    pub connections: u32,
}

impl FirewallSettings {
    /// What holds for a member of this kind with these properties set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        let text = |name| text_of(scope, set, name);
        Self {
            texts: ["".into(), text("firewall-base"), text("firewall")],
            connections: set.number(scope, "firewall-connections").unwrap_or(0),
        }
    }

    /// The same in a zone with these rules.
    #[must_use]
    pub fn in_zone(mut self, rules: Arc<str>) -> Self {
        let [zone, ..] = &mut self.texts;
        *zone = rules;
        self
    }

    /// The rules of its zone.
    pub fn zone(&self) -> &Arc<str> {
        let [zone, ..] = &self.texts;
        zone
    }

    /// What rules were written, in the order in which packets pass them: the zone's, the operator's, the owner's.
    pub fn texts(&self) -> &[Arc<str>; 3] {
        &self.texts
    }

    /// Every rule, with what those that count have counted: frames and bytes, in their order.
    pub fn rules(&self, counted: impl IntoIterator<Item = (u64, u64)>) -> Vec<RuleView> {
        let mut counted = counted.into_iter();
        let mut views = Vec::new();
        for (list, text) in RuleList::ALL.into_iter().zip(&self.texts) {
            // What is no rules was refused when it was set.
            let rules = text.parse::<Rules>().unwrap_or_default();
            views.extend(rules.rules.iter().map(|rule| {
                let count = rule.count.then(|| counted.next()).flatten();
                RuleView {
                    list,
                    rule: rules.text_of(rule),
                    frames: count.map(|(frames, _)| frames),
                    bytes: count.map(|(_, bytes)| bytes),
                }
            }));
        }
        views
    }
}

/// The text of a property.
fn text_of(scope: Scope, set: &Properties, name: &str) -> Arc<str> {
    match set.effective(scope, name) {
        Some(Value::Text(text)) => text.into(),
        _ => "".into(),
    }
}

impl Zone {
    /// The rules that packets of each of its VNICs have to pass.
    pub fn rules(&self) -> Arc<str> {
        text_of(Scope::Zone, &self.properties, "firewall-base")
    }
}

/// Where a rule of a VNIC stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RuleList {
    /// The operator's of the zone: `firewall-base` of that.
    #[serde(rename = "zone")]
    Zone,
    /// The operator's of the VNIC.
    #[serde(rename = "firewall-base")]
    Base,
    /// The owner's.
    #[serde(rename = "firewall")]
    Own,
}

impl RuleList {
    /// In the order in which packets pass them.
    const ALL: [RuleList; 3] = [RuleList::Zone, RuleList::Base, RuleList::Own];
}

/// A rule that packets of a VNIC have to pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleView {
    /// Where it stands.
    pub list: RuleList,
    /// Its text.
    pub rule: String,
    /// Frames that it has decided, if it counts. Those of a large segment are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// Their bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::property::property;

    /// Rules are kept as they print; what is no rule is refused with the property, the rule and the word.
    #[test]
    fn rules_are_checked() {
        let row = property(Scope::Vnic, "firewall").expect("a row").option;
        let text = Value::Text("accept in tcp to port 22; drop in".into());
        assert_eq!(row.parse("accept  tcp in to port 22-22\ndrop in"), Ok(text));
        assert_eq!(row.parse("none"), Ok(Value::Text(String::new())));
        let error = row.parse("drop in; drop tpc").expect_err("a typo");
        let told = error.to_string();
        assert!(
            told.starts_with("firewall: rule 2: \"tpc\" is none of"),
            "{told}"
        );
        let off = FirewallSettings::of(Scope::Vnic, &Properties::default());
        assert_eq!(off.rules([]), []);
    }

    /// Rules are shown list by list, each that counts with its numbers.
    #[test]
    fn rules_are_shown_with_counts() {
        let mut set = Properties::default();
        for (name, rules) in [
            ("firewall-base", "set a ::1; drop count from @a; accept in"),
            ("firewall", "accept out; drop count"),
        ] {
            set.set(Scope::Vnic, name, rules).expect("rules");
        }
        let settings = FirewallSettings::of(Scope::Vnic, &set).in_zone("drop count tcp".into());
        let views = settings.rules([(0, 0), (1, 60), (2, 120)]);
        let shown = serde_json::to_value(views).expect("JSON");
        let expected = serde_json::json!([
            {"list": "zone", "rule": "drop count tcp", "frames": 0, "bytes": 0},
            {"list": "firewall-base", "rule": "drop count from @a", "frames": 1, "bytes": 60},
            {"list": "firewall-base", "rule": "accept in"},
            {"list": "firewall", "rule": "accept out"},
            {"list": "firewall", "rule": "drop count", "frames": 2, "bytes": 120},
        ]);
        assert_eq!(shown, expected);
    }

    /// The operator's rules are no owner's to set.
    #[test]
    fn owners_set_their_own() {
        let is_owners = |name| property(Scope::Vnic, name).is_some_and(|row| row.tenant);
        assert!(is_owners("firewall") && !is_owners("firewall-base"));
        assert!(!is_owners("firewall-connections"));
    }
}
