//! `windlassd`: starts, serves and ends.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use windlassd::authority::Peer;
use windlassd::engine::{Engine, EngineHandle};
use windlassd::handover::{self, Successor, Turn};
use windlassd::http::{App, Server, SocketLock};
use windlassd::options::{Args, Limits, Options};
use windlassd::{captures, dataplane, log, notify, paths, routes, store};

/// Time that connections have to end when the daemon does.
const DRAIN_TIME: Duration = Duration::from_millis(500);
/// How often the engine is looked after when no watchdog wants to hear of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlassd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.print_default_config {
        print!("{}", windlassd::options::default_config());
        return Ok(());
    }
    let turn = args.successor.then(Turn::of_successor).transpose()?;
    let options = Options::load(args)?;
    if args.check_config {
        return check(&options);
    }
    log::start(options.log_level, options.log_format)?;
    log::set_rate(options.limits.log_rate);
    raise_descriptors();
    if args.socket.is_none() || options.socket.starts_with(&options.runtime_dir) {
        paths::make_runtime_dir(&options.runtime_dir)?;
    }
    let mut lock = None;
    let mut take_lock = |inherited| {
        lock = Some(SocketLock::take(&options.socket, inherited)?);
        anyhow::Ok(())
    };
    let (engine, thread) = match turn {
        Some(turn) => Engine::spawn_in_turn(
            &options,
            |sink| dataplane::build(&options, sink),
            Some(|engine: &mut Engine| take_lock(turn.wait(engine)?)),
        ),
        None => Engine::spawn(&options, |sink| {
            let plane = dataplane::build(&options, sink)?;
            take_lock(None)?;
            Ok(plane)
        }),
    }?;
    let mut lock = lock.context("no control socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(args, &options, &mut lock, &engine));
    match &result {
        Ok(Some(successor)) => notify::handed_over(successor.pid()),
        _ => notify::stopping(),
    }
    engine.stop();
    if thread.join().is_err() {
        bail!("the engine has failed: see the lines above");
    }
    drop(lock);
    // The successor's turn.
    result.map(drop)
}

/// Takes all the descriptors that the hard limit allows: a memif VNIC needs a dozen, and each guest's queue three.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(
            "the limit of descriptors stays {:?}: {error}",
            limit.current
        );
    }
}

fn check(options: &Options) -> Result<()> {
    dataplane::check_cores(&options.workers)?;
    match store::check(&options.state_dir)? {
        Some(document) => println!(
            "good: {} zones, {} bridges, {} uplinks, {} VNICs in {}",
            document.zones.len(),
            document.bridges.len(),
            document.uplinks.len(),
            document.vnics.len(),
            options.state_dir.display()
        ),
        None => println!("good: no document in {} yet", options.state_dir.display()),
    }
    Ok(())
}

/// Serves until a signal ends that; a successor is there if one is to go on.
async fn serve(
    args: &Args,
    options: &Options,
    lock: &mut SocketLock,
    engine: &EngineHandle,
) -> Result<Option<Successor>> {
    // Before anybody can know that this process serves, and signal it.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut upgrade = signal(SignalKind::user_defined2())?;
    let mut successor = None;
    let listener = lock.listen()?;
    let (limits, allowed) = watch::channel(options.limits);
    let app = App {
        engine: engine.clone(),
        limits: allowed.clone(),
    };
    captures::start(lock.listen_captures()?, engine.clone(), allowed.clone())?;
    let router = routes::router(app);
    let mut server = Server::start(listener, router.clone(), allowed.clone());
    let status = format!("serving {}", options.socket.display());
    notify::ready(&status);
    tracing::info!("windlassd {} {status}", env!("CARGO_PKG_VERSION"));
    let watchdog = notify::watchdog_interval();
    let mut look = tokio::time::interval(watchdog.unwrap_or(LOOK_INTERVAL));
    let is_handed_over = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = hangup.recv() => {
                notify::reloading();
                reload(args, options, &limits, engine).await;
                notify::ready(&status);
            }
            _ = upgrade.recv(), if successor.is_none() => match Successor::start() {
                Ok(started) => successor = Some(started),
                Err(error) => tracing::error!("upgrade: this daemon serves on: {error:#}"),
            },
            ready = ready(&mut successor) => {
                // Requests wait, for this daemon or the next one.
                end(&mut server, engine).await;
                if hand_over(engine, lock, ready).await {
                    break true;
                }
                keep(engine, &mut successor).await;
                server = Server::start(lock.listen()?, router.clone(), allowed.clone());
            }
            _ = look.tick() => {
                let alive = engine.call(&Peer::daemon(), |engine| Ok(engine.alive())).await;
                match alive {
                    Ok(true) if watchdog.is_some() => notify::alive(),
                    Ok(true) => {}
                    Ok(false) => tracing::warn!("a worker makes no progress"),
                    Err(error) if error.code == windlass_api::ErrorCode::Internal => {
                        return Err(error).context("the engine is gone");
                    }
                    Err(error) => tracing::warn!("the engine does not answer: {error}"),
                }
            }
        }
    };
    tracing::info!("ending");
    if !is_handed_over {
        give_up(&mut successor);
        end(&mut server, engine).await;
    }
    Ok(successor)
}

/// Answers what was asked, and takes no more.
async fn end(server: &mut Server, engine: &EngineHandle) {
    let leave = |engine: &mut Engine| {
        engine.leave();
        Ok(())
    };
    // An engine that is gone has nothing that waits.
    let _ = engine.call(&Peer::daemon(), leave).await;
    server.end(DRAIN_TIME).await;
}

/// Whether a successor serves. If not, all goes on here once that is gone: of two that have the same rings, one is to use them.
async fn hand_over(
    engine: &EngineHandle,
    lock: &mut SocketLock,
    ready: Result<&Successor>,
) -> bool {
    let handed = try_hand_over(engine, lock, ready).await;
    if let Err(error) = &handed {
        tracing::error!("upgrade: this daemon serves on: {error:#}");
    }
    handed.is_ok()
}

/// Hands all over, and sees that the successor serves.
async fn try_hand_over(
    engine: &EngineHandle,
    lock: &mut SocketLock,
    ready: Result<&Successor>,
) -> Result<()> {
    let successor = ready?;
    let itself = Peer::daemon();
    let members = engine.call(&itself, |engine| Ok(engine.hand_over()));
    lock.hand_over(successor, &members.await?)?;
    // From here to the successor's answer no frame is forwarded.
    let go = successor.go()?;
    if !engine.call(&itself, |engine| Ok(engine.rest(go))).await? {
        bail!("a worker does not come to rest, or the successor has ended");
    }
    successor.serves()?;
    let counters = engine.call(&itself, |engine| Ok(engine.last_counters()));
    if let Err(error) = successor.tell(&counters.await?) {
        tracing::error!("upgrade: counters begin at zero: {error:#}");
    }
    handover::be_nicer();
    lock.is_another_daemons();
    Ok(())
}

/// After a hand-over that failed.
async fn keep(engine: &EngineHandle, successor: &mut Option<Successor>) {
    give_up(successor);
    let itself = Peer::daemon();
    let kept = engine.call(&itself, |engine| {
        engine.keep();
        Ok(())
    });
    if let Err(error) = kept.await {
        tracing::error!("upgrade: {error}");
    }
}

fn give_up(successor: &mut Option<Successor>) {
    if let Some(successor) = successor.take() {
        successor.give_up();
    }
}

/// The successor when it is ready; for ever if there is none.
async fn ready(successor: &mut Option<Successor>) -> Result<&Successor> {
    match successor {
        Some(successor) => successor.ready().await.map(|()| &*successor),
        None => std::future::pending().await,
    }
}

/// Reads the options again, takes over what can change while the daemon runs, and tries to make what failed before.
async fn reload(
    args: &Args,
    started_with: &Options,
    limits: &watch::Sender<Limits>,
    engine: &EngineHandle,
) {
    let mut per_user = None;
    match Options::load(args) {
        Ok(new) => {
            log::set_level(new.log_level);
            log::set_rate(new.limits.log_rate);
            per_user = Some(new.limits.per_user);
            limits.send_replace(new.limits);
            for (name, why) in started_with.fixed(&new) {
                tracing::warn!("reload: {name} has changed and needs a restart: {why}");
            }
            tracing::info!("reload: the options were read again");
            tracing::debug!("reload: {new:?}");
        }
        Err(error) => tracing::error!("reload: the old options hold: {error:#}"),
    }
    let itself = Peer::daemon();
    let retried = engine.call(&itself, move |engine| {
        if let Some(per_user) = per_user {
            engine.allow(per_user);
        }
        engine.retry();
        Ok(())
    });
    if let Err(error) = retried.await {
        tracing::error!("reload: {error}");
    }
}
