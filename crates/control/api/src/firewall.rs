//! The firewall of a VNIC: its properties, and the settings made of them.

use windlass_rules::{RuleError, Rules};

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
/// Room for connections.
pub(crate) const FIREWALL_CONNECTIONS: PropertySpec = row(
    "firewall-connections",
    ValueKind::Number,
    "4096",
    (16, 1_048_576),
    false,
    "Room for connections that the firewall keeps, rounded up to a power of two; 68 bytes each.",
);

/// What a VNIC's packets have to pass. Settings are read often: rules are texts here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirewallSettings {
    /// The operator's rules and the owner's.
    texts: [String; 2],
    /// Room for connections.
    pub connections: u32,
}

impl FirewallSettings {
    /// What holds for a member of this kind with these properties set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        let text = |name| match set.effective(scope, name) {
            Some(Value::Text(text)) => text,
            _ => String::new(),
        };
        Self {
            texts: ["firewall-base", "firewall"].map(text),
            connections: set.number(scope, "firewall-connections").unwrap_or(0),
        }
    }

    /// What rules were written, the operator's first.
    pub fn texts(&self) -> &[String; 2] {
        &self.texts
    }

    /// The lists that have a rule, the operator's first.
    ///
    /// # Errors
    /// A text that is no rules, though such are refused when they are set.
    pub fn lists(&self) -> Result<Vec<Rules>, RuleError> {
        let lists = self.texts.iter().map(|text| text.parse::<Rules>());
        let has_rules =
            |list: &Result<Rules, _>| !matches!(list, Ok(list) if list.rules.is_empty());
        lists.filter(has_rules).collect()
    }
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
        assert_eq!(off.lists(), Ok(Vec::new()));
    }

    /// The operator's rules are no owner's to set.
    #[test]
    fn owners_set_their_own() {
        let is_owners = |name| property(Scope::Vnic, name).is_some_and(|row| row.tenant);
        assert!(is_owners("firewall") && !is_owners("firewall-base"));
        assert!(!is_owners("firewall-connections"));
    }
}
