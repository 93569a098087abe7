//! Spanning tree, as properties have it.

use crate::option::Value;
use crate::property::{Properties, Scope};

/// A member's part in spanning tree, where its bridge has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StpMember {
    /// Takes part: it sends BPDUs, and those that it receives count.
    pub member: bool,
    /// What the way over it costs; `None`: as its kind has it.
    pub cost: Option<u32>,
    /// 0 to 240, in steps of 16.
    pub priority: u8,
    /// An edge (`Some(true)`), never one (`Some(false)`), or as long as nobody answers.
    pub edge: Option<bool>,
    /// At most one bridge is behind it.
    pub point_to_point: bool,
    /// The root is never looked for behind it.
    pub root_guard: bool,
    /// A BPDU closes it.
    pub bpdu_guard: bool,
}

impl StpMember {
    pub(crate) fn of(scope: Scope, set: &Properties) -> Self {
        Self {
            member: set.flag(scope, "stp"),
            cost: set.number(scope, "stp-cost"),
            priority: set.number(scope, "stp-priority").unwrap_or(0) as u8 & 0xf0,
            edge: match set.effective(scope, "edge") {
                Some(Value::Flag(edge)) => Some(edge),
                _ => None,
            },
            point_to_point: set.flag(scope, "point-to-point"),
            root_guard: set.flag(scope, "root-guard"),
            bpdu_guard: set.flag(scope, "bpdu-guard"),
        }
    }
}

/// How a bridge takes part in spanning tree. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StpBridge {
    /// 0 to 61,440, in steps of 4,096.
    pub priority: u16,
    /// What is older is forgotten.
    pub max_age_s: u8,
    /// From one hello to the next.
    pub hello_s: u8,
    /// In each state before forwarding.
    pub forward_delay_s: u8,
    /// BPDUs at once.
    pub hold_count: u8,
    /// Speaks RSTP where neighbours do.
    pub rstp: bool,
}

impl StpBridge {
    pub(crate) fn of(set: &Properties) -> Self {
        let number = |name| set.number(Scope::Bridge, name).unwrap_or(0);
        Self {
            priority: number("priority") as u16 & 0xf000,
            max_age_s: number("max-age") as u8,
            hello_s: number("hello") as u8,
            forward_delay_s: number("forward-delay") as u8,
            hold_count: number("hold-count") as u8,
            rstp: set.effective(Scope::Bridge, "stp-force-version")
                != Some(Value::Text("stp".into())),
        }
    }

    /// What IEEE 802.1D-2004, 17.14 asks of the times.
    ///
    /// # Errors
    /// The rule that they break, with what to do.
    pub fn check(&self) -> Result<(), String> {
        let (age, hello, delay) = (
            u32::from(self.max_age_s),
            u32::from(self.hello_s),
            u32::from(self.forward_delay_s),
        );
        if 2 * delay.saturating_sub(1) < age {
            return Err(format!(
                "max-age {age} is more than 2 * (forward-delay {delay} - 1): raise forward-delay or lower max-age"
            ));
        }
        if age < 2 * (hello + 1) {
            return Err(format!(
                "max-age {age} is less than 2 * (hello {hello} + 1): raise max-age or lower hello"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recommended values are good; each rule of 17.14 is told from the other.
    #[test]
    fn times_fit_each_other() {
        let mut set = Properties::default();
        assert_eq!(StpBridge::of(&set).check(), Ok(()));
        for (setting, part) in [
            ("max-age=29", "2 * (forward-delay"),
            ("hello=10", "2 * (hello"),
        ] {
            let mut set = set.clone();
            set.assign(Scope::Bridge, setting).expect("a setting");
            let error = StpBridge::of(&set).check().expect_err("a bad time");
            assert!(error.contains(part), "{error}");
        }
        set.assign(Scope::Bridge, "priority=5000")
            .expect("a number");
        assert_eq!(StpBridge::of(&set).priority, 4096);
        assert!(StpBridge::of(&set).rstp);
        set.assign(Scope::Bridge, "stp-force-version=stp")
            .expect("a word");
        assert!(!StpBridge::of(&set).rstp);
        let vnic = StpMember::of(Scope::Vnic, &set);
        let uplink = StpMember::of(Scope::Uplink, &set);
        assert!(!vnic.member && uplink.member && uplink.edge.is_none() && uplink.cost.is_none());
    }
}
