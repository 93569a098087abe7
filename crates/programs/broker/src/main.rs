//! `windlass-broker`: listens, serves and ends.
#![forbid(unsafe_code)]

use std::fmt::Arguments;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use sd_notify::NotifyState;
use windlass_broker::log::Log;
use windlass_broker::options::Args;
use windlass_broker::policy::{CONFIG_PATH, Policy};
use windlass_broker::{Broker, Settings};
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
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    // Before the first thread, so that every thread has them blocked.
    let signals = Signals::take_over(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    let path = &args.socket;
    let is_root = geteuid().is_root();
    let settings = Settings {
        others: is_root && !args.private,
        program: std::env::current_exe()?,
        policy: is_root.then(|| CONFIG_PATH.into()),
        linger: (args.private).then(|| Duration::from_millis(args.linger_ms)),
    };
    // Held to the end. Where another broker has it, this one is not needed.
    let lock = args.private.then(|| windlass_broker::lock(path));
    if matches!(lock, Some(None)) {
        return Ok(());
    }
    if path.parent() == Some(SYSTEM_DIRECTORY.as_ref()) {
        // One that is there is as good; another failure is told by the bind.
        let _ = std::fs::DirBuilder::new()
            .mode(0o755)
            .create(SYSTEM_DIRECTORY);
    }
    let mut log = Log::new(args.verbose);
    let say = Box::new(move |is_notice, line: Arguments<'_>| log.say(is_notice, line));
    // A private one is a stranger in the service of the program that it was started for.
    let given = if args.private { None } else { activated(path)? };
    let broker = Broker::listen(path, given, settings, say)?;
    let notify = |state| {
        if !args.private
            && let Err(error) = sd_notify::notify(&[state])
        {
            eprintln!("windlass-broker: cannot notify the service manager: {error}");
        }
    };
    notify(NotifyState::Ready);
    let ended = broker.run(&signals);
    notify(NotifyState::Stopping);
    ended.context("wait for events")
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
    let listener = Listener::given(socket, path).map(Some);
    listener.with_context(|| format!("the service manager does not listen on {}", path.display()))
}
