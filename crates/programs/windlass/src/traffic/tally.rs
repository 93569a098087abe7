//! Which frames of numbered streams came: lost, twice, or out of order.
//!
//! # Model
//! Of each stream, the last [`WINDOW`] numbers are remembered. A number above the highest leaves a gap, which is lost until it comes. A number
//! that came already is a duplicate, and so is one that is older than the window. A frame whose flow has had a higher number is out of order:
//! flows may overtake each other. What was lost before the first frame that came, or after the last one, is not known here.
//!
//! # Limits
//! [`STREAMS_MAX`] streams: another one takes the place of the one that was silent for longest. A stream takes 8 KiB, and 8 bytes for each flow.

use super::mark::Mark;

/// Numbers that are remembered of a stream.
pub(crate) const WINDOW: u64 = 65_536;
/// A stream that has come so far begins anew. Only numbers that nobody sends in turn lead there: each is half of 40 bits behind the last.
const LAST: u64 = u64::MAX - (1 << 41);
/// Streams at once.
const STREAMS_MAX: usize = 16;

/// What has been counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Numbers that are missing. A frame that comes late takes its own off again.
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) reordered: u64,
}

/// Counts over all streams.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The one that was seen last first.
    streams: Vec<Stream>,
    told: Told,
}

#[derive(Debug)]
struct Stream {
    id: u16,
    /// The lowest number that was seen, and the one behind the highest.
    first: u64,
    end: u64,
    /// Which of the window's numbers came, by their remainder.
    seen: Vec<u64>,
    /// Of each flow, the number behind the highest.
    flows: Vec<u64>,
}

impl Tally {
    /// A frame has come.
    #[inline]
    pub(crate) fn add(&mut self, mark: Mark) {
        match self
            .streams
            .iter()
            .position(|stream| stream.id == mark.stream)
        {
            Some(0) => {}
            Some(at) => self.streams[..=at].rotate_right(1),
            None => {
                self.streams.truncate(STREAMS_MAX - 1);
                self.streams.insert(0, Stream::new(mark));
            }
        }
        if let Some(stream) = self.streams.first_mut() {
            stream.add(mark, &mut self.told);
        }
    }

    /// What has been counted so far.
    pub(crate) fn told(&self) -> Told {
        self.told
    }
}

impl Stream {
    fn new(mark: Mark) -> Stream {
        // Far enough from 0 that what was sent before it can come behind it.
        let first = mark.number + (1 << 40);
        Stream {
            id: mark.stream,
            first,
            end: first,
            seen: vec![0; (WINDOW / 64) as usize],
            flows: Vec::new(),
        }
    }

    #[inline]
    fn add(&mut self, mark: Mark, told: &mut Told) {
        if self.end > LAST {
            *self = Stream::new(mark);
        }
        let number = self.end.wrapping_add_signed(mark.behind(self.end));
        if number >= self.end {
            told.lost = told.lost.saturating_add(number - self.end);
            // The numbers between are those that were a window before.
            let from = self.end.max((number + 1).saturating_sub(WINDOW));
            (from..number).for_each(|missing| self.mark(missing, false));
            self.end = number + 1;
        } else if self.end - number > WINDOW || self.is_seen(number) {
            told.duplicates += 1;
            return;
        } else if number < self.first {
            told.lost = told.lost.saturating_add(self.first - number - 1);
            self.first = number;
        } else {
            told.lost = told.lost.saturating_sub(1);
        }
        self.mark(number, true);
        let flow = usize::from(mark.flow);
        if self.flows.len() <= flow {
            self.flows.resize(flow + 1, 0);
        }
        if let Some(end) = self.flows.get_mut(flow) {
            told.reordered += u64::from(number < *end);
            *end = (*end).max(number + 1);
        }
    }

    fn is_seen(&self, number: u64) -> bool {
        let at = number % WINDOW;
        number >= self.first && self.seen[(at / 64) as usize] >> (at % 64) & 1 != 0
    }

    fn mark(&mut self, number: u64, came: bool) {
        let at = number % WINDOW;
        let word = &mut self.seen[(at / 64) as usize];
        *word = *word & !(1 << (at % 64)) | u64::from(came) << (at % 64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn mark(stream: u16, flow: u16, number: u64) -> Mark {
        Mark {
            stream,
            flow,
            number: number % (1 << 40),
            time_ns: 0,
        }
    }

    fn told(marks: impl IntoIterator<Item = Mark>) -> (u64, u64, u64) {
        let mut tally = Tally::default();
        marks.into_iter().for_each(|mark| tally.add(mark));
        let Told {
            lost,
            duplicates,
            reordered,
        } = tally.told();
        (lost, duplicates, reordered)
    }

    /// Gaps, late frames, duplicates; before the first one, over the end of the numbers, and beyond the window.
    #[test]
    fn each_case() {
        let of = |numbers: &[u64]| told(numbers.iter().map(|n| mark(0, 0, *n)));
        assert_eq!(of(&[0, 1, 2]), (0, 0, 0));
        assert_eq!(of(&[7, 9]), (1, 0, 0));
        assert_eq!(of(&[7, 9, 8]), (0, 0, 1));
        assert_eq!(of(&[7, 9, 8, 8, 7, 9]), (0, 3, 1));
        assert_eq!(of(&[5, 2, 4, 3]), (0, 0, 3));
        assert_eq!(of(&[1 << 39, 0]), ((1 << 39) - 1, 0, 0));
        let last = (1 << 40) - 1;
        assert_eq!(of(&[last - 1, 0, last, 1]), (0, 0, 1));
        assert_eq!(of(&[0, WINDOW, 1, 0]), (WINDOW - 2, 1, 1));
        assert_eq!(of(&[0, 1, 2 * WINDOW, WINDOW + 1]), (2 * WINDOW - 3, 0, 1));
    }

    /// Flows may overtake each other, streams are counted apart, and there are never too many.
    #[test]
    fn flows_and_streams() {
        assert_eq!(
            told([(0, 0), (1, 2), (0, 1), (1, 3)].map(|(flow, n)| mark(0, flow, n))),
            (0, 0, 0)
        );
        assert_eq!(
            told([(3, 0), (4, 0), (3, 1), (4, 1)].map(|(stream, n)| mark(stream, 0, n))),
            (0, 0, 0)
        );
        assert_eq!(told((0..1000).map(|stream| mark(stream, 0, 7))), (0, 0, 0));
        let mut tally = Tally::default();
        (0..1000).for_each(|stream| tally.add(mark(stream, 0, 7)));
        assert_eq!(tally.streams.len(), STREAMS_MAX);
    }

    /// Numbers that a hostile sender lets jump without end overflow nothing.
    #[test]
    fn no_jump_overflows() {
        let mut tally = Tally::default();
        tally.add(mark(0, 0, 0));
        tally.told.lost = u64::MAX - 5;
        tally.streams[0].end = LAST;
        for n in 1..5 {
            tally.add(mark(0, 0, tally.streams[0].end + (1 << 39) - n));
        }
        assert_eq!(tally.told().lost, u64::MAX);
        assert!(tally.streams[0].end < 1 << 42, "it has begun anew");
    }

    /// The same as a set of all numbers tells, whatever comes within the window.
    #[test]
    fn as_a_set_tells() {
        let mut random = 1u64;
        for _ in 0..200 {
            let (mut numbers, mut next) = (Vec::new(), 1000);
            for _ in 0..300 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let of = random >> 33;
                match of % 8 {
                    0 => next += of / 8 % 50,
                    1 => numbers.push(next - 1 - of / 8 % 100),
                    _ => {}
                }
                numbers.push(next);
                next += 1;
            }
            let (mut seen, mut ends) = (HashSet::new(), HashMap::new());
            let (mut duplicates, mut reordered) = (0, 0);
            for n in &numbers {
                if !seen.insert(*n) {
                    duplicates += 1;
                    continue;
                }
                let end = ends.entry(n % 3).or_insert(0);
                reordered += u64::from(n < end);
                *end = (*end).max(n + 1);
            }
            let (low, high) = (numbers.iter().min(), numbers.iter().max());
            let span = high.zip(low).map_or(0, |(high, low)| high - low + 1);
            let lost = span - seen.len() as u64;
            let marks = numbers.iter().map(|n| mark(0, (n % 3) as u16, *n));
            assert_eq!(told(marks), (lost, duplicates, reordered));
        }
    }
}
