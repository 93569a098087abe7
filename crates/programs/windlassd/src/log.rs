//! Logging: a line, and the same as fields.
//!
//! # Model
//! Every event has a sentence; what an operator searches for has fields beside it, of which `event` says what happened.
//! They are written in one of three forms ([`Format`]): for people on stderr, as JSON, or to the journal, where a field `uid`
//! is `WINDLASS_UID`.
//!
//! # Limits
//! What a tenant can cause is counted by its source ([`may`]), up to a [`LogRate`]. The next line of a source whose lines were
//! left out says how many.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};
use windlass_api::Name;

/// Lines that one source may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRate {
    /// At once.
    pub burst: u32,
    /// In a second after these.
    pub per_s: u32,
}

/// Sources that are remembered; those that have been quiet are forgotten first.
const SOURCES_MAX: usize = 4096;

/// Where the journal takes datagrams with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// The form of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Fields to the journal if stderr is the journal's and it listens; else text.
    #[default]
    Auto,
    /// A sentence and its fields, `key=value`.
    Text,
    /// An object a line.
    Json,
}

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging. To be called once.
///
/// # Errors
/// If it was called before.
pub fn start(level: Level, format: Format) -> Result<()> {
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    let lines = Lines::new(format);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()?;
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Changes what is logged from now on.
pub fn set_level(level: Level) {
    if let Some(handle) = LEVEL.get()
        && let Err(error) = handle.modify(|filter| *filter = LevelFilter::from_level(level))
    {
        tracing::warn!("cannot change the log level: {error}");
    }
}

/// Who makes us write a line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A user, by what is asked of the control socket.
    User(u32),
    /// A zone, by what its members do; none is the global zone.
    Zone(Option<Name>),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Zone(Some(name)) => write!(f, "zone {name}"),
            Self::Zone(None) => f.write_str("the global zone"),
        }
    }
}

/// Whether a line of this source may be written now. What the host's operators do is always written: do not ask.
pub fn may(source: Source) -> bool {
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(left_out) = buckets.take(&source, Instant::now()) else {
        return false;
    };
    drop(buckets);
    if left_out > 0 {
        tracing::warn!(
            event = "left-out",
            lines = left_out,
            "{left_out} lines of {source} were left out"
        );
    }
    true
}

/// Lines of this source that count now, and how many may; none before [`set_rate`].
pub fn lines(source: &Source) -> Option<(u32, u32)> {
    let buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    Some((buckets.lines(source, Instant::now()), buckets.rate?.burst))
}

/// Changes what a source may cause from now on.
pub fn set_rate(rate: LogRate) {
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    buckets.rate = Some(rate);
}

static BUCKETS: LazyLock<Mutex<Buckets>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Buckets {
    /// None: without a limit, before [`set_rate`].
    rate: Option<LogRate>,
    by_source: HashMap<Source, Bucket>,
}

struct Bucket {
    /// When it will be full again.
    full_at: Instant,
    left_out: u64,
}

impl LogRate {
    /// The time after which a line counts no more.
    fn line(self) -> Duration {
        Duration::from_secs(1) / self.per_s.max(1)
    }
}

impl Buckets {
    /// Lines of the source that count now.
    fn lines(&self, source: &Source, now: Instant) -> u32 {
        let (Some(rate), Some(bucket)) = (self.rate, self.by_source.get(source)) else {
            return 0;
        };
        let full_in = bucket.full_at.saturating_duration_since(now);
        let lines = full_in.as_nanos().div_ceil(rate.line().as_nanos().max(1));
        u32::try_from(lines).unwrap_or(u32::MAX).min(rate.burst)
    }

    /// Takes a line from the source's bucket: how many were left out since the last one, or none if it is empty.
    fn take(&mut self, source: &Source, now: Instant) -> Option<u64> {
        let Some(rate) = self.rate else {
            return Some(0);
        };
        let line = rate.line();
        if self.by_source.len() >= SOURCES_MAX && !self.by_source.contains_key(source) {
            self.by_source.retain(|_, bucket| bucket.full_at > now);
            if self.by_source.len() >= SOURCES_MAX {
                return None;
            }
        }
        let fresh = || Bucket {
            full_at: now,
            left_out: 0,
        };
        let bucket = self.by_source.entry(source.clone()).or_insert_with(fresh);
        let full_at = bucket.full_at.max(now) + line;
        if full_at > now + line * rate.burst {
            bucket.left_out += 1;
            return None;
        }
        bucket.full_at = full_at;
        Some(std::mem::take(&mut bucket.left_out))
    }
}

/// Writes events.
enum Lines {
    /// To the journal's socket.
    Journal(UnixDatagram),
    /// With the priority in front, for a journal that reads stderr.
    Prefixed,
    Text,
    Json,
}

impl Lines {
    fn new(format: Format) -> Self {
        let to_journal = std::env::var_os("JOURNAL_STREAM").is_some();
        match format {
            Format::Json => Self::Json,
            Format::Auto if to_journal => match journal() {
                Ok(socket) => Self::Journal(socket),
                Err(_) => Self::Prefixed,
            },
            Format::Auto | Format::Text => Self::Text,
        }
    }
}

fn journal() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(JOURNAL)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        // A log that cannot be written to is no reason to end.
        let _ = match self {
            Self::Journal(socket) => socket.send(&fields.journal(level)).map(drop),
            Self::Prefixed => {
                let line = format!("<{}>{}\n", priority(level), fields.text());
                io::stderr().write_all(line.as_bytes())
            }
            Self::Text => {
                let line = format!("{} {level:>5} {}\n", time(), fields.text());
                io::stderr().write_all(line.as_bytes())
            }
            Self::Json => io::stderr().write_all(fields.json(level).as_bytes()),
        };
    }
}

/// As syslog counts.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn time() -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// What an event says.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.push((field.name(), text.into()));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.others.push((field.name(), value.into()));
    }
}

impl Fields {
    /// One line, whatever is in it.
    fn text(&self) -> String {
        let mut text = self.message.replace(['\n', '\r'], " ");
        for (name, value) in self.others.iter().filter(|(_, value)| value != "") {
            let _ = match value.as_str() {
                Some(word)
                    if word
                        .bytes()
                        .all(|byte| byte.is_ascii_graphic() && byte != b'"') =>
                {
                    write!(text, " {name}={word}")
                }
                _ => write!(text, " {name}={value}"),
            };
        }
        text
    }

    fn json(&self, level: Level) -> String {
        let mut object = Map::new();
        object.insert("time".into(), time().into());
        object.insert("level".into(), level.as_str().to_lowercase().into());
        object.insert("message".into(), self.message.as_str().into());
        let others = self.others.iter().cloned();
        object.extend(others.map(|(name, value)| (name.to_owned(), value)));
        format!("{}\n", Value::Object(object))
    }

    /// A datagram in the journal's own protocol: each value with its length, so that it may be any bytes.
    fn journal(&self, level: Level) -> Vec<u8> {
        let mut datagram = Vec::new();
        let mut add = |name: &str, value: &str| {
            datagram.extend(name.as_bytes());
            datagram.push(b'\n');
            datagram.extend((value.len() as u64).to_le_bytes());
            datagram.extend(value.as_bytes());
            datagram.push(b'\n');
        };
        add("MESSAGE", &self.message);
        add("PRIORITY", &priority(level).to_string());
        add("SYSLOG_IDENTIFIER", "windlassd");
        for (name, value) in &self.others {
            let name = format!("WINDLASS_{}", name.to_uppercase());
            match value.as_str() {
                Some(text) => add(&name, text),
                None => add(&name, &value.to_string()),
            }
        }
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: LogRate = LogRate { burst: 3, per_s: 2 };

    fn fields() -> Fields {
        Fields {
            message: "vnic web: created".into(),
            others: vec![
                ("event", "change".into()),
                ("uid", 1000.into()),
                ("reason", "two\nlines".into()),
            ],
        }
    }

    /// No value makes a second line or a field of its own.
    #[test]
    fn forms_of_a_line() {
        let fields = fields();
        assert_eq!(
            fields.text(),
            r#"vnic web: created event=change uid=1000 reason="two\nlines""#
        );
        let object: Value = serde_json::from_str(&fields.json(Level::INFO)).expect("JSON");
        assert_eq!(object["uid"], 1000);
        assert_eq!(object["reason"], "two\nlines");
        assert_eq!(object["level"], "info");
        let datagram = fields.journal(Level::WARN);
        let text = String::from_utf8_lossy(&datagram);
        assert!(
            text.contains("PRIORITY\n\u{1}\0\0\0\0\0\0\u{0}4\n"),
            "{text:?}"
        );
        assert!(
            text.contains("WINDLASS_REASON\n\u{9}\0\0\0\0\0\0\0two\nlines\n"),
            "{text:?}"
        );
    }

    /// A source has its burst, then its rate, says what was left out, and takes nothing of another's.
    #[test]
    fn lines_are_counted_by_source() {
        let mut buckets = Buckets {
            rate: Some(RATE),
            ..Buckets::default()
        };
        let now = Instant::now();
        let (user, other) = (Source::User(1), Source::User(2));
        for _ in 0..RATE.burst {
            assert_eq!(buckets.take(&user, now), Some(0));
        }
        assert_eq!(buckets.take(&user, now), None);
        assert_eq!(buckets.take(&user, now), None);
        assert_eq!(buckets.lines(&user, now), RATE.burst);
        assert_eq!(buckets.lines(&other, now), 0);
        assert_eq!(buckets.take(&other, now), Some(0));
        assert_eq!(buckets.lines(&other, now), 1);
        let later = now + Duration::from_secs(1);
        assert_eq!(buckets.lines(&user, later), RATE.burst - RATE.per_s);
        assert_eq!(buckets.take(&user, later), Some(2));
        for _ in 1..RATE.per_s {
            assert_eq!(buckets.take(&user, later), Some(0));
        }
        assert_eq!(buckets.take(&user, later), None);
        // A rate that is changed holds at once.
        buckets.rate = Some(LogRate {
            burst: RATE.burst + 1,
            ..RATE
        });
        assert_eq!(buckets.take(&user, later), Some(1));
    }

    /// Any number of users takes a bounded number of places, and the quiet ones make room.
    #[test]
    fn sources_are_bounded() {
        let mut buckets = Buckets {
            rate: Some(RATE),
            ..Buckets::default()
        };
        let now = Instant::now();
        for uid in 0..SOURCES_MAX as u32 {
            assert!(buckets.take(&Source::User(uid), now).is_some());
        }
        assert_eq!(buckets.take(&Source::User(u32::MAX), now), None);
        let later = now + Duration::from_secs(1);
        assert!(buckets.take(&Source::User(u32::MAX), later).is_some());
        assert_eq!(buckets.by_source.len(), 1);
    }
}
