//! What waits: rates, fairness, delays, conservation, all in simulated time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use windlass_frame::Tick;
use windlass_rules::FlowMatch;
use windlass_shaper::{Backlog, Bucket, Direction, Flow, Place, Priority, Shaper};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const START: Tick = Tick(5 * SECOND);
/// As a worker has it.
const FRAMES: usize = 512;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}

fn flow(id: u64, rate: u64, priority: Priority) -> (FlowMatch, Flow) {
    let flow = Flow {
        id,
        priority,
        limit: (rate != 0).then(|| Arc::new(Bucket::new(rate))),
        counters: Arc::new([]),
    };
    (FlowMatch::LocalPort(6, id as u16), flow)
}

/// A rate of the member (0: none), and flows.
fn shaper(rate: u64, flows: &[(u64, u64, Priority)]) -> Option<Shaper> {
    let limit = (rate != 0).then(|| Arc::new(Bucket::new(rate)));
    let flows = flows
        .iter()
        .map(|(id, rate, priority)| flow(*id, *rate, *priority));
    Shaper::new(Direction::Out, flows.collect(), limit)
}

/// The flow of a number, by a packet of it.
fn flow_of(shaper: Option<&Shaper>, id: u64) -> Option<&Flow> {
    let mut packet = [0; 64];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    packet[23] = 6;
    packet[34..36].copy_from_slice(&(id as u16).to_be_bytes());
    shaper?.flow_of(&packet, 64)
}

/// What came, and where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Went {
    at: Tick,
    key: u32,
    number: u64,
    bytes: u32,
    came: Tick,
}

/// A worker with what waits.
#[derive(Default)]
struct Line {
    backlog: Backlog<(u64, Tick)>,
    came: u64,
    went: Vec<Went>,
    marked: Vec<u64>,
    dropped: Vec<u64>,
    /// The queue whose frames take marks.
    takes_marks: Option<u32>,
}

impl Line {
    fn advance(&mut self, shaper: Option<&Shaper>, now: Tick) {
        let mut gone = Vec::new();
        self.backlog
            .advance(shaper, now, 64, &mut |frame, _| gone.push(frame.item.0));
        self.dropped.extend(gone);
    }

    /// What is due goes.
    fn serve(&mut self, shaper: Option<&Shaper>, now: Tick) {
        while self.backlog.due().is_some_and(|due| due <= now) {
            self.advance(shaper, now);
            while let Some(frame) = self.backlog.pop_ready() {
                let (number, came) = frame.item;
                self.marked.extend(frame.is_marked.then_some(number));
                self.go(now, frame.key(), number, frame.bytes, came);
            }
        }
    }

    fn go(&mut self, at: Tick, key: u32, number: u64, bytes: u32, came: Tick) {
        self.went.push(Went {
            at,
            key,
            number,
            bytes,
            came,
        });
    }

    /// A frame comes, of a flow (0: none) and of a queue.
    fn come(&mut self, shaper: Option<&Shaper>, now: Tick, (id, key): (u64, u32), bytes: u32) {
        self.serve(shaper, now);
        let number = self.came;
        self.came += 1;
        let flow = flow_of(shaper, id).filter(|_| id != 0);
        let place = match self.backlog.pass(shaper, flow, now, bytes) {
            Ok(()) => return self.go(now, key, number, bytes, now),
            Err(place) => place,
        };
        if self.backlog.len() >= FRAMES {
            let longest = self.backlog.drop_longest().expect("there are frames");
            self.dropped.push(longest.item.0);
        }
        let mut gone = Vec::new();
        let frame = ((number, now), bytes, key, self.takes_marks == Some(key));
        let mut dropped = |frame: windlass_shaper::Waiting<_>, _| gone.push(frame.item);
        self.backlog
            .push(shaper, (flow, place), frame, now, &mut dropped);
        self.dropped
            .extend(gone.into_iter().map(|(number, _)| number));
    }

    /// Bits that went from one moment to another.
    fn bits(&self, from: Tick, to: Tick) -> u64 {
        let within = self
            .went
            .iter()
            .filter(|went| from <= went.at && went.at < to);
        within.map(|went| u64::from(went.bytes) * 8).sum()
    }

    fn bits_of(&self, key: u32) -> u64 {
        let of = self.went.iter().filter(|went| went.key == key);
        of.map(|went| u64::from(went.bytes) * 8).sum()
    }

    /// The longest that a frame of a queue waited, of those that came from then on.
    fn delay(&self, key: u32, from: Tick) -> u64 {
        let of = self
            .went
            .iter()
            .filter(|went| went.key == key && went.came >= from);
        of.map(|went| went.at.since(went.came))
            .max()
            .expect("some went")
    }
}

/// A sender: of which flow and queue, how many bytes at a time, and how often.
#[derive(Clone, Copy)]
struct Sender {
    flow: u64,
    key: u32,
    bytes: u32,
    gap: u64,
}

fn sender(key: u32, bytes: u32, rate: u64) -> Sender {
    Sender {
        flow: 0,
        key,
        bytes,
        gap: (u64::from(bytes) * 8 * SECOND / rate).max(1),
    }
}

/// Senders send for so long; the worker wakes up to `late` after the time.
fn run(line: &mut Line, shaper: &Shaper, senders: &[Sender], length: u64, late: u64) {
    let mut random = Random(9);
    let mut next: Vec<(Tick, Sender)> = senders.iter().map(|sender| (START, *sender)).collect();
    let mut wakes: Option<Tick> = None;
    loop {
        let (at, from) = next
            .iter()
            .enumerate()
            .map(|(n, (at, _))| (*at, n))
            .min()
            .expect("one");
        match wakes.or_else(|| line.backlog.due()) {
            Some(due) if due <= at => {
                let wake = wakes.take().unwrap_or(due).plus(random.below(late + 1));
                if wake < at {
                    line.serve(Some(shaper), wake);
                    continue;
                }
                // It wakes behind what comes before.
            }
            _ => {}
        }
        if at.since(START) >= length {
            return;
        }
        let sender = next[from].1;
        line.come(Some(shaper), at, (sender.flow, sender.key), sender.bytes);
        next[from].0 = at.plus(sender.gap);
    }
}

/// From 1 Mbit/s to 10 Gbit/s, frames of each size, twice as many as may go, and a worker that wakes late: within one second what goes
/// is within 2 % and one frame of the rate.
#[test]
fn a_second_at_the_rate() {
    for mbit in [1, 2, 7, 10, 100, 1_000, 10_000_u64] {
        for bytes in [60, 590, 1514] {
            let rate = mbit * 1_000_000;
            if rate / 8 / u64::from(bytes) > 900_000 {
                continue;
            }
            let shaper = shaper(rate, &[]).expect("a rate");
            let senders: Vec<Sender> = (0..7).map(|key| sender(key, bytes, rate * 2 / 7)).collect();
            let mut line = Line::default();
            run(&mut line, &shaper, &senders, SECOND * 6 / 5, 200_000);
            for begin in [START, START.plus(SECOND / 5)] {
                let bits = line.bits(begin, begin.plus(SECOND));
                let off = bits.abs_diff(rate);
                let most = rate / 50 + u64::from(bytes) * 8;
                assert!(off <= most, "{mbit} Mbit/s, {bytes} bytes: {bits}");
            }
        }
    }
}

/// Two that send more than there is have as much as each other, whatever they send and however large their frames are; one that
/// sends less than its share gets all, soon.
#[test]
fn shares_are_fair() {
    let shaper = shaper(10_000_000, &[]).expect("a rate");
    let senders = [
        sender(1, 1514, 40_000_000),
        sender(2, 500, 9_000_000),
        sender(3, 100, 500_000),
    ];
    let mut line = Line::default();
    run(&mut line, &shaper, &senders, 4 * SECOND, 50_000);
    let [one, two, three] = [1, 2, 3].map(|key| line.bits_of(key));
    assert!(one.abs_diff(two) < one / 20, "{one}, {two}");
    assert!(three >= 4 * 499_000, "{three}");
    // Two frames of others, and the time until the worker wakes.
    let delay = line.delay(3, START);
    assert!(delay < 2_600_000, "{delay} ns");
}

/// A flow with a rate of its own that never drains keeps nobody else: neither another flow, nor what is in none.
#[test]
fn a_full_flow_delays_itself_only() {
    let flows = [
        (7, 1_000_000, Priority::Medium),
        (8, 5_000_000, Priority::Medium),
    ];
    let shaper = shaper(100_000_000, &flows).expect("flows");
    let flood = Sender {
        flow: 7,
        ..sender(7, 1514, 50_000_000)
    };
    let other = Sender {
        flow: 8,
        ..sender(8, 1000, 4_000_000)
    };
    let mut line = Line::default();
    run(
        &mut line,
        &shaper,
        &[flood, other, sender(9, 200, 1_000_000)],
        3 * SECOND,
        50_000,
    );
    assert!(!line.dropped.is_empty());
    assert!(line.bits_of(7).abs_diff(3_000_000) < 100_000);
    assert_eq!((line.delay(8, START), line.delay(9, START)), (0, 0));
    assert!(line.bits_of(8) >= 11_900_000 && line.bits_of(9) >= 2_900_000);
}

/// Queues that stay long get shorter: a sender that answers to drops as TCP does has frames that wait for little more than the
/// target, not for all that there is room for.
#[test]
fn standing_queues_shrink() {
    let rate = 10_000_000;
    let shaper = shaper(rate, &[]).expect("a rate");
    let mut line = Line::default();
    // Bytes on their way, and when those that went are acknowledged.
    let (mut window, mut out, mut acks) = (20_f64, 0_u64, VecDeque::new());
    let (mut seen, mut lost, mut recovers) = (0, 0, START);
    let mut now = START;
    while now.since(START) < 10 * SECOND {
        line.serve(Some(&shaper), now);
        for went in &line.went[seen..] {
            acks.push_back(went.at.plus(20 * MS));
        }
        seen = line.went.len();
        while acks.front().is_some_and(|at| *at <= now) {
            acks.pop_front();
            out -= 1;
            window += 1.0 / window;
        }
        let news = line.dropped.len() - lost;
        (lost, out) = (line.dropped.len(), out - news as u64);
        if news > 0 && now >= recovers {
            window = (window / 2.0).max(2.0);
            recovers = now.plus(50 * MS);
        }
        while out < window as u64 {
            line.come(Some(&shaper), now, (0, 1), 1514);
            out += 1;
        }
        now = now.plus(100_000);
    }
    let late = |went: &&Went| went.came >= START.plus(3 * SECOND);
    let waits: Vec<u64> = line
        .went
        .iter()
        .filter(late)
        .map(|went| went.at.since(went.came))
        .collect();
    let mean = waits.iter().sum::<u64>() / waits.len() as u64;
    assert!(mean < 15 * MS, "{mean} ns");
    let bits = line.bits(START.plus(3 * SECOND), START.plus(10 * SECOND));
    assert!(bits > 7 * rate * 9 / 10, "{bits}");
}

/// Of two that send more than there is, for the member's rate or a flow's, one takes marks: it has them where the other loses frames,
/// and loses none.
#[test]
fn marks_are_in_the_place_of_drops() {
    for (flow, rate) in [(0, 10_000_000), (7, 5_000_000)] {
        let shaper = shaper(10_000_000, &[(7, 5_000_000, Priority::Medium)]).expect("a rate");
        // Together 8 % above: in that time less waits than there is room for.
        let senders = [1, 2].map(|key| Sender {
            flow,
            ..sender(key, 1000, rate * 54 / 100)
        });
        let mut line = Line {
            takes_marks: Some(1),
            ..Line::default()
        };
        run(&mut line, &shaper, &senders, SECOND * 4 / 5, 0);
        assert!(line.marked.len() > 3 && line.dropped.len() > 3, "{flow}");
        // They take turns.
        assert!(line.marked.iter().all(|number| number % 2 == 0), "{flow}");
        assert!(line.dropped.iter().all(|number| number % 2 == 1), "{flow}");
    }
}

/// What has a higher priority goes first; what has a lower one waits for 100 ms at most for a turn.
#[test]
fn priorities_have_an_order() {
    let flows = [
        (1, 0, Priority::High),
        (2, 0, Priority::Medium),
        (3, 0, Priority::Low),
    ];
    let shaper = shaper(1_000_000, &flows).expect("flows");
    let mut line = Line::default();
    let of = |flow| Sender {
        flow,
        ..sender(flow as u32, 250, 500_000)
    };
    let high = Sender {
        flow: 1,
        ..sender(1, 250, 700_000)
    };
    run(&mut line, &shaper, &[of(3), high, of(2)], 5 * SECOND, 0);
    let [high, medium, low] = [1, 2, 3].map(|key| line.bits_of(key));
    assert!(high >= 5 * 690_000, "{high}");
    assert!(line.delay(1, START.plus(SECOND)) <= 5 * MS);
    // What is left of the rate, and of that a frame every 100 ms.
    assert!((5 * 250_000..5 * 310_000).contains(&medium), "{medium}");
    assert!((5 * 15_000..5 * 30_000).contains(&low), "{low}");
}

/// Two workers have the same part of a rate, and together all of it.
#[test]
fn workers_take_turns() {
    let rate = 20_000_000;
    let shaper = shaper(rate, &[]).expect("a rate");
    let mut lines = [Line::default(), Line::default()];
    let mut now = START;
    while now.since(START) < 2 * SECOND {
        for line in &mut lines {
            line.come(Some(&shaper), now, (0, 1), 1000);
        }
        now = now.plus(200_000);
    }
    let bits = lines
        .each_ref()
        .map(|line| line.bits(START, START.plus(2 * SECOND)));
    assert!(bits[0].abs_diff(bits[1]) < rate / 50, "{bits:?}");
    assert!(
        (bits[0] + bits[1]).abs_diff(2 * rate) < rate / 50,
        "{bits:?}"
    );
}

/// What happens to a line.
#[derive(Clone, Debug)]
enum Step {
    Come {
        flow: u64,
        key: u32,
        bytes: u32,
    },
    Pass {
        ns: u64,
    },
    /// Other rates: the member's, and those of flows.
    Set {
        rate: u64,
        flows: Vec<(u64, u64, u8)>,
    },
    Nothing,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rate = prop_oneof![Just(0), Just(50_000), Just(1_000_000), Just(100_000_000)];
    let flows = prop::collection::vec((1_u64..4, rate.clone(), 0_u8..3), 0..4);
    let step = prop_oneof![
        12 => (0_u64..4, 0_u32..6, prop_oneof![60_u32..1514, Just(65_000)])
            .prop_map(|(flow, key, bytes)| Step::Come { flow, key, bytes }),
        4 => prop_oneof![0_u64..1000, 0..MS, 0..200 * MS].prop_map(|ns| Step::Pass { ns }),
        1 => (rate, flows).prop_map(|(rate, flows)| Step::Set { rate, flows }),
        1 => Just(Step::Nothing),
    ];
    prop::collection::vec(step, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    /// Whatever comes, and however rates and flows change meanwhile: what came went, waits, or was dropped, each once; what went of one
    /// flow, queue and priority kept its order; and without rates nothing waits.
    #[test]
    fn nothing_is_lost(steps in steps()) {
        let priority = |n| [Priority::Low, Priority::Medium, Priority::High][usize::from(n)];
        let (mut line, mut now) = (Line::default(), START);
        let mut rule = shaper(1_000_000, &[(1, 50_000, Priority::Medium)]);
        let mut priorities = Vec::new();
        for step in steps {
            match step {
                Step::Come { flow, key, bytes } => {
                    let found = flow_of(rule.as_ref(), flow);
                    priorities.push(found.map_or(Priority::Medium, |flow| flow.priority));
                    line.come(rule.as_ref(), now, (flow, key * 4 + flow as u32), bytes);
                }
                Step::Pass { ns } => {
                    now = now.plus(ns);
                    line.serve(rule.as_ref(), now);
                }
                Step::Set { rate, flows } => {
                    let mut flows: Vec<_> = flows.iter().map(|(id, rate, n)| (*id, *rate, priority(*n))).collect();
                    flows.sort_by_key(|flow| flow.0);
                    flows.dedup_by_key(|flow| flow.0);
                    line.serve(rule.as_ref(), now);
                    rule = shaper(rate, &flows);
                    line.advance(rule.as_ref(), now);
                    line.serve(rule.as_ref(), now);
                }
                Step::Nothing => {
                    line.advance(None, now);
                    line.serve(None, now);
                    prop_assert!(line.backlog.is_empty());
                }
            }
            prop_assert!(line.backlog.len() <= FRAMES);
        }
        let waiting: Vec<u64> = line.backlog.iter().map(|frame| frame.item.0).collect();
        let went = line.went.iter().map(|went| went.number);
        let mut all: Vec<u64> = went.chain(line.dropped.iter().copied()).chain(waiting).collect();
        all.sort_unstable();
        prop_assert!(all.iter().copied().eq(0..line.came), "{} of {}", all.len(), line.came);
        let mut last: BTreeMap<(u32, Priority), u64> = BTreeMap::new();
        for went in &line.went {
            let queue = (went.key, priorities[went.number as usize]);
            let before = last.insert(queue, went.number);
            prop_assert!(before.is_none_or(|before| before < went.number), "{went:?} behind {before:?}");
        }
        prop_assert!(line.backlog.drain().count() == line.came as usize - line.went.len() - line.dropped.len());
    }
}

/// A frame whose flow has no queue passes to the member's; without a rate there it is ready.
#[test]
fn places_without_a_rate() {
    let shaper = shaper(0, &[(1, 1_000, Priority::Medium)]).expect("a flow");
    let flow = flow_of(Some(&shaper), 1);
    let backlog = Backlog::<()>::default();
    assert_eq!(backlog.pass(Some(&shaper), flow, START, 60), Ok(()));
    assert_eq!(
        backlog.pass(Some(&shaper), flow, START, 60),
        Err(Place::Flow)
    );
    assert_eq!(backlog.pass(Some(&shaper), None, START, 60), Ok(()));
}
