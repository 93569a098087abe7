//! From a script that differs to a short one that differs.

use std::time::{Duration, Instant};

use crate::script::Step;

/// Shrinking ends after this long with what it has.
const LIMIT: Duration = Duration::from_secs(40);

/// Drops steps, in halves, quarters and so on down to single ones, as long as `differs` holds of the rest.
pub fn shrink(mut script: Vec<Step>, mut differs: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let start = Instant::now();
    let mut piece = script.len().div_ceil(2).max(1);
    loop {
        let mut at = script.len();
        let before = script.len();
        while at > 0 && start.elapsed() < LIMIT {
            let from = at.saturating_sub(piece);
            let rest: Vec<Step> = script[..from]
                .iter()
                .chain(&script[at..])
                .cloned()
                .collect();
            if !rest.is_empty() && differs(&rest) {
                script = rest;
            }
            at = from;
        }
        if start.elapsed() >= LIMIT || (piece == 1 && script.len() == before) {
            return script;
        }
        piece = (piece / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::shrink;
    use crate::generate;

    /// Proves that all is dropped that is not needed, and nothing that is.
    #[test]
    fn what_is_needed_remains() {
        let script = generate(7, true, None);
        let (one, two) = (script[3].clone(), script[script.len() - 2].clone());
        let shortest = shrink(script, |rest| {
            let first = rest.iter().position(|step| *step == one);
            first.is_some_and(|first| rest[first..].contains(&two))
        });
        assert_eq!(shortest, [one, two]);
    }
}
