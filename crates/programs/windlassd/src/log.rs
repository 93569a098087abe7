//! Logging: plain lines on stderr, with a time where the journal does not add one.

use std::io;
use std::sync::OnceLock;

use anyhow::Result;
use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging. To be called once.
///
/// # Errors
/// If it was called before.
pub fn start(level: Level) -> Result<()> {
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    let to_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let layer = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    if to_journal {
        registry.with(layer.without_time()).try_init()?;
    } else {
        registry.with(layer).try_init()?;
    }
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
