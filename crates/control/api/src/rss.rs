//! How the rings of a VNIC share what it gets.

use std::fmt;
use std::str::FromStr;

use crate::option::Value;
use crate::property::{Properties, Scope};

/// Rings that can be named.
const RINGS_MAX: usize = 16;

/// Weights of rings, the first one's first: "1,1,2". None: equal ones. Rings beyond them have weight 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RssWeights(Vec<u8>);

impl RssWeights {
    /// What holds for a member of this kind with these properties set.
    pub(crate) fn of(scope: Scope, set: &Properties) -> Self {
        match set.effective(scope, "rss-weights") {
            // Checked when it was set.
            Some(Value::Text(text)) => text.parse().unwrap_or_default(),
            _ => Self::default(),
        }
    }

    /// Each of them.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for RssWeights {
    /// What is no list of weights, or the beginning of it.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == "equal" {
            return Ok(Self::default());
        }
        let is_number = |entry: &&str| entry.bytes().all(|byte| byte.is_ascii_digit());
        let entries = text.split(',').take(RINGS_MAX + 1);
        let weights = entries.map(|entry| Some(entry).filter(is_number)?.parse().ok());
        let weights: Option<Vec<u8>> = weights.collect();
        let good = weights.filter(|all| all.len() <= RINGS_MAX && all.iter().any(|w| *w > 0));
        good.map(Self)
            .ok_or_else(|| text.chars().take(64).collect())
    }
}

impl fmt::Display for RssWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, weight) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{weight}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Good lists come back as they are; others are refused.
    #[test]
    fn lists_are_read() {
        for text in ["1", "0,1,255", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"] {
            assert_eq!(text.parse::<RssWeights>().unwrap().to_string(), text);
        }
        assert_eq!("equal".parse::<RssWeights>(), Ok(RssWeights::default()));
        let long = ["1"; 17].join(",");
        for text in [
            "0", "0,0", "256", "+1", "-1", "1,,2", "1,", "a", " 1", &long,
        ] {
            assert!(text.parse::<RssWeights>().is_err(), "{text}");
        }
    }
}
