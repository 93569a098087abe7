//! What somebody probably meant.

/// The word most like `typed`, if one is like it: at most a third of its letters differ, and at least one
/// mistake is always forgiven.
pub(crate) fn nearest<'a>(
    typed: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = (typed.chars().count() / 3).max(1);
    words
        .into_iter()
        .map(|word| (distance(&typed.to_lowercase(), &word.to_lowercase()), word))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Verbs of `ip`, `bridge`, `ovs-vsctl` and other tools, and what they are called here.
const VERBS: [(&str, &str); 10] = [
    ("add", "create"),
    ("new", "create"),
    ("make", "create"),
    ("del", "delete"),
    ("remove", "delete"),
    ("rm", "delete"),
    ("list", "show"),
    ("ls", "show"),
    ("change", "set"),
    ("modify", "set"),
];

/// The verb that another tool's word stands for.
pub(crate) fn verb(word: &str) -> Option<&'static str> {
    let mut verbs = VERBS.iter();
    verbs
        .find(|(other, _)| *other == word)
        .map(|(_, verb)| *verb)
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other
/// (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let width = b.len() + 1;
    let mut before = vec![0; width];
    let mut last: Vec<usize> = (0..width).collect();
    let mut a_last = None;
    for (i, a_now) in a.chars().enumerate() {
        let mut row = vec![i + 1; width];
        for (j, &b_now) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(a_now != b_now);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if j > 0 && a_last == Some(b_now) && b[j - 1] == a_now {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
        a_last = Some(a_now);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slips of a letter or two find their word; other words do not.
    #[test]
    fn slips_are_forgiven() {
        let words = ["bridge", "uplink", "vnic", "zone"];
        assert_eq!(nearest("vinc", words), Some("vnic"));
        assert_eq!(nearest("brigde", words), Some("bridge"));
        assert_eq!(nearest("v1", ["v0", "web-1"]), Some("v0"));
        assert_eq!(nearest("", words), None);
        assert_eq!(nearest("tunnel", words), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
