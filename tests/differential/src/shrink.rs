//! From a script that differs to a short one that differs.

use std::time::{Duration, Instant};

use crate::script::Step;

/// Shrinking ends after this long with what it has.
const LIMIT: Duration = Duration::from_secs(40);

/// Whether a script without this step may differ for a reason of its own: two small messages without it may wait for an
/// acknowledgement.
fn is_kept(step: &Step) -> bool {
    step.verb() == "setopt" && step.word(2) == "nodelay"
}

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
                .chain(script[from..at].iter().filter(|step| is_kept(step)))
                .chain(&script[at..])
                .cloned()
                .collect();
            if !rest.is_empty() && rest.len() < script.len() && differs(&rest) {
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
    use super::{is_kept, shrink};
    use crate::generate;

    /// Proves that all is dropped that is not needed, and nothing that is.
    #[test]
    fn what_is_needed_remains() {
        let script = generate(7, true, None);
        let (one, two) = (script[3].clone(), script[script.len() - 2].clone());
        let kept = script.iter().filter(|step| is_kept(step)).count();
        let mut shortest = shrink(script, |rest| {
            let first = rest.iter().position(|step| *step == one);
            first.is_some_and(|first| rest[first..].contains(&two))
        });
        assert_eq!(shortest.len(), kept + 2);
        shortest.retain(|step| !is_kept(step));
        assert_eq!(shortest, [one, two]);
    }
}
