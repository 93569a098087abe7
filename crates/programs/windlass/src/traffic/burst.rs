//! The frames of one call.

use windlass_framed::{Device, WriteVec};
use windlass_sys::Errno;

use super::{BATCH, Frames, Meter, Schedule, now_ns};
use crate::failure::Failure;

/// Bytes of a buffer of the ring.
const BUFFER_BYTES: usize = 2048;

/// Frames of one call, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    bytes: Vec<u8>,
    /// Where each one ends, and when it was due.
    frames: Vec<(usize, Option<u64>)>,
    /// Why there are no more.
    pub(crate) fault: Option<Failure>,
}

impl Burst {
    /// Adds frames that are due, unless there are some. Gives when the next one is, if that is what ends the burst.
    pub(crate) fn fill(
        &mut self,
        from: &mut dyn Frames,
        schedule: &mut Schedule,
        now: u64,
        most: u64,
    ) -> Option<u64> {
        if !self.frames.is_empty() || self.fault.is_some() {
            return None;
        }
        let mut buffers = 0;
        while (self.frames.len() as u64) < most.min(BATCH as u64) {
            let next = match from.next() {
                Ok(next) => next?,
                Err(fault) => {
                    self.fault = Some(fault);
                    return None;
                }
            };
            // The smallest ring has no room for more at once.
            buffers += next.bytes.div_ceil(BUFFER_BYTES);
            if buffers > BATCH && !self.frames.is_empty() {
                return None;
            }
            let due = schedule.due_ns(next.time_ns);
            if due.is_some_and(|due| due > now) {
                return due;
            }
            from.take(due.unwrap_or(now), &mut self.bytes);
            self.frames.push((self.bytes.len(), due));
            schedule.advance(next.bytes);
        }
        None
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.frames.iter().map(|frame| frame.0));
        begins
            .zip(&self.frames)
            .map(|(begin, (end, _))| &self.bytes[begin..*end])
    }

    /// Sends all of it, or nothing: into buffers of the ring, if each frame fits in one.
    pub(crate) fn send(&self, device: &Device) -> Result<usize, Errno> {
        let count = self.frames.len();
        if count == 0 {
            return Ok(0);
        }
        if self.slices().any(|frame| frame.len() > BUFFER_BYTES) {
            let mut vecs: Vec<WriteVec<'_>> = self.slices().map(WriteVec::new).collect();
            return device.write(1, &mut vecs);
        }
        let mut reserved = device.reserve(count)?;
        let mut lens = [0; BATCH];
        for ((number, frame), len) in self.slices().enumerate().zip(&mut lens) {
            reserved.put(number, frame);
            *len = frame.len();
        }
        reserved.commit(lens.get(..count).unwrap_or_default())?;
        Ok(count)
    }

    /// Counts what was sent, and how late.
    pub(crate) fn count(&mut self, meter: &mut Meter) {
        let now = now_ns();
        self.slices().for_each(|frame| meter.add(frame.len()));
        for due in self.frames.iter().filter_map(|frame| frame.1) {
            meter.add_time(now.saturating_sub(due));
        }
        self.bytes.clear();
        self.frames.clear();
    }
}
