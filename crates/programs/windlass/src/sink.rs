//! `sink`: takes the frames that come to a device, and says how many, which are missing, and how long they took.

use windlass_framed::{Device, ReadVec, Readiness};
use windlass_sys::Errno;

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::options::SinkArgs;
use crate::traffic::{self, BATCH, HEAD_BYTES, Mark, Meter, Tally, Turn, Watch, now_ns};

/// Longest frame that a device takes.
const FRAME_MAX: usize = 65_557;

/// What has been seen.
struct Seen {
    meter: Meter,
    tally: Tally,
}

impl Seen {
    /// A frame of so many bytes, of which these are the first.
    #[inline]
    fn add(&mut self, head: &[u8], bytes: usize, now_ns: u64) {
        self.meter.add(bytes);
        if let Some(mark) = Mark::of(head) {
            self.tally.add(mark);
            self.meter.add_time(mark.age_ns(now_ns));
        }
    }
}

/// Counts until a signal, the time, the number of frames or the end of the device.
pub(crate) fn run(session: &mut Session<'_>, args: &SinkArgs) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::SINK)? else {
        return Ok(());
    };
    let what = format!("receive at {}", args.at.device);
    let device = traffic::open(session, &what, &args.at)?.device;
    let mut watch = Watch::start(&args.at)?;
    let mut seen = Seen {
        meter: Meter::new(watch.begin_ns()),
        tally: Tally::default(),
    };
    let count = args.at.count.unwrap_or(u64::MAX);
    let mut room = vec![0; FRAME_MAX];
    let ended = loop {
        let left = count - seen.meter.frames();
        if left == 0 {
            break Ok(());
        }
        let most = usize::try_from(left).map_or(BATCH, |left| left.min(BATCH));
        match receive(&device, most, &mut room, &mut seen) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => watch.sleep(device.pollfd(Readiness::Read).ok(), None)?,
            Err(errno) => break Err(traffic::gone(&what, errno)),
        }
        let now_ns = now_ns();
        match watch.turn(now_ns) {
            Turn::GoOn => {}
            Turn::Report => seen
                .meter
                .report(session, &chosen, now_ns, Some(seen.tally.told()))?,
            Turn::End => break Ok(()),
        }
    };
    seen.meter
        .close(session, &chosen, now_ns(), Some(seen.tally.told()))?;
    ended
}

/// Takes what is there, at most so many frames.
fn receive(device: &Device, most: usize, room: &mut [u8], seen: &mut Seen) -> Result<(), Errno> {
    match device.peek(most) {
        Ok(peeked) => {
            let now_ns = now_ns();
            let mut head = [0; HEAD_BYTES];
            for frame in peeked.frames() {
                let copied = frame.copy(0, &mut head);
                seen.add(head.get(..copied).unwrap_or_default(), frame.len(), now_ns);
            }
            peeked.release(most);
            Ok(())
        }
        // It does not lie in one buffer.
        Err(Errno::OVERFLOW) => {
            let mut vecs = [ReadVec::new(room)];
            device.read(1, &mut vecs)?;
            let [frame] = &vecs;
            seen.add(frame.data(), frame.data().len(), now_ns());
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}
