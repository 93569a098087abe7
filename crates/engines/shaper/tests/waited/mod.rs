//! What holds whatever waits for whichever rates: used by the fuzz target `shaper` and by the tests that replay its corpus.

use std::sync::Arc;

use windlass_frame::Tick;
use windlass_rules::FlowMatch;
use windlass_shaper::{Backlog, Bucket, Direction, Flow, Place, Priority, Shaper};

/// As a worker has it.
const FRAMES: usize = 512;
const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Medium, Priority::High];
/// Bits a second; 0: no rate.
const RATES: [u64; 4] = [0, 1_000, 1_000_000, 10_000_000_000];

fn rate(choice: u8) -> Option<Arc<Bucket>> {
    let rate = RATES[usize::from(choice) % RATES.len()];
    (rate != 0).then(|| Arc::new(Bucket::new(rate)))
}

/// A member's rate, and up to four flows with theirs, by a byte each.
fn shaper(bytes: &[u8]) -> Option<Arc<Shaper>> {
    let (member, flows) = bytes.split_first()?;
    let flow = |(id, choice): (u16, &u8)| {
        let flow = Flow {
            id: id.into(),
            priority: PRIORITIES[usize::from(choice >> 2) % 3],
            limit: rate(*choice),
            counters: Arc::new([]),
        };
        (FlowMatch::LocalPort(6, id), flow)
    };
    let flows = (1..).zip(flows.iter().take(4)).map(flow).collect();
    Shaper::new(Direction::Out, flows, rate(*member)).map(Arc::new)
}

fn flow_of(shaper: Option<&Shaper>, port: u8) -> Option<&Flow> {
    let mut packet = [0; 64];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    (packet[23], packet[35]) = (6, port);
    shaper?.flow_of(&packet, 64)
}

/// Frames that came, and those that went or were dropped.
#[derive(Default)]
struct Counts {
    came: u64,
    went: u64,
    dropped: u64,
}

/// Takes `data` as a run of records, each what happens, after which pause, and bytes: other rates, frames, their turn. Two workers share the rates.
pub fn check(data: &[u8]) {
    let mut now = Tick(5_000_000_000);
    let mut current = shaper(&[2, 1, 6]);
    let mut workers: [Backlog<u64>; 2] = Default::default();
    let mut counts = Counts::default();
    let mut rest = data;
    while let Some(([what, pause, length], tail)) = rest.split_first_chunk() {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        // From a microsecond to some seconds.
        now = now.plus(1_000 << (pause % 24));
        let backlog = &mut workers[usize::from(what >> 7)];
        match what % 4 {
            0 => current = shaper(bytes),
            1 => {
                for frame in bytes.chunks_exact(2) {
                    come(backlog, current.as_deref(), frame, now, &mut counts);
                }
            }
            2 => serve(backlog, current.as_deref(), now, &mut counts),
            _ => {
                let gone = backlog.drain().count() as u64;
                counts.dropped += gone;
                assert!(backlog.is_empty() && backlog.due().is_none());
            }
        }
        let waiting: usize = workers.iter().map(Backlog::len).sum();
        assert_eq!(counts.came, counts.went + counts.dropped + waiting as u64);
    }
    // Nothing waits for ever: at the lowest rate a frame takes 12 s, and CoDel lets none starve.
    for backlog in &mut workers {
        for _ in 0..=2 * FRAMES {
            let Some(due) = backlog.due() else { break };
            now = now.max(due);
            serve(backlog, current.as_deref(), now, &mut counts);
        }
        assert!(backlog.is_empty(), "{} wait for ever", backlog.len());
    }
    assert_eq!(counts.came, counts.went + counts.dropped);
}

fn come(
    backlog: &mut Backlog<u64>,
    shaper: Option<&Shaper>,
    frame: &[u8],
    now: Tick,
    counts: &mut Counts,
) {
    let &[port, size] = frame else { return };
    let flow = flow_of(shaper, port & 7);
    let bytes = 60 + u32::from(size) * 257;
    counts.came += 1;
    let place = match backlog.pass(shaper, flow, now, bytes) {
        Ok(()) => {
            counts.went += 1;
            return;
        }
        Err(place) => place,
    };
    assert!(place != Place::Flow || flow.is_some());
    if backlog.len() >= FRAMES {
        match backlog.drop_longest() {
            Some(_) => counts.dropped += 1,
            None => {
                counts.dropped += 1;
                return;
            }
        }
    }
    let (item, key) = (counts.came, u32::from(port >> 3));
    let dropped = &mut counts.dropped;
    let frame = (item, bytes, key, port & 8 != 0);
    backlog.push(shaper, (flow, place), frame, now, &mut |_, _| *dropped += 1);
}

/// What is due goes; after that nothing is due now.
fn serve(backlog: &mut Backlog<u64>, shaper: Option<&Shaper>, now: Tick, counts: &mut Counts) {
    for _ in 0..=4 * FRAMES {
        if backlog.due().is_none_or(|due| due > now) {
            return;
        }
        let dropped = &mut counts.dropped;
        backlog.advance(shaper, now, 64, &mut |_, _| *dropped += 1);
        while backlog.pop_ready().is_some() {
            counts.went += 1;
        }
    }
    panic!("what is due never goes");
}
