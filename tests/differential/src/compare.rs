//! One script on two worlds, step by step, and what may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use crate::Options;
use crate::files::{Files, News};
use crate::loopback::Loopback;
use crate::rules;
use crate::script::{Step, Who, print};
use crate::world::{Launch, Replies, Reply, World};

/// A call that completed on the kernel may take this long on the subject before it counts as blocked.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Where the subject completed first, the kernel gets this long.
const PATIENCE_REFERENCE: Duration = Duration::from_millis(250);

/// A thread that seems asleep may still be on its way into its call, in a question to the broker: it is given so long before it is
/// interrupted, since a signal before the sleep interrupts nothing.
const ASLEEP_BEFORE_SIGNAL: Duration = Duration::from_millis(20);

/// The acknowledgement of an end of stream is an edge at the end that sent it. It may be delayed by 40 ms.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(45);

/// Unread bytes from here on may be on either side of the connection: TCP's first window is twice this.
const UNREAD_EXACT: i64 = 32_768;

/// The first quiet point at which two runs differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Index of the step after which it showed.
    pub at: usize,
    /// The steps.
    pub script: Vec<Step>,
    /// What each thread answered on the kernel and on the subject, where that differs.
    pub answers: Vec<(Who, Option<Reply>, Option<Reply>)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |reply: &Option<Reply>| match reply {
            None => "(in its call)".to_owned(),
            Some(reply) => words(reply),
        };
        let shown = self.script.len().min(self.at + 1);
        write!(f, "{}", print(&self.script[..shown]))?;
        for (who, kernel, subject) in &self.answers {
            writeln!(f, "# {who}: kernel:  {}", text(kernel))?;
            writeln!(f, "# {who}: subject: {}", text(subject))?;
        }
        Ok(())
    }
}

/// What one comparison came to.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Steps that were carried out.
    pub steps: u64,
    /// Steps whose thread was still in a call, or whose process was not there.
    pub skipped: u64,
    /// Calls that were found asleep at a quiet point.
    pub blocked: u64,
    /// Reads that gave fewer bytes than the kernel's, and were topped up.
    pub short_reads: u64,
    /// Looks that were right only when repeated.
    pub lags: u64,
    /// Longest that one of those took, in microseconds.
    pub lag_us_max: u64,
    /// Edges that the kernel did not report.
    pub edges: u64,
    /// Peeks that gave fewer bytes than the kernel's, in runs with calls that the library does not see.
    pub short_peeks: u64,
    /// What the preloaded library counted, added up.
    pub counters: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds what another came to.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.blocked += other.blocked;
        self.short_reads += other.short_reads;
        self.lags += other.lags;
        self.edges += other.edges;
        self.short_peeks += other.short_peeks;
        self.lag_us_max = self.lag_us_max.max(other.lag_us_max);
        for (name, value) in &other.counters {
            *self.counters.entry(name.clone()).or_default() += value;
        }
    }
}

/// Why a comparison has no result.
#[derive(Debug)]
pub enum Broken {
    /// The runs differ.
    Differs(Box<Difference>),
    /// A process or a pipe could not be made.
    Io(std::io::Error),
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a script on the kernel and on the subject. Of a generated one, steps are left out whose result is nobody's promise.
///
/// # Errors
/// The first difference, or that no process could be started.
pub fn run(
    script: &[Step],
    kernel: &Launch<'_>,
    subject: &Launch<'_>,
    patience: Duration,
    options: &Options,
    is_generated: bool,
) -> Result<Tally, Broken> {
    let mut pair = Pair {
        is_generated,
        patience,
        trace: options.trace,
        is_raw: options.raw_permille != [0; 2],
        has_raw_sockets: options.raw_permille[1] != 0,
        files: Files::default(),
        asleep: BTreeMap::new(),
        lacks_bytes: false,
        has_bytes_left: false,
        kernel: World::start(kernel)?,
        subject: World::start(subject)?,
        tally: Tally::default(),
    };
    let loopback = Loopback::new()?;
    for (at, step) in script.iter().enumerate() {
        loopback.drain()?;
        if let Err(answers) = pair.step(step) {
            let script = script.to_vec();
            return Err(Broken::Differs(Box::new(Difference {
                at,
                script,
                answers,
            })));
        }
    }
    let Pair {
        kernel,
        subject: world,
        mut tally,
        ..
    } = pair;
    kernel.end(false);
    world.end(subject.counters.is_some());
    if let Some(path) = subject.counters {
        tally.counters = counters(&std::fs::read_to_string(path).unwrap_or_default());
    }
    Ok(tally)
}

/// `name value` lines, those of one name added up.
fn counters(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, Ok(value))) = line
            .split_once(' ')
            .map(|(name, value)| (name, value.parse::<u64>()))
        {
            *counters.entry(name.to_owned()).or_default() += value;
        }
    }
    counters
}

type Answers = Vec<(Who, Option<Reply>, Option<Reply>)>;

pub(crate) struct Pair {
    patience: Duration,
    trace: bool,
    /// Nobody has seen to it that the script asks only what the kernel promises.
    is_generated: bool,
    /// The library does not see every call.
    pub(crate) is_raw: bool,
    /// On some sockets it sees none.
    has_raw_sockets: bool,
    pub(crate) files: Files,
    /// The last call of each thread that was found asleep.
    asleep: BTreeMap<Who, Step>,
    /// A step was left out that would have sent what a later one takes.
    lacks_bytes: bool,
    /// A step was left out that would have taken bytes.
    has_bytes_left: bool,
    pub(crate) kernel: World,
    pub(crate) subject: World,
    pub(crate) tally: Tally,
}

/// Steps that send.
const SENDS: [&str; 7] = [
    "give", "fill", "send", "sendto", "sendmsg", "write", "writev",
];

impl Pair {
    /// One step on both, up to the next quiet point.
    fn step(&mut self, step: &Step) -> Result<(), Answers> {
        if self.leaves_out(step) {
            return Ok(());
        }
        self.tally.steps += 1;
        self.files.begin(step);
        if step.verb() == "tkill" {
            std::thread::sleep(ASLEEP_BEFORE_SIGNAL);
        }
        self.kernel.issue(step);
        self.subject.issue(step);
        let ends = step.ends().then_some(step.who).into_iter().collect();
        let mut kernel = self.kernel.until_quiet(&ends, PATIENCE);
        let mut subject = self
            .subject
            .until_quiet(&kernel.keys().copied().collect(), self.patience);
        let early: BTreeSet<Who> = subject
            .keys()
            .filter(|who| !kernel.contains_key(who))
            .copied()
            .collect();
        if !early.is_empty() {
            kernel.extend(self.kernel.until_quiet(&early, PATIENCE_REFERENCE));
            let late = kernel
                .keys()
                .filter(|who| !subject.contains_key(who))
                .copied()
                .collect();
            subject.extend(self.subject.until_quiet(&late, self.patience));
        }
        if !kernel.contains_key(&step.who) {
            self.tally.blocked += 1;
            self.asleep.insert(step.who, step.clone());
            self.files.sleeps(step);
        }
        self.learn(step, &kernel, &subject);
        if self.trace {
            show(step, "kernel", &kernel);
            show(step, "subject", &subject);
        }
        for (who, ..) in self.differing(step, &kernel, &subject) {
            // A wait that gave less is not repeated to sleep: what it then waits for would be nobody's question.
            let call = self.call(who, step).at_once();
            self.look_again(&call, who != step.who, &mut kernel, &mut subject);
        }
        self.hear(step, &subject);
        if step.verb() == "shutdown" {
            std::thread::sleep(ACKNOWLEDGED_AFTER);
        }
        let mut answers = self.differing(step, &kernel, &subject);
        answers.retain(|(who, one, other)| {
            let call = self.call(*who, step).clone();
            !rules::allow(self, *who, &call, one.as_ref(), other.as_ref())
        });
        if answers.is_empty() {
            Ok(())
        } else {
            Err(answers)
        }
    }

    /// Whether a step is left out: nobody can tell what it does, or it would take bytes that were not sent.
    fn leaves_out(&mut self, step: &Step) -> bool {
        // A `take` whose bytes are not sent would sleep, and take those of others. How much of what was there before comes out behind
        // a `fill` depends on how much that was.
        let is_lonely = step.verb() == "take" && std::mem::take(&mut self.lacks_bytes)
            || step.verb() == "fill" && self.has_bytes_left;
        let is_out = is_lonely
            || !self.kernel.is_free(step)
            || !self.subject.is_free(step)
            || self.is_generated && self.is_undecided(step);
        if is_out {
            self.tally.skipped += 1;
            self.lacks_bytes |= SENDS.contains(&step.verb());
            self.has_bytes_left |= Files::takes(step);
        }
        is_out
    }

    /// The call that a thread has answered, or is in, after this step.
    fn call<'a>(&'a self, who: Who, step: &'a Step) -> &'a Step {
        let slept = self.asleep.get(&who).filter(|_| who != step.who);
        slept.unwrap_or(step)
    }

    /// Whether the kernel does not promise what this step does beside the calls that sleep: two of them would fight over a file, or
    /// one has the last descriptor of its file, and would be interrupted.
    fn is_undecided(&self, step: &Step) -> bool {
        if self.has_raw_sockets && step.verb() == "sendfd" {
            // The library may not see that another process has the socket, and writes to it.
            return true;
        }
        let pending = self.kernel.pending();
        let asleep = self.asleep.iter().filter(|(who, _)| pending.contains(who));
        let interrupts = ["stop", "tkill"].contains(&step.verb());
        asleep.into_iter().any(|(who, call)| {
            let is_hit = interrupts && who.process == step.who.process;
            self.files.contends(step, call) || is_hit && self.files.is_closed_under(call)
        })
    }

    /// What the subject's epoll sets have told of bytes.
    fn hear(&mut self, step: &Step, subject: &Replies) {
        for (who, reply) in subject {
            let call = self.call(*who, step).clone();
            for (label, bits) in rules::events(Some(reply)) {
                for news in [News::Bytes, News::Room] {
                    if bits.contains(news.event()) {
                        self.files.tell(&call, label, news);
                    }
                }
            }
        }
    }

    fn learn(&mut self, step: &Step, kernel: &Replies, subject: &Replies) {
        for (who, reply) in kernel {
            let call = self.call(*who, step).clone();
            self.files.learn(&call, reply);
        }
        if let Some(reply) = kernel.get(&step.who) {
            self.kernel.learn(step, reply);
        }
        if let Some(reply) = subject.get(&step.who) {
            self.subject.learn(step, reply);
        }
    }

    fn differing(&mut self, step: &Step, kernel: &Replies, subject: &Replies) -> Answers {
        let whos: BTreeSet<Who> = kernel.keys().chain(subject.keys()).copied().collect();
        let mut answers = Answers::new();
        for who in whos {
            let one = kernel
                .get(&who)
                .map(|reply| normal(step, &mut self.kernel, reply));
            let other = subject
                .get(&who)
                .map(|reply| normal(step, &mut self.subject, reply));
            if one != other {
                answers.push((who, one, other));
            }
        }
        answers
    }

    /// Where one side saw less than the other and lost nothing by it, it looks again.
    fn look_again(
        &mut self,
        step: &Step,
        has_slept: bool,
        kernel: &mut Replies,
        subject: &mut Replies,
    ) {
        let (Some(one), Some(other)) = (
            kernel.get(&step.who).cloned(),
            subject.get(&step.who).cloned(),
        ) else {
            return;
        };
        let start = Instant::now();
        if let Some(whole) = top_up(&mut self.subject, self.is_raw, step, &one, &other) {
            subject.insert(step.who, whole);
            self.tally.short_reads += 1;
            return;
        }
        if has_slept && let Some(whole) = top_up(&mut self.kernel, self.is_raw, step, &other, &one)
        {
            kernel.insert(step.who, whole);
            self.tally.short_reads += 1;
            return;
        }
        for &pause in rules::pauses_us(self.is_raw) {
            let (kernel_again, subject_again) =
                again(step, &kernel[&step.who], &subject[&step.who]);
            if !kernel_again && !subject_again {
                return;
            }
            std::thread::sleep(Duration::from_micros(pause));
            if kernel_again {
                repeat(step, &mut self.kernel, kernel);
            }
            if subject_again {
                repeat(step, &mut self.subject, subject);
            }
            if !self
                .differing(step, kernel, subject)
                .iter()
                .any(|(who, ..)| *who == step.who)
            {
                self.tally.lags += 1;
                let took = start.elapsed().as_micros() as u64;
                self.tally.lag_us_max = self.tally.lag_us_max.max(took);
                return;
            }
        }
    }
}

/// A read that is shorter than the other world's is legal on a stream: the rest is read, and the two parts compared as one.
fn top_up(
    world: &mut World,
    is_raw: bool,
    step: &Step,
    longer: &Reply,
    shorter: &Reply,
) -> Option<Reply> {
    let receives = ["recv", "recvfrom", "read", "readv", "recvmsg"].contains(&step.verb());
    let (wanted, got) = (longer.number("ret")?, shorter.number("ret")?);
    if !receives || got <= 0 || got >= wanted || step.word(3).contains("peek") {
        return None;
    }
    let (mut sum, mut data) = (got, shorter.get("data")?.to_owned());
    for pause in std::iter::once(&0).chain(rules::pauses_us(is_raw)) {
        // Bytes that a bare system call took are not counted until the other end sleeps.
        std::thread::sleep(Duration::from_micros(*pause));
        let missing = (wanted - sum).to_string();
        let words = ["more", step.word(1), &missing, &data]
            .map(str::to_owned)
            .to_vec();
        let more = Step {
            who: step.who,
            words,
        };
        world.issue(&more);
        let rest = world
            .until_quiet(&BTreeSet::from([step.who]), PATIENCE)
            .remove(&step.who)?;
        sum += rest.number("ret")?.max(0);
        rest.get("data")?.clone_into(&mut data);
        if sum >= wanted {
            break;
        }
    }
    let whole = |(key, value): &(String, String)| match key.as_str() {
        "ret" => Some((key.clone(), sum.to_string())),
        "data" => Some((key.clone(), data.clone())),
        _ => Some((key.clone(), value.clone())),
    };
    Some(Reply(shorter.0.iter().filter_map(whole).collect()))
}

/// Every answer as it came.
fn show(step: &Step, world: &str, replies: &Replies) {
    println!("{step}");
    for (who, reply) in replies {
        println!("#   {world} {who}: {}", words(reply));
    }
}

fn words(reply: &Reply) -> String {
    let words: Vec<String> = reply
        .0
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    words.join(" ")
}

fn repeat(step: &Step, world: &mut World, replies: &mut Replies) {
    if !world.is_free(step) {
        return;
    }
    world.issue(step);
    let Some(now) = world
        .until_quiet(&BTreeSet::from([step.who]), PATIENCE)
        .remove(&step.who)
    else {
        return;
    };
    let before = replies.get(&step.who).cloned().unwrap_or_default();
    replies.insert(
        step.who,
        if step.verb().ends_with("wait") {
            merged(&before, now)
        } else {
            now
        },
    );
}

/// Which of the two may repeat the step without losing anything: one whose read found nothing, or any
/// look that takes nothing. An epoll set gives an edge once, so only the one that saw less looks again.
fn again(step: &Step, kernel: &Reply, subject: &Reply) -> (bool, bool) {
    let nothing = |reply: &Reply| reply.number("errno") == Some(11);
    match step.verb() {
        "poll" | "ppoll" | "select" | "pselect" | "fionread" | "atmark" => (true, true),
        "recv" | "recvfrom" | "read" | "readv" | "recvmsg" | "recvmmsg" | "splicein" | "recvfd"
        | "accept" | "accept4" => (nothing(kernel), nothing(subject)),
        "wait" | "pwait" => {
            let (one, other) = (
                kernel.number("ret").unwrap_or(0),
                subject.number("ret").unwrap_or(0),
            );
            (one <= other, other <= one)
        }
        _ => (false, false),
    }
}

/// Two looks at an epoll set: of each label the events of the later look, or of the only one.
fn merged(before: &Reply, now: Reply) -> Reply {
    let of = |reply: &Reply| -> BTreeMap<u64, String> {
        let events = reply.get("events").unwrap_or("");
        let pairs = events.split(',').filter_map(|one| one.split_once(':'));
        pairs
            .filter_map(|(label, bits)| Some((label.parse().ok()?, bits.to_owned())))
            .collect()
    };
    if now.number("ret").unwrap_or(-1) < 0 {
        return now;
    }
    if now.number("ret") != i64::try_from(of(&now).len()).ok() {
        // Members with equal labels cannot be told apart: the later look stands.
        return now;
    }
    let mut events = of(before);
    events.extend(of(&now));
    let text: Vec<String> = events
        .iter()
        .map(|(label, bits)| format!("{label}:{bits}"))
        .collect();
    let mut words = vec![("ret".to_owned(), events.len().to_string())];
    if !text.is_empty() {
        words.push(("events".to_owned(), text.join(",")));
    }
    Reply(words)
}

/// A reply without what may differ between two runs on one kernel; the crate's documentation gives the
/// reasons.
fn normal(step: &Step, world: &mut World, reply: &Reply) -> Reply {
    let mut words = Vec::new();
    for (key, value) in &reply.0 {
        let number = value.parse::<i64>().unwrap_or(0);
        let value = match key.as_str() {
            key if key.starts_with('~') => continue,
            key if key.ends_with("_port") => nth_port(world, number),
            key if key.ends_with("_address") => world.anonymous(value),
            "unread" if number >= UNREAD_EXACT => "many".to_owned(),
            "buffer" => buffer(world, step, number),
            _ => value.clone(),
        };
        words.push((key.clone(), value));
    }
    Reply(words)
}

/// Ports are the kernel's choice: each is called by the order in which it was seen.
fn nth_port(world: &mut World, port: i64) -> String {
    let known = world.seen_ports.iter().position(|&seen| seen == port);
    let index = known.unwrap_or_else(|| {
        world.seen_ports.push(port);
        world.seen_ports.len() - 1
    });
    format!("#{index}")
}

/// The kernel tunes a buffer until the program sets it; then it is twice what was set, or the least.
fn buffer(world: &World, step: &Step, value: i64) -> String {
    let least = if step.word(2) == "sndbuf" { 4608 } else { 2304 };
    let set = world
        .buffers
        .iter()
        .any(|&set| value == (2 * set).max(least));
    if set {
        value.to_string()
    } else {
        "auto".to_owned()
    }
}
