//! Compiled rules of firewalls.
//!
//! # Purpose
//! 10,000 rules take 20 ms to compile, and the API waits for that. So a list is compiled when its text changes, and
//! not when anything else of a member does; members with the same list share it.
//!
//! # Ownership and lifetime
//! Compiled rules belong to the members that use them; [`Firewalls`] only finds them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use windlass_api::FirewallSettings;
use windlass_firewall::{Compiled, List};
use windlass_rules::Rules;
use windlass_worker::FirewallTuning;

use super::translate::seeds;
use crate::backend::BackendError;

/// Rules that some member has.
#[derive(Default)]
pub struct Firewalls {
    /// By text.
    lists: BTreeMap<Arc<str>, Weak<List>>,
    /// By the texts of their lists.
    compiled: BTreeMap<[Arc<str>; 3], Weak<Compiled>>,
}

impl Firewalls {
    /// What a member's packets have to pass. None without a rule.
    ///
    /// # Errors
    /// Rules that are too large together; no randomness.
    pub fn get(
        &mut self,
        settings: &FirewallSettings,
    ) -> Result<Option<FirewallTuning>, BackendError> {
        let Some(rules) = self.rules(settings)? else {
            return Ok(None);
        };
        Ok(Some(FirewallTuning {
            rules,
            connections: settings.connections,
            seeds: seeds("the firewall's")?,
        }))
    }

    fn rules(
        &mut self,
        settings: &FirewallSettings,
    ) -> Result<Option<Arc<Compiled>>, BackendError> {
        let texts = settings.texts();
        if let Some(rules) = self.compiled.get(texts).and_then(Weak::upgrade) {
            return Ok(Some(rules));
        }
        let lists = texts.iter().map(|text| self.list(text));
        let lists = lists.collect::<Result<Vec<_>, _>>()?;
        if lists.iter().all(Option::is_none) {
            return Ok(None);
        }
        let rules = Arc::new(Compiled::new(lists));
        self.compiled.retain(|_, rules| rules.strong_count() > 0);
        self.compiled.insert(texts.clone(), Arc::downgrade(&rules));
        Ok(Some(rules))
    }

    /// None if it has no rule.
    fn list(&mut self, text: &Arc<str>) -> Result<Option<Arc<List>>, BackendError> {
        if let Some(list) = self.lists.get(text).and_then(Weak::upgrade) {
            return Ok(Some(list));
        }
        // A text that is no rules is refused when it is set.
        let rules = text.parse::<Rules>();
        let rules = rules.map_err(|error| BackendError::Host(format!("firewall: {error}")))?;
        if rules.rules.is_empty() {
            return Ok(None);
        }
        let list = List::new(&rules);
        let list = list.map_err(|error| BackendError::Limit(format!("firewall: {error}")))?;
        let list = Arc::new(list);
        self.lists.retain(|_, list| list.strong_count() > 0);
        self.lists.insert(text.clone(), Arc::downgrade(&list));
        Ok(Some(list))
    }
}

#[cfg(test)]
mod tests {
    use windlass_api::{Properties, Scope};

    use super::*;

    fn settings(set: &[&str]) -> FirewallSettings {
        let mut properties = Properties::default();
        for setting in set {
            properties.assign(Scope::Vnic, setting).unwrap();
        }
        FirewallSettings::of(Scope::Vnic, &properties)
    }

    /// The same rules are compiled once, whatever else is set; rules that nobody has any more are forgotten.
    #[test]
    fn rules_are_compiled_once() {
        let mut firewalls = Firewalls::default();
        let mut get = |set: &[&str]| firewalls.get(&settings(set)).unwrap().unwrap().rules;
        let rules = get(&["firewall=drop in"]);
        let again = get(&["firewall=drop  in", "firewall-connections=64"]);
        assert!(Arc::ptr_eq(&rules, &again));
        let base = get(&["firewall-base=drop in"]);
        assert!(!Arc::ptr_eq(&rules, &base));
        drop((rules, again));
        let _other = get(&["firewall=drop out"]);
        assert_eq!(firewalls.compiled.len(), 2, "forgotten: drop in");
        assert_eq!(firewalls.lists.len(), 2, "drop in is the operator's still");
        assert!(firewalls.get(&settings(&[])).unwrap().is_none());
    }
}
