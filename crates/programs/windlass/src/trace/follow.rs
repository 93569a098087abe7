//! Reading and showing what is recorded, until a signal, the time, a clause, or the end of the process.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use windlass_sys::process;
use windlass_types::Types;

use crate::Session;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::options::TraceArgs;
use crate::table::clean;

use super::attached::{Attached, Line};
use super::heat::{self, Heat};
use super::record::Record;
use super::show::Show;
use super::{Armed, Target, not_attached};

/// How often aggregations and the ring are looked at, at least.
const LOOK: Duration = Duration::from_millis(200);
/// How old a second is when what was kept of it is taken out, in seconds: what runs is done with it by then.
const SETTLED: u64 = 2;

/// A run.
pub(super) struct Run<'r, 'a> {
    attached: Attached,
    armed: &'r [Armed],
    types: &'r [Types<'a>],
    target: Target,
    /// Of each clause, as its probes were written.
    names: Vec<String>,
    /// Of each aggregation.
    heats: Vec<Heat>,
    /// When each tick comes next.
    ticks: Vec<Instant>,
    /// What the process executes.
    program: Option<(u64, u64)>,
}

/// Nanoseconds from the clock of records to that on the wall.
pub(super) fn to_wall() -> i64 {
    let now = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    let between = now(ClockId::Realtime) - now(ClockId::Monotonic);
    i64::try_from(between).unwrap_or(0)
}

/// The file that a process executes.
fn program(pid: Option<u32>) -> Option<(u64, u64)> {
    let file = std::fs::metadata(format!("/proc/{}/exe", pid?)).ok()?;
    Some((file.dev(), file.ino()))
}

impl<'r, 'a> Run<'r, 'a> {
    pub(super) fn new(
        attached: Attached,
        armed: &'r [Armed],
        types: &'r [Types<'a>],
        target: Target,
        names: Vec<String>,
    ) -> Self {
        let heats = attached.aggregations.iter().map(|_| Heat::default());
        let now = Instant::now();
        let ticks = attached.ticks.iter().map(|(every, _)| now + *every);
        Self {
            heats: heats.collect(),
            ticks: ticks.collect(),
            program: program(target.pid),
            attached,
            armed,
            types,
            target,
            names,
        }
    }

    pub(super) fn follow(
        mut self,
        session: &mut Session<'_>,
        args: &TraceArgs,
    ) -> Result<(), Failure> {
        let ending = Ending::watch()?;
        let end = args.seconds.map(|seconds| Instant::now() + seconds);
        let mut show = Show::new(self.armed, self.types, self.target.pid);
        show.begin(session)?;
        show.look();
        if let Some(started) = &mut self.target.started {
            started.go().map_err(|why| super::no_right("trace", why))?;
        }
        loop {
            let has_ended = |pidfd: &std::sync::Arc<OwnedFd>| process::has_ended(pidfd);
            let is_last = ending.has_come()
                || end.is_some_and(|end| Instant::now() >= end)
                || self.target.pidfd.as_ref().is_some_and(has_ended)
                || self.attached.has_stopped();
            self.tick()?;
            if is_last {
                let detached = self.attached.detach();
                detached.map_err(|error| not_attached("end the probes", &error))?;
            }
            let mut failed = None;
            self.attached.ring.read(|bytes| {
                if let (Some(record), None) = (Record::of(bytes), &failed) {
                    failed = show.record(session, &record).err();
                }
            });
            if let Some(failure) = failed {
                return Err(failure);
            }
            session.out.flush()?;
            self.keep(is_last)?;
            if is_last {
                break;
            }
            self.tell_of_another();
            self.wait(&ending, end);
        }
        self.end(session, &mut show)
    }

    /// Does what is to be done by now.
    fn tick(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for ((every, program), next) in self.attached.ticks.iter().zip(&mut self.ticks) {
            if now >= *next {
                let run = program.run();
                run.map_err(|errno| Failure::from(std::io::Error::from(errno)))?;
                // What was missed is not made up for.
                *next = now.max(*next + *every);
            }
        }
        Ok(())
    }

    /// Takes out what was kept of the time.
    fn keep(&mut self, is_last: bool) -> Result<(), Failure> {
        let now = clock_gettime(ClockId::Realtime).tv_sec;
        let settled = u64::try_from(now).unwrap_or(0).saturating_sub(SETTLED);
        for (aggregation, heat) in self.attached.aggregations.iter().zip(&mut self.heats) {
            let kept = &aggregation.kept;
            if !kept.how.is_timed() {
                continue;
            }
            let is_wanted = |key: &[u8]| {
                is_last || heat::second(kept, key).is_none_or(|second| second < settled)
            };
            let lines = aggregation.lines_if(is_wanted);
            let lines = lines.map_err(|error| not_attached("read what was counted", &error))?;
            for (key, line) in lines {
                if let Line::Number(count) = line {
                    heat.add(kept, &key, u64::try_from(count).unwrap_or(0));
                }
            }
        }
        Ok(())
    }

    /// Says that the process executes another program: probes hold where that maps the same files.
    fn tell_of_another(&mut self) {
        let now = program(self.target.pid);
        if now.is_none() || now == self.program {
            return;
        }
        self.program = now;
        let pid = self.target.pid.unwrap_or(0);
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let path = path.to_string_lossy();
        eprintln!(
            "windlass: process {pid} executes {} now: probes hold in files that it has mapped again",
            clean(&path)
        );
    }

    fn wait(&self, ending: &Ending, end: Option<Instant>) {
        let now = Instant::now();
        let times = self.ticks.iter().copied().chain(end);
        let left = times.map(|time| time.saturating_duration_since(now)).min();
        let left = left.map_or(LOOK, |left| left.min(LOOK));
        let mut fds = vec![
            PollFd::new(&self.attached.ring, PollFlags::IN),
            PollFd::new(ending, PollFlags::IN),
        ];
        if let Some(pidfd) = &self.target.pidfd {
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
        let wait = Timespec::try_from(left).unwrap_or(Timespec::default());
        // An interrupted wait is a shorter one.
        let _ = poll(&mut fds, Some(&wait));
    }

    /// Writes what was counted.
    fn end(mut self, session: &mut Session<'_>, show: &mut Show<'_, '_>) -> Result<(), Failure> {
        let failed = |error| not_attached("read what was counted", &error);
        for (number, aggregation) in self.attached.aggregations.iter().enumerate() {
            let kept = &aggregation.kept;
            match self.heats.get(number).filter(|_| kept.how.is_timed()) {
                Some(heat) => show.heat(session, kept, heat)?,
                None => {
                    let lines = aggregation.lines().map_err(failed)?;
                    show.aggregation(session, (number, kept), lines)?;
                }
            }
        }
        let mut counts = Vec::new();
        for (clause, name) in self.names.iter().enumerate() {
            let counted = self.attached.counts(clause).map_err(failed)?;
            counts.push((name.clone(), counted));
        }
        if let Some(why) = self.target.started.as_mut().and_then(|own| own.ending()) {
            eprintln!("windlass: {}", clean(&why));
        }
        show.end(
            session,
            self.armed.len() - self.attached.refused.len(),
            &counts,
        )
    }
}
