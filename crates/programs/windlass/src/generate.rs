//! `gen`: sends frames into a bridge at a rate, numbered and with the time at which they were due, or those of a file.

use windlass_framed::{Device, LINGER, Readiness};
use windlass_sys::Errno;

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::options::GenArgs;
use crate::table::Chosen;
use crate::traffic::{
    self, Burst, Frames, Meter, Rate, Replay, Schedule, Template, Turn, Watch, now_ns,
};

/// Sends until a signal, the time, the number of frames, the end of the file or of the device.
pub(crate) fn run(session: &mut Session<'_>, args: &GenArgs) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::GEN)? else {
        return Ok(());
    };
    let what = format!("generate at {}", args.at.device);
    let open = traffic::open(session, &what, &args.at)?;
    let rate = args.rate.or(args.bps);
    let Some(path) = &args.replay else {
        let mut made = Template::new(session, &what, args, &open)?;
        let rate = rate.unwrap_or(Rate::Max);
        return send_all(session, args, &chosen, &open.device, &mut made, Some(rate));
    };
    let mut replay = Replay::open(path, open.device.frame_max())?;
    let sent = send_all(session, args, &chosen, &open.device, &mut replay, rate);
    if let Some(told) = replay.left_out() {
        eprintln!("windlass: {told}");
    }
    sent
}

fn send_all(
    session: &mut Session<'_>,
    args: &GenArgs,
    chosen: &Chosen,
    device: &Device,
    from: &mut dyn Frames,
    rate: Option<Rate>,
) -> Result<(), Failure> {
    let mut watch = Watch::start(&args.at)?;
    let mut schedule = Schedule::new(watch.begin_ns(), rate);
    let mut meter = Meter::new(watch.begin_ns());
    let count = args.at.count.unwrap_or(u64::MAX);
    let mut burst = Burst::default();
    let ended = loop {
        let now = now_ns();
        match watch.turn(now) {
            Turn::GoOn => {}
            Turn::Report => meter.report(session, chosen, now, None)?,
            Turn::End => break Ok(()),
        }
        // What found no room is tried again first.
        let later = burst.fill(from, &mut schedule, now, count - meter.frames());
        match (burst.send(device), later) {
            (Ok(0), None) => break burst.fault.map_or(Ok(()), Err),
            (Ok(0), due) => watch.sleep(None, due)?,
            (Ok(_), _) => burst.count(&mut meter),
            (Err(Errno::INTR), _) => {}
            (Err(Errno::AGAIN), _) => watch.sleep(device.pollfd(Readiness::Write).ok(), None)?,
            (Err(errno), _) => {
                break Err(traffic::gone(
                    &format!("generate at {}", args.at.device),
                    errno,
                ));
            }
        }
    };
    let mut taken = device.drain(LINGER);
    while taken == Err(Errno::INTR) {
        taken = device.drain(LINGER);
    }
    meter.close(session, chosen, now_ns(), None)?;
    if taken.is_err() {
        eprintln!("windlass: the bridge has not taken the last frames");
    }
    ended
}
