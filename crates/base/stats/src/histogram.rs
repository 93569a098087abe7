//! Times, counted in classes of one part in 64.

/// Classes of one power of two.
const CLASSES: usize = 64;

/// Counts of times, in whatever unit; a percentile is exact to one part in 64, the largest time exactly. 32 KiB.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; CLASSES * 64],
            total: 0,
            max: 0,
        }
    }
}

fn class(value: u64) -> usize {
    let bits = 63 - (value | 1).leading_zeros() as usize;
    match bits.checked_sub(6) {
        None => value as usize,
        Some(shift) => CLASSES * (shift + 1) + ((value >> shift) as usize & (CLASSES - 1)),
    }
}

fn middle(class: usize) -> f64 {
    match (class / CLASSES).checked_sub(1) {
        None => class as f64,
        Some(shift) => {
            let low = ((CLASSES + class % CLASSES) as u64) << shift;
            low as f64 + (1u64 << shift) as f64 / 2.0
        }
    }
}

impl Histogram {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.counts[class(value)] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// Counts what another one has counted, which then has counted nothing.
    pub fn absorb(&mut self, other: &mut Histogram) {
        for (to, from) in self.counts.iter_mut().zip(&mut other.counts) {
            *to += core::mem::take(from);
        }
        self.total += core::mem::take(&mut other.total);
        self.max = self.max.max(core::mem::take(&mut other.max));
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The largest; 0 of nothing.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `share` of all do not exceed; 0 of nothing.
    #[must_use]
    pub fn percentile(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return middle(class).min(self.max as f64);
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentiles of a flat distribution lie where they must, to one class; the largest values have classes too.
    #[test]
    fn percentiles() {
        let mut times = Histogram::default();
        (1..=100_000).for_each(|value| times.add(value));
        for share in [0.5, 0.99, 0.999] {
            let (got, wanted) = (times.percentile(share), 100_000.0 * share);
            assert!((got / wanted - 1.0).abs() < 1.0 / 64.0, "{got} {wanted}");
        }
        assert_eq!(times.max(), 100_000);
        times.add(u64::MAX);
        assert!(times.percentile(1.0) > 1e19);
        assert_eq!((times.count(), times.max()), (100_001, u64::MAX));
    }

    /// No percentile exceeds the largest value, and what is absorbed is counted once.
    #[test]
    fn absorbed() {
        let (mut all, mut part) = (Histogram::default(), Histogram::default());
        part.add(1_000_000);
        all.absorb(&mut part);
        all.absorb(&mut part);
        assert_eq!((all.count(), all.max()), (1, 1_000_000));
        assert!(all.percentile(0.5) <= 1_000_000.0 && all.percentile(0.5) > 990_000.0);
        assert_eq!((part.count(), part.max()), (0, 0));
        assert_eq!(part.percentile(0.5), 0.0);
    }
}
