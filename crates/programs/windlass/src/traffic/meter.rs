//! Frames, bytes and times, by interval and in all, and the rows that show them.

use serde::Serialize;
use windlass_stats::Histogram;

use super::Told;
use crate::Session;
use crate::failure::Failure;
use crate::table::{Chosen, Form, Titles};

/// Lines after which titles are written again.
const LINES_PER_TITLE: u64 = 20;

/// What was counted of some time.
#[derive(Debug, Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    times: Histogram,
}

/// What a run counts.
#[derive(Debug)]
pub(crate) struct Meter {
    begin_ns: u64,
    /// When the interval has begun, and what had been told then.
    since_ns: u64,
    before: Told,
    interval: Counts,
    total: Counts,
    lines: u64,
}

/// A row of `gen` or `sink`.
#[derive(Debug, Serialize)]
struct Row {
    /// "interval", or "total" at the end.
    span: &'static str,
    /// Seconds since the beginning.
    time_s: f64,
    frames: u64,
    bytes: u64,
    frames_per_s: f64,
    bytes_per_s: f64,
    #[serde(flatten)]
    told: Option<Counted>,
    #[serde(flatten)]
    times: Option<Times>,
}

#[derive(Debug, Serialize)]
struct Counted {
    lost: u64,
    duplicates: u64,
    reordered: u64,
}

/// Percentiles in microseconds.
#[derive(Debug, Serialize)]
struct Times {
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl Meter {
    /// Begins at this time.
    pub(crate) fn new(begin_ns: u64) -> Meter {
        Meter {
            begin_ns,
            since_ns: begin_ns,
            before: Told::default(),
            interval: Counts::default(),
            total: Counts::default(),
            lines: 0,
        }
    }

    /// Counts a frame.
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.interval.frames += 1;
        self.interval.bytes += bytes as u64;
    }

    /// Counts a time.
    #[inline]
    pub(crate) fn add_time(&mut self, time_ns: u64) {
        self.interval.times.add(time_ns);
    }

    /// Frames in all.
    pub(crate) fn frames(&self) -> u64 {
        self.total.frames + self.interval.frames
    }

    /// Ends the interval and shows it.
    pub(crate) fn report(
        &mut self,
        session: &mut Session<'_>,
        chosen: &Chosen,
        now_ns: u64,
        told: Option<Told>,
    ) -> Result<(), Failure> {
        let since = told.map(|told| Told {
            lost: told.lost.saturating_sub(self.before.lost),
            duplicates: told.duplicates - self.before.duplicates,
            reordered: told.reordered - self.before.reordered,
        });
        self.before = told.unwrap_or_default();
        let row = self.row("interval", &self.interval, (self.since_ns, now_ns), since);
        self.end_interval(now_ns);
        self.write(session, chosen, row)
    }

    /// Shows what the whole run has counted.
    pub(crate) fn close(
        &mut self,
        session: &mut Session<'_>,
        chosen: &Chosen,
        now_ns: u64,
        told: Option<Told>,
    ) -> Result<(), Failure> {
        self.end_interval(now_ns);
        let row = self.row("total", &self.total, (self.begin_ns, now_ns), told);
        self.write(session, chosen, row)
    }

    fn end_interval(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        self.total.frames += core::mem::take(&mut self.interval.frames);
        self.total.bytes += core::mem::take(&mut self.interval.bytes);
        self.total.times.absorb(&mut self.interval.times);
    }

    fn row(
        &self,
        span: &'static str,
        counts: &Counts,
        (from_ns, now_ns): (u64, u64),
        told: Option<Told>,
    ) -> Row {
        let seconds = (now_ns - from_ns).max(1) as f64 / 1e9;
        let times = &counts.times;
        let us = |share| times.percentile(share) / 1e3;
        Row {
            span,
            time_s: (now_ns - self.begin_ns) as f64 / 1e9,
            frames: counts.frames,
            bytes: counts.bytes,
            frames_per_s: counts.frames as f64 / seconds,
            bytes_per_s: counts.bytes as f64 / seconds,
            told: told.map(|told| Counted {
                lost: told.lost,
                duplicates: told.duplicates,
                reordered: told.reordered,
            }),
            times: (times.count() > 0).then(|| Times {
                p50_us: us(0.5),
                p90_us: us(0.9),
                p99_us: us(0.99),
                p999_us: us(0.999),
                max_us: times.max() as f64 / 1e3,
            }),
        }
    }

    fn write(
        &mut self,
        session: &mut Session<'_>,
        chosen: &Chosen,
        row: Row,
    ) -> Result<(), Failure> {
        let mut form = session.form;
        if let Form::Table {
            titles: titles @ Titles::Shown,
            ..
        } = &mut form
            && !self.lines.is_multiple_of(LINES_PER_TITLE)
        {
            *titles = Titles::Before;
        }
        self.lines += 1;
        session.write(&crate::table::rows(&[row])?, chosen, form, "/S")?;
        Ok(session.out.flush()?)
    }
}
