//! `windlass-broker`: listens, serves and ends.
#![forbid(unsafe_code)]

use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use sd_notify::NotifyState;
use windlass_broker::log::Log;
use windlass_broker::options::Args;
use windlass_broker::policy::{CONFIG_PATH, Policy};
use windlass_broker::{Broker, Handle, Settings};
use windlass_listing::SYSTEM_DIRECTORY;
use windlass_sys::signals::Signals;
use windlass_sys::unix::{self, Listener};

fn main() -> ExitCode {
    match windlass_broker::helper::serve_if_asked(std::env::args().skip(1)) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    }
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-broker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.check_config {
        Policy::load(CONFIG_PATH.as_ref())?;
        println!("good: {CONFIG_PATH}");
        return Ok(());
    }
    // A limit that stays as it is only serves fewer processes.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    if args.private {
        windlass_broker::private(&args.path(), args.linger(), &std::env::current_exe()?);
        return Ok(());
    }
    // Before the first thread, so that every thread has them blocked.
    let signals = Signals::take_over(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    let is_root = geteuid().is_root();
    let path = args.path();
    if path
        .parent()
        .is_some_and(|dir| dir.as_os_str() == SYSTEM_DIRECTORY)
    {
        // One that is there is as good; another failure is told by the bind.
        let _ = std::fs::DirBuilder::new()
            .mode(0o755)
            .create(SYSTEM_DIRECTORY);
    }
    let settings = Settings {
        others: is_root,
        program: std::env::current_exe()?,
        policy: is_root.then(|| CONFIG_PATH.into()),
        linger: None,
        needed: || true,
    };
    let mut log = Log::new(args.verbose);
    let events = move |event: &windlass_broker::Event<'_>| log.event(event);
    let broker = Broker::listen(&path, activated(&path)?, settings, events)?;
    let handle = broker.handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || obey(&signals, &handle))?;
    notify(&[NotifyState::Ready]);
    broker.run().context("wait for events")
}

/// Follows signals until one ends the broker.
fn obey(signals: &Signals, handle: &Handle) {
    while let Ok(signal) = signals.next() {
        if signal != libc::SIGHUP {
            notify(&[NotifyState::Stopping]);
            return handle.stop();
        }
        handle.reload();
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("windlass-broker: cannot notify the service manager: {error}");
    }
}

/// The listening socket that the service manager handed over (`LISTEN_FDS`, sd_listen_fds(3)), if it did.
fn activated(path: &std::path::Path) -> Result<Option<Listener>> {
    let mut fds = sd_notify::listen_fds().context("LISTEN_FDS")?;
    let Some(fd) = fds.next() else {
        return Ok(None);
    };
    if fds.len() > 0 {
        bail!("the service manager gave several sockets: windlass-broker takes one");
    }
    let socket = unix::inherited(fd).context("the socket of the service manager")?;
    let listener = Listener::given(socket, path);
    let listener = listener
        .with_context(|| format!("the service manager does not listen on {}", path.display()))?;
    Ok(Some(listener))
}
