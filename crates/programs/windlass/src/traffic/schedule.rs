//! When frames are due.

/// How fast frames are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    /// As fast as the bridge takes them.
    Max,
    /// Frames a second.
    Frames(u64),
    /// Bits of frames a second.
    Bits(u64),
}

impl Rate {
    /// The word after `--rate`.
    pub(crate) fn frames(text: &str) -> Result<Rate, String> {
        match text {
            "max" => Ok(Rate::Max),
            text => number(text).map(Rate::Frames),
        }
    }

    /// The word after `--bps`.
    pub(crate) fn bits(text: &str) -> Result<Rate, String> {
        number(text).map(Rate::Bits)
    }
}

/// A number with a decimal suffix: `1.5M`.
fn number(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse().map_or(f64::NAN, |number: f64| number * unit);
    match (1.0..=1e12).contains(&number) {
        true => Ok(number.round() as u64),
        false => Err("not a number from 1 to 1000G, with k, M or G".into()),
    }
}

/// The schedule of a run: each frame's time follows from the beginning and from what was before it, not from when that was sent. So a delay is made
/// up for, and the rate holds over the run.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin_ns: u64,
    /// None: at the times of a file.
    rate: Option<Rate>,
    /// Frames or bits so far.
    done: u128,
    /// The time of the file's first frame, and when the last one was due.
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Schedule {
    /// Begins now.
    pub(crate) fn new(begin_ns: u64, rate: Option<Rate>) -> Schedule {
        Schedule {
            begin_ns,
            rate,
            done: 0,
            first_ns: None,
            last_ns: begin_ns,
        }
    }

    /// When the next frame is due, which has this time in its file; none: at once.
    pub(crate) fn due_ns(&mut self, time_ns: Option<u64>) -> Option<u64> {
        let per_second = match self.rate {
            Some(Rate::Max) => return None,
            Some(Rate::Frames(per_second) | Rate::Bits(per_second)) => per_second,
            None => {
                if let Some(time_ns) = time_ns {
                    let first_ns = *self.first_ns.get_or_insert(time_ns);
                    let due_ns = self
                        .begin_ns
                        .saturating_add(time_ns.saturating_sub(first_ns));
                    // A file may go back.
                    self.last_ns = self.last_ns.max(due_ns);
                }
                return Some(self.last_ns);
            }
        };
        let since_ns = self.done * 1_000_000_000 / u128::from(per_second);
        Some(self.begin_ns.saturating_add(since_ns as u64))
    }

    /// A frame of so many bytes has been taken.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.done += match self.rate {
            Some(Rate::Bits(_)) => bytes as u128 * 8,
            _ => 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words for rates.
    #[test]
    fn rates_are_read() {
        assert_eq!(Rate::frames("max"), Ok(Rate::Max));
        assert_eq!(Rate::frames("1.5M"), Ok(Rate::Frames(1_500_000)));
        assert_eq!(Rate::bits("10k"), Ok(Rate::Bits(10_000)));
        for wrong in ["", "k", "0", "-1", "1e3k0", "2000G", "nan", "ß"] {
            assert!(Rate::frames(wrong).is_err(), "{wrong}");
        }
        assert!(Rate::bits("max").is_err());
    }

    /// No frame's time depends on how earlier ones were rounded, in a year either.
    #[test]
    fn rates_do_not_drift() {
        let mut schedule = Schedule::new(5, Some(Rate::Frames(3)));
        let mut dues = Vec::new();
        for _ in 0..4 {
            dues.extend(schedule.due_ns(None));
            schedule.advance(64);
        }
        assert_eq!(dues, [5, 333_333_338, 666_666_671, 1_000_000_005]);
        let year_s = 365 * 86_400;
        schedule.done = 3 * year_s;
        assert_eq!(
            schedule.due_ns(None),
            Some(year_s as u64 * 1_000_000_000 + 5)
        );
        let mut bits = Schedule::new(0, Some(Rate::Bits(8000)));
        bits.advance(500);
        assert_eq!(bits.due_ns(None), Some(500_000_000));
    }

    /// A file's times are kept from its first frame on; those that go back are due at once, and those without a time as well.
    #[test]
    fn times_of_a_file() {
        let mut file = Schedule::new(100, None);
        let dues =
            [Some(7000), Some(7050), None, Some(6000), Some(7060)].map(|time| file.due_ns(time));
        assert_eq!(dues, [100, 150, 150, 150, 160].map(Some));
        assert_eq!(Schedule::new(100, Some(Rate::Max)).due_ns(Some(7)), None);
    }
}
